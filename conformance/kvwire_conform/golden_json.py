"""JSON as the golden files have it: the same bytes each time, a line for what a person compares."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

_OPENED = frozenset(("meaning", "good_siblings", "events", "vectors", "releases"))


def render(value: Mapping[str, Any]) -> bytes:
    """An object as UTF-8 JSON: its own keys, events, vectors and releases on lines of their own, all else inline."""
    return (_render(value, 0, opened=True) + "\n").encode()


def _render(value: Any, depth: int, *, opened: bool) -> str:
    if not opened or not value or not isinstance(value, (dict, list)):
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    inner, outer = "  " * (depth + 1), "  " * depth
    if isinstance(value, list):
        lines = [inner + _render(item, depth + 1, opened=False) for item in value]
        return "[\n" + ",\n".join(lines) + f"\n{outer}]"
    lines = [
        f"{inner}{json.dumps(key, ensure_ascii=False)}: {_render(item, depth + 1, opened=key in _OPENED)}"
        for key, item in value.items()
    ]
    return "{\n" + ",\n".join(lines) + f"\n{outer}}}"
