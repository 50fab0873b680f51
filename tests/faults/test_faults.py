"""A process of a session is killed, or refused something, at one of its file calls: see `__main__.py`."""

import shutil
import subprocess
import sys

import pytest

from tests.faults.harness import ROOT

preloads = pytest.mark.skipif(
    not sys.platform.startswith("linux") or shutil.which("gcc") is None, reason="a library is compiled and preloaded: Linux, and gcc"
)


@pytest.mark.slow
@preloads
def test_nothing_acknowledged_is_lost_at_any_call():
    """At 2,000 file calls of owners, forked, joined and spawned processes nothing acknowledged is lost or altered; what is said is so."""
    command = [sys.executable, "-m", "tests.faults", "--points", "2000", "--seed", "1"]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert 0 == ran.returncode, ran.stderr
    assert ran.stdout.splitlines()[-1].endswith(" s, 0 not as promised")
