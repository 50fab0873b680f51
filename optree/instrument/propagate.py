"""Carrying the context where Python does not: to threads of a pool, and to other processes."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any, Generic, ParamSpec, TypeVar

from optree.ids import node_id, span_id, trace_id
from optree.instrument.context import CURRENT, REMOTE, Scope

P = ParamSpec("P")
R = TypeVar("R")


def child_env(env: dict[str, str] | None = None) -> dict[str, str]:
    """Return *env* (default: this process's) with what a child process needs to join the session that is open here.

    As in ``subprocess.run(command, env=optree.child_env())``. Without an open session it is returned as it is.
    """
    found = dict(os.environ if env is None else env)
    scope = CURRENT.get()
    if scope is not None:
        parent, ancestry = _token(scope).split(" ", 1)
        txn = scope.session.txn
        found |= {"OPTREE_PARENT": parent, "OPTREE_ANCESTRY": ancestry, "TRACEPARENT": f"00-{trace_id(txn)}-{span_id(parent)}-01"}
        found.pop("OPTREE_RESUME", None)
    return found


def wrap(function: Callable[P, R]) -> Callable[P, R]:
    """Return *function* so that it runs in the context of here wherever it is called.

    For ``executor.submit(optree.wrap(f), …)``, ``loop.run_in_executor(None, optree.wrap(f))``, a `threading.Thread`'s target, or a
    process pool, for which *function* must be picklable.
    """
    return _Carried(function, CURRENT.get(), REMOTE.get())


class _Carried(Generic[P, R]):
    """A function with the context that it was wrapped in; pickled, it keeps the names and loses the handles."""

    def __init__(self, function: Callable[P, R], scope: Scope | None, remote: str | None) -> None:
        functools.update_wrapper(self, function)
        self._function = function
        self._scope = scope
        self._remote = remote

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        before, remote_before = CURRENT.get(), REMOTE.get()
        CURRENT.set(self._scope)
        REMOTE.set(self._remote)
        try:
            return self._function(*args, **kwargs)
        finally:
            CURRENT.set(before)
            REMOTE.set(remote_before)

    def __reduce__(self) -> tuple[Any, ...]:
        remote = _token(self._scope) if self._scope is not None else self._remote
        return _Carried, (self._function, None, remote)


def _token(scope: Scope) -> str:
    place = scope.op or scope.turn
    path = place.path if place is not None else scope.session.path
    return f"{node_id(scope.session.txn, path)} {scope.session.builder.node.call_path}"
