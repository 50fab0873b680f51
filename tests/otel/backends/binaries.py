"""Which real backends the tests use, and where their programs are."""

import hashlib
import os
import shutil
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
COMPONENTS = HERE / "collector.yaml"
"""The Collector's parts, as its own builder reads them."""
NEEDS = "Go 1.25 or newer"


class MissingError(Exception):
    """A backend's program is not on this machine; the text says what to do."""


class Program(NamedTuple):
    """A backend's program."""

    name: str
    version: str
    variable: str
    """The environment variable that names a ready program, by its path or as it stands on PATH."""
    built: bool
    """Whether `make backends` can build it."""

    def cached(self) -> Path:
        """Where `make backends` puts it."""
        return folder() / f"{self.name}-{self.version}"

    def find(self) -> Path:
        """Return the program: the one that the environment names, the one that was built, or, of those that are not built, one on PATH.

        Raises:
            MissingError: There is none.

        """
        if named := os.environ.get(self.variable):
            if ready := shutil.which(named):
                return Path(ready).absolute()
            raise MissingError(f"{self.variable} names {named}, which is no program that can be run here")
        if self.built:
            if self.cached().is_file():
                return self.cached()
            raise MissingError(f"{self.name} is not built: run `make backends` (needs {NEEDS}), or set {self.variable} to a ready program")
        if on_path := shutil.which(self.name):
            return Path(on_path)
        raise MissingError(f"there is no {self.name}: put it on PATH, or set {self.variable} to it")


JAEGER = Program("jaeger", "2.13.0", "OPTREE_JAEGER", built=True)
COLLECTOR = Program("otelcol", f"0.159.0-{hashlib.sha256(COMPONENTS.read_bytes()).hexdigest()[:8]}", "OPTREE_COLLECTOR", built=True)
TEMPO = Program("tempo", "3.0.3", "OPTREE_TEMPO", built=False)
PHOENIX = Program("phoenix", "20.26", "OPTREE_PHOENIX", built=False)
MLFLOW = Program("mlflow", "3.17", "OPTREE_MLFLOW", built=False)


def folder() -> Path:
    """Where the built programs are kept, outside the repository so that a new clone finds them."""
    return Path(os.environ.get("OPTREE_BACKENDS_DIR") or Path.home() / ".cache" / "optree" / "backends").absolute()
