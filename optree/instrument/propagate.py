"""Carrying the context where Python does not: to threads of a pool, and to other processes."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable
from typing import Any, Generic, ParamSpec, TypeVar, cast

from optree import redaction
from optree.builder.guard import FAULTS
from optree.ids import node_id, span_id, trace_id
from optree.instrument import context
from optree.instrument.config import variables
from optree.instrument.context import CURRENT, REMOTE, Scope
from optree.instrument.faults import fault
from optree.instrument.holding import Exit, HeldScope, take_held
from optree.instrument.runtime import RUNTIME
from optree.instrument.unrecorded import PIECE, UnrecordedPiece

P = ParamSpec("P")
R = TypeVar("R")


def child_env(env: dict[str, str] | None = None) -> dict[str, str]:
    """Return environment variables with which a child process joins the session that is open here.

    The child's sessions and operations become part of the same tree, and of the same trace in OpenTelemetry. What `configure` set goes
    along too, directories as absolute paths, but for a mapping given as ``otel`` and the callback of ``redact``.

    ```python
    import subprocess
    import sys

    import optree

    with optree.session("lead"), optree.turn(user="delegate"):
        subprocess.run([sys.executable, "-c", "print('traced as part of lead')"], env=optree.child_env(), check=True)
    ```

    Args:
        env: The variables to start from; by default those of this process.

    Returns:
        A new dict. Where no session is open, it names none, and the child records sessions of its own.
    """
    found: Any = os.environ if env is None else env
    try:
        found = dict(found)
        return _joining(found)
    except RecursionError:
        FAULTS.stack += 1
    except Exception as error:
        if found.__class__ is not dict:
            raise  # it is no mapping
        fault(error)
    return found  # type: ignore[no-any-return]


def _joining(env: dict[str, str]) -> dict[str, str]:
    found = env | variables(RUNTIME.config)
    scope = context.here()
    if (chosen := redaction.settings()) != redaction.Redaction():
        found[redaction.VARIABLE] = chosen.to_json()
    if scope is not None:
        parent, ancestry = _token(scope).split(" ", 1)
        txn = scope.session.txn
        told = context.follower.traceparent(txn, parent.partition(":")[2]) if context.follower is not None else None
        traceparent = told or f"00-{trace_id(txn)}-{span_id(parent)}-01"
        found |= {"OPTREE_PARENT": parent, "OPTREE_ANCESTRY": ancestry, "TRACEPARENT": traceparent}
        for meant_for_this_process in ("OPTREE_RESUME", "OPTREE_TXN"):
            found.pop(meant_for_this_process, None)
    return found


def wrap(function: Callable[P, R]) -> Callable[P, R]:
    """Bind a function to the session, turn and operation that are open here, for a call in another thread or process.

    Tasks inherit the context; threads and process pools do not.

    ```python
    from concurrent.futures import ThreadPoolExecutor

    import optree


    @optree.tool
    def fetch(page: str) -> str:
        return page.upper()


    with optree.session("lead"), optree.turn(user="fetch"), ThreadPoolExecutor() as pool:
        print(list(pool.map(optree.wrap(fetch), ["a", "b"])))
    ```

    Args:
        function: A function or coroutine function; for a process pool it must be picklable.

    Returns:
        A function of the same signature, for any thread, executor or process pool.
    """
    try:
        scope, remote = context.here(), REMOTE.get()
        if not inspect.iscoroutinefunction(function):
            return _Carried(function, scope, remote)

        @functools.wraps(function)
        async def run(*args: P.args, **kwargs: P.kwargs) -> Any:
            with _placed(scope, remote):
                return await function(*args, **kwargs)

        return cast("Callable[P, R]", run)
    except RecursionError:
        FAULTS.stack += 1
    except Exception as error:  # noqa: BLE001 - the function runs, where it is recorded or elsewhere
        fault(error)
    return function  # pyright: ignore[reportReturnType]


class _Carried(Generic[P, R]):
    """A function with the context that it was wrapped in; pickled, it keeps the names and loses the handles."""

    def __init__(self, function: Callable[P, R], scope: Scope | None, remote: str | None) -> None:
        functools.update_wrapper(self, function)
        self._function = function
        self._scope = scope
        self._remote = remote

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        with _placed(self._scope, self._remote):
            return self._function(*args, **kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        remote = _token(self._scope) if self._scope is not None else self._remote
        return _Carried, (self._function, None, remote)


def _placed(scope: Scope | None, remote: str | None) -> _Placed | UnrecordedPiece:
    try:
        return _Placed(scope, remote)
    except RecursionError:
        FAULTS.stack += 1
    except Exception as error:  # noqa: BLE001 - the function runs, recorded or not
        fault(error)
    return PIECE


class _Placed:
    """A block that runs in another's context."""

    __slots__ = ("_before", "_held", "_remote", "_scope")

    __exit__ = Exit()

    def __init__(self, scope: Scope | None, remote: str | None) -> None:
        self._scope, self._remote = scope, remote
        self._held: HeldScope | None = None
        self._before: tuple[Scope | None, str | None] | None = None

    def __enter__(self) -> None:
        try:
            self._enter(take_held(self))
        except RecursionError:
            FAULTS.stack += 1
        except Exception as error:  # noqa: BLE001 - the function runs, here or there
            fault(error)

    def _enter(self, held: HeldScope) -> None:
        before = context.here()
        self._before = before, REMOTE.get()
        if self._scope is not None:
            self._scope = Scope(self._scope.session, self._scope.turn, self._scope.op, before, held.holder)
            context.enter(self._scope)
        else:
            CURRENT.set(None)
        REMOTE.set(self._remote)

    def leave(self, _scope: Scope | None, _error: BaseException | None) -> None:
        """Put back what was before."""
        if self._before is None:
            return
        before, remote = self._before
        REMOTE.set(remote)
        if self._scope is not None:
            context.leave(self._scope)
        else:
            CURRENT.set(before)


def _token(scope: Scope) -> str:
    builder = scope.session.builder
    place = scope.op or scope.turn or builder.current_turn or builder.begin_turn(implicit=True)
    return f"{node_id(builder.txn, place.path)} {builder.node.call_path}"
