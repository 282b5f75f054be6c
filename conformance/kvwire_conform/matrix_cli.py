"""`kvwire-conform matrix`: run every consumer, and write or check the matrix."""

from __future__ import annotations

import fnmatch
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from kvwire.errors import UsageError
from kvwire_conform import matrix_runs
from kvwire_conform.matrix_build import assemble
from kvwire_conform.matrix_model import Matrix
from kvwire_conform.outcome import Exit
from kvwire_conform.reports import matrix_json, matrix_markdown
from kvwire_conform.testees_build import BuildError

__all__ = ["matrix"]


def matrix(
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where matrix.json, .md and .html are written.")] = Path(
        "docs"
    ),
    check: Annotated[
        bool,
        typer.Option(
            "--check", help="Write nothing; say what differs from the files there, and exit with 1 if any does."
        ),
    ] = False,
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="GLOB", help="Only such consumers: 'router:*', 'engine-structs@vllm*'. Several times."),
    ] = None,
    routers: Annotated[bool, typer.Option("--routers/--no-routers", help="Also start whole routers.")] = True,
    keep: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Keep each consumer's own report in this folder.")
    ] = None,
    reuse: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Run nothing; take the reports that --keep left in this folder.")
    ] = None,
    summary: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Also write the summary into this page, between <!-- matrix --> and <!-- /matrix -->."
        ),
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, metavar="N", help="Processes per testee.")] = 2,
) -> None:
    """Judge every consumer that can be had here, and set them against the dialects that engines emit.

    The real routers and decoders come from their package registries; what this machine has no tools for is left out, with
    the reason. The three files depend on nothing but what the consumers did.
    """
    chosen = _chosen(matrix_runs.subjects(routers=routers, jobs=jobs), only or [])
    try:
        outcomes = _run(chosen, keep, reuse)
    except BuildError as error:
        print(f"kvwire-conform: {error}", file=sys.stderr)
        raise typer.Exit(Exit.HARNESS) from None
    found = assemble(outcome.report for outcome in outcomes if outcome.report is not None)
    if not found.consumers:
        print("kvwire-conform: no consumer could be judged here", file=sys.stderr)
        raise typer.Exit(Exit.UNREACHABLE)
    missing = [outcome for outcome in outcomes if outcome.report is None]
    if check:
        raise typer.Exit(_check(found, out, [outcome.subject for outcome in missing]))
    if missing and not only:
        print("The matrix is without them.", file=sys.stderr)
    _write(found, out)
    if summary is not None:
        _write_summary(found, summary)


def _chosen(known: Sequence[matrix_runs.Subject], globs: Sequence[str]) -> list[matrix_runs.Subject]:
    for pattern in globs:
        if not any(fnmatch.fnmatchcase(subject.id, pattern) for subject in known):
            raise UsageError(f"no consumer fits {pattern!r}; there is {', '.join(subject.id for subject in known)}")
    return [s for s in known if not globs or any(fnmatch.fnmatchcase(s.id, pattern) for pattern in globs)]


def _run(chosen: Sequence[matrix_runs.Subject], keep: Path | None, reuse: Path | None) -> list[matrix_runs.Outcome]:
    found: list[matrix_runs.Outcome] = []
    running = matrix_runs.stored(chosen, reuse) if reuse is not None else matrix_runs.run_all(chosen, keep)
    before = time.monotonic()
    for number, outcome in enumerate(running, 1):
        took, before = time.monotonic() - before, time.monotonic()
        print(f"[{number}/{len(chosen)}] {outcome.subject}: {_words(outcome)} ({took:.0f} s)", file=sys.stderr)
        found.append(outcome)
    return found


def _words(outcome: matrix_runs.Outcome) -> str:
    if outcome.report is None:
        return f"left out: {outcome.skipped}"
    exact = sum(1 for judgement in outcome.report.judgements if judgement.verdict.value == "exact")
    return f"{exact:,} of {len(outcome.report.judgements):,} exact"


def _files(found: Matrix) -> dict[str, str]:
    from kvwire_conform.reports.matrix_html import to_html

    return {
        "matrix.json": matrix_json.to_json(found),
        "matrix.md": matrix_markdown.to_markdown(found),
        "matrix.html": to_html(found),
    }


def _write(found: Matrix, out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    for name, text in _files(found).items():
        (out / name).write_text(text, encoding="utf-8")
        print(f"wrote {out / name}")


def _write_summary(found: Matrix, page: Path) -> None:
    before, opening, rest = page.read_text(encoding="utf-8").partition("<!-- matrix -->\n")
    _, closing, after = rest.partition("\n<!-- /matrix -->")
    if not (opening and closing):
        raise UsageError(f"{page} has no <!-- matrix --> and <!-- /matrix --> on lines of their own")
    text = before + opening + matrix_markdown.summary(found) + closing + after
    page.write_text(text, encoding="utf-8")
    print(f"wrote the summary into {page}")


def _check(found: Matrix, out: Path, missing: Sequence[str]) -> Exit:
    try:
        there = matrix_json.from_json((out / "matrix.json").read_bytes())
    except (OSError, ValueError) as error:
        raise UsageError(f"no matrix to compare with: {error}") from error
    changes = matrix_json.changes(there, found)
    for line in changes:
        print(line)
    if changes:
        print(f"{len(changes)} changes; `kvwire-conform matrix --out {out}` writes the new matrix")
        return Exit.FAILURE
    texts = _files(there)
    stale = [name for name, text in texts.items() if (out / name).read_text(encoding="utf-8") != text]
    for name in stale:
        print(f"{out / name} is not what matrix.json gives; `kvwire-conform matrix` writes it anew")
    if stale:
        return Exit.FAILURE
    without = f"; left out here: {', '.join(missing)}" if missing else ""
    print(f"{len(found.consumers)} consumers are as {out / 'matrix.json'} says{without}")
    return Exit.OK
