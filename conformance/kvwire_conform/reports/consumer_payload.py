"""The payloads behind judgements, byte by byte."""

from __future__ import annotations

from collections.abc import Sequence

from kvwire_conform import golden
from kvwire_conform.consumer_generated import payload_of
from kvwire_conform.consumer_model import Judgement
from kvwire_conform.golden_text import hex_of, parts_of
from kvwire_conform.reports.page import Page
from kvwire_conform.reports.text import shorten

__all__ = ["show_bytes", "show_payloads"]

_INDENT = 4
_COLUMN = 14
_BYTES = (16, 64, 512)
_PARTS = 60


def show_payloads(page: Page, judgements: Sequence[Judgement], seed: int | None) -> None:
    """Write each payload with its verdict."""
    for one in judgements:
        page.heading(one.id, f"{one.kind}, {one.verdict.value}")
        show_bytes(page, one, seed)


def show_bytes(page: Page, one: Judgement, seed: int | None) -> None:
    """Write a payload: what it is there for, its hex, and its slots or keys. Nothing where it is not at hand."""
    if seed is not None and one.id.startswith(f"seed-{seed}/"):
        payload, about = payload_of(one.id), "made by a simulated engine"
    else:
        try:
            vector = golden.load(one.id)
        except golden.GoldenError:
            return
        payload, about = vector.payload, vector.description
    page.pair("about", about, indent=_INDENT, column=_COLUMN)
    limit = _BYTES[min(page.verbose, 2)]
    shown_hex = payload[: 4 * limit].hex()
    groups = " ".join(shown_hex[at : at + 8] for at in range(0, len(shown_hex), 8)) or "empty"
    left = len(payload) - 4 * limit
    page.pair("hex", (groups, "dim"), f" … (+{left} bytes)" if left > 0 else "", indent=_INDENT, column=_COLUMN)
    parts = parts_of(payload, one.dialect)
    shown = parts if page.verbose > 1 else parts[:_PARTS]
    for part in shown:
        label = "  " * part.depth + part.label
        page.line(
            label,
            (f"  {shorten(hex_of(part.data, 12), 100)}", "cyan"),
            (f"  {shorten(part.words, 200)}", "dim"),
            indent=_INDENT,
            hang=_INDENT + 2 * part.depth + 2,
            most=3,
        )
    if len(shown) < len(parts):
        page.line((f"{len(parts) - len(shown)} more; -vv shows them", "dim"), indent=_INDENT)
