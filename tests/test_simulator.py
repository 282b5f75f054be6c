"""The simulated engine: the same every time, true to its dialect and to its own cache, and wrong only where told."""

from __future__ import annotations

import functools
import json
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import zmq
from hypothesis import given, settings
from hypothesis import strategies as st

import kvwire
from kvwire import DIALECTS, AllBlocksCleared, BlockRemoved, BlockStored, EventBatch, hash_key
from kvwire.dialects import Framing
from kvwire.errors import UsageError
from kvwire.hashing.catalog import get_recipe
from kvwire.hashing.recipes import Recipe
from kvwire.hashing.verify import ChainVerifier, Status
from kvwire.hashing.vllm import ExtraKeys
from kvwire.index import BlockIndex, Policy, Tier
from kvwire_conform.requirements import producer_checks
from kvwire_conform.simulator import (
    FAULTS,
    EngineError,
    Fault,
    Frames,
    ReplayBuffer,
    SimulatedEngine,
    Simulator,
    consecutive_ports,
)

END = b"\xff" * 8
DEADLINE = 10.0
SGLANG = ("slot6-b2", "slot6", "slot7", "slot8", "dynamo", "sglang-map1", "sglang-map2")
VLLM = tuple(name for name in DIALECTS if name not in SGLANG)
TAIL = 40
"""Messages that a faulty stream is followed for after the latest warm-up."""

Held = dict[str, Counter[tuple[int | None, int | bytes]]]


@functools.cache
def run_of(dialect: str, count: int = 250) -> tuple[list[EventBatch], list[Frames]]:
    """One run, as batches and as messages."""
    return Simulator(dialect, 3).batches(count), Simulator(dialect, 3).messages(count)


def replayed(batches: list[EventBatch], *, copies: bool) -> Held:
    """What the events leave in the cache, by the plainest reading of them."""
    held: dict[str, Counter[tuple[int | None, int | bytes]]] = {}
    for batch in batches:
        for event in batch.events:
            apply(held, event, copies=copies)
    return {medium: blocks for medium, blocks in held.items() if blocks}


def apply(held: Held, event: Any, *, copies: bool) -> None:
    if isinstance(event, AllBlocksCleared):
        held.clear()
        return
    blocks = held.setdefault(event.medium or "GPU", Counter())
    for block_hash in event.block_hashes:
        key = (event.group_idx, hash_key(block_hash))
        if isinstance(event, BlockStored):
            blocks[key] = blocks[key] + 1 if copies else 1
        else:
            assert blocks[key] > 0, f"{event} removes what is not held"
            blocks[key] -= 1
            if not blocks[key]:
                del blocks[key]


# The engine


@pytest.mark.parametrize("dialect", DIALECTS)
def test_same_seed_same_bytes(dialect: str) -> None:
    _, messages = run_of(dialect)
    again = Simulator(dialect, 3)
    assert again.messages(30) + again.messages(30) == messages[:60]
    assert Simulator(dialect, 4).messages(10) != messages[:10]


def test_ranks_of_one_seed_see_other_traffic() -> None:
    first, second = Simulator("slot8", 1).batches(5), Simulator("slot8", 1, dp_rank=1).batches(5)
    assert [batch.dp_rank for batch in second] == [1] * 5
    assert [batch.events for batch in first] != [batch.events for batch in second]


def test_clock_replaces_the_epoch() -> None:
    ticks = iter(range(100))
    batches = Simulator("slot8", clock=lambda: 5.0 + next(ticks)).batches(4)
    assert [batch.ts for batch in batches] == [5.0, 6.0, 7.0, 8.0]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_message_is_of_the_dialect_and_decodes_to_the_batch(dialect: str) -> None:
    batches, messages = run_of(dialect)
    fitting = set(DIALECTS)
    for seq, (batch, (topic, number, payload)) in enumerate(zip(batches, messages, strict=True)):
        detected = kvwire.detect(payload)
        assert dialect in detected, detected.reasons[dialect]
        fitting &= set(detected)
        assert kvwire.decode(payload) == batch
        assert (topic, number) == (b"", seq.to_bytes(8, "big"))
    oldest = next(name for name in DIALECTS if name in fitting)
    assert oldest == dialect, f"an older dialect, {oldest}, explains the whole run"


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_run_shows_every_field_of_the_dialect(dialect: str) -> None:
    batches, _ = run_of(dialect)
    shown = Counter[tuple[str, str]]()
    for event in (event for batch in batches for event in batch.events):
        shown.update((event.tag, name) for name in event.__struct_fields__ if getattr(event, name) is not None)
    never = {("BlockStored", "lora_id")} if dialect in SGLANG else set()
    for tag, layout in DIALECTS[dialect].events.items():
        assert shown.keys() >= {(tag, name) for name in layout.carried} - never
        assert not [
            name
            for event_tag, name in shown
            if event_tag == tag and name not in layout.carried and name != "cache_salt"
        ]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_resident_is_what_the_events_tell(dialect: str) -> None:
    simulator = Simulator(dialect, 3)
    held: Held = {}
    for _ in range(250):
        for event in simulator.step().events:
            apply(held, event, copies=dialect in SGLANG)
        assert {medium: blocks for medium, blocks in held.items() if blocks} == simulator.resident()


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_consumers_index_holds_what_the_engine_holds(dialect: str) -> None:
    simulator = Simulator(dialect, 5, dp_rank=2)
    index = BlockIndex.for_dialect(dialect)
    for payload in (frames[-1] for frames in simulator.messages(200)):
        index.apply(kvwire.decode(payload))
    rank = 0 if dialect == "slot6-b2" else 2
    for medium, blocks in simulator.resident().items():
        for (group, block_hash), copies in blocks.items():
            assert index.copies(block_hash, Tier(rank, medium, group)) == copies
    assert len(index) == sum(len(blocks) for blocks in simulator.resident().values())


def recipe(dialect: str) -> Recipe:
    profile = Simulator(dialect).profile
    if profile.hash_seed is None:
        return get_recipe(profile.recipe)
    keys = ExtraKeys.TAGGED if profile.tagged_keys else ExtraKeys.BARE
    return get_recipe(profile.recipe, seed=profile.hash_seed, extra_keys=keys)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_hashes_are_those_of_the_engines_recipe(dialect: str) -> None:
    verifier = ChainVerifier(recipe(dialect))
    found = Counter(verdict.status for batch in run_of(dialect)[0] for _, verdict in verifier.check_batch(batch))
    assert not found[Status.MISMATCH]
    assert found[Status.MATCH] > 200


@settings(max_examples=150)
@given(
    dialect=st.sampled_from(list(DIALECTS)),
    seed=st.integers(0, 1 << 32),
    block_size=st.sampled_from((1, 2, 4, 16)),
    capacity=st.sampled_from((16, 40, 64)),
    lower=st.sampled_from((0, 8, 50)),
    clear_every=st.sampled_from((None, 4, 20)),
    one_group=st.booleans(),
    bigram=st.booleans(),
)
def test_any_engine_keeps_the_rules_of_a_stream(
    dialect: str,
    seed: int,
    block_size: int,
    capacity: int,
    lower: int,
    clear_every: int | None,
    one_group: bool,
    bigram: bool,
) -> None:
    simulator = Simulator(
        dialect,
        seed,
        block_size=block_size,
        capacity=capacity,
        host_capacity=lower,
        disk_capacity=lower,
        clear_every=clear_every,
        groups=1 if one_group else None,
        bigram=bigram and dialect in SGLANG,
    )
    held: Held = {}
    for batch in simulator.batches(25):
        assert batch.events
        for event in batch.events:
            if isinstance(event, BlockStored):
                check_stored(simulator, held, event)
            apply(held, event, copies=dialect in SGLANG)
        check_habits(dialect, batch)
    assert {medium: blocks for medium, blocks in held.items() if blocks} == simulator.resident()
    groups = len(simulator.settings.group_ids) if dialect in SGLANG else 1
    for medium, most in zip(simulator.settings.profile.tiers, simulator.settings.capacities, strict=True):
        assert simulator.resident().get(medium, Counter()).total() <= most * groups


def check_stored(simulator: Simulator, held: Held, event: BlockStored) -> None:
    hashes = event.block_hashes
    assert hashes
    assert len(set(hashes)) == len(hashes)
    assert event.parent_block_hash not in hashes
    if event.parent_block_hash is not None:
        parent = hash_key(event.parent_block_hash)
        assert any(parent == block_hash for blocks in held.values() for _, block_hash in blocks)
    if not event.token_ids:
        assert (event.block_size, event.parent_block_hash) == (0, None)
        return
    blocks, rest = divmod(len(event.token_ids), event.block_size)
    assert not rest
    if event.kv_cache_spec_kind == "sliding_window" and simulator.settings.profile.masking:
        assert 1 <= len(hashes) <= min(blocks, simulator.settings.window)
    else:
        assert len(hashes) == blocks
    if event.block_size != simulator.settings.block_size:
        assert simulator.profile.partial_pages
        assert event.block_size < simulator.settings.block_size


def check_habits(dialect: str, batch: EventBatch) -> None:
    events = batch.events
    clears = [index for index, event in enumerate(events) if isinstance(event, AllBlocksCleared)]
    assert clears == list(range(len(clears)))
    hashes = [block_hash for event in events for block_hash in getattr(event, "block_hashes", ())]
    if dialect in SGLANG:
        assert all(-(1 << 63) <= block_hash < 1 << 63 for block_hash in hashes)
        return
    assert all(0 <= block_hash < 1 << 64 for block_hash in hashes)
    assert all(len(event.block_hashes) == 1 for event in events if isinstance(event, BlockRemoved))
    for event in events:
        if isinstance(event, BlockStored) and event.token_ids and dialect not in ("slot8-lora",):
            assert event.extra_keys is not None
            assert len(event.extra_keys) == len(event.block_hashes)


@pytest.mark.parametrize("dialect", SGLANG)
def test_sglang_begins_with_a_clear(dialect: str) -> None:
    first = run_of(dialect)[0][0].events
    assert [event.tag for event in first] == ["AllBlocksCleared"]


def test_sglang_removes_the_parent_before_its_child_within_a_node() -> None:
    parents: dict[Any, Any] = {}
    seen = 0
    for event in (event for batch in run_of("slot7")[0] for event in batch.events):
        if isinstance(event, BlockStored):
            parents[event.block_hashes[0]] = event.parent_block_hash
        elif isinstance(event, BlockRemoved):
            for before, after in zip(event.block_hashes, event.block_hashes[1:], strict=False):
                assert parents[after] == before
                seen += 1
    assert seen > 20


@pytest.mark.parametrize(
    ("dialect", "stores", "removes"), [("slot6", 1, 1), ("slot7", 1, 2), ("slot8", 2, 2), ("sglang-map2", 2, 2)]
)
def test_sglang_coalesces_as_its_releases_do(dialect: str, stores: int, removes: int) -> None:
    events = [event for batch in run_of(dialect)[0] for event in batch.events]
    most = {
        tag: max(len(event.block_hashes) for event in events if event.tag == tag)
        for tag in ("BlockStored", "BlockRemoved")
    }
    assert min(most["BlockStored"], 2) == stores
    assert min(most["BlockRemoved"], 2) == removes


def test_request_classes_hold_copies_of_one_hash() -> None:
    simulator = Simulator("slot8", 3, clear_every=None)
    assert any(
        max(blocks.values(), default=0) > 1
        for _ in range(100)
        for blocks in (simulator.step(), simulator.resident())[1].values()
    )


def test_partial_pages_come_from_the_releases_that_had_them() -> None:
    for dialect, expected in (("slot6-b2", True), ("slot6", True), ("slot7", False), ("sglang-map2", False)):
        sizes = {
            event.block_size for batch in run_of(dialect)[0] for event in batch.events if event.tag == "BlockStored"
        }
        assert (len(sizes) > 1) is expected


def test_tiers_have_the_familys_names() -> None:
    for dialect, media in (("slot8", {"GPU", "CPU_PINNED", "DISK"}), ("vllm-map5", {"GPU", "CPU", "STORAGE"})):
        batches = Simulator(dialect, 3, host_capacity=24, disk_capacity=24).batches(120)
        for tag in ("BlockStored", "BlockRemoved"):
            assert {event.medium for batch in batches for event in batch.events if event.tag == tag} == media


def test_groups_of_a_hybrid_model_share_hashes() -> None:
    for dialect in ("slot10", "slot12", "dynamo", "vllm-map1"):
        stores = [event for batch in run_of(dialect)[0] for event in batch.events if event.tag == "BlockStored"]
        by_group = [{h for event in stores if event.group_idx == group for h in event.block_hashes} for group in (0, 1)]
        assert by_group[0] == by_group[1]


def test_a_sliding_group_hides_what_is_outside_its_window() -> None:
    stores = [event for batch in run_of("vllm-map5")[0] for event in batch.events if event.tag == "BlockStored"]
    sliding = [event for event in stores if event.kv_cache_spec_kind == "sliding_window"]
    assert any(len(event.block_hashes) * event.block_size < len(event.token_ids) for event in sliding)
    assert {event.kv_cache_spec_sliding_window for event in sliding} == {32}


def test_bigram_pages_carry_pairs_that_overlap() -> None:
    stores = [
        e for batch in Simulator("sglang-map2", bigram=True).batches(30) for e in batch.events if e.tag == "BlockStored"
    ]
    assert len(stores) > 20
    for event in stores:
        assert all(before[1] == after[0] for before, after in zip(event.token_ids, event.token_ids[1:], strict=False))
    verifier = ChainVerifier(get_recipe("sglang"))
    assert {verdict.status for event in stores for verdict in verifier.check(event)} >= {Status.MATCH}


@pytest.mark.parametrize("dialect", ["slot8", "vllm-map5"])
def test_a_restart_counts_from_0_with_an_empty_cache(dialect: str) -> None:
    simulator = Simulator(dialect, 2, restart_every=15)
    held: Held = {}
    before, restarts = -1, 0
    for _ in range(120):
        _, number, payload = simulator.message()
        seq = int.from_bytes(number, "big")
        if seq != before + 1:
            assert seq == 0
            held.clear()
            restarts += 1
        before = seq
        for event in kvwire.decode(payload).events:
            apply(held, event, copies=dialect in SGLANG)
        assert {medium: blocks for medium, blocks in held.items() if blocks} == simulator.resident()
    assert restarts > 2


def test_a_clear_comes_first_in_the_next_batch() -> None:
    for dialect in ("slot8", "vllm-map5"):
        simulator = Simulator(dialect, 2, clear_every=None)
        simulator.batches(20)
        simulator.clear()
        assert simulator.resident() == {}
        assert isinstance(simulator.step().events[0], AllBlocksCleared)


@pytest.mark.parametrize(
    ("dialect", "arguments", "says"),
    [
        ("slot8", {"capacity": 8}, "capacity"),
        ("slot8", {"block_size": 0}, "block_size"),
        ("slot8", {"groups": 2}, "group_idx"),
        ("slot10", {"groups": 3}, "groups"),
        ("slot12", {"bigram": True}, "bigram"),
        ("slot8", {"lookahead": True}, "lookahead"),
        ("slot8", {"fault": "no-such"}, "no fault"),
        ("slot6", {"fault": "medium-vocabulary"}, "no medium"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(dialect: str, arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        Simulator(dialect, **arguments)


# Faults

STREAM_FAULTS = [fault for fault in FAULTS.values() if fault.side == "stream"]


def test_there_is_one_fault_for_each_producer_check() -> None:
    assert set(FAULTS) == {row.id for row in producer_checks()}
    assert all(fault.id == name and fault.sentence.endswith(".") for name, fault in FAULTS.items())


@pytest.mark.parametrize("dialect", ["slot6-b2", "slot8", "dynamo", "slot12", "sglang-map2", "vllm-map5"])
@pytest.mark.parametrize("fault", STREAM_FAULTS, ids=lambda fault: fault.id)
def test_a_fault_changes_the_stream_from_its_injection_on(fault: Fault, dialect: str) -> None:
    if not fault.applies(dialect):
        with pytest.raises(UsageError, match=fault.unless):
            Simulator(dialect, fault=fault)
        return
    right = run_of(dialect)[1]
    simulator = Simulator(dialect, 3, fault=fault.id)
    messages = simulator.messages(32 + TAIL)
    at = simulator.injected_at
    assert at is not None
    assert (at == 0) is fault.from_start
    assert messages[:at] == right[:at]
    assert messages[at] != right[at]
    assert Simulator(dialect, 3, fault=fault.id).messages(32 + TAIL) == messages


@pytest.mark.parametrize("name", DIALECTS)
def test_every_dialect_can_switch_to_one_that_is_told_apart(name: str) -> None:
    simulator = Simulator(name, 3, fault="dialect-constant", fault_at=5)
    messages = simulator.messages(30)
    at = simulator.injected_at
    assert at is not None
    assert all(name in kvwire.detect(frames[-1]) for frames in messages[:at])
    after = kvwire.detect(messages[at][-1])
    assert after
    assert name not in after


def test_a_fault_comes_where_it_is_asked_for() -> None:
    simulator = Simulator("slot8", 3, fault="event-shape", fault_at=7)
    simulator.messages(10)
    assert simulator.injected_at == 7


def test_a_faulty_stream_leaves_the_cache_right() -> None:
    simulator = Simulator("slot8", 3, fault="parent-known")
    simulator.messages(80)
    assert simulator.resident() == replayed(run_of("slot8")[0][:80], copies=True)


@pytest.mark.parametrize("fault", [fault for fault in FAULTS.values() if fault.side == "replay"], ids=lambda f: f.id)
def test_a_fault_of_the_replay_leaves_the_live_stream_right(fault: Fault) -> None:
    assert Simulator("slot8", 3, fault=fault.id).messages(60) == run_of("slot8")[1][:60]


# Replay


def filled(framing: Framing = Framing.SEQ_PAYLOAD, *, steps: int = 100, fault: str | None = None) -> ReplayBuffer:
    buffer = ReplayBuffer(framing, b"", steps, fault)
    for frames in run_of("slot8")[1][:10]:
        buffer.keep((b"topic", *frames[1:]))
    return buffer


def request(seq: int) -> list[bytes]:
    return [b"", seq.to_bytes(8, "big")]


def seqs(replies: list[list[bytes]]) -> list[int]:
    return [int.from_bytes(reply[-2], "big") for reply in replies if reply[-2] != END]


def test_a_replay_is_framed_as_told() -> None:
    live = run_of("slot8")[1]
    assert filled().answer(request(8)) == [
        [b"", live[8][1], live[8][2]],
        [b"", live[9][1], live[9][2]],
        [b"", END, b""],
    ]
    assert filled(Framing.TOPIC_SEQ_PAYLOAD).answer(request(9)) == [
        [b"", b"topic", live[9][1], live[9][2]],
        [b"", b"", END, b""],
    ]


def test_a_replay_begins_at_the_oldest_batch_kept() -> None:
    assert seqs(filled(steps=4).answer(request(0))) == [6, 7, 8, 9]
    assert filled().answer(request(10)) == [[b"", END, b""]]
    assert ReplayBuffer(Framing.SEQ_PAYLOAD).answer(request(0)) == [[b"", END, b""]]


@pytest.mark.parametrize("malformed", [[], [b""], [b"\0" * 8], [b"x", b"\0" * 8], [b"", b"\0"], [b"", b"", b"\0" * 8]])
def test_a_malformed_request_does_no_harm(malformed: list[bytes]) -> None:
    buffer = filled()
    assert buffer.answer(malformed) == []
    assert seqs(buffer.answer(request(8))) == [8, 9]


def test_the_buffer_keeps_what_is_in_the_count_and_forgets_at_a_restart() -> None:
    buffer = filled()
    live = run_of("slot8")[1]
    for outside in ((b"", live[9][2]), (b"", b"\0" * 4, live[9][2]), (b"", END, live[9][2]), live[9]):
        buffer.keep(outside)
    assert seqs(buffer.answer(request(7))) == [7, 8, 9]
    buffer.keep((b"", bytes(8), b"new"))
    assert buffer.answer(request(0)) == [[b"", bytes(8), b"new"], [b"", END, b""]]


def test_each_fault_of_the_replay_breaks_its_own_rule() -> None:
    right = filled().answer(request(4))
    assert [len(reply) for reply in filled(fault="replay-framing").answer(request(4))] == [3, 4, 3, 4, 3, 4, 3]
    assert seqs(filled(fault="replay-contiguous").answer(request(4))) == [4, 5, 6, 8, 9]
    assert seqs(filled(fault="replay-start").answer(request(4))) == [2, 3, 4, 5, 6, 7, 8, 9]
    assert filled(fault="replay-start").answer(request(10)) == right[-1:]
    other = filled(fault="replay-equals-live").answer(request(4))
    assert [index for index, reply in enumerate(other) if reply != right[index]] == [3]
    assert kvwire.decode(other[3][-1]).events == kvwire.decode(right[3][-1]).events
    assert filled(fault="replay-end-marker").answer(request(4)) == right[:-1]
    assert seqs(filled(fault="replay-past-end").answer(request(10))) == [7, 8, 9]
    assert filled(fault="replay-past-end").answer(request(4)) == right
    dying = filled(fault="replay-survives-malformed")
    assert dying.answer(request(4)) == right
    assert dying.answer([b"", b"x"]) == []
    assert dying.answer(request(4)) == []


# Real sockets


@contextmanager
def connected(kind: int, endpoint: str) -> Iterator[zmq.Socket[bytes]]:
    with zmq.Context() as context, context.socket(kind) as socket:
        socket.setsockopt(zmq.LINGER, 0)
        if kind == zmq.SUB:
            socket.setsockopt(zmq.SUBSCRIBE, b"")
        socket.connect(endpoint)
        yield socket


def receive(socket: zmq.Socket[bytes], count: int) -> list[list[bytes]]:
    """So many messages. Fails when they do not come before the deadline."""
    until = time.monotonic() + DEADLINE
    found: list[list[bytes]] = []
    while len(found) < count:
        left = until - time.monotonic()
        assert left > 0, f"{len(found)} of {count} messages came"
        if socket.poll(int(1000 * left)):
            found.append(socket.recv_multipart())
    return found


def ask(socket: zmq.Socket[bytes], start: int) -> list[list[bytes]]:
    socket.send_multipart(request(start))
    replies: list[list[bytes]] = []
    while not replies or replies[-1][-2] != END:
        replies += receive(socket, 1)
    return replies


@pytest.mark.parametrize("framing", [None, *Framing])
def test_live_and_replay_on_real_sockets(framing: Framing | None) -> None:
    with SimulatedEngine("slot8", 3, rate=None, count=60, clock=None, framing=framing, topic="kv@a@b") as engine:
        with connected(zmq.SUB, engine.endpoint) as subscriber:
            live = receive(subscriber, 60)
        assert [frames[1:] for frames in live] == [list(frames[1:]) for frames in run_of("slot8")[1][:60]]
        assert engine.wait(DEADLINE)
        assert engine.replay_endpoint is not None
        with connected(zmq.DEALER, engine.replay_endpoint) as dealer:
            replies = ask(dealer, 20)
        with_topic = framing is Framing.TOPIC_SEQ_PAYLOAD
        assert replies[:-1] == [[b"", *(frames if with_topic else frames[1:])] for frames in live[20:]]
        assert replies[-1] == ([b"", b"", END, b""] if with_topic else [b"", END, b""])


def test_malformed_requests_do_not_stop_the_replay_for_others() -> None:
    with SimulatedEngine("vllm-map5", rate=None, count=5) as engine, connected(zmq.SUB, engine.endpoint) as subscriber:
        receive(subscriber, 5)
        assert engine.replay_endpoint is not None
        with connected(zmq.DEALER, engine.replay_endpoint) as dealer:
            for malformed in ([b"x"], [b"", b"\0"], [b"", b"", b"", b""], [b""]):
                dealer.send_multipart(malformed)
            assert seqs(ask(dealer, 3)) == [3, 4]


def test_every_rank_has_neighbouring_ports_and_a_stream_of_its_own() -> None:
    with SimulatedEngine("slot8", rate=None, count=5, dp_size=3) as engine:
        ports = [int(endpoint.rpartition(":")[2]) for endpoint in engine.endpoints]
        replays = [int(endpoint.rpartition(":")[2]) for endpoint in engine.replay_endpoints]
        assert [port - ports[0] for port in ports] == [port - replays[0] for port in replays] == [0, 1, 2]
        for rank, endpoint in enumerate(engine.endpoints):
            with connected(zmq.SUB, endpoint) as subscriber:
                assert {kvwire.decode(frames[-1]).dp_rank for frames in receive(subscriber, 5)} == {rank}
        # A subscriber may have the last message before the engine has counted it.
        assert engine.wait(DEADLINE)
        assert engine.published == [5, 5, 5]


def test_nothing_is_published_before_the_first_subscriber() -> None:
    with (
        SimulatedEngine("slot8", rate=None, dp_size=2) as engine,
        connected(zmq.SUB, engine.endpoints[1]) as subscriber,
    ):
        assert receive(subscriber, 1)[0][1] == bytes(8)
        assert engine.published[0] == 0


def test_an_engine_that_does_not_wait_publishes_to_nobody() -> None:
    with SimulatedEngine("slot8", rate=None, count=40, wait_for_subscriber=False) as engine:
        assert engine.wait(DEADLINE)
        assert engine.published == [40]
        assert engine.replay_endpoint is not None
        with connected(zmq.DEALER, engine.replay_endpoint) as dealer:
            assert seqs(ask(dealer, 0)) == list(range(40))


def test_faults_reach_the_sockets_on_both_sides() -> None:
    with SimulatedEngine("slot8", rate=None, count=40, fault="three-frames") as engine:
        with connected(zmq.SUB, engine.endpoint) as subscriber:
            assert Counter(map(len, receive(subscriber, 40))) == {3: 39, 2: 1}
        assert engine.simulators[0].injected_at is not None
    with SimulatedEngine("slot8", rate=None, count=10, fault="replay-past-end") as engine:
        with connected(zmq.SUB, engine.endpoint) as subscriber:
            receive(subscriber, 10)
        assert engine.replay_endpoint is not None
        with connected(zmq.DEALER, engine.replay_endpoint) as dealer:
            assert seqs(ask(dealer, 100)) == [7, 8, 9]


def test_server_info_describes_the_endpoints() -> None:
    with SimulatedEngine("sglang-map2", dp_size=2, server_info=True, block_size=8, topic="kv") as engine:
        with urllib.request.urlopen(engine.server + "/server_info", timeout=DEADLINE) as answer:
            told = json.load(answer)
        assert told == {
            "kv_events": {
                "publisher": "zmq",
                "endpoint_host": "*",
                "endpoint_port_base": int(engine.endpoints[0].rpartition(":")[2]),
                "topic": "kv",
                "block_size": 8,
                "dp_size": 2,
                "replay_endpoint_port_base": int(engine.replay_endpoints[0].rpartition(":")[2]),
            }
        }
        with pytest.raises(urllib.error.HTTPError, match="404") as refused:
            urllib.request.urlopen(engine.server + "/other", timeout=DEADLINE)
        refused.value.close()


def test_an_engine_without_replay_says_so_everywhere() -> None:
    with SimulatedEngine("sglang-map2", replay=False, server_info=True) as engine:
        assert engine.replay_endpoint is None
        assert engine.replay_endpoints == []
        assert "replay_endpoint_port_base" not in engine.descriptor()


def test_a_port_in_use_is_an_error_and_leaves_nothing_open() -> None:
    with SimulatedEngine("slot8") as engine:
        port = int(engine.endpoint.rpartition(":")[2])
        with pytest.raises(EngineError, match="cannot bind"):
            SimulatedEngine("slot8", port=port).start()
    with SimulatedEngine("slot8", port=port) as engine:
        assert engine.endpoint == f"tcp://127.0.0.1:{port}"


def test_stopping_twice_and_asking_too_early_are_harmless() -> None:
    engine = SimulatedEngine("slot8")
    with pytest.raises(UsageError, match="start"):
        _ = engine.endpoint
    engine.start()
    engine.stop()
    engine.stop()
    with pytest.raises(UsageError, match="HTTP"):
        _ = engine.server


def test_a_failure_in_the_thread_is_raised_at_the_end() -> None:
    def broken() -> float:
        raise OSError("no clock")

    engine = SimulatedEngine("slot8", clock=broken, wait_for_subscriber=False)
    engine.start()
    assert not engine.wait(DEADLINE)
    with pytest.raises(EngineError, match="no clock"):
        engine.stop()


def test_neighbouring_ports_are_free() -> None:
    first = consecutive_ports(4)
    with zmq.Context() as context:
        sockets = [context.socket(zmq.PUB) for _ in range(4)]
        for offset, socket in enumerate(sockets):
            socket.bind(f"tcp://127.0.0.1:{first + offset}")
            socket.close(linger=0)


def test_the_index_policies_that_the_families_need() -> None:
    assert {BlockIndex.for_dialect(name).policy for name in SGLANG} == {Policy.COUNT}
    assert {BlockIndex.for_dialect(name).policy for name in VLLM} == {Policy.SET}
