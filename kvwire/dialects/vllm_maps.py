"""vLLM's map dialects: keys by name, optional ones left out at nil (spec/dialects/)."""

from __future__ import annotations

from kvwire.dialects import wire
from kvwire.dialects.base import Framing, Releases, dialect

_SALT = (
    "extra_keys of the first block, as a string that starts with dynamo-cache-salt:; vLLM itself writes the bare salt"
)
_LORA = "key lora_name"
_TIERS = ("CPU", "GPU", "STORAGE")

VLLM_MAPS = (
    dialect(
        "vllm-map1",
        (wire.VllmMap1Stored, wire.VllmMap1Removed, wire.MapCleared),
        releases=(Releases("vllm", "0.24.0", "0.25.1", ("GPU",)),),
        salt=_SALT,
        lora=_LORA,
        summary="maps with optional extra_keys, group_idx and KV cache spec",
    ),
    dialect(
        "vllm-map2",
        (wire.VllmMap2Stored, wire.VllmMap2Removed, wire.MapCleared),
        releases=(
            Releases("vllm", "0.26.0", "0.26.0", ("CPU", "FS", "GPU", "OBJ")),
            Releases("vllm", "0.27.0", "0.28.0", _TIERS),
        ),
        framing=Framing.TOPIC_SEQ_PAYLOAD,
        salt=_SALT,
        lora=_LORA,
        summary="maps, and locality",
    ),
    dialect(
        "vllm-map3",
        (wire.VllmMap3Stored, wire.VllmMap3Removed, wire.MapCleared),
        releases=(Releases("vllm", "0.29.0", "0.29.0", _TIERS),),
        framing=Framing.TOPIC_SEQ_PAYLOAD,
        salt=_SALT,
        lora=_LORA,
        summary="maps, and ownership",
    ),
    dialect(
        "vllm-map4",
        (wire.VllmMap4Stored, wire.VllmMap3Removed, wire.MapCleared),
        releases=(Releases("vllm", "0.30.0", "0.32.0", _TIERS),),
        framing=Framing.TOPIC_SEQ_PAYLOAD,
        salt=_SALT,
        lora=_LORA,
        summary="maps, and session_id",
    ),
    dialect(
        "vllm-map5",
        (wire.VllmMap5Stored, wire.VllmMap3Removed, wire.MapCleared),
        releases=(Releases("vllm", "0.33.0", "0.33.0", _TIERS),),
        framing=Framing.TOPIC_SEQ_PAYLOAD,
        salt=_SALT,
        lora=_LORA,
        summary="maps, and lookahead_token_ids; a stored event has a map16 header",
        aliases=("vllm-map",),
    ),
)
