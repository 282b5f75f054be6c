"""Memory of decoded batches, as tracemalloc counts it: all that is alive because of them."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable
from typing import Any

from benchmarks.model import Figure, Row
from benchmarks.payloads import Corpus, mixed, shaped
from benchmarks.peers import exact
from benchmarks.timing import Effort
from kvwire import Decoder

TARGET = 1.1
COPIES = 64
"""Payloads decoded at once, so that what a decoder allocates once does not count."""


def run(effort: Effort) -> list[Row]:
    """Bytes per event, ours against those of msgspec's exact structs; with skip_tokens beside it."""
    rows = []
    for corpus in [*shaped(), mixed(effort.scale)]:
        copies = 8 if effort.quick else COPIES
        parts = (corpus.parts * (1 + copies // len(corpus.parts)))[: max(copies, len(corpus.parts) // 8)]
        events = sum(len(exact(dialect).decode(payload).events) for dialect, payload in parts)
        decode, lazy = Decoder().decode, Decoder(skip_tokens=True).decode
        sizes = {
            "kvwire": alive([(decode, payload) for _, payload in parts]) / events,
            "msgspec": alive([(exact(dialect).decode, payload) for dialect, payload in parts]) / events,
            "kvwire, skip_tokens": alive([(lazy, payload) for _, payload in parts]) / events,
        }
        rows.append(_row(corpus, sizes))
    return rows


def alive(parts: list[tuple[Callable[[bytes], Any], bytes]]) -> int:
    """Bytes that the decoded batches keep alive, the payloads not counted."""
    for decode, payload in parts[:8]:
        decode(payload)
    kept: list[Any] = [None] * len(parts)
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for index, (decode, payload) in enumerate(parts):
            kept[index] = decode(payload)
        return tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()


def _row(corpus: Corpus, sizes: dict[str, float]) -> Row:
    ratio = sizes["kvwire"] / sizes["msgspec"]
    return Row(
        item="memory",
        case=corpus.name,
        measure="memory / msgspec",
        value=ratio,
        low=ratio,
        high=ratio,
        target=TARGET,
        sense="<=",
        figures=[Figure(name, size, size, size, "bytes/event") for name, size in sizes.items()],
    )
