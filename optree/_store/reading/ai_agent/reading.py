"""Trees in the files of the original ai-agent, versions 1 and 2.

What differs from ours: paths count within each child session and are not in the nodes; prompts, names, latencies and errors are in the
attributes; a session says success, not status; its own id is its transaction's, and its node has another; version 2 has `steps` beside
turns. A node that cannot be read is passed over with a note.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

from optree._ids import node_id, trace_id, txn_of
from optree._nodes import AccountingEntry, LogEntry, OperationNode, Payload, Pool, Reasoning, ReasoningChunk, SessionNode, TurnNode, kind_of
from optree._store.reading.ai_agent.terms import IN_FIELDS, STEP, name_of
from optree._store.reading.ai_agent.writing import (
    Context,
    agents_of,
    difference,
    file_block,
    kept_in,
    op_block,
    part_block,
    session_block,
    turn_block,
)
from optree._tree.fold import UNKNOWN, Fold, Tree
from optree._tree.totals import flaws_of_parts, leave_out_impossible, stored_parts
from optree._tree.walk import called, unused
from optree._values import block_of, is_list, is_object, json_of, number_of, object_of, objects_of, text_of, texts_of

VERSIONS = (1, 2)


class Original(Struct):
    """A tree of the original's."""

    tree: Tree
    meta: dict[str, Any]
    notes: list[str]
    """What was passed over, and where."""
    renamed: list[str]
    """The txn that the file gave, if it can name no session."""


def tree_of(document: dict[str, Any]) -> Original:
    """Return the tree in a document of version 1 or 2, totals summed anew. Raises nothing: members that are missing are left out."""
    root = object_of(document.get("opTree"))
    origin_given = _origin(document, root)
    origin = txn_of(origin_given, "ai-agent")
    reader = _SnapshotReader(origin, 1 if document.get("version") == 1 else 2)
    tree = Fold(origin, Tree(reader.root(root, text_of(document.get("parentTxnId"))), Pool())).finish()
    reader.keep_rests(tree.session, document)
    meta = {"txn": origin, "reason": document.get("reason"), "source": f"ai-agent {document.get('version')}"}
    return Original(tree, meta, reader.notes, called(origin_given, origin) if origin_given != UNKNOWN else [])


def _origin(document: dict[str, Any], root: dict[str, Any]) -> str:
    """Return the txn of the whole run, which log lines name as well."""
    ops = (op for turn in objects_of(root.get("turns"))[:1] for op in objects_of(turn.get("ops")))
    logged = next((log.get("originTxnId") for op in ops for log in objects_of(op.get("logs"))), None)
    attributes = object_of(root.get("attributes"))
    candidates = (document.get("originTxnId"), attributes.get("originTxnId"), logged, root.get("traceId"), root.get("id"))
    return next((str(name) for name in candidates if name), UNKNOWN)


class _SnapshotReader:
    def __init__(self, origin: str, version: int) -> None:
        self.origin, self.version = origin, version
        self.notes: list[str] = []
        self._pending: list[tuple[dict[str, Any], OperationNode, SessionNode]] = []
        self._sessions: list[tuple[dict[str, Any], SessionNode, list[int]]] = []
        """Blocks of sessions, the nodes made of them, and the numbers of their turns in the order of the file."""
        self._ids: set[str] = set()
        self._nodes: set[str] = set()
        """Ids of turns and ops."""

    def root(self, block: dict[str, Any], parent: str | None) -> SessionNode:
        """Return the session with all below it. An explicit stack: sessions may be nested deeply."""
        root = self._session(block, "", parent)
        while self._pending:
            inner, op, above = self._pending.pop()
            op.child_session = self._session(inner, op.path, above.id)
        return root

    def keep_rests(self, root: SessionNode, document: dict[str, Any]) -> None:
        """Keep what sessions and the file have beside what the tree says, once all is summed."""
        agents = agents_of(root)
        for block, session, order in self._sessions:
            rest_of_session = difference(block, session_block(session, self.version, agents[session.path]))
            if order != sorted(order):
                rest_of_session["order"] = order
            if session is root:
                version = document.get("version")
                file = {key: value for key, value in document.items() if key != "opTree"}
                rest = difference(file, file_block(root, self.version))
                rest_of_session |= {"file": {"version": version, **rest}} if rest or version != VERSIONS[-1] else {}
            session.attributes_json = kept_in(session.attributes_json, rest_of_session)

    def _session(self, block: dict[str, Any], path: str, parent: str | None) -> SessionNode:
        agent = str(block.get("agentId") or UNKNOWN)
        session = SessionNode(
            id=self._id(block, path),
            path=path,
            trace_id=trace_id(self.origin),
            agent_id=agent,
            call_path=str(block.get("callPath") or agent),
            origin_txn_id=self.origin,
            started_at=number_of(block.get("startedAt")) or 0.0,
            turns=[],
            parent_txn_id=parent,
            session_title=text_of(block.get("sessionTitle")) or None,
            latest_status=text_of(block.get("latestStatus")),
            attributes_json=block_of(object_of(block.get("attributes"))),
            ended_at=number_of(block.get("endedAt")),
            error=text_of(block.get("error")),
        )
        if isinstance(block.get("success"), bool):
            session.success = block["success"]
            session.status = "ok" if session.success else "failed"
        if block.get("finalReport") is not None:
            session.final_report = json_of(block["finalReport"])
        taken: set[int] = set()
        for item in self._objects(block.get("turns"), f"turn of {path or 'the root'}"):
            self._turn(item, session, taken, {**object_of(item.get("attributes"))}, item.get("index"))
        order = [turn.index for turn in session.turns]
        for item in self._objects(block.get("steps"), f"step of {path or 'the root'}"):
            step = {STEP: {key: item[key] for key in ("index", "kind") if key in item}}
            self._turn(item, session, taken, {**object_of(item.get("attributes")), **step}, None)
        self._sessions.append((block, session, order))
        return session

    def _id(self, block: dict[str, Any], path: str) -> str:
        """Return a session's transaction id; its node's id where it has none, or one that another session has."""
        candidates = (block.get("traceId"), block.get("id"), node_id(self.origin, path))
        chosen = next(str(name) for name in candidates if name and str(name) not in self._ids)
        self._ids.add(chosen)
        return chosen

    def _turn(self, block: dict[str, Any], session: SessionNode, taken: set[int], attributes: dict[str, Any], index: Any) -> None:
        if type(index) is not int or index in taken or not 0 <= index < 10**9:
            if index is not None:
                self.notes.append(f"turn {index!r} of {session.path or 'the root'} has a number that it cannot have, and gets the next one")
            index = session.turns[-1].index + 1 if session.turns else 1
            while index in taken:
                index += 1
        taken.add(index)
        path = f"{session.path}.{index}" if session.path else str(index)
        turn = TurnNode(
            id=unused(block.get("id"), node_id(self.origin, path), self._nodes),
            path=path,
            index=index,
            started_at=number_of(block.get("startedAt")) or 0.0,
            ops=[],
            ended_at=number_of(block.get("endedAt")),
            prompts=_taken(attributes, "prompts"),
            assistant=_taken(attributes, "assistant"),
        )
        turn.attributes_json = block_of(attributes)
        session.turns.append(turn)
        for number, item in enumerate(self._objects(block.get("ops"), f"op of turn {path}"), 1):
            op = self._op(item, f"{path}.{number}")
            turn.ops.append(op)
            self._entries(item, op, Context(session, turn, op, number, self.version))
            if is_object(item.get("childSession")):
                self._pending.append((item["childSession"], op, session))
        _close(turn, session)
        turn.attributes_json = kept_in(turn.attributes_json, difference(block, turn_block(turn, self.version)))

    def _op(self, block: dict[str, Any], path: str) -> OperationNode:
        kind = kind_of(block.get("kind"))
        if kind is None:
            self.notes.append(f"op {path} is of kind {block.get('kind')!r}, and becomes one of the system")
            kind = "system"
        attributes = object_of(block.get("attributes"))
        op = OperationNode(
            op_id=unused(block.get("opId"), node_id(self.origin, path), self._nodes),
            path=path,
            kind=kind,
            name=name_of(kind, attributes),
            started_at=number_of(block.get("startedAt")) or 0.0,
            logs=(),
            accounting=(),
            ended_at=number_of(block.get("endedAt")),
            latency=number_of(attributes.get("latency")),
            error=text_of(attributes.get("error")),
        )
        status = block.get("status")
        op.status = status if status in ("ok", "failed") else None
        op.attributes_json = block_of({key: value for key, value in attributes.items() if key not in IN_FIELDS})
        self._content(op, block)
        return op

    def _entries(self, block: dict[str, Any], op: OperationNode, context: Context) -> None:
        """Read an op's log lines and its bill, and keep what the block has beside what the op says."""
        logs = (self._log(item, op.path, context) for item in self._objects(block.get("logs"), f"log of {op.path}"))
        op.logs = tuple(entry for entry in logs if entry is not None)
        entries: list[AccountingEntry] = []
        rests: list[dict[str, Any]] = []
        for number, item in enumerate(self._objects(block.get("accounting"), f"accounting of {op.path}"), 1):
            entry = self._accounted(item, f"{op.op_id}#{number}", op.path)
            if entry is not None:
                entries.append(entry)
                rests.append(difference(item, context.accounting_block(entry)))
        op.accounting = tuple(entries)
        rest_of_op = difference(_unloaded(block), op_block(op, part_block(op.request, True), part_block(op.response, True)))
        op.attributes_json = kept_in(op.attributes_json, {**rest_of_op, **({"accounting": rests} if any(rests) else {})})

    def _content(self, op: OperationNode, block: dict[str, Any]) -> None:
        for name in ("request", "response"):
            part = block.get(name)
            if is_object(part):
                size, truncated = part.get("size"), part.get("truncated")
                payload = Payload(
                    json_of(part.get("payload")),
                    text_of(part.get("kind")) if name == "request" else None,
                    size if type(size) is int else None,
                    True if truncated is True else None,
                )
                setattr(op, name, payload)
        thought = block.get("reasoning")
        if is_object(thought):
            chunks = self._objects(thought.get("chunks"), f"reasoning of {op.path}")
            known = (ReasoningChunk(str(chunk.get("text") or ""), number_of(chunk.get("ts")) or op.started_at) for chunk in chunks)
            op.reasoning = Reasoning(tuple(known), text_of(thought.get("final")))

    def _log(self, block: dict[str, Any], path: str, context: Context) -> LogEntry | None:
        details, direction = block.get("details"), block.get("direction")
        time, message = number_of(block.get("timestamp")), block.get("message")
        if time is None or not isinstance(message, str):
            self.notes.append(f"a log line of {path} has no time or no message, and is passed over")
            return None
        entry = LogEntry(time, str(block.get("severity") or "VRB"), message)
        entry.direction = direction if direction in ("request", "response") else None
        entry.details = block_of(object_of(details))
        entry.details = kept_in(entry.details, difference(block, context.log_block(entry)))
        return entry

    def _accounted(self, block: dict[str, Any], identity: str, path: str) -> AccountingEntry | None:
        tokens, details = block.get("tokens"), block.get("details")
        block = {name: value for name, value in block.items() if name != "details"}
        if is_object(tokens):
            block = {**block, "tokens": stored_parts(tokens)}
            self.notes += [f"tokens of {path} cannot be so, and are kept: {flaw}" for flaw in flaws_of_parts(block["tokens"])]
        try:
            entry = msgspec.convert({**block, "id": identity}, AccountingEntry)
        except msgspec.ValidationError as error:
            self.notes.append(f"an accounting entry of {path} cannot be read, and is passed over: {error}")
            return None
        if details is not None:
            entry.details = json_of(details)
        left_out = leave_out_impossible(entry)
        self.notes += [f"{name} of an accounting entry of {path}: more than any call can come to, and left out" for name in left_out]
        return entry

    def _objects(self, value: Any, what: str) -> list[dict[str, Any]]:
        """Return the objects in a list; other values are noted."""
        if value is None:
            return []
        items: list[Any] = value if is_list(value) else [value]
        objects = [item for item in items if is_object(item)]
        if len(objects) < len(items) or not is_list(value):
            self.notes.append(f"{len(items) - len(objects) or 1} {what}: not what it should be, and passed over")
        return objects if is_list(value) else []


def _close(turn: TurnNode, session: SessionNode) -> None:
    """End a turn where the file does not, and all in it has ended, as the session has: the original never ends its last turn."""
    if turn.ended_at is None and session.ended_at is not None and all(op.ended_at is not None for op in turn.ops):
        turn.ended_at = max((op.ended_at or 0.0 for op in turn.ops), default=session.ended_at)


def _unloaded(block: dict[str, Any]) -> dict[str, Any]:
    """Return an op's block, true in the place of each payload: payloads are kept as they are, and may be large."""
    parts = {
        name: {**block[name], "payload": True}
        for name in ("request", "response")
        if is_object(block.get(name)) and "payload" in block[name]
    }
    return {**block, **parts}


def _taken(attributes: dict[str, Any], name: str) -> dict[str, str] | None:
    """Take a block of texts out of attributes, if it is one."""
    texts = texts_of(attributes.get(name))
    if texts is not None:
        del attributes[name]
    return texts
