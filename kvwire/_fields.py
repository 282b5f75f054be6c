"""What the slots and keys of events may hold: their types, and what the types cannot tell.

The tables are for reading without a told dialect; what a dialect has is in `kvwire.dialects`.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import Any

import msgspec

from kvwire import _msgpack as mp
from kvwire.dialects import ALL_MEDIA
from kvwire.dialects.base import METADATA
from kvwire.events import AllBlocksCleared, BlockRemoved, BlockStored, ExtraKey, Hash, Token

SALT_PREFIX = "dynamo-cache-salt:"
"""What marks a salt among extra keys (spec/events.md, "Isolation")."""

MAX_KEY_DEPTH = 4
"""Levels of arrays and maps inside one extra key; a multi-modal identifier has one."""

CLASSES: dict[str, type[Any]] = {
    "BlockStored": BlockStored,
    "BlockRemoved": BlockRemoved,
    "AllBlocksCleared": AllBlocksCleared,
}

POSITIONAL: dict[str, tuple[str, ...]] = {
    "BlockStored": (
        *("block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name"),
        *("extra_keys", "group_idx", "kv_cache_spec_kind", "kv_cache_spec_sliding_window", "locality", "ownership"),
        METADATA,
    ),
    "BlockRemoved": (
        *("block_hashes", "medium", "group_idx", "kv_cache_spec_kind", "kv_cache_spec_sliding_window"),
        *("locality", "ownership"),
    ),
    "AllBlocksCleared": ("ownership",),
}
"""What an array event's slots 1, 2, … hold when no dialect is told: the longest layout known."""

KEYS: dict[str, frozenset[str]] = {tag: frozenset(kind.__struct_fields__) for tag, kind in CLASSES.items()}
"""What a map event's keys are read as when no dialect is told: a key of a field's name means that field."""

REQUIRED = {
    "BlockStored": ("block_hashes", "token_ids", "block_size"),
    "BlockRemoved": ("block_hashes",),
    "AllBlocksCleared": (),
}

TYPES: dict[str, tuple[Any, str]] = {
    "block_hashes": (list[Hash], "an array of block hashes (64-bit ints, or bins)"),
    "parent_block_hash": (Hash | None, "a block hash (64-bit int, or bin) or nil"),
    "token_ids": (list[Token], "an array of token ids (ints, or pairs of ints)"),
    "block_size": (int, "an int"),
    "lora_id": (int | None, "an int or nil"),
    "medium": (str | None, "a str or nil"),
    "lora_name": (str | None, "a str or nil"),
    "extra_keys": (list[list[ExtraKey] | None] | None, "an array with an array or nil for each block, or nil"),
    "group_idx": (int | None, "an int or nil"),
    "kv_cache_spec_kind": (str | None, "a str or nil"),
    "kv_cache_spec_sliding_window": (int | None, "an int or nil"),
    "locality": (str | None, "a str or nil"),
    "ownership": (str | None, "a str or nil"),
    "cache_salt": (str | None, "a str or nil"),
    "session_id": (str | None, "a str or nil"),
    "lookahead_token_ids": (list[list[int]] | None, "an array of arrays of ints, or nil"),
}
DECODERS = {name: msgspec.msgpack.Decoder(kind, ext_hook=mp.refuse_ext) for name, (kind, _) in TYPES.items()}


def prefixed_salts(extra_keys: Any) -> set[str]:
    """The salts that extra_keys carry behind the prefix ``dynamo-cache-salt:``; more than one is a conflict."""
    return {
        key[len(SALT_PREFIX) :]
        for entry in extra_keys or ()
        for key in entry or ()
        if isinstance(key, str) and key.startswith(SALT_PREFIX)
    }


def extra_keys_problem(extra_keys: Any) -> str | None:
    """What is wrong inside well-formed extra keys, in words: a timestamp, or nesting beyond any identifier."""
    return next(
        filter(None, (_key_problem(key, MAX_KEY_DEPTH) for entry in extra_keys or () for key in entry or ())), None
    )


def _key_problem(key: Any, depth: int) -> str | None:
    if isinstance(key, datetime.datetime):
        return "a timestamp extension"
    if not isinstance(key, list | dict):
        return None
    if not depth:
        return "values nested too deep"
    parts = key if isinstance(key, list) else [*key.keys(), *key.values()]
    return next(filter(None, (_key_problem(part, depth - 1) for part in parts)), None)


def salt_of(value: bytes) -> str | None:
    for raw_key, raw in mp.pairs(value):
        if mp.scalar(raw_key) == "cache_salt" and mp.kind_of(raw[0]) == "str":
            return str(mp.scalar(raw))
    return None


def fitting(tag: str, slots: list[bytes]) -> tuple[str, ...]:
    """The positional names that these slots fit when no dialect is told.

    Array layouts of 13 slots, and removals of 5 to 7, are no dialect's: the slots past the last dialect of fewer slots
    are read as ``dynamo``'s only when their types fit, and are unknown extras otherwise. So is slot 1 of a clear, where
    ROCm ATOM writes a medium: taken for the owner, it would narrow a clear of everything.
    """
    names = POSITIONAL[tag]
    doubtful: Callable[[int], bool]
    if tag == "BlockStored":
        doubtful = (lambda slot: slot == 12) if len(slots) == 13 else (lambda slot: False)
    elif tag == "BlockRemoved":
        doubtful = (lambda slot: slot >= 4) if len(slots) < 8 else (lambda slot: False)
    else:
        doubtful = lambda slot: True  # noqa: E731
    for slot in range(1, min(len(slots), len(names) + 1)):
        if doubtful(slot) and not _fits(tag, names[slot - 1], slots[slot]):
            return names[: slot - 1]
    return names


def _fits(tag: str, name: str, value: bytes) -> bool:
    if tag == "AllBlocksCleared" and mp.scalar(value) in ALL_MEDIA:
        return False
    try:
        DECODERS[name].decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False
    return True
