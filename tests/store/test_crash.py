"""The crash suite's short profile: see benchmarks/crash.py."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import optree

ROOT = Path(optree.__file__).parents[1]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_nothing_acknowledged_is_lost_to_kill_minus_nine():
    """Forty kills at random moments: every load succeeds, nothing acknowledged is missing, resumes bill once (S4-82, S4-99, S4-104)."""
    command = [sys.executable, "-m", "benchmarks.crash", "--kills", "40", "--seed", "7"]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert 0 == ran.returncode, ran.stderr
    assert ran.stdout.splitlines()[-1].endswith(" loads, 0 lost")
