"""What frameworks tell of: sessions, turns and ops that begin and end by ids of theirs, and calls of models that the wire may see too.

Whatever is made inside of them (calls over the wire, the program's own ops and log lines) is found by the context variable, as everywhere.
A framework may end a node in another context than it began it in, or never: so its scope is known to be over by what holds it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any, Final, Self
from weakref import ref

from optree._builder import Op
from optree._capture.calls.observed import TOLD, JoinedAnswer, ToldCall, ended_by
from optree._capture.calls.program import PROGRAM
from optree._capture.calls.requests import Asked
from optree._clock import now_ms
from optree._interrupts import pass_on
from optree._nodes import Status
from optree._tracing import context
from optree._tracing.context import CURRENT, Holder, Scope
from optree._tracing.failures import FailureClass, class_of_error, class_of_text, error_attributes
from optree._tracing.faults import SESSION, guarded
from optree._tracing.recorded import CURRENT_REPLAY, Recorded, note_foreign, note_type
from optree._tracing.results import ModelResult
from optree._tracing.runtime import RUNTIME
from optree._tracing.scopes import OpScope, SessionScope, TurnScope
from optree._values import cut, decode, foreign_type, is_object
from optree.redaction import redact

_MOST_OPEN: Final = 10_000
"""Nodes of one framework; of more, those that were begun first are ended: they never will be."""
_TURN: Final = "turn"
Ending = tuple[Status, str | None, FailureClass | None]
"""How a call ended: its status, its error, and the class of that."""
Request = tuple[str | None, str | None, list[Any] | None, Mapping[str, Any]]
"""What a model is asked: its provider, its name, the messages and the parameters."""
LEFT: Final[tuple[Status, str]] = ("cancelled", "what it was part of has ended")
"""How a node ends that was left open."""


class _OpenPlace:
    """Makes the place of a node the current one, without a node of its own."""

    finish = None

    def begin(self, where: Scope | None, holder: Holder | None = None, arguments: object = None) -> Scope:  # noqa: ARG002 - as of a node
        if where is None:
            raise LookupError
        return Scope(where.session, where.turn, where.op, None, holder, None, where.piece, where.budget)

    def undo(self, scope: Scope | None, before: Scope | None) -> None:
        """Do nothing: no node was begun."""


PLACE: Final = _OpenPlace()
OUTSIDE: Final = object()
"""Stands for what is above a node that is part of none of its framework's."""


class ProgramOp(OpScope):
    """An op that is in the program's session where it is outside of all others."""

    def begin(self, before: Scope | None, holder: Holder | None = None, arguments: Mapping[str, Any] | None = None) -> Scope:
        """Begin it."""
        scope = super().begin(before or PROGRAM.place_of_tool(), holder, arguments)
        scope.before = before
        return scope


class _OpenNode:
    """Holds an open scope: without it the scope is over."""

    __slots__ = ("__weakref__", "above", "inside", "nesting", "scope")

    def __init__(self, nesting: Nesting, above: _OpenNode | None) -> None:
        self.nesting, self.above = nesting, above
        self.inside: dict[Hashable, None] = {}
        self.scope: Scope | None = None


def _over() -> None:
    """Return None, as the holder of a scope that is over."""


class Nesting:
    """The nodes that a framework has open, by its ids. No method raises; ids that are not known are passed over."""

    def __init__(self) -> None:
        self._open: dict[Hashable, _OpenNode] = {}
        """Without a lock: a generator that is collected ends its node wherever that happens, be it in the middle of a session's step."""

    @guarded
    def begin(
        self,
        key: Hashable,
        kind: OpScope | SessionScope | TurnScope | _OpenPlace,
        above: Hashable = None,
        arguments: Mapping[str, Any] | None = None,
    ) -> Scope | None:
        """Begin a node: where the program is, if that is directly within the node *above*, else in that one; an op with its *arguments*.

        None while optree is switched off, and where there is no place for it.
        """
        if not RUNTIME.config.enabled or key in self._open:
            return None
        before = context.here()
        parent = None if above is None or above is OUTSIDE else self._open.get((above, _TURN)) or self._open.get(above)
        where = before if above is None else self._place(before, parent)
        if where is None and kind is PLACE:
            return None
        node, scope = _OpenNode(self, parent), None
        try:
            scope = kind.begin(where, ref(node), arguments)
            if scope.session is SESSION:
                return None
            scope.before, scope.finish = before, kind.finish
            node.scope, self._open[key] = scope, node
            if parent is not None:
                parent.inside[key] = None
            context.enter(scope)
        except BaseException:  # an interrupt
            self._open.pop(key, None)
            kind.undo(scope, where)
            raise
        while len(self._open) > _MOST_OPEN:
            self.end(next(iter(self._open)), *LEFT)
        if arguments is not None and scope.op is not None and isinstance(kind, OpScope):
            kind.called(scope.op, arguments)
        return scope

    def _place(self, before: Scope | None, parent: _OpenNode | None) -> Scope | None:
        """Return where a node of *parent* belongs; of None, outside of all nodes that are open here."""
        found = before
        while found is not None and self._node(found) is None:
            found = found.before
        if parent is not None:
            return before if found is not None and self._node(found) is parent else parent.scope
        if found is None:
            return before
        while found is not None and self._node(found) is not None:
            found = found.before
        return found

    def _node(self, scope: Scope) -> _OpenNode | None:
        """Return the node that a scope is of, if it is one of these."""
        node = None if scope.holder is None else scope.holder()
        return node if isinstance(node, _OpenNode) and node.nesting is self else None

    def begin_agent(self, key: Hashable, agent: str, user: str | None, above: Hashable = None, **more: Any) -> None:
        """Begin an agent's session, and the turn of what the *user* asks; *more*: the session's attributes, and the `system` prompt."""
        system = more.pop("system", None)
        if self.begin(key, SessionScope(agent, more), above) is not None:
            self.begin((key, _TURN), TurnScope(user, system, {}), key)

    @guarded
    def begin_tool(self, key: Hashable, name: str, sent: Any, above: Hashable = None, *, of: str = "") -> None:
        """Begin the op of a tool's call, with its arguments; *of*: what it belongs to, whose tools run in a replay too."""
        scope = self.begin(key, ProgramOp("tool", name, {}), above, arguments_of(sent))
        if of and scope is not None and scope.op is not None:
            note_run(scope.op, of)

    def scope(self, key: Hashable) -> Scope | None:
        """Return the scope of a node that is open."""
        node = self._open.get(key)
        return None if node is None else node.scope

    def holds(self, scope: Scope) -> bool:
        """Tell whether a scope is that of a node here."""
        return self._node(scope) is not None

    def op(self, key: Hashable) -> Op | None:
        """Return the op of a node that is one."""
        scope = self.scope(key)
        return None if scope is None else scope.op

    def has_content(self, key: Hashable) -> bool:
        """Tell whether it is recorded what is said in a node; where that is not open, in what is open here."""
        scope = self.scope(key) or context.here()
        return RUNTIME.config.content if scope is None else scope.session.builder.core.content

    @guarded
    def fail(self, key: Hashable, error: BaseException | None) -> None:
        """End a node by what was raised out of it; an op that failed has the class of that."""
        status, said = ended_by(error)
        try:
            op = self.op(key)
            if status == "failed" and op is not None and (why := class_of_error(error)) is not None:
                op.builder.set_op(op, **error_attributes(why))
        finally:
            self.end(key, status, said)

    @guarded
    def refuse(self, key: Hashable, said: str) -> None:
        """End a tool's op that failed by what its result says."""
        told = cut(said)
        if (op := self.op(key)) is not None:
            told = op.builder.core.said(told)
            if (why := class_of_text(said)) is not None:
                op.builder.set_op(op, **error_attributes(why))
        self.end(key, "failed", redact(f"tool_error: {told}"))

    @guarded
    def leave(self, key: Hashable) -> None:
        """Leave a node that stays open, and its turn: what the program does next here is not in it."""
        for one in ((key, _TURN), key):
            if (scope := self.scope(one)) is not None and CURRENT.get() is scope:
                context.leave(scope)

    @guarded
    def rename(self, key: Hashable, other: Hashable) -> None:
        """Give an open node another id."""
        node = self._open.pop(key, None)
        if node is None:
            return
        self._open[other] = node
        if node.above is not None and key in node.above.inside:
            del node.above.inside[key]
            node.above.inside[other] = None

    @guarded
    def end(self, key: Hashable, status: Status = "ok", error: str | None = None) -> None:
        """End a node, and what is left open within it."""
        node = self._open.pop(key, None)
        if node is None:
            return
        for inside in reversed(list(node.inside)):
            own_turn = inside == (key, _TURN)
            self.end(inside, *(LEFT if status == "ok" and not own_turn else (status, error)))
        if node.above is not None:
            node.above.inside.pop(key, None)
        try:
            _end(node, status, error)
        except BaseException:  # an interrupt: what is begun is done whole
            _end(node, status, error)
            raise


def _end(node: _OpenNode, status: Status, error: str | None) -> None:
    scope = node.scope
    if scope is None:
        return
    if status == "ok" and isinstance(failed := getattr(getattr(scope.op, "call", None), "error", None), str):
        status, error = "failed", failed  # a call through MCP, of which the framework tells the model
    if scope.finish is not None:
        scope.finish(scope.handle, status, error)
    if CURRENT.get() is scope:
        context.leave(scope)
    scope.finish, scope.holder = None, _over  # in other contexts it is left by who comes next there


def given_here(sent: Any = None) -> Recorded | None:
    """Return what the call of a tool that is open here, with the arguments *sent*, gets in a replay; None for one that runs.

    Raises `OptreeError` for one that differs.
    """
    answer_tool, here = CURRENT_REPLAY.answer_tool, context.here()
    if answer_tool is None or here is None or here.op is None or here.op.bare.kind != "tool":
        return None
    if sent is not None:
        OpScope("tool", None, {}).called(here.op, arguments_of(sent))
    return answer_tool(here.op)


def given_instead(
    function: Any, result: Callable[[Recorded], Any], given: Callable[[], Recorded | None] = given_here, *, awaited: bool = False
) -> Any:
    """Return what stands in the place of a function that runs a tool: it returns the *result* of what is *given*, if anything is."""

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        found = given()
        return function(*args, **kwargs) if found is None else result(found)

    @functools.wraps(function)
    async def arun(*args: Any, **kwargs: Any) -> Any:
        found = given()
        return await function(*args, **kwargs) if found is None else result(found)

    return arun if awaited else run


def note_run(op: Op, of: str) -> None:
    """Note on a tool's op that it runs in a replay too, by what it is *of*."""
    if CURRENT_REPLAY.answer_tool is not None:
        CURRENT_REPLAY.answer_tool(op, runs=f"{of} are not replayed")


@guarded
def respond(op: Op, value: Any) -> None:
    """Record a tool's result, unless what runs the tool has told one, as MCP: then the framework's is another."""
    if op.bare.response is None:
        op.response(value)
        note_type(op, value)
    else:
        note_foreign(op, foreign_type(value) or type(value).__qualname__)


class CallNode:
    """One call of a framework's function, as a node: a `Watch`. Subclasses say how the node begins, and what of the value is recorded."""

    nesting: Nesting
    """The nodes that are open; this one is found there by the object itself."""

    def begin(self) -> None:
        """Begin the node."""
        raise NotImplementedError

    def record(self, value: Any) -> None:
        """Record what the call returned."""
        if (op := self.nesting.op(self)) is not None:
            respond(op, value)

    @guarded
    def _recorded(self, value: Any) -> None:
        self.record(value)

    def returned(self, value: Any) -> None:
        """End the node with what the call returned."""
        self._recorded(value)
        self.nesting.end(self)

    def raised(self, error: BaseException) -> None:
        """End the node with what the call raised."""
        self.nesting.fail(self, error)


def arguments_of(sent: Any) -> dict[str, Any]:
    """Return a tool's arguments, which may come as JSON."""
    try:
        told = decode(sent.encode()) if isinstance(sent, str) else sent
    except (ValueError, RecursionError) as error:
        pass_on(error)
        told = sent
    return told if is_object(told) else {} if told is None else {"input": told}


def chat_answer(model: Any, messages: Iterable[Any], usage: Any = None, finish: str | None = None) -> dict[str, Any]:
    """Return an answer as OpenAI's chat completions have it, with what a framework tells of it."""
    more = {} if finish is None else {"finish_reason": finish}
    choices = [{"index": at, "message": message, **more} for at, message in enumerate(messages)]
    return {"model": model, "choices": choices, **({"usage": usage} if usage else {})}


class _JoinedAnswer(JoinedAnswer):
    """An answer, as a framework gives it, to an op of the program's."""

    __slots__ = ()
    decoded = False
    returned = ModelResult.returned


class FrameworkCall(ToldCall):
    """A call of a model, as a framework tells of it: what the wire records meanwhile, or, if it does not come by there, an op of its own.

    Within an open llm op of the program's it is that one. One that begins while another is under way here is part of that: a model asks
    another one, and the innermost is recorded. Hooks run functions and streams within it; what differs between frameworks are `request`,
    `answer` and `partial`.
    """

    how: Ending | None = None
    """How it ended, where what was raised does not tell."""
    _where: Scope | None = None
    _began: float | None = None
    _op: Op | None = None
    _is_own = True

    @classmethod
    def under_way(cls) -> Self | None:
        """Return the innermost call of this class that is under way in this context."""
        call = TOLD.get()
        while call is not None and (call.is_over or not isinstance(call, cls)):
            call = call.around
        return call

    def request(self) -> Request:
        """Return what the model is asked."""
        raise NotImplementedError

    def answer(self, value: Any) -> Any:
        """Return the answer that an op is to have, from what the model returned; of a stream that is None."""
        return value

    def partial(self) -> Any:
        """Return what there is of the answer though the call failed."""

    def is_running(self) -> bool:
        """Tell whether the model's own code runs."""
        return True

    @guarded
    def begin(self) -> None:
        """Begin: what is sent over the wire from now on is part of this call."""
        self._where, self._began = context.here(), now_ms()
        self.goes_on()

    def returned(self, value: Any) -> None:
        """Record the answer, and end the call."""
        self.end(value)

    def raised(self, error: BaseException) -> None:
        """End the call as failed."""
        self.end(None, error)

    def over(self, error: BaseException | None) -> None:
        """End the call: there are no more pieces of the answer."""
        self.end(None, error)

    def is_asking(self) -> bool:
        """Tell whether what is asked here is asked by this model's own code, and not by a tool that this calls."""
        return self.is_running() and not self._is_in_tool()

    def _is_in_tool(self) -> bool:
        """Tell whether a tool runs here that was called since this has begun."""
        scope, is_found = context.here(), False
        while scope is not None and scope is not self._where:
            is_found = is_found or (scope.op is not None and scope.op.bare.kind == "tool")
            scope = scope.before
        return is_found and scope is self._where

    def op(self) -> Op | None:
        """Return the op of a call that is not seen on the wire, begun when the call was."""
        if self.is_seen or self._began is None:
            return None
        if self._op is None and RUNTIME.config.enabled:
            provider, model, messages, parameters = self.request()
            open_op = None if self._where is None else self._where.op
            if open_op is not None and open_op.bare.kind == "llm" and open_op.bare.ended_at is None:
                self._op, self._is_own = open_op, False
            else:
                known = {name: value for name, value in (("provider", provider), ("model", model)) if value}
                self._op = self._begun(":".join(known.values()) or "llm", known, messages)
            if self._op is not None and self._op.bare.request is None:
                self._op.builder.set_request(self._op, parameters, messages)
        return self._op

    def _begun(self, name: str, known: Mapping[str, str], messages: list[Any] | None) -> Op | None:
        where = self._where
        if where is None:
            return PROGRAM.begin(OpScope("llm", name, known), Asked("", None, messages, {}, "")).op
        return where.session.builder.begin_op("llm", name, turn=where.turn, parent=where.op, attributes=known, at=self._began)

    @guarded
    def end(self, value: Any = None, error: BaseException | None = None) -> None:
        """End the call and, if it has one of its own, its op: by *how* it ended, or else by the exception."""
        answer = None
        try:
            if self.op() is not None:
                answer = self.answer(value) if error is None else self.partial()
        finally:
            self._ended(answer, error)

    def _ended(self, answer: Any, error: BaseException | None) -> None:
        self.leaves()
        self.is_seen, op, self._op = True, self._op, None
        if op is not None and answer is not None:
            (ModelResult if self._is_own else _JoinedAnswer)(op).returned(answer)
        if op is not None and self._is_own:
            status, said, why = self.how or (*ended_by(error), class_of_error(error))
            op.end(status, said, **error_attributes(why if status == "failed" else None))
            PROGRAM.answered(op)
