"""`Publisher.publish` on the engine's thread against vLLM's `ZmqEventPublisher.publish`."""

from __future__ import annotations

import contextlib

import zmq

from benchmarks.children.line import Child
from benchmarks.model import Row, compared, percentile
from benchmarks.timing import Effort

TARGET = 1.0
PACES = {"1,000 a second": 0.001, "as fast as it goes": 0.0}
"""Seconds between two batches: a busy scheduler, and a burst."""


def run(effort: Effort) -> list[Row]:
    """p50 and p99 of the call, one event of 16 blocks a batch, one subscriber connected."""
    count = 100 if effort.quick else 1000
    rounds = 2 if effort.quick else 7
    taken: dict[str, dict[str, list[list[int]]]] = {pace: {"kvwire": [], "vllm": []} for pace in PACES}
    with contextlib.ExitStack() as stack:
        engines = {kind: stack.enter_context(Child("publisher", kind=kind)) for kind in ("kvwire", "vllm")}
        context = zmq.Context[zmq.Socket[bytes]]()
        stack.callback(context.destroy, linger=0)
        readers = {kind: _subscribe(context, engine.told["endpoint"]) for kind, engine in engines.items()}
        for turn in range(rounds + 1):
            for pace, interval in PACES.items():
                for kind in ("kvwire", "vllm") if turn % 2 else ("vllm", "kvwire"):
                    found = engines[kind].ask("publish", count=count, interval=interval)["taken"]
                    if turn:  # The first round is to warm up.
                        taken[pace][kind].append(found)
                    _drain(readers[kind])
    return [
        compared(
            {kind: [percentile(calls, share) for calls in found] for kind, found in taken[pace].items()},
            "vllm",
            item="publish",
            case=f"{pace}, {name}",
            measure="time / vLLM",
            target=TARGET,
            sense="<=",
            unit="µs",
            factor=1e-3,
            inverse=False,
        )
        for pace in PACES
        for name, share in (("p50", 0.5), ("p99", 0.99))
    ]


def _subscribe(context: zmq.Context[zmq.Socket[bytes]], endpoint: str) -> zmq.Socket[bytes]:
    socket = context.socket(zmq.SUB)
    socket.setsockopt(zmq.RCVHWM, 0)
    socket.setsockopt(zmq.SUBSCRIBE, b"")
    socket.connect(endpoint)
    return socket


def _drain(socket: zmq.Socket[bytes]) -> None:
    while socket.poll(50):
        socket.recv()
