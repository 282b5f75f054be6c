"""What the router's own hash of a block's tokens has to be, and what another value tells about fields that it dropped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kvwire.events import BlockStored
from kvwire.hashing.dynamo import tokens_hashes
from kvwire.hashing.errors import HashInputError

__all__ = ["Readings", "readings_of", "unpaired"]

Readings = Mapping[int, tuple[str, ...]]
"""A tokens hash, and the fields that a router lost on the way to it: none for the right one."""


def readings_of(event: BlockStored, tokens: Sequence[Any], salt: str | None) -> Readings | None:
    """The tokens hashes that are possible for one block; None when its tokens have no such hash.

    Args:
        event: the block's event, for the LoRA name.
        tokens: of this block alone, plain or bigram.
        salt: the block's, its own or inherited.
    """
    plain, bigram = unpaired(tokens)
    found: dict[int, tuple[str, ...]] = {}
    ways: list[tuple[str | None, str | None, tuple[str, ...]]] = [(event.lora_name or None, salt, ())]
    ways += [(None, salt, ("lora_name",))] if event.lora_name else []
    ways += [(event.lora_name, None, ("cache_salt",))] if salt else []
    ways += [(None, None, ("lora_name", "cache_salt"))] if salt and event.lora_name else []
    try:
        for lora, namespace, lost in ways:
            (own,) = tokens_hashes(plain, len(tokens), lora_name=lora, cache_namespace=namespace, bigram=bigram)
            found.setdefault(own, lost)
    except (HashInputError, TypeError, ValueError):
        return None
    return found


def unpaired(tokens: Sequence[Any]) -> tuple[list[Any], bool]:
    """The plain tokens of a block, and whether it came as bigram pairs, whose last word is one token more."""
    if tokens and all(isinstance(token, (tuple, list)) for token in tokens):
        return [token[0] for token in tokens] + [tokens[-1][1]], True
    return list(tokens), False
