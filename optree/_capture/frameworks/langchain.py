"""LangChain and LangGraph: a handler of their callbacks, for all runs. Graphs are agents' sessions, what runs in them is nested.

The handler is called in the context of what it is told of (`run_inline`), and it is never taken out: it is asked each time whether it
wants to be called.
"""

from __future__ import annotations

import copy
import functools
import importlib
from collections.abc import Callable, Hashable, Mapping
from contextvars import ContextVar
from types import GeneratorType, ModuleType
from typing import Any, Final

from optree._capture.calls.observed import ended_by
from optree._capture.calls.program import program_name
from optree._capture.frameworks.nesting import OUTSIDE, PLACE, FrameworkCall, Nesting, Request, given_instead, respond
from optree._capture.hooks import Hook, IsOn, LastIsOn, WatchedItems, read_within, watched
from optree._tracing import context
from optree._tracing.faults import guarded
from optree._tracing.recorded import CURRENT_REPLAY, Recorded, note_foreign
from optree._tracing.scopes import OpScope
from optree._values import is_list, is_object, object_of, text

_HIDDEN: Final = "langsmith:hidden"
"""Tag of runs that the frameworks do not show."""
_BRANCH: Final = "map:key:"
_ATTEMPT: Final = "retry:attempt:"
"""Beginnings of tags."""
_NODE: Final = "graph:step:"
_DEFAULT_GRAPH: Final = "LangGraph"
_MOST_SKIPPED: Final = 10_000
_registered: Final[list[ModuleType]] = []
_is_on: Final = LastIsOn()


def callbacks(module: ModuleType, is_on: IsOn) -> list[Hook]:
    """Register a handler for all runs."""
    _is_on.last = is_on
    if module not in _registered:
        base = importlib.import_module("langchain_core.callbacks.base").BaseCallbackHandler
        handler = type("OptreeHandler", (_Handler, base), {})()
        module.register_configure_hook(ContextVar("optree_langchain", default=handler), inheritable=True)
        _registered.append(module)
    return []


def graphs(module: ModuleType, is_on: IsOn) -> list[Hook]:
    """Hook what graphs call just before they tell of their run, which looks like any other's."""

    def told(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            found = function(*args, **kwargs)
            if is_on():
                _is_graph.set(True)
            return found

        return run

    names = ("get_callback_manager_for_config", "get_async_callback_manager_for_config")
    streams = _streams(module.Pregel, ("stream", "astream"), is_on, keeps_kind=True)
    return [*((module, name, told(getattr(module, name))) for name in names), *streams]


def chains(module: ModuleType, is_on: IsOn) -> list[Hook]:
    """Hook what chains are streamed by."""
    names = ("_transform_stream_with_config", "_atransform_stream_with_config")  # of which nobody asks what kind they are
    return _streams(module.Runnable, names, is_on, keeps_kind=False)


def _streams(owner: Any, names: tuple[str, ...], is_on: IsOn, *, keeps_kind: bool) -> list[Hook]:
    def recorded(pieces: Any, *_args: Any, **_kwargs: Any) -> Any:
        read: Any = watched if isinstance(pieces, GeneratorType) else WatchedItems
        return read(pieces, _Outside())

    return read_within(owner, names, recorded, is_on, keeps_kind=keeps_kind)


class _Outside:
    """Puts the program outside of a graph, or chain, while it has a piece of the stream: perhaps it reads no further."""

    _left: tuple[context.Scope, context.Scope] | None = None

    def begin(self) -> None:
        """Note where the program is."""
        self._outer = context.CURRENT.get()

    @guarded
    def take(self, _piece: Any) -> None:
        """Put the program where it was."""
        self._left = context.pause(self._outer)

    @guarded
    def goes_on(self) -> None:
        """Go back into the graph, from wherever the program is by now."""
        self._outer = context.CURRENT.get()
        if self._left is not None and self._left[0] is not self._outer:
            context.enter(*self._left)

    @guarded
    def over(self, _error: BaseException | None) -> None:
        """Leave the graph here too: the handler is told of its end, of an asynchronous one in a task of its own."""
        context.here()


def tools(module: ModuleType, is_on: IsOn) -> list[Hook]:
    """Hook what runs a tool: in a replay one runs in its place that gives what was recorded."""
    kind = module.BaseTool
    function, awaited = kind.run, kind.arun

    @functools.wraps(function)
    def run(tool: Any, *args: Any, **kwargs: Any) -> Any:
        return function((_in_place_of(tool) if CURRENT_REPLAY.answer_tool is not None and is_on() else None) or tool, *args, **kwargs)

    @functools.wraps(awaited)
    async def arun(tool: Any, *args: Any, **kwargs: Any) -> Any:
        return await awaited((_in_place_of(tool) if CURRENT_REPLAY.answer_tool is not None and is_on() else None) or tool, *args, **kwargs)

    return [(kind, "run", run), (kind, "arun", arun)]


@guarded
def _in_place_of(tool: Any) -> Any:
    """Return a copy of a tool that runs as the tool does, unless its call gets what was recorded."""
    made = copy.copy(tool)
    told = functools.partial(_told, made)
    made.__dict__["_run"] = given_instead(tool._run, told)  # noqa: SLF001 - what a tool is made of
    made.__dict__["_arun"] = given_instead(tool._arun, told, awaited=True)  # noqa: SLF001 - as above
    return made


def _told(tool: Any, given: Recorded) -> Any:
    """Return what a tool is to return for what was recorded, or raise what it is to raise."""
    if given.error is not None and given.has_value:  # what the model was told
        tool.__dict__["handle_tool_error"] = True
        raise importlib.import_module("langchain_core.tools").ToolException(given.value)
    value = given.result("langchain_core")
    return (value, None) if tool.response_format == "content_and_artifact" else value


_is_graph: ContextVar[bool] = ContextVar("optree_langgraph", default=False)
"""True from then until the run is told of."""


class _Runs:
    """What is open, by the runs' ids."""

    def __init__(self) -> None:
        self.nesting = Nesting()
        self.skipped: dict[Hashable, Hashable] = {}
        """Runs that are no nodes, with the run that they are part of."""
        self.calls: dict[Hashable, _ChainCall] = {}

    def above(self, parent: Hashable) -> Hashable:
        """Return the node that a run is part of."""
        while parent in self.skipped:
            parent = self.skipped[parent]
        return OUTSIDE if parent is None else parent

    def skip(self, run: Hashable, parent: Hashable) -> None:
        """Take a run that is no node."""
        self.skipped[run] = parent
        while len(self.skipped) > _MOST_SKIPPED:
            del self.skipped[next(iter(self.skipped))]

    def end(self, run: Hashable, error: Any = None) -> None:
        """End a run."""
        self.skipped.pop(run, None)
        if not _is_left_in_order(error):
            self.nesting.fail(run, error)
            return
        if (op := self.nesting.op(run)) is not None:
            op.log(f"{type(error).__name__}: {text(error)}")
        self.nesting.end(run)


_RUNS: Final = _Runs()


class _ChainCall(FrameworkCall):
    """A call of a model, with what is said of it."""

    def __init__(self, messages: Any, told: Mapping[str, Any]) -> None:
        self._messages, self._told = messages, told

    def request(self) -> Request:
        """Return what is sent."""
        known: Any = self._told.get("metadata") or {}
        sent: Any = self._told.get("invocation_params") or {}
        parameters = {name: value for name, value in sent.items() if value is not None and name != "_type"}
        return known.get("ls_provider"), known.get("ls_model_name"), _plain(self._messages), parameters


def _call_began(messages: Any, run_id: Any, parent_run_id: Any, told: Mapping[str, Any]) -> None:
    _RUNS.nesting.begin(run_id, PLACE, _RUNS.above(parent_run_id))
    call = _RUNS.calls[run_id] = _ChainCall(messages, told)
    call.begin()
    while len(_RUNS.calls) > _MOST_SKIPPED:
        del _RUNS.calls[next(iter(_RUNS.calls))]


def _call_ended(run_id: Any, answer: Any, error: Any) -> None:
    try:
        if (call := _RUNS.calls.pop(run_id, None)) is not None:
            call.end(answer, None if _is_left_in_order(error) else error)
    finally:
        _RUNS.nesting.end(run_id)


class _Handler:
    """Takes the callbacks. None of them raises."""

    raise_error = False
    run_inline = True

    @property
    def _is_off(self) -> bool:
        return not _is_on()

    ignore_llm = ignore_retry = ignore_chain = ignore_agent = ignore_retriever = ignore_chat_model = ignore_custom_event = _is_off

    @guarded
    def on_chain_start(
        self, serialized: Any, inputs: Any, *, run_id: Any, parent_run_id: Any = None, tags: Any = None, metadata: Any = None, **told: Any
    ) -> None:
        """Begin a session for a graph, and for a chain outside of all sessions; else an op, unless it only holds others."""
        is_graph = _is_graph.get()
        if is_graph:
            _is_graph.set(False)
        name = _name(serialized, told, "chain")
        marks: list[Any] = tags or []
        known: dict[str, Any] = metadata or {}
        above = _RUNS.above(parent_run_id)
        if is_graph:
            name = text(known.get("langgraph_node", name)) if name == _DEFAULT_GRAPH else name
            _RUNS.nesting.begin_agent(run_id, name, _question(inputs), above)
            return
        if above is OUTSIDE and context.here() is None:
            _RUNS.nesting.begin_agent(run_id, program_name() if name.startswith("Runnable") else name, _question(inputs), above)
            return
        branch, attempt = _marked(marks, _BRANCH), _marked(marks, _ATTEMPT)
        is_node = _marked(marks, _NODE) is not None
        if _HIDDEN in marks or (name == "RunnableSequence" and branch is None and attempt is None and above is not OUTSIDE):
            _RUNS.skip(run_id, parent_run_id)
            return
        kind = "node" if is_node else "chain"
        more: dict[str, Any] = {
            "type": told.get("run_type") or kind,
            "step": known.get("langgraph_step") if is_node else None,
            "attempt": attempt,
        }
        label = name if branch is None or is_node else branch
        _RUNS.nesting.begin(run_id, OpScope("system", label, {key: one for key, one in more.items() if one is not None}), above)

    @guarded
    def on_chain_end(self, outputs: Any, *, run_id: Any, **_told: Any) -> None:
        """End it; a session with what it came to."""
        scope = _RUNS.nesting.scope(run_id)
        if scope is not None and scope.op is None and (report := _report(outputs)) is not None:
            scope.session.builder.set_final_report(report, with_end=True)  # which follows
        _RUNS.end(run_id)

    @guarded
    def on_chain_error(self, error: Any, *, run_id: Any, **_told: Any) -> None:
        """End it with an error, or with what a graph is left by in order."""
        _RUNS.end(run_id, error)

    @guarded
    def on_tool_start(
        self, serialized: Any, input_str: Any, *, run_id: Any, parent_run_id: Any = None, inputs: Any = None, **told: Any
    ) -> None:
        """Begin a tool's op, with its arguments."""
        sent = inputs if is_object(inputs) else {"input": input_str}
        _RUNS.nesting.begin_tool(run_id, _name(serialized, told, "tool"), sent, _RUNS.above(parent_run_id))

    @guarded
    def on_tool_end(self, output: Any, *, run_id: Any, **_told: Any) -> None:
        """End it, with its result."""
        op = _RUNS.nesting.op(run_id)
        if op is not None:
            respond(op, output.content if getattr(output, "type", None) == "tool" else output)
            if (artifact := getattr(output, "artifact", None)) is not None:
                note_foreign(op, type(artifact).__qualname__)
        if getattr(output, "status", None) == "error":
            _RUNS.nesting.refuse(run_id, text(output.content))
        _RUNS.end(run_id)

    on_tool_error = on_chain_error

    @guarded
    def on_retriever_start(self, serialized: Any, query: Any, *, run_id: Any, parent_run_id: Any = None, **told: Any) -> None:
        """Begin a retriever's op, which is a tool's."""
        name, above = _name(serialized, told, "retriever"), _RUNS.above(parent_run_id)
        _RUNS.nesting.begin_tool(run_id, name, {"query": query}, above, of="retrievers of LangChain")

    on_retriever_end = on_tool_end
    on_retriever_error = on_chain_error

    @guarded
    def on_chat_model_start(self, _serialized: Any, messages: Any, *, run_id: Any, parent_run_id: Any = None, **told: Any) -> None:
        """Take that a chat model is called."""
        _call_began(messages[0] if messages else [], run_id, parent_run_id, told)

    @guarded
    def on_llm_start(self, _serialized: Any, prompts: Any, *, run_id: Any, parent_run_id: Any = None, **told: Any) -> None:
        """Take that a model that completes text is called."""
        _call_began([("user", prompt) for prompt in prompts], run_id, parent_run_id, told)

    @guarded
    def on_llm_new_token(self, token: Any, *, run_id: Any, **_told: Any) -> None:
        """Stream what a model says that is not seen on the wire."""
        call = _RUNS.calls.get(run_id)
        op = None if call is None else call.op()
        if op is not None and isinstance(token, str) and token:
            op.chunk(token)

    @guarded
    def on_llm_end(self, response: Any, *, run_id: Any, **_told: Any) -> None:
        """Take a model's answer."""
        first = response.generations[0][0] if response.generations and response.generations[0] else None
        _call_ended(run_id, None if first is None else getattr(first, "message", None) or first.text, None)

    @guarded
    def on_llm_error(self, error: Any, *, run_id: Any, **_told: Any) -> None:
        """Take that a model's call failed."""
        _call_ended(run_id, None, error)

    @guarded
    def on_retry(self, retry_state: Any, *, run_id: Any, **_told: Any) -> None:
        """Note that something is tried again."""
        if (op := _RUNS.nesting.op(run_id)) is not None:
            said = ended_by(retry_state.outcome.exception() if retry_state.outcome is not None else None)[1]
            op.log(f"attempt {retry_state.attempt_number} failed: {said}", "WRN")

    @guarded
    def on_custom_event(self, name: Any, data: Any, *, run_id: Any, **_told: Any) -> None:
        """Note what the program tells of itself."""
        if (op := _RUNS.nesting.op(run_id)) is not None:
            op.log(text(name), details=data if is_object(data) else {"data": data})


def _is_left_in_order(error: Any) -> bool:
    """Tell whether an exception is an interrupt, or a command to another graph."""
    return any(kind.__name__ == "GraphBubbleUp" for kind in type(error).__mro__)


def _name(serialized: Any, told: Mapping[str, Any], default: str) -> str:
    found = object_of(serialized)
    path = found.get("id")
    return text(told.get("name") or found.get("name") or (path[-1] if is_list(path) and path else default))


def _marked(tags: Any, beginning: str) -> str | None:
    """Return what follows the *beginning* of a tag."""
    return next((text(tag)[len(beginning) :] for tag in tags if text(tag).startswith(beginning)), None)


def _plain(messages: Any) -> list[Any]:
    """Return messages as providers take them."""
    found: Any = importlib.import_module("langchain_core.messages").convert_to_openai_messages(messages)
    return found if is_list(found) else [found]


def _question(asked: Any) -> str | None:
    """Return what the user says, in what a chain or graph is given."""
    if is_object(asked):
        if (messages := asked.get("messages")) is not None:
            return _question(messages)
        texts = [one for one in asked.values() if isinstance(one, str)]
        return texts[0] or None if len(texts) == 1 else None  # a chain that is streamed tells of nothing
    if isinstance(asked, str) or asked is None:
        return asked
    if getattr(asked, "resume", None) is not None:  # a command to go on
        return text(asked.resume)
    if is_list(asked) or hasattr(asked, "content"):
        said = [one.get("content") for one in _plain(asked if is_list(asked) else [asked]) if is_object(one) and one.get("role") == "user"]
        return said[-1] if said and isinstance(said[-1], str) else None
    return None


def _report(outputs: Any) -> Any:
    """Return what a chain or graph came to: of a conversation the last message, which is all that is new."""
    if is_object(outputs) and is_list(outputs.get("messages")) and outputs["messages"]:
        outputs = outputs["messages"][-1]
    return getattr(outputs, "content", outputs)
