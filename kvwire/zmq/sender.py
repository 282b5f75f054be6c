"""The publisher's own thread: encodes, sends and answers replay requests, from one poller."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import zmq

from kvwire.codec import Encoder
from kvwire.events import EventBatch
from kvwire.zmq.frames import pack_live
from kvwire.zmq.outbox import Given, Outbox
from kvwire.zmq.replay_server import ReplayBuffer, ReplayServer

logger = logging.getLogger(__name__)

OnError = Callable[[int, Exception], None]

LIVE_SLICE = 0.002
REPLAY_SLICE = 0.001
"""Seconds for which live sends and replays have the thread in turn, while both have work."""

SHORT_NAP = 0.0005
"""Seconds up to which the thread waits for a replay client without an eye on what comes in."""

_TAKE = 8
_CRASH_LINGER = 1.0


@dataclass(frozen=True)
class CloseReport:
    """What a publisher could not send before it closed.

    Attributes:
        unsent: batches that never reached the socket, without those dropped by the queue before.
        first_unsent: seq of the first of them; None when there is none.
        last_unsent: seq of the last of them.
        replays_cut: clients whose answer did not get to its end marker.
        flushed: whether the sockets passed everything on to the connections within the deadline. None when that is not
            known: no time was left to wait for it, or the ZeroMQ context is not the publisher's own.
    """

    unsent: int = 0
    first_unsent: int | None = None
    last_unsent: int | None = None
    replays_cut: int = 0
    flushed: bool | None = True

    @property
    def complete(self) -> bool:
        """Whether nothing is known to be left unsent."""
        return not self.unsent and not self.replays_cut and self.flushed is not False


class Sender:
    """What runs in the publisher's thread.

    A batch that cannot be encoded is lost, and its seq with it: the subscribers see a gap, `on_error` and the log say
    why. The seq grows by exactly 1 from one batch of the engine to the next, whether or not each could be sent.

    Args:
        outbox: where batches come from.
        encoder: of the dialect.
        dp_rank: for batches that have none; None leaves them as they are.
        topic: first frame of every message.
        pub: bound or connected.
        buffer: keeps what was sent; None without replay.
        replay: on the same buffer.
        router: the replay server's socket.
        own_context: the context to terminate at the end, which waits until the sockets are flushed; None if it is not
            the publisher's own.
        on_error: called in this thread with the seq and the error.
    """

    def __init__(
        self,
        outbox: Outbox,
        encoder: Encoder,
        *,
        dp_rank: int | None,
        topic: bytes,
        pub: zmq.Socket[bytes],
        buffer: ReplayBuffer | None,
        replay: ReplayServer | None,
        router: zmq.Socket[bytes] | None,
        own_context: zmq.Context[zmq.Socket[bytes]] | None,
        on_error: OnError | None,
    ) -> None:
        self.stop_at = math.inf
        self.sent = 0
        self.sent_bytes = 0
        self.errors = 0
        self.report: CloseReport | None = None
        self._outbox = outbox
        self._encoder = encoder
        self._dp_rank = dp_rank
        self._topic = topic
        self._pub = pub
        self._buffer = buffer
        self._replay = replay
        self._router = router
        self._own_context = own_context
        self._on_error = on_error

    def run(self) -> None:
        """The thread's body: returns when the outbox is closed, and empty or past `stop_at`."""
        why = "the publisher is closed"
        try:
            self._loop()
        except zmq.ContextTerminated:
            why = "the publisher has ended: its ZeroMQ context was terminated"
            self.stop_at = 0.0
        except Exception as error:
            why = f"the publisher's thread has ended: {type(error).__name__}: {error}"
            self.stop_at = min(self.stop_at, time.monotonic() + _CRASH_LINGER)
            logger.exception("the publisher's thread has ended")
        finally:
            self._outbox.close(why)
            self._finish()

    def _loop(self) -> None:
        wakeup = self._outbox.wakeup
        poller = zmq.Poller()
        poller.register(wakeup.fd, zmq.POLLIN)
        if self._router is not None:
            poller.register(self._router, zmq.POLLIN)
        while True:
            if self._outbox.closed and (self._idle() or time.monotonic() >= self.stop_at):
                return
            self._send_for(LIVE_SLICE)
            if self._replay is not None:
                self._replay.serve(time.monotonic() + REPLAY_SLICE)
            ready = dict(poller.poll(self._timeout()))
            if wakeup.fd in ready:
                wakeup.clear()
            if self._replay is not None and self._router in ready:
                self._replay.read()

    def _idle(self) -> bool:
        return not len(self._outbox) and (self._replay is None or not self._replay.clients)

    def _timeout(self) -> int | None:
        """Milliseconds that the poller may wait; None for as long as it takes. It knows no wait below one, so such a
        wait is over when this returns."""
        if not self._outbox.may_sleep():
            return 0
        wait = None if self._replay is None else self._replay.wait()
        if self._outbox.closed:
            if self._idle():
                return 0
            left = max(0.0, self.stop_at - time.monotonic())
            wait = left if wait is None else min(wait, left)
        if wait is None or math.isinf(wait):
            return None
        if wait < SHORT_NAP:
            time.sleep(wait)
            return 0
        return math.ceil(wait * 1000)

    def _send_for(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < min(until, self.stop_at) and (entries := self._outbox.take(_TAKE)):
            for seq, given, ts in entries:
                self._send(seq, given, ts)

    def _send(self, seq: int, given: Given, ts: float | None) -> None:
        try:
            payload = given if isinstance(given, bytes) else self._encode(given, ts)
        except Exception as error:  # The events are the caller's objects: reading them can raise anything.
            self._lost(seq, error)
            return
        if self._buffer is not None:
            self._buffer.append(seq, payload)
        topic, number, body = pack_live(self._topic, seq, payload)
        send = self._pub.send
        send(topic, zmq.SNDMORE)
        send(number, zmq.SNDMORE)
        send(body)
        self.sent += 1
        self.sent_bytes += len(payload)

    def _encode(self, given: Given, ts: float | None) -> bytes:
        if isinstance(given, EventBatch):
            rank = self._dp_rank if given.dp_rank is None else given.dp_rank
            batch = EventBatch(given.ts, given.events, rank)
        else:
            assert ts is not None, "a list of events comes with its time"
            batch = EventBatch(ts, list(given), self._dp_rank)
        return self._encoder.encode(batch)

    def _lost(self, seq: int, error: Exception) -> None:
        self.errors += 1
        logger.error("batch %d could not be encoded and is lost; subscribers see a gap: %s", seq, error)
        if self._on_error is None:
            return
        try:
            self._on_error(seq, error)
        except Exception:
            logger.exception("on_error failed for batch %d", seq)

    def _finish(self) -> None:
        left = self._outbox.take(len(self._outbox))
        cut = 0 if self._replay is None else self._replay.clients
        linger = max(0, int((self.stop_at - time.monotonic()) * 1000)) if self.stop_at < math.inf else 0
        for socket in (self._pub, self._router):
            if socket is not None:
                socket.close(linger=linger)
        flushed: bool | None = None
        if self._own_context is not None:
            started = time.monotonic()
            self._own_context.term()
            if linger:
                flushed = (time.monotonic() - started) * 1000 < linger
        self.report = CloseReport(
            unsent=len(left),
            first_unsent=left[0][0] if left else None,
            last_unsent=left[-1][0] if left else None,
            replays_cut=cut,
            flushed=flushed,
        )


def start(sender: Sender, name: str) -> threading.Thread:
    """Run a sender in a daemon thread of its own."""
    thread = threading.Thread(target=sender.run, daemon=True, name=name)
    thread.start()
    return thread
