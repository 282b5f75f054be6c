"""What can go wrong before a router can be judged."""

from __future__ import annotations

from collections.abc import Sequence

from kvwire.errors import KvwireError


class RouterError(KvwireError):
    """A router could not be installed, started or reached (exit code 3).

    Attributes:
        code: ``router-unreachable`` (nothing answers, or the package index does not), ``no-such-release``, ``no-pip``,
            ``cache`` (the cache folder cannot be written) or ``router-start`` (it ended, or did not answer in time).
        log: the last lines that the router wrote.
    """

    code = "router"

    def __init__(self, message: str, *, code: str, log: Sequence[str] = ()) -> None:
        self.code = code
        self.log = tuple(log)
        super().__init__(message)
