"""`kvwire.Encoder` against msgspec encoding the release's own structs."""

from __future__ import annotations

from typing import Any

import msgspec

from benchmarks.model import Row, compared
from benchmarks.payloads import removal_batch, shaped_batch
from benchmarks.peers import exact, exact_batch, untyped_encoders
from benchmarks.timing import Effort, each, interleave
from kvwire import DIALECTS, Encoder, EventBatch

CLOSER = ("slot7", "dynamo", "sglang-map2", "vllm-map5")
"""Dialects that are measured on more payloads, and beside the untyped libraries."""

OWN, NEUTRAL, NEUTRAL_ONE = 0.9, 0.9, 0.6


def run(effort: Effort) -> list[Row]:
    """Per dialect: events that are the dialect's own structs, and neutral events."""
    rows = []
    for dialect in DIALECTS:
        for shape, neutral in (("1x16", NEUTRAL_ONE), ("16x16", NEUTRAL)):
            batches = [shaped_batch(dialect, shape, seed=seed) for seed in range(8)]
            rows += _rows(dialect, f"{dialect} {shape}", batches, neutral, effort)
    for dialect in CLOSER:
        salted = 0.0 if dialect in ("slot7", "vllm-map5") else 0.5
        cases = (
            ("1x16, 8 events", [shaped_batch(dialect, "1x16", 8, salted=salted, seed=seed) for seed in range(8)]),
            ("32x64", [shaped_batch(dialect, "32x64", seed=seed) for seed in range(8)]),
            ("mostly removes", [removal_batch(dialect, seed) for seed in range(8)]),
        )
        for name, batches in cases:
            target = NEUTRAL if name == "32x64" else NEUTRAL_ONE
            half = ", half salted" if salted and "events" in name else ""
            rows += _rows(dialect, f"{dialect} {name}{half}", batches, target, effort)
    return rows


def _rows(dialect: str, name: str, batches: list[EventBatch], neutral_target: float, effort: Effort) -> list[Row]:
    encoder = Encoder(dialect)
    if "dp_rank" not in encoder.dialect.batch_fields:
        batches = [EventBatch(batch.ts, batch.events) for batch in batches]
    payloads = [encoder.encode(batch) for batch in batches]
    own = [EventBatch(b.ts, [encoder.to_wire(event) for event in b.events], b.dp_rank) for b in batches]
    peer = exact(dialect)
    structs = [exact_batch(dialect, batch) for batch in batches]
    plain = [msgspec.msgpack.decode(payload) for payload in payloads]
    subjects: dict[str, Any] = {
        "own": each(encoder.encode, own),
        "neutral": each(encoder.encode, batches),
        "msgspec": each(peer.encode, structs),
        **({name: each(pack, plain) for name, pack in untyped_encoders().items()} if dialect in CLOSER else {}),
    }
    series = {
        name: [seconds / len(batches) for seconds in values] for name, values in interleave(subjects, effort).items()
    }
    others = {name: values for name, values in series.items() if name not in ("own", "neutral")}
    return [
        compared(
            {"kvwire": series[kind], **others},
            "msgspec",
            item="encode",
            case=f"{name}, {kind}",
            measure="speed / msgspec",
            target=target,
            unit="µs/batch",
            note=peer.source,
        )
        for kind, target in (("own", OWN), ("neutral", neutral_target))
    ]
