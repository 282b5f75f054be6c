"""Each event by itself: its shape, vocabulary, hash forms and tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvwire.dialects import ALL_MEDIA, Dialect
from kvwire.events import AllBlocksCleared, BlockRemoved, BlockStored
from kvwire_conform.checks.batch import check_of
from kvwire_conform.checks.tallies import Tallies
from kvwire_conform.messages import Message

_UNKNOWN_TAG = "Dynamo up to 1.6.1, llm-d and the engines' own structs lose the whole batch over an unknown tag"


class Events:
    """What is judged of each event without looking at the others."""

    def __init__(self, tallies: Tallies) -> None:
        self.tallies = tallies
        self.hash_form: str | None = None

    def see(self, message: Message, likely: Sequence[Dialect]) -> None:
        """Judge the events of a batch; ``likely`` are the dialects that the stream leaves open."""
        if message.reading is None:
            return
        self._shape(message)
        media = frozenset(medium for dialect in likely for medium in dialect.media) or ALL_MEDIA
        for index, event in message.events():
            if isinstance(event, AllBlocksCleared):
                continue
            self._medium(message, index, event, media)
            self._hash_form(message, index, event)
            if isinstance(event, BlockStored):
                self._tokens(message, index, event)

    def _shape(self, message: Message) -> None:
        reading = message.reading
        assert reading is not None
        wrong: dict[str, set[int]] = {}
        for error in message.deviations:
            if error.event_index is None:
                continue
            check = check_of(error)
            wrong.setdefault(check, set()).add(error.event_index)
            hint = _UNKNOWN_TAG if check == "event-tag-known" else ""
            self.tallies[check].violation(lambda error=error, hint=hint: message.fault(error, hint))  # type: ignore[misc]
        count = len(reading.events) + len(reading.faults) + len(reading.skipped)
        for check in ("event-shape", "event-fields-known", "event-tag-known"):
            self.tallies[check].ok(count - len(wrong.get(check, ())))

    def _medium(self, message: Message, index: int, event: BlockStored | BlockRemoved, known: frozenset[str]) -> None:
        tally = self.tallies["medium-vocabulary"]
        medium = event.medium
        if medium is None or medium in known:
            tally.ok()
            return
        tally.violation(
            lambda: message.finding(
                f"nil or one of {', '.join(sorted(known))}",
                repr(medium),
                _medium_hint(medium, known),
                event_index=index,
                slot=6 if isinstance(event, BlockStored) else 2,
                key="medium",
            )
        )

    def _hash_form(self, message: Message, index: int, event: BlockStored | BlockRemoved) -> None:
        hashes: list[Any] = list(event.block_hashes)
        if isinstance(event, BlockStored) and event.parent_block_hash is not None:
            hashes.append(event.parent_block_hash)
        if not hashes:
            return
        tally = self.tallies["hash-form-constant"]
        forms = {form_of(value) for value in hashes}
        if self.hash_form is None and len(forms) == 1:
            self.hash_form = next(iter(forms))
        if forms == {self.hash_form}:
            tally.ok(len(hashes))
            return
        before = self.hash_form or "one form"
        tally.violation(
            lambda: message.finding(
                before,
                " and ".join(sorted(forms)),
                "a consumer indexes the two forms of one block as two blocks, or loses the batch",
                event_index=index,
                slot=1,
                key="block_hashes",
            )
        )

    def _tokens(self, message: Message, index: int, event: BlockStored) -> None:
        tally = self.tallies["token-ids-valid"]
        problem = token_problem(event.token_ids)
        if problem is None:
            tally.ok()
            return
        what, hint = problem
        tally.violation(
            lambda: message.finding(
                "non-negative integers, or pairs of them throughout",
                what,
                hint,
                event_index=index,
                slot=3,
                key="token_ids",
            )
        )


def token_problem(token_ids: Sequence[Any]) -> tuple[str, str] | None:
    """What is wrong with an event's tokens, and what it means; None when nothing is."""
    if not token_ids:
        return None
    kinds = set(map(type, token_ids))
    if kinds == {int}:
        lowest = min(token_ids)
        if lowest < 0:
            return f"the token {lowest}", "routers that read u32 lose the batch; llm-d wraps it to another token"
        return None
    if kinds == {tuple}:
        lowest = min(map(min, token_ids))
        return None if lowest >= 0 else (f"a pair with the token {lowest}", "routers that read u32 lose the batch")
    if str in kinds:
        return "a token that is a string", "TensorRT-LLM may send strings; no router reads them"
    return "single tokens and pairs in one event", "a router cannot tell how long a block is"


def form_of(value: Any) -> str:
    """The form of a hash, in words."""
    return "64-bit integers" if isinstance(value, int) else f"byte strings of {len(value)} bytes"


def _medium_hint(medium: str, known: frozenset[str]) -> str:
    folded = {name.upper(): name for name in known}
    if medium.upper() in folded:
        return f"media are case-sensitive; did you mean {folded[medium.upper()]}?"
    if medium.upper() in ALL_MEDIA:
        return "another engine's constant; routers that map media by engine index it as GPU or drop it"
    return "Dynamo up to 1.4.2 indexes an unknown medium as GPU, later releases drop the event"
