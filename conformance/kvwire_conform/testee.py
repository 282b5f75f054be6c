"""One testee: a decoder in a process of its own, asked a payload at a time (spec/conformance.md#protocol).

::

    with Testee(["node", "testee.mjs"]) as testee:
        consumer = testee.start()
        answer = testee.ask("1", Request(payload=payload))

Whatever the process does (dies, hangs, writes garbage, floods a pipe) is an answer to `Testee.ask`, never an exception.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType

from kvwire.errors import KvwireError
from kvwire_conform.consumer_model import AnswerVerdict, Consumer
from kvwire_conform.testee_lines import (
    MAX_LINE,
    Answer,
    LineError,
    Request,
    excerpt,
    ident_of,
    parse_answer,
    parse_hello,
    render_request,
)
from kvwire_conform.testee_pipes import Lines, Signal, Tail, Writer

__all__ = ["Breakdown", "Limits", "NeverStartedError", "Testee"]

_TAIL = 8192
"""Bytes of stderr that are kept."""
_TAIL_LINES = 5
_SETTLE = 2.0
"""Seconds for what follows a process's end: its exit status, the rest of its pipes. It took 0.1 s at worst on two busy cores."""
_TERMINATE = 2.0
"""Seconds between SIGTERM and SIGKILL."""


@dataclass(frozen=True)
class Limits:
    """How long a testee may take and how much it may write.

    Attributes:
        start: seconds to its hello.
        answer: seconds to an answer.
        leave: seconds to its exit after the end of its input.
        line: bytes of a line.
        breakdowns: so many payloads in a row may end the process before the rest is given up.
    """

    start: float = 20.0
    answer: float = 10.0
    leave: float = 5.0
    line: int = MAX_LINE
    breakdowns: int = 25


@dataclass(frozen=True)
class Breakdown:
    """No usable answer; the process was ended.

    Attributes:
        verdict: ``crashed``, ``hung`` or ``garbled``.
        said: exit code or signal and the end of stderr, or what was wrong with the line.
    """

    verdict: AnswerVerdict
    said: str


class NeverStartedError(KvwireError):
    """A testee could not be run, or did not say hello.

    Attributes:
        problem: in one line.
        stderr: the end of what it wrote there.
    """

    code = "testee-never-started"

    def __init__(self, problem: str, stderr: str = "") -> None:
        super().__init__(f"{problem}; its stderr: {stderr}" if stderr else problem)
        self.problem = problem
        self.stderr = stderr


class Testee:
    """A testee's process; it may be started again after a breakdown.

    Args:
        command: program and arguments; no shell is involved.
        cwd: folder to run it in; this process's own by default.
        env: its whole environment; this process's own by default.

    Attributes:
        twice: ids of requests that were answered more than once, as far as is known.
    """

    __test__ = False

    def __init__(
        self,
        command: Sequence[str],
        limits: Limits | None = None,
        *,
        cwd: str | os.PathLike[str] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.command = list(command)
        self.limits = limits or Limits()
        self.twice: list[str] = []
        self._cwd = cwd
        self._env = env
        self.died = False
        self._process: subprocess.Popen[bytes] | None = None
        self._answered: set[str] = set()

    def __enter__(self) -> Testee:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.kill()

    @property
    def running(self) -> bool:
        """Whether there is a process to ask; it may have died unnoticed."""
        return self._process is not None

    def another(self) -> Testee:
        """A further process of the same command; not started yet."""
        return Testee(self.command, self.limits, cwd=self._cwd, env=self._env)

    def start(self) -> Consumer:
        """Run the command and wait for its hello.

        Raises:
            NeverStartedError: it cannot be run, or what it says first is no hello.
        """
        self.kill()
        self._spawn()
        line = self._lines.get(self.limits.start)
        if isinstance(line, bytes):
            try:
                return parse_hello(line)
            except LineError as error:
                raise self._never_started(str(error)) from None
        problem = {
            Signal.END: "it ended before its hello",
            Signal.TIMEOUT: f"it said no hello within {self.limits.start:g} s",
            Signal.TOO_LONG: f"its first line has more than {self.limits.line} bytes",
        }[line]
        if line is Signal.END:
            problem += f": {self._end(_SETTLE)}"
        raise self._never_started(problem)

    def ask(self, ident: str, request: Request) -> Answer | Breakdown:
        """Send a request and wait for its answer. After a Breakdown the process is gone; `start` runs it anew."""
        assert self._process is not None, "start it first"
        deadline = time.monotonic() + self.limits.answer
        stray = self._stray()
        if stray is not None:
            return stray
        self._writer.put(render_request(ident, request))
        told = len(self.twice)
        while True:
            line = self._lines.get(max(0.0, deadline - time.monotonic()))
            if line is Signal.TIMEOUT and len(self.twice) > told:
                earlier = self.twice[told:]
                del self.twice[told:]
                return self._garbled(f"it answered with the id {earlier[0]} of an earlier request, not with {ident}")
            if isinstance(line, Signal):
                return self._broken(line)
            if self._is_second_answer(line):
                continue
            try:
                answer = parse_answer(line, ident)
            except LineError as error:
                return self._garbled(str(error))
            self._answered.add(ident)
            return answer

    def leave(self) -> str | None:
        """End its input and wait for its exit.

        Returns:
            None when it left as it should; in words what it did instead. ``died`` says whether a signal ended it.
        """
        self.died = False
        if self._process is None:
            return None
        self._writer.close()
        problem = None
        deadline = time.monotonic() + self.limits.leave
        while True:
            line = self._lines.get(max(0.0, deadline - time.monotonic()))
            if isinstance(line, Signal):
                break
            if not self._is_second_answer(line):
                problem = f"it wrote a line after its last answer: {excerpt(line)}"
        if line is Signal.TIMEOUT:
            problem = f"it did not exit within {self.limits.leave:g} s of the end of its input"
        words = self._end(max(0.1, deadline - time.monotonic()))
        # Its own death, not the end that was made of one that stayed.
        self.died = problem is None and _names_signal(words)
        if problem is None and words != "exit code 0":
            problem = f"it {'was' if words.startswith('killed') else 'ended with'} {words} at the end of its input"
        return problem

    def interrupt(self) -> None:
        """Kill the process under whoever waits for its answer, in another thread."""
        process = self._process
        if process is not None:
            _signal_group(process, force=True)

    def kill(self) -> None:
        """End the process and what it started, if it runs."""
        if self._process is not None:
            self._end(0.0)

    def _spawn(self) -> None:
        try:
            self._process = subprocess.Popen(
                self.command,
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd=self._cwd,
                env=None if self._env is None else dict(self._env),
                start_new_session=sys.platform != "win32",
            )
        except (OSError, ValueError) as error:
            words = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            raise NeverStartedError(f"{shlex.join(self.command)} cannot be run: {words}") from None
        process = self._process
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        self._writer = Writer(process.stdin)
        self._lines = Lines(process.stdout, self.limits.line)
        self._stderr = Tail(process.stderr, _TAIL)

    def _never_started(self, problem: str) -> NeverStartedError:
        self.kill()
        return NeverStartedError(problem, self._last_words())

    def _stray(self) -> Breakdown | None:
        """What came since the last answer, which should be nothing."""
        while (line := self._lines.get(0.0)) is not Signal.TIMEOUT:
            if isinstance(line, Signal):
                return self._broken(line)
            if not self._is_second_answer(line):
                return self._garbled(f"a line that no request asked for: {excerpt(line)}")
        return None

    def _is_second_answer(self, line: bytes) -> bool:
        ident = ident_of(line)
        if ident is None or ident not in self._answered:
            return False
        self.twice.append(ident)
        return True

    def _broken(self, why: Signal) -> Breakdown:
        if why is Signal.TIMEOUT:
            self._end(0.0)
            return Breakdown(AnswerVerdict.HUNG, self._with_stderr(f"no answer within {self.limits.answer:g} s"))
        if why is Signal.TOO_LONG:
            self._end(0.0)
            return Breakdown(AnswerVerdict.GARBLED, f"a line of more than {self.limits.line} bytes")
        return Breakdown(AnswerVerdict.CRASHED, self._with_stderr(self._end(_SETTLE)))

    def _garbled(self, problem: str) -> Breakdown:
        self._end(0.0)
        return Breakdown(AnswerVerdict.GARBLED, problem)

    def _with_stderr(self, words: str) -> str:
        last = self._last_words()
        return f"{words}\n{last}" if last else words

    def _last_words(self) -> str:
        lines = [line.rstrip() for line in self._stderr.text(_SETTLE).splitlines() if line.strip()]
        return "\n".join(line[:500] for line in lines[-_TAIL_LINES:])

    def _end(self, patience: float) -> str:
        """Wait for the exit, enforce it, and say how it came about."""
        process = self._process
        assert process is not None
        self._process = None
        words = "it closed its stdout and did not exit"
        try:
            if patience:
                process.wait(patience)
            elif process.poll() is None:
                raise subprocess.TimeoutExpired(self.command, patience)
            words = _exit_words(process.returncode)
        except subprocess.TimeoutExpired:
            _signal_group(process, force=False)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_TERMINATE)
        # What it started may live on and hold its pipes.
        _signal_group(process, force=True)
        process.wait()
        self._writer.close()
        self._lines.close()
        for pipe, stream in (
            (self._writer, None),
            (self._lines, process.stdout),
            (self._stderr, process.stderr),
        ):
            pipe.thread.join(_SETTLE)
            if stream is not None and not pipe.thread.is_alive():
                stream.close()
        return words


def _signal_group(process: subprocess.Popen[bytes], *, force: bool) -> None:
    if sys.platform == "win32":
        if process.poll() is None:
            process.terminate()
        return
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL if force else signal.SIGTERM)


def _exit_words(code: int) -> str:
    if code < 0:
        return f"killed by {_signal_name(-code)}"
    if code > 128 and _signal_name(code - 128).startswith("SIG"):
        return f"exit code {code}, which a shell gives for {_signal_name(code - 128)}"
    return f"exit code {code}"


def _names_signal(words: str) -> bool:
    return "SIG" in words or "signal" in words


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
