"""The releases that the tests read, one list for all of them, and how a test asks for one."""

from __future__ import annotations

import os
from dataclasses import dataclass

import pytest

from kvwire_conform.releases import Engine, ReleaseError, ReleaseSource, fetch_module

REQUIRE = "KVWIRE_REQUIRE_RELEASES"
"""Set to 1 where the package index must be there (CI): a release that cannot be had then fails the test."""


@dataclass(frozen=True)
class Release:
    """One published release and the dialect it emits."""

    dialect: str
    engine: Engine
    version: str

    def __str__(self) -> str:
        return f"{self.dialect}-{self.engine}-{self.version}"


RELEASES: tuple[Release, ...] = (
    Release("slot6-b2", "sglang", "0.4.6.post5"),
    Release("slot6-b2", "vllm", "0.9.0"),
    Release("slot6", "sglang", "0.5.8"),
    Release("slot6", "vllm", "0.10.1"),
    Release("slot7", "sglang", "0.5.17"),
    Release("slot7", "vllm", "0.13.0"),
    Release("slot8", "sglang", "0.5.19"),
    Release("slot8-lora", "vllm", "0.16.0"),
    Release("slot9", "vllm", "0.19.1"),
    Release("slot10", "vllm", "0.21.0"),
    Release("slot12", "vllm", "0.23.0"),
    Release("sglang-map1", "sglang", "0.5.21"),
    Release("sglang-map2", "sglang", "0.5.23"),
    Release("vllm-map1", "vllm", "0.25.1"),
    Release("vllm-map2", "vllm", "0.28.0"),
    Release("vllm-map3", "vllm", "0.29.0"),
    Release("vllm-map4", "vllm", "0.32.0"),
    Release("vllm-map5", "vllm", "0.33.0"),
)
"""At least one release per dialect that a release emits; add a line to have another read by every test that uses it."""


def find_release(engine: Engine, version: str) -> Release:
    """The entry of `RELEASES` for a release that a test names."""
    return next(release for release in RELEASES if (release.engine, release.version) == (engine, version))


def require_source(engine: Engine, version: str) -> ReleaseSource:
    """The source of a release. Skips the test if the package index cannot be reached, or fails it where that is asked."""
    try:
        return fetch_module(engine, version)
    except ReleaseError as error:
        if error.code not in ("release-unreachable", "no-pip") or os.environ.get(REQUIRE) == "1":
            raise
        pytest.skip(f"{engine} {version} is not in the cache and cannot be fetched: {error}")
