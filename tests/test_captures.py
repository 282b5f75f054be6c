"""Streams of real engines: each decodes whole, names its dialect, encodes again to the same bytes, and is judged rightly."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import kvwire
from kvwire import BlockIndex, get_dialect, hash_key
from kvwire_conform.judge import Judge, Told
from kvwire_conform.model import Verdict
from kvwire_conform.recording import Record, read_recording
from tests.conftest import CAPTURES

FILES = sorted(CAPTURES.glob("*.jsonl"))
pytestmark = pytest.mark.skipif(not FILES, reason="no captures; set KVWIRE_CAPTURES to their folder")


def release_of(path: Path) -> str:
    found = re.match(r"(sglang|vllm)(?:-cpu|-mixed)?-(\d[\d.]*\d)-", path.name)
    assert found, path.name
    return f"{found[1]}=={found[2]}"


def payloads(path: Path) -> list[bytes]:
    return [r.frames[-1] for r in read_recording(path) if r.channel in ("live", "replay") and r.frames[-1]]


def truth_of(path: Path) -> dict[str, Any]:
    truth = path.parent / "truth" / f"{path.stem}.json"
    return json.loads(truth.read_text()) if truth.exists() else {}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_payload_is_its_release_s_dialect(path: Path) -> None:
    dialect = get_dialect(release_of(path))
    seen = payloads(path)
    assert seen
    for payload in seen:
        batch = kvwire.decode(payload)
        assert kvwire.decode(payload, dialect, strict=True) == batch
        assert dialect.id in kvwire.detect(payload)
        assert kvwire.encode(batch, dialect) == payload
        assert kvwire.decode(payload, skip_tokens=True) == batch


def judged(records: list[Record]) -> tuple[Any, dict[tuple[str, str], Any]]:
    judge = Judge(Told(replay_expected=any(r.channel == "replay" for r in records)), "capture")
    for record in records:
        judge.feed(record)
    sources, results, _ = judge.finish()
    return sources, {(r.source, r.id): r for r in results}


def expected_deviations(name: str) -> set[str]:
    """What is really wrong in a stream, by its name."""
    if "handmade" in name:
        wrong = {"ts-plausible", "dp-rank-constant", "removed-was-stored"}
        return wrong | {"parent-known"} if name.startswith(("sglang-0.5.19", "sglang-0.5.23")) else wrong
    wrong = set()
    if name.startswith("sglang-0.4.10"):
        wrong.add("root-parent-nil")
        if "-prefix-" in name:
            wrong.add("no-self-parent")
    if name == "sglang-0.5.16-hicache-write_through-ps4-hiradix":
        wrong.add("removed-was-stored")
    return wrong


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_verdicts_are_the_real_deviations(path: Path) -> None:
    sources, results = judged(list(read_recording(path)))
    wrong = {check for (_, check), r in results.items() if r.verdict in (Verdict.FAIL, Verdict.WARN)}
    assert wrong == expected_deviations(path.stem)
    assert not any(r.verdict in (Verdict.ERROR, Verdict.HARNESS_ERROR) for r in results.values())
    release = get_dialect(release_of(path))
    for source in sources:
        assert release.id in source.candidates
        assert source.lost == 0
        for check in ("three-frames", "seq-width", "payload-decodes", "ts-finite", "topic-utf8"):
            assert results[source.name, check].verdict is Verdict.PASS
        if any(source.events.values()):
            assert results[source.name, "event-shape"].verdict is Verdict.PASS


SGLANG = [p for p in FILES if p.name.startswith("sglang") and "handmade" not in p.name and "final_store" in truth_of(p)]


@pytest.mark.parametrize("path", SGLANG, ids=lambda path: path.stem)
def test_the_index_ends_where_the_cache_does(path: Path) -> None:
    batches: dict[int, bytes] = {}
    for record in read_recording(path):
        if record.channel in ("live", "replay") and record.frames[-1]:
            batches[int.from_bytes(record.frames[-2], "big")] = record.frames[-1]
    index = BlockIndex.for_dialect(release_of(path))
    for seq in sorted(batches):
        index.apply(kvwire.decode(batches[seq]))
    final = truth_of(path)["final_store"]
    assert {medium: index.blocks(medium) for medium in index.per_medium()} == {
        medium: {hash_key(value) for value in values} for medium, values in final.items() if values
    }
    sources, _ = judged(list(read_recording(path)))
    assert sources[0].held == {medium: len(set(values)) for medium, values in sorted(final.items()) if values}
