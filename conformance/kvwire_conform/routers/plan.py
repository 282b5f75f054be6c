"""What a router has to hold after a batch. Pure: worked out from the batch's meaning alone, before anything is run.

A router shows only its state, so the blocks that a batch removes, clears or builds upon are stored beforehand
(`Plan.prepare`), and a block shows that a clear took nothing of another rank.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from kvwire.events import AllBlocksCleared, BlockRemoved, BlockStored, EventBatch
from kvwire_conform.routers.media import STANDARD_MEDIA, Place, place_of
from kvwire_conform.routers.tokens import Readings, readings_of

__all__ = ["DEFAULT_BLOCK_SIZE", "Gone", "Plan", "Want", "good_batch", "hash64", "plan_of"]

DEFAULT_BLOCK_SIZE = 4
MAX_BLOCK_SIZE = 1 << 20
"""Tokens of a block beyond which a block size is taken for a fault."""

MARKER = 0x6B76_7769_7265_0001
"""Hash of the block that the good batch stores."""
_FILLER = 0x6B76_7769_7265_1000
_FIRST_TOKEN = 3_000_000
_MAIN_KINDS = ("full_attention", "mla_attention")


@dataclass(frozen=True)
class Want:
    """A block that has to be held at the end.

    Attributes:
        event: index of the event that stored it; None for one that was prepared.
        block: its index in that event.
        dp_rank, block_hash, parent: as `kvwire_conform.routers.http.Held` has them.
        tiers: where it may stand.
        readings: see `readings_of`; None when any tokens hash will do.
        extra_keys: of the block, as text.
        twins: a number that it shares with blocks of other hashes, the same tokens and the same place; 0 without any. An index
            by tokens keeps one of them.
        unjudged: why it may be missing all the same; empty where it may not.
    """

    event: int | None
    block: int
    dp_rank: int
    tiers: tuple[str, ...]
    block_hash: int
    parent: int | None = None
    readings: Readings | None = None
    extra_keys: str = ""
    twins: int = 0
    unjudged: str = ""


@dataclass(frozen=True)
class Gone:
    """A block that must not be held any more; the attributes are those of `Want`.

    Attributes:
        stored_by: index of the event that stored it; None where it was prepared.
    """

    event: int
    block: int
    dp_rank: int
    tiers: tuple[str, ...]
    block_hash: int
    stored_by: int | None = None
    unjudged: str = ""

    @property
    def prepared(self) -> bool:
        """Whether it was there before the payload, so that its end can be seen."""
        return self.stored_by is None


@dataclass(frozen=True)
class Plan:
    """One payload's trial.

    Attributes:
        block_size: to register with the router.
        prepare: batches to publish before the payload.
        wants: every block that has to be held at the end, besides the good batch's.
        gone: every block that the payload took away.
        unjudged: per event the reason why the router need not follow it, in words.
        dp_rank: of the batch; 0 where it has none.
    """

    block_size: int
    prepare: tuple[EventBatch, ...]
    wants: tuple[Want, ...]
    gone: tuple[Gone, ...]
    unjudged: tuple[tuple[int, str], ...]
    dp_rank: int

    @property
    def visible(self) -> bool:
        """Whether the router's state must be another after the payload."""
        stored = any(want.event is not None and not want.unjudged for want in self.wants)
        return stored or any(gone.prepared and not gone.unjudged for gone in self.gone)

    @property
    def hidden(self) -> tuple[int, ...]:
        """Events of which the state at the end does not show everything; alone they do."""
        shadowed = {index for gone in self.gone for index in (gone.event, gone.stored_by) if not gone.prepared}
        twins = {want.event for want in self.wants if want.twins}
        return tuple(sorted(index for index in shadowed | twins if index is not None))


def good_batch(block_size: int, dp_rank: int | None) -> EventBatch:
    """The batch that comes after the payload: one block in each of the router's tiers."""
    tokens = [_FIRST_TOKEN - 1] * block_size
    return EventBatch(
        1.5, [BlockStored([MARKER], None, tokens, block_size, medium=medium) for medium in STANDARD_MEDIA], dp_rank
    )


def plan_of(batch: EventBatch) -> Plan:
    """What a batch asks of a router."""
    walk = _Walk(batch.dp_rank or 0, _block_size(batch.events))
    for index, event in enumerate(batch.events):
        if isinstance(event, BlockStored):
            walk.store(index, event)
        elif isinstance(event, BlockRemoved):
            walk.remove(index, event)
        elif isinstance(event, AllBlocksCleared):
            walk.clear(index, event)
    return walk.plan(batch.dp_rank)


def hash64(value: int | bytes) -> int:
    """A block hash as the 64 bits that a router keeps: of a digest the last eight bytes, big-endian."""
    return int.from_bytes(value[-8:], "big") if isinstance(value, bytes) else value & ((1 << 64) - 1)


def _block_size(events: Sequence[Any]) -> int:
    for event in events:
        if isinstance(event, BlockStored) and not _aside(event):
            size = event.block_size
            if event.block_hashes and 0 < size <= MAX_BLOCK_SIZE and len(event.token_ids) >= size:
                return size
    sizes = [event.block_size for event in events if isinstance(event, BlockStored)]
    return next((size for size in sizes if 0 < size <= MAX_BLOCK_SIZE), DEFAULT_BLOCK_SIZE)


def _aside(event: BlockStored | BlockRemoved) -> str:
    """Why an event is none of a router's that keeps one index of a worker's own main-attention cache; else empty."""
    if event.locality not in (None, "LOCAL"):
        return f"locality {event.locality}: the router keeps a worker's own blocks alone"
    if event.ownership is not None:
        return f"ownership {event.ownership!r:.40}: the router keeps a worker's own blocks alone"
    kind = event.kv_cache_spec_kind
    if kind is not None and kind not in _MAIN_KINDS:
        return f"kv_cache_spec_kind {kind}: the router keeps the main attention group alone"
    if kind is None and event.group_idx not in (None, 0):
        return f"group_idx {event.group_idx} of no kind: the router keeps the main attention group alone"
    return ""


def _with_twins(wants: Iterable[Want]) -> Iterator[Want]:
    """The blocks, those numbered as `Want.twins` that differ in nothing but the hash."""
    found = list(wants)
    places = [_place_in_tree(want) for want in found]
    numbers = {place: number for number, place in enumerate(Counter(places), start=1)}
    for want, place in zip(found, places, strict=True):
        yield replace(want, twins=numbers[place]) if places.count(place) > 1 else want


def _place_in_tree(want: Want) -> tuple[Any, ...]:
    if want.readings is None or want.unjudged:
        return (want.tiers, want.block_hash)
    return (want.dp_rank, want.tiers, want.parent, next(iter(want.readings)), want.extra_keys)


_Key = tuple[bool, tuple[str, ...], int]


@dataclass
class _Walk:
    dp_rank: int
    block_size: int
    held: dict[_Key, Want] = field(default_factory=dict)
    salts: dict[int, str | None] = field(default_factory=dict)
    copies: dict[_Key, int] = field(default_factory=dict)
    gone: dict[_Key, Gone] = field(default_factory=dict)
    unjudged: dict[int, str] = field(default_factory=dict)
    prepared: dict[_Key, BlockStored] = field(default_factory=dict)
    cleared: bool = False

    def store(self, index: int, event: BlockStored) -> None:
        place = place_of(event.medium)
        reason = self._why_not(event) or place.reason
        parent = None if event.parent_block_hash is None else hash64(event.parent_block_hash)
        if parent is not None:
            reason = reason or self._parent(parent, event, place)
        salt = event.cache_salt or (None if parent is None else self.salts.get(parent))
        if reason:
            self.unjudged[index] = reason
        keys = event.extra_keys or []
        for number, (value, tokens, why) in enumerate(self._blocks(event)):
            if why:
                self.unjudged.setdefault(index, why)
            own = hash64(value)
            key = self._key(event, place, own)
            self.gone.pop(key, None)
            self.copies[key] = self.copies.get(key, 0) + 1
            self.salts[own] = salt
            readings = None if tokens is None else readings_of(event, tokens, salt)
            before = self.held.get(key)
            if before is not None and before.readings is not None and readings is not None:
                # One hash for two contents: nothing tells which of them a router has to go by.
                readings = {**readings, **{own: lost for own, lost in before.readings.items() if not lost}}
            self.held[key] = Want(
                event=index,
                block=number,
                dp_rank=self.dp_rank,
                tiers=place.tiers,
                block_hash=own,
                parent=parent,
                readings=readings,
                extra_keys=repr(keys[number]) if number < len(keys) else "",
                unjudged=reason or why,
            )
            parent = own

    def remove(self, index: int, event: BlockRemoved) -> None:
        place = place_of(event.medium)
        reason = _aside(event) or place.reason
        if reason:
            self.unjudged[index] = reason
        for number, value in enumerate(event.block_hashes):
            own = hash64(value)
            key = self._key(event, place, own)
            if key not in self.held and key not in self.gone and not self.cleared:
                self._prepare(own, event.medium, key)
            want = self.held.pop(key, None)
            if want is None:
                continue
            copies = self.copies.get(key, 1)
            self.copies[key] = copies - 1
            if copies > 1:
                why = "stored more often than removed, which the wire does not explain (spec/events.md)"
                self.unjudged.setdefault(index, why)
                self.held[key] = replace(want, unjudged=want.unjudged or why)
            else:
                self._take(index, number, key, want, reason)

    def clear(self, index: int, event: AllBlocksCleared) -> None:
        if not self.cleared:
            own = self._unused(_FILLER)
            self._prepare(own, "GPU", self._key(None, place_of("GPU"), own))
        reason = "" if event.ownership is None else f"a clear of one owner's blocks alone, {event.ownership!r:.40}"
        if reason:
            self.unjudged[index] = reason
        for number, (key, want) in enumerate(list(self.held.items())):
            self._take(index, number, key, want, reason)
        self.held.clear()
        self.copies.clear()
        self.cleared = True

    def plan(self, dp_rank: int | None) -> Plan:
        batches = [EventBatch(1.5, list(self.prepared.values()), dp_rank)] if self.prepared else []
        wants = list(_with_twins(self.held.values()))
        if self.cleared:
            other = self._unused(_FILLER + 1)
            rank = self.dp_rank + 1
            batches.append(EventBatch(1.5, [self._block(other, "GPU", len(self.prepared))], rank))
            wants.append(Want(None, 0, rank, place_of("GPU").tiers, other))
        return Plan(
            block_size=self.block_size,
            prepare=tuple(batches),
            wants=tuple(wants),
            gone=tuple(self.gone.values()),
            unjudged=tuple(sorted(self.unjudged.items())),
            dp_rank=self.dp_rank,
        )

    def _take(self, index: int, number: int, key: _Key, want: Want, reason: str) -> None:
        self.held.pop(key, None)
        self.gone[key] = Gone(
            event=index,
            block=number,
            dp_rank=want.dp_rank,
            tiers=want.tiers,
            block_hash=want.block_hash,
            stored_by=want.event,
            unjudged=reason or want.unjudged,
        )

    def _why_not(self, event: BlockStored) -> str:
        if reason := _aside(event):
            return reason
        if event.block_size != self.block_size:
            return f"block_size {event.block_size}, where the router was registered with {self.block_size}"
        return ""

    def _parent(self, parent: int, event: BlockStored, place: Place) -> str:
        """Have the parent there. Why the block cannot be judged where that is not possible."""
        own = [key for key in self.held if key[2] == parent]
        if own:
            key = self._key(event, place, parent)
            want = self.held[key if key in self.held else own[0]]
            return f"its parent is not judged: {want.unjudged}" if want.unjudged else ""
        if self.cleared or any(key[2] == parent for key in self.gone):
            return "its parent was removed or cleared before"
        if any(hash64(value) == parent for value in event.block_hashes):
            return ""
        self._prepare(parent, event.medium, self._key(event, place, parent))
        return ""

    def _blocks(self, event: BlockStored) -> Iterator[tuple[Any, Sequence[Any] | None, str]]:
        """Per block hash its tokens, None where they cannot be told, and why it is not judged."""
        size, tokens, count = self.block_size, event.token_ids, len(event.block_hashes)
        if not len(tokens):
            yield from ((value, None, "it has no tokens to hash") for value in event.block_hashes)
            return
        if len(tokens) > count * size:
            why = "fewer hashes than blocks: nothing tells which tokens are whose"
            yield from ((value, None, why) for value in event.block_hashes)
            return
        for number, value in enumerate(event.block_hashes):
            own = list(tokens[number * size : (number + 1) * size])
            if len(own) == size:
                yield value, own, ""
            else:
                yield value, None, f"its {len(own)} tokens do not fill a block of {size}"

    def _key(self, event: BlockStored | BlockRemoved | None, place: Place, own: int) -> _Key:
        return (event is None or not _aside(event), place.tiers, own)

    def _prepare(self, own: int, medium: str | None, key: _Key) -> None:
        number = len(self.prepared)
        self.prepared[key] = self._block(own, medium, number)
        self.held[key] = Want(None, number, self.dp_rank, key[1], own)
        self.copies[key] = 1

    def _block(self, own: int, medium: str | None, number: int) -> BlockStored:
        tokens = [_FIRST_TOKEN + number] * self.block_size
        return BlockStored([own], None, tokens, self.block_size, medium=medium)

    def _unused(self, value: int) -> int:
        used = {key[2] for key in (*self.held, *self.gone)}
        while value in used or value == MARKER:
            value += 2
        return value
