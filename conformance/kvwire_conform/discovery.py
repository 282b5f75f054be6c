"""Ask an SGLang server where its KV-cache events are: HTTP ``/server_info``, block ``kv_events``.

SGLang describes its publisher there from 0.5.13 on, the replay port from 0.5.22 on: ``publisher``, ``endpoint_host``,
``endpoint_port_base`` (DP rank r publishes at base + r), ``topic``, ``block_size``, ``dp_size`` and, with a replay over
tcp, ``replay_endpoint_port_base``. Other keys are passed over. The raw ``kv_events_config`` beside it tells what the block
leaves out: whether the publisher connects instead of binding, and the replay socket's own host.
"""

from __future__ import annotations

import http.client
import time
import urllib.error
import urllib.parse
import urllib.request
from typing import IO, Any

import msgspec

from kvwire.errors import UsageError
from kvwire.zmq import endpoints
from kvwire.zmq.server_info import Config, DiscoveryError, read_bounded, read_config
from kvwire_conform.targets import Target

__all__ = ["Discovery", "DiscoveryError", "describe", "discover"]

TIMEOUT = 10.0
"""Seconds that the whole look-up may take."""

MAX_BYTES = 8 << 20
"""Largest answer that is read; SGLang's are some 100 kB."""

MAX_RANKS = 1024
"""Most DP ranks of one server; each costs two sockets."""

_PATH = "/server_info"
_DESCRIBED_FROM = "0.5.13"


class Discovery(msgspec.Struct, frozen=True, kw_only=True):
    """Where a server's publishers are.

    Attributes:
        server: the server's URL, without the path.
        targets: one for each DP rank, ready for a capture.
        topic: what to subscribe to; empty for everything.
        block_size: tokens per block (SGLang's page size).
        dp_size: number of publishers.
        version: the engine's version, where the server tells it.
        bind: the publisher connects to ``targets`` instead of binding there: it is us who have to bind.
        remarks: what to know about these targets, in words.
    """

    server: str
    targets: list[Target]
    topic: str
    block_size: int
    dp_size: int
    version: str = ""
    bind: bool = False
    remarks: list[str] = []


class _Block(msgspec.Struct):
    publisher: str
    endpoint_host: str
    endpoint_port_base: int
    block_size: int
    dp_size: int = 1
    topic: str = ""
    replay_endpoint_port_base: int | None = None
    replay_endpoint_host: str | None = None


class _Config(Config):
    endpoint: str | None = None


def discover(
    server: str, *, token: str | None = None, timeout: float = TIMEOUT, max_bytes: int = MAX_BYTES
) -> Discovery:
    """Ask a server where its events are.

    No proxy is used: the sockets have to reach the same host directly.

    Args:
        server: ``http://host:30000``; a scheme left out is taken for http.
        token: sent as ``Authorization: Bearer``, for a server that was started with ``--api-key``.
        timeout: seconds for the whole look-up.
        max_bytes: largest answer that is read.

    Raises:
        DiscoveryError: no answer, or an answer that names no publisher this can listen to.
        UsageError: not a server's URL.
    """
    base, host = _server(server)
    return describe(_get(base, host, token, timeout, max_bytes), server=base, host=host)


def describe(info: Any, *, server: str, host: str) -> Discovery:
    """Read the answer of ``/server_info``. Pure.

    Args:
        info: the answer, as decoded JSON.
        server: the server's URL, for messages.
        host: the server's own host, to dial where the publisher binds a wildcard.

    Raises:
        DiscoveryError: it names no publisher that this can listen to.
    """
    if not isinstance(info, dict):
        raise DiscoveryError(f"{server}{_PATH} answered JSON that is no object: is this an SGLang server?")
    version = _version(info)
    config = read_config(info, _Config)
    block = _block(info, server, version, config)
    connects = not _binds(block, config)
    # A publisher that connects dials this very address, so it is where we have to listen; on which of our interfaces it
    # arrives is not ours to guess.
    live_host = "*" if connects else _host(block.endpoint_host, host)
    try:
        live = _endpoint(live_host, block.endpoint_port_base)
        replay = _replay(block, config, host, connects)
        targets = [
            Target(
                endpoint=str(endpoints.for_rank(live, rank, "sglang")),
                replay_endpoint=None if replay is None else str(endpoints.for_rank(replay, rank, "sglang")),
                dp_rank=rank,
            )
            for rank in range(block.dp_size)
        ]
    except endpoints.EndpointError as error:
        raise DiscoveryError(f"{server}{_PATH} describes endpoints that cannot be: {error}") from error
    return Discovery(
        server=server,
        targets=targets,
        topic=block.topic,
        block_size=block.block_size,
        dp_size=block.dp_size,
        version=version,
        bind=connects,
        remarks=_remarks(block, connects, replay is not None),
    )


def _server(text: str) -> tuple[str, str]:
    given = text.strip()
    if "://" not in given:
        given = f"http://{given}"
    try:
        parts = urllib.parse.urlsplit(given)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise UsageError(f"--server {text!r}: {error}; write http://host:30000") from error
    if parts.scheme not in ("http", "https") or not host:
        hint = "; give a tcp:// endpoint without --server" if parts.scheme == "tcp" else ""
        raise UsageError(f"--server {text!r} is not an http:// address with a host; write http://host:30000{hint}")
    if parts.username is not None:
        raise UsageError(f"--server {text!r}: no user name in the address; use the server's API key")
    path = parts.path.rstrip("/").removesuffix(_PATH)
    netloc = f"[{host}]" if ":" in host else host
    return f"{parts.scheme}://{netloc}{'' if port is None else f':{port}'}{path}", host


class _SameHost(urllib.request.HTTPRedirectHandler):
    def __init__(self, host: str) -> None:
        self.host = host

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        to = urllib.parse.urlsplit(newurl)
        downgrade = urllib.parse.urlsplit(req.full_url).scheme == "https" and to.scheme != "https"
        if (to.hostname or "").lower() != self.host.lower() or to.scheme not in ("http", "https") or downgrade:
            raise DiscoveryError(
                f"{req.full_url} redirects to {newurl}, which is not followed: give --server the engine's own address, "
                "not that of a gateway"
            )
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _get(base: str, host: str, token: str | None, timeout: float, max_bytes: int) -> Any:
    url = base + _PATH
    headers = {"Accept": "application/json"}
    if token:
        headers["Authorization"] = f"Bearer {token}"
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _SameHost(host))
    deadline = time.monotonic() + timeout
    try:
        with opener.open(urllib.request.Request(url, headers=headers), timeout=timeout) as answer:
            body = read_bounded(answer, url, deadline, max_bytes)
    except urllib.error.HTTPError as error:
        with error:
            raise DiscoveryError(_status(url, error.code)) from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        raise DiscoveryError(
            f"{url} could not be read: {reason or type(error).__name__}; is the engine up, and is this its HTTP address?",
            code="server-unreachable",
        ) from error
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise DiscoveryError(
            f"{url} answered something that is no JSON ({error}): is this an SGLang server?"
        ) from error


def _status(url: str, code: int) -> str:
    if code in (401, 403):
        return f"{url} answered {code}: the server wants its API key"
    if code == 404:
        return (
            f"{url} answered 404: not an SGLang server, or one older than {_DESCRIBED_FROM}; "
            "give its endpoint instead (tcp://HOST:5557 unless --kv-events-config says otherwise)"
        )
    if code >= 500:
        return f"{url} answered {code}: the server is not ready; try again once it serves requests"
    return f"{url} answered {code}; give the engine's endpoint instead of --server"


def _version(info: dict[str, Any]) -> str:
    version = info.get("version")
    return version if isinstance(version, str) else ""


def _block(info: dict[str, Any], server: str, version: str, config: _Config | None) -> _Block:
    found = info.get("kv_events")
    if found is None:
        raise DiscoveryError(f"{server}{_PATH} describes no publisher: {_why_none(info, version, config)}")
    try:
        block = msgspec.convert(found, _Block)
    except msgspec.ValidationError as error:
        raise DiscoveryError(f"{server}{_PATH}: its block kv_events is not as SGLang writes it: {error}") from error
    if block.publisher != "zmq":
        raise DiscoveryError(f"{server} publishes with {block.publisher!r}; this listens to 'zmq' alone")
    for name, value in (
        ("endpoint_port_base", block.endpoint_port_base),
        ("replay_endpoint_port_base", block.replay_endpoint_port_base or 1),
    ):
        if not 1 <= value <= 65535:
            raise DiscoveryError(f"{server}{_PATH}: kv_events.{name} is {value}; a port is from 1 to 65535")
    if not 1 <= block.dp_size <= MAX_RANKS or block.block_size < 1:
        raise DiscoveryError(
            f"{server}{_PATH}: kv_events has dp_size {block.dp_size} and block_size {block.block_size}; "
            f"both are at least 1, and at most {MAX_RANKS} ranks are listened to"
        )
    return block


def _why_none(info: dict[str, Any], version: str, config: _Config | None) -> str:
    if "vllm_config" in info:
        return "this is a vLLM server, which does not tell; give its endpoint (tcp://HOST:5557 unless told otherwise)"
    if "kv_events" not in info:
        said = f"SGLang {version} is" if version else "the server is no SGLang, or one"
        return f"{said} older than {_DESCRIBED_FROM}; give its endpoint (tcp://HOST:5557 unless told otherwise)"
    if config is not None and config.endpoint is not None and not config.endpoint.startswith("tcp://"):
        return f"its endpoint is {config.endpoint}, and only tcp endpoints are described; give it as the endpoint"
    if config is not None:
        return (
            f"its --kv-events-config ({info['kv_events_config']}) has no publisher or no usable tcp port; "
            'write {"publisher": "zmq", "endpoint": "tcp://*:5557"}'
        )
    return (
        "it runs without events; start it with "
        '--kv-events-config \'{"publisher": "zmq", "endpoint": "tcp://*:5557", "replay_endpoint": "tcp://*:5558"}\''
    )


def _bare(host: str) -> str:
    return host.strip("[]")


def _host(told: str, server_host: str) -> str:
    return _bare(server_host) if _bare(told) in endpoints.WILDCARD_HOSTS else _bare(told)


def _binds(block: _Block, config: _Config | None) -> bool:
    if config is None:
        # Without the configuration, a host that is told is taken for one that can be dialled.
        return True
    if config.bind is not None:
        return config.bind
    host = endpoints.Endpoint(transport="tcp", host=_bare(block.endpoint_host), port=block.endpoint_port_base)
    return endpoints.publisher_binds(host, "sglang")


def _replay(block: _Block, config: _Config | None, host: str, connects: bool) -> endpoints.Endpoint | None:
    if block.replay_endpoint_port_base is None:
        return None
    told = block.replay_endpoint_host
    if told is None and config is not None and config.replay_endpoint:
        try:
            told = endpoints.parse(config.replay_endpoint).host
        except endpoints.EndpointError:
            told = None
    if told is None:
        # The replay socket always binds, so a host that the live one connects to is not where it is.
        told = "*" if connects else block.endpoint_host
    return _endpoint(_host(told, host), block.replay_endpoint_port_base)


def _endpoint(host: str, port: int) -> endpoints.Endpoint:
    return endpoints.parse(str(endpoints.Endpoint(transport="tcp", host=host, port=port)))


def _remarks(block: _Block, connects: bool, replay: bool) -> list[str]:
    said = []
    if connects:
        said.append(
            f"the publisher connects to {block.endpoint_host}:{block.endpoint_port_base}; it is heard only where that "
            "address is this machine's and nothing else listens there, since it is this side that has to bind"
        )
    if not replay:
        said.append(
            "the server describes no replay endpoint: without one, losses stay unexplained. Give --replay, or add "
            '"replay_endpoint": "tcp://*:5558" to --kv-events-config (described from SGLang 0.5.22 on)'
        )
    if block.dp_size > 1:
        said.append(
            f"{block.dp_size} DP ranks at one host: ranks on further nodes are not described by the server, give their endpoints"
        )
    return said
