"""The array dialects: slots by position, nil-padded (spec/dialects/)."""

from __future__ import annotations

from kvwire.dialects import wire
from kvwire.dialects.base import Framing, Releases, dialect

_NO_SALT = "nowhere"
_PREFIX = (
    "extra_keys of the first block, as a string that starts with dynamo-cache-salt:; vLLM itself writes the bare salt"
)

ARRAYS = (
    dialect(
        "slot6-b2",
        (wire.Slot6Stored, wire.Slot2Removed, wire.Slot1Cleared),
        batch_fields=("ts", "events"),
        releases=(Releases("sglang", "0.4.6.post5", "0.4.6.post5", ()), Releases("vllm", "0.9.0", "0.9.0.1", ())),
        salt=_NO_SALT,
        lora="nowhere; lora_id is a load-order number",
        summary="6 slots, no medium, and a batch of two elements",
    ),
    dialect(
        "slot6",
        (wire.Slot6Stored, wire.Slot2Removed, wire.Slot1Cleared),
        releases=(Releases("sglang", "0.4.7", "0.5.8.post1", ()), Releases("vllm", "0.9.1", "0.10.1.1", ())),
        salt=_NO_SALT,
        lora="nowhere; lora_id is a load-order number",
        summary="6 slots, no medium",
        aliases=("6-slot",),
    ),
    dialect(
        "slot7",
        (wire.Slot7Stored, wire.Slot3Removed, wire.Slot1Cleared),
        releases=(
            Releases("sglang", "0.5.9", "0.5.10.post1", ("CPU_PINNED", "GPU")),
            Releases("sglang", "0.5.11", "0.5.17", ("CPU_PINNED", "DISK", "EXTERNAL", "GPU")),
            Releases("vllm", "0.10.2", "0.13.0", ("GPU",)),
        ),
        salt=_NO_SALT,
        lora="nowhere; lora_id is a load-order number",
        summary="7 slots, the last is the medium",
        aliases=("7-slot",),
    ),
    dialect(
        "slot8",
        (wire.Slot8Stored, wire.Slot3Removed, wire.Slot1Cleared),
        releases=(Releases("sglang", "0.5.18", "0.5.19", ("CPU_PINNED", "DISK", "EXTERNAL", "GPU")),),
        salt="slot 7, a metadata map, on salted events only",
        lora="nowhere",
        summary="7 slots, and on salted events an eighth: the metadata map",
        aliases=("8-slot",),
    ),
    dialect(
        "slot8-lora",
        (wire.Slot8LoraStored, wire.Slot3Removed, wire.Slot1Cleared),
        releases=(Releases("vllm", "0.14.0", "0.16.0", ("GPU",)),),
        salt=_NO_SALT,
        lora="slot 7",
        summary="8 slots, the last is the LoRA name",
    ),
    dialect(
        "slot9",
        (wire.Slot9Stored, wire.Slot3Removed, wire.Slot1Cleared),
        releases=(Releases("vllm", "0.17.0", "0.19.1", ("GPU",)),),
        salt=_PREFIX,
        lora="slot 7",
        summary="9 slots, the last is extra_keys",
        aliases=("9-slot",),
    ),
    dialect(
        "slot10",
        (wire.Slot10Stored, wire.Slot4Removed, wire.Slot1Cleared),
        releases=(Releases("vllm", "0.20.0", "0.21.0", ("GPU",)),),
        salt=_PREFIX,
        lora="slot 7",
        summary="10 slots, the last is group_idx",
        aliases=("10-slot",),
    ),
    dialect(
        "slot12",
        (wire.Slot12Stored, wire.Slot4Removed, wire.Slot1Cleared),
        releases=(Releases("vllm", "0.22.0", "0.23.0", ("GPU",)),),
        salt=_PREFIX,
        lora="slot 7",
        summary="12 slots, the last two describe the KV cache group",
        aliases=("12-slot",),
    ),
    dialect(
        "dynamo",
        (wire.DynamoStored, wire.DynamoRemoved, wire.DynamoCleared),
        framing=Framing.TOPIC_SEQ_PAYLOAD,
        salt="twice: extra_keys of the first block with the prefix dynamo-cache-salt:, and slot 14, a metadata map, "
        "on salted events only",
        lora="slot 7",
        summary="14 slots, and on salted events a fifteenth; the positional layout that the Dynamo router reads",
        aliases=("14-slot",),
    ),
)
