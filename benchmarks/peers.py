"""The peers: msgspec with the exact structs of a release, msgpack, ormsgpack.

The structs are the release's own, out of the published package (`kvwire_conform.releases`). Where that cannot be had, and
for the dialect that no release emits, they are `kvwire.dialects.wire`'s, which tests hold to be the same.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Union

import msgspec

from kvwire import Encoder, EventBatch, get_dialect
from kvwire.dialects import Dialect, wire
from kvwire_conform.releases import ENGINES, ReleaseError, ReleaseStructs, fetch_module, load_structs
from kvwire_conform.releases_exec import registered


@dataclass(frozen=True)
class Exact:
    """msgspec with the structs of one dialect.

    Attributes:
        source: whose structs they are.
        decode: payload to the release's batch.
        encode: the release's batch to payload.
        release: the release's classes; None where they are kvwire's twins of them.
    """

    source: str
    decode: Callable[[bytes], Any]
    encode: Callable[[Any], bytes]
    release: ReleaseStructs | None


@functools.cache
def exact(dialect: str) -> Exact:
    """msgspec with the exact structs of the newest release of a dialect."""
    found = get_dialect(dialect)
    encode = msgspec.msgpack.Encoder().encode
    structs = _release(found)
    if structs is None:
        return Exact("kvwire.dialects.wire", msgspec.msgpack.Decoder(_twin(found)).decode, encode, None)
    with registered(structs.module):
        decode = msgspec.msgpack.Decoder(structs.batch_class).decode
    return Exact(structs.source.release, decode, encode, structs)


def exact_batch(dialect: str, batch: EventBatch) -> Any:
    """A neutral batch in the structs that `exact` encodes."""
    peer, encoder = exact(dialect), Encoder(dialect)
    if peer.release is not None:
        return peer.decode(encoder.encode(batch))
    events = [encoder.to_wire(event, index) for index, event in enumerate(batch.events)]
    if "dp_rank" in encoder.dialect.batch_fields:
        return wire.Batch3(batch.ts, events, batch.dp_rank)
    return wire.Batch2(batch.ts, events)


def _release(dialect: Dialect) -> ReleaseStructs | None:
    for span in reversed(dialect.releases):
        for engine in ENGINES:
            if engine == span.engine:
                try:
                    return load_structs(fetch_module(engine, span.last))
                except ReleaseError:
                    continue
    return None


def _twin(dialect: Dialect) -> type[msgspec.Struct]:
    kinds = tuple(layout.struct for layout in dialect.events.values())
    fields: list[Any] = [("ts", float), ("events", list[Union[kinds]])]  # type: ignore[valid-type]  # noqa: UP007
    if "dp_rank" in dialect.batch_fields:
        fields.append(("dp_rank", int | None, None))
    return msgspec.defstruct("ExactBatch", fields, array_like=True, gc=False)


def untyped_decoders() -> dict[str, Callable[[bytes], Any]]:
    """The general MessagePack libraries that are installed: bytes to lists and dicts."""
    found: dict[str, Callable[[bytes], Any]] = {}
    for name in ("msgpack", "ormsgpack"):
        module = _optional(name)
        if module is not None:
            found[name] = module.unpackb
    return found


def untyped_encoders() -> dict[str, Callable[[Any], bytes]]:
    """The same, lists and dicts to bytes."""
    found: dict[str, Callable[[Any], bytes]] = {}
    for name in ("msgpack", "ormsgpack"):
        module = _optional(name)
        if module is not None:
            found[name] = module.packb
    return found


def _optional(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        return None
