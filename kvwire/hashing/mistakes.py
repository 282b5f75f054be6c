"""The mistakes that `kvwire.hashing.diagnose` tells apart, and what a producer that makes one would have hashed."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from enum import Enum

__all__ = ["Attempt", "Mistake", "divisors", "sha"]


class Mistake(str, Enum):
    """The mistakes that are told apart."""

    SALT_NOT_APPLIED = "salt-not-applied"
    SALT_NOT_PUBLISHED = "salt-not-published"
    EXTRA_KEY_IN_HASH = "extra-key-in-event-hash"
    STORAGE_CHAIN = "storage-chain-published"
    NAMESPACED = "namespaced-in-default-format"
    NOT_NAMESPACED = "not-namespaced-in-dynamo-format"
    BYTE_ORDER = "byte-order"
    WRONG_BYTES = "wrong-8-bytes"
    WRONG_SIGN = "wrong-sign"
    TOKEN_WIDTH = "token-width"
    PAGE_SIZE = "page-size"
    BIGRAM = "bigram-flattening"
    SEED = "wrong-seed"
    NOT_CHAINED = "not-chained"
    PARENT_FORM = "parent-form"
    EXTRA_KEYS_NOT_APPLIED = "extra-keys-not-applied"
    EXTRA_KEYS_FORM = "extra-keys-form"
    LOOKAHEAD = "lookahead-not-applied"
    SERIALISATION = "serialisation"
    ALGORITHM = "other-algorithm"
    OTHER_RECIPE = "other-recipe"


@dataclass(frozen=True)
class Attempt:
    """What a mistaken producer would have hashed.

    Attributes:
        mistake: None for the right digest, of which the wrong part may have been published.
        text: the mistake in a sentence.
        digest: of the block.
        final: the digest's first 8 bytes are the published form whatever the recipe; no further mistake is tried on top.
    """

    mistake: Mistake | None
    text: str
    digest: bytes
    final: bool = False


def sha(*parts: bytes | memoryview) -> bytes:
    """SHA-256 of the parts, one after the other."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.digest()


def divisors(size: int) -> list[int]:
    """The smaller page sizes that fill a page of this size."""
    return [fine for fine in range(1, size) if size % fine == 0]
