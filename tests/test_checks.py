"""Each check catches its fault and nothing else fires; a conforming engine passes every check that it can show."""

from __future__ import annotations

from typing import Any

import pytest

from kvwire import DIALECTS
from kvwire_conform import capture_words as words
from kvwire_conform.checks.hashes import HashSettings
from kvwire_conform.judge import Judge, Told
from kvwire_conform.model import Verdict
from kvwire_conform.recording import Record
from kvwire_conform.requirements import producer_checks
from kvwire_conform.simulator import FAULTS, ReplayBuffer, Simulator

MESSAGES = 220
STREAM_FAULTS = [name for name, fault in FAULTS.items() if fault.side == "stream"]


def judged(dialect: str, fault: str | None, *, seed: int = 5) -> dict[str, Any]:
    simulator = Simulator(dialect, seed=seed, block_size=4, capacity=48, fault=fault, dp_rank=2)
    needed = FAULTS[fault].told if fault else frozenset(("hash",))
    told = Told(
        ranks={"engine": simulator.announced_rank(simulator.peek()) or 0} if "dp_rank" in needed else {},
        block_size=4 if "block_size" in needed else None,
        hashes=HashSettings(simulator.profile.recipe, simulator.profile.hash_seed) if "hash" in needed else None,
    )
    judge = Judge(told, "engine")
    for frames in simulator.messages(MESSAGES):
        judge.feed(Record(t=simulator.now(), channel="live", frames=list(frames)))
    _, results, _ = judge.finish()
    return {result.id: result for result in results}


def wrong(results: dict[str, Any]) -> set[str]:
    return {
        check for check, r in results.items() if r.verdict not in (Verdict.PASS, Verdict.SKIP, Verdict.INCONCLUSIVE)
    }


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_conforming_engine_passes(dialect: str) -> None:
    for seed in range(4):
        results = judged(dialect, None, seed=seed)
        assert wrong(results) == set()
        for row in producer_checks():
            if not row.needs:
                assert results[row.id].verdict is Verdict.PASS, row.id


@pytest.mark.parametrize("fault", STREAM_FAULTS)
def test_each_check_catches_its_fault_alone(fault: str) -> None:
    tried = 0
    for dialect in DIALECTS:
        if not FAULTS[fault].applies(dialect):
            continue
        tried += 1
        results = judged(dialect, fault)
        assert wrong(results) == {fault}, f"{dialect}: {[(c, results[c].findings[:1]) for c in wrong(results)]}"
        finding = results[fault].findings[0]
        assert finding.expected
        assert finding.got
    assert tried


def judged_replay(dialect: str, fault: str | None) -> dict[str, Any]:
    """A stream and its replay endpoint, asked as the live capture asks."""
    simulator = Simulator(dialect, seed=3, block_size=4)
    buffer = ReplayBuffer(simulator.dialect.framing, fault=fault)
    judge = Judge(Told(replay_expected=True), "engine")
    newest = 59
    for frames in simulator.messages(newest + 1):
        buffer.keep(frames)
        judge.feed(Record(t=simulator.now(), channel="live", frames=list(frames)))

    def ask(request: list[bytes], start: int | None) -> None:
        judge.feed(Record(t=1.0, channel="replay-request", frames=request, start_seq=start))
        replies = buffer.answer(request)
        for reply in replies:
            judge.feed(Record(t=1.0, channel="replay", frames=reply, start_seq=start))
        if start is None:
            judge.feed(Record(t=1.0, channel="note", frames=[], text=words.REPLAY_MALFORMED_UNANSWERED))
        elif not replies or replies[-1][-1]:
            judge.feed(Record(t=1.0, channel="note", frames=[], text=words.REPLAY_TIMEOUT))

    for start in (0, newest // 2, newest, newest + 1000):
        ask([b"", start.to_bytes(8, "big")], start)
    for malformed in ([b"", b"\0\0\0"], [bytes(8)], [b"", bytes(8), b"more"]):
        ask(malformed, None)
        ask([b"", newest.to_bytes(8, "big")], newest)
    _, results, _ = judge.finish()
    return {result.id: result for result in results}


@pytest.mark.parametrize("dialect", ["slot7", "slot12", "sglang-map2", "vllm-map1", "vllm-map5"])
def test_each_replay_check_catches_its_fault_alone(dialect: str) -> None:
    replay = [name for name, fault in FAULTS.items() if fault.side == "replay"]
    clean = judged_replay(dialect, None)
    assert wrong(clean) == set()
    assert {clean[check].verdict for check in replay} == {Verdict.PASS}
    for fault in replay:
        results = judged_replay(dialect, fault)
        assert wrong(results) == {fault}, [(c, results[c].findings[:1]) for c in wrong(results)]


def test_every_check_has_a_fault() -> None:
    assert {row.id for row in producer_checks()} == set(FAULTS)
