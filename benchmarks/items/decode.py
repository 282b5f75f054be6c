"""`kvwire.decode` of any payload against msgspec told the exact structs of the release that wrote it."""

from __future__ import annotations

from benchmarks.model import Row, compared
from benchmarks.payloads import Corpus, captured, mixed, shaped
from benchmarks.peers import exact, untyped_decoders
from benchmarks.timing import Effort, Pass, each, interleave
from kvwire import Decoder

TARGET = 0.95


def run(effort: Effort) -> list[Row]:
    """One row a corpus."""
    decode = Decoder().decode
    return [
        against_exact(corpus, {"kvwire": each(decode, corpus.payloads)}, effort, item="decode", target=TARGET)
        for corpus in corpora(effort)
    ]


def corpora(effort: Effort) -> list[Corpus]:
    """Shaped, mixed and captured payloads."""
    found = [*shaped(), mixed(effort.scale)]
    real = captured()
    return found if real is None else [*found, real]


def against_exact(
    corpus: Corpus, ours: dict[str, Pass], effort: Effort, *, item: str, target: float | None, peers: bool = True
) -> Row:
    """Our pass over a corpus against that of msgspec's exact structs, and beside those of the untyped libraries."""
    exactly = [(exact(dialect).decode, payload) for dialect, payload in corpus.parts]

    def exact_pass() -> None:
        for decode, payload in exactly:
            decode(payload)

    subjects: dict[str, Pass] = {**ours, "msgspec": exact_pass}
    if peers:
        subjects |= {name: each(decode, corpus.payloads) for name, decode in untyped_decoders().items()}
    series = interleave(subjects, effort, corpus.rounds)
    count = len(corpus.parts)
    return compared(
        {name: [seconds / count for seconds in values] for name, values in series.items()},
        "msgspec",
        item=item,
        case=corpus.name,
        measure="speed / msgspec",
        target=target,
        unit="µs/batch",
        note=", ".join(dict.fromkeys(exact(dialect).source for dialect in corpus.dialects)),
    )
