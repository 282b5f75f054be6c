"""One answer held against what the payload means (spec/conformance.md#verdicts). Pure: no process, no files.

::

    expected = expectation_of(golden.load("slot8/salt"), reading="any")
    found = judge_answer(expected, Answer(events=[...]))
    found.verdict, found.differences
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import msgspec

from kvwire.errors import InvalidEventError
from kvwire.events import AllBlocksCleared, BlockRemoved, BlockStored
from kvwire.neutral_json import event_from_json, event_to_json
from kvwire_conform.consumer_model import AnswerVerdict, Difference
from kvwire_conform.golden import Vector
from kvwire_conform.testee_lines import Answer

__all__ = ["NOTHING", "Expectation", "Found", "expectation_of", "judge_answer"]

NOTHING = "nothing"
"""How a value that is absent stands in a `Difference`."""
MOST_DIFFERENCES = 16
_TEXT = 200
_SCATTERED = 4
"""In so many places may two lists of one length differ before the whole lists are shown instead."""

_FIELDS: Mapping[str, tuple[str, ...]] = {
    kind.tag: kind.__struct_fields__ for kind in (BlockStored, BlockRemoved, AllBlocksCleared)
}
_ALL_FIELDS = frozenset(name for names in _FIELDS.values() for name in names)


class Expectation(msgspec.Struct, frozen=True, kw_only=True):
    """What is a right answer to one payload.

    Attributes:
        meaning: the batch in the neutral JSON form that an answer of events has to be: the vector's meaning, or the good
            siblings of an invalid one. None: no answer of events is right.
        refusal: whether an error is a right answer.
        faulty: whether the batch holds something that is to be refused or passed over, so that what is missing beside it is
            a lost sibling.
        culprit: that, in words; empty when nothing is faulty.
        at: index of the event that it is, where it is one.
    """

    meaning: Mapping[str, Any] | None
    refusal: bool = False
    faulty: bool = False
    culprit: str = ""
    at: int | None = None


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """A verdict and what it rests on; the fields are those of `Judgement`."""

    verdict: AnswerVerdict
    differences: tuple[Difference, ...] = ()
    said: str = ""
    note: str = ""


def expectation_of(vector: Vector, reading: Literal["any", "told", "strict"] | str = "any") -> Expectation:
    """What a consumer of this reading has to answer to a vector. A strict one may refuse a whole batch over one event."""
    strict = reading == "strict"
    culprit, at = _culprit(vector)
    if vector.kind == "invalid":
        siblings = vector.good_siblings
        alone = siblings is None or not siblings["events"]
        return Expectation(meaning=siblings, refusal=strict or alone, faulty=True, culprit=culprit, at=at)
    if strict and not vector.strict:
        return Expectation(
            meaning=None, refusal=True, faulty=True, culprit=culprit or "what is not of the dialect", at=at
        )
    return Expectation(meaning=vector.meaning, faulty=bool(vector.skipped), culprit=culprit, at=at)


def judge_answer(expected: Expectation, answer: Answer) -> Found:
    """The verdict on one answer. A refusal is judged as it stands: which siblings it cost is for who can ask again."""
    if answer.unsupported is not None:
        return Found(verdict=AnswerVerdict.UNSUPPORTED, said=answer.unsupported)
    if answer.events is None:
        verdict = AnswerVerdict.EXACT if expected.refusal else AnswerVerdict.REJECTED
        return Found(verdict=verdict, said=answer.error or "")
    try:
        events = [_neutral(event, f"events[{index}]") for index, event in enumerate(answer.events)]
        batch = _neutral_batch(answer)
    except InvalidEventError as error:
        return Found(verdict=AnswerVerdict.GARBLED, said=f"not of the neutral form: {error}")
    if expected.meaning is None:
        return Found(
            verdict=AnswerVerdict.WRONG,
            differences=(Difference(where="events", expected="a refusal", got=_text(answer.events)),),
            note=_taken(expected),
        )
    return _compared(expected, events, batch)


def _compared(expected: Expectation, events: list[dict[str, Any]], batch: dict[str, Any]) -> Found:
    meaning = expected.meaning
    assert meaning is not None
    found: list[_Difference] = []
    if "ts" in batch:
        found += _differ(_seconds(meaning["ts"]), batch["ts"], "ts")
    if "dp_rank" in batch:
        # batch.md#dp-rank: a consumer takes nil for 0.
        nil = meaning["dp_rank"] is None and batch["dp_rank"] == 0
        found += [] if nil else _differ(meaning["dp_rank"], batch["dp_rank"], "dp_rank")
    wanted = [_neutral(event, f"events[{index}]") for index, event in enumerate(meaning["events"])]
    for at, to in _aligned(wanted, events):
        if at is None:
            assert to is not None
            found.append(_Difference(f"events[{to}]", None, events[to], lost=False, whole=True))
        elif to is None:
            found.append(_Difference(f"events[{at}]", wanted[at], None, lost=True, whole=True))
        else:
            found += _event_differences(wanted[at], events[to], f"events[{at}]")
    if not found:
        return Found(verdict=AnswerVerdict.EXACT)
    note = ""
    if any(not one.lost for one in found):
        verdict = AnswerVerdict.WRONG
        if expected.faulty and any(one.whole and not one.lost for one in found):
            note = _taken(expected)
    elif expected.faulty and any(one.whole for one in found):
        verdict = AnswerVerdict.SIBLING_LOST
        note = f"{expected.culprit} cost good neighbours" if expected.culprit else ""
    else:
        verdict = AnswerVerdict.LOSSY
    shown = sorted(found, key=lambda one: one.lost)[:MOST_DIFFERENCES]
    if len(shown) < len(found):
        note = f"{note}{'; ' if note else ''}and {len(found) - len(shown)} more differences"
    return Found(verdict=verdict, differences=tuple(one.told() for one in shown), note=note)


class _Difference(msgspec.Struct, frozen=True):
    where: str
    expected: Any
    got: Any
    lost: bool
    whole: bool = False

    def told(self) -> Difference:
        return Difference(where=self.where, expected=_text(self.expected), got=_text(self.got))


def _culprit(vector: Vector) -> tuple[str, int | None]:
    """What in the vector is to be refused or passed over, in words, and the index of the event where it is one."""
    if vector.skipped:
        event = vector.skipped[0]
        return f"events[{event.event_index}] (tag {event.tag!r:.40})", event.event_index
    place = vector.error or (vector.extras[0] if vector.extras else None)
    if place is None:
        return "", None
    where = "the batch" if place.event_index is None else f"events[{place.event_index}]"
    return f"{where} ({place.code})", place.event_index


def _taken(expected: Expectation) -> str:
    return f"it took what must be refused: {expected.culprit}" if expected.culprit else "it took what must be refused"


def _neutral(event: Any, path: str) -> dict[str, Any]:
    """An event with its values in one spelling each; keys that are no neutral fields are gone. Raises InvalidEventError."""
    names = _FIELDS.get(event["type"]) if isinstance(event, Mapping) and isinstance(event.get("type"), str) else None
    if names is None:
        event_from_json(event, path=path)
        raise InvalidEventError(f"{path}: is no neutral event")
    own = {name: event[name] for name in ("type", *names) if event.get(name) is not None}
    found = event_to_json(event_from_json(own, path=path), path)
    if found.get("cache_salt") == "":
        del found["cache_salt"]
    if "extra_keys" in found:
        found["extra_keys"] = _sorted_maps(found["extra_keys"])
    # A field that this tag does not have stays as it is: nothing can be right about it.
    foreign = {name: event[name] for name in _ALL_FIELDS - set(names) if event.get(name) is not None}
    return {**found, **dict(sorted(foreign.items()))}


def _sorted_maps(value: Any) -> Any:
    if isinstance(value, list):
        return [_sorted_maps(item) for item in value]
    if isinstance(value, dict) and "map" in value:
        return {"map": sorted(([_sorted_maps(part) for part in pair] for pair in value["map"]), key=_text_of)}
    return value


def _neutral_batch(answer: Answer) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if answer.ts is not msgspec.UNSET:
        found["ts"] = _seconds(answer.ts)
    if answer.dp_rank is not msgspec.UNSET:
        found["dp_rank"] = None if answer.dp_rank is None else _rank(answer.dp_rank)
    return found


def _rank(rank: Any) -> Any:
    """A DP rank, written as any integer of an event is."""
    try:
        event = event_from_json({"type": "BlockRemoved", "block_hashes": [], "group_idx": rank})
    except InvalidEventError:
        raise InvalidEventError(f"dp_rank: expected an integer of 64 bits, or null, got {_text(rank)}") from None
    return event_to_json(event)["group_idx"]


def _seconds(ts: Any) -> float | None:
    """A timestamp as a float; JSON writers differ on ``1.0`` and ``1``."""
    try:
        if ts is None or (isinstance(ts, int | float) and not isinstance(ts, bool) and math.isfinite(ts)):
            return None if ts is None else float(ts)
    except OverflowError:
        pass
    raise InvalidEventError(f"ts: expected seconds, a finite number, or null, got {_text(ts)}")


def _event_differences(wanted: Mapping[str, Any], got: Mapping[str, Any], path: str) -> list[_Difference]:
    found: list[_Difference] = []
    if _same(wanted, got):
        return found
    for name in (*wanted, *(name for name in got if name not in wanted)):
        # events.md#medium: nil counts as GPU, in an event that has a medium.
        has_medium = wanted.get("type") in ("BlockStored", "BlockRemoved")
        if not (name == "medium" and has_medium and name not in wanted and got[name] == "GPU"):
            found += _differ(wanted.get(name), got.get(name), f"{path}.{name}")
    return found


def _differ(wanted: Any, got: Any, path: str) -> Iterator[_Difference]:
    if _same(wanted, got):
        return
    if isinstance(wanted, list) and isinstance(got, list) and len(wanted) == len(got):
        places = [index for index, (a, b) in enumerate(zip(wanted, got, strict=True)) if not _same(a, b)]
        inner = [one for index in places for one in _differ(wanted[index], got[index], f"{path}[{index}]")]
        if len(inner) <= _SCATTERED or all(one.lost for one in inner):
            yield from inner
        else:
            yield _Difference(path, wanted, got, lost=False)
        return
    yield _Difference(path, wanted, got, lost=got is None)


def _same(a: Any, b: Any) -> bool:
    """Equality of JSON values; 1, 1.0 and true are three values."""
    if isinstance(a, list):
        return isinstance(b, list) and len(a) == len(b) and all(map(_same, a, b))
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(_same(a[key], b[key]) for key in a)
    return type(a) is type(b) and bool(a == b)


_OMITTED, _ADDED = 800, 4000
"""What an event costs that was left out or added, where a field that is otherwise costs 1000 and a lost one 10."""
_MOST_CELLS = 10_000

_Pairs = list[tuple[int | None, int | None]]


def _aligned(wanted: Sequence[Mapping[str, Any]], got: Sequence[Mapping[str, Any]]) -> _Pairs:
    """Which answered event stands for which: in order, and so that as little as can be is lost, added or otherwise. An
    event never stands for one of another tag."""
    shorter = min(len(wanted), len(got))
    head = next((at for at in range(shorter) if not _same(wanted[at], got[at])), shorter)
    most = shorter - head
    tail = next((at for at in range(most) if not _same(wanted[-1 - at], got[-1 - at])), most)
    ends = len(wanted) - tail, len(got) - tail
    middle = _aligned_middle(wanted[head : ends[0]], got[head : ends[1]])
    return [
        *((at, at) for at in range(head)),
        *((None if at is None else at + head, None if to is None else to + head) for at, to in middle),
        *((ends[0] + at, ends[1] + at) for at in range(tail)),
    ]


def _aligned_middle(wanted: Sequence[Mapping[str, Any]], got: Sequence[Mapping[str, Any]]) -> _Pairs:
    rows, columns = len(wanted), len(got)
    if not rows or not columns or rows * columns > _MOST_CELLS:
        both = min(rows, columns)
        alike = next((at for at in range(both) if wanted[at]["type"] != got[at]["type"]), both)
        return [
            *((at, at) for at in range(alike)),
            *((at, None) for at in range(alike, rows)),
            *((None, to) for to in range(alike, columns)),
        ]
    pair = [[_pair_cost(a, b) for b in got] for a in wanted]
    best = [[0] * (columns + 1) for _ in range(rows + 1)]
    for at in range(rows, -1, -1):
        for to in range(columns, -1, -1):
            choices = [
                *([pair[at][to] + best[at + 1][to + 1]] if at < rows and to < columns else []),
                *([_OMITTED + best[at + 1][to]] if at < rows else []),
                *([_ADDED + best[at][to + 1]] if to < columns else []),
            ]
            best[at][to] = min(choices, default=0)
    found: _Pairs = []
    at = to = 0
    while at < rows or to < columns:
        if at < rows and to < columns and best[at][to] == pair[at][to] + best[at + 1][to + 1]:
            found.append((at, to))
            at, to = at + 1, to + 1
        elif at < rows and best[at][to] == _OMITTED + best[at + 1][to]:
            found.append((at, None))
            at += 1
        else:
            found.append((None, to))
            to += 1
    return found


def _pair_cost(wanted: Mapping[str, Any], got: Mapping[str, Any]) -> int:
    if wanted["type"] != got["type"]:
        return _OMITTED + _ADDED + 1
    differences = _event_differences(wanted, got, "")
    return min(_OMITTED + _ADDED - 1, sum(10 if one.lost else 1000 for one in differences))


def _text(value: Any) -> str:
    if value is None:
        return NOTHING
    text = _text_of(value)
    return text if len(text) <= _TEXT else f"{text[: _TEXT - 1]}…"


def _text_of(value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        return f"a {type(value).__name__}"
