"""`kvwire-conform producer`: listen to publishers, or read recordings, and judge them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from kvwire import __version__
from kvwire.dialects import Dialect
from kvwire_conform.checks.hashes import HashSettings
from kvwire_conform.judge import Judge, SourceJudge, Told, no_rerun
from kvwire_conform.model import CheckResult, Report, Source, Verdict
from kvwire_conform.outcome import Exit, outcome
from kvwire_conform.recording import Record, has_replay, read_recording

TOOL = f"kvwire-conform {__version__}"


@dataclass(frozen=True)
class Options:
    """What the user asked for, live or recorded.

    Attributes:
        subject: the subject as given on the command line, for the report.
        dialect: None to find out.
        block_size: tokens per block that every block has to have.
        ranks: DP rank per endpoint, where known.
        only: ids of the checks to report; None for all.
        required: ids of checks that have to have judged something.
        warnings_fail: whether a warning counts as a failure.
        rerun: the command line that reruns one check.
        hashes: the recipe to recompute hashes by; None to leave them.
    """

    subject: list[str]
    dialect: Dialect | None = None
    block_size: int | None = None
    ranks: Mapping[str, int] = field(default_factory=dict)
    only: frozenset[str] | None = None
    required: frozenset[str] = frozenset()
    warnings_fail: bool = False
    rerun: Callable[[str], str] = no_rerun
    hashes: HashSettings | None = None

    def with_found(self, *, block_size: int | None, ranks: Mapping[str, int]) -> Options:
        """These options, with what a discovery told; what the user told goes first."""
        return replace(self, block_size=self.block_size or block_size, ranks={**ranks, **self.ranks})

    def told(self, *, replay_expected: bool) -> Told:
        """The part that the judge needs."""
        return Told(
            dialect=self.dialect,
            block_size=self.block_size,
            ranks=self.ranks,
            replay_expected=replay_expected,
            only=self.only,
            rerun=self.rerun,
            hashes=self.hashes,
        )


@dataclass
class Progress:
    """How far a run is; handed to a callback now and then."""

    messages: int = 0
    events: int = 0
    payload_bytes: int = 0
    sources: int = 0
    last_seq: int | None = None


def faulty_events(results: list[CheckResult]) -> int:
    """Events that could not be read, which are no events of a source."""
    return sum(result.violations for result in results if result.id in ("event-shape", "event-tag-known"))


class Run:
    """A run: records in, a report out."""

    def __init__(
        self, options: Options, *, single: str, replay_expected: bool, known: frozenset[str] = frozenset()
    ) -> None:
        self.options = options
        self.judge = Judge(options.told(replay_expected=replay_expected), single, known)
        self.started = time.time()

    def feed(self, record: Record) -> None:
        """Judge the next record."""
        self.judge.feed(record)

    def progress(self) -> Progress:
        """How far it is."""
        judges = self.judge.sources.values()
        return Progress(
            messages=sum(j.messages for j in judges),
            events=sum(sum(j.counts.values()) for j in judges),
            payload_bytes=sum(j.bytes for j in judges),
            sources=len(self.judge.sources),
            last_seq=max((j.last_seq for j in judges if j.last_seq is not None), default=None),
        )

    def finish(self) -> tuple[list[Source], list[CheckResult], list[SourceJudge]]:
        """No more records: the verdicts."""
        return self.judge.finish()

    def report(self, *, advice: list[str] | None = None, reachable: bool = True, interrupted: bool = False) -> Report:
        """The report of what was seen so far; the run is over then."""
        sources, results, judges = self.finish()
        breaks: dict[str, None] = {}
        for source in judges:
            breaks.update(dict.fromkeys(source.breaks()))
        verdict, code = outcome(
            results,
            reachable=reachable,
            messages=sum(source.messages + source.replayed for source in sources),
            events=sum(sum(source.events.values()) for source in sources) + faulty_events(results),
            required=self.options.required,
            warnings_fail=self.options.warnings_fail,
        )
        return Report(
            tool=TOOL,
            mode="producer",
            subject=self.options.subject,
            started=self.started,
            seconds=round(time.time() - self.started, 3),
            sources=sources,
            results=results,
            breaks=list(breaks),
            advice=advice or [],
            interrupted=interrupted,
            verdict=verdict,
            exit_code=int(Exit.INTERRUPTED if interrupted else code),
        )


def judge_recordings(
    paths: Iterable[Path], options: Options, *, on_progress: Callable[[Progress], None] | None = None
) -> Report:
    """Judge recorded frames, each file a run of its own; one report.

    Raises:
        RecordingError: a file cannot be read.
    """
    reports = []
    for path in paths:
        run = Run(options, single=path.name, replay_expected=has_replay(path))
        interrupted = False
        try:
            for number, record in enumerate(read_recording(path)):
                run.feed(record)
                if on_progress is not None and number % 1000 == 0:
                    on_progress(run.progress())
        except KeyboardInterrupt:
            interrupted = True
        reports.append(run.report(advice=_silence(run, path), interrupted=interrupted))
        if interrupted:
            break
    return reports[0] if len(reports) == 1 else merged(reports)


def _silence(run: Run, path: Path) -> list[str]:
    if run.progress().messages:
        return []
    if run.judge.sources:
        return [f"{path.name} holds replayed batches alone: frames and seq of live messages could not be judged"]
    return [f"{path.name} holds no message: nothing could be judged"]


_WORST = (Exit.INTERRUPTED, Exit.HARNESS, Exit.UNREACHABLE, Exit.USAGE, Exit.FAILURE, Exit.INCONCLUSIVE, Exit.OK)


def merged(reports: list[Report]) -> Report:
    """Several reports as one: the worst verdict wins."""
    codes = {report.exit_code for report in reports}
    worst = next((code for code in _WORST if code in codes), Exit.INCONCLUSIVE)
    verdict = next((r.verdict for r in reports if r.exit_code == worst), Verdict.INCONCLUSIVE)
    return Report(
        tool=TOOL,
        mode="producer",
        subject=[name for report in reports for name in report.subject][: len(reports[0].subject)] if reports else [],
        started=min((r.started for r in reports), default=0.0),
        seconds=round(sum(r.seconds for r in reports), 3),
        sources=[source for r in reports for source in r.sources],
        results=[result for r in reports for result in r.results],
        breaks=list(dict.fromkeys(text for r in reports for text in r.breaks)),
        advice=list(dict.fromkeys(text for r in reports for text in r.advice)),
        interrupted=any(r.interrupted for r in reports),
        verdict=verdict,
        exit_code=int(worst),
    )
