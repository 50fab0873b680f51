"""What a program gets for `session`, `turn`, `llm` and `tool` where there is no room for one, or optree is off: it records nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Self, TypeVar

from optree._builder.guard import FAULTS, UNRECORDED
from optree._tracing.faults import fault
from optree._tracing.handles import Session

F = TypeVar("F")

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
