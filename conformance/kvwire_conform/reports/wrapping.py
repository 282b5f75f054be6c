"""Where lines break, measured in terminal cells."""

from __future__ import annotations

import re

from rich.cells import cell_len

_PER_CELL = 4
"""Characters that a cell may hold; combining marks beyond that are folded away, so that long text costs little."""
_WORD = re.compile(r" *[^ ]+")


def wrap(text: str, first: int, rest: int) -> list[tuple[int, int]]:
    """Break a text at spaces, and words that are too long anywhere.

    Args:
        first, rest: cells that the first line and each further one have; at least 2.

    Returns:
        Start and end of each line in the text, without the spaces between the lines.
    """
    lines: list[tuple[int, int]] = []
    start = end = 0
    room = first
    for found in _WORD.finditer(text):
        if not _too_wide(text[start : found.end()], room):
            end = found.end()
            continue
        if end > start:
            lines.append((start, end))
            room = rest
        start = found.start() + _spaces(found.group()) if lines else start
        end = found.end()
        while _too_wide(text[start:end], room):
            cut = start + max(1, fit(text[start:end], room))
            lines.append((start, cut))
            start, room = cut, rest
    if end > start:
        lines.append((start, end))
    return lines


def fit(text: str, room: int) -> int:
    """How many characters of a text fit into so many cells."""
    low, high = 0, min(len(text), room * _PER_CELL)
    while low < high:
        middle = (low + high + 1) // 2
        if cell_len(text[:middle]) <= room:
            low = middle
        else:
            high = middle - 1
    return low


def cut(text: str, room: int, ellipsis: str) -> str:
    """The text, or as much of it as fits, at a word's end where one is near, and an ellipsis."""
    if not _too_wide(text, room):
        return text
    kept = text[: fit(text, room - cell_len(ellipsis))]
    head, _, tail = kept.rpartition(" ")
    return (head if head and len(tail) < 20 else kept).rstrip(" ,;") + ellipsis


def _too_wide(text: str, room: int) -> bool:
    return len(text) > room * _PER_CELL or cell_len(text) > room


def _spaces(word: str) -> int:
    return len(word) - len(word.lstrip(" "))
