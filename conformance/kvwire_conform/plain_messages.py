"""The short way for plain messages: the next live message of a settled stream, with nothing to say of it.

A message goes the short way or, when anything at all is out of the ordinary, the whole way through `SourceJudge`, which
alone decides what is wrong with it. Both count the same.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from kvwire.events import AllBlocksCleared, BlockRemoved, BlockStored, EventBatch
from kvwire_conform.checks.batch import DAY
from kvwire_conform.checks.events import form_of
from kvwire_conform.checks.framing import END
from kvwire_conform.checks.plain import PlainEvents
from kvwire_conform.messages import Message
from kvwire_conform.plain import Form, PlainReader, plain_reader
from kvwire_conform.recording import Record

if TYPE_CHECKING:
    from kvwire_conform.judge import SourceJudge

_MESSAGE_CHECKS = (
    *("three-frames", "topic-utf8", "topic-constant", "seq-width", "seq-end-reserved", "seq-step"),
    *("payload-decodes", "batch-arity", "ts-finite", "dp-rank-constant", "dialect-constant"),
)
_INT63 = (1 << 63) - 1
_SMALLEST = 1 << 32
"""Hashes from here on are written in 9 bytes."""


class PlainMessages:
    """The plain messages of one publisher."""

    def __init__(self, judge: SourceJudge) -> None:
        self.judge = judge
        self.events = PlainEvents(judge.tallies, judge.stream, judge.traits)
        self.messages = 0
        self._dated = 0
        self._reader: PlainReader | None = None
        self._topic: bytes | None = None
        self._example: int | bytes | None = None
        self._negative = False
        self._pairs = False
        self._sampling = False

    def see(self, record: Record) -> bool:
        """Judge a live message. False, and nothing done, when it has to go the whole way."""
        reader = self._reader
        frames = record.frames
        if reader is None or len(frames) != 3:
            return False
        judge = self.judge
        topic, seq_frame, payload = frames
        seq = int.from_bytes(seq_frame, "big")
        order = judge.order
        if seq != order.next or len(seq_frame) != 8 or seq == END or not order.in_step:
            return False
        if topic != self._topic or topic != judge.framing.topic or judge.first_seq is None:
            return False
        found = reader.read(payload)
        if found is None:
            return False
        batch, salts = found
        rank, events, t = batch.dp_rank, batch.events, record.t
        if rank != judge.batches.rank or not events or not (abs(batch.ts - t) <= DAY if t else math.isfinite(batch.ts)):
            return False
        if self._sampling:
            if not judge.spoken.sample(payload):
                return False
            self._sampling = judge.spoken.sampling
        if t:
            self._dated += 1
        order.follow(seq, payload)
        judge.replay.newest = judge.last_seq = seq
        judge.messages += 1
        judge.bytes += len(payload)
        judge.ended = t
        self.messages += 1
        stores, removals = self.events.see(reader, events, salts, rank or 0, record, seq)
        counts = judge.counts
        if stores:
            counts[BlockStored.tag] += stores
        if removals:
            counts[BlockRemoved.tag] += removals
        if stores + removals < len(events):
            counts[AllBlocksCleared.tag] += len(events) - stores - removals
        return True

    def learn(self, message: Message, batch: EventBatch) -> None:
        """A message went the whole way: what the plain ones are like may have changed."""
        judge = self.judge
        self.forget()
        self._reader = None
        if message.channel == "live":
            self._topic = message.topic if len(message.frames) == 3 and message.topic.isascii() else None
        expected = judge.batches.expected_rank
        dialect = judge.spoken.settled
        if dialect is None or judge.told.hashes or expected not in (None, judge.batches.rank or 0):
            return
        form = self._form(batch.events)
        if form is not None:
            media = frozenset(medium for likely in judge.spoken.likely for medium in likely.media)
            self._reader = plain_reader(dialect, judge.spoken.best or dialect, media, form)
            self._sampling = judge.spoken.sampling

    def _form(self, events: list[Any]) -> Form | None:
        """What hashes and tokens look like: as narrow as what was seen of them, so that whatever is new shows.

        None when that is not clear.
        """
        stored = next((event for event in events if isinstance(event, BlockStored) and event.token_ids), None)
        if stored is not None:
            self._pairs = isinstance(stored.token_ids[0], tuple)
        hashes = [value for event in events if not isinstance(event, AllBlocksCleared) for value in event.block_hashes]
        if hashes:
            self._example = hashes[0]
            self._negative = self._negative or any(isinstance(value, int) and value < 0 for value in hashes)
        if self._example is None or form_of(self._example) != self.judge.events.hash_form:
            return None
        if isinstance(self._example, bytes):
            return Form(digest=len(self._example), pairs=self._pairs)
        seen = self.judge.traits.seen
        highest = None if seen["hash-unsigned"] else _INT63
        if self._negative:
            return Form(highest=highest, pairs=self._pairs)
        return Form(lowest=0 if seen["hash-small"] else _SMALLEST, highest=highest, pairs=self._pairs)

    def forget(self) -> None:
        """Something else changes the state of the stream."""
        self.events.forget()

    def finish(self) -> None:
        """No more comes: tell the tallies what was right."""
        self.events.finish()
        tallies = self.judge.tallies
        for check in _MESSAGE_CHECKS:
            tallies[check].ok(self.messages)
        tallies["ts-plausible"].ok(self._dated)
        if self.judge.batches.expected_rank is not None:
            tallies["dp-rank-matches-port"].ok(self.messages)
