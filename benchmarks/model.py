"""What a run yields: rows, each a value with its spread, its target and the figures that it was made of."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec


class Figure(msgspec.Struct, frozen=True):
    """One subject's measurement.

    Attributes:
        name: ``kvwire`` or the peer's name.
        median, low, high: over the rounds; low and high are the 10th and 90th percentile.
        unit: of the three.
    """

    name: str
    median: float
    low: float
    high: float
    unit: str


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One measured statement.

    Attributes:
        item: what is measured, e.g. ``decode``.
        case: on which payload or in which situation.
        variant: ``compiled`` or ``pure``; empty where the extension plays no part.
        measure: what the value says, e.g. ``speed / msgspec``.
        value, low, high: median, 10th and 90th percentile of the rounds' values.
        unit: of the value; empty for a ratio.
        target: what the value should reach; None where it is information.
        sense: ``>=`` or ``<=``: on which side of the target it should be.
        figures: what each subject took, kvwire first.
        note: what a reader should know.
    """

    item: str
    case: str
    measure: str
    value: float
    low: float
    high: float
    figures: list[Figure]
    variant: str = ""
    unit: str = ""
    target: float | None = None
    sense: str = ">="
    note: str = ""

    @property
    def reached(self) -> bool | None:
        """Whether the median is on the right side of the target; None without one."""
        if self.target is None:
            return None
        return self.value >= self.target if self.sense == ">=" else self.value <= self.target


class Run(msgspec.Struct, kw_only=True):
    """A whole run, as docs/benchmarks.json has it.

    Attributes:
        machine: CPU, cores, system, Python.
        versions: of kvwire and every peer.
        compiled: kvwire's compiled extensions in use; empty for none.
        quick: whether this was the short run, whose numbers mean little.
        seconds: how long it took.
        load: the machine's load average when it began: what else was running.
        rows: the results.
        skipped: per item that did not run, why.
    """

    machine: dict[str, str]
    versions: dict[str, str]
    compiled: list[str]
    quick: bool
    started: str
    seconds: float
    load: float
    rows: list[Row]
    skipped: dict[str, str] = {}


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which a share (0 to 1) of the values lies, interpolated."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def spread(values: Sequence[float]) -> tuple[float, float, float]:
    """Median, 10th and 90th percentile."""
    return percentile(values, 0.5), percentile(values, 0.1), percentile(values, 0.9)


def figure(name: str, values: Sequence[float], unit: str, factor: float = 1.0) -> Figure:
    """The figure of one subject from its rounds, multiplied by ``factor`` to get to the unit."""
    median, low, high = spread(values)
    return Figure(name, median * factor, low * factor, high * factor, unit)


def compared(
    series: dict[str, list[float]],
    peer: str,
    *,
    item: str,
    case: str,
    measure: str,
    target: float | None,
    sense: str = ">=",
    unit: str = "µs",
    factor: float = 1e6,
    inverse: bool = True,
    note: str = "",
) -> Row:
    """The row that compares kvwire with a peer, round by round, so that what slows both down cancels out.

    Args:
        series: per subject one number a round; ``kvwire`` and the peer are among them.
        inverse: the value is peer / kvwire (series are times, and the value is a speed); otherwise kvwire / peer.
        unit, factor: of the figures.
    """
    ours, theirs = series["kvwire"], series[peer]
    pairs = zip(ours, theirs, strict=True)
    ratios = [b / a for a, b in pairs] if inverse else [a / b for a, b in pairs]
    value, low, high = spread(ratios)
    return Row(
        item=item,
        case=case,
        measure=measure,
        value=value,
        low=low,
        high=high,
        target=target,
        sense=sense,
        figures=[figure(name, values, unit, factor) for name, values in series.items()],
        note=note,
    )
