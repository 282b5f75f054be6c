"""What was seen of each source, in words."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kvwire_conform.model import Report, Source, Verdict
from kvwire_conform.reports.text import count, counted, seconds, shorten, size


@dataclass(frozen=True)
class Fact:
    """One thing that was seen.

    Attributes:
        label: what it is.
        value: in words.
        alarming: whether it deserves a second look.
    """

    label: str
    value: str
    alarming: bool = False


def spoken(source: Source) -> str:
    """The dialect, or those that the bytes leave open; empty when it could not be told."""
    fits = source.candidates or ([source.dialect] if source.dialect else [])
    if source.dialect and source.dialect not in fits:
        return source.dialect
    if len(fits) > 3:
        return f"one of {fits[0]} … {fits[-1]} ({len(fits)} dialects fit)"
    return " or ".join(fits)


def headline(report: Report) -> str:
    """What the subject speaks, in one sentence without its verdict."""
    subject = " ".join(report.subject) or "the subject"
    if not any(source.messages for source in report.sources):
        if report.verdict is Verdict.ERROR:
            return f"{subject} could not be reached"
        return f"{subject} {'was' if len(report.subject) < 2 else 'were'} not heard"
    if len(report.sources) == 1:
        source = report.sources[0]
        name = subject if len(report.subject) == 1 else source.name
        return f"{name} speaks {_with_releases(source)}"
    groups: dict[str, int] = {}
    for source in report.sources:
        what = _with_releases(source) if source.messages else ""
        groups[what] = groups.get(what, 0) + 1
    total = len(report.sources)
    if len(groups) == 1:
        return f"{total} sources speak {next(iter(groups))}"
    parts = [
        f"{number} {'speaks' if number == 1 else 'speak'} {what}"
        if what
        else f"{number} {'was' if number == 1 else 'were'} not heard"
        for what, number in groups.items()
    ]
    return f"{total} sources: {', '.join(parts)}"


def facts(source: Source) -> list[Fact]:
    """Everything worth saying of a source, most important first, the dialect before all; what is empty is left out."""
    found = [Fact("dialect", _with_releases(source), not source.dialect)]
    if not source.messages:
        return [Fact("messages", "none", True)]
    found.append(Fact("messages", _messages(source)))
    if source.events:
        found.append(Fact("events", _table(source.events)))
    found.append(_seqs(source))
    if source.topic is not None:
        found.append(Fact("topic", f'"{shorten(source.topic, 200)}"' if source.topic else "empty"))
    if source.dp_rank is not None:
        found.append(Fact("DP rank", str(source.dp_rank)))
    if source.block_sizes:
        found.append(Fact("block size", _block_sizes(source.block_sizes), len(source.block_sizes) > 1))
    if source.media:
        found.append(Fact("stored", _table(source.media, "block")))
    if source.media or source.held:
        found.append(Fact("held", _table(source.held, "block") if source.held else "nothing at the end"))
    found.extend(Fact("unclear", text, True) for text in source.ambiguous)
    return found


def _with_releases(source: Source) -> str:
    what = spoken(source)
    if not what:
        return "no dialect that could be told"
    return f"{what} ({source.releases})" if source.releases else what


def _messages(source: Source) -> str:
    said = f"{count(source.messages)}, {size(source.payload_bytes)}"
    if source.span >= 1:
        rate = source.messages / source.span
        said += (
            f" in {seconds(source.span)} ({rate:.1f}/s)" if rate < 10 else f" in {seconds(source.span)} ({rate:,.0f}/s)"
        )
    return said


def _seqs(source: Source) -> Fact:
    if source.first_seq is None or source.last_seq is None:
        said = ["none readable"]
    elif source.first_seq == source.last_seq:
        said = [str(source.first_seq)]
    else:
        said = [f"{source.first_seq} to {source.last_seq}"]
    said.append(f"{count(source.lost)} lost" if source.lost else "none lost")
    if source.replayed:
        said.append(f"{count(source.replayed)} replayed")
    if source.restarts:
        said.append(counted(source.restarts, "restart"))
    return Fact("seq", ", ".join(said), bool(source.lost or source.restarts or source.first_seq is None))


def _block_sizes(sizes: dict[str, int]) -> str:
    if len(sizes) == 1:
        return f"{next(iter(sizes))} tokens"
    rows = sorted(sizes.items(), key=lambda row: (-row[1], row[0]))
    said = ", ".join(f"{shorten(name, 40)} in {count(number)}" for name, number in rows[:8])
    return f"{said} events" if len(rows) <= 8 else f"{said} events, and {len(rows) - 8} other sizes"


def _table(table: dict[str, int], unit: str = "") -> str:
    """``GPU 12, CPU 3``: the biggest first, at most eight."""
    rows = sorted(table.items(), key=lambda row: (-row[1], row[0]))
    said = [f"{shorten(name, 40)} {count(number)}" for name, number in rows[:8]]
    if len(rows) > 8:
        said.append(f"{len(rows) - 8} more")
    return ", ".join(said) + (f" {unit}{'' if len(rows) == 1 and rows[0][1] == 1 else 's'}" if unit else "")


def common(sources: Iterable[list[Fact]]) -> list[Fact]:
    """The facts that all sources share, in their order."""
    first, *others = sources
    return [fact for fact in first if all(fact in other for other in others)]
