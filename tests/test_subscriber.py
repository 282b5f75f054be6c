"""The subscriber's sockets and its interface, over loopback; what it makes of losses is in test_subscriber_proofs."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import zmq

from kvwire import BlockStored, EventBatch, encode
from kvwire.errors import DialectError, EnvelopeError, LimitError, MalformedError, UsageError
from kvwire.stream import Batch, Faulty, Item, Limits, Lost
from kvwire.zmq import link
from kvwire.zmq.endpoints import EndpointError
from kvwire.zmq.server_info import DiscoveryError, Publishers, read
from kvwire.zmq.subscriber import ClosedError, Subscriber
from tests.wire_engine import TOPIC, Engine, payload_of

ROOT = Path(__file__).resolve().parent.parent
QUICK = Limits(silence=0.5, quiet=0.3, attempts=3, cooldown=0.2)


OPEN: list[zmq.Socket[bytes]] = []
"""Sockets for the fixture to close."""


class Pub:
    """A PUB socket of the test's own."""

    def __init__(self, context: zmq.Context[Any], endpoint: str = "tcp://127.0.0.1:*", *, bind: bool = True) -> None:
        self.socket: zmq.Socket[bytes] = context.socket(zmq.PUB)
        self.socket.setsockopt(zmq.LINGER, 0)
        (self.socket.bind if bind else self.socket.connect)(endpoint)
        self.endpoint = self.socket.getsockopt_string(zmq.LAST_ENDPOINT)
        OPEN.append(self.socket)

    def send(self, seq: int, payload: bytes | None = None, topic: bytes = TOPIC) -> None:
        self.socket.send_multipart((topic, seq.to_bytes(8, "big"), payload_of(0, seq) if payload is None else payload))

    def join(self, subscriber: Subscriber, topic: bytes = TOPIC, *, first: int = 0, deadline: float = 10.0) -> int:
        """Publish from ``first`` on until the subscriber gets one; returns the seq after the newest, all of it read."""
        until = time.monotonic() + deadline
        seq = first
        while time.monotonic() < until:
            self.send(seq, topic=topic)
            seq += 1
            item = subscriber.next(0.05)
            while item is not None:
                if getattr(item, "seq", None) == seq - 1:
                    return seq
                item = subscriber.next(1)
        raise AssertionError(f"nothing came from {self.endpoint}: {subscriber.stats}")


@pytest.fixture
def context() -> Iterator[zmq.Context[Any]]:
    own: zmq.Context[Any] = zmq.Context()
    own.set(zmq.MAX_SOCKETS, 4096)
    yield own
    while OPEN:
        OPEN.pop().close()
    own.destroy(linger=0)


def collect(subscriber: Subscriber, count: int, deadline: float = 10.0) -> list[Item]:
    until = time.monotonic() + deadline
    items: list[Item] = []
    while len(items) < count and time.monotonic() < until:
        item = subscriber.next(0.05)
        if item is not None:
            items.append(item)
    assert len(items) >= count, f"{items} {subscriber.stats}"
    return items


class TestInterface:
    def test_next_and_iteration(self) -> None:
        with (
            Engine() as engine,
            Subscriber(engine.endpoint, replay=engine.replay_endpoint, start="replay", limits=QUICK) as subscriber,
        ):
            assert subscriber.next(0) is None
            assert subscriber.next(0.01) is None
            engine.publish(5)
            seqs = []
            for item in subscriber:
                assert isinstance(item, Batch)
                assert item.source == engine.endpoint
                assert item.raw == payload_of(0, item.seq)
                seqs.append(item.seq)
                if len(seqs) == 5:
                    break
            assert seqs == [0, 1, 2, 3, 4]
            [(source, stats)] = subscriber.stats.items()
            assert (source, stats.batches, stats.lost) == (engine.endpoint, 5, 0)
            assert engine.endpoint in repr(subscriber)

    def test_closing_ends_it_and_keeps_what_is_there(self) -> None:
        with Engine() as engine:
            engine.publish_and_wait(10)
            subscriber = Subscriber(engine.endpoint, replay=engine.replay_endpoint, start="replay")
            first = subscriber.next(10)
            assert isinstance(first, Batch)
            subscriber.close()
            subscriber.close()
            rest = [item.seq for item in subscriber if isinstance(item, Batch)]
            assert rest == list(range(1, len(rest) + 1))
            with pytest.raises(ClosedError):
                subscriber.next(0)

    def test_decoding_is_as_asked_for(self, context: zmq.Context[Any]) -> None:
        pub = Pub(context)
        with Subscriber(pub.endpoint, dialect="vllm-map5", skip_tokens=True) as subscriber:
            seq = pub.join(subscriber)
            pub.send(seq, encode(EventBatch(1.5, [BlockStored([1], None, [5, 6], 2)]), "vllm-map5"))
            [item] = collect(subscriber, 1)
            assert isinstance(item, Batch)
            assert item.batch.events[0].token_ids == [5, 6]

    def test_a_fault_collected_or_raised(self, context: zmq.Context[Any]) -> None:
        pub = Pub(context)
        with Subscriber(pub.endpoint, on_error="collect") as collecting, Subscriber(pub.endpoint) as raising:
            seq = pub.join(collecting)
            seq = pub.join(raising, first=seq)
            collecting.next(0)
            collecting.next(0)
            bad = b"\x93\xcb\x3f\xf8\x00\x00\x00\x00\x00\x00\x91\x91\xa3Who\x00"
            bad = bad.replace(b"\x91\xa3Who", b"\x92\xacBlockRemoved\x05")
            pub.send(seq, bad)
            [fault] = collect(raising, 1)
            assert isinstance(fault, Faulty)
            found = [item for item in collect(collecting, 1) if item.seq == seq]  # type: ignore[union-attr]
            while not found:
                found = [item for item in collect(collecting, 1) if item.seq == seq]  # type: ignore[union-attr]
            assert isinstance(found[0], Batch)
            assert len(found[0].batch.faults) == 1

    @pytest.mark.parametrize(
        ("arguments", "error", "says"),
        [
            ({"endpoint": "127.0.0.1:5557"}, EndpointError, "tcp://127.0.0.1:5557"),
            ({"endpoint": "tcp://*:5557"}, EndpointError, "what an engine binds"),
            ({"endpoint": []}, UsageError, "no endpoint"),
            ({"endpoint": ["tcp://h:1", "tcp://h:1"]}, UsageError, "given twice"),
            ({"endpoint": ["tcp://h:1", "tcp://h:2"], "replay": "tcp://h:3"}, UsageError, "2 endpoints and 1 replay"),
            ({"endpoint": "tcp://h:1", "replay": {"tcp://h:2": "tcp://h:3"}}, UsageError, "not among the endpoints"),
            ({"endpoint": "tcp://127.0.0.1:1", "start": "replay"}, UsageError, "needs a replay endpoint"),
            ({"endpoint": "tcp://127.0.0.1:1", "start": "now"}, UsageError, "start is"),
            ({"endpoint": "tcp://127.0.0.1:1", "dialect": "slot99"}, DialectError, "slot99"),
            ({"endpoint": "tcp://127.0.0.1:1", "max_payload": 0}, UsageError, "max_payload"),
            ({"endpoint": "tcp://*:0", "bind": True, "replay": "tcp://h:3"}, UsageError, "mapping from topic"),
            ({"endpoint": "tcp://192.0.2.1:5557", "bind": True}, EndpointError, "address of this machine"),
        ],
    )
    def test_what_cannot_be(self, arguments: dict[str, Any], error: type[Exception], says: str) -> None:
        with pytest.raises(error, match=says):
            Subscriber(**arguments)

    def test_a_bound_endpoint_that_is_taken(self, context: zmq.Context[Any]) -> None:
        pub = Pub(context)
        with pytest.raises(EndpointError, match="connect to it instead"):
            Subscriber(pub.endpoint, bind=True)

    def test_a_child_process_leaves_the_sockets_alone(self, context: zmq.Context[Any]) -> None:
        pub = Pub(context)
        with Subscriber(pub.endpoint) as subscriber:
            seq = pub.join(subscriber)
            child = os.fork()
            if child == 0:
                code = 1
                try:
                    try:
                        subscriber.next(0)
                    except ClosedError:
                        subscriber.close()
                        code = 0
                finally:
                    os._exit(code)
            assert os.waitpid(child, 0)[1] == 0
            pub.send(seq)
            [item] = collect(subscriber, 1)
            assert isinstance(item, Batch)

    def test_time_spent_by_the_caller_is_no_silence_of_the_peer(self) -> None:
        impatient = Limits(silence=0.1, attempts=1, quiet=60)
        with Engine() as engine:
            engine.publish_and_wait(3000)
            with Subscriber(
                engine.endpoint, replay=engine.replay_endpoint, start="replay", limits=impatient
            ) as subscriber:
                first = subscriber.next(10)
                assert first is not None
                time.sleep(0.5)
                items = collect(subscriber, 2999)
                [stats] = subscriber.stats.values()
        assert (len(items), stats.lost, stats.failures) == (2999, 0, 0)


class TestSources:
    def test_hundreds_in_one_poller(self, context: zmq.Context[Any]) -> None:
        pubs = [Pub(context) for _ in range(150)]
        with Subscriber([pub.endpoint for pub in pubs]) as subscriber:
            assert len(subscriber.sources) == 150
            seen: dict[str, list[int]] = {source: [] for source in subscriber.sources}
            until = time.monotonic() + 20
            seq = 0
            while time.monotonic() < until and not all(len(seqs) >= 3 for seqs in seen.values()):
                for pub in pubs:
                    pub.send(seq)
                seq += 1
                while (item := subscriber.next(0.02)) is not None:
                    assert isinstance(item, Batch)
                    seen[item.source].append(item.seq)
        for seqs in seen.values():
            assert len(seqs) >= 3
            assert seqs == list(range(seqs[0], seqs[0] + len(seqs)))

    def test_only_the_topic_asked_for(self, context: zmq.Context[Any]) -> None:
        pub = Pub(context)
        with Subscriber(pub.endpoint, topic="kv@") as subscriber:
            seq = pub.join(subscriber)
            pub.send(seq, topic=b"other")
            pub.send(seq + 1)
            items = collect(subscriber, 2)
            assert items == [Lost(pub.endpoint, seq, seq), items[1]]
            assert subscriber.sources == [pub.endpoint]

    def test_publishers_that_connect_are_told_apart_by_topic(self, context: zmq.Context[Any]) -> None:
        with Subscriber("tcp://127.0.0.1:29871", bind=True, topic="kv@") as subscriber:
            one, two, nameless = (Pub(context, "tcp://127.0.0.1:29871", bind=False) for _ in range(3))
            for pub, topic in ((one, b"kv@one"), (two, b"kv@\xff")):
                pub.join(subscriber, topic)
            nameless.send(0, topic=b"")
            assert subscriber.sources == ["kv@one", "kv@\\xff"]

    def test_too_many_topics(self, context: zmq.Context[Any], monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(link, "MAX_TOPICS", 2)
        with Subscriber("tcp://127.0.0.1:29872", bind=True) as subscriber:
            pub = Pub(context, "tcp://127.0.0.1:29872", bind=False)
            pub.join(subscriber, b"a")
            pub.send(0, topic=b"b")
            pub.send(0, topic=b"c")
            pub.send(1, topic=b"b")
            items = collect(subscriber, 3)
        assert [item.source for item in items] == ["b", "tcp://127.0.0.1:29872 (other topics)", "b"]
        assert isinstance(items[1], Faulty)
        assert items[1].error.code == "too-many-topics"


class TestBadMessages:
    @pytest.mark.parametrize(
        ("frames", "error", "raw"),
        [
            ([b"payload alone"], EnvelopeError, b"payload alone"),
            ([TOPIC, b"payload"], EnvelopeError, b"payload"),
            ([TOPIC, b"\x00\x00\x01", b"payload"], EnvelopeError, b"payload"),
            ([TOPIC, b"\x00" * 8, b"payload", b"more"], EnvelopeError, b"more"),
            ([TOPIC] + [b"x"] * 5000, LimitError, b"x"),
            ([TOPIC, b"\xff" * 8, b"payload"], Exception, b"payload"),
        ],
        ids=["1 frame", "2 frames", "seq of 3 bytes", "4 frames", "5001 frames", "reserved seq"],
    )
    def test_wrong_frames(
        self, context: zmq.Context[Any], frames: list[bytes], error: type[Exception], raw: bytes
    ) -> None:
        pub = Pub(context)
        with Subscriber(pub.endpoint) as subscriber:
            # With an empty topic, a message is in step with the frames around it or it is not read right.
            seq = pub.join(subscriber)
            pub.send(seq)
            for _ in range(3):
                pub.socket.send_multipart(frames)
                seq += 1
                pub.send(seq)
            items = collect(subscriber, 7)
        kinds = [type(item).__name__ for item in items]
        assert kinds == ["Batch", *["Faulty", "Batch"] * 3]
        for fault in items[1::2]:
            assert isinstance(fault, Faulty)
            assert isinstance(fault.error, error)
            assert (fault.seq, fault.raw) == (None, raw)

    def test_payloads_that_cannot_be_read(self, context: zmq.Context[Any]) -> None:
        pub = Pub(context)
        with Subscriber(pub.endpoint, max_payload=1000) as subscriber:
            seq = pub.join(subscriber)
            pub.send(seq, b"\xc1")
            pub.send(seq + 1, b"")
            pub.send(seq + 2, bytes(1001))
            pub.send(seq + 3)
            items = collect(subscriber, 4)
        assert [item.seq for item in items] == [seq, seq + 1, seq + 2, seq + 3]  # type: ignore[union-attr]
        assert isinstance(items[0], Faulty)
        assert isinstance(items[0].error, MalformedError)
        assert isinstance(items[2], Faulty)
        assert isinstance(items[2].error, LimitError)
        assert isinstance(items[3], Batch)


class TestConnections:
    def test_a_frame_beyond_the_limit_ends_the_connection_but_not_the_subscription(
        self, context: zmq.Context[Any]
    ) -> None:
        pub = Pub(context)
        with Subscriber(pub.endpoint, max_payload=1000, reconnect_max=0.1) as subscriber:
            seq = pub.join(subscriber)
            pub.send(seq, bytes(5000))
            pub.join(subscriber, first=seq + 1)
            [stats] = subscriber.stats.values()
        assert stats.disconnects == 1
        assert stats.lost >= 1

    def test_a_peer_that_speaks_something_else_at_first(self, context: zmq.Context[Any]) -> None:
        """libzmq never tries such a peer again by itself."""
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
            with Subscriber(f"tcp://127.0.0.1:{port}", reconnect_max=0.1) as subscriber:
                server.settimeout(10)
                until = time.monotonic() + 10
                accepted: list[socket.socket] = []

                def accept() -> None:
                    with contextlib.suppress(OSError):
                        peer, _ = server.accept()
                        peer.sendall(b"HTTP/1.0 400 Bad Request\r\n\r\n" * 10)
                        accepted.append(peer)

                accepting = threading.Thread(target=accept)
                accepting.start()
                while not accepted and time.monotonic() < until:
                    subscriber.next(0.05)
                accepting.join(10)
                server.close()
                for peer in accepted:
                    peer.close()
                pub = _bound_again(context, port)
                pub.join(subscriber)

    def test_a_publisher_that_comes_later(self, context: zmq.Context[Any]) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
        with Subscriber(f"tcp://127.0.0.1:{port}", reconnect_max=0.1) as subscriber:
            assert subscriber.next(0.1) is None
            _bound_again(context, port).join(subscriber)

    def test_ipv6(self, context: zmq.Context[Any]) -> None:
        sub: zmq.Socket[bytes] = context.socket(zmq.PUB)
        sub.setsockopt(zmq.IPV6, 1)
        try:
            sub.bind("tcp://[::1]:*")
        except zmq.ZMQError as error:
            pytest.skip(f"no IPv6 here: {error}")
        finally:
            OPEN.append(sub)
        pub = Pub.__new__(Pub)
        pub.socket, pub.endpoint = sub, sub.getsockopt_string(zmq.LAST_ENDPOINT)
        with Subscriber(pub.endpoint) as subscriber:
            pub.join(subscriber)

    def test_no_descriptor_is_left(self) -> None:
        code = (
            "import resource, sys\n"
            "resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))\n"
            "from kvwire.zmq.subscriber import Subscriber\n"
            "from kvwire.errors import UsageError\n"
            "try:\n"
            "    Subscriber([f'tcp://127.0.0.1:{port}' for port in range(20000, 20100)])\n"
            "except UsageError as error:\n"
            "    print(error)\n"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, cwd=ROOT)
        assert "ulimit -n" in done.stdout, done.stderr


def _bound_again(context: zmq.Context[Any], port: int) -> Pub:
    until = time.monotonic() + 10
    while True:
        try:
            return Pub(context, f"tcp://127.0.0.1:{port}")
        except zmq.ZMQError:
            if time.monotonic() > until:
                raise
            time.sleep(0.02)


# Discovery --------------------------------------------------------------------------------------------------------------

BLOCK = {
    "publisher": "zmq",
    "endpoint_host": "*",
    "endpoint_port_base": 5557,
    "topic": "kv",
    "block_size": 64,
    "dp_size": 2,
    "replay_endpoint_port_base": 6557,
}


@contextlib.contextmanager
def http_server(answer: Callable[[BaseHTTPRequestHandler], None]) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            with contextlib.suppress(OSError):
                answer(self)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join(10)
        server.server_close()


def as_json(info: object, status: int = 200) -> Callable[[BaseHTTPRequestHandler], None]:
    body = json.dumps(info).encode()

    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    return answer


def where(found: Publishers) -> tuple[dict[str, str], str, bool]:
    replays = {name: str(found.replays[name]) for name in found.endpoints if name in found.replays}
    return {str(endpoint): replays.get(name, "") for name, endpoint in found.endpoints.items()}, found.topic, found.bind


class TestServerInfo:
    def test_the_publishers_of_all_ranks(self) -> None:
        found = read({"kv_events": BLOCK}, address="http://w:1/server_info", host="w")
        assert where(found) == ({"tcp://w:5557": "tcp://w:6557", "tcp://w:5558": "tcp://w:6558"}, "kv", False)

    def test_ipv6_and_an_own_host(self) -> None:
        block = {**BLOCK, "endpoint_host": "[fd00::7]", "dp_size": 1}
        found = read({"kv_events": block}, address="x", host="w")
        assert where(found)[0] == {"tcp://[fd00::7]:5557": "tcp://[fd00::7]:6557"}

    def test_without_replay(self) -> None:
        block = {key: value for key, value in BLOCK.items() if key != "replay_endpoint_port_base"}
        found = read({"kv_events": {**block, "dp_size": 1}}, address="x", host="w")
        assert where(found)[0] == {"tcp://w:5557": ""}

    @pytest.mark.parametrize("config", [{"bind": False}, {"replay_endpoint": "tcp://*:6557"}])
    def test_a_publisher_that_connects(self, config: dict[str, Any]) -> None:
        block = {**BLOCK, "endpoint_host": "10.0.0.9", "dp_size": 1}
        found = read({"kv_events": block, "kv_events_config": json.dumps(config)}, address="x", host="w")
        assert where(found) == ({"tcp://*:5557": "tcp://w:6557"}, "kv", True)

    @pytest.mark.parametrize(
        ("info", "says"),
        [
            ([], "describes no publisher"),
            ({"kv_events": None}, "--kv-events-config"),
            ({"kv_events": {**BLOCK, "publisher": "kafka"}}, "'kafka'"),
            ({"kv_events": {**BLOCK, "endpoint_port_base": 0}}, "1 to 65535"),
            ({"kv_events": {**BLOCK, "endpoint_port_base": "5557"}}, "not as SGLang writes it"),
            ({"kv_events": {**BLOCK, "dp_size": 10**9}}, "dp_size"),
            ({"kv_events": {**BLOCK, "endpoint_port_base": 65535}}, "65536"),
        ],
    )
    def test_what_names_no_publisher(self, info: object, says: str) -> None:
        with pytest.raises(DiscoveryError, match=says):
            read(info, address="http://w:1/server_info", host="w")

    def test_a_subscription_by_the_servers_address(self) -> None:
        with Engine() as engine:
            engine.publish_and_wait(3)
            block = {**BLOCK, "endpoint_port_base": engine.ports[0], "replay_endpoint_port_base": engine.ports[1]}
            block |= {"dp_size": 1, "topic": TOPIC.decode()}
            asked: list[tuple[str, str | None]] = []

            def answer(handler: BaseHTTPRequestHandler) -> None:
                asked.append((handler.path, handler.headers.get("Authorization")))
                as_json({"kv_events": block})(handler)

            with http_server(answer) as url, Subscriber(url, start="replay", token="secret") as subscriber:
                items = collect(subscriber, 3)
        assert [item.seq for item in items if isinstance(item, Batch)] == [0, 1, 2]
        assert asked == [("/server_info", "Bearer secret")]

    def test_servers_that_do_not_tell(self) -> None:
        for status, says in ((401, "API key"), (404, "SGLang"), (503, "ready")):
            with http_server(as_json({}, status)) as url, pytest.raises(DiscoveryError, match=says):
                Subscriber(url)

        def elsewhere(handler: BaseHTTPRequestHandler) -> None:
            handler.send_response(302)
            handler.send_header("Location", "http://192.0.2.1/server_info")
            handler.end_headers()

        def rubbish(handler: BaseHTTPRequestHandler) -> None:
            handler.wfile.write(b"HTTP/1.0 200 OK\r\n\r\n<html>")

        for answer, says in ((elsewhere, "redirects"), (rubbish, "no JSON")):
            with http_server(answer) as url, pytest.raises(DiscoveryError, match=says):
                Subscriber(url)
        with pytest.raises(DiscoveryError, match="is the engine up") as caught:
            Subscriber(url)
        assert caught.value.code == "server-unreachable"


# The example ------------------------------------------------------------------------------------------------------------


def test_the_example_consumer_follows_an_engine() -> None:
    example = ROOT / "examples" / "consumer.py"
    assert len(example.read_text().splitlines()) <= 20
    with Engine() as engine:
        engine.publish_and_wait(2)
        consumer = subprocess.Popen(
            [sys.executable, str(example), engine.endpoint, engine.replay_endpoint], stdout=subprocess.PIPE, text=True
        )
        assert consumer.stdout is not None
        try:
            lines = [consumer.stdout.readline().split() for _ in range(2)]
            engine.publish(1)
            lines.append(consumer.stdout.readline().split())
            consumer.send_signal(signal.SIGINT)
            assert consumer.wait(10) == 0
        finally:
            consumer.kill()
            consumer.wait(10)
            consumer.stdout.close()
    assert lines == [["Batch", "{}", "all", "of", engine.endpoint]] * 3
