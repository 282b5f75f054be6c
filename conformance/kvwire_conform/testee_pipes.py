"""The pipes of a testee: read and written by threads, so that nothing it does or leaves undone can block the runner or
fill its memory."""

from __future__ import annotations

import contextlib
import enum
import threading
import time
from collections import deque
from queue import SimpleQueue
from typing import IO

__all__ = ["Lines", "Signal", "Tail", "Writer"]

_CHUNK = 1 << 16


class Signal(enum.Enum):
    """What `Lines.get` gives instead of a line."""

    END = "end"
    """The stream is at its end."""
    TOO_LONG = "too long"
    """A line has more bytes than a line may have; nothing is read any more."""
    TIMEOUT = "timeout"
    """No line came in time."""


class Lines:
    """The lines of a stream, without their ends.

    Args:
        stream: unbuffered.
        limit: bytes that a line may have. At most twice that and a chunk are held; a peer that writes more has to wait.
    """

    def __init__(self, stream: IO[bytes], limit: int) -> None:
        self._stream = stream
        self._limit = limit
        self._changed = threading.Condition()
        self._waiting: deque[bytes | Signal] = deque()
        self._held = 0
        self._closed = False
        self.thread = threading.Thread(target=self._read, daemon=True)
        self.thread.start()

    def get(self, timeout: float) -> bytes | Signal:
        """The next line; END and TOO_LONG are given again and again."""
        deadline = time.monotonic() + timeout
        with self._changed:
            while not self._waiting:
                left = deadline - time.monotonic()
                if left <= 0 or not self._changed.wait(left):
                    if self._waiting:
                        break
                    return Signal.TIMEOUT
            found = self._waiting[0]
            if isinstance(found, bytes):
                self._waiting.popleft()
                self._held -= len(found)
                self._changed.notify_all()
            return found

    def close(self) -> None:
        """Let the reader end, whatever is still to be read."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _put(self, found: bytes | Signal) -> bool:
        with self._changed:
            while self._held > self._limit and not self._closed:
                self._changed.wait()
            if self._closed:
                return False
            self._waiting.append(found)
            self._held += len(found) if isinstance(found, bytes) else 0
            self._changed.notify_all()
            return True

    def _read(self) -> None:
        held = bytearray()
        while True:
            try:
                chunk = self._stream.read(_CHUNK)
            except (OSError, ValueError):
                chunk = b""
            if not chunk:
                break
            start = len(held)
            held += chunk
            while (end := held.find(b"\n", start)) >= 0:
                line = bytes(held[:end])
                del held[: end + 1]
                start = 0
                if not self._put(line.removesuffix(b"\r") if len(line) <= self._limit else Signal.TOO_LONG):
                    return
            if len(held) > self._limit:
                self._put(Signal.TOO_LONG)
                return
        if held:
            self._put(bytes(held))
        self._put(Signal.END)


class Tail:
    """The end of a stream that is read to its end.

    Args:
        stream: unbuffered.
        limit: bytes that are kept.
    """

    def __init__(self, stream: IO[bytes], limit: int) -> None:
        self._stream = stream
        self._limit = limit
        self._kept = b""
        self.thread = threading.Thread(target=self._read, daemon=True)
        self.thread.start()

    def text(self, timeout: float) -> str:
        """What was read until the stream's end, or until ``timeout`` seconds have passed."""
        self.thread.join(timeout)
        return self._kept.decode("utf-8", "replace").strip()

    def _read(self) -> None:
        while True:
            try:
                chunk = self._stream.read(_CHUNK)
            except (OSError, ValueError):
                return
            if not chunk:
                return
            self._kept = (self._kept + chunk)[-self._limit :]


class Writer:
    """Writes to a stream that may not be read at the other end. The thread owns the stream and closes it."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._waiting: SimpleQueue[bytes | None] = SimpleQueue()
        self.thread = threading.Thread(target=self._write, daemon=True)
        self.thread.start()

    def put(self, data: bytes) -> None:
        """Write this after all that was put before."""
        self._waiting.put(data)

    def close(self) -> None:
        """Close the stream after all that was put before."""
        self._waiting.put(None)

    def _write(self) -> None:
        try:
            while (data := self._waiting.get()) is not None:
                view = memoryview(data)
                while view:
                    view = view[self._stream.write(view) :]
        except OSError:
            pass
        with contextlib.suppress(OSError):
            self._stream.close()
