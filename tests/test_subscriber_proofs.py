"""Over TCP, with everything that goes wrong there: what was published = what was yielded + what was reported lost."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import zmq

from kvwire.stream import Batch, Faulty, Item, Limits, Lost, Restarted
from kvwire.zmq.subscriber import Subscriber
from tests.ledger import Ledger, read
from tests.tcp_proxy import Proxy
from tests.wire_engine import END, TOPIC, Engine, payload_of

QUICK = Limits(silence=0.5, quiet=0.3, attempts=3, cooldown=0.2, cooldown_max=1.0)
PATIENT = Limits(silence=0.4, quiet=0.3, attempts=40)


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("replay", [True, False], ids=["replay", "no-replay"])
def test_killed_in_mid_stream_and_restarted(seed: int, replay: bool) -> None:
    chance = random.Random(seed)
    ledger = Ledger(0 if replay else None)
    ports = (0, 0)
    subscriber: Subscriber | None = None
    lives = 4
    try:
        for life in range(lives):
            with Engine(life=life, ports=ports, replay=replay) as engine:
                ports = engine.ports
                if subscriber is None:
                    subscriber = Subscriber(
                        engine.endpoint,
                        replay=engine.replay_endpoint if replay else None,
                        start="replay" if replay else "live",
                        limits=QUICK,
                        reconnect_max=0.2,
                    )
                last = life == lives - 1
                engine.publish(3000 if last else 100_000, pause=0.0005)
                if last:
                    read(subscriber, ledger, lambda: (ledger.life, ledger.covered) == (life, 3000))  # noqa: B023
                    break
                # Batches that must have come before the kill, so that every life is seen.
                seen = chance.randrange(50, 900)
                read(subscriber, ledger, lambda: ledger.life == life and (ledger.covered or 0) >= seen)  # noqa: B023
                if chance.random() < 0.5:
                    # Leave a backlog in the sockets.
                    time.sleep(chance.random() * 0.3)
                engine.kill()
                published = engine.published
                assert (ledger.covered or 0) <= published
        assert ledger.life == lives - 1
        assert ledger.lives == list(range(lives)), "not every life was seen"
        if replay:
            assert ledger.restarts == lives - 1
            # Only what was missed right before a kill, and died with the process that could have replayed it.
            assert {lost.reason for lost in ledger.lost} <= {"the publisher restarted", "the publisher went away"}
    finally:
        if subscriber is not None:
            subscriber.close()


@pytest.mark.parametrize("seed", [1, 2])
def test_connections_cut_and_stalled_at_random(seed: int) -> None:
    chance = random.Random(seed)
    ledger = Ledger()
    with (
        Engine(ring=100_000) as engine,
        Proxy(engine.ports[0]) as live,
        Proxy(engine.ports[1]) as replay,
        Subscriber(
            live.endpoint,
            replay=replay.endpoint,
            start="replay",
            limits=PATIENT,
            heartbeat=0.2,
            heartbeat_timeout=0.5,
            reconnect=0.02,
            reconnect_max=0.1,
        ) as subscriber,
    ):
        engine.publish(8000, pause=0.0005)
        for turn in range(16):
            proxy = chance.choice([live, live, replay]) if turn > 3 else live
            act = chance.choice(["cut", "cut", "stall", "refuse"]) if turn > 3 else "cut"
            if act == "cut":
                proxy.cut()
            elif act == "stall":
                proxy.stall()
            else:
                proxy.refuse()
                proxy.cut()
            until = time.monotonic() + chance.uniform(0.05, 0.7 if act == "stall" else 0.25)
            read(subscriber, ledger, lambda: time.monotonic() > until)  # noqa: B023
            proxy.stall(False)
            proxy.refuse(False)
            until = time.monotonic() + chance.uniform(0.0, 0.2)
            read(subscriber, ledger, lambda: time.monotonic() > until)  # noqa: B023
        engine.wait()
        read(subscriber, ledger, lambda: ledger.covered == engine.published)
        [stats] = subscriber.stats.values()
        assert stats.disconnects > 1, "the chaos did not reach the subscriber"
        assert stats.replayed > 0
        # The buffer holds everything, and nobody restarted.
        assert (ledger.yielded, ledger.lost, ledger.restarts) == (8000, [], 0)


@pytest.mark.parametrize(("ring", "loses"), [(40_000, False), (2_000, True)])
def test_frozen_past_the_high_water_mark(ring: int, loses: bool) -> None:
    batches = 20_000
    with Engine(ring=ring, hwm=500) as engine:
        consumer = subprocess.Popen(
            [
                sys.executable,
                str(Path(__file__).with_name("wire_consumer.py")),
                engine.endpoint,
                engine.replay_endpoint,
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert consumer.stdout is not None
        assert consumer.stdin is not None
        try:
            engine.publish_and_wait(100, payload=500)
            assert json.loads(consumer.stdout.readline())["covered"] >= 1
            consumer.send_signal(signal.SIGSTOP)
            engine.publish_and_wait(batches, payload=500)
            consumer.send_signal(signal.SIGCONT)
            consumer.stdin.write(f"{batches + 100}\n")
            consumer.stdin.flush()
            told = json.loads(consumer.stdout.readline())
        finally:
            consumer.kill()
            consumer.wait(10)
            consumer.stdin.close()
            consumer.stdout.close()
    assert told["covered"] == batches + 100 == told["yielded"] + told["lost"]
    assert told["restarts"] == 0
    assert told["replayed"] > 0, "it was not frozen long enough to miss anything"
    assert (told["lost"] > 0) is loses


def test_the_replay_buffer_is_overrun() -> None:
    ledger = Ledger()
    with (
        Engine(ring=20, seed=3) as engine,
        Subscriber(engine.endpoint, replay=engine.replay_endpoint, start="replay", limits=QUICK) as subscriber,
    ):
        read(subscriber, ledger, lambda: sum(s.requests for s in subscriber.stats.values()) > 0)
        engine.publish(5000, drop=0.3)
        engine.publish(500, drop=0.3, pause=0.001)
        engine.wait()
        read(subscriber, ledger, lambda: ledger.covered == 5500)
    assert ledger.yielded + ledger.lost_count == 5500
    assert ledger.lost_count > 0
    assert ledger.restarts == 0


def test_two_subscribers_replay_at_once() -> None:
    with Engine(ring=10_000) as engine:
        engine.publish_and_wait(10_000)
        ledgers = [Ledger(), Ledger()]
        subscribers = [
            Subscriber(engine.endpoint, replay=engine.replay_endpoint, start="replay", limits=QUICK) for _ in ledgers
        ]

        def run(subscriber: Subscriber, ledger: Ledger) -> None:
            with subscriber:
                read(subscriber, ledger, lambda: ledger.covered == 12_000)

        threads = [threading.Thread(target=run, args=pair) for pair in zip(subscribers, ledgers, strict=True)]
        for thread in threads:
            thread.start()
        engine.publish(2000, drop=0.05)
        for thread in threads:
            thread.join(40)
    assert [ledger.covered for ledger in ledgers] == [12_000, 12_000]
    # What the ring lost while a replay was under way is the ring's; at least the newest 10,000 were there all the time.
    for ledger in ledgers:
        assert ledger.yielded + ledger.lost_count == 12_000
        assert ledger.yielded >= 10_000


@pytest.mark.slow
def test_two_hundred_thousand_batches_with_losses() -> None:
    batches = 200_000
    ledger = Ledger()
    with (
        Engine(ring=batches, seed=5) as engine,
        Subscriber(
            engine.endpoint, replay=engine.replay_endpoint, start="replay", limits=QUICK, hwm=100_000
        ) as subscriber,
    ):
        read(subscriber, ledger, lambda: sum(s.requests for s in subscriber.stats.values()) > 0)
        engine.publish(batches, drop=0.05)
        read(subscriber, ledger, lambda: ledger.covered == batches, deadline=60, each=1.0)
        [stats] = subscriber.stats.values()
    assert (ledger.yielded, ledger.lost, ledger.restarts) == (batches, [], 0)
    assert stats.replayed > 5_000


# A replay endpoint that does everything wrong, next to a live stream that does everything right.

Behaviour = Callable[["Hostile", list[bytes], int], None]


class Hostile:
    """A PUB socket that skips batches, and a ROUTER that answers as it is told to; a thread for the ROUTER."""

    def __init__(self, behaviour: Behaviour) -> None:
        self.behaviour = behaviour
        self.context: zmq.Context[Any] = zmq.Context()
        self.pub = self.context.socket(zmq.PUB)
        self.pub.bind("tcp://127.0.0.1:*")
        self.router = self.context.socket(zmq.ROUTER)
        self.router.setsockopt(zmq.LINGER, 0)
        self.router.setsockopt(zmq.SNDTIMEO, 1000)
        self.router.bind("tcp://127.0.0.1:*")
        self.endpoint = self.pub.getsockopt_string(zmq.LAST_ENDPOINT)
        self.replay_endpoint = self.router.getsockopt_string(zmq.LAST_ENDPOINT)
        self.asked = 0
        self.running = True
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    def publish(self, seq: int) -> None:
        self.pub.send_multipart((TOPIC, seq.to_bytes(8, "big"), payload_of(0, seq)))

    def reply(self, identity: list[bytes], seq: int, payload: bytes | None = None) -> None:
        self.router.send_multipart(
            [*identity, b"", TOPIC, seq.to_bytes(8, "big"), payload_of(0, seq) if payload is None else payload]
        )

    def end(self, identity: list[bytes]) -> None:
        self.router.send_multipart([*identity, b"", b"", END, b""])

    def _serve(self) -> None:
        while self.running:
            if not self.router.poll(20):
                continue
            identity, _, start = self.router.recv_multipart()
            self.asked += 1
            self.behaviour(self, [identity], int.from_bytes(start, "big"))

    def close(self) -> None:
        self.running = False
        self.thread.join(10)
        self.context.destroy(linger=0)


@contextmanager
def hostile(behaviour: Behaviour) -> Iterator[Hostile]:
    endpoint = Hostile(behaviour)
    try:
        yield endpoint
    finally:
        endpoint.close()


def silent(peer: Hostile, identity: list[bytes], start: int) -> None:
    """Never answers."""


def empty(peer: Hostile, identity: list[bytes], start: int) -> None:
    """Always says that there is nothing."""
    peer.end(identity)


def no_end(peer: Hostile, identity: list[bytes], start: int) -> None:
    """Answers right, but does not say that it is done."""
    for seq in range(start, start + 3):
        peer.reply(identity, seq)


def loop(peer: Hostile, identity: list[bytes], start: int) -> None:
    """Sends the same batches over and over."""
    for _ in range(400):
        for seq in range(start, start + 10):
            peer.reply(identity, seq)


def never_ends(peer: Hostile, identity: list[bytes], start: int) -> None:
    """Invents batches for as long as anyone listens."""
    until = time.monotonic() + 2
    seq = start
    while time.monotonic() < until and peer.running:
        peer.reply(identity, seq)
        seq += 1
        if seq % 500 == 0:
            time.sleep(0.01)


def elsewhere(peer: Hostile, identity: list[bytes], start: int) -> None:
    """Sends seqs that nobody asked for."""
    for seq in (2**63, 2**64 - 2, 10**12, 0, start - 1 if start else 0):
        peer.reply(identity, seq, b"\x93\xcb\x00\x00\x00\x00\x00\x00\x00\x00\x90\x00")
    peer.end(identity)


def garbage(peer: Hostile, identity: list[bytes], start: int) -> None:
    """Sends frames that are no reply."""
    peer.router.send_multipart([*identity, b"", b"what?"])
    peer.router.send_multipart([*identity, b"x" * 30] + [b""] * 100)


def short_seq(peer: Hostile, identity: list[bytes], start: int) -> None:
    """Sends a seq of three bytes, which made a consumer panic (llm-d-kv-cache #491)."""
    peer.router.send_multipart([*identity, b"", TOPIC, b"\x00\x00\x01", b"\x90"])


def rubbish_payload(peer: Hostile, identity: list[bytes], start: int) -> None:
    """Sends payloads that are no batches."""
    for seq in range(start, start + 3):
        peer.reply(identity, seq, b"\xc1\xc1")
    peer.end(identity)


def huge(peer: Hostile, identity: list[bytes], start: int) -> None:
    """Sends a payload beyond the limit of a frame, which ends the connection."""
    peer.reply(identity, start, bytes(300_000))


def forged(peer: Hostile, identity: list[bytes], start: int) -> None:
    """Sends other batches than were live."""
    for seq in range(start, start + 40):
        peer.reply(identity, seq, payload_of(7, seq))
    peer.end(identity)


BEHAVIOURS = [silent, empty, no_end, loop, never_ends, elsewhere, garbage, short_seq, rubbish_payload, huge, forged]


@pytest.mark.parametrize("behaviour", BEHAVIOURS, ids=lambda behaviour: behaviour.__name__)
def test_a_hostile_replay_endpoint(behaviour: Behaviour) -> None:
    limits = Limits(silence=0.2, quiet=0.2, attempts=2, total=3.0, cooldown=0.3, cooldown_max=0.3)
    with (
        hostile(behaviour) as peer,
        Subscriber(
            peer.endpoint, replay=peer.replay_endpoint, limits=limits, max_payload=100_000, reconnect_max=0.1
        ) as subscriber,
    ):
        # Everything is published until it is known to arrive; then with gaps.
        published = 0
        items: list[Item] = []
        deadline = time.monotonic() + 20
        while not items and time.monotonic() < deadline:
            peer.publish(published)
            published += 1
            item = subscriber.next(0.05)
            if item is not None:
                items.append(item)
        assert items, "nothing came"
        sent = set()
        for _ in range(12):
            published += 2
            for _ in range(3):
                peer.publish(published)
                sent.add(published)
                published += 1
            item = subscriber.next(0.02)
            if item is not None:
                items.append(item)
        # One batch a while later: whatever the replay has done by then, the live stream goes on.
        deadline = time.monotonic() + 15
        told: set[int] = set()
        while published - 1 not in told and time.monotonic() < deadline:
            item = subscriber.next(0.1)
            if item is not None:
                items.append(item)
                if isinstance(item, Batch) and item.raw == payload_of(0, item.seq):
                    told.add(item.seq)
        assert published - 1 in told, f"the live stream hangs: {subscriber.stats}"
        [stats] = subscriber.stats.values()
    assert peer.asked > 0
    covered: set[int] = set()
    position: int | None = None
    for item in items:
        if isinstance(item, Restarted):
            position = 0
            continue
        if isinstance(item, Faulty) and item.seq is None:
            continue
        first, last = (item.first, item.last) if isinstance(item, Lost) else (item.seq, item.seq)
        assert first is not None
        assert last is not None
        assert position in (None, first), f"{item} where {position} is due"
        position = last + 1
        covered.update(range(first, min(last, published) + 1))
    assert sent <= covered, "live batches that were neither yielded nor lost"
    if behaviour in (silent, empty, garbage, short_seq, rubbish_payload, huge, elsewhere, loop, no_end):
        # Such lies do not even disturb what came live.
        assert sent <= {item.seq for item in items if isinstance(item, Batch)}
        assert not any(isinstance(item, Restarted) for item in items)
    if behaviour in (silent, garbage, short_seq, huge):
        assert stats.failures > 0
        assert any(isinstance(item, Lost) and "replay" in item.reason for item in items)
    if behaviour in (garbage, short_seq):
        assert any(isinstance(item, Faulty) for item in items)
