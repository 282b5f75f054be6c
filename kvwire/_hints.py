"""What a deviation most likely means and what to do: the causes seen in real engines and routers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def batch(payload: bytes) -> str:
    """For a payload that is not an array."""
    first = payload[0]
    if first == 0x7B or first == 0x5B:
        return "it starts like JSON text; this wire is msgpack"
    return "a batch is an array in every dialect, also where its events are maps"


def arity(count: int, wanted: int | None) -> str:
    """For a batch of the wrong length."""
    if wanted == 2 and count == 3:
        return "the third element is the DP rank, which every dialect but slot6-b2 sends"
    if wanted == 3 and count == 2:
        return "slot6-b2 (SGLang 0.4.6.post5, vLLM 0.9.0) and hand-written producers send no DP rank"
    return ""


def event(kind: str) -> str:
    """For an event that is no container."""
    if kind == "bin":
        return "llm-d's file-system backend wraps each event in a bin"
    return ""


def encoding(wanted: str) -> str:
    """For a map event where arrays are expected, and the other way round."""
    if wanted == "array":
        return (
            "vLLM >= 0.24.0 and SGLang >= 0.5.20 send maps; a decoder for arrays reads nothing from them. "
            "Decode with dialect=None, or name the map dialect"
        )
    return (
        "vLLM <= 0.23.0 and SGLang <= 0.5.19 send arrays; a decoder for maps reads nothing from them. "
        "Decode with dialect=None, or name the array dialect"
    )


def extra_slot(slot: int, kind: str) -> str:
    """For a slot past the end of the dialect."""
    if kind == "map" and slot == 7:
        return (
            "slot 7 is a map: that is how slot8 (SGLang 0.5.18, 0.5.19) carries cache_salt; ignoring it mixes tenants"
        )
    if kind == "map":
        return f"slot {slot} is a map with a salt, as dynamo has it at slot 14; ignoring it mixes tenants"
    if kind == "str" and slot == 7:
        return "slot 7 is a str: that is how slot8-lora and later carry lora_name"
    return ""


def metadata(slot: int, kind: str) -> str:
    """For a metadata slot that holds something else."""
    if slot == 7 and kind in ("str", "nil"):
        return f"slot 7 is {'a str' if kind == 'str' else 'nil'}: that is how slot8-lora and later carry lora_name"
    return ""


def short(count: int) -> str:
    """For an array event that stops early."""
    if count == 5:
        return "TokenSpeed sends 5 slots, without lora_id"
    return "hand-written producers stop early; the engines pad with nil"


def no_type(keys: Mapping[Any, Any]) -> str:
    """For a map event without a tag."""
    if "event_type" in keys:
        return "Mooncake's master sends event_type; it adds type only with its legacy compatibility flag"
    return ""


def extra_key(key: Any) -> str:
    """For an unknown key of a map event."""
    known = {
        "mm_keys": "TensorRT-LLM identifies images here; a router that ignores it takes all images for one",
        "block_mm_infos": "Dynamo's own producers identify images here",
        "metadata": "slot8 calls the salt's map metadata, but in arrays only",
        "lora_name": "sglang-map2 and the vLLM maps carry it",
        "cache_salt": "the SGLang maps carry it; a reader that ignores it mixes tenants",
    }
    return known.get(key, "a newer or a foreign producer") if isinstance(key, str) else "keys are strings on this wire"


def missing_key(name: str) -> str:
    """For a required key that is not there."""
    if name in ("lora_name", "medium"):
        return "SGLang's maps leave it out at nil; vLLM always writes it"
    if name == "lora_id":
        return "llm-d's simulator leaves it out at nil; the engines always write it"
    return ""


def wrong_type(name: str, slot: int | None, kind: str, words: str) -> str:
    """For a value of the wrong type."""
    if name == "lora_name" and slot == 7 and kind == "map":
        return (
            "slot 7 is a map: that is how slot8 (SGLang 0.5.18, 0.5.19) carries cache_salt; "
            "a decoder that expects lora_name there loses the batch"
        )
    if name == "extra_keys" and kind == "int":
        return "group_idx follows extra_keys; a producer that leaves a slot out moves every later one"
    if name in ("block_hashes", "parent_block_hash") and ("str" in words or kind == "str"):
        return "hashes are ints or bins; decimal or hex strings are another system's form"
    if name == "medium" and kind == "int":
        return "the slot before it, lora_id, may be missing"
    return ""
