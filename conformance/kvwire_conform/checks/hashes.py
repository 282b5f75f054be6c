"""Published block hashes, recomputed from their parents and tokens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kvwire.events import BlockStored
from kvwire.hashing.catalog import get_recipe
from kvwire.hashing.diagnose import diagnose, wrong_sign
from kvwire.hashing.recipes import BlockVerdict, Recipe, Status
from kvwire.hashing.verify import ChainVerifier
from kvwire.hashing.vllm import ExtraKeys
from kvwire_conform.checks.tallies import Tallies
from kvwire_conform.messages import Message
from kvwire_conform.model import Finding

CHECK = "hash-recomputes"


@dataclass(frozen=True)
class HashSettings:
    """The recipe that the user named.

    Attributes:
        name: as `kvwire.hashing.catalog.get_recipe` takes it: ``sglang``, ``vllm:sha256_cbor`` …
        seed: PYTHONHASHSEED of a vLLM engine; None where it was unset.
        extra_keys: how vLLM hashes extra keys, ``bare`` (up to 0.30.0) or ``tagged``; None to find out.
    """

    name: str
    seed: str | None = None
    extra_keys: str | None = None

    def recipes(self) -> list[Recipe]:
        """The recipes to try, the likelier first. Raises RecipeError for a name or setting that does not exist."""
        if self.name.partition(":")[0] != "vllm":
            return [get_recipe(self.name, seed=self.seed)]
        forms = [self.extra_keys] if self.extra_keys else [ExtraKeys.TAGGED, ExtraKeys.BARE]
        return [get_recipe(self.name, seed=self.seed, extra_keys=form) for form in forms]


@dataclass
class _Pending:
    """A mismatch under one recipe, kept until it is clear that no other recipe fits better."""

    make: Callable[[], Finding]


class _Attempt:
    """The stream under one recipe."""

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self.verifier = ChainVerifier(recipe)
        self.matches = 0
        self.mismatches: list[_Pending] = []
        self.mismatch_count = 0
        self.unknown = 0
        self.why = ""
        self.note = ""

    def see(self, message: Message, index: int, event: BlockStored) -> None:
        for verdict in self.verifier.check(event):
            if verdict.status is Status.MATCH:
                self.matches += 1
                if not self.note and (sign := wrong_sign(self.recipe, verdict.published)) is not None:
                    self.note = str(sign)
            elif verdict.status is Status.UNKNOWN:
                self.unknown += 1
                self.why = self.why or verdict.detail
            else:
                self._mismatch(message, index, event, verdict)

    def _mismatch(self, message: Message, index: int, event: BlockStored, verdict: BlockVerdict) -> None:
        self.mismatch_count += 1
        if len(self.mismatches) >= 3:
            return
        reasons = [str(found) for found in diagnose(self.recipe, event, verdict)]
        hint = " Or: ".join(reasons) or "no known mistake explains it; every look-up by recomputed hashes misses"

        def finding() -> Finding:
            return message.finding(
                f"{verdict.expected!r}, by {self.recipe.name}",
                f"{verdict.published!r} for block {verdict.index} of the event",
                hint,
                event_index=index,
                slot=1,
                key="block_hashes",
            )

        self.mismatches.append(_Pending(finding))


class Hashes:
    """The hash check of one source; without settings it is skipped."""

    def __init__(self, tallies: Tallies, settings: HashSettings | None) -> None:
        self.tallies = tallies
        self.attempts = [_Attempt(recipe) for recipe in settings.recipes()] if settings else []
        if settings is None:
            tallies[CHECK].skip("no recipe named; give --hash")

    def see(self, message: Message) -> None:
        """Recompute the hashes of the next batch."""
        if not self.attempts or message.reading is None:
            return
        for index, event in message.events():
            if isinstance(event, BlockStored):
                for attempt in self.attempts:
                    attempt.see(message, index, event)
        self._settle()

    def _settle(self) -> None:
        """Drop a recipe once another one explains blocks that it does not."""
        if len(self.attempts) > 1:
            fewest = min(attempt.mismatch_count for attempt in self.attempts)
            best = [attempt for attempt in self.attempts if attempt.mismatch_count == fewest]
            if len(best) < len(self.attempts):
                self.attempts = best

    def finish(self) -> None:
        """No more comes: give the verdict of the recipe that explains most."""
        if not self.attempts:
            return
        attempt = min(self.attempts, key=lambda one: (one.mismatch_count, -one.matches))
        tally = self.tallies[CHECK]
        tally.ok(attempt.matches)
        for pending in attempt.mismatches:
            tally.violation(pending.make)
        tally.count_violations(attempt.mismatch_count - len(attempt.mismatches))
        if attempt.unknown:
            tally.undecidable(attempt.why, attempt.unknown)
        if attempt.note:
            tally.note(attempt.note)
        if attempt.matches or attempt.mismatch_count:
            tally.note(f"recomputed by {attempt.recipe.name}")
