"""Frames, topic and seq of live messages, in the order of arrival."""

from __future__ import annotations

from kvwire_conform.checks.tallies import Tallies
from kvwire_conform.messages import Message

END = (1 << 64) - 1


def split_live(frames: list[bytes], t: float, tallies: Tallies) -> Message | None:
    """Judge the frames of one live message, and take it apart. None when there is no payload to go on with."""
    count = len(frames)
    message = Message(t, "live", frames, b"", None, frames[-1] if frames else b"")
    tally = tallies["three-frames"]
    if count != 3:
        tally.violation(
            lambda: message.finding(
                "3 frames: topic, seq, payload",
                f"{count} frame{'' if count == 1 else 's'}",
                _FRAME_HINTS.get(count, "")
                or "every consumer known drops such a message; send topic, seq and payload, the topic empty if there is none",
            )
        )
        if count == 2:
            message.topic = frames[0]
        return message if count in (1, 2) else None
    tally.ok()
    message.topic = frames[0]
    _judge_topic(message, tallies)
    _judge_seq(message, frames[1], tallies)
    return message


_FRAME_HINTS = {
    1: "ROCm ATOM sent the payload alone when the topic was empty; consumers that want 3 frames drop it",
    2: "ROCm ATOM and Infera sent topic and payload without a seq; losses cannot be noticed, and consumers that want 3 "
    "frames drop it",
}


def _judge_topic(message: Message, tallies: Tallies) -> None:
    try:
        message.topic.decode()
    except UnicodeDecodeError as error:
        reason = str(error)
        tallies["topic-utf8"].violation(lambda: message.finding("UTF-8 text", reason))
    else:
        tallies["topic-utf8"].ok()


def _judge_seq(message: Message, frame: bytes, tallies: Tallies) -> None:
    if len(frame) != 8:
        tallies["seq-width"].violation(
            lambda: message.finding(
                "8 bytes, unsigned, big-endian",
                f"{len(frame)} bytes: {frame[:16].hex(' ') or 'none'}",
                "Dynamo drops such a message; llm-d crashed on it before its fix of #491",
            )
        )
        return
    tallies["seq-width"].ok()
    message.seq = int.from_bytes(frame, "big")
    if message.seq == END:
        tallies["seq-end-reserved"].violation(
            lambda: message.finding(
                "any seq but 2^64-1",
                "seq ff ff ff ff ff ff ff ff on a live batch",
                "consumers take it for the end of a replay, or for a gap of 2^64-1 batches",
            )
        )
        message.seq = None
    else:
        tallies["seq-end-reserved"].ok()


class Framing:
    """What is judged from one live message to the next."""

    def __init__(self, tallies: Tallies) -> None:
        self.tallies = tallies
        self.topic: bytes | None = None

    def see(self, message: Message) -> None:
        """Judge the topic of a message against the one before."""
        tally = self.tallies["topic-constant"]
        if self.topic is not None:
            if message.topic == self.topic:
                tally.ok()
            else:
                before = self.topic
                tally.violation(
                    lambda: message.finding(
                        f"topic {before!r}",
                        f"topic {message.topic!r}",
                        "a subscription to the first topic receives nothing from here on",
                    )
                )
        self.topic = message.topic
