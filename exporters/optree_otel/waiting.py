"""How much of a session is still to be sent, as far as what is noted on disk says."""

from __future__ import annotations

from optree import Directory, load
from optree_otel.delivered import delivered
from optree_otel.outlet import last_round
from optree_otel.view import nodes


def waiting(directory: Directory, txn: str) -> int:
    """Return how many nodes of a pending session have ended and are not delivered; raises what `optree.load` raises."""
    noted = delivered(directory.sessions, txn)
    last = last_round(noted)
    ended = [str(key) for key, node in nodes(load(txn, directory).session) if node.ended_at is not None]
    return sum((f"{key}#{last}" if key == "/session" and last else key) not in noted for key in ended)
