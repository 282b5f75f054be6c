"""The package of a router's release, unpacked into the cache folder. pip does the talking, with the user's configuration."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from kvwire_conform.releases_fetch import cache_dir
from kvwire_conform.routers.errors import RouterError

__all__ = ["INSTALL_TIMEOUT", "package_folder"]

INSTALL_TIMEOUT = 600.0
"""Seconds that pip may take for one release; the wheels have 30 to 75 MB."""

_VERSION = re.compile(r"[0-9][0-9A-Za-z.+!-]*")


def package_folder(package: str, release: str, *, timeout: float = INSTALL_TIMEOUT) -> Path:
    """Folder that goes on the Python path to import a release of a package; without its dependencies.

    It is kept in the cache folder (``$KVWIRE_CACHE``, see `kvwire_conform.releases.cache_dir`), where every release has a
    folder of its own; what is there already is used as it is, without any network.

    Raises:
        RouterError: ``no-such-release``, ``router-unreachable``, ``no-pip`` or ``cache``.
    """
    if not _VERSION.fullmatch(release):
        raise RouterError(
            f"{release!r} is no version; write it as the package index does, e.g. 1.6.1", code="no-such-release"
        )
    home = cache_dir() / "routers" / f"{package}-{release}"
    if home.is_dir():
        return home
    try:
        home.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".part-", dir=home.parent) as part:
            unpacked = Path(part, "package")
            _install(package, release, unpacked, timeout)
            _settle(unpacked, home)
    except OSError as error:
        raise RouterError(
            f"cannot keep {package} {release} in {home}: {error.strerror}; set KVWIRE_CACHE to a folder that can be written",
            code="cache",
        ) from error
    return home


def _settle(unpacked: Path, home: Path) -> None:
    try:
        unpacked.rename(home)
    except OSError:
        # Another process was faster; its copy is as good.
        if not home.is_dir():
            raise


def _install(package: str, release: str, target: Path, timeout: float) -> None:
    command = ["install", "--no-deps", "--only-binary", ":all:", "--no-compile", "--target", str(target)]
    done = _pip([*command, f"{package}=={release}"], timeout)
    if done.returncode == 0 and target.is_dir():
        return
    said = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    versions = re.search(r"\(from versions: ([^)]*)\)", done.stderr)
    if versions is not None and versions[1].strip() not in ("", "none"):
        raise RouterError(
            f"the package index has no {package} {release} for this machine; it has {versions[1]}",
            code="no-such-release",
        )
    raise RouterError(
        f"{package} {release} is not in the cache ({cache_dir()}) and pip could not install it: "
        f"{'; '.join(said[-2:]) or 'it said nothing'}. Check the network and `pip config list`",
        code="router-unreachable",
    )


def _pip(args: list[str], timeout: float) -> subprocess.CompletedProcess[str]:
    if importlib.util.find_spec("pip") is not None:
        pip = [sys.executable, "-m", "pip"]
    elif (found := shutil.which("pip")) is not None:
        pip = [found]
    else:
        raise RouterError(
            "pip is needed to get a router's package, and neither this Python nor the PATH has it: python -m ensurepip",
            code="no-pip",
        )
    env = {**os.environ, "PIP_NO_INPUT": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_COLOR": "1"}
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
        raise RouterError(
            f"pip did not finish within {timeout:g} s; is the package index reachable?", code="router-unreachable"
        ) from error
