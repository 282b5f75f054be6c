"""In which of the router's tiers a medium may stand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

__all__ = ["STANDARD_MEDIA", "Place", "place_of"]

STANDARD_MEDIA = ("GPU", "CPU_PINNED", "DISK", "EXTERNAL")
"""One medium for each of the router's tiers."""

_HOST, _DISK, _EXTERNAL = "host_pinned", "disk", "external"

_CONSTANTS: Mapping[str, tuple[str, ...]] = {
    "GPU": ("device",),
    "CPU": (_HOST,),
    "CPU_PINNED": (_HOST,),
    "DISK": (_DISK,),
    "EXTERNAL": (_EXTERNAL,),
    "FS": (_DISK, _EXTERNAL),
    "OBJ": (_DISK, _EXTERNAL),
    "STORAGE": (_DISK, _EXTERNAL),
}
"""The engines' constants (spec/events.md, "Medium"). Where a constant does not tell shared storage from the worker's own,
both tiers are right."""

_LOOSE: Mapping[str, tuple[str, ...]] = {
    "gpu": ("device",),
    "HBM": ("device",),
    "cpu": (_HOST,),
    "SSD": (_DISK,),
    "SHARED_STORAGE": (_DISK, _EXTERNAL),
}
"""No engine's constants, though their sense is plain: a router may pass over them, and must not put them elsewhere."""


class Place(NamedTuple):
    """Where blocks of a medium may stand.

    Attributes:
        tiers: the router's names; empty where none is right.
        reason: why a router may pass over such a block; empty where it may not.
    """

    tiers: tuple[str, ...]
    reason: str = ""


def place_of(medium: str | None) -> Place:
    """The place of a medium; nil counts as ``GPU``."""
    if medium is None:
        return Place(_CONSTANTS["GPU"])
    if medium in _CONSTANTS:
        return Place(_CONSTANTS[medium])
    return Place(_LOOSE.get(medium, ()), f"medium {medium!r:.40} is no engine's constant")
