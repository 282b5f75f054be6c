"""ZeroMQ around the codec: frames and endpoint rules without sockets, publisher and subscriber with them.

`Publisher`, `Subscriber` and `AsyncSubscriber` are imported when they are first asked for, so that what needs no socket
does not import zmq.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvwire.zmq.aio import AsyncSubscriber
    from kvwire.zmq.publisher import Publisher
    from kvwire.zmq.subscriber import Subscriber

__all__ = ["AsyncSubscriber", "Publisher", "Subscriber"]

_HOMES = {"AsyncSubscriber": "aio", "Publisher": "publisher", "Subscriber": "subscriber"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
