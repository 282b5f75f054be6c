"""The HTTP side of Dynamo's KV indexer: register a publisher, read back what is held."""

from __future__ import annotations

import http.client
import json
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from kvwire.errors import UsageError
from kvwire_conform.routers.errors import RouterError

__all__ = ["Held", "IndexerClient", "held_of"]

_U64 = (1 << 64) - 1


class Held(NamedTuple):
    """One block that the router holds, as ``/dump`` tells it.

    Attributes:
        dp_rank: data-parallel rank of the worker.
        tier: the router's word: ``device``, ``host_pinned``, ``disk`` or ``external``.
        block_hash: the engine's hash, unsigned.
        tokens_hash: the router's own hash of the block's tokens (spec/hashing.md), unsigned.
        parent: hash of the block before it; None at the root.
    """

    dp_rank: int
    tier: str
    block_hash: int
    tokens_hash: int
    parent: int | None


class IndexerClient:
    """One connection to an indexer.

    Args:
        url: e.g. ``http://127.0.0.1:8090``.
        timeout: seconds that one request may take.
    """

    def __init__(self, url: str, timeout: float = 10.0) -> None:
        parts = urlsplit(url)
        if parts.scheme != "http" or not parts.hostname:
            raise UsageError(f"{url!r} is no address of an indexer; write http://host:port")
        self.url = url.rstrip("/")
        self._prefix = parts.path.rstrip("/")
        self._connection = http.client.HTTPConnection(parts.hostname, parts.port or 80, timeout=timeout)

    def close(self) -> None:
        """Drop the connection."""
        self._connection.close()

    def healthy(self) -> bool:
        """Whether it answers ``GET /health``."""
        try:
            return self._ask("GET", "/health")[0] == 200
        except RouterError:
            return False

    def register(
        self, instance: int, endpoint: str, model: str, block_size: int, replay_endpoint: str | None = None
    ) -> None:
        """Have it subscribe to a publisher.

        Raises:
            RouterError: it does not answer, or refuses.
        """
        body: dict[str, Any] = {
            "instance_id": instance,
            "endpoint": endpoint,
            "model_name": model,
            "block_size": block_size,
        }
        if replay_endpoint is not None:
            body["replay_endpoint"] = replay_endpoint
        status, said = self._ask("POST", "/register", body)
        if status not in (200, 201):
            raise RouterError(f"{self.url}/register refused {body}: {status} {said:.200}", code="router-unreachable")

    def unregister(self, instance: int, model: str) -> None:
        """Have it drop a publisher and its blocks; no harm when it is not known."""
        self._ask("POST", "/unregister", {"instance_id": instance, "model_name": model})

    def dump(self) -> Any:
        """The JSON of ``GET /dump``, of every publisher.

        Raises:
            RouterError: it does not answer, or not with JSON.
        """
        status, said = self._ask("GET", "/dump")
        try:
            if status != 200:
                raise ValueError(f"status {status}")
            return json.loads(said)
        except ValueError as error:
            raise self._no_dump(said, error) from error

    def held(self, instance: int, model: str) -> list[Held]:
        """Every block that it holds of a publisher.

        Raises:
            RouterError: it does not answer, or not with a dump.
        """
        dump = self.dump()
        try:
            return held_of(dump, instance, model)
        except (ValueError, LookupError, TypeError) as error:
            raise self._no_dump(json.dumps(dump), error) from error

    def _no_dump(self, said: str, error: Exception) -> RouterError:
        return RouterError(
            f"{self.url}/dump is not the dump of a KV indexer that this reader knows ({error!r:.100}): {said:.200}",
            code="router-unreachable",
        )

    def _ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> tuple[int, str]:
        data = None if body is None else json.dumps(body)
        headers = {} if data is None else {"Content-Type": "application/json"}
        for last in (False, True):
            try:
                self._connection.request(method, self._prefix + path, data, headers)
                answer = self._connection.getresponse()
                return answer.status, answer.read().decode("utf-8", "replace")
            except (OSError, http.client.HTTPException) as error:
                self._connection.close()
                # A kept connection may have been closed by the other side in between: once more on a new one.
                if last or method != "GET":
                    raise RouterError(
                        f"{self.url} does not answer {path}: {error}", code="router-unreachable"
                    ) from error
        raise AssertionError


def held_of(dump: Any, instance: int, model: str) -> list[Held]:
    """The blocks of one publisher in the JSON of ``/dump``.

    In an event of several blocks each is the parent of the next.

    Raises:
        ValueError, LookupError, TypeError: it is not of that form.
    """
    if not isinstance(dump, dict):
        raise ValueError("no object")
    found: list[Held] = []
    for name, tree in dump.items():
        if name.rpartition(":")[0] != model:
            continue
        for entry in tree["events"]:
            if entry["worker_id"] != instance or "stored" not in entry["event"]["data"]:
                continue
            stored = entry["event"]["data"]["stored"]
            parent = stored["parent_hash"]
            for block in stored["blocks"]:
                own = block["block_hash"] & _U64
                found.append(
                    Held(
                        entry["event"]["dp_rank"],
                        entry["storage_tier"],
                        own,
                        block["tokens_hash"] & _U64,
                        None if parent is None else parent & _U64,
                    )
                )
                parent = own
    return found
