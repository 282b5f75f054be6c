"""Get the KV-events module of a published release out of its package, and keep it.

pip does the talking, so its configuration (index, proxy, certificates, credentials) is the user's own and holds here
too, and it compares the hash that the index gives. One file is downloaded whole, the module is taken out of it, and the
rest is thrown away. Sizes seen: SGLang wheels 1 to 39 MB, vLLM sdists 8 to 47 MB (its wheels are 200 to 500 MB and are
read only where a release has no sdist, as vLLM 0.15.0 and 0.15.1).
"""

from __future__ import annotations

import difflib
import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any

from kvwire.dialects.releases import version_key
from kvwire_conform.releases_source import ENGINES, MODULES, Engine, ReleaseError, ReleaseSource

DOWNLOAD_TIMEOUT = 600.0
"""Seconds that one pip run may take before it is ended."""

_VERSION = re.compile(r"[0-9][0-9A-Za-z.+!-]*")
_FOREIGN_WHEEL = [
    *("--only-binary", ":all:", "--implementation", "cp", "--python-version", "3.12"),
    *("--abi", "cp312", "--abi", "abi3", "--abi", "none"),
    *(arg for minor in range(17, 40) for arg in ("--platform", f"manylinux_2_{minor}_x86_64")),
    *("--platform", "manylinux2014_x86_64"),
]


def cache_dir() -> Path:
    """Where modules that were read are kept: ``$KVWIRE_CACHE``, else ``$XDG_CACHE_HOME/kvwire``, else ``~/.cache/kvwire``."""
    told = os.environ.get("KVWIRE_CACHE")
    if told:
        return Path(told)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kvwire"


def list_versions(engine: Engine, *, prereleases: bool = False, timeout: float = DOWNLOAD_TIMEOUT) -> list[str]:
    """Versions of an engine that the package index has, newest first; final ones unless `prereleases` are asked for.

    They include releases that are older than the KV events; `fetch_module` says so of each.

    Raises:
        ReleaseError: ``release-unreachable`` or ``no-pip``.
    """
    _check_engine(engine)
    command = ["index", "versions", engine, "--ignore-requires-python", *(["--pre"] if prereleases else [])]
    # pip lists what it could install here; the second question is for releases that have wheels of another platform only.
    answers = [_pip([*command, *way], timeout=timeout) for way in ([], _FOREIGN_WHEEL)]
    found = {
        version.strip()
        for done in answers
        for line in re.findall(r"^Available versions:(.*)$", done.stdout, re.MULTILINE)
        for version in line.split(",")
    }
    if not found:
        raise ReleaseError(
            f"the package index that pip is configured with gave no versions of {engine}. "
            f"Check the network and `pip config list` (index-url, proxy), or work from a cache folder that already has "
            f"the release (KVWIRE_CACHE). pip said: {_last_words(answers[0])}",
            code="release-unreachable",
        )
    return sorted(found, key=version_key, reverse=True)


def fetch_module(engine: Engine, version: str, *, timeout: float = DOWNLOAD_TIMEOUT) -> ReleaseSource:
    """Source of the KV-events module of a published release, from the cache or out of the published package.

    Nothing of the package is run, installed or kept but that one module (see `cache_dir`).

    Args:
        engine: ``sglang`` or ``vllm``.
        version: as the package index spells it, e.g. ``0.5.8.post1``.
        timeout: seconds that one pip run may take; there are at most five.

    Raises:
        ReleaseError: ``no-such-release``, ``no-such-module``, ``release-unreachable``, ``no-pip`` or ``cache``; the
            message says what to do.
    """
    _check_engine(engine)
    if not _VERSION.fullmatch(version):
        raise ReleaseError(
            f"{version!r} is not a version; write it as the package does, e.g. 0.5.8.post1", code="no-such-release"
        )
    folder = cache_dir() / "releases" / engine / version
    kept = _read_cache(folder)
    if kept is not None:
        return kept
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ReleaseError(
            f"cannot keep {engine} {version} in {folder}: {error.strerror}; set KVWIRE_CACHE to a folder that can be "
            f"written",
            code="cache",
        ) from error
    with tempfile.TemporaryDirectory(prefix="kvwire-release-", dir=_scratch_home()) as scratch:
        package = _download(engine, version, Path(scratch), timeout)
        source = _read_package(engine, version, package)
    _write_cache(folder, source)
    return source


def _scratch_home() -> str | None:
    # pip unpacks an sdist, ten thousand small files, only to drop them again: on a slow disk that is most of the time.
    memory = "/dev/shm"
    try:
        roomy = shutil.disk_usage(memory).free >= 4 << 30 and os.access(memory, os.W_OK)
    except OSError:
        return None
    return memory if roomy and "TMPDIR" not in os.environ else None


def _check_engine(engine: str) -> None:
    if engine not in ENGINES:
        raise ReleaseError(
            f"no engine {engine!r}; this reads the releases of {' and '.join(ENGINES)}", code="no-such-release"
        )


def _download(engine: Engine, version: str, scratch: Path, timeout: float) -> Path:
    backend = scratch / "backend" / "setuptools"
    backend.mkdir(parents=True)
    (backend / "__init__.py").touch()
    text = resources.files("kvwire_conform").joinpath("releases_backend.py").read_text(encoding="utf-8")
    (backend / "build_meta.py").write_text(text, encoding="utf-8")

    wheel = ["--only-binary", ":all:"]
    sdist = ["--no-binary", engine, "--no-build-isolation"]
    ways = [sdist, wheel, _FOREIGN_WHEEL] if engine == "vllm" else [wheel, sdist, _FOREIGN_WHEEL]
    told: list[str] = []
    for number, way in enumerate(ways):
        target = scratch / f"way{number}"
        command = ["download", "--no-deps", "--no-cache-dir", "--ignore-requires-python", "--dest", str(target)]
        done = _pip([*command, *way, f"{engine}=={version}"], timeout=timeout, scratch=scratch)
        files = sorted(target.iterdir()) if target.is_dir() else []
        if done.returncode == 0 and len(files) == 1:
            return files[0]
        told.append(_last_words(done))
        if "connection broken" in done.stderr:
            break
    _check_published(engine, version, timeout)
    raise ReleaseError(
        f"{engine} {version} is on the package index, but pip could download neither a wheel nor an sdist of it: "
        + " / ".join(dict.fromkeys(told)),
        code="release-unreachable",
    )


def _check_published(engine: Engine, version: str, timeout: float) -> None:
    known = list_versions(engine, prereleases=True, timeout=timeout)
    if version not in known:
        near = difflib.get_close_matches(version, known, n=3) or known[:3]
        raise ReleaseError(
            f"the package index has no {engine} {version}; the newest is {known[0]}, near ones are {', '.join(near)}. "
            f"Versions are compared as they are spelt: no leading v, and .post1 in full",
            code="no-such-release",
        )


def _pip(args: list[str], *, timeout: float, scratch: Path | None = None) -> subprocess.CompletedProcess[str]:
    if importlib.util.find_spec("pip") is not None:
        pip = [sys.executable, "-m", "pip"]
    elif (found := shutil.which("pip")) is not None:
        pip = [found]
    else:
        raise ReleaseError(
            "pip is needed to read a published release, and neither this Python nor the PATH has it: "
            "python -m ensurepip",
            code="no-pip",
        )
    env = {**os.environ, "PIP_NO_INPUT": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_COLOR": "1"}
    if scratch is not None:
        env["TMPDIR"] = str(scratch)
        env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(scratch / "backend"), env.get("PYTHONPATH")]))
    try:
        return subprocess.run(
            [*pip, *args, "--retries", "1"],
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout,
        )
    except subprocess.TimeoutExpired as error:
        raise ReleaseError(
            f"pip did not finish within {timeout:g} s ({' '.join(args[:2])}); is the package index reachable?",
            code="release-unreachable",
        ) from error


def _last_words(done: subprocess.CompletedProcess[str]) -> str:
    lines = [line.strip() for line in f"{done.stdout}\n{done.stderr}".splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR:")]
    return "; ".join((errors or lines)[-2:]) or f"nothing (exit {done.returncode})"


def _read_package(engine: Engine, version: str, package: Path) -> ReleaseSource:
    module = MODULES[engine]
    for member, read in _members(package):
        inner = member if package.suffix == ".whl" else member.partition("/")[2]
        if inner == module or (package.suffix != ".whl" and inner.endswith(f"/{module}")):
            data = read()
            break
    else:
        raise ReleaseError(
            f"{engine} {version} ({package.name}) has no {module}: it is older than the engine's KV events, "
            f"or a newer release moved them",
            code="no-such-module",
        )
    digest = hashlib.sha256()
    with package.open("rb") as stream:
        while chunk := stream.read(1 << 20):
            digest.update(chunk)
    return ReleaseSource(
        engine=engine,
        version=version,
        text=data.decode("utf-8"),
        package_file=package.name,
        package_size=package.stat().st_size,
        package_sha256=digest.hexdigest(),
        member=member,
        sha256=hashlib.sha256(data).hexdigest(),
    )


def _members(package: Path) -> Iterator[tuple[str, Any]]:
    if package.suffix in (".whl", ".zip"):
        with zipfile.ZipFile(package) as archive:
            for name in archive.namelist():
                yield name, lambda name=name: archive.read(name)
        return
    with tarfile.open(package, "r|*") as sdist:
        for entry in sdist:
            if entry.isfile():
                yield entry.name, lambda entry=entry: _tar_bytes(sdist, entry)


def _tar_bytes(sdist: tarfile.TarFile, entry: tarfile.TarInfo) -> bytes:
    stream = sdist.extractfile(entry)
    assert stream is not None, "a regular file always has a stream"
    return stream.read()


def _read_cache(folder: Path) -> ReleaseSource | None:
    try:
        data = (folder / "kv_events.py").read_bytes()
        facts = json.loads((folder / "provenance.json").read_text(encoding="utf-8"))
        source = ReleaseSource(text=data.decode("utf-8"), **facts)
    except (OSError, ValueError, TypeError):
        return None
    return source if source.sha256 == hashlib.sha256(data).hexdigest() else None


def _write_cache(folder: Path, source: ReleaseSource) -> None:
    folder.mkdir(exist_ok=True)
    provenance = json.dumps(source.provenance(), indent=1) + "\n"
    for name, data in (("kv_events.py", source.text.encode()), ("provenance.json", provenance.encode())):
        with tempfile.NamedTemporaryFile(dir=folder, delete=False) as part:
            part.write(data)
        os.replace(part.name, folder / name)
