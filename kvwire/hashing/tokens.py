"""One reading of the token forms that callers have: sequences, typed buffers, packed bytes, pairs.

Hashing a long prompt must not cost a Python object per token beyond the input, so a page is a slice of the caller's own
buffer where that is possible, and a transient list of one page where it is not.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

from kvwire.hashing.errors import HashInputError

__all__ = ["TokenView", "pages"]

U32_MAX = (1 << 32) - 1
I64_MAX = (1 << 63) - 1
_INT_FORMATS = frozenset("hHiIlLqQ")


class TokenView:
    """Tokens as positions that hash functions can slice.

    Accepted: a sequence of ints; ``array.array`` or any one-dimensional buffer of integers (numpy, memoryview); bytes,
    bytearray or a byte memoryview holding u32 little-endian; a sequence of pairs ``[t0, t1]``, as SGLang's EAGLE pages
    are on the wire. With ``bigram=True`` and plain tokens, position i is the pair (t[i], t[i+1]), so n + 1 tokens make n
    positions.

    Raises:
        HashInputError: none of these, a token that is no non-negative integer of 63 bits, or packed bytes that do not
            divide by 4. Tokens are looked at when their page is taken.
    """

    __slots__ = ("_bigram", "_data", "_packed", "_pairs", "length")

    def __init__(self, tokens: Any, *, bigram: bool = False) -> None:
        self._packed: memoryview | None = None
        self._data: Any = tokens
        self._pairs = False
        if isinstance(tokens, Sequence) and not isinstance(tokens, (bytes, bytearray, memoryview, str, array)):
            count = len(tokens)
            self._pairs = count > 0 and isinstance(tokens[0], (list, tuple))
        else:
            count = self._take_buffer(tokens)
        self._bigram = bigram and not self._pairs
        self.length = max(count - 1, 0) if self._bigram else count
        """Positions to hash: tokens, or pairs."""

    def _take_buffer(self, tokens: Any) -> int:
        try:
            view = memoryview(tokens)
        except TypeError:
            raise HashInputError(
                f"tokens are a sequence of ints, a buffer of ints, or bytes of u32 little-endian, not "
                f"{type(tokens).__name__}"
            ) from None
        form = view.format.lstrip("@=<") if view.ndim == 1 else ""
        if form == "B":
            if view.nbytes % 4:
                raise HashInputError(f"packed tokens are u32 little-endian; {view.nbytes} bytes do not divide by 4")
            self._packed = view.cast("B") if view.contiguous else memoryview(bytes(view))
            return view.nbytes // 4
        if form not in _INT_FORMATS or view.itemsize < 2:
            raise HashInputError(f"a token buffer is one-dimensional and holds integers, not {view.format!r}")
        if view.format.startswith("<"):
            # memoryview neither casts nor lists the explicit formats, which ctypes arrays have.
            view = _native(view.tobytes(), view.itemsize, signed=form.islower())
        if form in "IL" and view.itemsize == 4 and view.contiguous and sys.byteorder == "little":
            self._packed = view.cast("B")
        self._data = view
        return len(view)

    @property
    def paired(self) -> bool:
        """Whether positions are pairs."""
        return self._pairs or self._bigram

    def ints(self, start: int, stop: int) -> list[int]:
        """The token ids of positions start … stop-1; of pairs flattened ``t0 t1 t1 t2 …``."""
        if self._pairs:
            return [token for pair in self._data[start:stop] for token in _pair(pair, start)]
        if self._packed is not None and not self._bigram:
            return _unpack(self._packed[4 * start : 4 * stop])
        plain = self._plain(start, stop + 1 if self._bigram else stop)
        if not self._bigram:
            return plain
        return [token for pair in pairwise(plain) for token in pair]

    def _plain(self, start: int, stop: int) -> list[int]:
        if self._packed is not None:
            return _unpack(self._packed[4 * start : 4 * stop])
        part = self._data[start:stop]
        return part.tolist() if isinstance(part, memoryview) else list(part)

    def packed(self, start: int, stop: int) -> bytes | memoryview | None:
        """The same as u32 little-endian; None if a token of the page does not fit (see `wide`)."""
        if self._packed is not None and not self._bigram:
            return self._packed[4 * start : 4 * stop]
        ids = self.ints(start, stop)
        try:
            words = array("I", ids)
        except (OverflowError, TypeError):
            check(ids, start)
            return None
        if sys.byteorder == "big":
            words.byteswap()
        return words.tobytes()

    def wide(self, start: int, stop: int) -> bytes:
        """The same as u64 little-endian."""
        words = array("Q", self.ints(start, stop))
        if sys.byteorder == "big":
            words.byteswap()
        return words.tobytes()


def check(ids: Sequence[Any], start: int = 0) -> None:
    """Raise HashInputError for the first id that is no token. ``start`` is the position of the first one."""
    for offset, token in enumerate(ids):
        if not isinstance(token, int) or not 0 <= token <= I64_MAX:
            raise HashInputError(
                f"token {start + offset} is {token!r:.60}; a token is an integer from 0 to 2**63-1. "
                "Strings (TensorRT-LLM) and negative ids have no place in this recipe"
            )


def pages(length: int, page_size: int) -> Iterator[tuple[int, int]]:
    """Start and stop of each page; the last one may be shorter."""
    if page_size < 1:
        raise HashInputError(f"page size is {page_size}; it is the number of tokens per block, at least 1")
    for start in range(0, length, page_size):
        yield start, min(start + page_size, length)


def _pair(pair: Any, start: int) -> Any:
    if not isinstance(pair, (list, tuple)) or len(pair) != 2:
        raise HashInputError(f"the page at position {start} mixes pairs and other tokens: {pair!r:.60}")
    return pair


def _native(data: bytes, itemsize: int, *, signed: bool) -> memoryview:
    words = array({2: "h", 4: "i", 8: "q"}[itemsize] if signed else {2: "H", 4: "I", 8: "Q"}[itemsize])
    words.frombytes(data)
    if sys.byteorder == "big":
        words.byteswap()
    return memoryview(words)


def _unpack(part: memoryview) -> list[int]:
    words = array("I")
    words.frombytes(part)
    if sys.byteorder == "big":
        words.byteswap()
    return words.tolist()
