"""Exceptions out of signals' handlers that a program sets for itself, as a time limit: none is lost in what optree runs."""

import os
import subprocess
import sys

import pytest

LIMITS = """
import random, signal, sys, time
import optree

optree.configure(base_dir=sys.argv[1], console=False)
dropped = []
sys.unraisablehook = dropped.append


class LimitError(Exception):
    pass


def limit(*_):
    raise LimitError


signal.signal(signal.SIGALRM, limit)
random = random.Random(3)
lost = 0
for _ in range(800):
    try:
        try:
            signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-5, 4e-3))
            end = time.monotonic() + 5.0
            while time.monotonic() < end:
                with optree.session("lead"), optree.turn(), optree.tool("work") as op:
                    op.log("line")
            lost += 1
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    except LimitError:
        pass
print(lost, len(dropped), optree.current_session())
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such signals")
@pytest.mark.parametrize("pure", ["", "1"])
def test_time_limits_all_reach_the_program(pure, tmp_path):
    """Of 800 limits that hit sessions at random, none is dropped by Python in a weak reference's callback or a finalizer of optree's."""
    command = [sys.executable, "-c", LIMITS, str(tmp_path)]
    ran = subprocess.run(command, env=os.environ | {"OPTREE_PURE": pure}, capture_output=True, text=True, check=False)
    assert (0, "0 0 None\n") == (ran.returncode, ran.stdout), ran.stderr
