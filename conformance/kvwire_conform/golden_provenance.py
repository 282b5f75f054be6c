"""Proof of where valid vectors come from: the structs of published releases, run, encode to exactly their bytes.

Reading a release takes the package index, or its module in the cache (`kvwire_conform.releases`); that module is code
of the release, and it is executed here.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from kvwire.events import EventBatch
from kvwire.neutral_json import from_json
from kvwire_conform.golden import Provenance, ReleaseFacts
from kvwire_conform.golden_case import Case
from kvwire_conform.releases import Engine, ReleaseError, ReleaseStructs, fetch_module, load_structs

WITNESSES: Mapping[str, tuple[tuple[Engine, str], ...]] = {
    "slot6-b2": (("sglang", "0.4.6.post5"), ("vllm", "0.9.0")),
    "slot6": (("sglang", "0.5.8"), ("vllm", "0.10.1")),
    "slot7": (("sglang", "0.5.17"), ("vllm", "0.13.0")),
    "slot8": (("sglang", "0.5.19"),),
    "slot8-lora": (("vllm", "0.16.0"),),
    "slot9": (("vllm", "0.19.1"),),
    "slot10": (("vllm", "0.21.0"),),
    "slot12": (("vllm", "0.23.0"),),
    "dynamo": (),
    "sglang-map1": (("sglang", "0.5.21"),),
    "sglang-map2": (("sglang", "0.5.23"),),
    "vllm-map1": (("vllm", "0.25.1"),),
    "vllm-map2": (("vllm", "0.28.0"),),
    "vllm-map3": (("vllm", "0.29.0"),),
    "vllm-map4": (("vllm", "0.32.0"),),
    "vllm-map5": (("vllm", "0.33.0"),),
}
"""Per dialect the releases that are run: the newest or nearly newest of each engine that emits it."""


@functools.cache
def structs_of(engine: Engine, version: str) -> ReleaseStructs:
    """The real classes of a release. Raises ReleaseError if it cannot be had."""
    return load_structs(fetch_module(engine, version))


def as_release_writes(structs: ReleaseStructs, batch: EventBatch) -> bytes | None:
    """The bytes that a release's publisher sends for a batch; None if it has no such event or no DP rank.

    Every field that the release has is given, nil included; a field that it does not have is left out, so that the bytes
    then differ from a vector that has it.
    """
    events = []
    for event in batch.events:
        fields: dict[str, Any] = {f.name: getattr(event, f.name, None) for f in structs.fields[event.tag]}
        if structs.salted is not None and getattr(event, "cache_salt", None) is not None:
            fields["cache_salt"] = event.cache_salt
        events.append(structs.event(event.tag, **fields))
    try:
        return structs.encode(structs.batch(batch.ts, events, dp_rank=batch.dp_rank))
    except ReleaseError:
        return None


def prove(cases: Iterable[Case]) -> tuple[dict[str, Provenance], dict[str, ReleaseFacts]]:
    """The provenance of each case by id, and the facts of the releases that were run.

    Raises:
        ReleaseError: a release cannot be had. ValueError: a valid vector that none of its dialect's releases writes.
    """
    found: dict[str, Provenance] = {}
    facts: dict[str, ReleaseFacts] = {}
    for case in cases:
        if case.kind != "valid":
            found[case.id] = Provenance("handwritten")
            continue
        witnesses = WITNESSES[case.dialect] if case.dialect else sorted({w for ws in WITNESSES.values() for w in ws})
        if not witnesses:
            found[case.id] = Provenance("specification")
            continue
        batch = from_json(case.meaning, signed=case.hash_form == "signed")
        proven = []
        for engine, version in witnesses:
            structs = structs_of(engine, version)
            if as_release_writes(structs, batch) == case.payload:
                proven.append(structs.source.release)
                facts[structs.source.release] = facts_of(structs)
        if not proven:
            raise ValueError(f"{case.id}: no release of its dialect writes these bytes")
        found[case.id] = Provenance("release", tuple(proven))
    return found, dict(sorted(facts.items()))


def facts_of(structs: ReleaseStructs) -> ReleaseFacts:
    """What the manifest says of a release that was run."""
    source = structs.source
    return ReleaseFacts(
        member=source.member,
        sha256=source.sha256,
        package_file=source.package_file,
        package_sha256=source.package_sha256,
        batch_class=structs.batch_class.__name__,
        msgspec=msgspec.__version__,
    )
