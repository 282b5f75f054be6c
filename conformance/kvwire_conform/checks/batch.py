"""The batch around the events: payload, arity, timestamp, DP rank."""

from __future__ import annotations

import math

from kvwire.errors import WireError
from kvwire_conform.checks.tallies import Tallies
from kvwire_conform.messages import Message

DAY = 86_400.0
"""Seconds that the clocks of engine and listener may differ by."""

_CHECK_OF_CODE = {
    "batch-arity": "batch-arity",
    "not-finite": "ts-finite",
    "unknown-tag": "event-tag-known",
    "extra-slot": "event-fields-known",
    "extra-key": "event-fields-known",
}


def check_of(error: WireError) -> str:
    """The check that a codec error belongs to."""
    if error.event_index is not None:
        return _CHECK_OF_CODE.get(error.code, "event-shape")
    if error.code in _CHECK_OF_CODE:
        return "batch-arity" if error.code == "extra-slot" else _CHECK_OF_CODE[error.code]
    if error.slot == 0:
        return "ts-finite"
    if error.slot is not None:
        return "batch-arity"
    return "payload-decodes"


class Batches:
    """What is judged of each batch.

    Args:
        expected_rank: the DP rank that the endpoint's port stands for; None when it is not known.
    """

    def __init__(self, tallies: Tallies, expected_rank: int | None) -> None:
        self.tallies = tallies
        self.expected_rank = expected_rank
        self.rank: int | None = None
        self.seen = False
        if expected_rank is None:
            tallies["dp-rank-matches-port"].skip(
                "the rank of this endpoint is not known; on live endpoints give --dp-size, or --server"
            )

    def see(self, message: Message) -> None:
        """Judge a batch that could be read, and the faults of one that could not."""
        if message.error is not None:
            error = message.error
            self.tallies[check_of(error)].violation(lambda: message.fault(error))
            if check_of(error) != "payload-decodes":
                self.tallies["payload-decodes"].ok()
            return
        assert message.reading is not None
        self.tallies["payload-decodes"].ok()
        faulty = set()
        for error in message.deviations:
            if error.event_index is None:
                faulty.add(check_of(error))
                self.tallies[check_of(error)].violation(lambda error=error: message.fault(error))  # type: ignore[misc]
        for check in ("batch-arity", "ts-finite"):
            if check not in faulty:
                self.tallies[check].ok()
        self._plausible(message, message.reading.ts)
        self._rank(message, message.reading.dp_rank)

    def _plausible(self, message: Message, ts: float) -> None:
        if not math.isfinite(ts) or not message.t:
            return
        tally = self.tallies["ts-plausible"]
        if abs(ts - message.t) <= DAY:
            tally.ok()
            return
        hint = "the clocks of engine and listener differ by more than a day, or ts has another unit or epoch"
        for unit, factor in (("milliseconds", 1e3), ("microseconds", 1e6), ("nanoseconds", 1e9)):
            if abs(ts / factor - message.t) <= DAY:
                hint = f"these are {unit}; a consumer that ages blocks by ts keeps them for ever"
        tally.violation(
            lambda: message.finding(f"seconds since the epoch, about {message.t:.0f}", f"{ts!r}", hint, slot=0)
        )

    def _rank(self, message: Message, rank: int | None) -> None:
        if self.seen:
            before = self.rank
            if rank == before:
                self.tallies["dp-rank-constant"].ok()
            else:
                self.tallies["dp-rank-constant"].violation(
                    lambda: message.finding(
                        f"rank {before}",
                        f"rank {rank}",
                        "a router keeps one view per rank: the blocks of one engine end up in two",
                        slot=2,
                    )
                )
        self.rank, self.seen = rank, True
        if self.expected_rank is not None:
            if rank == self.expected_rank or (rank is None and self.expected_rank == 0):
                self.tallies["dp-rank-matches-port"].ok()
            else:
                self.tallies["dp-rank-matches-port"].violation(
                    lambda: message.finding(
                        f"rank {self.expected_rank}, which this port stands for",
                        f"rank {rank}",
                        "requests would be sent to the wrong rank",
                        slot=2,
                    )
                )
