"""What a program gets in place of what `session`, `turn`, `llm` and `tool` return, where there is no room for one: it records nothing."""

from __future__ import annotations

from typing import Any, Final, Self, TypeVar

from optree.builder.guard import UNRECORDED
from optree.instrument.handles import Session

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

    def keep(self, item: Any) -> None:
        """Keep nothing."""

    def end(self, error: BaseException | None, value: Any = None) -> None:
        """End nothing."""


PIECE: Final = UnrecordedPiece()
