"""What `vector` makes of a decoder's results and an encoder's bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import kvwire
from kvwire import BlockRemoved, BlockStored, EventBatch, UsageError
from kvwire.neutral_json import to_json
from kvwire_conform.consumer import Selection, cases_of
from kvwire_conform.consumer_model import AnswerVerdict, Consumer
from kvwire_conform.pytest_vectors import VectorCase, VectorError


def vector(ident: str, reading: str = "any") -> VectorCase:
    consumer = Consumer(name="", version="", language="", dialects=("slot8",), reading=reading)
    (case,) = cases_of(consumer, Selection(only=(ident,))).chosen
    return VectorCase(case)


def failure(act: Callable[[], None]) -> VectorError:
    with pytest.raises(VectorError) as raised:
        act()
    return raised.value


def good(payload: bytes) -> EventBatch:
    return kvwire.decode(payload, on_error="collect")


SALT = "slot8/salt"


def test_it_is_the_vector() -> None:
    mine = vector(SALT)
    assert (mine.id, mine.dialect, mine.kind, mine.description) == (SALT, "slot8", "valid", "A block of one tenant.")
    assert mine.meaning == to_json(kvwire.decode(mine.payload)) == to_json(mine.batch())
    assert mine.error is None
    assert mine.good_siblings is None
    assert repr(mine) == "<vector slot8/salt, valid>"
    bad = vector("slot8/wrong-type-token-ids-str")
    assert bad.error is not None
    assert (bad.error.event_index, bad.error.slot) == (1, 3)
    assert bad.good_siblings is not None
    assert bad.meaning is None
    with pytest.raises(UsageError, match="invalid and means nothing"):
        bad.batch()


@pytest.mark.parametrize("ident", [SALT, "slot8/batch-mixed", "slot8/hash-int64-min", "slot8/unknown-tag-between"])
def test_a_result_may_have_any_of_these_forms(ident: str) -> None:
    mine = vector(ident)
    batch = good(mine.payload)
    told = to_json(batch)
    forms: list[Any] = [
        batch,
        told,
        {"events": told["events"]},
        batch.events,
        tuple(told["events"]),
        iter(batch.events),
    ]
    for form in forms:
        mine.check(form)
    mine.check_decoder(good)
    mine.check_decoder(lambda payload: iter(good(payload).events))


@pytest.mark.parametrize("result", [None, 7, "events", b"\x93", {"ts": 1.5}, [None], ["BlockStored"], [[1]]])
def test_anything_else_is_a_mistake_of_the_test(result: Any) -> None:
    with pytest.raises(TypeError, match=r"a decoder's result is a kvwire\.EventBatch"):
        vector(SALT).check(result)
    with pytest.raises(TypeError, match=r"a decoder's result is a kvwire\.EventBatch"):
        vector(SALT).check_decoder(lambda payload: result)


def test_ts_and_rank_are_judged_where_they_are_told() -> None:
    mine = vector(SALT)
    events = to_json(good(mine.payload))["events"]
    mine.check({"events": events})
    error = failure(lambda: mine.check({"events": events, "ts": 2.5, "dp_rank": 3}))
    assert [one.where for one in error.judgement.differences] == ["ts", "dp_rank"]
    assert "bytes    0 ts: cb 3f f8 00 00 00 00 00 00  (float 1.5)" in str(error)
    assert "the wrong replica" in str(failure(lambda: mine.check({"events": events, "dp_rank": 3})))


def test_a_field_out_of_its_slot() -> None:
    mine = vector("slot8/stored-full")

    def shifted(payload: bytes) -> EventBatch:
        batch = good(payload)
        for event in batch.events:
            if isinstance(event, BlockStored):
                event.lora_id, event.block_size = event.block_size, 7
        return batch

    error = failure(lambda: mine.check_decoder(shifted))
    assert error.judgement.verdict is AnswerVerdict.WRONG
    told = str(error)
    for line in ("field    events[0].block_size", "got      7", "bytes    events[0], slot 4 block_size: "):
        assert f"\n  {line}" in told
    assert "a request is cut into other blocks than the engine's" in told


def test_places_are_those_of_the_payload() -> None:
    """The second event of the meaning is the third on the wire, behind one of an unknown tag."""
    mine = vector("slot8/unknown-tag-between")
    batch = good(mine.payload)
    assert len(batch.events) == 2
    last = batch.events[-1]
    assert isinstance(last, BlockStored | BlockRemoved)
    last.medium = "DISK"
    told = str(failure(lambda: mine.check(batch)))
    assert "field    events[1].medium" in told
    assert "bytes    events[2], slot " in told


def test_a_refusal() -> None:
    mine = vector("slot8/truncated-last-byte")
    mine.check(ValueError("cut off"))
    mine.check_decoder(kvwire.decode, refuses=kvwire.WireError)
    taken = failure(lambda: mine.check([]))
    assert taken.judgement.verdict is AnswerVerdict.WRONG
    assert "expected a refusal" in str(taken)
    refused = failure(lambda: vector(SALT).check(ValueError("no salt here")))
    assert refused.judgement.verdict is AnswerVerdict.REJECTED
    assert "says     ValueError: no salt here" in str(refused)


def test_an_event_that_costs_its_neighbours() -> None:
    error = failure(lambda: vector("slot8/wrong-type-token-ids-str").check_decoder(kvwire.decode))
    assert error.judgement.verdict is AnswerVerdict.SIBLING_LOST
    assert "cost events[0], events[2], which are read when sent alone" in str(error)
    assert isinstance(error.__cause__, kvwire.WireError)


def test_what_is_no_refusal_is_a_crash() -> None:
    def broken(payload: bytes) -> EventBatch:
        raise KeyError("medium")

    mine = vector("slot8/truncated-last-byte")
    mine.check_decoder(broken)
    error = failure(lambda: mine.check_decoder(broken, refuses=kvwire.WireError))
    assert error.judgement.verdict is AnswerVerdict.CRASHED
    assert "KeyError: 'medium'" in str(error)


@pytest.mark.parametrize(
    "events",
    [
        [{"type": "BlockStored"}],
        [{"type": "Nothing"}],
        [{"block_hashes": []}],
        [BlockStored(["not a hash"], None, [1], 1)],  # type: ignore[list-item]
    ],
)
def test_events_that_are_not_neutral(events: list[Any]) -> None:
    for act in (lambda: vector(SALT).check(events), lambda: vector(SALT).check_decoder(lambda payload: events)):
        error = failure(act)
        assert error.judgement.verdict is AnswerVerdict.GARBLED
        assert "not of the neutral form: events[0]" in str(error)


def test_an_encoder() -> None:
    mine = vector("slot8/salt-two-tenants")
    mine.check_encoder(lambda batch: kvwire.encode(batch, "slot8"))
    mine.check_encoded(bytearray(mine.payload))
    told = str(failure(lambda: mine.check_encoded(mine.payload.replace(b"tenant-a", b"tenant-z"))))
    assert "the encoder wrote other bytes" in told
    assert "field    events[0], slot 7 metadata, at byte " in told
    assert "hint" not in told
    short = failure(lambda: mine.check_encoded(mine.payload[:-1]))
    assert "expected 93" in str(short)
    nothing = failure(lambda: mine.check_encoded(b""))
    assert "got      (the payload is empty)" in str(nothing)
    for ident in ("slot8/truncated-last-byte", "slot8/unknown-tag-between", "any/batch-of-two"):
        with pytest.raises(UsageError, match="not to be written by an encoder"):
            vector(ident).check_encoded(b"")


def test_the_offset_is_that_of_the_first_other_part() -> None:
    mine = vector("slot8/salt")
    at = mine.payload.index(b"\xa3GPU")
    (difference,) = failure(
        lambda: mine.check_encoded(mine.payload[:at] + b"\xa3CPU" + mine.payload[at + 4 :])
    ).judgement.differences
    assert difference.where == f"events[0], slot 6 medium, at byte {at}"
    assert (difference.expected, difference.got) == ("a3 47 50 55  (str 'GPU')", "a3 43 50 55  (str 'CPU')")
