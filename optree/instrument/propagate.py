"""Carrying the context where Python does not: to threads of a pool, and to other processes."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, Generic, ParamSpec, TypeVar, cast

from optree import redaction
from optree.ids import node_id, span_id, trace_id
from optree.instrument import context
from optree.instrument.config import variables
from optree.instrument.context import CURRENT, REMOTE, Scope
from optree.instrument.runtime import RUNTIME

P = ParamSpec("P")
R = TypeVar("R")


def child_env(env: dict[str, str] | None = None) -> dict[str, str]:
    """Return *env* (default: this process's) with what a child process needs to join the session that is open here.

    As in ``subprocess.run(command, env=optree.child_env())``. What `configure` set goes along, directories as absolute paths, but for a
    mapping of `otel` and the callback of `redact`. Without an open session nothing else is added.
    """
    found = dict(os.environ if env is None else env) | variables(RUNTIME.config)
    scope = CURRENT.get()
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
    """Return *function* so that it runs in the context of here wherever it is called.

    For ``executor.submit(optree.wrap(f), …)``, ``loop.run_in_executor(None, optree.wrap(f))``, a `threading.Thread`'s target, or a
    process pool, for which *function* must be picklable.
    """
    scope, remote = CURRENT.get(), REMOTE.get()
    if not inspect.iscoroutinefunction(function):
        return _Carried(function, scope, remote)

    @functools.wraps(function)
    async def run(*args: P.args, **kwargs: P.kwargs) -> Any:
        with _placed(scope, remote):
            return await function(*args, **kwargs)

    return cast("Callable[P, R]", run)


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


@contextmanager
def _placed(scope: Scope | None, remote: str | None) -> Generator[None, None, None]:
    before, remote_before = CURRENT.get(), REMOTE.get()
    if scope is None:
        CURRENT.set(None)
    else:
        context.enter(scope)
    REMOTE.set(remote)
    try:
        yield
    finally:
        if scope is None:
            CURRENT.set(before)
        else:
            context.leave(scope, before)
        REMOTE.set(remote_before)


def _token(scope: Scope) -> str:
    builder = scope.session.builder
    place = scope.op or scope.turn or builder.current_turn or builder.begin_turn(implicit=True)
    return f"{node_id(builder.txn, place.path)} {builder.node.call_path}"
