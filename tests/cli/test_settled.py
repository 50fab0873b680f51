"""What commands do for sessions that ended without coming to their bill."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import optree
from optree._store import Directory
from optree._store.ledger import Ledger

ROOT = str(Path(optree.__file__).parents[1])
MAIN = "from optree._cli import main; main()"
AGENT = """
import os, optree
from optree._store.files.system import OS
def gone(self, path, pieces): os._exit(0)
OS.replacing = gone
with optree.session("root"), optree.turn(), optree.llm(provider="p", model="m") as op:
    op.account(cost_usd=0.5)
optree.flush("snapshot", 30)
"""


def python(tmp_path, *arguments):
    """Run Python with sessions in the test's own directory."""
    env = {**{key: value for key, value in os.environ.items() if not key.startswith("OPTREE_")}, "OPTREE_BASE_DIR": str(tmp_path)}
    return subprocess.run(
        [sys.executable, *arguments], env=env | {"PYTHONPATH": ROOT}, capture_output=True, text=True, check=True, timeout=60
    ).stdout


@pytest.mark.parametrize("command", ["status", "cost --all", "run"])
def test_a_command_settles_what_was_left(tmp_path, command):
    """The process is gone before its last snapshot: `status`, `cost --all` and `run` itself save and bill the session (S4-104)."""
    directory = Directory.of(tmp_path)
    if command == "run":
        python(tmp_path, "-c", MAIN, "run", "--", sys.executable, "-c", AGENT)
    else:
        python(tmp_path, "-c", AGENT)
        assert not directory.billing.exists()
        shown = json.loads(python(tmp_path, "-c", MAIN, *command.split(), "--json"))
        assert 0 == shown.get("notEnded", 0)
    assert [0.5] == [entry["costUsd"] for entry in Ledger(directory.billing).read()]
    assert [".zst"] == [path.suffix for path in directory.sessions.iterdir()]
