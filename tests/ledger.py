"""Holds what a subscription yields against what was published: every batch once, in order, or within a loss."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from kvwire.stream import Batch, Faulty, Item, Lost, Restarted
from kvwire.zmq.subscriber import Subscriber
from tests.wire_engine import payload_of


@dataclass
class Ledger:
    """One source's account. ``life`` and ``seq`` of a batch are in its payload, see `payload_of`.

    Attributes:
        padded: the payloads are not those of `payload_of`, but carry life and seq alike.
        begun: the seq that the account begins with; None for whatever comes first.
        covered: below which seq everything of the present life was yielded or reported as lost.
        lives: of the batches yielded, in order, without repetition.
        former: what `covered` was at each restart.
    """

    begun: int | None = 0
    padded: bool = False
    covered: int | None = field(init=False)
    life: int | None = None
    yielded: int = 0
    lost: list[Lost] = field(default_factory=list)
    faulty: list[Faulty] = field(default_factory=list)
    restarts: int = 0
    lives: list[int] = field(default_factory=list)
    former: list[int | None] = field(default_factory=list)
    lost_before: bool = False

    def __post_init__(self) -> None:
        self.covered = self.begun

    @property
    def lost_count(self) -> int:
        return sum(lost.last - lost.first + 1 for lost in self.lost)

    def enter(self, item: Item) -> None:
        """Take an item into the account, or fail."""
        if isinstance(item, Restarted):
            self.restarts += 1
            self.former.append(self.covered)
            self.covered, self.life, self.lost_before = 0, None, False
            return
        if isinstance(item, Faulty):
            self.faulty.append(item)
            if item.seq is None:
                return
            first = last = item.seq
        elif isinstance(item, Lost):
            self.lost.append(item)
            first, last = item.first, item.last
        else:
            first = last = item.seq
        assert self.covered is None or first == self.covered, f"{item} where seq {self.covered} is due"
        assert first <= last
        self.covered = last + 1
        if isinstance(item, Batch):
            self._enter_batch(item)
        self.lost_before = isinstance(item, Lost)

    def _enter_batch(self, item: Batch) -> None:
        [event] = item.batch.events
        life, seq = divmod(event.block_hashes[0], 1 << 40)
        assert seq == item.seq, f"the payload of seq {seq} as seq {item.seq}"
        if not self.padded:
            assert item.raw == payload_of(life, seq)
        assert self.life is None or life == self.life or (life > self.life and self.lost_before), "two lives in one"
        self.life = life
        if not self.lives or self.lives[-1] != life:
            assert not self.lives or life > self.lives[-1], "back to a former life"
            self.lives.append(life)
        self.yielded += 1


def read(
    subscriber: Subscriber, ledger: Ledger, done: Callable[[], bool], *, deadline: float = 30.0, each: float = 0.05
) -> None:
    """Enter what comes until ``done``; fail after ``deadline`` seconds."""
    until = time.monotonic() + deadline
    while not done():
        item = subscriber.next(each)
        if item is not None:
            ledger.enter(item)
        if time.monotonic() > until:
            raise AssertionError(f"not done after {deadline:g} s; {ledger.covered=} {subscriber.stats}")
