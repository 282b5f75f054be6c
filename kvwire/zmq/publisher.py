"""The producing end: what an engine embeds to publish its KV-cache events and to answer replay requests.

::

    with Publisher("tcp://*:5557", dialect="slot7", replay_endpoint="tcp://*:5558") as publisher:
        publisher.publish([kvwire.BlockStored(...), kvwire.BlockRemoved(...)])

`Publisher.publish` puts the batch into a queue and returns; a thread of the publisher's own encodes, sends, and answers
replay requests (spec/transport.md).
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import msgspec
import zmq

from kvwire.codec import Encoder, OnLoss
from kvwire.dialects import Dialect, Framing
from kvwire.errors import UsageError
from kvwire.events import EventBatch
from kvwire.zmq import replay_server
from kvwire.zmq.config import PublisherConfig, parse_config
from kvwire.zmq.endpoints import Endpoint, EndpointError, check_ranges, for_rank, parse, publisher_binds
from kvwire.zmq.outbox import OnFull, Outbox, PublisherClosedError, QueueFullError
from kvwire.zmq.replay_server import ReplayBuffer, ReplayServer
from kvwire.zmq.sender import CloseReport, OnError, Sender, start

__all__ = [
    "CloseReport",
    "NullPublisher",
    "Publisher",
    "PublisherClosedError",
    "PublisherConfig",
    "PublisherStats",
    "QueueFullError",
]

CLOSE_TIMEOUT = 1.0
"""Seconds that `Publisher.close` takes at most, unless told otherwise; the engines' publishers take as long."""

_JOIN_GRACE = 1.0

Context = zmq.Context[zmq.Socket[bytes]]


@dataclass(frozen=True)
class PublisherStats:
    """Counts since the publisher was made; ``published == sent + dropped + errors + queued`` once it is at rest.

    Attributes:
        published: seqs given so far, so also the seq of the next batch.
        sent: batches handed to the socket. ZeroMQ drops them for a subscriber that is more than ``hwm`` behind.
        sent_bytes: their payload bytes.
        dropped: batches that the full queue dropped.
        errors: batches that could not be encoded.
        queued: batches that wait for the publisher's thread.
        buffered: batches that a replay can give.
        buffered_bytes: their payload bytes.
        replay_clients: clients whose replay is under way or in line.
        replay_requests, replayed, replay_answered, replay_malformed, replay_refused, replay_abandoned, replay_overrun:
            see `kvwire.zmq.replay_server.ReplayCounts`.
    """

    published: int = 0
    sent: int = 0
    sent_bytes: int = 0
    dropped: int = 0
    errors: int = 0
    queued: int = 0
    buffered: int = 0
    buffered_bytes: int = 0
    replay_clients: int = 0
    replay_requests: int = 0
    replayed: int = 0
    replay_answered: int = 0
    replay_malformed: int = 0
    replay_refused: int = 0
    replay_abandoned: int = 0
    replay_overrun: int = 0


class Publisher:
    """Publishes one DP rank's batches, and replays the newest of them to whoever asks.

    Batches are sent in the order in which `publish` was called, with seq 0, 1, 2 …; a seq that a subscriber never sees
    is a batch that was lost on the way, dropped by a full queue, or impossible to encode. Nothing on the network makes
    `publish` wait: a slow subscriber loses batches beyond ``hwm`` and asks for a replay.

    A process that forks leaves the publisher with the parent; in the child it is closed. At the interpreter's exit every
    publisher that is still open is closed, which takes `CLOSE_TIMEOUT` at most. A child of `multiprocessing` ends
    without that: close the publisher there.

    Args:
        endpoint: where to publish, before the offset of the DP rank: a tcp port grows by the rank, an inproc name gets
            ``_dpRANK``. Port 0 leaves the choice to the system; see `endpoint`.
        dialect: id, alias or release (``slot8``, ``sglang==0.5.23``): how events are written.
        replay_endpoint: where to answer replay requests, always bound, with the same offset; None for no replay.
        dp_rank: of this publisher; batches without a rank get it, in dialects that carry one.
        topic: first frame of every message; subscribers select by its beginning.
        buffer_steps: batches kept for replay, the oldest going first.
        buffer_bytes: payload bytes kept for replay; None for no bound.
        hwm: batches that may wait for one subscriber inside the socket; beyond them ZeroMQ drops, and the subscriber
            sees a gap. 0 for no bound.
        max_queue: batches that may wait for the publisher's thread.
        bind: bind or connect the endpoint. None for the rule of SGLang 0.5.23: bind the hosts ``*``, ``0.0.0.0`` and
            ``::``, ipc and inproc, connect to others; and bind where the system chooses the port.
        on_full: what `publish` does when the queue is full: ``block`` until there is room, ``drop-oldest`` of the
            batches that wait, or ``raise`` `QueueFullError`. A dropped batch takes its seq with it.
        block_timeout: seconds after which ``block`` raises `QueueFullError`; None waits for as long as it takes.
        on_loss: what to do with a field that the dialect cannot carry: fail the batch (``error``), or leave the field
            out (``drop``).
        on_error: called with the seq and the error of a batch that cannot be encoded, in the publisher's thread.
        framing: of replay replies; None for the framing of the dialect's releases.
        replay_patience: seconds for which a replay client may take nothing before it is cut off, which frees the
            replies that wait for it; given up after twice that where the system cannot cut it off.
        context: the ZeroMQ context. None for one of the publisher's own, so that `close` can wait for the sockets to be
            flushed; or, where an endpoint is inproc, for ``zmq.Context.instance()``.

    Raises:
        EndpointError: an endpoint that is none, or cannot be bound.
        DialectError: no such dialect. UsageError: another argument that cannot be.
    """

    def __init__(
        self,
        endpoint: str = "tcp://*:5557",
        *,
        dialect: str | Dialect,
        replay_endpoint: str | None = None,
        dp_rank: int = 0,
        topic: str = "",
        buffer_steps: int = 10_000,
        buffer_bytes: int | None = 256 << 20,
        hwm: int = 100_000,
        max_queue: int = 100_000,
        bind: bool | None = None,
        on_full: OnFull = "block",
        block_timeout: float | None = None,
        on_loss: OnLoss = "error",
        on_error: OnError | None = None,
        framing: Framing | None = None,
        replay_patience: float = 10.0,
        context: Context | None = None,
    ) -> None:
        for name, value, least in (("buffer_steps", buffer_steps, 0), ("hwm", hwm, 0), ("dp_rank", dp_rank, 0)):
            if value < least:
                raise UsageError(f"{name} is {least} or more, not {value!r}")
        encoder = Encoder(dialect, on_loss)
        self._configured = parse(endpoint)
        self._configured_replay = None if replay_endpoint is None else parse(replay_endpoint)
        self._dp_rank = dp_rank
        self._topic = topic
        own = for_rank(self._configured, dp_rank)
        own_replay = None if self._configured_replay is None else for_rank(self._configured_replay, dp_rank)
        inproc = any(found is not None and found.transport == "inproc" for found in (own, own_replay))
        own_context: Context | None = None
        if context is None:
            context = zmq.Context.instance() if inproc else zmq.Context()
            own_context = None if inproc else context
        self._close_lock = threading.Lock()
        self._forked = False
        self._binds = publisher_binds(endpoint, "sglang", bind=bind) or (bind is None and own.port == 0)
        router: zmq.Socket[bytes] | None = None
        with contextlib.ExitStack() as undo:
            if own_context is not None:
                undo.callback(own_context.destroy, linger=0)
            pub: zmq.Socket[bytes] = context.socket(zmq.PUB)
            undo.callback(pub.close, linger=0)
            pub.setsockopt(zmq.LINGER, 0)
            pub.setsockopt(zmq.SNDHWM, hwm)
            self._endpoint = _attach(pub, own, self._binds)
            self._replay_endpoint: str | None = None
            if own_replay is not None:
                router = replay_server.open_socket(context, replay_patience)
                undo.callback(router.close, linger=0)
                self._replay_endpoint = _attach(router, own_replay, True)
            self._outbox = Outbox(max_queue, on_full, block_timeout)
            undo.pop_all()
        self._buffer = ReplayBuffer(buffer_steps if router is not None else 0, buffer_bytes)
        self._replay: ReplayServer | None = None
        if router is not None:
            self._replay = ReplayServer(
                router, self._buffer, framing or encoder.dialect.framing, topic.encode(), replay_patience
            )
        self._sender = Sender(
            self._outbox,
            encoder,
            dp_rank=dp_rank if "dp_rank" in encoder.dialect.batch_fields else None,
            topic=topic.encode(),
            pub=pub,
            buffer=self._buffer if router is not None else None,
            replay=self._replay,
            router=router,
            own_context=own_context,
            on_error=on_error,
        )
        self._thread = start(self._sender, f"kvwire-publisher-{dp_rank}")
        _open.add(self)

    @classmethod
    def from_config(
        cls,
        config: str | bytes | Mapping[str, Any],
        *,
        dialect: str | Dialect,
        dp_rank: int = 0,
        **options: Any,
    ) -> Publisher | NullPublisher:
        """What an engine's ``--kv-events-config`` asks for, in the spelling of SGLang or vLLM.

        Args:
            config: the JSON, or the object that it stands for. Its ``format`` is about how hashes are made and changes
                nothing here.
            dialect, dp_rank: as in the constructor; the JSON does not say them.
            options: further arguments of the constructor; they win over the config.

        Returns:
            A `NullPublisher` when the config has events off or the publisher ``null``.

        Raises:
            ConfigError: an unknown key, or a value of the wrong type. And what the constructor raises.
        """
        asked = parse_config(config)
        if not asked.enabled:
            return NullPublisher()
        given: dict[str, Any] = {
            "endpoint": asked.endpoint,
            "replay_endpoint": asked.replay_endpoint,
            "buffer_steps": asked.buffer_steps,
            "hwm": asked.hwm,
            "max_queue": asked.max_queue_size,
            "topic": asked.topic,
            "bind": asked.bind,
        }
        return cls(dialect=dialect, dp_rank=dp_rank, **{**given, **options})

    @property
    def endpoint(self) -> str:
        """Where batches go: the endpoint bound, with its real port, or the one connected to."""
        return self._endpoint

    @property
    def replay_endpoint(self) -> str | None:
        """Where replays are asked for, with its real port; None without replay."""
        return self._replay_endpoint

    @property
    def binds(self) -> bool:
        """Whether subscribers connect here; if not, the publisher connects to them."""
        return self._binds

    @property
    def closed(self) -> bool:
        """Whether `publish` no longer takes anything."""
        return self._outbox.closed

    @property
    def stats(self) -> PublisherStats:
        """The counts as they are now."""
        counts = replay_server.ReplayCounts() if self._replay is None else self._replay.counts
        return PublisherStats(
            published=self._outbox.next_seq,
            sent=self._sender.sent,
            sent_bytes=self._sender.sent_bytes,
            dropped=self._outbox.dropped,
            errors=self._sender.errors,
            queued=len(self._outbox),
            buffered=len(self._buffer),
            buffered_bytes=self._buffer.bytes,
            replay_clients=0 if self._replay is None else self._replay.clients,
            replay_requests=counts.requests,
            replayed=counts.replayed,
            replay_answered=counts.answered,
            replay_malformed=counts.malformed,
            replay_refused=counts.refused,
            replay_abandoned=counts.abandoned,
            replay_overrun=counts.overrun,
        )

    def publish(self, batch: EventBatch | Sequence[Any] | bytes) -> int:
        """Queue one batch, from any thread, and return its seq.

        The batch is encoded later: do not change it, nor its events, from now on.

        Args:
            batch: an `EventBatch`; or a list of events, which gets the time of this call as its ``ts``; or a payload
                that is already encoded, sent as it is.

        Raises:
            PublisherClosedError: after `close`, in a forked child, or when the publisher's thread has ended.
            QueueFullError: the queue is full, and ``on_full`` says so.
            UsageError: none of those types.
        """
        if isinstance(batch, EventBatch):
            return self._outbox.put(batch)
        if isinstance(batch, (list, tuple)):
            return self._outbox.put(list(batch), time.time())
        if isinstance(batch, bytes) and batch:
            return self._outbox.put(batch)
        if isinstance(batch, bytes):
            raise UsageError("an empty payload marks the end of a replay and cannot be published")
        raise UsageError(
            f"publish takes an EventBatch, a list of events, or an encoded payload (bytes), not {type(batch).__name__}"
        )

    def describe(self, block_size: int, dp_size: int = 1) -> dict[str, Any] | None:
        """What SGLang has under ``kv_events`` in its ``/server_info``, for routers that look up where to subscribe.

        Args:
            block_size: tokens per block.
            dp_size: how many DP ranks publish, each at the base port plus its rank.

        Returns:
            ``publisher``, ``endpoint_host`` (as configured: a wildcard stands for the host of ``/server_info``),
            ``endpoint_port_base``, ``topic``, ``block_size``, ``dp_size``, and with replay
            ``replay_endpoint_port_base``; None when the endpoint cannot be told in this way: it is not tcp, or the
            system chose a port and there are other ranks.

        Raises:
            EndpointError: the port ranges of live events and replay overlap for this many ranks.
            UsageError: a size below 1, or a rank beyond them.
        """
        if block_size < 1 or dp_size < 1:
            raise UsageError(f"block_size and dp_size are 1 or more, not {block_size!r} and {dp_size!r}")
        if self._dp_rank >= dp_size:
            raise UsageError(f"DP rank {self._dp_rank} is not one of {dp_size}; ranks count from 0")
        base = _base(self._configured, self._endpoint, dp_size)
        if base is None:
            return None
        told: dict[str, Any] = {
            "publisher": "zmq",
            "endpoint_host": f"[{base.host}]" if base.ipv6 else base.host,
            "endpoint_port_base": base.port,
            "topic": self._topic,
            "block_size": block_size,
            "dp_size": dp_size,
        }
        if self._configured_replay is not None and self._replay_endpoint is not None:
            replay = _base(self._configured_replay, self._replay_endpoint, dp_size)
            if replay is not None:
                check_ranges(base, replay, dp_size)
                told["replay_endpoint_port_base"] = replay.port
        return told

    def close(self, timeout: float = CLOSE_TIMEOUT) -> CloseReport:
        """Send what is queued, finish the replays under way, and close the sockets, within a deadline.

        Closing again does nothing and gives the same report. In a forked child it does nothing at all.

        Args:
            timeout: seconds; 0 drops whatever has not left yet.
        """
        if self._forked:
            return CloseReport()
        self._stop(timeout)
        if threading.current_thread() is self._thread:
            return CloseReport(unsent=len(self._outbox), flushed=None)
        with self._close_lock:
            self._thread.join(max(0.0, timeout) + _JOIN_GRACE)
            if self._thread.is_alive():
                return CloseReport(unsent=len(self._outbox), flushed=False)
            self._outbox.release()
            _open.discard(self)
        report = self._sender.report
        assert report is not None, "a sender leaves its report when its thread ends"
        return report

    def __enter__(self) -> Publisher:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        replay = "" if self._replay_endpoint is None else f", replay_endpoint={self._replay_endpoint!r}"
        state = ", closed" if self.closed else ""
        return f"<Publisher {self._endpoint!r}{replay}, dp_rank={self._dp_rank}{state}>"

    def _stop(self, timeout: float) -> None:
        self._sender.stop_at = min(self._sender.stop_at, time.monotonic() + max(0.0, timeout))
        self._outbox.close("the publisher is closed")

    def _leave_to_parent(self) -> None:
        self._forked = True
        self._outbox.abandon("the publisher belongs to the process that made it, not to its fork; make one of your own")


class NullPublisher:
    """A publisher that publishes nothing, for a ``--kv-events-config`` that has events off."""

    endpoint: str | None = None
    replay_endpoint: str | None = None
    binds = False
    closed = False
    stats = PublisherStats()

    def publish(self, batch: EventBatch | Sequence[Any] | bytes) -> int:
        """Do nothing; the seq is always 0."""
        return 0

    def describe(self, block_size: int, dp_size: int = 1) -> dict[str, Any] | None:
        """None: there is nothing to describe."""
        return None

    def close(self, timeout: float = CLOSE_TIMEOUT) -> CloseReport:
        """Do nothing."""
        return CloseReport()

    def __enter__(self) -> NullPublisher:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def _attach(socket: zmq.Socket[bytes], endpoint: Endpoint, binds: bool) -> str:
    """Bind or connect; returns the endpoint, with the port that was bound."""
    text = str(endpoint)
    if endpoint.ipv6:
        socket.setsockopt(zmq.IPV6, 1)
    attach: Callable[[str], Any] = socket.bind if binds else socket.connect
    try:
        attach(text)
    except zmq.ZMQError as error:
        raise EndpointError(_explain(text, binds, error)) from error
    return socket.getsockopt_string(zmq.LAST_ENDPOINT) if binds else text


def _explain(text: str, binds: bool, error: zmq.ZMQError) -> str:
    problem = f"cannot {'bind' if binds else 'connect to'} {text}: {zmq.strerror(error.errno or 0)}"
    if error.errno == zmq.EADDRINUSE:
        return (
            f"{problem}; another engine or DP rank of this machine is there, or the live and replay ports of two "
            f"ranks overlap"
        )
    if error.errno == zmq.EADDRNOTAVAIL:
        return f"{problem}; the host is not an address of this machine: bind tcp://*:PORT, or connect with bind=False"
    return problem


def _base(configured: Endpoint, bound: str, dp_size: int) -> Endpoint | None:
    """The endpoint of rank 0 as others are told it: the configured host and a real port."""
    if configured.transport != "tcp":
        return None
    if configured.chosen_port:
        return configured
    return msgspec.structs.replace(configured, port=parse(bound).port) if dp_size == 1 else None


_open: set[Publisher] = set()


def _close_all() -> None:
    publishers = list(_open)
    for publisher in publishers:
        publisher._stop(CLOSE_TIMEOUT)
    for publisher in publishers:
        publisher.close()


def _after_fork_in_child() -> None:
    for publisher in list(_open):
        publisher._leave_to_parent()
    _open.clear()


atexit.register(_close_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
