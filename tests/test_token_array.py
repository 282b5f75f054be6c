"""Token ids in a buffer: from a list, and straight from bytes."""

from __future__ import annotations

from array import array
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kvwire
from kvwire import BlockStored, Decoder, InvalidEventError, WireError


def readings(tokens: Any) -> list[BlockStored]:
    """An event built by hand, one decoded, and one whose tokens are still bytes."""
    payload = msgspec.msgpack.encode([1.5, [["BlockStored", [1], None, tokens, 1]], 0])
    lazy = Decoder(skip_tokens=True).decode(payload).events[0]
    return [BlockStored([1], None, tokens, 1), kvwire.decode(payload).events[0], lazy]


@given(
    st.lists(
        st.one_of(st.integers(0, (1 << 32) - 1), st.sampled_from([0, 127, 128, 255, 256, 65535, 65536])), max_size=40
    )
)
def test_plain_ids(tokens: list[int]) -> None:
    for event in readings(tokens):
        found = event.token_array()
        assert (type(found), found.typecode) == (array, "I")
        assert found.tolist() == tokens == event.token_ids


@given(st.lists(st.tuples(st.integers(0, (1 << 32) - 1), st.integers(0, 1 << 17)), max_size=20))
def test_pairs_stand_one_number_after_the_other(tokens: list[tuple[int, int]]) -> None:
    for event in readings(tokens):
        assert event.token_array().tolist() == [number for pair in tokens for number in pair]


@pytest.mark.parametrize(
    ("tokens", "at"),
    [([1, -1], 1), ([1 << 32], 0), ([1, 2, "text"], 2), ([(1, 2), 3], 0), ([3, (1, 2)], 1), ([(1, -2)], 0)],
    ids=str,
)
def test_what_does_not_fit_is_named(tokens: list[Any], at: int) -> None:
    for event in readings(tokens):
        with pytest.raises(InvalidEventError, match=rf"token_ids\[{at}\]"):
            event.token_array()
        assert event.token_ids == tokens


@pytest.mark.parametrize(
    "head", [b"\xcc\x05", b"\xcd\x00\x05", b"\xcf" + bytes(7) + b"\x05", b"\xd0\x05", b"\xd3" + bytes(7) + b"\x05"]
)
def test_long_forms_of_an_int(head: bytes) -> None:
    start = msgspec.msgpack.encode([1.5, [["BlockStored", [1], None]]])[:-1].replace(b"\x93\xabBlock", b"\x95\xabBlock")
    payload = start + b"\xc0\x92" + head + head + b"\x02"
    for skip in (False, True):
        assert Decoder(skip_tokens=skip).decode(payload).events[0].token_array().tolist() == [5, 5]


def test_wrong_tokens_are_told_when_they_are_asked_for() -> None:
    payload = msgspec.msgpack.encode([1.5, [["BlockStored", [1], None, [1.5], 1]], 0])
    event = Decoder(skip_tokens=True).decode(payload).events[0]
    with pytest.raises(WireError) as caught:
        event.token_array()
    assert caught.value.key == "token_ids"


def test_placeholders_have_none() -> None:
    payload = msgspec.msgpack.encode([1.5, [["BlockStored", [1], 0, None, None]], 0])
    for skip in (False, True):
        assert Decoder(skip_tokens=skip).decode(payload).events[0].token_array() == array("I")
