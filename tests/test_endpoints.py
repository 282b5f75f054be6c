"""Endpoints: how they are written, who binds, where each DP rank is; held against the engines' own code where it is there."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvwire.errors import DialectError, UsageError
from kvwire.zmq import endpoints
from kvwire.zmq.endpoints import Endpoint, EndpointError, Engine
from kvwire_conform.releases import fetch_module, load_structs
from tests.real.catalog import RELEASES, Release, require_source


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("tcp://127.0.0.1:5557", "127.0.0.1", 5557),
        ("tcp://engine-0.kv.svc:1", "engine-0.kv.svc", 1),
        ("tcp://*:5557", "*", 5557),
        ("tcp://127.0.0.1:*", "127.0.0.1", None),
        ("tcp://*:0", "*", 0),
        ("tcp://[::]:5557", "::", 5557),
        ("tcp://[2001:db8::1]:65535", "2001:db8::1", 65535),
        ("tcp://[fe80::1%eth0]:5557", "fe80::1%eth0", 5557),
    ],
)
def test_tcp(text: str, host: str, port: int | None) -> None:
    parsed = endpoints.parse(text)
    assert parsed == Endpoint(transport="tcp", host=host, port=port)
    assert str(parsed) == text


@pytest.mark.parametrize("text", ["ipc:///run/kv.sock", "ipc://@abstract", "ipc://*", "inproc://kv events"])
def test_ipc_and_inproc(text: str) -> None:
    assert str(endpoints.parse(text)) == text
    assert not endpoints.parse(text).wildcard


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "names no transport"),
        ("host:5557", "write tcp://host:5557"),
        ("5557", "tcp://host:port, ipc://path or inproc://name"),
        ("http://host:30000", "--server http://host:30000"),
        ("udp://host:1", "'udp' is none of tcp, ipc, inproc"),
        ("tcp://host", "tcp://host:5557"),
        ("tcp://", "has no port"),
        ("tcp://[::1]", "tcp://[::1]:5557"),
        ("tcp://:5557", "has no host"),
        ("tcp://::1:5557", "tcp://[::1]:5557"),
        ("tcp://:::5557", "tcp://[::]:5557"),
        ("tcp://[127.0.0.1]:5557", "not an IPv6 address"),
        ("tcp://a b:5557", "'a b' is not a host"),
        ("tcp://host:5557/path", "'5557/path' is not a port"),
        ("tcp://user@host:5557", "is not a host"),
        ("tcp://host:65536", "'65536' is not a port"),
        ("tcp://host:-1", "'-1' is not a port"),
        ("tcp://host:٣", "is not a port"),
        ("tcp://eth0:0;host:5557", "source address"),
        ("ipc://", "has no path"),
        ("ipc:///" + "x" * 120, "121 bytes"),
        ("inproc://", "has no name"),
    ],
)
def test_what_is_no_endpoint_says_how_to_write_it(text: str, says: str) -> None:
    with pytest.raises(EndpointError, match=re.escape(says)):
        endpoints.parse(text)


@given(st.text(max_size=30))
def test_any_text_gives_an_endpoint_or_a_usage_error(text: str) -> None:
    for prefix in ("", "tcp://", "ipc://", "tcp://["):
        try:
            parsed = endpoints.parse(prefix + text)
        except UsageError:
            continue
        assert endpoints.parse(str(parsed)) == parsed


BIND_CASES = [
    "tcp://*:5557",
    "tcp://0.0.0.0:5557",
    "tcp://[::]:5557",
    "tcp://[2001:db8::1]:5557",
    "tcp://[2001:db8:0:0:0:0:0:1]:5557",
    "tcp://127.0.0.1:5557",
    "tcp://127.0.0.1:*",
    "ipc:///run/kv.sock",
    "inproc://kv",
]


@pytest.mark.parametrize("text", BIND_CASES)
def test_the_bind_rule(text: str) -> None:
    vllm = text not in ("tcp://0.0.0.0:5557", "tcp://127.0.0.1:5557", "tcp://[2001:db8:0:0:0:0:0:1]:5557")
    assert endpoints.publisher_binds(text, "vllm") is vllm
    assert endpoints.publisher_binds(text, "sglang", "0.5.12") is vllm
    assert endpoints.publisher_binds(text, "sglang", "0.5.13") is (vllm or "0.0.0.0" in text)
    assert endpoints.publisher_binds(text, "tensorrt-llm")


def test_the_bind_option() -> None:
    assert endpoints.publisher_binds("tcp://127.0.0.1:5557", "sglang", bind=True)
    assert not endpoints.publisher_binds("tcp://*:5557", "sglang", "0.5.22", bind=False)
    with pytest.raises(EndpointError, match=r"sglang 0\.5\.21 has no option bind"):
        endpoints.publisher_binds("tcp://*:5557", "sglang", "0.5.21", bind=True)
    with pytest.raises(EndpointError, match="vllm has no option bind"):
        endpoints.publisher_binds("tcp://*:5557", "vllm", bind=True)
    with pytest.raises(DialectError):
        endpoints.publisher_binds("tcp://0.0.0.0:5557", "sglang", "newest")


@pytest.mark.parametrize(
    ("text", "engine", "rank", "there"),
    [
        ("tcp://*:5557", None, 0, "tcp://*:5557"),
        ("tcp://*:5557", None, 3, "tcp://*:5560"),
        ("tcp://[::1]:5557", "sglang", 3, "tcp://[::1]:5560"),
        ("inproc://kv", "vllm", 2, "inproc://kv_dp2"),
        ("ipc:///run/kv.sock", None, 0, "ipc:///run/kv.sock"),
        ("ipc:///run/kv.sock", "tensorrt-llm", 2, "ipc:///run/kv.sock_dp2"),
        ("tcp://*:0", "vllm", 2, "tcp://*:0"),
    ],
)
def test_where_a_rank_is(text: str, engine: Engine | None, rank: int, there: str) -> None:
    assert str(endpoints.for_rank(text, rank, engine)) == there


@pytest.mark.parametrize(
    ("text", "engine", "version", "says"),
    [
        ("ipc:///run/kv.sock", "vllm", None, "only rank 0"),
        ("tcp://*:*", "vllm", None, "no port to add rank 2 to"),
        ("tcp://*:0", "vllm", "0.30.0", "would bind port 2"),
        ("tcp://*:0", "sglang", None, "would bind port 2"),
        ("tcp://*:65534", None, None, "65536"),
        ("tcp://*:5557", "vllm", "0.9.0.1", "0.9.1 is the first"),
        ("tcp://*:5557", "sglang", "0.4.6.post5", "0.4.7 is the first"),
    ],
)
def test_ranks_that_cannot_be(text: str, engine: Engine | None, version: str | None, says: str) -> None:
    with pytest.raises(EndpointError, match=re.escape(says)):
        endpoints.for_rank(text, 2, engine, version)


def test_a_rank_is_not_negative() -> None:
    with pytest.raises(EndpointError, match="from 0"):
        endpoints.for_rank("tcp://*:5557", -1)


@pytest.mark.parametrize("release", [r for r in RELEASES if r.version not in ("0.4.6.post5", "0.9.0")], ids=str)
def test_ranks_are_where_the_release_itself_says(release: Release) -> None:
    require_source(release.engine, release.version)
    offset = load_structs(fetch_module(release.engine, release.version)).module.ZmqEventPublisher.offset_endpoint_port
    for text in ("tcp://*:5557", "tcp://[::1]:5557", "inproc://kv"):
        for rank in (0, 1, 7):
            assert str(endpoints.for_rank(text, rank, release.engine, release.version)) == offset(text, rank)
    with pytest.raises(ValueError):
        offset("ipc:///run/kv.sock", 1)
    zero = offset("tcp://*:0", 2)
    if zero == "tcp://*:0":
        assert str(endpoints.for_rank("tcp://*:0", 2, release.engine, release.version)) == zero
    else:
        assert zero == "tcp://*:2"
        with pytest.raises(EndpointError):
            endpoints.for_rank("tcp://*:0", 2, release.engine, release.version)


@pytest.mark.parametrize(
    ("live", "replay", "ranks", "says"),
    [
        ("tcp://*:5557", "tcp://*:5557", 1, "both the live and the replay"),
        ("tcp://*:5557", "tcp://127.0.0.1:5557", 1, "one port"),
        ("tcp://*:5557", "tcp://*:5558", 2, "rank 1 publishes at port 5558, where rank 0 replays"),
        ("tcp://*:5559", "tcp://127.0.0.1:5557", 4, "rank 2 replays at port 5559, where rank 0 publishes"),
        ("inproc://a", "inproc://a", 1, "both"),
        ("tcp://*:5557", "tcp://*:65535", 2, "65536"),
        ("tcp://*:5557", "tcp://*:6000", 0, "at least one"),
    ],
)
def test_ranges_that_overlap(live: str, replay: str, ranks: int, says: str) -> None:
    with pytest.raises(EndpointError, match=re.escape(says)):
        endpoints.check_ranges(live, replay, ranks)


@pytest.mark.parametrize(
    ("live", "replay", "ranks"),
    [
        ("tcp://*:5557", "tcp://*:5558", 1),
        ("tcp://*:5557", "tcp://*:5561", 4),
        ("tcp://10.0.0.1:5557", "tcp://10.0.0.2:5557", 4),
        ("tcp://*:*", "tcp://*:*", 2),
        ("tcp://*:0", "tcp://*:0", 2),
        ("inproc://a", "inproc://b", 2),
        ("ipc:///a", "tcp://*:5557", 2),
    ],
)
def test_ranges_that_do_not_overlap(live: str, replay: str, ranks: int) -> None:
    endpoints.check_ranges(live, replay, ranks)


@pytest.mark.parametrize(
    ("text", "host", "there"),
    [
        ("tcp://*:5557", "engine", "tcp://engine:5557"),
        ("tcp://0.0.0.0:5557", "::1", "tcp://[::1]:5557"),
        ("tcp://[::]:5557", "[::1]", "tcp://[::1]:5557"),
        ("tcp://10.0.0.1:5557", "engine", "tcp://10.0.0.1:5557"),
        ("ipc:///run/kv.sock", None, "ipc:///run/kv.sock"),
    ],
)
def test_what_to_dial(text: str, host: str | None, there: str) -> None:
    assert str(endpoints.dial(text, host)) == there


@pytest.mark.parametrize(
    ("text", "host", "says"),
    [
        ("tcp://*:5557", None, "tcp://127.0.0.1:5557"),
        ("tcp://*:5557", "0.0.0.0", "give the engine's host"),
        ("tcp://host:*", None, "which port"),
        ("tcp://host:0", None, "which port"),
        ("ipc://*", None, "which path"),
    ],
)
def test_what_cannot_be_dialled(text: str, host: str | None, says: str) -> None:
    with pytest.raises(EndpointError, match=re.escape(says)):
        endpoints.dial(text, host)
