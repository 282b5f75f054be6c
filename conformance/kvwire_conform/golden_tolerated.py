"""The tolerated vectors of a dialect: what a release does not write, and a tolerant reader takes all the same."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvwire_conform import golden_msgpack as mp
from kvwire_conform.golden_case import (
    Case,
    Reading,
    Roundtrip,
    batch,
    cleared,
    full,
    optional,
    raw,
    removed,
    stored,
)
from kvwire_conform.golden_layout import CLEARED, REMOVED, SALT_PREFIX, Json, Layout, Written, frame, write_event
from kvwire_conform.golden_wide import add_wide


class Tolerated:
    """Collects the tolerated vectors of one dialect."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.cases: list[Case] = []

    def add(
        self,
        slug: str,
        description: str,
        payload: bytes,
        meaning: Json,
        *,
        strict: bool = False,
        roundtrip: Roundtrip = "semantic",
        reading: Reading = "any",
        skipped: tuple[Json, ...] = (),
        extras: tuple[Json, ...] = (),
        signed: bool = False,
        digests: bool = False,
    ) -> None:
        """One vector."""
        self.cases.append(
            Case(
                id=f"{self.layout.id}/{slug}",
                dialect=self.layout.id,
                kind="tolerated",
                description=description,
                payload=payload,
                strict=strict,
                roundtrip=roundtrip,
                reading=reading,
                meaning=meaning,
                hash_form="signed" if signed else "bytes" if digests else "unsigned",
                skipped=skipped,
                extras=extras,
            )
        )

    def one(self, slug: str, description: str, event: Written | bytes, meaning: Json, **more: Any) -> None:
        """One vector of a single event."""
        payload = frame(self.layout, [event.raw if isinstance(event, Written) else event])
        self.add(slug, description, payload, self.batch(meaning), **more)

    def batch(self, *events: Json, ts: float = 1.5) -> Json:
        """These events as the meaning of a batch of the dialect."""
        return batch(*events, ts=ts, rank=0 if self.layout.ranked else None)

    def written(self, event: Json) -> Written:
        """An event of the neutral form, ready for changes."""
        return write_event(self.layout, event, "unsigned")


def tolerated_cases(layout: Layout) -> list[Case]:
    """Every tolerated vector of a dialect."""
    found = Tolerated(layout)
    _timestamps(found)
    _batch_elements(found)
    _unknown_tags(found)
    _nil_placeholders(found)
    if layout.maps:
        _shuffled_keys(found)
        _extra_keys(found)
        _absent_keys(found)
        _explicit_nils(found)
    else:
        _short_tails(found)
        _extra_slots(found)
    if layout.metadata:
        _metadata(found)
    add_wide(found)
    return found.cases


def _timestamps(found: Tolerated) -> None:
    events = [raw(found.layout, stored(found.layout))]
    for slug, description, ts, value in (
        ("ts-int", "A timestamp that is an integer.", mp.integer(1700000000), 1700000000.0),
        ("ts-int-zero", "A timestamp that is the integer 0.", mp.integer(0), 0.0),
        ("ts-int-u64", "A timestamp that is an integer of 64 bits.", mp.integer(1700000000, "u64"), 1700000000.0),
    ):
        meaning = found.batch(stored(found.layout), ts=value)
        found.add(slug, description, frame(found.layout, events, ts=ts), meaning)
    payload = frame(found.layout, events, ts=mp.float32(1.5))
    found.add("ts-float32", "A timestamp of four bytes.", payload, found.batch(stored(found.layout)), strict=True)


def _batch_elements(found: Tolerated) -> None:
    event = stored(found.layout)
    parts = [mp.float64(1.5), mp.array([raw(found.layout, event)])]
    if found.layout.ranked:
        meaning = batch(event, rank=None)
        found.add("short-batch", "A batch of two elements; the missing DP rank is nil.", mp.array(parts), meaning)
    else:
        payload = mp.array([*parts, mp.integer(3)])
        words = "A third element in a dialect of two; it is the DP rank, as in every later dialect."
        found.add("extra-batch-rank", words, payload, batch(event, rank=3), roundtrip="none")
    payload = mp.array([*parts, mp.integer(0), mp.text("later")])
    meaning = batch(event, rank=0)
    words = "A batch with a fourth element that no dialect has."
    extras = ({"code": "extra-slot", "slot": 3},)
    roundtrip: Roundtrip = "semantic" if found.layout.ranked else "none"
    found.add("extra-batch-element", words, payload, meaning, extras=extras, roundtrip=roundtrip)


def _unknown_tags(found: Tolerated) -> None:
    layout = found.layout
    one, other = stored(layout), removed(layout)

    def foreign(tag: str) -> bytes:
        fields = [("block_hashes", mp.array([mp.integer(5)])), ("target", mp.text("GPU"))]
        if layout.maps:
            return mp.mapping([(mp.text("type"), mp.text(tag)), *((mp.text(k), v) for k, v in fields)])
        return mp.array([mp.text(tag), *(value for _, value in fields)])

    def add(slug: str, description: str, tag: str, at: int, *siblings: Json) -> None:
        events = [raw(layout, event) for event in siblings]
        events.insert(at, foreign(tag))
        skipped = ({"event_index": at, "tag": tag},)
        found.add(slug, description, frame(layout, events), found.batch(*siblings), skipped=skipped)

    add("unknown-tag-between", "An event with an unknown tag between good ones.", "BlockMoved", 1, one, other)
    add("unknown-tag-first", "An event with an unknown tag before good ones.", "BlockMoved", 0, one, other)
    add("unknown-tag-last", "An event with an unknown tag after good ones.", "BlockMoved", 2, one, other)
    add("unknown-tag-alone", "An event with an unknown tag, and no other.", "BlockMoved", 0)
    add("unknown-tag-lower-case", "A known tag in lower case, which is another tag.", "blockstored", 0, other)
    add("unknown-tag-empty", "An event whose tag is an empty string.", "", 0, other)


def _nil_placeholders(found: Tolerated) -> None:
    event = stored(found.layout)
    written = found.written(event)
    found.one(
        "nil-token-ids",
        "Token ids that are nil, as some connectors send; it reads as no tokens.",
        written.having("token_ids", mp.NIL),
        {**event, "token_ids": []},
    )
    found.one(
        "nil-block-size",
        "A block size that is nil; it reads as 0.",
        written.having("block_size", mp.NIL),
        {**event, "block_size": 0},
    )


def _short_tails(found: Tolerated) -> None:
    layout = found.layout
    event = full(layout, salt=False)
    for count in range(5, 1 + len(layout.stored)):
        kept = set(layout.stored[: count - 1])
        meaning = {name: value for name, value in event.items() if name == "type" or name in kept}
        words = f"A stored event that ends after {count} slots; the missing ones are nil."
        found.one(f"short-stored-{count}-slots", words, found.written(event).cut(count), meaning)
    event = full(layout, REMOVED)
    for count in range(2, 1 + len(layout.removed)):
        kept = set(layout.removed[: count - 1])
        meaning = {name: value for name, value in event.items() if name == "type" or name in kept}
        words = f"A removed event that ends after {count} slots; the missing ones are nil."
        found.one(f"short-removed-{count}-slots", words, found.written(event).cut(count), meaning)
    if layout.cleared:
        words = "A clear that ends after its tag; the owner is nil."
        found.one("short-cleared", words, found.written(cleared()).cut(1), cleared())


_EXTRAS: Mapping[str, tuple[str, bytes]] = {
    "nil": ("nil", mp.NIL),
    "int": ("an int", mp.integer(7)),
    "str": ("a str", mp.text("later")),
    "array": ("an array", mp.array([mp.integer(1), mp.array([])])),
    "map": ("a map without a salt", mp.mapping([(mp.text("trace"), mp.integer(1))])),
}


def _extra_slots(found: Tolerated) -> None:
    layout = found.layout
    event = full(layout)
    written = found.written(event)
    at = len(written.names)
    # The slots past an older dialect's end are a newer one's own, so only a reader that knows the dialect skips them.
    reading: Reading = "any" if layout.id == "dynamo" else "told"
    # A thirteenth slot is dynamo's locality if it can be one.
    unfit = ("int", "array", "map") if layout.id == "slot12" else ()

    def extra(slot: int) -> Json:
        return {"code": "extra-slot", "event_index": 0, "slot": slot}

    for slug, (what, value) in _EXTRAS.items():
        words = f"A stored event with one slot more, which holds {what}."
        narrow: Reading = "any" if slug in unfit else reading
        found.one(f"extra-slot-{slug}", words, written.plus(value), event, reading=narrow, extras=(extra(at),))
    found.one(
        "extra-slots-two",
        "A stored event with two slots more.",
        written.plus(mp.NIL).plus(mp.integer(7)),
        event,
        reading=reading,
        extras=(extra(at), extra(at + 1)),
    )
    for slug, other in (("removed", full(layout, REMOVED)), ("cleared", full(layout, CLEARED))):
        written = found.written(other)
        found.one(
            f"extra-slot-{slug}",
            f"A {slug} event with one slot more.",
            written.plus(mp.integer(7)),
            other,
            reading="any" if slug == "cleared" or layout.has("group_idx", REMOVED) else reading,
            extras=(extra(len(written.names)),),
        )


def _shuffled_keys(found: Tolerated) -> None:
    event = full(found.layout)
    written = found.written(event)
    other = full(found.layout, REMOVED)
    found.one(
        "shuffled-keys-reversed", "The keys in reverse order.", written.ordered(lambda n: n[::-1]), event, strict=True
    )
    found.one(
        "shuffled-keys-type-last",
        "The tag as the last key.",
        written.ordered(lambda n: [*n[1:], n[0]]),
        event,
        strict=True,
    )
    found.one("shuffled-keys-sorted", "The keys in alphabetical order.", written.ordered(sorted), event, strict=True)
    found.one(
        "shuffled-keys-removed",
        "The keys of a removed event in reverse order.",
        found.written(other).ordered(lambda n: n[::-1]),
        other,
        strict=True,
    )


def _extra_keys(found: Tolerated) -> None:
    event = stored(found.layout)
    written = found.written(event)

    def extra(key: str) -> tuple[Json, ...]:
        return ({"code": "extra-key", "event_index": 0, "key": key},)

    for slug, (what, value) in _EXTRAS.items():
        words = f"A key that no dialect has, which holds {what}."
        found.one(f"extra-key-{slug}", words, written.plus(value, "later_field"), event, extras=extra("later_field"))
    found.one(
        "extra-key-first",
        "A key that no dialect has, before the tag.",
        written.plus(mp.integer(7), "later_field", at=0),
        event,
        extras=extra("later_field"),
    )
    for slug, other in (("removed", removed(found.layout)), ("cleared", cleared())):
        found.one(
            f"extra-key-{slug}",
            f"A {slug} event with a key that no dialect has.",
            found.written(other).plus(mp.integer(7), "later_field"),
            other,
            extras=extra("later_field"),
        )
    pairs = [(mp.text("type"), mp.text("AllBlocksCleared")), (mp.integer(9), mp.integer(7))]
    found.one("extra-key-not-a-str", "A key that is an integer.", mp.mapping(pairs), cleared(), extras=extra("9"))


def _absent_keys(found: Tolerated) -> None:
    layout = found.layout
    for event, word in ((stored(layout), "stored"), (removed(layout), "removed")):
        written = found.written(event)
        for name in optional(layout, event["type"]):
            if name in layout.always:
                meaning = {key: value for key, value in event.items() if key != name}
                words = f"A {word} event without the key {name}, which its releases always write."
                found.one(f"absent-{word}-{name.replace('_', '-')}", words, written.without(name), meaning)


def _explicit_nils(found: Tolerated) -> None:
    layout = found.layout
    for event, word in ((stored(), "stored"), (removed(), "removed")):
        written = found.written(event)
        missing = [name for name in layout.fields(event["type"]) if name not in written.names]
        for name in missing:
            written = written.plus(mp.NIL, name)
        if missing:
            words = f"A {word} event with every optional key there as nil."
            found.one(f"explicit-nils-{word}", words, written, event, strict=True)


def _metadata(found: Tolerated) -> None:
    layout = found.layout
    event = stored(layout)
    written = found.written(event)
    slot = len(written.names)
    salt = (mp.text("cache_salt"), mp.text("tenant-a"))
    salted = {**event, "cache_salt": "tenant-a"}
    prefixed = {**event, "extra_keys": [[SALT_PREFIX + "tenant-a"]]} if layout.has("extra_keys") else event
    found.one("metadata-nil", "A metadata slot that is nil.", written.plus(mp.NIL), event)
    found.one("metadata-empty", "A metadata map without any key.", written.plus(mp.mapping([])), event)
    found.one(
        "metadata-salt-nil",
        "A metadata map whose salt is nil.",
        written.plus(mp.mapping([(mp.text("cache_salt"), mp.NIL)])),
        event,
    )
    found.one(
        "extra-metadata-key",
        "A metadata map with a key beside the salt.",
        found.written(prefixed).plus(mp.mapping([salt, (mp.text("trace"), mp.integer(7))])),
        {**prefixed, "cache_salt": "tenant-a"},
        extras=({"code": "extra-key", "event_index": 0, "slot": slot, "key": "trace"},),
    )
    if layout.has("extra_keys"):
        found.one(
            "salt-in-extra-keys-only",
            "A salt that stands in the extra keys and not in the metadata.",
            found.written(prefixed),
            {**prefixed, "cache_salt": "tenant-a"},
            strict=True,
        )
        found.one(
            "salt-in-metadata-only",
            "A salt that stands in the metadata and not in the extra keys.",
            written.plus(mp.mapping([salt])),
            salted,
            strict=True,
            roundtrip="none",
        )
