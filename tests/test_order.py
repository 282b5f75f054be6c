"""Live and replayed batches put back in order: each once, or a word that it is missing."""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from kvwire_conform.messages import Message
from kvwire_conform.order import Began, InOrder, Missing, Order, Restarted, Step


def message(seq: int, channel: str = "live", run: int = 0) -> Message:
    return Message(float(seq), channel, [], b"", seq, b"%d of run %d" % (seq, run))


def shown(steps: Iterable[Step]) -> list[str]:
    words = []
    for step in steps:
        if isinstance(step, InOrder):
            words.append(f"{step.message.seq}")
        elif isinstance(step, Missing):
            words.append(f"missing {step.first}-{step.last}")
        elif isinstance(step, Restarted):
            words.append(f"restart after {step.before}")
        elif isinstance(step, Began):
            words.append(f"began {step.seq}")
    return words


def test_plain() -> None:
    order = Order(replay_expected=False)
    assert [shown(order.live(message(seq))) for seq in (0, 1, 2)] == [["began 0", "0"], ["1"], ["2"]]
    assert order.lost == 0


def test_a_gap_without_replay_is_told_at_once() -> None:
    order = Order(replay_expected=False)
    list(order.live(message(5)))
    assert shown(order.live(message(8))) == ["missing 6-7", "8"]
    assert order.lost == 2


def test_a_gap_is_filled_by_a_replay() -> None:
    order = Order(replay_expected=True)
    list(order.live(message(0)))
    assert shown(order.live(message(3))) == []
    assert shown(order.replayed(message(1, "replay"))) == ["1"]
    assert shown(order.replayed(message(2, "replay"))) == ["2", "3"]
    assert shown(order.finish()) == []


def test_what_the_replay_no_longer_has_is_missing() -> None:
    order = Order(replay_expected=True)
    list(order.live(message(0)))
    list(order.live(message(5)))
    list(order.replayed(message(4, "replay")))
    assert shown(order.finish()) == ["missing 1-3", "4", "5"]


def test_a_restart_and_a_duplicate() -> None:
    order = Order(replay_expected=False)
    for seq in (0, 1):
        list(order.live(message(seq)))
    assert order.repeats(message(1))
    assert shown(order.live(message(1))) == []
    assert not order.repeats(message(0, run=1))
    assert shown(order.live(message(0, run=1))) == ["restart after 1", "0"]
    assert shown(order.live(message(1, run=1))) == ["1"]


def test_a_batch_that_came_in_a_replay_first_is_no_repeat() -> None:
    order = Order(replay_expected=True)
    list(order.replayed(message(0, "replay")))
    list(order.replay_ended(0))
    assert not order.repeats(message(0))
    assert shown(order.live(message(0))) == []
    assert order.repeats(message(0))


@given(st.integers(1, 30), st.data())
def test_any_interleaving(count: int, data: st.DataObject) -> None:
    """Loss live, any replay answers: every batch comes once and in order, or is in a gap that covers it."""
    kept = data.draw(st.sets(st.integers(0, count - 1)))
    order = Order(replay_expected=data.draw(st.booleans()))
    steps: list[Step] = []
    for seq in range(count):
        if seq in kept:
            steps += order.live(message(seq))
        if data.draw(st.integers(0, 3)) == 0:
            start = data.draw(st.integers(0, seq))
            oldest = data.draw(st.integers(start, seq))
            for replayed in range(oldest, seq + 1):
                steps += order.replayed(message(replayed, "replay"))
            steps += order.replay_ended(start)
    steps += order.finish()
    seen = [step.message.seq for step in steps if isinstance(step, InOrder)]
    assert seen == sorted(set(filter(lambda seq: seq is not None, seen)), key=int)  # type: ignore[arg-type]
    began = next((step.seq for step in steps if isinstance(step, Began)), None)
    covered = set(seen)
    for step in steps:
        if isinstance(step, Missing):
            covered |= set(range(step.first, step.last + 1))
    if began is not None:
        last = max(seq for seq in seen if seq is not None)
        assert covered == set(range(began, last + 1))
        assert kept - set(range(began)) <= covered
    assert not any(isinstance(step, Restarted) for step in steps)
