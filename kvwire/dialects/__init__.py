"""The registry of dialects, oldest first within each family.

A dialect, once released, never changes; a new shape is a new dialect.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from types import MappingProxyType

from kvwire.dialects.arrays import ARRAYS
from kvwire.dialects.base import Dialect, Encoding, EventLayout, Field, Framing, Releases
from kvwire.dialects.releases import emitted_by
from kvwire.dialects.sglang_maps import SGLANG_MAPS
from kvwire.dialects.vllm_maps import VLLM_MAPS
from kvwire.errors import DialectError

__all__ = ["ALL_MEDIA", "DIALECTS", "Dialect", "Encoding", "EventLayout", "Field", "Framing", "Releases", "get_dialect"]

DIALECTS: Mapping[str, Dialect] = MappingProxyType({d.id: d for d in (*ARRAYS, *SGLANG_MAPS, *VLLM_MAPS)})
"""Every dialect by id."""

ALL_MEDIA = frozenset(medium for d in DIALECTS.values() for medium in d.media)
"""Every medium constant of every engine."""

_ALIASES = {alias: d for d in DIALECTS.values() for alias in d.aliases}


def get_dialect(name: str | Dialect) -> Dialect:
    """The dialect of an id (``slot8``), an alias (``8-slot``, ``vllm-map``) or a release (``sglang==0.5.19``).

    Raises:
        DialectError: no such id or alias, or a release outside the known ranges; the message says what is known.
    """
    if isinstance(name, Dialect):
        return name
    if not isinstance(name, str):
        raise DialectError(f"a dialect is named by a string, not by {type(name).__name__}")
    wanted = name.strip().lower()
    found = DIALECTS.get(wanted) or _ALIASES.get(wanted)
    if found is not None:
        return found
    if "==" in wanted:
        engine, _, version = wanted.partition("==")
        return emitted_by(DIALECTS.values(), engine.strip(), version.strip())
    near = difflib.get_close_matches(wanted, [*DIALECTS, *_ALIASES], n=3)
    meant = f"; did you mean {' or '.join(near)}?" if near else ""
    raise DialectError(
        f"no dialect is called {name!r}{meant} Known: {', '.join(DIALECTS)}; "
        "or a release such as sglang==0.5.19 or vllm==0.33.0"
    )
