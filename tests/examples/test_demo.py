import os
import subprocess
import sys
from pathlib import Path

import pytest

import optree
from tests.otel.backends.binaries import JAEGER, MissingError

ROOT = Path(__file__).resolve().parents[2]


OF_THE_SESSION, OF_JAEGER = 7, 3
"""How many checks the demo makes."""


def a_jaeger():
    """Tell whether there is a Jaeger on this machine; in CI there must be."""
    try:
        JAEGER.find()
    except MissingError as missing:
        if os.environ.get("CI"):
            pytest.fail(f"CI runs the demo with Jaeger, but {missing}", pytrace=False)
        return False
    return True


def play(tmp_path, *options, **environment):
    """Play the demo in a directory, with nothing of this environment that mirrors."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("OTEL_", "OPTREE_OTEL", "OPTREE_TXN"))}
    command = [sys.executable, ROOT / "examples" / "demo.py", "--dir", tmp_path, *options]
    return subprocess.run(
        command, env=kept | environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=600, check=False
    )


def replayed(tmp_path, loaded):
    """Run the team once more on what was recorded, where no model listens; returns what its session took in seconds, and the session."""
    command = [sys.executable, "-m", "optree", "replay", loaded.txn, "--", sys.executable, ROOT / "examples" / "research_team.py"]
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("OTEL_", "OPTREE_OTEL", "OPTREE_TXN"))}
    environ |= {"OPTREE_BASE_DIR": str(tmp_path), "OPENAI_BASE_URL": "http://127.0.0.1:9/v1"}
    run = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120, check=False)
    assert (0, True) == (run.returncode, "12 of 12 calls of models were answered" in run.stderr), run.stderr
    directory = optree.Directory.of(tmp_path)
    [txn] = {saved.txn for saved in directory.saved()} - {loaded.txn}
    again = optree.load(txn, directory)
    return (again.session.ended_at - again.session.started_at) / 1000, again


def asked(loaded):
    """Return what the finished calls of models asked, by agent and turn, as the bytes that were recorded."""
    return {
        (session.agent_id, turn.prompts["user"]): bytes(op.request.payload)
        for session, turn, op in optree.walk_ops(loaded.session)
        if op.kind == "llm" and op.status == "ok"
    }


@pytest.mark.slow
@pytest.mark.usefixtures("real_model")
def test_demo(tmp_path):
    """A real multi-agent run on a real model is killed in its middle, loads and resumes, and all that it showed is there (S4-02, S4-99).

    Where the machine has a Jaeger, each node of the tree is exactly one span there. A replay asks the same, byte by byte, in a fiftieth of
    the time, and no model.
    """
    mirrored = a_jaeger()
    run = play(tmp_path)
    checks = run.stdout.partition("6. Did it hold?")[2].splitlines()
    assert (0, []) == (run.returncode, [line for line in checks if line.startswith("✗")]), run.stdout + run.stderr
    assert OF_THE_SESSION + OF_JAEGER * mirrored == sum(line.startswith("✓") for line in checks)
    assert mirrored == ("Mirrored to a real Jaeger" in run.stdout)

    loaded = optree.load("last", optree.Directory.of(tmp_path))
    agents = {session.agent_id for session in optree.walk_sessions(loaded.session)}
    assert {"lead", "reader of journal", "reader of accounting", "critic"} == agents
    assert 1 == len(loaded.session.resumed_at)
    assert 12 <= loaded.session.totals.llm_requests <= 14  # twelve calls, and at most those again that were under way

    seconds, again = replayed(tmp_path, loaded)
    assert asked(loaded) == asked(again)
    assert seconds <= 0.02 * (loaded.session.ended_at - loaded.session.started_at) / 1000


def test_demo_without_jaeger(tmp_path):
    """Where a Jaeger is asked for and there is none, the demo says what to do, and starts nothing."""
    run = play(tmp_path, "--jaeger", OPTREE_JAEGER="no-such-program")
    assert (1, "demo: OPTREE_JAEGER names no-such-program, which is no program that can be run here\n") == (run.returncode, run.stderr)
    assert [] == list(tmp_path.iterdir())
