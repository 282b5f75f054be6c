"""The pytest plugin: golden vectors for a project's decoder and encoder, checks for its publisher, an engine for its
subscriber.

::

    @pytest.mark.kvwire_vectors(dialects=["slot8", "vllm-map5"])
    def test_decode(vector):
        vector.check_decoder(mine.decode)

    def test_publisher(kvwire_check):
        kvwire_check(frames, dialect="slot8")

    def test_subscriber(kvwire_engine):
        engine = kvwire_engine("vllm-map5", seed=7)

It is there wherever kvwire is installed beside pytest, so it imports nothing before it is used; ``-p no:kvwire`` leaves it
out. docs/ci.md has the options, and `VectorCase`, `PublisherCheck`, `Engines` and `Engine` are for annotations.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from kvwire_conform.pytest_engine import Engine, Engines
    from kvwire_conform.pytest_publisher import PublisherCheck
    from kvwire_conform.pytest_vectors import VectorCase

__all__ = ["Engine", "Engines", "PublisherCheck", "VectorCase"]

MARKER = "kvwire_vectors"
_MARKER_LINE = (
    f"{MARKER}(dialects, kind, only, reading, suite, known_failures): run the test, which takes `vector`, once for each "
    "golden vector of these dialects (kvwire, docs/ci.md)"
)
_HOMES = {
    "Engine": "kvwire_conform.pytest_engine",
    "Engines": "kvwire_conform.pytest_engine",
    "PublisherCheck": "kvwire_conform.pytest_publisher",
    "VectorCase": "kvwire_conform.pytest_vectors",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        import importlib

        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def pytest_configure(config: pytest.Config) -> None:
    """Make the marker known, for ``--strict-markers``."""
    config.addinivalue_line("markers", _MARKER_LINE)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test for each vector."""
    marker = metafunc.definition.get_closest_marker(MARKER)
    if marker is not None:
        from kvwire_conform.pytest_vectors import parametrize

        parametrize(metafunc, marker)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Say of a failed vector what it is, and keep its verdict for the summary."""
    outcome: Any = yield
    report = None if outcome.excinfo is not None else outcome.get_result()
    if report is not None and report.failed and item.get_closest_marker(MARKER) is not None:
        from kvwire_conform.pytest_summary import note

        note(item, report, None if call.excinfo is None else call.excinfo.value)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Group failed vectors by what is likely one cause."""
    reports = [report for report in terminalreporter.getreports("failed") if hasattr(report, "kvwire_judgement")]
    if reports:
        from kvwire_conform.pytest_summary import summarise

        summarise(terminalreporter, reports)


@pytest.fixture
def kvwire_check(tmp_path_factory: pytest.TempPathFactory) -> PublisherCheck:
    """Judge what a publisher sent: ``kvwire_check(frames, dialect="slot8")`` fails the test with a report."""
    from kvwire_conform.pytest_publisher import PublisherCheck

    return PublisherCheck(lambda: tmp_path_factory.mktemp("kvwire", numbered=True))


@pytest.fixture
def kvwire_engine() -> Iterator[Engines]:
    """Simulated engines on free ports: ``engine = kvwire_engine("slot8", seed=7)``; they are stopped after the test."""
    from kvwire_conform.pytest_engine import Engines

    with Engines() as engines:
        yield engines
