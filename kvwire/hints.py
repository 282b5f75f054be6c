"""KV hints: what a router tells the engine it picked, in the reverse direction of the events (spec/hints.md).

A request may carry an envelope of versioned actions, e.g. where the blocks of its prefix can be fetched from::

    envelope = decode_hints(request["kv_hints"])
    for problem in envelope.problems:
        log.warning("%s", problem)
    for fetch in envelope.fetches:
        fetch.endpoint, fetch.page_keys

A hint is data from a client. That it decodes says that it is well formed and that its endpoint *can* be dialled. It does
not say that the sender may give hints, that the endpoint is a peer of this fleet, that a peer there holds the blocks, or
that their bytes are what the hashes say. Dialling an endpoint that a client chose is a request it makes you send: compare
it with the peers you know first.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from kvwire.errors import KvwireError, UsageError
from kvwire.hashing.forms import as_hex, as_uint64, from_hex

__all__ = [
    "FETCH",
    "FetchAction",
    "HintError",
    "HintProblem",
    "HintsEnvelope",
    "OtherAction",
    "block_hash_of",
    "check_endpoint",
    "decode_batch_hints",
    "decode_hints",
    "encode_hints",
]

PROTOCOL_VERSION = "0.1"
FETCH = "kv.fetch"
FETCH_VERSION = "1.0"
OLDER_FETCH = "kv.source_locations"
"""The type of the same action before it was renamed."""
MODES = ("copy",)
MAX_ACTIONS = 1_024
MAX_HASHES = 1_048_576

_ENDPOINT = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://(.*)", re.DOTALL)
_HOST_NAME = re.compile(r"(?!-)[A-Za-z0-9_-]{1,63}(?<!-)(\.(?!-)[A-Za-z0-9_-]{1,63}(?<!-))*\.?")
_NUMBER = re.compile(r"[0-9]{1,5}")

Form = Literal["envelope", "bare-payload"]


class HintError(KvwireError, ValueError):
    """A hint that cannot be used.

    Attributes:
        code: ``envelope``, ``field``, ``endpoint``, ``batch`` or ``limit``.
        item: position in a batched request; None outside one.
        action: position of the action in its envelope; None when the envelope itself is at fault.
        action_id: that action's id, where one could be read.
        field: the key that is at fault, with its path, e.g. ``payload.block_hashes[2]``.
        expected, got: in words.
    """

    code = "hint"

    def __init__(
        self,
        problem: str,
        *,
        code: str,
        field: str | None = None,
        expected: str = "",
        got: str = "",
        item: int | None = None,
        action: int | None = None,
        action_id: str | None = None,
    ) -> None:
        self.code = code
        self.problem = problem
        self.field = field
        self.expected = expected
        self.got = got
        self.item = item
        self.action = action
        self.action_id = action_id
        super().__init__(problem)

    @property
    def path(self) -> str:
        """Where, in the form ``kv_hints[1].actions[0] (fetch-0).payload.block_hashes[2]``."""
        where = "kv_hints" if self.item is None else f"kv_hints[{self.item}]"
        if self.action is not None:
            where += f".actions[{self.action}]"
            if self.action_id is not None:
                where += f" ({self.action_id})"
        return f"{where}.{self.field}" if self.field else where

    def __str__(self) -> str:
        told = f"; expected {self.expected}, got {self.got}" if self.expected else ""
        return f"{self.path}: {self.problem}{told}"

    def as_dict(self) -> dict[str, Any]:
        """The fields that are set, as JSON-ready values."""
        found = {
            "code": self.code,
            "item": self.item,
            "action": self.action,
            "action_id": self.action_id,
            "field": self.field,
            "expected": self.expected,
            "got": self.got,
        }
        return {name: value for name, value in found.items() if value not in (None, "")}

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (self.problem, {**self.as_dict(), "code": self.code}))


def _rebuild(problem: str, fields: dict[str, Any]) -> HintError:
    return HintError(problem, **fields)


HintProblem = HintError
"""A fault that does not stop the envelope: an action that is left out, or a list of hashes that was cut short."""


class FetchAction(msgspec.Struct, frozen=True, kw_only=True):
    """Where blocks of the request's prefix can be copied from (``kv.fetch`` 1.0).

    Attributes:
        source_control_endpoint: control endpoint of the peer that holds them, ``tcp://host:port``; dialable, not trusted.
        block_hashes: unsigned 64-bit, root side first: entry i is block i of the request. The engine decides which part
            it fetches. Never empty.
        mode: ``copy``, the only one so far; absent in older hints, which mean the same.
        action_id: the sender's name for the action, for logs; empty in a bare payload.
        announced: how many hashes the hint listed; more than there are in ``block_hashes`` if one could not be read.
        spelled: the action type as it was sent: ``kv.fetch`` or the older ``kv.source_locations``.
    """

    source_control_endpoint: str
    block_hashes: tuple[int, ...]
    mode: str = "copy"
    action_id: str = ""
    announced: int = 0
    spelled: str = FETCH

    @property
    def page_keys(self) -> tuple[str, ...]:
        """The hashes as SGLang's page keys start: 16 hex digits each."""
        return tuple(map(as_hex, self.block_hashes))


class OtherAction(msgspec.Struct, frozen=True, kw_only=True):
    """An action that this reader does not implement, or a version of one. Kept as it came, and never acted on."""

    action_id: str
    action_type: str
    action_version: str
    payload: dict[str, Any]


class HintsEnvelope(msgspec.Struct, frozen=True, kw_only=True):
    """The hints of one request.

    Attributes:
        protocol_version: ``0.1``; empty for a bare payload.
        message_id: the sender's name for the message, for logs; empty for a bare payload.
        actions: in the order sent, those at fault left out.
        problems: what was left out or cut short, and why.
        form: ``envelope``, or ``bare-payload`` for the oldest form: the payload of a fetch without anything around it.
    """

    protocol_version: str
    message_id: str
    actions: tuple[FetchAction | OtherAction, ...] = ()
    problems: tuple[HintError, ...] = ()
    form: Form = "envelope"

    @property
    def fetches(self) -> tuple[FetchAction, ...]:
        """The actions that this reader implements."""
        return tuple(action for action in self.actions if isinstance(action, FetchAction))


def decode_hints(value: Any, *, strict: bool = False, item: int | None = None) -> HintsEnvelope:
    """Read the hints of one request.

    Unknown actions, and versions of known ones, are kept as `OtherAction`. A known action at fault is left out and told in
    ``problems``: its siblings are independent of it. Keys that are not known are ignored.

    Args:
        value: JSON text or bytes, or what a JSON or msgpack parser made of it.
        strict: raise the first problem instead, for a sender's own tests.
        item: position in a batched request, for the errors.

    Raises:
        HintError: the envelope itself is wrong, so that no action can be told: reject the request.
    """
    value = _parsed(value, item)
    if not isinstance(value, Mapping):
        raise HintError("not an envelope", code="envelope", expected="an object", got=_kind(value), item=item)
    if "actions" not in value and "source_control_endpoint" in value:
        return _bare(value, strict=strict, item=item)
    version = _text(value, "protocol_version", item)
    message_id = _text(value, "message_id", item)
    actions = value.get("actions", ())
    if not isinstance(actions, (list, tuple)):
        raise _wrong("envelope", "actions", "an array of actions", actions, item)
    if len(actions) > MAX_ACTIONS:
        raise HintError(
            "too many actions",
            code="limit",
            field="actions",
            expected=f"at most {MAX_ACTIONS}",
            got=str(len(actions)),
            item=item,
        )
    read: list[FetchAction | OtherAction] = []
    problems: list[HintError] = []
    for index, action in enumerate(actions):
        try:
            found, cut = _action(action, index, item, version)
        except HintError as problem:
            if strict or problem.code == "envelope":
                raise
            problems.append(problem)
            continue
        if cut is not None:
            if strict:
                raise cut
            problems.append(cut)
        read.append(found)
    return HintsEnvelope(protocol_version=version, message_id=message_id, actions=tuple(read), problems=tuple(problems))


def decode_batch_hints(value: Any, batch_size: int, *, strict: bool = False) -> list[HintsEnvelope | None]:
    """Read the hints of a batched request: one entry a request, None for one without.

    A hint is of one request's prefix, so one envelope for several requests is refused, although SGLang 0.5.21 to 0.5.23
    copy it to all of them.

    Raises:
        HintError: not one entry a request, or an entry that `decode_hints` refuses; ``item`` says which.
    """
    value = _parsed(value, None)
    if value is None:
        return [None] * batch_size
    if isinstance(value, Mapping) and batch_size == 1:
        return [decode_hints(value, strict=strict, item=0)]
    if not isinstance(value, (list, tuple)):
        raise HintError(
            "a batched request carries one hint a request, since a hint is of one request's prefix",
            code="batch",
            expected=f"an array of {batch_size}",
            got=_kind(value),
        )
    if len(value) != batch_size:
        raise HintError("not one hint a request", code="batch", expected=f"{batch_size} entries", got=str(len(value)))
    # The engines take an empty object for no hint, as they do nil.
    return [
        None if entry is None or entry == {} else decode_hints(entry, strict=strict, item=index)
        for index, entry in enumerate(value)
    ]


def encode_hints(envelope: HintsEnvelope) -> dict[str, Any]:
    """The envelope as JSON-ready values, as a sender should write it: ``kv.fetch``, unsigned hashes, a mode.

    A bare payload is wrapped; its ids are then empty.

    Raises:
        UsageError: a fetch without hashes, a hash that is not 64 bits wide, or an endpoint that cannot be dialled.
    """
    return {
        "protocol_version": envelope.protocol_version or PROTOCOL_VERSION,
        "message_id": envelope.message_id,
        "actions": [_encoded(action) for action in envelope.actions],
    }


def _encoded(action: FetchAction | OtherAction) -> dict[str, Any]:
    if isinstance(action, OtherAction):
        return msgspec.structs.asdict(action)
    if not action.block_hashes:
        raise UsageError("a fetch names at least one block; leave the action out")
    try:
        hashes = [as_uint64(value) for value in action.block_hashes]
        check_endpoint(action.source_control_endpoint)
    except (OverflowError, HintError) as error:
        raise UsageError(str(error)) from error
    return {
        "action_id": action.action_id,
        "action_type": FETCH,
        "action_version": FETCH_VERSION,
        "payload": {
            "source_control_endpoint": action.source_control_endpoint,
            "block_hashes": hashes,
            "mode": action.mode,
        },
    }


def block_hash_of(value: Any) -> int:
    """One hash of a hint as unsigned 64 bits: from an unsigned or a signed integer, or from hex digits.

    A hex string is a page key of 64 digits, of which events carry the first 16, or those 16. Other lengths are refused: they
    may be decimal numbers, which look the same.

    Raises:
        ValueError: none of these. A boolean, a fraction and a number beyond 64 bits are none.
    """
    if isinstance(value, bool):
        raise ValueError("a boolean")
    if isinstance(value, int):
        try:
            return as_uint64(value)
        except OverflowError:
            raise ValueError("an integer beyond 64 bits") from None
    if isinstance(value, str):
        return from_hex(value)
    raise ValueError(_kind(value))


def check_endpoint(endpoint: str) -> tuple[str, int]:
    """Host and port of an endpoint that can be dialled. What that proves, and what not: see the module.

    Raises:
        HintError: not ``tcp://host:port``, a host that only a listener can have (``*``, ``0.0.0.0``, ``::``), no valid
            host, or a port outside 1 … 65535.
    """
    found = _ENDPOINT.fullmatch(endpoint)
    if found is None:
        raise _bad_endpoint("no URL", "tcp://host:port", endpoint)
    if found[1] != "tcp":
        raise _bad_endpoint("not TCP", "tcp://host:port", f"{found[1]}://")
    host, colon, port = found[2].rpartition(":")
    if not colon or (":" in host and not (host.startswith("[") and host.endswith("]"))):
        raise _bad_endpoint("no port", "tcp://host:port, an IPv6 address in brackets", endpoint)
    if not _NUMBER.fullmatch(port) or not 1 <= int(port) <= 65535:
        raise _bad_endpoint("no port that can be dialled", "a port from 1 to 65535", port)
    name = host[1:-1] if host.startswith("[") else host
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        if name == "*":
            raise _bad_endpoint("a listener's wildcard", "the peer's own host", host) from None
        if host.startswith("[") or not _HOST_NAME.fullmatch(name) or _looks_like_ipv4(name):
            raise _bad_endpoint("no host", "a host name or an IP address", host) from None
    else:
        mapped = getattr(address, "ipv4_mapped", None) or address
        if mapped.is_unspecified:
            raise _bad_endpoint("a listener's wildcard", "the peer's own host", host)
        if isinstance(address, ipaddress.IPv6Address) != host.startswith("["):
            raise _bad_endpoint("no host", "an IPv6 address, and only that, in brackets", host)
    return name, int(port)


def _looks_like_ipv4(name: str) -> bool:
    # Resolvers read 0 and 0x7f.1 as addresses, so a numeric name would get around the wildcard rule.
    return re.fullmatch(r"(0[xX][0-9a-fA-F]*|[0-9]+)(\.(0[xX][0-9a-fA-F]*|[0-9]+))*\.?", name) is not None


def _bad_endpoint(problem: str, expected: str, got: str) -> HintError:
    return HintError(problem, code="endpoint", field="source_control_endpoint", expected=expected, got=repr(got)[:80])


def _action(
    value: Any, index: int, item: int | None, version: str
) -> tuple[FetchAction | OtherAction, HintError | None]:
    if not isinstance(value, Mapping):
        raise HintError(
            "not an action", code="envelope", expected="an object", got=_kind(value), item=item, action=index
        )
    told = value.get("action_id")
    where: dict[str, Any] = {"item": item, "action": index, "action_id": told if isinstance(told, str) else None}
    for name in ("action_id", "action_type", "action_version"):
        if not isinstance(value.get(name), str):
            raise HintError(
                "not an action",
                code="envelope",
                field=name,
                expected="a string",
                got=_kind(value.get(name)) if name in value else "nothing",
                **where,
            )
    payload = value.get("payload", {})
    if not isinstance(payload, Mapping):
        raise HintError(
            "not an action", code="envelope", field="payload", expected="an object", got=_kind(payload), **where
        )
    kind = value["action_type"]
    # A newer version may give the same keys another meaning, so it is an action of its own.
    if version != PROTOCOL_VERSION or kind not in (FETCH, OLDER_FETCH) or value["action_version"] != FETCH_VERSION:
        return OtherAction(
            action_id=value["action_id"],
            action_type=kind,
            action_version=value["action_version"],
            payload=dict(payload),
        ), None
    return _fetch(payload, kind, where, "payload.")


def _bare(value: Mapping[str, Any], *, strict: bool, item: int | None) -> HintsEnvelope:
    where: dict[str, Any] = {"item": item, "action": None, "action_id": None}
    empty = HintsEnvelope(protocol_version="", message_id="", form="bare-payload")
    try:
        fetch, cut = _fetch(value, OLDER_FETCH, where, "")
    except HintError as problem:
        if strict:
            raise
        return msgspec.structs.replace(empty, problems=(problem,))
    if cut is not None and strict:
        raise cut
    return msgspec.structs.replace(empty, actions=(fetch,), problems=() if cut is None else (cut,))


def _fetch(
    payload: Mapping[str, Any], spelled: str, where: dict[str, Any], prefix: str
) -> tuple[FetchAction, HintError | None]:
    def wrong(name: str, problem: str, expected: str, got: str, code: str = "field") -> HintError:
        return HintError(problem, code=code, field=prefix + name, expected=expected, got=got, **where)

    endpoint = payload.get("source_control_endpoint")
    if not isinstance(endpoint, str):
        got = _kind(endpoint) if "source_control_endpoint" in payload else "nothing"
        raise wrong("source_control_endpoint", "no source to fetch from", "a string, tcp://host:port", got)
    try:
        check_endpoint(endpoint)
    except HintError as error:
        raise wrong("source_control_endpoint", error.problem, error.expected, error.got, "endpoint") from None
    mode = payload.get("mode", MODES[0])
    if mode not in MODES:
        raise wrong("mode", "a mode that this reader does not know", " or ".join(MODES), repr(mode)[:80])
    hashes = payload.get("block_hashes")
    if not isinstance(hashes, (list, tuple)):
        got = _kind(hashes) if "block_hashes" in payload else "nothing"
        raise wrong("block_hashes", "no list of hashes", "an array of hashes", got)
    if len(hashes) > MAX_HASHES:
        raise wrong("block_hashes", "too many hashes", f"at most {MAX_HASHES}", str(len(hashes)), "limit")
    read, cut = _aligned(hashes)
    problem = None
    if cut is not None:
        position, got = cut
        problem = wrong(
            f"block_hashes[{position}]",
            f"no hash, so the list ends before it: the {len(hashes) - position} entries from here on are not used, since "
            "leaving one out would move the others to blocks they are not of",
            "a 64-bit integer, signed or not, or 16 or 64 hex digits",
            got,
        )
    if not read:
        if problem is not None:
            raise problem
        raise wrong("block_hashes", "no hash to fetch", "at least one hash", "an empty array")
    action = FetchAction(
        source_control_endpoint=endpoint,
        block_hashes=tuple(read),
        mode=mode,
        action_id=where["action_id"] or "",
        announced=len(hashes),
        spelled=spelled,
    )
    return action, problem


def _aligned(hashes: Sequence[Any]) -> tuple[list[int], tuple[int, str] | None]:
    """The hashes up to the first one that cannot be read, and where and what that one is."""
    read: list[int] = []
    for position, value in enumerate(hashes):
        try:
            read.append(block_hash_of(value))
        except ValueError:
            return read, (position, _kind(value))
    return read, None


def _parsed(value: Any, item: int | None) -> Any:
    if isinstance(value, (str, bytes, bytearray, memoryview)):
        try:
            return msgspec.json.decode(value)
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            raise HintError(
                "not JSON", code="envelope", expected="a JSON object", got=str(error)[:120], item=item
            ) from None
    return value


def _text(value: Mapping[str, Any], name: str, item: int | None) -> str:
    found = value.get(name)
    if not isinstance(found, str):
        raise _wrong("envelope", name, "a string", found, item, missing=name not in value)
    return found


def _wrong(code: str, field: str, expected: str, value: Any, item: int | None, *, missing: bool = False) -> HintError:
    got = "nothing" if missing else _kind(value)
    return HintError("not an envelope", code=code, field=field, expected=expected, got=got, item=item)


def _kind(value: Any) -> str:
    """What came, in words; never more than a short excerpt of it."""
    if value is None:
        return "nil"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return f"the number {value}" if -(1 << 63) <= value < 1 << 64 else "an integer beyond 64 bits"
    if isinstance(value, float):
        return f"the number {value}"
    if isinstance(value, str):
        return f"the text {value!r}" if len(value) <= 40 else f"a text of {len(value)} characters"
    if isinstance(value, Mapping):
        return "an object"
    if isinstance(value, (list, tuple)):
        return f"an array of {len(value)}"
    return f"a {type(value).__name__}"
