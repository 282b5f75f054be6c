"""Which mistake explains a hash that differs.

Each known mistake is a recipe of its own: it is tried on the block, and it explains the hash if it gives exactly the 64
bits that were published. So a diagnosis is never a guess: a chance hit has one in 2**64. Nothing found means that the
cause is none of these, or needs something that is not known here (an extra_key, a salt, a seed: see `Known`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvwire.hashing import dynamo, sglang, vllm
from kvwire.hashing.errors import HashInputError, MissingLibraryError
from kvwire.hashing.forms import Hash, as_int64, as_uint64
from kvwire.hashing.mistakes import Attempt, Mistake
from kvwire.hashing.recipes import NOTHING_KNOWN, BlockVerdict, ChainPoint, Known, Recipe, Status, same
from kvwire.hashing.sglang_recipe import SglangPythonRecipe, SglangRecipe
from kvwire.hashing.sglang_slips import sglang_attempts
from kvwire.hashing.tokens import TokenView
from kvwire.hashing.vllm_recipe import VllmRecipe
from kvwire.hashing.vllm_slips import SEEDS, root_digest, vllm_attempts

if TYPE_CHECKING:
    from kvwire.events import BlockStored

__all__ = ["Diagnosis", "Mistake", "diagnose", "wrong_sign"]


@dataclass(frozen=True)
class Diagnosis:
    """One explanation that gives exactly the published hash.

    Attributes:
        mistakes: what was done wrong; more than one where only their combination explains it.
        text: the same in a sentence.
    """

    mistakes: tuple[Mistake, ...]
    text: str

    def __str__(self) -> str:
        return f"{' + '.join(mistake.value for mistake in self.mistakes)}: {self.text}"


def diagnose(
    recipe: Recipe, event: BlockStored, verdict: BlockVerdict, known: Known = NOTHING_KNOWN
) -> list[Diagnosis]:
    """The explanations of one block's hash that need the fewest mistakes; empty if none is known.

    Args:
        recipe: what the hash was judged by.
        event: the event that carries it.
        verdict: what judging gave. Take the first mismatch of a stream: later ones often only follow from it.
        known: extra_keys and salts in use, see `Known`; they are tried as well.

    A block that matches is explained too where its form is not the engine's (see `wrong_sign`).
    """
    note = wrong_sign(recipe, verdict.published)
    if verdict.status is Status.MATCH:
        return [note] if note is not None else []
    found: dict[tuple[Mistake, ...], Diagnosis] = {}
    right: bytes | None = None
    for attempt in _attempts(recipe, event, verdict, known):
        if attempt.mistake is None:
            right = attempt.digest
        elif attempt.digest == right:
            # Not every mistake changes every block: CBOR writes a list as it writes a tuple.
            continue
        for slip, how, value in _projections(recipe, event, verdict, attempt):
            mistakes = tuple(mistake for mistake in (attempt.mistake, slip) if mistake is not None)
            if mistakes and mistakes not in found and _is(verdict.published, value):
                found[mistakes] = Diagnosis(mistakes, "; ".join(part for part in (attempt.text, how) if part))
    fewest = min(map(len, found), default=0)
    return [diagnosis for mistakes, diagnosis in found.items() if len(mistakes) == fewest]


def wrong_sign(recipe: Recipe, published: Hash) -> Diagnosis | None:
    """A published integer in the form of the other engine, if it can be told.

    Signed and unsigned forms are equal modulo 2**64, so this is never a wrong hash: consumers of this wire take both for
    one, but a consumer that reads one type alone refuses about half of the other's hashes. Below 2**63 both forms are the
    same number, so a stream of small hashes tells nothing, and a decoder that widens its integers hides it too.
    """
    if not isinstance(published, int):
        return None
    if isinstance(recipe, VllmRecipe):
        if published < 0:
            return Diagnosis(
                (Mistake.WRONG_SIGN,),
                f"{published} is the signed form of {as_uint64(published)}, which vLLM publishes; the 64 bits are the same",
            )
    elif published >> 63 == 1:
        return Diagnosis(
            (Mistake.WRONG_SIGN,),
            f"{published} is the unsigned form of {as_int64(published)}, which SGLang publishes; the 64 bits are the same",
        )
    return None


def _is(published: Hash, value: int | bytes) -> bool:
    if isinstance(published, bytes) != isinstance(value, bytes):
        return False
    return same(published, value)


def _projections(
    recipe: Recipe, event: BlockStored, verdict: BlockVerdict, attempt: Attempt
) -> Iterator[tuple[Mistake | None, str, int | bytes]]:
    """What may have been published of a digest: the right part of it first."""
    digest = attempt.digest
    if attempt.final:
        yield None, "", int.from_bytes(digest[:8], "big")
        return
    if isinstance(verdict.published, bytes):
        yield None, "", digest
        yield Mistake.BYTE_ORDER, "the digest is published with its bytes reversed", digest[::-1]
        return
    parts = {
        "first": (int.from_bytes(digest[:8], "big"), int.from_bytes(digest[:8], "little")),
        "last": (int.from_bytes(digest[-8:], "big"), int.from_bytes(digest[-8:], "little")),
    }
    right, wrong = ("last", "first") if isinstance(recipe, VllmRecipe) else ("first", "last")
    seed = _namespace(recipe, event, verdict)
    cases = [
        (None, "", parts[right][0]),
        (Mistake.WRONG_BYTES, f"the {wrong} 8 bytes of the digest are published, not the {right} 8", parts[wrong][0]),
        (Mistake.BYTE_ORDER, f"the {right} 8 bytes of the digest are read little-endian", parts[right][1]),
        (Mistake.BYTE_ORDER, f"the {wrong} 8 bytes of the digest are read little-endian", parts[wrong][1]),
    ]
    for mistake, how, value in cases:
        yield mistake, how, as_uint64(sglang.namespaced_hash(value, seed))
    if seed is not None:
        how = "the hash of the default format is published in a stream of the dynamo format"
        yield Mistake.NOT_NAMESPACED, how, parts[right][0]


def _namespace(recipe: Recipe, event: BlockStored, verdict: BlockVerdict) -> bytes | None:
    if not isinstance(recipe, SglangRecipe) or verdict.prior is None:
        return None
    return recipe.seed(verdict.prior.extra_key, event.cache_salt, event.lora_name)


def _attempts(recipe: Recipe, event: BlockStored, verdict: BlockVerdict, known: Known) -> Iterator[Attempt]:
    prior, block = verdict.prior, verdict.block
    if prior is None or block is None or not event.token_ids:
        return
    start = block * event.block_size
    try:
        view = TokenView(event.token_ids)
        ids = view.ints(start, min(start + event.block_size, view.length))
        if isinstance(recipe, SglangRecipe):
            yield from sglang_attempts(event, block, prior, known)
        elif isinstance(recipe, VllmRecipe):
            yield from vllm_attempts(recipe, event, verdict.index, block, prior, known)
        yield from _foreign(recipe, ids, prior)
    except HashInputError:
        return


def _foreign(recipe: Recipe, ids: list[int], point: ChainPoint) -> Iterator[Attempt]:
    if not isinstance(recipe, SglangPythonRecipe):
        value = sglang.python_page_hashes(ids, max(len(ids), 1))
        how = "the hash is CPython's hash of the page's tuple, as SGLang published up to 0.5.5.post3"
        yield Attempt(Mistake.OTHER_RECIPE, how, next(value).to_bytes(8, "big", signed=True), final=True)
    if not isinstance(recipe, SglangRecipe):
        prior = None if point.root else point.digest
        if prior is None or len(prior) == sglang.DIGEST_SIZE:
            digest = next(sglang.page_digests(ids, max(len(ids), 1), prior=prior))
            yield Attempt(Mistake.OTHER_RECIPE, "the hash is SGLang's page chain", digest, final=True)
    if not isinstance(recipe, VllmRecipe):
        for algorithm in vllm.ALGORITHMS:
            for seed in SEEDS:
                found = root_digest(algorithm, seed, ids, None)
                if found is not None:
                    how = f"the hash is vLLM's {algorithm} of a root block, with the seed {seed!r}"
                    yield Attempt(Mistake.OTHER_RECIPE, how, found[-8:], final=True)
    try:
        for value_ in dynamo.tokens_hashes(ids, max(len(ids), 1)):
            how = "the hash is Dynamo's tokens hash, which is not chained and not on this wire"
            yield Attempt(Mistake.OTHER_RECIPE, how, value_.to_bytes(8, "big"), final=True)
    except MissingLibraryError:
        return
