"""Live and replayed batches of one publisher, put back into the order in which they were published.

Pure and bounded: payloads go in as they arrive, and come out once each in seq order, with a word where something is
missing or the publisher started anew.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from kvwire_conform.messages import Message
from kvwire_conform.past import Past

MAX_HELD = 10_000
MAX_HELD_BYTES = 64 << 20
WINDOW = 20_000
"""Past batches whose digests are kept, to tell a duplicate from a restart and a replay from a forgery."""


@dataclass(frozen=True)
class InOrder:
    """The next batch; ``first`` when nothing was delivered right before it."""

    message: Message
    first: bool


@dataclass(frozen=True)
class Missing:
    """Batches that neither the live stream nor a replay delivered, both ends included."""

    first: int
    last: int
    before: Message


@dataclass(frozen=True)
class Restarted:
    """The publisher started anew: its seq fell back, with other content, from ``before``."""

    message: Message
    before: int


@dataclass(frozen=True)
class Began:
    """The first batch delivered; ``seq`` above 0 means that the stream began before the listener did."""

    seq: int


Step = InOrder | Missing | Restarted | Began


class Order:
    """The order of one publisher's batches.

    Args:
        replay_expected: whether a replay may still fill in what is missing; then batches after a gap are held back
            (at most 10,000 or 64 MiB) until it did, or until `finish`.
    """

    def __init__(self, replay_expected: bool) -> None:
        self.replay_expected = replay_expected
        self.next: int | None = None
        self.lost = 0
        self._held: dict[int, Message] = {}
        self._held_bytes = 0
        self._past = Past(WINDOW)
        self._fresh = True

    def compare(self, seq: int, payload: bytes) -> bool | None:
        """Whether a payload is the one that came under this seq lately, or is held; None when none is known."""
        held = self._held.get(seq)
        if held is not None:
            return held.payload == payload
        return self._past.same(seq, payload)

    def has(self, seq: int, payload: bytes) -> bool:
        """Whether a batch of this seq and with this payload was seen lately."""
        return self.compare(seq, payload) is True

    def repeats(self, message: Message) -> bool:
        """Whether a live message was live before with the same payload; a replay does not count."""
        assert message.seq is not None
        held = self._held.get(message.seq)
        if held is not None:
            return held.channel == "live" and held.payload == message.payload
        return self._past.was_live(message.seq, message.payload)

    @property
    def in_step(self) -> bool:
        """Whether the batch before `next` was delivered, and nothing is held back."""
        return not self._held and not self._fresh

    def follow(self, seq: int, payload: bytes) -> None:
        """Deliver a live batch, the next one, while `in_step`: what `live` does with it, without a step."""
        self.next = seq + 1
        self._past.add(seq, payload, True)

    def live(self, message: Message) -> Iterator[Step]:
        """A live message came."""
        assert message.seq is not None
        seq = message.seq
        if self.next is None:
            if seq and self.replay_expected:
                yield from self._hold(message)
                return
            yield from self._begin(seq)
        assert self.next is not None
        if seq < self.next:
            if self.has(seq, message.payload):
                self._past.now_live(seq)
                return
            yield from self._flush()
            yield Restarted(message, self.next - 1)
            self._past.begin(seq)
            self._fresh = True
            self.next = seq
        if seq > self.next:
            if self.replay_expected:
                yield from self._hold(message)
                return
            yield from self._skip_to(seq, message)
        yield self._deliver(message)
        yield from self._drain()

    def replayed(self, message: Message) -> Iterator[Step]:
        """A batch came in a replay."""
        assert message.seq is not None
        if self.next is None or message.seq > self.next:
            if message.seq not in self._held:
                yield from self._hold(message)
        elif message.seq == self.next:
            yield self._deliver(message)
            yield from self._drain()

    def replay_ended(self, asked: int | None) -> Iterator[Step]:
        """A replay from ``asked`` is over: what it did not bring is gone for good."""
        if asked is not None and self._held and asked <= (self.next or 0):
            yield from self._flush()

    def finish(self) -> Iterator[Step]:
        """No more comes: deliver what is held, and say what is missing."""
        yield from self._flush()

    def _begin(self, seq: int) -> Iterator[Step]:
        self.next = seq
        self._past.begin(seq)
        yield Began(seq)

    def _hold(self, message: Message) -> Iterator[Step]:
        assert message.seq is not None
        message.put_by()
        if message.seq in self._held:
            if message.channel == "live":
                self._held[message.seq] = message
            return
        self._held[message.seq] = message
        self._held_bytes += len(message.payload)
        if len(self._held) > MAX_HELD or self._held_bytes > MAX_HELD_BYTES:
            yield from self._flush()

    def _deliver(self, message: Message) -> InOrder:
        assert message.seq is not None
        self.next = message.seq + 1
        self._past.add(message.seq, message.payload, message.channel == "live")
        first, self._fresh = self._fresh, False
        return InOrder(message, first)

    def _release(self, seq: int) -> Message:
        message = self._held.pop(seq)
        self._held_bytes -= len(message.payload)
        return message

    def _drain(self) -> Iterator[Step]:
        while self._held and self.next in self._held:
            assert self.next is not None
            yield self._deliver(self._release(self.next))

    def _flush(self) -> Iterator[Step]:
        for seq in sorted(self._held):
            message = self._release(seq)
            if self.next is None:
                yield from self._begin(seq)
            assert self.next is not None
            if seq > self.next:
                yield from self._skip_to(seq, message)
            if seq == self.next:
                yield self._deliver(message)

    def _skip_to(self, seq: int, before: Message) -> Iterator[Step]:
        assert self.next is not None
        self.lost += seq - self.next
        yield Missing(self.next, seq - 1, before)
        self.next = seq
        self._fresh = True
