"""Our publisher read by other people's code: vLLM's subscriber recipe with a release's own structs, and Dynamo's router."""

from __future__ import annotations

import contextlib
import os
import random
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq

from kvwire import BlockRemoved, BlockStored, EventBatch
from kvwire.zmq.publisher import Publisher
from kvwire_conform.releases import Engine, load_structs
from kvwire_conform.releases_exec import registered
from kvwire_conform.routers.errors import RouterError
from kvwire_conform.routers.install import package_folder
from kvwire_conform.routers.process import IndexerProcess
from kvwire_conform.routers.run import PACKAGE
from tests.publisher_clients import DEADLINE_MS, Socket, dialable, join, until
from tests.real.catalog import REQUIRE, require_source

ANY = "tcp://127.0.0.1:0"
DYNAMO = "1.6.1"
END = (-1).to_bytes(8, "big", signed=True)
FIELDS = (
    "block_hashes",
    "parent_block_hash",
    "token_ids",
    "block_size",
    "lora_id",
    "medium",
    "lora_name",
    "cache_salt",
)


@pytest.fixture
def context() -> Iterator[zmq.Context[Socket]]:
    own: zmq.Context[Socket] = zmq.Context()
    yield own
    own.destroy(linger=0)


def chain(count: int, start: int = 0) -> list[BlockStored]:
    """Blocks of 4 tokens, each the child of the one before, from the root when ``start`` is 0."""
    return [
        BlockStored(
            [1000 + number],
            (1000 + number - 1) if number else None,
            [4 * number + offset for offset in range(4)],
            4,
            medium="GPU",
        )
        for number in range(start, start + count)
    ]


# vLLM's example subscriber --------------------------------------------------------------------------------------------


@dataclass
class Recipe:
    """vLLM's examples/online_serving/kv_events_subscriber.py: a SUB, a REQ for what was missed, a typed decoder.

    It drops the live messages whose seq is in ``lose``, as a network would. With ``dealer`` it asks as later consumers
    do: from a DEALER, reading up to the end marker.
    """

    sub: Socket
    replay: Socket
    decoder: msgspec.msgpack.Decoder[Any]
    dealer: bool
    last_seq: int = -1
    lose: frozenset[int] = frozenset()
    batches: dict[int, Any] = field(default_factory=dict)

    def take(self) -> int:
        """One live message and, at a gap, the replay; returns the seq."""
        assert self.sub.poll(DEADLINE_MS)
        _, seq_bytes, payload = self.sub.recv_multipart()
        seq = int.from_bytes(seq_bytes, "big")
        if seq in self.lose:
            return seq
        while self.last_seq >= 0 and seq > self.last_seq + 1:
            self._recover(seq)
        self._process(seq, payload)
        return seq

    def _recover(self, seq: int) -> None:
        start = (self.last_seq + 1).to_bytes(8, "big")
        self.replay.send_multipart([b"", start] if self.dealer else [start])
        while self.replay.poll(DEADLINE_MS):
            *_, seq_bytes, payload = self.replay.recv_multipart()
            if seq_bytes != END and self.last_seq < int.from_bytes(seq_bytes, "big") < seq:
                self._process(int.from_bytes(seq_bytes, "big"), payload)
            if not payload or not self.dealer:
                return
        raise AssertionError("the replay did not end")

    def _process(self, seq: int, payload: bytes) -> None:
        self.batches[seq] = self.decoder.decode(payload)
        self.last_seq = seq


@pytest.mark.parametrize("dealer", [False, True], ids=["req", "dealer"])
@pytest.mark.parametrize(
    ("engine", "version"),
    [
        ("vllm", "0.9.0"),
        ("vllm", "0.13.0"),
        ("vllm", "0.23.0"),
        ("vllm", "0.33.0"),
        ("sglang", "0.5.19"),
        ("sglang", "0.5.23"),
    ],
)
def test_vllms_recipe_reads_and_recovers_with_the_releases_own_structs(
    context: zmq.Context[Socket], engine: Engine, version: str, dealer: bool
) -> None:
    structs = load_structs(require_source(engine, version))
    with registered(structs.module):
        decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(type=structs.batch_class)
    source = random.Random(5)
    blocks = chain(300)
    if structs.fields["BlockStored"][-1].name == "lora_id":
        blocks = [msgspec.structs.replace(block, medium=None) for block in blocks]
    with (
        Publisher(ANY, dialect=f"{engine}=={version}", replay_endpoint=ANY, topic="kv-events") as publisher,
        contextlib.closing(context.socket(zmq.SUB)) as sub,
        contextlib.closing(context.socket(zmq.DEALER if dealer else zmq.REQ)) as replay,
    ):
        sub.connect(publisher.endpoint)
        sub.subscribe(b"kv-events")
        assert publisher.replay_endpoint is not None
        replay.connect(publisher.replay_endpoint)
        first = join(sub, lambda: publisher.publish([])) + 1
        # A REQ reads one reply a request, so it recovers one batch at a time.
        lost = {seq for seq in range(first + 1, first + 299) if source.random() < 0.2}
        if not dealer:
            lost -= {seq + 1 for seq in lost}
        recipe = Recipe(sub, replay, decoder, dealer, first - 1, frozenset(lost))
        for block in blocks:
            seq = publisher.publish(EventBatch(2.5, [block]))
            assert recipe.take() == seq
            if not dealer:
                # Stale replies to the request before must be there to be thrown away when a REQ asks anew.
                until(lambda: publisher.stats.replay_clients == 0, "the answer has been sent")
        assert sorted(recipe.batches) == list(range(first, first + 300))
        assert lost
        for seq, block in zip(range(first, first + 300), blocks, strict=True):
            (event,) = recipe.batches[seq].events
            for name in FIELDS:
                assert getattr(event, name, None) == getattr(block, name)


# NVIDIA Dynamo's standalone indexer -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def dynamo() -> Path:
    """Folder with the package of Dynamo's router; from the package index when it is not in the cache."""
    try:
        return package_folder(PACKAGE, DYNAMO)
    except RouterError as error:
        if error.code not in ("router-unreachable", "no-pip") or os.environ.get(REQUIRE) == "1":
            raise
        pytest.skip(str(error))


class Indexer(IndexerProcess):
    """Dynamo's KV indexer, registered with one publisher."""

    def register(self, endpoint: str, replay_endpoint: str | None) -> None:
        self.client.register(7, endpoint, "model", 4, replay_endpoint)

    def blocks(self) -> set[int]:
        """Hashes of the blocks that it holds."""
        assert not self.ended(), f"Dynamo's indexer has ended: {self.said()}"
        return {held.block_hash for held in self.client.held(7, "model")}

    def said(self) -> str:
        return "\n".join(self.last_lines())


class LossyRelay:
    """Passes live messages on, but for those that it is told to lose: a gap on the way to the consumer."""

    def __init__(self, context: zmq.Context[Socket], endpoint: str) -> None:
        self.lose: set[int] = set()
        self.lost: set[int] = set()
        self.passed = -1
        self._sub: Socket = context.socket(zmq.SUB)
        self._sub.subscribe(b"")
        self._sub.connect(dialable(endpoint))
        self._pub: Socket = context.socket(zmq.PUB)
        self._pub.bind("tcp://127.0.0.1:*")
        self.endpoint = self._pub.getsockopt_string(zmq.LAST_ENDPOINT)
        self._ended = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def __enter__(self) -> LossyRelay:
        return self

    def __exit__(self, *_: object) -> None:
        self._ended = True
        self._thread.join()
        self._sub.close(0)
        self._pub.close(0)

    def _run(self) -> None:
        while not self._ended:
            if not self._sub.poll(20):
                continue
            frames = self._sub.recv_multipart()
            seq = int.from_bytes(frames[1], "big")
            if seq in self.lose:
                self.lost.add(seq)
            else:
                self._pub.send_multipart(frames)
            self.passed = seq


@pytest.mark.parametrize("dialect", ["slot7", "slot12", "sglang-map2", "vllm-map5"])
def test_dynamos_router_reads_us_and_recovers_a_gap(context: zmq.Context[Socket], dynamo: Path, dialect: str) -> None:
    # A root with children, 40 batches, 8 of them lost in two runs on the way to Dynamo.
    blocks = chain(41)
    with (
        Publisher(ANY, dialect=dialect, replay_endpoint=ANY) as publisher,
        LossyRelay(context, publisher.endpoint) as relay,
        Indexer(dynamo) as indexer,
    ):
        until(lambda: publisher.publish([]) >= 0 and relay.passed >= 0, "the relay is subscribed")
        indexer.register(relay.endpoint, publisher.replay_endpoint)
        # A store is repeated until Dynamo has it: nothing else tells that its subscription is in place.
        until(
            lambda: publisher.publish([blocks[0]]) >= 0 and indexer.blocks() == {1000},
            "Dynamo has the first block",
        )
        base = publisher.stats.published
        relay.lose = {base + offset for offset in (5, 6, 7, 20, 21, 22, 23, 24)}
        for block in blocks[1:]:
            publisher.publish([block])
        until(lambda: indexer.blocks() == set(range(1000, 1041)), f"every block is there: {indexer.said()}")
        assert len(relay.lost) == 8
        assert publisher.stats.replay_answered >= 1
        publisher.publish([BlockRemoved([1040], medium="GPU")])
        until(lambda: 1040 not in indexer.blocks(), "the removal has come through")


def test_dynamos_router_survives_a_replay_longer_than_any_socket_queue(
    context: zmq.Context[Socket], dynamo: Path
) -> None:
    # A ROUTER with ZeroMQ's default of 1000 messages loses the end marker here, and Dynamo reads nothing any more.
    count = 6000
    with (
        Publisher(ANY, dialect="vllm-map5", replay_endpoint=ANY) as publisher,
        LossyRelay(context, publisher.endpoint) as relay,
        Indexer(dynamo) as indexer,
    ):
        until(lambda: publisher.publish([]) >= 0 and relay.passed >= 0, "the relay is subscribed")
        indexer.register(relay.endpoint, publisher.replay_endpoint)
        blocks = chain(count + 2)
        until(
            lambda: publisher.publish([blocks[0]]) >= 0 and indexer.blocks() == {1000},
            "Dynamo has the first block",
        )
        base = publisher.stats.published
        relay.lose = set(range(base, base + count))
        for block in blocks[1:]:
            last = publisher.publish([block])
        until(lambda: relay.passed == last, "the relay has seen all of it")
        assert len(relay.lost) == count
        until(lambda: len(indexer.blocks()) == count + 2, f"every block is there: {indexer.said()}")
        assert publisher.stats.replay_overrun == 0
