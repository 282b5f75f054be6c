"""``kvwire hash``: the chains it prints, its inputs, and what it refuses."""

from __future__ import annotations

import argparse
import io
import json
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kvwire import hash_cli
from kvwire.hashing import as_int64, as_uint64, from_hex
from tests.conftest import ROOT

GOLDEN = ROOT / "golden" / "hashing"


def rows(capsys: pytest.CaptureFixture[str], *argv: str) -> list[dict[str, Any]]:
    assert hash_cli.main([*argv, "--json"]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def case(file: str, name: str) -> dict[str, Any]:
    cases = json.loads((GOLDEN / file).read_text(encoding="utf-8"))["cases"]
    found: dict[str, Any] = next(case for case in cases if case["id"] == name)
    return found


def refused(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    assert hash_cli.main(list(argv)) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("kvwire hash: ")
    return printed.err


@pytest.mark.parametrize(
    "name", ["pages-of-4", "partial-page", "bigram-of-2", "wide-page", "salt-tenant-a", "continued"]
)
def test_sglang_chains(capsys: pytest.CaptureFixture[str], name: str) -> None:
    given, pages = case("sglang.json", name)["input"], case("sglang.json", name)["expected"]["pages"]
    argv = ["sglang", "-b", str(given["page_size"]), "-t", *map(str, given["tokens"])]
    argv += ["--bigram"] if given["bigram"] else []
    argv += ["--salt", given["cache_salt"]] if given["cache_salt"] else []
    argv += ["--parent", given["prior"]] if given["prior"] else []
    found = rows(capsys, *argv)
    assert [row["digest"] for row in found] == [page["digest"] for page in pages]
    for row, page in zip(found, pages, strict=True):
        assert {key: row[key] for key in ("hex", "int64", "uint64")} == page["event_hash"]
        assert row["other_8_bytes"] == page["digest"][-16:]
    assert [row["start"] for row in found] == [at * given["page_size"] for at in range(len(found))]


@pytest.mark.parametrize(
    ("recipe", "name"),
    [
        ("vllm==0.33.0", "tagged-sha256-salt-lora"),
        ("vllm==0.30.0", "bare-sha256-salt-lora"),
        ("vllm:sha256_cbor", "sha256-cbor-seed-0"),
        ("vllm", "sha256-seed-default"),
        ("vllm:xxhash", "xxhash-seed-0"),
    ],
)
def test_vllm_chains(capsys: pytest.CaptureFixture[str], recipe: str, name: str) -> None:
    wanted = case("vllm.json", name)
    given = wanted["input"]
    argv = [recipe, "-b", "4", "-t", ",".join(map(str, given["tokens"]))]
    argv += ["--seed", given["seed"]] if given["seed"] else []
    if given["lora_name"]:
        argv += [
            "--salt",
            given["extra_keys"][0][-1],
            "--lora-name",
            given["lora_name"],
            "--lora-path",
            given["lora_path"],
        ]
    found = rows(capsys, *argv)
    assert [row["digest"] for row in found] == [block["digest"] for block in wanted["expected"]["blocks"]]
    assert [row["uint64"] for row in found] == [block["event_hash"]["uint64"] for block in wanted["expected"]["blocks"]]


def test_the_forms_of_a_row_are_one_hash(capsys: pytest.CaptureFixture[str]) -> None:
    for row in rows(capsys, "sglang:dynamo", "-b", "2", "-t", "1", "2", "3", "4", "--extra-key", "ek", "--salt", "s"):
        value = from_hex(row["hex"])
        assert (str(as_int64(value)), str(as_uint64(value))) == (row["int64"], row["uint64"])


def test_storage_keys_and_dynamo_s_hashes(capsys: pytest.CaptureFixture[str]) -> None:
    wanted = case("sglang-storage.json", "storage-both")
    argv = ("-b", "4", "-t", "1,2,3,4,5,6,7,8", "--extra-key", "ek", "--salt", "tenant-a")
    assert [row["digest"] for row in rows(capsys, "sglang:storage", *argv)] == [
        page["digest"] for page in wanted["expected"]["pages"]
    ]
    found = rows(capsys, "dynamo", "-b", "4", "-t", "1,2,3,4,5,6,7,8")
    assert [row["uint64"] for row in found] == ["14643705804678351452", "16777012769546811212"]
    assert [row["sequence_hash"] for row in found] == ["14643705804678351452", "4945711292740353085"]
    (row,) = rows(capsys, "dynamo", "-b", "4", "-t", "1,2,3,4", "--salt", "tenant-a")
    assert row["uint64"] == "5738685477468498325"


def test_unchained_hashes(capsys: pytest.CaptureFixture[str]) -> None:
    wanted = case("sglang-python.json", "sglang-0.4.10-prefix-ps2-radix-1-0")
    (row,) = rows(capsys, "sglang==0.4.10", "-b", "2", "-t", *map(str, wanted["input"]["tokens"]))
    assert row["int64"] == wanted["expected"]["event_hashes"][0]["int64"]


@pytest.mark.parametrize("text", ["[1, 2, 3, 4]", "1 2\n3,4\n", " 1,2,3,4 "])
def test_tokens_from_standard_input(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    expected = rows(capsys, "sglang", "-b", "2", "-t", "1", "2", "3", "4")
    for argv in ((), ("--file", "-")):
        monkeypatch.setattr(sys, "stdin", io.StringIO(text))
        assert rows(capsys, "sglang", "-b", "2", *argv) == expected


def test_tokens_from_files(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    expected = rows(capsys, "sglang", "-b", "2", "-t", "1", "2", "3")
    (tmp_path / "tokens.json").write_text("[1,2,3]", encoding="utf-8")
    (tmp_path / "tokens.u32").write_bytes(struct.pack("<3I", 1, 2, 3))
    for name in ("tokens.json", "tokens.u32"):
        assert rows(capsys, "sglang", "-b", "2", "--file", str(tmp_path / name)) == expected
    (tmp_path / "pairs.json").write_text("[[1,2],[2,3]]", encoding="utf-8")
    pairs = rows(capsys, "sglang", "-b", "2", "--file", str(tmp_path / "pairs.json"))
    assert pairs == rows(capsys, "sglang", "-b", "2", "--bigram", "-t", "1", "2", "3")


def test_text_output(capsys: pytest.CaptureFixture[str]) -> None:
    assert hash_cli.main(["sglang", "-b", "4", "-t", "1", "2", "3", "4"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "block 0  positions 0-3",
        "  digest        cf97adeedb59e05bfd73a2b4c2a8885708c4f4f70c84c64b27120e72ab733b72",
        "  int64         -3488128144981237669",
        "  uint64        14958615928728313947",
        "  hex           cf97adeedb59e05b",
        "  other_8_bytes 27120e72ab733b72",
    ]


def test_no_whole_block(capsys: pytest.CaptureFixture[str]) -> None:
    assert hash_cli.main(["vllm", "-b", "4", "-t", "1", "2"]) == 0
    printed = capsys.readouterr()
    assert (printed.out, "fewer tokens than the block size" in printed.err) == ("", True)


@pytest.mark.parametrize(
    ("argv", "problem"),
    [
        (("trtllm", "-b", "4", "-t", "1"), "no recipe 'trtllm'"),
        (("sglang", "-b", "0", "-t", "1"), "page size is 0"),
        (("sglang", "-b", "1", "-t", "x"), "'x' is no token id"),
        (("sglang", "-b", "1", "-t", "[1"), "start like JSON"),
        (("sglang", "-b", "1", "-t", '["a"]'), "token 0 is 'a'"),
        (("sglang", "-b", "1", "-t", "1", "--file", "x"), "not both"),
        (("sglang", "-b", "1", "--file", "/nowhere/tokens.json"), "No such file"),
        (("sglang", "-b", "1", "-t", "1", "--parent", "zz"), "--parent is a digest in hex digits"),
        (("sglang", "-b", "1", "-t", "1", "--parent", "ab"), "whole digest of 32 bytes"),
        (("sglang", "-b", "1", "-t", "1", "--algorithm", "sha256"), "--algorithm goes with a release"),
        (("sglang", "-b", "1", "-t", "1", "--cache-namespace", "a"), "is Dynamo's"),
        (("vllm==0.24.0", "-b", "1", "-t", "1"), "needs the seed it was started with"),
        (("dynamo", "-b", "1", "-t", "1", "--extra-key", "a"), "--extra-key has no part"),
        (("dynamo", "-b", "1", "-t", "1", "--salt", "a", "--cache-namespace", "b"), "give one of"),
    ],
)
def test_what_is_refused(capsys: pytest.CaptureFixture[str], argv: tuple[str, ...], problem: str) -> None:
    assert problem in refused(capsys, *argv)


def test_it_mounts_as_a_sub_command(capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser(prog="kvwire")
    hash_cli.add_parser(parser.add_subparsers())
    args = parser.parse_args(["hash", "sglang", "-b", "4", "--json", "-t", "1", "2", "3", "4"])
    assert args.run(args) == 0
    assert json.loads(capsys.readouterr().out)["hex"] == "cf97adeedb59e05b"


def test_it_runs_as_a_module() -> None:
    command = [sys.executable, "-m", "kvwire.hash_cli", "sglang", "-b", "4", "--json"]
    done = subprocess.run(command, input="1 2 3 4", capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["hex"] == "cf97adeedb59e05b"
