"""A subscriber that loses nothing, and says so when something was lost. The rules are those of `kvwire.stream`."""

from __future__ import annotations

import heapq
import os
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any

import msgspec
import zmq

from kvwire.codec import Decoder, OnError
from kvwire.dialects import Dialect
from kvwire.errors import UsageError
from kvwire.stream import Item, Limits, Start, Stats, Stream
from kvwire.zmq import frames
from kvwire.zmq.endpoints import Endpoint, EndpointError, dial, parse
from kvwire.zmq.link import NO_DESCRIPTOR, Context, Link, Options, Replay, source_name
from kvwire.zmq.server_info import Publishers, fetch, is_server_url
from kvwire.zmq.waiter import Waiter

__all__ = ["ClosedError", "Subscriber"]

ReplayEndpoints = str | Sequence["str | None"] | Mapping[str, str]

SOCKETS_PER_SOURCE = 4
SLICE = 1.0
"""Longest single wait, in seconds."""

GRACE = 0.05
"""How much longer than asked a wait may have taken by the stream's clock, so that a process that was stopped or a caller
that was busy does not count as silence of the peer."""

AHEAD = 64
"""Items that are made before they are asked for. Of hundreds of sources with much to read, the batches of all would
otherwise be decoded at once, and each be gone from the processor's caches when its turn comes."""

RETRY = 0.1
"""Seconds after which a socket for a replay is tried again where no descriptor was left."""


class ClosedError(UsageError):
    """The subscriber was closed."""

    code = "subscriber-closed"


class Subscriber:
    """Reads the events of one or many publishers.

    ::

        with Subscriber("tcp://worker:5557", replay="tcp://worker:5558", start="replay") as subscriber:
            for item in subscriber:
                index.apply(item)

    Yields `Batch`, `Lost`, `Restarted` and `Faulty`, see `kvwire.items`: per source every batch once, in seq order, or
    within a `Lost`. All work is done in the thread that asks for the next item; nothing runs in between but libzmq's own
    thread, which receives up to ``hwm`` messages per source. Not for use by two threads at once.

    Args:
        endpoint: where publishers publish (``tcp://host:5557``; also ipc, inproc), one or several; or the HTTP address of
            an SGLang server (``http://host:30000``), whose ``/server_info`` then tells endpoints, replay endpoints and
            topic of all its DP ranks.
        replay: where they answer replay requests: one for a single endpoint, a list in the order of the endpoints, or a
            mapping from source. Without one, what is missing is lost.
        topic: prefix that a topic must have. Empty for every topic.
        start: ``live``: with the first batch that comes. ``replay``: with everything that the publisher still has. Or
            with a given seq.
        bind: bind ``endpoint``, for publishers that connect. Then any number of them may, and each topic is a source.
        dialect, skip_tokens, on_error: as in `kvwire.Decoder`.
        max_payload: bytes of a payload above which it is a `Faulty`. A frame of twice as many closes the connection.
        hwm: messages per source that may wait inside the socket.
        limits: bounds and deadlines of the streams; ``max_payload`` goes into them.
        heartbeat, heartbeat_timeout: seconds between ZMTP heartbeats (0: none), and silence after which a peer that did
            not close its connection counts as gone.
        reconnect, reconnect_max: seconds before a connection is tried again, doubling up to the second.
        token: for a server that wants its API key.
        context: the ZeroMQ context; None for one of the subscriber's own, or, where an endpoint is inproc, for
            ``zmq.Context.instance()``.

    Raises:
        EndpointError: an endpoint that cannot be used.
        DiscoveryError: the server did not tell where its publishers are.
        UsageError: arguments that do not fit together.
    """

    def __init__(
        self,
        endpoint: str | Sequence[str],
        *,
        replay: ReplayEndpoints | None = None,
        topic: str | bytes | None = None,
        start: Start = "live",
        bind: bool = False,
        dialect: str | Dialect | None = None,
        skip_tokens: bool = False,
        on_error: OnError = "raise",
        max_payload: int = frames.MAX_PAYLOAD,
        hwm: int = 10_000,
        limits: Limits | None = None,
        heartbeat: float = 5.0,
        heartbeat_timeout: float = 15.0,
        reconnect: float = 0.1,
        reconnect_max: float = 5.0,
        token: str | None = None,
        context: zmq.Context[Any] | None = None,
    ) -> None:
        publishers = _publishers(endpoint, replay, bind, token)
        self._limits = _with_max_payload(limits, max_payload)
        self._start = start
        self._decode = Decoder(dialect, skip_tokens=skip_tokens, on_error=on_error).decode
        self._replay_endpoints = publishers.replays
        self._options = Options(
            topic=_topic(publishers.topic if topic is None else topic),
            hwm=hwm,
            max_frame=2 * max_payload,
            heartbeat=heartbeat,
            heartbeat_timeout=heartbeat_timeout,
            reconnect=reconnect,
            reconnect_max=reconnect_max,
        )
        self._pid = os.getpid()
        self._closed = False
        self._ready: deque[Item] = deque()
        self._streams: dict[str, Stream] = {}
        self._links: dict[str, Link] = {}
        self._link_of: dict[Stream, str] = {}
        self._replays: dict[Stream, Replay] = {}
        self._waiter: Waiter[Link | Replay] = Waiter()
        self._restless: set[Link | Replay] = set()
        self._plan = _Plan()
        self._round: deque[Link | Replay] = deque()
        self._touched: set[Stream] = set()
        self._clock = 0.0
        everywhere = [*publishers.endpoints.values(), *publishers.replays.values()]
        if context is None and any(where.transport == "inproc" for where in everywhere):
            context = zmq.Context.instance()
        self._own_context = context is None
        self._context: Context = context if context is not None else _own_context(len(publishers.endpoints))
        try:
            for name, where in publishers.endpoints.items():
                self._add(name, where, publishers.bind, len(publishers.endpoints) == 1)
        except BaseException:
            self.close()
            raise

    def _add(self, name: str, endpoint: Endpoint, bind: bool, alone: bool) -> None:
        def make_stream(source: str) -> Stream:
            stream = self._make_stream(source)
            self._link_of[stream] = name
            return stream

        try:
            link = Link(
                self._context,
                endpoint,
                name,
                bind=bind,
                alone=alone,
                options=self._options,
                waiter=self._waiter,
                make_stream=make_stream,
            )
        except zmq.ZMQError as error:
            raise _no_socket(error) from error
        self._links[name] = link
        self._restless.add(link)

    def _make_stream(self, source: str) -> Stream:
        stream = Stream(
            source,
            start=self._start,
            replay=source in self._replay_endpoints,
            decode=self._decode,
            limits=self._limits,
            out=self._ready,
        )
        self._streams[source] = stream
        self._touched.add(stream)
        return stream

    @property
    def sources(self) -> list[str]:
        """The names of the sources known so far."""
        return list(self._streams)

    @property
    def stats(self) -> dict[str, Stats]:
        """Per source, what happened so far."""
        return {source: stream.stats for source, stream in self._streams.items()}

    def __iter__(self) -> Iterator[Item]:
        return self

    def __next__(self) -> Item:
        try:
            item = self.next()
        except ClosedError:
            raise StopIteration from None
        assert item is not None
        return item

    def next(self, timeout: float | None = None) -> Item | None:
        """The next item, of whichever source; None when there is none within ``timeout`` seconds.

        Raises:
            ClosedError: the subscriber was closed.
        """
        item = self.pop()
        if item is not None:
            return item
        until = None if timeout is None else time.monotonic() + timeout
        while True:
            left = SLICE if until is None else until - time.monotonic()
            self.pump(min(left, SLICE))
            item = self.pop()
            if item is not None:
                return item
            if until is not None and time.monotonic() >= until:
                return None

    def pump(self, timeout: float) -> bool:
        """Wait up to ``timeout`` seconds for something to come in, and take it in. Whether anything came.

        With `pop`, what `next` is made of, for a loop of one's own. Such a loop waits for `filenos` until `due_in`, and
        says with `pass_time` how long it waited.

        Raises:
            ClosedError: the subscriber was closed.
        """
        if self._closed or self._pid != os.getpid():
            raise ClosedError(
                "this subscriber was closed" if self._closed else "this subscriber belongs to another process"
            )
        began = time.monotonic()
        timeout = max(0.0, min(timeout, self.due_in()))
        if not self._round:
            self._begin_round(timeout)
        came = bool(self._round)
        now = self._clock + min(time.monotonic() - began, timeout + GRACE)
        # A reader leaves the round when it is done: an interrupt may come between.
        while self._round and len(self._ready) < AHEAD:
            self._touched.update(self._receive(self._round[0], now))
            self._round.popleft()
        if not self._round:
            self._end_round(now)
        self._clock += min(time.monotonic() - began, timeout + GRACE)
        return came

    def _begin_round(self, timeout: float) -> None:
        readers = self._waiter.wait(timeout)
        readers.update([reader for reader in self._restless if reader.due_in == 0.0])
        # A link first: what its monitor says comes before what a replay says.
        self._round.extend(reader for reader in readers if isinstance(reader, Link))
        self._round.extend(reader for reader in readers if isinstance(reader, Replay))

    def _receive(self, reader: Link | Replay, now: float) -> Iterable[Stream]:
        told: Iterable[Stream]
        if isinstance(reader, Link):
            told = reader.receive(now)
        else:
            reader.receive(now, self._links[self._link_of[reader.stream]])
            told = (reader.stream,)
        if reader.due_in is None:
            self._restless.discard(reader)
        else:
            self._restless.add(reader)
        return told

    def _end_round(self, now: float) -> None:
        """All that came has been taken in, so that a deadline that has passed was missed."""
        self._touched.update(self._plan.due(now))
        for stream in self._touched:
            deadline = stream.deadline
            if deadline is not None and deadline <= now:
                stream.tick(now)
                deadline = stream.deadline
            self._plan.at(stream, deadline)
            self._sync_replay(stream)
        self._touched.clear()

    def pop(self) -> Item | None:
        """The next item that is there, without waiting."""
        return self._ready.popleft() if self._ready else None

    def pass_time(self, seconds: float) -> None:
        """Time was spent waiting outside of `pump`. Only time spent waiting counts for the deadlines of a peer."""
        self._clock += seconds

    def due_in(self) -> float:
        """Seconds until `pump` has something to do though nothing came, at most `SLICE`."""
        if self._round or self._touched:
            return 0.0
        due = min(SLICE, self._plan.first - self._clock)
        for reader in self._restless:
            reader_due = reader.due_in
            if reader_due is not None and reader_due < due:
                due = reader_due
        return max(0.0, due)

    def _sync_replay(self, stream: Stream) -> None:
        """Have the one request open that the stream wants."""
        replay = self._replays.get(stream)
        if replay is None:
            if stream.asked is None:
                return
        elif replay.request is stream.asked:
            return
        else:
            del self._replays[stream]
            self._restless.discard(replay)
            replay.close()
        if stream.asked is None:
            return
        try:
            replay = Replay(
                self._context,
                self._replay_endpoints[stream.source],
                stream,
                stream.asked,
                options=self._options,
                waiter=self._waiter,
            )
        except zmq.ZMQError:
            # No descriptor is left; tried again until the stream gives the replay up.
            self._plan.at(stream, self._clock + RETRY)
            return
        self._replays[stream] = replay
        self._restless.add(replay)

    def filenos(self) -> list[int]:
        """The file descriptors that become readable when something comes in: `pump` first, then wait. On Linux and
        macOS always the same one."""
        return self._waiter.filenos()

    def close(self) -> None:
        """Close the sockets. What is under way is dropped; items that are there can still be had. Twice does no harm."""
        if self._closed:
            return
        self._closed = True
        if self._pid != os.getpid():
            return  # The sockets are the parent's.
        for replay in self._replays.values():
            replay.close()
        for link in self._links.values():
            link.close()
        self._replays.clear()
        self._restless.clear()
        self._round.clear()
        self._links.clear()
        self._waiter.close()
        if self._own_context:
            self._context.destroy(linger=0)

    def __enter__(self) -> Subscriber:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Subscriber of {', '.join(self.sources[:3])}{' …' if len(self.sources) > 3 else ''}>"


class _Plan:
    """When each stream is due next, the first one at hand.

    Deadlines move on with every batch that comes. A later one is not noted until the noted one has come: the stream is
    then looked at once for nothing.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Stream]] = []
        self._noted: dict[Stream, float] = {}
        self._count = 0

    @property
    def first(self) -> float:
        """When the next stream may be due."""
        return self._heap[0][0] if self._heap else float("inf")

    def at(self, stream: Stream, deadline: float | None) -> None:
        """A stream is due then; never for None."""
        if deadline is None or self._noted.get(stream, float("inf")) <= deadline:
            return
        self._noted[stream] = deadline
        self._count += 1
        heapq.heappush(self._heap, (deadline, self._count, stream))

    def due(self, now: float) -> list[Stream]:
        """The streams to look at now; they are no longer noted."""
        found = []
        while self._heap and self._heap[0][0] <= now:
            deadline, _, stream = heapq.heappop(self._heap)
            if self._noted.get(stream) == deadline:
                del self._noted[stream]
                found.append(stream)
        return found


def _publishers(
    endpoint: str | Sequence[str], replay: ReplayEndpoints | None, bind: bool, token: str | None
) -> Publishers:
    if isinstance(endpoint, str) and is_server_url(endpoint):
        found = fetch(endpoint, token=token)
        if found.bind:
            alone = len(found.endpoints) == 1
            topic = found.topic.encode()
            found = msgspec.structs.replace(
                found, replays={source_name(name, topic, alone): where for name, where in found.replays.items()}
            )
        if replay is not None:
            found = msgspec.structs.replace(found, replays=_replays(list(found.endpoints), replay, found.bind))
        return found
    given = [endpoint] if isinstance(endpoint, str) else list(endpoint)
    if not given:
        raise UsageError("no endpoint to subscribe to")
    endpoints: dict[str, Endpoint] = {}
    for name in given:
        if name in endpoints:
            raise UsageError(f"endpoint {name} is given twice")
        endpoints[name] = parse(name) if bind else dial(name)
    return Publishers(endpoints, {} if replay is None else _replays(given, replay, bind), "", bind)


def _replays(names: list[str], replay: ReplayEndpoints, bind: bool) -> dict[str, Endpoint]:
    if isinstance(replay, Mapping):
        unknown = [] if bind else [name for name in replay if name not in names]
        if unknown:
            raise UsageError(
                f"a replay endpoint for {unknown[0]}, which is not among the endpoints: {', '.join(names)}"
            )
        return {name: dial(where) for name, where in replay.items()}
    if bind:
        raise UsageError("publishers that connect are told apart by topic: give replay as a mapping from topic")
    given = [replay] if isinstance(replay, str) else list(replay)
    if len(given) != len(names):
        raise UsageError(f"{len(names)} endpoints and {len(given)} replay endpoints; give one each, or None")
    return {name: dial(where) for name, where in zip(names, given, strict=True) if where is not None}


def _with_max_payload(limits: Limits | None, max_payload: int) -> Limits:
    if max_payload < 1:
        raise UsageError(f"max_payload is a number of bytes, not {max_payload}")
    return msgspec.structs.replace(limits or Limits(), payload=max_payload)


def _topic(topic: str | bytes) -> bytes:
    return topic.encode() if isinstance(topic, str) else topic


def _own_context(sources: int) -> Context:
    context: Context = zmq.Context()
    most = int(context.get(zmq.SOCKET_LIMIT))
    context.set(zmq.MAX_SOCKETS, min(most, 1024 + 2 * SOCKETS_PER_SOURCE * sources))
    return context


def _no_socket(error: zmq.ZMQError) -> Exception:
    if error.errno in NO_DESCRIPTOR:
        return UsageError(
            "no file descriptor is left for another socket; a source takes up to 8 of them: raise the limit (ulimit -n)"
        )
    return EndpointError(f"no socket for a source: {zmq.strerror(error.errno or 0)}")
