"""The digests of a publisher's latest batches, by seq."""

from __future__ import annotations

from array import array

_UNKNOWN = 0
_LIVE = 1
_KNOWN = 2


class Past:
    """A ring of digests, 8 bytes a batch; batches are added in seq order, with gaps.

    The digest is Python's own keyed hash of bytes, 62 bits of it: nothing that a publisher can aim at, and as fast as
    the payload can be read.

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
        """Forget everything; the next seq is ``first`` or later."""
        self._first = self._end = first

    def add(self, seq: int, payload: bytes, live: bool) -> None:
        """The next batch, and whether it was received live."""
        if seq != self._end:
            self._skip(seq)
        digest = hash(payload) & ~3 | (_KNOWN | _LIVE if live else _KNOWN)
        try:
            self._ring[seq % self._size] = digest
        except IndexError:
            self._grow(seq % self._size)
            self._ring[seq % self._size] = digest
        self._end = seq + 1

    def now_live(self, seq: int) -> None:
        """The batch of this seq, which is known, was received live too."""
        if self._digest(seq):
            self._ring[seq % self._size] |= _LIVE

    def same(self, seq: int, payload: bytes) -> bool | None:
        """Whether a payload is the one of this seq; None when the seq is not known."""
        known = self._digest(seq)
        return (known ^ hash(payload)) & ~3 == 0 if known else None

    def was_live(self, seq: int, payload: bytes) -> bool:
        """Whether a payload is the one of this seq, and was received live."""
        return bool(self._digest(seq) & _LIVE) and self.same(seq, payload) is True

    def _digest(self, seq: int) -> int:
        if not max(self._first, self._end - self._size) <= seq < self._end:
            return _UNKNOWN
        return self._ring[seq % self._size]

    def _skip(self, seq: int) -> None:
        if seq - self._end >= self._size:
            self._ring = array("q", bytes(8 * len(self._ring)))
            return
        for gap in range(max(self._end, seq - self._size), seq):
            if gap % self._size < len(self._ring):
                self._ring[gap % self._size] = _UNKNOWN

    def _grow(self, slot: int) -> None:
        """Short streams stay small: the ring grows as it is first used."""
        self._ring.extend([_UNKNOWN] * (min(self._size, 2 * slot + 64) - len(self._ring)))
