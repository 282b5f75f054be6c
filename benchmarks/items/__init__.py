"""What is measured, one module an item; each runs in a process of its own.

An item that the compiled extension can change is run with it and without it (``KVWIRE_PURE=1``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module

from benchmarks.model import Row
from benchmarks.timing import Effort


@dataclass(frozen=True)
class Item:
    """One thing that is measured.

    Attributes:
        name: as ``--only`` takes it, and the module of `benchmarks.items`.
        title: its heading.
        variants: whether it is run with and without the compiled extension.
    """

    name: str
    title: str
    variants: bool = True

    def run(self, effort: Effort) -> list[Row]:
        """Measure it, in this process."""
        measure: Callable[[Effort], list[Row]] = import_module(f"benchmarks.items.{self.name}").run
        return measure(effort)


ITEMS = (
    Item("decode", "Decode, dialect not told"),
    Item("decode_told", "Decode, dialect told"),
    Item("skip_tokens", "Decode without token ids"),
    Item("memory", "Memory of decoded events"),
    Item("encode", "Encode"),
    Item("translate", "Translate"),
    Item("token_array", "Token ids into a buffer"),
    Item("publish", "Publisher: the engine's thread", variants=False),
    Item("replay", "Publisher: replay", variants=False),
    Item("subscribe", "Subscriber: one source", variants=False),
    Item("sources", "Subscriber: many sources", variants=False),
    Item("recording", "kvwire-conform producer --recording"),
    Item("hashing", "Hash recipes", variants=False),
    Item("imports", "Import", variants=False),
)
"""In the order in which they are run and reported."""
