"""The lines of the testee protocol (spec/conformance.md#protocol): written and read, without any process."""

from __future__ import annotations

import base64
import json
from typing import Any, NoReturn

import msgspec

from kvwire.dialects import DIALECTS, get_dialect
from kvwire.errors import DialectError
from kvwire_conform.consumer_model import PROTOCOL, Consumer

__all__ = ["MAX_LINE", "READINGS", "Answer", "LineError", "Request", "parse_answer", "parse_hello", "render_request"]

MAX_LINE = 16 * 1024 * 1024
"""Bytes that a line may have, its line feed not counted."""
READINGS = ("any", "told", "strict")
_SHOWN = 80


class LineError(ValueError):
    """A line that is not of the protocol; the message says what was expected and what came."""


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One payload to be read.

    Attributes:
        topic, seq: of the message that carries it.
        payload: the msgpack bytes.
        dialect: what the testee is told; None where it is not told.
    """

    payload: bytes
    topic: str = "kv-events"
    seq: int = 0
    dialect: str | None = None


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What a consumer made of a payload: exactly one of ``events``, ``error`` and ``unsupported``.

    Attributes:
        events: neutral JSON events, not yet checked.
        error: it refused the payload, in its own words.
        unsupported: it does not read this kind of thing, and knows it.
        ts, dp_rank: of the batch; UNSET where the consumer does not keep them.
    """

    events: list[Any] | None = None
    error: str | None = None
    unsupported: str | None = None
    ts: Any = msgspec.UNSET
    dp_rank: Any = msgspec.UNSET


class _Hello(msgspec.Struct, frozen=True):
    protocol: int
    name: str
    version: str
    language: str
    dialects: list[str]
    reading: str = "any"
    decoder: str = ""
    homepage: str = ""
    notes: str = ""


_ANSWERS = ("events", "error", "unsupported")


def render_request(ident: str, request: Request) -> bytes:
    """A request as its line, line feed included."""
    found: dict[str, Any] = {
        "id": ident,
        "topic": request.topic,
        "seq": request.seq,
        "payload": base64.b64encode(request.payload).decode(),
    }
    if request.dialect is not None:
        found["dialect"] = request.dialect
    return msgspec.json.encode(found) + b"\n"


def parse_hello(line: bytes) -> Consumer:
    """The first line of a testee: who it is.

    Raises:
        LineError: it is no hello, of another protocol, or claims a dialect that there is not.
    """
    found = _object(line)
    version = found.get("protocol")
    if type(version) is int and version != PROTOCOL:
        _refuse(f"it speaks protocol {version}; this runner speaks protocol {PROTOCOL}")
    try:
        hello = msgspec.convert(found, _Hello)
    except msgspec.ValidationError as error:
        _refuse(f"its first line is no hello: {error}", line)
    if hello.reading not in READINGS:
        _refuse(f"its hello says reading {hello.reading!r}; there are {', '.join(READINGS)}")
    try:
        claimed = {get_dialect(name).id for name in hello.dialects}
    except DialectError as error:
        _refuse(f"its hello claims a dialect that there is not: {error}")
    return Consumer(
        name=hello.name,
        version=hello.version,
        language=hello.language,
        dialects=tuple(name for name in DIALECTS if name in claimed),
        reading=hello.reading,
        decoder=hello.decoder,
        homepage=hello.homepage,
        notes=hello.notes,
    )


def ident_of(line: bytes) -> str | None:
    """The ``id`` of a line that is a JSON object and has one."""
    try:
        ident = _object(line).get("id")
    except LineError:
        return None
    return ident if isinstance(ident, str) else None


def parse_answer(line: bytes, ident: str) -> Answer:
    """The answer to the request of this id. The events in it are not looked at.

    Raises:
        LineError: it is no answer, or one to another request.
    """
    found = _object(line)
    if "id" not in found:
        _refuse("its answer has no id", line)
    if found["id"] != ident:
        _refuse(f"its answer has the id {_shown(found['id'])}, and the request has {_shown(ident)}")
    given = [name for name in _ANSWERS if found.get(name) is not None]
    if len(given) != 1:
        _refuse(f"an answer has exactly one of {', '.join(_ANSWERS)}; this has {' and '.join(given) or 'none'}", line)
    kind = given[0]
    value = found[kind]
    if kind != "events":
        if not isinstance(value, str):
            _refuse(f"{kind} is a string, not {_shown(value)}")
        return Answer(error=value) if kind == "error" else Answer(unsupported=value)
    if not isinstance(value, list):
        _refuse(f"events is an array, not {_shown(value)}")
    return Answer(events=value, ts=found.get("ts", msgspec.UNSET), dp_rank=found.get("dp_rank", msgspec.UNSET))


def _object(line: bytes) -> dict[str, Any]:
    try:
        line.decode()
    except UnicodeDecodeError as error:
        _refuse(f"a line that is not UTF-8 (byte {error.start})", line)
    try:
        found = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        _refuse(f"a line that is not JSON: {error}", line)
    except RecursionError:
        _refuse("a line that is nested too deep", line)
    if not isinstance(found, dict):
        _refuse("a line that is no JSON object", line)
    repeated: list[str] = []
    # msgspec takes the last of two equal keys, which would hide the first, whatever it says.
    json.loads(line, object_pairs_hook=lambda pairs: _note_repeated(pairs, repeated))
    if repeated:
        _refuse(f"a line with the key {_shown(repeated[0])} twice in one object", line)
    return found


def _note_repeated(pairs: list[tuple[str, Any]], repeated: list[str]) -> None:
    names = [name for name, _ in pairs]
    if len(set(names)) < len(names):
        repeated += (name for index, name in enumerate(names) if name in names[:index])


def _refuse(problem: str, line: bytes = b"") -> NoReturn:
    raise LineError(f"{problem}; the line: {excerpt(line)}" if line else problem)


def excerpt(line: bytes) -> str:
    """The start of a line, for people."""
    text = line[: 4 * _SHOWN].decode("utf-8", "replace")[:_SHOWN]
    return text if len(line) <= len(text.encode()) else f"{text}… ({len(line)} bytes)"


def _shown(value: Any) -> str:
    try:
        return excerpt(msgspec.json.encode(value))
    except (TypeError, ValueError, RecursionError):
        return type(value).__name__
