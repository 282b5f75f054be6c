"""What the judge of a stream remembers: nothing that grows with its length, and little for each block held."""

from __future__ import annotations

import gc
import random
import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest

from kvwire import AllBlocksCleared, BlockRemoved, BlockStored, EventBatch
from kvwire.codec import Encoder
from kvwire_conform import cleared
from kvwire_conform.checks import stream
from kvwire_conform.judge import Judge, Told
from kvwire_conform.model import Verdict
from kvwire_conform.recording import Record

BYTES_PER_BLOCK = 200
BATCH = 16


class Publisher:
    """Batches of one engine whose cache grows, and turns over, by chains of 16 blocks of one token."""

    def __init__(self, dialect: str, *, salted: bool = False, digests: bool = False, roots: bool = False) -> None:
        self.encode = Encoder(dialect).encode
        self.salted = salted
        self.digests = digests
        self.width = 1 if roots else 16
        self.random = random.Random(dialect)
        self.rank = 0
        self.keyed = Encoder(dialect).dialect.carries("BlockStored", "extra_keys")
        self.chains: list[list[int | bytes]] = []
        self.seq = 0

    def message(self, events: list[BlockStored | BlockRemoved | AllBlocksCleared]) -> Record:
        payload = self.encode(EventBatch(1000.0 + self.seq, list(events), self.rank))
        self.seq += 1
        return Record(
            t=1000.0 + self.seq, channel="live", frames=[b"", (self.seq - 1).to_bytes(8, "big"), payload], source=""
        )

    def store(self) -> BlockStored:
        chain: list[int | bytes] = [self._hash() for _ in range(self.width)]
        self.chains.append(chain)
        return BlockStored(
            block_hashes=list(chain),
            parent_block_hash=None,
            token_ids=[self.random.randrange(100_000) for _ in chain],
            block_size=1,
            cache_salt="tenant" if self.salted else None,
            extra_keys=[None] * len(chain) if self.keyed else None,
        )

    def _hash(self) -> int | bytes:
        return self.random.randbytes(32) if self.digests else self.random.getrandbits(64)

    def grow(self, blocks: int) -> Iterator[Record]:
        """Store so many blocks."""
        for _ in range(blocks // (self.width * BATCH)):
            yield self.message([self.store() for _ in range(BATCH)])

    def turn_over(self, batches: int) -> Iterator[Record]:
        """Store and remove as many."""
        for _ in range(batches):
            events: list[BlockStored | BlockRemoved | AllBlocksCleared] = []
            for _ in range(BATCH // 2):
                events += [self.store(), BlockRemoved(block_hashes=self.chains.pop(0))]
            yield self.message(events)


def feed(judge: Judge, records: Iterator[Record]) -> int:
    """Judge the records; the bytes that are allocated afterwards."""
    for record in records:
        judge.feed(record)
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


@pytest.fixture
def traced() -> Iterator[None]:
    tracemalloc.start()
    yield
    tracemalloc.stop()


@pytest.mark.parametrize(
    ("dialect", "kinds"),
    [
        ("slot7", {}),
        ("slot8", {"salted": True}),
        ("vllm-map5", {}),
        ("vllm-map5", {"roots": True}),
        ("slot12", {"digests": True}),
    ],
)
def test_a_held_block_costs_little(traced: None, dialect: str, kinds: dict[str, bool]) -> None:
    # Right past the counts at which the tables of hashes double: where they are emptiest.
    blocks = 22_528 if kinds.get("roots") else 90_112
    told, engine = Publisher(dialect, **kinds), Judge(Told(), "engine")
    records = list(told.grow(blocks))
    told.chains.clear()
    before = feed(engine, iter(records[:1]))
    after = feed(engine, iter(records[1:]))

    assert (after - before) / (blocks - told.width * BATCH) <= BYTES_PER_BLOCK
    sources, results, _ = engine.finish()
    assert sum(sources[0].held.values()) == blocks
    assert not [result.id for result in results if result.verdict is Verdict.FAIL]


@pytest.mark.parametrize(("dialect", "kinds"), [("slot8", {"salted": True}), ("sglang-map2", {}), ("vllm-map5", {})])
def test_a_longer_stream_costs_nothing(traced: None, dialect: str, kinds: dict[str, bool]) -> None:
    engine, judge = Publisher(dialect, **kinds), Judge(Told(), "engine")
    feed(judge, engine.grow(4096))
    feed(judge, engine.turn_over(100))
    before = feed(judge, engine.turn_over(150))
    after = feed(judge, engine.turn_over(150))
    # The ring of digests is still filling: 8 bytes a batch.
    assert after - before < 48 * 1024
    sources, _, _ = judge.finish()
    assert sources[0].held == {"GPU": 4096}


@pytest.mark.parametrize("dialect", ["slot7", "vllm-map5"])
def test_nonsense_is_not_remembered_for_ever(traced: None, monkeypatch: pytest.MonkeyPatch, dialect: str) -> None:
    """Removals of what is not held, unknown media and groups, other ranks, clears, and payloads that are no msgpack."""
    for limits in (stream, cleared):
        monkeypatch.setattr(limits, "MAX_TIERS", 100)
    engine, judge = Publisher(dialect), Judge(Told(), "engine")

    def nonsense(batches: int) -> Iterator[Record]:
        for number in range(batches):
            where: dict[str, Any] = {"medium": f"M{engine.random.getrandbits(64)}"}
            if dialect == "vllm-map5":
                where["group_idx"] = number
            stored = BlockStored([engine.random.getrandbits(64)], None, [1], 1, **where)
            gone = BlockRemoved(block_hashes=list(stored.block_hashes), **where)
            engine.rank = number % 1000
            record = engine.message([stored, gone, gone] if number % 3 else [stored, AllBlocksCleared()])
            yield record if number % 10 else Record(t=record.t, channel="live", frames=[*record.frames[:2], b"\xc1"])

    feed(judge, nonsense(300))
    before = feed(judge, nonsense(300))
    after = feed(judge, nonsense(300))
    assert after - before < 24 * 1024


def test_cleared_blocks_cost_less_than_held_ones(traced: None) -> None:
    engine, judge = Publisher("slot7"), Judge(Told(), "engine")
    before = feed(judge, engine.grow(256))
    feed(judge, engine.grow(81_920))
    engine.chains.clear()
    feed(judge, iter([engine.message([AllBlocksCleared()])]))
    after = feed(judge, engine.grow(256))
    assert after - before < 81_920 * 10 + 256 * BYTES_PER_BLOCK + 65_536
