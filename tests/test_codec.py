"""Decode, encode, translate and detect: every dialect, byte for byte."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kvwire
from kvwire import DIALECTS, AllBlocksCleared, BlockRemoved, BlockStored, EventBatch, WireError
from kvwire._walk import walk
from kvwire.dialects import Encoding, wire
from tests.strategies import batches, dialect_and_batch, dialects

H, U = 0x7E3F112233445566, 0x8123456789ABCDEF
ARRAYS = [d.id for d in DIALECTS.values() if d.encoding is Encoding.ARRAY]
MAPS = [d.id for d in DIALECTS.values() if d.encoding is Encoding.MAP]


def pack(value: Any) -> bytes:
    return msgspec.msgpack.encode(value)


def one(event: Any, rank: int | None = 0) -> bytes:
    return pack([1.5, [event], rank])


def stored(**fields: Any) -> BlockStored:
    values: dict[str, Any] = {"block_hashes": [H], "parent_block_hash": None, "token_ids": [1, 2], "block_size": 2}
    return BlockStored(**{**values, **fields})


@given(dialect_and_batch())
def test_round_trip(pair: tuple[kvwire.Dialect, EventBatch]) -> None:
    dialect, batch = pair
    payload = kvwire.encode(batch, dialect)
    back = kvwire.decode(payload)
    assert kvwire.encode(back, dialect) == payload
    told = kvwire.Decoder(dialect).decode(payload)
    exact = kvwire.Decoder(dialect, strict=True).decode(payload)
    assert back == told == exact
    assert dialect.id in kvwire.detect(payload)
    if dialect.id != "dynamo":
        assert back == batch


@given(dialect_and_batch(), dialects)
def test_there_and_back_where_nothing_is_lost(pair: tuple[kvwire.Dialect, EventBatch], to: kvwire.Dialect) -> None:
    dialect, batch = pair
    payload = kvwire.encode(batch, dialect)
    try:
        there = kvwire.translate(payload, to)
    except kvwire.LossyEncodeError as error:
        assert error.dialect == to.id
        assert to.id not in error.carriers
        kvwire.translate(payload, to, on_loss="drop")
        return
    assert kvwire.translate(there, dialect) == payload


@given(dialect_and_batch())
def test_fast_path_agrees_with_the_walk(pair: tuple[kvwire.Dialect, EventBatch]) -> None:
    dialect, batch = pair
    payload = kvwire.encode(batch, dialect)
    found = walk(payload)
    assert (found.ts, found.dp_rank) == (batch.ts, batch.dp_rank)
    assert found.events == kvwire.decode(payload).events
    assert not (found.faults or found.extras or found.skipped)


@given(batches(), dialects)
def test_loss_is_an_error_or_a_choice(batch: EventBatch, dialect: kvwire.Dialect) -> None:
    try:
        payload = kvwire.encode(batch, dialect)
    except kvwire.LossyEncodeError as error:
        assert error.field in str(error)
        payload = kvwire.encode(batch, dialect, on_loss="drop")
        carriers = [DIALECTS[name] for name in error.carriers]
        assert all(d.carries(error.tag, error.field) if error.tag else "dp_rank" in d.batch_fields for d in carriers)
    assert dialect.id in kvwire.detect(payload)


@pytest.mark.parametrize("dialect", list(DIALECTS))
def test_event_classes_are_one_across_dialects(dialect: str) -> None:
    batch = EventBatch(1.5, [stored(), BlockRemoved([H, 1, 2]), AllBlocksCleared()], None)
    back = kvwire.decode(kvwire.encode(batch, dialect))
    assert [
        type(e).__mro__[0] is not object and isinstance(e, t)
        for e, t in zip(back.events, (BlockStored, BlockRemoved, AllBlocksCleared), strict=True)
    ] == [True] * 3
    assert back == batch
    assert repr(back.events[0]) == repr(batch.events[0])


class TestHashes:
    def test_signed_and_unsigned_are_one_hash(self) -> None:
        assert stored(block_hashes=[U], parent_block_hash=-1) == stored(
            block_hashes=[U - (1 << 64)], parent_block_hash=(1 << 64) - 1
        )
        assert BlockRemoved([U]) == BlockRemoved([U - (1 << 64)])
        assert stored(block_hashes=[U]) != stored(block_hashes=[H])

    @pytest.mark.parametrize("value", [-(1 << 63), -1, 0, 1, U, (1 << 64) - 1, b"\x01" * 32])
    def test_the_form_that_a_producer_chose_survives(self, value: int | bytes) -> None:
        payload = one(["BlockStored", [value], value, [1], 1, None, "GPU"])
        event = kvwire.decode(payload).events[0]
        assert event.block_hashes == [value]
        assert type(event.block_hashes[0]) is type(value)
        assert kvwire.encode(kvwire.decode(payload), "slot7") == payload

    def test_unequal_is_the_opposite_of_equal(self) -> None:
        one, other = BlockRemoved([-1]), BlockRemoved([(1 << 64) - 1])
        assert not one != other  # noqa: SIM202
        assert one != BlockRemoved([2])
        assert not EventBatch(1.5, [one], 0) != EventBatch(1.5, [other], 0)  # noqa: SIM202
        assert EventBatch(1.5, [one], 0) != EventBatch(1.5, [], 0)

    def test_bytes_are_never_an_int(self) -> None:
        assert stored(block_hashes=[b"\0" * 7 + b"\1"]) != stored(block_hashes=[1])

    def test_index_key(self) -> None:
        assert kvwire.hash_key(-1) == kvwire.hash_key((1 << 64) - 1)
        assert kvwire.hash_key(b"ab") == b"ab"


class TestSalt:
    def test_slot8_metadata(self) -> None:
        payload = one(["BlockStored", [H], None, [1, 2], 2, None, "GPU", {"cache_salt": "tenant-ä"}])
        batch = kvwire.decode(payload)
        assert batch.events[0].cache_salt == "tenant-ä"
        assert batch.events[0].lora_name is None
        assert kvwire.encode(batch, "slot8") == payload

    def test_dynamo_carries_it_twice(self) -> None:
        payload = kvwire.encode(EventBatch(1.5, [stored(cache_salt="t")], 0), "dynamo")
        slots = msgspec.msgpack.decode(payload)[1][0]
        assert len(slots) == 15
        assert slots[8] == [["dynamo-cache-salt:t"]]
        assert slots[14] == {"cache_salt": "t"}
        assert kvwire.decode(payload).events[0].cache_salt == "t"

    @pytest.mark.parametrize("dialect", ["slot9", "slot10", "slot12", *MAPS])
    def test_every_carrier_gives_it_back(self, dialect: str) -> None:
        batch = EventBatch(1.5, [stored(cache_salt="t")], 0)
        assert kvwire.decode(kvwire.encode(batch, dialect)).events[0].cache_salt == "t"

    @pytest.mark.parametrize("dialect", ["slot6-b2", "slot6", "slot7", "slot8-lora"])
    def test_no_carrier_no_silence(self, dialect: str) -> None:
        batch = EventBatch(1.5, [stored(), stored(cache_salt="t")], None)
        with pytest.raises(kvwire.LossyEncodeError) as caught:
            kvwire.encode(batch, dialect)
        assert (caught.value.field, caught.value.event_index, caught.value.tag) == ("cache_salt", 1, "BlockStored")
        assert "slot8" in caught.value.carriers
        assert dialect not in caught.value.carriers
        assert kvwire.decode(kvwire.encode(batch, dialect, on_loss="drop")) == EventBatch(1.5, [stored()] * 2, None)

    def test_an_empty_salt_is_none(self) -> None:
        assert stored(cache_salt="") == stored()
        assert kvwire.decode(kvwire.encode(EventBatch(1.5, [stored(cache_salt="")], 0), "slot7")).events == [stored()]

    def test_two_salts_are_a_fault(self) -> None:
        event: list[Any] = ["BlockStored", [H], None, [1, 2], 2, None, "GPU", None, [["dynamo-cache-salt:a"]]]
        event += [None] * 5 + [{"cache_salt": "b"}]
        with pytest.raises(WireError) as caught:
            kvwire.decode(one(event))
        assert caught.value.code == "conflicting-salt"

    def test_a_told_dialect_never_drops_a_salt(self) -> None:
        payload = one(["BlockStored", [H], None, [1, 2], 2, None, "GPU", {"cache_salt": "t"}])
        for dialect in ("slot6", "slot7", "slot8-lora", "slot12", "dynamo"):
            with pytest.raises(WireError) as caught:
                kvwire.decode(payload, dialect)
            assert caught.value.slot == 7
            assert "that is how slot8" in caught.value.hint
        with pytest.raises(WireError) as caught:
            kvwire.decode(payload, "slot8-lora")
        assert "a decoder that expects lora_name there loses the batch" in str(caught.value)

    def test_a_salt_in_an_unknown_slot_is_never_passed_over(self) -> None:
        event = ["BlockStored", [H], None, [1, 2], 2, None, "GPU", *[None] * 8, {"cache_salt": "t"}]
        with pytest.raises(WireError) as caught:
            kvwire.decode(one(event))
        assert (caught.value.code, caught.value.slot) == ("foreign-salt", 15)

    def test_a_lora_name_where_slot8_is_told(self) -> None:
        payload = one(["BlockStored", [H], None, [1, 2], 2, None, "GPU", "adapter"])
        with pytest.raises(WireError) as caught:
            kvwire.decode(payload, "slot8")
        assert "slot8-lora" in caught.value.hint


class TestLossless:
    @pytest.mark.parametrize("dialect", ["slot7", "slot8", "sglang-map1"])
    def test_lora_name(self, dialect: str) -> None:
        with pytest.raises(kvwire.LossyEncodeError) as caught:
            kvwire.encode(EventBatch(1.5, [stored(lora_name="a")], 0), dialect)
        assert caught.value.field == "lora_name"
        assert {"slot8-lora", "sglang-map2", "vllm-map1"} <= set(caught.value.carriers)

    def test_dp_rank_in_a_batch_of_two(self) -> None:
        with pytest.raises(kvwire.LossyEncodeError) as caught:
            kvwire.encode(EventBatch(1.5, [], 0), "slot6-b2")
        assert (caught.value.field, caught.value.event_index) == ("dp_rank", None)
        assert kvwire.encode(EventBatch(1.5, [], 0), "slot6-b2", on_loss="drop") == pack([1.5, []])

    def test_translate_does_not_lose_what_no_dialect_knows(self) -> None:
        unknown_tag = pack([1.5, [["BlockMoved", 1], ["AllBlocksCleared"]], 0])
        unknown_key = one({"type": "AllBlocksCleared", "why": "reset"})
        unknown_slot = one(["AllBlocksCleared", None, 7])
        fourth_element = pack([1.5, [["AllBlocksCleared"]], 0, "more"])
        other_tags_key = one({"type": "AllBlocksCleared", "medium": "GPU"})
        for payload in (unknown_tag, unknown_key, unknown_slot, fourth_element, other_tags_key):
            with pytest.raises(kvwire.LossyEncodeError):
                kvwire.translate(payload, "slot7")
            assert kvwire.translate(payload, "slot7", on_loss="drop") == one(["AllBlocksCleared"])


class TestLayouts:
    def test_map5_reserves_a_map16_header(self) -> None:
        payload = kvwire.encode(EventBatch(1.5, [stored()], 0), "vllm-map5")
        assert payload[11:14] == b"\xde\x00\x08"
        assert kvwire.encode(EventBatch(1.5, [stored()], 0), "vllm-map4")[11] == 0x88

    @pytest.mark.parametrize("dialect", ARRAYS)
    def test_arrays_are_padded_with_nil(self, dialect: str) -> None:
        payload = kvwire.encode(EventBatch(1.5, [stored(), BlockRemoved([1]), AllBlocksCleared()]), dialect)
        lengths = [len(event) for event in msgspec.msgpack.decode(payload)[1]]
        layout = DIALECTS[dialect].events
        assert lengths == [layout[tag].slots for tag in ("BlockStored", "BlockRemoved", "AllBlocksCleared")]

    @pytest.mark.parametrize("dialect", MAPS)
    def test_maps_write_required_keys_also_as_nil(self, dialect: str) -> None:
        event = msgspec.msgpack.decode(kvwire.encode(EventBatch(1.5, [stored()], 0), dialect))[1][0]
        always = [f.name for f in DIALECTS[dialect].events["BlockStored"].fields if f.always]
        assert list(event) == ["type", *always]

    def test_ts_is_always_a_float64(self) -> None:
        assert kvwire.encode(EventBatch(3, [], 0), "slot7") == b"\x93\xcb\x40\x08\0\0\0\0\0\0\x90\x00"

    def test_own_structs_are_encoded_as_they_are(self) -> None:
        event = wire.Slot7Stored([1], None, [1], 1, None, "GPU")
        assert kvwire.encode(EventBatch(1.5, [event], 0), "slot7") == one(
            ["BlockStored", [1], None, [1], 1, None, "GPU"]
        )

    def test_aliases_and_releases(self) -> None:
        batch = EventBatch(1.5, [stored()], 0)
        assert kvwire.encode(batch, "8-slot") == kvwire.encode(batch, "sglang==0.5.19") == kvwire.encode(batch, "slot8")
        assert kvwire.encode(batch, "vllm-map") == kvwire.encode(batch, "vllm==0.33.0")
        with pytest.raises(kvwire.DialectError, match="did you mean slot7"):
            kvwire.encode(batch, "slt7")
        with pytest.raises(kvwire.DialectError, match="newer than what is registered"):
            kvwire.get_dialect("vllm==99.0")


class TestTolerance:
    def test_mixed_encodings_in_one_batch(self) -> None:
        payload = pack([1.5, [["AllBlocksCleared"], {"type": "BlockRemoved", "block_hashes": [1]}], 0])
        assert kvwire.decode(payload).events == [AllBlocksCleared(), BlockRemoved([1])]

    def test_bin_wrapped_events(self) -> None:
        inner = pack(["BlockStored", [U], 0, [], 0, None, "OBJECT_STORE"])
        assert kvwire.decode(pack([1.5, [inner]])).events == [
            stored(block_hashes=[U], parent_block_hash=0, token_ids=[], block_size=0, medium="OBJECT_STORE")
        ]

    @pytest.mark.parametrize("length", [5, 6, 7, 9, 11, 12])
    def test_missing_tails_are_nil(self, length: int) -> None:
        event = ["BlockStored", [1], None, [1], 1, None, None, None, None, None, None, None][:length]
        assert kvwire.decode(one(event)).events == [stored(block_hashes=[1], token_ids=[1], block_size=1)]

    @pytest.mark.parametrize("length", [1, 2, 3, 4])
    def test_what_cannot_be_nil_cannot_be_missing(self, length: int) -> None:
        with pytest.raises(kvwire.ShapeError) as caught:
            kvwire.decode(one(["BlockStored", [1], None, [1], 1][:length]))
        assert caught.value.code == "missing-slot"
        assert caught.value.slot == {1: 1, 2: 3, 3: 3, 4: 4}[length]

    def test_a_thirteenth_slot_of_another_type_is_an_unknown_extra(self) -> None:
        event = ["BlockStored", [1], None, [1], 1, None, "GPU", None, None, 0, "full_attention", None, 96]
        found = kvwire.decode(one(event)).events[0]
        assert (found.locality, found.group_idx) == (None, 0)

    def test_foreign_placeholders(self) -> None:
        payload = one(
            {
                "type": "BlockStored",
                "block_hashes": [1],
                "parent_block_hash": None,
                "token_ids": None,
                "block_size": None,
                "seq_hashes": [1],
            }
        )
        assert kvwire.decode(payload).events == [stored(block_hashes=[1], token_ids=[], block_size=0)]

    def test_good_siblings_survive(self) -> None:
        payload = pack(
            [1.5, [["BlockRemoved", [1]], ["BlockStored", "x", None, [1], 1], ["Odd"], 5, ["AllBlocksCleared"]], 0]
        )
        with pytest.raises(WireError) as caught:
            kvwire.decode(payload)
        assert (caught.value.event_index, caught.value.tag, caught.value.slot) == (1, "BlockStored", 1)
        batch = kvwire.decode(payload, on_error="collect")
        assert batch.events == [BlockRemoved([1]), AllBlocksCleared()]
        assert [(f.event_index, f.code) for f in batch.faults] == [(1, "wrong-type"), (3, "event-not-array-or-map")]
        assert [(s.event_index, s.event_tag) for s in batch.skipped] == [(2, "Odd")]

    def test_strict_is_exact(self) -> None:
        strict = kvwire.Decoder("slot7", strict=True)
        good = ["BlockStored", [1], None, [1], 1, None, "GPU"]
        assert strict.decode(one(good)).events
        for bad, code in ((good[:6], "missing-slot"), ([*good, None], "extra-slot"), (["Odd"], "unknown-tag")):
            with pytest.raises(WireError) as caught:
                strict.decode(one(bad))
            assert caught.value.code == code
        with pytest.raises(kvwire.UsageError):
            kvwire.Decoder(strict=True)


class TestLazyTokens:
    @pytest.mark.parametrize("dialect", ["slot7", "vllm-map5", "sglang-map2"])
    def test_tokens_on_demand(self, dialect: str) -> None:
        batch = EventBatch(1.5, [stored(token_ids=[5, 6]), BlockRemoved([1])], 0)
        payload = kvwire.encode(batch, dialect)
        lazy = kvwire.Decoder(skip_tokens=True).decode(payload)
        assert kvwire.encode(lazy, dialect) == payload
        assert lazy.events[0].token_ids == [5, 6]
        assert lazy.events[0].token_ids is lazy.events[0].token_ids
        assert lazy == batch

    def test_wrong_tokens_are_a_wire_error_when_asked_for(self) -> None:
        lazy = kvwire.Decoder(skip_tokens=True).decode(one(["BlockStored", [1], None, [1.5], 1, None, "GPU"]))
        assert "token_ids" in repr(lazy.events[0])
        with pytest.raises(WireError):
            _ = lazy.events[0].token_ids


KEY_SAMPLES: dict[str, Any] = {
    "medium": "CPU",
    "group_idx": 3,
    "kv_cache_spec_kind": "mamba",
    "kv_cache_spec_sliding_window": 8,
    "locality": "REMOTE",
    "ownership": "o",
}


@pytest.mark.parametrize("tag", ["BlockRemoved", "AllBlocksCleared"])
@pytest.mark.parametrize("name", KEY_SAMPLES)
def test_a_key_means_the_same_to_the_fast_path_and_the_walk(tag: str, name: str) -> None:
    event: dict[str, Any] = {"type": tag, name: KEY_SAMPLES[name]}
    if tag == "BlockRemoved":
        event["block_hashes"] = [1]
    fast, slow = kvwire.decode(one(event)).events, walk(one(event)).events
    assert fast == slow
    assert getattr(fast[0], name, KEY_SAMPLES[name]) == KEY_SAMPLES[name]


def test_extra_keys_are_nested_four_levels_at_most() -> None:
    def event(levels: int) -> bytes:
        key: Any = "x"
        for _ in range(levels):
            key = [key]
        return one(["BlockStored", [1], None, [1], 1, None, "GPU", None, [[key]]])

    assert kvwire.decode(event(4)).events
    with pytest.raises(WireError) as caught:
        kvwire.decode(event(5))
    assert (caught.value.slot, caught.value.key) == (8, "extra_keys")


class TestUsage:
    @pytest.mark.parametrize("value", [1 << 64, -(1 << 63) - 1])
    def test_integers_beyond_64_bits(self, value: int) -> None:
        with pytest.raises(kvwire.InvalidEventError, match=r"events\[1\]"):
            kvwire.encode(EventBatch(1.5, [AllBlocksCleared(), stored(block_hashes=[value])], 0), "slot7")

    @pytest.mark.parametrize("ts", [float("nan"), float("inf"), "soon", None])
    def test_timestamps(self, ts: Any) -> None:
        with pytest.raises(kvwire.InvalidEventError, match="ts"):
            kvwire.encode(EventBatch(ts, [], 0), "slot7")

    def test_events_that_are_no_list(self) -> None:
        with pytest.raises(kvwire.InvalidEventError, match="list of events"):
            kvwire.encode(EventBatch(1.5, None, 0), "slot7")  # type: ignore[arg-type]

    def test_not_events(self) -> None:
        with pytest.raises(kvwire.InvalidEventError, match=r"events\[0\] is a str"):
            kvwire.encode(EventBatch(1.5, ["BlockStored"], 0), "slot7")
        with pytest.raises(kvwire.InvalidEventError):
            kvwire.encode([1.5, [], 0], "slot7")  # type: ignore[arg-type]

    def test_not_bytes(self) -> None:
        for bad in ("text", None, 5, [1]):
            with pytest.raises(kvwire.UsageError):
                kvwire.decode(bad)  # type: ignore[arg-type]
            with pytest.raises(kvwire.UsageError):
                kvwire.detect(bad)  # type: ignore[arg-type]

    @pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
    def test_any_buffer(self, kind: Any) -> None:
        payload = one(["AllBlocksCleared"])
        assert kvwire.decode(kind(payload)).events == [AllBlocksCleared()]
        assert "slot7" in kvwire.detect(kind(payload))


class TestDetect:
    def test_reasons(self) -> None:
        found = kvwire.detect(one(["BlockStored", [1], None, [1], 1, None, "GPU", {"cache_salt": "t"}]))
        assert found.dialects == ("slot8",)
        assert found.reasons["slot8-lora"].slot == 7
        assert set(found.dialects) | set(found.reasons) == set(DIALECTS)
        assert "map" in str(found.reasons["slot7"])

    @given(st.binary(max_size=64))
    def test_never_raises(self, payload: bytes) -> None:
        found = kvwire.detect(payload)
        assert set(found.dialects) | set(found.reasons) == set(DIALECTS)


def test_errors_and_events_can_be_copied_and_pickled() -> None:
    batch = kvwire.decode(one(["BlockStored", [1], None, [1], 1, None, "GPU", {"cache_salt": "t"}]))
    assert pickle.loads(pickle.dumps(batch)) == batch
    assert copy.deepcopy(batch) == batch
    with pytest.raises(WireError) as caught:
        kvwire.decode(b"")
    again = pickle.loads(pickle.dumps(caught.value))
    assert (type(again), str(again)) == (type(caught.value), str(caught.value))
    with pytest.raises(kvwire.LossyEncodeError) as lossy:
        kvwire.encode(batch, "slot7")
    assert str(pickle.loads(pickle.dumps(lossy.value))) == str(lossy.value)


def test_a_subclass_of_decoder_reads_in_its_own_way() -> None:
    class Ranked(kvwire.Decoder):
        def decode(self, payload: Any, /) -> kvwire.EventBatch:
            batch = super().decode(payload)
            batch.dp_rank = 99
            return batch

    payload = kvwire.encode(kvwire.EventBatch(1.5, [], 0), "slot8")
    assert Ranked().decode(payload).dp_rank == 99
    assert kvwire.Decoder().decode(payload).dp_rank == 0


def test_a_memoryview_that_was_released_is_the_callers_mistake() -> None:
    released = memoryview(b"x")
    released.release()
    with pytest.raises(kvwire.UsageError, match="released"):
        kvwire.decode(released)
