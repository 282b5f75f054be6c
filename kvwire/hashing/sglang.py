"""SGLang's page hashes, byte for byte (spec/hashing.md, "SGLang").

A digest is 32 bytes. Continuing a chain needs the whole digest of the page before, not the 8-byte hash that events
carry. Sizes are in positions: tokens, or pairs on EAGLE (bigram) pages.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator
from typing import Any

from kvwire.hashing import python_tuple
from kvwire.hashing.errors import HashInputError
from kvwire.hashing.forms import as_int64, first_bytes
from kvwire.hashing.tokens import TokenView, check, pages

__all__ = [
    "event_hash",
    "event_prior",
    "namespace_seed",
    "namespaced_hash",
    "page_digests",
    "page_key",
    "python_page_hashes",
    "salt_seed",
    "storage_keys",
    "storage_seed",
]

DIGEST_SIZE = 32
SALT_TAG = b"sglang-cache-salt-v1\x00"
STORAGE_TAG = b"sglang-cache-namespace-v1"
NAMESPACE_TAG = b"sglang-kv-event-namespace-v1"
WIDE_TAG = b"\xff"
STRETCH = 4096
"""Positions that are packed at once, at least one page: a long prompt is never held a second time."""


def page_digests(tokens: Any, page_size: int, *, prior: bytes | None = None, bigram: bool = False) -> Iterator[bytes]:
    """The digest of each page: SHA-256 of the prior digest, if any, and the page's tokens as u32 little-endian.

    A page with a token beyond u32 is hashed as prior, the byte ff, and its tokens as u64 little-endian (SGLang 0.5.23;
    earlier releases refuse such tokens). This is decided page by page. Splitting the tokens at any page boundary and
    going on from the last digest gives the same digests.

    Args:
        tokens: see `kvwire.hashing.tokens.TokenView`; pairs are recognised.
        page_size: positions per page; the last page may have fewer.
        prior: digest of the page before, or a seed (`salt_seed`, `storage_seed`); None at an unsalted root.
        bigram: the tokens are plain and are to be hashed as EAGLE pairs: n + 1 tokens make n positions.

    Raises:
        HashInputError: a token that is none, or a prior that is not 32 bytes.
    """
    view = TokenView(tokens, bigram=bigram)
    if prior is not None and len(prior) != DIGEST_SIZE:
        raise HashInputError(
            f"the prior is {len(prior)} bytes; a chain continues from the whole digest of {DIGEST_SIZE} bytes, "
            "which the 8-byte event hash does not determine"
        )
    digest = prior or b""
    sha256 = hashlib.sha256
    width = page_size * (8 if view.paired else 4)
    # Many pages are packed at once; where one of them holds a token that does not fit or is none, page by page.
    for first, last in pages(view.length, page_size * max(1, STRETCH // max(1, page_size))):
        words = _stretch(view, first, last)
        if words is None:
            for found in _one_by_one(view, page_size, first, last, digest):
                digest = found
                yield digest
            continue
        whole = len(words) - len(words) % width
        for (page,) in struct.iter_unpack(f"{width}s", words[:whole]):
            digest = sha256(digest + page).digest()
            yield digest
        if whole < len(words):
            yield sha256(digest + words[whole:]).digest()


def _stretch(view: TokenView, first: int, last: int) -> bytes | None:
    try:
        words = view.packed(first, last)
    except HashInputError:
        return None
    return None if words is None else bytes(words)


def _one_by_one(view: TokenView, page_size: int, first: int, last: int, digest: bytes) -> Iterator[bytes]:
    for start in range(first, last, page_size):
        stop = min(start + page_size, last)
        words = view.packed(start, stop)
        page = digest + words if words is not None else digest + WIDE_TAG + view.wide(start, stop)
        digest = hashlib.sha256(page).digest()
        yield digest


def event_hash(digest: bytes) -> int:
    """What events carry of a digest: its first 8 bytes, big-endian, as signed int64."""
    return first_bytes(digest)


def page_key(digest: bytes) -> str:
    """SGLang's own key of a page: 64 lower-case hex digits, whose first 16 are the event hash."""
    return digest.hex()


def salt_seed(cache_salt: str) -> bytes:
    """The prior of a salted event chain (SGLang >= 0.5.18)."""
    return hashlib.sha256(SALT_TAG + cache_salt.encode()).digest()


def event_prior(cache_salt: str | None) -> bytes | None:
    """The prior of an event chain's first page. An empty salt is none: SGLang turns it into None on arrival."""
    return salt_seed(cache_salt) if cache_salt else None


def storage_seed(extra_key: str | None, cache_salt: str | None) -> bytes | None:
    """The prior of a storage (HiCache L3) chain's first page (SGLang >= 0.5.20); None without either.

    None and the empty string differ here, and so do ("a", "bc") and ("ab", "c").
    """
    return _parts_seed(STORAGE_TAG, extra_key, cache_salt)


def storage_keys(
    tokens: Any,
    page_size: int,
    *,
    extra_key: str | None = None,
    cache_salt: str | None = None,
    prior: bytes | None = None,
    bigram: bool = False,
) -> Iterator[str]:
    """The storage key (64 hex digits) of each page. ``prior`` continues a chain, whose seed is then not applied again.

    Without extra_key and salt this is the event chain; otherwise the two chains share no digest.
    """
    seed = storage_seed(extra_key, cache_salt) if prior is None else prior
    return (digest.hex() for digest in page_digests(tokens, page_size, prior=seed, bigram=bigram))


def namespace_seed(extra_key: str | None, cache_salt: str | None) -> bytes | None:
    """The seed of namespaced block hashes; None without either, and then hashes are unchanged.

    ``"format": "dynamo"`` (SGLang >= 0.5.22) uses the request's extra_key and salt. The default format of 0.5.23 uses
    the extra_key of requests with a LoRA adapter, and never the salt, which its chain already holds.
    """
    return _parts_seed(NAMESPACE_TAG, extra_key, cache_salt)


def namespaced_hash(block_hash: int, seed: bytes | None) -> int:
    """A published hash moved into a namespace: int64 of SHA-256(seed, the hash as 8 bytes big-endian signed).

    Applies alike to ``block_hashes``, ``parent_block_hash`` and the hashes of removals. The chain itself goes on from the
    digests, never from this value.
    """
    if seed is None:
        return as_int64(block_hash)
    return first_bytes(hashlib.sha256(seed + as_int64(block_hash).to_bytes(8, "big", signed=True)).digest())


def python_page_hashes(tokens: Any, page_size: int, *, bigram: bool = False) -> Iterator[int]:
    """Event hashes of SGLang 0.4.6.post5 to 0.5.5.post3: CPython's hash of each page's tuple, not chained.

    Equal pages at different depths share a hash. A root page's parent is `PYTHON_ROOT_PARENT`, never nil.
    """
    view = TokenView(tokens, bigram=bigram)
    for start, stop in pages(view.length, page_size):
        ids = view.ints(start, stop)
        check(ids, start)
        yield python_tuple.hash_page(ids, paired=view.paired)


PYTHON_ROOT_PARENT = python_tuple.hash_page(())
"""Parent of a root page in the releases that did not chain: the hash of the empty tuple, 5740354900026072187."""


def _parts_seed(tag: bytes, *parts: str | None) -> bytes | None:
    if all(part is None for part in parts):
        return None
    seed = hashlib.sha256(tag)
    for part in parts:
        if part is None:
            seed.update(b"\x00")
        else:
            text = part.encode()
            seed.update(b"\x01" + len(text).to_bytes(8, "little") + text)
    return seed.digest()
