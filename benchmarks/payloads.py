"""The payloads that are measured: shaped ones, simulated traffic, and what real engines sent where captures are there."""

from __future__ import annotations

import functools
import os
import random
from collections.abc import Iterator
from pathlib import Path

import msgspec

from kvwire import BlockRemoved, BlockStored, Encoder, EventBatch, get_dialect
from kvwire.dialects import Dialect
from kvwire.errors import KvwireError
from kvwire_conform.recording import read_recording
from kvwire_conform.simulator import Simulator

ROOT = Path(__file__).resolve().parent.parent
CAPTURES = Path(os.environ.get("KVWIRE_CAPTURES", ROOT.parent / "shared" / "captures"))

VOCABULARY = 128_000
SHAPES = {"1x16": (1, 16), "16x16": (16, 16), "32x64": (32, 64)}
"""Blocks and tokens per block of one stored event."""

MIXED_BYTES = 100_000_000
DISTINCT_BYTES = 5_000_000
"""Mixed traffic is this much that is different, once a round, until every subject has read all of it."""

MIXED_DIALECTS = ("slot7", "slot8", "slot12", "dynamo", "sglang-map2", "vllm-map5")


class Corpus(msgspec.Struct, frozen=True):
    """Payloads of one dialect each.

    Attributes:
        name: of the case.
        parts: the payloads, with the dialect that each is written in.
        events: how many they hold.
        rounds: how often a measurement goes over them; None for as often as over any other.
    """

    name: str
    parts: list[tuple[str, bytes]]
    events: int
    rounds: int | None = None

    @property
    def payloads(self) -> list[bytes]:
        """The payloads alone."""
        return [payload for _, payload in self.parts]

    @property
    def dialects(self) -> list[str]:
        """Every dialect in it, once."""
        return list(dict.fromkeys(dialect for dialect, _ in self.parts))


def stored(rng: random.Random, dialect: Dialect, blocks: int, size: int, salt: str | None = None) -> BlockStored:
    """A stored event as the dialect's engines send it: random tokens and hashes, the usual fields filled in."""
    signed = not dialect.id.startswith("vllm")
    low = -(2**63) if signed else 0
    layout = dialect.events["BlockStored"].carried
    event = BlockStored(
        [low + rng.getrandbits(64) for _ in range(blocks)],
        low + rng.getrandbits(64),
        [rng.randrange(VOCABULARY) for _ in range(blocks * size)],
        size,
    )
    if "medium" in layout:
        event.medium = "GPU"
    if "extra_keys" in layout and dialect.id != "dynamo":
        event.extra_keys = [None] * blocks
    if "group_idx" in layout:
        event.group_idx = 0
    if "kv_cache_spec_kind" in layout:
        event.kv_cache_spec_kind = "full_attention"
    event.cache_salt = salt
    return event


def removed(rng: random.Random, dialect: Dialect, blocks: int) -> BlockRemoved:
    """A removed event."""
    low = 0 if dialect.id.startswith("vllm") else -(2**63)
    event = BlockRemoved([low + rng.getrandbits(64) for _ in range(blocks)])
    if "medium" in dialect.events["BlockRemoved"].carried:
        event.medium = "GPU"
    if "group_idx" in dialect.events["BlockRemoved"].carried:
        event.group_idx = 0
    return event


def shaped_batch(dialect: str, shape: str, events: int = 1, *, salted: float = 0.0, seed: int = 1) -> EventBatch:
    """A neutral batch of stored events of one shape; of ``salted`` of them (0 to 1) the tenant has a salt."""
    rng = random.Random(f"{dialect}/{shape}/{events}/{seed}")
    blocks, size = SHAPES[shape]
    found = get_dialect(dialect)
    made = [stored(rng, found, blocks, size, "tenant-a" if rng.random() < salted else None) for _ in range(events)]
    return EventBatch(1_700_000_000.25, list(made), 0)


def removal_batch(dialect: str, seed: int = 1) -> EventBatch:
    """A batch as an evicting engine sends it: 15 removals of one block, and one store of one block."""
    rng = random.Random(f"{dialect}/removes/{seed}")
    found = get_dialect(dialect)
    events = [removed(rng, found, 1) for _ in range(15)]
    return EventBatch(1_700_000_000.25, [*events, stored(rng, found, 1, 16)], 0)


def corpus_of(name: str, dialect: str, batches: list[EventBatch]) -> Corpus:
    """Neutral batches written in a dialect."""
    encode = Encoder(dialect).encode
    return Corpus(name, [(dialect, encode(batch)) for batch in batches], sum(len(batch.events) for batch in batches))


@functools.cache
def shaped() -> list[Corpus]:
    """Every shaped case, arrays and maps; a few different payloads each, so that no branch is learnt by heart."""
    found = []
    for dialect in ("slot7", "slot12", "dynamo", "sglang-map2", "vllm-map5"):
        for shape in SHAPES:
            found.append(_shaped(dialect, shape, 1))
    for dialect in ("slot7", "vllm-map5"):
        found.append(_shaped(dialect, "1x16", 8))
        found.append(_shaped(dialect, "1x16", 64))
        found.append(_shaped(dialect, "16x16", 8))
        found.append(corpus_of(f"{dialect} mostly removes", dialect, [removal_batch(dialect, n) for n in range(8)]))
    for dialect in ("slot8", "dynamo", "sglang-map2"):
        found.append(_shaped(dialect, "1x16", 8, salted=0.5))
        found.append(_shaped(dialect, "16x16", 8, salted=0.5))
    return found


def _shaped(dialect: str, shape: str, events: int, *, salted: float = 0.0) -> Corpus:
    name = f"{dialect} {shape}" + (f", {events} events" if events > 1 else "") + (", half salted" if salted else "")
    batches = [shaped_batch(dialect, shape, events, salted=salted, seed=seed) for seed in range(8)]
    return corpus_of(name, dialect, batches)


@functools.cache
def mixed(scale: float = 1.0) -> Corpus:
    """100 MB of simulated traffic of six dialects, batches of all of them in turn."""
    engines = [
        Simulator(dialect, seed=5, capacity=512, host_capacity=512, disk_capacity=512) for dialect in MIXED_DIALECTS
    ]
    parts: list[tuple[str, bytes]] = []
    size = events = 0
    while size < DISTINCT_BYTES * min(1.0, scale * 5):  # The short run has less of it.
        for dialect, engine in zip(MIXED_DIALECTS, engines, strict=True):
            batch = engine.step()
            payload = engine.write(batch)
            parts.append((dialect, payload))
            events += len(batch.events)
            size += len(payload)
    return Corpus("100 MB mixed", parts, events, max(2, round(MIXED_BYTES * scale / size)))


@functools.cache
def captured() -> Corpus | None:
    """The live batches of real engines in the captures; None where there are no captures."""
    parts: list[tuple[str, bytes]] = []
    for path in sorted(CAPTURES.glob("*.jsonl")):
        dialect = _captured_dialect(path.name)
        if dialect is not None and "eagle" not in path.name and "handmade" not in path.name:
            parts += [(dialect, payload) for payload in _live_payloads(path)]
    return Corpus("captured from engines", parts, 0) if parts else None


def _captured_dialect(name: str) -> str | None:
    engine, version = name.split("-")[0], next((part for part in name.split("-") if part[0].isdigit()), "")
    try:
        return get_dialect(f"{engine}=={version}").id
    except KvwireError:
        return None


def _live_payloads(path: Path) -> Iterator[bytes]:
    for record in read_recording(path):
        if record.channel == "live" and len(record.frames) == 3:
            yield record.frames[2]
