"""The fast half of strict reading: the compiled decoder told a dialect, and each dialect's own structs as a decoder."""

from __future__ import annotations

import functools
import math
import operator
from typing import Any

import msgspec

from kvwire import _decode
from kvwire import _fast as fast
from kvwire._msgpack import refuse_ext
from kvwire.dialects import DIALECTS, Encoding


def _decoder(dialect_id: str) -> msgspec.msgpack.Decoder[Any]:
    dialect = DIALECTS[dialect_id]
    events: Any = functools.reduce(operator.or_, (layout.struct for layout in dialect.events.values()))
    fields: list[Any] = [("ts", float), ("events", list[events])]
    if "dp_rank" in dialect.batch_fields:
        fields.append(("dp_rank", int | None))
    batch = msgspec.defstruct("_ExactBatch", fields, array_like=True, gc=False, forbid_unknown_fields=True)
    return msgspec.msgpack.Decoder(batch, ext_hook=refuse_ext)


@functools.cache
def _structs(dialect_id: str) -> Any:
    return _decoder(dialect_id).decode


@functools.cache
def _compiled(dialect_id: str) -> _decode.Decode | None:
    return _decode.compiled(DIALECTS[dialect_id], strict=True, skip_tokens=True)


def surely_conforms(payload: bytes, dialect_id: str) -> bool:
    """Whether a payload is exactly of a dialect, as far as its structs tell.

    True is final. False may only mean that the structs cannot judge it (two salts, say): strict reading by
    `kvwire._walk` has the last word.
    """
    compiled = _compiled(dialect_id)
    if compiled is not None and compiled(payload) is not None:
        return True
    if len(payload) < 2 or payload[1] not in (0xCA, 0xCB):
        return False
    try:
        batch = _structs(dialect_id)(payload)
        if DIALECTS[dialect_id].encoding is Encoding.MAP:
            sound = fast.keys_are_unique(payload) and fast.settle(payload, fast.map_decode(payload).events)
        else:
            sound = fast.settle(payload, fast.array_decode(payload).events)
    except fast.REFUSED:
        return False
    return sound and math.isfinite(batch.ts)
