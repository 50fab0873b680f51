"""What Claude Code, the child process of the Claude Agent SDK, says and is told: an agent's session with its turns, calls and sub-agents.

It is recorded in a context of its own: what the program does between two messages belongs to the span that
is current in the program.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable
from contextvars import Context, copy_context
from itertools import count
from typing import Any, Final, NamedTuple

from optree._builder import Op
from optree._capture.calls.observed import ended_by
from optree._capture.calls.program import asked_last
from optree._capture.frameworks.claude_agent_sdk.answers import ConversationBill, ToldAnswer
from optree._capture.frameworks.nesting import PLACE, Nesting, respond
from optree._clock import now_ms
from optree._nodes import Status
from optree._providers.messages import texts_of
from optree._tracing import context
from optree._tracing.budgets import common, outside
from optree._tracing.context import Scope
from optree._tracing.failures import FailureClass, class_of_status, error_attributes
from optree._tracing.faults import guarded
from optree._tracing.scopes import SessionScope, TurnScope
from optree._values import cut, decode, is_list, is_object, objects_of, text
from optree.redaction import redact

_AGENT: Final = "claude-code"
_SESSION: Final = "session"
_TURN: Final = (_SESSION, "turn")
_SYNTHETIC: Final = "<synthetic>"
"""The model of what Claude Code says itself."""
_SUB_AGENTS: Final = ("Task", "Agent")
"""Tools that run one."""
_OVER: Final = frozenset({"completed", "failed", "stopped", "killed"})
_REFUSED: Final[dict[str, FailureClass]] = {
    "authentication_failed": "auth",
    "billing_error": "quota",
    "rate_limit": "rate_limit",
    "invalid_request": "invalid",
}
_ABOUT: Final = ("session_id", "model", "cwd", "claude_code_version", "permissionMode")
_OF_RESULT: Final = (
    "subtype", "duration_ms", "duration_api_ms", "num_turns", "session_id", "stop_reason", "terminal_reason", "api_error_status",
    "total_cost_usd", "usage", "modelUsage", "permission_denials", "deferred_tool_use",
)  # fmt: skip
_LEFT: Final[tuple[Status, str]] = ("cancelled", "the program left before the end")
_BROKE_OFF: Final[tuple[Status, str]] = ("failed", "Claude Code ended without a result")


class _AgentState:
    """The agent of the conversation, or a sub-agent by the id of the call that runs it."""

    def __init__(self, key: Hashable, messages: list[Any]) -> None:
        self.key, self.messages = key, messages
        self.asked = now_ms()
        """When the next call's input was complete."""
        self.answer: ToldAnswer | None = None
        self.last: ToldAnswer | None = None
        """The one that has ended last."""
        self.notes: list[str] = []
        """What is to be said of the next call."""
        self.is_in_background = False
        self.turn: _LeftTurn | None = None
        """The turn that is kept open for it."""


class _LeftTurn(NamedTuple):
    """A turn that has its result, and sub-agents that go on."""

    key: Hashable
    status: Status
    error: str | None


class Conversation:
    """What one child process says, and is told. No method raises, but for a prompt that a budget refuses."""

    def __init__(self, system: str | None) -> None:
        self.nesting = Nesting()
        self.is_client = False
        """True for a `ClaudeSDKClient`: inside a session of the program, each exchange is its own session."""
        self._bill = ConversationBill()
        self._main = _AgentState(_SESSION, [])
        self._agents: dict[str, _AgentState] = {}
        self._tools: dict[str, tuple[str, Any]] = {}
        """Calls of tools that are open, with name and arguments."""
        self._waiting: list[str | None] = []
        """What the user said while a turn was open."""
        self._tasks: dict[str, str] = {}
        """Calls of sub-agents by the ids of their tasks."""
        self._asked: dict[str, tuple[str, str]] = {}
        """What was called back and has not answered yet: the tool's call and what is asked, by request."""
        self._about: dict[str, Any] = {}
        self._numbers = count(1)
        self._outcome: tuple[Status, str | None] = ("ok", None)
        self._is_interrupted = self._is_over = False
        self._home = copy_context()
        self._place: object = None
        self._context: Context | None = None
        """The one that the session is open in."""
        self._system = system

    # What the program does

    @guarded
    def write(self, data: Any) -> None:
        """Take what is about to be written to the child."""
        told = decode(data.encode() if isinstance(data, str) else data)
        kind = told.get("type")
        if kind == "user":
            self._prompted(told.get("message"))
        elif kind == "control_request" and told["request"].get("subtype") == "interrupt":
            self._is_interrupted = True
        elif kind == "control_response":
            self._answered(told["response"])

    def _prompted(self, message: Any) -> None:
        here = context.here()
        place = None if here is None else here.handle
        if (budget := outside() or common() if here is None else here.budget) is not None:
            budget.check(here)
        session, is_open = self.nesting.scope(_SESSION), self.nesting.scope(_TURN) is not None
        is_gone = session is not None and session.session.builder.node.ended_at is not None  # with what it was in
        if self._context is not None and (is_gone or (not is_open and place is not self._place)):
            self._finish(*self._outcome)
            is_open = False
        if self._context is None:
            self._open(copy_context(), place)
        said = asked_last([message])[1]
        self._main.messages.append(message)
        self._waiting.append(said)
        if not is_open:
            self._run(self._begin_turn)

    def _open(self, where: Context, place: object) -> None:
        self._context, self._place, self._outcome = where, place, ("ok", None)
        self._run(self.nesting.begin, _SESSION, SessionScope(_AGENT, self._about))

    def _run(self, function: Callable[..., Any], *args: Any) -> None:
        if self._context is not None:
            self._context.run(function, *args)

    def _begin_turn(self) -> None:
        user = self._waiting.pop(0) if self._waiting else None
        self._main.asked = now_ms()
        self.nesting.begin(_TURN, TurnScope(user, self._system, {}), _SESSION)

    @guarded
    def called_back(self, message: Any) -> Hashable:
        """Take that the child calls back, which is done within the tool's op where one is known; returns what stands for that."""
        asked, identity = message["request"], message["request_id"]
        kind, call, what = asked["subtype"], asked.get("tool_use_id"), "can_use_tool"
        if kind == "mcp_message":
            call = self._call_of(asked.get("server_name"), asked.get("message"))
        elif kind == "hook_callback":
            given = asked.get("input")
            what = text(given.get("hook_event_name") if is_object(given) else None) or "a hook"
        if kind in ("can_use_tool", "hook_callback"):
            self._asked[identity] = (text(call or ""), what)
        place = ("called back", identity)
        above = call if call is not None and self.nesting.scope(call) is not None else _SESSION
        return None if self.nesting.begin(place, PLACE, above) is None else place

    def _call_of(self, server: Any, message: Any) -> str | None:
        """Return the call of a tool that a message to a server in the process is."""
        sent = message.get("params") if is_object(message) and message.get("method") == "tools/call" else None
        if not is_object(sent):
            return None
        meta = sent.get("_meta")
        if is_object(meta) and isinstance(found := meta.get("claudecode/toolUseId"), str):
            return found
        name = f"mcp__{server}__{sent.get('name')}"
        open_calls = [call for call, (known, _) in self._tools.items() if known == name]
        same = [call for call in open_calls if self._tools[call][1] == sent.get("arguments")]
        return next(iter(same or open_calls), None)

    def _answered(self, answer: Any) -> None:
        """Note that a permission or a hook has refused a tool's call."""
        call, what = self._asked.pop(text(answer.get("request_id")), ("", ""))
        said = _refusal(answer)
        if what and said is not None and (op := self.nesting.op(call)) is not None:
            op.log(f"{what} refused it: {op.builder.core.said(said)}" if said else f"{what} refused it", "WRN")

    @guarded
    def over(self, *, is_left: bool) -> None:
        """Take that no more will come, since the program has left or since the child has ended."""
        if not self._is_over:
            self._is_over = True
            is_within = self.nesting.scope(_TURN) is not None
            self._finish(*((_LEFT if is_left else _BROKE_OFF) if is_within else self._outcome))

    # What the child says

    @guarded
    def take(self, message: Any) -> None:
        """Take a message."""
        kind = message.get("type")
        if kind == "error":
            self._is_over = True
            error, is_told = message.get("exception"), self._outcome[0] != "ok" and self.nesting.scope(_TURN) is None
            ended = ended_by(error) if isinstance(error, BaseException) else ("failed", redact(text(message.get("error"))))
            self._finish(*(self._outcome if is_told else ended))
        elif kind == "conversation_reset":
            self._main.messages.clear()
            self._bill.restart()
        elif (known := self._of_kind.get(kind)) is not None and not self._is_over:
            if self._context is None and kind != "system":  # of a prompt that was not seen
                self._open(self._home, None)
            if self._context is None:
                known(message)
            elif self.nesting.scope(_SESSION) is not None:  # else optree was switched off
                self._context.run(known, message)
                if self.is_client and kind == "result" and self._place is not None and not (self._waiting or self._agents):
                    self._finish(*self._outcome)  # what it is within may end before the next prompt, or the client

    @functools.cached_property
    def _of_kind(self) -> dict[Any, Callable[[Any], None]]:
        return {
            "assistant": self._assistant,
            "user": self._user,
            "stream_event": self._stream_event,
            "system": self._system_said,
            "result": self._result,
            "rate_limit_event": self._rate_limit,
        }

    def _finish(self, status: Status, error: str | None) -> None:
        """End the session, and all that is open in it."""
        where, self._context = self._context, None
        if where is not None:
            where.run(self._end_all, status, error)

    def _end_all(self, status: Status, error: str | None) -> None:
        for agent in reversed([self._main, *self._agents.values()]):
            self._close(agent, status, error)
            if agent.is_in_background:
                self.nesting.end(agent.key, *(_LEFT if status == "ok" else (status, error)))
        for left in {agent.turn for agent in self._agents.values() if agent.turn is not None}:
            self.nesting.end(*left)
        self._agents.clear()
        self._tools.clear()
        self.nesting.end(_SESSION, status, error)

    def _agent(self, message: dict[str, Any]) -> _AgentState:
        """Return the agent that a message is of."""
        call = message.get("parent_tool_use_id")
        if not isinstance(call, str):
            return self._main
        if call in self._agents:
            return self._agents[call]
        if self.nesting.scope(call) is None:
            return self._begin_agent(call, "agent", None, _SESSION)
        return self._begin_agent(call, self._tools[call][0], None, call, key=("agent", call))  # within a tool that runs one

    def _begin_agent(self, call: str, name: str, prompt: str | None, above: Hashable, *, key: Hashable = None, **about: Any) -> _AgentState:
        agent = self._agents[call] = _AgentState(key or call, [] if prompt is None else [{"role": "user", "content": prompt}])
        self.nesting.begin_agent(agent.key, name, prompt, above, toolCallId=call, **about)
        return agent

    def _turn_of(self, agent: _AgentState) -> Scope | None:
        if agent is self._main and self.nesting.scope(_TURN) is None:
            self._begin_turn()
        return self.nesting.scope((agent.key, "turn"))

    def _assistant(self, message: dict[str, Any]) -> None:
        agent, body = self._agent(message), message["message"]
        blocks = objects_of(body.get("content"))
        identity, model = text(body.get("id") or message.get("uuid")), text(body.get("model") or "")
        if message.get("error"):
            self._refused(agent, text(message["error"]), texts_of(blocks))
        elif model == _SYNTHETIC:
            self._close(agent)
            agent.messages.append({"role": "assistant", "content": blocks})
        else:
            known = (one for one in (agent.answer, agent.last) if one is not None and one.about["id"] == identity)
            answer = next(known, None) or self._begin_answer(agent, identity, model, streamed=False)
            if answer is not None:
                answer.take(body, blocks)
        calls = [block for block in blocks if block.get("type") == "tool_use"]
        if calls and agent.answer is not None and not agent.answer.streamed:
            self._close(agent, is_whole=True)  # what it calls runs from here on
        for block in calls:
            self._call(agent, block)

    def _begin_answer(self, agent: _AgentState, identity: str, model: str, *, streamed: bool) -> ToldAnswer | None:
        self._close(agent)
        op = self._begin_call(agent, model)
        if op is not None:
            about = {"id": identity, "type": "message", "role": "assistant", "model": model}
            agent.answer = ToldAnswer(op, about, streamed=streamed)
        return agent.answer

    def _begin_call(self, agent: _AgentState, model: str) -> Op | None:
        scope = self._turn_of(agent)
        if scope is None:
            return None
        builder, known = scope.session.builder, {"provider": "anthropic", "model": model}
        op = builder.begin_op("llm", f"anthropic:{model}", turn=scope.turn, attributes=known, at=agent.asked)
        self._bill.begin(op, scope)
        builder.set_request(op, {}, list(agent.messages))
        for note in agent.notes:
            op.log(note, "WRN")
        agent.notes = []
        return op

    def _close(self, agent: _AgentState, status: Status = "ok", error: str | None = None, *, is_whole: bool = False) -> None:
        """End the answer that is open, which something else follows."""
        answer, agent.answer = agent.answer, None
        if answer is not None:
            agent.last = answer
            agent.messages.append({"role": "assistant", "content": answer.blocks})
            answer.end(status, error, is_whole=is_whole)
            self._bill.add(answer.op)

    def _refused(self, agent: _AgentState, kind: str, said: str) -> None:
        """Record a call that brought no answer."""
        self._close(agent)
        op = self._begin_call(agent, text(self._about.get("model") or "unknown"))
        if op is not None:
            why = _REFUSED.get(kind)
            op.account(status="failed", cost_usd=None if why is None else 0.0)
            op.end("failed", redact(cut(said or kind)), **error_attributes(why or "model"))
            self._bill.add(op)

    def _call(self, agent: _AgentState, block: dict[str, Any]) -> None:
        """Begin what a model calls: a tool, or a sub-agent."""
        call, name, sent = text(block.get("id")), text(block.get("name") or "tool"), block.get("input")
        if self.nesting.scope(call) is not None:
            return
        if name in _SUB_AGENTS and is_object(sent) and isinstance(sent.get("prompt"), str):
            about = {"description": sent["description"]} if sent.get("description") and self.nesting.has_content(_SESSION) else {}
            self._begin_agent(call, text(sent.get("subagent_type") or "agent"), sent["prompt"], agent.key, **about)
            return
        self.nesting.begin_tool(call, name, sent, agent.key, of="tools of Claude Code")
        self._tools[call] = (name, sent)
        if (op := self.nesting.op(call)) is not None:
            op.builder.set_op(op, toolCallId=call)

    def _stream_event(self, message: dict[str, Any]) -> None:
        agent, event = self._agent(message), message["event"]
        kind = event.get("type")
        if kind == "message_start":
            body = event["message"]
            self._begin_answer(agent, text(body.get("id")), text(body.get("model")), streamed=True)
        answer = agent.answer
        if answer is None or not answer.streamed:
            return
        answer.event(event)
        if kind == "message_stop":
            self._close(agent)

    def _user(self, message: dict[str, Any]) -> None:
        """Take results of tools, and what is put in as the user's words."""
        agent, body = self._agent(message), message["message"]
        content = body.get("content")
        blocks = objects_of(content)
        self._close(agent)
        for block in blocks:
            if block.get("type") == "tool_result":
                self._returned(block, message.get("tool_use_result"))
        agent.asked = now_ms()
        if not (message.get("isReplay") or any(one.get("content") == content for one in agent.messages[-1:])):  # else it was sent
            agent.messages.append({"role": "user", "content": content})

    def _returned(self, block: dict[str, Any], told: Any) -> None:
        call, content = text(block.get("tool_use_id")), block.get("content")
        failed, said = block.get("is_error") is True, texts_of(content)
        self._tools.pop(call, None)
        if call in self._agents and self._agents[call].key != call:
            self._end_agent(call, "failed" if failed else "ok", said)
        if call not in self._agents:
            op = self.nesting.op(call)
            if op is not None:
                respond(op, content)
            if failed:
                self.nesting.refuse(call, said)
            self.nesting.end(call)
        elif is_object(told) and told.get("status") == "async_launched" and not failed:
            self._agents[call].is_in_background = True
        else:
            self._end_agent(call, "failed" if failed else "ok", said)

    def _end_agent(self, call: str, status: Status, said: str) -> None:
        agent = self._agents.pop(call)
        scope = self.nesting.scope(agent.key)
        self._close(agent)
        if scope is not None and status == "ok" and said:
            scope.session.builder.set_final_report(said, with_end=True)
        self.nesting.end(agent.key, status, redact(cut(said)) if status != "ok" and said else None)
        if (left := agent.turn) is not None and not any(one.turn is left for one in self._agents.values()):
            self.nesting.end(*left)

    def _system_said(self, message: dict[str, Any]) -> None:
        kind, call = message.get("subtype"), message.get("tool_use_id")
        task = text(message.get("task_id") or "")
        if kind == "init":
            self._about |= {name: message[name] for name in _ABOUT if isinstance(message.get(name), str)}
            if (scope := self.nesting.scope(_SESSION)) is not None:
                scope.session.builder.set_title(attributes=self._about)
        elif kind == "task_started" and isinstance(call, str):
            self._tasks[task] = call
        elif kind in ("task_notification", "task_updated"):
            patch = message.get("patch")
            status = text(patch.get("status") if is_object(patch) else message.get("status"))
            call = call if isinstance(call, str) else self._tasks.get(task, "")
            if status in _OVER and call in self._agents and self._agents[call].is_in_background:
                ended: Status = "ok" if status == "completed" else "failed" if status == "failed" else "cancelled"
                self._end_agent(call, ended, text(message.get("summary") or ""))
        elif kind == "api_retry":
            said = message.get("error") or message.get("error_status") or "error"
            self._agent(message).notes.append(redact(cut(f"attempt {message.get('attempt')} failed: {text(said)}")))
        elif kind == "compact_boundary" and (scope := self._turn_of(self._main)) is not None:
            self._close(self._main)
            scope.session.builder.begin_op("system", "compact", turn=scope.turn, attributes=message.get("compact_metadata")).end()
            self._main.messages.clear()

    def _rate_limit(self, message: dict[str, Any]) -> None:
        info = message["rate_limit_info"]
        if info.get("status") != "allowed":
            self._main.notes.append(f"rate limit: {text(info.get('status'))} ({text(info.get('rateLimitType'))})")

    def _result(self, message: dict[str, Any]) -> None:
        """End the turn with what it came to, and what that cost."""
        status, error = self._outcome = _outcome(message, is_interrupted=self._is_interrupted)
        self._is_interrupted = False
        for agent in (self._main, *(one for one in self._agents.values() if not one.is_in_background)):
            self._close(agent, *((status, error) if status == "cancelled" else ("ok", None)))
        scope = self._turn_of(self._main)
        if scope is not None:
            builder = scope.session.builder
            told = {name: message[name] for name in _OF_RESULT if message.get(name)}
            op = builder.begin_op("system", "result", turn=scope.turn, attributes=told)
            self._bill.settle(op, message)
            report = message.get("structured_output") or message.get("result")
            if report is not None:
                op.response(report)
            code = message.get("api_error_status")
            op.end(status, error, **error_attributes(class_of_status(code, error) if status == "failed" and type(code) is int else None))
            if status == "ok" and report is not None:
                builder.set_final_report(report)
        if any(agent.is_in_background and agent.turn is None for agent in self._agents.values()):
            self._leave_turn(status, error)
            return
        self.nesting.end(_TURN, status, error)

    def _leave_turn(self, status: Status, error: str | None) -> None:
        """Keep a turn open whose sub-agents go on, beside those to come."""
        left = _LeftTurn((_SESSION, f"turn {next(self._numbers)}"), status, error)
        self.nesting.rename(_TURN, left.key)
        for agent in self._agents.values():
            agent.turn = agent.turn or left


def _outcome(message: dict[str, Any], *, is_interrupted: bool) -> tuple[Status, str | None]:
    """Return how a turn ended."""
    kind = text(message.get("subtype") or "success")
    is_failure = kind != "success" or message.get("is_error") is True
    if text(message.get("terminal_reason")).startswith("aborted") or (is_interrupted and is_failure):
        return "cancelled", "interrupted"
    if not is_failure:
        return "ok", None
    errors = message.get("errors")
    said = "; ".join(map(text, errors)) if is_list(errors) and errors else text(message.get("result") or "")
    known = "" if kind == "success" else kind
    return "failed", redact(cut(": ".join(filter(None, (known, said))) or "error"))


def _refusal(answer: Any) -> str | None:
    """Return why a permission or a hook refuses a call; None if it does not."""
    if answer.get("subtype") == "error":
        return text(answer.get("error"))
    told = answer.get("response")
    if not is_object(told):
        return None
    hook = told.get("hookSpecificOutput")
    if is_object(hook) and hook.get("permissionDecision") == "deny":
        return text(hook.get("permissionDecisionReason") or "")
    if told.get("behavior") == "deny":
        return text(told.get("message") or "")
    return text(told.get("reason") or "") if told.get("decision") == "block" else None
