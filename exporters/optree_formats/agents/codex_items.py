"""Items and events of Codex's rollouts, recorded file by file: prompts, answers, tools, tokens, and calls of sub-agents."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from msgspec import Struct

from optree import Op, SessionTreeBuilder
from optree.exporting import PooledHistory, Status, is_list, is_object, text
from optree_formats.agents.lines import ObjectLines, member, parsed
from optree_formats.agents.recording import SessionRecording, text_in

Handler = Callable[[dict[str, Any], float, ObjectLines], None]
_ABOUT = ("cwd", "originator", "cli_version", "model_provider", "source", "git", "forked_from_id", "agent_nickname", "agent_role")
_SPOKEN = (
    "reasoning", "function_call", "custom_tool_call", "local_shell_call", "tool_search_call", "web_search_call", "image_generation_call",
)  # fmt: skip
"""Items from the model, beside its messages."""
_SERVER = ("web_search_call", "image_generation_call")
"""Calls that the provider ran: there is no item of their results."""
_TOLD = ("compaction", "context_compaction", "compaction_summary", "ghost_snapshot", "additional_tools", "agent_message")
"""Other items that are part of the model's input."""
_SILENT_LINES = ("world_state", "inter_agent_communication", "inter_agent_communication_metadata", "ghost_snapshot")
_SILENT = frozenset(
    {"agent_message", "agent_reasoning", "agent_reasoning_raw_content", "agent_reasoning_section_break", "context_compacted",
     "entered_review_mode", "exec_command_begin", "exited_review_mode", "patch_apply_begin", "plan_update",
     "thread_goal_updated", "thread_name_updated", "thread_settings_applied", "thread_rolled_back", "turn_diff", "web_search_end",
     "image_generation_end", "mcp_tool_call_begin", "view_image_tool_call", "warning", "stream_error", "collab_agent_spawn_end",
     "collab_agent_interaction_end", "collab_waiting_end", "collab_close_end", "collab_resume_end"}
)  # fmt: skip
"""Events that repeat items, or that are for people."""
_THOUGHTS = ("summary", "content")
_ENDS = ("exec_command_end", "patch_apply_end", "mcp_tool_call_end")
_CODE = re.compile(r"^(?:Process exited with code|Exit code:) (-?\d+)\s*$", re.MULTILINE)
_UNSUPPORTED = "unsupported call: "
_LOOKED_AT = 2000
_SPAWN = "spawn_agent"
_TOLD_BY_PROGRAM = ("<environment_context>", "<user_instructions>", "# AGENTS.md instructions", "<subagent_notification>", "<turn_aborted>")


class CodexCall(Struct):
    """A call of a sub-agent."""

    recording: SessionRecording
    op: Op
    agent: str = ""


class _CodexAnswer(Struct):
    """The model's items up to its next input."""

    op: Op
    ts: float
    items: list[Any] = []
    followed: bool = False
    """True once an input of the model came after it."""
    counted: bool = False


class CodexAgent(SessionRecording):
    """Records one file's items and events."""

    def __init__(self, builder: SessionTreeBuilder, calls: list[CodexCall]) -> None:
        super().__init__(builder)
        self._calls = calls
        self._answer: _CodexAnswer | None = None
        self._waiting: list[tuple[dict[str, Any], float]] = []
        self._tools: dict[str, Op] = {}
        self._outcomes: dict[str, bool] = {}
        """Whether calls failed, where an event says so."""
        self._agents: dict[str, str] = {}
        """Of calls: the sub-agents that they began."""
        self._spawned: dict[str, CodexCall] = {}
        self._seen_lines: set[tuple[Any, ...]] = set()
        self._asked: float = builder.node.started_at
        self._provider, self._model = "openai", "unknown"
        self._sum: dict[str, Any] | None = None
        self._recorded = False
        """True once answers have lines of their own for their tokens."""
        self._responses: set[str] = set()
        self._in_task = False
        self._id = ""
        self._handlers: dict[str, Handler] = {
            "session_meta": self._about,
            "turn_context": self._context,
            "response_item": self._item,
            "event_msg": self._event,
            "token_usage_record": self._record,
            "compacted": self._compacted,
        }
        self._events: dict[str, Handler] = {
            "token_count": self._sums,
            "task_started": self._started,
            "turn_started": self._started,
            "task_complete": self._completed,
            "turn_complete": self._completed,
            "turn_aborted": self._aborted,
            "user_message": self._prompted_by_event,
            "item_completed": self._item_ended,
            "sub_agent_activity": lambda event, _ts, _lines: self._began_agent(event, event.get("event_id")),
            "error": self._error,
            **dict.fromkeys(_ENDS, self._tool_ended),
        }

    def take(self, line: dict[str, Any], ts: float, lines: ObjectLines) -> None:
        """Record a line; what is not understood is noted."""
        kind, payload = text(line.get("type")), line.get("payload")
        if "ordinal" in line:
            key = (str(line["ordinal"]), ts, kind)
            if key in self._seen_lines:
                lines.fault("is there already: passed over")
                return
            self._seen_lines.add(key)
        if not is_object(payload):
            lines.fault("holds nothing: passed over")
        elif (handler := self._handlers.get(kind)) is not None:
            handler(payload, ts, lines)
        elif kind not in _SILENT_LINES:
            lines.unknown(kind)

    def _about(self, payload: dict[str, Any], _ts: float, _lines: ObjectLines) -> None:
        if self._id:  # that of the session that this one is a fork of
            return
        self._id = text(payload.get("id") or "?")
        self._provider = text(payload.get("model_provider") or self._provider)
        self.tell(None, {name: payload.get(name) for name in _ABOUT})

    def _context(self, payload: dict[str, Any], _ts: float, _lines: ObjectLines) -> None:
        self._model = text(payload.get("model") or self._model)

    # Items

    def _item(self, item: dict[str, Any], ts: float, lines: ObjectLines) -> None:
        kind = text(item.get("type"))
        message = {name: value for name, value in item.items() if not name.startswith("internal_")}
        if kind == "message" and item.get("role") != "assistant":
            self._heard(message, ts)
        elif kind == "message" or kind in _SPOKEN:
            self._spoke(message, kind, ts)
        elif kind.endswith("_output"):
            self._result(message, ts)
        elif kind in _TOLD:
            self._heard(message, ts)
        else:
            lines.unknown(kind)

    def _heard(self, message: dict[str, Any], ts: float) -> None:
        prompt = text_in(message.get("content"))
        if message.get("role") == "user" and not prompt.startswith(_TOLD_BY_PROGRAM):
            self._prompted(prompt, ts)
        self._tell_model(message, ts)

    def _tell_model(self, message: dict[str, Any], ts: float) -> None:
        if self._answer is not None:
            self._answer.followed = True
        self._asked = max(self._asked, ts)
        self._waiting.append((message, ts))

    def _prompted(self, prompt: str, ts: float) -> None:
        """Begin a turn, or give the one that has just begun its prompt."""
        turn = self.turn
        if turn is not None and not turn.node.ops and (turn.node.prompts or {}).get("user") in (None, "", prompt):
            self.prompt(prompt)
        elif turn is None or not self._in_task:
            self._settle()
            self.end_turn(self.latest, None)
            self.begin_turn(ts, prompt)

    def _spoke(self, message: dict[str, Any], kind: str, ts: float) -> None:
        answer = self._answer
        if answer is None or answer.followed:
            self._settle()
            op = self.call(self._provider, self._model, min(self._asked, ts), {})
            answer = self._answer = _CodexAnswer(op, ts)
        answer.items.append(message)
        answer.ts = max(answer.ts, ts)
        if kind not in ("message", "reasoning"):
            self._call_tool(message, kind, ts)

    def _call_tool(self, item: dict[str, Any], kind: str, ts: float) -> None:
        identity = text(item.get("call_id") or item.get("id") or "")
        name = text(item.get("name") or kind.removesuffix("_call"))
        raw_arguments = item.get("arguments", item.get("input", item.get("action")))
        arguments = parsed(raw_arguments)
        attributes = {"toolCallId": identity or None, "namespace": item.get("namespace")}
        if name == _SPAWN and is_object(arguments):
            label = next((text(arguments[key]) for key in ("agent_type", "task_name") if isinstance(arguments.get(key), str)), "agent")
            op = self.tool(label, ts, arguments, "session", attributes)
            self._spawned[identity] = CodexCall(self, op, self._agents.get(identity, ""))
            self._calls.append(self._spawned[identity])
        else:
            op = self.tool(name, ts, arguments, attributes=attributes)
        if kind in _SERVER:
            self.finish(op, ts, "failed" if item.get("status") == "failed" else "ok")
        else:
            self._tools[identity] = op

    def _result(self, item: dict[str, Any], ts: float) -> None:
        self._tell_model(item, ts)
        identity = text(item.get("call_id") or "")
        op = self._tools.pop(identity, None)
        if op is None:
            return
        output = item.get("output", item.get("tools"))
        if is_object(output) and "content" in output:
            self._outcomes.setdefault(identity, output.get("success") is False)
            output = output["content"]
        self.answer(op, ts, output)
        output_text = output if isinstance(output, str) else text_in(output)
        failed = self._outcomes.pop(identity, None)
        failed = _failed(output_text) if failed is None else failed
        self.finish(op, ts, "failed" if failed else "ok", output_text if failed else None)
        call = self._spawned.pop(identity, None)
        if call is not None and not call.agent:
            call.agent = self._agents.get(identity) or text(member(parsed(output_text), "agent_id") or "")

    def _close_answer(self) -> None:
        """End the op of the answer that is open."""
        answer, self._answer = self._answer, None
        if answer is None:
            return
        self.answer(answer.op, answer.ts, {"role": "assistant", "output": answer.items} if answer.items else None)
        thoughts = [text_in(item.get(part) or "") for item in answer.items if item.get("type") == "reasoning" for part in _THOUGHTS]
        self.finish(answer.op, answer.ts, "ok", reasoning="\n".join(filter(None, thoughts)))
        for item in answer.items:
            self.say(item if "role" in item else {"role": "assistant", **item}, answer.ts)

    def _settle(self) -> None:
        """Close the open answer, and put what came since behind it."""
        self._close_answer()
        for message, ts in self._waiting:
            self.say(message if "role" in message else {"role": "tool", **message}, ts)
        self._waiting = []

    # Tokens

    def _record(self, payload: dict[str, Any], ts: float, _lines: ObjectLines) -> None:
        """Count the tokens of an answer that has a line of its own for them; not of one that a fork has from another session."""
        self._recorded = True
        response = text(payload.get("response_id") or "")
        if (response and response in self._responses) or payload.get("thread_id", self._id) != self._id:
            return
        self._responses.add(response)
        self._count(payload.get("usage"), ts, response)

    def _sums(self, payload: dict[str, Any], ts: float, _lines: ObjectLines) -> None:
        """Count the tokens by which a running sum has grown; a repeated sum counts nothing."""
        total, last = member(payload, "info", "total_token_usage"), member(payload, "info", "last_token_usage")
        if not is_object(total) or total == self._sum:
            return
        before, self._sum = self._sum, total
        if self._recorded:
            return
        usage = last if is_object(last) else total
        grown = _grown(before, total)
        self._count(usage if grown is None else grown, ts, "")

    def _count(self, usage: Any, ts: float, response: str) -> None:
        if not is_object(usage):
            return
        if self._answer is None:  # an empty answer
            self._settle()
            self._answer = _CodexAnswer(self.call(self._provider, self._model, min(self._asked, ts), {}), ts)
        answer = self._answer
        self.account(answer.op, max(answer.ts, answer.op.node.started_at), usage, within=True)
        if response:
            self.about(answer.op, {"responseId": response})

    # Events

    def _event(self, event: dict[str, Any], ts: float, lines: ObjectLines) -> None:
        kind = text(event.get("type"))
        if (handler := self._events.get(kind)) is not None:
            handler(event, ts, lines)
        elif kind not in _SILENT:
            lines.unknown(kind)

    def _started(self, _event: dict[str, Any], ts: float, _lines: ObjectLines) -> None:
        self._settle()
        self.end_turn(self.latest, None)
        self.begin_turn(ts)
        self._asked, self._in_task = ts, True

    def _completed(self, event: dict[str, Any], ts: float, _lines: ObjectLines) -> None:
        last = event.get("last_agent_message")
        self._done(ts, "ok", last if isinstance(last, str) else None)

    def _aborted(self, _event: dict[str, Any], ts: float, _lines: ObjectLines) -> None:
        self._done(ts, "cancelled", None)

    def _done(self, ts: float, status: Status, last: str | None) -> None:
        self._settle()
        self.end_turn(ts, status, assistant=last)
        self._in_task = False

    def _prompted_by_event(self, event: dict[str, Any], ts: float, _lines: ObjectLines) -> None:
        """Take the prompt of an event: most often an item had it already."""
        prompt, turn = text(event.get("message") or ""), self.turn
        recorded = turn is not None and not turn.node.ops and (turn.node.prompts or {}).get("user")
        if prompt and not recorded:
            self._prompted(prompt, ts)

    def _tool_ended(self, event: dict[str, Any], _ts: float, _lines: ObjectLines) -> None:
        self._outcomes[text(event.get("call_id") or "")] = _event_failed(event)

    def _item_ended(self, event: dict[str, Any], _ts: float, _lines: ObjectLines) -> None:
        item = event.get("item")
        if not is_object(item):
            return
        identity, kind = text(item.get("id") or ""), item.get("type")
        if kind in ("CommandExecution", "McpToolCall", "FileChange", "DynamicToolCall"):
            self._outcomes[identity] = item.get("status") in ("failed", "declined") or item.get("exit_code") not in (0, None)
        elif kind == "CollabAgentToolCall" and item.get("tool") == _SPAWN:
            agents = item.get("receiver_thread_ids")
            if is_list(agents) and agents and isinstance(agents[0], str):
                self._agents[identity] = agents[0]
        elif kind == "SubAgentActivity":
            self._began_agent(item, identity)

    def _began_agent(self, activity: dict[str, Any], identity: Any) -> None:
        """Note which sub-agent a call began, whose result tells a path alone: so it is since Codex's second form of sub-agents."""
        if activity.get("kind") == "started" and isinstance(agent := activity.get("agent_thread_id"), str):
            self._agents[text(identity or "")] = agent

    def _error(self, event: dict[str, Any], ts: float, _lines: ObjectLines) -> None:
        """Record a call that got no answer."""
        message = text(event.get("message") or "failed")
        self._settle()
        op = self.call(self._provider, self._model, min(self._asked, ts), {})
        self.account(op, ts, {}, failed=True)
        self.finish(op, ts, "failed", message)

    def _compacted(self, payload: dict[str, Any], ts: float, _lines: ObjectLines) -> None:
        self._settle()
        op = self.begin("system", "compact", ts)
        self.finish(op, ts, "ok")
        self.history = PooledHistory()
        kept = payload.get("replacement_history")
        for message in kept if is_list(kept) else [{"role": "user", "content": text(payload.get("message") or "")}]:
            if is_object(message):
                self.history = self.builder.core.appended(self.history, message)

    def close(self) -> None:
        """Record what is left; the session ends where its last turn has."""
        self._settle()
        turns = self.builder.node.turns
        if self.turn is None and turns:
            self.end(self.latest, turns[-1].status if self.builder.path else None)


def _grown(before: dict[str, Any] | None, total: dict[str, Any]) -> dict[str, Any] | None:
    """Return by how much sums have grown; None where that is not known: there were none before, or they have begun anew."""
    known = {name: value for name, value in total.items() if type(value) is int}
    if before is None or not all(type(before.get(name, 0)) is int for name in known):
        return None
    grown = {name: value - before.get(name, 0) for name, value in known.items()}
    return None if any(value < 0 for value in grown.values()) else grown


def _failed(output: str) -> bool:
    """Tell whether a tool's output says that it failed: by its exit code."""
    metadata = member(parsed(output), "metadata") if output.startswith("{") else None
    if is_object(metadata) and "exit_code" in metadata:
        return bool(metadata["exit_code"] != 0)
    code = _CODE.search(output[:_LOOKED_AT])
    return output.startswith(_UNSUPPORTED) or (code is not None and code[1] != "0")


def _event_failed(event: dict[str, Any]) -> bool:
    """Tell whether the event of a call's end says that it failed."""
    if event.get("success") is False or event.get("exit_code") not in (0, None) or event.get("status") in ("failed", "declined"):
        return True
    result = event.get("result")
    return is_object(result) and ("Err" in result or any(member(result, "Ok", name) is True for name in ("is_error", "isError")))
