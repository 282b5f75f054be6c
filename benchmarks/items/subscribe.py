"""`Subscriber` on one source over loopback, against a bare pyzmq loop that decodes with msgspec's exact structs."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

import zmq

from benchmarks.children.flooder import DIALECT
from benchmarks.children.line import Child
from benchmarks.model import Row, compared
from benchmarks.peers import exact
from benchmarks.timing import Effort
from kvwire.items import Batch
from kvwire.zmq import Subscriber

TARGET = 0.8
PATIENCE = 20.0
Reader = Callable[[], object]
"""Takes the next batch in."""


def run(effort: Effort) -> list[Row]:
    """Batches a second while the publisher has always more, each subject on a publisher of its own."""
    rows = []
    for shape, count in (("1x16", 40_000), ("16x16", 20_000)):
        rows += _shape(shape, 300 if effort.quick else count, 2 if effort.quick else 9)
    return rows


def _shape(shape: str, count: int, rounds: int) -> list[Row]:
    with contextlib.ExitStack() as stack:
        floods = {
            kind: stack.enter_context(Child("flooder", sources=1, shape=shape))
            for kind in ("kvwire", "kvwire, skip_tokens", "pyzmq and msgspec")
        }
        read = {kind: _reader(kind, flood.told["endpoints"][0], stack) for kind, flood in floods.items()}
        for kind, flood in floods.items():
            join(flood, read[kind])
        walls: dict[str, list[float]] = {kind: [] for kind in floods}
        cpus: dict[str, list[float]] = {kind: [] for kind in floods}
        names = list(floods)
        for turn in range(rounds):
            for kind in names[turn % 3 :] + names[: turn % 3]:
                wall, cpu = _drain(floods[kind], read[kind], count)
                walls[kind].append(wall / count)
                cpus[kind].append(cpu / count)
    peer = "pyzmq and msgspec"
    return [
        compared(walls, peer, item="subscribe", case=f"batches of {shape}", measure="speed / bare loop", target=TARGET, unit="µs/batch"),
        compared(cpus, peer, item="subscribe", case=f"batches of {shape}, CPU time", measure="speed / bare loop", target=None, unit="µs/batch"),
    ]  # fmt: skip


def _drain(flood: Child, read: Reader, count: int) -> tuple[float, float]:
    """Wall and CPU seconds (of this process, libzmq's thread included) from the first batch to the last."""
    flood.tell("flood", count=count + 1, sources=1, interval=0)
    read()
    wall, cpu = time.perf_counter(), time.process_time()
    for _ in range(count):
        read()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    flood.wait()
    return wall, cpu


def join(flood: Child, read: Reader) -> None:
    """Wait until the subscription is there. A PUB socket sends nothing before, not even to who connects meanwhile."""
    time.sleep(0.3)
    flood.tell("flood", count=50, sources=1, interval=0)
    for _ in range(50):
        read()
    flood.wait()


def _reader(kind: str, endpoint: str, stack: contextlib.ExitStack) -> Reader:
    if kind.startswith("kvwire"):
        subscriber = stack.enter_context(Subscriber(endpoint, skip_tokens="skip" in kind))
        return lambda: expect_batch(subscriber)
    context = zmq.Context[zmq.Socket[bytes]]()
    stack.callback(context.destroy, linger=0)
    socket = context.socket(zmq.SUB)
    socket.setsockopt(zmq.RCVHWM, 10_000)
    socket.setsockopt(zmq.RCVTIMEO, int(PATIENCE * 1000))
    socket.setsockopt(zmq.SUBSCRIBE, b"")
    socket.connect(endpoint)
    decode = exact(DIALECT).decode

    def read() -> None:
        _, seq, payload = socket.recv_multipart()
        int.from_bytes(seq, "big")
        decode(payload)

    return read


def expect_batch(subscriber: Subscriber) -> Batch:
    """The next item, which has to be a batch."""
    item = subscriber.next(PATIENCE)
    if not isinstance(item, Batch):
        raise RuntimeError(f"expected a batch, got {item!r:.200}")
    return item
