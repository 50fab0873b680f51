"""Trees in the files of the original ai-agent, versions 1 and 2: one JSON document ``{version, reason, opTree}``.

What differs from ours: paths count within each child session and are not in the nodes; prompts, names, latencies and errors are in the
attributes; a session says success, not status; version 2 has `steps` beside turns. A node that cannot be read is passed over with a note.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, Struct

from optree.ids import node_id, trace_id
from optree.nodes import AccountingEntry, LogEntry, OperationNode, Payload, Pool, Reasoning, ReasoningChunk, SessionNode, TurnNode
from optree.store.plain_values import block_of, json_of, kind_of, number_of, object_of, text_of, texts_of
from optree.tree.fold import UNKNOWN, Fold, Tree
from optree.values import is_list, is_object

VERSIONS = (1, 2)
_IN_FIELDS = ("provider", "model", "name", "latency", "error")
"""Op attributes that are fields of ours."""


class Original(Struct):
    """A tree of the original's."""

    tree: Tree
    meta: dict[str, Any]
    notes: list[str]
    """What was passed over, and where."""


def tree_of(document: dict[str, Any]) -> Original:
    """Return the tree in a document of version 1 or 2, totals summed anew. Raises nothing: what is not there is left out."""
    root = object_of(document.get("opTree"))
    attributes = object_of(root.get("attributes"))
    told = (document.get("originTxnId"), attributes.get("originTxnId"), root.get("traceId"), root.get("id"))
    origin = next((str(name) for name in told if name), "unknown")
    reader = _Reader(origin)
    tree = Fold(origin, Tree(reader.root(root), Pool())).finish()
    meta = {"txn": origin, "reason": document.get("reason"), "source": f"ai-agent {document.get('version')}"}
    return Original(tree, meta, reader.notes)


class _Reader:
    def __init__(self, origin: str) -> None:
        self.origin = origin
        self.notes: list[str] = []
        self._pending: list[tuple[dict[str, Any], OperationNode, SessionNode]] = []

    def root(self, block: dict[str, Any]) -> SessionNode:
        """Return the session with all below it. An explicit stack: sessions may be nested deeply."""
        root = self._session(block, "", None)
        while self._pending:
            inner, op, parent = self._pending.pop()
            op.child_session = self._session(inner, op.path, parent)
        return root

    def _session(self, block: dict[str, Any], path: str, parent: SessionNode | None) -> SessionNode:
        own, agent = str(block.get("id") or node_id(self.origin, path)), str(block.get("agentId") or UNKNOWN)
        trace = block.get("traceId")
        session = SessionNode(
            id=own,
            path=path,
            trace_id=str(trace) if trace and trace != own else trace_id(self.origin),
            agent_id=agent,
            call_path=str(block.get("callPath") or agent),
            origin_txn_id=self.origin,
            started_at=number_of(block.get("startedAt")) or 0.0,
            turns=[],
            parent_txn_id=parent.id if parent is not None else None,
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
        for found in self._objects(block.get("turns"), f"turn of {path or 'the root'}"):
            self._turn(found, session, taken, object_of(found.get("attributes")))
        for found in self._objects(block.get("steps"), f"step of {path or 'the root'}"):
            step = {"step": {key: found[key] for key in ("index", "kind") if key in found}}
            self._turn({**found, "index": None}, session, taken, {**object_of(found.get("attributes")), **step})
        return session

    def _turn(self, block: dict[str, Any], session: SessionNode, taken: set[int], attributes: dict[str, Any]) -> None:
        index = block.get("index")
        if type(index) is not int or index in taken or not 0 <= index < 10**9:
            if index is not None:
                self.notes.append(f"turn {index!r} of {session.path or 'the root'} has a number that it cannot have, and gets the next one")
            index = session.turns[-1].index + 1 if session.turns else 1
            while index in taken:
                index += 1
        taken.add(index)
        path = f"{session.path}.{index}" if session.path else str(index)
        turn = TurnNode(
            id=str(block.get("id") or node_id(self.origin, path)),
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
        for number, found in enumerate(self._objects(block.get("ops"), f"op of turn {path}"), 1):
            op = self._op(found, f"{path}.{number}")
            turn.ops.append(op)
            if is_object(found.get("childSession")):
                self._pending.append((found["childSession"], op, session))

    def _op(self, block: dict[str, Any], path: str) -> OperationNode:
        kind = kind_of(block.get("kind"))
        if kind is None:
            self.notes.append(f"op {path} is of kind {block.get('kind')!r}, and becomes one of the system")
            kind = "system"
        attributes = object_of(block.get("attributes"))
        parts = (attributes.get("provider"), attributes.get("model" if kind == "llm" else "name"))
        op = OperationNode(
            op_id=str(block.get("opId") or node_id(self.origin, path)),
            path=path,
            kind=kind,
            name=":".join(str(part) for part in parts if part) or kind,
            started_at=number_of(block.get("startedAt")) or 0.0,
            logs=(),
            accounting=(),
            ended_at=number_of(block.get("endedAt")),
            latency=number_of(attributes.get("latency")),
            error=text_of(attributes.get("error")),
        )
        status = block.get("status")
        op.status = status if status in ("ok", "failed") else None
        op.attributes_json = block_of({key: value for key, value in attributes.items() if key not in _IN_FIELDS})
        self._content(op, block)
        logs = (self._log(found, path) for found in self._objects(block.get("logs"), f"log of {path}"))
        op.logs = tuple(entry for entry in logs if entry is not None)
        bill = enumerate(self._objects(block.get("accounting"), f"accounting of {path}"), 1)
        entries = (self._accounted(found, f"{op.op_id}#{number}", path) for number, found in bill)
        op.accounting = tuple(entry for entry in entries if entry is not None)
        return op

    def _content(self, op: OperationNode, block: dict[str, Any]) -> None:
        for name in ("request", "response"):
            found = block.get(name)
            if is_object(found):
                size, truncated = found.get("size"), found.get("truncated")
                payload = Payload(
                    json_of(found.get("payload")),
                    text_of(found.get("kind")) if name == "request" else None,
                    size if type(size) is int else None,
                    True if truncated is True else None,
                )
                setattr(op, name, payload)
        thought = block.get("reasoning")
        if is_object(thought):
            chunks = self._objects(thought.get("chunks"), f"reasoning of {op.path}")
            known = (ReasoningChunk(str(one.get("text") or ""), number_of(one.get("ts")) or op.started_at) for one in chunks)
            op.reasoning = Reasoning(tuple(known), text_of(thought.get("final")))

    def _log(self, block: dict[str, Any], path: str) -> LogEntry | None:
        details, direction = block.get("details"), block.get("direction")
        time, message = number_of(block.get("timestamp")), block.get("message")
        if time is None or not isinstance(message, str):
            self.notes.append(f"a log line of {path} has no time or no message, and is passed over")
            return None
        entry = LogEntry(time, str(block.get("severity") or "VRB"), message)
        entry.direction = direction if direction in ("request", "response") else None
        entry.details = UNSET if details is None else json_of(details)
        return entry

    def _accounted(self, block: dict[str, Any], identity: str, path: str) -> AccountingEntry | None:
        tokens = block.get("tokens")
        if is_object(tokens):
            block = {**block, "tokens": _tokens(tokens)}
        try:
            return msgspec.convert({**block, "id": identity}, AccountingEntry)
        except msgspec.ValidationError as error:
            self.notes.append(f"an accounting entry of {path} cannot be read, and is passed over: {error}")
            return None

    def _objects(self, value: Any, what: str) -> list[dict[str, Any]]:
        """Return the objects in a list; what is none is noted."""
        if value is None:
            return []
        items: list[Any] = value if is_list(value) else [value]
        found = [item for item in items if is_object(item)]
        if len(found) < len(items) or not is_list(value):
            self.notes.append(f"{len(items) - len(found) or 1} {what}: not what it should be, and passed over")
        return found if is_list(value) else []


def _tokens(block: dict[str, Any]) -> dict[str, Any]:
    """Return tokens under our names: one provider's name for tokens from the cache is another, and the total may be missing."""
    names = ("inputTokens", "outputTokens", "cacheReadInputTokens", "cacheWriteInputTokens")
    found = {name: block.get(name) or 0 for name in names}
    found["cacheReadInputTokens"] = found["cacheReadInputTokens"] or block.get("cachedTokens") or 0
    total = block.get("totalTokens")
    return {**found, "totalTokens": total or sum(count for count in found.values() if type(count) is int)}


def _taken(attributes: dict[str, Any], name: str) -> dict[str, str] | None:
    """Take a block of texts out of attributes, if it is one."""
    found = texts_of(attributes.get(name))
    if found is not None:
        del attributes[name]
    return found
