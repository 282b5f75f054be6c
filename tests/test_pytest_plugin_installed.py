"""The plugin out of a wheel, without the extra, under the oldest pytest that it works with."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.network]

OLDEST = "7.0.0" if sys.version_info < (3, 12) else "7.4.4"
"""pytest 7.0 cannot rewrite assertions on Python 3.12."""

PLAIN = """
import sys

def test_it():
    assert not {"kvwire", "msgspec", "zmq"} & set(sys.modules)
"""
USE = """
import kvwire, pytest
from kvwire_conform.simulator import Simulator

@pytest.mark.kvwire_vectors(dialects=["slot8", "vllm-map5"], kind="valid")
def test_decode(vector):
    vector.check_decoder(kvwire.decode)

def test_engine(kvwire_engine):
    assert kvwire_engine("slot8", wait_for_subscriber=False).publish(2)

def test_check(kvwire_check):
    kvwire_check(Simulator("slot8", 3).messages(50))
"""


def run(*command: object, cwd: Path) -> str:
    done = subprocess.run(
        [str(word) for word in command], cwd=cwd, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def test_beside_the_oldest_pytest(tmp_path: Path) -> None:
    venv = tmp_path / "venv"
    run(sys.executable, "-m", "venv", venv, cwd=tmp_path)
    pip = [venv / "bin" / "pip", "install", "-q", "--disable-pip-version-check"]
    run(*pip, ROOT, f"pytest=={OLDEST}", cwd=tmp_path)
    (tmp_path / "test_plain.py").write_text(PLAIN)
    (tmp_path / "test_use.py").write_text(USE)
    pytest_ = [venv / "bin" / "python", "-m", "pytest", "-p", "no:cacheprovider", "--strict-markers", "-W", "error"]
    told = run(*pytest_, "test_plain.py", cwd=tmp_path)
    assert f"pytest-{OLDEST}" in told
    assert "plugins: kvwire-" in told
    assert " passed" in run(*pytest_, "test_use.py", cwd=tmp_path)
