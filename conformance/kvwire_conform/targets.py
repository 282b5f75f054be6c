"""What a capture listens to."""

from __future__ import annotations

import msgspec


class Target(msgspec.Struct, frozen=True):
    """One publisher.

    Attributes:
        endpoint: where it publishes, to dial; or where to bind, for a publisher that connects.
        replay_endpoint: where its replay socket is, always to dial; None for none.
        dp_rank: its DP rank, where known.
        name: how reports call it; the endpoint where empty.
    """

    endpoint: str
    replay_endpoint: str | None = None
    dp_rank: int | None = None
    name: str = ""

    def __str__(self) -> str:
        return self.name or self.endpoint
