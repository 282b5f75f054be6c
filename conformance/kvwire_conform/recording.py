"""The recording format: one JSON object a line, frames in hex.

``{"t": unix seconds, "channel": "live" | "replay" | "replay-request" | "note", "frames": [hex, …]}``. ``live`` is what a
SUB socket received (topic, seq, payload); ``replay`` what a DEALER received, the empty delimiter included, with
``start_seq`` (the sequence number asked for) unless a ``replay-request`` line before it says so. Further keys:
``endpoint`` names the publisher when there are several, ``socket`` the kind of socket, ``step`` the text of a note.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

import msgspec

from kvwire.errors import UsageError


class Record(msgspec.Struct, kw_only=True, gc=False, frozen=True):
    """One line of a recording.

    Attributes:
        t: unix seconds at which the frames arrived.
        channel: ``live``, ``replay``, ``replay-request`` or ``note``.
        frames: the frames, as bytes.
        source: the publisher's endpoint, or "" in recordings of one publisher.
        start_seq: on replay lines, the sequence number asked for; None when a request line says so.
        socket: ``DEALER`` or ``REQ`` on replay lines; a REQ socket takes away the delimiter and all replies but one.
        text: of a note.
    """

    t: float
    channel: str
    frames: list[bytes]
    source: str = ""
    start_seq: int | None = None
    socket: str = "DEALER"
    text: str = ""


class RecordingError(UsageError):
    """A recording that cannot be read; says which line and what is wrong with it."""

    code = "bad-recording"


_line = msgspec.json.Decoder()
CHANNELS = frozenset(("live", "replay", "replay-request", "note"))


def parse_line(line: str | bytes, where: str = "line") -> Record:
    """Read one line. Raises RecordingError, naming ``where``."""
    try:
        row: Any = _line.decode(line)
        channel = row["channel"]
        if channel not in CHANNELS:
            raise RecordingError(f"{where}: channel {channel!r} is none of {', '.join(sorted(CHANNELS))}")
        if channel != "note" and not row["frames"]:
            raise RecordingError(f"{where}: a {channel} line without frames")
        start = row.get("start_seq")
        return Record(
            t=float(row.get("t", 0.0)),
            channel=channel,
            frames=[bytes.fromhex(frame) for frame in row.get("frames", [])],
            source=str(row.get("endpoint", "")),
            start_seq=None if start is None else int(start),
            socket=str(row.get("socket", "DEALER")),
            text=str(row.get("step", row.get("text", ""))),
        )
    except RecordingError:
        raise
    except KeyError as error:
        raise RecordingError(f"{where}: no key {error}") from error
    except (msgspec.DecodeError, TypeError, ValueError, AttributeError, UnicodeDecodeError) as error:
        raise RecordingError(f"{where}: {error}; a recording is one JSON object a line, frames in hex") from error


def read_recording(path: str | Path) -> Iterator[Record]:
    """Read a recording line by line; memory does not grow with its length.

    A last line that was cut off (a recorder killed while it wrote) is passed over.

    Raises:
        RecordingError: the file cannot be read, or a line is wrong.
    """
    try:
        with open(path, "rb") as file:
            held: tuple[int, bytes] | None = None
            for number, line in enumerate(file, start=1):
                if held is not None:
                    yield parse_line(held[1], f"{path}, line {held[0]}")
                held = (number, line) if line.strip() else None
            if held is not None:
                if not held[1].endswith(b"\n"):
                    try:
                        yield parse_line(held[1])
                    except RecordingError:
                        return
                else:
                    yield parse_line(held[1], f"{path}, line {held[0]}")
    except OSError as error:
        raise RecordingError(f"{path}: {error.strerror or error}") from error


def write_record(file: TextIO, record: Record) -> None:
    """Append one line to a recording."""
    row: dict[str, Any] = {"t": record.t, "channel": record.channel}
    if record.source:
        row["endpoint"] = record.source
    if record.start_seq is not None:
        row["start_seq"] = record.start_seq
    if record.socket != "DEALER":
        row["socket"] = record.socket
    if record.text:
        row["step"] = record.text
    row["frames"] = [frame.hex() for frame in record.frames]
    file.write(msgspec.json.encode(row).decode() + "\n")
