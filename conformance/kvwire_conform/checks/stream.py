"""The events of one publisher, in order, replayed into a `BlockIndex`.

Judged as real engines behave (spec/stream.md): a block lives per (rank, medium, group, hash); groups other than full
attention publish fewer hashes than blocks, and their parents may be gone; partial pages exist in ``slot6``; children may
reach a host tier before their parents; and what began before the listener did cannot be judged.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Collection
from typing import Any

from kvwire.dialects import Dialect
from kvwire.events import AllBlocksCleared, BlockRemoved, BlockStored
from kvwire.hashing.forms import Hash, as_int64, hash_key
from kvwire.index import DEFAULT_MEDIUM, BlockIndex, Policy, Tier, default_policy
from kvwire_conform.checks.tallies import Tallies
from kvwire_conform.cleared import Cleared
from kvwire_conform.messages import Message

FULL_ATTENTION = frozenset(("full_attention", "mla_attention", "sink_full_attention"))
"""Kinds of KV cache group that publish a hash for every block."""

_UNCHAINED = frozenset(("slot6", "slot6-b2"))
MAX_SURPLUS = 65_536
MAX_TIERS = 4096
"""Tiers (DP rank, medium, group) of which more is kept than their blocks; a publisher has a handful."""
MAX_RANKS = 64
"""DP ranks of which the cleared blocks are kept."""
MAX_BLOCK_SIZE = 1 << 20
"""Tokens per block beyond which a block size is taken for garbage; the largest in use are a few thousand."""

_BEGAN_BEFORE = "the stream began before the listener did"


class Stream:
    """The state of one publisher's cache, and what its events do to it.

    Args:
        block_size: what every block has to have; None when it is not known.

    Attributes:
        index: the blocks held.
        salts: the salt of each block held with one, by hash.
        plain_roots: the roots held without a salt, where the dialect shows a salt at the root alone.
        cleared: what the last AllBlocksCleared of a DP rank took.
        group_size: the usual block size of each tier.
        has_children: tiers in which some block is a parent.
        nil_roots: whether some root has had the parent nil.
        salts_are_told: whether the dialect has a place of its own for a salt, in every salted event.
        short_keys: whether extra_keys may end before the last block.
    """

    def __init__(self, tallies: Tallies, block_size: int | None) -> None:
        self.tallies = tallies
        self.told_block_size = block_size
        self.dialect: Dialect | None = None
        self.salts_are_told = False
        self.short_keys = False
        self.index = BlockIndex(Policy.COUNT)
        self.whole = False
        self.reannounced = 0
        self.sizes: Counter[int] = Counter()
        self.stored_in: Counter[str] = Counter()
        self._surplus: OrderedDict[tuple[Tier, Hash], int] = OrderedDict()
        self._surplus_tiers: set[Tier] = set()
        self._surplus_forgotten = False
        self._host_unknown = False
        self.cleared: dict[int, Cleared] = {}
        self.salts: dict[Hash, str] = {}
        self.plain_roots: set[Hash] = set()
        self._sparse: set[tuple[int, int | None]] = set()
        self.group_size: dict[Tier, int] = {}
        self.has_children: set[Tier] = set()
        self._root_marker: Hash | None = None
        self.nil_roots = False

    def speak(self, dialect: Dialect | None) -> None:
        """The dialect became known, or another one."""
        if dialect is None or dialect is self.dialect:
            return
        self.dialect = dialect
        self.salts_are_told = dialect.salted_fields
        self.short_keys = dialect.id == "dynamo"
        if not len(self.index):
            self.index = BlockIndex(default_policy(dialect))

    def began(self, seq: int) -> None:
        """The first batch comes; its seq tells whether the cache was empty before it."""
        self.whole = seq == 0

    def missing(self) -> None:
        """Batches were lost: what they stored and removed is not known."""
        self.whole = False
        self.cleared.clear()

    def restarted(self, seq: int) -> None:
        """The publisher started anew, with an empty cache."""
        self.index.clear()
        self._surplus.clear()
        self._surplus_forgotten = False
        self._host_unknown = False
        self.cleared.clear()
        self.salts.clear()
        self.plain_roots.clear()
        self.group_size.clear()
        self.has_children.clear()
        self._sparse.clear()
        self._root_marker = None
        self.nil_roots = False
        self.whole = seq == 0

    def see(self, message: Message) -> None:
        """Judge and apply the events of the next batch."""
        if message.reading is None:
            return
        rank = message.reading.dp_rank or 0
        for index, event in message.events():
            if isinstance(event, BlockStored):
                self.stored(message, index, event, rank, event.cache_salt)
            elif isinstance(event, BlockRemoved):
                self.removed(message, index, event, rank)
            elif isinstance(event, AllBlocksCleared):
                self.clear(rank)
        if message.reading.faults:
            self.whole = False

    # Stores

    def stored(self, message: Message, index: int, event: BlockStored, rank: int, salt: str | None) -> None:
        """Judge and apply one store; ``salt`` is the event's own, wherever it carries it."""
        keys = list(map(hash_key, event.block_hashes))
        tier = Tier(rank, event.medium, event.group_idx)
        self.count_stored(tier.medium, len(keys))
        self.count_size(event.block_size, 1)
        self._repeats(message, index, event, keys)
        self._tokens_and_hashes(message, index, event, rank)
        self._extra_keys(message, index, event)
        self._parent(message, index, event, keys, tier)
        self._block_size(message, index, event, rank)
        self._salt(message, index, event, keys, rank, salt)
        self.store_again(keys, tier)
        cleared = self.cleared.get(rank)
        if cleared is not None and tier in cleared.tiers:
            cleared.tiers[tier].restored(keys)

    def count_stored(self, medium: str, blocks: int) -> None:
        """Count blocks stored in a medium, unless there are too many media to count each."""
        if medium in self.stored_in or len(self.stored_in) < MAX_TIERS:
            self.stored_in[medium] += blocks

    def count_size(self, size: int, events: int) -> None:
        """Count events of a block size, unless there are too many sizes to count each."""
        if size in self.sizes or len(self.sizes) < 16:
            self.sizes[size] += events

    def store_again(self, keys: Collection[Hash], tier: Tier) -> None:
        """Apply a store of blocks some of which may be held."""
        held = self.index.blocks_of(tier)
        if held:
            for key in keys:
                if key in held:
                    self._announced_again(tier, key)
        self.index.store(keys, tier)

    def _announced_again(self, tier: Tier, key: Hash) -> None:
        self.reannounced += 1
        if self.index.policy is Policy.COUNT:
            return
        if len(self._surplus_tiers) >= MAX_TIERS:
            self._surplus_tiers = {at for at, _ in self._surplus}
        self._surplus_tiers.add(tier)
        self._surplus[tier, key] = self._surplus.pop((tier, key), 0) + 1
        if len(self._surplus) > MAX_SURPLUS:
            self._surplus.popitem(last=False)
            self._surplus_forgotten = True

    def _repeats(self, message: Message, index: int, event: BlockStored, keys: list[Hash]) -> None:
        if not keys:
            return
        tally = self.tallies["no-repeated-hash"]
        if len(set(keys)) == len(keys):
            tally.ok()
            return
        tally.violation(
            lambda: message.finding(
                "each hash once",
                f"{_shown(Counter(keys).most_common(1)[0][0])} more than once in {len(keys)} hashes",
                "Dynamo drops the event; a consumer that counts copies keeps the block for ever",
                event_index=index,
                slot=1,
                key="block_hashes",
            )
        )

    def _tokens_and_hashes(self, message: Message, index: int, event: BlockStored, rank: int) -> None:
        tokens, hashes, size = len(event.token_ids), len(event.block_hashes), event.block_size
        tally = self.tallies["tokens-match-hashes"]
        if not tokens or size <= 0:
            if tokens and size <= 0:
                tally.violation(
                    lambda: message.finding(
                        "a positive block_size beside tokens",
                        f"block_size {size}",
                        "no consumer can cut the tokens into blocks",
                        event_index=index,
                        slot=4,
                        key="block_size",
                    )
                )
            return
        if tokens == hashes * size:
            tally.ok()
            return
        if tokens % size == 0 and tokens > hashes * size and self._may_be_sparse(event):
            if len(self._sparse) < MAX_TIERS:
                self._sparse.add((rank, event.group_idx))
            tally.ok()
            tally.note("a group other than full attention publishes hashes for some of its blocks only")
            return
        hint = (
            "the wire does not say which tokens belong to which hash; Dynamo keeps the first blocks and drops the rest"
        )
        if hashes == 1 and tokens > size:
            hint = "one hash for several blocks: consumers count hashes by block, not by node"
        tally.violation(
            lambda: message.finding(
                f"{hashes} × {size} = {hashes * size} tokens",
                f"{tokens} tokens",
                hint,
                event_index=index,
                slot=3,
                key="token_ids",
            )
        )

    def _may_be_sparse(self, event: BlockStored) -> bool:
        if event.kv_cache_spec_kind is not None:
            return event.kv_cache_spec_kind not in FULL_ATTENTION
        return event.group_idx is not None

    def _is_sparse(self, event: BlockStored, rank: int) -> bool:
        if event.kv_cache_spec_kind is not None:
            return event.kv_cache_spec_kind not in FULL_ATTENTION
        return (rank, event.group_idx) in self._sparse

    def _extra_keys(self, message: Message, index: int, event: BlockStored) -> None:
        tally = self.tallies["extra-keys-per-hash"]
        for name, slot in (("extra_keys", 8), ("lookahead_token_ids", None)):
            entries: list[Any] | None = getattr(event, name)
            if entries is None:
                continue
            count, hashes = len(entries), len(event.block_hashes)
            if count == hashes or (self.short_keys and count < hashes):
                tally.ok()
                continue
            tally.violation(
                lambda name=name, slot=slot, count=count, hashes=hashes: message.finding(  # type: ignore[misc]
                    f"{hashes} entries, one per block hash",
                    f"{count}",
                    "a consumer gives keys to the wrong block: salts and images are mixed up",
                    event_index=index,
                    slot=slot,
                    key=name,
                )
            )

    def _block_size(self, message: Message, index: int, event: BlockStored, rank: int) -> None:
        size = event.block_size
        if size == 0 or not event.block_hashes:
            return
        tally = self.tallies["block-size-constant"]
        if not 0 < size <= MAX_BLOCK_SIZE:
            tally.violation(
                lambda: message.finding(
                    f"1 … {MAX_BLOCK_SIZE} tokens, or 0 in a placeholder",
                    f"block_size {size}",
                    "uninitialised or corrupt; a router that takes it matches nothing (dynamo #5015)",
                    event_index=index,
                    slot=4,
                    key="block_size",
                )
            )
            return
        group = Tier(rank, event.medium, event.group_idx)
        usual = self.told_block_size or self._usual_size(group, size)
        if size == usual:
            tally.ok()
            return
        if self._may_be_partial(event, size, usual, group):
            tally.ok()
            tally.note("partial pages: the last page of a prompt has fewer tokens")
            return
        tally.violation(
            lambda: message.finding(
                f"block_size {usual}",
                f"block_size {size}",
                "a router indexes by one block size; Dynamo ignores blocks of another",
                event_index=index,
                slot=4,
                key="block_size",
            )
        )

    def _usual_size(self, group: Tier, size: int) -> int:
        """The block size of a group, which is that of its first event."""
        if len(self.group_size) >= MAX_TIERS:
            return self.group_size.get(group, size)
        return self.group_size.setdefault(group, size)

    def _may_be_partial(self, event: BlockStored, size: int, usual: int, group: Tier) -> bool:
        """Whether this page, or the ones before it, are last pages of a prompt; a page with children never is."""
        if self.dialect is not None and self.dialect.id not in _UNCHAINED:
            return False
        if size < usual:
            return len(event.block_hashes) == 1
        if self.told_block_size is not None or group in self.has_children:
            return False
        self.group_size[group] = size
        return True

    # Parents

    def parent_in(self, tier: Tier) -> None:
        """Some block of a tier is below one that is held."""
        if len(self.has_children) < MAX_TIERS:
            self.has_children.add(tier)

    def _parent(self, message: Message, index: int, event: BlockStored, keys: list[Hash], tier: Tier) -> None:
        if event.parent_block_hash is None:
            self.tallies["root-parent-nil"].ok()
            self.nil_roots = True
            return
        parent = hash_key(event.parent_block_hash)
        self._self_parent(message, index, keys, parent)
        if parent in keys and not self.index.holds(parent, dp_rank=tier.dp_rank):
            return
        if self.index.holds(parent, dp_rank=tier.dp_rank):
            self.tallies["parent-known"].ok()
            self.parent_in(tier)
            return
        if self._may_be_a_copy(parent, tier.dp_rank):
            self.tallies["parent-known"].ok()
            self.tallies["parent-known"].note("a parent was stored more often than removed: a copy of it may be left")
            return
        if parent == 0:
            self.tallies["root-parent-nil"].violation(
                lambda: message.finding(
                    "nil",
                    "parent 0",
                    "llm-d takes 0 for the root; for Dynamo it is a block that was never stored, and the event is dropped",
                    event_index=index,
                    slot=2,
                    key="parent_block_hash",
                )
            )
            return
        if self._is_root_marker(parent):
            self._root_marker = parent
            self.tallies["root-parent-nil"].violation(
                lambda: message.finding(
                    "nil",
                    f"the constant {event.parent_block_hash!r}, which is no block's hash",
                    "SGLang before its hashes were chained writes a constant as the root's parent; Dynamo finds no such "
                    "block and drops every root",
                    event_index=index,
                    slot=2,
                    key="parent_block_hash",
                )
            )
            return
        self._unknown_parent(message, index, event, parent, tier)

    def _may_be_a_copy(self, key: Hash, rank: int) -> bool:
        """Whether a block that the index dropped was announced once more than it was removed."""
        return any((tier, key) in self._surplus for tier in self._surplus_tiers if tier.dp_rank == rank)

    def _self_parent(self, message: Message, index: int, keys: list[Hash], parent: Hash) -> None:
        tally = self.tallies["no-self-parent"]
        if parent not in keys:
            tally.ok()
            return
        tally.violation(
            lambda: message.finding(
                "a parent that is another block",
                f"{_shown(parent)} is both the parent and one of the blocks",
                "Dynamo drops the event as self-referencing; hashes that are not chained collide where a page repeats",
                event_index=index,
                slot=2,
                key="parent_block_hash",
            )
        )

    def _is_root_marker(self, parent: Hash) -> bool:
        if self.dialect is not None and self.dialect.id not in _UNCHAINED:
            return False
        return self.whole and not self.nil_roots and self._root_marker in (None, parent)

    def _unknown_parent(self, message: Message, index: int, event: BlockStored, parent: Hash, tier: Tier) -> None:
        tally = self.tallies["parent-known"]
        cleared = self.cleared.get(tier.dp_rank)
        if cleared is not None and parent in cleared:
            self._after_clear(message, index, f"the parent {_shown(parent)} was cleared", tier, 2, "parent_block_hash")
            return
        if self._began_before(tier):
            tally.undecidable(_BEGAN_BEFORE)
            return
        if self._is_sparse(event, tier.dp_rank):
            tally.ok()
            tally.note("groups other than full attention: a parent outside the window may be gone")
            return

        def finding() -> Any:
            return message.finding(
                "a parent that was stored before and is still held",
                f"parent {_shown(parent)} of a block in {tier.medium}, which is not held",
                "routers cannot place the block: Dynamo and llm-d drop the event and everything below it",
                event_index=index,
                slot=2,
                key="parent_block_hash",
            )

        if tier.medium != DEFAULT_MEDIUM:
            tally.warning(finding)
            tally.note("in a host tier a child may arrive before its parent")
        else:
            tally.violation(finding)

    # Salts

    def _salt(
        self, message: Message, index: int, event: BlockStored, keys: list[Hash], rank: int, own: str | None
    ) -> None:
        salt = own or self._inherited_salt(event)
        if salt is None and keys and not self.salts_are_told and not self._salt_may_be_hidden(event):
            self.plain_roots.add(keys[0])
        if salt is None and not self.salts:
            return
        if salt is None and self._salt_may_be_hidden(event):
            return
        tally = self.tallies["salted-hash-distinct"]
        for key in keys:
            before = self.salts.get(key)
            if before != salt if before is not None else self._was_plain(key, salt, rank):
                was = "without a salt" if before is None else "under another salt"
                tally.violation(
                    lambda key=key, was=was: message.finding(  # type: ignore[misc]
                        "a hash of its own for each salt",
                        f"{_shown(key)} was stored {was} before, now {'with one' if salt else 'without'}",
                        "two tenants share cache: a router sends one to the other's blocks",
                        event_index=index,
                        slot=1,
                        key="block_hashes",
                    )
                )
                break
        else:
            if salt is not None:
                tally.ok(len(keys))
        if salt is not None:
            for key in keys:
                self.salts.setdefault(key, salt)

    def _was_plain(self, key: Hash, salt: str | None, rank: int) -> bool:
        """Whether a block that is now stored with a salt is held without one."""
        if salt is None:
            return False
        return self.index.holds(key, dp_rank=rank) if self.salts_are_told else key in self.plain_roots

    def _inherited_salt(self, event: BlockStored) -> str | None:
        """In extra_keys a salt stands at the first block of a prompt alone: the blocks below it are its tenant's too."""
        if event.parent_block_hash is None or self.salts_are_told:
            return None
        return self.salts.get(hash_key(event.parent_block_hash))

    def _salt_may_be_hidden(self, event: BlockStored) -> bool:
        """Where the salt rides in extra_keys it stands at a root alone: a host tier's placeholder has none at all, and a
        sliding window may have masked the root."""
        if self.salts_are_told:
            return False
        root = event.parent_block_hash is None and event.extra_keys is not None and event.token_ids
        return not root or len(event.token_ids) != len(event.block_hashes) * event.block_size

    def _began_before(self, tier: Tier) -> bool:
        """Whether a block may be in a tier from before the listener; a clear tells of GPU alone for certain."""
        return not self.whole or (self._host_unknown and tier.medium != DEFAULT_MEDIUM)

    # Removals and clears

    def removed(self, message: Message, index: int, event: BlockRemoved, rank: int) -> None:
        """Judge and apply one removal."""
        tier = Tier(rank, event.medium, event.group_idx)
        for block_hash in event.block_hashes:
            key = hash_key(block_hash)
            if self.index.discard(key, tier):
                self.tallies["removed-was-stored"].ok()
                if self.salts or self.plain_roots:
                    self.untrack(key)
            else:
                self.not_held(message, index, key, tier)

    def untrack(self, key: Hash) -> None:
        """A copy of a block went: forget its salt, if it was the last one."""
        if not self.index.holds(key):
            self.salts.pop(key, None)
            self.plain_roots.discard(key)

    def not_held(self, message: Message, index: int, key: Hash, tier: Tier) -> None:
        """Judge the removal of a block that the index does not hold."""
        tally = self.tallies["removed-was-stored"]
        surplus = self._surplus.pop((tier, key), 0)
        if surplus:
            if surplus > 1:
                self._surplus[tier, key] = surplus - 1
            tally.ok()
            return
        cleared = self.cleared.get(tier.dp_rank)
        if cleared is not None and cleared.has(key, tier):
            self._after_clear(
                message, index, f"{_shown(key)}, removed from {tier.medium}, was cleared", tier, 1, "block_hashes"
            )
            return
        if self._began_before(tier):
            tally.undecidable(_BEGAN_BEFORE)
            return
        if self._surplus_forgotten:
            tally.undecidable("too many blocks were announced again to follow each")
            return
        elsewhere = [other.medium for other in self.index.tiers() if self.index.copies(key, other)]
        hint = "a consumer that counts goes below zero, one that does not removes a block of another copy"
        if elsewhere:
            hint = (
                f"it is held in {', '.join(sorted(set(elsewhere)))}: the store that brought it to {tier.medium} was never "
                "published, so a router never knew of it there (seen in the host tier of SGLang 0.5.16)"
            )
        tally.violation(
            lambda: message.finding(
                f"a block that {tier.medium} holds",
                f"{_shown(key)}, which was not stored there, or not so often",
                hint,
                event_index=index,
                slot=1,
                key="block_hashes",
            )
        )

    def clear(self, rank: int) -> None:
        """Judge and apply a clear."""
        held = self.index.clear(rank)
        if len(held):
            self.tallies["clear-empties"].ok()
        self._host_unknown = self._host_unknown or not self.whole
        self._surplus = OrderedDict((at, n) for at, n in self._surplus.items() if at[0].dp_rank != rank)
        if self.salts or self.plain_roots:
            for key in held.blocks():
                self.salts.pop(key, None)
                self.plain_roots.discard(key)
        self.whole = True
        remembered = self.cleared.pop(rank, None) or Cleared()
        remembered.take(held)
        if remembered.tiers:
            self.cleared[rank] = remembered
            if len(self.cleared) > MAX_RANKS:
                del self.cleared[next(iter(self.cleared))]

    def _after_clear(self, message: Message, index: int, what: str, tier: Tier, slot: int, key: str) -> None:
        tally = self.tallies["clear-empties"]

        def finding() -> Any:
            return message.finding(
                "no reference to a block from before AllBlocksCleared",
                what,
                "a router that cleared its view cannot follow; or the clear was meant for one tier only",
                event_index=index,
                slot=slot,
                key=key,
            )

        if tier.medium == DEFAULT_MEDIUM:
            tally.violation(finding)
        else:
            tally.warning(finding)
            tally.note("vLLM clears GPU alone while host tiers keep their blocks; the event does not say so")


def _shown(key: Hash) -> str:
    if isinstance(key, bytes):
        return f"hash {key.hex()[:16]}…"
    return f"hash {key} ({as_int64(key)} signed)" if key >> 63 else f"hash {key}"
