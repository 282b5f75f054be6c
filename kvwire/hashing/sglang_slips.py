"""What producers that mean to hash as SGLang get wrong."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from kvwire.hashing import sglang
from kvwire.hashing.mistakes import Attempt, Mistake, divisors, sha
from kvwire.hashing.recipes import ChainPoint, Known
from kvwire.hashing.tokens import TokenView

if TYPE_CHECKING:
    from kvwire.events import BlockStored

__all__ = ["sglang_attempts"]

LONGEST_PAGE = 4096
"""Up to how many tokens a wrong page size is looked for."""


def sglang_attempts(event: BlockStored, block: int, point: ChainPoint, known: Known) -> Iterator[Attempt]:
    """The right digest of one page, then one for each mistake. ``point`` is the state before it."""
    view, size, prior = TokenView(event.token_ids), event.block_size, point.digest
    start, root = block * size, point.root and block == 0
    stop = min(start + size, view.length)
    packed = view.packed(start, stop)
    words = sglang.WIDE_TAG + view.wide(start, stop) if packed is None else bytes(packed)
    salt = event.cache_salt or None
    yield Attempt(None, "", sha(prior, words))
    if root:
        yield from _sglang_roots(words, salt, known)
    else:
        yield Attempt(Mistake.NOT_CHAINED, "the parent has no part in the hash", sha(words))
        for text, form in (
            ("first 8 bytes", prior[:8]),
            ("hex digits", prior.hex().encode()),
            ("first 16 hex digits", prior[:8].hex().encode()),
        ):
            how = f"the chain continues from the {text} of the parent's digest, not from its 32 bytes"
            yield Attempt(Mistake.PARENT_FORM, how, sha(form, words))
    yield from _extra_key_slips(prior, words, salt, known)
    yield from _word_slips(prior, view, start, stop)
    yield from _bigram_slips(prior, event, view, start, stop)
    yield from _page_slips(prior, view, start, size)


def _sglang_roots(words: bytes, salt: str | None, known: Known) -> Iterator[Attempt]:
    if salt is not None:
        yield Attempt(Mistake.SALT_NOT_APPLIED, f"the event carries the salt {salt!r}, the hash does not", sha(words))
        for text, seed in (
            ("the salt's tag without its NUL", sha(b"sglang-cache-salt-v1", salt.encode())),
            ("the hash of the salt without a tag", sha(salt.encode())),
            ("the salt itself", salt.encode()),
        ):
            yield Attempt(Mistake.SEED, f"the chain is seeded with {text}", sha(seed, words))
    else:
        for other in known.salts:
            how = f"the chain is seeded with the salt {other!r}, which the event does not carry"
            yield Attempt(Mistake.SALT_NOT_PUBLISHED, how, sha(sglang.salt_seed(other), words))
    for extra_key in (None, *known.extra_keys):
        seed_ = sglang.storage_seed(extra_key, salt)
        if seed_ is not None:
            how = f"the hash is of the storage chain, seeded with extra_key {extra_key!r} and salt {salt!r}"
            yield Attempt(Mistake.STORAGE_CHAIN, how, sha(seed_, words))
    for text, seed in (("32 zero bytes", bytes(32)), ("the hash of nothing", sha(b""))):
        yield Attempt(
            Mistake.SEED, f"the chain starts from {text}; SGLang's starts from no prior at all", sha(seed, words)
        )
    for extra_key in known.extra_keys:
        how = f"the extra_key {extra_key!r} seeds the event chain"
        for seed in (sglang.salt_seed(extra_key), sha(extra_key.encode()), sglang.salt_seed((salt or "") + extra_key)):
            yield Attempt(Mistake.EXTRA_KEY_IN_HASH, how, sha(seed, words))


def _extra_key_slips(prior: bytes, words: bytes, salt: str | None, known: Known) -> Iterator[Attempt]:
    right = sglang.event_hash(sha(prior, words))
    for extra_key in known.extra_keys:
        how = f"the extra_key {extra_key!r} is hashed with the page"
        for body in (extra_key.encode() + words, words + extra_key.encode()):
            yield Attempt(Mistake.EXTRA_KEY_IN_HASH, how, sha(prior, body))
        how = f"the hash is namespaced by extra_key {extra_key!r}, as the dynamo format does"
        for with_salt in (salt, None):
            seed = sglang.namespace_seed(extra_key, with_salt)
            yield Attempt(Mistake.EXTRA_KEY_IN_HASH, how, _namespaced(right, seed), final=True)
    if salt is not None:
        how = f"the hash is namespaced by the salt {salt!r}, as the dynamo format does"
        yield Attempt(Mistake.NAMESPACED, how, _namespaced(right, sglang.namespace_seed(None, salt)), final=True)


def _namespaced(block_hash: int, seed: bytes | None) -> bytes:
    return sglang.namespaced_hash(block_hash, seed).to_bytes(8, "big", signed=True)


def _word_slips(prior: bytes, view: TokenView, start: int, stop: int) -> Iterator[Attempt]:
    ids = view.ints(start, stop)
    if all(token < 1 << 32 for token in ids):
        big = b"".join(token.to_bytes(4, "big") for token in ids)
        yield Attempt(Mistake.BYTE_ORDER, "the tokens are hashed as u32 big-endian", sha(prior, big))
    for order in ("little", "big"):
        wide = b"".join(token.to_bytes(8, order) for token in ids)
        how = f"the tokens are hashed as u64 {order}-endian"
        yield Attempt(Mistake.TOKEN_WIDTH, how, sha(prior, wide))
        yield Attempt(Mistake.TOKEN_WIDTH, f"{how} behind ff, as if one did not fit in u32", sha(prior, b"\xff", wide))


def _bigram_slips(prior: bytes, event: BlockStored, view: TokenView, start: int, stop: int) -> Iterator[Attempt]:
    if view.paired:
        pairs: list[Any] = list(event.token_ids[start:stop])
        first, second = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
        flat = {
            "only the first token of each pair is hashed": first,
            "only the second token of each pair is hashed": second,
            "the window t0 … tn is hashed, each token once": [*first, second[-1]],
            "all first tokens are hashed before all second ones": first + second,
            "the tokens of each pair are swapped": [token for pair in pairs for token in (pair[1], pair[0])],
        }
        for how, ids in flat.items():
            words = TokenView(ids).packed(0, len(ids))
            if words is not None:
                yield Attempt(Mistake.BIGRAM, how, sha(prior, words))
    elif stop < view.length:
        ids = view.ints(start, stop + 1)
        words = TokenView(ids, bigram=True).packed(0, stop - start)
        if words is not None:
            yield Attempt(Mistake.BIGRAM, "the tokens are hashed as pairs, and published plain", sha(prior, words))


def _page_slips(prior: bytes, view: TokenView, start: int, size: int) -> Iterator[Attempt]:
    running = hashlib.sha256(prior)
    for stop in range(start, min(view.length, start + LONGEST_PAGE)):
        words = view.packed(stop, stop + 1)
        if words is None:
            return
        running.update(words)
        if stop + 1 - start != size:
            how = f"the hash covers {stop + 1 - start} positions, and the event says block_size {size}"
            yield Attempt(Mistake.PAGE_SIZE, how, running.copy().digest())
    for fine in divisors(size):
        if start + size <= view.length:
            page = [view.ints(at, at + fine) for at in range(start, start + size, fine)]
            digest = prior
            for ids in page:
                words = TokenView(ids).packed(0, len(ids))
                digest = sha(digest, words or b"")
            yield Attempt(
                Mistake.PAGE_SIZE, f"the block is hashed in pages of {fine}, and the last one published", digest
            )
