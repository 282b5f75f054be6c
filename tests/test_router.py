"""What a router has to hold, and the verdict on what it held: the parts that need no router."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvwire import AllBlocksCleared, BlockRemoved, BlockStored, EventBatch
from kvwire.errors import UsageError
from kvwire.neutral_json import from_json, to_json
from kvwire_conform.answers import Found
from kvwire_conform.consumer import Known
from kvwire_conform.consumer_model import AnswerVerdict, Behaviour, ConsumerReport
from kvwire_conform.golden import list_vectors, load
from kvwire_conform.model import Verdict
from kvwire_conform.routers.behaviours import BEHAVIOURS
from kvwire_conform.routers.compare import judge_state, without_good_batch
from kvwire_conform.routers.http import Held, IndexerClient, held_of
from kvwire_conform.routers.known import apply_known
from kvwire_conform.routers.plan import MARKER, Plan, good_batch, hash64, plan_of
from kvwire_conform.routers.process import LogLine, parse_log
from kvwire_conform.routers.tokens import readings_of

pytest.importorskip("xxhash")
from kvwire.hashing.dynamo import tokens_hashes

TIERS = {
    None: "device",
    "GPU": "device",
    "CPU": "host_pinned",
    "CPU_PINNED": "host_pinned",
    "DISK": "disk",
    "EXTERNAL": "external",
}
TENANT_A, PLAIN = 5738685477468498325, 14643705804678351452
"""The tokens hashes of 1 2 3 4 that Dynamo's indexer showed, with salt tenant-a and without."""


class Perfect:
    """A router that does all that a batch says, block by block."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.state: dict[tuple[int, str, int], Held] = {}

    def apply(self, batch: EventBatch, *, drop_salt: bool = False) -> None:
        rank = batch.dp_rank or 0
        for event in batch.events:
            if isinstance(event, AllBlocksCleared):
                self.state = {key: held for key, held in self.state.items() if key[0] != rank}
            elif isinstance(event, BlockRemoved):
                for value in event.block_hashes:
                    self.state.pop((rank, TIERS[event.medium], hash64(value)), None)
            else:
                self._store(rank, event, drop_salt)

    def held(self) -> list[Held]:
        return list(self.state.values())

    def _store(self, rank: int, event: BlockStored, drop_salt: bool) -> None:
        parent = None if event.parent_block_hash is None else hash64(event.parent_block_hash)
        own = tokens_hashes(
            event.token_ids,
            event.block_size,
            lora_name=event.lora_name,
            cache_namespace=None if drop_salt else event.cache_salt,
        )
        for value, tokens_hash in zip(event.block_hashes, own, strict=True):
            key = (rank, TIERS[event.medium], hash64(value))
            self.state[key] = Held(rank, key[1], key[2], tokens_hash, parent)
            parent = key[2]


def run(batch: EventBatch, plan: Plan | None = None, **how: Any) -> tuple[Plan, list[Held], list[Held]]:
    plan = plan_of(batch) if plan is None else plan
    router = Perfect(plan.block_size)
    for prepared in plan.prepare:
        router.apply(prepared)
    before = router.held()
    router.apply(batch, **how)
    return plan, before, router.held()


def judged(batch: EventBatch, before: Sequence[Held], after: Sequence[Held], **how: Any) -> Found:
    return judge_state(plan_of(batch), before, after, events=to_json(batch)["events"], **how)


def stored(*hashes: int, parent: int | None = None, **fields: Any) -> BlockStored:
    tokens = [100 * value + offset for value in hashes for offset in range(4)]
    return BlockStored(list(hashes), parent, tokens, 4, **{"medium": "GPU", **fields})


def batch_of(*events: Any, dp_rank: int | None = 0) -> EventBatch:
    return EventBatch(1.5, list(events), dp_rank)


# A batch and the states that it may leave ---------------------------------------------------------------------------------

hashes = st.integers(1, 12)
media = st.sampled_from(list(TIERS))


@st.composite
def stores(draw: st.DrawFn) -> BlockStored:
    own = draw(st.lists(hashes, min_size=1, max_size=3, unique=True))
    parent = draw(st.none() | hashes.filter(lambda value: value not in own))
    salt = draw(st.none() | st.sampled_from(["tenant-a", "tenant-b"]))
    lora = draw(st.none() | st.just("adapter"))
    return stored(*own, parent=parent, medium=draw(media), cache_salt=salt, lora_name=lora)


removals = st.builds(BlockRemoved, st.lists(hashes, min_size=1, max_size=3, unique=True), medium=media)
batches = st.builds(
    EventBatch,
    st.just(1.5),
    st.lists(stores() | removals | st.builds(AllBlocksCleared), max_size=5),
    st.none() | st.integers(0, 2),
)


def unsalted_children(batch: EventBatch) -> bool:
    """Whether no block inherits a salt: the perfect router of this test does not know how."""
    return all(
        event.parent_block_hash is None or event.cache_salt is not None
        for event in batch.events
        if isinstance(event, BlockStored)
    )


@settings(max_examples=300, deadline=None)
@given(batches.filter(unsalted_children))
def test_a_router_that_does_all_is_never_blamed(batch: EventBatch) -> None:
    _, before, after = run(batch)
    found = judged(batch, before, after, refused=False)
    assert found.verdict in (AnswerVerdict.EXACT, AnswerVerdict.UNSUPPORTED), found


@settings(max_examples=200, deadline=None)
@given(batches.filter(unsalted_children), st.randoms(use_true_random=False))
def test_a_block_that_is_missing_is_named(batch: EventBatch, source: random.Random) -> None:
    plan, before, after = run(batch)
    wants = [want for want in plan.wants if want.event is not None and not want.unjudged and not want.twins]
    if not wants:
        return
    want = source.choice(wants)
    left = [held for held in after if (held.block_hash, held.dp_rank) != (want.block_hash, want.dp_rank)]
    found = judged(batch, before, left, refused=False)
    assert found.verdict in (AnswerVerdict.LOSSY, AnswerVerdict.WRONG)
    assert any(one.where.startswith(f"events[{want.event}]") for one in found.differences)


@settings(max_examples=200, deadline=None)
@given(batches.filter(unsalted_children), st.randoms(use_true_random=False))
def test_a_block_of_other_content_is_wrong(batch: EventBatch, source: random.Random) -> None:
    _, before, after = run(batch)
    fresh = [held for held in after if held not in before]
    if not fresh:
        return
    victim = source.choice(fresh)
    changed = victim._replace(tokens_hash=victim.tokens_hash ^ 1)
    found = judged(batch, before, [changed if held == victim else held for held in after], refused=False)
    want = next(want for want in plan_of(batch).wants if want.block_hash == victim.block_hash)
    if want.readings is not None:
        assert found.verdict is AnswerVerdict.WRONG
        assert any(one.where.endswith(".token_ids") for one in found.differences)


@settings(max_examples=200, deadline=None)
@given(batches.filter(unsalted_children))
def test_a_batch_without_a_trace_is_rejected(batch: EventBatch) -> None:
    plan, before, _ = run(batch)
    found = judged(batch, before, before)
    assert (found.verdict is AnswerVerdict.REJECTED) == plan.visible


@settings(max_examples=100, deadline=None)
@given(batches.filter(unsalted_children))
def test_a_block_that_nobody_stored_is_wrong(batch: EventBatch) -> None:
    _, before, after = run(batch)
    found = judged(batch, before, [*after, Held(0, "device", 999, 1, None)], refused=False)
    assert found.verdict is AnswerVerdict.WRONG


def test_whatever_is_prepared_is_read_by_every_release() -> None:
    for row in list_vectors(kind="valid"):
        plan = plan_of(from_json(load(row.id).meaning))
        for batch in plan.prepare:
            assert all(event.block_size == plan.block_size and event.cache_salt is None for event in batch.events)
            assert all(MARKER not in event.block_hashes for event in batch.events)


# One field each -----------------------------------------------------------------------------------------------------------


def test_a_salt_that_is_dropped_is_lossy() -> None:
    batch = batch_of(stored(1, cache_salt="tenant-a"), stored(2))
    _, before, after = run(batch, drop_salt=True)
    found = judged(batch, before, after)
    assert found.verdict is AnswerVerdict.LOSSY
    assert [(one.where, one.expected, one.got) for one in found.differences] == [
        ("events[0].cache_salt", '"tenant-a"', "nothing")
    ]


def test_a_salt_is_inherited_from_the_parent() -> None:
    batch = batch_of(stored(1, cache_salt="tenant-a"), stored(2, parent=1))
    child = next(want for want in plan_of(batch).wants if want.block_hash == 2)
    salted, plain = ({*tokens_hashes(range(200, 204), 4, cache_namespace=salt)} for salt in ("tenant-a", None))
    assert child.readings == {salted.pop(): (), plain.pop(): ("cache_salt",)}


def test_the_tokens_hash_is_the_one_that_dynamo_shows() -> None:
    event = BlockStored([1], None, [1, 2, 3, 4], 4, cache_salt="tenant-a")
    assert readings_of(event, [1, 2, 3, 4], "tenant-a") == {TENANT_A: (), PLAIN: ("cache_salt",)}


@pytest.mark.parametrize("token", [-1, 1 << 32, "text"])
def test_tokens_without_a_hash_have_no_reading(token: Any) -> None:
    assert readings_of(BlockStored([1], None, [token], 1), [token], None) is None


def test_a_lora_name_that_is_dropped_is_lossy() -> None:
    batch = batch_of(stored(1, lora_name="adapter"))
    plan, before, after = run(batch)
    (plain,) = tokens_hashes([100, 101, 102, 103], 4)
    found = judge_state(plan, before, [after[0]._replace(tokens_hash=plain)], events=to_json(batch)["events"])
    assert [one.where for one in found.differences] == ["events[0].lora_name"]


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"tier": "disk"}, "events[0].medium"),
        ({"dp_rank": 1}, "dp_rank"),
        ({"parent": 77}, "events[0].parent_block_hash"),
        ({"tokens_hash": 77}, "events[0].token_ids"),
    ],
)
def test_another_value_is_wrong(change: dict[str, Any], where: str) -> None:
    batch = batch_of(stored(1))
    plan, before, after = run(batch)
    found = judge_state(plan, before, [after[0]._replace(**change)])
    assert (found.verdict, [one.where for one in found.differences]) == (AnswerVerdict.WRONG, [where])


def test_a_parent_that_is_lost_is_lossy() -> None:
    batch = batch_of(stored(1, parent=9))
    plan, before, after = run(batch)
    lost = [held._replace(parent=None) for held in after]
    assert judge_state(plan, before, lost).verdict is AnswerVerdict.LOSSY


def test_a_removal_that_is_passed_over_is_lossy() -> None:
    batch = batch_of(BlockRemoved([1], medium="GPU"), stored(2))
    _, before, after = run(batch)
    found = judged(batch, before, [*after, *before])
    assert found.verdict is AnswerVerdict.LOSSY
    assert [one.where for one in found.differences] == ["events[0]"]


def test_a_clear_that_empties_another_rank_is_wrong() -> None:
    batch = batch_of(AllBlocksCleared())
    plan, before, after = run(batch)
    assert {held.dp_rank for held in before} == {0, 1}
    assert judge_state(plan, before, after).verdict is AnswerVerdict.EXACT
    found = judge_state(plan, before, [])
    assert found.verdict is AnswerVerdict.WRONG
    assert "DP rank 1" in found.differences[0].expected


def test_blocks_below_a_removed_one_stay() -> None:
    batch = batch_of(stored(1, 2), BlockRemoved([1], medium="GPU"))
    plan, before, after = run(batch)
    assert [want.block_hash for want in plan.wants] == [2]
    assert judge_state(plan, before, after).verdict is AnswerVerdict.EXACT
    assert "below" in judge_state(plan, before, [], refused=False).note


def test_a_good_sibling_that_is_missing_is_a_lost_sibling() -> None:
    batch = batch_of(stored(1), stored(2))
    plan, before, after = run(batch)
    whole = judge_state(plan, before, before, faulty=True, culprit="events[2] (tag X)", refused=True)
    assert (whole.verdict, whole.note) == (AnswerVerdict.SIBLING_LOST, "events[2] (tag X) cost the whole batch")
    one = judge_state(plan, before, after[:1], faulty=True)
    assert one.verdict is AnswerVerdict.SIBLING_LOST
    assert judge_state(plan, before, after, faulty=True).verdict is AnswerVerdict.EXACT


# What cannot be judged ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        (stored(1, locality="REMOTE"), "locality REMOTE"),
        (stored(1, group_idx=3), "group_idx 3"),
        (stored(1, group_idx=0, kv_cache_spec_kind="mamba"), "kv_cache_spec_kind mamba"),
        (stored(1, ownership="tier-1"), "ownership 'tier-1'"),
        (stored(1, medium="HBM"), "medium 'HBM'"),
        (BlockStored([1], None, [], 0), "block_size 0"),
        (BlockStored([1], None, [], 4), "no tokens"),
        (BlockStored([1], None, [1, 2, 3], 4), "do not fill a block"),
        (BlockStored([1], None, list(range(16)), 4), "fewer hashes than blocks"),
    ],
)
def test_what_the_router_may_leave_out_is_no_pass_when_it_is_left_out(event: BlockStored, reason: str) -> None:
    batch = batch_of(event)
    plan = plan_of(batch)
    found = judge_state(plan, [], [], refused=False)
    assert found.verdict is AnswerVerdict.UNSUPPORTED
    assert reason in found.note


def test_what_the_router_may_leave_out_is_judged_when_it_is_there() -> None:
    batch = batch_of(stored(1, group_idx=3))
    plan, before, after = run(batch)
    assert judge_state(plan, before, after).verdict is AnswerVerdict.EXACT
    assert judge_state(plan, before, [after[0]._replace(tokens_hash=7)]).verdict is AnswerVerdict.WRONG


def test_a_block_size_unlike_the_registered_one_is_not_judged() -> None:
    other = BlockStored([2], None, list(range(8)), 8, medium="GPU")
    plan = plan_of(batch_of(stored(1), other))
    assert (plan.block_size, [index for index, _ in plan.unjudged]) == (4, [1])


def test_nothing_to_see_is_no_pass() -> None:
    plan = plan_of(batch_of())
    assert judge_state(plan, [], [], refused=False).verdict is AnswerVerdict.UNSUPPORTED
    assert judge_state(plan, [], [], refused=True).verdict is AnswerVerdict.REJECTED


def test_a_removal_of_what_the_router_never_kept_is_no_pass() -> None:
    plan = plan_of(batch_of(BlockRemoved([1], medium="GPU")))
    assert judge_state(plan, [], [], refused=False).verdict is AnswerVerdict.UNSUPPORTED


def test_events_that_hide_each_other_are_to_be_sent_alone() -> None:
    assert plan_of(batch_of(stored(1), BlockRemoved([1], medium="GPU"))).hidden == (0, 1)
    twins = batch_of(BlockStored([1], None, [1] * 4, 4), stored(3), BlockStored([2], None, [1] * 4, 4))
    plan, before, after = run(twins)
    assert plan.hidden == (0, 2)
    one_kept = [held for held in after if held.block_hash != 2]
    assert judge_state(plan, before, one_kept).verdict is AnswerVerdict.EXACT
    none_kept = [held for held in after if held.block_hash == 3]
    assert judge_state(plan, before, none_kept).verdict is AnswerVerdict.LOSSY
    by_key = [
        BlockStored([number], None, [1] * 4, 4, extra_keys=[[key]]) for number, key in ((1, "image-a"), (2, "image-b"))
    ]
    assert plan_of(batch_of(*by_key)).hidden == ()


# The router's own words and answers ---------------------------------------------------------------------------------------


def test_a_dump_is_read_block_by_block() -> None:
    stored_event = {
        "parent_hash": 5,
        "blocks": [{"block_hash": 1, "tokens_hash": 11}, {"block_hash": -1, "tokens_hash": 12}],
    }
    entry = {"worker_id": 7, "storage_tier": "device", "event": {"dp_rank": 2, "data": {"stored": stored_event}}}
    foreign = {**entry, "worker_id": 8}
    dump = {"model:default": {"events": [entry, foreign]}, "other:default": {"events": [entry]}}
    assert held_of(dump, 7, "model") == [
        Held(2, "device", 1, 11, 5),
        Held(2, "device", (1 << 64) - 1, 12, 1),
    ]
    with pytest.raises(ValueError, match="no object"):
        held_of([], 7, "model")


def test_log_lines_are_taken_apart() -> None:
    line = json.dumps({"level": "WARN", "message": "Gap detected", "self.worker_id": 3})
    text = f"\x1b[33m{line}\x1b[0m\n\nthread 'main' panicked\n"
    assert list(parse_log(text)) == [LogLine("WARN", "Gap detected", 3), LogLine("", "thread 'main' panicked", None)]


@pytest.mark.parametrize("url", ["localhost:8090", "tcp://127.0.0.1:8090", "http://", ""])
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(UsageError, match="http://host:port"):
        IndexerClient(url)


def test_the_good_batch_is_left_out_of_a_state() -> None:
    router = Perfect(4)
    router.apply(good_batch(4, 0))
    assert {held.tier for held in router.held()} == set(TIERS.values())
    assert without_good_batch(router.held()) == []


# Known failures of behaviour ----------------------------------------------------------------------------------------------


def behaviour_report(verdict: Verdict) -> ConsumerReport:
    one = Behaviour(id="restart", text="", verdict=verdict, found="it does not look")
    return ConsumerReport(tool="", mode="router", subject=[], started=0.0, behaviours=[one])


def test_a_known_behaviour_is_a_warning(tmp_path: Path) -> None:
    file = tmp_path / "known.txt"
    file.write_text("behaviour/restart wrong  # it is so\n")
    report = behaviour_report(Verdict.FAIL)
    apply_known(report, Known((file,)))
    assert (report.behaviours[0].verdict, report.stale) == (Verdict.WARN, [])
    fixed = behaviour_report(Verdict.PASS)
    apply_known(fixed, Known((file,)))
    assert fixed.behaviours[0].verdict is Verdict.PASS
    assert len(fixed.stale) == 1 and "change the entry or remove it" in fixed.stale[0]
    unlisted = behaviour_report(Verdict.FAIL)
    apply_known(unlisted, Known())
    assert unlisted.behaviours[0].verdict is Verdict.FAIL


def test_the_known_failures_of_each_release_name_what_there_is() -> None:
    folder = Path(__file__).resolve().parent.parent / "conformance" / "testees" / "known-failures"
    ids = [row.id for row in list_vectors()] + [f"behaviour/{ident}" for ident in BEHAVIOURS]
    files = sorted(folder.glob("dynamo-[0-9]*.txt"))
    assert [file.stem for file in files] == ["dynamo-1.2.1", "dynamo-1.3.1", "dynamo-1.4.2", "dynamo-1.6.1"]
    for file in files:
        known = Known((file,)).read()
        for entry in known.entries:
            assert any(map(entry.matches, ids)), entry
        for ident in ids:
            known.of(ident)
