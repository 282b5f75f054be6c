"""Waiting for many ZeroMQ sockets at once, at a cost that does not grow with those where nothing happens."""

from __future__ import annotations

import selectors
from typing import Any, Generic, TypeVar

import zmq

Owner = TypeVar("Owner")
Socket = zmq.Socket[bytes]


class Waiter(Generic[Owner]):
    """Sockets and their owners, waited for by the sockets' descriptors.

    `zmq.Poller` asks every socket on every wait: with 500 sources that takes longer than all the work on a batch. epoll
    and kqueue look only at what happened.

    A socket's descriptor tells of what comes after its owner has found the socket empty (`zmq.Again`), and any other
    call on the socket may take that word away. So an owner reads until `zmq.Again`; one that stops before, that made a
    call, or that is new is to be asked again without a wait.
    """

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._descriptors: dict[Socket, int] = {}

    def register(self, socket: Socket, owner: Owner) -> None:
        """Wait for a socket, too."""
        descriptor: Any = socket.getsockopt(zmq.FD)
        self._selector.register(descriptor, selectors.EVENT_READ, owner)
        self._descriptors[socket] = descriptor

    def unregister(self, socket: Socket) -> None:
        """No longer wait for a socket; to be called before it is closed. Nothing where it is not registered."""
        descriptor = self._descriptors.pop(socket, None)
        if descriptor is not None:
            self._selector.unregister(descriptor)

    def wait(self, seconds: float) -> set[Owner]:
        """The owners of sockets where something came, after so many seconds at most."""
        return {key.data for key, _ in self._selector.select(seconds)}

    def filenos(self) -> list[int]:
        """What is readable when `wait` would not have to wait: one descriptor where the system can, or those of all."""
        fileno = getattr(self._selector, "fileno", None)
        return list(self._descriptors.values()) if fileno is None else [fileno()]

    def close(self) -> None:
        """Give the descriptors back; the sockets are their owners'."""
        self._descriptors.clear()
        self._selector.close()
