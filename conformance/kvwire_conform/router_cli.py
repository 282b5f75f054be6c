"""`kvwire-conform router`: options, progress and reports."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console

from kvwire.errors import UsageError
from kvwire_conform import durations
from kvwire_conform.consumer import Known, Selection
from kvwire_conform.consumer_model import ConsumerReport
from kvwire_conform.golden_cli import KindName
from kvwire_conform.outcome import Exit
from kvwire_conform.reports.writing import write_report
from kvwire_conform.routers.dynamo import DEFAULT_RELEASE, judge_dynamo

app = typer.Typer(
    help="Judge a real router: start it, publish to it, and read back what it indexed.", no_args_is_help=True
)

_WORST_FIRST = (Exit.INTERRUPTED, Exit.HARNESS, Exit.UNREACHABLE, Exit.USAGE, Exit.FAILURE, Exit.INCONCLUSIVE, Exit.OK)


@app.callback()
def _router() -> None:
    """Judge a real router: start it, publish to it, and read back what it indexed."""


@app.command("dynamo")
def dynamo(
    release: Annotated[
        list[str] | None,
        typer.Option(
            metavar="VERSION",
            help=f"Release of ai-dynamo-runtime, {DEFAULT_RELEASE} by default; several are judged one after the other.",
        ),
    ] = None,
    url: Annotated[
        str | None, typer.Option(metavar="URL", help="A running indexer instead, e.g. http://host:8090.")
    ] = None,
    host: Annotated[
        str, typer.Option(metavar="ADDRESS", help="Address of this machine that the router can connect to.")
    ] = "127.0.0.1",
    only: Annotated[
        list[str] | None,
        typer.Option(
            metavar="GLOB", help="Only vectors with such an id: 'slot8/*', a word; may be given several times."
        ),
    ] = None,
    kind: Annotated[
        KindName | None, typer.Option(help="Only vectors of this kind; valid and tolerated ones by default.")
    ] = None,
    dialect: Annotated[
        list[str] | None,
        typer.Option(metavar="ID", help="Only this dialect's vectors; 'any' for those of none. Several times."),
    ] = None,
    suite: Annotated[int | None, typer.Option(metavar="N", help="Only vectors up to this golden suite.")] = None,
    behaviours: Annotated[
        bool, typer.Option("--behaviours/--no-behaviours", help="Also judge gap, replay, restart and duplicate.")
    ] = True,
    known: Annotated[
        list[Path] | None,
        typer.Option(
            "--known-failures",
            metavar="FILE",
            help="Failures that are known; what is listed has to fail so. {release} in it stands for the release.",
        ),
    ] = None,
    write_known: Annotated[
        Path | None,
        typer.Option("--write-known-failures", metavar="FILE", help="Bring this file up to date; {release} as above."),
    ] = None,
    timeout: Annotated[str, typer.Option(metavar="DURATION", help="How long a good batch may take to show.")] = "5s",
    json: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Write the report as JSON, a list for several releases; - for standard output."
        ),
    ] = None,
    junit: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the report as JUnit XML; - for standard output. {release} as above."),
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
    """Judge NVIDIA Dynamo's standalone KV indexer, one release or several.

    Publishes each golden vector over ZeroMQ under an instance of its own, a good batch behind it, and holds what the indexer
    then shows over HTTP against what the vector means. Then it loses batches, replays them, and starts the publisher anew.
    """
    releases = list(dict.fromkeys(release or ([DEFAULT_RELEASE] if url is None else [])))
    if url is not None and releases:
        raise UsageError("either --release, which is started here, or --url of a running one")
    if json is not None and junit is not None and str(json) == str(junit) == "-":
        raise UsageError("--json - and --junit - would share standard output; write one of them to a file")
    for name, path in (("--junit", junit), ("--write-known-failures", write_known)):
        if path is not None and len(releases) > 1 and "{release}" not in str(path):
            raise UsageError(f"{name} {path} would hold the last release alone; put {{release}} into its name")
    try:
        patience = durations.seconds(timeout)
    except ValueError as error:
        raise UsageError(str(error)) from error
    selection = Selection(
        only=tuple(only or ()), kind=kind.value if kind else None, dialects=tuple(dialect or ()), suite=suite
    )
    reports: list[ConsumerReport] = []
    for version in releases or [""]:
        files = Known(
            tuple(_of(path, version) for path in known or ()),
            None if write_known is None else _of(write_known, version),
        )
        report = _judge(version, url, host, selection, files, behaviours, patience, quiet)
        reports.append(report)
        if junit is not None:
            from kvwire_conform.reports.consumer_junit import to_junit

            write_report(_of(junit, version), partial(to_junit, report))
        if not quiet and "-" not in (str(json), str(junit)):
            _show(report, verbose, first=len(reports) == 1)
        if report.interrupted:
            break
    if json is not None:
        write_report(json, lambda: _as_json(reports))
    codes = [Exit(report.exit_code) for report in reports]
    raise typer.Exit(next(code for code in _WORST_FIRST if code in codes))


def _judge(
    release: str,
    url: str | None,
    host: str,
    selection: Selection,
    known: Known,
    behaviours: bool,
    patience: float,
    quiet: bool,
) -> ConsumerReport:
    from kvwire_conform.reports.consumer_progress import ConsumerProgress

    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        return judge_dynamo(
            release, url=url, host=host, selection=selection, known=known, behaviours=behaviours, patience=patience
        )
    with ConsumerProgress(console) as progress:
        return judge_dynamo(
            release,
            url=url,
            host=host,
            selection=selection,
            known=known,
            behaviours=behaviours,
            patience=patience,
            progress=progress.update,
        )


def _show(report: ConsumerReport, verbose: int, *, first: bool) -> None:
    from kvwire_conform.reports.consumer_terminal import render

    console = Console()
    if not first:
        console.print()
    render(report, console, verbose=verbose)


def _as_json(reports: Sequence[ConsumerReport]) -> str:
    from kvwire_conform.reports.consumer_json import to_json

    if len(reports) == 1:
        return to_json(reports[0]).decode()
    return msgspec.json.format(msgspec.json.encode(reports), indent=2).decode() + "\n"


def _of(path: Path, release: str) -> Path:
    return Path(str(path).replace("{release}", release))
