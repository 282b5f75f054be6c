"""The unit tests on every Python that kvwire supports and this machine has, with the oldest and the newest msgspec."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

UNIT = (
    "test_codec.py",
    "test_hostile.py",
    "test_golden.py",
    "test_neutral_json.py",
    "test_frames.py",
    "test_hashing_golden.py",
)
VERSIONS = ("3.10", "3.11", "3.12", "3.13")


def interpreter(version: str) -> str | None:
    """An interpreter of this version: on the PATH, or among pyenv's."""
    candidates = [shutil.which(f"python{version}")]
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    candidates += [str(path / "bin" / "python") for path in sorted(pyenv.glob(f"{version}.*"))]
    for candidate in candidates:
        if candidate is None:
            continue
        asked = subprocess.run(
            [candidate, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"],
            capture_output=True,
            text=True,
            check=False,
        )
        if asked.returncode == 0 and asked.stdout.strip() == version:
            return candidate
    return None


@pytest.mark.slow
@pytest.mark.network
@pytest.mark.parametrize(("version", "msgspec"), [*((v, "") for v in VERSIONS), ("3.11", "==0.18.6")])
def test_unit_tests_pass(version: str, msgspec: str, tmp_path: Path) -> None:
    if f"{sys.version_info[0]}.{sys.version_info[1]}" == version and not msgspec:
        pytest.skip("these very tests run on it")
    python = interpreter(version)
    if python is None:
        pytest.skip(f"no Python {version} on this machine")
    venv = tmp_path / "venv"
    subprocess.run([python, "-m", "venv", venv], check=True, timeout=120)
    requirements = ["-e", f"{ROOT}[conform,hash]", "pytest", "hypothesis", f"msgspec{msgspec}"]
    subprocess.run(
        [venv / "bin" / "pip", "install", "-q", "--disable-pip-version-check", *requirements], check=True, timeout=300
    )
    tests = [str(ROOT / "tests" / name) for name in UNIT if (ROOT / "tests" / name).exists()]
    done = subprocess.run(
        [venv / "bin" / "python", "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
