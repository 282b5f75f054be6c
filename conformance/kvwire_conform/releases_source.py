"""Which module of which engine holds the KV events, what was read of it, and what can go wrong."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, get_args

from kvwire.errors import KvwireError

Engine = Literal["sglang", "vllm"]

ENGINES: tuple[Engine, ...] = get_args(Engine)

MODULES: Mapping[Engine, str] = MappingProxyType(
    {
        "sglang": "sglang/srt/disaggregation/kv_events.py",
        "vllm": "vllm/distributed/kv_events.py",
    }
)
"""Path of the KV-events module inside each engine's package: the one file that defines its wire."""


class ReleaseError(KvwireError):
    """A release could not be read.

    Attributes:
        code: ``release-unreachable`` (no package index, and not in the cache), ``no-such-release``, ``no-such-module``
            (the release is older than the KV events, or they moved), ``no-pip``, ``cache`` (the cache folder cannot be
            written), ``release-code`` (the module was read, and does not run or is not what this reader knows).
    """

    code = "release"

    def __init__(self, message: str, *, code: str) -> None:
        self.code = code
        super().__init__(message)


@dataclass(frozen=True)
class ReleaseSource:
    """The KV-events module of one published release, and where it came from.

    Attributes:
        engine: ``sglang`` or ``vllm``.
        version: as the package index spells it, e.g. ``0.5.8.post1``.
        text: the module's source.
        package_file: name of the published file (wheel or sdist) that it was read from.
        package_size: its size in bytes.
        package_sha256: its SHA-256, in hex. Where the index gives a hash, pip has compared it.
        member: path of the module inside that file.
        sha256: SHA-256 of the module itself, in hex, over its bytes as published.
    """

    engine: Engine
    version: str
    text: str
    package_file: str
    package_size: int
    package_sha256: str
    member: str
    sha256: str

    @property
    def release(self) -> str:
        """The release as users type it: ``sglang==0.5.19``."""
        return f"{self.engine}=={self.version}"

    def provenance(self) -> dict[str, Any]:
        """Everything but the text, JSON-ready: what a vector or a report records as its source."""
        return {
            "engine": self.engine,
            "version": self.version,
            "package_file": self.package_file,
            "package_size": self.package_size,
            "package_sha256": self.package_sha256,
            "member": self.member,
            "sha256": self.sha256,
        }
