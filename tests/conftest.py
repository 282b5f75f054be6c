"""What all tests share: Hypothesis settings, and where the captures of real engines are."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

ROOT = Path(__file__).resolve().parent.parent
CAPTURES = Path(os.environ.get("KVWIRE_CAPTURES", ROOT.parent / "shared" / "captures"))

settings.register_profile(
    "kvwire",
    deadline=None,
    max_examples=100,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.register_profile("thorough", parent=settings.get_profile("kvwire"), max_examples=2000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "kvwire"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Slow tests first, so that two workers end together."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)
