"""The report on a consumer in a terminal, for a person."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rich.cells import cell_len
from rich.console import Console

from kvwire.dialects import DIALECTS
from kvwire_conform.consumer_model import AnswerVerdict, Behaviour, ConsumerReport, Judgement
from kvwire_conform.model import Verdict
from kvwire_conform.reports.consumer_causes import WORST_FIRST, causes
from kvwire_conform.reports.consumer_findings import show_causes, show_judgement
from kvwire_conform.reports.consumer_payload import show_payloads
from kvwire_conform.reports.page import STYLES, Page, Span
from kvwire_conform.reports.terminal import BADGES
from kvwire_conform.reports.text import all_of, count, counted, seconds, shorten

__all__ = ["ANSWER_STYLES", "EXITS", "render"]

EXITS = {
    0: "nothing unexpected",
    1: "it fails what it claims, or a known failure is stale",
    2: "usage or configuration",
    3: "it could not be started",
    4: "inconclusive: not all that it claims was judged",
    5: "a fault of this tool",
    130: "interrupted",
}
"""What the exit codes mean."""

ANSWER_STYLES = {
    AnswerVerdict.EXACT: "green",
    AnswerVerdict.LOSSY: "yellow",
    AnswerVerdict.UNSUPPORTED: "cyan",
}
"""Of a verdict; red where it is none of these."""

_DIM = "dim"
_COLUMN = 14
_FEW = 5
"""So many payloads are shown with their bytes, when verbose."""


def render(report: ConsumerReport, console: Console, *, verbose: int = 0) -> None:
    """Write a report; what `kvwire_conform.reports.terminal.render` says of the console holds here.

    Args:
        verbose: 1 shows every cause, and a handful of payloads byte by byte; 2 every payload that is not exact.
    """
    page = Page(console, verbose)
    _show_headline(page, report)
    _show_consumer(page, report)
    _show_dialects(page, report)
    required = [one for one in report.judgements if one.required and not one.known]
    show_causes(page, report, "failures", causes(required))
    _show_behaviours(page, report.behaviours)
    _show_aside(page, report)
    _show_list(page, "stale known failures", report.stale, "bold red")
    _show_not_run(page, report)
    if verbose and len(report.judgements) <= _FEW:
        show_payloads(page, report.judgements, report.seed)
    _show_list(page, "advice", report.advice, "", "→ ")
    _show_end(page, report)


def headline(report: ConsumerReport) -> str:
    """What became of the consumer, in one sentence."""
    consumer = report.consumer
    if consumer is None:
        return f"{' '.join(report.subject)} {'was interrupted' if report.interrupted else 'could not be started'}"
    name = f"{consumer.name} {consumer.version}".strip()
    judged = {one.dialect for one in report.judgements if one.required}
    if not judged:
        return f"{name}: nothing that it claims was judged"
    failed = {one.dialect for one in report.judgements if one.required and one.verdict is not AnswerVerdict.EXACT}
    if len(judged) == 1:
        (only,) = judged
        return f"{name} {'does not read' if failed else 'reads'} {only} exactly"
    if not failed:
        return f"{name} exactly reads {all_of(len(judged), 'dialects')} that it claims"
    good = len(judged) - len(failed)
    return f"{name} exactly reads {good or 'none'} of the {len(judged)} dialects that it claims"


def _show_headline(page: Page, report: ConsumerReport) -> None:
    word = page.word(report.verdict)
    badge: Span = word if page.plain else (f" {word.upper()} ", BADGES.get(report.verdict, "bold"))
    indent = min(page.wide(word) + 2 + (0 if page.plain else 2), 8)
    page.line(badge, ": " if page.plain else "  ", (shorten(headline(report), 500), "bold"), hang=indent)
    if report.interrupted:
        page.line(f"Interrupted after {seconds(report.seconds)}: this is what was judged so far.", indent=indent)


def _show_consumer(page: Page, report: ConsumerReport) -> None:
    consumer = report.consumer
    if consumer is None:
        return
    page.blank()
    told = {"any": "not told the dialect", "told": "told the dialect", "strict": "told the dialect, and insists on it"}
    facts = {
        "consumer": f"{consumer.name} {consumer.version} ({consumer.language})",
        "decoder": consumer.decoder,
        "reading": told.get(consumer.reading, consumer.reading),
        "claims": _claims(consumer.dialects),
        "notes": consumer.notes,
        "homepage": consumer.homepage if page.verbose else "",
        "suite": f"{report.suite}" + ("" if report.seed is None else f", and seed {report.seed}"),
    }
    for label, value in facts.items():
        if value:
            page.pair(label, shorten(value, 1000), indent=2, column=_COLUMN)


def _claims(dialects: Sequence[str]) -> str:
    if len(dialects) == len(DIALECTS):
        return f"all {len(dialects)} dialects"
    return ", ".join(dialects) or "no dialect"


def _show_dialects(page: Page, report: ConsumerReport) -> None:
    rows: dict[str, list[Judgement]] = {}
    for one in report.judgements:
        rows.setdefault(one.dialect or "any", []).append(one)
    if not rows:
        return
    claimed = {one.dialect for one in report.judgements if one.required}
    page.heading("dialects")
    width = max(map(len, rows)) + 2
    for name in sorted(rows, key=lambda name: name not in claimed):
        verdict, mark = _state(page, rows[name], name in claimed)
        lead = 6 if page.plain else 3
        page.line(
            mark,
            " " * (lead - page.wide(mark if isinstance(mark, str) else mark[0])),
            (name.ljust(width), STYLES[verdict] if verdict in (Verdict.FAIL, Verdict.WARN) else ""),
            *_tally(rows[name], loud=name in claimed),
            *([] if name in claimed else [("  of no dialect" if name == "any" else "  not claimed", _DIM)]),
            indent=2,
            hang=2 + lead + width,
        )


def _state(page: Page, judgements: Sequence[Judgement], claimed: bool) -> tuple[Verdict, Span]:
    if not claimed:
        return Verdict.SKIP, "-" if page.plain else page.mark(Verdict.SKIP)
    open_ = [one for one in judgements if one.verdict is not AnswerVerdict.EXACT]
    verdict = Verdict.PASS if not open_ else Verdict.WARN if all(one.known for one in open_) else Verdict.FAIL
    if verdict is Verdict.WARN:
        return verdict, "known" if page.plain else page.mark(verdict)
    return verdict, page.mark(verdict)


def _tally(judgements: Sequence[Judgement], *, loud: bool) -> list[Span]:
    counts = Counter(one.verdict for one in judgements)
    known = Counter(one.verdict for one in judgements if one.known)
    spans: list[Span] = []
    for verdict in reversed(WORST_FIRST):
        if counts[verdict]:
            all_known = known[verdict] == counts[verdict]
            style = _DIM if not loud or all_known else ANSWER_STYLES.get(verdict, "bold red")
            note = "" if not known[verdict] else " (known)" if all_known else f" ({count(known[verdict])} known)"
            spans += [", " if spans else "", (f"{count(counts[verdict])} {verdict.value}{note}", style)]
    return spans


def _show_behaviours(page: Page, behaviours: Sequence[Behaviour]) -> None:
    if not behaviours:
        return
    page.heading("behaviour in a stream")
    for behaviour in behaviours:
        style = STYLES[behaviour.verdict]
        page.line(page.mark(behaviour.verdict), "  ", (behaviour.id, style), "  ", behaviour.text, indent=2, hang=5)
        if behaviour.verdict is not Verdict.PASS or page.verbose:
            page.line((behaviour.found, _DIM), indent=5)
            for line in behaviour.evidence if page.verbose else ():
                page.line((shorten(line, 400), _DIM), indent=7)


def _show_aside(page: Page, report: ConsumerReport) -> None:
    """What fails nobody: known failures, dialects that it does not claim, vectors of no dialect."""
    groups = {
        "known failures": [one for one in report.judgements if one.known],
        "dialects that it does not claim": [
            one for one in report.judgements if not one.required and not one.known and one.dialect
        ],
        "payloads of no dialect": [one for one in report.judgements if not one.known and one.dialect is None],
    }
    for title, judgements in groups.items():
        found = causes(judgements)
        if not found:
            continue
        total = sum(len(cause.judgements) for cause in found)
        if not page.verbose:
            page.heading(title, f"{count(total)} not exact, reported only; -v shows them")
            continue
        page.heading(title, f"{count(total)} not exact, reported only")
        for cause in found:
            number = len(cause.judgements)
            page.line(
                (f"{cause.verdict.value}  ", ANSWER_STYLES.get(cause.verdict, "red")),
                shorten(cause.title, 200),
                (f"  {counted(number, 'payload')}", _DIM),
                indent=2,
                hang=4,
            )
            show_judgement(page, cause.example, label="example")


def _show_list(page: Page, title: str, lines: Sequence[str], style: str, sign: str = "• ") -> None:
    if not lines:
        return
    page.heading(title)
    for line in lines:
        page.line(sign, (shorten(line, 1000), style), indent=2, hang=4)


def _show_not_run(page: Page, report: ConsumerReport) -> None:
    if not report.not_run:
        return
    page.heading("not judged", counted(len(report.not_run), "payload"))
    shown = report.not_run if page.verbose > 1 else report.not_run[:3]
    more = len(report.not_run) - len(shown)
    page.line(", ".join(shown) + (f" and {count(more)} more" if more else ""), indent=2)


def _show_end(page: Page, report: ConsumerReport) -> None:
    page.blank()
    counts: list[Span] = [(counted(len(report.judgements), "payload"), "bold")]
    tally = _tally(report.judgements, loud=True)
    if tally:
        counts += [": ", *tally]
    meaning: list[Span] = [
        (f"exit {report.exit_code}", "bold"),
        f": {EXITS.get(report.exit_code, 'unknown')} ({seconds(report.seconds)})",
    ]
    if cell_len(page.text(*counts, "; ", *meaning).plain) <= page.width:
        page.line(*counts, "; ", *meaning)
        return
    page.line(*counts, hang=2)
    page.line(*meaning, hang=2)
