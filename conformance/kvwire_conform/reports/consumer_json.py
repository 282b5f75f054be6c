"""The report on a consumer as JSON: `spec/schema/consumer-report.schema.json`."""

from __future__ import annotations

import msgspec

from kvwire_conform.consumer_model import CONSUMER_REPORT_VERSION, ConsumerReport
from kvwire_conform.reports.json import render_json

__all__ = ["from_json", "to_json"]

_decoder = msgspec.json.Decoder(ConsumerReport)


def to_json(report: ConsumerReport) -> bytes:
    """The report as indented UTF-8 JSON, the same bytes for equal reports; see `kvwire_conform.reports.json.to_json`."""
    return render_json(report)


def from_json(data: bytes | str) -> ConsumerReport:
    """Read what `to_json` wrote; keys it does not know are passed over.

    Raises:
        ValueError: not a report on a consumer, or one of a later version.
    """
    try:
        report = _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise ValueError(f"not a report of kvwire-conform consumer: {error}") from error
    if report.report > CONSUMER_REPORT_VERSION:
        raise ValueError(
            f"a report of version {report.report}; this release reads up to version {CONSUMER_REPORT_VERSION}"
        )
    return report
