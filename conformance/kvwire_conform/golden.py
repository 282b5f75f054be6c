"""The golden vectors: frozen payloads, what they mean, and where their bytes come from.

::

    for row in list_vectors("vllm-map5/*", kind="valid"):
        vector = load(row.id)
        assert to_json(kvwire.decode(vector.payload)) == vector.meaning

They are data: ``export`` writes them for projects in any language, and ``golden/README.md`` says how to use them there.
"""

from __future__ import annotations

import difflib
import fnmatch
import functools
import hashlib
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from kvwire._resources import Traversable, golden_dir, spec_dir
from kvwire.errors import UsageError, WireError
from kvwire_conform.golden_json import render

__all__ = [
    "FORMAT",
    "ErrorPlace",
    "GoldenError",
    "Kind",
    "Manifest",
    "Problem",
    "Provenance",
    "Row",
    "SkippedEvent",
    "Vector",
    "export",
    "list_vectors",
    "load",
    "manifest_of",
    "verify",
]

FORMAT = "kvwire-golden/1"
SCHEMAS = ("neutral.schema.json", "vector.schema.json", "manifest.schema.json")
GITATTRIBUTES = b"*.msgpack binary\n*.json text eol=lf\n"
"""Keeps git from changing line ends, which would change hashes."""

Kind = Literal["valid", "tolerated", "invalid"]

_LOCK_NAME = re.compile(r"([1-9][0-9]*)\.json")


class GoldenError(UsageError):
    """The golden vectors cannot be used: no such vector or suite, or files that are not what the manifest says."""

    code = "golden"


class Provenance(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Where the bytes of a vector come from.

    Attributes:
        source: ``release``: the structs of the named releases encode to exactly these bytes. ``specification``: no release
            writes the dialect. ``handwritten``: bytes that no engine writes.
        releases: keys of the manifest's ``releases``.
    """

    source: Literal["release", "specification", "handwritten"]
    releases: tuple[str, ...] = ()


class ReleaseFacts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What was run of a release.

    Attributes:
        member: path of the module inside the published package.
        sha256: SHA-256 of that module's bytes.
        package_file, package_sha256: the published file it was read from.
        batch_class: the struct that was encoded.
        msgspec: version of msgspec that encoded it.
    """

    member: str
    sha256: str
    package_file: str
    package_sha256: str
    batch_class: str
    msgspec: str


class Row(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One vector as the manifest lists it.

    Attributes:
        id: ``<folder>/<case>``; the files are ``<id>.msgpack`` and ``<id>.json``.
        dialect: None for the vectors in ``any/``.
        suite: the suite it came in.
        size, sha256: of the payload.
        json_sha256: of the JSON file's bytes.
    """

    id: str
    dialect: str | None
    kind: Kind
    suite: int
    size: int
    sha256: str
    json_sha256: str
    description: str
    provenance: Provenance


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``manifest.json``: every vector, and the releases that prove them."""

    format: str
    suite: int
    releases: dict[str, ReleaseFacts]
    vectors: tuple[Row, ...]


class ErrorPlace(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The stable part of a WireError: what an invalid vector pins down."""

    code: str
    event_index: int | None = None
    slot: int | None = None
    key: str | None = None

    @classmethod
    def of(cls, error: WireError) -> ErrorPlace:
        """The stable part of an error."""
        return cls(error.code, error.event_index, error.slot, error.key)


class SkippedEvent(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An event that a tolerant reader passes over."""

    event_index: int
    tag: str


class Vector(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One vector: its JSON file, and the payload beside it.

    Attributes:
        reading: ``any``: it holds whether or not the dialect is told. ``told``: only for a tolerant reader that was told the
            dialect. ``strict``: only for strict reading. Valid vectors hold for all three.
        strict: strict reading as the dialect accepts it; in ``any/``, strict reading as some dialect.
        roundtrip: ``exact``: encoding the meaning in the dialect gives the payload. ``semantic``: it gives other bytes of the
            same meaning. ``none``: it is not to be encoded.
        hash_form: how an encoder writes the block hashes of the meaning.
        meaning: the batch in the neutral JSON form (`kvwire.neutral_json`).
        skipped: events that are passed over.
        extras: slots and keys that are passed over.
        error: what reading must say.
        good_siblings: the events beside the faulty one that are still read; None when none can be reached.
        payload: the bytes.
    """

    id: str
    dialect: str | None
    kind: Kind
    description: str
    reading: Literal["any", "told", "strict"] = "any"
    strict: bool = False
    roundtrip: Literal["exact", "semantic", "none"] = "none"
    hash_form: Literal["signed", "unsigned", "bytes"] | None = None
    meaning: dict[str, Any] | None = None
    skipped: tuple[SkippedEvent, ...] = ()
    extras: tuple[ErrorPlace, ...] = ()
    error: ErrorPlace | None = None
    good_siblings: dict[str, Any] | None = None
    payload: bytes = b""


class Problem(msgspec.Struct, frozen=True):
    """Something that `verify` found."""

    where: str
    what: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what}"


def manifest_of(root: Traversable | None = None) -> Manifest:
    """The manifest of a folder; of the vectors that ship with kvwire by default.

    Raises:
        GoldenError: it is missing, or not a manifest that this version reads.
    """
    return _shipped_manifest() if root is None else _read_manifest(root)


def list_vectors(
    pattern: str | None = None, *, dialect: str | None = None, kind: str | None = None, root: Traversable | None = None
) -> list[Row]:
    """Rows of the manifest, in its order.

    Args:
        pattern: glob over ids, e.g. ``slot8/*`` or ``*/short-*``; a plain word is looked for anywhere in the id.
        dialect: only this dialect's; ``any`` for those of no dialect.
        kind: ``valid``, ``tolerated`` or ``invalid``.
    """
    if pattern is not None and not set(pattern) & set("*?["):
        pattern = f"*{pattern}*"
    return [
        row
        for row in manifest_of(root).vectors
        if (pattern is None or fnmatch.fnmatchcase(row.id, pattern))
        and (dialect is None or (row.dialect or "any") == dialect)
        and (kind is None or row.kind == kind)
    ]


def load(vector_id: str, root: Traversable | None = None) -> Vector:
    """One vector, its files checked against the manifest.

    Raises:
        GoldenError: no such vector (with the near ones), or its files were changed.
    """
    rows = _rows(root)
    row = rows.get(vector_id)
    if row is None:
        near = difflib.get_close_matches(vector_id, rows, n=3)
        meant = f"; did you mean {' or '.join(near)}?" if near else ""
        raise GoldenError(f"no golden vector is called {vector_id!r}{meant}")
    payload, text = _files(row, root or golden_dir())
    return msgspec.structs.replace(msgspec.json.decode(text, type=Vector), payload=payload)


def verify(root: Traversable | None = None) -> list[Problem]:
    """Compare a folder with its manifest and with the locks of its suites; an empty list means that all is as released.

    Raises:
        GoldenError: there is no manifest to compare with.
    """
    folder = root or golden_dir()
    manifest = _read_manifest(folder)
    found: list[Problem] = []
    sums: dict[str, str] = {}
    for row in manifest.vectors:
        if row.id in sums:
            found.append(Problem(row.id, "stands twice in the manifest"))
        payload, text = (_read(folder, f"{row.id}.{ending}") for ending in ("msgpack", "json"))
        found += _differences(row, payload, text)
        sums[row.id] = lock_sum(payload or b"", text or b"")
    found += _strays(folder, manifest)
    locks = read_locks(folder)
    for number in range(1, manifest.suite):
        if number not in locks:
            found.append(Problem(f"suites/{number}.json", "the lock of an earlier suite is missing"))
    for number, lock in locks.items():
        found += _broken_locks(number, lock, manifest, sums)
    return found


def export(target: Path, suite: int | None = None, root: Traversable | None = None) -> int:
    """Write the vectors of every suite up to ``suite`` (all by default) into an empty or new folder, with manifest, locks,
    schemas and what keeps git from touching them.

    Returns:
        The number of vectors.

    Raises:
        GoldenError: no such suite, a folder that is not empty, or vectors that were changed.
    """
    manifest = manifest_of(root)
    folder = root or golden_dir()
    suite = manifest.suite if suite is None else suite
    if not 1 <= suite <= manifest.suite:
        raise GoldenError(f"there is no suite {suite}; the newest is {manifest.suite}")
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise GoldenError(f"{target} is there already and is no empty folder")
    rows = tuple(row for row in manifest.vectors if row.suite <= suite)
    used = {name for row in rows for name in row.provenance.releases}
    files: dict[str, bytes] = {}
    for row in rows:
        files[f"{row.id}.msgpack"], files[f"{row.id}.json"] = _files(row, folder)
    releases = {name: facts for name, facts in manifest.releases.items() if name in used}
    files["manifest.json"] = render_manifest(Manifest(FORMAT, suite, releases, rows))
    for number in read_locks(folder):
        if number <= suite:
            files[f"suites/{number}.json"] = _read(folder, f"suites/{number}.json") or b""
    for name in SCHEMAS:
        files[f"schema/{name}"] = (spec_dir() / "schema" / name).read_bytes()
    files[".gitattributes"] = GITATTRIBUTES
    readme = _read(folder, "README.md")
    if readme is not None:
        files["README.md"] = readme
    for name, data in files.items():
        path = target / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return len(rows)


def render_manifest(manifest: Manifest) -> bytes:
    """The bytes of ``manifest.json``."""
    found = msgspec.to_builtins(manifest)
    assert isinstance(found, dict)
    return render(found)


def lock_sum(payload: bytes, text: bytes) -> str:
    """What a suite's lock holds for a vector: SHA-256, in hex, of the payload followed by the JSON file."""
    return hashlib.sha256(payload + text).hexdigest()


def read_locks(folder: Traversable) -> dict[int, dict[str, str]]:
    """Per frozen suite its vectors, id to `lock_sum`. Raises GoldenError for a lock that is none."""
    suites = folder / "suites"
    found: dict[int, dict[str, str]] = {}
    if not suites.is_dir():
        return found
    for entry in suites.iterdir():
        name = _LOCK_NAME.fullmatch(entry.name)
        if name is None:
            continue
        try:
            lock = msgspec.json.decode(entry.read_bytes(), type=_Lock)
        except msgspec.DecodeError as error:
            raise GoldenError(f"suites/{entry.name} is no lock: {error}") from error
        found[int(name[1])] = lock.vectors
    return dict(sorted(found.items()))


class _Lock(msgspec.Struct, forbid_unknown_fields=True):
    suite: int
    vectors: dict[str, str]


@functools.lru_cache(maxsize=1)
def _shipped_manifest() -> Manifest:
    return _read_manifest(golden_dir())


@functools.lru_cache(maxsize=1)
def _shipped_rows() -> Mapping[str, Row]:
    return {row.id: row for row in _shipped_manifest().vectors}


def _rows(root: Traversable | None) -> Mapping[str, Row]:
    return _shipped_rows() if root is None else {row.id: row for row in _read_manifest(root).vectors}


def _read_manifest(folder: Traversable) -> Manifest:
    data = _read(folder, "manifest.json")
    if data is None:
        raise GoldenError(f"{folder} has no manifest.json, so it is no folder of golden vectors")
    try:
        manifest = msgspec.json.decode(data, type=Manifest)
    except msgspec.DecodeError as error:
        raise GoldenError(f"manifest.json is not one that this version of kvwire reads: {error}") from error
    if manifest.format != FORMAT:
        raise GoldenError(f"manifest.json has the format {manifest.format!r}; this version of kvwire reads {FORMAT!r}")
    return manifest


def _read(folder: Traversable, name: str) -> bytes | None:
    found = folder
    for part in name.split("/"):
        found = found / part
    return found.read_bytes() if found.is_file() else None


def _files(row: Row, folder: Traversable) -> tuple[bytes, bytes]:
    payload, text = (_read(folder, f"{row.id}.{ending}") for ending in ("msgpack", "json"))
    for problem in _differences(row, payload, text):
        raise GoldenError(str(problem))
    assert payload is not None and text is not None, "a missing file is a difference"
    return payload, text


def _differences(row: Row, payload: bytes | None, text: bytes | None) -> Iterable[Problem]:
    for ending, data, wanted in (("msgpack", payload, row.sha256), ("json", text, row.json_sha256)):
        where = f"{row.id}.{ending}"
        if data is None:
            yield Problem(where, "is missing")
        elif hashlib.sha256(data).hexdigest() != wanted:
            size = "" if ending == "json" or len(data) == row.size else f" ({len(data)} bytes, not {row.size})"
            yield Problem(where, f"is not the file that was released{size}")


def _strays(folder: Traversable, manifest: Manifest) -> list[Problem]:
    known: dict[str, set[str]] = {}
    for row in manifest.vectors:
        place, _, case = row.id.partition("/")
        known.setdefault(place, set()).update((f"{case}.msgpack", f"{case}.json"))
    return [
        Problem(f"{place}/{entry.name}", "is not in the manifest")
        for place, names in known.items()
        if (folder / place).is_dir()
        for entry in sorted((folder / place).iterdir(), key=lambda entry: entry.name)
        if entry.name not in names
    ]


def _broken_locks(
    number: int, lock: Mapping[str, str], manifest: Manifest, sums: Mapping[str, str]
) -> Iterable[Problem]:
    for vector_id, wanted in lock.items():
        if vector_id not in sums:
            yield Problem(vector_id, f"came in suite {number} and is gone")
        elif sums[vector_id] != wanted:
            yield Problem(vector_id, f"is not as suite {number} froze it")
    for row in manifest.vectors:
        if (row.suite == number) != (row.id in lock):
            yield Problem(row.id, f"suite {row.suite} in the manifest, against the lock of suite {number}")
