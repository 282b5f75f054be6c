"""The renderers: what matters is there, nothing is wider than the console, no text breaks out."""

from __future__ import annotations

import io
import json
import re
from collections import Counter
from typing import Any
from xml.etree import ElementTree as ET

import jsonschema
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from kvwire_conform.judge import Judge, Told
from kvwire_conform.model import CheckResult, Evidence, Finding, Level, Report, Source, Verdict
from kvwire_conform.outcome import outcome
from kvwire_conform.recording import read_recording
from kvwire_conform.reports.facts import headline
from kvwire_conform.reports.grouping import sections, short_names
from kvwire_conform.reports.json import from_json, to_json
from kvwire_conform.reports.junit import to_junit
from kvwire_conform.reports.progress import Progress
from kvwire_conform.reports.terminal import EXITS, render
from kvwire_conform.reports.text import plain_ascii, printable, seconds, shorten, size
from kvwire_conform.reports.wrapping import cut, wrap
from tests.conftest import CAPTURES, ROOT

SCHEMA = json.loads((ROOT / "spec/schema/report.schema.json").read_text(encoding="utf-8"))
WIDTHS = (50, 80, 160)
ENDPOINT = "tcp://127.0.0.1:5557"
HOSTILE = "\x1b[31m\x07[red]bold[/red] \u202egnp.exe\ud800 \x00\r\n\x9b2J :smile: </failure>]]> & \U0010ffff"


# Samples ------------------------------------------------------------------------------------------------------------


def source(name: str = ENDPOINT, **changes: Any) -> Source:
    told: dict[str, Any] = {
        "dialect": "slot8",
        "candidates": ["slot8"],
        "releases": "SGLang 0.5.18–0.5.19",
        "messages": 1234,
        "payload_bytes": 3_400_000,
        "events": {"BlockStored": 2345, "BlockRemoved": 456, "AllBlocksCleared": 1},
        "first_seq": 0,
        "last_seq": 1236,
        "lost": 3,
        "replayed": 100,
        "restarts": 1,
        "topic": "kv-events",
        "dp_rank": 0,
        "block_sizes": {"16": 2345},
        "media": {"GPU": 2300, "CPU_PINNED": 45},
        "held": {"GPU": 1889},
        "policy": "count",
        "span": 29.8,
    }
    return Source(name=name, **{**told, **changes})


EVIDENCE = Evidence(
    seq=17,
    received=1764400000.5,
    frames=["6b762d6576656e7473", "0000000000000011", "93cb41dac30cce26f6be" + "ab" * 502],
    cut=1234,
    event_index=2,
    slots=["  0: str 'BlockStored'", "  1: array of 1 [123]", "> 7: map of 1", "  8: nil"],
)
FINDING = Finding(
    expected="nil or a string in slot 7",
    got="a map of 1",
    hint="that is how slot8 carries cache_salt; a decoder that expects lora_name there loses the batch",
    evidence=EVIDENCE,
)

CHECKS = (
    (
        "three-frames",
        Level.MUST,
        "transport.md#messages",
        "A message has exactly three frames: topic, seq and payload.",
    ),
    ("replay-framing", Level.MUST, "transport.md#replay", "A replay reply is the empty delimiter, then the parts."),
    ("replay-start", Level.MUST, "transport.md#replay", "A replay starts at the seq asked for."),
    ("replay-end-marker", Level.MUST, "transport.md#replay", "Every replay ends with the end marker."),
    ("ts-plausible", Level.SHOULD, "batch.md#timestamp", "ts is seconds since the Unix epoch."),
    ("event-shape", Level.MUST, "events.md#shape", "Every event has the slots or keys of the dialect."),
    ("event-fields-known", Level.SHOULD, "evolution.md", "An event has no slot or key that the dialect does not have."),
    ("parent-known", Level.MUST, "stream.md#parents", "The parent of a stored block was stored before it."),
    ("clear-empties", Level.MUST, "stream.md#clears", "A clear empties what it covers."),
    ("hash-recomputes", Level.MAY, "hashing.md#sglang", "A block hash can be recomputed from its tokens."),
)
VERDICTS = {
    "replay-framing": Verdict.SKIP,
    "replay-start": Verdict.SKIP,
    "replay-end-marker": Verdict.SKIP,
    "ts-plausible": Verdict.WARN,
    "event-shape": Verdict.FAIL,
    "parent-known": Verdict.ERROR,
    "clear-empties": Verdict.INCONCLUSIVE,
    "hash-recomputes": Verdict.HARNESS_ERROR,
}


def result(check: str, name: str = ENDPOINT, verdict: Verdict | None = None, **changes: Any) -> CheckResult:
    level, section, text = next(row[1:] for row in CHECKS if row[0] == check)
    verdict = verdict or VERDICTS.get(check, Verdict.PASS)
    told: dict[str, Any] = {"judged": 1204, "rerun": f"kvwire-conform producer {name} --for 30s --check {check}"}
    if verdict in (Verdict.FAIL, Verdict.WARN):
        told |= {"violations": 3, "findings": [FINDING]}
    elif verdict in (Verdict.SKIP, Verdict.INCONCLUSIVE):
        told |= {"judged": 0, "reason": "no replay endpoint; give --replay"}
    elif verdict is not Verdict.PASS:
        told |= {"reason": "the checker lost its way"}
    return CheckResult(
        id=check, source=name, level=level, section=section, text=text, verdict=verdict, **{**told, **changes}
    )


def report(*, sources: list[Source] | None = None, results: list[CheckResult] | None = None, **changes: Any) -> Report:
    told: dict[str, Any] = {
        "tool": "kvwire-conform 0.1.0",
        "mode": "producer",
        "subject": [ENDPOINT],
        "started": 1764400000.25,
        "seconds": 30.1,
        "breaks": ["array events: Infera's vLLM reader reads maps only", "a restart: Dynamo keeps the stale blocks"],
        "advice": ["give --replay to have gaps filled"],
        "verdict": Verdict.HARNESS_ERROR,
        "exit_code": 5,
    }
    return Report(
        sources=[source()] if sources is None else sources,
        results=[result(row[0]) for row in CHECKS] if results is None else results,
        **{**told, **changes},
    )


def passing() -> Report:
    return report(
        results=[result(row[0], verdict=Verdict.PASS) for row in CHECKS], verdict=Verdict.PASS, exit_code=0, breaks=[]
    )


def silent() -> Report:
    results = [result(row[0], verdict=Verdict.INCONCLUSIVE, reason="nothing seen that could show it") for row in CHECKS]
    return report(
        sources=[Source(name=ENDPOINT)],
        results=results,
        verdict=Verdict.INCONCLUSIVE,
        exit_code=4,
        breaks=[],
        advice=["connected, but silent: were events enabled (--kv-events-config)?"],
    )


def unreachable() -> Report:
    return report(sources=[], results=[], verdict=Verdict.ERROR, exit_code=3, breaks=[], advice=["is the port open?"])


def fleet(size: int = 8) -> Report:
    """Several publishers; one of them has a failure of its own, another lost messages."""
    names = [f"tcp://10.0.0.{n + 1}:5557" for n in range(size)]
    sources = [source(name, dp_rank=n, lost=7 if n == 2 else 0, restarts=0) for n, name in enumerate(names)]
    results = [
        result(row[0], name, Verdict.FAIL if row[0] == "event-shape" and n == 5 else Verdict.PASS, judged=100 + n)
        for n, name in enumerate(names)
        for row in CHECKS
    ]
    return report(subject=names, sources=sources, results=results, verdict=Verdict.FAIL, exit_code=1)


def hostile() -> Report:
    """Text from a peer that would do harm in every field that can hold some."""
    evil = msgspec.structs.replace(
        EVIDENCE, slots=[f"> {HOSTILE}", *(f"  {n}: {HOSTILE * 3}" for n in range(18))], channel=HOSTILE
    )
    finding = Finding(expected=HOSTILE, got=HOSTILE * 20, hint=HOSTILE, evidence=evil)
    bad = CheckResult(
        id=HOSTILE,
        source=HOSTILE,
        level=Level.MUST,
        section=HOSTILE,
        text=HOSTILE,
        verdict=Verdict.FAIL,
        judged=10**18,
        violations=10**17,
        findings=[finding, finding],
        reason=HOSTILE,
        rerun=f"x '{HOSTILE}",
    )
    several = [msgspec.structs.replace(bad, verdict=verdict) for verdict in Verdict]
    named = source(
        HOSTILE,
        dialect=HOSTILE,
        candidates=[HOSTILE] * 5,
        releases=HOSTILE,
        topic=HOSTILE * 100,
        events={HOSTILE: 1},
        media={HOSTILE: 1},
        held={HOSTILE: 2},
        block_sizes={HOSTILE: 1, "1": 2},
        policy=HOSTILE,
        ambiguous=[HOSTILE],
        span=float("inf"),
    )
    return report(
        tool=HOSTILE,
        mode=HOSTILE,
        subject=[HOSTILE],
        sources=[named],
        results=several,
        breaks=[HOSTILE, f"{HOSTILE}: {HOSTILE}"],
        advice=[HOSTILE * 30],
        started=float("nan"),
        seconds=1e300,
    )


SAMPLES = {
    "every-verdict": report(),
    "passing": passing(),
    "silent": silent(),
    "unreachable": unreachable(),
    "interrupted": report(interrupted=True, exit_code=130),
    "fleet": fleet(),
    "pair": fleet(2),
    "hostile": hostile(),
    "empty": Report(tool="", mode="", subject=[], started=0.0),
}


def shown(told: Report, width: int = 80, *, verbose: int = 0, terminal: bool = False, **options: Any) -> str:
    file = io.StringIO()
    console = Console(
        file=file,
        width=width,
        force_terminal=terminal,
        color_system="truecolor" if terminal else None,
        no_color=False,
        legacy_windows=False,
        **options,
    )
    render(told, console, verbose=verbose)
    return file.getvalue()


def words(text: str) -> str:
    """The text without line breaks and indents, to look for sentences in."""
    return " ".join(text.split())


# JSON ---------------------------------------------------------------------------------------------------------------


def validator() -> jsonschema.Draft202012Validator:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    return jsonschema.Draft202012Validator(SCHEMA)


@pytest.mark.parametrize("name", [name for name in SAMPLES if name not in ("hostile", "empty")])
def test_json_is_as_the_schema_has_it_and_comes_back(name: str) -> None:
    data = to_json(SAMPLES[name])
    validator().validate(json.loads(data))
    assert from_json(data) == SAMPLES[name]
    assert to_json(from_json(data)) == data


def test_equal_reports_give_equal_bytes() -> None:
    turned = report(sources=[source(events=dict(reversed(source().events.items())))])
    assert to_json(turned) == to_json(report())


def test_json_escapes_what_a_terminal_acts_on() -> None:
    text = to_json(hostile()).decode()
    assert text.replace("\n", "").isprintable()
    back = from_json(text)
    assert back.subject == [HOSTILE.replace("\ud800", "\\ud800")]
    assert back.started == 0.0


@pytest.mark.parametrize(
    ("where", "struct"),
    [
        (SCHEMA, Report),
        (SCHEMA["$defs"]["source"], Source),
        (SCHEMA["$defs"]["result"], CheckResult),
        (SCHEMA["$defs"]["finding"], Finding),
        (SCHEMA["$defs"]["evidence"], Evidence),
    ],
)
def test_the_schema_has_the_fields_of_the_model(where: dict[str, Any], struct: type[msgspec.Struct]) -> None:
    fields = list(struct.__struct_fields__)
    assert list(where["properties"]) == fields
    assert where["required"] == fields
    assert where["additionalProperties"] is False
    assert all("description" in row or "$ref" in row for row in where["properties"].values())


def test_the_schema_has_the_verdicts_levels_and_exit_codes_of_the_model() -> None:
    assert SCHEMA["$defs"]["verdict"]["enum"] == [verdict.value for verdict in Verdict]
    assert SCHEMA["$defs"]["result"]["properties"]["level"]["enum"] == [level.value for level in Level]
    assert set(SCHEMA["properties"]["exit_code"]["enum"]) == set(EXITS) - {2}


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("report",), 2),
        (("verdict",), "warn"),
        (("exit_code",), 2),
        (("extra",), 1),
        (("results", 0, "verdict"), "passed"),
        (("results", 0, "id"), "Three Frames"),
        (("results", 0, "judged"), -1),
        (("results", 5, "findings", 0, "evidence", "frames", 0), "0x00"),
        (("results", 5, "findings", 0, "evidence", "seq"), 2**64),
        (("sources", 0, "events", "BlockStored"), "many"),
        (("sources", 0, "dialect"), 8),
    ],
)
def test_the_schema_refuses(path: tuple[Any, ...], value: Any) -> None:
    built = json.loads(to_json(report()))
    spot = built
    for step in path[:-1]:
        spot = spot[step]
    spot[path[-1]] = value
    assert not validator().is_valid(built)


@pytest.mark.parametrize("key", Report.__struct_fields__)
def test_the_schema_misses_an_absent_key(key: str) -> None:
    built = json.loads(to_json(report()))
    del built[key]
    assert not validator().is_valid(built)


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b"\xff", b'{"report": "x"}', "[" * 100_000])
def test_what_is_no_report_says_so(data: bytes | str) -> None:
    with pytest.raises(ValueError, match="not a report"):
        from_json(data)


def test_a_later_report_is_not_misread() -> None:
    with pytest.raises(ValueError, match="version 9"):
        from_json(to_json(report(report=9)))


# JUnit --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SAMPLES)
def test_junit_counts_what_it_holds(name: str) -> None:
    told = SAMPLES[name]
    root = ET.fromstring(to_junit(told).encode())
    tags = {"failures": "failure", "errors": "error", "skipped": "skipped"}
    for suite in (root, *root):
        assert int(suite.attrib["tests"]) == len(list(suite.iter("testcase")))
        for count, tag in tags.items():
            assert int(suite.attrib[count]) == len(list(suite.iter(tag)))
    tally = Counter(item.verdict for item in told.results)
    own = [suite for suite in root if suite.attrib["name"] != "run"]
    assert sum(len(list(suite.iter("failure"))) for suite in own) == tally[Verdict.FAIL]
    assert sum(len(list(suite.iter("error"))) for suite in own) == tally[Verdict.ERROR] + tally[Verdict.HARNESS_ERROR]
    assert sum(len(list(suite.iter("skipped"))) for suite in own) == tally[Verdict.SKIP] + tally[Verdict.INCONCLUSIVE]
    assert len(own) == len({item.source for item in told.results})


@pytest.mark.parametrize("name", SAMPLES)
def test_junit_is_red_whenever_the_exit_code_is_not_0(name: str) -> None:
    root = ET.fromstring(to_junit(SAMPLES[name]).encode())
    red = int(root.attrib["failures"]) + int(root.attrib["errors"])
    assert bool(red) == bool(SAMPLES[name].exit_code)


def test_junit_tells_what_failed() -> None:
    root = ET.fromstring(to_junit(report()).encode())
    suite = root[0]
    assert suite.attrib["name"] == ENDPOINT
    assert suite.attrib["timestamp"] == "2025-11-29T07:06:40"
    told = {row.attrib["name"]: row.attrib["value"] for row in suite.findall("properties/property")}
    assert told["dialect"] == "slot8"
    cases = {case.attrib["name"]: case for case in suite.iter("testcase")}
    assert list(cases) == [row[0] for row in CHECKS]
    failed = cases["event-shape"]
    assert failed.attrib["classname"] == "events.md#shape"
    assert failed.findall("properties/property[@name='level']")[0].attrib["value"] == "MUST"
    failure = failed.find("failure")
    assert failure is not None
    assert failure.attrib["message"] == "3 of 1204: expected nil or a string in slot 7; got a map of 1"
    lines = (failure.text or "").split("\n")
    assert "MUST events.md#shape: Every event has the slots or keys of the dialect." in lines
    assert "where: live, seq 17, event 2" in lines
    assert "  > 7: map of 1" in lines
    assert f"frame 2: {EVIDENCE.frames[2]}" in lines
    assert f"rerun: kvwire-conform producer {ENDPOINT} --for 30s --check event-shape" in lines
    assert "and 2 more like it" in lines


def test_a_junit_warning_passes_and_is_told() -> None:
    root = ET.fromstring(to_junit(report()).encode())
    case = next(case for case in root.iter("testcase") if case.attrib["name"] == "ts-plausible")
    assert [child.tag for child in case] == ["properties", "system-out"]
    assert (case.findtext("system-out") or "").startswith("warning: 3 of 1204: expected nil")


def test_a_junit_skip_gives_its_reason() -> None:
    root = ET.fromstring(to_junit(report()).encode())
    messages = {case.attrib["name"]: case.find("skipped") for case in root.iter("testcase")}
    skipped, inconclusive = messages["replay-start"], messages["clear-empties"]
    assert skipped is not None and skipped.attrib["message"] == "skip: no replay endpoint; give --replay"
    assert inconclusive is not None and inconclusive.attrib["message"].startswith("inconclusive: ")


def test_a_junit_run_that_heard_nothing_is_an_error() -> None:
    for told, kind in ((silent(), "inconclusive"), (unreachable(), "error")):
        root = ET.fromstring(to_junit(told).encode())
        error = root.find("testsuite[@name='run']/testcase/error")
        assert error is not None
        assert error.attrib["type"] == kind
        assert told.advice[0] in (error.text or "")


def test_junit_text_holds_only_what_xml_may() -> None:
    text = to_junit(hostile())
    assert text.replace("\n", "").isprintable()
    assert "&lt;/failure&gt;" in text


# Terminal -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verbose", [0, 1, 2])
@pytest.mark.parametrize("width", [20, 33, *WIDTHS])
@pytest.mark.parametrize("name", SAMPLES)
def test_no_line_is_wider_than_the_console(name: str, width: int, verbose: int) -> None:
    for terminal in (False, True):
        for line in strip_colour(shown(SAMPLES[name], width, verbose=verbose, terminal=terminal)).split("\n"):
            assert cell_len(line) <= width
            assert line == line.rstrip() or terminal


def strip_colour(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


@pytest.mark.parametrize("name", SAMPLES)
def test_piped_output_is_plain_ascii(name: str) -> None:
    text = shown(SAMPLES[name], verbose=2)
    assert text.isascii()
    assert text.replace("\n", "").isprintable()


def test_no_color_and_odd_terminals_get_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("NO_COLOR", "1")
    file = io.StringIO()
    render(report(), Console(file=file, force_terminal=True, width=80))
    assert file.getvalue() == shown(report())
    monkeypatch.delenv("NO_COLOR")
    latin = io.TextIOWrapper(io.BytesIO(), encoding="iso-8859-1", errors="strict", newline="\n")
    render(hostile(), Console(file=latin, force_terminal=True, width=80))
    latin.seek(0)
    assert latin.read() == shown(hostile())


@pytest.mark.parametrize("name", SAMPLES)
def test_a_terminal_gets_colour_and_nothing_else(name: str) -> None:
    text = shown(SAMPLES[name], terminal=True, verbose=2)
    assert "\x1b[" in text
    assert strip_colour(text).replace("\n", "").isprintable()


@pytest.mark.parametrize("width", WIDTHS)
def test_a_report_says_what_matters(width: int) -> None:
    text = shown(report(), width)
    flat = words(text)
    assert flat.startswith(f"HARNESS-ERROR: {ENDPOINT} speaks slot8 (SGLang 0.5.18-0.5.19)")
    for fact in (
        "messages 1,234, 3.4 MB in 30 s (41/s)",
        "BlockStored 2,345, BlockRemoved 456, AllBlocksCleared 1",
        "seq 0 to 1236, 3 lost, 100 replayed, 1 restart",
        'topic "kv-events"',
        "DP rank 0",
        "block size 16 tokens",
        "stored GPU 2,300, CPU_PINNED 45 blocks",
        "held GPU 1,889 blocks",
        "Every event has the slots or keys of the dialect.",
        "expected nil or a string in slot 7",
        "got a map of 1",
        "hint that is how slot8 carries cache_salt;",
        "> 7: map of 1",
        "seq 00000000 00000011",
        "93cb41da c30cce26 f6beabab",
        "(+1,682 bytes)",
        "array events: Infera's vLLM reader reads maps only",
        "give --replay to have gaps filled",
        "10 results: 2 pass, 3 skip, 1 inconclusive, 1 warn, 1 fail, 1 error, 1 harness-error",
        "exit 5: a fault of this tool",
    ):
        assert fact in flat
    rerun = words(text.replace("\\\n", ""))
    assert f"rerun kvwire-conform producer {ENDPOINT} --for 30s --check event-shape" in rerun


def test_sections_stand_in_the_order_of_the_specification() -> None:
    found = sections(report().results)
    assert list(found) == ["transport", "batch", "events", "evolution", "stream", "replay", "hashes"]
    lines = shown(report()).split("\n")
    heads = [line.split("  ")[0] for line in lines if line and not line.startswith(" ")]
    assert [head for head in heads if head in found] == list(found)


def test_each_check_has_one_aligned_line() -> None:
    lines = [line for line in shown(passing()).split("\n") if line.startswith("  pass ")]
    assert [line.split()[1] for line in lines] == [
        row.id for rows in sections(passing().results).values() for row in rows
    ]
    assert {line.index(line.split()[1]) for line in lines} == {8}
    assert {len(line) for line in lines} == {len(lines[0])}


def test_signs_on_a_terminal() -> None:
    text = strip_colour(shown(report(), terminal=True))
    assert re.search(r"✓  three-frames +1,204", text)
    assert re.search(r"✗  event-shape +3 of 1,204", text)
    assert re.search(r"!  ts-plausible +3 of 1,204", text)
    assert "–  3 checks skipped: no replay endpoint; give --replay" in text
    assert re.search(r"\?  clear-empties", text)
    assert "▶ 7: map of 1" in text


def test_many_skips_are_one_line_unless_verbose() -> None:
    folded, unfolded = shown(report()), shown(report(), verbose=1)
    assert "replay-start" not in folded
    for check in ("replay-framing", "replay-start", "replay-end-marker"):
        assert re.search(rf"skip +{check}", unfolded)


def test_a_silent_run_lists_its_checks_only_when_verbose() -> None:
    text = shown(silent())
    assert f"nothing could be judged  {len(CHECKS)} checks; -v lists them" in text
    assert silent().advice[0] in words(text)
    for check, *_ in CHECKS:
        assert check not in text
        assert re.search(rf"inconclusive +{check}", shown(silent(), verbose=1))


def test_warnings_are_explained_without_frames() -> None:
    told = report(results=[result("ts-plausible")], verdict=Verdict.PASS, exit_code=0)
    assert "expected  nil or a string in slot 7" in shown(told)
    assert "payload" not in shown(told).split("warnings")[1]
    assert "payload" in shown(told, verbose=1).split("warnings")[1]


def test_a_warning_that_fails_the_run_says_so() -> None:
    told = report(results=[result("ts-plausible")], verdict=Verdict.FAIL, exit_code=1)
    assert "exit 1: a warning, which counts as a failure in this run" in words(shown(told))


def test_common_results_of_a_fleet_are_one_line() -> None:
    text = shown(fleet())
    assert re.search(r"transport  all 8 sources: pass\n  pass +three-frames +828\n", text)
    assert re.search(r"FAIL +event-shape +3 of 105\s+1 of 8: 10.0.0.6\n", text)
    assert re.search(r"pass +event-shape +723\s+the other 7", text)
    assert text.count("three-frames") == 1


@pytest.mark.parametrize(
    ("names", "short"),
    [
        (["tcp://a.pool:5557", "tcp://b.pool:5557"], ["a", "b"]),
        (["tcp://10.0.0.1:5557", "tcp://10.0.0.2:5557"], ["10.0.0.1", "10.0.0.2"]),
        (["tcp://10.0.0.1:5557", "tcp://10.0.0.1:5558"], ["10.0.0.1:5557", "10.0.0.1:5558"]),
        (["tcp://a:1", "ipc://b:1"], ["tcp://a:1", "ipc://b:1"]),
        (["tcp://a.b", "tcp://.b"], ["tcp://a.b", "tcp://.b"]),
        (["", "x"], ["", "x"]),
        (["tcp://a:1"], ["tcp://a:1"]),
        ([], []),
    ],
)
def test_names_are_cut_to_what_tells_them_apart(names: list[str], short: list[str]) -> None:
    assert list(short_names(names).items()) == list(zip(names, short, strict=True))


def test_a_fleet_tells_common_facts_once() -> None:
    text = shown(fleet())
    assert text.startswith("FAIL: 8 sources speak slot8")
    assert text.count("kv-events") == 1
    for rank in range(8):
        assert f"DP rank {rank}" in text
    assert "tcp://10.0.0.3:5557  seq 0 to 1236, 7 lost, 100 replayed; DP rank 2\n" in text
    assert "failures" in text and text.count("Every event has the slots") == 1


def test_verbose_tells_more() -> None:
    two = [FINDING, msgspec.structs.replace(FINDING, got="a list")]
    told = report(results=[result("event-shape", findings=two)])
    assert "a list" not in shown(told) and "; -v shows 1 of them" in shown(told)
    assert "a list" in shown(told, verbose=1)
    frame = EVIDENCE.frames[2]
    assert frame not in "".join(shown(told).split())
    assert frame in "".join(shown(msgspec.structs.replace(told, results=[result("event-shape")]), verbose=1).split())


@pytest.mark.parametrize(
    ("told", "said"),
    [
        (unreachable(), f"{ENDPOINT} could not be reached"),
        (silent(), f"{ENDPOINT} was not heard"),
        (report(), f"{ENDPOINT} speaks slot8 (SGLang 0.5.18–0.5.19)"),
        (report(sources=[source(candidates=["slot7", "slot8"], dialect="slot7", releases="")]), "slot7 or slot8"),
        (report(sources=[source(candidates=list("abcde"), dialect="a")]), "one of a … e (5 dialects fit)"),
        (report(sources=[source(candidates=[], dialect=None, releases="")]), "no dialect that could be told"),
        (
            report(
                sources=[
                    source(),
                    source("b"),
                    source("c", dialect="x", candidates=["x"], releases=""),
                    Source(name="d"),
                ]
            ),
            "4 sources: 2 speak slot8 (SGLang 0.5.18–0.5.19), 1 speaks x, 1 was not heard",
        ),
    ],
)
def test_the_headline(told: Report, said: str) -> None:
    assert said in headline(told)


def test_several_block_sizes_are_told_apart() -> None:
    sizes = {"16": 2300, "7": 12}
    assert "block size  16 in 2,300, 7 in 12 events" in shown(report(sources=[source(block_sizes=sizes)]))


def test_an_interrupted_report_says_so() -> None:
    assert "Interrupted after 30 s" in words(shown(SAMPLES["interrupted"]))
    assert "exit 130: interrupted" in words(shown(SAMPLES["interrupted"]))


def test_a_broken_command_line_can_be_copied() -> None:
    command = "kvwire-conform producer --recording 'a  file of mine.jsonl' --dialect slot8 --check event-shape"
    text = shown(report(results=[result("event-shape", rerun=command)]), 60)
    lines = text[text.index("rerun") + len("rerun") :].split("\n\n")[0]
    assert lines.count("\\\n") >= 1
    assert "'a  file of mine.jsonl'" in lines
    assert words(lines.replace("\\\n", "")) == words(command)
    narrow = shown(report(results=[result("event-shape", rerun=f"kvwire-conform producer {'x' * 40}")]), 50)
    assert f"    kvwire-conform producer \\\n      {'x' * 40}\n" in narrow


@pytest.mark.parametrize("capture", ["sglang-0.5.16-hicache-write_through-ps4-hiradix", "vllm-mixed-0.33.0-hybrid"])
def test_a_real_run_in_every_form(capture: str) -> None:
    path = CAPTURES / f"{capture}.jsonl"
    if not path.exists():
        pytest.skip(f"no capture {path.name}; set KVWIRE_CAPTURES")
    judge = Judge(Told(), path.name)
    for record in read_recording(path):
        judge.feed(record)
    sources, results, _ = judge.finish()
    verdict, code = outcome(results, messages=sum(item.messages for item in sources), events=1)
    told = report(subject=[path.name], sources=sources, results=results, verdict=verdict, exit_code=int(code))
    validator().validate(json.loads(to_json(told)))
    assert from_json(to_json(told)) == told
    root = ET.fromstring(to_junit(told).encode())
    assert int(root.attrib["tests"]) == len(results)
    text = words(shown(told, 160))
    assert f"{path.name} speaks {sources[0].dialect}" in text
    assert f"messages {sources[0].messages}," in text


# Any text -----------------------------------------------------------------------------------------------------------

ANY = st.text(st.characters(), max_size=60) | st.sampled_from(
    [HOSTILE, "[/]", "[bold", "\\[x]", "> ", "字" * 50, "❤️" * 9]
)
NUMBER = st.integers(0, 2**64 - 1)
TABLE = st.dictionaries(ANY, NUMBER, max_size=3)
EVIDENCES = st.builds(
    Evidence,
    seq=st.none() | NUMBER,
    received=st.none() | st.floats(),
    channel=ANY,
    frames=st.lists(ANY, max_size=4),
    cut=NUMBER,
    event_index=st.none() | NUMBER,
    slots=st.lists(ANY, max_size=20),
)
FINDINGS = st.builds(Finding, expected=ANY, got=ANY, hint=ANY, evidence=st.none() | EVIDENCES)
RESULTS = st.builds(
    CheckResult,
    id=ANY,
    source=ANY,
    level=st.sampled_from(Level),
    section=ANY,
    text=ANY,
    verdict=st.sampled_from(Verdict),
    judged=NUMBER,
    violations=NUMBER,
    findings=st.lists(FINDINGS, max_size=3),
    reason=ANY,
    rerun=ANY,
)
SOURCES = st.builds(
    Source,
    name=ANY,
    dialect=st.none() | ANY,
    candidates=st.lists(ANY, max_size=5),
    releases=ANY,
    messages=NUMBER,
    payload_bytes=NUMBER,
    events=TABLE,
    first_seq=st.none() | NUMBER,
    last_seq=st.none() | NUMBER,
    lost=NUMBER,
    replayed=NUMBER,
    restarts=NUMBER,
    topic=st.none() | ANY,
    dp_rank=st.none() | st.integers(-(2**63), 2**63 - 1),
    block_sizes=TABLE,
    media=TABLE,
    held=TABLE,
    policy=ANY,
    ambiguous=st.lists(ANY, max_size=2),
    span=st.floats(),
)
REPORTS = st.builds(
    Report,
    tool=ANY,
    mode=ANY,
    subject=st.lists(ANY, max_size=3),
    started=st.floats(),
    seconds=st.floats(),
    sources=st.lists(SOURCES, max_size=4),
    results=st.lists(RESULTS, max_size=6),
    breaks=st.lists(ANY, max_size=3),
    advice=st.lists(ANY, max_size=3),
    interrupted=st.booleans(),
    verdict=st.sampled_from(Verdict),
    exit_code=st.integers(0, 255),
)


@settings(max_examples=60)
@given(REPORTS, st.integers(20, 200), st.integers(0, 2))
def test_any_text_is_rendered(told: Report, width: int, verbose: int) -> None:
    for terminal in (False, True):
        text = strip_colour(shown(told, width, verbose=verbose, terminal=terminal))
        assert text.replace("\n", "").isprintable()
        assert terminal or text.isascii()
        assert all(cell_len(line) <= width for line in text.split("\n"))


@settings(max_examples=60)
@given(REPORTS)
def test_any_text_goes_through_json_and_junit(told: Report) -> None:
    data = to_json(told)
    assert to_json(from_json(data)) == data
    root = ET.fromstring(to_junit(told).encode())
    assert len(list(root.iter("testcase"))) >= len(told.results)


@given(st.text(st.characters()), st.integers(2, 50), st.integers(2, 50))
def test_wrapping_loses_only_spaces(text: str, first: int, rest: int) -> None:
    text = printable(text)
    lines = [text[start:end] for start, end in wrap(text, first, rest)]
    assert "".join(lines).replace(" ", "") == text.replace(" ", "")
    assert all(cell_len(line) <= (rest if number else first) for number, line in enumerate(lines))
    assert cell_len(cut(text, first, "…")) <= first


@given(st.text(st.characters()))
def test_printable_text_is_printable_and_ascii(text: str) -> None:
    assert printable(text).isprintable()
    assert plain_ascii(printable(text)).isascii()
    assert printable(printable(text)) == printable(text)


@pytest.mark.parametrize(
    ("got", "said"),
    [
        (printable("a\nb\x1b\ud800\U0010ffff é ✓"), "a\\nb\\x1b\\ud800\\U0010ffff é ✓"),
        (plain_ascii("2 × 3 ≥ 5 … é"), "2 x 3 >= 5 ... \\xe9"),
        (shorten("abcdef", 4), "abcd… (+2 characters)"),
        (size(999), "999 B"),
        (size(46_885), "46.9 kB"),
        (size(3_400_000), "3.4 MB"),
        (size(999_960), "1.0 MB"),
        (size(5e15), "5,000.0 TB"),
        (seconds(0.04), "0.0 s"),
        (seconds(30.1), "30 s"),
        (seconds(200), "3 min 20 s"),
        (seconds(7500), "2 h 5 min"),
    ],
)
def test_texts_and_numbers(got: str, said: str) -> None:
    assert got == said


# Progress -----------------------------------------------------------------------------------------------------------


class Clock:
    """Seconds that pass only when told."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_piped_progress_is_a_line_at_the_start_and_at_the_end() -> None:
    file, clock = io.StringIO(), Clock()
    with Progress(Console(file=file, width=80), 30.0, 100, clock=clock) as progress:
        assert file.getvalue() == "listening for 30 s or for 100 batches\n"
        for number in range(50):
            progress.update(messages=number + 1, events=3 * number, bytes=1000 * number, last_seq=number, sources=2)
        clock.now += 12.0
        assert file.getvalue().count("\n") == 1
    assert file.getvalue().split("\n")[1] == "heard 50 messages; 147 events; 49.0 kB; seq 49; 2 sources in 12 s"


def live_console(width: int) -> tuple[io.StringIO, Console]:
    file = io.StringIO()
    return file, Console(file=file, width=width, height=10, force_terminal=True, legacy_windows=False, _environ={})


@pytest.mark.parametrize("width", [10, 40, 80, 160])
def test_live_progress_is_one_line_that_goes_away(width: int) -> None:
    file, console = live_console(width)
    clock = Clock()
    with Progress(console, 30.0, None, clock=clock) as progress:
        clock.now += 15.0
        progress.update(messages=1234, events=5678, bytes=3_400_000, sources=8, last_seq=1233, note="\x1b[2J[red]")
        line = progress.line().plain
        assert cell_len(line) < width
        assert line.isprintable()
        assert "15 s of 30 s" in line or width == 10
        assert ("1,234 messages" in line) == (width >= 40)
        assert ("5,678 events" in line) == (width >= 80)
        assert ("3.4 MB  seq 1233  8 sources" in line) == (width == 160)
    assert file.getvalue().endswith("\x1b[?25h\r\x1b[1A\x1b[2K")


def test_progress_without_limits_and_traffic() -> None:
    _, console = live_console(80)
    progress = Progress(console, clock=Clock())
    assert "no messages" in progress.line().plain
    assert "━" not in progress.line().plain


def test_progress_lets_an_interrupt_through() -> None:
    file, console = live_console(80)
    with pytest.raises(KeyboardInterrupt), Progress(console, 30.0):
        raise KeyboardInterrupt
    assert "\x1b[?25h" in file.getvalue()


def test_tables_stand_in_the_order_of_their_written_names() -> None:
    told = report(sources=[source(events={"]": 1, "\ud800": 2})])
    assert to_json(from_json(to_json(told))) == to_json(told)
