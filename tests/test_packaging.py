"""Wheel, sdist and editable install, each used from a clean environment."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.conftest import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.network, pytest.mark.xdist_group("packaging")]

USE = """
import kvwire, sys
from kvwire._resources import golden_dir, spec_dir
batch = kvwire.EventBatch(1.5, [kvwire.AllBlocksCleared()], 0)
assert kvwire.decode(kvwire.encode(batch, "slot7")) == batch
assert (golden_dir() / "manifest.json").is_file(), golden_dir()
assert (spec_dir() / "transport.md").is_file(), spec_dir()
for name in ("rich", "typer", "jsonschema", "jinja2", "xxhash", "cbor2"):
    assert name not in sys.modules, name
print(kvwire.__version__, *kvwire.SPEEDUPS)
"""
SUFFIX = sysconfig.get_config_var("EXT_SUFFIX")
COMPILER = shutil.which((os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc").split()[0])


def run(*command: object, cwd: Path | None = None, expect: int = 0, variables: dict[str, str] | None = None) -> str:
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env={**os.environ, **(variables or {})},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == expect, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    out = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--outdir", out, ROOT)
    (wheel,) = out.glob("*.whl")
    (sdist,) = out.glob("*.tar.gz")
    return {"wheel": wheel, "sdist": sdist, "editable": ROOT}


def environment(folder: Path, *install: object) -> Path:
    run(sys.executable, "-m", "venv", folder)
    run(folder / "bin" / "pip", "install", "-q", "--disable-pip-version-check", *install)
    return folder / "bin"


@pytest.mark.parametrize("kind", ["wheel", "sdist", "editable"])
def test_it_works_where_it_is_installed(built: dict[str, Path], kind: str, tmp_path: Path) -> None:
    target = built[kind]
    flag = ["-e"] if kind == "editable" else []
    bin_ = environment(tmp_path / "base", *flag, target)
    words = run(bin_ / "python", "-c", USE, cwd=tmp_path).split()
    assert words[1:] == (["decode", "encode"] if COMPILER else [])
    assert len(run(bin_ / "python", "-c", USE, cwd=tmp_path, variables={"KVWIRE_PURE": "1"}).split()) == 1
    installed = {
        line.split("==")[0].lower()
        for line in run(bin_ / "pip", "list", "--format=freeze").splitlines()
        if "==" in line
    }
    assert installed - {"pip", "setuptools", "wheel"} <= {"kvwire", "msgspec", "pyzmq"}
    told = run(bin_ / "kvwire-conform", "golden", "list", cwd=tmp_path, expect=2)
    assert "pip install 'kvwire[conform]'" in told
    assert len(told.strip().splitlines()) == 1

    run(bin_ / "pip", "install", "-q", "--disable-pip-version-check", *flag, f"{target}[conform]")
    listed = run(bin_ / "kvwire-conform", "golden", "list", cwd=tmp_path)
    assert "slot8/" in listed
    run(bin_ / "kvwire-conform", "golden", "verify", cwd=tmp_path)
    assert "producer" in run(bin_ / "kvwire-conform", "--help", cwd=tmp_path)
    recording = tmp_path / "empty.jsonl"
    recording.write_text("")
    run(bin_ / "kvwire-conform", "producer", "--recording", recording, cwd=tmp_path, expect=4)


def test_the_archives_hold_what_they_must(built: dict[str, Path]) -> None:
    wheel = set(zipfile.ZipFile(built["wheel"]).namelist())
    for name in (
        "kvwire/py.typed",
        "kvwire_conform/py.typed",
        "kvwire/_data/golden/manifest.json",
        "kvwire/_data/spec/README.md",
    ):
        assert name in wheel
    assert not any(name.startswith(("tests/", "golden/", "spec/")) or name.endswith(".c") for name in wheel)
    with tarfile.open(built["sdist"]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    for name in (
        "golden/manifest.json",
        "spec/README.md",
        "tests/test_codec.py",
        "kvwire/_ext/decode.c",
        "kvwire/_ext/encode.c",
        "hatch_build.py",
        "Makefile",
        "CHANGELOG.md",
        "LICENSE",
        "README.md",
    ):
        assert name in names
    assert not any(name.endswith((".so", ".pyd")) for name in names)


@pytest.mark.skipif(COMPILER is None, reason="no C compiler")
def test_a_wheel_with_extensions_is_for_one_platform(built: dict[str, Path]) -> None:
    wheel = zipfile.ZipFile(built["wheel"])
    assert {f"kvwire/_{name}_ext{SUFFIX}" for name in ("decode", "encode")} <= set(wheel.namelist())
    assert f"-cp{sys.version_info[0]}{sys.version_info[1]}-" in built["wheel"].name
    (about,) = (name for name in wheel.namelist() if name.endswith(".dist-info/WHEEL"))
    assert "Root-Is-Purelib: false" in wheel.read(about).decode()


@pytest.mark.parametrize(
    "environment",
    [{"KVWIRE_PURE": "1"}, {"CC": "/nowhere/cc"}, {"CC": "false"}, {"CC": '"gcc'}],
    ids=["by choice", "no compiler", "fails", "cannot be read"],
)
def test_without_extensions_it_is_a_pure_wheel(environment: dict[str, str], tmp_path: Path) -> None:
    before = set((ROOT / "kvwire").glob(f"*{SUFFIX}"))
    run(sys.executable, "-m", "build", "--wheel", "--outdir", tmp_path, ROOT, variables=environment)
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name.endswith("-py3-none-any.whl")
    assert not any(name.endswith((".so", ".pyd")) for name in zipfile.ZipFile(wheel).namelist())
    # Other tests install from this tree meanwhile, so what is there may be newer; it may not be gone.
    assert before <= set((ROOT / "kvwire").glob(f"*{SUFFIX}"))
