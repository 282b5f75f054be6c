"""One interface over the recipes: hash a token list, recompute an event, judge an event.

::

    recipe = get_recipe("sglang")
    for block in recipe.hash_blocks(tokens, 16, cache_salt="tenant-a"):
        block.digest, block.event_hash

A recipe is immutable and holds no stream: `kvwire.hashing.verify.ChainVerifier` follows one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from kvwire.hashing.errors import NotRecomputableError
from kvwire.hashing.forms import Hash, hash_key

if TYPE_CHECKING:
    from kvwire.events import BlockStored

__all__ = [
    "NOTHING_KNOWN",
    "BlockHash",
    "BlockVerdict",
    "ChainPoint",
    "Known",
    "Reason",
    "Recipe",
    "Status",
    "recompute",
]


class BlockHash(NamedTuple):
    """One block of a chain: the whole digest, which the next block continues from, and what an event carries of it."""

    digest: bytes
    event_hash: Hash


class Status(str, Enum):
    """What recomputing a published hash showed."""

    MATCH = "match"
    MISMATCH = "mismatch"
    UNKNOWN = "unknown"
    """The hash cannot be recomputed from what the events carry, so nothing was shown."""


class Reason(str, Enum):
    """Why a hash cannot be recomputed."""

    NO_TOKENS = "no-tokens"
    """The event has no tokens or a block size of 0: a placeholder that only names hashes."""
    SHAPE = "shape"
    """Tokens, block size, hashes and extra keys do not fit together, or an extra key has no known form."""
    TOKENS = "tokens"
    """A token that the recipe cannot hash."""
    PARENT_UNSEEN = "parent-unseen"
    """No event so far stored the parent: joined in the middle, lost a batch, or the parent link is wrong."""
    PARENT_UNKNOWN = "parent-unknown"
    """The parent was stored, but its own digest could not be recomputed."""
    PARENT_AMBIGUOUS = "parent-ambiguous"
    """The parent's hash was published for two blocks of different content."""
    EXTRA_KEY = "extra-key-not-published"
    """SGLang mixed a namespace into the hash whose extra_key no event carries."""
    EXTRA_KEYS = "extra-keys-not-published"
    """vLLM before 0.17 publishes no extra keys: salt, adapter, images or embeddings may have been hashed."""
    LORA_PATH = "lora-path-not-published"
    """vLLM hashes the adapter's path since 0.31.0 and publishes its name alone."""
    MASKED = "masked-blocks"
    """Extra keys of the blocks that a sliding-window group leaves out are not published."""
    COARSE = "coarse-block"
    """Extra keys of the finer blocks that a coarse block was hashed by are not published."""


@dataclass(frozen=True)
class Known:
    """What the caller knows beyond the events; candidates, tried where the events leave something open.

    Attributes:
        extra_keys: SGLang extra_keys in use. A LoRA request's ends in the adapter's id.
        salts: cache salts in use, for vLLM releases that do not publish them.
        lora_paths: path of each adapter by its name, as vLLM was given it.
        lora_names: name of each adapter by its id, for vLLM releases that publish ids alone.
        complete: these are all there are, so a hash that none of them explains is a mismatch, not unknown.
    """

    extra_keys: tuple[str, ...] = ()
    salts: tuple[str, ...] = ()
    lora_paths: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    lora_names: Mapping[int, str] = field(default_factory=lambda: MappingProxyType({}))
    complete: bool = False


NOTHING_KNOWN = Known()


@dataclass(frozen=True, slots=True)
class ChainPoint:
    """The state of a chain after a block: what its child continues from.

    Attributes:
        digest: the block's whole digest.
        extra_key: the SGLang namespace found to be in the hash; None for none.
        settled: whether ``extra_key`` is known; False after a block whose namespace no event tells.
        root: whether this is the state before the first block of a prompt; ``digest`` is then empty or NONE_HASH.
    """

    digest: bytes
    extra_key: str | None = None
    settled: bool = True
    root: bool = False


@dataclass(frozen=True, slots=True)
class BlockVerdict:
    """What recomputing one published hash showed.

    Attributes:
        index: position in the event's ``block_hashes``.
        published: the hash as the event has it.
        status: match, mismatch or unknown.
        expected: what the recipe gives, in the form the engine publishes; None where unknown.
        reason: why it is unknown.
        detail: the same in words, naming the missing thing.
        prior: what the block was computed from; None where unknown. `diagnose` starts from it.
        point: the state after the block, recomputed from its tokens; None where unknown.
        block: which block of the event's tokens the hash is of; above ``index`` in sliding-window groups.
    """

    index: int
    published: Hash
    status: Status
    expected: Hash | None = None
    reason: Reason | None = None
    detail: str = ""
    prior: ChainPoint | None = None
    point: ChainPoint | None = None
    block: int | None = None

    def __str__(self) -> str:
        head = f"block {self.index}: {_spell(self.published)}"
        if self.status is Status.MATCH:
            return f"{head} matches"
        if self.status is Status.MISMATCH:
            return (
                f"{head}, expected {_spell(self.expected)}" if self.expected is not None else f"{head}: {self.detail}"
            )
        return f"{head} not recomputed ({self.detail})"


def _spell(block_hash: Hash | None) -> str:
    return block_hash.hex() if isinstance(block_hash, bytes) else str(block_hash)


class Recipe(Protocol):
    """How one kind of engine hashes blocks."""

    @property
    def name(self) -> str:
        """As `get_recipe` takes it, e.g. ``vllm:sha256_cbor``."""

    @property
    def root(self) -> ChainPoint:
        """The state before the first block of a prompt."""

    def hash_blocks(
        self,
        tokens: Any,
        block_size: int,
        *,
        parent: bytes | None = None,
        cache_salt: str | None = None,
        extra_key: str | None = None,
        lora_name: str | None = None,
        lora_path: str | None = None,
        bigram: bool = False,
    ) -> Iterator[BlockHash]:
        """The chain of a token list, one block at a time; memory does not grow with its length.

        Args:
            tokens: see `kvwire.hashing.tokens.TokenView`.
            block_size: tokens per block.
            parent: digest of the block before; None starts a prompt.
            cache_salt, extra_key, lora_name, lora_path, bigram: properties of the request.

        Raises:
            RecipeError: a property that this recipe does not hash. HashInputError: tokens it cannot hash.
        """

    def point_of(self, parent: Hash) -> ChainPoint | None:
        """The chain point that a published parent determines by itself: only a whole digest does."""

    def judge(self, event: BlockStored, point: ChainPoint, known: Known) -> list[BlockVerdict]:
        """Recompute every hash of an event whose parent left the chain at ``point``. Reads the event alone."""


def recompute(
    recipe: Recipe, event: BlockStored, parent: bytes | None = None, known: Known = NOTHING_KNOWN
) -> list[BlockHash]:
    """The hashes that an event should carry, from its own data and its parent's whole digest.

    Args:
        parent: digest of the block before the first one; None at the root, and where the event's parent is itself a whole
            digest (vLLM with byte hashes).
        known: see `Known`.

    Raises:
        NotRecomputableError: something that was hashed is not in the event; ``reason`` says what.
    """
    if parent is not None:
        point: ChainPoint | None = ChainPoint(parent)
    elif event.parent_block_hash is None:
        point = recipe.root
    else:
        point = recipe.point_of(event.parent_block_hash)
    if point is None:
        raise NotRecomputableError(
            Reason.PARENT_UNSEEN.value, "the event continues a chain: give the whole digest of its parent block"
        )
    found = []
    for verdict in recipe.judge(event, point, known):
        if verdict.point is None or verdict.expected is None:
            raise NotRecomputableError(
                (verdict.reason or Reason.SHAPE).value, f"block {verdict.index}: {verdict.detail}"
            )
        found.append(BlockHash(verdict.point.digest, verdict.expected))
    return found


def unknown(
    hashes: Sequence[Hash], reason: Reason, detail: str, start: int = 0, point_of: Callable[[Hash], Any] | None = None
) -> list[BlockVerdict]:
    """The same verdict for all hashes from ``start`` on; ``point_of`` gives the points that whole digests determine."""
    return [
        BlockVerdict(
            index,
            hashes[index],
            Status.UNKNOWN,
            None,
            reason,
            detail,
            point=point_of(hashes[index]) if point_of else None,
        )
        for index in range(start, len(hashes))
    ]


def same(published: Hash, expected: Hash) -> bool:
    """Whether two forms are one hash: integers by their 64 bits, byte strings by their bytes."""
    return hash_key(published) == hash_key(expected)
