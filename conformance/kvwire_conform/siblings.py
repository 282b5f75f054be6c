"""A batch that was refused, event by event: is one of them at fault, and what did it cost?"""

from __future__ import annotations

import math
from collections.abc import Callable

import msgspec

from kvwire import _msgpack as mp
from kvwire.errors import WireError
from kvwire_conform.answers import Expectation, Found
from kvwire_conform.consumer_model import AnswerVerdict
from kvwire_conform.testee import Breakdown
from kvwire_conform.testee_lines import Answer, Request

__all__ = ["Ask", "alone", "judge_refusal"]

Ask = Callable[[Request], Answer | Breakdown]
"""Whoever is judged: asked one payload, as often as needed."""

_MOST_EVENTS = 256
_NAMED = 3
_WORDS = 300
_ZERO = b"\xcb" + bytes(8)
_NIL = b"\xc0"


def alone(payload: bytes) -> list[bytes]:
    """Each event of a batch as a batch of its own: its very bytes, in a frame of the same arity.

    A ``ts`` or ``dp_rank`` that is itself at fault is left out of it. Empty where the events cannot be reached, or are more
    than 256.
    """
    try:
        mp.check_whole(payload)
        if mp.kind_of(payload[0]) != "array":
            return []
        parts = mp.elements(payload)
        if len(parts) < 2 or mp.kind_of(parts[1][0]) != "array":
            return []
        events = mp.elements(parts[1], _MOST_EVENTS)
    except WireError:
        return []
    ts = mp.scalar(parts[0])
    if isinstance(ts, bool) or not isinstance(ts, int | float) or not math.isfinite(ts):
        parts[0] = _ZERO
    if len(parts) > 2:
        del parts[3:]
        if mp.kind_of(parts[2][0]) not in ("int", "nil"):
            parts[2] = _NIL
    head = bytes([0x90 | len(parts)]) + parts[0] + b"\x91"
    tail = b"".join(parts[2:])
    return [head + event + tail for event in events]


def judge_refusal(expected: Expectation, request: Request, answer: Answer, ask: Ask) -> Found:
    """Whether a refusal of a whole batch cost events that the consumer reads when they come alone."""
    said = answer.error or ""
    rejected = Found(verdict=AnswerVerdict.REJECTED, said=said)
    batches = alone(request.payload)
    if len(batches) < 2:
        return rejected
    read: list[int] = []
    refused: dict[int, str] = {}
    for index, payload in enumerate(batches):
        reply = ask(msgspec.structs.replace(request, payload=payload))
        if isinstance(reply, Breakdown):
            refused[index] = f"{reply.verdict.value}: {reply.said.splitlines()[0]}"
        elif reply.events is None:
            refused[index] = reply.error or reply.unsupported or ""
        elif reply.events and index != expected.at:
            read.append(index)
    if not read:
        return msgspec.structs.replace(rejected, note="sent alone, none of its events is read either")
    if not refused and not expected.faulty:
        return msgspec.structs.replace(
            rejected, note=f"sent alone, each of its {len(batches)} events is read: it is the batch that it refuses"
        )
    culprit = expected.culprit
    if not culprit or (refused and not expected.faulty and expected.at not in refused):
        shown = [f"events[{index}] ({words[:_WORDS]})" for index, words in list(refused.items())[:_NAMED]]
        more = f" and {len(refused) - _NAMED} more" if len(refused) > _NAMED else ""
        culprit = ", ".join(shown) + more
    lost = ", ".join(f"events[{index}]" for index in read[:_NAMED])
    more = f" and {len(read) - _NAMED} more" if len(read) > _NAMED else ""
    return Found(
        verdict=AnswerVerdict.SIBLING_LOST,
        said=said,
        note=f"{culprit} cost {lost}{more}, which {'is' if len(read) == 1 else 'are'} read when sent alone",
    )
