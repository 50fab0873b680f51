"""A run that is killed in a silence: what is shown of it was so."""

import json
import re
import signal
import subprocess
import sys
import time

import pytest

from optree._store.files.lock import last_beat
from tests.cli.conftest import CommandLine

SILENT = """
import sys, optree
with optree.session("agent") as session, optree.turn(user="why?"), optree.llm("slow") as op:
    print(session.txn, flush=True)
    sys.stdin.readline()
"""
LEAST = 1000
"""Milliseconds for which nothing is recorded: a process notes each second that it lives."""


@pytest.fixture(scope="module")
def silent(tmp_path_factory):
    """Return a command line whose only session said nothing for a second and was killed then, and when it was last known to live."""
    line = CommandLine(tmp_path_factory.mktemp("silent"))
    process = subprocess.Popen([sys.executable, "-c", SILENT], env=line.env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    line.txn = process.stdout.readline().strip()
    live = line.sessions / f"{line.txn}.live"
    while not (first := last_beat(live)):
        time.sleep(0.01)
    while last_beat(live) < first + 2 * LEAST:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    return line


def test_a_killed_run_lasted_as_long_as_it_lived(silent):
    """What broke off lasted at least until its process was last known to live: in seconds, not 0.00, wherever it is shown."""
    [row] = json.loads(silent.read("ls", "--json").stdout)
    assert row["durationSeconds"] >= LEAST / 1e3
    (shown,) = re.findall(r"lasted at least (\d+\.\d\d s)", silent.read("load", silent.txn).stdout)
    assert row["durationSeconds"] == pytest.approx(float(shown.removesuffix(" s")), abs=0.006)  # of figures that were rounded apart
    assert f"≥{shown}" in silent.read("ls").stdout
    assert f"{silent.txn} (at least {shown})" in silent.read("status").stdout
    root, turn, op = silent.read("tree", silent.txn).stdout.splitlines()
    assert f"agent ⚡ interrupted at least {shown}" in root
    assert all(re.search(r"interrupted at least [1-9]\d*\.\d\d s", line) for line in (turn, op))


def test_a_resumed_run_keeps_how_long_the_first_lasted(silent):
    """What is closed when the session goes on ends when its process was last known to live."""
    program = "import optree\nwith optree.session('agent'): pass"
    silent("load", silent.txn, "--", sys.executable, "-c", program)
    session = json.loads(silent("tree", silent.txn, "--json").stdout)["session"]
    op = session["turns"][0]["ops"][0]
    assert op["status"] == "interrupted"
    assert op["latency"] >= LEAST
    assert "seenAt" not in session
