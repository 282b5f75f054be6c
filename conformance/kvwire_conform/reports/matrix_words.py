"""What the pages of the matrix share: marks, groups, and what breaks a consumer, in words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from kvwire_conform.consumer_model import AnswerVerdict, Behaviour
from kvwire_conform.matrix_features import Feature
from kvwire_conform.matrix_model import SEVERITY, Cell, Column, Evidence, Matrix, worst

__all__ = [
    "GROUPS",
    "MARKS",
    "STATES",
    "Break",
    "behaviour_rows",
    "breaks_of",
    "cells_of",
    "feature_rows",
    "label",
    "trouble_of",
]

STATES = (
    ("reads", "reads everything exactly"),
    ("partly", "reads plain events, but not all else"),
    ("blind", "does not even read plain events"),
)
MARKS: Mapping[str, str] = {
    "reads": "✓",
    "partly": "◐",
    "blind": "✗",
    "unseen": "·",
    "exact": "✓",
    "unsupported": "–",
    "lossy": "◐",
    "sibling-lost": "⊘",
    "rejected": "✗",
    "wrong": "≠",
    "garbled": "¿",
    "hung": "…",
    "crashed": "†",
}
GROUPS = (
    ("router", "Routers", True),
    ("decoder", "Routers' decoders", True),
    ("engine", "Engines' own structs", False),
    ("example", "Example testees", False),
)
"""Id, title, and whether the page shows it from the start."""


@dataclass(frozen=True)
class Break:
    """One way in which a consumer fails a feature, and the dialects in which it does.

    Attributes:
        words: what it lost or said.
    """

    title: str
    verdict: str
    dialects: str
    words: str


def cells_of(matrix: Matrix) -> dict[tuple[str, str], Cell]:
    """Cells by producer and consumer."""
    return {(cell.producer, cell.consumer): cell for cell in matrix.cells}


def trouble_of(cell: Cell) -> int:
    """How many features are not read exactly."""
    return sum(1 for row in cell.rows if row.verdict is not AnswerVerdict.EXACT)


def label(matrix: Matrix, cell: Cell) -> str:
    """A cell in words, for those who do not see the mark."""
    titles = {feature.id: feature.title for feature in matrix.features}
    trouble = [
        f"{titles[row.feature]} {row.verdict.value}" for row in cell.rows if row.verdict is not AnswerVerdict.EXACT
    ]
    return f"{cell.consumer} on {cell.producer}: {', '.join(trouble) or 'everything exact'}"


def breaks_of(matrix: Matrix, column: Column) -> list[Break]:
    """What breaks a consumer in the dialects that it claims, and in no dialect's payloads; the worst first."""
    found: dict[tuple[str, AnswerVerdict, str], list[str]] = {}
    for cell in matrix.cells:
        if cell.consumer != column.id or not (cell.claimed or cell.producer == "any"):
            continue
        for row in cell.rows:
            for evidence in row.evidence:
                found.setdefault((row.feature, evidence.verdict, _words(evidence)), []).append(cell.producer)
    titles = {feature.id: feature.title for feature in matrix.features}
    order = list(titles)
    merged: dict[tuple[str, AnswerVerdict], tuple[list[str], str]] = {}
    for (feature, verdict, words), producers in found.items():
        there, first = merged.setdefault((feature, verdict), ([], words))
        merged[feature, verdict] = ([*there, *(p for p in producers if p not in there)], first)
    ranked = sorted(merged.items(), key=lambda item: (order.index(item[0][0]), -SEVERITY.index(item[0][1])))
    claimed = [p.id for p in matrix.producers if p.id in column.claims]
    return [
        Break(titles[feature], verdict.value, _dialects(producers, claimed, matrix), words)
        for (feature, verdict), (producers, words) in ranked
    ]


def _words(evidence: Evidence) -> str:
    if evidence.said:
        return evidence.said
    return "; ".join(f"{d.where}: expected {_short(d.expected)}, got {_short(d.got)}" for d in evidence.differences[:2])


def _short(text: str, most: int = 60) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def _dialects(producers: Sequence[str], claimed: Sequence[str], matrix: Matrix) -> str:
    order = [producer.id for producer in matrix.producers]
    named = sorted((p for p in producers if p != "any"), key=order.index)
    others = ["other producers"] if "any" in producers else []
    if len(named) > 2 and set(named) == set(claimed):
        return ", ".join(["every dialect", *others])
    return ", ".join([*named, *others])


def feature_rows(matrix: Matrix, columns: Sequence[Column]) -> list[tuple[Feature, list[AnswerVerdict | None]]]:
    """Per feature the worst that each consumer makes of it in the dialects that it claims; None where none has it."""
    found: dict[tuple[str, str], list[AnswerVerdict]] = {}
    for cell in matrix.cells:
        if cell.claimed:
            for row in cell.rows:
                if row.counts:
                    found.setdefault((row.feature, cell.consumer), []).append(row.verdict)
    rows = [(f, [_worst(found.get((f.id, column.id))) for column in columns]) for f in matrix.features]
    return [(feature, verdicts) for feature, verdicts in rows if any(verdict is not None for verdict in verdicts)]


def _worst(verdicts: list[AnswerVerdict] | None) -> AnswerVerdict | None:
    return worst(verdicts) if verdicts else None


def behaviour_rows(matrix: Matrix) -> list[tuple[str, list[Behaviour | None]]]:
    """The situations of the stream, and per router what it did there; routers in the order of ``matrix.behaviours``."""
    texts: dict[str, str] = {}
    for found in matrix.behaviours.values():
        texts.update({behaviour.id: behaviour.text for behaviour in found})
    return [(text, [_of(found, ident) for found in matrix.behaviours.values()]) for ident, text in texts.items()]


def _of(found: Iterable[Behaviour], ident: str) -> Behaviour | None:
    return next((behaviour for behaviour in found if behaviour.id == ident), None)
