"""The hand-over from the engine's threads to the publisher's thread: bounded, and it numbers the batches."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Any, Literal, get_args

from kvwire.errors import KvwireError, UsageError
from kvwire.events import EventBatch
from kvwire.zmq.wakeup import Wakeup

OnFull = Literal["block", "drop-oldest", "raise"]
"""What happens to a batch that finds the queue full."""

Given = EventBatch | Sequence[Any] | bytes
Entry = tuple[int, Given, float | None]
"""A seq, what the caller gave, and for a bare list of events the time at which it was given."""


class PublisherClosedError(UsageError):
    """Published after `close`, in a forked child, or after the publisher's thread came to an end."""

    code = "publisher-closed"


class QueueFullError(KvwireError):
    """The queue to the publisher's thread is full, and the batch was not taken.

    The same `EventBatch` may be published again. If another one is published instead, the refused batch leaves a gap in
    the seq, so that subscribers learn of the loss.
    """

    code = "queue-full"


class Outbox:
    """A bounded queue of batches, each with its seq.

    A seq is given when a batch comes in, and never twice. A batch that is dropped keeps its seq: the stream then has a
    gap, which is how a subscriber learns of the loss (spec/transport.md, "Sequence numbers").

    Args:
        capacity: batches that may wait.
        on_full: ``block`` until there is room, ``drop-oldest`` of those that wait, or ``raise`` `QueueFullError`.
        block_timeout: seconds that ``block`` waits before it raises `QueueFullError`; None waits for as long as it
            takes.
    """

    def __init__(self, capacity: int, on_full: OnFull, block_timeout: float | None) -> None:
        if on_full not in get_args(OnFull):
            raise UsageError(f"on_full is one of {', '.join(get_args(OnFull))}, not {on_full!r}")
        if capacity < 1:
            raise UsageError(f"max_queue is the number of batches that may wait, at least 1, not {capacity!r}")
        self.dropped = 0
        self.wakeup = Wakeup()
        self._capacity = capacity
        self._on_full = on_full
        self._block_timeout = block_timeout
        self._entries: deque[Entry] = deque()
        self._lock = threading.Lock()
        self._room = threading.Condition(self._lock)
        self._waiting = 0
        self._next_seq = 0
        self._refused: Given | None = None
        self._asleep = False
        self._why_closed: str | None = None

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def next_seq(self) -> int:
        """The seq of the next batch that comes in."""
        return self._next_seq

    @property
    def closed(self) -> bool:
        """Whether no more batches are taken."""
        return self._why_closed is not None

    def put(self, given: Given, ts: float | None = None) -> int:
        """Add a batch and return its seq.

        Raises:
            PublisherClosedError: closed, before or while waiting for room.
            QueueFullError: no room, and the policy says so.
        """
        with self._lock:
            if self._why_closed is not None:
                raise PublisherClosedError(self._why_closed)
            if self._refused is not None or len(self._entries) >= self._capacity:
                self._admit(given)
            seq = self._next_seq
            self._next_seq = seq + 1
            self._entries.append((seq, given, ts))
            if self._asleep:
                self._asleep = False
                self.wakeup.set()
        return seq

    def _admit(self, given: Given) -> None:
        refused, self._refused = self._refused, None
        # A list may be filled anew and given again, so only a batch is known by its identity.
        if refused is not None and not (refused is given and isinstance(given, EventBatch)):
            self._next_seq += 1
            self.dropped += 1
        if len(self._entries) < self._capacity:
            return
        if self._on_full == "drop-oldest":
            with contextlib.suppress(IndexError):  # The thread may have taken them all by now.
                self._entries.popleft()
                self.dropped += 1
        elif self._on_full == "raise" or not self._wait_for_room():
            self._refused = given
            waited = f" after {self._block_timeout:g} s" if self._on_full == "block" else ""
            raise QueueFullError(
                f"{self._capacity} batches wait for the publisher's thread{waited}: it encodes more slowly than they "
                f"come, or something keeps it from running. Raise max_queue, publish fewer and larger batches, or "
                f'choose on_full="drop-oldest"'
            )

    def _wait_for_room(self) -> bool:
        end = None if self._block_timeout is None else time.monotonic() + self._block_timeout
        self._waiting += 1
        try:
            while len(self._entries) >= self._capacity:
                if self._why_closed is not None:
                    raise PublisherClosedError(self._why_closed)
                left = None if end is None else end - time.monotonic()
                if left is not None and left <= 0:
                    return False
                self._room.wait(left)
        finally:
            self._waiting -= 1
        if self._why_closed is not None:
            raise PublisherClosedError(self._why_closed)
        return True

    def take(self, most: int) -> list[Entry]:
        """The oldest entries, at most so many, in order of their seq."""
        entries, taken = self._entries, list[Entry]()
        # Without the lock: a publisher never waits for a thread that holds the lock and has lost the GIL.
        with contextlib.suppress(IndexError):
            for _ in range(most):
                taken.append(entries.popleft())
        if self._waiting and taken:
            with self._lock:
                self._room.notify(len(taken))
        return taken

    def may_sleep(self) -> bool:
        """Whether nothing waits; if so, the next `put` sets the wake-up."""
        with self._lock:
            self._asleep = not self._entries
            return self._asleep

    def close(self, why: str) -> None:
        """Take no more batches, and set the wake-up; batches that wait can still be taken. Later callers are told why."""
        with self._lock:
            if self._why_closed is None:
                self._why_closed = why
            self._room.notify_all()
            self._asleep = False
            if self.wakeup.fd >= 0:
                self.wakeup.set()

    def release(self) -> None:
        """Close for good: nobody polls the wake-up any more."""
        self.close("the publisher is closed")
        with self._lock:
            self.wakeup.close()

    def abandon(self, why: str) -> None:
        """Close in a forked child, where the lock may be held by a thread that does not exist."""
        self._lock = threading.Lock()
        self._room = threading.Condition(self._lock)
        self._entries.clear()
        self._why_closed = why
        self._asleep = False
        self.wakeup.close()
