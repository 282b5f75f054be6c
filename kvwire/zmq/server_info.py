"""Where an SGLang server's publishers are, as its HTTP ``/server_info`` tells in the block ``kv_events``.

SGLang writes the block from 0.5.13 on, the replay port from 0.5.22 on: DP rank r publishes at ``endpoint_port_base + r``
and replays at ``replay_endpoint_port_base + r``. Whether the publisher connects instead of binding is only in the raw
``kv_events_config`` beside it.
"""

from __future__ import annotations

import http.client
import time
import urllib.error
import urllib.parse
import urllib.request
from typing import IO, Any, TypeVar

import msgspec

from kvwire.errors import UsageError
from kvwire.zmq.endpoints import WILDCARD_HOSTS, Endpoint, EndpointError, for_rank, parse, publisher_binds

__all__ = ["DiscoveryError", "Publishers", "fetch", "is_server_url", "read"]

PATH = "/server_info"
TIMEOUT = 10.0
MAX_BYTES = 8 << 20
MAX_RANKS = 4096


class DiscoveryError(UsageError):
    """The server did not tell where its publishers are; the message says what to do.

    Attributes:
        code: ``server-unreachable`` when there was no usable HTTP answer, else ``no-kv-events``.
    """

    code = "no-kv-events"

    def __init__(self, problem: str, *, code: str = "no-kv-events") -> None:
        self.code = code
        super().__init__(problem)


class Publishers(msgspec.Struct, frozen=True):
    """Where to subscribe.

    Attributes:
        endpoints: per name, where to connect to or what to bind.
        replays: per name of an endpoint, where to ask for a replay.
        topic: what to subscribe to.
        bind: the publishers connect; it is this side that binds.
    """

    endpoints: dict[str, Endpoint]
    replays: dict[str, Endpoint]
    topic: str
    bind: bool


class _Block(msgspec.Struct):
    publisher: str
    endpoint_host: str
    endpoint_port_base: int
    topic: str = ""
    dp_size: int = 1
    replay_endpoint_port_base: int | None = None


class Config(msgspec.Struct):
    """What is read of the raw ``--kv-events-config`` of SGLang."""

    replay_endpoint: str | None = None
    bind: bool | None = None


ConfigT = TypeVar("ConfigT", bound=Config)


def is_server_url(text: str) -> bool:
    """Whether this is the address of a server rather than an endpoint."""
    return text.startswith(("http://", "https://"))


def fetch(url: str, *, token: str | None = None, timeout: float = TIMEOUT) -> Publishers:
    """Ask a server where its publishers are. No proxy is used: the sockets have to reach the same host directly.

    Args:
        url: ``http://host:30000``.
        token: the server's API key, where it wants one.
        timeout: seconds for the whole look-up.

    Raises:
        DiscoveryError: no answer, or one that names no publisher that can be listened to.
    """
    parts = urllib.parse.urlsplit(url)
    if not parts.hostname or parts.username is not None:
        raise DiscoveryError(f"{url} is not a server's address; write http://host:30000")
    address = url.rstrip("/").removesuffix(PATH) + PATH
    body = _get(address, parts.hostname, token, timeout)
    try:
        info = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise DiscoveryError(
            f"{address} answered something that is no JSON ({error}); is this an SGLang server?"
        ) from error
    return read(info, address=address, host=parts.hostname)


def read(info: Any, *, address: str, host: str) -> Publishers:
    """Read an answer. Pure.

    Args:
        info: the decoded JSON.
        address: where it came from, for messages.
        host: the server's host, to dial where the publisher binds a wildcard.

    Raises:
        DiscoveryError: it names no publisher that can be listened to.
    """
    block = _block(info, address)
    config = read_config(info, Config)
    live = Endpoint(transport="tcp", host=block.endpoint_host.strip("[]"), port=block.endpoint_port_base)
    # Without the configuration, a host that is told is one that can be dialled.
    binds = config is None or (publisher_binds(live, "sglang") if config.bind is None else config.bind)
    live = msgspec.structs.replace(live, host=_reachable(live.host, host) if binds else "*")
    replay = None
    if block.replay_endpoint_port_base is not None:
        replay = Endpoint(
            transport="tcp", host=_replay_host(block, config, binds, host), port=block.replay_endpoint_port_base
        )
    endpoints, replays = {}, {}
    try:
        for rank in range(block.dp_size):
            where = for_rank(live, rank, "sglang")
            endpoints[str(where)] = where
            if replay is not None:
                replays[str(where)] = for_rank(replay, rank, "sglang")
    except EndpointError as error:
        raise DiscoveryError(f"{address} describes endpoints that cannot be: {error}") from error
    return Publishers(endpoints, replays, block.topic, not binds)


def _block(info: Any, address: str) -> _Block:
    found = info.get("kv_events") if isinstance(info, dict) else None
    if found is None:
        raise DiscoveryError(
            f"{address} describes no publisher: the engine runs without events (start it with --kv-events-config), or is "
            "no SGLang, or one older than 0.5.13; give its endpoint instead, tcp://HOST:5557 unless told otherwise"
        )
    try:
        block = msgspec.convert(found, _Block)
    except msgspec.ValidationError as error:
        raise DiscoveryError(f"{address}: its block kv_events is not as SGLang writes it: {error}") from error
    if block.publisher != "zmq":
        raise DiscoveryError(f"{address} publishes with {block.publisher!r}; this listens to 'zmq' alone")
    for name in ("endpoint_port_base", "replay_endpoint_port_base"):
        port = getattr(block, name)
        if port is not None and not 1 <= port <= 65535:
            raise DiscoveryError(f"{address}: kv_events.{name} is {port}; a port is from 1 to 65535")
    if not 1 <= block.dp_size <= MAX_RANKS:
        raise DiscoveryError(f"{address}: kv_events.dp_size is {block.dp_size}; expected 1 to {MAX_RANKS}")
    return block


def read_config(info: dict[str, Any], kind: type[ConfigT]) -> ConfigT | None:
    """The raw configuration beside the block, as a `Config`; None where there is none that can be read."""
    raw = info.get("kv_events_config")
    if not isinstance(raw, str) or not raw:
        return None
    try:
        return msgspec.json.decode(raw, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _reachable(told: str, host: str) -> str:
    return host if told in WILDCARD_HOSTS else told


def _replay_host(block: _Block, config: Config | None, binds: bool, host: str) -> str:
    if config is not None and config.replay_endpoint:
        try:
            return _reachable(parse(config.replay_endpoint).host, host)
        except EndpointError:
            pass
    # The replay socket always binds, so where the live one connects to is not where it is.
    return _reachable(block.endpoint_host.strip("[]") if binds else "*", host)


class _SameHost(urllib.request.HTTPRedirectHandler):
    def __init__(self, host: str) -> None:
        self.host = host

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        to = urllib.parse.urlsplit(newurl)
        if to.hostname != self.host or to.scheme != urllib.parse.urlsplit(req.full_url).scheme:
            raise DiscoveryError(
                f"{req.full_url} redirects to {newurl}; give the engine's own address, not a gateway's"
            )
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _get(url: str, host: str, token: str | None, timeout: float) -> bytes:
    headers = {"Accept": "application/json"}
    if token:
        headers["Authorization"] = f"Bearer {token}"
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _SameHost(host))
    deadline = time.monotonic() + timeout
    try:
        with opener.open(urllib.request.Request(url, headers=headers), timeout=timeout) as answer:
            return read_bounded(answer, url, deadline, MAX_BYTES)
    except urllib.error.HTTPError as error:
        with error:
            hint = {401: "it wants its API key", 403: "it wants its API key", 404: "is this an SGLang server?"}
            raise DiscoveryError(f"{url} answered {error.code}; {hint.get(error.code, 'is it ready?')}") from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        raise DiscoveryError(
            f"{url} could not be read: {reason}; is the engine up, and is this its HTTP address?",
            code="server-unreachable",
        ) from error


def read_bounded(answer: Any, url: str, deadline: float, most: int) -> bytes:
    """The body of an answer.

    Raises:
        DiscoveryError: more than ``most`` bytes. TimeoutError: it goes on past ``deadline`` (`time.monotonic`).
    """
    body = bytearray()
    while chunk := answer.read1(1 << 16):
        body += chunk
        if len(body) > most:
            raise DiscoveryError(f"{url} answers with more than {most} bytes; SGLang's answer is some 100 kB")
        if time.monotonic() > deadline:
            raise TimeoutError(f"the answer did not end in time ({len(body)} bytes so far)")
    return bytes(body)
