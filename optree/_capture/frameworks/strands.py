"""Strands Agents: runs of agents, graphs and swarms are sessions; tools and nodes of graphs are ops in them.

The hooks replace the generators that every way to run passes. They add none of Strands' callbacks: a program sees those and orders them, a
callback that raises stops the ones after it, and no callback is told that something was cancelled.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import aclosing
from contextvars import ContextVar
from types import ModuleType
from typing import Any, Final
from weakref import WeakValueDictionary

from optree._builder import Op
from optree._capture.calls.observed import ended_by
from optree._capture.calls.program import program_name
from optree._capture.frameworks.nesting import LEFT, CallNode, FrameworkCall, Nesting, Request, arguments_of, given_here, respond
from optree._capture.frameworks.streamed_runs import Events, RunOutcome, StreamedRun
from optree._capture.hooks import Hook, IsOn, WatchedItems, await_within, read_within
from optree._nodes import Status
from optree._tracing import context
from optree._tracing.context import CURRENT
from optree._tracing.faults import guarded
from optree._tracing.handles import Session
from optree._tracing.recorded import CURRENT_REPLAY, Recorded, exception_of, note_foreign
from optree._tracing.scopes import OpScope
from optree._values import dumped, encode, is_list, is_object, object_of, objects_of, text, text_of

_NO_NAMES: Final = ("Strands Agents", "default_graph", "default_swarm")
"""The names that Strands gives to agents, graphs and swarms for which the program has none."""
_IN_ORDER: Final = ("end_turn", "tool_use", "cancelled", "completed", "failed")
"""Reasons to stop that tell no more than the session's status and report do."""
_BACKGROUND: Final = "strands.background_tasks"
"""The name under which Strands notes, in an agent's state, the tools that run in the background."""
_NESTING: Final = Nesting()
_PARAMETERS: Final = ("temperature", "top_p", "max_tokens", "stop_sequences", "params")
"""Members of a model's configuration that are sent to the model."""


def agents(module: ModuleType, is_on: IsOn) -> list[Hook]:
    """Hook the generator that every way to run an agent reads, and the older `structured_output`, which does not read it."""

    @guarded
    def recorded(events: Events, agent: Any = None, prompt: Any = None, **_told: Any) -> Events:
        return _StrandsRun(_name_of(agent.name, "agent"), agent).around(events, _question_of(prompt), agent.system_prompt)

    @guarded
    def watching(agent: Any, _model: Any = None, prompt: Any = None) -> _StrandsOutputRun | None:
        return _StrandsOutputRun(agent, prompt) if is_on() else None

    kind, name = module.Agent, "structured_output_async"
    return [*read_within(kind, ("stream_async",), recorded, is_on), (kind, name, await_within(getattr(kind, name), watching))]


def graphs(module: ModuleType, is_on: IsOn) -> list[Hook]:
    """Hook the generators that run a graph and a node of it."""

    @guarded
    def recorded(events: Events, _graph: Any = None, node: Any = None, *_args: Any) -> Events:
        return WatchedItems(events, _GraphNode(node.node_id))

    return [*_several(module.Graph, "graph", is_on), *read_within(module.Graph, ("_execute_node",), recorded, is_on)]


def swarms(module: ModuleType, is_on: IsOn) -> list[Hook]:
    """Hook the generator that runs a swarm."""
    return _several(module.Swarm, "swarm", is_on)


def _several(kind: Any, name: str, is_on: IsOn) -> list[Hook]:
    @guarded
    def recorded(events: Events, source: Any = None, task: Any = None, *_args: Any, **_told: Any) -> Events:
        return _StrandsRun(_name_of(source.id, name), source).around(events, _question_of(task), None)

    return read_within(kind, ("stream_async",), recorded, is_on)


def tools(module: ModuleType, is_on: IsOn) -> list[Hook]:
    """Hook what calls a tool within the program's callbacks, and what runs it there: in a replay the recorded result stands in for that."""

    @guarded
    def called(events: Events, agent: Any = None, use: Any = None, *_args: Any, **_told: Any) -> Events:
        return WatchedItems(events, _StrandsTool(agent, use))

    def run(events: Events, call: Any = None, *_args: Any) -> Events:
        return _tool_runs(events, call, module.ToolResultEvent)

    @guarded
    def in_background(_executor: Any, agent: Any = None, _tool: Any = None, where: Any = None, *_args: Any) -> _InBackground | None:
        call = _calls.get((id(agent), where.tool_use["toolUseId"])) if is_on() else None
        return None if call is None else _InBackground(call)

    kind, later, runs = module.ToolExecutor, "_execute_background", "_run_tool"
    found: list[Hook] = [(owner, name, staticmethod(hook)) for owner, name, hook in read_within(kind, ("_stream",), called, is_on)]
    if hasattr(kind, later):  # else it is another release
        found.append((kind, later, await_within(getattr(kind, later), in_background)))
    return [*found, *(read_within(module, (runs,), run, is_on) if hasattr(module, runs) else [])]


def models(module: ModuleType, is_on: IsOn) -> list[Hook]:
    """Hook what calls a model: a call that is not seen on the wire gets an op of its own."""

    @guarded
    def recorded(events: Events, model: Any = None, system: Any = None, messages: Any = None, specs: Any = None, **told: Any) -> Events:
        return WatchedItems(
            events, _StrandsModelCall(model, messages, {"system": system, "tools": specs, "tool_choice": told.get("tool_choice")})
        )

    return read_within(module, ("stream_messages",), recorded, is_on)


class _StrandsOutputRun(CallNode):
    """A run of `Agent.structured_output`, which calls the model once."""

    nesting = _NESTING

    def __init__(self, agent: Any, prompt: Any) -> None:
        self._agent, self._prompt = agent, prompt

    @guarded
    def begin(self) -> None:
        """Begin the session."""
        _NESTING.begin_agent(self, _name_of(self._agent.name, "agent"), _question_of(self._prompt), system=self._agent.system_prompt)

    def record(self, value: Any) -> None:
        """Record the output as the session's report."""
        if (scope := _NESTING.scope(self)) is not None:
            scope.session.builder.set_final_report(dumped(value.model_dump), with_end=True)


class _StrandsStep:
    """An op of a run."""

    def __init__(self) -> None:
        self._run = _StrandsRun.here()

    def begin(self) -> None:
        """Begin the op, and note it as open in the run."""
        self.open()
        if self._run is not None:
            self._run.open.add(self)

    def open(self) -> None:
        """Begin the op."""

    def take(self, event: Any) -> None:
        """Look at an event."""

    def goes_on(self) -> None:
        """Do nothing when another event is asked for."""

    def over(self, error: BaseException | None) -> None:
        """End the op: there are no more events."""
        self._leave()
        _NESTING.fail(self, error)

    def end(self, status: Status, error: str | None) -> None:
        """End the op because the run ends."""
        self._leave()
        _NESTING.end(self, status, error)

    def _leave(self) -> None:
        if self._run is not None:
            self._run.open.discard(self)


class _GraphNode(_StrandsStep):
    """A node of a graph."""

    def __init__(self, name: Any) -> None:
        super().__init__()
        self._name = text(name)

    @guarded
    def open(self) -> None:
        """Begin the op of the node."""
        _NESTING.begin(self, OpScope("system", f"node {self._name}", {"type": "node", "node": self._name}))

    @guarded
    def take(self, event: Any) -> None:
        """End the node as failed if its result says so; where that is an exception, it is raised next and ends the node."""
        result = event.get("node_result")
        if result is not None and _is_failed(result) and not isinstance(result.result, BaseException):
            _NESTING.end(self, "failed", "what ran in it failed, or was cancelled")


class _StrandsTool(_StrandsStep):
    """A call of a tool. A tool by which a swarm hands over, or a model gives a structured output, is recorded as a system op."""

    def __init__(self, agent: Any, use: Any) -> None:
        super().__init__()
        self._agent, self._use = agent, use
        self._goes_on = False

    @guarded
    def open(self) -> None:
        """Begin the op: a hand-off, a structured output, or a tool's call."""
        _calls[id(self._agent), self._use["toolUseId"]] = self
        name, sent, registry = text(self._use["name"]), self._use["input"], self._agent.tool_registry
        tool = registry.dynamic_tools.get(name) or registry.registry.get(name)
        if getattr(getattr(tool, "_tool_func", None), "__module__", None) == "strands.multiagent.swarm":
            target = arguments_of(sent).get("agent_name")
            known = {"type": "handoff", "from": self._agent.name, "to": target}
            _NESTING.begin(self, OpScope("system", f"handoff to {text(target or '?')}", known), arguments=arguments_of(sent))
        elif getattr(tool, "tool_type", None) == "structured_output":
            _NESTING.begin(self, OpScope("system", name, {"type": "output"}), arguments=arguments_of(sent))
        else:
            _NESTING.begin_tool(self, name, sent)

    @guarded
    def take(self, event: Any) -> None:
        """Record the result, or an interrupt: the tool waits for somebody's answer."""
        if (asked := event.get("tool_interrupt_event")) is not None:
            for one in asked["interrupts"]:
                self.waits(one)
        elif event.get("type") == "tool_result":
            self._goes_on = event.backgrounded
            if not self._goes_on:
                self.answered(event.tool_result, event.exception)

    def waits(self, interrupt: Any) -> None:
        """Log that the tool waits for somebody's answer."""
        if (op := _NESTING.op(self)) is not None:
            details = {"reason": interrupt.reason} if op.builder.core.content else None
            op.log(f"waits for an answer: {text(interrupt.name)}", details=details)

    @guarded
    def answered(self, result: Any, error: BaseException | None = None) -> None:
        """Record the result, and end the op."""
        if (op := _NESTING.op(self)) is None:
            return
        content: Any = result.get("content") or []
        only = content[0].get("text") if len(content) == 1 and content[0].keys() == {"text"} else None
        respond(op, content if only is None else only)
        if result.get("status") != "error":
            _NESTING.end(self)
        elif error is not None:
            _NESTING.fail(self, error)
        else:
            _NESTING.refuse(self, only or text(content))

    def over(self, error: BaseException | None) -> None:
        """End the op, unless the tool goes on in the background: then leave its scope."""
        scope = _NESTING.scope(self)
        if error is not None or not self._goes_on or scope is None:
            super().over(error)
        elif CURRENT.get() is scope:
            context.leave(scope)


_calls: Final[WeakValueDictionary[tuple[int, str], _StrandsTool]] = WeakValueDictionary()
"""Calls of tools that are open, by the id of their agent and their own."""


class _InBackground:
    """The work of a tool that goes on in the background while its agent goes on; the tool's op ends with it."""

    def __init__(self, call: _StrandsTool) -> None:
        self._call = call

    @guarded
    def begin(self) -> None:
        """Enter the tool's op: the task may have run another tool before, whose scope is left in its context."""
        if (scope := _NESTING.scope(self._call)) is not None and CURRENT.get() is not scope:
            context.enter(scope)

    def returned(self, value: Any) -> None:
        """Record the result, and end the op."""
        self._call.answered(value)
        self._call.end("ok", None)

    @guarded
    def raised(self, error: BaseException) -> None:
        """End the op: the tool failed, or it waits for somebody's answer."""
        if (asked := getattr(error, "interrupt", None)) is not None:
            self._call.waits(asked)
        self._call.end(*(ended_by(error) if asked is None else ("ok", None)))


async def _tool_runs(events: Events, call: Any, result_event: Any) -> Events:
    """Yield the events of a tool that runs, or in its place the recorded result."""
    op = _op_of(call)
    given = None if op is None else _given(op)
    if given is not None:
        await events.aclose()
        yield _told(given, call, result_event)
        return
    before = _changes(call.agent)
    async with aclosing(events):
        async for event in events:
            yield event
    if op is not None and before != _changes(call.agent):
        note_foreign(op, "change of its agent")


_last_run: ContextVar[tuple[Op, Recorded | None] | None] = ContextVar("optree_strands_tool", default=None)
"""The op of the tool that ran here last, and the recorded result that it got in a replay."""


@guarded
def _op_of(call: Any) -> Op | None:
    """Return the op of a tool that is about to run, and record the arguments that it runs with: the program's callbacks may change them."""
    where, tool = context.here(), _calls.get((id(call.agent), call.tool_use["toolUseId"]))
    op = None if tool is None else _NESTING.op(tool)
    if op is None or op.bare.kind != "tool" or where is None or where.op is not op:  # it may be in a block of the program's
        return None
    sent = arguments_of(call.tool_use["input"])
    if "messages" not in sent and (op.bare.request is None or bytes(op.bare.request.payload) != encode(sent)):
        op.request(**sent)
    return op


def _given(op: Op) -> Recorded | None:
    """Return the recorded result that a tool gets in a replay: the same one again where a callback of the program's has it called again."""
    last = _last_run.get()
    is_again = last is not None and last[0] is op
    if is_again:
        op.log("called again", "WRN")
    given = last[1] if last is not None and is_again else None if CURRENT_REPLAY.answer_tool is None else given_here()
    _last_run.set((op, given))
    return given


def _told(given: Recorded, call: Any, result_event: Any) -> Any:
    """Return a recorded result as the event that Strands has for it."""
    said = given.value if given.has_value else f"Error: {given.error}"
    status = "success" if given.error is None else "error"
    error = None if given.error is None or given.error.startswith("tool_error: ") else exception_of(given.error, "strands")
    content = said if is_list(said) else [{"text": said}]
    return result_event({"toolUseId": text(call.tool_use["toolUseId"]), "status": status, "content": content}, exception=error)


@guarded
def _changes(agent: Any) -> Any:
    """Return a value that differs once a tool has changed its agent's state, or has stopped the agent: such a tool runs in a replay too."""
    state: Any = agent.state._get_version()  # noqa: SLF001 - it tells of none of these
    if getattr(agent, "_background_tasks", None) is not None:
        state = {name: value for name, value in agent.state.get().items() if name != _BACKGROUND}
    return state, agent._deferred_cancel  # noqa: SLF001 - as above


class _StrandsRun(StreamedRun):
    """One run of an agent, a graph or a swarm."""

    def __init__(self, name: str, source: Any) -> None:
        self._how = _StrandsOutcome(self)
        super().__init__(name, {}, self._how)
        self.source = source
        self.open: set[_StrandsStep] = set()
        """Ops that are open in it: of a tool that is cancelled Strands may tell nothing more."""

    def ended(self, status: Status, error: str | None) -> tuple[Status, str | None]:
        """End the ops that are open in the run, and return how its session or turn ends."""
        status, error = self._how.status(status, error)
        for step in list(self.open):
            step.end(*(LEFT if status == "ok" else (status, error)))
        return status, error


class _StrandsOutcome(RunOutcome):
    """Finds the run's status and report in its last event."""

    __slots__ = ("_is_cancelled", "_result", "_run")

    def __init__(self, run: _StrandsRun) -> None:
        super().__init__()
        self._run = run
        self._result: Any = None
        self._is_cancelled = False

    def note(self, event: Any) -> None:
        """Look at an event: the last one has the result."""
        result = event.get("result") if is_object(event) else None
        if hasattr(result, "interrupts"):  # else it is the program's own, which events have as well
            self._result = result
            if getattr(result, "stop_reason", None) == "cancelled":  # else it stops in order, once its tools have answered
                self._is_cancelled = self._run.source.cancel_signal.is_set()

    def status(self, status: Status, error: str | None) -> tuple[Status, str | None]:
        """Return how the run ends. Once the result is there it decides, also if the program closes the stream then."""
        if self._result is None or status == "failed":
            return status, error
        if self._is_cancelled:
            return "cancelled", "Agent.cancel() was called"
        if _is_failed(self._result):
            failures = [one.result for one in self._result.results.values() if isinstance(one.result, BaseException)]
            return "failed", ended_by(failures[-1])[1] if failures else "a node of it failed, or a limit was reached"
        return "ok", None

    def report(self, session: Session) -> None:
        """Record the result as the session's report."""
        if (result := self._result) is None:
            return
        reason = getattr(result, "stop_reason", None) or result.status.value
        if reason not in _IN_ORDER:
            session.builder.set_title(attributes={"stop_reason": reason})
        if not result.interrupts:
            output = getattr(result, "structured_output", None)
            report = text(result).removesuffix("\n") if output is None else dumped(output.model_dump)
            session.builder.set_final_report(report, with_end=True)


def _is_failed(result: Any) -> bool:
    """Tell whether a graph's, a swarm's or a node's result says that it failed."""
    return getattr(getattr(result, "status", None), "value", None) == "failed"


def _name_of(given: Any, otherwise: str) -> str:
    """Return the run's name: the given one, else in a session that of the graph's node around it, or *otherwise*; else the program's."""
    if given not in _NO_NAMES:
        return text(given)
    where = context.here()
    if where is None:
        return program_name()
    return text((where.op.bare.attributes.get("node") if where.op is not None else None) or otherwise)


def _question_of(asked: Any) -> str | None:
    """Return what the user asks: the text, or the texts of the blocks, of the last message, and of answers to interrupts."""
    if isinstance(asked, str) or not is_list(asked):
        return text_of(asked)
    if asked and is_object(asked[-1]) and "role" in asked[-1]:
        return _question_of(asked[-1].get("content"))
    said = [
        one.get("text") or (one["interruptResponse"].get("response") if "interruptResponse" in one else None) for one in objects_of(asked)
    ]
    return "\n".join(text(one) for one in said if one) or None


class _StrandsModelCall(FrameworkCall):
    """One call of a model."""

    def __init__(self, model: Any, messages: Any, parameters: Mapping[str, Any]) -> None:
        self._model, self._messages, self._parameters = model, messages, parameters
        self._answer: Any = None

    @guarded
    def take(self, event: Any) -> None:
        """Record a piece of the answer, or its end. What the program does until it asks for the next piece is not part of the call."""
        self.pauses()
        said, thought = event.get("data"), event.get("reasoningText")
        if "stop" in event:
            self._answer = event["stop"]
        elif (said or thought) and (op := self.op()) is not None:
            (op.chunk if said else op.think)(text(said or thought))

    def request(self) -> Request:
        """Return what is sent, with what the model is configured to send."""
        known = object_of(self._model.get_config())
        sent = {**self._parameters, **{name: known.get(name) for name in _PARAMETERS}}
        messages = [{"role": one["role"], "content": one["content"]} for one in self._messages]
        name = text(known.get("model_id") or type(self._model).__name__)
        return None, name, messages, {name: one for name, one in sent.items() if one}

    def partial(self) -> Any:
        """Return the answer, if all of it had come."""
        if self._answer is None:
            return None
        reason, message, usage, _metrics = self._answer
        self.how = ("cancelled" if reason == "cancelled" else "ok", None, None)
        return {"output": {"message": message}, "stopReason": reason, "usage": _usage(usage)}

    def answer(self, value: Any) -> Any:  # noqa: ARG002 - a stream returns none
        """Return the answer, which came with the last event."""
        return self.partial()


def _usage(usage: Any) -> dict[str, Any]:
    """Return the tokens that a model tells of, with those of the cache beside the input: the total says whether they are within it."""
    read, written = usage.get("cacheReadInputTokens", 0), usage.get("cacheWriteInputTokens", 0)
    sent, answered, total = usage["inputTokens"], usage["outputTokens"], usage["totalTokens"]
    if not (sent or answered or total):
        return {}
    if (read or written) and sent + answered == total:
        return {"inputTokens": sent - read - written, **{name: one for name, one in usage.items() if name != "inputTokens"}}
    return dict(usage)
