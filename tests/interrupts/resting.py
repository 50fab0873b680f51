"""What is looked at where no session is open: what a process holds then, what it says, and what it saved."""

from __future__ import annotations

import json
import os
import re
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from itertools import count
from pathlib import Path
from time import monotonic
from typing import Any
from weakref import ref

import optree
from optree import _background as background
from optree import _ids as ids
from optree import _interrupts as interrupts
from optree._store import upkeep
from optree._tracing.runtime import RUNTIME
from optree._tree.walk import walk_ops
from tests.interrupts.joining import ended_flaws
from tests.interrupts.scenarios import totals_flaws

PATIENCE = 8.0
"""Seconds in which what is pending is done, on a machine where `LOOKS` take no longer."""
LOOKS = 20
"""So often it is looked, however long that takes."""
OURS = "optree-"


def held_locks() -> list[Any]:
    """Return the re-entrant locks that this thread holds, of those that a `with` statement takes; a stream replaces its own."""
    return [lock for lock in interrupts._LOCKS if lock._is_owned()]


class Rest:
    """Looks at a process in which nothing is open, again and again, each time at a new directory in *base*."""

    def __init__(self, base: Path, stderr: Path | None = None) -> None:
        self._base, self._stderr = base, stderr
        self._times = 0
        self._suspects: list[tuple[ref[Any], str]] = []
        self._rounds: list[tuple[int, str, bool]] = []
        """The time in the latest txn when each exception had been raised, where, and whether a handler may run there."""
        self._known: set[str] = set()
        """What was found already."""
        self.sessions: list[Any] = []
        """The builders of sessions that are looked for on disk."""
        self._begin()
        with optree.session("another"):
            pass
        optree.flush("snapshot")
        self._descriptors = Counter(_descriptors())

    def note(self, where: str, *, possible: bool) -> None:
        """Note where something was raised, and the locks that this thread holds though it is in no function: those held at rest are flaws.

        A `with` statement calls `__exit__` a few bytecodes after its block. CPython runs handlers after calls and jumps, not between these
        bytecodes, but a trace function raises there as well: what is held then, where no handler is *possible*, is given back. So a
        descriptor that a function of optree's had just returned is forgotten, and the files that it locks.
        """
        self._rounds.append((ids._latest, where, possible))  # they are in order, and ahead of the clock where many begin
        if not possible:  # one that is kept to save with has no name by which it is known later
            kept = Counter(_descriptors())[os.devnull] - len(upkeep._spare)
            self._descriptors[os.devnull] = max(kept, self._descriptors[os.devnull])
        for lock in held_locks():
            while not possible and lock._is_owned():
                lock.release()
            self._suspects.append((ref(lock), where))

    def flaws(self) -> list[str]:
        """Let what is pending be done, and return what is wrong."""
        joined, until = ended_flaws(), monotonic() + PATIENCE
        for look in count(1):
            with optree.session("another"):  # a begin closes what has ended
                pass
            optree.flush("snapshot")
            checks: Iterable[Callable[[], list[str]]] = (
                *(self._of_threads, self._of_descriptors, self._of_locks, self._of_files, self._of_contexts, self._of_health),
            )
            found = [flaw for check in checks for flaw in check()]
            self._known.update(flaw for flaw in found if flaw.startswith(("descriptors", "files")) and not self._of_round(flaw)[1])
            found = [flaw for flaw in found if flaw not in self._known]
            if not found or (look >= LOOKS and monotonic() >= until):
                break
        found += [*joined, *self._of_what_is_saved(), *self._of_stderr()]
        self._known.update(found)
        said = [f"{flaw} (of {self._of_round(flaw)[0]})" for flaw in found]
        self._begin()
        return said

    def _of_round(self, flaw: str) -> tuple[str, bool]:
        """Return where was raised what a flaw came of, as the time of its session tells, and whether a handler may run there."""
        begun = int(txn[1], 36) if (txn := re.search(r"([a-z0-9]{8})-[a-z0-9]{8}", flaw)) else sys.maxsize
        return next(((where, possible) for when, where, possible in self._rounds if when >= begun), ("?", True))

    def _begin(self) -> None:
        self._times += 1
        optree.configure(base_dir=str(self._base / str(self._times)))
        self.sessions.clear()
        self._suspects.clear()
        self._rounds.clear()
        self._counted = _counted()

    def _of_threads(self) -> list[str]:
        """Return threads that are not those of a worker, which all sessions share, or are there twice."""
        there = Counter(thread.name for thread in threading.enumerate())
        shared = {f"optree-{worker._name}" for worker in background._workers}
        found = [f"threads: {number} {name}" for name, number in there.items() if name.startswith(OURS) and number > (name in shared)]
        tasks = Path("/proc/self/task")
        unknown = len(list(tasks.iterdir())) - len(threading.enumerate()) if tasks.is_dir() else 0
        return [*found, *([f"threads: {unknown} that Python does not know"] if unknown > 0 else [])]

    def _of_descriptors(self) -> list[str]:
        """Return descriptors that are open and were not."""
        return [f"descriptors: {one}" for one in (Counter(_descriptors()) - self._descriptors)]

    def _of_locks(self) -> list[str]:
        """Return locks that the program's thread has taken and not given back."""
        where = {id(lock()): where for lock, where in self._suspects}
        return [f"locks: {lock} is held, since {where.get(id(lock), '?')}" for lock in held_locks()]

    def _of_files(self) -> list[str]:
        """Return live directories, and what a snapshot was written to."""
        there = sorted((self._base / str(self._times) / "sessions").iterdir())
        return [f"files: {path.name}" for path in there if not path.name.endswith(".zst")]

    def _of_contexts(self) -> list[str]:
        """Return sessions that are open, and what is known of such that are not."""
        here = optree.current_session(), optree.current()
        found = [f"context: {here}"] if here != (None, None) else []
        for name in ("sessions", "holders", "unsaved", "_detached", "_joined"):
            found += [f"{name}: {known}" for known in getattr(RUNTIME, name)]
        for name in ("stores", "consoles"):
            found += [f"{name}: {known}" for known in list(getattr(RUNTIME, name))[:-1]]
        return found

    def _of_health(self) -> list[str]:
        """Return what is lost or failed since the last time, and what is said to be wrong."""
        now, problems = _counted(), optree.health()["problems"]
        found = [
            f"health: {name} went from {self._counted[name]} to {number}" for name, number in now.items() if number != self._counted[name]
        ]
        return [*found, *([f"health: {problems}"] if problems else [])]

    def _of_what_is_saved(self) -> list[str]:
        """Return where what is on disk is not what was recorded, and where an entry is billed other than once."""
        directory, found = optree.Directory.of(str(self._base / str(self._times))), []
        lines = directory.billing.read_text().splitlines() if directory.billing.exists() else []
        billed = Counter(json.loads(line)["id"] for line in lines)
        found += [f"billed {number} times: {entry}" for entry, number in billed.items() if number > 1]
        for builder in self.sessions:
            try:
                loaded = optree.load(builder.txn, directory)
            except optree.OptreeError as error:
                found.append(f"saved: {error}")
                continue
            if loaded.damage.state != "clean" or _whole(loaded.session) != _whole(builder.node):
                found.append(f"saved: {loaded.damage.lines()} {_whole(loaded.session)} is not {_whole(builder.node)}")
            found += [f"saved: {flaw}" for flaw in totals_flaws(loaded.session)]
            entries = [entry.id for _, _, op in walk_ops(builder.node) for entry in op.accounting]
            found += [f"not billed: {entry}" for entry in entries if entry not in billed]
        return found

    def _of_stderr(self) -> list[str]:
        """Return tracebacks."""
        said = self._stderr.read_text(errors="replace") if self._stderr is not None else ""
        if self._stderr is not None:
            os.truncate(self._stderr, 0)
        at = max(said.find("Traceback"), said.find("Exception ignored"))
        return [f"stderr: {said[max(0, at - 200) :][:2000]}"] if at >= 0 else []


def _whole(session: Any) -> list[Any]:
    ops = [(op.path, op.name, op.status, len(op.logs), len(op.accounting), op.ended_at) for _, _, op in walk_ops(session)]
    return [session.totals, session.ended_at, *ops]


def _descriptors() -> list[str]:
    """Return what the descriptors of this process are of; none where that cannot be seen."""
    folder, found = Path("/proc/self/fd"), []
    for one in folder.iterdir() if folder.is_dir() else ():
        try:
            found.append(str(one.readlink()))
        except FileNotFoundError:  # the one that lists them
            continue
    return found


def _counted() -> dict[str, int]:
    health = optree.health()
    return {name: health[name] for name in ("lost", "failures", "console_dropped")}
