"""`kvwire-conform producer` on live endpoints: the embedded engine, and the real publishers of real releases."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

from kvwire import AllBlocksCleared, EventBatch, get_dialect
from kvwire.dialects import Framing
from kvwire_conform.live import Wanted, judge_live
from kvwire_conform.model import Report, Verdict
from kvwire_conform.producer import Options
from kvwire_conform.simulator import SimulatedEngine, Simulator
from tests.real.catalog import find_release, require_source
from tests.real.driver import RealPublisher


def wrong(report: Report) -> set[str]:
    return {r.id for r in report.results if r.verdict not in (Verdict.PASS, Verdict.SKIP, Verdict.INCONCLUSIVE)}


def verdict(report: Report, check: str) -> Verdict:
    return next(r.verdict for r in report.results if r.id == check)


REPLAY = (
    "replay-framing",
    "replay-contiguous",
    "replay-start",
    "replay-equals-live",
    "replay-end-marker",
    "replay-past-end",
)


@pytest.mark.parametrize("dialect", ["slot8", "vllm-map5"])
def test_an_embedded_engine_passes(dialect: str) -> None:
    with SimulatedEngine(dialect, 3, rate=80.0) as engine:
        wanted = Wanted(endpoints=[engine.endpoint], replays=[str(engine.replay_endpoint)], seconds=20.0, batches=60)
        report = judge_live(wanted, Options(subject=[engine.endpoint]))
    assert wrong(report) == set()
    assert report.exit_code == 0
    assert report.sources[0].dialect == dialect or dialect in report.sources[0].candidates
    assert {verdict(report, check) for check in (*REPLAY, "replay-survives-malformed")} == {Verdict.PASS}


def test_several_ranks_found_on_a_server() -> None:
    with SimulatedEngine("sglang-map2", 3, rate=60.0, dp_size=3, server_info=True) as engine:
        report = judge_live(Wanted(server=engine.server, seconds=20.0, batches=90), Options(subject=["server"]))
    assert wrong(report) == set()
    assert len(report.sources) == 3
    assert sorted(s.dp_rank or 0 for s in report.sources) == [0, 1, 2]
    assert {r.verdict for r in report.results if r.id == "dp-rank-matches-port"} == {Verdict.PASS}


def test_nobody_there_is_not_the_same_as_silence() -> None:
    with SimulatedEngine("slot7", 1, count=0) as engine:
        silent = judge_live(Wanted(endpoints=[engine.endpoint], seconds=0.5), Options(subject=["silent"]))
    assert (silent.exit_code, silent.verdict) == (4, Verdict.INCONCLUSIVE)
    assert silent.advice
    gone = judge_live(Wanted(endpoints=[engine.endpoint], seconds=0.5), Options(subject=["gone"]))
    assert (gone.exit_code, gone.verdict) == (3, Verdict.ERROR)
    assert gone.advice


@contextmanager
def judging(publisher: RealPublisher, seconds: float) -> Iterator[Future[Report]]:
    """Judge a publisher in a thread, while the test has it publish."""
    assert publisher.endpoint is not None
    replays = [publisher.replay_endpoint] if publisher.replay_endpoint else []
    wanted = Wanted(endpoints=[publisher.endpoint], replays=replays, seconds=seconds, batches=80)
    with ThreadPoolExecutor(1) as pool:
        yield pool.submit(judge_live, wanted, Options(subject=[publisher.release]))


def release_events(batch: EventBatch, release: str) -> list[tuple[str, dict[str, Any]]]:
    """Neutral events as class name and keyword arguments of the release's own structs."""
    dialect = get_dialect(release)
    events = []
    for event in batch.events:
        fields = {f.neutral: getattr(event, f.neutral) for f in dialect.events[event.tag].fields}
        if fields.get("cache_salt") is None:
            fields.pop("cache_salt", None)
        events.append((event.tag, fields))
    return events


RELEASES = [("sglang", "0.5.19"), ("sglang", "0.5.23"), ("vllm", "0.23.0"), ("vllm", "0.33.0")]
"""An array-era and a map-era release of each engine."""


@pytest.mark.network
@pytest.mark.parametrize(("engine", "version"), RELEASES)
def test_the_real_publisher_passes(engine: Any, version: str) -> None:
    require_source(engine, version)
    find_release(engine, version)
    release = f"{engine}=={version}"
    simulator = Simulator(release, seed=11, block_size=4, clock=time.time)
    with RealPublisher(engine, version, topic="kv@pod@model") as publisher:
        done = threading.Event()
        with judging(publisher, 60.0) as judged:
            for batch in simulator.batches(400):
                publisher.publish(release_events(batch, release), ts=batch.ts)
                if judged.done() or done.is_set():
                    break
                done.wait(0.01)
            publisher.publish([("AllBlocksCleared", {})], ts=time.time())
            report = judged.result(timeout=90)
    assert wrong(report) == set(), [r for r in report.results if r.id in wrong(report)]
    source = report.sources[0]
    assert get_dialect(release).id in source.candidates
    assert source.lost == 0
    assert source.messages >= 80
    for check in (*REPLAY, "replay-survives-malformed", "event-shape", "parent-known", "removed-was-stored"):
        assert verdict(report, check) is Verdict.PASS, check
    framing = Framing.TOPIC_SEQ_PAYLOAD if version in ("0.5.23", "0.33.0") else Framing.SEQ_PAYLOAD
    assert get_dialect(release).framing is framing
    assert AllBlocksCleared.tag in source.events or engine == "vllm"
