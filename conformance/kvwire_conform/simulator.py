"""A seeded engine that speaks any dialect, can be told to misbehave, and runs on real sockets.

`Simulator` makes batches and messages, `SimulatedEngine` publishes them over ZeroMQ with replay and SGLang's
``/server_info``, and `FAULTS` are the named ways to go wrong, one for each check::

    for topic, seq, payload in Simulator("slot8", seed=7, fault="parent-known").messages(200): ...

    with SimulatedEngine("vllm-map5", rate=50) as engine:
        subscriber.connect(engine.endpoint)
"""

from __future__ import annotations

from kvwire_conform.simulator_engine import EngineError, SimulatedEngine, consecutive_ports
from kvwire_conform.simulator_faults import FAULTS, Fault
from kvwire_conform.simulator_http import ServerInfo
from kvwire_conform.simulator_model import Frames, Simulator
from kvwire_conform.simulator_replay import ReplayBuffer

__all__ = [
    "FAULTS",
    "EngineError",
    "Fault",
    "Frames",
    "ReplayBuffer",
    "ServerInfo",
    "SimulatedEngine",
    "Simulator",
    "consecutive_ports",
]
