"""CPython's hash of a tuple of ints: the block hash of SGLang 0.4.6.post5 to 0.5.5.post3.

Those releases published ``hash(tuple(page))`` of the process. CPython seeds only the hashes of str and bytes, so for
token ids the value depends on nothing but the tokens. It is computed here rather than with ``hash`` so that it is the
same on PyPy and on 32-bit builds.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["hash_int", "hash_page", "hash_tuple"]

_U64 = (1 << 64) - 1
_MERSENNE = (1 << 61) - 1
_PRIME_1 = 11400714785074694791
_PRIME_2 = 14029467366897019727
_PRIME_5 = 2870177450012600261
_MINUS_ONE = 1546275796


def hash_tuple(lanes: Sequence[int]) -> int:
    """Signed 64-bit hash of a tuple whose items hash to ``lanes`` (xxHash64's lanes without its tail, CPython >= 3.8)."""
    acc = _PRIME_5
    for lane in lanes:
        acc = (acc + (lane & _U64) * _PRIME_2) & _U64
        acc = ((acc << 31) | (acc >> 33)) & _U64
        acc = (acc * _PRIME_1) & _U64
    acc = (acc + (len(lanes) ^ (_PRIME_5 ^ 3527539))) & _U64
    if acc == _U64:
        acc = _MINUS_ONE
    return acc - (1 << 64) if acc >> 63 else acc


def hash_int(value: int) -> int:
    """Signed hash of a token id: itself below 2**61-1, else its remainder."""
    return value % _MERSENNE


def hash_page(ids: Sequence[int], *, paired: bool = False) -> int:
    """Signed 64-bit hash of a page; ``ids`` of pairs are flattened ``t0 t1 t1 t2 …`` and hash as tuples of two."""
    lanes = [hash_int(token) for token in ids]
    if paired:
        lanes = [hash_tuple(lanes[at : at + 2]) for at in range(0, len(lanes), 2)]
    return hash_tuple(lanes)
