"""`kvwire-conform demo`: an embedded engine on loopback, judged over real ZeroMQ."""

from __future__ import annotations

from rich.console import Console

from kvwire.dialects import get_dialect
from kvwire.errors import UsageError
from kvwire_conform.checks.hashes import HashSettings
from kvwire_conform.live import Wanted, judge_live
from kvwire_conform.model import Report
from kvwire_conform.producer import Options
from kvwire_conform.simulator import FAULTS, SimulatedEngine

RATE = 40.0
TOPIC = "kv@pod-1@demo-model"


def run_demo(dialect: str, *, seconds: float, seed: int, fault: str | None, console: Console | None) -> Report:
    """Start the engine, listen, and judge.

    Args:
        dialect: what the engine speaks; the judge is not told.
        fault: id of a fault that the engine has; None for an engine that conforms.

    Raises:
        UsageError, DialectError: a fault or dialect that does not exist, or do not go together.
    """
    spoken = get_dialect(dialect)
    if fault is not None and fault not in FAULTS:
        raise UsageError(f"no fault is called {fault!r}; known: {', '.join(FAULTS)}")
    if fault is not None and not FAULTS[fault].applies(spoken):
        raise UsageError(f"a stream of {spoken.id} cannot have the fault {fault}: {FAULTS[fault].unless}")
    with SimulatedEngine(spoken, seed, rate=RATE, topic=TOPIC, capacity=128, fault=fault) as engine:
        profile = engine.simulators[0].profile
        if console is not None:
            where = f"{engine.endpoint}, replay {engine.replay_endpoint}"
            console.print(
                f"An embedded engine speaks {spoken.id} at {where}", highlight=False, markup=False, soft_wrap=True
            )
        options = Options(
            subject=[engine.endpoint],
            ranks={engine.endpoint: 0},
            hashes=HashSettings(profile.recipe, profile.hash_seed),
            rerun=lambda check: (
                f"kvwire-conform demo --dialect {spoken.id} --seed {seed}" + (f" --fault {fault}" if fault else "")
            ),
        )
        replays = [engine.replay_endpoint] if engine.replay_endpoint else []
        wanted = Wanted(endpoints=[engine.endpoint], replays=replays, seconds=seconds)
        return judge_live(wanted, options, console=console)
