"""From a tree to events: the events of each node, at its begin and at its end.

    session           session_start … session_end; of a sub-agent agent_start … agent_end
    turn              user_message (turn_start where nobody said anything) … turn_end
    llm op            model_input … model_output
    tool op           tool_call … tool_result or tool_error
    session op        agent_call … agent_result
    system op         repair, gc_run, …, by its name (system_step where it has another) … system_end
    message           message

What is still open has no second event; then all that is known of it stands in the first. Each event has the `path` of its node.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, ClassVar

from msgspec import UNSET

from optree import Message, OperationNode, SessionNode, Tree, TurnNode
from optree.exporting import (
    ENDED,
    Accounted,
    Entries,
    Fold,
    MessageAdded,
    OpBegin,
    OpEnd,
    OpSet,
    Record,
    Requested,
    Responded,
    SessionBegin,
    SessionEnd,
    SessionResume,
    SessionSet,
    TurnBegin,
    TurnEnd,
    TurnSet,
    decode,
    is_object,
    parent_path,
    state,
    unfold,
)
from optree_formats.markdown.events import KINDS, PROTOCOL, Kind, LogEvent, iso
from optree_formats.markdown.op_fields import NEAR, Requests, code_of, held, op_story, result_story, turn_story, why_of

SCHEMA = "optree/1"
"""In the first event of a log made of a tree: it reads back as that tree."""
NODE = "node"
"""The field of a repair that has its node's path: ``path`` is the file that was repaired, as in the seed."""
SYSTEM = frozenset(
    [
        "repair",
        "bootstrap",
        "gc_run",
        "context_assembly",
        "working_set_update",
        "cache_advice",
        "summary_created",
        "recovery",
        "user_approval",
    ]
)
_INSIDE = (TurnSet, TurnEnd, OpSet, Requested, Responded, Entries, Accounted, OpEnd)
"""Records of what has begun."""
_Inside = TurnSet | TurnEnd | OpSet | Requested | Responded | Entries | Accounted | OpEnd
_OfOp = SessionBegin | OpBegin | Requested | Responded | Entries | Accounted | OpEnd
REASONS = {"ok": "completed", "failed": "error", "cancelled": "cancelled", "interrupted": "interrupted", ENDED: "ended"}


def events_of(tree: Tree) -> Iterator[LogEvent]:
    """Yield a whole tree as events, in the order of time: the session's start first, its end last."""
    maker = EventMaker(Fold(tree.session.origin_txn_id, tree), saved=True)
    for record in unfold(tree):
        yield from maker.events(record)


class EventMaker:
    """Makes events of records, and remembers which content the log has already: that is written once.

    Of a *saved* session the fold has all nodes before the first record, and the first event of each says all that no second one will. Else
    each record is folded, and what has ended is let go; the begin of an op is told with its request, or when the next thing happens in it,
    and what comes after its end is an ``addition`` to it. The start of the root is then for whoever begins the log: `session_start`.
    """

    def __init__(self, fold: Fold, *, saved: bool = False) -> None:
        self.fold = fold
        self.begun: dict[str, bool] = {}
        """Paths of the turns and ops that are open, and whether their begin is written."""
        self.requests = Requests(fold.pool)
        self.counts = {"turns": 0, "tools": 0, "repairs": 0}
        self._saved = saved
        self._steps = self._SAVED if saved else self._RUNNING

    def events(self, record: Record) -> Iterable[LogEvent]:
        """Return the events that a record makes, if any."""
        if not self._saved:
            if isinstance(record, _INSIDE) and record.path not in self.begun:
                return self._addition(record)
            if isinstance(record, Requested) and self.begun[record.path] and self.fold.ops[record.path].request is not None:
                return ()  # the log has another, which stays
            self.fold.apply(record)
        step = self._steps.get(type(record))
        return () if step is None else step(self, record)

    # A step a type of record

    def _session_begin(self, record: SessionBegin) -> Iterator[LogEvent]:
        if not record.path:
            if self._saved:
                yield self.session_start(self.fold.sessions[""])
            return
        yield from self._pending_begin(record)
        yield self.session_start(self.fold.sessions[record.path])

    def _session_set(self, record: SessionSet) -> Iterator[LogEvent]:
        known = _present(path=record.path or None, title=record.title, latest_status=record.latest_status)
        yield LogEvent.of_plain("session_update", {"timestamp": iso(record.ts), **known}, at=record.ts)

    def _session_resume(self, record: SessionResume) -> Iterator[LogEvent]:
        yield self.resumed(self.fold.sessions[record.path], record.ts)

    def _session_end(self, record: SessionEnd) -> Iterator[LogEvent]:
        yield self.session_end(self.fold.sessions[record.path])

    def _message(self, record: MessageAdded) -> Iterator[LogEvent]:
        session = self.fold.sessions[record.path]
        if not self._saved:
            session.messages.clear()
        yield self.message(session, record.message)

    def _turn_begin(self, record: TurnBegin) -> Iterator[LogEvent]:
        self.begun[record.path] = True
        yield self.turn_start(self.fold.sessions[parent_path(record.path)], self.fold.turns[record.path])

    def _turn_end(self, record: TurnEnd) -> Iterator[LogEvent]:
        del self.begun[record.path]
        session, turn = self.fold.sessions[parent_path(record.path)], self.fold.turns[record.path]
        if not self._saved:
            del self.fold.turns[record.path]
            session.turns.clear()
        yield self.turn_end(session, turn)

    def _op_begin(self, record: OpBegin) -> Iterator[LogEvent]:
        self.begun[record.path] = False
        if self._saved:
            yield from self._pending_begin(record)
        else:
            del self.fold.turns[parent_path(record.path)].ops[: -NEAR - 1]

    def _op_set(self, record: OpSet) -> Iterator[LogEvent]:
        if self.begun[record.path] and record.attributes is not UNSET:
            yield from self._addition(OpSet(record.path, record.ts, attributes=record.attributes))

    def _requested(self, record: Requested) -> Iterator[LogEvent]:
        if self.begun[record.path]:
            yield self._added(record.path, self.requests.fields(self.fold.ops[record.path]))
        else:
            yield from self._pending_begin(record)

    def _pending_begin(self, record: _OfOp) -> Iterator[LogEvent]:
        """Yield the begin of an op that is not written yet."""
        if self.begun.get(record.path) is False:
            self.begun[record.path] = True
            yield self.op_start(self.fold.ops[record.path])

    def _op_end(self, record: OpEnd) -> Iterator[LogEvent]:
        yield from self._pending_begin(record)
        del self.begun[record.path]
        op = self.fold.take_op(record.path)
        event = self.op_end(op)
        if not self._saved and record.attributes is not UNSET:
            event.fields["attributes"] = decode(record.attributes)
        yield event

    def _addition(self, record: _Inside) -> Iterator[LogEvent]:
        """Yield what is added to an op that has ended, or began elsewhere."""
        if isinstance(record, Entries):  # streamed pieces are no answer without those before them
            record = Entries(record.path, logs=record.logs, chunks=record.chunks)
        if not isinstance(record, (Entries, Accounted, Responded, OpSet)):
            return
        late = Fold(self.fold.txn)
        late.apply(record)
        op = late.take_op(record.path)
        fields = {**_present(attributes=_block(op)), **held(op)}
        if fields:
            yield self._added(record.path, fields)

    def _added(self, path: str, fields: dict[str, Any]) -> LogEvent:
        return LogEvent.of_plain("addition", {"path": path, **fields}, title=f"Addition: {path}")

    _SAVED: ClassVar[dict[type[Record], Callable[[Any, Any], Iterator[LogEvent]]]] = {
        SessionBegin: _session_begin,
        SessionResume: _session_resume,
        SessionEnd: _session_end,
        MessageAdded: _message,
        TurnBegin: _turn_begin,
        TurnEnd: _turn_end,
        OpBegin: _op_begin,
        OpEnd: _op_end,
    }
    _RUNNING: ClassVar[dict[type[Record], Callable[[Any, Any], Iterator[LogEvent]]]] = {
        **_SAVED,
        SessionSet: _session_set,
        OpSet: _op_set,
        Requested: _requested,
        Responded: _pending_begin,
        Entries: _pending_begin,
        Accounted: _pending_begin,
    }

    # An event a method

    def session_start(self, session: SessionNode) -> LogEvent:
        """Return the start of a session."""
        above = self._session_of(session.path) if session.path else None
        expected = session.agent_id if above is None else f"{above.call_path}->{session.agent_id}"
        own = {"session_id": session.origin_txn_id, "protocol": PROTOCOL, "tree": SCHEMA} if above is None else {"path": session.path}
        fields = {
            "timestamp": iso(session.started_at),
            **own,
            "agent": session.agent_id,
            **_present(call_path=None if session.call_path == expected else session.call_path),
            **_present(title=session.session_title, latest_status=session.latest_status, attributes=_block(session)),
        }
        title = "" if above is None else f"Agent Start: {session.agent_id}"
        return LogEvent.of_plain("session_start" if above is None else "agent_start", fields, title=title, at=session.started_at)

    def session_end(self, session: SessionNode) -> LogEvent:
        """Return the end of a session."""
        root = not session.path
        status = state(session)
        fields = {
            "timestamp": iso(session.ended_at or 0.0),
            **({"session_id": session.origin_txn_id} if root else {"path": session.path, "agent": session.agent_id}),
            "reason": REASONS[status],
            **({"stats": dict(self.counts)} if root else {}),
            "status": status,
            **_present(error=session.error),
            **({} if session.final_report is UNSET else {"final_report": decode(session.final_report)}),
        }
        title = "" if root else f"Agent End: {session.agent_id}"
        return LogEvent.of_plain("session_end" if root else "agent_end", fields, title=title, at=session.ended_at)

    def resumed(self, session: SessionNode, ts: float) -> LogEvent:
        """Return the event of a session that goes on in a new process."""
        fields = {"timestamp": iso(ts), **self._place(session, session.path)}
        return LogEvent.of_plain("session_resume", fields, at=ts)

    def message(self, session: SessionNode, message: Message) -> LogEvent:
        """Return an entry of an agent's transcript."""
        known = _present(role=message.role, id=message.id, substance=message.substance, cause=list(message.cause) or None)
        fields = {"timestamp": iso(message.timestamp), **self._place(session, session.path), **known, "body": decode(message.body)}
        return LogEvent.of_plain("message", fields, title=f"Message: {message.role}", at=message.timestamp)

    def turn_start(self, session: SessionNode, turn: TurnNode) -> LogEvent:
        """Return the begin of a turn, with the user's prompt if there is one."""
        self.counts["turns"] += 1
        prompts = dict(turn.prompts or {})
        user = prompts.pop("user", None)
        fields = {"timestamp": iso(turn.started_at), **self._place(session, turn.path)}
        if user is not None:
            fields |= {"length": len(user), "content": user}
        fields |= {**({"prompts": prompts} if prompts else {}), **_present(attributes=_block(turn))}
        if turn.ended_at is None:
            fields |= _present(assistant=turn.assistant)
        kind = "turn_start" if user is None else "user_message"
        return LogEvent.of_plain(kind, fields, narrative=turn_story(session, user), at=turn.started_at)

    def turn_end(self, session: SessionNode, turn: TurnNode) -> LogEvent:
        """Return the end of a turn, with the assistant's last message."""
        known = _present(status=state(turn), error=turn.error, assistant=turn.assistant)
        fields = {"timestamp": iso(turn.ended_at or 0.0), **self._place(session, turn.path), **known}
        return LogEvent.of_plain("turn_end", fields, at=turn.ended_at)

    def op_start(self, op: OperationNode) -> LogEvent:
        """Return the begin of an op, with all that is known of it if no end will follow."""
        session, with_all = self._session_of(op.path), self._saved and op.ended_at is None
        place = {"timestamp": iso(op.started_at), **self._place(session, op.path)}
        known = {**_present(parent=op.parent_op, attributes=_block(op)), **(held(op) if with_all else {})}
        story = op_story(session, op, self.requests.pool)
        if op.kind == "llm":
            tokens = sum(entry.tokens.all_input_tokens for entry in op.accounting if entry.tokens is not None)
            fields = {**place, **({"tokens": tokens} if tokens else {}), "model": op.name, **self.requests.fields(op), **known}
            return LogEvent.of_plain(
                "model_input", fields, narrative=story, title=f"Model Input: {op.name}" if op.name else "", at=op.started_at
            )
        if op.kind == "tool":
            self.counts["tools"] += 1
            return self._tool_call(self.fold.turns[parent_path(op.path)], op, place, known, story)
        if op.kind == "session":
            fields = {**place, "name": op.name, **self.requests.fields(op), **known}
            return LogEvent.of_plain("agent_call", fields, narrative=story, title=f"Agent Call: {op.name}", at=op.started_at)
        kind = op.name if op.name in SYSTEM else "system_step"
        self.counts["repairs"] += kind == "repair"
        if kind == "repair":
            place = {NODE if key == "path" else key: value for key, value in place.items()}
        own = _of_system(kind, op.attributes)
        fields = {**place, **({} if kind == op.name else {"name": op.name}), **own, **self.requests.fields(op), **known}
        return LogEvent.of_plain(
            kind, fields, narrative=story, title="" if kind == op.name else f"System Step: {op.name}", at=op.started_at
        )

    def op_end(self, op: OperationNode) -> LogEvent:
        """Return the end of an op."""
        place = {"timestamp": iso(op.ended_at or 0.0), **self._place(self._session_of(op.path), op.path)}
        story = result_story(op)
        if op.kind == "tool" and (op.status == "ok" or (state(op) == ENDED and op.error is None)):
            fields = {"call_id": op.path, **({"success": True} if op.status == "ok" else {}), **place, **held(op)}
            return LogEvent.of_plain("tool_result", fields, narrative=story, title=f"Tool Result: {op.name}", at=op.ended_at)
        if op.kind == "tool":
            fields = {"call_id": op.path, **place, **held(op)}
            fields["error"] = {
                "code": code_of(op),
                "message": state(op) if op.error is None else op.error,
                **({} if op.error is not None else {"stated": False}),
            }
            return LogEvent.of_plain("tool_error", fields, narrative=story, title=f"Tool Error: {op.name}", at=op.ended_at)
        kind = {"llm": "model_output", "session": "agent_result"}.get(op.kind, "system_end")
        return LogEvent.of_plain(
            kind, {**place, **held(op)}, narrative=story, title=f"{kind.replace('_', ' ').title()}: {op.name}", at=op.ended_at
        )

    def _tool_call(self, turn: TurnNode, op: OperationNode, place: dict[str, Any], known: dict[str, Any], story: str) -> LogEvent:
        """Return a tool call, which must say why."""
        request = self.requests.fields(op)
        args = request.pop("request", None)
        arguments = args if is_object(args) else {}
        why, source = why_of(turn, op, arguments)
        mark: dict[str, Any] = {}
        if source != "args":
            mark = {"why_from": source, **({"given_why": arguments["why"]} if "why" in arguments else {})}
        if op.request is None:
            mark["args_given"] = False
        fields = {"tool": op.name, "call_id": op.path, **place, "args": {**arguments, "why": why}, **mark, **request, **known}
        event = LogEvent.of_plain("tool_call", fields, narrative=story, at=op.started_at)
        if source == "nobody":
            event.comment("args.why", "Nobody said why; this stands here since every call must say it.")
        return event

    def _session_of(self, path: str) -> SessionNode:
        """Return the session that an op stands in."""
        return self.fold.sessions[parent_path(parent_path(path))]

    def _place(self, session: SessionNode, path: str) -> dict[str, Any]:
        """Return where a node is; the root session's own path is empty, and left out."""
        return {**({"path": path} if path else {}), **({"agent": session.agent_id} if session.path else {})}


def _block(node: SessionNode | TurnNode | OperationNode) -> dict[str, Any] | None:
    return None if node.attributes_json is UNSET else node.attributes


def _present(**fields: Any) -> dict[str, Any]:
    """Return the fields that have a value."""
    return {key: value for key, value in fields.items() if value is not None}


def _of_system(kind: str, attributes: dict[str, Any]) -> dict[str, Any]:
    """Return the fields that the seed's system events must have, and may have, from the op's attributes."""
    fields = KINDS.get(kind, Kind())
    known = {key: attributes.get(key, [] if key == "files_created" else "unknown") for key in fields.required}
    return known | {key: attributes[key] for key in fields.optional if key in attributes and key != "timestamp"}
