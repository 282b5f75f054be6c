"""From the reports of many consumers to one matrix."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping

from msgspec import structs

from kvwire import DIALECTS, __version__
from kvwire.errors import UsageError
from kvwire_conform import golden
from kvwire_conform.consumer_model import AnswerVerdict, Behaviour, ConsumerReport, Difference, Judgement
from kvwire_conform.matrix_features import FEATURES, feature_of
from kvwire_conform.matrix_model import (
    SEVERITY,
    Cell,
    Column,
    Evidence,
    Group,
    Matrix,
    Payload,
    Producer,
    Row,
    State,
    worst,
)

__all__ = ["OURS", "assemble", "column_id", "settled"]

OURS = frozenset({"kvwire", "python-msgspec", "python-msgpack", "node", "go", "rust"})
"""Names of the testees that are examples of this project."""

ENGINES = frozenset({"sglang-structs", "vllm-structs"})
"""Names under which an engine release's own structs answer."""

ANY = "any"
_EVENT = re.compile(r'\{"type": ?"(\w+)"')
_SHOWN = 320
_WORDS = 240
_DIFFERENCES = 3
_EXAMPLES = 3
"""Of one feature in a cell."""
_UNCLAIMED = 2
"""Features with an example in a cell of a dialect that the consumer does not claim."""
_VOLATILE = (
    (re.compile(r"\x1b\[[0-9;]*m"), ""),
    (re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:\.\d+)?Z?\s*"), ""),
    (re.compile(r"\b0x[0-9a-f]{6,16}\b"), "0x…"),
    (re.compile(r"(?<=127\.0\.0\.1:)\d+"), "…"),
    (re.compile(r"(/[\w.+-]+){3,}/"), "…/"),
)
"""What differs from run to run or from machine to machine in a consumer's own words."""


def column_id(report: ConsumerReport) -> str:
    """What a consumer is called in the matrix."""
    found = report.consumer
    assert found is not None, "a report without a consumer has nothing to show"
    told = "" if found.reading == "any" else f" ({found.reading})"
    return f"{found.name} {found.version}{told}"


def assemble(reports: Iterable[ConsumerReport]) -> Matrix:
    """The matrix of some reports, in their order. Reports of consumers that never answered are left out.

    Raises:
        UsageError: a run that was interrupted or given up.
    """
    usable = [report for report in reports if report.consumer is not None]
    for report in usable:
        if report.interrupted or report.not_run:
            raise UsageError(f"{column_id(report)} was not judged whole; a matrix of it would show what nobody saw")
    places = _Places()
    cells: list[Cell] = []
    for report in usable:
        cells += _cells(report, places)
    producers = [Producer(id=d.id, releases=d.emitters) for d in DIALECTS.values()]
    return Matrix(
        kvwire=__version__,
        suite=golden.manifest_of().suite,
        producers=(*producers, Producer(id=ANY, releases="other producers, and faults that were reported")),
        consumers=tuple(_column(report) for report in usable),
        features=FEATURES,
        cells=tuple(cells),
        behaviours={column_id(r): tuple(map(_settled_behaviour, r.behaviours)) for r in usable if r.behaviours},
        payloads=dict(sorted(places.payloads.items())),
    )


class _Places:
    """The vectors behind the evidence, read once each."""

    def __init__(self) -> None:
        self.payloads: dict[str, Payload] = {}
        self._features: dict[str, str] = {}

    def feature(self, vector_id: str) -> str:
        if vector_id not in self._features:
            self._features[vector_id] = feature_of(golden.load(vector_id)).id
        return self._features[vector_id]

    def show(self, vector_id: str) -> None:
        if vector_id not in self.payloads:
            vector = golden.load(vector_id)
            self.payloads[vector_id] = Payload(
                description=vector.description,
                kind=vector.kind,
                size=len(vector.payload),
                hex=vector.payload[:_SHOWN].hex(),
            )


def _column(report: ConsumerReport) -> Column:
    found = report.consumer
    assert found is not None
    return Column(
        id=column_id(report),
        name=found.name,
        version=found.version,
        language=found.language,
        group=_group(report),
        claims=found.dialects,
        judged=sum(1 for judgement in report.judgements if _is_golden(judgement)),
        reading=found.reading,
        decoder=found.decoder,
        homepage=found.homepage,
        notes=found.notes,
    )


def _group(report: ConsumerReport) -> Group:
    assert report.consumer is not None
    if report.mode == "router":
        return "router"
    if report.consumer.name in OURS:
        return "example"
    return "engine" if report.consumer.name in ENGINES else "decoder"


def _is_golden(judgement: Judgement) -> bool:
    return not judgement.id.startswith("seed-")


def _cells(report: ConsumerReport, places: _Places) -> list[Cell]:
    by_producer: dict[str, dict[str, list[Judgement]]] = defaultdict(lambda: defaultdict(list))
    for judgement in filter(_is_golden, report.judgements):
        if report.mode != "router":
            # A decoder that says it does not read a payload has said how it reads it.
            judgement = structs.replace(judgement, required=True)
        by_producer[judgement.dialect or ANY][places.feature(judgement.id)].append(judgement)
    assert report.consumer is not None
    return [
        _cell(producer, column_id(report), producer in report.consumer.dialects, by_producer.get(producer, {}), places)
        for producer in (*DIALECTS, ANY)
    ]


def _cell(
    producer: str, consumer: str, claimed: bool, by_feature: Mapping[str, list[Judgement]], places: _Places
) -> Cell:
    written = [j.verdict for found in by_feature.values() for j in found if j.kind == "valid" and not _not_judged(j)]
    rows = [_row(feature.id, by_feature[feature.id]) for feature in FEATURES if feature.id in by_feature]
    if not (claimed or producer == ANY):
        troubled = [row.feature for row in rows if row.evidence][:_UNCLAIMED]
        rows = [structs.replace(r, evidence=r.evidence[:1] if r.feature in troubled else ()) for r in rows]
    for row in rows:
        for evidence in row.evidence:
            places.show(evidence.vector)
    return Cell(
        producer=producer,
        consumer=consumer,
        state=_state(by_feature),
        verdict=worst(written),
        claimed=claimed,
        rows=tuple(rows),
    )


def _state(by_feature: Mapping[str, list[Judgement]]) -> State:
    judged = {j.verdict for found in by_feature.values() for j in found if not _not_judged(j)}
    if not judged:
        return "unseen"
    if judged == {AnswerVerdict.EXACT}:
        return "reads"
    plain = [j.verdict for j in by_feature.get("plain", ()) if j.kind == "valid" and not _not_judged(j)]
    # A batch without events, or a lone clear, is read by nearly everything: that alone is no reading.
    return "partly" if plain.count(AnswerVerdict.EXACT) * 2 > len(plain) else "blind"


def _not_judged(judgement: Judgement) -> bool:
    """What a router keeps out of its index by design, or does not show, says nothing of how it reads."""
    return judgement.verdict is AnswerVerdict.UNSUPPORTED and not judgement.required


def _row(feature: str, judgements: list[Judgement]) -> Row:
    judged = [judgement for judgement in judgements if not _not_judged(judgement)]
    found = {verdict: [j for j in judged if j.verdict is verdict] for verdict in SEVERITY}
    worst_first = [verdict for verdict in reversed(SEVERITY[1:]) if found[verdict]]
    return Row(
        feature=feature,
        verdict=worst([judgement.verdict for judgement in judged]),
        counts={verdict.value: len(found[verdict]) for verdict in SEVERITY if found[verdict]},
        not_judged=len(judgements) - len(judged),
        evidence=tuple(_evidence(found[verdict]) for verdict in worst_first[:_EXAMPLES]),
    )


def _evidence(judgements: list[Judgement]) -> Evidence:
    """The most ordinary of some payloads of one verdict: one that a release writes, then the first by name."""
    best = min(judgements, key=lambda j: (("valid", "tolerated", "invalid").index(j.kind), len(j.id), j.id))
    return Evidence(
        vector=best.id,
        verdict=best.verdict,
        differences=tuple(map(_settled_difference, best.differences[:_DIFFERENCES])),
        said=settled(best.said),
        note=settled(best.note),
    )


def _settled_difference(found: Difference) -> Difference:
    return Difference(where=found.where, expected=_value(found.expected), got=_value(found.got))


def _value(text: str) -> str:
    """JSON text cut to a line; a whole event is called by its tag."""
    event = _EVENT.match(text)
    if event is not None:
        return f"a {event[1]}"
    return text if len(text) <= _WORDS else text[: _WORDS - 1] + "…"


def _settled_behaviour(found: Behaviour) -> Behaviour:
    return Behaviour(
        id=found.id,
        text=found.text,
        verdict=found.verdict,
        found=settled(found.found),
        evidence=tuple(settled(line) for line in found.evidence),
    )


def settled(text: str) -> str:
    """A consumer's words without what differs from run to run, cut to a few lines."""
    for pattern, instead in _VOLATILE:
        text = pattern.sub(instead, text)
    text = " ".join(text.split())
    return text if len(text) <= _WORDS else text[: _WORDS - 1] + "…"
