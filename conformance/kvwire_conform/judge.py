"""From captured records to verdicts: one `Judge` for a run, one `SourceJudge` for each publisher.

Pure: records in, results out. Memory is bounded by the blocks that are held and by fixed windows, not by the length of
the stream.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from kvwire._walk import Reading, walk
from kvwire.codec import Decoder
from kvwire.dialects import Dialect, Encoding
from kvwire.errors import WireError
from kvwire.index import Policy
from kvwire_conform import capture_words as words
from kvwire_conform.breaks import Traits
from kvwire_conform.checks.batch import Batches
from kvwire_conform.checks.events import Events
from kvwire_conform.checks.framing import Framing as FramingChecks
from kvwire_conform.checks.framing import split_live
from kvwire_conform.checks.hashes import Hashes, HashSettings
from kvwire_conform.checks.replay import Replay
from kvwire_conform.checks.stream import Stream
from kvwire_conform.checks.tallies import Tallies
from kvwire_conform.messages import Message
from kvwire_conform.model import CheckResult, Source
from kvwire_conform.order import Began, InOrder, Missing, Order, Restarted, Step
from kvwire_conform.plain_messages import PlainMessages
from kvwire_conform.recording import Record
from kvwire_conform.spoken import Spoken, deviations, every_dialect, nearest

MAX_ANALYSED = 200
"""Deviating messages that are analysed in full; the rest are counted by their first fault."""

MAX_WAITING = 10_000
MAX_WAITING_BYTES = 64 << 20
"""Replayed records that wait until it is known whose they are."""

_MALFORMED_OVER = (
    words.REPLAY_MALFORMED_ANSWERED,
    words.REPLAY_MALFORMED_ENDLESS,
    words.REPLAY_MALFORMED_UNANSWERED,
)

_decode = Decoder(on_error="collect").decode


def no_rerun(check: str) -> str:
    """The rerun line of a judge that was not started from a command line: none."""
    return ""


@dataclass(frozen=True)
class Told:
    """What the user told about the subject.

    Attributes:
        dialect: None to find out.
        block_size: tokens per block that every block has to have.
        ranks: DP rank per source, where known.
        replay_expected: whether replies may still fill gaps.
        only: ids of the checks to report; None for all.
        rerun: the command line that reruns one check.
        hashes: the recipe to recompute hashes by; None to leave them.
    """

    dialect: Dialect | None = None
    block_size: int | None = None
    ranks: Mapping[str, int] = field(default_factory=dict)
    replay_expected: bool = False
    only: frozenset[str] | None = None
    rerun: Callable[[str], str] = no_rerun
    hashes: HashSettings | None = None


class SourceJudge:
    """All checks of one publisher."""

    def __init__(self, name: str, told: Told) -> None:
        self.name = name
        self.told = told
        self.tallies = Tallies(name)
        self.spoken = Spoken(told.dialect)
        self.order = Order(told.replay_expected)
        self.framing = FramingChecks(self.tallies)
        self.batches = Batches(self.tallies, told.ranks.get(name))
        self.events = Events(self.tallies)
        self.stream = Stream(self.tallies, told.block_size)
        self.hashes = Hashes(self.tallies, told.hashes)
        self.replay = Replay(self.tallies, self.order)
        self.traits = Traits()
        self.plain = PlainMessages(self)
        self.messages = 0
        self.bytes = 0
        self.counts: Counter[str] = Counter()
        self.first_seq: int | None = None
        self.last_seq: int | None = None
        self.restarts = 0
        self.began: float | None = None
        self.ended = 0.0
        self.analysed = 0

    def live(self, record: Record) -> None:
        """A live message came."""
        if self.plain.see(record):
            return
        self.messages += 1
        self.began = record.t if self.began is None else self.began
        self.ended = record.t
        message = split_live(record.frames, record.t, self.tallies)
        if message is None:
            return
        self.bytes += len(message.payload)
        self.framing.see(message)
        self.traits.frames(record.frames)
        self._read(message)
        if message.seq is None:
            self._deliver(message)
            return
        self.replay.newest = message.seq
        self.first_seq = message.seq if self.first_seq is None else self.first_seq
        self.last_seq = message.seq
        self._judge_repeat(message)
        self._follow(self.order.live(message))

    def _judge_repeat(self, message: Message) -> None:
        assert message.seq is not None
        if self.order.repeats(message):
            seq = message.seq
            self.tallies["seq-step"].violation(
                lambda: message.finding(
                    "each seq once",
                    f"seq {seq} again, with the same payload",
                    "a consumer that does not look at the seq applies the batch twice",
                )
            )

    def replayed(self, record: Record) -> None:
        """A reply of the replay endpoint came."""
        for steps in self.replay.reply(record):
            self._follow(steps)

    def requested(self, record: Record) -> None:
        """A replay was asked for."""
        self._follow(self.replay.request(record))

    def noted(self, record: Record) -> None:
        """The capture says something that no frame can show."""
        word, fields = words.parse(record.text)
        after_malformed = fields.get("kind") == words.Kind.AFTER_MALFORMED
        if word == words.REPLAY_TIMEOUT:
            self.replay.timed_out()
        elif word in _MALFORMED_OVER:
            self.replay.malformed_over()
        elif word in (words.REPLAY_LOST, words.REPLAY_NEVER_CONNECTED):
            self.replay.unreachable(after_malformed)
        elif word == words.CAPTURE_END and fields.get("reason") in ("stopped", "bytes"):
            self.replay.stopped()

    def _read(self, message: Message) -> None:
        message.judged = True
        try:
            batch = _decode(message.payload)
        except WireError as error:
            message.error = error
            self.batches.see(message)
            return
        conforming = self.spoken.see(message.payload, batch)
        if conforming:
            message.reading = Reading(batch.ts, batch.dp_rank, batch.events, [])
            if batch.events:
                self.tallies["dialect-constant"].ok()
        else:
            self._read_deviating(message, conforming)
        self.traits.batch(message.payload, batch)
        self.batches.see(message)
        self.stream.speak(self.spoken.best)
        self.events.see(message, self.spoken.likely)
        self.plain.learn(message, batch)
        for event in batch.events:
            self.counts[event.tag] += 1

    def _read_again(self, message: Message) -> None:
        if message.walked:
            message.reading = walk(message.payload, keep_going=True)
        else:
            batch = _decode(message.payload)
            message.reading = Reading(batch.ts, batch.dp_rank, batch.events, [])

    def _read_deviating(self, message: Message, conforming: bool | None) -> None:
        message.walked = True
        reading = message.reading = walk(message.payload, keep_going=True)
        if conforming is False:
            spoken = ", ".join(d.id for d in self.spoken.candidates)
            other = ", ".join(d.id for d in every_dialect() if not deviations(message.payload, d))
            self.tallies["dialect-constant"].violation(
                lambda: message.finding(
                    spoken,
                    other,
                    "a consumer that settled on the first dialect loses the batch; was the engine upgraded behind one "
                    "endpoint?",
                )
            )
            return
        self.analysed += 1
        if self.analysed <= MAX_ANALYSED or not (reading.faults or reading.extras or reading.skipped):
            closest = self.spoken.best or nearest(message.payload, self.spoken.candidates)
            message.deviations = deviations(message.payload, closest)
        else:
            message.deviations = [*reading.faults, *reading.extras]

    def _follow(self, steps: Iterable[Step]) -> None:
        for step in steps:
            if isinstance(step, InOrder):
                if step.message.reading is None and step.message.error is None:
                    read = self._read_again if step.message.judged else self._read
                    read(step.message)
                self._deliver(step.message)
                if not step.first:
                    self.tallies["seq-step"].ok()
            elif isinstance(step, Began):
                self.stream.began(step.seq)
                if step.seq == 0:
                    self.tallies["seq-restart"].ok()
                else:
                    self.tallies["seq-restart"].undecidable("listening began in the middle of the stream")
            elif isinstance(step, Restarted):
                self._restarted(step)
            elif isinstance(step, Missing):
                self._missing(step)

    def _restarted(self, step: Restarted) -> None:
        self.restarts += 1
        self.stream.restarted(step.message.seq or 0)
        if step.message.seq == 0:
            self.tallies["seq-restart"].ok()
            return
        self.tallies["seq-restart"].note("or its first batches were lost on their way, which looks the same")
        self.tallies["seq-restart"].warning(
            lambda: step.message.finding(
                "seq 0 after a restart",
                f"seq {step.message.seq} after seq {step.before}",
                "a consumer takes it for a late duplicate and drops it, or for a restart of which the beginning was lost",
            )
        )

    def _missing(self, step: Missing) -> None:
        self.stream.missing()
        count = step.last - step.first + 1
        which = f"seq {step.first}" if count == 1 else f"seq {step.first} to {step.last}"
        hint = "the publisher dropped them (its queue or high-water mark), or this listener was too slow"
        if self.told.replay_expected:
            hint += "; the replay no longer had them"
        else:
            hint += "; a replay endpoint would tell, give --replay"
        self.tallies["seq-step"].violation(
            lambda: step.before.finding(f"seq {step.first}", f"{which} missing, {count} in all", hint)
        )

    def _deliver(self, message: Message) -> None:
        self.plain.forget()
        self.stream.see(message)
        self.hashes.see(message)

    def finish(self) -> tuple[Source, list[CheckResult]]:
        """No more comes: the verdicts of this publisher."""
        self.plain.finish()
        self._follow(self.replay.finish(frozenset(d.framing for d in self.spoken.candidates_for_framing)))
        self._follow(self.order.finish())
        self.hashes.finish()
        self.spoken.framings |= self.replay.framings
        likely = self.spoken.likely
        topic = self.framing.topic
        source = Source(
            name=self.name,
            dialect=likely[0].id if likely else None,
            candidates=[d.id for d in likely],
            releases=_releases(likely),
            messages=self.messages,
            payload_bytes=self.bytes,
            events=dict(sorted(self.counts.items())),
            first_seq=self.first_seq,
            last_seq=self.last_seq,
            lost=self.order.lost,
            replayed=self.replay.replayed,
            restarts=self.restarts,
            topic=None if topic is None else topic.decode(errors="backslashreplace"),
            dp_rank=self.batches.rank,
            block_sizes={str(size): count for size, count in sorted(self.stream.sizes.items())},
            media=dict(sorted(self.stream.stored_in.items())),
            held=self.stream.index.per_medium(),
            policy=self.stream.index.policy.value,
            ambiguous=self._ambiguous(),
            span=max(0.0, self.ended - (self.began or 0.0)),
        )
        return source, self.tallies.results(self.told.only, self.told.rerun)

    def breaks(self) -> list[str]:
        """What in this stream breaks which consumer."""
        dialect = self.spoken.best
        return self.traits.told(
            maps=None if dialect is None else dialect.encoding is Encoding.MAP,
            dialect=dialect.id if dialect else None,
            restarts=self.restarts,
            framings=self.replay.framings,
        )

    def _ambiguous(self) -> list[str]:
        again = self.stream.reannounced
        if not again:
            return []
        stored = (
            "1 block was stored while it was held" if again == 1 else f"{again} blocks were stored while they were held"
        )
        if self.stream.index.policy is Policy.COUNT:
            return [
                f"{stored}; counted as further copies, each needs its own removal. "
                "The wire cannot tell a copy from a second announcement"
            ]
        return [
            f"{stored}; taken for second announcements, the first removal ends "
            "them. The wire cannot tell a second announcement from a copy"
        ]


def _releases(dialects: tuple[Dialect, ...]) -> str:
    return "; ".join(dict.fromkeys(d.emitters for d in dialects if d.emitters))


class Judge:
    """A run over one or more publishers.

    Args:
        told: what the user told.
        single: name of the only source, for records that name none.
        known: names of the sources that are listened to, of which replies may come before any live message.
    """

    def __init__(self, told: Told, single: str, known: frozenset[str] = frozenset()) -> None:
        self.told = told
        self.single = single
        self.known = known
        self.sources: dict[str, SourceJudge] = {}
        self._replay_of: dict[str, str] = {}
        self._unplaced: dict[str, list[Record]] = {}
        self._waiting = 0
        self._waiting_bytes = 0

    def feed(self, record: Record) -> None:
        """Take the next record."""
        if record.channel == "live":
            source = self.sources.get(record.source or self.single) or self._live_source(record.source)
            source.live(record)
        elif record.channel in ("replay", "replay-request"):
            self._replay(record)
        elif record.channel == "note" and (record.source in self.sources or len(self.sources) == 1):
            noted = self.sources.get(record.source) or next(iter(self.sources.values()))
            noted.noted(record)

    def _live_source(self, endpoint: str) -> SourceJudge:
        name = endpoint or self.single
        if name not in self.sources:
            self.sources[name] = SourceJudge(name, self.told)
        return self.sources[name]

    def _replay(self, record: Record) -> None:
        name = self._placed(record)
        if name is None:
            size = sum(map(len, record.frames))
            if self._waiting < MAX_WAITING and self._waiting_bytes + size <= MAX_WAITING_BYTES:
                self._waiting += 1
                self._waiting_bytes += size
                self._unplaced.setdefault(record.source, []).append(record)
            return
        for waiting_record in self._unplaced.pop(record.source, ()):
            self._waiting -= 1
            self._waiting_bytes -= sum(map(len, waiting_record.frames))
            self._give(self.sources[name], waiting_record)
        self._give(self.sources[name], record)

    def _give(self, source: SourceJudge, record: Record) -> None:
        if record.channel == "replay":
            source.replayed(record)
        else:
            source.requested(record)

    def _placed(self, record: Record) -> str | None:
        """The publisher that a replay endpoint belongs to: the one of its name, the only one, or the one of its bytes."""
        if record.source in self.sources:
            return record.source
        if record.source in self.known:
            return self._live_source(record.source).name
        if record.source in self._replay_of:
            return self._replay_of[record.source]
        if not record.source or (len(self.sources) == 1 and next(iter(self.sources)) == self.single):
            return self._live_source("").name
        if record.channel == "replay" and len(record.frames) >= 3 and record.frames[-1]:
            seq = int.from_bytes(record.frames[-2], "big")
            for name, source in self.sources.items():
                if source.order.has(seq, record.frames[-1]):
                    self._replay_of[record.source] = name
                    return name
        return None

    def finish(self) -> tuple[list[Source], list[CheckResult], list[SourceJudge]]:
        """The verdicts of all publishers, in the order in which they were first heard."""
        sources, results = [], []
        for judge in self.sources.values():
            source, found = judge.finish()
            sources.append(source)
            results.extend(found)
        return sources, results, list(self.sources.values())
