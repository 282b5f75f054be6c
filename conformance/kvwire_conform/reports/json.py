"""The report as JSON: `spec/schema/report.schema.json`."""

from __future__ import annotations

import json
import math
import sys
from typing import Any

import msgspec

from kvwire_conform.model import REPORT_VERSION, Report

_decoder = msgspec.json.Decoder(Report)


def to_json(report: Report) -> bytes:
    """The report as indented UTF-8 JSON, the same bytes for equal reports.

    Keys stand in the order of the model, tables (events, media …) in that of their names. Every field is written. What a
    terminal could act on is escaped. Two values change: JSON has no lone surrogates, so ``U+D800`` becomes the six
    characters ``\\ud800``; and no infinity and NaN, which become the largest float and 0.
    """
    return render_json(report)


def from_json(data: bytes | str) -> Report:
    """Read what `to_json` wrote; keys it does not know are passed over.

    Raises:
        ValueError: not a report, or one of a later version.
    """
    try:
        report = _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise ValueError(f"not a report of kvwire-conform: {error}") from error
    if report.report > REPORT_VERSION:
        raise ValueError(f"a report of version {report.report}; this release reads up to version {REPORT_VERSION}")
    return report


def render_json(report: msgspec.Struct) -> bytes:
    """What `to_json` says, of any report."""
    builtins = _writable(msgspec.to_builtins(report, order="deterministic"))
    text = json.dumps(builtins, indent=2, ensure_ascii=False, allow_nan=False)
    return (_escape(text) + "\n").encode()


def _writable(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        written = {_writable(key): _writable(item) for key, item in value.items()}
        # A table whose names changed is put in the order of the names as they are now; fields of the model never change.
        return written if written.keys() == value.keys() else dict(sorted(written.items()))
    if isinstance(value, list | tuple):
        return [_writable(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return 0.0 if math.isnan(value) else math.copysign(sys.float_info.max, value)
    return value


def _escape(text: str) -> str:
    """Escape what is not printable; only strings can hold such characters, but for the line breaks between them."""
    if text.replace("\n", "").isprintable():
        return text
    return "".join(char if char == "\n" or char.isprintable() else _json_escape(char) for char in text)


def _json_escape(char: str) -> str:
    return json.dumps(char)[1:-1] if ord(char) > 0x7F else f"\\u{ord(char):04x}"
