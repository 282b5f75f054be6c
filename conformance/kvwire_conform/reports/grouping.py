"""Results in the order in which a person reads them: by section, one row for all sources that came out alike."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass

from kvwire_conform.model import CheckResult, Verdict

SECTIONS = ("transport", "batch", "events", "evolution", "stream", "replay", "hashes")
WORST_FIRST = (
    Verdict.HARNESS_ERROR,
    Verdict.ERROR,
    Verdict.FAIL,
    Verdict.WARN,
    Verdict.INCONCLUSIVE,
    Verdict.SKIP,
    Verdict.PASS,
)
RED = (Verdict.HARNESS_ERROR, Verdict.ERROR, Verdict.FAIL)


@dataclass(frozen=True)
class Row:
    """One check, and the sources with which it had the same verdict.

    Attributes:
        results: one a source; at least one.
        of: how many sources the check has a result for.
    """

    results: tuple[CheckResult, ...]
    of: int

    @property
    def first(self) -> CheckResult:
        """The result of the first source."""
        return self.results[0]

    @property
    def id(self) -> str:
        """The check's id."""
        return self.first.id

    @property
    def verdict(self) -> Verdict:
        """What all of them came to."""
        return self.first.verdict

    @property
    def judged(self) -> int:
        """Things judged in all sources together."""
        return sum(result.judged for result in self.results)

    @property
    def violations(self) -> int:
        """Violations in all sources together."""
        return sum(result.violations for result in self.results)

    @property
    def sources(self) -> list[str]:
        """Names of the sources."""
        return [result.source for result in self.results]

    @property
    def reasons(self) -> list[str]:
        """The different reasons, in order."""
        return list(dict.fromkeys(result.reason for result in self.results if result.reason))


def short_names(sources: Iterable[str]) -> dict[str, str]:
    """Names without the scheme and the end that all of them share; as they are where one alone or unlike.

    ``tcp://a.pool:5557`` and ``tcp://b.pool:5557`` become ``a`` and ``b``.
    """
    names = list(dict.fromkeys(sources))
    scheme = names[0].partition("://")[0] + "://" if names else ""
    if len(names) < 2 or not all(name.startswith(scheme) and name != scheme for name in names):
        return {name: name for name in names}
    alike = itertools.takewhile(lambda signs: len(set(signs)) == 1, zip(*map(reversed, names), strict=False))
    ends = "".join(signs[0] for signs in alike)[::-1]
    at = min((ends.find(sign) for sign in ".:" if sign in ends), default=len(ends))
    end = ends[at:]
    short = {name: name[len(scheme) : len(name) - len(end)] for name in names}
    return short if all(short.values()) else {name: name for name in names}


def section_of(result: CheckResult) -> str:
    """The part of the specification: the page, but replay and hashes are parts of their own."""
    page, _, heading = result.section.partition("#")
    if heading == "replay":
        return "replay"
    name = page.removesuffix(".md")
    return "hashes" if name in ("hashing", "hashes") else name


def sections(results: Iterable[CheckResult]) -> dict[str, list[Row]]:
    """The rows of each section, in the order of the specification; unknown sections last."""
    by_check: dict[str, dict[str, list[CheckResult]]] = {}
    for result in results:
        by_check.setdefault(section_of(result), {}).setdefault(result.id, []).append(result)
    known = [name for name in SECTIONS if name in by_check]
    return {
        name: [row for found in by_check[name].values() for row in _rows(found)]
        for name in [*known, *(name for name in by_check if name not in SECTIONS)]
    }


def _rows(results: list[CheckResult]) -> list[Row]:
    alike = ((verdict, tuple(r for r in results if r.verdict is verdict)) for verdict in WORST_FIRST)
    return [Row(found, len(results)) for _, found in alike if found]
