"""Following a stream: what matches, what does not, and what cannot be told, with the reason."""

from __future__ import annotations

from typing import Any

import pytest

from kvwire import AllBlocksCleared, BlockRemoved, BlockStored, EventBatch
from kvwire.hashing import sglang, vllm
from kvwire.hashing.catalog import get_recipe
from kvwire.hashing.errors import NotRecomputableError
from kvwire.hashing.recipes import BlockVerdict, Known, Reason, Recipe, Status
from kvwire.hashing.verify import ChainVerifier, recompute
from kvwire.hashing.vllm_recipe import VllmRecipe

TOKENS: list[Any] = list(range(1, 17))
SGLANG = get_recipe("sglang")
DYNAMO = get_recipe("sglang:dynamo")
VLLM = get_recipe("vllm:sha256_cbor", seed="0")
BARE = get_recipe("vllm:sha256_cbor", seed="0", extra_keys="bare")
NONE_HASH = vllm.none_hash("sha256_cbor", "0")


def stored(recipe: Recipe, tokens: list[Any] = TOKENS, size: int = 4, start: int = 0, **options: Any) -> BlockStored:
    """The event of blocks ``start`` on of a prompt, as an engine of that recipe sends it."""
    blocks = list(recipe.hash_blocks(tokens, size, **options))
    event = BlockStored(
        block_hashes=[block.event_hash for block in blocks[start:]],
        parent_block_hash=blocks[start - 1].event_hash if start else None,
        token_ids=tokens[start * size :],
        block_size=size,
        cache_salt=options.get("cache_salt") if recipe.name.startswith("sglang") else None,
        lora_name=options.get("lora_name"),
    )
    if recipe.name.startswith("vllm"):
        adapter = [options["lora_name"]] if "lora_name" in options else []
        first = adapter + ([options["cache_salt"]] if "cache_salt" in options and not start else [])
        event.extra_keys = [first or None] + [adapter or None] * (len(blocks) - start - 1)
    return event


def statuses(verdicts: list[BlockVerdict]) -> list[str]:
    return [verdict.reason.value if verdict.reason else verdict.status.value for verdict in verdicts]


@pytest.mark.parametrize(
    ("recipe", "options"),
    [
        (SGLANG, {}),
        (SGLANG, {"cache_salt": "tenant-a"}),
        (DYNAMO, {"cache_salt": "tenant-a"}),
        (get_recipe("sglang:python"), {}),
        (VLLM, {}),
        (VLLM, {"cache_salt": "tenant-a"}),
        (BARE, {"cache_salt": "tenant-a", "lora_name": "adapter"}),
    ],
)
def test_a_chain_goes_on_across_events(recipe: Recipe, options: dict[str, Any]) -> None:
    verifier = ChainVerifier(recipe)
    whole = stored(recipe, **options)
    head = stored(recipe, TOKENS[:8], **options)
    tail = stored(recipe, start=2, **options)
    for event in (head, tail, whole):
        assert set(statuses(verifier.check(event))) == {"match"}
    assert len(verifier) == 4


def test_the_other_sign_is_the_same_hash() -> None:
    event = stored(SGLANG)
    event.block_hashes = [int(value) & ((1 << 64) - 1) for value in event.block_hashes]
    assert set(statuses(ChainVerifier(SGLANG).check(event))) == {"match"}


def test_a_mismatch_says_what_was_expected_and_the_chain_goes_on() -> None:
    verifier, event = ChainVerifier(SGLANG), stored(SGLANG)
    right = event.block_hashes[1]
    event.block_hashes[1] = 12345
    verdicts = verifier.check(event)
    assert statuses(verdicts) == ["match", "mismatch", "match", "match"]
    assert verdicts[1].expected == right
    assert str(verdicts[1]) == f"block 1: 12345, expected {right!r}"
    child = BlockStored([1], 12345, TOKENS[8:12], 4)
    (verdict,) = verifier.check(child)
    assert (verdict.status, verdict.expected) == (Status.MISMATCH, event.block_hashes[2])


def test_a_parent_that_was_never_stored() -> None:
    for recipe in (SGLANG, VLLM):
        verifier, tail = ChainVerifier(recipe), stored(recipe, start=2)
        verdicts = verifier.check(tail)
        assert statuses(verdicts) == ["parent-unseen"] * 2
        assert f"{tail.parent_block_hash!r}" in verdicts[0].detail
        child = BlockStored([1], tail.block_hashes[-1], TOKENS[:4], 4)
        assert statuses(verifier.check(child)) == ["parent-unknown"]
        assert statuses(verifier.check(stored(recipe))) == ["match"] * 4
        assert statuses(verifier.check(tail)) == ["match"] * 2


def test_a_hash_of_two_contents_is_no_parent() -> None:
    verifier = ChainVerifier(SGLANG)
    verifier.check(BlockStored([7], None, TOKENS[:4], 4))
    verifier.check(BlockStored([7], None, TOKENS[4:8], 4))
    assert statuses(verifier.check(BlockStored([8], 7, TOKENS[8:12], 4))) == ["parent-ambiguous"]
    assert verifier.point(7) is None


def test_forgetting_is_bounded_and_said() -> None:
    verifier = ChainVerifier(SGLANG, limit=2)
    verifier.check(stored(SGLANG))
    assert len(verifier) == 2
    child = BlockStored([1], stored(SGLANG).block_hashes[0], TOKENS[4:8], 4)
    assert statuses(verifier.check(child)) == ["parent-unseen"]


def test_whole_digests_continue_without_a_table() -> None:
    recipe = VllmRecipe("sha256_cbor", NONE_HASH, digests=True)
    tail = stored(recipe, start=2)
    assert statuses(ChainVerifier(recipe).check(tail)) == ["match"] * 2
    tail.block_hashes[0] = bytes(32)
    assert statuses(ChainVerifier(recipe).check(tail)) == ["mismatch", "match"]


@pytest.mark.parametrize("recipe", [SGLANG, VLLM, get_recipe("sglang:python")], ids=lambda recipe: recipe.name)
@pytest.mark.parametrize(
    ("hashes", "tokens", "size", "reason"),
    [
        ([1], [], 4, "no-tokens"),
        ([1], TOKENS[:4], 0, "no-tokens"),
        ([1, 2], TOKENS[:4], 4, "shape"),
        ([1], TOKENS[:4], -4, "shape"),
        ([1], [1, "a", 3, 4], 4, "tokens"),
        ([1], [1, -1, 3, 4], 4, "tokens"),
    ],
)
def test_events_whose_hashes_cannot_be_judged(
    recipe: Recipe, hashes: list[Any], tokens: list[Any], size: int, reason: str
) -> None:
    verdicts = ChainVerifier(recipe).check(BlockStored(hashes, None, tokens, size))
    assert statuses(verdicts) == [reason] * len(hashes)


def test_an_event_without_hashes() -> None:
    assert ChainVerifier(SGLANG).check(BlockStored([], None, [], 4)) == []
    assert ChainVerifier(VLLM).check(BlockStored([], None, [], 4)) == []


def test_a_batch_gives_the_verdicts_of_its_stores() -> None:
    batch = EventBatch(1.0, [AllBlocksCleared(), stored(SGLANG, TOKENS[:4]), BlockRemoved([1])])
    assert [(at, verdict.status) for at, verdict in ChainVerifier(SGLANG).check_batch(batch)] == [(1, Status.MATCH)]
    with pytest.raises(TypeError, match=r"events\[0\]"):
        ChainVerifier(SGLANG).check_batch(EventBatch(1.0, [{}]))


# SGLang's namespaces


def test_an_extra_key_is_told_only_if_it_is_known() -> None:
    head = stored(DYNAMO, TOKENS[:8], extra_key="ek")
    tail = stored(DYNAMO, start=2, extra_key="ek")
    alone = ChainVerifier(DYNAMO)
    assert statuses(alone.check(head)) == ["extra-key-not-published"] * 2
    assert statuses(alone.check(tail)) == ["extra-key-not-published"] * 2
    told = ChainVerifier(DYNAMO, Known(extra_keys=("other", "ek")))
    assert statuses(told.check(head) + told.check(tail)) == ["match"] * 4
    point = told.point(head.block_hashes[-1])
    assert point is not None
    assert point.extra_key == "ek"


def test_candidates_that_are_complete_make_a_mismatch() -> None:
    event = stored(DYNAMO, extra_key="ek")
    (verdict, *_) = ChainVerifier(DYNAMO, Known(extra_keys=("other",))).check(event)
    assert (verdict.status, "none of the 1 extra_keys" in verdict.detail) == (Status.UNKNOWN, True)
    verdicts = ChainVerifier(DYNAMO, Known(extra_keys=("other",), complete=True)).check(event)
    assert statuses(verdicts) == ["mismatch"] * 4


def test_a_child_follows_its_parent_s_namespace() -> None:
    verifier = ChainVerifier(DYNAMO, Known(extra_keys=("ek", "other")))
    verifier.check(stored(DYNAMO, TOKENS[:8], extra_key="ek"))
    tail = stored(DYNAMO, start=2, extra_key="other")
    tail.parent_block_hash = stored(DYNAMO, TOKENS[:8], extra_key="ek").block_hashes[-1]
    assert statuses(verifier.check(tail)) == ["mismatch"] * 2


def test_lora_hashes_of_the_default_format_need_the_extra_key() -> None:
    event = stored(SGLANG, extra_key="e" * 32, lora_name="adapter")
    (verdict, *_) = ChainVerifier(SGLANG).check(event)
    assert verdict.reason is Reason.EXTRA_KEY
    assert "adapter 'adapter'" in verdict.detail
    assert statuses(ChainVerifier(SGLANG, Known(extra_keys=("e" * 32,))).check(event)) == ["match"] * 4


# What vLLM does not publish


def test_an_adapter_s_path() -> None:
    event = stored(VLLM, lora_name="adapter", lora_path="/adapters/a")
    verdicts = ChainVerifier(VLLM).check(event)
    assert statuses(verdicts) == ["lora-path-not-published"] + ["parent-unknown"] * 3
    assert "'adapter'" in verdicts[0].detail
    known = Known(lora_paths={"adapter": "/adapters/a"})
    assert statuses(ChainVerifier(VLLM, known).check(event)) == ["match"] * 4
    wrong = Known(lora_paths={"adapter": "/adapters/b"})
    assert statuses(ChainVerifier(VLLM, wrong).check(event)) == ["mismatch"] * 4


def test_releases_without_extra_keys_on_the_wire() -> None:
    event = stored(BARE, cache_salt="tenant-a")
    event.extra_keys = None
    assert statuses(ChainVerifier(BARE).check(event))[0] == "extra-keys-not-published"
    assert statuses(ChainVerifier(BARE, Known(salts=("x", "tenant-a"))).check(event)) == ["match"] * 4
    assert statuses(ChainVerifier(BARE, Known(complete=True)).check(event)) == ["mismatch"] * 4


@pytest.mark.parametrize("hashed", ["adapter", 3], ids=["name", "number"])
def test_adapters_that_are_published_by_number(hashed: Any) -> None:
    digests = vllm.block_digests(TOKENS, 4, algorithm="sha256_cbor", parent=NONE_HASH, extras=[(hashed,)] * 4)
    event = BlockStored([vllm.external_hash(digest) for digest in digests], None, TOKENS, 4, lora_id=3)
    known = Known(lora_names={3: "adapter"}) if hashed == "adapter" else Known()
    assert statuses(ChainVerifier(BARE, known).check(event)) == ["match"] * 4


def masked(recipe: Recipe, kept: list[int], **options: Any) -> BlockStored:
    event = stored(recipe, **options)
    event.block_hashes = [event.block_hashes[at] for at in kept]
    if event.extra_keys is not None:
        event.extra_keys = [event.extra_keys[at] for at in kept]
    return event


@pytest.mark.parametrize("kept", [[0], [3], [1, 3], [0, 2]])
def test_sliding_window_groups_leave_blocks_out(kept: list[int]) -> None:
    verdicts = ChainVerifier(VLLM).check(masked(VLLM, kept))
    assert statuses(verdicts) == ["match"] * len(kept)
    assert [verdict.block for verdict in verdicts] == kept


def test_the_extra_keys_of_a_left_out_block_are_not_published() -> None:
    event = masked(VLLM, [2, 3], cache_salt="tenant-a")
    assert statuses(ChainVerifier(VLLM).check(event)) == ["masked-blocks"] * 2
    assert statuses(ChainVerifier(VLLM, Known(salts=("x", "tenant-a"))).check(event)) == ["match"] * 2
    assert statuses(ChainVerifier(VLLM, Known(complete=True)).check(event)) == ["mismatch"] * 2
    adapter = masked(BARE, [1, 3], lora_name="adapter")
    assert statuses(ChainVerifier(BARE).check(adapter)) == ["match"] * 2


def test_equal_strings_in_one_block_are_pickled_in_one_of_two_ways() -> None:
    recipe = get_recipe("vllm:sha256", seed="0", extra_keys="bare")
    root = vllm.none_hash("sha256", "0")
    name = "image-" + "0" * 8
    for twin in (name, "".join(["image-", "0" * 8])):
        digest = vllm.block_digest("sha256", root, TOKENS[:4], ((name, 0), (twin, 2)))
        event = BlockStored([vllm.external_hash(digest)], None, TOKENS[:4], 4, extra_keys=[[[name, 0], [name, 2]]])
        assert statuses(ChainVerifier(recipe).check(event)) == ["match"]


def test_blocks_larger_than_what_is_hashed() -> None:
    fine = list(VLLM.hash_blocks(TOKENS, 4, cache_salt="s"))
    recipe = get_recipe("vllm:sha256_cbor", seed="0", hash_block_size=4)
    event = BlockStored([fine[1].event_hash, fine[3].event_hash], None, TOKENS, 8, extra_keys=[["s"], None])
    assert statuses(ChainVerifier(recipe).check(event)) == ["match"] * 2
    event.extra_keys = [["s"], [["image", 0]]]
    assert statuses(ChainVerifier(recipe).check(event)) == ["match", "coarse-block"]
    assert statuses(ChainVerifier(VLLM).check(event))[0] == "mismatch"


@pytest.mark.parametrize(
    "fields",
    [{"extra_keys": [None]}, {"extra_keys": [None, None], "lookahead_token_ids": [[1]]}, {"extra_keys": [[1.5], None]}],
)
def test_lists_that_do_not_go_with_the_hashes(fields: dict[str, Any]) -> None:
    event = BlockStored([1, 2], None, TOKENS[:8], 4, **fields)
    assert statuses(ChainVerifier(VLLM).check(event)) == ["shape"] * 2


# One event by itself


def test_an_event_recomputed_by_itself() -> None:
    chain = list(SGLANG.hash_blocks(TOKENS, 4, cache_salt="s"))
    assert recompute(SGLANG, stored(SGLANG, cache_salt="s")) == chain
    tail = stored(SGLANG, start=2, cache_salt="s")
    assert recompute(SGLANG, tail, chain[1].digest) == chain[2:]
    whole = VllmRecipe("sha256_cbor", NONE_HASH, digests=True)
    assert recompute(whole, stored(whole, start=1)) == list(whole.hash_blocks(TOKENS, 4))[1:]


@pytest.mark.parametrize(
    ("event", "recipe", "reason"),
    [
        (stored(SGLANG, start=2), SGLANG, "parent-unseen"),
        (stored(DYNAMO, extra_key="ek"), DYNAMO, "extra-key-not-published"),
        (stored(VLLM, lora_name="a", lora_path="/p"), VLLM, "lora-path-not-published"),
        (BlockStored([1], None, [], 0), SGLANG, "no-tokens"),
    ],
)
def test_an_event_that_does_not_suffice(event: BlockStored, recipe: Recipe, reason: str) -> None:
    with pytest.raises(NotRecomputableError) as raised:
        recompute(recipe, event)
    assert raised.value.reason == reason


def test_storage_and_event_chains_part_at_the_first_page() -> None:
    keys = list(sglang.storage_keys(TOKENS, 4, cache_salt="s"))
    digests = [digest.hex() for digest in sglang.page_digests(TOKENS, 4, prior=sglang.event_prior("s"))]
    assert not set(keys) & set(digests)
    assert list(sglang.storage_keys(TOKENS, 4)) == [digest.hex() for digest in sglang.page_digests(TOKENS, 4)]
