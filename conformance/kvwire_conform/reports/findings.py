"""What went wrong, in the terminal: the sentence, what came instead, the event slot by slot, the frames."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from kvwire_conform.model import CheckResult, Evidence, Finding, Report, Verdict
from kvwire_conform.reports.commands import show_command
from kvwire_conform.reports.grouping import RED, Row, sections, short_names
from kvwire_conform.reports.page import STYLES, Page, Span
from kvwire_conform.reports.results import names
from kvwire_conform.reports.text import count, shorten

_DIM = "dim"
_INDENT = 4
_COLUMN = 14
_LONG = 400
_HEX_BYTES = (64, 512, 512)
"""Bytes of a frame shown, by verbosity."""
_SLOTS = 16
_FRAMES: dict[tuple[str, int], tuple[str, ...]] = {
    ("live", 3): ("topic", "seq", "payload"),
    ("replay", 3): ("delimiter", "seq", "payload"),
    ("replay", 4): ("delimiter", "topic", "seq", "payload"),
}


def show_failures(page: Page, report: Report) -> None:
    """Write every failed check with its evidence."""
    _show(page, report, "failures", RED, evidence=True)


def show_warnings(page: Page, report: Report) -> None:
    """Write what every warning is about; the evidence when verbose."""
    _show(page, report, "warnings", (Verdict.WARN,), evidence=page.verbose > 0)


def _show(page: Page, report: Report, title: str, verdicts: Sequence[Verdict], *, evidence: bool) -> None:
    rows = [row for found in sections(report.results).values() for row in found if row.verdict in verdicts]
    if not rows:
        return
    page.heading(title)
    short = short_names(result.source for result in report.results)
    for number, row in enumerate(rows):
        if number and evidence:
            page.blank()
        _show_row(page, row, short, evidence=evidence)


def _show_row(page: Page, row: Row, short: Mapping[str, str], *, evidence: bool) -> None:
    shown = row.results if page.verbose else row.results[:1]
    for number, result in enumerate(shown):
        if number and evidence:
            page.blank()
        _show_result(page, result, evidence=evidence, name=row.of > 1)
    others = row.results[len(shown) :]
    if others:
        page.pair("also", names([short[result.source] for result in others]), indent=_INDENT, column=_COLUMN)


def _show_result(page: Page, result: CheckResult, *, evidence: bool, name: bool) -> None:
    style = STYLES[result.verdict]
    mark = page.mark(result.verdict)
    spans: list[Span] = [mark, " ", (shorten(result.id, 80), style)]
    if result.violations:
        spans += [(f"  {count(result.violations)} of {count(result.judged)}", style)]
    spans += [f"  {result.level.value}  ", (shorten(result.section, 80), _DIM)]
    page.line(*spans, indent=2, hang=_INDENT)
    if name:
        page.line((shorten(result.source, 200), "bold"), indent=_INDENT)
    page.line((shorten(result.text, _LONG), "italic"), indent=_INDENT)
    if result.reason:
        _pair(page, "note", result.reason)
    shown = result.findings if page.verbose else result.findings[:1]
    for number, finding in enumerate(shown):
        if number:
            page.blank()
        _show_finding(page, finding, evidence=evidence)
    _show_more(page, result, len(shown))
    if evidence and result.rerun:
        show_command(page, result.rerun)


def _show_more(page: Page, result: CheckResult, shown: int) -> None:
    more = result.violations - shown
    if more <= 0 or not shown:
        return
    kept = len(result.findings) - shown
    hint = f"; -v shows {'them' if kept == more else f'{count(kept)} of them'}" if kept > 0 else ""
    page.pair("more", f"{count(more)} like it{hint}", indent=_INDENT, column=_COLUMN)


def _show_finding(page: Page, finding: Finding, *, evidence: bool) -> None:
    _pair(page, "expected", finding.expected)
    _pair(page, "got", finding.got, "bold")
    if finding.hint:
        _pair(page, "hint", finding.hint, "yellow")
    if finding.evidence is None:
        return
    where = _where(finding.evidence)
    if where:
        _pair(page, "where", where)
    if evidence:
        _show_slots(page, finding.evidence.slots)
        _show_frames(page, finding.evidence)


def _pair(page: Page, label: str, value: str, style: str = "") -> None:
    limit = _LONG if not page.verbose else 10 * _LONG
    page.pair(label, (shorten(value, limit), style), indent=_INDENT, column=_COLUMN)


def _where(evidence: Evidence) -> str:
    said = []
    if evidence.seq is not None:
        said.append(f"seq {evidence.seq}")
    if evidence.event_index is not None:
        said.append(f"event {evidence.event_index} of the batch")
    if evidence.channel != "live":
        said.append(f"from the {evidence.channel}")
    return ", ".join(said)


def _show_slots(page: Page, slots: Sequence[str]) -> None:
    label = "slots"
    hidden = 0
    for number, slot in enumerate(slots):
        culprit = slot.startswith(">")
        if number >= _SLOTS and not culprit and page.verbose < 2:
            hidden += 1
            continue
        sign = page.clean("▶") if culprit else " "
        said = shorten(slot[2:], _LONG if page.verbose else 200)
        spans: list[Span] = [(f"{sign} {said}", "bold red" if culprit else "")]
        page.pair(label, *spans, indent=_INDENT, column=_COLUMN, hang=5, most=None if page.verbose else 2)
        label = ""
    if hidden:
        page.pair(label, (f"  {count(hidden)} more slots; -vv shows them", _DIM), indent=_INDENT, column=_COLUMN)


def _show_frames(page: Page, evidence: Evidence) -> None:
    frames = evidence.frames
    titles: Iterable[str] = _FRAMES.get((evidence.channel, len(frames)), [f"frame {n}" for n in range(len(frames))])
    left_out = evidence.cut
    for title, frame in zip(titles, frames, strict=True):
        limit = 2 * _HEX_BYTES[min(page.verbose, 2)]
        shown = frame[:limit]
        groups = " ".join(shown[at : at + 8] for at in range(0, len(shown), 8)) or "empty"
        rest = (len(frame) - len(shown)) // 2
        if title == list(titles)[-1]:
            rest, left_out = rest + left_out, 0
        spans: list[Span] = [(groups, _DIM)]
        if rest:
            spans.append(f" … (+{count(rest)} bytes)")
        page.pair(title, *spans, indent=_INDENT, column=_COLUMN)
