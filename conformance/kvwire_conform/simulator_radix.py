"""SGLang's cache: a radix tree of pages, whose nodes split, are evicted whole and move down the tiers.

A node is in one or more tiers. What is on GPU has its whole path on GPU; what is on the host has its parent on the host;
and no node outlives its parent.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from kvwire.events import AllBlocksCleared, BlockRemoved, BlockStored, Event
from kvwire.hashing import hash_key, sglang
from kvwire_conform.simulator_coalesce import coalesce
from kvwire_conform.simulator_profile import Settings
from kvwire_conform.simulator_workload import Request

SALT_PREFIX = "dynamo-cache-salt:"
OWNER = "engine"
"""What ``ownership`` says in the dialects that have it: one owner holds all."""

_GPU, _HOST, _DISK = 0, 1, 2

Token = int | tuple[int, int]


@dataclass(frozen=True)
class Page:
    """One page: its tokens, and its hash as events carry it."""

    tokens: tuple[Token, ...]
    hash: int


@dataclass(frozen=True)
class Space:
    """A namespace of the tree: requests of different ones share nothing, whatever their tokens."""

    salt: str | None
    lora_name: str | None
    extra_key: str | None


@dataclass(eq=False)
class _Node:
    space: Space
    parent: _Node | None
    pages: list[Page]
    tiers: set[int]
    used: int
    children: dict[tuple[Token, ...], _Node] = field(default_factory=dict)

    @property
    def before(self) -> int | None:
        """The hash of the page before the first one."""
        return self.parent.pages[-1].hash if self.parent is not None and self.parent.pages else None


class RadixCache:
    """The cache of one engine process.

    Args:
        settings: sizes and behaviour.
        loras: names of the LoRA adapters.
    """

    def __init__(self, settings: Settings, loras: Sequence[str]) -> None:
        self._settings = settings
        self._profile = settings.profile
        self._loras = loras
        self._roots: dict[Space, _Node] = {}
        self._held = [0] * len(settings.capacities)
        self._to_back_up: list[_Node] = []
        self._tick = 0

    def start(self) -> list[Event]:
        """What the constructor publishes."""
        return [self._cleared()]

    def clear(self) -> list[Event]:
        """Empty every tier."""
        self._roots.clear()
        self._to_back_up.clear()
        self._held = [0] * len(self._held)
        return [self._cleared()]

    def turn(self, requests: Sequence[Request]) -> list[Event]:
        """One step of the engine: back up what the last one stored, then serve requests."""
        events = self._back_up()
        for request in requests:
            events += self._serve(request)
        return coalesce(events, self._profile.coalescing)

    def resident(self) -> dict[str, Counter[tuple[int | None, int | bytes]]]:
        """Per medium the blocks held, as ``(group_idx, hash)``; equal pages of several namespaces count each."""
        found: dict[str, Counter[tuple[int | None, int | bytes]]] = {}
        for node in self._nodes():
            for tier in node.tiers:
                held = found.setdefault(self._profile.tiers[tier], Counter())
                for group in self._settings.group_ids:
                    held.update((group, hash_key(page.hash)) for page in node.pages)
        return found

    # Serving

    def _serve(self, request: Request) -> list[Event]:
        self._tick += 1
        space = self._space(request)
        root = self._roots.setdefault(space, _Node(space, None, [], set(), 0))
        pages = self._pages(request.prompt + request.output, space)
        path, matched = self._match(root, pages)
        fresh = pages[matched:]
        stored = [node for node in path if _GPU not in node.tiers]
        events = self._make_room(_GPU, sum(len(node.pages) for node in stored) + len(fresh))
        if fresh:
            node = _Node(space, path[-1] if path else root, fresh, set(), self._tick)
            assert node.parent is not None
            node.parent.children[fresh[0].tokens] = node
            stored.append(node)
        session = request.session_id if self._profile.stores("session_id") else None
        events += self._store(stored, _GPU, session)
        if len(self._held) > _HOST:
            self._to_back_up += stored
        return events

    def _space(self, request: Request) -> Space:
        lora = None if request.lora is None else self._loras[request.lora]
        extra_key = request.extra_key
        if lora is not None:
            # The engine appends the adapter's id, a random hex string, to the request class.
            extra_key = (extra_key or "") + hashlib.md5(lora.encode()).hexdigest()
        return Space(request.salt, lora, extra_key)

    def _pages(self, tokens: Sequence[int], space: Space) -> list[Page]:
        size = self._settings.block_size
        units: Sequence[Token] = list(pairwise(tokens)) if self._settings.bigram else tokens
        if not self._profile.partial_pages:
            units = units[: len(units) // size * size]
        seed = self._namespace(space)
        digests = sglang.page_digests(units, size, prior=sglang.event_prior(space.salt))
        return [
            Page(tuple(units[start : start + size]), sglang.namespaced_hash(sglang.event_hash(digest), seed))
            for start, digest in zip(range(0, len(units), size), digests, strict=True)
        ]

    def _namespace(self, space: Space) -> bytes | None:
        if self._profile.namespaced:
            return sglang.namespace_seed(space.extra_key, space.salt)
        return None if space.lora_name is None else sglang.namespace_seed(space.extra_key, None)

    def _match(self, root: _Node, pages: Sequence[Page]) -> tuple[list[_Node], int]:
        """The nodes that hold a prefix of the pages, and how many pages that are. Splits the last one if need be."""
        node, path, at = root, [], 0
        while at < len(pages) and (child := node.children.get(pages[at].tokens)) is not None:
            common = 0
            while common < len(child.pages) and at + common < len(pages) and child.pages[common] == pages[at + common]:
                common += 1
            node = child if common == len(child.pages) else self._split(child, common)
            node.used = self._tick
            path.append(node)
            at += common
        return path, at

    def _split(self, node: _Node, count: int) -> _Node:
        """Cut a node after ``count`` pages. Nothing is published: no page came or went."""
        assert node.parent is not None
        upper = _Node(node.space, node.parent, node.pages[:count], set(node.tiers), node.used)
        node.parent.children[upper.pages[0].tokens] = upper
        node.pages = node.pages[count:]
        node.parent = upper
        upper.children[node.pages[0].tokens] = node
        if node in self._to_back_up:
            self._to_back_up.insert(self._to_back_up.index(node), upper)
        return upper

    # Tiers

    def _back_up(self) -> list[Event]:
        """Write to the host what the last step stored on GPU, parents first."""
        events: list[Event] = []
        waiting, self._to_back_up = self._to_back_up, []
        for node in waiting:
            parent = node.parent
            backed = parent is None or not parent.pages or _HOST in parent.tiers
            if not backed or _GPU not in node.tiers or _HOST in node.tiers:
                continue
            events += self._make_room(_HOST, len(node.pages))
            if self._fits(_HOST, len(node.pages)):
                events += self._store([node], _HOST, None)
        return events

    def _fits(self, tier: int, count: int) -> bool:
        return self._held[tier] + count <= self._settings.capacities[tier]

    def _make_room(self, tier: int, count: int) -> list[Event]:
        """Evict until so many more pages fit, or nothing is left that may go."""
        events: list[Event] = []
        while not self._fits(tier, count):
            victims = [node for node in self._nodes() if self._evictable(node, tier)]
            if not victims:
                break
            events += self._evict(min(victims, key=lambda node: node.used), tier)
        return events

    def _evictable(self, node: _Node, tier: int) -> bool:
        if tier not in node.tiers or (tier == _GPU and node.used == self._tick):
            return False
        if tier == _HOST and _GPU in node.tiers:
            return False
        if any(tier in child.tiers or (tier == _HOST and _GPU in child.tiers) for child in node.children.values()):
            return False
        return len(node.tiers) > 1 or not node.children or (tier == _HOST and len(self._held) > _DISK)

    def _evict(self, node: _Node, tier: int) -> list[Event]:
        events: list[Event] = []
        if tier == _HOST and len(self._held) > _DISK and _DISK not in node.tiers:
            events += self._make_room(_DISK, len(node.pages))
            if self._fits(_DISK, len(node.pages)):
                events += self._store([node], _DISK, None)
        return events + self._drop(node, tier)

    def _drop(self, node: _Node, tier: int) -> list[Event]:
        node.tiers.discard(tier)
        self._held[tier] -= len(node.pages)
        if not node.tiers:
            assert node.parent is not None
            assert not node.children
            del node.parent.children[node.pages[0].tokens]
        return [
            BlockRemoved([page.hash for page in node.pages], **self._common(tier, group, self._profile.removes))
            for group in self._settings.group_ids
        ]

    def _nodes(self) -> Iterator[_Node]:
        waiting = [child for root in self._roots.values() for child in root.children.values()]
        while waiting:
            node = waiting.pop()
            yield node
            waiting += node.children.values()

    # Events

    def _store(self, nodes: Sequence[_Node], tier: int, session: str | None) -> list[Event]:
        """Put nodes into a tier; a stored event for each page of each group."""
        events: list[Event] = []
        for group in self._settings.group_ids:
            common = self._common(tier, group, self._profile.stores)
            for node in nodes:
                before = node.before
                for page in node.pages:
                    events.append(self._stored(page, before, node.space, session, common))
                    before = page.hash
        for node in nodes:
            node.tiers.add(tier)
            self._held[tier] += len(node.pages)
        return events

    def _stored(
        self, page: Page, before: int | None, space: Space, session: str | None, common: dict[str, Any]
    ) -> BlockStored:
        event = BlockStored([page.hash], before, list(page.tokens), len(page.tokens), session_id=session, **common)
        if self._profile.stores("lora_name"):
            event.lora_name = space.lora_name
        if space.salt is not None:
            event.cache_salt = space.salt
            if self._profile.stores("extra_keys"):
                event.extra_keys = [[SALT_PREFIX + space.salt]]
        return event

    def _common(self, tier: int, group: int | None, shown: Callable[[str], bool]) -> dict[str, Any]:
        """What a stored and a removed event of one tier and group have in common."""
        values: dict[str, Any] = self._settings.spec(group, shown) if group is not None else {}
        if shown("medium"):
            values["medium"] = self._profile.tiers[tier]
        if shown("locality"):
            values["locality"] = "LOCAL"
        if shown("ownership"):
            values["ownership"] = OWNER
        return values

    def _cleared(self) -> Event:
        shown = "ownership" in self._profile.dialect.events["AllBlocksCleared"].carried
        return AllBlocksCleared(OWNER if shown else None)
