"""ZeroMQ endpoints as engines use them: how they are written, who binds, where each DP rank is. Pure, no socket.

The rules are those of the engines' own publishers, read off their releases; they differ between engines and between
releases, and a consumer that guesses wrong hears nothing (spec/transport.md).
"""

from __future__ import annotations

import ipaddress
from typing import Literal

import msgspec

from kvwire.dialects.releases import version_key
from kvwire.errors import UsageError

__all__ = [
    "MAX_IPC_PATH",
    "WILDCARD_HOSTS",
    "Endpoint",
    "EndpointError",
    "Engine",
    "check_ranges",
    "dial",
    "for_rank",
    "parse",
    "publisher_binds",
]

Engine = Literal["sglang", "vllm", "tensorrt-llm", "atom"]
"""Publishers whose rules are known."""

WILDCARD_HOSTS = frozenset(("*", "0.0.0.0", "::"))
"""Hosts that mean "every address of this machine" to a socket that binds, and nothing to one that connects."""

MAX_IPC_PATH = 107
"""Bytes of an ipc path that Linux takes; 103 on macOS."""

_SGLANG_ZEROS_BIND = "0.5.13"
_SGLANG_BIND_OPTION = "0.5.22"
_VLLM_PORT_ZERO = "0.31.0"
_FIRST_WITH_RANKS = {"sglang": "0.4.7", "vllm": "0.9.1"}


class EndpointError(UsageError, ValueError):
    """An endpoint that cannot be used, with what is wrong with it and how to write it."""

    code = "endpoint"


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """An endpoint taken apart; ``str()`` writes it again.

    Attributes:
        transport: ``tcp``, ``ipc`` or ``inproc``.
        host: of tcp, an IPv6 address without its brackets.
        port: of tcp; 0 and None (written ``*``) leave the choice to the system that binds.
        path: of ipc, or the name of an inproc endpoint.
    """

    transport: str
    host: str = ""
    port: int | None = None
    path: str = ""

    def __str__(self) -> str:
        if self.transport != "tcp":
            return f"{self.transport}://{self.path}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"tcp://{host}:{'*' if self.port is None else self.port}"

    @property
    def wildcard(self) -> bool:
        """Whether the host stands for every address of the machine: to bind, not to dial."""
        return self.transport == "tcp" and self.host in WILDCARD_HOSTS

    @property
    def chosen_port(self) -> bool:
        """Whether the port is a real one, not left to the system that binds."""
        return bool(self.port)

    @property
    def ipv6(self) -> bool:
        """Whether the host is an IPv6 address: the socket then needs its IPV6 option."""
        return ":" in self.host


def parse(text: str | Endpoint) -> Endpoint:
    """Take an endpoint apart.

    Args:
        text: ``tcp://host:port`` (an IPv6 address in brackets, ``*`` as host or port to bind), ``ipc://path`` or
            ``inproc://name``.

    Raises:
        EndpointError: anything else; the message says how to write it.
    """
    if isinstance(text, Endpoint):
        return text
    given = text.strip()
    transport, separator, rest = given.partition("://")
    if not separator:
        how = f"for TCP write tcp://{given}" if ":" in given else "write tcp://host:port, ipc://path or inproc://name"
        raise EndpointError(f"endpoint {text!r} names no transport; {how}")
    if transport == "tcp":
        return _parse_tcp(text, rest)
    if transport == "ipc":
        size = len(rest.encode(errors="surrogateescape"))
        if not rest:
            raise EndpointError(f"endpoint {text!r} has no path; write ipc:///run/kv-events.sock")
        if size > MAX_IPC_PATH:
            raise EndpointError(
                f"endpoint {text!r}: a path of {size} bytes; a Unix socket takes {MAX_IPC_PATH} at most"
            )
        return Endpoint(transport="ipc", path=rest)
    if transport == "inproc":
        if not rest:
            raise EndpointError(f"endpoint {text!r} has no name; write inproc://name")
        return Endpoint(transport="inproc", path=rest)
    if transport in ("http", "https"):
        raise EndpointError(
            f"endpoint {text!r} is a web address; an engine's events are at tcp://host:port "
            f"(SGLang's server tells where: --server {given})"
        )
    raise EndpointError(f"endpoint {text!r}: transport {transport!r} is none of tcp, ipc, inproc")


def _parse_tcp(text: str, rest: str) -> Endpoint:
    if ";" in rest:
        raise EndpointError(f"endpoint {text!r}: a source address (before the ;) is not taken; write tcp://host:port")
    host, separator, port = rest.rpartition(":")
    if not separator or (rest.startswith("[") and rest.endswith("]")):
        raise EndpointError(
            f"endpoint {text!r} has no port; engines publish at 5557 unless told otherwise: tcp://{rest or 'host'}:5557"
        )
    if host.startswith("[") and host.endswith("]"):
        host = _ipv6(text, host[1:-1])
    elif ":" in host and "[" not in host and "/" not in host:
        raise EndpointError(
            f"endpoint {text!r}: an IPv6 address needs brackets, else its end cannot be told from the port: "
            f"tcp://[{host}]:{port}"
        )
    if not host or any(letter.isspace() or letter in "/@[]?#" for letter in host.split("%")[0]):
        what = f": {host!r} is not a host" if host else " has no host"
        raise EndpointError(f"endpoint {text!r}{what}; write tcp://host:port, or tcp://*:port to bind")
    return Endpoint(transport="tcp", host=host, port=_port(text, port))


def _ipv6(text: str, host: str) -> str:
    try:
        ipaddress.IPv6Address(host)
    except ValueError as error:
        raise EndpointError(f"endpoint {text!r}: {host!r} in brackets is not an IPv6 address") from error
    return host


def _port(text: str, port: str) -> int | None:
    if port == "*":
        return None
    if not (port.isascii() and port.isdigit()) or len(port) > 5 or int(port) > 65535:
        raise EndpointError(f"endpoint {text!r}: {port!r} is not a port; write a number from 1 to 65535")
    return int(port)


def publisher_binds(
    endpoint: str | Endpoint, engine: Engine, version: str | None = None, *, bind: bool | None = None
) -> bool:
    """Whether an engine's publisher binds this endpoint; it connects to any other, and then the consumer has to bind.

    The replay socket of every engine binds, whatever its endpoint is.

    Rules: vLLM, and SGLang until 0.5.12, bind where the endpoint holds ``*`` or ``::`` anywhere (so every IPv6 address
    that is shortened with ``::``), and bind ipc and inproc; they *connect* to ``0.0.0.0``. SGLang from 0.5.13 binds
    ``0.0.0.0`` too, and from 0.5.22 has the option ``bind``. TensorRT-LLM and ROCm ATOM always bind.

    Args:
        endpoint: as the engine's configuration has it.
        engine: whose rule.
        version: of the engine; None for the newest known.
        bind: SGLang's option; None when it is not set.

    Raises:
        EndpointError: not an endpoint, or the option ``bind`` where the engine has none.
        DialectError: not a version.
    """
    base = parse(endpoint)
    text = str(base)
    if bind is not None:
        if engine != "sglang" or not _since(version, _SGLANG_BIND_OPTION):
            whose = f"{engine} {version}" if version else engine
            raise EndpointError(f"{whose} has no option bind; SGLang has it from {_SGLANG_BIND_OPTION}")
        return bind
    if engine in ("tensorrt-llm", "atom") or base.transport != "tcp" or "*" in text or "::" in text:
        return True
    return engine == "sglang" and _since(version, _SGLANG_ZEROS_BIND) and "0.0.0.0" in text


def for_rank(endpoint: str | Endpoint, rank: int, engine: Engine | None = None, version: str | None = None) -> Endpoint:
    """The endpoint of one DP rank; live and replay endpoints alike.

    Rules: a tcp port grows by the rank, an inproc name gets ``_dpRANK`` behind it. An ipc path does in TensorRT-LLM and
    ROCm ATOM; SGLang and vLLM refuse to start. A port of 0 stays 0 in vLLM from 0.31.0; elsewhere it becomes the rank,
    a privileged port. vLLM before 0.9.1 and SGLang before 0.4.7 know no ranks.

    Args:
        endpoint: of rank 0.
        rank: 0 or more; 0 changes nothing.
        engine, version: whose rule; None for what SGLang and vLLM do, and for the newest release.

    Raises:
        EndpointError: an endpoint for which the engine has no such rank.
        DialectError: not a version.
    """
    base = parse(endpoint)
    if rank < 0:
        raise EndpointError(f"DP rank {rank}: ranks count from 0")
    if rank == 0:
        return base
    first = _FIRST_WITH_RANKS.get(engine or "")
    if first is not None and not _since(version, first):
        raise EndpointError(f"{engine} {version} has no DP ranks in its events; {first} is the first that does")
    if base.transport == "ipc" and engine not in ("tensorrt-llm", "atom"):
        raise EndpointError(
            f"{base}: SGLang and vLLM offset no ipc endpoint, so only rank 0 can publish there; use tcp"
        )
    if base.transport != "tcp":
        return msgspec.structs.replace(base, path=f"{base.path}_dp{rank}")
    if base.port is None:
        raise EndpointError(f"{base} has no port to add rank {rank} to; give the port of rank 0")
    if base.port == 0:
        if engine in ("vllm", None) and _since(version, _VLLM_PORT_ZERO):
            return base
        raise EndpointError(
            f"{base}: only vLLM from {_VLLM_PORT_ZERO} leaves port 0 to the system on every rank; "
            f"elsewhere rank {rank} would bind port {rank}"
        )
    port = base.port + rank
    if port > 65535:
        raise EndpointError(f"{base}: the port of rank {rank} would be {port}; 65535 is the greatest")
    return msgspec.structs.replace(base, port=port)


def check_ranges(endpoint: str | Endpoint, replay_endpoint: str | Endpoint, dp_size: int) -> None:
    """Check that no rank replays where another one publishes.

    Args:
        endpoint, replay_endpoint: of rank 0.
        dp_size: how many DP ranks there are, at least 1.

    Raises:
        EndpointError: the port ranges overlap on one host, or run past 65535.
    """
    live, replay = parse(endpoint), parse(replay_endpoint)
    if dp_size < 1:
        raise EndpointError(f"dp_size {dp_size}: there is at least one rank")
    if live == replay and live.port != 0 and not (live.transport == "tcp" and live.port is None):
        raise EndpointError(f"{live} cannot be both the live and the replay endpoint")
    if not (live.port and replay.port):
        return
    for base in (live, replay):
        for_rank(base, dp_size - 1)
    same_host = live.host == replay.host or live.wildcard or replay.wildcard
    distance = abs(live.port - replay.port)
    if not same_host or distance >= dp_size:
        return
    if distance == 0:
        raise EndpointError(f"{live} and {replay} are one port; the live and the replay endpoint are two sockets")
    early, late = ("publishes", "replays") if live.port < replay.port else ("replays", "publishes")
    raise EndpointError(
        f"with {dp_size} DP ranks, {live} and {replay} overlap: rank {distance} {early} at port "
        f"{max(live.port, replay.port)}, where rank 0 {late}; keep the two at least {dp_size} ports apart"
    )


def dial(endpoint: str | Endpoint, host: str | None = None) -> Endpoint:
    """The endpoint to connect to for one that the other side binds.

    Args:
        endpoint: as the other side's configuration has it.
        host: the other side's address or name, an IPv6 address with or without brackets; takes the place of a wildcard.

    Raises:
        EndpointError: a wildcard and no host to put in its place, or a port that only the binding side knows.
    """
    base = parse(endpoint)
    if base.transport == "ipc" and base.path == "*":
        raise EndpointError(f"{base}: only the publisher knows which path it bound; look in its log, or give it a path")
    if base.transport != "tcp":
        return base
    if not base.chosen_port:
        raise EndpointError(f"{base}: only the publisher knows which port it bound; look in its log, or give it a port")
    if not base.wildcard:
        return base
    if host is None or host.strip("[]") in WILDCARD_HOSTS:
        raise EndpointError(
            f"{base} is what an engine binds, not an address to connect to; give the engine's host, "
            f"for this machine tcp://127.0.0.1:{base.port}"
        )
    named = f"[{host.strip('[]')}]" if ":" in host else host
    return parse(f"tcp://{named}:{base.port}")


def _since(version: str | None, first: str) -> bool:
    return version is None or version_key(version) >= version_key(first)
