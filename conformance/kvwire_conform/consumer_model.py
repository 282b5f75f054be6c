"""What judging a consumer finds out, as data. `ConsumerReport` serialised to JSON is the report; everything else renders it.

The same report comes from a testee (a decoder behind the protocol of spec/conformance.md) and from a router that was driven
as a whole process.
"""

from __future__ import annotations

import enum

import msgspec

from kvwire_conform.model import Verdict

CONSUMER_REPORT_VERSION = 1
PROTOCOL = 1
"""Version of the testee protocol (spec/conformance.md)."""


class AnswerVerdict(str, enum.Enum):
    """What became of one payload in a consumer (spec/conformance.md#verdicts)."""

    EXACT = "exact"
    LOSSY = "lossy"
    SIBLING_LOST = "sibling-lost"
    WRONG = "wrong"
    REJECTED = "rejected"
    UNSUPPORTED = "unsupported"
    HUNG = "hung"
    GARBLED = "garbled"
    CRASHED = "crashed"


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """One field that a consumer read otherwise than it stands.

    Attributes:
        where: path in the neutral JSON form, e.g. ``events[1].cache_salt``.
        expected, got: JSON text of the two values; ``nothing`` for one that is absent.
    """

    where: str
    expected: str
    got: str


class Judgement(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One payload and what the consumer made of it.

    Attributes:
        id: the golden vector's id, or ``seed-<n>/<dialect>/<batch>`` for a generated payload.
        dialect: None for the vectors in ``any/``.
        kind: ``valid``, ``tolerated`` or ``invalid``.
        verdict: what became of it.
        required: whether the consumer claims this dialect, so that anything but exact is a failure.
        known: whether the known-failures file lists exactly this verdict for it.
        differences: the fields that are lost (lossy) or otherwise (wrong).
        said: the consumer's own words: its error, its reason, its exit code or signal, the end of its stderr.
        note: what the runner adds: which event is at fault, which siblings were read when sent alone.
    """

    id: str
    dialect: str | None
    kind: str
    verdict: AnswerVerdict
    required: bool = False
    known: bool = False
    differences: tuple[Difference, ...] = ()
    said: str = ""
    note: str = ""


class Consumer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Who was judged: a testee's hello, or a router's name and release.

    Attributes:
        name: of the consumer, e.g. ``dynamo-kv-router``.
        version: of the consumer, as its package calls it.
        language: e.g. ``Rust``.
        dialects: ids of the dialects that it claims to read, in the registry's order.
        reading: ``any``: it is not told the dialect. ``told``: each request names it. ``strict``: told, and it insists.
        decoder: the function or type that does the reading, where the testee says.
        homepage: of the consumer.
        notes: what a reader of the verdicts has to know, e.g. that the consumer keeps only the low 8 bytes of a hash.
    """

    name: str
    version: str
    language: str
    dialects: tuple[str, ...]
    reading: str = "any"
    decoder: str = ""
    homepage: str = ""
    notes: str = ""


class Behaviour(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a whole router did in one situation of the stream: a gap, a replay, a restart.

    Attributes:
        id: e.g. ``replay-seq-payload``.
        text: the situation, in words.
        verdict: ``pass``: as the specification asks; ``fail`` otherwise; ``inconclusive`` or ``error`` where it could not be told.
        found: what the router did, in words.
        evidence: lines of its log, or what its state showed.
    """

    id: str
    text: str
    verdict: Verdict
    found: str
    evidence: tuple[str, ...] = ()


class ConsumerReport(msgspec.Struct, kw_only=True):
    """A whole run against one consumer.

    Attributes:
        report: version of this form.
        tool: the tool's name and version.
        mode: ``consumer`` or ``router``.
        subject: the command line of the testee, or the router's package and release.
        consumer: who answered; None when it never said hello.
        suite: the golden suite; ``seed``: of the generated payloads, where there were any.
        started: unix seconds; the only clock reading besides ``seconds``.
        judgements: one a payload, in the order of the manifest, generated ones last.
        behaviours: of a router: gap, replay, restart.
        stale: entries of the known-failures file that no judgement bears out, with the reason.
        not_run: ids of payloads that were not judged, since the consumer kept breaking down or the run was cut short.
        rerun: the command line that judges one payload again; ``ID`` in it stands for its id.
        advice: remarks, e.g. that the consumer reports no ``dp_rank`` and it was therefore not judged.
        interrupted: whether the run was cut short.
        verdict, exit_code: of the run (0, 1, 3, 4, 5 or 130).
    """

    report: int = CONSUMER_REPORT_VERSION
    tool: str
    mode: str
    subject: list[str]
    consumer: Consumer | None = None
    suite: int = 0
    seed: int | None = None
    started: float
    seconds: float = 0.0
    judgements: list[Judgement] = []
    behaviours: list[Behaviour] = []
    stale: list[str] = []
    not_run: list[str] = []
    rerun: str = ""
    advice: list[str] = []
    interrupted: bool = False
    verdict: Verdict = Verdict.INCONCLUSIVE
    exit_code: int = 4
