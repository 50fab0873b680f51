"""Walking, flattening, and the tree as plain values. Explicit stacks throughout: a tree may be deeper than Python's recursion limit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, Protocol, TypeAlias

import msgspec
from msgspec import UNSET

from optree._ids import is_node_id, is_txn, node_id, txn_of
from optree._interrupts import pass_on
from optree._nodes import AS_TOLD, AccountingEntry, LogEntry, OperationNode, SessionNode, Totals, TurnNode
from optree._records import sanitize
from optree._tree.fold import Tree
from optree._tree.totals import add_entry, add_op
from optree._values import is_list, is_object


class Flat(NamedTuple):
    """A session's entries as flat lists, each entry naming where it belongs."""

    logs: list[dict[str, Any]]
    accounting: list[dict[str, Any]]


class HasTree(Protocol):
    """What holds a tree: a session's handle, a builder, a saved session (`Loaded`), a recording of `optree.testing`."""

    @property
    def tree(self) -> Tree:
        """The tree, as of now."""
        ...


Rooted: TypeAlias = SessionNode | Tree | HasTree


def recount(chain: Iterable[SessionNode]) -> None:
    """Count the totals of some sessions anew, in place, from what is in them and below."""
    for session in chain:
        totals = Totals()
        for _, _, op in walk_ops(session):
            add_op(totals, op.kind)
            for entry in op.accounting:
                add_entry(totals, entry)
        for name in Totals.__struct_fields__:
            setattr(session.totals, name, getattr(totals, name))


def root_of(what: Rooted) -> SessionNode:
    """Return the root session of a tree, whatever holds it. Raises `TypeError`."""
    return what if isinstance(what, SessionNode) else tree_in(what).session


def tree_in(what: Tree | HasTree) -> Tree:
    """Return a tree, whatever holds it. Raises `TypeError`."""
    result: object = what if isinstance(what, Tree) else getattr(what, "tree", None)
    if isinstance(result, Tree):
        return result
    raise TypeError(
        f"{type(what).__name__} holds no tree: give a tree, a session in the `with` block that begins it, what optree.load returns, "
        "or a recording of optree.testing"
    )


def walk_sessions(root: Rooted) -> Iterator[SessionNode]:
    """Yield a session and all sub-agents' sessions below it, in the order of their paths.

    Args:
        root: A tree, a session's node, or what has a tree: a saved session, a builder, the handle of an open session.

    Raises:
        TypeError: *root* holds no tree.
    """
    return _sessions(root_of(root))


def _sessions(root: SessionNode) -> Iterator[SessionNode]:
    pending = [root]
    while pending:
        session = pending.pop()
        yield session
        children = [op.child_session for turn in session.turns for op in turn.ops if op.child_session is not None]
        pending.extend(reversed(children))


def walk_ops(root: Rooted) -> Iterator[tuple[SessionNode, TurnNode, OperationNode]]:
    """Yield each operation of a tree with its session and turn, session by session.

    Args:
        root: As for `walk_sessions`.

    Yields:
        ``(session, turn, operation)``, as nodes.

    Raises:
        TypeError: *root* holds no tree.
    """
    return _ops(root_of(root))


def _ops(root: SessionNode) -> Iterator[tuple[SessionNode, TurnNode, OperationNode]]:
    for session in _sessions(root):
        for turn in session.turns:
            for op in turn.ops:
                yield session, turn, op


def ops_beneath(turn: TurnNode) -> dict[str, list[OperationNode]]:
    """Return a turn's ops by the path of the node that each was begun in: an op of the turn, else the turn itself.

    Paths alone do not tell: an op that was begun within another has the next number of their turn.
    """
    result: dict[str, list[OperationNode]] = {turn.path: []}
    for op in turn.ops:
        above = op.parent_op if op.parent_op in result else turn.path
        result[above or turn.path].append(op)
        result[op.path] = []
    return result


def flatten(root: Rooted) -> Flat:
    """Return all log lines and accounting entries of a tree as flat dicts, each naming its path, agent and operation, by time.

    Args:
        root: As for `walk_sessions`.

    Returns:
        A pair of lists, ``logs`` and ``accounting``; of entries of the same time the upper one in the tree comes first.
    """
    logs: list[dict[str, Any]] = []
    accounting: list[dict[str, Any]] = []
    for session, turn, op in walk_ops(root):
        if not (op.logs or op.accounting):
            continue
        context = {
            "path": op.path,
            "agentId": session.agent_id,
            "callPath": session.call_path,
            "txnId": session.id,
            "parentTxnId": session.parent_txn_id,
            "originTxnId": session.origin_txn_id,
        }
        kind = "llm" if op.kind == "llm" else "tool"
        for entry in op.logs:
            place = {"turn": turn.index, "type": kind, "remoteIdentifier": op.name}
            logs.append(_with_original({**_plain(entry), **place, **context}))
        bills = [{**_accounted(entry), **context} for entry in op.accounting]
        accounting.extend(bills if op.attributes_json is UNSET else _billed(bills, op.attributes))
    logs.sort(key=_time)
    accounting.sort(key=_time)
    return Flat(logs, accounting)


def _with_original(entry: dict[str, Any]) -> dict[str, Any]:
    """Return a log line with the members that differ in the file that it came from, such as its own agent, stack or remote."""
    details = entry.get("details")
    if not is_object(details) or AS_TOLD not in details:
        return entry
    entry["details"] = {name: value for name, value in details.items() if name != AS_TOLD}
    restored = {**entry, **_own(details[AS_TOLD])}
    return restored if restored["details"] else {name: value for name, value in restored.items() if name != "details"}


def _billed(entries: list[dict[str, Any]], attributes: dict[str, Any]) -> list[dict[str, Any]]:
    """Return accounting entries with what a file that they came from says otherwise."""
    original = attributes.get(AS_TOLD)
    blocks = original.get("accounting") if is_object(original) else None
    if not is_list(blocks) or len(blocks) != len(entries):
        return entries
    kept = ("id", "originTxnId")  # ids in the ledger are ours
    return [{**entry, **_own(block), **{name: entry[name] for name in kept}} for entry, block in zip(entries, blocks, strict=True)]


def _own(original: Any) -> dict[str, Any]:
    """Return the members of an entry that a file has itself; paths are the tree's."""
    members = original.get("members") if is_object(original) else None
    return {name: value for name, value in members.items() if name != "path" and not is_object(value)} if is_object(members) else {}


def _plain(entry: LogEntry | AccountingEntry) -> dict[str, Any]:
    return msgspec.json.decode(msgspec.json.encode(entry), type=dict[str, Any])


def _accounted(entry: AccountingEntry) -> dict[str, Any]:
    """Return an entry with what each line of a ledger has, also where it is the default."""
    result: dict[str, Any] = {**_plain(entry), "status": entry.status}
    if entry.tokens is not None:
        result["tokens"] = {"inputTokens": 0, "outputTokens": 0, "totalTokens": 0, **result["tokens"]}
    return result


def to_plain(tree: Tree) -> dict[str, Any]:
    """Return a tree as plain values, as a saved file shows it."""
    try:
        data = msgspec.json.encode(tree)
    except Exception as error:  # noqa: BLE001 - texts that JSON cannot hold, in a tree that no journal has seen yet
        pass_on(error)
        data = msgspec.json.encode(sanitize(tree))
    result: dict[str, Any] = msgspec.json.decode(data)
    return result


def _time(entry: dict[str, Any]) -> float:
    timestamp: float = entry["timestamp"]
    return timestamp


def name_safely(tree: Tree, kind: str = "file") -> list[str]:
    """Give sessions new ids where those in a file cannot be ids; returns what was changed, a line each.

    Nothing else of the tree changes. The same file gives the same ids each time; *kind* is what a txn made here begins with.
    """
    old_txn = tree.session.origin_txn_id
    txn = txn_of(old_txn, kind)
    lines = called(old_txn, txn)
    renamed: dict[str | None, str] = {}
    for session in walk_sessions(tree.session):
        own, derived = node_id(txn, session.path), session.id == node_id(old_txn, session.path)
        if txn != old_txn:
            _rename(session, f"{old_txn}:", txn)
        if txn != old_txn or not is_txn(session.origin_txn_id):
            session.origin_txn_id = txn
        if session.id != own and (derived or not is_node_id(session.id)):
            lines += [] if derived else [f"{session.id[:80]!r} cannot be the id of a session: it is called {own} here"]
            renamed[session.id] = session.id = own
        session.parent_txn_id = renamed.get(session.parent_txn_id, session.parent_txn_id)
        if session.parent_txn_id is not None and not is_node_id(session.parent_txn_id):
            session.parent_txn_id = None
    return lines


def unused(wanted: object, derived: str, taken: set[str]) -> str:
    """Return the id *wanted* by a file for a node; *derived* where there is none, or it is in *taken*, to which the result is added."""
    chosen, number = str(wanted or derived), 1
    while chosen in taken:
        chosen, number = derived if number == 1 else f"{derived}~{number}", number + 1
    taken.add(chosen)
    return chosen


def called(old_txn: str, txn: str) -> list[str]:
    """Return the line that names the new txn of a session whose txn in a file was changed; no line if it is the same."""
    return [] if txn == old_txn else [f"{old_txn[:80]!r} cannot name a session: it is called {txn} here"]


def _rename(session: SessionNode, mark: str, txn: str) -> None:
    """Give the turns and ops of a session the ids that follow from its txn, where they followed from the one before."""
    for turn in session.turns:
        turn.id = node_id(txn, turn.path) if turn.id.startswith(mark) else turn.id
        for op in turn.ops:
            op.op_id = node_id(txn, op.path) if op.op_id.startswith(mark) else op.op_id
