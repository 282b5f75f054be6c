"""What the compiled decoder (kvwire/_ext/decode.c) is told: the neutral classes, and a dialect's slots and keys.

It makes neutral events without calling their constructors, through the slots that msgspec gives its structs. Whether
they are where they are looked for is tried once, at import; where they are not, the extension is not used.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from kvwire._fast import LazyMapStored
from kvwire._fields import CLASSES, KEYS, POSITIONAL, REQUIRED
from kvwire._native import extension
from kvwire.dialects import ALL_MEDIA, Dialect, Encoding
from kvwire.dialects.base import METADATA
from kvwire.events import EventBatch

Decode = Callable[[bytes], EventBatch | None]

_KINDS = {
    "block_hashes": "HASHES",
    "parent_block_hash": "HASH",
    "token_ids": "TOKENS",
    "block_size": "COUNT",
    "extra_keys": "EXTRA_KEYS",
    "cache_salt": "SALT",
    "lookahead_token_ids": "LOOKAHEAD",
    **dict.fromkeys(("lora_id", "group_idx", "kv_cache_spec_sliding_window"), "INT"),
    **dict.fromkeys(("medium", "lora_name", "kv_cache_spec_kind", "locality", "ownership", "session_id"), "TEXT"),
}
_METADATA_SLOT = -1


def compiled(
    dialect: Dialect | None, *, strict: bool, skip_tokens: bool, fallback: Callable[[Any], EventBatch] | None = None
) -> Decode | None:
    """A decoder in C. None without the extension.

    Args:
        dialect: what slots and keys mean; None reads every dialect.
        strict: exactly that dialect.
        skip_tokens: keep the tokens as bytes.
        fallback: reads what it is not sure of; without one it gives None for that. It must not hold the decoder that it is
            given to: the two would never be freed.
    """
    return None if decode_ext is None else _made(decode_ext, dialect, strict, skip_tokens, fallback)


def _made(
    ext: Any,
    dialect: Dialect | None,
    strict: bool,
    skip_tokens: bool,
    fallback: Callable[[Any], EventBatch] | None = None,
) -> Decode:
    arity = (len(dialect.batch_fields),) * 2 if dialect is not None and strict else (2, 3)
    found: Decode = ext.Decoder(
        batch=(EventBatch, EventBatch.ts, EventBatch.events, EventBatch.dp_rank),
        layouts=tuple(_layout(ext, tag, dialect, strict, skip_tokens) for tag in CLASSES),
        strict=strict,
        arrays=dialect is None or dialect.encoding is Encoding.ARRAY,
        maps=dialect is None or dialect.encoding is Encoding.MAP,
        arity=arity,
        media=ALL_MEDIA if dialect is None else None,
        raw=msgspec.Raw if skip_tokens else None,
        fallback=fallback,
    ).decode
    return found


def _layout(ext: Any, tag: str, dialect: Dialect | None, strict: bool, skip_tokens: bool) -> tuple[Any, ...]:
    neutral = CLASSES[tag]
    names = neutral.__struct_fields__
    told = None if dialect is None else dialect.events[tag].fields
    needed = set(REQUIRED[tag])
    keys = KEYS[tag]
    if told is not None and strict:
        needed |= {f.name for f in told if f.always}
        keys = frozenset(f.name for f in told)
    fields = tuple(
        (name, getattr(ext, _KINDS[name]), neutral.__dict__[name], name in needed, name in keys) for name in names
    )
    slots = POSITIONAL[tag] if told is None else tuple(f.name for f in told)
    made = LazyMapStored if skip_tokens and tag == "BlockStored" else neutral
    return tag, made, fields, tuple(_METADATA_SLOT if name == METADATA else names.index(name) for name in slots)


def _checked(ext: Any) -> Any:
    """The extension, if each field that it sets is the field that Python reads."""
    try:
        sound = ext is not None and all(_agrees(ext, probe) for probe in _probes())
    except (TypeError, ValueError, KeyError, AttributeError):
        return None
    return ext if sound else None


def _agrees(ext: Any, expected: EventBatch) -> bool:
    payload = msgspec.msgpack.encode([expected.ts, expected.events, expected.dp_rank])
    found = _made(ext, None, False, False)(payload)
    return (
        found is not None
        and (found.ts, found.dp_rank) == (expected.ts, expected.dp_rank)
        and all(
            type(event) is type(wanted)
            and all(getattr(event, name) == getattr(wanted, name) for name in wanted.__struct_fields__)
            for event, wanted in zip(found.events, expected.events, strict=True)
        )
    )


def _probes() -> tuple[EventBatch, EventBatch]:
    """Batches in which each field holds something else, and in which as many as can be are left out."""
    values = {
        "HASHES": [5, b"digest"],
        "HASH": -7,
        "TOKENS": [1, 70000],
        "EXTRA_KEYS": [["a"], None],
        "LOOKAHEAD": [[9]],
    }

    def value(name: str, number: int) -> Any:
        kind = _KINDS[name]
        return values.get(kind, number if kind in ("INT", "COUNT") else f"text {number}")

    full = [
        kind(**{name: value(name, number) for number, name in enumerate(kind.__struct_fields__)})
        for kind in CLASSES.values()
    ]
    bare = [
        kind(**{name: value(name, 0) for name in kind.__struct_fields__ if name in _NEVER_LEFT_OUT})
        for kind in CLASSES.values()
    ]
    return EventBatch(1.5, full, 3), EventBatch(2.5, bare, None)


_NEVER_LEFT_OUT = ("block_hashes", "parent_block_hash", "token_ids", "block_size")

decode_ext = _checked(extension("decode"))
