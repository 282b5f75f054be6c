"""Import time in fresh interpreters: kvwire against msgspec alone."""

from __future__ import annotations

import subprocess
import sys

from benchmarks.model import Row, compared
from benchmarks.timing import Effort

TARGET = 1.3
MSGSPEC = "import msgspec"
CASES = {
    "import kvwire": (MSGSPEC, TARGET),
    "from kvwire import decode": (MSGSPEC, None),
    "from kvwire.zmq import Publisher, Subscriber": ("import msgspec, zmq", None),
}
"""Statements, what each is held against, and the target."""

SCRIPT = "import time\nstart = time.perf_counter()\n{}\nprint(time.perf_counter() - start)"


def run(effort: Effort) -> list[Row]:
    """What the import statement takes in a new interpreter, interleaved. Bytecode is cached, as in any installation.

    The names of kvwire are imported when they are first asked for: the second case is what the first use adds.
    """
    statements = list(dict.fromkeys([*CASES, *(peer for peer, _ in CASES.values())]))
    series: dict[str, list[float]] = {statement: [] for statement in statements}
    for statement in statements:
        import_seconds(statement)
    for turn in range(2 if effort.quick else 25):
        first = turn % len(statements)
        for statement in statements[first:] + statements[:first]:
            series[statement].append(import_seconds(statement))
    return [
        compared(
            {"kvwire": series[statement], peer: series[peer]},
            peer,
            item="imports",
            case=statement,
            measure=f"time / {peer}",
            target=target,
            sense="<=",
            unit="ms",
            factor=1e3,
            inverse=False,
        )
        for statement, (peer, target) in CASES.items()
    ]


def import_seconds(statement: str) -> float:
    """Seconds that a statement takes in a new interpreter."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(statement)], capture_output=True, text=True, check=True, timeout=60
    )
    return float(done.stdout)
