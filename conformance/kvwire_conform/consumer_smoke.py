"""`kvwire-conform consumer --smoke`: does a testee keep to the protocol? What it reads is shown, and fails nothing."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from kvwire_conform.consumer import Selection, cases_of
from kvwire_conform.consumer_model import AnswerVerdict, Consumer
from kvwire_conform.consumer_run import run_testee
from kvwire_conform.model import Verdict
from kvwire_conform.outcome import Exit
from kvwire_conform.reports.page import Page
from kvwire_conform.testee import Limits, NeverStartedError, Testee

__all__ = ["smoke_test"]

_OF_A_DIALECT = {
    "stored-minimal": "an event",
    "hash-uint64-max": "a hash of 64 bits, which is not to be lost in a float",
    "batch-mixed": "several events",
    "unknown-tag-between": "an event with an unknown tag",
    "truncated-last-byte": "a payload that is cut off",
}
_OF_NONE = {
    "any/empty-payload": "an empty payload",
    "any/batch-str": "a payload that is no batch",
    "any/nested-arrays": "a payload that is nested very deep, in a line of 130 kB",
    "any/tokens-65536": "65,536 tokens, in an answer of 200 kB",
}
_BROKE = (AnswerVerdict.CRASHED, AnswerVerdict.HUNG, AnswerVerdict.GARBLED)
_COLUMN = 16


def smoke_test(command: Sequence[str], limits: Limits, console: Console) -> Exit:
    """Check the protocol with a handful of payloads, write what was found, and give the exit code."""
    page = Page(console)
    with Testee(command, limits) as testee:
        try:
            consumer = testee.start()
        except NeverStartedError as error:
            page.line(page.mark(Verdict.FAIL), " ", error.problem, hang=4)
            for line in error.stderr.splitlines():
                page.pair("its stderr", line, indent=2, column=_COLUMN)
            return Exit.UNREACHABLE
        dialects = list(dict.fromkeys([*consumer.dialects[:1], *consumer.dialects[-1:]])) or ["slot6"]
        _show_hello(page, consumer)
        about = {f"{dialect}/{case}": words for dialect in dialects for case, words in _OF_A_DIALECT.items()} | _OF_NONE
        # A vector's id is a glob of its own.
        cases = [case for case in cases_of(consumer, Selection(only=tuple(about))).chosen if case.id in about]
        run = run_testee(testee, cases)
    failed = bool(run.left)
    for case, found in zip(cases, run.found, strict=True):
        if found is None:
            continue
        broke = found.verdict in _BROKE
        failed = failed or broke
        said = f"answered, {found.verdict.value}" if not broke else found.verdict.value
        page.line(
            page.mark(Verdict.FAIL if broke else Verdict.PASS),
            "  ",
            about[case.id],
            (f"  {said}", "dim"),
            indent=2,
            hang=6,
        )
        if broke:
            for line in found.said.splitlines():
                page.line((line, "bold"), indent=6)
    for words in run.left:
        page.line(page.mark(Verdict.FAIL), "  ", words, indent=2, hang=6)
    page.blank()
    if failed:
        page.line("The protocol is not kept; spec/conformance.md says how it goes.")
        return Exit.FAILURE
    page.line("The protocol is kept. Now judge it: the same command without --smoke.")
    return Exit.OK


def _show_hello(page: Page, consumer: Consumer) -> None:
    page.line(page.mark(Verdict.PASS), "  hello from ", (f"{consumer.name} {consumer.version}", "bold"), indent=2)
    page.pair("language", consumer.language, indent=5, column=_COLUMN)
    page.pair("reading", consumer.reading, indent=5, column=_COLUMN)
    page.pair("claims", ", ".join(consumer.dialects) or "no dialect", indent=5, column=_COLUMN)
