import os
import subprocess
import sys
import textwrap
from collections import Counter
from pathlib import Path

import pytest

import optree
from optree import _records as r
from optree._builder.guard import FAULTS
from optree._providers.prices import PRICES
from optree._tracing.runtime import RUNTIME
from optree.testing import capture

ROOT = Path(__file__).resolve().parents[2]
LONG = 60  # seconds; more than anything here takes on a busy machine


@pytest.fixture(autouse=True)
def runtime(tmp_path, monkeypatch):
    """Give each test a runtime as a new process has it, with its sessions in the test's own directory."""
    for name in [name for name in os.environ if name.startswith("OPTREE_") or name == "TRACEPARENT"]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("OPTREE_BASE_DIR", str(tmp_path / "base"))
    FAULTS.__init__()
    RUNTIME.__init__()
    yield RUNTIME
    for store in RUNTIME.stores.values():
        store.close(LONG)
    FAULTS.__init__()
    RUNTIME.__init__()
    PRICES.use(None)
    assert optree.current_session() is None


@pytest.fixture
def recording():
    """Record in memory what the test does."""
    with capture() as found:
        yield found


@pytest.fixture
def directory(tmp_path):
    """Where the test's sessions are."""
    return optree.Directory.of(tmp_path / "base")


@pytest.fixture
def saved(directory):
    """Return a function that loads the only session that is saved, or the one named, and checks it."""

    def load(txn="last"):
        if txn == "last":
            assert 1 == len(directory.saved())
        loaded = optree.load(txn, directory)
        ids = [op.op_id for _, _, op in optree.walk_ops(loaded.session)]
        assert [] == [op for op, times in Counter(ids).items() if times > 1]
        return loaded

    return load


@pytest.fixture
def script(tmp_path):
    """Return a function that starts Python on a source text, with `optree` imported, and returns the process."""
    running = []

    def start(source, *, env=None, stdin=subprocess.DEVNULL, head="import os, sys\nimport optree\n"):
        path = tmp_path / f"agent{len(running)}.py"
        path.write_text(head + textwrap.dedent(source))
        environ = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "error"} | (env or {})
        process = subprocess.Popen(
            [sys.executable, path], env=environ, stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path
        )
        running.append(process)
        return process

    yield start
    for process in running:
        with process:  # closes its pipes, which a process that it forked may still have open
            process.kill()


@pytest.fixture
def finished(script):
    """Return a function that runs Python on a source text to its end, and returns (exit code, stdout, stderr)."""

    def run(source, **options):
        process = script(source, **options)
        out, err = process.communicate(timeout=LONG)
        return process.returncode, out, err

    return run


@pytest.fixture
def ends(recording):
    """Return a function that gives how often each op ended, as ``{(path, status): times}``."""

    def count():
        return dict(Counter((record.path, record.status) for record in recording.records if isinstance(record, r.OpEnd)))

    return count
