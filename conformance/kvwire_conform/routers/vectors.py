"""One golden vector through a router: the whole batch, and event by event where that alone can tell."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from kvwire.events import EventBatch
from kvwire.neutral_json import from_json
from kvwire_conform.answers import Found
from kvwire_conform.consumer_model import AnswerVerdict
from kvwire_conform.golden import Vector
from kvwire_conform.routers.compare import judge_state
from kvwire_conform.routers.errors import RouterError
from kvwire_conform.routers.plan import Plan, plan_of
from kvwire_conform.routers.process import LogLine
from kvwire_conform.routers.run import RouterRun
from kvwire_conform.siblings import alone

__all__ = ["judge_vector"]

_REFUSED = ("Failed to decode", "Gap detected")
"""How Dynamo says that it lost a batch: by itself, and by the hole that the next batch then shows."""
_QUIET = ("INFO", "DEBUG", "TRACE")
_SAID = 3
_GRACE = 1.0
"""Seconds within which a router that does not answer has ended, if it has."""
_NAMED = 3


def judge_vector(run: RouterRun, vector: Vector) -> Found:
    """The verdict on a vector.

    Raises:
        RouterError: the router does not answer any more.
    """
    meaning = vector.good_siblings if vector.kind == "invalid" else vector.meaning
    batch = EventBatch(0.0, []) if meaning is None else from_json(meaning)
    trial = _Trial(run, batch.dp_rank, [] if meaning is None else meaning["events"])
    faulty = vector.kind == "invalid" or bool(vector.skipped)
    plan = plan_of(batch)
    found = trial.judge(plan, vector.payload, faulty=faulty, culprit=_culprit(vector))
    if vector.kind == "invalid" and not batch.events:
        passed = found.verdict in (AnswerVerdict.REJECTED, AnswerVerdict.UNSUPPORTED)
        return Found(verdict=AnswerVerdict.EXACT) if passed else found
    if vector.kind == "invalid" and found.verdict is AnswerVerdict.EXACT:
        return _without_faulty(trial, plan, vector, found)
    singles = _singles(vector, batch)
    if found.verdict is AnswerVerdict.REJECTED and not faulty and len(singles) > 1:
        return _with_siblings(
            found, [trial.alone(batch.events[index], index, singles) for index in range(len(singles))]
        )
    if found.verdict is AnswerVerdict.EXACT and plan.hidden:
        if not singles:
            return Found(verdict=AnswerVerdict.UNSUPPORTED, note="not judged: its events cannot be sent alone")
        for index in plan.hidden:
            one = trial.alone(batch.events[index], index, singles)
            if one.verdict is not AnswerVerdict.EXACT:
                note = f"events[{index}] sent alone{'; ' if one.note else ''}{one.note}"
                return msgspec.structs.replace(one, note=note)
    return found


class _Trial:
    """Attributes:
    run: the router.
    dp_rank: of the batch.
    events: of the batch, in the neutral JSON form.
    """

    def __init__(self, run: RouterRun, dp_rank: int | None, events: Sequence[Mapping[str, Any]]) -> None:
        self.run = run
        self.dp_rank = dp_rank
        self.events = events

    def judge(
        self,
        plan: Plan,
        payload: bytes,
        *,
        faulty: bool = False,
        culprit: str = "",
        events: Sequence[Mapping[str, Any]] | None = None,
    ) -> Found:
        run = self.run
        try:
            outcome = run.site.run(plan, payload, self.dp_rank, run.mark)
        except RouterError as error:
            if not (said := run.crashed(_GRACE)):
                raise
            return Found(verdict=AnswerVerdict.CRASHED, said=said, note=str(error))
        log = run.since(outcome.mark)
        said = _said(log)
        if outcome.after is None:
            if ended := run.crashed():
                return Found(verdict=AnswerVerdict.CRASHED, said=ended)
            note = f"the good batch behind it did not show in {run.patience:g} s"
            return Found(verdict=AnswerVerdict.HUNG, said=said, note=note)
        refused = any(line.message.startswith(_REFUSED) for line in log) if run.has_log else None
        found = judge_state(
            plan,
            outcome.before,
            outcome.after,
            events=self.events if events is None else events,
            faulty=faulty,
            culprit=culprit,
            refused=refused,
        )
        return found if found.verdict is AnswerVerdict.EXACT else msgspec.structs.replace(found, said=said)

    def alone(self, event: Any, index: int, singles: Sequence[bytes]) -> Found:
        """The verdict on one event of the batch, sent as a batch of its own."""
        plan = plan_of(EventBatch(0.0, [event], self.dp_rank))
        found = self.judge(plan, singles[index], events=self.events[index : index + 1])
        places = [
            msgspec.structs.replace(one, where=re.sub(r"^events\[0\]", f"events[{index}]", one.where))
            for one in found.differences
        ]
        note = found.note.replace("events[0]", f"events[{index}]")
        return msgspec.structs.replace(found, differences=tuple(places), note=note)


def _without_faulty(trial: _Trial, plan: Plan, vector: Vector, good: Found) -> Found:
    """The verdict on an invalid batch whose good events were read: was the faulty one refused, or taken behind a clear?"""
    assert vector.error is not None
    index = vector.error.event_index
    if index is None:
        return good
    singles = alone(vector.payload)
    if index >= len(singles):
        return Found(verdict=AnswerVerdict.UNSUPPORTED, note=f"not judged: events[{index}] cannot be sent alone")
    nothing = dataclasses.replace(plan_of(EventBatch(0.0, [], trial.dp_rank)), block_size=plan.block_size)
    one = trial.judge(nothing, singles[index], events=())
    if one.verdict is AnswerVerdict.REJECTED:
        return good
    if one.verdict is AnswerVerdict.UNSUPPORTED:
        return Found(
            verdict=AnswerVerdict.UNSUPPORTED,
            said=one.said,
            note=f"not judged: its good events were read; whether {_culprit(vector)} was taken does not show",
        )
    note = f"{_culprit(vector)} has to be refused, and was taken when sent alone"
    return msgspec.structs.replace(one, note=note if one.verdict is AnswerVerdict.WRONG else one.note)


def _with_siblings(refused: Found, singles: Sequence[Found]) -> Found:
    """The verdict on a valid batch that was refused, from what became of each event alone."""
    read = [index for index, one in enumerate(singles) if one.verdict is not AnswerVerdict.REJECTED]
    if not read:
        return msgspec.structs.replace(refused, note="sent alone, none of its events is read either")
    if len(read) == len(singles):
        note = f"sent alone, each of its {len(singles)} events is read: it is the batch that it refuses"
        return msgspec.structs.replace(refused, note=note)
    culprits = _listed([index for index in range(len(singles)) if index not in read])
    note = f"{culprits} cost {_listed(read)}, which {'is' if len(read) == 1 else 'are'} read when sent alone"
    return msgspec.structs.replace(refused, verdict=AnswerVerdict.SIBLING_LOST, note=note)


def _listed(indices: Sequence[int]) -> str:
    more = f" and {len(indices) - _NAMED} more" if len(indices) > _NAMED else ""
    return ", ".join(f"events[{index}]" for index in indices[:_NAMED]) + more


def _singles(vector: Vector, batch: EventBatch) -> list[bytes]:
    """Each event of the meaning as a batch of its own; empty where bytes and meaning cannot be matched."""
    passed_over = {skipped.event_index for skipped in vector.skipped}
    found = [single for index, single in enumerate(alone(vector.payload)) if index not in passed_over]
    return found if len(found) == len(batch.events) else []


def _culprit(vector: Vector) -> str:
    if vector.error is not None:
        place = vector.error
        where = "the batch" if place.event_index is None else f"events[{place.event_index}]"
        return f"{where} ({place.code})"
    return ", ".join(f"events[{one.event_index}] (tag {one.tag})" for one in vector.skipped[:_NAMED])


def _said(log: Sequence[LogLine]) -> str:
    """What the router complained of, in its own words, each once."""
    lines = dict.fromkeys(line.message for line in log if line.level not in _QUIET)
    return "\n".join(list(lines)[:_SAID])
