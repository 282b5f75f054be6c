"""The project's own codec: SGLang's events as they are since 0.5.9, on its own classes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec


@dataclass
class Stored:
    hashes: list[int]
    parent: int | None
    tokens: list[Any]
    block_size: int
    lora_id: int | None = None
    medium: str | None = None
    salt: str | None = None


@dataclass
class Removed:
    hashes: list[int]
    medium: str | None = None


@dataclass
class Cleared:
    pass


@dataclass
class Batch:
    ts: float
    events: list[Stored | Removed | Cleared]
    rank: int | None = None


def decode(payload: bytes) -> Batch:
    """Raises ValueError for what is no batch of these events."""
    ts, events, rank = msgspec.msgpack.decode(payload)
    return Batch(ts, [_event(slots) for slots in events], rank)


def _event(slots: list[Any]) -> Stored | Removed | Cleared:
    tag = slots[0]
    if tag == "BlockStored":
        salt = slots[7]["cache_salt"] if len(slots) > 7 else None
        return Stored(slots[1], slots[2], slots[3], slots[4], slots[5], medium=slots[6], salt=salt)
    if tag == "BlockRemoved":
        return Removed(slots[1], medium=slots[2])
    if tag == "AllBlocksCleared":
        return Cleared()
    raise ValueError(f"no event is called {tag!r}")


def encode(batch: Batch) -> bytes:
    return msgspec.msgpack.encode([batch.ts, [_slots(event) for event in batch.events], batch.rank])


def _slots(event: Stored | Removed | Cleared) -> list[Any]:
    if isinstance(event, Stored):
        salted = [] if event.salt is None else [{"cache_salt": event.salt}]
        blocks = [event.hashes, event.parent, event.tokens, event.block_size]
        return ["BlockStored", *blocks, event.lora_id, event.medium, *salted]
    if isinstance(event, Removed):
        return ["BlockRemoved", event.hashes, event.medium]
    return ["AllBlocksCleared"]
