"""One publisher's batches, live and replayed, put in order: a pure state machine, no sockets, no clock.

::

    stream = Stream("tcp://worker:5557", replay=True, start="replay")
    stream.connected(now)             # and disconnected(now)
    while True:
        # stream.asked: the replay request that should be outstanding, or None
        stream.live(seq, payload, now)
        stream.drained(now)           # nothing more is waiting on the live channel
        stream.replayed(request, seq, payload, now); stream.replay_ended(request, now)
        stream.tick(now)              # not later than stream.deadline
        for item in stream.take(): ...

Per life of the publisher every batch comes out once, in seq order, or within a `Lost`; see spec/transport.md, "What a
subscriber does", for every rule. In short:

- A seq that is not the next one shows a gap. It is asked for from the first missing seq, and what comes live meanwhile
  is held, within bounds. What an answer proves to be gone is lost: what lies before its first batch, or everything that
  was known when an answer without batches was asked for. An answer that stops half-way is asked for again from where it
  stopped.
- A live batch under a seq that was yielded is a duplicate if the content is the same, and a restart if it is not. A live
  batch that goes back to a seq whose content is not known is a restart, too, if the seq lies before the window of known
  digests, or is 0; if it is one that was lost or is still missing, the next live batch decides, or the deadline.
- After a lost connection the publisher may be another one under the same seqs. So the first request after it begins with
  the last batch yielded, and live batches wait for the answer: the same content means the same publisher. Without a
  replay, a stream that goes on at the next seq or above is taken for the same one.
- A publisher that falls silent is asked once what came after the last batch: a loss at the end shows in no seq.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable
from typing import Literal, Protocol

import msgspec

from kvwire._recent import Match, Recent
from kvwire.codec import Decoder
from kvwire.errors import LimitError, UsageError, WireError
from kvwire.events import EventBatch
from kvwire.items import Batch, Faulty, Item, Lost, Restarted

__all__ = ["Ask", "Batch", "Faulty", "Item", "Limits", "Lost", "Request", "Restarted", "Start", "Stats", "Stream"]

Start = Literal["live", "replay"] | int

SEQ_END = 2**64 - 1
"""The seq that marks the end of a replay; no batch has it, and 0 follows the one before it."""

MAX_LIES = 1000
"""Repeated or foreign replies in one answer, after which it is given up."""

NO_REPLAY = "no replay endpoint"
GONE = "gone from the replay buffer"


class Limits(msgspec.Struct, frozen=True):
    """The bounds of one stream. Times are in seconds.

    Attributes:
        held: live batches held while a gap is being filled, at most; and their payloads' bytes (``held_bytes``).
        payload: bytes of one payload.
        window: how many seqs back the content of a batch is known.
        silence: how long a replay may say nothing before it counts as stalled.
        total: how long all requests for one gap may take together.
        attempts: requests without any answer before the replay is given up.
        cooldown: how long a replay that was given up is not asked again; doubles with every failure in a row, up to
            ``cooldown_max``.
        quiet: how long the publisher must be silent before it is asked what came last.
    """

    held: int = 20_000
    held_bytes: int = 256 << 20
    payload: int = 64 << 20
    window: int = 4096
    silence: float = 2.0
    total: float = 60.0
    attempts: int = 3
    cooldown: float = 1.0
    cooldown_max: float = 60.0
    quiet: float = 2.0


class Stats(msgspec.Struct):
    """What happened on one stream so far.

    Attributes:
        batches: yielded, readable. faulty: messages and payloads that were not.
        lost: batches reported as lost.
        replayed: batches that came out of a replay.
        duplicates: batches dropped since they were yielded before.
        late: batches dropped since they came after they had been reported lost.
        overflow: live batches dropped since too many were held; they are asked for again.
        restarts: of the publisher. disconnects: of the connection to it.
        requests: replay requests made. failures: times the replay was given up. lies: replies out of turn.
        last_failure: why it was given up last.
    """

    batches: int = 0
    faulty: int = 0
    lost: int = 0
    replayed: int = 0
    duplicates: int = 0
    late: int = 0
    overflow: int = 0
    restarts: int = 0
    disconnects: int = 0
    requests: int = 0
    failures: int = 0
    lies: int = 0
    last_failure: str = ""


class Ask(enum.Enum):
    """What a replay request is for."""

    GAP = "gap"
    """Batches that are known to exist, because a later one came."""
    TAIL = "tail"
    """Whatever there is from a seq on: at the start, and after a restart."""
    VERIFY = "verify"
    """The same, and whether it is still the same publisher; live batches wait for the answer."""
    PROBE = "probe"
    """The same in a silence; nothing waits for it."""


class Request:
    """A replay request. Its answer is only good as long as it is the stream's ``asked``.

    Attributes:
        start: the seq to ask from.
        kind: what for.
    """

    __slots__ = ("deadline", "kind", "known", "last", "lies", "missing", "settled", "start")

    def __init__(self, kind: Ask, missing: int, overlap: int | None, known: int, deadline: float) -> None:
        self.kind = kind
        self.missing = missing
        self.start = missing if overlap is None else overlap
        self.settled = overlap is None
        self.known = known
        self.deadline = deadline
        self.last = self.start - 1
        self.lies = 0

    def __repr__(self) -> str:
        return f"Request({self.kind.value}, start={self.start})"


class Sink(Protocol):
    """Where items go: a deque, a list."""

    def append(self, item: Item, /) -> None: ...


class Stream:
    """The state of a subscription to one publisher.

    Args:
        source: its name in the items.
        start: where to begin: ``live`` with the first batch that comes, ``replay`` with seq 0, or with a given seq.
        replay: whether there is a replay endpoint to ask.
        decode: reads a payload or raises WireError.
        limits: the bounds.
        out: where items are appended; by default they wait for `take`.

    Attributes:
        asked: the request that should be outstanding, or None. Another object means another request: the answer to the
            former one is void.
        next: the next seq to yield; None before the first batch of a ``live`` start.
        stats: what happened so far.

    Raises:
        UsageError: a start that is not one; ``start="replay"`` without a replay.
    """

    def __init__(
        self,
        source: str,
        *,
        start: Start = "live",
        replay: bool = False,
        decode: Callable[[bytes], EventBatch] | None = None,
        limits: Limits | None = None,
        out: Sink | None = None,
    ) -> None:
        self.source = source
        self.replay = replay
        self.limits = limits or Limits()
        self.stats = Stats()
        self.asked: Request | None = None
        self.next = _first_seq(start, replay)
        self._decode = decode or Decoder().decode
        self._items: deque[Item] = deque()
        self._emit = (self._items if out is None else out).append
        self._newest = -1
        self._last: int | None = self.next - 1 if self.next else None
        self._recent = Recent(self.limits.window)
        self._recent.begin(self.next or 0)
        self._held: dict[int, bytes] = {}
        self._held_bytes = 0
        self._suspect: tuple[int, bytes, float] | None = None
        self._plain = self.next is not None
        self._asks_first = start != "live"
        self._was_open = False
        self._opening = False
        self._doubt = False
        self._unverified = False
        self._give_up_at: float | None = None
        self._gone_below = 0
        self._proven = False
        self._attempts = 0
        self._failures = 0
        self._episode: float | None = None
        self._blocked_until = float("-inf")
        self._heard = float("-inf")
        self._probed = float("-inf")

    def take(self) -> list[Item]:
        """The items since the last call, in order. Empty where they go to ``out``."""
        items = list(self._items)
        self._items.clear()
        return items

    @property
    def deadline(self) -> float | None:
        """When `tick` is due, on the clock of ``now``; None while nothing is waited for."""
        due = []
        if self.asked is not None:
            due.append(min(self.asked.deadline, self._episode_end()))
        elif self._may_probe():
            due.append(max(self._heard + self.limits.quiet, self._blocked_until))
        if self._suspect is not None:
            due.append(self._suspect[2])
        if self._give_up_at is not None:
            due.append(self._give_up_at)
        return min(due, default=None)

    # What comes in

    def live(self, seq: int, payload: bytes, now: float) -> None:
        """A batch came on the live channel."""
        self._heard = now
        if self._plain and seq == self.next:
            self._newest = seq
            self._yield_batch(seq, payload)
            return
        self._live(seq, payload, now)
        self._settle_plain()

    def garbage(self, error: WireError, raw: bytes) -> None:
        """A live message came whose frames are wrong, so that it has no seq."""
        self._report_fault(None, error, raw)

    def connected(self, now: float) -> None:
        """The live channel is open. What came on a former connection may still be told, and comes first."""
        self._heard = now
        self._opening = True
        self._unverified = self._unverified or self._doubt
        self._give_up_at = None
        self._settle_plain()

    def drained(self, now: float) -> None:
        """All that came on the live channel before it was opened last has been told."""
        if not self._opening:
            return
        self._opening = False
        first, self._was_open = not self._was_open, True
        doubt, self._doubt = self._doubt, False
        if self.next is not None and (doubt or (first and self._asks_first)):
            # Whatever went wrong with the replay, it may be another publisher's now.
            self._gone_below = 0
            self._blocked_until = float("-inf")
            resumed = self._last is not None and self._newest < 0
            if self.replay:
                self._ask(Ask.VERIFY if doubt or resumed else Ask.TAIL, now)
        self._unverified = self.asked is not None and self.asked.kind is Ask.VERIFY
        if self.next is not None:
            self._fill(now)
        self._settle_plain()

    def disconnected(self, now: float) -> None:
        """The live channel broke. Batches that were received before may still be told."""
        self.stats.disconnects += 1
        self._opening = False
        if self.replay:
            self._doubt = True
            self._drop_request()
            if self._unverified:
                self._wait_for_publisher(now)
            elif self.next is not None:
                self._fill(now)
            self._settle_plain()

    def replayed(self, request: Request, seq: int, payload: bytes, now: float) -> None:
        """A batch came in the answer to a request."""
        if request is self.asked:
            self._replayed(request, seq, payload, now)
            self._settle_plain()

    def replay_ended(self, request: Request, now: float) -> None:
        """The end marker of an answer came."""
        if request is self.asked:
            self._replay_ended(request, now)
            self._settle_plain()

    def replay_garbage(self, request: Request, error: WireError, raw: bytes, now: float) -> None:
        """A reply came that is none. It is reported, and the replay given up."""
        if request is self.asked:
            self._report_fault(None, error, raw)
            self._give_up("the replay answered garbage", now)
            self._settle_plain()

    def tick(self, now: float) -> None:
        """Time has passed."""
        if self.asked is not None:
            if now >= self._episode_end():
                self._give_up("the replay did not end in time", now)
            elif now >= self.asked.deadline:
                self._stalled(now)
        if self._suspect is not None and now >= self._suspect[2]:
            self._judge_suspect(now, late=False)
        if self._give_up_at is not None and now >= self._give_up_at:
            self._give_up_at = None
            self._unverified = False
            if self.next is not None:
                self._flush("the publisher went away")
        if self.asked is None and self._may_probe() and self._may_ask(now) and now >= self._heard + self.limits.quiet:
            self._probed = now
            self._ask(Ask.PROBE, now)
        self._settle_plain()

    # Live batches

    def _live(self, seq: int, payload: bytes, now: float) -> None:
        if not 0 <= seq < SEQ_END:
            self.garbage(_no_seq(seq), payload)
            return
        if self.next is None:
            self.next = seq
            self._recent.begin(seq)
        if self._suspect is not None and not self._outlives_suspect(seq, payload, now):
            return
        match = self._compare(seq, payload)
        forward = seq > self._newest
        if match is Match.OTHER:
            if forward:
                self._fail("the replay was contradicted by the live stream", now)
            self._restart_with(seq, payload, now)
        elif match is Match.SAME:
            self.stats.duplicates += 1
            self._newest = max(self._newest, seq)
        elif not forward:
            self._went_back(seq, payload, match, now)
        elif seq < self.next:
            self._drop_late(seq, payload)
            self._newest = seq
        else:
            self._newest = seq
            self._accept(seq, payload, now)

    def _drop_late(self, seq: int, payload: bytes) -> None:
        self.stats.late += 1
        self._recent.late(seq, payload)

    def _accept(self, seq: int, payload: bytes, now: float) -> None:
        if seq == self.next and not self._unverified:
            self._yield_batch(seq, payload)
        else:
            self._hold(seq, payload)
        self._fill(now)

    def _compare(self, seq: int, payload: bytes) -> Match:
        held = self._held.get(seq)
        if held is not None:
            return Match.SAME if held == payload else Match.OTHER
        return self._recent.compare(seq, payload)

    def _went_back(self, seq: int, payload: bytes, match: Match, now: float) -> None:
        assert self.next is not None
        missing = seq >= self.next or match is Match.LOST
        if missing and seq > 0:
            self._suspect = (seq, payload, now + self.limits.silence)
        else:
            self._restart_with(seq, payload, now)

    def _outlives_suspect(self, seq: int, payload: bytes, now: float) -> bool:
        """Decide about the batch that went back by the live one that follows it. False if that one is done with, too."""
        assert self._suspect is not None
        if seq > self._newest:
            self._judge_suspect(now, late=True)
        elif (seq, payload) == self._suspect[:2]:
            self.stats.duplicates += 1
            return False
        elif self._compare(seq, payload) is not Match.SAME:
            self._judge_suspect(now, late=False)
        return True

    def _judge_suspect(self, now: float, *, late: bool) -> None:
        assert self._suspect is not None
        assert self.next is not None
        seq, payload, _ = self._suspect
        self._suspect = None
        match = self._compare(seq, payload)
        if match is Match.SAME:
            self.stats.duplicates += 1
        elif match is Match.OTHER or not late:
            self._restart_with(seq, payload, now)
        elif seq < self.next:
            self._drop_late(seq, payload)
        else:
            self._accept(seq, payload, now)

    def _restart_with(self, seq: int, payload: bytes, now: float) -> None:
        """The publisher started anew, and this is the first batch of it that came."""
        self._suspect = None
        self._flush("the publisher restarted")
        self._restart()
        self._newest = seq
        self._accept(seq, payload, now)

    def _restart(self) -> None:
        self._drop_request()
        self._suspect = None
        self._held.clear()
        self._held_bytes = 0
        self._unverified = self._opening and self._doubt
        self._give_up_at = None
        self._gone_below = 0
        self._proven = False
        self._newest = -1
        self._last = None
        self.next = 0
        self._recent.begin(0)
        self.stats.restarts += 1
        self._emit(Restarted(self.source))

    # Replay

    def _replayed(self, request: Request, seq: int, payload: bytes, now: float) -> None:
        assert self.next is not None
        if not request.last < seq < SEQ_END:
            self.stats.lies += 1
            request.lies += 1
            if request.lies > MAX_LIES:
                self._give_up("the replay repeats itself", now)
            return
        first = request.last < request.start
        request.last = seq
        request.deadline = now + self.limits.silence
        if not request.settled and not self._same_publisher(request, seq, payload, now):
            return
        if first and seq > self.next and request.start <= request.missing:
            self._gone_below = seq
            if request.kind is Ask.GAP:
                # Only what the live stream shows to exist is given up on the word of a replay.
                self._fill(now)
            else:
                self._lose_until(seq, GONE)
        match = self._compare(seq, payload)
        if match is Match.OTHER and request.kind is Ask.VERIFY:
            # What is held may have come from the former publisher.
            self._start_over(now)
        elif match is Match.OTHER:
            self.stats.lies += 1
            self._give_up("the replay contradicts the live stream", now)
        elif seq == self.next:
            self.stats.replayed += 1
            self._yield_batch(seq, payload)
            self._drain()
        elif self.next < seq <= self._newest and match is not Match.SAME:
            self.stats.replayed += 1
            self._hold(seq, payload)

    def _same_publisher(self, request: Request, seq: int, payload: bytes, now: float) -> bool:
        """Judge by the first batch of an answer. False if it is another publisher now."""
        assert self.next is not None
        request.settled = True
        match = self._compare(seq, payload)
        same = match is not Match.OTHER
        if seq > request.start and request.kind is Ask.VERIFY:
            # The batch to compare with is gone from the buffer. A loss right before this one lets a consumer build on
            # nothing older, whoever published it; where nothing is lost, only a restart tells it to.
            same = same and seq > self.next
            if same:
                # What is held from a batch on that the replay has, too, is this publisher's; all else may not be.
                self._drop_held(seq if match is Match.SAME else SEQ_END)
                self._newest = max(self._held, default=seq)
                self._skip_to(seq, GONE)
        if same:
            self._unverified = False
            self._drain()
        else:
            self._start_over(now)
        return same

    def _drop_held(self, below: int) -> None:
        for held in [held for held in self._held if held < below]:
            self._held_bytes -= len(self._held.pop(held))

    def _start_over(self, now: float) -> None:
        """The replay shows that another publisher is there now."""
        self._restart()
        self._ask(Ask.TAIL, now)

    def _replay_ended(self, request: Request, now: float) -> None:
        assert self.next is not None
        self._attempts = self._failures = 0
        if request.last >= request.start:
            self._proven = True
        elif not request.settled and (request.kind is Ask.VERIFY or self._proven):
            # A buffer with room for one batch would have held the last one yielded, or a later one.
            self._start_over(now)
            return
        request.settled = True
        episode, self._episode = self._episode, None
        self.asked = None
        self._drain()
        behind = request.kind is not Ask.GAP and request.last >= self.next
        if self._newest < self.next and not behind:
            return
        if self.next == request.missing > request.last:
            # Nothing from the first missing seq on, though all that was known of when it was asked had been published.
            self._lose_until(min(self._first_known(), request.known + 1), GONE)
            self._fill(now)
        else:
            self._episode = episode
            self._fill(now)
            if behind and self.asked is None:
                self._ask(Ask.TAIL, now)
            if self.asked is None:
                self._episode = None

    def _stalled(self, now: float) -> None:
        request = self.asked
        assert request is not None
        assert self.next is not None
        advanced = self.next > request.missing
        self._attempts = 0 if advanced else self._attempts + 1
        if advanced and request.kind is Ask.GAP and self._newest < self.next:
            self._drop_request()
        elif self._attempts >= self.limits.attempts:
            self._give_up("the replay stalled", now)
        else:
            self._ask(request.kind, now)

    def _give_up(self, reason: str, now: float) -> None:
        self._fail(reason, now)
        self._drop_request()
        self._unverified = False
        self._flush(reason)

    def _fail(self, reason: str, now: float) -> None:
        limits = self.limits
        self._blocked_until = now + min(limits.cooldown * 2.0 ** min(self._failures, 30), limits.cooldown_max)
        self._failures += 1
        self.stats.failures += 1
        self.stats.last_failure = reason

    def _drop_request(self) -> None:
        self.asked = None
        self._attempts = 0
        self._episode = None

    def _may_ask(self, now: float) -> bool:
        return self.replay and now >= self._blocked_until

    def _may_probe(self) -> bool:
        return self.replay and self.next is not None and not self._doubt and self._heard > self._probed

    def _episode_end(self) -> float:
        return float("inf") if self._episode is None else self._episode + self.limits.total

    def _ask(self, kind: Ask, now: float) -> None:
        assert self.next is not None
        if self._episode is None:
            self._episode = now
        overlap = None
        if kind in (Ask.VERIFY, Ask.PROBE):
            overlap = min(self._held, default=None) if self._last is None else self._last
            if overlap is None:
                kind = Ask.TAIL
        self.asked = Request(kind, self.next, overlap, self._newest, now + self.limits.silence)
        self.stats.requests += 1

    # Gaps

    def _first_known(self) -> int:
        """The first seq at or above ``next`` that need not be asked for; one above the newest where nothing is held."""
        return min(self._held, default=self._newest + 1)

    def _fill(self, now: float) -> None:
        """Yield what can be; ask for what is missing, or give it up."""
        assert self.next is not None
        if self._unverified:
            return
        self._drain()
        while self._newest >= self.next:
            if self.next < self._gone_below:
                self._lose_until(min(self._gone_below, self._first_known()), GONE)
            elif self.asked is not None:
                return
            elif not self._may_ask(now):
                self._flush(self.stats.last_failure if self.replay else NO_REPLAY)
            elif self._doubt:
                self._wait_for_publisher(now)
                return
            else:
                self._ask(Ask.GAP, now)

    def _wait_for_publisher(self, now: float) -> None:
        if self._give_up_at is None:
            self._give_up_at = now + self.limits.attempts * self.limits.silence

    def _flush(self, reason: str) -> None:
        """Yield all that is held; what is missing between is lost."""
        assert self.next is not None
        self._lose_until(max(self._newest + 1, self.next), reason)

    def _lose_until(self, seq: int, reason: str) -> None:
        """Nothing that is missing below ``seq`` comes any more."""
        for held in sorted(held for held in self._held if held < seq):
            self._skip_to(held, reason)
            self._yield_held(held)
        self._skip_to(seq, reason)
        self._drain()

    def _drain(self) -> None:
        while self._held and self.next in self._held:
            self._yield_held(self.next)

    def _hold(self, seq: int, payload: bytes) -> None:
        full = len(self._held) >= self.limits.held or self._held_bytes + len(payload) > self.limits.held_bytes
        if full and self._held:
            self.stats.overflow += 1
            return
        self._held[seq] = payload
        self._held_bytes += len(payload)

    def _yield_held(self, seq: int) -> None:
        payload = self._held.pop(seq)
        self._held_bytes -= len(payload)
        self._yield_batch(seq, payload)

    def _skip_to(self, seq: int, reason: str) -> None:
        assert self.next is not None
        if seq <= self.next:
            return
        self.stats.lost += seq - self.next
        self._emit(Lost(self.source, self.next, seq - 1, reason))
        self._recent.lose(seq)
        self.next = seq

    def _yield_batch(self, seq: int, payload: bytes) -> None:
        self._recent.add(seq, payload)
        self._last = seq
        self.next = seq + 1
        if self.next == SEQ_END:
            self._wrap()
        if len(payload) > self.limits.payload:
            self._report_fault(seq, _too_long(payload, self.limits.payload), payload)
            return
        try:
            batch = self._decode(payload)
        except WireError as error:
            self._report_fault(seq, error, payload)
            return
        self.stats.batches += 1
        self._emit(Batch(self.source, seq, batch, payload))

    def _wrap(self) -> None:
        self.next = 0
        self._newest = -1
        self._last = None
        self._gone_below = 0
        self._recent.begin(0)

    def _report_fault(self, seq: int | None, error: WireError, raw: bytes) -> None:
        self.stats.faulty += 1
        # A traceback would keep the frames of this stream alive for as long as the item.
        self._emit(Faulty(self.source, seq, error.with_traceback(None), raw))

    def _settle_plain(self) -> None:
        self._plain = (
            self.next is not None
            and self._newest < self.next
            and not self._held
            and self._suspect is None
            and not self._unverified
        )


def _first_seq(start: Start, replay: bool) -> int | None:
    if start == "live":
        return None
    if start == "replay":
        if not replay:
            raise UsageError('start="replay" needs a replay endpoint to ask')
        return 0
    if isinstance(start, int) and not isinstance(start, bool) and 0 <= start < SEQ_END:
        return start
    raise UsageError(f'start is "live", "replay" or a seq from 0 to 2^64-2, not {start!r}')


def _too_long(payload: bytes, most: int) -> LimitError:
    return LimitError(
        "the payload is longer than this reader accepts",
        code="payload-too-long",
        expected=f"at most {most} bytes",
        got=f"{len(payload)} bytes",
        hint="raise max_payload if the engine really publishes such batches",
    )


def _no_seq(seq: int) -> WireError:
    return WireError(
        "this seq is no batch's",
        code="seq-reserved",
        expected="0 to 2^64-2",
        got=str(seq),
        hint="2^64-1 marks the end of a replay",
    )
