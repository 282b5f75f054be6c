"""`--server`: where an SGLang server says that its events are, asked over real HTTP on loopback."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from kvwire.errors import UsageError
from kvwire_conform.discovery import Discovery, DiscoveryError, describe, discover
from kvwire_conform.targets import Target

BLOCK = {
    "publisher": "zmq",
    "endpoint_host": "*",
    "endpoint_port_base": 5557,
    "topic": "kv",
    "block_size": 64,
    "dp_size": 1,
}
CONFIG = {"publisher": "zmq", "endpoint": "tcp://*:5557"}


class Server:
    """What the test server answers: a status, headers, and a body for each path."""

    def __init__(self) -> None:
        self.status = 200
        self.headers: dict[str, str] = {}
        self.body: bytes = b"{}"
        self.asked: list[tuple[str, str | None]] = []
        self.url = ""
        self.redirect_from = ""


@pytest.fixture
def server() -> Iterator[Server]:
    told = Server()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            told.asked.append((self.path, self.headers.get("Authorization")))
            moved = told.redirect_from and self.path == told.redirect_from
            self.send_response(302 if moved else told.status)
            for name, value in told.headers.items() if moved or not told.redirect_from else ():
                self.send_header(name, value)
            self.send_header("Content-Length", "0" if moved else str(len(told.body)))
            self.end_headers()
            with contextlib.suppress(OSError):
                self.wfile.write(b"" if moved else told.body)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    http.daemon_threads = True
    told.url = f"http://127.0.0.1:{http.server_address[1]}"
    thread = threading.Thread(target=http.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield told
    http.shutdown()
    thread.join()
    http.server_close()


def describes(**changes: Any) -> bytes:
    return json.dumps({"version": "0.5.23", "kv_events": {**BLOCK, **changes}}).encode()


def read(info: object, host: str = "engine") -> Discovery:
    return describe(info, server=f"http://{host}:30000", host=host)


def test_an_answer_over_http(server: Server) -> None:
    server.body = describes(replay_endpoint_port_base=6000, dp_size=2)
    found = discover(server.url)
    assert found.targets == [
        Target("tcp://127.0.0.1:5557", "tcp://127.0.0.1:6000", 0),
        Target("tcp://127.0.0.1:5558", "tcp://127.0.0.1:6001", 1),
    ]
    assert (found.server, found.topic, found.block_size, found.dp_size) == (server.url, "kv", 64, 2)
    assert (found.version, found.bind) == ("0.5.23", False)
    assert server.asked == [("/server_info", None)]


@pytest.mark.parametrize("form", ["{}/", "{}/server_info", " {} "])
def test_the_address_may_be_written_in_several_ways(server: Server, form: str) -> None:
    server.body = describes()
    assert discover(form.format(server.url)).targets == [Target("tcp://127.0.0.1:5557", None, 0)]
    assert discover(server.url.removeprefix("http://")).server == server.url


def test_a_path_before_server_info_is_kept(server: Server) -> None:
    server.body = describes()
    assert discover(server.url + "/worker/3").server == server.url + "/worker/3"
    assert server.asked[-1][0] == "/worker/3/server_info"


def test_the_key_is_sent(server: Server) -> None:
    server.body = describes()
    discover(server.url, token="s3cret")
    assert server.asked == [("/server_info", "Bearer s3cret")]


@pytest.mark.parametrize("host", ["*", "0.0.0.0", "::", "[::]"])
def test_a_wildcard_host_is_the_servers_own(host: str) -> None:
    assert read({"kv_events": {**BLOCK, "endpoint_host": host}}).targets[0].endpoint == "tcp://engine:5557"
    v6 = read({"kv_events": {**BLOCK, "endpoint_host": host}}, "2001:db8::1")
    assert v6.targets[0].endpoint == "tcp://[2001:db8::1]:5557"


def test_a_host_that_is_told_is_taken() -> None:
    found = read({"kv_events": {**BLOCK, "endpoint_host": "[2001:db8::7]", "replay_endpoint_port_base": 6000}})
    assert found.targets == [Target("tcp://[2001:db8::7]:5557", "tcp://[2001:db8::7]:6000", 0)]
    assert not found.bind


def test_a_publisher_that_connects_has_to_be_bound_for() -> None:
    config = {"publisher": "zmq", "endpoint": "tcp://10.0.0.9:5557", "replay_endpoint": "tcp://*:6000"}
    block = {**BLOCK, "endpoint_host": "10.0.0.9", "replay_endpoint_port_base": 6000, "dp_size": 2}
    found = read({"kv_events": block, "kv_events_config": json.dumps(config)})
    assert found.bind
    assert [target.endpoint for target in found.targets] == ["tcp://*:5557", "tcp://*:5558"]
    assert [target.replay_endpoint for target in found.targets] == ["tcp://engine:6000", "tcp://engine:6001"]
    assert any("connects to 10.0.0.9:5557" in remark for remark in found.remarks)
    bound = read({"kv_events": block, "kv_events_config": json.dumps({**config, "bind": True})})
    assert not bound.bind
    assert bound.targets[0] == Target("tcp://10.0.0.9:5557", "tcp://engine:6000", 0)


def test_what_is_left_out_is_remarked() -> None:
    remarks = " ".join(read({"kv_events": {**BLOCK, "dp_size": 4}}).remarks)
    assert "no replay endpoint" in remarks
    assert "further nodes" in remarks
    assert read({"kv_events": {**BLOCK, "replay_endpoint_port_base": 6000}}).remarks == []


def test_keys_of_newer_releases_are_passed_over() -> None:
    block = {**BLOCK, "load_endpoint_port_base": 5600, "load_topic": "load", "publishers": [{"dp_rank": 0}]}
    assert len(read({"kv_events": block, "scheduler_info": {}}).targets) == 1


@pytest.mark.parametrize(
    ("info", "says"),
    [
        ({"kv_events": None, "version": "0.5.23"}, "start it with --kv-events-config"),
        ({"kv_events": None, "kv_events_config": json.dumps({"publisher": "null"})}, 'write {"publisher": "zmq"'),
        (
            {"kv_events": None, "kv_events_config": json.dumps({"publisher": "zmq", "endpoint": "ipc:///run/kv"})},
            "its endpoint is ipc:///run/kv",
        ),
        ({"version": "0.5.11"}, "SGLang 0.5.11 is older than 0.5.13"),
        ({"status": "ok"}, "older than 0.5.13"),
        ({"vllm_config": "…"}, "this is a vLLM server"),
        ([], "is no object"),
        ({"kv_events": {}}, "publisher"),
        ({"kv_events": "on"}, "not as SGLang writes it"),
        ({"kv_events": {**BLOCK, "publisher": "nats"}}, "'nats'"),
        ({"kv_events": {**BLOCK, "endpoint_port_base": "5557"}}, "endpoint_port_base"),
        ({"kv_events": {**BLOCK, "endpoint_port_base": 0}}, "from 1 to 65535"),
        ({"kv_events": {**BLOCK, "replay_endpoint_port_base": 70000}}, "replay_endpoint_port_base is 70000"),
        ({"kv_events": {**BLOCK, "dp_size": 0}}, "dp_size 0"),
        ({"kv_events": {**BLOCK, "endpoint_port_base": 65535, "dp_size": 2}}, "65536"),
        ({"kv_events": {**BLOCK, "endpoint_host": "a b"}}, "a b"),
        ({"kv_events": {**BLOCK, "endpoint_host": ""}}, "has no host"),
    ],
)
def test_an_answer_without_a_publisher_says_what_to_do(info: object, says: str) -> None:
    with pytest.raises(DiscoveryError) as caught:
        read(info)
    assert says in str(caught.value)
    assert caught.value.code == "no-kv-events"


def test_a_dp_size_that_is_absurd_is_not_unrolled() -> None:
    with pytest.raises(DiscoveryError, match="dp_size"):
        read({"kv_events": {**BLOCK, "dp_size": 1 << 40}})


@pytest.mark.parametrize(("status", "says"), [(401, "API key"), (404, "older than"), (503, "not ready"), (418, "418")])
def test_a_status_says_what_to_do(server: Server, status: int, says: str) -> None:
    server.status = status
    with pytest.raises(DiscoveryError, match=says):
        discover(server.url)


@pytest.mark.parametrize("body", [b"<html>", b"", b"\xff\xfe", b"[" * 100_000])
def test_an_answer_that_is_no_json(server: Server, body: bytes) -> None:
    server.body = body
    with pytest.raises(DiscoveryError, match="no JSON"):
        discover(server.url)


def test_an_answer_that_is_too_long(server: Server) -> None:
    server.body = b" " * 5000
    with pytest.raises(DiscoveryError, match="more than 4000 bytes"):
        discover(server.url, max_bytes=4000)


def test_a_redirect_to_another_host_is_not_followed(server: Server) -> None:
    server.redirect_from = "/server_info"
    server.headers = {"Location": "http://localhost:1/server_info"}
    with pytest.raises(DiscoveryError, match="redirects to http://localhost:1"):
        discover(server.url, token="s3cret")
    assert len(server.asked) == 1


def test_a_redirect_on_the_same_host_is_followed(server: Server) -> None:
    server.redirect_from = "/server_info"
    server.headers = {"Location": "/v2/server_info"}
    server.body = describes()
    assert len(discover(server.url).targets) == 1
    assert [path for path, _ in server.asked] == ["/server_info", "/v2/server_info"]


def test_a_server_that_is_not_there() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(DiscoveryError, match="is the engine up") as caught:
        discover(f"http://127.0.0.1:{port}")
    assert caught.value.code == "server-unreachable"


@pytest.mark.parametrize("drip", [None, b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n"])
def test_a_server_that_never_finishes(drip: bytes | None) -> None:
    stop = threading.Event()

    def serve() -> None:
        with contextlib.suppress(OSError):
            peer, _ = listener.accept()
            with peer:
                if drip is not None:
                    peer.sendall(drip)
                while not stop.wait(0.05):
                    if drip is not None:
                        peer.sendall(b" ")

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        with pytest.raises(DiscoveryError) as caught:
            discover(f"http://127.0.0.1:{listener.getsockname()[1]}", timeout=0.3)
        stop.set()
        thread.join()
    assert caught.value.code == "server-unreachable"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("tcp://host:5557", "without --server"),
        ("http://", "with a host"),
        ("http://host:port", "http://host:30000"),
        ("http://host:99999", "http://host:30000"),
        ("http://user:secret@host:1", "no user name"),
    ],
)
def test_what_is_no_server(text: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        discover(text)
