"""What a capture says in notes: outcomes that no frame can show, in a fixed form.

A note is a `Record` of channel ``note`` whose text is a word, then ``key=value`` pairs, separated by spaces; `note` writes
and `parse` reads it. The replay of one publisher is a sequence of asks, one at a time:

1. a note says what the next request is: ``replay-ask``, ``replay-malformed-sent`` or ``replay-after-malformed``;
2. one ``replay-request`` record holds the frames that were sent (``start_seq`` None when they are malformed);
3. ``replay`` records are the answer, ``start_seq`` as in the request (None after a malformed one);
4. the ask is over with the end marker, a ``replay`` record like the others, or with a note: ``replay-timeout`` for a good
   request, ``replay-malformed-unanswered`` or ``-endless`` for a malformed one. An ask that was under way when the
   capture was stopped, or reached its byte limit, ends with none of them.

Live records go on in between, in the order of arrival. Each ask that had no end marker is followed by a new connection,
so that a late reply to one is never taken for a reply to the next.

``replay-ask kind=K start_seq=N``
    The next request is a good one; see `Kind` for why it is sent.
``replay-timeout kind=K start_seq=N replies=R waited=S``
    No end marker: R batches came, then S seconds of silence; or batches came for S seconds without an end. With
    ``kind=after-malformed`` there is also ``form=F``.
``replay-malformed-sent form=F start_seq=N``
    The next request is malformed; see `Form`. N is what a tolerant publisher reads in it, or -1.
``replay-malformed-unanswered form=F waited=S``
    No reply to it. Released engines are silent on all forms but ``width``.
``replay-malformed-answered form=F replies=R``
    It was answered with R batches and an end marker.
``replay-malformed-endless form=F replies=R``
    It was answered with R batches, and no end marker.
``replay-after-malformed form=F start_seq=N``
    The next request is a good one, sent right after a malformed one over a new connection; it has to be answered.
``replay-overtaken start_seq=N newest=M``
    About the past-end ask just over: live batches reached N meanwhile, so its answer may hold batches.
``replay-gap-given-up start_seq=N``
    A live gap that is not asked for, since too many were.
``replay-never-connected``
    No handshake with the replay endpoint at all; nothing was asked.
``replay-lost kind=K``
    The connection to the replay endpoint was gone and did not come back; this ask and those after it are left out.
``replay-abandoned kind=K``
    This ask and those after it are left out: the good one after a malformed one, or two in a row, had no end.
``live-connected``, ``live-disconnected``, ``live-cut``
    The connection to the live endpoint came about (after the handshake), ended, or was ended by this side: a frame above
    the payload limit, or no ZMTP. It is tried again; batches may be lost meanwhile.
``replay-connected``, ``replay-disconnected``, ``replay-cut``
    The same of the replay endpoint.
``frames-left-out count=C``
    The record before had C more frames.
``capture-end reason=R``
    Listening is over; see `REASONS`. The probes follow, unless it was stopped or too many bytes had come.
"""

from __future__ import annotations

import enum

__all__ = [
    "CAPTURE_END",
    "FRAMES_LEFT_OUT",
    "LIVE_CONNECTED",
    "LIVE_CUT",
    "LIVE_DISCONNECTED",
    "REASONS",
    "REPLAY_ABANDONED",
    "REPLAY_AFTER_MALFORMED",
    "REPLAY_ASK",
    "REPLAY_CONNECTED",
    "REPLAY_CUT",
    "REPLAY_DISCONNECTED",
    "REPLAY_GAP_GIVEN_UP",
    "REPLAY_LOST",
    "REPLAY_MALFORMED_ANSWERED",
    "REPLAY_MALFORMED_ENDLESS",
    "REPLAY_MALFORMED_SENT",
    "REPLAY_MALFORMED_UNANSWERED",
    "REPLAY_NEVER_CONNECTED",
    "REPLAY_OVERTAKEN",
    "REPLAY_TIMEOUT",
    "Form",
    "Kind",
    "note",
    "parse",
]

REPLAY_ASK = "replay-ask"
REPLAY_TIMEOUT = "replay-timeout"
REPLAY_MALFORMED_SENT = "replay-malformed-sent"
REPLAY_MALFORMED_UNANSWERED = "replay-malformed-unanswered"
REPLAY_MALFORMED_ANSWERED = "replay-malformed-answered"
REPLAY_MALFORMED_ENDLESS = "replay-malformed-endless"
REPLAY_AFTER_MALFORMED = "replay-after-malformed"
REPLAY_OVERTAKEN = "replay-overtaken"
REPLAY_GAP_GIVEN_UP = "replay-gap-given-up"
REPLAY_NEVER_CONNECTED = "replay-never-connected"
REPLAY_LOST = "replay-lost"
REPLAY_ABANDONED = "replay-abandoned"
LIVE_CONNECTED = "live-connected"
LIVE_DISCONNECTED = "live-disconnected"
LIVE_CUT = "live-cut"
REPLAY_CONNECTED = "replay-connected"
REPLAY_DISCONNECTED = "replay-disconnected"
REPLAY_CUT = "replay-cut"
FRAMES_LEFT_OUT = "frames-left-out"
CAPTURE_END = "capture-end"

REASONS = ("time", "batches", "bytes", "stopped")
"""Why listening ended: the time was up, so many live batches or bytes had come, or it was stopped."""


class Kind(str, enum.Enum):
    """Why a replay is asked for."""

    START = "start"
    """From 0, once the replay endpoint is there: what was published before the live connection was ready."""
    GAP = "gap"
    """From the first seq that the live stream left out."""
    ZERO = "zero"
    """From 0, after listening."""
    MIDDLE = "middle"
    """From the middle of what was seen."""
    LAST = "last"
    """From the newest seq seen: one batch, or a few that are newer."""
    PAST_END = "past-end"
    """From a seq that is yet to come."""
    MALFORMED = "malformed"
    """Not a good request at all, see `Form`."""
    AFTER_MALFORMED = "after-malformed"
    """From the newest seq seen, right after a malformed request, over a new connection."""


class Form(str, enum.Enum):
    """How a request is malformed."""

    WIDTH = "width"
    """``["", 3 bytes]``. Released engines read a start_seq of any width, and answer."""
    UNDELIMITED = "undelimited"
    """``[8 bytes]``: a DEALER that forgot the delimiter, a mistake seen in a consumer (Mooncake #3616)."""
    FRAMES = "frames"
    """``["", 8 bytes, "extra"]``: a frame too many."""


def note(word: str, **fields: object) -> str:
    """The text of a note."""
    values = (value.value if isinstance(value, enum.Enum) else value for value in fields.values())
    return " ".join([word, *(f"{key}={value}" for key, value in zip(fields, values, strict=True))])


def parse(text: str) -> tuple[str, dict[str, str]]:
    """The word of a note and its fields, as text. Any text is taken; what is no pair is passed over."""
    word, *pairs = text.split(" ")
    return word, dict(pair.split("=", 1) for pair in pairs if "=" in pair)
