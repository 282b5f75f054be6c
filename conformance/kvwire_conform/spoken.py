"""Which dialect a stream speaks, told from its payloads one after the other."""

from __future__ import annotations

import functools

from kvwire._exact import surely_conforms
from kvwire._walk import walk
from kvwire.codec import decode, encode
from kvwire.dialects import DIALECTS, Dialect, Framing
from kvwire.errors import KvwireError, WireError
from kvwire.events import BlockStored, EventBatch

EXACT_SAMPLES = 256
"""Stored batches that are encoded again to tell apart dialects of one shape by their headers."""

MAX_STRANGERS = 200
"""Payloads of no dialect that are looked at in full, so that a stream of them does not slow the listener down."""

_WIDER = {
    "slot7": ("slot8",),
    "sglang-map1": ("sglang-map2",),
    "vllm-map1": ("vllm-map2", "vllm-map3", "vllm-map4", "vllm-map5"),
    "vllm-map2": ("vllm-map3", "vllm-map4", "vllm-map5"),
    "vllm-map3": ("vllm-map4", "vllm-map5"),
    "vllm-map4": ("vllm-map5",),
}
"""Dialects that accept every payload of another one: the same slots or keys, and optional ones more."""


def conforms(payload: bytes, dialect: Dialect, *, thorough: bool = True) -> bool:
    """Whether a payload is exactly of a dialect; ``thorough`` asks the walk where the structs cannot judge."""
    if surely_conforms(payload, dialect.id):
        return True
    if not thorough:
        return False
    try:
        walk(payload, dialect, strict=True)
    except WireError:
        return False
    return True


def fitting(payload: bytes, candidates: tuple[Dialect, ...], *, thorough: bool = True) -> tuple[Dialect, ...]:
    """Those of the candidates that a payload conforms to."""
    found: list[Dialect] = []
    known: set[str] = set()
    for dialect in candidates:
        if dialect.id in known or conforms(payload, dialect, thorough=thorough):
            found.append(dialect)
            known.update(_WIDER.get(dialect.id, ()))
    return tuple(found)


def deviations(payload: bytes, dialect: Dialect) -> list[WireError]:
    """Everything in a payload that is not as the dialect has it."""
    try:
        return walk(payload, dialect, strict=True, keep_going=True).faults
    except WireError as error:
        return [error]


def nearest(payload: bytes, candidates: tuple[Dialect, ...]) -> Dialect:
    """The dialect that a payload deviates least from; the oldest of several."""

    def distance(dialect: Dialect) -> int:
        return sum(_weight(error) for error in deviations(payload, dialect))

    return min(candidates, key=distance)


def _weight(error: WireError) -> int:
    """A batch of another length, or events of another encoding, tell dialects apart more surely than any slot or key."""
    if error.event_index is None:
        return 10_000
    return 100 if error.code == "wrong-encoding" else 1


@functools.lru_cache(maxsize=1)
def every_dialect() -> tuple[Dialect, ...]:
    """All dialects, in the order of the registry."""
    return tuple(DIALECTS.values())


class Spoken:
    """What one stream speaks.

    Args:
        told: the dialect that the user named; None to find out.
    """

    def __init__(self, told: Dialect | None) -> None:
        self.told = told
        self.candidates: tuple[Dialect, ...] = (told,) if told else every_dialect()
        self.framings: set[Framing] = set()
        self._exact: tuple[Dialect, ...] | None = None
        self._samples = 0
        self._seen = False
        self._strangers = 0

    @property
    def best(self) -> Dialect | None:
        """The dialect to judge by: the oldest that explains everything so far; None before the first event."""
        if self.told is not None:
            return self.told
        likely = self.likely
        return likely[0] if self._seen and likely else None

    @property
    def likely(self) -> tuple[Dialect, ...]:
        """The dialects that the bytes leave open."""
        if self.told is not None:
            return (self.told,)
        if not self._seen:
            return ()
        pool = self._exact or self.candidates
        framed = tuple(d for d in pool if d.framing in self.framings)
        return framed or pool

    @property
    def candidates_for_framing(self) -> tuple[Dialect, ...]:
        """The dialects whose replay framing counts as right; none when the stream showed no event."""
        return (self._exact or self.candidates) if self._seen else ()

    @property
    def settled(self) -> Dialect | None:
        """The dialect that leaves the candidates as they are if a payload conforms to it; None for none yet."""
        if self.told is not None:
            return self.told
        if not self._seen:
            return None
        narrowest, *others = self.candidates
        wider = _WIDER.get(narrowest.id, ())
        return narrowest if all(dialect.id in wider for dialect in others) else None

    @property
    def sampling(self) -> bool:
        """Whether payloads with stores are still compared with what each candidate would have written."""
        return self.told is None and len(self.candidates) > 1 and self._samples < EXACT_SAMPLES

    def sample(self, payload: bytes) -> bool:
        """Compare a payload that conforms to every candidate. False when that tells more than was known."""
        likely = self.likely
        self._narrow(payload, decode(payload))
        return self.likely == likely

    def see(self, payload: bytes, batch: EventBatch) -> bool | None:
        """A payload that could be read came.

        Returns:
            True when it conforms to what the stream speaks, False when it conforms to another dialect only, and None
            when to none.
        """
        thorough = self._strangers < MAX_STRANGERS
        fits = fitting(payload, self.candidates, thorough=thorough)
        if not fits:
            self._strangers += 1
            others = fitting(payload, every_dialect()) if thorough and self.told is None else ()
            return False if others and batch.events else None
        if batch.events:
            self._seen = True
            self.candidates = fits
            self._narrow(payload, batch)
        return True

    def _narrow(self, payload: bytes, batch: EventBatch) -> None:
        if not self.sampling:
            if self._exact is not None:
                self._exact = tuple(d for d in self._exact if d in self.candidates) or None
            return
        if not any(isinstance(event, BlockStored) for event in batch.events):
            return
        self._samples += 1
        pool = self.candidates if self._exact is None else tuple(d for d in self._exact if d in self.candidates)
        self._exact = tuple(d for d in pool if _writes(d, batch, payload)) or None


def _writes(dialect: Dialect, batch: EventBatch, payload: bytes) -> bool:
    try:
        return encode(batch, dialect) == payload
    except KvwireError:
        return False
