"""Exceptions out of signals' handlers: a share of what `make interrupts` does."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def told(*options, pure):
    """Run them in a process of their own, and return its exit code and last line."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("OPTREE_")} | ({"OPTREE_PURE": "1"} if pure else {})
    done = subprocess.run(
        [sys.executable, "-m", "tests.interrupts", *options], env=environ, cwd=ROOT, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(("pure", "share"), [(True, 211), (False, 401)])
def test_an_exception_at_any_bytecode(pure, share):
    """It reaches the program; no dead op stays current, logs are delivered, totals are sums of their entries, what comes next is right."""
    code, said = told("--share", str(share), pure=pure)
    assert 0 == code, said


@pytest.mark.slow
@pytest.mark.parametrize("pure", [True, False])
def test_signals_at_random_times(pure):
    """The same holds for real signals."""
    code, said = told("--signals", "1000", pure=pure)
    assert 0 == code, said


BEGIN = {"open_session", "SessionStore.attach", "Upkeep.start", "Upkeep.started", "Runtime._opened", "Runtime.open_root"}
"""Functions in which a root session's threads begin, and in which they become known."""


@pytest.mark.slow
def test_a_session_that_is_never_begun_leaves_no_thread():
    """An exception anywhere in the begin of a session leaves no store behind that nothing will close."""
    code, said = told("--within", *BEGIN, "--", "with session", pure=True)
    assert 0 == code, said
