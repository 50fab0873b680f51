"""What tracing costs: one command, a table for people, a JSON file for machines, a picture for the documentation.

    python -m benchmarks [NAME…] [--quick] [--json FILE]

A full run of everything also writes benchmarks/results/<date>-<machine>.json, docs/benchmarks.svg and the figures in docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import platform
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from time import perf_counter

import msgspec

from benchmarks import (
    bench_capture,
    bench_default,
    bench_formats,
    bench_growth,
    bench_import,
    bench_load,
    bench_memory,
    bench_op,
    bench_otel,
    bench_sessions,
    bench_snapshot,
    bench_web,
    picture,
    report,
)
from benchmarks.measure import ROOT, Pressure

BENCHES: dict[str, Callable[..., report.Report]] = {
    "default": bench_default.measure,
    "sessions": bench_sessions.measure,
    "web": bench_web.measure,
    "op": bench_op.measure,
    "capture": bench_capture.measure,
    "import": bench_import.measure,
    "memory": bench_memory.measure,
    "growth": bench_growth.measure,
    "snapshot": bench_snapshot.measure,
    "load": bench_load.measure,
    "otel": bench_otel.measure,
    "formats": bench_formats.measure,
}
PACKAGES = ["msgspec", "zstandard", "opentelemetry-sdk", "opentelemetry-exporter-otlp", "structlog", "eliot", "orjson"]
FORMAT = 1


def main(arguments: list[str] | None = None) -> int:
    """Run what was asked for; returns the exit status."""
    parser = _options()
    options = parser.parse_args(arguments)
    names = options.names or list(BENCHES)
    if unknown := [name for name in names if name not in BENCHES]:
        parser.error(f"there is no benchmark {unknown[0]!r}; there are {', '.join(BENCHES)}")
    run = _run(names, quick=options.quick)
    figures = report.text(run)
    print(figures)
    if options.json is not None:
        _write_json(run, options.json)
    elif names == list(BENCHES) and not options.quick:
        publish(run, figures)
    return 0


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description="What tracing with optree costs, beside a floor and its peers."
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"which to run, of {', '.join(BENCHES)}; all by default")
    parser.add_argument("--quick", action="store_true", help="small and noisy, in less than a minute")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here, and nowhere else")
    return parser


def _run(names: list[str], *, quick: bool) -> report.Run:
    reports: list[report.Report] = []
    for name in names:
        print(f"{name}…", file=sys.stderr, flush=True)
        begun, pressure = perf_counter(), Pressure()
        found = BENCHES[name](quick=quick)
        found.pressure, found.seconds = pressure.percent(), perf_counter() - begun
        reports.append(found)
    date = datetime.now(UTC).strftime("%Y-%m-%d")
    return report.Run(FORMAT, date, _machine(), _about(), quick, reports)


def publish(run: report.Run, figures: str) -> None:
    """Keep a run of everything: its JSON file, the picture, and the figures in the documentation."""
    _write_json(run, ROOT / "benchmarks" / "results" / f"{run.date}-{report.slug(run.machine)}.json")
    report.rewrite(ROOT / "docs" / "benchmarks.md", figures)
    try:
        picture.draw(run, ROOT / "docs" / "benchmarks.svg")
    except ImportError as error:
        print(f"no picture was drawn: {error}; pip install matplotlib", file=sys.stderr)


def _write_json(run: report.Run, file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(msgspec.json.format(msgspec.json.encode(run), indent=1) + b"\n")
    print(f"written: {file}", file=sys.stderr)


def _machine() -> str:
    return f"{platform.system()} {platform.machine()} {os.cpu_count()} cores {platform.python_implementation()} {platform.python_version()}"


def _about() -> dict[str, str]:
    found = {"optree-tracing": _optree_version()}
    with contextlib.suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
        found["on"] = next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    for name in PACKAGES:
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def _optree_version() -> str:
    import optree
    from optree import _speed as speed

    return f"{optree.__version__} ({'compiled' if speed.compiled() else 'pure Python'})"


if __name__ == "__main__":
    sys.exit(main())
