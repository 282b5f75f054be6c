"""The forms of one block hash: signed 64-bit, unsigned 64-bit, 16 hex digits, or the whole digest as bytes.

SGLang writes signed int64, vLLM unsigned 64-bit or the whole digest as msgpack bin; routers hold u64, and SGLang's page
keys are hex. Signed and unsigned forms of the same 64 bits are the same hash (spec/events.md, "Block hashes").
"""

from __future__ import annotations

import re

_MASK = (1 << 64) - 1
_HEX = re.compile(r"(?:0[xX])?([0-9a-fA-F]{16})([0-9a-fA-F]{48})?")

Hash = int | bytes


def as_uint64(block_hash: int) -> int:
    """The unsigned form, 0 … 2**64-1. Raises OverflowError for an integer that is not 64 bits wide."""
    if not -(1 << 63) <= block_hash <= _MASK:
        raise OverflowError(f"{block_hash} does not fit in 64 bits, so it is no block hash")
    return block_hash & _MASK


def as_int64(block_hash: int) -> int:
    """The signed form, -2**63 … 2**63-1. Raises OverflowError for an integer that is not 64 bits wide."""
    unsigned = as_uint64(block_hash)
    return unsigned - (1 << 64) if unsigned >> 63 else unsigned


def as_hex(block_hash: int) -> str:
    """16 lower-case hex digits, most significant first: the start of SGLang's page key."""
    return f"{as_uint64(block_hash):016x}"


def from_hex(text: str) -> int:
    """The unsigned form of 16 hex digits, of either case, or of a whole page key: the first 16 of its 64 digits.

    Raises ValueError for any other length: it may be a decimal number, whose digits are hex digits too.
    """
    found = _HEX.fullmatch(text)
    if found is None:
        raise ValueError(f"{text[:80]!r} is no hash: expected 16 hex digits, or the 64 of a page key")
    return int(found[1], 16)


def first_bytes(digest: bytes) -> int:
    """SGLang's event form of a digest: its first 8 bytes, big-endian, signed."""
    return int.from_bytes(digest[:8], "big", signed=True)


def last_bytes(digest: bytes) -> int:
    """vLLM's event form of a digest: its last 8 bytes (the low 64 bits), big-endian, unsigned."""
    return int.from_bytes(digest[-8:], "big")


def hash_key(block_hash: Hash) -> Hash:
    """The value to index by: unsigned for integers, so both signs meet; byte strings stay bytes."""
    if isinstance(block_hash, int):
        return block_hash & _MASK
    return bytes(block_hash)
