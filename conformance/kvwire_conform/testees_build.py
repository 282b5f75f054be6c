"""Build one testee in a folder of its own, outside its sources, once for each state of the sources."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from kvwire.errors import KvwireError

STEP_TIMEOUT = 1800.0
"""Seconds that one build step may take: a cold build of a crate with an async runtime takes minutes on two cores."""

_NO_SOURCE = ("__pycache__", "node_modules", "target", ".mypy_cache", ".ruff_cache")
_STAMP = "built-from"


class BuildError(KvwireError):
    """A testee was not built: a step failed, or a tool is missing where ``KVWIRE_REQUIRE_TESTEES=1`` asks for all."""

    code = "testee-build"


class Step(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One command of a build, run in the copy of the sources.

    Attributes:
        argv: program and arguments. Placeholders as in `Recipe`.
        env: variables beside those of the caller. Placeholders as in `Recipe`.
    """

    argv: tuple[str, ...]
    env: dict[str, str] = {}


class Recipe(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A ``testee.toml``.

    Placeholders in commands: ``{source}`` the testee's folder, ``{build}`` the build's own folder, ``{version}`` the version,
    ``{cache}`` a folder that all versions of the testee share (for compiled dependencies), ``{python}`` the Python that runs
    this.

    Attributes:
        language: e.g. ``Go``.
        library: what decodes, in words: the package and the function or type.
        run: the command that speaks the protocol.
        versions: of the library or the consumer, oldest first; empty: whatever is installed. The files of
            ``versions/<version>/`` lie over the sources in that version's build.
        tools: programs that the build needs, each with the lowest version that will do ("" for any).
        modules: Python modules that it needs, each with what to install for it.
        steps: the build; none: it runs from its sources.
    """

    language: str
    library: str
    run: tuple[str, ...]
    versions: tuple[str, ...] = ()
    tools: dict[str, str] = {}
    modules: dict[str, str] = {}
    steps: tuple[Step, ...] = ()


class Built(msgspec.Struct, frozen=True):
    """A testee that can be run.

    Attributes:
        command: argv; it runs from any working directory.
        fresh: whether it was built just now, and not before.
    """

    command: list[str]
    fresh: bool = False


class Skipped(msgspec.Struct, frozen=True):
    """A testee that this machine cannot build.

    Attributes:
        reason: in words, e.g. ``go is not on PATH``.
    """

    reason: str


def builds_dir() -> Path:
    """Where builds go: ``$KVWIRE_TESTEES``, else ``build/testees`` in the repository."""
    told = os.environ.get("KVWIRE_TESTEES")
    return Path(told).absolute() if told else Path(__file__).resolve().parents[2] / "build" / "testees"


def build_recipe(name: str, source: Path, recipe: Recipe, version: str) -> Built | Skipped:
    """Build ``recipe`` in one version; see `kvwire_conform.testees.build`."""
    root = builds_dir()
    target = root / (f"{name}@{version}" if version else name)
    places = {
        "source": str(source),
        "build": str(target / "work"),
        "version": version,
        "cache": str(root / "shared" / name),
        "python": sys.executable,
    }
    missing = _missing_module(recipe.modules)
    if missing:
        return _skip(missing)
    command = [_filled(word, places) for word in recipe.run]
    if not recipe.steps:
        return _runnable(command, fresh=False)
    stamp = _digest(source, recipe, version)
    if _stamped(target) == stamp:
        return _runnable(command, fresh=False)
    missing = _missing_tool(recipe.tools)
    if missing:
        return _skip(missing)
    target.mkdir(parents=True, exist_ok=True)
    Path(places["cache"]).mkdir(parents=True, exist_ok=True)
    with _locked(root / "shared" / f"{name}.lock"):
        # Another process may have built it while this one waited for the lock.
        if _stamped(target) == stamp:
            return _runnable(command, fresh=False)
        (target / _STAMP).unlink(missing_ok=True)
        _copy_sources(source, target / "work", version)
        for step in recipe.steps:
            _run(step, target / "work", places)
        (target / _STAMP).write_text(stamp, encoding="ascii")
    return _runnable(command, fresh=True)


def _filled(word: str, places: Mapping[str, str]) -> str:
    return re.sub(r"\{(\w+)\}", lambda found: places.get(found[1], found[0]), word)


def _skip(reason: str) -> Skipped:
    if os.environ.get("KVWIRE_REQUIRE_TESTEES", "") not in ("", "0"):
        raise BuildError(f"{reason}, and KVWIRE_REQUIRE_TESTEES asks for every testee")
    return Skipped(reason)


def _runnable(command: list[str], *, fresh: bool) -> Built | Skipped:
    if shutil.which(command[0]) is None:
        return _skip(f"{Path(command[0]).name} is not on PATH")
    return Built(command, fresh)


def _missing_module(modules: Mapping[str, str]) -> str | None:
    for module, package in modules.items():
        if importlib.util.find_spec(module) is None:
            return f"the Python package {package} is not installed (pip install {package})"
    return None


def _missing_tool(tools: Mapping[str, str]) -> str | None:
    for tool, lowest in tools.items():
        if shutil.which(tool) is None:
            return f"{tool} is not on PATH"
        if lowest:
            there = _tool_version(tool)
            if there is not None and there < _numbers(lowest):
                return f"{tool} is {'.'.join(map(str, there))}; it takes {lowest} or later"
    return None


def _tool_version(tool: str) -> tuple[int, ...] | None:
    asked = [tool, "version"] if tool == "go" else [tool, "--version"]
    said = subprocess.run(asked, capture_output=True, text=True, timeout=60, check=False).stdout
    found = re.search(r"\d+(?:\.\d+)+", said)
    return _numbers(found[0]) if found else None


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version))


def _source_files(source: Path, version: str) -> Iterator[tuple[Path, Path]]:
    """Every file of a version's build: its path in the build, and where it comes from; what lies over it last."""
    over = source / "versions" / version
    for base in (source, over) if version and over.is_dir() else (source,):
        for path in sorted(base.rglob("*")):
            relative = path.relative_to(base)
            inside = not (base == source and relative.parts[0] == "versions")
            if inside and path.is_file() and not set(_NO_SOURCE) & set(relative.parts):
                yield relative, path


def _digest(source: Path, recipe: Recipe, version: str) -> str:
    steps = [[list(step.argv), sorted(step.env.items())] for step in recipe.steps]
    found = hashlib.sha256(json.dumps([version, steps, sys.platform, platform.machine()]).encode())
    for relative, path in _source_files(source, version):
        if relative.name != "testee.toml":
            found.update(f"\n{relative.as_posix()}\n".encode())
            found.update(hashlib.sha256(path.read_bytes()).digest())
    return found.hexdigest()


def _stamped(target: Path) -> str | None:
    try:
        return (target / _STAMP).read_text(encoding="ascii")
    except FileNotFoundError:
        return None


def _copy_sources(source: Path, work: Path, version: str) -> None:
    shutil.rmtree(work, ignore_errors=True)
    for relative, path in _source_files(source, version):
        (work / relative).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, work / relative)


def _run(step: Step, work: Path, places: Mapping[str, str]) -> None:
    argv = [_filled(word, places) for word in step.argv]
    env = {**os.environ, **{name: _filled(value, places) for name, value in step.env.items()}}
    words = " ".join(step.argv)
    try:
        done = subprocess.run(
            argv,
            cwd=work,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=STEP_TIMEOUT,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise BuildError(f"`{words}` was not done after {STEP_TIMEOUT:.0f} seconds") from None
    except OSError as error:
        raise BuildError(f"`{words}` could not be run: {error.strerror}") from error
    if done.returncode:
        raise BuildError(f"`{words}` ended with {done.returncode}:\n{_end(done.stdout)}")


def _end(text: str, lines: int = 25) -> str:
    return "\n".join(f"    {line}" for line in text.rstrip().splitlines()[-lines:])


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Keep other processes out of the same build; without file locks (Windows) they are left to race."""
    try:
        import fcntl
    except ImportError:
        yield
        return
    with path.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield
