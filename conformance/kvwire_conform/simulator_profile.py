"""How the engines of a dialect behave, as far as the dialect shows it (spec/stream.md)."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, replace

from kvwire.dialects import Dialect
from kvwire.errors import UsageError


class Family(str, enum.Enum):
    """The engine that a dialect's streams come from. ``dynamo`` is proposed for SGLang."""

    SGLANG = "sglang"
    VLLM = "vllm"


class Coalescing(enum.IntEnum):
    """How SGLang puts pages into events.

    ``PAGE``: one event a page (up to 0.5.8). ``NODE``: one removal a tree node, one store a page (up to 0.5.16).
    ``CHAIN``: neighbouring removals in one event, and stores that are each other's parent in one event (after that).
    """

    PAGE = 0
    NODE = 1
    CHAIN = 2


_COALESCING = {"slot6-b2": Coalescing.PAGE, "slot6": Coalescing.PAGE, "slot7": Coalescing.NODE}
_NEWEST_VLLM = frozenset(("vllm-map4", "vllm-map5"))


@dataclass(frozen=True)
class Profile:
    """What an engine of one dialect does.

    Attributes:
        dialect: what it speaks.
        family: whose cache it has.
        tiers: its media, fastest first.
        coalescing: how it puts pages into events.
        partial_pages: the last page of a prompt may be shorter than block_size.
        namespaced: every hash is moved into the namespace of extra key and salt (``"format": "dynamo"``).
        tagged_keys: extra keys enter the hash with a tag (vLLM >= 0.31).
        masking: sliding-window groups have hashes only for the blocks inside the window (seen from vLLM 0.32 on).
    """

    dialect: Dialect
    family: Family
    tiers: tuple[str, ...]
    coalescing: Coalescing
    partial_pages: bool
    namespaced: bool
    tagged_keys: bool
    masking: bool

    def stores(self, field: str) -> bool:
        """Whether a stored event has a place of its own for the neutral field."""
        return field in self.dialect.events["BlockStored"].carried

    def removes(self, field: str) -> bool:
        """Whether a removed event has a place for the neutral field."""
        return field in self.dialect.events["BlockRemoved"].carried

    @property
    def shows_medium(self) -> bool:
        """Whether events name a medium."""
        return self.stores("medium")

    @property
    def shows_salt(self) -> bool:
        """Whether stored events show a salt: in a place of its own, or among extra_keys."""
        return self.dialect.carries("BlockStored", "cache_salt")

    @property
    def recipe(self) -> str:
        """How the blocks are hashed, as `kvwire.hashing.catalog.get_recipe` takes it."""
        if self.family is Family.VLLM:
            return "vllm:sha256"
        return "sglang:dynamo" if self.namespaced else "sglang"

    @property
    def hash_seed(self) -> str | None:
        """PYTHONHASHSEED of vLLM's processes; SGLang's hashes have no seed."""
        return "0" if self.family is Family.VLLM else None

    @property
    def sliding_group(self) -> int:
        """Which of two groups is the sliding-window one; vLLM numbers it first."""
        return 0 if self.family is Family.VLLM else 1


def profile_of(dialect: Dialect) -> Profile:
    """The behaviour of a dialect's engines; of SGLang where both engines emit it."""
    engines = {span.engine for span in dialect.releases}
    family = Family.VLLM if engines == {"vllm"} else Family.SGLANG
    shows_medium = "medium" in dialect.events["BlockStored"].carried
    tiers: tuple[str, ...] = ("GPU",)
    if family is Family.SGLANG and shows_medium:
        tiers = ("GPU", "CPU_PINNED", "DISK")
    elif family is Family.VLLM and "CPU" in dialect.media:
        tiers = ("GPU", "CPU", "STORAGE")
    return Profile(
        dialect=dialect,
        family=family,
        tiers=tiers,
        coalescing=_COALESCING.get(dialect.id, Coalescing.CHAIN),
        partial_pages=dialect.id in ("slot6-b2", "slot6"),
        namespaced=dialect.id == "dynamo",
        tagged_keys=dialect.id in _NEWEST_VLLM,
        masking=dialect.id in _NEWEST_VLLM,
    )


@dataclass(frozen=True)
class Settings:
    """How a simulated engine is set up.

    Attributes:
        profile: what it does by its dialect.
        block_size: tokens per block.
        capacities: blocks per tier, as long as ``profile.tiers``. On vLLM's GPU each group's copy of a block counts.
        groups: KV cache groups; None where the dialect does not show them.
        window: of the sliding-window group, in blocks.
        bigram: EAGLE pages: token_ids are pairs.
        lookahead: each block's hash covers the token after it.
    """

    profile: Profile
    block_size: int
    capacities: tuple[int, ...]
    groups: int | None
    window: int
    bigram: bool
    lookahead: bool

    @property
    def group_ids(self) -> tuple[int | None, ...]:
        """The values of ``group_idx``, in the order in which a store is announced."""
        return (None,) if self.groups is None else tuple(range(self.groups))

    def slides(self, group: int | None) -> bool:
        """Whether a group is the sliding-window one."""
        return self.groups == 2 and group == self.profile.sliding_group

    def spec(self, group: int | None, shown: Callable[[str], bool]) -> dict[str, int | str | None]:
        """The group's fields of an event, those that the dialect has for it."""
        values: dict[str, int | str | None] = {
            "group_idx": group,
            "kv_cache_spec_kind": "sliding_window" if self.slides(group) else "full_attention",
            "kv_cache_spec_sliding_window": self.window * self.block_size if self.slides(group) else None,
        }
        return {name: value for name, value in values.items() if shown(name)}


def settings_of(
    dialect: Dialect,
    block_size: int,
    capacities: tuple[int, int, int],
    groups: int | None,
    window: int,
    bigram: bool,
    lookahead: bool | None,
) -> Settings:
    """The settings of a dialect's engine, checked. Raises UsageError; the arguments are those of `Simulator`."""
    profile = profile_of(dialect)
    if block_size < 1 or window < 1:
        raise UsageError("block_size and window are at least 1")
    if capacities[0] < 16:
        raise UsageError(f"capacity is at least 16 blocks, not {capacities[0]}")
    if groups not in (None, 1, 2):
        raise UsageError(f"groups is 1 or 2, not {groups}")
    if bigram and profile.family is not Family.SGLANG:
        raise UsageError(f"bigram pages are SGLang's; {dialect.id} is vLLM's")
    if lookahead and not profile.stores("lookahead_token_ids"):
        raise UsageError(f"{dialect.id} has no lookahead_token_ids")
    if groups == 2 and not profile.stores("group_idx"):
        raise UsageError(f"{dialect.id} has no group_idx, so it shows one group")
    tiers = 1
    while tiers < len(profile.tiers) and capacities[tiers] > 0:
        tiers += 1
    return Settings(
        profile=replace(profile, tiers=profile.tiers[:tiers]),
        block_size=block_size,
        capacities=capacities[:tiers],
        groups=(groups or 2) if profile.stores("group_idx") else None,
        window=window,
        bigram=bigram,
        lookahead=profile.stores("lookahead_token_ids") if lookahead is None else lookahead,
    )
