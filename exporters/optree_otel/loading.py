"""Libraries are loaded by one thread at a time, and not across a fork.

A child that is forked while another thread imports a module waits for that module for ever: the import's lock came along, the thread
did not. So a fork waits for the end of what is being loaded, a moment at most.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager, suppress
from importlib import import_module
from time import sleep

from optree.exporting import new_rlock, register_at_fork

FORK_SECONDS = 0.2
"""The longest that a fork waits."""
_lock = new_rlock()
_process = os.getpid()


@contextmanager
def loading() -> Generator[None]:
    """Import inside this."""
    with _lock:
        yield


def load(names: tuple[str, ...]) -> None:
    """Import modules, one after the other; a fork has its turn between two of them. One that cannot be imported is passed over."""
    for name in names:
        with _lock, suppress(ImportError):
            import_module(name)
        sleep(0)


def _before() -> None:
    _lock.acquire(timeout=FORK_SECONDS)


def _in_parent() -> None:
    with suppress(RuntimeError):  # it was not to be had in time
        _lock.release()


def after_fork() -> None:
    """Forget, in a forked child, who was loading; to be called before a thread is started there, which may be before our own hook."""
    global _lock, _process  # noqa: PLW0603 - the lock's holder may be a thread that is not here
    if _process != os.getpid():
        _process = os.getpid()
        _lock = new_rlock()


import_module("logging")  # it registers too: who does so later is asked earlier, so before its lock is taken
register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=after_fork)
