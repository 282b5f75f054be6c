"""kvwire: the KV-cache event wire that LLM engines publish and KV-aware routers read.

`decode` reads every dialect, `encode` writes any of them byte for byte as its releases do, `detect` says which dialects
a payload conforms to, and `translate` goes from one to another. The specification is in ``spec/``.

Each name is imported when it is first asked for, so that ``import kvwire`` costs an engine next to nothing at its start.

(PYTEST_DONT_REWRITE: the pytest plugin that comes with it leaves assertions here as they are.)
"""

from __future__ import annotations

from importlib import import_module

from kvwire._version import __version__

# The name alone tells a type checker; typing itself would be most of what the import costs.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

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

    SPEEDUPS: tuple[str, ...]
    """The compiled extensions in use. Without them everything works, and means the same, in pure Python;
    ``KVWIRE_PURE=1`` in the environment leaves them aside."""

__all__ = [
    "DIALECTS",
    "SPEEDUPS",
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

_HOMES = {
    "codec": ("Decoder", "Encoder", "decode", "encode", "translate"),
    "detection": ("Detection", "detect"),
    "dialects": ("DIALECTS", "Dialect", "get_dialect"),
    "errors": (
        "DialectError",
        "EnvelopeError",
        "InvalidEventError",
        "KvwireError",
        "LimitError",
        "LossyEncodeError",
        "MalformedError",
        "ShapeError",
        "TruncatedError",
        "UnknownEventError",
        "UnknownFieldError",
        "UsageError",
        "WireError",
    ),
    "events": ("AllBlocksCleared", "BlockRemoved", "BlockStored", "Event", "EventBatch", "PartialBatch"),
    "hashing": ("hash_key",),
    "index": ("BlockIndex",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

if not TYPE_CHECKING:
    # A type checker that saw this function would take every misspelt name for one of ours.
    def __getattr__(name: str) -> Any:
        if name in _HOME_OF:
            found = getattr(import_module(f"kvwire.{_HOME_OF[name]}"), name)
        elif name in _HOMES:
            found = import_module(f"kvwire.{name}")
        elif name == "SPEEDUPS":
            found = _speedups()
        else:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        globals()[name] = found
        return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def _speedups() -> tuple[str, ...]:
    from kvwire._decode import decode_ext
    from kvwire._encode import encode_ext

    return tuple(name for name, extension in (("decode", decode_ext), ("encode", encode_ext)) if extension is not None)
