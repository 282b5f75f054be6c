"""Durations as people type them."""

from __future__ import annotations

import re

_UNITS = {"": 1.0, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}


def seconds(text: str) -> float:
    """Seconds of ``30``, ``30s``, ``500ms``, ``2m`` or ``1h``. Raises ValueError for anything else."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", text.lower())
    if found is None or found[2] not in _UNITS:
        raise ValueError(f"{text!r} is not a duration; write 30s, 500ms, 2m or 1h")
    return float(found[1]) * _UNITS[found[2]]
