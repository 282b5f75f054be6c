"""The testees in ``conformance/testees``: what there is, how each is built, and the command that runs it.

::

    for spec in catalog():
        done = build(spec)
        if isinstance(done, Built):
            subprocess.Popen(done.command, stdin=PIPE, stdout=PIPE)

    python -m kvwire_conform.testees list
    python -m kvwire_conform.testees build [NAME[@VERSION] …]

A testee's own facts are in its ``testee.toml`` (`Recipe`); nothing here knows any of them by name. The sources are in the
repository and in the source distribution, not in the wheel.
"""

from __future__ import annotations

import argparse
import difflib
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from kvwire.errors import UsageError
from kvwire_conform.testees_build import BuildError, Built, Recipe, Skipped, Step, build_recipe, builds_dir

__all__ = [
    "BuildError",
    "Built",
    "Recipe",
    "Skipped",
    "Step",
    "TesteeError",
    "TesteeSpec",
    "build",
    "builds_dir",
    "catalog",
    "find",
    "known_failures",
    "main",
    "testees_dir",
]


class TesteeError(UsageError):
    """The testees cannot be used: no such testee or version, a ``testee.toml`` that is wrong, or no sources here."""

    code = "testee"


class TesteeSpec(msgspec.Struct, frozen=True):
    """One testee of the repository.

    Attributes:
        name: of its folder, and of its known-failures file.
        folder: where its sources are.
        recipe: its ``testee.toml``.
    """

    name: str
    folder: Path
    recipe: Recipe

    @property
    def language(self) -> str:
        """The language it is written in, e.g. ``Go``."""
        return self.recipe.language

    @property
    def tool(self) -> str:
        """The first program that building or running it needs; ``python`` where that is all."""
        return next(iter(self.recipe.tools), "python")

    @property
    def versions(self) -> tuple[str, ...]:
        """Versions of the library or consumer that can be built, oldest first; empty: whatever is installed."""
        return self.recipe.versions


def testees_dir() -> Path:
    """The folder of the testees' sources.

    Raises:
        TesteeError: this kvwire was installed from a wheel, which does not carry them.
    """
    root = Path(__file__).resolve().parents[2]
    folder = root / "conformance" / "testees"
    # A wheel's package has no pyproject.toml above it; whatever else is called so there is a stranger's.
    if not (folder.is_dir() and (root / "pyproject.toml").is_file()):
        raise TesteeError(
            "the testees' sources are not in kvwire's wheel: they are in its repository and in its source distribution, "
            "under conformance/testees. Run this from there (pip install -e '.[conform]')"
        )
    return folder


def catalog(folder: Path | None = None) -> tuple[TesteeSpec, ...]:
    """Every testee, by name: each folder that has a ``testee.toml``.

    Raises:
        TesteeError: no sources here, or a ``testee.toml`` that is wrong.
    """
    files = sorted((folder or testees_dir()).glob("*/testee.toml"))
    return tuple(TesteeSpec(path.parent.name, path.parent, _recipe(path)) for path in files)


def _recipe(path: Path) -> Recipe:
    try:
        return msgspec.toml.decode(path.read_bytes(), type=Recipe)
    except (msgspec.DecodeError, ValueError) as error:
        raise TesteeError(f"{path.parent.name}/testee.toml: {error}") from error


def find(name: str, specs: Iterable[TesteeSpec] | None = None) -> tuple[TesteeSpec, str | None]:
    """The testee of a name, and the version where the name is ``NAME@VERSION``.

    Raises:
        TesteeError: there is none, with the near ones.
    """
    known = {spec.name: spec for spec in (catalog() if specs is None else specs)}
    plain, _, version = name.partition("@")
    if plain not in known:
        near = difflib.get_close_matches(plain, known, n=2) or sorted(known)
        raise TesteeError(f"no testee is called {plain!r}; there is {', '.join(near)}")
    spec = known[plain]
    if version and version not in spec.versions:
        there = ", ".join(spec.versions) or "no version to choose: it takes what is installed"
        raise TesteeError(f"{plain} has no version {version!r}; there is {there}")
    return spec, version or None


def build(spec: TesteeSpec, version: str | None = None) -> Built | Skipped:
    """Build a testee unless it is built already from the same sources.

    Args:
        version: one of ``spec.versions``; the newest by default.

    Returns:
        The command that runs it, or why it cannot be built here.

    Raises:
        BuildError: a build step failed; or, with ``KVWIRE_REQUIRE_TESTEES=1``, a tool is missing.
        TesteeError: no such version.
    """
    if version is None:
        version = spec.versions[-1] if spec.versions else ""
    elif version not in spec.versions:
        find(f"{spec.name}@{version}", (spec,))
    return build_recipe(spec.name, spec.folder, spec.recipe, version)


def known_failures(spec: TesteeSpec, version: str | None = None) -> Path | None:
    """The known-failures file of a testee: ``<name>@<version>.txt``, else ``<name>.txt``, else None."""
    folder = spec.folder.parent / "known-failures"
    if version is None and spec.versions:
        version = spec.versions[-1]
    names = [f"{spec.name}@{version}.txt"] if version else []
    return next((folder / name for name in (*names, f"{spec.name}.txt") if (folder / name).is_file()), None)


def main(argv: Sequence[str] | None = None) -> int:
    """The command line. Returns 0 when nothing failed (a skip is no failure), 1 when a build did, 2 for a wrong name."""
    parser = argparse.ArgumentParser(
        prog="python -m kvwire_conform.testees", description="The testees of the repository."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="what there is")
    one = commands.add_parser("build", help="build all that this machine has the tools for, or the ones that are named")
    one.add_argument("names", nargs="*", metavar="NAME[@VERSION]")
    told = parser.parse_args(argv)
    try:
        specs = catalog()
        if told.command == "list":
            _list(specs)
            return 0
        return _build_all(_wanted(told.names, specs))
    except TesteeError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def _list(specs: Sequence[TesteeSpec]) -> None:
    for spec in specs:
        print(f"{spec.name:18} {spec.language:11} {', '.join(spec.versions) or 'as installed'}")


def _wanted(names: Sequence[str], specs: Sequence[TesteeSpec]) -> list[tuple[TesteeSpec, str | None]]:
    chosen = [find(name, specs) for name in names] or [(spec, None) for spec in specs]
    return [(spec, each) for spec, version in chosen for each in ((version,) if version else spec.versions or (None,))]


def _build_all(wanted: Iterable[tuple[TesteeSpec, str | None]]) -> int:
    failed = False
    for spec, version in wanted:
        label = f"{spec.name}@{version}" if version else spec.name
        try:
            done = build(spec, version)
        except BuildError as error:
            failed = True
            print(f"FAILED  {label}: {error}", flush=True)
            continue
        if isinstance(done, Skipped):
            print(f"skipped {label}: {done.reason}", flush=True)
        else:
            how = "built" if done.fresh else "ready"
            print(f"{how:7} {label}: {' '.join(map(_quoted, done.command))}", flush=True)
    return 1 if failed else 0


def _quoted(word: str) -> str:
    return word if re.fullmatch(r"[\w@%+=:,./-]+", word) else "'" + word.replace("'", "'\\''") + "'"


if __name__ == "__main__":
    sys.exit(main())
