"""Forms of one block hash."""

from __future__ import annotations

from kvwire.hashing.forms import as_hex, as_int64, as_uint64, hash_key

__all__ = ["as_hex", "as_int64", "as_uint64", "hash_key"]
