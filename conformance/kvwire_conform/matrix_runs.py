"""Run every consumer that this machine can build or start, and keep their reports."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from kvwire_conform import testees
from kvwire_conform.consumer import Known, judge
from kvwire_conform.consumer_model import ConsumerReport
from kvwire_conform.reports.consumer_json import from_json, to_json

__all__ = ["ROUTER_RELEASES", "Outcome", "Subject", "run_all", "stored", "subjects"]

ROUTER_RELEASES = ("1.2.1", "1.3.1", "1.4.2", "1.6.1")
"""Releases of Dynamo's indexer that differ in what they read."""


@dataclass(frozen=True)
class Subject:
    """One consumer to be judged.

    Attributes:
        id: ``<testee>@<version>``, or ``router:dynamo@<release>``.
    """

    id: str
    run: Callable[[], ConsumerReport | str]


@dataclass(frozen=True)
class Outcome:
    """What came of a subject: its report, or why there is none."""

    subject: str
    report: ConsumerReport | None
    skipped: str = ""


def subjects(*, routers: bool = True, jobs: int = 2) -> list[Subject]:
    """Routers first, then other projects' decoders, engines' structs and examples: the order of the matrix's columns."""
    found = [_router(release) for release in ROUTER_RELEASES] if routers else []
    rest = sorted(testees.catalog(), key=lambda spec: (_RANK.get(spec.name, 0), spec.name))
    for spec in rest:
        found += [_testee(spec, version, jobs) for version in reversed(spec.versions or ("",))]
    return found


_RANK = {
    "engine-structs": 1,
    "python-kvwire": 2,
    "python-msgspec": 3,
    "python-msgpack": 4,
    "go": 5,
    "rust": 6,
    "node": 7,
}


def run_all(chosen: Sequence[Subject], keep: Path | None = None) -> Iterator[Outcome]:
    """Judge them one after the other; each report is written into the folder ``keep`` at once.

    Raises:
        BuildError: a testee cannot be built though its tools are there.
        KeyboardInterrupt: a run was interrupted; its report is not kept.
    """
    for subject in chosen:
        found = subject.run()
        if isinstance(found, str):
            yield Outcome(subject.id, None, found)
            continue
        if found.interrupted:
            raise KeyboardInterrupt
        if keep is not None:
            keep.mkdir(parents=True, exist_ok=True)
            _file_of(keep, subject).write_bytes(to_json(found))
        yield Outcome(subject.id, found)


def stored(chosen: Sequence[Subject], folder: Path) -> Iterator[Outcome]:
    """The reports that `run_all` kept in a folder."""
    for subject in chosen:
        path = _file_of(folder, subject)
        if path.is_file():
            yield Outcome(subject.id, from_json(path.read_bytes()))
        else:
            yield Outcome(subject.id, None, f"no report of it in {folder}")


def _file_of(folder: Path, subject: Subject) -> Path:
    return folder / (subject.id.replace(":", "-").replace("==", "-") + ".json")


def _testee(spec: testees.TesteeSpec, version: str, jobs: int) -> Subject:
    def run() -> ConsumerReport | str:
        built = testees.build(spec, version or None)
        if isinstance(built, testees.Skipped):
            return built.reason
        listed = testees.known_failures(spec, version or None)
        report = judge(built.command, known=Known((listed,) if listed else ()), jobs=jobs)
        return report if report.consumer is not None else "; ".join(report.advice) or "it never said hello"

    return Subject(f"{spec.name}@{version}" if version else spec.name, run)


def _router(release: str) -> Subject:
    def run() -> ConsumerReport | str:
        from kvwire_conform.routers.dynamo import judge_dynamo

        report = judge_dynamo(release)
        return report if report.judgements else "; ".join(report.advice) or "it could not be started"

    return Subject(f"router:dynamo@{release}", run)
