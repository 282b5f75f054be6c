"""Token ids in one buffer of 32-bit numbers."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from itertools import chain
from typing import Any

from kvwire._native import extension
from kvwire.errors import InvalidEventError

_ext = extension("decode")


def from_wire(tokens: Any) -> array[int] | None:
    """The array of tokens that are still the msgpack bytes of a list; None where the list has to be made to tell."""
    numbers = None if _ext is None else _ext.token_bytes(tokens)
    return None if numbers is None else array("I", numbers)


def from_values(tokens: Iterable[Any]) -> array[int]:
    """The array of a list of ints, or of pairs of ints one number after the other.

    Raises:
        InvalidEventError: a token that is neither, or that is negative or beyond 32 bits; or pairs among ints.
    """
    held = list(tokens)
    paired = bool(held) and all(isinstance(token, (tuple, list)) and len(token) == 2 for token in held)
    try:
        return array("I", chain.from_iterable(held) if paired else held)
    except (TypeError, OverflowError, ValueError) as error:
        raise _refusal(held, paired) from error


def _refusal(tokens: list[Any], paired: bool) -> InvalidEventError:
    for index, token in enumerate(tokens):
        try:
            array("I", token if paired else (token,))
        except (TypeError, OverflowError, ValueError):
            what = "pairs of numbers of 32 bits" if paired else "numbers of 32 bits"
            return InvalidEventError(f"token_ids[{index}] is {token!r:.80}, but token_array holds {what}, unsigned")
    return InvalidEventError("token_array holds numbers of 32 bits")
