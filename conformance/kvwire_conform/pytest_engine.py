"""What the fixture ``kvwire_engine`` gives: simulated engines on free ports, published by the test's own clock."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

from kvwire.codec import Decoder
from kvwire.dialects import Dialect
from kvwire.errors import UsageError
from kvwire.events import EventBatch
from kvwire_conform.simulator import EngineError, Frames, SimulatedEngine, Simulator

__all__ = ["Engine", "Engines"]

DEADLINE = 10.0
"""Seconds that waiting takes at most."""
_POLL = 0.005
_NAP_MS = 5.0

_decode = Decoder(on_error="collect").decode


class Engine(SimulatedEngine):
    """A simulated engine that publishes when it is told to. The same seed gives the same bytes, ``ts`` included.

    ``endpoint``, ``replay_endpoint``, ``endpoints`` and ``replay_endpoints`` say where it is; `SimulatedEngine` has the
    options.
    """

    def __init__(self, dialect: str | Dialect, seed: int = 0, **options: Any) -> None:
        options.setdefault("clock", None)
        options.setdefault("rate", None)
        super().__init__(dialect, seed, **{"count": 0, **options})
        self._seed = seed
        self._options = options

    def wait_for_subscriber(self, timeout: float = DEADLINE) -> None:
        """Wait until somebody has subscribed, to every rank. What is published before that reaches nobody.

        Raises:
            EngineError: nobody did in time.
        """
        self._until(
            lambda: all(rank.joined for rank in self._ranks), timeout, "nobody subscribed to {endpoint}: {waiting}"
        )

    def publish(self, count: int = 1, timeout: float = DEADLINE) -> list[Frames]:
        """Publish so many more messages on every rank, once there is a subscriber, and wait until they are sent.

        Returns:
            The frames, rank after rank.

        Raises:
            EngineError: it could not within the time, mostly since nobody subscribed.
        """
        if self._count is None:
            raise UsageError("this engine publishes by itself (count=None); leave count out to publish from the test")
        before = self._count
        self.wait_for_subscriber(timeout)
        self._count = before + count
        self._until(lambda: min(self.published) >= before + count, timeout, "{endpoint} did not publish: {waiting}")
        return [frames for rank in range(len(self.simulators)) for frames in self.frames(rank)[before:]]

    def frames(self, rank: int = 0) -> list[Frames]:
        """What a rank has published so far: topic, seq and payload of each message."""
        return self._twin(rank).messages(self.published[rank])

    def batches(self, rank: int = 0) -> list[EventBatch]:
        """What a rank has published so far, decoded; of a faulty payload what can be read."""
        return [_decode(frames[-1]) for frames in self.frames(rank)]

    def _nap(self) -> float:
        # The thread is not told of `publish`; a test should not wait for its long naps.
        return min(super()._nap(), _NAP_MS)

    def _twin(self, rank: int) -> Simulator:
        """The same stream again, from its beginning."""
        if self._options["clock"] is not None:
            raise UsageError("with a clock of its own what an engine published cannot be told again; leave clock out")
        mine = self.simulators[rank]
        options = {name: value for name, value in self._options.items() if name not in _ENGINE_OPTIONS}
        return Simulator(self.dialect, self._seed, dp_rank=mine.dp_rank, **options)

    def _until(self, met: Callable[[], bool], timeout: float, problem: str) -> None:
        self._started()
        end = time.monotonic() + timeout
        while not met():
            if self._failure is not None:
                raise EngineError(f"the simulated engine failed: {self._failure}") from self._failure
            if time.monotonic() > end:
                waiting = f"waited {timeout:g} s, {sum(rank.joined for rank in self._ranks)} of {len(self._ranks)} ranks have a subscriber"
                raise EngineError(problem.format(endpoint=self.endpoint, waiting=waiting))
            time.sleep(_POLL)


_ENGINE_OPTIONS = frozenset(
    (
        *(
            "rate",
            "count",
            "dp_size",
            "port",
            "replay_port",
            "replay",
            "framing",
            "buffer_steps",
            "wait_for_subscriber",
        ),
        *("server_info", "advertised_host"),
    )
)
"""What `SimulatedEngine` takes beside what it hands to its simulators."""


class Engines:
    """Makes engines, and stops them; the value of the fixture ``kvwire_engine``."""

    def __init__(self) -> None:
        self._running: list[Engine] = []

    def __call__(self, dialect: str | Dialect, seed: int = 0, **options: Any) -> Engine:
        """Start an engine.

        Args:
            dialect: id, alias or release, e.g. ``slot8`` or ``vllm==0.33.0``.
            seed: of all choice.
            options: as `SimulatedEngine` and `Simulator` take them: ``topic``, ``dp_size``, ``replay``, ``framing``,
                ``fault`` (an id of `kvwire_conform.simulator.FAULTS`), ``fault_at``, ``restart_every`` …; ``rate`` and
                ``count=None`` to have it publish by itself.

        Raises:
            UsageError, DialectError: an argument that does not fit.
        """
        engine = Engine(dialect, seed, **options)
        engine.start()
        self._running.append(engine)
        return engine

    def __enter__(self) -> Engines:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        running, self._running = self._running, []
        failures = []
        for engine in running:
            try:
                engine.stop()
            except EngineError as failure:
                failures.append(failure)
        if failures:
            raise failures[0]
