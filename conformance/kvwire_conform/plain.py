"""Plain reading: one decode of a payload that tells all that the checks of a single event could object to.

A dialect's own structs, narrowed to values that are beyond reproach in this stream: what they accept is exactly of the
dialect, of the hash form seen so far, with media of the vocabulary, whole block sizes and valid tokens. What they
refuse is not wrong for that; it is read the thorough way.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Annotated, Any, Literal, NamedTuple

import msgspec

from kvwire._decode import compiled
from kvwire._fast import REFUSED, keys_are_unique
from kvwire._fields import SALT_PREFIX, prefixed_salts
from kvwire._msgpack import refuse_ext
from kvwire.dialects import ALL_MEDIA, Dialect, Encoding
from kvwire.dialects.base import METADATA
from kvwire.events import AllBlocksCleared, BlockRemoved, BlockStored
from kvwire_conform.checks.stream import MAX_BLOCK_SIZE

_INT63 = (1 << 63) - 1
_PREFIX = SALT_PREFIX.encode()
_Token = Annotated[int, msgspec.Meta(ge=0, lt=1 << 32)]
_ExtraKey = str | int | list[str | int]
"""A LoRA name, a salt, or a multi-modal identifier with its offset; digests, in bytes, are for the thorough way."""
_NO_SALTS: Mapping[int, str] = MappingProxyType({})
_NEUTRAL = {kind.tag: kind for kind in (BlockStored, BlockRemoved, AllBlocksCleared)}


class Form(NamedTuple):
    """What the values of a stream look like.

    Attributes:
        digest: length of hashes that are byte strings; 0 for integers.
        lowest, highest: bounds of integer hashes; None for those of 64 bits.
        pairs: tokens are bigrams.
    """

    digest: int = 0
    lowest: int | None = None
    highest: int | None = None
    pairs: bool = False


class PlainReader:
    """Reads the plain payloads of one stream; see `plain_reader`.

    Attributes:
        stored, removed: classes of the events; every neutral field is there by its name, None where the dialect has none.
        signed: whether hashes are integers that may be negative.
    """

    def __init__(self, dialect: Dialect, written: Dialect, media: frozenset[str], form: Form) -> None:
        self.signed = not form.digest and (form.lowest is None or form.lowest < 0)
        kinds = {
            tag: _plain_struct(tag, layout.struct, len(written.events[tag].fields), media, form)
            for tag, layout in dialect.events.items()
        }
        self.stored: type[Any] = kinds["BlockStored"]
        self.removed: type[Any] = kinds["BlockRemoved"]
        events: Any = functools.reduce(operator.or_, kinds.values())
        fields: list[Any] = [("ts", float), ("events", list[events])]
        if "dp_rank" in dialect.batch_fields:
            fields.append(("dp_rank", int | None))
        batch = msgspec.defstruct(
            "_PlainBatch",
            fields,
            namespace={"dp_rank": None} if len(fields) == 2 else None,
            array_like=True,
            gc=False,
            forbid_unknown_fields=True,
        )
        self._decode: Callable[[bytes], Any] = msgspec.msgpack.Decoder(batch, ext_hook=refuse_ext).decode
        self._encode = msgspec.msgpack.Encoder().encode
        self._maps = dialect.encoding is Encoding.MAP
        self._conforms = compiled(written, strict=True, skip_tokens=True) if self._maps else None
        stored = dialect.events["BlockStored"].struct.__struct_fields__
        self._metadata = METADATA in stored
        self._hides_salts = self._metadata or "extra_keys" in stored

    def read(self, payload: bytes) -> tuple[Any, Mapping[int, str]] | None:
        """The batch, and by index of the event the salts that stand in metadata or extra keys. None when it is not plain."""
        if len(payload) < 2 or payload[1] != 0xCB:
            return None
        try:
            batch = self._decode(payload)
            if self._maps and not self._has_unique_keys(payload, batch):
                return None
        except REFUSED:
            return None
        if self._hides_salts and (_PREFIX in payload or (self._metadata and b"cache_salt" in payload)):
            salts = self._salts(payload, batch.events)
            return None if salts is None else (batch, salts)
        return batch, _NO_SALTS

    def _has_unique_keys(self, payload: bytes, batch: Any) -> bool:
        if self._conforms is not None and self._conforms(payload) is not None:
            return True
        # What is written again as it came has no key twice.
        return self._encode(batch) == payload or keys_are_unique(payload)

    def _salts(self, payload: bytes, events: list[Any]) -> dict[int, str] | None:
        """None when one event has two, or a metadata map may have a key twice."""
        salts = {}
        maps = 0
        for index, event in enumerate(events):
            if type(event) is not self.stored:
                continue
            metadata = event.metadata if self._metadata else None
            extra_keys = event.extra_keys
            if metadata is None and not extra_keys:
                continue
            found = prefixed_salts(extra_keys)
            if metadata is not None:
                maps += 1
                found.add(metadata.cache_salt)
            if len(found) > 1:
                return None
            if found:
                salts[index] = found.pop()
        return salts if not maps or payload.count(b"cache_salt") == maps else None


def _plain_struct(tag: str, struct: type[Any], width: int, media: frozenset[str], form: Form) -> type[Any]:
    types = _types(media, form)
    fields: list[Any] = []
    for field in msgspec.structs.fields(struct):
        kind = types.get(field.name, field.type)
        if tag == AllBlocksCleared.tag:
            # A clear of one owner, or of what looks like one, is for the thorough way.
            kind = None
        fields.append((field.name, kind) if field.required else (field.name, kind, field.default))
    config = struct.__struct_config__
    if not config.array_like:
        # The header of a map is as wide as all keys of the writer's struct would need. No value is of an unset field's type.
        fields += [(f"_unset{index}", msgspec.UnsetType, msgspec.UNSET) for index in range(width - len(fields))]
    neutral = _NEUTRAL[tag].__struct_fields__
    return msgspec.defstruct(
        f"_Plain{tag}",
        fields,
        namespace={"tag": tag, **{name: None for name in neutral if name not in struct.__struct_fields__}},
        array_like=config.array_like,
        omit_defaults=config.omit_defaults,
        tag_field="type",
        tag=tag,
        gc=False,
        forbid_unknown_fields=True,
    )


def _types(media: frozenset[str], form: Form) -> dict[str, Any]:
    block_hash: Any
    if form.digest:
        block_hash = Annotated[bytes, msgspec.Meta(min_length=form.digest, max_length=form.digest)]
    else:
        block_hash = Annotated[int, msgspec.Meta(ge=form.lowest, le=form.highest)]
    return {
        "block_hashes": list[block_hash],
        "parent_block_hash": block_hash | None,
        "token_ids": list[tuple[_Token, _Token]] if form.pairs else list[_Token],
        "block_size": Annotated[int, msgspec.Meta(ge=0, le=MAX_BLOCK_SIZE)],
        "medium": Literal[tuple(sorted(media))] | None,
        "extra_keys": list[list[_ExtraKey] | None] | None,
    }


@functools.lru_cache(maxsize=256)
def plain_reader(dialect: Dialect, written: Dialect, media: frozenset[str], form: Form) -> PlainReader:
    """The reader of a stream.

    Args:
        dialect: what the payloads have to be of.
        written: the dialect that writes them, which may have further keys.
        media: the vocabulary; empty for every known medium.
        form: what hashes and tokens look like.
    """
    return PlainReader(dialect, written, media or ALL_MEDIA, form)
