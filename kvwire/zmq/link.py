"""The sockets of a subscription: the live channel of one endpoint, and the replay requests of one source."""

from __future__ import annotations

import contextlib
import errno
import time
from collections.abc import Callable, Collection
from typing import Any

import msgspec
import zmq
from zmq.utils.monitor import parse_monitor_message

from kvwire.errors import EnvelopeError, LimitError, WireError
from kvwire.stream import Request, Stream
from kvwire.zmq import frames
from kvwire.zmq.endpoints import Endpoint, EndpointError
from kvwire.zmq.waiter import Waiter

Socket = zmq.Socket[bytes]
Context = zmq.Context[Socket]

BURST = 64
"""Messages read from one socket before the others have their turn."""

MAX_TOPICS = 1024
"""Publishers told apart on one bound endpoint."""

REVIVE_AFTER = 0.5
"""Seconds after which a connection is made anew by hand. libzmq reconnects at once when the peer hangs up, and never when
it hangs up itself: on a frame above the limit, or on bytes that are no ZMTP."""

NO_DESCRIPTOR = (errno.EMFILE, errno.ENFILE)

HANDSHAKE_MS, CONNECT_MS = 10_000, 5_000

_EVENTS = zmq.EVENT_CONNECTED | zmq.EVENT_CONNECT_RETRIED | zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED


class Options(msgspec.Struct, frozen=True):
    """How the sockets are set up. Times are in seconds.

    Attributes:
        topic: prefix to subscribe to.
        hwm: messages that may wait inside the live socket; then TCP stops the publisher, which drops.
        replay_hwm: replies that may wait inside a replay socket.
        max_frame: bytes of one frame above which the connection is closed.
        heartbeat: between ZMTP heartbeats; 0 for none.
        heartbeat_timeout: silence after which the peer counts as gone.
        reconnect: before the first attempt to connect again; doubles up to ``reconnect_max``.
    """

    topic: bytes = b""
    hwm: int = 10_000
    replay_hwm: int = 30_000
    max_frame: int = 2 * frames.MAX_PAYLOAD
    heartbeat: float = 5.0
    heartbeat_timeout: float = 15.0
    reconnect: float = 0.1
    reconnect_max: float = 5.0

    def open(self, context: Context, kind: int, hwm: int, endpoint: Endpoint) -> Socket:
        """A socket with these options, neither bound nor connected."""
        socket = context.socket(kind)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.RCVHWM, hwm)
        socket.setsockopt(zmq.MAXMSGSIZE, self.max_frame)
        socket.setsockopt(zmq.RECONNECT_IVL, max(1, int(self.reconnect * 1000)))
        socket.setsockopt(zmq.RECONNECT_IVL_MAX, int(self.reconnect_max * 1000))
        socket.setsockopt(zmq.HANDSHAKE_IVL, HANDSHAKE_MS)
        socket.setsockopt(zmq.CONNECT_TIMEOUT, CONNECT_MS)
        if self.heartbeat:
            socket.setsockopt(zmq.HEARTBEAT_IVL, int(self.heartbeat * 1000))
            socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, int(self.heartbeat_timeout * 1000))
        if endpoint.ipv6:
            socket.setsockopt(zmq.IPV6, 1)
        return socket


class Link:
    """The live channel of one endpoint: a SUB socket, and the monitor that tells when its connection breaks.

    A connected endpoint is one publisher, whatever its topic. A bound one takes any number of publishers, told apart by
    their topics; its connections are not watched, since an event does not say whose it is.

    Args:
        name: of the endpoint, and of its source if it is connected to.
        alone: whether a bound endpoint is the only one, so that a topic alone names a source.
        make_stream: makes the stream of a source that is named as given.

    Raises:
        EndpointError: the endpoint cannot be bound or connected to.
    """

    def __init__(
        self,
        context: Context,
        endpoint: Endpoint,
        name: str,
        *,
        bind: bool,
        alone: bool,
        options: Options,
        waiter: Waiter[Link | Replay],
        make_stream: Callable[[str], Stream],
    ) -> None:
        self.name = name
        self.streams: dict[bytes, Stream] = {}
        self.socket = options.open(context, zmq.SUB, options.hwm, endpoint)
        self._endpoint = endpoint
        self._bind = bind
        self._alone = alone
        self._options = options
        self._waiter = waiter
        self._make_stream = make_stream
        self._monitor: Socket | None = None
        self._up = False
        self._down_since: float | None = None
        self._names: set[str] = set()
        self._surplus: Stream | None = None
        self._undrained = False
        self._unread = True
        self._opened = 0
        self._since_open = 0
        try:
            self._open()
        except zmq.ZMQError as error:
            if self._monitor is not None:
                self._close_monitor()
            self.socket.close()
            if error.errno in NO_DESCRIPTOR:
                raise
            raise _unusable(endpoint, bind, error) from error
        waiter.register(self.socket, self)

    def _open(self) -> None:
        self.socket.setsockopt(zmq.SUBSCRIBE, self._options.topic)
        if self._bind:
            self.socket.bind(str(self._endpoint))
            return
        self.streams[b""] = stream = self._make_stream(self.name)
        if self._endpoint.transport == "inproc":
            # libzmq tells nothing about connections within a process; they do not break either.
            stream.connected(0.0)
            self._undrained = True
        else:
            self._monitor = self.socket.get_monitor_socket(_EVENTS)
            self._waiter.register(self._monitor, self)
        self.socket.connect(str(self._endpoint))

    def receive(self, now: float) -> Collection[Stream]:
        """Read what waits, up to `BURST` messages, and tell the streams. Those that were told something."""
        undrained, opened = self._undrained, self._opened
        self._unread = True
        got, drained = self._read()
        self._unread = not drained
        # libzmq reports a connection before anything that came on it can be read. So after this, everything that was
        # read belongs to a connection that was reported.
        self.watch(now)
        if self._bind:
            return self._tell_by_topic(got, now)
        stream = self.streams[b""]
        for message in got:
            if isinstance(message, tuple):
                stream.live(message[1], message[2], now)
            else:
                self._tell_fault(stream, message)
        self._since_open += len(got)
        # No more than the socket can hold came before the connection was reported.
        if undrained and opened == self._opened and (drained or self._since_open > self._options.hwm > 0):
            self._undrained = False
            stream.drained(now)
        if drained:
            self._revive()
        return (stream,)

    def _read(self) -> tuple[list[tuple[bytes, int, bytes] | list[bytes]], bool]:
        """Well-framed messages as (topic, seq, payload), others as the list of their frames; and whether that was all."""
        got: list[tuple[bytes, int, bytes] | list[bytes]] = []
        receive = self.socket.recv
        try:
            for _ in range(BURST):
                topic = receive(zmq.NOBLOCK, False)
                if not topic.more:
                    got.append([topic.bytes])
                    continue
                seq = receive(zmq.NOBLOCK, False)
                if not seq.more:
                    got.append([topic.bytes, seq.bytes])
                    continue
                payload = receive(zmq.NOBLOCK, False)
                if payload.more or len(seq) != 8:
                    got.append(self._rest([topic.bytes, seq.bytes, payload.bytes], payload))
                    continue
                got.append((topic.bytes, int.from_bytes(seq.bytes, "big"), payload.bytes))
        except zmq.Again:
            return got, True
        return got, False

    def _rest(self, message: list[bytes], frame: Any) -> list[bytes]:
        return message + _rest_of_message(self.socket, frame, frames.MAX_FRAMES + 1 - len(message))

    def _tell_by_topic(self, got: list[tuple[bytes, int, bytes] | list[bytes]], now: float) -> set[Stream]:
        told: set[Stream] = set()
        for message in got:
            stream = self.streams.get(message[0]) or self._admit(message[0], now)
            told.add(stream)
            if not isinstance(message, tuple):
                self._tell_fault(stream, message)
            elif stream is self._surplus:
                stream.garbage(_too_many_topics(), message[2])
            else:
                stream.live(message[1], message[2], now)
        return told

    def _admit(self, topic: bytes, now: float) -> Stream:
        """The stream of a new topic, or the one that takes what is too much."""
        name = source_name(self.name, topic, self._alone)
        if len(self.streams) >= MAX_TOPICS or name in self._names:
            if self._surplus is None:
                self._surplus = self._make_stream(f"{self.name} (other topics)")
            return self._surplus
        self._names.add(name)
        self.streams[topic] = stream = self._make_stream(name)
        stream.connected(now)
        stream.drained(now)
        return stream

    def _tell_fault(self, stream: Stream, message: list[bytes]) -> None:
        try:
            frames.unpack_live(message)
        except (EnvelopeError, LimitError) as error:
            stream.garbage(error, message[-1])

    def watch(self, now: float) -> None:
        """Read the monitor and tell the stream when the channel broke and when it was opened."""
        if self._monitor is None:
            return
        stream = self.streams[b""]
        # To ask is cheaper than to catch that there is nothing, which is nearly always so.
        while int(self._monitor.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
            event = parse_monitor_message(self._monitor.recv_multipart(zmq.NOBLOCK))["event"]
            if event == zmq.EVENT_DISCONNECTED:
                self._down_since = time.monotonic()
                if self._up:
                    stream.disconnected(now)
                self._up = self._undrained = False
            else:
                self._down_since = None
                if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                    self._up = self._undrained = True
                    self._opened += 1
                    self._since_open = 0
                    stream.connected(now)

    def _revive(self) -> None:
        if self._down_since is None or time.monotonic() - self._down_since < REVIVE_AFTER:
            return
        self._down_since = None
        endpoint = str(self._endpoint)
        # libzmq may have let go of it already.
        with contextlib.suppress(zmq.ZMQError):
            self.socket.disconnect(endpoint)
        self.socket.connect(endpoint)
        self._unread = True

    @property
    def due_in(self) -> float | None:
        """Seconds until `receive` is due though nothing came; None when it is not."""
        if self._undrained or self._unread:
            return 0.0
        if self._down_since is not None:
            return max(0.0, self._down_since + REVIVE_AFTER - time.monotonic())
        return None

    def close(self) -> None:
        """Close the sockets."""
        if self._monitor is not None:
            self._close_monitor()
        self._waiter.unregister(self.socket)
        self.socket.close()

    def _close_monitor(self) -> None:
        assert self._monitor is not None
        self._waiter.unregister(self._monitor)
        self.socket.disable_monitor()
        self._monitor.close()
        self._monitor = None


class Replay:
    """One replay request on a DEALER of its own: whatever comes on it answers that request and no other.

    Args:
        request: what to ask for.
    """

    def __init__(
        self,
        context: Context,
        endpoint: Endpoint,
        stream: Stream,
        request: Request,
        *,
        options: Options,
        waiter: Waiter[Link | Replay],
    ) -> None:
        self.request = request
        self.stream = stream
        self._waiter = waiter
        self._unread = True
        self.socket = options.open(context, zmq.DEALER, options.replay_hwm, endpoint)
        try:
            self.socket.connect(str(endpoint))
            self.socket.send_multipart(frames.pack_replay_request(request.start), zmq.NOBLOCK)
        except zmq.ZMQError:
            self.socket.close()
            raise
        waiter.register(self.socket, self)

    def receive(self, now: float, link: Link) -> None:
        """Read what waits, up to `BURST` replies, and tell the stream, after what the link's monitor has to say."""
        got: list[frames.Reply | tuple[WireError, bytes]] = []
        self._unread = True
        try:
            while len(got) < BURST:
                frame = self.socket.recv(zmq.NOBLOCK, False)
                message = [frame.bytes]
                message += _rest_of_message(self.socket, frame, frames.MAX_FRAMES)
                try:
                    # The length of the payload is the stream's to judge: it knows the seq.
                    got.append(frames.unpack_replay(message, max_payload=len(message[-1])))
                except (EnvelopeError, LimitError) as error:
                    got.append((error, message[-1]))
        except zmq.Again:
            self._unread = False
        # A replay endpoint that is back belongs to a publisher that is back: the break must be known first.
        link.watch(now)
        stream, request = self.stream, self.request
        for reply in got:
            if isinstance(reply, tuple):
                stream.replay_garbage(request, *reply, now)
            elif reply.end:
                stream.replay_ended(request, now)
            else:
                stream.replayed(request, reply.seq, reply.payload, now)

    @property
    def due_in(self) -> float | None:
        """As of `Link`."""
        return 0.0 if self._unread else None

    def close(self) -> None:
        """Close the socket; replies under way are dropped."""
        self._waiter.unregister(self.socket)
        self.socket.close()


def source_name(endpoint: str, topic: bytes, alone: bool) -> str:
    """The name of a publisher that connects to a bound endpoint: its topic, behind the endpoint if there are several."""
    text = topic.decode(errors="backslashreplace")
    if not text:
        return endpoint
    return text if alone else f"{endpoint}#{text}"


def _rest_of_message(socket: Socket, frame: Any, most: int) -> list[bytes]:
    """The frames behind this one, of which no more than ``most`` are kept."""
    kept: list[bytes] = []
    while frame.more:
        frame = socket.recv(zmq.NOBLOCK, False)
        if len(kept) < most:
            kept.append(frame.bytes)
    return kept


def _too_many_topics() -> LimitError:
    return LimitError(
        "a publisher that is one too many",
        code="too-many-topics",
        expected=f"at most {MAX_TOPICS} topics on one endpoint",
        got="another topic",
        hint="subscribe to a narrower topic, or on several endpoints",
    )


def _unusable(endpoint: Endpoint, bind: bool, error: zmq.ZMQError) -> EndpointError:
    why = zmq.strerror(error.errno or 0)
    hint = ""
    if bind and error.errno == errno.EADDRINUSE:
        hint = "; if that is the engine, connect to it instead of binding"
    elif bind and error.errno in (errno.ENODEV, errno.EADDRNOTAVAIL):
        hint = "; the host must be an address of this machine, or *"
    return EndpointError(f"cannot {'bind' if bind else 'connect to'} {endpoint}: {why}{hint}")
