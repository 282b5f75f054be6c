"""The project's own publisher. ``python -m tinykv.publisher PORT`` publishes until it is stopped."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator

import zmq

from .wire import Batch, Removed, Stored, encode

SIZE = 4


def batches() -> Iterator[Batch]:
    """One conversation after the other: two blocks are stored, the second on top of the first, and then removed."""
    turn = 1
    while True:
        first, second = 2 * turn, 2 * turn + 1
        tokens = [1000 * turn + token for token in range(2 * SIZE)]
        yield Batch(time.time(), [Stored([first], None, tokens[:SIZE], SIZE, medium="GPU")], 0)
        yield Batch(time.time(), [Stored([second], first, tokens[SIZE:], SIZE, medium="GPU")], 0)
        yield Batch(time.time(), [Removed([second, first], medium="GPU")], 0)
        turn += 1


def messages() -> Iterator[tuple[bytes, bytes, bytes]]:
    """Topic, seq and payload."""
    for seq, batch in enumerate(batches()):
        yield b"kv-events", seq.to_bytes(8, "big"), encode(batch)


def main(port: int) -> None:
    with zmq.Context() as context, context.socket(zmq.PUB) as socket:
        socket.bind(f"tcp://127.0.0.1:{port}")
        for frames in messages():
            socket.send_multipart(frames)
            time.sleep(0.02)


if __name__ == "__main__":
    main(int(sys.argv[1]))
