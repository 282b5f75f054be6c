"""Hypothesis strategies for neutral events that a given dialect can carry."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from kvwire import DIALECTS, AllBlocksCleared, BlockRemoved, BlockStored, Dialect, EventBatch

I64_MIN, U64_MAX = -(1 << 63), (1 << 64) - 1

int_hashes = st.one_of(
    st.integers(I64_MIN, U64_MAX), st.sampled_from([I64_MIN, -1, 0, 1, 127, 128, (1 << 63) - 1, 1 << 63, U64_MAX])
)
hashes = st.one_of(int_hashes, st.binary(min_size=32, max_size=32))
text = st.text(max_size=12)
names = st.text(min_size=1, max_size=12).filter(lambda value: not value.startswith("dynamo-cache-salt:"))
tokens = st.one_of(
    st.lists(st.integers(0, (1 << 32) - 1), max_size=12),
    st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(0, 1 << 20)), min_size=1, max_size=6),
)
timestamps = st.floats(allow_nan=False, allow_infinity=False, width=64)
extra_key = st.one_of(
    names, st.integers(-100, 100), st.binary(max_size=8), st.lists(st.one_of(names, st.integers(-9, 9)), max_size=2)
)
extra_keys = st.lists(st.one_of(st.none(), st.lists(extra_key, max_size=3)), max_size=4)

FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "block_hashes": st.lists(hashes, max_size=4),
    "parent_block_hash": st.one_of(st.none(), hashes),
    "token_ids": tokens,
    "block_size": st.integers(0, 1 << 16),
    "lora_id": st.one_of(st.none(), st.integers(0, 1 << 31)),
    "medium": st.one_of(st.none(), st.sampled_from(["GPU", "CPU", "CPU_PINNED", "DISK", "STORAGE"]), names),
    "lora_name": st.one_of(st.none(), names),
    "extra_keys": st.one_of(st.none(), extra_keys),
    "group_idx": st.one_of(st.none(), st.integers(0, 7)),
    "kv_cache_spec_kind": st.one_of(st.none(), st.sampled_from(["full_attention", "sliding_window", "mamba"])),
    "kv_cache_spec_sliding_window": st.one_of(st.none(), st.integers(1, 1 << 17)),
    "locality": st.one_of(st.none(), st.sampled_from(["LOCAL", "REMOTE"])),
    "ownership": st.one_of(st.none(), names),
    "cache_salt": st.one_of(st.none(), names),
    "session_id": st.one_of(st.none(), names),
    "lookahead_token_ids": st.one_of(st.none(), st.lists(st.lists(st.integers(0, 1 << 20), max_size=2), max_size=3)),
}
CLASSES: dict[str, Any] = {
    "BlockStored": BlockStored,
    "BlockRemoved": BlockRemoved,
    "AllBlocksCleared": AllBlocksCleared,
}


@st.composite
def events(draw: st.DrawFn, dialect: Dialect | None = None, salted: bool = True) -> Any:
    """A neutral event; of the fields that the dialect carries in slots or keys of their own, or of all."""
    tag = draw(st.sampled_from(sorted(CLASSES)))
    cls = CLASSES[tag]
    carried = cls.__struct_fields__ if dialect is None else sorted(dialect.events[tag].carried)
    values = {name: draw(FIELDS[name]) for name in carried if salted or name != "cache_salt"}
    return cls(**values)


@st.composite
def batches(draw: st.DrawFn, dialect: Dialect | None = None, salted: bool = True) -> EventBatch:
    """A neutral batch that the dialect can carry without loss."""
    rank = st.one_of(st.none(), st.integers(0, 1 << 10))
    if dialect is not None and "dp_rank" not in dialect.batch_fields:
        rank = st.none()
    return EventBatch(draw(timestamps), draw(st.lists(events(dialect, salted), max_size=4)), draw(rank))


dialects = st.sampled_from(list(DIALECTS.values()))


@st.composite
def dialect_and_batch(draw: st.DrawFn, salted: bool = True) -> tuple[Dialect, EventBatch]:
    """A dialect, and a batch that it can carry."""
    dialect = draw(dialects)
    return dialect, draw(batches(dialect, salted))
