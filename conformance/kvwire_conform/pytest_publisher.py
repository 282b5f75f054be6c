"""What the fixture ``kvwire_check`` gives: the checks of `kvwire-conform producer`, on frames that a test collected."""

from __future__ import annotations

import difflib
import importlib.util
import io
import shlex
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from kvwire.dialects import get_dialect
from kvwire.errors import UsageError
from kvwire_conform.checks.hashes import HashSettings
from kvwire_conform.model import Report, Verdict
from kvwire_conform.outcome import Exit
from kvwire_conform.producer import Options, Run
from kvwire_conform.recording import Record, has_replay, read_recording, write_record
from kvwire_conform.requirements import producer_checks, requirements

__all__ = ["PublisherCheck", "PublisherError"]

_NAME = "publisher"
_WIDTH = 100

Message = Sequence[bytes] | Record
Replies = Mapping[int, Iterable[Sequence[bytes]]]


class PublisherError(AssertionError):
    """A publisher does not keep to the specification, or sent nothing that it could be judged by.

    Attributes:
        report: everything that was found.
    """

    def __init__(self, text: str, report: Report) -> None:
        super().__init__(text)
        self.report = report


class PublisherCheck:
    """Judges what a publisher sent; the value of the fixture ``kvwire_check``."""

    def __init__(self, folder: Callable[[], Path]) -> None:
        self._folder = folder

    def __call__(
        self,
        frames: Iterable[Message] | str | Path,
        *,
        dialect: str | None = None,
        replay: Replies | None = None,
        require: Iterable[str] = (),
        ignore: Iterable[str] = (),
        block_size: int | None = None,
        dp_rank: int | None = None,
        hashes: str | HashSettings | None = None,
        strict: bool = False,
    ) -> Report:
        """Judge what a publisher sent, in the order in which it did.

        Args:
            frames: one entry a message, the frames as a SUB socket receives them: topic, seq (8 bytes, big-endian) and
                payload; or the path of a recording (``kvwire-conform producer --record``); or its `Record`s.
            dialect: id, alias or release that it must speak; None to find out.
            replay: replies of its replay endpoint by the seq that was asked for, each the frames as a DEALER receives
                them, the end marker included.
            require: ids of checks that have to have judged something (spec/requirements.toml), e.g. ``parent-known``.
            ignore: ids of checks to leave out.
            block_size: tokens per block that every block should have.
            dp_rank: the DP rank that the batches have to carry.
            hashes: recipe by which every hash has to come out: ``sglang``, ``vllm:sha256_cbor`` …
            strict: a warning fails too.

        Returns:
            The report, for further assertions.

        Raises:
            PublisherError: a check failed, or one that has to could judge nothing. The message is the report, and names
                the recording of the frames that it wrote.
            UsageError, DialectError, RecordingError: an argument that does not fit.
        """
        __tracebackhide__ = True
        known = [row.id for row in producer_checks()]
        required = _checks(require, known) | ({"hash-recomputes"} if hashes else set())
        ignored = _checks(ignore, known)
        records = _records(frames, replay)
        options = Options(
            subject=[str(frames) if isinstance(frames, str | Path) else _NAME],
            dialect=None if dialect is None else get_dialect(dialect),
            block_size=block_size,
            ranks={} if dp_rank is None else {_NAME: dp_rank},
            only=frozenset(known) - ignored if ignored else None,
            required=required,
            warnings_fail=strict,
            hashes=HashSettings(hashes) if isinstance(hashes, str) else hashes,
        )
        if options.hashes is not None:
            options.hashes.recipes()
        replays = any(record.channel.startswith("replay") for record in records)
        run = Run(options, single=_NAME, replay_expected=replays)
        for record in records:
            run.feed(record)
        report = run.report()
        if report.exit_code != Exit.OK:
            raise PublisherError(self._text(report, records, required), report)
        return report

    def _text(self, report: Report, records: Iterable[Record], required: frozenset[str]) -> str:
        path = self._folder() / "frames.jsonl"
        with open(path, "w", encoding="utf-8") as file:
            for record in records:
                write_record(file, record)
        return f"{_rendered(report, required)}\nall of it: kvwire-conform producer --recording {shlex.quote(str(path))}"


def _records(frames: Iterable[Message] | str | Path, replay: Replies | None) -> list[Record]:
    if isinstance(frames, str | Path):
        if replay is not None and has_replay(frames):
            raise UsageError(f"{frames} holds replies of a replay endpoint already; leave replay out")
        found = list(read_recording(frames))
    else:
        now = time.time()
        found = [_record(message, index, now) for index, message in enumerate(frames)]
    now = found[-1].t if found else time.time()
    for start, replies in (replay or {}).items():
        found.append(Record(t=now, channel="replay-request", frames=[start.to_bytes(8, "big")], start_seq=start))
        for index, reply in enumerate(replies):
            found.append(
                Record(t=now, channel="replay", frames=_frames(reply, f"replay[{start}][{index}]"), start_seq=start)
            )
    return found


def _record(message: Message, index: int, now: float) -> Record:
    return (
        message
        if isinstance(message, Record)
        else Record(t=now, channel="live", frames=_frames(message, f"frames[{index}]"))
    )


def _frames(message: Sequence[Any], where: str) -> list[bytes]:
    if isinstance(message, bytes | str) or not all(
        isinstance(frame, bytes | bytearray | memoryview) for frame in message
    ):
        raise UsageError(
            f"{where}: a message is a sequence of frames in bytes, (topic, seq, payload) with a seq of 8 bytes; got {message!r:.80}"
        )
    return [bytes(frame) for frame in message]


def _checks(names: Iterable[str], known: Sequence[str]) -> frozenset[str]:
    names = [names] if isinstance(names, str) else list(names)
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=3)
            meant = f"; did you mean {' or '.join(near)}?" if near else f"; known: {', '.join(known)}"
            raise UsageError(f"no check is called {name!r}{meant}")
    return frozenset(names)


def _rendered(report: Report, required: frozenset[str]) -> str:
    """What is wrong, without what is right."""
    if importlib.util.find_spec("rich") is None:
        pytest.fail(
            "kvwire_check found something, and needs rich to show it: pip install 'kvwire[conform]'", pytrace=False
        )
    from rich.console import Console

    from kvwire_conform.reports.facts import headline
    from kvwire_conform.reports.findings import show_failures, show_warnings
    from kvwire_conform.reports.page import Page

    written = io.StringIO()
    page = Page(Console(file=written, width=_WIDTH, force_terminal=False, color_system=None))
    page.line(f"{page.word(report.verdict)}: {headline(report)}")
    if not report.sources:
        page.line("there is no message to judge", indent=2)
    rows = requirements()
    for result in report.results:
        unjudged = result.verdict in (Verdict.INCONCLUSIVE, Verdict.SKIP)
        if unjudged and (result.id in required or not rows[result.id].needs):
            page.line(f"{result.id} had nothing to judge: {_in_python(result.reason)}", indent=2, hang=4)
    show_failures(page, report)
    show_warnings(page, report)
    return written.getvalue().rstrip()


def _in_python(reason: str) -> str:
    """The command's options in it as the arguments of a `PublisherCheck`."""
    for option, argument in (("--replay", "replay="), ("--hash", "hashes="), ("--dp-size, or --server", "dp_rank=")):
        reason = reason.replace(f"give {option}", f"give {argument}")
    return reason
