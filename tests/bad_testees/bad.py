"""A testee that misbehaves in the way it is told: ``python bad.py HOW [AT]``.

It reads with kvwire and is right but for HOW; where that concerns single payloads, it strikes at the request of number AT
(counted from 1, of this process), or at the payloads that HOW is about.
"""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import kvwire
from kvwire.neutral_json import to_json

HOW = sys.argv[1]
AT = int(sys.argv[2]) if len(sys.argv) > 2 else 0


def put(data: bytes) -> None:
    """Write to stdout at once."""
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def say(message: dict[str, Any]) -> None:
    """Write a line."""
    put(json.dumps(message).encode() + b"\n")


def forever() -> None:
    """Be busy with nothing, and deaf; whoever wants to know finds the file that BAD_MARK names."""
    if "BAD_MARK" in os.environ:
        Path(os.environ["BAD_MARK"]).touch()
    while True:
        time.sleep(3600)


def die_of_signal() -> None:
    """End without a word."""
    os.kill(os.getpid(), signal.SIGKILL)


def spoiled(answer: dict[str, Any]) -> dict[str, Any]:
    """The right answer, made wrong."""
    for event in answer.get("events", []):
        if HOW == "loses-salt":
            event.pop("cache_salt", None)
        if HOW == "swaps-slots" and "lora_id" in event:
            event["block_size"], event["lora_id"] = event["lora_id"], event["block_size"]
        if HOW == "hash-as-number" and event.get("block_hashes"):
            event["block_hashes"] = [int(value, 16) for value in event["block_hashes"] if value[0] != "b"]
    if HOW == "no-ts":
        answer.pop("ts", None)
    return answer


def read(payload: bytes) -> dict[str, Any]:
    """The answer to a payload, without its id."""
    try:
        if HOW == "drops-siblings":
            batch = kvwire.decode(payload, on_error="collect")
            if getattr(batch, "faults", None) or getattr(batch, "skipped", None):
                return {"error": "unknown variant, expected BlockStored"}
            if any(getattr(event, "lora_id", None) == 7 for event in batch.events):
                return {"error": "invalid type: integer `7`"}
        elif HOW == "accepts-invalid":
            batch = kvwire.decode(payload, on_error="collect")
            batch.events.insert(0, kvwire.AllBlocksCleared())
        elif HOW == "refuses-all":
            return {"error": "no"}
        elif HOW == "unsupported":
            return {"unsupported": "not today"}
        elif HOW == "dies-of-salt" and b"salt" in payload:
            print("panicked at decode.rs:17", file=sys.stderr, flush=True)
            os.abort()
        else:
            batch = kvwire.decode(payload, on_error="collect")
    except kvwire.WireError as error:
        return {"error": str(error)}
    return spoiled(to_json(batch))


def hello() -> None:
    """Say hello, or not."""
    found: dict[str, Any] = {
        "protocol": 1,
        "name": "bad",
        "version": "0",
        "language": "Python",
        "dialects": ["slot9", "vllm-map5"],
        "notes": HOW,
        "of no meaning": True,
    }
    if HOW == "no-hello":
        forever()
    if HOW == "hello-exit":
        print("no such model", file=sys.stderr, flush=True)
        raise SystemExit(3)
    if HOW == "hello-garbage":
        put(b"Loading ...\n")
    if HOW == "hello-version":
        found["protocol"] = 2
    if HOW == "hello-dialect":
        found["dialects"] = ["slot99"]
    if HOW == "hello-endless":
        while True:
            put(b"x" * 65536)
    if HOW == "claims-nothing":
        found["dialects"] = []
    say(found)


def misbehave(ident: str) -> bool:
    """Do at this request what HOW says; True where it is answered by that."""
    right = {"id": ident, "events": []}
    if HOW == "signal":
        die_of_signal()
    elif HOW == "exit-3":
        print("out of luck", file=sys.stderr, flush=True)
        os._exit(3)
    elif HOW == "exit-0":
        os._exit(0)
    elif HOW == "hang":
        forever()
    elif HOW == "deaf-hang":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        forever()
    elif HOW == "closes-stdout":
        os.close(1)
        forever()
    elif HOW == "garbage":
        put(b"thinking ...\n")
    elif HOW == "not-utf8":
        put(b'{"id": "\xff"}\n')
    elif HOW == "wrong-id":
        say({**right, "id": "elsewhere"})
        return True
    elif HOW == "old-id":
        say({**right, "id": "1"})
        return True
    elif HOW == "no-id":
        say({"events": []})
        return True
    elif HOW == "both":
        say({**right, "error": "and yet"})
        return True
    elif HOW == "endless":
        while True:
            put(b"x" * 65536)
    elif HOW == "deep":
        put(b"[" * 100_000 + b"\n")
        return True
    elif HOW == "twice":
        say(right)
        say(right)
        return True
    elif HOW == "late-death":
        say({"id": ident, "error": "farewell"})
        os._exit(7)
    return False


def main() -> None:
    """Run."""
    if HOW == "stderr-flood":
        for _ in range(200):
            print("x" * 10_000, file=sys.stderr)
    hello()
    if HOW == "never-reads":
        forever()
    if HOW == "child":
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"])
    for number, line in enumerate(sys.stdin.buffer, start=1):
        request = json.loads(line)
        if number == AT and misbehave(request["id"]):
            continue
        answer = read(base64.b64decode(request["payload"]))
        say({"id": request["id"], **answer, "of no meaning": {}})
    if HOW == "stays":
        forever()
    if HOW == "leaves-badly":
        raise SystemExit(9)
    if HOW == "leaves-by-signal":
        die_of_signal()
    if HOW == "last-word":
        put(b"bye\n")


if __name__ == "__main__":
    main()
