"""The compiled decoder against its oracle, the pure path: the same events, field by field and type by type, or the same
error, for any bytes."""

from __future__ import annotations

import copy
import gc
import math
import os
import pickle
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import kvwire
from kvwire import DIALECTS, BlockStored, Decoder, EventBatch, WireError, _decode, _exact, _fast, _fields
from kvwire._walk import walk
from kvwire_conform.recording import read_recording
from tests.conftest import CAPTURES, ROOT
from tests.strategies import dialect_and_batch

pytestmark = pytest.mark.skipif(_decode.decode_ext is None, reason="no compiled extension here")

TS = b"\xcb" + struct.pack(">d", 1.5)
READINGS: list[dict[str, Any]] = [
    {},
    {"skip_tokens": True},
    {"on_error": "collect"},
    *({"dialect": name} for name in DIALECTS),
    *({"dialect": name, "strict": True} for name in DIALECTS),
    {"dialect": "slot12", "skip_tokens": True},
    {"dialect": "vllm-map5", "strict": True, "on_error": "collect", "skip_tokens": True},
]


def pure(**reading: Any) -> Decoder:
    """A decoder as it is where there is no extension."""
    decoder = Decoder(**reading)
    decoder._reader._first = lambda payload: None
    decoder.decode = decoder._reader.decode  # type: ignore[method-assign]
    return decoder


PAIRS = [(Decoder(**reading), pure(**reading)) for reading in READINGS]


@pytest.fixture(autouse=True, scope="module")
def _without_the_extension_below() -> Iterator[None]:
    """The pure decoders ask `kvwire._exact` whether a payload conforms; here it must not ask the extension."""
    before = _exact._compiled
    _exact._compiled = lambda dialect_id: None  # type: ignore[assignment]
    yield
    _exact._compiled = before


def plain(value: Any) -> Any:
    """A value with the types of all that is in it."""
    if isinstance(value, (list, tuple)):
        return type(value), [plain(item) for item in value]
    if isinstance(value, dict):
        return dict, [(plain(key), plain(item)) for key, item in value.items()]
    if isinstance(value, float) and math.isnan(value):
        return float, "nan"
    return type(value), value


def field(event: Any, name: str) -> Any:
    try:
        return plain(getattr(event, name))
    except WireError as error:
        return fault(error)


def fault(error: WireError) -> Any:
    return type(error), str(error), error.code, error.event_index, error.slot, error.key, error.tag


def reading_of(decoder: Decoder, payload: bytes) -> Any:
    try:
        batch = decoder.decode(payload)
    except WireError as error:
        return fault(error)
    return (
        (plain(batch.ts), plain(batch.dp_rank)),
        [(event.tag, [field(event, name) for name in event.__struct_fields__]) for event in batch.events],
        [fault(found) for found in batch.faults],
        batch.skipped,
    )


def check(payload: bytes, pairs: Any = None) -> None:
    for compiled, oracle in pairs or PAIRS:
        assert reading_of(compiled, payload) == reading_of(oracle, payload), (compiled, payload.hex())


def batch_of(*events: Any, rank: Any = 0) -> bytes:
    return b"\x93" + TS + msgspec.msgpack.encode(list(events)) + msgspec.msgpack.encode(rank)


def stored(*more: Any) -> list[Any]:
    return ["BlockStored", [1], None, [1, 70000], 2, *more]


def keyed(tag: str = "BlockStored", **more: Any) -> dict[str, Any]:
    needed = {"block_hashes": [1], "parent_block_hash": None, "token_ids": [1], "block_size": 1}
    return {"type": tag, **(needed if tag == "BlockStored" else {}), **more}


LATER: dict[str, Any] = {"medium": "GPU", "lora_id": 1, "why": [1, {"a": b"x"}]}
BY_HAND = {
    "nothing": batch_of(),
    "two elements": b"\x92" + TS + b"\x90",
    "four elements": b"\x94" + TS + b"\x90\x00\x00",
    "ts of 32 bits": b"\x93\xca\x3f\xc0\x00\x00\x90\x00",
    "ts is an int": b"\x93\xcf\xff\xff\xff\xff\xff\xff\xff\xff\x90\x00",
    "ts is negative": b"\x93\xd1\xff\x00\x90\x00",
    "long headers": b"\xdd\x00\x00\x00\x03"
    + TS
    + b"\xdc\x00\x01\xdd\x00\x00\x00\x01\xd9\x10AllBlocksCleared\xd3"
    + b"\x00" * 8,
    "slot 7 metadata": batch_of(stored(None, "GPU", {"cache_salt": "tenant-ä"})),
    "slot 7 metadata of two keys": batch_of(stored(None, "GPU", {"cache_salt": "t", "more": 1})),
    "slot 7 metadata without a salt": batch_of(stored(None, "GPU", {})),
    "slot 7 salt is nil": batch_of(stored(None, "GPU", {"cache_salt": None})),
    "slot 7 and 14 agree": batch_of(stored(None, None, {"cache_salt": "t"}, *[None] * 6, {"cache_salt": "t"})),
    "slot 7 and 14 differ": batch_of(stored(None, None, {"cache_salt": "t"}, *[None] * 6, {"cache_salt": "u"})),
    "prefixed and metadata": batch_of(stored(*[None] * 3, [["dynamo-cache-salt:t"]], *[None] * 5, {"cache_salt": "t"})),
    "long salts agree": batch_of(
        stored(*[None] * 3, [["dynamo-cache-salt:" + "long " * 20]], *[None] * 5, {"cache_salt": "long " * 20})
    ),
    "long salts differ": batch_of(stored(*[None] * 3, [["dynamo-cache-salt:" + c * 90 for c in "ab"]])),
    "an empty prefixed salt": batch_of(stored(*[None] * 3, [["dynamo-cache-salt:"]])),
    "two prefixed salts": batch_of(stored(*[None] * 3, [["dynamo-cache-salt:a", "dynamo-cache-salt:b"]])),
    "a prefixed salt and a key": batch_of(keyed(extra_keys=[["dynamo-cache-salt:a"]], cache_salt=None)),
    "a key and a prefixed salt": batch_of(keyed(cache_salt="b", extra_keys=[["dynamo-cache-salt:a"]])),
    "13 slots, a locality": batch_of(stored(*[None] * 7, "LOCAL")),
    "13 slots, an int": batch_of(stored(*[None] * 7, 5)),
    "16 slots": batch_of(stored(*[None] * 11)),
    "17 slots, a map": batch_of(stored(*[None] * 11, {"cache_salt": "t"})),
    "60 slots": batch_of(stored(*[None] * 55)),
    "300 slots": batch_of(stored(*[None] * 295)),
    "placeholders": batch_of(["BlockStored", [1], 0, None, None], keyed(token_ids=None, block_size=None)),
    "pairs": batch_of(["BlockStored", [1], None, [(1, 2), (3, 70000)], 2]),
    "triples": batch_of(["BlockStored", [1], None, [(1, 2, 3)], 1]),
    "pairs of text": batch_of(["BlockStored", [1], None, [("a", "b")], 1]),
    "text tokens": batch_of(["BlockStored", [1], None, ["a", "ä", 5], 3]),
    "float tokens": batch_of(["BlockStored", [1], None, [1.5], 1]),
    "wide tokens": batch_of(["BlockStored", [1], None, [1 << 63, -1, -(1 << 63)], 3]),
    "a removal of every slot": batch_of(["BlockRemoved", [1, b"d", -1], "GPU", 0, "kind", 8, "LOCAL", "me"]),
    "a removal whose slot 4 does not fit": batch_of(["BlockRemoved", [1], "GPU", 0, 5]),
    "a clear with a medium": batch_of(["AllBlocksCleared", "GPU"]),
    "a clear with an owner": batch_of(["AllBlocksCleared", "me"], {"type": "AllBlocksCleared", "ownership": "GPU"}),
    "both encodings": batch_of(["AllBlocksCleared"], keyed()),
    "the tag last": batch_of({**{k: v for k, v in keyed(medium="GPU").items() if k != "type"}, "type": "BlockStored"}),
    "keys of tomorrow": batch_of(keyed(**LATER), keyed("BlockRemoved", block_hashes=[1], token_ids=[1], **LATER)),
    "twelve keys of tomorrow": batch_of({**keyed(), **{f"x{n}": n for n in range(12)}}),
    "an unknown key twice": b"\x93" + TS + b"\x91\x83\xa4type\xb0AllBlocksCleared\xa1x\x01\xa1x\x01\x00",
    "a known key twice": b"\x93" + TS + b"\x91\x83\xa4type\xacBlockRemoved\xacblock_hashes\x90\xacblock_hashes\x90\x00",
    "the tag twice": b"\x93" + TS + b"\x91\x82\xa4type\xb0AllBlocksCleared\xa4type\xb0AllBlocksCleared\x00",
    "an unknown key that is not UTF-8": b"\x93" + TS + b"\x91\x82\xa4type\xb0AllBlocksCleared\xa1\xff\x01\x00",
    "a key that is an int": b"\x93" + TS + b"\x91\x82\xa4type\xb0AllBlocksCleared\x01\x01\x00",
    "an ext under an unknown key": batch_of({"type": "AllBlocksCleared", "x": msgspec.msgpack.Ext(5, b"x")}),
    "extra keys of all kinds": batch_of(
        stored(*[None] * 3, [None, [], ["a", 1, -5, 1.5, True, None, b"d", ["m", [-3]]]])
    ),
    "extra keys with a map": batch_of(stored(*[None] * 3, [[{"a": [1]}]])),
    "extra keys with a NaN": batch_of(stored(*[None] * 3, [[math.nan]])),
    "extra keys four deep": batch_of(stored(*[None] * 3, [[[[[["x"]]]]]])),
    "extra keys five deep": batch_of(stored(*[None] * 3, [[[[[[["x"]]]]]]])),
    "extra keys with a timestamp": b"\x93"
    + TS
    + b"\x91"
    + b"\x99"
    + msgspec.msgpack.encode(stored(None, None, None))[1:]
    + b"\x91\x91\xd6\xff\x00\x00\x00\x00\x00",
    "lookahead": batch_of(keyed(lookahead_token_ids=[[1, 2], []]), keyed(lookahead_token_ids=[None])),
    "an unknown tag among others": batch_of(["AllBlocksCleared"], ["Moved", 1], stored()),
    "an event in a bin": batch_of(msgspec.msgpack.encode(stored())),
    "a trailing byte": batch_of() + b"\x00",
    "5000 nils": batch_of(*[None] * 5000),
    "rank of 64 bits": batch_of(rank=(1 << 64) - 1),
    "no rank": batch_of(rank=None),
    "tokens that lie": b"\x93" + TS + b"\x91\x97\xabBlockStored\x91\x01\xc0\xdd\xff\xff\xff\xff",
    "events that lie": b"\x93" + TS + b"\xdd\x7f\xff\xff\xff",
    "empty": b"",
}


@pytest.mark.parametrize("case", BY_HAND)
def test_by_hand(case: str) -> None:
    check(BY_HAND[case])


@pytest.mark.parametrize("case", BY_HAND)
def test_cut_anywhere(case: str) -> None:
    payload = BY_HAND[case][:200]
    for size in range(len(payload)):
        check(payload[:size], PAIRS[:2])


def test_it_is_the_compiled_decoder_that_is_judged() -> None:
    """What engines send is read by it, with no help."""
    for compiled in (_decode.compiled(None, strict=False, skip_tokens=skip) for skip in (False, True)):
        assert compiled is not None
        for name in ("slot 7 metadata", "prefixed and metadata", "placeholders", "both encodings", "keys of tomorrow"):
            assert compiled(BY_HAND[name]) is not None, name
        assert compiled(BY_HAND["events that lie"]) is None


@given(dialect_and_batch())
def test_every_dialect(pair: tuple[kvwire.Dialect, EventBatch]) -> None:
    dialect, batch = pair
    payload = kvwire.encode(batch, dialect)
    check(payload)
    told = _decode.compiled(dialect, strict=True, skip_tokens=False)
    if told is not None and (found := told(payload)) is not None:
        assert found.events == walk(payload, dialect, strict=True).events


@settings(max_examples=150)
@given(dialect_and_batch(), st.data())
def test_any_change_of_valid_bytes(pair: tuple[kvwire.Dialect, EventBatch], data: st.DataObject) -> None:
    payload = bytearray(kvwire.encode(pair[1], pair[0]))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(payload) - 1))
        kind = data.draw(st.sampled_from(["set", "insert", "drop", "cut"]))
        if kind == "set":
            payload[at] = data.draw(st.integers(0, 255))
        elif kind == "insert":
            payload.insert(at, data.draw(st.integers(0, 255)))
        elif kind == "drop" and len(payload) > 1:
            del payload[at]
        else:
            payload = payload[: max(at, 1)]
    named = next((p for p in PAIRS[3:] if p[0].dialect == pair[0] and p[0].strict), PAIRS[0])
    check(bytes(payload), [*PAIRS[:3], named])


@given(st.binary(max_size=120))
@example(b"\x93" + TS + b"\x91\x98\xabBlockStored\x90\xc0\x90\0\xc0\xc0\x80\0")
def test_any_bytes(payload: bytes) -> None:
    check(payload, PAIRS[:3])
    check(b"\x93" + TS + b"\x91" + payload, PAIRS[:3])
    check(b"\x93" + TS + b"\x91\x99\xabBlockStored\x91\x01\xc0\x91\x01\x01" + payload + b"\x00", PAIRS[:3])


@pytest.mark.parametrize("folder", sorted(p.name for p in (ROOT / "golden").iterdir() if p.is_dir()))
def test_golden_vectors(folder: str) -> None:
    for path in (ROOT / "golden" / folder).glob("*.msgpack"):
        check(path.read_bytes())


FILES = sorted(CAPTURES.glob("*.jsonl"))


@pytest.mark.skipif(not FILES, reason="no captures; set KVWIRE_CAPTURES to their folder")
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_captures(path: Path) -> None:
    compiled = _decode.compiled(None, strict=False, skip_tokens=False)
    assert compiled is not None
    for record in read_recording(path):
        if record.channel in ("live", "replay") and record.frames[-1]:
            assert compiled(record.frames[-1]) is not None
            check(record.frames[-1], PAIRS[:2])


class TestEvents:
    def event(self, **reading: Any) -> Any:
        return (
            Decoder(**reading)
            .decode(kvwire.encode(EventBatch(1.5, [BlockStored([1], None, [1, 2], 2)], 0), "slot7"))
            .events[0]
        )

    def test_they_are_the_neutral_classes_whatever_the_encoding(self) -> None:
        for dialect in ("slot7", "vllm-map5"):
            events = [BlockStored([1], None, [1], 1), kvwire.BlockRemoved([1]), kvwire.AllBlocksCleared()]
            back = kvwire.decode(kvwire.encode(EventBatch(1.5, events, None), dialect, on_loss="drop"))
            assert [type(event) for event in back.events] == [type(event) for event in events]
            assert type(back) is EventBatch

    @pytest.mark.parametrize("skip", [False, True])
    def test_they_can_be_copied_pickled_and_changed(self, skip: bool) -> None:
        event = self.event(skip_tokens=skip)
        assert copy.copy(event) == event
        assert pickle.loads(pickle.dumps(self.event())) == event
        event.medium, event.token_ids = "CPU", [3]
        assert (event.medium, event.token_ids) == ("CPU", [3])

    def test_the_collector_does_not_see_them(self) -> None:
        assert not gc.is_tracked(self.event())
        assert not gc.is_tracked(self.event(skip_tokens=True))

    def test_lazy_tokens_do_not_keep_the_payload(self) -> None:
        payload = kvwire.encode(EventBatch(1.5, [BlockStored([1], None, [1, 2], 2)] * 1000, 0), "slot7")
        before = sys.getrefcount(payload)
        kept = Decoder(skip_tokens=True).decode(payload)
        assert sys.getrefcount(payload) == before
        assert kept.events[999].token_ids == [1, 2]


def test_pure_by_choice() -> None:
    script = "import kvwire; print(kvwire.SPEEDUPS, kvwire.decode(kvwire.encode(kvwire.EventBatch(1.5, []), 'slot7')))"
    for value, wanted in (("1", "() "), ("0", "('decode'")):
        run = subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "KVWIRE_PURE": value},
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        assert run.stdout.startswith(wanted)


def test_references_are_given_back() -> None:
    """What every event shares is held no more often after reading than before, whether or not it could be read."""
    shared = [None, EventBatch, *_fields.CLASSES.values(), _fast.LazyMapStored, msgspec.Raw]
    decoders = [_decode.compiled(None, strict=False, skip_tokens=skip) for skip in (False, True)]
    payloads = [
        payload[:size] for payload in BY_HAND.values() if len(payload) < 500 for size in range(len(payload) + 1)
    ]

    def read_all() -> list[int]:
        for decode in decoders:
            assert decode is not None
            for payload in payloads:
                decode(payload)
        return [sys.getrefcount(value) for value in shared]

    before, blocks = read_all(), sys.getallocatedblocks()
    after = [read_all() for _ in range(5)][-1]
    assert sys.getallocatedblocks() - blocks < 50
    assert all(abs(one - other) < 50 for one, other in zip(before, after, strict=True))


class TestMakingOne:
    def arguments(self, **changes: Any) -> dict[str, Any]:
        ext = _decode.decode_ext
        fields = (("ownership", ext.TEXT, kvwire.AllBlocksCleared.ownership, False, True),)
        made: dict[str, Any] = {
            "batch": (EventBatch, EventBatch.ts, EventBatch.events, EventBatch.dp_rank),
            "layouts": (("AllBlocksCleared", kvwire.AllBlocksCleared, fields, (0,)),),
            "strict": False,
            "arrays": True,
            "maps": True,
            "arity": (2, 3),
            "media": None,
            "raw": None,
        }
        return {**made, **changes}

    def test_it_reads(self) -> None:
        decoder = _decode.decode_ext.Decoder(**self.arguments())
        assert decoder.decode(BY_HAND["a clear with an owner"]).events[0] == kvwire.AllBlocksCleared("me")
        assert decoder.decode(bytearray(b"\x90")) is None

    def test_what_it_cannot_fill_is_refused(self) -> None:
        class Tracked(msgspec.Struct):
            ownership: str | None = None

        ext = _decode.decode_ext
        owner = kvwire.AllBlocksCleared.ownership
        foreign = (("ownership", ext.TEXT, kvwire.BlockRemoved.ownership, False, True),)
        for layouts in (
            (("AllBlocksCleared", Tracked, (), ()),),
            (("AllBlocksCleared", int, (), ()),),
            (("AllBlocksCleared", kvwire.AllBlocksCleared, foreign, ()),),
            (("AllBlocksCleared", kvwire.AllBlocksCleared, (("a", 99, owner, False, True),), ()),),
            (("AllBlocksCleared", kvwire.AllBlocksCleared, (), (0,)),),
            (("A" * 40, kvwire.AllBlocksCleared, (), ()),),
            (("AllBlocksCleared",),),
        ):
            with pytest.raises((TypeError, ValueError)):
                ext.Decoder(**self.arguments(layouts=layouts))
        for changes in ({"arity": (1, 3)}, {"media": ["GPU"]}, {"batch": (EventBatch, 1, 2, 3)}):
            with pytest.raises((TypeError, ValueError)):
                ext.Decoder(**self.arguments(**changes))
