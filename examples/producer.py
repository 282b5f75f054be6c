"""Publish KV-cache events as an engine does: ``python producer.py [ENDPOINT REPLAY_ENDPOINT]``; Ctrl-C ends it."""

import contextlib
import random
import sys
import time

from kvwire import BlockStored
from kvwire.zmq.publisher import Publisher

endpoint, replay_endpoint = sys.argv[1:] or ("tcp://*:5557", "tcp://*:5558")
publisher = Publisher(endpoint, dialect="sglang-map2", replay_endpoint=replay_endpoint)
print(publisher.endpoint, publisher.replay_endpoint, flush=True)
parent = None
with publisher, contextlib.suppress(KeyboardInterrupt):
    while True:
        block = random.getrandbits(63)  # An engine has its own block hash here.
        publisher.publish([BlockStored([block], parent, [17, 29, 31, 42], block_size=4, medium="GPU")])
        parent = block
        time.sleep(0.1)
