"""The project's own subscriber."""

from __future__ import annotations

import zmq

from .wire import Batch, decode


class Listener:
    """Reads batches from an engine's endpoint, in order. A context manager."""

    def __init__(self, endpoint: str) -> None:
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.SUB)
        self._socket.setsockopt(zmq.SUBSCRIBE, b"")
        self._socket.setsockopt(zmq.RCVTIMEO, 10_000)
        self._socket.connect(endpoint)

    def read(self) -> Batch:
        _topic, _seq, payload = self._socket.recv_multipart()
        return decode(payload)

    def __enter__(self) -> Listener:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close(linger=0)
        self._context.term()
