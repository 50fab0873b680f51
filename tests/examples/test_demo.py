import subprocess
import sys
from pathlib import Path

import optree

ROOT = Path(__file__).resolve().parents[2]


def test_demo(tmp_path):
    """A real multi-agent run on a real model is killed in its middle, loads and resumes, and all that it showed is there (S4-02, S4-99)."""
    run = subprocess.run(
        [sys.executable, ROOT / "examples" / "demo.py", "--dir", tmp_path], capture_output=True, text=True, timeout=600, check=False
    )
    checks = run.stdout.partition("6. Did it hold?")[2].splitlines()
    assert (0, []) == (run.returncode, [line for line in checks if line.startswith("✗")]), run.stdout + run.stderr
    assert 7 == sum(line.startswith("✓") for line in checks)

    loaded = optree.load("last", optree.Directory.of(tmp_path))
    agents = {session.agent_id for session in optree.walk_sessions(loaded.session)}
    assert {"lead", "reader of journal", "reader of accounting", "critic"} == agents
    assert 1 == len(loaded.session.resumed_at)
    assert 12 <= loaded.session.totals.llm_requests <= 14  # twelve calls, and at most those again that were under way
