"""The recipes of SGLang's events: the SHA-256 page chain in both formats, and the unchained Python hash before it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from kvwire.hashing import sglang
from kvwire.hashing.errors import HashInputError, RecipeError
from kvwire.hashing.forms import Hash
from kvwire.hashing.recipes import BlockHash, BlockVerdict, ChainPoint, Known, Reason, Status, same, unknown

if TYPE_CHECKING:
    from kvwire.events import BlockStored

__all__ = ["SglangPythonRecipe", "SglangRecipe", "SglangStorageRecipe"]


@dataclass(frozen=True)
class SglangRecipe:
    """SGLang >= 0.5.6: the SHA-256 page chain.

    Attributes:
        format: ``dynamo`` where the engine was started with ``"format": "dynamo"``; its hashes are namespaced.
    """

    format: Literal["default", "dynamo"] = "default"

    @property
    def name(self) -> str:
        """``sglang`` or ``sglang:dynamo``."""
        return "sglang" if self.format == "default" else "sglang:dynamo"

    @property
    def root(self) -> ChainPoint:
        """No prior: a salted chain takes its seed from the event."""
        return ChainPoint(b"", root=True)

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
        """See `Recipe.hash_blocks`. ``extra_key`` counts in the dynamo format, and with a ``lora_name`` in the default
        one (0.5.23); the extra_key of a LoRA request ends in the adapter's id."""
        if lora_path is not None:
            raise RecipeError("SGLang hashes no adapter path; a LoRA request's namespace is its extra_key")
        if lora_name is not None and extra_key is None:
            raise RecipeError(
                "a LoRA request's hashes are namespaced by its extra_key (it ends in the adapter's id); give it"
            )
        seed = self.seed(extra_key, cache_salt, lora_name)
        prior = parent if parent is not None else sglang.event_prior(cache_salt)
        for digest in sglang.page_digests(tokens, block_size, prior=prior, bigram=bigram):
            yield BlockHash(digest, sglang.namespaced_hash(sglang.event_hash(digest), seed))

    def seed(self, extra_key: str | None, cache_salt: str | None, lora_name: str | None) -> bytes | None:
        """The namespace seed of a request's hashes; None where they are published as they are."""
        if self.format == "dynamo":
            return sglang.namespace_seed(extra_key, cache_salt or None)
        return sglang.namespace_seed(extra_key, None) if lora_name is not None else None

    def point_of(self, parent: Hash) -> ChainPoint | None:
        """None: SGLang publishes 8 bytes of 32."""
        return None

    def judge(self, event: BlockStored, point: ChainPoint, known: Known) -> list[BlockVerdict]:
        """See `Recipe.judge`."""
        problem = misfit(event)
        if problem is not None:
            return unknown(event.block_hashes, *problem)
        prior = sglang.event_prior(event.cache_salt) if point.root else point.digest
        try:
            digests = list(sglang.page_digests(event.token_ids, event.block_size, prior=prior))
        except HashInputError as error:
            return unknown(event.block_hashes, Reason.TOKENS, str(error))
        raw = [sglang.event_hash(digest) for digest in digests]
        candidates, certain = self._candidates(event, point, known)
        chosen = candidates[0] if candidates else None
        for key in candidates:
            if any(same(published, self._hash(raw[at], key, event)) for at, published in enumerate(event.block_hashes)):
                chosen = key
                break
        else:
            if not certain:
                return self._unresolved(event, ChainPoint(prior or b"", settled=False, root=point.root), digests, known)
        verdicts = []
        before = ChainPoint(prior or b"", chosen, root=point.root)
        for index, published in enumerate(event.block_hashes):
            expected = self._hash(raw[index], chosen, event)
            after = ChainPoint(digests[index], chosen)
            status = Status.MATCH if same(published, expected) else Status.MISMATCH
            verdicts.append(BlockVerdict(index, published, status, expected, prior=before, point=after, block=index))
            before = after
        return verdicts

    def _unresolved(
        self, event: BlockStored, point: ChainPoint, digests: list[bytes], known: Known
    ) -> list[BlockVerdict]:
        # The digests follow from the tokens alone, so a child can still be judged should its namespace be told.
        tried = f"; none of the {len(known.extra_keys)} extra_keys given explains it" if known.extra_keys else ""
        if event.lora_name is not None:
            what = f"the hash is namespaced by the extra_key of adapter {event.lora_name!r}, which no event carries"
        else:
            what = "the dynamo format namespaces the hash by an extra_key, which no event carries"
        points = [ChainPoint(digest, settled=False) for digest in digests]
        return [
            BlockVerdict(
                index,
                published,
                Status.UNKNOWN,
                reason=Reason.EXTRA_KEY,
                detail=what + tried,
                prior=before,
                point=points[index],
                block=index,
            )
            for index, (published, before) in enumerate(zip(event.block_hashes, [point, *points], strict=False))
        ]

    def _hash(self, raw: int, extra_key: str | None, event: BlockStored) -> int:
        return sglang.namespaced_hash(raw, self.seed(extra_key, event.cache_salt, event.lora_name))

    def _candidates(self, event: BlockStored, point: ChainPoint, known: Known) -> tuple[tuple[str | None, ...], bool]:
        """The extra_keys that may be in the hash, and whether one of them must be."""
        if self.format == "default" and event.lora_name is None:
            return (None,), True
        if not point.root and point.settled:
            return (point.extra_key,), True
        if event.lora_name is None:
            return (None, *known.extra_keys), known.complete
        return known.extra_keys, known.complete and bool(known.extra_keys)


@dataclass(frozen=True)
class SglangPythonRecipe:
    """SGLang 0.4.6.post5 to 0.5.5.post3: CPython's hash of each page's tuple, unchained and unsalted."""

    @property
    def name(self) -> str:
        """``sglang:python``."""
        return "sglang:python"

    @property
    def root(self) -> ChainPoint:
        """Hashes are not chained, so every block starts here."""
        return ChainPoint(b"", root=True)

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
        """See `Recipe.hash_blocks`. The digest is the event hash as 8 bytes big-endian; a parent changes nothing."""
        for name, value in (("cache_salt", cache_salt), ("extra_key", extra_key), ("lora_name", lora_name)):
            if value is not None:
                raise RecipeError(f"these releases hash the tokens of a page alone, no {name}")
        if lora_path is not None:
            raise RecipeError("these releases hash the tokens of a page alone, no lora_path")
        for block_hash in sglang.python_page_hashes(tokens, block_size, bigram=bigram):
            yield BlockHash(block_hash.to_bytes(8, "big", signed=True), block_hash)

    def point_of(self, parent: Hash) -> ChainPoint | None:
        """The root: a parent has no part in the hash."""
        return self.root

    def judge(self, event: BlockStored, point: ChainPoint, known: Known) -> list[BlockVerdict]:
        """See `Recipe.judge`."""
        problem = misfit(event)
        if problem is not None:
            return unknown(event.block_hashes, *problem)
        try:
            expected = list(self.hash_blocks(event.token_ids, event.block_size))
        except HashInputError as error:
            return unknown(event.block_hashes, Reason.TOKENS, str(error))
        return [
            BlockVerdict(
                index,
                published,
                Status.MATCH if same(published, block.event_hash) else Status.MISMATCH,
                block.event_hash,
                prior=self.root,
                point=ChainPoint(block.digest),
                block=index,
            )
            for index, (published, block) in enumerate(zip(event.block_hashes, expected, strict=True))
        ]


@dataclass(frozen=True)
class SglangStorageRecipe:
    """SGLang's storage (HiCache L3) keys. They are no event hashes, so this recipe hashes token lists only."""

    @property
    def name(self) -> str:
        """``sglang:storage``."""
        return "sglang:storage"

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
        """See `Recipe.hash_blocks`. The key is the digest in hex; ``event_hash`` is what its first 8 bytes would be."""
        if lora_name is not None or lora_path is not None:
            raise RecipeError("a LoRA request's storage namespace is its extra_key; give that")
        seed = sglang.storage_seed(extra_key, cache_salt or None) if parent is None else parent
        for digest in sglang.page_digests(tokens, block_size, prior=seed, bigram=bigram):
            yield BlockHash(digest, sglang.event_hash(digest))


def misfit(event: BlockStored) -> tuple[Reason, str] | None:
    """Why an event's hashes cannot be matched with its tokens one page each; None if they can."""
    count, size, tokens = len(event.block_hashes), event.block_size, len(event.token_ids)
    if tokens == 0 or size == 0:
        return Reason.NO_TOKENS, "the event carries hashes without tokens"
    if size < 0 or -(-tokens // size) != count:
        return Reason.SHAPE, f"{tokens} tokens at {size} per page make {max(-(-tokens // size), 0)} pages, not {count}"
    return None
