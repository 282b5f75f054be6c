"""What a listener shows while it listens."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import TracebackType

from rich.cells import cell_len
from rich.console import Console
from rich.live import Live
from rich.text import Text

from kvwire_conform.reports.page import Page, Span
from kvwire_conform.reports.text import count, counted, seconds, shorten, size
from kvwire_conform.reports.wrapping import cut

_DIM = "dim"
_SPIN = 10
"""Steps a second of the sign that shows that the listener lives."""
_FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"


@dataclass(frozen=True)
class _Heard:
    messages: int = 0
    events: int = 0
    bytes: int = 0
    sources: int = 0
    last_seq: int | None = None
    note: str = ""


class Progress:
    """A single line that lives while a run listens; a line at the start and one at the end where nothing can live.

    Use it as a context manager, on the console of stderr, so that what is piped from stdout stays clean. On a terminal
    the line is gone afterwards. Exceptions pass through, KeyboardInterrupt among them.

    Args:
        total_seconds: how long the run listens; None for no limit.
        total_batches: how many batches it waits for; None for no limit.
        clock: seconds that only grow.
    """

    def __init__(
        self,
        console: Console,
        total_seconds: float | None = None,
        total_batches: int | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.page = Page(console)
        self.total_seconds = total_seconds
        self.total_batches = total_batches
        self._clock = clock
        self._heard = _Heard()
        self._began = clock()
        self._live: Live | None = None

    def __enter__(self) -> Progress:
        self._began = self._clock()
        console = self.page.console
        if console.is_terminal and not console.is_dumb_terminal:
            self._live = Live(
                get_renderable=self.line,
                console=console,
                refresh_per_second=_SPIN,
                transient=True,
                redirect_stdout=False,
            )
            self._live.start()
        else:
            self.page.line(f"listening{self._aim()}")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()
            return
        self.page.line("heard ", "; ".join(text for text, _ in self._parts()), f" in {seconds(self._elapsed())}")

    def update(
        self,
        *,
        messages: int | None = None,
        events: int | None = None,
        bytes: int | None = None,
        sources: int | None = None,
        last_seq: int | None = None,
        note: str | None = None,
    ) -> None:
        """Take new totals; what is None stays. Cheap enough to be called for each message.

        Args:
            messages, events, bytes, sources: totals since the start.
            last_seq: of the last message.
            note: what happens just now, such as ``asking for a replay``; "" for nothing.
        """
        told = {
            "messages": messages,
            "events": events,
            "bytes": bytes,
            "sources": sources,
            "last_seq": last_seq,
            "note": note,
        }
        self._heard = replace(self._heard, **{name: value for name, value in told.items() if value is not None})  # type: ignore[arg-type]

    def _elapsed(self) -> float:
        return max(0.0, self._clock() - self._began)

    def _aim(self) -> str:
        aims = []
        if self.total_seconds is not None:
            aims.append(f" for {seconds(self.total_seconds)}")
        if self.total_batches is not None:
            aims.append(f" for {counted(self.total_batches, 'batch', 'batches')}")
        return " or".join(aims) or " until interrupted"

    def _done(self) -> float | None:
        """How far the run is, 0 to 1; None without a limit."""
        parts = []
        if self.total_seconds:
            parts.append(self._elapsed() / self.total_seconds)
        if self.total_batches:
            parts.append(self._heard.messages / self.total_batches)
        return min(1.0, max(parts)) if parts else None

    def _parts(self) -> list[tuple[str, str]]:
        """What was heard, most important first: text and style."""
        heard = self._heard
        parts = [(counted(heard.messages, "message"), "bold" if heard.messages else "yellow")]
        if heard.note:
            parts.append((shorten(heard.note, 200), "cyan"))
        if heard.messages:
            parts.append((counted(heard.events, "event"), ""))
            parts.append((size(heard.bytes), ""))
        if heard.last_seq is not None:
            parts.append((f"seq {heard.last_seq}", ""))
        if heard.sources > 1:
            parts.append((f"{count(heard.sources)} sources", ""))
        return parts

    def _clock_text(self) -> str:
        elapsed = seconds(int(self._elapsed()))
        return f"{elapsed} of {seconds(self.total_seconds)}" if self.total_seconds else elapsed

    def line(self) -> Text:
        """The live line, as wide as the console lets it be: a bar, the time, and as much of the rest as fits."""
        width = self.page.console.width - 1
        sign = "*" if self.page.plain else _FRAMES[int(self._elapsed() * _SPIN) % len(_FRAMES)]
        spans: list[Span] = [(sign, "cyan"), " "]
        done = self._done()
        if done is not None and width >= 60:
            cells = min(20, width // 5)
            full = round(done * cells)
            bar, track = ("#", ".") if self.page.plain else ("━", "─")
            spans += [(bar * full, "cyan"), (track * (cells - full), _DIM), " "]
        spans.append(self._clock_text())
        line = self.page.text(*spans)
        for part, style in self._parts():
            added = self.page.text(("  ", ""), (part, style))
            if cell_len(line.plain) + cell_len(added.plain) > width:
                continue
            line.append_text(added)
        line.no_wrap = True
        return line if cell_len(line.plain) <= width else Text(cut(line.plain, max(width, 1), ""))
