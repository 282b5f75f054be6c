"""The compatibility matrix: what it is made of, what it must show, and that the committed one is what runs give."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from kvwire import DIALECTS
from kvwire.errors import UsageError
from kvwire_conform import golden, matrix_runs
from kvwire_conform.consumer import judge
from kvwire_conform.consumer_model import AnswerVerdict, Behaviour, Consumer, ConsumerReport, Difference, Judgement
from kvwire_conform.matrix_build import assemble, settled
from kvwire_conform.matrix_features import FEATURES, feature_of
from kvwire_conform.matrix_model import Cell, Matrix, worst
from kvwire_conform.model import Verdict
from kvwire_conform.reports import matrix_json, matrix_markdown
from kvwire_conform.reports.matrix_html import to_html

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
OLD, SALTED = ("1.2.1", "1.3.1"), ("1.4.2", "1.6.1")


@pytest.fixture(scope="module")
def committed() -> Matrix:
    return matrix_json.from_json((DOCS / "matrix.json").read_bytes())


def report(
    name: str, judgements: Sequence[Judgement], *, claims: Sequence[str] = ("slot8",), mode: str = "consumer"
) -> ConsumerReport:
    consumer = Consumer(name=name, version="1", language="C", dialects=tuple(claims))
    return ConsumerReport(
        tool="t", mode=mode, subject=[name], consumer=consumer, started=0.0, judgements=list(judgements)
    )


def judgement(ident: str, verdict: AnswerVerdict, *, said: str = "", required: bool = True) -> Judgement:
    row = next(row for row in golden.list_vectors() if row.id == ident)
    lost = (Difference(where="events[0].cache_salt", expected='"t"', got="nothing"),)
    return Judgement(
        id=ident,
        dialect=row.dialect,
        kind=row.kind,
        verdict=verdict,
        required=required,
        said=said,
        differences=lost if verdict is AnswerVerdict.LOSSY else (),
    )


def cell(matrix: Matrix, producer: str, consumer: str) -> Cell:
    return next(c for c in matrix.cells if (c.producer, c.consumer) == (producer, consumer))


def counts(found: Cell, feature: str) -> dict[str, int]:
    return next((row.counts for row in found.rows if row.feature == feature), {})


# ---- features ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("vector", "feature"),
    [
        ("slot8/stored-chain", "plain"),
        ("slot8/salt-beside-unsalted", "salt"),
        ("slot9/salt-prefixed", "salt"),
        ("vllm-map5/lora-name", "lora-name"),
        ("slot6/lora-id-7", "lora-id"),
        ("slot9/stored-extra-keys-mm", "extra-keys"),
        ("slot7/hash-bytes", "byte-hashes"),
        ("slot7/hash-small", "short-hashes"),
        ("slot7/hash-minus-one", "short-hashes"),
        ("slot7/hash-uint64-max", "short-hashes"),
        ("slot7/hash-2-63", "plain"),
        ("dynamo/tokens-bigram", "bigram"),
        ("slot8/unknown-tag-between", "unknown-tag"),
        ("slot8/extra-slot-cleared", "unknown-field"),
        ("slot8/short-batch", "short-tail"),
        ("vllm-map1/shuffled-keys-sorted", "wide"),
        ("slot8/bad-tag-int", "bad-event"),
        ("slot8/truncated-last-byte", "bad-batch"),
        ("vllm-map5/stored-full", "combined"),
    ],
)
def test_a_vector_counts_under_what_it_puts_to_the_test(vector: str, feature: str) -> None:
    assert feature_of(golden.load(vector)).id == feature


def test_every_vector_has_a_feature_and_every_feature_a_vector() -> None:
    found = {feature_of(golden.load(row.id)).id for row in golden.list_vectors()}
    assert found == {feature.id for feature in FEATURES}


# ---- cells -------------------------------------------------------------------------------------------------------------


def test_a_cell_counts_each_verdict_and_shows_an_example_of_it() -> None:
    lossy, exact = AnswerVerdict.LOSSY, AnswerVerdict.EXACT
    matrix = assemble(
        [
            report(
                "peer",
                [
                    judgement("slot8/stored-chain", exact),
                    judgement("slot8/salt", lossy),
                    judgement("slot8/salt-unicode", lossy),
                    judgement("slot8/salt-two-tenants", AnswerVerdict.REJECTED, said="at 0x7f00deadbeef: no"),
                ],
            )
        ]
    )
    found = cell(matrix, "slot8", "peer 1")
    assert (found.state, found.verdict, found.claimed) == ("partly", AnswerVerdict.REJECTED, True)
    assert counts(found, "plain") == {"exact": 1}
    assert counts(found, "salt") == {"lossy": 2, "rejected": 1}
    shown = next(row for row in found.rows if row.feature == "salt").evidence
    assert [(e.vector, e.said) for e in shown] == [("slot8/salt-two-tenants", "at 0x…: no"), ("slot8/salt", "")]
    assert shown[1].differences[0].where == "events[0].cache_salt"
    assert set(matrix.payloads) == {"slot8/salt", "slot8/salt-two-tenants"}
    assert bytes.fromhex(matrix.payloads["slot8/salt"].hex) == golden.load("slot8/salt").payload


def test_what_was_not_judged_is_never_shown_as_read() -> None:
    matrix = assemble([report("peer", [judgement("slot8/stored-chain", AnswerVerdict.EXACT)])])
    assert cell(matrix, "slot9", "peer 1").state == "unseen"
    assert len(matrix.cells) == len(DIALECTS) + 1
    shown = assemble(
        [
            report(
                "r",
                [judgement("slot8/salt", AnswerVerdict.UNSUPPORTED, required=False)],
                mode="router",
            )
        ]
    )
    assert cell(shown, "slot8", "r 1").state == "unseen"
    assert [(row.counts, row.not_judged) for row in cell(shown, "slot8", "r 1").rows] == [({}, 1)]


def test_a_decoder_that_says_it_reads_nothing_is_not_shown_as_reading() -> None:
    exact, unsupported = AnswerVerdict.EXACT, AnswerVerdict.UNSUPPORTED
    judgements = [
        judgement("slot8/batch-16-events", exact, required=False),
        *(judgement(f"slot8/{case}", unsupported, required=False) for case in ("stored-chain", "removed", "cleared")),
    ]
    assert cell(assemble([report("peer", judgements, claims=())]), "slot8", "peer 1").state == "blind"


def test_a_run_that_was_cut_short_makes_no_matrix() -> None:
    cut = report("peer", [judgement("slot8/stored-chain", AnswerVerdict.EXACT)])
    cut.not_run = ["slot8/salt"]
    with pytest.raises(UsageError, match="peer 1 was not judged whole"):
        assemble([cut])
    cut.not_run, cut.interrupted = [], True
    with pytest.raises(UsageError, match="peer 1 was not judged whole"):
        assemble([cut])


def test_a_consumer_that_reads_no_store_is_blind_though_it_reads_an_empty_batch() -> None:
    matrix = assemble(
        [
            report(
                "peer",
                [
                    judgement("slot8/batch-empty", AnswerVerdict.EXACT),
                    judgement("slot8/stored-chain", AnswerVerdict.REJECTED),
                ],
            )
        ]
    )
    assert cell(matrix, "slot8", "peer 1").state == "blind"


def test_columns_say_what_kind_of_consumer_they_are() -> None:
    names = {"kvwire": "example", "go": "example", "vllm-structs": "engine", "someone": "decoder"}
    reports = [report(name, []) for name in names]
    matrix = assemble([*reports, report("dynamo-indexer", [], mode="router")])
    assert {column.name: column.group for column in matrix.consumers} == {**names, "dynamo-indexer": "router"}


def test_the_worst_of_verdicts() -> None:
    assert worst([]) is AnswerVerdict.EXACT
    assert worst([AnswerVerdict.LOSSY, AnswerVerdict.CRASHED, AnswerVerdict.WRONG]) is AnswerVerdict.CRASHED


@pytest.mark.parametrize(
    ("words", "left"),
    [
        ("2026-01-02T03:04:05.678Z  WARN x", "WARN x"),
        ("connect 127.0.0.1:40123 failed", "connect 127.0.0.1:… failed"),
        ("at /root/a/b/c/lib.rs:7", "at …/lib.rs:7"),
        ("\x1b[33mWARN\x1b[0m  a\n b", "WARN a b"),
        ("a" * 500, "a" * 239 + "…"),
    ],
)
def test_words_lose_what_differs_from_run_to_run(words: str, left: str) -> None:
    assert settled(words) == left


# ---- files -------------------------------------------------------------------------------------------------------------


def test_json_reads_back(committed: Matrix) -> None:
    assert matrix_json.from_json(matrix_json.to_json(committed)) == committed
    with pytest.raises(ValueError, match="format"):
        matrix_json.from_json(matrix_json.to_json(msgspec.structs.replace(committed, format="kvwire-matrix/9")))
    with pytest.raises(ValueError, match="not a matrix"):
        matrix_json.from_json(b"[]")


def test_changes_name_the_cell_and_pass_over_words(committed: Matrix) -> None:
    assert matrix_json.changes(committed, committed) == []
    before = assemble([report("peer", [judgement("slot8/salt", AnswerVerdict.LOSSY)])])
    after = assemble([report("peer", [judgement("slot8/salt", AnswerVerdict.EXACT)])])
    assert matrix_json.changes(before, after) == ["peer 1 on slot8, salt: 1 exact, not 1 lossy"]
    reworded = assemble([report("peer", [judgement("slot8/salt", AnswerVerdict.LOSSY, said="other words")])])
    assert matrix_json.changes(before, reworded) == []
    assert matrix_json.changes(before, assemble([])) == []
    assert matrix_json.changes(before, assemble([report("new", [])])) == ["new 1: a new consumer"]


def test_changes_name_a_behaviour() -> None:
    def one(verdict: Verdict) -> Matrix:
        found = report("r", [], mode="router")
        found.behaviours = [Behaviour(id="restart", text="it restarts", verdict=verdict, found="…")]
        return assemble([found])

    assert matrix_json.changes(one(Verdict.FAIL), one(Verdict.PASS)) == ["r 1, restart: pass, not fail"]


def test_the_committed_pages_are_what_the_committed_data_gives(committed: Matrix) -> None:
    assert (DOCS / "matrix.md").read_text(encoding="utf-8") == matrix_markdown.to_markdown(committed)
    assert (DOCS / "matrix.html").read_text(encoding="utf-8") == to_html(committed)


def test_the_readme_shows_the_committed_summary(committed: Matrix) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    _, marker, rest = readme.partition("<!-- matrix -->\n")
    assert marker, "the README has no place for the matrix"
    assert rest.partition("\n<!-- /matrix -->")[0] == matrix_markdown.summary(committed)


def test_a_page_is_safe_whatever_a_consumer_says(committed: Matrix) -> None:
    hostile = "</script><img src=x onerror=alert(1)>|<b>"
    found = report("peer", [judgement("slot8/salt", AnswerVerdict.REJECTED, said=hostile)])
    assert found.consumer is not None
    found.consumer = msgspec.structs.replace(found.consumer, name="<i>", notes=hostile)
    page = to_html(assemble([found]))
    assert "<img" not in page
    assert page.count("</script>") == to_html(committed).count("</script>")
    text = matrix_markdown.to_markdown(assemble([found]))
    assert "<img" not in text and "<i>" not in text


def test_the_page_loads_nothing(committed: Matrix) -> None:
    head, _, rest = to_html(committed).partition('<script type="application/json"')
    assert "src=" not in head and "@import" not in head and "url(" not in head and "http" not in head.split("<body>")[0]
    assert "fetch(" not in rest and "import(" not in rest


# ---- what is so --------------------------------------------------------------------------------------------------------


def dynamo(release: str) -> str:
    return f"dynamo-indexer {release}"


@pytest.mark.parametrize("release", ["1.2.1", "1.3.1", "1.4.2"])
def test_dynamo_loses_the_batch_of_a_salted_slot8_event(committed: Matrix, release: str) -> None:
    found = counts(cell(committed, "slot8", dynamo(release)), "salt")
    assert found.get("sibling-lost", 0) >= 1
    assert "exact" not in found and "lossy" not in found
    assert "rejected" not in counts(cell(committed, "slot8", dynamo("1.6.1")), "salt")


@pytest.mark.parametrize("release", OLD)
@pytest.mark.parametrize("dialect", ["slot9", "dynamo", "sglang-map1", "sglang-map2", "vllm-map5"])
def test_older_dynamo_drops_the_salt_silently(committed: Matrix, release: str, dialect: str) -> None:
    row = next(row for row in cell(committed, dialect, dynamo(release)).rows if row.feature == "salt")
    assert row.counts.get("lossy", 0) >= 1
    lossy = next(e for e in row.evidence if e.verdict is AnswerVerdict.LOSSY)
    assert any(difference.where.endswith("cache_salt") for difference in lossy.differences)
    newer = counts(cell(committed, dialect, dynamo("1.6.1")), "salt")
    assert newer["exact"] >= 1


@pytest.mark.parametrize("release", [*OLD, *SALTED])
def test_every_dynamo_refuses_pairs_byte_hashes_and_unknown_tags(committed: Matrix, release: str) -> None:
    pairs = cell(committed, "slot6-b2", dynamo(release))
    assert pairs.state == "blind" and "exact" not in counts(pairs, "plain")
    for dialect in ("slot7", "slot8", "sglang-map2", "vllm-map5"):
        found = cell(committed, dialect, dynamo(release))
        assert set(counts(found, "byte-hashes")) <= {"rejected", "sibling-lost"}
        assert counts(found, "unknown-tag").get("sibling-lost", 0) >= 1


def test_the_replay_framing_that_each_dynamo_takes(committed: Matrix) -> None:
    def passed(release: str) -> set[str]:
        found = committed.behaviours[dynamo(release)]
        return {b.id for b in found if b.id.startswith("replay-") and b.verdict is Verdict.PASS}

    assert passed("1.2.1") == passed("1.3.1") == {"replay-seq-payload"}
    assert passed("1.4.2") == {"replay-topic-seq-payload"}
    assert passed("1.6.1") == {"replay-seq-payload", "replay-topic-seq-payload"}
    for release in (*OLD, *SALTED):
        (restart,) = (b for b in committed.behaviours[dynamo(release)] if b.id == "restart")
        assert restart.verdict is Verdict.FAIL


def test_aibrix_takes_the_wrong_end_of_a_byte_hash(committed: Matrix) -> None:
    column = next(column for column in committed.consumers if column.name == "aibrix")
    row = next(row for row in cell(committed, "slot9", column.id).rows if row.feature == "byte-hashes")
    (wrong,) = (e for e in row.evidence if e.verdict is AnswerVerdict.WRONG)
    digest = golden.load(wrong.vector).meaning["events"][0]["block_hashes"][0].removeprefix("bytes:")  # type: ignore[index]
    assert digest[:16] in wrong.differences[0].got and digest[-16:] not in wrong.differences[0].got


def test_the_examples_read_everything(committed: Matrix) -> None:
    examples = [column for column in committed.consumers if column.group == "example"]
    assert {column.language for column in examples} >= {"Python", "Go", "Rust", "JavaScript"}
    for column in examples:
        states = {c.state for c in committed.cells if c.consumer == column.id}
        assert states == {"reads"}, column.id


def test_a_run_of_today_gives_the_committed_cells(committed: Matrix) -> None:
    testee = ROOT / "conformance" / "testees" / "python-kvwire" / "testee.py"
    fresh = assemble([judge([sys.executable, str(testee)], jobs=2)])
    assert matrix_json.changes(committed, fresh) == []


def test_every_subject_is_in_the_committed_matrix(committed: Matrix) -> None:
    assert len(committed.consumers) == len(matrix_runs.subjects())
