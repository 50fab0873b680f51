"""What a file calls its sessions, checked where it comes in: a txn becomes the names of files, so not every text may be one."""

from __future__ import annotations

from optree.ids import is_node_id, is_txn, node_id, txn_of
from optree.nodes import SessionNode
from optree.tree.fold import Tree
from optree.tree.walk import walk_sessions


def name_safely(tree: Tree, kind: str = "file") -> list[str]:
    """Give sessions other ids where those that a file gave them cannot be any; returns what was changed, a line each.

    Nothing else of the tree changes. The same file gives the same ids each time; *kind* is what a txn made here begins with.
    """
    told = tree.session.origin_txn_id
    txn = txn_of(told, kind)
    said = called(told, txn)
    renamed: dict[str | None, str] = {}
    for session in walk_sessions(tree.session):
        own, derived = node_id(txn, session.path), session.id == node_id(told, session.path)
        if txn != told:
            _rename(session, f"{told}:", txn)
        if txn != told or not is_txn(session.origin_txn_id):
            session.origin_txn_id = txn
        if session.id != own and (derived or not is_node_id(session.id)):
            said += [] if derived else [f"{session.id[:80]!r} cannot be the id of a session: it is called {own} here"]
            renamed[session.id] = session.id = own
        session.parent_txn_id = renamed.get(session.parent_txn_id, session.parent_txn_id)
        if session.parent_txn_id is not None and not is_node_id(session.parent_txn_id):
            session.parent_txn_id = None
    return said


def unused(told: object, derived: str, taken: set[str]) -> str:
    """Return the id that a file gives a node; *derived* where it gives none, or one that is *taken*, to which the answer is added."""
    found, number = str(told or derived), 1
    while found in taken:
        found, number = derived if number == 1 else f"{derived}~{number}", number + 1
    taken.add(found)
    return found


def called(told: str, txn: str) -> list[str]:
    """Return the line that says under which txn a session is shown that a file calls otherwise; none if it is the same."""
    return [] if txn == told else [f"{told[:80]!r} cannot name a session: it is called {txn} here"]


def _rename(session: SessionNode, mark: str, txn: str) -> None:
    """Give the turns and ops of a session the ids that follow from its txn, where they followed from the one before."""
    for turn in session.turns:
        turn.id = node_id(txn, turn.path) if turn.id.startswith(mark) else turn.id
        for op in turn.ops:
            op.op_id = node_id(txn, op.path) if op.op_id.startswith(mark) else op.op_id
