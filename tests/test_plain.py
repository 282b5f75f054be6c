"""The short way for plain messages says what the whole way says, of sound streams and of any other."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from kvwire import DIALECTS, AllBlocksCleared, BlockRemoved, BlockStored, EventBatch, decode, encode
from kvwire.errors import KvwireError
from kvwire_conform.judge import Judge, Told
from kvwire_conform.plain_messages import PlainMessages
from kvwire_conform.recording import Record
from kvwire_conform.simulator import FAULTS, Simulator

STREAM_FAULTS = [name for name, fault in FAULTS.items() if fault.side == "stream"]


def judged(records: list[Record], told: Told, *, plain: bool) -> tuple[bytes, int]:
    """The report of a run as JSON, and how many messages went the short way."""
    with pytest.MonkeyPatch.context() as patch:
        if not plain:
            patch.setattr(PlainMessages, "see", lambda self, record: False)
        judge = Judge(told, "engine")
        for record in records:
            judge.feed(record)
        sources, results, judges = judge.finish()
    report = msgspec.json.encode([sources, results, [one.breaks() for one in judges]])
    return report, sum(one.plain.messages for one in judges)


def agree(records: list[Record], told: Told) -> int:
    """Hold both ways together; how many messages went the short way."""
    short, count = judged(records, told, plain=True)
    whole, none = judged(records, told, plain=False)
    assert none == 0
    assert msgspec.json.decode(short) == msgspec.json.decode(whole)
    return count


@pytest.mark.parametrize("dialect", DIALECTS)
def test_sound_streams_go_the_short_way(dialect: str) -> None:
    simulator = Simulator(dialect, seed=3, block_size=4, dp_rank=1)
    records = [Record(t=simulator.now(), channel="live", frames=list(frames)) for frames in simulator.messages(150)]
    assert agree(records, Told(ranks={"engine": simulator.dp_rank} if dialect != "slot6-b2" else {})) > 135


@pytest.mark.parametrize("fault", STREAM_FAULTS)
def test_faults_are_found_both_ways(fault: str) -> None:
    for dialect in ("slot6-b2", "slot8", "slot12", "dynamo", "sglang-map2", "vllm-map5"):
        if FAULTS[fault].applies(dialect):
            simulator = Simulator(dialect, seed=9, block_size=4, capacity=48, fault=fault)
            records = [
                Record(t=simulator.now(), channel="live", frames=list(frames)) for frames in simulator.messages(50)
            ]
            assert agree(records, Told(block_size=4, ranks={"engine": 0})) < 50


@pytest.mark.parametrize("dialect", DIALECTS)
def test_what_is_out_of_the_ordinary_is_told_both_ways(dialect: str) -> None:
    short = 0
    for seed in range(3):
        records = list(_odd_stream(dialect, random.Random(f"{dialect}/{seed}")))
        short += agree(records, Told(replay_expected=bool(seed % 2)))
    assert 0 < short < 3 * 160


def _odd_stream(dialect: str, odd: random.Random) -> Iterator[Record]:
    simulator = Simulator(dialect, seed=odd.randrange(1000), block_size=odd.choice([1, 4]), capacity=64)
    signed = odd.random() < 0.5
    for number, (topic, seq, payload) in enumerate(simulator.messages(160)):
        batch = decode(payload)
        if signed:
            _sign(batch)
        if odd.random() < 0.15:
            _bend(batch, odd)
        with contextlib.suppress(KvwireError):
            payload = encode(batch, dialect, on_loss="drop")
        chance = odd.random()
        if chance < 0.01:
            continue
        if chance > 0.98:
            at = odd.randrange(len(payload))
            payload = payload[:at] + odd.randbytes(1) + payload[at + 1 :]
        t = simulator.now() if odd.random() < 0.9 else 0.0
        record = Record(t=t, channel="live", frames=[topic, seq, payload] if chance < 0.97 else [topic, payload])
        yield record
        if 0.5 < chance < 0.52:
            yield record
        if 0.6 < chance < 0.62:
            yield Record(t=t, channel="replay", frames=[b"", seq, payload], start_seq=number)


def _sign(batch: EventBatch) -> None:
    def signed(value: int | bytes) -> int | bytes:
        return value - (1 << 64) if isinstance(value, int) and value >> 63 == 1 else value

    for event in batch.events:
        if isinstance(event, BlockStored):
            event.parent_block_hash = None if event.parent_block_hash is None else signed(event.parent_block_hash)
        if not isinstance(event, AllBlocksCleared):
            event.block_hashes = list(map(signed, event.block_hashes))


def _bend(batch: EventBatch, odd: random.Random) -> None:
    """Change one thing of a batch, right or wrong."""
    at = odd.randrange(len(batch.events)) if batch.events else 0
    change = odd.randrange(8)
    if change == 0:
        batch.dp_rank = odd.choice([None, 0, 1])
    elif change == 1:
        batch.ts *= 1000
    elif change == 2:
        batch.events.append(AllBlocksCleared())
    elif batch.events:
        event = batch.events[at]
        if change == 3:
            batch.events.insert(at, event)
        elif change == 4:
            del batch.events[at]
        elif isinstance(event, BlockStored):
            count = len(event.block_hashes)
            changes: list[dict[str, Any]] = [
                {"parent_block_hash": odd.choice([None, 0, 7, odd.getrandbits(63)])},
                {"parent_block_hash": event.block_hashes[0] if count else 1},
                {"token_ids": event.token_ids[:-1]},
                {"token_ids": [], "block_size": 0},
                {"token_ids": [odd.choice([-1, 1 << 33])] * len(event.token_ids)},
                {"token_ids": [(1, 2)] * len(event.token_ids)},
                {"block_hashes": event.block_hashes + event.block_hashes[:1]},
                {"block_hashes": [odd.choice([1, -1, (1 << 63) + 5]) for _ in range(count)]},
                {"block_hashes": [odd.randbytes(32) for _ in range(count)]},
                {"block_size": odd.choice([-1, 2, 8, 1 << 25])},
                {"medium": odd.choice(["GPU", "CPU", "gpu", None])},
                {"cache_salt": odd.choice(["a", "", "cache_salt", None])},
                {"extra_keys": odd.choice([None, [None] * count, [["lora", ["image", -3]]] * count, [None]])},
                {"group_idx": odd.choice([None, 0, 1])},
            ]
            for name, value in odd.choice(changes).items():
                setattr(event, name, value)
        elif isinstance(event, BlockRemoved):
            event.block_hashes = event.block_hashes + odd.choice([event.block_hashes, [odd.getrandbits(64)]])
