"""`Subscriber` of 1 to 500 sources in one process: CPU per batch."""

from __future__ import annotations

import resource
import time

from benchmarks.children.line import Child
from benchmarks.items.subscribe import PATIENCE, expect_batch
from benchmarks.model import Row, figure, spread
from benchmarks.timing import Effort
from kvwire.zmq import Subscriber

COUNTS = (1, 10, 100, 500)
FLAT = 1.25
"""Most that a batch of 500 sources may cost of what a batch of one source costs."""

DESCRIPTORS = 8
"""That a source takes: two sockets, their signals, and the connection."""

INTERVAL = 0.0005
"""Seconds between two batches of all sources together."""


def run(effort: Effort) -> list[Row]:
    """Two situations: a steady flow, where each batch wakes the subscriber, and a backlog that is already there when it
    begins to read. The total is the same whatever the number of sources."""
    counts = [count for count in COUNTS if room_for(count)]
    rounds = 1 if effort.quick else 3
    flows = {"2,000 batches a second": (INTERVAL, 200 if effort.quick else 2500), "a backlog of 20,000": (0.0, 200 if effort.quick else 20_000)}  # fmt: skip
    taken: dict[str, dict[int, list[float]]] = {flow: {count: [] for count in counts} for flow in flows}
    for _ in range(rounds):
        for count in counts:
            with Child("flooder", sources=count, shape="16x16", hwm=0) as flood:
                for flow, seconds in _measure(flood, count, flows).items():
                    taken[flow][count].append(seconds)
    return [row for flow in flows for row in _rows(flow, taken[flow])]


def room_for(sources: int) -> bool:
    """Whether this process may have as many descriptors as so many sources take; it is allowed what the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 64 + DESCRIPTORS * sources
    if soft != resource.RLIM_INFINITY and soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        return most >= wanted
    return True


def _measure(flood: Child, count: int, flows: dict[str, tuple[float, int]]) -> dict[str, float]:
    with Subscriber(flood.told["endpoints"], hwm=0) as subscriber:
        _join(flood, subscriber, count)
        return {flow: _cpu(flood, subscriber, count, interval, size) for flow, (interval, size) in flows.items()}


def _join(flood: Child, subscriber: Subscriber, count: int) -> None:
    """Until every source has had a batch: what is sent before a subscription is there is not sent at all."""
    seen: set[str] = set()
    until = time.monotonic() + PATIENCE
    while len(seen) < count:
        if time.monotonic() > until:
            raise RuntimeError(f"{len(seen)} of {count} sources were heard in {PATIENCE:g} s")
        flood.ask("flood", count=count, sources=count, interval=0)
        while (item := subscriber.next(0.2)) is not None:
            seen.add(item.source)


def _cpu(flood: Child, subscriber: Subscriber, sources: int, interval: float, size: int) -> float:
    """CPU seconds of this process, libzmq's thread included, per batch."""
    began = time.process_time()
    flood.tell("flood", count=size, sources=sources, interval=interval)
    if not interval:
        flood.wait()
    for _ in range(size):
        expect_batch(subscriber)
    taken = time.process_time() - began
    if interval:
        flood.wait()
    return taken / size


def _rows(flow: str, taken: dict[int, list[float]]) -> list[Row]:
    one = taken[1]
    rows = []
    for count, values in taken.items():
        value, low, high = spread([many / single for many, single in zip(values, one, strict=True)])
        rows.append(
            Row(
                item="sources",
                case=f"{count} sources, {flow}",
                measure="CPU per batch / one source",
                value=value,
                low=low,
                high=high,
                target=FLAT if count > 1 else None,
                sense="<=",
                figures=[figure("kvwire", values, "µs CPU/batch", 1e6)],
            )
        )
    return rows
