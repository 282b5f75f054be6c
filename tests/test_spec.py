"""The specification says what the registry says, and every requirement is a sentence that something judges."""

from __future__ import annotations

import re

import pytest

from kvwire._resources import spec_dir
from kvwire.dialects import DIALECTS
from kvwire_conform.requirements import producer_checks, requirements
from kvwire_conform.spec_pages import pages
from tests.conftest import ROOT


@pytest.mark.parametrize("name", pages())
def test_dialect_pages_are_those_of_the_registry(name: str) -> None:
    written = (spec_dir() / "dialects" / name).read_text(encoding="utf-8")
    assert written == pages()[name], "run python -m kvwire_conform.spec_pages"


def test_no_page_is_left_over() -> None:
    assert {path.name for path in (ROOT / "spec" / "dialects").iterdir()} == set(pages())


def test_every_requirement_stands_in_a_section() -> None:
    for row in requirements().values():
        page, _, anchor = row.section.partition("#")
        text = (spec_dir() / page).read_text(encoding="utf-8")
        headings = {
            re.sub(r"[^a-z0-9 -]", "", h.lower()).strip().replace(" ", "-")
            for h in re.findall(r"^#+ (.+)$", text, re.M)
        }
        assert not anchor or anchor in headings, f"{row.id}: {page} has no section {anchor}"
        assert row.text.endswith("."), row.id
        assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", row.id)


def test_producer_requirements_have_a_check_of_their_name() -> None:
    for row in requirements().values():
        if row.role == "producer":
            assert row.checks == [row.id] or row.excluded
    assert len(producer_checks()) > 30


def test_links_between_pages_lead_somewhere() -> None:
    for page in sorted((ROOT / "spec").rglob("*.md")):
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_the_facts_of_the_registry() -> None:
    assert len(DIALECTS) == 16
    spans = [(s.engine, s.first) for d in DIALECTS.values() for s in d.releases]
    assert len(spans) == len(set(spans))
