"""The invalid vectors of a dialect: one fault each, between good events that it costs nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kvwire_conform import golden_msgpack as mp
from kvwire_conform.golden_case import Case, Reading, batch, cleared, full, raw, removed, stored
from kvwire_conform.golden_layout import CLEARED, REMOVED, SALT_PREFIX, Json, Layout, Written, frame, write_event

_HEX = mp.text("7e3f112233445566")
_NOT_UTF8 = mp.text(b"\xff\xfe")
_EXT = mp.ext(5, b"\x01\x02\x03\x04")

Samples = tuple[tuple[str, bytes], ...]

_STR_OR_NIL: Samples = (("int", mp.integer(7)), ("bin", mp.binary(b"GPU")))
_INT_OR_NIL: Samples = (("str", mp.text("7")), ("float", mp.float64(7.0)))

_WRONG: Mapping[str, Samples] = {
    "block_hashes": (
        ("nil", mp.NIL),
        ("int", mp.integer(5)),
        ("str", _HEX),
        ("of-str", mp.array([_HEX])),
        ("of-float", mp.array([mp.float64(5.0)])),
        ("of-nil", mp.array([mp.NIL])),
        ("of-ext", mp.array([_EXT])),
    ),
    "parent_block_hash": (
        ("str", _HEX),
        ("float", mp.float64(5.0)),
        ("ext", _EXT),
    ),
    "token_ids": (
        ("int", mp.integer(5)),
        ("str", mp.text("11")),
        ("of-float", mp.array([mp.float64(11.0)])),
        ("of-nil", mp.array([mp.NIL])),
        ("of-triples", mp.array([mp.array([mp.integer(1)] * 3)])),
        ("of-ext", mp.array([_EXT])),
    ),
    "block_size": (
        ("str", mp.text("4")),
        ("float", mp.float64(4.0)),
        ("bool", mp.TRUE),
    ),
    "lora_id": (("str", mp.text("7")), ("bool", mp.FALSE)),
    "medium": (*_STR_OR_NIL, ("array", mp.array([mp.text("GPU")]))),
    "lora_name": _STR_OR_NIL,
    "extra_keys": (
        ("int", mp.integer(1)),
        ("str", mp.text("adapter-a")),
        ("of-str", mp.array([mp.text("adapter-a")])),
    ),
    "group_idx": _INT_OR_NIL,
    "kv_cache_spec_kind": _STR_OR_NIL[:1],
    "kv_cache_spec_sliding_window": _INT_OR_NIL,
    "locality": _STR_OR_NIL[:1],
    "ownership": _STR_OR_NIL[:1],
    "cache_salt": (*_STR_OR_NIL, ("map", mp.mapping([(mp.text("cache_salt"), mp.text("tenant-a"))]))),
    "session_id": _STR_OR_NIL[:1],
    "lookahead_token_ids": (
        ("int", mp.integer(15)),
        ("of-int", mp.array([mp.integer(15)])),
        ("of-str-arrays", mp.array([mp.array([mp.text("15")])])),
    ),
}
_TEXTS = ("medium", "lora_name", "kv_cache_spec_kind", "locality", "ownership", "cache_salt", "session_id")


class Invalid:
    """Collects the invalid vectors of one dialect."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.before, self.after = removed(layout), cleared()
        self.cases: list[Case] = []

    def add(
        self, slug: str, description: str, payload: bytes, error: Json, siblings: Json | None, reading: Reading = "any"
    ) -> None:
        """One vector."""
        self.cases.append(
            Case(
                id=f"{self.layout.id}/{slug}",
                dialect=self.layout.id,
                kind="invalid",
                description=description,
                payload=payload,
                reading=reading,
                error=error,
                good_siblings=siblings,
            )
        )

    def event(
        self, slug: str, description: str, event: Written | bytes, code: str, name: str = "", reading: Reading = "any"
    ) -> None:
        """One vector of a bad event between a removal and a clear.

        Args:
            name: the field at fault, ``tag`` for the tag, empty for the whole event.
        """
        error: Json = {"code": code, "event_index": 1}
        if name == "tag":
            error |= {"key": "type"} if self.layout.maps else {"slot": 0}
        elif name:
            error |= {"key": name} if self.layout.maps else {"slot": self.slot(event, name), "key": name}
        self.placed(slug, description, event, error, reading)

    def placed(
        self, slug: str, description: str, event: Written | bytes, error: Json, reading: Reading = "any"
    ) -> None:
        """As `event`, with the whole error told."""
        bad = event.raw if isinstance(event, Written) else event
        payload = frame(self.layout, [raw(self.layout, self.before), bad, raw(self.layout, self.after)])
        self.add(slug, description, payload, error, self.siblings(), reading)

    def siblings(self, ts: float | None = 1.5) -> Json:
        """What is left of the batch of `event`."""
        found = batch(self.before, self.after, rank=0 if self.layout.ranked else None)
        return {**found, "ts": ts}

    def slot(self, event: Written | bytes, name: str) -> int:
        """The slot of a field in an event."""
        assert isinstance(event, Written)
        if name in event.names:
            return event.names.index(name)
        return self.layout.stored.index(name) + 1

    def written(self, event: Json) -> Written:
        """An event of the neutral form, ready for changes."""
        return write_event(self.layout, event, "unsigned")


def invalid_cases(layout: Layout) -> list[Case]:
    """Every invalid vector of a dialect."""
    found = Invalid(layout)
    _wrong_types(found)
    _texts(found)
    _tags(found)
    _missing(found)
    _whole_payload(found)
    _told(found)
    _strict(found)
    if layout.maps:
        _duplicates(found)
    if layout.metadata:
        _metadata(found)
    if layout.has("extra_keys"):
        _extra_keys(found)
    return found.cases


def _slug(name: str) -> str:
    return name.replace("_", "-")


def _words(what: str) -> str:
    kind = what.removeprefix("of-")
    if what == kind:
        return "nil" if kind == "nil" else f"{'an' if kind[0] in 'aeio' else 'a'} {kind}"
    return {"triples": "an array of arrays of three"}.get(kind, f"an array of {kind.replace('-', ' ')}")


def _wrong_types(found: Invalid) -> None:
    layout = found.layout
    event = found.written(full(layout, salt="cache_salt" in layout.stored))
    for name in layout.stored:
        for what, value in _WRONG[name]:
            words = f"{name} that is {_words(what)}."
            found.event(f"wrong-type-{_slug(name)}-{what}", words, event.having(name, value), "wrong-type", name)
    for tag, word in ((REMOVED, "removed"), (CLEARED, "cleared")):
        event = found.written(full(layout, tag))
        for name in layout.fields(tag):
            what, value = _WRONG[name][1 if name == "block_hashes" else 0]
            words = f"{name} of a {word} event that is {_words(what)}."
            # Without a dialect, slot 1 of a clear is an owner only if it can be one.
            reading: Reading = "told" if tag == CLEARED else "any"
            slug = f"wrong-type-{word}-{_slug(name)}"
            found.event(slug, words, event.having(name, value), "wrong-type", name, reading)


def _texts(found: Invalid) -> None:
    event = found.written(full(found.layout, salt="cache_salt" in found.layout.stored))
    for name in _TEXTS:
        if found.layout.has(name):
            words = f"{name} that is not UTF-8."
            found.event(f"utf8-{_slug(name)}", words, event.having(name, _NOT_UTF8), "bad-utf8", name)
    if found.layout.has("extra_keys"):
        value = mp.array([mp.array([_NOT_UTF8])])
        words = "An extra key that is a digest in a str, so not UTF-8."
        found.event("utf8-extra-keys", words, event.having("extra_keys", value), "bad-utf8", "extra_keys")


def _tags(found: Invalid) -> None:
    event = found.written(stored(found.layout))
    samples: Samples = (
        ("nil", mp.NIL),
        ("int", mp.integer(1)),
    )
    for what, value in samples:
        found.event(f"bad-tag-{what}", f"A tag that is {_words(what)}.", event.having("tag", value), "bad-tag", "tag")
    found.event("bad-tag-utf8", "A tag that is not UTF-8.", event.having("tag", _NOT_UTF8), "bad-tag", "tag")


def _missing(found: Invalid) -> None:
    layout = found.layout
    event, other = found.written(stored(layout)), found.written(removed(layout))
    if layout.maps:
        code = "missing-key"
        found.event("missing-type", "A map without a tag.", event.without("tag"), code, "type")
        found.event("missing-everything", "A map without any key.", mp.mapping([]), code, "type")
        for name in ("block_hashes", "token_ids", "block_size"):
            words = f"A stored event without {name}."
            found.event(f"missing-{_slug(name)}", words, event.without(name), code, name)
        words = "A removed event without block_hashes."
        found.event("missing-removed-block-hashes", words, other.without("block_hashes"), code, "block_hashes")
        return
    found.event("missing-everything", "An array without any slot.", mp.array([]), "bad-tag", "tag")
    for count, name in ((1, "block_hashes"), (2, "token_ids"), (3, "token_ids"), (4, "block_size")):
        words = f"A stored event that ends after {count} {'slot' if count == 1 else 'slots'}, before {name}."
        found.event(f"missing-{_slug(name)}-{count}-slots", words, event.cut(count), "missing-slot", name)
    words = "A removed event that ends after its tag."
    found.event("missing-removed-block-hashes", words, other.cut(1), "missing-slot", "block_hashes")


def _whole_payload(found: Invalid) -> None:
    layout = found.layout
    events = [raw(layout, found.before), raw(layout, stored(layout)), raw(layout, found.after)]
    whole = frame(layout, events)
    in_event = whole.index(b"BlockStored") + 5
    in_hash = whole.index(bytes.fromhex("7e3f112233445566")) + 3
    for slug, words, at in (
        ("in-timestamp", "inside the timestamp", 5),
        ("in-tag", "inside a tag", in_event),
        ("in-hash", "inside a block hash", in_hash),
        ("last-byte", "one byte early", len(whole) - 1),
    ):
        found.add(f"truncated-{slug}", f"A payload that ends {words}.", whole[:at], {"code": "truncated"}, None)
    lying = found.written(stored(layout)).having("token_ids", b"\xdd\xff\xff\xff\xff\x0b\x0c")
    words = "Token ids that announce 4294967295 elements and bring two."
    found.add("length-lies-tokens", words, frame(layout, [lying.raw]), {"code": "truncated"}, None)
    trailing = {"code": "trailing-bytes"}
    found.add("trailing-nil", "A nil after the batch.", whole + mp.NIL, trailing, None)
    found.add("trailing-batch", "A second batch after the first.", whole + whole, trailing, None)
    words = "A byte that msgpack never uses, in the place of the block size."
    reserved = found.written(stored(layout)).having("block_size", mp.RESERVED)
    found.add("reserved-byte", words, frame(layout, [reserved.raw]), {"code": "malformed"}, None)
    good = [events[0], events[2]]
    for slug, value in (("nan", float("nan")), ("inf", float("inf"))):
        payload = frame(layout, good, ts=mp.float64(value))
        words = f"A timestamp that is {'not a number' if slug == 'nan' else 'infinite'}."
        error = {"code": "not-finite", "slot": 0, "key": "ts"}
        found.add(f"ts-{slug}", words, payload, error, found.siblings(ts=None))


def _duplicates(found: Invalid) -> None:
    layout = found.layout
    event, other = found.written(stored(layout)), found.written(removed(layout))
    same, more = event.values[1], mp.array([mp.integer(5)])
    samples: Iterable[tuple[str, str, Written, str]] = (
        ("block-hashes", "The hashes twice, with two values.", event.plus(more, "block_hashes"), "block_hashes"),
        ("same-value", "The hashes twice, with one value.", event.plus(same, "block_hashes"), "block_hashes"),
        ("nil-first", "A medium that is nil, and then GPU.", event.plus(mp.NIL, "medium", at=1), "medium"),
        ("type", "The tag twice, with two values.", event.plus(mp.text("BlockRemoved"), "tag"), "type"),
        ("removed", "The hashes of a removed event twice.", other.plus(more, "block_hashes"), "block_hashes"),
        (
            "unknown",
            "A key twice that no dialect has.",
            event.plus(mp.integer(1), "later_field").plus(mp.integer(1), "later_field"),
            "later_field",
        ),
    )
    for slug, words, written, name in samples:
        found.placed(f"duplicate-key-{slug}", words, written, {"code": "duplicate-key", "event_index": 1, "key": name})


def _metadata(found: Invalid) -> None:
    layout = found.layout
    event = found.written(stored(layout))
    slot = len(event.names)
    # Without a dialect, slot 7 holds either a map or a LoRA name, so only a told reader calls it metadata.
    reading: Reading = "told" if slot == 7 else "any"
    for what, value in (("int", mp.integer(7)), ("str", mp.text("tenant-a")), ("array", mp.array([]))):
        error = {"code": "wrong-type", "event_index": 1, "slot": slot, "key": "metadata"}
        words = f"Metadata that is {_words(what)}."
        if not (what == "str" and slot == 7):
            found.placed(f"wrong-type-metadata-{what}", words, event.plus(value), error, reading)
    for what, value in (("int", mp.integer(7)), ("bin", mp.binary(b"tenant-a"))):
        metadata = mp.mapping([(mp.text("cache_salt"), value)])
        error = {"code": "wrong-type", "event_index": 1, "slot": slot, "key": "cache_salt"}
        words = f"A salt in the metadata that is {_words(what)}."
        found.placed(f"wrong-type-metadata-salt-{what}", words, event.plus(metadata), error)
    metadata = mp.mapping([(mp.text("cache_salt"), _NOT_UTF8)])
    error = {"code": "bad-utf8", "event_index": 1, "slot": slot, "key": "cache_salt"}
    found.placed("utf8-metadata-salt", "A salt in the metadata that is not UTF-8.", event.plus(metadata), error)
    twice = mp.mapping([(mp.text("cache_salt"), mp.text("tenant-a")), (mp.text("cache_salt"), mp.text("tenant-b"))])
    error = {"code": "duplicate-key", "event_index": 1, "slot": slot, "key": "cache_salt"}
    found.placed("duplicate-metadata-key", "Two salts in one metadata map.", event.plus(twice), error)
    garbled = mp.mapping([(mp.text(b"c\xc0che_salt"), mp.text("tenant-a"))])
    error = {"code": "bad-utf8", "event_index": 1, "slot": slot, "key": mp.text(b"c\xc0che_salt").hex()}
    about = "A key of the metadata that is not UTF-8; passed over, it would hide a salt."
    found.placed("utf8-metadata-key", about, event.plus(garbled), error)
    if layout.has("extra_keys"):
        two = found.written(stored(layout, cache_salt="tenant-b", extra_keys=[[SALT_PREFIX + "tenant-a"]]))
        error = {"code": "conflicting-salt", "event_index": 1, "key": "cache_salt"}
        found.placed("conflicting-salts", "One salt in the extra keys and another in the metadata.", two, error)


def _extra_keys(found: Invalid) -> None:
    layout = found.layout
    slot = {} if layout.maps else {"slot": 8}
    event = found.written(stored(layout, extra_keys=[["adapter-a"]]))
    prefixes = mp.array([mp.array([mp.text(SALT_PREFIX + "tenant-a"), mp.text(SALT_PREFIX + "tenant-b")])])
    error: Json = {"code": "conflicting-salt", "event_index": 1, "key": "cache_salt"}
    found.placed("conflicting-prefixes", "Two salts among the extra keys.", event.having("extra_keys", prefixes), error)
    timestamp = mp.array([mp.array([b"\xd6\xff\x00\x00\x00\x01"])])
    error = {"code": "wrong-type", "event_index": 1, "key": "extra_keys", **slot}
    words = "A timestamp extension among the extra keys."
    found.placed("wrong-type-extra-keys-of-timestamp", words, event.having("extra_keys", timestamp), error)


def _told(found: Invalid) -> None:
    layout = found.layout
    if layout.maps:
        error = {"code": "wrong-encoding", "event_index": 1}
        array = mp.array([mp.text(REMOVED), mp.array([mp.integer(5)]), mp.text("GPU")])
        found.placed("told-array-event", "An array event, to a reader that was told of maps.", array, error, "told")
        return
    error = {"code": "wrong-encoding", "event_index": 1}
    pairs = [("type", mp.text(REMOVED)), ("block_hashes", mp.array([mp.integer(5)])), ("medium", mp.text("GPU"))]
    event = mp.mapping([(mp.text(key), value) for key, value in pairs])
    found.placed("told-map-event", "A map event, to a reader that was told of arrays.", event, error, "told")
    metadata = mp.mapping([(mp.text("cache_salt"), mp.text("tenant-a"))])
    if layout.id == "slot8":
        error = {"code": "wrong-type", "event_index": 1, "slot": 7, "key": "metadata"}
        words = "A LoRA name in slot 7, to a reader that was told of a metadata map there."
        event = found.written(stored(layout)).plus(mp.text("adapter-a")).raw
        found.placed("told-lora-name-in-slot-7", words, event, error, "told")
        return
    if layout.has("lora_name"):
        error = {"code": "wrong-type", "event_index": 1, "slot": 7, "key": "lora_name"}
        words = "A salted slot8 event, to a reader that was told of a LoRA name in slot 7."
        event = found.written(full(layout, salt=False)).having("lora_name", metadata).raw
    else:
        error = {"code": "foreign-salt", "event_index": 1, "slot": 7}
        words = "A salted slot8 event, to a reader that was told of no salts."
        short = found.written(stored(layout))
        while len(short.names) < 7:
            short = short.plus(mp.text("GPU"))
        event = short.plus(metadata).raw
    found.placed("told-salt-in-slot-7", words, event, error, "told")


def _strict(found: Invalid) -> None:
    layout = found.layout
    event, other = found.written(full(layout)), found.written(full(layout, REMOVED))

    def strictly(words: str) -> str:
        return f"For a strict reader: {words[0].lower()}{words[1:]}"

    def add(slug: str, words: str, bad: Written | bytes, error: Json) -> None:
        found.placed(f"strict-{slug}", strictly(words), bad, {"event_index": 1, **error}, "strict")

    if layout.maps:
        name = "lora_id"
        add("missing-key", f"A stored event without {name}.", event.without(name), {"code": "missing-key", "key": name})
        more = event.plus(mp.integer(7), "later_field")
        words = "A key that the dialect does not have."
        add("extra-key", words, more, {"code": "extra-key", "key": "later_field"})
        tag: Json = {"key": "type"}
        unknown = mp.mapping([(mp.text("type"), mp.text("BlockMoved"))])
    else:
        last = len(layout.stored)
        missing = found.written(full(layout, salt=False)).cut(last)
        error = {"code": "missing-slot", "slot": last, "key": layout.stored[-1]}
        add("missing-slot", "A stored event without its last slot.", missing, error)
        more = event.plus(mp.integer(7))
        error = {"code": "extra-slot", "slot": len(event.names)}
        words = "A stored event with one slot more."
        add("extra-slot", words, more, error)
        if len(layout.removed) > 1:
            last = len(layout.removed)
            error = {"code": "missing-slot", "slot": last, "key": layout.removed[-1]}
            add("missing-removed-slot", "A removed event without its last slot.", other.cut(last), error)
        tag = {"slot": 0}
        unknown = mp.array([mp.text("BlockMoved")])
    add("unknown-tag", "An event with an unknown tag.", unknown, {"code": "unknown-tag", **tag})
    wrapped = mp.binary(event.raw)
    add("bin-event", "An event wrapped in a bin.", wrapped, {"code": "event-not-array-or-map"})
    tokenless = event.having("token_ids", mp.NIL)
    where: Json = {"key": "token_ids"} if layout.maps else {"slot": 3, "key": "token_ids"}
    add("nil-token-ids", "Token ids that are nil.", tokenless, {"code": "wrong-type", **where})
    good = [raw(layout, found.before), raw(layout, found.after)]
    payload = frame(layout, good, ts=mp.integer(2))
    error = {"code": "wrong-type", "slot": 0, "key": "ts"}
    words = "A timestamp that is an integer."
    found.add("strict-ts-int", strictly(words), payload, error, found.siblings(ts=None), "strict")
    parts = [mp.float64(1.5), mp.array(good), *([] if layout.ranked else [mp.integer(0)])]
    words = f"A batch of {len(parts)} elements, in a dialect of {3 if layout.ranked else 2}."
    found.add("strict-batch-arity", strictly(words), mp.array(parts), {"code": "batch-arity"}, None, "strict")
