"""`kvwire-conform producer` and `kvwire-conform demo`: options, progress and reports."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from kvwire.dialects import get_dialect
from kvwire.errors import UsageError
from kvwire_conform import durations
from kvwire_conform.checks.hashes import HashSettings
from kvwire_conform.model import Report
from kvwire_conform.producer import Options, judge_recordings
from kvwire_conform.reports.writing import write_report
from kvwire_conform.requirements import producer_checks

_CHECK_HELP = "Report this check alone; may be given several times."


def producer(
    endpoints: Annotated[
        list[str] | None, typer.Argument(metavar="ENDPOINT", help="Live publishers, e.g. tcp://host:5557.")
    ] = None,
    recording: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="Judge recorded frames instead; may be given several times."),
    ] = None,
    server: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Find endpoints, topic, block size and ranks on SGLang's /server_info."),
    ] = None,
    replay: Annotated[
        list[str] | None,
        typer.Option(metavar="ENDPOINT", help="Replay endpoint, one for each ENDPOINT in the same order."),
    ] = None,
    dialect: Annotated[
        str,
        typer.Option(
            metavar="ID", help="What it has to speak: an id, an alias, a release such as vllm==0.33.0, or auto."
        ),
    ] = "auto",
    topic: Annotated[str, typer.Option(metavar="TEXT", help="Subscribe to topics that start with this.")] = "",
    for_: Annotated[str, typer.Option("--for", metavar="DURATION", help="How long to listen: 30s, 2m, 1h.")] = "30s",
    batches: Annotated[int | None, typer.Option(min=1, metavar="N", help="Stop after this many batches.")] = None,
    block_size: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Tokens per block that the router expects.")
    ] = None,
    dp_size: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Listen to this many DP ranks, at the port of ENDPOINT plus the rank."),
    ] = None,
    bind: Annotated[bool, typer.Option("--bind", help="Bind ENDPOINT and let the engine connect.")] = False,
    record: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write the frames to this file, as a recording.")
    ] = None,
    hash_: Annotated[
        str | None,
        typer.Option(
            "--hash", metavar="RECIPE", help="Recompute the hashes by this recipe: sglang, vllm:sha256_cbor …"
        ),
    ] = None,
    hash_seed: Annotated[str | None, typer.Option(metavar="SEED", help="PYTHONHASHSEED of a vLLM engine.")] = None,
    hash_extra_keys: Annotated[
        str | None,
        typer.Option(
            metavar="FORM", help="How vLLM hashes extra keys: bare (up to 0.30.0) or tagged; found out if not given."
        ),
    ] = None,
    check: Annotated[list[str] | None, typer.Option(metavar="ID", help=_CHECK_HELP)] = None,
    require: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ID", help="Inconclusive (4) unless this check judged something; may be given several times."
        ),
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Count warnings as failures.")] = False,
    json: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the report as JSON; - for standard output.")
    ] = None,
    junit: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the report as JUnit XML; - for standard output.")
    ] = None,
    verbose: Annotated[int, typer.Option("--verbose", "-v", count=True, help="Show every check.")] = 0,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="No report in the terminal, only files and exit code.")
    ] = False,
) -> None:
    """Judge a publisher: what it speaks, what breaks, and for whom.

    Listens to live ENDPOINTs, or reads a recording, and judges every normative sentence of the specification that a
    producer has to keep.
    """
    known = [row.id for row in producer_checks()]
    options = Options(
        subject=[*(endpoints or []), *map(str, recording or []), *([server] if server else [])],
        dialect=None if dialect == "auto" else get_dialect(dialect),
        block_size=block_size,
        only=_checks([*check, *(require or [])] if check else None, known),
        required=_checks(require, known) or frozenset(),
        warnings_fail=strict,
        rerun=_rerun(),
        hashes=_hashes(hash_, hash_seed, hash_extra_keys),
    )
    if recording and (endpoints or server):
        raise UsageError("either live endpoints or --recording, not both")
    if json is not None and junit is not None and str(json) == str(junit) == "-":
        raise UsageError("--json - and --junit - would share standard output; write one of them to a file")
    if recording:
        live_only = {"--replay": replay, "--topic": topic, "--batches": batches, "--dp-size": dp_size, "--bind": bind}
        for name, value in (*live_only.items(), ("--record", record)):
            if value:
                raise UsageError(f"{name} is for live endpoints; a recording is judged as it is")
        report = judge_recordings(recording, options)
    else:
        from kvwire_conform.live import Wanted, judge_live

        wanted = Wanted(
            endpoints=endpoints or [],
            server=server,
            replays=replay or [],
            topic=topic,
            seconds=_duration(for_),
            batches=batches,
            dp_size=dp_size,
            bind=bind,
            record=record,
        )
        report = judge_live(wanted, options, console=_progress_console(quiet))
    deliver(report, json=json, junit=junit, verbose=verbose, quiet=quiet)


def demo(
    dialect: Annotated[str, typer.Option(metavar="ID", help="The dialect that the embedded engine speaks.")] = "slot8",
    seconds: Annotated[str, typer.Option("--for", metavar="DURATION", help="How long to listen.")] = "6s",
    seed: Annotated[int, typer.Option(metavar="N", help="Seed of the embedded engine.")] = 7,
    fault: Annotated[
        str | None, typer.Option(metavar="ID", help="Let it misbehave: the id of a check, e.g. parent-known.")
    ] = None,
    verbose: Annotated[int, typer.Option("--verbose", "-v", count=True, help="Show every check.")] = 0,
) -> None:
    """Start an embedded engine on loopback and judge it over real ZeroMQ."""
    from kvwire_conform.demo import run_demo

    report = run_demo(dialect, seconds=_duration(seconds), seed=seed, fault=fault, console=_progress_console(False))
    deliver(report, json=None, junit=None, verbose=verbose, quiet=False)


def deliver(report: Report, *, json: Path | None, junit: Path | None, verbose: int, quiet: bool) -> None:
    """Write a report to where it was asked for, and exit with its code."""
    from kvwire_conform.reports import json as json_report
    from kvwire_conform.reports import junit as junit_report
    from kvwire_conform.reports.terminal import render

    taken = write_report(json, lambda: json_report.to_json(report).decode())
    taken = write_report(junit, lambda: junit_report.to_junit(report)) or taken
    if not quiet and not taken:
        render(report, Console(), verbose=verbose)
    raise typer.Exit(report.exit_code)


def _checks(given: list[str] | None, known: list[str]) -> frozenset[str] | None:
    if not given:
        return None
    import difflib

    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=3)
            meant = f"; did you mean {' or '.join(near)}?" if near else f"; known: {', '.join(known)}"
            raise UsageError(f"no check is called {name!r}{meant}")
    return frozenset(given)


def _hashes(name: str | None, seed: str | None, extra_keys: str | None) -> HashSettings | None:
    if name is None:
        if seed is not None or extra_keys is not None:
            raise UsageError("--hash-seed and --hash-extra-keys belong to --hash")
        return None
    settings = HashSettings(name, seed, extra_keys)
    settings.recipes()
    return settings


def _duration(text: str) -> float:
    try:
        return durations.seconds(text)
    except ValueError as error:
        raise UsageError(str(error)) from error


def _rerun() -> Callable[[str], str]:
    """The command line as it was given, narrowed to one check."""
    words: list[str] = []
    skip = False
    for word in sys.argv[1:]:
        if skip:
            skip = False
        elif word in ("--check", "--json", "--junit"):
            skip = True
        elif not word.startswith(("--check=", "--json=", "--junit=")):
            words.append(word)
    line = shlex.join(["kvwire-conform", *words])
    return lambda check: f"{line} --check {check}"


def _progress_console(quiet: bool) -> Console | None:
    return None if quiet else Console(stderr=True)
