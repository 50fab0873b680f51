"""Where traced code is: the open session, turn and op, carried by a context variable."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Protocol

from msgspec import Struct

from optree._builder import Op, Turn
from optree._interrupts import suppress
from optree._nodes import Status
from optree._store.opening import current_run
from optree._tracing.config import is_on
from optree._tracing.handles import Session

Holder = Callable[[], Any]
"""A weak reference to what a `with` statement holds of a scope as long as it lasts; see `holding`."""


class Reservation(Protocol):
    """What one call of a model takes from the budgets that it is within."""

    def commit(self, op: Op) -> None:
        """Count what its op has accounted for so far."""
        ...


class Allowance(Protocol):
    """The budgets that hold somewhere: one, and those that it is within."""

    def check(self, where: Scope | None) -> None:
        """Raise `BudgetExceeded` if no call can be made."""
        ...

    def reserve(self, where: Scope) -> Reservation:
        """Reserve what the call may take that is about to be made; raises `BudgetExceeded`."""
        ...


class Scope(Struct, eq=False):
    """The innermost open session, the turn within it, and the op within that."""

    session: Session
    turn: Turn | None = None
    op: Op | None = None
    before: Scope | None = None
    """The scope that it replaced."""
    holder: Holder | None = None
    """A weak reference to what keeps the scope open; dead once its `with` block was dropped without being left."""
    finish: Callable[[Any, Status, str | None], None] | None = None
    """Ends its node."""
    piece: Scope | None = None
    """The scope of the generator that this one is in; its `with` statement lasts from one `yield` to the next."""
    budget: Allowance | None = None
    """The innermost budget that holds here."""

    @property
    def handle(self) -> Op | Turn | Session:
        """The handle of the innermost of the three."""
        return self.op or self.turn or self.session

    @property
    def abandoned(self) -> bool:
        """True if its `with` statement is gone, and was not left in order: a signal's handler raised in the middle of its end."""
        if self.holder is not None and self.holder() is None:
            return True
        return self.piece is not None and self.piece is not self and self.piece.abandoned


CURRENT: ContextVar[Scope | None] = ContextVar("optree_scope", default=None)


def current_scope() -> Scope | None:
    """Return where this thread and task of the program is: the innermost open session, turn and operation; None outside all sessions."""
    return CURRENT.get()


REMOTE: ContextVar[str | None] = ContextVar("optree_remote_parent", default=None)
"""Parent in another process, as `child_env` writes it; carried by `wrap` to a process pool's worker."""


class ScopeListener(Protocol):
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


follower: ScopeListener | None = None
ABANDONED: tuple[Status, str] = "cancelled", "an exception out of a signal's handler interrupted its end"
"""How a node ends whose `with` statement was not left in order."""


def here() -> Scope | None:
    """Return the innermost open scope, for this thread and task; one that was abandoned is ended first."""
    scope = CURRENT.get()
    if scope is None or (scope.holder is None and scope.piece is None) or not scope.abandoned:
        return scope
    while scope is not None and scope.abandoned:
        if scope.finish is not None:
            scope.finish(scope.handle, *ABANDONED)
        if follower is not None:
            follower.leave(scope.session.txn, _path(scope))
        scope = scope.before
    CURRENT.set(scope)  # last: a thread that is interrupted before this begins again
    return scope


def is_in_loop() -> bool:
    """Tell whether this is in an event loop of asyncio, where a task has a context of its own: one without a session is outside of all."""
    events = sys.modules.get("asyncio.events")
    return events is not None and events._get_running_loop() is not None  # noqa: SLF001 - documented


def enter(scope: Scope, outermost: Scope | None = None) -> None:
    """Put *scope* in place, for this thread and task; with the *outermost* of several, within these."""
    CURRENT.set(scope)
    if follower is not None:
        for one in reversed(_several(scope, outermost or scope)):
            follower.enter(one.session.txn, _path(one))


def leave(scope: Scope, outermost: Scope | None = None) -> None:
    """Put what was before in the place of *scope*, or of the *outermost* of several, which is left in order then."""
    outermost = outermost or scope
    if follower is not None:
        for one in _several(scope, outermost):
            follower.leave(one.session.txn, _path(one))
    CURRENT.set(outermost.before)  # last but for the mark: until then a scope whose `with` statement is gone is known as abandoned
    outermost.holder = None


def follow(op: Op) -> None:
    """Make the span of *op*, which is no block of the program's, OpenTelemetry's current one in this thread and task."""
    if follower is not None:
        follower.enter(op.builder.txn, op.path)


def unfollow(op: Op) -> None:
    """Make the span that was current before `follow` the current one again."""
    if follower is not None:
        follower.leave(op.builder.txn, op.path)


def pause(outer: Scope | None) -> tuple[Scope, Scope] | None:
    """Make *outer* the current scope, and leave those open that are within it: returns the innermost and the outermost of them."""
    inner = outermost = CURRENT.get()
    around: list[Scope] = []
    above = outer
    while above is not None and above not in around:  # of a generator that asks itself for a piece they are a ring
        around.append(above)
        above = above.before
    if inner is None or outermost is None or inner in around:
        return None
    while outermost.before is not None and outermost.before not in around:
        outermost = outermost.before
    if follower is not None:
        for one in _several(inner, outermost):
            follower.leave(one.session.txn, _path(one))
    CURRENT.set(outer)
    return inner, outermost


def _several(scope: Scope, outermost: Scope) -> list[Scope]:
    """Return a scope and those that it is within, up to the *outermost*; the scope alone where it is not within that."""
    found = [scope]
    while (last := found[-1]) is not outermost:
        if last.before is None:
            return found[:1]
        found.append(last.before)
    return found


def _path(scope: Scope) -> str:
    place = scope.op or scope.turn
    return scope.session.path if place is None else place.path


def ingress() -> dict[str, Any]:
    """Return where the program was started from, and which run of it this is, for a root session."""
    cli: dict[str, Any] = {"argv0": sys.argv[0] if sys.argv else "", "pid": os.getpid()}
    with suppress(OSError):  # the working directory may have been removed
        cli["cwd"] = os.getcwd()  # noqa: PTH109 - pathlib is not imported for one call
    origin: dict[str, Any] = {"source": "cli", "cli": cli, "run": current_run()}
    if is_on(os.environ.get("OPTREE_AUTO", "")):
        origin["auto"] = True
    if "TRACEPARENT" in os.environ:
        origin["traceparent"] = os.environ["TRACEPARENT"]
    return origin
