"""`Decoder(skip_tokens=True)`: events without their token ids, and the ids asked for afterwards."""

from __future__ import annotations

from benchmarks.items.decode import against_exact
from benchmarks.model import Row
from benchmarks.payloads import Corpus, captured, mixed, shaped
from benchmarks.timing import Effort, each
from kvwire import Decoder

TARGET = 2.5


def run(effort: Effort) -> list[Row]:
    """The target is for 16-block payloads; the others are information. With "then asked for", every token id is read
    after all."""
    decode = Decoder(skip_tokens=True).decode

    def decode_and_ask(payload: bytes) -> None:
        for event in decode(payload).events:
            if event.tag == "BlockStored":
                event.token_ids  # noqa: B018

    found: list[Corpus] = [*shaped(), mixed(effort.scale)]
    real = captured()
    rows = []
    for corpus in found if real is None else [*found, real]:
        if corpus.name.startswith("slot12") or "64 events" in corpus.name:
            continue
        target = TARGET if "16x16" in corpus.name else None
        ours = {
            "kvwire": each(decode, corpus.payloads),
            "kvwire, then asked for": each(decode_and_ask, corpus.payloads),
        }
        rows.append(against_exact(corpus, ours, effort, item="skip_tokens", target=target, peers=False))
    return rows
