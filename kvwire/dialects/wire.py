"""The frozen event layouts, as the msgspec structs that write them.

Each class is one release family's struct: its fields are the slots in order (array) or the keys in order (map), and a
field without a default is always written, nil included. A released class never changes; a new shape is a new class.
msgspec writes every slot of an array-like struct whatever ``omit_defaults`` says, so no array field has a default here
except the metadata map, which ends the event only when there is a salt.
"""

from __future__ import annotations

from typing import Any

import msgspec

from kvwire.events import ExtraKey, Hash, Token

ExtraKeys = list[list[ExtraKey] | None]


class SaltMetadata(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    """The metadata map that ends a salted event: ``{"cache_salt": str}``."""

    cache_salt: str


class Slot6Stored(
    msgspec.Struct, array_like=True, tag_field="type", tag="BlockStored", gc=False, forbid_unknown_fields=True
):
    block_hashes: list[Hash]
    parent_block_hash: Hash | None
    token_ids: list[Token]
    block_size: int
    lora_id: int | None


class Slot7Stored(Slot6Stored, tag="BlockStored"):
    medium: str | None


class Slot8Stored(Slot7Stored, tag="BlockStored"):
    metadata: SaltMetadata = None  # type: ignore[assignment]


class Slot8LoraStored(Slot7Stored, tag="BlockStored"):
    lora_name: str | None


class Slot9Stored(Slot8LoraStored, tag="BlockStored"):
    extra_keys: ExtraKeys | None


class Slot10Stored(Slot9Stored, tag="BlockStored"):
    group_idx: int | None


class Slot12Stored(Slot10Stored, tag="BlockStored"):
    kv_cache_spec_kind: str | None
    kv_cache_spec_sliding_window: int | None


class Slot14Stored(Slot12Stored, tag="BlockStored"):
    locality: str | None
    ownership: str | None


class DynamoStored(Slot14Stored, tag="BlockStored"):
    metadata: SaltMetadata = None  # type: ignore[assignment]


class Slot2Removed(
    msgspec.Struct, array_like=True, tag_field="type", tag="BlockRemoved", gc=False, forbid_unknown_fields=True
):
    block_hashes: list[Hash]


class Slot3Removed(Slot2Removed, tag="BlockRemoved"):
    medium: str | None


class Slot4Removed(Slot3Removed, tag="BlockRemoved"):
    group_idx: int | None


class DynamoRemoved(Slot4Removed, tag="BlockRemoved"):
    kv_cache_spec_kind: str | None
    kv_cache_spec_sliding_window: int | None
    locality: str | None
    ownership: str | None


class Slot1Cleared(
    msgspec.Struct, array_like=True, tag_field="type", tag="AllBlocksCleared", gc=False, forbid_unknown_fields=True
):
    pass


class DynamoCleared(Slot1Cleared, tag="AllBlocksCleared"):
    ownership: str | None


class SglangMap1Stored(
    msgspec.Struct, omit_defaults=True, tag_field="type", tag="BlockStored", gc=False, forbid_unknown_fields=True
):
    block_hashes: list[Hash]
    parent_block_hash: Hash | None
    token_ids: list[Token]
    block_size: int
    lora_id: int | None
    medium: str | None = None
    cache_salt: str | None = None
    session_id: str | None = None


class SglangMap2Stored(SglangMap1Stored, tag="BlockStored"):
    lora_name: str | None = None


class SglangMapRemoved(
    msgspec.Struct, omit_defaults=True, tag_field="type", tag="BlockRemoved", gc=False, forbid_unknown_fields=True
):
    block_hashes: list[Hash]
    medium: str | None = None


class VllmMap1Stored(
    msgspec.Struct, omit_defaults=True, tag_field="type", tag="BlockStored", gc=False, forbid_unknown_fields=True
):
    block_hashes: list[Hash]
    parent_block_hash: Hash | None
    token_ids: list[Token]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: ExtraKeys | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None


class VllmMap2Stored(VllmMap1Stored, tag="BlockStored"):
    locality: str | None = None


class VllmMap3Stored(VllmMap2Stored, tag="BlockStored"):
    ownership: str | None = None


class VllmMap4Stored(VllmMap3Stored, tag="BlockStored"):
    session_id: str | None = None


class VllmMap5Stored(VllmMap4Stored, tag="BlockStored"):
    lookahead_token_ids: list[list[int]] | None = None


class VllmMap1Removed(
    msgspec.Struct, omit_defaults=True, tag_field="type", tag="BlockRemoved", gc=False, forbid_unknown_fields=True
):
    block_hashes: list[Hash]
    medium: str | None
    group_idx: int | None = None


class VllmMap2Removed(VllmMap1Removed, tag="BlockRemoved"):
    locality: str | None = None


class VllmMap3Removed(VllmMap2Removed, tag="BlockRemoved"):
    ownership: str | None = None


class MapCleared(
    msgspec.Struct, omit_defaults=True, tag_field="type", tag="AllBlocksCleared", gc=False, forbid_unknown_fields=True
):
    pass


class Batch2(msgspec.Struct, array_like=True, gc=False, forbid_unknown_fields=True):
    """``[ts, events]``: the batch of the oldest releases."""

    ts: float
    events: list[Any]


class Batch3(msgspec.Struct, array_like=True, gc=False, forbid_unknown_fields=True):
    """``[ts, events, dp_rank]``."""

    ts: float
    events: list[Any]
    dp_rank: int | None
