"""The hash functions: known values, every form of input, splitting, forms, memory, and what is refused."""

from __future__ import annotations

import ctypes
import itertools
import struct
import subprocess
import sys
import tracemalloc
from array import array
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvwire.hashing import as_hex, as_int64, as_uint64, dynamo, from_hex, hash_key, python_tuple, sglang, vllm
from kvwire.hashing.catalog import RECIPE_NAMES, get_recipe, recipe_for_release
from kvwire.hashing.errors import HashInputError, RecipeError
from kvwire.hashing.recipes import Recipe
from kvwire.hashing.sglang_recipe import SglangPythonRecipe, SglangRecipe, SglangStorageRecipe
from kvwire.hashing.vllm import ExtraKeys
from kvwire.hashing.vllm_recipe import VllmRecipe

A, B = [1, 2, 3, 4], [5, 6, 7, 8]


def event_hashes(tokens: Any, size: int = 4, **options: Any) -> list[int]:
    return [sglang.event_hash(digest) for digest in sglang.page_digests(tokens, size, **options)]


# Values that other implementations and running routers hold


@pytest.mark.parametrize(
    ("tokens", "options", "value"),
    [
        (A, {}, 14643705804678351452),
        (B, {}, 16777012769546811212),
        (A, {"lora_name": "adapter-a"}, 11381080598872079209),
        (A, {"cache_namespace": "tenant-a"}, 5738685477468498325),
        (A, {"lora_name": "adapter-a", "cache_namespace": "tenant-a"}, 9967753091837871098),
        ([*A, 5], {"bigram": True}, 1914873892905420881),
        (A, {"lora_name": "adapter"}, 5402321046179341001),
        (A, {"cache_namespace": "tenant"}, 17621909411505482860),
        (A, {"mm_hashes": [[0x1122334455667788]]}, 11609525858283141434),
    ],
)
def test_dynamo_tokens_hash(tokens: list[int], options: dict[str, Any], value: int) -> None:
    assert list(dynamo.tokens_hashes(tokens, 4, **options)) == [value]


def test_dynamo_sequence_hash() -> None:
    assert list(dynamo.sequence_hashes(dynamo.tokens_hashes(A + B, 4))) == [14643705804678351452, 4945711292740353085]
    first = next(dynamo.tokens_hashes(A, 4))
    assert list(dynamo.sequence_hashes(dynamo.tokens_hashes(B, 4), parent=first)) == [4945711292740353085]


def test_sglang_pages() -> None:
    tokens = [token for base in (11, 21, 31, 41) for token in range(base, base + 4)]
    assert event_hashes(tokens) == [
        -685567553150498463,
        -2177363047410903004,
        8175329908256277695,
        -7918518717108636741,
    ]
    assert event_hashes(A + B) == [-3488128144981237669, 5674439469042975057]
    assert event_hashes(A, prior=sglang.event_prior("tenant")) == [-5049120096061812311]


@pytest.mark.parametrize(
    ("algorithm", "seed", "none_hash", "first", "second"),
    [
        ("sha256", None, "066b1e8987e02713", 1882140585328457242, 15284023028817948126),
        ("sha256", "0", "1973e23848344dc4", 10362225831949560093, 12472515041799373675),
        ("sha256", "42", "c0bc02c9fc92a494", 649359390096368487, 14757019014570657544),
        ("sha256_cbor", None, "9bd96a485ad84efd", 9561501211280363793, 15292913576410714033),
        ("sha256_cbor", "0", "4e1195df020de59e", 2164874634404590027, 17270480062156288726),
        ("sha256_cbor", "42", "9fa6eb003f14425e", 5988051177307384287, 11214766589215907092),
        ("xxhash", "0", "6fb31cc38bba6066", 5138823041740264343, 1324190186712315504),
        ("xxhash_cbor", "0", "1ebe36576dcb573f", 1560721706249274670, 16652244415917022755),
    ],
)
def test_vllm_blocks(algorithm: str, seed: str | None, none_hash: str, first: int, second: int) -> None:
    root = vllm.none_hash(algorithm, seed)
    assert root.hex().startswith(none_hash)
    digests = list(vllm.block_digests(A + B, 4, algorithm=algorithm, parent=root))
    assert list(map(vllm.external_hash, digests)) == [first, second]


@pytest.mark.parametrize(
    ("extra", "value"),
    [
        (("adapter",), 83222429851381388),
        (vllm.with_tags(["adapter"], lora_name="adapter", lora_path="/p"), 10173218773174198716),
        (("tenant",), 8595293435708290282),
        (vllm.with_tags(["tenant"]), 18290877901272702638),
    ],
)
def test_vllm_extra_keys(extra: tuple[Any, ...], value: int) -> None:
    digest = vllm.block_digest("sha256_cbor", vllm.none_hash("sha256_cbor", "0"), A, extra)
    assert vllm.external_hash(digest) == value


def test_the_parent_of_unchained_root_pages() -> None:
    assert sglang.PYTHON_ROOT_PARENT == 5740354900026072187


@given(st.lists(st.integers(0, (1 << 63) - 1), max_size=12))
def test_the_tuple_hash_is_the_interpreter_s(ids: list[int]) -> None:
    if sys.implementation.name != "cpython" or sys.maxsize < 1 << 62:
        pytest.skip("the hash is that of 64-bit CPython")
    assert python_tuple.hash_page(ids) == hash(tuple(ids))
    pairs = list(itertools.pairwise(ids))
    assert list(sglang.python_page_hashes(pairs, 3)) == [
        hash(tuple(pairs[at : at + 3])) for at in range(0, len(pairs), 3)
    ]


# Forms of input

INPUTS: dict[str, Callable[[list[int]], Any]] = {
    "tuple": tuple,
    "array-u32": lambda ids: array("I", ids),
    "array-i64": lambda ids: array("q", ids),
    "array-u64": lambda ids: array("Q", ids),
    "array-u16": lambda ids: array("H", ids),
    "bytes": lambda ids: struct.pack(f"<{len(ids)}I", *ids),
    "bytearray": lambda ids: bytearray(struct.pack(f"<{len(ids)}I", *ids)),
    "memoryview": lambda ids: memoryview(array("I", ids)),
    "memoryview-of-bytes": lambda ids: memoryview(struct.pack(f"<{len(ids)}I", *ids)),
    "strided": lambda ids: memoryview(array("I", [word for token in ids for word in (token, 9)]))[::2],
    "ctypes-u32": lambda ids: (ctypes.c_uint32 * len(ids))(*ids),
    "ctypes-i64": lambda ids: (ctypes.c_int64 * len(ids))(*ids),
}


@pytest.mark.parametrize("form", INPUTS)
@given(ids=st.lists(st.integers(0, 65535), max_size=20), size=st.integers(1, 7), bigram=st.booleans())
def test_every_form_of_the_tokens_gives_the_same_hashes(form: str, ids: list[int], size: int, bigram: bool) -> None:
    tokens = INPUTS[form](ids)
    assert event_hashes(tokens, size, bigram=bigram) == event_hashes(ids, size, bigram=bigram)
    root = vllm.none_hash("sha256", "0")
    assert list(vllm.block_digests(tokens, size, algorithm="sha256", parent=root)) == list(
        vllm.block_digests(ids, size, algorithm="sha256", parent=root)
    )
    assert list(dynamo.tokens_hashes(tokens, size)) == list(dynamo.tokens_hashes(ids, size))


@given(st.lists(st.integers(0, (1 << 40)), max_size=12), st.integers(1, 5))
def test_pairs_are_the_bigrams_of_plain_tokens(ids: list[int], size: int) -> None:
    pairs = [list(pair) for pair in itertools.pairwise(ids)]
    assert event_hashes(pairs, size) == event_hashes(ids, size, bigram=True)


@pytest.mark.parametrize(
    ("tokens", "problem"),
    [
        ([1, -2], "token 1 is -2"),
        ([1, "a"], "token 1 is 'a'"),
        ([1, 1 << 63], "token 1 is 9223372036854775808"),
        ([1, 2.5], "token 1 is 2.5"),
        ([(1, 2), 3], "mixes pairs"),
        ([(1, 2), (3,)], "mixes pairs"),
        (b"abc", "do not divide by 4"),
        (array("d", [1.0]), "holds integers"),
        (memoryview(b"abcdefgh").cast("B", (2, 4)), "one-dimensional"),
        ("1234", "not str"),
        (7, "not int"),
        (array("q", [1, -2]), "token 1 is -2"),
    ],
)
def test_tokens_that_no_recipe_hashes(tokens: Any, problem: str) -> None:
    with pytest.raises(HashInputError, match=problem):
        list(sglang.page_digests(tokens, 4))
    with pytest.raises(HashInputError):
        list(vllm.block_digests(tokens, 1, algorithm="sha256", parent=bytes(32)))


def test_dynamo_refuses_what_it_cannot_hash() -> None:
    with pytest.raises(HashInputError, match="plain tokens"):
        list(dynamo.tokens_hashes([(1, 2), (2, 3)], 2))
    with pytest.raises(HashInputError, match="block 1 does not fit"):
        list(dynamo.tokens_hashes([1, 2, 3, 1 << 32], 2))


# Chains

SEEDED: dict[str, Any] = {"seed": "0"}


def recipes() -> list[tuple[str, Recipe | SglangStorageRecipe, dict[str, Any]]]:
    salted = {"cache_salt": "tenant-a"}
    return [
        ("sglang", get_recipe("sglang"), salted),
        ("sglang-bigram", get_recipe("sglang"), {"bigram": True}),
        ("sglang-lora", get_recipe("sglang"), {"extra_key": "ek", "lora_name": "adapter"}),
        ("sglang-dynamo", get_recipe("sglang:dynamo"), {**salted, "extra_key": "ek"}),
        ("sglang-storage", SglangStorageRecipe(), {**salted, "extra_key": "ek"}),
        ("sglang-python", get_recipe("sglang:python"), {}),
        *(
            (
                f"vllm-{name}",
                get_recipe(f"vllm:{name}", seed="0"),
                {**salted, "lora_name": "adapter", "lora_path": "/p"},
            )
            for name in vllm.ALGORITHMS
        ),
    ]


@pytest.mark.parametrize(("recipe", "options"), [row[1:] for row in recipes()], ids=[row[0] for row in recipes()])
@given(data=st.data())
def test_splitting_anywhere_equals_one_go(recipe: Any, options: dict[str, Any], data: st.DataObject) -> None:
    size = data.draw(st.integers(1, 5))
    top = (1 << 63) - 1 if recipe.name.startswith("sglang") else (1 << 32) - 1
    ids = data.draw(st.lists(st.integers(0, 200_000) | st.integers(0, top), max_size=30))
    whole = list(recipe.hash_blocks(ids, size, **options))
    split = data.draw(st.integers(0, len(whole)))
    overlap = 1 if options.get("bigram") else 0
    head = list(recipe.hash_blocks(ids[: split * size + overlap], size, **options)) if split else []
    tail = recipe.hash_blocks(ids[split * size :], size, parent=head[-1].digest if head else None, **options)
    assert head + list(tail) == whole


@given(st.integers(-(1 << 63), (1 << 64) - 1))
def test_forms_round_trip(value: int) -> None:
    assert as_uint64(as_int64(value)) == as_uint64(value) == from_hex(as_hex(value)) == hash_key(value)
    assert as_int64(as_uint64(value)) == as_int64(value)
    assert as_int64(value).to_bytes(8, "big", signed=True) == bytes.fromhex(as_hex(value))
    assert from_hex(as_hex(value).upper() + "ab" * 24) == as_uint64(value)


@given(st.binary(min_size=32, max_size=32))
def test_a_page_key_starts_with_its_event_hash(digest: bytes) -> None:
    assert from_hex(sglang.page_key(digest)) == as_uint64(sglang.event_hash(digest))
    assert vllm.external_hash(digest) == int.from_bytes(digest, "big") & ((1 << 64) - 1)


@pytest.mark.parametrize("text", ["", "0x", "12", "f" * 15, "f" * 17, "14643705804678351452", "z" * 16, "f" * 63])
def test_text_that_is_no_hash(text: str) -> None:
    with pytest.raises(ValueError):
        from_hex(text)


def test_seeds_tell_absent_and_joined_parts_apart() -> None:
    parts = [(None, None), (None, ""), ("", None), ("", ""), ("a", "bc"), ("ab", "c"), (None, "a"), ("a", None)]
    for seed in (sglang.storage_seed, sglang.namespace_seed):
        found = [seed(*pair) for pair in parts]
        assert found[0] is None
        assert len(set(found)) == len(parts)


def test_an_empty_salt_is_none() -> None:
    assert sglang.event_prior("") is sglang.event_prior(None) is None
    plain = list(get_recipe("sglang").hash_blocks(A, 2))
    assert list(get_recipe("sglang").hash_blocks(A, 2, cache_salt="")) == plain
    assert list(get_recipe("sglang:dynamo").hash_blocks(A, 2, cache_salt="")) == plain
    plain = list(get_recipe("vllm", seed="0").hash_blocks(A, 2))
    assert list(get_recipe("vllm", seed="0").hash_blocks(A, 2, cache_salt="")) == plain


def test_the_default_format_leaves_an_extra_key_out() -> None:
    recipe = get_recipe("sglang")
    assert list(recipe.hash_blocks(A, 2, extra_key="ek")) == list(recipe.hash_blocks(A, 2))
    assert list(recipe.hash_blocks(A, 2, extra_key="ek", lora_name="l")) != list(recipe.hash_blocks(A, 2))


def test_vllm_salts_the_first_block_and_adapters_every_block() -> None:
    recipe = get_recipe("vllm:sha256_cbor", seed="0", extra_keys="bare")
    root = vllm.none_hash("sha256_cbor", "0")
    extras = [("adapter", "s"), ("adapter",)]
    expected = list(vllm.block_digests(A, 2, algorithm="sha256_cbor", parent=root, extras=extras))
    assert [block.digest for block in recipe.hash_blocks(A, 2, cache_salt="s", lora_name="adapter")] == expected


def test_vllm_can_publish_whole_digests() -> None:
    recipe = VllmRecipe("xxhash", vllm.none_hash("xxhash", "0"), digests=True)
    (block,) = recipe.hash_blocks(A, 4)
    assert block.event_hash == block.digest
    assert len(block.digest) == 16


def test_a_tail_shorter_than_a_block() -> None:
    assert len(list(get_recipe("sglang").hash_blocks(A + [5], 4))) == 2
    assert len(list(get_recipe("vllm", seed="0").hash_blocks(A + [5], 4))) == 1
    assert len(list(dynamo.tokens_hashes(A + [5], 4))) == 1


# Memory


def peak(blocks: Iterator[Any]) -> tuple[int, int]:
    """The most memory that consuming an iterator takes at once, in bytes, and how many items it gave."""
    tracemalloc.start()
    count = sum(1 for _ in blocks)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return most, count


@pytest.mark.parametrize("name", ["sglang", "sglang:dynamo", "vllm:sha256"])
def test_a_million_tokens_take_no_memory_of_their_own(name: str) -> None:
    tokens = array("I", range(1_000_000))
    recipe = get_recipe(name, **(SEEDED if name.startswith("vllm") else {}))
    list(recipe.hash_blocks(tokens[:64], 64))
    most, count = peak(recipe.hash_blocks(tokens, 64))
    assert count == 15_625
    assert most < 100_000


def test_dynamo_s_hashes_stream_too() -> None:
    tokens = array("I", range(200_000))
    list(dynamo.tokens_hashes(tokens[:64], 64))
    most, count = peak(dynamo.sequence_hashes(dynamo.tokens_hashes(tokens, 64)))
    assert (count, most < 100_000) == (3_125, True)


# Recipes by name and by release


def test_every_name_gives_its_recipe() -> None:
    for name in RECIPE_NAMES:
        assert get_recipe(name, **(SEEDED if name.startswith("vllm") else {})).name == name
    assert get_recipe("vllm").name == "vllm:sha256"


@pytest.mark.parametrize(
    ("release", "options", "expected"),
    [
        ("sglang==0.4.6.post5", {}, SglangPythonRecipe()),
        ("sglang==0.5.5.post3", {}, SglangPythonRecipe()),
        ("sglang==0.5.6", {}, SglangRecipe()),
        ("sglang==0.5.23", {"kind": "dynamo"}, SglangRecipe("dynamo")),
        ("vllm==0.30.0", SEEDED, VllmRecipe("sha256", vllm.none_hash("sha256", "0"), ExtraKeys.BARE)),
        ("vllm==0.31.0", SEEDED, VllmRecipe("sha256", vllm.none_hash("sha256", "0"), ExtraKeys.TAGGED)),
        ("vllm==0.29.0", {}, VllmRecipe("sha256", vllm.none_hash("sha256"), ExtraKeys.BARE)),
        (
            "vllm==0.33.0",
            {"kind": "xxhash_cbor", "none_hash": bytes(16)},
            VllmRecipe("xxhash_cbor", bytes(16), ExtraKeys.TAGGED),
        ),
    ],
)
def test_a_release_has_its_recipe(release: str, options: dict[str, Any], expected: Recipe) -> None:
    assert recipe_for_release(release, **options) == expected


@pytest.mark.parametrize(
    ("call", "problem"),
    [
        (lambda: get_recipe("sglang:storage"), "no recipe"),
        (lambda: get_recipe("trtllm"), "no recipe"),
        (lambda: get_recipe("sglang", seed="0"), "those are vLLM's"),
        (lambda: get_recipe("vllm:md5", seed="0"), "no hash algorithm 'md5'"),
        (lambda: get_recipe("vllm:xxhash"), "draws a random NONE_HASH"),
        (lambda: get_recipe("vllm", seed="0", none_hash=bytes(32)), "not both"),
        (lambda: get_recipe("vllm", none_hash=bytes(8)), "has 32 bytes, not 8"),
        (lambda: get_recipe("vllm", seed="0", extra_keys="both"), "bare or tagged"),
        (lambda: recipe_for_release("vllm==0.28.0"), "before 0.29.0 draws NONE_HASH at random"),
        (lambda: recipe_for_release("vllm==0.9.1", seed="0"), "cannot be recomputed outside that process"),
        (lambda: recipe_for_release("sglang==0.5.5", kind="dynamo"), "since 0.5.22"),
        (lambda: recipe_for_release("0.5.5"), "is no release"),
        (lambda: list(get_recipe("sglang").hash_blocks(A, 2, lora_name="l")), "namespaced by its extra_key"),
        (lambda: list(get_recipe("sglang").hash_blocks(A, 2, lora_path="/p")), "no adapter path"),
        (lambda: list(get_recipe("sglang:python").hash_blocks(A, 2, cache_salt="s")), "no cache_salt"),
        (lambda: list(get_recipe("vllm").hash_blocks(A, 2, bigram=True)), "those are SGLang's"),
        (lambda: list(get_recipe("vllm").hash_blocks(A, 2, lora_name="l")), "give the path of 'l'"),
        (lambda: list(SglangStorageRecipe().hash_blocks(A, 2, lora_name="l")), "is its extra_key"),
    ],
)
def test_what_a_recipe_does_not_have(call: Callable[[], Any], problem: str) -> None:
    with pytest.raises(RecipeError, match=problem):
        call()


def test_a_chain_continues_from_whole_digests_alone() -> None:
    with pytest.raises(HashInputError, match="8-byte event hash does not determine"):
        list(sglang.page_digests(A, 4, prior=bytes(8)))
    with pytest.raises(HashInputError, match="64-bit event hash does not determine"):
        list(vllm.block_digests(A, 4, algorithm="sha256", parent=bytes(8)))
    with pytest.raises(HashInputError, match="at least 1"):
        list(sglang.page_digests(A, 0))


def test_unpublished_extra_keys_are_asked_for() -> None:
    with pytest.raises(HashInputError, match="give lora_path"):
        vllm.with_tags(["adapter"], lora_name="adapter")
    with pytest.raises(HashInputError, match="extra key 0 is 7"):
        vllm.with_tags([7])


_WITHOUT = """
import sys
sys.modules["xxhash"] = sys.modules["cbor2"] = None
from kvwire.hashing import dynamo, sglang, vllm
from kvwire.hashing.catalog import get_recipe
from kvwire.hashing.errors import MissingLibraryError
from kvwire.hashing.diagnose import diagnose
from kvwire.hashing.recipes import NOTHING_KNOWN
from kvwire import BlockStored
recipe = get_recipe("vllm:sha256", seed="0")
print(next(recipe.hash_blocks([1, 2, 3, 4], 4)).event_hash)
print(sglang.event_hash(next(sglang.page_digests([1, 2, 3, 4], 4))))
event = BlockStored([7], None, [1, 2, 3, 4], 4)
print(diagnose(recipe, event, recipe.judge(event, recipe.root, NOTHING_KNOWN)[0]))
for call in (
    lambda: vllm.none_hash("sha256_cbor", "0"),
    lambda: vllm.none_hash("xxhash", "0"),
    lambda: list(dynamo.tokens_hashes([1], 1)),
):
    try:
        call()
    except MissingLibraryError as error:
        print(error)
"""


def test_without_the_libraries_of_the_extra() -> None:
    done = subprocess.run([sys.executable, "-c", _WITHOUT], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "10362225831949560093",
        "-3488128144981237669",
        "[]",
        "vLLM's sha256_cbor needs cbor2: pip install 'kvwire[hash]'",
        "vLLM's xxhash needs xxhash: pip install 'kvwire[hash]'",
        "the Dynamo tokens hash needs xxhash: pip install 'kvwire[hash]'",
    ]
