"""Payload after payload through the processes of a testee, each breakdown charged to the payload that caused it."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from kvwire_conform.answers import Found
from kvwire_conform.consumer import Case, Progress, breakdown_found, judge_reply
from kvwire_conform.consumer_model import AnswerVerdict
from kvwire_conform.testee import Breakdown, NeverStartedError, Testee
from kvwire_conform.testee_lines import Answer, Request

__all__ = ["Run", "run_testee"]

_POLL = 0.1


@dataclass
class Run:
    """What came of the payloads.

    Attributes:
        found: one entry a payload; None where it was not judged.
        left: how processes of the testee ended that did not end as they should, and why a rest was not judged.
        untold: what the testee never says of a batch and was therefore not judged by.
        interrupted: whether the user cut it short.
    """

    found: list[Found | None]
    left: list[str] = field(default_factory=list)
    untold: list[str] = field(default_factory=list)
    interrupted: bool = False


def run_testee(testee: Testee, cases: Sequence[Case], *, jobs: int = 1, progress: Progress | None = None) -> Run:
    """Ask a testee that has said hello all payloads, with the help of ``jobs - 1`` further processes of it."""
    run = Run([None] * len(cases))
    jobs = max(1, min(jobs, len(cases)))
    workers = [
        _Worker(testee if job == 0 else testee.another(), cases, range(job, len(cases), jobs), run.found)
        for job in range(jobs)
    ]
    for worker in workers:
        worker.start()
    try:
        while any(worker.is_alive() for worker in workers):
            for worker in workers:
                worker.join(_POLL / jobs)
            if progress is not None:
                done = [found for found in run.found if found is not None]
                progress(len(done), len(cases), sum(found.verdict is not AnswerVerdict.EXACT for found in done))
    except KeyboardInterrupt:
        run.interrupted = True
    finally:
        for worker in workers:
            worker.stop()
        for worker in workers:
            worker.join()
    for worker in workers:
        if worker.fault is not None:
            raise worker.fault
    run.left = list(dict.fromkeys(words for worker in workers for words in worker.left))
    run.untold = _untold(workers)
    return run


class _Worker(threading.Thread):
    """One process of the testee and its share of the payloads."""

    def __init__(self, testee: Testee, cases: Sequence[Case], share: Sequence[int], found: list[Found | None]) -> None:
        super().__init__(daemon=True)
        self.testee = testee
        self.left: list[str] = []
        self.fault: BaseException | None = None
        self.answers = 0
        self.told = {"ts": 0, "dp_rank": 0}
        self._cases = cases
        self._share = share
        self._found = found
        self._stopped = threading.Event()
        self._asked: dict[str, int] = {}
        self._next = 0
        self._now = -1
        self._before: int | None = None

    def stop(self) -> None:
        """End after the payload at hand, whose process is killed."""
        self._stopped.set()
        self.testee.interrupt()

    def run(self) -> None:
        try:
            self._run()
        except BaseException as error:
            self.fault = error
        finally:
            self.testee.kill()

    def _run(self) -> None:
        limit = self.testee.limits.breakdowns
        in_a_row = 0
        for index in self._share:
            try:
                found = self._judge(index)
            except NeverStartedError as error:
                self.left.append(f"it could not be started again, and the rest was not judged: {error}")
                return
            if self._stopped.is_set():
                return
            self._found[index] = found
            in_a_row = 0 if self.testee.running else in_a_row + 1
            if in_a_row >= limit:
                self.left.append(f"it broke down on {limit} payloads in a row, and the rest was not judged")
                break
        problem = self.testee.leave()
        if problem is not None and not self._stopped.is_set():
            self.left.append(problem)
            if self.testee.died and self._before is not None:
                self._charge(self._before, Breakdown(AnswerVerdict.CRASHED, problem))
        self._charge_second_answers()

    def _judge(self, index: int) -> Found:
        self._now = index
        case = self._cases[index]
        reply = self._ask(case.request)
        if isinstance(reply, Breakdown) and reply.verdict is AnswerVerdict.CRASHED and not self._stopped.is_set():
            before = self._before
            if before is not None:
                # It may have died of the payload before, after answering that; a process that has seen no other tells.
                again = self._ask(case.request)
                if not isinstance(again, Breakdown):
                    self._charge(before, reply)
                    reply = again
                else:
                    reply = again
        self._before = index if self.testee.running else None
        if isinstance(reply, Breakdown):
            return breakdown_found(reply)
        found = judge_reply(case, reply, self._ask)
        self._before = index if self.testee.running else None
        self._charge_second_answers()
        return found

    def _ask(self, request: Request) -> Answer | Breakdown:
        if not self.testee.running:
            self.testee.start()
        self._next += 1
        ident = str(self._next)
        self._asked[ident] = self._now
        reply = self.testee.ask(ident, request)
        if isinstance(reply, Answer) and reply.events is not None:
            self.answers += 1
            self.told["ts"] += reply.ts is not msgspec.UNSET
            self.told["dp_rank"] += reply.dp_rank is not msgspec.UNSET
        return reply

    def _charge(self, index: int, broken: Breakdown) -> None:
        self._found[index] = Found(verdict=broken.verdict, said=broken.said, note="after it had answered")

    def _charge_second_answers(self) -> None:
        for ident in self.testee.twice:
            self._found[self._asked[ident]] = Found(
                verdict=AnswerVerdict.GARBLED, said="it answered one request more than once"
            )
        self.testee.twice.clear()


def _untold(workers: Sequence[_Worker]) -> list[str]:
    answers = sum(worker.answers for worker in workers)
    told = []
    for name in ("ts", "dp_rank"):
        number = sum(worker.told[name] for worker in workers)
        if number < answers:
            times = "" if number == 0 else f" in {answers - number} of {answers} answers"
            told.append(f"it does not report {name}{times}, which was therefore not judged")
    return told
