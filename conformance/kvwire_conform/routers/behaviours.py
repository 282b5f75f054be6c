"""What a whole router does about a gap, a replay, a restart and a duplicate (spec/transport.md)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import zmq

from kvwire.dialects import Framing
from kvwire.events import BlockRemoved, BlockStored, EventBatch
from kvwire.zmq.frames import pack_live, pack_replay, pack_replay_end
from kvwire_conform.consumer_model import Behaviour
from kvwire_conform.model import Verdict
from kvwire_conform.routers.http import Held
from kvwire_conform.routers.run import RouterRun
from kvwire_conform.routers.trial import encode_plain, wait_for

__all__ = ["BEHAVIOURS", "run_behaviours"]

BLOCK_SIZE = 4
END_PATIENCE = 10.0
"""Seconds that a consumer gets to give up on an answer without an end marker; its deadline is its own choice, but no
router can go without its live batches for longer."""
_EVIDENCE = 8
_QUIET = ("INFO", "DEBUG", "TRACE")


@dataclass
class _Engine:
    """A publisher that a router is registered with, and its replay endpoint; single-threaded: it answers while it waits."""

    run: RouterRun
    model: str
    instance: int
    live: zmq.Socket[bytes]
    replay: zmq.Socket[bytes] | None = None
    framing: Framing = Framing.SEQ_PAYLOAD
    end: bool = True
    kept: dict[int, bytes] = field(default_factory=dict)
    requests: int = 0

    def batch(self, seq: int, *events: BlockStored | BlockRemoved, lost: bool = False) -> None:
        """Publish a batch; ``lost``: keep it for replay alone, as if the network had lost it."""
        payload = encode_plain(EventBatch(1.5, list(events), 0))
        self.kept[seq] = payload
        if not lost:
            self.live.send_multipart(pack_live("", seq, payload))

    def store(self, seq: int, block: int, *, lost: bool = False) -> None:
        """Publish a batch of one root block."""
        self.batch(seq, _stored(block), lost=lost)

    def held(self) -> set[int]:
        """Hashes of the blocks that the router holds of it, after its questions were answered."""
        self._answer()
        found: list[Held] = self.run.site.client.held(self.instance, self.model)
        return {block.block_hash for block in found}

    def wait(self, enough: Callable[[set[int]], bool], patience: float | None = None) -> set[int]:
        """What it holds, as soon as it is enough or the patience is over."""
        return wait_for(self.held, enough, self.run.patience if patience is None else patience)

    def _answer(self) -> None:
        while self.replay is not None and self.replay.poll(0):
            frames = self.replay.recv_multipart()
            if len(frames) != 3:
                continue
            self.requests += 1
            start = int.from_bytes(frames[2], "big")
            for seq, payload in sorted(self.kept.items()):
                if seq >= start:
                    self.replay.send_multipart([frames[0], *pack_replay(self.framing, "", seq, payload)])
            if self.end:
                self.replay.send_multipart([frames[0], *pack_replay_end(self.framing)])


@contextlib.contextmanager
def _engine(run: RouterRun, framing: Framing | None = None, *, end: bool = True) -> Iterator[_Engine]:
    site = run.site
    instance, model = site.new_instance()
    with contextlib.ExitStack() as stack:
        replay: zmq.Socket[bytes] | None = None
        endpoint: str | None = None
        if framing is not None:
            replay = stack.enter_context(contextlib.closing(site.context.socket(zmq.ROUTER)))
            replay.setsockopt(zmq.LINGER, 0)
            endpoint = f"tcp://{site.host}:{replay.bind_to_random_port(f'tcp://{site.host}')}"
        live = stack.enter_context(site.publisher(instance, model, BLOCK_SIZE, endpoint))
        yield _Engine(run, model, instance, live, replay, framing or Framing.SEQ_PAYLOAD, end)


def _stored(block: int) -> BlockStored:
    return BlockStored([block], None, [100 * block + offset for offset in range(BLOCK_SIZE)], BLOCK_SIZE, medium="GPU")


_Told = tuple[Verdict, str]


def _gap_without_replay(run: RouterRun) -> _Told:
    with _engine(run) as engine:
        engine.store(0, 1)
        if engine.wait(lambda held: held == {1}) != {1}:
            return _no_start()
        engine.store(1, 2, lost=True)
        engine.store(2, 3)
        held = engine.wait(lambda held: 3 in held)
    if 3 not in held:
        return Verdict.FAIL, f"it applies nothing after the hole; it holds {_blocks(held)}"
    if 1 in held:
        return Verdict.FAIL, (
            f"it goes on with what it knew, though the lost batch may have removed any of it; it holds {_blocks(held)}"
        )
    return Verdict.PASS, f"it forgot what it knew, and holds {_blocks(held)}"


def _replay(framing: Framing) -> Callable[[RouterRun], _Told]:
    def judge(run: RouterRun) -> _Told:
        with _engine(run, framing) as engine:
            engine.store(0, 1)
            if engine.wait(lambda held: held == {1}) != {1}:
                return _no_start()
            engine.store(1, 2, lost=True)
            engine.store(2, 3, lost=True)
            engine.store(3, 4)
            held = engine.wait(lambda held: held >= {1, 2, 3, 4} or (bool(engine.requests) and 4 in held))
            asked = engine.requests
        if held >= {1, 2, 3, 4}:
            return Verdict.PASS, f"it asked, and holds what was lost: {_blocks(held)}"
        if not asked:
            return Verdict.FAIL, f"it did not ask the replay endpoint; it holds {_blocks(held)}"
        if held == {4}:
            return Verdict.PASS, "it asked, could not read the answer, and forgot what it knew"
        return Verdict.FAIL, f"it asked, and did not take the answer: it holds {_blocks(held)} of blocks 1 to 4"

    return judge


def _replay_end_lost(run: RouterRun) -> _Told:
    for framing in (Framing.TOPIC_SEQ_PAYLOAD, Framing.SEQ_PAYLOAD):
        with _engine(run, framing, end=False) as engine:
            engine.store(0, 1)
            if engine.wait(lambda held: held == {1}) != {1}:
                return _no_start()
            engine.store(1, 2, lost=True)
            engine.store(2, 3)
            took = engine.wait(lambda held: 2 in held or (bool(engine.requests) and 3 in held))
            if 2 not in took:
                continue
            engine.store(3, 4)
            held = engine.wait(lambda held: 4 in held, END_PATIENCE)
        if 4 in held:
            return Verdict.PASS, f"it went on without the end marker ({framing.value}); it holds {_blocks(held)}"
        return Verdict.FAIL, (
            f"it waits for the end marker and reads no live batch for {END_PATIENCE:g} s ({framing.value}): "
            f"it holds {_blocks(held)}, and not block 4"
        )
    return Verdict.INCONCLUSIVE, "it took no answer of either framing"


def _restart(run: RouterRun) -> _Told:
    with _engine(run) as engine:
        for seq in range(4):
            engine.store(seq, 1 + seq)
        if engine.wait(lambda held: held == {1, 2, 3, 4}) != {1, 2, 3, 4}:
            return _no_start()
        # The new life of the publisher: other content under seqs that were there, then past the last one.
        for seq in range(4):
            engine.store(seq, 11 + seq)
        engine.store(4, 15)
        held = engine.wait(lambda held: 15 in held)
    if 15 not in held:
        return Verdict.FAIL, f"it applies nothing of the new publisher; it holds {_blocks(held)}"
    fresh, stale = {11, 12, 13, 14} & held, {1, 2, 3, 4} & held
    words = [
        "it took the new publisher's batches" if len(fresh) == 4 else f"of blocks 11 to 14 it holds {_blocks(fresh)}",
        f"of the old publisher it still credits {_blocks(stale)}" if stale else "it forgot the old publisher",
    ]
    text = ", and ".join(words)
    if fresh == {11, 12, 13, 14} and not stale:
        return Verdict.PASS, text
    return Verdict.FAIL, f"{text}; a batch past the old seq is applied again"


def _duplicate(run: RouterRun) -> _Told:
    with _engine(run) as engine:
        engine.store(0, 1)
        engine.batch(1, BlockRemoved([1], medium="GPU"))
        engine.live.send_multipart(pack_live("", 0, engine.kept[0]))
        engine.store(2, 2)
        held = engine.wait(lambda held: 2 in held)
    if 2 not in held:
        return Verdict.FAIL, f"it applies nothing after the duplicate; it holds {_blocks(held)}"
    if 1 in held:
        return Verdict.FAIL, "it applied the duplicate: a block that was removed is there again"
    return Verdict.PASS, "it passed over the duplicate and went on"


def _no_start() -> _Told:
    return Verdict.INCONCLUSIVE, "it did not even apply the first batch"


def _blocks(held: set[int]) -> str:
    return f"blocks {', '.join(map(str, sorted(held)))}" if held else "no block"


@dataclass(frozen=True)
class _Situation:
    text: str
    judge: Callable[[RouterRun], _Told]


BEHAVIOURS: Mapping[str, _Situation] = MappingProxyType(
    {
        "gap-no-replay": _Situation(
            "a batch is lost and there is no replay endpoint: it forgets what it knew", _gap_without_replay
        ),
        "replay-seq-payload": _Situation(
            "batches are lost and the replay answers with seq and payload: it asks and applies them",
            _replay(Framing.SEQ_PAYLOAD),
        ),
        "replay-topic-seq-payload": _Situation(
            "batches are lost and the replay answers with topic, seq and payload: it asks and applies them",
            _replay(Framing.TOPIC_SEQ_PAYLOAD),
        ),
        "replay-end-lost": _Situation(
            "the end marker of a replay is lost: it sets a deadline and goes on with live batches", _replay_end_lost
        ),
        "restart": _Situation(
            "the publisher starts anew at seq 0 with other content: it forgets the old one and follows the new",
            _restart,
        ),
        "duplicate": _Situation("the same seq comes twice with the same bytes: it applies it once", _duplicate),
    }
)
"""Each situation by its id (spec/transport.md#sequence-numbers and #replay)."""


def run_behaviours(run: RouterRun, found: list[Behaviour]) -> None:
    """Put a router into each situation; what it does is added to ``found`` as soon as it is known.

    Raises:
        RouterError: the router does not answer any more.
    """
    for ident, situation in BEHAVIOURS.items():
        mark = run.mark()
        verdict, words = situation.judge(run)
        log = [line.message for line in run.since(mark) if line.level not in _QUIET]
        evidence = tuple(dict.fromkeys(log))[:_EVIDENCE]
        found.append(Behaviour(id=ident, text=situation.text, verdict=verdict, found=words, evidence=evidence))
