"""Where the golden vectors and the specification are: inside the wheel, or beside the package in a checkout."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import sys

    if sys.version_info >= (3, 11):
        from importlib.resources.abc import Traversable
    else:
        from importlib.abc import Traversable


def golden_dir() -> Traversable:
    """The folder ``golden/``. Raises FileNotFoundError when the installation has lost it."""
    return _folder("golden")


def spec_dir() -> Traversable:
    """The folder ``spec/``. Raises FileNotFoundError when the installation has lost it."""
    return _folder("spec")


def _folder(name: str) -> Traversable:
    packaged = files("kvwire") / "_data" / name
    if packaged.is_dir():
        return packaged
    beside = Path(__file__).resolve().parent.parent / name
    if beside.is_dir():
        return beside
    raise FileNotFoundError(f"kvwire was installed without its folder {name}/; install it again from a wheel or a checkout")
