"""From a release to the dialect it speaks."""

from __future__ import annotations

import re
from collections.abc import Iterable

from kvwire.dialects.base import Dialect, Releases
from kvwire.errors import DialectError

_VERSION = re.compile(
    r"v?(?P<release>\d+(?:\.\d+)*)"
    r"(?:\.?(?P<pre>a|b|rc|dev)\.?(?P<pre_n>\d*))?"
    r"(?:\.?post(?P<post>\d+))?"
    r"(?:\+.*)?"
)


def version_key(version: str) -> tuple[tuple[int, ...], int, int]:
    """A sort key for engine versions such as ``0.5.8.post1`` and ``0.33.0rc1``. Raises DialectError if it is none."""
    match = _VERSION.fullmatch(version.strip().lower())
    if match is None:
        raise DialectError(f"{version!r} is not a version; write it as the package does, e.g. 0.5.8.post1")
    numbers = [int(part) for part in match["release"].split(".")]
    while numbers and numbers[-1] == 0:
        numbers.pop()
    before = -1 if match["pre"] else 0
    return tuple(numbers), before, int(match["post"] or 0)


def emitted_by(dialects: Iterable[Dialect], engine: str, version: str) -> Dialect:
    """The dialect that a release emits.

    Raises:
        DialectError: an engine that is not registered, or a version outside the ranges that were read off the packages.
    """
    spans = [(span, d) for d in dialects for span in d.releases if span.engine == engine]
    if not spans:
        raise DialectError(f"no releases of {engine!r} are registered; known engines: sglang, vllm")
    spans.sort(key=lambda pair: version_key(pair[0].first))
    wanted = version_key(version)
    known = _known(spans)
    if wanted < version_key(spans[0][0].first):
        raise DialectError(f"{engine} {version} publishes no KV events, as far as is known ({known})")
    if wanted > version_key(spans[-1][0].last):
        newest = spans[-1][1].id
        raise DialectError(
            f"{engine} {version} is newer than what is registered ({known}); "
            f"if it still speaks the newest layout, that is {newest}"
        )
    return next(d for span, d in reversed(spans) if version_key(span.first) <= wanted)


def _known(spans: list[tuple[Releases, Dialect]]) -> str:
    return f"registered: {spans[0][0].first} to {spans[-1][0].last}"
