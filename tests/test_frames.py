"""The frames around a payload: what is packed comes apart again, and what is wrong names itself."""

from __future__ import annotations

import contextlib
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvwire.dialects import Framing
from kvwire.errors import EnvelopeError, LimitError, UsageError, WireError
from kvwire.zmq import frames

SEQ = (7).to_bytes(8, "big")
BATCH = bytes.fromhex("93cb3ff80000000000009000")

topics = st.one_of(st.text(st.characters(exclude_categories=["Cs"]), max_size=12), st.binary(max_size=12))
seqs = st.one_of(st.integers(0, frames.MAX_SEQ), st.sampled_from([0, 1, 255, 1 << 63, frames.MAX_SEQ]))
payloads = st.binary(min_size=1, max_size=40)
framings = st.sampled_from(list(Framing))
anything = st.lists(
    st.one_of(st.binary(max_size=12), st.sampled_from([b"", SEQ, frames.END, BATCH])), max_size=frames.MAX_FRAMES + 2
)


def as_read(topic: str | bytes) -> str | bytes:
    if isinstance(topic, str):
        return topic
    try:
        return topic.decode()
    except UnicodeDecodeError:
        return topic


@given(topics, seqs, payloads)
def test_a_live_message_round_trips(topic: str | bytes, seq: int, payload: bytes) -> None:
    packed = frames.pack_live(topic, seq, payload)
    assert [len(packed), len(packed[1])] == [3, 8]
    assert frames.unpack_live(packed) == frames.Live(as_read(topic), seq, payload)


@given(st.integers(0, frames.END_SEQ), st.booleans())
def test_a_request_round_trips(start: int, delimited: bool) -> None:
    packed = frames.pack_replay_request(start, delimited=delimited)
    assert len(packed) == (2 if delimited else 1)
    assert frames.unpack_replay_request(packed, delimited=delimited) == start


@given(framings, topics, seqs, payloads, st.booleans())
def test_a_reply_tells_its_framing(
    framing: Framing, topic: str | bytes, seq: int, payload: bytes, delimited: bool
) -> None:
    packed = frames.pack_replay(framing, topic, seq, payload, delimited=delimited)
    reply = frames.unpack_replay(packed, delimited=delimited)
    wanted = None if framing is Framing.SEQ_PAYLOAD else as_read(topic)
    assert reply == frames.Reply(framing, wanted, seq, payload)
    assert not reply.end


@pytest.mark.parametrize("delimited", [True, False])
@pytest.mark.parametrize("framing", list(Framing))
def test_an_end_marker_tells_its_framing(framing: Framing, delimited: bool) -> None:
    reply = frames.unpack_replay(frames.pack_replay_end(framing, delimited=delimited), delimited=delimited)
    assert reply.end
    assert (reply.framing, reply.payload) == (framing, b"")


def test_the_bytes_are_those_of_released_engines() -> None:
    assert frames.pack_live("kv", 258, b"x") == [b"kv", b"\0\0\0\0\0\0\1\2", b"x"]
    assert frames.pack_replay_request(258) == [b"", b"\0\0\0\0\0\0\1\2"]
    assert frames.pack_replay_end(Framing.SEQ_PAYLOAD) == [b"", b"\xff" * 8, b""]
    assert frames.pack_replay_end(Framing.TOPIC_SEQ_PAYLOAD) == [b"", b"", b"\xff" * 8, b""]


@given(anything)
def test_any_frames_give_a_value_or_a_wire_error(message: list[bytes]) -> None:
    for delimited in (True, False):
        for read in (frames.unpack_replay, frames.unpack_replay_request):
            with contextlib.suppress(WireError):
                read(message, delimited=delimited)
    with contextlib.suppress(WireError):
        frames.unpack_live(message)


@pytest.mark.parametrize(
    ("message", "got", "hint"),
    [
        ([], "no frame", ""),
        ([BATCH], "1 frame of 12 bytes", "ROCm ATOM sends the payload alone"),
        ([b"kv-events", BATCH], "2 frames of 9, 12 bytes", "without a seq"),
        ([b"t", b"\0\0\1", BATCH], "3 bytes: 00 00 01", "llm-d-kv-cache #491"),
        ([b"t", b"\0\0\0\1", BATCH], "4 bytes: 00 00 00 01", "pack it as 8 bytes"),
        ([b"t", b"\0" * 20, BATCH], "20 bytes: " + "00 " * 15 + "00 …", ""),
        ([b"t", frames.END, BATCH], "ff ff ff ff ff ff ff ff", "end marker"),
        ([b"", b"t", SEQ, BATCH], "4 frames of 0, 1, 8, 12 bytes", "is this the replay endpoint"),
    ],
    ids=lambda value: f"{len(value)}-frames" if isinstance(value, list) else None,
)
def test_a_wrong_live_message_says_what_is_wrong(message: list[bytes], got: str, hint: str) -> None:
    with pytest.raises(EnvelopeError) as caught:
        frames.unpack_live(message)
    assert caught.value.got == got
    assert caught.value.expected
    assert hint in caught.value.hint
    assert bool(hint) == bool(caught.value.hint)


@pytest.mark.parametrize(
    ("message", "key", "hint"),
    [
        ([SEQ, BATCH], "frame 0, delimiter", "delimited=False"),
        ([b"t", SEQ, BATCH], "frame 0, delimiter", "delimited=False"),
        ([b"\0peer", b"", SEQ, BATCH], "frame 0, delimiter", "identity"),
        ([b"", b"", b""], "frame 1, seq", ""),
        ([b"", b"\0\0\1", BATCH], "frame 1, seq", "#491"),
        ([b"", b"t", b"\0\0\1", BATCH], "frame 2, seq", "#491"),
        ([b"", frames.END, BATCH], "frame 2, payload", "must not have"),
        ([b"", SEQ, b""], "frame 2, payload", "end marker"),
        ([b"", b""], None, "no release ends a replay"),
        ([b"", b"t", SEQ, BATCH, b"more"], None, ""),
        ([], None, ""),
    ],
)
def test_a_wrong_reply_says_what_is_wrong(message: list[bytes], key: str | None, hint: str) -> None:
    with pytest.raises(EnvelopeError) as caught:
        frames.unpack_replay(message)
    assert caught.value.key == key
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    ("message", "hint"),
    [
        ([SEQ], "has to send the empty delimiter"),
        ([b"\0peer", b"", SEQ], "identity"),
        ([b"", SEQ, b"extra"], ""),
        ([b"x", SEQ], ""),
        ([b"", b"\0\0\1"], ""),
        ([b"", b""], ""),
    ],
)
def test_a_wrong_request_says_what_is_wrong(message: list[bytes], hint: str) -> None:
    with pytest.raises(EnvelopeError) as caught:
        frames.unpack_replay_request(message)
    assert hint in caught.value.hint


@pytest.mark.parametrize(("width", "start"), [(b"", 0), (b"\5", 5), (b"\0\0\1\0", 256), (b"\1" + b"\0" * 8, 1 << 64)])
def test_a_request_of_any_width_is_read_as_engines_read_it(width: bytes, start: int) -> None:
    assert frames.unpack_replay_request([b"", width], any_width=True) == start


def test_limits() -> None:
    with pytest.raises(LimitError, match="13 bytes"):
        frames.unpack_live([b"", SEQ, b"x" * 13], max_payload=12)
    with pytest.raises(LimitError, match="13 bytes"):
        frames.unpack_replay([b"", SEQ, b"x" * 13], max_payload=12)
    assert frames.unpack_live([b"", SEQ, b"x" * 12], max_payload=12).payload == b"x" * 12
    many = [b""] * (frames.MAX_FRAMES + 1)
    for read in (frames.unpack_live, frames.unpack_replay):
        with pytest.raises(LimitError, match="17 frames"):
            read(many)


@pytest.mark.parametrize("seq", [-1, frames.END_SEQ, 1 << 64])
def test_a_seq_out_of_range_is_the_callers_fault(seq: int) -> None:
    with pytest.raises(UsageError, match="seq must be"):
        frames.pack_live("", seq, BATCH)
    with pytest.raises(UsageError, match="seq must be"):
        frames.pack_replay(Framing.SEQ_PAYLOAD, "", seq, BATCH)


def test_a_topic_has_to_be_text_or_bytes() -> None:
    with pytest.raises(UsageError, match="UTF-8"):
        frames.pack_live("\ud800", 0, BATCH)
    with pytest.raises(UsageError, match="not int"):
        frames.pack_live(5, 0, BATCH)  # type: ignore[arg-type]
    assert frames.unpack_live([b"\xff\xfe", SEQ, BATCH]).topic == b"\xff\xfe"


def test_frames_need_no_sockets() -> None:
    script = (
        "import sys, kvwire.zmq.frames, kvwire.zmq.endpoints, kvwire.stream; assert 'zmq' not in sys.modules; "
        "from kvwire.zmq import AsyncSubscriber, Publisher, Subscriber; assert 'zmq' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
