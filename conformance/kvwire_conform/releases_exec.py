"""Run the KV-events module of a release, with stand-ins for what it imports of the rest of its engine.

The module's own classes are real, and so are the standard library, msgspec, pyzmq and pydantic below them. Only names
that it imports from its own engine (loggers, configuration, network helpers) are stood in for, by an import hook that
the module alone sees: nothing is put into ``sys.modules``, so an installed engine is neither used nor disturbed.
"""

from __future__ import annotations

import builtins
import importlib.util
import logging
import sys
import types
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

from kvwire_conform.releases_source import ReleaseError, ReleaseSource

_KNOWN: Mapping[tuple[str, str], object] = {
    ("vllm.logger", "init_logger"): logging.getLogger,
    ("vllm.v1.core.kv_cache_utils", "ExternalBlockHash"): bytes | int,
    ("vllm.config", "KVEventsConfig"): types.SimpleNamespace,
    ("vllm.config.kv_events", "KVEventsConfig"): types.SimpleNamespace,
}


class StandIn(type):
    """Type of every placeholder: a class that says what it stands for as soon as it is used."""

    def __call__(cls, *args: object, **kwargs: object) -> NoReturn:
        raise ReleaseError(f"{cls.__name__} is a stand-in and cannot be called", code="release-code")

    def __getattr__(cls, name: str) -> NoReturn:
        raise AttributeError(f"{cls.__name__} is a stand-in and has no {name}")


class _StandInModule(types.ModuleType):
    """A module of the engine that is not there; gives a stand-in for each name that is imported from it."""

    def __init__(self, name: str, used: dict[str, object]) -> None:
        super().__init__(name)
        self._used = used

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        dotted = f"{self.__name__}.{name}"
        if dotted not in self._used:
            self._used[dotted] = _KNOWN.get((self.__name__, name)) or StandIn(dotted, (), {})
        return self._used[dotted]


def run_module(source: ReleaseSource) -> tuple[types.ModuleType, tuple[str, ...]]:
    """Execute a release's KV-events module in this process.

    This runs code that was downloaded: the module's top level, which in every release that was read defines classes and
    makes a logger. Call it for releases whose publisher you trust.

    Returns:
        The module, which is in no ``sys.modules``, and the dotted names that were stood in for.

    Raises:
        ReleaseError: ``release-code``, if the module does not run here.
    """
    used: dict[str, object] = {}
    name = f"kvwire_release.{source.engine}_{source.version}"
    module = types.ModuleType(name)
    module.__dict__["__builtins__"] = {**vars(builtins), "__import__": _importer(source.engine, used)}
    try:
        code = compile(source.text, f"<{source.release}: {source.member}>", "exec", dont_inherit=True)
        with registered(module):
            exec(code, module.__dict__)
    except Exception as error:
        raise ReleaseError(
            f"the KV-events module of {source.release} does not run here (Python {sys.version.split()[0]}): "
            f"{type(error).__name__}: {error}",
            code="release-code",
        ) from error
    return module, tuple(used)


@contextmanager
def registered(module: types.ModuleType) -> Iterator[None]:
    """Have a module in ``sys.modules`` for the duration: where annotations that are strings are looked up."""
    sys.modules[module.__name__] = module
    try:
        yield
    finally:
        sys.modules.pop(module.__name__, None)


def _importer(engine: str, used: dict[str, object]) -> Any:
    def stand_in_import(
        name: str,
        globals: Mapping[str, object] | None = None,
        locals: Mapping[str, object] | None = None,
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> types.ModuleType:
        root = name.partition(".")[0]
        # The structs do not need pydantic (SGLang's configuration class does), and reading them must not demand it.
        absent = root == "pydantic" and importlib.util.find_spec(root) is None
        if level or root == engine or absent:
            return _StandInModule(name if fromlist else root, used)
        return builtins.__import__(name, globals, locals, fromlist or (), level)

    return stand_in_import
