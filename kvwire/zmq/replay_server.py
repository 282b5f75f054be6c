"""The replay endpoint of a publisher: the newest batches, kept in memory and sent again to whoever asks.

One client's replay is a cursor into the buffer, moved a few batches at a time between live sends. What clients cost is
bounded: each waits in line with at most `MAX_PENDING` requests, and so many are served at once that the replies which
wait inside the socket for clients that do not read stay within `WAITING_BYTES`. Two things libzmq offers no bound for:
the number of connections, and a message that a client sends frame by frame and never ends. An endpoint that strangers
can reach needs a firewall.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import zmq

from kvwire.dialects import Framing
from kvwire.errors import EnvelopeError
from kvwire.zmq import frames

logger = logging.getLogger(__name__)

MAX_CLIENTS = 1024
"""Clients with a replay under way or in line for one; a further client is not answered."""

MAX_PENDING = 8
"""Requests that one client may have waiting; further ones are not answered."""

MAX_REQUEST_BYTES = 1024
"""A larger frame closes the connection that sends it: a request is 8 bytes."""

HWM = 128
"""Replies that may wait for one client inside the socket. libzmq (4.3.5) can use memory after it is freed when this
option is changed while a peer is going away, so it is set once, before the socket is bound."""

WAITING_BYTES = 64 << 20
"""Replies that may wait inside the socket for all clients together, counted with the largest payload; but `MIN_PLACES`
clients are always served at once."""

MIN_PLACES = 2
LAST = int(zmq.NOBLOCK)
MORE = int(zmq.SNDMORE | zmq.NOBLOCK)
REQUEST_FRAMES = 4
BURST = 32
READ_BUDGET = 128
FIRST_RETRY, LAST_RETRY = 0.0001, 0.05
"""Seconds until a client whose queue is full is tried again, doubling. libzmq's thread empties the queue of one that
reads in less than a tenth of a millisecond."""


class ReplayBuffer:
    """The newest batches, bounded by count and by bytes; the oldest go first.

    Batches have positions, 0, 1, 2 … in the order in which they came, beside their seq: a seq may be missing.

    Args:
        steps: batches to keep; 0 keeps none.
        max_bytes: payload bytes to keep; a larger single batch is not kept. None for no bound.
    """

    def __init__(self, steps: int, max_bytes: int | None) -> None:
        self.first = 0
        self.end = 0
        self.bytes = 0
        self.largest = 0
        self._steps = steps
        self._max_bytes = max_bytes
        self._batches: dict[int, tuple[int, bytes]] = {}

    def __len__(self) -> int:
        return self.end - self.first

    def __getitem__(self, position: int) -> tuple[int, bytes]:
        return self._batches[position]

    def append(self, seq: int, payload: bytes) -> None:
        """Keep a batch, whose seq is above every one before it, and let go of what is then too much."""
        self._batches[self.end] = (seq, payload)
        self.end += 1
        self.bytes += len(payload)
        self.largest = max(self.largest, len(payload))
        while self.end - self.first > self._steps or (self._max_bytes is not None and self.bytes > self._max_bytes):
            self.bytes -= len(self._batches.pop(self.first)[1])
            self.first += 1

    def find(self, seq: int) -> int:
        """Position of the first kept batch with this seq or a higher one; `end` when there is none."""
        low, high = self.first, self.end
        while low < high:
            middle = (low + high) // 2
            if self._batches[middle][0] < seq:
                low = middle + 1
            else:
                high = middle
        return low


@dataclass
class _Client:
    """One peer's replay: batches from ``cursor`` up to ``end``, both positions; None between two answers."""

    identity: bytes
    since: float = 0.0
    pending: deque[int] = field(default_factory=deque)
    cursor: int | None = None
    end: int = 0
    delay: float = FIRST_RETRY
    retry_at: float = 0.0


@dataclass
class ReplayCounts:
    """What the replay endpoint did.

    Attributes:
        requests: good requests taken.
        replayed: batches sent again.
        answered: answers sent up to their end marker.
        malformed: messages that are not the delimiter and one frame for the seq; ignored.
        refused: good requests beyond `MAX_CLIENTS` or `MAX_PENDING`; not answered.
        abandoned: answers given up, because the client was gone or took nothing for too long.
        overrun: batches that left the buffer before a slow client, in the middle of its replay, had got them.
    """

    requests: int = 0
    replayed: int = 0
    answered: int = 0
    malformed: int = 0
    refused: int = 0
    abandoned: int = 0
    overrun: int = 0


def open_socket(context: zmq.Context[zmq.Socket[bytes]], patience: float) -> zmq.Socket[bytes]:
    """A ROUTER socket that says when a peer's queue is full instead of dropping replies, not bound yet.

    `patience` is the time in seconds after which the kernel cuts a connection whose peer acknowledges or takes nothing:
    only that frees the replies which wait for it inside the socket.
    """
    router: zmq.Socket[bytes] = context.socket(zmq.ROUTER)
    router.setsockopt(zmq.LINGER, 0)
    router.setsockopt(zmq.ROUTER_MANDATORY, 1)
    router.setsockopt(zmq.SNDHWM, HWM)
    router.setsockopt(zmq.RCVHWM, MAX_PENDING * 2)
    router.setsockopt(zmq.MAXMSGSIZE, MAX_REQUEST_BYTES)
    router.setsockopt(zmq.TCP_MAXRT, int(patience * 1000))
    router.setsockopt(zmq.TCP_KEEPALIVE, 1)
    router.setsockopt(zmq.TCP_KEEPALIVE_IDLE, 30)
    router.setsockopt(zmq.TCP_KEEPALIVE_INTVL, 10)
    router.setsockopt(zmq.TCP_KEEPALIVE_CNT, 3)
    return router


class ReplayServer:
    """Answers replay requests on a ROUTER socket, a slice at a time.

    Replies and end markers are never dropped silently: when a client's queue is full they wait, and the client is tried
    again; a client that goes away is given up, counted and logged. One that takes nothing for `patience` seconds is cut
    off by the kernel; where it is not (ipc, inproc, systems without TCP_USER_TIMEOUT), it is given up after twice that.

    An answer ends with the newest batch at the time when it is begun; what comes later is live. A client whose socket is
    a REQ waits for one answer at a time, so its newest request is served alone; any other client's are served one after
    the other.

    Args:
        socket: from `open_socket`, bound.
        buffer: what to serve from.
        framing: of the replies.
        topic: for the framing that has it.
        patience: seconds.
    """

    def __init__(
        self,
        socket: zmq.Socket[bytes],
        buffer: ReplayBuffer,
        framing: Framing,
        topic: bytes,
        patience: float,
    ) -> None:
        self.counts = ReplayCounts()
        self._socket = socket
        self._buffer = buffer
        self._patience = patience
        # Of the Python class above it, `send` takes as long again.
        self._send: Callable[[bytes, int], object] = super(zmq.Socket, socket).send
        self._head = frames.pack_replay(framing, topic, 0, b"")[:-2]
        self._end = frames.pack_replay_end(framing)
        self._clients: dict[bytes, _Client] = {}
        self._line: deque[_Client] = deque()
        self._ready: deque[_Client] = deque()
        self._stalled: list[_Client] = []
        self._partial: list[zmq.Frame] = []

    @property
    def clients(self) -> int:
        """Clients whose replay is under way or in line."""
        return len(self._clients)

    def read(self) -> None:
        """Take the requests that are there, as far as one slice goes."""
        for _ in range(READ_BUDGET):
            try:
                frame = self._socket.recv(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            if len(self._partial) < REQUEST_FRAMES:
                self._partial.append(frame)
            if not frame.more:
                message, self._partial = self._partial, []
                self._request(message)

    def serve(self, until: float) -> None:
        """Send replies until this time (of `time.monotonic`), or until nobody can take one."""
        now = time.monotonic()
        due = [client for client in self._stalled if client.retry_at <= now]
        if due:
            self._stalled = [client for client in self._stalled if client.retry_at > now]
            self._ready.extend(due)
        self._begin(now)
        while self._ready and time.monotonic() < until:
            self._serve_one(self._ready.popleft(), until)

    def wait(self) -> float | None:
        """Seconds until `serve` has something to do: 0 for at once, None when only a request can change that."""
        if self._ready or (self._line and self._free_places() > 0):
            return 0.0
        if not self._stalled:
            return None
        return max(0.0, min(client.retry_at for client in self._stalled) - time.monotonic())

    def _serve_one(self, client: _Client, until: float) -> None:
        sent = self.counts.replayed
        try:
            more = True
            while more and time.monotonic() < until:
                more = self._burst(client)
        except zmq.Again:
            now = time.monotonic()
            if self.counts.replayed > sent:
                client.since = now
                client.delay = FIRST_RETRY
            if now - client.since > 2 * self._patience:
                self._abandon(client, f"it took nothing for {2 * self._patience:g} s")
                return
            client.retry_at = now + client.delay
            client.delay = min(client.delay * 2, LAST_RETRY)
            self._stalled.append(client)
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            self._abandon(client, "it is gone")
        else:
            client.since = time.monotonic()
            client.delay = FIRST_RETRY
            if more:
                self._ready.append(client)
            else:
                del self._clients[client.identity]

    def _burst(self, client: _Client) -> bool:
        """Send the client's next messages, up to `BURST`; False when it has nothing more to get."""
        buffer, send = self._buffer, self._send
        if client.cursor is None:
            if not client.pending:
                return False
            client.cursor = buffer.find(client.pending.popleft())
            client.end = buffer.end
        if client.cursor < buffer.first:
            self.counts.overrun += min(buffer.first, client.end) - client.cursor
            client.cursor = buffer.first
        identity, head = client.identity, self._head
        for position in range(client.cursor, min(client.cursor + BURST, client.end)):
            seq, payload = buffer[position]
            # Only the first frame can be refused: once the peer is chosen, libzmq takes the message whole or drops it
            # with the peer.
            send(identity, MORE)
            for frame in head:
                send(frame, MORE)
            send(seq.to_bytes(8, "big"), MORE)
            send(payload, LAST)
            client.cursor = position + 1
            self.counts.replayed += 1
        if client.cursor >= client.end:
            send(identity, MORE)
            for frame in self._end[:-1]:
                send(frame, MORE)
            send(self._end[-1], LAST)
            self.counts.answered += 1
            client.cursor = None
        return True

    def _request(self, message: list[zmq.Frame]) -> None:
        identity = message[0].bytes
        try:
            start = frames.unpack_replay_request([frame.bytes for frame in message[1:]], any_width=True)
        except EnvelopeError as error:
            self.counts.malformed += 1
            level = logging.WARNING if self.counts.malformed == 1 else logging.DEBUG
            logger.log(level, "ignored a replay request: %s (further ones are logged at DEBUG)", error)
            return
        client = self._clients.get(identity) or self._admit(identity)
        if client is not None and _is_req(message[-1]):
            client.pending.clear()
            client.cursor = None
        if client is None or len(client.pending) >= MAX_PENDING:
            self.counts.refused += 1
            return
        client.pending.append(start)
        self.counts.requests += 1

    def _admit(self, identity: bytes) -> _Client | None:
        if len(self._clients) >= MAX_CLIENTS:
            return None
        client = _Client(identity)
        self._clients[identity] = client
        self._line.append(client)
        return client

    def _begin(self, now: float) -> None:
        for _ in range(min(len(self._line), self._free_places())):
            client = self._line.popleft()
            client.since = now
            self._ready.append(client)

    def _free_places(self) -> int:
        places = max(MIN_PLACES, WAITING_BYTES // (HWM * max(1, self._buffer.largest)))
        return max(0, places - (len(self._clients) - len(self._line)))

    def _abandon(self, client: _Client, why: str) -> None:
        del self._clients[client.identity]
        self.counts.abandoned += 1
        level = logging.WARNING if self.counts.abandoned == 1 else logging.DEBUG
        logger.log(level, "gave up the replay to client %s: %s", client.identity.hex(), why)


def _is_req(frame: zmq.Frame) -> bool:
    try:
        return frame.get("Socket-Type") == "REQ"
    except zmq.ZMQError:
        return False  # inproc peers do not tell.
