"""Reading msgpack one level at a time, without building what is below it.

msgspec does the decoding; this adds what it cannot do: keep the elements of one value as bytes, every key of a map
included (duplicates too), and say in words what a value is.
"""

from __future__ import annotations

from typing import Any

import msgspec

from kvwire.errors import LimitError, MalformedError, TruncatedError, WireError

MAX_FIELDS = 256
"""Slots or keys that one event may have; no dialect has more than 16."""

_list_of_raw = msgspec.msgpack.Decoder(list[msgspec.Raw])
_raw = msgspec.msgpack.Decoder(msgspec.Raw)
_anything = msgspec.msgpack.Decoder()

_FIXED = {
    0xC0: "nil",
    0xC1: "the reserved byte c1",
    0xC2: "bool",
    0xC3: "bool",
    **dict.fromkeys((0xC4, 0xC5, 0xC6), "bin"),
    **dict.fromkeys((0xC7, 0xC8, 0xC9, *range(0xD4, 0xD9)), "ext"),
    **dict.fromkeys((0xCA, 0xCB), "float"),
    **dict.fromkeys(range(0xCC, 0xD4), "int"),
    **dict.fromkeys((0xD9, 0xDA, 0xDB), "str"),
    **dict.fromkeys((0xDC, 0xDD), "array"),
    **dict.fromkeys((0xDE, 0xDF), "map"),
}


def refuse_ext(code: int, data: memoryview) -> Any:
    """An ``ext_hook`` for decoders of this wire, which has no extension types. Raises msgspec.ValidationError."""
    raise msgspec.ValidationError(f"Expected no extension type, got ext {code}")


def kind_of(first: int) -> str:
    """The msgpack type that a first byte announces: nil, bool, int, float, str, bin, ext, array, map."""
    if first < 0x80 or first >= 0xE0:
        return "int"
    if first < 0x90:
        return "map"
    if first < 0xA0:
        return "array"
    if first < 0xC0:
        return "str"
    return _FIXED[first]


def header(value: bytes) -> tuple[int, int]:
    """Element or pair count and header width of an array or map whose bytes are whole."""
    first = value[0]
    if first < 0xA0:
        return first & 0x0F, 1
    if first in (0xDC, 0xDE):
        return int.from_bytes(value[1:3], "big"), 3
    return int.from_bytes(value[1:5], "big"), 5


def check_whole(payload: bytes) -> None:
    """Raise unless the payload is one msgpack value from the first byte to the last.

    Raises:
        TruncatedError, MalformedError, LimitError: with what is wrong; strings are not looked into.
    """
    if not payload:
        raise TruncatedError(
            "the payload is empty", code="empty", expected="an array [ts, events, dp_rank]", got="0 bytes"
        )
    try:
        _raw.decode(payload)
    except RecursionError:
        raise LimitError(
            "values are nested too deep", code="too-deep", expected="at most 6 levels", got="hundreds of levels"
        ) from None
    except msgspec.DecodeError as error:
        raise _as_wire_error(payload, str(error)) from error
    except (MemoryError, OverflowError) as error:
        raise LimitError("a length in the payload is beyond what can be held", code="too-long") from error


def _as_wire_error(payload: bytes, words: str) -> WireError:
    if "truncated" in words:
        return TruncatedError(
            "the payload ends inside a value",
            expected="the rest of it",
            got=f"{len(payload)} bytes",
            hint="a length in it may lie, or the message was cut on its way",
        )
    if "trailing" in words:
        return MalformedError(
            "bytes follow the batch",
            code="trailing-bytes",
            expected="nothing after the batch",
            got=words,
            hint="one message carries one batch",
        )
    return MalformedError("not well-formed msgpack", expected="one msgpack value", got=words)


def elements(value: bytes, limit: int = MAX_FIELDS) -> list[bytes]:
    """The elements of an array, each as its bytes. Raises LimitError when there are more than ``limit``."""
    count, _ = header(value)
    if count > limit:
        raise LimitError("too many elements", code="too-many", expected=f"at most {limit}", got=str(count))
    return [bytes(item) for item in _list_of_raw.decode(value)]


def element(value: bytes, index: int) -> bytes:
    """One element of an array, as its bytes. Raises IndexError when there is none."""
    return bytes(_list_of_raw.decode(value)[index])


def pairs(value: bytes, limit: int = MAX_FIELDS) -> list[tuple[bytes, bytes]]:
    """Every key and value of a map, in wire order and duplicates included. Raises LimitError beyond ``limit``."""
    count, width = header(value)
    if count > limit:
        raise LimitError("too many keys", code="too-many", expected=f"at most {limit}", got=str(count))
    flat = _list_of_raw.decode(b"\xdd" + (2 * count).to_bytes(4, "big") + value[width:])
    raws = [bytes(item) for item in flat]
    return list(zip(raws[::2], raws[1::2], strict=True))


def scalar(value: bytes) -> Any:
    """The Python value of a nil, bool, int, float or str; the bytes themselves for anything else or bad UTF-8."""
    if kind_of(value[0]) in ("nil", "bool", "int", "float", "str"):
        try:
            return _anything.decode(value)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return value
    return value


def describe(value: bytes) -> str:
    """One value in words, short: ``map of 1 key (cache_salt)``, ``str 'GPU'``, ``bin of 32 bytes``."""
    kind = kind_of(value[0])
    if kind in ("nil", "bool"):
        return {0xC0: "nil", 0xC2: "false", 0xC3: "true"}[value[0]]
    if kind in ("int", "float"):
        return f"{kind} {scalar(value)}"
    if kind == "str":
        text = scalar(value)
        if isinstance(text, bytes):
            return "str that is not UTF-8"
        return f"str {text[:40]!r}" + ("…" if len(text) > 40 else "")
    if kind == "array":
        return f"array of {header(value)[0]}"
    if kind == "map":
        count, _ = header(value)
        names = [str(scalar(key)) for key, _ in pairs(value)[:4]] if 0 < count <= MAX_FIELDS else []
        listed = f" ({', '.join(names)}{', …' if count > 4 else ''})" if names else ""
        return f"map of {count} {'key' if count == 1 else 'keys'}{listed}"
    if kind == "bin":
        size = len(unwrap_bin(value))
        return f"bin of {size} byte{'' if size == 1 else 's'}"
    return kind


def unwrap_bin(value: bytes) -> bytes:
    """The content of a bin."""
    return value[2 if value[0] == 0xC4 else 3 if value[0] == 0xC5 else 5 :]
