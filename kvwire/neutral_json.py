"""The neutral JSON form of a batch: what golden vectors, testees and dumps write (spec/schema/neutral.schema.json).

::

    {"ts": 1.5, "dp_rank": 0, "events": [
        {"type": "BlockStored", "block_hashes": ["7e3f112233445566"], "token_ids": [1, 2], "block_size": 2}]}

Fields that are None are left out. JSON readers lose integers past 53 bits and have no bytes, so:

- a block hash is a string: the 16 lower-case hex digits of its 64 bits, or ``bytes:`` and the hex of the digest;
- an integer beyond ±(2**53 - 1) is ``{"int": "18446744073709551615"}``;
- inside ``extra_keys``, bytes are ``{"bytes": hex}``, a float is ``{"float": "1.5"}`` and a map ``{"map": [[key, value]]}``;
- a bigram token is ``[t0, t1]``;
- ``ts`` is null where it could not be read (a batch decoded with ``on_error="collect"`` alone has that).

The hex of a hash does not say whether the producer wrote it signed or unsigned; `hash_form` tells, and `from_json`
takes it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NoReturn

from kvwire.errors import InvalidEventError
from kvwire.events import AllBlocksCleared, BlockRemoved, BlockStored, EventBatch
from kvwire.hashing.forms import as_hex, as_int64

__all__ = ["HashForm", "event_from_json", "event_to_json", "from_json", "hash_form", "to_json"]

HashForm = Literal["signed", "unsigned", "bytes"]

_SAFE = (1 << 53) - 1
_LOWEST, _HIGHEST = -(1 << 63), (1 << 64) - 1
_HASH = re.compile(r"[0-9a-f]{16}")
_HEX = re.compile(r"(?:[0-9a-f]{2})*")
_FLOAT = re.compile(r"-?(?:[0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?|inf)|nan", re.IGNORECASE)
_DECIMAL = re.compile(r"-?(?:0|[1-9][0-9]{0,19})")
_MAX_DEPTH = 64

_CLASSES: Mapping[str, type[Any]] = {
    "BlockStored": BlockStored,
    "BlockRemoved": BlockRemoved,
    "AllBlocksCleared": AllBlocksCleared,
}
_REQUIRED: Mapping[str, tuple[str, ...]] = {
    "BlockStored": ("block_hashes", "token_ids", "block_size"),
    "BlockRemoved": ("block_hashes",),
    "AllBlocksCleared": (),
}


def to_json(batch: EventBatch) -> dict[str, Any]:
    """A batch as JSON-ready values.

    Raises:
        InvalidEventError: something that is not neutral, with its path (``events[2].token_ids[0]``).
    """
    if not isinstance(batch, EventBatch):
        raise InvalidEventError(f"expected an EventBatch, got {type(batch).__name__}")
    return {
        "ts": _ts_out(batch.ts),
        "dp_rank": None if batch.dp_rank is None else _int_out(batch.dp_rank, "dp_rank"),
        "events": [event_to_json(event, f"events[{index}]") for index, event in enumerate(batch.events)],
    }


def from_json(data: Any, *, signed: bool = False) -> EventBatch:
    """A batch out of its JSON form, as a JSON reader gives it.

    Args:
        data: the parsed JSON.
        signed: give block hashes as signed integers (``hash_form`` is ``signed``) instead of unsigned ones.

    Raises:
        InvalidEventError: anything that is not of the form, with its path.
    """
    _object(data, "the batch", required=("ts", "dp_rank", "events"), optional=())
    events = _list(data["events"], "events")
    return EventBatch(
        _ts_in(data["ts"]),
        [event_from_json(item, signed=signed, path=f"events[{index}]") for index, item in enumerate(events)],
        None if data["dp_rank"] is None else _int_in(data["dp_rank"], "dp_rank"),
    )


def hash_form(batch: EventBatch) -> HashForm | None:
    """How a batch writes its block hashes; None when it has none, or none that tells (all below 2**63), or mixes forms."""
    found: set[HashForm] = set()
    for event in batch.events:
        for value in (*getattr(event, "block_hashes", ()), getattr(event, "parent_block_hash", None)):
            if isinstance(value, bytes):
                found.add("bytes")
            elif value is not None and value < 0:
                found.add("signed")
            elif value is not None and value >> 63:
                found.add("unsigned")
    return found.pop() if len(found) == 1 else None


def event_to_json(event: Any, path: str = "event") -> dict[str, Any]:
    """One event as JSON-ready values. Raises InvalidEventError; ``path`` is what it calls the event."""
    tag = getattr(event, "tag", None)
    if not isinstance(tag, str) or not isinstance(event, _CLASSES.get(tag, ())):
        _refuse(path, "a neutral event", event)
    found: dict[str, Any] = {"type": tag}
    for name in _CLASSES[tag].__struct_fields__:
        value = getattr(event, name)
        if value is not None:
            found[name] = _FIELDS[name][0](value, f"{path}.{name}")
    return found


def event_from_json(data: Any, *, signed: bool = False, path: str = "event") -> Any:
    """One event out of its JSON form; the arguments and errors of `from_json`."""
    if not isinstance(data, Mapping):
        _refuse(path, "an object", data)
    tag = data.get("type")
    if not isinstance(tag, str) or tag not in _CLASSES:
        _refuse(f"{path}.type", "BlockStored, BlockRemoved or AllBlocksCleared", tag)
    kind = _CLASSES[tag]
    required = _REQUIRED[tag]
    optional = tuple(name for name in kind.__struct_fields__ if name not in required)
    _object(data, path, required=("type", *required), optional=optional)
    values: dict[str, Any] = {"parent_block_hash": None} if tag == "BlockStored" else {}
    for name, value in data.items():
        if name != "type":
            _, read = _FIELDS[name]
            where = f"{path}.{name}"
            values[name] = read(value, where, signed) if name in _HASHED else read(value, where)
    return kind(**values)


def _refuse(path: str, expected: str, got: Any) -> NoReturn:
    try:
        words = f"{type(got).__name__} {got!r:.60}"
    except RecursionError:
        words = type(got).__name__
    raise InvalidEventError(f"{path}: expected {expected}, got {words}")


def _object(data: Any, path: str, *, required: tuple[str, ...], optional: tuple[str, ...]) -> None:
    if not isinstance(data, Mapping):
        _refuse(path, "an object", data)
    for name in required:
        if name not in data:
            raise InvalidEventError(f"{path}: has no {name}")
    for name in data:
        if name not in required and name not in optional:
            known = ", ".join(required + optional)
            raise InvalidEventError(f"{path}: has an unknown field {name!r:.60}; known: {known}")


def _list(value: Any, path: str) -> Sequence[Any]:
    if not isinstance(value, (list, tuple)):
        _refuse(path, "an array", value)
    return value


def _ts_out(ts: Any) -> float | None:
    if isinstance(ts, bool) or not isinstance(ts, (int, float)) or math.isinf(ts):
        _refuse("ts", "a finite number of seconds", ts)
    return None if math.isnan(ts) else float(ts)


def _ts_in(ts: Any) -> float:
    if ts is None:
        return math.nan
    try:
        if isinstance(ts, (int, float)) and not isinstance(ts, bool) and math.isfinite(ts):
            return float(ts)
    except OverflowError:
        pass
    _refuse("ts", "a finite number of seconds, or null", ts)


def _int_out(value: Any, path: str) -> Any:
    if isinstance(value, bool) or not isinstance(value, int) or not _LOWEST <= value <= _HIGHEST:
        _refuse(path, "an integer of 64 bits", value)
    return value if -_SAFE <= value <= _SAFE else {"int": str(value)}


def _int_in(value: Any, path: str) -> int:
    if isinstance(value, Mapping) and set(value) == {"int"}:
        digits = value["int"]
        if isinstance(digits, str) and _DECIMAL.fullmatch(digits):
            value = int(digits)
    if isinstance(value, bool) or not isinstance(value, int) or not _LOWEST <= value <= _HIGHEST:
        _refuse(path, 'an integer of 64 bits, or {"int": decimal}', value)
    return value


def _str(value: Any, path: str) -> str:
    if not isinstance(value, str):
        _refuse(path, "a string", value)
    return value


def _hash_out(value: Any, path: str) -> str:
    if isinstance(value, (bytes, bytearray, memoryview)):
        return f"bytes:{bytes(value).hex()}"
    if isinstance(value, bool) or not isinstance(value, int) or not _LOWEST <= value <= _HIGHEST:
        _refuse(path, "a block hash: an integer of 64 bits, or bytes", value)
    return as_hex(value)


def _hash_in(value: Any, path: str, signed: bool = False) -> int | bytes:
    if isinstance(value, str):
        if _HASH.fullmatch(value):
            number = int(value, 16)
            return as_int64(number) if signed else number
        if value.startswith("bytes:") and _HEX.fullmatch(value, len("bytes:")):
            return bytes.fromhex(value[len("bytes:") :])
    _refuse(path, "a block hash: 16 lower-case hex digits, or bytes: and hex", value)


def _token_out(value: Any, path: str) -> Any:
    if isinstance(value, str):
        return value
    if isinstance(value, (list, tuple)):
        if len(value) != 2:
            _refuse(path, "a pair of token ids", value)
        return [_int_out(part, path) for part in value]
    return _int_out(value, path)


def _token_in(value: Any, path: str) -> Any:
    if isinstance(value, str):
        return value
    if isinstance(value, (list, tuple)):
        if len(value) != 2:
            _refuse(path, "a pair of token ids", value)
        return tuple(_int_in(part, path) for part in value)
    return _int_in(value, path)


def _key_out(value: Any, path: str, depth: int = 0) -> Any:
    if depth > _MAX_DEPTH:
        _refuse(path, f"at most {_MAX_DEPTH} levels", value)
    if value is None or isinstance(value, (str, bool)):
        return value
    if isinstance(value, (bytes, bytearray, memoryview)):
        return {"bytes": bytes(value).hex()}
    if isinstance(value, float):
        return {"float": repr(value)}
    if isinstance(value, (list, tuple)):
        return [_key_out(item, f"{path}[{index}]", depth + 1) for index, item in enumerate(value)]
    if isinstance(value, Mapping):
        pairs = ((_key_out(k, path, depth + 1), _key_out(v, f"{path}[{k!r:.40}]", depth + 1)) for k, v in value.items())
        return {"map": [list(pair) for pair in pairs]}
    if isinstance(value, int):
        return _int_out(value, path)
    _refuse(path, "a str, int, float, bool, bytes, nil, array or map", value)


def _key_in(value: Any, path: str, depth: int = 0) -> Any:
    if depth > _MAX_DEPTH:
        _refuse(path, f"at most {_MAX_DEPTH} levels", value)
    if value is None or isinstance(value, (str, bool)):
        return value
    if isinstance(value, (list, tuple)):
        return [_key_in(item, f"{path}[{index}]", depth + 1) for index, item in enumerate(value)]
    if isinstance(value, Mapping) and len(value) == 1:
        ((kind, inner),) = value.items()
        if kind == "bytes" and isinstance(inner, str) and _HEX.fullmatch(inner):
            return bytes.fromhex(inner)
        if kind == "float" and isinstance(inner, str):
            if not _FLOAT.fullmatch(inner):
                _refuse(path, "a float in decimal", inner)
            return float(inner)
        if kind == "map":
            pairs = [_pair_in(pair, path, depth + 1) for pair in _list(inner, path)]
            found = dict(pairs)
            if len(found) < len(pairs):
                _refuse(path, "each key of a map once", inner)
            return found
    if isinstance(value, int) or (isinstance(value, Mapping) and set(value) == {"int"}):
        return _int_in(value, path)
    _refuse(path, 'a string, integer, boolean, null, array, or {"bytes"|"int"|"float"|"map": …}', value)


def _pair_in(pair: Any, path: str, depth: int) -> tuple[Any, Any]:
    if len(_list(pair, path)) != 2:
        _refuse(path, "a pair of key and value", pair)
    key = _hashable(_key_in(pair[0], path, depth))
    try:
        hash(key)
    except TypeError:
        _refuse(path, "a key that is no map", pair[0])
    return key, _key_in(pair[1], path, depth)


def _hashable(key: Any) -> Any:
    return tuple(map(_hashable, key)) if isinstance(key, list) else key


Convert = Callable[..., Any]


def _each(convert: Convert) -> Convert:
    def convert_all(value: Any, path: str, *args: Any) -> list[Any]:
        return [convert(item, f"{path}[{index}]", *args) for index, item in enumerate(_list(value, path))]

    return convert_all


def _or_none(convert: Convert) -> Convert:
    def convert_or_none(value: Any, path: str) -> Any:
        return None if value is None else convert(value, path)

    return convert_or_none


_INT = (_int_out, _int_in)
_STR = (_str, _str)
_HASHED = frozenset(("block_hashes", "parent_block_hash"))
_FIELDS: Mapping[str, tuple[Convert, Convert]] = {
    "block_hashes": (_each(_hash_out), _each(_hash_in)),
    "parent_block_hash": (_hash_out, _hash_in),
    "token_ids": (_each(_token_out), _each(_token_in)),
    "block_size": _INT,
    "lora_id": _INT,
    "medium": _STR,
    "lora_name": _STR,
    "extra_keys": (_each(_or_none(_each(_key_out))), _each(_or_none(_each(_key_in)))),
    "group_idx": _INT,
    "kv_cache_spec_kind": _STR,
    "kv_cache_spec_sliding_window": _INT,
    "locality": _STR,
    "ownership": _STR,
    "cache_salt": _STR,
    "session_id": _STR,
    "lookahead_token_ids": (_each(_each(_int_out)), _each(_each(_int_in))),
}
