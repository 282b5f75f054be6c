"""Timing of small functions, interleaved: every subject once in each round, the order turning from round to round."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

Pass = Callable[[], Any]
"""One pass of a subject over its corpus."""


class Effort(msgspec.Struct, frozen=True):
    """How much time a run takes.

    Attributes:
        quick: only to see that everything runs.
        rounds: of interleaved timings.
        slice: seconds that one subject takes in one round, at least.
        scale: factor on the size of corpora, streams and repetitions.
    """

    quick: bool
    rounds: int
    slice: float
    scale: float


FULL = Effort(False, 11, 0.012, 1.0)
QUICK = Effort(True, 2, 0.0003, 0.005)


def each(function: Callable[[Any], Any], corpus: Sequence[Any]) -> Pass:
    """A pass that calls the function with every element and drops the result."""

    def run() -> None:
        for element in corpus:
            function(element)

    return run


def interleave(subjects: Mapping[str, Pass], effort: Effort, rounds: int | None = None) -> dict[str, list[float]]:
    """Seconds per pass of every subject, one number a round.

    The collector stays on, as in an engine or a router, but does not see what was there before.
    """
    repeats = {name: _repeats(run, effort.slice) for name, run in subjects.items()}
    series: dict[str, list[float]] = {name: [] for name in subjects}
    names = list(subjects)
    if not effort.quick:
        gc.collect()
    gc.freeze()
    try:
        for turn in range(rounds or effort.rounds):
            first = turn % len(names)
            for name in names[first:] + names[:first]:
                series[name].append(_time(subjects[name], repeats[name]))
    finally:
        gc.unfreeze()
    return series


def _repeats(run: Pass, least: float) -> int:
    repeats, taken = 1, _time(run, 1)
    while taken * repeats < least and repeats < 1 << 20:
        repeats *= 2
        taken = _time(run, repeats)
    return repeats


def _time(run: Pass, repeats: int) -> float:
    turns = range(repeats)
    start = time.perf_counter()
    for _ in turns:
        run()
    return (time.perf_counter() - start) / repeats
