"""A run as text: the table of docs/benchmarks.md, the summary in the terminal, the numbers quoted in docs/performance.md."""

from __future__ import annotations

import re

from benchmarks.items import ITEMS
from benchmarks.model import Figure, Row, Run

_MARK = re.compile(r"(<!-- bench:([\w-]+)((?: [^>]*?)?) -->).*?(<!-- /bench -->)", re.DOTALL)


def markdown(run: Run) -> str:
    """docs/benchmarks.md."""
    parts = [
        "# Benchmarks",
        "",
        "Written by `python -m benchmarks`; docs/performance.md says what the numbers mean. A value is the median over the "
        "rounds of one interleaved run, with the 10th and 90th percentile in brackets; a ratio is taken round by round.",
        "",
        *(f"- {name}: {value}" for name, value in _facts(run).items()),
        "",
        "## Summary",
        "",
        "The worst case of every target.",
        "",
        *_table(_SUMMARY_HEAD, _summary_rows(run)),
    ]
    for item in ITEMS:
        rows = [row for row in run.rows if row.item == item.name]
        if not rows and item.name not in run.skipped:
            continue
        parts += ["", f"## {item.title}", ""]
        if not rows:
            parts.append(f"Not run: {run.skipped[item.name]}.")
            continue
        names = list(dict.fromkeys(figure.name for row in rows for figure in row.figures))
        head = ["case", "variant", "measure", "value", "target", "reached", *names]
        if not any(row.variant for row in rows):
            head.remove("variant")
        parts += _table(head, [_cells(row, names, head) for row in rows])
        notes = [note for note in dict.fromkeys(row.note for row in rows) if note]
        if notes:
            parts += ["", *(f"- {note}" for note in notes)]
    return "\n".join(parts) + "\n"


def _facts(run: Run) -> dict[str, str]:
    return {
        "measured": f"{run.started}, {run.seconds:g} s, load average {run.load:g} at the start"
        + (", **quick: the numbers mean little**" if run.quick else ""),
        **run.machine,
        "versions": ", ".join(f"{name} {version}" for name, version in run.versions.items()),
        "compiled extension": ", ".join(run.compiled) or "not in use",
    }


_SUMMARY_HEAD = ["item", "variant", "measure", "cases", "worst", "in", "target", "reached"]


def _summary_rows(run: Run) -> list[list[str]]:
    return [
        [
            worst.item,
            worst.variant,
            worst.measure,
            f"{sum(bool(row.reached) for row in rows)}/{len(rows)} reached",
            value(worst),
            worst.case,
            target(worst),
            _yes(worst.reached),
        ]
        for rows in groups(run)
        for worst in [worst_of(rows)]
    ]


def groups(run: Run) -> list[list[Row]]:
    """The rows that have a target, those with the same item, variant, measure and target together."""
    found: dict[tuple[str, str, str, float], list[Row]] = {}
    for row in run.rows:
        if row.target is not None:
            found.setdefault((row.item, row.variant, row.measure, row.target), []).append(row)
    return list(found.values())


def worst_of(rows: list[Row]) -> Row:
    """The row that is farthest on the wrong side of the target, or nearest to it."""
    return min(rows, key=lambda row: row.value if row.sense == ">=" else -row.value)


def summary(run: Run) -> str:
    """The worst case of every target, for the terminal."""
    rows = [_SUMMARY_HEAD, *_summary_rows(run)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_SUMMARY_HEAD))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def quote(text: str, run: Run) -> str:
    """Fill in what stands between ``<!-- bench:ITEM [words] -->`` and ``<!-- /bench -->``: the worst case of an item.

    The words narrow it to the rows whose variant, measure or case has all of them, and to those with a target if there
    are any; ``all`` as a word quotes the range of
    values instead of the worst one.
    """

    def fill(found: re.Match[str]) -> str:
        words = found[3].split()
        wide = "all" in words
        rows = [
            row
            for row in run.rows
            if row.item == found[2]
            and all(word in f"{row.variant} {row.measure} {row.case}" for word in words if word != "all")
        ]
        rows = [row for row in rows if row.target is not None] or rows
        if not rows:
            return f"{found[1]}not measured{found[4]}"
        if wide:
            ordered = sorted(rows, key=lambda row: row.value)
            return f"{found[1]}{number(ordered[0].value)} to {number(ordered[-1].value)}{_unit(ordered[-1])}{found[4]}"
        return f"{found[1]}{number(worst_of(rows).value)}{_unit(rows[0])}{found[4]}"

    return _MARK.sub(fill, text)


def value(row: Row) -> str:
    """The value with its spread."""
    return f"{number(row.value)}{_unit(row)} ({number(row.low)}–{number(row.high)})"


def target(row: Row) -> str:
    """The target with its sense; empty where the row is information."""
    return "" if row.target is None else f"{'≥' if row.sense == '>=' else '≤'} {number(row.target)}{_unit(row)}"


def number(found: float) -> str:
    """Three significant digits."""
    if found == 0:
        return "0"
    if abs(found) >= 100:
        return f"{found:,.0f}"
    return f"{found:.2f}" if abs(found) >= 10 else f"{found:.3g}"


def _unit(row: Row) -> str:
    return f" {row.unit}" if row.unit else " ×"


def _yes(reached: bool | None) -> str:
    return "" if reached is None else "yes" if reached else "**no**"


def _cells(row: Row, names: list[str], head: list[str]) -> list[str]:
    figures = {figure.name: figure for figure in row.figures}
    cells = {
        "case": row.case,
        "variant": row.variant,
        "measure": row.measure,
        "value": value(row),
        "target": target(row),
        "reached": _yes(row.reached),
        **{name: _figure(figures.get(name)) for name in names},
    }
    return [cells[name] for name in head]


def _figure(figure: Figure | None) -> str:
    return "" if figure is None else f"{number(figure.median)} {figure.unit}"


def _table(head: list[str], rows: list[list[str]]) -> list[str]:
    return [f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows)]
