"""A publisher in a process of its own that does with ZeroMQ what engines do, fast, and that can be killed or frozen.

Raw sockets and nothing of `kvwire.zmq`: what the subscriber is held against must not share its code. One thread, as in
the engines: a replay request is served between two batches, the whole buffer at once.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import random
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec
import zmq

END = b"\xff" * 8
TOPIC = b"kv@pod@model"
_pack = msgspec.msgpack.Encoder().encode


def payload_of(life: int, seq: int) -> bytes:
    """What life number ``life`` of a publisher publishes as ``seq``: one removal, whose hash says both."""
    return _pack([1.5, [["BlockRemoved", [life << 40 | seq], "GPU"]], 0])


class Engine:
    """The process of one publisher; a context manager.

    Args:
        life: number of this life, see `payload_of`.
        ports: live and replay port; 0 for any.
        ring: batches kept for replay.
        topic_in_replies: the newer of the two replay framings.
        replay: whether there is a replay socket.
        hwm: of the PUB socket.
        seed: of the batches that are not sent live.
    """

    def __init__(
        self,
        *,
        life: int = 0,
        ports: tuple[int, int] = (0, 0),
        ring: int = 10_000,
        topic_in_replies: bool = True,
        replay: bool = True,
        hwm: int = 100_000,
        seed: int = 0,
    ) -> None:
        self.life = life
        self._options = {
            "life": life, "ports": ports, "ring": ring, "topic": topic_in_replies, "replay": replay, "hwm": hwm,
            "seed": seed,
        }  # fmt: skip

    def __enter__(self) -> Engine:
        self._counter = tempfile.NamedTemporaryFile()
        self._counter.write(bytes(8))
        self._counter.flush()
        self._map = mmap.mmap(self._counter.fileno(), 8)
        self.process = subprocess.Popen(
            [sys.executable, __file__, json.dumps({**self._options, "counter": self._counter.name})],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.ports: tuple[int, int] = tuple(self._answer()["ports"])
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
            self.process.wait(10)
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
        self._map.close()
        self._counter.close()

    @property
    def endpoint(self) -> str:
        return f"tcp://127.0.0.1:{self.ports[0]}"

    @property
    def replay_endpoint(self) -> str:
        return f"tcp://127.0.0.1:{self.ports[1]}"

    @property
    def published(self) -> int:
        """How many batches were published, also when the process is no more."""
        return int(struct.unpack("<Q", self._map[:8])[0])

    def publish(self, count: int, *, pause: float = 0.0, drop: float = 0.0, payload: int = 0) -> None:
        """Have it publish; returns at once.

        Args:
            pause: seconds between two batches.
            drop: share of the batches that are not sent live, as if lost on the way.
            payload: bytes that each payload has, about; 0 for few.
        """
        self.tell(op="publish", count=count, pause=pause, drop=drop, payload=payload)

    def publish_and_wait(self, count: int, **how: Any) -> None:
        """The same, and return when it is done."""
        self.publish(count, **how)
        self.wait()

    def wait(self) -> None:
        """Until everything told was done."""
        self.tell(op="sync")
        self._answer()

    def tell(self, **command: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()

    def kill(self) -> None:
        """End it as a crash does."""
        self.process.kill()
        self.process.wait(10)

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise AssertionError("the publisher's process ended")
        answer: dict[str, Any] = json.loads(line)
        return answer


class _Publisher:
    """What runs in the process."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.options = options
        self.context: zmq.Context[Any] = zmq.Context()
        self.pub = self.context.socket(zmq.PUB)
        self.pub.set_hwm(options["hwm"])
        self.router = self.context.socket(zmq.ROUTER)
        self.router.setsockopt(zmq.SNDHWM, 2 * (options["ring"] + 1))
        self.ring: deque[tuple[int, bytes]] = deque(maxlen=options["ring"])
        self.seq = 0
        self.random = random.Random(options["seed"])
        with open(options["counter"], "r+b") as counter:
            self.counter = mmap.mmap(counter.fileno(), 8)

    def bind(self) -> tuple[int, int]:
        live, replay = self.options["ports"]
        return self._bind(self.pub, live), self._bind(self.router, replay) if self.options["replay"] else 0

    def _bind(self, socket: zmq.Socket[bytes], port: int) -> int:
        deadline = time.monotonic() + 10
        while True:
            try:
                socket.bind(f"tcp://127.0.0.1:{port or '*'}")
            except zmq.ZMQError:
                # The former owner's socket may linger for a moment.
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.02)
            else:
                return int(socket.getsockopt_string(zmq.LAST_ENDPOINT).rpartition(":")[2])

    def publish(self, count: int, pause: float, drop: float, payload: int) -> None:
        life, send, replay = self.options["life"], self.pub.send_multipart, self.options["replay"]
        for index in range(count):
            seq = self.seq
            batch = _padded(life, seq, payload) if payload else payload_of(life, seq)
            # Counted first: a process that is killed in between has published one batch less at most.
            self.counter[:8] = struct.pack("<Q", seq + 1)
            if not (drop and self.random.random() < drop):
                send((TOPIC, seq.to_bytes(8, "big"), batch))
            self.ring.append((seq, batch))
            self.seq = seq + 1
            if replay and (pause or index % 16 == 0):
                self.serve()
            if pause:
                time.sleep(pause)

    def serve(self) -> None:
        if not self.router.poll(0):
            return
        identity, empty, start = self.router.recv_multipart()
        topic = [TOPIC] if self.options["topic"] else []
        for seq, payload in self.ring:
            if seq >= int.from_bytes(start, "big"):
                self.router.send_multipart([identity, empty, *topic, seq.to_bytes(8, "big"), payload])
        self.router.send_multipart([identity, empty, *([b""] if topic else []), END, b""])

    def run(self, answer: Callable[[dict[str, Any]], None]) -> None:
        poller = zmq.Poller()
        poller.register(0, zmq.POLLIN)
        if self.options["replay"]:
            poller.register(self.router, zmq.POLLIN)
        buffered = b""
        while True:
            ready = dict(poller.poll())
            if self.router in ready:
                self.serve()
            if 0 not in ready:
                continue
            data = os.read(0, 65536)
            if not data:
                return
            *lines, buffered = (buffered + data).split(b"\n")
            for line in lines:
                command = json.loads(line)
                op = command.pop("op")
                if op == "publish":
                    self.publish(**command)
                else:
                    answer({"published": self.seq})


def _padded(life: int, seq: int, size: int) -> bytes:
    """A batch of at least ``size`` bytes: tokens make up the rest."""
    return _pack([1.5, [["BlockStored", [life << 40 | seq], None, [70_000] * (size // 5), size // 5, None, "GPU"]], 0])


def _main() -> None:
    options = json.loads(sys.argv[1])
    publisher = _Publisher(options)

    def answer(told: dict[str, Any]) -> None:
        print(json.dumps(told), flush=True)

    answer({"ports": publisher.bind()})
    publisher.run(answer)


if __name__ == "__main__":
    _main()
