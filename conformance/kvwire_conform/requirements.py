"""The rows of ``spec/requirements.toml``."""

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping

import msgspec

from kvwire._resources import spec_dir
from kvwire_conform.model import Requirement

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


@functools.lru_cache(maxsize=1)
def requirements() -> Mapping[str, Requirement]:
    """Every requirement by id, in the order of the specification.

    Raises:
        ValueError: the file is not what it has to be (a duplicate id, or a row with neither check nor reason).
    """
    rows = tomllib.loads((spec_dir() / "requirements.toml").read_text(encoding="utf-8"))["requirement"]
    found: dict[str, Requirement] = {}
    for row in rows:
        requirement = msgspec.convert(row, Requirement)
        if requirement.id in found:
            raise ValueError(f"requirements.toml: the id {requirement.id} stands twice")
        if bool(requirement.checks) == bool(requirement.excluded):
            raise ValueError(f"requirements.toml: {requirement.id} needs either checks or a reason in excluded")
        found[requirement.id] = requirement
    return found


def producer_checks() -> list[Requirement]:
    """The requirements that `kvwire-conform producer` judges."""
    return [row for row in requirements().values() if row.role == "producer" and row.checks]
