"""What each fault of the stream does to the next message.

Each function gives the messages to publish in place of the right one, or none when the next batch does not fit.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from kvwire.dialects import get_dialect
from kvwire.events import AllBlocksCleared, BlockRemoved, BlockStored, Event, EventBatch

if TYPE_CHECKING:
    from kvwire_conform.simulator_model import Frames, Simulator

END = b"\xff" * 8
"""The seq that marks the end of a replay."""

_NEXT_DIALECT = {
    "slot6-b2": "slot6",
    "slot6": "slot7",
    "slot7": "sglang-map1",
    "slot8": "sglang-map1",
    "slot8-lora": "slot9",
    "slot9": "slot10",
    "slot10": "slot12",
    "slot12": "vllm-map1",
    "dynamo": "vllm-map4",
    "sglang-map1": "slot8",
    "sglang-map2": "slot8",
    **dict.fromkeys(("vllm-map1", "vllm-map2", "vllm-map3", "vllm-map4", "vllm-map5"), "slot12"),
}
"""What a stream switches to: another dialect of the same engine, whose bytes cannot be taken for the first one's."""


# Frames and seq


def two_frames(sim: Simulator) -> list[Frames]:
    return [(sim.topic, sim.write(sim.step()))]


def topic_not_utf8(sim: Simulator) -> list[Frames]:
    sim.topic += b"\xff\xfe"
    return [sim.number(sim.step())]


def other_topic(sim: Simulator) -> list[Frames]:
    sim.topic += b"-other"
    return [sim.number(sim.step())]


def short_seq(sim: Simulator) -> list[Frames]:
    return [(sim.topic, sim.seq.to_bytes(4, "big"), sim.write(sim.step()))]


def sent_twice(sim: Simulator) -> list[Frames]:
    return [] if sim.last is None else [sim.last]


def restart_elsewhere(sim: Simulator) -> list[Frames]:
    if sim.seq <= 3:
        return []
    sim.restart(first_seq=3)
    return [sim.number(sim.step())]


def end_as_seq(sim: Simulator) -> list[Frames]:
    return [(sim.topic, END, sim.write(sim.step()))]


# The batch


def cut_short(sim: Simulator) -> list[Frames]:
    batch = sim.heartbeat()
    return [sim.number(batch, sim.write(batch)[:-1])]


def four_elements(sim: Simulator) -> list[Frames]:
    batch = sim.step()
    parts = sim.wire_parts(batch)
    return [sim.number(batch, msgspec.msgpack.encode(parts + [None] * (4 - len(parts))))]


def ts_nan(sim: Simulator) -> list[Frames]:
    batch = sim.heartbeat()
    batch.ts = math.nan
    return [sim.number(batch, msgspec.msgpack.encode(sim.wire_parts(batch)))]


def milliseconds(sim: Simulator) -> list[Frames]:
    batch = sim.step()
    return [sim.number(EventBatch(batch.ts * 1e3, batch.events, batch.dp_rank))]


def rank_left_out(sim: Simulator) -> list[Frames]:
    batch = sim.heartbeat()
    batch.dp_rank = None
    return [sim.number(batch)]


def rank_of_neighbour(sim: Simulator) -> list[Frames]:
    sim.announce_rank(sim.dp_rank + 1)
    return [sim.number(sim.step())]


# Events


def also(sim: Simulator, *events: Event) -> list[Frames]:
    batch = sim.step()
    return [sim.number(EventBatch(batch.ts, [*batch.events, *events], batch.dp_rank))]


def also_plain(sim: Simulator, event: Any) -> list[Frames]:
    batch = sim.step()
    return [sim.number(batch, msgspec.msgpack.encode(sim.wire_parts(batch, [event])))]


def set(event: Any, slot: int, key: str, value: Any) -> Any:
    event[slot if isinstance(event, list) else key] = value
    return event


def block_size_text(sim: Simulator) -> list[Frames]:
    return also_plain(sim, set(sim.plain(sim.stranger()), 4, "block_size", str(sim.settings.block_size)))


def unknown_tag(sim: Simulator) -> list[Frames]:
    return also_plain(sim, set(sim.plain(sim.stranger()), 0, "type", "BlockUpdated"))


def unknown_field(sim: Simulator) -> list[Frames]:
    events = sim.peek().events
    at = next((index for index, event in enumerate(events) if isinstance(event, BlockRemoved)), None)
    if at is None:
        return []
    event = sim.plain(events[at])
    if isinstance(event, list):
        # Past every slot that some dialect has, so that it cannot be taken for one of them.
        event += [None] * (8 - len(event)) + ["lru"]
    else:
        event["reason"] = "lru"
    batch = sim.step()
    parts = sim.wire_parts(batch)
    parts[1][at] = event
    return [sim.number(batch, msgspec.msgpack.encode(parts))]


def switch_dialect(sim: Simulator) -> list[Frames]:
    if not any(isinstance(event, BlockStored) for event in sim.peek().events):
        return []
    sim.speak(get_dialect(_NEXT_DIALECT[sim.dialect.id]))
    return [sim.number(sim.step())]


def stored_wrongly(
    change: Callable[[Simulator, BlockStored], object], blocks: int = 1
) -> Callable[[Simulator], list[Frames]]:
    """A fault of one stored event: a block from nowhere, well-formed but for the change."""

    def act(sim: Simulator) -> list[Frames]:
        event = sim.stranger(blocks)
        change(sim, event)
        return also(sim, event)

    return act


def lower_case_medium(sim: Simulator, event: BlockStored) -> None:
    event.medium = "gpu"


def hash_as_bytes(sim: Simulator, event: BlockStored) -> None:
    event.block_hashes = [sim.fault_random.getrandbits(256).to_bytes(32, "big")]


def other_hash(sim: Simulator, event: BlockStored) -> None:
    # The last of several: with its parent's hash right, no salt or namespace that the dialect hides can explain it.
    event.block_hashes[-1] = sim.random_hash()


def parent_zero(sim: Simulator, event: BlockStored) -> None:
    event.parent_block_hash = 0


def negative_token(sim: Simulator, event: BlockStored) -> None:
    event.token_ids[-1] = (1, -1) if sim.settings.bigram else -1


def parent_unknown(sim: Simulator, event: BlockStored) -> None:
    event.parent_block_hash = sim.random_hash()


def same_hash_twice(sim: Simulator, event: BlockStored) -> None:
    event.block_hashes[1] = event.block_hashes[0]


def own_parent(sim: Simulator, event: BlockStored) -> None:
    event.parent_block_hash = event.block_hashes[0]


def double_size(sim: Simulator, event: BlockStored) -> None:
    event.block_size *= 2
    event.token_ids *= 2


def token_missing(sim: Simulator, event: BlockStored) -> None:
    event.token_ids.pop()


def keys_for_two(sim: Simulator, event: BlockStored) -> None:
    event.extra_keys = [None, None]


# The stream


def remove_stranger(sim: Simulator) -> list[Frames]:
    return also(sim, sim.removal(sim.random_hash(), sim.full_group))


def remove_cleared(sim: Simulator) -> list[Frames]:
    held = sorted(sim.resident().get("GPU", ()), key=repr)
    if not held:
        return []
    group, block_hash = sim.fault_random.choice(held)
    assert isinstance(block_hash, int)
    sim.clear()
    batch = sim.peek()
    clears = sum(isinstance(event, AllBlocksCleared) for event in batch.events)
    if not clears or not isinstance(batch.events[clears - 1], AllBlocksCleared):
        return []
    sim.step()
    events = [*batch.events[:clears], sim.removal(block_hash, group), *batch.events[clears:]]
    return [sim.number(EventBatch(batch.ts, events, batch.dp_rank))]


def salt_ignored(sim: Simulator) -> list[Frames]:
    plain, salted = sim.stranger(), BlockStored([], None, [], 0)
    for name in plain.__struct_fields__:
        setattr(salted, name, getattr(plain, name))
    salted.cache_salt = "tenant-a"
    if sim.profile.stores("extra_keys"):
        salted.extra_keys = [["dynamo-cache-salt:tenant-a"]]
    return also(sim, plain, salted)
