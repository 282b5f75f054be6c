"""What describes a dialect: its slots or keys per tag, its batch, and where it is spoken."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec


class Encoding(str, enum.Enum):
    """How a dialect writes one event."""

    ARRAY = "array"
    MAP = "map"


class Framing(str, enum.Enum):
    """The frames of one replay reply, after the empty delimiter (spec/transport.md, "Replay")."""

    SEQ_PAYLOAD = "seq-payload"
    TOPIC_SEQ_PAYLOAD = "topic-seq-payload"


METADATA = "metadata"
"""Name of the slot whose map carries the cache salt of a salted event."""


@dataclass(frozen=True)
class Field:
    """One slot or key of an event.

    Attributes:
        name: name on the wire (maps) or of the slot (arrays); equal to the neutral name, but for ``metadata``.
        slot: position in the array, counted with the tag at 0; None in a map dialect.
        always: written in every event, nil included. When False, a map leaves the key out at nil, and an array ends
            before the slot.
        nullable: may be nil.
        meaning: the type in words.
    """

    name: str
    slot: int | None
    always: bool
    nullable: bool
    meaning: str

    @property
    def neutral(self) -> str:
        """The neutral field that this slot or key carries."""
        return "cache_salt" if self.name == METADATA else self.name


_MEANINGS: Mapping[str, tuple[bool, str]] = {
    "block_hashes": (False, "array of block hashes"),
    "parent_block_hash": (True, "block hash"),
    "token_ids": (False, "array of token ids"),
    "block_size": (False, "int"),
    "lora_id": (True, "int"),
    "medium": (True, "str"),
    "lora_name": (True, "str"),
    "extra_keys": (True, "array of (array or nil)"),
    "group_idx": (True, "int"),
    "kv_cache_spec_kind": (True, "str"),
    "kv_cache_spec_sliding_window": (True, "int"),
    "locality": (True, "str"),
    "ownership": (True, "str"),
    METADATA: (False, 'map {"cache_salt": str}'),
    "cache_salt": (True, "str"),
    "session_id": (True, "str"),
    "lookahead_token_ids": (True, "array of arrays of int"),
}


@dataclass(frozen=True)
class EventLayout:
    """The slots or keys of one event class in one dialect.

    Attributes:
        tag: the event's tag, slot 0 or key ``type``.
        fields: in wire order.
        struct: the msgspec struct with exactly these fields; encoding an instance gives the release's own bytes.
    """

    tag: str
    fields: tuple[Field, ...]
    struct: type[msgspec.Struct]

    @property
    def carried(self) -> frozenset[str]:
        """Neutral names of the fields that the event can carry."""
        return frozenset(field.neutral for field in self.fields)

    @property
    def slots(self) -> int:
        """Array length without the optional metadata, the tag included."""
        return 1 + sum(field.always for field in self.fields)


def layout_of(struct: type[msgspec.Struct]) -> EventLayout:
    """Describe a wire struct."""
    config = struct.__struct_config__
    fields = []
    for position, info in enumerate(msgspec.structs.fields(struct), start=1):
        nullable, meaning = _MEANINGS[info.name]
        fields.append(Field(info.name, position if config.array_like else None, info.required, nullable, meaning))
    return EventLayout(str(config.tag), tuple(fields), struct)


ENGINES: Mapping[str, str] = {"sglang": "SGLang", "vllm": "vLLM"}
"""How people write the engines that `Releases.engine` names."""


def _span(first: str, last: str) -> str:
    return first if first == last else f"{first}–{last}"


@dataclass(frozen=True)
class Releases:
    """A range of releases, both ends included, that emit a dialect."""

    engine: str
    first: str
    last: str
    media: tuple[str, ...]

    def __str__(self) -> str:
        return f"{ENGINES[self.engine]} {_span(self.first, self.last)}"


@dataclass(frozen=True, eq=False)
class Dialect:
    """The frozen contract of a whole stream.

    Attributes:
        id: the dialect's id, e.g. ``slot8``.
        encoding: array or map events.
        batch_fields: elements of the batch array, 2 or 3 of ``ts, events, dp_rank``.
        events: layout per tag.
        releases: who emits it.
        framing: replay reply frames of those releases.
        salt: where a tenant's cache salt rides, in words.
        lora: where the LoRA name rides, in words.
        aliases: other names accepted for it.
        summary: one line for people.
    """

    id: str
    encoding: Encoding
    batch_fields: tuple[str, ...]
    events: Mapping[str, EventLayout]
    releases: tuple[Releases, ...]
    framing: Framing
    salt: str
    lora: str
    summary: str
    aliases: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.id

    @property
    def media(self) -> tuple[str, ...]:
        """Every medium constant that some emitting release has, sorted."""
        return tuple(sorted({medium for span in self.releases for medium in span.media}))

    @property
    def emitters(self) -> str:
        """Who emits it, for people: ``SGLang 0.5.9–0.5.17; vLLM 0.10.2–0.13.0``. Empty when no release does."""
        spans: dict[str, tuple[str, str]] = {}
        for releases in self.releases:
            first, _ = spans.get(releases.engine, (releases.first, ""))
            spans[releases.engine] = (first, releases.last)
        return "; ".join(f"{ENGINES[engine]} {_span(*span)}" for engine, span in spans.items())

    @property
    def salted_fields(self) -> bool:
        """Whether a stored event has a place of its own for the salt (map key or metadata map)."""
        return "cache_salt" in self.events["BlockStored"].carried

    def carries(self, tag: str, field: str) -> bool:
        """Whether an event of this tag can carry the neutral field."""
        if field == "cache_salt" and tag == "BlockStored" and "extra_keys" in self.events[tag].carried:
            return True
        return field in self.events[tag].carried


def dialect(
    id: str,
    structs: tuple[type[msgspec.Struct], ...],
    *,
    releases: tuple[Releases, ...] = (),
    framing: Framing = Framing.SEQ_PAYLOAD,
    batch_fields: tuple[str, ...] = ("ts", "events", "dp_rank"),
    **words: Any,
) -> Dialect:
    """Build a dialect from its wire structs."""
    layouts = {layout.tag: layout for layout in map(layout_of, structs)}
    array_like = structs[0].__struct_config__.array_like
    return Dialect(
        id=id,
        encoding=Encoding.ARRAY if array_like else Encoding.MAP,
        batch_fields=batch_fields,
        events=layouts,
        releases=releases,
        framing=framing,
        **words,
    )
