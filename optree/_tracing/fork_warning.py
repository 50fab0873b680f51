"""Suppresses Python's warning of a fork with threads, and the error that it may be, where all other threads are optree's."""

import threading
import warnings

from optree._interrupts import suppress
from optree._syscalls import calls

_MESSAGE = r"This process \(pid=\d+\) is multi-threaded(?#, by optree's threads alone)"


def register() -> None:
    """Have each fork prepared; for Python 3.12 and later."""
    calls.register_at_fork(before=_before)


def _before() -> None:
    """Python warns of a fork beside other threads, and since 3.15 `os.fork` may raise that: in the parent, when the child is there already.

    A program that has one thread by itself would not see it, so it is ignored then, and only then. Python warns last, after all that is
    registered for a fork: so the filter stays until the next one.
    """
    me = threading.current_thread()
    alone = all(thread is me or thread.name.startswith("optree-") for thread in threading.enumerate())
    with suppress(Exception):  # whatever has become of the filters, the program forks
        filters = [*warnings.filters]
        ours = [entry for entry in filters if getattr(entry[1], "pattern", None) == _MESSAGE]
        if alone and ours != filters[:1]:
            warnings.filterwarnings("ignore", _MESSAGE, DeprecationWarning)
        elif not alone:
            for entry in ours:
                warnings.filters.remove(entry)  # type: ignore[attr-defined] # pyright: ignore[reportAttributeAccessIssue]
