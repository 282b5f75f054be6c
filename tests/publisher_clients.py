"""What reads a publisher in the tests: subscribers, replay clients good and hostile, and a wait with a deadline."""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import time
from collections.abc import Callable, Iterator

import zmq

from kvwire.zmq.frames import Live, Reply, pack_replay_request, unpack_live, unpack_replay

DEADLINE = 15.0
DEADLINE_MS = 15_000
Socket = zmq.Socket[bytes]


def until(condition: Callable[[], bool], what: str, deadline: float = DEADLINE) -> None:
    """Wait until the condition holds; fails after the deadline, saying what was waited for."""
    end = time.monotonic() + deadline
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"not within {deadline:g} s: {what}")
        time.sleep(0.002)


@contextlib.contextmanager
def subscriber(
    context: zmq.Context[Socket], endpoint: str, topic: bytes = b"", rcvhwm: int = 0, bind: bool = False
) -> Iterator[Socket]:
    """A SUB socket; its subscription may reach the publisher later, see `join`."""
    sub: Socket = context.socket(zmq.SUB)
    try:
        sub.setsockopt(zmq.RCVHWM, rcvhwm)
        sub.setsockopt(zmq.LINGER, 0)
        if "[" in endpoint:
            sub.setsockopt(zmq.IPV6, 1)
        sub.subscribe(topic)
        if bind:
            sub.bind(endpoint)
        else:
            sub.connect(dialable(endpoint))
        yield sub
    finally:
        sub.close()


def dialable(endpoint: str) -> str:
    return endpoint.replace("//0.0.0.0:", "//127.0.0.1:").replace("//[::]:", "//[::1]:")


def receive(sub: Socket) -> Live:
    assert sub.poll(DEADLINE_MS), f"no message within {DEADLINE:g} s"
    return unpack_live(sub.recv_multipart())


def receive_all(sub: Socket, last: int) -> list[Live]:
    """Messages up to and with the one whose seq is ``last``."""
    found = [receive(sub)]
    while found[-1].seq < last:
        found.append(receive(sub))
    return found


def join(sub: Socket, publish: Callable[[], int]) -> int:
    """Publish until the subscriber gets it; returns the seq of the newest batch, which has then been received."""
    end = time.monotonic() + DEADLINE
    while time.monotonic() < end:
        newest = publish()
        if sub.poll(20):
            receive_all(sub, newest)
            return newest
    raise AssertionError(f"the subscription was not in place within {DEADLINE:g} s")


@contextlib.contextmanager
def replay_client(
    context: zmq.Context[Socket], endpoint: str | None, kind: int = zmq.DEALER, rcvhwm: int = 0
) -> Iterator[Socket]:
    assert endpoint is not None
    client: Socket = context.socket(kind)
    try:
        client.setsockopt(zmq.RCVHWM, rcvhwm)
        client.setsockopt(zmq.LINGER, 0)
        if "[" in endpoint:
            client.setsockopt(zmq.IPV6, 1)
        client.connect(dialable(endpoint))
        yield client
    finally:
        client.close()


def receive_reply(client: Socket) -> Reply:
    assert client.poll(DEADLINE_MS), f"no reply within {DEADLINE:g} s"
    return unpack_replay(client.recv_multipart())


def answer(client: Socket, asked: int | None = None) -> list[Reply]:
    """Replies of one answer, the end marker included; sends the request first unless ``asked`` is None."""
    if asked is not None:
        client.send_multipart(pack_replay_request(asked))
    found: list[Reply] = []
    while not found or not found[-1].end:
        found.append(receive_reply(client))
    return found


def replayed(client: Socket, asked: int) -> list[tuple[int, bytes]]:
    return [(reply.seq, reply.payload) for reply in answer(client, asked)[:-1]]


class RawPeer:
    """A ZMTP 3.0 peer on a bare TCP socket, which does what no library would: never read, send anything.

    ``kind`` is the socket type that it claims to be.
    """

    def __init__(self, endpoint: str | None, kind: bytes = b"DEALER", receive_buffer: int = 4096) -> None:
        assert endpoint is not None
        self.socket = socket.socket()
        self.socket.settimeout(DEADLINE)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.connect(("127.0.0.1", int(endpoint.rpartition(":")[2])))
        self.socket.sendall(b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32))
        self._exactly(64)
        ready = b"\x05READY\x0bSocket-Type" + struct.pack(">I", len(kind)) + kind
        self.socket.sendall(b"\x04" + bytes([len(ready)]) + ready)
        self._exactly(self._exactly(2)[1])

    def send(self, *frames: bytes) -> None:
        """One message; frames of up to 255 bytes."""
        data = b"".join(bytes([index < len(frames) - 1, len(frame)]) + frame for index, frame in enumerate(frames))
        with contextlib.suppress(ConnectionError, TimeoutError):
            self.socket.sendall(data)

    def ask(self, start: int) -> None:
        self.send(b"", start.to_bytes(8, "big"))

    def is_cut_on_asking(self) -> bool:
        """Ask again and say whether the connection turns out to be cut: of one that the other side's kernel gave up,
        only who sends on it is told."""
        self.ask(0)
        return self.is_cut()

    def is_cut(self) -> bool:
        """Whether the connection is known to be cut, without reading from it."""
        poller = select.poll()
        poller.register(self.socket, select.POLLHUP | select.POLLERR | select.POLLRDHUP)
        return bool(poller.poll(0))

    def close(self) -> None:
        self.socket.close()

    def _exactly(self, size: int) -> bytes:
        got = b""
        while len(got) < size:
            piece = self.socket.recv(size - len(got))
            assert piece, "the publisher closed the connection in the handshake"
            got += piece
        return got
