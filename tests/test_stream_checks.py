"""What real engines do, and what they must not, told apart in small streams."""

from __future__ import annotations

from typing import Any

import msgspec

from kvwire import AllBlocksCleared, BlockRemoved, BlockStored, EventBatch, encode
from kvwire_conform.judge import Judge, Told
from kvwire_conform.model import Verdict
from kvwire_conform.recording import Record

VLLM: dict[str, Any] = {"extra_keys": [None], "group_idx": 0, "kv_cache_spec_kind": "full_attention"}


def store(block: int, parent: int | None = None, medium: str = "GPU", **fields: Any) -> BlockStored:
    return BlockStored([block], parent, [1, 2, 3, 4], 4, medium=medium, **{**VLLM, **fields})


def gone(block: int, medium: str = "GPU") -> BlockRemoved:
    return BlockRemoved([block], medium, 0)


def judged(*batches: list[Any] | None, first: int = 0, seqs: list[int] | None = None) -> dict[str, Verdict]:
    """Verdicts on batches from seq ``first`` on; None is a batch that was lost."""
    payloads = [None if events is None else encode(EventBatch(1.5e9, events, 0), "vllm-map4") for events in batches]
    return judged_payloads(*payloads, first=first, seqs=seqs)


def judged_payloads(*payloads: bytes | None, first: int = 0, seqs: list[int] | None = None) -> dict[str, Verdict]:
    judge = Judge(Told(), "engine")
    for number, payload in enumerate(payloads):
        if payload is not None:
            seq = seqs[number] if seqs else first + number
            judge.feed(Record(t=1.5e9, channel="live", frames=[b"", seq.to_bytes(8, "big"), payload]))
    _, results, _ = judge.finish()
    return {result.id: result.verdict for result in results}


def wrong(verdicts: dict[str, Verdict]) -> set[str]:
    return {check for check, verdict in verdicts.items() if verdict in (Verdict.FAIL, Verdict.WARN)}


def test_a_second_copy_may_still_be_a_parent() -> None:
    assert wrong(judged([store(1)], [store(1)], [gone(1)], [store(2, 1)])) == set()
    assert wrong(judged([store(1)], [gone(1)], [store(2, 1)])) == {"parent-known"}


def test_copies_are_removed_as_often_as_stored() -> None:
    assert wrong(judged([store(1), store(1)], [gone(1), gone(1)])) == set()
    assert wrong(judged([store(1), store(1)], [gone(1), gone(1), gone(1)])) == {"removed-was-stored"}


def test_a_clear_in_the_middle_says_nothing_of_host_tiers() -> None:
    verdicts = judged([store(1)], [AllBlocksCleared(), store(2)], [gone(77, "CPU")], first=100)
    assert verdicts["removed-was-stored"] is Verdict.INCONCLUSIVE
    assert wrong(judged([store(1)], [AllBlocksCleared(), store(2)], [gone(77)], first=100)) == {"removed-was-stored"}


def test_a_host_block_survives_two_clears() -> None:
    clears = ([AllBlocksCleared(), store(2)], [AllBlocksCleared(), store(3)])
    verdicts = judged([store(1), store(9, medium="CPU")], *clears, [gone(9, "CPU")])
    assert verdicts["removed-was-stored"] is not Verdict.FAIL
    assert wrong(verdicts) == {"clear-empties"}
    assert verdicts["clear-empties"] is Verdict.WARN


def test_what_a_lost_batch_may_have_stored_is_not_judged() -> None:
    assert wrong(judged([store(1)], [AllBlocksCleared()], None, [store(2, 1)])) == {"seq-step"}


def test_a_restart_whose_beginning_was_lost_is_a_warning() -> None:
    verdicts = judged([store(1)], [store(2)], [store(3)], [store(4)], seqs=[0, 1, 2, 1])
    assert verdicts["seq-restart"] is Verdict.WARN


def test_a_medium_of_any_dialect_that_is_left_open() -> None:
    assert wrong(judged([store(1)], [store(2, medium="CPU")])) == set()
    assert wrong(judged([store(1)], [store(2, medium="cpu")])) == {"medium-vocabulary"}


def test_a_first_batch_of_the_next_release_is_named_rightly() -> None:
    event = msgspec.msgpack.decode(encode(EventBatch(1.5e9, [store(1)], 0), "vllm-map4"))
    event[1][0]["future_key"] = 1
    assert wrong(judged_payloads(msgspec.msgpack.encode(event))) == {"event-fields-known"}
    array = ["BlockStored", [1], None, [1, 2], 2, None, "GPU"]
    unknown = msgspec.msgpack.encode([1.5e9, [array, ["BlockMoved", [1]]], 0])
    assert wrong(judged_payloads(unknown)) == {"event-tag-known"}


def test_block_sizes_that_cannot_be() -> None:
    for size in (-4, 2662439576):
        assert "block-size-constant" in wrong(
            judged([store(1)], [BlockStored([2], None, [], size, medium="GPU", **VLLM)])
        )
    assert wrong(judged([store(1)], [BlockStored([2], None, [], 0, medium="CPU", **VLLM)])) == set()


def test_chunks_of_a_host_tier_have_a_size_of_their_own() -> None:
    chunk = BlockStored([2], None, [1] * 8, 8, medium="CPU", **VLLM)
    assert wrong(judged([store(1)], [chunk])) == set()
