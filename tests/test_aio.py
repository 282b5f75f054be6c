"""The asyncio subscriber: the same items as the synchronous one, and a good citizen of its loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any

import pytest

from kvwire.errors import UsageError
from kvwire.stream import Batch, Item, Limits, Restarted
from kvwire.zmq.aio import AsyncSubscriber
from kvwire.zmq.endpoints import EndpointError
from kvwire.zmq.server_info import DiscoveryError
from kvwire.zmq.subscriber import ClosedError
from tests.ledger import Ledger
from tests.test_subscriber import BLOCK, as_json, http_server
from tests.wire_engine import TOPIC, Engine

QUICK = Limits(silence=0.5, quiet=0.3, attempts=3, cooldown=0.2)
DEADLINE = 30.0


def run(main: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(main, DEADLINE))


async def read(subscriber: AsyncSubscriber, ledger: Ledger, until: int) -> None:
    while ledger.covered != until:
        item = await subscriber.next()
        assert item is not None
        ledger.enter(item)


def test_everything_once_in_order() -> None:
    ledger = Ledger()

    async def main(engine: Engine) -> None:
        async with AsyncSubscriber(
            engine.endpoint, replay=engine.replay_endpoint, start="replay", limits=QUICK
        ) as subscriber:
            await read(subscriber, ledger, 500)
            engine.publish(20_000, drop=0.02)
            await read(subscriber, ledger, 20_500)
            assert subscriber.sources == [engine.endpoint]
            assert subscriber.stats[engine.endpoint].replayed > 500

    with Engine(ring=30_000) as engine:
        engine.publish_and_wait(500)
        run(main(engine))
    assert (ledger.yielded, ledger.lost, ledger.restarts) == (20_500, [], 0)


def test_iteration_and_a_restart() -> None:
    items: list[Item] = []

    async def main() -> None:
        with Engine() as engine:
            engine.publish_and_wait(2)
            subscriber = AsyncSubscriber(
                engine.endpoint, replay=engine.replay_endpoint, start="replay", limits=QUICK, reconnect_max=0.1
            )
            async for item in subscriber:
                items.append(item)
                if len(items) == 2:
                    break
            ports = engine.ports
        with Engine(life=1, ports=ports) as engine:
            engine.publish_and_wait(2)
            async for item in subscriber:
                items.append(item)
                if len(items) == 5:
                    subscriber.close()
        await subscriber.aclose()

    run(main())
    assert isinstance(items[2], Restarted)
    assert [item.seq for item in items if isinstance(item, Batch)] == [0, 1, 0, 1]


def test_a_wait_that_times_out_or_is_cancelled_loses_nothing() -> None:
    ledger = Ledger()

    async def main(engine: Engine) -> None:
        async with AsyncSubscriber(
            engine.endpoint, replay=engine.replay_endpoint, start="replay", limits=QUICK
        ) as subscriber:
            assert await subscriber.next(0) is None
            assert await subscriber.next(0.05) is None
            engine.publish(2000, pause=0.0002)
            while ledger.covered != 2000:
                waiting = asyncio.ensure_future(subscriber.next())
                await asyncio.sleep(0)
                waiting.cancel()
                try:
                    item = await waiting
                except asyncio.CancelledError:
                    item = await subscriber.next(0.5)
                if item is not None:
                    ledger.enter(item)

    with Engine() as engine:
        run(main(engine))
    assert (ledger.yielded, ledger.lost_count) == (2000, 0)


def test_a_stream_without_pause_leaves_the_loop_to_others() -> None:
    turns = 0

    async def main(engine: Engine) -> None:
        nonlocal turns
        stop = False

        async def other() -> None:
            nonlocal turns
            while not stop:
                turns += 1
                await asyncio.sleep(0)

        async with AsyncSubscriber(engine.endpoint, replay=engine.replay_endpoint, start="replay") as subscriber:
            task = asyncio.ensure_future(other())
            await read(subscriber, Ledger(), 10_000)
            stop = True
            await task

    with Engine() as engine:
        engine.publish_and_wait(10_000)
        run(main(engine))
    assert turns >= 20


def test_many_sources_wait_on_one_descriptor() -> None:
    engines = [Engine(life=number) for number in range(4)]

    async def main() -> None:
        subscriber = AsyncSubscriber(
            [engine.endpoint for engine in engines],
            replay=[engine.replay_endpoint for engine in engines],
            start="replay",
            limits=QUICK,
        )
        async with subscriber:
            ledgers = {engine.endpoint: Ledger() for engine in engines}
            for engine in engines:
                engine.publish(50, pause=0.002)
            while any(ledger.covered != 50 for ledger in ledgers.values()):
                item = await subscriber.next()
                assert item is not None
                ledgers[item.source].enter(item)
        assert [ledgers[engine.endpoint].lives for engine in engines] == [[0], [1], [2], [3]]

    for engine in engines:
        engine.__enter__()
    try:
        run(main())
    finally:
        for engine in engines:
            engine.__exit__()


def test_closing_wakes_who_waits() -> None:
    async def main(engine: Engine) -> None:
        subscriber = AsyncSubscriber(engine.endpoint)
        waiting = asyncio.ensure_future(subscriber.next())
        await asyncio.sleep(0.05)
        assert not waiting.done()
        with pytest.raises(UsageError, match="another task waits"):
            await subscriber.next()
        subscriber.close()
        subscriber.close()
        with pytest.raises(ClosedError):
            await waiting
        with pytest.raises(ClosedError):
            await subscriber.next()
        assert [item async for item in subscriber] == []

    with Engine() as engine:
        run(main(engine))


def test_errors_are_those_of_the_subscriber() -> None:
    with pytest.raises(EndpointError):
        AsyncSubscriber("tcp://*:5557")
    assert AsyncSubscriber("http://127.0.0.1:9").sources == []

    async def main() -> None:
        subscriber = AsyncSubscriber("http://127.0.0.1:9")
        with pytest.raises(DiscoveryError):
            await subscriber.next()
        assert subscriber.stats == {}
        subscriber.close()

    run(main())


def test_a_server_is_asked_without_holding_up_the_loop() -> None:
    async def main(engine: Engine) -> None:
        block = {**BLOCK, "endpoint_port_base": engine.ports[0], "replay_endpoint_port_base": engine.ports[1]}
        block |= {"dp_size": 1, "topic": TOPIC.decode()}
        asked, go_on = threading.Event(), threading.Event()

        def answer(handler: Any) -> None:
            asked.set()
            assert go_on.wait(10)
            as_json({"kv_events": block})(handler)

        with http_server(answer) as url:
            # Given up while the server is asked: what comes of it is closed.
            abandoned = AsyncSubscriber(url, start="replay")
            waiting = asyncio.ensure_future(abandoned.next())
            while not asked.is_set():
                await asyncio.sleep(0.01)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            abandoned.close()
            go_on.set()
            async with AsyncSubscriber(url, start="replay") as subscriber:
                await read(subscriber, Ledger(), 3)

    with Engine() as engine:
        engine.publish_and_wait(3)
        run(main(engine))
