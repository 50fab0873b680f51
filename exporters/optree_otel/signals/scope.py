"""What a node's span belongs to: its trace, its session, and the span of another program that the session began in.

Here too: when nodes ended that a crash broke off, as far as one can tell.

What was open when its process was last known to live (`SessionNode.seen_at`) lasted until then at least. Where nobody has noted that, an op
of which nothing was heard after its start would take no time; it is told to last as long as what it is in was heard of, so that its bar
stands where the run broke off.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import Any, Literal

import msgspec

from optree import OperationNode, SessionNode, TurnNode
from optree.exporting import Pool, is_object, node_id, parent_path
from optree.exporting import trace_id as hex_trace_id
from optree_otel.signals.limits import PROFILES, Profile
from optree_otel.signals.spans import LOCAL_PARENT, REMOTE_PARENT, Link

KEPT_IDS = 8192
Parent = Literal["child", "link", "ignore"]
"""What a session becomes that begins inside somebody else's span: a child of it in its trace, a trace linked to it, or neither."""
_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?")
_SAMPLED = 1


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
    """The time of the last record of a session that broke off (epoch ms), once it was looked up."""

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


class Origin(msgspec.Struct, frozen=True):
    """A span, as the W3C header ``traceparent`` names it."""

    trace_id: bytes
    span_id: bytes
    linked: bool = False
    """True if the session is linked to it rather than its child."""
    flags: int = REMOTE_PARENT

    def __str__(self) -> str:
        """Return it as it is noted on disk."""
        return f"{'link' if self.linked else 'child'} 00-{self.trace_id.hex()}-{self.span_id.hex()}-01"

    @classmethod
    def parse(cls, noted: str) -> Origin | None:
        """Return what `str` made; None for anything else."""
        kind, _, header = noted.partition(" ")
        return cls.of(header, "link" if kind == "link" else "child")

    @classmethod
    def of(cls, traceparent: object, parent: Parent) -> Origin | None:
        """Return the span that a ``traceparent`` header names; None if it names none, or one that is not recorded."""
        match = _TRACEPARENT.fullmatch(traceparent) if isinstance(traceparent, str) else None
        if match is None or parent == "ignore" or not int(match[3], 16) & _SAMPLED:
            return None
        return cls(bytes.fromhex(match[1]), bytes.fromhex(match[2]), parent == "link")

    def link(self) -> Link:
        """Return a link to it."""
        return Link(self.trace_id, self.span_id)


def here(attributes: Mapping[str, Any], parent: Parent) -> Origin | None:
    """Return the span that is current in this thread and task, else the one that the process was started from.

    *attributes* are the session's. OpenTelemetry is not loaded for it: where nobody has, no span can be current.
    """
    return Origin.of(_above(attributes), parent)


def sampled_above(attributes: Mapping[str, Any], parent: Parent) -> bool | None:
    """Tell whether the span that a session goes on from is sampled; None if it goes on from none. As for `here`."""
    header = _above(attributes)
    match = _TRACEPARENT.fullmatch(header) if isinstance(header, str) and parent == "child" else None
    return None if match is None else bool(int(match[3], 16) & _SAMPLED)


def _above(attributes: Mapping[str, Any]) -> object:
    """Return the ``traceparent`` of the span that is above a session that begins here; None for none."""
    trace = sys.modules.get("opentelemetry.trace")
    if trace is not None:
        context = trace.get_current_span().get_span_context()
        if context.is_valid:
            return f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags):02x}"
    ingress: Any = attributes.get("ingress")
    return ingress.get("traceparent") if is_object(ingress) else None


def op_end(op: OperationNode, scope: SpanScope) -> float:
    """Return when an op ended, in epoch ms."""
    if op.ended_at is not None and (op.status != "interrupted" or op.ended_at > op.started_at):
        return op.ended_at
    own = max(op.started_at, last_of(op), _seen(op, scope))
    if op.child_session is not None:
        own = max(own, op.child_session.started_at, latest(op.child_session.turns))
    if own > op.started_at:
        return own
    turn = next((one for one in scope.session.turns if one.path == parent_path(op.path)), None)
    return own if turn is None else max(own, _around(turn, scope))


def turn_end(turn: TurnNode, scope: SpanScope) -> float:
    """Return when a turn ended, in epoch ms."""
    if turn.ended_at is not None and turn.status != "interrupted":
        return turn.ended_at
    return max(turn.started_at, _seen(turn, scope), _around(turn, scope))


def session_end(session: SessionNode, began: float, scope: SpanScope) -> float:
    """Return when a session ended that began, or was resumed, at *began*; both in epoch ms."""
    return session.ended_at if session.ended_at is not None else max(began, _seen(session, scope), latest(session.turns))


def _seen(node: OperationNode | TurnNode | SessionNode, scope: SpanScope) -> float:
    """Return when a node that is still open was last known to be; 0 where that is not known."""
    return 0.0 if node.ended_at is not None or scope.seen_at is None else scope.seen_at


def _around(turn: TurnNode, scope: SpanScope) -> float:
    """Return the last sign of life in a turn, or in its session if both broke off: not of what came after a resume."""
    if not _broke_off(turn):
        return turn.started_at
    last = max(turn.ended_at or 0.0, latest([turn]))
    session = scope.session
    if not _broke_off(session) or any(at > turn.started_at for at in session.resumed_at):
        return last
    if scope.last_sign is None:
        scope.last_sign = session_end(session, session.started_at, scope)
    return max(last, scope.last_sign)


def _broke_off(node: OperationNode | TurnNode | SessionNode) -> bool:
    return node.ended_at is None or node.status == "interrupted"


def latest(turns: Sequence[TurnNode]) -> float:
    """Return the last moment that anything in *turns* is known of, in epoch ms: where an interrupted node ended, as far as one can tell."""
    result = 0.0
    pending = list(turns)
    while pending:
        turn = pending.pop()
        result = max(result, turn.started_at, turn.ended_at or 0.0)
        for op in turn.ops:
            result = max(result, last_of(op))
            if op.child_session is not None and op.ended_at is None:
                child = op.child_session
                result = max(result, child.started_at, child.ended_at or 0.0)
                pending.extend(child.turns)
    return result


def last_of(op: OperationNode) -> float:
    """Return the last moment that is known of an op itself, in epoch ms."""
    if op.ended_at is not None:
        return op.ended_at
    chunks = op.reasoning.chunks if op.reasoning is not None else ()
    return max(
        op.started_at,
        op.logs[-1].timestamp if op.logs else 0.0,
        op.accounting[-1].timestamp if op.accounting else 0.0,
        chunks[-1].ts if chunks else 0.0,
    )
