"""A command line of a report, broken as it has to be, is the same command when it is pasted into a shell."""

from __future__ import annotations

import io
import shlex
import subprocess

import pytest
from rich.console import Console

from kvwire_conform.reports.commands import show_command
from kvwire_conform.reports.page import Page

PATH = "build/testees/dynamo-kv-router@1.4.2/work/dynamo-kv-router-testee"


def shown(command: str, width: int) -> str:
    out = io.StringIO()
    show_command(Page(Console(file=out, width=width, no_color=True), 0), command)
    return out.getvalue()


@pytest.mark.parametrize("width", [20, 33, 50, 64, 80, 200])
@pytest.mark.parametrize(
    "command",
    [
        f"kvwire-conform consumer --only slot8/salt -v -- {PATH}",
        f"kvwire-conform consumer --only slot8/salt -v -- {PATH} --reading told",
        f"kvwire-conform consumer -- java -cp {PATH}.jar:{PATH}-core.jar Testee {PATH}",
        "kvwire-conform consumer --only 'slot8/*' -- ./testee",
    ],
)
def test_it_pastes_as_the_same_words_at_any_width(command: str, width: int) -> None:
    text = shown(command, width)
    assert max(map(len, text.splitlines())) <= width
    script = 'kvwire-conform() { printf "%s\\0" "$@"; }\n' + text.replace("rerun", "     ", 1)
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split("\0")[:-1] == shlex.split(command)[1:]
