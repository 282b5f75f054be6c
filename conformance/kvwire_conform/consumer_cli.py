"""`kvwire-conform consumer`: options, progress and reports."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from kvwire.errors import UsageError
from kvwire_conform import durations
from kvwire_conform.consumer import Known, Selection, judge
from kvwire_conform.consumer_generated import BATCHES
from kvwire_conform.consumer_model import ConsumerReport
from kvwire_conform.golden_cli import KindName
from kvwire_conform.reports.writing import write_report
from kvwire_conform.testee import Limits


def consumer(
    command: Annotated[
        list[str],
        typer.Argument(metavar="CMD", help="The testee and its arguments, after --: what speaks spec/conformance.md."),
    ],
    only: Annotated[
        list[str] | None,
        typer.Option(
            metavar="GLOB", help="Only vectors with such an id: 'slot8/*', a word; may be given several times."
        ),
    ] = None,
    kind: Annotated[KindName | None, typer.Option(help="Only vectors of this kind.")] = None,
    dialect: Annotated[
        list[str] | None,
        typer.Option(metavar="ID", help="Only this dialect's vectors; 'any' for those of none. Several times."),
    ] = None,
    suite: Annotated[int | None, typer.Option(metavar="N", help="Only vectors up to this golden suite.")] = None,
    seed: Annotated[
        int | None, typer.Option(metavar="N", help="Also payloads of a simulated engine, in each dialect it claims.")
    ] = None,
    batches: Annotated[int, typer.Option(min=1, metavar="N", help="So many of each dialect.")] = BATCHES,
    smoke: Annotated[
        bool, typer.Option("--smoke", help="Check the protocol alone, with a handful of payloads.")
    ] = False,
    known: Annotated[
        list[Path] | None,
        typer.Option(
            "--known-failures",
            metavar="FILE",
            help="Failures that are known; what is listed has to fail so. Several times.",
        ),
    ] = None,
    write_known: Annotated[
        Path | None,
        typer.Option("--write-known-failures", metavar="FILE", help="Bring this file up to date with what fails."),
    ] = None,
    jobs: Annotated[int, typer.Option("--jobs", "-j", min=1, metavar="N", help="So many processes at once.")] = 1,
    start_timeout: Annotated[str, typer.Option(metavar="DURATION", help="How long its hello may take.")] = "20s",
    timeout: Annotated[str, typer.Option(metavar="DURATION", help="How long an answer may take.")] = "10s",
    breakdowns: Annotated[
        int, typer.Option(min=1, metavar="N", help="Give up after so many crashes or hangs in a row.")
    ] = Limits.breakdowns,
    json: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the report as JSON; - for standard output.")
    ] = None,
    junit: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the report as JUnit XML; - for standard output.")
    ] = None,
    verbose: Annotated[
        int,
        typer.Option(
            "--verbose",
            "-v",
            count=True,
            help="Show every cause with an example's bytes; -vv every payload that is not exact.",
        ),
    ] = 0,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="No report in the terminal, only files and exit code.")
    ] = False,
) -> None:
    """Judge a consumer: which dialects it reads, and what it loses or gets wrong.

    Starts CMD, which speaks JSON lines on stdin and stdout (spec/conformance.md), asks it the golden vectors, and holds what
    it reads against what they mean. What it claims to read it has to read exactly; the other dialects are reported.
    """
    if json is not None and junit is not None and str(json) == str(junit) == "-":
        raise UsageError("--json - and --junit - would share standard output; write one of them to a file")
    limits = Limits(start=_duration(start_timeout), answer=_duration(timeout), breakdowns=breakdowns)
    if smoke:
        from kvwire_conform.consumer_smoke import smoke_test

        raise typer.Exit(smoke_test(command, limits, Console()))
    selection = Selection(
        only=tuple(only or ()),
        kind=kind.value if kind else None,
        dialects=tuple(dialect or ()),
        suite=suite,
        seed=seed,
        batches=batches,
    )
    report = _judge(command, selection, Known(tuple(known or ()), write_known), limits, jobs, quiet)
    if write_known is not None and report.consumer is not None and not report.interrupted:
        print(f"{write_known} holds what is known to fail now", file=sys.stderr)
    deliver(report, json=json, junit=junit, verbose=verbose, quiet=quiet)


def _judge(
    command: list[str], selection: Selection, known: Known, limits: Limits, jobs: int, quiet: bool
) -> ConsumerReport:
    from kvwire_conform.reports.consumer_progress import ConsumerProgress

    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        return judge(command, selection=selection, known=known, limits=limits, jobs=jobs)
    with ConsumerProgress(console) as progress:
        return judge(command, selection=selection, known=known, limits=limits, jobs=jobs, progress=progress.update)


def deliver(report: ConsumerReport, *, json: Path | None, junit: Path | None, verbose: int, quiet: bool) -> None:
    """Write a consumer's or a router's report to where it was asked for, and exit with its code."""
    from kvwire_conform.reports import consumer_json, consumer_junit
    from kvwire_conform.reports.consumer_terminal import render

    taken = write_report(json, lambda: consumer_json.to_json(report).decode())
    taken = write_report(junit, lambda: consumer_junit.to_junit(report)) or taken
    if not quiet and not taken:
        render(report, Console(), verbose=verbose)
    raise typer.Exit(report.exit_code)


def _duration(text: str) -> float:
    try:
        return durations.seconds(text)
    except ValueError as error:
        raise UsageError(str(error)) from error
