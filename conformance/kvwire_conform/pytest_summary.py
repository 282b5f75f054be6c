"""What the plugin adds to a test's report, and to the end of the run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from kvwire_conform.consumer_model import Judgement
from kvwire_conform.pytest_text import about
from kvwire_conform.pytest_vectors import VectorCase, VectorError
from kvwire_conform.reports.consumer_causes import causes, hint_of

__all__ = ["note", "summarise"]

_CAUSES = 12
_PLACES = 3
_TITLE = 80


def note(item: pytest.Item, report: Any, error: BaseException | None) -> None:
    """Keep the verdict for `summarise`; where the test failed in some other way, add what the vector is."""
    if isinstance(error, VectorError):
        _keep(report, error)
        return
    if error is None:
        # pytest fails what passed against its expectation, and says no more than the reason of that.
        if str(report.longrepr).startswith("[XPASS(strict)]"):
            report.longrepr = f"{report.longrepr}; it is exact: change the entry or remove it"
        return
    callspec = getattr(item, "callspec", None)
    vector = callspec.params.get("vector") if callspec is not None else None
    if isinstance(vector, VectorCase) and report.when == "call":
        report.sections.append(("kvwire vector", about(vector.golden)))


def _keep(report: Any, error: VectorError) -> None:
    judgement = error.judgement
    places = ", ".join(dict.fromkeys(one.where for one in judgement.differences[:_PLACES]))
    crash = getattr(report.longrepr, "reprcrash", None)
    if crash is not None:
        # What pytest's own summary shows beside the id of the test, and JUnit as the message.
        crash.message = f"{judgement.verdict.value}: {places or judgement.said or judgement.note}"
    if not error.written:
        # Text, since pytest-xdist sends a report's attributes from process to process.
        report.kvwire_judgement = msgspec.json.encode(judgement).decode()


def summarise(terminal: Any, reports: Sequence[Any]) -> None:
    """Write the likely causes of what failed; with ``-v`` also the lines that a known-failures file would need."""
    judgements = [msgspec.json.decode(report.kvwire_judgement, type=Judgement) for report in reports]
    found = causes(judgements)
    terminal.section("golden vectors", sep="=")
    vectors = "1 vector" if len(judgements) == 1 else f"{len(judgements)} vectors"
    terminal.line(f"{vectors} failed, {'1 likely cause' if len(found) == 1 else f'{len(found)} likely causes'}:")
    for cause in found[:_CAUSES]:
        number = len(cause.judgements)
        which = cause.example.id if number == 1 else f"{number} vectors, e.g. {cause.example.id}"
        terminal.line(f"  {cause.verdict.value}: {_cut(cause.title)} ({which})")
        if hint_of(cause):
            terminal.line(f"    {hint_of(cause)}")
    if len(found) > _CAUSES:
        terminal.line(f"  and {len(found) - _CAUSES} more causes")
    if terminal.config.getoption("verbose") > 0:
        from kvwire_conform.known_failures import update

        terminal.line("To take them as known, put these lines in a file and name it: known_failures=FILE")
        for line in update("", judgements, ()).splitlines():
            terminal.line(f"  {line}")
    else:
        terminal.line("-v shows the lines that known_failures=FILE would need")


def _cut(text: str) -> str:
    return text if len(text) <= _TITLE else f"{text[: _TITLE - 1]}…"
