"""The report on a consumer as JUnit XML.

One testsuite a dialect, one testcase a payload. What is required and not exact is a failure, or an error where the consumer
broke down; what is known to fail, and what no claim requires, is skipped with its verdict. Stale known failures and what was
not judged stand in a suite ``run``: the file is red whenever the exit code is not 0.
"""

from __future__ import annotations

from xml.etree import ElementTree as ET

from kvwire_conform.consumer_model import AnswerVerdict, ConsumerReport, Judgement
from kvwire_conform.model import Verdict
from kvwire_conform.reports.junit_parts import document, new_suite, properties, tallied, text_of
from kvwire_conform.reports.text import printable

__all__ = ["to_junit"]

_BROKE = (AnswerVerdict.CRASHED, AnswerVerdict.HUNG, AnswerVerdict.GARBLED)


def to_junit(report: ConsumerReport) -> str:
    """The report as an XML document."""
    root = ET.Element("testsuites", name=printable(f"kvwire-conform {report.mode}"))
    by_dialect: dict[str, list[Judgement]] = {}
    for one in report.judgements:
        by_dialect.setdefault(one.dialect or "any", []).append(one)
    for name, judgements in by_dialect.items():
        suite = new_suite(name, started=report.started, span=0.0)
        properties(suite, _about(report))
        for one in judgements:
            suite.append(_case(report, name, one))
        root.append(tallied(suite))
    if report.behaviours:
        root.append(_behaviours(report))
    run = _run_suite(report)
    if run is not None:
        root.append(run)
    if report.exit_code and root.find(".//failure") is None and root.find(".//error") is None:
        suite = new_suite("exit", started=report.started, span=0.0)
        case = ET.SubElement(suite, "testcase", name="exit-code", classname="run", time="0.000")
        kind = "interrupted" if report.interrupted else report.verdict.value
        error = ET.SubElement(case, "error", type=kind, message=f"{kind}: exit code {report.exit_code}")
        error.text = text_of([f"subject: {' '.join(report.subject)}", *report.advice])
        root.append(tallied(suite))
    return document(root, report.seconds)


def _about(report: ConsumerReport) -> dict[str, str]:
    told = {"tool": report.tool, "subject": " ".join(report.subject), "golden suite": str(report.suite)}
    if report.seed is not None:
        told["seed"] = str(report.seed)
    if report.consumer is not None:
        told |= {"consumer": f"{report.consumer.name} {report.consumer.version}", "reading": report.consumer.reading}
    return told


def _case(report: ConsumerReport, suite: str, one: Judgement) -> ET.Element:
    case = ET.Element("testcase", name=printable(one.id), classname=printable(f"{suite}.{one.kind}"), time="0.000")
    if one.verdict is AnswerVerdict.EXACT:
        return case
    message = printable(f"{one.verdict.value}: {_headline(one)}")
    if one.known or not one.required:
        why = "known failure" if one.known else "not claimed"
        ET.SubElement(case, "skipped", message=f"{why}: {message}")
        return case
    tag = "error" if one.verdict in _BROKE else "failure"
    red = ET.SubElement(case, tag, type=one.verdict.value, message=message)
    red.text = text_of(_story(report, one))
    return case


def _headline(one: Judgement) -> str:
    if one.differences:
        first = one.differences[0]
        return f"{first.where}: expected {first.expected}; got {first.got}"
    return (one.said or one.note or "no words").partition("\n")[0]


def _story(report: ConsumerReport, one: Judgement) -> list[str]:
    lines = [f"{d.where}: expected {d.expected}; got {d.got}" for d in one.differences]
    lines += [f"says: {line}" for line in one.said.splitlines()]
    lines += [f"note: {one.note}"] if one.note else []
    if report.rerun:
        lines += ["", f"rerun: {report.rerun.replace('ID', one.id)}"]
    return lines


def _behaviours(report: ConsumerReport) -> ET.Element:
    suite = new_suite("behaviours", started=report.started, span=0.0)
    for behaviour in report.behaviours:
        case = ET.SubElement(suite, "testcase", name=printable(behaviour.id), classname="behaviour", time="0.000")
        message = printable(f"{behaviour.text}: {behaviour.found}")
        if behaviour.verdict in (Verdict.FAIL, Verdict.ERROR, Verdict.HARNESS_ERROR):
            tag = "failure" if behaviour.verdict is Verdict.FAIL else "error"
            ET.SubElement(case, tag, type=behaviour.verdict.value, message=message).text = text_of(behaviour.evidence)
        elif behaviour.verdict is not Verdict.PASS:
            ET.SubElement(case, "skipped", message=f"{behaviour.verdict.value}: {message}")
    return tallied(suite)


def _run_suite(report: ConsumerReport) -> ET.Element | None:
    suite = new_suite("run", started=report.started, span=report.seconds)
    for entry in report.stale:
        case = ET.SubElement(suite, "testcase", name=printable(entry), classname="run.known-failures", time="0.000")
        ET.SubElement(case, "failure", type="stale", message=printable(entry))
    for ident in report.not_run:
        case = ET.SubElement(suite, "testcase", name=printable(ident), classname="run.not-run", time="0.000")
        ET.SubElement(case, "skipped", message="inconclusive: it was not judged")
    return tallied(suite) if len(suite) else None
