"""A console as a page: safe text, hanging indents, no line wider than the console."""

from __future__ import annotations

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from kvwire_conform.model import Verdict
from kvwire_conform.reports.text import plain_ascii, printable
from kvwire_conform.reports.wrapping import cut, wrap

Span = str | tuple[str, str]
"""Text, or text and its style."""

STYLES = {
    Verdict.PASS: "green",
    Verdict.FAIL: "bold red",
    Verdict.WARN: "yellow",
    Verdict.SKIP: "dim",
    Verdict.INCONCLUSIVE: "cyan",
    Verdict.ERROR: "bold red",
    Verdict.HARNESS_ERROR: "bold magenta",
}
_SYMBOLS = {
    Verdict.PASS: "✓",
    Verdict.FAIL: "✗",
    Verdict.WARN: "!",
    Verdict.SKIP: "–",
    Verdict.INCONCLUSIVE: "?",
    Verdict.ERROR: "✗",
    Verdict.HARNESS_ERROR: "✗",
}
_LOUD = (Verdict.FAIL, Verdict.ERROR, Verdict.HARNESS_ERROR)
_NARROWEST = 20


def is_plain(console: Console) -> bool:
    """Whether only ASCII without escape codes should be written: piped, NO_COLOR, or a terminal that is not UTF-8."""
    return not console.is_terminal or console.no_color or console.options.ascii_only


class Page:
    """Where a report is written.

    Every string passes `clean` on its way to the console, so no text can steer the terminal.

    Attributes:
        plain: see `is_plain`.
        width: columns, at least 20.
        verbose: 0, 1 or 2.
    """

    def __init__(self, console: Console, verbose: int = 0) -> None:
        self.console = console
        self.verbose = verbose
        self.plain = is_plain(console)
        self.width = max(console.width, _NARROWEST)
        self._blank = True

    def clean(self, text: str) -> str:
        """The text as this console can safely show it."""
        safe = printable(text)
        return plain_ascii(safe) if self.plain else safe

    def text(self, *spans: Span) -> Text:
        """Spans put together."""
        built = Text()
        for span in spans:
            content, style = (span, "") if isinstance(span, str) else span
            built.append(self.clean(content), None if self.plain else style)
        return built

    def mark(self, verdict: Verdict) -> Span:
        """The sign of a verdict; a word where signs can't be shown."""
        return self.word(verdict) if self.plain else (_SYMBOLS[verdict], STYLES[verdict])

    def word(self, verdict: Verdict) -> str:
        """The word for a verdict; loud ones in capitals."""
        return verdict.value.upper() if verdict in _LOUD else verdict.value

    def wide(self, text: str) -> int:
        """Columns that a text takes."""
        return cell_len(self.clean(text))

    def line(self, *spans: Span, indent: int = 0, hang: int | None = None, most: int | None = None) -> None:
        """Write a paragraph.

        Args:
            indent: columns before its first line.
            hang: columns before the further lines; those of the first where None.
            most: lines that it may take; what is left over is cut off with an ellipsis.
        """
        hang = indent if hang is None else hang
        indent, hang = min(indent, self.width // 2), min(hang, self.width // 2)
        text = self.text(*spans)
        lines = wrap(text.plain, self.width - indent, self.width - hang)
        cut_off = most is not None and len(lines) > most
        for number, (start, end) in enumerate(lines[:most]):
            margin = hang if number else indent
            part = text[start:end]
            if cut_off and number + 1 == most:
                part = self._shortened(text[start:], self.width - margin)
            padded = Text(" " * margin).append_text(part)
            self.console.print(padded, soft_wrap=True, highlight=False, markup=False, emoji=False)
            self._blank = False

    def pair(self, label: str, *spans: Span, indent: int, column: int, hang: int = 0, most: int | None = None) -> None:
        """Write a label and what belongs to it, which stands at ``column``, and by ``hang`` deeper on further lines."""
        if column > self.width // 2:
            if label:
                self.line((label, "dim"), indent=indent)
            self.line(*spans, indent=indent + 2, hang=indent + 2 + hang, most=most)
            return
        gap = " " * max(1 if label else 0, column - indent - self.wide(label))
        self.line((label + gap, "dim"), *spans, indent=indent, hang=column + hang, most=most)

    def cut(self, text: str, room: int) -> str:
        """The text, or as much of it as fits, and an ellipsis."""
        return cut(self.clean(text), room, self.clean("…"))

    def blank(self) -> None:
        """Leave one line empty, but never two."""
        if not self._blank:
            self.console.print()
            self._blank = True

    def heading(self, title: str, note: str = "") -> None:
        """Start a part of the page."""
        self.blank()
        self.line((title, "bold"), *([("  " + note, "dim")] if note else []))

    def _shortened(self, text: Text, room: int) -> Text:
        ellipsis = self.clean("…")
        kept = len(cut(text.plain, room, ellipsis)) - len(ellipsis)
        return text[:kept].append(ellipsis)
