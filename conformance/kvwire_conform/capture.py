"""Listen to live publishers and hand on what they send, as `Record`s.

Three phases. (a) Connect, and ask each replay endpoint from 0 as soon as it is there, so that what was published before
the subscription was ready is seen. (b) Listen until the time, the batch count or the byte count is reached; a gap in the
live stream is asked for at once. (c) Probe the replay endpoints, live listening going on: from 0, from the middle, from the
newest, past the end, and malformed requests with a good one after each.

Silence leaves no frame, so the capture says it in notes. Their vocabulary, and the order of the records of a replay, are in
`kvwire_conform.capture_words`: the replay checks read it.

Nothing is kept: a record is handed on before the next is read, and the sockets' queues are bounded. ZMTP heartbeats are off
unless asked for: libzmq sends them to every peer, and the pure Rust ``zeromq`` crate, which publishers use, drops a peer
for them. TCP keep-alive finds a dead host instead.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import zmq

from kvwire.errors import UsageError
from kvwire.zmq import endpoints, frames
from kvwire_conform import capture_words as words
from kvwire_conform.capture_asks import Ask, Asks, Seqs
from kvwire_conform.capture_links import Link, reach
from kvwire_conform.capture_outcome import Heard, Outcome
from kvwire_conform.capture_words import Kind
from kvwire_conform.recording import Record
from kvwire_conform.targets import Target

__all__ = ["Capture", "Heard", "Outcome", "Target"]

SECONDS = 30.0
MAX_BYTES = 1 << 30
"""Bytes of all frames, live and replayed, after which a capture ends."""

REPLAY_TIMEOUT = 5.0
"""Seconds of silence after which an answer is given up. Idle engines answer within 0.2 s, busy ones between batches."""

ENDLESS = 12
"""An answer is also given up after this many times `REPLAY_TIMEOUT`, however much of it still comes."""

MALFORMED_PATIENCE = 1.0
"""Seconds to wait for an answer to a malformed request, which released engines do not give."""

MAX_FAILURES = 2
"""Asks in a row that had no end, after which further probes are left out: each costs its whole deadline."""

TOPIC_PROBE = 2.0
"""Seconds to listen to all topics where the filter let nothing through."""

REACH_TIMEOUT = 2.0
TURN = 0.1
"""Seconds between two looks at the clock and at `Capture.stop`."""

BURST = 256
"""Messages of one socket that are taken before the others have their turn."""


@dataclass
class _Line:
    """One target's sockets and the state of its replay."""

    target: Target
    live: Link
    replay: Link | None
    heard: Heard
    source: str
    seqs: Seqs = field(default_factory=Seqs)
    asks: Asks = field(init=False)
    probes: Iterator[Ask] | None = None
    waiting: Ask | None = None
    waiting_since: float = 0.0
    ask: Ask | None = None
    asked_at: float = 0.0
    heard_at: float = 0.0
    failures: int = 0
    probed: bool = False
    over: bool = False
    seen_disconnects: int = 0
    window: float = 0.0
    in_window: int = 0

    def __post_init__(self) -> None:
        self.asks = Asks(self.seqs)

    @property
    def busy(self) -> bool:
        """Whether there is something left to ask, or an answer to wait for."""
        if self.replay is None:
            return False
        return self.ask is not None or not (self.over or (self.probed and self.seqs.gap() is None))


class Capture:
    """A capture of one or more publishers. Use it once: `run`, or iterate over `records`.

    Args:
        targets: the publishers. With several, each record names its target's endpoint as ``source``.
        topic: topic prefix to subscribe to; empty for everything.
        seconds: how long to listen, without the probes after it; None until `stop`.
        batches: live messages, of all targets together, after which listening ends; None for no such end.
        max_bytes: bytes of all frames after which the capture ends, without probes.
        max_payload: greatest frame in bytes; libzmq hangs up on a larger one.
        replay_timeout: seconds of silence after which an answer is given up.
        probe: whether to probe the replay endpoints after listening.
        malformed: whether the probes include malformed requests.
        bind: bind the live endpoints and let the publishers connect.
        heartbeat: seconds between ZMTP heartbeats; 0 for none.
        context: the ZeroMQ context to use, for inproc endpoints; its owner ends it.
        on_record: what `run` hands each record to.

    Raises:
        UsageError: no target, one twice, or an endpoint that cannot be used.
    """

    def __init__(
        self,
        targets: Sequence[Target],
        *,
        topic: str = "",
        seconds: float | None = SECONDS,
        batches: int | None = None,
        max_bytes: int = MAX_BYTES,
        max_payload: int = frames.MAX_PAYLOAD,
        replay_timeout: float = REPLAY_TIMEOUT,
        probe: bool = True,
        malformed: bool = True,
        bind: bool = False,
        heartbeat: float = 0.0,
        context: zmq.Context[zmq.Socket[bytes]] | None = None,
        on_record: Callable[[Record], None] | None = None,
    ) -> None:
        self._targets = list(targets)
        self._topic = topic.encode()
        self._seconds = seconds
        self._batches = batches
        self._max_bytes = max_bytes
        self._max_payload = max_payload
        self._replay_timeout = replay_timeout
        self._probe = probe
        self._malformed = malformed
        self._bind = bind
        self._heartbeat = heartbeat
        self._context = context
        self._on_record = on_record
        self._check()
        self._stop = threading.Event()
        self._poller = zmq.Poller()
        self._lines: list[_Line] = []
        self._bytes = 0
        self._messages = 0
        self._started = 0.0
        self.outcome = Outcome([Heard(target, bound=bind) for target in self._targets], topic, max_payload)

    def run(self) -> Outcome:
        """Capture, and hand each record to ``on_record``. Returns what became of the targets."""
        for record in self.records():
            if self._on_record is not None:
                self._on_record(record)
        return self.outcome

    def stop(self) -> None:
        """End the capture within a fraction of a second, without probes. Safe in a signal handler and in other threads."""
        self._stop.set()

    def records(self) -> Iterator[Record]:
        """The records, as they come. Closing the iterator closes the sockets; `outcome` holds what was found until then.

        Raises:
            UsageError: an endpoint that cannot be bound.
        """
        if self._started:
            raise UsageError("a capture runs once; make another one")
        self._started = time.monotonic()
        context = self._context or zmq.Context()
        try:
            self._open(context)
            yield from self._listen()
            yield from self._note_all(words.CAPTURE_END, reason=self.outcome.reason)
            if self.outcome.reason in ("time", "batches"):
                yield from self._finish()
            for line in self._lines:
                yield from self._watch(line)
            self._diagnose()
        finally:
            self._tally()
            for line in self._lines:
                line.live.close()
                if line.replay is not None:
                    line.replay.close()
            if self._context is None:
                context.destroy(linger=0)
            self.outcome.seconds = time.monotonic() - self._started

    def _check(self) -> None:
        if not self._targets:
            raise UsageError("nothing to listen to: give an endpoint, e.g. tcp://127.0.0.1:5557")
        seen: set[str] = set()
        for target in self._targets:
            live = endpoints.parse(target.endpoint)
            live = live if self._bind else endpoints.dial(live)
            replay = None if target.replay_endpoint is None else endpoints.dial(target.replay_endpoint)
            if str(live) in seen:
                raise UsageError(f"{live} is given twice")
            seen.add(str(live))
            if replay == live:
                raise UsageError(f"{live} is given as the live and as the replay endpoint; they are two sockets")
        for name, value in (("seconds", self._seconds), ("batches", self._batches), ("max_bytes", self._max_bytes)):
            if value is not None and not value > 0:
                raise UsageError(f"{name} must be more than 0, not {value}")
        if not self._replay_timeout > 0:
            raise UsageError(f"replay_timeout must be more than 0, not {self._replay_timeout}")

    def _open(self, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        for target, heard in zip(self._targets, self.outcome.targets, strict=True):
            live = Link(
                context,
                zmq.SUB,
                endpoints.parse(target.endpoint),
                bind=self._bind,
                max_payload=self._max_payload,
                heartbeat=self._heartbeat,
                poller=self._poller,
            )
            source = target.endpoint if len(self._targets) > 1 else ""
            line = _Line(target, live, None, heard, source)
            self._lines.append(line)
            live.subscribe(self._topic)
            if target.replay_endpoint is not None:
                line.replay = Link(
                    context,
                    zmq.DEALER,
                    endpoints.parse(target.replay_endpoint),
                    max_payload=self._max_payload,
                    heartbeat=self._heartbeat,
                    poller=self._poller,
                )

    # Listening ------------------------------------------------------------------------------------------------------

    def _listen(self) -> Iterator[Record]:
        while True:
            self.outcome.reason = self._over()
            if self.outcome.reason:
                return
            yield from self._turn(lambda line: line.asks.while_listening())

    def _over(self) -> str:
        if self._stop.is_set():
            return "stopped"
        if self._bytes >= self._max_bytes:
            return "bytes"
        if self._batches is not None and self._messages >= self._batches:
            return "batches"
        if self._seconds is not None and time.monotonic() - self._started >= self._seconds:
            return "time"
        return ""

    def _turn(self, next_ask: Callable[[_Line], Ask | None]) -> Iterator[Record]:
        """Wait a little, then take what came, and see to the replays."""
        self._poller.poll(int(TURN * 1000))
        self._tally()
        for line in self._lines:
            yield from self._watch(line)
            yield from self._take_live(line)
            if line.replay is None:
                continue
            yield from self._take_replies(line, line.replay)
            yield from self._mind(line)
            yield from self._ask_next(line, line.replay, next_ask)

    def _watch(self, line: _Line) -> Iterator[Record]:
        now = time.monotonic()
        for change in line.live.watch(now):
            yield self._note(line, f"live-{change}")
        line.heard.peers = max(line.heard.peers, line.live.up)
        if line.replay is not None:
            for change in line.replay.watch(now):
                yield self._note(line, f"replay-{change}")

    def _take_live(self, line: _Line) -> Iterator[Record]:
        for _ in range(BURST):
            got = line.live.receive()
            if got is None:
                return
            message, left_out = got
            if not message[0].startswith(self._topic):
                line.heard.add_topic(message[0])
                continue
            now = time.monotonic()
            line.heard.messages += 1
            self._messages += 1
            if line.heard.first_message is None:
                line.heard.first_message = now - self._started
            self._count(message)
            self._measure(line, now)
            if len(message) == 3 and len(message[1]) == 8 and message[1] != frames.END:
                lost = line.live.disconnects
                line.seqs.live(int.from_bytes(message[1], "big"), reconnected=lost > line.seen_disconnects)
                line.seen_disconnects = lost
            yield Record(t=time.time(), channel="live", frames=message, source=line.source)
            if left_out:
                yield self._note(line, words.FRAMES_LEFT_OUT, count=left_out)
            if self._stop.is_set() or self._bytes >= self._max_bytes:
                return
            if self._batches is not None and self._messages == self._batches:
                return

    def _measure(self, line: _Line, now: float) -> None:
        if now - line.window >= 1.0:
            line.window, line.in_window = now, 0
        line.in_window += 1
        line.asks.peak = max(line.asks.peak, float(line.in_window))

    # Replay ---------------------------------------------------------------------------------------------------------

    def _take_replies(self, line: _Line, link: Link) -> Iterator[Record]:
        for _ in range(BURST):
            if self._stop.is_set() or self._bytes >= self._max_bytes:
                return
            got = link.receive()
            if got is None:
                return
            message, left_out = got
            ask = line.ask
            line.heard_at = time.monotonic()
            self._count(message)
            yield Record(
                t=time.time(),
                channel="replay",
                frames=message,
                source=line.source,
                start_seq=None if ask is None else ask.asked,
            )
            if left_out:
                yield self._note(line, words.FRAMES_LEFT_OUT, count=left_out)
            if ask is not None:
                yield from self._reply(line, ask, message)

    def _reply(self, line: _Line, ask: Ask, message: list[bytes]) -> Iterator[Record]:
        # An empty payload ends an answer even where its seq is not the end marker's: the checks say what is wrong with it.
        if not message[-1] or frames.END in message[-2:-1]:
            ask.answered = True
            line.heard.replay_answered += 1
            yield from self._done(line, ask)
            return
        ask.replies += 1
        line.heard.replayed += 1
        if len(message) in (3, 4) and len(message[-2]) == 8:
            seq = int.from_bytes(message[-2], "big")
            ask.last = max(ask.last, seq)
            if ask.run == line.seqs.run:
                line.seqs.delivered(seq)
        if len(message) == 4 and not message[1].startswith(self._topic):
            line.heard.add_topic(message[1])

    def _mind(self, line: _Line) -> Iterator[Record]:
        """Give the answer up when its deadline is past."""
        ask = line.ask
        if ask is None:
            return
        now = time.monotonic()
        patience = min(self._replay_timeout, MALFORMED_PATIENCE) if ask.malformed else self._replay_timeout
        silent, running = now - line.heard_at, now - line.asked_at
        if silent < patience and running < ENDLESS * patience:
            return
        yield from self._done(line, ask, waited=silent if silent >= patience else running)
        if line.replay is not None:
            line.replay.reopen()

    def _done(self, line: _Line, ask: Ask, *, waited: float = 0.0) -> Iterator[Record]:
        line.ask = None
        line.asks.done(ask)
        seconds = f"{waited:.1f}"
        if ask.malformed:
            if ask.answered:
                yield self._note(line, words.REPLAY_MALFORMED_ANSWERED, form=ask.form, replies=ask.replies)
            elif ask.replies:
                yield self._note(line, words.REPLAY_MALFORMED_ENDLESS, form=ask.form, replies=ask.replies)
            else:
                yield self._note(line, words.REPLAY_MALFORMED_UNANSWERED, form=ask.form, waited=seconds)
            if ask.answered and line.replay is not None:
                line.replay.reopen()
            return
        line.failures = 0 if ask.answered else line.failures + (MAX_FAILURES if ask.form else 1)
        if not ask.answered:
            line.heard.replay_timeouts += 1
            fields = {"kind": ask.kind, "start_seq": ask.start_seq, "replies": ask.replies, "waited": seconds}
            if ask.form is not None:
                fields["form"] = ask.form
            yield self._note(line, words.REPLAY_TIMEOUT, **fields)
        newest = line.seqs.newest
        if ask.kind is Kind.PAST_END and newest is not None and newest >= ask.start_seq:
            yield self._note(line, words.REPLAY_OVERTAKEN, start_seq=ask.start_seq, newest=newest)

    def _ask_next(self, line: _Line, link: Link, next_ask: Callable[[_Line], Ask | None]) -> Iterator[Record]:
        if line.ask is not None or self._stop.is_set():
            return
        if line.probes is None and not link.ready:
            return
        ask = line.waiting or next_ask(line)
        given_up = line.asks.given_up()
        if given_up is not None:
            yield self._note(line, words.REPLAY_GAP_GIVEN_UP, start_seq=given_up)
        if ask is None:
            return
        now = time.monotonic()
        if line.probes is not None and line.failures >= MAX_FAILURES:
            line.over = True
            yield self._note(line, words.REPLAY_ABANDONED, kind=ask.kind)
            return
        if line.probes is not None and not link.ready and ask.kind is not Kind.AFTER_MALFORMED:
            if line.waiting is None:
                line.waiting, line.waiting_since = ask, now
            if now - line.waiting_since >= self._replay_timeout:
                line.over = True
                yield self._note(line, words.REPLAY_LOST, kind=ask.kind)
            return
        line.waiting = None
        yield from self._send(line, link, ask, now)

    def _send(self, line: _Line, link: Link, ask: Ask, now: float) -> Iterator[Record]:
        if ask.malformed:
            yield self._note(line, words.REPLAY_MALFORMED_SENT, form=ask.form, start_seq=ask.start_seq)
        elif ask.kind is Kind.AFTER_MALFORMED:
            yield self._note(line, words.REPLAY_AFTER_MALFORMED, form=ask.form, start_seq=ask.start_seq)
        else:
            yield self._note(line, words.REPLAY_ASK, kind=ask.kind, start_seq=ask.start_seq)
        yield Record(
            t=time.time(),
            channel="replay-request",
            frames=list(ask.frames),
            source=line.source,
            start_seq=ask.asked,
        )
        line.ask, line.asked_at, line.heard_at = ask, now, now
        link.send(ask.frames)

    # After listening ------------------------------------------------------------------------------------------------

    def _finish(self) -> Iterator[Record]:
        began = time.monotonic()
        for line in self._lines:
            if self._topic and not line.heard.messages and line.live.ready:
                line.live.subscribe(b"")
                line.heard.topic_probed = True
            if line.replay is None:
                continue
            if not line.replay.handshakes and not line.replay.unmonitored:
                line.over = True
                yield self._note(line, words.REPLAY_NEVER_CONNECTED)
            elif self._probe:
                line.probes = line.asks.probes(malformed=self._malformed, horizon=2 * self._replay_timeout)
            else:
                line.probes = iter(())
        while not self._stop.is_set() and self._bytes < self._max_bytes:
            busy = any(line.busy for line in self._lines)
            unheard = any(line.heard.topic_probed and not line.heard.topics for line in self._lines)
            if not busy and not (unheard and time.monotonic() - began < TOPIC_PROBE):
                return
            yield from self._turn(self._next_probe)
        self.outcome.reason = "stopped" if self._stop.is_set() else "bytes"

    def _next_probe(self, line: _Line) -> Ask | None:
        if line.over or line.probes is None:
            return None
        ask = next(line.probes, None)
        if ask is None:
            line.probed = True
            # A gap of the last moments: a replay can still tell what it was.
            ask = line.asks.about_gap()
        return ask

    def _diagnose(self) -> None:
        if self._stop.is_set():
            return
        waits = []
        for line in self._lines:
            heard = line.heard
            if not line.live.opened and not self._bind and not line.live.unmonitored:
                waits.append((heard, "reach", line.live.endpoint))
            if line.replay is not None and not line.replay.opened and not line.replay.unmonitored:
                waits.append((heard, "replay_reach", line.replay.endpoint))
        with ThreadPoolExecutor(max_workers=8) as pool:
            asked = [(heard, name, pool.submit(reach, endpoint, REACH_TIMEOUT)) for heard, name, endpoint in waits]
            for heard, name, answer in asked:
                setattr(heard, name, answer.result())

    def _tally(self) -> None:
        for line in self._lines:
            heard, live = line.heard, line.live
            heard.connected = live.handshakes > 0 or (True if heard.messages else None if live.unmonitored else False)
            heard.opened = live.opened > 0
            heard.hangups, heard.refused = live.hangups, live.refused
            heard.disconnects, heard.cuts = live.disconnects, live.cuts
            heard.reconnects = max(0, live.handshakes - 1) if not self._bind else max(0, live.handshakes - heard.peers)
            if line.replay is not None:
                heard.replay_connected = None if line.replay.unmonitored else line.replay.handshakes > 0

    # Small things ---------------------------------------------------------------------------------------------------

    def _count(self, message: list[bytes]) -> None:
        self._bytes += sum(map(len, message))

    def _note(self, line: _Line, word: str, **fields: object) -> Record:
        return Record(t=time.time(), channel="note", frames=[], source=line.source, text=words.note(word, **fields))

    def _note_all(self, word: str, **fields: object) -> Iterator[Record]:
        for line in self._lines:
            yield self._note(line, word, **fields)
