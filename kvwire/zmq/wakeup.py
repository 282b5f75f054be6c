"""A signal from any thread to a thread that waits in a poller."""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import sys
from collections.abc import Callable

_ONE = (1).to_bytes(8, sys.byteorder)
_C_ONE, _C_SIZE = ctypes.c_char_p(_ONE), ctypes.c_size_t(len(_ONE))


def _libc_write() -> Callable[[ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t], None] | None:
    # os.write and os.eventfd_write let go of the GIL around the call, and the woken thread then takes it: the engine's
    # thread would stand still for as long as the batch takes to be encoded and sent. PyDLL keeps the GIL, which is right
    # for a call that cannot block.
    try:
        write = ctypes.PyDLL(None).write
    except (AttributeError, OSError, TypeError):
        return None
    # Arguments that are C values already, and no result: half of what the call costs besides the system's part.
    write.restype = None
    return write


_write = _libc_write()


class Wakeup:
    """A file descriptor, `fd`, that any thread can make readable, for a poller to wait on."""

    def __init__(self) -> None:
        self._pair: tuple[socket.socket, socket.socket] | None = None
        if _write is not None and hasattr(os, "eventfd"):
            self.fd: int = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        else:
            self._pair = socket.socketpair()
            for end in self._pair:
                end.setblocking(False)
            self.fd = self._pair[0].fileno()
        self._writer = ctypes.c_int(self.fd if self._pair is None else self._pair[1].fileno())

    def set(self) -> None:
        """Make the descriptor readable, unless it already is. Never blocks, and keeps the GIL where the platform lets it."""
        if _write is not None:
            _write(self._writer, _C_ONE, _C_SIZE)
        elif self._pair is not None:
            with contextlib.suppress(BlockingIOError):
                self._pair[1].send(_ONE)

    def clear(self) -> None:
        """Make the descriptor unreadable again."""
        with contextlib.suppress(BlockingIOError):
            if self._pair is None:
                os.eventfd_read(self.fd)
            else:
                while self._pair[0].recv(4096):
                    pass

    def close(self) -> None:
        """Give the descriptor back; `fd` is then -1. Closing again does nothing."""
        if self._pair is None:
            if self.fd >= 0:
                os.close(self.fd)
        else:
            for end in self._pair:
                end.close()
        self.fd = -1
