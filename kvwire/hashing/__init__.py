"""The hashes both sides of the wire must agree on (spec/hashing.md).

``kvwire.hashing`` itself holds the forms of one hash, which the codec needs. The rest is imported by name::

    kvwire.hashing.sglang    page chain, salt and namespace seeds, storage chain
    kvwire.hashing.vllm      block hashes of every algorithm and era
    kvwire.hashing.dynamo    the Dynamo router's own tokens hash
    kvwire.hashing.recipes   one interface over all of them, and which release uses which
    kvwire.hashing.verify    recompute a stream of BlockStored events
    kvwire.hashing.diagnose  which mistake explains a hash that differs
"""

from __future__ import annotations

from kvwire.hashing.forms import as_hex, as_int64, as_uint64, from_hex, hash_key

__all__ = ["as_hex", "as_int64", "as_uint64", "from_hex", "hash_key"]
