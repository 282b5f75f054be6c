"""The matrix as JSON, and what changed between two of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from kvwire_conform.matrix_model import FORMAT, Cell, Matrix

__all__ = ["changes", "from_json", "to_json"]


def to_json(matrix: Matrix) -> str:
    """The matrix as JSON text: a line each for a consumer, a cell, a payload, so that a diff shows what changed."""
    data = msgspec.to_builtins(matrix)
    assert isinstance(data, dict)
    return "{\n" + ",\n".join(f"{_compact(name)}: {_opened(value)}" for name, value in data.items()) + "\n}\n"


def from_json(data: bytes | str) -> Matrix:
    """Read what `to_json` wrote.

    Raises:
        ValueError: not a matrix, or of another format.
    """
    try:
        matrix = msgspec.json.decode(data, type=Matrix)
    except msgspec.DecodeError as error:
        raise ValueError(f"not a matrix: {error}") from error
    if matrix.format != FORMAT:
        raise ValueError(f"a matrix of the format {matrix.format!r}; this release reads {FORMAT!r}")
    return matrix


def changes(before: Matrix, after: Matrix) -> list[str]:
    """What is otherwise, in words; consumers that ``after`` is without are passed over, as is the tool's own version.

    The words in which a consumer refuses may change from run to run, and so does which of several examples stands as
    evidence: what counts is the verdict of each feature of each cell, and how many payloads had it.
    """
    return [*_column_changes(before, after), *_cell_changes(before, after), *_behaviour_changes(before, after)]


def _column_changes(before: Matrix, after: Matrix) -> Iterator[str]:
    known = {column.id for column in before.consumers}
    for column in after.consumers:
        if column.id not in known:
            yield f"{column.id}: a new consumer"
    if before.suite != after.suite:
        yield f"the golden suite is {after.suite}, not {before.suite}"
    if before.producers != after.producers:
        yield "the producers are others: " + ", ".join(
            f"{new.id} ({new.releases})" for new in after.producers if new not in before.producers
        )


def _cell_changes(before: Matrix, after: Matrix) -> Iterator[str]:
    old = {(cell.producer, cell.consumer): cell for cell in before.cells}
    known = {column.id for column in before.consumers}
    for cell in after.cells:
        if cell.consumer not in known:
            continue
        there = old.get((cell.producer, cell.consumer))
        was, now = _counts(there), _counts(cell)
        for feature in {**was, **now}:
            if was.get(feature) != now.get(feature):
                yield (
                    f"{cell.consumer} on {cell.producer}, {feature}: "
                    f"{_words(now.get(feature))}, not {_words(was.get(feature))}"
                )


def _behaviour_changes(before: Matrix, after: Matrix) -> Iterator[str]:
    for consumer, found in after.behaviours.items():
        old = {behaviour.id: behaviour.verdict for behaviour in before.behaviours.get(consumer, ())}
        for behaviour in found:
            if consumer in before.behaviours and old.get(behaviour.id) is not behaviour.verdict:
                was = old.get(behaviour.id)
                yield f"{consumer}, {behaviour.id}: {behaviour.verdict.value}, not {was.value if was else 'judged'}"


def _counts(cell: Cell | None) -> dict[str, dict[str, int]]:
    return {} if cell is None else {row.feature: row.counts for row in cell.rows}


def _words(counts: dict[str, int] | None) -> str:
    return " and ".join(f"{count} {verdict}" for verdict, count in counts.items()) if counts else "nothing"


def _opened(value: Any) -> str:
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return "[\n" + ",\n".join(map(_compact, value)) + "\n]"
    if isinstance(value, dict):
        return "{\n" + ",\n".join(f"{_compact(name)}: {_compact(item)}" for name, item in value.items()) + "\n}"
    return _compact(value)


def _compact(value: Any) -> str:
    return msgspec.json.encode(value).decode()
