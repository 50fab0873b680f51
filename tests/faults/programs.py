"""Programs that record, and tell through a pipe what was acknowledged; every value follows from its op's name, so that a judge knows it.

Lines are JSON: ``["began", process]``, ``["made", process, name]`` once an op has ended, ``["flushed", process, level]`` once
`optree.flush` has returned True, and ``["health", process, lost, whole]`` at the end.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable

import optree
from optree.instrument.runtime import RUNTIME

COST = 0.25
TRIES = 30
"""How often a process flushes at its end until that is done: longer than an error lasts that passes."""


class Said:
    """What one process tells."""

    def __init__(self, fd: int, process: str) -> None:
        self.fd, self.process = fd, process

    def __call__(self, what: str, *words: object) -> None:
        """Write a line, in one call."""
        os.write(self.fd, json.dumps([what, self.process, *words]).encode() + b"\n")

    def flush(self, level: str) -> None:
        """Flush, and tell if it says that it is done."""
        if optree.flush(level):  # type: ignore[arg-type]
            self("flushed", level)

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
    said = Said(fd, "owner")

    def within() -> None:
        pid = os.fork()
        if not pid:
            _part(Said(fd, "child"))
        work(said, 4, 5)
        os.waitpid(pid, 0)

    _session(said, within)
    said.end()


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


PROGRAMS: dict[str, Callable[[int], None]] = {one.__name__: one for one in (owner, forked, joined, spawned)}

if __name__ == "__main__":
    optree.configure(console=False)
    _part(Said(int(sys.argv[1]), "child"))
