"""What in a stream breaks which consumer.

Each row is a trait of the stream and what known consumers make of it, as observed by running them or read in their
source (spec/consumers.md has the releases and the evidence). A conforming stream may well break someone: that is what
an operator wants to know.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from kvwire.dialects import ALL_MEDIA, Framing
from kvwire.events import AllBlocksCleared, BlockRemoved, BlockStored, EventBatch


@dataclass(frozen=True)
class Break:
    """One trait and its victims."""

    trait: str
    seen: str
    victims: str


BREAKS = (
    Break("one-frame", "messages of one frame", "every consumer that wants topic, seq and payload drops them"),
    Break(
        "two-frames", "messages of two frames, without a seq", "every consumer but Infera's Python client drops them"
    ),
    Break("short-seq", "a seq that is not 8 bytes wide", "Dynamo drops the message; llm-d before #492 crashed"),
    Break(
        "topic", "a topic that is not kv@<pod>@<model>", "llm-d filters on kv@, and takes pod and model from the topic"
    ),
    Break(
        "two-elements",
        "batches of two elements",
        "Dynamo 1.2.1 to 1.6.1, llm-d and Mooncake's Conductor lose every batch",
    ),
    Break("rank-nil", "batches whose DP rank is nil", "AIBrix and Mooncake's Conductor lose the batch"),
    Break("ts-int", "an integer timestamp", "AIBrix loses the batch"),
    Break(
        "maps",
        "map events",
        "AIBrix, llm-d's SGLang adapter, kthena, Infera's SGLang reader and Mooncake's Conductor "
        "for vLLM read arrays only: they lose every batch",
    ),
    Break(
        "arrays",
        "array events",
        "Infera's vLLM reader and the structs of vLLM >= 0.24.0 and SGLang >= 0.5.20 read maps only",
    ),
    Break(
        "salt-slot7",
        "a metadata map in slot 7 (salted slot8 events)",
        "Dynamo 1.2.1 to 1.4.2, llm-d and AIBrix lose the "
        "whole batch, unsalted siblings included; Dynamo 1.6.1 reads it",
    ),
    Break(
        "salt-elsewhere",
        "cache salts",
        "Dynamo 1.2.1 and 1.3.1 drop the salt of maps and of extra_keys silently: tenants "
        "share cache; llm-d ignores cache_salt",
    ),
    Break(
        "hash-bytes",
        "hashes as byte strings",
        "Dynamo 1.2.1 to 1.6.1, kthena and sgl-router lose the batch; AIBrix takes the "
        "first 8 bytes where vLLM means the last 8",
    ),
    Break(
        "hash-small",
        "a hash or parent that msgpack writes in fewer than 9 bytes",
        "llm-d loses the batch: its decoder takes 64-bit integers only",
    ),
    Break("hash-unsigned", "hashes of 2^63 and more", "sgl-router reads int64 and loses the batch"),
    Break(
        "bigram",
        "bigram token pairs",
        "llm-d, AIBrix, kthena and every engine's own structs lose the batch; Dynamo reads them",
    ),
    Break("token-wide", "token ids of 2^32 and more", "Dynamo, AIBrix and Infera read u32 and lose the batch"),
    Break("token-odd", "token ids that are negative or strings", "Dynamo, AIBrix and kthena lose the batch"),
    Break(
        "tokens-empty",
        "stored blocks without tokens",
        "Dynamo cannot index them; llm-d takes them for a change of tier",
    ),
    Break(
        "unknown-tag",
        "a tag no dialect knows",
        "Dynamo up to 1.6.1, llm-d, AIBrix and every engine's own structs lose the batch",
    ),
    Break(
        "medium-unknown",
        "a medium that is no engine's constant",
        "Dynamo up to 1.4.2 indexes it as GPU, 1.6.1 drops the event",
    ),
    Break("parent-zero", "parent 0", "llm-d takes it for the root; Dynamo looks for a block 0 and drops the event"),
    Break("clear", "AllBlocksCleared", "Mooncake's Conductor rejects the batch; llm-d before #593 ignored it"),
    Break(
        "restart",
        "a restart",
        "Dynamo 1.2.1 to 1.6.1 ignores the new publisher until it passes the old seq, and keeps the stale blocks",
    ),
    Break("replay-old", "replay replies of seq and payload", "Dynamo 1.4.2 reads replies with a topic only"),
    Break(
        "replay-new",
        "replay replies of topic, seq and payload",
        "Dynamo 1.2.1 and 1.3.1 read replies without a topic only",
    ),
)


class Traits:
    """The traits of one stream, counted."""

    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()

    def frames(self, frames: list[bytes]) -> None:
        """Look at the frames of a live message."""
        if len(frames) != 3:
            self.seen["one-frame" if len(frames) == 1 else "two-frames"] += 1
            return
        if len(frames[1]) != 8:
            self.seen["short-seq"] += 1
        if not frames[0].startswith(b"kv@") or frames[0].count(b"@") != 2:
            self.seen["topic"] += 1

    def batch(self, payload: bytes, batch: EventBatch) -> None:
        """Look at a batch that could be read."""
        seen = self.seen
        if payload[0] == 0x92:
            seen["two-elements"] += 1
        elif batch.dp_rank is None:
            seen["rank-nil"] += 1
        if payload[1] not in (0xCA, 0xCB):
            seen["ts-int"] += 1
        for event in batch.events:
            if isinstance(event, BlockStored):
                self.stored(event)
            elif isinstance(event, BlockRemoved):
                self.hashes(event.block_hashes)
            elif isinstance(event, AllBlocksCleared):
                seen["clear"] += 1
            medium = getattr(event, "medium", None)
            if medium is not None and medium not in ALL_MEDIA:
                seen["medium-unknown"] += 1
        if batch.skipped:
            seen["unknown-tag"] += 1

    def stored(self, event: BlockStored) -> None:
        """Look at one store."""
        self.hashes(event.block_hashes)
        if event.parent_block_hash is not None:
            self.hashes((event.parent_block_hash,))
            if event.parent_block_hash == 0:
                self.seen["parent-zero"] += 1
        tokens = event.token_ids
        if not tokens:
            self.seen["tokens-empty"] += 1
        else:
            self._tokens(tokens)
        if event.cache_salt:
            self.seen["salted"] += 1

    def _tokens(self, tokens: Any) -> None:
        first = type(tokens[0])
        if first is tuple:
            self.seen["bigram"] += 1
            return
        try:
            if max(tokens) >= 1 << 32:
                self.seen["token-wide"] += 1
            if min(tokens) < 0:
                self.seen["token-odd"] += 1
        except TypeError:
            self.seen["token-odd"] += 1

    def hashes(self, hashes: Any) -> None:
        """Look at the hashes of one event."""
        if not hashes:
            return
        if isinstance(hashes[0], bytes):
            self.seen["hash-bytes"] += 1
            return
        try:
            highest = max(hashes)
            if highest >= 1 << 63:
                self.seen["hash-unsigned"] += 1
            if any(-(1 << 31) <= value < (1 << 32) for value in hashes):
                self.seen["hash-small"] += 1
        except TypeError:
            self.seen["hash-bytes"] += 1

    def told(self, *, maps: bool | None, dialect: str | None, restarts: int, framings: set[Framing]) -> list[str]:
        """What breaks, a sentence for each trait, with how often it was seen."""
        seen = Counter(self.seen)
        if maps is not None:
            seen["maps" if maps else "arrays"] = 1
        if seen["salted"]:
            seen["salt-slot7" if dialect == "slot8" else "salt-elsewhere"] = seen["salted"]
        if restarts:
            seen["restart"] = restarts
        for framing, trait in ((Framing.SEQ_PAYLOAD, "replay-old"), (Framing.TOPIC_SEQ_PAYLOAD, "replay-new")):
            if framing in framings:
                seen[trait] = 1
        return [f"{row.seen}: {row.victims}" for row in BREAKS if seen[row.trait]]
