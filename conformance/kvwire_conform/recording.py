"""The recording format: one JSON object a line, frames in hex.

``{"t": unix seconds, "channel": "live" | "replay" | "replay-request" | "note", "frames": [hex, …]}``. ``live`` is what a
SUB socket received (topic, seq, payload); ``replay`` what a DEALER received, the empty delimiter included, with
``start_seq`` (the sequence number asked for) unless a ``replay-request`` line before it says so. Further keys:
``endpoint`` names the publisher when there are several, ``socket`` the kind of socket, ``step`` the text of a note.
"""

from __future__ import annotations

from binascii import unhexlify
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, TextIO

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


class _LiveLine(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    """Nearly every line: a live message, with nothing out of the ordinary."""

    channel: Literal["live"]
    frames: Annotated[list[str], msgspec.Meta(min_length=1)]
    t: float = 0.0
    endpoint: str = ""


_live_line = msgspec.json.Decoder(_LiveLine).decode
_line = msgspec.json.Decoder()
READ_AHEAD = 1 << 20
"""Bytes that are read from a recording at once; a line is often tens of kilobytes."""
CHANNELS = frozenset(("live", "replay", "replay-request", "note"))


def parse_line(line: str | bytes, where: str = "line") -> Record:
    """Read one line. Raises RecordingError, naming ``where``."""
    try:
        live = _live_line(line)
        return Record(t=live.t, channel="live", frames=list(map(unhexlify, live.frames)), source=live.endpoint)
    except (msgspec.DecodeError, ValueError):
        return _parse_any(line, where)


def _parse_any(line: str | bytes, where: str) -> Record:
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
        with open(path, "rb", buffering=READ_AHEAD) as file:
            for number, line in enumerate(file, start=1):
                if line.isspace():
                    continue
                try:
                    record = parse_line(line)
                except RecordingError:
                    if not line.endswith(b"\n"):
                        return
                    record = parse_line(line, f"{path}, line {number}")
                yield record
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


def has_replay(path: str | Path) -> bool:
    """Whether a recording holds replies of a replay endpoint, or requests to one. Raises RecordingError."""
    mark = b'"replay'
    try:
        with open(path, "rb", buffering=READ_AHEAD) as file:
            tail = b""
            while chunk := file.read(READ_AHEAD):
                if mark in tail + chunk:
                    file.seek(0)
                    return any(mark in line[:200] for line in file)
                tail = chunk[-len(mark) :]
    except OSError as error:
        raise RecordingError(f"{path}: {error.strerror or error}") from error
    return False
