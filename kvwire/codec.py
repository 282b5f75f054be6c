"""Bytes to neutral events and back."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, Literal

import msgspec

from kvwire import _decode, _encode
from kvwire import _fast as fast
from kvwire._exact import surely_conforms
from kvwire._fields import SALT_PREFIX, prefixed_salts
from kvwire._walk import Reading, walk
from kvwire.detection import Detection, detect
from kvwire.dialects import DIALECTS, Dialect, get_dialect, wire
from kvwire.dialects.base import METADATA, EventLayout
from kvwire.errors import InvalidEventError, LossyEncodeError, UsageError
from kvwire.events import AllBlocksCleared, BlockRemoved, BlockStored, EventBatch, PartialBatch

__all__ = ["Decoder", "Detection", "Encoder", "decode", "detect", "encode", "translate"]

OnError = Literal["raise", "collect"]
OnLoss = Literal["error", "drop"]
Payload = bytes | bytearray | memoryview

_NEUTRAL_CLASSES: dict[str, type[Any]] = {
    "BlockStored": BlockStored,
    "BlockRemoved": BlockRemoved,
    "AllBlocksCleared": AllBlocksCleared,
}


class Decoder:
    """Reads payloads; make one and keep it.

    Args:
        dialect: id, alias or release (``slot8``, ``8-slot``, ``sglang==0.5.19``) that the slots are read as; None reads
            every dialect, each event as the dialect that it fits.
        strict: accept exactly that dialect: nothing missing, nothing extra, no unknown tag.
        skip_tokens: leave token ids as bytes until an event's ``token_ids`` is asked for.
        on_error: ``raise`` the first fault, or ``collect`` them and hand back the events that could be read.

    Raises:
        DialectError: no such dialect. UsageError: ``strict`` without a dialect.
    """

    def __init__(
        self,
        dialect: str | Dialect | None = None,
        *,
        strict: bool = False,
        skip_tokens: bool = False,
        on_error: OnError = "raise",
    ) -> None:
        if strict and dialect is None:
            raise UsageError("strict decoding needs a dialect, e.g. Decoder('slot7', strict=True)")
        if on_error not in ("raise", "collect"):
            raise UsageError(f'on_error is "raise" or "collect", not {on_error!r}')
        self.dialect = None if dialect is None else get_dialect(dialect)
        self.strict = strict
        self.skip_tokens = skip_tokens
        self.on_error: OnError = on_error
        collects = on_error == "collect"
        alone = None if not collects else _decode.compiled(self.dialect, strict=strict, skip_tokens=skip_tokens)
        self._reader = _Reader(self.dialect, strict, skip_tokens, collects, alone)
        pure = self._reader.decode
        compiled = None
        if not collects:
            compiled = _decode.compiled(self.dialect, strict=strict, skip_tokens=skip_tokens, fallback=pure)
        self._read: Callable[[Payload], EventBatch] = compiled or pure  # type: ignore[assignment]
        if type(self).decode is Decoder.decode:
            # What does the reading, without a call in between; a subclass that reads otherwise keeps its own.
            self.decode = self._read  # type: ignore[method-assign]

    def __repr__(self) -> str:
        told = self.dialect.id if self.dialect else None
        return f"Decoder({told!r}, strict={self.strict}, skip_tokens={self.skip_tokens}, on_error={self.on_error!r})"

    def decode(self, payload: Payload, /) -> EventBatch:
        """Read one payload.

        With ``on_error="collect"`` the result is a `PartialBatch`, whose ``faults`` and ``skipped`` say what is not in
        ``events``; it raises only when not even the list of events can be reached.

        Raises:
            WireError: the bytes are wrong; nothing else is raised for any bytes.
            UsageError: the payload is not a bytes-like object.
        """
        return self._read(payload)


class _Reader:
    """Reading in Python: by msgspec, and what that cannot judge by the walk. ``first`` is asked before either."""

    def __init__(
        self, dialect: Dialect | None, strict: bool, skip_tokens: bool, collects: bool, first: _decode.Decode | None
    ) -> None:
        self.dialect = dialect
        self._strict = strict
        self._collects = collects
        self._first = first or _nothing
        self._array = fast.lazy_array_decode if skip_tokens else fast.array_decode
        self._map = fast.lazy_map_decode if skip_tokens else fast.map_decode

    def decode(self, payload: Payload, /) -> EventBatch:
        """As `Decoder.decode`."""
        if type(payload) is not bytes:
            payload = _as_bytes(payload)
        batch = self._first(payload)
        if batch is None:
            batch = self._quick(payload)
            if batch is None:
                return self._thorough(payload)
        if self._collects:
            return PartialBatch(batch.ts, batch.events, batch.dp_rank)
        return batch

    def _quick(self, payload: bytes) -> EventBatch | None:
        """By msgspec. A told dialect gives a slot its meaning, which it knows only of payloads that conform to it."""
        if self.dialect is not None and not surely_conforms(payload, self.dialect.id):
            return None
        try:
            if fast.events_are_maps(payload):
                batch: EventBatch = self._map(payload)
                sound = fast.keys_are_unique(payload) and fast.settle(payload, batch.events)
            else:
                batch = self._array(payload)
                sound = fast.settle(payload, batch.events)
        except fast.REFUSED:
            return None
        if not sound or not math.isfinite(batch.ts):
            return None
        return batch

    def _thorough(self, payload: bytes) -> EventBatch:
        found = walk(payload, self.dialect, strict=self._strict, keep_going=self._collects)
        if self._collects:
            return PartialBatch(found.ts, list(found.events), found.dp_rank, found.faults, found.skipped)
        return EventBatch(found.ts, list(found.events), found.dp_rank)


def _nothing(payload: bytes) -> None:
    """Knows nothing: what is asked first where the extension is not there, or was asked already."""


def _as_bytes(payload: Any) -> bytes:
    try:
        return bytes(payload if isinstance(payload, (bytes, bytearray, memoryview)) else memoryview(payload))
    except TypeError:
        raise UsageError(f"a payload is bytes, not {type(payload).__name__}") from None
    except ValueError as error:  # a memoryview that was released
        raise UsageError(f"the payload cannot be read: {error}") from None


class Encoder:
    """Writes batches in one dialect; make one and keep it.

    Args:
        dialect: id, alias or release.
        on_loss: what to do with a field that the dialect cannot carry: raise (``error``), or leave it out (``drop``).

    Raises:
        DialectError: no such dialect.
    """

    def __init__(self, dialect: str | Dialect, on_loss: OnLoss = "error") -> None:
        if on_loss not in ("error", "drop"):
            raise UsageError(f'on_loss is "error" or "drop", not {on_loss!r}')
        self.dialect = get_dialect(dialect)
        self.on_loss: OnLoss = on_loss
        self._writers = {tag: _Writer(self.dialect, layout) for tag, layout in self.dialect.events.items()}
        self._own = tuple(layout.struct for layout in self.dialect.events.values())
        self._own_exact = {*self._own, *(writer.struct for writer in self._writers.values())}
        self._encode = msgspec.msgpack.Encoder().encode
        compiled = _encode.compiled(self.dialect, self._writers, drop=on_loss == "drop", pure=self._encode_pure)
        self._write = compiled.encode if compiled else self._encode_pure
        self._attempt = compiled.attempt if compiled else None

    def __repr__(self) -> str:
        return f"Encoder({self.dialect.id!r}, on_loss={self.on_loss!r})"

    def encode(self, batch: EventBatch) -> bytes:
        """The bytes that a release of this dialect writes for the batch.

        Events may be neutral, or this dialect's own structs.

        Raises:
            LossyEncodeError: a field that the dialect cannot carry, unless ``on_loss="drop"``.
            InvalidEventError: a value that msgpack cannot write. Types are not checked, as the releases do not.
            WireError: tokens that were left as bytes (``skip_tokens``) turn out to be wrong.
        """
        return self._write(batch)

    def _encode_pure(self, batch: EventBatch) -> bytes:
        if not isinstance(batch, EventBatch):
            raise InvalidEventError(f"expected an EventBatch, got {type(batch).__name__}")
        if not isinstance(batch.events, list | tuple):
            raise InvalidEventError(f"events is a list of events, not {type(batch.events).__name__}")
        events = [self.to_wire(event, index) for index, event in enumerate(batch.events)]
        try:
            ts = float(batch.ts)
        except (TypeError, ValueError, OverflowError):
            ts = math.nan
        if not math.isfinite(ts):
            raise InvalidEventError(f"ts is seconds since the epoch, a finite number, not {batch.ts!r}")
        framed: Any
        if "dp_rank" in self.dialect.batch_fields:
            framed = wire.Batch3(ts, events, batch.dp_rank)
        else:
            if batch.dp_rank is not None and self.on_loss == "error":
                raise LossyEncodeError(
                    "dp_rank",
                    dialect=self.dialect.id,
                    event_index=None,
                    tag=None,
                    carriers=tuple(d.id for d in DIALECTS.values() if "dp_rank" in d.batch_fields),
                )
            framed = wire.Batch2(ts, events)
        try:
            return self._encode(framed)
        except (TypeError, OverflowError, ValueError, RecursionError) as error:
            raise self._blame(events, error) from error

    def to_wire(self, event: Any, index: int = 0) -> msgspec.Struct:
        """One neutral event as this dialect's own struct. ``index`` is its position in the batch, for the errors."""
        if type(event) in self._own_exact or isinstance(event, self._own):
            own: msgspec.Struct = event
            return own
        writer = self._writers.get(getattr(event, "tag", None) or "")
        if writer is None:
            raise InvalidEventError(
                f"events[{index}] is a {type(event).__name__}, which is neither a neutral event nor one of {self.dialect.id}"
            )
        try:
            return writer.write(event, index, self.on_loss)
        except (TypeError, AttributeError) as error:
            raise InvalidEventError(f"events[{index}] cannot be written: {error}") from error

    def _blame(self, events: Sequence[msgspec.Struct], error: Exception) -> InvalidEventError:
        for index, event in enumerate(events):
            try:
                self._encode(event)
            except (TypeError, OverflowError, ValueError, RecursionError) as reason:
                return InvalidEventError(f"events[{index}] cannot be written: {reason}; {event!r:.200}")
        return InvalidEventError(f"the batch cannot be written: {error}")


class _Writer:
    """Turns neutral events of one tag into one dialect's structs."""

    def __init__(self, dialect: Dialect, layout: EventLayout) -> None:
        self.dialect = dialect
        self.tag = layout.tag
        self.names = [f.name for f in layout.fields if f.name != METADATA]
        neutral = _NEUTRAL_CLASSES[layout.tag].__struct_fields__
        self.lost = tuple(name for name in neutral if name not in layout.carried)
        self.has_metadata = len(self.names) < len(layout.fields)
        self.salted_struct = layout.struct
        self.struct: Any = _WITHOUT_METADATA[layout.struct] if self.has_metadata else layout.struct
        self.prefixes = "extra_keys" in self.names and (self.has_metadata or not dialect.salted_fields)
        self._get = _tuple_getter(self.names)
        self._get_lost = _tuple_getter(self.lost)
        self._nothing = (None,) * len(self.lost)
        self._salt_is_special = layout.tag == "BlockStored" and (self.has_metadata or self.prefixes)

    def write(self, event: Any, index: int, on_loss: OnLoss) -> msgspec.Struct:
        """One neutral event as the dialect's struct."""
        if on_loss == "error" and self._get_lost(event) != self._nothing:
            self._refuse_loss(event, index)
        if self._salt_is_special and event.cache_salt is not None:
            return self._write_salted(event)
        struct: msgspec.Struct = self.struct(*self._get(event))
        return struct

    def _write_salted(self, event: BlockStored) -> msgspec.Struct:
        salt = event.cache_salt
        assert salt is not None
        values = dict(zip(self.names, self._get(event), strict=True))
        if self.prefixes and salt:
            values["extra_keys"] = _with_salt(event, salt, one_per_hash=not self.has_metadata)
        if self.has_metadata:
            values[METADATA] = wire.SaltMetadata(salt)
        return self.salted_struct(**values)

    def _refuse_loss(self, event: Any, index: int) -> None:
        for name in self.lost:
            if getattr(event, name) is not None and self._is_lost(name, event):
                raise LossyEncodeError(
                    name,
                    dialect=self.dialect.id,
                    event_index=index,
                    tag=self.tag,
                    carriers=tuple(d.id for d in DIALECTS.values() if d.carries(self.tag, name)),
                )

    def _is_lost(self, name: str, event: Any) -> bool:
        if name == "cache_salt":
            return bool(event.cache_salt) and not self.prefixes
        if name == "extra_keys" and event.cache_salt and self.dialect.salted_fields:
            own = [SALT_PREFIX + event.cache_salt]
            return bool(event.extra_keys[:1] != [own] or any(entry is not None for entry in event.extra_keys[1:]))
        return True


def _tuple_getter(names: Sequence[str]) -> Callable[[Any], tuple[Any, ...]]:
    """The attributes of these names as a tuple, in C where there are two or more."""
    if len(names) > 1:
        return attrgetter(*names)
    if names:
        (name,) = names
        return lambda event: (getattr(event, name),)
    return lambda event: ()


_WITHOUT_METADATA: dict[type[msgspec.Struct], type[msgspec.Struct]] = {
    wire.Slot8Stored: wire.Slot7Stored,
    wire.DynamoStored: wire.Slot14Stored,
}


def _with_salt(event: BlockStored, salt: str, *, one_per_hash: bool) -> list[Any]:
    """The extra keys of a salted event: vLLM's have one entry per block hash, Dynamo's may end after the first."""
    if salt in prefixed_salts(event.extra_keys):
        return list(event.extra_keys or ())
    blank = [None] * (len(event.block_hashes) if one_per_hash else 1)
    first, *rest = event.extra_keys or blank or [None]
    return [[*(first or ()), SALT_PREFIX + salt], *rest]


def _named(dialect: str | Dialect | None) -> str | Dialect | None:
    return dialect if isinstance(dialect, str | Dialect | None) else get_dialect(dialect)


def decode(
    payload: Payload,
    dialect: str | Dialect | None = None,
    *,
    strict: bool = False,
    skip_tokens: bool = False,
    on_error: OnError = "raise",
) -> EventBatch:
    """Read one payload of any dialect; see `Decoder` for the arguments and the errors."""
    if dialect is None and on_error == "raise" and not (strict or skip_tokens):
        return _decode_any(payload)
    key = (_named(dialect), strict, skip_tokens, on_error)
    decoder = _decoders.get(key)
    if decoder is None:
        decoder = Decoder(dialect, strict=strict, skip_tokens=skip_tokens, on_error=on_error)
        if len(_decoders) < 256:
            _decoders[key] = decoder
    return decoder.decode(payload)


def encode(batch: EventBatch, dialect: str | Dialect, *, on_loss: OnLoss = "error") -> bytes:
    """Write one batch in a dialect; see `Encoder` for the arguments and the errors."""
    return _encoder(dialect, on_loss).encode(batch)


def _encoder(dialect: str | Dialect, on_loss: OnLoss) -> Encoder:
    try:
        return _encoders[dialect, on_loss]
    except (KeyError, TypeError):
        encoder = Encoder(dialect, on_loss)
    if len(_encoders) < 256:
        _encoders[dialect, on_loss] = encoder
    return encoder


_decode_any = Decoder().decode
_decoders: dict[tuple[Any, ...], Decoder] = {}
_encoders: dict[tuple[str | Dialect, OnLoss], Encoder] = {}
_decode_lazily = Decoder(skip_tokens=True).decode
_knows_all = _encode.knows_all


def translate(payload: Payload, to: str | Dialect, *, on_loss: OnLoss = "error") -> bytes:
    """Read a payload of any dialect and write it in another.

    Raises:
        WireError: the payload is wrong.
        LossyEncodeError: a field that ``to`` cannot carry, or an event, slot or key that no dialect knows, unless
            ``on_loss="drop"``.
    """
    data = payload if type(payload) is bytes else _as_bytes(payload)
    try:
        encoder = _encoders[to, on_loss]
    except (KeyError, TypeError):
        encoder = _encoder(to, on_loss)
    attempt = encoder._attempt
    if attempt is not None and _knows_all is not None:
        # Token ids are copied; where that will not do, all is read and written anew.
        batch = _decode_lazily(data)
        if on_loss == "drop" or _knows_all(data):
            done = attempt(batch)
            if done is not None:
                return done
    return encoder.encode(_decode_whole(data, encoder))


def _decode_whole(data: bytes, encoder: Encoder) -> EventBatch:
    """Decode what is to be translated; an error where something of it would not reach the encoder."""
    batch = decode(data)
    if encoder.on_loss == "error" and fast.may_hide_extras(data):
        _refuse_extras(walk(data), encoder.dialect)
    return batch


def _refuse_extras(found: Reading, to: Dialect) -> None:
    if found.skipped:
        lost = found.skipped[0]
        raise LossyEncodeError(
            f"the tag {lost.event_tag!r}", dialect=to.id, carriers=(), event_index=lost.event_index, tag=lost.event_tag
        )
    for extra in found.extras:
        where = f"the key {extra.key!r}" if extra.slot is None else f"slot {extra.slot}"
        raise LossyEncodeError(where, dialect=to.id, carriers=(), event_index=extra.event_index, tag=extra.tag)
