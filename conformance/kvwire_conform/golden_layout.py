"""The layouts as the golden vectors write them: a second account of the wire, apart from the codec's registry.

The vectors hold the codec to its word, so their bytes come from here: from these tables and the hand-written msgpack of
`golden_msgpack`. The structs of real releases then prove the tables (`golden_provenance`), and the codec has to agree.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from kvwire_conform import golden_msgpack as mp

Form = Literal["signed", "unsigned", "bytes"]
Json = dict[str, Any]

STORED = "BlockStored"
REMOVED = "BlockRemoved"
CLEARED = "AllBlocksCleared"
SALT_PREFIX = "dynamo-cache-salt:"

_SIX = ("block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id")
_SEVEN = (*_SIX, "medium")
_EIGHT = (*_SEVEN, "lora_name")
_NINE = (*_EIGHT, "extra_keys")
_TEN = (*_NINE, "group_idx")
_TWELVE = (*_TEN, "kv_cache_spec_kind", "kv_cache_spec_sliding_window")
_FOURTEEN = (*_TWELVE, "locality", "ownership")
_SGLANG_MEDIA = ("GPU", "CPU_PINNED", "DISK", "EXTERNAL")


@dataclass(frozen=True)
class Layout:
    """One dialect as its vectors write it.

    Attributes:
        id: the dialect.
        stored, removed, cleared: fields in the order of the wire: slots 1, 2, … or keys after ``type``.
        maps: events are maps.
        always: keys of a map that are there at nil too.
        ranked: the batch has a third element.
        metadata: a salted stored event ends with the map ``{"cache_salt": str}``.
        signed: the engines that speak it write signed hashes.
        media: every medium constant of its releases.
        stored_header: width of the stored event's map header, where it is not the shortest.
    """

    id: str
    stored: tuple[str, ...]
    removed: tuple[str, ...]
    cleared: tuple[str, ...] = ()
    maps: bool = False
    always: frozenset[str] = frozenset()
    ranked: bool = True
    metadata: bool = False
    signed: bool = False
    media: tuple[str, ...] = ()
    stored_header: Literal[16, 32] | None = None

    def fields(self, tag: str) -> tuple[str, ...]:
        """The fields of an event in wire order, without the metadata map."""
        return {STORED: self.stored, REMOVED: self.removed, CLEARED: self.cleared}[tag]

    def has(self, name: str, tag: str = STORED) -> bool:
        """Whether an event has a slot or key of that name."""
        return name in self.fields(tag)

    @property
    def salted(self) -> bool:
        """Whether a stored event has a place of its own for the salt."""
        return self.metadata or "cache_salt" in self.stored


def _vllm_map(id: str, stored: tuple[str, ...], removed: tuple[str, ...], **more: Any) -> Layout:
    return Layout(
        id,
        (*_TWELVE, *stored),
        ("block_hashes", "medium", "group_idx", *removed),
        maps=True,
        always=frozenset((*_EIGHT,)),
        **more,
    )


def _sglang_map(id: str, *more: str) -> Layout:
    return Layout(
        id,
        (*_SEVEN, "cache_salt", "session_id", *more),
        ("block_hashes", "medium"),
        maps=True,
        always=frozenset(_SIX),
        signed=True,
        media=_SGLANG_MEDIA,
    )


_TIERS = ("GPU", "CPU", "STORAGE")

LAYOUTS: dict[str, Layout] = {
    layout.id: layout
    for layout in (
        Layout("slot6-b2", _SIX, ("block_hashes",), ranked=False),
        Layout("slot6", _SIX, ("block_hashes",)),
        Layout("slot7", _SEVEN, ("block_hashes", "medium"), media=_SGLANG_MEDIA),
        Layout("slot8", _SEVEN, ("block_hashes", "medium"), metadata=True, signed=True, media=_SGLANG_MEDIA),
        Layout("slot8-lora", _EIGHT, ("block_hashes", "medium"), media=("GPU",)),
        Layout("slot9", _NINE, ("block_hashes", "medium"), media=("GPU",)),
        Layout("slot10", _TEN, ("block_hashes", "medium", "group_idx"), media=("GPU",)),
        Layout("slot12", _TWELVE, ("block_hashes", "medium", "group_idx"), media=("GPU",)),
        Layout(
            "dynamo",
            _FOURTEEN,
            ("block_hashes", "medium", *_FOURTEEN[8:]),
            ("ownership",),
            metadata=True,
            signed=True,
            media=_SGLANG_MEDIA,
        ),
        _sglang_map("sglang-map1"),
        _sglang_map("sglang-map2", "lora_name"),
        _vllm_map("vllm-map1", (), (), media=("GPU",)),
        _vllm_map("vllm-map2", ("locality",), ("locality",), media=(*_TIERS, "FS", "OBJ")),
        _vllm_map("vllm-map3", ("locality", "ownership"), ("locality", "ownership"), media=_TIERS),
        _vllm_map("vllm-map4", ("locality", "ownership", "session_id"), ("locality", "ownership"), media=_TIERS),
        _vllm_map(
            "vllm-map5",
            ("locality", "ownership", "session_id", "lookahead_token_ids"),
            ("locality", "ownership"),
            media=_TIERS,
            stored_header=16,
        ),
    )
}


@dataclass(frozen=True)
class Written:
    """One event on its way to bytes: its slots, or its keys and values, open to changes.

    Attributes:
        names: per part the field; ``tag`` (or the key ``type``) first.
        values: per part the value's bytes.
        maps: written as a map.
        header: width of the header; None for the shortest.
        key_width: width of the keys' headers.
    """

    names: tuple[str, ...]
    values: tuple[bytes, ...]
    maps: bool
    header: Literal[16, 32] | None = None
    key_width: Literal[8, 16, 32] | None = None

    def having(self, name: str, value: bytes) -> Written:
        """With another value in one slot or key."""
        at = self.names.index(name)
        return replace(self, values=(*self.values[:at], value, *self.values[at + 1 :]))

    def without(self, name: str) -> Written:
        """Without one key."""
        kept = [(n, v) for n, v in zip(self.names, self.values, strict=True) if n != name]
        return replace(self, names=tuple(n for n, _ in kept), values=tuple(v for _, v in kept))

    def cut(self, count: int) -> Written:
        """The first ``count`` slots."""
        return replace(self, names=self.names[:count], values=self.values[:count])

    def plus(self, value: bytes, name: str = "extra", *, at: int | None = None) -> Written:
        """With one more slot or key, at the end unless ``at`` says where."""
        at = len(self.names) if at is None else at
        return replace(
            self,
            names=(*self.names[:at], name, *self.names[at:]),
            values=(*self.values[:at], value, *self.values[at:]),
        )

    def ordered(self, order: Callable[[Sequence[str]], Sequence[str]]) -> Written:
        """With its keys in another order."""
        values = dict(zip(self.names, self.values, strict=True))
        names = tuple(order(self.names))
        return replace(self, names=names, values=tuple(values[name] for name in names))

    def wide(self, header: Literal[16, 32] | None, key_width: Literal[8, 16, 32] | None = None) -> Written:
        """With other headers."""
        return replace(self, header=header, key_width=key_width)

    @property
    def raw(self) -> bytes:
        """The event as bytes."""
        if not self.maps:
            return mp.array(self.values, self.header)
        keys = [mp.text("type" if name == "tag" else name, self.key_width) for name in self.names]
        return mp.mapping(list(zip(keys, self.values, strict=True)), self.header)


def write_event(layout: Layout, event: Json, form: Form) -> Written:
    """An event of the neutral JSON form as its dialect's releases write it."""
    tag = event["type"]
    names, values = ["tag"], [mp.text(tag)]
    for name in layout.fields(tag):
        value = event.get(name)
        if value is None and layout.maps and name not in layout.always:
            continue
        names.append(name)
        values.append(mp.NIL if value is None else write_field(name, value, form))
    if layout.metadata and event.get("cache_salt") is not None:
        names.append("metadata")
        values.append(write_metadata(event["cache_salt"]))
    header = layout.stored_header if tag == STORED else None
    return Written(tuple(names), tuple(values), layout.maps, header)


def write_batch(layout: Layout, batch: Json, form: Form) -> bytes:
    """A batch of the neutral JSON form as its dialect's releases write it."""
    events = [write_event(layout, event, form).raw for event in batch["events"]]
    return frame(layout, events, ts=mp.float64(batch["ts"]), rank=write_rank(batch["dp_rank"]))


def write_rank(rank: int | None) -> bytes:
    """The DP rank."""
    return mp.NIL if rank is None else mp.integer(rank)


def frame(
    layout: Layout | None, events: Sequence[bytes], *, ts: bytes | None = None, rank: bytes | None = None
) -> bytes:
    """A batch of events that are bytes already; time 1.5 and rank 0 unless told otherwise."""
    parts = [mp.float64(1.5) if ts is None else ts, mp.array(events)]
    if layout is None or layout.ranked:
        parts.append(mp.integer(0) if rank is None else rank)
    return mp.array(parts)


def write_metadata(salt: str) -> bytes:
    """The metadata map of a salted event."""
    return mp.mapping([(mp.text("cache_salt"), mp.text(salt))])


def write_field(name: str, value: Any, form: Form) -> bytes:
    """The value of one slot or key, from its neutral JSON form."""
    if name == "block_hashes":
        return mp.array([write_hash(item, form) for item in value])
    if name == "parent_block_hash":
        return write_hash(value, form)
    return write_plain(value)


def write_hash(value: str, form: Form) -> bytes:
    """A block hash, from 16 hex digits or ``bytes:`` and hex."""
    if value.startswith("bytes:"):
        return mp.binary(bytes.fromhex(value[6:]))
    number = int(value, 16)
    return mp.integer(number - (1 << 64) if form == "signed" and number >> 63 else number)


def write_plain(value: Any) -> bytes:
    """Anything else of the neutral JSON form."""
    if value is None:
        return mp.NIL
    if isinstance(value, bool):
        return mp.TRUE if value else mp.FALSE
    if isinstance(value, int):
        return mp.integer(value)
    if isinstance(value, str):
        return mp.text(value)
    if isinstance(value, list):
        return mp.array([write_plain(item) for item in value])
    if set(value) == {"bytes"}:
        return mp.binary(bytes.fromhex(value["bytes"]))
    if set(value) == {"int"}:
        return mp.integer(int(value["int"]))
    raise ValueError(f"no golden vector has {value!r}")
