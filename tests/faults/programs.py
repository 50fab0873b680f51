"""Programs that record, and tell through a pipe what was acknowledged; every value follows from its op's name, so that a judge knows it.

Lines are JSON: ``["began", process]``, ``["made", process, name]`` once an op has ended, ``["flushed", process, level, number]`` once
`optree.flush` has returned True that was called when so many ops were told, and ``["health", process, lost, whole]`` at the end.
"""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable

import optree
from optree._store import ownership
from optree._tracing.runtime import RUNTIME

COST = 0.25
HIT = "0" * 8 + "-hit"
"""Txn of the first of several sessions."""
OTHERS = 10
"""Numbers of ops in the others begin here."""
TRIES = 30
"""How often a process flushes at its end until that is done: longer than an error lasts that passes."""


class Said:
    """What one process tells."""

    def __init__(self, fd: int, process: str) -> None:
        self.fd, self.process = fd, process
        self._made, self._telling = 0, threading.Lock()

    def __call__(self, what: str, *words: object) -> None:
        """Write a line, in one call."""
        with self._telling:
            self._made += what == "made"
            os.write(self.fd, json.dumps([what, self.process, *words]).encode() + b"\n")

    def flush(self, level: str) -> None:
        """Flush, and tell if it says that it is done."""
        made = self._made
        if optree.flush(level):  # type: ignore[arg-type]
            self("flushed", level, made)

    def end(self) -> None:
        """Tell how recording fared, and end as a process does."""
        whole = any(optree.flush() for _ in range(TRIES))
        self("health", optree.health()["lost"], whole)
        RUNTIME.at_exit()
        os.write(self.fd, json.dumps(["left", self.process, optree.health()["lost"]]).encode() + b"\n")


def logs_of(name: str) -> list[str]:
    """Return an op's log lines."""
    return [f"{name} log {number} " + "word " * 20 for number in range(3)]


def work(said: Said, first: int, last: int) -> None:
    """Make ops, and flush behind each second one."""
    for number in range(first, last):
        name = f"{said.process}.{number}"
        with optree.llm(provider="p", model=name) as op:
            op.request(messages=[{"role": "user", "content": f"{name} asks"}])
            for line in logs_of(name):
                op.log(line)
            op.think(f"{name} thinks")
            op.account(cost_usd=COST)
            op.response(f"{name} answers")
        said("made", f"p:{name}")
        if number % 2:
            said.flush("sync" if number % 4 == 1 else "write")


def _session(said: Said, within: Callable[[], None]) -> None:
    with optree.session("root") as session:
        said("began", session.txn)
        with optree.turn(user="go"):
            work(said, 0, 2)
            within()
            with optree.session("inner"), optree.turn(user="part"):
                work(said, 2, 3)
            work(said, 3, 4)
    said.flush("snapshot")


def owner(fd: int) -> None:
    """Record a session."""
    said = Said(fd, "owner")
    _session(said, lambda: None)
    said.end()


def forked(fd: int) -> None:
    """Record a session, part of it in a forked child."""
    _forked(Said(fd, "owner"), fd)


def _forked(said: Said, fd: int) -> None:
    def within() -> None:
        pid = os.fork()
        if not pid:
            _part(Said(fd, "child"))
        work(said, 4, 5)
        os.waitpid(pid, 0)

    _session(said, within)
    said.end()


class _Resting(Said):
    """Closes the files of all sessions once an op is made, as if they were idle and there were many of them."""

    def __call__(self, what: str, *words: object) -> None:
        super().__call__(what, *words)
        for session in list(ownership._open) if what == "made" else ():
            session.rest()
            session.rest()


def resting(fd: int) -> None:
    """Do as `forked` does, in a session that is idle again and again."""
    _forked(_Resting(fd, "owner"), fd)


def joined(fd: int) -> None:
    """Record a session, part of it in a process that was there before and joins it."""
    said = Said(fd, "owner")
    mine, theirs = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(theirs)
        env = os.read(mine, 1 << 16)
        if not env:
            os._exit(0)
        os.environ.update(json.loads(env))
        _part(Said(fd, "child"))
    os.close(mine)

    def within() -> None:
        os.write(theirs, json.dumps(optree.child_env({})).encode())
        work(said, 4, 5)
        os.waitpid(pid, 0)

    _session(said, within)
    os.close(theirs)
    said.end()


def spawned(fd: int) -> None:
    """Record a session, part of it in a new process that joins it."""
    said = Said(fd, "owner")

    def within() -> None:
        subprocess.run([sys.executable, "-m", "tests.faults.programs", str(fd)], env=optree.child_env(), pass_fds=[fd], check=False)

    _session(said, within)
    said.end()


def several(fd: int) -> None:
    """Record four sessions at once, each in a thread; the first one's txn is `HIT`."""
    said = Said(fd, "owner")
    begun = threading.Barrier(4)

    def record(first: int, begin: Callable[[], object] = lambda: None) -> None:
        with optree.session("root") as session:
            said("began", session.txn)
            begin()
            begun.wait()
            with optree.turn(user="go"):
                work(said, first, first + 2)
                with optree.session("inner"), optree.turn(user="part"):
                    work(said, first + 2, first + 4)
        said.flush("snapshot")

    threads = [threading.Thread(target=record, args=(number * OTHERS,)) for number in (1, 2, 3)]
    os.environ["OPTREE_TXN"] = HIT
    record(0, lambda: [thread.start() for thread in threads])
    for thread in threads:
        thread.join()
    said.end()


def _part(said: Said) -> None:
    """Be the other process; never returns."""
    code = 1
    try:
        with optree.tool("part"):
            work(said, 0, 4)
        said.end()
        code = 0
    finally:
        os._exit(code)


PROGRAMS: dict[str, Callable[[int], None]] = {one.__name__: one for one in (owner, forked, resting, joined, spawned, several)}
PROGRAMS["one_of_several"] = several

if __name__ == "__main__":
    optree.configure(console=False)
    _part(Said(int(sys.argv[1]), "child"))
