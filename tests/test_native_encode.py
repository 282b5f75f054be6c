"""The compiled encoder writes what the pure path writes, and raises what it raises, for whatever it is given."""

from __future__ import annotations

import copy
import enum
import gc
import itertools
import os
import subprocess
import sys
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kvwire
from kvwire import DIALECTS, AllBlocksCleared, BlockRemoved, BlockStored, EventBatch, PartialBatch, _encode, codec
from kvwire._walk import walk
from kvwire.codec import Encoder
from kvwire.dialects import Dialect, Encoding, wire
from tests.conftest import CAPTURES
from tests.strategies import CLASSES, FIELDS, batches, dialect_and_batch, dialects, timestamps

pytestmark = pytest.mark.skipif(_encode.encode_ext is None, reason="no compiled extension here")

H, U = 0x7E3F112233445566, 0x8123456789ABCDEF


class UnsureError(Exception):
    """Raised in place of the pure path, to see that it was not needed."""


def refuse(batch: EventBatch) -> bytes:
    raise UnsureError


def alone(dialect: Dialect, on_loss: Any = "error") -> _encode.Encode:
    """The compiled encoder without its fallback."""
    encoder = Encoder(dialect, on_loss)
    return _encode._Plans(_encode.encode_ext, dialect, encoder._writers).encoder(on_loss == "drop", refuse).encode


def outcome(encode: Any, batch: Any) -> Any:
    try:
        return encode(batch)
    except Exception as error:
        return type(error), str(error)


def agree(batch: Any, dialect: Dialect) -> None:
    for on_loss in ("error", "drop"):
        encoder = Encoder(dialect, on_loss)
        found = outcome(encoder.encode, batch)
        assert found == outcome(encoder._encode_pure, batch)
        assert isinstance(found, bytes) or issubclass(found[0], kvwire.KvwireError)


class Number(int):
    """An int that lies about its value, as a subclass may."""

    def __index__(self) -> int:
        return 99

    __int__ = __index__


class Text(str):
    __slots__ = ()


class Items(list[Any]):
    pass


class Tier(str, enum.Enum):
    GPU = "GPU"


class Mine(BlockStored, tag="BlockStored"):
    lora_name: str | None = "always"


integers = st.one_of(
    st.integers(-(1 << 70), 1 << 70),
    st.sampled_from(
        [
            sign * ((1 << bits) + step)
            for bits in (5, 7, 8, 15, 16, 30, 31, 32, 60, 63, 64)
            for sign in (1, -1)
            for step in (-1, 0, 1)
        ]
    ),
)
odd = st.one_of(
    integers,
    st.booleans(),
    st.none(),
    st.floats(),
    st.text(max_size=3),
    st.text(st.characters(categories=["Cs"]), min_size=1, max_size=2),
    st.text(min_size=250, max_size=300).map(lambda value: value * 3),
    st.binary(max_size=3),
    st.sampled_from([b"x" * 255, b"x" * 256, b"x" * 65536, "x" * 31, "x" * 32, "ä" * 128, "x" * 65535, "x" * 65536]),
    st.builds(Number, st.integers(0, 9)),
    st.builds(Text, st.text(max_size=3)),
    st.builds(bytearray, st.binary(max_size=3)),
    st.builds(object),
    st.just(Tier.GPU),
    st.just(msgspec.UNSET),
    st.builds(
        msgspec.Raw,
        st.sampled_from(
            [
                b"\x92\x01\x02",
                b"\xc0",
                b"\x91\xcc\x01",
                b"\x91\xcd\x00\x01",
                b"\x91",
                b"junk",
                b"\x92\xcd\x01\x00\xce\x00\x01\x00\x00",
            ]
        ),
    ),
    st.builds(wire.SaltMetadata, st.text(max_size=3)),
    st.sampled_from(["dynamo-cache-salt:", "dynamo-cache-salt:t", "t", ""]),
)
nested = st.recursive(
    odd,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=3).map(tuple),
        st.lists(inner, max_size=3).map(Items),
        st.dictionaries(st.text(max_size=2), inner, max_size=2),
    ),
    max_leaves=8,
)
salts = st.one_of(st.none(), st.sampled_from(["", "t", "tenant-ä", Text("t"), "\ud800", 5]))
salted_keys = st.one_of(
    st.none(),
    st.lists(
        st.one_of(
            st.none(),
            st.lists(
                st.sampled_from(["dynamo-cache-salt:t", "dynamo-cache-salt:u", "adapter", 3, ["image", -1]]), max_size=2
            ),
            st.just(("dynamo-cache-salt:t",)),
            st.just(()),
            st.just([]),
        ),
        max_size=3,
    ),
    st.just((None,)),
)


@st.composite
def hostile_events(draw: st.DrawFn) -> Any:
    tag = draw(st.sampled_from(sorted(CLASSES)))
    cls = CLASSES[tag]
    values = {}
    for name in cls.__struct_fields__:
        fair = (
            FIELDS[name] if name not in ("cache_salt", "extra_keys") else salts if name == "cache_salt" else salted_keys
        )
        values[name] = draw(nested if draw(st.integers(0, 9)) == 0 else fair)
    event = (Mine if tag == "BlockStored" and draw(st.integers(0, 20)) == 0 else cls)(**values)
    if draw(st.integers(0, 30)) == 0:
        delattr(event, draw(st.sampled_from(cls.__struct_fields__)))
    return event


@st.composite
def hostile_batches(draw: st.DrawFn) -> Any:
    events: Any = draw(st.lists(st.one_of(hostile_events(), hostile_events(), hostile_events(), nested), max_size=3))
    if draw(st.integers(0, 9)) == 0:
        events = draw(st.one_of(st.just(tuple(events)), st.just(Items(events)), nested))
    ts = draw(timestamps if draw(st.integers(0, 9)) else nested)
    return EventBatch(ts, events, draw(st.one_of(st.none(), st.integers(-1, 300), nested)))


@settings(max_examples=int(os.environ.get("KVWIRE_FUZZ", "250")), deadline=None)
@given(hostile_batches(), dialects)
def test_whatever_it_is_given(batch: Any, dialect: Dialect) -> None:
    agree(batch, dialect)


@settings(deadline=None)
@given(batches(), dialects)
def test_neutral_batches_that_may_lose(batch: EventBatch, dialect: Dialect) -> None:
    agree(batch, dialect)


@settings(deadline=None)
@given(dialect_and_batch())
def test_what_a_dialect_carries_needs_no_fallback(pair: tuple[Dialect, EventBatch]) -> None:
    dialect, batch = pair
    payload = alone(dialect)(batch)
    assert payload == Encoder(dialect)._encode_pure(batch)
    assert alone(dialect)(kvwire.decode(payload)) == payload


@settings(deadline=None)
@given(dialect_and_batch())
def test_own_structs_need_no_fallback(pair: tuple[Dialect, EventBatch]) -> None:
    dialect, batch = pair
    encoder = Encoder(dialect)
    own = [encoder.to_wire(event, index) for index, event in enumerate(batch.events)]
    framed = EventBatch(batch.ts, own, batch.dp_rank)
    assert alone(dialect)(framed) == encoder._encode_pure(framed) == encoder.encode(batch)


@settings(deadline=None)
@given(dialect_and_batch(), st.data())
def test_own_structs_with_anything_inside(pair: tuple[Dialect, EventBatch], data: st.DataObject) -> None:
    dialect, batch = pair
    encoder = Encoder(dialect)
    own = [encoder.to_wire(event, index) for index, event in enumerate(batch.events)]
    for event in own:
        if event.__struct_fields__:
            setattr(event, data.draw(st.sampled_from(event.__struct_fields__)), data.draw(nested))
    agree(EventBatch(batch.ts, own, batch.dp_rank), dialect)


@st.composite
def payloads(draw: st.DrawFn) -> bytes:
    """What a dialect writes, sometimes with slots or keys of one's own, sometimes damaged."""
    dialect, batch = draw(dialect_and_batch())
    payload = kvwire.encode(batch, dialect)
    if draw(st.booleans()):
        value = msgspec.msgpack.decode(payload)
        for event in value[1]:
            if draw(st.booleans()):
                continue
            foreign = draw(st.one_of(nested_wire, st.just({"cache_salt": "t"}), st.sampled_from(["GPU", None, 3])))
            if isinstance(event, dict):
                event[draw(st.sampled_from(["ownership", "medium", "why", "cache_salt", "token_ids", "type"]))] = (
                    foreign
                )
            elif draw(st.booleans()):
                event += [None] * draw(st.integers(0, 6)) + [foreign]
            else:
                event[draw(st.integers(0, len(event) - 1))] = foreign
        value += draw(st.sampled_from([[], [], [1]]))
        payload = msgspec.msgpack.encode(value)
    if draw(st.integers(0, 2)) == 0:
        at = draw(st.integers(0, len(payload) - 1))
        middle = draw(st.binary(max_size=2))
        payload = payload[:at] + middle + payload[at + draw(st.integers(0, 2)) :]
    return payload


nested_wire = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(-(1 << 63), (1 << 64) - 1), st.text(max_size=3), st.binary(max_size=3)
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=2), inner, max_size=2)),
    max_leaves=5,
)


def translate_purely(payload: bytes, encoder: Encoder) -> bytes:
    return encoder._encode_pure(codec._decode_whole(payload, encoder))


@settings(max_examples=int(os.environ.get("KVWIRE_FUZZ", "250")), deadline=None)
@given(payloads(), dialects, st.sampled_from(["error", "drop"]))
def test_translation_is_that_of_the_pure_path(payload: bytes, to: Dialect, on_loss: Any) -> None:
    pure = outcome(lambda data: translate_purely(data, Encoder(to, on_loss)), payload)
    assert outcome(lambda data: kvwire.translate(data, to, on_loss=on_loss), payload) == pure


@settings(max_examples=int(os.environ.get("KVWIRE_FUZZ", "250")), deadline=None)
@given(payloads())
def test_what_is_all_known_has_no_extras(payload: bytes) -> None:
    assert _encode.knows_all is not None
    known = _encode.knows_all(payload)
    try:
        found = walk(payload)
    except kvwire.WireError:
        return
    assert not (known and (found.extras or found.skipped))


@given(dialect_and_batch())
def test_what_dialects_write_is_all_known(pair: tuple[Dialect, EventBatch]) -> None:
    dialect, batch = pair
    assert _encode.knows_all is not None
    cleared = dialect.id == "dynamo" and any(event.tag == "AllBlocksCleared" for event in batch.events)
    assert _encode.knows_all(kvwire.encode(batch, dialect)) is not cleared


def test_a_medium_of_a_clear_is_not_lost() -> None:
    payload = msgspec.msgpack.encode([1.5, [["AllBlocksCleared", "GPU"]], 0])
    for translate in (kvwire.translate, lambda data, to: translate_purely(data, Encoder(to))):
        with pytest.raises(kvwire.LossyEncodeError, match="slot 1"):
            translate(payload, "vllm-map5")
    assert kvwire.translate(payload, "slot7", on_loss="drop") == msgspec.msgpack.encode(
        [1.5, [["AllBlocksCleared"]], 0]
    )


@settings(deadline=None)
@given(st.binary(max_size=60))
def test_any_bytes_can_be_looked_at(payload: bytes) -> None:
    assert _encode.knows_all is not None
    for data in (payload, b"\x93\xcb" + b"\0" * 8 + payload, b"\x92\x01\x91\x9f\xabBlockStored" + payload):
        assert _encode.knows_all(data) in (True, False)


def stored(**fields: Any) -> BlockStored:
    values: dict[str, Any] = {
        "block_hashes": [H, -H, U],
        "parent_block_hash": None,
        "token_ids": [1, 2],
        "block_size": 2,
    }
    return BlockStored(**{**values, **fields})


@pytest.mark.parametrize("dialect", DIALECTS.values(), ids=str)
def test_each_width_of_each_header(dialect: Dialect) -> None:
    edges = sorted({(1 << bits) + step for bits in range(64) for step in (-1, 0, 1)} | {(1 << 64) - 1})
    signed = [-edge for edge in edges if edge <= 1 << 63]
    for count, text in itertools.product(
        (0, 1, 15, 16, 65535, 65536), ("", "x" * 31, "ä" * 16, "x" * 255, "x" * 65536)
    ):
        tokens = list(itertools.islice(itertools.cycle(edges + signed), count))
        batch = EventBatch(1.5, [stored(token_ids=tokens, block_hashes=[text.encode()])], None)
        if "medium" in dialect.events["BlockStored"].carried:
            batch.events[0].medium = text
        assert alone(dialect)(batch) == Encoder(dialect)._encode_pure(batch)


@pytest.mark.parametrize("dialect", DIALECTS.values(), ids=str)
def test_salts_need_no_fallback(dialect: Dialect) -> None:
    keys: list[Any] = [
        None,
        [],
        [None],
        [None, ["a"], None],
        [["a", ["image", 3]], None, None],
        [["dynamo-cache-salt:t"], None],
        [[], ["dynamo-cache-salt:t"]],
    ]
    for salt, extra, hashes in itertools.product(("t", "ä", "", "x" * 40), keys, ([], [1], [1, 2, 3])):
        batch = EventBatch(1.5, [stored(cache_salt=salt, extra_keys=extra, block_hashes=hashes)], None)
        assert alone(dialect, "drop")(batch) == Encoder(dialect, "drop")._encode_pure(batch)
        agree(batch, dialect)
        if dialect.carries("BlockStored", "extra_keys"):
            assert alone(dialect)(batch) == Encoder(dialect)._encode_pure(batch)


def test_many_events_outgrow_the_first_buffer() -> None:
    dialect = DIALECTS["slot12"]
    for count in (15, 16, 100, 65535, 65536):
        batch = EventBatch(1.5, [BlockRemoved([H, b"\0" * 32], "GPU")] * count, 0)
        assert alone(dialect)(batch) == Encoder(dialect)._encode_pure(batch)


@pytest.mark.parametrize("dialect", DIALECTS.values(), ids=str)
def test_tokens_left_as_bytes(dialect: Dialect) -> None:
    """Copied where encoding them would give these very bytes; what is longer than it has to be is written anew."""
    for tokens, copied in (
        (b"\x90", True),
        (b"\x92\x01\xcd\x01\x00", True),
        (b"\xdc\x00\x10" + b"\x07" * 16, True),
        (b"\xdc\x00\x02\x01\x02", False),
        (b"\x91\xcd\x00\x01", False),
        (b"\x91\xce\x00\x00\xff\xff", False),
        (b"\x91\xcf" + b"\0" * 7 + b"\x01", False),
        (b"\x91\xd0\xff", False),
        (b"\x91\x92\x01\x02", False),
    ):
        payload = b"\x92\xcb" + b"\x3f" * 8 + b"\x91\x96\xabBlockStored\x91\x01\xc0" + tokens + b"\x01\xc0"
        plain = kvwire.encode(kvwire.decode(payload), dialect)
        lazy = kvwire.Decoder(skip_tokens=True)
        assert kvwire.encode(lazy.decode(payload), dialect) == plain
        if copied:
            assert alone(dialect)(lazy.decode(payload)) == plain
    wrong = payload.replace(b"\x91\x92\x01\x02", b"\x91\xc3")
    with pytest.raises(kvwire.WireError):
        kvwire.encode(kvwire.Decoder(skip_tokens=True).decode(wrong), dialect)


def test_what_only_looks_like_a_batch() -> None:
    for dialect in ("slot6-b2", "slot12", "vllm-map5"):
        for batch in (None, [], (1.5, []), BlockRemoved([1]), object(), EventBatch, wire.Batch2(1.5, [])):
            agree(batch, DIALECTS[dialect])


def test_partial_batches_are_batches() -> None:
    batch = PartialBatch(1.5, [BlockRemoved([H])], 0)
    assert alone(DIALECTS["slot7"])(batch) == kvwire.encode(EventBatch(1.5, [BlockRemoved([H])], 0), "slot7")


def test_lists_that_hold_themselves() -> None:
    endless: list[Any] = []
    endless.append(endless)
    for dialect in DIALECTS.values():
        batch = EventBatch(1.5, [stored(extra_keys=endless, token_ids=endless)], None)
        assert outcome(Encoder(dialect, "drop").encode, batch)[0] is kvwire.InvalidEventError
        with pytest.raises(UnsureError):
            alone(dialect, "drop")(batch)


def test_a_list_that_changes_while_a_hash_is_asked_for() -> None:
    hashes: list[Any] = [1, 2, 3]

    class Clearing(int):
        def __index__(self) -> int:
            hashes.clear()
            return 1

        __int__ = __index__

    hashes[1] = Clearing(2)
    agree(EventBatch(1.5, [BlockRemoved(hashes)], None), DIALECTS["slot7"])


def test_own_structs_of_the_unsalted_form() -> None:
    for dialect, cls in (("slot8", wire.Slot7Stored), ("dynamo", wire.Slot14Stored)):
        encoder = Encoder(dialect)
        event = encoder.to_wire(stored())
        assert type(event) is cls
        batch = EventBatch(1.5, [event], 0)
        assert encoder.encode(batch) == encoder._encode_pure(batch) == encoder.encode(EventBatch(1.5, [stored()], 0))


def test_the_events_are_left_as_they_were() -> None:
    batch = EventBatch(1.5, [stored(cache_salt="t", extra_keys=[None, ["a"]]), AllBlocksCleared()], 0)
    before = copy.deepcopy(batch)
    for dialect in DIALECTS:
        kvwire.encode(batch, dialect, on_loss="drop")
    assert batch == before
    assert batch.events[0].extra_keys == [None, ["a"]]


def test_encoders_are_collected() -> None:
    import weakref

    encoder = Encoder("slot7")
    gone = weakref.ref(encoder)
    del encoder
    gc.collect()
    assert gone() is None


def test_references_are_given_back() -> None:
    big, text = (1 << 200) + 5, "tenant"
    batches_of = [
        EventBatch(1.5, [stored(cache_salt=text, token_ids=[H])], 0),
        EventBatch(1.5, [stored(token_ids=[big])], 0),
        EventBatch(1.5, [stored(medium="\ud800")], 0),
    ]
    for dialect in ("slot8", "vllm-map5"):
        encoder = Encoder(dialect, "drop")
        for batch in batches_of:
            outcome(encoder.encode, batch)
            event = batch.events[0]
            held = (batch, event, event.token_ids, event.token_ids[0], event.block_hashes)
            before = [sys.getrefcount(thing) for thing in held]
            for _ in range(50):
                outcome(encoder.encode, batch)
            assert [sys.getrefcount(thing) for thing in held] == before


def test_construction_refuses_slots_of_another_class() -> None:
    ext: Any = _encode.encode_ext
    plan = (BlockRemoved, b"\x92", False, ((BlockStored.block_hashes, 0, b"", False),), (), None)
    salt = wire.SaltMetadata.cache_salt
    for wrong in (
        plan,
        (object, *plan[1:]),
        (BlockRemoved, b"\x92", False, ((1, 0, b"", False),), (), None),
        (),
        plan[:2],
    ):
        with pytest.raises(TypeError):
            ext.Encoder((wrong,), (), True, False, msgspec.Raw, wire.SaltMetadata, salt, refuse)


@pytest.mark.skipif(not any(CAPTURES.glob("*.jsonl")), reason="no captures; set KVWIRE_CAPTURES to their folder")
def test_captures_need_no_fallback() -> None:
    from kvwire_conform.recording import read_recording

    count = 0
    encoders = {dialect.id: alone(dialect) for dialect in DIALECTS.values()}
    for path in sorted(CAPTURES.glob("*.jsonl")):
        for record in read_recording(path):
            if record.channel != "live" or not record.frames[-1]:
                continue
            batch = kvwire.decode(record.frames[-1])
            assert any(encoders[dialect](batch) == record.frames[-1] for dialect in kvwire.detect(record.frames[-1]))
            count += 1
    assert count


def test_pure_is_a_choice() -> None:
    code = "import kvwire; e = kvwire.Encoder('slot7'); print(e._write == e._encode_pure)"
    for value, wanted in (("1", "True"), ("", "False"), ("0", "False")):
        env = {**os.environ, "KVWIRE_PURE": value}
        done = subprocess.run(
            [sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60, check=True
        )
        assert done.stdout.strip() == wanted


def test_arrays_and_maps_are_both_there() -> None:
    assert {dialect.encoding for dialect in DIALECTS.values()} == set(Encoding)
