"""Payloads that a seeded engine makes up, and what they mean: what the golden vectors did not think of."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kvwire.neutral_json import to_json
from kvwire_conform.simulator import Simulator

__all__ = ["BATCHES", "generated", "payload_of"]

BATCHES = 25
"""Batches of a dialect, unless told otherwise."""


def generated(dialect: str, seed: int, batches: int = BATCHES) -> Iterator[tuple[str, int, bytes, dict[str, Any]]]:
    """Batches of a simulated engine with salts, LoRA adapters, tiers and evictions, as far as the dialect shows them.

    Returns:
        Of each its id ``seed-<seed>/<dialect>/<number>``, its seq, its payload and its meaning in the neutral JSON form.
    """
    # A small cache evicts early; DP rank 1 is one that a reader cannot guess.
    engine = Simulator(dialect, seed, capacity=24, host_capacity=24, disk_capacity=24, dp_rank=1, clear_every=12)
    for number in range(batches):
        batch = engine.step()
        yield f"seed-{seed}/{dialect}/{number:03}", number, engine.write(batch), to_json(batch)


def payload_of(ident: str) -> bytes:
    """The payload of an id that `generated` gave."""
    seed, dialect, number = ident.removeprefix("seed-").split("/")
    *_, (_, _, payload, _) = generated(dialect, int(seed), int(number) + 1)
    return payload
