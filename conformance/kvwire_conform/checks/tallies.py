"""The tallies of one source, one for each check."""

from __future__ import annotations

from collections.abc import Callable

from kvwire_conform.checks.base import Tally
from kvwire_conform.model import CheckResult
from kvwire_conform.requirements import producer_checks


class Tallies:
    """One `Tally` for every producer check, by id."""

    def __init__(self, source: str) -> None:
        self._by_id = {row.id: Tally(row, source) for row in producer_checks()}

    def __getitem__(self, check: str) -> Tally:
        return self._by_id[check]

    def ids(self) -> list[str]:
        """The ids, in the order of the specification."""
        return list(self._by_id)

    def results(self, only: frozenset[str] | None, rerun: Callable[[str], str]) -> list[CheckResult]:
        """The verdicts, in the order of the specification, of all checks or of some."""
        return [tally.result(rerun(id)) for id, tally in self._by_id.items() if only is None or id in only]
