"""`kvwire-conform golden verify` on a project's copy of the vectors: no change to it goes unseen."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvwire_conform import golden

pytest.importorskip("typer")

from typer.testing import CliRunner, Result

from kvwire_conform.golden_cli import app


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("project") / "vectors"
    golden.export(target, suite=1)
    return target


def copied(source: Path, target: Path) -> Path:
    """A copy that shares the files of its source, so that these must not be written into, only replaced."""
    shutil.copytree(source, target, copy_function=os.link)
    return target


def put(path: Path, content: bytes | dict[str, Any]) -> None:
    """Replace a file."""
    path.unlink(missing_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())


def verify(folder: Path) -> Result:
    return CliRunner().invoke(app, ["verify", str(folder)])


def forged_vector(folder: Path) -> str:
    """A payload is changed, and everything in the copy that says so along with it."""
    payload = (folder / "slot8/salt.msgpack").read_bytes().replace(b"tenant-a", b"tenant-b")
    put(folder / "slot8/salt.msgpack", payload)
    text = (folder / "slot8/salt.json").read_bytes()
    manifest = json.loads((folder / "manifest.json").read_text())
    row = next(row for row in manifest["vectors"] if row["id"] == "slot8/salt")
    row["sha256"] = hashlib.sha256(payload).hexdigest()
    put(folder / "manifest.json", manifest)
    lock = json.loads((folder / "suites/1.json").read_text())
    lock["vectors"]["slot8/salt"] = golden.lock_sum(payload, text)
    put(folder / "suites/1.json", lock)
    return "slot8/salt: is another in the manifest than the one that was released"


def removed_vector(folder: Path) -> str:
    """A vector is taken out, without a trace in the copy."""
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["vectors"] = [row for row in manifest["vectors"] if row["id"] != "slot8/salt"]
    put(folder / "manifest.json", manifest)
    (folder / "suites/1.json").unlink()
    for ending in ("json", "msgpack"):
        (folder / f"slot8/salt.{ending}").unlink()
    return "slot8/salt: came in suite 1 and is gone"


def own_vector(folder: Path) -> str:
    """A vector of the project's own is passed off as one of the suite."""
    manifest = json.loads((folder / "manifest.json").read_text())
    row = next(row for row in manifest["vectors"] if row["id"] == "slot8/salt")
    manifest["vectors"].append({**row, "id": "slot8/mine"})
    put(folder / "manifest.json", manifest)
    (folder / "suites/1.json").unlink()
    for ending in ("json", "msgpack"):
        shutil.copy(folder / f"slot8/salt.{ending}", folder / f"slot8/mine.{ending}")
    return "slot8/mine: was never released in suite 1"


def own_folder(folder: Path) -> str:
    """A folder of the project's own stands among the vectors."""
    (folder / "slot99").mkdir()
    put(folder / "slot99/mine.msgpack", b"\x90")
    return "slot99/mine.msgpack: is not in the manifest"


def line_ends(folder: Path) -> str:
    """What git does to a copy without its .gitattributes."""
    path = folder / "slot8/salt.json"
    put(path, path.read_bytes().replace(b"\n", b"\r\n"))
    return "slot8/salt.json: is not the file that was released"


@pytest.mark.parametrize("change", [forged_vector, removed_vector, own_vector, own_folder, line_ends])
def test_no_change_goes_unseen(exported: Path, tmp_path: Path, change: Callable[[Path], str]) -> None:
    assert verify(exported).exit_code == 0
    copy = copied(exported, tmp_path / "vectors")
    expected = change(copy)
    result = verify(copy)
    assert result.exit_code == 1
    assert expected in result.stdout.splitlines()


def test_a_newer_copy_is_said_to_be_one(tmp_path: Path) -> None:
    newest = golden.manifest_of().suite
    copy = tmp_path / "vectors"
    golden.export(copy)
    manifest = json.loads((copy / "manifest.json").read_text())
    put(copy / "manifest.json", {**manifest, "suite": newest + 1})
    sums: dict[str, str] = {}
    for row in manifest["vectors"]:
        if row["suite"] == newest:
            payload, text = ((copy / f"{row['id']}.{ending}").read_bytes() for ending in ("msgpack", "json"))
            sums[row["id"]] = golden.lock_sum(payload, text)
    put(copy / f"suites/{newest}.json", {"suite": newest, "vectors": sums})
    result = verify(copy)
    assert f"cannot vouch for suite {newest + 1}" in result.stderr
    assert result.exit_code == 0
