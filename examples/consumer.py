"""Follow engines' caches as a router does: ``python consumer.py [ENDPOINT REPLAY_ENDPOINT]``; Ctrl-C ends it."""

import contextlib
import sys

from kvwire.index import IndexSet
from kvwire.zmq.subscriber import Subscriber

endpoint, replay_endpoint = sys.argv[1:] or ("tcp://127.0.0.1:5557", "tcp://127.0.0.1:5558")
caches = IndexSet()
with (
    contextlib.suppress(KeyboardInterrupt),
    Subscriber(endpoint, replay=replay_endpoint, start="replay") as events,
):
    for item in events:
        caches.apply(item)
        cache = caches[item.source]
        known = "all" if cache.complete else "a part"
        print(type(item).__name__, cache.per_medium(), f"{known} of {item.source}", flush=True)
