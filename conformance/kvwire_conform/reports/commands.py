"""Command lines that can be copied off the terminal."""

from __future__ import annotations

import re
import shlex

from kvwire_conform.reports.page import Page

__all__ = ["show_command"]

_INDENT = 4
_COLUMN = 14
_PLAIN = re.compile(r"[A-Za-z0-9_@%+=:,./-]+")
"""A word without anything that a shell or a terminal minds."""


def show_command(page: Page, command: str, label: str = "rerun") -> None:
    """A command line that can be copied even where it has to be broken."""
    words = _shell_words(command)
    around = len("  ") + len(" \\")
    column = _COLUMN
    if any(page.wide(word) > page.width - column - around for word in words):
        page.line((label, "dim"), indent=_INDENT)
        column = _INDENT
    room = page.width - column - around
    lines: list[str] = []
    for word in words:
        if lines and page.wide(f"{lines[-1]} {word}") <= room:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    for number, line in enumerate(lines):
        end = " \\" if number + 1 < len(lines) else ""
        indent = "  " if number else ""
        if column == _INDENT and _PLAIN.fullmatch(line) and page.wide(line) > room:
            _show_long_word(page, line, end)
            continue
        shown = label if column == _COLUMN and not number else ""
        page.pair(shown, f"{indent}{line}{end}", indent=_INDENT, column=column)


def _show_long_word(page: Page, word: str, end: str) -> None:
    """A word that no line can hold: broken by a backslash, behind which a shell joins only what begins at the margin."""
    indent = _INDENT + 2
    while len(word) + len(end) > page.width - indent:
        room = max(1, page.width - indent - 1)
        page.line(f"{word[:room]}\\", indent=indent)
        word, indent = word[room:], 0
    page.line(f"{word}{end}", indent=indent)


def _shell_words(command: str) -> list[str]:
    try:
        return shlex.split(command, posix=False) or [command]
    except ValueError:
        return command.split(" ")
