"""Where nothing can be recorded, and the program goes on.

What recording raises on the program's thread, where no session's stream can count it, is counted and said. Where there is no room for a
session, a turn or an op, or optree is off, the program gets one that records nothing.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, Self, TypeVar, cast

from optree._builder.guard import FAULTS, UNRECORDED, passed
from optree._tracing.handles import Session
from optree._tracing.runtime import report_problem

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")


def fault(error: Exception) -> None:
    """Count a fault, and say it once; raises it again if it is the program's own, or says how optree is to be used."""
    passed(error)
    FAULTS.add(error)
    with suppress(Exception):  # no memory or stack even for that
        for problem in FAULTS.problems:
            report_problem(problem, happened=True)


def unless_faulty(read: Callable[[], T], otherwise: T) -> T:
    """Return what a function returns, or *otherwise* if it fails by a fault of ours."""
    try:
        return read()
    except RecursionError:
        FAULTS.stack += 1
    except Exception as error:  # noqa: BLE001 - that is what it is for
        fault(error)
    return otherwise


def guarded(function: F) -> F:
    """Return a function that returns None where it fails by a fault of ours."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except RecursionError:
            FAULTS.stack += 1
        except Exception as error:  # noqa: BLE001 - that is what it is for
            fault(error)
        return None

    return cast("F", call)


SESSION: Final = Session(UNRECORDED["builder"])


class Unrecorded:
    """A context manager, and a decorator that returns the function as it is. Nothing in it calls anything: there may be no stack."""

    __slots__ = ("_handle",)

    def __init__(self, handle: Any) -> None:
        self._handle = handle

    def __enter__(self) -> Any:
        return self._handle

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        return

    async def __aenter__(self) -> Any:
        return self._handle

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        return

    def __call__(self, function: F) -> F:
        """Return the function."""
        return function


class SwitchedOff(Unrecorded):
    """Made while optree is switched off: as a context manager it records nothing. As a decorator it asks at each call whether it is."""

    __slots__ = ("_arguments", "_make")

    def __init__(self, handle: Any, make: Callable[..., Any], *arguments: Any) -> None:
        self._handle, self._make, self._arguments = handle, make, arguments

    def __call__(self, function: F) -> F:
        """Decorate the function as it is done while optree is switched on."""
        try:
            decorated: F = self._make(*self._arguments)(function)
        except RecursionError:
            FAULTS.stack += 1
        except Exception as error:  # noqa: BLE001 - the function is there, recorded or not
            fault(error)
        else:
            return decorated
        return function


IN_SESSION: Final = Unrecorded(SESSION)
IN_TURN: Final = Unrecorded(UNRECORDED["turn"])
IN_OP: Final = Unrecorded(UNRECORDED["op"])


class UnrecordedPiece:
    """In place of one call of a decorated function, or of one run of a generator."""

    __slots__ = ()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        return

    def result(self, value: Any) -> Any:
        """Return what the function returned."""
        return value

    def recorded(self) -> None:
        """Have the generator run."""

    def keep(self, item: Any) -> None:
        """Keep nothing."""

    def end(self, error: BaseException | None, value: Any = None) -> None:
        """End nothing."""


PIECE: Final = UnrecordedPiece()
