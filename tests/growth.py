"""How time and memory grow with what work is given: told by ratios that hold on any machine, however busy it is."""

import gc
import sys
import tracemalloc
from time import thread_time
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType

import msgspec

TIMES = 8
TRIES = 30
SQUARE = TIMES**1.5
"""Growth from which on work counts as quadratic: as far from 8, which is linear, as from 64."""
_CODE = (ModuleType, FunctionType, BuiltinFunctionType, MethodType, type)
_LEAST = 3 / 64 if sys.platform == "win32" else 0.0
"""Seconds that are counted at least: Windows counts a thread's time in ticks of a 64th of a second."""


def growth(prepare, size):
    """Return how many times as long the work takes for eight times the size; *prepare* makes the work for a size, untimed.

    Only the CPU time of this thread counts, and of several tries the least, for a busy machine only ever adds; Python's collector, whose
    time goes by all that the process holds, is off. Linear work is through as soon as one try
    shows it, which under a load of other programs may be a later one; only what is worse than linear takes all tries.
    """
    few, many = float("inf"), float("inf")
    for _ in range(TRIES):
        few = min(few, _seconds(prepare, size))
        many = min(many, _seconds(prepare, TIMES * size))
        if many < SQUARE * few:
            break
    return many / few


def peak(work):
    """Return the most bytes that Python held at once for the work, beside what it holds anyway."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def size(root):
    """Return the bytes of all that can be reached from *root*, but for code: the same each time, whatever else the process holds."""
    found, waiting = {}, [root]
    while waiting:
        one = waiting.pop()
        if id(one) not in found and not isinstance(one, _CODE):
            found[id(one)] = one
            waiting += msgspec.structs.astuple(one) if isinstance(one, msgspec.Struct) else gc.get_referents(one)
    # msgspec does not tell the size of a `Raw`
    return sum(memoryview(one).nbytes if isinstance(one, msgspec.Raw) else sys.getsizeof(one) for one in found.values())


def _seconds(prepare, size):
    """Return how long the work takes, on average where the clock is too coarse for one time."""
    taken, times = 0.0, 0
    while not times or taken < _LEAST:
        work = prepare(size)
        gc.disable()
        try:
            begun = thread_time()
            work()
            taken += thread_time() - begun
        finally:
            gc.enable()
        times += 1
    return taken / times
