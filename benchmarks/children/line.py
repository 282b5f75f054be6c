"""JSON lines between a measurement and the process at the other end of its sockets."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any

import msgspec

from benchmarks.run import ROOT

Commands = Iterator[dict[str, Any]]
Answer = Callable[..., None]

EXIT_SECONDS = 10.0


def serve() -> tuple[Commands, Answer]:
    """In the child: the commands as they come on stdin, and what answers one. Prints go to stderr."""
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)

    def answer(**fields: Any) -> None:
        out.write(msgspec.json.encode(fields) + b"\n")
        out.flush()

    return (msgspec.json.decode(line) for line in sys.stdin.buffer), answer


class Child:
    """In the measuring process: a child that runs ``python -m benchmarks.children.NAME``. A context manager."""

    def __init__(self, name: str, **options: Any) -> None:
        self.name = name
        self._command = [sys.executable, "-m", f"benchmarks.children.{name}", msgspec.json.encode(options).decode()]

    def __enter__(self) -> Child:
        self._process = subprocess.Popen(
            self._command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=sys.stderr
        )
        self.told = self.wait()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(EXIT_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(EXIT_SECONDS)
        self._process.stdout.close()

    def tell(self, op: str, **fields: Any) -> None:
        """Send a command without waiting for its answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(msgspec.json.encode({"op": op, **fields}) + b"\n")
        self._process.stdin.flush()

    def wait(self) -> dict[str, Any]:
        """The next answer. Raises RuntimeError when the child has ended."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.name}: the process has ended; its stderr says why")
        told: dict[str, Any] = msgspec.json.decode(line)
        return told

    def ask(self, op: str, **fields: Any) -> dict[str, Any]:
        """Send a command and wait for its answer."""
        self.tell(op, **fields)
        return self.wait()
