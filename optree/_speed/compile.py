"""Compiles the C parts while the package is built; part of the build, not of the package.

It takes a C compiler and Python's headers. Where they are missing, or OPTREE_PURE is set, the package is built without, and says so.
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

from hatchling.builders.config import BuilderConfig
from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_SOURCES = {"optree/_speed/_twins": "optree/_speed/_twins", "exporters/optree_otel/_quick": "optree_otel/_quick"}
"""Each C part: where its source and, for an editable install, the compiled module stand, and where it goes in a wheel."""
_PATIENCE = 300.0


class Compile(BuildHookInterface[BuilderConfig]):
    """Builds the compiled modules into the wheel; for an editable install, beside their sources."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and make the wheel one of this platform; or leave it pure. *version* is `standard` or `editable`."""
        if self.target_name != "wheel":
            return
        self._folder = Path(tempfile.mkdtemp(prefix="optree-build-"))
        suffix: str = sysconfig.get_config_var("EXT_SUFFIX") or ".so"
        beside = {source: Path(self.root, source + suffix) for source in _SOURCES}
        if version == "editable":
            for path in beside.values():
                path.unlink(missing_ok=True)
        try:
            made = {source: self._compiled(source, suffix) for source in _SOURCES}
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            said = error.stderr if isinstance(error, subprocess.CalledProcessError) else ""
            trouble = next((line for line in said.splitlines() if "error" in line), str(error))
            self.app.display_warning(f"optree is built without its compiled parts, and works more slowly: {trouble}")
            return
        for source, path in made.items():
            if version == "editable":
                shutil.move(path, beside[source])
            else:
                build_data["force_include"][str(path)] = _SOURCES[source] + suffix
        build_data["pure_python"] = False
        build_data["infer_tag"] = True

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove what is in the wheel now."""
        del version, build_data, artifact_path
        shutil.rmtree(self._folder, ignore_errors=True)

    def _compiled(self, source: str, suffix: str) -> Path:
        """Return the path of a compiled module. Raises `OSError`, `ValueError` or `subprocess.SubprocessError` if it cannot be made."""
        compiler = os.environ.get("CC") or sysconfig.get_config_var("CC")
        if os.environ.get("OPTREE_PURE"):
            raise OSError("OPTREE_PURE is set")
        if os.name != "posix" or not compiler or sys.implementation.name != "cpython":
            raise OSError(f"no compiler is known for {sys.implementation.name} on {sys.platform}")
        version: str = self.metadata.version  # pyright: ignore[reportUnknownMemberType] - hatchling leaves it generic
        made = self._folder / (Path(source).name + suffix)
        command = [
            *shlex.split(compiler),
            *("-shared", "-fPIC", "-O2", f'-DOPTREE_VERSION="{version}"'),
            *(["-undefined", "dynamic_lookup"] if sysconfig.get_platform().startswith("macosx") else []),
            f"-I{Path(self.root, 'optree/_speed')}",
            f"-I{sysconfig.get_path('include')}",
            f"-I{sysconfig.get_path('platinclude')}",
            *("-o", str(made), str(Path(self.root, source + ".c"))),
        ]
        subprocess.run(command, check=True, capture_output=True, text=True, errors="replace", timeout=_PATIENCE)  # noqa: S603 - the compiler that Python was built with
        return made
