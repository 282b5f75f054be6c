"""`kvwire-conform golden`, as a person and as a script see it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("typer")

from typer.testing import CliRunner, Result

from kvwire_conform import golden
from kvwire_conform.golden_cli import app


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_list_is_a_line_for_each_vector() -> None:
    told = run("list")
    assert told.exit_code == 0
    lines = told.stdout.splitlines()
    assert [line.split()[0] for line in lines] == [row.id for row in golden.manifest_of().vectors]
    assert "\x1b" not in told.stdout
    assert "A salted block between unsalted ones" in told.stdout


def test_list_narrows_down() -> None:
    told = run("list", "*/short-*", "--dialect", "7-slot", "--kind", "tolerated")
    ids = [line.split()[0] for line in told.stdout.splitlines()]
    assert ids == [
        "slot7/short-batch",
        "slot7/short-removed-2-slots",
        "slot7/short-stored-5-slots",
        "slot7/short-stored-6-slots",
    ]
    assert {line.split("/")[0] for line in run("list", "--dialect", "sglang==0.5.19").stdout.splitlines()} == {"slot8"}
    assert {line.split("/")[0] for line in run("list", "--dialect", "any").stdout.splitlines()} == {"any"}


def test_list_as_json() -> None:
    told = run("list", "slot8/salt-empty", "--json")
    (row,) = json.loads(told.stdout)
    assert row["id"] == "slot8/salt-empty"
    assert row["provenance"] == {"source": "release", "releases": ["sglang==0.5.19"]}
    empty = run("list", "no-such-*", "--json")
    assert (empty.exit_code, json.loads(empty.stdout)) == (2, [])


def test_list_says_what_is_near() -> None:
    told = run("list", "slot8/saltt")
    assert told.exit_code == 2
    assert told.stdout == ""
    assert "near it are slot8/salt" in told.stderr
    told = run("list", "--dialect", "slot99")
    assert told.exit_code == 2
    assert "did you mean slot9" in told.stderr
    assert run("list", "--kind", "wrong").exit_code == 2


def test_show_takes_a_payload_apart() -> None:
    told = run("show", "slot8/salt")
    assert told.exit_code == 0
    lines = told.stdout.splitlines()
    assert lines[0].split() == ["slot8/salt", "valid", "suite", "1,", "68", "bytes"]
    assert "sglang==0.5.19" in lines[2]
    slot = next(line for line in lines if "7 metadata" in line)
    assert "81 aa 63 61 63 68 65 5f 73 61 6c 74 a8 74 65 6e 61 6e 74 2d 61" in slot
    assert "map of 1 key (cache_salt)" in slot
    assert '"cache_salt": "tenant-a"' in told.stdout
    assert "\x1b" not in told.stdout


@pytest.mark.parametrize(
    ("vector_id", "marked"),
    [
        ("slot7/wrong-type-token-ids-str", "3 token_ids"),
        ("vllm-map5/wrong-type-medium-int", "medium"),
        ("any/ts-nan", "0 ts"),
        ("any/rank-str", "2 dp_rank"),
        ("any/event-nil", "events[1]"),
    ],
)
def test_show_marks_the_culprit(vector_id: str, marked: str) -> None:
    (line,) = (line for line in run("show", vector_id).stdout.splitlines() if line.startswith(">"))
    assert line.removeprefix("> ").strip().startswith(marked)


def test_show_of_what_is_no_msgpack() -> None:
    told = run("show", "any/nested-arrays")
    assert told.exit_code == 0
    assert "values are nested too deep" in told.stdout
    assert len(told.stdout) < 2000
    assert "the payload is empty" in run("show", "any/empty-payload").stdout


def test_show_raw_is_the_payload_and_nothing_else() -> None:
    assert run("show", "slot8/salt", "--raw").stdout_bytes == golden.load("slot8/salt").payload


def test_show_json_is_the_vector_with_its_payload() -> None:
    found = json.loads(run("show", "any/hash-ints-and-bytes", "--json").stdout)
    vector = golden.load("any/hash-ints-and-bytes")
    assert bytes.fromhex(found.pop("payload")) == vector.payload
    assert found["meaning"] == vector.meaning


def test_show_of_a_typo_names_the_near_ones() -> None:
    told = run("show", "slot8/slat")
    assert told.exit_code == 2
    assert told.stdout == ""
    assert "did you mean slot8/salt" in told.stderr


def test_verify_and_export(tmp_path: Path) -> None:
    told = run("verify")
    assert told.exit_code == 0
    assert f"{len(golden.manifest_of().vectors)} vectors up to suite" in told.stdout
    target = tmp_path / "vectors"
    told = run("export", target, "--suite", 1)
    assert told.exit_code == 0
    assert run("verify", target).exit_code == 0
    path = target / "slot8" / "salt.msgpack"
    path.write_bytes(path.read_bytes()[:-1])
    told = run("verify", target)
    assert told.exit_code == 1
    assert "slot8/salt.msgpack: is not the file that was released (67 bytes, not 68)" in told.stdout
    for left in list((target / "slot7").iterdir()):
        left.unlink()
    told = run("verify", target)
    assert len(told.stdout.splitlines()) == 50
    assert "of them not shown" in told.stderr
    again = run("export", target)
    assert again.exit_code == 2
    assert "no empty folder" in again.stderr
    assert run("export", tmp_path / "other", "--suite", 99).exit_code == 2
    assert run("verify", tmp_path).exit_code == 2


def test_export_into_what_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    told = run("export", tmp_path / "file" / "vectors")
    assert told.exit_code == 2
    assert "cannot be written" in told.stderr


def test_in_a_terminal_it_is_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "100")
    told = run("list", "slot8/salt*")
    assert "\x1b[" in told.stdout
    assert "8 vectors" in told.stdout


def test_a_reader_that_leaves_early_is_no_failure() -> None:
    """What `kvwire-conform golden list | head -1` does to the command."""
    code = "from kvwire_conform.golden_cli import app; app(['list'])"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline().startswith(b"slot6-b2/")
        process.stdout.close()
        assert b"Traceback" not in process.stderr.read()
