"""What a consumer fails, in the terminal: a cause, one example of it, and how to see that again."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from kvwire_conform.consumer_model import ConsumerReport, Judgement
from kvwire_conform.reports.commands import show_command
from kvwire_conform.reports.consumer_causes import Cause, hint_of
from kvwire_conform.reports.consumer_payload import show_bytes
from kvwire_conform.reports.page import Page
from kvwire_conform.reports.text import count, counted, shorten

__all__ = ["show_causes", "show_judgement"]

_DIM = "dim"
_INDENT = 4
_COLUMN = 14
_CAUSES = 12
_DIFFERENCES = 3
_LISTED = 60


def show_causes(page: Page, report: ConsumerReport, title: str, found: Sequence[Cause]) -> None:
    """Write the causes under a heading; nothing where there are none."""
    if not found:
        return
    total = sum(len(cause.judgements) for cause in found)
    page.heading(title, f"{counted(total, 'payload')}, {counted(len(found), 'likely cause')}")
    shown = found if page.verbose else found[:_CAUSES]
    told: set[str] = set()
    for number, cause in enumerate(shown):
        if number:
            page.blank()
        hint = hint_of(cause)
        _show_cause(page, report, cause, "" if hint in told else hint)
        told.add(hint)
    if len(shown) < len(found):
        page.blank()
        rest = sum(len(cause.judgements) for cause in found[len(shown) :])
        page.line(
            (f"{len(found) - len(shown)} more causes ({counted(rest, 'payload')}); -v shows them", _DIM), indent=2
        )


def _show_cause(page: Page, report: ConsumerReport, cause: Cause, hint: str) -> None:
    mark = "" if page.plain else "✗ "
    verdict = cause.verdict.value.upper() if page.plain else cause.verdict.value
    where = ", ".join(f"{name} {count(number)}" for name, number in cause.dialects)
    page.line(
        (f"{mark}{verdict}  ", "bold red"),
        (shorten(cause.title, 200), "bold"),
        (f"  {counted(len(cause.judgements), 'payload')}", "red"),
        indent=2,
        hang=_INDENT,
    )
    page.pair("in", where, indent=_INDENT, column=_COLUMN, most=None if page.verbose else 2)
    if cause.beside:
        beside = ", ".join(f"{name} {count(number)}" for name, number in cause.beside.most_common())
        page.pair("beside", beside, indent=_INDENT, column=_COLUMN, most=None if page.verbose else 2)
    if hint:
        page.pair("hint", (hint, "yellow"), indent=_INDENT, column=_COLUMN)
    everything = page.verbose > 1
    for one in cause.judgements if everything else [cause.example]:
        show_judgement(page, one, label="payload" if everything else "example")
        if page.verbose and len(report.judgements) > _LISTED // 12:
            show_bytes(page, one, report.seed)
    if page.verbose == 1 and len(cause.judgements) > 1:
        others = [one.id for one in cause.judgements if one is not cause.example]
        more = f" and {count(len(others) - _LISTED)} more" if len(others) > _LISTED else ""
        page.pair("also", (", ".join(others[:_LISTED]) + more, _DIM), indent=_INDENT, column=_COLUMN)
    if report.rerun:
        show_command(page, report.rerun.replace("ID", shlex.quote(cause.example.id), 1))


def show_judgement(page: Page, one: Judgement, label: str = "payload") -> None:
    """Write what came of one payload."""
    page.pair(label, one.id, indent=_INDENT, column=_COLUMN)
    shown = one.differences if page.verbose else one.differences[:_DIFFERENCES]
    for difference in shown:
        page.pair("field", difference.where, indent=_INDENT, column=_COLUMN)
        page.pair("expected", difference.expected, indent=_INDENT, column=_COLUMN)
        page.pair("got", (difference.got, "bold"), indent=_INDENT, column=_COLUMN)
    if len(shown) < len(one.differences):
        page.pair("more", f"{len(one.differences) - len(shown)} fields; -v shows them", indent=_INDENT, column=_COLUMN)
    for number, line in enumerate(one.said.splitlines()):
        page.pair("" if number else "says", shorten(line, 500), indent=_INDENT, column=_COLUMN)
    if one.note:
        page.pair("note", shorten(one.note, 1000), indent=_INDENT, column=_COLUMN)
