"""One captured message, taken apart once for all checks."""

from __future__ import annotations

from collections.abc import Iterator

from kvwire import _msgpack as mp
from kvwire._walk import Reading
from kvwire.errors import WireError
from kvwire.events import Event
from kvwire_conform.model import Evidence, Finding

MAX_HEX = 512
"""Bytes of a frame that a finding shows."""


class Message:
    """A live or replayed message.

    Attributes:
        t: unix seconds at which it arrived.
        channel: ``live`` or ``replay``.
        frames: as received.
        topic, seq, payload: the parts; seq is None when its frame is not 8 bytes wide.
        reading: the payload read tolerantly; None when it could not be read at all, see ``error``.
        error: why the payload could not be read.
        deviations: what is not as the stream's dialect has it.
        judged: whether the batch was judged by itself; what is left is its place in the stream.
        walked: whether ``reading`` is that of the walk, not of the codec.
    """

    __slots__ = (
        *("channel", "deviations", "error", "frames", "judged", "payload", "reading", "seq", "t", "topic", "walked"),
    )

    def __init__(
        self, t: float, channel: str, frames: list[bytes], topic: bytes, seq: int | None, payload: bytes
    ) -> None:
        self.t = t
        self.channel = channel
        self.frames = frames
        self.topic = topic
        self.seq = seq
        self.payload = payload
        self.reading: Reading | None = None
        self.error: WireError | None = None
        self.deviations: list[WireError] = []
        self.judged = False
        self.walked = False

    def put_by(self) -> None:
        """The message has to wait: keep its bytes, not what was read of them."""
        self.reading = None
        self.deviations = []

    def events(self) -> Iterator[tuple[int, Event]]:
        """The events that could be read, each with its index in the batch."""
        if self.reading is None:
            return iter(())
        if self.reading.positions:
            return zip(self.reading.positions, self.reading.events, strict=True)
        return enumerate(self.reading.events)

    def finding(
        self,
        expected: str,
        got: str,
        hint: str = "",
        *,
        event_index: int | None = None,
        slot: int | None = None,
        key: str | None = None,
    ) -> Finding:
        """A finding with this message as its evidence, the culprit marked."""
        return Finding(
            expected=expected, got=got, hint=hint, evidence=self.evidence(event_index=event_index, slot=slot, key=key)
        )

    def fault(self, error: WireError, hint: str = "") -> Finding:
        """A finding from a codec error; ``hint`` is added to what the error says."""
        return self.finding(
            error.expected or "a conforming event",
            error.got or error.problem,
            "; ".join(filter(None, (error.problem, error.hint, hint))),
            event_index=error.event_index,
            slot=error.slot,
            key=error.key,
        )

    def evidence(self, *, event_index: int | None = None, slot: int | None = None, key: str | None = None) -> Evidence:
        """The frames, and the event (or the batch) slot by slot."""
        return Evidence(
            seq=self.seq,
            received=self.t,
            channel=self.channel,
            frames=[frame[:MAX_HEX].hex() for frame in self.frames],
            cut=sum(max(0, len(frame) - MAX_HEX) for frame in self.frames),
            event_index=event_index,
            slots=explain(self.payload, event_index, slot, key),
        )


def explain(
    payload: bytes, event_index: int | None = None, slot: int | None = None, key: str | None = None
) -> list[str]:
    """A batch, or one of its events, a line for each slot or key; the culprit's line starts with ``>``.

    Never raises: of bytes that are no msgpack it says so.
    """
    try:
        mp.check_whole(payload)
        if mp.kind_of(payload[0]) != "array":
            return [f"  {mp.describe(payload)}"]
        parts = mp.elements(payload)
        if event_index is None:
            return [
                _line(index, _BATCH[index] if index < 3 else "", part, index == slot)
                for index, part in enumerate(parts)
            ]
        event = mp.element(parts[1], event_index)
        if mp.kind_of(event[0]) == "array":
            slots = mp.elements(event)
            return [_line(index, "", value, index == slot) for index, value in enumerate(slots)]
        if mp.kind_of(event[0]) == "map":
            return [_line(None, str(mp.scalar(k)), value, str(mp.scalar(k)) == key) for k, value in mp.pairs(event)]
        return [f"> {mp.describe(event)}"]
    except (WireError, IndexError, ValueError, RecursionError) as error:
        return [f"  not readable: {error}"]


_BATCH = ("ts", "events", "dp_rank")


def _line(index: int | None, name: str, value: bytes, culprit: bool) -> str:
    label = name if index is None else f"{index} {name}".rstrip()
    return f"{'>' if culprit else ' '} {label}: {_shown(value)}"


def _shown(value: bytes) -> str:
    kind = mp.kind_of(value[0])
    if kind == "array" and len(value) <= 200:
        inside = [
            mp.describe(item) if mp.kind_of(item[0]) in ("map", "bin", "array") else str(mp.scalar(item))
            for item in mp.elements(value)
        ]
        return f"array of {len(inside)} [{', '.join(inside)}]"
    return mp.describe(value)
