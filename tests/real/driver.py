"""Drive the real ``ZmqEventPublisher`` of any release, in a process of its own."""

from __future__ import annotations

import contextlib
import json
import queue
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import zmq

from kvwire_conform.releases import Engine

Event = tuple[str, Mapping[str, Any]]
"""Class name and keyword arguments, e.g. ``("BlockRemoved", {"block_hashes": [1]})``. `cache_salt` may be given to any
release that can carry a salt."""

SCRIPT = Path(__file__).with_name("publisher_process.py")
START_DEADLINE = 60.0
ANSWER_DEADLINE = 15.0
EXIT_DEADLINE = 10.0
JOIN_DEADLINE = 20.0


class PublisherError(AssertionError):
    """The publisher's process did not do what it was told; the message carries its stderr."""


@dataclass(frozen=True)
class Published:
    """A batch that the publisher has sent: its sequence number and its payload, both as the publisher has them."""

    seq: int
    payload: bytes


class RealPublisher:
    """A release's own publisher, publishing on loopback from a process of its own. A context manager.

    Without `endpoint`, it binds where a consumer on this machine reaches it. The rule of every release is to bind a
    host or port that holds ``*``, so rank 0 binds ``tcp://127.0.0.1:*``; another rank needs a port to add itself to and
    binds ``tcp://*:PORT``. With `endpoint`, the release's own rule decides: every known one connects to
    ``tcp://127.0.0.1:PORT``, and the consumer binds.

    Attributes:
        endpoint: where to subscribe, None if it connects instead.
        replay_endpoint: where to ask for a replay, None without one.
    """

    def __init__(
        self,
        engine: Engine,
        version: str,
        *,
        topic: str = "",
        dp_rank: int = 0,
        buffer_steps: int = 10_000,
        endpoint: str | None = None,
        replay_endpoint: str | None = None,
        replay: bool = True,
        **options: Any,
    ) -> None:
        """Nothing runs before ``with``. `options` go to the release's constructor as they are (hwm, bind, …).

        Give `endpoint` and `replay_endpoint` (``tcp://*:PORT``) to have a second publisher where a killed one was.
        """
        if buffer_steps < 1:
            raise ValueError("buffer_steps must be at least 1: what was sent is read back from that buffer")
        self.release = f"{engine}=={version}"
        self.endpoint: str | None = None
        self.replay_endpoint: str | None = None
        self._command = [sys.executable, str(SCRIPT), engine, version]
        self._options = {"topic": topic, "dp_rank": dp_rank, "buffer_steps": buffer_steps, **options}
        self._dp_rank = dp_rank
        self._given_endpoint = endpoint
        self._given_replay_endpoint = replay_endpoint
        self._with_replay = replay
        self._process: subprocess.Popen[str] | None = None
        self._answers: queue.Queue[str | None] = queue.Queue()
        self._reader: threading.Thread | None = None
        self._files = contextlib.ExitStack()
        self._stderr: Any = None

    def __enter__(self) -> RealPublisher:
        # A port that was free can be taken by the time the publisher binds it; then another one is tried.
        for attempts_left in (2, 1, 0):
            try:
                return self._start()
            except PublisherError as error:
                self._end()
                if "Address already in use" not in str(error) or not attempts_left:
                    raise
        raise AssertionError("not reached")

    def __exit__(self, *_: object) -> None:
        self._end()

    @property
    def pid(self) -> int:
        """Process id of the publisher."""
        return self._running().pid

    def publish(self, events: Sequence[Event], *, ts: float = 1.5, dp_rank: int | None = None) -> Published:
        """Have the publisher send one batch, and return once it has. A rank of None lets the publisher fill it in."""
        self._tell({"op": "publish", "ts": ts, "dp_rank": dp_rank, "events": [list(event) for event in events]})
        told = self._answer(ANSWER_DEADLINE)
        return Published(told["seq"], bytes.fromhex(told["payload"]))

    def publish_until_received(self, subscriber: zmq.Socket[bytes]) -> tuple[Published, list[bytes]]:
        """Publish AllBlocksCleared until the subscriber gets one: a PUB socket drops what it sends before it knows of
        the subscription. Returns the batch that arrived first, and its frames; no other is in flight then."""
        deadline = time.monotonic() + JOIN_DEADLINE
        sent: list[Published] = []
        while time.monotonic() < deadline:
            sent.append(self.publish([("AllBlocksCleared", {})]))
            if subscriber.poll(100):
                frames = subscriber.recv_multipart()
                first = next(batch for batch in sent if batch.seq.to_bytes(8, "big") == frames[1])
                for _ in range(sent[-1].seq - first.seq):
                    if not subscriber.poll(1000):
                        raise PublisherError(f"{self.release}: batches after {first.seq} did not arrive")
                    subscriber.recv_multipart()
                return first, frames
        raise PublisherError(f"{self.release}: no batch reached the subscriber in {JOIN_DEADLINE:g} s{self._said()}")

    def kill(self) -> None:
        """End the process at once, as a crash does: no shutdown, nothing flushed."""
        process = self._running()
        process.kill()
        process.wait(EXIT_DEADLINE)

    def quit(self) -> int:
        """Shut the publisher down in order; returns the exit code of its process, 0 if all went well."""
        process = self._running()
        self._tell({"op": "quit"})
        return process.wait(EXIT_DEADLINE)

    def _start(self) -> RealPublisher:
        options = {**self._options, "endpoint": self._endpoint_to_ask()}
        if self._with_replay:
            options["replay_endpoint"] = self._given_replay_endpoint or f"tcp://127.0.0.1:{self._port_to_ask()}"
        self._answers = queue.Queue()
        self._stderr = self._files.enter_context(tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace"))  # noqa: SIM115
        self._process = subprocess.Popen(
            [*self._command, json.dumps(options)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            text=True,
            encoding="utf-8",
        )
        self._reader = threading.Thread(target=self._read, args=(self._process, self._answers), daemon=True)
        self._reader.start()
        told = self._answer(START_DEADLINE)
        if self._given_endpoint is None or "*" in self._given_endpoint:
            self.endpoint = _dialable(told["endpoint"])
        self.replay_endpoint = told["replay_endpoint"] and _dialable(told["replay_endpoint"])
        return self

    def _endpoint_to_ask(self) -> str:
        if self._given_endpoint is not None:
            return self._given_endpoint
        return f"tcp://*:{self._port_to_ask()}" if self._dp_rank else "tcp://127.0.0.1:*"

    def _port_to_ask(self) -> str:
        if not self._dp_rank:
            return "*"
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port: int = free.getsockname()[1]
        return str(port - self._dp_rank)

    def _running(self) -> subprocess.Popen[str]:
        if self._process is None:
            raise PublisherError(f"{self.release}: not started; use it in a with statement")
        return self._process

    def _tell(self, command: dict[str, Any]) -> None:
        stdin = self._running().stdin
        assert stdin is not None
        try:
            stdin.write(json.dumps(command, default=_json) + "\n")
            stdin.flush()
        except BrokenPipeError as error:
            raise PublisherError(f"{self.release}: the process has ended{self._said()}") from error

    def _answer(self, deadline: float) -> dict[str, Any]:
        try:
            line = self._answers.get(timeout=deadline)
        except queue.Empty:
            raise PublisherError(f"{self.release}: no answer in {deadline:g} s{self._said()}") from None
        if line is None:
            raise PublisherError(f"{self.release}: the process has ended{self._said()}")
        told: dict[str, Any] = json.loads(line)
        if "error" in told:
            raise PublisherError(f"{self.release}: {told['error']}{self._said()}")
        return told

    @staticmethod
    def _read(process: subprocess.Popen[str], answers: queue.Queue[str | None]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            answers.put(line)
        answers.put(None)

    def _said(self) -> str:
        self._stderr.seek(0)
        text = self._stderr.read().strip()
        return f"; its stderr:\n{text[-4000:]}" if text else ""

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        try:
            process.wait(EXIT_DEADLINE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(EXIT_DEADLINE)
        if self._reader is not None:
            self._reader.join(EXIT_DEADLINE)
        process.stdout.close()
        self._files.close()


def _dialable(endpoint: str) -> str:
    return endpoint.replace("://0.0.0.0:", "://127.0.0.1:")


def _json(value: object) -> object:
    if isinstance(value, bytes):
        return {"$bytes": value.hex()}
    raise TypeError(f"{value!r} has no JSON form for the publisher's process")
