"""What resuming records: the end of everything that a crash left open, and that the session goes on."""

from __future__ import annotations

from optree import records as r
from optree.builder import SessionTreeBuilder
from optree.builder.core import Core
from optree.store.interrupted import account_open, interrupt, open_nodes
from optree.tree import apply

_LATER = 0.001
"""Milliseconds: a resume is later than all ends and resumes before it."""


def close_interrupted(builder: SessionTreeBuilder, core: Core) -> None:
    """End all open nodes as `interrupted`, each at the last time it was seen, and open the root session again."""
    root = builder.node
    stream = core.stream
    held = stream.enter()
    try:
        alive = root.seen_at or 0.0
        left = open_nodes(root)
        for accounted in account_open(root, left, alive):
            stream.put(accounted)
        for node in left:
            if node is not root:
                stream.put(interrupt(node, alive))
        before = [time + _LATER for time in (root.ended_at or 0.0, alive, *root.resumed_at)]
        root.seen_at = None
        record = r.SessionResume("", max(core.now_ms(), *before))  # this machine's clock may be behind
        apply.resume_session(root, record)
        stream.put(record)
    finally:
        stream.leave(held)
