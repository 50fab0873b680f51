"""One session while it lives: its lock, journal, snapshots and ledger, and the thread that does what callers must not wait for."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

import msgspec
from msgspec import UNSET

from optree import records as r
from optree._version import __version__
from optree.builder import SessionTreeBuilder, Stream, Taker
from optree.builder.core import Core, Cycles
from optree.builder.stream import Write
from optree.clock import Clock, now_ms, wall
from optree.errors import BusyError, OptreeError
from optree.ids import new_txn
from optree.nodes import SessionNode
from optree.store.compression import unpacked_frames
from optree.store.directory import SUFFIXES, Directory, checked, journals
from optree.store.formats import read_meta
from optree.store.journal import Journal, Sync
from optree.store.ledger import Ledger
from optree.store.reader import read_journal
from optree.store.recovery import Loaded, load
from optree.store.resume import close_interrupted
from optree.store.snapshot import SnapshotWriter
from optree.store.system import OS, REAL
from optree.tree import Fold, Tree
from optree.tree.summary import snapshot_summary
from optree.values import TypedDecoder, decode, encode, redact

_decode_tree: TypedDecoder[Tree] = TypedDecoder(Tree)
SYNC_SECONDS = 1.0
FINISH_BYTES = 4 << 20
"""Largest live directory that a joined process finishes as it ends; loading more would delay its exit."""


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """How a session is kept."""

    directory: Directory
    compression: str = "zstd"
    sync: Sync = "interval"
    write: Write = "structure"
    redacted: bool = False
    cycles: Cycles = "mark"
    now: Clock = wall
    system: OS = REAL


class SessionStore:
    """Keeps one root session on disk. Nothing here raises once it is open; `problems` says what went wrong."""

    def __init__(self, txn: str, options: StoreOptions, *, owner: bool = True, takers: Sequence[Taker] = ()) -> None:
        """Open or make the live directory and a new journal. Raises `BusyError` if another process owns it, `OSError`."""
        self.txn = checked(txn)
        self.options = options
        self.owner = owner
        self.problems: deque[str] = deque(maxlen=32)
        self.live = options.directory.live(txn)
        self.builder: SessionTreeBuilder | None = None
        self._os = options.system
        self._lock_fd = -1
        self._os.make_directory(self.live)
        if owner:
            self._take_lock()
        self.vector = self._saved_vector()
        """Per writer, the number of its last record that is in the tree, or was in it when the session ended before."""
        try:
            self.journal = self._new_journal()
        except BaseException:
            self._release_lock()
            raise
        self.stream = Stream([self.journal, *takers], options.write)
        self.again = False
        """True for a session that was loaded from disk: its ledger entries may be there already."""
        self._writer = SnapshotWriter(options.compression, reuse=not options.redacted)
        self._work = threading.Condition()
        self._asked = self._answered = 0
        self._final = False
        self._covered = 0
        """Number of the last record that the last snapshot has."""
        self._left = False
        """True if the session has ended, and another process was still writing to it."""
        self._saved = True
        """False while the last snapshot that was tried is not on disk."""
        self._writing = threading.Lock()
        self._closed = False

    def attach(self, builder: SessionTreeBuilder) -> None:
        """Keep this builder's session from now on: a snapshot after each sub-agent, the last one at the end."""
        self.builder = builder
        if self.owner:
            builder.core.listeners.append(self._session_ended)
        self._start_thread()

    def snapshot(self) -> bool:
        """Write a snapshot now, on the caller's thread; False if it could not be written (`problems` says why)."""
        with self._writing:
            self._saved = self._write_snapshot()
            return self._saved

    def flush(self, level: str = "write", timeout: float = 5.0) -> bool:
        """Deliver what is pending, to the operating system (`write`) or to the disk (`sync`), or wait for the last snapshot (`snapshot`).

        True only if that is done.
        """
        done = self.stream.flush() and self.journal.fd >= 0
        if level == "sync":
            return done and self.journal.sync()
        if level == "snapshot":
            return self._wait(timeout) and self._saved
        return done or self._closed

    def close(self, timeout: float = 0.25) -> bool:
        """Wait at most *timeout* seconds for the last snapshot; False if it is not done: the journal has all of it then."""
        self.stream.flush()
        if self._final and (self._left or self.journal.last > self._covered):  # what came after the root session's end
            self._session_ended("")
        done = self._wait(timeout)
        self._closed = True
        with self._work:
            self._work.notify_all()
        self.stream.close()
        self.journal.close()
        if done:
            self._release_lock()
        if not self.owner:
            finish_session(self.txn, self.options)
        return done and self._saved

    def after_fork(self) -> None:
        """In a forked child: leave the parent's files alone and write a journal of one's own into the same session."""
        self.journal.forget()
        self._release_lock()
        self.owner = False
        self._work, self._writing = threading.Condition(), threading.Lock()
        self._asked = self._answered = 0
        try:
            self.journal = self._new_journal()
            takers = [self.journal]
        except OSError as error:
            self._problem("journal of a forked process", error)
            takers = []
        self.stream.after_fork([*takers])
        if self.builder is not None:
            self.builder.core.listeners.clear()
            self.builder.core.after_fork(self.journal.base)

    # The owner's lock

    def _take_lock(self) -> None:
        path = self.live / "LOCK"
        fd = self._os.append(path)
        if not self._os.lock(fd):
            self._os.close(fd)
            raise BusyError(f"session {self.txn} is being written by another process: wait, or watch it (optree logs -f {self.txn})")
        self._lock_fd = fd
        self._sweep()

    def _release_lock(self) -> None:
        if self._lock_fd >= 0:
            fd, self._lock_fd = self._lock_fd, -1
            self._os.close(fd)

    # Journals

    def _new_journal(self) -> Journal:
        """Begin a journal of this process; numbers of records and of writers go on from all that were ever given."""
        first = 1
        if self.owner:
            own = (self._last_of(path) for path in journals(self.live) if path.name.startswith("j-0000-"))
            first += max([self.vector.get("0000", 0), *own])
        above = max(map(int, self.vector), default=0)
        ordinal = 0 if self.owner else None
        return Journal(self.live, self.txn, __version__, ordinal=ordinal, above=above, first=first, sync=self.options.sync, system=self._os)

    def _saved_vector(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for compression in SUFFIXES:
            for writer, number in read_meta(self.options.directory.snapshot(self.txn, compression)).get("journal", {}).items():
                found[writer] = max(found.get(writer, 0), number)
        return found

    # Snapshots

    def _session_ended(self, path: str) -> None:
        if not path:
            self._final = True
        with self._work:
            self._asked += 1
            self._work.notify_all()

    def _wait(self, timeout: float) -> bool:
        """Wait until all snapshots that were asked for are written."""
        with self._work:
            asked = self._asked
            return self._work.wait_for(lambda: self._answered >= asked, timeout)

    def _start_thread(self) -> None:
        try:
            threading.Thread(target=self._run, name="optree-store", daemon=True).start()
        except RuntimeError as error:
            self._problem("background thread", error)

    def _run(self) -> None:
        next_sync = monotonic() + SYNC_SECONDS
        while not self._closed:
            with self._work:
                self._work.wait_for(lambda: self._closed or self._asked > self._answered, max(0.0, next_sync - monotonic()))
                asked = self._asked
            if asked > self._answered:
                try:
                    with self._writing:
                        self._saved = self.finish() if self._final else self._write_snapshot()
                except Exception as error:  # noqa: BLE001 - the journal still has everything: say it and go on
                    self._saved = False
                    self._problem("last snapshot", error)
                with self._work:
                    self._answered = asked
                    self._work.notify_all()
            if monotonic() >= next_sync:
                next_sync = monotonic() + SYNC_SECONDS
                if self.journal.dirty and self.options.sync != "write" and not self._final:
                    self.journal.sync()

    def _write_snapshot(self, *, verify: bool = False) -> bool:
        builder = self.builder
        if builder is None:
            return False
        self.stream.flush()
        position = {**self.vector, f"{self.journal.ordinal:04d}": self.journal.last}
        core = builder.core
        tree, meta = Tree(builder.node, core.pool), self._meta(builder.node, position)
        try:
            if self.options.redacted:
                tree = _redacted(tree)
            pieces = self._writer.pieces(tree, meta, core.touched)
            if verify and self.options.compression == "zstd":
                for _ in unpacked_frames(pieces):
                    pass
            self._os.make_directory(self.options.directory.sessions)
            self._os.replace(self.options.directory.snapshot(self.txn, self.options.compression), pieces)
        except Exception as error:  # noqa: BLE001 - the journal still has everything: say it and go on
            self._problem("snapshot", error)
            return False
        self._covered = position[f"{self.journal.ordinal:04d}"]
        return True

    def finish(self) -> bool:
        """The root session has ended: join other processes' journals, write the last snapshot and the ledger, remove the journals.

        False if the snapshot or the ledger could not be written.
        """
        builder = self.builder
        if builder is None or builder.node.ended_at is None:
            return True
        self._left = not self._join_others(builder)
        if not self._write_snapshot(verify=True):
            return False
        try:
            Ledger(self.options.directory.billing, self._os).append(builder.node, again=self.again)
            self.again = True
        except OSError as error:
            self._problem("ledger", error)
            return False
        if not self._left and not self.journal.lost and self.journal.last == self._covered:
            self._remove_live()
        return True

    def _join_others(self, builder: SessionTreeBuilder) -> bool:
        """Fold the journals of processes that joined into the tree; False while one of them is still writing."""
        others = [path for path in journals(self.live) if not path.name.startswith("j-0000-")]
        if not others:
            return True
        if any(self._is_held(path) for path in others):
            return False
        fold = Fold(self.txn, builder.tree)
        for path in others:
            writer = path.name.split("-")[1]
            for record in read_journal(path, self.vector.get(writer, 0), self._os).records:
                fold.apply(record)
                self.vector[writer] = record.n
                if isinstance(record, r.OpBegin | r.OpEnd | r.Entries | r.Accounted):
                    builder.core.touched.add(record.path)
        builder.node.totals = fold.tree.session.totals
        return True

    def _is_held(self, path: Path) -> bool:
        try:
            fd = self._os.append(path)
        except OSError:
            return True
        try:
            return not self._os.lock(fd)
        finally:
            self._os.close(fd)

    def _remove_live(self) -> None:
        try:
            for path in [*journals(self.live), self.live / "LOCK"]:
                self._os.unlink(path)
            self._os.remove_directory(self.live)
        except FileNotFoundError:  # it went before, and something came after the end
            pass
        except OSError as error:
            self._problem("removal of journals", error)

    def _sweep(self) -> None:
        """Remove what a killed owner left of a snapshot that it was writing."""
        with contextlib.suppress(OSError):
            for path in self.options.directory.sessions.glob(f".tmp-{self.txn}.json*"):
                self._os.unlink(path)

    def _meta(self, root: SessionNode, position: dict[str, int]) -> dict[str, Any]:
        attributes = root.attributes
        return {
            "txn": self.txn,
            "agentId": root.agent_id,
            "createdAt": root.started_at,
            "savedAt": now_ms(),
            "endedAt": root.ended_at,
            "result": {
                "success": root.success,
                "error": root.error,
                "finalReport": None if root.final_report is UNSET else decode(root.final_report),
            },
            "ingress": attributes.get("ingress"),
            "summary": snapshot_summary(root)["totals"],
            "journal": position,
            "optree": __version__,
        }

    def _last_of(self, path: Path) -> int:
        found = read_journal(path, 0, self._os)
        return found.records[-1].n if found.records else 0

    def _problem(self, what: str, error: BaseException) -> None:
        self.problems.append(f"{what} of session {self.txn}: {error}")


def _redacted(tree: Tree) -> Tree:
    return _decode_tree(encode(redact(msgspec.json.decode(msgspec.json.encode(tree)))))


def open_session(
    agent: str,
    options: StoreOptions,
    *,
    txn: str | None = None,
    attributes: Mapping[str, Any] | None = None,
    takers: Sequence[Taker] = (),
) -> tuple[SessionTreeBuilder, SessionStore]:
    """Begin a new root session on disk; *takers* receive its records beside the journal.

    Raises `OSError` if its journal cannot be made, `BusyError` if the txn is in use.
    """
    store = SessionStore(txn or new_txn(), options, takers=takers)
    builder = SessionTreeBuilder(
        agent, txn=store.txn, attributes=attributes, stream=store.stream, now=options.now, cycles=options.cycles, redacted=options.redacted
    )
    store.attach(builder)
    return builder, store


def resume_session(txn: str, options: StoreOptions) -> tuple[SessionTreeBuilder, SessionStore, Loaded]:
    """Load a session and go on with it: what a crash left open is closed as `interrupted`, ids go on, the journal is a new one.

    Raises `NotFoundError`, `BusyError` and what `load` raises.
    """
    builder, store, loaded = _reopened(txn, options)
    close_interrupted(builder, builder.core)
    store.attach(builder)
    store.snapshot()
    return builder, store, loaded


def finish_session(txn: str, options: StoreOptions) -> bool:
    """Finish a session whose owner ended it while this process was still writing: last snapshot, ledger, removal of the journals.

    False if there is nothing to do, or another process is at it, or it would take too long for a process that is about to end.
    """
    live = options.directory.live(txn)
    try:
        if (
            sum(path.stat().st_size for path in live.iterdir()) > FINISH_BYTES
            or load(txn, options.directory, options.system).session.ended_at is None
        ):
            return False
        builder, store, _ = _reopened(txn, options)
    except (OSError, OptreeError):
        return False
    store.builder = builder
    done = store.finish()
    store.close()
    return done


def _reopened(txn: str, options: StoreOptions) -> tuple[SessionTreeBuilder, SessionStore, Loaded]:
    saved = options.directory.find(txn)
    store = SessionStore(saved.txn, options)
    try:
        loaded = load(saved.txn, options.directory, options.system)
    except BaseException:
        store.close()
        raise
    store.again = True
    store.vector = loaded.vector
    core = Core(saved.txn, store.stream, now=options.now, cycles=options.cycles, redacted=options.redacted, pool=loaded.tree.pool)
    return SessionTreeBuilder.over(core, loaded.session), store, loaded


__all__ = ["SessionStore", "StoreOptions", "open_session", "resume_session"]
