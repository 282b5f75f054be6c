"""The fast path: two msgspec decoders, one for array events and one for map events, chosen by the first byte of the
first event.

Each decodes straight into subclasses of the neutral classes. What they refuse, and what they cannot judge, is left to
`kvwire._walk`; what they accept means the same there (a property test holds the two together).
"""

from __future__ import annotations

from itertools import chain
from typing import Any, ClassVar

import msgspec

from kvwire._fields import KEYS, extra_keys_problem, prefixed_salts
from kvwire._msgpack import MAX_FIELDS, header, refuse_ext
from kvwire.dialects import ALL_MEDIA
from kvwire.errors import ShapeError
from kvwire.events import AllBlocksCleared, BlockRemoved, BlockStored, EventBatch

_raw_tokens = BlockStored.token_ids
_tokens = msgspec.msgpack.Decoder(list[int | str | tuple[int, int]])


REFUSED = (msgspec.DecodeError, UnicodeDecodeError, RecursionError, MemoryError, OverflowError)
"""What msgspec raises for bytes it does not take; all of it is left to the walk."""


class SaltSlot(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    """A metadata map in slot 7 or 14, before its salt is moved to where it belongs."""

    cache_salt: str


class ArrayStored(
    BlockStored, array_like=True, tag_field="type", tag="BlockStored", eq=False, gc=False, forbid_unknown_fields=True
):
    """`BlockStored` by position. Fields past slot 14 exist only as nil, so that an unknown slot is never misread."""

    tag: ClassVar[str] = "BlockStored"

    lora_name: str | SaltSlot | None = None  # type: ignore[assignment]
    cache_salt: SaltSlot | None = None  # type: ignore[assignment]
    session_id: None = None
    lookahead_token_ids: None = None


class ArrayRemoved(
    BlockRemoved, array_like=True, tag_field="type", tag="BlockRemoved", eq=False, gc=False, forbid_unknown_fields=True
):
    """`BlockRemoved` by position."""

    tag: ClassVar[str] = "BlockRemoved"


class ArrayCleared(
    AllBlocksCleared,
    array_like=True,
    tag_field="type",
    tag="AllBlocksCleared",
    eq=False,
    gc=False,
    forbid_unknown_fields=True,
):
    """`AllBlocksCleared` by position."""

    tag: ClassVar[str] = "AllBlocksCleared"


class LazyArrayStored(ArrayStored, tag="BlockStored", eq=False, gc=False):
    """`ArrayStored` whose tokens stay bytes until they are asked for."""

    token_ids: msgspec.Raw  # type: ignore[assignment]


class LazyMapStored(BlockStored, tag="BlockStored", eq=False, gc=False):
    """`BlockStored` whose tokens stay bytes until they are asked for."""

    token_ids: msgspec.Raw  # type: ignore[assignment]


def _lazy_tokens(event: Any) -> Any:
    found = _raw_tokens.__get__(event)  # type: ignore[attr-defined]
    if isinstance(found, msgspec.Raw):
        if bytes(found) == b"\xc0":
            found = []
        else:
            try:
                found = _tokens.decode(found)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                raise ShapeError(
                    "token_ids has the wrong type",
                    key="token_ids",
                    tag="BlockStored",
                    expected="an array of token ids",
                    got=str(error),
                ) from error
        _raw_tokens.__set__(event, found)  # type: ignore[attr-defined]
    return found


def _set_tokens(event: Any, value: Any) -> None:
    _raw_tokens.__set__(event, value)  # type: ignore[attr-defined]


for _lazy in (LazyArrayStored, LazyMapStored):
    _lazy.token_ids = property(_lazy_tokens, _set_tokens)  # type: ignore[assignment]


class _ArrayBatch(EventBatch, array_like=True, eq=False, gc=False):
    events: list[ArrayStored | ArrayRemoved | ArrayCleared]


class _MapBatch(EventBatch, array_like=True, eq=False, gc=False):
    events: list[BlockStored | BlockRemoved | AllBlocksCleared]


class _LazyArrayBatch(EventBatch, array_like=True, eq=False, gc=False):
    events: list[LazyArrayStored | ArrayRemoved | ArrayCleared]


class _LazyMapBatch(EventBatch, array_like=True, eq=False, gc=False):
    events: list[LazyMapStored | BlockRemoved | AllBlocksCleared]


class _Keyed(msgspec.Struct, array_like=True, gc=False):
    ts: msgspec.Raw
    events: list[dict[str, msgspec.Raw]]
    rank: msgspec.Raw = msgspec.Raw(b"")


class _Raws(msgspec.Struct, array_like=True, gc=False):
    ts: msgspec.Raw
    events: list[msgspec.Raw]


array_decode = msgspec.msgpack.Decoder(_ArrayBatch, ext_hook=refuse_ext).decode
map_decode = msgspec.msgpack.Decoder(_MapBatch, ext_hook=refuse_ext).decode
lazy_array_decode = msgspec.msgpack.Decoder(_LazyArrayBatch, ext_hook=refuse_ext).decode
lazy_map_decode = msgspec.msgpack.Decoder(_LazyMapBatch, ext_hook=refuse_ext).decode
_keyed = msgspec.msgpack.Decoder(_Keyed).decode
_split = msgspec.msgpack.Decoder(_Raws).decode


def events_are_maps(payload: bytes) -> bool:
    """Whether the first event is a map. False for an array, no event at all, or anything out of the ordinary."""
    try:
        if payload[1] != 0xCB:
            return _slow_sniff(payload)
        first = payload[_events_start(payload)]
    except IndexError:
        return False
    return 0x80 <= first < 0x90 or first in (0xDE, 0xDF)


def _slow_sniff(payload: bytes) -> bool:
    try:
        events = _split(payload).events
    except (msgspec.DecodeError, RecursionError):
        return False
    if not events:
        return False
    first: int = memoryview(events[0])[0]
    return 0x80 <= first < 0x90 or first in (0xDE, 0xDF)


def settle(payload: bytes, events: list[Any]) -> bool:
    """Move each salt to ``cache_salt``, and look at what the types above cannot tell.

    False when the walk has to judge: two salts in one event or in one metadata map, a timestamp or deep nesting in extra
    keys, or a clear whose owner is a medium.
    """
    metadata = 0
    for event in events:
        if event.tag == "BlockStored":
            extra_keys = event.extra_keys
            carried = type(event.lora_name) is SaltSlot or type(event.cache_salt) is SaltSlot
            if carried:
                metadata += (type(event.lora_name) is SaltSlot) + (type(event.cache_salt) is SaltSlot)
            elif not extra_keys or not any(extra_keys):
                continue
            if extra_keys_problem(extra_keys) is not None or not _settle_one(event):
                return False
        elif event.tag == "AllBlocksCleared" and event.ownership in ALL_MEDIA:
            return False
    # A key that stands twice in a metadata map is read once by msgspec; a salt that spells the key is left to the walk.
    return not metadata or payload.count(b"cache_salt") == metadata


def _settle_one(event: Any) -> bool:
    found = prefixed_salts(event.extra_keys)
    if type(event.lora_name) is SaltSlot:
        found.add(event.lora_name.cache_salt)
        event.lora_name = None
    if type(event.cache_salt) is SaltSlot:
        found.add(event.cache_salt.cache_salt)
        event.cache_salt = None
    elif event.cache_salt is not None:
        found.add(event.cache_salt)
    if len(found) > 1:
        return False
    if found:
        event.cache_salt = found.pop()
    return True


def keys_are_unique(payload: bytes) -> bool:
    """Whether no map event has a key twice, or more keys than are read.

    msgspec keeps the last value of a repeated key without a word. The shortest form that the keys and values that are
    left can have is added up: when it fills the payload to the last byte, nothing was repeated. Otherwise (a long
    header, say) the header of each event is compared with the keys that are left.
    """
    batch = _keyed(payload)
    keyed = batch.events
    if max(map(len, keyed), default=0) > MAX_FIELDS:
        return False
    count = len(keyed)
    size = 1 + len(batch.ts) + len(batch.rank) + (1 if count < 16 else 3 if count < 65536 else 5) + count
    size += sum(map(len, keyed)) + sum(map(len, chain.from_iterable(keyed)))
    size += sum(map(len, chain.from_iterable(event.values() for event in keyed)))
    if size == len(payload):
        return True
    raws = _split(payload).events
    return all(header(bytes(memoryview(raw)[:5]))[0] == len(event) for raw, event in zip(raws, keyed, strict=True))


def _events_start(payload: bytes) -> int:
    first = payload[10]
    return 13 if first == 0xDC else 15 if first == 0xDD else 11


def may_hide_extras(payload: bytes) -> bool:
    """Whether decoding may have passed over an event, batch element, slot or key that no dialect knows."""
    if payload[0] not in (0x92, 0x93):
        return True
    try:
        if not events_are_maps(payload):
            events = array_decode(payload).events
            return any(event.tag == "AllBlocksCleared" and event.ownership in ALL_MEDIA for event in events)
        map_decode(payload)
        return not all(event.keys() <= _KEYS_OF.get(bytes(event["type"]), _NO_KEYS) for event in _keyed(payload).events)
    except REFUSED:
        return True


_KEYS_OF = {msgspec.msgpack.encode(tag): keys | {"type"} for tag, keys in KEYS.items()}
_NO_KEYS: frozenset[str] = frozenset()
