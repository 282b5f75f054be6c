"""Replay by `Publisher` against vLLM's `ZmqEventPublisher`: first reply, 10,000 batches, and what live batches wait."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Iterator

import zmq

from benchmarks.children.line import Child
from benchmarks.model import Figure, Row, compared, figure, percentile, spread
from benchmarks.timing import Effort

FIRST, TOTAL, DELAY_MS = 0.05, 0.5, 5.0
LOAD = 0.002
"""Seconds between live batches while a replay goes on."""

IDLE = 0.3
SIDES = ("kvwire", "vllm")
Socket = zmq.Socket[bytes]


def run(effort: Effort) -> list[Row]:
    """Rows for an idle publisher, and for one that publishes 500 batches a second meanwhile."""
    batches = 500 if effort.quick else 10_000
    with contextlib.ExitStack() as stack:
        engines = {kind: stack.enter_context(Child("publisher", kind=kind)) for kind in SIDES}
        context = zmq.Context[Socket]()
        stack.callback(context.destroy, linger=0)
        clients = {kind: _client(context, engine.told["replay"]) for kind, engine in engines.items()}
        for engine in engines.values():
            engine.ask("publish", count=batches, interval=0)
        rows = [_first_reply(clients, batches - 1, 8 if effort.quick else 100)]
        rows.append(_total(clients, batches, 2 if effort.quick else 21))
        readers = {
            kind: stack.enter_context(Child("reader", endpoint=engine.told["endpoint"]))
            for kind, engine in engines.items()
        }
        return rows + _under_load(engines, clients, readers, batches, 2 if effort.quick else 9)


def _first_reply(clients: dict[str, Socket], seq: int, times: int) -> Row:
    """An idle publisher asked for its last batch, at moments of its poll that nobody chose."""
    rng = random.Random(2)
    taken: dict[str, list[float]] = {kind: [] for kind in SIDES}
    for _ in range(times):
        for kind in SIDES:
            time.sleep(rng.random() * 0.1)
            taken[kind].append(_ask(clients[kind], seq)[0])
    worst = {kind: percentile(found, 0.99) for kind, found in taken.items()}
    ratio = worst["kvwire"] / worst["vllm"]
    # Each figure is the p99; the spread beside it is that of single replies.
    figures = [Figure(kind, worst[kind] * 1e3, *_tails(found), "ms") for kind, found in taken.items()]
    return Row(
        item="replay",
        case="idle, first reply, p99",
        measure="time / vLLM",
        value=ratio,
        low=ratio,
        high=ratio,
        target=FIRST,
        sense="<=",
        figures=figures,
    )


def _tails(found: list[float]) -> tuple[float, float]:
    _, low, high = spread(found)
    return low * 1e3, high * 1e3


def _total(clients: dict[str, Socket], batches: int, rounds: int) -> Row:
    rng = random.Random(7)
    taken: dict[str, list[float]] = {kind: [] for kind in SIDES}
    for _ in range(rounds):
        for kind in SIDES:
            time.sleep(rng.random() * 0.1)
            taken[kind].append(_whole(clients[kind], batches))
    return _row(f"idle, {batches:,} batches", taken)


def _under_load(
    engines: dict[str, Child], clients: dict[str, Socket], readers: dict[str, Child], batches: int, rounds: int
) -> list[Row]:
    taken: dict[str, list[float]] = {kind: [] for kind in SIDES}
    during: dict[str, list[float]] = {kind: [] for kind in SIDES}
    usual: dict[str, list[float]] = {kind: [] for kind in SIDES}
    for _ in range(rounds):
        for kind in SIDES:
            with _load(engines[kind], readers[kind]) as delays:
                time.sleep(0.25)
            usual[kind].append(max(delays))
            with _load(engines[kind], readers[kind]) as delays:
                taken[kind].append(_whole(clients[kind], batches))
            during[kind].append(max(delays))
    worst, low, high = spread([delay * 1e3 for delay in during["kvwire"]])
    figures = [figure(kind, found, "ms", 1e3) for kind, found in during.items()]
    figures += [figure(f"{kind}, no replay", found, "ms", 1e3) for kind, found in usual.items()]
    return [
        _row(f"under load, {batches:,} batches", taken),
        Row(
            item="replay",
            case="longest delay of a live batch during a replay",
            measure="delay",
            value=worst,
            low=low,
            high=high,
            unit="ms",
            target=DELAY_MS,
            sense="<=",
            figures=figures,
            note="A delay is from the call of publish to the subscriber's process; without a replay it shows what the "
            "machine does by itself.",
        ),
    ]


@contextlib.contextmanager
def _load(engine: Child, reader: Child) -> Iterator[list[float]]:
    """Live batches meanwhile; at the end the list holds the seconds that each took to arrive."""
    delays: list[float] = []
    reader.tell("read", idle=IDLE)
    engine.ask("load", interval=LOAD)
    time.sleep(0.05)
    try:
        yield delays
    finally:
        engine.ask("unload")
        delays += reader.wait()["delays"]


def _row(case: str, taken: dict[str, list[float]]) -> Row:
    return compared(
        taken,
        "vllm",
        item="replay",
        case=case,
        measure="time / vLLM",
        target=TOTAL,
        sense="<=",
        unit="ms",
        factor=1e3,
        inverse=False,
    )


def _client(context: zmq.Context[Socket], endpoint: str) -> Socket:
    socket = context.socket(zmq.DEALER)
    socket.setsockopt(zmq.RCVHWM, 0)
    socket.connect(endpoint)
    return socket


def _ask(socket: Socket, start: int) -> tuple[float, int]:
    """Seconds to the first reply, and how many batches came before the end marker."""
    began = time.perf_counter()
    socket.send(b"", zmq.SNDMORE)
    socket.send(start.to_bytes(8, "big"))
    first, count = 0.0, -1
    receive = socket.recv
    end = b"\xff" * 8
    while True:
        receive()
        receive()
        seq = receive()
        receive()
        count += 1
        if not count:
            first = time.perf_counter() - began
        if seq == end:
            return first, count


def _whole(socket: Socket, batches: int) -> float:
    began = time.perf_counter()
    _, count = _ask(socket, 0)
    taken = time.perf_counter() - began
    if count < batches:
        raise RuntimeError(f"{count} batches were replayed, and not {batches}")
    return taken
