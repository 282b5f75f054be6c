"""The known-failures file: which payloads a consumer is known to fail, and how (spec/conformance.md#known-failures).

::

    # Dynamo drops the salt of a 9-slot event; fixed in 1.4.0.
    slot9/*salt*   lossy          # cache_salt
    slot8/salt     sibling-lost

An entry is a vector id or a glob, a verdict, and a reason if one is wanted. Every payload that it matches must have that
verdict: an entry that the run does not bear out is stale, and fails the run.
"""

from __future__ import annotations

import bisect
import difflib
import fnmatch
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from kvwire.errors import UsageError
from kvwire_conform.consumer_model import AnswerVerdict, Judgement

__all__ = ["Entry", "KnownFailures", "KnownFailuresError", "read", "update", "write"]

_LISTED = tuple(verdict.value for verdict in AnswerVerdict if verdict is not AnswerVerdict.EXACT)
_REASON = 100


class KnownFailuresError(UsageError):
    """A known-failures file that cannot be used: unreadable, a line that is no entry, two entries for one payload."""

    code = "known-failures"


@dataclass(frozen=True)
class Entry:
    """One line of the file.

    Attributes:
        pattern: a vector id, or a glob over ids.
        verdict: what every payload that it matches must get.
        reason: for people.
        where: file and line, for messages.
    """

    pattern: str
    verdict: AnswerVerdict
    reason: str = ""
    where: str = ""

    def matches(self, ident: str) -> bool:
        """Whether this entry is about the payload of this id."""
        return fnmatch.fnmatchcase(ident, self.pattern)

    def __str__(self) -> str:
        return f"{self.where}: {self.pattern} {self.verdict.value}"


@dataclass
class KnownFailures:
    """What is known of a consumer, from one or more files."""

    entries: list[Entry] = field(default_factory=list)

    def of(self, ident: str) -> Entry | None:
        """The entry about a payload.

        Raises:
            KnownFailuresError: there are two.
        """
        found = [entry for entry in self.entries if entry.matches(ident)]
        if len(found) > 1:
            raise KnownFailuresError(f"{found[0]} and {found[1]} are both about {ident}; one payload has one entry")
        return found[0] if found else None

    def apply(
        self, judgements: Sequence[Judgement], left_out: Iterable[str] = (), *, generated: bool = True
    ) -> tuple[list[Judgement], list[str], list[Entry]]:
        """Mark what is known, and find what no longer is.

        Args:
            left_out: ids of payloads that this run did not judge and another would.
            generated: whether generated payloads were judged; entries about them (``seed-…``) stand otherwise.

        Returns:
            The judgements, ``known`` set; for each stale entry a line that says why and what to do; those entries.

        Raises:
            KnownFailuresError: two entries about one payload.
        """
        others = list(left_out)
        marked: list[Judgement] = []
        by_entry: dict[Entry, list[Judgement]] = {entry: [] for entry in self.entries}
        for judgement in judgements:
            entry = self.of(judgement.id)
            if entry is not None:
                by_entry[entry].append(judgement)
                if entry.verdict is judgement.verdict:
                    judgement = msgspec.structs.replace(judgement, known=True)
            marked.append(judgement)
        stale: list[str] = []
        gone: list[Entry] = []
        for entry, about in by_entry.items():
            if not about and (any(map(entry.matches, others)) or (entry.pattern.startswith("seed-") and not generated)):
                continue
            words = _stale(entry, about, [*others, *(one.id for one in judgements)])
            if words:
                stale.append(f"{entry}: {words}")
                gone.append(entry)
        return marked, stale, gone


def read(paths: Iterable[Path]) -> KnownFailures:
    """Read files.

    Raises:
        KnownFailuresError: a file that cannot be read, or a line that is no entry.
    """
    found = KnownFailures()
    for path in paths:
        for number, line in enumerate(_text(path).splitlines(), start=1):
            entry = _entry(line, f"{path}:{number}")
            if entry is not None:
                found.entries.append(entry)
    return found


def update(text: str, judgements: Iterable[Judgement], stale: Iterable[Entry], name: str = "") -> str:
    """The text of a file, brought up to date: stale entries go, payloads that fail and are not known get one each.

    Comments and the entries that still hold stay where they are; a new entry is put in front of the first that sorts after
    it.

    Args:
        name: of the file, as `read` gave it to the entries.
    """
    stale = list(stale)
    gone = {entry.where for entry in stale}
    kept = [line for number, line in enumerate(text.splitlines(), start=1) if f"{name}:{number}" not in gone]
    new = [
        one
        for one in judgements
        if one.required
        and one.verdict is not AnswerVerdict.EXACT
        and (not one.known or any(entry.matches(one.id) for entry in stale))
    ]
    width = max((len(one.id) for one in new), default=0)
    for one in sorted(new, key=lambda one: one.id):
        places = [(entry.pattern, at) for at, line in enumerate(kept) if (entry := _entry(line, "")) is not None]
        after = bisect.bisect_right([pattern for pattern, _ in places], one.id)
        at = places[after][1] if after < len(places) else (places[-1][1] + 1 if places else len(kept))
        kept.insert(at, _line(one, width))
    return "".join(f"{line}\n" for line in kept)


def write(path: Path, judgements: Sequence[Judgement], stale: Iterable[Entry]) -> None:
    """Bring a file up to date, or make it.

    Raises:
        KnownFailuresError: it cannot be read or written.
    """
    before = _text(path) if path.exists() else ""
    try:
        path.write_text(update(before, judgements, stale, str(path)), encoding="utf-8")
    except OSError as error:
        raise KnownFailuresError(f"cannot write {path}: {error.strerror or error}") from error


def _stale(entry: Entry, about: Sequence[Judgement], ids: Sequence[str]) -> str:
    if not about:
        near = difflib.get_close_matches(entry.pattern, ids, n=1)
        meant = f" (near it is {near[0]})" if near else ""
        return f"matches no payload of this run{meant}; remove the entry"
    against = [one for one in about if one.verdict is not entry.verdict]
    if not against:
        return ""
    first = against[0]
    if len(about) == 1:
        if first.verdict is AnswerVerdict.EXACT:
            return "it is exact; remove the entry"
        return f"it is {first.verdict.value}; change the entry or remove it"
    return (
        f"{len(against)} of the {len(about)} payloads that it matches are not, first {first.id}, which is "
        f"{first.verdict.value}; narrow the entry or remove it"
    )


def _entry(line: str, where: str) -> Entry | None:
    said, _, reason = line.partition("#")
    words = said.split()
    if not words:
        return None
    if len(words) != 2:
        raise KnownFailuresError(f"{where}: an entry is a vector id or glob and a verdict, not {said.strip()!r:.80}")
    pattern, verdict = words
    if verdict not in _LISTED:
        near = difflib.get_close_matches(verdict, _LISTED, n=1)
        meant = f"did you mean {near[0]}?" if near else f"there are {', '.join(_LISTED)}"
        raise KnownFailuresError(f"{where}: {verdict!r:.40} is no verdict of a failure; {meant}")
    return Entry(pattern, AnswerVerdict(verdict), reason.strip(), where)


def _line(judgement: Judgement, width: int) -> str:
    places = ", ".join(dict.fromkeys(one.where for one in judgement.differences))
    reason = (places or judgement.said or judgement.note).replace("#", "").splitlines()
    line = f"{judgement.id:{width}}  {judgement.verdict.value:12}"
    return f"{line}  # {reason[0][:_REASON]}".rstrip() if reason else line.rstrip()


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise KnownFailuresError(f"{path} is not UTF-8") from None
    except OSError as error:
        raise KnownFailuresError(f"cannot read {path}: {error.strerror or error}") from error
