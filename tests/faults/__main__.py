"""Hit programs at each of their file calls, and hold what is left to what they were told.

    python -m tests.faults --points 20000 --seed 1

Each point is one run of a program (`programs.py`): a process of it is killed before or within a call, or calls are refused: one, ten or all
that follow. Exit status 1 if anything acknowledged is lost or altered, or if `flush` or `health` said what was not so.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from queue import SimpleQueue

from tests.faults.harness import ERRORS, FOR_EVER, KILL_BEFORE, KILL_WITHIN, REFUSE, Point, Server, preload
from tests.faults.programs import PROGRAMS

SHARES = {"owner": 20, "forked": 15, "resting": 20, "joined": 20, "spawned": 5, "several": 10, "one_of_several": 10}
"""Percent of the points; a spawned process takes as long to begin as all else."""


def points(program: str, calls: int) -> tuple[list[Point], list[Point]]:
    """Return all points of a program that makes so many calls: where it is killed, and where it is refused something."""
    kills = [Point(program, action, at) for action in (KILL_BEFORE, KILL_WITHIN) for at in range(1, calls + 1)]
    refused = [(at, error, times) for at in range(1, calls + 1) for error in ERRORS for times in (1, 10, FOR_EVER)]
    return kills, [Point(program, REFUSE, at, error, times) for at, error, times in refused]


def chosen(calls: dict[str, int], number: int, seed: int) -> list[Point]:
    """Return *number* points of all programs: each once in an order that *seed* gives, and then again: threads take other turns."""
    choice = random.Random(seed)
    found: list[Point] = []
    for program, made in calls.items():
        for every in points(program, made):
            wanted = number * SHARES[program] // 200
            while wanted > 0:
                found += choice.sample(every, min(wanted, len(every)))
                wanted -= len(every)
    choice.shuffle(found)
    return found


def run(number: int, seed: int, workers: int) -> tuple[Counter[str], list[str]]:
    """Hit so many points; returns counts, and a line for each thing that was not as promised."""
    with ExitStack() as stack:
        servers: SimpleQueue[Server] = SimpleQueue()
        for _ in range(workers):
            servers.put(stack.enter_context(Server(stack.enter_context(preload()))))

        def hit(point: Point) -> tuple[Point, list[str], int]:
            server = servers.get()
            try:
                return point, *server.run(point)
            finally:
                servers.put(server)

        with ThreadPoolExecutor(workers) as pool:
            calls = {program: max(hit(Point(program))[2] for _ in range(3)) for program in PROGRAMS}
            results: Iterator[tuple[Point, list[str], int]] = pool.map(hit, chosen(calls, number, seed))
            counts, wrong = Counter[str](), list[str]()
            for point, found, made in results:
                kind = "refused" if point.action == REFUSE else "killed"
                counts[f"{point.program}, {kind if point.at <= made else 'over before'}"] += 1
                wrong += [f"{point}: {one}" for one in found]
    return counts, wrong


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--points", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=2 * (os.cpu_count() or 1))
    options = parser.parse_args()
    begun = time.monotonic()
    counts, wrong = run(options.points, options.seed, options.workers)
    said = [f"{what:<30}{number:>8}" for what, number in sorted(counts.items())]
    said += [f"{counts.total()} points in {time.monotonic() - begun:.0f} s, {len(wrong)} not as promised"]
    sys.stderr.write("".join(f"{one}\n" for one in wrong[:50]))
    sys.stdout.write("".join(f"{one}\n" for one in said))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
