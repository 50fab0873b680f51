"""`session`, `turn`, `llm`, `tool`: each a decorator, with and without arguments, and a context manager."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import Any, Final, Generic, TypeGuard, TypeVar, overload

from optree._builder import Op, SessionTreeBuilder, Turn
from optree._builder.core import Core, Encoded
from optree._builder.guard import FAULTS, UNRECORDED
from optree._builder.outcome import outcome
from optree._nodes import OperationNode, OpKind, SessionNode, Status, TurnNode
from optree._tracing import context
from optree._tracing.budgets import outside, session_ends
from optree._tracing.context import ABANDONED, CURRENT, Holder, Scope, ingress
from optree._tracing.failures import ERROR_TYPE, FailureClass, class_of_raised, error_attributes
from optree._tracing.faults import IN_OP, IN_SESSION, IN_TURN, SESSION, SwitchedOff, fault, unless_faulty
from optree._tracing.handles import Session, interrupted
from optree._tracing.holding import ContextManager, HeldScope, abandon, abandon_last, abandon_turn, clear_frames, take_held
from optree._tracing.propagate import home, remote
from optree._tracing.results import ModelResult, OpResult, Report, Result, name_model
from optree._tracing.runtime import RUNTIME, report_problem
from optree._tracing.wrapping import F, name_of, wrapped
from optree._values import cut, raw, text
from optree.errors import BudgetExceeded, SetupError

H = TypeVar("H", Session, Turn, Op)
_CLASSIFIED: Final = ("llm", "tool")
"""Kinds of ops whose failures have a class."""


class _Instrument(ContextManager, Generic[H]):
    """One place in code; each entry opens a node of its own, so one object may be entered again and again, also at once."""

    unrecorded: Any
    """What is returned for a node that could not be begun."""

    def __init__(self) -> None:
        self._held: HeldScope | None = None
        self._open: dict[int, Scope] = {}
        """What was entered without a `with` statement."""

    def __enter__(self) -> H:
        if not RUNTIME.config.enabled:
            return self.unrecorded  # type: ignore[no-any-return]
        try:
            held, before, scope = take_held(self), context.here(), None
            try:
                scope = held.scope = self.begin(before, held.holder)
                if held.holder is None:
                    self._open[id(scope)] = scope
                if scope.session is not SESSION:  # else what is in the block is recorded where the block is
                    context.enter(scope)
                handle: Any = scope.handle
            except BaseException:
                self.undo(scope, before)
                raise
        except RecursionError:
            FAULTS.stack += 1
            handle = self.unrecorded
        except Exception as error:  # noqa: BLE001 - the block runs, recorded or not
            fault(error)
            handle = self.unrecorded
        return handle  # type: ignore[no-any-return]

    async def __aenter__(self) -> H:
        try:
            return type(self).__enter__(self)
        except RecursionError:
            FAULTS.stack += 1
        return self.unrecorded  # type: ignore[no-any-return]

    def leave(self, scope: Scope | None, error: BaseException | None) -> None:
        """End the node of *scope*, then put back what was before; without it, of the entry that is left here."""
        here = CURRENT.get()
        if scope is None and self._open:
            scope = self._open.pop(self._left(here))
        if scope is None:
            return
        try:
            self.finish(scope.handle, *outcome(error))
            if here is scope:
                context.leave(scope)
        except BaseException:  # an interrupt: what is begun is done whole
            self.finish(scope.handle, *outcome(error))
            if CURRENT.get() is scope:
                context.leave(scope)
            raise

    def _left(self, here: Scope | None) -> int:
        """Return the key of the entry that is left *here*; in a strange context the last that was entered from it, or in its session."""
        if id(here) in self._open:
            return id(here)
        entries = list(self._open.items())
        near = [key for key, scope in entries if scope.before is here]
        if not near and here is not None:
            near = [key for key, scope in entries if scope.session.txn == here.session.txn]
        return near[-1] if near else entries[-1][0]

    def __call__(self, function: F) -> F:
        """Use as a decorator."""
        try:
            return wrapped(function, self._again)
        except RecursionError:
            FAULTS.stack += 1
        except Exception as error:  # noqa: BLE001 - the function is there, recorded or not
            fault(error)
        return function

    def begin(self, before: Scope | None, holder: Holder | None = None, arguments: Mapping[str, Any] | None = None) -> Scope:
        """Open a node where *before* is, held by *holder*, with the *arguments* of a call, and return the scope within it."""
        raise NotImplementedError

    def undo(self, scope: Scope | None, before: Scope | None) -> None:
        """End what an entry began that an exception interrupted: the node of *scope* or, without one, a node whose handle is not in use."""
        if scope is not None:
            self.finish(scope.handle, *ABANDONED)
            if CURRENT.get() is scope:
                context.leave(scope)
        elif before is not None:
            clear_frames()
            self._undo(before.session.builder)

    def _undo(self, builder: SessionTreeBuilder) -> None:
        """End the node that was begun last, if nothing refers to its handle but the builder."""
        raise NotImplementedError

    def finish(self, handle: Any, status: Status, error: str | None) -> None:
        """End the node, unless it is another process's: a forked child leaves the blocks that its parent is in."""
        if not self.inherited(handle):
            self._end(handle, status, error)

    def inherited(self, handle: H) -> bool:
        """Tell whether a node is another process's."""
        core = handle.builder.core
        return core.epoch > 0 and is_parents(core, self._node(handle))

    def called(self, handle: H, arguments: Mapping[str, Any]) -> None:
        """Take the arguments of a decorated function's call."""

    def result(self, handle: H) -> Result:  # noqa: ARG002 - for those that record one
        """Return the `Result` that takes what one call gives back."""
        return Result()

    def _node(self, handle: H) -> SessionNode | TurnNode | OperationNode:
        return handle.bare if isinstance(handle, Op) else handle.builder.node if isinstance(handle, Session) else handle.node

    def _end(self, handle: H, status: Status, error: str | None) -> None:
        raise NotImplementedError

    def _again(self, function: Callable[..., Any]) -> _Instrument[H]:
        raise NotImplementedError


def is_parents(core: Core, node: SessionNode | TurnNode | OperationNode) -> bool:
    """Tell whether a node was begun before this process was forked: it is the parent's to end."""
    return core.epoch > 0 and node.started_at < RUNTIME.forked_at


class SessionScope(_Instrument[Session]):
    """A run of an agent: the root session, or a sub-agent's when another session is open here."""

    unrecorded = SESSION

    def __init__(self, agent: str | None, attributes: Mapping[str, Any], resume: str | None = None) -> None:
        super().__init__()
        self._agent = agent
        self._attributes = attributes
        self._resume = cut(text(resume), 1000) if resume else None

    def begin(self, before: Scope | None, holder: Holder | None = None, arguments: Mapping[str, Any] | None = None) -> Scope:  # noqa: ARG002
        agent = self._agent or "agent"
        above = before or remote()
        if above is None:
            session = RUNTIME.open_root(agent, {"ingress": ingress(), **self._attributes}, holder, self._resume)
        else:
            builder = above.session.builder
            op = builder.begin_op("session", agent, turn=above.turn, parent=above.op)
            try:
                earlier = interrupted(above.session, agent)
                goes_on = {"continues": earlier[-1].path} if earlier else {"not_resumed": "it is a sub-agent's"} if self._resume else {}
                child = builder.attach_child_session(op, agent, attributes={**self._attributes, **goes_on})
            except SetupError as error:
                op.end("failed", str(error))
                raise
            except BaseException:
                abandon(op)
                raise
            session = SESSION if child is UNRECORDED["builder"] else Session(child, resumed=bool(earlier), earlier=earlier)
        budget = outside() if above is None else above.budget
        return Scope(session, None, None, before, holder, self.finish, before and before.piece, budget)

    def _end(self, handle: Session, status: Status, error: str | None) -> None:
        builder = handle.builder
        session_ends(builder)
        builder.end_session(status, error)
        if builder.parent is not None:
            builder.parent.end_op(builder.path, status, error)
        else:
            RUNTIME.close_root(handle.txn)

    def _undo(self, builder: SessionTreeBuilder) -> None:
        abandon_last(builder, "session")

    def result(self, handle: Session) -> Result:
        return Report(handle.builder)

    def _again(self, function: Callable[..., Any]) -> SessionScope:
        return SessionScope(self._agent or name_of(function), self._attributes, self._resume)


class TurnScope(_Instrument[Turn]):
    """A turn of the session that is open here."""

    unrecorded = UNRECORDED["turn"]

    def __init__(self, user: str | None, system: str | None, attributes: Mapping[str, Any]) -> None:
        super().__init__()
        self._user, self._system, self._attributes = user, system, attributes

    def begin(self, before: Scope | None, holder: Holder | None = None, arguments: Mapping[str, Any] | None = None) -> Scope:  # noqa: ARG002
        where = before or remote() or home("turn", holder)
        session = where.session
        turn = session.builder.begin_turn(user=self._user, system=self._system, attributes=self._attributes or None)
        try:
            RUNTIME.own_detached(session.builder, turn.path)
            return Scope(session, turn, None, before, holder, self.finish, before and before.piece, where.budget)
        except BaseException:
            turn.end(*ABANDONED)
            raise

    def _undo(self, builder: SessionTreeBuilder) -> None:
        abandon_turn(builder)

    def _end(self, handle: Turn, status: Status, error: str | None) -> None:
        handle.end(status, error)
        RUNTIME.close_detached(handle.builder, handle.path, status, error)

    def _again(self, function: Callable[..., Any]) -> TurnScope:  # noqa: ARG002 - a turn takes no name from it
        return TurnScope(self._user, self._system, self._attributes)


class OpScope(_Instrument[Op]):
    """An op in the turn that is open here."""

    unrecorded = UNRECORDED["op"]

    def __init__(self, kind: OpKind, name: str | None, attributes: Mapping[str, Any], block: Encoded | None = None) -> None:
        super().__init__()
        self._block = block  # the attributes as JSON, where these are known
        self._kind: OpKind = kind
        self._name, self._attributes = name, attributes

    def begin(self, before: Scope | None, holder: Holder | None = None, arguments: Mapping[str, Any] | None = None) -> Scope:
        name = self._name or self._kind
        where = before or remote()
        attributes: Any = self._attributes if where else {**self._attributes, "detached": True}
        where = where or home(name, holder, is_model=self._kind == "llm")
        spending = where.budget.reserve(where) if where.budget is not None and self._kind == "llm" else None
        builder = where.session.builder
        if self._block is not None and attributes is self._attributes and not builder.core.redacted:
            attributes = self._block
        sent = arguments if self._kind == "tool" and arguments is not None and "messages" not in arguments else None
        op = builder.begin_op(self._kind, name, turn=where.turn, parent=where.op, attributes=attributes or None, request=sent)
        try:
            if spending is not None and op is not UNRECORDED["op"]:
                op.spending = spending
                spending.commit(op)  # nothing yet: it knows its op from now on, in a forked child too
            RUNTIME.own_detached(builder, op.path)
            return Scope(where.session, op.turn, op, before, holder, self.finish, before and before.piece, where.budget)
        except BaseException:
            op.end(*ABANDONED)
            raise

    def _undo(self, builder: SessionTreeBuilder) -> None:
        if not isinstance(sys.exception(), BudgetExceeded):  # then none was begun
            abandon_last(builder, self._kind)

    def _end(self, handle: Op, status: Status, error: str | None) -> None:
        if handle.call is not None and self._kind == "llm":
            handle.call.op_ends()
        if handle.spending is not None:
            handle.spending.commit(handle)  # ahead of the end: what it logs belongs into the op
        handle.end(status, error, **(self._why(handle, error) if status == "failed" else {}))
        if handle.spending is not None:
            handle.spending.commit(handle)
        RUNTIME.close_detached(handle.builder, handle.path, status, error)

    def _why(self, handle: Op, error: str | None) -> dict[str, Any]:
        """Return the attributes that have the class of a failure, and what a provider said of it, unless the program says so itself."""
        if self._kind not in _CLASSIFIED or ERROR_TYPE in handle.bare.attributes:
            return {}
        failure: FailureClass | None = getattr(handle.call, "failure", None) or unless_faulty(partial(class_of_raised, error), None)
        return error_attributes(failure) | getattr(handle.call, "provider_error", {})

    def called(self, handle: Op, arguments: Mapping[str, Any]) -> None:
        if handle.bare.request is not None:
            return
        if self._kind == "llm":
            name_model(handle, arguments.get("model"), arguments.get("provider"))
        if self._kind == "llm" and "messages" in arguments:
            handle.builder.set_request(handle, {key: one for key, one in arguments.items() if key != "messages"}, arguments["messages"])
        else:
            handle.request(**{"arguments": dict(arguments)} if "messages" in arguments else arguments)

    def result(self, handle: Op) -> Result:
        return ModelResult(handle) if self._kind == "llm" else OpResult(handle)

    @property
    def kind(self) -> OpKind:
        """Of what kind the op is."""
        return self._kind

    def _again(self, function: Callable[..., Any]) -> OpScope:
        return OpScope(self._kind, self._name or name_of(function), self._attributes, self._block)


@overload
def session(function: F, /) -> F: ...
@overload
def session(agent: str | None = None, *, resume: str | None = None, **attributes: Any) -> SessionScope: ...
def session(agent: Any = None, *, resume: str | None = None, **attributes: Any) -> Any:
    """Record a run of an agent: a root session, or a sub-agent's session when another session is open here.

    It is a decorator, with and without arguments, for functions, coroutines, generators and async generators, and a context manager,
    whose `with` gives an `optree.Session`. The session ends when the block or the function ends: ``ok``, or ``failed`` with the exception,
    which goes on to the caller, or ``cancelled``. A root session is saved under its txn; started by ``optree load TXN -- …``, the first
    root session of the program goes on with that one.

    ```python
    import optree


    @optree.session(agent="reader")
    def read(page: str) -> str:
        return page.upper()


    with optree.session("lead", ticket="A-17") as session:
        read("tides")  # a session inside the session
    print(session.txn, session.totals.tools_run)
    ```

    Args:
        agent (str | None): The agent's name; by default the name of the decorated function, or ``agent``.
        resume: The txn of an earlier root session to go on with, read from the disk; None begins a new one. Where it is not there, or is
            open here or in another process, a new one is begun, whose attributes ``continues`` and ``not_resumed`` name it and say why.
        **attributes: What else is known of the run, for its node: anything that JSON can hold.

    Raises:
        CycleError: The agent calls itself, directly or through others, and `configure` was given ``cycles="block"``.
    """
    try:
        if _decorates(agent):
            return SessionScope(None, {})(agent)
        if not RUNTIME.config.enabled:
            return SwitchedOff(SESSION, SessionScope, _name("session", agent), attributes, resume)
        return SessionScope(_name("session", agent), attributes, resume)
    except RecursionError:  # nothing can be called here
        FAULTS.stack += 1
    except Exception as error:  # noqa: BLE001 - the block or function runs, recorded or not
        fault(error)
    return agent if callable(agent) else IN_SESSION


@overload
def turn(function: F, /) -> F: ...
@overload
def turn(*, user: str | None = None, system: str | None = None, **attributes: Any) -> TurnScope: ...
def turn(function: Any = None, /, *, user: str | None = None, system: str | None = None, **attributes: Any) -> Any:
    """Record a turn of the session that is open here: one request of the user, and all that is done to answer it.

    It is a decorator and a context manager, whose `with` gives an `optree.Turn`. Operations outside of a turn get one of their own.

    Args:
        function (Callable): The function, where the decorator has no arguments.
        user: The user's prompt as the agent got it.
        system: The system prompt in force.
        **attributes: What else is known of the turn, for its node.

    Raises:
        SetupError: Something other than a function is given by position.
    """
    try:
        if function is not None and not _decorates(function):
            raise SetupError(f"turn({function!r}) is not possible: write turn(user=…) or use @turn on a function")  # noqa: TRY301
        if function is None and not RUNTIME.config.enabled:
            return SwitchedOff(TurnScope.unrecorded, TurnScope, user, system, attributes)
        scope = TurnScope(user, system, attributes)
        return scope if function is None else scope(function)
    except RecursionError:
        FAULTS.stack += 1
    except Exception as error:  # noqa: BLE001 - as in `session`
        fault(error)
    return IN_TURN if function is None else function


@overload
def llm(function: F, /) -> F: ...
@overload
def llm(name: str | None = None, /, *, provider: str | None = None, model: str | None = None, **attributes: Any) -> OpScope: ...
def llm(name: Any = None, /, *, provider: str | None = None, model: str | None = None, **attributes: Any) -> Any:
    """Record one request to a model. What a client sends again within it is an attempt of the same operation.

    It is a decorator and a context manager, whose `with` gives an `optree.Op`. Decorated, the function's arguments are the request, with
    ``messages``, ``model`` and ``provider`` understood, and what it returns or streams is the response: answers of OpenAI, Anthropic,
    Gemini, Ollama and LangChain are read for model, tokens, text, reasoning and tool calls. In a `with` block you say these yourself.

    ```python
    import optree

    with optree.session("lead"), optree.turn(user="Why is the sky blue?"):
        with optree.llm(provider="openai", model="gpt-4o") as op:
            op.request(messages=[{"role": "user", "content": "Why is the sky blue?"}])
            op.response("Rayleigh scattering.")
            op.account(input_tokens=12, output_tokens=4, cost_usd=0.0001)
    ```

    Args:
        name (str | None): The operation's name, where neither *provider* nor *model* is given; by default the function's.
        provider: Who is asked, such as ``openai``.
        model: Which model, such as ``gpt-4o``. The operation's name is then ``provider:model``.
        **attributes: What else is known of the request, for its node.
    """
    try:
        if name is None and not attributes and type(provider) is str and type(model) is str and RUNTIME.config.enabled:  # nearly always
            return OpScope("llm", *_of_model(provider, model))
        if _decorates(name):
            return OpScope("llm", None, {})(name)
        if not RUNTIME.config.enabled:
            return SwitchedOff(OpScope.unrecorded, _llm, name, provider, model, attributes)
        return _llm(name, provider, model, attributes)
    except RecursionError:
        FAULTS.stack += 1
    except Exception as error:  # noqa: BLE001 - as in `session`
        fault(error)
    return name if callable(name) else IN_OP


@overload
def tool(function: F, /) -> F: ...
@overload
def tool(name: str | None = None, /, *, provider: str | None = None, **attributes: Any) -> OpScope: ...
def tool(name: Any = None, /, *, provider: str | None = None, **attributes: Any) -> Any:
    """Record one call of a tool.

    It is a decorator and a context manager, whose `with` gives an `optree.Op`. Decorated, the function's arguments are the request, and
    what it returns or yields is the response.

    Args:
        name (str | None): The tool's name; by default the function's.
        provider: Where the tool is from, such as an MCP server. The operation's name is then ``provider:name``.
        **attributes: What else is known of the call, for its node.
    """
    try:
        if _decorates(name):
            return OpScope("tool", None, {})(name)
        if not RUNTIME.config.enabled:
            return SwitchedOff(OpScope.unrecorded, _tool, name, provider, attributes)
        return _tool(name, provider, attributes)
    except RecursionError:
        FAULTS.stack += 1
    except Exception as error:  # noqa: BLE001 - as in `session`
        fault(error)
    return name if callable(name) else IN_OP


def _llm(name: Any, provider: Any, model: Any, attributes: Mapping[str, Any]) -> OpScope:
    provider, model = _name("llm", provider), _name("llm", model)
    label = ":".join(part for part in (provider, model) if part) or _name("llm", name)
    known = {"provider": provider, "model": model, **attributes}
    return OpScope("llm", label, {key: value for key, value in known.items() if value is not None})


def _tool(name: Any, provider: Any, attributes: Mapping[str, Any]) -> OpScope:
    provider, label = _name("tool", provider), _name("tool", name)
    known = {key: value for key, value in {"provider": provider, **attributes}.items() if value is not None}
    return OpScope("tool", f"{provider}:{label}" if provider and label else label, known)


@lru_cache(256)
def _of_model(provider: str, model: str) -> tuple[str | None, Mapping[str, Any], Encoded]:
    """Return the name of a model's op, its attributes, and these as JSON."""
    known = {"provider": provider, "model": model}
    return ":".join(filter(None, (provider, model))) or None, known, Encoded(raw(known))


def _decorates(value: object) -> TypeGuard[Callable[..., Any]]:
    return callable(value) or isinstance(value, classmethod)


def _name(what: str, name: object) -> str | None:
    """Return a name; any other value than a str is reported, and becomes its text."""
    if name is None or isinstance(name, str):
        return name
    message = f"{what}() was given a name that is no text but of type {type(name).__name__}; it is recorded as its text: give a str"
    report_problem(message, happened=True)
    return text(name)
