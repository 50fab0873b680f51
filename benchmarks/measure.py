"""How things are measured here, so that a shared, noisy machine still gives figures that compare.

Variants run in one process, in rounds; a round runs each variant once, in a shuffled order from a fixed seed. A figure is the median over
the rounds, a ratio the median of the ratios within each round. Times are CPU time, of the calling thread (what the traced program
pays) and of the whole process with all threads and the last flush (what the machine pays); tables say so where they show wall time.
"""

from __future__ import annotations

import gc
import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter, process_time_ns, thread_time_ns
from typing import Any

ROOT = Path(__file__).parents[1]
SEED = 1


def _nothing() -> None:
    pass


@dataclass(slots=True)
class Job:
    """Work that is ready to be timed, once. *flush* counts for the process only; *close* is not timed."""

    work: Callable[[], None]
    flush: Callable[[], object] = _nothing
    close: Callable[[], object] = _nothing


Variant = Callable[[int], Job]
"""Prepares a job of that many units."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Nanoseconds of CPU time for one unit of work."""

    caller: float
    process: float


class Rounds:
    """What each variant cost in each round."""

    def __init__(self, variants: Mapping[str, Variant], units: int, rounds: int) -> None:
        """Run them all; the first round warms up and is left out."""
        self.costs: dict[str, list[Cost]] = {name: [] for name in variants}
        order = list(variants)
        shuffle = random.Random(SEED).shuffle
        for number in range(rounds + 1):
            shuffle(order)
            for name in order:
                cost = run(variants[name](units), units)
                if number:
                    self.costs[name].append(cost)

    def caller(self, name: str, less: str = "") -> float:
        """Return a variant's nanoseconds for the calling thread, less those of another in the same round."""
        return median(self._net(name, less))

    def process(self, name: str) -> float:
        """Return a variant's nanoseconds for the whole process."""
        return median(cost.process for cost in self.costs[name])

    def ratio(self, name: str, to: str, less: str = "") -> float:
        """Return how many times as much of the calling thread's time a variant takes as another."""
        return median(a / b for a, b in zip(self._net(name, less), self._net(to, less), strict=True))

    def _net(self, name: str, less: str) -> list[float]:
        base = [cost.caller for cost in self.costs[less]] if less else [0.0] * len(self.costs[name])
        return [cost.caller - loop for cost, loop in zip(self.costs[name], base, strict=True)]


def run(job: Job, units: int) -> Cost:
    """Time one job, with a collected heap before it."""
    gc.collect()
    process, caller = process_time_ns(), thread_time_ns()
    job.work()
    caller = thread_time_ns() - caller
    job.flush()
    process = process_time_ns() - process
    job.close()
    return Cost(caller / units, process / units)


class Pressure:
    """The share of time in which something on this machine waited for a CPU, from the kernel's own account."""

    def __init__(self) -> None:
        self._waited, self._begun = _waited(), perf_counter()

    def percent(self) -> float | None:
        """Return the share since this was made; None where the kernel does not say."""
        waited = _waited()
        if waited is None or self._waited is None:
            return None
        return (waited - self._waited) / 1e4 / (perf_counter() - self._begun)


def _waited() -> int | None:
    try:
        some = Path("/proc/pressure/cpu").read_text("ascii").splitlines()[0]
    except OSError:
        return None
    return int(some.rpartition("=")[2])


def child_environ() -> dict[str, str]:
    """Return the environment for a child process that finds optree and these benchmarks, and may keep its byte code."""
    path = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, path)), "PYTHONDONTWRITEBYTECODE": ""}


def in_fresh_process(module: str, *arguments: object) -> dict[str, Any]:
    """Run a module of the benchmarks in a new process, and return what it prints as JSON."""
    command = [sys.executable, "-m", module, *map(str, arguments)]
    done = subprocess.run(command, env=child_environ(), cwd=ROOT, check=True, stdout=subprocess.PIPE)
    return json.loads(done.stdout)


def resident_bytes() -> int:
    """Return the memory that this process holds."""
    return int(Path("/proc/self/statm").read_text("ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
