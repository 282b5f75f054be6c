"""A live subscriber in a process of its own: how long after its ts each batch arrived."""

from __future__ import annotations

import struct
import sys
import time

import msgspec
import zmq

from benchmarks.children.line import serve

TS = slice(2, 10)
"""Where the ts of a batch is: behind the headers of the batch and of the float."""


def main() -> None:
    commands, answer = serve()
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    socket = context.socket(zmq.SUB)
    socket.setsockopt(zmq.RCVHWM, 0)
    socket.setsockopt(zmq.SUBSCRIBE, b"")
    socket.connect(msgspec.json.decode(sys.argv[1])["endpoint"])
    answer()
    for command in commands:
        # {"op": "read", "idle": seconds}: read until nothing comes for so long.
        delays: list[float] = []
        idle = int(command["idle"] * 1000)
        while socket.poll(idle):
            socket.recv()
            socket.recv()
            payload = socket.recv()
            delays.append(time.monotonic() - struct.unpack(">d", payload[TS])[0])
        answer(delays=delays)
    context.destroy(linger=0)


if __name__ == "__main__":
    main()
