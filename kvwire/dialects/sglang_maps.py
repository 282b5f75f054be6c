"""SGLang's map dialects: keys by name, optional ones left out at nil (spec/dialects/)."""

from __future__ import annotations

from kvwire.dialects import wire
from kvwire.dialects.base import Framing, Releases, dialect

_MEDIA = ("CPU_PINNED", "DISK", "EXTERNAL", "GPU")

SGLANG_MAPS = (
    dialect(
        "sglang-map1",
        (wire.SglangMap1Stored, wire.SglangMapRemoved, wire.MapCleared),
        releases=(Releases("sglang", "0.5.20", "0.5.21", _MEDIA),),
        salt="key cache_salt",
        lora="nowhere",
        summary="maps with optional medium, cache_salt and session_id",
    ),
    dialect(
        "sglang-map2",
        (wire.SglangMap2Stored, wire.SglangMapRemoved, wire.MapCleared),
        releases=(Releases("sglang", "0.5.22", "0.5.23", _MEDIA),),
        framing=Framing.TOPIC_SEQ_PAYLOAD,
        salt="key cache_salt",
        lora="key lora_name",
        summary="maps, and lora_name",
        aliases=("sglang-map",),
    ),
)
