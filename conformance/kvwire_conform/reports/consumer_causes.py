"""What a consumer got wrong, grouped by what is likely one cause: the same verdict on the same field, or in the same words.

A payload of which several fields are lost belongs to the field that explains most payloads; the others are told beside it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from kvwire_conform.consumer_model import AnswerVerdict, Judgement

__all__ = ["WORST_FIRST", "Cause", "causes", "hint_of"]

WORST_FIRST = (
    AnswerVerdict.CRASHED,
    AnswerVerdict.HUNG,
    AnswerVerdict.GARBLED,
    AnswerVerdict.WRONG,
    AnswerVerdict.SIBLING_LOST,
    AnswerVerdict.REJECTED,
    AnswerVerdict.LOSSY,
    AnswerVerdict.UNSUPPORTED,
    AnswerVerdict.EXACT,
)

_INDEX = re.compile(r"\[\d+\]")
_PARTICULARS = re.compile(r"'[^']*'|\"[^\"]*\"|`[^`]*`|\b(?:0x)?[0-9a-f]{8,}\b|-?\d+(?:\.\d+)?")
_CULPRIT = re.compile(r"\((tag )?([^()]*)\) cost ")
_TOOK = re.compile(r"it took what must be refused: .*\(([^()]*)\)")
_WORDS = 160
_TAKEN = "took what must be refused"
_BREAKDOWNS = (AnswerVerdict.CRASHED, AnswerVerdict.HUNG, AnswerVerdict.GARBLED)

_FIELD_HINTS = {
    "cache_salt": "a tenant's salted blocks are taken for anybody's: requests are sent to cache that will not serve them",
    "lora_name": "an adapter's blocks are taken for the base model's: requests are sent to cache that cannot serve them",
    "lora_id": "an adapter's blocks are taken for the base model's: requests are sent to cache that cannot serve them",
    "medium": "blocks in host memory or on disk count as if they were on GPU, or the other way round",
    "group_idx": "blocks of one attention group are taken for another's, so a prefix counts as held when half of it is gone",
    "kv_cache_spec_kind": "sliding-window blocks count as full attention, so a prefix counts as held when it is gone",
    "kv_cache_spec_sliding_window": "sliding-window blocks count as full attention",
    "extra_keys": "prompts with the same tokens and other images, adapters or salts look alike",
    "parent_block_hash": "the blocks cannot be put in a chain, so a prefix is not found",
    "token_ids": "a request's prefix is not found by its tokens",
    "block_size": "a request is cut into other blocks than the engine's",
    "block_hashes": "blocks are filed under other names, so neither the next block nor the removal finds them",
    "dp_rank": "blocks are charged to the wrong replica",
    "events": "a payload that means nothing becomes state of the router",
    "event": "the router's picture of the cache lacks blocks, or keeps blocks that are gone",
}
_VERDICT_HINTS = {
    AnswerVerdict.CRASHED: "one message stops the router",
    AnswerVerdict.HUNG: "one message stops the router",
    AnswerVerdict.GARBLED: "mend the testee first: spec/conformance.md says what an answer is",
    AnswerVerdict.SIBLING_LOST: (
        "one event makes the router blind for the whole batch: its blocks are never indexed, its removals never seen"
    ),
    AnswerVerdict.REJECTED: "all that these batches tell is lost to the router",
}


@dataclass
class Cause:
    """Judgements that likely have one cause.

    Attributes:
        verdict: of all of them.
        title: the fields, or the words, that they share.
        judgements: in the order of the report; at least one.
        beside: other fields in some of them, with how many.
    """

    verdict: AnswerVerdict
    title: str
    judgements: list[Judgement] = field(default_factory=list)
    beside: Counter[str] = field(default_factory=Counter)

    @property
    def example(self) -> Judgement:
        """The shortest-told of them."""
        return min(self.judgements, key=lambda one: len(one.differences))

    @property
    def dialects(self) -> list[tuple[str, int]]:
        """How many of each dialect, the most first; ``any`` for those of none."""
        return Counter(one.dialect or "any" for one in self.judgements).most_common()


def causes(judgements: Iterable[Judgement]) -> list[Cause]:
    """The causes behind what is not exact: first those that end the process, then by how much each accounts for."""
    found: dict[tuple[AnswerVerdict, str], Cause] = {}
    fielded: dict[AnswerVerdict, list[Judgement]] = {}
    for one in judgements:
        if one.verdict is AnswerVerdict.EXACT:
            continue
        title = _title(one)
        if title is None:
            fielded.setdefault(one.verdict, []).append(one)
        else:
            found.setdefault((one.verdict, title), Cause(one.verdict, title)).judgements.append(one)
    return sorted(
        [*found.values(), *(cause for verdict, all_ in fielded.items() for cause in _by_field(verdict, all_))],
        key=lambda cause: (cause.verdict not in _BREAKDOWNS, -len(cause.judgements), WORST_FIRST.index(cause.verdict)),
    )


def _by_field(verdict: AnswerVerdict, judgements: list[Judgement]) -> list[Cause]:
    left = [(one, _fields(one)) for one in judgements]
    found = []
    while left:
        tally = Counter(name for _, names in left for name in names)
        most = max(tally.values())
        main = next(name for name, number in tally.items() if number == most)
        cause = Cause(verdict, main, [one for one, names in left if main in names])
        cause.beside = Counter(name for _, names in left if main in names for name in names if name != main)
        found.append(cause)
        left = [(one, names) for one, names in left if main not in names]
    return found


def hint_of(cause: Cause) -> str:
    """What it means for a router; empty where that is plain."""
    if cause.verdict in (AnswerVerdict.LOSSY, AnswerVerdict.WRONG):
        if cause.title.startswith(_TAKEN):
            return "what cannot be trusted becomes state of the router"
        return _FIELD_HINTS.get(cause.title, "")
    return _VERDICT_HINTS.get(cause.verdict, "")


def _title(one: Judgement) -> str | None:
    """The words that stand for the cause; None where its fields do."""
    if one.differences and one.verdict is not AnswerVerdict.SIBLING_LOST:
        culprit = _TOOK.match(one.note)
        return f"{_TAKEN}: {culprit[1]}" if culprit else None
    if one.verdict is AnswerVerdict.SIBLING_LOST:
        culprit = _CULPRIT.search(one.note)
        if one.kind != "valid" and culprit:
            return "unknown-tag" if culprit[1] else culprit[2]
    lines = one.said.splitlines()
    return _general(lines[0]) if lines else "no words"


def _fields(one: Judgement) -> list[str]:
    """The fields that are otherwise; those that are lost only where that is all."""
    differences = [d for d in one.differences if d.got != "nothing"] or list(one.differences)
    return list(dict.fromkeys(_field(difference.where) for difference in differences))


def _field(where: str) -> str:
    name = _INDEX.sub("", where).split(".")[-1]
    return "event" if name == "events" and where != "events" else name


def _general(words: str) -> str:
    """Words without what differs from one payload to the next."""
    return _PARTICULARS.sub("…", words)[:_WORDS]
