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

from optree._store import Directory, load
from optree._tree import walk_ops
from tests.faults.harness import Preload, preload
from tests.faults.test_faults import preloads

pytestmark = preloads
LONG = 60.0
MANY, AT_ONCE = 40, 8
SYNC_SECONDS, STILL_SECONDS, HUNG_SECONDS = 0.05, 1.5, 3.0
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

GONE = {
    "forked": "if not (pid := os.fork()):\n    CHILD\n    os._exit(0)\nos.waitpid(pid, 0)",
    "of a pool": """
import multiprocessing
def child(_):
    CHILD
with multiprocessing.get_context('fork').Pool(1) as pool:
    pool.map(child, [0])
""",
    "joined and killed": """
import signal, subprocess
if "OPTREE_PARENT" in os.environ:
    CHILD
    os.kill(os.getpid(), signal.SIGKILL)
subprocess.run([sys.executable, '-c', sys.argv[1], sys.argv[1]], env=optree.child_env())
""",
}
"""Processes of a session that record something and are gone at once."""

SEVERAL = """
import contextvars
sessions = [contextvars.Context() for _ in range(MANY)]
for number, context in enumerate(sessions):
    context.run(optree.session(f'agent {number}').__enter__)
    context.run(optree.turn().__enter__)
"""
"""Sessions that are open at once."""
RECORDED = """
for number, context in enumerate(sessions):
    context.run(work, f'mine {number}')
wait('recorded')
"""
LEFT = """
from optree._tracing import runtime
runtime.IDLE_SESSIONS = 2
for number in range(MANY):
    with optree.session(f'agent {number}'), optree.turn():
        work(f'mine {number}')
wait(len(runtime.RUNTIME.stores))
"""
"""Sessions that end while the disk hangs: all but a few are let go of."""
HUNG = """
import asyncio

async def request(number):
    async with optree.session(f'request {number}'), optree.turn():
        work(f'tool {number}')
        await asyncio.sleep(0)
        work(f'other {number}')

async def serve():
    await asyncio.gather(*(request(number) for number in range(50)))

asyncio.run(serve())
wait(optree.flush(), optree.health())
wait(optree.health())
wait(optree.flush('snapshot', 60), optree.health())
"""


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


def on_the_disk(name: str, loaded: Preload, base: Path, folder: Path, seconds: float) -> list[str]:
    """Return the log lines of an op as they are on disk for sure, once they are, within so many seconds."""
    until = time.monotonic() + seconds
    while name not in (found := names(image(loaded, base, folder / "image"))):
        assert time.monotonic() < until, "it is not synced"
        time.sleep(0.05)
    return found[name]


@pytest.fixture
def loaded():
    """Return a library that notes calls."""
    with preload() as found:
        found.plan.noting = 1
        yield found


def started(loaded, program):
    """Start a program that calls `wait`."""
    script = HEAD + program
    base = loaded.root / "above" / "base"
    env = loaded.env | {"OPTREE_BASE_DIR": str(base)}
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", script, script], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    return process, answered(process), base


def answered(process, go_on=b""):
    """Let a program go on, and return what it tells next."""
    process.stdin.write(go_on)
    process.stdin.flush()
    ready = select.select([process.stdout], [], [], LONG)[0]
    return json.loads(process.stdout.readline()) if ready else None


def ended_together(plan):
    """Play a disk in which all syncs that wait come to their end at once, moment by moment; returns how many that were each time.

    That is when as many wait as may, or no other has come for a while; it is over when there are none for a while, or a second is.
    """
    found = []
    while len(found) * SYNC_SECONDS <= 1.0:
        time.sleep(SYNC_SECONDS)
        seen, until = plan.asked, time.monotonic() + (STILL_SECONDS if found else LONG)
        while plan.asked - plan.granted < AT_ONCE and time.monotonic() < until:
            time.sleep(0.005)
            if seen != plan.asked:
                seen, until = plan.asked, time.monotonic() + STILL_SECONDS
        if seen == plan.granted:
            break
        found.append(plan.asked - plan.granted)
        plan.granted += found[-1]
    return found


@pytest.mark.parametrize("who", PROGRAMS)
def test_a_flush_with_sync_is_on_the_disk(loaded, who, tmp_path):
    """`flush("sync")` is True: what its process recorded is in synced files under synced names, all directories above included."""
    process, told, base = started(loaded, PROGRAMS[who].replace("WORK", "work('mine'); wait(optree.flush('sync'))"))
    try:
        assert [True] == told
        assert ["mine log"] == names(image(loaded, base, tmp_path / "image"))["mine"]
    finally:
        process.communicate(b"x", timeout=LONG)


@pytest.mark.parametrize("who", PROGRAMS)
def test_the_last_second_is_on_the_disk(loaded, who, tmp_path):
    """Without being asked, what a process recorded is forced to the disk, in each process of a session."""
    process, told, base = started(loaded, PROGRAMS[who].replace("WORK", "work('mine'); wait('recorded')"))
    try:
        assert ["recorded"] == told
        assert ["mine log"] == on_the_disk("mine", loaded, base, tmp_path, LONG)
    finally:
        process.communicate(b"x", timeout=LONG)


@pytest.mark.parametrize("asked", [True, False], ids=["flush", "left alone"])
@pytest.mark.parametrize("who", GONE)
def test_what_a_process_recorded_that_has_gone_is_on_the_disk(loaded, who, asked, tmp_path):
    """A process of a session goes before it came to a sync: the owner forces what it recorded to the disk, each second and when asked."""
    program = GONE[who].replace("CHILD", "work('mine'); optree.flush()")
    end = "wait(optree.flush('sync', 60))" if asked else "wait('recorded')"
    begin = "optree.session('a').__enter__(), optree.turn().__enter__(), optree.tool('outer').__enter__()"
    unless = "if 'OPTREE_PARENT' not in os.environ:\n    "
    process, told, base = started(loaded, f"{unless}{begin}\n{program}\n{end}")
    try:
        assert [True if asked else "recorded"] == told
        assert ["mine log"] == on_the_disk("mine", loaded, base, tmp_path, 0 if asked else LONG)
    finally:
        process.communicate(b"x", timeout=LONG)


@pytest.mark.parametrize("known", [False, True], ids=["new sessions", "sessions that were synced before"])
def test_the_last_second_of_many_sessions_is_on_the_disk(loaded, known, tmp_path):
    """40 open sessions on a disk that takes 50 ms for a sync: all that they recorded is on it within a second after it is due."""
    program = SEVERAL.replace("MANY", str(MANY))
    if known:
        process, told, base = started(loaded, program + "wait(optree.flush('sync', 60))" + RECORDED)
        loaded.plan.held = 1
        assert ([True], ["recorded"]) == (told, answered(process, b"x"))
    else:
        loaded.plan.held = 1
        process, told, base = started(loaded, program + RECORDED)
        assert ["recorded"] == told
    try:
        moments = ended_together(loaded.plan)
        assert AT_ONCE == max(moments)
        assert 1.0 >= len(moments) * SYNC_SECONDS, moments
        assert {f"mine {number}" for number in range(MANY)} == set(names(image(loaded, base, tmp_path / "image")))
    finally:
        loaded.plan.held = 0
        process.communicate(b"x", timeout=LONG)


@pytest.mark.parametrize("asked", [True, False], ids=["flush", "left alone"])
def test_ended_sessions_that_were_let_go_are_on_the_disk(loaded, asked, tmp_path):
    """Of 40 sessions that end while the disk hangs most are let go: `flush("sync")` waits for them, and each is synced by itself."""
    loaded.plan.held = 1
    process, told, base = started(loaded, LEFT.replace("MANY", str(MANY)) + ("wait(optree.flush('sync', 60))" if asked else "wait()"))
    try:
        assert MANY > told[0], "they were not let go"
        assert not names(image(loaded, base, tmp_path / "image"))
        loaded.plan.held = 0
        assert ([True] if asked else []) == answered(process, b"x")
        loaded.plan.held = int(asked)  # no more is synced then; what is saved meanwhile is moved and removed while it is looked at
        expected, until = {f"mine {number}" for number in range(MANY)}, time.monotonic() + LONG
        while expected != (found := set(names(image(loaded, base, tmp_path / "image")))) and time.monotonic() < until:
            time.sleep(0.05)
        assert expected == found
    finally:
        loaded.plan.held = 0
        process.communicate(b"xx", timeout=LONG)


def test_a_disk_that_hangs_holds_up_no_request(loaded, tmp_path):
    """No sync comes to its end while 50 requests are served: all are, `health` says so while it lasts, and all is saved (S4-131)."""
    loaded.plan.held = 1
    process, told, base = started(loaded, HUNG)
    try:
        flushed, health = told
        assert (True, 0, 0) == (flushed, health["lost"], health["late"])
        assert {} == names(image(loaded, base, tmp_path / "image"))
        time.sleep(HUNG_SECONDS)
        (health,) = answered(process, b"x")
        said = [problem for problem in health["problems"] if problem.startswith("the disk has not answered for ")]
        assert (False, 1) == (health["ok"], len(said)), health
        loaded.plan.held = 0
        flushed, health = answered(process, b"x")
        assert (True, True, [], 0) == (flushed, health["ok"], health["problems"], health["lost"])
        found = names(image(loaded, base, tmp_path / "image"))
        assert {f"{name} {number}" for number in range(50) for name in ("tool", "other")} == set(found)
    finally:
        loaded.plan.held = 0
        process.communicate(b"xxx", timeout=LONG)


def test_a_session_that_has_ended_is_on_the_disk(loaded, tmp_path):
    """The snapshot and the ledger have synced names when `flush("snapshot")` is True, though their directories are as new as they are."""
    work = "pass\n    with optree.llm(provider='p', model='m') as op:\n        op.account(cost_usd=0.5)\nwait(optree.flush('snapshot'))"
    process, told, base = started(loaded, PROGRAMS["owner"].replace("WORK", work))
    try:
        assert [True] == told
        directory = image(loaded, base, tmp_path / "image")
        assert {"p:m": []} == names(directory)
        assert b'"costUsd":0.5' in directory.billing.read_bytes()
    finally:
        process.communicate(b"x", timeout=LONG)
