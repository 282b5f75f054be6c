"""Follow a stream of BlockStored events and recompute every hash in it."""

from __future__ import annotations

from typing import Any

from kvwire.events import AllBlocksCleared, BlockRemoved, BlockStored, EventBatch
from kvwire.hashing.forms import Hash, hash_key
from kvwire.hashing.recipes import (
    NOTHING_KNOWN,
    BlockVerdict,
    ChainPoint,
    Known,
    Reason,
    Recipe,
    Status,
    recompute,
    unknown,
)

__all__ = ["BlockVerdict", "ChainVerifier", "Known", "Reason", "Status", "recompute"]

_AMBIGUOUS = ChainPoint(b"", settled=False)


class ChainVerifier:
    """Recomputes the hashes of a publisher's events, in order.

    A chain continues from its parent's whole digest, and events carry 8 bytes of it, so the verifier keeps for every hash
    it was told the digest that it recomputed. A hash depends on tokens and keys alone: one verifier serves all ranks,
    media and groups of an engine, and removals and clears change nothing.

    After a mismatch the chain goes on from the recomputed digest, so each block is judged by what it should be.

    Args:
        recipe: how the engine hashes, see `kvwire.hashing.catalog.get_recipe`.
        known: what the caller knows beyond the events.
        limit: hashes to remember, oldest forgotten first; a child of a forgotten one is unknown. About 200 bytes each.
    """

    def __init__(self, recipe: Recipe, known: Known = NOTHING_KNOWN, *, limit: int = 1_000_000) -> None:
        self.recipe = recipe
        self.known = known
        self.limit = limit
        self._points: dict[Hash, ChainPoint | None] = {}

    def __len__(self) -> int:
        """How many hashes are remembered."""
        return len(self._points)

    def check(self, event: BlockStored) -> list[BlockVerdict]:
        """One verdict per published hash, in the event's order."""
        hashes = event.block_hashes
        point = self._start(event.parent_block_hash)
        if isinstance(point, ChainPoint):
            verdicts = self.recipe.judge(event, point, self.known)
        else:
            verdicts = unknown(hashes, *point, point_of=self.recipe.point_of)
        for verdict in verdicts:
            self._remember(verdict)
        return verdicts

    def check_batch(self, batch: EventBatch) -> list[tuple[int, BlockVerdict]]:
        """The verdicts of every BlockStored of a batch, each with the position of its event."""
        found: list[tuple[int, BlockVerdict]] = []
        for position, event in enumerate(batch.events):
            if isinstance(event, BlockStored):
                found += ((position, verdict) for verdict in self.check(event))
            elif not isinstance(event, (BlockRemoved, AllBlocksCleared)):
                raise TypeError(f"events[{position}] is a {type(event).__name__}, not a neutral event")
        return found

    def point(self, block_hash: Hash) -> ChainPoint | None:
        """What a block with this hash left the chain at; None if no event told, or it could not be recomputed."""
        found = self._points.get(hash_key(block_hash))
        return None if found is _AMBIGUOUS else found

    def _start(self, parent: Hash | None) -> ChainPoint | tuple[Reason, str]:
        if parent is None:
            return self.recipe.root
        own = self.recipe.point_of(parent)
        if own is not None:
            return own
        key: Any = hash_key(parent)
        if key not in self._points:
            return Reason.PARENT_UNSEEN, f"no event so far stored the parent {_spell(parent)}"
        found = self._points[key]
        if found is None:
            return Reason.PARENT_UNKNOWN, f"the parent {_spell(parent)} could not be recomputed itself"
        if found is _AMBIGUOUS:
            return Reason.PARENT_AMBIGUOUS, f"the parent {_spell(parent)} was published for blocks of different content"
        return found

    def _remember(self, verdict: BlockVerdict) -> None:
        key = hash_key(verdict.published)
        point = verdict.point
        if key in self._points:
            held = self._points[key]
            if held is not None and point is not None and held.digest != point.digest:
                point = _AMBIGUOUS
            elif point is None:
                point = held
        elif len(self._points) >= self.limit:
            del self._points[next(iter(self._points))]
        self._points[key] = point


def _spell(block_hash: Hash) -> str:
    return block_hash.hex() if isinstance(block_hash, bytes) else str(block_hash)
