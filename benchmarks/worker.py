"""The process of one item: ``python -m benchmarks.worker ITEM [--quick]`` prints its rows as JSON."""

from __future__ import annotations

import os
import sys

import msgspec

from benchmarks.items import ITEMS
from benchmarks.machine import compiled
from benchmarks.model import Row
from benchmarks.timing import FULL, QUICK


class Done(msgspec.Struct):
    """What a worker says.

    Attributes:
        rows: what it measured.
        compiled: the extensions that it used.
    """

    rows: list[Row]
    compiled: list[str]


def main(name: str, quick: bool) -> None:
    """Run an item and print what came out of it. What else is printed goes to stderr."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    item = next(item for item in ITEMS if item.name == name)
    rows = item.run(QUICK if quick else FULL)
    answers.write(msgspec.json.encode(Done(rows, compiled())))
    answers.flush()


if __name__ == "__main__":
    main(sys.argv[1], "--quick" in sys.argv)
