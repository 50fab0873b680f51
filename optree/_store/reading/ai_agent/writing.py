"""Versions 1 and 2: one JSON document, member for member as the original writes it, with the rest of the file that the tree came from.

The rest is what a file has beside the fields of its nodes. It is kept when the file is read, among a node's attributes (of a log line: its
details) under `AS_TOLD`: ``{"members": {…}, "without": [pointers]}``, members that differ from what the fields alone would give, and (as
JSON pointers) members that the fields would give and the file does not have. Each `*_block` gives a node without what is below it, and
without its rest: reading compares a file's blocks with these.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, Raw, UnsetType

from optree._nodes import AS_TOLD, AccountingEntry, LogEntry, OperationNode, Payload, SessionNode, TurnNode
from optree._store.reading.ai_agent.terms import STEP, attributes_of_op, attributes_of_turn, children, ms, payload, step_of, txn_of
from optree._store.reading.snapshot import MAX_NESTED
from optree._tree.fold import Tree
from optree._tree.walk import walk_sessions
from optree._values import block_of, decode, is_list, is_object, object_of, objects_of
from optree.errors import StoreError

_MARK = f'"{AS_TOLD}"'.encode()
_LISTS = frozenset({"turns", "steps", "ops", "logs", "accounting"})
"""What a block has below it: nodes and entries of the tree."""
_DEPTH = 2
"""How far down objects are compared member by member: a node's own, and those of its attributes. Deeper ones differ as a whole."""


def difference(original: dict[str, Any], written: dict[str, Any]) -> dict[str, Any]:
    """Return what `restored` needs to make *original* of *written*; empty if they are the same JSON. Nodes below them are left out."""
    without: list[str] = []
    below = {
        name for name, value in original.items() if (name in _LISTS and is_list(value)) or (name == "childSession" and is_object(value))
    }
    own, known = ({name: value for name, value in block.items() if name not in below} for block in (original, written))
    members = _members(own, known, "", without, _DEPTH)
    rest = {"members": members, "without": without}
    return {name: value for name, value in rest.items() if value}


def restored(written: dict[str, Any], rest: Any) -> dict[str, Any]:
    """Return a block as the file had it. The nodes below it are those of the tree, and stay."""
    block = object_of(rest)
    own = {name: value for name, value in object_of(block.get("members")).items() if not (name in _LISTS and written.get(name))}
    merged = _merged(written, own, _DEPTH)
    without = block.get("without")
    for pointer in without if is_list(without) else []:
        parts = [part.replace("~1", "/").replace("~0", "~") for part in str(pointer).split("/")[1:]]
        if not (parts[0:1] and parts[0] in _LISTS and merged.get(parts[0])):
            _drop(merged, parts)
    return merged


def told_of(attributes: Raw | UnsetType) -> dict[str, Any]:
    """Return what is kept under `AS_TOLD` of a node's attributes, or of a log line's details."""
    if attributes is UNSET or _MARK not in bytes(attributes):
        return {}
    decoded = decode(attributes)
    return object_of(object_of(decoded).get(AS_TOLD))


def kept_in(attributes: Raw | UnsetType, original: dict[str, Any]) -> Raw | UnsetType:
    """Return attributes with *original* in them under `AS_TOLD`; as they are if there is nothing to keep."""
    if not original:
        return attributes
    members: dict[str, Any] = {} if attributes is UNSET else decode(attributes)
    return block_of({**members, AS_TOLD: original})


def same(first: Any, second: Any) -> bool:
    """Tell whether two values are the same JSON: true is not 1, and 1.5 is not 1."""
    try:
        return msgspec.json.encode(first) == msgspec.json.encode(second)
    except OverflowError:
        return bool(first == second)


def _members(original: dict[str, Any], written: dict[str, Any], place: str, without: list[str], depth: int) -> dict[str, Any]:
    differing: dict[str, Any] = {}
    for name, value in original.items():
        ours = written.get(name)
        if depth and is_object(value) and is_object(ours):
            inner = _members(value, ours, f"{place}/{_escaped(name)}", without, depth - 1)
            differing |= {name: inner} if inner else {}
        elif name not in written or not same(value, ours):
            differing[name] = value
    without += [f"{place}/{_escaped(name)}" for name in written if name not in original]
    return differing


def _merged(written: dict[str, Any], members: dict[str, Any], depth: int) -> dict[str, Any]:
    merged = dict(written)
    for name, value in members.items():
        ours = merged.get(name)
        if depth and is_object(value) and is_object(ours):
            merged[name] = _merged(ours, value, depth - 1)
        else:
            merged[name] = value
    return merged


def _drop(block: dict[str, Any], parts: list[str]) -> None:
    for part in parts[:-1]:
        inner = block.get(part)
        if not is_object(inner):
            return
        block = inner
    if parts:
        block.pop(parts[-1], None)


def _escaped(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")


MONEY_DECIMALS = 4
_OF_THE_END = frozenset({"endedAt", "success", "error", "totals", "sessionTitle", "latestStatus"})
"""Members of a session that say how it stood when a file was written: no longer true of one that was resumed since."""


def version_of(tree: Tree, default: int) -> int:
    """Return the version of the file that a tree came from; *default* for one that came from none, or went on since."""
    file = object_of(told_of(tree.session.attributes_json).get("file"))
    version = file.get("version")
    return version if type(version) is int and version in (1, 2) and not tree.session.resumed_at else default


def document(tree: Tree, version: int) -> bytes:
    """Return a tree as the JSON of a snapshot of version 1 or 2. Raises `StoreError` if it is nested more deeply than readers go."""
    root = tree.session
    if any(session.path.count(".") >= 2 * MAX_NESTED for session in walk_sessions(root)):
        raise StoreError(
            f"session {root.origin_txn_id} is nested more than {MAX_NESTED} deep, which no file of ai-agent holds: use --to json"
        )
    whole = file_block(root, version)
    file = object_of(told_of(root.attributes_json).get("file"))
    if file.get("version") == version and not root.resumed_at:
        whole = restored(whole, file)
    whole.pop("opTree", None)
    return msgspec.json.encode({**whole, "opTree": _DocumentWriter(tree, version).session(root)})


def file_block(root: SessionNode, version: int) -> dict[str, Any]:
    """Return what stands beside the tree in a file."""
    whole: dict[str, Any] = {"version": version, "reason": "subagent_finish" if root.ended_at is None else "final"}
    if version > 1:
        txn = root.origin_txn_id
        whole |= {"sessionId": txn_of(root), "originId": txn, "originTxnId": txn, "timestamp": ms(root.ended_at or root.started_at)}
    return whole


def agents_of(root: SessionNode) -> dict[str, int]:
    """Return how many sessions there are at and below each, by its path."""
    agents: dict[str, int] = {}
    for session in reversed(list(walk_sessions(root))):
        agents[session.path] = 1 + sum(agents[child.path] for child in children(session))
    return agents


def session_block(session: SessionNode, version: int, agents: int) -> dict[str, Any]:
    """Return a session's own members."""
    attributes = session.attributes
    attributes.pop(AS_TOLD, None)
    block: dict[str, Any] = {
        "id": session.id,
        "traceId": txn_of(session),
        "agentId": session.agent_id,
        "callPath": session.call_path,
        "sessionTitle": session.session_title or "",
        "latestStatus": session.latest_status,
        "startedAt": ms(session.started_at),
        "endedAt": None if session.ended_at is None else ms(session.ended_at),
        "success": session.success,
        "error": session.error,
        "attributes": attributes or None,
        "totals": _totals(session, version, agents),
        "turns": [],
    }
    if version > 1:
        block["steps"] = []
        block["finalReport"] = None if session.final_report is UNSET else decode(session.final_report)
    return _set(block)


def _totals(session: SessionNode, version: int, agents: int) -> dict[str, Any]:
    totals = session.totals
    block: dict[str, Any] = {
        "tokensIn": totals.input_tokens,
        "tokensOut": totals.output_tokens,
        "tokensCacheRead": totals.cache_read_input_tokens,
        "tokensCacheWrite": totals.cache_write_input_tokens,
        "costUsd": round(totals.cost_usd, MONEY_DECIMALS) if totals.known_costs else None,
        "toolsRun": totals.tools_run,
    }
    if version > 1:
        block["agentsRun"] = agents
    return _set(block)


def turn_block(turn: TurnNode, version: int) -> dict[str, Any]:
    """Return a turn's own members; in version 2 those of a step, if it was one."""
    attributes = attributes_of_turn(turn)
    attributes.pop(AS_TOLD, None)
    step = step_of(turn) if version > 1 else None
    if step is not None:
        attributes.pop(STEP)
    block: dict[str, Any] = {
        "id": turn.id,
        **({"index": turn.index} if step is None else step),
        "startedAt": ms(turn.started_at),
        "endedAt": None if turn.ended_at is None else ms(turn.ended_at),
        "attributes": attributes or None,
        "ops": [],
    }
    return _set(block)


def op_block(op: OperationNode, request: dict[str, Any] | None, response: dict[str, Any] | None) -> dict[str, Any]:
    """Return an op's own members, with its payloads as they are given."""
    attributes = attributes_of_op(op)
    attributes.pop(AS_TOLD, None)
    block: dict[str, Any] = {
        "opId": op.op_id,
        "kind": op.kind,
        "startedAt": ms(op.started_at),
        "endedAt": None if op.ended_at is None else ms(op.ended_at),
        "status": None if op.status is None else "ok" if op.status == "ok" else "failed",
        "attributes": attributes or None,
        "logs": [],
        "accounting": [],
        "request": request,
        "response": response,
    }
    if op.reasoning is not None:
        chunks = [{"text": chunk.text, "ts": ms(chunk.ts)} for chunk in op.reasoning.chunks]
        block["reasoning"] = _set({"chunks": chunks, "final": op.reasoning.final})
    return _set(block)


def part_block(part: Payload | None, value: Any) -> dict[str, Any] | None:
    """Return a request or a response that holds *value*."""
    if part is None:
        return None
    after = _set({"size": part.size, "truncated": part.truncated or part.partial})
    return {**_set({"kind": part.kind}), "payload": value, **after}


class Context:
    """Where an op stands, as each of its entries says it."""

    def __init__(self, session: SessionNode, turn: TurnNode, op: OperationNode, number: int, version: int) -> None:
        step = step_of(turn) if version > 1 else None
        place = f"{turn.index}" if step is None else f"S{step.get('index')}"
        called = number if op.kind in ("tool", "session") else 0
        self.place = {"turn": turn.index, "subturn": called, "path": f"{place}{'.' if version == 1 else '-'}{number}"}
        self.kind, self.name = "llm" if op.kind == "llm" else "tool", op.name or op.kind
        self.session = {
            "agentId": session.agent_id,
            "callPath": session.call_path,
            "txnId": txn_of(session),
            "parentTxnId": session.parent_txn_id,
            "originTxnId": session.origin_txn_id,
        }

    def log_block(self, entry: LogEntry) -> dict[str, Any]:
        """Return a log line."""
        details = None if entry.details is UNSET else decode(entry.details)
        if is_object(details):
            details = {key: value for key, value in details.items() if key != AS_TOLD} or None
        block: dict[str, Any] = {
            "timestamp": ms(entry.timestamp),
            "severity": entry.severity,
            **self.place,
            "direction": entry.direction,
            "type": self.kind,
            "remoteIdentifier": self.name,
            "fatal": False,
            "message": entry.message,
            **self.session,
            "details": details,
        }
        return _set(block)

    def accounting_block(self, entry: AccountingEntry) -> dict[str, Any]:
        """Return an accounting entry."""
        block: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(entry))  # details are JSON already
        del block["id"]
        block |= {"timestamp": ms(entry.timestamp), "status": entry.status}
        if entry.latency is not None:
            block["latency"] = ms(entry.latency)
        if entry.tokens is not None:
            block["tokens"] = {"inputTokens": 0, "outputTokens": 0, "totalTokens": 0, **block["tokens"]}
        return {**block, **_set(self.session)}


class _DocumentWriter:
    def __init__(self, tree: Tree, version: int) -> None:
        self._pool = tree.pool
        self._version = version
        self._agents = agents_of(tree.session)
        self._resumed = bool(tree.session.resumed_at)

    def session(self, session: SessionNode) -> dict[str, Any]:
        rest = told_of(session.attributes_json)
        block = session_block(session, self._version, self._agents[session.path])
        steps = [turn for turn in session.turns if self._version > 1 and step_of(turn) is not None]
        turns = [turn for turn in session.turns if self._version == 1 or step_of(turn) is None]
        block["turns"] = [self._turn(turn, session) for turn in _in_order(turns, rest.get("order"))]
        if steps:
            block["steps"] = [self._turn(turn, session) for turn in steps]
        return restored(block, _without_end(rest) if self._resumed else rest)

    def _turn(self, turn: TurnNode, session: SessionNode) -> dict[str, Any]:
        block = turn_block(turn, self._version)
        block["ops"] = [self._op(op, number, turn, session) for number, op in enumerate(turn.ops, 1)]
        return restored(block, told_of(turn.attributes_json))

    def _op(self, op: OperationNode, number: int, turn: TurnNode, session: SessionNode) -> dict[str, Any]:
        rest_of_op, context = told_of(op.attributes_json), Context(session, turn, op, number, self._version)
        bills = objects_of(rest_of_op.get("accounting"))
        written = op_block(op, self._part(op.request), self._part(op.response))
        written["logs"] = [restored(context.log_block(entry), told_of(entry.details)) for entry in op.logs]
        written["accounting"] = [context.accounting_block(entry) for entry in op.accounting]
        if len(bills) == len(op.accounting):
            written["accounting"] = [restored(block, rest) for block, rest in zip(written["accounting"], bills, strict=True)]
        if op.child_session is not None:
            written["childSession"] = self.session(op.child_session)
        return restored(written, rest_of_op)

    def _part(self, part: Payload | None) -> dict[str, Any] | None:
        return None if part is None else part_block(part, payload(self._pool, part.payload))


def _in_order(turns: list[TurnNode], order: Any) -> list[TurnNode]:
    """Return turns in the order that they had in a file, by their numbers; those that came since are last."""
    if not is_list(order):
        return turns
    places = {index: place for place, index in enumerate(order) if type(index) is int}
    return sorted(turns, key=lambda turn: places.get(turn.index, len(places)))


def _without_end(rest: dict[str, Any]) -> dict[str, Any]:
    """Return what is kept of a session, but for how it ended."""
    members = {name: value for name, value in object_of(rest.get("members")).items() if name not in _OF_THE_END}
    pointers = rest.get("without")
    left = [item for item in pointers if str(item).partition("/")[2].partition("/")[0] not in _OF_THE_END] if is_list(pointers) else []
    return {"members": members, "without": left}


def _set(block: dict[str, Any]) -> dict[str, Any]:
    """Return a block without the members that are not set."""
    return {key: value for key, value in block.items() if value is not None}
