"""What a capture found out about its connections, and what to do about silence. Pure: facts in, words out."""

from __future__ import annotations

from dataclasses import dataclass, field

from kvwire.zmq import endpoints
from kvwire_conform.targets import Target

MAX_TOPICS = 5


@dataclass
class Heard:
    """What became of one target.

    Attributes:
        target: the target.
        bound: whether this side binds and the publisher connects.
        connected: whether the handshake with a live peer ever succeeded; None where it cannot be told (inproc), until a
            message comes.
        opened: whether at least a connection came about, with or without a ZMTP handshake.
        hangups: connections that ended before the handshake.
        refused: whether the handshake failed for lack of authentication.
        reach: of a target that was never connected, what a plain TCP connection met: ``accepts``, ``refused``,
            ``timeout``, ``no-such-host``, another error in words, or "" when it was not tried.
        messages: live messages.
        first_message: seconds from the start to the first of them; None for none.
        disconnects, reconnects: of the live connection.
        cuts: live connections that this side ended, because of a frame above the payload limit.
        peers: most publishers connected at once.
        replayed: batches that came in replays.
        replay_connected: whether the replay endpoint was ever connected; None without one.
        replay_answered: asks that ended with an end marker.
        replay_timeouts: good asks that did not.
        replay_reach: as `reach`, of a replay endpoint that was never connected.
        topics: topics that do not match the filter, as seen in the probe of all topics and in replays; at most 5.
        topic_probed: whether all topics were subscribed to, for lack of messages.
    """

    target: Target
    bound: bool = False
    connected: bool | None = False
    opened: bool = False
    hangups: int = 0
    refused: bool = False
    reach: str = ""
    messages: int = 0
    first_message: float | None = None
    disconnects: int = 0
    reconnects: int = 0
    cuts: int = 0
    peers: int = 0
    replayed: int = 0
    replay_connected: bool | None = None
    replay_answered: int = 0
    replay_timeouts: int = 0
    replay_reach: str = ""
    topics: list[str] = field(default_factory=list)
    topic_probed: bool = False

    @property
    def unreachable(self) -> bool:
        """Never connected: not the same as connected and silent."""
        return self.connected is False

    @property
    def silent(self) -> bool:
        """Connected, as far as can be told, and not one live message."""
        return not self.unreachable and not self.messages

    def add_topic(self, topic: bytes) -> None:
        """Remember a topic that does not match the filter."""
        text = topic.decode(errors="backslashreplace")
        if text not in self.topics and len(self.topics) < MAX_TOPICS:
            self.topics.append(text)


@dataclass
class Outcome:
    """How a capture went.

    Attributes:
        targets: one entry for each target, in their order.
        topic: the filter.
        max_payload: the payload limit, in bytes.
        seconds: how long it took.
        reason: why listening ended, one of `capture_words.REASONS`; "" while it goes on.
    """

    targets: list[Heard]
    topic: str
    max_payload: int
    seconds: float = 0.0
    reason: str = ""

    @property
    def interrupted(self) -> bool:
        """Whether it was stopped before its time."""
        return self.reason == "stopped"

    @property
    def unreachable(self) -> list[Heard]:
        """The targets that were never connected."""
        return [heard for heard in self.targets if heard.unreachable]

    def advice(self, target: Target | None = None) -> list[str]:
        """What to do about silence and lost connections, of one target or of all; empty when all went well."""
        return [
            text
            for heard in self.targets
            if target is None or heard.target == target
            for text in advice(heard, self.topic, self.max_payload)
        ]


def advice(heard: Heard, topic: str, max_payload: int) -> list[str]:
    """What to do about one target.

    Args:
        topic: the filter.
        max_payload: the payload limit, in bytes.
    """
    said = []
    if heard.unreachable:
        said.append(_never_connected(heard))
    elif not heard.messages:
        said.append(_silent(heard, topic))
    if heard.cuts:
        said.append(
            f"the connection was cut {_times(heard.cuts)}: a message has a frame of more than {max_payload} bytes, the "
            "limit of this capture, or is no ZMTP; raise the limit, or look what the engine publishes"
        )
    if heard.bound and heard.peers > 1:
        said.append(
            f"{heard.peers} publishers were connected at once: their sequence numbers run through each other, and this "
            "reads like losses and restarts. Give each its own port"
        )
    if heard.disconnects > heard.cuts and heard.messages:
        back = "and came back" if heard.reconnects else "and did not come back"
        said.append(
            f"the connection was lost {_times(heard.disconnects)} {back}: batches that were published meanwhile are "
            "lost, unless a replay has them"
        )
    said += _replay(heard)
    return [f"{heard.target}: {text}" for text in said]


def _never_connected(heard: Heard) -> str:
    where = heard.target.endpoint
    if heard.bound:
        if heard.opened:
            return f"something connected to {where} but did not finish a ZMTP handshake: it is no ZeroMQ PUB socket"
        return (
            f"bound {where}, and no publisher connected: the engine's endpoint has to be a concrete address of this "
            "machine (tcp://THIS-HOST:PORT); it binds, rather than connects, where it has * or :: in it"
        )
    if heard.refused:
        return f"{where} wants authentication (CURVE or PLAIN), which no engine offers: is it a publisher of events?"
    if heard.hangups:
        return (
            f"{where} accepts connections and hangs up before the ZMTP handshake: it is no PUB socket. Is it the replay "
            "endpoint, or another service?"
        )
    if heard.opened:
        return (
            f"{where} accepts connections but does not speak ZMTP: another service has this port, or a proxy is between"
        )
    return f"never connected to {where}: {_unreached(where, heard.reach)}"


def _unreached(where: str, reach: str) -> str:
    endpoint = endpoints.parse(where)
    if endpoint.transport == "ipc":
        return f"there is no publisher at {endpoint.path}; is the path right, seen from this container and user?"
    if reach == "refused":
        return (
            f"nothing listens at port {endpoint.port} of {endpoint.host}. Is the engine up, with KV events enabled, and "
            "this its port (5557 unless told otherwise, plus the DP rank)? An engine whose endpoint is a concrete "
            "address connects instead of listening: then use --bind"
        )
    if reach == "no-such-host":
        return f"the host {endpoint.host} cannot be looked up; is the name right, seen from this machine?"
    if reach == "timeout":
        return (
            f"{endpoint.host} does not answer at port {endpoint.port}: a firewall or network policy drops it, the port "
            "is not published by the container or service, or the host is down"
        )
    if reach == "accepts":
        return "it accepts connections only now, after the capture; try again"
    return reach or "is the engine up?"


def _silent(heard: Heard, topic: str) -> str:
    if topic and heard.topics:
        seen = ", ".join(repr(text) for text in heard.topics)
        return (
            f"connected, but no message matches the topic {topic!r}; the publisher's topic is {seen}. "
            "A filter matches the beginning of a topic; leave --topic out to hear everything"
        )
    filtered = ""
    if topic and heard.topic_probed:
        filtered = f" Nothing came without the topic filter {topic!r} either, in a short try at the end."
    elif topic:
        filtered = f" A topic filter that matches nothing looks the same: try without --topic {topic!r}."
    if heard.replayed:
        return (
            f"connected and silent, yet a replay holds {heard.replayed} batches: the engine published before, and was "
            f"idle meanwhile. Send it some prompts while this listens.{filtered}"
        )
    replay = (
        ""
        if heard.target.replay_endpoint
        else " What was published before the subscription was there is lost to it (slow joiner), unless a replay endpoint has it: give --replay."
    )
    return (
        "connected and silent: the engine is idle, or publishes nothing. Send it some prompts while this listens, longer "
        "than one block each; a prompt that is cached already stores nothing new. If it stays silent, check that events "
        'are enabled (SGLang: --kv-events-config with "publisher": "zmq"; vLLM: also enable_kv_cache_events and '
        f"prefix caching).{replay}{filtered}"
    )


def _replay(heard: Heard) -> list[str]:
    where = heard.target.replay_endpoint
    if where is None:
        return []
    if heard.replay_connected is False:
        return [
            f"the replay endpoint was never connected, so no replay was judged: {_unreached(where, heard.replay_reach)}"
        ]
    if heard.replay_timeouts and not heard.replay_answered:
        return [
            f"the replay endpoint {where} is connected and never finished an answer; is it the engine's replay_endpoint, "
            "and of the same DP rank?"
        ]
    return []


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
