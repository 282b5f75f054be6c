"""The digests of a publisher's latest batches: what tells a duplicate from a restart."""

from __future__ import annotations

import enum
from array import array

__all__ = ["Match", "Recent"]

_LOST = 0


def _digest(payload: bytes) -> int:
    """Python's own keyed hash of bytes: 64 bits, never 0, and nothing that a peer can aim at."""
    return hash(payload) or 1


class Match(enum.Enum):
    """How a batch compares with what came under its seq."""

    SAME = "same"
    OTHER = "other"
    LOST = "lost"
    UNKNOWN = "unknown"


class Recent:
    """A ring of digests, 8 bytes a batch.

    Args:
        size: how many seqs back are known.
    """

    __slots__ = ("_end", "_first", "_ring", "_size")

    def __init__(self, size: int) -> None:
        self._size = size
        self._ring = array("q")
        self._first = 0
        self._end = 0

    def begin(self, first: int) -> None:
        """Forget everything; the next seq is ``first``."""
        self._first = self._end = first

    def add(self, seq: int, payload: bytes) -> None:
        """The next seq was yielded, with this payload."""
        self._put(seq, _digest(payload))
        self._end = seq + 1

    def lose(self, stop: int) -> None:
        """Everything up to ``stop``, which is not included, is lost."""
        for seq in range(max(self._end, stop - self._size), stop):
            self._put(seq, _LOST)
        self._end = stop

    def late(self, seq: int, payload: bytes) -> None:
        """A batch came after its loss was reported: what comes again under its seq can be compared now."""
        if self.compare(seq, payload) is Match.LOST:
            self._put(seq, _digest(payload))

    def _put(self, seq: int, digest: int) -> None:
        try:
            self._ring[seq % self._size] = digest
        except IndexError:
            # Short streams stay small: the ring grows as it is first used.
            self._ring.extend([_LOST] * (min(self._size, 2 * (seq % self._size) + 64) - len(self._ring)))
            self._ring[seq % self._size] = digest

    def compare(self, seq: int, payload: bytes) -> Match:
        """How a batch compares with the one that came under its seq."""
        if not max(self._first, self._end - self._size) <= seq < self._end:
            return Match.UNKNOWN
        known = self._ring[seq % self._size]
        if known == _LOST:
            return Match.LOST
        return Match.SAME if known == _digest(payload) else Match.OTHER
