"""`kvwire-conform producer --recording` on a long stream, all checks but hashes: speed and memory."""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.children.line import Child
from benchmarks.model import Row, figure, spread
from benchmarks.payloads import stored
from benchmarks.timing import Effort
from kvwire import Decoder, Encoder, EventBatch, get_dialect
from kvwire_conform.recording import Record, write_record
from kvwire_conform.simulator import Simulator

SPEED, PER_EVENT, PER_BLOCK = 1 / 8, 4.0, 200.0
DIALECT = "vllm-map5"
BLOCKS = 16
"""Blocks of one stored event in the streams that only store."""


def run(effort: Effort) -> list[Row]:
    """A judge in a process of its own each time, and what it does without judging beside it."""
    scale = 0.04 if effort.quick else 1.0
    events, stores = int(100_000 * scale), int(4_000 * scale)
    with tempfile.TemporaryDirectory() as folder:
        where = Path(folder)
        paths = {name: where / f"{name}.jsonl" for name in ("long", "short", "many", "few")}
        payloads = write_stream(paths["long"], simulated(events))
        write_stream(paths["short"], simulated(events // 4))
        write_stream(paths["many"], storing(stores))
        write_stream(paths["few"], storing(stores // 8))
        told: dict[str, list[dict[str, float]]] = {name: [] for name in paths}
        alone: list[float] = []
        for _ in range(1 if effort.quick else 3):
            for name, path in paths.items():
                with Child("judge", path=str(path)) as judge:
                    told[name].append(judge.ask("judge"))
            alone.append(_decode_seconds(payloads))
    count = told["long"][0]["events"]
    taken = [answer["seconds"] for answer in told["long"]]
    speed, low, high = spread([decode / judge for decode, judge in zip(alone, taken, strict=True)])
    return [
        Row(
            item="recording",
            case=f"{count:,.0f} events, {DIALECT}",
            measure="speed / decoding alone",
            value=speed,
            low=low,
            high=high,
            target=SPEED,
            figures=[
                figure("kvwire", taken, "µs/event", 1e6 / count),
                figure("decode", alone, "µs/event", 1e6 / count),
            ],
        ),
        _memory(
            "memory per event, as many live blocks",
            told["long"],
            told["short"],
            count - count // 4,
            "bytes/event",
            PER_EVENT,
        ),
        _memory(
            "memory per live block",
            told["many"],
            told["few"],
            (stores - stores // 8) * BLOCKS,
            "bytes/block",
            PER_BLOCK,
        ),
    ]


def _memory(
    case: str, more: list[dict[str, float]], less: list[dict[str, float]], further: float, unit: str, target: float
) -> Row:
    peaks = {"more": [told["kilobytes"] for told in more], "less": [told["kilobytes"] for told in less]}
    grown = [(a - b) * 1024 / further for a, b in zip(peaks["more"], peaks["less"], strict=True)]
    value, low, high = spread(grown)
    return Row(
        item="recording",
        case=f"{case}, {further:,.0f} more",
        measure="memory",
        value=value,
        low=low,
        high=high,
        unit=unit,
        target=target,
        sense="<=",
        figures=[figure(f"kvwire, {name}", values, "MB", 1024 / 1e6) for name, values in peaks.items()],
        note="Memory is the peak of the process while it judges, less what it had after its imports.",
    )


def simulated(events: int) -> Iterator[EventBatch]:
    """Batches of so many events of a cache that holds 512 blocks, however long the stream."""
    engine = Simulator(DIALECT, seed=9, capacity=512, host_capacity=0, disk_capacity=0, clear_every=None)
    done = 0
    while done < events:
        batch = engine.step()
        done += len(batch.events)
        yield batch


def storing(events: int) -> Iterator[EventBatch]:
    """One stored event a batch, and nothing is ever removed."""
    rng = random.Random(6)
    for number in range(events):
        event = stored(rng, get_dialect(DIALECT), BLOCKS, 16)
        event.parent_block_hash = None
        yield EventBatch(1_700_000_000.0 + number, [event], 0)


def write_stream(path: Path, batches: Iterator[EventBatch]) -> list[bytes]:
    """Record batches as they would have come live; their payloads."""
    encode = Encoder(DIALECT).encode
    payloads = []
    with open(path, "w", encoding="utf-8", buffering=1 << 20) as file:
        for seq, batch in enumerate(batches):
            payload = encode(batch)
            frames = [b"", seq.to_bytes(8, "big"), payload]
            write_record(file, Record(t=batch.ts, channel="live", frames=frames))
            payloads.append(payload)
    return payloads


def _decode_seconds(payloads: list[bytes]) -> float:
    decode = Decoder().decode
    began = time.perf_counter()
    for payload in payloads:
        decode(payload)
    return time.perf_counter() - began
