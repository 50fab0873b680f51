"""Two commits in pairs: what users run by default, beside the same of another commit. It prints ratios, and fails by none.

    python -m benchmarks.against REF [--pairs N]

Both are installed as a user installs them, into directories of their own, and run in turn, each time in a new process.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from statistics import median

from benchmarks.measure import ROOT
from benchmarks.report import Table, markdown

ROUNDS, UNITS = 5, 300


def main(arguments: list[str] | None = None) -> int:
    """Compare the working tree with a commit; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.against", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("ref", help="the commit to compare the working tree with")
    parser.add_argument("--pairs", type=int, default=7, help="how many times each runs (7)")
    options = parser.parse_args(arguments)
    commit = _git("rev-parse", "--verify", f"{options.ref}^{{commit}}").decode().strip()
    with tempfile.TemporaryDirectory(prefix="optree-against-") as name:
        folder = Path(name)
        with tarfile.open(fileobj=io.BytesIO(_git("archive", commit))) as archive:
            archive.extractall(folder / "source", filter="data")
        here, there = _installed(ROOT, folder / "here"), _installed(folder / "source", folder / "there")
        pairs = [(_run(here), _run(there)) for _ in range(options.pairs)]
    print(markdown(_table(pairs, commit[:10])))
    return 0


def _table(pairs: list[tuple[dict[str, float], dict[str, float]]], commit: str) -> Table:
    rows = [
        [
            name,
            median(here[name] for here, _ in pairs) / 1e3,
            median(there[name] for _, there in pairs) / 1e3,
            median(ratios := [here[name] / there[name] for here, there in pairs]),
            f"{min(ratios):.2f} to {max(ratios):.2f}",
        ]
        for name in pairs[0][0]
    ]
    note = (
        f"CPU time of the caller; {len(pairs)} pairs of processes. A ratio below 1 is quicker than {commit}; "
        "where 1 lies within the range of the pairs, nothing is known."
    )
    return Table(f"Beside {commit}", ["what", "µs here", "µs there", "here ÷ there", "in the pairs"], [*map(list, rows)], note)


def _git(*arguments: str) -> bytes:
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout


def _installed(source: Path, into: Path) -> Path:
    """Install a source tree, compiled where that can be, and return where."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--target", str(into), str(source)]
    subprocess.run(command, check=True, stdout=sys.stderr)
    return into


def _run(where: Path) -> dict[str, float]:
    """Return what each variant costs with the optree that is installed there, in nanoseconds."""
    environ = os.environ | {"PYTHONPATH": os.pathsep.join([str(where), str(ROOT)])}
    command = [sys.executable, "-P", "-m", "benchmarks.bench_default", "own", str(ROUNDS), str(UNITS)]
    return json.loads(subprocess.run(command, env=environ, check=True, stdout=subprocess.PIPE).stdout)


if __name__ == "__main__":
    sys.exit(main())
