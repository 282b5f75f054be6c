"""What JUnit files are put together from."""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from xml.etree import ElementTree as ET

from kvwire_conform.reports.text import printable

__all__ = ["document", "new_suite", "properties", "tallied", "text_of"]

_COUNTS = ("tests", "failures", "errors", "skipped")
_TAGS = {"failure": "failures", "error": "errors", "skipped": "skipped"}


def document(root: ET.Element, seconds: float) -> str:
    """The whole file: the suites' counts added up."""
    for key in _COUNTS:
        root.set(key, str(sum(int(suite.get(key, "0")) for suite in root)))
    root.set("time", _time(seconds))
    ET.indent(root)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ET.tostring(root, encoding="unicode")}\n'


def new_suite(name: str, *, started: float, span: float) -> ET.Element:
    """A testsuite that began at ``started``, in unix seconds, and took ``span`` seconds."""
    suite = ET.Element("testsuite", name=printable(name), time=_time(span))
    try:
        began = datetime.datetime.fromtimestamp(started, datetime.timezone.utc)
    except (ValueError, OverflowError, OSError):
        return suite
    suite.set("timestamp", began.strftime("%Y-%m-%dT%H:%M:%S"))
    return suite


def tallied(suite: ET.Element) -> ET.Element:
    """The suite, with its testcases counted."""
    totals = dict.fromkeys(_COUNTS, 0)
    for case in suite.iter("testcase"):
        totals["tests"] += 1
        for outcome in case:
            if outcome.tag in _TAGS:
                totals[_TAGS[outcome.tag]] += 1
    for key, value in totals.items():
        suite.set(key, str(value))
    return suite


def properties(parent: ET.Element, told: dict[str, str]) -> None:
    """Give a suite or a case its properties."""
    found = ET.SubElement(parent, "properties")
    for name, value in told.items():
        ET.SubElement(found, "property", name=name, value=printable(value))


def text_of(lines: Iterable[str]) -> str:
    """Lines as the text of an element."""
    return "\n".join(map(printable, lines))


def _time(span: float) -> str:
    return f"{span:.3f}" if 0 <= span < 1e12 else "0.000"
