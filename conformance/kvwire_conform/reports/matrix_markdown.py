"""The matrix as Markdown: the overview, what breaks each consumer, and the summary that the README shows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kvwire_conform.consumer_model import AnswerVerdict
from kvwire_conform.matrix_model import Cell, Column, Matrix
from kvwire_conform.reports.matrix_words import (
    GROUPS,
    MARKS,
    STATES,
    behaviour_rows,
    breaks_of,
    cells_of,
    feature_rows,
    trouble_of,
)

__all__ = ["summary", "to_markdown"]


def to_markdown(matrix: Matrix) -> str:
    """The whole page."""
    lines = [
        "# KV-cache event compatibility matrix",
        "",
        f"Made by `kvwire-conform matrix` of kvwire {matrix.kvwire} from real runs on golden suite {matrix.suite}; "
        "[matrix.html](matrix.html) has the evidence for each cell, [matrix.json](matrix.json) the data.",
        "",
        *(f"- {MARKS[state]} {text}" for state, text in STATES),
        "- a number counts the kinds of payload that are not read exactly; in brackets: a dialect that the consumer does not claim",
    ]
    for group, title, _ in GROUPS:
        columns = [column for column in matrix.consumers if column.group == group]
        if columns:
            lines += ["", f"## {title}", "", *_overview(matrix, columns)]
            lines += ["", "By kind of payload, the worst in any dialect that the consumer claims:", ""]
            lines += _features(matrix, columns)
    rows = behaviour_rows(matrix)
    if rows:
        lines += ["", "## Gaps, replay and restarts", ""]
        lines += _table(
            ["situation", *matrix.behaviours],
            [[text, *("–" if b is None else f"{b.verdict.value}: {b.found}" for b in found)] for text, found in rows],
        )
    lines += ["", "## What breaks, consumer by consumer", ""]
    for column in matrix.consumers:
        lines += _breaks(matrix, column)
    return "\n".join(lines).rstrip() + "\n"


def summary(matrix: Matrix) -> str:
    """Other projects' routers and decoders by kind of payload, for the README."""
    columns = [column for column in matrix.consumers if column.group in ("router", "decoder")]
    return "\n".join(_features(matrix, columns))


def _features(matrix: Matrix, columns: Sequence[Column]) -> Iterable[str]:
    return _table(
        ["payloads", *(column.id for column in columns)],
        [
            [feature.title, *("" if v is None else "✓" if v is AnswerVerdict.EXACT else v.value for v in verdicts)]
            for feature, verdicts in feature_rows(matrix, columns)
        ],
    )


def _overview(matrix: Matrix, columns: Sequence[Column]) -> Iterable[str]:
    cells = cells_of(matrix)
    return _table(
        ["dialect", "releases", *(column.id for column in columns)],
        [
            [f"`{p.id}`", p.releases or "none", *(_mark(cells[p.id, column.id]) for column in columns)]
            for p in matrix.producers
        ],
    )


def _mark(cell: Cell) -> str:
    trouble = trouble_of(cell)
    text = f"{MARKS[cell.state]} {trouble}" if trouble else MARKS[cell.state]
    return text if cell.claimed or cell.producer == "any" else f"({text})"


def _breaks(matrix: Matrix, column: Column) -> list[str]:
    lines = [f"### {_safe(column.id)}", ""]
    if column.notes:
        lines += [f"{_safe(column.notes)}", ""]
    found = breaks_of(matrix, column)
    lines += [
        f"- **{item.title}**: {item.verdict} in {item.dialects}" + (f" ({_safe(item.words)})" if item.words else "")
        for item in found
    ] or ["Nothing: every payload of the dialects that it claims was read exactly."]
    return [*lines, ""]


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    return [_line(head), _line(["---"] * len(head)), *map(_line, rows)]


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(_safe(cell) for cell in cells) + " |"


def _safe(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")
