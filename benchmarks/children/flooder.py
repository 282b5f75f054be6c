"""Publishers that are faster than any subscriber: raw PUB sockets that wait for their subscribers instead of dropping."""

from __future__ import annotations

import sys
import time

import msgspec
import zmq

from benchmarks.children.line import serve
from benchmarks.payloads import SHAPES, corpus_of, shaped_batch

DIALECT = "vllm-map5"
TOPIC = b"kv@pod@model"
HWM = 1000


def payloads(shape: str) -> list[bytes]:
    """A few different batches of one stored event."""
    assert shape in SHAPES
    return corpus_of(shape, DIALECT, [shaped_batch(DIALECT, shape, seed=seed) for seed in range(8)]).payloads


class Flooder:
    """So many sockets, each a source with seqs of its own."""

    def __init__(self, sources: int, shape: str, hwm: int) -> None:
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        context.set(zmq.MAX_SOCKETS, max(1023, sources + 16))
        self.context = context
        self._hwm = hwm
        self.sockets = [self._socket() for _ in range(sources)]
        self.endpoints = [socket.getsockopt_string(zmq.LAST_ENDPOINT) for socket in self.sockets]
        self._payloads = payloads(shape)
        self._next = [0] * sources

    def _socket(self) -> zmq.Socket[bytes]:
        socket = self.context.socket(zmq.PUB)
        socket.setsockopt(zmq.SNDHWM, self._hwm)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.XPUB_NODROP, 1)
        socket.bind("tcp://127.0.0.1:*")
        return socket

    def flood(self, count: int, sources: int, interval: float) -> None:
        """Publish so many batches on the first sources in turn; paced in slices of a millisecond where an interval is
        given."""
        due = time.perf_counter()
        for number in range(count):
            if interval:
                due += interval
                left = due - time.perf_counter()
                if left > 0:
                    time.sleep(left)
            index = number % sources
            send = self.sockets[index].send
            send(TOPIC, zmq.SNDMORE)
            send(self._next[index].to_bytes(8, "big"), zmq.SNDMORE)
            send(self._payloads[number % 8])
            self._next[index] += 1


def main() -> None:
    commands, answer = serve()
    options = msgspec.json.decode(sys.argv[1])
    flooder = Flooder(options["sources"], options["shape"], options.get("hwm", HWM))
    answer(endpoints=flooder.endpoints)
    for command in commands:
        flooder.flood(command["count"], command["sources"], command["interval"])
        answer()
    flooder.context.destroy(linger=0)


if __name__ == "__main__":
    main()
