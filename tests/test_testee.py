"""Testees that misbehave: each way has its verdict, and none stops the runner."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kvwire_conform.consumer import Selection, judge
from kvwire_conform.consumer_model import AnswerVerdict, ConsumerReport, Judgement
from kvwire_conform.golden import load
from kvwire_conform.model import Verdict
from kvwire_conform.reports.consumer_json import from_json
from kvwire_conform.testee import Breakdown, Limits, NeverStartedError, Testee
from kvwire_conform.testee_lines import Answer, LineError, Request, parse_answer, parse_hello
from tests.conftest import ROOT

BAD = str(ROOT / "tests/bad_testees/bad.py")
FAST = Limits(start=20.0, answer=1.0, leave=1.0, breakdowns=3)
PAYLOAD = Request(payload=load("slot9/salt-prefixed").payload)
ONLY = Selection(only=("slot9/batch-*",))
"""Eight payloads."""


def bad(how: str, at: int = 0) -> list[str]:
    return [sys.executable, BAD, how, str(at)]


def judged(how: str, at: int = 0, *, jobs: int = 1, only: Selection = ONLY, limits: Limits = FAST) -> ConsumerReport:
    return judge(bad(how, at), selection=only, limits=limits, jobs=jobs)


def not_exact(report: ConsumerReport) -> list[Judgement]:
    return [one for one in report.judgements if one.verdict is not AnswerVerdict.EXACT]


@pytest.fixture
def started() -> Iterator[Callable[..., Testee]]:
    found: list[Testee] = []

    def start(how: str, at: int = 0, limits: Limits = FAST) -> Testee:
        testee = Testee(bad(how, at), limits)
        found.append(testee)
        testee.start()
        return testee

    yield start
    for testee in found:
        testee.kill()


def breakdown(testee: Testee, before: int = 0) -> Breakdown:
    for number in range(before):
        assert isinstance(testee.ask(f"before-{number}", PAYLOAD), Answer)
    reply = testee.ask("x", PAYLOAD)
    assert isinstance(reply, Breakdown)
    assert not testee.running
    return reply


# A process ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("how", "verdict", "said"),
    [
        ("signal", AnswerVerdict.CRASHED, "killed by SIGKILL"),
        ("exit-3", AnswerVerdict.CRASHED, "exit code 3\nout of luck"),
        ("exit-0", AnswerVerdict.CRASHED, "exit code 0"),
        ("closes-stdout", AnswerVerdict.CRASHED, "it closed its stdout and did not exit"),
        ("hang", AnswerVerdict.HUNG, "no answer within 0.5 s"),
        ("deaf-hang", AnswerVerdict.HUNG, "no answer within 0.5 s"),
        ("garbage", AnswerVerdict.GARBLED, "a line that is not JSON"),
        ("not-utf8", AnswerVerdict.GARBLED, "a line that is not UTF-8 (byte 8)"),
        ("wrong-id", AnswerVerdict.GARBLED, 'its answer has the id "elsewhere", and the request has "x"'),
        ("no-id", AnswerVerdict.GARBLED, "its answer has no id"),
        ("both", AnswerVerdict.GARBLED, "this has events and error"),
        ("endless", AnswerVerdict.GARBLED, "a line of more than 1000000 bytes"),
        ("deep", AnswerVerdict.GARBLED, ""),
    ],
)
def test_each_way_to_break_down_has_its_verdict(
    started: Callable[..., Testee], how: str, verdict: AnswerVerdict, said: str
) -> None:
    found = breakdown(started(how, 2, Limits(answer=0.5, leave=1.0, line=1_000_000)), before=1)
    assert found.verdict is verdict
    assert said in found.said


def test_a_testee_that_reads_nothing_hangs_and_blocks_nobody(started: Callable[..., Testee]) -> None:
    testee = started("never-reads")
    reply = testee.ask("1", Request(payload=bytes(1 << 20)))
    assert isinstance(reply, Breakdown)
    assert reply.verdict is AnswerVerdict.HUNG


def test_an_answer_to_an_earlier_request_is_garbled_and_named(started: Callable[..., Testee]) -> None:
    testee = started("old-id", 2)
    assert isinstance(testee.ask("1", PAYLOAD), Answer)
    reply = testee.ask("2", PAYLOAD)
    assert reply == Breakdown(AnswerVerdict.GARBLED, "it answered with the id 1 of an earlier request, not with 2")
    assert testee.twice == []


def test_a_flood_on_stderr_is_drained(started: Callable[..., Testee]) -> None:
    testee = started("stderr-flood")
    assert isinstance(testee.ask("1", PAYLOAD), Answer)
    assert testee.leave() is None


def test_a_testee_is_started_anew_after_a_breakdown(started: Callable[..., Testee]) -> None:
    testee = started("exit-3", 1)
    breakdown(testee)
    assert testee.start().name == "bad"
    breakdown(testee)


@pytest.mark.parametrize(
    ("how", "problem"),
    [
        ("right", None),
        ("leaves-badly", "it ended with exit code 9 at the end of its input"),
        ("last-word", "it wrote a line after its last answer: bye"),
        ("stays", "it did not exit within 1 s of the end of its input"),
    ],
)
def test_how_it_leaves(started: Callable[..., Testee], how: str, problem: str | None) -> None:
    testee = started(how)
    assert isinstance(testee.ask("1", PAYLOAD), Answer)
    assert testee.leave() == problem
    assert not testee.running


@pytest.mark.skipif(not os.path.isdir("/proc"), reason="looks for processes in /proc")
def test_what_it_started_ends_with_it(started: Callable[..., Testee]) -> None:
    testee = started("child")
    assert isinstance(testee.ask("1", PAYLOAD), Answer)
    assert testee._process is not None
    group = testee._process.pid
    assert len(members(group)) == 2
    testee.kill()
    deadline = time.monotonic() + 10
    while members(group) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert members(group) == []


def members(group: int) -> list[str]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if fields[2] == str(group) and fields[0] != "Z":
            found.append(stat.parent.name)
    return found


@pytest.mark.parametrize(
    ("how", "problem", "stderr"),
    [
        ("no-hello", "it said no hello within 0.5 s", ""),
        ("hello-exit", "it ended before its hello: exit code 3", "no such model"),
        ("hello-garbage", "a line that is not JSON", ""),
        ("hello-version", "it speaks protocol 2; this runner speaks protocol 1", ""),
        ("hello-dialect", "slot99", ""),
        ("hello-endless", "its first line has more than 16777216 bytes", ""),
    ],
)
def test_without_a_proper_hello_it_never_started(how: str, problem: str, stderr: str) -> None:
    limits = Limits(start=0.5 if how == "no-hello" else 20.0)
    with Testee(bad(how), limits) as testee, pytest.raises(NeverStartedError) as caught:
        testee.start()
    assert problem in caught.value.problem
    assert caught.value.stderr == stderr
    assert not testee.running


def test_a_command_that_is_not_there() -> None:
    with pytest.raises(NeverStartedError, match=r"no-such-testee cannot be run: No such file"):
        Testee(["no-such-testee"]).start()


# Lines ---------------------------------------------------------------------------------------------------------------

HELLO = b'{"protocol":1,"name":"n","version":"1","language":"Go","dialects":["vllm-map5","slot6"],"else":1}'


def test_a_hello_gives_the_claims_in_the_order_of_the_registry() -> None:
    found = parse_hello(HELLO)
    assert (found.name, found.version, found.language, found.reading) == ("n", "1", "Go", "any")
    assert found.dialects == ("slot6", "vllm-map5")


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (b"", "not JSON"),
        (b"[]", "no JSON object"),
        (HELLO.replace(b'"name":"n",', b""), "required field `name`"),
        (HELLO.replace(b'"slot6"', b"6"), r"\$.dialects"),
        (HELLO.replace(b'"else":1', b'"reading":"none"'), "reading 'none'"),
        (HELLO.replace(b'"protocol":1', b'"protocol":"1"'), "protocol"),
    ],
)
def test_what_is_no_hello(line: bytes, problem: str) -> None:
    with pytest.raises(LineError, match=problem):
        parse_hello(line)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (b'{"id":"1"}', "none"),
        (b'{"id":1,"events":[]}', "the id 1,"),
        (b'{"id":"1","events":{}}', "events is an array"),
        (b'{"id":"1","error":3}', "error is a string"),
        (b'{"id":"1","unsupported":[]}', "unsupported is a string"),
        (b'{"id":"1","events":[NaN]}', "not JSON"),
    ],
)
def test_what_is_no_answer(line: bytes, problem: str) -> None:
    with pytest.raises(LineError, match=problem):
        parse_answer(line, "1")


@pytest.mark.parametrize(
    "line",
    [
        b'{"id": "1", "events": [{"type": "AllBlocksCleared"}], "events": []}',
        b'{"id": "2", "id": "1", "events": []}',
        b'{"id": "1", "events": [{"type": "BlockRemoved", "block_hashes": [], "block_hashes": []}]}',
    ],
)
def test_a_key_that_stands_twice_hides_nothing(line: bytes) -> None:
    with pytest.raises(LineError, match="twice in one object"):
        parse_answer(line, "1")


# A run ---------------------------------------------------------------------------------------------------------------


def test_a_crash_is_charged_to_the_payload_that_causes_it() -> None:
    only = Selection(only=("slot9/salt-*", "slot9/batch-*"))
    report = judged("dies-of-salt", only=only, limits=Limits())
    crashed = not_exact(report)
    assert {one.id for one in crashed} == {
        one.id for one in report.judgements if b"salt" in load(one.id).payload and one.dialect == "slot9"
    }
    assert len(crashed) >= 5
    for one in crashed:
        assert one.verdict is AnswerVerdict.CRASHED
        assert one.said.startswith("killed by SIGABRT\npanicked at decode.rs:17")
    assert (report.verdict, report.exit_code) == (Verdict.FAIL, 1)


def test_the_report_does_not_depend_on_the_number_of_processes() -> None:
    only = Selection(only=("slot9/salt-*", "slot9/batch-*"))
    alone, three = (judged("dies-of-salt", only=only, jobs=jobs, limits=Limits()) for jobs in (1, 3))
    assert three.judgements == alone.judgements
    assert not_exact(alone)


def test_a_crash_after_the_answer_is_charged_to_what_was_answered() -> None:
    report = judged("late-death", 3)
    third = report.judgements[2]
    assert third.verdict is AnswerVerdict.CRASHED
    assert third.said == "exit code 7"
    assert third.note == "after it had answered"
    assert report.judgements[1].verdict is report.judgements[3].verdict is AnswerVerdict.EXACT


def test_a_second_answer_is_charged_to_what_was_answered_twice() -> None:
    assert [one.id for one in not_exact(judged("twice", 3))] == [judged("right").judgements[2].id]
    last = len(judged("right").judgements)
    (found,) = not_exact(judged("twice", last))
    assert (found.id, found.verdict) == (judged("right").judgements[-1].id, AnswerVerdict.GARBLED)
    assert found.said == "it answered one request more than once"


def test_a_testee_that_keeps_breaking_down_is_given_up_and_that_is_no_pass() -> None:
    report = judged("exit-3", 1)
    assert [one.verdict for one in report.judgements] == [AnswerVerdict.CRASHED] * 3
    assert report.not_run == [one.id for one in judged("right").judgements[3:]]
    assert report.advice == ["it broke down on 3 payloads in a row, and the rest was not judged"]
    assert report.exit_code == 1


def test_what_nobody_claims_and_is_not_judged_is_inconclusive() -> None:
    report = judged("exit-3", 1, only=Selection(only=("slot6/batch-*",)))
    assert not any(one.required for one in report.judgements)
    assert (report.verdict, report.exit_code) == (Verdict.INCONCLUSIVE, 4)


def test_one_hang_costs_one_payload() -> None:
    report = judged("hang", 4, limits=Limits(answer=0.5))
    assert [one.verdict for one in not_exact(report)][:1] == [AnswerVerdict.HUNG]
    assert len(report.judgements) == len(judged("right").judgements)


def test_a_testee_that_never_starts_gives_a_report_with_its_stderr() -> None:
    report = judged("hello-exit")
    assert (report.consumer, report.judgements, report.exit_code, report.verdict) == (None, [], 3, Verdict.ERROR)
    assert "its stderr: no such model" in report.advice


def test_it_is_told_when_it_leaves_badly() -> None:
    report = judged("leaves-badly")
    assert report.exit_code == 0
    assert report.advice == ["it ended with exit code 9 at the end of its input"]


def test_ctrl_c_gives_what_was_judged_so_far(tmp_path: Path) -> None:
    out, mark = tmp_path / "report.json", tmp_path / "hangs"
    command = [sys.executable, "-m", "kvwire_conform", "consumer", "--only", "slot9/batch-*", "--json", str(out), "--"]
    process = subprocess.Popen(
        [*command, *bad("hang", 4)], stdout=subprocess.PIPE, text=True, env={**os.environ, "BAD_MARK": str(mark)}
    )
    try:
        deadline = time.monotonic() + 30
        while not mark.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        printed, _ = process.communicate(timeout=30)
    finally:
        process.kill()
    report = from_json(out.read_bytes())
    assert process.returncode == report.exit_code == 130
    assert report.interrupted
    assert [one.verdict for one in report.judgements] == [AnswerVerdict.EXACT] * 3
    assert "Interrupted" in printed
