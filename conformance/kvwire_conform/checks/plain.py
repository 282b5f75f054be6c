"""The events of plain payloads: what `Events` and `Stream` say of them, at the price of a few look-ups an event.

Nearly every event of a sound stream is one of two: new blocks below a parent that is held, or the removal of blocks that
are held. These are judged here, on the state of `Stream`; any other goes through `Stream`, one by one and in its place.
What was right is counted here and told to the tallies at the end.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from kvwire.hashing.forms import Hash, hash_key
from kvwire.index import Tier
from kvwire_conform.breaks import Traits
from kvwire_conform.checks.stream import Stream
from kvwire_conform.checks.tallies import Tallies
from kvwire_conform.messages import Message
from kvwire_conform.plain import PlainReader
from kvwire_conform.recording import Record

_MASK = (1 << 64) - 1
_SMALL = 1 << 32
_SMALL_NEGATIVE = (1 << 64) - (1 << 31)
_NEITHER = object()


def live_message(record: Record, seq: int) -> Message:
    """A live message of three frames."""
    return Message(record.t, "live", record.frames, record.frames[0], seq, record.frames[2])


class _View:
    """One tier of the index, with what its events have to fit, and how many did."""

    __slots__ = ("blank", "blocks", "childless", "cleared", "events", "size", "stored", "tier")

    def __init__(self, tier: Tier, blocks: dict[Hash, int], size: int | None, childless: bool, cleared: Any) -> None:
        self.tier = tier
        self.blocks = blocks
        self.size = size
        self.childless = childless
        self.cleared = cleared
        self.events = 0
        self.blank = 0
        self.stored = 0


class PlainEvents:
    """The plain events of one publisher.

    Args:
        stream: the state that they are judged by, and apply to.
        traits: what in them breaks consumers.
    """

    def __init__(self, tallies: Tallies, stream: Stream, traits: Traits) -> None:
        self.tallies = tallies
        self.stream = stream
        self.traits = traits
        self._views: dict[tuple[int, str | None, int | None], _View] = {}
        self._events = 0
        self._with_hashes = 0
        self._stores = 0
        self._hashes = 0
        self._sound = 0
        self._sized = 0
        self._roots = 0
        self._keyed = 0
        self._salted = 0
        self._gone = 0

    def see(
        self,
        reader: PlainReader,
        events: list[Any],
        salts: Mapping[int, str],
        rank: int,
        record: Record,
        seq: int,
    ) -> tuple[int, int]:
        """Judge and apply the events of the next batch. Gives how many were stores and how many removals.

        Args:
            reader: what read them.
            salts: by index of the event, where an event does not carry its salt itself.
            record, seq: the message that they came in, for findings.
        """
        stream, seen = self.stream, self.traits.seen
        told_salts, short_keys = stream.salts_are_told, stream.short_keys
        known_salts, plain_roots = stream.salts, stream.plain_roots
        stored_class, removed_class, signed = reader.stored, reader.removed, reader.signed
        check_small = signed and "hash-small" not in seen
        views = self._views
        medium: Any = _NEITHER
        group: Any = None
        view: _View | None = None
        new: Any
        stores = removals = hashed = sound = roots = keyed = gone = 0
        for position, event in enumerate(events):
            kind = type(event)
            if kind is not stored_class and kind is not removed_class:
                seen["clear"] += 1
                self.forget()
                stream.clear(rank)
                medium = _NEITHER
                continue
            hashes = event.block_hashes
            count = len(hashes)
            hashed += count
            if event.medium is not medium or event.group_idx is not group:
                medium, group = event.medium, event.group_idx
                view = views.get((rank, medium, group)) or self._view(rank, medium, group)
            if kind is removed_class:
                removals += 1
                if view is None:
                    self.forget()
                    self.traits.hashes(hashes)
                    stream.removed(live_message(record, seq), position, event, rank)
                    medium = _NEITHER
                    continue
                blocks = view.blocks
                for value in hashes:
                    key = value & _MASK if signed else value
                    if check_small and not _SMALL <= key < _SMALL_NEGATIVE:
                        seen["hash-small"] += 1
                    copies = blocks.pop(key, 0)
                    if copies == 1:
                        gone += 1
                        if key in plain_roots or key in known_salts:
                            stream.untrack(key)
                    elif copies:
                        gone += 1
                        blocks[key] = copies - 1
                    else:
                        stream.not_held(live_message(record, seq), position, key, view.tier)
                if not blocks:
                    stream.index.drop(view.tier)
                    self.forget()
                    medium = _NEITHER
                continue
            stores += 1
            parent = event.parent_block_hash
            extra_keys, lookahead = event.extra_keys, event.lookahead_token_ids
            salt = event.cache_salt or (salts.get(position) if salts else None)
            if salt:
                seen["salted"] += 1
            if parent is not None:
                hashed += 1
            tokens, size = len(event.token_ids), event.block_size
            if (
                view is not None
                and count
                and (tokens == count * size if size == view.size else size == 0 == tokens)
                and (extra_keys is None or len(extra_keys) == count or (short_keys and len(extra_keys) < count))
                and (lookahead is None or len(lookahead) == count)
            ):
                blocks = view.blocks
                if count == 1:
                    key = hashes[0] & _MASK if signed else hashes[0]
                    new = (key,)
                    again = key in blocks
                    well = True
                else:
                    new = dict.fromkeys([value & _MASK for value in hashes] if signed else hashes, 1)
                    again = not blocks.keys().isdisjoint(new)
                    well = len(new) == count
                if parent is not None:
                    key = parent & _MASK if signed else parent
                    well = (
                        well
                        and key not in new
                        and (key in blocks or stream.index.holds(key, dp_rank=rank))
                        and key != 0
                    )
                    if check_small and not _SMALL <= key < _SMALL_NEGATIVE:
                        seen["hash-small"] += 1
                if check_small and not (min(new) >= _SMALL and max(new) < _SMALL_NEGATIVE):
                    seen["hash-small"] += 1
                if well and (salt or known_salts):
                    well = self._salt(event, salt, new)
                elif well and parent is None and extra_keys is not None and tokens and not told_salts:
                    plain_roots.add(next(iter(new)))
                if well:
                    sound += 1
                    view.stored += count
                    if again:
                        stream.store_again(new, view.tier)
                    elif count == 1:
                        blocks[new[0]] = 1
                    else:
                        blocks.update(new)
                    if tokens:
                        view.events += 1
                    else:
                        view.blank += 1
                        seen["tokens-empty"] += 1
                    if parent is None:
                        roots += 1
                        stream.nil_roots = True
                    elif view.childless:
                        view.childless = False
                        stream.parent_in(view.tier)
                    if extra_keys is not None:
                        keyed += 1
                    if lookahead is not None:
                        keyed += 1
                    if view.cleared is not None:
                        view.cleared.restored(new)
                    continue
            self.forget()
            self.traits.stored(event)
            stream.stored(live_message(record, seq), position, event, rank, salt)
            medium = _NEITHER
        self._events += len(events)
        self._with_hashes += stores + removals
        self._stores += stores
        self._hashes += hashed
        self._sound += sound
        self._roots += roots
        self._keyed += keyed
        self._gone += gone
        return stores, removals

    def _salt(self, event: Any, salt: str | None, new: Iterable[Hash]) -> bool:
        """Judge and keep the salt of new blocks. False when there is more to say than that they are well."""
        stream = self.stream
        told = stream.salts_are_told
        parent = event.parent_block_hash
        if not salt and not told and parent is not None:
            salt = stream.salts.get(hash_key(parent))
        clash = not stream.salts.keys().isdisjoint(new)
        if not salt:
            hidden = not told and (parent is not None or event.extra_keys is None or not event.token_ids)
            if clash and not hidden:
                return False
            if not told and not hidden:
                stream.plain_roots.add(next(iter(new)))
            return True
        if clash:
            return False
        if told:
            if stream.index.holds_any(new):
                return False
        elif not stream.plain_roots.isdisjoint(new):
            return False
        before = len(stream.salts)
        stream.salts.update(dict.fromkeys(new, salt))
        self._salted += len(stream.salts) - before
        return True

    def _view(self, rank: int, medium: str | None, group: int | None) -> _View | None:
        """A tier that can be judged here: one that holds blocks."""
        stream = self.stream
        tier = Tier(rank, medium, group)
        blocks = stream.index.blocks_of(tier)
        if blocks is None:
            return None
        size = stream.told_block_size or stream.group_size.get(tier)
        cleared = stream.cleared.get(rank)
        view = _View(tier, blocks, size, tier not in stream.has_children, cleared and cleared.tiers.get(tier))
        self._views[rank, medium, group] = view
        return view

    def forget(self) -> None:
        """The state changes otherwise than by what is judged here: look at it anew."""
        stream = self.stream
        for view in self._views.values():
            if view.stored:
                stream.count_stored(view.tier.medium, view.stored)
            if view.events and view.size is not None:
                stream.count_size(view.size, view.events)
                self._sized += view.events
            if view.blank:
                stream.count_size(0, view.blank)
        self._views.clear()

    def finish(self) -> None:
        """No more comes: tell the tallies what was right."""
        self.forget()
        for check in ("event-shape", "event-fields-known", "event-tag-known"):
            self.tallies[check].ok(self._events)
        self.tallies["medium-vocabulary"].ok(self._with_hashes)
        self.tallies["hash-form-constant"].ok(self._hashes)
        self.tallies["token-ids-valid"].ok(self._stores)
        self.tallies["no-repeated-hash"].ok(self._sound)
        for check in ("tokens-match-hashes", "block-size-constant"):
            self.tallies[check].ok(self._sized)
        for check in ("no-self-parent", "parent-known"):
            self.tallies[check].ok(self._sound - self._roots)
        self.tallies["root-parent-nil"].ok(self._roots)
        self.tallies["extra-keys-per-hash"].ok(self._keyed)
        self.tallies["salted-hash-distinct"].ok(self._salted)
        self.tallies["removed-was-stored"].ok(self._gone)
