"""What judging a consumer shows while it goes on."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.live import Live
from rich.text import Text

from kvwire_conform.reports.page import Page, Span
from kvwire_conform.reports.text import count, seconds

__all__ = ["ConsumerProgress"]


class ConsumerProgress:
    """One line on a terminal, gone afterwards: a bar, how many payloads are judged, how many are not exact."""

    def __init__(self, console: Console) -> None:
        self._page = Page(console)
        self._began = time.monotonic()
        self._told = (0, 0, 0)
        self._live = Live(get_renderable=self.line, console=console, refresh_per_second=10, transient=True)

    def __enter__(self) -> ConsumerProgress:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._live.stop()

    def update(self, done: int, total: int, failed: int) -> None:
        """Take new counts."""
        self._told = done, total, failed

    def line(self) -> Text:
        """The line as it stands."""
        done, total, failed = self._told
        elapsed = seconds(time.monotonic() - self._began)
        if not total:
            return self._page.text(f"waiting for its hello  {elapsed}")
        width = self._page.console.width - 1
        spans: list[Span] = []
        if width >= 60:
            full = round(20 * done / total)
            sign, track = ("#", ".") if self._page.plain else ("━", "─")
            spans += [(sign * full, "cyan"), (track * (20 - full), "dim"), " "]
        spans += [(f"{count(done)} of {count(total)}", "bold")]
        if failed:
            spans += [(f"  {count(failed)} not exact", "yellow")]
        line = self._page.text(*spans, f"  {elapsed}")
        line.no_wrap = True
        line.overflow = "ellipsis"
        return line
