"""How SGLang puts pages into events, which changed with its releases."""

from __future__ import annotations

from collections.abc import Iterable

from kvwire.events import BlockRemoved, BlockStored, Event
from kvwire_conform.simulator_profile import Coalescing

_OF_THE_BLOCKS = frozenset(("block_hashes", "parent_block_hash", "token_ids", "extra_keys"))


def coalesce(events: Iterable[Event], how: Coalescing) -> list[Event]:
    """Join and cut events of one batch.

    Args:
        events: stores of one page each, and removals of one tree node each; joined ones are changed in place.
        how: the habit of the releases.
    """
    done: list[Event] = []
    for event in events:
        last = done[-1] if done else None
        if how is Coalescing.PAGE and isinstance(event, BlockRemoved):
            done += [_removal_like(event, block_hash) for block_hash in event.block_hashes]
        elif how is Coalescing.CHAIN and last is not None and _joins(last, event):
            _join(last, event)
        else:
            done.append(event)
    return done


def _removal_like(event: BlockRemoved, block_hash: int | bytes) -> BlockRemoved:
    values = {name: getattr(event, name) for name in event.__struct_fields__ if name != "block_hashes"}
    return BlockRemoved([block_hash], **values)


def _joins(last: Event, event: Event) -> bool:
    """Whether an event continues the one before: a child of its last block, or a removal from the same tier."""
    if isinstance(last, BlockStored) and isinstance(event, BlockStored):
        linked = event.parent_block_hash == last.block_hashes[-1]
    elif isinstance(last, BlockRemoved) and isinstance(event, BlockRemoved):
        linked = not set(last.block_hashes) & set(event.block_hashes)
    else:
        return False
    return linked and all(
        getattr(last, name) == getattr(event, name) for name in last.__struct_fields__ if name not in _OF_THE_BLOCKS
    )


def _join(last: Event, event: Event) -> None:
    assert isinstance(last, (BlockStored, BlockRemoved))
    assert isinstance(event, (BlockStored, BlockRemoved))
    last.block_hashes += event.block_hashes
    if isinstance(last, BlockStored) and isinstance(event, BlockStored):
        last.token_ids += event.token_ids
