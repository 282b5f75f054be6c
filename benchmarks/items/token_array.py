"""`BlockStored.token_array()`: token ids into a buffer, against building the list of them."""

from __future__ import annotations

from benchmarks.model import Row, compared
from benchmarks.payloads import corpus_of, shaped_batch
from benchmarks.timing import Effort, each, interleave
from kvwire import BlockStored, Decoder

TARGET = 3.0


def run(effort: Effort) -> list[Row]:
    """From an event whose tokens are still bytes: the list (``token_ids``) against the array.

    The decode without tokens is part of both passes, since the list is kept once it was made; its own time, measured
    beside them, is taken off.
    """
    if not hasattr(BlockStored, "token_array"):
        return []
    rows = []
    decode = Decoder(skip_tokens=True).decode

    def as_list(payload: bytes) -> None:
        decode(payload).events[0].token_ids  # noqa: B018

    def as_array(payload: bytes) -> None:
        decode(payload).events[0].token_array()

    for dialect in ("slot7", "vllm-map5"):
        for shape in ("1x16", "16x16", "32x64"):
            payloads = corpus_of(shape, dialect, [shaped_batch(dialect, shape, seed=n) for n in range(8)]).payloads
            taken = interleave(
                {"array": each(as_array, payloads), "list": each(as_list, payloads), "alone": each(decode, payloads)},
                effort,
            )
            least = 1e-9
            series = {
                name: [
                    max(least, (whole - alone) / len(payloads))
                    for whole, alone in zip(taken[kind], taken["alone"], strict=True)
                ]
                for name, kind in (("kvwire", "array"), ("list", "list"))
            }
            rows.append(
                compared(
                    series,
                    "list",
                    item="token_array",
                    case=f"{dialect} {shape}",
                    measure="speed / list",
                    target=TARGET,
                    unit="µs/event",
                )
            )
    return rows
