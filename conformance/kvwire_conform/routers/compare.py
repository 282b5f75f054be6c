"""What a router held after a payload, against what it had to hold. Pure: states in, a verdict out."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from kvwire_conform.answers import NOTHING, Found
from kvwire_conform.consumer_model import AnswerVerdict, Difference
from kvwire_conform.routers.http import Held
from kvwire_conform.routers.plan import MARKER, Gone, Plan, Want

__all__ = ["judge_state", "without_good_batch"]

_MOST = 16
_TEXT = 200


class _Finding(NamedTuple):
    where: str
    expected: str
    got: str
    lost: bool
    whole: bool = False


def without_good_batch(held: Sequence[Held]) -> list[Held]:
    """A state without what the good batch stored."""
    return [block for block in held if block.block_hash != MARKER]


def judge_state(
    plan: Plan,
    before: Sequence[Held],
    after: Sequence[Held],
    *,
    events: Sequence[Mapping[str, Any]] = (),
    faulty: bool = False,
    culprit: str = "",
    refused: bool | None = None,
) -> Found:
    """The verdict on one payload.

    Args:
        before: the state when everything that had to be there was prepared.
        after: the state after the payload and the good batch, without what that stored.
        events: of the batch in the neutral JSON form, for the words.
        faulty: whether the batch holds something that is to be refused or passed over.
        culprit: that, in words.
        refused: whether the router said that it lost the whole batch; None where it cannot be asked, and a state that
            did not change has to tell.

    A payload that was refused is judged as it stands: which siblings it cost is for who can send them alone. EXACT leaves open
    what `Plan.hidden` names.
    """
    unchanged = Counter(before) == Counter(after)
    if unchanged and (refused or (refused is None and plan.visible)):
        return _refused(plan, faulty, culprit)
    compared = _Comparison(plan, before, after, events)
    found = sorted(compared.findings, key=lambda one: one.lost)
    shown = tuple(Difference(where=one.where, expected=one.expected, got=one.got) for one in found[:_MOST])
    note = f"and {len(found) - _MOST} more differences" if len(found) > _MOST else ""
    if any(not one.lost for one in found):
        return Found(verdict=AnswerVerdict.WRONG, differences=shown, note=note)
    if found and faulty and any(one.whole for one in found):
        return Found(
            verdict=AnswerVerdict.SIBLING_LOST, differences=shown, note=f"{culprit or 'it'} cost good neighbours"
        )
    if compared.below_removed:
        note = "; ".join(filter(None, [note, "with a block that was removed went the blocks below it"]))
    if found:
        return Found(verdict=AnswerVerdict.LOSSY, differences=shown, note=note)
    if compared.passed_over or not (compared.seen or plan.hidden):
        return Found(verdict=AnswerVerdict.UNSUPPORTED, note=_not_judged(plan, compared.seen))
    return Found(verdict=AnswerVerdict.EXACT)


def _refused(plan: Plan, faulty: bool, culprit: str) -> Found:
    if not faulty:
        return Found(verdict=AnswerVerdict.REJECTED)
    verdict = AnswerVerdict.SIBLING_LOST if plan.visible else AnswerVerdict.REJECTED
    return Found(verdict=verdict, note=f"{culprit or 'what is wrong in it'} cost the whole batch")


def _not_judged(plan: Plan, seen: int) -> str:
    reasons = "; ".join(f"events[{index}]: {reason}" for index, reason in plan.unjudged)
    words = f"not judged: {reasons or 'nothing of it shows in the state of the router'}"
    return f"{words} ({seen} of its effects were seen, and right)" if seen else words


class _Comparison:
    """Attributes:
    findings: the differences.
    seen: how many effects of the payload were seen as they should be.
    passed_over: whether an effect is missing that may be.
    below_removed: whether a block is missing whose parent the payload removed.
    """

    def __init__(
        self, plan: Plan, before: Sequence[Held], after: Sequence[Held], events: Sequence[Mapping[str, Any]]
    ) -> None:
        self.findings: list[_Finding] = []
        self.seen = 0
        self.passed_over = False
        self.below_removed = False
        self._plan = plan
        self._before = Counter(before)
        self._left = Counter(after)
        self._events = events
        in_order = sorted(plan.wants, key=lambda want: bool(want.unjudged))
        unmatched = [want for want in in_order if not self._stands(want)]
        undone = [gone for gone in plan.gone if not self._is_gone(gone)]
        kept = {want.twins for want in plan.wants if want not in unmatched}
        missing = [want for want in unmatched if not self._stands_elsewhere(want)]
        missing = [want for want in missing if not want.twins or want.twins not in kept]
        self._tell_missing([want for want in missing if not want.unjudged])
        self._tell_undone([gone for gone in undone if not gone.unjudged])
        self._tell_foreign()

    def _stands(self, want: Want) -> bool:
        held = self._take(self._left, want)
        if held is None:
            if want.event is not None:
                return False
            if self._find(self._before, want) is not None:
                text = f"block {want.block_hash:016x} of DP rank {want.dp_rank}, which nothing took away"
                self.findings.append(_Finding("events", _text(text), NOTHING, lost=False))
            return True
        if want.event is not None:
            found = self._differences(want, held)
            self.findings += found
            self.seen += not found
        return True

    def _is_gone(self, gone: Gone) -> bool:
        held = self._take(self._left, gone)
        if held is None:
            if gone.prepared and self._find(self._before, gone) is not None:
                self.seen += 1
            elif gone.prepared:
                # The router did not keep it in the first place, so its end shows nothing.
                self.passed_over = True
            return True
        self.passed_over |= bool(gone.unjudged)
        return False

    def _stands_elsewhere(self, want: Want) -> bool:
        for held in +self._left:
            if held.block_hash == want.block_hash and held not in self._before:
                self._left[held] -= 1
                self.findings += self._differences(want, held)
                return True
        self.passed_over |= bool(want.unjudged)
        return False

    def _differences(self, want: Want, held: Held) -> list[_Finding]:
        assert want.event is not None
        event = self._event(want.event)
        where = f"events[{want.event}]"
        found: list[_Finding] = []
        if held.dp_rank != want.dp_rank:
            found.append(_Finding("dp_rank", str(want.dp_rank), str(held.dp_rank), lost=False))
        if held.tier not in want.tiers:
            medium = _text(event.get("medium"))
            found.append(_Finding(f"{where}.medium", medium, _text(f"tier {held.tier}"), lost=False))
        if held.parent != want.parent:
            name = "parent_block_hash" if want.block == 0 else f"block_hashes[{want.block}]"
            found.append(_Finding(f"{where}.{name}", _hash(want.parent), _hash(held.parent), lost=held.parent is None))
        if want.readings is not None and held.tokens_hash not in want.readings:
            right = f"tokens hash {next(iter(want.readings)):016x}"
            found.append(
                _Finding(f"{where}.token_ids", _text(right), _text(f"tokens hash {held.tokens_hash:016x}"), lost=False)
            )
        elif want.readings is not None:
            for name in want.readings[held.tokens_hash]:
                value = event.get(name)
                shown = _text("inherited from the parent") if value is None else _text(value)
                found.append(_Finding(f"{where}.{name}", shown, NOTHING, lost=True))
        return found

    def _tell_missing(self, missing: Sequence[Want]) -> None:
        taken = {gone.block_hash for gone in self._plan.gone}
        self.below_removed = any(want.parent in taken for want in missing)
        for index in sorted({want.event for want in missing if want.event is not None}):
            own = [want for want in missing if want.event == index]
            if len(own) == sum(want.event == index for want in self._plan.wants):
                self.findings.append(self._whole(index))
                continue
            for want in own:
                where = f"events[{index}].block_hashes[{want.block}]"
                self.findings.append(_Finding(where, _text(f"{want.block_hash:016x}"), NOTHING, lost=True, whole=True))

    def _tell_undone(self, undone: Sequence[Gone]) -> None:
        for index in sorted({gone.event for gone in undone}):
            own = [gone for gone in undone if gone.event == index]
            if len(own) == sum(gone.event == index for gone in self._plan.gone):
                self.findings.append(self._whole(index))
                continue
            for gone in own:
                where = f"events[{index}].block_hashes[{gone.block}]"
                self.findings.append(
                    _Finding(where, _text(f"{gone.block_hash:016x} taken away"), NOTHING, lost=True, whole=True)
                )

    def _tell_foreign(self) -> None:
        known = {want.block_hash for want in self._plan.wants} | {gone.block_hash for gone in self._plan.gone}
        for held in +self._left:
            if held.block_hash not in known and held not in self._before:
                text = f"block {held.block_hash:016x} in {held.tier}"
                self.findings.append(_Finding("events", NOTHING, _text(text), lost=False, whole=True))

    def _whole(self, index: int) -> _Finding:
        return _Finding(f"events[{index}]", _text(self._event(index)), NOTHING, lost=True, whole=True)

    def _event(self, index: int) -> Mapping[str, Any]:
        return self._events[index] if index < len(self._events) else {}

    def _find(self, state: Counter[Held], about: Want | Gone) -> Held | None:
        for held in +state:
            if (held.dp_rank, held.block_hash) == (about.dp_rank, about.block_hash) and held.tier in about.tiers:
                return held
        return None

    def _take(self, state: Counter[Held], about: Want | Gone) -> Held | None:
        held = self._find(state, about)
        if held is not None:
            state[held] -= 1
        return held


def _hash(value: int | None) -> str:
    return NOTHING if value is None else _text(f"{value:016x}")


def _text(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _TEXT else f"{text[: _TEXT - 1]}…"
