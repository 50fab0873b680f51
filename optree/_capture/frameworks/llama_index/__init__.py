"""LlamaIndex: runs of agents and workflows are sessions; steps, tools, retrievers, query and chat engines are ops in them.

Its spans and events are read where its dispatchers pass them on, and not by handlers of the root dispatcher: programs replace those, and
an interrupt that is raised in one is lost.
"""

from __future__ import annotations

import functools
import sys
from asyncio import CancelledError, Future, current_task
from collections.abc import Callable, Hashable, Mapping
from types import AsyncGeneratorType, GeneratorType, ModuleType
from typing import Any, Final, cast
from weakref import finalize

from optree._capture.calls.program import program_name
from optree._capture.frameworks.llama_index.models import METHODS, LlamaIndexCall, is_event, members, output_of, query_of, question_of
from optree._capture.frameworks.nesting import OUTSIDE, PLACE, Nesting, given_here, note_run, respond
from optree._capture.hooks import Hook, IsOn, WatchedItems, watched
from optree._tracing import context
from optree._tracing.faults import guarded, unless_faulty
from optree._tracing.recorded import CURRENT_REPLAY, exception_of, note_foreign
from optree._tracing.scopes import OpScope
from optree._values import foreign_type, is_list, member, own_members, text

_DEFAULT_AGENT: Final = "Agent"
_HEX_ID: Final = 37
"""Characters at the end of a span's id, behind the name of its function."""
_MOST_KEPT: Final = 10_000
_KINDS: Final = ("BaseTool", "BaseLLM", "Workflow", "BaseQueryEngine", "BaseChatEngine", "BaseRetriever", "BaseNodePostprocessor")
_OWN_PROGRAMS: Final = "llama_index.core.program."
"""Beginning of the modules whose tools only describe the form of an answer."""


def spans(module: ModuleType, is_on: IsOn) -> list[Hook]:
    """Hook the methods by which dispatchers pass on spans and events, called in the context that these are about."""

    def behind(name: str, told: Callable[..., None], *, is_always: bool) -> Hook:
        function: Any = own_members(module.Dispatcher)[name]

        @functools.wraps(function)
        def run(dispatcher: Any, *args: Any, **kwargs: Any) -> Any:
            found = function(dispatcher, *args, **kwargs)
            if is_always or is_on():
                told(*args, **kwargs)
            return found

        return module.Dispatcher, name, run

    return [
        behind("span_enter", _entered, is_always=False),
        behind("span_exit", _exited, is_always=True),  # what was begun ends, also after `uninstrument`
        behind("span_drop", _dropped, is_always=True),
        behind("event", _told, is_always=True),
    ]


def tools(module: ModuleType, is_on: IsOn) -> list[Hook]:
    """Hook the methods by which agents call tools: in a replay they return what was recorded."""

    def given_first(function: Any) -> Any:
        @functools.wraps(function)
        async def call_tool(agent: Any, ctx: Any, tool: Any, tool_input: Any) -> Any:
            found = _given(tool, tool_input) if CURRENT_REPLAY.answer_tool is not None and is_on() else None
            return await function(agent, ctx, tool, tool_input) if found is None else found

        return call_tool

    name, kinds = "_call_tool", [getattr(module, name, None) for name in ("BaseWorkflowAgent", "AgentWorkflow")]
    return [(kind, name, given_first(own_members(kind)[name])) for kind in kinds if getattr(kind, "__module__", "") == module.__name__]


def _given(tool: Any, sent: Any) -> Any:
    """Return the output of a tool's call in a replay; None for one that runs."""
    here = context.here()
    if getattr(tool, "requires_context", False):  # it changes the run, as a hand-off does
        if here is not None and here.op is not None:
            note_run(here.op, "tools of LlamaIndex that take the context of the run")
        return None
    if (given := given_here()) is None:
        return None
    error = None if given.error is None else exception_of(given.error, "llama_index")
    value = given.value if given.has_value else text(error)
    raised = None if given.error is None or given.error.startswith("tool_error: ") else error  # else the tool said itself that it failed
    return sys.modules["llama_index.core.tools"].ToolOutput(
        content=text(value),
        tool_name=tool.metadata.name,
        raw_input={"args": (), "kwargs": sent} if raised is None else sent,
        raw_output=value,
        is_error=error is not None,
        exception=raised,
    )


class _LlamaIndexRun:
    """A run of a workflow, or of an agent or several; of several it knows which has the conversation."""

    def __init__(self, key: str, workflow: Any, asked: str | None) -> None:
        self.is_agent = _is_a(workflow, "BaseWorkflowAgent")
        self.is_team = _is_a(workflow, "AgentWorkflow")
        self.key, self.asked = key, asked
        agent = workflow.agents[workflow.root_agent] if self.is_team else workflow
        self.agent = text(agent.name) if self.is_team or self.is_agent else type(workflow).__name__
        self.system = getattr(agent, "system_prompt", None)
        self.current = self.agent
        self.place: Hashable = key
        """The node of the agent that has the conversation."""
        self._handed = 0

    def hand_over(self, agent: str) -> None:
        """Let another agent go on, in a session of its own; the first agent goes on in the run's session."""
        if agent == self.current:
            return
        before, self.current = self.current, agent
        self.leave()
        if agent != self.agent:
            self._handed += 1
            _SPANS.nesting.begin_agent((self.key, self._handed), agent, self.asked, self.key, handed_over_by=before)
            self.place = self.key, self._handed

    def leave(self) -> None:
        """End the session of the agent that had the conversation, unless it is the run's."""
        if self.place != self.key:
            _SPANS.nesting.end(self.place)
            self.place = self.key


class _LlamaIndexSpans:
    """What is open, by the ids of LlamaIndex's spans."""

    def __init__(self) -> None:
        self.nesting = Nesting()
        self.parents: dict[Hashable, Hashable] = {}
        """By open span, of whatever kind, its parent."""
        self.runs: dict[Hashable, _LlamaIndexRun] = {}
        self.calls: dict[Hashable, LlamaIndexCall] = {}
        self.going: dict[Hashable, tuple[Hashable, ...]] = {}
        """Runs, calls of models, and answers that are being read, with the spans around them: these may exit first."""
        self.late: dict[Hashable, None] = {}
        """Nodes whose spans have exited, and which end with the last of those."""
        self.written: dict[Hashable, None] = {}
        """Chats whose answers were read to their end."""

    def above(self, span: Hashable) -> Hashable:
        """Return the innermost node around a *span*, `OUTSIDE` without one; None if only the context tells, as the span is not known."""
        while self.nesting.scope(span) is None:
            if span is None or span not in self.parents:
                return OUTSIDE if span is None else None
            span = self.parents[span]
        return span

    def around(self, span: Hashable) -> tuple[Hashable, ...]:
        """Return a span and those around it, the innermost first."""
        found = list[Hashable]()
        while span is not None and span not in found:
            found.append(span)
            span = self.parents.get(span)
        return tuple(found)

    def report(self, key: Hashable, value: Any) -> None:
        """Record the result of a node."""
        scope = self.nesting.scope(key)
        if scope is None or value is None:
            return
        if scope.op is None:
            scope.session.builder.set_final_report(value, with_end=True)
        elif scope.finish is not None:  # else it is a place and no op of its own
            respond(scope.op, value)

    def end(self, key: Hashable, error: BaseException | None = None) -> None:
        """End a node, and those that have waited for it alone."""
        self.late.pop(key, None)
        self.written.pop(key, None)
        run = self.runs.pop(key, None)
        if run is not None and error is None:
            run.leave()
        self.nesting.fail(key, error)
        self.over(key)

    def left(self, key: Hashable) -> None:
        """End a node whose span has exited, unless something goes on that was begun in it."""
        if any(key in around for around in list(self.going.values())):
            self.late[key] = None
        else:
            self.end(key)

    def over(self, key: Hashable) -> None:
        """End the nodes that have waited for this one alone."""
        for node in self.going.pop(key, ()):
            if node in self.late and not any(node in around for around in list(self.going.values())):
                self.end(node)

    def end_call(self, key: Hashable, answer: Any, error: BaseException | None = None) -> None:
        """End a call of a model."""
        if (call := self.calls.pop(key, None)) is not None:
            call.end(answer, error)
            self.over(key)


_SPANS: Final = _LlamaIndexSpans()


@guarded
def _entered(id_: str, bound_args: Any, instance: Any = None, parent_id: str | None = None, **_more: Any) -> None:
    _SPANS.parents[id_] = parent_id
    while len(_SPANS.parents) > _MOST_KEPT:
        del _SPANS.parents[next(iter(_SPANS.parents))]
    name = id_[:-_HEX_ID].rpartition(".")[2]
    if instance is None:
        if (run := _SPANS.runs.get(parent_id)) is not None:
            _step_began(id_, run, name, bound_args.arguments)
        return
    known = _NODES.get(_kind_of(cast("Any", type(instance))))
    if known is not None and name in known[0]:
        known[1](id_, instance, bound_args.arguments, parent_id)


@guarded
def _exited(id_: str, bound_args: Any = None, instance: Any = None, result: Any = None, **_more: Any) -> None:  # noqa: ARG001 - as it is called
    parent = _SPANS.parents.pop(id_, None)
    if (call := _SPANS.calls.get(id_)) is not None:
        if isinstance(result, (GeneratorType, AsyncGeneratorType)):
            call.streams(result, functools.partial(_SPANS.end_call, id_))
        else:
            _SPANS.end_call(id_, result)
    elif (scope := _SPANS.nesting.scope(id_)) is not None:
        output = member(result, "tool_output", result)
        if (op := scope.op) is not None and op.bare.kind == "tool" and scope.finish is not None and not is_list(output):
            _tool_ended(id_, op, output, is_awaited=result is None and parent in _SPANS.runs)
            return
        if "Streaming" in type(result).__name__:
            _SPANS.nesting.leave(id_)
            _goes_on(id_, result, _SPANS.around(parent))
            return
        value = output_of(result)
        if (run := _SPANS.runs.get(id_)) is not None:
            _SPANS.report(run.place, value)
        _SPANS.report(id_, value)
        _SPANS.left(id_)
    elif _is_written(id_):
        _written(parent, instance, None)


@guarded
def _dropped(id_: str, bound_args: Any = None, instance: Any = None, err: BaseException | None = None, **_more: Any) -> None:  # noqa: ARG001 - as above
    parent = _SPANS.parents.pop(id_, None)
    if id_ in _SPANS.calls:
        _SPANS.end_call(id_, None, err)
    elif _is_written(id_):
        _written(parent, instance, err)
    elif type(err).__name__ == "WaitingForEvent":  # the step is called again when the event has come
        _waits(_SPANS.nesting.op(id_))
        _SPANS.end(id_)
    else:
        _SPANS.end(id_, err)


def _goes_on(key: str, answer: Any, around: tuple[Hashable, ...]) -> None:
    """Keep a node open until the program, or a thread of a chat engine, has read its answer."""
    _SPANS.going[key] = around
    if hasattr(answer, "chat_stream"):
        finalize(answer, _finished, key, None, GeneratorExit())
        if _SPANS.written.pop(key, key) is None:
            _finished(key, answer.response)
        return
    stream = answer.response_gen
    if not isinstance(stream, (GeneratorType, AsyncGeneratorType)):
        _finished(key, None)
        return
    read: Any = watched if isinstance(stream, GeneratorType) else WatchedItems
    answer.response_gen = read(stream, _NodeStream(key))
    finalize(answer.response_gen, _finished, key, None, GeneratorExit())


class _NodeStream:
    """The reading of a stream: each piece is made within a node, which ends with the last one."""

    def __init__(self, key: str) -> None:
        self._node, self._place = key, (key, "reading")
        self._said = list[Any]()

    def begin(self) -> None:
        """Make the node the current place, while a piece is made."""
        _SPANS.nesting.begin(self._place, PLACE, self._node)

    goes_on = begin

    def take(self, piece: Any) -> None:
        """Keep a piece, which the program is about to have."""
        _SPANS.nesting.end(self._place)
        self._said.append(piece)

    def over(self, error: BaseException | None) -> None:
        """End the node with what was read."""
        _SPANS.nesting.end(self._place)
        _finished(self._node, self._said, error)


def _is_written(id_: str) -> bool:
    """Tell whether a span is of the function that reads the answer of a chat into its history."""
    return "write_response_to_history" in id_


def _written(chat: Hashable, answer: Any, error: BaseException | None) -> None:
    """End the node of a chat, which may not have returned its answer yet."""
    if _SPANS.nesting.scope(chat) is not None:
        _SPANS.written[chat] = None
        _finished(chat, answer.response, error)


@guarded
def _finished(key: Hashable, said: Any, error: BaseException | None = None) -> None:
    """End a node whose answer was read."""
    if key in _SPANS.going:
        _SPANS.report(key, "".join(map(text, said)) if is_list(said) else said or None)
        _SPANS.end(key, error)


@guarded
def _told(event: Any, **_more: Any) -> None:
    what, key = type(event).__name__, event.span_id
    if what == "SpanCancelledEvent":
        _SPANS.end(key, CancelledError(event.reason))
    elif (call := _SPANS.calls.get(key)) is None:
        return
    elif what in {"LLMChatStartEvent", "LLMCompletionStartEvent"}:
        call.asked(getattr(event, "messages", None) or event.prompt, event.additional_kwargs)
    elif what in {"LLMChatInProgressEvent", "LLMCompletionInProgressEvent"}:
        call.piece(event.response)
    elif what in {"LLMChatEndEvent", "LLMCompletionEndEvent"}:
        _SPANS.end_call(key, event.response)
    elif what == "ExceptionEvent":
        _SPANS.end_call(key, None, event.exception)


@functools.lru_cache(1000)
def _kind_of(kind: Hashable) -> str:
    """Return which of LlamaIndex's base classes a class has."""
    known: Any = kind
    names = {one.__name__ for one in known.__mro__ if one.__module__.startswith(("llama_index.", "workflows."))}
    return next((name for name in _KINDS if name in names), "")


def _is_a(value: Any, name: str) -> bool:
    return any(one.__name__ == name and one.__module__.startswith("llama_index.") for one in type(value).__mro__)


def _run_began(id_: str, workflow: Any, arguments: Mapping[str, Any], parent: Hashable) -> None:
    run = _SPANS.runs[id_] = _LlamaIndexRun(id_, workflow, question_of(arguments.get("start_event")))
    _SPANS.going[id_] = _SPANS.around(parent)
    name = program_name() if run.agent == _DEFAULT_AGENT and context.here() is None else run.agent
    _SPANS.nesting.begin_agent(id_, name, run.asked, _SPANS.above(parent), system=run.system)
    if (task := current_task()) is not None:  # whose end ends the run, should the hooks be taken out meanwhile
        task.add_done_callback(functools.partial(_run_over, id_))


@guarded
def _run_over(id_: str, task: Future[Any]) -> None:
    if id_ in _SPANS.runs and id_ not in _SPANS.late:
        for call in [key for key in list(_SPANS.calls) if id_ in _SPANS.going.get(key, ())]:
            _SPANS.end_call(call, None, GeneratorExit())
        _SPANS.end(id_, CancelledError() if task.cancelled() else task.exception())


def _step_began(id_: str, run: _LlamaIndexRun, name: str, arguments: Mapping[str, Any]) -> None:
    """Begin an op for a step of a program's workflow; steps of an agent are no ops, only the calls of models and tools in them are."""
    events = {key: one for key, one in arguments.items() if is_event(one)}
    if not run.is_agent and not run.is_team:
        told: dict[str, Any] = unless_faulty(lambda: {type(one).__name__: members(one) for one in events.values()}, {})
        _SPANS.nesting.begin(id_, OpScope("system", f"step {name}", {"type": "step"}), run.key, told or None)
        return
    for event in events.values():
        if run.is_team and (agent := getattr(event, "current_agent_name", None)) is not None:
            run.hand_over(text(agent))
        elif name == "call_tool" and hasattr(event, "tool_kwargs"):
            _SPANS.nesting.begin_tool(id_, text(event.tool_name), event.tool_kwargs, run.place)
    _SPANS.nesting.begin(id_, PLACE, run.place)  # which does nothing where a tool has begun


def _tool_began(id_: str, tool: Any, arguments: Mapping[str, Any], parent: Hashable) -> None:
    above, name = _SPANS.above(parent), text(tool.metadata.name)
    op = _SPANS.nesting.op(above)
    if (op is not None and (op.bare.kind, op.bare.name) == ("tool", name)) or _is_form(tool):
        return  # an agent's step, or another method of the tool, has begun its op
    sent = {**arguments, **arguments.get("kwargs", {})}
    sent.pop("kwargs", None)
    sent.pop(getattr(tool, "ctx_param_name", None) or "", None)
    positional = sent.pop("args", ())
    if positional:
        sent["input"] = positional[0] if len(positional) == 1 else list(positional)
    _SPANS.nesting.begin_tool(id_, name, sent, above, of="tools of LlamaIndex that no agent calls")


def _is_form(tool: Any) -> bool:
    """Tell whether a tool only describes the form in which a model is to answer."""
    return text(getattr(getattr(tool, "real_fn", None), "__module__", "")).startswith(_OWN_PROGRAMS)


def _tool_ended(id_: str, op: Any, output: Any, *, is_awaited: bool) -> None:
    if is_awaited:
        _waits(op)
    said, raw = getattr(output, "content", output), getattr(output, "raw_output", None)
    is_error, foreign = getattr(output, "is_error", False), foreign_type(raw)
    is_same = foreign is None and str(raw) == said
    if said is not None:
        respond(op, raw if is_same else said)
        if not is_same and not is_error:  # the program gets an object, the model a text
            note_foreign(op, foreign or type(raw).__qualname__)
    if (error := getattr(output, "exception", None)) is not None:
        _SPANS.end(id_, error)
    elif is_error:
        _SPANS.nesting.refuse(id_, text(said))
    else:
        _SPANS.left(id_)


def _waits(op: Any) -> None:
    if op is not None:
        op.log("waits for an event")


def _retriever_began(id_: str, retriever: Any, arguments: Mapping[str, Any], parent: Hashable) -> None:
    query = query_of(next(iter(arguments.values()), None))
    _SPANS.nesting.begin_tool(id_, type(retriever).__name__, {"query": query}, _SPANS.above(parent), of="retrievers of LlamaIndex")


def _engine_began(id_: str, engine: Any, arguments: Mapping[str, Any], parent: Hashable) -> None:
    asked, above = query_of(next(iter(arguments.values()), None)), _SPANS.above(parent)
    if context.here() is None:
        _SPANS.nesting.begin_agent(id_, program_name(), asked, above)
        return
    kind = OpScope("system", type(engine).__name__, {"type": "query" if "query" in id_ else "chat"})
    _SPANS.nesting.begin(id_, kind, above, {"query": asked})


def _postprocessor_began(id_: str, postprocessor: Any, _arguments: Mapping[str, Any], parent: Hashable) -> None:
    above, name = _SPANS.above(parent), type(postprocessor).__name__
    op = _SPANS.nesting.op(above)
    if context.here() is not None and (op is None or op.bare.name != name):  # else its other method has begun the op
        _SPANS.nesting.begin(id_, OpScope("system", name, {"type": "postprocessor"}), above)


def _call_began(id_: str, model: Any, arguments: Mapping[str, Any], parent: Hashable) -> None:
    if (call := LlamaIndexCall.begun(model, next(iter(arguments.values()), None))) is None:
        return
    _SPANS.calls[id_], _SPANS.going[id_] = call, _SPANS.around(parent)
    while len(_SPANS.calls) > _MOST_KEPT:
        _SPANS.end_call(next(iter(_SPANS.calls)), None)


_NODES: Final[dict[str, tuple[tuple[str, ...], Callable[[str, Any, Mapping[str, Any], Hashable], None]]]] = {
    "Workflow": (("run",), _run_began),
    "BaseTool": (("__call__", "call", "acall"), _tool_began),
    "BaseRetriever": (("retrieve", "aretrieve"), _retriever_began),
    "BaseQueryEngine": (("query", "aquery"), _engine_began),
    "BaseChatEngine": (("chat", "achat", "stream_chat", "astream_chat"), _engine_began),
    "BaseNodePostprocessor": (("_postprocess_nodes", "_apostprocess_nodes"), _postprocessor_began),
    "BaseLLM": (METHODS, _call_began),
}
"""By base class: the methods whose spans become nodes, and the function that begins these."""
