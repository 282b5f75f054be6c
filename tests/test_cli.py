"""The command `kvwire`."""

from __future__ import annotations

import pytest

from kvwire.cli import main


def test_hash(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["hash", "sglang", "-b", "4", "-t", "1", "2", "3", "4"]) == 0
    assert "-3488128144981237669" in capsys.readouterr().out


def test_a_mistake_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["hash", "sglng", "-b", "4", "-t", "1"]) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--version"])
    assert caught.value.code == 0
    assert "kvwire 0." in capsys.readouterr().out
