"""What a subscription yields, per source and in this order: every batch once, or the word that it is lost."""

from __future__ import annotations

import msgspec

from kvwire.errors import WireError
from kvwire.events import EventBatch

__all__ = ["Batch", "Faulty", "Item", "Lost", "Restarted"]


class Batch(msgspec.Struct, frozen=True, gc=False):
    """The next batch of a source.

    Attributes:
        source: the publisher: its endpoint, or its topic where many publishers connect to one endpoint.
        seq: the seq it was published with.
        batch: its events.
        raw: the payload as it came.
    """

    source: str
    seq: int
    batch: EventBatch
    raw: bytes


class Lost(msgspec.Struct, frozen=True, gc=False, eq=False):
    """Batches that were published and can no longer be had, ``first`` to ``last``, both included.

    Attributes:
        reason: why, in a few words for people: ``no replay endpoint``, ``gone from the replay buffer``, or what was
            wrong with the replay. Two losses are equal whatever their reasons.
    """

    source: str
    first: int
    last: int
    reason: str = ""

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Lost):
            return NotImplemented
        return (self.source, self.first, self.last) == (other.source, other.first, other.last)

    def __hash__(self) -> int:
        return hash((self.source, self.first, self.last))


class Restarted(msgspec.Struct, frozen=True, gc=False):
    """The publisher started anew, with an empty cache and from seq 0. What is known of its cache is void.

    What the old publisher published after the last batch yielded, and was not received, is void with it.
    """

    source: str


class Faulty(msgspec.Struct, frozen=True):
    """A message that could not be read; the others go on.

    Attributes:
        seq: the seq it had, which counts as yielded; None when the frames themselves were wrong.
        error: what is wrong with it.
        raw: the payload as it came; for wrong frames the last frame that was kept, possibly empty.
    """

    source: str
    seq: int | None
    error: WireError
    raw: bytes


Item = Batch | Lost | Restarted | Faulty
