"""A testee in Python with the msgpack package: plain objects, taken apart by hand.

Three of the package's defaults do not fit this wire, and UNPACK sets them: a str that is not UTF-8 would cost the whole batch,
a map would lose one of two equal keys, and a map with a key that is no str would not be read at all.
"""

from __future__ import annotations

import base64
import json
import math
import sys
from collections.abc import Callable
from typing import Any

import msgpack  # type: ignore[import-untyped]

DIALECTS = [
    *("slot6-b2", "slot6", "slot7", "slot8", "slot8-lora", "slot9", "slot10", "slot12", "dynamo"),
    *("sglang-map1", "sglang-map2", "vllm-map1", "vllm-map2", "vllm-map3", "vllm-map4", "vllm-map5"),
]
MEDIA = ("GPU", "CPU_PINNED", "DISK", "EXTERNAL", "CPU", "STORAGE", "FS", "OBJ")
SALT_PREFIX = "dynamo-cache-salt:"


class Pairs(list[tuple[Any, Any]]):
    """A map as it stands on the wire, two equal keys and all."""


UNPACK = {
    "object_pairs_hook": Pairs,
    "strict_map_key": False,
    # Keeps bytes that are no text as lone surrogates, by which the one event that has them is found out.
    "unicode_errors": "surrogateescape",
}
UNREADABLE = (ValueError, msgpack.UnpackException, RecursionError)
"""Everything that msgpack raises for bytes that it cannot read."""


class UnreadableError(ValueError):
    """An event, or a batch, that is not of this wire."""


def expect(sound: bool, what: str, got: Any) -> None:
    if not sound:
        raise UnreadableError(f"expected {what}, got {type(got).__name__} {got!r:.60}")


def is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def is_text(value: Any) -> bool:
    return isinstance(value, str) and not any("\udc80" <= char <= "\udcff" for char in value)


def integer(value: Any) -> Any:
    expect(is_int(value), "an int", value)
    return value if abs(value) < 1 << 53 else {"int": str(value)}


def text(value: Any) -> str:
    expect(is_text(value), "a str in UTF-8", value)
    return str(value)


def block_hash(value: Any) -> str:
    """Signed and unsigned are one hash: its 64 bits."""
    if isinstance(value, bytes):
        return "bytes:" + value.hex()
    expect(is_int(value), "a block hash (int or bin)", value)
    return f"{value & 0xFFFFFFFFFFFFFFFF:016x}"


def token(value: Any) -> Any:
    if isinstance(value, list) and not isinstance(value, Pairs):
        expect(len(value) == 2, "a pair of ints", value)
        return [integer(part) for part in value]
    return text(value) if isinstance(value, str) else integer(value)


def array_of(read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def read_array(value: Any) -> Any:
        expect(isinstance(value, list) and not isinstance(value, Pairs), "an array", value)
        return [read(element) for element in value]

    return read_array


def or_nil(read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else read(value)


def extra_key(value: Any, depth: int = 4) -> Any:
    """One extra key, which may be anything but an extension type, a few levels deep."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return text(value)
    if isinstance(value, float):
        return {"float": repr(value)}
    if isinstance(value, bytes):
        return {"bytes": value.hex()}
    if depth and isinstance(value, Pairs):
        return {"map": [[extra_key(part, depth - 1) for part in pair] for pair in value]}
    if depth and isinstance(value, list):
        return [extra_key(part, depth - 1) for part in value]
    return integer(value)


FIELDS: dict[str, Callable[[Any], Any]] = {
    "block_hashes": array_of(block_hash),
    "parent_block_hash": or_nil(block_hash),
    "token_ids": lambda value: [] if value is None else array_of(token)(value),
    "block_size": lambda value: 0 if value is None else integer(value),
    "lora_id": or_nil(integer),
    "medium": or_nil(text),
    "lora_name": or_nil(text),
    "extra_keys": or_nil(array_of(or_nil(array_of(extra_key)))),
    "group_idx": or_nil(integer),
    "kv_cache_spec_kind": or_nil(text),
    "kv_cache_spec_sliding_window": or_nil(integer),
    "locality": or_nil(text),
    "ownership": or_nil(text),
    "cache_salt": or_nil(text),
    "session_id": or_nil(text),
    "lookahead_token_ids": or_nil(array_of(array_of(integer))),
}
TAIL = ("group_idx", "kv_cache_spec_kind", "kv_cache_spec_sliding_window", "locality", "ownership")
SLOTS = {
    "BlockStored": (
        *(
            "block_hashes",
            "parent_block_hash",
            "token_ids",
            "block_size",
            "lora_id",
            "medium",
            "lora_name",
            "extra_keys",
        ),
        *(*TAIL, "metadata"),
    ),
    "BlockRemoved": ("block_hashes", "medium", *TAIL),
    "AllBlocksCleared": ("ownership",),
}
KEYS = {
    "BlockStored": tuple(FIELDS),
    "BlockRemoved": SLOTS["BlockRemoved"],
    "AllBlocksCleared": SLOTS["AllBlocksCleared"],
}
REQUIRED = {
    "BlockStored": ("block_hashes", "token_ids", "block_size"),
    "BlockRemoved": ("block_hashes",),
    "AllBlocksCleared": (),
}


def read_batch(payload: bytes) -> dict[str, Any]:
    """One payload in the neutral form; raises where not even the list of events can be reached."""
    batch = msgpack.unpackb(payload, **UNPACK)
    expect(isinstance(batch, list) and not isinstance(batch, Pairs) and len(batch) > 1, "[ts, events, dp_rank]", batch)
    raw_events = batch[1]
    expect(isinstance(raw_events, list) and not isinstance(raw_events, Pairs), "an array of events", raw_events)
    # Thousands of events in no bytes are a bomb.
    expect(len(raw_events) <= max(4096, len(payload) // 8), "at least 8 bytes an event", len(raw_events))
    faults: list[str] = []
    events = []
    for index, value in enumerate(raw_events):
        try:
            event = read_event(value)
        except UNREADABLE as error:
            faults.append(f"events[{index}]: {error}")
        else:
            if event is not None:
                events.append(event)
    ts = batch[0] if is_int(batch[0]) or isinstance(batch[0], float) else math.nan
    rank = batch[2] if len(batch) > 2 and is_int(batch[2]) else None
    return {
        "ts": float(ts) if math.isfinite(ts) else None,
        "dp_rank": None if rank is None else integer(rank),
        "events": events,
        "faults": faults,
    }


def read_event(value: Any) -> dict[str, Any] | None:
    """One event in the neutral form; None for a tag that is not known."""
    if isinstance(value, bytes):
        # Some producers encode each event by itself and put the bytes into the batch.
        value = msgpack.unpackb(value, **UNPACK)
    if isinstance(value, Pairs):
        return read_map(value)
    expect(isinstance(value, list) and len(value) > 0, "an array [tag, …] or a map", value)
    return read_array(value)


def read_array(slots: list[Any]) -> dict[str, Any] | None:
    tag = text(slots[0])
    if tag not in SLOTS:
        return None
    names = SLOTS[tag][: known_slots(tag, slots)]
    for value in slots[len(names) + 1 :]:
        # Passing over a salt would make a tenant's own blocks anybody's.
        if isinstance(value, Pairs):
            salted = any(key == "cache_salt" and isinstance(salt, str) for key, salt in value)
            expect(not salted, "no salt in a slot that holds none", value)
    fields: dict[str, Any] = {}
    salts = set()
    for name, value in zip(names, slots[1:], strict=False):
        if name == "metadata" or (name == "lora_name" and isinstance(value, Pairs)):
            expect(value is None or isinstance(value, Pairs), "a metadata map", value)
            salts.add(or_nil(text)(keyed(value or Pairs()).get("cache_salt")))
        else:
            fields[name] = FIELDS[name](value)
    return neutral(tag, fields, salts)


def known_slots(tag: str, slots: list[Any]) -> int:
    """How many slots have a meaning: in lengths that no dialect has, the doubtful ones only where their type fits."""
    length = len(slots)
    if tag == "BlockStored":
        doubtful = range(12, 13) if length == 13 else range(0)
    elif tag == "BlockRemoved":
        doubtful = range(4, length if length < 8 else 4)
    else:
        # ATOM writes a medium where Dynamo has the owner.
        return 1 if length > 1 and fits("ownership", slots[1]) and slots[1] not in MEDIA else 0
    unfit = (at - 1 for at in doubtful if not fits(SLOTS[tag][at - 1], slots[at]))
    return next(unfit, len(SLOTS[tag]))


def fits(name: str, value: Any) -> bool:
    try:
        FIELDS[name](value)
    except UnreadableError:
        return False
    return True


def read_map(pairs: Pairs) -> dict[str, Any] | None:
    found = keyed(pairs)
    expect("type" in found, "a key type", list(found))
    tag = text(found["type"])
    if tag not in KEYS:
        return None
    fields = {name: FIELDS[name](found[name]) for name in KEYS[tag] if name in found}
    return neutral(tag, fields, {fields.pop("cache_salt", None)})


def keyed(pairs: Pairs) -> dict[Any, Any]:
    """A map by its keys. Two equal ones are refused: decoders disagree on which of them counts."""
    found: dict[Any, Any] = {}
    for key, value in pairs:
        key = text(key) if isinstance(key, str) else ("no text", repr(key))
        expect(key not in found, "each key once", key)
        found[key] = value
    return found


def neutral(tag: str, fields: dict[str, Any], salts: set[Any]) -> dict[str, Any]:
    """The event in JSON, where what is nil is left out."""
    for name in REQUIRED[tag]:
        expect(name in fields, name, list(fields))
    for entry in fields.get("extra_keys") or ():
        for key in entry or ():
            if isinstance(key, str) and key.startswith(SALT_PREFIX):
                salts.add(key[len(SALT_PREFIX) :])
    salts.discard(None)
    expect(len(salts) < 2, "one salt", salts)
    if salts:
        fields["cache_salt"] = salts.pop()
    return {"type": tag, **{name: value for name, value in fields.items() if value is not None}}


def main() -> None:
    """The protocol: one line of JSON for each request, until there are no more."""
    hello = {
        "protocol": 1,
        "name": "python-msgpack",
        "version": ".".join(map(str, msgpack.version)),
        "language": "Python",
        "decoder": "msgpack.unpackb",
        "dialects": DIALECTS,
    }
    print(json.dumps(hello), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = read_batch(base64.b64decode(request["payload"]))
        except UNREADABLE as error:
            answer = {"error": str(error)}
        print(json.dumps({"id": request["id"], **answer}), flush=True)


if __name__ == "__main__":
    main()
