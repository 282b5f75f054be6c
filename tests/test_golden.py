"""Every golden vector against the codec, and the vectors themselves against their manifest, locks and schemas."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import kvwire
from kvwire import DIALECTS, WireError
from kvwire._resources import golden_dir, spec_dir
from kvwire._walk import walk
from kvwire.neutral_json import from_json, to_json
from kvwire_conform import golden
from kvwire_conform.golden import ErrorPlace, GoldenError, SkippedEvent, Vector
from kvwire_conform.golden_build import all_cases, build, freeze, main, write
from kvwire_conform.golden_case import Case
from kvwire_conform.golden_layout import LAYOUTS
from kvwire_conform.golden_text import parts_of
from kvwire_conform.requirements import requirements

ROWS = golden.manifest_of().vectors
_vectors: dict[str, Vector] = {}


def vector_of(vector_id: str) -> Vector:
    if vector_id not in _vectors:
        _vectors[vector_id] = golden.load(vector_id)
    return _vectors[vector_id]


def ids(kind: str) -> list[str]:
    return [row.id for row in ROWS if row.kind == kind]


def readings(vector: Vector) -> Iterator[dict[str, Any]]:
    """The arguments of decode under which a vector holds."""
    if vector.kind == "valid" or vector.reading == "any":
        yield {}
    if vector.dialect is not None:
        if vector.kind == "valid" or vector.reading in ("any", "told"):
            yield {"dialect": vector.dialect}
        if vector.kind == "valid" or vector.reading == "strict":
            yield {"dialect": vector.dialect, "strict": True}


@pytest.mark.parametrize("vector_id", [row.id for row in ROWS if row.kind != "invalid"])
def test_it_is_read_and_written_as_it_says(vector_id: str) -> None:
    vector = vector_of(vector_id)
    assert_read(vector)
    assert_strictness(vector)
    if vector.dialect is not None:
        assert_written(vector, vector.dialect)


def assert_read(vector: Vector) -> None:
    for reading in readings(vector):
        batch = kvwire.decode(vector.payload, **reading)
        assert to_json(batch) == vector.meaning, reading
        lazy = kvwire.decode(vector.payload, skip_tokens=True, **reading)
        assert to_json(lazy) == vector.meaning, reading
        told = DIALECTS[reading["dialect"]] if "dialect" in reading else None
        found = walk(vector.payload, told, strict=reading.get("strict", False))
        assert tuple(SkippedEvent(one.event_index, one.event_tag) for one in found.skipped) == vector.skipped
        assert tuple(map(ErrorPlace.of, found.extras)) == vector.extras
        collected = kvwire.decode(vector.payload, on_error="collect", **reading)
        assert to_json(collected) == vector.meaning
        assert collected.faults == []


def assert_strictness(vector: Vector) -> None:
    found = kvwire.detect(vector.payload)
    if vector.dialect is None:
        assert bool(found) is vector.strict
        return
    assert (vector.dialect in found) is vector.strict
    try:
        batch = kvwire.decode(vector.payload, vector.dialect, strict=True)
    except WireError:
        assert not vector.strict
    else:
        assert vector.strict
        assert to_json(batch) == vector.meaning


def assert_written(vector: Vector, dialect: str) -> None:
    batch = from_json(vector.meaning, signed=vector.hash_form == "signed")
    if vector.roundtrip == "none":
        # Its meaning has a place in another dialect only, or takes on a second form when it is written.
        try:
            again = kvwire.encode(batch, dialect)
        except kvwire.LossyEncodeError:
            return
        assert to_json(kvwire.decode(again)) != vector.meaning
        return
    again = kvwire.encode(batch, dialect)
    if vector.roundtrip == "exact":
        assert again == vector.payload
        decoded = kvwire.decode(vector.payload)
        assert kvwire.encode(decoded, dialect) == vector.payload
    else:
        assert again != vector.payload
        assert to_json(kvwire.decode(again, dialect, strict=True)) == vector.meaning


@pytest.mark.parametrize("vector_id", ids("invalid"))
def test_it_is_refused_as_it_says(vector_id: str) -> None:
    vector = vector_of(vector_id)
    for reading in readings(vector):
        with pytest.raises(WireError) as caught:
            kvwire.decode(vector.payload, **reading)
        assert ErrorPlace.of(caught.value) == vector.error, reading
        if vector.good_siblings is None:
            with pytest.raises(WireError):
                kvwire.decode(vector.payload, on_error="collect", **reading)
            continue
        batch = kvwire.decode(vector.payload, on_error="collect", **reading)
        assert to_json(batch) == vector.good_siblings, reading
        assert vector.error in map(ErrorPlace.of, batch.faults)


def test_a_narrower_reading_is_needed_where_one_is_named() -> None:
    """A strict vector's fault is none to a tolerant reader; a told vector is another thing to a reader that is not told."""
    for row in ROWS:
        vector = vector_of(row.id)
        if vector.reading == "strict":
            kvwire.decode(vector.payload, vector.dialect)
        elif vector.reading == "told":
            found = walk(vector.payload, keep_going=True)
            extras, faults = tuple(map(ErrorPlace.of, found.extras)), list(map(ErrorPlace.of, found.faults))
            read = to_json(kvwire.decode(vector.payload, on_error="collect"))
            if vector.kind == "invalid":
                assert faults != [vector.error], row.id
            else:
                assert (read, extras, faults) != (vector.meaning, vector.extras, []), row.id


def test_every_prefix_of_a_payload_is_refused() -> None:
    sample = [row for row in ROWS if row.kind == "valid" and row.size <= 400][::17]
    assert len(sample) > 50
    for row in sample:
        payload = vector_of(row.id).payload
        for end in range(len(payload)):
            with pytest.raises(WireError) as caught:
                kvwire.decode(payload[:end])
            assert caught.value.code in ("truncated", "empty"), (row.id, end)


def test_what_the_set_covers() -> None:
    valid = [vector_of(vector_id) for vector_id in ids("valid")]
    for dialect in DIALECTS.values():
        own = [vector for vector in valid if vector.dialect == dialect.id]
        for tag, layout in dialect.events.items():
            events = [event for vector in own for event in (vector.meaning or {})["events"] if event["type"] == tag]
            assert events, (dialect.id, tag)
            for field in layout.fields:
                given = [event for event in events if field.neutral in event]
                assert given, f"{dialect.id}: no valid vector has {tag}.{field.neutral}"
                if field.nullable:
                    assert len(given) < len(events), f"{dialect.id}: every valid vector has {tag}.{field.neutral}"
        hashes = {h for v in own for e in (v.meaning or {})["events"] for h in e.get("block_hashes", ())}
        assert {"0" * 16, "7" + "f" * 15, "8" + "0" * 15, "f" * 16} <= hashes
        assert any(h.startswith("bytes:") for h in hashes)
        assert {vector.hash_form for vector in own} == {"signed", "unsigned", "bytes"}
        media = {e.get("medium") for v in own for e in (v.meaning or {})["events"]}
        assert set(dialect.media) <= media
        for kind in ("tolerated", "invalid"):
            assert sum(row.dialect == dialect.id and row.kind == kind for row in ROWS) >= 40


def test_the_layouts_are_those_of_the_registry() -> None:
    """The tables that wrote the vectors, and the codec's registry, were written apart; they say the same."""
    assert list(LAYOUTS) == list(DIALECTS)
    for layout in LAYOUTS.values():
        dialect = DIALECTS[layout.id]
        for tag, fields in dialect.events.items():
            assert layout.fields(tag) == tuple(f.name for f in fields.fields if f.name != "metadata")
        assert layout.metadata == any(f.name == "metadata" for f in dialect.events["BlockStored"].fields)
        assert layout.ranked == ("dp_rank" in dialect.batch_fields)
        if dialect.releases:
            assert set(layout.media) == set(dialect.media)


def test_requirements_name_vectors_that_exist() -> None:
    named = [check for row in requirements().values() for check in row.checks if check.startswith("golden:")]
    assert len(named) >= 6
    for check in named:
        assert len(golden.list_vectors(check.removeprefix("golden:"))) >= 8, check


def test_ids_and_descriptions() -> None:
    said: set[tuple[str | None, str]] = set()
    for row in ROWS:
        folder, _, case = row.id.partition("/")
        assert folder == (row.dialect or "any")
        assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", case), row.id
        assert row.description[-1] == "." and len(row.description) <= 140, row.description
        assert not re.search(r"\b(must|should|shall|may|might|ought)\b", row.description, re.I), row.description
        assert (row.dialect, row.description) not in said, f"{row.id} says what another says"
        said.add((row.dialect, row.description))
        vector = vector_of(row.id)
        assert (vector.id, vector.dialect, vector.kind, vector.description) == (
            row.id,
            row.dialect,
            row.kind,
            row.description,
        )
        assert row.size == len(vector.payload)
    assert len({row.id for row in ROWS}) == len(ROWS)


def test_the_folder_is_as_released() -> None:
    assert golden.verify() == []


def test_every_suite_but_the_newest_is_frozen_and_none_has_lost_a_vector() -> None:
    folder = golden_dir()
    locks = golden.read_locks(folder)
    assert set(range(1, golden.manifest_of().suite)) <= set(locks)
    assert 1 in locks
    for lock in locks.values():
        for vector_id, wanted in lock.items():
            payload = (folder / f"{vector_id}.msgpack").read_bytes()
            text = (folder / f"{vector_id}.json").read_bytes()
            assert golden.lock_sum(payload, text) == wanted, f"{vector_id} is frozen and was changed"


def test_building_again_gives_the_same_bytes(tmp_path: Path) -> None:
    folder = golden_dir()
    assert isinstance(folder, Path)
    files = build(folder)
    for name, data in files.items():
        assert (folder / name).read_bytes() == data, name
    assert main([str(folder), "--check"]) == 0
    assert len(all_cases()) == len(ROWS)


def test_schemas_hold_for_every_file() -> None:
    pytest.importorskip("jsonschema")
    from jsonschema import Draft202012Validator
    from referencing import Registry, Resource

    schemas = {name: json.loads((spec_dir() / "schema" / name).read_text(encoding="utf-8")) for name in golden.SCHEMAS}
    for schema in schemas.values():
        Draft202012Validator.check_schema(schema)
        for part in _objects(schema):
            assert part.get("additionalProperties") is not None, part
    registry: Any = Registry().with_resources((s["$id"], Resource.from_contents(s)) for s in schemas.values())
    vectors = Draft202012Validator(schemas["vector.schema.json"], registry=registry)
    by_kind = {
        kind: Draft202012Validator({"$ref": f"{schemas['vector.schema.json']['$id']}#/$defs/{kind}"}, registry=registry)
        for kind in ("valid", "tolerated", "invalid")
    }
    manifest = json.loads((golden_dir() / "manifest.json").read_text(encoding="utf-8"))
    assert list(Draft202012Validator(schemas["manifest.schema.json"], registry=registry).iter_errors(manifest)) == []
    for row in ROWS:
        found = json.loads((golden_dir() / f"{row.id}.json").read_text(encoding="utf-8"))
        one = by_kind[row.kind]
        assert one.is_valid(found), (row.id, [error.message[:200] for error in one.iter_errors(found)])
    sample = json.loads((golden_dir() / "slot8" / "salt.json").read_text(encoding="utf-8"))
    assert vectors.is_valid(sample)
    for broken in (
        {**sample, "more": 1},
        {**sample, "kind": "invalid"},
        {**sample, "hash_form": "hex"},
        {**sample, "meaning": {**sample["meaning"], "events": [{"type": "BlockMoved"}]}},
        {**sample, "meaning": {**sample["meaning"], "dp_rank": 1 << 60}},
    ):
        assert not vectors.is_valid(broken), broken


def _objects(schema: Any) -> Iterator[dict[str, Any]]:
    if isinstance(schema, dict):
        if schema.get("type") == "object":
            yield schema
        for value in schema.values():
            yield from _objects(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from _objects(value)


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("golden") / "vectors"
    assert golden.export(target) == len(ROWS)
    return target


def test_an_export_stands_by_itself(exported: Path) -> None:
    assert golden.verify(exported) == []
    assert (exported / "manifest.json").read_bytes() == (golden_dir() / "manifest.json").read_bytes()
    assert "*.msgpack binary" in (exported / ".gitattributes").read_text()
    assert {path.name for path in (exported / "schema").iterdir()} == set(golden.SCHEMAS)
    assert (exported / "README.md").is_file()
    assert golden.load("slot8/salt", exported) == vector_of("slot8/salt")
    assert golden.list_vectors("slot8/salt", root=exported) == golden.list_vectors("slot8/salt")


def test_an_export_refuses_what_it_cannot_do(exported: Path, tmp_path: Path) -> None:
    with pytest.raises(GoldenError, match="no empty folder"):
        golden.export(exported)
    with pytest.raises(GoldenError, match="no suite 99"):
        golden.export(tmp_path / "new", suite=99)
    assert not (tmp_path / "new").exists()


def small_copy(tmp_path: Path) -> Path:
    """A few vectors with a manifest and a lock of their own."""
    folder = tmp_path / "golden"
    rows = tuple(row for row in ROWS if row.id.startswith("slot8/salt"))
    whole = golden.manifest_of()
    manifest = golden.Manifest(golden.FORMAT, 1, whole.releases, rows)
    for row in rows:
        for ending in ("msgpack", "json"):
            target = folder / f"{row.id}.{ending}"
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes((golden_dir() / f"{row.id}.{ending}").read_bytes())
    (folder / "manifest.json").write_bytes(golden.render_manifest(manifest))
    assert freeze(folder) == 1
    assert freeze(folder) is None
    assert golden.verify(folder) == []
    return folder


def test_an_altered_byte_is_found(tmp_path: Path) -> None:
    folder = small_copy(tmp_path)
    path = folder / "slot8" / "salt.msgpack"
    data = path.read_bytes()
    path.write_bytes(data[:-1] + b"\x01")
    assert {problem.where for problem in golden.verify(folder)} == {"slot8/salt.msgpack", "slot8/salt"}
    with pytest.raises(GoldenError, match="not the file that was released"):
        golden.load("slot8/salt", folder)
    path.write_bytes(data + b"\x00")
    assert any(f"{len(data) + 1} bytes, not {len(data)}" in problem.what for problem in golden.verify(folder))
    path.write_bytes(data)
    text = folder / "slot8" / "salt.json"
    text.write_text(text.read_text().replace("tenant-a", "tenant-b"))
    assert {problem.where for problem in golden.verify(folder)} == {"slot8/salt.json", "slot8/salt"}


def test_missing_and_stray_files_are_found(tmp_path: Path) -> None:
    folder = small_copy(tmp_path)
    (folder / "slot8" / "salt.json").unlink()
    (folder / "slot8" / "mine.msgpack").write_bytes(b"\xc0")
    found = {str(problem) for problem in golden.verify(folder)}
    assert {"slot8/salt.json: is missing", "slot8/mine.msgpack: is not in the manifest"} <= found


def test_a_lock_outlives_its_manifest(tmp_path: Path) -> None:
    """A vector that leaves files and manifest alike is still missed by the lock of its suite."""
    folder = small_copy(tmp_path)
    manifest = golden.manifest_of(folder)
    kept = tuple(row for row in manifest.vectors if row.id != "slot8/salt")
    (folder / "manifest.json").write_bytes(
        golden.render_manifest(golden.Manifest(manifest.format, 1, manifest.releases, kept))
    )
    for ending in ("msgpack", "json"):
        (folder / "slot8" / f"salt.{ending}").unlink()
    assert [str(problem) for problem in golden.verify(folder)] == ["slot8/salt: came in suite 1 and is gone"]


def some_cases() -> list[Case]:
    return [case for case in all_cases() if case.id.startswith("slot8/salt")]


def locked(folder: Path, vectors: dict[str, str]) -> None:
    (folder / "suites" / "1.json").write_text(json.dumps({"suite": 1, "vectors": vectors}))


def lock_of(folder: Path) -> dict[str, str]:
    return dict(golden.read_locks(folder)[1])


def test_a_frozen_suite_is_never_built_over(tmp_path: Path) -> None:
    folder = small_copy(tmp_path)
    before = lock_of(folder)
    assert set(build(folder, some_cases())) == {
        ".gitattributes",
        "manifest.json",
        *(f"{vector_id}.{ending}" for vector_id in before for ending in ("msgpack", "json")),
    }
    locked(folder, {**before, "slot8/salt": "0" * 64})
    with pytest.raises(GoldenError, match="give the new vector another name"):
        build(folder, some_cases())
    locked(folder, {**before, "slot8/salt-that-was": "0" * 64})
    with pytest.raises(GoldenError, match="never goes"):
        build(folder, some_cases())
    assert main([str(folder)]) == 1


def test_new_vectors_come_in_the_next_suite(tmp_path: Path) -> None:
    folder = small_copy(tmp_path)
    before = lock_of(folder)
    locked(folder, {vector_id: value for vector_id, value in before.items() if vector_id != "slot8/salt"})
    assert write(folder, build(folder, some_cases())) == (2, 0)
    manifest = golden.manifest_of(folder)
    assert manifest.suite == 2
    assert [row.id for row in manifest.vectors if row.suite == 2] == ["slot8/salt"]
    assert golden.verify(folder) == []
    assert golden.export(tmp_path / "first", suite=1, root=folder) == len(before) - 1
    assert golden.verify(tmp_path / "first") == []
    assert freeze(folder) == 2
    assert golden.verify(folder) == []
    (folder / "suites" / "1.json").unlink()
    assert "suites/1.json: the lock of an earlier suite is missing" in map(str, golden.verify(folder))


def test_what_is_no_vector_any_more_is_dropped(tmp_path: Path) -> None:
    folder = small_copy(tmp_path)
    (folder / "suites" / "1.json").unlink()
    (folder / "hashing").mkdir()
    (folder / "hashing" / "other.json").write_text("{}")
    cases = [case for case in some_cases() if case.id != "slot8/salt"]
    assert write(folder, build(folder, cases)) == (2, 2)
    assert not (folder / "slot8" / "salt.msgpack").exists()
    assert (folder / "hashing" / "other.json").exists()
    assert golden.verify(folder) == []


def test_finding_vectors() -> None:
    assert [row.id for row in golden.list_vectors("slot8/salt-empty")] == ["slot8/salt-empty"]
    assert {row.kind for row in golden.list_vectors("*", kind="tolerated")} == {"tolerated"}
    assert {row.dialect for row in golden.list_vectors(dialect="any")} == {None}
    assert {row.id.split("/")[1] for row in golden.list_vectors("*/salt", kind="valid")} == {"salt"}
    with pytest.raises(GoldenError, match=r"did you mean .*slot8/salt-empty"):
        golden.load("slot8/salt-emty")
    with pytest.raises(GoldenError, match=r"no manifest\.json"):
        golden.manifest_of(Path(__file__).parent)


def test_a_payload_taken_apart_is_the_whole_payload() -> None:
    for row in ROWS:
        payload = vector_of(row.id).payload
        assert b"".join(part.data for part in parts_of(payload, row.dialect)) == payload, row.id
