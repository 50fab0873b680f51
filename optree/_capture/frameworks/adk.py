"""Google's ADK: runs and agents are sessions; tools are ops in them, and so are calls of models that the wire does not see.

Hooks the methods every agent runs through and the plugin manager's tool callbacks. It adds no plugin: programs see and order plugins,
and one may stop those after it.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from types import ModuleType
from typing import Any, Final, cast

from optree._builder import Op, Turn
from optree._capture.calls.observed import one_client_call
from optree._capture.frameworks.nesting import LEFT, FrameworkCall, Nesting, Request
from optree._capture.frameworks.streamed_runs import Events, RunOutcome, StreamedRun
from optree._capture.hooks import Hook, IsOn, Watch, await_within, read_within
from optree._nodes import Status
from optree._tracing import context
from optree._tracing.failures import class_of_raised, class_of_text, error_attributes
from optree._tracing.faults import guarded
from optree._tracing.handles import Session
from optree._tracing.recorded import CURRENT_REPLAY, note_foreign, note_type
from optree._tracing.scopes import OpScope
from optree._values import dumped, is_list, is_object, text
from optree.redaction import redact

_TOOLS: Final = Nesting()
_TRANSFER: Final = "transfer_to_agent"
"""The tool that hands the conversation to another agent."""


def runs(module: ModuleType, is_on: IsOn) -> list[Hook]:
    """Hook the ways to run an agent or a workflow."""

    @guarded
    def recorded(events: Events, runner: Any = None, *_args: Any, **told: Any) -> Events:
        return _AdkRun(text(runner.agent.name), None, {}).around(
            events, _said(told.get("new_message")), getattr(runner.agent, "instruction", None)
        )

    return read_within(module.Runner, ("run_async", "run_live"), recorded, is_on, keeps_kind=False)


def agents(module: ModuleType, is_on: IsOn) -> list[Hook]:
    """Hook what all agents come by, also within others."""

    @guarded
    def recorded(events: Events, agent: Any = None, parent: Any = None, *_args: Any, **told: Any) -> Events:
        name, where, run = text(agent.name), context.here(), _AdkRun.here()
        if run is not None and where is not None and where.op is None and run.above is None and run.agent == name:
            run.handed.pop(name, None)
            return events  # the run's session is its session, also when it gets the conversation back
        above = run if run is None or run.above is None else run.above
        handed_over_by = None if above is None else above.handed.pop(name, None)
        more = {} if handed_over_by is None else {"handed_over_by": handed_over_by}
        return _AdkRun(name, above, more).around(events, _question(told.get("parent_context", parent)), getattr(agent, "instruction", None))

    return read_within(module.BaseAgent, ("run_async", "run_live"), recorded, is_on, keeps_kind=False)


class _AdkRun(StreamedRun):
    """One run: a runner's, or of an agent within it."""

    def __init__(self, agent: str, above: _AdkRun | None, attributes: Mapping[str, Any]) -> None:
        super().__init__(agent, attributes, _AdkAnswer())
        self.above = above
        self.handed: dict[str, str] = {}
        """By the agent that is to get the conversation, the one that hands it over."""
        self.tools: dict[int, Any] = {}
        """Calls that are open: their contexts, by id."""
        self.is_closing = False
        """True once the program wants no more of its events."""
        self.is_left = False
        """True once what it is part of wants no more of them: that is no failure, as after a hand-off."""

    def closed(self) -> None:
        """Take that the program, or the run that this one is part of, wants no more events."""
        self.is_closing = self.above is None
        self.is_left = self.above is not None and not self.above.is_closing

    def ended(self, status: Status, error: str | None) -> tuple[Status, str | None]:
        """Return how a node of it ends; tools that were not heard of again end before."""
        for tool in list(self.tools):
            _TOOLS.end(tool, *(LEFT if status == "ok" else (status, error)))
        self.tools.clear()
        is_in_order = (status == "cancelled" and self.is_left) or (error or "").startswith(_PAUSED)
        return ("ok", None) if is_in_order else (status, error)

    def turn_ends(self, turn: Turn, status: Status, error: str | None) -> None:
        """Record hand-offs that came to nothing."""
        handed, self.handed = self.handed, {}
        for target, source in handed.items() if status == "failed" else ():
            name, known = _hand_off(source, target)
            op, why = turn.builder.begin_op("system", name, turn=turn, attributes=known), class_of_raised(error)
            op.end(status, error, **error_attributes(why))


_PAUSED: Final = "NodeInterruptedError"
"""Raised when a run pauses for human input."""


class _AdkAnswer(RunOutcome):
    """What a run comes to: no text is kept but the last one."""

    __slots__ = ("_said",)

    def __init__(self) -> None:
        super().__init__()
        self._said: Any = None

    def note(self, event: Any) -> None:
        """Keep what an event says, if it is the last to say something."""
        if (output := getattr(event, "output", None)) is not None:
            self._said = output
        elif event.author != "user" and event.is_final_response() and (said := _said(event.content)):
            self._said = said

    def report(self, session: Session) -> None:
        """Take the last of it as the session's report."""
        if self._said is not None:
            session.builder.set_final_report(self._said, with_end=True)


def tools(module: ModuleType, is_on: IsOn) -> list[Hook]:
    """Hook what tells plugins that a tool is called, has answered, or has failed."""

    def hooked(name: str, kind: type[_ToolHook]) -> Hook:
        @guarded
        def watching(_manager: Any, **told: Any) -> Watch | None:
            return kind(told) if is_on() else None

        return module.PluginManager, name, await_within(getattr(module.PluginManager, name), watching)

    return [
        hooked("run_before_tool_callback", _ToolBegins),
        hooked("run_after_tool_callback", _ToolAnswered),
        hooked("run_on_tool_error_callback", _ToolFailed),
    ]


def calls(module: ModuleType, is_on: IsOn) -> list[Hook]:
    """Hook what calls a tool, behind all callbacks that may answer in its place: in a replay it gets what was recorded."""
    name = "_call_tool_async"
    function = getattr(module, name)

    @functools.wraps(function)
    async def call(*args: Any, **kwargs: Any) -> Any:
        where = kwargs.get("tool_context", args[-1] if args else None)
        op = _TOOLS.op(id(where)) if is_on() else None
        given = None if op is None or CURRENT_REPLAY.answer_tool is None else CURRENT_REPLAY.answer_tool(op)
        if given is not None:
            return given.result("google")
        value = None
        try:
            value = await function(*args, **kwargs)
        finally:
            _note_rest(op, value, where)
        return value

    return [(module, name, call)]


@guarded
def _note_rest(op: Op | None, value: Any, where: Any) -> None:
    """Note on a tool's op what a call did beside a result that JSON holds: an object, or a change of the session's state and the like."""
    if op is not None:
        changes = cast("dict[str, Any]", vars(where.actions))
        if op.bare.response is None:
            note_type(op, value)
        else:  # it was told by what runs the tool, as MCP: what ADK gets is another
            note_foreign(op, type(value).__qualname__)
        if any(changes.values()):
            note_foreign(op, type(where.actions).__qualname__)


def cancelled(module: ModuleType, is_on: IsOn) -> list[Hook]:
    """Hook what tells plugins that a tool's call was cancelled."""

    @guarded
    def watching(**told: Any) -> Watch | None:
        return _ToolFailed({**told, "error": told.get("cancelled")}) if is_on() else None

    return [(module, "notify_tool_cancelled", await_within(module.notify_tool_cancelled, watching))]


class _ToolHook:
    """What plugins are told of a call of a tool."""

    def __init__(self, told: Mapping[str, Any]) -> None:
        self.told, self.key, self.name = told, id(told["tool_context"]), text(told["tool"].name)
        self.run = _AdkRun.here()

    def begin(self) -> None:
        """Take that plugins are told."""

    def returned(self, value: Any) -> None:
        """Take what plugins say to it."""

    def raised(self, error: BaseException) -> None:
        """Take what they raise."""
        self.end(error)

    def open(self) -> None:
        """Begin the op."""
        _TOOLS.begin_tool(self.key, self.name, self.told["tool_args"])
        if self.run is not None:
            self.run.tools[self.key] = self.told["tool_context"]

    def end(self, error: BaseException | None = None) -> None:
        """End it."""
        if self.run is not None:
            self.run.tools.pop(self.key, None)
        _TOOLS.fail(self.key, error)


class _ToolBegins(_ToolHook):
    """A tool is about to be called. A hand-off is no op, unless it fails."""

    @guarded
    def begin(self) -> None:
        """Begin the op; what was left open under the same id is over."""
        if self.name != _TRANSFER:
            _TOOLS.end(self.key, *LEFT)
            self.open()


class _ToolAnswered(_ToolHook):
    """A tool has answered, or something in its place."""

    @guarded
    def returned(self, value: Any) -> None:
        """End its op, with the result."""
        target = self.told["tool_context"].actions.transfer_to_agent
        if target:
            if self.run is not None:
                (self.run.above or self.run).handed[text(target)] = text(self.told["tool_context"].agent_name)
        elif self.name == _TRANSFER:  # it was kept from it
            self.open()
        op = _TOOLS.op(self.key)
        if op is not None and op.bare.response is None:  # else it was told by what runs the tool, as MCP
            op.response(self.told["result"] if value is None else value)
            if value is not None:
                note_foreign(op, "plugin's answer")
        result = self.told["result"]
        why = result.get("error") if is_object(result) else None
        if isinstance(why, str) and why.startswith(f"Invoking `{self.name}()` failed"):  # ADK has not called it
            _TOOLS.refuse(self.key, why)
        self.end()


class _ToolFailed(_ToolHook):
    """A tool has failed, or its call was cancelled."""

    @guarded
    def begin(self) -> None:
        """End its op."""
        if self.name == _TRANSFER and _TOOLS.scope(self.key) is None:
            source, target = text(self.told["tool_context"].agent_name), self.told["tool_args"].get("agent_name")
            name, known = _hand_off(source, target)
            _TOOLS.begin(self.key, OpScope("system", name, known))
        self.end(self.told["error"])


def _hand_off(source: str, target: Any) -> tuple[str, dict[str, Any]]:
    """Return the name and the attributes of the op of one that failed."""
    return f"handoff to {text(target or '?')}", {"type": "handoff", "from": source, "to": target}


def models(module: ModuleType, is_on: IsOn) -> list[Hook]:
    """Hook what calls a model, for those that do it in another way than over HTTP."""
    name = "_run_and_handle_error"  # its output has passed the program's callbacks
    function = getattr(module.BaseLlmFlow, name)

    @functools.wraps(function)
    def run(flow: Any, responses: Any, invocation: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        return function(flow, _noted(responses, request) if is_on() else responses, invocation, request, *args, **kwargs)

    return [(module.BaseLlmFlow, name, run)]


async def _noted(responses: Any, request: Any) -> AsyncGenerator[Any, None]:
    call = _AdkModelCall(request)
    try:
        call.begin()
        with one_client_call():  # retries are attempts of this call
            async with aclosing(responses):
                async for response in responses:
                    if call.has_answered:  # another answer, of the same generator
                        call = _AdkModelCall(request)
                        call.begin()
                    call.take(response)
                    yield response
    except BaseException as error:
        call.over(error)
        raise
    call.over(None)


class _AdkModelCall(FrameworkCall):
    """One call of a model, which ends with the answer: ADK calls the tools that this asks for before it wants to know of more."""

    def __init__(self, request: Any) -> None:
        self._request = request
        self._parts: list[Any] = []
        self._pieces: list[Any] = []
        """Of a stream, as long as there is no whole answer."""
        self._told: dict[str, Any] = {}
        self._refusal: str | None = None
        self.has_answered = False
        """True once it has ended with an answer that was not seen on the wire."""

    @guarded
    def take(self, response: Any) -> None:
        """Take an answer, or a piece of one."""
        parts = _parts(response.content)
        for name in ("usage_metadata", "model_version", "finish_reason"):
            if (found := getattr(response, name, None)) is not None:
                self._told[name] = found
        if response.partial:
            self._pieces += parts
            self._stream(parts)
            return
        self._parts += parts
        if response.error_code:
            self._refusal = ": ".join(filter(None, (text(response.error_code), text(response.error_message or ""))))
        is_seen = self.is_seen
        if is_seen or self._refusal or response.turn_complete or self._told or any(part.function_call for part in parts):
            self.end()
            self.has_answered = not is_seen

    def _stream(self, parts: Any) -> None:
        op = self.op()
        for part in parts:
            if op is not None and part.text:
                (op.think if part.thought else op.chunk)(part.text)

    def over(self, error: BaseException | None) -> None:
        """Take that there is no more, or that ADK wants no more of an answer."""
        super().over(None if isinstance(error, GeneratorExit) and self._parts else error)

    def request(self) -> Request:
        """Return what is sent, as JSON has it."""
        request = self._request
        sent = [_plain(one) for one in request.contents]
        return None, request.model, sent, {} if request.config is None else _plain(request.config)

    def answer(self, value: Any) -> Any:  # noqa: ARG002 - it came in pieces
        """Return the answer; one that has an error's code is a failure."""
        if self._refusal is not None:
            self.how = ("failed", redact(self._refusal), class_of_text(self._refusal))
        return self.partial()

    def partial(self) -> Any:
        """Return as much of the answer as there is, as Gemini gives it."""
        parts = self._parts or self._pieces
        if not parts and not self._told:
            return None
        told = {name: _plain(value) for name, value in self._told.items()}
        reason = told.pop("finish_reason", None)
        candidate = {"content": {"role": "model", "parts": _joined([_plain(part) for part in parts])}}
        return {"candidates": [candidate if reason is None else {**candidate, "finish_reason": reason}], **told}


def _plain(value: Any) -> Any:
    """Return what is sent or got as JSON has it."""
    if not hasattr(value, "model_dump"):
        return getattr(value, "value", value)
    return dumped(functools.partial(value.model_dump, mode="json", exclude_none=True))


def _joined(parts: list[Any]) -> list[Any]:
    """Return parts with the pieces of a text, or of a thought, as one."""
    found: list[Any] = []
    for part in parts:
        before = found[-1] if found else None
        if before is not None and "text" in before and "text" in part and before.get("thought") == part.get("thought"):
            found[-1] = {**before, **part, "text": before["text"] + part["text"]}
        else:
            found.append(part)
    return found


def _said(content: Any) -> str | None:
    """Return the text of a message, without thoughts."""
    return "".join(part.text for part in _parts(content) if part.text and not part.thought) or None


def _parts(content: Any) -> list[Any]:
    parts: list[Any] | None = getattr(content, "parts", None)
    return parts or []


def _question(invocation: Any) -> str | None:
    """Return what an agent is asked: by the program, or by the agent or workflow that it is part of."""
    events = invocation.session.events
    last = events[-1] if is_list(events) and events else None
    asked = _said(last.content) if last is not None and last.author == "user" else None
    return asked or _said(invocation.user_content)
