"""What every check is made of: a tally of what was judged and what was wrong."""

from __future__ import annotations

from collections.abc import Callable

from kvwire_conform.model import CheckResult, Finding, Level, Requirement, Verdict

MAX_FINDINGS = 3
"""Findings kept per check; the rest are counted."""

MakeFinding = Callable[[], Finding]


class Tally:
    """One check on one source, while it runs.

    Args:
        requirement: what is judged.
        source: name of the source.
    """

    def __init__(self, requirement: Requirement, source: str) -> None:
        self.requirement = requirement
        self.source = source
        self.judged = 0
        self.violations = 0
        self.warnings = 0
        self.undecided = 0
        self.findings: list[Finding] = []
        self.notes: list[str] = []
        self.skip_reason = ""
        self.doubt = ""
        self._kept_violation = False

    def ok(self, count: int = 1) -> None:
        """Count things that were judged and right."""
        self.judged += count

    def violation(self, make: MakeFinding) -> None:
        """Count one thing that was judged and wrong. ``make`` is called only when its finding is kept."""
        self.judged += 1
        self.violations += 1
        if not self._kept_violation:
            # A violation is worth more than the warnings before it.
            self.findings.clear()
            self._kept_violation = True
        if len(self.findings) < MAX_FINDINGS:
            self.findings.append(make())

    def warning(self, make: MakeFinding) -> None:
        """Count one thing that is odd without being surely wrong."""
        self.judged += 1
        self.warnings += 1
        if not self._kept_violation and len(self.findings) < MAX_FINDINGS:
            self.findings.append(make())

    def count_violations(self, count: int) -> None:
        """Count further things that were wrong, of which no finding was kept."""
        self.judged += count
        self.violations += count

    def undecidable(self, reason: str, count: int = 1) -> None:
        """Count things that could not be judged, and why."""
        self.undecided += count
        self.doubt = self.doubt or reason

    def note(self, text: str) -> None:
        """Say something about a pass or a warning, once."""
        if text not in self.notes and len(self.notes) < MAX_FINDINGS:
            self.notes.append(text)

    def skip(self, reason: str) -> None:
        """Say why there is nothing to judge in this run at all."""
        self.skip_reason = reason

    def result(self, rerun: str = "") -> CheckResult:
        """The verdict."""
        verdict, reason = self._verdict()
        return CheckResult(
            id=self.requirement.id,
            source=self.source,
            level=self.requirement.level,
            section=self.requirement.section,
            text=self.requirement.text,
            verdict=verdict,
            judged=self.judged,
            violations=self.violations or self.warnings,
            findings=self.findings,
            reason=reason,
            rerun=rerun,
        )

    def _verdict(self) -> tuple[Verdict, str]:
        said = "; ".join(self.notes)
        if self.violations:
            return (Verdict.FAIL if self.requirement.level is Level.MUST else Verdict.WARN), said
        if self.warnings:
            return Verdict.WARN, said
        if self.judged:
            if self.undecided:
                said = "; ".join([*self.notes, f"{self.undecided} could not be judged: {self.doubt}"])
            return Verdict.PASS, said
        if self.skip_reason:
            return Verdict.SKIP, self.skip_reason
        if self.undecided:
            return Verdict.INCONCLUSIVE, f"{self.undecided} could not be judged: {self.doubt}"
        return Verdict.INCONCLUSIVE, f"needs {self.requirement.needs or 'a message'}"
