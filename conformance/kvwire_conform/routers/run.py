"""A router to publish to for the length of a run, started anew where it crashed."""

from __future__ import annotations

import contextlib
import secrets

import zmq

from kvwire_conform.routers.errors import RouterError
from kvwire_conform.routers.http import IndexerClient
from kvwire_conform.routers.install import package_folder
from kvwire_conform.routers.process import IndexerProcess, LogLine
from kvwire_conform.routers.trial import Site

__all__ = ["PACKAGE", "RouterRun"]

PACKAGE = "ai-dynamo-runtime"


class RouterRun:
    """Dynamo's KV indexer, of a release that is started here, or a running one.

    Args:
        release: of `PACKAGE`.
        url: of a running one, whose log cannot be seen.
        host: address of ours that the router can connect to.
        patience: seconds for which a good batch may fail to show.

    Attributes:
        site: where to publish; there inside the ``with`` block.
        process: the indexer that was started; None where a running one is used.

    Raises:
        RouterError: on entering: it cannot be installed, started or reached.
    """

    def __init__(self, release: str, url: str | None = None, host: str = "127.0.0.1", patience: float = 5.0) -> None:
        self.patience = patience
        self._release, self._url, self._host = release, url, host
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._started = contextlib.ExitStack()
        self.process: IndexerProcess | None = None
        self.site: Site

    def __enter__(self) -> RouterRun:
        # Instances and models in a router that others use must not meet theirs.
        first = 1 if self._url is None else (1 << 30) + secrets.randbelow(1 << 30)
        try:
            client = self._start() if self._url is None else _running(self._url)
        except BaseException:
            self._context.destroy(linger=0)
            raise
        self.site = Site(client, self._context, self._host, self.patience, f"kvwire-{first}", first)
        return self

    def __exit__(self, *_: object) -> None:
        if self.process is None:
            self.site.client.close()
        self._started.close()
        self._context.destroy(linger=0)

    @property
    def has_log(self) -> bool:
        """Whether what the router says can be seen."""
        return self.process is not None

    def mark(self) -> int:
        """Where its log ends now; `since` reads on from there."""
        return 0 if self.process is None else self.process.mark()

    def since(self, mark: int) -> list[LogLine]:
        """Its words since a mark; none where there is no log."""
        return [] if self.process is None else self.process.since(mark)

    def crashed(self, grace: float = 0.0) -> str:
        """How the router ended and what it said last; empty while it runs, ``grace`` seconds from now. It is started anew.

        Raises:
            RouterError: it cannot be started again.
        """
        if self.process is None or not (end := self.process.ended(grace)):
            return ""
        said = "\n".join([end, *self.process.last_lines()[-5:]])
        self._started.close()
        self.site.client = self._start()
        return said

    def _start(self) -> IndexerClient:
        process = IndexerProcess(package_folder(PACKAGE, self._release))
        self.process = self._started.enter_context(process)
        return process.client


def _running(url: str) -> IndexerClient:
    client = IndexerClient(url)
    if not client.healthy():
        raise RouterError(f"{url} does not answer /health; is a KV indexer there?", code="router-unreachable")
    return client
