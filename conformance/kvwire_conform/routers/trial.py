"""One payload through a real router: prepare, publish, publish a good batch, read back."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import zmq

from kvwire.codec import Encoder
from kvwire.events import BlockRemoved, EventBatch
from kvwire.zmq.frames import pack_live
from kvwire_conform.routers.compare import without_good_batch
from kvwire_conform.routers.errors import RouterError
from kvwire_conform.routers.http import Held, IndexerClient
from kvwire_conform.routers.media import STANDARD_MEDIA
from kvwire_conform.routers.plan import MARKER, Plan, good_batch

__all__ = ["PLAIN", "Outcome", "Site", "encode_plain", "wait_for"]

PLAIN = "slot7"
"""The dialect of what is prepared and of the good batch: the oldest one with a medium, which every release reads."""

Context = zmq.Context[zmq.Socket[bytes]]
_T = TypeVar("_T")
_encoder = Encoder(PLAIN)


@dataclass(frozen=True)
class Outcome:
    """What a router held before and after a payload.

    Attributes:
        before: the state when all was prepared.
        after: the state after the payload and the good batch, without what that stored; None when the good batch never
            showed.
        mark: where the log ended just before the payload was published.
    """

    before: tuple[Held, ...]
    after: tuple[Held, ...] | None
    mark: int = 0


@dataclass
class Site:
    """Where trials happen: a router, and an address at which it can reach our publishers.

    Attributes:
        client: of the router.
        context: for our sockets.
        host: address that we bind and that the router connects to.
        patience: seconds for the good batch to show.
        prefix: of the model names that are registered.
        first: the first instance id that is used.
    """

    client: IndexerClient
    context: Context
    host: str = "127.0.0.1"
    patience: float = 5.0
    prefix: str = "kvwire"
    first: int = 1

    def __post_init__(self) -> None:
        self._instances = itertools.count(self.first)

    def new_instance(self) -> tuple[int, str]:
        """An instance id and a model name that were not used before."""
        instance = next(self._instances)
        return instance, f"{self.prefix}-{instance}"

    @contextlib.contextmanager
    def publisher(
        self, instance: int, model: str, block_size: int, replay_endpoint: str | None = None
    ) -> Iterator[zmq.Socket[bytes]]:
        """A socket that the router is subscribed to; registered for the length of the block.

        An XPUB shows the subscription, so the first message is not lost on it.

        Raises:
            RouterError: the router did not subscribe.
        """
        with contextlib.closing(self.context.socket(zmq.XPUB)) as socket:
            socket.setsockopt(zmq.LINGER, 0)
            port = socket.bind_to_random_port(f"tcp://{self.host}")
            self.client.register(instance, f"tcp://{self.host}:{port}", model, block_size, replay_endpoint)
            try:
                self.await_subscription(socket)
                yield socket
            finally:
                with contextlib.suppress(RouterError):
                    self.client.unregister(instance, model)

    def await_subscription(self, socket: zmq.Socket[bytes]) -> None:
        """Wait until the router has subscribed. Raises RouterError."""
        if not socket.poll(int(self.patience * 1000)):
            raise RouterError(
                f"{self.client.url} was told of a publisher and did not subscribe in {self.patience:g} s; "
                f"can it reach {self.host}?",
                code="router-unreachable",
            )
        socket.recv()

    def run(self, plan: Plan, payload: bytes, dp_rank: int | None, mark: Callable[[], int] = lambda: 0) -> Outcome:
        """One trial under an instance id and a model name of its own.

        Args:
            dp_rank: of the payload's batch.
            mark: where the log ends now.

        Raises:
            RouterError: the router does not answer, or did not subscribe.
        """
        instance, model = self.new_instance()
        with self.publisher(instance, model, plan.block_size) as socket:
            seq = itertools.count()

            def publish(data: bytes) -> None:
                socket.send_multipart(pack_live("", next(seq), data))

            def held() -> list[Held]:
                return self.client.held(instance, model)

            before: list[Held] = []
            if plan.prepare:
                for batch in plan.prepare:
                    publish(encode_plain(batch))
                publish(encode_plain(good_batch(plan.block_size, dp_rank)))
                before = without_good_batch(wait_for(held, lambda now: _good(now, plan.dp_rank), self.patience))
                publish(encode_plain(_farewell(dp_rank)))
                wait_for(held, lambda now: not any(block.block_hash == MARKER for block in now), self.patience)
            start = mark()
            publish(payload)
            publish(encode_plain(good_batch(plan.block_size, dp_rank)))
            after = wait_for(held, lambda now: _good(now, plan.dp_rank), self.patience)
        if not any(block.block_hash == MARKER for block in after):
            return Outcome(tuple(before), None, start)
        return Outcome(tuple(before), tuple(without_good_batch(after)), start)


def encode_plain(batch: EventBatch) -> bytes:
    """A batch in `PLAIN`."""
    return _encoder.encode(batch)


def wait_for(look: Callable[[], _T], enough: Callable[[_T], bool], patience: float) -> _T:
    """Look until it is enough, or until ``patience`` seconds are over; what was seen last."""
    until = time.monotonic() + patience
    pause = 0.001
    while True:
        seen = look()
        if enough(seen) or time.monotonic() > until:
            return seen
        time.sleep(pause)
        pause = min(2 * pause, 0.05)


def _good(held: Sequence[Held], dp_rank: int) -> bool:
    found = [block for block in held if block.block_hash == MARKER and block.dp_rank == dp_rank]
    return len(found) >= len(STANDARD_MEDIA)


def _farewell(dp_rank: int | None) -> EventBatch:
    return EventBatch(1.5, [BlockRemoved([MARKER], medium=medium) for medium in STANDARD_MEDIA], dp_rank)
