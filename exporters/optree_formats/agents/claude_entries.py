"""Entries of Claude Code's session files, recorded agent by agent: prompts, answers, tools, and calls of sub-agents."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from optree import LogEntry, Op, SessionTreeBuilder
from optree.exporting import PooledHistory, Status, is_list, is_object, text
from optree_formats.agents.lines import ObjectLines, member
from optree_formats.agents.recording import SessionRecording, text_in

PROVIDER = "anthropic"
_AGENT_TOOLS = ("Task", "Agent")
_ENTRIES = ("user", "assistant", "system")
_TITLES = {"ai-title": "aiTitle", "custom-title": "customTitle", "agent-name": "agentName"}
_ABOUT = ("cwd", "version", "gitBranch", "entrypoint")
_SILENT = frozenset(
    {"attachment", "api-request-shape", "api-request-blob", "atis-latch", "file-history-snapshot", "file-history-delta", "last-prompt",
     "mode", "permission-mode", "pr-link", "progress", "queue-operation", "tools-used", "agent-setting", "agent-color", "tag"}
)  # fmt: skip
"""Types of lines without a call of a model or a tool."""
_INTERRUPTED = "[Request interrupted by user"
_LOCAL = ("<command-", "<local-command-", "<bash-")
"""How texts begin that may only be for the program itself."""
_SYNTHETIC = "<synthetic>"
_CALLS = ("tool_use", "server_tool_use", "mcp_tool_use")
_FINAL = ("end_turn", "stop_sequence", "max_tokens", "refusal")


class ClaudeCall(Struct):
    """A call of a sub-agent."""

    recording: SessionRecording
    op: Op
    id: str
    prompt: str
    agent: str = ""
    """The sub-agent's id, once a line has it."""
    status: Status | None = None
    error: str | None = None
    report: str | None = None
    lines: ClaudeAgent | None = None
    """What its lines between those of its caller become."""


class _ClaudeAnswer(Struct):
    """An answer of the model, as its lines come."""

    id: str
    op: Op
    ts: float
    content: list[Any] = []
    usage: dict[str, Any] = {}
    members: dict[str, Any] = {}
    stop: str | None = None
    cost: float | None = None
    counted: bool = True
    """False for one that a fork has from the session that it comes from, which counts it."""


class ClaudeAgent(SessionRecording):
    """Records one agent's entries."""

    def __init__(self, builder: SessionTreeBuilder, calls: list[ClaudeCall]) -> None:
        super().__init__(builder)
        self._all_calls = calls
        """Those of sub-agents in the whole session."""
        self._answer: _ClaudeAnswer | None = None
        self._answered: set[str] = set()
        self._waiting: list[tuple[dict[str, Any], float]] = []
        """Messages since the answer that is open began: they stand behind it."""
        self._tools: dict[str, Op] = {}
        self._calls: dict[str, ClaudeCall] = {}
        self._seen_ids: set[str] = set()
        self._sent: dict[str, float] = {}
        """When requests were sent, by their ids."""
        self._asked: float = builder.node.started_at
        """When what the next answer is an answer to was there."""
        self._prompt: tuple[str, float] | None = None
        """A text that may be for the program itself: it begins a turn if an answer follows."""
        self._before: dict[str, PooledHistory] = {}
        """Histories before prompts, by the line above them, to which a session may be set back."""
        self._logs: list[LogEntry] = []
        self._outcome: tuple[Status | None, str | None] = (None, None)
        """How the open turn would end now; without a status while it goes on."""
        self._titles: dict[str, str] = {}
        self._session_attributes: dict[str, Any] = {}
        self._model = ""

    def take(self, line: dict[str, Any], ts: float | None, lines: ObjectLines) -> None:
        """Record an entry; what is not understood is noted."""
        kind, identity = text(line.get("type")), line.get("uuid")
        if isinstance(identity, str):
            if identity in self._seen_ids:
                lines.fault("is there already: passed over")
                return
            self._seen_ids.add(identity)
        if kind == "attachment" and ts is not None:
            self._asked = max(self._asked, ts)
        elif kind == "api-request" and ts is not None:
            self._sent[str(line.get("id"))] = ts
        elif kind == "summary":
            self._titles[f"leaf {line.get('leafUuid')}"] = text(line.get("summary"))
        elif kind in _TITLES:
            self._titles[kind] = text(line.get(_TITLES[kind]))
        elif kind == "cost-state":
            self._session_attributes["totalCostUSD"] = line.get("totalCostUSD")
        elif kind in _ENTRIES:
            self._entry(line, ts, lines)
        elif kind not in _SILENT:
            lines.unknown(kind)

    def _entry(self, line: dict[str, Any], ts: float | None, lines: ObjectLines) -> None:
        if ts is None:
            lines.fault("has no time: passed over")
            return
        for name in _ABOUT:
            if name not in self._session_attributes and isinstance(line.get(name), str):
                self._session_attributes[name] = line[name]
        if line["type"] == "system":
            self._system(line, ts)
            return
        message = line.get("message")
        if not is_object(message):
            lines.fault("has no message: passed over")
        elif line["type"] == "user":
            self._user(line, message, ts)
        else:
            self._assistant(line, message, ts, lines)

    # The model's answers

    def _assistant(self, line: dict[str, Any], message: dict[str, Any], ts: float, lines: ObjectLines) -> None:
        content = message.get("content")
        blocks = content if is_list(content) else [{"type": "text", "text": text(content)}]
        if line.get("isApiErrorMessage") is True:
            self._refused(line, text_in(content), ts)
            return
        if message.get("model") == _SYNTHETIC:
            self._waiting.append(({"role": "assistant", "content": blocks}, ts))
            return
        identity = text(message.get("id") or line.get("uuid"))
        if self._answer is None or self._answer.id != identity:
            if identity in self._answered:
                lines.fault(f"goes on with answer {identity[:80]}, which others have followed: only its tools are recorded")
                self._call_tools(blocks, ts)
                return
            self._begin_answer(line, message, identity, ts, lines)
        answer = self._answer
        if answer is None:
            return
        answer.content += blocks
        answer.ts = max(answer.ts, ts)
        answer.stop = text(message["stop_reason"]) if message.get("stop_reason") else answer.stop
        if is_object(usage := message.get("usage")) and _output(usage) >= _output(answer.usage):
            answer.usage = usage
        if isinstance(line.get("costUSD"), (int, float)):
            answer.cost = float(line["costUSD"])
        self._call_tools(blocks, ts)

    def _begin_answer(self, line: dict[str, Any], message: dict[str, Any], identity: str, ts: float, lines: ObjectLines) -> None:
        self._settle()
        self._open_turn(ts)
        self._model = text(message.get("model") or "unknown")
        sent = line.get("requestRef")
        began = min(self._sent.get(str(sent), self._asked), ts)
        copied = isinstance(sent, str) and sent not in self._sent and not lines.damaged
        op = self.call(PROVIDER, self._model, began, {}, {"requestId": line.get("requestId"), "copied": copied or None})
        self.log(op, self._logs)
        self._logs = []
        members = {name: message[name] for name in ("id", "model") if isinstance(message.get(name), str)}
        self._answer = _ClaudeAnswer(identity, op, ts, members=members, counted=not copied)
        self._answered.add(identity)

    def _call_tools(self, blocks: list[Any], ts: float) -> None:
        for block in blocks:
            if not is_object(block) or block.get("type") not in _CALLS:
                continue
            name, arguments, identity = text(block.get("name") or "tool"), block.get("input"), text(block.get("id") or "")
            if name in _AGENT_TOOLS and is_object(arguments) and isinstance(arguments.get("prompt"), str):
                op = self.tool(text(arguments.get("subagent_type") or "agent"), ts, arguments, "session", {"toolCallId": identity})
                self._calls[identity] = ClaudeCall(self, op, identity, arguments["prompt"])
                self._all_calls.append(self._calls[identity])
            else:
                op = self.tool(name, ts, arguments, attributes={"toolCallId": identity})
            self._tools[identity] = op
        for block in blocks:  # results of tools that the provider ran are in the answer itself
            if is_object(block) and text(block.get("type")).endswith("_tool_result"):
                broken = text(member(block, "content", "type")).endswith("_error")
                self._result({**block, "is_error": block.get("is_error") is True or broken}, {}, ts)

    def _close_answer(self) -> None:
        """End the op of the answer that is open."""
        answer, self._answer = self._answer, None
        if answer is None:
            return
        message = {"role": "assistant", "content": answer.content}
        self.answer(answer.op, answer.ts, {**answer.members, **message, "stop_reason": answer.stop})
        if answer.counted:
            self.account(answer.op, answer.ts, answer.usage, cost=answer.cost)
        thoughts = [text(block.get("thinking")) for block in answer.content if is_object(block) and block.get("type") == "thinking"]
        self.finish(answer.op, answer.ts, "ok", reasoning="\n".join(filter(None, thoughts)))
        self.say(message, answer.ts)
        calls = any(is_object(block) and block.get("type") == "tool_use" for block in answer.content)
        done = answer.stop in _FINAL or (answer.stop is None and not calls)
        self._outcome = ("ok" if done else None, None)

    def _refused(self, line: dict[str, Any], error: str, ts: float) -> None:
        """Record a call that got no answer."""
        self._settle()
        self._open_turn(ts)
        model = text(line.get("requestedModel") or self._model or "unknown")
        op = self.call(PROVIDER, model, min(self._asked, ts), {}, {"requestId": line.get("requestId"), "error": line.get("error")})
        self.log(op, self._logs)
        self._logs = []
        self.account(op, ts, {}, failed=True)
        self.finish(op, ts, "failed", error)
        self._waiting.append(({"role": "assistant", "content": error}, ts))
        self._outcome = ("failed", error)

    def _settle(self) -> None:
        """Close the open answer, and put what came since behind it."""
        self._close_answer()
        for message, ts in self._waiting:
            self.say(message, ts)
        self._waiting = []

    # What the user and tools say

    def _user(self, line: dict[str, Any], message: dict[str, Any], ts: float) -> None:
        content = message.get("content")
        results = [block for block in content if is_object(block) and block.get("type") == "tool_result"] if is_list(content) else []
        prompt = text_in(content)
        for result in results:
            self._result(result, line, ts)
        if not results and line.get("isMeta") is not True:
            if line.get("isCompactSummary") is True:
                self._settle()
                self.history = PooledHistory()
            elif prompt.startswith(_INTERRUPTED):
                self._settle()
                self._outcome = ("cancelled", None)
            else:
                self._prompted(line, prompt, ts)
        self._asked = max(self._asked, ts)
        self._waiting.append(({"role": text(message.get("role") or "user"), "content": content}, ts))

    def _prompted(self, line: dict[str, Any], prompt: str, ts: float) -> None:
        """Begin a turn; at once, unless its text may be for the program itself."""
        self._settle()
        above = text(line.get("parentUuid") or "")
        self.history = self._before.setdefault(above, self.history)
        self._asked = ts
        self._prompt = (prompt, ts)
        if not prompt.startswith(_LOCAL):
            self._open_turn(ts)

    def _open_turn(self, ts: float) -> None:
        """Begin the turn of a prompt that waits for one, in place of the one before; or one without a prompt, if none is open."""
        if self._prompt is None and self.turn is not None:
            return
        if self.turn is not None:
            self.end_turn(self.latest, *self._outcome)
        prompt, at = self._prompt or (None, ts)
        self._prompt = None
        self._outcome = (None, None)
        self.begin_turn(at, prompt)

    def _result(self, result: dict[str, Any], line: dict[str, Any], ts: float) -> None:
        identity = text(result.get("tool_use_id") or "")
        op = self._tools.pop(identity, None)
        if op is None:
            return
        content, failed = result.get("content"), result.get("is_error") is True
        self.answer(op, ts, content)
        details = line.get("toolUseResult")
        stopped = member(details, "interrupted") is True
        status: Status = "failed" if failed else "cancelled" if stopped else "ok"
        self.finish(op, ts, status, text_in(content) if failed else None)
        call = self._calls.pop(identity, None)
        if call is None:
            return
        if is_object(details):
            call.agent = text(details.get("agentId") or "")
        background = member(details, "status") == "async_launched"
        call.status, call.error = (None, None) if background else (status, text_in(content) if failed else None)
        call.report = None if failed or background else text_in(details.get("content") if is_object(details) else content) or None

    # The rest

    def _system(self, line: dict[str, Any], ts: float) -> None:
        kind = line.get("subtype")
        if kind == "api_error":
            error = line.get("error")
            attributes = {name: line[name] for name in ("retryAttempt", "maxRetries", "retryInMs") if name in line} | {"error": error}
            message = error.get("message") if is_object(error) else error
            details = self.builder.core.attributes(attributes)
            self._logs.append(LogEntry(ts, "WRN", f"request failed: {text(message or 'error')}", "response", details))
        elif kind == "compact_boundary":
            self._settle()
            op = self.begin("system", "compact", ts, line.get("compactMetadata") if is_object(line.get("compactMetadata")) else None)
            self.finish(op, ts, "ok")
            self.history = PooledHistory()

    def close(self, call: ClaudeCall | None) -> None:
        """Record what is left when the lines have ended, those of a sub-agent with what its caller says of it.

        The session ends where its last turn has: what breaks off stays open.
        """
        self._settle()
        if self._prompt is not None and not self._prompt[0].startswith(_LOCAL):
            self._open_turn(self._prompt[1])
        self.tell(self._title(), self._session_attributes)
        status, error = self._outcome
        call_status = call.status if call is not None else None
        if self.turn is not None and status is None and call_status is None:
            return
        self.end_turn(self.latest, status or call_status, error)
        if call is None:
            self.end(self.latest, None)
        else:
            self.end(self.latest, call.status, call.error, call.report)

    def _title(self) -> str | None:
        own = [title for name, title in self._titles.items() if name in _TITLES]
        about = [title for name, title in self._titles.items() if name.removeprefix("leaf ") in self._seen_ids]
        return next(reversed([*about, *own]), None)


def _output(usage: dict[str, Any]) -> int:
    tokens = usage.get("output_tokens")
    return tokens if isinstance(tokens, int) else 0
