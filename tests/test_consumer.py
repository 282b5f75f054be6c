"""Judging consumers from end to end: the reference testee, the faulty ones, the reports, the command, the specification."""

from __future__ import annotations

import io
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import jsonschema
import msgspec
import pytest
from referencing import Registry, Resource
from rich.console import Console
from typer.testing import CliRunner

import kvwire
from kvwire.errors import UsageError
from kvwire.neutral_json import to_json as neutral
from kvwire_conform.cli import app
from kvwire_conform.consumer import Known, Selection, cases_of, conclude, judge, judge_local
from kvwire_conform.consumer_generated import generated, payload_of
from kvwire_conform.consumer_model import (
    AnswerVerdict,
    Behaviour,
    Consumer,
    ConsumerReport,
    Difference,
    Judgement,
)
from kvwire_conform.golden import list_vectors, load
from kvwire_conform.model import Verdict
from kvwire_conform.reports.consumer_causes import causes
from kvwire_conform.reports.consumer_json import from_json, to_json
from kvwire_conform.reports.consumer_junit import to_junit
from kvwire_conform.reports.consumer_progress import ConsumerProgress
from kvwire_conform.reports.consumer_terminal import EXITS, render
from kvwire_conform.siblings import alone
from kvwire_conform.testee import Limits
from kvwire_conform.testee_lines import Answer, Request
from tests.conftest import ROOT

REFERENCE = [sys.executable, str(ROOT / "conformance/testees/python-kvwire/testee.py")]
BAD = str(ROOT / "tests/bad_testees/bad.py")
LOSSY, EXACT, WRONG = AnswerVerdict.LOSSY, AnswerVerdict.EXACT, AnswerVerdict.WRONG
SCHEMAS = ROOT / "spec" / "schema"


def bad(how: str) -> list[str]:
    return [sys.executable, BAD, how]


def judged(how: str, *only: str, **more: Any) -> ConsumerReport:
    return judge(bad(how), selection=Selection(only=only), limits=Limits(answer=30.0), **more)


def by_id(report: ConsumerReport) -> dict[str, Judgement]:
    return {one.id: one for one in report.judgements}


# The reference -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reading", ["any", "told", "strict"])
def test_kvwire_reads_every_vector_and_what_an_engine_makes_exactly(reading: str) -> None:
    report = judge([*REFERENCE, "--reading", reading], selection=Selection(seed=11, batches=12), jobs=2)
    assert [one for one in report.judgements if one.verdict is not EXACT] == []
    assert (report.verdict, report.exit_code, report.advice, report.not_run) == (Verdict.PASS, 0, [], [])
    asked = {one.id for one in report.judgements}
    for row in list_vectors():
        needed = load(row.id).reading
        wanted = {"any": needed == "any", "told": needed != "strict", "strict": row.dialect is not None}[reading]
        assert (row.id in asked) is wanted
    assert sum(ident.startswith("seed-11/") for ident in asked) == 12 * len(kvwire.DIALECTS)


def test_what_an_engine_makes_is_the_same_each_time_and_means_what_it_says() -> None:
    made = [list(generated(dialect, 4, 15)) for dialect in kvwire.DIALECTS]
    assert made == [list(generated(dialect, 4, 15)) for dialect in kvwire.DIALECTS]
    seen = set()
    for ident, _, payload, meaning in (one for batches in made for one in batches):
        assert neutral(kvwire.decode(payload)) == meaning
        assert payload_of(ident) == payload
        seen |= {name for event in meaning["events"] for name in event}
    assert {"cache_salt", "lora_name", "group_idx", "medium", "lookahead_token_ids"} <= seen


def test_a_function_is_judged_as_a_process_is() -> None:
    def ask(request: Request) -> Answer:
        try:
            return Answer(**neutral(kvwire.decode(request.payload, on_error="collect")))
        except kvwire.WireError as error:
            return Answer(error=str(error))

    me = Consumer(name="kvwire", version=kvwire.__version__, language="Python", dialects=("slot9",))
    report = judge_local(me, ask, selection=Selection(dialects=("9-slot",)))
    assert report.exit_code == 0
    assert {one.verdict for one in report.judgements} == {EXACT}


# What goes wrong -----------------------------------------------------------------------------------------------------


def test_a_lost_salt_is_lossy_and_required_where_it_is_claimed() -> None:
    found = by_id(judged("loses-salt", "*/salt-prefixed"))
    assert found["slot9/salt-prefixed"].verdict is LOSSY
    assert found["slot9/salt-prefixed"].differences == (
        Difference(where="events[0].cache_salt", expected='"tenant-a"', got="nothing"),
    )
    assert {one.dialect for one in found.values() if one.required} == {"slot9", "vllm-map5"}
    assert {one.verdict for one in found.values()} == {LOSSY}


def test_swapped_slots_are_wrong_with_both_values() -> None:
    found = by_id(judged("swaps-slots", "slot9/lora-id-7"))["slot9/lora-id-7"]
    assert found.verdict is WRONG
    assert {(one.where, one.expected, one.got) for one in found.differences} == {
        ("events[0].block_size", "4", "7"),
        ("events[0].lora_id", "7", "4"),
    }


def test_a_refused_batch_is_asked_again_event_by_event() -> None:
    found = by_id(judged("drops-siblings", "slot9/unknown-tag-*", "slot9/bad-tag-int", "slot9/lora-id-7"))
    between = found["slot9/unknown-tag-between"]
    assert between.verdict is AnswerVerdict.SIBLING_LOST
    assert between.said == "unknown variant, expected BlockStored"
    assert between.note == ("events[1] (tag 'BlockMoved') cost events[0], events[2], which are read when sent alone")
    assert found["slot9/bad-tag-int"].verdict is AnswerVerdict.SIBLING_LOST
    assert "events[1] (bad-tag) cost events[0], events[2]" in found["slot9/bad-tag-int"].note
    assert found["slot9/unknown-tag-alone"].verdict is AnswerVerdict.REJECTED
    assert found["slot9/lora-id-7"].verdict is AnswerVerdict.REJECTED


def test_the_culprit_of_a_valid_batch_is_found_by_asking() -> None:
    report = judge(bad("drops-siblings"), selection=Selection(dialects=("slot9",), seed=2, batches=8))
    assert all(one.verdict is EXACT for one in report.judgements if one.id.startswith("seed-"))

    def ask(request: Request) -> Answer:
        if b"AllBlocksCleared" in request.payload:
            return Answer(error="no clears here")
        return Answer(**neutral(kvwire.decode(request.payload, on_error="collect")))

    me = Consumer(name="me", version="1", language="Python", dialects=("slot9",))
    found = by_id(judge_local(me, ask, selection=Selection(only=("slot9/batch-mixed",))))["slot9/batch-mixed"]
    assert found.verdict is AnswerVerdict.SIBLING_LOST
    assert re.fullmatch(r"events\[\d\] \(no clears here\) cost events\[0\].* when sent alone", found.note)


def test_who_refuses_all_loses_no_siblings() -> None:
    report = judged("refuses-all", "slot9/unknown-tag-*", "slot9/batch-mixed", "slot9/bad-tag-int")
    assert {one.verdict for one in report.judgements} == {AnswerVerdict.REJECTED}
    assert by_id(report)["slot9/bad-tag-int"].note == "sent alone, none of its events is read either"


def test_what_must_be_refused_and_is_taken_is_wrong() -> None:
    found = by_id(judged("accepts-invalid", "slot9/bad-tag-int"))["slot9/bad-tag-int"]
    assert (found.verdict, found.note) == (WRONG, "it took what must be refused: events[1] (bad-tag)")


def test_hashes_as_numbers_are_garbled_and_unsupported_is_itself() -> None:
    assert by_id(judged("hash-as-number", "slot9/hash-zero"))["slot9/hash-zero"].verdict is AnswerVerdict.GARBLED
    assert {one.verdict for one in judged("unsupported", "slot9/hash-*").judgements} == {AnswerVerdict.UNSUPPORTED}


def test_what_is_never_told_is_said_once() -> None:
    report = judged("no-ts", "slot9/batch-*")
    assert report.exit_code == 0
    assert report.advice == ["it does not report ts, which was therefore not judged"]


def test_who_claims_nothing_is_inconclusive() -> None:
    report = judged("claims-nothing", "slot9/batch-*")
    assert (report.exit_code, report.verdict) == (4, Verdict.INCONCLUSIVE)
    assert report.advice[0].startswith("it claims no dialect")


# Events alone --------------------------------------------------------------------------------------------------------


def test_each_event_alone_keeps_its_bytes_and_its_frame() -> None:
    for row in list_vectors("*/batch-mixed"):
        vector = load(row.id)
        batches = alone(vector.payload)
        whole = kvwire.decode(vector.payload)
        assert len(batches) == len(whole.events) > 1
        for payload, event in zip(batches, whole.events, strict=True):
            one = kvwire.decode(payload)
            assert (one.ts, one.events, one.dp_rank) == (whole.ts, [event], whole.dp_rank)
            assert payload[0] == vector.payload[0]


def test_a_frame_at_fault_is_mended_and_what_has_no_events_gives_none() -> None:
    for ident in ("slot9/ts-nan", "slot9/ts-inf", "any/rank-str", "any/ts-array"):
        for payload in alone(load(ident).payload):
            assert len(kvwire.decode(payload).events) == 1, ident
    for ident in ("any/empty-payload", "any/batch-str", "any/events-int", "any/events-5000-nils", "any/batch-map"):
        assert alone(load(ident).payload) == []
    for row in list_vectors():
        alone(load(row.id).payload)


# Which payloads ------------------------------------------------------------------------------------------------------


def chosen(**selection: Any) -> list[str]:
    consumer = Consumer(name="n", version="1", language="C", dialects=("slot9", "slot6"))
    return [case.id for case in cases_of(consumer, Selection(**selection)).chosen]


def test_a_selection() -> None:
    assert chosen(only=("slot9/salt-prefixed",)) == ["slot9/salt-prefixed"]
    assert len(chosen(only=("salt-prefixed",))) > 30
    assert {ident.split("/")[0] for ident in chosen(dialects=("9-slot", "any"))} == {"slot9", "any"}
    assert {load(ident).kind for ident in chosen(kind="invalid")} == {"invalid"}
    assert 0 < len(chosen(suite=1)) < len(chosen(suite=2)) <= len(chosen())
    assert chosen(only=("seed-3/*",), seed=3, batches=2) == [
        f"seed-3/{d}/{n:03}" for d in ("slot9", "slot6") for n in (0, 1)
    ]


@pytest.mark.parametrize(
    ("selection", "problem"),
    [
        ({"only": ("slot9/clearde",)}, "near it are slot9/cleared"),
        ({"suite": 99}, "no golden suite 99"),
        ({"dialects": ("slot99",)}, "slot99"),
        ({"only": ("slot9/*",), "dialects": ("slot6",)}, "no payload is left to judge"),
    ],
)
def test_a_selection_of_nothing(selection: dict[str, Any], problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        chosen(**selection)


# Known failures ------------------------------------------------------------------------------------------------------


def test_known_failures_pass_and_unexpected_passes_do_not(tmp_path: Path) -> None:
    path = tmp_path / "known.txt"
    path.write_text("slot9/salt-prefixed* lossy\n", encoding="utf-8")
    selection = Selection(dialects=("slot9",))
    report = judge(bad("loses-salt"), selection=selection, known=Known((path,)))
    assert (report.exit_code, report.stale) == (0, [])
    assert sum(one.known for one in report.judgements) == 5
    report = judge(bad("right"), selection=selection, known=Known((path,)))
    assert report.exit_code == 1
    assert len(report.stale) == 1
    assert "narrow the entry or remove it" in report.stale[0]


def test_a_file_that_was_written_makes_the_next_run_pass(tmp_path: Path) -> None:
    path = tmp_path / "known.txt"
    selection = Selection(only=("*/salt-*", "*/cleared"))
    first = judge(bad("loses-salt"), selection=selection, known=Known(write=path))
    second = judge(bad("loses-salt"), selection=selection, known=Known((path,)))
    assert first.exit_code == second.exit_code == 0
    assert first.judgements == second.judgements
    assert path.read_text(encoding="utf-8").splitlines() == sorted(path.read_text(encoding="utf-8").splitlines())
    assert judge(bad("loses-salt"), selection=selection).exit_code == 1


def test_two_entries_about_one_payload_are_found_before_the_run(tmp_path: Path) -> None:
    path = tmp_path / "known.txt"
    path.write_text("slot9/* lossy\nslot9/cleared wrong\n", encoding="utf-8")
    with pytest.raises(UsageError, match="are both about slot9/cleared"):
        judge(bad("right"), selection=Selection(only=("slot9/cleared",)), known=Known((path,)))


# Reports -------------------------------------------------------------------------------------------------------------

HOSTILE = "\x1b[31m<&>\"'\x00\ud800\n]]> [bold] \u202e"


def judgement(ident: str = "slot9/a", verdict: AnswerVerdict = EXACT, **more: Any) -> Judgement:
    defaults: dict[str, Any] = {"dialect": ident.split("/")[0], "kind": "valid", "required": True}
    return Judgement(id=ident, verdict=verdict, **{**defaults, **more})


def report(*judgements: Judgement, **more: Any) -> ConsumerReport:
    defaults: dict[str, Any] = {
        "tool": "kvwire-conform 0",
        "mode": "consumer",
        "subject": ["node", "testee.mjs"],
        "consumer": Consumer(name="peer", version="1.2", language="Rust", dialects=("slot8", "slot9")),
        "suite": 1,
        "started": 1.7e9,
        "seconds": 2.0,
        "rerun": "kvwire-conform consumer --only ID -v -- node testee.mjs",
    }
    found = ConsumerReport(judgements=list(judgements), **{**defaults, **more})
    conclude(found)
    return found


def samples() -> dict[str, ConsumerReport]:
    lost = (Difference(where="events[0].cache_salt", expected='"tenant-a"', got="nothing"),)
    return {
        "good": report(judgement()),
        "mixed": report(
            judgement("slot8/a"),
            judgement("slot8/salt", AnswerVerdict.SIBLING_LOST, said="invalid type: map, expected a string", note="why"),
            judgement("slot9/salt", LOSSY, differences=lost, known=True),
            judgement("slot9/salt-2", LOSSY, differences=lost),
            judgement("slot9/dead", AnswerVerdict.CRASHED, said="killed by SIGSEGV\nat decode"),
            judgement("slot10/a", AnswerVerdict.REJECTED, required=False, said="no"),
            judgement("any/a", WRONG, dialect=None, required=False, differences=lost),
        ),
        "stale": report(judgement(), stale=["known.txt:1: x lossy: it is exact; remove the entry"]),
        "given up": report(judgement(verdict=AnswerVerdict.HUNG), not_run=["slot9/b", "slot9/c"], advice=["it broke"]),
        "not run": report(judgement(), not_run=["slot9/b"]),
        "dead": report(consumer=None, advice=["node cannot be run: No such file or directory"]),
        "interrupted": report(judgement(), interrupted=True),
        "hostile": report(
            judgement(HOSTILE, WRONG, dialect="slot9", said=HOSTILE, note=HOSTILE, differences=(Difference(where=HOSTILE, expected=HOSTILE, got=HOSTILE),)),
            subject=[HOSTILE],
            consumer=Consumer(name=HOSTILE, version=HOSTILE, language=HOSTILE, dialects=("slot9",), notes=HOSTILE),
            stale=[HOSTILE],
            advice=[HOSTILE],
            rerun=f"{HOSTILE} ID",
        ),
        "router": report(
            judgement(),
            mode="router",
            behaviours=[
                Behaviour(id="gap", text="a batch is lost", verdict=Verdict.FAIL, found="it went on", evidence=("log",)),
                Behaviour(id="replay", text="it asks for it", verdict=Verdict.INCONCLUSIVE, found="nothing was asked"),
            ],
        ),
    }  # fmt: skip


SAMPLES = samples()


def schema(name: str) -> jsonschema.Draft202012Validator:
    loaded = {path.name: json.loads(path.read_text(encoding="utf-8")) for path in SCHEMAS.glob("*.json")}
    registry: Registry[Any] = Registry().with_resources(
        (one["$id"], Resource.from_contents(one)) for one in loaded.values()
    )
    jsonschema.Draft202012Validator.check_schema(loaded[name])
    return jsonschema.Draft202012Validator(loaded[name], registry=registry)


@pytest.mark.parametrize("name", SAMPLES)
def test_json_is_as_the_schema_has_it_and_comes_back(name: str) -> None:
    data = to_json(SAMPLES[name])
    schema("consumer-report.schema.json").validate(json.loads(data))
    assert to_json(from_json(data)) == data
    assert name == "hostile" or from_json(data) == SAMPLES[name]


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b"\xff", b'{"report": 2}'])
def test_what_is_no_report_says_so(data: bytes) -> None:
    with pytest.raises(ValueError, match="not a report"):
        from_json(data)


def test_a_later_report_is_refused() -> None:
    later = to_json(msgspec.structs.replace(SAMPLES["good"], report=2))
    with pytest.raises(ValueError, match="version 2; this release reads up to version 1"):
        from_json(later)


@pytest.mark.parametrize(
    ("where", "struct"),
    [
        ((), ConsumerReport),
        (("$defs", "consumer"), Consumer),
        (("$defs", "judgement"), Judgement),
        (("$defs", "difference"), Difference),
        (("$defs", "behaviour"), Behaviour),
    ],
)
def test_the_schema_has_the_fields_of_the_model(where: tuple[str, ...], struct: Any) -> None:
    found = json.loads((SCHEMAS / "consumer-report.schema.json").read_text(encoding="utf-8"))
    for step in where:
        found = found[step]
    assert set(found["properties"]) == set(struct.__struct_fields__)
    optional = (
        set(struct.__struct_fields__[-len(struct.__struct_defaults__) :]) if struct.__struct_defaults__ else set()
    )
    fields = set(struct.__struct_fields__) - (optional if struct.__struct_config__.omit_defaults else set())
    assert set(found["required"]) == {msgspec.structs.fields(struct)[0].name} | fields or not where
    assert found["additionalProperties"] is False
    assert all("description" in row for row in found["properties"].values())


def test_the_schema_has_the_verdicts_and_exit_codes_of_the_model() -> None:
    found = json.loads((SCHEMAS / "consumer-report.schema.json").read_text(encoding="utf-8"))
    assert found["$defs"]["judgement"]["properties"]["verdict"]["enum"] == [one.value for one in AnswerVerdict]
    assert set(found["properties"]["exit_code"]["enum"]) == set(EXITS) - {2}
    assert {one.verdict.value for one in SAMPLES.values()} <= set(found["properties"]["verdict"]["enum"])


@pytest.mark.parametrize("name", SAMPLES)
def test_junit_is_red_whenever_the_exit_code_is_not_0(name: str) -> None:
    found = SAMPLES[name]
    root = ET.fromstring(to_junit(found))
    assert bool(root.findall(".//failure") + root.findall(".//error")) is (found.exit_code != 0)
    for suite in root:
        cases = suite.findall("testcase")
        assert suite.get("tests") == str(len(cases))
        for tag, key in (("failure", "failures"), ("error", "errors"), ("skipped", "skipped")):
            assert suite.get(key) == str(len(suite.findall(f"testcase/{tag}")))


def test_junit_has_a_suite_a_dialect_and_skips_what_fails_nobody() -> None:
    root = ET.fromstring(to_junit(SAMPLES["mixed"]))
    assert [suite.get("name") for suite in root] == ["slot8", "slot9", "slot10", "any"]
    told = {case.get("name"): [(one.tag, one.get("message")) for one in case] for case in root.iter("testcase")}
    assert told["slot8/a"] == []
    assert told["slot9/salt"] == [
        ("skipped", 'known failure: lossy: events[0].cache_salt: expected "tenant-a"; got nothing')
    ]
    assert told["slot9/dead"] == [("error", "crashed: killed by SIGSEGV")]
    assert told["slot10/a"] == [("skipped", "not claimed: rejected: no")]
    text = root.findtext(".//testcase[@name='slot8/salt']/failure")
    assert text is not None
    assert "rerun: kvwire-conform consumer --only slot8/salt -v -- node testee.mjs" in text


def shown(found: ConsumerReport, width: int = 80, *, colour: bool = False, verbose: int = 0) -> str:
    out = io.StringIO()
    console = Console(
        file=out, width=width, force_terminal=colour, color_system="truecolor" if colour else None, legacy_windows=False
    )
    render(found, console, verbose=verbose)
    return out.getvalue()


@pytest.mark.parametrize("verbose", [0, 1, 2])
@pytest.mark.parametrize("width", [20, 50, 80, 120])
@pytest.mark.parametrize("name", SAMPLES)
def test_no_line_is_wider_than_the_console_and_none_can_steer_it(name: str, width: int, verbose: int) -> None:
    text = shown(SAMPLES[name], width, verbose=verbose)
    assert all(len(line) <= width for line in text.splitlines())
    assert text.isascii()
    assert "\x1b" not in text
    coloured = re.sub(r"\x1b\[[0-9;]*m", "", shown(SAMPLES[name], width, colour=True, verbose=verbose))
    assert coloured.replace("\n", "").isprintable()
    assert f"exit {SAMPLES[name].exit_code}" in text


def test_the_terminal_tells_what_a_person_needs() -> None:
    text = " ".join(shown(SAMPLES["mixed"]).replace(" \\\n", " ").split())
    for part in (
        "FAIL: peer 1.2 exactly reads none of the 2 dialects that it claims",
        "slot9 2 lossy (1 known), 1 crashed",
        "- slot10 1 rejected not claimed",
        "LOSSY cache_salt 1 payload in slot9 1",
        "a tenant's salted blocks are taken for anybody's",
        'field events[0].cache_salt expected "tenant-a" got nothing',
        "rerun kvwire-conform consumer --only slot9/salt-2 -v -- node testee.mjs",
        "CRASHED killed by SIGSEGV 1 payload",
        "says invalid type: map, expected a string note why",
        "known failures 1 not exact, reported only; -v shows them",
        "exit 1: it fails what it claims",
    ):
        assert part in text, part


def test_causes_put_together_what_is_alike() -> None:
    lost = [Difference(where=f"events[{n}].medium", expected='"CPU"', got="nothing") for n in (0, 1)]
    found = causes(
        [
            judgement("slot8/a", LOSSY, differences=(lost[0],)),
            judgement("slot9/a", LOSSY, differences=(lost[1],)),
            judgement("slot9/b", AnswerVerdict.REJECTED, said="invalid type: integer `7` at 0x12345678"),
            judgement("slot9/c", AnswerVerdict.REJECTED, said="invalid type: integer `8` at 0x87654321"),
            judgement("slot9/d"),
        ]
    )
    assert [(one.verdict, len(one.judgements)) for one in found] == [(AnswerVerdict.REJECTED, 2), (LOSSY, 2)]
    assert found[1].title == "medium"
    assert found[0].title == "invalid type: integer … at …"
    assert found[1].dialects == [("slot8", 1), ("slot9", 1)]


def test_a_payload_belongs_to_the_field_that_explains_most() -> None:
    def lost(ident: str, *names: str) -> Judgement:
        places = (Difference(where=f"events[0].{name}", expected="1", got="nothing") for name in names)
        return judgement(ident, LOSSY, differences=tuple(places))

    found = causes(
        [lost("slot9/a", "lora_id"), lost("slot9/b", "lora_id", "medium"), lost("slot9/c", "medium", "lora_id")]
    )
    assert [(one.title, len(one.judgements), dict(one.beside)) for one in found] == [("lora_id", 3, {"medium": 2})]


def test_what_ends_the_process_comes_first() -> None:
    took = "it took what must be refused: events[1] (bad-tag)"
    extra = (Difference(where="events[1]", expected="nothing", got="{}"),)
    found = causes(
        [
            judgement("slot9/a", WRONG, note=took, differences=extra),
            judgement("slot9/b", WRONG, note=took, differences=extra),
            judgement("slot9/c", AnswerVerdict.CRASHED, said="killed by SIGSEGV"),
        ]
    )
    assert [one.title for one in found] == ["killed by SIGSEGV", "took what must be refused: bad-tag"]


@pytest.mark.parametrize(("width", "words"), [(80, "12 of 3,494  2 not exact"), (30, "12 of 3,494  2 not exact")])
def test_the_progress_line(width: int, words: str) -> None:
    progress = ConsumerProgress(Console(file=io.StringIO(), width=width, force_terminal=True))
    assert progress.line().plain.startswith("waiting for its hello")
    progress.update(12, 3494, 2)
    assert words in progress.line().plain
    assert ("─" in progress.line().plain) is (width >= 60)


# The command ---------------------------------------------------------------------------------------------------------


def run(*args: str) -> tuple[int, str]:
    found = CliRunner().invoke(app, ["consumer", *args], catch_exceptions=True)
    if found.exception is not None and not isinstance(found.exception, SystemExit):
        raise found.exception
    return found.exit_code, found.output


def test_the_command_judges_and_writes_reports(tmp_path: Path) -> None:
    out, junit = tmp_path / "r.json", tmp_path / "r.xml"
    code, text = run(
        "--only", "salt-prefixed", "--json", str(out), "--junit", str(junit), "-j", "2", "--", *bad("loses-salt")
    )
    assert code == 1
    assert "LOSSY  cache_salt" in text
    written = from_json(out.read_bytes())
    assert written.exit_code == 1
    assert written.rerun == f"kvwire-conform consumer --only ID -v -- {shlex.join(bad('loses-salt'))}"
    assert ET.fromstring(junit.read_text(encoding="utf-8")).find(".//failure") is not None


def test_the_rerun_command_shows_one_payload_with_its_bytes() -> None:
    code, text = run("--only", "slot9/salt-prefixed", "-v", "--", *bad("loses-salt"))
    assert code == 1
    assert "1 payload: 1 lossy" in text
    assert "93cb3ff8" in text
    assert "8 extra_keys" in text


def test_json_to_standard_output_is_json_alone() -> None:
    code, text = run("--only", "slot9/cleared", "--json", "-", "--", *REFERENCE)
    assert code == 0
    assert json.loads(text)["exit_code"] == 0


@pytest.mark.parametrize("how", ["right", "garbage", "leaves-badly", "hello-exit"])
def test_smoke(how: str) -> None:
    code, text = run("--smoke", "--", *bad(how), "4")
    assert code == {"right": 0, "garbage": 1, "leaves-badly": 1, "hello-exit": 3}[how]
    assert {
        "right": "The protocol is kept.",
        "garbage": "thinking ...",
        "leaves-badly": "exit code 9",
        "hello-exit": "no such model",
    }[how] in text


# The specification ---------------------------------------------------------------------------------------------------

PAGE = (ROOT / "spec" / "conformance.md").read_text(encoding="utf-8")


def test_the_testee_in_the_specification_is_the_one_in_the_repository() -> None:
    shown_there = re.findall(r"```python\n(.*?)```", PAGE, re.S)
    assert shown_there == [Path(REFERENCE[1]).read_text(encoding="utf-8")]


def test_the_conversation_in_the_specification_happens_and_is_as_the_schema_has_it() -> None:
    lines = re.findall(r"^([<>]) (\{.*\})$", PAGE, re.M)
    assert [sign for sign, _ in lines] == list("<><><><")[: len(lines)]
    for _, line in lines:
        schema("testee.schema.json").validate(json.loads(line))
    asked = "".join(f"{line}\n" for sign, line in lines if sign == ">")
    done = subprocess.run(REFERENCE, input=asked, capture_output=True, text=True, check=True)
    said = [json.loads(line) for line in done.stdout.splitlines()]
    told = [json.loads(line) for sign, line in lines if sign == "<"]
    assert {**said[0], "dialects": told[0]["dialects"]}.items() >= told[0].items()
    for real, written in zip(said[1:], told[1:], strict=True):
        assert real["id"] == written["id"]
        assert ("error" in real) is ("error" in written)
        assert "error" in real or real == written


def test_every_line_of_the_reference_is_as_the_schema_has_it() -> None:
    validator = schema("testee.schema.json")
    asked = [{"id": row.id, "topic": "", "seq": 0, "payload": base64_of(row.id)} for row in list_vectors("slot12/*")]
    lines = "".join(json.dumps(one) + "\n" for one in asked)
    done = subprocess.run(REFERENCE, input=lines, capture_output=True, text=True, check=True)
    for line in done.stdout.splitlines():
        validator.validate(json.loads(line))
    assert not validator.is_valid({"id": "1", "events": [], "error": "both"})
    assert not validator.is_valid({"id": "1"})


def base64_of(ident: str) -> str:
    import base64

    return base64.b64encode(load(ident).payload).decode()


def test_the_specification_names_every_field_verdict_option_and_code() -> None:
    for kind in (kvwire.BlockStored, kvwire.BlockRemoved, kvwire.AllBlocksCleared):
        for name in kind.__struct_fields__:
            assert f"`{name}`" in PAGE, name
    for verdict in AnswerVerdict:
        assert f"| `{verdict.value}` |" in PAGE
    for code in EXITS:
        assert f"| {code} |" in PAGE
    limits = Limits()
    for words in (
        f"| {limits.start:g} s",
        f"| {limits.answer:g} s",
        f"| {limits.leave:g} s",
        f"| {limits.breakdowns} |",
    ):
        assert words in PAGE
    help_text = run("--help")[1]
    for option in re.findall(r"`(--[a-z-]+)", PAGE):
        assert option in help_text, option


def test_who_dies_of_a_signal_after_the_last_answer_is_charged_with_it() -> None:
    report = judged("leaves-by-signal", "slot9/salt-prefixed", "slot9/stored-chain")
    last = report.judgements[-1]
    assert (last.verdict, last.note) == (AnswerVerdict.CRASHED, "after it had answered")
    assert report.judgements[0].verdict is not AnswerVerdict.CRASHED
