"""The same with the dialect told: `Decoder("slot7")`."""

from __future__ import annotations

from benchmarks.items.decode import TARGET, against_exact, corpora
from benchmarks.model import Row
from benchmarks.timing import Effort
from kvwire import Decoder

LEFT_OUT = ("slot12", "dynamo", "slot7 16x16, 8", "vllm-map5 16x16, 8", "sglang-map2 16x16, 8")
"""What shows nothing that the others do not."""


def run(effort: Effort) -> list[Row]:
    """One row a corpus."""
    rows = []
    for corpus in corpora(effort):
        if corpus.name.startswith(LEFT_OUT):
            continue
        decoders = {dialect: Decoder(dialect).decode for dialect in corpus.dialects}
        told = [(decoders[dialect], payload) for dialect, payload in corpus.parts]

        def ours(told: list[tuple[object, bytes]] = told) -> None:  # type: ignore[assignment]
            for decode, payload in told:
                decode(payload)  # type: ignore[operator]

        rows.append(against_exact(corpus, {"kvwire": ours}, effort, item="decode_told", target=TARGET, peers=False))
    return rows
