"""Where a node's span belongs: its trace, its session, and what its backend takes."""

from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b

import msgspec

from optree import OperationNode, SessionNode, TurnNode
from optree.exporting import Pool, node_id
from optree.exporting import trace_id as hex_trace_id
from optree_otel.profiles import PROFILES, Profile
from optree_otel.spans import LOCAL_PARENT

KEPT_IDS = 8192


class SpanScope(msgspec.Struct):
    """What the spans of one session have in common. Make one for each session of a tree, a child's by `for_child`."""

    txn: str
    trace_id: bytes
    """16 bytes."""
    session: SessionNode
    profile: Profile = PROFILES["default"]
    content: bool = False
    """Whether messages, arguments, results and reasoning go out."""
    openinference: bool = False
    service: str = ""
    """The name of the service, where a backend wants it among the attributes."""
    pool: Pool | None = None
    """Where histories and long members of requests are; needed for content only."""
    parent_id: bytes = b""
    """The span above the session's: that of its `session` op, or somebody else's; empty for none."""
    parent_flags: int = LOCAL_PARENT
    turn_parent_id: bytes | None = None
    """The span above the turns, where it is not the session's: empty where each turn is a trace of its own."""
    round: int = 0
    """How often the session had been resumed: each round after the first has a session span of its own."""
    salt: str = ""
    """Told apart by it: spans of a second trace over the same nodes (``/live``), since a span id stands once in all traces."""
    seen_at: float | None = None
    """Of a root session that broke off: when its process was last known to live (epoch ms)."""
    last_sign: float | None = None
    """When anything in a session that broke off was last heard of (epoch ms), once somebody has asked."""

    @property
    def session_span_id(self) -> bytes:
        """The id of the session's span in this round. A child session's node has the id of its op, which has a span as well."""
        node = f"{self.session.id}/session" if self.session.path else self.session.id
        return self.span_id(f"{node}#{self.round}" if self.round else node)

    def span_id(self, node: str) -> bytes:
        """Return the id of the span of an op or a turn, given the node's id."""
        return span_id(node + self.salt if self.salt else node)

    def turn_span_id(self, turn: TurnNode) -> bytes:
        """Return the id of a turn's span."""
        return self.span_id(turn.id)

    def close_id(self, anchor: bytes, number: int = 0) -> bytes:
        """Return the id of the span that closes an anchor of a live trace; *number* tells several of one anchor apart."""
        return span_id(f"{anchor.hex()}/close#{number}" if number else f"{anchor.hex()}/close")

    def parent_of(self, op: OperationNode) -> bytes:
        """Return the id of the span above an op's: that of the op it began in, else of its turn."""
        return self.span_id(node_id(self.txn, op.parent_op or op.path.rpartition(".")[0]))

    def for_child(self, op: OperationNode, child: SessionNode) -> SpanScope:
        """Return the scope of the session inside *op*, in the same trace."""
        return msgspec.structs.replace(
            self, session=child, parent_id=self.span_id(op.op_id), parent_flags=LOCAL_PARENT, turn_parent_id=None, round=0
        )


@lru_cache(maxsize=KEPT_IDS)
def span_id(node: str) -> bytes:
    """Return the 8 bytes that stand for a node (`optree.exporting.span_id`)."""
    return blake2b(node.encode(), digest_size=8, person=b"optree.span").digest()


def trace_id(txn: str) -> bytes:
    """Return the 16 bytes that stand for a session's trace (`optree.exporting.trace_id`)."""
    return bytes.fromhex(hex_trace_id(txn))
