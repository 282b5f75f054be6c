"""The engines' ``--kv-events-config``: one JSON object, in the spelling of SGLang or of vLLM."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from kvwire.errors import UsageError

PUBLISHERS = ("null", "zmq")
FORMATS = ("default", "dynamo")
_TYPES: Mapping[str, tuple[type, ...]] = {
    "publisher": (str, type(None)),
    "endpoint": (str,),
    "replay_endpoint": (str, type(None)),
    "buffer_steps": (int,),
    "hwm": (int,),
    "max_queue_size": (int,),
    "topic": (str,),
    "bind": (bool, type(None)),
    "format": (str,),
    "enable_kv_cache_events": (bool,),
}
_JSON_NAMES = {str: "a string", int: "an integer", bool: "true or false", type(None): "null"}


class ConfigError(UsageError, ValueError):
    """A ``--kv-events-config`` that cannot be used, with the key that is at fault."""

    code = "kv-events-config"


@dataclass(frozen=True)
class PublisherConfig:
    """What a ``--kv-events-config`` says, with the engines' own defaults (SGLang 0.5.23, vLLM 0.33.0).

    Attributes:
        publisher: ``zmq``, or ``null`` for none. Without the key, vLLM takes ``zmq`` when `enable_kv_cache_events` is
            true, and both take ``null`` otherwise.
        endpoint: where batches go, before the port offset of the DP rank.
        replay_endpoint: where replays are asked for, before the port offset; None for no replay.
        buffer_steps: batches kept for replay.
        hwm: batches that may wait for one subscriber inside the socket.
        max_queue_size: batches that may wait for the publisher's thread.
        topic: first frame of every message.
        bind: bind or connect; None follows the rule for the endpoint (SGLang only).
        format: ``default`` or ``dynamo``: how the engine makes its hashes; the bytes are framed alike (SGLang only).
        enable_kv_cache_events: None when the key is absent, as in SGLang (vLLM only).
    """

    publisher: str = "null"
    endpoint: str = "tcp://*:5557"
    replay_endpoint: str | None = None
    buffer_steps: int = 10_000
    hwm: int = 100_000
    max_queue_size: int = 100_000
    topic: str = ""
    bind: bool | None = None
    format: str = "default"
    enable_kv_cache_events: bool | None = None

    @property
    def enabled(self) -> bool:
        """Whether there is anything to publish to."""
        return self.publisher == "zmq" and self.enable_kv_cache_events is not False


def parse_config(config: str | bytes | Mapping[str, Any]) -> PublisherConfig:
    """Read a ``--kv-events-config``, as JSON text or as the object it stands for.

    Raises:
        ConfigError: no JSON object, an unknown key, a key given twice, or a value of the wrong type.
    """
    given = _load(config)
    known = {item.name for item in fields(PublisherConfig)}
    for key in given:
        if key not in known:
            near = difflib.get_close_matches(str(key), known, n=1, cutoff=0.5)
            meant = f"; did you mean {near[0]!r}?" if near else ""
            raise ConfigError(f"--kv-events-config has no key {key!r}{meant} Known keys: {', '.join(sorted(known))}")
        _check(key, given[key])
    if given.get("publisher") is None:
        given["publisher"] = "zmq" if given.get("enable_kv_cache_events") else "null"
    return PublisherConfig(**given)


def _load(config: str | bytes | Mapping[str, Any]) -> dict[str, Any]:
    value: Any = config
    if isinstance(config, (str, bytes)):
        try:
            value = json.loads(config, object_pairs_hook=_unique)
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise ConfigError(f"--kv-events-config is not JSON: {error}; it reads {config!r:.200}") from error
    if not isinstance(value, Mapping):
        raise ConfigError(f"--kv-events-config is a JSON object, not {value!r:.200}")
    return dict(value)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [key for key, _ in pairs]
        twice = next(key for key in names if names.count(key) > 1)
        raise ConfigError(f"--kv-events-config has the key {twice!r} twice")
    return found


def _check(key: str, value: Any) -> None:
    allowed = _TYPES[key]
    if not isinstance(value, allowed) or (isinstance(value, bool) and bool not in allowed):
        wanted = " or ".join(_JSON_NAMES[kind] for kind in allowed)
        raise ConfigError(f"--kv-events-config: {key!r} is {wanted}, not {value!r:.200}")
    choices = {"publisher": PUBLISHERS, "format": FORMATS}.get(key)
    if choices is not None and value is not None and value not in choices:
        raise ConfigError(f"--kv-events-config: {key!r} is one of {', '.join(choices)}, not {value!r:.200}")
