"""What the replay endpoint answers.

An answer is the run of replies to one request, up to its end marker. Requests are known from the recording; where a
recording holds none, the ``start_seq`` of the replies says what was asked.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from kvwire.dialects import Framing
from kvwire_conform.checks.framing import END
from kvwire_conform.checks.tallies import Tallies
from kvwire_conform.messages import Message
from kvwire_conform.order import Order, Step
from kvwire_conform.recording import Record

REPLAY_CHECKS = (
    "replay-framing",
    "replay-contiguous",
    "replay-start",
    "replay-equals-live",
    "replay-end-marker",
    "replay-past-end",
    "replay-survives-malformed",
)
MAX_ANSWERS = 100


@dataclass
class Answer:
    """The replies to one request, as they come.

    Attributes:
        asked: the seq asked for; None when the request was malformed.
        newest: the newest seq known when it was asked; None before the first live batch.
        req: asked from a REQ socket, which gives the first reply alone.
        recorded: the request is in the recording; else the beginning of the answer may have gone to another socket.
    """

    asked: int | None
    newest: int | None
    req: bool = False
    recorded: bool = True
    first: int | None = None
    last: int | None = None
    replies: int = 0
    framings: set[Framing] = field(default_factory=set)


class Replay:
    """The replay endpoint of one publisher.

    Args:
        order: the publisher's batches in order, to compare with and to fill in.

    Attributes:
        newest: seq of the live batch published last.
    """

    def __init__(self, tallies: Tallies, order: Order) -> None:
        self.tallies = tallies
        self.order = order
        self.replayed = 0
        self.framings: set[Framing] = set()
        self._open: Answer | None = None
        self._past: list[tuple[int, int]] = []
        self._after_malformed = False
        self.newest: int | None = None
        self._seen = False
        self._stopped = False
        for check in REPLAY_CHECKS:
            tallies[check].skip("no replay endpoint; give --replay")

    def request(self, record: Record) -> Iterator[Step]:
        """A request was sent."""
        yield from self._close(ended=False)
        self._seen = True
        frames = record.frames[1:] if record.socket == "DEALER" and record.frames[:1] == [b""] else record.frames
        delimited = record.socket == "REQ" or record.frames[:1] == [b""]
        good = delimited and len(frames) == 1 and len(frames[0]) == 8
        self._after_malformed = self._after_malformed or not good
        asked = int.from_bytes(frames[0], "big") if good else None
        self._open = Answer(asked, self.newest, record.socket == "REQ")

    def timed_out(self) -> None:
        """The answer did not come, or did not end, within its deadline."""
        answer = self._open
        self._open = None
        if answer is None or answer.asked is None:
            return
        if self._after_malformed and not answer.replies:
            self._after_malformed = False
            self.tallies["replay-survives-malformed"].violation(
                lambda: Message(0.0, "replay", [], b"", None, b"").finding(
                    "an answer to the good request that followed a malformed one",
                    "silence",
                    "any client can stop the replay of all others with one bad message",
                )
            )
            return
        asked, replies = answer.asked, answer.replies
        self.tallies["replay-end-marker"].violation(
            lambda: Message(0.0, "replay", [], b"", None, b"").finding(
                "the end marker",
                f"{replies} replies to a request from seq {asked}, then silence",
                "a consumer without a deadline waits for ever: Dynamo 1.4.2 and 1.6.1 then apply no more live batches. "
                "A ROUTER drops frames, the end marker too, beyond its high-water mark (sglang #38945)",
            )
        )

    def malformed_over(self) -> None:
        """The wait for an answer to a malformed request is over, whatever came."""
        self._open = None

    def unreachable(self, after_malformed: bool) -> None:
        """The replay endpoint cannot be connected to, at all or any more."""
        self._open = None
        if after_malformed and self._after_malformed:
            self._after_malformed = False
            self.tallies["replay-survives-malformed"].violation(
                lambda: Message(0.0, "replay", [], b"", None, b"").finding(
                    "an answer to the good request that followed a malformed one",
                    "no connection: the replay endpoint is gone",
                    "any client can stop the publisher with one bad message",
                )
            )
        elif not self._seen:
            for check in REPLAY_CHECKS:
                self.tallies[check].skip("the replay endpoint was never connected")

    def stopped(self) -> None:
        """The capture was stopped: an answer that is open is not a fault."""
        self._stopped = True

    def reply(self, record: Record) -> Iterator[Iterator[Step]]:
        """A reply came: what it puts in order."""
        self._seen = True
        answer = self._open
        if answer is None or (record.start_seq is not None and record.start_seq != answer.asked):
            yield self._close(ended=False)
            answer = self._open = Answer(record.start_seq, self.newest, record.socket == "REQ", recorded=False)
        parsed = self._parse(record, answer)
        if parsed is None:
            return
        if parsed.seq == END or (parsed.seq is not None and not parsed.payload):
            yield self._close(ended=True)
            return
        self._judge(parsed, answer)
        self.replayed += 1
        yield self.order.replayed(parsed)
        if answer.req:
            self._open = None

    def _parse(self, record: Record, answer: Answer) -> Message | None:
        frames = record.frames
        body = frames if record.socket == "REQ" else frames[1:]
        message = Message(record.t, "replay", list(frames), b"", None, body[-1] if body else b"")
        undelimited = record.socket != "REQ" and frames[:1] != [b""]
        seq_frame = body[-2] if len(body) in (2, 3) else b""
        if undelimited or len(seq_frame) != 8:
            self.tallies["replay-framing"].violation(
                lambda: message.finding(
                    "the empty delimiter, then seq and payload, or topic, seq and payload",
                    f"{len(frames)} frames of {', '.join(str(len(frame)) for frame in frames)} bytes",
                    "clients of this wire give the replay up, or wait for ever",
                )
            )
            return None
        framing = Framing.SEQ_PAYLOAD if len(body) == 2 else Framing.TOPIC_SEQ_PAYLOAD
        if answer.framings and framing not in answer.framings:
            self.tallies["replay-framing"].violation(
                lambda: message.finding("one framing throughout an answer", f"{framing.value} after the other one")
            )
        answer.framings.add(framing)
        self.framings.add(framing)
        message.topic = body[0] if len(body) == 3 else b""
        message.seq = int.from_bytes(seq_frame, "big")
        return message

    def _judge(self, message: Message, answer: Answer) -> None:
        seq = message.seq
        assert seq is not None
        answer.replies += 1
        past_end = answer.asked is not None and answer.newest is not None and answer.asked > answer.newest
        if answer.first is None:
            answer.first = seq
        elif answer.last is not None:
            self._contiguous(message, seq, answer.last)
        if answer.asked is not None and seq < answer.asked:
            asked = answer.asked
            check = "replay-past-end" if past_end else "replay-start"
            expected = "the end marker alone" if past_end else f"nothing older than seq {asked}"
            self.tallies[check].violation(
                lambda: message.finding(
                    expected,
                    f"seq {seq} for a request from {asked}",
                    "a consumer applies old batches again: its reference counts only grow",
                )
            )
        answer.last = seq
        same = self.order.compare(seq, message.payload)
        if same is not None:
            if same:
                self.tallies["replay-equals-live"].ok()
            else:
                self.tallies["replay-equals-live"].violation(
                    lambda: message.finding(
                        f"the bytes that were live as seq {seq}",
                        "other bytes",
                        "a consumer that recovers a gap ends up with another view than one that lost nothing",
                    )
                )

    def _contiguous(self, message: Message, seq: int, last: int) -> None:
        tally = self.tallies["replay-contiguous"]
        if seq == last + 1:
            tally.ok()
            return
        tally.violation(
            lambda: message.finding(
                f"seq {last + 1} after seq {last}",
                f"seq {seq}",
                "a batch that could not be sent is missing from the buffer; consumers take the replay for incomplete",
            )
        )

    def _close(self, *, ended: bool) -> Iterator[Step]:
        answer = self._open
        self._open = None
        if answer is None or answer.req:
            return
        if not ended:
            if answer.replies and answer.asked is not None:
                self._open = answer
                self.timed_out()
            return
        self.tallies["replay-end-marker"].ok()
        if self._after_malformed and answer.asked is not None:
            self.tallies["replay-survives-malformed"].ok()
            self._after_malformed = False
        if answer.asked is None:
            return
        self._judge_start(answer)
        yield from self.order.replay_ended(answer.asked)

    def _judge_start(self, answer: Answer) -> None:
        asked = answer.asked
        assert asked is not None
        if answer.newest is not None and asked > answer.newest:
            if answer.first is None or answer.first >= asked:
                self.tallies["replay-past-end"].ok()
            return
        if answer.first is None:
            return
        if answer.replies == 1 or answer.last == answer.first:
            self.tallies["replay-contiguous"].ok()
        first = answer.first
        if first >= asked:
            self.tallies["replay-start"].ok()
        for earlier_asked, earlier_first in self._past if answer.recorded else ():
            if earlier_asked <= first < earlier_first:
                self.tallies["replay-start"].violation(
                    lambda earlier_asked=earlier_asked, earlier_first=earlier_first: Message(  # type: ignore[misc]
                        0.0, "replay", [], b"", None, b""
                    ).finding(
                        f"a request from {earlier_asked} to begin at {earlier_asked}, or at the oldest batch kept",
                        f"it began at {earlier_first}, yet {first} was still kept",
                        "consumers take what is missing for lost, and forget what they know of the publisher",
                    )
                )
        if answer.recorded and len(self._past) < MAX_ANSWERS:
            self._past.append((asked, first))

    def finish(self, framings: frozenset[Framing]) -> Iterator[Step]:
        """No more comes. ``framings`` are those that the stream's dialect allows."""
        if self._stopped:
            self._open = None
        yield from self._close(ended=False)
        if not self._seen:
            return
        for check in REPLAY_CHECKS:
            self.tallies[check].skip("")
        for framing in self.framings:
            if not framings or framing in framings:
                self.tallies["replay-framing"].ok()
            else:
                wanted = " or ".join(sorted(f.value for f in framings))
                self.tallies["replay-framing"].violation(
                    lambda framing=framing, wanted=wanted: Message(0.0, "replay", [], b"", None, b"").finding(  # type: ignore[misc]
                        f"{wanted} replies, as releases of this dialect send",
                        f"{framing.value} replies",
                        "Dynamo 1.2.1 and 1.3.1 read only seq-payload replies, 1.4.2 only topic-seq-payload, 1.6.1 both",
                    )
                )
