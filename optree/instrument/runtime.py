"""What this process holds: its options, its open root sessions, and what happens at fork and at exit."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, get_args

from optree.builder import SessionTreeBuilder, Turn
from optree.builder.core import Core, Cycles
from optree.builder.stream import Stream
from optree.clock import now_ms
from optree.console import ConsoleWriter, LineOptions
from optree.errors import OptreeError, SetupError
from optree.ids import is_txn, new_txn, trace_id
from optree.instrument.handles import Session
from optree.nodes import TurnNode
from optree.records import SessionResume
from optree.store import Directory, SessionStore, open_session, resume_session
from optree.store.directory import SUFFIXES
from optree.store.journal import Sync
from optree.store.session_store import StoreOptions
from optree.tree import apply
from optree.tree.path import parent_label

EXIT_SECONDS = 0.25
"""The longest that optree delays the end of the process."""


@dataclass(frozen=True, slots=True)
class Config:
    """Options of this process. Arguments of `configure` win over the environment (``OPTREE_<NAME>``)."""

    base_dir: str | Path | None = None
    sessions_dir: str | Path | None = None
    billing_file: str | Path | None = None
    compression: str = "zstd"
    """`zstd`, `gzip` or `none`, for snapshots; all are read."""
    sync: Sync = "interval"
    """When data is forced to the disk itself: `write` never, `interval` each second, `turn` at each turn's end, `op` at each op's."""
    redacted_save: bool = False
    """Replace credentials before anything is written; by default the disk has all, private to its owner."""
    cycles: Cycles = "mark"
    """An agent that calls itself is marked (`mark`) or refused (`block`)."""
    verbose: bool = False
    trace_llm: bool = False
    trace_tools: bool = False
    console: bool = True
    """Print lines on stderr at all."""


_CHOICES = {"compression": tuple(SUFFIXES), "sync": get_args(Sync), "cycles": get_args(Cycles)}


class Runtime:
    """What this process has open."""

    def __init__(self) -> None:
        self.config = _from_environment(Config())
        self.stores: dict[str, SessionStore] = {}
        self.sessions: dict[str, Session] = {}
        """Open root sessions by txn."""
        self.consoles: list[ConsoleWriter] = []
        self.problems: list[str] = []
        self._detached: dict[str, str] = {}
        """Txns of sessions that were opened for a node without context, with that node's path."""
        self._lock = threading.RLock()
        self._resume = os.environ.get("OPTREE_RESUME")
        self._first_txn = os.environ.get("OPTREE_TXN")

    def configure(self, **options: Any) -> Config:
        """Set options; raises `SetupError` for one that does not exist or cannot have that value."""
        known = {field.name for field in fields(Config)}
        for name, value in options.items():
            if name not in known:
                raise SetupError(f"configure() has no option {name!r}; the options are {', '.join(sorted(known))}")
            if name in _CHOICES and value not in _CHOICES[name]:
                raise SetupError(f"{name}={value!r} is not possible; choose one of {', '.join(_CHOICES[name])}")
        self.config = replace(self.config, **options)
        return self.config

    def directory(self) -> Directory:
        """Return where sessions are kept."""
        return Directory.of(self.config.base_dir, self.config.sessions_dir, self.config.billing_file)

    def open_root(self, agent: str, attributes: Mapping[str, Any]) -> Session:
        """Begin a root session, or resume one if the environment asks for it (`OPTREE_RESUME`), in this process's first root only."""
        with self._lock:
            options = StoreOptions(
                self.directory(), self.config.compression, self.config.sync, self.config.redacted_save, self.config.cycles
            )
            resume, self._resume = self._resume, None
            txn, self._first_txn = self._first_txn, None
            session = self._resumed(resume, options, agent) if resume else self._opened(txn, options, agent, attributes)
            self.sessions[session.txn] = session
            return session

    def close_root(self, session: Session) -> None:
        """Forget a root session that has ended; its store writes the last snapshot in the background."""
        self.sessions.pop(session.txn, None)

    def join(self, parent: str, ancestry: str) -> tuple[Session, Turn] | None:
        """Return a stand-in for the session and turn of another process's node *parent* (``<txn>:<path>``), to begin ops in."""
        txn, _, path = parent.partition(":")
        if not is_txn(txn):
            self.report(f"OPTREE_PARENT={parent[:80]!r} names no session; this process records a session of its own")
            return None
        with self._lock:
            store = self.stores.get(txn) or self._joined_store(txn)
            if store is None:
                return None
        turn_path = path if path.count(".") % 2 == 0 and path else parent_label(path) or "0"
        session_path = parent_label(turn_path)
        node = apply.new_session(txn, session_path, trace_id(txn), ancestry.rpartition("->")[2], ancestry, now_ms())
        core = Core(txn, store.stream, now=StoreOptions(self.directory()).now, cycles=self.config.cycles, base=store.journal.base)
        builder = SessionTreeBuilder.over(core, node)
        number = int(turn_path.rpartition(".")[2])
        turn = Turn(builder, TurnNode(f"{txn}:{turn_path}", turn_path, number, now_ms()), core.base + 1)
        return Session(builder), turn

    def open_detached(self, agent: str, attributes: Mapping[str, Any]) -> Session:
        """Begin a root session for a node that comes without one; it ends with the node that opens first in it."""
        session = self.open_root(agent, attributes)
        self._detached[session.txn] = ""
        return session

    def own_detached(self, builder: SessionTreeBuilder, path: str) -> None:
        """Let the first node of a detached session own it."""
        if self._detached and self._detached.get(builder.txn) == "":
            self._detached[builder.txn] = path

    def close_detached(self, builder: SessionTreeBuilder, path: str) -> None:
        """End a detached session with the node that owns it."""
        if self._detached and self._detached.get(builder.txn) == path:
            del self._detached[builder.txn]
            builder.end_session(builder.node.turns[-1].status or "ok")
            self.sessions.pop(builder.txn, None)

    def only_session(self) -> Session | None:
        """Return the root session if exactly one is open: where an op without context belongs."""
        return next(iter(self.sessions.values())) if len(self.sessions) == 1 else None

    def report(self, problem: str) -> None:
        """Note a problem, and say it once on stderr."""
        if problem not in self.problems:
            self.problems.append(problem)
            with contextlib.suppress(OSError):
                os.write(2, f"optree: {problem}\n".encode("utf-8", "replace"))

    def at_exit(self) -> None:
        """Deliver what is pending; within `EXIT_SECONDS` in all."""
        share = EXIT_SECONDS / max(1, len(self.stores) + len(self.consoles))
        for store in list(self.stores.values()):
            store.stream.flush()
        for console in self.consoles:
            console.flush(share)
        for store in list(self.stores.values()):
            store.close(share)

    def after_fork(self) -> None:
        """In a forked child: journals of its own, no threads, no parent's consoles."""
        self._lock = threading.RLock()
        self.consoles.clear()
        for store in self.stores.values():
            store.after_fork()

    def _opened(self, txn: str | None, options: StoreOptions, agent: str, attributes: Mapping[str, Any]) -> Session:
        name = txn if txn and is_txn(txn) else new_txn()
        console = self._console(name)
        try:
            builder, store = open_session(agent, options, txn=name, attributes=attributes, takers=console)
        except (OSError, OptreeError) as error:
            self.report(
                f"session {name} is not saved: {error}; the agent runs on (set OPTREE_SESSIONS_DIR to a directory that can be written)"
            )
            stream = Stream(console) if console else None
            builder = SessionTreeBuilder(agent, txn=name, attributes=attributes, stream=stream, cycles=self.config.cycles)
            return Session(builder)
        self.stores[name] = store
        return Session(builder)

    def _resumed(self, txn: str, options: StoreOptions, agent: str) -> Session:
        try:
            builder, store, loaded = resume_session(txn, options)
        except (OSError, OptreeError) as error:
            raise SetupError(f"cannot resume: {error}") from error
        self.stores[builder.txn] = store
        for console in self._console(builder.txn):
            console.introduce(builder.node)
            console.take([SessionResume("", now_ms())])
            builder.core.stream.subscribe(console)
        for line in loaded.damage.lines():
            self.report(f"session {builder.txn}: {line}")
        if builder.node.agent_id != agent:
            self.report(f"session {builder.txn} was begun by agent {builder.node.agent_id}, and goes on with {agent}")
        return Session(builder, resumed=True)

    def _joined_store(self, txn: str) -> SessionStore | None:
        try:
            if not self.directory().live(txn).is_dir():
                raise FileNotFoundError(f"session {txn} does not live in {self.directory().sessions}")
            store = SessionStore(txn, StoreOptions(self.directory(), sync=self.config.sync), owner=False)
        except (OSError, OptreeError) as error:
            self.report(f"cannot join session {txn}: {error}; this process records a session of its own")
            return None
        self.stores[txn] = store
        return store

    def _console(self, txn: str) -> list[ConsoleWriter]:
        if not self.config.console:
            return []
        options = LineOptions(self.config.verbose, self.config.trace_llm, self.config.trace_tools, _colour())
        console = ConsoleWriter(txn, options)
        self.consoles.append(console)
        return [console]


def _colour() -> bool:
    if os.environ.get("NO_COLOR"):
        return False
    return bool(os.environ.get("FORCE_COLOR")) or (sys.stderr is not None and sys.stderr.isatty())


def _from_environment(config: Config) -> Config:
    found: dict[str, Any] = {}
    for field in fields(Config):
        value = os.environ.get(f"OPTREE_{field.name.upper()}")
        if value is None or field.name in ("base_dir", "sessions_dir", "billing_file"):
            continue
        if field.name in _CHOICES:
            found[field.name] = value if value in _CHOICES[field.name] else getattr(config, field.name)
        else:
            found[field.name] = value.lower() in ("1", "true", "yes", "on")
    return replace(config, **found)


RUNTIME = Runtime()
atexit.register(RUNTIME.at_exit)
os.register_at_fork(after_in_child=RUNTIME.after_fork)


def configure(**options: Any) -> Config:
    """Set options of this process before its first session; see `Config` for them. Raises `SetupError` for misuse."""
    return RUNTIME.configure(**options)


def flush(level: str = "write", timeout: float = 5.0) -> bool:
    """Deliver all that is recorded: to the operating system (`write`), to the disk (`sync`), or into snapshots (`snapshot`).

    True only if that is done for every open session within *timeout* seconds each.
    """
    if level not in ("write", "sync", "snapshot"):
        raise SetupError(f"flush({level!r}) is not possible; choose one of write, sync, snapshot")
    done = [store.flush(level, timeout) for store in list(RUNTIME.stores.values())]
    return all(done)


def health() -> dict[str, Any]:
    """Return how recording fares: ``ok``, ``problems`` (texts), and counts of what was lost, late or dropped."""
    stores = list(RUNTIME.stores.values())
    problems = [*RUNTIME.problems, *(text for store in stores for text in store.problems)]
    problems += [store.journal.problem for store in stores if store.journal.problem]
    problems += [store.stream.last_failure for store in stores if store.stream.last_failure]
    counts = {
        "records": sum(store.journal.last for store in stores),
        "lost": sum(store.journal.lost for store in stores),
        "late": sum(store.stream.late for store in stores),
        "failures": sum(store.stream.failures for store in stores),
        "console_dropped": sum(console.dropped for console in RUNTIME.consoles),
    }
    return {"ok": not problems and not counts["lost"], "problems": problems, **counts, "sessions": sorted(RUNTIME.stores)}
