"""Kill a busy agent at a random moment, load what is on disk, resume it, and hold both to what was acknowledged.

    python -m benchmarks.crash --kills 1000 --seed 1

The agent is `tests/store/crash_agent.py`: sub-agents, threads, tasks and a second process. It and its partner get SIGKILL at the same
moment. Then the session must load, hold everything that was acknowledged, and be `clean` or end in a `torn tail`. A fresh process
resumes it (and is killed as well, now and then); at its end the paths are unique, what was open is `interrupted`, the ledger has each entry
once and the tree's totals to the cent, and the snapshot is the only file left. Exit status 1 if any of that does not hold.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import random
import select
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from msgspec import Struct

from optree._nodes import OperationNode, SessionNode, TurnNode
from optree._store import Directory, Loaded, load
from optree._store.ledger import Ledger
from optree._store.reading.formats import read_snapshot
from optree._tree import flatten, walk_ops, walk_sessions
from optree._values import decode
from optree.errors import OptreeError
from tests.store import crash_agent

Ack = list[Any]
EARLY = 0.002
"""Kill moments begin this many seconds after the fork."""


@dataclass
class Result:
    """What was seen."""

    counts: Counter[str] = field(default_factory=Counter)
    lost: list[str] = field(default_factory=list)
    """One line for each thing that was not as promised."""


class Index:
    """A loaded tree by path."""

    def __init__(self, root: SessionNode) -> None:
        self.sessions = {session.path: session for session in walk_sessions(root)}
        self.turns = {turn.path: turn for session in self.sessions.values() for turn in session.turns}
        found = list(walk_ops(root))
        self.ops = {op.path: op for _, _, op in found}
        every = [op.op_id for op in self.ops.values()]
        self.twice = len(found) - len(self.ops) + len(every) - len(set(every))


def missing(acks: Iterable[Ack], index: Index, *, resumed: bool) -> list[str]:
    """Return what was acknowledged and is not in the tree."""
    return [f"{kind} {words}" for kind, *words in acks if not _there(kind, words, index, resumed)]


def _there(kind: str, words: list[Any], index: Index, resumed: bool) -> bool:
    if kind in ("session", "session ended", "message"):
        return _session_there(kind, index.sessions.get(words[0]), words, resumed)
    if kind in ("turn", "turn ended"):
        turn = index.turns.get(words[0])
        return turn is not None and (kind == "turn" or turn.ended_at is not None)
    if kind in ("op", "ended", "request", "response", "entries"):
        op = index.ops.get(words[0])
        return op is not None and _op_holds(kind, op, words)
    if kind == "accounting":
        op = index.ops.get(words[0].rpartition("#")[0].rpartition(":")[2])
        return op is not None and [words[0]] == [entry.id for entry in op.accounting if entry.id == words[0]]
    return kind in ("txn", "snapshot", "resumed")


def _session_there(kind: str, session: SessionNode | None, words: list[Any], resumed: bool) -> bool:
    if session is None:
        return False
    if kind == "message":
        return len(session.messages) > words[1]
    return kind == "session" or session.ended_at is not None or (resumed and not session.path)


def _op_holds(kind: str, op: OperationNode, words: list[Any]) -> bool:
    if kind == "entries":
        logs = [entry.message for entry in op.logs]
        chunks = [chunk.text for chunk in op.reasoning.chunks] if op.reasoning else []
        return words[1] == logs[: len(words[1])] and words[2] == chunks[: len(words[2])]
    if kind == "response":
        return op.response is not None and words[1] == decode(op.response.payload)
    return {"op": True, "ended": op.ended_at is not None, "request": op.request is not None}[kind]


def open_paths(loaded: Loaded) -> list[tuple[type[Struct], str]]:
    """Return what a crash left open, but for the root session: a resume goes on with that."""
    return [(type(node), node.path) for node in loaded.open_nodes() if node is not loaded.session]


class Round:
    """One agent's life: run, kill, load, resume, judge."""

    def __init__(self, base: Path, seed: int, result: Result) -> None:
        self.base = base
        self.directory = Directory.of(base)
        self.seed = seed
        self.random = random.Random(seed)
        self.result = result
        self.acks: list[Ack] = []

    def run(self, span: float) -> None:
        """Live through it; *span* is the time in seconds that an agent takes which nobody kills."""
        self.kill(lambda fd: crash_agent.run(str(self.base), fd, self.seed), self.random.uniform(EARLY, span))
        txn = next((words[0] for kind, *words in self.acks if kind == "txn"), None)
        if txn is None:
            self.result.counts["killed before its session was acknowledged"] += 1
            with contextlib.suppress(OptreeError):
                load("last", self.directory)
            return
        interrupted = self.judge(txn, resumed=False)
        if self.random.random() < 0.3:
            self.result.counts["resumed runs killed too"] += 1
            self.kill(lambda fd: crash_agent.resume(str(self.base), fd, txn), self.random.uniform(EARLY, span / 3))
            interrupted |= self.judge(txn, resumed=True)
        self.kill(lambda fd: crash_agent.resume(str(self.base), fd, txn), None)
        self.final(txn, interrupted)

    def kill(self, agent: Callable[[int], None], after: float | None) -> None:
        """Run an agent in a fork of this warm process and kill it and its partner *after* seconds; None lets it end."""
        read, write = os.pipe()
        begun = time.perf_counter()
        pid = os.fork()
        if not pid:
            os.close(read)
            _live(agent, write)
        with contextlib.suppress(PermissionError):
            os.setpgid(pid, pid)
        os.close(write)
        data = _until(read, None if after is None else begun + after)
        if after is not None:
            self.result.counts["kills"] += 1
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
            data += _until(read, None)
        os.close(read)
        _, status = os.waitpid(pid, 0)
        if os.waitstatus_to_exitcode(status) not in ((0, -signal.SIGKILL) if after is not None else (0,)):
            self.say(f"an agent ended with status {status}")
        self.acks += [json.loads(line) for line in data.splitlines()]

    def judge(self, txn: str, *, resumed: bool) -> set[tuple[type[Struct], str]]:
        """Load after a kill; returns what is open."""
        loaded = self.load(txn)
        if loaded is None:
            return set()
        self.result.counts[f"{loaded.damage.state}, {loaded.state}"] += 1
        if loaded.damage.state not in ("clean", "torn tail"):
            self.say(f"damage after a kill: {loaded.damage.lines()}")
        self.compare(loaded, resumed=resumed)
        return set(open_paths(loaded))

    def load(self, txn: str) -> Loaded | None:
        """Load; that it fails is a loss."""
        self.result.counts["loads"] += 1
        try:
            return load(txn, self.directory)
        except Exception:  # noqa: BLE001 - whatever it is, it is a finding
            self.say(f"does not load: {traceback.format_exc()}")
            return None

    def compare(self, loaded: Loaded, *, resumed: bool) -> Index:
        """Hold a loaded tree to what was acknowledged."""
        index = Index(loaded.session)
        self.result.counts["acknowledged"] += len(self.acks)
        for what in missing(self.acks, index, resumed=resumed):
            self.say(f"lost: {what}")
        if index.twice:
            self.say(f"{index.twice} paths or ids are there twice")
        for op in index.ops.values():
            said = [entry.message for entry in op.logs]
            if len(said) != len(set(said)) or "(unknown)" in op.name:
                self.say(f"op {op.path} {op.name}: {said}")
        return index

    def final(self, txn: str, interrupted: set[tuple[type[Struct], str]]) -> None:
        """Judge the session once it was resumed and has come to its end."""
        loaded = self.load(txn)
        if loaded is None:
            return
        if (loaded.damage.state, loaded.state) != ("clean", "ended"):
            self.say(f"after the resume: {loaded.state}, {loaded.damage.lines()}")
        index = self.compare(loaded, resumed=False)
        self.result.counts["interrupted nodes closed"] += len(interrupted)
        places: dict[type[Struct], dict[str, Any]] = {SessionNode: index.sessions, TurnNode: index.turns, OperationNode: index.ops}
        for kind, path in interrupted:
            if (status := places[kind][path].status) != "interrupted":
                self.say(f"{kind.__name__} {path} was open at the kill, and is {status} now")
        if open_paths(loaded):
            self.say(f"still open: {open_paths(loaded)}")
        self.settle(txn, loaded)

    def settle(self, txn: str, loaded: Loaded) -> None:
        """Check the ledger, the totals as the file says them, and that the snapshot remains alone."""
        entries = flatten(loaded.session).accounting
        billed = Ledger(self.directory.billing).read()
        self.result.counts["ledger entries"] += len(billed)
        if sorted(entry["id"] for entry in entries) != sorted(entry["id"] for entry in billed):
            self.say(f"the ledger has {len(billed)} entries, the tree {len(entries)}")
        path = self.directory.snapshot(txn)
        names = sorted(one.name for one in self.directory.sessions.iterdir())
        if names != [path.name]:
            self.say(f"there remain {names}")
            return
        totals = read_snapshot(path).tree.session.totals
        ran = sum(op.kind == "tool" for *_, op in walk_ops(loaded.session))  # one that was killed ran, and is not billed
        sums = {
            "cost": (totals.cost_usd, loaded.session.totals.cost_usd, sum(entry.get("costUsd", 0.0) for entry in billed)),
            "llm": (totals.llm_requests, loaded.session.totals.llm_requests, sum(entry["type"] == "llm" for entry in billed)),
            "tools": (totals.tools_run, loaded.session.totals.tools_run, ran),
        }
        for name, (saved, folded, paid) in sums.items():
            if max(abs(saved - paid), abs(folded - paid)) > 1e-6:
                self.say(f"{name}: saved totals {saved}, folded {folded}, leaves {paid}")

    def say(self, finding: str) -> None:
        """Note what is not as promised."""
        self.result.lost.append(f"seed {self.seed}: {finding}")


def _live(agent: Callable[[int], None], fd: int) -> None:
    """Be the agent; never returns."""
    code = 1
    try:
        os.setpgid(0, 0)
        agent(fd)
        code = 0
    except BaseException:  # noqa: BLE001 - a forked child must not go on as its parent
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def _until(fd: int, deadline: float | None) -> bytes:
    """Read until the writers have ended, or the deadline has come."""
    found = b""
    while True:
        left = None if deadline is None else deadline - time.perf_counter()
        if left is not None and (left <= 0 or not select.select([fd], [], [], left)[0]):
            return found
        data = os.read(fd, 1 << 16)
        if not data:
            return found
        found += data


def measure(base: Path) -> float:
    """Return how long an agent takes that nobody kills, in seconds: the longest of three."""
    longest = 0.0
    for number in range(3):
        begun = time.perf_counter()
        one = Round(base / f"warm-{number}", number, Result())
        one.kill(lambda fd, one=one: crash_agent.run(str(one.base), fd, one.seed), None)  # type: ignore[misc]
        longest = max(longest, time.perf_counter() - begun)
    return longest


def run(kills: int, seed: int, *, progress: bool = True) -> Result:
    """Run rounds until *kills* processes were killed."""
    result = Result()
    choice = random.Random(seed)
    gc.freeze()
    begun = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="optree-crash-") as name:
        span = measure(Path(name)) * 1.1
        while result.counts["kills"] < kills:
            base = Path(name) / str(result.counts["kills"])
            Round(base, choice.randrange(1 << 30), result).run(span)
            shutil.rmtree(base, ignore_errors=True)
            if progress and sys.stdout.isatty():
                done = result.counts["kills"]
                print(
                    f"\r{done} of {kills} kills, {done / (time.perf_counter() - begun):.1f}/s, {len(result.lost)} lost", end="", flush=True
                )
    result.counts["seconds"] = round(time.perf_counter() - begun)
    return result


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.crash", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    result = run(options.kills, options.seed)
    counts = result.counts
    print()
    for what, number in counts.items():
        print(f"{what:<45}{number:>10}")
    for finding in result.lost[:20]:
        print(finding, file=sys.stderr)
    print(f"{counts['kills']} kills, {counts['loads']} loads, {len(result.lost)} lost")
    return 1 if result.lost else 0


if __name__ == "__main__":
    sys.exit(main())
