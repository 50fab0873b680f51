"""What this process holds: its options, its open root sessions, and what happens at fork and at exit."""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from time import monotonic, sleep
from typing import Any

from optree._background import AT_END, aside, end_with_multiprocessing
from optree._builder import SessionTreeBuilder
from optree._builder.core import Core
from optree._builder.stream import STUCK_SECONDS, Stream
from optree._clock import now_ms
from optree._console import ConsoleWriter, LineOptions
from optree._ids import is_txn, new_txn
from optree._interrupts import if_free, is_in, keep_interrupt, new_rlock, pass_on, suppress, wait_for_imports
from optree._nodes import Status
from optree._providers.prices import PRICES
from optree._records import SessionResume
from optree._store import Directory, SessionStore, open_session, resume_session
from optree._store.files.descriptors import OPENING_SESSIONS, is_begun_by_parent, leave_to_parent
from optree._store.opening import note_begun
from optree._store.reading.directory import LATE_UNWRITTEN, is_directory, nothing_saved, why_not_live
from optree._store.saving import StoreOptions
from optree._store.settle import settle_later
from optree._store.upkeep import late_closed, late_open
from optree._syscalls import calls
from optree._tracing.config import Config, ConfigInUse, directory_of, from_environment, in_effect
from optree._tracing.context import ABANDONED, Holder, is_in_loop
from optree._tracing.handles import Session
from optree._tracing.joined import IDLE_SESSIONS, Joined, Leaving, idle_sessions, stand_in
from optree._tracing.mirroring import Mirroring, check_options
from optree._tracing.problems import Problems, Unsaved, counts_of, flush_in_turn, note_losses, say
from optree._values import text
from optree._visible import coloured
from optree.errors import BusyError, NotFoundError, OptreeError, SetupError
from optree.redaction import redact

EXIT_SECONDS = 0.25  # the longest that optree delays the end of the process
HAND_OVER_SECONDS = 0.1  # of these, kept for starting the process that delivers a mirror's spans: 5 ms, on a busy machine 30 to 50
ENDED_SESSIONS = 64  # that are still to be saved, at which the next begin waits for one of them: each has its tree and files
_LOOK_SHARE = _LOOK_ENDED = 8
RESUME_SECONDS = 5.0  # the longest that a begin waits for the last snapshot of the session that is to go on
ROOM_SECONDS = 0.1  # the longest that it waits; after a wait in vain none waits for `STUCK_SECONDS`


class Runtime:
    """The options of this process, its open root sessions, and what it does at a fork and at its end."""

    def __init__(self) -> None:
        own, ignored = from_environment()
        self.config, self.settings = in_effect(own), ConfigInUse(own, self._use)
        self.stores: dict[str, SessionStore] = {}
        self.leaving = Leaving()
        self.problems = Problems(self.stores, has_console=lambda: self.config.console)
        for problem in ignored:
            self.problems.report(problem)
        self.sessions: dict[str, Session] = {}  # open root sessions, by txn
        self.unsaved: dict[str, Unsaved] = {}  # those of them that have no store, by txn, with takers that count their lost records
        self.holders: dict[str, Holder] = {}  # by txn of a root session, a weak reference that dies with its `with` statement
        self.consoles: dict[str, ConsoleWriter] = {}
        self.forked_at = 0.0  # when another process that traces forked this one: nodes that are older are that one's to end
        self.past: Counter[str] = Counter()  # the counts of the stores that are closed
        self._joined: dict[str, Joined] = {}  # stand-ins for nodes of other processes, by id
        self.of_program: Session | None = None  # that of calls which are made outside of all sessions
        self._detached: dict[str, str] = {}  # txns of sessions that were opened for a node without context, with its path
        self._unflushed: list[Stream] = []  # at the end of the process: those that are not delivered yet
        self._lock = new_rlock()
        self._no_room_until, self._left, self._unlooked = 0.0, 0, 0  # see `_make_room`: when it waits again; what it found; begins since
        self.mirroring = Mirroring(self.problems.report, self.problems.report_happened)

    def configure(self, **options: Any) -> Config:
        """Set options; raises `SetupError` for one that does not exist or cannot have that value."""
        check_options(options.get("otel"))
        return self.settings.give(options) if options else self.config

    def _use(self, config: Config) -> None:
        self.config = config
        self.mirroring.compare(config.otel)

    def directory(self) -> Directory:
        """Return where sessions are kept."""
        return directory_of(self.config)

    def open_root(self, agent: str, attributes: Mapping[str, Any], holder: Holder | None = None, resume: str | None = None) -> Session:
        """Begin a root session, or *resume* one; or the one that the environment names (`OPTREE_RESUME`), in this process's first root."""
        PRICES.load()
        if (known := self.stores.get(resume or "")) is not None:
            self.end_abandoned()
            _ = known.ended and known.save(RESUME_SECONDS)  # without the lock; late records too
        _ = resume and self.leaving.saved_by_others(resume, known, self._options(), RESUME_SECONDS)
        with self._lock:
            self._make_room()
            while True:
                process = os.getpid()
                session = self._begun(agent, attributes, holder, resume)
                if os.getpid() in (process, getattr(self.stores.get(session.txn), "process", None)):
                    note_begun(session.txn)
                    return session
                self._leave_to_parent(session.txn)  # in a child that a signal's handler forked before the session had begun

    def _begun(self, agent: str, attributes: Mapping[str, Any], holder: Holder | None, named: str | None) -> Session:
        """Begin a root session, or resume it, and know it by its txn."""
        none = named is not None or bool(attributes.get("detached"))  # leaves the names to the first session that is meant
        txn, resume = (None, named) if none else (os.environ.pop(name, None) for name in ("OPTREE_TXN", "OPTREE_RESUME"))
        session = self._resumed(resume, agent, attributes, named=none) if resume else self._opened(txn, agent, attributes)
        if (console := self.consoles.get(session.txn)) is not None:
            console.look_in(session.builder.core)
        self.holders |= {} if holder is None else {session.txn: holder}
        self.sessions[session.txn] = session
        return session

    def _leave_to_parent(self, txn: str) -> None:
        """Forget what a forked child has of a session that is its parent's."""
        for known in (self.sessions, self.holders, self.unsaved):
            known.pop(txn, None)
        if (console := self.consoles.pop(txn, None)) is not None:
            console.close()
        if (store := self.stores.pop(txn, None)) is not None:
            store.leave_to_parent()
        leave_to_parent()

    def close_root(self, txn: str) -> None:
        """Forget a root session that has ended; its store writes the last snapshot in the background."""
        session = self.sessions.pop(txn, None)
        self.holders.pop(txn, None)
        self._detached.pop(txn, None)
        self.mirroring.forget(txn)
        if session is not None and txn in self.unsaved:
            session.builder.core.stream.close()
            self.past["lost"] += self.unsaved.pop(txn).records
            if txn in self.consoles:
                self.consoles[txn].close()

    def join(self, parent: str, ancestry: str) -> Joined | None:
        """Return a stand-in for another process's node *parent* (``<txn>:<path>``), to begin ops in."""
        txn, _, path = parent.partition(":")
        if not is_txn(txn):
            self.problems.report(f"OPTREE_PARENT={redact(parent)[:80]!r} names no session; this process records a session of its own")
            return None
        PRICES.load()
        with self._lock:
            store, process = None, -1
            while process != os.getpid():  # once more in a child that a signal's handler forked meanwhile
                process = os.getpid()
                store = self.stores.get(txn) or self._joined_store(txn)
                if process != os.getpid() and (store is None or store.process != os.getpid()):
                    self._leave_to_parent(txn)
            if store is None:
                return None
            joined = self._joined.pop(parent, None) or self._stand_in(store, path, ancestry)
            self._joined[parent] = joined  # behind those that were not joined for longer
            return joined

    def open_detached(self, agent: str, attributes: Mapping[str, Any], holder: Holder | None = None) -> Session:
        """Begin a root session for a node that comes without one; it ends with the node that opens first in it."""
        with self._lock:
            session = self.open_root(agent, attributes, holder)
            self._detached[session.txn] = ""
            return session

    def own_detached(self, builder: SessionTreeBuilder, path: str) -> None:
        """Let the first node of a detached session own it."""
        if self._detached and self._detached.get(builder.txn) == "":
            self._detached[builder.txn] = path

    def close_detached(self, builder: SessionTreeBuilder, path: str, status: Status, error: str | None) -> None:
        """End a detached session with the node that owns it."""
        if self._detached and self._detached.get(builder.txn) == path:
            del self._detached[builder.txn]
            builder.end_session(status, error)
            self.close_root(builder.txn)

    def only_session(self) -> Session | None:
        """Return the root session if exactly one is open, where an op without context belongs; in an event loop only the program's own."""
        if is_in_loop():
            program = self.of_program
            return program if program is not None and self.sessions.get(program.txn) is program else None
        with self._lock:
            self._end_abandoned()
            roots = [session for txn, session in list(self.sessions.items()) if txn not in self._detached]
        return roots[0] if len(roots) == 1 else None

    def counts(self) -> dict[str, int]:
        """Return what was recorded, lost, late or dropped, in all that this process has had open."""
        counts = counts_of(held := self._held(), list(self.consoles.values()))
        counts["lost"] += sum(loss.records for loss in list(self.unsaved.values()))
        counts["lost"] += sum(max(0, store.unwritten - store.counted) for store in LATE_UNWRITTEN if store not in held)
        return {name: number + self.past[name] for name, number in counts.items()}

    def at_exit(self) -> None:
        """Deliver what is pending; within `EXIT_SECONDS` in all, unless the disk takes what it had refused: then for as long as it does."""
        try:
            if self._held() or self.sessions or self.consoles or self.mirroring.is_on or late_open:
                until, before = monotonic() + (seconds := EXIT_SECONDS - HAND_OVER_SECONDS), self.counts()["lost"]
                self._write_lost(seconds, before, aside(lambda: self._guarded(self._deliver, until), seconds))
        except KeyboardInterrupt:  # pressed again while the process ends: the journal has everything
            keep_interrupt()
            return
        self.mirroring.hand_over(say)
        lost = note_losses(self.counts()["lost"], self._held(), self.directory(), self.problems.lost_for, self._unflushed)
        for problem in filter(None, [*self.problems.current(self.mirroring.health().get("problems", ())), lost]):
            self.problems.report(problem)
        keep_interrupt()

    def _guarded(self, work: Callable[..., object], *arguments: Any) -> None:
        """Do some work of a thread; what it raises is reported."""
        try:
            work(*arguments)
        except Exception as error:  # noqa: BLE001 - a thread's traceback is nothing for the program's stderr
            pass_on(error)
            with suppress(Exception):  # no memory even for that
                self.problems.report_happened(f"background thread: {type(error).__name__}: {text(error)}")

    def _write_lost(self, seconds: float, before: int, goes_on: Callable[[], bool]) -> None:
        """Write what is in no file, for as long as the disk takes some of it, as it did of *before*, or may while that *goes on*."""
        until = monotonic() + STUCK_SECONDS
        while (lost := self.counts()["lost"]) and (lost < before or goes_on()) and monotonic() < until:
            until, before = monotonic() + STUCK_SECONDS if lost < before else until, lost
            sleep(HAND_OVER_SECONDS / 10)
            if not goes_on():
                goes_on = aside(lambda: self._guarded(lambda: [*(store.flush() for store in self._held()), late_closed(seconds)]), seconds)

    def _deliver(self, until: float) -> None:
        if not any(is_in(thread, _BEGINS) for thread in list(sys._current_frames())):  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
            self._guarded(self._end_unbegun)
        stores, consoles = [*self.stores.values(), *self.leaving.stores(closed=False)], list(self.consoles.values())
        streams = [*(store.stream for store in stores), *(session.builder.core.stream for session in list(self.sessions.values()))]
        self._unflushed = [*dict.fromkeys(streams)]
        flush_in_turn(self._unflushed)
        for console in consoles:
            console.flush(max(0.0, until - monotonic()) / (len(consoles) + len(stores)))
        late_closed(max(0.0, until - monotonic()))  # first: it is soon done, and what a snapshot lacks is in a journal
        for store in stores:
            store.close(max(0.0, until - monotonic()))
        self.mirroring.close(max(0.0, until - monotonic()))

    def after_fork(self) -> None:
        """In a forked child: journals and consoles of its own, no threads, and numbers that no other process gives."""
        self.forked_at = now_ms()
        self.consoles.clear()
        mirrored = self.mirroring.after_fork()
        self.past.clear()  # losses before the fork are the parent's to report
        self.problems.after_fork()
        self._guarded(self.leaving.after_fork, self.stores)
        for txn in self.unsaved.keys() & self.sessions.keys():
            self.unsaved[txn] = Unsaved()
            self.sessions[txn].builder.core.stream.after_fork((self.unsaved[txn],))
        for txn, store in list(self.stores.items()):
            try:
                self._fork_store(txn, store)
            except Exception as error:  # noqa: BLE001 - the child runs on, and so do its other sessions
                pass_on(error)
                self.problems.report(f"session {txn} is not recorded in a forked process: {error}")
        for joined in [one for one in self._joined.values() if one.session.txn in self.stores]:
            joined.session.builder.core.after_fork(self.stores[joined.session.txn].journal.base)
        for core, store in [(core, self.stores[one.txn]) for one in mirrored if one.txn in self.stores for core in one.cores]:
            self._mirror(core, store)
        end_with_multiprocessing()

    def _fork_store(self, txn: str, store: SessionStore) -> None:
        """Go on with a session in a forked child; one that has ended, or whose begin or end was interrupted, is the parent's to finish."""
        holder, is_begun = self.holders.get(txn), txn in self.sessions or not store.owner
        has_ended = store.ended or store.late_stores is not None
        if has_ended or not is_begun or (holder is not None and holder() is None):
            del self.stores[txn]
            self.leaving.fork(store, self.stores) if has_ended else store.forget()
            return
        store.after_fork()
        for console in self._console(txn):
            for session in [*self.sessions.values(), *(joined.session for joined in self._joined.values())]:
                if session.txn == txn:
                    console.introduce(session.builder.node)
                    console.look_in(session.builder.core)
            store.stream.subscribe(console)

    def _options(self) -> StoreOptions:
        conf = self.config
        return StoreOptions(self.directory(), conf.compression, conf.sync, conf.write, conf.redacted_save, conf.content, conf.cycles)

    def _make_room(self) -> None:
        """Drop sessions that have ended, and wait a moment where they are too many: once for an eighth of all, or once eight have ended."""
        self._unlooked += 1
        ended = len(self.stores) - len(self.sessions)
        if due := ended >= self._left + _LOOK_ENDED or self._unlooked > len(self.stores) // _LOOK_SHARE:
            self._unlooked = 0
            self._end_abandoned()
        if due or ended >= ENDED_SESSIONS:
            self._close_ended()
            self._wait_for_room()
            self._left = len(self.stores) - len(self.sessions)

    def _close_ended(self, named: str = "") -> None:
        """Close the stores whose session has ended and is saved, or *named*, and the consoles that have printed all: they hold files."""
        for txn in [txn for txn, console in list(self.consoles.items()) if txn not in self.sessions and console.finished]:
            self.past.update(counts_of([], [each for each in (self.consoles.pop(txn, None),) if each]))  # a fork may have been quicker
        ended = [store for _, store in self._not_open() if store.owner and store.ended]
        for store in [store for store in ended if store.finished or store.txn == named]:
            store.close(0.0)  # before it is forgotten: an interrupt leaves it to the next time
            self._forget_closed(store)
            ended.remove(store)
        if len(ended) > IDLE_SESSIONS:
            refused = [store for store in ended if store.unwritable_reason or store.wait(0.0)]  # tried in vain
            for store in dict.fromkeys([*refused[:-IDLE_SESSIONS], *ended[: -4 * IDLE_SESSIONS]]):
                if store.let_go():
                    self._forget_closed(store)
                    self.problems.keep_left(store)
                    settle_later(store.txn, store.options)

    def _not_open(self) -> list[tuple[str, SessionStore]]:
        """Return the stores whose root session is not open here, in the order in which they began: few, where thousands are open."""
        return [item for item in list(self.stores.items()) if item[0] not in self.sessions]

    def _forget_closed(self, store: SessionStore) -> None:
        """Keep what a store that is closed has counted, and what went wrong in it; close its console."""
        if console := self.consoles.get(store.txn):
            console.close()
        self.leaving.remember(store)
        self.stores.pop(store.txn, None)
        self.consoles.pop(store.txn, None)
        self.past.update(counts_of([store], [console] if console else []))
        self.problems.keep_of(store)

    def _wait_for_room(self) -> None:
        """Wait a moment where sessions end faster than the disk takes them."""
        ended = [store for _, store in self._not_open() if store.ended]
        if len(ended) >= ENDED_SESSIONS and monotonic() >= self._no_room_until:
            ended = [store for store in ended if not store.wait(0.0)]
            if len(ended) >= ENDED_SESSIONS and not ended[0].wait(ROOM_SECONDS):
                self._no_room_until = monotonic() + STUCK_SECONDS
            self._close_ended()

    def end_abandoned(self) -> None:
        """Do as `_end_abandoned`, unless another thread begins a session."""
        if_free(self._lock, self._end_abandoned)

    def _end_abandoned(self) -> None:
        """End the sessions that nothing will end any more: a signal's handler raised in the middle of their begin, or of their end."""
        for txn in [txn for txn, holder in list(self.holders.items()) if holder() is None]:
            if (session := self.sessions.get(txn)) is not None:
                session.builder.end_session(*ABANDONED)
            self.close_root(txn)
        self._end_unbegun()

    def _end_unbegun(self) -> None:
        """End the sessions whose begin was interrupted before anybody had them, and close their consoles, which are counted later."""
        for txn, store in self._not_open():
            if not store.owner or store.ended or is_in(threading.get_ident(), _BEGINS):
                continue
            if store.builder is not None:
                store.builder.end_session(*ABANDONED)
            else:
                store.discard()
                self.stores.pop(txn, None)
        for txn in self.consoles.keys() - self.stores.keys() - self.unsaved.keys():
            if not is_in(threading.get_ident(), _BEGINS):
                self.consoles[txn].close()

    def _leave_idle(self) -> None:
        """Close the sessions of other processes that nothing was begun in for longest, and nothing is open in."""
        idle = idle_sessions(self._joined, self.stores)[:-IDLE_SESSIONS]
        for node in [node for _, nodes in idle for node in nodes]:
            del self._joined[node]
        self._leave([txn for txn, _ in idle])

    def _leave(self, txns: list[str]) -> None:
        """Close sessions in which nothing is open."""
        self.past.update(counts_of(self.leaving.take(), []))
        for txn in txns:
            store, consoles = self.stores[txn], [self.consoles.pop(txn)] if txn in self.consoles else []
            store.close_file()  # while a flush still finds it
            self.leaving.add(store)
            del self.stores[txn]
            self.mirroring.forget(txn)
            self.past.update(counts_of([], consoles))
            self.problems.keep_of(store)
            store.report = self.problems.report
            for console in consoles:
                console.close()
            self.leaving.close(store, self._close_left)

    def _close_left(self, store: SessionStore) -> None:
        self._guarded(store.close)
        self._guarded(self.problems.keep_of, store)

    def _held(self) -> list[SessionStore]:
        """Return all stores that are not closed, and those of them that were let go of whose counts are not in `past` yet."""
        return [*list(self.stores.values()), *self.leaving.stores()]

    def _opened(self, txn: str | None, agent: str, attributes: Mapping[str, Any]) -> Session:
        process, drawn, conf = os.getpid(), not (txn and self.directory().is_free(txn)), self.config
        console = self._console(name := new_txn() if drawn else str(txn))
        try:
            builder, store = open_session(
                agent, self._options(), txn=name, attributes=attributes, takers=console, later=True, unused=drawn, stores=self.stores
            )
        except (OSError, OptreeError) as error:
            pass_on(error)
            if not drawn and isinstance(error, BusyError):  # a process was quicker that has the name too
                return self._opened(None, agent, attributes)
            if not is_begun_by_parent():
                self.problems.report(nothing_saved(self.directory(), self.directory().why(error) if isinstance(error, OSError) else error))
            stream = Stream([self.unsaved.setdefault(name, Unsaved()), *console])
            builder = SessionTreeBuilder(agent, txn=name, attributes=attributes, stream=stream, cycles=conf.cycles, content=conf.content)
            self._mirror(builder.core, None)
            return Session(builder)
        store.report, store.process = self.problems.report_of_store, process  # which drew the txn: a handler may have forked since
        if store.unwritable_reason and not is_begun_by_parent():
            self.problems.report_of_store(nothing_saved(self.directory(), store.unwritable_reason))
        self._mirror(builder.core, store)
        return Session(builder)

    def _resumed(self, txn: str, agent: str, attributes: Mapping[str, Any], *, named: bool) -> Session:
        """Go on with a session; where one cannot go on that the program *named*, begin another. Raises `SetupError`."""
        try:
            if named:
                self._close_ended(txn)  # its files may be this process's still
                self.leaving.go_on(txn)
                if (why := self.problems.why_not_here(txn, self.stores, self.directory())) is not None:
                    raise NotFoundError(why)
            builder, store, loaded = resume_session(txn, self._options(), stores=self.stores)
        except (OSError, OptreeError) as error:
            pass_on(error)
            if is_begun_by_parent():
                leave_to_parent()
                return self._opened(None, agent, attributes)
            reason = self.problems.why_not_resumed(txn, error, self.directory(), named=named)
            if named:
                return self._opened(None, agent, {**attributes, "continues": txn, "not_resumed": reason})
            raise SetupError(f"cannot resume: {reason}") from None
        store.report = self.problems.report_of_store
        for console in self._console(builder.txn):
            console.introduce(builder.node, builder.core.pool)
            console.take([SessionResume("", now_ms())])
            builder.core.stream.subscribe(console)
        for line in loaded.damage.lines():
            self.problems.report_happened(f"session {builder.txn}: {line}")
        if builder.node.agent_id != agent:
            self.problems.report_happened(f"session {builder.txn} was begun by agent {builder.node.agent_id}, and goes on with {agent}")
        self._mirror(builder.core, store, resumed=True)
        return Session(builder, resumed=True)

    def _joined_store(self, txn: str) -> SessionStore | None:
        try:
            if not is_directory(self.directory().live(txn)):
                raise FileNotFoundError(why_not_live(self.directory(), txn))
            store = SessionStore(txn, self._options(), owner=False, takers=self._console(txn), stores=self.stores)
        except (OSError, OptreeError) as error:
            pass_on(error)
            if not is_begun_by_parent():
                self.problems.report(f"cannot join session {txn}: {error}; this process records a session of its own")
            return None
        store.report = self.problems.report_of_store
        self._leave_idle()
        return store

    def _stand_in(self, store: SessionStore, path: str, ancestry: str) -> Joined:
        joined = stand_in(store, path, ancestry)
        if console := self.consoles.get(store.txn):
            console.introduce(joined.session.builder.node)
            console.look_in(joined.session.builder.core)
        self._mirror(joined.session.builder.core, store)
        return joined

    def _mirror(self, core: Core, store: SessionStore | None, *, resumed: bool = False) -> None:
        """Mirror a session elsewhere too, if that is wanted; without *store* from memory."""
        where, writer = (store.options.directory, store.journal.ordinal) if store else (self.directory(), 0)
        saved = store is not None and not store.unwritable_reason
        self.mirroring.follow(self.config.otel, core, core.stream, where, writer, resumed=resumed, saved=saved)

    def _console(self, txn: str) -> list[ConsoleWriter]:
        if not self.config.console or sys.__stderr__ is None:
            return []
        options = LineOptions(self.config.verbose, self.config.trace_llm, self.config.trace_tools, coloured(sys.stderr))
        self.consoles[txn] = ConsoleWriter(txn, options)
        return [self.consoles[txn]]


# The functions in which a session is known by its store alone for a moment.
_BEGINS = (Runtime._opened.__code__, Runtime._resumed.__code__)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - of this module's class
OPENING_SESSIONS.extend((*_BEGINS, Runtime._joined_store.__code__))  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - as above
RUNTIME = Runtime()
atexit.register(RUNTIME.at_exit)
AT_END.append(RUNTIME.at_exit)
calls.register_at_fork(before=wait_for_imports, after_in_child=RUNTIME.after_fork)
if sys.version_info >= (3, 12):  # which warns of a fork beside other threads
    from optree._tracing import fork_warning

    fork_warning.register()
end_with_multiprocessing()


def report_problem(problem: str, *, happened: bool = False) -> None:
    """Note a problem for `optree.health`, and print it once on stderr. One that has *happened* a forked child leaves to its parent."""
    (RUNTIME.problems.report_happened if happened else RUNTIME.problems.report)(problem)
