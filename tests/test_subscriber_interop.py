"""The subscriber against real releases' own publishers, each in a process of its own, and against kvwire's."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from kvwire import BlockRemoved, BlockStored
from kvwire.dialects import Framing
from kvwire.index import BlockIndex, Policy
from kvwire.stream import Batch, Item, Limits, Lost, Restarted
from kvwire.zmq.publisher import Publisher
from kvwire.zmq.subscriber import Subscriber
from kvwire_conform.releases import Engine
from tests.real.catalog import require_source
from tests.real.driver import Event, Published, RealPublisher
from tests.tcp_proxy import Proxy

QUICK = Limits(silence=1.0, quiet=0.3, attempts=10)

RELEASES: list[tuple[Engine, str]] = [
    ("sglang", "0.4.6.post5"),  # batches of two
    ("sglang", "0.5.19"),  # arrays with a metadata map, replies without topic
    ("sglang", "0.5.23"),  # maps, replies with topic
    ("vllm", "0.23.0"),  # arrays of 12 slots, replies without topic
    ("vllm", "0.33.0"),  # maps, replies with topic
]
each_release = pytest.mark.parametrize(("engine", "version"), RELEASES, ids=[f"{e}-{v}" for e, v in RELEASES])


def stored(number: int, **more: Any) -> list[Event]:
    fields = {"block_hashes": [1000 + number], "parent_block_hash": None, "token_ids": [1, 2], "block_size": 2}
    return [("BlockStored", {**fields, "lora_id": None, **more})]


def events_for(engine: Engine, version: str) -> Callable[[int], list[Event]]:
    """The events of one batch, with what the release's structs require."""
    if (engine, version) == ("sglang", "0.4.6.post5"):
        return stored
    extra: dict[str, Any] = {"medium": "GPU"}
    if engine == "vllm":
        extra["lora_name"] = None
    return lambda number: stored(number, **extra)


def collect(subscriber: Subscriber, count: int, deadline: float = 20.0) -> list[Item]:
    until = time.monotonic() + deadline
    items: list[Item] = []
    while len(items) < count and time.monotonic() < until:
        item = subscriber.next(0.1)
        if item is not None:
            items.append(item)
    assert len(items) >= count, f"{len(items)} of {count} items: {items} {subscriber.stats}"
    return items


def payloads(items: Sequence[Item]) -> list[tuple[int, bytes]]:
    return [(item.seq, item.raw) for item in items if isinstance(item, Batch)]


def expected(published: Sequence[Published]) -> list[tuple[int, bytes]]:
    return [(batch.seq, batch.payload) for batch in published]


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    return port


@each_release
def test_everything_once_in_order_whatever_happens(engine: Engine, version: str) -> None:
    """Late to the stream, cut off, cut off with a gap, overrun, and killed: one subscriber sees it all."""
    require_source(engine, version)
    events = events_for(engine, version)
    ports = free_port(), free_port()
    where: dict[str, Any] = {"endpoint": f"tcp://*:{ports[0]}", "replay_endpoint": f"tcp://*:{ports[1]}"}
    with (
        Proxy(ports[0]) as live,
        Proxy(ports[1]) as replay,
        RealPublisher(engine, version, topic="kv@pod", **where) as publisher,
    ):
        sent = [publisher.publish(events(number)) for number in range(4)]
        with Subscriber(
            live.endpoint, replay=replay.endpoint, start="replay", topic="kv@", limits=QUICK, reconnect_max=0.1
        ) as subscriber:
            items = collect(subscriber, 4)
            sent += [publisher.publish(events(number)) for number in range(4, 8)]
            items += collect(subscriber, 4)
            # Cut off: what is published meanwhile is asked for, though nothing more comes live.
            live.refuse()
            live.cut()
            sent += [publisher.publish(events(number)) for number in range(8, 12)]
            live.refuse(False)
            items += collect(subscriber, 4)
            sent.append(publisher.publish(events(12)))
            items += collect(subscriber, 1)
            assert payloads(items) == expected(sent)
            [stats] = subscriber.stats.values()
            assert (stats.lost, stats.restarts, stats.failures) == (0, 0, 0)
            index = BlockIndex(Policy.SET)
            for item in items:
                index.apply(item)
            assert index.complete
            assert index.blocks() == {1000 + number for number in range(13)}

            publisher.kill()
            with RealPublisher(engine, version, topic="kv@pod", **where) as second:
                again = [second.publish(events(50 + number)) for number in range(3)]
                items = collect(subscriber, 4)
                assert isinstance(items[0], Restarted)
                assert payloads(items) == expected(again)
                for item in items:
                    index.apply(item)
                assert index.complete
                assert index.blocks() == {1050, 1051, 1052}


@each_release
def test_a_buffer_that_was_overrun(engine: Engine, version: str) -> None:
    require_source(engine, version)
    events = events_for(engine, version)
    with RealPublisher(engine, version, buffer_steps=3) as publisher:
        assert publisher.endpoint is not None
        sent = [publisher.publish(events(number)) for number in range(8)]
        with Subscriber(
            publisher.endpoint, replay=publisher.replay_endpoint, start="replay", limits=QUICK
        ) as subscriber:
            items = collect(subscriber, 4)
            assert items[0] == Lost(publisher.endpoint, 0, 4)
            assert payloads(items) == expected(sent[5:])
            sent.append(publisher.publish(events(8)))
            assert payloads(collect(subscriber, 1)) == expected(sent[8:])


@pytest.mark.parametrize(("engine", "version"), [("sglang", "0.5.23"), ("vllm", "0.33.0")])
def test_ranks_and_media_are_kept_apart(engine: Engine, version: str) -> None:
    require_source(engine, version)
    events = events_for(engine, version)
    with RealPublisher(engine, version, dp_rank=0) as zero, RealPublisher(engine, version, dp_rank=2) as two:
        endpoints = [p.endpoint for p in (zero, two)]
        replays = [p.replay_endpoint for p in (zero, two)]
        assert all(endpoints)
        zero.publish(events(1))
        two.publish(events(2))
        with Subscriber([str(e) for e in endpoints], replay=replays, start="replay", limits=QUICK) as subscriber:
            items = {item.source: item for item in collect(subscriber, 2)}
        for endpoint, rank, number in zip(endpoints, (0, 2), (1, 2), strict=True):
            item = items[str(endpoint)]
            assert isinstance(item, Batch)
            assert item.batch.dp_rank == rank
            assert item.batch.events[0].block_hashes == [1000 + number]


def test_publishers_that_connect() -> None:
    """SGLang and vLLM connect where their endpoint has no wildcard; the first batches are often lost, and replayed."""
    require_source("vllm", "0.33.0")
    events = events_for("vllm", "0.33.0")
    endpoint = f"tcp://127.0.0.1:{free_port()}"
    replays = {f"kv@pod{number}": f"tcp://127.0.0.1:{free_port()}" for number in range(2)}
    with Subscriber(endpoint, bind=True, replay=replays, topic="kv@", start="replay", limits=QUICK) as subscriber:
        publishers = [
            RealPublisher("vllm", "0.33.0", topic=topic, endpoint=endpoint, replay_endpoint=replay)
            for topic, replay in replays.items()
        ]
        with publishers[0] as one, publishers[1] as other:
            sent: dict[str, list[Published]] = {topic: [] for topic in replays}
            seen: dict[str, list[Item]] = {topic: [] for topic in replays}
            until = time.monotonic() + 20
            while time.monotonic() < until and not all(
                len(seen[topic]) >= 5 and len(seen[topic]) == len(sent[topic]) for topic in replays
            ):
                for topic, publisher in zip(replays, (one, other), strict=True):
                    if len(sent[topic]) < 5 or not seen[topic]:
                        sent[topic].append(publisher.publish(events(len(sent[topic]))))
                item = subscriber.next(0.05)
                if item is not None:
                    seen[item.source].append(item)
    for topic in replays:
        assert payloads(seen[topic]) == expected(sent[topic])
        assert len(seen[topic]) == len(sent[topic])


# kvwire's own publisher ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("framing", list(Framing))
@pytest.mark.parametrize("transport", ["tcp", "ipc", "inproc"])
def test_kvwires_own_publisher(framing: Framing, transport: str, tmp_path: Any) -> None:
    endpoints = {
        "tcp": ("tcp://127.0.0.1:0", "tcp://127.0.0.1:0"),
        "ipc": (f"ipc://{tmp_path}/live", f"ipc://{tmp_path}/replay"),
        "inproc": (f"inproc://live-{framing.value}", f"inproc://replay-{framing.value}"),
    }[transport]
    with Publisher(endpoints[0], dialect="slot7", replay_endpoint=endpoints[1], framing=framing) as publisher:
        for number in range(500):
            publisher.publish([BlockStored([number], None, [1, 2], 2, medium="GPU")])
        with Subscriber(
            publisher.endpoint, replay=publisher.replay_endpoint, start="replay", dialect="slot7", limits=QUICK
        ) as subscriber:
            items = collect(subscriber, 500)
            for number in range(500, 600):
                publisher.publish([BlockRemoved([number], medium="GPU")])
            items += collect(subscriber, 100)
    assert [item.seq for item in items if isinstance(item, Batch)] == list(range(600))
    assert items[599].batch.events == [BlockRemoved([599], medium="GPU")]  # type: ignore[union-attr]


def test_a_batch_that_its_publisher_could_not_encode_is_lost() -> None:
    """It takes its seq and is in no buffer."""
    with Publisher("tcp://127.0.0.1:0", dialect="slot7", replay_endpoint="tcp://127.0.0.1:0") as publisher:
        publisher.publish([BlockRemoved([0])])
        publisher.publish([BlockRemoved([1], ownership="a slot7 stream cannot say this")])
        publisher.publish([BlockRemoved([2])])
        with Subscriber(
            publisher.endpoint, replay=publisher.replay_endpoint, start="replay", limits=QUICK
        ) as subscriber:
            items = collect(subscriber, 3)
    assert items[1] == Lost(subscriber.sources[0], 1, 1)
    assert [seq for seq, _ in payloads(items)] == [0, 2]


def test_kvwires_own_publisher_restarted() -> None:
    with Publisher("tcp://127.0.0.1:0", dialect="vllm-map5", replay_endpoint="tcp://127.0.0.1:0") as publisher:
        endpoint, replay = publisher.endpoint, publisher.replay_endpoint
        subscriber = Subscriber(endpoint, replay=replay, start="replay", limits=QUICK, reconnect_max=0.1)
        publisher.publish([BlockRemoved([1])])
        publisher.publish([BlockRemoved([2])])
        items = collect(subscriber, 2)
    with subscriber, Publisher(endpoint, dialect="vllm-map5", replay_endpoint=replay, bind=True) as publisher:
        publisher.publish([BlockRemoved([3])])
        items += collect(subscriber, 2)
    assert isinstance(items[2], Restarted)
    assert isinstance(items[3], Batch)
    assert items[3].batch.events == [BlockRemoved([3])]
