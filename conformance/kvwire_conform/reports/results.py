"""The table of results in the terminal: a line a check, under the sections of the specification."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kvwire_conform.model import Report, Verdict
from kvwire_conform.reports.grouping import RED, Row, sections, short_names
from kvwire_conform.reports.page import STYLES, Page, Span
from kvwire_conform.reports.text import all_of, count, counted, shorten

_QUIET = (Verdict.SKIP, Verdict.INCONCLUSIVE)
_DIM = "dim"
_FOLD = 2
"""So many skips or inconclusive checks of one section become one entry."""
_FOLDED_LINES = 3


class _Columns:
    """Widths that all lines of the table share."""

    def __init__(self, page: Page, rows: Sequence[Row]) -> None:
        shown = [row for row in rows if row.verdict not in _QUIET] or rows
        marks = [page.wide(page.word(row.verdict)) for row in rows] if page.plain else [1]
        self.mark = max(marks, default=1)
        self.id = min(28, max((page.wide(row.id) for row in rows), default=0))
        self.number = max((len(_number(row)) for row in shown), default=0)
        self.note = 2 + self.mark + 2 + self.id + 2 + self.number + 2
        self.room = page.width - self.note


def show_results(page: Page, report: Report) -> None:
    """Write the table."""
    table = sections(report.results)
    every = [row for rows in table.values() for row in rows]
    if every and not page.verbose and all(row.verdict in _QUIET for row in every):
        page.heading("nothing could be judged", f"{counted(len(every), 'check')}; -v lists them")
        return
    columns = _Columns(page, every)
    short = short_names(result.source for result in report.results)
    for name, rows in table.items():
        summary = _summary(rows)
        page.heading(name, summary)
        folded = _folded(page, rows)
        for row in rows:
            if not any(row in group for group in folded):
                _show_row(page, columns, row, short, named=not summary)
        for group in folded:
            _show_folded(page, columns, group, whole=len(group) == len(rows))


def _summary(rows: Sequence[Row]) -> str:
    if any(row.verdict is not Verdict.PASS for row in rows):
        return ""
    most = max(row.of for row in rows)
    if most > 1:
        return f"{all_of(most, 'sources')}: pass" if all(row.of == most for row in rows) else ""
    return "all pass" if len(rows) > 1 else ""


def _folded(page: Page, rows: Sequence[Row]) -> list[list[Row]]:
    if page.verbose:
        return []
    groups = ([row for row in rows if row.verdict is verdict and len(row.results) == row.of] for verdict in _QUIET)
    return [group for group in groups if len(group) >= _FOLD]


def _number(row: Row) -> str:
    if row.violations:
        return f"{count(row.violations)} of {count(row.judged)}"
    return count(row.judged) if row.judged else ""


def _show_row(page: Page, columns: _Columns, row: Row, short: Mapping[str, str], *, named: bool) -> None:
    mark, style = page.mark(row.verdict), STYLES[row.verdict]
    word = mark if isinstance(mark, str) else mark[0]
    shown_id = page.cut(row.id, columns.id)
    loud = style if row.verdict in (*RED, Verdict.WARN) else ""
    lead: list[Span] = [
        (_padded(page, word, columns.mark), style),
        "  ",
        (_padded(page, shown_id, columns.id), loud),
        "  ",
        (_number(row).rjust(columns.number), loud or _DIM),
    ]
    note = _note(page, row, columns.room, short if named else {})
    if not note:
        page.line(*lead, indent=2)
    elif columns.room >= 36 or page.wide(note) <= columns.room:
        page.line(*lead, "  ", (note, _DIM), indent=2, hang=columns.note, most=None if page.verbose else 2)
    else:
        page.line(*lead, indent=2)
        page.line((note, _DIM), indent=4 + columns.mark, most=None if page.verbose else 2)


def _padded(page: Page, text: str, width: int) -> str:
    return text + " " * (width - page.wide(text))


def _note(page: Page, row: Row, room: int, short: Mapping[str, str]) -> str:
    """``short`` are the sources' names; none where the sources need no mention."""
    said = []
    if row.of > 1 and short:
        said.append(_which(row, short, page.verbose))
    if row.reasons:
        said.append(shorten(row.reasons[0], 500))
        if len(row.reasons) > 1:
            said.append(f"and {len(row.reasons) - 1} other reasons")
    elif page.verbose > 1 or (not said and room >= 50):
        said.append(row.first.text if page.verbose else page.cut(row.first.text, room))
    return "; ".join(said)


def _which(row: Row, short: Mapping[str, str], verbose: int) -> str:
    alike = len(row.results)
    if alike == row.of:
        return all_of(row.of, "sources")
    if row.verdict is Verdict.PASS and not verbose:
        return f"the other {alike}" if alike > 1 else "the other one"
    return f"{alike} of {row.of}: {names([short[name] for name in row.sources], verbose)}"


def names(sources: Sequence[str], verbose: int = 0) -> str:
    """The names of sources, the first few unless verbose."""
    most = len(sources) if verbose else 3
    shown = ", ".join(shorten(name, 80) for name in sources[:most])
    return shown if len(sources) <= most else f"{shown} and {len(sources) - most} more"


def _show_folded(page: Page, columns: _Columns, group: Sequence[Row], *, whole: bool) -> None:
    verdict = group[0].verdict
    word = "" if page.plain else " skipped" if verdict is Verdict.SKIP else " inconclusive"
    reasons = list(dict.fromkeys(reason for row in group for reason in row.reasons))
    ids = ", ".join(row.id for row in group)
    said = ids if len(reasons) != 1 else reasons[0] if whole else f"{ids}: {reasons[0]}"
    mark = page.mark(verdict)
    sign = mark if isinstance(mark, str) else mark[0]
    lead: list[Span] = [(_padded(page, sign, columns.mark), STYLES[verdict]), "  "]
    page.line(*lead, (f"{len(group)} checks{word}: {said}", _DIM), indent=2, hang=4 + columns.mark, most=_FOLDED_LINES)
