"""Writes ``golden/``: ``python -m kvwire_conform.golden_build`` in the repository.

The files are a function of this package alone. Provenance is kept from the manifest for every payload that has not
changed, and proven anew for the others, which takes the package index. A frozen suite never changes: what differs from
its lock is refused, and new vectors come under the next suite until ``--freeze`` locks that one too.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections.abc import Sequence
from pathlib import Path

from kvwire_conform.golden import (
    FORMAT,
    GITATTRIBUTES,
    GoldenError,
    Manifest,
    Provenance,
    ReleaseFacts,
    Row,
    lock_sum,
    manifest_of,
    read_locks,
    render_manifest,
)
from kvwire_conform.golden_any import any_cases
from kvwire_conform.golden_case import Case
from kvwire_conform.golden_invalid import invalid_cases
from kvwire_conform.golden_json import render
from kvwire_conform.golden_layout import LAYOUTS
from kvwire_conform.golden_provenance import prove
from kvwire_conform.golden_tolerated import tolerated_cases
from kvwire_conform.golden_valid import valid_cases

_KINDS = ("valid", "tolerated", "invalid")


def all_cases() -> list[Case]:
    """Every vector: by dialect as in the registry, those of no dialect last; within it by kind and name."""
    found = [case for layout in LAYOUTS.values() for case in _of_dialect(layout.id)]
    return found + _ordered(any_cases())


def _of_dialect(dialect: str) -> list[Case]:
    layout = LAYOUTS[dialect]
    return _ordered([*valid_cases(layout), *tolerated_cases(layout), *invalid_cases(layout)])


def _ordered(cases: list[Case]) -> list[Case]:
    return sorted(cases, key=lambda case: (_KINDS.index(case.kind), case.id))


def build(folder: Path, cases: Sequence[Case] | None = None, *, prove_again: bool = False) -> dict[str, bytes]:
    """Every file of ``golden/`` that this module writes, by path.

    Args:
        folder: where the files are now: its locks bind, and its manifest tells the provenance that is known.
        cases: the vectors; all of them by default.
        prove_again: run the releases for the payloads that have not changed, too.

    Raises:
        GoldenError: a frozen vector would change or go. ReleaseError: a release is needed and cannot be had.
    """
    cases = all_cases() if cases is None else cases
    files: dict[str, bytes] = {".gitattributes": GITATTRIBUTES}
    for case in cases:
        if f"{case.id}.json" in files:
            raise GoldenError(f"two vectors are called {case.id}")
        files[f"{case.id}.msgpack"] = case.payload
        files[f"{case.id}.json"] = render(case.as_json())
    locks = read_locks(folder)
    _check_frozen(locks, files)
    frozen = {vector_id: number for number, lock in locks.items() for vector_id in lock}
    following = max(locks, default=0) + 1
    suites = {case.id: frozen.get(case.id, following) for case in cases}
    provenance, releases = _provenance(folder, cases, prove_again)
    rows = tuple(
        Row(
            id=case.id,
            dialect=case.dialect,
            kind=case.kind,
            suite=suites[case.id],
            size=len(case.payload),
            sha256=hashlib.sha256(case.payload).hexdigest(),
            json_sha256=hashlib.sha256(files[f"{case.id}.json"]).hexdigest(),
            description=case.description,
            provenance=provenance[case.id],
        )
        for case in cases
    )
    files["manifest.json"] = render_manifest(Manifest(FORMAT, max(suites.values()), releases, rows))
    return files


def _check_frozen(locks: dict[int, dict[str, str]], files: dict[str, bytes]) -> None:
    for number, lock in locks.items():
        for vector_id, wanted in lock.items():
            payload, text = files.get(f"{vector_id}.msgpack"), files.get(f"{vector_id}.json")
            if payload is None or text is None:
                raise GoldenError(f"{vector_id} came in suite {number}, which is frozen: a vector never goes")
            if lock_sum(payload, text) != wanted:
                raise GoldenError(
                    f"{vector_id} would differ from suite {number}, which is frozen: give the new vector another name"
                )


def _provenance(
    folder: Path, cases: Sequence[Case], again: bool
) -> tuple[dict[str, Provenance], dict[str, ReleaseFacts]]:
    try:
        known = manifest_of(folder)
    except GoldenError:
        again = True
    if not again:
        rows = {(row.id, row.kind, row.sha256): row.provenance for row in known.vectors}
        keys = {case.id: (case.id, case.kind, hashlib.sha256(case.payload).hexdigest()) for case in cases}
        fresh, facts = prove([case for case in cases if keys[case.id] not in rows])
        kept = {case.id: rows[keys[case.id]] for case in cases if keys[case.id] in rows}
        found = {**kept, **fresh}
        used = {name for provenance in found.values() for name in provenance.releases}
        facts = {**facts, **known.releases}
        return found, {name: facts[name] for name in sorted(used)}
    return prove(cases)


def write(folder: Path, files: dict[str, bytes]) -> tuple[int, int]:
    """Bring a folder to these files: write what differs, and drop vectors that are no more.

    Returns:
        How many files were written, and how many dropped.
    """
    written = dropped = 0
    for name, data in files.items():
        path = folder / name
        if not path.is_file() or path.read_bytes() != data:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
            written += 1
    for place in {name.partition("/")[0] for name in files if "/" in name}:
        for path in sorted((folder / place).iterdir()):
            if f"{place}/{path.name}" not in files:
                path.unlink()
                dropped += 1
    return written, dropped


def freeze(folder: Path) -> int | None:
    """Lock the newest suite of a folder. Returns its number, or None when it is locked already."""
    manifest = manifest_of(folder)
    if manifest.suite in read_locks(folder):
        return None
    sums = {}
    for row in manifest.vectors:
        if row.suite == manifest.suite:
            payload, text = ((folder / f"{row.id}.{ending}").read_bytes() for ending in ("msgpack", "json"))
            sums[row.id] = lock_sum(payload, text)
    path = folder / "suites" / f"{manifest.suite}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(render({"suite": manifest.suite, "vectors": dict(sorted(sums.items()))}))
    return manifest.suite


def main(arguments: Sequence[str] | None = None) -> int:
    """The command. Returns its exit code: 1 when ``--check`` finds a difference or a frozen vector would change."""
    parser = argparse.ArgumentParser(prog="python -m kvwire_conform.golden_build", description="Write golden/.")
    parser.add_argument("folder", nargs="?", type=Path, default=Path("golden"))
    parser.add_argument("--check", action="store_true", help="write nothing, and fail if something would change")
    parser.add_argument("--prove", action="store_true", help="run the releases for every valid vector")
    parser.add_argument("--freeze", action="store_true", help="lock the newest suite afterwards")
    told = parser.parse_args(arguments)
    try:
        files = build(told.folder, prove_again=told.prove)
    except GoldenError as error:
        print(error, file=sys.stderr)
        return 1
    if told.check:
        stale = [name for name, data in files.items() if not _is(told.folder / name, data)]
        print("\n".join(stale) or f"{told.folder} is as it has to be")
        return 1 if stale else 0
    written, dropped = write(told.folder, files)
    print(f"{told.folder}: {(len(files) - 2) // 2} vectors, {written} files written, {dropped} dropped")
    if told.freeze:
        number = freeze(told.folder)
        print(f"suite {number} is frozen" if number else "the newest suite is frozen already")
    return 0


def _is(path: Path, data: bytes) -> bool:
    return path.is_file() and path.read_bytes() == data


if __name__ == "__main__":
    sys.exit(main())
