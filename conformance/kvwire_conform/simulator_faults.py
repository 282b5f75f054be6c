"""The ways in which a simulated publisher can misbehave, one for each check of `kvwire-conform producer`.

A fault breaks one requirement in a stream that is right otherwise. It comes once, in the first fitting message after the
warm-up, and what it does leaves the rest of the stream right: blocks that it makes up are nobody's parent and are never
removed, and batches that it makes unreadable hold no events. The exceptions say so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvwire.dialects import Dialect, get_dialect
from kvwire_conform import simulator_acts as acts

if TYPE_CHECKING:
    from kvwire_conform.simulator_model import Frames, Simulator


def _always(dialect: Dialect) -> bool:
    return True


@dataclass(frozen=True)
class Fault:
    """One misbehaviour.

    Attributes:
        id: id of the requirement that it violates, and of the check that finds it.
        sentence: what the publisher does.
        side: ``stream`` or ``replay``; a fault of the replay endpoint leaves the live messages right.
        told: what a judge has to be told to see it: ``dp_rank`` of the endpoint, ``block_size``, or ``hash``, the recipe
            (`Profile.recipe` and `Profile.hash_seed`).
        from_start: there from the first message on, because a change in the middle would violate something else too.
        possible: whether a dialect can have it; see `applies`.
        unless: why the other dialects cannot.
        act: makes the faulty messages; none when the next batch does not fit.
    """

    id: str
    sentence: str
    side: str = "stream"
    told: frozenset[str] = frozenset()
    from_start: bool = False
    possible: Callable[[Dialect], bool] = _always
    unless: str = ""
    act: Callable[[Simulator], list[Frames]] | None = None

    def applies(self, dialect: str | Dialect) -> bool:
        """Whether a stream of this dialect can have the fault."""
        return self.possible(get_dialect(dialect))

    def inject(self, simulator: Simulator) -> list[Frames]:
        """The messages that come next instead of the right one; none when the fault has to wait, or is not of the stream."""
        return [] if self.act is None else self.act(simulator)


def _has_rank(dialect: Dialect) -> bool:
    return "dp_rank" in dialect.batch_fields


def _has(field: str) -> Callable[[Dialect], bool]:
    return lambda dialect: dialect.carries("BlockStored", field)


_NO_RANK = "its batches carry no DP rank"

FAULTS: dict[str, Fault] = {
    fault.id: fault
    for fault in (
        Fault("three-frames", "A message comes as topic and payload, without a seq of its own.", act=acts.two_frames),
        Fault("topic-utf8", "The topic ends in bytes that are no UTF-8.", from_start=True, act=acts.topic_not_utf8),
        Fault("topic-constant", "The topic is another one from some message on.", act=acts.other_topic),
        Fault("seq-width", "A message outside the count has a seq of 4 bytes.", act=acts.short_seq),
        Fault("seq-step", "A message is sent twice.", act=acts.sent_twice),
        Fault(
            "seq-restart",
            "The publisher starts anew, with an empty cache, and counts from 3.",
            act=acts.restart_elsewhere,
        ),
        Fault("seq-end-reserved", "A message outside the count has the seq 2^64-1.", act=acts.end_as_seq),
        Fault("payload-decodes", "The payload of a batch without events lacks its last byte.", act=acts.cut_short),
        Fault("batch-arity", "A batch has four elements.", act=acts.four_elements),
        Fault("ts-finite", "The ts of a batch without events is NaN.", act=acts.ts_nan),
        Fault("ts-plausible", "The ts of a batch is in milliseconds.", act=acts.milliseconds),
        Fault(
            "dp-rank-constant",
            "A batch without events carries nil instead of the rank; on a port of another rank than 0, that is not the "
            "port's rank either.",
            possible=_has_rank,
            unless=_NO_RANK,
            act=acts.rank_left_out,
        ),
        Fault(
            "dp-rank-matches-port",
            "Every batch carries the rank after the one that the port stands for.",
            told=frozenset(("dp_rank",)),
            from_start=True,
            possible=_has_rank,
            unless=_NO_RANK,
            act=acts.rank_of_neighbour,
        ),
        Fault("event-shape", "The block_size of a stored event is a text.", act=acts.block_size_text),
        Fault("event-tag-known", "An event has the tag BlockUpdated.", act=acts.unknown_tag),
        Fault("event-fields-known", "A removed event has a slot or key that no dialect has.", act=acts.unknown_field),
        Fault("dialect-constant", "The stream speaks another dialect from some batch on.", act=acts.switch_dialect),
        Fault(
            "medium-vocabulary",
            "A block is stored in the medium gpu.",
            possible=lambda dialect: "medium" in dialect.events["BlockStored"].carried,
            unless="its events name no medium",
            act=acts.stored_wrongly(acts.lower_case_medium),
        ),
        Fault(
            "hash-form-constant",
            "A block hash is the whole digest, as bytes.",
            act=acts.stored_wrongly(acts.hash_as_bytes),
        ),
        Fault("root-parent-nil", "A root block has the parent 0.", act=acts.stored_wrongly(acts.parent_zero)),
        Fault("token-ids-valid", "A token is negative.", act=acts.stored_wrongly(acts.negative_token)),
        Fault(
            "parent-known",
            "A stored block has a parent that was never stored.",
            act=acts.stored_wrongly(acts.parent_unknown),
        ),
        Fault("removed-was-stored", "A block is removed that was never stored.", act=acts.remove_stranger),
        Fault(
            "no-repeated-hash",
            "A stored event names one hash twice.",
            act=acts.stored_wrongly(acts.same_hash_twice, blocks=2),
        ),
        Fault("no-self-parent", "A stored block is its own parent.", act=acts.stored_wrongly(acts.own_parent)),
        Fault("clear-empties", "Right after a clear, a block from before it is removed.", act=acts.remove_cleared),
        Fault(
            "block-size-constant",
            "A stored event has twice the block_size, and the tokens for it. Where partial pages exist, a judge must know "
            "the real size to see it.",
            told=frozenset(("block_size",)),
            act=acts.stored_wrongly(acts.double_size),
        ),
        Fault(
            "tokens-match-hashes", "A stored event has a token too few.", act=acts.stored_wrongly(acts.token_missing)
        ),
        Fault(
            "extra-keys-per-hash",
            "A stored event of one block has extra_keys for two.",
            possible=lambda dialect: "extra_keys" in dialect.events["BlockStored"].carried,
            unless="its events have no extra_keys",
            act=acts.stored_wrongly(acts.keys_for_two),
        ),
        Fault(
            "salted-hash-distinct",
            "Blocks of the same tokens have one hash, with a salt and without.",
            possible=_has("cache_salt"),
            unless="its events show no salt",
            act=acts.salt_ignored,
        ),
        Fault(
            "hash-recomputes",
            "A stored block has a hash that does not follow from its tokens.",
            told=frozenset(("hash",)),
            possible=lambda dialect: dialect.id != "slot8-lora",
            unless="its events hide the extra keys that go into a hash, so that any hash may be right",
            act=acts.stored_wrongly(acts.other_hash, blocks=2),
        ),
        Fault("replay-framing", "Every second reply of an answer has the other framing.", side="replay"),
        Fault("replay-contiguous", "A batch in the middle of an answer is left out.", side="replay"),
        Fault("replay-start", "An answer begins two batches before the one asked for.", side="replay"),
        Fault("replay-equals-live", "A replayed batch has a later ts than it had live.", side="replay"),
        Fault("replay-end-marker", "No answer has an end marker.", side="replay"),
        Fault("replay-past-end", "Asked for what is yet to come, it sends the last three batches.", side="replay"),
        Fault("replay-survives-malformed", "After a malformed request, nothing is answered any more.", side="replay"),
    )
}
"""Every fault by id."""
