"""The compatibility matrix as data: producers (dialects) against consumers (decoders and routers)."""

from __future__ import annotations

from typing import Literal

import msgspec

from kvwire_conform.consumer_model import AnswerVerdict, Behaviour, Difference
from kvwire_conform.matrix_features import Feature

__all__ = [
    "FORMAT",
    "SEVERITY",
    "Cell",
    "Column",
    "Evidence",
    "Group",
    "Matrix",
    "Payload",
    "Producer",
    "Row",
    "State",
    "worst",
]

FORMAT = "kvwire-matrix/1"

State = Literal["reads", "partly", "blind", "unseen"]
"""What a cell comes to: everything exact; plain events exact but not all else; not even plain events; nothing judged."""

Group = Literal["router", "decoder", "engine", "example"]

SEVERITY = (
    AnswerVerdict.EXACT,
    AnswerVerdict.UNSUPPORTED,
    AnswerVerdict.LOSSY,
    AnswerVerdict.SIBLING_LOST,
    AnswerVerdict.REJECTED,
    AnswerVerdict.WRONG,
    AnswerVerdict.GARBLED,
    AnswerVerdict.HUNG,
    AnswerVerdict.CRASHED,
)
"""From the mildest to the worst."""


def worst(verdicts: list[AnswerVerdict]) -> AnswerVerdict:
    """The worst of some verdicts; ``exact`` of none."""
    return max(verdicts, key=SEVERITY.index, default=AnswerVerdict.EXACT)


class Producer(msgspec.Struct, frozen=True, kw_only=True):
    """A row of the matrix.

    Attributes:
        id: of the dialect; ``any`` for what no dialect covers: other producers, reported faults.
        releases: the releases that emit it, in words.
    """

    id: str
    releases: str


class Column(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A column: one consumer in one release.

    Attributes:
        id: unique, ``<name> <version>``.
        group: ``router``: a whole router process, fed over ZeroMQ. ``decoder``: a router's own decoder, handed payloads.
            ``engine``: an engine release's own structs, handed payloads. ``example``: a testee of this project.
        claims: dialects that it claims to read.
        judged: payloads that were put to it.
    """

    id: str
    name: str
    version: str
    language: str
    group: Group
    claims: tuple[str, ...]
    judged: int
    reading: str = "any"
    decoder: str = ""
    homepage: str = ""
    notes: str = ""


class Evidence(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One payload that shows a verdict. ``vector`` is a key of the matrix's ``payloads``."""

    vector: str
    verdict: AnswerVerdict
    differences: tuple[Difference, ...] = ()
    said: str = ""
    note: str = ""


class Row(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One feature of a cell.

    Attributes:
        feature: id of the feature.
        verdict: the worst of its payloads.
        counts: payloads per verdict.
        not_judged: payloads whose reading a router does not show.
        evidence: examples of the worst verdicts.
    """

    feature: str
    verdict: AnswerVerdict
    counts: dict[str, int]
    not_judged: int = 0
    evidence: tuple[Evidence, ...] = ()


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """What one consumer makes of one producer.

    Attributes:
        verdict: the worst of all payloads that a release of the dialect writes (kind ``valid``).
        claimed: whether the consumer claims the dialect.
    """

    producer: str
    consumer: str
    state: State
    verdict: AnswerVerdict
    claimed: bool
    rows: tuple[Row, ...]


class Payload(msgspec.Struct, frozen=True, kw_only=True):
    """A golden vector that stands as evidence: its size in bytes, and the first 320 of them in hex."""

    description: str
    kind: str
    size: int
    hex: str


class Matrix(msgspec.Struct, frozen=True, kw_only=True):
    """The whole matrix. Nothing in it depends on when or where it was made."""

    format: str = FORMAT
    kvwire: str
    suite: int
    producers: tuple[Producer, ...]
    consumers: tuple[Column, ...]
    features: tuple[Feature, ...]
    cells: tuple[Cell, ...]
    behaviours: dict[str, tuple[Behaviour, ...]]
    payloads: dict[str, Payload]
