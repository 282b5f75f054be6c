"""vLLM's block hashes, byte for byte (spec/hashing.md, "vLLM"), releases 0.10.2 to 0.33.0.

A block's digest is ``H((parent, tokens, extra))``: the parent's whole digest or NONE_HASH at the root, the token ids as a
tuple, and None or a tuple of the block's extra keys. `sha256` and `xxhash` serialise with pickle, `sha256_cbor` and
`xxhash_cbor` with canonical CBOR. Events carry the low 64 bits unsigned, or the whole digest.
"""

from __future__ import annotations

import functools
import hashlib
import pickle
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from typing import Any

from kvwire.hashing.errors import HashInputError, MissingLibraryError, RecipeError
from kvwire.hashing.forms import last_bytes
from kvwire.hashing.tokens import TokenView, check, pages

__all__ = [
    "ALGORITHMS",
    "DEFAULT_SEED",
    "ExtraKeys",
    "block_digest",
    "block_digests",
    "digest_size",
    "external_hash",
    "hash_function",
    "none_hash",
    "with_lookahead",
    "with_tags",
]

ALGORITHMS = ("sha256", "sha256_cbor", "xxhash", "xxhash_cbor")
"""``--prefix-caching-hash-algo``; sha256 is the default. The xxhash ones exist since 0.13.0."""

DEFAULT_SEED = "vllm-none-hash"
"""The seed since 0.29.0 when PYTHONHASHSEED is unset and the algorithm is a sha256 one."""


class ExtraKeys(str, Enum):
    """How extra keys enter the hash. Events carry them bare in both."""

    BARE = "bare"
    """As published (to 0.30.0): the LoRA name, ``(identifier, offset)``, the salt, a prompt-embeddings digest."""

    TAGGED = "tagged"
    """Since 0.31.0: ``("lora", name, path)``, ``("mm", identifier, offset)``, ``("cache_salt", salt)``,
    ``("prompt_embeds", digest)``. No event carries the path."""


@functools.cache
def hash_function(algorithm: str) -> Callable[[object], bytes]:
    """The algorithm as a function from a value to a digest (see `digest_size`).

    Raises:
        RecipeError: no such algorithm. MissingLibraryError: it needs cbor2 or xxhash, and that is not installed.
    """
    if algorithm not in ALGORITHMS:
        raise RecipeError(f"vLLM has no hash algorithm {algorithm!r}; it has {', '.join(ALGORITHMS)}")
    encode = _canonical_cbor(algorithm) if algorithm.endswith("_cbor") else _pickled
    digest = _xxh3_128(algorithm) if algorithm.startswith("xxhash") else _sha256
    return lambda value: digest(encode(value))


def _pickled(value: object) -> bytes:
    # Protocol 5 is the highest of every Python that vLLM runs on; a later one would change the bytes.
    return pickle.dumps(value, protocol=5)


def _sha256(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def _canonical_cbor(algorithm: str) -> Callable[[object], bytes]:
    try:
        import cbor2
    except ImportError as error:
        raise MissingLibraryError(f"vLLM's {algorithm}", "cbor2") from error
    return functools.partial(cbor2.dumps, canonical=True)


def _xxh3_128(algorithm: str) -> Callable[[bytes], bytes]:
    try:
        import xxhash
    except ImportError as error:
        raise MissingLibraryError(f"vLLM's {algorithm}", "xxhash") from error
    digest: Callable[[bytes], bytes] = xxhash.xxh3_128_digest
    return digest


def digest_size(algorithm: str) -> int:
    """Bytes of a digest: 32 for sha256 algorithms, 16 for xxhash ones."""
    if algorithm not in ALGORITHMS:
        raise RecipeError(f"vLLM has no hash algorithm {algorithm!r}; it has {', '.join(ALGORITHMS)}")
    return 16 if algorithm.startswith("xxhash") else 32


def none_hash(algorithm: str, seed: str | None = None) -> bytes:
    """NONE_HASH, the parent of every root block: H(seed), the seed as a string.

    Args:
        seed: PYTHONHASHSEED of the engine's process, e.g. ``"0"``. None stands for an engine without it: since 0.29.0 the
            sha256 algorithms then use `DEFAULT_SEED`. Before, and with the xxhash ones in every release, such an engine
            draws a random NONE_HASH that nobody else can know.

    Raises:
        RecipeError: no seed, and an algorithm that then draws one at random.
    """
    if seed is None:
        if algorithm.startswith("xxhash"):
            raise RecipeError(
                f"vLLM draws a random NONE_HASH for {algorithm} when PYTHONHASHSEED is unset; set it in the engine's "
                "environment and give it here as the seed"
            )
        seed = DEFAULT_SEED
    return hash_function(algorithm)(seed)


def block_digest(
    algorithm: str, parent: bytes, token_ids: Sequence[int], extra: tuple[Any, ...] | None = None
) -> bytes:
    """The digest of one block. ``parent`` is the digest of the block before, or NONE_HASH."""
    return hash_function(algorithm)((parent, tuple(token_ids), extra))


def block_digests(
    tokens: Any,
    block_size: int,
    *,
    algorithm: str,
    parent: bytes,
    extras: Sequence[tuple[Any, ...] | None] = (),
) -> Iterator[bytes]:
    """The digest of each whole block, root side first; a tail shorter than a block has none.

    Args:
        tokens: see `kvwire.hashing.tokens.TokenView`.
        block_size: tokens per block.
        algorithm: one of `ALGORITHMS`.
        parent: digest of the block before, or `none_hash` at the root.
        extras: per block what enters as its extra keys, see `with_tags` and `with_lookahead`; missing ones are None.
    """
    view = TokenView(tokens)
    if view.paired:
        raise HashInputError("vLLM hashes plain tokens; pairs are SGLang's EAGLE pages")
    # A NONE_HASH drawn at random has 32 bytes whatever the algorithm.
    if len(parent) not in (digest_size(algorithm), 32):
        raise HashInputError(
            f"the parent is {len(parent)} bytes; a {algorithm} chain continues from the whole digest of "
            f"{digest_size(algorithm)} bytes, which the 64-bit event hash does not determine"
        )
    digest = hash_function(algorithm)
    for index, (start, stop) in enumerate(pages(view.length, block_size)):
        if stop - start < block_size:
            return
        ids = view.ints(start, stop)
        check(ids, start)
        parent = digest((parent, tuple(ids), extras[index] if index < len(extras) else None))
        yield parent


def external_hash(digest: bytes) -> int:
    """What events carry by default: the low 64 bits of the big-endian digest, unsigned.

    With ``VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES=0`` they carry the digest itself.
    """
    return last_bytes(digest)


def with_tags(
    published: Sequence[Any] | None, *, lora_name: str | None = None, lora_path: str | None = None
) -> tuple[Any, ...] | None:
    """A block's published extra keys as `ExtraKeys.TAGGED` hashes them.

    Args:
        published: the block's entry of the event's ``extra_keys``: in this order the LoRA name, ``[identifier, offset]``
            pairs, the salt, the prompt-embeddings digest, each only if the block has it.
        lora_name: the event's ``lora_name``; tells an adapter's name from a salt.
        lora_path: path of that adapter, as the engine was given it.

    Raises:
        HashInputError: an element of no known form, or an adapter without its path.
    """
    if published is None:
        return None
    keys: list[Any] = []
    for position, key in enumerate(published):
        if isinstance(key, str) and position == 0 and key == lora_name:
            if lora_path is None:
                raise HashInputError(
                    f"the path of the adapter {lora_name!r} is hashed since vLLM 0.31.0; give lora_path"
                )
            keys.append(("lora", key, lora_path))
        elif isinstance(key, str):
            keys.append(("cache_salt", key))
        elif isinstance(key, (bytes, bytearray)):
            keys.append(("prompt_embeds", bytes(key)))
        elif isinstance(key, (list, tuple)) and len(key) == 2:
            keys.append(("mm", *key))
        else:
            raise HashInputError(f"extra key {position} is {key!r:.60}; expected a str, [identifier, offset] or bytes")
    return tuple(keys)


def bare(published: Sequence[Any] | None) -> tuple[Any, ...] | None:
    """A block's published extra keys as `ExtraKeys.BARE` hashes them: the same, with tuples where msgpack made lists."""
    if published is None:
        return None
    return tuple(tuple(key) if isinstance(key, list) else key for key in published)


def with_lookahead(extra: tuple[Any, ...] | None, lookahead: Sequence[int]) -> tuple[Any, ...]:
    """Extra keys of an engine that hashes tokens after the block (0.33.0, speculative decoding): (extra, *lookahead)."""
    return (extra, *lookahead)
