"""`kvwire-conform producer` and `demo`, as a person runs them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from kvwire_conform.recording import Record, RecordingError, read_recording, write_record
from kvwire_conform.simulator import SimulatedEngine, Simulator
from tests.conftest import ROOT

ENV = {**os.environ, "PYTHONPATH": str(ROOT / "conformance"), "NO_COLOR": "1", "COLUMNS": "100"}


def run(*arguments: object, timeout: float = 60) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "kvwire_conform", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=ENV, cwd=ROOT, timeout=timeout, check=False)


def recording(path: Path, dialect: str = "slot8", fault: str | None = None, count: int = 120) -> Path:
    simulator = Simulator(dialect, seed=4, fault=fault)
    with open(path, "w", encoding="utf-8") as file:
        for frames in simulator.messages(count):
            write_record(file, Record(t=simulator.now(), channel="live", frames=list(frames)))
    return path


def test_a_recording_passes(tmp_path: Path) -> None:
    done = run("producer", "--recording", recording(tmp_path / "good.jsonl"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "speaks slot8" in done.stdout
    assert "\x1b" not in done.stdout
    assert done.stderr == ""


def test_a_failure_tells_all_and_reruns(tmp_path: Path) -> None:
    path = recording(tmp_path / "bad.jsonl", fault="parent-known")
    done = run("producer", "--recording", path, "--junit", tmp_path / "report.xml", "--json", tmp_path / "report.json")
    assert done.returncode == 1
    for word in ("FAIL parent-known", "expected", "got", "hint", "> 2: int", "payload", "rerun"):
        assert word in done.stdout
    report = json.loads((tmp_path / "report.json").read_text())
    failed = next(r for r in report["results"] if r["verdict"] == "fail")
    assert failed["id"] == "parent-known"
    assert failed["rerun"].endswith("--check parent-known")
    again = subprocess.run(
        [sys.executable, "-m", "kvwire_conform", *failed["rerun"].split()[1:]],
        capture_output=True,
        text=True,
        env=ENV,
        cwd=ROOT,
        timeout=60,
        check=False,
    )
    assert again.returncode == 1
    assert "1 results: 1 fail" in again.stdout or "1 result: 1 fail" in again.stdout
    suite = ElementTree.parse(tmp_path / "report.xml").getroot()
    assert [case.get("name") for case in suite.iter("testcase") if case.find("failure") is not None] == ["parent-known"]


def test_reports_on_standard_output(tmp_path: Path) -> None:
    path = recording(tmp_path / "good.jsonl")
    assert json.loads(run("producer", "--recording", path, "--json", "-").stdout)["exit_code"] == 0
    assert (
        ElementTree.fromstring(run("producer", "--recording", path, "--junit", "-").stdout.encode()).tag == "testsuites"
    )
    assert run("producer", "--recording", path, "--quiet").stdout == ""


def test_several_recordings_are_one_report(tmp_path: Path) -> None:
    good, bad = recording(tmp_path / "good.jsonl"), recording(tmp_path / "bad.jsonl", "vllm-map5", "no-repeated-hash")
    done = run("producer", "--recording", good, "--recording", bad)
    assert done.returncode == 1
    assert "good.jsonl" in done.stdout
    assert "bad.jsonl" in done.stdout


def test_silence_is_inconclusive(tmp_path: Path) -> None:
    empty = tmp_path / "empty.jsonl"
    empty.write_text("")
    assert run("producer", "--recording", empty).returncode == 4
    path = recording(tmp_path / "good.jsonl", "slot7")
    assert run("producer", "--recording", path, "--require", "salted-hash-distinct").returncode == 4
    assert run("producer", "--recording", path, "--require", "parent-known").returncode == 0


def test_strict_counts_warnings(tmp_path: Path) -> None:
    path = recording(tmp_path / "warn.jsonl", fault="medium-vocabulary")
    assert run("producer", "--recording", path).returncode == 0
    assert run("producer", "--recording", path, "--strict").returncode == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["producer"], "nothing to listen to"),
        (["producer", "tcp://127.0.0.1:1", "--dialect", "slt7"], "did you mean slot7"),
        (["producer", "tcp://127.0.0.1:1", "--check", "parnt-known"], "did you mean parent-known"),
        (["producer", "tcp://127.0.0.1:1", "--for", "soon"], "is not a duration"),
        (["producer", "127.0.0.1:1"], "tcp://"),
        (["producer", "tcp://127.0.0.1:1", "--recording", "x"], "not both"),
        (["producer", "--recording", "no-such-file"], "No such file"),
        (["producer", "tcp://127.0.0.1:1", "--hash", "md5"], "no recipe"),
        (["producer", "tcp://127.0.0.1:1", "--hash-seed", "0"], "--hash"),
        (["producer", "--server", "http://127.0.0.1:1"], "127.0.0.1"),
        (["demo", "--fault", "nonsense"], "no fault"),
        (["demo", "--dialect", "slot6", "--fault", "medium-vocabulary"], "cannot have"),
        (["prodcer"], "producer"),
        (["golden", "show", "slot8/slt"], "did you mean"),
    ],
)
def test_mistakes_are_told_in_a_line(arguments: list[str], words: str) -> None:
    done = run(*arguments)
    assert done.returncode == 2, done.stdout + done.stderr
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_nobody_there() -> None:
    done = run("producer", "tcp://127.0.0.1:1", "--for", "500ms")
    assert done.returncode == 3
    assert "never connected" in done.stdout


def test_ctrl_c_reports_what_was_seen() -> None:
    with SimulatedEngine("slot8", 2, rate=50.0) as engine:
        command = [sys.executable, "-m", "kvwire_conform", "producer", engine.endpoint, "--for", "60s"]
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENV, cwd=ROOT
        )
        deadline = time.monotonic() + 30
        while engine.published[0] < 30 and time.monotonic() < deadline:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert process.returncode == 130, err
    assert "speaks slot8" in out
    assert "Traceback" not in err


def test_a_recording_can_be_made_and_judged(tmp_path: Path) -> None:
    path = tmp_path / "made.jsonl"
    with SimulatedEngine("sglang-map2", 2, rate=80.0) as engine:
        live = run("producer", engine.endpoint, "--replay", engine.replay_endpoint, "--batches", 40, "--record", path)
    assert live.returncode == 0, live.stdout
    again = run("producer", "--recording", path)
    assert again.returncode == 0, again.stdout
    assert sum(r.channel == "live" for r in read_recording(path)) >= 40


@pytest.mark.parametrize(
    "line", ["{", '{"channel": "live"}x', '{"channel": "odd"}', '{"channel": "live", "frames": ["zz"]}', "[]"]
)
def test_a_bad_recording_names_the_line(tmp_path: Path, line: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text(f'{{"t": 1, "channel": "note", "frames": []}}\n{line}\n')
    with pytest.raises(RecordingError, match="line 2"):
        list(read_recording(path))


def test_a_recording_that_was_cut_is_read_up_to_there(tmp_path: Path) -> None:
    path = recording(tmp_path / "cut.jsonl", count=30)
    text = path.read_text()
    path.write_text(text[:-40])
    assert len(list(read_recording(path))) == 29


def test_the_demo_can_misbehave() -> None:
    done = run("demo", "--for", "2s", "--fault", "no-self-parent", timeout=90)
    assert done.returncode == 1
    assert "FAIL no-self-parent" in done.stdout
