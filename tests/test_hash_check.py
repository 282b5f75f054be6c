"""The hash check: real streams recompute, and a producer's mistake is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvwire import BlockStored, EventBatch, encode
from kvwire.hashing import sglang, vllm
from kvwire_conform.checks.hashes import HashSettings
from kvwire_conform.judge import Judge, Told
from kvwire_conform.model import CheckResult, Verdict
from kvwire_conform.recording import Record, read_recording
from tests.conftest import CAPTURES
from tests.test_captures import FILES, release_of


def settings_of(path: Path) -> HashSettings:
    truth = path.parent / "truth" / f"{path.stem}.json"
    told: dict[str, Any] = json.loads(truth.read_text()) if truth.exists() else {}
    release = release_of(path)
    if release.startswith("vllm"):
        algorithm = told.get("hash_algo", "sha256")
        return HashSettings(f"vllm:{'sha256' if algorithm == '(default)' else algorithm}", told.get("PYTHONHASHSEED"))
    if release == "sglang==0.4.10":
        return HashSettings("sglang:python")
    return HashSettings("sglang:dynamo" if told.get("format") == "dynamo" else "sglang")


def judged(records: list[Record], settings: HashSettings | None) -> CheckResult:
    judge = Judge(Told(replay_expected=any(r.channel == "replay" for r in records), hashes=settings), "capture")
    for record in records:
        judge.feed(record)
    _, results, _ = judge.finish()
    return next(result for result in results if result.id == "hash-recomputes")


@pytest.mark.skipif(not FILES, reason=f"no captures in {CAPTURES.name}")
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_real_streams_recompute(path: Path) -> None:
    result = judged(list(read_recording(path)), settings_of(path))
    assert result.verdict is (Verdict.FAIL if "handmade" in path.name else Verdict.PASS), result.findings
    assert result.judged


TOKENS = [11, 12, 13, 14, 15, 16, 17, 18]


def stream(hashes: list[Any], dialect: str, **fields: Any) -> list[Record]:
    event = BlockStored(hashes, None, TOKENS, 4, medium="GPU", **fields)
    payload = encode(EventBatch(1.5, [event], 0), dialect)
    return [Record(t=1.5, channel="live", frames=[b"", bytes(8), payload])]


def sglang_chain(**seeds: Any) -> list[int]:
    return [sglang.event_hash(digest) for digest in sglang.page_digests(TOKENS, 4, **seeds)]


CASES: dict[str, tuple[HashSettings, list[Record], str]] = {
    "the salt is not in the hash": (
        HashSettings("sglang"),
        stream(sglang_chain(), "slot8", cache_salt="tenant-a"),
        "salt-not-applied",
    ),
    "the page size is another": (
        HashSettings("sglang"),
        stream([sglang.event_hash(d) for d in sglang.page_digests(TOKENS, 2)][:2], "slot7"),
        "page-size",
    ),
    "the storage chain is published": (
        HashSettings("sglang"),
        stream(
            [sglang.event_hash(bytes.fromhex(key)) for key in sglang.storage_keys(TOKENS, 4, cache_salt="t")],
            "slot8",
            cache_salt="t",
        ),
        "storage-chain-published",
    ),
    "the seed is another": (
        HashSettings("vllm:sha256", "0"),
        stream(
            [
                vllm.external_hash(digest)
                for digest in vllm.block_digests(TOKENS, 4, algorithm="sha256", parent=vllm.none_hash("sha256", "42"))
            ],
            "vllm-map5",
            extra_keys=[None, None],
        ),
        "wrong-seed",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_mistake_is_named(case: str) -> None:
    settings, records, mistake = CASES[case]
    result = judged(records, settings)
    assert result.verdict is Verdict.FAIL
    assert mistake in result.findings[0].hint


def test_without_a_recipe_it_is_skipped() -> None:
    assert judged(stream([1, 2], "slot7"), None).verdict is Verdict.SKIP
