"""The page of the matrix in a real browser (Debian's chromium and chromium-driver)."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).resolve().parents[1] / "docs" / "matrix.html"
BROWSER = shutil.which("chromium") or shutil.which("chromium-browser")
DRIVER = shutil.which("chromedriver")

if not (BROWSER and DRIVER):
    missing = "chromium" if not BROWSER else "chromedriver"
    if os.environ.get("KVWIRE_REQUIRE_BROWSER") == "1":
        raise RuntimeError(f"{missing} is not on PATH; install the packages chromium and chromium-driver")
    pytest.skip(f"{missing} is not on PATH", allow_module_level=True)

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("browser")]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = str(BROWSER)
    for word in (
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--window-size=1400,1000",
    ):
        options.add_argument(word)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(str(DRIVER)))
    yield driver
    driver.quit()


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    browser.set_window_size(1400, 1000)
    browser.get("about:blank")
    browser.get(PAGE.as_uri())
    yield browser
    assert [line["message"] for line in browser.get_log("browser") if line["level"] == "SEVERE"] == []


def js(page: Any, code: str, *arguments: Any) -> Any:
    return page.execute_script(code, *arguments)


def visible_rows(page: Any) -> list[str]:
    found: list[str] = js(
        page,
        "return [...document.querySelectorAll('#matrix tbody tr')].filter(r => !r.hidden).map(r => r.dataset.producer)",
    )
    return found


def visible_columns(page: Any) -> list[str]:
    found: list[str] = js(
        page,
        "return [...document.querySelectorAll('#matrix thead th.column')].filter(c => !c.hidden && c.offsetParent)"
        ".map(c => c.textContent.trim().replace(/\\s+/g, ' '))",
    )
    return found


def type_into(page: Any, ident: str, value: str) -> None:
    js(
        page,
        "const f = document.getElementById(arguments[0]); f.value = arguments[1];"
        "f.dispatchEvent(new Event('input', {bubbles: true}))",
        ident,
        value,
    )


def test_it_shows_every_dialect_and_the_routers_first(page: Any) -> None:
    from kvwire import DIALECTS

    assert visible_rows(page) == [*DIALECTS, "any"]
    assert visible_columns(page)[0] == "dynamo-indexer 1.2.1"
    assert not any("structs" in name for name in visible_columns(page))


def test_it_loads_nothing(page: Any) -> None:
    import json

    asked = [json.loads(line["message"])["message"] for line in page.get_log("performance")]
    urls = {m["params"]["request"]["url"] for m in asked if m["method"] == "Network.requestWillBeSent"}
    assert urls <= {PAGE.as_uri(), "about:blank"}


def test_groups_of_consumers_come_and_go(page: Any) -> None:
    before = len(visible_columns(page))
    page.find_element("css selector", "[name=group][value=engine]").click()
    assert len(visible_columns(page)) > before
    page.find_element("css selector", "[name=group][value=router]").click()
    assert not any("dynamo-indexer" in name for name in visible_columns(page))


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("map5", ["vllm-map5"]),
        ("vllm 0.24.0", ["vllm-map1"]),
        ("vllm 0.11", ["slot7"]),
        ("sglang 0.5.19", ["slot8"]),
        ("no such thing", []),
    ],
)
def test_a_release_finds_its_dialect(page: Any, text: str, rows: list[str]) -> None:
    type_into(page, "find", text)
    assert visible_rows(page) == rows
    assert js(page, "return document.getElementById('nothing').hidden") is bool(rows)
    type_into(page, "find", "")
    assert len(visible_rows(page)) > 10


def test_a_kind_of_payload_shows_its_own_verdicts(page: Any) -> None:
    type_into(page, "feature", "salt")
    button = page.find_element("css selector", "tr[data-producer=slot8] td[data-group=router] button")
    assert "salt: rejected" in button.get_attribute("title")
    assert "v-rejected" in button.get_attribute("class")


def test_a_column_sorts_the_rows_worst_first_and_the_corner_back(page: Any) -> None:
    page.find_element("css selector", "th.column button").click()
    states: list[str] = js(
        page,
        "return [...document.querySelectorAll('#matrix tbody tr')].map(r => r.querySelector('td .mark').className)",
    )
    ranks = [("s-reads", "s-unseen", "s-partly", "s-blind").index(name.split()[-1]) for name in states]
    assert ranks == sorted(ranks, reverse=True) and len(set(ranks)) > 1
    assert visible_rows(page)[0] == "slot6-b2"
    page.find_element("css selector", ".corner button").click()
    assert visible_rows(page)[1] == "slot6"


def test_evidence_is_one_click_away(page: Any) -> None:
    page.find_element("css selector", "tr[data-producer=slot8] td[data-group=router] button").click()
    dialog = page.find_element("id", "evidence")
    assert dialog.is_displayed()
    assert "dynamo-indexer 1.2.1 on slot8" in dialog.text
    summary = next(s for s in dialog.find_elements("css selector", "summary") if s.text.split("\n")[1] == "salt")
    summary.click()
    text = dialog.text
    assert "slot8/salt" in text and "expected a string" in text and "93 cb" in text
    assert page.current_url.endswith("#slot8%2Fdynamo-indexer%201.2.1")
    page.find_element("css selector", ".close").click()
    assert not dialog.is_displayed()
    assert "#" not in page.current_url


def test_a_link_opens_its_cell(page: Any) -> None:
    page.get("about:blank")
    page.get(PAGE.as_uri() + "#slot9%2Fdynamo-indexer%201.3.1")
    dialog = page.find_element("id", "evidence")
    assert dialog.is_displayed() and "dynamo-indexer 1.3.1 on slot9" in dialog.text


def test_a_phone_shows_one_consumer_without_scrolling_sideways(page: Any) -> None:
    page.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride", {"width": 375, "height": 800, "deviceScaleFactor": 1, "mobile": True}
    )
    try:
        page.refresh()
        assert len(visible_columns(page)) == 1
        assert js(page, "return document.documentElement.scrollWidth <= innerWidth")
        type_into(page, "consumer", "4")
        assert len(visible_columns(page)) == 1 and "indexer" not in visible_columns(page)[0]
    finally:
        page.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_in_both_schemes(page: Any, scheme: str) -> None:
    page.execute_cdp_cmd(
        "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    )
    ratios = js(
        page,
        """
        const light = (c) => { const [r, g, b] = c.match(/[\\d.]+/g).map(Number).map(v => { v /= 255;
          return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4 }); return 0.2126*r + 0.7152*g + 0.0722*b };
        const back = (e) => { while (e) { const c = getComputedStyle(e).backgroundColor;
          if (!/, 0\\)$/.test(c)) return c; e = e.parentElement } return 'rgb(255,255,255)' };
        return ['h1', '.hint', '.releases', '.mark.s-partly', '.mark.s-blind', '.word.v-wrong', '.word.v-exact'].map(s => {
          const e = document.querySelector(s), a = light(getComputedStyle(e).color), b = light(back(e));
          return [s, (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05)] })
        """,
    )
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    assert {name: ratio for name, ratio in ratios if ratio < 4.5} == {}


def test_print_has_the_tables_and_no_controls(page: Any) -> None:
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    try:
        assert not page.find_element("id", "controls").is_displayed()
        assert page.find_element("id", "matrix").is_displayed()
        assert js(page, "return getComputedStyle(document.getElementById('frame')).overflow") == "visible"
    finally:
        page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})


def test_without_javascript_the_table_and_the_text_are_there(page: Any) -> None:
    page.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        page.refresh()
        assert page.find_element("id", "matrix").is_displayed()
        assert not page.find_element("id", "controls").is_displayed()
        assert "What breaks, consumer by consumer" in page.find_element("tag name", "body").text
    finally:
        page.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})
