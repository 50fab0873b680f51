"""Where traced code is: the open session, turn and op, carried by a context variable."""

from __future__ import annotations

from contextvars import ContextVar
from typing import NamedTuple, Protocol

from optree.builder import Op, Turn
from optree.instrument.handles import Session


class Scope(NamedTuple):
    """The innermost open session, the turn within it, and the op within that."""

    session: Session
    turn: Turn | None = None
    op: Op | None = None


CURRENT: ContextVar[Scope | None] = ContextVar("optree_scope", default=None)
REMOTE: ContextVar[str | None] = ContextVar("optree_remote_parent", default=None)
"""Parent in another process, as `child_env` writes it; carried by `wrap` to a process pool's worker."""


class Follower(Protocol):
    """Told where the program is, for another tracer's context."""

    def enter(self, txn: str, path: str) -> None:
        """The program is inside this node now."""
        ...

    def leave(self, txn: str, path: str) -> None:
        """It is no longer."""
        ...

    def traceparent(self, txn: str, path: str) -> str | None:
        """Return what names the node to other tracers; None if this one does not know the session."""
        ...


follower: Follower | None = None


def enter(scope: Scope) -> None:
    """Put *scope* in place, for this thread and task."""
    CURRENT.set(scope)
    if follower is not None:
        follower.enter(scope.session.txn, _path(scope))


def leave(scope: Scope, before: Scope | None) -> None:
    """Put *before* in the place of *scope*."""
    CURRENT.set(before)
    if follower is not None:
        follower.leave(scope.session.txn, _path(scope))


def _path(scope: Scope) -> str:
    place = scope.op or scope.turn
    return scope.session.path if place is None else place.path


def current() -> Op | None:
    """Return the innermost open op here, or None."""
    scope = CURRENT.get()
    return scope.op if scope is not None else None


def current_session() -> Session | None:
    """Return the innermost open session here, or None."""
    scope = CURRENT.get()
    return scope.session if scope is not None else None
