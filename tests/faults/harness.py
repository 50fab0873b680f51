"""Runs programs with `calls.c` loaded: counts their file calls, and kills them or refuses what they ask at any of them.

A `Server` is a process that has all imported and forks for each run. What a run leaves is judged by what it said meanwhile: see `judged`.
"""

from __future__ import annotations

import ctypes
import errno
import json
import mmap
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Self

from optree._store import Directory, load
from optree._tree import flatten, walk_ops
from optree._values import decode
from optree.errors import OptreeError
from tests.faults.programs import COST, HIT, OTHERS, PROGRAMS, logs_of

ROOT = Path(__file__).parents[2]
NOTHING, KILL_BEFORE, KILL_WITHIN, REFUSE = range(4)
ERRORS = [errno.ENOSPC, errno.EIO, errno.EMFILE, errno.EDQUOT]
FOR_EVER = 1 << 40
PATIENCE = 60.0
"""Seconds after which a run is said to hang."""


class Note(ctypes.Structure):
    """One call, as `calls.c` notes it."""

    _fields_ = (
        ("size", ctypes.c_int64), ("pid", ctypes.c_int32), ("tid", ctypes.c_int32),
        ("call", ctypes.c_char * 16), ("path", ctypes.c_char * 240), ("other", ctypes.c_char * 240),
    )  # fmt: skip


class Plan(ctypes.Structure):
    """What is to be done, shared with all processes: see `calls.c`."""

    _fields_ = (
        ("calls", ctypes.c_uint64), ("at", ctypes.c_uint64), ("times", ctypes.c_uint64), ("acted", ctypes.c_uint64),
        ("action", ctypes.c_uint32), ("error", ctypes.c_uint32), ("noting", ctypes.c_uint32), ("noted", ctypes.c_uint32),
        ("only", ctypes.c_char * 64), ("asked", ctypes.c_uint64), ("granted", ctypes.c_uint64), ("held", ctypes.c_uint32),
        ("notes", Note * 16384),
    )  # fmt: skip


class Point(NamedTuple):
    """Where one run is hit."""

    program: str
    action: int = NOTHING
    at: int = 0
    error: int = 0
    times: int = 1

    def __str__(self) -> str:
        what = {NOTHING: "untouched", KILL_BEFORE: "killed before", KILL_WITHIN: "killed within"}.get(self.action)
        refused = f"{errno.errorcode.get(self.error)} for {'ever' if self.times == FOR_EVER else self.times} from"
        return f"{self.program} {what or refused} call {self.at}"


class Preload:
    """The compiled library, the plan, and a directory below which calls count."""

    def __init__(self, folder: Path) -> None:
        self.library, self.root = folder / "calls.so", folder / "root"
        self.root.mkdir()
        command = ["gcc", "-shared", "-fPIC", "-O2", "-o", self.library, Path(__file__).with_name("calls.c"), "-ldl"]
        subprocess.run(command, check=True)
        self._path = folder / "plan"
        self._path.write_bytes(b"")
        os.truncate(self._path, ctypes.sizeof(Plan))
        with self._path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), 0)
        self.plan = Plan.from_buffer(self._memory)

    @property
    def env(self) -> dict[str, str]:
        """The environment of a process whose calls count."""
        found = {name: value for name, value in os.environ.items() if not name.startswith(("OPTREE_", "OTEL_", "TRACEPARENT"))}
        return found | {
            "LD_PRELOAD": str(self.library), "FAULTS_PLAN": str(self._path), "FAULTS_ROOT": str(self.root), "PYTHONPATH": str(ROOT),
        }  # fmt: skip

    def arm(self, point: Point) -> None:
        """Let a point be hit from now on; calls are counted anew."""
        plan = self.plan
        plan.action = NOTHING
        plan.at, plan.times, plan.error, plan.acted, plan.calls, plan.noted = point.at, point.times, point.error, 0, 0, 0
        plan.only = HIT.encode() if point.program == "one_of_several" else b""
        plan.action = point.action

    def notes(self) -> list[tuple[str, str, str, int, int, int]]:
        """Return what was noted: call, path, other path, size, process, thread."""
        found = self.plan.notes[: min(self.plan.noted, 16384)]
        return [(one.call.decode(), one.path.decode(), one.other.decode(), one.size, one.pid, one.tid) for one in found]


@contextmanager
def preload() -> Iterator[Preload]:
    """Make a library and a directory, in memory where there is a file system for that."""
    where = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    folder = Path(tempfile.mkdtemp(prefix="optree-faults-", dir=where))
    try:
        yield Preload(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class Server:
    """A process that runs programs, one after the other: each in a fork of it."""

    def __init__(self, loaded: Preload) -> None:
        self.preload = loaded
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.harness"],
            env=loaded.env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self._runs = 0

    def run(self, point: Point) -> tuple[list[str], int]:
        """Run a program and hit it there; returns what was not as promised, and how many calls it made."""
        self._runs += 1
        base = self.preload.root / str(self._runs)
        self.preload.arm(point)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([point.program, str(base)]) + "\n")
        self._process.stdin.flush()
        told: list[list[Any]] = json.loads(self._process.stdout.readline())
        calls = self.preload.plan.calls
        self.preload.plan.action = NOTHING
        wrong = judged(point._replace(times=FOR_EVER) if point.at + point.times > calls else point, told, base)
        shutil.rmtree(base, ignore_errors=True)
        return wrong, calls

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()


def judged(point: Point, told: list[list[Any]], base: Path) -> list[str]:
    """Return what is not as promised, of what a run left in *base* that has told this."""
    if ["hung"] in told:
        return ["a process hangs"]
    judge = _Judge(point, told)
    if not judge.due and not any(kind == "began" for kind, *_ in told):
        return []
    unreadable = []
    for saved in Directory.of(base).saved():
        try:
            judge.read(load(saved.txn, Directory.of(base)))
        except OptreeError as error:
            unreadable.append(f"does not load: {error}")
    wrong = judge.verdict()
    return [*unreadable, *wrong] if wrong else []


def number_of(name: str) -> int:
    """Return the number of an op, of those of its process."""
    return int(name.rpartition(".")[2])


class _Judge:
    """Holds what is on disk to what was said."""

    def __init__(self, point: Point, told: list[list[Any]]) -> None:
        self.point, self.wrong = point, list[str]()
        self.made: dict[str, list[str]] = {}
        """Names of ops by process, as they were made."""
        self.due: dict[str, str] = {}
        """Names of ops that must be there, and why."""
        self.clean: dict[str, bool] = {}
        """Processes that came to their end, and whether they say that nothing is lost."""
        self.seen: dict[str, Any] = {}
        self.damaged = False
        for kind, process, *words in told:
            if kind == "made":
                self.made.setdefault(process, []).append(words[0])
                if point.action != REFUSE:
                    self.due.setdefault(words[0], "its end had returned")
            elif kind == "flushed":
                self.due |= dict.fromkeys(self.made.get(process, [])[: words[1]], f"flush({words[0]!r}) was True")
            elif kind == "health":
                self.clean[process] = not words[0] and words[1]
            elif kind == "left":
                self.clean[process] = self.clean[process] and not words[0]
                if point.program == "one_of_several":
                    self.due |= {name: "the error was another session's" for name in self.made[process] if number_of(name) >= OTHERS}
        for process in [process for process, clean in self.clean.items() if clean]:
            self.due |= dict.fromkeys(self.made.get(process, ()), "health() and flush() said so")

    def read(self, loaded: Any) -> None:
        """Take up a loaded session."""
        self.damaged |= loaded.damage.state == "damaged"
        if self.damaged and self.point.action != REFUSE:
            self.wrong.append(f"it was killed, and its files are called damaged: {loaded.damage.lines()}")
        found = list(walk_ops(loaded.session))
        paths = [op.path for *_, op in found]
        if len(paths) != len(set(paths)):
            self.wrong.append(f"paths are there twice: {paths}")
        for *_, op in found:
            if op.kind == "llm":
                self._compare(op)
        billed = [entry.id for *_, op in found for entry in op.accounting]
        if len(billed) != len(set(billed)) or len(flatten(loaded.session).accounting) != len(billed):
            self.wrong.append(f"entries are there twice: {billed}")

    def _compare(self, op: Any) -> None:
        """Hold an op's values to what its name says."""
        name = op.name.removeprefix("p:")
        if op.name in self.seen:
            self.wrong.append(f"op {op.name} is there twice")
        self.seen[op.name] = op
        said = [entry.message for entry in op.logs]
        expected = [line for line in logs_of(name) if line in said]
        thought = [chunk.text for chunk in op.reasoning.chunks] if op.reasoning else []
        answer = decode(op.response.payload) if op.response else None
        costs = [entry.cost_usd for entry in op.accounting if entry.status == "ok"]
        whole = (said, thought, answer, costs) == (logs_of(name), [f"{name} thinks"], f"{name} answers", [COST])
        allowed = said == expected and thought in ([], [f"{name} thinks"]) and answer in (None, f"{name} answers") and costs in ([], [COST])
        if not allowed and "(unknown)" not in op.name:
            self.wrong.append(f"op {op.name} is altered: {said} {thought} {answer!r} {costs}")
        if not whole and op.name in self.due and self._entries_due(op.name):
            self.wrong.append(f"op {op.name} is not whole, though {self.due[op.name]}: {said} {thought} {answer!r} {costs}")
        if op.name in self.due and op.ended_at is None:
            self.wrong.append(f"op {op.name} has no end, though {self.due[op.name]}")

    def _entries_due(self, name: str) -> bool:
        """Tell whether its log lines are promised too: they come within 10 ms of their call, other than structure."""
        return self.due[name] != "its end had returned"

    def verdict(self) -> list[str]:
        """Return all that is wrong."""
        missing = [name for name in self.due if name not in self.seen]
        self.wrong += [f"op {name} is lost, though {self.due[name]}" for name in missing]
        silent = self.point.action == REFUSE and self.point.times != FOR_EVER and not self.damaged
        for process in [process for process, clean in self.clean.items() if not clean]:
            gone = [name for name in self.made.get(process, ()) if name not in self.seen]
            if gone and silent:
                self.wrong.append(f"ops {gone} of {process} are lost, it said so, and the files do not")
        return self.wrong


def _serve() -> None:
    """Be the server: a line of JSON a run, its program and directory; the answer is what its processes told."""
    import optree

    for line in sys.stdin:
        program, base = json.loads(line)
        read, write = os.pipe()
        pid = os.fork()
        if not pid:
            code = 1
            try:
                os.close(read)
                os.setpgid(0, 0)
                os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
                os.environ["OPTREE_BASE_DIR"] = base
                optree.configure(console=False, otel="off")
                PROGRAMS[program](write)
                code = 0
            finally:
                os._exit(code)
        os.close(write)
        told = _until_all_ended(read, pid)
        os.close(read)
        os.waitpid(pid, 0)
        sys.stdout.write(json.dumps(told) + "\n")
        sys.stdout.flush()


def _until_all_ended(fd: int, pid: int) -> list[list[Any]]:
    """Read until no process can write any more; where that takes too long, end them."""
    found, until = b"", time.monotonic() + PATIENCE
    while True:
        if not select.select([fd], [], [], max(0.0, until - time.monotonic()))[0]:
            os.killpg(pid, signal.SIGKILL)
            return [["hung"]]
        data = os.read(fd, 1 << 16)
        if not data:
            return [json.loads(line) for line in found.splitlines()]
        found += data


if __name__ == "__main__":
    _serve()
