"""The hash recipes: SGLang's chain against hashlib alone on the same bytes, and vLLM's for information."""

from __future__ import annotations

import hashlib
import random
from array import array
from collections.abc import Iterable

from benchmarks.model import Row, compared, figure
from benchmarks.payloads import VOCABULARY
from benchmarks.timing import Effort, Pass, interleave
from kvwire.hashing import sglang, vllm

TARGET = 1.3
TOKENS = 16_384


def run(effort: Effort) -> list[Row]:
    """Per page size: plain lists of ints as events have them, and u32 arrays as `token_array` gives them."""
    rng = random.Random(4)
    tokens = [rng.randrange(VOCABULARY) for _ in range(TOKENS)]
    rows = []
    for size in (16, 64):
        words = array("I", tokens).tobytes()
        pages = [words[4 * start : 4 * (start + size)] for start in range(0, TOKENS, size)]
        # The target is for the same bytes: a list has to be packed first, which hashlib alone does not do.
        for name, given, target in (("array of u32", array("I", tokens), TARGET), ("list of ints", tokens, None)):

            def chain(given: object = given, size: int = size) -> None:
                exhaust(sglang.page_digests(given, size))

            def alone(pages: list[bytes] = pages) -> None:
                digest = b""
                for page in pages:
                    digest = hashlib.sha256(digest + page).digest()

            def updated(pages: list[bytes] = pages) -> None:
                digest = b""
                for page in pages:
                    state = hashlib.sha256(digest)
                    state.update(page)
                    digest = state.digest()

            series = interleave({"kvwire": chain, "hashlib": alone, "hashlib, update": updated}, effort)
            rows.append(
                compared(
                    {key: [seconds / len(pages) for seconds in values] for key, values in series.items()},
                    "hashlib",
                    item="hashing",
                    case=f"SGLang chain, page size {size}, {name}",
                    measure="time / hashlib",
                    target=target,
                    sense="<=",
                    unit="µs/page",
                    inverse=False,
                )
            )
    return rows + _vllm(tokens, effort)


def _vllm(tokens: list[int], effort: Effort) -> list[Row]:
    rows = []
    root = bytes(32)
    for algorithm in vllm.ALGORITHMS:
        try:
            exhaust(vllm.block_digests(tokens[:16], 16, algorithm=algorithm, parent=root))
        except Exception as error:  # A library that is not installed; any other reason shows in the note.
            rows.append(_information(algorithm, [0.0], f"not run: {error}"))
            continue

        def blocks(algorithm: str = algorithm) -> None:
            exhaust(vllm.block_digests(tokens, 16, algorithm=algorithm, parent=root))

        passes: dict[str, Pass] = {"kvwire": blocks}
        taken = interleave(passes, effort)["kvwire"]
        rows.append(_information(algorithm, [seconds / (TOKENS // 16) for seconds in taken], ""))
    return rows


def _information(algorithm: str, seconds: list[float], note: str) -> Row:
    found = figure("kvwire", seconds, "µs/block", 1e6)
    return Row(
        item="hashing",
        case=f"vLLM {algorithm}, block size 16",
        measure="time",
        value=found.median,
        low=found.low,
        high=found.high,
        unit="µs/block",
        figures=[found],
        note=note,
    )


def exhaust(values: Iterable[object]) -> None:
    """Take every value of an iterator."""
    for _ in values:
        pass
