"""An engine's process: a publisher, ours or vLLM's own, and a thread that publishes as a scheduler does."""

from __future__ import annotations

import random
import sys
import threading
import time
from typing import Any

import msgspec
import zmq

from benchmarks.children.line import serve
from benchmarks.payloads import stored
from kvwire import EventBatch, get_dialect
from kvwire.zmq.publisher import Publisher
from kvwire_conform.releases import fetch_module, load_structs

VERSION = "0.33.0"
DIALECT = "vllm-map5"
ANYWHERE = "tcp://127.0.0.1:*"
PATIENCE = 30.0


class Ours:
    """kvwire's publisher, given neutral events."""

    def __init__(self) -> None:
        self.publisher = Publisher(ANYWHERE, dialect=DIALECT, replay_endpoint=ANYWHERE)
        self.endpoint = self.publisher.endpoint
        self.replay_endpoint = self.publisher.replay_endpoint
        self.publish = self.publisher.publish

    def event(self, rng: random.Random) -> Any:
        """A stored event of 16 blocks of 16 tokens."""
        return stored(rng, get_dialect(DIALECT), 16, 16)

    def batch(self, ts: float, events: list[Any]) -> Any:
        """A batch of them."""
        return EventBatch(ts, events)

    @property
    def waiting(self) -> int:
        """Batches that the publisher's thread has not taken yet."""
        return self.publisher.stats.queued

    def close(self) -> None:
        """Shut down."""
        self.publisher.close()


class Vllm:
    """vLLM's own publisher and structs, out of the published package."""

    def __init__(self) -> None:
        self.structs = load_structs(fetch_module("vllm", VERSION))
        self.publisher = self.structs.module.ZmqEventPublisher(0, ANYWHERE, ANYWHERE)
        # Read from this thread although the publisher's own uses the sockets: bind wrote the option, and nothing else does.
        self.endpoint = self.publisher._pub.getsockopt_string(zmq.LAST_ENDPOINT)
        self.replay_endpoint = self.publisher._replay.getsockopt_string(zmq.LAST_ENDPOINT)
        self.publish = self.publisher.publish

    def event(self, rng: random.Random) -> Any:
        """The same event in vLLM's struct."""
        neutral = stored(rng, get_dialect(DIALECT), 16, 16)
        names = [field.name for field in self.structs.fields["BlockStored"]]
        return self.structs.event("BlockStored", **{name: getattr(neutral, name) for name in names})

    def batch(self, ts: float, events: list[Any]) -> Any:
        """A batch of them."""
        return self.structs.batch(ts, events)

    @property
    def waiting(self) -> int:
        """Batches that the publisher's thread has not taken yet."""
        found: int = self.publisher._event_queue.qsize()
        return found

    def close(self) -> None:
        """Shut down."""
        self.publisher.shutdown()


class Engine:
    """What the commands ask for."""

    def __init__(self, kind: str) -> None:
        self.side: Ours | Vllm = Ours() if kind == "kvwire" else Vllm()
        rng = random.Random(3)
        self.events = [[self.side.event(rng)] for _ in range(64)]
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def publish(self, count: int, interval: float) -> list[int]:
        """Publish so many batches, so many seconds apart; nanoseconds that each call took."""
        batches = [self.side.batch(1.5, self.events[index % 64]) for index in range(count)]
        publish, clock, taken = self.side.publish, time.perf_counter_ns, []
        due = time.perf_counter()
        for batch in batches:
            if interval:
                due += interval
                time.sleep(max(0.0, due - time.perf_counter()))
            began = clock()
            publish(batch)
            taken.append(clock() - began)
        self.settle()
        return taken

    def settle(self) -> None:
        """Wait until the publisher's thread has caught up."""
        until = time.monotonic() + PATIENCE
        while self.side.waiting and time.monotonic() < until:
            time.sleep(0.005)

    def load(self, interval: float) -> None:
        """Publish from a thread, every ``interval`` seconds, batches whose ts is the clock at the call, until `unload`."""
        self._stop.clear()

        def run() -> None:
            due = time.monotonic()
            number = 0
            while not self._stop.is_set():
                due += interval
                time.sleep(max(0.0, due - time.monotonic()))
                number += 1
                self.side.publish(self.side.batch(time.monotonic(), self.events[number % 64]))

        self._thread = threading.Thread(target=run)
        self._thread.start()

    def unload(self) -> None:
        """Stop publishing."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()


def main() -> None:
    commands, answer = serve()
    kind = msgspec.json.decode(sys.argv[1])["kind"]
    engine = Engine(kind)
    answer(endpoint=engine.side.endpoint, replay=engine.side.replay_endpoint)
    for command in commands:
        if command["op"] == "publish":
            answer(taken=engine.publish(command["count"], command["interval"]))
        elif command["op"] == "load":
            engine.load(command["interval"])
            answer()
        elif command["op"] == "unload":
            engine.unload()
            answer()
    engine.unload()
    engine.side.close()


if __name__ == "__main__":
    main()
