"""The report in a terminal, for a person."""

from __future__ import annotations

from collections import Counter

from rich.cells import cell_len
from rich.console import Console

from kvwire_conform.model import Report, Source, Verdict
from kvwire_conform.reports.facts import Fact, common, facts, headline
from kvwire_conform.reports.findings import show_failures, show_warnings
from kvwire_conform.reports.grouping import RED, WORST_FIRST
from kvwire_conform.reports.page import STYLES, Page, Span
from kvwire_conform.reports.results import show_results
from kvwire_conform.reports.text import all_of, count, counted, seconds, shorten

EXITS = {
    0: "nothing unexpected",
    1: "a requirement is violated",
    2: "usage or configuration",
    3: "the subject could not be reached",
    4: "inconclusive: a required check saw nothing to judge",
    5: "a fault of this tool",
    130: "interrupted",
}
"""What the exit codes mean."""

_DIM = "dim"
_COLUMN = 14
_BLOCKS = 2
"""So many sources get a block of facts each; more of them a paragraph each."""
BADGES = {
    Verdict.PASS: "bold black on green",
    Verdict.FAIL: "bold white on red",
    Verdict.WARN: "bold black on yellow",
    Verdict.INCONCLUSIVE: "bold black on cyan",
    Verdict.ERROR: "bold white on red",
    Verdict.HARNESS_ERROR: "bold white on magenta",
}
"""How the verdict of a run is shown."""


def render(report: Report, console: Console, *, verbose: int = 0) -> None:
    """Write a report.

    Colour and signs on a UTF-8 terminal; words in ASCII without escape codes when piped, under NO_COLOR and on other
    terminals. No line is wider than the console (of at least 20 columns), and no text of the report can steer it.

    Args:
        verbose: 1 unfolds lists, shows every finding and longer frames; 2 also the sentence of every requirement.
    """
    page = Page(console, verbose)
    _show_headline(page, report)
    _show_sources(page, report.sources)
    show_results(page, report)
    show_failures(page, report)
    show_warnings(page, report)
    _show_breaks(page, report)
    _show_advice(page, report)
    _show_end(page, report)


def _show_headline(page: Page, report: Report) -> None:
    word = page.word(report.verdict)
    badge: Span = word if page.plain else (f" {word.upper()} ", BADGES.get(report.verdict, "bold"))
    gap = ": " if page.plain else "  "
    indent = page.wide(word) + 2 + (0 if page.plain else 2)
    page.line(badge, gap, (shorten(headline(report), 500), "bold"), hang=min(indent, 8))
    said = _said(report)
    if said:
        page.line(said, indent=min(indent, 8))


def _said(report: Report) -> str:
    said = []
    if report.interrupted:
        said.append(f"Interrupted after {seconds(report.seconds)}: this is what was seen so far.")
    violated = list(dict.fromkeys(r.id for r in report.results if r.verdict in RED))
    warned = list(dict.fromkeys(r.id for r in report.results if r.verdict is Verdict.WARN))
    if violated:
        said.append(f"{counted(len(violated), 'requirement')} violated: {_listed(violated)}.")
    if warned:
        said.append(f"{counted(len(warned), 'warning')}: {_listed(warned)}.")
    return " ".join(said)


def _listed(ids: list[str]) -> str:
    return ", ".join(ids[:5]) + (f" and {len(ids) - 5} more" if len(ids) > 5 else "")


def _show_sources(page: Page, sources: list[Source]) -> None:
    told = [(source, _worth(page, source)) for source in sources]
    if not told:
        return
    shared = common(found for _, found in told) if len(told) > 1 else []
    if shared:
        page.heading(all_of(len(told), "sources"))
        for fact in shared:
            _show_fact(page, fact)
    column = max(page.wide(source.name) for source in sources) + 2
    for source, found in told:
        if len(told) == 1:
            page.blank()
            for fact in found[1:]:
                _show_fact(page, fact)
            return
        own = [fact for fact in found if fact not in shared]
        if len(told) <= _BLOCKS:
            page.heading(shorten(source.name, 300))
            for fact in own:
                _show_fact(page, fact)
        else:
            _show_paragraph(page, source.name, own, column, first=source is sources[0])


def _worth(page: Page, source: Source) -> list[Fact]:
    found = facts(source)
    if page.verbose and source.policy:
        found.append(Fact("policy", source.policy))
    return found


def _show_fact(page: Page, fact: Fact) -> None:
    page.pair(fact.label, (fact.value, "yellow" if fact.alarming else ""), indent=2, column=_COLUMN)


def _show_paragraph(page: Page, name: str, found: list[Fact], column: int, *, first: bool) -> None:
    """A source's facts beside its name where they fit, else below it."""
    if first:
        page.blank()
    spans: list[Span] = []
    for fact in found:
        spans += [("; ", _DIM)] if spans else []
        spans += [(f"{fact.label} ", _DIM), (fact.value, "yellow" if fact.alarming else "")]
    gap = column - page.wide(name)
    if column + cell_len(page.text(*spans).plain) <= page.width:
        page.line((name, "bold"), " " * gap, *spans)
        return
    page.line((shorten(name, 300), "bold"))
    page.line(*spans, indent=2)


def _show_breaks(page: Page, report: Report) -> None:
    if not report.breaks:
        return
    page.heading("what breaks for whom")
    for text in report.breaks:
        trait, colon, victims = text.partition(": ")
        page.line("• ", (trait, "bold"), f"{colon}{shorten(victims, 1000)}", indent=2, hang=4)


def _show_advice(page: Page, report: Report) -> None:
    if not report.advice:
        return
    page.heading("advice")
    for text in report.advice:
        page.line("→ ", shorten(text, 1000), indent=2, hang=5 if page.plain else 4)


def _show_end(page: Page, report: Report) -> None:
    page.blank()
    tally = Counter(result.verdict for result in report.results)
    counts: list[Span] = [(counted(len(report.results), "result"), "bold")]
    for number, verdict in enumerate(v for v in reversed(WORST_FIRST) if tally[v]):
        counts += [", " if number else ": ", (f"{count(tally[verdict])} {verdict.value}", STYLES[verdict])]
    meaning: list[Span] = [(f"exit {report.exit_code}", "bold"), f": {_meaning(report)} ({seconds(report.seconds)})"]
    if cell_len(page.text(*counts, "; ", *meaning).plain) <= page.width:
        page.line(*counts, "; ", *meaning)
        return
    page.line(*counts, hang=2)
    page.line(*meaning, hang=2)


def _meaning(report: Report) -> str:
    if report.exit_code == 1 and not any(result.verdict in RED for result in report.results):
        return "a warning, which counts as a failure in this run"
    return EXITS.get(report.exit_code, "unknown")
