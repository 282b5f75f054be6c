"""The report as JUnit XML, for CI systems.

One testsuite a source, one testcase a check: ``name`` is the check's id, ``classname`` the section of the
specification. A violated MUST is a failure; a crash of the subject and our own faults are errors; a warning passes
and says why in ``system-out``; what could not be judged is skipped. When the run as a whole went wrong and no testcase
shows it (nothing heard, endpoint not reached, interrupted), a suite ``run`` holds one error: the file is red whenever
the exit code is not 0.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from xml.etree import ElementTree as ET

from kvwire_conform.model import CheckResult, Evidence, Finding, Report, Source, Verdict
from kvwire_conform.reports.text import counted, printable

_RED = {Verdict.FAIL: "failure", Verdict.ERROR: "error", Verdict.HARNESS_ERROR: "error"}
_UNJUDGED = (Verdict.SKIP, Verdict.INCONCLUSIVE)
_COUNTS = ("tests", "failures", "errors", "skipped")
_TAGS = {"failure": "failures", "error": "errors", "skipped": "skipped"}


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
    for key in _COUNTS:
        root.set(key, str(sum(int(suite.get(key, "0")) for suite in root)))
    root.set("time", _time(report.seconds))
    ET.indent(root)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ET.tostring(root, encoding="unicode")}\n'


def _suite(report: Report, source: Source, results: list[CheckResult]) -> ET.Element:
    suite = _new_suite(report, source.name, source.span)
    told = {
        "tool": report.tool,
        "subject": " ".join(report.subject),
        "dialect": source.dialect or "",
        "candidates": " ".join(source.candidates),
        "releases": source.releases,
        "messages": str(source.messages),
        "verdict": report.verdict.value,
    }
    _properties(suite, {name: value for name, value in told.items() if value})
    for result in results:
        suite.append(_case(result))
    return _tallied(suite)


def _case(result: CheckResult) -> ET.Element:
    case = ET.Element("testcase", name=printable(result.id), classname=printable(result.section), time="0.000")
    _properties(
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
        red.text = _text(_story(result))
    elif result.verdict in _UNJUDGED:
        ET.SubElement(
            case, "skipped", message=printable(f"{result.verdict.value}: {result.reason or 'no reason told'}")
        )
    elif result.verdict is Verdict.WARN:
        ET.SubElement(case, "system-out").text = _text([f"warning: {_headline(result)}", *_story(result)])
    elif result.reason:
        ET.SubElement(case, "system-out").text = _text([result.reason])
    return case


def _run_suite(report: Report) -> ET.Element:
    suite = _new_suite(report, "run", report.seconds)
    case = ET.SubElement(suite, "testcase", name="verdict", classname="run", time="0.000")
    kind = "interrupted" if report.interrupted else report.verdict.value
    error = ET.SubElement(case, "error", type=kind, message=printable(f"{kind}: exit code {report.exit_code}"))
    error.text = _text([f"subject: {' '.join(report.subject)}", *report.advice])
    return _tallied(suite)


def _new_suite(report: Report, name: str, span: float) -> ET.Element:
    suite = ET.Element("testsuite", name=printable(name), time=_time(span))
    try:
        began = datetime.datetime.fromtimestamp(report.started, datetime.timezone.utc)
    except (ValueError, OverflowError, OSError):
        return suite
    suite.set("timestamp", began.strftime("%Y-%m-%dT%H:%M:%S"))
    return suite


def _tallied(suite: ET.Element) -> ET.Element:
    totals = dict.fromkeys(_COUNTS, 0)
    for case in suite.iter("testcase"):
        totals["tests"] += 1
        for outcome in case:
            if outcome.tag in _TAGS:
                totals[_TAGS[outcome.tag]] += 1
    for key, value in totals.items():
        suite.set(key, str(value))
    return suite


def _properties(parent: ET.Element, told: dict[str, str]) -> None:
    properties = ET.SubElement(parent, "properties")
    for name, value in told.items():
        ET.SubElement(properties, "property", name=name, value=printable(value))


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


def _text(lines: Iterable[str]) -> str:
    return "\n".join(map(printable, lines))


def _time(span: float) -> str:
    return f"{span:.3f}" if 0 <= span < 1e12 else "0.000"
