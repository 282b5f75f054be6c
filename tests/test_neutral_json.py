"""The neutral JSON form: everything decode gives goes there and back, through a JSON text."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kvwire
from kvwire import AllBlocksCleared, BlockRemoved, BlockStored, EventBatch, InvalidEventError
from kvwire._resources import spec_dir
from kvwire.neutral_json import event_from_json, event_to_json, from_json, hash_form, to_json
from tests.strategies import batches, names

wide_keys: st.SearchStrategy[Any] = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(1 << 63), (1 << 64) - 1),
        st.floats(allow_nan=False),
        names,
        st.binary(max_size=8),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.one_of(names, st.integers(-9, 9)), inner, max_size=3)
    ),
    max_leaves=8,
)


def there_and_back(batch: EventBatch, *, signed: bool = False) -> EventBatch:
    return from_json(json.loads(json.dumps(to_json(batch), allow_nan=False)), signed=signed)


@given(batches(), st.booleans())
def test_a_batch_goes_there_and_back(batch: EventBatch, signed: bool) -> None:
    again = there_and_back(batch, signed=signed)
    assert again == batch
    assert to_json(again) == to_json(batch)
    for event in again.events:
        for value in getattr(event, "block_hashes", ()):
            assert isinstance(value, bytes) or (value < 1 << 63 if signed else value >= 0)


@given(batches())
def test_what_decode_gives_goes_there_and_back(batch: EventBatch) -> None:
    decoded = kvwire.decode(kvwire.encode(batch, "vllm-map5", on_loss="drop"))
    assert there_and_back(decoded) == decoded


@given(st.lists(st.one_of(st.none(), st.lists(wide_keys, max_size=3)), max_size=3))
def test_extra_keys_of_any_kind_go_there_and_back(keys: list[Any]) -> None:
    batch = EventBatch(1.5, [BlockStored([1], None, [2], 1, extra_keys=keys)], 0)
    assert there_and_back(batch) == batch
    payload = kvwire.encode(batch, "slot9")
    decoded = kvwire.decode(payload)
    assert kvwire.encode(there_and_back(decoded), "slot9") == payload


@given(batches())
def test_it_is_what_its_schema_says(batch: EventBatch) -> None:
    pytest.importorskip("jsonschema")
    from jsonschema import Draft202012Validator

    schema = json.loads((spec_dir() / "schema" / "neutral.schema.json").read_text(encoding="utf-8"))
    found = json.loads(json.dumps(to_json(batch)))
    assert list(Draft202012Validator(schema).iter_errors(found)) == []


def test_the_form() -> None:
    stored = BlockStored(
        block_hashes=[0x7E3F112233445566, -1],
        parent_block_hash=b"\x00\xff",
        token_ids=[1, (2, 3), "<image>", 1 << 53, (1 << 53) - 1],
        block_size=4,
        extra_keys=[None, ["a", ["mm", -3], b"\x01\x02", None, 1.5, True, {"k": 1}]],
        cache_salt="",
    )
    batch = EventBatch(1.5, [stored, BlockRemoved([(1 << 64) - 1], "GPU"), AllBlocksCleared()], 1 << 60)
    assert to_json(batch) == {
        "ts": 1.5,
        "dp_rank": {"int": "1152921504606846976"},
        "events": [
            {
                "type": "BlockStored",
                "block_hashes": ["7e3f112233445566", "ffffffffffffffff"],
                "parent_block_hash": "bytes:00ff",
                "token_ids": [1, [2, 3], "<image>", {"int": "9007199254740992"}, 9007199254740991],
                "block_size": 4,
                "extra_keys": [
                    None,
                    ["a", ["mm", -3], {"bytes": "0102"}, None, {"float": "1.5"}, True, {"map": [["k", 1]]}],
                ],
                "cache_salt": "",
            },
            {"type": "BlockRemoved", "block_hashes": ["ffffffffffffffff"], "medium": "GPU"},
            {"type": "AllBlocksCleared"},
        ],
    }


def test_both_signs_of_a_hash_look_alike_and_the_form_tells_them_apart() -> None:
    signed, unsigned = EventBatch(1.5, [BlockRemoved([-1])]), EventBatch(1.5, [BlockRemoved([(1 << 64) - 1])])
    assert to_json(signed) == to_json(unsigned)
    assert (hash_form(signed), hash_form(unsigned)) == ("signed", "unsigned")
    assert from_json(to_json(signed), signed=True).events[0].block_hashes == [-1]
    assert from_json(to_json(signed)).events[0].block_hashes == [(1 << 64) - 1]
    assert hash_form(EventBatch(1.5, [BlockRemoved([b"d"]), BlockStored([b"e"], None, [], 0)])) == "bytes"
    assert hash_form(EventBatch(1.5, [BlockRemoved([1]), AllBlocksCleared()])) is None
    assert hash_form(EventBatch(1.5, [BlockRemoved([-1, b"d"])])) is None
    assert hash_form(EventBatch(1.5, [BlockStored([1], -5, [], 0)])) == "signed"


def test_a_timestamp_that_could_not_be_read_is_null() -> None:
    batch = kvwire.decode(bytes.fromhex("93c09191b0") + b"AllBlocksCleared" + b"\x00", on_error="collect")
    assert math.isnan(batch.ts)
    found = to_json(batch)
    assert found == {"ts": None, "dp_rank": 0, "events": [{"type": "AllBlocksCleared"}]}
    assert math.isnan(from_json(found).ts)


def stored(**fields: Any) -> dict[str, Any]:
    return {"type": "BlockStored", "block_hashes": [], "token_ids": [], "block_size": 0, **fields}


WRONG: list[tuple[Any, str]] = [
    (None, "the batch"),
    ([], "the batch"),
    ({"ts": 1.5, "events": []}, "the batch: has no dp_rank"),
    ({"ts": 1.5, "dp_rank": 0, "events": [], "more": 1}, "unknown field 'more'"),
    ({"ts": "1.5", "dp_rank": 0, "events": []}, "ts: expected a finite number"),
    ({"ts": True, "dp_rank": 0, "events": []}, "ts: expected a finite number"),
    ({"ts": math.inf, "dp_rank": 0, "events": []}, "ts: expected a finite number"),
    ({"ts": 10**400, "dp_rank": 0, "events": []}, "ts: expected a finite number"),
    ({"ts": 1.5, "dp_rank": 0.0, "events": []}, "dp_rank: expected an integer"),
    ({"ts": 1.5, "dp_rank": 0, "events": {}}, "events: expected an array"),
    ({"ts": 1.5, "dp_rank": 0, "events": [{}]}, "events[0].type: expected BlockStored"),
    ({"ts": 1.5, "dp_rank": 0, "events": [{"type": []}]}, "events[0].type: expected BlockStored"),
    ({"ts": 1.5, "dp_rank": 0, "events": [3]}, "events[0]: expected an object"),
    ({"ts": 1.5, "dp_rank": 0, "events": [{"type": "BlockStored"}]}, "events[0]: has no block_hashes"),
]
WRONG_FIELDS: list[tuple[dict[str, Any], str]] = [
    ({"block_hashes": [1]}, "block_hashes[0]: expected a block hash"),
    ({"block_hashes": ["7E3F112233445566"]}, "block_hashes[0]: expected a block hash"),
    ({"block_hashes": ["7e3f11223344556"]}, "block_hashes[0]: expected a block hash"),
    ({"block_hashes": ["7e3f112233445566\n"]}, "block_hashes[0]: expected a block hash"),
    ({"block_hashes": ["bytes:0"]}, "block_hashes[0]: expected a block hash"),
    ({"block_hashes": "7e3f112233445566"}, "block_hashes: expected an array"),
    ({"parent_block_hash": None}, "parent_block_hash: expected a block hash"),
    ({"token_ids": [[1]]}, "token_ids[0]: expected a pair"),
    ({"token_ids": [0, [1, "2"]]}, "token_ids[1]: expected an integer"),
    ({"token_ids": [1.0]}, "token_ids[0]: expected an integer"),
    ({"token_ids": [{"int": "1e3"}]}, "token_ids[0]: expected an integer"),
    ({"token_ids": [{"int": str(1 << 64)}]}, "token_ids[0]: expected an integer"),
    ({"token_ids": [-(1 << 63) - 1]}, "token_ids[0]: expected an integer"),
    ({"block_size": None}, "block_size: expected an integer"),
    ({"block_size": True}, "block_size: expected an integer"),
    ({"medium": 1}, "medium: expected a string"),
    ({"extra_keys": [["a", {"hex": "00"}]]}, "extra_keys[0][1]: expected a string"),
    ({"extra_keys": [[{"bytes": "0"}]]}, "extra_keys[0][0]: expected a string"),
    ({"extra_keys": [[{"float": "much"}]]}, "extra_keys[0][0]: expected a float"),
    ({"extra_keys": [[{"map": [[1]]}]]}, "extra_keys[0][0]: expected a pair"),
    ({"extra_keys": [[{"map": [[{"map": []}, 1]]}]]}, "extra_keys[0][0]: expected a key"),
    ({"extra_keys": ["a"]}, "extra_keys[0]: expected an array"),
    ({"lookahead_token_ids": [[None]]}, "lookahead_token_ids[0][0]: expected an integer"),
    ({"tokens": []}, "has an unknown field 'tokens'"),
]


@pytest.mark.parametrize(("data", "words"), WRONG, ids=range(len(WRONG)))
def test_what_is_not_of_the_form_is_named(data: Any, words: str) -> None:
    with pytest.raises(InvalidEventError) as caught:
        from_json(data)
    assert words in str(caught.value)


@pytest.mark.parametrize(("fields", "words"), WRONG_FIELDS, ids=range(len(WRONG_FIELDS)))
def test_a_field_that_is_not_of_the_form_is_named_with_its_path(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidEventError) as caught:
        from_json({"ts": 1.5, "dp_rank": 0, "events": [stored(), stored(**fields)]})
    assert "events[1]" in str(caught.value)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("batch", "words"),
    [
        ("no batch", "expected an EventBatch"),
        (EventBatch(math.inf, []), "ts: expected a finite number"),
        (EventBatch(1.5, [], "0"), "dp_rank: expected an integer"),  # type: ignore[arg-type]
        (EventBatch(1.5, [], 1 << 64), "dp_rank: expected an integer of 64 bits"),
        (EventBatch(1.5, [object()]), "events[0]: expected a neutral event"),
        (EventBatch(1.5, [BlockRemoved(["a"])]), "events[0].block_hashes[0]: expected a block hash"),  # type: ignore[list-item]
        (EventBatch(1.5, [BlockRemoved([1 << 64])]), "events[0].block_hashes[0]: expected a block hash"),
        (EventBatch(1.5, [BlockRemoved(5)]), "events[0].block_hashes: expected an array"),  # type: ignore[arg-type]
        (EventBatch(1.5, [BlockStored([1], None, [(1, 2, 3)], 1)]), "token_ids[0]: expected a pair"),
        (EventBatch(1.5, [BlockStored([1], None, [], 1, extra_keys=[[object()]])]), "extra_keys[0][0]: expected"),
    ],
    ids=range(10),
)
def test_what_has_no_json_form_is_named(batch: Any, words: str) -> None:
    with pytest.raises(InvalidEventError) as caught:
        to_json(batch)
    assert words in str(caught.value)


def test_extra_keys_nested_without_end_are_refused() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(InvalidEventError, match="at most 64 levels"):
        event_to_json(BlockStored([1], None, [], 1, extra_keys=[deep]))
    with pytest.raises(InvalidEventError, match="at most 64 levels"):
        event_from_json(stored(extra_keys=[deep]))
    while deep:
        deep = deep.pop()


def test_one_event() -> None:
    event = BlockRemoved([-5], "GPU")
    assert event_to_json(event) == {"type": "BlockRemoved", "block_hashes": ["fffffffffffffffb"], "medium": "GPU"}
    assert event_from_json(event_to_json(event), signed=True).block_hashes == [-5]
    with pytest.raises(InvalidEventError, match=r"^mine\.medium: "):
        event_from_json({"type": "BlockRemoved", "block_hashes": [], "medium": 3}, path="mine")
