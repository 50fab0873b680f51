"""Keeps from the program what recording raises: no memory, no stack, a fault of ours. What came out of a signal's handler is passed on."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar, cast

from optree.errors import OptreeError
from optree.interrupts import pass_on

F = TypeVar("F", bound=Callable[..., Any])


def closed(method: F) -> F:
    """Return a method of an op, a turn or a builder that raises nothing of its own: None then. A fault is counted by the stream."""

    @functools.wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return method(self, *args, **kwargs)
        except Exception as error:  # noqa: BLE001 - that is what it is for
            return kept(self, error)

    return cast("F", call)


def kept(self: Any, error: BaseException) -> None:
    """Count an exception that a method of *self* raised; raises it again if it is the program's, or says that a call is not possible."""
    if isinstance(error, RecursionError):
        return  # nothing can be called here
    trace = error.__traceback__
    called_wrongly = isinstance(error, TypeError) and (trace is None or trace.tb_next is None)
    if isinstance(error, OptreeError) or called_wrongly or not (hasattr(self, "core") or hasattr(self, "builder")):
        raise error
    pass_on(error)
    with suppress(Exception):  # no memory even for that
        (self if hasattr(self, "core") else self.builder).core.stream.fault(error)
