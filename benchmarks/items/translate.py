"""`kvwire.translate` against decoding alone."""

from __future__ import annotations

from benchmarks.model import Row, compared
from benchmarks.payloads import Corpus, corpus_of, removal_batch, shaped_batch
from benchmarks.peers import exact
from benchmarks.timing import Effort, each, interleave
from kvwire import translate

TARGET = 0.45
WAYS = (
    ("slot7", "vllm-map5"),
    ("slot12", "vllm-map5"),
    ("slot8", "sglang-map2"),
    ("dynamo", "vllm-map5"),
    ("vllm-map5", "slot12"),
    ("sglang-map2", "slot8"),
    ("sglang-map2", "dynamo"),
)
"""Array to map and back, between dialects that carry the same."""


def run(effort: Effort) -> list[Row]:
    """The bare decode is msgspec's with the exact structs of the release that wrote the payload."""
    rows = []
    for source, target in WAYS:
        salted = 0.5 if {"slot8", "sglang-map2"} & {source, target} and "slot12" not in (source, target) else 0.0
        cases = {
            "1x16": [shaped_batch(source, "1x16", seed=seed) for seed in range(8)],
            "16x16": [shaped_batch(source, "16x16", seed=seed) for seed in range(8)],
            "1x16, 8 events": [shaped_batch(source, "1x16", 8, salted=salted, seed=seed) for seed in range(8)],
            "mostly removes": [removal_batch(source, seed) for seed in range(8)],
        }
        for name, batches in cases.items():
            label = name + (", half salted" if salted and "events" in name else "")
            rows.append(_row(corpus_of(f"{source} to {target} {label}", source, batches), source, target, effort))
    return rows


def _row(corpus: Corpus, source: str, target: str, effort: Effort) -> Row:
    payloads = corpus.payloads
    series = interleave(
        {
            "kvwire": each(lambda payload: translate(payload, to=target), payloads),
            "msgspec": each(exact(source).decode, payloads),
        },
        effort,
    )
    return compared(
        {name: [seconds / len(payloads) for seconds in values] for name, values in series.items()},
        "msgspec",
        item="translate",
        case=corpus.name,
        measure="speed / a bare decode",
        target=TARGET,
        unit="µs/batch",
    )
