"""The sockets of a capture: one connection each, watched by a socket monitor."""

from __future__ import annotations

import contextlib
import errno
import socket
import threading
import time

import zmq
from zmq.utils.monitor import parse_monitor_message

from kvwire.zmq import endpoints, frames

RCVHWM = 20_000
"""Messages that may wait inside a socket. Beyond it TCP stops the publisher, whose own queue holds 100,000."""

HANDSHAKE_MS = 10_000
CONNECT_MS = 3_000
RECONNECT_MS, RECONNECT_MAX_MS = 100, 2_000
KEEPALIVE_IDLE, KEEPALIVE_INTERVAL, KEEPALIVE_COUNT = 10, 5, 3

CUT_GRACE = 0.5
"""Seconds after a disconnection within which libzmq says that it tries again; it does not where this side hung up."""

MAX_CUTS = 50
"""Times that a connection is opened again by hand."""

_EVENTS = (
    zmq.EVENT_CONNECTED
    | zmq.EVENT_CONNECT_RETRIED
    | zmq.EVENT_ACCEPTED
    | zmq.EVENT_DISCONNECTED
    | zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)


class Link:
    """A socket, its monitor, and what the monitor told.

    Args:
        kind: ``zmq.SUB`` or ``zmq.DEALER``.
        bind: bind instead of connecting.
        max_payload: greatest frame; libzmq hangs up on a larger one.
        heartbeat: seconds between ZMTP heartbeats; 0 for none.

    Attributes:
        opened: TCP connections (or their like) that came about.
        handshakes: of them, those whose ZMTP handshake succeeded.
        up: peers connected right now.
        disconnects: connections that ended after their handshake.
        cuts: of them, those that this side ended, by a frame above the limit.
        hangups: connections that ended before their handshake.
        refused: whether the handshake failed for lack of authentication.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        kind: int,
        endpoint: endpoints.Endpoint,
        *,
        bind: bool = False,
        max_payload: int = frames.MAX_PAYLOAD,
        heartbeat: float = 0.0,
        poller: zmq.Poller,
    ) -> None:
        self.endpoint = endpoint
        self.opened = self.handshakes = self.up = 0
        self.disconnects = self.cuts = self.hangups = 0
        self.refused = False
        self._context = context
        self._kind = kind
        self._bind = bind
        self._max_payload = max_payload
        self._heartbeat = heartbeat
        self._poller = poller
        self._cut_at: float | None = None
        self._was_up = False
        self._topics: list[bytes] = []
        self.socket, self._monitor = self._open()

    @property
    def unmonitored(self) -> bool:
        """Whether libzmq tells nothing about this transport's connections."""
        return self.endpoint.transport == "inproc"

    @property
    def ready(self) -> bool:
        """Whether a peer is there, as far as can be told."""
        return self.up > 0 or self.unmonitored

    def subscribe(self, topic: bytes) -> None:
        """Subscribe to a topic prefix, now and after a `reopen`."""
        self._topics.append(topic)
        self.socket.setsockopt(zmq.SUBSCRIBE, topic)

    def receive(self) -> tuple[list[bytes], int] | None:
        """The next message's frames and how many more it had than are worth holding; None when there is none."""
        try:
            frame = self.socket.recv(zmq.NOBLOCK, copy=False)
        except zmq.Again:
            return None
        held = [frame.bytes]
        left_out = 0
        while frame.more:
            frame = self.socket.recv(copy=False)
            if len(held) < frames.MAX_FRAMES:
                held.append(frame.bytes)
            else:
                left_out += 1
        return held, left_out

    def send(self, message: list[bytes]) -> bool:
        """Send a message; False when the socket has no room for it."""
        try:
            self.socket.send_multipart(message, zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True

    def watch(self, now: float) -> list[str]:
        """Read the monitor. Returns what changed: ``connected``, ``disconnected`` or ``cut``, in order."""
        changes: list[str] = []
        while self._monitor.poll(0):
            changes += self._event(int(parse_monitor_message(self._monitor.recv_multipart())["event"]), now)
        if self._cut_at is not None and now - self._cut_at > CUT_GRACE and not self._bind:
            self._cut_at = None
            if self._was_up:
                self.cuts += 1
                changes.append("cut")
            if self.cuts + self.hangups <= MAX_CUTS:
                with contextlib.suppress(zmq.ZMQError):
                    self.socket.disconnect(str(self.endpoint))
                self.socket.connect(str(self.endpoint))
        return changes

    def reopen(self) -> None:
        """Take a new socket, with nothing of the old one left in it."""
        self._close_socket()
        self.up = 0
        self._cut_at = None
        self.socket, self._monitor = self._open()

    def close(self) -> None:
        """Close the socket and its monitor."""
        self._close_socket()

    def _event(self, event: int, now: float) -> list[str]:
        if event in (zmq.EVENT_CONNECTED, zmq.EVENT_ACCEPTED):
            self.opened += 1
            self._was_up = False
        elif event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            self.handshakes += 1
            self.up += 1
            self._was_up = True
            return ["connected"]
        elif event == zmq.EVENT_CONNECT_RETRIED:
            self._cut_at = None
        elif event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
            self.refused = True
        elif event == zmq.EVENT_DISCONNECTED:
            self._cut_at = now
            if self.up == 0:
                self.hangups += 1
                return []
            self.up -= 1
            self.disconnects += 1
            return ["disconnected"]
        return []

    def _open(self) -> tuple[zmq.Socket[bytes], zmq.Socket[bytes]]:
        made = self._context.socket(self._kind)
        monitor = made.get_monitor_socket(_EVENTS)
        try:
            self._configure(made)
            for topic in self._topics:
                made.setsockopt(zmq.SUBSCRIBE, topic)
            if self._bind:
                made.bind(str(self.endpoint))
            else:
                made.connect(str(self.endpoint))
        except zmq.ZMQError as error:
            made.disable_monitor()
            monitor.close(linger=0)
            made.close(linger=0)
            raise self._unusable(error) from error
        self._poller.register(made, zmq.POLLIN)
        self._poller.register(monitor, zmq.POLLIN)
        return made, monitor

    def _configure(self, made: zmq.Socket[bytes]) -> None:
        made.setsockopt(zmq.LINGER, 0)
        made.setsockopt(zmq.RCVHWM, RCVHWM)
        made.setsockopt(zmq.MAXMSGSIZE, self._max_payload)
        made.setsockopt(zmq.HANDSHAKE_IVL, HANDSHAKE_MS)
        made.setsockopt(zmq.RECONNECT_IVL, RECONNECT_MS)
        made.setsockopt(zmq.RECONNECT_IVL_MAX, RECONNECT_MAX_MS)
        if self.endpoint.transport == "tcp":
            made.setsockopt(zmq.CONNECT_TIMEOUT, CONNECT_MS)
            made.setsockopt(zmq.TCP_KEEPALIVE, 1)
            made.setsockopt(zmq.TCP_KEEPALIVE_IDLE, KEEPALIVE_IDLE)
            made.setsockopt(zmq.TCP_KEEPALIVE_INTVL, KEEPALIVE_INTERVAL)
            made.setsockopt(zmq.TCP_KEEPALIVE_CNT, KEEPALIVE_COUNT)
            # An IPv6 socket would look names up as IPv6 first and not fall back.
            made.setsockopt(zmq.IPV6, int(self.endpoint.ipv6))
        if self._heartbeat:
            made.setsockopt(zmq.HEARTBEAT_IVL, int(self._heartbeat * 1000))
            made.setsockopt(zmq.HEARTBEAT_TIMEOUT, int(self._heartbeat * 3000))

    def _unusable(self, error: zmq.ZMQError) -> endpoints.EndpointError:
        verb = "bind" if self._bind else "connect to"
        hint = ""
        if error.errno == zmq.EADDRINUSE:
            hint = "; something listens there already, perhaps the engine itself: then leave --bind out"
        elif error.errno == zmq.EADDRNOTAVAIL:
            hint = "; that is no address of this machine, bind tcp://*:PORT"
        elif error.errno == errno.EACCES:
            hint = "; this user may not use it"
        return endpoints.EndpointError(f"cannot {verb} {self.endpoint}: {zmq.strerror(error.errno or 0)}{hint}")

    def _close_socket(self) -> None:
        for registered in (self.socket, self._monitor):
            with contextlib.suppress(KeyError):
                self._poller.unregister(registered)
        self.socket.disable_monitor()
        self._monitor.close(linger=0)
        self.socket.close(linger=0)


def reach(endpoint: endpoints.Endpoint, timeout: float) -> str:
    """Why a tcp endpoint cannot be connected to: one plain TCP connection, made and closed.

    Args:
        timeout: seconds, the look-up of the name included.

    Returns:
        ``accepts``, ``refused``, ``timeout``, ``no-such-host``, another error in words, or "" for other transports.
    """
    if endpoint.transport != "tcp" or not endpoint.port:
        return ""
    found: list[str] = []
    # A name server that is silent holds a look-up for longer than anybody waits here, and nothing can interrupt it.
    thread = threading.Thread(target=lambda: found.append(_reach(endpoint, timeout)), daemon=True)
    thread.start()
    thread.join(timeout)
    return found[0] if found else "timeout"


def _reach(endpoint: endpoints.Endpoint, timeout: float) -> str:
    deadline = time.monotonic() + timeout
    try:
        socket.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return "no-such-host"
    try:
        left = max(0.05, deadline - time.monotonic() - 0.05)
        socket.create_connection((endpoint.host, endpoint.port or 0), left).close()
    except ConnectionRefusedError:
        return "refused"
    except TimeoutError:
        return "timeout"
    except OSError as error:
        return error.strerror or type(error).__name__
    return "accepts"
