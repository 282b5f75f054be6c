"""Events of other producers that take more than a line to write."""

from __future__ import annotations

from kvwire_conform import golden_msgpack as mp
from kvwire_conform.golden_case import UNSIGNED
from kvwire_conform.golden_layout import frame


def key_map(fields: dict[str, bytes]) -> bytes:
    """A map event of keys and values that are bytes already."""
    return mp.mapping([(mp.text(name), value) for name, value in fields.items()])


def mooncake(kind: str, *, legacy: bool) -> tuple[bytes, list[str]]:
    """A batch of Mooncake's master, and the keys of its event."""
    tag = {"stored": "BlockStored", "removed": "BlockRemoved"}[kind]
    number = int(UNSIGNED, 16)
    fields = {"event_id": mp.integer(1), "timestamp": mp.integer(1700000000123), "event_type": mp.text(kind)}
    if legacy:
        fields["type"] = mp.text(tag)
    fields |= dict.fromkeys(("model_name", "block_size", "additional_salt", "lora_name"), mp.NIL)
    fields |= {"tenant_id": mp.text("default"), "backend_id": mp.text("node-1"), "group_id": mp.NIL}
    fields |= {"medium": mp.text("cpu"), "dp_rank": mp.NIL, "object_key": mp.text(str(number))}
    fields["seq_hashes"] = mp.array([mp.integer(number)])
    if legacy:
        fields["block_hashes"] = mp.array([mp.integer(number - (1 << 64))])
    fields["base_block_idx"] = mp.integer(0) if kind == "stored" else mp.NIL
    if kind == "stored":
        fields |= {"parent_hash": mp.NIL, "token_ids": mp.NIL}
        if legacy:
            fields["parent_block_hash"] = mp.NIL
    return frame(None, [key_map(fields)], ts=mp.integer(1700000000123)), list(fields)
