"""LlamaIndex: runs of agents and workflows are sessions; steps, tools, retrievers, query and chat engines are ops in them.

Its spans and events are read where its dispatchers pass them on, and not by handlers of the root dispatcher: programs replace those, and
an interrupt that is raised in one is lost.
"""

from __future__ import annotations

import functools
import json
import sys
from asyncio import CancelledError
from collections.abc import Callable, Hashable, Mapping
from contextvars import ContextVar
from types import AsyncGeneratorType, GeneratorType, ModuleType
from typing import Any, Final, cast
from weakref import finalize, ref

from optree._capture.hooks import Hook, IsOn
from optree._capture.nesting import OUTSIDE, PLACE, FrameworkCall, Nesting, given_here, note_run, respond
from optree._capture.observed import TOLD, ended_by
from optree._capture.program import program_name
from optree._tracing import context
from optree._tracing.failures import class_of_error
from optree._tracing.faults import guarded
from optree._tracing.recorded import CURRENT_REPLAY, exception_of, note_foreign
from optree._tracing.scopes import OpScope
from optree._values import dumped, foreign_type, is_list, is_object, own_members, text

_DEFAULT_AGENT: Final = "Agent"
_HEX_ID: Final = 37
"""Characters at the end of a span's id, behind the name of its function."""
_MOST_KEPT: Final = 10_000
_KINDS: Final = ("BaseTool", "BaseLLM", "Workflow", "BaseQueryEngine", "BaseChatEngine", "BaseRetriever", "BaseNodePostprocessor")
_OWN_PROGRAMS: Final = "llama_index.core.program."
"""Beginning of modules whose tools are but the form of an answer."""
_INTEGRATIONS: Final = "llama_index.llms."


def spans(module: ModuleType, is_on: IsOn) -> list[Hook]:
    """Hook what all dispatchers pass spans and events on by, in the context of what they tell of."""

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
        behind("span_exit", _exited, is_always=True),  # what was begun ends, whatever was taken out meanwhile
        behind("span_drop", _dropped, is_always=True),
        behind("event", _told, is_always=True),
    ]


def tools(module: ModuleType, is_on: IsOn) -> list[Hook]:
    """Hook what agents call tools by: in a replay these get what was recorded."""

    def given_first(function: Any) -> Any:
        @functools.wraps(function)
        async def call_tool(agent: Any, ctx: Any, tool: Any, tool_input: Any) -> Any:
            found = _given(tool) if CURRENT_REPLAY.answer_tool is not None and is_on() else None
            return await function(agent, ctx, tool, tool_input) if found is None else found

        return call_tool

    kinds = [kind for name in ("BaseWorkflowAgent", "AgentWorkflow") if (kind := own_members(module).get(name)) is not None]
    name = "_call_tool"
    return [(kind, name, given_first(own_members(kind)[name])) for kind in kinds if cast("Any", kind).__module__ == module.__name__]


def _given(tool: Any) -> Any:
    """Return the output of a tool's call in a replay; None for one that runs."""
    here = context.here()
    if getattr(tool, "requires_context", False):  # it changes the run, as a hand-off does
        if here is not None and here.op is not None:
            note_run(here.op, "tools of LlamaIndex that take the context of the run")
        return None
    if (given := given_here()) is None:
        return None
    error = None if given.error is None else exception_of(given.error, "llama_index")
    said = text(given.value) if given.has_value else text(error)
    kind: Any = sys.modules["llama_index.core.tools"].ToolOutput
    refused = given.error is not None and given.error.startswith("tool_error: ")
    return kind(
        content=said, tool_name=tool.metadata.name, raw_input={}, raw_output=said, is_error=error is not None,
        exception=None if refused else error,
    )  # fmt: skip


class _WorkflowRun:
    """A run of a workflow. Of one of several agents it knows whose turn it is."""

    def __init__(self, key: str, workflow: Any, asked: str | None) -> None:
        self.is_agent = _is_a(workflow, "BaseWorkflowAgent")
        self.is_team = _is_a(workflow, "AgentWorkflow")
        self.key, self.asked = key, asked
        agent = workflow.agents[workflow.root_agent] if self.is_team else workflow
        self.agent = text(agent.name) if self.is_team or self.is_agent else type(workflow).__name__
        self.system = getattr(agent, "system_prompt", None)
        self.current = self.agent
        self.place: Hashable = key
        """The node of the agent whose turn it is."""
        self._handed = 0

    def hand_over(self, agent: str) -> None:
        """Go on with another agent; with the first one the run's session goes on."""
        if agent == self.current:
            return
        before, self.current = self.current, agent
        self.leave()
        if agent != self.agent:
            self._handed += 1
            _SPANS.nesting.begin_agent((self.key, self._handed), agent, self.asked, self.key, handed_over_by=before)
            self.place = self.key, self._handed

    def leave(self, report: Any = None) -> None:
        """End the session of the agent that had the conversation, unless it is the run's."""
        if self.place != self.key:
            _SPANS.report(self.place, report)
            _SPANS.nesting.end(self.place)
            self.place = self.key


class _Spans:
    """What is open, by the ids of LlamaIndex's spans."""

    def __init__(self) -> None:
        self.nesting = Nesting()
        self.parents: dict[Hashable, Hashable] = {}
        """Of each span that is open, whatever it is, the one that it is in."""
        self.runs: dict[Hashable, _WorkflowRun] = {}
        self.calls: dict[Hashable, _ModelCall] = {}
        self.late: dict[Hashable, bool] = {}
        """Nodes that were left, but end with the last stream that was begun in them; true for those that come to what that says."""

    def above(self, span: Hashable) -> Hashable:
        """Return the node that is above in the tree, where *span* is the one that the program is in; None if the context alone knows."""
        while self.nesting.scope(span) is None:
            if span is None or span not in self.parents:
                return OUTSIDE if span is None else None
            span = self.parents[span]
        return span

    def around(self, span: Hashable) -> tuple[Hashable, ...]:
        """Return the spans that one is in, the innermost first."""
        found = list[Hashable]()
        while span is not None and span not in found:
            found.append(span)
            span = self.parents.get(span)
        return tuple(found)

    def report(self, key: Hashable, value: Any) -> None:
        """Record what a node came to."""
        scope = self.nesting.scope(key)
        if scope is None or value is None:
            return
        if scope.op is None:
            scope.session.builder.set_final_report(value, with_end=True)
        elif scope.finish is not None:  # else it is but a place
            respond(scope.op, value)

    def end(self, key: Hashable, error: BaseException | None = None) -> None:
        """End a node."""
        self.late.pop(key, None)
        if error is None and (run := self.runs.get(key)) is not None:
            run.leave()
        self.runs.pop(key, None)
        self.nesting.fail(key, error)

    def left(self, key: Hashable, *, is_stream: bool) -> None:
        """End a node, unless a stream that was begun in it goes on."""
        if any(key in call.within for call in self.calls.values()):
            self.late[key] = is_stream
        else:
            self.end(key)

    def end_call(self, key: Hashable, answer: Any, error: BaseException | None = None) -> None:
        """End a call of a model, and what only waited for that."""
        call = self.calls.pop(key, None)
        if call is None:
            return
        call.end(answer, error)
        for node in call.within if self.late else ():
            if node in self.late and not any(node in other.within for other in self.calls.values()):
                if self.late[node]:
                    self.report(node, _said(answer))
                self.end(node)


_SPANS: Final = _Spans()


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
    methods, began = _NODES.get(_kind_of(type(instance)), ((), None))
    if began is not None and name in methods:
        began(id_, instance, bound_args.arguments, parent_id)


@guarded
def _exited(id_: str, bound_args: Any = None, instance: Any = None, result: Any = None, **_more: Any) -> None:  # noqa: ARG001 - as it is called
    parent = _SPANS.parents.pop(id_, None)
    if (call := _SPANS.calls.get(id_)) is not None:
        if isinstance(result, (GeneratorType, AsyncGeneratorType)):
            call.streams(id_, result)
        else:
            _SPANS.end_call(id_, result)
    elif (scope := _SPANS.nesting.scope(id_)) is not None:
        output = getattr(result, "tool_output", result)
        if (op := scope.op) is not None and op.bare.kind == "tool" and scope.finish is not None and not is_list(output):
            _tool_ended(id_, op, output, is_awaited=result is None and parent in _SPANS.runs)
            return
        value = _output(result)
        if (run := _SPANS.runs.get(id_)) is not None and run.place != id_:
            _SPANS.report(run.place, value)
        _SPANS.report(id_, value)
        _SPANS.left(id_, is_stream=value is None)


@guarded
def _dropped(id_: str, bound_args: Any = None, instance: Any = None, err: BaseException | None = None, **_more: Any) -> None:  # noqa: ARG001 - as above
    _SPANS.parents.pop(id_, None)
    if id_ in _SPANS.calls:
        _SPANS.end_call(id_, None, err)
    elif type(err).__name__ == "WaitingForEvent":  # it is called again when that has come
        _waits(_SPANS.nesting.op(id_))
        _SPANS.end(id_)
    else:
        _SPANS.end(id_, err)


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
def _kind_of(kind: type[Any]) -> str:
    """Return which of LlamaIndex's base classes a class has."""
    names = {one.__name__ for one in kind.__mro__ if one.__module__.startswith(("llama_index.", "workflows."))}
    return next((name for name in _KINDS if name in names), "")


def _is_a(value: Any, name: str) -> bool:
    return any(one.__name__ == name and one.__module__.startswith("llama_index.") for one in type(value).__mro__)


def _run_began(id_: str, workflow: Any, arguments: Mapping[str, Any], parent: Hashable) -> None:
    run = _SPANS.runs[id_] = _WorkflowRun(id_, workflow, _question(arguments.get("start_event")))
    name = program_name() if run.agent == _DEFAULT_AGENT and context.here() is None else run.agent
    _SPANS.nesting.begin_agent(id_, name, run.asked, _SPANS.above(parent), system=run.system)


def _step_began(id_: str, run: _WorkflowRun, name: str, arguments: Mapping[str, Any]) -> None:
    """Begin a step of the program's; of an agent's only what it is for is shown: calls of models and of tools."""
    events = {key: one for key, one in arguments.items() if _is_event(one)}
    if not run.is_agent and not run.is_team:
        _SPANS.nesting.begin(id_, OpScope("system", f"step {name}", {"type": "step"}), run.key)
        if events and (op := _SPANS.nesting.op(id_)) is not None:
            OpScope("system", None, {}).called(op, {type(one).__name__: _members(one) for one in events.values()})
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
        return  # an agent's step has told of it, or one of its own methods
    sent = {**arguments, **arguments.get("kwargs", {})}
    sent.pop("kwargs", None)
    sent.pop(getattr(tool, "ctx_param_name", None) or "", None)
    positional = sent.pop("args", ())
    if positional:
        sent["input"] = positional[0] if len(positional) == 1 else list(positional)
    _SPANS.nesting.begin_tool(id_, name, sent, above, of="tools of LlamaIndex that no agent calls")


def _is_form(tool: Any) -> bool:
    """Tell whether a tool is but the form that a model is to answer in."""
    return text(getattr(getattr(tool, "real_fn", None), "__module__", "")).startswith(_OWN_PROGRAMS)


def _tool_ended(id_: str, op: Any, output: Any, *, is_awaited: bool) -> None:
    if is_awaited:
        _waits(op)
    said = getattr(output, "content", output)
    if said is not None:
        respond(op, said)
    raw = getattr(output, "raw_output", None)
    if raw is not None and not isinstance(raw, str):
        note_foreign(op, foreign_type(raw) or type(raw).__qualname__)
    if (error := getattr(output, "exception", None)) is not None:
        _SPANS.end(id_, error)
    elif getattr(output, "is_error", False):
        _SPANS.nesting.refuse(id_, text(said))
    else:
        _SPANS.left(id_, is_stream=False)


def _waits(op: Any) -> None:
    if op is not None:
        op.log("waits for an event")


def _retriever_began(id_: str, retriever: Any, arguments: Mapping[str, Any], parent: Hashable) -> None:
    query = _query(next(iter(arguments.values()), None))
    _SPANS.nesting.begin_tool(id_, type(retriever).__name__, {"query": query}, _SPANS.above(parent), of="retrievers of LlamaIndex")


def _engine_began(id_: str, engine: Any, arguments: Mapping[str, Any], parent: Hashable) -> None:
    asked, above = _query(next(iter(arguments.values()), None)), _SPANS.above(parent)
    if context.here() is None:
        _SPANS.nesting.begin_agent(id_, program_name(), asked, above)
        return
    _SPANS.nesting.begin(id_, OpScope("system", type(engine).__name__, {"type": "query" if "query" in id_ else "chat"}), above)
    if (op := _SPANS.nesting.op(id_)) is not None:
        OpScope("system", None, {}).called(op, {"query": asked})


def _postprocessor_began(id_: str, postprocessor: Any, _arguments: Mapping[str, Any], parent: Hashable) -> None:
    above, name = _SPANS.above(parent), type(postprocessor).__name__
    op = _SPANS.nesting.op(above)
    if context.here() is not None and (op is None or op.bare.name != name):  # else its other method has told of it
        _SPANS.nesting.begin(id_, OpScope("system", name, {"type": "postprocessor"}), above)


def _call_began(id_: str, model: Any, arguments: Mapping[str, Any], parent: Hashable) -> None:
    around = _call.get()
    if around is not None and around.is_running:
        if around.model is model:  # a method that calls another one of the model's
            return
        around.call.is_seen = True  # it asks another model
    call = _SPANS.calls[id_] = _ModelCall(model, next(iter(arguments.values()), None), _SPANS.around(parent))
    _call.set(call)
    while len(_SPANS.calls) > _MOST_KEPT:
        _SPANS.end_call(next(iter(_SPANS.calls)), None)


class _ModelCall:
    """One call of a model."""

    def __init__(self, model: Any, asked: Any, within: tuple[Hashable, ...]) -> None:
        self.model, self.within = model, within
        self.call = FrameworkCall()
        self._asked, self._more = asked, dict[str, Any]()
        self._is_told = self._is_over = False
        self._stream: ref[Any] | None = None
        module = type(model).__module__
        self._provider = module.split(".")[2] if module.startswith(_INTEGRATIONS) else None

    @property
    def is_running(self) -> bool:
        """True while the model's own code runs here."""
        stream: Any = None if self._stream is None else self._stream()
        is_inside = self._stream is None or getattr(stream, "gi_running", False) or getattr(stream, "ag_running", False)
        return is_inside and not self._is_over

    def asked(self, messages: Any, more: Any) -> None:
        """Take what an event tells that it is asked."""
        self._asked, self._more, self._is_told = messages, more, True

    def streams(self, key: Hashable, stream: Any) -> None:
        """Take that it answers by a stream."""
        self._stream = ref(stream)
        finalize(stream, self._forgotten, key)

    def _forgotten(self, key: Hashable) -> None:
        """End what the program has never begun to read, or what no event tells of."""
        if self._is_told:
            self.call.is_seen = True
        _SPANS.end_call(key, None)

    def piece(self, response: Any) -> None:
        """Stream what comes of an answer."""
        op = self._op()
        if op is None:
            return
        if thought := response.additional_kwargs.get("thinking_delta"):
            op.think(text(thought))
        if response.delta:
            op.chunk(text(response.delta))

    def _op(self) -> Any:
        """Return the op of one that is not seen on the wire."""
        call, model = self.call, self.model
        if self._provider is not None and TOLD.get() is not call:  # it is read elsewhere than it was made: the wire tells of it by itself
            call.is_seen = True
        if call.is_seen:
            return None
        name = getattr(model.metadata, "model_name", None)
        asked = [self._asked] if isinstance(self._asked, str) else self._asked if is_list(self._asked) else []
        sent = {name: one for name in _PARAMETERS if (one := getattr(model, name, None)) not in (None, [])}
        more = {name: _tools_of(one) if name == "tools" else one for name, one in self._more.items() if name not in _INTERNAL}
        return call.begin(
            self._provider, type(model).__name__ if name in (None, "unknown") else text(name), [_message(one) for one in asked], sent | more
        )

    @guarded
    def end(self, answer: Any, error: BaseException | None) -> None:
        """Take the answer, or that none came."""
        self._is_over = True
        found = None
        if self._op() is not None and answer is not None:
            told = getattr(answer, "message", None)
            said = {"role": "assistant", "content": text(answer.text)} if told is None else _message(told)
            choice = {"index": 0, "message": said, "finish_reason": "tool_calls" if said.get("tool_calls") else "stop"}
            found = {"model": getattr(self.model.metadata, "model_name", None), "choices": [choice], **_usage(answer)}
        self.call.failure = class_of_error(error)
        self.call.end(found, *ended_by(error))


_call: ContextVar[_ModelCall | None] = ContextVar("optree_llama_index_call", default=None)
"""The last one that was begun here."""
_PARAMETERS: Final = ("temperature", "top_p", "max_tokens", "seed", "stop", "context_window")
_INTERNAL: Final = ("formatted",)


def _message(said: Any) -> dict[str, Any]:
    """Return a message as providers take it."""
    if isinstance(said, str):
        return {"role": "user", "content": said}
    blocks: list[Any] = list(said.blocks)
    asked_for = [one for one in blocks if one.block_type == "tool_call"]
    content = [{"type": "text", "text": one.text} if one.block_type == "text" else _block(one) for one in blocks if one not in asked_for]
    calls = [
        {"id": one.tool_call_id, "type": "function", "function": {"name": one.tool_name, "arguments": _as_json(one.tool_kwargs)}}
        for one in asked_for
    ]
    found: dict[str, Any] = {
        "role": text(getattr(said.role, "value", said.role)),
        "content": content[0]["text"] if len(content) == 1 and "text" in content[0] else content or None,
    }
    known = {"tool_calls": calls} if calls else {}
    return found | known | {name: one for name, one in said.additional_kwargs.items() if name in _OF_MESSAGE and name not in known}


def _block(block: Any) -> dict[str, Any]:
    """Return a part of a message that is no text: what it is, without the data of images and files."""
    if block.block_type == "thinking":
        return {"type": "thinking", "thinking": block.content}
    return {"type": block.block_type, **{name: text(one) for name in ("url", "path", "title") if (one := getattr(block, name, None))}}


def _as_json(arguments: Any) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments, default=text, ensure_ascii=False)


def _tools_of(offered: Any) -> Any:
    """Return the tools that a model is offered, as providers take them."""
    return [one.metadata.to_openai_tool() if hasattr(one, "metadata") else one for one in offered or []]


def _usage(answer: Any) -> dict[str, Any]:
    """Return the figures of an answer, which are in what the provider gave, or beside it."""
    raw, beside = answer.raw, answer.additional_kwargs
    raw = dumped(raw.model_dump) if hasattr(raw, "model_dump") else raw
    found = {name: one for name in ("usage", "usage_metadata") if is_object(raw) and (one := raw.get(name))}
    return found or ({"usage": {name: beside[name] for name in _FIGURES if name in beside}} if "prompt_tokens" in beside else {})


_OF_MESSAGE: Final = ("name", "tool_call_id", "tool_calls")
"""Members that a message has beside its parts."""
_FIGURES: Final = ("prompt_tokens", "completion_tokens", "total_tokens")


def _said(answer: Any) -> str | None:
    """Return the text of a model's answer."""
    if answer is None:
        return None
    return text(answer.message.content or "" if hasattr(answer, "message") else answer.text)


def _is_event(value: Any) -> bool:
    return hasattr(type(value), "model_fields") and any(one.__module__ == "workflows.events" for one in type(value).__mro__)


def _members(event: Any) -> dict[str, Any]:
    return {name: getattr(event, name, None) for name in (*type(event).model_fields, *event.keys())}


def _output(result: Any) -> Any:
    """Return what something came to; None for a stream, which is still to be read."""
    if "Streaming" in type(result).__name__:
        return None
    if _is_event(result):
        return _output(result.result) if type(result).__name__ == "StopEvent" else _event_output(result)
    if is_list(result):
        return [_node(one) if hasattr(one, "node") else one for one in cast("list[Any]", result)]
    response = getattr(result, "response", None)
    return response if isinstance(response, str) else result


def _event_output(event: Any) -> Any:
    if (said := getattr(event, "response", None)) is not None and hasattr(event, "structured_response"):
        return event.structured_response or text(said.content or "")
    return {type(event).__name__: _members(event)}


def _node(found: Any) -> dict[str, Any]:
    """Return a piece of text that was found."""
    return {"text": found.node.get_content(), "score": found.score, **({"metadata": more} if (more := found.node.metadata) else {})}


def _query(asked: Any) -> str | None:
    """Return what is asked: a text, a query with one, or a message."""
    said = getattr(asked, "query_str", None) or getattr(asked, "content", None) or asked
    return None if said is None else text(said)


def _question(event: Any) -> str | None:
    """Return what the user says: to an agent a message, or the last one of a history; else what a workflow is given."""
    if event is None:
        return None
    told = _members(event)
    if "user_msg" in told:
        history = [one for one in told.get("chat_history") or [] if getattr(one.role, "value", one.role) == "user"]
        return _query(told["user_msg"] or (history[-1] if history else None))
    name, only = next(iter(told.items())) if len(told) == 1 else ("", None)
    return f"{name}: {only}" if isinstance(only, str) else json.dumps(told, default=text, ensure_ascii=False) if told else None


_NODES: Final[dict[str, tuple[tuple[str, ...], Callable[[str, Any, Mapping[str, Any], Hashable], None]]]] = {
    "Workflow": (("run",), _run_began),
    "BaseTool": (("__call__", "call", "acall"), _tool_began),
    "BaseRetriever": (("retrieve", "aretrieve"), _retriever_began),
    "BaseQueryEngine": (("query", "aquery"), _engine_began),
    "BaseChatEngine": (("chat", "achat", "stream_chat", "astream_chat"), _engine_began),
    "BaseNodePostprocessor": (("_postprocess_nodes", "_apostprocess_nodes"), _postprocessor_began),
    "BaseLLM": (
        ("chat", "achat", "stream_chat", "astream_chat", "complete", "acomplete", "stream_complete", "astream_complete"), _call_began,
    ),
}  # fmt: skip
"""By base class: the methods whose spans are told of, and what begins by them."""
