"""What is on the disk itself at a moment, as POSIX has it: what was synced of a file, under names whose directories were synced."""

import json
import os
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from optree.store import Directory, load
from optree.tree import walk_ops
from tests.faults.harness import Preload, preload
from tests.faults.test_faults import preloads

pytestmark = preloads
LONG = 60.0
HEAD = """
import json, os, sys
import optree
optree.configure(console=False, otel="off")

def wait(*words):
    os.write(1, json.dumps(words).encode() + b"\\n")
    os.read(0, 1)

def work(name):
    with optree.tool(name) as op:
        op.log(name + " log")
"""
ENDS = """
    if not pid:
        optree.flush()
        os._exit(0)
    os.waitpid(pid, 0)
"""
WITH_FORK = """
with optree.session('a'), optree.turn(), optree.tool('outer'):
    work('parent')
    pid = os.fork()
    if not pid:
        WORK
"""
WITH_JOIN = """
import subprocess
if "OPTREE_PARENT" in os.environ:
    WORK
else:
    with optree.session('a'), optree.turn(), optree.tool('outer'):
        subprocess.run([sys.executable, '-c', sys.argv[1], sys.argv[1]], env=optree.child_env(), check=True)
"""
PROGRAMS = {
    "owner": "with optree.session('a'), optree.turn():\n    WORK\n",
    "forked": WITH_FORK + ENDS,
    "joined": WITH_JOIN,
}


def image(loaded: Preload, base: Path, into: Path) -> Directory:
    """Copy what is on disk for sure, by the calls that were made so far, below *base*."""
    named, synced, new = {str(base.parent)}, dict[str, int](), set[str]()
    for call, path, other, size, *_ in loaded.notes():
        if call in ("create", "mkdir"):
            new.add(path)
        elif call == "rename":
            new.add(other)
            named.discard(other)
            synced[other] = synced.pop(path, 0)
        elif call in ("unlink", "rmdir"):
            new.discard(path)
            named.discard(path)
            synced.pop(path, None)
        elif call in ("fsync", "fdatasync"):
            synced[path] = size
            named |= {one for one in new if os.path.dirname(one) == path}  # noqa: PTH120 - thousands of texts
    shutil.rmtree(into, ignore_errors=True)
    into.mkdir()
    for path, size in synced.items():
        source, above = Path(path), [path, *map(str, Path(path).parents)]
        if source.is_file() and all(one in named for one in above[: above.index(str(base.parent))]):
            target = into / source.relative_to(base)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(source.read_bytes()[:size])
    return Directory.of(into)


def names(directory: Directory) -> dict[str, list[str]]:
    """Return the ops of all sessions with their log lines."""
    found = [load(saved.txn, directory) for saved in directory.saved()]
    return {op.name: [entry.message for entry in op.logs] for one in found for *_, op in walk_ops(one.session)}


@pytest.fixture
def loaded():
    """Return a library that notes calls."""
    with preload() as found:
        found.plan.noting = 1
        yield found


def started(loaded, who, work):
    """Start a program that calls `wait` in its *work*."""
    script = HEAD + PROGRAMS[who].replace("WORK", work)
    base = loaded.root / "above" / "base"
    env = loaded.env | {"OPTREE_BASE_DIR": str(base)}
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", script, script], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    ready = select.select([process.stdout], [], [], LONG)[0]
    return process, json.loads(process.stdout.readline()) if ready else None, base


@pytest.mark.parametrize("who", PROGRAMS)
def test_a_flush_with_sync_is_on_the_disk(loaded, who, tmp_path):
    """`flush("sync")` is True: what its process recorded is in synced files under synced names, all directories above included."""
    process, told, base = started(loaded, who, "work('mine'); wait(optree.flush('sync'))")
    try:
        assert [True] == told
        assert ["mine log"] == names(image(loaded, base, tmp_path / "image"))["mine"]
    finally:
        process.communicate(b"x", timeout=LONG)


@pytest.mark.parametrize("who", PROGRAMS)
def test_the_last_second_is_on_the_disk(loaded, who, tmp_path):
    """Without being asked, what a process recorded is forced to the disk, in each process of a session."""
    process, told, base = started(loaded, who, "work('mine'); wait('recorded')")
    try:
        assert ["recorded"] == told
        until = time.monotonic() + LONG
        while "mine" not in (found := names(image(loaded, base, tmp_path / "image"))):
            assert time.monotonic() < until, "it is never synced"
            time.sleep(0.05)
        assert ["mine log"] == found["mine"]
    finally:
        process.communicate(b"x", timeout=LONG)


def test_a_session_that_has_ended_is_on_the_disk(loaded, tmp_path):
    """The snapshot and the ledger have synced names when `flush("snapshot")` is True, though their directories are as new as they are."""
    work = "pass\n    with optree.llm(provider='p', model='m') as op:\n        op.account(cost_usd=0.5)\nwait(optree.flush('snapshot'))"
    process, told, base = started(loaded, "owner", work)
    try:
        assert [True] == told
        directory = image(loaded, base, tmp_path / "image")
        assert {"p:m": []} == names(directory)
        assert b'"costUsd":0.5' in directory.billing.read_bytes()
    finally:
        process.communicate(b"x", timeout=LONG)
