"""Compiles the twins while the package is built; part of the build, not of the package.

It takes a C compiler and Python's headers. Where they are missing, or OPTREE_PURE is set, the package is built without, and says so.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.config import BuilderConfig
from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_HERE = "optree/speed"
_PATIENCE = 300.0


class CompileTwins(BuildHookInterface[BuilderConfig]):
    """Builds ``optree/speed/_twins.<platform>.so`` into the wheel; for an editable install, beside its source."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and make the wheel one of this platform; or leave it pure. *version* is `standard` or `editable`."""
        if self.target_name != "wheel":
            return
        name = "_twins" + sysconfig.get_config_var("EXT_SUFFIX")
        self._folder = tempfile.mkdtemp(prefix="optree-build-")
        made = Path(self._folder, name)
        trouble = "OPTREE_PURE is set" if os.environ.get("OPTREE_PURE") else self._compile(made)
        beside = Path(self.root, _HERE, name)
        if version == "editable":
            beside.unlink(missing_ok=True)
        if trouble:
            self.app.display_warning(f"optree is built without its compiled hot path, and works more slowly: {trouble}")
            return
        if version == "editable":
            shutil.move(made, beside)
        else:
            build_data["force_include"][str(made)] = f"{_HERE}/{name}"
        build_data["pure_python"] = False
        build_data["infer_tag"] = True

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove what is in the wheel now."""
        del version, build_data, artifact_path
        shutil.rmtree(self._folder, ignore_errors=True)

    def _compile(self, made: Path) -> str:
        """Return why it could not be compiled; "" if it was."""
        compiler = os.environ.get("CC") or sysconfig.get_config_var("CC")
        version: str = self.metadata.version  # pyright: ignore[reportUnknownMemberType] - hatchling leaves it generic
        if os.name != "posix" or not compiler:
            return f"no compiler is known for {os.name}"
        command = [
            *shlex.split(compiler),
            *("-shared", "-fPIC", "-O2", f'-DOPTREE_VERSION="{version}"'),
            *(["-undefined", "dynamic_lookup"] if sysconfig.get_platform().startswith("macosx") else []),
            f"-I{sysconfig.get_path('include')}",
            f"-I{sysconfig.get_path('platinclude')}",
            *("-o", str(made), str(Path(self.root, _HERE, "_twins.c"))),
        ]
        try:
            subprocess.run(command, check=True, capture_output=True, text=True, timeout=_PATIENCE)  # noqa: S603 - the compiler that Python was built with
        except subprocess.CalledProcessError as error:
            return next((line for line in error.stderr.splitlines() if "error" in line), str(error))
        except (OSError, subprocess.TimeoutExpired) as error:
            return str(error)
        return ""
