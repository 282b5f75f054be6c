"""The valid vectors of a dialect: what its releases write, one thing at a time."""

from __future__ import annotations

from kvwire_conform import golden_valid_fields as fields
from kvwire_conform.golden_case import (
    DIGEST,
    OTHER_DIGEST,
    PARENT,
    UNSIGNED,
    A,
    B,
    C,
    Case,
    batch,
    cleared,
    full,
    optional,
    removed,
    stored,
)
from kvwire_conform.golden_layout import CLEARED, REMOVED, Form, Json, Layout, write_batch


class Valid:
    """Collects the valid vectors of one dialect."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.own_form: Form = "signed" if layout.signed else "unsigned"
        self.cases: list[Case] = []

    def add(
        self,
        slug: str,
        description: str,
        *events: Json,
        form: Form | None = None,
        ts: float = 1.5,
        rank: int | None = 0,
    ) -> None:
        """One vector of these events."""
        meaning = batch(*events, ts=ts, rank=rank if self.layout.ranked else None)
        form = form or self.own_form
        self.cases.append(
            Case(
                id=f"{self.layout.id}/{slug}",
                dialect=self.layout.id,
                kind="valid",
                description=description,
                payload=write_batch(self.layout, meaning, form),
                strict=True,
                roundtrip="exact",
                meaning=meaning,
                hash_form=form,
            )
        )


def valid_cases(layout: Layout) -> list[Case]:
    """Every valid vector of a dialect."""
    valid = Valid(layout)
    _batches(valid)
    _clears(valid)
    _stores(valid)
    _removals(valid)
    _tokens(valid)
    _hashes(valid)
    _each_field(valid)
    fields.add_all(valid)
    return valid.cases


def _batches(valid: Valid) -> None:
    one = stored(valid.layout)
    other = removed(valid.layout)
    valid.add("batch-empty", "A batch without events.")
    valid.add("batch-mixed", "A store, a removal, a clear and another store in one batch.", one, other, cleared(), one)
    valid.add(
        "batch-stored-then-removed",
        "The same block stored and removed in one batch.",
        one,
        {**other, "block_hashes": [A]},
    )
    valid.add("batch-16-events", "16 events, for which the array header grows to three bytes.", *[other] * 16)
    valid.add("batch-ts-zero", "A timestamp of 0.", other, ts=0.0)
    valid.add(
        "batch-ts-whole", "A timestamp of whole seconds, written as a float all the same.", other, ts=1700000000.0
    )
    valid.add("batch-ts-micros", "A timestamp with microseconds.", other, ts=1712345678.123457)
    valid.add("batch-ts-large", "A timestamp of the largest finite double.", other, ts=1.7976931348623157e308)
    if valid.layout.ranked:
        valid.add("batch-rank-nil", "A batch whose DP rank is nil.", other, rank=None)
        valid.add("batch-rank-1", "A batch of DP rank 1.", other, rank=1)


def _clears(valid: Valid) -> None:
    valid.add("cleared", "A clear alone.", cleared())
    valid.add("cleared-twice", "Two clears in one batch.", cleared(), cleared())
    if valid.layout.has("ownership", CLEARED):
        valid.add("cleared-ownership", "A clear of one owner's blocks.", cleared(ownership="tier-1"))


def _stores(valid: Valid) -> None:
    layout = valid.layout
    valid.add("stored-minimal", "A root block with nothing but hash, tokens and size.", stored())
    valid.add("stored-full", "A stored event with every field that the dialect has.", full(layout))
    valid.add("stored-parent", "A block with a parent.", stored(layout, parent_block_hash=PARENT))
    valid.add(
        "stored-chain",
        "Two events, the second of which continues the first.",
        stored(layout),
        stored(layout, block_hashes=[B], parent_block_hash=A, token_ids=[15, 16, 17, 18]),
    )
    valid.add(
        "stored-three-hashes",
        "Three blocks in one event, each the parent of the next.",
        stored(layout, block_hashes=[A, B, C], token_ids=list(range(12)), parent_block_hash=PARENT),
    )
    valid.add(
        "stored-16-hashes",
        "16 blocks in one event, for which the array header grows to three bytes.",
        stored(layout, block_hashes=[_numbered(n) for n in range(16)], token_ids=list(range(16)), block_size=1),
    )
    valid.add("stored-no-hashes", "A stored event without blocks.", stored(layout, block_hashes=[], token_ids=[]))
    valid.add(
        "stored-no-tokens",
        "A placeholder without tokens and of block size 0.",
        stored(layout, token_ids=[], block_size=0),
    )
    valid.add(
        "stored-no-tokens-block-16",
        "A block of size 16 whose tokens are left out.",
        stored(layout, token_ids=[], block_size=16),
    )
    if layout.has("group_idx"):
        valid.add(
            "stored-fewer-hashes",
            "A sliding-window group that publishes two hashes for four blocks.",
            stored(layout, block_hashes=[A, B], token_ids=list(range(16)), group_idx=1),
        )


def _removals(valid: Valid) -> None:
    layout = valid.layout
    valid.add("removed", "One block removed.", removed(layout))
    valid.add("removed-minimal", "A removal with nothing but the hash.", removed())
    valid.add("removed-full", "A removed event with every field that the dialect has.", full(layout, REMOVED))
    valid.add("removed-three-hashes", "Three blocks removed by one event.", removed(layout, block_hashes=[A, B, C]))
    valid.add(
        "removed-16-hashes",
        "16 blocks removed by one event.",
        removed(layout, block_hashes=[_numbered(n) for n in range(16)]),
    )
    valid.add("removed-no-hashes", "A removed event without blocks.", removed(layout, block_hashes=[]))


def _numbered(number: int) -> str:
    return f"{0x4000_0000_0000_0000 + number:016x}"


def _tokens(valid: Valid) -> None:
    layout = valid.layout
    widths = [0, 127, 128, 255, 256, 65535, 65536, (1 << 32) - 1]
    valid.add(
        "tokens-widths",
        "Token ids at every width that msgpack has for them.",
        stored(layout, token_ids=widths, block_size=8),
    )
    valid.add(
        "tokens-repeated", "Two blocks of one token repeated.", stored(layout, block_hashes=[A, B], token_ids=[1] * 8)
    )
    for size in (1, 64):
        valid.add(
            f"tokens-block-{size}",
            f"One block of {size} {'token' if size == 1 else 'tokens'}.",
            stored(layout, token_ids=list(range(1000, 1000 + size)), block_size=size),
        )
    valid.add(
        "tokens-bigram",
        "A bigram page: each token is a pair, and the block size counts the pairs.",
        stored(layout, token_ids=[[11, 12], [12, 13], [13, 14], [14, 15]]),
    )
    valid.add(
        "tokens-bigram-block-1",
        "Two bigram pages of one pair each.",
        stored(layout, block_hashes=[A, B], token_ids=[[11, 12], [12, 300]], block_size=1),
    )


_SMALL = [0, 1, 31, 127, 128, 255, 256, 65535, 65536, (1 << 31) - 1, (1 << 32) - 1, 1 << 32]


def _hashes(valid: Valid) -> None:
    layout = valid.layout
    for slug, description, value, form in _EXTREMES:
        valid.add(
            slug, description, stored(layout, block_hashes=[value]), removed(layout, block_hashes=[value]), form=form
        )
    small = [f"{number:016x}" for number in _SMALL]
    valid.add(
        "hash-small",
        "Hashes small enough for every shorter integer header.",
        stored(layout, block_hashes=small, token_ids=list(range(len(small))), block_size=1),
    )
    negative = [f"{(1 << 64) - number:016x}" for number in (1, 32, 33, 128, 129, 32769, (1 << 31) + 1)]
    valid.add(
        "hash-small-negative",
        "Signed hashes small enough for every shorter integer header.",
        stored(layout, block_hashes=negative, token_ids=list(range(len(negative))), block_size=1),
        form="signed",
    )
    for form, words in (("signed", "a signed hash below zero"), ("unsigned", "an unsigned hash of 2^63 or more")):
        valid.add(
            f"hash-parent-{form}",
            f"A parent that is {words}.",
            stored(layout, parent_block_hash=UNSIGNED),
            form="signed" if form == "signed" else "unsigned",
        )
        valid.add(
            f"hash-many-{form}",
            f"Hashes on both sides of 2^63, written {form}.",
            stored(
                layout,
                block_hashes=[A, UNSIGNED, B, "f" * 16],
                token_ids=list(range(16)),
                parent_block_hash="8" + "0" * 15,
            ),
            removed(layout, block_hashes=[UNSIGNED, A, "f" * 16]),
            form="signed" if form == "signed" else "unsigned",
        )
    who = "" if layout.id in _BYTES_HASHED else "; no release of this dialect sends one"
    valid.add(
        "hash-bytes",
        f"A digest of 32 bytes as hash{who}.",
        stored(layout, block_hashes=[DIGEST]),
        removed(layout, block_hashes=[DIGEST]),
        form="bytes",
    )
    valid.add(
        "hash-bytes-parent",
        f"A digest of 32 bytes as parent{who}.",
        stored(layout, block_hashes=[DIGEST], parent_block_hash=OTHER_DIGEST),
        form="bytes",
    )
    valid.add(
        "hash-bytes-many",
        f"Digests of 32 bytes as hashes of one event{who}.",
        stored(layout, block_hashes=[DIGEST, OTHER_DIGEST], token_ids=list(range(8))),
        form="bytes",
    )
    valid.add(
        "hash-bytes-16",
        f"A digest of 16 bytes as hash, as XXH3-128 gives it{who}.",
        stored(layout, block_hashes=[DIGEST[: 6 + 32]]),
        form="bytes",
    )


_BYTES_HASHED = frozenset(
    (
        "slot7",
        "slot8-lora",
        "slot9",
        "slot10",
        "slot12",
        "vllm-map1",
        "vllm-map2",
        "vllm-map3",
        "vllm-map4",
        "vllm-map5",
    )
)

_EXTREMES: tuple[tuple[str, str, str, Form], ...] = (
    ("hash-zero", "The hash 0, which is a hash like any other.", "0" * 16, "unsigned"),
    ("hash-int64-max", "The hash 2^63 - 1, the same signed and unsigned.", "7" + "f" * 15, "unsigned"),
    ("hash-int64-min", "The hash -2^63, the smallest signed one.", "8" + "0" * 15, "signed"),
    ("hash-2-63", "The hash 2^63 unsigned: the same 64 bits as -2^63.", "8" + "0" * 15, "unsigned"),
    ("hash-minus-one", "The hash -1, in one byte.", "f" * 16, "signed"),
    ("hash-uint64-max", "The hash 2^64 - 1: the same 64 bits as -1.", "f" * 16, "unsigned"),
    ("hash-negative", "A signed hash below zero.", UNSIGNED, "signed"),
    ("hash-unsigned", "An unsigned hash of 2^63 or more.", UNSIGNED, "unsigned"),
)


def _each_field(valid: Valid) -> None:
    for tag, make in (("BlockStored", stored), ("BlockRemoved", removed)):
        everything = full(valid.layout, tag, salt=not valid.layout.metadata)
        word = "stored" if tag == "BlockStored" else "removed"
        for name in optional(valid.layout, tag):
            slug = name.replace("_", "-")
            base = make(block_hashes=everything["block_hashes"])
            if tag == "BlockStored":
                base |= {"token_ids": everything["token_ids"]}
            valid.add(
                f"{word}-only-{slug}", f"A {word} event with {name} alone.", make(**{**base, name: everything[name]})
            )
            rest = {key: value for key, value in everything.items() if key != name}
            valid.add(f"{word}-without-{slug}", f"A {word} event with every field but {name}.", rest)
