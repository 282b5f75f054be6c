"""`BlockIndex` and `IndexSet`, fed with everything that a subscription yields."""

from __future__ import annotations

import msgspec
import pytest

from kvwire import AllBlocksCleared, BlockRemoved, BlockStored, EventBatch, decode, encode
from kvwire.errors import EnvelopeError, MalformedError, UsageError
from kvwire.events import Event
from kvwire.index import BlockIndex, IndexSet, Policy, Tier
from kvwire.items import Batch, Faulty, Item, Lost, Restarted


def stored(*hashes: int, medium: str | None = "GPU", group: int | None = None) -> BlockStored:
    return BlockStored(list(hashes), None, [], 0, medium=medium, group_idx=group)


def batch(seq: int, *events: Event, rank: int | None = 0, source: str = "a") -> Batch:
    return Batch(source, seq, EventBatch(1.5, list(events), rank), b"")


def view(index: BlockIndex) -> tuple[set[int | bytes], bool]:
    return set(index.blocks()), index.complete


def test_batches_by_rank_medium_and_group() -> None:
    index = BlockIndex()
    index.apply(batch(0, stored(1, 2), stored(1, medium="CPU"), stored(1, group=1)))
    index.apply(batch(1, BlockRemoved([1], medium="GPU")))
    assert index.hashes(Tier(0, "GPU")) == {2}
    assert index.hashes(Tier(0, "CPU")) == {1}
    assert index.hashes(Tier(0, "GPU", 1)) == {1}
    assert index.complete


def test_a_batch_by_itself_still_goes() -> None:
    index = BlockIndex()
    index.apply(EventBatch(1.5, [stored(1)], 0))
    assert view(index) == ({1}, True)
    assert index.source is None


def test_a_subscription_that_begins_in_the_middle_is_incomplete() -> None:
    index = BlockIndex()
    index.apply(batch(7, stored(1)))
    assert view(index) == ({1}, False)


@pytest.mark.parametrize("item", [Lost("a", 1, 4), Faulty("a", 1, MalformedError("bad"), b"\xc1")])
def test_what_may_have_removed_anything_forgets_everything(item: Lost | Faulty) -> None:
    index = BlockIndex()
    index.apply(batch(0, stored(1), stored(2, medium="CPU"), stored(3, group=1)))
    index.apply(item)
    assert (len(index), index.complete) == (0, False)
    index.apply(batch(5, stored(4)))
    assert view(index) == ({4}, False)


def test_wrong_frames_say_nothing_about_the_cache() -> None:
    index = BlockIndex()
    index.apply(batch(0, stored(1)))
    index.apply(Faulty("a", None, EnvelopeError("two frames"), b""))
    assert view(index) == ({1}, True)


def test_a_restart_begins_with_an_empty_cache() -> None:
    index = BlockIndex()
    index.apply(batch(5, stored(1)))
    index.apply(Restarted("a"))
    assert (len(index), index.complete) == (0, True)
    index.apply(batch(0, stored(2)))
    assert view(index) == ({2}, True)


def test_a_restart_whose_beginning_is_lost_is_incomplete() -> None:
    index = BlockIndex()
    for item in (batch(0, stored(1)), Restarted("a"), Lost("a", 0, 3), batch(4, stored(2))):
        index.apply(item)
    assert view(index) == ({2}, False)


def test_a_clear_makes_it_complete_again() -> None:
    index = BlockIndex()
    for item in (batch(0, stored(1)), Lost("a", 1, 1), batch(2, AllBlocksCleared(), stored(3))):
        index.apply(item)
    assert view(index) == ({3}, True)


def test_a_clear_of_one_rank_says_nothing_of_another() -> None:
    index = BlockIndex()
    items: list[Item] = [
        batch(0, stored(1), rank=0),
        batch(1, stored(2), rank=1),
        Lost("a", 2, 2),
        batch(3, AllBlocksCleared(), rank=0),
    ]
    for item in items:
        index.apply(item)
    assert not index.complete


@pytest.mark.parametrize(
    ("events", "held"),
    [
        ([["BlockStored", "not a list", None, [], 0]], {1, 2}),
        ([["BlockRemoved", "not a list"]], set()),
        ([[7]], set()),
    ],
    ids=["a store", "a removal", "who knows"],
)
def test_an_unreadable_event_of_a_batch_that_was_collected(events: list[object], held: set[int]) -> None:
    """A store that cannot be read is a block less; what may have been a removal leaves nothing to trust."""
    raw = msgspec.msgpack.encode([1.5, [["BlockStored", [2], None, [], 0], *events], 0])
    index = BlockIndex()
    index.apply(batch(0, stored(1)))
    index.apply(Batch("a", 1, decode(raw, on_error="collect"), raw))
    assert view(index) == (held, False)


def test_one_index_is_of_one_source() -> None:
    index = BlockIndex()
    index.apply(batch(0, stored(1)))
    with pytest.raises(UsageError, match="holds the view of a, the item is of b"):
        index.apply(batch(1, stored(2), source="b"))
    assert index.blocks() == {1}


def test_a_set_keeps_sources_apart() -> None:
    caches = IndexSet(Policy.SET)
    for item in (
        batch(0, stored(1, 2)),
        batch(0, stored(1), source="b"),
        batch(0, stored(9), source="c"),
        Lost("c", 1, 1),
    ):
        caches.apply(item)
    assert caches.matched_prefix([1, 2, 3]) == {"a": 2, "b": 1, "c": 0}
    assert caches.matched_prefix([1, 2], medium="CPU") == {"a": 0, "b": 0, "c": 0}
    assert (len(caches), list(caches), caches["b"].policy) == (3, ["a", "b", "c"], Policy.SET)
    assert [source for source, index in caches.items() if not index.complete] == ["c"]


def test_a_round_trip_through_the_wire() -> None:
    raw = encode(EventBatch(1.5, [stored(1, 2)], 3), "slot7")
    index = BlockIndex()
    index.apply(Batch("a", 0, decode(raw), raw))
    assert index.hashes(Tier(3, "GPU")) == {1, 2}
