"""Judge live publishers: find them, capture them, judge what comes as it comes."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

from kvwire.errors import UsageError
from kvwire.zmq import endpoints
from kvwire_conform.capture import Capture, Outcome
from kvwire_conform.discovery import discover
from kvwire_conform.model import Report
from kvwire_conform.producer import Options, Run
from kvwire_conform.recording import Record, write_record
from kvwire_conform.reports.progress import Progress
from kvwire_conform.targets import Target

_Write = Callable[[Record], None]

UPDATE_EVERY = 50
"""Records between two updates of the progress display."""


@dataclass(frozen=True)
class Wanted:
    """What to listen to, and for how long.

    Attributes:
        endpoints: live endpoints to dial (or to bind, see ``bind``).
        replays: replay endpoints, in the order of ``endpoints``; fewer are allowed.
        server: base URL of an SGLang server to ask for its publishers.
        topic: topic prefix.
        seconds: how long to listen.
        batches: live messages after which to stop.
        dp_size: DP ranks per endpoint, at its port plus the rank.
        bind: bind the endpoints and let the publishers connect.
        record: file to write the frames to.
    """

    endpoints: list[str] = field(default_factory=list)
    replays: list[str] = field(default_factory=list)
    server: str | None = None
    topic: str = ""
    seconds: float = 30.0
    batches: int | None = None
    dp_size: int | None = None
    bind: bool = False
    record: Path | None = None


@dataclass(frozen=True)
class _Plan:
    targets: list[Target]
    topic: str
    block_size: int | None
    bind: bool
    remarks: list[str]


def plan(wanted: Wanted) -> _Plan:
    """The targets to listen to.

    Raises:
        UsageError: nothing to listen to, or endpoints that cannot be used.
        DiscoveryError: the server does not tell.
    """
    if wanted.server is not None:
        if wanted.endpoints or wanted.replays or wanted.dp_size:
            raise UsageError("--server finds endpoints, replay endpoints and ranks by itself; give it alone")
        found = discover(wanted.server)
        return _Plan(
            list(found.targets), wanted.topic or found.topic, found.block_size, found.bind, list(found.remarks)
        )
    if not wanted.endpoints:
        raise UsageError("nothing to listen to; give an endpoint such as tcp://host:5557, --server or --recording")
    if len(wanted.replays) > len(wanted.endpoints):
        raise UsageError(f"{len(wanted.replays)} replay endpoints for {len(wanted.endpoints)} endpoints")
    targets = []
    for number, endpoint in enumerate(wanted.endpoints):
        replay = wanted.replays[number] if number < len(wanted.replays) else None
        for rank in range(wanted.dp_size or 1):
            targets.append(
                Target(
                    endpoint=str(endpoints.for_rank(endpoint, rank)),
                    replay_endpoint=None if replay is None else str(endpoints.for_rank(replay, rank)),
                    dp_rank=rank if wanted.dp_size else None,
                )
            )
    return _Plan(targets, wanted.topic, None, wanted.bind, [])


def judge_live(wanted: Wanted, options: Options, *, console: Console | None = None) -> Report:
    """Capture and judge. Ctrl-C ends it with what was seen so far.

    Args:
        console: where to show the progress; None for nowhere.

    Raises:
        UsageError: see `plan`; or the recording cannot be written.
    """
    planned = plan(wanted)
    options = options.with_found(
        block_size=planned.block_size,
        ranks={t.endpoint: t.dp_rank for t in planned.targets if t.dp_rank is not None},
    )
    run = Run(
        options,
        single=planned.targets[0].endpoint,
        replay_expected=any(target.replay_endpoint for target in planned.targets),
        known=frozenset(target.endpoint for target in planned.targets),
    )
    capture = Capture(
        planned.targets,
        topic=planned.topic,
        seconds=wanted.seconds,
        batches=wanted.batches,
        bind=planned.bind,
    )
    progress = Progress(console, total_seconds=wanted.seconds, total_batches=wanted.batches) if console else None
    with _interruptible(capture), _recording(wanted.record) as write, progress or nullcontext():
        for number, record in enumerate(capture.records()):
            write(record)
            run.feed(record)
            if progress is not None and number % UPDATE_EVERY == 0:
                seen = run.progress()
                progress.update(
                    messages=seen.messages,
                    events=seen.events,
                    bytes=seen.payload_bytes,
                    sources=seen.sources,
                    last_seq=seen.last_seq,
                )
    return _report(run, capture.outcome, planned.remarks)


def _report(run: Run, outcome: Outcome, remarks: list[str]) -> Report:
    return run.report(
        advice=[*remarks, *outcome.advice()], reachable=not outcome.unreachable, interrupted=outcome.interrupted
    )


@contextmanager
def _interruptible(capture: Capture) -> Iterator[None]:
    """Let Ctrl-C and SIGTERM stop the capture instead of the program; a second one ends the program."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def stop(number: int, frame: object) -> None:
        capture.stop()
        signal.signal(number, before[signal.Signals(number)])

    for number in before:
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _recording(path: Path | None) -> Iterator[_Write]:
    if path is None:
        yield lambda record: None
        return
    try:
        file = open(path, "w", encoding="utf-8")  # noqa: SIM115
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror or error}") from error
    with file:
        yield lambda record: write_record(file, record)
