"""The matrix as one self-contained HTML page."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

import jinja2
import msgspec
from markupsafe import Markup

from kvwire_conform import golden
from kvwire_conform.matrix_model import SEVERITY, Matrix
from kvwire_conform.reports.matrix_words import (
    GROUPS,
    MARKS,
    STATES,
    behaviour_rows,
    breaks_of,
    cells_of,
    feature_rows,
    label,
    trouble_of,
)

__all__ = ["to_html"]


def to_html(matrix: Matrix) -> str:
    """The page. It loads nothing from anywhere, and without JavaScript it still shows table and text."""
    columns = sorted(matrix.consumers, key=lambda column: [group for group, _, _ in GROUPS].index(column.group))
    index = {(cell.producer, cell.consumer): number for number, cell in enumerate(matrix.cells)}
    cells = cells_of(matrix)
    lines = [
        {
            "producer": producer,
            "cells": [
                {
                    "index": index[producer.id, column.id],
                    "producer": producer.id,
                    "claimed": cells[producer.id, column.id].claimed,
                    "state": cells[producer.id, column.id].state,
                    "trouble": trouble_of(cells[producer.id, column.id]),
                    "label": label(matrix, cells[producer.id, column.id]),
                }
                for column in columns
            ],
        }
        for producer in matrix.producers
    ]
    used = {row.feature for cell in matrix.cells for row in cell.rows}
    rows = [{"text": text, "cells": found} for text, found in behaviour_rows(matrix)]
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    page: str = environment.from_string(_part("page.html.jinja")).render(
        matrix=matrix,
        columns=columns,
        lines=lines,
        judged=len(golden.list_vectors()),
        states=STATES,
        marks=MARKS,
        features=[feature for feature in matrix.features if feature.id in used],
        groups=[
            {"id": ident, "title": title, "shown": shown, "columns": [c for c in columns if c.group == ident]}
            for ident, title, shown in GROUPS
        ],
        behaviours={"columns": list(matrix.behaviours), "rows": rows} if rows else None,
        kinds=feature_rows(matrix, columns),
        breaks=[{"column": column, "lines": breaks_of(matrix, column)} for column in columns],
        css=Markup(_part("matrix.css")),
        js=Markup(_part("matrix.js")),
        data=Markup(_data(matrix, columns)),
    )
    return page


def _part(name: str) -> str:
    return (files("kvwire_conform.reports") / "matrix" / name).read_text(encoding="utf-8")


def _data(matrix: Matrix, columns: list[Any]) -> str:
    found = {
        **msgspec.to_builtins(matrix),
        "consumers": msgspec.to_builtins(columns),
        "severity": [verdict.value for verdict in SEVERITY],
        "marks": dict(MARKS),
    }
    # Inside a script element nothing but "<" can end it or start a comment.
    return msgspec.json.encode(found).decode().replace("<", "\\u003c")
