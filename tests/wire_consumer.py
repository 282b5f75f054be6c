"""A subscriber in a process of its own, that can be frozen: ``python wire_consumer.py ENDPOINT REPLAY``.

Tells on stdout when the first batches came; then takes the number of batches from stdin and tells when all were yielded
or lost.
"""

from __future__ import annotations

import json
import os
import select
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from kvwire.stream import Limits
from kvwire.zmq.subscriber import Subscriber
from tests.ledger import Ledger


def main(endpoint: str, replay: str) -> None:
    ledger = Ledger(padded=True)
    wanted: int | None = None
    begun = False
    limits = Limits(silence=1.0, quiet=0.3)
    with Subscriber(endpoint, replay=replay, start="replay", limits=limits, hwm=500) as subscriber:
        while wanted is None or (ledger.covered or 0) < wanted:
            item = subscriber.next(0.1)
            if item is not None:
                ledger.enter(item)
            if not begun and ledger.covered:
                begun = True
                print(json.dumps({"covered": ledger.covered}), flush=True)
            if item is None and select.select([0], [], [], 0)[0]:
                line = os.read(0, 100)
                if not line:
                    return
                wanted = int(line)
        [stats] = subscriber.stats.values()
    print(
        json.dumps(
            {
                "covered": ledger.covered,
                "yielded": ledger.yielded,
                "lost": ledger.lost_count,
                "restarts": ledger.restarts,
                "replayed": stats.replayed,
            }
        ),
        flush=True,
    )


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
