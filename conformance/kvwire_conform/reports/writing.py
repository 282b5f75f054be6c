"""Report files: where a command was asked to leave them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from kvwire.errors import UsageError

__all__ = ["write_report"]


def write_report(path: Path | None, text: Callable[[], str]) -> bool:
    """Write a report file, if one was asked for; ``-`` is standard output. True when it went there.

    Raises:
        UsageError: the file cannot be written.
    """
    if path is None:
        return False
    if str(path) == "-":
        sys.stdout.write(text())
        return True
    try:
        path.write_text(text(), encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror or error}") from error
    return False
