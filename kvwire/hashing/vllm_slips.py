"""What producers that mean to hash as vLLM get wrong."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from kvwire.hashing import vllm
from kvwire.hashing.errors import HashInputError, MissingLibraryError
from kvwire.hashing.mistakes import Attempt, Mistake, divisors
from kvwire.hashing.recipes import ChainPoint, Known
from kvwire.hashing.vllm import ExtraKeys
from kvwire.hashing.vllm_recipe import VllmRecipe

if TYPE_CHECKING:
    from kvwire.events import BlockStored

__all__ = ["SEEDS", "root_digest", "vllm_attempts"]

SEEDS = ("0", vllm.DEFAULT_SEED, "42", "1", "")
"""Seeds that are tried for a wrong NONE_HASH, beside the recipe's own."""

LONGEST_BLOCK = 4096
"""Up to how many tokens a wrong block size is looked for."""


def vllm_attempts(
    recipe: VllmRecipe, event: BlockStored, index: int, block: int, prior: ChainPoint, known: Known
) -> Iterator[Attempt]:
    """The right digest of one block, then one for each mistake. ``prior`` is the state before it."""
    start, size = block * event.block_size, event.block_size
    root = prior.root and block == 0
    ids: tuple[Any, ...] = tuple(event.token_ids[start : start + size])
    digest = vllm.hash_function(recipe.algorithm)
    extras = _extras(recipe, event, index, known)
    right = extras[0][2] if extras and extras[0][0] is None else None
    for mistake, how, extra in extras:
        yield Attempt(mistake, how, digest((prior.digest, ids, extra)))
    yield Attempt(
        Mistake.SERIALISATION, "the tokens are serialised as a list", digest((prior.digest, list(ids), right))
    )
    yield Attempt(Mistake.SERIALISATION, "the block is serialised as a list", digest([prior.digest, ids, right]))
    if root:
        for algorithm in vllm.ALGORITHMS:
            for seed in SEEDS:
                attempt = root_digest(algorithm, seed, ids, right)
                if attempt is None:
                    continue
                if algorithm != recipe.algorithm:
                    yield Attempt(Mistake.ALGORITHM, f"the hash is {algorithm}'s, with the seed {seed!r}", attempt)
                elif vllm.none_hash(algorithm, seed) != prior.digest:
                    yield Attempt(Mistake.SEED, f"NONE_HASH is that of the seed {seed!r}", attempt)
        for how, parent in (("nil", None), ("empty", b""), ("32 zero bytes", bytes(32)), ("0", 0)):
            yield Attempt(Mistake.SEED, f"the root's parent is {how}, not NONE_HASH", digest((parent, ids, right)))
    else:
        yield Attempt(Mistake.NOT_CHAINED, "the parent has no part in the hash", digest((recipe.none_hash, ids, right)))
        yield Attempt(Mistake.NOT_CHAINED, "the parent is nil in the hash", digest((None, ids, right)))
        low = vllm.external_hash(prior.digest)
        for how, form in (
            ("64-bit hash as an integer", low),
            ("last 8 bytes", prior.digest[-8:]),
            ("digest as hex digits", prior.digest.hex()),
        ):
            text = f"the chain continues from the parent's {how}, not from its whole digest"
            yield Attempt(Mistake.PARENT_FORM, text, digest((form, ids, right)))
    for stop in range(1, min(len(event.token_ids) - start, LONGEST_BLOCK) + 1):
        if stop != size and (stop & (stop - 1) == 0 or stop % size == 0):
            how = f"the hash covers {stop} tokens, and the event says block_size {size}"
            part = tuple(event.token_ids[start : start + stop])
            yield Attempt(Mistake.PAGE_SIZE, how, digest((prior.digest, part, right)))
    for fine in divisors(size):
        parent = prior.digest
        for at in range(0, size, fine):
            parent = digest((parent, ids[at : at + fine], right if at == 0 else None))
        yield Attempt(Mistake.PAGE_SIZE, f"the block is hashed in blocks of {fine}, and the last one published", parent)


def root_digest(algorithm: str, seed: str, ids: Sequence[int], extra: Any) -> bytes | None:
    """The digest of a root block; None if a library is missing."""
    try:
        return vllm.block_digest(algorithm, vllm.none_hash(algorithm, seed), ids, extra)
    except MissingLibraryError:
        return None


def _extras(
    recipe: VllmRecipe, event: BlockStored, index: int, known: Known
) -> list[tuple[Mistake | None, str, tuple[Any, ...] | None]]:
    """The right extra keys first, if they are known, then the wrong ones."""
    entry = event.extra_keys[index] if event.extra_keys is not None and index < len(event.extra_keys) else None
    name = event.lora_name
    path = known.lora_paths.get(name) if name is not None else None
    bare = vllm.bare(entry)
    try:
        tagged = vllm.with_tags(entry, lora_name=name, lora_path=path)
    except HashInputError:
        tagged = None
    tags = recipe.extra_keys is ExtraKeys.TAGGED
    right, other = (tagged, bare) if tags else (bare, tagged)
    found: list[tuple[Mistake | None, str, tuple[Any, ...] | None]] = []
    if right is not None or entry is None:
        found.append((None, "", right))
    if entry:
        if other is not None:
            how = f"the extra keys are hashed {'bare, as up to 0.30.0' if tags else 'tagged, as since 0.31.0'}"
            found.append((Mistake.EXTRA_KEYS_FORM, how, other))
        unsalted = _without_salt(right, name)
        if unsalted != right:
            how = "the event carries a salt among the block's extra keys, the hash does not"
            found.append((Mistake.SALT_NOT_APPLIED, how, unsalted))
        found.append((Mistake.EXTRA_KEYS_NOT_APPLIED, f"none of the extra keys {entry!r:.80} is hashed", None))
    else:
        found.append((Mistake.EXTRA_KEYS_FORM, "a block without extra keys is hashed with an empty tuple, not nil", ()))
        salts = (*known.salts, *((event.cache_salt,) if event.cache_salt else ()))
        for salt in salts:
            how = f"the salt {salt!r} is hashed into a block whose extra keys do not name it"
            found.append((Mistake.SALT_NOT_PUBLISHED, how, recipe.salt_keys(salt)))
    lookahead = event.lookahead_token_ids
    if lookahead is None or index >= len(lookahead):
        return found
    ahead = lookahead[index]
    text = "the lookahead tokens are published and not hashed"
    skipped: tuple[Mistake | None, str, tuple[Any, ...] | None] = (Mistake.LOOKAHEAD, text, right)
    return [*((mistake, how, vllm.with_lookahead(extra, ahead)) for mistake, how, extra in found), skipped]


def _without_salt(extra: tuple[Any, ...] | None, lora_name: str | None) -> tuple[Any, ...] | None:
    kept = [
        key
        for position, key in enumerate(extra or ())
        if not (isinstance(key, str) and not (position == 0 and key == lora_name))
        and not (isinstance(key, tuple) and key[0] == "cache_salt")
    ]
    return tuple(kept) or None
