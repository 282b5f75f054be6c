"""What a run ran on: the machine, the versions, and whether the compiled extension is in use."""

from __future__ import annotations

import importlib
import os
import platform
from importlib import metadata

from kvwire import SPEEDUPS

PEERS = ("msgspec", "pyzmq", "msgpack", "ormsgpack", "numpy", "xxhash", "cbor2")


def machine() -> dict[str, str]:
    """CPU model, cores, memory, system and Python."""
    return {
        "cpu": _cpu(),
        "cores": str(os.cpu_count()),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "compiler": platform.python_compiler(),
    }


def _cpu() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            names = [line.split(":", 1)[1].strip() for line in file if line.startswith("model name")]
    except OSError:
        names = []
    return names[0] if names else platform.processor() or "unknown"


def versions() -> dict[str, str]:
    """Of kvwire and every peer that is installed."""
    found = {}
    for name in ("kvwire", *PEERS):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    if "pyzmq" in found:
        found["libzmq"] = importlib.import_module("zmq").zmq_version()
    return found


def compiled() -> list[str]:
    """The compiled extensions of kvwire that this process uses; empty when it runs in pure Python."""
    return list(SPEEDUPS)
