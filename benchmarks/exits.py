"""How long a process takes to end while its sessions are mirrored to a collector in any state, beside one that is not mirrored.

    python -m benchmarks.exits [--quick] [WAY…]

Each of 15 ways to end meets each of 9 states of the collector, at once after the last op and 0.6 s later; a run without mirror goes before
each. What is measured is the time from the end of a process's own code to its end, for the children that it starts as well. Exit status 1
if one is more than `BOUND` longer than without, in the best of three tries: what else the machine does only makes it longer. The hanging
name resolution is a `socket.getaddrinfo` that sleeps.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import NamedTuple

from tests.otel import receiver as fake
from tests.otel.mirroring import environ

AGENT = Path(fake.__file__).with_name("exiting_agent.py")
WAYS = (
    *("normal", "sys.exit", "exception", "SIGINT", "SIGTERM", "SIGHUP", "os._exit", "abort", "SIGKILL", "thread"),
    *("fork", "mp fork", "mp spawn", "execv", "asyncio"),
)
BRIEF = ("normal", "exception", "SIGINT", "SIGTERM", "mp fork")
STATES = ("up", "closed", "silent", "1 byte/s", "429", "503", "TLS", "names", "partial")
PAUSES = (0.0, 0.6)
BOUND = 0.25
"""Seconds by which the mirror may make an end longer."""
TRIES = 3
CODES = {"sys.exit": 3, "exception": 1, "SIGINT": -2, "SIGTERM": -15, "SIGHUP": -1, "abort": -6, "SIGKILL": -9}


class Exit(NamedTuple):
    """One cell of the table: seconds."""

    way: str
    state: str
    pause: float
    mirrored: float
    plain: float

    @property
    def longer(self) -> float:
        """By how much the mirror made it longer."""
        return self.mirrored - self.plain


@contextmanager
def collectors() -> Iterator[dict[str, str]]:
    """Run a collector in each state; gives their endpoints."""
    with ExitStack() as running, tempfile.TemporaryDirectory() as folder:
        found: dict[str, str] = {"closed": f"http://127.0.0.1:{fake.free_port()}", "names": "http://collector.example:4318"}
        faults = {
            "up": fake.accepted(),
            "429": fake.throttled(30),
            "503": fake.unavailable(),
            "partial": fake.partial(1, "one too many"),
            "TLS": fake.accepted(),
        }
        for state, fault in faults.items():
            one = running.enter_context(fake.receiver("http/protobuf", Path(folder) if state == "TLS" else None))
            one.always, found[state] = fault, one.endpoint
        for state, way in (("silent", "hang"), ("1 byte/s", "drip")):
            found[state] = f"http://127.0.0.1:{running.enter_context(fake.raw(way)).port}"
        yield found


def seconds(way: str, state: str, endpoint: str, pause: float) -> float:
    """Run the agent once; returns the longest that one of its processes took to end."""
    arguments = [sys.executable, "-W", "ignore", str(AGENT), way, str(pause), *(["no names"] if state == "names" else [])]
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder,  # what delivers afterwards may be at work in it still
        subprocess.Popen(
            arguments,
            env=environ(Path(folder), endpoint, OPTREE_OTEL_DELIVER_AT_EXIT="true"),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        ) as program,
    ):
        code = program.wait(60)
        gone = time.time()
        said = program.stdout.read() if program.stdout else ""
    if code != CODES.get(way, 0):
        raise RuntimeError(f"{way} with a collector that is {state} ended with status {code}")
    moments: dict[str, dict[str, float]] = {"end": {}, "gone": {str(program.pid): gone}}
    for what, number, moment in (line.split() for line in said.splitlines()):
        moments[what][number] = float(moment)
    return max(moments["gone"][number] - moment for number, moment in moments["end"].items() if number in moments["gone"])


def measure(way: str, state: str, endpoint: str, pause: float, plain: float) -> Exit:
    """Return the best of up to `TRIES`, each beside a run that is not mirrored; *plain* is what such runs took before."""
    best: Exit | None = None
    for _ in range(TRIES):
        found = Exit(way, state, pause, seconds(way, state, endpoint, pause), plain)
        best = min(found, best or found, key=lambda one: one.mirrored)
        if best.longer <= BOUND:
            break
    assert best is not None
    return best


def matrix(ways: Sequence[str], pauses: Sequence[float], states: Sequence[str] = STATES) -> Iterator[Exit]:
    """Measure the cells of the table, one after the other."""
    with collectors() as endpoints:
        for way in ways:
            for pause in pauses:
                plain: list[float] = []
                for state in states:
                    plain.append(seconds(way, "", "", pause))
                    yield measure(way, state, endpoints[state], pause, median(plain))


def table(found: Sequence[Exit]) -> str:
    """Return a line for each way and pause: what it takes without the mirror, and how much longer with each state (ms)."""
    rows: dict[tuple[str, float], dict[str, Exit]] = {}
    for one in found:
        rows.setdefault((one.way, one.pause), {})[one.state] = one
    lines = [f"{'ms':10} {'after':>5} {'plain':>6} " + " ".join(f"{state:>9}" for state in STATES)]
    for (way, pause), row in rows.items():
        cells = " ".join(f"{row[state].longer * 1e3:+9.0f}" if state in row else f"{'':9}" for state in STATES)
        lines.append(f"{way:10} {pause:4}s {min(one.plain for one in row.values()) * 1e3:6.0f} {cells}")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    """Print the table; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.exits", description="How long a mirrored process takes to end.")
    parser.add_argument("ways", nargs="*", metavar="WAY", help=f"which ways, of {', '.join(WAYS)}; all by default")
    parser.add_argument("--quick", action="store_true", help=f"{', '.join(BRIEF)} only, at once")
    options = parser.parse_args(arguments)
    ways = options.ways or (BRIEF if options.quick else WAYS)
    found: list[Exit] = []
    for one in matrix(ways, PAUSES[:1] if options.quick else PAUSES):
        found.append(one)
        print(f"\r{len(found)} of {len(ways) * len(STATES) * (1 if options.quick else 2)}", end="", file=sys.stderr, flush=True)
    longest = max(found, key=lambda one: one.longer)
    print(f"\r{table(found)}\n\nlongest: {longest.way}, {longest.state}: {longest.longer * 1e3:+.0f} ms (bound {BOUND * 1e3:.0f} ms)")
    return int(longest.longer > BOUND)


if __name__ == "__main__":
    os.environ.setdefault("PYTHONDONTWRITEBYTECODE", "1")
    raise SystemExit(main())
