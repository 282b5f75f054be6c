"""Writing msgpack by hand, in every width that the format has: what an encoder never writes, a reader may still meet.

Each function gives the bytes of one value. Without a width they are the shortest, as msgspec and every engine write them.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Literal

IntWidth = Literal["u8", "u16", "u32", "u64", "i8", "i16", "i32", "i64"]

NIL = b"\xc0"
FALSE = b"\xc2"
TRUE = b"\xc3"
RESERVED = b"\xc1"
"""The one byte that msgpack never uses."""

_INTS: dict[IntWidth, tuple[int, str]] = {
    "u8": (0xCC, ">B"),
    "u16": (0xCD, ">H"),
    "u32": (0xCE, ">I"),
    "u64": (0xCF, ">Q"),
    "i8": (0xD0, ">b"),
    "i16": (0xD1, ">h"),
    "i32": (0xD2, ">i"),
    "i64": (0xD3, ">q"),
}


def integer(value: int, width: IntWidth | None = None) -> bytes:
    """An integer; ``width`` names the header, e.g. ``u64``."""
    if width is None:
        if -32 <= value < 128:
            return struct.pack(">b", value) if value < 0 else bytes([value])
        signs: tuple[IntWidth, ...] = ("u8", "u16", "u32", "u64") if value >= 0 else ("i8", "i16", "i32", "i64")
        limits = (8, 16, 32, 64) if value >= 0 else (7, 15, 31, 63)
        fitting = [name for name, bits in zip(signs, limits, strict=True) if -(1 << bits) <= value < 1 << bits]
        width = fitting[0]
    first, form = _INTS[width]
    return bytes([first]) + struct.pack(form, value)


def float64(value: float) -> bytes:
    """A float of 8 bytes."""
    return b"\xcb" + struct.pack(">d", value)


def float32(value: float) -> bytes:
    """A float of 4 bytes."""
    return b"\xca" + struct.pack(">f", value)


def text(value: str | bytes, width: Literal[8, 16, 32] | None = None) -> bytes:
    """A str; bytes stand for text that is not UTF-8."""
    data = value.encode() if isinstance(value, str) else value
    if width is None and len(data) < 32:
        return bytes([0xA0 + len(data)]) + data
    return _sized(data, {8: 0xD9, 16: 0xDA, 32: 0xDB}, width)


def binary(data: bytes, width: Literal[8, 16, 32] | None = None) -> bytes:
    """A bin."""
    return _sized(data, {8: 0xC4, 16: 0xC5, 32: 0xC6}, width)


def ext(code: int, data: bytes) -> bytes:
    """An extension value in its shortest form; code -1 is msgpack's own timestamp."""
    fixed = {1: 0xD4, 2: 0xD5, 4: 0xD6, 8: 0xD7, 16: 0xD8}.get(len(data))
    head = bytes([fixed]) if fixed is not None else bytes([0xC7, len(data)])
    return head + struct.pack(">b", code) + data


def array(items: Sequence[bytes], width: Literal[16, 32] | None = None) -> bytes:
    """An array of values that are bytes already."""
    return _counted(len(items), 0x90, {16: 0xDC, 32: 0xDD}, width) + b"".join(items)


def mapping(pairs: Sequence[tuple[bytes, bytes]], width: Literal[16, 32] | None = None) -> bytes:
    """A map of keys and values that are bytes already, in this order, repeated keys and all."""
    return _counted(len(pairs), 0x80, {16: 0xDE, 32: 0xDF}, width) + b"".join(key + value for key, value in pairs)


def _sized(data: bytes, firsts: dict[int, int], width: int | None) -> bytes:
    if width is None:
        width = 8 if len(data) < 1 << 8 else 16 if len(data) < 1 << 16 else 32
    return bytes([firsts[width]]) + len(data).to_bytes(width // 8, "big") + data


def _counted(count: int, fixed: int, firsts: dict[int, int], width: int | None) -> bytes:
    if width is None:
        if count < 16:
            return bytes([fixed + count])
        width = 16 if count < 1 << 16 else 32
    return bytes([firsts[width]]) + count.to_bytes(width // 8, "big")
