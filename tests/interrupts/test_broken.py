"""That what is looked at after exceptions out of handlers can be wrong: each check says so of a fault in optree."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
AT_REST = [
    "threads",
    "descriptors",
    "locks",
    "files",
    "sessions",
    "_detached",
    "consoles",
    "health",
    "saved",
    "billed",
    "not billed",
    "stderr",
]
AT_ONCE = [
    "context",
    "next session: its log is not delivered",
    "root: Totals",
    "swallowed",
    "still open",
    "stores of sessions that have not ended",
]


def told(fault):
    """Return what is said to a fault, a line each."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("OPTREE_")} | {"OPTREE_PURE": "1"}
    command = [sys.executable, "-m", "tests.interrupts.broken", fault]
    return subprocess.run(command, env=environ, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="descriptor 2 is looked at")
@pytest.mark.parametrize("fault", [*AT_REST, *AT_ONCE])
def test_each_check_can_fail(fault):
    """A fault that an exception out of a handler could leave is found by the check that is there for it."""
    assert [fault] == sorted({fault for line in told(fault) if line.startswith(fault)})


def test_nothing_is_said_where_nothing_is_wrong():
    """Without a fault the same checks are silent."""
    assert [""] == told("none")
