"""kvwire.encode against the structs of real releases, run: the same events give the same bytes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

import kvwire
from kvwire import EventBatch, get_dialect
from kvwire_conform.releases import ReleaseStructs, load_structs
from tests.real.catalog import RELEASES, Release, require_source
from tests.strategies import batches

_loaded: dict[Release, ReleaseStructs] = {}


def structs_of(release: Release) -> ReleaseStructs:
    if release not in _loaded:
        _loaded[release] = load_structs(require_source(release.engine, release.version))
    return _loaded[release]


def as_release_writes(structs: ReleaseStructs, dialect: kvwire.Dialect, batch: EventBatch) -> bytes:
    """Build the release's own objects from neutral events and encode them as its publisher does."""
    events = []
    for event in batch.events:
        fields: dict[str, Any] = {}
        for f in dialect.events[event.tag].fields:
            fields[f.neutral] = getattr(event, f.neutral)
        if fields.get("cache_salt") is None and "metadata" in {f.name for f in dialect.events[event.tag].fields}:
            del fields["cache_salt"]
        events.append(structs.event(event.tag, **fields))
    return structs.encode(structs.batch(batch.ts, events, dp_rank=batch.dp_rank))


@pytest.mark.network
@pytest.mark.parametrize("release", RELEASES, ids=str)
def test_the_bytes_are_the_release_s_own(release: Release) -> None:
    dialect = get_dialect(release.dialect)
    structs = structs_of(release)
    assert get_dialect(f"{release.engine}=={release.version}") is dialect

    @settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), database=None)
    @given(batches(dialect))
    def compare(batch: EventBatch) -> None:
        assert kvwire.encode(batch, dialect) == as_release_writes(structs, dialect, batch)

    compare()
