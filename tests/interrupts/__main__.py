"""Exceptions out of signals' handlers, by the thousands: `make interrupts`.

    python -m tests.interrupts [--share N] [NAME…]   one exception at each bytecode, or at one in N
    python -m tests.interrupts --signals 100000      signals at random times

With OPTREE_PURE=1 the Python functions run, in place of their compiled twins, which have no bytecodes.
"""

from __future__ import annotations

import argparse
import tempfile
from random import Random
from time import monotonic

import optree
from optree.instrument.runtime import RUNTIME
from tests.interrupts.rounds import KINDS, NAMES, Round, places
from tests.interrupts.scenarios import unknown_stores
from tests.interrupts.signals import Storm


def main() -> None:
    """Run them, and say what is wrong."""
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", default=NAMES)
    parser.add_argument("--share", type=int, default=1, help="one place in so many")
    parser.add_argument("--within", nargs="+", default=[], help="only at places in these functions")
    parser.add_argument("--signals", type=int, default=0, help="so many at random times, in place of that")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    random = Random(options.seed)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as base:
        optree.configure(base_dir=base, console=False)
        done, flaws = _signals(options.signals, random) if options.signals else _each(options.names, options.share, options.within, random)
        for store in list(RUNTIME.stores.values()):
            store.close(1.0)
    print(f"{done} exceptions, {flaws} flaws")
    raise SystemExit(bool(flaws))


def _each(names: list[str], share: int, within: list[str], random: Random) -> tuple[int, int]:
    done = flaws = 0
    for name in names:
        begun, before = monotonic(), (done, flaws)
        places(name)
        where = places(name)  # what is done once per process is done by now
        most = len(where)
        for kind in KINDS:
            for place in range(1 + random.randrange(min(share, most)) if most else 1, most + 1, share):
                if within and where[place - 1] not in within:
                    continue
                found = Round(name, place, kind).run()
                done += 1
                flaws += len(found)
                for flaw in found[:3]:
                    print("  ", kind, flaw[:400], flush=True)
        if left := unknown_stores():
            flaws += 1
            print(f"   {name}: {left} threads of stores that nothing will close", flush=True)
        print(f"{name}: {done - before[0]} at {most} places, {flaws - before[1]} flaws, {monotonic() - begun:.1f} s", flush=True)
    return done, flaws


def _signals(number: int, random: Random) -> tuple[int, int]:
    storm = Storm(random)
    flaws = 0
    while storm.raised < number:
        found = storm.run(min(number, storm.raised + 500))
        flaws += len(found)
        for flaw in found[:3]:
            print("  ", flaw[:400], flush=True)
    print(f"{storm.raised} raised, of them {storm.lost} where Python itself drops exceptions (finalizers)")
    return storm.raised, flaws


if __name__ == "__main__":
    main()
