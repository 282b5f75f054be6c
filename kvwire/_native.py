"""The one place that imports the compiled extensions, all of them optional.

An extension makes something faster and never different: whoever uses one keeps the pure path as its fallback and its
oracle. ``KVWIRE_PURE=1`` in the environment leaves them all aside.
"""

from __future__ import annotations

import importlib
import os
from typing import Any

PURE = os.environ.get("KVWIRE_PURE", "0") not in ("", "0")


def extension(name: str) -> Any:
    """The extension module ``kvwire._<name>_ext``; None where it was not built, cannot be loaded, or is not wanted."""
    if PURE:
        return None
    try:
        return importlib.import_module(f"kvwire._{name}_ext")
    except ImportError:
        return None
