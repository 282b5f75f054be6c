"""The publisher on real sockets: what it sends, replays, refuses to lose silently, and survives."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import random
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq
from hypothesis import given
from hypothesis import strategies as st

import kvwire
from kvwire import AllBlocksCleared, BlockRemoved, BlockStored, EventBatch, UsageError
from kvwire.dialects import Framing
from kvwire.zmq import replay_server
from kvwire.zmq.config import ConfigError
from kvwire.zmq.endpoints import EndpointError
from kvwire.zmq.publisher import CloseReport, NullPublisher, Publisher, PublisherClosedError, QueueFullError
from kvwire.zmq.replay_server import ReplayBuffer
from kvwire.zmq.sender import Sender
from tests.publisher_clients import (
    DEADLINE,
    DEADLINE_MS,
    RawPeer,
    Socket,
    answer,
    join,
    receive,
    receive_all,
    receive_reply,
    replay_client,
    replayed,
    subscriber,
    until,
)

ANY = "tcp://127.0.0.1:0"
ROOT = Path(__file__).resolve().parent.parent
BAD = EventBatch(math.nan, [])
"""A batch that no dialect can encode."""


def stored(number: int, tokens: int = 4) -> BlockStored:
    return BlockStored([number + 1], number or None, list(range(tokens)), tokens, medium="GPU")


def batch(number: int, rank: int | None = None) -> EventBatch:
    return EventBatch(1.5 + number, [stored(number)], rank)


@pytest.fixture
def context() -> Iterator[zmq.Context[Socket]]:
    own: zmq.Context[Socket] = zmq.Context()
    yield own
    own.destroy(linger=0)


class Hold:
    """An ``on_error`` that keeps the publisher's thread where it is, so that the queue fills."""

    def __init__(self) -> None:
        self.release = threading.Event()
        self._entered = threading.Event()

    def __call__(self, seq: int, error: Exception) -> None:
        self._entered.set()
        self.release.wait(DEADLINE)

    def __enter__(self) -> Hold:
        return self

    def __exit__(self, *_: object) -> None:
        self.release.set()

    def stop(self, publisher: Publisher) -> None:
        """Have the publisher's thread stop, at a batch that cannot be encoded."""
        publisher.publish(BAD)
        assert self._entered.wait(DEADLINE)


def settle(publisher: Publisher) -> None:
    until(lambda: not publisher.stats.queued and _accounted(publisher), f"the queue is empty: {publisher.stats}")


def _accounted(publisher: Publisher) -> bool:
    stats = publisher.stats
    return stats.published == stats.sent + stats.dropped + stats.errors


# What is sent ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dialect", ["slot6-b2", "slot7", "slot8", "dynamo", "sglang-map2", "vllm-map5"])
def test_a_message_is_topic_seq_and_the_dialects_own_bytes(context: zmq.Context[Socket], dialect: str) -> None:
    given = [
        EventBatch(1.25, [BlockStored([7, 8], None, list(range(8)), 4), BlockRemoved([7])]),
        EventBatch(1.5, [AllBlocksCleared()]),
    ]
    with (
        Publisher(ANY, dialect=dialect, topic="kv@pod@model") as publisher,
        subscriber(context, publisher.endpoint, b"kv@") as sub,
    ):
        newest = join(sub, lambda: publisher.publish([]))
        seqs = [publisher.publish(item) for item in given]
        assert seqs == [newest + 1, newest + 2]
        rank = None if dialect == "slot6-b2" else 0
        for seq, item in zip(seqs, given, strict=True):
            live = receive(sub)
            expected = kvwire.encode(EventBatch(item.ts, item.events, rank), dialect)
            assert (live.topic, live.seq, live.payload) == ("kv@pod@model", seq, expected)


def test_a_batch_without_a_rank_gets_the_publishers_and_is_not_changed(context: zmq.Context[Socket]) -> None:
    with Publisher(ANY, dialect="slot7", dp_rank=3) as publisher, subscriber(context, publisher.endpoint) as sub:
        join(sub, lambda: publisher.publish([]))
        bare, ranked = batch(0), batch(1, rank=5)
        publisher.publish(bare)
        publisher.publish(ranked)
        assert kvwire.decode(receive(sub).payload).dp_rank == 3
        assert kvwire.decode(receive(sub).payload).dp_rank == 5
        assert bare.dp_rank is None


def test_a_list_of_events_gets_its_time_and_may_be_emptied_afterwards(context: zmq.Context[Socket]) -> None:
    with Publisher(ANY, dialect="slot7") as publisher, subscriber(context, publisher.endpoint) as sub:
        join(sub, lambda: publisher.publish([]))
        events = [stored(0), stored(1)]
        before = time.time()
        publisher.publish(events)
        events.clear()
        after = time.time()
        got = kvwire.decode(receive(sub).payload)
        assert got.events == [stored(0), stored(1)]
        assert before <= got.ts <= after


def test_an_encoded_payload_is_sent_as_it_is(context: zmq.Context[Socket]) -> None:
    payload = kvwire.encode(batch(0), "vllm-map5")
    with Publisher(ANY, dialect="slot7") as publisher, subscriber(context, publisher.endpoint) as sub:
        join(sub, lambda: publisher.publish(b"\x90"))
        publisher.publish(payload)
        assert receive(sub).payload == payload


@pytest.mark.parametrize("wrong", [None, "text", {"events": []}, b"", stored(0)])
def test_publish_refuses_what_is_no_batch_at_once(wrong: Any) -> None:
    with Publisher(ANY, dialect="slot7") as publisher:
        with pytest.raises(UsageError):
            publisher.publish(wrong)
        assert publisher.stats.published == 0


def test_every_thread_gets_its_seq_and_keeps_its_order(context: zmq.Context[Socket]) -> None:
    each, threads = 500, 4
    seqs: list[list[int]] = [[] for _ in range(threads)]
    with Publisher(ANY, dialect="slot7", hwm=0) as publisher, subscriber(context, publisher.endpoint) as sub:
        first = join(sub, lambda: publisher.publish([])) + 1

        def publish(mine: int) -> None:
            seqs[mine].extend(publisher.publish(EventBatch(number, [], mine)) for number in range(each))

        running = [threading.Thread(target=publish, args=(mine,)) for mine in range(threads)]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()
        got = receive_all(sub, first + each * threads - 1)
    assert [live.seq for live in got] == list(range(first, first + each * threads))
    for mine in range(threads):
        batches = [(live.seq, kvwire.decode(live.payload)) for live in got]
        assert [(seq, item.ts) for seq, item in batches if item.dp_rank == mine] == list(
            zip(seqs[mine], map(float, range(each)), strict=True)
        )


def test_a_platform_without_eventfd(context: zmq.Context[Socket], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "eventfd", raising=False)
    with Publisher(ANY, dialect="slot7") as publisher, subscriber(context, publisher.endpoint) as sub:
        join(sub, lambda: publisher.publish([]))
        for _ in range(1000):
            last = publisher.publish([])
        receive_all(sub, last)
        assert publisher.close() == CloseReport()


# Batches that cannot be sent ------------------------------------------------------------------------------------------


class _Explosive:
    """An event that fails in the hands of the encoder."""

    @property
    def tag(self) -> str:
        raise ZeroDivisionError(f"read in {threading.current_thread().name}")


@pytest.mark.parametrize(
    "bad",
    [
        BAD,
        EventBatch(1.0, [_Explosive()]),
        EventBatch(1.0, [BlockStored([1], None, [1], 1, lora_name="x")]),
        [object()],
    ],
)
def test_a_batch_that_cannot_be_encoded_is_reported_and_leaves_a_gap(context: zmq.Context[Socket], bad: Any) -> None:
    told: list[tuple[int, Exception, str]] = []

    def on_error(seq: int, error: Exception) -> None:
        told.append((seq, error, threading.current_thread().name))
        raise RuntimeError("a callback's own fault is not the publisher's")

    with (
        Publisher(ANY, dialect="slot7", replay_endpoint=ANY, on_error=on_error) as publisher,
        subscriber(context, publisher.endpoint) as sub,
        replay_client(context, publisher.replay_endpoint) as client,
    ):
        newest = join(sub, lambda: publisher.publish(batch(0)))
        lost = publisher.publish(bad)
        assert lost == newest + 1
        after = publisher.publish(batch(1))
        assert receive(sub).seq == after == newest + 2
        assert [(seq, name) for seq, _, name in told] == [(lost, "kvwire-publisher-0")]
        assert publisher.stats.errors == 1
        assert lost not in dict(replayed(client, newest))


def test_a_lost_field_can_be_dropped_instead(context: zmq.Context[Socket]) -> None:
    with (
        Publisher(ANY, dialect="slot7", on_loss="drop") as publisher,
        subscriber(context, publisher.endpoint) as sub,
    ):
        join(sub, lambda: publisher.publish([]))
        publisher.publish([BlockStored([1], None, [1], 1, lora_name="adapter")])
        assert kvwire.decode(receive(sub).payload).events == [BlockStored([1], None, [1], 1)]


# A full queue ---------------------------------------------------------------------------------------------------------


def test_drop_oldest_leaves_a_gap_where_the_dropped_were(context: zmq.Context[Socket]) -> None:
    with (
        Hold() as hold,
        Publisher(ANY, dialect="slot7", max_queue=3, on_full="drop-oldest", on_error=hold) as publisher,
        subscriber(context, publisher.endpoint) as sub,
    ):
        newest = join(sub, lambda: publisher.publish([]))
        hold.stop(publisher)
        seqs = [publisher.publish(batch(number)) for number in range(8)]
        assert seqs == list(range(newest + 2, newest + 10))
        assert publisher.stats.dropped == 5
        hold.release.set()
        assert [live.seq for live in receive_all(sub, seqs[-1])] == seqs[-3:]
        settle(publisher)


def test_raise_refuses_and_the_same_batch_again_leaves_no_gap(context: zmq.Context[Socket]) -> None:
    with (
        Hold() as hold,
        Publisher(ANY, dialect="slot7", max_queue=2, on_full="raise", on_error=hold) as publisher,
        subscriber(context, publisher.endpoint) as sub,
    ):
        newest = join(sub, lambda: publisher.publish([]))
        hold.stop(publisher)
        publisher.publish(batch(0))
        publisher.publish(batch(1))
        refused = batch(2)
        for _ in range(3):
            with pytest.raises(QueueFullError, match="max_queue"):
                publisher.publish(refused)
        hold.release.set()
        settle(publisher)
        assert publisher.publish(refused) == newest + 4
        assert [live.seq for live in receive_all(sub, newest + 4)] == [newest + 2, newest + 3, newest + 4]
        assert publisher.stats.dropped == 0


def test_raise_refuses_and_another_batch_leaves_a_gap(context: zmq.Context[Socket]) -> None:
    with (
        Hold() as hold,
        Publisher(ANY, dialect="slot7", max_queue=1, on_full="raise", on_error=hold) as publisher,
        subscriber(context, publisher.endpoint) as sub,
    ):
        newest = join(sub, lambda: publisher.publish([]))
        hold.stop(publisher)
        publisher.publish(batch(0))
        again, payload = [stored(1)], bytes(10)
        for refused in (batch(1), again, again, payload, payload):
            with pytest.raises(QueueFullError):
                publisher.publish(refused)
        hold.release.set()
        settle(publisher)
        # As many lost batches as refusals: a list may be filled anew, and equal bytes may be two batches.
        assert publisher.publish(payload) == newest + 8
        assert [live.seq for live in receive_all(sub, newest + 8)] == [newest + 2, newest + 8]
        assert publisher.stats.dropped == 5


def test_block_waits_for_room_and_no_longer_than_asked() -> None:
    with (
        Hold() as hold,
        Publisher(ANY, dialect="slot7", max_queue=1, block_timeout=0.02, on_error=hold) as publisher,
    ):
        hold.stop(publisher)
        publisher.publish(batch(0))
        with pytest.raises(QueueFullError, match=r"after 0\.02 s"):
            publisher.publish(batch(1))
        hold.release.set()


def test_block_goes_on_when_there_is_room_and_ends_at_close() -> None:
    with Hold() as hold, Publisher(ANY, dialect="slot7", max_queue=1, on_error=hold) as publisher:
        hold.stop(publisher)
        publisher.publish(batch(0))
        outcome: list[object] = []

        def publish() -> None:
            try:
                outcome.append(publisher.publish(batch(1)))
            except PublisherClosedError as error:
                outcome.append(error)

        blocked = [threading.Thread(target=publish) for _ in range(2)]
        for thread in blocked:
            thread.start()
        until(lambda: publisher._outbox._waiting == 2, "two threads wait for room")
        assert outcome == []
        publisher._outbox.take(1)
        until(lambda: len(outcome) == 1, "one thread got the room")
        assert outcome == [2]
        closing = threading.Thread(target=publisher.close, args=(0.05,))
        closing.start()
        for thread in blocked:
            thread.join(DEADLINE)
        assert isinstance(outcome[1], PublisherClosedError)
        hold.release.set()
        closing.join(DEADLINE)


# Replay ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dialect", "framing", "expected"),
    [
        ("slot7", None, Framing.SEQ_PAYLOAD),
        ("vllm-map5", None, Framing.TOPIC_SEQ_PAYLOAD),
        ("slot7", Framing.TOPIC_SEQ_PAYLOAD, Framing.TOPIC_SEQ_PAYLOAD),
        ("vllm-map5", Framing.SEQ_PAYLOAD, Framing.SEQ_PAYLOAD),
    ],
)
def test_replay_in_both_framings_from_any_seq(
    context: zmq.Context[Socket], dialect: str, framing: Framing | None, expected: Framing
) -> None:
    with (
        Publisher(ANY, dialect=dialect, replay_endpoint=ANY, topic="kv", framing=framing) as publisher,
        replay_client(context, publisher.replay_endpoint) as client,
    ):
        sent = [kvwire.encode(batch(number, 0), dialect) for number in range(20)]
        for number in range(20):
            publisher.publish(batch(number))
        settle(publisher)
        for asked in (0, 7, 19, 20, 2**64 - 1):
            replies = answer(client, asked)
            assert {reply.framing for reply in replies} == {expected}
            assert [(reply.seq, reply.payload) for reply in replies[:-1]] == list(enumerate(sent))[asked:]
            topics = {reply.topic for reply in replies[:-1]}
            assert topics <= ({"kv"} if expected is Framing.TOPIC_SEQ_PAYLOAD else {None})


def test_replay_before_the_first_batch_is_an_end_marker_alone(context: zmq.Context[Socket]) -> None:
    with (
        Publisher(ANY, dialect="slot7", replay_endpoint=ANY) as publisher,
        replay_client(context, publisher.replay_endpoint) as client,
    ):
        assert replayed(client, 0) == []


@pytest.mark.parametrize(
    ("bounds", "kept"),
    [({"buffer_steps": 5}, 5), ({"buffer_bytes": 350}, 3), ({"buffer_steps": 0}, 0), ({"buffer_bytes": 99}, 0)],
)
def test_an_overrun_buffer_answers_with_what_it_still_has(
    context: zmq.Context[Socket], bounds: dict[str, int], kept: int
) -> None:
    with (
        Publisher(ANY, dialect="slot7", replay_endpoint=ANY, **bounds) as publisher,  # type: ignore[arg-type]
        replay_client(context, publisher.replay_endpoint) as client,
    ):
        for _ in range(20):
            publisher.publish(bytes(100))
        settle(publisher)
        assert [seq for seq, _ in replayed(client, 3)] == list(range(20 - kept, 20))
        assert publisher.stats.buffered == kept
        assert publisher.stats.buffered_bytes == kept * 100


def test_what_is_live_is_there_to_replay_byte_for_byte(context: zmq.Context[Socket]) -> None:
    source = random.Random(3)
    with (
        Publisher(ANY, dialect="slot7", replay_endpoint=ANY) as publisher,
        subscriber(context, publisher.endpoint) as sub,
        replay_client(context, publisher.replay_endpoint) as client,
    ):
        first = join(sub, lambda: publisher.publish([])) + 1
        for _ in range(200):
            publisher.publish(source.randbytes(source.randint(1, 3000)))
            if source.random() < 0.1:
                live = receive_all(sub, publisher.stats.published - 1)
                assert replayed(client, live[0].seq) == [(item.seq, item.payload) for item in live]
        assert replayed(client, first)[-1][0] == publisher.stats.published - 1


@pytest.mark.parametrize(("kind", "taken", "refused"), [(b"REQ", 21, 0), (b"DEALER", 9, 12)])
def test_a_req_clients_request_supersedes_its_last_one_and_others_wait_in_line(
    kind: bytes, taken: int, refused: int
) -> None:
    with (
        Publisher(ANY, dialect="slot7", replay_endpoint=ANY) as publisher,
        contextlib.closing(RawPeer(publisher.replay_endpoint, kind)) as mute,
    ):
        for _ in range(1000):
            publisher.publish(bytes(20_000))
        settle(publisher)
        mute.ask(0)
        until(lambda: publisher.stats.replayed > 0, "the first replay has begun")
        for start in range(20):
            mute.ask(start)
        until(lambda: publisher.stats.replay_requests + publisher.stats.replay_refused == 21, "all have come")
        assert (publisher.stats.replay_requests, publisher.stats.replay_refused) == (taken, refused)
        assert publisher.close(0).replays_cut == 1


def test_a_req_client_gets_the_first_reply_to_each_request(context: zmq.Context[Socket]) -> None:
    with (
        Publisher(ANY, dialect="vllm-map5", replay_endpoint=ANY) as publisher,
        replay_client(context, publisher.replay_endpoint, zmq.REQ) as client,
    ):
        for expected in range(5):
            seq = publisher.publish(batch(expected))
            settle(publisher)
            client.send(seq.to_bytes(8, "big"))
            assert client.poll(DEADLINE_MS)
            assert client.recv_multipart() == [
                b"",
                seq.to_bytes(8, "big"),
                kvwire.encode(batch(expected, 0), "vllm-map5"),
            ]
            until(lambda: publisher.stats.replay_clients == 0, "the end marker, which a REQ throws away, is sent")


def test_the_thread_waits_for_a_signal_not_for_time_when_there_is_nothing_to_do(
    context: zmq.Context[Socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[int | None] = []
    timeout = Sender._timeout

    def noted(sender: Sender) -> int | None:
        waits.append(timeout(sender))
        return waits[-1]

    monkeypatch.setattr(Sender, "_timeout", noted)
    with (
        Publisher(ANY, dialect="slot7", replay_endpoint=ANY) as publisher,
        contextlib.closing(RawPeer(publisher.replay_endpoint)) as mute,
    ):
        for _ in range(500):
            publisher.publish(bytes(50_000))
        settle(publisher)
        until(lambda: waits[-1] is None, "the thread waits without end")
        mute.ask(0)
        until(lambda: waits[-1] == replay_server.LAST_RETRY * 1000, "the stalled client is tried more and more seldom")
        mute.close()
        until(lambda: waits[-1] is None, "the thread waits without end again")


def test_two_clients_and_live_batches_at_once(context: zmq.Context[Socket]) -> None:
    kept = 1500
    with (
        Publisher(ANY, dialect="slot7", replay_endpoint=ANY) as publisher,
        subscriber(context, publisher.endpoint) as sub,
        replay_client(context, publisher.replay_endpoint, rcvhwm=2) as one,
        replay_client(context, publisher.replay_endpoint, rcvhwm=2) as two,
    ):
        payload = bytes(20_000)
        first = join(sub, lambda: publisher.publish(payload)) + 1
        for _ in range(kept):
            publisher.publish(payload)
        receive_all(sub, first + kept - 1)
        starts = {one: first, two: first + 200}
        for client, start in starts.items():
            client.send_multipart([b"", start.to_bytes(8, "big")])
            assert receive_reply(client).seq == start
        # Each client has begun to read and pauses: what it has not read is more than all buffers on the way hold.
        for _ in range(20):
            receive_all(sub, publisher.publish(payload))
        assert publisher.stats.replay_clients == 2
        for client, start in starts.items():
            assert [reply.seq for reply in answer(client)[:-1]] == list(range(start + 1, first + kept))


def test_live_batches_pass_a_client_that_never_reads(context: zmq.Context[Socket]) -> None:
    with (
        Publisher(ANY, dialect="slot7", replay_endpoint=ANY) as publisher,
        subscriber(context, publisher.endpoint) as sub,
        replay_client(context, publisher.replay_endpoint) as good,
        contextlib.closing(RawPeer(publisher.replay_endpoint)) as mute,
    ):
        join(sub, lambda: publisher.publish(bytes(20_000)))
        for _ in range(2000):
            publisher.publish(bytes(20_000))
        receive_all(sub, publisher.stats.published - 1)
        mute.ask(0)
        until(lambda: publisher.stats.replayed > 0, "the mute client's replay has begun")
        for _ in range(50):
            receive_all(sub, publisher.publish(bytes(20_000)))
        assert publisher.stats.replay_clients == 1
        assert len(replayed(good, 1000)) == publisher.stats.published - 1000
        assert publisher.stats.replay_clients == 1
        assert publisher.stats.replay_answered == 1


def test_a_client_that_asks_ahead_gets_every_answer_in_order(context: zmq.Context[Socket]) -> None:
    with (
        Publisher(ANY, dialect="slot7", replay_endpoint=ANY) as publisher,
        replay_client(context, publisher.replay_endpoint) as client,
    ):
        for _ in range(50):
            publisher.publish(bytes(100))
        settle(publisher)
        starts = [40, 49, 50, 0, 7]
        for start in starts:
            client.send_multipart([b"", start.to_bytes(8, "big")])
        for start in starts:
            assert [reply.seq for reply in answer(client)[:-1]] == list(range(start, 50))


def test_a_slow_client_whose_batches_leave_the_buffer_sees_the_hole_and_the_end(context: zmq.Context[Socket]) -> None:
    with (
        Publisher(ANY, dialect="slot7", replay_endpoint=ANY, buffer_steps=400) as publisher,
        replay_client(context, publisher.replay_endpoint, rcvhwm=2) as client,
    ):
        for _ in range(400):
            publisher.publish(bytes(200_000))
        settle(publisher)
        client.send_multipart([b"", bytes(8)])
        until(lambda: publisher.stats.replayed > 0, "the replay has begun")
        for _ in range(600):
            publisher.publish(b"\x90")
        settle(publisher)
        seqs = [reply.seq for reply in answer(client)[:-1]]
        assert seqs == sorted(set(seqs))
        assert seqs[-1] < 400
        assert publisher.stats.replay_overrun == 400 - len(seqs) > 0


# Replay clients that mean harm ----------------------------------------------------------------------------------------


def test_malformed_requests_are_counted_and_the_next_good_one_is_answered(
    context: zmq.Context[Socket], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    with (
        Publisher(ANY, dialect="slot7", replay_endpoint=ANY) as publisher,
        replay_client(context, publisher.replay_endpoint) as client,
    ):
        publisher.publish(batch(0))
        settle(publisher)
        garbage: list[list[bytes]] = [
            [bytes(8)],
            [b""],
            [b"x", bytes(8)],
            [b"", b"", bytes(8)],
            [b"", bytes(8), b""],
            [b""] * 5000,
        ]
        for frames in garbage:
            client.send_multipart(frames)
        assert [seq for seq, _ in replayed(client, 0)] == [0]
        assert publisher.stats.replay_malformed == len(garbage)
        assert publisher.stats.replay_requests == 1
        # One line in the log, however many come.
        assert [record.message.partition(":")[0] for record in caplog.records] == ["ignored a replay request"]


@pytest.mark.parametrize(("asked", "first"), [(b"", 0), (b"\x02", 2), (bytes(31) + b"\x03", 3)])
def test_a_start_seq_of_another_width_is_read_as_the_engines_do(
    context: zmq.Context[Socket], asked: bytes, first: int
) -> None:
    with (
        Publisher(ANY, dialect="slot7", replay_endpoint=ANY) as publisher,
        replay_client(context, publisher.replay_endpoint) as client,
    ):
        for number in range(5):
            publisher.publish(batch(number))
        settle(publisher)
        client.send_multipart([b"", asked])
        assert [reply.seq for reply in answer(client)[:-1]] == list(range(first, 5))


def test_bytes_that_are_no_zmtp_and_frames_too_large_are_cut_off(context: zmq.Context[Socket]) -> None:
    source = random.Random(11)
    with (
        Publisher(ANY, dialect="slot7", replay_endpoint=ANY) as publisher,
        replay_client(context, publisher.replay_endpoint) as client,
        contextlib.closing(RawPeer(publisher.replay_endpoint)) as huge,
        contextlib.closing(RawPeer(publisher.replay_endpoint)) as large,
    ):
        publisher.publish(batch(0))
        settle(publisher)
        port = int(publisher.replay_endpoint.rpartition(":")[2]) if publisher.replay_endpoint else 0
        for _ in range(20):
            with socket.create_connection(("127.0.0.1", port)) as plain:
                plain.sendall(source.randbytes(source.randint(1, 200)))
        huge.socket.sendall(b"\x02" + (1 << 40).to_bytes(8, "big"))
        large.socket.sendall(b"\x02" + (2000).to_bytes(8, "big") + bytes(2000))
        until(lambda: huge.is_cut() and large.is_cut(), "connections that send frames too large are cut")
        assert [seq for seq, _ in replayed(client, 0)] == [0]


HOSTILE_PUBLISHER = """
import sys
from kvwire.zmq.publisher import Publisher
with Publisher(
    "tcp://127.0.0.1:0", dialect="slot7", replay_endpoint="tcp://127.0.0.1:0", replay_patience=0.5
) as publisher:
    for _ in range(1000):
        publisher.publish(bytes(50_000))
    print(publisher.replay_endpoint, flush=True)
    for line in sys.stdin:
        print(publisher.stats.__dict__, flush=True)
"""


def test_hostile_clients_cost_bounded_memory_and_leave_room_for_a_good_one(context: zmq.Context[Socket]) -> None:
    asked, count = 60, 50
    with running(HOSTILE_PUBLISHER) as process, contextlib.ExitStack() as cleanup:
        replay_endpoint = process.line().strip()
        until(lambda: process.stats()["sent"] == 1000, "the buffer is full")
        before = _resident_bytes(process.pid)
        peers = [cleanup.enter_context(contextlib.closing(RawPeer(replay_endpoint))) for _ in range(count)]
        for peer in peers:
            for start in range(asked):
                peer.ask(start)
        # 2.5 GB to begin with, for clients of which none reads.
        until(lambda: process.stats()["replay_refused"] > count * asked // 2, "what is beyond the bound is refused")
        with replay_client(context, replay_endpoint) as good:
            assert [seq for seq, _ in replayed(good, 900)] == list(range(900, 1000))
        assert process.stats()["replay_abandoned"] >= 1
        assert _resident_bytes(process.pid) - before < 1.5 * replay_server.WAITING_BYTES


def _resident_bytes(pid: int) -> int:
    statm = Path(f"/proc/{pid}/statm")
    if not statm.exists():
        pytest.skip("needs /proc to see another process's memory")
    return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_a_client_that_takes_nothing_is_given_up_and_cut_off(context: zmq.Context[Socket]) -> None:
    with (
        Publisher(ANY, dialect="slot7", replay_endpoint=ANY, replay_patience=0.3) as publisher,
        replay_client(context, publisher.replay_endpoint) as good,
        contextlib.closing(RawPeer(publisher.replay_endpoint)) as mute,
    ):
        for _ in range(500):
            publisher.publish(bytes(50_000))
        settle(publisher)
        mute.ask(0)
        until(lambda: publisher.stats.replay_abandoned == 1, "the client is given up")
        assert publisher.stats.replay_clients == 0
        if sys.platform == "linux":
            until(lambda: mute.is_cut_on_asking(), "the connection is cut, which frees what waits for it")
        assert len(replayed(good, 490)) == 10


def test_a_client_that_vanishes_is_dropped(context: zmq.Context[Socket]) -> None:
    with (
        Publisher(ANY, dialect="slot7", replay_endpoint=ANY) as publisher,
        replay_client(context, publisher.replay_endpoint) as good,
    ):
        for _ in range(500):
            publisher.publish(bytes(50_000))
        settle(publisher)
        gone = RawPeer(publisher.replay_endpoint)
        gone.ask(0)
        until(lambda: publisher.stats.replayed > 0, "the replay has begun")
        gone.close()
        until(lambda: publisher.stats.replay_abandoned == 1, "the client is given up")
        assert len(replayed(good, 490)) == 10


# A subscriber that is too slow ----------------------------------------------------------------------------------------


def test_beyond_the_hwm_batches_are_lost_visibly_and_replay_brings_them_back(context: zmq.Context[Socket]) -> None:
    count = 4000
    with (
        Publisher(ANY, dialect="slot7", replay_endpoint=ANY, hwm=10, buffer_bytes=None) as publisher,
        subscriber(context, publisher.endpoint, rcvhwm=10) as sub,
        replay_client(context, publisher.replay_endpoint) as client,
    ):
        first = join(sub, lambda: publisher.publish(bytes(5000))) + 1
        for _ in range(count):
            publisher.publish(bytes(5000))
        settle(publisher)
        live = [receive(sub).seq]
        while sub.poll(200):
            live.append(receive(sub).seq)
        assert live == sorted(set(live))
        assert len(live) < count
        missing = set(range(first, first + count)) - set(live)
        assert missing <= {seq for seq, _ in replayed(client, first)}


# Endpoints ------------------------------------------------------------------------------------------------------------


def _free_port(family: socket.AddressFamily = socket.AF_INET, host: str = "127.0.0.1") -> int:
    with socket.socket(family) as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
    return port


def _somewhere(make: Callable[[int, int], Publisher]) -> tuple[Publisher, int, int]:
    """A publisher at two ports that were free, and the ports; tries again when one was taken in between."""
    for attempt in range(20):
        live, replay = _free_port(), _free_port()
        try:
            return make(live, replay), live, replay
        except EndpointError:
            if attempt == 19:
                raise
    raise AssertionError("not reached")


def _has_ipv6() -> bool:
    try:
        _free_port(socket.AF_INET6, "::1")
    except OSError:
        return False
    return True


@pytest.mark.parametrize(
    "endpoint",
    [
        "tcp://*:0",
        "tcp://*:*",
        "tcp://0.0.0.0:0",
        "tcp://127.0.0.1:*",
        pytest.param("tcp://[::1]:0", marks=pytest.mark.skipif(not _has_ipv6(), reason="this machine has no IPv6")),
        pytest.param("tcp://[::]:0", marks=pytest.mark.skipif(not _has_ipv6(), reason="this machine has no IPv6")),
    ],
)
def test_a_port_of_the_systems_choice_is_bound_and_told(context: zmq.Context[Socket], endpoint: str) -> None:
    with (
        Publisher(endpoint, dialect="slot7", replay_endpoint=endpoint) as publisher,
        subscriber(context, publisher.endpoint) as sub,
        replay_client(context, publisher.replay_endpoint) as client,
    ):
        assert publisher.binds
        assert int(publisher.endpoint.rpartition(":")[2]) > 0
        assert publisher.replay_endpoint not in (None, publisher.endpoint)
        join(sub, lambda: publisher.publish([]))
        assert replayed(client, 0)[0][0] == 0


def test_ipc(context: zmq.Context[Socket], tmp_path: Path) -> None:
    live, replay = f"ipc://{tmp_path}/live", f"ipc://{tmp_path}/replay"
    with (
        Publisher(live, dialect="slot7", replay_endpoint=replay) as publisher,
        subscriber(context, publisher.endpoint) as sub,
        replay_client(context, publisher.replay_endpoint) as client,
    ):
        assert (publisher.endpoint, publisher.replay_endpoint, publisher.binds) == (live, replay, True)
        join(sub, lambda: publisher.publish([]))
        assert replayed(client, 0)[0][0] == 0
        assert publisher.describe(16) is None


def test_inproc_is_in_the_process_wide_context_and_named_by_rank() -> None:
    shared: zmq.Context[Socket] = zmq.Context.instance()
    with (
        Publisher("inproc://kv", dialect="slot7", replay_endpoint="inproc://kvr", dp_rank=2) as publisher,
        subscriber(shared, "inproc://kv_dp2") as sub,
        replay_client(shared, "inproc://kvr_dp2") as client,
    ):
        assert (publisher.endpoint, publisher.replay_endpoint) == ("inproc://kv_dp2", "inproc://kvr_dp2")
        join(sub, lambda: publisher.publish([]))
        assert replayed(client, 0)[0][0] == 0
        assert publisher.close().flushed is None


def test_ports_grow_by_the_rank(context: zmq.Context[Socket]) -> None:
    def rank_3(live: int, replay: int) -> Publisher:
        replay_endpoint = f"tcp://*:{replay - 3}"
        return Publisher(f"tcp://*:{live - 3}", dialect="slot7", replay_endpoint=replay_endpoint, dp_rank=3)

    publisher, live, replay = _somewhere(rank_3)
    with publisher, subscriber(context, f"tcp://127.0.0.1:{live}") as sub:
        assert (publisher.endpoint, publisher.replay_endpoint) == (f"tcp://0.0.0.0:{live}", f"tcp://0.0.0.0:{replay}")
        join(sub, lambda: publisher.publish([]))
        if abs(live - replay) >= 4:
            assert publisher.describe(16, dp_size=4) == {
                "publisher": "zmq",
                "endpoint_host": "*",
                "endpoint_port_base": live - 3,
                "topic": "",
                "block_size": 16,
                "dp_size": 4,
                "replay_endpoint_port_base": replay - 3,
            }


def test_a_concrete_host_is_connected_to(context: zmq.Context[Socket]) -> None:
    with subscriber(context, "tcp://127.0.0.1:*", bind=True) as sub:
        endpoint = sub.getsockopt_string(zmq.LAST_ENDPOINT)
        with Publisher(endpoint, dialect="slot7") as publisher:
            assert not publisher.binds
            assert publisher.endpoint == endpoint
            join(sub, lambda: publisher.publish([]))


def test_bind_overrules_the_rule(context: zmq.Context[Socket]) -> None:
    publisher, port, _ = _somewhere(lambda live, _: Publisher(f"tcp://127.0.0.1:{live}", dialect="slot7", bind=True))
    with publisher, subscriber(context, f"tcp://127.0.0.1:{port}") as sub:
        assert publisher.binds
        join(sub, lambda: publisher.publish([]))


def test_an_endpoint_that_is_taken_says_so_and_leaves_nothing_behind() -> None:
    with Publisher(ANY, dialect="slot7") as publisher:
        before = threading.active_count()
        for live, replay in ((publisher.endpoint, None), (ANY, publisher.endpoint)):
            with pytest.raises(EndpointError, match="in use; another engine or DP rank"):
                Publisher(live, dialect="slot7", replay_endpoint=replay, bind=True)
        assert threading.active_count() == before
    with Publisher(publisher.endpoint, dialect="slot7", bind=True) as successor:
        assert successor.endpoint == publisher.endpoint


@pytest.mark.parametrize(
    "wrong",
    [
        {"endpoint": "127.0.0.1:5557"},
        {"endpoint": "tcp://*:5557", "dp_rank": -1},
        {"dialect": "slot99"},
        {"on_full": "drop-newest"},
        {"max_queue": 0},
        {"hwm": -1},
        {"buffer_steps": -1},
        {"endpoint": "ipc://x", "dp_rank": 1},
    ],
)
def test_arguments_that_cannot_be_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        Publisher(**{"endpoint": ANY, "dialect": "slot7", **wrong})


# What others are told -------------------------------------------------------------------------------------------------


def test_describe_says_what_sglang_says(context: zmq.Context[Socket]) -> None:
    with Publisher("tcp://0.0.0.0:0", dialect="sglang-map2", topic="kv") as publisher:
        assert publisher.describe(64) == {
            "publisher": "zmq",
            "endpoint_host": "0.0.0.0",
            "endpoint_port_base": int(publisher.endpoint.rpartition(":")[2]),
            "topic": "kv",
            "block_size": 64,
            "dp_size": 1,
        }
        assert publisher.describe(64, dp_size=2) is None
        with pytest.raises(UsageError):
            publisher.describe(0)


def test_describe_refuses_port_ranges_that_overlap() -> None:
    publisher, _, _ = _somewhere(
        lambda live, _: Publisher(f"tcp://*:{live}", dialect="slot7", replay_endpoint=f"tcp://*:{live + 1}")
    )
    with publisher:
        assert publisher.describe(16, dp_size=1) is not None
        with pytest.raises(EndpointError, match="overlap"):
            publisher.describe(16, dp_size=2)


# The engines' configuration -------------------------------------------------------------------------------------------


def test_from_config_takes_sglangs_json() -> None:
    config = (
        '{"publisher": "zmq", "endpoint": "tcp://127.0.0.1:0", "replay_endpoint": "tcp://127.0.0.1:0", "buffer_steps": 7,'
        ' "hwm": 10, "max_queue_size": 20, "topic": "kv", "bind": true, "format": "dynamo"}'
    )
    with Publisher.from_config(config, dialect="sglang==0.5.23") as publisher:
        assert isinstance(publisher, Publisher)
        assert publisher.binds
        assert publisher.replay_endpoint is not None
        for number in range(9):
            publisher.publish(batch(number))
        settle(publisher)
        assert publisher.stats.buffered == 7


def test_from_config_takes_vllms_object_and_options_win() -> None:
    config = {"enable_kv_cache_events": True, "endpoint": "tcp://*:5557", "topic": "kv@pod@model"}
    with Publisher.from_config(config, dialect="vllm==0.33.0", dp_rank=1, endpoint=ANY) as publisher:
        assert isinstance(publisher, Publisher)
        told = publisher.describe(16, dp_size=2)
        assert told is None
        assert publisher.publish([]) == 0


@pytest.mark.parametrize(
    "config",
    ["{}", '{"publisher": "null"}', '{"enable_kv_cache_events": false, "publisher": "zmq"}', '{"publisher": null}'],
)
def test_from_config_with_events_off_publishes_nothing(config: str) -> None:
    with Publisher.from_config(config, dialect="slot7") as publisher:
        assert isinstance(publisher, NullPublisher)
        assert publisher.publish([stored(0)]) == 0
        assert (publisher.endpoint, publisher.replay_endpoint, publisher.describe(16)) == (None, None, None)
        assert publisher.close().complete


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ('{"max_queue": 5}', "no key 'max_queue'; did you mean 'max_queue_size'"),
        ('{"replay_endpont": "tcp://*:1"}', "did you mean 'replay_endpoint'"),
        ('{"kv": 5}', "Known keys: bind, buffer_steps"),
        ('{"hwm": "5"}', "'hwm' is an integer, not '5'"),
        ('{"hwm": true}', "'hwm' is an integer, not True"),
        ('{"bind": 1}', "'bind' is true or false or null"),
        ('{"publisher": "nats"}', "one of null, zmq"),
        ('{"format": "vllm"}', "one of default, dynamo"),
        ('{"hwm": 1, "hwm": 2}', "the key 'hwm' twice"),
        ("publisher=zmq", "is not JSON"),
        ("[1]", "is a JSON object"),
        (b"\xff", "is not JSON"),
        ({1: 2}, "no key 1"),
    ],
)
def test_from_config_names_the_key_at_fault(config: Any, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Publisher.from_config(config, dialect="slot7")
    assert says in str(caught.value)


# The end --------------------------------------------------------------------------------------------------------------


def test_close_sends_what_is_queued_and_the_connections_have_it(context: zmq.Context[Socket]) -> None:
    with (
        Hold() as hold,
        Publisher(ANY, dialect="slot7", on_error=hold, hwm=0) as publisher,
        subscriber(context, publisher.endpoint) as sub,
    ):
        newest = join(sub, lambda: publisher.publish([]))
        hold.stop(publisher)
        last = [publisher.publish(bytes(1000)) for _ in range(5000)][-1]
        hold.release.set()
        report = publisher.close(DEADLINE)
        assert report == CloseReport()
        assert report.complete
        assert [live.seq for live in receive_all(sub, last)] == list(range(newest + 2, last + 1))
        assert publisher.close() is report
        assert publisher.closed
        with pytest.raises(PublisherClosedError, match="closed"):
            publisher.publish([])


def test_close_reports_what_it_could_not_send() -> None:
    with Hold() as hold:
        publisher = Publisher(ANY, dialect="slot7", on_error=hold)
        hold.stop(publisher)
        for number in range(5):
            publisher.publish(batch(number))
        closing: list[CloseReport] = []
        thread = threading.Thread(target=lambda: closing.append(publisher.close(0)))
        thread.start()
        until(lambda: publisher.closed, "the publisher closes")
        hold.release.set()
        thread.join(DEADLINE)
        assert (closing[0].unsent, closing[0].first_unsent, closing[0].last_unsent) == (5, 1, 5)
        assert not closing[0].complete
        assert publisher.close() == closing[0]


def test_close_finishes_a_replay_under_way(context: zmq.Context[Socket]) -> None:
    with (
        Publisher(ANY, dialect="slot7", replay_endpoint=ANY) as publisher,
        replay_client(context, publisher.replay_endpoint) as client,
    ):
        for _ in range(3000):
            publisher.publish(bytes(5000))
        settle(publisher)
        client.send_multipart([b"", bytes(8)])
        until(lambda: publisher.stats.replay_requests == 1, "the request has come")
        closing: list[CloseReport] = []
        thread = threading.Thread(target=lambda: closing.append(publisher.close(DEADLINE)))
        thread.start()
        assert [reply.seq for reply in answer(client)[:-1]] == list(range(3000))
        thread.join(DEADLINE)
        assert closing == [CloseReport()]


def test_close_does_not_wait_longer_than_asked_for_peers_that_never_read(context: zmq.Context[Socket]) -> None:
    publisher = Publisher(ANY, dialect="slot7", replay_endpoint=ANY)
    with (
        contextlib.closing(RawPeer(publisher.endpoint, b"SUB")) as frozen,
        contextlib.closing(RawPeer(publisher.replay_endpoint)) as mute,
    ):
        frozen.send(b"\x01")
        for _ in range(1000):
            publisher.publish(bytes(20_000))
        settle(publisher)
        mute.ask(0)
        until(lambda: publisher.stats.replayed > 0, "the replay has begun")
        report = publisher.close(0.2)
        assert (report.unsent, report.replays_cut, report.flushed) == (0, 1, None)
        assert not report.complete


def test_close_says_when_the_sockets_could_not_pass_everything_on() -> None:
    publisher = Publisher(ANY, dialect="slot7")
    with contextlib.closing(RawPeer(publisher.endpoint, b"SUB")) as frozen:
        frozen.send(b"\x01")
        # The subscription takes effect some time after it was sent; the batches after that wait for the frozen peer.
        until(lambda: publisher.publish(bytes(200_000)) > 300, "many batches were published")
        settle(publisher)
        report = publisher.close(0.2)
        assert (report.unsent, report.flushed) == (0, False)


def test_close_returns_though_the_thread_is_stuck_and_a_later_close_ends_it() -> None:
    with Hold() as hold:
        publisher = Publisher(ANY, dialect="slot7", on_error=hold)
        hold.stop(publisher)
        publisher.publish(batch(0))
        report = publisher.close(0)
        assert (report.unsent, report.flushed) == (1, False)
        hold.release.set()
        until(lambda: publisher.close(0).first_unsent == 1, "the thread has ended and says what was left")


def test_close_from_the_callback_does_not_wait_for_itself() -> None:
    told: list[CloseReport] = []
    publisher = Publisher(ANY, dialect="slot7", on_error=lambda seq, error: told.append(publisher.close()))
    publisher.publish(BAD)
    until(lambda: bool(told), "the callback has closed")
    assert publisher.close() == CloseReport()


def test_a_terminated_context_ends_the_publisher_not_the_process() -> None:
    theirs: zmq.Context[Socket] = zmq.Context()
    publisher = Publisher(ANY, dialect="slot7", replay_endpoint=ANY, context=theirs)
    publisher.publish([])
    settle(publisher)
    theirs.term()
    until(lambda: publisher.closed, "the publisher has noticed")
    with pytest.raises(PublisherClosedError, match="context was terminated"):
        publisher.publish([])
    publisher.close()


# Processes ------------------------------------------------------------------------------------------------------------


class Running:
    """A script in a process of its own, that answers a line on its stdin with its stats."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.pid = process.pid

    def line(self) -> str:
        assert self.process.stdout is not None
        told = self.process.stdout.readline()
        assert told, f"the script has ended: {self.process.communicate()[1]}"
        return told

    def tell(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def ask(self, line: str) -> str:
        self.tell(line)
        return self.line()

    def stats(self) -> dict[str, int]:
        return dict(_pairs(self.ask("stats")))


def _pairs(text: str) -> Iterator[tuple[str, int]]:
    for pair in text.strip(" {}\n").split(","):
        name, _, value = pair.partition(":")
        yield name.strip(" '"), int(value)


@contextlib.contextmanager
def running(script: str, *arguments: str) -> Iterator[Running]:
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield Running(process)
    finally:
        process.kill()
        process.communicate()


STREAM = """
import itertools, os, sys, time
from kvwire.zmq.publisher import Publisher
endpoint, replay = sys.argv[1:]
publisher = Publisher(endpoint, dialect="slot7", replay_endpoint=replay, bind=True, buffer_steps=10**6)
print(publisher.endpoint, publisher.replay_endpoint, flush=True)
for number in itertools.count():
    publisher.publish(f"{os.getpid()} {number}".encode())
    time.sleep(0.0002)
"""


def test_a_killed_publisher_leaves_no_hole_and_its_successor_counts_from_0(context: zmq.Context[Socket]) -> None:
    with running(STREAM, ANY, ANY) as first:
        endpoint, replay_endpoint = first.line().split()
        with subscriber(context, endpoint) as sub, replay_client(context, replay_endpoint) as client:
            got = [receive(sub) for _ in range(500)]
            os.kill(first.pid, signal.SIGKILL)
            first.process.wait(DEADLINE)
            while sub.poll(100):
                got.append(receive(sub))
            assert [live.seq for live in got] == list(range(got[0].seq, got[0].seq + len(got)))
            with running(STREAM, endpoint, replay_endpoint) as second:
                assert second.line().split() == [endpoint, replay_endpoint]
                live = receive(sub)
                assert live.payload == f"{second.pid} {live.seq}".encode()
                replies = replayed(client, 0)
                assert [payload for _, payload in replies] == [
                    f"{second.pid} {number}".encode() for number in range(len(replies))
                ]
                assert replies[-1][0] >= live.seq


def test_an_interpreter_that_ends_without_close_still_sends_everything(context: zmq.Context[Socket]) -> None:
    script = """
        import sys
        from kvwire.zmq.publisher import Publisher
        publisher = Publisher("tcp://127.0.0.1:0", dialect="slot7", hwm=0)
        print(publisher.endpoint, flush=True)
        while sys.stdin.readline() != "go\\n":
            print(publisher.publish(b"\\x90"), flush=True)
        for number in range(3000):
            publisher.publish(number.to_bytes(1000, "big"))
        if sys.argv[1] == "raise":
            raise SystemExit(3)
    """
    for way, code in (("fall off", 0), ("raise", 3)):
        with running(script, way) as process, subscriber(context, process.line().strip()) as sub:
            newest = join(sub, lambda: int(process.ask("publish")))
            process.tell("go")
            payloads = [int.from_bytes(live.payload, "big") for live in receive_all(sub, newest + 3000)]
            assert payloads == list(range(3000))
            assert process.process.wait(DEADLINE) == code
            assert process.process.communicate()[1] == ""


def test_a_fork_leaves_the_publisher_to_the_parent() -> None:
    script = """
        import os, sys, time, zmq
        from kvwire.zmq.publisher import Publisher, PublisherClosedError
        publisher = Publisher("tcp://127.0.0.1:0", dialect="slot7", replay_endpoint="tcp://127.0.0.1:0")
        for _ in range(1000):
            publisher.publish([])
        publisher._outbox._lock.acquire()
        child = os.fork()
        if child == 0:
            try:
                publisher.publish([])
            except PublisherClosedError as error:
                assert "fork" in str(error), error
            else:
                raise AssertionError("published in the child")
            assert publisher.close().complete and publisher.close().complete
            with Publisher("tcp://127.0.0.1:0", dialect="slot7") as own:
                assert own.publish([]) == 0
            sys.exit(0)
        publisher._outbox._lock.release()
        end = time.monotonic() + 15
        while True:
            pid, status = os.waitpid(child, os.WNOHANG)
            if pid:
                break
            assert time.monotonic() < end, "the child does not end"
            time.sleep(0.01)
        assert os.waitstatus_to_exitcode(status) == 0, status
        client = zmq.Context().socket(zmq.DEALER)
        client.connect(publisher.replay_endpoint)
        assert publisher.publish([]) == 1000
        client.send_multipart([b"", (999).to_bytes(8, "big")])
        assert client.poll(15000)
        report = publisher.close(15)
        assert not report.unsent, report
        print("fine")
        client.close(0)
    """
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.stdout, done.returncode) == ("fine\n", 0), done.stderr


def test_the_example_publishes(context: zmq.Context[Socket]) -> None:
    example = ROOT / "examples" / "producer.py"
    process = subprocess.Popen([sys.executable, str(example), ANY, ANY], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        endpoint, replay_endpoint = process.stdout.readline().split()
        with subscriber(context, endpoint) as sub, replay_client(context, replay_endpoint) as client:
            newest = receive(sub).seq
            events = [
                kvwire.decode(payload, "sglang-map2", strict=True).events[0] for _, payload in replayed(client, 0)
            ]
            assert len(events) > newest
            parents = [event.parent_block_hash for event in events]
            assert parents == [None, *(event.block_hashes[0] for event in events[:-1])]
        process.send_signal(signal.SIGINT)
        assert process.wait(DEADLINE) == 0
    finally:
        process.kill()
        process.communicate()


# The buffer -----------------------------------------------------------------------------------------------------------


@given(
    st.integers(0, 8),
    st.none() | st.integers(0, 60),
    st.lists(st.tuples(st.integers(1, 4), st.integers(1, 30)), max_size=40),
    st.integers(0, 200),
)
def test_the_buffer_keeps_the_newest_within_both_bounds(
    steps: int, max_bytes: int | None, added: list[tuple[int, int]], asked: int
) -> None:
    buffer, model, seq = ReplayBuffer(steps, max_bytes), list[tuple[int, bytes]](), -1
    for step, size in added:
        seq += step
        buffer.append(seq, bytes(size))
        model.append((seq, bytes(size)))
        while len(model) > steps or (max_bytes is not None and sum(len(payload) for _, payload in model) > max_bytes):
            model.pop(0)
    kept = [buffer[position] for position in range(buffer.first, buffer.end)]
    assert kept == model
    assert len(buffer) == len(model)
    assert buffer.bytes == sum(len(payload) for _, payload in model)
    assert [buffer[position] for position in range(buffer.find(asked), buffer.end)] == [
        item for item in model if item[0] >= asked
    ]
