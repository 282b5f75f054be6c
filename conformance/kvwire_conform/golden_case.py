"""One golden vector before it is a file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from kvwire_conform.golden_layout import CLEARED, REMOVED, STORED, Form, Json, Layout, write_event

Kind = Literal["valid", "tolerated", "invalid"]
Reading = Literal["any", "told", "strict"]
Roundtrip = Literal["exact", "semantic", "none"]

ANY = "any"
"""Folder of the vectors that belong to no dialect."""

A, B, C = "7e3f112233445566", "1122334455667788", "2233445566778899"
PARENT = "0102030405060708"
UNSIGNED = "8123456789abcdef"
DIGEST = "bytes:" + "".join(f"{byte:02x}" for byte in range(0xE0, 0x100))
OTHER_DIGEST = "bytes:" + "".join(f"{byte:02x}" for byte in range(0x20, 0x40))


@dataclass(frozen=True)
class Case:
    """One vector: bytes, and what a reader makes of them.

    The attributes are the fields of ``spec/schema/vector.schema.json``, which says what they mean.
    """

    id: str
    dialect: str | None
    kind: Kind
    description: str
    payload: bytes
    strict: bool = False
    roundtrip: Roundtrip = "none"
    reading: Reading = "any"
    meaning: Json | None = None
    hash_form: Form | None = None
    skipped: tuple[Json, ...] = ()
    extras: tuple[Json, ...] = ()
    error: Json | None = None
    good_siblings: Json | None = None

    def as_json(self) -> Json:
        """The vector's JSON file."""
        found: dict[str, Any] = {
            "id": self.id,
            "dialect": self.dialect,
            "kind": self.kind,
            "description": self.description,
        }
        if self.kind == "invalid":
            return {**found, "reading": self.reading, "error": self.error, "good_siblings": self.good_siblings}
        if self.kind == "tolerated":
            found["reading"] = self.reading
        found |= {
            "strict": self.strict,
            "roundtrip": self.roundtrip,
            "hash_form": self.hash_form,
            "meaning": self.meaning,
        }
        if self.skipped:
            found["skipped"] = list(self.skipped)
        if self.extras:
            found["extras"] = list(self.extras)
        return found


def stored(layout: Layout | None = None, **fields: Any) -> Json:
    """A stored event of one block of four tokens; on the GPU, where the dialect has media."""
    event: Json = {"type": STORED, "block_hashes": [A], "token_ids": [11, 12, 13, 14], "block_size": 4}
    if layout is not None and layout.has("medium"):
        event["medium"] = "GPU"
    return given({**event, **fields})


def removed(layout: Layout | None = None, **fields: Any) -> Json:
    """A removed event of one block; from the GPU, where the dialect has media."""
    event: Json = {"type": REMOVED, "block_hashes": [B]}
    if layout is not None and layout.has("medium", REMOVED):
        event["medium"] = "GPU"
    return given({**event, **fields})


def cleared(**fields: Any) -> Json:
    """A cleared event."""
    return given({"type": CLEARED, **fields})


def batch(*events: Json, ts: float = 1.5, rank: int | None = 0) -> Json:
    """A batch in the neutral JSON form."""
    return {"ts": ts, "dp_rank": rank, "events": list(events)}


def given(event: Json) -> Json:
    """The event in the order of the neutral model, without the fields that are nil."""
    return {name: event[name] for name in _ORDER if event.get(name) is not None}


_ORDER = (
    *("type", "block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name"),
    *("extra_keys", "group_idx", "kv_cache_spec_kind", "kv_cache_spec_sliding_window", "locality", "ownership"),
    *("cache_salt", "session_id", "lookahead_token_ids"),
)

_SAMPLES: Json = {
    "parent_block_hash": PARENT,
    "lora_id": 3,
    "medium": "GPU",
    "lora_name": "adapter-a",
    "extra_keys": [["adapter-a"], ["mm-7f", 2]],
    "group_idx": 1,
    "kv_cache_spec_kind": "sliding_window",
    "kv_cache_spec_sliding_window": 128,
    "locality": "LOCAL",
    "ownership": "tier-1",
    "cache_salt": "tenant-a",
    "session_id": "session-1",
    "lookahead_token_ids": [[15], [19]],
}


def optional(layout: Layout, tag: str = STORED) -> tuple[str, ...]:
    """The fields of an event that may be nil, but for the salt that ends an array."""
    return tuple(name for name in layout.fields(tag) if name in _SAMPLES)


def full(layout: Layout, tag: str = STORED, *, salt: bool = True) -> Json:
    """An event with every field that its dialect has."""
    fields = {name: _SAMPLES[name] for name in optional(layout, tag)}
    if tag == CLEARED:
        return cleared(**fields)
    if tag == REMOVED:
        return removed(**{**fields, "block_hashes": [A, B]})
    fields |= {"block_hashes": [A, B], "token_ids": [11, 12, 13, 14, 15, 16, 17, 18], "block_size": 4}
    if not salt:
        fields.pop("cache_salt", None)
    elif layout.metadata:
        fields["cache_salt"] = _SAMPLES["cache_salt"]
        if "extra_keys" in fields:
            fields["extra_keys"] = [["adapter-a", "dynamo-cache-salt:tenant-a"], ["mm-7f", 2]]
    return stored(**fields)


def raw(layout: Layout, event: Json) -> bytes:
    """An event of the neutral form as bytes, its hashes unsigned."""
    return write_event(layout, event, "unsigned").raw
