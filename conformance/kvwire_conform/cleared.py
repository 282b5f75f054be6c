"""The blocks that AllBlocksCleared took: what no later event should refer to."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable

from kvwire.hashing.forms import Hash
from kvwire.index import DEFAULT_MEDIUM, BlockIndex, Policy, Tier

MAX_TIERS = 4096
"""Tiers of earlier clears that are kept; a publisher has a handful."""
FEW = 65_536
"""Cleared blocks up to which each is kept as it was; of more, 9 bytes each are kept."""


class _Few:
    """The cleared blocks of a tier, with their copies."""

    def __init__(self, blocks: dict[Hash, int]) -> None:
        self.blocks = blocks

    def __contains__(self, key: Hash) -> bool:
        return key in self.blocks

    def restored(self, keys: Iterable[Hash]) -> None:
        """Blocks were stored again: a copy each is there rightly."""
        if self.blocks.keys().isdisjoint(keys):
            return
        for key in keys:
            copies = self.blocks.pop(key, 0)
            if copies > 1:
                self.blocks[key] = copies - 1


class _Many:
    """The same for more than memory should be spent on: digests of the hashes, sorted, and which were stored again."""

    def __init__(self, blocks: Iterable[Hash]) -> None:
        self._digests = array("q", sorted(map(hash, blocks)))
        self._restored = bytearray(len(self._digests))

    def _find(self, key: Hash) -> int:
        digest = hash(key)
        at = bisect_left(self._digests, digest)
        return at if at < len(self._digests) and self._digests[at] == digest else -1

    def __contains__(self, key: Hash) -> bool:
        at = self._find(key)
        return at >= 0 and not self._restored[at]

    def restored(self, keys: Iterable[Hash]) -> None:
        """Blocks were stored again."""
        for key in keys:
            at = self._find(key)
            if at >= 0:
                self._restored[at] = 1


class Cleared:
    """What the clears of one DP rank took, and was not stored again."""

    def __init__(self) -> None:
        self.tiers: dict[Tier, _Few | _Many] = {}

    def take(self, taken: BlockIndex) -> None:
        """A clear took these blocks, which are moved here, not copied.

        Of what earlier clears took from host tiers the blocks are kept, since a clear may mean GPU alone.
        """
        kept = {
            tier: blocks.blocks
            for tier, blocks in self.tiers.items()
            if isinstance(blocks, _Few) and blocks.blocks and tier.medium != DEFAULT_MEDIUM
        }
        before = sum(map(len, kept.values()))
        if before >= FEW or len(kept) >= MAX_TIERS:
            kept, before = {}, 0
        if not before and not len(taken):
            return
        many = before + len(taken) > FEW
        self.tiers = {}
        for tier in taken.tiers():
            blocks = taken.blocks_of(tier)
            assert blocks is not None
            for key in kept.pop(tier, ()):
                blocks[key] = 1 if taken.policy is Policy.SET else blocks.get(key, 0) + 1
            self.tiers[tier] = _Many(blocks) if many else _Few(blocks)
        for tier, rest in kept.items():
            self.tiers[tier] = _Few(rest)

    def __contains__(self, key: Hash) -> bool:
        return any(key in blocks for blocks in self.tiers.values())

    def has(self, key: Hash, tier: Tier) -> bool:
        """Whether a block was cleared from a tier."""
        blocks = self.tiers.get(tier)
        return blocks is not None and key in blocks
