"""The tolerated vectors of width: headers and integers that are not the shortest, one at a time and all at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from kvwire_conform import golden_msgpack as mp
from kvwire_conform.golden_case import DIGEST, PARENT, A, B, cleared, full, raw, removed, stored
from kvwire_conform.golden_layout import Form, write_hash

if TYPE_CHECKING:
    from kvwire_conform.golden_tolerated import Tolerated

_TOKENS = [11, 12, 13, 14]
_WIDTHS: tuple[Literal[16, 32], ...] = (16, 32)


def add_wide(found: Tolerated) -> None:
    """Add the vectors of every header and integer width."""
    _batch_headers(found)
    _event_headers(found)
    _values(found)
    _texts(found)
    _all_at_once(found)


def _batch_headers(found: Tolerated) -> None:
    layout = found.layout
    event = stored(layout)
    events = [raw(layout, event)]
    rank = [mp.integer(0)] if layout.ranked else []
    meaning = found.batch(event)
    payload = mp.array([mp.float64(1.5), mp.array(events), *rank], 16)
    found.add("wide-batch-array16", "The batch with an array16 header.", payload, meaning, strict=True)
    for width in _WIDTHS:
        payload = mp.array([mp.float64(1.5), mp.array(events, width), *rank])
        words = f"The array of events with an array{width} header."
        found.add(f"wide-events-array{width}", words, payload, meaning, strict=True)
    if layout.ranked:
        payload = mp.array([mp.float64(1.5), mp.array(events), mp.integer(0, "i64")])
        found.add("wide-rank-i64", "The DP rank as i64.", payload, meaning, strict=True)


def _event_headers(found: Tolerated) -> None:
    layout = found.layout
    kind = "map" if layout.maps else "array"
    event, other = stored(layout), removed(layout)
    for width in _WIDTHS:
        words = f"with {'an' if kind == 'array' else 'a'} {kind}{width} header"
        if layout.stored_header != width:
            wide = found.written(event).wide(width)
            found.one(f"wide-event-{kind}{width}", f"A stored event {words}.", wide, event, strict=True)
    wide = found.written(other).wide(16)
    found.one(f"wide-removed-{kind}16", f"A removed event with a longer {kind} header.", wide, other, strict=True)
    if layout.stored_header:
        words = "A stored event with the shortest map header, where the releases write map16."
        found.one("wide-event-fixmap", words, found.written(event).wide(None), event, strict=True)
    wide = found.written(cleared()).wide(32)
    found.one(f"wide-cleared-{kind}32", f"A clear with the longest {kind} header.", wide, cleared(), strict=True)


def _values(found: Tolerated) -> None:
    layout = found.layout
    event = stored(layout, parent_block_hash=PARENT)
    written = found.written(event)
    tokens = [mp.integer(token) for token in _TOKENS]
    small = {**event, "block_hashes": ["0" * 15 + "7"]}
    negative = {**event, "block_hashes": ["f" * 16]}
    digest = {**event, "block_hashes": [DIGEST]}
    hashes = [write_hash(A, "unsigned")]
    samples = (
        ("hashes-array32", "The hashes with an array32 header", "block_hashes", mp.array(hashes, 32), event),
        ("tokens-array16", "The token ids with an array16 header", "token_ids", mp.array(tokens, 16), event),
        ("tokens-array32", "The token ids with an array32 header", "token_ids", mp.array(tokens, 32), event),
        ("hash-u64", "The hash 7 as u64", "block_hashes", mp.array([mp.integer(7, "u64")]), small),
        ("hash-i64", "A hash below 2^63 as i64", "block_hashes", mp.array([mp.integer(int(A, 16), "i64")]), event),
        ("hash-negative-i64", "The hash -1 as i64", "block_hashes", mp.array([mp.integer(-1, "i64")]), negative),
        ("parent-i64", "A parent below 2^63 as i64", "parent_block_hash", mp.integer(int(PARENT, 16), "i64"), event),
        ("tokens-u32", "Token ids as u32", "token_ids", mp.array([mp.integer(t, "u32") for t in _TOKENS]), event),
        ("tokens-i64", "Token ids as i64", "token_ids", mp.array([mp.integer(t, "i64") for t in _TOKENS]), event),
        ("block-size-i64", "The block size as i64", "block_size", mp.integer(4, "i64"), event),
    )
    for slug, words, name, value, meaning in samples:
        signed = slug == "hash-negative-i64"
        found.one(f"wide-{slug}", f"{words}.", written.having(name, value), meaning, strict=True, signed=signed)
    value = mp.array([mp.binary(bytes.fromhex(DIGEST[6:]), 32)])
    wide = written.having("block_hashes", value)
    found.one("wide-hash-bin32", "A digest with a bin32 header.", wide, digest, strict=True, digests=True)
    if layout.has("group_idx"):
        grouped = stored(layout, group_idx=1)
        value = mp.integer(1, "i64")
        wide = found.written(grouped).having("group_idx", value)
        found.one("wide-group-i64", "The group as i64.", wide, grouped, strict=True)
    if layout.has("extra_keys"):
        keyed = stored(layout, extra_keys=[[["mm-7f", -3]]])
        inner = mp.array([mp.text("mm-7f", 8), mp.integer(-3, "i64")], 16)
        wide = found.written(keyed).having("extra_keys", mp.array([mp.array([inner], 16)], 32))
        found.one("wide-extra-keys", "Extra keys with long headers at every level.", wide, keyed, strict=True)


def _texts(found: Tolerated) -> None:
    layout = found.layout
    event = stored(layout)
    widths: tuple[Literal[8, 16, 32], ...] = (8, 32)
    for width in widths:
        wide = found.written(event).having("tag", mp.text("BlockStored", width))
        found.one(f"wide-tag-str{width}", f"The tag with a str{width} header.", wide, event, strict=True)
        if layout.maps:
            wide = found.written(event).wide(layout.stored_header, width)
            found.one(f"wide-keys-str{width}", f"Every key with a str{width} header.", wide, event, strict=True)
    for name, text in (("medium", "GPU"), ("lora_name", "adapter-116"), ("session_id", "session-1")):
        if layout.has(name):
            named = stored(layout, **{name: text})
            wide = found.written(named).having(name, mp.text(text, 32))
            slug = name.replace("_", "-")
            found.one(f"wide-{slug}-str32", f"{name} with a str32 header.", wide, named, strict=True)


def _all_at_once(found: Tolerated) -> None:
    layout = found.layout
    event = full(layout, salt=False)
    written = found.written(event)
    form: Form = "unsigned"
    values = {
        "block_hashes": mp.array([write_hash(value, form) for value in (A, B)], 32),
        "token_ids": mp.array([mp.integer(token, "i64") for token in event["token_ids"]], 32),
        "block_size": mp.integer(4, "i64"),
        "lora_id": mp.integer(3, "i64"),
        "tag": mp.text("BlockStored", 32),
    }
    for name, value in values.items():
        written = written.having(name, value)
    written = written.wide(32, 32 if layout.maps else None)
    parts = [mp.float64(1.5), mp.array([written.raw], 32)]
    if layout.ranked:
        parts.append(mp.integer(0, "i64"))
    words = "The longest header at every level and the longest integers everywhere."
    found.add("wide-everything", words, mp.array(parts, 32), found.batch(event), strict=True)
