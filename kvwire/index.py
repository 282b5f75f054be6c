"""A worker's cache, as its events tell it."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from kvwire.dialects import Dialect, get_dialect
from kvwire.errors import UsageError
from kvwire.events import AllBlocksCleared, BlockRemoved, BlockStored, Event, EventBatch
from kvwire.hashing.forms import Hash, hash_key
from kvwire.items import Batch, Item, Lost, Restarted

__all__ = ["BlockIndex", "IndexSet", "Policy", "Tier"]

DEFAULT_MEDIUM = "GPU"
"""What a medium of nil counts as (spec/events.md)."""


class Policy(str, enum.Enum):
    """What a second store of a block that is already held means.

    The wire cannot tell a second copy of a block from a second announcement of the same copy.

    ``COUNT``: a second copy. The block is held until it was removed as often as it was stored. Right for SGLang, whose
    namespaces (``extra_key``) share event hashes; wrong where an engine announces again what it still holds, since the
    block then outlives its last copy.

    ``SET``: the same copy again. The first removal ends it. Right for a router in front of vLLM, which announces a
    fully cached block again; where vLLM really held two copies, the index drops the block while one copy is left: a
    missed reuse, never a false one.
    """

    COUNT = "count"
    SET = "set"


class Tier(tuple[int, str, "int | None"]):
    """Where a block lives besides its hash: ``(dp_rank, medium, group_idx)``."""

    __slots__ = ()

    def __new__(cls, dp_rank: int | None = 0, medium: str | None = None, group_idx: int | None = None) -> Tier:
        return super().__new__(cls, (dp_rank or 0, DEFAULT_MEDIUM if medium is None else medium, group_idx))

    @property
    def dp_rank(self) -> int:
        """Data-parallel rank; a batch without one is rank 0."""
        return self[0]

    @property
    def medium(self) -> str:
        """The medium, ``GPU`` where the event had none."""
        return self[1]

    @property
    def group_idx(self) -> int | None:
        """KV cache group of a hybrid model."""
        return self[2]


class BlockIndex:
    """The blocks that one publisher's events say it holds.

    A block is (DP rank, medium, group_idx, hash). Signed and unsigned forms of a hash are one block.

    Fed with what a subscription yields, it never claims a block on the word of a batch that a later loss may have made
    void: a lost or unreadable batch may have removed anything, so the whole view is forgotten, of every rank, medium and
    group, and what is stored from then on is a part of the truth (`complete` is False) until the cache is known to be
    empty.

    Args:
        policy: how repeated stores count, see `Policy`. Use `BlockIndex.for_dialect` for the right default.

    Attributes:
        complete: whether every block that the publisher holds is in the view. False from a loss, an unreadable batch or
            event, or a subscription that began in the middle, until a restart, or an AllBlocksCleared that leaves
            nothing.
        source: the source of the items applied so far; None before the first.
    """

    def __init__(self, policy: Policy | str = Policy.COUNT) -> None:
        self.policy = Policy(policy)
        self.complete = True
        self.source: str | None = None
        self._tiers: dict[Tier, dict[Hash, int]] = {}
        self._ranks: set[int] = set()

    @classmethod
    def for_dialect(cls, dialect: str | Dialect) -> BlockIndex:
        """An index with the policy that fits the engines of a dialect: ``SET`` where only vLLM emits it, else ``COUNT``."""
        return cls(default_policy(get_dialect(dialect)))

    def __len__(self) -> int:
        """How many blocks are held, each (rank, medium, group, hash) once."""
        return sum(map(len, self._tiers.values()))

    def __contains__(self, block_hash: Hash) -> bool:
        return self.holds(block_hash)

    def apply(self, item: EventBatch | Item) -> None:
        """Apply what a subscription yielded, or a batch by itself: every event, in order.

        ============  ==================================================================================================
        `Batch`       its events. An event of it that could not be read (``on_error="collect"``) leaves the view
                      incomplete; one that may have removed something, or whose tag is not known, empties it, too
        `Lost`        forgets everything; incomplete
        `Faulty`      with a seq, as `Lost`; without one, nothing: had it been a batch, its seq turns out missing
        `Restarted`   forgets everything; complete, since the new publisher's cache begins empty
        ============  ==================================================================================================

        Raises:
            UsageError: an item of another source; one publisher's index tells nothing of another's.
        """
        if isinstance(item, EventBatch):
            self._apply_batch(item)
            return
        if item.source != self.source:
            if self.source is not None:
                raise UsageError(
                    f"this index holds the view of {self.source}, the item is of {item.source}: "
                    "keep one index per source, as IndexSet does"
                )
            self.source = item.source
            if isinstance(item, Batch) and item.seq > 0:
                self.complete = False
        if isinstance(item, Batch):
            self._apply_batch(item.batch)
        elif isinstance(item, Restarted):
            self._forget(complete=True)
        elif isinstance(item, Lost) or item.seq is not None:
            self._forget(complete=False)

    def _apply_batch(self, batch: EventBatch) -> None:
        for event in batch.events:
            self.apply_event(event, batch.dp_rank)
        if batch.faults:
            self.complete = False
            if any(fault.tag != BlockStored.tag for fault in batch.faults):
                self._forget(complete=False)

    def _forget(self, *, complete: bool) -> None:
        self._tiers.clear()
        self.complete = complete
        if complete:
            self._ranks.clear()

    def apply_event(self, event: Event, dp_rank: int | None = 0) -> None:
        """Apply one event of a batch of this DP rank. Removing a block that is not held does nothing."""
        if isinstance(event, BlockStored):
            self._store(event, dp_rank)
        elif isinstance(event, BlockRemoved):
            self._remove(event, dp_rank)
        elif isinstance(event, AllBlocksCleared):
            self.clear(dp_rank)
            # One rank's clear says nothing of what another rank held before a loss.
            if not self._tiers and self._ranks <= {dp_rank or 0}:
                self.complete = True

    def _store(self, event: BlockStored, dp_rank: int | None) -> None:
        self._ranks.add(dp_rank or 0)
        self.store(list(map(hash_key, event.block_hashes)), Tier(dp_rank, event.medium, event.group_idx))

    def store(self, keys: Collection[Hash], tier: Tier) -> None:
        """Store blocks in a tier, a copy of each. ``keys`` are hashes as they are indexed: unsigned, or bytes."""
        if not keys:
            return
        self._ranks.add(tier.dp_rank)
        blocks = self._tiers.setdefault(tier, {})
        if self.policy is Policy.SET:
            blocks.update(dict.fromkeys(keys, 1))
            return
        for key in keys:
            blocks[key] = blocks.get(key, 0) + 1

    def _remove(self, event: BlockRemoved, dp_rank: int | None) -> None:
        tier = Tier(dp_rank, event.medium, event.group_idx)
        for block_hash in event.block_hashes:
            self.discard(block_hash, tier)

    def discard(self, block_hash: Hash, tier: Tier) -> bool:
        """Take one copy of a block from a tier. False when the tier does not hold it."""
        blocks = self._tiers.get(tier)
        key = hash_key(block_hash)
        if blocks is None or key not in blocks:
            return False
        if blocks[key] > 1:
            blocks[key] -= 1
        else:
            del blocks[key]
            if not blocks:
                del self._tiers[tier]
        return True

    def clear(self, dp_rank: int | None = None) -> BlockIndex:
        """Forget every block of a DP rank, of all media and groups; of all ranks when None. Gives what was forgotten."""
        forgotten = BlockIndex(self.policy)
        for tier in list(self._tiers):
            if dp_rank is None or tier.dp_rank == dp_rank:
                forgotten._tiers[tier] = self._tiers.pop(tier)
        return forgotten

    def blocks_of(self, tier: Tier) -> dict[Hash, int] | None:
        """The copies of each block that a tier holds, as the index keeps them: a change here changes the index.

        None when it holds none; a tier from which the last block is taken has to be dropped, see `drop`.
        """
        return self._tiers.get(tier)

    def drop(self, tier: Tier) -> None:
        """Forget every block of a tier."""
        self._tiers.pop(tier, None)

    def holds_any(self, keys: Iterable[Hash]) -> bool:
        """Whether one of these blocks is held anywhere. ``keys`` are as in `store`, and can be gone through twice."""
        return any(not blocks.keys().isdisjoint(keys) for blocks in self._tiers.values())

    def tiers(self) -> Iterator[Tier]:
        """The tiers that hold at least one block."""
        return iter(tuple(self._tiers))

    def copies(self, block_hash: Hash, tier: Tier) -> int:
        """How many copies of a block a tier holds: 0, 1, or more under ``Policy.COUNT``."""
        return self._tiers.get(tier, {}).get(hash_key(block_hash), 0)

    def hashes(self, tier: Tier) -> frozenset[Hash]:
        """The hashes (unsigned, or bytes) that one tier holds."""
        return frozenset(self._tiers.get(tier, ()))

    def holds(
        self, block_hash: Hash, *, dp_rank: int | None = None, medium: str | None = None, group_idx: int | None = None
    ) -> bool:
        """Whether a block is held in some tier that fits. None fits every rank, medium or group."""
        key = hash_key(block_hash)
        return any(
            key in blocks
            for tier, blocks in self._tiers.items()
            if (dp_rank is None or tier.dp_rank == dp_rank)
            and (medium is None or tier.medium == medium)
            and (group_idx is None or tier.group_idx == group_idx)
        )

    def matched_prefix(self, block_hashes: Iterable[Hash], **where: int | str | None) -> int:
        """How many blocks of a prompt, from its root on, are held without a gap. ``where`` is as in `holds`."""
        matched = 0
        for block_hash in block_hashes:
            if not self.holds(block_hash, **where):  # type: ignore[arg-type]
                break
            matched += 1
        return matched

    def blocks(self, medium: str | None = None, *, dp_rank: int | None = None) -> frozenset[Hash]:
        """The hashes held (unsigned, or bytes), of all groups, in one medium or in all."""
        return frozenset(
            block_hash
            for tier, blocks in self._tiers.items()
            if (medium is None or tier.medium == medium) and (dp_rank is None or tier.dp_rank == dp_rank)
            for block_hash in blocks
        )

    def per_medium(self) -> dict[str, int]:
        """How many blocks each medium holds, all ranks and groups together."""
        held: Counter[str] = Counter()
        for tier, blocks in self._tiers.items():
            held[tier.medium] += len(blocks)
        return dict(sorted(held.items()))


class IndexSet(Mapping[str, BlockIndex]):
    """One index per source: what a router keeps of all its workers. A mapping from source to `BlockIndex`.

    Args:
        policy: of every index, see `Policy`.
    """

    def __init__(self, policy: Policy | str = Policy.COUNT) -> None:
        self.policy = Policy(policy)
        self._indexes: dict[str, BlockIndex] = {}

    def apply(self, item: Item) -> None:
        """Apply an item to the index of its source, see `BlockIndex.apply`."""
        index = self._indexes.get(item.source)
        if index is None:
            index = self._indexes[item.source] = BlockIndex(self.policy)
        index.apply(item)

    def __getitem__(self, source: str) -> BlockIndex:
        return self._indexes[source]

    def __iter__(self) -> Iterator[str]:
        return iter(self._indexes)

    def __len__(self) -> int:
        return len(self._indexes)

    def matched_prefix(self, block_hashes: Sequence[Hash], **where: int | str | None) -> dict[str, int]:
        """Per source, how many blocks of a prompt from its root on are held; ``where`` is as in `BlockIndex.holds`."""
        return {source: index.matched_prefix(block_hashes, **where) for source, index in self._indexes.items()}


def default_policy(dialect: Dialect) -> Policy:
    """``SET`` for dialects that only vLLM emits, ``COUNT`` otherwise."""
    engines = {span.engine for span in dialect.releases}
    return Policy.SET if engines == {"vllm"} else Policy.COUNT
