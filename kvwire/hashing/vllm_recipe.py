"""The recipe of vLLM's events: one class for every algorithm and era."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kvwire.hashing import vllm
from kvwire.hashing.errors import HashInputError, RecipeError
from kvwire.hashing.forms import Hash
from kvwire.hashing.recipes import BlockHash, BlockVerdict, ChainPoint, Known, Reason, Status, same, unknown
from kvwire.hashing.tokens import check
from kvwire.hashing.vllm import ExtraKeys

if TYPE_CHECKING:
    from kvwire.events import BlockStored

__all__ = ["VllmRecipe"]

Extra = tuple[Any, ...] | None


@dataclass(frozen=True)
class VllmRecipe:
    """vLLM >= 0.10.2.

    Attributes:
        algorithm: one of `kvwire.hashing.vllm.ALGORITHMS`.
        none_hash: parent of root blocks, see `kvwire.hashing.vllm.none_hash`.
        extra_keys: whether they are hashed bare (to 0.30.0) or tagged (since 0.31.0).
        hash_block_size: tokens per hashed block, where groups of a hybrid model have larger blocks; None for the event's
            own block size. A larger block's hash is that of its last hashed block.
        digests: hash with whole digests as event hashes (``VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES=0``). Judging an event
            needs no such setting: it follows the form that the event has.
    """

    algorithm: str
    none_hash: bytes
    extra_keys: ExtraKeys = ExtraKeys.TAGGED
    hash_block_size: int | None = None
    digests: bool = False
    _size: int = field(init=False, repr=False, compare=False, default=32)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_size", vllm.digest_size(self.algorithm))

    @property
    def name(self) -> str:
        """``vllm:`` and the algorithm."""
        return f"vllm:{self.algorithm}"

    @property
    def root(self) -> ChainPoint:
        """NONE_HASH."""
        return ChainPoint(self.none_hash, root=True)

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
        """See `Recipe.hash_blocks`. The salt enters the first block of a prompt alone, the adapter every block."""
        if extra_key is not None or bigram:
            raise RecipeError("vLLM has no extra_key and no bigram pages; those are SGLang's")
        adapter = self._adapter(lora_name, lora_path)
        first = adapter + (self.salt_keys(cache_salt) if parent is None else ())
        prior = self.none_hash if parent is None else parent
        extras = _Extras(first or None, adapter or None)
        for digest in vllm.block_digests(tokens, block_size, algorithm=self.algorithm, parent=prior, extras=extras):
            yield BlockHash(digest, digest if self.digests else vllm.external_hash(digest))

    def _adapter(self, name: str | None, path: str | None) -> tuple[Any, ...]:
        if name is None:
            return ()
        if self.extra_keys is ExtraKeys.BARE:
            return (name,)
        if path is None:
            raise RecipeError(f"vLLM hashes the adapter's path since 0.31.0: give the path of {name!r}")
        return (("lora", name, path),)

    def salt_keys(self, salt: str | None) -> tuple[Any, ...]:
        """What a salt adds to the extra keys of a prompt's first block; nothing for an empty one."""
        if not salt:
            return ()
        return (salt,) if self.extra_keys is ExtraKeys.BARE else (("cache_salt", salt),)

    def point_of(self, parent: Hash) -> ChainPoint | None:
        """A whole digest is its own chain point; 64 bits are not."""
        if isinstance(parent, bytes) and len(parent) >= self._size:
            return ChainPoint(parent[-self._size :])
        return None

    def judge(self, event: BlockStored, point: ChainPoint, known: Known) -> list[BlockVerdict]:
        """See `Recipe.judge`."""
        count, size = len(event.block_hashes), event.block_size
        if not event.token_ids or size == 0:
            return unknown(event.block_hashes, Reason.NO_TOKENS, "the event carries hashes without tokens")
        blocks, rest = divmod(len(event.token_ids), size) if size > 0 else (0, 1)
        if rest or count > blocks:
            detail = f"{len(event.token_ids)} tokens at {size} per block are not {count} blocks"
            return unknown(event.block_hashes, Reason.SHAPE, detail)
        try:
            check(event.token_ids)
        except HashInputError as error:
            return unknown(event.block_hashes, Reason.TOKENS, str(error))
        try:
            reading = _Reading(self, event, known)
            return reading.dense(point) if count == blocks else reading.sparse(point, blocks)
        except HashInputError as error:
            return unknown(event.block_hashes, Reason.SHAPE, str(error))


class _Extras(Sequence[Extra]):
    """Extra keys of a chain: one value for the first block and one for all others, of whatever number they are."""

    def __init__(self, first: Extra, others: Extra) -> None:
        self._first = first
        self._others = others

    def __getitem__(self, index: Any) -> Any:
        return self._others if index else self._first

    def __len__(self) -> int:
        return 1 << 62


@dataclass(frozen=True)
class _Guess:
    """The extra keys that may have been hashed into one block: candidates, and what to say if none fits."""

    candidates: list[Extra]
    certain: bool
    reason: Reason = Reason.EXTRA_KEYS
    detail: str = ""


class _Reading:
    """One event under one recipe."""

    def __init__(self, recipe: VllmRecipe, event: BlockStored, known: Known) -> None:
        self.recipe = recipe
        self.event = event
        self.known = known
        self.size = event.block_size
        self.digest = vllm.hash_function(recipe.algorithm)
        fine = recipe.hash_block_size
        self.scale = event.block_size // fine if fine and event.block_size % fine == 0 else 1
        entries, hashes = event.extra_keys, event.block_hashes
        if entries is not None and len(entries) != len(hashes):
            raise HashInputError(f"extra_keys has {len(entries)} entries for {len(hashes)} hashes; it has one per hash")
        if event.lookahead_token_ids is not None and len(event.lookahead_token_ids) != len(hashes):
            raise HashInputError("lookahead_token_ids has not one entry per hash")

    # What may have been hashed

    def guess(self, index: int, *, root: bool) -> _Guess:
        """For a block that has a hash."""
        entries = self.event.extra_keys
        guess = self._unpublished(root=root) if entries is None else self._published(entries[index])
        lookahead = self.event.lookahead_token_ids
        if lookahead is not None:
            found: list[Extra] = [vllm.with_lookahead(extra, lookahead[index]) for extra in guess.candidates]
            return _Guess(found, guess.certain, guess.reason, guess.detail)
        return guess

    def masked_guess(self, block: int, *, root: bool) -> list[Extra]:
        """For a block that a sliding-window group leaves out: the adapter is on the event, a salt may be known."""
        found = self._unpublished(root=root).candidates or [None]
        lookahead = self.event.lookahead_token_ids
        if lookahead:
            after = (block + 1) * self.size
            ahead = self.event.token_ids[after : after + len(lookahead[0])]
            found = [vllm.with_lookahead(extra, ahead) for extra in found]
        return found

    def _published(self, entry: Sequence[Any] | None) -> _Guess:
        name = self.event.lora_name
        if self.recipe.extra_keys is ExtraKeys.BARE:
            return _Guess(self._identities(vllm.bare(entry)), certain=True)
        path = self.known.lora_paths.get(name) if name is not None else None
        if entry and name is not None and entry[0] == name and path is None:
            return _Guess([], certain=False, reason=Reason.LORA_PATH, detail=_no_path(name))
        return _Guess(self._identities(vllm.with_tags(entry, lora_name=name, lora_path=path)), certain=True)

    def _unpublished(self, *, root: bool) -> _Guess:
        known, name, number = self.known, self.event.lora_name, self.event.lora_id
        if name is None and number is not None:
            name = known.lora_names.get(number)
        adapters: list[tuple[Any, ...]] = [()]
        if name is not None and self.recipe.extra_keys is ExtraKeys.TAGGED:
            path = known.lora_paths.get(name)
            if path is None:
                return _Guess([], certain=False, reason=Reason.LORA_PATH, detail=_no_path(name))
            adapters = [(("lora", name, path),)]
        elif name is not None:
            adapters = [(name,)]
        elif number is not None:
            # 0.10.2 to 0.11.0 hashed the number itself.
            adapters = [(number,)]
        salts = ("", *known.salts) if root else ("",)
        found: list[Extra] = [
            (*adapter, *self.recipe.salt_keys(salt)) or None for adapter in adapters for salt in salts
        ]
        detail = "this release publishes no extra keys; a salt, an adapter, images or embeddings may have been hashed"
        return _Guess(found, certain=known.complete, detail=detail)

    def _identities(self, extra: Extra) -> list[Extra]:
        """Pickle writes a string again or refers back to it, by identity, which the wire does not tell: try both."""
        parts = [part for key in extra or () for part in (key if isinstance(key, tuple) else (key,))]
        texts = [part for part in parts if isinstance(part, (str, bytes))]
        if self.recipe.algorithm.endswith("_cbor") or len(set(texts)) == len(texts) or extra is None:
            return [extra]
        held: dict[tuple[type, str | bytes], str | bytes] = {}

        def shared(part: Any) -> Any:
            return held.setdefault((type(part), part), part) if isinstance(part, (str, bytes)) else part

        return [_rebuilt(extra, _apart), _rebuilt(extra, shared)]

    # Digests

    def hashed(self, parent: bytes, block: int, extra: Extra, *, root: bool) -> list[bytes] | None:
        """The digests of the hashed blocks that make up one block of the event; None if their extra keys are unknown."""
        start, fine = block * self.size, self.size // self.scale
        found = []
        for part in range(self.scale):
            mine = extra if self.scale == 1 else self._part_of(extra, part, root=root)
            if mine is _UNKNOWN:
                return None
            ids = self.event.token_ids[start + part * fine : start + (part + 1) * fine]
            parent = self.digest((parent, tuple(ids), mine))
            found.append(parent)
        return found

    def _part_of(self, extra: Extra, part: int, *, root: bool) -> Any:
        keys = []
        for key in extra or ():
            salted = key[0] == "cache_salt" if isinstance(key, tuple) else key != self.event.lora_name
            tagged_adapter = isinstance(key, tuple) and key[0] == "lora"
            if not isinstance(key, (str, tuple)) or (isinstance(key, tuple) and not salted and not tagged_adapter):
                return _UNKNOWN
            if not salted or (root and part == 0):
                keys.append(key)
        return tuple(keys) or None

    def form(self, published: Hash, parts: list[bytes]) -> Hash:
        """The digest in the form that the event has."""
        if not isinstance(published, bytes):
            return vllm.external_hash(parts[-1])
        # Until 0.23 a larger block's digest was those of its hashed blocks, one after the other.
        whole = b"".join(parts)
        return whole if len(published) == len(whole) else parts[-1]

    # Verdicts

    def dense(self, point: ChainPoint) -> list[BlockVerdict]:
        """Every block of the event has its hash."""
        hashes = self.event.block_hashes
        verdicts: list[BlockVerdict] = []
        for index, published in enumerate(hashes):
            verdict = self._one(index, published, index, point)
            verdicts.append(verdict)
            if verdict.point is None:
                detail = f"block {index} could not be recomputed"
                return verdicts + unknown(hashes, Reason.PARENT_UNKNOWN, detail, index + 1)
            point = verdict.point
        return verdicts

    def _one(self, index: int, published: Hash, block: int, point: ChainPoint) -> BlockVerdict:
        root = point.root and block == 0
        guess = self.guess(index, root=root)
        tried = []
        for extra in guess.candidates:
            parts = self.hashed(point.digest, block, extra, root=root)
            if parts is None:
                detail = "the finer blocks that this block was hashed by have images or embeddings of their own"
                guess = _Guess([], certain=False, reason=Reason.COARSE, detail=detail)
                break
            expected = self.form(published, parts)
            after = ChainPoint(parts[-1])
            if same(published, expected):
                return BlockVerdict(index, published, Status.MATCH, expected, prior=point, point=after, block=block)
            tried.append((expected, after))
        if guess.certain and tried:
            expected, after = tried[0]
            return BlockVerdict(index, published, Status.MISMATCH, expected, prior=point, point=after, block=block)
        return BlockVerdict(
            index,
            published,
            Status.UNKNOWN,
            reason=guess.reason,
            detail=guess.detail,
            prior=point,
            point=self.recipe.point_of(published),
            block=block,
        )

    def sparse(self, point: ChainPoint, blocks: int) -> list[BlockVerdict]:
        """Some blocks of the event have no hash: find which ones the hashes are of."""
        best: list[BlockVerdict] = []
        starts = self.masked_guess(0, root=point.root)
        for first in starts:
            found = self._align(point, blocks, first)
            if len(found) > len(best):
                best = found
        status = Status.MISMATCH if self.known.complete else Status.UNKNOWN
        detail = (
            f"the hashes are of {len(self.event.block_hashes)} of the {blocks} blocks; the extra keys of the others are "
            "not published, and without any the chain does not meet the hashes"
        )
        for index in range(len(best), len(self.event.block_hashes)):
            published = self.event.block_hashes[index]
            reason = None if self.known.complete else Reason.MASKED
            after = self.recipe.point_of(published)
            best.append(BlockVerdict(index, published, status, reason=reason, detail=detail, point=after))
        return best

    def _align(self, point: ChainPoint, blocks: int, first: Extra) -> list[BlockVerdict]:
        found: list[BlockVerdict] = []
        hashes = self.event.block_hashes
        for block in range(blocks):
            if len(found) == len(hashes):
                break
            index = len(found)
            verdict = self._one(index, hashes[index], block, point)
            if verdict.status is Status.MATCH and verdict.point is not None:
                found.append(verdict)
                point = verdict.point
                continue
            root = point.root and block == 0
            extra = first if block == 0 else self.masked_guess(block, root=False)[0]
            parts = self.hashed(point.digest, block, extra, root=root)
            if parts is None:
                break
            point = ChainPoint(parts[-1])
        return found


def _rebuilt(extra: tuple[Any, ...], renew: Callable[[Any], Any]) -> tuple[Any, ...]:
    return tuple(tuple(map(renew, key)) if isinstance(key, tuple) else renew(key) for key in extra)


def _apart(part: Any) -> Any:
    """An equal object of its own; but for the tags, which are one constant each in vLLM too."""
    if isinstance(part, str) and part not in _TAGS:
        return part.encode().decode()
    return bytes(bytearray(part)) if isinstance(part, bytes) else part


_TAGS = frozenset(("lora", "mm", "cache_salt", "prompt_embeds"))
_UNKNOWN = object()


def _no_path(name: str) -> str:
    return f"the path of adapter {name!r} is hashed since vLLM 0.31.0, and no event carries it"
