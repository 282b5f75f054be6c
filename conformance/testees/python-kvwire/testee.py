"""kvwire itself behind the testee protocol (spec/conformance.md): the example to start a testee of your own from.

python testee.py                    # reads whatever comes
python testee.py --reading told     # is told the dialect of each payload
python testee.py --reading strict   # is told, and refuses what is not exactly of it
"""

from __future__ import annotations

import argparse
import base64
import json
import sys
from typing import Any

import kvwire
from kvwire.neutral_json import to_json


def read(payload: bytes, dialect: str | None, reading: str) -> dict[str, Any]:
    """The answer to one payload, without its id."""
    try:
        if reading == "strict":
            return to_json(kvwire.decode(payload, dialect, strict=True))
        return to_json(kvwire.decode(payload, dialect, on_error="collect"))
    except kvwire.WireError as error:
        return {"error": str(error)}


def main() -> None:
    """Say hello, then answer each line with a line until there are no more."""
    options = argparse.ArgumentParser(description="kvwire behind the testee protocol")
    options.add_argument("--reading", choices=("any", "told", "strict"), default="any")
    reading = options.parse_args().reading
    hello = {"protocol": 1, "name": "kvwire", "version": kvwire.__version__, "language": "Python"}
    say({**hello, "dialects": list(kvwire.DIALECTS), "reading": reading, "decoder": "kvwire.decode"})
    for line in sys.stdin.buffer:
        request = json.loads(line)
        payload = base64.b64decode(request["payload"])
        say({"id": request["id"], **read(payload, request.get("dialect"), reading)})


def say(message: dict[str, Any]) -> None:
    """Write one line, and flush it: the runner waits for it."""
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
