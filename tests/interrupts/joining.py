"""Another process's session, which this one joins: as a process does that an agent has started."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import optree
from optree._background import Job
from optree._store.upkeep import SAVING
from optree._tracing.runtime import RUNTIME
from tests.interrupts.scenarios import block, totals_flaws

PARENT = """
import json, sys
import optree
with optree.session("parent"), optree.turn(), optree.tool("starts"):
    print(json.dumps(optree.child_env({})), flush=True)
    sys.stdin.read()
optree.flush("snapshot", 60.0)
"""
NAMES = ("OPTREE_PARENT", "OPTREE_ANCESTRY")
JOINS: dict[str, Callable[[], object]] = {
    "llm in another process's session": lambda: block(lambda: optree.llm(provider="openai", model="gpt-4o"))(None),
    "session in another process's session": lambda: block(lambda: optree.session("sub"))(None),
}
"""Calls where no session is open, but this process was started from an op of another's; hit where CPython runs handlers.

What else is left between two bytecodes could not be told from that: the txn that files are named for is the other process's.
"""
_parents: list[tuple[subprocess.Popen[str], dict[str, str]]] = []
"""The one that runs, if any, and what it gives those that it starts."""


@contextmanager
def started() -> Iterator[None]:
    """Be a process that was started from an op of another one's, which is still to be joined; leave its session at the end."""
    if not _parents:
        environ = {**os.environ, "OPTREE_BASE_DIR": str(RUNTIME.config.base_dir)}
        process = subprocess.Popen([sys.executable, "-c", PARENT], env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        _parents.append((process, json.loads(process.stdout.readline() if process.stdout else "")))
    given = _parents[0][1]
    os.environ.update({name: given[name] for name in NAMES})
    try:
        yield
    finally:
        for name in NAMES:
            del os.environ[name]
        RUNTIME._joined.clear()
        RUNTIME._leave([txn for txn in [_txn(given)] if txn in RUNTIME.stores])


def ended_flaws() -> list[str]:
    """Let the other process end, and return what is wrong with its session."""
    if not _parents:
        return []
    process, given = _parents.pop()
    Job(SAVING, lambda: None, str).wait(60.0)  # what was left is closed by then
    process.communicate()
    loaded = optree.load(_txn(given), RUNTIME.directory())
    found = [] if loaded.damage.state == "clean" and loaded.session.ended_at is not None else [f"joined: {loaded.damage.lines()}"]
    ops: list[Any] = [op for _, _, op in optree.walk_ops(loaded)]
    return [*found, *(f"joined: {op.path} is open" for op in ops if op.ended_at is None), *totals_flaws(loaded.session)]


def _txn(given: dict[str, str]) -> str:
    return given[NAMES[0]].partition(":")[0]
