"""The report as JUnit XML, for CI systems.

One testsuite a source, one testcase a check: ``name`` is the check's id, ``classname`` the section of the
specification. A violated MUST is a failure; a crash of the subject and our own faults are errors; a warning passes
and says why in ``system-out``; what could not be judged is skipped. When the run as a whole went wrong and no testcase
shows it (nothing heard, endpoint not reached, interrupted), a suite ``run`` holds one error: the file is red whenever
the exit code is not 0.
"""

from __future__ import annotations

from xml.etree import ElementTree as ET

from kvwire_conform.model import CheckResult, Evidence, Finding, Report, Source, Verdict
from kvwire_conform.reports.junit_parts import document, new_suite, properties, tallied, text_of
from kvwire_conform.reports.text import counted, printable

_RED = {Verdict.FAIL: "failure", Verdict.ERROR: "error", Verdict.HARNESS_ERROR: "error"}
_UNJUDGED = (Verdict.SKIP, Verdict.INCONCLUSIVE)


def to_junit(report: Report) -> str:
    """The report as an XML document."""
    root = ET.Element("testsuites", name=printable(f"kvwire-conform {report.mode}"))
    known = {source.name: source for source in report.sources}
    by_source: dict[str, list[CheckResult]] = {source.name: [] for source in report.sources}
    for result in report.results:
        by_source.setdefault(result.source, []).append(result)
    for name, results in by_source.items():
        if results:
            root.append(_suite(report, known.get(name) or Source(name=name), results))
    if report.exit_code and root.find(".//failure") is None and root.find(".//error") is None:
        root.append(_run_suite(report))
    return document(root, report.seconds)


def _suite(report: Report, source: Source, results: list[CheckResult]) -> ET.Element:
    suite = new_suite(source.name, started=report.started, span=source.span)
    told = {
        "tool": report.tool,
        "subject": " ".join(report.subject),
        "dialect": source.dialect or "",
        "candidates": " ".join(source.candidates),
        "releases": source.releases,
        "messages": str(source.messages),
        "verdict": report.verdict.value,
    }
    properties(suite, {name: value for name, value in told.items() if value})
    for result in results:
        suite.append(_case(result))
    return tallied(suite)


def _case(result: CheckResult) -> ET.Element:
    case = ET.Element("testcase", name=printable(result.id), classname=printable(result.section), time="0.000")
    properties(
        case,
        {
            "level": result.level.value,
            "verdict": result.verdict.value,
            "judged": str(result.judged),
            "violations": str(result.violations),
        },
    )
    if result.verdict in _RED:
        red = ET.SubElement(case, _RED[result.verdict], type=result.verdict.value, message=_headline(result))
        red.text = text_of(_story(result))
    elif result.verdict in _UNJUDGED:
        ET.SubElement(
            case, "skipped", message=printable(f"{result.verdict.value}: {result.reason or 'no reason told'}")
        )
    elif result.verdict is Verdict.WARN:
        ET.SubElement(case, "system-out").text = text_of([f"warning: {_headline(result)}", *_story(result)])
    elif result.reason:
        ET.SubElement(case, "system-out").text = text_of([result.reason])
    return case


def _run_suite(report: Report) -> ET.Element:
    suite = new_suite("run", started=report.started, span=report.seconds)
    case = ET.SubElement(suite, "testcase", name="verdict", classname="run", time="0.000")
    kind = "interrupted" if report.interrupted else report.verdict.value
    error = ET.SubElement(case, "error", type=kind, message=printable(f"{kind}: exit code {report.exit_code}"))
    error.text = text_of([f"subject: {' '.join(report.subject)}", *report.advice])
    return tallied(suite)


def _headline(result: CheckResult) -> str:
    if result.findings:
        first = result.findings[0]
        return printable(f"{result.violations} of {result.judged}: expected {first.expected}; got {first.got}")
    return printable(result.reason or result.text)


def _story(result: CheckResult) -> list[str]:
    lines = [f"{result.level.value} {result.section}: {result.text}"]
    if result.reason:
        lines.append(f"note: {result.reason}")
    for finding in result.findings:
        lines += ["", *_finding(finding)]
    untold = result.violations - len(result.findings)
    if untold > 0:
        lines += ["", f"and {counted(untold, 'more', 'more')} like it"]
    if result.rerun:
        lines += ["", f"rerun: {result.rerun}"]
    return lines


def _finding(finding: Finding) -> list[str]:
    lines = [f"expected: {finding.expected}", f"got: {finding.got}"]
    if finding.hint:
        lines.append(f"hint: {finding.hint}")
    return lines + (_evidence(finding.evidence) if finding.evidence else [])


def _evidence(evidence: Evidence) -> list[str]:
    where = [evidence.channel]
    if evidence.seq is not None:
        where.append(f"seq {evidence.seq}")
    if evidence.event_index is not None:
        where.append(f"event {evidence.event_index}")
    lines = [f"where: {', '.join(where)}", *(f"  {slot}" for slot in evidence.slots)]
    lines += [f"frame {index}: {frame}" for index, frame in enumerate(evidence.frames)]
    if evidence.cut:
        lines.append(f"{evidence.cut} bytes of the frames are left out")
    return lines
