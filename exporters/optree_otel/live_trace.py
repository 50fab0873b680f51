"""One session's live trace: its spans, which anchors and closes have gone out, and what must go before what.

Nothing leaves before all anchors above it. Those that are not known to be on their way go in the same request, in front of it; so it does
not matter what a full queue, a crash or another order of things has lost before.

An anchor takes no time and owns the id that its children name. What stands in it is known when its node begins and never changes, so
that it is the same bytes whenever it is made. Usage and money of single calls stand in the canonical trace only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
from msgspec.structs import replace

from optree import OperationNode, SessionNode, TurnNode
from optree.exporting import Record, node_id, parent_path, parts_of_name, redact, state
from optree_otel.session_exporter import ROOT, Key, nodes
from optree_otel.signals import mapping, names
from optree_otel.signals.limits import encode
from optree_otel.signals.llm import UNKNOWN
from optree_otel.signals.mapping import openinference_attributes
from optree_otel.signals.protobuf import Attribute
from optree_otel.signals.scope import SpanScope, span_id, trace_id
from optree_otel.signals.spans import CLIENT, INTERNAL, LOCAL_PARENT, Link, Span, nanoseconds

if TYPE_CHECKING:
    from optree_otel.session_exporter import SessionExporter
    from optree_otel.signals.resource import Owner, Resources

LONG_SECONDS: Final = 1.0
"""Ops that live longer are anchored: with what it takes to send one, each is visible within two seconds of its begin."""
_NOTE, _CLOSED, _TRIED = "~", "!", "?"
"""In the file of what is delivered: ``~<key>`` for an anchor, ``~<key>!`` for an end, ``~/session!2`` for the root's after two resumes.

``~<key>?`` stands there before an op's anchor is sent at all: if it was and nobody knows, the same anchor goes again, not a whole span.
"""
SERVICE: Final = " live"
Node = SessionNode | TurnNode | OperationNode
SALT: Final = "/live"
"""What tells the ids of a live trace from those of the canonical one."""
OPEN, CLOSE, WHOLE, HEARTBEAT = "open", "close", "whole", "heartbeat"
_SHORTEST = 1
"""Nanoseconds of an anchor: Jaeger warns of a span that takes no time."""
_IN_CANONICAL = ("gen_ai.usage.", "llm.token_count.", "llm.cost.", names.COST, names.UPSTREAM_COST)


class EncodedSpan(NamedTuple):
    """A span's bytes, and the service that it comes from, with its owner."""

    group: tuple[str, Owner]
    body: bytes


class LiveItem(msgspec.Struct):
    """Something on its way: a node that began (``open``) or ended (``close``), or a sign of life at *now* (epoch ms)."""

    trace: LiveTrace
    what: str
    key: Key = ROOT
    now: float = 0.0
    changed: dict[str, tuple[str | None, str]] = {}
    """What it has changed of `LiveTrace.state` when it was encoded: before and after."""

    def __str__(self) -> str:
        """Return it as messages name it."""
        return " ".join(filter(None, (f"{self.what} of {self.key.kind}", self.key.path, f"of session {self.trace.exporter.txn}")))


class LiveTrace:
    """What goes out of one session. Methods that make spans are called on the sender's thread.

    With *joined*, the session is another process's, which anchors what it began itself: here only what is in `begun` is anchored.
    """

    def __init__(self, exporter: SessionExporter, resources: Resources, *, joined: bool = False) -> None:
        self.exporter = exporter
        self.trace_id = trace_id(exporter.txn + SALT)
        self.begun: set[str] | None = set() if joined else None
        self.records: deque[Record] = deque()
        """What has happened, and is still to be looked at."""
        self.asked = self.acknowledged = self.left = 0
        """Begins and ends that were put on their way, that arrived, and that are for a later run."""
        self.bytes = self.over_budget = 0
        self.over: set[str] = set()
        """Paths of ops whose end is on its way."""
        self.tried: set[str] = set()
        """Paths of ops that may have been anchored."""
        self.state: dict[str, str] = {}
        """The nodes whose id is given away, by their key: "" while open, what their note ends with once they have ended."""
        for note in exporter.done:
            if note.startswith(_NOTE):
                self._noted(note.removeprefix(_NOTE))
        self.known = bool(self.state or self.tried)
        """True if an earlier process has sent some of it."""
        self._resources = resources
        self._scopes: dict[str, SpanScope] = {}

    @property
    def link(self) -> Link:
        """The way from the canonical trace to this one."""
        return Link(self.trace_id, span_id(self.exporter.txn + SALT))

    @property
    def settled(self) -> bool:
        """True if nothing of it is on its way."""
        return not self.records and self.acknowledged + self.left >= self.asked

    def missing(self, *, also_open: bool = False) -> list[Key]:
        """Return the nodes that have ended (or all), and whose end nobody has sent.

        Of a session that was delivered whole, nothing is missing.
        """
        root = self.exporter.view.session("")
        if root is None:
            return []
        candidates = [(key, node) for key, node in nodes(root) if also_open or node.ended_at is not None]
        if not self.known and str(ROOT) in self.exporter.done:
            skipped = {str(key): _closed(node) for key, node in candidates if key != ROOT}
            self.state |= skipped
            self.exporter.file.add([_NOTE + key + end for key, end in skipped.items()])
        missing = [key for key, node in candidates if self.state.get(str(key)) != _closed(node)]
        self.over.update(key.path for key in missing if key.kind == "op")
        return missing

    def spans(self, item: LiveItem) -> list[EncodedSpan]:
        """Return what goes out for an item, behind the anchors that it needs; empty if there is nothing to send."""
        item.changed = {}
        if item.what == HEARTBEAT:
            return self._heartbeat(item)
        node = self.exporter.node(item.key)
        if node is None:
            return []
        if item.what == CLOSE:
            return self._ended(node, item)
        if isinstance(node, OperationNode) and node.kind != "session" and node.ended_at is not None:
            return []  # over before it was looked at: its end tells all
        return self._anchored(item.key, item)

    def undo(self, item: LiveItem) -> None:
        """Forget that the item's spans went out: what follows will bring the anchors again."""
        for key, (before, _) in item.changed.items():
            if before is None:
                self.state.pop(key, None)
            else:
                self.state[key] = before

    def notes(self, item: LiveItem) -> list[str]:
        """Return how it is noted that the item's spans have arrived."""
        return [_NOTE + key + after for key, (_, after) in item.changed.items()]

    def scope(self, path: str) -> SpanScope | None:
        """Return the scope of the session at *path* in this trace."""
        result = self._scopes.get(path)
        canonical = self.exporter.scope(path) if result is None else None
        if canonical is not None:
            result = self._scopes[path] = msgspec.structs.replace(
                canonical,
                trace_id=self.trace_id,
                content=False,
                service=self._resources.service(canonical.session.agent_id, SERVICE, self.exporter.owner),
                parent_flags=LOCAL_PARENT,
                turn_parent_id=None,
                round=0,
                salt=SALT,
            )
            result.parent_id = result.span_id(node_id(self.exporter.txn, path)) if path else b""
        return result

    def scope_of(self, key: Key) -> SpanScope | None:
        """Return the scope of the session that a node belongs to."""
        path = key.path
        for _ in range({"session": 0, "turn": 1, "op": 2}[key.kind]):
            path = parent_path(path)
        return self.scope(path)

    def _anchored(self, key: Key, item: LiveItem) -> list[EncodedSpan]:
        """Return the anchors that are missing at a node and above it, the outermost first. An op that is over already goes whole."""
        unanchored: list[tuple[Key, Node]] = []
        at: Key | None = key
        while at is not None and str(at) not in self.state and (self.begun is None or str(at) in self.begun):
            node = self.exporter.node(at)
            if node is None:
                break
            unanchored.append((at, node))
            at = _above(at, node)
        return [span for at, node in reversed(unanchored) for span in self._begins(at, node, item)]

    def _begins(self, key: Key, node: Node, item: LiveItem) -> list[EncodedSpan]:
        scope = self.scope_of(key)
        if scope is None:
            return []
        if isinstance(node, OperationNode) and node.kind != "session":
            if node.path in self.over and node.path not in self.tried:
                self._note(key, _CLOSED, item)
                return [self._encoded(whole_span(node, scope), scope)]
            self.tried.add(node.path)
            self.exporter.file.add([f"{_NOTE}{key}{_TRIED}"])
        self._note(key, "", item)
        return [self._encoded(anchor_span(node, scope, self._to_canonical(key)), scope)]

    def _ended(self, node: Node, item: LiveItem) -> list[EncodedSpan]:
        key, closed = item.key, _closed(node)
        if key.kind == "op":
            self.over.discard(key.path)
        before = self.state.get(str(key))
        scope = self.scope_of(key)
        if scope is None or before == closed:
            return []
        if before is None and isinstance(node, OperationNode) and node.kind != "session" and node.path not in self.tried:
            return self._whole(node, scope, item)
        anchors = self._anchored(key, item)
        number, since = self._round(node, before)
        self._note(key, closed, item)
        return [*anchors, self._encoded(close_span(node, scope, number, since), scope)]

    def _whole(self, op: OperationNode, scope: SpanScope, item: LiveItem) -> list[EncodedSpan]:
        above = _above(item.key, op)
        anchors = self._anchored(above, item) if above is not None else []
        self._note(item.key, _CLOSED, item)
        span = self._encoded(whole_span(op, scope), scope)
        limit = scope.profile.trace_bytes
        if limit is None or self.bytes <= limit:
            return [*anchors, span]
        self.over_budget += 1
        return anchors

    def _heartbeat(self, item: LiveItem) -> list[EncodedSpan]:
        key, current = innermost(self.exporter.view.session(""))
        anchors = self._anchored(key, item)
        node, scope = self.exporter.node(key), self.scope_of(key)
        if node is None or scope is None:
            return []
        return [*anchors, self._encoded(heartbeat_span(node, scope, item.now, current), scope)]

    def _noted(self, note: str) -> None:
        """Take up what an earlier process, or this one before, has noted."""
        if note.endswith(_TRIED):
            self.tried.add(note.removesuffix(_TRIED))
            return
        key, closed, number = note.partition(_CLOSED)
        self.state[key] = max(self.state.get(key, ""), closed + number, key=_round)

    def _round(self, node: Node, state: str | None) -> tuple[int, float | None]:
        """Return which close of the session this is, and when it went on after the one before."""
        if not isinstance(node, SessionNode) or node.path or not node.resumed_at:
            return 0, None
        number = len(node.resumed_at)
        last = max(_round(state), self.exporter.round - 1)
        return number, node.resumed_at[last] if 0 <= last < number else None

    def _to_canonical(self, key: Key) -> list[Link]:
        scope = self.exporter.scope("") if key == ROOT else None
        return [Link(scope.trace_id, scope.span_id(scope.session.id))] if scope is not None else []

    def _note(self, key: Key, state: str, item: LiveItem) -> None:
        name = str(key)
        item.changed[name] = (item.changed[name][0] if name in item.changed else self.state.get(name), state)
        self.state[name] = state

    def _encoded(self, span: Span, scope: SpanScope) -> EncodedSpan:
        data = encode(span, scope.profile)
        self.bytes += len(data)
        return EncodedSpan((scope.service, self.exporter.owner), data)


def innermost(root: SessionNode | None) -> tuple[Key, OperationNode | None]:
    """Return the innermost open container of a session, and the op that is open in it, if there is one."""
    key, session = ROOT, root
    while session is not None:
        turn, current = _open_in(session)
        if turn is None:
            return key, None
        if current is None or current.child_session is None:
            return Key("turn", turn.path), current
        key, session = Key("session", current.path), current.child_session
    return key, None


def _open_in(session: SessionNode) -> tuple[TurnNode | None, OperationNode | None]:
    turn = next((turn for turn in reversed(session.turns) if turn.ended_at is None), None)
    return turn, next((op for op in reversed(turn.ops) if op.ended_at is None), None) if turn is not None else None


def _above(key: Key, node: Node) -> Key | None:
    """Return the node that a node's span hangs under."""
    if isinstance(node, OperationNode):
        return Key("op", node.parent_op) if node.parent_op else Key("turn", parent_path(key.path))
    if isinstance(node, TurnNode):
        return Key("session", parent_path(key.path))
    return Key("op", key.path) if key.path else None


def _closed(node: Node) -> str:
    """Return what the note of a node's end ends with: of a resumed session's also its round."""
    return _CLOSED + (str(len(node.resumed_at)) if isinstance(node, SessionNode) and not node.path else "")


def _round(state: str | None) -> int:
    """Return the round of a state; -1 for what has not ended."""
    return int(state.removeprefix(_CLOSED) or 0) if state else -1


def anchor_span(node: Node, scope: SpanScope, links: Sequence[Link] = ()) -> Span:
    """Return the span that stands for a node from its begin on."""
    name, details = _known(node, scope)
    attributes: list[Attribute] = [
        (names.PATH, node.path),
        (names.TXN, scope.txn),
        (names.CONVERSATION, scope.session.id),
        *details,
        *_named(node),
        (names.PHASE, OPEN),
    ]
    at = nanoseconds(node.started_at)
    kind = CLIENT if isinstance(node, OperationNode) and node.kind in ("llm", "session") else INTERNAL
    span = Span(
        scope.trace_id, owner_id(node, scope), _parent_span_id(node, scope), name, kind, at, at + _SHORTEST, attributes, links=list(links)
    )
    return _finished(span, scope)


def close_span(node: Node, scope: SpanScope, number: int = 0, since: float | None = None) -> Span:
    """Return the summary of a node that was anchored: its real times, its status and its sums.

    A session that was resumed after its end is closed again: *number* tells its closes apart, *since* (epoch ms) is when it went on.
    """
    span = _canonical(node, scope)
    own = owner_id(node, scope)
    start = span.start_ns if since is None else nanoseconds(since)
    attributes = [*span.attributes, *_named(node), (names.PHASE, CLOSE), *([(names.ROUND, number)] if since is not None else [])]
    return replace(
        span,
        name=f"{span.name}: {state(node, live=False)}",
        span_id=scope.close_id(own, number),
        parent_id=own,
        start_ns=start,
        end_ns=max(start, span.end_ns),
        attributes=attributes,
        flags=LOCAL_PARENT,
    )


def whole_span(op: OperationNode, scope: SpanScope) -> Span:
    """Return the one span of an op that was over before anybody would have looked at it."""
    span = _canonical(op, scope)
    return replace(span, attributes=[*span.attributes, (names.PHASE, WHOLE)])


def heartbeat_span(node: Node, scope: SpanScope, now: float, current: OperationNode | None) -> Span:
    """Return a sign of life under the innermost open *node*, at *now* (epoch ms): which op it is in, and the sums so far."""
    own, at = owner_id(node, scope), nanoseconds(now)
    attributes: list[Attribute] = [
        (names.TXN, scope.txn),
        (names.PATH, node.path),
        (names.AGENT_NAME, scope.session.agent_id),
        (names.PHASE, HEARTBEAT),
        *([(names.CURRENT_OP, f"{current.path} {current.name}")] if current is not None else []),
        *mapping.total_attributes(scope.session.totals),
    ]
    name = HEARTBEAT if current is None else f"{HEARTBEAT}: in {current.name}"
    return Span(scope.trace_id, span_id(f"{own.hex()}/{at}"), own, name, INTERNAL, at, at + _SHORTEST, attributes)


def owner_id(node: Node, scope: SpanScope) -> bytes:
    """Return the id that a node's children name as their parent."""
    if isinstance(node, OperationNode):
        return scope.span_id(node.op_id)
    return scope.turn_span_id(node) if isinstance(node, TurnNode) else scope.session_span_id


def _parent_span_id(node: Node, scope: SpanScope) -> bytes:
    if isinstance(node, OperationNode):
        return scope.parent_of(node)
    return scope.session_span_id if isinstance(node, TurnNode) else scope.parent_id


def _known(node: Node, scope: SpanScope) -> tuple[str, list[Attribute]]:
    """Return a node's name and the attributes that are certain when it begins."""
    agent = scope.session.agent_id
    if isinstance(node, SessionNode):
        attributes: list[Attribute] = [(names.OPERATION, "invoke_agent"), (names.CALL_PATH, node.call_path)]
        return f"invoke_agent {agent}", [(names.KIND, "session"), (names.AGENT_NAME, agent), *attributes]
    if isinstance(node, TurnNode):
        name = f"turn {node.index}" if scope.profile.turn_in_name else "turn"
        return name, [(names.KIND, "turn"), (names.AGENT_NAME, agent), (names.TURN_INDEX, node.index)]
    return _known_op(node, agent)


def _known_op(op: OperationNode, agent: str) -> tuple[str, list[Attribute]]:
    if op.kind == "session":
        return f"invoke_agent {op.name}", [(names.KIND, "session_op"), (names.OPERATION, "invoke_agent"), (names.AGENT_NAME, op.name)]
    attributes: list[Attribute] = [(names.KIND, op.kind), (names.AGENT_NAME, agent)]
    if op.kind == "llm":
        provider, model = parts_of_name(redact(op.name))
        known = names.PROVIDERS.get(provider.lower(), provider) if provider else UNKNOWN
        attributes += [(names.OPERATION, "chat"), (names.PROVIDER, known), *([(names.REQUEST_MODEL, model)] if model else [])]
        return f"chat {model or op.name}", attributes
    if op.kind == "tool":
        return f"execute_tool {op.name}", [*attributes, (names.OPERATION, "execute_tool"), (names.TOOL_NAME, op.name)]
    return op.name, attributes


def _named(node: Node) -> list[Attribute]:
    """Return an op's own name, where its span has another."""
    return [(names.NAME, node.name)] if isinstance(node, OperationNode) else []


def _canonical(node: Node, scope: SpanScope) -> Span:
    """Return a node's span as in the canonical trace, without what is summed there."""
    if isinstance(node, OperationNode):
        span = mapping.op_span(node, scope)
    else:
        span = mapping.turn_span(node, scope) if isinstance(node, TurnNode) else mapping.session_span(node, scope)
    span.attributes = [pair for pair in span.attributes if not pair[0].startswith(_IN_CANONICAL)]
    return span


def _finished(span: Span, scope: SpanScope) -> Span:
    if scope.openinference or scope.profile.openinference:
        span.attributes += openinference_attributes(span.attributes)
    if scope.profile.facts and scope.service:
        span.attributes.append((names.SERVICE, scope.service))
    return span
