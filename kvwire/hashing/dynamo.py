"""The Dynamo router's own hash of a block's tokens (spec/hashing.md, "Dynamo's tokens hash").

Not on this wire: the router computes it for the tokens of events and of requests alike, so that it never needs an
engine's recipe. Needs xxhash (extra ``hash``).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from kvwire.hashing.errors import HashInputError, MissingLibraryError
from kvwire.hashing.tokens import TokenView, pages

__all__ = ["SEED", "sequence_hashes", "tokens_hashes", "tokens_seed"]

SEED = 1337
_U64 = (1 << 64) - 1


@functools.cache
def _xxh3() -> Callable[..., int]:
    try:
        import xxhash
    except ImportError as error:
        raise MissingLibraryError("the Dynamo tokens hash", "xxhash") from error
    digest: Callable[..., int] = xxhash.xxh3_64_intdigest
    return digest


def tokens_seed(lora_name: str | None = None, cache_namespace: str | None = None) -> int:
    """1337 + XXH3-64(lora_name, seed 0) + XXH3-64(cache_namespace, seed 1), modulo 2**64; absent and empty parts add 0."""
    seed = SEED
    if lora_name:
        seed += _xxh3()(lora_name.encode(), 0)
    if cache_namespace:
        seed += _xxh3()(cache_namespace.encode(), 1)
    return seed & _U64


def tokens_hashes(
    tokens: Any,
    block_size: int,
    *,
    lora_name: str | None = None,
    cache_namespace: str | None = None,
    bigram: bool = False,
    mm_hashes: Sequence[Iterable[int]] = (),
) -> Iterator[int]:
    """The tokens hash of each whole block: XXH3-64 over its tokens as u32 little-endian; unsigned. Not chained.

    Args:
        tokens: plain tokens, see `kvwire.hashing.tokens.TokenView`; a tail shorter than a block has no hash.
        block_size: tokens per block.
        lora_name: name of the adapter, mixed into the seed.
        cache_namespace: the router's tenant namespace, mixed into the seed; for SGLang and vLLM the cache salt.
        bigram: EAGLE: hash windows of ``block_size + 1`` tokens, so block i also covers the first token of block i + 1.
        mm_hashes: per block the u64 hashes of its multi-modal items; appended sorted, as u64 little-endian.
    """
    view = TokenView(tokens)
    if view.paired:
        raise HashInputError("give the plain tokens and bigram=True: a window is block_size + 1 tokens, not pairs")
    xxh3, seed = _xxh3(), tokens_seed(lora_name, cache_namespace)
    overlap = 1 if bigram else 0
    for index, (start, _) in enumerate(pages(view.length, block_size)):
        stop = start + block_size + overlap
        if stop > view.length:
            return
        words = view.packed(start, stop)
        if words is None:
            raise HashInputError(f"a token of block {index} does not fit in u32, the width that this hash takes")
        items = sorted(mm_hashes[index]) if index < len(mm_hashes) else []
        yield xxh3(bytes(words) + b"".join(item.to_bytes(8, "little") for item in items), seed)


def sequence_hashes(tokens_hashes: Iterable[int], *, parent: int | None = None) -> Iterator[int]:
    """The chained hashes of a prompt: the first is its tokens hash, the next XXH3-64(parent, tokens hash; seed 1337).

    Both go in as u64 little-endian. ``parent`` is the sequence hash of the block before; None at the root.
    """
    xxh3 = _xxh3()
    for block in tokens_hashes:
        if parent is not None:
            block = xxh3(parent.to_bytes(8, "little") + block.to_bytes(8, "little"), SEED)
        yield block
        parent = block
