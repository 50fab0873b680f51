"""Carrying the context where Python does not: to threads of a pool, and to other processes."""

from __future__ import annotations

import copyreg
import functools
import inspect
import os
import re
from collections.abc import Callable
from typing import Any, Final, Generic, ParamSpec, TypeVar, cast

from msgspec.structs import replace

from optree._builder.guard import FAULTS
from optree._ids import is_txn, node_id, span_id, trace_id
from optree._providers.prices import PRICES
from optree._store.opening import RUN, current_run
from optree._store.reading.directory import may_be_directory
from optree._syscalls import calls
from optree._tracing import context
from optree._tracing.budgets import OUTSIDE, VARIABLE, Limiter, common, joined, named, outside, reference
from optree._tracing.config import PATHS, CarriedOptions, Config, carry, in_effect, variables
from optree._tracing.context import CURRENT, REMOTE, Holder, Scope, ingress
from optree._tracing.faults import PIECE, UnrecordedPiece, fault, unless_faulty
from optree._tracing.handles import Session
from optree._tracing.holding import Exit, HeldScope, take_held
from optree._tracing.recorded import CURRENT_REPLAY
from optree._tracing.runtime import RUNTIME, report_problem

P = ParamSpec("P")
R = TypeVar("R")
_LONGEST_PLACE: Final = 1024
_WITHOUT: Final = ";content=off"
"""Behind a place in a session that is recorded without content."""
_PLACE: Final = re.compile(r"[A-Za-z0-9_-]+:[0-9]{1,9}(\.[0-9]{1,9}){0,63}")
"""A turn, or an op."""
# A decorated function may be sent as a value, as cloudpickle sends those of a script or a notebook: it uses what the worker's process has.
copyreg.pickle(type(RUNTIME), lambda _runtime: "RUNTIME")
copyreg.pickle(type(CURRENT_REPLAY), lambda _replay: "CURRENT_REPLAY")


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
        env: The variables to start from; by default those of this process. What `configure` set takes the place of what they say. If
            neither names a directory, this process's variables do.

    Returns:
        A new dict. Where no session is open, it names none but what ``OPTREE_PARENT`` in *env* does, and the child records its own.
    """
    environment: Any = os.environ if env is None else env
    try:
        environment = dict(environment)
        return _joining(environment)
    except RecursionError:
        FAULTS.stack += 1
    except Exception as error:
        if environment.__class__ is not dict:
            raise  # it is no mapping
        fault(error)
    return environment  # type: ignore[no-any-return]


def _joining(env: dict[str, str]) -> dict[str, str]:
    paths = {} if any(name in env for name in PATHS.values()) else {name: os.environ[name] for name in PATHS.values() if name in os.environ}
    scope = context.here()
    environment = paths | env | variables(_config_in(scope), RUNTIME.directory())
    environment.pop(VARIABLE, None)
    environment[RUN] = current_run()
    if budget := reference(outside() if scope is None else scope.budget):
        environment[VARIABLE] = budget
    if scope is not None:
        parent, ancestry, traceparent = place_of(scope)
        environment |= {"OPTREE_PARENT": parent, "OPTREE_ANCESTRY": ancestry, "TRACEPARENT": traceparent}
        for meant_for_this_process in ("OPTREE_RESUME", "OPTREE_TXN"):
            environment.pop(meant_for_this_process, None)
    return environment


def _config_in(scope: Scope | None) -> Config:
    """Return what is configured, for a process that joins what is open: where that began without content, it has none there either."""
    config = RUNTIME.config
    return config if scope is None or scope.session.builder.core.content else in_effect(replace(config, content=False))


def wrap(function: Callable[P, R]) -> Callable[P, R]:
    """Bind a function to the session, turn and operation that are open here, for a call in another thread or process.

    Tasks inherit the context; threads and process pools do not. A worker process gets the settings that this one has when the function is
    sent: those that `child_env` carries, and the callback of ``redact``. What that process's own program gave to `configure`, or set as a
    variable to another value, wins there; but it redacts no less than this one. A worker that was forked has the callback; for another one
    it must be importable, else `health` says so there, and texts are replaced whole, unless that process has a callback of its own.

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
        budget = outside() if scope is None else None
        if not inspect.iscoroutinefunction(function):
            return _Carried(function, scope, remote, budget)

        @functools.wraps(function)
        async def run(*args: P.args, **kwargs: P.kwargs) -> Any:
            with _placed(scope, remote, budget):
                return await function(*args, **kwargs)

        return cast("Callable[P, R]", run)
    except RecursionError:
        FAULTS.stack += 1
    except Exception as error:  # noqa: BLE001 - the function runs, where it is recorded or elsewhere
        fault(error)
    return function  # pyright: ignore[reportReturnType]


class _Carried(Generic[P, R]):
    """A function with the context that it was wrapped in; pickled, it keeps the names and loses the handles."""

    def __init__(
        self,
        function: Callable[P, R],
        scope: Scope | None,
        remote: str | None,
        budget: Limiter | str | None,
        settings: CarriedOptions | None = None,
    ) -> None:
        functools.update_wrapper(self, function)
        self._function = function
        self._scope = scope
        self._remote = remote
        self._budget = budget
        self._settings = settings

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        with _placed(self._scope, self._remote, self._budget, self._settings):
            return self._function(*args, **kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        remote = _token(self._scope) if self._scope is not None else self._remote
        budget = self._budget if self._scope is None else self._scope.budget
        settings = self._settings or unless_faulty(lambda: carry(_config_in(self._scope), RUNTIME.directory()), None)
        return _Carried, (self._function, None, remote, budget if isinstance(budget, str) else reference(budget), settings)


def _take_over(settings: CarriedOptions) -> None:
    """Let what was configured where a function was wrapped hold in this process; what cannot is reported."""
    prices = RUNTIME.config.prices
    problems = RUNTIME.settings.take(settings)
    if RUNTIME.config.prices != prices:
        problems += PRICES.begin(RUNTIME.config.prices, report_problem)
    for problem in problems:
        report_problem(problem)


def _placed(
    scope: Scope | None, remote: str | None, budget: Limiter | str | None, settings: CarriedOptions | None = None
) -> _Placed | UnrecordedPiece:
    try:
        if settings is not None:
            _take_over(settings)
        return _Placed(scope, remote, joined(budget) if isinstance(budget, str) else budget)
    except RecursionError:
        FAULTS.stack += 1
    except Exception as error:  # noqa: BLE001 - the function runs, recorded or not
        fault(error)
    return PIECE


class _Placed:
    """A block that runs in another's context."""

    __slots__ = ("_before", "_budget", "_held", "_remote", "_scope")

    __exit__ = Exit()

    def __init__(self, scope: Scope | None, remote: str | None, budget: Limiter | None) -> None:
        self._scope, self._remote, self._budget = scope, remote, budget
        self._held: HeldScope | None = None
        self._before: tuple[Scope | None, str | None, Limiter | None] | None = None

    def __enter__(self) -> None:
        try:
            self._enter(take_held(self))
        except RecursionError:
            FAULTS.stack += 1
        except Exception as error:  # noqa: BLE001 - the function runs, here or there
            fault(error)

    def _enter(self, held: HeldScope) -> None:
        before = context.here()
        self._before = before, REMOTE.get(), OUTSIDE.get()
        if self._scope is not None:
            self._scope = Scope(self._scope.session, self._scope.turn, self._scope.op, before, held.holder, budget=self._scope.budget)
            context.enter(self._scope)
        else:
            CURRENT.set(None)
        REMOTE.set(self._remote)
        OUTSIDE.set(self._budget)

    def leave(self, _scope: Scope | None, _error: BaseException | None) -> None:
        """Put back what was before."""
        if self._before is None:
            return
        before, remote, budget = self._before
        OUTSIDE.set(budget)
        REMOTE.set(remote)
        if self._scope is not None:
            context.leave(self._scope)
        else:
            CURRENT.set(before)


def place_of(scope: Scope) -> tuple[str, str, str]:
    """Return what names a place to another process: its node, the agents down to it, and the trace context of its span."""
    parent, ancestry = _token(scope).split(" ", 1)
    txn = scope.session.txn
    traceparent = context.follower.traceparent(txn, parent.partition(":")[2]) if context.follower is not None else None
    return parent, ancestry, traceparent or f"00-{trace_id(txn)}-{span_id(parent)}-01"


def placed_at(parent: object, ancestry: object, budget: object = None, *, content: object = True) -> _Placed | UnrecordedPiece | None:
    """Return a block that runs where *parent* is, as others named it by `place_of`, and within the *budget* that `names_of` told of.

    None if that is no session which lives here. The names are not trusted: a session, or a budget, that this process does not have must be
    in this process's own directory already. Where *content* is False it is recorded without.
    """
    if not (isinstance(parent, str) and len(parent) <= _LONGEST_PLACE and _PLACE.fullmatch(parent) and RUNTIME.config.enabled):
        return None
    txn, _, path = parent.partition(":")
    session = RUNTIME.sessions.get(txn)
    if session is not None:
        op = session.builder.core.ops.get(path)
        here = Scope(session) if op is None else Scope(Session(op.builder), op.turn, op)
        here.budget = outside() or common()
        return _placed(here, None, None)
    if not (is_txn(txn) and calls.may_name_a_file(txn) and may_be_directory(RUNTIME.directory().live(txn))):
        return None
    known = isinstance(ancestry, str) and len(ancestry) <= _LONGEST_PLACE and ancestry.isprintable()
    return _placed(None, f"{parent}{_WITHOUT if content is False else ''} {ancestry if known else '(unknown)'}", named(budget))


def _token(scope: Scope) -> str:
    builder = scope.session.builder
    place = scope.op or scope.turn or builder.current_turn or builder.begin_turn(implicit=True)
    return f"{node_id(builder.txn, place.path)} {builder.node.call_path}"


def remote() -> Scope | None:
    """Return where another process's node stands, if this one was started from it."""
    token = REMOTE.get()
    parent = token or os.environ.get("OPTREE_PARENT")
    if not parent:
        return None
    name, _, ancestry = parent.partition(" ")
    joined = RUNTIME.join(name.removesuffix(_WITHOUT), ancestry or os.environ.get("OPTREE_ANCESTRY", "(unknown)"))
    if joined is None:
        return None
    if name.endswith(_WITHOUT):
        joined.session.builder.core.leave_out_content()
    return Scope(*joined, budget=outside())


def home(name: str, holder: Holder | None, *, is_model: bool = False) -> Scope:
    """Return the session of a node that comes without context: the only open one, else a root session of its own.

    Raises `BudgetExceeded`, before there is one, if the node is the call of a model, and the budget that holds here has none left.
    """
    only, budget = RUNTIME.only_session(), outside() or common()
    if only is None:
        if budget is not None and is_model:
            budget.check(None)
        only = RUNTIME.open_detached(name, {"ingress": ingress(), "detached": True}, holder)
    return Scope(only, budget=budget)
