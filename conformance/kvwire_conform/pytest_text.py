"""What a failed vector says for itself: the field, what was expected, what came, what it likely means, and the bytes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from kvwire_conform import golden
from kvwire_conform.consumer_model import AnswerVerdict, Difference, Judgement
from kvwire_conform.golden_text import Part, hex_of, parts_of
from kvwire_conform.known_failures import Entry
from kvwire_conform.reports.consumer_causes import causes, hint_of
from kvwire_conform.reports.text import printable, shorten

__all__ = ["about", "describe", "encoded_differently", "hint"]

_COLUMN = 11
_LONG = 400
_DIFFERENCES = 5
_PARTS = 6
_BYTES = 24
_PAYLOAD = 64
_SUMMARIES = {
    AnswerVerdict.LOSSY: "something that stands on the wire is missing",
    AnswerVerdict.SIBLING_LOST: "one event cost its good neighbours",
    AnswerVerdict.WRONG: "something is not as it stands on the wire",
    AnswerVerdict.REJECTED: "what must be read was refused",
    AnswerVerdict.CRASHED: "the decoder broke down",
    AnswerVerdict.GARBLED: "the result is not of the neutral form",
}
_EVENT = re.compile(r"events\[(\d+)\](?:\.(\w+))?")
_HOLDERS = {"cache_salt": ("metadata", "extra_keys", "lora_name")}
"""Where else than in a place of its own a field can stand."""


def describe(
    vector: golden.Vector, judgement: Judgement, *, wrote: bytes | None = None, known: Entry | None = None
) -> str:
    """The message of a failed vector, several lines long.

    Args:
        wrote: what an encoder wrote instead of the payload; None where a decoder was judged.
        known: the entry of the known-failures file about it.
    """
    summary = "the encoder wrote other bytes" if wrote is not None else _SUMMARIES[judgement.verdict]
    lines = [f"{vector.id}: {judgement.verdict.value}, {summary}", _pair("about", _about(vector))]
    for difference in judgement.differences[:_DIFFERENCES]:
        lines += [
            _pair("field", difference.where),
            _pair("expected", difference.expected),
            _pair("got", difference.got),
        ]
    if len(judgement.differences) > _DIFFERENCES:
        lines.append(_pair("more", f"{len(judgement.differences) - _DIFFERENCES} fields"))
    lines += [_pair("says", line) for line in judgement.said.splitlines()]
    if judgement.note:
        lines.append(_pair("note", judgement.note))
    meant = "" if wrote is not None else hint(judgement)
    if meant:
        lines.append(_pair("hint", meant))
    lines += [] if wrote is not None else _bytes(vector, judgement.differences)
    lines.append(_pair("see", f"kvwire-conform golden show {vector.id}"))
    if known is not None and known.verdict is not judgement.verdict:
        lines.append(_pair("known", f"{known.where} lists it as {known.verdict.value}; change the entry or remove it"))
    return "\n".join(lines)


def about(vector: golden.Vector) -> str:
    """A vector in a few lines, for a test that failed in some other way."""
    lines = [f"{vector.id}", _pair("about", _about(vector)), *_bytes(vector, ())]
    return "\n".join([*lines, _pair("see", f"kvwire-conform golden show {vector.id}")])


def hint(judgement: Judgement) -> str:
    """What a failure likely means for a router; empty where that is plain."""
    return hint_of(causes([judgement])[0])


def encoded_differently(vector: golden.Vector, wrote: bytes) -> tuple[Difference, ...]:
    """Where an encoder's bytes depart from a payload: the first slot or key that does, and the offset."""
    wanted, got = (list(_placed(parts_of(payload, vector.dialect))) for payload in (vector.payload, wrote))
    at = next((at for at, (a, b) in enumerate(zip(wanted, got, strict=False)) if a != b), min(len(wanted), len(got)))
    offset = sum(len(part.data) for _, part in wanted[:at])
    where = wanted[at][0] if at < len(wanted) else got[at][0] if at < len(got) else "the payload"
    expected, came = (
        f"{hex_of(parts[at][1].data, _BYTES)}  ({parts[at][1].words})".strip() if at < len(parts) else "nothing"
        for parts in (wanted, got)
    )
    return (Difference(where=f"{where}, at byte {offset}", expected=expected, got=came),)


def _placed(parts: Iterable[Part]) -> Iterable[tuple[str, Part]]:
    for part in parts:
        yield _where(part), part


def _where(part: Part) -> str:
    if part.depth < 2:
        return part.label
    return f"events[{part.event}], {'slot' if isinstance(part.place, int) else 'key'} {part.label}"


def _is_at_fault(vector: golden.Vector, part: Part) -> bool:
    place = vector.error
    return place is not None and part.is_at(event_index=place.event_index, slot=place.slot, key=place.key)


def _about(vector: golden.Vector) -> str:
    row = next(row for row in golden.manifest_of().vectors if row.id == vector.id)
    releases = row.provenance.releases
    written = f"as {releases[0]} writes it" if releases else "no release writes these bytes"
    return f"{vector.description} ({vector.kind}, {written})"


def _bytes(vector: golden.Vector, differences: Sequence[Difference]) -> list[str]:
    """The slots or keys that the differences are about, else those that are at fault, else the payload."""
    every = parts_of(vector.payload, vector.dialect)
    parts = [part for part in every if part.depth == 2]
    found: dict[Part, None] = {}
    for difference in differences:
        place = _EVENT.match(difference.where)
        if place is None:
            found.update(
                (part, None) for part in every if part.depth == 0 and part.label.endswith(f" {difference.where}")
            )
        else:
            index = _on_the_wire(vector, int(place[1]))
            found.update(dict.fromkeys(_of_field(parts, index, place[2])))
    shown = list(found)[:_PARTS] or [part for part in every if _is_at_fault(vector, part)][:_PARTS]
    if not shown:
        return [_pair("bytes", hex_of(vector.payload, _PAYLOAD) or "none")]
    lines = [f"{_where(part)}: {hex_of(part.data, _BYTES)}  ({part.words})" for part in shown]
    return [_pair("bytes" if not number else "", line) for number, line in enumerate(lines)]


def _of_field(parts: Iterable[Part], event: int | None, field: str | None) -> list[Part]:
    mine = [part for part in parts if part.event == event]
    for names in ((field,), _HOLDERS.get(field or "", ())):
        found = [part for part in mine if field is None or part.label.rpartition(" ")[2] in names]
        if found:
            return found
    return []


def _on_the_wire(vector: golden.Vector, index: int) -> int | None:
    """Which event of the payload stands for the event of the meaning; None where that cannot be told."""
    meaning = vector.meaning or vector.good_siblings
    left_out = {skipped.event_index for skipped in vector.skipped}
    if vector.error is not None and vector.error.event_index is not None:
        left_out.add(vector.error.event_index)
    count = len(meaning["events"]) if meaning else 0
    kept = [at for at in range(count + len(left_out)) if at not in left_out]
    return kept[index] if index < count else None


def _pair(label: str, value: str) -> str:
    return f"  {label:{_COLUMN - 2}}{printable(shorten(value, _LONG))}"
