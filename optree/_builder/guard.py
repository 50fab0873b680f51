"""The guard of all that a program calls: what recording raises there (no memory, no stack, a fault of ours) is counted, and not raised.

Three kinds are raised all the same: what came out of a signal's handler, which is the program's; an `OptreeError`, which says how optree is
to be used; and the TypeError of a call with wrong arguments. Methods on the hot path have the guard written out, which costs them nothing.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Literal, TypeVar, cast, overload

from optree._interrupts import of_handler
from optree._values import text
from optree.errors import OptreeError

F = TypeVar("F", bound=Callable[..., Any])
Node = Literal["builder", "turn", "op"]


MOST_PROBLEMS = 100


class Faults:
    """Counts of this process, for `health()`. At the limit of the stack nothing can be called: these are added to without a call."""

    __slots__ = ("calls", "problems", "stack")

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Begin anew, as in a forked child."""
        self.calls = 0
        """Calls that were not recorded, or not whole, and that no session's stream counts."""
        self.stack = 0
        """Calls that were not recorded, or not whole, since the stack was full."""
        self.problems: list[str] = []
        """What these calls raised, once each."""

    def add(self, error: Exception) -> None:
        """Count a call."""
        try:
            self.calls += 1
            problem = f"something is not recorded: {type(error).__name__}: {text(error)}"
            if problem not in self.problems and len(self.problems) < MOST_PROBLEMS:
                self.problems.append(problem)
        except Exception:  # noqa: BLE001 - no memory or stack even for that
            return

    def texts(self) -> list[str]:
        """Return a text for people on each problem, and one on all calls for which the stack was full."""
        full = f"the program's stack was full: {self.stack} calls are not recorded, or not whole (RecursionError)"
        return [*self.problems, *([full] if self.stack else [])]


FAULTS = Faults()
UNRECORDED: dict[Node | None, Any] = {None: None}
"""What is returned in place of a node that could not be begun: it takes everything and records nothing. See `unrecorded`."""


@overload
def guarded(method: F, /) -> F: ...
@overload
def guarded(*, instead: Node) -> Callable[[F], F]: ...
def guarded(method: Any = None, /, *, instead: Node | None = None) -> Any:
    """Return a method of an op, a turn, a session or a builder behind the guard; it returns None, or what is *instead* of a node, then."""
    if method is None:
        return functools.partial(_guarded, instead=instead)
    return _guarded(method)


def _guarded(method: F, instead: Node | None = None) -> F:
    @functools.wraps(method)
    def call(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        try:
            return method(self, *args, **kwargs)
        except RecursionError:
            FAULTS.stack += 1
        except Exception as error:
            if isinstance(error, TypeError) and error.__traceback__ is not None and error.__traceback__.tb_next is None:
                raise  # of the call itself
            fault(self, error)
        return UNRECORDED[instead]

    return cast("F", call)


def fault(self: Any, error: Exception) -> None:
    """Count an exception that a method of *self* raised; raises it again if it is the program's, or says how optree is to be used."""
    passed(error)
    try:
        (self if hasattr(self, "core") else self.builder).core.stream.fault(error)
    except AttributeError:  # called on an object that is not ours
        raise error from None
    except RecursionError:
        FAULTS.stack += 1
    except Exception:  # noqa: BLE001 - no memory even for that
        FAULTS.add(error)


def passed(error: Exception) -> None:
    """Raise an exception again if it is the program's, or says how optree is to be used."""
    if isinstance(error, OptreeError):
        raise error
    try:
        raised = of_handler(error)
    except Exception:  # noqa: BLE001 - no stack or memory to look at it
        return
    if raised is not None:
        raise raised
