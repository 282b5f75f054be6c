"""Run the real ``ZmqEventPublisher`` of a release, driven by JSON lines. A script for `tests.real.driver`.

Started as ``python publisher_process.py ENGINE VERSION OPTIONS`` (OPTIONS: the constructor's keyword arguments as JSON,
``dp_rank`` standing for the engine's own name of it). It answers on stdout, one JSON object a line:

- first ``{"endpoint": …, "replay_endpoint": …}``: what the sockets are bound to; null for one that is not bound;
- to ``{"op": "publish", "ts": 1.5, "dp_rank": null, "events": [["BlockStored", {…}], …]}``: ``{"seq": 0, "payload":
  "93cb…"}`` once the publisher's thread has sent it. ``{"$bytes": "00ff"}`` stands for a byte string;
- to ``{"op": "quit"}``, or to the end of stdin: it shuts the publisher down and exits with 0;
- ``{"error": …}`` for what went wrong; it goes on where it can.
"""

from __future__ import annotations

import atexit
import inspect
import json
import os
import sys
import time
from typing import Any

import zmq

from kvwire_conform.releases import ReleaseError, ReleaseStructs, fetch_module, load_structs

SEND_DEADLINE = 5.0


def main(engine: Any, version: str, options: dict[str, Any]) -> int:
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    # Whatever an engine prints must not get between the answers.
    os.dup2(2, 1)

    def answer(**fields: Any) -> None:
        answers.write(json.dumps(fields) + "\n")
        answers.flush()

    try:
        structs = load_structs(fetch_module(engine, version))
        publisher = _publisher(structs, options)
    except (ReleaseError, zmq.ZMQError, OSError, ValueError) as error:
        answer(error=f"{type(error).__name__}: {error}")
        return 1
    answer(endpoint=_bound(publisher._pub), replay_endpoint=_bound(publisher._replay))
    for line in sys.stdin:
        command = json.loads(line, object_hook=_bytes)
        if command["op"] == "quit":
            break
        try:
            answer(**_publish(structs, publisher, command))
        except (ReleaseError, RuntimeError, TypeError, ValueError) as error:
            answer(error=f"{type(error).__name__}: {error}")
    publisher.shutdown()
    # SGLang registers shutdown at exit as well, and a second one waits for a queue that nobody empties any more.
    atexit.unregister(publisher.shutdown)
    return 0


def _publisher(structs: ReleaseStructs, options: dict[str, Any]) -> Any:
    known = inspect.signature(structs.module.ZmqEventPublisher).parameters
    given = dict(options)
    rank = given.pop("dp_rank", 0)
    name = next((name for name in ("attn_dp_rank", "data_parallel_rank") if name in known), None)
    if name is not None:
        given[name] = rank
    elif rank:
        raise ValueError(f"{structs.source.release}: its publisher has no DP rank")
    unknown = [key for key in given if key not in known]
    if unknown:
        raise ValueError(f"{structs.source.release}: its publisher takes no {', '.join(unknown)}; only {list(known)}")
    return structs.module.ZmqEventPublisher(**given)


def _publish(structs: ReleaseStructs, publisher: Any, command: dict[str, Any]) -> dict[str, Any]:
    events = [structs.event(tag, **fields) for tag, fields in command["events"]]
    waiting = publisher._event_queue.unfinished_tasks
    publisher.publish(structs.batch(command["ts"], events, dp_rank=command["dp_rank"]))
    deadline = time.monotonic() + SEND_DEADLINE
    while publisher._event_queue.unfinished_tasks > waiting:
        if time.monotonic() > deadline:
            raise RuntimeError(f"the publisher's thread did not send the batch within {SEND_DEADLINE:g} s; see stderr")
        time.sleep(0.001)
    seq, payload = publisher._buffer[-1]
    return {"seq": seq, "payload": payload.hex()}


def _bound(socket: Any) -> str | None:
    # Read from this thread although the publisher's own uses the socket: the option is a string that bind wrote, and
    # nothing writes it again.
    endpoint: str = socket.getsockopt_string(zmq.LAST_ENDPOINT) if socket is not None else ""
    return endpoint or None


def _bytes(value: dict[str, Any]) -> Any:
    return bytes.fromhex(value["$bytes"]) if value.keys() == {"$bytes"} else value


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], json.loads(sys.argv[3])))
