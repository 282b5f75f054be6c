"""Where valid vectors come from, proven: each release's own structs, run, give exactly their bytes."""

from __future__ import annotations

import hashlib

import msgspec
import pytest

from kvwire.neutral_json import from_json
from kvwire_conform import golden
from kvwire_conform.golden import Row
from kvwire_conform.golden_provenance import WITNESSES, as_release_writes, facts_of
from kvwire_conform.releases import Engine, ReleaseStructs, load_structs
from tests.real.catalog import require_source

MANIFEST = golden.manifest_of()
RELEASES = [(dialect, engine, version) for dialect, found in WITNESSES.items() for engine, version in found]
_loaded: dict[tuple[Engine, str], ReleaseStructs] = {}


def structs_of(engine: Engine, version: str) -> ReleaseStructs:
    if (engine, version) not in _loaded:
        _loaded[engine, version] = load_structs(require_source(engine, version))
    return _loaded[engine, version]


def written_by(structs: ReleaseStructs, row: Row) -> bytes | None:
    vector = golden.load(row.id)
    return as_release_writes(structs, from_json(vector.meaning, signed=vector.hash_form == "signed"))


@pytest.mark.network
@pytest.mark.parametrize(("dialect", "engine", "version"), RELEASES, ids=[f"{d}-{e}-{v}" for d, e, v in RELEASES])
def test_a_release_writes_every_valid_vector_of_its_dialect(dialect: str, engine: Engine, version: str) -> None:
    structs = structs_of(engine, version)
    rows = golden.list_vectors(dialect=dialect, kind="valid")
    assert len(rows) >= 50
    for row in rows:
        assert written_by(structs, row) == golden.load(row.id).payload, f"{structs.source.release}: {row.id}"
        assert structs.source.release in row.provenance.releases, row.id


@pytest.mark.network
def test_vectors_of_no_dialect_are_written_by_the_releases_they_name() -> None:
    for row in golden.list_vectors(dialect="any", kind="valid"):
        assert row.provenance.releases, row.id
        for release in row.provenance.releases:
            name, _, version = release.partition("==")
            engine: Engine = "sglang" if name == "sglang" else "vllm"
            assert written_by(structs_of(engine, version), row) == golden.load(row.id).payload, (release, row.id)


@pytest.mark.network
@pytest.mark.parametrize("release", sorted(MANIFEST.releases))
def test_the_manifest_names_the_very_module_that_was_run(release: str) -> None:
    name, _, version = release.partition("==")
    engine: Engine = "sglang" if name == "sglang" else "vllm"
    structs = structs_of(engine, version)
    told, found = MANIFEST.releases[release], facts_of(structs)
    # A package of another platform, and another msgspec, give the same module and the same bytes.
    assert (told.member.split("/", 1)[-1], told.sha256) == (found.member.split("/", 1)[-1], found.sha256)
    assert told.batch_class == found.batch_class
    assert hashlib.sha256(structs.source.text.encode()).hexdigest() == told.sha256


@pytest.mark.network
def test_a_salted_event_of_sglang_0_5_19_is_its_subclass_with_metadata() -> None:
    structs = structs_of("sglang", "0.5.19")
    assert structs.salted is not None
    assert structs.salted.__name__ == "BlockStoredWithMetadata"
    payload = golden.load("slot8/salt").payload
    event = structs.event(
        "BlockStored",
        block_hashes=[0x7E3F112233445566],
        parent_block_hash=None,
        token_ids=[11, 12, 13, 14],
        block_size=4,
        lora_id=None,
        medium="GPU",
        cache_salt="tenant-a",
    )
    assert type(event) is structs.salted
    assert msgspec.msgpack.encode(structs.batch_class(1.5, [event], 0)) == payload


def test_every_vector_says_where_it_comes_from() -> None:
    for row in MANIFEST.vectors:
        if row.kind != "valid":
            assert row.provenance.source == "handwritten", row.id
        elif row.dialect is not None and not WITNESSES[row.dialect]:
            assert row.provenance.source == "specification", row.id
        else:
            assert row.provenance.source == "release", row.id
            wanted = {f"{e}=={v}" for e, v in WITNESSES[row.dialect]} if row.dialect else None
            assert wanted is None or set(row.provenance.releases) == wanted
        assert set(row.provenance.releases) <= set(MANIFEST.releases)
    assert {d for d, found in WITNESSES.items() if not found} == {"dynamo"}
    for engine in ("sglang", "vllm"):
        for dialect in ("slot6-b2", "slot6", "slot7"):
            assert any(name == engine for name, _ in WITNESSES[dialect])
