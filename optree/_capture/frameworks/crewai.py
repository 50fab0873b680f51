"""CrewAI: its crews, flows and agents are sessions; tasks, methods of flows, tools and guardrails are ops in them.

Events are read in `emit`, not by a handler: handlers run later, in threads. Models are hooked directly: only CrewAI's own reliably
emit events.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Hashable, Mapping
from contextvars import ContextVar
from types import ModuleType
from typing import Any, Final, cast

from optree._builder import Op
from optree._capture.calls.program import asked_last, program_name
from optree._capture.frameworks.nesting import (
    FrameworkCall,
    Nesting,
    Request,
    arguments_of,
    chat_answer,
    given_here,
    given_instead,
    note_run,
    respond,
)
from optree._capture.hooks import Hook, IsOn, LastIsOn, await_within, own_hooks, run_within
from optree._nodes import FROM_CACHE
from optree._providers.messages import json_text
from optree._tracing import context
from optree._tracing.faults import guarded, unless_faulty
from optree._tracing.recorded import CURRENT_REPLAY, Recorded
from optree._tracing.scopes import OpScope
from optree._values import cut, dumped, is_list, is_object, own_members, shortened, subclasses, text, text_of
from optree.redaction import redact

_DEFAULT_CREW: Final = "crew"
_MOST_NAME: Final = 100
_MOST_KEPT: Final = 10_000
_RUN: Final = ("run", "arun", "invoke", "ainvoke")
_OF_MESSAGE: Final = ("role", "content", "name", "tool_calls", "tool_call_id")
"""Members of a message that a provider is sent."""


def events(module: ModuleType, is_on: IsOn) -> list[Hook]:
    """Hook `emit`, which runs in the context of what each event reports."""
    kind = module.CrewAIEventsBus
    function = kind.emit

    @functools.wraps(function)
    def emit(bus: Any, source: Any, event: Any, *args: Any, **kwargs: Any) -> Any:
        found = function(bus, source, event, *args, **kwargs)  # which tells the event its place
        _emitted(source, event, is_on=is_on())
        return found

    return [(kind, "emit", emit)]


def crews(module: ModuleType, is_on: IsOn) -> list[Hook]:
    """Hook a crew's ways to run, for what ends without an event."""
    return _runs(module.Crew, is_on, ("kickoff",), ("akickoff",))


def flows(module: ModuleType, is_on: IsOn) -> list[Hook]:
    """Hook a flow's ways to run."""
    return _runs(module.Flow, is_on, (), ("kickoff_async", "resume_async"))


def agents(module: ModuleType, is_on: IsOn) -> list[Hook]:
    """Hook an agent's ways to run."""
    return _runs(module.Agent, is_on, ("kickoff", "execute_task"), ("kickoff_async", "aexecute_task"))


def tools(module: ModuleType, is_on: IsOn) -> list[Hook]:
    """Hook what runs a tool, whose op an event has begun before: in a replay it gets what was recorded."""
    kinds = [kind for name in ("BaseTool", "Tool", "CrewStructuredTool") if (kind := vars(module).get(name)) is not None]
    members = [(kind, own_members(kind)) for kind in kinds if kind.__module__ == module.__name__]
    hooked = functools.partial(given_instead, result=lambda given: given.result("crewai"), given=functools.partial(_RUNS.given, is_on))
    return [(kind, name, hooked(own[name], awaited=name[0] == "a")) for kind, own in members for name in _RUN if name in own]


def models(module: ModuleType, is_on: IsOn) -> list[Hook]:
    """Hook `call` and `acall` of every LLM class, also of later ones; these keep their hooks after `uninstrument`, doing nothing."""
    base, _is_on.last = module.BaseLLM, is_on
    found = [hook for kind in subclasses(base) for hook in own_hooks(kind, _WAYS, _asked)]
    made_by = own_members(base).get("__init_subclass__")
    if (function := getattr(cast("Any", made_by), "__func__", None)) is not None:

        @functools.wraps(function)
        def made(kind: Any, **options: Any) -> None:
            function(kind, **options)
            _hook_calls(kind)

        found.append((base, "__init_subclass__", classmethod(cast("Any", made))))
    track = base._track_token_usage_internal  # noqa: SLF001 - what models of the program's tell their tokens by

    @functools.wraps(track)
    def tracked(model: Any, usage_data: Any, *args: Any, **kwargs: Any) -> Any:
        if (call := _CrewModelCall.under_way()) is not None and call.model is model:
            call.usage = usage_data
        return track(model, usage_data, *args, **kwargs)

    return [*found, (base, "_track_token_usage_internal", tracked)]


class _CrewRuns:
    """What is open, by the ids of the events that it began with."""

    def __init__(self) -> None:
        self.nesting = Nesting()
        self._began: dict[Hashable, tuple[str, int]] = {}
        """What it is, and the id of the object whose it is."""
        self._skipped: dict[Hashable, Hashable] = {}
        """Events that begin no node, with what they are part of."""
        self._given: dict[str, Recorded] = {}
        """By id of a tool's op, what it got in a replay."""

    def above(self, event: Hashable) -> Hashable:
        """Return the node that an event is part of; None if that is known by the context alone."""
        while event in self._skipped:
            event = self._skipped[event]
        return None if self.nesting.scope(event) is None else event

    def skip(self, event: Any) -> None:
        """Take an event that begins no node."""
        self._skipped[event.event_id] = event.parent_event_id
        while len(self._skipped) > _MOST_KEPT:
            del self._skipped[next(iter(self._skipped))]

    def begin(self, event: Any, what: str, source: Any) -> None:
        """Take an event that begins one."""
        self._began[event.event_id] = what, id(source)
        while len(self._began) > _MOST_KEPT:
            self._began.pop(next(iter(self._began)), None)
        run = _run.get()
        while run is not None and run.source is not source:
            run = run.before
        if run is not None:
            run.begun.append(event.event_id)

    def ended_by(self, event: Any, what: str, source: Any) -> Hashable:
        """Return the node an end event closes. The id it names may be of another node, which ended without an event."""
        key: Hashable = event.started_event_id
        if self._began.get(key, ("",))[0] == what:
            return key
        return next((key for key, began in reversed(list(self._began.items())) if began == (what, id(source))), None)

    def given(self, is_on: IsOn) -> Recorded | None:
        """Return what the tool that is open here gets in a replay: the same where CrewAI calls it again, as after a failure."""
        here = context.here() if CURRENT_REPLAY.answer_tool is not None and is_on() else None
        if here is None or here.op is None:
            return None
        if (found := self._given.get(here.op.id) or given_here()) is not None:
            self._given[here.op.id] = found
        return found

    def _over(self, key: Hashable) -> None:
        self._began.pop(key, None)
        if self._given and (op := self.nesting.op(key)) is not None:
            self._given.pop(op.id, None)

    def end(self, key: Hashable, error: BaseException | None = None) -> None:
        """End it."""
        self._over(key)
        self.nesting.fail(key, error)

    def fail(self, key: Hashable, said: Any) -> None:
        """End what failed by what an event *said* of it, which is often but the text of an exception."""
        self._over(key)
        error = said if isinstance(said, BaseException) else sys.exception()
        if error is said or (error is not None and text(error) in text(said)):
            self.nesting.fail(key, error)
        elif (op := self.nesting.op(key)) is not None and op.bare.kind == "tool":
            self.nesting.refuse(key, text(said))
        else:
            self.nesting.end(key, "failed", redact(cut(text(said))))


_RUNS: Final = _CrewRuns()


class _CrewRun:
    """A running call of a crew, flow or agent; when it returns, nodes still open in it are ended."""

    def __init__(self, source: Any) -> None:
        self.source = source
        self.begun: list[Hashable] = []
        self.before: _CrewRun | None = None

    def begin(self) -> None:
        """Be the one that runs here."""
        self.before = _run.get()
        _run.set(self)

    def returned(self, value: Any) -> None:  # noqa: ARG002 - an event tells what it comes to
        """Take that it is over."""
        self._end(None)

    def raised(self, error: BaseException) -> None:
        """Take that it failed."""
        self._end(error)

    def _end(self, error: BaseException | None) -> None:
        if _run.get() is self:
            _run.set(self.before)
        for key in reversed(self.begun):
            _RUNS.end(key, error)


_run: ContextVar[_CrewRun | None] = ContextVar("optree_crewai_run", default=None)


def _runs(kind: Any, is_on: IsOn, plain: tuple[str, ...], awaited: tuple[str, ...]) -> list[Hook]:
    def watching(source: Any, *_args: Any, **_kwargs: Any) -> _CrewRun | None:
        return _CrewRun(source) if is_on() else None

    own = own_members(kind)
    found = [(kind, name, run_within(own[name], watching)) for name in plain if name in own]
    return [*found, *((kind, name, await_within(own[name], watching)) for name in awaited if name in own)]


@guarded
def _emitted(source: Any, event: Any, *, is_on: bool) -> None:
    what, _, how = event.type.rpartition("_")
    begin = _NODES.get(what)
    if how == "started":
        if begin is None or (what in _OF_FLOWS and _is_inner(source)):
            _RUNS.skip(event)
        elif is_on:
            _RUNS.begin(event, what, source)
            begin(event, _RUNS.above(event.parent_event_id))
    elif begin is not None and how in _ENDS:
        if (key := _RUNS.ended_by(event, what, source)) is not None:
            _ended(key, event, what)
    elif event.type in _OF_CALLS and (call := _CrewModelCall.under_way()) is not None:
        call.told(event)


def _is_inner(source: Any) -> bool:
    """Tell whether a flow is one that CrewAI's agents and memories are made of."""
    return type(source).__module__.startswith("crewai.") and getattr(source, "suppress_flow_events", False) is True


def _crew_began(event: Any, above: Hashable) -> None:
    name = event.crew_name or _DEFAULT_CREW
    if name == _DEFAULT_CREW and context.here() is None:
        name = program_name()
    _RUNS.nesting.begin_agent(event.event_id, text(name), _question(event.inputs), above)


def _flow_began(event: Any, above: Hashable) -> None:
    _RUNS.nesting.begin_agent(event.event_id, text(event.flow_name), _question(event.inputs), above)


def _agent_began(event: Any, above: Hashable) -> None:
    _RUNS.nesting.begin_agent(event.event_id, _name(event.agent.role), text(event.task_prompt), above)


def _agent_alone_began(event: Any, above: Hashable) -> None:
    _RUNS.nesting.begin_agent(event.event_id, _name(event.agent_info.get("role") or "agent"), _question(event.messages), above)


def _task_began(event: Any, above: Hashable) -> None:
    told = {name: said for name in ("description", "expected_output") if isinstance(said := getattr(event.task, name, None), str)}
    name = event.task_name or ""
    if name == told.get("description") and not _RUNS.nesting.has_content(above):
        name = ""  # a task without a name is told by what it asks for
    _step(event, OpScope("system", f"task {_name(name)}".rstrip(), {"type": "task"}), above, told)


def _method_began(event: Any, above: Hashable) -> None:
    given: dict[str, Any] = event.params or {}
    told: dict[str, Any] = unless_faulty(lambda: {name: _output(value) for name, value in given.items()}, {})
    _step(event, OpScope("system", f"method {text(event.method_name)}", {"type": "method"}), above, told)


def _guardrail_began(event: Any, above: Hashable) -> None:
    name = event.guardrail_name or ""
    if name == getattr(event, "guardrail", None) and not _RUNS.nesting.has_content(above):
        name = ""  # one that a model is asked for has but a description
    name = f"guardrail {_name(name)}".rstrip()
    _step(event, OpScope("system", name, {"type": "guardrail", "retry": event.retry_count}), above)


def _tool_began(event: Any, above: Hashable) -> None:
    _RUNS.nesting.begin_tool(event.event_id, text(event.tool_name), event.tool_args, above)


def _memory_asked(event: Any, above: Hashable) -> None:
    _RUNS.nesting.begin_tool(event.event_id, "memory", {"query": event.query}, above, of="memories of CrewAI")


def _knowledge_asked(event: Any, above: Hashable) -> None:
    _step(event, OpScope("tool", "knowledge", {}), above)
    if (op := _RUNS.nesting.op(event.event_id)) is not None:
        note_run(op, "sources of knowledge of CrewAI")


def _step(event: Any, kind: OpScope, above: Hashable, told: Mapping[str, Any] | None = None) -> None:
    """Begin an op, with what it is given; outside of all sessions, an agent's session of the program's name."""
    if above is None and context.here() is None:
        _RUNS.nesting.begin_agent(event.event_id, program_name(), None)
    else:
        _RUNS.nesting.begin(event.event_id, kind, above, told or None)


_NODES: Final[dict[str, Callable[[Any, Hashable], None]]] = {
    "crew_kickoff": _crew_began,
    "flow": _flow_began,
    "method_execution": _method_began,
    "task": _task_began,
    "agent_execution": _agent_began,
    "lite_agent_execution": _agent_alone_began,
    "tool_usage": _tool_began,
    "llm_guardrail": _guardrail_began,
    "memory_query": _memory_asked,
    "knowledge_search_query": _knowledge_asked,
}
"""What begins by an event of this name and `_started`."""
_OF_FLOWS: Final = ("flow", "method_execution")
_ENDS: Final = ("completed", "finished", "failed", "error", "paused")
_RESULTS: Final = ("output", "result", "retrieved_knowledge")


def _ended(key: Hashable, event: Any, what: str) -> None:
    if (failure := getattr(event, "error", None)) is not None and what != "llm_guardrail":
        _RUNS.fail(key, failure)
        return
    scope, outputs = _RUNS.nesting.scope(key), (getattr(event, name, None) for name in _RESULTS)
    output = _output(next((one for one in outputs if one is not None), None))
    if scope is not None and scope.op is not None:
        _record(scope.op, event, what, output)
    elif scope is not None and output is not None:
        scope.session.builder.set_final_report(output, with_end=True)
    if (refusal := getattr(event, "failure", None)) is not None:
        _RUNS.fail(key, getattr(refusal, "message", refusal))
    else:
        _RUNS.end(key)


def _record(op: Op, event: Any, what: str, output: Any) -> None:
    """Record what an op came to."""
    if what == "llm_guardrail" and not event.success:
        op.log(f"{op.bare.name} refused{_said(op, event.error)}", "WRN")
        output = {"success": False, "error": event.error}
    elif what == "memory_query":
        output = [one.record.content for one in event.results]
    elif what == "knowledge_search_query":
        OpScope("tool", None, {}).called(op, {"query": event.query})
    elif event.type.endswith("paused"):
        op.log(f"waits for feedback{_said(op, event.message)}")
    if getattr(event, "from_cache", False):
        op.log(FROM_CACHE)
    if output is not None:
        respond(op, output)


@guarded
def _asked(model: Any, messages: Any = None, *_args: Any, **more: Any) -> _CrewModelCall | None:
    call = _CrewModelCall.under_way()
    if not _is_on() or (call is not None and call.model is model):  # a method that calls its base class's
        return None
    return _CrewModelCall(model, messages, more.get("tools"))


@guarded
def _hook_calls(kind: Any) -> None:
    for owner, name, function in own_hooks(kind, _WAYS, _asked):
        setattr(owner, name, function)


_WAYS: Final = {"call": run_within, "acall": await_within}
_is_on: Final = LastIsOn()


class _CrewModelCall(FrameworkCall):
    """One call of a model."""

    def __init__(self, model: Any, messages: Any, tools: Any) -> None:
        self.model = model
        self.usage: Any = None
        self._messages, self._tools = messages, tools
        self._finish: str | None = None

    def told(self, event: Any) -> None:
        """Take what the model's own events tell of it."""
        if event.type == "llm_call_completed":
            self.usage = event.usage or self.usage
            self._finish = event.finish_reason or self._finish
        elif (op := self.op()) is not None and event.chunk:
            (op.think if event.type == "llm_thinking_chunk" else op.chunk)(text(event.chunk))

    def request(self) -> Request:
        """Return what is sent, without a provider that is but the default of all classes."""
        model = self.model
        is_unnamed = model.provider == "openai" and not type(model).__module__.startswith("crewai.")
        sent = {name: one for name in _PARAMETERS if (one := getattr(model, name, None)) not in (None, [])}
        messages = [{"role": "user", "content": self._messages}] if isinstance(self._messages, str) else self._messages
        kept = [{name: one[name] for name in _OF_MESSAGE if name in one} for one in messages or [] if is_object(one)]
        return None if is_unnamed else model.provider, model.model, kept, {**sent, **({"tools": self._tools} if self._tools else {})}

    def answer(self, value: Any) -> Any:
        """Return the answer, with what the model's events told of it."""
        return chat_answer(self.model.model, [_answer(value)], self.usage, self._finish)


_OF_CALLS: Final = ("llm_call_completed", "llm_stream_chunk", "llm_thinking_chunk")
_PARAMETERS: Final = ("temperature", "top_p", "max_tokens", "seed", "stop", "stream")


def _answer(value: Any) -> dict[str, Any]:
    """Return what a model says, as a message: a text, calls of tools, or an object of a model of pydantic's."""
    if is_list(value):
        calls = [_output(one) for one in value]
        return {"role": "assistant", "content": None, "tool_calls": calls}
    return {"role": "assistant", "content": json_text(_output(value))}


def _output(value: Any) -> Any:
    """Return the text of what a task or a crew comes to, and the members of another object of pydantic's."""
    raw = getattr(value, "raw", None)
    if isinstance(raw, str):
        return raw
    return dumped(value.model_dump) if hasattr(value, "model_dump") and not isinstance(value, type) else value


def _question(asked: Any) -> str | None:
    """Return what the user says: a text, the last in messages, or all inputs, the only one as `name: text`."""
    if is_list(asked):
        return asked_last(asked)[1]
    if is_object(asked):
        name, only = next(iter(asked.items())) if len(asked) == 1 else ("", None)
        return f"{name}: {only}" if isinstance(only, str) else json_text(arguments_of(asked)) if asked else None
    return text_of(asked)


def _said(op: Op, what: Any) -> str:
    """Return what a log line ends with that tells what was said; nothing where that is not recorded."""
    return f": {text(what)}" if op.builder.core.content else ""


def _name(found: Any) -> str:
    """Return a name of what has but a description, of several lines."""
    return shortened(" ".join(text(found).split()), _MOST_NAME)
