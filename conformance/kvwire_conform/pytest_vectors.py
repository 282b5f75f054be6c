"""What ``@pytest.mark.kvwire_vectors`` gives a test: one golden vector, and what it takes to judge by it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest

from kvwire import EventBatch
from kvwire.dialects import DIALECTS, get_dialect
from kvwire.errors import InvalidEventError, UsageError
from kvwire.neutral_json import event_to_json, from_json, to_json
from kvwire_conform import known_failures
from kvwire_conform.answers import Found, judge_answer
from kvwire_conform.consumer import Case, Selection, cases_of, judge_case
from kvwire_conform.consumer_model import AnswerVerdict, Consumer, Judgement
from kvwire_conform.golden import ErrorPlace, Vector, list_vectors, load
from kvwire_conform.known_failures import Entry, KnownFailures
from kvwire_conform.pytest_text import describe, encoded_differently
from kvwire_conform.testee import Breakdown
from kvwire_conform.testee_lines import READINGS, Answer, Request

__all__ = ["KnownVectorError", "VectorCase", "VectorError", "parametrize"]

Decoded = EventBatch | Mapping[str, Any] | Iterable[Any]
Refuses = type[Exception] | tuple[type[Exception], ...]


class VectorError(AssertionError):
    """A vector was not read, or not written, as it must be.

    Attributes:
        judgement: the verdict, and what it rests on.
        written: whether it is an encoder that was judged.
    """

    def __init__(self, text: str, judgement: Judgement, *, written: bool = False) -> None:
        super().__init__(text)
        self.judgement = judgement
        self.written = written


class KnownVectorError(VectorError):
    """A vector failed just as its entry in the known-failures file says."""


class VectorCase:
    """One golden vector, as a test's ``vector``.

    Attributes:
        id: e.g. ``slot8/salt``.
        dialect: id of the dialect; None for the vectors of no dialect (``any/…``).
        kind: ``valid``: to be read, and written back, exactly. ``tolerated``: to be read. ``invalid``: to be refused.
    """

    def __init__(self, case: Case, known: Entry | None = None) -> None:
        self.id = case.id
        self.dialect = case.dialect
        self.kind = case.kind
        self._case = case
        self._known = known

    def __repr__(self) -> str:
        return f"<vector {self.id}, {self.kind}>"

    @functools.cached_property
    def golden(self) -> Vector:
        """The vector with everything that its files say."""
        return load(self.id)

    @property
    def payload(self) -> bytes:
        """The msgpack bytes, as the third frame of a message carries them."""
        return self._case.request.payload

    @property
    def description(self) -> str:
        """What it is there for, in a sentence."""
        return self.golden.description

    @property
    def meaning(self) -> dict[str, Any] | None:
        """The batch in the neutral JSON form (golden/README.md); None where the vector is to be refused."""
        return self.golden.meaning

    @property
    def error(self) -> ErrorPlace | None:
        """Where an invalid vector is at fault, and why."""
        return self.golden.error

    @property
    def good_siblings(self) -> dict[str, Any] | None:
        """What is left of an invalid vector for a decoder that drops faulty events alone; None where nothing can be reached."""
        return self.golden.good_siblings

    def batch(self) -> EventBatch:
        """The meaning as a kvwire batch, with block hashes signed or unsigned as an encoder writes them.

        Raises:
            UsageError: the vector is to be refused.
        """
        if self.meaning is None:
            raise UsageError(f"{self.id} is invalid and means nothing; kind='valid' leaves such vectors out")
        return from_json(self.meaning, signed=self.golden.hash_form == "signed")

    def check(self, decoded: Decoded | Exception) -> None:
        """Compare what a decoder returned with what the vector means.

        Args:
            decoded: a `kvwire.EventBatch`; a dict in the neutral JSON form, where ``ts`` and ``dp_rank`` may be left out
                and are not judged then; a list of such events, or of kvwire's; or the exception with which it refused.

        Raises:
            VectorError: it is not what it must be; the message names the fields.
            TypeError: it is none of these.
        """
        __tracebackhide__ = True
        try:
            answer = _refusal(decoded) if isinstance(decoded, Exception) else _answer(decoded)
        except InvalidEventError as error:
            self._conclude(Found(verdict=AnswerVerdict.GARBLED, said=f"not of the neutral form: {error}"))
            return
        self._conclude(judge_answer(self._case.expected, answer))

    def check_decoder(self, decode: Callable[[bytes], Decoded], refuses: Refuses = Exception) -> None:
        """Call a decoder with the payload, and judge what it returns or raises.

        A batch that is refused is tried again event by event, so that an event that costs its good neighbours is named.

        Args:
            decode: takes the payload; what it returns is as in `check`.
            refuses: exceptions by which it refuses; anything else that it raises is a crash.

        Raises:
            VectorError, TypeError: as `check`.
        """
        __tracebackhide__ = True
        raised: list[Exception] = []

        def ask(request: Request) -> Answer | Breakdown:
            try:
                decoded = decode(request.payload)
                if not isinstance(decoded, EventBatch | Mapping):
                    decoded = (
                        list(decoded) if isinstance(decoded, Iterable) and not isinstance(decoded, _TEXT) else decoded
                    )
            except refuses as error:
                raised.append(error)
                return _refusal(error)
            except Exception as error:
                raised.append(error)
                return Breakdown(AnswerVerdict.CRASHED, _words(error))
            return _answer(decoded)

        try:
            found = judge_case(self._case, ask)
        except InvalidEventError as error:
            found = Found(verdict=AnswerVerdict.GARBLED, said=f"not of the neutral form: {error}")
        self._conclude(found, raised[0] if raised else None)

    def check_encoded(self, payload: bytes | bytearray | memoryview) -> None:
        """Compare what an encoder wrote for `batch` (or for `meaning`) with the payload, byte for byte.

        Raises:
            VectorError: other bytes; the message says where the first of them is.
            UsageError: the vector is not to be written by anybody.
        """
        __tracebackhide__ = True
        if self.golden.roundtrip != "exact":
            raise UsageError(
                f"{self.id} is not to be written by an encoder; kind='valid' and a dialect leave such vectors out"
            )
        if bytes(payload) == self.payload:
            return
        differences = encoded_differently(self.golden, bytes(payload))
        self._conclude(Found(verdict=AnswerVerdict.WRONG, differences=differences), wrote=bytes(payload))

    def check_encoder(self, encode: Callable[[EventBatch], bytes]) -> None:
        """Call an encoder with `batch`, and judge what it writes; see `check_encoded`."""
        __tracebackhide__ = True
        self.check_encoded(encode(self.batch()))

    def _conclude(self, found: Found, raised: Exception | None = None, wrote: bytes | None = None) -> None:
        __tracebackhide__ = True
        if found.verdict is AnswerVerdict.EXACT:
            return
        judgement = Judgement(
            id=self.id,
            dialect=self.dialect,
            kind=self.kind,
            verdict=found.verdict,
            required=True,
            differences=found.differences,
            said=found.said,
            note=found.note,
        )
        known = self._known
        text = describe(self.golden, judgement, wrote=wrote, known=known)
        error = VectorError if known is None or known.verdict is not found.verdict else KnownVectorError
        raise error(text, judgement, written=wrote is not None) from raised


def parametrize(metafunc: pytest.Metafunc, marker: pytest.Mark) -> None:
    """Give a test one ``vector`` after the other, in the manifest's order, each with its id."""
    if "vector" not in metafunc.fixturenames:
        # A marker of the module or the class is about those tests in it that take a vector.
        if marker in metafunc.definition.own_markers:
            pytest.fail("a test with @pytest.mark.kvwire_vectors takes an argument `vector`", pytrace=False)
        return
    try:
        cases, entries = _chosen(metafunc.definition.path.parent, *marker.args, **marker.kwargs)
        known = {case.id: entries.of(case.id) for case in cases}
    except UsageError as error:
        pytest.fail(f"@pytest.mark.kvwire_vectors: {error}", pytrace=False)
    except TypeError as error:
        words = str(error).replace("_chosen()", "it")
        pytest.fail(f"@pytest.mark.kvwire_vectors: {words}", pytrace=False)
    params = [
        pytest.param(VectorCase(case, known[case.id]), id=case.id, marks=_marks(known[case.id])) for case in cases
    ]
    metafunc.parametrize("vector", params)


def _chosen(
    folder: Path,
    /,
    *,
    dialects: str | Iterable[str] | None = None,
    kind: str | Iterable[str] | None = None,
    only: str | Iterable[str] = (),
    reading: Literal["any", "told", "strict"] | str = "any",
    suite: int | None = None,
    known_failures: str | Path | None = None,
) -> tuple[list[Case], KnownFailures]:
    if reading not in READINGS:
        raise UsageError(f"reading is any, told or strict, not {reading!r}")
    kinds = _several(kind)
    for name in kinds:
        if name not in ("valid", "tolerated", "invalid"):
            raise UsageError(f"kind is valid, tolerated or invalid, not {name!r}")
    names = _several(dialects) or tuple(DIALECTS)
    claimed = tuple(get_dialect(name).id for name in names if name != "any")
    consumer = Consumer(name="", version="", language="Python", dialects=claimed, reading=reading)
    found = cases_of(consumer, Selection(only=_several(only), dialects=names, suite=suite))
    cases = [case for case in found.chosen if not kinds or case.kind in kinds]
    if not cases:
        raise UsageError(f"no vector of the selection is {' or '.join(kinds)}")
    return cases, KnownFailures() if known_failures is None else _known(folder, known_failures)


def _known(folder: Path, name: str | Path) -> KnownFailures:
    """The file's entries. Raises UsageError for one that matches no vector at all; one file may serve several tests."""
    path = folder / name
    found = known_failures.read([path])
    entries = [replace(entry, where=entry.where.replace(str(path), str(name), 1)) for entry in found.entries]
    _, stale, _ = KnownFailures(entries).apply((), [row.id for row in list_vectors()], generated=False)
    if stale:
        raise UsageError("; ".join(stale))
    return KnownFailures(entries)


def _several(names: str | Iterable[str] | None) -> tuple[str, ...]:
    return () if names is None else (names,) if isinstance(names, str) else tuple(names)


def _marks(known: Entry | None) -> tuple[pytest.MarkDecorator, ...]:
    if known is None:
        return ()
    reason = f"{known.where} lists it as {known.verdict.value}{f' ({known.reason})' if known.reason else ''}"
    return (pytest.mark.xfail(strict=True, raises=KnownVectorError, reason=reason),)


_TEXT = (str, bytes, bytearray, memoryview)


def _answer(decoded: Any) -> Answer:
    """What a decoder returned, as the answer of a testee.

    Raises:
        InvalidEventError: a kvwire event with values that no neutral event has.
        TypeError: something else altogether.
    """
    if isinstance(decoded, EventBatch):
        told = to_json(decoded)
        return Answer(events=told["events"], ts=told["ts"], dp_rank=told["dp_rank"])
    if isinstance(decoded, Mapping):
        if not isinstance(decoded.get("events"), list | tuple):
            raise TypeError(f"{_TAKES}; got a dict without a list of events, {decoded!r:.80}")
        batch = {name: decoded[name] for name in ("ts", "dp_rank") if name in decoded}
        return Answer(events=_events(decoded["events"]), **batch)
    if not isinstance(decoded, Iterable) or isinstance(decoded, _TEXT):
        raise TypeError(f"{_TAKES}; got {type(decoded).__name__} {decoded!r:.80}")
    return Answer(events=_events(decoded))


_TAKES = (
    "a decoder's result is a kvwire.EventBatch, a dict in the neutral JSON form (golden/README.md), or a list of events of "
    "either kind"
)


def _events(events: Iterable[Any]) -> list[Any]:
    found = []
    for index, event in enumerate(events):
        if isinstance(event, Mapping):
            found.append(event)
        elif isinstance(event, msgspec.Struct):
            found.append(event_to_json(event, f"events[{index}]"))
        else:
            raise TypeError(f"{_TAKES}; got the event {type(event).__name__} {event!r:.80}")
    return found


def _refusal(error: Exception) -> Answer:
    return Answer(error=_words(error))


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".rstrip(": ")
