"""From verdicts to the one verdict and exit code of a run."""

from __future__ import annotations

import enum
from collections.abc import Iterable

from kvwire_conform.consumer_model import AnswerVerdict, ConsumerReport
from kvwire_conform.model import CheckResult, Verdict
from kvwire_conform.requirements import requirements


class Exit(enum.IntEnum):
    """Exit codes of every command. The worst wins in the order 5, 3, 2, 1, 4."""

    OK = 0
    FAILURE = 1
    USAGE = 2
    UNREACHABLE = 3
    INCONCLUSIVE = 4
    HARNESS = 5
    INTERRUPTED = 130


_WORST_FIRST = (Exit.HARNESS, Exit.UNREACHABLE, Exit.USAGE, Exit.FAILURE, Exit.INCONCLUSIVE, Exit.OK)

_VERDICTS = {
    Exit.OK: Verdict.PASS,
    Exit.FAILURE: Verdict.FAIL,
    Exit.UNREACHABLE: Verdict.ERROR,
    Exit.INCONCLUSIVE: Verdict.INCONCLUSIVE,
    Exit.HARNESS: Verdict.HARNESS_ERROR,
}


def outcome(
    results: Iterable[CheckResult],
    *,
    reachable: bool = True,
    messages: int,
    events: int,
    required: frozenset[str] = frozenset(),
    warnings_fail: bool = False,
) -> tuple[Verdict, Exit]:
    """The verdict of a run.

    Args:
        reachable: whether every endpoint could be connected to.
        messages: how many batches were seen, live or replayed; none makes the run inconclusive.
        events: how many events were in them; none makes it inconclusive too.
        required: ids of checks that have to have judged something. Those that any traffic can be judged by always have to.
        warnings_fail: whether a warning counts as a failure.
    """
    codes = {Exit.OK}
    if not reachable:
        codes.add(Exit.UNREACHABLE)
    if not messages or not events:
        codes.add(Exit.INCONCLUSIVE)
    rows = requirements()
    for result in results:
        if result.verdict is Verdict.HARNESS_ERROR:
            codes.add(Exit.HARNESS)
        elif result.verdict in (Verdict.FAIL, Verdict.ERROR) or (warnings_fail and result.verdict is Verdict.WARN):
            codes.add(Exit.FAILURE)
        elif result.verdict in (Verdict.INCONCLUSIVE, Verdict.SKIP) and (
            result.id in required or (result.verdict is Verdict.INCONCLUSIVE and not rows[result.id].needs)
        ):
            codes.add(Exit.INCONCLUSIVE)
    return _worst(codes)


def consumer_outcome(report: ConsumerReport) -> tuple[Verdict, Exit]:
    """The verdict of a run against a consumer; of a router as well. An interrupted run exits with 130 whatever it found.

    A payload of a claimed dialect that is not exact and not known, a stale known failure, or a behaviour that is not as it
    must be, is a failure. A run that judged no claimed payload and no behaviour, or that did not judge all, is inconclusive.
    """
    codes = {Exit.OK}
    if report.consumer is None and not report.judgements:
        codes.add(Exit.UNREACHABLE)
    if report.stale or any(
        one.required and not one.known and one.verdict is not AnswerVerdict.EXACT for one in report.judgements
    ):
        codes.add(Exit.FAILURE)
    if report.not_run or not (report.behaviours or any(one.required for one in report.judgements)):
        codes.add(Exit.INCONCLUSIVE)
    for behaviour in report.behaviours:
        if behaviour.verdict is Verdict.HARNESS_ERROR:
            codes.add(Exit.HARNESS)
        elif behaviour.verdict in (Verdict.FAIL, Verdict.ERROR):
            codes.add(Exit.FAILURE)
        elif behaviour.verdict is Verdict.INCONCLUSIVE:
            codes.add(Exit.INCONCLUSIVE)
    verdict, code = _worst(codes)
    return verdict, Exit.INTERRUPTED if report.interrupted else code


def _worst(codes: set[Exit]) -> tuple[Verdict, Exit]:
    worst = next(code for code in _WORST_FIRST if code in codes)
    return _VERDICTS[worst], worst
