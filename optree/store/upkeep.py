"""The threads beside a session: one does what is due each second, another writes snapshots, so that neither waits for the other."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from time import monotonic, sleep

from optree.interrupts import pass_on
from optree.records import Record

SYNC_SECONDS = 1.0
PAUSES = 20
"""After a snapshot that nobody asked for, the next such one comes after this many times what it took, and not within a second."""
_NEVER = float("inf")


class Late:
    """Stands behind a journal that was closed, and is told when something came after all: *done* closes again what that opened."""

    def __init__(self, done: Callable[[], object]) -> None:
        self._done = done

    def take(self, batch: list[Record]) -> None:  # noqa: ARG002 - the journal before it has tried to write them
        """Close again."""
        self._done()


class Upkeep:
    """Calls *tick* each second, and *save* when that is asked for or wanted; *leave* last, when both have ended.

    What any of them raises goes to *fault*, and the thread goes on.
    """

    def __init__(
        self,
        begin: Callable[[], None],
        tick: Callable[[], None],
        save: Callable[[], None],
        leave: Callable[[], None],
        fault: Callable[[str, Exception], object],
    ) -> None:
        self._begin, self._tick, self._save, self._leave, self._fault = begin, tick, save, leave, fault
        self._lock = threading.RLock()  # by itself: `with` a Condition runs code of Python, where an interrupt leaves it locked
        self._work = threading.Condition(self._lock)
        self._asked = self._answered = 0
        self._wanted_at = _NEVER
        """When a snapshot is due that nobody waits for."""
        self._not_before = 0.0
        self._saving = self._stopped = False
        self._thread: threading.Thread | None = None
        self._waited_for: threading.Thread | None = None

    def start(self) -> None:
        """Let the threads begin, unless they have; again, where they could not, or have died."""
        if not self._stopped and (self._thread is None or not self._thread.is_alive()):
            self._thread = self.started(self._run, "optree-store")

    def started(self, work: Callable[[], object], name: str) -> threading.Thread | None:
        """Return a thread that does some work; None where there can be no more threads."""
        try:
            thread = threading.Thread(target=self._guarded, args=("background thread", work), name=name, daemon=True)
            thread.start()
        except Exception as error:  # noqa: BLE001 - no more threads or memory, or the interpreter is going down
            pass_on(error)
            if not str(error).endswith("at interpreter shutdown"):  # Python 3.12.0 and 3.12.1 refuse it already to what runs at exit
                self._fault("background thread", error)
            return None
        return thread

    def within(self, seconds: float, work: Callable[[], bool]) -> bool:
        """Return what some work returns that the disk may hang in; False if that takes longer than so many seconds."""
        until, found = monotonic() + seconds, list[bool]()
        if (before := self._waited_for) is not None:
            before.join(max(0.0, seconds))
            if before.is_alive():  # one thread that hangs is enough
                return False
        self._waited_for = thread = self.started(lambda: found.append(work()), "optree-sync")
        if thread is None:
            return work()
        thread.join(max(0.0, until - monotonic()))
        return found == [True]

    def ask(self, timeout: float = 0.0) -> bool:
        """Ask for a snapshot, and wait until it is tried; False if it is not within *timeout* seconds."""
        self.start()
        with self._lock:
            self._asked += 1
            self._work.notify_all()
        return self.wait(timeout)

    def want(self, *, soon: bool = False) -> None:
        """Let a snapshot be written: at once if it shall be *soon*, else when it is time for one."""
        with self._lock:
            self._wanted_at = 0.0 if soon else min(self._wanted_at, self._not_before)
            self._work.notify_all()

    def wait(self, timeout: float) -> bool:
        """Wait until all snapshots that were asked for are tried."""
        with self._lock:
            asked = self._asked
            return self._work.wait_for(lambda: self._answered >= asked, timeout)

    def stop(self) -> None:
        """Let the threads end once what was asked for is done."""
        with self._lock:
            self._stopped = True
            self._work.notify_all()

    def join(self, seconds: float) -> bool:
        """Wait for their end; False if they never began."""
        if self._thread is not None:
            self._thread.join(max(0.0, seconds))
        return self._thread is not None

    def _due(self) -> bool:
        return not self._saving and (self._asked > self._answered or monotonic() >= self._wanted_at)

    def _run(self) -> None:
        while True:
            try:
                self._work_on()
            except Exception as error:  # noqa: BLE001 - no memory even to wait: later there may be some
                with suppress(Exception):
                    self._fault("background thread", error)
                sleep(SYNC_SECONDS)
            else:
                return

    def _work_on(self) -> None:
        self._guarded("start", self._begin)
        next_tick = monotonic() + SYNC_SECONDS
        while not self._stopped:
            until = next_tick if self._saving else min(next_tick, self._wanted_at)
            with self._lock:
                self._work.wait_for(lambda: self._stopped or self._due(), max(0.0, until - monotonic()))
            if self._due():
                self._saving = True
                if self.started(self._serve, "optree-snapshot") is None:
                    self._serve()
            if monotonic() >= next_tick:
                self._guarded("files", self._tick)
                next_tick = monotonic() + SYNC_SECONDS
        with self._lock:
            self._work.wait_for(lambda: not self._saving)
        if self._asked > self._answered:
            self._serve()
        self._guarded("end", self._leave)

    def _serve(self) -> None:
        asked, begun = self._asked, monotonic()
        self._wanted_at = _NEVER
        try:
            self._guarded("last snapshot", self._save)
        finally:
            now = monotonic()
            with self._lock:
                self._not_before = now + max(SYNC_SECONDS, PAUSES * (now - begun))
                if self._wanted_at < _NEVER:  # it was wanted meanwhile
                    self._wanted_at = self._not_before
                self._answered = max(self._answered, asked)
                self._saving = False
                self._work.notify_all()

    def _guarded(self, what: str, work: Callable[[], object]) -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001 - the journal still has everything: say it and go on
            pass_on(error)
            with suppress(Exception):  # no memory even for that
                self._fault(what, error)
