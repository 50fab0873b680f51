"""Exceptions out of signals' handlers, by the thousands: `make interrupts`.

    python -m tests.interrupts [--share N] [NAME…]   one exception at each bytecode, or at one in N
    python -m tests.interrupts --signals 100000      signals at random times

With OPTREE_PURE=1 the Python functions run, in place of their compiled twins, which have no bytecodes. Each core has a process.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from time import monotonic

import optree
from optree._tracing.runtime import RUNTIME
from tests.interrupts.injecting import Injection
from tests.interrupts.joining import JOINS
from tests.interrupts.resting import Rest
from tests.interrupts.rounds import KINDS, NAMES, Round, places
from tests.interrupts.scenarios import PRICES
from tests.interrupts.signals import Storm

BATCH = 250
"""Exceptions between two looks at what is open when nothing runs."""
AT_ONCE = 40
"""Exceptions between two waits for what is to be saved: of sessions that end faster than that, some would be left to the next run."""
PROBING = 4
"""A session of the program's follows one in so many exceptions; where anything is wrong afterwards, each of the batch's."""


def main() -> None:
    """Run them, and say what is wrong."""
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", default=NAMES)
    parser.add_argument("--share", type=int, default=1, help="one place in so many")
    parser.add_argument("--within", nargs="+", default=[], help="only at places in these functions")
    parser.add_argument("--handlers", action="store_true", help="only at places where CPython runs handlers")
    parser.add_argument("--signals", type=int, default=0, help="so many at random times, in place of that")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--part", type=int, default=None, help="only what this one of the workers does")
    options = parser.parse_args()
    if options.part is None and options.workers > 1:
        with ThreadPoolExecutor(options.workers) as pool:
            done, flaws = (sum(counts) for counts in zip(*pool.map(_part, range(options.workers)), strict=True))
    else:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True, dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as base:
            done, flaws = _run(options, Path(base))
    print(f"{done} exceptions, {flaws} flaws", flush=True)
    raise SystemExit(bool(flaws))


def _part(number: int) -> tuple[int, int]:
    """Be a worker, in a process of its own."""
    command, last = [sys.executable, "-m", "tests.interrupts", "--part", str(number), *sys.argv[1:]], ""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout or ():
            sys.stdout.write(last)
            sys.stdout.flush()
            last = line
    found = re.fullmatch(r"(\d+) exceptions, (\d+) flaws\n", last)
    return (int(found[1]), int(found[2])) if found else (0, 1)


def _run(options: argparse.Namespace, base: Path) -> tuple[int, int]:
    random, part = Random(options.seed * 1000 + (options.part or 0)), options.part or 0
    parts = options.workers if options.part is not None else 1
    said = base / "stderr"
    with said.open("ab") as file:
        os.dup2(file.fileno(), 2)
    try:
        Injection.compile(base)
        (base / "prices.json").write_text(PRICES)
        optree.configure(prices=base / "prices.json")
        with optree.session("first"):  # what is done once per process is done by then
            optree.child_env({})
        rest = Rest(base, said)
        if options.signals:
            return _signals((options.signals + parts - 1 - part) // parts, random, rest)
        return _each(options, random.randrange(options.share) * parts + part, options.share * parts, rest)
    except BaseException:
        traceback.print_exc(file=sys.stdout)
        raise
    finally:
        for store in list(RUNTIME.stores.values()):
            store.close(1.0)


def _each(options: argparse.Namespace, first: int, share: int, rest: Rest) -> tuple[int, int]:
    done = flaws = 0
    for name in options.names:
        begun, before = monotonic(), (done, flaws)
        where, most = places(name, share, first, options.within, every=not (options.handlers or name in JOINS))
        for kind in KINDS:
            for at in range(0, len(where), BATCH):
                found = _batch(name, where[at : at + BATCH], kind, rest, in_handlers=options.handlers)
                done += len(where[at : at + BATCH])
                flaws += len(found)
                for flaw in found[:10]:
                    print("  ", kind, flaw[:600], flush=True)
        print(f"{name}: {done - before[0]} at {most} places, {flaws - before[1]} flaws, {monotonic() - begun:.1f} s", flush=True)
    return done, flaws


def _batch(name: str, where: list[int], kind: str, rest: Rest, *, in_handlers: bool) -> list[str]:
    """Raise at some places of a call, and look at the process at rest; where that finds something, at each by itself, to tell which."""
    found = []
    for number, place in enumerate(where, 1):
        found += Round(name, place, kind, in_handlers=in_handlers).run(rest, probing=not place % PROBING)
        if not number % AT_ONCE:
            optree.flush("snapshot")
    if left := rest.flaws():
        found += [f"{name} at {where[0]} to {where[-1]}, at rest: {flaw}" for flaw in left]
        for place in where:
            one = Round(name, place, kind, in_handlers=in_handlers)
            found += [f"again, {flaw}" for flaw in one.run(rest)]
            found += [f"again, {one}, at rest: {flaw}" for flaw in rest.flaws()]
    return found


def _signals(number: int, random: Random, rest: Rest) -> tuple[int, int]:
    storm = Storm(random)
    flaws = 0
    while storm.raised < number:
        found = [*storm.run(min(number, storm.raised + 500)), *rest.flaws()]
        flaws += len(found)
        for flaw in found[:3]:
            print("  ", flaw[:400], flush=True)
    print(f"{storm.raised} raised, of them {storm.lost} where Python itself drops exceptions (finalizers)")
    return storm.raised, flaws


if __name__ == "__main__":
    main()
