"""Every exception kvwire raises.

::

    KvwireError
    ├── WireError(ValueError)        the peer's bytes are wrong
    │   ├── TruncatedError(EOFError)   they end too early
    │   ├── MalformedError             they are not one well-formed msgpack value
    │   ├── ShapeError                 well-formed, but not the shape of the wire
    │   ├── UnknownEventError          a tag that no dialect knows (strict only)
    │   ├── UnknownFieldError          a slot or key the dialect does not have (strict only)
    │   ├── EnvelopeError              the ZeroMQ frames around the payload are wrong
    │   └── LimitError                 more than the reader is willing to hold
    └── UsageError                   the caller's fault
        ├── DialectError               no such dialect
        ├── InvalidEventError          a value that no msgpack encoder can write
        ├── LossyEncodeError           a field that the dialect cannot carry
        └── hashing.errors.*           a recipe, token or digest that cannot be used

``hints.HintError`` is a KvwireError of its own: a hint is data from a client.

`code` is a stable slug meant for programs; the message is meant for people and may be reworded.
"""

from __future__ import annotations

from typing import Any

__all__ = [
    "DialectError",
    "EnvelopeError",
    "InvalidEventError",
    "KvwireError",
    "LimitError",
    "LossyEncodeError",
    "MalformedError",
    "ShapeError",
    "TruncatedError",
    "UnknownEventError",
    "UnknownFieldError",
    "UsageError",
    "WireError",
]


class KvwireError(Exception):
    """Root of everything kvwire raises."""

    code: str = "error"


class WireError(KvwireError, ValueError):
    """The bytes that a peer sent are wrong.

    Attributes:
        code: stable slug of the fault, e.g. ``wrong-type``.
        event_index: 0-based position of the event in its batch; None when the batch itself is at fault.
        tag: the event's tag, where one could be read.
        slot: position in an array-encoded event (0 is the tag), or in the batch when ``event_index`` is None.
        key: key of a map-encoded event, or the name of the field that the slot holds.
        expected: what the wire allows there, in words.
        got: what came, in words; at most a short excerpt of the value, never the payload.
        hint: what it likely means and what to do; empty when the cause is not known.
        dialect: the dialect the bytes were read as, if one was told.
    """

    code = "wire"

    def __init__(
        self,
        problem: str,
        *,
        code: str | None = None,
        event_index: int | None = None,
        tag: str | None = None,
        slot: int | None = None,
        key: str | None = None,
        expected: str = "",
        got: str = "",
        hint: str = "",
        dialect: str | None = None,
    ) -> None:
        if code is not None:
            self.code = code
        self.problem = problem
        self.event_index = event_index
        self.tag = tag
        self.slot = slot
        self.key = key
        self.expected = expected
        self.got = got
        self.hint = hint
        self.dialect = dialect
        super().__init__(problem)

    @property
    def path(self) -> str:
        """Where in the batch, in the form ``events[2].BlockStored[7] (lora_name)``."""
        if self.event_index is None:
            where = "batch"
            if self.slot is not None:
                where += f"[{self.slot}]"
            return f"{where} ({self.key})" if self.key else where
        where = f"events[{self.event_index}]"
        if self.tag is not None:
            where += f".{self.tag}"
        if self.slot is not None:
            where += f"[{self.slot}]"
            if self.key:
                where += f" ({self.key})"
        elif self.key is not None:
            where += f".{self.key}"
        return where

    def __str__(self) -> str:
        parts = [f"{self.path}: {self.problem}"]
        if self.expected or self.got:
            parts.append(f"expected {self.expected or 'nothing here'}, got {self.got or 'nothing'}")
        if self.dialect:
            parts.append(f"read as {self.dialect}")
        if self.hint:
            parts.append(self.hint)
        return "; ".join(parts)

    def as_dict(self) -> dict[str, Any]:
        """The fields that are set, as JSON-ready values: what the golden vectors and the reports store."""
        found = {
            "code": self.code,
            "event_index": self.event_index,
            "tag": self.tag,
            "slot": self.slot,
            "key": self.key,
            "expected": self.expected,
            "got": self.got,
            "hint": self.hint,
            "dialect": self.dialect,
        }
        return {name: value for name, value in found.items() if value not in (None, "")}

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (type(self), self.problem, self.as_dict()))


def _rebuild(kind: type[WireError], problem: str, fields: dict[str, Any]) -> WireError:
    return kind(problem, **fields)


class TruncatedError(WireError, EOFError):
    """The payload ends before the value it announces, or is empty."""

    code = "truncated"


class MalformedError(WireError):
    """Not one well-formed msgpack value: reserved byte, invalid UTF-8, trailing bytes."""

    code = "malformed"


class ShapeError(WireError):
    """Well-formed msgpack whose types, arity or keys are not those of the wire."""

    code = "wrong-type"


class UnknownEventError(WireError):
    """A tag that no dialect knows. Tolerant decoding skips such an event instead."""

    code = "unknown-tag"


class UnknownFieldError(WireError):
    """A slot or key that the dialect does not have. Tolerant decoding skips it instead."""

    code = "unknown-field"


class EnvelopeError(WireError):
    """The ZeroMQ frames around the payload are wrong: their count, or the width of the seq. ``slot`` is the frame."""

    code = "envelope"

    @property
    def path(self) -> str:
        """Which frame, in the form ``frame 1 (seq)``."""
        where = "message" if self.slot is None else f"frame {self.slot}"
        return f"{where} ({self.key})" if self.key else where


class LimitError(WireError):
    """Depth, size or count beyond what the reader is willing to hold."""

    code = "limit"


class UsageError(KvwireError):
    """The caller's fault, not the peer's."""

    code = "usage"


class DialectError(UsageError, LookupError):
    """No dialect, alias or release of that name."""

    code = "no-such-dialect"


class InvalidEventError(UsageError, ValueError):
    """A value that cannot be written: an integer beyond 64 bits, a timestamp that is not finite, no event."""

    code = "invalid-event"


class LossyEncodeError(UsageError, ValueError):
    """Encoding would drop a field, because the dialect has no place for it.

    Attributes:
        field: neutral name of the field that would be lost.
        event_index: 0-based position of the event; None when the field is the batch's (``dp_rank``).
        tag: the event's tag; None for the batch.
        dialect: the dialect asked for.
        carriers: ids of the dialects that could carry the field, oldest first.
    """

    code = "lossy"

    def __init__(
        self, field: str, *, dialect: str, carriers: tuple[str, ...], event_index: int | None, tag: str | None
    ) -> None:
        self.field = field
        self.dialect = dialect
        self.carriers = carriers
        self.event_index = event_index
        self.tag = tag
        where = "the batch" if event_index is None else f"events[{event_index}] ({tag})"
        could = ", ".join(carriers) if carriers else "none"
        super().__init__(
            f"{where} has {field}, which {dialect} cannot carry; dialects that can: {could}. "
            'Pass on_loss="drop" to encode without it.'
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild_lossy, (self.field, self.dialect, self.carriers, self.event_index, self.tag))


def _rebuild_lossy(
    field: str, dialect: str, carriers: tuple[str, ...], event_index: int | None, tag: str | None
) -> LossyEncodeError:
    return LossyEncodeError(field, dialect=dialect, carriers=carriers, event_index=event_index, tag=tag)
