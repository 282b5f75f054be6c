"""The invalid vectors that belong to no dialect: bytes that are no batch, whatever its events would be."""

from __future__ import annotations

import math

from kvwire_conform import golden_msgpack as mp
from kvwire_conform.golden_case import ANY, Case, batch, cleared, raw, removed, stored
from kvwire_conform.golden_foreign import mooncake
from kvwire_conform.golden_layout import LAYOUTS, SALT_PREFIX, Json, frame, write_event

DEPTH = 100_000
"""Levels of the nesting bombs: more than any stack holds."""

_SLOT7 = LAYOUTS["slot7"]
_TS = mp.float64(1.5)
_CLEAR = mp.array([mp.text("AllBlocksCleared")])
_ZERO = mp.integer(0)


class _AnyInvalid:
    def __init__(self, cases: list[Case]) -> None:
        self.cases = cases

    def add(self, slug: str, description: str, payload: bytes, error: Json, siblings: Json | None = None) -> None:
        self.cases.append(
            Case(
                id=f"{ANY}/{slug}",
                dialect=None,
                kind="invalid",
                description=description,
                payload=payload,
                error=error,
                good_siblings=siblings,
            )
        )

    def event(self, slug: str, description: str, event: bytes, code: str, **where: str | int) -> None:
        before, after = removed(_SLOT7), cleared()
        payload = frame(None, [raw(_SLOT7, before), event, raw(_SLOT7, after)])
        self.add(slug, description, payload, {"code": code, "event_index": 1, **where}, batch(before, after))


def add_invalid(cases: list[Case]) -> None:
    """Append the invalid vectors of no dialect."""
    found = _AnyInvalid(cases)
    _batches(found)
    _timestamps(found)
    _ranks_and_events(found)
    _event_kinds(found)
    _bombs(found)
    _lengths(found)


def _batches(found: _AnyInvalid) -> None:
    found.add("empty-payload", "No bytes at all.", b"", {"code": "empty"})
    error = {"code": "batch-not-array"}
    parts = [_TS, mp.array([_CLEAR]), _ZERO]
    samples = (
        ("nil", "A nil in place of a batch.", mp.NIL),
        ("int", "An integer in place of a batch.", mp.integer(7)),
        ("str", "A string in place of a batch.", mp.text("kv")),
        ("map", "A batch as a map.", mp.mapping([(mp.text("ts"), _TS), (mp.text("events"), mp.array([]))])),
        ("bin", "A whole batch wrapped in a bin.", mp.binary(mp.array(parts))),
        ("ext", "An extension value in place of a batch.", mp.ext(5, b"\x00\x01")),
    )
    for slug, words, payload in samples:
        found.add(f"batch-{slug}", words, payload, error)
    found.add("batch-json", "A batch as JSON text.", b'[1.5, [["AllBlocksCleared"]], 0]', {"code": "trailing-bytes"})
    found.add("batch-no-elements", "A batch without elements.", mp.array([]), {"code": "batch-arity"})
    found.add("batch-one-element", "A batch that ends after its timestamp.", mp.array([_TS]), {"code": "batch-arity"})
    found.add("reserved-byte", "The one byte that msgpack never uses.", mp.RESERVED, {"code": "malformed"})
    whole = mp.array(parts)
    found.add("trailing-byte", "A zero after the batch.", whole + _ZERO, {"code": "trailing-bytes"})
    found.add("trailing-batch", "Two batches in one message.", whole + whole, {"code": "trailing-bytes"})
    found.add(
        "truncated-header", "A batch of three elements that ends after its header.", whole[:1], {"code": "truncated"}
    )
    found.add(
        "truncated-before-rank",
        "A batch of three elements that ends before its DP rank.",
        whole[:-1],
        {"code": "truncated"},
    )


def _timestamps(found: _AnyInvalid) -> None:
    left = {**batch(cleared()), "ts": None}
    samples = (
        ("nil", "A timestamp that is nil.", mp.NIL, "wrong-type"),
        ("str", "A timestamp that is a string.", mp.text("2026-01-01T00:00:00Z"), "wrong-type"),
        ("bool", "A timestamp that is a bool.", mp.TRUE, "wrong-type"),
        ("array", "A timestamp that is an array.", mp.array([mp.integer(1), mp.integer(2)]), "wrong-type"),
        ("ext", "A timestamp that is msgpack's own, an extension type.", mp.ext(-1, b"\x65\x53\xf1\x00"), "wrong-type"),
        ("nan", "A timestamp that is not a number.", mp.float64(math.nan), "not-finite"),
        ("inf", "A timestamp that is infinite.", mp.float64(math.inf), "not-finite"),
        ("minus-inf", "A timestamp that is infinite and negative.", mp.float64(-math.inf), "not-finite"),
        ("float32-nan", "A timestamp of four bytes that is not a number.", mp.float32(math.nan), "not-finite"),
    )
    for slug, words, ts, code in samples:
        payload = mp.array([ts, mp.array([_CLEAR]), _ZERO])
        found.add(f"ts-{slug}", words, payload, {"code": code, "slot": 0, "key": "ts"}, left)


def _ranks_and_events(found: _AnyInvalid) -> None:
    samples = (
        ("str", "a string", mp.text("0")),
        ("float", "a float", mp.float64(0.0)),
        ("bool", "a bool", mp.FALSE),
        ("array", "an array", mp.array([_ZERO])),
    )
    for slug, words, rank in samples:
        payload = mp.array([_TS, mp.array([_CLEAR]), rank])
        error = {"code": "wrong-type", "slot": 2, "key": "dp_rank"}
        found.add(f"rank-{slug}", f"A DP rank that is {words}.", payload, error, batch(cleared(), rank=None))
    kinds = (
        ("nil", "nil", mp.NIL),
        ("map", "a map", mp.mapping([])),
        ("int", "an integer", mp.integer(1)),
        ("str", "a string", mp.text("AllBlocksCleared")),
        ("bin", "a bin", mp.binary(mp.array([_CLEAR]))),
    )
    for slug, words, events in kinds:
        error = {"code": "wrong-type", "slot": 1, "key": "events"}
        found.add(f"events-{slug}", f"Events that are {words}.", mp.array([_TS, events, _ZERO]), error)


def _event_kinds(found: _AnyInvalid) -> None:
    code = "event-not-array-or-map"
    samples = (
        ("nil", "nil", mp.NIL),
        ("int", "an integer", mp.integer(7)),
        ("float", "a float", mp.float64(1.0)),
        ("bool", "a bool", mp.TRUE),
        ("str", "a string", mp.text("AllBlocksCleared")),
        ("ext", "an extension value", mp.ext(5, b"\x01")),
        ("bin-junk", "a bin that holds no msgpack", mp.binary(b"\xc1\xc1")),
        ("bin-empty", "a bin of no bytes", mp.binary(b"")),
        ("bin-of-int", "a bin that holds an integer", mp.binary(mp.integer(7))),
        ("bin-in-bin", "a bin in a bin", mp.binary(mp.binary(_CLEAR))),
    )
    for slug, words, event in samples:
        found.event(f"event-{slug}", f"An event that is {words}.", event, code)
    payload, _ = mooncake("stored", legacy=False)
    words = "Mooncake's master without its legacy keys: event_type in place of the tag."
    left = batch(ts=1700000000123.0)
    error = {"code": "missing-key", "event_index": 0, "key": "type"}
    found.add("missing-type-mooncake-master", words, payload, error, left)
    layout = LAYOUTS["sglang-map2"]
    salted = write_event(layout, stored(layout, cache_salt="tenant-b"), "unsigned")
    keys = mp.array([mp.array([mp.text(SALT_PREFIX + "tenant-a")])])
    words = "A map with one salt under its key and another among extra keys."
    found.event(
        "conflicting-salts-map", words, salted.plus(keys, "extra_keys").raw, "conflicting-salt", key="cache_salt"
    )


def _bombs(found: _AnyInvalid) -> None:
    error = {"code": "too-deep"}
    arrays = b"\x91" * DEPTH + mp.NIL
    maps = b"\x81\xa0" * DEPTH + mp.NIL
    event = write_event(LAYOUTS["slot9"], stored(LAYOUTS["slot9"]), "unsigned")
    samples = (
        ("arrays", "Arrays in arrays, 100000 deep.", arrays),
        ("maps", "Maps in maps, 100000 deep.", maps),
        ("unclosed", "100000 array headers and nothing else.", b"\x91" * DEPTH),
        ("in-tokens", "A token that is arrays in arrays.", frame(None, [event.having("token_ids", arrays).raw])),
        (
            "in-extra-keys",
            "An extra key that is arrays in arrays.",
            frame(None, [event.having("extra_keys", arrays).raw]),
        ),
        ("as-event", "An event that is arrays in arrays.", frame(None, [arrays])),
    )
    for slug, words, payload in samples:
        found.add(f"nested-{slug}", words, payload, error)


def _lengths(found: _AnyInvalid) -> None:
    samples = (
        ("array32", "An array that announces 4294967295 elements.", b"\xdd\xff\xff\xff\xff"),
        ("map32", "A map that announces 4294967295 keys.", b"\xdf\xff\xff\xff\xff"),
        ("str32", "A string that announces 4294967295 bytes.", b"\xdb\xff\xff\xff\xff"),
        ("bin32", "A bin that announces 4294967295 bytes.", b"\xc6\xff\xff\xff\xff"),
        ("ext32", "An extension value that announces 4294967295 bytes.", b"\xc9\xff\xff\xff\xff\x05"),
        ("events", "Events that announce 4294967295 elements and bring none.", b"\x93" + _TS + b"\xdd\xff\xff\xff\xff"),
        ("array16", "A batch that announces 65535 elements and brings three.", b"\xdc\xff\xff" + _TS + b"\x90\x00"),
    )
    for slug, words, payload in samples:
        found.add(f"length-lies-{slug}", words, payload, {"code": "truncated"})
    crowd = mp.array([_TS, mp.array([mp.NIL] * 5000), _ZERO])
    error = {"code": "too-many", "slot": 1, "key": "events"}
    found.add("events-5000-nils", "5000 events that are nil.", crowd, error)
