"""golden/hashing: kvwire gives every value, the engines still give them, and the files fit their schema and manifest."""

from __future__ import annotations

import json
import os
from typing import Any

import jsonschema
import pytest

from kvwire import BlockStored
from kvwire.hashing import as_hex, as_int64, as_uint64, dynamo, sglang, vllm
from kvwire.hashing.catalog import get_recipe, recipe_for_release
from kvwire.hashing.recipes import Known, Recipe, Status
from kvwire.hashing.sglang_recipe import SglangStorageRecipe
from kvwire.hashing.verify import ChainVerifier, recompute
from kvwire.hashing.vllm import ExtraKeys
from kvwire.hashing.vllm_recipe import VllmRecipe
from tests import hashing_golden
from tests.conftest import CAPTURES, ROOT

FOLDER = ROOT / "golden" / "hashing"
SCHEMA = json.loads((ROOT / "spec" / "schema" / "hashing.schema.json").read_text(encoding="utf-8"))
NAMES = sorted(path.name for path in FOLDER.glob("*.json") if path.name != "manifest.json")


def cases(name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((FOLDER / name).read_text(encoding="utf-8"))["cases"]
    return found


def each(name: str) -> pytest.MarkDecorator:
    found = cases(name)
    return pytest.mark.parametrize("case", found, ids=[case["id"] for case in found])


def forms(value: int | bytes | None) -> Any:
    if value is None or isinstance(value, bytes):
        return value and {"bytes": value.hex()}
    return {"hex": as_hex(value), "int64": str(as_int64(value)), "uint64": str(as_uint64(value))}


def ids(tokens: list[Any]) -> list[Any]:
    return [int(token) if isinstance(token, str) else token for token in tokens]


@each("sglang.json")
def test_sglang(case: dict[str, Any]) -> None:
    given, expected = case["input"], case["expected"]
    tokens = ids(given["tokens"]) if "tokens" in given else given["pairs"]
    parent = given["prior"] and bytes.fromhex(given["prior"])
    seed = parent or sglang.event_prior(given["cache_salt"])
    assert (seed and seed.hex()) == expected["prior"]
    blocks = get_recipe("sglang").hash_blocks(
        tokens,
        given["page_size"],
        parent=parent,
        cache_salt=given["cache_salt"],
        bigram=given["bigram"] and "tokens" in given,
    )
    assert [(block.digest.hex(), forms(block.event_hash)) for block in blocks] == [
        (page["digest"], page["event_hash"]) for page in expected["pages"]
    ]


@each("sglang-storage.json")
def test_sglang_storage(case: dict[str, Any]) -> None:
    given, expected = case["input"], case["expected"]
    seed = sglang.storage_seed(given["extra_key"], given["cache_salt"])
    assert (seed and seed.hex()) == expected["prior"]
    keys = [page["digest"] for page in expected["pages"]]
    named = {"extra_key": given["extra_key"], "cache_salt": given["cache_salt"]}
    assert list(sglang.storage_keys(given["tokens"], given["page_size"], **named)) == keys
    blocks = SglangStorageRecipe().hash_blocks(given["tokens"], given["page_size"], **named)
    assert [sglang.page_key(block.digest) for block in blocks] == keys


@each("sglang-namespace.json")
def test_sglang_namespace(case: dict[str, Any]) -> None:
    given, expected = case["input"], case["expected"]
    if "format" not in given:
        seed = sglang.namespace_seed(given["extra_key"], given["cache_salt"])
        assert (seed and seed.hex()) == expected["seed"]
        moved = [sglang.namespaced_hash(int(value["int64"]), seed) for value in given["event_hashes"]]
        assert list(map(forms, moved)) == expected["namespaced"]
        return
    recipe = get_recipe(f"sglang:{given['format']}")
    blocks = recipe.hash_blocks(
        given["tokens"],
        given["page_size"],
        cache_salt=given["cache_salt"],
        extra_key=given["extra_key"],
        lora_name=given["lora_name"],
    )
    assert [forms(block.event_hash) for block in blocks] == expected["event_hashes"]


@each("sglang-python.json")
def test_sglang_python(case: dict[str, Any]) -> None:
    given, expected = case["input"], case["expected"]
    hashes = sglang.python_page_hashes(given["tokens"], given["page_size"])
    assert list(map(forms, hashes)) == expected["event_hashes"]


@each("vllm.json")
def test_vllm(case: dict[str, Any]) -> None:
    given, expected = case["input"], case["expected"]
    root = vllm.none_hash(given["algorithm"], given["seed"])
    assert root.hex() == expected["none_hash"]
    if "hash_block_size" in given:
        check_coarse(given, expected, root)
        return
    size, count, ahead = given["block_size"], len(expected["blocks"]), given["lookahead_tokens"]
    recipe = VllmRecipe(given["algorithm"], root, ExtraKeys(given["hashed_form"]))
    event = BlockStored(
        block_hashes=[int(block["event_hash"]["uint64"]) for block in expected["blocks"]],
        parent_block_hash=None,
        token_ids=given["tokens"][: size * count],
        block_size=size,
        lora_name=given["lora_name"],
        extra_keys=extra_keys(given["extra_keys"]) or [None] * count,
    )
    if ahead:
        stops = range(size, size * count + 1, size)
        event.lookahead_token_ids = [given["tokens"][stop : stop + ahead] for stop in stops]
    known = Known(lora_paths={given["lora_name"]: given["lora_path"]} if given["lora_name"] else {})
    verdicts = recipe.judge(event, recipe.root, known)
    assert [verdict.status for verdict in verdicts] == [Status.MATCH] * count
    digests = [verdict.point.digest.hex() for verdict in verdicts if verdict.point is not None]
    assert digests == [block["digest"] for block in expected["blocks"]]
    assert [block.digest.hex() for block in recompute(recipe, event, None, known)] == digests


def check_coarse(given: dict[str, Any], expected: dict[str, Any], root: bytes) -> None:
    fine = given["hash_block_size"]
    digests = vllm.block_digests(given["tokens"], fine, algorithm=given["algorithm"], parent=root)
    assert [digest.hex() for digest in digests] == expected["hashed_blocks"]
    recipe = VllmRecipe(given["algorithm"], root, hash_block_size=fine)
    for whole in (False, True):
        hashes: list[int | bytes] = [
            bytes.fromhex(block["digest"]) if whole else int(block["event_hash"]["uint64"])
            for block in expected["blocks"]
        ]
        event = BlockStored(hashes, None, given["tokens"], given["block_size"], extra_keys=[None] * len(hashes))
        assert {verdict.status for verdict in ChainVerifier(recipe).check(event)} == {Status.MATCH}


def extra_keys(entries: Any) -> Any:
    return entries and [
        entry and [bytes.fromhex(key["bytes"]) if isinstance(key, dict) else key for key in entry] for entry in entries
    ]


@each("dynamo.json")
def test_dynamo(case: dict[str, Any]) -> None:
    given, expected = case["input"], case["expected"]
    hashes = dynamo.tokens_hashes(
        given["tokens"],
        given["block_size"],
        lora_name=given["lora_name"],
        cache_namespace=given["cache_namespace"],
        bigram=given["bigram"],
        mm_hashes=[[int(item) for item in block] for block in given["mm_hashes"] or ()],
    )
    assert list(map(forms, hashes)) == expected["tokens_hashes"]


def test_captured_events() -> None:
    verifiers: dict[str, ChainVerifier] = {}
    for case in cases("captures.json"):
        given, file = case["input"], case["source"]["file"]
        if file not in verifiers:
            verifiers[file] = ChainVerifier(captured_recipe(given))
        event = BlockStored(
            block_hashes=[published(value) for value in case["expected"]["block_hashes"]],
            parent_block_hash=given["parent_block_hash"] and published(given["parent_block_hash"]),
            token_ids=given["token_ids"],
            block_size=given["block_size"],
            cache_salt=given["cache_salt"],
            extra_keys=extra_keys(given["extra_keys"]),
            lookahead_token_ids=given["lookahead_token_ids"],
        )
        verdicts = verifiers[file].check(event)
        assert {verdict.status for verdict in verdicts} == {Status.MATCH}, (case["id"], list(map(str, verdicts)))


def captured_recipe(given: dict[str, Any]) -> Recipe:
    if given["release"].startswith("sglang"):
        return recipe_for_release(given["release"])
    return recipe_for_release(given["release"], kind=given["algorithm"], seed=given["seed"])


def published(value: dict[str, str]) -> int | bytes:
    return bytes.fromhex(value["bytes"]) if "bytes" in value else int(value["uint64"])


@pytest.mark.parametrize("name", [*NAMES, "manifest.json"])
def test_the_files_fit_their_schema(name: str) -> None:
    part = "manifest" if name == "manifest.json" else "vectors"
    schema = {**SCHEMA, "oneOf": [{"$ref": f"#/$defs/{part}"}]}
    document = json.loads((FOLDER / name).read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator(schema).validate(document)
    jsonschema.Draft202012Validator(SCHEMA).validate(document)


def test_the_files_are_those_of_the_manifest() -> None:
    assert (FOLDER / "manifest.json").read_text(encoding="utf-8") == hashing_golden.manifest()
    assert sorted([*hashing_golden.FILES, "dynamo.json"]) == NAMES


@pytest.mark.network
@pytest.mark.parametrize("name", sorted(hashing_golden.FILES))
def test_the_engines_still_give_every_value(name: str) -> None:
    if name in ("captures.json", "sglang-python.json") and not CAPTURES.is_dir():
        pytest.skip("the captures are not here; KVWIRE_CAPTURES names their folder")
    recipe, build = hashing_golden.FILES[name]
    assert (FOLDER / name).read_text(encoding="utf-8") == hashing_golden.document(recipe, build())


def test_dynamo_s_package_still_gives_every_value() -> None:
    python = os.environ.get("KVWIRE_DYNAMO_PYTHON")
    if python is None:
        pytest.skip("KVWIRE_DYNAMO_PYTHON names no Python that has ai-dynamo-runtime")
    written = (FOLDER / "dynamo.json").read_text(encoding="utf-8")
    assert written == hashing_golden.document("dynamo", hashing_golden.dynamo_cases(python))
