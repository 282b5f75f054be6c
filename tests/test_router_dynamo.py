"""NVIDIA Dynamo's KV indexer, started for real, and judged."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kvwire.errors import UsageError
from kvwire_conform.cli import app
from kvwire_conform.consumer import Known, Selection
from kvwire_conform.consumer_model import AnswerVerdict, ConsumerReport, Judgement
from kvwire_conform.golden import load
from kvwire_conform.model import Verdict
from kvwire_conform.outcome import Exit
from kvwire_conform.reports.consumer_json import from_json
from kvwire_conform.routers.behaviours import BEHAVIOURS
from kvwire_conform.routers.dynamo import CLAIMED, judge_dynamo
from kvwire_conform.routers.errors import RouterError
from kvwire_conform.routers.install import package_folder
from kvwire_conform.routers.process import IndexerProcess
from kvwire_conform.routers.run import PACKAGE, RouterRun
from kvwire_conform.routers.vectors import judge_vector
from tests.real.catalog import REQUIRE

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("dynamo")]

RELEASE = "1.6.1"
KNOWN = Path(__file__).resolve().parent.parent / "conformance" / "testees" / "known-failures" / f"dynamo-{RELEASE}.txt"
CASES = (
    "*/batch-mixed",
    "*/unknown-tag-between",
    "*/salt-beside-unsalted",
    "slot8/hash-bytes",
    "slot8/stored-chain",
    "slot9/salt-prefixed",
    "dynamo/salt-in-metadata-only",
    "vllm-map5/stored-no-tokens",
    "vllm-map5/tokens-bigram",
    "any/batch-of-two",
    "any/images-alike",
)


@pytest.fixture(scope="module")
def package() -> Path:
    """The release's package; without the cache and the package index, a skip, or a failure where it has to be there."""
    pytest.importorskip("xxhash")
    try:
        return package_folder(PACKAGE, RELEASE)
    except RouterError as error:
        if error.code not in ("router-unreachable", "no-pip") or os.environ.get(REQUIRE) == "1":
            raise
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def report(package: Path) -> ConsumerReport:
    return judge_dynamo(RELEASE, selection=Selection(only=CASES), known=Known((KNOWN,)))


def verdict_of(report: ConsumerReport, ident: str) -> Judgement:
    return next(one for one in report.judgements if one.id == ident)


def test_the_release_is_as_its_known_failures_say(report: ConsumerReport) -> None:
    assert (report.stale, report.not_run, report.exit_code) == ([], [], Exit.OK), report.advice
    assert len(report.judgements) >= 40
    assert {one.dialect for one in report.judgements} == {*CLAIMED, "slot6-b2", None}


@pytest.mark.parametrize(
    ("ident", "verdict"),
    [
        ("slot7/batch-mixed", AnswerVerdict.EXACT),
        ("slot8/stored-chain", AnswerVerdict.EXACT),
        ("slot8/salt-beside-unsalted", AnswerVerdict.EXACT),
        ("slot9/salt-prefixed", AnswerVerdict.EXACT),
        ("vllm-map5/tokens-bigram", AnswerVerdict.EXACT),
        ("any/images-alike", AnswerVerdict.EXACT),
        ("dynamo/salt-in-metadata-only", AnswerVerdict.LOSSY),
        ("vllm-map5/unknown-tag-between", AnswerVerdict.SIBLING_LOST),
        ("slot8/hash-bytes", AnswerVerdict.REJECTED),
        ("any/batch-of-two", AnswerVerdict.REJECTED),
        ("slot6-b2/batch-mixed", AnswerVerdict.REJECTED),
        ("vllm-map5/stored-no-tokens", AnswerVerdict.UNSUPPORTED),
    ],
)
def test_each_payload_gets_its_verdict(report: ConsumerReport, ident: str, verdict: AnswerVerdict) -> None:
    assert verdict_of(report, ident).verdict is verdict, verdict_of(report, ident)


def test_a_verdict_comes_with_the_field_and_the_routers_own_words(report: ConsumerReport) -> None:
    lossy = verdict_of(report, "dynamo/salt-in-metadata-only")
    assert [one.where for one in lossy.differences] == ["events[0].cache_salt"]
    assert "unknown variant `BlockMoved`" in verdict_of(report, "slot8/unknown-tag-between").said
    assert "BlockHashValue" in verdict_of(report, "slot8/hash-bytes").said
    assert "tuple of size 3" in verdict_of(report, "any/batch-of-two").said
    placeholder = verdict_of(report, "vllm-map5/stored-no-tokens")
    assert not placeholder.required
    assert "block_size 0" in placeholder.note


def test_the_behaviours_in_a_stream_are_found(report: ConsumerReport) -> None:
    found = {one.id: one for one in report.behaviours}
    assert list(found) == list(BEHAVIOURS)
    assert {ident: one.verdict for ident, one in found.items()} == {
        "gap-no-replay": Verdict.WARN,
        "replay-seq-payload": Verdict.PASS,
        "replay-topic-seq-payload": Verdict.PASS,
        "replay-end-lost": Verdict.WARN,
        "restart": Verdict.WARN,
        "duplicate": Verdict.PASS,
    }
    assert any("Gap detected" in line for line in found["gap-no-replay"].evidence)
    assert "blocks 1, 2, 3, 4" in found["restart"].found


def test_a_failure_that_is_not_known_fails_the_run(package: Path) -> None:
    selection = Selection(only=("slot8/hash-bytes", "slot8/stored-chain"))
    report = judge_dynamo(RELEASE, selection=selection, behaviours=False)
    assert (report.verdict, report.exit_code) == (Verdict.FAIL, Exit.FAILURE)


def test_invalid_payloads_are_judged_when_asked_for(package: Path) -> None:
    selection = Selection(only=("any/batch-*", "any/event-int", "any/nested-arrays"), kind="invalid")
    report = judge_dynamo(RELEASE, selection=selection, behaviours=False)
    assert verdict_of(report, "any/batch-map").verdict is AnswerVerdict.EXACT
    assert verdict_of(report, "any/nested-arrays").verdict is AnswerVerdict.EXACT
    assert verdict_of(report, "any/event-int").verdict is AnswerVerdict.SIBLING_LOST


def test_a_running_router_is_judged_and_left_as_it_was(package: Path) -> None:
    with IndexerProcess(package) as running:
        report = judge_dynamo(
            url=running.client.url,
            selection=Selection(only=("slot8/salt", "slot8/hash-bytes", "slot8/unknown-tag-between")),
            behaviours=False,
        )
        assert [one.verdict for one in report.judgements] == [
            AnswerVerdict.REJECTED,
            AnswerVerdict.EXACT,
            AnswerVerdict.SIBLING_LOST,
        ]
        assert report.subject == [running.client.url]
        assert running.client.dump() == {}


def test_a_crash_is_the_verdict_of_its_payload_and_the_next_one_is_judged(package: Path) -> None:
    with RouterRun(RELEASE) as run:
        assert run.process is not None
        os.kill(run.process.pid, signal.SIGABRT)
        crashed = judge_vector(run, load("slot8/salt"))
        assert crashed.verdict is AnswerVerdict.CRASHED
        assert "SIGABRT" in crashed.said
        assert judge_vector(run, load("slot8/salt")).verdict is AnswerVerdict.EXACT


def test_nobody_there_is_exit_3() -> None:
    report = judge_dynamo(url="http://127.0.0.1:9", selection=Selection(only=("slot8/salt",)))
    assert (report.verdict, report.exit_code) == (Verdict.ERROR, Exit.UNREACHABLE)
    assert "is a KV indexer there?" in report.advice[0]


def broken_release(cache: Path, version: str = "9.9.9") -> None:
    package = cache / "routers" / f"{PACKAGE}-{version}" / "dynamo"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "_core.py").write_text("raise RuntimeError('this chip is too old')\n")


def test_a_release_that_does_not_start_is_exit_3_with_its_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken_release(tmp_path)
    monkeypatch.setenv("KVWIRE_CACHE", str(tmp_path))
    report = judge_dynamo("9.9.9", selection=Selection(only=("slot8/salt",)))
    assert report.exit_code == Exit.UNREACHABLE
    assert "did not start: exit code 1" in report.advice[0]
    assert any("this chip is too old" in line for line in report.advice)


@pytest.mark.parametrize("release", ["1.6.1; rm", "", "v1", "../x"])
def test_a_release_that_is_no_version_is_refused(release: str) -> None:
    with pytest.raises(RouterError, match="is no version"):
        package_folder(PACKAGE, release)


def test_there_are_no_generated_payloads_for_a_router() -> None:
    with pytest.raises(UsageError, match="no seed"):
        judge_dynamo(RELEASE, selection=Selection(seed=3))


# The command --------------------------------------------------------------------------------------------------------------


def test_the_command_compares_releases(package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken_release(tmp_path)
    (tmp_path / "routers" / package.name).symlink_to(package)
    monkeypatch.setenv("KVWIRE_CACHE", str(tmp_path))
    out = tmp_path / "reports.json"
    done = CliRunner().invoke(
        app,
        [
            *("router", "dynamo", "--release", RELEASE, "--release", "9.9.9", "--only", "slot8/salt*"),
            *("--kind", "valid", "--no-behaviours", "--json", str(out), "--junit", f"{tmp_path}/{{release}}.xml"),
        ],
    )
    assert done.exit_code == Exit.UNREACHABLE, done.output
    good, bad = json.loads(out.read_text())
    assert {one["verdict"] for one in good["judgements"]} == {"exact"}
    assert (good["exit_code"], bad["exit_code"]) == (Exit.OK, Exit.UNREACHABLE)
    assert {path.name for path in tmp_path.glob("*.xml")} == {f"{RELEASE}.xml", "9.9.9.xml"}
    assert "slot8" in done.output and "could not be started" in done.output


def test_the_command_writes_one_report(package: Path) -> None:
    done = CliRunner().invoke(
        app, ["router", "dynamo", "--only", "slot8/salt", "--kind", "valid", "--no-behaviours", "--json", "-"]
    )
    assert done.exit_code == Exit.OK, done.output
    report = from_json(done.stdout)
    assert (report.mode, report.subject, report.exit_code) == ("router", [f"{PACKAGE}=={RELEASE}"], Exit.OK)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--url", "http://h", "--release", "1.6.1"], "either --release"),
        (["--json", "-", "--junit", "-"], "share standard output"),
        (["--release", "1.6.1", "--release", "1.4.2", "--junit", "x.xml"], "{release}"),
        (["--only", "nosuchvector"], "no payload is left"),
        (["--timeout", "soon"], "soon"),
    ],
)
def test_the_command_refuses_what_cannot_be(args: list[str], words: str) -> None:
    done = CliRunner().invoke(app, ["router", "dynamo", *args])
    assert isinstance(done.exception, UsageError)
    assert words in str(done.exception)
