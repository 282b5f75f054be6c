"""What the README shows is true."""

from __future__ import annotations

import re

from kvwire import DIALECTS
from kvwire_conform.requirements import producer_checks
from tests.conftest import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.M | re.S)


def test_the_python_snippets_run() -> None:
    snippets = blocks("python")
    assert snippets
    for snippet in snippets:
        exec(compile(snippet, "README.md", "exec"), {})


def test_the_demo_output_has_the_checks_of_today() -> None:
    (output,) = (block for block in blocks("text") if "speaks slot8" in block)
    shown = set(re.findall(r"^  (?:pass|FAIL|warn|skip|inconclusive)\s+([a-z0-9-]+)", output, re.M))
    assert shown == {row.id for row in producer_checks()}
    assert "exit 0" in output


def test_every_dialect_is_listed() -> None:
    for d in DIALECTS.values():
        assert f"[`{d.id}`](spec/dialects/{d.id}.md)" in README
        assert d.emitters in README


def test_links_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", README):
        assert (ROOT / target).exists(), target
