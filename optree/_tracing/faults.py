"""What recording raises on the program's thread where no session's stream can count it: it is counted and said, and the program goes on."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar, cast

from optree._builder.guard import FAULTS, passed
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
