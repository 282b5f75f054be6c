"""What a capture asks a replay endpoint, and when. Pure: no socket, no clock.

`Seqs` keeps which batches of a publisher are accounted for, `Asks` decides from it what is to be asked next.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from kvwire.zmq import frames
from kvwire_conform.capture_words import Form, Kind

MAX_SPANS = 256
"""Runs of seqs that are kept; the oldest gap is forgotten when there are more."""

MAX_GAP_ASKS = 20
"""Asks about live gaps of one publisher: an answer can be the whole buffer, and the engine sends no event meanwhile."""

PAST_END = 1000
"""How far past the newest seq a past-end ask goes at least."""


class Seqs:
    """The seqs of one publisher that were delivered, or of which a replay showed that they are gone.

    Attributes:
        oldest, newest: of the batches that were delivered since the publisher (re)started; None before the first.
        run: how often the publisher restarted.
    """

    def __init__(self) -> None:
        self.oldest: int | None = None
        self.newest: int | None = None
        self.last_live: int | None = None
        self.run = 0
        self._spans: list[list[int]] = []

    def live(self, seq: int, *, reconnected: bool) -> None:
        """A live batch came; ``reconnected``: the connection was lost since the one before."""
        before = self.last_live
        if before is not None and seq <= before and (seq == 0 or reconnected):
            self.run += 1
            self.oldest = self.newest = None
            # All that a restarted publisher sent begins at 0, so what lies before this batch is a gap.
            self._spans = [[-1, -1]]
        elif before is not None and seq <= before:
            return
        self.last_live = seq
        self.delivered(seq)

    def delivered(self, seq: int) -> None:
        """A batch came, live or in a replay."""
        self.oldest = seq if self.oldest is None else min(self.oldest, seq)
        self.newest = seq if self.newest is None else max(self.newest, seq)
        self.settle(seq, seq)

    def settle(self, first: int, last: int) -> None:
        """Account for these seqs, delivered or not: there is nothing more to learn about them."""
        if first > last:
            return
        spans = self._spans
        if spans and spans[-1][0] <= first <= spans[-1][1] + 1:
            spans[-1][1] = max(spans[-1][1], last)
            return
        kept: list[list[int]] = []
        for low, high in spans:
            if high + 1 < first or last + 1 < low:
                kept.append([low, high])
            else:
                first, last = min(first, low), max(last, high)
        kept.append([first, last])
        kept.sort()
        if len(kept) > MAX_SPANS:
            kept[:2] = [[kept[0][0], kept[1][1]]]
        self._spans = kept

    def gap(self) -> int | None:
        """The first seq that is missing between two that are accounted for, or None."""
        return self._spans[0][1] + 1 if len(self._spans) > 1 else None


@dataclass
class Ask:
    """One request, and how its answer went.

    Attributes:
        kind: why it is asked.
        start_seq: the seq asked for; of a malformed request what a tolerant publisher makes of it, or -1.
        frames: what a DEALER sends.
        form: how the request, or the one before it, is malformed; None for neither.
        run, newest: the publisher's run and the newest seq when it was asked.
        replies: batches that came.
        last: the greatest seq among them.
        answered: whether the end marker came.
    """

    kind: Kind
    start_seq: int
    frames: list[bytes]
    form: Form | None = None
    run: int = 0
    newest: int | None = None
    replies: int = 0
    last: int = -1
    answered: bool = False

    @property
    def malformed(self) -> bool:
        """Whether the request itself is malformed."""
        return self.kind is Kind.MALFORMED

    @property
    def asked(self) -> int | None:
        """``start_seq`` as records carry it: None for a malformed request."""
        return None if self.malformed else self.start_seq


class Asks:
    """What to ask one publisher, one ask at a time.

    Attributes:
        seqs: what is known of the publisher.
        peak: most live batches in one second so far.
    """

    def __init__(self, seqs: Seqs) -> None:
        self.seqs = seqs
        self.peak = 0.0
        self._started = False
        self._gap_asks = 0
        self._given_up: int | None = None

    def while_listening(self) -> Ask | None:
        """The next ask while live batches are awaited, or None."""
        if not self._started:
            self._started = True
            return self._good(Kind.START, 0)
        return self.about_gap()

    def about_gap(self) -> Ask | None:
        """An ask about the first gap in what was seen, or None when there is none left to ask about."""
        start = self.seqs.gap()
        if start is None:
            return None
        if self._gap_asks >= MAX_GAP_ASKS:
            assert self.seqs.newest is not None
            self.seqs.settle(start, self.seqs.newest)
            self._given_up = start
            return None
        self._gap_asks += 1
        return self._good(Kind.GAP, start)

    def given_up(self) -> int | None:
        """The start of a gap that is not asked for; told once."""
        start, self._given_up = self._given_up, None
        return start

    def done(self, ask: Ask) -> None:
        """An ask is over, answered or not: what it was about is accounted for and not asked again."""
        if not ask.malformed and ask.run == self.seqs.run:
            newest = -1 if ask.newest is None else ask.newest
            self.seqs.settle(ask.start_seq, max(newest, ask.last))

    def probes(self, *, malformed: bool, horizon: float) -> Iterator[Ask]:
        """The asks after listening. Each is made when it is taken, from what is known then.

        Args:
            malformed: whether to send malformed requests too.
            horizon: seconds for which a past-end ask has to stay past the end.
        """
        yield self._good(Kind.ZERO, 0)
        if self.seqs.newest is not None and self.seqs.oldest is not None:
            yield self._good(Kind.MIDDLE, (self.seqs.oldest + self.seqs.newest + 1) // 2)
            yield self._good(Kind.LAST, self.seqs.newest)
        past = (-1 if self.seqs.newest is None else self.seqs.newest) + max(PAST_END, int(self.peak * horizon))
        if past <= frames.MAX_SEQ:
            yield self._good(Kind.PAST_END, past)
        for form in Form if malformed else ():
            yield self._malformed(form)
            yield self._good(Kind.AFTER_MALFORMED, self.seqs.newest or 0, form)

    def _good(self, kind: Kind, start_seq: int, form: Form | None = None) -> Ask:
        request = frames.pack_replay_request(start_seq)
        return Ask(kind, start_seq, request, form, run=self.seqs.run, newest=self.seqs.newest)

    def _malformed(self, form: Form) -> Ask:
        start = self.seqs.newest or 0
        wide = start.to_bytes(8, "big")
        if form is Form.WIDTH:
            narrow = wide[-3:]
            return Ask(Kind.MALFORMED, int.from_bytes(narrow, "big"), [b"", narrow], form)
        if form is Form.UNDELIMITED:
            return Ask(Kind.MALFORMED, -1, [wide], form)
        return Ask(Kind.MALFORMED, -1, [b"", wide, b"extra"], form)
