"""A payload for people: its bytes slot by slot, each with what it is."""

from __future__ import annotations

from dataclasses import dataclass

from kvwire import _msgpack as mp
from kvwire.dialects import DIALECTS
from kvwire.errors import WireError

_BATCH = ("ts", "events", "dp_rank")
_MOST = 1 << 20


@dataclass(frozen=True)
class Part:
    """A run of bytes of a payload.

    Attributes:
        depth: 0 for the batch and its elements, 1 for events, 2 for slots and keys.
        label: where it is, e.g. ``events[0]`` or ``3 token_ids``.
        data: the bytes; of the batch, the events and an event only their header.
        words: what they are.
        event: index of the event that it belongs to.
        place: its slot, or its key in a map.
    """

    depth: int
    label: str
    data: bytes
    words: str
    event: int | None = None
    place: int | str | None = None

    def is_at(self, *, event_index: int | None, slot: int | None, key: str | None) -> bool:
        """Whether an error of this place means these bytes."""
        if self.depth == 0 or event_index is None:
            return self.event is None is event_index and self.place is not None and self.place == slot
        place = slot if slot is not None else key
        return self.event == event_index and self.place == place


def parts_of(payload: bytes, dialect: str | None = None) -> list[Part]:
    """A payload taken apart; whole, with the reason, where it is no batch of events. The parts' bytes, one after the other,
    are the payload.

    Args:
        dialect: whose names the slots get; without it they are only numbered.
    """
    try:
        mp.check_whole(payload)
        if mp.kind_of(payload[0]) != "array":
            return [Part(0, "payload", payload, mp.describe(payload))]
        elements = mp.elements(payload, _MOST)
    except WireError as error:
        return [Part(0, "payload", payload, error.problem)]
    found = [Part(0, "batch", payload[: mp.header(payload)[1]], mp.describe(payload))]
    for index, value in enumerate(elements):
        label = f"{index} {_BATCH[index]}" if index < len(_BATCH) else str(index)
        if index == 1 and mp.kind_of(value[0]) == "array":
            found += _events(label, value, dialect)
        else:
            found.append(Part(0, label, value, mp.describe(value), place=index))
    return found


def _events(label: str, value: bytes, dialect: str | None) -> list[Part]:
    found = [Part(0, label, value[: mp.header(value)[1]], mp.describe(value), place=1)]
    for index, event in enumerate(mp.elements(value, _MOST)):
        kind = mp.kind_of(event[0])
        label = f"events[{index}]"
        if kind not in ("array", "map") or mp.header(event)[0] > mp.MAX_FIELDS:
            found.append(Part(1, label, event, mp.describe(event), index))
            continue
        found.append(Part(1, label, event[: mp.header(event)[1]], mp.describe(event), index))
        if kind == "array":
            slots = mp.elements(event)
            names = _slot_names(slots, dialect)
            for slot, raw in enumerate(slots):
                name = names[slot] if slot < len(names) else ""
                found.append(Part(2, f"{slot} {name}".rstrip(), raw, _inside(raw), index, slot))
        else:
            for key, raw in mp.pairs(event):
                name = str(mp.scalar(key))
                found.append(Part(2, name, key + raw, _inside(raw), index, name))
    return found


def _slot_names(slots: list[bytes], dialect: str | None) -> tuple[str, ...]:
    tag = mp.scalar(slots[0]) if slots else None
    if dialect is None or not isinstance(tag, str) or tag not in DIALECTS[dialect].events:
        return ("tag",)
    return ("tag", *(field.name for field in DIALECTS[dialect].events[tag].fields))


def _inside(value: bytes) -> str:
    if mp.kind_of(value[0]) != "array" or len(value) > 200:
        return mp.describe(value)
    items = [
        mp.describe(item) if mp.kind_of(item[0]) in ("array", "map", "bin", "ext") else str(mp.scalar(item))
        for item in mp.elements(value)
    ]
    return f"array of {len(items)} [{', '.join(items)}]"


def hex_of(data: bytes, limit: int) -> str:
    """Bytes in hex, at most ``limit`` of them, with how many are left."""
    shown = data[:limit].hex(" ")
    return shown if len(data) <= limit else f"{shown} … {len(data) - limit} more"
