"""What runs beside the program: a few threads of a process, each of which does the work of all its sessions.

A `Worker` is one thread; a `Job` is something that it does whenever it is due: at once, at a time, or each second. `ask` says so and
never waits, so that it may be called from anywhere: a finalizer, a signal's handler, in the middle of another `ask`. `wait` waits, for a
bounded time. So a disk that hangs holds up the thread that uses it, and no caller beyond what it says.

The threads are daemons. Each starts when it is first needed, is replaced if it dies, and is not in a forked child until it is needed there.
"""

from __future__ import annotations

import os
import sys
import threading
from _thread import allocate_lock, start_new_thread
from collections import deque
from collections.abc import Callable, Generator, Hashable, Iterable, Sequence
from contextlib import suppress
from heapq import heappop, heappush
from itertools import count
from threading import get_ident
from time import monotonic, sleep
from typing import Any, Final, Protocol, TypeVar

from optree._interrupts import WeakMembers, pass_on
from optree._syscalls import calls
from optree._threads import IS_PATCHED, PREFIX, BackgroundThread, is_patched_since, without_signals

PAUSE_SECONDS = 0.05
"""Between a fault and the next try: one that comes again at once must not take a processor."""
_LOOK_SECONDS = 0.1
_START_SECONDS = 1.0
"""How long a thread that was asked for may take to begin, before another is."""
_NEVER = float("inf")
_FIRST = 0.0
_workers: WeakMembers[Worker] = WeakMembers()
_forks_by_thread: dict[int, bool] = {}
"""Of each thread that forks, whether the child ends with it, not being a main one's."""
_forked_by_thread = _watched = False
"""Whether this process is such a child; whether a thread waits for its end."""
T = TypeVar("T")


class _Calls(list[Callable[[], object]]):
    """Functions that are called in turn."""

    def __call__(self) -> None:
        for call in self:
            call()


AT_END: Final = _Calls()
"""What is called at the end of a process that Python ends without `atexit`: one that `multiprocessing` forked, or a thread."""


class Wake:
    """A signal from one thread to another, a binary semaphore: `set` never waits, and may be called in a signal's handler.

    `threading.Event` may not: its own lock is a plain one; a finalizer that runs inside `set` or `wait` and calls `set` waits for itself.
    """

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = allocate_lock()
        self._lock.acquire()

    def set(self) -> None:
        """Give the signal; it stays given until a thread takes it."""
        try:
            self._lock.release()
        except RuntimeError as error:  # it is given already
            pass_on(error)
            return

    def wait(self, seconds: float | None = None) -> bool:
        """Wait for the signal and take it.

        Args:
            seconds: How long to wait at most; None is for ever.

        Returns:
            False if the signal did not come.
        """
        return self._lock.acquire(True, -1 if seconds is None else max(0.0, seconds))


class Job:
    """Some work of a `Worker`; asked for several times before it begins, it is done once."""

    __slots__ = ("_begun", "_ended", "_fault", "_waiting", "_work", "due", "worker")

    def __init__(self, worker: Worker, work: Callable[[], float | None], fault: Callable[[BaseException], object]) -> None:
        """Make a job that is not due.

        Args:
            worker: Who does it.
            work: Returns after how many seconds it is due again; None is when it is asked for.
            fault: Called with what *work* raises, which is done again a moment later.
        """
        self.worker = worker
        self._work, self._fault = work, fault
        self.due = _NEVER
        """When it is done next, as its worker knows; set by the worker's thread alone."""
        self._begun = self._ended = 0
        self._waiting: deque[Wake] = deque()

    def ask(self, seconds: float = 0.0, *, first: bool = False) -> bool:
        """Let the work be done in so many seconds, or before; *first* is ahead of all that is due. False if there can be no thread now."""
        return self.worker.put(self, _FIRST if first else monotonic() + seconds)

    def wait(self, seconds: float, *, first: bool = False) -> bool:
        """Ask for it, and wait until it is done once from its beginning on; False if it is not within *seconds*."""
        before, until, wake = self._begun, monotonic() + seconds, Wake()
        if not self.ask(first=first) or self.worker.is_current:  # the thread cannot wait for itself
            return False
        while self._ended <= before:
            self._waiting.append(wake)
            if self._ended > before:
                break
            if not wake.wait(until - monotonic()):
                try:
                    self._waiting.remove(wake)
                except ValueError as error:  # it was taken meanwhile
                    pass_on(error)
                return self._ended > before
        return True

    @property
    def is_running(self) -> bool:
        """True while the work is done."""
        return self._begun > self._ended

    def cancel(self) -> None:
        """Drop the work, and what it refers to; a run that has begun goes on to its end."""
        self._work, self._fault = _nothing, _nothing_of

    def run(self) -> float | None:
        """Do the work; to be called by the worker."""
        self._begun += 1
        begun = self._begun
        try:
            return self._work()
        except BaseException as error:  # noqa: BLE001 - a thread that dies takes with it all that it is for
            with suppress(BaseException):  # no memory even for that
                self._fault(error)
            return PAUSE_SECONDS
        finally:
            self._ended = begun
            while self._waiting:
                self._waiting.popleft().set()

    def after_fork(self) -> None:
        """In a forked child: forget that it was due or being done in the parent."""
        self.due, self._ended = _NEVER, self._begun
        self._waiting = deque()


def aside(work: Callable[[], object], seconds: float) -> Callable[[], bool]:
    """Do some work of a process's end in a thread of its own, waited for at most so many seconds; here where there can be no thread.

    Returns a function that tells whether it still goes on.
    """
    try:
        thread = BackgroundThread(work, "exit")
        thread.start()
        thread.join(seconds)
    except Exception as error:  # noqa: BLE001 - no memory, or too late for threads
        pass_on(error)
        work()
        return bool
    return thread.is_alive


class Shared(Protocol):
    """Something that works wait for, and that is done once for all that wait for the same."""

    @property
    def key(self) -> Hashable:
        """Return a value that is equal for those that are done together."""
        ...

    def do(self, same: Sequence[Any], /) -> None:
        """Do it for all of these, which have one key, this one too. What it raises is raised where each was yielded."""
        ...


class _Turn:
    """Something that is done at once, when all other works have come as far as they can."""

    key = "turn"

    def do(self, same: Sequence[Any], /) -> None:
        """Do nothing."""


TURN: Shared = _Turn()
Steps = Generator[Shared, None, T]
"""Some work that is done beside other work of its kind: it yields what it waits for, and goes on when that is done."""


def side_by_side(works: Iterable[Steps[T]]) -> list[T]:
    """Do some works, each up to where it waits, then what they wait for, and so on; returns what they return, the first to end first.

    An exception of one of them ends all: works that must not disturb each other raise nothing.
    """
    results: list[T] = []
    begun: list[Steps[T]] = []
    asked: dict[Hashable, list[tuple[Steps[T], Shared]]] = {}

    def go_on(work: Steps[T], error: Exception | None = None) -> None:
        try:
            shared = next(work) if error is None else work.throw(error)
        except StopIteration as end:
            results.append(end.value)
        else:
            asked.setdefault(shared.key, []).append((work, shared))

    try:
        for work in works:
            begun.append(work)
            go_on(work)
        while asked:
            same = asked.pop(next(iter(asked)))
            error = _done([shared for _, shared in same])
            for work, _ in same:
                go_on(work, error)
    finally:
        for work in begun:
            work.close()
    return results


def _done(same: list[Shared]) -> Exception | None:
    """Do what several works wait for; returns what it raises."""
    try:
        same[0].do(same)
    except Exception as error:  # noqa: BLE001 - each of them gets it
        return error
    return None


class Worker:
    """One thread of this process, and the jobs that it does, those that are due longest first."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._asked: deque[tuple[float, Job]] = deque()
        self._queue: list[tuple[float, int, Job]] = []
        self.refused: Exception | None = None
        self._turn = count()
        self._renew()
        _workers.add(self)

    @property
    def is_current(self) -> bool:
        """True on the thread itself."""
        return self._thread == get_ident()

    def put(self, job: Job, when: float) -> bool:
        """Let a job be done at a time; False if there can be no thread now: it is done once there is one."""
        if when >= job.due:
            return True
        self._asked.append((when, job))
        if not self.start():
            return False
        if when < self._sleeps_until:
            self._wake.set()
        return True

    def after_fork(self) -> None:
        """In a forked child: forget the parent's jobs; the thread is not in the child."""
        for job in [*(entry[-1] for entry in self._asked), *(entry[-1] for entry in self._queue)]:
            job.after_fork()
        if self._current is not None:
            self._current.after_fork()
        self._asked, self._queue = deque(), []
        self._renew()

    def _renew(self) -> None:
        self._wake = Wake()
        self._works = allocate_lock()
        self._alive = False
        """Set by the thread itself: a start that was interrupted may have made one, or not."""
        self._thread = 0
        self._started_at = -_NEVER
        self._sleeps_until = _NEVER
        """0 while it works: it looks for what was asked for before it sleeps."""
        self._current: Job | None = None

    def start(self) -> bool:
        """See that the thread will be there; False if it cannot be had now: `refused` is why.

        `Thread.start` must not be interrupted by a signal's handler, which would leave it half done, with a traceback on stderr. So a bare
        thread makes it, where no handler runs; that one is made in a single call of C.
        """
        if self._alive:
            return True
        now = monotonic()
        if now < self._started_at + _START_SECONDS:
            return True
        self._started_at = now
        try:
            without_signals(self._start)
        except BaseException as error:
            self._started_at = -_NEVER
            if isinstance(error, Exception):  # no more threads or memory, or the interpreter is going down
                pass_on(error)
                self.refused = error.with_traceback(None)  # whose frames hold what the program's functions do
                error.__context__ = None
                return False
            raise
        return True

    def _start(self) -> None:
        start_new_thread(self._launch, ())
        if _forked_by_thread and not _watched:
            start_new_thread(_end_with_threads, ())

    def _launch(self) -> None:
        try:
            BackgroundThread(self._run, self._name).start()
        except BaseException:  # noqa: BLE001 - there can be no other: then this one has no name
            self._run()

    def _run(self) -> None:
        if not self._works.acquire(False):
            return
        works, self._alive, self._thread = self._works, True, get_ident()
        try:
            while True:
                try:
                    self._work()
                except BaseException:  # noqa: BLE001 - no memory even to look what is due: later there may be some
                    sleep(PAUSE_SECONDS)
        finally:
            self._alive, self._started_at = False, -_NEVER
            works.release()

    def _work(self) -> None:
        """Do what is due, or sleep until something is."""
        self._sleeps_until = 0.0
        while self._asked:
            when, job = self._asked[0]
            self._plan(job, when)
            self._asked.popleft()
        when = self._queue[0][0] if self._queue else _NEVER
        if when > monotonic():
            self._sleeps_until = when
            if not self._asked:  # looked at again after the mark: from now on a thread that asks wakes this one
                self._wake.wait(None if when == _NEVER else when - monotonic())
            return
        when, _, job = heappop(self._queue)
        if when != job.due:  # it was asked for earlier, and is done
            return
        job.due, self._current = _NEVER, job
        again = job.run()
        self._current = None
        if again is not None:
            self._plan(job, monotonic() + again)

    def _plan(self, job: Job, when: float) -> None:
        if when < job.due:
            heappush(self._queue, (when, next(self._turn), job))
            job.due = when


def _nothing() -> None:
    """Replaces the work of a job that was cancelled."""


def _nothing_of(_error: BaseException) -> None:
    """Replaces the fault handler of a job that was cancelled."""


def _before_fork() -> None:
    is_greenlet = IS_PATCHED or is_patched_since()  # the thread that it is in is the child's main one
    _forks_by_thread[get_ident()] = _forked_by_thread or (not is_greenlet and get_ident() != threading.main_thread().ident)


def _after_fork_in_parent() -> None:
    _forks_by_thread.pop(get_ident(), None)


def _after_fork() -> None:
    global _forked_by_thread, _watched
    _forked_by_thread, _watched = _forks_by_thread.get(get_ident(), False), False
    _forks_by_thread.clear()
    for worker in list(_workers):
        worker.after_fork()


def end_with_multiprocessing() -> None:
    """Let a process that `multiprocessing` made end with `AT_END`; to be called once in each, and as soon as it is forked."""
    if "multiprocessing.util" in sys.modules:
        from multiprocessing.process import parent_process
        from multiprocessing.util import register_after_fork

        register_after_fork(AT_END, _finalize)  # as soon as it is set up
        if parent_process() is not None:
            _finalize(AT_END)


def _finalize(calls: _Calls) -> None:
    from multiprocessing.util import Finalize

    Finalize(calls, calls, exitpriority=0)


def _has_others() -> bool:
    """Tell whether there are other threads than optree's and this one: of C too, where the system lists them."""
    ours = [thread for thread in threading.enumerate() if thread.daemon and thread.name.startswith(PREFIX)]
    try:
        every = set(map(int, os.listdir("/proc/self/task")))  # noqa: PTH208 - pathlib is not imported for one call
    except OSError:
        return bool(sys._current_frames().keys() - {thread.ident for thread in ours} - {get_ident()})  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
    if _is_over(os.getpid()):
        every.discard(os.getpid())
    return bool(every - {thread.native_id for thread in ours} - {threading.get_native_id()})


def _is_over(native_id: int) -> bool:
    """Tell whether a thread has ended: the one that a process began with is listed as long as that lives. For Linux."""
    try:
        with open(f"/proc/self/task/{native_id}/stat", "rb") as file:  # noqa: PTH123 - as above
            return b") Z" in file.read()
    except OSError as error:
        return isinstance(error, FileNotFoundError | ProcessLookupError)


def _end_with_threads() -> None:
    """End this process once only optree's threads are left, as the system ends a child that another than the main thread forked."""
    global _watched  # noqa: PLW0603 - set by the thread itself: an interrupted start may have made it, or not
    if _watched:
        return
    _watched = True
    while _has_others():  # looked at again and again: before Python 3.13 not each can be joined, and since then not the one that forked
        sleep(_LOOK_SECONDS)
    try:
        AT_END()
    finally:
        os._exit(0)


calls.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork)
