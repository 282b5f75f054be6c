"""The neutral model: one class per tag, whatever dialect an event came in.

An event decoded from any dialect is an instance of these classes and compares equal to the same event from another
dialect. Signed and unsigned forms of a block hash are equal; the form that the producer chose is kept in the field and
written again by the encoder. Field names are the wire's own (spec/events.md).
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from kvwire._token_array import from_values, from_wire
from kvwire.errors import WireError
from kvwire.hashing.forms import hash_key

__all__ = ["AllBlocksCleared", "BlockRemoved", "BlockStored", "Event", "EventBatch", "PartialBatch", "Skipped"]

Hash = int | bytes
"""A block hash as the producer wrote it: a signed or unsigned 64-bit integer, or the whole digest."""

Token = int | str | tuple[int, int]
"""A token id; a pair on SGLang's EAGLE (bigram) pages; a string from TensorRT-LLM."""

if TYPE_CHECKING:
    # A list of plain ints is what callers have, and list is invariant.
    Tokens = list[Any]
else:
    Tokens = list[Token]

ExtraKey = Any
"""One element of a block's extra keys: LoRA name or salt (str), ``[identifier, offset]``, or a digest (bytes)."""


def _plain(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, (bytearray, memoryview)):
        return bytes(value)
    return value


class _Event(msgspec.Struct, eq=False, gc=False):
    """What the three event classes share: comparison by meaning."""

    tag: ClassVar[str] = ""

    def _meaning(self) -> tuple[Any, ...]:
        return tuple(_plain(getattr(self, name)) for name in self.__struct_fields__)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Event) or other.tag != self.tag:
            return NotImplemented
        return self._meaning() == other._meaning()

    def __ne__(self, other: object) -> bool:
        # msgspec brings its own, which knows nothing of the two forms of a hash.
        return not self == other

    __hash__ = None  # type: ignore[assignment]

    def _shown(self, name: str) -> Any:
        try:
            return getattr(self, name)
        except WireError as error:
            return f"<{error.problem}>"

    def __repr__(self) -> str:
        given = ((name, self._shown(name)) for name in self.__struct_fields__)
        return f"{self.tag}({', '.join(f'{name}={value!r}' for name, value in given if value is not None)})"

    def __rich_repr__(self) -> Any:
        for name in self.__struct_fields__:
            yield name, self._shown(name), None


class BlockStored(_Event, tag_field="type", tag="BlockStored", eq=False, gc=False, omit_defaults=True):
    """Blocks that are now in a cache.

    The order of the fields up to ``ownership`` is the order of the slots of every array dialect; slot 14 is metadata.

    Attributes:
        block_hashes: one hash per block, root side first; each is the parent of the next. In sliding-window groups of a
            hybrid model masked blocks have none, so there may be fewer than blocks.
        parent_block_hash: hash of the block before the first one; None at the root.
        token_ids: the tokens of all blocks, in order; ``block_size`` per block. May be empty (placeholders).
        block_size: tokens per block; 0 in placeholder events that carry no tokens.
        lora_id: adapter number of the oldest releases; nil in later ones.
        medium: the tier, e.g. ``GPU``; None counts as ``GPU``.
        lora_name: public name of the LoRA adapter.
        extra_keys: per block the keys that went into its hash besides the tokens, or None (vLLM >= 0.17).
        group_idx: KV cache group of a hybrid model (vLLM >= 0.20).
        kv_cache_spec_kind: e.g. ``full_attention`` (vLLM >= 0.22).
        kv_cache_spec_sliding_window: window in tokens (vLLM >= 0.22).
        locality: ``LOCAL``, ``REMOTE`` or None (vLLM >= 0.26).
        ownership: who owns the stored copy (vLLM >= 0.29).
        cache_salt: tenant salt, wherever the dialect carries it; an empty one equals none.
        session_id: the session that caused the store; attribution only (SGLang >= 0.5.20, vLLM >= 0.30).
        lookahead_token_ids: per block the tokens after it that went into its hash (vLLM >= 0.33).
    """

    tag: ClassVar[str] = "BlockStored"

    block_hashes: list[Hash]
    parent_block_hash: Hash | None
    token_ids: Tokens
    block_size: int
    lora_id: int | None = None
    medium: str | None = None
    lora_name: str | None = None
    extra_keys: list[list[ExtraKey] | None] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None
    locality: str | None = None
    ownership: str | None = None
    cache_salt: str | None = None
    session_id: str | None = None
    lookahead_token_ids: list[list[int]] | None = None

    def token_array(self) -> array[int]:
        """The token ids as an ``array('I')``: native unsigned 32-bit numbers, one buffer that numpy, torch or a C library
        reads without a copy (``numpy.frombuffer(event.token_array(), dtype="uint32")``).

        The pairs of a bigram page stand one number after the other, twice as many as tokens: ``reshape(-1, 2)`` has
        them as pairs again. The array is made anew at each call. After ``Decoder(skip_tokens=True)`` it comes straight
        from the payload's bytes, and no list is made.

        Raises:
            InvalidEventError: a token that is negative, beyond 32 bits or a str, or pairs among plain ids; ``token_ids``
                has them all.
            WireError: tokens that were left as bytes turn out to be wrong.
        """
        kept = _kept_tokens(self)
        found = from_wire(kept) if isinstance(kept, msgspec.Raw) else None
        return from_values(self.token_ids) if found is None else found

    def _meaning(self) -> tuple[Any, ...]:
        hashes = tuple(map(hash_key, self.block_hashes))
        parent = None if self.parent_block_hash is None else hash_key(self.parent_block_hash)
        salt = self.cache_salt or None
        return (hashes, parent, salt, *(_plain(getattr(self, name)) for name in _REST))


_kept_tokens = BlockStored.token_ids.__get__  # type: ignore[attr-defined]
"""What is in the slot itself: the list, or the bytes that a subclass makes it from when it is asked for."""

_REST = tuple(
    name for name in BlockStored.__struct_fields__ if name not in ("block_hashes", "parent_block_hash", "cache_salt")
)


class BlockRemoved(_Event, tag_field="type", tag="BlockRemoved", eq=False, gc=False, omit_defaults=True):
    """Blocks that are no longer in a cache.

    Attributes are those of `BlockStored`; a removal never carries a salt or a LoRA name.
    """

    tag: ClassVar[str] = "BlockRemoved"

    block_hashes: list[Hash]
    medium: str | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None
    locality: str | None = None
    ownership: str | None = None

    def _meaning(self) -> tuple[Any, ...]:
        return (tuple(map(hash_key, self.block_hashes)), *super()._meaning()[1:])


class AllBlocksCleared(_Event, tag_field="type", tag="AllBlocksCleared", eq=False, gc=False, omit_defaults=True):
    """A cache was emptied. ``ownership`` narrows it to one owner in the ``dynamo`` dialect."""

    tag: ClassVar[str] = "AllBlocksCleared"

    ownership: str | None = None


Event = BlockStored | BlockRemoved | AllBlocksCleared


class Skipped(msgspec.Struct, frozen=True, gc=False):
    """An event that tolerant decoding passed over because no dialect knows its tag."""

    event_index: int
    event_tag: str


class EventBatch(msgspec.Struct, eq=False, gc=False):
    """What one message carries.

    Attributes:
        ts: when the engine took the events, in seconds since the epoch.
        events: in the order in which they happened.
        dp_rank: data-parallel rank of the cache; 0 without data parallelism; None from producers that send no rank.
            SGLang calls the field ``attn_dp_rank`` and vLLM ``data_parallel_rank``; position and meaning are the same.
    """

    ts: float
    events: list[Any]
    dp_rank: int | None = None

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, EventBatch):
            return NotImplemented
        return (self.ts, self.dp_rank) == (other.ts, other.dp_rank) and self.events == other.events

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = None  # type: ignore[assignment]

    @property
    def faults(self) -> list[WireError]:
        """The events that could not be read; empty unless decoded with ``on_error="collect"``."""
        return []

    @property
    def skipped(self) -> list[Skipped]:
        """The events passed over for an unknown tag; filled only when decoded with ``on_error="collect"``."""
        return []


class PartialBatch(EventBatch, eq=False, gc=True):
    """A batch decoded with ``on_error="collect"``: the events that could be read, beside the faults of the others."""

    faults: list[WireError] = []
    skipped: list[Skipped] = []
