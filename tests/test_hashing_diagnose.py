"""Each mistake, made on purpose by a producer of its own, is named; right hashes and unknown causes are not."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from typing import Any

import cbor2
import pytest

from kvwire import BlockStored
from kvwire.hashing import as_int64, as_uint64, dynamo, sglang, vllm
from kvwire.hashing.catalog import get_recipe
from kvwire.hashing.diagnose import Diagnosis, Mistake, diagnose, wrong_sign
from kvwire.hashing.recipes import Known, Recipe, Status
from kvwire.hashing.verify import ChainVerifier

TOKENS: list[Any] = [1001, 1002, 1003, 1004, 2001, 2002, 2003, 2004, 3001, 3002, 3003, 3004]
PAIRS: list[Any] = [(1001, 1002), (1002, 1003), (1003, 1004), (1004, 2001)]
SGLANG, DYNAMO = get_recipe("sglang"), get_recipe("sglang:dynamo")
VLLM = get_recipe("vllm:sha256_cbor", seed="0")
KNOWN = Known(extra_keys=("ek", "other"), salts=("tenant-a",))


def sha(*parts: bytes) -> bytes:
    return hashlib.sha256(b"".join(parts)).digest()


def words(ids: Sequence[int], form: str = "<{}I") -> bytes:
    return struct.pack(form.format(len(ids)), *ids)


def first(digest: bytes) -> int:
    return int.from_bytes(digest[:8], "big", signed=True)


def explain(
    recipe: Recipe, event: BlockStored, known: Known = KNOWN, before: Sequence[BlockStored] = ()
) -> list[Diagnosis]:
    """What is said of the first hash of an event that does not match."""
    verifier = ChainVerifier(recipe)
    for earlier in before:
        assert {verdict.status for verdict in verifier.check(earlier)} == {Status.MATCH}
    verdict = next(verdict for verdict in verifier.check(event) if verdict.status is not Status.MATCH)
    return diagnose(recipe, event, verdict, known)


def root(block_hash: int, tokens: list[Any] | None = None, size: int = 4, **fields: Any) -> BlockStored:
    return BlockStored([block_hash], None, TOKENS[:4] if tokens is None else tokens, size, **fields)


def only(found: list[Diagnosis]) -> tuple[Mistake, ...]:
    assert len(found) == 1, list(map(str, found))
    return found[0].mistakes


PAGE = words(TOKENS[:4])
RIGHT = sha(PAGE)
SALTED = sha(sglang.salt_seed("tenant-a"), PAGE)
FINE = [sha(words(TOKENS[:2]))]
FINE.append(sha(FINE[0], words(TOKENS[2:4])))


@pytest.mark.parametrize(
    ("mistake", "event"),
    [
        (Mistake.SALT_NOT_APPLIED, root(first(RIGHT), cache_salt="tenant-a")),
        (Mistake.SALT_NOT_PUBLISHED, root(first(SALTED))),
        (Mistake.EXTRA_KEY_IN_HASH, root(first(sha(sglang.salt_seed("ek"), PAGE)))),
        (Mistake.EXTRA_KEY_IN_HASH, root(first(sha(sha(b"ek"), PAGE)))),
        (Mistake.EXTRA_KEY_IN_HASH, root(first(sha(b"ek" + PAGE)))),
        (Mistake.EXTRA_KEY_IN_HASH, root(first(sha(PAGE + b"ek")))),
        (Mistake.EXTRA_KEY_IN_HASH, root(sglang.namespaced_hash(first(RIGHT), sglang.namespace_seed("ek", None)))),
        (
            Mistake.EXTRA_KEY_IN_HASH,
            root(sglang.namespaced_hash(first(SALTED), sglang.namespace_seed("ek", "tenant-a")), cache_salt="tenant-a"),
        ),
        (
            Mistake.NAMESPACED,
            root(sglang.namespaced_hash(first(SALTED), sglang.namespace_seed(None, "tenant-a")), cache_salt="tenant-a"),
        ),
        (Mistake.STORAGE_CHAIN, root(first(bytes.fromhex(next(sglang.storage_keys(TOKENS[:4], 4, extra_key="ek")))))),
        (
            Mistake.STORAGE_CHAIN,
            root(
                first(bytes.fromhex(next(sglang.storage_keys(TOKENS[:4], 4, cache_salt="tenant-a")))),
                cache_salt="tenant-a",
            ),
        ),
        (Mistake.BYTE_ORDER, root(int.from_bytes(RIGHT[:8], "little"))),
        (Mistake.BYTE_ORDER, root(int.from_bytes(RIGHT[-8:], "little"))),
        (Mistake.BYTE_ORDER, root(first(sha(words(TOKENS[:4], ">{}I"))))),
        (Mistake.WRONG_BYTES, root(int.from_bytes(RIGHT[-8:], "big"))),
        (Mistake.TOKEN_WIDTH, root(first(sha(words(TOKENS[:4], "<{}Q"))))),
        (Mistake.TOKEN_WIDTH, root(first(sha(b"\xff", words(TOKENS[:4], "<{}Q"))))),
        (Mistake.PAGE_SIZE, root(first(FINE[0]))),
        (Mistake.PAGE_SIZE, root(first(FINE[1]))),
        (Mistake.PAGE_SIZE, BlockStored([first(sha(words(TOKENS[:6]))), 1], None, TOKENS[:8], 4)),
        (Mistake.BIGRAM, root(first(sha(words([a for a, _ in PAIRS]))), PAIRS)),
        (Mistake.BIGRAM, root(first(sha(words([b for _, b in PAIRS]))), PAIRS)),
        (Mistake.BIGRAM, root(first(sha(words(TOKENS[:5]))), PAIRS)),
        (Mistake.BIGRAM, root(first(sha(words(TOKENS[:4] + TOKENS[1:5]))), PAIRS)),
        (Mistake.BIGRAM, root(first(sha(words([token for a, b in PAIRS for token in (b, a)]))), PAIRS)),
        (Mistake.BIGRAM, BlockStored([first(next(sglang.page_digests(PAIRS, 4))), 1], None, TOKENS[:8], 4)),
        (Mistake.SEED, root(first(sha(bytes(32), PAGE)))),
        (Mistake.SEED, root(first(sha(sha(b""), PAGE)))),
        (Mistake.SEED, root(first(sha(sha(b"sglang-cache-salt-v1tenant-a"), PAGE)), cache_salt="tenant-a")),
        (Mistake.SEED, root(first(sha(b"tenant-a", PAGE)), cache_salt="tenant-a")),
        (Mistake.OTHER_RECIPE, root(next(sglang.python_page_hashes(TOKENS[:4], 4)))),
        (Mistake.OTHER_RECIPE, root(next(dynamo.tokens_hashes(TOKENS[:4], 4)))),
        (
            Mistake.OTHER_RECIPE,
            root(vllm.external_hash(vllm.block_digest("xxhash", vllm.none_hash("xxhash", "42"), TOKENS[:4]))),
        ),
    ],
)
def test_sglang_roots(mistake: Mistake, event: BlockStored) -> None:
    assert only(explain(SGLANG, event)) == (mistake,)


HEAD = root(first(RIGHT))
NEXT = words(TOKENS[4:8])


@pytest.mark.parametrize(
    ("mistake", "digest"),
    [
        (Mistake.NOT_CHAINED, sha(NEXT)),
        (Mistake.PARENT_FORM, sha(RIGHT[:8], NEXT)),
        (Mistake.PARENT_FORM, sha(RIGHT.hex().encode(), NEXT)),
        (Mistake.PARENT_FORM, sha(RIGHT.hex()[:16].encode(), NEXT)),
        (Mistake.PAGE_SIZE, sha(RIGHT, words(TOKENS[4:6]))),
        (Mistake.BYTE_ORDER, sha(RIGHT, words(TOKENS[4:8], ">{}I"))),
    ],
)
def test_sglang_children(mistake: Mistake, digest: bytes) -> None:
    child = BlockStored([first(digest)], first(RIGHT), TOKENS[4:8], 4)
    assert only(explain(SGLANG, child, before=[HEAD])) == (mistake,)


def test_a_wide_page_is_diagnosed_too() -> None:
    ids = [1, 1 << 40, 3, 4]
    digest = next(sglang.page_digests(ids, 4))
    assert only(explain(SGLANG, root(int.from_bytes(digest[-8:], "big"), ids))) == (Mistake.WRONG_BYTES,)
    plain = first(sha(words(ids, "<{}Q")))
    assert only(explain(SGLANG, root(plain, ids))) == (Mistake.TOKEN_WIDTH,)


def test_a_hash_of_the_default_format_in_a_stream_of_the_dynamo_format() -> None:
    event = root(first(SALTED), cache_salt="tenant-a")
    assert only(explain(DYNAMO, event)) == (Mistake.NOT_NAMESPACED,)
    seed = sglang.namespace_seed(None, "tenant-a")
    event = root(sglang.namespaced_hash(first(RIGHT), seed), cache_salt="tenant-a")
    assert only(explain(DYNAMO, event)) == (Mistake.SALT_NOT_APPLIED,)
    event = root(sglang.namespaced_hash(first(SALTED[::-1]), seed), cache_salt="tenant-a")
    assert only(explain(DYNAMO, event)) == (Mistake.BYTE_ORDER,)


def test_two_mistakes_at_once() -> None:
    event = root(int.from_bytes(RIGHT[:8], "little"), cache_salt="tenant-a")
    (found,) = explain(SGLANG, event)
    assert found.mistakes == (Mistake.SALT_NOT_APPLIED, Mistake.BYTE_ORDER)
    assert str(found) == (
        "salt-not-applied + byte-order: the event carries the salt 'tenant-a', the hash does not; "
        "the first 8 bytes of the digest are read little-endian"
    )


# vLLM

NONE = vllm.none_hash("sha256_cbor", "0")
IDS = tuple(TOKENS[:4])


def cbor(value: Any) -> bytes:
    return hashlib.sha256(cbor2.dumps(value, canonical=True)).digest()


def low(digest: bytes) -> int:
    return int.from_bytes(digest[-8:], "big")


def block(digest: bytes | int, extra: Any = None, **fields: Any) -> BlockStored:
    value = digest if isinstance(digest, int) else low(digest)
    return BlockStored([value], None, TOKENS[:4], 4, extra_keys=[extra], **fields)


TAGGED = ("cache_salt", "tenant-a")
IMAGE = ("mm", "083c", 2)
FINE_BLOCKS = [cbor((NONE, IDS[:2], None))]
FINE_BLOCKS.append(cbor((FINE_BLOCKS[0], IDS[2:], None)))


@pytest.mark.parametrize(
    ("mistake", "event"),
    [
        (Mistake.SALT_NOT_APPLIED, block(cbor((NONE, IDS, (IMAGE,))), [["083c", 2], "tenant-a"])),
        (Mistake.SALT_NOT_PUBLISHED, block(cbor((NONE, IDS, (TAGGED,))))),
        (Mistake.EXTRA_KEYS_NOT_APPLIED, block(cbor((NONE, IDS, None)), [["083c", 2]])),
        (Mistake.EXTRA_KEYS_FORM, block(cbor((NONE, IDS, ("tenant-a",))), ["tenant-a"])),
        (Mistake.EXTRA_KEYS_FORM, block(cbor((NONE, IDS, ())))),
        (Mistake.WRONG_BYTES, block(int.from_bytes(cbor((NONE, IDS, None))[:8], "big"))),
        (Mistake.BYTE_ORDER, block(int.from_bytes(cbor((NONE, IDS, None))[-8:], "little"))),
        (Mistake.SEED, block(cbor((vllm.none_hash("sha256_cbor", "42"), IDS, None)))),
        (Mistake.SEED, block(cbor((vllm.none_hash("sha256_cbor"), IDS, None)))),
        (Mistake.SEED, block(cbor((None, IDS, None)))),
        (Mistake.SEED, block(cbor((0, IDS, None)))),
        (Mistake.ALGORITHM, block(vllm.block_digest("sha256", vllm.none_hash("sha256", "0"), IDS))),
        (Mistake.ALGORITHM, block(vllm.block_digest("xxhash_cbor", vllm.none_hash("xxhash_cbor", "1"), IDS))),
        (Mistake.PAGE_SIZE, block(FINE_BLOCKS[0])),
        (Mistake.PAGE_SIZE, block(FINE_BLOCKS[1])),
        (
            Mistake.PAGE_SIZE,
            BlockStored([low(cbor((NONE, tuple(TOKENS[:8]), None))), 1], None, TOKENS[:8], 4, extra_keys=[None, None]),
        ),
        (Mistake.LOOKAHEAD, block(cbor((NONE, IDS, None)), lookahead_token_ids=[[9]])),
        (Mistake.OTHER_RECIPE, block(first(RIGHT))),
        (Mistake.OTHER_RECIPE, block(next(dynamo.tokens_hashes(IDS, 4)))),
    ],
)
def test_vllm_roots(mistake: Mistake, event: BlockStored) -> None:
    assert only(explain(VLLM, event)) == (mistake,)


def test_vllm_pickles_lists_apart_from_tuples() -> None:
    recipe = get_recipe("vllm:sha256", seed="0")
    digest = vllm.hash_function("sha256")
    for value in ((recipe.root.digest, list(IDS), None), [recipe.root.digest, IDS, None]):
        assert only(explain(recipe, block(digest(value)))) == (Mistake.SERIALISATION,)


HEAD_BLOCK = cbor((NONE, IDS, None))
NEXT_IDS = tuple(TOKENS[4:8])


@pytest.mark.parametrize(
    ("mistake", "digest"),
    [
        (Mistake.NOT_CHAINED, cbor((NONE, NEXT_IDS, None))),
        (Mistake.NOT_CHAINED, cbor((None, NEXT_IDS, None))),
        (Mistake.PARENT_FORM, cbor((low(HEAD_BLOCK), NEXT_IDS, None))),
        (Mistake.PARENT_FORM, cbor((HEAD_BLOCK[-8:], NEXT_IDS, None))),
        (Mistake.PARENT_FORM, cbor((HEAD_BLOCK.hex(), NEXT_IDS, None))),
        (Mistake.SALT_NOT_PUBLISHED, cbor((HEAD_BLOCK, NEXT_IDS, (TAGGED,)))),
    ],
)
def test_vllm_children(mistake: Mistake, digest: bytes) -> None:
    child = BlockStored([low(digest)], low(HEAD_BLOCK), list(NEXT_IDS), 4, extra_keys=[None])
    assert only(explain(VLLM, child, before=[block(HEAD_BLOCK)])) == (mistake,)


def test_whole_digests() -> None:
    right = cbor((NONE, IDS, None))
    reverse = BlockStored([right[::-1]], None, list(IDS), 4, extra_keys=[None])
    assert only(explain(VLLM, reverse)) == (Mistake.BYTE_ORDER,)
    seeded = BlockStored(
        [cbor((vllm.none_hash("sha256_cbor", "42"), IDS, None))], None, list(IDS), 4, extra_keys=[None]
    )
    assert only(explain(VLLM, seeded)) == (Mistake.SEED,)


# What can and cannot be told


def test_signed_and_unsigned_forms() -> None:
    assert first(RIGHT) < 0, "the test needs a hash whose forms differ"
    verifier = ChainVerifier(SGLANG)
    event = root(as_uint64(first(RIGHT)))
    (verdict,) = verifier.check(event)
    assert verdict.status is Status.MATCH
    (found,) = diagnose(SGLANG, event, verdict)
    assert found.mistakes == (Mistake.WRONG_SIGN,)
    assert "the 64 bits are the same" in found.text

    big = next(value for value in (low(cbor((NONE, (token,), None))) for token in range(99)) if value >> 63)
    note = wrong_sign(VLLM, as_int64(big))
    assert note is not None
    assert note.mistakes == (Mistake.WRONG_SIGN,)
    for recipe, value in ((SGLANG, first(RIGHT)), (VLLM, big), (SGLANG, 5), (VLLM, 5), (VLLM, b"digest")):
        assert wrong_sign(recipe, value) is None


def test_a_right_hash_and_an_unknown_cause() -> None:
    (verdict,) = ChainVerifier(SGLANG).check(HEAD)
    assert diagnose(SGLANG, HEAD, verdict) == []
    for recipe in (SGLANG, DYNAMO, VLLM, get_recipe("sglang:python")):
        assert explain(recipe, BlockStored([12345], None, TOKENS[:4], 4)) == []


def test_an_extra_key_that_is_not_known_explains_nothing() -> None:
    event = root(first(sha(sglang.salt_seed("ek"), PAGE)))
    assert explain(SGLANG, event, Known()) == []


def test_a_block_that_cannot_be_judged_is_not_explained() -> None:
    for event in (BlockStored([1], None, [], 0), BlockStored([1], 99, TOKENS[:4], 4), BlockStored([1], None, ["a"], 1)):
        assert explain(SGLANG, event) == []


def test_an_unresolved_namespace_is_still_looked_into() -> None:
    event = root(int.from_bytes(RIGHT[-8:], "big"))
    (verdict,) = ChainVerifier(DYNAMO).check(event)
    assert verdict.status is Status.UNKNOWN
    assert only(diagnose(DYNAMO, event, verdict)) == (Mistake.WRONG_BYTES,)


def test_sglang_hashes_judged_as_unchained_ones() -> None:
    assert only(explain(get_recipe("sglang:python"), HEAD)) == (Mistake.OTHER_RECIPE,)
