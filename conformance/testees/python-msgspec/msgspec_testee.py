"""A testee in Python with msgspec: structs written out by hand, as an engine has them.

The batch and its events are taken apart as `msgspec.Raw` first, so that an event that cannot be read costs no other one;
each event is then decoded into the struct of its shape, array or map. Events of the two shapes may stand side by side.
"""

from __future__ import annotations

import base64
import json
import math
import sys
from typing import Any

import msgspec
from msgspec import Raw, Struct
from msgspec.msgpack import Decoder

DIALECTS = [
    *("slot6-b2", "slot6", "slot7", "slot8", "slot8-lora", "slot9", "slot10", "slot12", "dynamo"),
    *("sglang-map1", "sglang-map2", "vllm-map1", "vllm-map2", "vllm-map3", "vllm-map4", "vllm-map5"),
]
MEDIA = ("GPU", "CPU_PINNED", "DISK", "EXTERNAL", "CPU", "STORAGE", "FS", "OBJ")
SALT_PREFIX = "dynamo-cache-salt:"
UNREADABLE = (msgspec.MsgspecError, ValueError, RecursionError)

Hash = int | bytes
Token = int | str | tuple[int, int]
ExtraKeys = list[list[Any] | None] | None


class Metadata(Struct):
    """What SGLang puts in slot 7, and Dynamo in slot 14."""

    cache_salt: str | None = None


class StoredArray(Struct, array_like=True, tag="BlockStored"):
    """The longest layout; a shorter one ends earlier."""

    block_hashes: list[Hash]
    parent_block_hash: Hash | None
    token_ids: list[Token] | None
    block_size: int | None
    lora_id: int | None = None
    medium: str | None = None
    lora_name: str | Metadata | None = None
    extra_keys: ExtraKeys = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None
    locality: str | None = None
    ownership: str | None = None
    metadata: Metadata | None = None


class RemovedArray(Struct, array_like=True, tag="BlockRemoved"):
    block_hashes: list[Hash]
    medium: str | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None
    locality: str | None = None
    ownership: str | None = None


class ClearedArray(Struct, array_like=True, tag="AllBlocksCleared"):
    ownership: str | None = None


class StoredMap(Struct, tag_field="type", tag="BlockStored"):
    block_hashes: list[Hash]
    token_ids: list[Token] | None
    block_size: int | None
    parent_block_hash: Hash | None = None
    lora_id: int | None = None
    medium: str | None = None
    lora_name: str | None = None
    extra_keys: ExtraKeys = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None
    locality: str | None = None
    ownership: str | None = None
    cache_salt: str | None = None
    session_id: str | None = None
    lookahead_token_ids: list[list[int]] | None = None


class RemovedMap(Struct, tag_field="type", tag="BlockRemoved"):
    block_hashes: list[Hash]
    medium: str | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None
    locality: str | None = None
    ownership: str | None = None


class ClearedMap(Struct, tag_field="type", tag="AllBlocksCleared"):
    ownership: str | None = None


ARRAYS: dict[str, Decoder[Any]] = {
    "BlockStored": Decoder(StoredArray),
    "BlockRemoved": Decoder(RemovedArray),
    "AllBlocksCleared": Decoder(ClearedArray),
}
MAPS: dict[str, Decoder[Any]] = {
    "BlockStored": Decoder(StoredMap),
    "BlockRemoved": Decoder(RemovedMap),
    "AllBlocksCleared": Decoder(ClearedMap),
}
ELEMENTS = Decoder(list[Raw])
PAIRS = Decoder(dict[Any, Raw])
TEXT = Decoder(str)
NIL = Raw(b"\xc0")
TEXT_OR_NIL = Decoder(str | None)
INT_OR_NIL = Decoder(int | None)
NUMBER = Decoder(float)


class UnreadableError(ValueError):
    """An event, or a batch, that is not of this wire."""


def is_array(raw: bytes) -> bool:
    return 0x90 <= raw[0] < 0xA0 or raw[0] in (0xDC, 0xDD)


def is_map(raw: bytes) -> bool:
    return 0x80 <= raw[0] < 0x90 or raw[0] in (0xDE, 0xDF)


def is_bin(raw: bytes) -> bool:
    return raw[0] in (0xC4, 0xC5, 0xC6)


def count_of(raw: bytes) -> int:
    """What the header of an array or map announces."""
    if raw[0] < 0xA0:
        return raw[0] & 0x0F
    return int.from_bytes(raw[1:3] if raw[0] in (0xDC, 0xDE) else raw[1:5], "big")


def elements_of(raw: bytes) -> list[bytes]:
    """An array's elements, each as its bytes."""
    return [bytes(element) for element in ELEMENTS.decode(raw)]


def pairs_of(raw: bytes) -> dict[Any, Raw]:
    """A map's values as bytes. msgspec keeps the last of two equal keys, so the header has to tell that there were two."""
    found = PAIRS.decode(raw)
    if len(found) != count_of(raw):
        raise UnreadableError("a key stands twice")
    return found


def read_batch(payload: bytes) -> dict[str, Any]:
    """One payload in the neutral form; raises where not even the list of events can be reached."""
    parts = elements_of(payload)
    if len(parts) < 2:
        raise UnreadableError("a batch has ts and events")
    faults: list[str] = []
    events = []
    for index, raw in enumerate(events_of(parts[1])):
        try:
            event = read_event(raw)
        except UNREADABLE as error:
            faults.append(f"events[{index}]: {error}")
        else:
            if event is not None:
                events.append(event)
    ts = optional(NUMBER, parts[0], faults)
    if ts is not None and not math.isfinite(ts):
        ts = None
    rank = optional(INT_OR_NIL, parts[2], faults) if len(parts) > 2 else None
    return {"ts": ts, "dp_rank": rank, "events": events, "faults": faults}


def events_of(raw: bytes) -> list[bytes]:
    """The events, unless there are thousands of them in no bytes: a bomb."""
    if is_array(raw) and count_of(raw) > 4096 and count_of(raw) * 8 > len(raw):
        raise UnreadableError("far more events than bytes to hold them")
    return elements_of(raw)


def optional(decoder: Decoder[Any], raw: bytes, faults: list[str]) -> Any:
    try:
        return decoder.decode(raw)
    except UNREADABLE as error:
        faults.append(str(error))
        return None


def read_event(raw: bytes) -> dict[str, Any] | None:
    """One event in the neutral form; None for a tag that is not known."""
    if is_bin(raw):
        # Some producers encode each event by itself and put the bytes into the batch.
        raw = msgspec.msgpack.decode(raw, type=bytes)
        msgspec.msgpack.decode(raw, type=Raw)
    if is_array(raw):
        return read_array(elements_of(raw))
    if is_map(raw):
        return read_map(pairs_of(raw))
    raise UnreadableError("an event is an array or a map")


def read_array(slots: list[bytes]) -> dict[str, Any] | None:
    if not slots:
        raise UnreadableError("an event has a tag")
    tag = TEXT.decode(slots[0])
    if tag not in ARRAYS:
        return None
    known = known_slots(tag, slots)
    for slot in slots[known:]:
        # Passing over a salt would make a tenant's own blocks anybody's.
        if is_map(slot) and fits(TEXT, PAIRS.decode(slot).get("cache_salt", NIL)):
            raise UnreadableError("a salt in a slot that holds none")
    for slot in slots[1:known]:
        if is_map(slot):
            pairs_of(slot)
    event = ARRAYS[tag].decode(msgspec.msgpack.encode([Raw(slot) for slot in slots[:known]]))
    fields = msgspec.structs.asdict(event)
    if tag == "BlockStored":
        holders = [fields.pop("metadata")]
        if isinstance(event.lora_name, Metadata):
            holders.append(fields.pop("lora_name"))
        fields["cache_salt"] = one_salt(holder.cache_salt for holder in holders if holder is not None)
    return neutral(tag, fields)


def known_slots(tag: str, slots: list[bytes]) -> int:
    """How many slots have a meaning: in lengths that no dialect has, the doubtful ones only where their type fits."""
    length = len(slots)
    if tag == "BlockStored":
        return 12 if length == 13 and not fits(TEXT_OR_NIL, slots[12]) else min(length, 15)
    if tag == "BlockRemoved":
        decoders: dict[int, Decoder[Any]] = {4: TEXT_OR_NIL, 5: INT_OR_NIL, 6: TEXT_OR_NIL}
        doubtful = [at for at, decoder in decoders.items() if at < length < 8 and not fits(decoder, slots[at])]
        return min([*doubtful, length, 8])
    # ATOM writes a medium where Dynamo has the owner.
    owned = length > 1 and fits(TEXT_OR_NIL, slots[1]) and TEXT_OR_NIL.decode(slots[1]) not in MEDIA
    return 2 if owned else 1


def fits(decoder: Decoder[Any], raw: bytes | Raw) -> bool:
    try:
        decoder.decode(raw)
    except UNREADABLE:
        return False
    return True


def read_map(pairs: dict[Any, Raw]) -> dict[str, Any] | None:
    if "type" not in pairs:
        raise UnreadableError("an event has a type")
    tag = TEXT.decode(pairs["type"])
    if tag not in MAPS:
        return None
    # Keys that are not strings are for no struct to see.
    named = {key: value for key, value in pairs.items() if isinstance(key, str)}
    return neutral(tag, msgspec.structs.asdict(MAPS[tag].decode(msgspec.msgpack.encode(named))))


def one_salt(found: Any) -> str | None:
    """The salt that several places agree on."""
    salts = {salt for salt in found if salt is not None}
    if len(salts) > 1:
        raise UnreadableError("two salts in one event")
    return salts.pop() if salts else None


def neutral(tag: str, fields: dict[str, Any]) -> dict[str, Any]:
    """The event in JSON: what is nil is left out, and hashes are strings."""
    if tag == "BlockStored":
        prefixed = (
            key[len(SALT_PREFIX) :]
            for entry in fields["extra_keys"] or ()
            for key in entry or ()
            if isinstance(key, str) and key.startswith(SALT_PREFIX)
        )
        fields["cache_salt"] = one_salt([fields["cache_salt"], *prefixed])
        fields["token_ids"] = [token_json(token) for token in fields["token_ids"] or ()]
        fields["block_size"] = fields["block_size"] or 0
        if fields["parent_block_hash"] is not None:
            fields["parent_block_hash"] = hash_json(fields["parent_block_hash"])
        if fields["extra_keys"] is not None:
            fields["extra_keys"] = [entry and [key_json(key) for key in entry] for entry in fields["extra_keys"]]
    if "block_hashes" in fields:
        fields["block_hashes"] = [hash_json(value) for value in fields["block_hashes"]]
    for name, value in fields.items():
        if isinstance(value, int):
            fields[name] = int_json(value)
    return {"type": tag, **{name: value for name, value in fields.items() if value is not None}}


def hash_json(value: Hash) -> str:
    """Signed and unsigned are one hash: its 64 bits."""
    return "bytes:" + value.hex() if isinstance(value, bytes) else f"{value & 0xFFFFFFFFFFFFFFFF:016x}"


def int_json(value: int) -> Any:
    return value if abs(value) < 1 << 53 else {"int": str(value)}


def token_json(token: Token) -> Any:
    if isinstance(token, tuple):
        return [int_json(part) for part in token]
    return token if isinstance(token, str) else int_json(token)


def key_json(key: Any, depth: int = 4) -> Any:
    if key is None or isinstance(key, (str, bool)):
        return key
    if isinstance(key, int):
        return int_json(key)
    if isinstance(key, float):
        return {"float": repr(key)}
    if isinstance(key, bytes):
        return {"bytes": key.hex()}
    if depth and isinstance(key, (list, tuple)):
        return [key_json(part, depth - 1) for part in key]
    if depth and isinstance(key, dict):
        return {"map": [[key_json(part, depth - 1) for part in pair] for pair in key.items()]}
    raise UnreadableError(f"an extra key is a {type(key).__name__}, or nested too deep")


def main() -> None:
    """The protocol: one line of JSON for each request, until there are no more."""
    hello = {
        "protocol": 1,
        "name": "python-msgspec",
        "version": msgspec.__version__,
        "language": "Python",
        "decoder": "msgspec.msgpack.Decoder of typed structs",
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
