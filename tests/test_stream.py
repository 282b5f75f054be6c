"""The order of one publisher's batches: rules one by one, then Hypothesis against the truth of a simulated publisher."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import kvwire
from kvwire.errors import EnvelopeError, MalformedError, UsageError
from kvwire.events import AllBlocksCleared, EventBatch
from kvwire.stream import Ask, Batch, Faulty, Item, Limits, Lost, Request, Restarted, Start, Stream

EMPTY = EventBatch(0.0, [], 0)
LIMITS = Limits(held=8, window=16, silence=1.0, total=20.0, attempts=2, quiet=3.0, cooldown=1.0)


def as_is(payload: bytes) -> EventBatch:
    """Stands for a decoder, for payloads that are no msgpack."""
    return EMPTY


def stream(start: Start = "live", *, replay: bool = False, **changes: Any) -> Stream:
    return Stream("pub", start=start, replay=replay, decode=as_is, limits=LIMITS, **changes)


def pay(seq: int, life: int = 0) -> bytes:
    return f"{life}:{seq}".encode()


def opened(s: Stream, now: float = 0.0) -> None:
    s.connected(now)
    s.drained(now)


def feed(s: Stream, seqs: Iterable[int], now: float = 0.0, life: int = 0) -> None:
    for seq in seqs:
        s.live(seq, pay(seq, life), now)


def asked(s: Stream) -> Request:
    assert s.asked is not None, "nothing is asked"
    return s.asked


def answer(s: Stream, seqs: Iterable[int], now: float = 0.0, life: int = 0, end: bool = True) -> None:
    request = asked(s)
    for seq in seqs:
        s.replayed(request, seq, pay(seq, life), now)
    if end:
        s.replay_ended(request, now)


def told(items: list[Item]) -> list[str]:
    """Items as short words: ``3`` a batch, ``-4..5`` a loss, ``R`` a restart, ``!6`` a fault."""
    words = []
    for item in items:
        if isinstance(item, Batch):
            words.append(str(item.seq))
        elif isinstance(item, Lost):
            words.append(f"-{item.first}..{item.last}")
        elif isinstance(item, Restarted):
            words.append("R")
        else:
            words.append(f"!{item.seq}")
    return words


class TestStart:
    def test_live_starts_with_what_comes_first(self) -> None:
        s = stream()
        opened(s)
        feed(s, [7, 8])
        assert told(s.take()) == ["7", "8"]
        assert s.asked is None

    def test_replay_asks_for_everything_once_the_channel_is_open(self) -> None:
        s = stream("replay", replay=True)
        assert s.asked is None
        opened(s)
        assert asked(s).start == 0
        feed(s, [3])
        answer(s, [0, 1, 2, 3])
        feed(s, [4])
        assert told(s.take()) == ["0", "1", "2", "3", "4"]
        assert s.stats.duplicates == 0

    def test_a_replay_that_begins_later_says_what_is_gone(self) -> None:
        s = stream("replay", replay=True)
        opened(s)
        answer(s, [5, 6])
        assert told(s.take()) == ["-0..4", "5", "6"]

    def test_a_given_seq_is_resumed_from(self) -> None:
        s = stream(5, replay=True)
        opened(s)
        assert asked(s).start == 4, "one less: the batch that shows whether it is still the same publisher"
        answer(s, [4, 5, 6])
        assert told(s.take()) == ["5", "6"]

    def test_a_given_seq_that_the_publisher_never_reached_is_a_restart(self) -> None:
        s = stream(5, replay=True)
        opened(s)
        answer(s, [])
        assert asked(s).start == 0
        answer(s, [0, 1])
        assert told(s.take()) == ["R", "0", "1"]

    def test_a_given_seq_without_replay(self) -> None:
        s = stream(5)
        opened(s)
        feed(s, [7])
        assert told(s.take()) == ["-5..6", "7"]

    @pytest.mark.parametrize("start", ["Live", -1, 2**64 - 1, True, 1.5])
    def test_what_is_no_start(self, start: Any) -> None:
        with pytest.raises(UsageError, match="start is"):
            stream(start, replay=True)

    def test_replay_from_nowhere(self) -> None:
        with pytest.raises(UsageError, match="needs a replay endpoint"):
            stream("replay")


class TestGaps:
    def test_without_replay_a_gap_is_lost_at_once(self) -> None:
        s = stream()
        feed(s, [0, 3, 4])
        items = s.take()
        assert told(items) == ["0", "-1..2", "3", "4"]
        assert isinstance(items[1], Lost)
        assert items[1].reason == "no replay endpoint"

    def test_a_gap_is_asked_for_from_the_first_missing_seq_and_filled(self) -> None:
        s = stream(replay=True)
        feed(s, [0, 1, 4])
        assert (asked(s).kind, asked(s).start) == (Ask.GAP, 2)
        feed(s, [5])
        assert told(s.take()) == ["0", "1"]
        answer(s, [2, 3, 4, 5])
        feed(s, [6])
        assert told(s.take()) == ["2", "3", "4", "5", "6"]
        assert s.asked is None

    def test_what_the_replay_no_longer_has_is_lost(self) -> None:
        s = stream(replay=True)
        feed(s, [0, 5])
        answer(s, [3, 4, 5])
        assert told(s.take()) == ["0", "-1..2", "3", "4", "5"]

    def test_an_answer_without_batches_proves_the_loss(self) -> None:
        s = stream(replay=True)
        feed(s, [0, 2])
        answer(s, [])
        assert told(s.take()) == ["0", "-1..1", "2"]

    def test_an_answer_that_stops_half_way_is_asked_for_again_from_there(self) -> None:
        s = stream(replay=True)
        feed(s, [0, 6])
        answer(s, [1, 2], end=False)
        s.tick(1.5)
        assert asked(s).start == 3
        answer(s, [3, 4, 5, 6], now=1.6)
        assert told(s.take()) == ["0", "1", "2", "3", "4", "5", "6"]
        assert s.stats.failures == 0

    def test_a_hole_within_an_answer_is_asked_for_again_before_it_is_lost(self) -> None:
        s = stream(replay=True)
        feed(s, [0, 6])
        answer(s, [1, 2, 4, 5])
        assert asked(s).start == 3
        assert told(s.take()) == ["0", "1", "2"]
        answer(s, [4, 5, 6])
        assert told(s.take()) == ["-3..3", "4", "5", "6"]

    def test_a_hole_within_the_first_replay(self) -> None:
        s = stream("replay", replay=True)
        opened(s)
        answer(s, [0, 1, 3, 4])
        assert asked(s).start == 2
        answer(s, [3, 4])
        assert told(s.take()) == ["0", "1", "-2..2", "3", "4"]

    def test_a_gap_that_opens_during_an_answer_is_asked_for_after_it(self) -> None:
        s = stream(replay=True)
        feed(s, [0, 2, 5])
        answer(s, [1, 2])
        assert asked(s).start == 3
        answer(s, [3, 4, 5])
        assert told(s.take()) == ["0", "1", "2", "3", "4", "5"]

    def test_what_is_known_to_be_gone_is_not_asked_for_twice(self) -> None:
        s = stream(replay=True)
        feed(s, [0, 2])
        answer(s, [100, 101])
        feed(s, [3, 6])
        assert told(s.take()) == ["0", "-1..1", "2", "3", "-4..5", "6"]
        assert s.asked is None

    def test_replies_ahead_of_the_live_stream_do_not_open_gaps(self) -> None:
        s = stream(replay=True)
        feed(s, [0, 2])
        answer(s, [2**63])
        feed(s, [3])
        assert told(s.take()) == ["0", "-1..1", "2", "3"]

    def test_the_live_batch_can_be_ahead_of_its_replay_or_behind(self) -> None:
        s = stream(replay=True)
        feed(s, [0, 2])
        answer(s, [1, 2, 3, 4])
        feed(s, [3, 4, 5])
        assert told(s.take()) == ["0", "1", "2", "3", "4", "5"]
        assert s.stats.duplicates == 2

    def test_live_batches_are_held_within_bounds_and_asked_for_again(self) -> None:
        s = stream(replay=True)
        feed(s, [0, *range(2, 20)])
        assert s.stats.overflow == 10
        answer(s, range(1, 5))
        assert told(s.take()) == [str(seq) for seq in range(10)]
        assert asked(s).start == 10
        answer(s, range(10, 20))
        assert told(s.take()) == [str(seq) for seq in range(10, 20)]

    def test_bytes_held_are_bounded_too(self) -> None:
        s = Stream("pub", replay=True, decode=as_is, limits=Limits(held_bytes=100))
        s.live(0, b"", 0)
        for seq in range(2, 10):
            s.live(seq, bytes(60), 0)
        assert s.stats.overflow == 7


class TestDuplicatesAndRestarts:
    def test_a_duplicate_is_dropped(self) -> None:
        s = stream()
        feed(s, [0, 1, 1, 0, 2])
        assert told(s.take()) == ["0", "1", "2"]
        assert (s.stats.duplicates, s.stats.restarts) == (2, 0)

    def test_other_content_under_a_seq_is_a_restart(self) -> None:
        s = stream()
        feed(s, [0, 1, 2])
        feed(s, [0, 1], life=1)
        assert told(s.take()) == ["0", "1", "2", "R", "0", "1"]

    def test_a_restart_that_is_noticed_late_says_what_was_missed(self) -> None:
        s = stream()
        feed(s, range(10))
        feed(s, [2, 3], life=1)
        assert told(s.take())[10:] == ["R", "-0..1", "2", "3"]

    def test_a_restart_that_is_noticed_late_is_replayed_from_its_beginning(self) -> None:
        s = stream(replay=True)
        feed(s, range(10))
        feed(s, [2], life=1)
        assert asked(s).start == 0
        answer(s, [0, 1, 2], life=1)
        assert told(s.take())[10:] == ["R", "0", "1", "2"]

    def test_going_back_beyond_the_window_is_a_restart(self) -> None:
        s = stream()
        feed(s, range(40))
        s.live(3, pay(3), 0)
        assert told(s.take())[40:] == ["R", "-0..2", "3"]

    def test_going_back_before_the_first_is_a_restart(self) -> None:
        s = stream()
        feed(s, [20])
        feed(s, [4])
        assert told(s.take()) == ["20", "R", "-0..3", "4"]

    def test_a_batch_that_comes_after_its_loss_is_no_restart(self) -> None:
        s = stream()
        feed(s, [0, 3, 2, 4])
        assert told(s.take()) == ["0", "-1..2", "3", "4"]
        assert s.stats.late == 1

    def test_a_batch_that_comes_late_fills_its_gap(self) -> None:
        s = stream(replay=True)
        feed(s, [0, 3, 1, 4, 2, 5])
        assert told(s.take()) == ["0", "1", "2", "3", "4", "5"]
        assert s.stats.restarts == 0

    def test_two_that_go_back_in_a_row_are_a_restart(self) -> None:
        s = stream()
        feed(s, [0, 5])
        feed(s, [2, 3], life=1)
        assert told(s.take()) == ["0", "-1..4", "5", "R", "-0..1", "2", "3"]

    def test_one_that_goes_back_before_a_silence_is_a_restart(self) -> None:
        s = stream()
        feed(s, [0, 5, 2])
        assert told(s.take()) == ["0", "-1..4", "5"]
        assert s.deadline == 1.0
        s.tick(1.0)
        assert told(s.take()) == ["R", "-0..1", "2"]

    def test_seq_0_that_was_lost_before_is_a_restart(self) -> None:
        s = stream(0)
        feed(s, [1, 0])
        assert told(s.take()) == ["-0..0", "1", "R", "0"]

    def test_what_was_held_of_the_old_publisher_comes_before_the_restart(self) -> None:
        s = stream(replay=True)
        feed(s, [0, 2, 3])
        feed(s, [0], life=1)
        assert told(s.take()) == ["0", "-1..1", "2", "3", "R", "0"]
        assert s.asked is None

    def test_the_seq_wraps_around_the_end_marker(self) -> None:
        s = stream()
        feed(s, [2**64 - 3, 2**64 - 2, 0, 1])
        assert told(s.take()) == [str(2**64 - 3), str(2**64 - 2), "0", "1"]

    def test_the_end_marker_is_no_seq(self) -> None:
        s = stream()
        feed(s, [0, 2**64 - 1, 1])
        assert told(s.take()) == ["0", "!None", "1"]


class TestReconnect:
    def lost_connection(self, seen: int = 3) -> Stream:
        s = stream(replay=True)
        opened(s)
        feed(s, range(seen))
        s.disconnected(1)
        s.take()
        return s

    def test_the_same_publisher_goes_on(self) -> None:
        s = self.lost_connection()
        opened(s, 2)
        assert (asked(s).kind, asked(s).start) == (Ask.VERIFY, 2)
        feed(s, [5], now=2)
        assert s.take() == []
        answer(s, [2, 3, 4, 5], now=2)
        assert told(s.take()) == ["3", "4", "5"]

    def test_what_came_during_the_break_is_had_without_another_live_batch(self) -> None:
        s = self.lost_connection()
        opened(s, 2)
        answer(s, [2, 3, 4], now=2)
        assert told(s.take()) == ["3", "4"]

    @pytest.mark.parametrize("newest", [2, 3, 9])
    def test_another_publisher_that_has_overtaken_is_not_taken_for_the_same(self, newest: int) -> None:
        s = self.lost_connection()
        opened(s, 2)
        s.live(newest + 1, pay(newest + 1, 1), 2)
        answer(s, range(2, newest + 2), now=2, life=1)
        assert told(s.take()) == ["R"]
        assert asked(s).start == 0
        answer(s, range(newest + 2), now=2, life=1)
        s.live(newest + 2, pay(newest + 2, 1), 2)
        assert told(s.take()) == [str(seq) for seq in range(newest + 3)]

    def test_another_publisher_with_less_is_noticed_without_a_live_batch(self) -> None:
        s = self.lost_connection()
        opened(s, 2)
        answer(s, [], now=2)
        answer(s, [0], now=2, life=1)
        assert told(s.take()) == ["R", "0"]

    def test_a_buffer_that_moved_on_is_a_loss(self) -> None:
        s = self.lost_connection()
        opened(s, 2)
        answer(s, [7, 8], now=2)
        assert told(s.take()) == ["-3..6", "7", "8"]

    def test_a_buffer_that_begins_with_the_next_one_proves_nothing(self) -> None:
        s = self.lost_connection()
        opened(s, 2)
        answer(s, [3, 4], now=2)
        answer(s, [3, 4], now=2)
        assert told(s.take()) == ["R", "-0..2", "3", "4"]

    def test_a_replay_of_the_former_connection_is_void(self) -> None:
        s = stream(replay=True)
        opened(s)
        feed(s, [0, 3])
        former = asked(s)
        s.disconnected(1)
        s.replayed(former, 1, pay(1, 1), 1)
        s.replay_ended(former, 1)
        assert told(s.take()) == ["0"]
        opened(s, 2)
        answer(s, [0, 1, 2, 3], now=2)
        assert told(s.take()) == ["1", "2", "3"]

    def test_what_is_held_is_not_held_for_ever_when_the_publisher_is_gone(self) -> None:
        s = stream(replay=True)
        opened(s)
        feed(s, [0, 3])
        s.disconnected(1)
        assert s.deadline == 3.0
        s.tick(3.0)
        assert told(s.take()) == ["0", "-1..2", "3"]

    def test_without_an_answer_the_stream_is_trusted(self) -> None:
        s = self.lost_connection()
        opened(s, 2)
        feed(s, [3, 5], now=2)
        for now in (3.0, 4.0, 5.0):
            s.tick(now)
        assert told(s.take()) == ["3", "-4..4", "5"]
        assert s.stats.last_failure == "the replay stalled"


class TestBadReplays:
    def gap(self) -> Stream:
        s = stream(replay=True)
        feed(s, [0, 2])
        s.take()
        return s

    def test_silence_is_given_up_within_the_deadline(self) -> None:
        s = self.gap()
        assert s.deadline == 1.0
        s.tick(1.0)
        assert s.take() == []
        s.tick(2.0)
        items = s.take()
        assert told(items) == ["-1..1", "2"]
        assert isinstance(items[0], Lost)
        assert items[0].reason == "the replay stalled"

    def test_after_a_failure_gaps_are_lost_at_once_until_the_cooldown_is_over(self) -> None:
        s = self.gap()
        s.tick(1.0)
        s.tick(2.0)
        feed(s, [4], now=2.5)
        assert told(s.take()) == ["-1..1", "2", "-3..3", "4"]
        feed(s, [6], now=3.0)
        assert asked(s).start == 5
        for now in (4.0, 5.0, 5.5):
            s.tick(now)
        feed(s, [8], now=6.5)
        assert s.asked is None, "the second failure in a row doubles it"
        feed(s, [10], now=7.0)
        assert asked(s).start == 9

    def test_a_loop_is_given_up(self) -> None:
        s = self.gap()
        request = asked(s)
        for _ in range(1200):
            s.replayed(request, 0, b"x", 0.0)
        assert told(s.take()) == ["-1..1", "2"]

    def test_repeats_do_not_hold_off_the_deadline(self) -> None:
        s = self.gap()
        request = asked(s)
        s.replayed(request, 2, pay(2), 0.0)
        s = self.gap()
        request = asked(s)
        for tenth in range(9):
            s.replayed(request, 0, b"x", tenth / 10)
        assert s.deadline == 1.0

    def test_an_answer_without_end_is_given_up(self) -> None:
        s = Stream("pub", replay=True, decode=as_is, limits=LIMITS)
        feed(s, [0, 1000])
        now = 0.0
        seq = 1
        while s.asked is not None and seq < 1000:
            now += 0.9
            s.replayed(s.asked, seq, pay(seq), now)
            s.tick(now)
            seq += 1
        assert now < LIMITS.total + 2
        assert told(s.take())[-2:] == [f"-{seq}..999", "1000"]

    def test_an_answer_that_contradicts_is_given_up(self) -> None:
        s = stream(replay=True)
        feed(s, [0, 2, 3])
        s.replayed(asked(s), 2, b"something else", 0)
        assert told(s.take()) == ["0", "-1..1", "2", "3"]
        assert s.stats.lies == 1

    def test_garbage_is_reported_and_the_replay_given_up(self) -> None:
        s = self.gap()
        s.replay_garbage(asked(s), EnvelopeError("no replay reply"), b"junk", 0)
        assert told(s.take()) == ["!None", "-1..1", "2"]

    def test_a_forged_tail_ends_in_a_restart_not_in_silence(self) -> None:
        s = stream("replay", replay=True)
        opened(s)
        answer(s, [0, 1, 2], life=66)
        feed(s, [0, 1])
        assert told(s.take()) == ["0", "1", "2", "R", "0", "1"]
        assert s.stats.last_failure == "the replay was contradicted by the live stream"


class TestProbe:
    def test_a_silence_is_used_to_ask_what_came_last(self) -> None:
        s = stream(replay=True)
        opened(s)
        feed(s, [0, 1], now=1.0)
        assert s.deadline == 4.0
        s.tick(4.0)
        assert (asked(s).kind, asked(s).start) == (Ask.PROBE, 1)
        feed(s, [2], now=4.0)
        answer(s, [1, 2, 3], now=4.1)
        assert told(s.take()) == ["0", "1", "2", "3"]

    def test_it_is_asked_once_per_silence(self) -> None:
        s = stream(replay=True)
        opened(s)
        feed(s, [0], now=1.0)
        s.tick(4.0)
        answer(s, [0], now=4.0)
        assert s.deadline is None

    def test_it_notices_a_restart(self) -> None:
        s = stream(replay=True)
        opened(s)
        feed(s, [0, 1], now=1.0)
        s.tick(4.0)
        answer(s, [0, 1], now=4.0, life=1)
        answer(s, [0, 1], now=4.0, life=1)
        assert told(s.take()) == ["0", "1", "R", "0", "1"]

    def test_a_replay_without_a_buffer_is_not_a_restart(self) -> None:
        s = stream(replay=True)
        opened(s)
        feed(s, [0, 1], now=1.0)
        s.tick(4.0)
        answer(s, [], now=4.0)
        assert told(s.take()) == ["0", "1"]


class TestFaults:
    def test_a_payload_that_cannot_be_read_takes_its_seq(self) -> None:
        s = Stream("pub")
        good = kvwire.encode(EventBatch(1.5, [AllBlocksCleared()], 0), "slot7")
        s.live(0, good, 0)
        s.live(1, b"\xc1", 0)
        s.live(2, good, 0)
        first, fault, last = s.take()
        assert isinstance(first, Batch)
        assert isinstance(last, Batch)
        assert first.batch == last.batch == EventBatch(1.5, [AllBlocksCleared()], 0)
        assert first.raw == good
        assert isinstance(fault, Faulty)
        assert (fault.source, fault.seq, fault.raw) == ("pub", 1, b"\xc1")
        assert isinstance(fault.error, MalformedError)

    def test_a_payload_that_is_too_long(self) -> None:
        s = Stream("pub", decode=as_is, limits=Limits(payload=10))
        s.live(0, bytes(11), 0)
        s.live(1, bytes(10), 0)
        items = s.take()
        assert told(items) == ["!0", "1"]
        assert isinstance(items[0], Faulty)
        assert "at most 10 bytes" in str(items[0].error)

    def test_frames_that_are_wrong(self) -> None:
        s = stream()
        feed(s, [0])
        s.garbage(EnvelopeError("two frames"), b"x")
        feed(s, [1])
        assert told(s.take()) == ["0", "!None", "1"]


# A simulated publisher, as engines are: a ring of batches, seqs from 0 in every life.


@dataclass
class Life:
    """One process of the publisher. ``ring`` is what a replay still has."""

    number: int
    ring: deque[tuple[int, bytes]]
    published: int = 0
    delivered: set[int] = field(default_factory=set)


class World:
    """What really happened, and what the stream said about it. ``naive``: it simply remembers everything."""

    def __init__(self, ring: int, replay: bool, start: Start) -> None:
        self.now = 0.0
        self.ring_size = ring
        self.stream = Stream("pub", start=start, replay=replay, decode=as_is, limits=LIMITS)
        self.lives = [Life(0, deque(maxlen=ring))]
        self.connected = True
        self.told_drained = False
        self.queue: deque[tuple[int, int, bytes]] = deque()
        self.answers: dict[int, tuple[Request, deque[tuple[int, bytes] | None]]] = {}
        self.expected: int | None = None if start == "live" else 0
        self.segment_life: int | None = None
        self.yielded: set[tuple[int, int]] = set()
        self.this_segment: set[tuple[int, int]] = set()
        self.after_loss = False
        self.restarts_told = 0
        self.unprovable = 0
        self.sound = True
        self.unordered = False
        self.overtaken_blindly = False
        self.connect()

    @property
    def life(self) -> Life:
        return self.lives[-1]

    def connect(self) -> None:
        self.connected = True
        self.told_drained = False
        self.stream.connected(self.now)

    def publish(self, *, arrives: bool = True, hole: bool = False) -> None:
        life = self.life
        seq = life.published
        life.published += 1
        if hole:
            return
        payload = pay(seq, life.number)
        life.ring.append((seq, payload))
        if arrives and self.connected:
            self.queue.append((life.number, seq, payload))

    def deliver(self) -> None:
        if self.queue:
            number, seq, payload = self.queue.popleft()
            self.lives[number].delivered.add(seq)
            self.stream.live(seq, payload, self.now)
        self.settle_connection()
        self.check()

    def settle_connection(self) -> None:
        """What the sockets do: tell when everything received so far has been told."""
        if self.connected and not self.told_drained and not self.queue:
            self.told_drained = True
            self.stream.drained(self.now)

    def lose_connection(self) -> None:
        if self.connected:
            self.connected = False
            self.stream.disconnected(self.now)
            self.answers.clear()
            self.check()

    def restart(self) -> None:
        self.lose_connection()
        self.lives.append(Life(self.life.number + 1, deque(maxlen=self.ring_size)))

    def serve(self, replies: int, *, keep_end: bool = True, lose: int | None = None) -> None:
        """The publisher answers what is asked for, up to a number of replies at a time."""
        request = self.stream.asked
        if request is None:
            return
        known = self.answers.get(id(request))
        if known is None or known[0] is not request:
            script: deque[tuple[int, bytes] | None] = deque(
                entry for entry in self.life.ring if entry[0] >= request.start
            )
            if lose is not None and 0 < lose < len(script):
                del script[lose]
            if script and script[0] is not None and script[0][0] > request.start:
                # The buffer no longer shows whether it is still the same publisher.
                self.unprovable += request.kind is Ask.VERIFY
            script.append(None)
            if not keep_end:
                script.pop()
            known = self.answers[id(request)] = (request, script)
        script = known[1]
        for _ in range(replies):
            if not script or self.stream.asked is not request:
                break
            reply = script.popleft()
            if reply is None:
                self.stream.replay_ended(request, self.now)
            else:
                self.stream.replayed(request, *reply, self.now)
        self.check()

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        unverified = self.stream._unverified
        self.stream.tick(self.now)
        if unverified and not self.stream._unverified:
            # No answer came: the stream goes on unverified, as it does without a replay.
            self.overtaken_blindly = True
        self.check()

    def check(self) -> None:
        items = self.stream.take()
        for index, item in enumerate(items):
            self.sound = False
            self.check_item(item, any(isinstance(later, Restarted) for later in items[index:]))
            self.sound = True

    def check_item(self, item: Item, void: bool) -> None:
        """``void``: a restart follows in the same breath, so that nothing can be built on this item."""
        assert not isinstance(item, Faulty), item
        if isinstance(item, Restarted):
            self.restarts_told += 1
            if not self.unordered:
                assert self.restarts_told < len(self.lives) + self.unprovable, "a restart that did not happen"
            self.expected = 0
            self.segment_life = None
            self.this_segment.clear()
            self.after_loss = False
            return
        first, last = (item.first, item.last) if isinstance(item, Lost) else (item.seq, item.seq)
        assert first <= last
        if self.expected is not None:
            assert first == self.expected, f"{item} instead of seq {self.expected}"
        self.expected = (last + 1) % (2**64 - 1)
        if isinstance(item, Lost):
            self.check_loss(item)
            self.after_loss = True
            return
        number, seq = map(int, item.raw.decode().split(":"))
        assert seq == item.seq
        assert (number, seq) not in self.this_segment, "yielded twice"
        self.this_segment.add((number, seq))
        self.yielded.add((number, seq))
        # Batches of two publishers in one queue, out of order: whose they are cannot be told then.
        if self.segment_life is not None and not (self.unordered and len(self.lives) > 1):
            assert number >= self.segment_life, "back to a former publisher"
            if not self.after_loss and not self.overtaken_blindly and not void:
                assert number == self.segment_life, "two publishers mixed"
        self.segment_life = number
        self.after_loss = False

    def check_loss(self, item: Lost) -> None:
        in_step = self.restarts_told == len(self.lives) - 1 and self.segment_life in (None, self.life.number)
        if not in_step or self.unordered or self.stream.stats.failures:
            return
        lost = range(item.first, item.last + 1)
        if self.stream.replay:
            if not self.stream._doubt:
                gone = {seq for seq, _ in self.life.ring}
                assert not gone.intersection(lost), f"{item} while the replay has {gone.intersection(lost)}"
        else:
            received = self.life.delivered.intersection(lost)
            assert not received, f"{item} although {received} came"

    def come_to_rest(self) -> None:
        """Let everything that is on its way arrive, and one batch more; then everything must have been told."""
        if not self.connected:
            self.connect()
        self.settle()
        self.publish()
        self.settle()
        assert not self.stream._held
        if self.stream.replay and not (self.unordered and len(self.lives) > 1):
            assert self.expected == self.life.published, "not all that was published was told"

    def settle(self) -> None:
        for _ in range(2000):
            while self.queue or not self.told_drained:
                self.deliver()
            if self.stream.asked is not None:
                self.answers.clear()
                self.serve(10**9)
            elif self.stream.deadline is not None:
                self.pass_time(max(0.0, self.stream.deadline - self.now))
            else:
                return
        raise AssertionError("it does not come to rest")


class StreamAgainstTruth(RuleBasedStateMachine):
    """Loss, duplication, reordering, restarts and partial answers in any order: every batch once, in order, or lost."""

    @initialize(ring=st.sampled_from([1, 3, 30]), replay=st.booleans(), start=st.sampled_from(["live", "replay", 0]))
    def begin(self, ring: int, replay: bool, start: Start) -> None:
        self.world = World(ring, replay, "live" if start == "replay" and not replay else start)
        self.seen: list[tuple[int, int, bytes]] = []

    @rule(count=st.integers(1, 12))
    def publish(self, count: int) -> None:
        for _ in range(count):
            self.world.publish()

    @rule(count=st.integers(1, 4))
    def publish_in_vain(self, count: int) -> None:
        for _ in range(count):
            self.world.publish(arrives=False)

    @rule()
    def fail_to_encode(self) -> None:
        self.world.publish(hole=True)

    @rule(count=st.integers(1, 10))
    def deliver(self, count: int) -> None:
        for _ in range(count):
            if self.world.queue:
                self.seen.append(self.world.queue[0])
            self.world.deliver()

    @precondition(lambda self: self.world.queue)
    @rule()
    def drop(self) -> None:
        self.world.queue.popleft()

    @precondition(lambda self: self.seen)
    @rule(back=st.integers(1, 12))
    def duplicate(self, back: int) -> None:
        again = self.seen[-min(back, len(self.seen))]
        world = self.world
        # Beyond that, a duplicate cannot be told from a restart.
        within = again[1] >= (world.stream.next or 0) - LIMITS.window and not world.stream.stats.overflow
        if again[0] == world.life.number and world.told_drained and not world.queue and within:
            world.queue.append(again)

    @precondition(lambda self: len(self.world.queue) > 1)
    @rule(where=st.integers(0, 10))
    def swap(self, where: int) -> None:
        queue = self.world.queue
        where %= len(queue) - 1
        if queue[where][0] == queue[where + 1][0]:
            self.world.unordered = True
            queue[where], queue[where + 1] = queue[where + 1], queue[where]

    @rule()
    def lose_connection(self) -> None:
        self.world.lose_connection()

    @precondition(lambda self: not self.world.connected)
    @rule()
    def connect(self) -> None:
        self.world.connect()

    @rule()
    def restart(self) -> None:
        if not self.world.stream.replay:
            # Which publisher goes on at exactly the next seq cannot be told without a replay.
            self.world.overtaken_blindly = True
        self.world.restart()

    @rule(replies=st.integers(1, 40))
    def serve(self, replies: int) -> None:
        if self.world.connected:
            self.world.serve(replies)

    @rule(replies=st.integers(1, 40), lose=st.integers(1, 8))
    def serve_with_a_hole(self, replies: int, lose: int) -> None:
        if self.world.connected:
            self.world.serve(replies, lose=lose)

    @rule(replies=st.integers(1, 40))
    def serve_without_end(self, replies: int) -> None:
        if self.world.connected:
            self.world.serve(replies, keep_end=False)

    @rule(seconds=st.sampled_from([0.1, 0.5, 1.1, 5.0]))
    def pass_time(self, seconds: float) -> None:
        self.world.pass_time(seconds)

    @invariant()
    def bounded(self) -> None:
        if hasattr(self, "world"):
            assert len(self.world.stream._held) <= LIMITS.held
            assert self.world.stream._held_bytes == sum(map(len, self.world.stream._held.values()))

    def teardown(self) -> None:
        if hasattr(self, "world") and self.world.sound:
            self.world.come_to_rest()


class StreamAgainstLiar(RuleBasedStateMachine):
    """A replay endpoint that says anything at any time: the live stream is told whole, and nothing hangs."""

    @initialize(start=st.sampled_from(["live", "replay", 3]))
    def begin(self, start: Start) -> None:
        self.stream = stream(start, replay=True)
        self.now = 0.0
        self.next = 0
        self.expected: int | None = None if start == "live" else 3 if start == 3 else 0
        opened(self.stream)

    @rule(count=st.integers(1, 20), skip=st.integers(0, 3))
    def live(self, count: int, skip: int) -> None:
        self.next += skip
        for _ in range(count):
            self.stream.live(self.next, pay(self.next), self.now)
            self.next += 1

    @rule(
        seqs=st.lists(st.one_of(st.integers(0, 60), st.integers(0, 2**64 - 1)), max_size=30),
        life=st.integers(0, 2),
        end=st.booleans(),
    )
    def reply(self, seqs: list[int], life: int, end: bool) -> None:
        for seq in seqs:
            if self.stream.asked is not None:
                self.stream.replayed(self.stream.asked, seq, pay(seq, life), self.now)
        if end and self.stream.asked is not None:
            self.stream.replay_ended(self.stream.asked, self.now)

    @rule(count=st.integers(1, 40), life=st.integers(0, 1))
    def plausible_reply(self, count: int, life: int) -> None:
        request = self.stream.asked
        if request is not None:
            for seq in range(request.start, request.start + count):
                self.stream.replayed(request, seq, pay(seq, life), self.now)

    @rule()
    def reply_with_garbage(self) -> None:
        if self.stream.asked is not None:
            self.stream.replay_garbage(self.stream.asked, EnvelopeError("garbage"), b"", self.now)

    @rule(seconds=st.sampled_from([0.1, 0.5, 1.1, 30.0]))
    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.stream.tick(self.now)

    @rule()
    def reconnect(self) -> None:
        self.stream.disconnected(self.now)
        opened(self.stream, self.now)

    @invariant()
    def told_in_order(self) -> None:
        if not hasattr(self, "stream"):
            return
        for item in self.stream.take():
            if isinstance(item, Faulty):
                continue
            if isinstance(item, Restarted):
                self.expected = 0
                continue
            first, last = (item.first, item.last) if isinstance(item, Lost) else (item.seq, item.seq)
            assert self.expected in (None, first)
            assert first <= last
            self.expected = (last + 1) % (2**64 - 1)

    def teardown(self) -> None:
        if not hasattr(self, "stream"):
            return
        for _ in range(200):
            if self.stream.deadline is None:
                break
            self.now = max(self.now, self.stream.deadline)
            self.stream.tick(self.now)
            self.told_in_order()
        else:
            raise AssertionError("it never gives up")
        # The live stream goes on, and is told whole from here on: yielded, or lost where the bounds are reached.
        for _ in range(30):
            self.stream.live(self.next, pay(self.next), self.now)
            self.next += 1
        for _ in range(200):
            self.told_in_order()
            if self.stream.deadline is None:
                break
            self.now = max(self.now, self.stream.deadline)
            self.stream.tick(self.now)
        ahead = self.stream.stats.late or self.stream.stats.duplicates
        assert self.expected == self.next or ahead


Against = settings(
    max_examples=250,
    stateful_step_count=60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    database=None,
)
StreamAgainstTruth.TestCase.settings = Against
StreamAgainstLiar.TestCase.settings = Against
TestStreamAgainstTruth = StreamAgainstTruth.TestCase
TestStreamAgainstLiar = StreamAgainstLiar.TestCase
