"""kvwire: the KV-cache event wire that LLM engines publish and KV-aware routers read.

`decode` reads every dialect, `encode` writes any of them byte for byte as its releases do, `detect` says which dialects
a payload conforms to, and `translate` goes from one to another. The specification is in ``spec/``.
"""

from __future__ import annotations

from kvwire._version import __version__
from kvwire.codec import Decoder, Encoder, decode, encode, translate
from kvwire.detection import Detection, detect
from kvwire.dialects import DIALECTS, Dialect, get_dialect
from kvwire.errors import (
    DialectError,
    EnvelopeError,
    InvalidEventError,
    KvwireError,
    LimitError,
    LossyEncodeError,
    MalformedError,
    ShapeError,
    TruncatedError,
    UnknownEventError,
    UnknownFieldError,
    UsageError,
    WireError,
)
from kvwire.events import AllBlocksCleared, BlockRemoved, BlockStored, Event, EventBatch, PartialBatch
from kvwire.hashing import hash_key
from kvwire.index import BlockIndex

__all__ = [
    "DIALECTS",
    "AllBlocksCleared",
    "BlockIndex",
    "BlockRemoved",
    "BlockStored",
    "Decoder",
    "Detection",
    "Dialect",
    "DialectError",
    "Encoder",
    "EnvelopeError",
    "Event",
    "EventBatch",
    "InvalidEventError",
    "KvwireError",
    "LimitError",
    "LossyEncodeError",
    "MalformedError",
    "PartialBatch",
    "ShapeError",
    "TruncatedError",
    "UnknownEventError",
    "UnknownFieldError",
    "UsageError",
    "WireError",
    "__version__",
    "decode",
    "detect",
    "encode",
    "get_dialect",
    "hash_key",
    "translate",
]
