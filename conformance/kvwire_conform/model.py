"""What the runner finds out, as data. `Report` serialised to JSON is the report; everything else renders it."""

from __future__ import annotations

import enum

import msgspec

REPORT_VERSION = 1


class Level(str, enum.Enum):
    """How binding a requirement is (RFC 2119)."""

    MUST = "MUST"
    SHOULD = "SHOULD"
    MAY = "MAY"


class Verdict(str, enum.Enum):
    """The outcome of one check. A skip is never a pass."""

    PASS = "pass"
    FAIL = "fail"
    WARN = "warn"
    SKIP = "skip"
    INCONCLUSIVE = "inconclusive"
    ERROR = "error"
    HARNESS_ERROR = "harness-error"


class Requirement(msgspec.Struct, frozen=True, kw_only=True):
    """One normative sentence: a row of ``spec/requirements.toml``.

    Attributes:
        id: stable slug, never reused.
        role: ``producer`` or ``consumer``.
        section: file and heading of the specification that state it, e.g. ``transport.md#messages``.
        text: the sentence.
        needs: what a stream has to contain before this can be judged, in words; empty when any traffic does. A check
            that needs nothing special and saw nothing makes the run inconclusive.
        checks: ids of the checks or golden vectors that judge it.
        excluded: why there is no check, where there is none.
    """

    id: str
    level: Level
    role: str
    section: str
    text: str
    needs: str = ""
    checks: list[str] = []
    excluded: str = ""


class Evidence(msgspec.Struct, kw_only=True):
    """The frames that show a finding.

    Attributes:
        seq: the message's sequence number, where it has one.
        received: unix seconds at which the frames arrived.
        channel: ``live`` or ``replay``.
        frames: each frame in hex, cut after 512 bytes.
        cut: bytes left out of ``frames``.
        event_index: the offending event in its batch.
        slots: the offending event (or the batch) slot by slot or key by key, one line each, the culprit marked.
    """

    seq: int | None = None
    received: float | None = None
    channel: str = "live"
    frames: list[str] = []
    cut: int = 0
    event_index: int | None = None
    slots: list[str] = []


class Finding(msgspec.Struct, kw_only=True):
    """One violation, or one reason for a warning.

    Attributes:
        expected, got: in words.
        hint: what it likely means, who is hurt and what to do.
        evidence: the frames that show it.
    """

    expected: str
    got: str
    hint: str = ""
    evidence: Evidence | None = None


class CheckResult(msgspec.Struct, kw_only=True):
    """What one check says about one source.

    Attributes:
        id: the check's id, which is the requirement's id.
        source: name of the source in the report.
        judged: how many things (messages, events, hashes …) were judged.
        violations: how many of them were wrong; ``findings`` holds the first few.
        reason: why it was skipped or is inconclusive, or what a pass or a warning leaves open.
        rerun: the command line that runs this check alone on the same subject.
    """

    id: str
    source: str
    level: Level
    section: str
    text: str
    verdict: Verdict
    judged: int = 0
    violations: int = 0
    findings: list[Finding] = []
    reason: str = ""
    rerun: str = ""


class Source(msgspec.Struct, kw_only=True):
    """One publisher that was listened to.

    Attributes:
        name: how the report calls it: the endpoint, or the recording's file name and endpoint.
        dialect: the dialect it was judged as; None when it could not be told.
        candidates: ids of all dialects that its bytes fit.
        releases: releases that emit the dialect, in words.
        messages, payload_bytes, events: what was seen live; ``events`` counts per tag.
        first_seq, last_seq: of the live messages.
        lost: sequence numbers that neither live nor replay delivered.
        replayed: batches that replay delivered.
        restarts: how often the publisher started anew.
        topic: of the last message.
        dp_rank: of the last batch.
        block_sizes: block sizes seen, with how many events had each; at most 16 are kept.
        media: media seen, with how many blocks were stored there.
        held: blocks held at the end, per medium, as the events tell.
        policy: how repeated stores of one block are counted, and what that leaves open.
        ambiguous: what the wire cannot tell, in words.
        span: seconds from the first to the last live message.
    """

    name: str
    dialect: str | None = None
    candidates: list[str] = []
    releases: str = ""
    messages: int = 0
    payload_bytes: int = 0
    events: dict[str, int] = {}
    first_seq: int | None = None
    last_seq: int | None = None
    lost: int = 0
    replayed: int = 0
    restarts: int = 0
    topic: str | None = None
    dp_rank: int | None = None
    block_sizes: dict[str, int] = {}
    media: dict[str, int] = {}
    held: dict[str, int] = {}
    policy: str = ""
    ambiguous: list[str] = []
    span: float = 0.0


class Report(msgspec.Struct, kw_only=True):
    """A whole run.

    Attributes:
        report: version of this form.
        tool: the tool's name and version.
        mode: ``producer``.
        subject: what was judged, as given on the command line.
        started: unix seconds; the only clock reading besides ``seconds``.
        sources: one entry a publisher.
        results: one entry a check and source, in the order of the specification.
        breaks: what in this stream breaks which consumer, in words (see spec/consumers, where known).
        advice: what to do about a run that saw nothing, and other remarks.
        interrupted: whether the run was cut short.
        verdict: the worst verdict: ``pass``, ``fail``, ``inconclusive``, ``error`` or ``harness-error``.
        exit_code: 0, 1, 3, 4, 5 or 130.
    """

    report: int = REPORT_VERSION
    tool: str
    mode: str
    subject: list[str]
    started: float
    seconds: float = 0.0
    sources: list[Source] = []
    results: list[CheckResult] = []
    breaks: list[str] = []
    advice: list[str] = []
    interrupted: bool = False
    verdict: Verdict = Verdict.INCONCLUSIVE
    exit_code: int = 4
