"""What an agent's transcript tells, as records: turns, calls of models with their history, tools, and what each took."""

from __future__ import annotations

from typing import Any, Final

from msgspec import UNSET

from optree import AccountingEntry, LogEntry, Message, Op, SessionTreeBuilder, Turn
from optree.exporting import (
    Accounted,
    Entries,
    MessageAdded,
    OpEnd,
    OpKind,
    OpSet,
    PooledHistory,
    SessionEnd,
    SessionSet,
    Status,
    TurnEnd,
    TurnSet,
    cut,
    is_list,
    is_object,
    read_usage,
    text,
)
from optree_formats.transcript.wire import milliseconds

MAX_NESTED: Final = 50
"""Sessions in each other: an agent that is deeper stays an op (a snapshot holds 60)."""
_MOST_CHARACTERS: Final = 16_384
"""Of an error."""


class SessionRecording:
    """One agent's session, recorded from what a file says, with its times."""

    def __init__(self, builder: SessionTreeBuilder) -> None:
        self.builder = builder
        self.turn: Turn | None = None
        self.history = PooledHistory()
        """What the model is sent with the next call."""
        self.latest: float = builder.node.started_at
        """The latest time of anything in the session."""

    def begin_turn(self, ts: float, user: str | None = None, attributes: dict[str, Any] | None = None) -> Turn:
        """Begin a turn; the one before is as it was left."""
        self.turn = self.builder.begin_turn(user=user, attributes=attributes, at=ts)
        self._seen(ts)
        return self.turn

    def end_turn(self, ts: float, status: Status | None, error: str | None = None, assistant: str | None = None) -> None:
        """End the turn that is open, not before anything in it."""
        if self.turn is None:
            return
        if assistant is not None:
            self.builder.set_assistant(self.turn, assistant)
        ends = [op.ended_at for op in self.turn.node.ops if op.ended_at is not None]
        self.builder.record(TurnEnd(self.turn.path, max([ts, self.turn.node.started_at, *ends]), status, self._cut_text(error)))
        self.turn = None
        self._seen(ts)

    def prompt(self, user: str) -> None:
        """Give the turn that is open what the user asked."""
        if self.turn is not None:
            self.builder.record(TurnSet(self.turn.path, prompts={"user": self._cut_text(user) or ""}))

    def about(self, op: Op, attributes: dict[str, Any]) -> None:
        """Give an op more attributes."""
        self.builder.record(OpSet(op.path, op.node.started_at, None, self.builder.core.attributes(attributes)))

    def end(self, ts: float, status: Status | None, error: str | None = None, report: Any = None) -> None:
        """End the session, not before anything in it."""
        final = UNSET if report is None else self.builder.core.report(report)
        self.builder.record(SessionEnd(self.builder.path, max(ts, self.latest), status, self._cut_text(error), final))

    def tell(self, title: str | None, attributes: dict[str, Any]) -> None:
        """Give the session a title, and more attributes; what is None is not known."""
        block = self.builder.core.attributes(_known(attributes))
        self.builder.record(SessionSet(self.builder.path, self.latest, None if title is None else self._cut_text(title), None, block))

    def say(self, message: dict[str, Any], ts: float) -> None:
        """Take a message into the transcript, and into what the model is sent from now on."""
        core = self.builder.core
        self.history = core.appended(self.history, message)
        body = core.pool.blobs[core.pool.links[self.history.link][1]]  # the same bytes
        self.builder.record(MessageAdded(self.builder.path, 0, Message(ts, text(message.get("role") or "unknown"), body)))

    def begin(self, kind: OpKind, name: str, ts: float, attributes: dict[str, Any] | None = None, parent: Op | None = None) -> Op:
        """Begin an op, in a turn of its own where none is open."""
        turn = self.turn or self.begin_turn(ts)
        self._seen(ts)
        return self.builder.begin_op(kind, name, turn=turn, parent=parent, attributes=_known(attributes), at=ts)

    def call(self, provider: str, model: str, ts: float, members: dict[str, Any], attributes: dict[str, Any] | None = None) -> Op:
        """Begin a call of a model, which is sent the history."""
        op = self.begin("llm", f"{provider}:{model}", ts, {"provider": provider, "model": model, **(attributes or {})})
        self.builder.set_request(op, {"model": model, **members}, self.history, at=ts)
        return op

    def tool(self, name: str, ts: float, arguments: Any, kind: OpKind = "tool", attributes: dict[str, Any] | None = None) -> Op:
        """Begin a tool's call, or of kind ``session`` that of a sub-agent."""
        op = self.begin(kind, name, ts, attributes)
        self.ask(op, ts, arguments)
        return op

    def ask(self, op: Op, ts: float, arguments: Any) -> None:
        """Record the request of an op; a value that is not an object becomes its member ``arguments``."""
        if arguments is not None:
            self.builder.set_request(op, arguments if is_object(arguments) else {"arguments": arguments}, at=ts)

    def answer(self, op: Op, ts: float, message: Any) -> None:
        """Record what an op got back."""
        if message is not None:
            self.builder.set_response(op, message, at=ts)

    def account(
        self, op: Op, ts: float, usage: Any, *, failed: bool = False, cost: float | None = None, within: bool | None = None
    ) -> None:
        """Record what an op took: of a model's call the usage, with its input counted with what was cached or not (*within*)."""
        node, core = op.node, self.builder.core
        entry = AccountingEntry(f"{op.id}#{next(core.numbers)}", ts, "llm" if node.kind == "llm" else "tool")
        entry.status = "failed" if failed else "ok"
        entry.latency = max(0.0, ts - node.started_at)
        if entry.type == "llm":
            entry.provider, _, entry.model = node.name.partition(":")
            took = read_usage(usage, None if cost is None else {"cost_usd": cost}, provider=entry.provider, includes_cached=within)
            entry.tokens, entry.cost_usd, entry.upstream_inference_cost_usd = took.tokens, took.cost_usd, took.upstream_cost_usd
            if rest := {name: value for name, value in took.rest.items() if _tells(value)}:
                entry.details = core.attributes(rest)
        else:
            entry.command, entry.mcp_server = node.name, server_of(node.name)
            entry.characters_in = (node.request.size if node.request else None) or 0
            entry.characters_out = (node.response.size if node.response else None) or 0
        self.builder.record(Accounted(op.path, entry))

    def finish(
        self,
        op: Op,
        ts: float,
        status: Status | None,
        error: str | None = None,
        reasoning: str | None = None,
        attributes: dict[str, Any] | None = None,
    ) -> None:
        """End an op; a tool is accounted for by that. A turn that has ended before lasted until then."""
        ts = max(ts, op.node.started_at)
        if op.node.kind == "tool":
            self.account(op, ts, None, failed=status in ("failed", "interrupted"))
        known = _known(attributes)
        block = self.builder.core.attributes(known) if known else UNSET
        self.builder.record(OpEnd(op.path, ts, status, ts - op.node.started_at, self._cut_text(error), reasoning or None, block))
        turn = op.turn.node
        if turn.ended_at is not None and turn.ended_at < ts:
            self.builder.record(TurnSet(turn.path, ended_at=ts))
        self._seen(ts)

    def log(self, op: Op, lines: list[LogEntry]) -> None:
        """Record log lines of an op."""
        if lines:
            self.builder.record(Entries(op.path, logs=lines))

    def child(self, op: Op, agent: str, ts: float, attributes: dict[str, Any] | None = None) -> SessionTreeBuilder | None:
        """Begin the session of a sub-agent in its op; None for one that is nested too deeply."""
        if self.builder.path.count(".") // 2 + 1 >= MAX_NESTED:
            return None
        return self.builder.attach_child_session(op, agent, attributes=_known(attributes), at=ts)

    def _seen(self, ts: float) -> None:
        self.latest = max(self.latest, ts)

    def _cut_text(self, value: str | None) -> str | None:
        return None if value is None else cut(self.builder.core.text(value), _MOST_CHARACTERS)


def time_of(value: Any) -> float | None:
    """Return a time in epoch milliseconds; None for a value that is not a time."""
    return milliseconds(value) if isinstance(value, str) else None


def text_in(content: Any) -> str:
    """Return the text of a message's content, or of a tool's result: of its blocks, where it has some."""
    if isinstance(content, str):
        return content
    blocks = content if is_list(content) else [content]
    texts = [block.get("text") if is_object(block) else block for block in blocks]
    return "\n".join(one for one in texts if isinstance(one, str))


def server_of(tool: str) -> str | None:
    """Return the MCP server in a tool's name, as in ``mcp__server__tool``."""
    server, separator, _ = tool.removeprefix("mcp__").partition("__")
    return server if separator and tool.startswith("mcp__") else None


def _known(attributes: dict[str, Any] | None) -> dict[str, Any]:
    return {name: value for name, value in (attributes or {}).items() if value is not None}


def _tells(value: Any) -> bool:
    """Tell whether a member of a usage has a value: not one that is empty or 0."""
    if is_object(value):
        return any(_tells(member) for member in value.values())
    return bool(value)
