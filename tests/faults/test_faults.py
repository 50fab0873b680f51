"""A process of a session is killed, or refused something, at one of its file calls: see `__main__.py`."""

import errno
import shutil
import subprocess
import sys
import time

import pytest

from optree._store import Directory
from optree._store.files.lock import last_beat
from tests.faults.harness import FOR_EVER, NOTHING, REFUSE, ROOT, preload

preloads = pytest.mark.skipif(
    not sys.platform.startswith("linux") or shutil.which("gcc") is None, reason="a library is compiled and preloaded: Linux, and gcc"
)

LONG = 60.0
NOTING = """
import optree, sys
optree.configure(console=False, otel="off")
with optree.session("a"), optree.turn():
    print(flush=True)
    sys.stdin.read(1)
"""


@preloads
def test_a_full_disk_leaves_the_last_sign_of_life():
    """A disk that takes nothing more in the middle of a note in LOCK leaves the one before (S4-131)."""
    with preload() as loaded:
        plan = loaded.plan
        plan.only = b"/LOCK"
        command, env = [sys.executable, "-c", NOTING], loaded.env | {"OPTREE_BASE_DIR": str(loaded.root / "base"), "OPTREE_TXN": "txn-1"}
        process = subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        try:
            process.stdout.readline()
            live, until = Directory.of(loaded.root / "base").live("txn-1"), time.monotonic() + LONG
            while not last_beat(live):
                assert time.monotonic() < until
                time.sleep(0.005)
            plan.at, plan.times, plan.error, plan.calls, plan.action = 2, FOR_EVER, errno.ENOSPC, 0, REFUSE
            while not plan.acted:
                assert time.monotonic() < until
                time.sleep(0.005)
            assert 0.0 < last_beat(live)
        finally:
            plan.action = NOTHING
            process.communicate(b"x", timeout=LONG)


@pytest.mark.slow
@preloads
def test_nothing_acknowledged_is_lost_at_any_call():
    """At 4,000 file calls of owners, forked, joined and spawned processes nothing acknowledged is lost or altered; what is said is so."""
    command = [sys.executable, "-m", "tests.faults", "--points", "4000", "--seed", "1"]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert 0 == ran.returncode, ran.stderr
    assert ran.stdout.splitlines()[-1].endswith(" s, 0 not as promised")
