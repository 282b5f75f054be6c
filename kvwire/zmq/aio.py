"""The subscriber for asyncio: the same streams and sockets, waited for by the event loop."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Callable, Sequence
from types import TracebackType
from typing import Any

from kvwire.errors import UsageError
from kvwire.items import Item
from kvwire.stream import Stats
from kvwire.zmq.server_info import is_server_url
from kvwire.zmq.subscriber import ClosedError, Subscriber

__all__ = ["AsyncSubscriber"]


class AsyncSubscriber:
    """Reads the events of one or many publishers in an asyncio program.

    ::

        async with AsyncSubscriber("tcp://worker:5557", replay="tcp://worker:5558", start="replay") as subscriber:
            async for item in subscriber:
                index.apply(item)

    Takes the arguments of `Subscriber` and behaves the same. A wait that is cancelled loses nothing. It belongs to the
    task that reads it: only one may wait at a time.

    Raises:
        As `Subscriber`. Where a server has to be asked for its endpoints, that is done in a thread on entry or at the
        first wait, and fails there.
    """

    def __init__(self, endpoint: str | Sequence[str], **options: Any) -> None:
        self._endpoint = endpoint
        self._options = options
        self._subscriber: Subscriber | None = None
        self._closed = False
        self._waiting = False
        self._wake: Callable[[], None] | None = None
        if not (isinstance(endpoint, str) and is_server_url(endpoint)):
            self._subscriber = Subscriber(endpoint, **options)

    @property
    def sources(self) -> list[str]:
        """The names of the sources known so far."""
        return [] if self._subscriber is None else self._subscriber.sources

    @property
    def stats(self) -> dict[str, Stats]:
        """Per source, what happened so far."""
        return {} if self._subscriber is None else self._subscriber.stats

    async def next(self, timeout: float | None = None) -> Item | None:
        """The next item, of whichever source; None when there is none within ``timeout`` seconds.

        Raises:
            ClosedError: the subscriber was closed, if need be while this waited.
            UsageError: another task is waiting already.
        """
        if self._subscriber is not None and not self._waiting:
            item = self._subscriber.pop()
            if item is not None:
                return item
        if self._waiting:
            raise UsageError(
                "another task waits for this subscriber's next item; give each task a subscriber of its own"
            )
        self._waiting = True
        try:
            return await self._next(timeout)
        finally:
            self._waiting = False
            if self._closed:
                self._release()

    async def _next(self, timeout: float | None) -> Item | None:
        subscriber = await self._open()
        loop = asyncio.get_running_loop()
        until = None if timeout is None else loop.time() + timeout
        while True:
            # Everything is taken in before the wait: the descriptors of ZeroMQ only tell of what comes after.
            if subscriber.pump(0):
                # A stream that never pauses must not keep the other tasks of the loop from theirs.
                await asyncio.sleep(0)
                if self._closed:
                    raise ClosedError("this subscriber was closed")
                item = subscriber.pop()
                if item is not None:
                    return item
                continue
            item = subscriber.pop()
            if item is not None:
                return item
            left = subscriber.due_in()
            if until is not None:
                left = min(left, until - loop.time())
                if left <= 0 and loop.time() >= until:
                    return None
            began = loop.time()
            await self._readable(subscriber, left)
            if self._closed:
                raise ClosedError("this subscriber was closed")
            subscriber.pass_time(min(loop.time() - began, left))

    async def _open(self) -> Subscriber:
        if self._closed:
            raise ClosedError("this subscriber was closed")
        if self._subscriber is None:
            make = functools.partial(Subscriber, self._endpoint, **self._options)
            opening = asyncio.get_running_loop().run_in_executor(None, make)
            try:
                self._subscriber = await asyncio.shield(opening)
            except asyncio.CancelledError:
                opening.add_done_callback(_close_result)
                raise
        return self._subscriber

    async def _readable(self, subscriber: Subscriber, timeout: float) -> None:
        loop = asyncio.get_running_loop()
        ready: asyncio.Future[None] = loop.create_future()

        def wake() -> None:
            if not ready.done():
                ready.set_result(None)

        descriptors = subscriber.filenos()
        # A descriptor stays readable until its socket is read: registered any longer, it would keep the loop busy.
        for descriptor in descriptors:
            loop.add_reader(descriptor, wake)
        timer = loop.call_later(timeout, wake)
        self._wake = wake
        try:
            await ready
        finally:
            self._wake = None
            timer.cancel()
            for descriptor in descriptors:
                loop.remove_reader(descriptor)

    def close(self) -> None:
        """Close the sockets; a task that waits gets `ClosedError`. Twice does no harm."""
        self._closed = True
        if self._wake is not None:
            # The waiting task closes them, once the loop has let go of their descriptors.
            self._wake()
        elif not self._waiting:
            self._release()

    def _release(self) -> None:
        if self._subscriber is not None:
            self._subscriber.close()

    async def aclose(self) -> None:
        """The same as `close`, for those who look for it."""
        self.close()

    def __aiter__(self) -> AsyncIterator[Item]:
        return self

    async def __anext__(self) -> Item:
        try:
            item = await self.next()
        except ClosedError:
            raise StopAsyncIteration from None
        assert item is not None
        return item

    async def __aenter__(self) -> AsyncSubscriber:
        await self._open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def _close_result(opening: asyncio.Future[Subscriber]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result().close()
