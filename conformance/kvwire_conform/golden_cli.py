"""`kvwire-conform golden`: list, show, verify and export the golden vectors."""

from __future__ import annotations

import difflib
import enum
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, NoReturn

import msgspec
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from kvwire.dialects import get_dialect
from kvwire.errors import UsageError
from kvwire_conform.golden import (
    GoldenError,
    Manifest,
    Problem,
    Row,
    Vector,
    export,
    list_vectors,
    load,
    manifest_of,
    verify,
)
from kvwire_conform.golden_json import render
from kvwire_conform.golden_text import Part, hex_of, parts_of
from kvwire_conform.outcome import Exit

app = typer.Typer(
    name="golden",
    no_args_is_help=True,
    help="List, show, verify and export the golden vectors: frozen payloads and what they mean.",
)

_COLOURS = {"valid": "green", "tolerated": "yellow", "invalid": "red"}
_SHOWN_PROBLEMS = 50


class KindName(str, enum.Enum):
    """What ``--kind`` takes."""

    VALID = "valid"
    TOLERATED = "tolerated"
    INVALID = "invalid"


PatternArgument = Annotated[
    str | None, typer.Argument(help="Glob over ids, e.g. 'slot8/*' or '*/short-*'; a plain word matches anywhere.")
]
DialectOption = Annotated[
    str | None, typer.Option(help="Only this dialect's: an id, an alias, a release such as sglang==0.5.19, or 'any'.")
]


@app.command("list")
def list_command(
    pattern: PatternArgument = None,
    dialect: DialectOption = None,
    kind: Annotated[KindName | None, typer.Option(help="Only this kind.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Rows of the manifest, as a JSON array.")] = False,
) -> None:
    """List vectors: id, kind, size in bytes, description. Exit code 2 when none matches."""
    try:
        known = None if dialect is None else "any" if dialect == "any" else get_dialect(dialect).id
        rows = list_vectors(pattern, dialect=known, kind=kind.value if kind else None)
    except UsageError as error:
        _fail(error)
    if as_json:
        print(json.dumps(msgspec.to_builtins(rows), ensure_ascii=False, indent=1))
    elif rows:
        _print_rows(rows)
    if not rows:
        near = difflib.get_close_matches(pattern or "", [row.id for row in list_vectors()], n=3)
        meant = f"; near it are {', '.join(near)}" if near else ""
        print(f"no golden vector matches{meant}", file=sys.stderr)
        raise typer.Exit(Exit.USAGE)


@app.command()
def show(
    vector_id: Annotated[str, typer.Argument(metavar="ID", help="The vector, e.g. slot8/salt.")],
    raw: Annotated[bool, typer.Option("--raw", help="The payload itself, on standard output.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The vector's JSON, with the payload in hex.")] = False,
) -> None:
    """Show one vector: its payload in hex, slot by slot, and what it means."""
    try:
        vector = load(vector_id)
        row = next(row for row in manifest_of().vectors if row.id == vector_id)
    except GoldenError as error:
        _fail(error)
    if raw:
        sys.stdout.buffer.write(vector.payload)
        sys.stdout.buffer.flush()
    elif as_json:
        print(render({**_told(vector), "payload": vector.payload.hex()}).decode(), end="")
    else:
        _print_vector(vector, row)


@app.command("verify")
def verify_command(
    folder: Annotated[Path | None, typer.Argument(metavar="DIR", help="By default, the vectors of kvwire.")] = None,
) -> None:
    """Compare vectors with their manifest, with the locks of their suites, and a copy with the vectors of this kvwire too.

    Exit code 1 when something was changed.
    """
    try:
        manifest = manifest_of(folder)
        problems = verify(folder)
        if folder is not None:
            known = {problem.where.removesuffix(".json").removesuffix(".msgpack") for problem in problems}
            problems += [problem for problem in _unlike_ours(folder, manifest) if problem.where not in known]
    except GoldenError as error:
        _fail(error)
    for problem in problems[:_SHOWN_PROBLEMS]:
        print(problem)
    if problems:
        more = len(problems) - _SHOWN_PROBLEMS
        summary = f"{len(problems)} {'problem' if len(problems) == 1 else 'problems'}"
        print(f"{summary}{f', {more} of them not shown' if more > 0 else ''}", file=sys.stderr)
        raise typer.Exit(Exit.FAILURE)
    newest = manifest_of().suite
    if manifest.suite > newest:
        print(
            f"this kvwire has suite {newest} and cannot vouch for suite {manifest.suite}, which was compared with its own "
            "lock alone: pip install --upgrade kvwire",
            file=sys.stderr,
        )
    print(f"{len(manifest.vectors)} vectors up to suite {manifest.suite} are as they were released")


@app.command("export")
def export_command(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new or an empty folder.")],
    suite: Annotated[int | None, typer.Option(help="Only the vectors up to this suite.")] = None,
) -> None:
    """Write the vectors, their manifest, their schemas and a .gitattributes into a folder, for use in any language."""
    try:
        count = export(folder, suite)
    except GoldenError as error:
        _fail(error)
    except OSError as error:
        _fail(f"{folder} cannot be written: {error.strerror or error}")
    print(f"{count} vectors written to {folder}")


def _unlike_ours(folder: Path, manifest: Manifest) -> Iterator[Problem]:
    """What in a copy is not as the suites of this kvwire have it, however well the copy agrees with itself."""
    ours = {row.id: row for row in manifest_of().vectors if row.suite <= manifest.suite}
    theirs = {row.id: row for row in manifest.vectors}
    for vector_id, row in ours.items():
        if vector_id not in theirs:
            yield Problem(vector_id, f"came in suite {row.suite} and is gone")
        elif theirs[vector_id] != row:
            yield Problem(vector_id, "is another in the manifest than the one that was released")
    newest = manifest_of().suite
    for vector_id, row in theirs.items():
        if vector_id not in ours and row.suite <= newest:
            yield Problem(vector_id, f"was never released in suite {row.suite}")
    places = {vector_id.partition("/")[0] for vector_id in theirs}
    for path in sorted(folder.rglob("*.msgpack")):
        place = path.relative_to(folder).parent.as_posix()
        if place not in places:
            yield Problem(path.relative_to(folder).as_posix(), "is not in the manifest")


def _fail(problem: object) -> NoReturn:
    print(problem, file=sys.stderr)
    raise typer.Exit(Exit.USAGE)


def _print_rows(rows: list[Row]) -> None:
    console = Console(highlight=False)
    if not console.is_terminal:
        width = max(len(row.id) for row in rows)
        for row in rows:
            print(f"{row.id:{width}}  {row.kind:9}  {row.size:>6}  {row.description}")
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("vector", no_wrap=True)
    table.add_column("kind")
    table.add_column("bytes", justify="right")
    table.add_column("description")
    for row in rows:
        colour = _COLOURS[row.kind]
        table.add_row(escape(row.id), f"[{colour}]{row.kind}[/]", str(row.size), escape(row.description))
    console.print(table)
    console.print(f"[dim]{len(rows)} {'vector' if len(rows) == 1 else 'vectors'}[/]")


def _print_vector(vector: Vector, row: Row) -> None:
    console = Console(highlight=False, soft_wrap=True)
    colour = _COLOURS[vector.kind]
    console.print(f"[bold]{escape(vector.id)}[/]  [{colour}]{vector.kind}[/]  suite {row.suite}, {row.size} bytes")
    console.print(escape(vector.description))
    console.print(f"[dim]{escape(_from(row))}[/]\n")
    parts = parts_of(vector.payload, vector.dialect)
    labels = ["  " * part.depth + part.label for part in parts]
    width = max(map(len, labels))
    for part, label in zip(parts, labels, strict=True):
        mark = "[red]>[/] " if _is_culprit(vector, part) else "  " if vector.error else ""
        data = hex_of(part.data, 32)
        console.print(f"{mark}{escape(label.ljust(width))}  [cyan]{data}[/]  [dim]{escape(part.words)}[/]")
    console.print()
    told = {key: value for key, value in _told(vector).items() if key not in ("id", "dialect", "kind", "description")}
    print(render(told).decode(), end="")


def _is_culprit(vector: Vector, part: Part) -> bool:
    error = vector.error
    return error is not None and part.is_at(event_index=error.event_index, slot=error.slot, key=error.key)


def _from(row: Row) -> str:
    origin = row.provenance
    if origin.source == "release":
        return f"encoded by the structs of {', '.join(origin.releases)}"
    if origin.source == "specification":
        return "no release writes this dialect; the bytes follow the specification"
    return "written by hand; no engine writes these bytes"


def _told(vector: Vector) -> dict[str, Any]:
    """The vector's JSON file, parsed."""
    found = msgspec.to_builtins(vector)
    kept = ["id", "dialect", "kind", "description"]
    if vector.kind != "valid":
        kept.append("reading")
    if vector.kind == "invalid":
        kept += ["error", "good_siblings"]
    else:
        kept += ["strict", "roundtrip", "hash_form", "meaning"]
        kept += [name for name in ("skipped", "extras") if found[name]]
    return {name: found[name] for name in kept}
