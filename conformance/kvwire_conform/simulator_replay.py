"""What a simulated publisher answers on its replay socket. Pure: requests in, replies out."""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Sequence

from kvwire.dialects import Framing
from kvwire_conform.simulator_acts import END


class ReplayBuffer:
    """The last batches that were published, and the answers to who asks for them.

    Args:
        framing: of the replies.
        topic: what the topic frame says, where there is one.
        steps: batches kept, the oldest are dropped first.
        fault: id of a fault of the replay side; any other id does nothing.
    """

    def __init__(self, framing: Framing, topic: bytes = b"", steps: int = 10_000, fault: str | None = None) -> None:
        self.framing = Framing(framing)
        self.topic = topic
        self.fault = fault
        self._kept: deque[tuple[int, bytes]] = deque(maxlen=steps)
        self._dead = False

    def keep(self, frames: Sequence[bytes]) -> None:
        """A live message was published. Those outside the count are not kept; a seq that falls back empties the buffer."""
        if len(frames) != 3 or len(frames[1]) != 8 or frames[1] == END:
            return
        topic, seq, payload = frames
        number = int.from_bytes(seq, "big")
        if self._kept and number <= self._kept[-1][0]:
            if (number, payload) in self._kept:
                return
            self._kept.clear()
        self._kept.append((number, payload))
        self.topic = topic

    def answer(self, request: Sequence[bytes]) -> list[list[bytes]]:
        """The replies to one request, as a DEALER receives them, the empty delimiter included.

        Args:
            request: as a DEALER sends it: the empty delimiter, and the first seq wanted. Anything else is malformed and
                gets no reply.
        """
        if len(request) != 2 or request[0] or len(request[1]) != 8:
            self._dead = self.fault == "replay-survives-malformed"
            return []
        if self._dead:
            return []
        found = self._from(int.from_bytes(request[1], "big"))
        bodies = [(seq.to_bytes(8, "big"), payload) for seq, payload in found]
        if self.fault == "replay-contiguous" and len(bodies) > 2:
            del bodies[len(bodies) // 2]
        if self.fault == "replay-equals-live" and bodies:
            middle = len(bodies) // 2
            bodies[middle] = (bodies[middle][0], _later(bodies[middle][1]))
        if self.fault != "replay-end-marker":
            bodies.append((END, b""))
        return [self._reply(index, seq, payload) for index, (seq, payload) in enumerate(bodies)]

    def _from(self, start: int) -> list[tuple[int, bytes]]:
        past_end = not self._kept or start > self._kept[-1][0]
        if past_end and self.fault == "replay-past-end":
            return list(self._kept)[-3:]
        if not past_end and self.fault == "replay-start":
            start -= 2
        return [kept for kept in self._kept if kept[0] >= start]

    def _reply(self, index: int, seq: bytes, payload: bytes) -> list[bytes]:
        framing = self.framing
        if self.fault == "replay-framing" and index % 2:
            framing = next(other for other in Framing if other is not framing)
        if framing is Framing.SEQ_PAYLOAD:
            return [b"", seq, payload]
        return [b"", self.topic if payload else b"", seq, payload]


def _later(payload: bytes) -> bytes:
    """The payload with half a second more on its ts, a float64 right after the array header."""
    (ts,) = struct.unpack(">d", payload[2:10])
    return payload[:2] + struct.pack(">d", ts + 0.5) + payload[10:]
