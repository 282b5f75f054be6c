"""`kvwire-conform consumer`: ask a consumer payload after payload, and judge what it reads.

::

    report = judge(["node", "testee.mjs"], selection=Selection(only=("slot8/*",)), jobs=2)
    report.exit_code, report.judgements

`judge_local` does the same with a function of this process in place of a testee.
"""

from __future__ import annotations

import difflib
import fnmatch
import os
import shlex
import time
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path

from kvwire import __version__
from kvwire.dialects import DIALECTS, get_dialect
from kvwire.errors import UsageError
from kvwire_conform import known_failures
from kvwire_conform.answers import Expectation, Found, expectation_of, judge_answer
from kvwire_conform.consumer_generated import BATCHES, generated
from kvwire_conform.consumer_model import AnswerVerdict, Consumer, ConsumerReport, Judgement
from kvwire_conform.golden import list_vectors, load, manifest_of
from kvwire_conform.known_failures import KnownFailures
from kvwire_conform.outcome import consumer_outcome
from kvwire_conform.siblings import Ask, judge_refusal
from kvwire_conform.testee import Breakdown, Limits, NeverStartedError, Testee
from kvwire_conform.testee_lines import Answer, Request

__all__ = ["Case", "Known", "Progress", "Selection", "cases_of", "conclude", "judge", "judge_case", "judge_local"]

TOOL = f"kvwire-conform {__version__}"

Progress = Callable[[int, int, int], None]
"""Called now and then with how many payloads are judged, how many there are, and how many are not exact."""


@dataclass(frozen=True)
class Selection:
    """Which payloads to ask.

    Attributes:
        only: ids, or globs over ids; a word that is no id is looked for anywhere in the ids. Empty for all.
        kind: ``valid``, ``tolerated`` or ``invalid``; None for all. Generated payloads are valid.
        dialects: ids, aliases or releases; ``any`` for the vectors of no dialect. Empty for all.
        suite: only vectors up to this golden suite.
        seed: also judge payloads that a simulated engine makes of this seed, in each dialect that is claimed.
        batches: how many of a dialect.
    """

    only: tuple[str, ...] = ()
    kind: str | None = None
    dialects: tuple[str, ...] = ()
    suite: int | None = None
    seed: int | None = None
    batches: int = BATCHES


@dataclass(frozen=True)
class Known:
    """Known-failures files.

    Attributes:
        files: to be read.
        write: to be brought up to date with what the run finds, and then held against it; made if there is none.
    """

    files: tuple[Path, ...] = ()
    write: Path | None = None

    def read(self) -> KnownFailures:
        """What the files say. Raises KnownFailuresError."""
        paths = list(dict.fromkeys(self.files))
        if self.write is not None and self.write not in paths and self.write.exists():
            paths.append(self.write)
        return known_failures.read(paths)


@dataclass(frozen=True)
class Case:
    """One payload and the right answer to it.

    Attributes:
        id: of the golden vector, or ``seed-<n>/<dialect>/<batch>``.
        dialect: None for the vectors of no dialect.
        kind: ``valid``, ``tolerated`` or ``invalid``.
    """

    id: str
    dialect: str | None
    kind: str
    request: Request
    expected: Expectation


@dataclass
class Cases:
    """What a run judges, and what it leaves out that another run would judge."""

    chosen: list[Case] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)


def cases_of(consumer: Consumer, selection: Selection | None = None) -> Cases:
    """The payloads that a consumer is asked: those that its reading can be judged by, in the manifest's order, generated
    ones last. A strict one is not asked those of no dialect.

    Raises:
        UsageError: the selection matches nothing, or names what there is not.
    """
    selection = selection or Selection()
    dialects = {name if name == "any" else get_dialect(name).id for name in selection.dialects}
    newest = manifest_of().suite
    if selection.suite is not None and not 1 <= selection.suite <= newest:
        raise UsageError(f"there is no golden suite {selection.suite}; the newest is {newest}")
    found = Cases()
    ids = {row.id for row in list_vectors()}
    told = consumer.reading != "any"

    def wanted(ident: str, dialect: str | None, kind: str) -> bool:
        return (
            (not selection.only or any(_matches(ident, pattern, ids) for pattern in selection.only))
            and (selection.kind is None or kind == selection.kind)
            and (not dialects or (dialect or "any") in dialects)
        )

    for index, row in enumerate(list_vectors()):
        if not wanted(row.id, row.dialect, row.kind) or row.suite > (selection.suite or newest):
            found.left_out.append(row.id)
            continue
        if row.dialect is None and consumer.reading == "strict":
            continue
        vector = load(row.id)
        if not _is_read(vector.reading, consumer.reading):
            continue
        request = Request(payload=vector.payload, seq=index, dialect=row.dialect if told else None)
        found.chosen.append(Case(row.id, row.dialect, row.kind, request, expectation_of(vector, consumer.reading)))
    if selection.seed is not None:
        for dialect in consumer.dialects:
            for ident, seq, payload, meaning in generated(dialect, selection.seed, selection.batches):
                if not wanted(ident, dialect, "valid"):
                    found.left_out.append(ident)
                    continue
                request = Request(payload=payload, seq=seq, dialect=dialect if told else None)
                found.chosen.append(Case(ident, dialect, "valid", request, Expectation(meaning=meaning)))
    if not found.chosen:
        near = difflib.get_close_matches(" ".join(selection.only), found.left_out, n=3)
        meant = f"; near it are {', '.join(near)}" if near else ""
        raise UsageError(f"no payload is left to judge: no vector matches the selection{meant}")
    return found


def judge(
    command: Sequence[str],
    *,
    selection: Selection | None = None,
    known: Known | None = None,
    limits: Limits | None = None,
    jobs: int = 1,
    cwd: str | os.PathLike[str] | None = None,
    env: Mapping[str, str] | None = None,
    progress: Progress | None = None,
    rerun: str | None = None,
) -> ConsumerReport:
    """Run a testee and judge it. Ctrl-C gives the report of what was judged so far.

    Args:
        command: program and arguments of the testee; no shell is involved.
        jobs: so many processes of the testee at once. What is judged does not depend on it, unless the testee is given up.
        rerun: what the report says of how to judge one payload again, with ``ID`` for its id; this command by default.

    Raises:
        UsageError: a selection that matches nothing, or known-failures files that cannot be used.
    """
    from kvwire_conform.consumer_run import run_testee

    known, selection = known or Known(), selection or Selection()
    known.read()
    report = _new_report(list(command), selection)
    report.rerun = _rerun(command, selection) if rerun is None else rerun
    began = time.monotonic()
    testee = Testee(command, limits, cwd=cwd, env=env)
    try:
        report.consumer = testee.start()
        cases = cases_of(report.consumer, selection)
        _check_entries(known, cases.chosen)
        run = run_testee(testee, cases.chosen, jobs=jobs, progress=progress)
    except NeverStartedError as error:
        report.advice = [error.problem, *(f"its stderr: {line}" for line in error.stderr.splitlines())]
        cases, run = Cases(), None
    except KeyboardInterrupt:
        report.interrupted = True
        cases, run = Cases(), None
    finally:
        testee.kill()
    if run is not None and report.consumer is not None:
        report.interrupted = run.interrupted
        report.judgements = [
            _judgement(report.consumer, case, found)
            for case, found in zip(cases.chosen, run.found, strict=True)
            if found is not None
        ]
        report.not_run = [case.id for case, found in zip(cases.chosen, run.found, strict=True) if found is None]
        report.advice = [*_advice(report), *run.left, *run.untold]
    report.seconds = round(time.monotonic() - began, 3)
    conclude(report, known, left_out=cases.left_out)
    return report


def judge_local(
    consumer: Consumer, ask: Ask, *, selection: Selection | None = None, known: Known | None = None
) -> ConsumerReport:
    """Judge a function of this process: ``ask`` gets a `Request` and gives an `Answer`. What it raises is not caught.

    Raises:
        UsageError: as `judge`.
    """
    known, selection = known or Known(), selection or Selection()
    report = _new_report([consumer.name], selection)
    report.consumer = consumer
    began = time.monotonic()
    cases = cases_of(consumer, selection)
    _check_entries(known, cases.chosen)
    report.judgements = [_judgement(consumer, case, judge_case(case, ask)) for case in cases.chosen]
    report.advice = _advice(report)
    report.seconds = round(time.monotonic() - began, 3)
    conclude(report, known, left_out=cases.left_out)
    return report


def judge_case(case: Case, ask: Ask) -> Found:
    """The verdict on one payload; a batch that is refused is asked again, event by event."""
    reply = ask(case.request)
    return breakdown_found(reply) if isinstance(reply, Breakdown) else judge_reply(case, reply, ask)


def judge_reply(case: Case, reply: Answer, ask: Ask) -> Found:
    """As `judge_case`, where the payload was asked already."""
    found = judge_answer(case.expected, reply)
    if found.verdict is AnswerVerdict.REJECTED:
        return judge_refusal(case.expected, case.request, reply, ask)
    return found


def breakdown_found(broken: Breakdown) -> Found:
    """The verdict on a payload that got no usable answer."""
    return Found(verdict=broken.verdict, said=broken.said)


def conclude(report: ConsumerReport, known: Known | None = None, *, left_out: Iterable[str] = ()) -> None:
    """Hold a report against the known failures (bringing their file up to date, where that is wanted), and set its verdict
    and exit code. For a router's report as well.

    Args:
        left_out: ids of payloads that this run did not judge and another would.

    Raises:
        KnownFailuresError: a file that cannot be used.
    """
    if known is not None and (known.files or known.write):
        others = [*left_out, *report.not_run]

        def apply() -> list[known_failures.Entry]:
            report.judgements, report.stale, gone = entries.apply(
                report.judgements, others, generated=report.seed is not None and not left_out
            )
            return gone

        entries = known.read()
        if report.consumer is not None:
            gone = apply()
            if known.write is not None and not report.interrupted:
                known_failures.write(known.write, report.judgements, gone)
                entries = known.read()
                apply()
    report.verdict, report.exit_code = consumer_outcome(report)


def _new_report(subject: list[str], selection: Selection) -> ConsumerReport:
    return ConsumerReport(
        tool=TOOL,
        mode="consumer",
        subject=subject,
        suite=selection.suite or manifest_of().suite,
        seed=selection.seed,
        started=time.time(),
    )


def _rerun(command: Sequence[str], selection: Selection) -> str:
    seed = "" if selection.seed is None else f" --seed {selection.seed}"
    if seed and selection.batches != BATCHES:
        seed += f" --batches {selection.batches}"
    return f"kvwire-conform consumer{seed} --only ID -v -- {shlex.join(command)}"


def _judgement(consumer: Consumer, case: Case, found: Found) -> Judgement:
    return Judgement(
        id=case.id,
        dialect=case.dialect,
        kind=case.kind,
        verdict=found.verdict,
        required=case.dialect in consumer.dialects,
        differences=found.differences,
        said=found.said,
        note=found.note,
    )


def _check_entries(known: Known, cases: Sequence[Case]) -> None:
    entries = known.read()
    for case in cases:
        entries.of(case.id)


def _advice(report: ConsumerReport) -> list[str]:
    assert report.consumer is not None
    if not report.consumer.dialects:
        return [
            "it claims no dialect, so nothing is required of it: name those that it is meant to read in its hello "
            f"(there are {', '.join(DIALECTS)})"
        ]
    if not any(one.required for one in report.judgements):
        return ["nothing of what it claims was judged"]
    return []


def _is_read(needed: str, reading: str) -> bool:
    """Whether a vector that needs a reading can be judged by a consumer of another."""
    return needed == "any" or needed == reading or reading == "strict"


def _matches(ident: str, pattern: str, ids: Set[str]) -> bool:
    if set(pattern) & set("*?["):
        return fnmatch.fnmatchcase(ident, pattern)
    return ident == pattern if pattern in ids or pattern.startswith("seed-") else pattern in ident
