"""A TCP proxy that cuts and stalls what goes through it, as a bad network does."""

from __future__ import annotations

import selectors
import socket
import threading


class Proxy:
    """Stands between a subscriber and one port of a publisher; a context manager, served by a thread of its own.

    Args:
        target: the port on loopback that connections go on to.
    """

    def __init__(self, target: int) -> None:
        self._target = target
        self._selector = selectors.DefaultSelector()
        self._pairs: dict[socket.socket, socket.socket] = {}
        self._lock = threading.Lock()
        self._stalled = False
        self._refusing = False
        self._running = True
        self.connections = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._serve, daemon=True)

    @property
    def endpoint(self) -> str:
        return f"tcp://127.0.0.1:{self.port}"

    def __enter__(self) -> Proxy:
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._running = False
        self._thread.join(5)
        self.cut()
        self._listener.close()
        self._selector.close()

    def cut(self) -> None:
        """Close every connection, whatever is under way on it."""
        with self._lock:
            for end in list(self._pairs):
                self._close(end)

    def stall(self, stalled: bool = True) -> None:
        """Pass nothing on, but keep the connections; or go on."""
        self._stalled = stalled

    def refuse(self, refusing: bool = True) -> None:
        """Close new connections at once; or take them again."""
        self._refusing = refusing

    def _serve(self) -> None:
        while self._running:
            if self._stalled:
                # Nothing is read, so that the buffers of both ends fill up, as with a peer that is gone.
                threading.Event().wait(0.01)
                continue
            for key, _ in self._selector.select(0.05):
                end = key.fileobj
                assert isinstance(end, socket.socket)
                with self._lock:
                    if end is self._listener:
                        self._accept()
                    elif end in self._pairs and not self._stalled:
                        self._pass_on(end)

    def _accept(self) -> None:
        near, _ = self._listener.accept()
        if self._refusing:
            near.close()
            return
        try:
            far = socket.create_connection(("127.0.0.1", self._target), 5)
        except OSError:
            near.close()
            return
        self.connections += 1
        for end, other in ((near, far), (far, near)):
            end.settimeout(0.2)
            self._pairs[end] = other
            self._selector.register(end, selectors.EVENT_READ)

    def _pass_on(self, end: socket.socket) -> None:
        try:
            data = end.recv(65536)
            if data:
                self._pairs[end].sendall(data)
                return
        except TimeoutError:
            pass  # The other end takes nothing in: half of a message may be gone, so the connection is, too.
        except OSError:
            pass
        self._close(end)

    def _close(self, end: socket.socket) -> None:
        other = self._pairs.pop(end, None)
        if other is None:
            return
        self._pairs.pop(other, None)
        for one in (end, other):
            self._selector.unregister(one)
            one.close()
