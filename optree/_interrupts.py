"""Exceptions that are the program's though optree's code raises them: those out of a signal's handler, which runs wherever it hits.

Handlers that end a program, or set a time limit (`signal.alarm`, Celery's soft limit), raise in the middle of whatever runs, optree's code
too. What is caught there for safety's sake must not be kept from the program then, and what was begun must not stay half done.
"""

from __future__ import annotations

import _frozen_importlib
import _thread
import contextlib
import os
import sys
import threading
from collections.abc import Callable, Collection, Iterator
from threading import get_ident
from time import monotonic, sleep
from types import CodeType, FrameType
from typing import Any, Final, Generic, TypeVar, cast
from weakref import ref

T = TypeVar("T")


def from_handler(error: BaseException) -> bool:
    """Tell whether an exception came out of a signal's handler: raise it again then."""
    return of_handler(error) is not None


def pass_on(error: BaseException) -> None:
    """Raise an exception that was caught, if it came out of a signal's handler, or the one in the handling of which it was raised."""
    raised = of_handler(error)
    try:
        if raised is not None:
            raise raised
    finally:  # what it holds, as open blocks of generators, goes with it, and not once garbage is collected
        del error, raised


def of_handler(error: BaseException) -> BaseException | None:
    """Return the exception out of a handler that *error* is, or that led to it below the frame that catches it.

    A handler, and nothing else, is given the frame that it interrupts, which is the one that it returns to. The variables of the frame
    that catches are not looked at: before Python 3.13 their copy would keep *error*, and all frames below, until garbage is collected.
    """
    frames: list[FrameType] = []
    catching: FrameType | None = sys._getframe(1)  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
    while catching is not None and error.__traceback__ is not None and catching is not error.__traceback__.tb_frame:
        catching = catching.f_back  # None if it is caught in C
    candidate: BaseException | None = error
    while candidate is not None and (trace := candidate.__traceback__) is not None and (candidate is error or trace.tb_frame in frames):
        if trace.tb_frame is catching:
            frames.append(trace.tb_frame)
            trace = trace.tb_next
        while trace is not None:
            frame = trace.tb_frame
            frames.append(frame)
            back = frame.f_back
            for value in frame.f_locals.values() if back is not None else ():
                held: tuple[object, ...] = value if type(value) is tuple else (value,)  # pyright: ignore[reportUnknownVariableType]
                if any(item is back for item in held):
                    return candidate
            trace = trace.tb_next
        candidate = candidate.__context__
    return None


def is_in(thread: int, functions: Collection[CodeType]) -> bool:
    """Tell by a thread's stack whether one of some functions is running; of the calling thread, its two nearest callers are left out.

    A flag could have been left set by an exception.
    """
    # There is no other way to see them.
    frame = sys._getframe(1) if thread == get_ident() else sys._current_frames().get(thread)  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
    for _ in range(2 if thread == get_ident() else 0):
        frame = None if frame is None else frame.f_back
    while frame is not None:
        if frame.f_code in functions:
            return True
        frame = frame.f_back
    return False


class WeakMembers(Generic[T]):
    """What lives of the objects that were added. They leave by a call of C.

    `weakref.WeakSet` removes them in Python, where a signal's handler may run; what it raises there Python prints and drops.
    """

    __slots__ = ("_references",)

    def __init__(self) -> None:
        self._references: set[ref[T]] = set()

    def add(self, member: T) -> None:
        """Add an object that can be hashed."""
        self._references.add(ref(member, self._references.discard))

    def discard(self, member: T) -> None:
        """Remove it, if it is there."""
        self._references.discard(ref(member))

    def __len__(self) -> int:
        """Return how many live."""
        return len(self._references)

    def __iter__(self) -> Iterator[T]:
        """Iterate over those that live."""
        return iter([member for reference in self._references.copy() if (member := reference()) is not None])


class suppress:  # noqa: N801 - as in contextlib
    """As `contextlib.suppress`, but for exceptions out of a signal's handler."""

    __slots__ = ("_kinds",)

    def __init__(self, *kinds: type[BaseException]) -> None:
        self._kinds = kinds

    def __enter__(self) -> None:
        return

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        return isinstance(error, self._kinds) and not from_handler(error)


def _enter(self: Any) -> bool:
    before: int = self._recursion_count()  # there is no other way to see it
    try:
        self.acquire()
    except BaseException:  # a handler runs behind that too
        while self._recursion_count() > before:
            self.release()
        raise
    return True


_RLock: Any = type("RLock", (_thread.RLock,), {"__enter__": _enter})
"""A lock whose `__enter__` is Python, behind which no handler runs; `__exit__` stays C's, before which none does."""


RLock: Final[Any] = type(threading.RLock())
"""What it was when this was imported. gevent and eventlet may patch it later to one by which greenlets wait, and threads cannot."""


def new_rlock() -> threading.RLock:
    """Return a re-entrant lock for `with`, which no exception out of a handler leaves locked, and no fork in a child without its holder.

    On Python 3.14 that happens to the standard library's, if a handler raises just behind its `__enter__`, which is C
    (https://github.com/python/cpython/issues/148874).
    """
    lock = cast(threading.RLock, (_RLock if sys.version_info[:2] == (3, 14) else RLock)())
    _LOCKS.add(lock)
    return lock


_LOCKS: Final = WeakMembers[threading.RLock]()
"""All that `new_rlock` has made."""


def if_free(lock: threading.Lock | threading.RLock, work: Callable[[], T], seconds: float = 0.0) -> T | None:
    """Do some work with a lock that is free within *seconds* (-1 is for ever), and return what it returns; None if it is not free.

    No exception out of a handler leaves it locked, as it may behind a call of `acquire`: it is noted in the same call of C that takes it.
    """
    held: list[bool] = []
    try:
        held.extend(map(lock.acquire, (True,), (seconds,)))
        return work() if held[0] else None
    finally:
        if True in held:  # a call here would run handlers
            lock.release()


def is_held_here(lock: object) -> bool:
    """Tell whether this thread holds a re-entrant lock, as a finalizer may find that a garbage collection calls amid anything."""
    return bool(cast(Any, lock)._is_owned())  # noqa: SLF001 - there is no other way to see it


def _after_fork() -> None:
    """In a forked child: free the locks whose holders are not in it; those of the thread that forked are its own to leave."""
    for lock in list(_LOCKS):
        held: Any = lock
        if not is_held_here(held):
            held._at_fork_reinit()  # noqa: SLF001 - as `threading` does with its own


_LOADED_LATER: Final = frozenset(
    [
        "optree",
        "optree_otel",
        "optree_formats",
        "aiohttp",
        "botocore",
        "brotli",
        "brotlicffi",
        "datetime",
        "difflib",
        "email",
        "genai_prices",
        "gzip",
        "hashlib",
        "httpx",
        "importlib",
        "ipaddress",
        "json",
        "multiprocessing",
        "pickle",
        "ruamel",
        "tomllib",
        "uuid",
        "websockets",
        "zlib",
        "zstandard",
    ]
)
"""The packages that optree's functions import when they are called."""


_IMPORT_SECONDS: Final = 1.0
"""How long a fork waits for imports that other threads make for optree."""


def _imported_elsewhere() -> list[str]:
    """Return the modules that other threads are importing for optree: these packages, and what such a thread began to import after one."""
    locks: dict[str, Any] = getattr(_frozen_importlib, "_module_locks", {})
    owners = {name: lock.owner for name, ref in list(locks.items()) if (lock := ref()) is not None and lock.owner != get_ident()}
    loading: set[int] = set()
    result: list[str] = []
    for name in [*(name for name in list(sys.modules) if name in owners), *owners]:  # in the order of their begin; last those looked for
        if owners[name] in loading or name.partition(".")[0] in _LOADED_LATER:
            loading.update({owners[name]} - {None})
            result.append(name)
    return result


def wait_for_imports() -> None:
    """Before a fork: the child could only make anew what another thread is importing, and not all modules can be made twice.

    Not where that may be `logging`: it would have its hooks called after this fork, of which it was not asked before.
    """
    until = monotonic() + _IMPORT_SECONDS
    while hasattr(sys.modules.get("logging"), "shutdown") and monotonic() < until and _imported_elsewhere():
        sleep(0.001)


def _forget_imports() -> None:
    """In a forked child: forget what a thread that is not in it was importing for optree still; it is imported anew, and not waited for.

    Python leaves the locks of such modules locked (https://github.com/python/cpython/issues/50970). What the program itself imports,
    other than the same packages, is not touched.
    """
    locks: dict[str, Any] = getattr(_frozen_importlib, "_module_locks", {})
    for name in _imported_elsewhere():
        locks.pop(name, None)
        if getattr(getattr(sys.modules.get(name), "__spec__", None), "_initializing", False):
            del sys.modules[name]
            for part in [key for key, module in sys.modules.items() if key.startswith(f"{name}.") and _is_python(module)]:
                del sys.modules[part]  # only by being loaded they become attributes of the new one


def _is_python(module: object) -> bool:
    return str(getattr(getattr(module, "__spec__", None), "origin", "")).endswith(".py")


def keep_interrupt() -> None:
    """At exit: let the process end by SIGINT if a `KeyboardInterrupt` that nobody caught ends it.

    Python does so by itself, but before 3.14 forgets it when any thread executes a text meanwhile, as some imports do:
    `run_eval_code_obj` in CPython's Python/pythonrun.c notes it, and clears the note each time. So it is noted once more.
    """
    trace = getattr(sys, "last_traceback", None)
    if getattr(sys, "last_type", None) is not KeyboardInterrupt or trace is None or trace.tb_frame.f_back is not None:
        return  # it went on after that, as interactive shells do
    if not (sys.flags.interactive or hasattr(sys, "ps1")):
        with contextlib.suppress(KeyboardInterrupt):
            exec("raise KeyboardInterrupt")  # noqa: S102 - a constant


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_after_fork)  # ahead of all others, which may take such locks
    os.register_at_fork(after_in_child=_forget_imports)
