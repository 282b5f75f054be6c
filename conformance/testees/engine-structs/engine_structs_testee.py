"""Testee: the event structs of one published SGLang or vLLM release, as the decoder that a bridge makes of them.

python engine_structs_testee.py vllm==0.33.0           # speaks the protocol
python engine_structs_testee.py --fetch vllm==0.33.0   # gets the release's module into the cache, and ends

Each payload goes to ``msgspec.msgpack.Decoder(KVEventBatch)`` with the release's own class, out of its published package.
The answer has the fields of the decoded structs under their own names, which are the wire's.
"""

from __future__ import annotations

import argparse
import base64
import json
import math
import sys
from typing import Any

import msgspec

from kvwire import AllBlocksCleared, BlockRemoved, BlockStored, InvalidEventError, get_dialect
from kvwire.neutral_json import event_to_json
from kvwire_conform.releases import ENGINES, ReleaseStructs, fetch_module, load_structs
from kvwire_conform.releases_exec import registered

KINDS = {"BlockStored": BlockStored, "BlockRemoved": BlockRemoved, "AllBlocksCleared": AllBlocksCleared}
NOTES = (
    "One wrong event, or an unknown tag, costs the batch: the decoder reads it whole or not at all. A salt that vLLM writes "
    "among extra_keys is in the answer's extra_keys alone: its structs have no name for it."
)


def main() -> None:
    """Say hello, then answer each line with a line until there are no more."""
    options = argparse.ArgumentParser(description="the structs of one engine release behind the testee protocol")
    options.add_argument("release", help="e.g. vllm==0.33.0")
    options.add_argument("--fetch", action="store_true", help="get the release's module and end")
    told = options.parse_args()
    name, _, version = told.release.partition("==")
    engine = next((known for known in ENGINES if known == name), None)
    if engine is None or not version:
        options.error(f"{told.release!r} is no release of {' or '.join(ENGINES)}; write it as vllm==0.33.0")
    structs = load_structs(fetch_module(engine, version))
    if told.fetch:
        return
    with registered(structs.module):
        decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(structs.batch_class)
    say(hello(engine, version))
    for line in sys.stdin.buffer:
        request = json.loads(line)
        say({"id": request["id"], **read(decoder, structs, base64.b64decode(request["payload"]))})


def hello(engine: str, version: str) -> dict[str, Any]:
    """Who this is; it claims the dialect that its release writes."""
    return {
        "protocol": 1,
        "name": f"{engine}-structs",
        "version": version,
        "language": "Python",
        "dialects": [get_dialect(f"{engine}=={version}").id],
        "decoder": "msgspec.msgpack.Decoder(KVEventBatch)",
        "notes": NOTES,
    }


def read(decoder: msgspec.msgpack.Decoder[Any], structs: ReleaseStructs, payload: bytes) -> dict[str, Any]:
    """The answer to one payload, without its id."""
    try:
        batch = decoder.decode(payload)
    except (msgspec.MsgspecError, RecursionError, ValueError) as error:
        return {"error": str(error)}
    try:
        events = [neutral(event, f"events[{index}]") for index, event in enumerate(batch.events)]
    except InvalidEventError as error:
        return {"unsupported": f"it was read, and the neutral form has no room for it: {error}"}
    rank = structs.rank_field
    return {
        "ts": batch.ts if math.isfinite(batch.ts) else None,
        "events": events,
        **({} if rank is None else {"dp_rank": getattr(batch, rank)}),
    }


def neutral(event: Any, path: str) -> dict[str, Any]:
    """One decoded struct in the neutral JSON form."""
    fields = {name: getattr(event, name) for name in event.__struct_fields__}
    return event_to_json(KINDS[type(event).__struct_config__.tag](**fields), path)


def say(message: dict[str, Any]) -> None:
    """Write one line, and flush it: the runner waits for it."""
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
