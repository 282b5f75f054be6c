"""A router as a process of our own: started on a free port, watched, and ended with all that it started."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple

from kvwire_conform.routers.errors import RouterError
from kvwire_conform.routers.http import IndexerClient

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["IndexerProcess", "LogLine", "parse_log"]

START_TIMEOUT = 30.0
LAST_LINES = 40
"""Lines of the log that stand in an error or a report."""

_LINE = 400
_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_START = "import sys; from dynamo._core import run_kv_indexer; run_kv_indexer(sys.argv[1:])"


class LogLine(NamedTuple):
    """One line of the router's log.

    Attributes:
        level: ``INFO``, ``WARN`` …; empty where the line does not tell.
        message: its words.
        instance: the publisher that it is about; None where it does not tell.
    """

    level: str
    message: str
    instance: int | None = None


class IndexerProcess:
    """Dynamo's standalone KV indexer, from the moment it answers to the end of the ``with`` block.

    Args:
        package: folder of the unpacked ``ai-dynamo-runtime`` (`kvwire_conform.routers.install`).
        timeout: seconds until it has to answer.
    """

    def __init__(self, package: Path, timeout: float = START_TIMEOUT) -> None:
        self._package = package
        self._timeout = timeout
        self._log = tempfile.TemporaryFile()  # noqa: SIM115
        self.client: IndexerClient
        self._process: subprocess.Popen[bytes]

    def __enter__(self) -> Self:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.client = IndexerClient(f"http://127.0.0.1:{port}")
        self._process = subprocess.Popen(
            [sys.executable, "-c", _START, "--port", str(port), "--threads", "1"],
            env={**os.environ, "PYTHONPATH": str(self._package), "DYN_LOG": "info", "DYN_LOGGING_JSONL": "1"},
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            start_new_session=True,
        )
        until = time.monotonic() + self._timeout
        while not self.client.healthy():
            if (end := self.ended()) or time.monotonic() > until:
                log = self.last_lines()
                self.__exit__(None, None, None)
                raise RouterError(
                    f"the indexer of {self._package.name} did not start: {end or f'no answer in {self._timeout:g} s'}",
                    code="router-start",
                    log=log,
                )
            time.sleep(0.01)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.client.close()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._log.close()

    @property
    def pid(self) -> int:
        """Of the process, which leads a process group of its own."""
        return self._process.pid

    def ended(self, grace: float = 0.0) -> str:
        """How the process ended, in words; empty while it runs, ``grace`` seconds from now."""
        try:
            code = self._process.wait(grace)
        except subprocess.TimeoutExpired:
            return ""
        return f"exit code {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"

    def mark(self) -> int:
        """Where the log ends now; `since` reads on from there."""
        return os.fstat(self._log.fileno()).st_size

    def since(self, mark: int) -> list[LogLine]:
        """The lines written since a mark."""
        size = os.fstat(self._log.fileno()).st_size - mark
        return list(parse_log(os.pread(self._log.fileno(), size, mark).decode("utf-8", "replace")))

    def last_lines(self) -> list[str]:
        """The end of the log, in words."""
        start = max(0, self.mark() - LAST_LINES * _LINE)
        return [line.message[:_LINE] for line in self.since(start)][-LAST_LINES:]


def parse_log(text: str) -> Iterator[LogLine]:
    """Lines of a log, those of JSON taken apart."""
    for raw in text.splitlines():
        line = _ANSI.sub("", raw).strip()
        if not line:
            continue
        try:
            found = json.loads(line)
            message = found["message"]
        except (ValueError, LookupError, TypeError):
            yield LogLine("", line)
            continue
        instance = found.get("worker_id", found.get("self.worker_id"))
        yield LogLine(str(found.get("level", "")), str(message), instance if isinstance(instance, int) else None)
