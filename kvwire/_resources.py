"""Where the data that ships with kvwire is: the golden vectors and the machine-readable specification.

A wheel carries them inside the package. An editable install has them in the repository, beside the package.
"""

from __future__ import annotations

import sys
from importlib import resources
from pathlib import Path

if sys.version_info >= (3, 11):
    from importlib.resources.abc import Traversable
else:
    from importlib.abc import Traversable

__all__ = ["Traversable", "golden_dir", "spec_dir"]


def golden_dir() -> Traversable:
    """The folder of the golden vectors, with ``manifest.json`` in it. Raises FileNotFoundError if it is not there."""
    return _data("golden", "manifest.json")


def spec_dir() -> Traversable:
    """The folder of the specification, with ``requirements.toml`` and ``schema/`` in it. Raises FileNotFoundError if it
    is not there."""
    return _data("spec", "requirements.toml")


def _data(name: str, marker: str) -> Traversable:
    package = resources.files("kvwire")
    shipped = package / "_data" / name
    if (shipped / marker).is_file():
        return shipped
    if isinstance(package, Path):
        # The marker keeps a stranger's folder of that name, beside an installed package, from being taken for ours.
        beside = package.parent / name
        if (beside / marker).is_file():
            return beside
    raise FileNotFoundError(
        f"kvwire was installed without its {name} folder ({marker} is neither in the package nor beside it); "
        "install the wheel, or the repository in editable mode"
    )
