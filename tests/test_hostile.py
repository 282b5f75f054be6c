"""Bytes that no engine should send: a kvwire error, never another exception, a hang, or memory beyond a few payloads."""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import kvwire
from kvwire import DIALECTS, WireError
from kvwire._walk import walk
from kvwire.dialects import Encoding
from tests.strategies import dialect_and_batch

FULL: dict[str, dict[str, Any]] = {
    "BlockStored": {
        "block_hashes": [1],
        "parent_block_hash": 2,
        "token_ids": [1, 2],
        "block_size": 2,
        "lora_id": 3,
        "medium": "GPU",
        "lora_name": "a",
        "extra_keys": [["x"]],
        "group_idx": 0,
        "kv_cache_spec_kind": "full_attention",
        "kv_cache_spec_sliding_window": 8,
        "locality": "LOCAL",
        "ownership": "o",
        "metadata": {"cache_salt": "t"},
        "cache_salt": "t",
        "session_id": "s",
        "lookahead_token_ids": [[1]],
    },
    "BlockRemoved": {
        "block_hashes": [1],
        "medium": "GPU",
        "group_idx": 0,
        "kv_cache_spec_kind": "full_attention",
        "kv_cache_spec_sliding_window": 8,
        "locality": "LOCAL",
        "ownership": "o",
    },
    "AllBlocksCleared": {"ownership": "o"},
}
WRONG = {
    "a float": 1.5,
    "a bool": True,
    "a list of maps": [{}],
    "a map": {"k": 1},
    "an ext": msgspec.msgpack.Ext(5, b"x"),
}


def full_event(dialect: kvwire.Dialect, tag: str) -> tuple[list[str], list[Any]]:
    names = [f.name for f in dialect.events[tag].fields]
    return names, [FULL[tag][name] for name in names]


def packed(dialect: kvwire.Dialect, tag: str, names: list[str], values: list[Any]) -> bytes:
    if dialect.encoding is Encoding.ARRAY:
        return msgspec.msgpack.encode([tag, *values])
    return msgspec.msgpack.encode({"type": tag, **dict(zip(names, values, strict=True))})


def framed(dialect: kvwire.Dialect, *events: bytes) -> bytes:
    rank = b"\x00" if len(dialect.batch_fields) == 3 else b""
    header = b"\x93" if rank else b"\x92"
    return header + b"\xcb" + struct.pack(">d", 1.5) + bytes([0x90 + len(events)]) + b"".join(events) + rank


POSITIONS = [(d.id, tag, name) for d in DIALECTS.values() for tag in d.events for name in full_event(d, tag)[0]]


@pytest.mark.parametrize(("dialect_id", "tag", "name"), POSITIONS)
def test_a_wrong_type_names_its_place_and_spares_its_neighbours(dialect_id: str, tag: str, name: str) -> None:
    dialect = DIALECTS[dialect_id]
    names, values = full_event(dialect, tag)
    good = packed(dialect, tag, names, values)
    at = names.index(name)
    for words, wrong in WRONG.items():
        if name == "metadata" and words == "a map":
            continue
        bad = packed(dialect, tag, names, [*values[:at], wrong, *values[at + 1 :]])
        for told in (dialect_id, None):
            if told is None and (tag == "AllBlocksCleared" or (tag == "BlockStored" and at == 6 and words == "a map")):
                continue
            payload = framed(dialect, good, bad, good)
            with pytest.raises(WireError) as caught:
                kvwire.decode(payload, told)
            error = caught.value
            assert (error.event_index, error.tag) == (1, tag)
            if dialect.encoding is Encoding.ARRAY:
                assert error.slot == at + 1
            assert error.key == name or (name == "metadata" and error.key in ("metadata", "cache_salt", "lora_name"))
            assert error.expected
            assert error.got
            kept = kvwire.decode(payload, told, on_error="collect")
            assert len(kept.events) == 2
            assert [fault.event_index for fault in kept.faults] == [1]
        with pytest.raises(WireError):
            kvwire.decode(framed(dialect, bad), dialect_id, strict=True)


@pytest.mark.parametrize("dialect", [d for d in DIALECTS.values() if d.encoding is Encoding.MAP], ids=str)
def test_a_map_event_with_a_key_twice(dialect: kvwire.Dialect) -> None:
    names, values = full_event(dialect, "BlockStored")
    event = packed(dialect, "BlockStored", names, values)
    for name, value in [*zip(names, values, strict=True), ("type", "BlockStored"), ("unknown", None)]:
        pair = msgspec.msgpack.encode(name) + msgspec.msgpack.encode(value)
        count, width = (event[0] & 15, 1) if event[0] < 0x90 else (int.from_bytes(event[1:3], "big"), 3)
        again = pair * 2 if name == "unknown" else pair
        added = count + (2 if name == "unknown" else 1)
        doubled = b"\xde" + added.to_bytes(2, "big") + event[width:] + again
        with pytest.raises(WireError) as caught:
            kvwire.decode(framed(dialect, doubled))
        assert caught.value.code == "duplicate-key"
        assert caught.value.key == name


EVENT = msgspec.msgpack.encode(["BlockStored", [1], None, [1], 1, None, "GPU"])
TS = b"\xcb" + struct.pack(">d", 1.5)
CASES = {
    "empty payload": (b"", "empty"),
    "reserved byte": (b"\xc1", "malformed"),
    "reserved byte inside": (b"\x93" + TS + b"\x91\xc1\x00", "malformed"),
    "cut": ((b"\x93" + TS + b"\x91" + EVENT + b"\x00")[:-3], "truncated"),
    "trailing byte": (b"\x93" + TS + b"\x91" + EVENT + b"\x00\x00", "trailing-bytes"),
    "json": (b'[1.5, [["AllBlocksCleared"]], 0]', "trailing-bytes"),
    "batch is a map": (b"\x81\xa2ts" + TS, "batch-not-array"),
    "batch is nil": (b"\xc0", "batch-not-array"),
    "batch of nothing": (b"\x90", "batch-arity"),
    "batch of one": (b"\x91" + TS, "batch-arity"),
    "events are a map": (b"\x93" + TS + b"\x80\x00", "wrong-type"),
    "events are nil": (b"\x93" + TS + b"\xc0\x00", "wrong-type"),
    "ts nan": (b"\x93\xcb" + struct.pack(">d", float("nan")) + b"\x90\x00", "not-finite"),
    "ts inf": (b"\x93\xcb" + struct.pack(">d", float("inf")) + b"\x90\x00", "not-finite"),
    "ts float32 nan": (b"\x93\xca" + struct.pack(">f", float("nan")) + b"\x90\x00", "not-finite"),
    "ts text": (b"\x93\xa3now\x90\x00", "wrong-type"),
    "ts bool": (b"\x93\xc3\x90\x00", "wrong-type"),
    "rank text": (b"\x93" + TS + b"\x90\xa10", "wrong-type"),
    "rank float": (b"\x93" + TS + b"\x90" + TS, "wrong-type"),
    "rank bool": (b"\x93" + TS + b"\x90\xc2", "wrong-type"),
    "event is an int": (b"\x93" + TS + b"\x91\x05\x00", "event-not-array-or-map"),
    "event is text": (b"\x93" + TS + b"\x91\xa1x\x00", "event-not-array-or-map"),
    "event is an empty array": (b"\x93" + TS + b"\x91\x90\x00", "bad-tag"),
    "event is an empty map": (b"\x93" + TS + b"\x91\x80\x00", "missing-key"),
    "event is a bin of rubbish": (b"\x93" + TS + b"\x91\xc4\x02\xc1\xc1\x00", "event-not-array-or-map"),
    "tag is an int": (b"\x93" + TS + b"\x91\x91\x05\x00", "bad-tag"),
    "tag is a bin": (b"\x93" + TS + b"\x91\x91\xc4\x02ab\x00", "bad-tag"),
    "tag is not UTF-8": (b"\x93" + TS + b"\x91\x91\xa2\xff\xfe\x00", "bad-tag"),
    "type is nil": (b"\x93" + TS + b"\x91\x81\xa4type\xc0\x00", "bad-tag"),
    "a garbled key of the metadata, which may have been the salt's": (
        b"\x93" + TS + b"\x91\x98\xabBlockStored\x91\x01\xc0\x92\x03\x04\x02\xc0\xc0\x81\xaac\xc0che_salt\xa1t\x00",
        "bad-utf8",
    ),
    "medium not UTF-8": (b"\x93" + TS + b"\x91\x93\xacBlockRemoved\x91\x01\xa2\xff\xfe\x00", "bad-utf8"),
    "salt not UTF-8": (
        b"\x93" + TS + b"\x91" + b"\x98" + EVENT[1:] + b"\x81\xaacache_salt\xa2\xff\xfe\x00",
        "bad-utf8",
    ),
    "hash is text": (b"\x93" + TS + b"\x91\x93\xacBlockRemoved\x91\xa11\xc0\x00", "wrong-type"),
    "hash is an ext": (b"\x93" + TS + b"\x91\x93\xacBlockRemoved\x91\xd4\x05\x00\xc0\x00", "wrong-type"),
    "hash is a timestamp ext": (
        b"\x93" + TS + b"\x91\x93\xacBlockRemoved\x91\xd6\xff\x00\x00\x00\x00\xc0\x00",
        "wrong-type",
    ),
    "array bomb": (b"\x91" * 200_000 + b"\x90", "too-deep"),
    "array bomb in a batch": (b"\x93" + TS + b"\x91\x97" + EVENT[1:-4] + b"\x91" * 200_000 + b"\x90\x00", "too-deep"),
    "map bomb": (b"\x93" + TS + b"\x91" + b"\x81\xa1k" * 100_000 + b"\xc0\x00", "too-deep"),
    "array32 that lies": (b"\x93" + TS + b"\xdd\xff\xff\xff\xff", "truncated"),
    "bin32 that lies": (b"\x93" + TS + b"\x91\x92\xacBlockRemoved\x91\xc6\xff\xff\xff\xff", "truncated"),
    "str32 that lies": (b"\x93" + TS + b"\x91\x91\xdb\xff\xff\xff\xff", "truncated"),
    "map32 that lies": (b"\x93" + TS + b"\x91\xdf\xff\xff\xff\xff", "truncated"),
    "hashes that lie": (b"\x93" + TS + b"\x91\x92\xacBlockRemoved\xdd\xff\xff\xff\xff\x00", "truncated"),
}


MAP_EVENTS = ("event is an empty map", "type is nil")


@pytest.mark.parametrize("case", CASES)
def test_codes(case: str) -> None:
    payload, code = CASES[case]
    readings: list[dict[str, Any]] = [
        {},
        {"skip_tokens": True},
        {"dialect": "slot8"},
        {"dialect": "slot8", "strict": True},
    ]
    for arguments in readings:
        with pytest.raises(WireError) as caught:
            kvwire.decode(payload, **arguments)
        told = "dialect" in arguments
        assert caught.value.code == ("wrong-encoding" if told and case in MAP_EVENTS else code)


@given(st.binary(max_size=200))
@example(b"\x93\xcb\x3f\xf8\0\0\0\0\0\0\x91\x98\xabBlockStored\x90\xc0\x90\0\xc0\xc0\x80\0")
def test_any_bytes(payload: bytes) -> None:
    check_all_readings(payload)


@given(dialect_and_batch(), st.data())
def test_any_change_of_valid_bytes(pair: tuple[kvwire.Dialect, kvwire.EventBatch], data: st.DataObject) -> None:
    payload = bytearray(kvwire.encode(pair[1], pair[0]))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(payload) - 1))
        kind = data.draw(st.sampled_from(["set", "cut", "insert", "drop"]))
        if kind == "set":
            payload[at] = data.draw(st.integers(0, 255))
        elif kind == "insert":
            payload.insert(at, data.draw(st.integers(0, 255)))
        elif kind == "drop" and len(payload) > 1:
            del payload[at]
        elif kind == "cut":
            payload = payload[: max(at, 1)]
    check_all_readings(bytes(payload))


def check_all_readings(payload: bytes) -> None:
    """Every reading returns or raises WireError, and the fast path and the walk say the same."""
    outcomes: list[kvwire.EventBatch | None] = []
    readings: tuple[Callable[[], kvwire.EventBatch], ...] = (
        lambda: kvwire.decode(payload),
        lambda: kvwire.EventBatch((found := walk(payload)).ts, list(found.events), found.dp_rank),
    )
    for read in readings:
        try:
            outcomes.append(read())
        except WireError as error:
            assert str(error)
            outcomes.append(None)
    fast, slow = outcomes
    assert (fast is None) == (slow is None)
    if fast is not None and slow is not None:
        assert fast == slow
    for dialect in ("slot8", "dynamo", "vllm-map5"):
        for strict in (False, True):
            try:
                kvwire.decode(payload, dialect, strict=strict)
            except WireError:
                continue
    try:
        kept = kvwire.decode(payload, on_error="collect")
    except WireError:
        pass
    else:
        assert kept.faults or fast == kept
        if fast is None:
            assert kept.faults
    try:
        lazy = kvwire.decode(payload, skip_tokens=True)
        for event in lazy.events:
            getattr(event, "token_ids", None)
    except WireError:
        pass


@given(dialect_and_batch())
def test_every_prefix_is_truncated(pair: tuple[kvwire.Dialect, kvwire.EventBatch]) -> None:
    payload = kvwire.encode(pair[1], pair[0])
    for end in range(0, len(payload), max(1, len(payload) // 40)):
        with pytest.raises(WireError):
            kvwire.decode(payload[:end])


@pytest.mark.parametrize(
    "payload",
    [
        b"\x93" + TS + b"\xdd\x00\x10\x00\x00" + b"\xc0" * (1 << 20) + b"\x00",
        b"\x93" + TS + b"\xdd\x00\x10\x00\x00" + b"\x90" * (1 << 20) + b"\x00",
        b"\x93" + TS + b"\x91\xdd\x00\x10\x00\x00" + b"\xc0" * (1 << 20) + b"\x00",
        b"\x93" + TS + b"\x91\x92\xacBlockRemoved\xdd\x00\x10\x00\x00" + b"\x90" * (1 << 20) + b"\x00",
        b"\xdd\x00\x10\x00\x00" + b"\x90" * (1 << 20),
        b"\x93" + TS + b"\x91\xdf\x00\x08\x00\x00" + b"\x90" * (1 << 20) + b"\x00",
        b"\x91" * (1 << 20) + b"\x90",
        b"\x93" + TS + b"\x91\x99" + EVENT[1:] + b"\xc0\xdd\x00\x10\x00\x00" + b"\x90" * (1 << 20) + b"\x00",
    ],
    ids=["nil events", "empty events", "nil slots", "wrong hashes", "long batch", "long map", "nested", "extra keys"],
)
def test_memory_stays_a_small_multiple(payload: bytes) -> None:
    # An empty list in extra_keys is one byte on the wire and 64 in Python: well-formed content costs what it costs.
    multiple = 80 if payload[-2] == 0x90 and b"GPU" in payload[:64] else 16
    for arguments in ({}, {"on_error": "collect"}, {"dialect": "slot7", "strict": True}):
        tracemalloc.start()
        try:
            with pytest.raises(WireError):
                kvwire.decode(payload, **arguments)
                raise kvwire.LimitError("collected")
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak < multiple * len(payload)


def test_many_faults_are_cut_short_and_cost_no_good_event() -> None:
    bad = msgspec.msgpack.encode(["BlockRemoved", "not an array of hashes"])
    good = msgspec.msgpack.encode(["BlockRemoved", [1]])
    payload = b"\x93" + TS + b"\xdc" + (1501).to_bytes(2, "big") + bad * 1500 + good + b"\x00"
    batch = kvwire.decode(payload, on_error="collect")
    assert batch.events == [kvwire.BlockRemoved([1])]
    assert len(batch.faults) == 1001
    assert batch.faults[-1].code == "too-many-faults"


def test_a_repeated_key_cannot_hide_behind_other_characters() -> None:
    """A key of more bytes than characters, or with a long header, shifts where a careless walk looks for the next event."""
    doubled = (
        b"\x85\xa4type\xacBlockRemoved\xacblock_hashes\x91\x01\xacblock_hashes\x91\x02\xa6medium\xc0\xa9group_idx\xc0"
    )
    for key in (b"\xa2\xc3\xa9", b"\xd9\x01a"):
        first = b"\x82\xa4type\xb0AllBlocksCleared" + key + b"\xcc\x84"
        with pytest.raises(WireError) as caught:
            kvwire.decode(b"\x93" + TS + b"\x92" + first + doubled + b"\x00")
        assert caught.value.code == "duplicate-key"
