"""Live capture against real sockets on loopback: what is handed on, what is asked, and what silence is called."""

from __future__ import annotations

import contextlib
import queue
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest
import zmq
from hypothesis import given
from hypothesis import strategies as st

from kvwire.dialects import Framing
from kvwire.errors import UsageError
from kvwire.zmq import frames
from kvwire_conform import capture_words as words
from kvwire_conform.capture import Capture, Outcome, Target
from kvwire_conform.capture_asks import MAX_GAP_ASKS, MAX_SPANS, Asks, Seqs
from kvwire_conform.capture_links import CUT_GRACE
from kvwire_conform.capture_words import Form, Kind
from kvwire_conform.recording import Record

DEADLINE = 10.0
PATIENCE = 0.4


def batch(seq: int) -> bytes:
    """A payload that tells its seq."""
    return b"\x93" + seq.to_bytes(8, "big")


@dataclass
class Behaviour:
    """How a publisher of the tests answers on its replay socket."""

    framing: Framing = Framing.TOPIC_SEQ_PAYLOAD
    ends: bool = True
    dies_of: frozenset[Form] = frozenset()
    late: int | None = None
    """Index of a request that is answered only when the next one comes."""


class Publisher:
    """A publisher in a thread of its own: a PUB (as XPUB, which tells of subscriptions) and a ROUTER. A context manager."""

    def __init__(
        self,
        behaviour: Behaviour | None = None,
        *,
        topic: bytes = b"",
        endpoint: str = "tcp://127.0.0.1:*",
        replay_endpoint: str = "tcp://127.0.0.1:*",
        connect: bool = False,
    ) -> None:
        self.behaviour = behaviour or Behaviour()
        self.topic = topic
        self.subscribed = threading.Event()
        self.requests: list[list[bytes]] = []
        self.kept: list[tuple[int, bytes]] = []
        self._held: list[bytes] | None = None
        self.seq = 0
        self._todo: queue.Queue[list[bytes] | None] = queue.Queue()
        self._context = zmq.Context()
        self._pub = self._context.socket(zmq.XPUB)
        self._pub.setsockopt(zmq.SNDHWM, 0)
        self._router = self._context.socket(zmq.ROUTER)
        if connect:
            self._pub.connect(endpoint)
        else:
            self._pub.bind(endpoint)
        self._router.bind(replay_endpoint)
        self.endpoint = self._pub.getsockopt_string(zmq.LAST_ENDPOINT)
        self.replay_endpoint = self._router.getsockopt_string(zmq.LAST_ENDPOINT)
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Publisher:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._todo.put(None)
        self._thread.join(DEADLINE)
        self._context.destroy(linger=0)

    @property
    def target(self) -> Target:
        return Target(self.endpoint, self.replay_endpoint)

    def publish(self, count: int = 1, *, live: bool = True) -> None:
        """Publish batches; with ``live=False`` they are lost on the way and only kept for replay."""
        for _ in range(count):
            self.kept.append((self.seq, batch(self.seq)))
            if live:
                self._todo.put(frames.pack_live(self.topic, self.seq, batch(self.seq)))
            self.seq += 1

    def send(self, *messages: list[bytes]) -> None:
        """Publish messages as they are."""
        for message in messages:
            self._todo.put(message)

    def flush(self) -> None:
        """Wait until all is sent."""
        self._todo.join()

    def when_subscribed(self, then: Callable[[], object]) -> threading.Thread:
        """Do something once a subscription is there, in a thread of its own."""

        def wait() -> None:
            assert self.subscribed.wait(DEADLINE)
            then()

        thread = threading.Thread(target=wait, daemon=True)
        thread.start()
        return thread

    def _run(self) -> None:
        poller = zmq.Poller()
        poller.register(self._pub, zmq.POLLIN)
        poller.register(self._router, zmq.POLLIN)
        alive = True
        while True:
            ready = dict(poller.poll(5))
            if self._pub in ready and self._pub.recv()[:1] == b"\1":
                self.subscribed.set()
            if self._router in ready and alive:
                alive = self._serve(self._router.recv_multipart())
                if not alive:
                    poller.unregister(self._router)
            with contextlib.suppress(queue.Empty):
                while True:
                    message = self._todo.get_nowait()
                    if message is None:
                        return
                    self._pub.send_multipart(message)
                    self._todo.task_done()

    def _serve(self, message: list[bytes]) -> bool:
        request = message[1:]
        self.requests.append(request)
        how = self.behaviour
        form = _form(request)
        if form is not None and form in how.dies_of:
            return False
        if form is Form.UNDELIMITED or form is Form.FRAMES:
            return True
        if len(self.requests) - 1 == how.late:
            self._held = message
            return True
        held, self._held = self._held, None
        if held is not None:
            self._answer(*held)
        self._answer(*message)
        return True

    def _answer(self, identity: bytes, *request: bytes) -> None:
        how = self.behaviour
        start = frames.unpack_replay_request(request, any_width=True)
        for seq, payload in list(self.kept):
            if seq >= start:
                reply = frames.pack_replay(how.framing, self.topic, seq, payload)
                self._router.send_multipart([identity, *reply])
        if how.ends:
            self._router.send_multipart([identity, *frames.pack_replay_end(how.framing)])


def _form(request: list[bytes]) -> Form | None:
    if len(request) == 1:
        return Form.UNDELIMITED
    if len(request) != 2:
        return Form.FRAMES
    return None if len(request[1]) == 8 else Form.WIDTH


@dataclass
class Got:
    """What a capture handed on."""

    records: list[Record] = field(default_factory=list)

    def live(self, source: str = "") -> list[int]:
        return [
            int.from_bytes(r.frames[1], "big")
            for r in self.records
            if r.channel == "live" and r.source == source and len(r.frames) == 3
        ]

    def notes(self, *wanted: str) -> list[tuple[str, dict[str, str]]]:
        found = [words.parse(r.text) for r in self.records if r.channel == "note"]
        return [(word, fields) for word, fields in found if word in wanted]

    def asks(self) -> list[tuple[str, int]]:
        """Kind and start_seq of the good asks."""
        found = self.notes(words.REPLAY_ASK, words.REPLAY_AFTER_MALFORMED)
        return [
            (fields.get("kind", "after-" + fields.get("form", "")), int(fields["start_seq"])) for _, fields in found
        ]

    def answer(self, kind: str) -> list[Record]:
        """The replies to the first ask of a kind."""
        started = False
        answer: list[Record] = []
        for record in self.records:
            word, fields = words.parse(record.text) if record.channel == "note" else ("", {})
            if word == words.REPLAY_ASK and started:
                break
            if word == words.REPLAY_ASK and fields["kind"] == kind:
                started = True
            elif started and record.channel == "replay":
                answer.append(record)
                if record.frames[-1] == b"":
                    break
        return answer


def capture(*targets: Target, seconds: float | None = DEADLINE, **options: object) -> tuple[Got, Outcome]:
    """Run a capture; ``seconds`` is the safety net of those that end otherwise."""
    got = Got()
    made = Capture(
        list(targets),
        seconds=seconds,
        replay_timeout=PATIENCE,
        on_record=got.records.append,
        **options,  # type: ignore[arg-type]
    )
    return got, made.run()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def seqs_of(answer: list[Record]) -> list[int]:
    return [int.from_bytes(record.frames[-2], "big") for record in answer]


# Live ------------------------------------------------------------------------------------------------------------------


def test_live_messages_are_handed_on_as_they_came() -> None:
    with Publisher(topic=b"kv@pod") as publisher:
        publisher.when_subscribed(lambda: publisher.publish(5))
        got, outcome = capture(Target(publisher.endpoint), batches=5)
    live = [record for record in got.records if record.channel == "live"]
    assert [record.frames for record in live] == [frames.pack_live(b"kv@pod", seq, batch(seq)) for seq in range(5)]
    assert all(record.source == "" and record.t > 1e9 for record in live)
    assert outcome.reason == "batches"
    heard = outcome.targets[0]
    assert (heard.connected, heard.messages, heard.peers, heard.replay_connected) == (True, 5, 1, None)
    assert heard.first_message is not None
    assert outcome.advice() == []
    assert not [record for record in got.records if record.channel.startswith("replay")]


def test_messages_of_any_frame_count_are_handed_on() -> None:
    odd = [[b"payload"], [b"t", b"payload"], [b"t", b"\0\0\1", b"payload"], [b"", frames.END, b"x"], [b"x"] * 20]
    with Publisher() as publisher:
        publisher.when_subscribed(lambda: publisher.send(*odd))
        got, _ = capture(Target(publisher.endpoint), batches=len(odd))
    live = [record.frames for record in got.records if record.channel == "live"]
    assert live == [*odd[:4], [b"x"] * frames.MAX_FRAMES]
    assert got.notes(words.FRAMES_LEFT_OUT) == [(words.FRAMES_LEFT_OUT, {"count": "4"})]


def test_several_targets_are_told_apart() -> None:
    with Publisher() as first, Publisher(Behaviour(Framing.SEQ_PAYLOAD)) as second:
        first.when_subscribed(lambda: first.publish(3))
        second.when_subscribed(lambda: second.publish(2))
        got, outcome = capture(first.target, second.target, batches=5, malformed=False)
    assert got.live(first.endpoint) == [0, 1, 2]
    assert got.live(second.endpoint) == [0, 1]
    assert {record.source for record in got.records} == {first.endpoint, second.endpoint}
    assert [heard.messages for heard in outcome.targets] == [3, 2]
    for publisher, width in ((first, 4), (second, 3)):
        replies = [r for r in got.records if r.channel == "replay" and r.source == publisher.endpoint]
        assert replies
        assert {len(record.frames) for record in replies} == {width}


def test_a_publisher_that_connects() -> None:
    endpoint = f"tcp://127.0.0.1:{free_port()}"
    with Publisher(endpoint=endpoint, connect=True) as publisher:
        publisher.when_subscribed(lambda: publisher.publish(3))
        got, outcome = capture(Target(endpoint, publisher.replay_endpoint), batches=3, bind=True, malformed=False)
    assert got.live() == [0, 1, 2]
    assert outcome.targets[0].connected
    assert outcome.advice() == []


def test_two_publishers_at_one_bound_endpoint_are_reported() -> None:
    endpoint = f"tcp://127.0.0.1:{free_port()}"
    with Publisher(endpoint=endpoint, connect=True) as one, Publisher(endpoint=endpoint, connect=True) as other:
        for publisher in (one, other):
            publisher.when_subscribed(publisher.publish)
        _, outcome = capture(Target(endpoint), batches=2, bind=True)
    assert any("2 publishers were connected at once" in text for text in outcome.advice())


# Replay ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("framing", list(Framing))
def test_what_was_published_before_is_asked_for_and_the_endpoint_is_probed(framing: Framing) -> None:
    with Publisher(Behaviour(framing), topic=b"kv") as publisher:
        publisher.publish(3, live=False)
        publisher.when_subscribed(lambda: publisher.publish(2))
        got, outcome = capture(publisher.target, batches=2)
    assert got.live() == [3, 4]
    good = [ask for ask in got.asks() if ask[0] != "gap"]
    assert good == [
        ("start", 0),
        ("zero", 0),
        ("middle", 2),
        ("last", 4),
        ("past-end", 1004),
        ("after-width", 4),
        ("after-undelimited", 4),
        ("after-frames", 4),
    ]
    assert {0, 1, 2} <= set(seqs_of(got.answer("start")))
    answers = {kind: seqs_of(got.answer(kind)) for kind in ("zero", "middle", "last", "past-end")}
    end = frames.END_SEQ
    assert answers == {"zero": [0, 1, 2, 3, 4, end], "middle": [2, 3, 4, end], "last": [4, end], "past-end": [end]}
    assert {record.start_seq for record in got.answer("middle")} == {2}
    assert {len(r.frames) for r in got.records if r.channel == "replay"} == {3 if framing is Framing.SEQ_PAYLOAD else 4}
    assert not got.notes(words.REPLAY_TIMEOUT)
    assert outcome.targets[0].replay_answered >= 8
    assert outcome.advice() == []


def test_requests_are_recorded_as_they_were_sent() -> None:
    with Publisher() as publisher:
        publisher.when_subscribed(publisher.publish)
        got, _ = capture(publisher.target, batches=1)
        recorded = [(record.start_seq, record.frames) for record in got.records if record.channel == "replay-request"]
        assert [request for _, request in recorded] == publisher.requests
    malformed = [request for start, request in recorded if start is None]
    assert [_form(request) for request in malformed] == [Form.WIDTH, Form.UNDELIMITED, Form.FRAMES]
    assert all(request == frames.pack_replay_request(start) for start, request in recorded if start is not None)


def ends_answer(record: Record, start_seq: int) -> bool:
    """Whether this is the end marker of an answer to a request from this seq."""
    return record.channel == "replay" and record.start_seq == start_seq and record.frames[-1] == b""


def lossy(publisher: Publisher) -> None:
    """Publish six batches, of which 3 and 4 are lost on the way."""
    publisher.publish(3)
    publisher.publish(2, live=False)
    publisher.publish(1)


def test_a_live_gap_is_asked_for_at_once() -> None:
    def on_record(record: Record) -> None:
        got.records.append(record)
        if ends_answer(record, 0):
            publisher.when_subscribed(lambda: lossy(publisher))
        if ends_answer(record, 3):
            made.stop()

    got = Got()
    with Publisher() as publisher:
        made = Capture([publisher.target], seconds=DEADLINE, on_record=on_record)
        outcome = made.run()
    assert outcome.reason == "stopped"
    assert got.live() == [0, 1, 2, 5]
    assert got.asks() == [("start", 0), ("gap", 3)]
    assert seqs_of(got.answer("gap")) == [3, 4, 5, frames.END_SEQ]


def everything(got: Got) -> set[int]:
    """The seqs that came, live or replayed."""
    seqs = {seq for r in got.records if r.channel in ("live", "replay") for seq in seqs_of([r])}
    return seqs - {frames.END_SEQ}


def test_a_gap_right_before_the_end_of_listening_is_recovered_without_probes() -> None:
    def on_record(record: Record) -> None:
        got.records.append(record)
        if ends_answer(record, 0):
            publisher.when_subscribed(lambda: lossy(publisher))

    got = Got()
    with Publisher() as publisher:
        Capture([publisher.target], seconds=DEADLINE, batches=4, probe=False, on_record=on_record).run()
    assert got.live() == [0, 1, 2, 5]
    assert got.asks() == [("start", 0), ("gap", 3)]
    assert everything(got) == set(range(6))


def test_a_gap_during_the_probes_is_recovered() -> None:
    def on_record(record: Record) -> None:
        got.records.append(record)
        if words.parse(record.text)[1].get("kind") == "past-end":
            publisher.publish(2, live=False)
            publisher.publish()
            publisher.flush()

    got = Got()
    with Publisher() as publisher:
        publisher.when_subscribed(lambda: publisher.publish(3))
        Capture([publisher.target], seconds=DEADLINE, batches=3, malformed=False, on_record=on_record).run()
    assert got.live() == [0, 1, 2, 5]
    assert got.asks()[-1] == ("gap", 3)
    assert everything(got) == set(range(6))


def test_a_restarted_publisher_is_asked_from_0_again() -> None:
    got = Got()
    made: list[Capture] = []
    running: list[Publisher] = []

    def restart() -> None:
        first.__exit__()
        second = Publisher(endpoint=first.endpoint, replay_endpoint=first.replay_endpoint)
        second.publish(2, live=False)
        running.append(second.__enter__())
        second.when_subscribed(second.publish)

    def watch(record: Record) -> None:
        got.records.append(record)
        if record.channel == "live" and got.live() == [0, 1, 2, 3]:
            threading.Thread(target=restart, daemon=True).start()
        if record.channel == "replay" and ("gap", 0) in got.asks() and record.frames[-1] == b"":
            made[0].stop()

    first = Publisher().__enter__()
    try:
        first.when_subscribed(lambda: first.publish(4))
        made.append(Capture([first.target], seconds=DEADLINE, on_record=watch))
        outcome = made[0].run()
    finally:
        for publisher in running:
            publisher.__exit__()
    assert got.live() == [0, 1, 2, 3, 2]
    assert seqs_of(got.answer("gap")) == [0, 1, 2, frames.END_SEQ]
    heard = outcome.targets[0]
    assert (heard.disconnects, heard.reconnects, heard.cuts) == (1, 1, 0)
    assert any("was lost once and came back" in text for text in outcome.advice())


def test_a_replay_without_end_is_a_timeout_with_its_replies() -> None:
    with Publisher(Behaviour(ends=False)) as publisher:
        publisher.publish(2, live=False)
        publisher.when_subscribed(publisher.publish)
        got, outcome = capture(publisher.target, batches=1)
    timeouts = [fields for _, fields in got.notes(words.REPLAY_TIMEOUT)]
    assert [(f["kind"], f["start_seq"], f["replies"]) for f in timeouts if f["kind"] == "zero"] == [("zero", "0", "3")]
    assert got.notes(words.REPLAY_ABANDONED)
    assert "never finished an answer" in " ".join(outcome.advice())


def test_a_malformed_request_that_real_engines_survive() -> None:
    with Publisher() as publisher:
        publisher.when_subscribed(lambda: publisher.publish(2))
        got, _ = capture(publisher.target, batches=2)
    sent = [fields["form"] for _, fields in got.notes(words.REPLAY_MALFORMED_SENT)]
    assert sent == ["width", "undelimited", "frames"]
    assert got.notes(words.REPLAY_MALFORMED_ANSWERED) == [
        (words.REPLAY_MALFORMED_ANSWERED, {"form": "width", "replies": "1"})
    ]
    assert [fields["form"] for _, fields in got.notes(words.REPLAY_MALFORMED_UNANSWERED)] == ["undelimited", "frames"]
    assert not got.notes(words.REPLAY_TIMEOUT, words.REPLAY_ABANDONED)


@pytest.mark.parametrize("form", list(Form))
def test_a_malformed_request_that_kills_the_replay(form: Form) -> None:
    with Publisher(Behaviour(dies_of=frozenset([form]))) as publisher:
        publisher.when_subscribed(lambda: publisher.publish(2))
        got, _ = capture(publisher.target, batches=2)
    timeouts = got.notes(words.REPLAY_TIMEOUT)
    assert [(fields["kind"], fields["form"]) for _, fields in timeouts] == [("after-malformed", form.value)]
    assert got.notes(words.REPLAY_MALFORMED_SENT)[-1][1]["form"] == form.value


def test_a_late_answer_is_not_taken_for_that_of_the_next_ask() -> None:
    with Publisher(Behaviour(late=1)) as publisher:
        publisher.publish(4, live=False)
        got, _ = capture(publisher.target, seconds=0.3, malformed=False)
    timeouts = [(fields["kind"], fields["replies"]) for _, fields in got.notes(words.REPLAY_TIMEOUT)]
    assert timeouts == [("zero", "0")]
    assert seqs_of(got.answer("middle")) == [2, 3, frames.END_SEQ]


def test_probes_can_be_left_out() -> None:
    with Publisher() as publisher:
        publisher.when_subscribed(publisher.publish)
        got, _ = capture(publisher.target, batches=1, probe=False)
    assert {kind for kind, _ in got.asks()} <= {"start", "gap"}


def test_live_goes_on_while_probing() -> None:
    def on_record(record: Record) -> None:
        got.records.append(record)
        if words.parse(record.text) == (words.REPLAY_ASK, {"kind": "past-end", "start_seq": "1000"}):
            publisher.publish(1001)

    got = Got()
    with Publisher() as publisher:
        publisher.when_subscribed(publisher.publish)
        Capture([publisher.target], seconds=DEADLINE, batches=1, replay_timeout=PATIENCE, on_record=on_record).run()
    assert len(got.live()) == 1002
    assert ("after-frames", 1001) in got.asks()


def test_a_replay_endpoint_that_is_not_there() -> None:
    with Publisher() as publisher:
        publisher.when_subscribed(publisher.publish)
        got, outcome = capture(Target(publisher.endpoint, f"tcp://127.0.0.1:{free_port()}"), batches=1)
    assert got.live() == [0]
    assert got.notes(words.REPLAY_NEVER_CONNECTED) == [(words.REPLAY_NEVER_CONNECTED, {})]
    assert not [record for record in got.records if record.channel == "replay-request"]
    assert outcome.targets[0].replay_connected is False
    assert "the replay endpoint was never connected" in outcome.advice()[0]
    assert "nothing listens" in outcome.advice()[0]


def test_a_publisher_that_dies_is_not_taken_for_one_that_does_not_answer() -> None:
    def on_record(record: Record) -> None:
        got.records.append(record)
        if words.parse(record.text)[0] == words.CAPTURE_END:
            publisher.__exit__()

    got = Got()
    publisher = Publisher().__enter__()
    publisher.when_subscribed(publisher.publish)
    Capture([publisher.target], seconds=DEADLINE, batches=1, replay_timeout=PATIENCE, on_record=on_record).run()
    assert got.notes(words.REPLAY_LOST, words.REPLAY_TIMEOUT, words.REPLAY_ABANDONED)
    assert got.notes(words.REPLAY_DISCONNECTED)


# Silence ---------------------------------------------------------------------------------------------------------------


def advice_on(outcome: Outcome) -> str:
    assert len(outcome.targets) == 1
    return " ".join(outcome.advice(outcome.targets[0].target))


def test_never_connected() -> None:
    target = Target(f"tcp://127.0.0.1:{free_port()}")
    got, outcome = capture(target, seconds=0.3)
    assert outcome.unreachable == outcome.targets
    assert not outcome.targets[0].silent
    assert outcome.targets[0].reach == "refused"
    assert "nothing listens at port" in advice_on(outcome)
    assert "--bind" in advice_on(outcome)
    assert got.notes(words.LIVE_CONNECTED) == []


def test_a_host_that_cannot_be_looked_up() -> None:
    _, outcome = capture(Target("tcp://no-such-host.invalid:5557"), seconds=0.2)
    assert outcome.unreachable
    # Without any name server the look-up itself hangs, which is a timeout.
    assert outcome.targets[0].reach in ("no-such-host", "timeout")
    assert "no-such-host.invalid" in advice_on(outcome)


def test_an_ipc_path_without_a_publisher() -> None:
    _, outcome = capture(Target("ipc:///nonexistent/kv.sock"), seconds=0.2)
    assert outcome.unreachable
    assert "no publisher at /nonexistent/kv.sock" in advice_on(outcome)


def test_connected_but_silent() -> None:
    with Publisher() as publisher:
        got, outcome = capture(Target(publisher.endpoint), seconds=0.3)
    heard = outcome.targets[0]
    assert (heard.connected, heard.unreachable, heard.silent) == (True, False, True)
    assert "connected and silent" in advice_on(outcome)
    assert "slow joiner" in advice_on(outcome)
    assert got.notes(words.LIVE_CONNECTED)


def test_a_publisher_that_goes_away_is_not_cut_off_by_this_side() -> None:
    def on_record(record: Record) -> None:
        got.records.append(record)
        if record.channel == "live":
            publisher.__exit__()

    got = Got()
    publisher = Publisher().__enter__()
    publisher.when_subscribed(publisher.publish)
    outcome = Capture([Target(publisher.endpoint)], seconds=2 * CUT_GRACE, on_record=on_record).run()
    heard = outcome.targets[0]
    assert (heard.messages, heard.disconnects, heard.cuts) == (1, 1, 0)
    assert not got.notes(words.LIVE_CUT)
    assert "was lost once and did not come back" in advice_on(outcome)


def test_silent_but_with_a_replay_that_holds_batches() -> None:
    with Publisher() as publisher:
        publisher.publish(4, live=False)
        got, outcome = capture(publisher.target, seconds=0.3, malformed=False)
    assert outcome.targets[0].silent
    assert "published before" in advice_on(outcome)
    assert [kind for kind, _ in got.asks()] == ["start", "zero", "middle", "last", "past-end"]


def test_nothing_published_at_all_is_still_probed() -> None:
    with Publisher() as publisher:
        got, _ = capture(publisher.target, seconds=0.3)
    assert got.asks() == [
        ("start", 0),
        ("zero", 0),
        ("past-end", 999),
        ("after-width", 0),
        ("after-undelimited", 0),
        ("after-frames", 0),
    ]


@pytest.mark.parametrize("replay", [True, False])
def test_a_topic_that_nothing_matches(replay: bool) -> None:
    done = threading.Event()

    def steadily() -> None:
        while not done.wait(0.05):
            publisher.publish()

    with Publisher(topic=b"kv@pod1@model") as publisher:
        publishing = publisher.when_subscribed(steadily)
        target = publisher.target if replay else Target(publisher.endpoint)
        got, outcome = capture(target, seconds=0.4, topic="kv@pod2", malformed=False)
        done.set()
        publishing.join(DEADLINE)
    assert not [record for record in got.records if record.channel == "live"]
    assert outcome.targets[0].silent
    assert outcome.targets[0].topics == ["kv@pod1@model"]
    assert "no message matches the topic 'kv@pod2'; the publisher's topic is 'kv@pod1@model'" in advice_on(outcome)


def test_a_topic_filter_that_matches_the_beginning() -> None:
    with Publisher(topic=b"kv@pod1@model") as publisher:
        publisher.when_subscribed(lambda: publisher.publish(2))
        got, outcome = capture(Target(publisher.endpoint), batches=2, topic="kv@pod1")
    assert got.live() == [0, 1]
    assert outcome.advice() == []


def test_the_replay_endpoint_given_as_the_live_one() -> None:
    with Publisher() as publisher:
        _, outcome = capture(Target(publisher.replay_endpoint), seconds=0.3)
    assert outcome.unreachable
    assert "no PUB socket. Is it the replay endpoint" in advice_on(outcome)


def test_a_port_that_does_not_speak_zmtp() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        _, outcome = capture(Target(f"tcp://127.0.0.1:{other.getsockname()[1]}"), seconds=0.3)
    assert outcome.unreachable
    assert "does not speak ZMTP" in advice_on(outcome)


def test_nobody_connects_to_a_bound_endpoint() -> None:
    _, outcome = capture(Target(f"tcp://127.0.0.1:{free_port()}"), seconds=0.2, bind=True)
    assert outcome.unreachable
    assert "no publisher connected" in advice_on(outcome)


# Limits ----------------------------------------------------------------------------------------------------------------


def test_a_message_above_the_limit_cuts_the_connection_and_is_reported() -> None:
    def on_record(record: Record) -> None:
        got.records.append(record)
        if record.text == words.LIVE_CUT:
            publisher.subscribed.clear()
            publisher.when_subscribed(publisher.publish)

    def publish() -> None:
        publisher.publish()
        publisher.send(frames.pack_live(b"", 1, b"x" * 5000))

    got = Got()
    with Publisher() as publisher:
        publisher.when_subscribed(publish)
        made = Capture([Target(publisher.endpoint)], seconds=DEADLINE, batches=2, max_payload=1000, on_record=on_record)
        outcome = made.run()
    assert got.live() == [0, 1]
    assert (outcome.targets[0].cuts, outcome.targets[0].reconnects) == (1, 1)
    assert "more than 1000 bytes" in advice_on(outcome)


def test_the_byte_limit_ends_a_capture_without_probes() -> None:
    with Publisher() as publisher:
        publisher.when_subscribed(lambda: publisher.publish(100))
        got, outcome = capture(publisher.target, max_bytes=500)
    assert outcome.reason == "bytes"
    size = sum(len(frame) for r in got.records if r.channel in ("live", "replay") for frame in r.frames)
    assert 500 <= size < 600
    assert not [kind for kind, _ in got.asks() if kind not in ("start", "gap")]


def test_records_are_handed_on_one_by_one_and_not_kept() -> None:
    with Publisher() as publisher:
        publisher.when_subscribed(lambda: publisher.publish(2000))
        made = Capture([Target(publisher.endpoint)], seconds=DEADLINE)
        records = made.records()
        seen = 0
        for record in records:
            if record.channel == "live":
                seen += 1
                if seen == 1000:
                    break
        assert made.outcome.targets[0].messages == 1000
        records.close()  # type: ignore[attr-defined]
        assert made.outcome.seconds > 0


# Stopping --------------------------------------------------------------------------------------------------------------


def test_stop_from_another_thread_while_nothing_comes() -> None:
    with Publisher() as publisher:
        made = Capture([publisher.target], seconds=None)
        publisher.when_subscribed(made.stop)
        outcome = made.run()
    assert outcome.interrupted
    assert outcome.targets[0].connected


def test_stop_from_a_signal_handler_with_what_was_seen() -> None:
    def publish_and_ring() -> None:
        publisher.publish(3)
        signal.setitimer(signal.ITIMER_REAL, 0.3)

    got = Got()
    with Publisher() as publisher:
        made = Capture([publisher.target], seconds=None, on_record=got.records.append)
        before = signal.signal(signal.SIGALRM, lambda *_: made.stop())
        try:
            publisher.when_subscribed(publish_and_ring)
            outcome = made.run()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
    assert outcome.interrupted
    assert got.live() == [0, 1, 2]
    assert not [kind for kind, _ in got.asks() if kind not in ("start", "gap")]
    assert got.notes(words.CAPTURE_END) == [(words.CAPTURE_END, {"reason": "stopped"})]


def test_stop_in_the_middle_of_the_probes() -> None:
    def on_record(record: Record) -> None:
        got.records.append(record)
        if words.parse(record.text)[1].get("kind") == "middle":
            made.stop()

    got = Got()
    with Publisher() as publisher:
        publisher.when_subscribed(lambda: publisher.publish(4))
        made = Capture([publisher.target], seconds=DEADLINE, batches=4, on_record=on_record)
        outcome = made.run()
    assert outcome.interrupted
    assert got.asks()[-1][0] == "middle"


def test_an_error_of_the_callback_closes_the_sockets() -> None:
    def refuse(record: Record) -> None:
        if record.channel == "live":
            raise RuntimeError("enough")

    endpoint = f"tcp://127.0.0.1:{free_port()}"
    with Publisher(endpoint=endpoint, connect=True) as publisher:
        publisher.when_subscribed(publisher.publish)
        with pytest.raises(RuntimeError, match="enough"):
            Capture([Target(endpoint)], seconds=DEADLINE, bind=True, on_record=refuse).run()
    _bindable(endpoint)


def _bindable(endpoint: str) -> None:
    deadline = time.monotonic() + DEADLINE
    with zmq.Context() as context:
        while True:
            try:
                with context.socket(zmq.SUB) as again:
                    again.bind(endpoint)
                return
            except zmq.ZMQError:
                assert time.monotonic() < deadline, "the endpoint is still bound"


# Usage -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("targets", "options", "says"),
    [
        ([], {}, "nothing to listen to"),
        ([Target("tcp://*:5557")], {}, "tcp://127.0.0.1:5557"),
        ([Target("host:5557")], {}, "write tcp://host:5557"),
        ([Target("tcp://a:1"), Target("tcp://a:1")], {}, "given twice"),
        ([Target("tcp://a:1", "tcp://a:1")], {}, "two sockets"),
        ([Target("tcp://a:1", "tcp://*:2")], {}, "not an address to connect to"),
        ([Target("tcp://a:1")], {"seconds": 0}, "seconds must be more than 0"),
        ([Target("tcp://a:1")], {"batches": 0}, "batches must be"),
        ([Target("tcp://a:1")], {"replay_timeout": -1}, "replay_timeout must be"),
    ],
)
def test_usage(targets: list[Target], options: dict[str, float], says: str) -> None:
    with pytest.raises(UsageError, match=says.replace("*", r"\*")):
        Capture(targets, **options)  # type: ignore[arg-type]


def test_an_endpoint_that_is_taken_cannot_be_bound() -> None:
    with Publisher() as publisher:
        made = Capture([Target(publisher.endpoint)], seconds=1, bind=True)
        with pytest.raises(UsageError, match="something listens there already"):
            made.run()


def test_a_capture_runs_once() -> None:
    made = Capture([Target(f"tcp://127.0.0.1:{free_port()}")], seconds=0.01)
    made.run()
    with pytest.raises(UsageError, match="runs once"):
        made.run()


# What to ask, without sockets ------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 6)), max_size=30))
def test_the_first_gap_is_the_first_one(spans: list[tuple[int, int]]) -> None:
    seqs = Seqs()
    known: set[int] = set()
    for first, length in spans:
        seqs.settle(first, first + length - 1)
        known.update(range(first, first + length))
        missing = [seq for seq in range(min(known, default=0), max(known, default=0)) if seq not in known]
        assert seqs.gap() == (missing[0] if missing else None)


def test_gaps_that_are_kept_are_bounded() -> None:
    seqs = Seqs()
    for seq in range(0, 4 * MAX_SPANS, 2):
        seqs.live(seq, reconnected=False)
    gap = seqs.gap()
    assert gap == 2 * MAX_SPANS + 1


def test_asks_about_gaps_are_bounded_and_the_rest_is_given_up() -> None:
    asks = Asks(Seqs())
    start = asks.while_listening()
    assert start is not None
    assert start.kind is Kind.START
    asks.done(start)
    asked = []
    for seq in range(0, 4 * MAX_GAP_ASKS, 2):
        asks.seqs.live(seq, reconnected=False)
        ask = asks.while_listening()
        if ask is not None:
            asked.append(ask.start_seq)
            asks.done(ask)
    assert asked == [2 * n + 1 for n in range(MAX_GAP_ASKS)]
    assert asks.given_up() is not None
    assert asks.given_up() is None


def test_what_an_answer_left_out_is_not_asked_for_again() -> None:
    asks = Asks(Seqs())
    start = asks.while_listening()
    assert start is not None
    asks.done(start)
    asks.seqs.live(0, reconnected=False)
    asks.seqs.live(5, reconnected=False)
    ask = asks.while_listening()
    assert ask is not None
    assert (ask.kind, ask.start_seq) == (Kind.GAP, 1)
    asks.done(ask)
    assert asks.while_listening() is None


def test_a_duplicate_is_no_restart_but_a_fall_after_a_reconnection_is() -> None:
    seqs = Seqs()
    for seq in (4, 5, 6, 5):
        seqs.live(seq, reconnected=False)
    assert (seqs.run, seqs.newest, seqs.gap()) == (0, 6, None)
    seqs.live(2, reconnected=True)
    assert (seqs.run, seqs.oldest, seqs.newest, seqs.gap()) == (1, 2, 2, 0)
    seqs.live(0, reconnected=False)
    assert (seqs.run, seqs.newest, seqs.gap()) == (2, 0, None)


def test_a_past_end_ask_stays_ahead_of_a_fast_publisher() -> None:
    asks = Asks(Seqs())
    asks.seqs.live(10, reconnected=False)
    asks.peak = 5000.0
    starts = {ask.kind: ask.start_seq for ask in asks.probes(malformed=False, horizon=10.0)}
    assert starts[Kind.PAST_END] == 10 + 50_000


def test_no_past_end_ask_where_there_is_no_seq_past_the_end() -> None:
    asks = Asks(Seqs())
    asks.seqs.live(frames.MAX_SEQ, reconnected=False)
    kinds = [ask.kind for ask in asks.probes(malformed=False, horizon=1.0)]
    assert kinds == [Kind.ZERO, Kind.MIDDLE, Kind.LAST]


@given(st.sampled_from(["replay-ask", "live-cut"]), st.dictionaries(st.sampled_from(["kind", "n"]), st.integers()))
def test_notes_are_read_as_they_are_written(word: str, fields: dict[str, int]) -> None:
    assert words.parse(words.note(word, **fields)) == (word, {key: str(value) for key, value in fields.items()})


@pytest.fixture(autouse=True)
def _no_thread_is_left_behind() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    deadline = time.monotonic() + DEADLINE
    while left := [t for t in threading.enumerate() if t not in before and t.is_alive()]:
        left[0].join(0.05)
        assert time.monotonic() < deadline, left
