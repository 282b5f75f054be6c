"""The fixtures `kvwire_check` and `kvwire_engine`: a publisher's frames judged, and an engine for a subscriber's tests."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

import kvwire
from kvwire import EventBatch, UsageError
from kvwire.items import Batch
from kvwire.zmq import Subscriber
from kvwire_conform.producer import Options, judge_recordings
from kvwire_conform.pytest_engine import Engine, Engines
from kvwire_conform.pytest_publisher import PublisherCheck, PublisherError
from kvwire_conform.recording import Record
from kvwire_conform.simulator import FAULTS, EngineError, Simulator

pytest.importorskip("rich")

pytest_plugins = ["pytester"]

MESSAGES = 60
END = b"\xff" * 8
SEEN_ALONE = [
    fault.id for fault in FAULTS.values() if fault.side == "stream" and not fault.told and fault.applies("slot8")
]


@pytest.fixture
def check(tmp_path: Path) -> PublisherCheck:
    return PublisherCheck(lambda: tmp_path)


@pytest.fixture
def engines() -> Iterator[Engines]:
    with Engines() as made:
        yield made


def stream(fault: str | None = None, dialect: str = "slot8") -> list[tuple[bytes, ...]]:
    return Simulator(dialect, 3, fault=fault, clock=time.time).messages(MESSAGES)


# kvwire_check


def test_a_right_publisher_passes(check: PublisherCheck) -> None:
    report = check(stream(), dialect="slot8", require=["parent-known", "removed-was-stored"], block_size=16, dp_rank=0)
    assert report.sources[0].messages == MESSAGES
    assert report.exit_code == 0
    check([list(message) for message in stream()], dialect="sglang==0.5.19", hashes="sglang")
    check(stream(dialect="vllm-map5"), dialect="vllm-map")


@pytest.mark.parametrize("fault", SEEN_ALONE)
def test_each_fault_fails_with_its_name(check: PublisherCheck, fault: str) -> None:
    strict = fault in ("ts-plausible", "seq-restart", "medium-vocabulary")
    with pytest.raises(PublisherError) as raised:
        check(stream(fault), strict=True)
    assert fault in {result.id for result in raised.value.report.results if result.violations}
    assert fault in str(raised.value)
    assert strict or raised.value.report.exit_code == 1


def test_the_message_is_a_report_and_keeps_the_frames(check: PublisherCheck) -> None:
    with pytest.raises(PublisherError) as raised:
        check(stream("parent-known"), dialect="slot8")
    told = str(raised.value)
    assert told.startswith("FAIL: publisher speaks slot8 (SGLang 0.5.18-0.5.19)\n")
    for words in (
        "parent-known  1 of ",
        "MUST  stream.md#parents",
        "expected  a parent",
        "which is not held",
        "> 2: int ",
    ):
        assert words in told
    assert "seq-width" not in told, "what is right is left out"
    (*_, path) = shlex.split(told.splitlines()[-1])
    again = judge_recordings([Path(path)], Options(subject=[]))
    assert again.exit_code == 1
    assert [result.id for result in again.results if result.violations] == ["parent-known"]


def test_nothing_is_no_pass(check: PublisherCheck) -> None:
    with pytest.raises(PublisherError, match="there is no message to judge"):
        check([])
    with pytest.raises(PublisherError, match="parent-known had nothing to judge"):
        check(stream()[:1], require="parent-known")


def test_options_that_say_more(check: PublisherCheck) -> None:
    with pytest.raises(PublisherError, match="parent-known"):
        check(stream("parent-known"))
    check(stream("parent-known"), ignore=["parent-known"])
    with pytest.raises(PublisherError, match="dp-rank-matches-port"):
        check(stream(), dp_rank=1)
    with pytest.raises(PublisherError, match="event-shape"):
        check(stream(), dialect="slot9")
    with pytest.raises(PublisherError, match="hash-recomputes"):
        check(stream(), hashes="vllm:sha256_cbor")
    with pytest.raises(PublisherError, match="block-size-constant"):
        check(stream(), block_size=32, strict=True)
    with pytest.raises(PublisherError, match="replay-framing had nothing to judge: no replay endpoint; give replay="):
        check(stream(), require="replay-framing")
    warned = Simulator("slot8", 3).messages(MESSAGES)
    check(warned)
    with pytest.raises(PublisherError, match="ts-plausible"):
        check(warned, strict=True)


def test_replies_of_the_replay_endpoint(check: PublisherCheck) -> None:
    frames = stream()
    end = (b"", END, b"")
    rest = [(b"", seq, payload) for _, seq, payload in frames[50:]]
    report = check(
        frames, replay={50: [*rest, end]}, require=["replay-contiguous", "replay-equals-live", "replay-end-marker"]
    )
    assert report.sources[0].replayed == 10
    with pytest.raises(PublisherError, match="replay-equals-live"):
        check(frames, replay={50: [(b"", rest[0][1], rest[1][2]), *rest[1:], end]})
    with pytest.raises(PublisherError, match="replay-end-marker"):
        check(frames, replay={50: rest})


def test_recordings(check: PublisherCheck, tmp_path: Path) -> None:
    with pytest.raises(PublisherError):
        check(stream("parent-known"))
    written = tmp_path / "frames.jsonl"
    with pytest.raises(PublisherError, match="parent-known"):
        check(written)
    with pytest.raises(PublisherError, match="parent-known"):
        check(str(written))
    check([Record(t=time.time(), channel="live", frames=list(message)) for message in stream()])


@pytest.mark.parametrize("frames", [[("topic", b"", b"")], [b"payload"], [(b"", 1, b"")], ["frames"]])
def test_what_is_no_message(check: PublisherCheck, frames: list[tuple[bytes, ...]]) -> None:
    with pytest.raises(UsageError, match=r"frames\[0\]: a message is a sequence of frames in bytes"):
        check(frames)


def test_what_is_no_check(check: PublisherCheck) -> None:
    with pytest.raises(UsageError, match="did you mean parent-known"):
        check(stream(), require=["parents-known"])
    with pytest.raises(UsageError, match="did you mean parent-known"):
        check(stream(), ignore="parents-known")


# kvwire_engine


def test_a_subscriber_gets_what_the_seed_says(engines: Engines) -> None:
    engine = engines("slot8", 3, topic="kv@pod")
    with Subscriber(engine.endpoint, replay=engine.replay_endpoint) as subscriber:
        engine.wait_for_subscriber()
        sent = engine.publish(5)
        items = [subscriber.next(timeout=10) for _ in range(5)]
    assert sent == Simulator("slot8", 3, topic="kv@pod").messages(5) == engine.frames()
    assert [item.batch for item in items if isinstance(item, Batch)] == engine.batches()
    assert all(isinstance(batch, EventBatch) for batch in engine.batches())


def test_the_parts_of_a_publication_join_up(engines: Engines) -> None:
    engine = engines("vllm==0.33.0", 5, wait_for_subscriber=False)
    parts = [*engine.publish(3), *engine.publish(), *engine.publish(4)]
    assert parts == Simulator("vllm-map5", 5).messages(8)
    assert engine.published == [8]


def test_replay(engines: Engines) -> None:
    engine = engines("slot8", 3, wait_for_subscriber=False)
    engine.publish(6)
    assert engine.replay_endpoint is not None
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.setsockopt(zmq.RCVTIMEO, 10_000)
        dealer.setsockopt(zmq.LINGER, 0)
        dealer.connect(engine.replay_endpoint)
        dealer.send_multipart([b"", (2).to_bytes(8, "big")])
        replies = [dealer.recv_multipart() for _ in range(5)]
    assert [reply[-1] for reply in replies[:4]] == [payload for _, _, payload in engine.frames()[2:]]
    assert replies[4][-2:] == [END, b""]


def test_faults_and_ranks(engines: Engines, check: PublisherCheck) -> None:
    engine = engines("slot8", 3, fault="parent-known", fault_at=4, wait_for_subscriber=False)
    with pytest.raises(PublisherError, match="parent-known"):
        check(engine.publish(MESSAGES))
    ranks = engines("slot8", 3, dp_size=2, wait_for_subscriber=False)
    frames = ranks.publish(3)
    assert [kvwire.decode(payload).dp_rank for _, _, payload in frames] == [0, 0, 0, 1, 1, 1]
    assert len(set(ranks.endpoints)) == 2
    with pytest.raises(UsageError, match="no fault is called"):
        engines("slot8", fault="nonsense")


def test_it_says_that_nobody_listens(engines: Engines) -> None:
    engine = engines("slot8")
    for act in (engine.wait_for_subscriber, lambda timeout: engine.publish(1, timeout)):
        with pytest.raises(EngineError, match=r"nobody subscribed to tcp://.* 0 of 1 ranks have a subscriber"):
            act(timeout=0.01)
    assert engine.frames() == []


def test_it_publishes_by_itself_where_it_is_asked_to(engines: Engines) -> None:
    engine = engines("slot8", rate=500.0, count=None, wait_for_subscriber=False)
    with Subscriber(engine.endpoint) as subscriber:
        assert isinstance(subscriber.next(timeout=10), Batch)
    with pytest.raises(UsageError, match="publishes by itself"):
        engine.publish()


def test_engines_are_stopped_even_if_one_failed() -> None:
    made: list[Engine] = []
    with pytest.raises(EngineError, match="broken"), Engines() as engines:
        made += [engines("slot8", wait_for_subscriber=False), engines("slot8")]
        made[0]._failure = RuntimeError("broken")
    for engine in made:
        assert engine._thread is not None
        assert not engine._thread.is_alive()


def test_the_fixtures(pytester: pytest.Pytester) -> None:
    text = """
import pytest, kvwire, time
from kvwire.zmq import Publisher, Subscriber
from kvwire_conform.simulator import Simulator

LEFT = []

def test_engine(kvwire_engine):
    engine = kvwire_engine("vllm-map5", seed=7)
    with Subscriber(engine.endpoint) as subscriber:
        engine.publish(2)
        assert subscriber.next(timeout=10).batch == engine.batches()[0]
    LEFT.append(engine)

def test_it_is_stopped():
    assert not LEFT[0]._thread.is_alive()

def test_right(kvwire_check):
    kvwire_check(Simulator("slot8", 3).messages(60))

def test_wrong(kvwire_check):
    kvwire_check(Simulator("slot8", 3, fault="parent-known").messages(60))
"""
    pytester.makepyfile(test_a=text)
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider", "--strict-markers", "-W", "error")
    result.assert_outcomes(passed=3, failed=1)
    result.stdout.fnmatch_lines(
        [
            "E *PublisherError: FAIL: publisher speaks slot8*",
            "E *FAIL parent-known *",
            "E *kvwire-conform producer --recording *",
        ]
    )
    assert "pytest_publisher.py" not in result.stdout.str()
