"""The ZeroMQ frames around a payload: live messages, replay requests and replay replies. Pure, no socket in sight.

A live message is ``[topic, seq, payload]``. A replay request is ``["", start_seq]``; the reply to it is one message per
batch that is still kept, framed ``["", seq, payload]`` (vLLM until 0.25.1, SGLang until 0.5.21) or
``["", topic, seq, payload]`` (vLLM from 0.26.0, SGLang from 0.5.22), then an end marker of the same framing with the seq
`END`. Every seq is 8 bytes, unsigned, big-endian (spec/transport.md).

The empty first frame of requests and replies is the delimiter. A DEALER socket sends and receives it as a frame of its
own; a REQ socket adds and removes it, so its frames are the same without it (``delimited=False``). A ROUTER has the
peer's identity before the delimiter; take it off before you unpack.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from kvwire.dialects import Framing
from kvwire.errors import EnvelopeError, LimitError, UsageError

__all__ = [
    "END",
    "END_SEQ",
    "MAX_FRAMES",
    "MAX_PAYLOAD",
    "MAX_SEQ",
    "Live",
    "Reply",
    "pack_live",
    "pack_replay",
    "pack_replay_end",
    "pack_replay_request",
    "unpack_live",
    "unpack_replay",
    "unpack_replay_request",
]

END = b"\xff" * 8
"""The seq frame of an end marker: -1 as a signed integer, 2^64-1 as an unsigned one."""

END_SEQ = (1 << 64) - 1
"""`END` as a number; no batch has it."""

MAX_SEQ = END_SEQ - 1
"""The greatest seq that a batch can have."""

MAX_FRAMES = 16
"""Frames of one message that are worth holding: no known producer sends more than 5, a ROUTER's identity included."""

MAX_PAYLOAD = 64 << 20
"""Bytes of one payload that a reader holds unless told otherwise."""


class Live(msgspec.Struct, frozen=True, gc=False):
    """One live message.

    Attributes:
        topic: the first frame as text, or as bytes where it is not UTF-8.
        seq: 0 to `MAX_SEQ`.
        payload: one msgpack batch, not looked into.
    """

    topic: str | bytes
    seq: int
    payload: bytes


class Reply(msgspec.Struct, frozen=True, gc=False):
    """One message of a replay: a batch, or the end marker.

    Attributes:
        framing: which of the two framings it has.
        topic: as in `Live`; None where the framing has no topic frame.
        seq: the batch's seq, or `END_SEQ`.
        payload: the batch; empty in an end marker.
    """

    framing: Framing
    topic: str | bytes | None
    seq: int
    payload: bytes

    @property
    def end(self) -> bool:
        """Whether this is the end marker: no more replies to this request follow."""
        return self.seq == END_SEQ


def pack_live(topic: str | bytes, seq: int, payload: bytes) -> list[bytes]:
    """The three frames of a live message.

    Args:
        topic: text is sent as UTF-8; empty for none.
        seq: 0 to `MAX_SEQ`.
        payload: one msgpack batch.

    Raises:
        UsageError: a seq out of range, or a topic that is neither text nor bytes.
    """
    return [_topic_frame(topic), _seq_frame(seq), payload]


def unpack_live(frames: Sequence[bytes], *, max_payload: int = MAX_PAYLOAD, max_frames: int = MAX_FRAMES) -> Live:
    """Take a live message apart.

    Args:
        frames: as a SUB socket received them.
        max_payload: greatest payload, in bytes.
        max_frames: frames beyond which the count is reported as a limit rather than as a wrong count.

    Raises:
        EnvelopeError: not three frames, a seq that is not 8 bytes wide, or the reserved seq 2^64-1.
        LimitError: a payload or a frame count beyond the limits.
    """
    if len(frames) != 3:
        _refuse_many(len(frames), max_frames)
        raise _wrong_live_count(frames)
    topic, seq, payload = frames
    number = _seq_of(seq, 1)
    if number == END_SEQ:
        raise EnvelopeError(
            "a live message has the seq that marks the end of a replay",
            key="frame 1, seq",
            expected=f"0 to {MAX_SEQ}",
            got=END.hex(" "),
            hint="a consumer takes it for an end marker or for a gap of 2^64-1 batches",
        )
    _limit_payload(payload, max_payload)
    return Live(_text(topic), number, payload)


def pack_replay_request(start_seq: int, *, delimited: bool = True) -> list[bytes]:
    """The frames that ask for every kept batch with ``seq >= start_seq``.

    Args:
        start_seq: 0 to 2^64-1.
        delimited: True for a DEALER, False for a REQ socket, which adds the delimiter itself. A REQ socket gets the
            first reply only.

    Raises:
        UsageError: a seq out of range.
    """
    frame = _seq_frame(start_seq, END_SEQ)
    return [b"", frame] if delimited else [frame]


def unpack_replay_request(frames: Sequence[bytes], *, delimited: bool = True, any_width: bool = False) -> int:
    """The seq that a request asks for.

    Args:
        frames: without the ROUTER's identity.
        delimited: whether the delimiter is to be there; a ROUTER always sees it.
        any_width: read a start_seq of any width, an empty one as 0, as SGLang's and vLLM's publishers do.

    Raises:
        EnvelopeError: a wrong frame count, a first frame that is not the delimiter, or a start_seq of a wrong width.
    """
    wanted = 2 if delimited else 1
    if len(frames) != wanted:
        hint = ""
        if delimited and len(frames) == 1:
            hint = "a DEALER has to send the empty delimiter itself; only a REQ socket adds it"
        elif delimited and len(frames) == 3 and frames[1] == b"":
            hint = "frame 0 looks like the ROUTER's identity of the peer; take it off first"
        raise EnvelopeError(
            "a replay request has the wrong number of frames",
            expected='2 frames: the delimiter "", start_seq' if delimited else "1 frame: start_seq",
            got=_sizes(frames),
            hint=hint,
        )
    if delimited and frames[0] != b"":
        raise EnvelopeError(
            "a replay request does not start with the delimiter",
            key="frame 0, delimiter",
            expected="0 bytes",
            got=_shown(frames[0]),
        )
    start = frames[-1]
    return int.from_bytes(start, "big") if any_width else _seq_of(start, wanted - 1, "start_seq")


def pack_replay(
    framing: Framing, topic: str | bytes, seq: int, payload: bytes, *, delimited: bool = True
) -> list[bytes]:
    """The frames of one replayed batch, for a ROUTER to send behind the peer's identity.

    Args:
        framing: of the dialect that the publisher speaks.
        topic: left out where the framing has no topic frame.
        seq: 0 to `MAX_SEQ`.
        payload: the bytes that were live as this seq.
        delimited: False to leave the delimiter out.

    Raises:
        UsageError: a seq out of range, or a topic that is neither text nor bytes.
    """
    head = [b""] if delimited else []
    if framing is Framing.SEQ_PAYLOAD:
        return [*head, _seq_frame(seq), payload]
    return [*head, _topic_frame(topic), _seq_frame(seq), payload]


def pack_replay_end(framing: Framing, *, delimited: bool = True) -> list[bytes]:
    """The frames of the end marker; its topic, where the framing has one, is empty."""
    head = [b""] if delimited else []
    return [*head, END, b""] if framing is Framing.SEQ_PAYLOAD else [*head, b"", END, b""]


def unpack_replay(
    frames: Sequence[bytes],
    *,
    delimited: bool = True,
    max_payload: int = MAX_PAYLOAD,
    max_frames: int = MAX_FRAMES,
) -> Reply:
    """Take one message of a replay apart; its frames tell which of the two framings it has.

    Args:
        frames: as a DEALER received them, or as a REQ socket did with ``delimited=False``.
        delimited: whether the delimiter is to be there.
        max_payload: greatest payload, in bytes.
        max_frames: frames beyond which the count is reported as a limit rather than as a wrong count.

    Raises:
        EnvelopeError: a wrong frame count, no delimiter, a seq that is not 8 bytes wide, an end marker with a payload,
            or a batch without one.
        LimitError: a payload or a frame count beyond the limits.
    """
    _refuse_many(len(frames), max_frames)
    if delimited and frames and frames[0] != b"":
        raise _undelimited(frames)
    body = frames[1:] if delimited else frames
    if len(body) not in (2, 3):
        raise _wrong_reply_count(frames, delimited)
    seq = _seq_of(body[-2], len(frames) - 2)
    payload = body[-1]
    where = f"frame {len(frames) - 1}, payload"
    if seq == END_SEQ and payload:
        raise EnvelopeError(
            "an end marker has a payload",
            key=where,
            expected="0 bytes",
            got=_shown(payload),
            hint="a batch must not have the seq 2^64-1",
        )
    if seq != END_SEQ and not payload:
        raise EnvelopeError(
            "a replayed batch is empty",
            key=where,
            expected="a msgpack batch",
            got=f"0 bytes with seq {seq}",
            hint="if this is meant as the end marker, its seq has to be ff ff ff ff ff ff ff ff",
        )
    _limit_payload(payload, max_payload)
    if len(body) == 2:
        return Reply(Framing.SEQ_PAYLOAD, None, seq, payload)
    return Reply(Framing.TOPIC_SEQ_PAYLOAD, _text(body[0]), seq, payload)


def _topic_frame(topic: str | bytes) -> bytes:
    if isinstance(topic, str):
        try:
            return topic.encode()
        except UnicodeEncodeError as error:
            raise UsageError(f"topic {topic!r} cannot be written as UTF-8: {error.reason}") from error
    if isinstance(topic, bytes):
        return topic
    raise UsageError(f"topic must be str or bytes, not {type(topic).__name__}")


def _seq_frame(seq: int, greatest: int = MAX_SEQ) -> bytes:
    if not isinstance(seq, int) or not 0 <= seq <= greatest:
        why = "; 2^64-1 marks the end of a replay" if seq == END_SEQ else ""
        raise UsageError(f"seq must be an integer from 0 to {greatest}, not {seq!r}{why}")
    return seq.to_bytes(8, "big")


def _text(topic: bytes) -> str | bytes:
    try:
        return topic.decode()
    except UnicodeDecodeError:
        return topic


def _seq_of(frame: bytes, index: int, name: str = "seq") -> int:
    if len(frame) == 8:
        return int.from_bytes(frame, "big")
    hint = ""
    if name == "seq" and len(frame) == 3:
        hint = "a 3-byte seq crashed llm-d's consumer (llm-d-kv-cache #491); Dynamo drops such a message"
    elif len(frame) in (1, 2, 4):
        hint = "a narrower integer than the wire's: pack it as 8 bytes, big-endian"
    raise EnvelopeError(
        f"frame {index} ({name}) is {len(frame)} bytes wide",
        key=f"frame {index}, {name}",
        expected="8 bytes, unsigned, big-endian",
        got=_shown(frame),
        hint=hint,
    )


def _refuse_many(count: int, max_frames: int) -> None:
    if count > max_frames:
        raise LimitError(
            f"a message of {count} frames; this reader takes {max_frames} at most",
            expected=f"at most {max_frames} frames",
            got=f"{count} frames",
        )


def _limit_payload(payload: bytes, max_payload: int) -> None:
    if len(payload) > max_payload:
        raise LimitError(
            f"a payload of {len(payload)} bytes; this reader takes {max_payload} at most",
            expected=f"at most {max_payload} bytes",
            got=f"{len(payload)} bytes",
        )


_COUNT_HINTS = {
    1: "ROCm ATOM sends the payload alone when its topic is empty; without a seq no loss can be noticed",
    2: "ROCm ATOM and Infera send topic and payload without a seq; no loss can be noticed",
}


def _wrong_live_count(frames: Sequence[bytes]) -> EnvelopeError:
    hint = _COUNT_HINTS.get(len(frames), "")
    if len(frames) == 4 and frames[0] == b"" and len(frames[2]) == 8:
        hint = "these are the frames of a replay reply; is this the replay endpoint?"
    return EnvelopeError(
        "a live message has the wrong number of frames",
        expected="3 frames: topic, seq, payload",
        got=_sizes(frames),
        hint=hint,
    )


def _undelimited(frames: Sequence[bytes]) -> EnvelopeError:
    hint = ""
    if len(frames) in (4, 5) and frames[1] == b"":
        hint = "frame 0 looks like a ROUTER's identity of a peer; take it off first"
    elif len(frames) in (2, 3) and len(frames[-2]) == 8:
        hint = "a REQ socket takes the delimiter away: unpack its frames with delimited=False"
    return EnvelopeError(
        "a replay reply does not start with the delimiter",
        key="frame 0, delimiter",
        expected="0 bytes",
        got=_shown(frames[0]),
        hint=hint,
    )


def _wrong_reply_count(frames: Sequence[bytes], delimited: bool) -> EnvelopeError:
    delimiter = 'the delimiter "", then ' if delimited else ""
    hint = ""
    if frames and not any(frames):
        hint = "no release ends a replay with empty frames alone; the end marker has the seq ff ff ff ff ff ff ff ff"
    return EnvelopeError(
        "a replay reply has the wrong number of frames",
        expected=f"{delimiter}seq and payload, or topic, seq and payload",
        got=_sizes(frames),
        hint=hint,
    )


def _sizes(frames: Sequence[bytes]) -> str:
    if not frames:
        return "no frame"
    count = f"{len(frames)} frame{'' if len(frames) == 1 else 's'}"
    return f"{count} of {', '.join(str(len(frame)) for frame in frames)} bytes"


def _shown(frame: bytes) -> str:
    more = " …" if len(frame) > 16 else ""
    return f"{len(frame)} bytes: {frame[:16].hex(' ')}{more}" if frame else "0 bytes"
