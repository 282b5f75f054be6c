"""Compiles kvwire/_ext/<name>.c into kvwire/_<name>_ext, for wheels and editable installs alike.

The extensions only make kvwire faster. Where none can be built (no compiler, no Python headers, or KVWIRE_PURE=1) the
package is installed without them and says so; the wheel is then a pure one.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CompileExtensions(BuildHookInterface):
    """The build hook of the wheel target."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and make the wheel a platform wheel when all of it worked.

        An editable install finds its extensions beside their Python files. A wheel takes them from a scratch folder, and
        leaves the source tree as it was.
        """
        self._scratch = tempfile.mkdtemp(prefix="kvwire-build-")
        made = self._made(Path(self.root, "kvwire", "_ext"), Path(self._scratch))
        if version == "editable":
            _replace(made, Path(self.root, "kvwire"))
        else:
            build_data["force_include"].update({str(extension): f"kvwire/{extension.name}" for extension in made})
        if made:
            build_data["pure_python"] = False
            build_data["infer_tag"] = True

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the scratch folder."""
        shutil.rmtree(self._scratch, ignore_errors=True)

    def _made(self, sources: Path, scratch: Path) -> list[Path]:
        """All extensions, or none: half of them would be neither fast nor plainly pure."""
        if os.environ.get("KVWIRE_PURE", "0") not in ("", "0"):
            return []
        made = []
        for source in sorted(sources.glob("*.c")):
            extension = scratch / f"_{source.stem}_ext{_suffix()}"
            problem = _compile(source, extension)
            if problem:
                self.app.display_warning(
                    f"kvwire is installed without extensions, as pure Python: {source.name}: {problem}"
                )
                return []
            made.append(extension)
        return made


def _suffix() -> str:
    return str(sysconfig.get_config_var("EXT_SUFFIX") or ".so")


def _replace(made: list[Path], package: Path) -> None:
    """Make these the extensions of a source tree. Renamed into place: a process that has an old one mapped keeps it."""
    for stale in {*package.glob(f"_*_ext{_suffix()}")} - {package / extension.name for extension in made}:
        stale.unlink()
    for extension in made:
        near = package / f"{extension.name}.new"
        shutil.copy2(extension, near)
        os.replace(near, package / extension.name)


def _compile(source: Path, target: Path) -> str:
    """Compile one C file as an extension module. Returns what went wrong, in words; empty when nothing did."""
    try:
        command = _msvc(source, target) if sys.platform == "win32" else _unix(source, target)
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", cwd=target.parent, check=False)
    except OSError as error:
        return f"{error.strerror}: {error.filename}"
    except ValueError as error:
        return f"CC, CFLAGS or LDFLAGS cannot be read: {error}"
    if done.returncode:
        words = (done.stderr + done.stdout).strip().splitlines()
        return "the compiler says: " + next((line for line in words if "error" in line.lower()), "\n".join(words[-1:]))
    return ""


def _unix(source: Path, target: Path) -> list[str]:
    config = sysconfig.get_config_vars()
    compiler = shlex.split(os.environ.get("CC") or config.get("CC") or "cc")
    linker = shlex.split(config.get("LDSHARED") or "cc -shared")
    shared = linker[len(shlex.split(config.get("CC") or "cc")) :]
    includes = {sysconfig.get_path("include"), sysconfig.get_path("platinclude")}
    flags = ["-O3", "-fPIC", "-fvisibility=hidden", "-fwrapv", "-DNDEBUG", "-std=c11", "-Wall", "-Wextra"]
    flags += ["-Wno-missing-field-initializers", "-Wno-cast-function-type", *shlex.split(os.environ.get("CFLAGS", ""))]
    places = [f"-I{path}" for path in sorted(includes)]
    last = [*shared, *shlex.split(os.environ.get("LDFLAGS", ""))]
    return [*compiler, *flags, *places, str(source), "-o", str(target), *last]


def _msvc(source: Path, target: Path) -> list[str]:
    libs = Path(sys.base_prefix, "libs")
    name = "PyInit_" + target.name.partition(".")[0]
    include = sysconfig.get_path("include")
    options = ["/nologo", "/LD", "/O2", "/std:c11", "/DNDEBUG", f"/I{include}", str(source), f"/Fe{target}"]
    return ["cl", *options, "/link", f"/LIBPATH:{libs}", f"/EXPORT:{name}"]
