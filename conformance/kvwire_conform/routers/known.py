"""Behaviours that are known to fail, in the known-failures file beside the payloads: ``behaviour/<id> wrong``."""

from __future__ import annotations

import msgspec

from kvwire_conform.consumer import Known
from kvwire_conform.consumer_model import AnswerVerdict, Behaviour, ConsumerReport, Judgement
from kvwire_conform.model import Verdict
from kvwire_conform.outcome import Exit, consumer_outcome

__all__ = ["apply_known", "behaviour_id"]

_AS_ANSWER = {Verdict.PASS: AnswerVerdict.EXACT, Verdict.INCONCLUSIVE: AnswerVerdict.UNSUPPORTED}


def behaviour_id(ident: str) -> str:
    """How the file calls a behaviour."""
    return f"behaviour/{ident}"


def apply_known(report: ConsumerReport, known: Known, *, unreachable: bool = False) -> None:
    """Turn the failures of behaviour that are known into warnings, those that are stale into failures, and set the verdict.

    Args:
        unreachable: the router went away, or never came.
    """
    entries = known.read()
    stand_ins = [
        Judgement(
            id=behaviour_id(one.id),
            dialect=None,
            kind="behaviour",
            verdict=_AS_ANSWER.get(one.verdict, AnswerVerdict.WRONG),
        )
        for one in report.behaviours
    ]
    marked: list[Behaviour] = []
    for one, stand_in in zip(report.behaviours, stand_ins, strict=True):
        entry = entries.of(stand_in.id)
        if entry is not None and entry.verdict is stand_in.verdict and one.verdict is Verdict.FAIL:
            one = msgspec.structs.replace(one, verdict=Verdict.WARN, found=f"known: {one.found}")
        elif entry is not None and entry.pattern.startswith("behaviour/"):
            report.stale.append(f"{entry}: it is {one.verdict.value}; change the entry or remove it")
        marked.append(one)
    report.behaviours[:] = marked
    report.verdict, code = consumer_outcome(report)
    report.exit_code = code
    if unreachable and not report.interrupted:
        report.verdict, report.exit_code = Verdict.ERROR, Exit.UNREACHABLE
