"""Builds the real backends of the tests, Jaeger and the Collector, once a machine: `make backends`.

    python -m tests.otel.backends.build [jaeger] [otelcol]

Both are Go modules, which come by the machine's own Go settings. Only the two programs are kept: what Go downloads and compiles
on the way (some 3 GB) goes to Go's own folders where they exist, else to a temporary folder that is removed.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

from tests.otel.backends.binaries import COLLECTOR, COMPONENTS, JAEGER, NEEDS, MissingError, Program, folder
from tests.otel.backends.progress import BuildError, follow, say

JAEGER_MODULE = "github.com/jaegertracing/jaeger@v1.76.0"
"""The commit that is also v2.13.0: Go cannot address a v2 of a module whose go.mod does not end in /v2."""
COLLECTOR_BUILDER = "go.opentelemetry.io/collector/cmd/builder@v0.159.0"
Build = Callable[[Path, dict[str, str], Path], None]


def main(names: list[str]) -> int:
    """Build those of the named programs, by default all, that are missing; 0 if they are there then."""
    try:
        for program, build in ((JAEGER, build_jaeger), (COLLECTOR, build_collector)):
            if not names or program.name in names:
                provide(program, build)
    except (BuildError, MissingError) as failed:
        sys.stderr.write(f"{failed}\n")
        return 1
    return 0


def provide(program: Program, build: Build) -> None:
    """Build a program, unless the environment names one or it is there."""
    if not os.environ.get(program.variable) and not program.cached().is_file():
        folder().mkdir(parents=True, exist_ok=True)
        with alone(program):
            if not program.cached().is_file():
                build_in_scratch(program, build)
    say(f"{program.name}: {program.find()}")


@contextmanager
def alone(program: Program) -> Generator[None]:
    """Wait until no other process builds the program, and keep the others off."""
    with (folder() / f".{program.name}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"{program.name}: another process is building it; waiting")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def build_in_scratch(program: Program, build: Build) -> None:
    """Build a program, and put it into its place in one step."""
    if not shutil.which("go"):
        raise BuildError(f"{program.name} cannot be built: install {NEEDS}, or set {program.variable} to a ready program")
    started = time.monotonic()
    say(f"== building {program.name} {program.version}, which takes a few minutes, once")
    scratch = folder() / f".building-{program.name}"
    shutil.rmtree(scratch, ignore_errors=True)  # left by a build that was killed
    scratch.mkdir()
    try:
        build(scratch, environment(scratch), scratch / program.name)
        (scratch / program.name).replace(program.cached())
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    say(f"== built in {time.monotonic() - started:.0f} s")


def environment(scratch: Path) -> dict[str, str]:
    """Return Go's environment: its own folders if it has any, else some below *scratch* that can be removed again."""
    asked = subprocess.run(["go", "env", "-json"], capture_output=True, check=True, text=True)
    own = json.loads(asked.stdout)
    env = {**os.environ, "CGO_ENABLED": "0", "GOWORK": "off", "GOBIN": str(scratch)}
    if not Path(own["GOMODCACHE"]).is_dir():
        env |= {"GOPATH": str(scratch / "go"), "GOMODCACHE": str(scratch / "modules"), "GOFLAGS": f"{own['GOFLAGS']} -modcacherw".strip()}
    if not Path(own["GOCACHE"]).is_dir():
        env["GOCACHE"] = str(scratch / "compiled")
    return env


def build_jaeger(scratch: Path, env: dict[str, str], out: Path) -> None:
    """Build Jaeger inside its own module: the `replace` lines of its go.mod hold only there."""
    told = follow(["go", "mod", "download", "-json", JAEGER_MODULE], scratch, env, "fetching")
    compile_program(Path(json.loads(told)["Dir"]), "./cmd/jaeger", env, out)


def build_collector(scratch: Path, env: dict[str, str], out: Path) -> None:
    """Let the Collector's own builder write a program of the wanted parts, and compile that."""
    follow(["go", "install", COLLECTOR_BUILDER], scratch, env, "fetching and compiling its builder")
    sources = scratch / "sources"
    sources.mkdir()
    follow([str(scratch / "builder"), "--skip-compilation", f"--config={COMPONENTS}"], sources, env, "fetching")
    compile_program(sources, ".", env, out)


def compile_program(module: Path, package: str, env: dict[str, str], out: Path) -> None:
    """Compile a package of the module in a folder."""
    packages = follow(["go", "list", "-mod=readonly", "-deps", package], module, env, "fetching").split()
    build = ["go", "build", "-v", "-mod=readonly", "-trimpath", "-ldflags=-s -w", "-o", str(out), package]
    follow(build, module, env, "compiling", len(packages))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
