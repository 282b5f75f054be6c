"""What an answer is worth: the meaning itself is exact, and nothing else is."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvwire.neutral_json import to_json
from kvwire_conform import golden
from kvwire_conform.answers import Expectation, Found, expectation_of, judge_answer
from kvwire_conform.consumer_model import AnswerVerdict, Difference
from kvwire_conform.golden import Vector, load
from kvwire_conform.simulator import Simulator
from kvwire_conform.testee_lines import Answer

HASH = "7e3f112233445566"
STORED = {"type": "BlockStored", "block_hashes": [HASH], "token_ids": [1, 2, 3, 4], "block_size": 4}
SALTED = {**STORED, "medium": "GPU", "cache_salt": "tenant-a", "extra_keys": [["dynamo-cache-salt:tenant-a"]]}
REMOVED = {"type": "BlockRemoved", "block_hashes": ["1122334455667788"]}
CLEARED = {"type": "AllBlocksCleared"}


def batch(*events: dict[str, Any], ts: float | None = 1.5, dp_rank: int | None = 0) -> dict[str, Any]:
    return {"ts": ts, "dp_rank": dp_rank, "events": list(events)}


def answer(meaning: Mapping[str, Any]) -> Answer:
    return Answer(**copy.deepcopy(dict(meaning)))


def judged(wanted: dict[str, Any], given_: dict[str, Any], **more: Any) -> Found:
    return judge_answer(Expectation(meaning=wanted, **more), answer(given_))


def places(found: Found) -> list[str]:
    return [one.where for one in found.differences]


# What is right -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reading", ["any", "told", "strict"])
def test_the_meaning_of_every_vector_is_exact(reading: str) -> None:
    for row in golden.list_vectors():
        vector = load(row.id)
        expected = expectation_of(vector, reading)
        if expected.meaning is not None:
            assert judge_answer(expected, answer(expected.meaning)).verdict is AnswerVerdict.EXACT, row.id
        if expected.refusal:
            assert judge_answer(expected, Answer(error="no")).verdict is AnswerVerdict.EXACT, row.id
        assert expected.meaning is not None or expected.refusal, row.id


def same_in_other_words() -> list[tuple[dict[str, Any], dict[str, Any]]]:
    return [
        (batch(SALTED), batch({**SALTED, "of no meaning": 1, "raw": [1, 2]})),
        (batch(STORED), batch({**STORED, "cache_salt": "", "lora_id": None, "parent_block_hash": None})),
        ({**batch({**STORED, "cache_salt": ""})}, batch(STORED)),
        (batch(STORED, ts=1.0), batch(STORED, ts=1)),
        (batch(STORED), batch({**STORED, "medium": "GPU"})),
        (batch(REMOVED), batch({**REMOVED, "medium": "GPU"})),
        (batch(STORED, dp_rank=None), batch(STORED, dp_rank=0)),
        (batch({**STORED, "lora_id": 7}), batch({**STORED, "lora_id": {"int": "7"}})),
        (batch(CLEARED, ts=None), batch(CLEARED, ts=None)),
        (
            batch({**STORED, "extra_keys": [[{"map": [["a", 1], ["b", {"float": "1.0"}]]}]]}),
            batch({**STORED, "extra_keys": [[{"map": [["b", {"float": "1"}], ["a", 1]]}]]}),
        ),
    ]


@pytest.mark.parametrize(("wanted", "got"), same_in_other_words())
def test_other_words_for_the_same(wanted: dict[str, Any], got: dict[str, Any]) -> None:
    assert judged(wanted, got) == Found(verdict=AnswerVerdict.EXACT)


def test_ts_and_dp_rank_are_judged_only_where_they_are_told() -> None:
    expected = Expectation(meaning=batch(STORED, dp_rank=3))
    assert judge_answer(expected, Answer(events=[STORED])).verdict is AnswerVerdict.EXACT
    lost = judge_answer(expected, Answer(events=[STORED], ts=None, dp_rank=None))
    assert (lost.verdict, places(lost)) == (AnswerVerdict.LOSSY, ["ts", "dp_rank"])
    other = judge_answer(expected, Answer(events=[STORED], ts=1.25, dp_rank=0))
    assert (other.verdict, places(other)) == (AnswerVerdict.WRONG, ["ts", "dp_rank"])


# What is lost and what is wrong --------------------------------------------------------------------------------------


def test_a_lost_field_is_named() -> None:
    found = judged(batch(REMOVED, SALTED), batch(REMOVED, {**SALTED, "cache_salt": None}))
    assert found.verdict is AnswerVerdict.LOSSY
    assert found.differences == (Difference(where="events[1].cache_salt", expected='"tenant-a"', got="nothing"),)


def test_one_other_value_among_lost_ones_is_wrong_and_comes_first() -> None:
    found = judged(batch(SALTED), batch({**STORED, "block_size": 16, "medium": "GPU"}))
    assert found.verdict is AnswerVerdict.WRONG
    assert found.differences[0] == Difference(where="events[0].block_size", expected="4", got="16")
    assert set(places(found)[1:]) == {"events[0].cache_salt", "events[0].extra_keys"}


@pytest.mark.parametrize(
    ("wanted", "got", "where", "verdict"),
    [
        ([["a"], None], [None, None], "extra_keys[0]", AnswerVerdict.LOSSY),
        ([["a", "b"]], [["a", None]], "extra_keys[0][1]", AnswerVerdict.LOSSY),
        ([["a", "b"]], [["a"]], "extra_keys[0]", AnswerVerdict.WRONG),
        ([[1]], [[True]], "extra_keys[0][0]", AnswerVerdict.WRONG),
        ([[1]], [[{"float": "1"}]], "extra_keys[0][0]", AnswerVerdict.WRONG),
        ([None], [["a"]], "extra_keys[0]", AnswerVerdict.WRONG),
        (None, [["a"]], "extra_keys", AnswerVerdict.WRONG),
    ],
)
def test_inside_extra_keys(wanted: Any, got: Any, where: str, verdict: AnswerVerdict) -> None:
    found = judged(batch({**STORED, "extra_keys": wanted}), batch({**STORED, "extra_keys": got}))
    assert (found.verdict, places(found)) == (verdict, [f"events[0].{where}"])


def test_a_field_of_another_tag_is_wrong() -> None:
    found = judged(batch(REMOVED), batch({**REMOVED, "cache_salt": "tenant-a"}))
    assert found.differences == (Difference(where="events[0].cache_salt", expected="nothing", got='"tenant-a"'),)


def test_scattered_differences_become_one() -> None:
    found = judged(batch(STORED | {"token_ids": list(range(50))}), batch(STORED | {"token_ids": [0] * 50}))
    assert places(found) == ["events[0].token_ids"]


def test_many_differences_are_cut_and_counted() -> None:
    wanted = [{**STORED, "block_size": size} for size in range(1, 41)]
    found = judged(batch(*wanted), batch(*({**one, "block_size": 99} for one in wanted)))
    assert len(found.differences) == 16
    assert found.note == "and 24 more differences"


# Events that are missing or too many ---------------------------------------------------------------------------------


@pytest.mark.parametrize("gone", range(3))
def test_an_event_that_was_left_out_is_named(gone: int) -> None:
    events: list[dict[str, Any]] = [SALTED, REMOVED, CLEARED]
    found = judged(batch(*events), batch(*events[:gone], *events[gone + 1 :]))
    assert (found.verdict, places(found)) == (AnswerVerdict.LOSSY, [f"events[{gone}]"])


def test_it_is_a_lost_sibling_where_another_event_is_at_fault() -> None:
    found = judged(batch(SALTED, REMOVED), batch(SALTED), faulty=True, culprit="events[1] (bad-tag)")
    assert (found.verdict, places(found)) == (AnswerVerdict.SIBLING_LOST, ["events[1]"])
    assert found.note == "events[1] (bad-tag) cost good neighbours"


def test_one_of_many_like_events_is_left_out_and_another_loses_a_field() -> None:
    events = [{**SALTED, "block_hashes": [f"{number:016x}"]} for number in range(300)]
    got = [dict(event) for event in events]
    del got[200], got[100]["cache_salt"]
    found = judged(batch(*events), batch(*got))
    assert (found.verdict, set(places(found))) == (AnswerVerdict.LOSSY, {"events[100].cache_salt", "events[200]"})


def test_an_event_too_many_is_wrong_and_said_to_be_the_faulty_one() -> None:
    found = judged(batch(REMOVED), batch(REMOVED, STORED), faulty=True, culprit="events[1] (duplicate-key)")
    assert found.verdict is AnswerVerdict.WRONG
    assert places(found) == ["events[1]"]
    assert found.note == "it took what must be refused: events[1] (duplicate-key)"


def test_events_in_another_order_are_wrong() -> None:
    assert judged(batch(STORED, CLEARED), batch(CLEARED, STORED)).verdict is AnswerVerdict.WRONG


# Refusals ------------------------------------------------------------------------------------------------------------


def vectors(kind: str) -> list[Vector]:
    return [load(row.id) for row in golden.list_vectors(kind=kind)]


def test_a_refusal_is_right_only_where_nothing_good_is_lost() -> None:
    refused = Answer(error="no")
    for vector in vectors("invalid"):
        good = bool(vector.good_siblings and vector.good_siblings["events"])
        verdict = judge_answer(expectation_of(vector), refused).verdict
        assert (verdict is AnswerVerdict.REJECTED) is good
        assert judge_answer(expectation_of(vector, "strict"), refused).verdict is AnswerVerdict.EXACT
    for vector in vectors("tolerated"):
        assert judge_answer(expectation_of(vector), refused).verdict is AnswerVerdict.REJECTED
        strict = judge_answer(expectation_of(vector, "strict"), refused).verdict
        assert (strict is AnswerVerdict.REJECTED) is vector.strict


def test_what_must_be_refused_whole_is_not_even_to_be_read_as_nothing() -> None:
    found = judge_answer(expectation_of(load("any/empty-payload")), Answer(events=[]))
    assert found.verdict is AnswerVerdict.WRONG
    assert found.note == "it took what must be refused: the batch (empty)"


def test_unsupported_is_no_refusal() -> None:
    found = judge_answer(expectation_of(load("any/empty-payload")), Answer(unsupported="why"))
    assert found == Found(verdict=AnswerVerdict.UNSUPPORTED, said="why")


@pytest.mark.parametrize(
    ("event", "said"),
    [
        (1, "events[0]: expected an object, got int 1"),
        ({}, "events[0].type: expected BlockStored"),
        ({"type": "BlockMoved"}, "events[0].type: expected BlockStored"),
        ({**REMOVED, "block_hashes": None}, "events[0]: has no block_hashes"),
        ({**REMOVED, "block_hashes": [1]}, "events[0].block_hashes[0]: expected a block hash"),
        ({**REMOVED, "block_hashes": [HASH.upper()]}, "events[0].block_hashes[0]: expected a block hash"),
        ({"type": "BlockStored", "block_hashes": [], "block_size": 4}, "events[0]: has no token_ids"),
        ({**STORED, "block_size": 4.0}, "events[0].block_size: expected an integer"),
        ({**STORED, "extra_keys": [[{"bytes": "0"}]]}, "events[0].extra_keys[0][0]: expected"),
    ],
)
def test_what_is_not_neutral_is_garbled_with_its_path(event: Any, said: str) -> None:
    found = judge_answer(Expectation(meaning=batch()), Answer(events=[event]))
    assert found.verdict is AnswerVerdict.GARBLED
    assert found.said.startswith(f"not of the neutral form: {said}")


@pytest.mark.parametrize("more", [{"ts": "1"}, {"ts": True}, {"ts": 10**400}, {"dp_rank": "0"}, {"dp_rank": 1.0}])
def test_a_ts_or_rank_of_another_type_is_garbled(more: dict[str, Any]) -> None:
    found = judge_answer(Expectation(meaning=batch()), Answer(events=[], **more))
    assert found.verdict is AnswerVerdict.GARBLED


# Any change at all ---------------------------------------------------------------------------------------------------

SIMULATED = [
    to_json(one) for dialect in ("slot8", "dynamo", "vllm-map5") for one in Simulator(dialect, 5, dp_rank=1).batches(12)
]


@st.composite
def changed(draw: st.DrawFn) -> tuple[dict[str, Any], dict[str, Any]]:
    """A meaning, and the same with one change somewhere."""
    wanted = draw(st.sampled_from(SIMULATED))
    got = copy.deepcopy(wanted)
    events = got["events"]
    how = draw(st.sampled_from(("field", "field", "field", "batch", "drop", "double", "swap")))
    at = draw(st.integers(0, len(events) - 1))
    if how == "batch":
        name = draw(st.sampled_from(("ts", "dp_rank")))
        got[name] = draw(st.sampled_from((None, 77)))
    elif how == "drop":
        del events[at]
    elif how == "double":
        events.insert(at, copy.deepcopy(events[at]))
    elif how == "swap":
        events[at], events[at - 1] = events[at - 1], events[at]
    else:
        change(draw, events[at])
    return wanted, got


def change(draw: st.DrawFn, event: dict[str, Any]) -> None:
    fields = [name for name in event if name != "type"]
    if not fields:
        event["ownership"] = "other"
        return
    name = draw(st.sampled_from(fields))
    value = event[name]
    if isinstance(value, list) and value and draw(st.booleans()):
        spot = draw(st.integers(0, len(value) - 1))
        if draw(st.booleans()):
            del value[spot]
        else:
            value[spot] = changed_value(name, value[spot])
    elif name in ("block_hashes", "token_ids", "block_size"):
        event[name] = [] if isinstance(value, list) else value + 1
    elif draw(st.booleans()):
        del event[name]
    elif isinstance(value, list):
        value.append([1])
    else:
        event[name] = changed_value(name, value)


def changed_value(name: str, value: Any) -> Any:
    if name in ("block_hashes", "parent_block_hash"):
        return f"{int(value, 16) ^ 1:016x}" if not value.startswith("bytes:") else value + "00"
    if isinstance(value, int):
        return value + 1
    if isinstance(value, str):
        return value + "x"
    if isinstance(value, list):
        return [*value, 1]
    return [7]


@given(changed())
def test_any_change_is_not_exact(pair: tuple[dict[str, Any], dict[str, Any]]) -> None:
    wanted, got = pair
    found = judged(wanted, got)
    same = json.dumps(wanted) == json.dumps(got)
    assert (found.verdict is AnswerVerdict.EXACT) is same
    assert bool(found.differences) is not same
    assert judged(wanted, wanted).verdict is AnswerVerdict.EXACT
    lost = all(one.got == "nothing" for one in found.differences)
    assert same or (found.verdict is AnswerVerdict.LOSSY) is lost


def test_a_medium_on_an_event_that_has_none_is_not_the_medium_that_nil_means() -> None:
    """``[AllBlocksCleared, "GPU"]`` clears everything; a consumer that narrows it to the GPU keeps blocks that are gone."""
    found = judged(batch(CLEARED), batch({**CLEARED, "medium": "GPU"}))
    assert found.verdict is AnswerVerdict.WRONG and places(found) == ["events[0].medium"]
    assert judged(batch(REMOVED), batch({**REMOVED, "medium": "GPU"})).verdict is AnswerVerdict.EXACT


@pytest.mark.parametrize("key", [{"map": [["k", "other"], ["k", 1]]}, {"float": " 1.5"}, {"float": "1_0.5"}])
def test_a_value_that_two_readers_would_take_for_two_is_no_answer(key: dict[str, Any]) -> None:
    stored = {**STORED, "extra_keys": [[key]]}
    assert judged(batch(STORED), batch(stored)).verdict is AnswerVerdict.GARBLED
