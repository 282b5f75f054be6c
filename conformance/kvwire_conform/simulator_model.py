"""A simulated engine: what its cache does, and the messages that tell of it."""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import msgspec

from kvwire.codec import Encoder
from kvwire.dialects import Dialect, get_dialect
from kvwire.errors import UsageError
from kvwire.events import BlockRemoved, BlockStored, Event, EventBatch
from kvwire.hashing import as_int64, sglang, vllm
from kvwire_conform.simulator_faults import FAULTS, Fault
from kvwire_conform.simulator_pool import ALGORITHM, NONE_HASH, BlockPool
from kvwire_conform.simulator_profile import Family, profile_of, settings_of
from kvwire_conform.simulator_radix import RadixCache
from kvwire_conform.simulator_workload import VOCABULARY, Workload

EPOCH = 1_700_000_000.0
"""``ts`` of the first batch, unless a clock is given."""
TICK = 0.25
"""Seconds from one batch to the next, unless a clock is given."""
WARM_UP = 24
"""Messages before a fault, at least; up to 8 more by the seed."""

Frames = tuple[bytes, ...]
"""Topic, seq and payload; in a faulty stream also something else."""


class Simulator:
    """A seeded engine of one dialect. The same arguments give the same bytes.

    SGLang's dialects come from a radix tree with splits, host tiers and request classes; vLLM's from a block pool with
    running requests, hybrid groups and an offloading connector. ``dynamo`` is the radix tree with every slot filled.
    The cache is always right: a fault is in what is published, so `step`, `batches` and `resident` tell the truth of a
    faulty stream too.

    Args:
        dialect: id, alias or release.
        seed: of all choice.
        block_size: tokens per block; on bigram pages, pairs.
        capacity: blocks on GPU, at least 16.
        host_capacity, disk_capacity: blocks in the tiers below, where the dialect's engines have them; 0 leaves the tier
            out.
        dp_rank: data-parallel rank; ``slot6-b2`` does not show it.
        topic: topic of every message.
        prefixes: how many system prompts the requests share.
        sessions: how many conversations go on at once.
        salts: what tenants use; None for two. Ignored where the dialect shows no salt.
        loras: names of the LoRA adapters; None for two. Ignored where the dialect has no ``lora_name``.
        extra_keys: SGLang's request classes; equal pages of several are stored once each.
        groups: 1 or 2 KV cache groups (the second kind has a sliding window); None for 2 where the dialect shows them.
        window: of the sliding-window group, in blocks.
        bigram: EAGLE pages, SGLang alone.
        lookahead: the token after a block goes into its hash; None for whether the dialect shows it.
        clear_every: batches from one AllBlocksCleared to the next, on average; None for none.
        restart_every: batches from one restart of the process to the next, on average; None for none.
        clock: gives ``ts``; None for an epoch of its own, the same every time.
        fault: id of a fault, see `FAULTS`.
        fault_at: earliest message (counted from 0) that may be faulty; None for some time after the start.

    Attributes:
        injected_at: number of the first message that the fault changed; None while there is none.

    Raises:
        DialectError: no such dialect. UsageError: an argument that does not fit.
    """

    def __init__(
        self,
        dialect: str | Dialect,
        seed: int = 0,
        *,
        block_size: int = 16,
        capacity: int = 64,
        host_capacity: int = 96,
        disk_capacity: int = 128,
        dp_rank: int = 0,
        topic: str = "",
        prefixes: int = 4,
        sessions: int = 3,
        salts: Sequence[str] | None = None,
        loras: Sequence[str] | None = None,
        extra_keys: Sequence[str] = ("class-a",),
        groups: int | None = None,
        window: int = 2,
        bigram: bool = False,
        lookahead: bool | None = None,
        clear_every: int | None = 60,
        restart_every: int | None = None,
        clock: Callable[[], float] | None = None,
        fault: str | Fault | None = None,
        fault_at: int | None = None,
    ) -> None:
        self.dialect = get_dialect(dialect)
        self.profile = profile_of(self.dialect)
        self.seed = seed
        self.dp_rank = dp_rank
        self.topic = topic.encode()
        self.injected_at: int | None = None
        self.fault = _fault(fault, self.dialect)
        self.settings = settings_of(
            self.dialect, block_size, (capacity, host_capacity, disk_capacity), groups, window, bigram, lookahead
        )
        self._clock = clock
        self._clear_every = clear_every
        self._restart_every = restart_every
        self._chance = random.Random(f"{seed}/{dp_rank}/chance")
        self.fault_random = random.Random(f"{seed}/{dp_rank}/fault")
        warm_up = WARM_UP + self.fault_random.randrange(8)
        self.fault_at = warm_up if fault_at is None else fault_at
        if self.fault is not None and self.fault.from_start:
            self.fault_at = 0
        self._loras = ("adapter-a", "adapter-b") if loras is None else tuple(loras)
        if not self.profile.stores("lora_name"):
            self._loras = ()
        sglang = self.profile.family is Family.SGLANG
        self.salts = _SALTS[self.profile.family] if salts is None else tuple(salts)
        if not self.profile.shows_salt:
            self.salts = ()
        self._workload = Workload(
            random.Random(f"{seed}/{dp_rank}/requests"),
            block_size=block_size,
            max_blocks=max(4, capacity // 8),
            prefixes=prefixes,
            sessions=sessions,
            salts=self.salts,
            loras=len(self._loras),
            extra_keys=tuple(extra_keys) if sglang else (),
            images=self.profile.family is Family.VLLM and self.profile.stores("extra_keys"),
        )
        self._steps = 0
        self._told_rank: int | None = None
        self._drawn: deque[EventBatch] = deque()
        self._ready: deque[Frames] = deque()
        self.published = 0
        self.last: Frames | None = None
        self.speak(self.dialect)
        self._begin(0)

    def __repr__(self) -> str:
        return f"Simulator({self.dialect.id!r}, seed={self.seed}, dp_rank={self.dp_rank}, fault={self.fault and self.fault.id!r})"

    # The engine

    def step(self) -> EventBatch:
        """The next batch of the engine, as its cache knows it; never empty."""
        return self._drawn.popleft() if self._drawn else self._draw()

    def batches(self, count: int) -> list[EventBatch]:
        """So many more batches."""
        return [self.step() for _ in range(count)]

    def resident(self) -> dict[str, Counter[tuple[int | None, int | bytes]]]:
        """What the cache holds after the last batch, per medium: ``(group_idx, hash)``, with the number of copies.

        Hashes are in the form that `kvwire.hash_key` gives, and the medium is ``GPU`` where the dialect shows none, so
        that a `kvwire.index.BlockIndex` can be held against it. Media that hold nothing are left out.
        """
        return self._cache.resident()

    def clear(self) -> None:
        """Empty the cache; the next batch begins with AllBlocksCleared."""
        self._pending += self._cache.clear()

    def restart(self, first_seq: int = 0) -> None:
        """Start the process anew: an empty cache, counting from 0."""
        self._drawn.clear()
        self._begin(first_seq)

    def _begin(self, first_seq: int) -> None:
        cache = RadixCache if self.profile.family is Family.SGLANG else BlockPool
        self._cache: RadixCache | BlockPool = cache(self.settings, self._loras)
        self._pending: list[Event] = []
        self._restarted: list[Event] | None = self._cache.start() or None
        self.seq = first_seq

    def _draw(self) -> EventBatch:
        events: list[Event] = []
        if self._restarted:
            events, self._restarted = self._restarted, None
        elif self._happens(self._restart_every):
            self.restart()
            return self._draw()
        else:
            if self._happens(self._clear_every):
                self.clear()
            while not events:
                requests = [self._workload.next() for _ in range(self._chance.choice((0, 1, 1, 1, 2)))]
                events = self._cache.turn(requests)
            events = self._pending + events
            self._pending = []
        return EventBatch(self.now(), events, self._shown_rank(self.dp_rank))

    def _happens(self, every: int | None) -> bool:
        return every is not None and self._chance.random() * every < 1

    def now(self) -> float:
        """The time, on the simulator's clock."""
        self._steps += 1
        return EPOCH + TICK * (self._steps - 1) if self._clock is None else self._clock()

    def _shown_rank(self, rank: int) -> int | None:
        return rank if "dp_rank" in self.dialect.batch_fields else None

    # Messages

    def messages(self, count: int) -> list[Frames]:
        """So many more messages: ``(topic, seq, payload)``, unless a fault has it otherwise."""
        return [self.message() for _ in range(count)]

    def message(self) -> Frames:
        """The next message."""
        while not self._ready:
            self._ready += self._publish()
        self.last = self._ready.popleft()
        self.published += 1
        return self.last

    def _publish(self) -> list[Frames]:
        if self.fault is not None and self.injected_at is None and self.published >= self.fault_at:
            faulty = self.fault.inject(self)
            if faulty:
                self.injected_at = self.published
                return faulty
        return [self.number(self.step())]

    def peek(self) -> EventBatch:
        """The batch that the next `step` gives."""
        if not self._drawn:
            self._drawn.append(self._draw())
        return self._drawn[0]

    def number(self, batch: EventBatch, payload: bytes | None = None) -> Frames:
        """The next message in order: a batch, or the payload that stands for it."""
        seq, self.seq = self.seq, self.seq + 1
        return self.topic, seq.to_bytes(8, "big"), self.write(batch) if payload is None else payload

    def write(self, batch: EventBatch) -> bytes:
        """The payload of a batch."""
        return self._encoder.encode(EventBatch(batch.ts, batch.events, self.announced_rank(batch)))

    def announced_rank(self, batch: EventBatch) -> int | None:
        """The rank that a batch is published with."""
        return self._told_rank if batch.dp_rank == self.dp_rank and self._told_rank is not None else batch.dp_rank

    # What faults are made of

    def speak(self, dialect: Dialect) -> None:
        """Write in this dialect from now on, leaving out what it cannot carry."""
        self._encoder = Encoder(dialect, on_loss="error" if dialect is self.dialect else "drop")

    def announce_rank(self, rank: int) -> None:
        """Publish with another DP rank from now on."""
        self._told_rank = rank

    def heartbeat(self) -> EventBatch:
        """A batch without events."""
        return EventBatch(self.now(), [], self._shown_rank(self.dp_rank))

    def wire_parts(self, batch: EventBatch, extra: Sequence[Any] = ()) -> list[Any]:
        """The elements of a batch as the encoder takes them, with more events (as plain values) at the end."""
        events = [self._encoder.to_wire(event, index) for index, event in enumerate(batch.events)]
        parts = [batch.ts, [*events, *extra], self.announced_rank(batch)]
        return parts[: len(self.dialect.batch_fields)]

    def plain(self, event: Event) -> Any:
        """An event as plain values: a list of slots, or a dict of keys."""
        return msgspec.msgpack.decode(msgspec.msgpack.encode(self._encoder.to_wire(event)))

    def stranger(self, blocks: int = 1) -> BlockStored:
        """A well-formed store of root blocks that the cache does not have: random tokens, right hashes."""
        size = self.settings.block_size
        choose = self.fault_random.randrange
        tokens: list[Any] = [choose(1, VOCABULARY) for _ in range(size * blocks + 1)]
        lookahead = [[token] for token in tokens[size::size]] if self.settings.lookahead else None
        tokens = list(pairwise(tokens)) if self.settings.bigram else tokens[:-1]
        hashes: list[int]
        if self.profile.family is Family.SGLANG:
            hashes = [sglang.event_hash(digest) for digest in sglang.page_digests(tokens, size)]
        else:
            extras = [None if not lookahead else vllm.with_lookahead(None, lookahead[index]) for index in range(blocks)]
            digests = vllm.block_digests(tokens, size, algorithm=ALGORITHM, parent=NONE_HASH, extras=extras)
            hashes = [vllm.external_hash(digest) for digest in digests]
        event = BlockStored([*hashes], None, tokens, size, medium="GPU" if self.profile.shows_medium else None)
        for name, value in self.settings.spec(self.full_group, self.profile.stores).items():
            setattr(event, name, value)
        event.lookahead_token_ids = lookahead
        if self.profile.family is Family.VLLM and self.profile.stores("extra_keys"):
            event.extra_keys = [None] * blocks
        return event

    def removal(self, block_hash: int, group: int | None) -> BlockRemoved:
        """A well-formed removal of a block from GPU; the hash in either sign."""
        if self.profile.family is Family.SGLANG:
            block_hash = as_int64(block_hash)
        event = BlockRemoved([block_hash], "GPU" if self.profile.shows_medium else None)
        for name, value in self.settings.spec(group, self.profile.removes).items():
            setattr(event, name, value)
        return event

    def random_hash(self) -> int:
        """A hash of no block, in the form that the engine writes."""
        bits = self.fault_random.getrandbits(64)
        return as_int64(bits) if self.profile.family is Family.SGLANG else bits

    @property
    def full_group(self) -> int | None:
        """The group with full attention."""
        return next(group for group in self.settings.group_ids if not self.settings.slides(group))


_SALTS = {Family.SGLANG: ("tenant-a", "ключ-🔑"), Family.VLLM: ("tenant-a", "dynamo-cache-salt:tenant-b")}


def _fault(fault: str | Fault | None, dialect: Dialect) -> Fault | None:
    if fault is None:
        return None
    if isinstance(fault, str):
        if fault not in FAULTS:
            raise UsageError(f"no fault is called {fault!r}; there are {', '.join(FAULTS)}")
        fault = FAULTS[fault]
    if not fault.applies(dialect):
        raise UsageError(f"{dialect.id} cannot have the fault {fault.id}: {fault.unless}")
    return fault
