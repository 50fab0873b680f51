"""Records in, events out: the events of a run's transcript for each record of a session, and a whole tree as the events of its runs.

Both ways to a transcript pass here: a saved tree as the records that made it, and a session that is recorded right now. A turn is a step of
kind ``turn`` at path ``turn_1``; an op is at ``turn_1.op_2``: a step of kind ``agent`` (llm) or ``operation`` (system), a tool's call and
result, or a step that calls a workflow (session). A tool's call waits for its input, which is the next record, and a session op's start
for its session.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from msgspec import UNSET, Raw

from optree import Tree, walk_sessions
from optree.exporting import (
    Entries,
    OpBegin,
    OpEnd,
    Payload,
    Pool,
    Reasoning,
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
    node_id,
    parent_path,
    payload_shown,
    raw,
    unfold,
)
from optree_formats.transcript import messages
from optree_formats.transcript.building import KEPT, Kept, agrees, kept_of, put_back
from optree_formats.transcript.runs import OpState, RunState, run_id_of
from optree_formats.transcript.wire import (
    CALL,
    KINDS,
    NULL,
    STEP,
    TURN,
    TURNLESS,
    WORKFLOW,
    ContentBlock,
    Event,
    MessagePayload,
    Place,
    StepPayload,
    ToolPayload,
    beside,
    beside_begin,
    beside_end,
    decoded,
    messages_place,
    or_null,
    place_of,
    result_of,
    rfc3339,
    step_path,
    text_block,
)

RUN_ID = "runId"
"""The attribute of a sub-agent's session that holds its run id, where it was read from a transcript that others wrote."""
_ALONE: dict[str, Any] = {"alone": True}
_MESSAGES = "messages"
Emit = Callable[[str, Event], None]
"""Takes an event of the session at a path, to give it its number."""


def transcripts(tree: Tree) -> dict[str, list[Event]]:
    """Return each run's events, by the path of its session: the root's first, parents before children. Each run is numbered from 1."""
    result: dict[str, list[Event]] = {session.path: [] for session in walk_sessions(tree.session)}

    def emit(path: str, event: Event) -> None:
        events = result[path]
        event.seq = len(events) + 1
        events.append(event)

    transcriber = Transcriber(tree.session.origin_txn_id, tree.pool, emit, known(tree))
    for record in unfold(tree):
        transcriber.take(record)
    transcriber.finish(answers=True)
    return result


def known(tree: Tree) -> dict[str, dict[str, Any]]:
    """Return, of a whole tree, what the events at the start of nodes can have already."""
    result: dict[str, dict[str, Any]] = {}
    taken: set[str] = set()
    for session in walk_sessions(tree.session):
        values = {"title": session.session_title, "latestStatus": session.latest_status}
        recorded = session.attributes.get(RUN_ID) if session.path else None
        own = recorded if isinstance(recorded, str) and run_id_of(recorded) == recorded and recorded not in taken else None
        taken.update([own] if own else ())
        result[session.path] = {
            "run_id": own,
            "values": {name: value for name, value in values.items() if value is not None},
        }
        for turn in session.turns:
            if turn.ended_at is None and turn.assistant is not None:
                result[turn.path] = {"values": {"assistant": turn.assistant}}
            result.update((op.path, _ALONE) for op in turn.ops if op.kind == "session" and op.child_session is None)
    return result


class Transcriber:
    """Turns the records of one root session into events.

    *known* holds what is known of nodes beforehand, by path: of a session its run id (``run_id``) and what to tell at its start
    (``told``), of an op that no session comes in it (``alone``). *thought* returns the reasoning of an op that has ended, if it knows
    better than the records.
    """

    def __init__(
        self,
        txn: str,
        pool: Pool,
        emit: Emit,
        known: Mapping[str, Mapping[str, Any]] | None = None,
        thought: Callable[[str], Reasoning | None] | None = None,
    ) -> None:
        self._txn = txn
        self._pool = pool
        self._emit = emit
        self._known = known or {}
        self._thought = thought
        self._runs: dict[str, RunState] = {}
        self._ops: dict[str, OpState] = {}
        self._turns: dict[str, tuple[TurnBegin, dict[str, str] | None]] = {}
        self._turnless: set[str] = set()
        """Turns of sessions that come from runs without turns."""

    def take(self, record: Record) -> None:
        """Take one record; those that a transcript does not hold are passed over."""
        handler = self._HANDLERS.get(type(record))
        if handler is not None:
            handler(self, record)

    def run_id(self, path: str) -> str:
        """Return the run id of the session at *path*."""
        known = self._known.get(path, {}).get("run_id")
        return known or run_id_of(node_id(self._txn, path))

    def finish(self, *, answers: bool = False) -> None:
        """Write the starts that still wait; with *answers* also what ops that have not ended thought and answered so far."""
        for op in self._ops.values():
            run = self._session_of(op.begin.path)
            if not op.started:
                self._start(run, op)
            if answers:
                self._answer(run, op, op.seen or op.begin.ts, None)

    # Sessions

    def _run(self, path: str) -> RunState:
        run = self._runs.get(path)
        if run is None:
            parent = self.run_id(parent_path(parent_path(path))) if path else ""
            run = self._runs[path] = RunState(path, self.run_id(path), parent)
        return run

    def _session_begin(self, record: SessionBegin) -> None:
        run = self._run(record.path)
        run.name = record.agent
        if record.path:
            self._link(record.path)
        attributes: dict[str, Any] = {} if record.attributes is UNSET else decode(record.attributes)
        run.kept = kept_of(attributes)
        own = record.attributes
        if run.kept != Kept():
            attributes.pop(KEPT)
            own = raw(attributes) if attributes else UNSET
        extra = {**({} if record.path else {"txn": self._txn}), **beside(own), **self._known_values(record.path)}
        self._write(run, "run.started", "", record.ts, self._started(run), extra, more=run.kept.started_more)

    def _session_resume(self, record: SessionResume) -> None:
        run = self._run(record.path)
        self._write(run, "run.started", "", record.ts, self._started(run))

    def _started(self, run: RunState) -> Any:
        return put_back(run.kept.started, StepPayload(name=run.name, kind=WORKFLOW))

    def _session_set(self, record: SessionSet) -> None:
        run = self._run(record.path)
        for name, value in (("title", record.title), ("latestStatus", record.latest_status)):
            if value is not None and self._known_values(record.path).get(name) != value:
                run.updates[name] = value

    def _session_end(self, record: SessionEnd) -> None:
        run = self._run(record.path)
        self._release(run)
        payload = StepPayload(name=run.name, kind=WORKFLOW, result=result_of(record.final_report))
        extra = beside_end(payload, record.status, record.error)
        reported = payload.result is not UNSET
        kept = run.kept.completed if agrees(run.kept.completed, record.status, record.error, reported=reported) else UNSET
        original = put_back(kept, payload)
        self._write(run, "run.completed", "", record.ts, original, {**extra, **run.updates}, more=run.kept.completed_more)

    # Turns

    def _turn_begin(self, record: TurnBegin) -> None:
        run = self._run(parent_path(record.path))
        if record.attributes is not UNSET and decode(record.attributes).get(TURNLESS) is True:
            self._turnless.add(record.path)
            return
        self._turns[record.path] = record, None
        step = StepPayload(name=step_path(record.path), kind=TURN)
        self._write(run, "step.started", step.name, record.ts, step, {**beside(record.attributes), **self._known_values(record.path)})
        prompts = record.prompts or {}
        blocks = [(role, text_block(prompts[role])) for role in ("user", "system") if prompts.get(role)]
        self._message(run, record.path, record.ts, blocks)

    def _turn_set(self, record: TurnSet) -> None:
        if record.path in self._turns and record.assistant is not None:
            self._turns[record.path] = self._turns[record.path][0], record.assistant

    def _turn_end(self, record: TurnEnd) -> None:
        if record.path in self._turnless:
            return
        run = self._run(parent_path(record.path))
        _, assistant = self._turns.pop(record.path, (None, None))
        step = StepPayload(name=step_path(record.path), kind=TURN)
        if assistant is not None:
            step.result = raw(assistant["content"] if [*assistant] == ["content"] else assistant)
        extra = beside_end(step, record.status, record.error)
        self._write(run, "step.completed", step.name, record.ts, step, extra)

    # Ops

    def _op_begin(self, record: OpBegin) -> None:
        run = self._session_of(record.path)
        op = self._ops[record.path] = OpState(record, self._place(record))
        if record.kind in ("tool", "session"):
            asked = next((identity for identity, block in run.calls.items() if block.tool_name == record.name), None)
            run.calls.pop(asked or "", None)
        if record.kind == "tool":
            self._release(run)
            run.held = op
        elif (record.kind != "session" and not op.place.type) or self._known.get(record.path, {}).get("alone"):
            self._start(run, op)

    def _link(self, path: str) -> None:
        """Write that an op called a run."""
        op = self._ops.get(path)
        if op is None or op.linked or (op.place.foreign and op.begin.kind != "session"):  # whose own event names the run
            return
        run = self._session_of(path)
        self._release(run)
        if op.begin.kind != "session" and not op.started:
            self._start(run, op)
        op.linked = op.started = True
        step = StepPayload(name=op.begin.name, kind=op.place.kind or CALL)
        extra = self._beside(op) if op.begin.kind == "session" else {"kind": op.begin.kind}
        self._write(run, "step.call_workflow.started", op.place, op.begin.ts, step, extra, child=self.run_id(path))

    def _start(self, run: RunState, op: OpState) -> None:
        """Write that an op began."""
        op.started = True
        run.held = None if run.held is op else run.held
        begin = op.begin
        child = self.run_id(begin.path) if op.place.foreign and "run_id" in self._known.get(begin.path, {}) else ""
        if begin.kind == "tool":
            for tool in self._tools(op)[::-1]:
                self._write(run, "tool.call", op.place, begin.ts, tool, self._beside(op))
        elif op.place.type:
            response = None if op.response is None else self._resolved(op.response)
            self._write(run, op.place.type, op.place, begin.ts, response, self._beside(op), child=child)
        elif not (op.place.foreign and begin.kind == "llm" and not op.place.kind):  # messages that no step of an agent encloses
            step = StepPayload(name=begin.name, kind=op.place.kind or KINDS[begin.kind])
            self._write(run, "step.started", op.place, begin.ts, step, self._beside(op), child=child)

    def _release(self, run: RunState) -> None:
        op, run.held = run.held, None
        if op is not None and not op.started:
            self._start(run, op)

    def _requested(self, record: Requested) -> None:
        run = self._session_of(record.path)
        op = self._ops.get(record.path)
        if op is None:
            return
        op.request = record.request
        if run.held is op:
            self._release(run)
        elif op.begin.kind == "llm":
            self._ask(run, op, record)

    def _ask(self, run: RunState, op: OpState, record: Requested) -> None:
        blocks = messages.sent(decoded(self._resolved(record.request)))
        for _, block in blocks if not op.place.foreign else ():
            asked = run.calls.pop(block.tool_id, None) if block.type == "tool_result" else None
            if asked is not None:
                block.fidelity = "agent_emitted"
                self._reported(run, asked, block, record)
        self._message(run, messages_place(op.place), record.ts, blocks)

    def _reported(self, run: RunState, asked: ContentBlock, result: ContentBlock, record: Requested) -> None:
        """Write a call that is only in the messages."""
        tool = ToolPayload(
            name=asked.tool_name, call_id=asked.tool_id, input=or_null(asked.tool_input), output=NULL, fidelity="agent_emitted"
        )
        self._write(run, "tool.call", record.path, record.ts, tool, {"from": _MESSAGES})
        answered = ToolPayload(
            name=asked.tool_name,
            call_id=asked.tool_id,
            input=or_null(asked.tool_input),
            output=or_null(result.tool_content),
            fidelity="agent_emitted",
        )
        self._write(run, "tool.result", record.path, record.ts, answered, {"from": _MESSAGES})

    def _entries(self, record: Entries) -> None:
        op = self._ops.get(record.path)
        if op is not None and record.chunks:
            texts = [chunk.text for chunk in record.chunks]
            op.chunks += texts
            op.seen = record.chunks[-1].ts if any(texts) else op.seen

    def _responded(self, record: Responded) -> None:
        op = self._ops.get(record.path)
        if op is not None:
            op.response = record.response

    def _op_end(self, record: OpEnd) -> None:
        op = self._ops.pop(record.path, None)
        if op is None:
            return
        run = self._session_of(record.path)
        if not op.started:
            self._start(run, op)
        self._answer(run, op, record.ts, record.reasoning)
        extra = {**beside(record.attributes), **({"partial": True} if op.response is not None and op.response.partial else {})}
        result = UNSET if op.response is None else result_of(self._resolved(op.response))
        if op.linked:
            step = StepPayload(name=op.begin.name, kind=op.place.kind or CALL, result=result)
            kind = op.begin.kind
            more = {**beside_end(step, record.status, record.error), **(extra if kind == "session" else {"kind": kind})}
            self._write(run, "step.call_workflow.completed", op.place, record.ts, step, more, child=self.run_id(record.path))
            if kind == "session":
                return
        if op.begin.kind == "tool":
            for tool in self._tools(op):
                tool.output = NULL if result is UNSET else result
                more = {**beside_end(tool, record.status, record.error), **extra}
                self._write(run, "tool.result", op.place, record.ts, tool, more)
            return
        if op.place.type:  # the event of its start has all of it
            return
        if op.place.foreign and op.begin.kind == "llm" and not op.place.unsaid:
            result = UNSET if op.place.result is None else raw(op.place.result)
        step = StepPayload(name=op.begin.name, kind=op.place.kind or KINDS[op.begin.kind], result=result)
        more = {**beside_end(step, record.status, record.error), **extra}
        self._write(run, "step.completed", op.place, record.ts, step, more)

    def _answer(self, run: RunState, op: OpState, ts: float, final: str | None) -> None:
        """Write what an op thought and, if it is a model's, answered."""
        better = self._thought(op.begin.path) if self._thought is not None else None
        if better is not None:
            op.chunks = [chunk.text for chunk in better.chunks]
            final = better.final if final is None else final
        thought = "".join(op.chunks) if final is None else final
        llm = op.begin.kind == "llm" and op.response is not None and not op.place.unsaid
        blocks = messages.answer(decoded(self._resolved(op.response)) if llm else None, thought)
        if blocks:
            run.calls.update((block.tool_id, block) for block in blocks if block.type == "tool_use" and block.tool_id)
            extra = {"partial": True} if llm and op.response is not None and op.response.partial else {}
            self._write(run, "message.assistant", messages_place(op.place), ts, MessagePayload(role="assistant", blocks=blocks), extra)

    # Writing

    def _message(self, run: RunState, path: str | Place, ts: float, sent_blocks: list[messages.SentBlock]) -> None:
        blocks = [block for _, block in sent_blocks]
        if blocks:
            real = [role for role, _ in sent_blocks]
            extra = {} if real == messages.roles(blocks) else {"roles": real}
            self._write(run, "message.user", path, ts, MessagePayload(role="user", blocks=blocks), extra)

    def _place(self, begin: OpBegin) -> Place:
        if parent_path(begin.path) not in self._turnless:
            return Place(step_path(begin.path))
        return place_of({} if begin.attributes is UNSET else decode(begin.attributes))

    def _beside(self, op: OpState) -> dict[str, Any]:
        """Return the part of an op's begin that the seed's members do not hold; of a step of others, the part that it does not hold."""
        begin = op.begin
        if not op.place.foreign:
            return beside_begin(begin)
        attributes: dict[str, Any] = {} if begin.attributes is UNSET else decode(begin.attributes)
        more = {name: value for name, value in attributes.items() if name != STEP}
        return {"attributes": raw(more)} if more else {}

    def _tools(self, op: OpState) -> list[ToolPayload]:
        """Return a call, and the same as its agent reported it, if it did."""
        sent = NULL if op.request is None else self._resolved(op.request)
        identity = op.place.call_id or node_id(self._txn, op.begin.path)
        result = [ToolPayload(name=op.begin.name, call_id=identity, input=sent, output=NULL, fidelity=op.place.fidelity)]
        if op.place.reported:
            result.append(ToolPayload(name=op.begin.name, call_id=op.place.reported, input=sent, output=NULL, fidelity="agent_emitted"))
        return result

    def _resolved(self, payload: Payload | None) -> Raw:
        """Return a payload's JSON, what it refers to filled in, and what it keeps in base64 decoded."""
        if payload is None:
            return NULL
        data = payload.payload
        as_it_is = not any(mark in bytes(data) for mark in (b'"$history"', b'"$blob"', b'"base64"'))
        return data if as_it_is else raw(payload_shown(self._pool.resolve(decoded(data))))

    def _write(
        self,
        run: RunState,
        kind: Any,
        at: str | Place,
        ts: float,
        payload: Any,
        extra: Mapping[str, Any] | None = None,
        *,
        child: str = "",
        more: Mapping[str, Any] | None = None,
    ) -> None:
        """Hand on an event; *at* is a node's path, a step's, or its place."""
        self._release(run)
        place = at if isinstance(at, Place) else Place(step_path(at) if at[:1].isdigit() else at)
        event = Event(
            seq=0,
            run_id=run.run_id,
            parent_run_id=run.parent_run_id,
            child_run_id=child,
            type=kind,
            path=place.path,
            iteration=place.iteration,
            timestamp=rfc3339(ts),
            payload=payload,
            optree=dict(extra) if extra else None,
            more={name: raw(value) for name, value in more.items()} if more else None,
        )
        self._emit(run.path, event)

    def _session_of(self, op_path: str) -> RunState:
        return self._run(parent_path(parent_path(op_path)))

    def _known_values(self, path: str) -> dict[str, Any]:
        return dict(self._known.get(path, {}).get("values", {}))

    _HANDLERS: ClassVar[dict[type[Any], Callable[[Transcriber, Any], None]]] = {
        SessionBegin: _session_begin,
        SessionResume: _session_resume,
        SessionSet: _session_set,
        SessionEnd: _session_end,
        TurnBegin: _turn_begin,
        TurnSet: _turn_set,
        TurnEnd: _turn_end,
        OpBegin: _op_begin,
        Requested: _requested,
        Responded: _responded,
        Entries: _entries,
        OpEnd: _op_end,
    }
