"""The hash code of published releases, run, against kvwire on random input."""

from __future__ import annotations

import random
from array import array
from types import SimpleNamespace
from typing import Any

import pytest

from kvwire import BlockStored
from kvwire.hashing import sglang, vllm
from kvwire.hashing.catalog import recipe_for_release
from kvwire.hashing.recipes import Known, Status
from kvwire.hashing.verify import ChainVerifier
from tests import hashing_engines as engines

pytestmark = pytest.mark.network

CHAINS = 3000


def randoms(seed: str) -> random.Random:
    return random.Random(seed)


def word(rng: random.Random) -> str:
    return "".join(rng.choice("ab-0äß租🔑") for _ in range(rng.randrange(1, 6)))


def test_sglang_0_5_8_page_chains() -> None:
    code, rng = engines.sglang_python("0.5.8"), randoms("0.5.8")
    for _ in range(CHAINS):
        size = rng.randrange(1, 6)
        ids: list[Any] = [rng.randrange(1 << rng.choice((8, 17, 32))) for _ in range(rng.randrange(24))]
        if rng.random() < 0.3:
            ids = [(left, rng.randrange(1 << 17)) for left in ids]
        expected: list[str] = []
        for start in range(0, len(ids), size):
            expected.append(code.get_hash_str(ids[start : start + size], expected[-1] if expected else None))
        digests = list(sglang.page_digests(ids, size))
        assert [digest.hex() for digest in digests] == expected
        assert list(map(sglang.event_hash, digests)) == list(map(code.hash_str_to_int64, expected))


def test_sglang_0_5_23_native_page_chains() -> None:
    code, rng = engines.sglang_native("0.5.23"), randoms("0.5.23")
    wide = 0
    for _ in range(CHAINS):
        size, bigram = rng.randrange(1, 6), rng.random() < 0.4
        bits = (17, 32, 63) if rng.random() < 0.4 else (17, 32)
        ids = [rng.randrange(1 << rng.choice(bits)) for _ in range(rng.randrange(24))]
        wide += max(ids, default=0) >> 32 > 0
        prior = rng.randbytes(32) if rng.random() < 0.5 else None
        raw = array("I", ids) if max(ids, default=0) < 1 << 32 and rng.random() < 0.5 else array("q", ids)
        key = engines.Key(token_ids=raw, is_bigram=bigram, extra_key=None, cache_salt=None)
        expected = code.get_native_hash(key, prior, size)
        digests = sglang.page_digests(raw, size, prior=prior, bigram=bigram)
        assert [digest.hex() for digest in digests] == expected, (ids, size, bigram)
    assert wide > CHAINS // 10


def test_sglang_0_5_23_seeds() -> None:
    utils, wire, rng = engines.sglang_utils(), engines.sglang_wire(), randoms("seeds")
    for _ in range(CHAINS):
        parts = [rng.choice((None, "", word(rng))) for _ in range(2)]
        seed = utils.storage_namespace_seed(*parts)
        assert sglang.storage_seed(*parts) == (seed and bytes.fromhex(seed))
        seed = wire.kv_event_namespace_seed(extra_key=parts[0], cache_salt=parts[1])
        assert sglang.namespace_seed(*parts) == seed
        value = rng.randrange(-(1 << 63), 1 << 63)
        assert sglang.namespaced_hash(value, seed) == wire.namespaced_block_hash(value, namespace_seed=seed)


@pytest.mark.parametrize("dynamo", [False, True], ids=["default", "dynamo"])
def test_sglang_0_5_23_recorded_trees(dynamo: bool) -> None:
    """Random radix trees through the release's own recorder: every event that it makes is recomputed."""
    code, rng = engines.sglang_recorder(), randoms(f"trees-{dynamo}")
    events = 0
    for _ in range(60):
        size = rng.randrange(1, 5)
        adapters = {word(rng) + f"{number:032x}": f"adapter-{number}" for number in range(2)}
        names = code.KvEventLoraNames()
        names._names.update(adapters)
        recorder = code.KVCacheEventRecorder(enabled=True, page_size=size, dynamo_format=dynamo, lora_names=names)
        spaces = [(rng.choice((None, word(rng), *adapters)), rng.choice((None, word(rng)))) for _ in range(4)]
        roots: dict[Any, list[Any]] = {space: [engines.node(None, [], *space)] for space in spaces}
        for _ in range(12):
            space = rng.choice(spaces)
            parent = rng.choice(roots[space])
            tokens = [rng.randrange(1 << 17) for _ in range(size * rng.randrange(1, 4))]
            node = engines.node(parent, tokens, *space)
            roots[space].append(node)
            recorder.record_store(node)
        known = Known(extra_keys=tuple({key for key, _ in spaces if key is not None}), complete=True)
        verifier = ChainVerifier(recipe_for_release("sglang==0.5.23", kind="dynamo" if dynamo else None), known)
        for event in recorder.take():
            verdicts = verifier.check(neutral(event))
            assert {verdict.status for verdict in verdicts} == {Status.MATCH}, list(map(str, verdicts))
            events += 1
    assert events > 300


def neutral(event: SimpleNamespace) -> BlockStored:
    return BlockStored(**vars(event))


@pytest.mark.parametrize(
    ("version", "algorithm"),
    [("0.12.0", "sha256"), ("0.12.0", "sha256_cbor")]
    + [(version, name) for version in ("0.23.0", "0.30.0", "0.33.0") for name in vllm.ALGORITHMS],
)
def test_vllm_random_requests(version: str, algorithm: str) -> None:
    rng = randoms(f"{version}-{algorithm}")
    engine = engines.Vllm(version, algorithm, "7")
    recipe = recipe_for_release(f"vllm=={version}", kind=algorithm, seed="7")
    assert recipe.root.digest == engine.none_hash
    blocks = 0
    for _ in range(150):
        size, count = rng.choice((1, 4, 16)), rng.randrange(1, 7)
        ahead = rng.choice((0, 0, 1, 2)) if version == "0.33.0" else 0
        ids: list[Any] = [rng.randrange(1 << rng.choice((8, 17, 32))) for _ in range(size * count + ahead)]
        lora = (word(rng), "/" + word(rng)) if rng.random() < 0.4 else None
        salt = word(rng) if rng.random() < 0.4 else None
        images = some_images(rng, len(ids))
        embeds = bytes(rng.randrange(256) for _ in ids) if rng.random() < 0.2 else None
        request = engines.request(ids, salt=salt, lora=lora, images=images, embeds=embeds)
        digests = engine.blocks(request, size, ahead)
        assert len(digests) == count
        event = BlockStored(
            block_hashes=[engine.external(digest) for digest in digests],
            parent_block_hash=None,
            token_ids=ids[: size * count],
            block_size=size,
            lora_name=lora and lora[0],
            extra_keys=engine.published(engine.extra_keys(request, size, ahead)),
            lookahead_token_ids=[ids[stop : stop + ahead] for stop in range(size, size * count + 1, size)]
            if ahead
            else None,
        )
        known = Known(lora_paths=dict([lora]) if lora else {})
        for sent in (event, whole_digests(event, digests)):
            verdicts = ChainVerifier(recipe, known).check(sent)
            assert {verdict.status for verdict in verdicts} == {Status.MATCH}, list(map(str, verdicts))
        blocks += count
    assert blocks > 300


def some_images(rng: random.Random, length: int) -> list[tuple[str, int, int]]:
    found, at = [], rng.randrange(4)
    while at + 3 < length and rng.random() < 0.6:
        long = rng.randrange(1, 4)
        found.append((f"{rng.getrandbits(64):016x}", at, long))
        at += long + rng.randrange(6)
    return found


def whole_digests(event: BlockStored, digests: list[bytes]) -> BlockStored:
    fields = {name: getattr(event, name) for name in event.__struct_fields__}
    return BlockStored(**{**fields, "block_hashes": list(digests)})


@pytest.mark.parametrize(
    ("version", "fixed"), [("0.12.0", False), ("0.23.0", False), ("0.30.0", True), ("0.33.0", True)]
)
def test_vllm_without_pythonhashseed(version: str, fixed: bool) -> None:
    engine = engines.Vllm(version, "sha256", None)
    assert (engine.none_hash == vllm.none_hash("sha256")) is fixed
    random_one = engines.Vllm("0.33.0", "xxhash", None)
    assert random_one.none_hash != engines.Vllm("0.33.0", "xxhash", None).none_hash


def test_splitting_a_node_keeps_its_hashes() -> None:
    """A radix node is split between pages: the two parts hold the hashes that continuing the chain gives."""
    utils, rng = engines.sglang_utils(), randoms("split")
    for _ in range(200):
        size, pages = rng.randrange(1, 5), rng.randrange(2, 8)
        ids = [rng.randrange(1 << 17) for _ in range(size * pages)]
        keys = utils.get_hash_str(
            engines.Key(token_ids=array("q", ids), is_bigram=False, extra_key=None, cache_salt=None), None, size
        )
        cut = rng.randrange(1, pages)
        upper, lower = utils.split_node_hash_value(keys, cut * size, size)
        head = [digest.hex() for digest in sglang.page_digests(ids[: cut * size], size)]
        tail = sglang.page_digests(ids[cut * size :], size, prior=bytes.fromhex(head[-1]))
        assert (upper, lower) == (head, [digest.hex() for digest in tail])
