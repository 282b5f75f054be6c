"""What a payload puts to the test: the rows that a cell of the matrix unfolds into."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from kvwire_conform.golden import Vector

__all__ = ["FEATURES", "Feature", "feature_of"]


class Feature(msgspec.Struct, frozen=True):
    """One kind of payload.

    Attributes:
        id: stable slug.
        title: what stands in the tables.
        meaning: what it costs a router to misread it.
    """

    id: str
    title: str
    meaning: str


FEATURES = (
    Feature("plain", "plain events", "stores, removals and clears of ordinary traffic"),
    Feature("salt", "salt", "a dropped salt lets tenants share cache; a refused one blinds the router to a tenant"),
    Feature("lora-name", "LoRA name", "a dropped adapter name credits one model's cache to another"),
    Feature("lora-id", "LoRA id", "the adapter number of the oldest releases"),
    Feature("extra-keys", "extra keys", "images and other keys of a block: without them different prompts look alike"),
    Feature("tiers", "other tiers", "blocks in host memory or storage, credited to the GPU if the medium is lost"),
    Feature("groups", "KV groups", "groups of hybrid models: not every stored block can be reused"),
    Feature("locality", "locality", "whether the copy is here or elsewhere"),
    Feature("ownership", "ownership", "who owns the copy"),
    Feature("session", "session", "attribution alone"),
    Feature("lookahead", "lookahead", "tokens past the block that went into its hash"),
    Feature("byte-hashes", "byte hashes", "hashes sent as whole digests"),
    Feature("short-hashes", "short hashes", "hashes that msgpack writes in fewer than nine bytes"),
    Feature("bigram", "bigram tokens", "token pairs of EAGLE pages"),
    Feature("combined", "many fields at once", "events with three or more of the above"),
    Feature("short-tail", "missing tail", "slots or keys that may be nil and are not sent"),
    Feature("unknown-field", "unknown field", "a slot or key of a later release"),
    Feature("unknown-tag", "unknown event", "an event of a later release beside good ones"),
    Feature("wide", "other widths, any order", "what another encoder than msgspec writes"),
    Feature("tolerated", "other oddities", "what no release of the dialect writes, and can be read all the same"),
    Feature("bad-event", "bad event", "a malformed event beside good ones"),
    Feature("bad-batch", "bad payload", "bytes that are no batch: to be refused"),
)
"""In the order in which they are shown."""

_BY_ID = {feature.id: feature for feature in FEATURES}
_TOLERATED = {
    "short": "short-tail",
    "absent": "short-tail",
    "explicit": "short-tail",
    "extra": "unknown-field",
    "unknown": "unknown-tag",
    "wide": "wide",
    "shuffled": "wide",
}
_FIELDS = {
    "cache_salt": "salt",
    "lora_name": "lora-name",
    "lora_id": "lora-id",
    "lookahead_token_ids": "lookahead",
    "extra_keys": "extra-keys",
    "ownership": "ownership",
    "session_id": "session",
    "locality": "locality",
    "group_idx": "groups",
    "kv_cache_spec_kind": "groups",
    "kv_cache_spec_sliding_window": "groups",
}
"""A payload counts under the first of these fields that any of its events has; with three of them it is `combined`."""
_SHORT = range(-(1 << 31), 1 << 32)


def feature_of(vector: Vector) -> Feature:
    """The one row that a vector counts under."""
    return _BY_ID[_feature(vector)]


def _feature(vector: Vector) -> str:
    if vector.kind == "invalid":
        return "bad-event" if (vector.good_siblings or {}).get("events") else "bad-batch"
    case = vector.id.partition("/")[2]
    if vector.kind == "tolerated" and (named := _TOLERATED.get(case.partition("-")[0])):
        return named
    events = (vector.meaning or {}).get("events", [])
    return _by_meaning(events) or ("tolerated" if vector.kind == "tolerated" else "plain")


def _by_meaning(events: list[dict[str, Any]]) -> str | None:
    hashes = list(_hashes(events))
    if any(found.startswith("bytes:") for found in hashes):
        return "byte-hashes"
    if any(isinstance(token, list) for event in events for token in event.get("token_ids", ())):
        return "bigram"
    used = list(dict.fromkeys(feature for name, feature in _FIELDS.items() if any(name in event for event in events)))
    if "salt" in used and "extra-keys" in used:
        used.remove("extra-keys")
    if used:
        return "combined" if len(used) > 2 else used[0]
    if any(event.get("medium", "GPU") != "GPU" for event in events):
        return "tiers"
    if any(_is_short(found) for found in hashes):
        return "short-hashes"
    return None


def _hashes(events: list[dict[str, Any]]) -> Iterator[str]:
    for event in events:
        yield from event.get("block_hashes", ())
        if "parent_block_hash" in event:
            yield event["parent_block_hash"]


def _is_short(found: str) -> bool:
    value = int(found, 16)
    return value in _SHORT or value - (1 << 64) in _SHORT
