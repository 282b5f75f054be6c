"""What the compiled encoder (kvwire/_ext/encode.c) is told of a dialect: one plan for each class that it may meet.

The pure path in `kvwire.codec` is its fallback and its oracle: a compiled encoder whose bytes differ from it on a few
probes is not used at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from kvwire._fields import KEYS, POSITIONAL
from kvwire._native import extension
from kvwire.dialects import Dialect, Encoding, EventLayout, Field, wire
from kvwire.dialects.base import METADATA
from kvwire.events import AllBlocksCleared, BlockRemoved, BlockStored, EventBatch

if TYPE_CHECKING:
    from typing import Protocol

    class Compiled(Protocol):
        """An encoder in C."""

        def encode(self, batch: EventBatch, /) -> bytes:
            """The bytes of a batch; in doubt it calls the pure path."""

        def attempt(self, batch: EventBatch, /) -> bytes | None:
            """The bytes of a batch, or None in doubt."""


Encode = Callable[[EventBatch], bytes]

_API = 1
"""The version of encode.c that these plans are for."""

_pack = msgspec.msgpack.Encoder().encode

NEUTRAL: dict[str, type[Any]] = {
    "BlockStored": BlockStored,
    "BlockRemoved": BlockRemoved,
    "AllBlocksCleared": AllBlocksCleared,
}


def compiled(dialect: Dialect, writers: dict[str, Any], *, drop: bool, pure: Encode) -> Compiled | None:
    """An encoder in C; None where there is no extension that agrees with ``pure``.

    Args:
        dialect: what to write.
        writers: per tag what the pure path knows of it (`kvwire.codec`).
        drop: leave out what the dialect cannot carry.
        pure: the pure path.
    """
    if encode_ext is None:
        return None
    try:
        found = _Plans(encode_ext, dialect, writers).encoder(drop, pure)
    except (TypeError, AttributeError):  # a msgspec whose structs have no slots where they are looked for
        return None
    agrees = all(found.encode(batch) == pure(batch) for batch in _probes(dialect))
    return found if agrees else None


def _extension() -> Any:
    found = extension("encode")
    return found if getattr(found, "API", 0) == _API else None


encode_ext = _extension()


def _scanner() -> Callable[[bytes], bool] | None:
    if encode_ext is None:
        return None
    # The lengths at which `kvwire._fields.fitting` asks what a slot's type is.
    doubtful = {"BlockStored": {13}, "BlockRemoved": {5, 6, 7}, "AllBlocksCleared": {2}}
    metadata = {"BlockStored": 1 << 7 | 1 << 14}
    known = tuple(
        (
            _pack(tag),
            sum(1 << length for length in range(1, len(POSITIONAL[tag]) + 2) if length not in doubtful[tag]),
            metadata.get(tag, 0),
            tuple(_pack(name) for name in NEUTRAL[tag].__struct_fields__ if name in KEYS[tag]),
        )
        for tag in NEUTRAL
    )
    found: Callable[[bytes], bool] = encode_ext.Known(known).all_of
    return found


knows_all = _scanner()
"""Whether a payload that can be decoded surely holds no event, batch element, slot or key that no dialect knows; False
when in doubt. None without the extension."""


class _Plans:
    def __init__(self, ext: Any, dialect: Dialect, writers: dict[str, Any]) -> None:
        self.ext = ext
        self.dialect = dialect
        self.writers = writers
        self.roles = {"token_ids": ext.TOKENS, "extra_keys": ext.EXTRA_KEYS, METADATA: ext.METADATA}
        self.roles_lost = {"cache_salt": ext.SALT, "extra_keys": ext.EXTRA_KEYS}

    def encoder(self, drop: bool, pure: Encode) -> Compiled:
        plans: list[Any] = []
        for tag, layout in self.dialect.events.items():
            plans += self._neutral(layout)
            plans += self._own(layout, self.writers[tag].struct)
        batches = tuple((form, EventBatch.ts, EventBatch.events, EventBatch.dp_rank) for form in _forms(EventBatch))
        found: Compiled = self.ext.Encoder(
            tuple(plans),
            batches,
            "dp_rank" in self.dialect.batch_fields,
            drop,
            msgspec.Raw,
            wire.SaltMetadata,
            wire.SaltMetadata.cache_salt,
            pure,
        )
        return found

    def _neutral(self, layout: EventLayout) -> Iterator[Any]:
        """One plan for each form of the neutral class; a salt's metadata is added by the encoder."""
        writer, neutral = self.writers[layout.tag], NEUTRAL[layout.tag]
        lost = tuple((getattr(neutral, name), self.roles_lost.get(name, 0), b"", False) for name in writer.lost)
        salt = None
        if layout.tag == "BlockStored":
            slots = (BlockStored.cache_salt, BlockStored.extra_keys, BlockStored.block_hashes)
            salt = (*slots, writer.has_metadata, writer.prefixes, self.dialect.salted_fields)
        shape = self._shape(layout.tag, [f for f in layout.fields if f.name != METADATA], neutral)
        return ((form, *shape, lost, salt) for form in _forms(neutral))

    def _own(self, layout: EventLayout, unsalted: type[msgspec.Struct]) -> Iterator[Any]:
        """The plans of the dialect's own structs: one, or two where a salted event has a slot more."""
        for struct in {layout.struct, unsalted}:
            fields = [f for f in layout.fields if f.name in struct.__struct_fields__]
            yield struct, *self._shape(layout.tag, fields, struct), (), None

    def _shape(self, tag: str, fields: list[Field], holder: type[Any]) -> tuple[bytes, bool, tuple[Any, ...]]:
        """Header and tag, whether it is a map, and the fields; their values are in slots of the holder's."""
        is_map = self.dialect.encoding is Encoding.MAP
        count = len(fields) + 1
        head = bytes([0x90 | count])
        if is_map:
            head = (bytes([0x80 | count]) if count < 16 else b"\xde\x00\x00") + _pack("type")
        described = tuple(
            (
                getattr(holder, field.name),
                self.roles.get(field.name, self.ext.PLAIN),
                _pack(field.name) if is_map else b"",
                is_map and not field.always,
            )
            for field in fields
        )
        return head + _pack(tag), is_map, described


def _forms(base: type[Any]) -> Iterator[type[Any]]:
    """A class and the ones that decoding makes of it. They hold what it holds, in its slots."""
    yield base
    for form in base.__subclasses__():
        if form.__module__.startswith("kvwire."):
            yield from _forms(form)


def _probes(dialect: Dialect) -> Iterator[EventBatch]:
    """Batches that the dialect can carry: with everything, with nothing, with a salt."""
    values: dict[str, Any] = {
        "block_hashes": [1 << 63, -(1 << 63), b"digest"],
        "token_ids": [0, 127, 128, 255, 256, 65535, 65536, (1 << 32) - 1, 1 << 32, -33],
        "block_size": 2,
        "extra_keys": [["adapter", ["image", -1]], None],
        "group_idx": 1,
        "lora_id": 7,
        "kv_cache_spec_sliding_window": 1024,
        "lookahead_token_ids": [[1], []],
        "parent_block_hash": None,
    }
    events: list[Any] = [BlockStored([], 1, [], 0), BlockRemoved([5]), AllBlocksCleared()]
    for tag, layout in dialect.events.items():
        names = [f.name for f in layout.fields if f.name not in (METADATA, "cache_salt")]
        events.append(NEUTRAL[tag](**{name: values.get(name, "ä text") for name in names}))
    yield EventBatch(1.5, events, 300 if "dp_rank" in dialect.batch_fields else None)
    if dialect.carries("BlockStored", "cache_salt"):
        stored = {name: values[name] for name in ("block_hashes", "parent_block_hash", "token_ids", "block_size")}
        yield EventBatch(1.5, [BlockStored(**stored, cache_salt="tenant")], None)
