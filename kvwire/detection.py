"""Which dialects a payload conforms to, and why not the others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from kvwire._exact import surely_conforms
from kvwire._walk import walk
from kvwire.dialects import DIALECTS
from kvwire.errors import UsageError, WireError

__all__ = ["Detection", "detect"]


@dataclass(frozen=True)
class Detection:
    """The outcome of `detect`.

    Iterating gives the ids of the conforming dialects, oldest first; ``"slot8" in detection`` asks for one.

    Attributes:
        dialects: ids whose strict reading accepts the payload. More than one where the bytes do not tell them apart:
            an unsalted ``slot8`` batch is a ``slot7`` batch.
        reasons: for every other id the first thing in the payload that rules it out.
    """

    dialects: tuple[str, ...]
    reasons: Mapping[str, WireError]

    def __iter__(self) -> Iterator[str]:
        return iter(self.dialects)

    def __contains__(self, dialect: object) -> bool:
        return dialect in self.dialects

    def __len__(self) -> int:
        return len(self.dialects)

    def __bool__(self) -> bool:
        return bool(self.dialects)

    def __str__(self) -> str:
        return ", ".join(self.dialects) or "no dialect"


def detect(payload: bytes | bytearray | memoryview) -> Detection:
    """Name every dialect that a payload conforms to exactly. Never raises for any bytes.

    Raises:
        UsageError: the payload is not a bytes-like object.
    """
    if not isinstance(payload, (bytes, bytearray, memoryview)):
        raise UsageError(f"a payload is bytes, not {type(payload).__name__}")
    data = bytes(payload)
    fitting = []
    reasons: dict[str, WireError] = {}
    for dialect in DIALECTS.values():
        if surely_conforms(data, dialect.id):
            fitting.append(dialect.id)
            continue
        try:
            walk(data, dialect, strict=True)
        except WireError as error:
            reasons[dialect.id] = error
        else:
            fitting.append(dialect.id)
    return Detection(tuple(fitting), reasons)
