"""The decoders of real consumers, as they are: each fails what its known-failures file says and nothing else, and the
failures that people meet are there to be seen."""

from __future__ import annotations

import functools

import pytest

from kvwire import DIALECTS
from kvwire_conform import testees
from kvwire_conform.consumer import Known, judge
from kvwire_conform.consumer_model import AnswerVerdict, ConsumerReport, Judgement

pytestmark = [pytest.mark.slow, pytest.mark.network]

REAL = ("aibrix", "dynamo-kv-router", "engine-structs", "llm-d")
DYNAMO = tuple(f"dynamo-kv-router@{version}" for version in ("1.2.1", "1.4.2", "1.6.1"))
LLM_D = "llm-d@0.5.0"
AIBRIX = "aibrix@0.7.0"
STRUCTS = tuple(
    f"engine-structs@{release}" for release in ("sglang==0.5.19", "sglang==0.5.23", "vllm==0.16.0", "vllm==0.33.0")
)

EXACT, LOSSY, WRONG = AnswerVerdict.EXACT, AnswerVerdict.LOSSY, AnswerVerdict.WRONG
REJECTED, SIBLING_LOST = AnswerVerdict.REJECTED, AnswerVerdict.SIBLING_LOST


@functools.cache
def report_of(name: str) -> ConsumerReport:
    """A testee judged by every golden vector, once in this process; skips where it cannot be built."""
    spec, version = testees.find(name)
    built = testees.build(spec, version)
    if isinstance(built, testees.Skipped):
        pytest.skip(built.reason)
    known = testees.known_failures(spec, version)
    assert known is not None, f"no known-failures file for {name}"
    return judge(built.command, known=Known(files=(known,)))


def judged(name: str, ident: str) -> Judgement:
    return next(one for one in report_of(name).judgements if one.id == ident)


def fields(judgement: Judgement) -> set[str]:
    return {difference.where.rpartition(".")[2].partition("[")[0] for difference in judgement.differences}


def grouped(*names: str) -> list[object]:
    """Parameters that one worker takes together, so that each testee is judged once."""
    return [pytest.param(name, marks=pytest.mark.xdist_group(f"real-{name.partition('@')[0]}")) for name in names]


def each_version(name: str) -> list[str]:
    spec, _ = testees.find(name)
    return [f"{name}@{version}" for version in spec.versions]


@pytest.mark.parametrize("name", grouped(*DYNAMO, LLM_D, AIBRIX, *STRUCTS))
def test_fails_what_is_known_and_nothing_else(name: str) -> None:
    report = report_of(name)
    failed = [one for one in report.judgements if one.required and one.verdict is not EXACT]
    unknown = [f"{one.id} {one.verdict.value}" for one in failed if not one.known]
    assert (unknown, report.stale, report.exit_code) == ([], [], 0)
    assert report.not_run == []
    assert {one.dialect for one in report.judgements} == {*DIALECTS, None}


@pytest.mark.parametrize("name", [label for name in REAL for label in each_version(name)])
def test_each_version_has_its_known_failures(name: str) -> None:
    found = testees.known_failures(*testees.find(name))
    assert found is not None
    assert found.name == f"{name}.txt"


@pytest.mark.parametrize("name", grouped(*DYNAMO, LLM_D, AIBRIX))
def test_says_the_version_that_is_pinned(name: str) -> None:
    spec, version = testees.find(name)
    consumer = report_of(name).consumer
    assert consumer is not None and consumer.version == version
    lock = (
        spec.folder / "versions" / version / "Cargo.lock" if name in DYNAMO and version else spec.folder / "go.mod"
    ).read_text(encoding="utf-8")
    pinned = f'name = "dynamo-kv-router"\nversion = "{version}"' if name in DYNAMO else f" v{version}\n"
    assert pinned in lock


@pytest.mark.parametrize("name", grouped(*DYNAMO))
def test_dynamo_refuses_batches_of_two(name: str) -> None:
    valid = [one for one in report_of(name).judgements if one.dialect == "slot6-b2" and one.kind == "valid"]
    assert valid
    assert {one.verdict for one in valid} == {REJECTED}


@pytest.mark.parametrize("name", grouped(*DYNAMO))
@pytest.mark.parametrize("ident", ["slot8-lora/hash-bytes", "vllm-map5/hash-bytes"])
def test_dynamo_refuses_byte_hashes(name: str, ident: str) -> None:
    found = judged(name, ident)
    assert (found.verdict, "BlockHashValue" in found.said) == (REJECTED, True)


@pytest.mark.parametrize("name", grouped(*DYNAMO))
@pytest.mark.parametrize("dialect", ["slot7", "dynamo", "sglang-map2", "vllm-map5"])
def test_dynamo_loses_the_neighbours_of_an_unknown_tag(name: str, dialect: str) -> None:
    found = judged(name, f"{dialect}/unknown-tag-between")
    assert found.verdict is SIBLING_LOST
    assert "events[0], events[2]" in found.note


@pytest.mark.parametrize(
    ("name", "alone", "beside"),
    [
        pytest.param(name, *verdicts, marks=pytest.mark.xdist_group("real-dynamo-kv-router"))
        for name, verdicts in zip(
            DYNAMO, [(REJECTED, SIBLING_LOST), (REJECTED, SIBLING_LOST), (EXACT, EXACT)], strict=True
        )
    ],
)
def test_dynamo_reads_the_metadata_map_since_1_6(name: str, alone: AnswerVerdict, beside: AnswerVerdict) -> None:
    assert judged(name, "slot8/salt").verdict is alone
    assert judged(name, "slot8/salt-beside-unsalted").verdict is beside


@pytest.mark.parametrize("ident", ["slot9/salt-prefixed", "dynamo/salt", "vllm-map5/salt-prefixed"])
@pytest.mark.xdist_group("real-dynamo-kv-router")
def test_dynamo_keeps_the_tagged_salt_since_1_4(ident: str) -> None:
    lost = [fields(judged(name, ident)) for name in DYNAMO]
    assert lost == [{"cache_salt", "extra_keys"}, {"extra_keys"}, {"extra_keys"}]


@pytest.mark.parametrize("name", grouped(*DYNAMO))
def test_dynamo_takes_a_window_without_a_group_for_the_group(name: str) -> None:
    found = judged(name, "slot12/stored-only-kv-cache-spec-sliding-window")
    assert found.verdict is WRONG
    assert ("events[0].group_idx", "nothing", "128") in [
        (one.where, one.expected, one.got) for one in found.differences
    ]


@pytest.mark.xdist_group("real-llm-d")
def test_llm_d_loses_hashes_of_under_nine_bytes() -> None:
    for ident in ("slot8-lora/hash-zero", "slot8-lora/hash-minus-one", "slot8-lora/hash-small"):
        found = judged(LLM_D, ident)
        assert (found.verdict, fields(found)) == (WRONG, {"block_hashes"})
    assert judged(LLM_D, "slot8-lora/hash-zero").differences[0].got == "[]"
    for ident in ("slot8-lora/hash-uint64-max", "slot8-lora/hash-int64-min", "slot8-lora/wide-hash-u64"):
        assert judged(LLM_D, ident).verdict is EXACT


@pytest.mark.xdist_group("real-llm-d")
def test_llm_d_takes_the_last_eight_bytes_of_a_digest_and_aibrix_the_first() -> None:
    for name, part in ((LLM_D, '"e8e9eaebecedeeef"'), (AIBRIX, '"e0e1e2e3e4e5e6e7"')):
        found = judged(name, "slot8-lora/hash-bytes-16")
        difference = next(one for one in found.differences if one.where == "events[0].block_hashes[0]")
        assert (found.verdict, difference.expected, difference.got) == (
            WRONG,
            '"bytes:e0e1e2e3e4e5e6e7e8e9eaebecedeeef"',
            part,
        )


@pytest.mark.xdist_group("real-llm-d")
def test_llm_d_passes_over_events_of_another_length() -> None:
    for ident in ("slot7/stored-minimal", "slot8/salt", "slot9/stored-minimal", "vllm-map5/stored-minimal"):
        found = judged(LLM_D, ident)
        assert (found.verdict, found.differences[0].got) == (LOSSY, "nothing")
    assert judged(LLM_D, "slot8-lora/stored-full").verdict is EXACT
    assert judged(LLM_D, "slot8-lora/unknown-tag-between").verdict is EXACT


@pytest.mark.xdist_group("real-aibrix")
def test_aibrix_reads_no_maps() -> None:
    maps = [
        one
        for one in report_of(AIBRIX).judgements
        if one.kind == "valid" and "map" in (one.dialect or "") and not one.id.endswith("/batch-empty")
    ]
    assert maps
    assert {one.verdict for one in maps} == {REJECTED}


@pytest.mark.xdist_group("real-aibrix")
def test_aibrix_loses_the_batch_over_an_unknown_tag_and_a_rank_of_nil() -> None:
    assert judged(AIBRIX, "slot7/unknown-tag-between").verdict is SIBLING_LOST
    assert judged(AIBRIX, "slot7/batch-rank-nil").verdict is REJECTED


@pytest.mark.xdist_group("real-aibrix")
def test_aibrix_keeps_no_medium() -> None:
    assert fields(judged(AIBRIX, "slot7/medium-cpu-pinned")) == {"medium"}


@pytest.mark.parametrize(
    ("name", "dialect"), [*zip(STRUCTS, ("slot8", "sglang-map2", "slot8-lora", "vllm-map5"), strict=True)]
)
@pytest.mark.xdist_group("real-engine-structs")
def test_structs_claim_what_their_release_writes(name: str, dialect: str) -> None:
    consumer = report_of(name).consumer
    assert consumer is not None
    assert (consumer.dialects, f"{consumer.name}=={consumer.version}") == (
        (dialect,),
        name.partition("@")[2].replace("==", "-structs=="),
    )


@pytest.mark.xdist_group("real-engine-structs")
def test_sglang_loses_its_own_salt() -> None:
    found = judged(STRUCTS[0], "slot8/salt")
    assert (found.verdict, fields(found)) == (LOSSY, {"cache_salt"})


@pytest.mark.parametrize(
    ("name", "ident"),
    [
        ("engine-structs@sglang==0.5.23", "slot8/stored-minimal"),
        ("engine-structs@vllm==0.33.0", "slot12/stored-minimal"),
        ("engine-structs@sglang==0.5.19", "sglang-map2/stored-minimal"),
        ("engine-structs@vllm==0.16.0", "vllm-map5/stored-minimal"),
    ],
)
@pytest.mark.xdist_group("real-engine-structs")
def test_structs_of_one_encoding_refuse_the_other(name: str, ident: str) -> None:
    assert judged(name, ident).verdict is REJECTED


@pytest.mark.xdist_group("real-engine-structs")
def test_array_structs_drop_the_slots_of_later_releases() -> None:
    found = judged("engine-structs@vllm==0.16.0", "slot10/stored-full")
    assert (found.verdict, fields(found)) == (LOSSY, {"extra_keys", "group_idx"})


@pytest.mark.xdist_group("real-llm-d")
@pytest.mark.parametrize(
    ("name", "ident"),
    [
        (AIBRIX, "any/length-lies-array32"),
        (AIBRIX, "slot7/length-lies-tokens"),
        (LLM_D, "any/length-lies-events"),
    ],
)
def test_a_length_that_lies_ends_the_go_consumers(name: str, ident: str) -> None:
    assert judged(name, ident).verdict is AnswerVerdict.CRASHED
