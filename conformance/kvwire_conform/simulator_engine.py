"""A simulated engine on real sockets."""

from __future__ import annotations

import contextlib
import math
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import zmq

from kvwire.dialects import Dialect, Framing, get_dialect
from kvwire.errors import UsageError
from kvwire_conform.simulator_faults import Fault
from kvwire_conform.simulator_http import ServerInfo
from kvwire_conform.simulator_model import Simulator
from kvwire_conform.simulator_replay import ReplayBuffer

HOST = "127.0.0.1"
HIGH_WATER = 100_000
"""Messages kept for a subscriber that does not read; the engines' own default."""
BIND_ATTEMPTS = 20
LINGER_MS = 1000
LONGEST_NAP_MS = 100
BURST = 64

Socket = zmq.Socket[bytes]


class EngineError(RuntimeError):
    """A simulated engine could not start, failed while it ran, or did not stop in time."""


@dataclass
class _Rank:
    """One DP rank: its engine, its sockets, and how far it is."""

    simulator: Simulator
    buffer: ReplayBuffer
    pub: Socket
    replay: Socket | None
    endpoint: str
    replay_endpoint: str | None
    joined: bool
    due: float = 0.0
    sent: int = 0


class SimulatedEngine:
    """Publishes a `Simulator` on loopback, with a replay endpoint, from a thread of its own. A context manager.

    DP rank r publishes at the first port plus r, and replays likewise. A restart of the simulated process keeps the
    sockets, counts from 0 and empties the replay buffer. Malformed replay requests get no answer and do no harm.

    Args:
        dialect, seed: see `Simulator`; every rank has the same seed and a stream of its own.
        rate: batches per second and rank; None for as fast as possible.
        count: messages per rank, after which only replay is served; None for no end.
        dp_size: how many DP ranks.
        port, replay_port: of rank 0; 0 to have free ones found.
        replay: whether there is a replay endpoint.
        framing: of the replay replies; None for what the dialect's releases send.
        buffer_steps: batches that the replay keeps.
        wait_for_subscriber: a rank publishes nothing before somebody subscribed to it. Otherwise a subscriber misses
            what was sent before it joined, as with a real engine.
        server_info: also serve SGLang's ``/server_info`` over HTTP.
        advertised_host: ``endpoint_host`` in it; a wildcard stands for the host that the HTTP server was reached at.
        clock: gives ``ts``; None for the simulator's own epoch.
        fault: id of a fault of the stream or of the replay, see `FAULTS`.
        knobs: everything else that `Simulator` takes.

    Raises:
        UsageError, DialectError: an argument that does not fit.
    """

    def __init__(
        self,
        dialect: str | Dialect,
        seed: int = 0,
        *,
        rate: float | None = 100.0,
        count: int | None = None,
        dp_size: int = 1,
        port: int = 0,
        replay_port: int = 0,
        replay: bool = True,
        framing: Framing | str | None = None,
        buffer_steps: int = 10_000,
        wait_for_subscriber: bool = True,
        server_info: bool = False,
        advertised_host: str = "*",
        clock: Callable[[], float] | None = time.time,
        fault: str | Fault | None = None,
        **knobs: Any,
    ) -> None:
        if dp_size < 1 or buffer_steps < 1 or (rate is not None and rate <= 0):
            raise UsageError("dp_size and buffer_steps are at least 1, rate is above 0")
        self.dialect = get_dialect(dialect)
        self.framing = self.dialect.framing if framing is None else Framing(framing)
        self.simulators = [
            Simulator(self.dialect, seed, dp_rank=rank, clock=clock, fault=fault, **knobs) for rank in range(dp_size)
        ]
        self._interval = 0.0 if rate is None else 1.0 / rate
        self._count = count
        self._ports = (port, replay_port)
        self._with_replay = replay
        self._buffer_steps = buffer_steps
        self._wait = wait_for_subscriber
        self._with_http = server_info
        self._advertised_host = advertised_host
        self._ranks: list[_Rank] = []
        self._stopping = threading.Event()
        self._finished = threading.Event()
        self._thread: threading.Thread | None = None
        self._context: zmq.Context[Socket] | None = None
        self._http: ServerInfo | None = None
        self._failure: BaseException | None = None

    def __enter__(self) -> SimulatedEngine:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def endpoints(self) -> list[str]:
        """Where to subscribe, one endpoint a rank; empty before the start."""
        return [rank.endpoint for rank in self._ranks]

    @property
    def replay_endpoints(self) -> list[str]:
        """Where to ask for replays, one endpoint a rank; empty without a replay."""
        return [rank.replay_endpoint for rank in self._ranks if rank.replay_endpoint is not None]

    @property
    def endpoint(self) -> str:
        """Where to subscribe to rank 0."""
        return self._started()[0].endpoint

    @property
    def replay_endpoint(self) -> str | None:
        """Where to ask rank 0 for a replay."""
        return self._started()[0].replay_endpoint

    @property
    def server(self) -> str:
        """The HTTP server's URL, without a path. Raises UsageError without ``server_info``."""
        if self._http is None:
            raise UsageError("this engine has no HTTP server; give server_info=True, and start it")
        return self._http.url

    @property
    def published(self) -> list[int]:
        """How many messages each rank has sent."""
        return [rank.sent for rank in self._ranks]

    def start(self) -> None:
        """Bind, and begin. Raises EngineError when no ports can be had."""
        if self._thread is not None:
            raise UsageError("this engine runs already; make another one")
        self._context = zmq.Context()
        try:
            pubs = self._bind(self._context, zmq.XPUB, self._ports[0])
            replays: list[Socket] = []
            if self._with_replay:
                replays = self._bind(self._context, zmq.ROUTER, self._ports[1])
            for index, simulator in enumerate(self.simulators):
                self._ranks.append(self._rank(simulator, pubs[index], replays[index] if replays else None))
            if self._with_http:
                self._http = ServerInfo({"kv_events": self.descriptor()})
        except BaseException:
            self._context.destroy(linger=0)
            raise
        self._thread = threading.Thread(target=self._run, name=f"simulated {self.dialect.id}", daemon=True)
        self._thread.start()

    def wait(self, timeout: float) -> bool:
        """Wait until every rank has sent its ``count``. False when the time is up first, or the engine failed."""
        return self._finished.wait(timeout) and self._failure is None

    def stop(self, timeout: float = 5.0) -> None:
        """Stop publishing, and close. Raises EngineError when the thread failed, or does not end within ``timeout``."""
        if self._thread is None or self._context is None:
            return
        self._stopping.set()
        self._thread.join(timeout)
        if self._thread.is_alive():
            raise EngineError(f"the simulated engine did not stop within {timeout:g} s")
        if self._http is not None:
            self._http.close()
            self._http = None
        self._context.term()
        self._context = None
        if self._failure is not None:
            raise EngineError(f"the simulated engine failed: {self._failure}") from self._failure

    def descriptor(self) -> dict[str, Any]:
        """What SGLang says of its events under ``kv_events`` in ``/server_info`` (>= 0.5.22)."""
        first = self._started()[0]
        told = {
            "publisher": "zmq",
            "endpoint_host": self._advertised_host,
            "endpoint_port_base": _port(first.endpoint),
            "topic": first.simulator.topic.decode(errors="replace"),
            "block_size": first.simulator.settings.block_size,
            "dp_size": len(self._ranks),
        }
        if first.replay_endpoint is not None:
            told["replay_endpoint_port_base"] = _port(first.replay_endpoint)
        return told

    def _started(self) -> list[_Rank]:
        if not self._ranks:
            raise UsageError("this engine has no endpoints before its start; use it in a with statement")
        return self._ranks

    # Sockets

    def _rank(self, simulator: Simulator, pub: Socket, replay: Socket | None) -> _Rank:
        fault = simulator.fault.id if simulator.fault is not None else None
        buffer = ReplayBuffer(self.framing, simulator.topic, self._buffer_steps, fault)
        told = None if replay is None else _bound(replay)
        return _Rank(simulator, buffer, pub, replay, _bound(pub), told, joined=not self._wait, due=time.monotonic())

    def _bind(self, context: zmq.Context[Socket], kind: int, port: int) -> list[Socket]:
        """A socket a rank, at neighbouring ports from ``port`` on, or wherever so many are free."""
        count = len(self.simulators)
        for attempt in range(BIND_ATTEMPTS):
            first = port or (consecutive_ports(count) if count > 1 else 0)
            sockets: list[Socket] = []
            try:
                for offset in range(count):
                    sockets.append(_socket(context, kind))
                    sockets[-1].bind(f"tcp://{HOST}:{first + offset}" if first else f"tcp://{HOST}:*")
            except zmq.ZMQError as error:
                for opened in sockets:
                    opened.close(linger=0)
                # Ports found free can be taken before they are bound; ports asked for are that or nothing.
                if port or error.errno != zmq.EADDRINUSE or attempt == BIND_ATTEMPTS - 1:
                    raise EngineError(f"cannot bind {count} ports from {first} on: {error}") from error
            else:
                return sockets
        raise AssertionError("not reached")

    # The thread

    def _run(self) -> None:
        try:
            self._serve()
        except BaseException as error:
            self._failure = error
            self._finished.set()
        finally:
            for rank in self._ranks:
                rank.pub.close(linger=LINGER_MS)
                if rank.replay is not None:
                    rank.replay.close(linger=LINGER_MS)

    def _serve(self) -> None:
        poller = zmq.Poller()
        for rank in self._ranks:
            for each in (rank.pub, rank.replay):
                if each is not None:
                    poller.register(each, zmq.POLLIN)
        while not self._stopping.is_set():
            ready = dict(poller.poll(math.ceil(self._nap())))
            for rank in self._ranks:
                if rank.pub in ready:
                    self._subscription(rank)
                if rank.replay is not None and rank.replay in ready:
                    self._answer(rank, rank.replay)
                self._publish(rank)
            if all(self._done(rank) for rank in self._ranks):
                self._finished.set()

    def _done(self, rank: _Rank) -> bool:
        return self._count is not None and rank.sent >= self._count

    def _nap(self) -> float:
        """Milliseconds until the next batch is due."""
        due = [rank.due for rank in self._ranks if rank.joined and not self._done(rank)]
        left = 1000 * (min(due) - time.monotonic()) if due else float(LONGEST_NAP_MS)
        return min(max(left, 0.0), LONGEST_NAP_MS)

    def _subscription(self, rank: _Rank) -> None:
        with contextlib.suppress(zmq.Again):
            while True:
                if rank.pub.recv(zmq.NOBLOCK)[:1] == b"\1" and not rank.joined:
                    rank.joined = True
                    rank.due = time.monotonic()

    def _answer(self, rank: _Rank, replay: Socket) -> None:
        identity, *request = replay.recv_multipart()
        for reply in rank.buffer.answer(request):
            replay.send_multipart([identity, *reply])

    def _publish(self, rank: _Rank) -> None:
        for _ in range(BURST):
            if not rank.joined or self._done(rank) or rank.due > time.monotonic():
                return
            frames = rank.simulator.message()
            rank.buffer.keep(frames)
            rank.pub.send_multipart(frames)
            rank.sent += 1
            rank.due += self._interval


def consecutive_ports(count: int) -> int:
    """The first of so many neighbouring TCP ports that are free on loopback. Raises EngineError when there are none."""
    for _ in range(BIND_ATTEMPTS * 5):
        with contextlib.ExitStack() as opened:
            first = opened.enter_context(socket.socket())
            first.bind((HOST, 0))
            base: int = first.getsockname()[1]
            try:
                for offset in range(1, count):
                    opened.enter_context(socket.socket()).bind((HOST, base + offset))
            except (OSError, OverflowError):
                continue
            return base
    raise EngineError(f"found no {count} neighbouring free ports on {HOST}")


def _socket(context: zmq.Context[Socket], kind: int) -> Socket:
    made = context.socket(kind)
    # A ROUTER drops replies past its high-water mark without a word; the end marker would be the first to go.
    made.setsockopt(zmq.SNDHWM, HIGH_WATER if kind == zmq.XPUB else 0)
    return made


def _bound(bound: Socket) -> str:
    return bound.getsockopt_string(zmq.LAST_ENDPOINT).rstrip("\0")


def _port(endpoint: str) -> int:
    return int(endpoint.rpartition(":")[2])
