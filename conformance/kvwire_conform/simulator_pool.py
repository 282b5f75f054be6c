"""vLLM's cache: a pool of blocks looked up by hash, freed tail first, evicted one by one in the order of freeing.

Host tiers are those of an offloading connector: they announce hashes alone, without tokens or parents.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from kvwire.events import AllBlocksCleared, BlockRemoved, BlockStored, Event
from kvwire.hashing import vllm
from kvwire_conform.simulator_profile import Settings
from kvwire_conform.simulator_workload import Request

OWNER = "engine"
"""What ``ownership`` says of offloaded blocks in the dialects that have it."""

ALGORITHM = "sha256"
NONE_HASH = vllm.none_hash(ALGORITHM, "0")
"""The parent of root blocks: the engines run with PYTHONHASHSEED=0."""

Slot = tuple["int | None", int]
"""A block in the pool: its group and its hash."""


@dataclass(frozen=True)
class Block:
    """One full block of a request: its tokens, its hash, and what else went into the hash."""

    hash: int
    tokens: tuple[int, ...]
    extra: tuple[Any, ...]
    lookahead: tuple[int, ...]


@dataclass
class _Running:
    """A request that holds blocks; ``done`` of them are stored."""

    request: Request
    blocks: list[Block]
    done: int = 0
    held: set[Slot] = field(default_factory=set)


class BlockPool:
    """The cache and the scheduler of one engine process.

    Args:
        settings: sizes and behaviour.
        loras: names of the LoRA adapters.
    """

    def __init__(self, settings: Settings, loras: Sequence[str]) -> None:
        self._settings = settings
        self._profile = settings.profile
        self._loras = loras
        self._users: dict[Slot, int] = {}
        self._free: OrderedDict[Slot, None] = OrderedDict()
        self._running: list[_Running] = []
        self._offloaded: list[OrderedDict[int, None]] = [OrderedDict() for _ in settings.capacities[1:]]
        self._to_offload: list[int] = []

    def start(self) -> list[Event]:
        """What a new process publishes: nothing."""
        return []

    def clear(self) -> list[Event]:
        """Empty every tier, once nothing runs. The event goes first into the next batch."""
        self._running.clear()
        self._users.clear()
        self._free.clear()
        self._to_offload.clear()
        for tier in self._offloaded:
            tier.clear()
        return [AllBlocksCleared()]

    def turn(self, requests: Sequence[Request]) -> list[Event]:
        """One step of the scheduler: offload what the last one stored, decode, then admit requests."""
        events = self._offload()
        for running in list(self._running):
            if running.done < len(running.blocks):
                events += self._decode(running)
            else:
                self._finish(running)
        for request in requests:
            events += self._admit(request)
        return events

    def resident(self) -> dict[str, Counter[tuple[int | None, int | bytes]]]:
        """Per medium the blocks held, as ``(group_idx, hash)``, each once."""
        found: dict[str, Counter[tuple[int | None, int | bytes]]] = {}
        if self._users:
            found[self._profile.tiers[0]] = Counter(list(self._users))
        for medium, tier in zip(self._profile.tiers[1:], self._offloaded, strict=True):
            if tier:
                found[medium] = Counter([(None, block_hash) for block_hash in tier])
        return found

    # Requests

    def _admit(self, request: Request) -> list[Event]:
        blocks = self._blocks(request)
        prompt = len(request.prompt) // self._settings.block_size
        if self._settings.lookahead and len(request.prompt) == prompt * self._settings.block_size:
            prompt -= 1
        hit = self._hit(blocks[:prompt])
        if hit == prompt and len(request.prompt) % self._settings.block_size == 0:
            # A prompt that is cached to its last token recomputes its last block, and announces it again.
            hit = self._hit(blocks[: max(0, hit - 1)])
        running = _Running(request, blocks, hit)
        for group in self._settings.group_ids:
            first = self._first_needed(group, hit)
            for block in blocks[first:hit]:
                self._use(running, (group, block.hash))
        events = self._store(running, prompt)
        if events is None:
            self._finish(running)
            return []
        self._running.append(running)
        return events

    def _decode(self, running: _Running) -> list[Event]:
        events = self._store(running, running.done + 1)
        if events is None:
            # Preempted: the pool is full of blocks in use, and nobody would ever get on.
            self._finish(running)
            return []
        return events

    def _finish(self, running: _Running) -> None:
        """Free a request's blocks, the tail first."""
        for group in self._settings.group_ids:
            for block in reversed(running.blocks[: running.done]):
                self._release(running, (group, block.hash))
        if running in self._running:
            self._running.remove(running)

    def _blocks(self, request: Request) -> list[Block]:
        size = self._settings.block_size
        tokens = request.prompt + request.output
        parent = NONE_HASH
        blocks = []
        for start in range(0, len(tokens) // size * size, size):
            lookahead = tokens[start + size : start + size + 1] if self._settings.lookahead else ()
            if self._settings.lookahead and not lookahead:
                break
            extra = self._extra(request, start)
            keys = self._hashed(request, extra)
            if lookahead:
                keys = vllm.with_lookahead(keys, lookahead)
            parent = vllm.block_digest(ALGORITHM, parent, tokens[start : start + size], keys)
            blocks.append(Block(vllm.external_hash(parent), tokens[start : start + size], extra, lookahead))
        return blocks

    def _hashed(self, request: Request, extra: tuple[Any, ...]) -> tuple[Any, ...] | None:
        if not extra or not self._profile.tagged_keys:
            return extra or None
        name = None if request.lora is None else self._loras[request.lora]
        return vllm.with_tags(extra, lora_name=name, lora_path=f"/adapters/{name}")

    def _extra(self, request: Request, start: int) -> tuple[Any, ...]:
        keys: list[Any] = []
        if request.lora is not None:
            keys.append(self._loras[request.lora])
        if request.image is not None and abs(request.image[1] - start) < self._settings.block_size:
            keys.append((request.image[0], request.image[1] - start))
        if request.salt is not None and start == 0:
            keys.append(request.salt)
        return tuple(keys)

    def _hit(self, blocks: Sequence[Block]) -> int:
        """How many leading blocks are cached in every group that needs them."""
        full = [group for group in self._settings.group_ids if not self._masks(group)]
        hit = 0
        while hit < len(blocks) and all((group, blocks[hit].hash) in self._users for group in full):
            hit += 1
        for group in self._settings.group_ids:
            if self._masks(group):
                while hit and any(
                    (group, block.hash) not in self._users for block in blocks[self._first_needed(group, hit) : hit]
                ):
                    hit -= 1
        return hit

    def _masks(self, group: int | None) -> bool:
        return self._profile.masking and self._settings.slides(group)

    def _first_needed(self, group: int | None, end: int) -> int:
        """The first block below ``end`` that the group attends to."""
        return max(0, end - self._settings.window) if self._masks(group) else 0

    # The pool

    def _store(self, running: _Running, end: int) -> list[Event] | None:
        """Store a request's blocks up to ``end``. None, and nothing done, when the pool has no room for them."""
        if running.done >= end:
            return []
        first = {group: max(running.done, self._first_needed(group, end)) for group in self._settings.group_ids}
        wanted = [(group, block.hash) for group in first for block in running.blocks[first[group] : end]]
        cached = [slot for slot in wanted if slot in self._users]
        fresh = [slot for slot in wanted if slot not in self._users]
        evictable = len(self._free) - sum(slot in self._free for slot in cached)
        if self._settings.capacities[0] - len(self._users) + evictable < len(fresh):
            return None
        for slot in cached:
            self._use(running, slot)
        events: list[Event] = []
        while len(self._users) + len(fresh) > self._settings.capacities[0]:
            events.append(self._evict())
        for slot in fresh:
            self._use(running, slot)
        events += [self._stored(running, group, start, end) for group, start in first.items()]
        if self._offloaded:
            self._to_offload += [block.hash for block in running.blocks[running.done : end]]
        running.done = end
        self._leave_window(running)
        return events

    def _leave_window(self, running: _Running) -> None:
        for group in self._settings.group_ids:
            for block in reversed(running.blocks[: self._first_needed(group, running.done)]):
                self._release(running, (group, block.hash))

    def _use(self, running: _Running, slot: Slot) -> None:
        self._users[slot] = self._users.get(slot, 0) + 1
        self._free.pop(slot, None)
        running.held.add(slot)

    def _release(self, running: _Running, slot: Slot) -> None:
        if slot not in running.held:
            return
        running.held.discard(slot)
        self._users[slot] -= 1
        if not self._users[slot]:
            self._free[slot] = None

    def _evict(self) -> Event:
        slot, _ = self._free.popitem(last=False)
        del self._users[slot]
        spec = self._settings.spec(slot[0], self._profile.removes)
        medium = self._profile.tiers[0] if self._profile.shows_medium else None
        return BlockRemoved([slot[1]], medium, **spec)  # type: ignore[arg-type]

    def _stored(self, running: _Running, group: int | None, start: int, end: int) -> BlockStored:
        """The event for blocks up to ``end``: the tokens of all, the hashes from ``start`` on."""
        request, blocks, announced = running.request, running.blocks[running.done : end], running.blocks[start:end]
        shown = self._profile.stores
        event = BlockStored(
            [block.hash for block in announced],
            running.blocks[running.done - 1].hash if running.done else None,
            [token for block in blocks for token in block.tokens],
            self._settings.block_size,
            None if request.lora is None else request.lora + 1,
            self._profile.tiers[0] if self._profile.shows_medium else None,
            **self._settings.spec(group, shown),  # type: ignore[arg-type]
        )
        if request.lora is not None and shown("lora_name"):
            event.lora_name = self._loras[request.lora]
        if shown("extra_keys"):
            event.extra_keys = [list(block.extra) or None for block in announced]
            event.cache_salt = _prefixed(event.extra_keys)
        if shown("session_id"):
            event.session_id = request.session_id
        if self._settings.lookahead:
            event.lookahead_token_ids = [list(block.lookahead) for block in announced]
        return event

    # Host tiers

    def _offload(self) -> list[Event]:
        events: list[Event] = []
        waiting, self._to_offload = self._to_offload, []
        for block_hash in dict.fromkeys(waiting):
            if block_hash not in self._offloaded[0] and any(held == block_hash for _, held in self._users):
                events += self._demote(block_hash, 1)
        return events

    def _demote(self, block_hash: int, tier: int) -> list[Event]:
        """Put a block into a host tier; what falls out there goes one tier further."""
        blocks = self._offloaded[tier - 1]
        if block_hash in blocks:
            blocks.move_to_end(block_hash)
            return []
        events: list[Event] = []
        while len(blocks) >= self._settings.capacities[tier]:
            oldest, _ = blocks.popitem(last=False)
            if tier < len(self._offloaded):
                events += self._demote(oldest, tier + 1)
            events.append(BlockRemoved([oldest], **self._place(tier, self._profile.removes)))
        blocks[block_hash] = None
        events.append(BlockStored([block_hash], None, [], 0, **self._place(tier, self._profile.stores)))
        return events

    def _place(self, tier: int, shown: Any) -> dict[str, Any]:
        values = {
            "medium": self._profile.tiers[tier],
            "locality": "LOCAL" if tier == 1 else "REMOTE",
            "ownership": OWNER,
        }
        return {name: value for name, value in values.items() if shown(name)}


def _prefixed(extra_keys: Sequence[Sequence[Any] | None]) -> str | None:
    """The salt as `kvwire.decode` finds it: behind the prefix that Dynamo's frontend gives it."""
    for entry in extra_keys:
        for key in entry or ():
            if isinstance(key, str) and key.startswith("dynamo-cache-salt:"):
                return key.removeprefix("dynamo-cache-salt:")
    return None
