"""One session as it is exported: its nodes by their paths, which of them are delivered, and their spans."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

from optree import OperationNode, SessionNode, Tree, TurnNode
from optree.exporting import Pool, parent_path
from optree_otel.delivered import (
    Addressee,
    DeliveredFile,
    NotNoted,
    addressed,
    delivered,
    is_done,
    is_sending,
    kept,
    mark_done,
    reopen,
    writers,
)
from optree_otel.signals import mapping
from optree_otel.signals.limits import Profile, encode
from optree_otel.signals.quick import encode_op
from optree_otel.signals.resource import Owner, Resources
from optree_otel.signals.scope import Origin, SpanScope, trace_id
from optree_otel.signals.spans import Link, Span

_ROUND, _ORIGIN, _OWNER = "@", "^", "%"
"""Beginnings of notes among the paths: a round that began, where the trace hangs, and whose services its spans are of."""
_OWNING = "0000"


class Companion(Protocol):
    """A second trace of the same session, beside this one (`optree_otel.live_trace`)."""

    left: int
    """Spans of it that are for the next run."""

    @property
    def link(self) -> Link:
        """The link from this trace to it."""
        ...

    @property
    def settled(self) -> bool:
        """True if nothing of it is on its way."""
        ...


class SessionExporter:
    """What one process sends of one session.

    *origin* is the span of somebody else that the session began in; it is noted on disk, and what is noted there wins. Of the *addressee*
    only what the process notes that owns the session, if it is mirrored.
    """

    def __init__(
        self,
        view: View,
        sessions: Path,
        writer: str,
        *,
        resources: Resources,
        profile: Profile,
        addressee: Addressee,
        origin: Origin | None = None,
        content: bool = False,
        openinference: bool = False,
        trace_per_turn: bool = False,
        saved: bool = True,
        sampled: bool = True,
    ) -> None:
        self.view = view
        self.txn = view.txn
        self.writer = writer
        self._sessions = sessions
        self._resources = resources
        self._profile = profile
        self._addressee = addressee
        self._per_turn = trace_per_turn
        self._content, self._openinference = content, openinference
        self._scopes: dict[str, SpanScope] = {}
        self.sampled = sampled
        """False if nothing of it is sent; it is in no notes then."""
        self.late = False
        """True if it is sent at its end, though it was not sampled: of other processes' parts nothing is noted."""
        self.saved = saved = saved and sampled
        self.file: DeliveredFile = reopen(sessions, self.txn, writer, self._whole()) if saved else NotNoted(sessions, self.txn, writer)
        self.done = delivered(sessions, self.txn)
        """What the collector has, as of when this process took the session up."""
        noted = next((note[1:] for note in sorted(self.done) if note.startswith(_ORIGIN)), None)
        self.origin = Origin.parse(noted) if noted is not None else origin
        if self.origin is not None and noted is None:
            self.file.add([f"{_ORIGIN}{self.origin}"])
        owner = next((note[1:] for note in sorted(self.done) if note.startswith(_OWNER)), None)
        self.owner = Owner.parse(owner) if owner is not None else resources.owner
        """Whose services its spans are of; as noted by the process that recorded it."""
        to_note = writer == _OWNING or addressed(sessions, self.txn) is None
        self.file.add([*([f"{_OWNER}{self.owner}"] if owner is None else []), *([str(addressee)] if to_note else [])])
        self.round = last_round(self.done)
        self.asked = self.acknowledged = self.left = 0
        """Nodes that were put on their way, those that arrived, and those that are for a later run."""
        self.bytes = 0
        self.over_budget = 0
        """Spans that were not sent, since the backend would throw them away without a word."""
        self.ended = False
        self.open = 0
        """Nodes of another process's session that are open in this one."""
        self.touched = False
        """True once this process has recorded anything in another's session."""
        self.resting = False
        """True while this process's part of another's session is let go of: it is delivered, and nothing of it is open."""
        self.shared = False
        """True once it is delivered as far as this process has it, and other processes had a part in it."""
        self.live: Companion | None = None
        """The live trace beside this one."""
        self._before: SessionExporter | None = None
        """That of the session's earlier life in this process, as long as some of it is on its way."""
        self.is_followed = False
        """True once another one is that of the session's next life here."""

    def follow(self, earlier: SessionExporter | None) -> None:
        """Go on where another one of this process is still sending what the session has had before."""
        self._before = earlier
        if earlier is not None:
            earlier.is_followed = True

    def take_up(self) -> list[Key]:
        """Go on with a session that was loaded; returns the nodes that are missing still.

        If the root's span was sent already, another round begins: a span is sent once. While another process sends what is missing,
        nobody knows: then nothing is, and a round begins as well.
        """
        root = self.view.session("")
        others = is_sending(self._sessions, self.txn, self.file)
        on_its_way = self._before is not None and not self._before.left
        if root is not None and root.resumed_at and (others or on_its_way or self.key(ROOT) in self.done):
            self.round = len(root.resumed_at)
            self._scopes.clear()
            self.file.add([f"{_ROUND}{self.round}"])
        return [] if others or on_its_way else self.missing()

    def key(self, key: Key) -> str:
        """Return what a node is noted as."""
        return f"{key}#{self.round}" if key == ROOT and self.round else str(key)

    def missing(self, *, also_open: bool = False) -> list[Key]:
        """Return the nodes that have ended (or all) and that no process has delivered."""
        root = self.view.session("")
        if root is None:
            return []
        return [key for key, node in nodes(root) if (also_open or node.ended_at is not None) and self.key(key) not in self.done]

    def node(self, key: Key) -> SessionNode | TurnNode | OperationNode | None:
        """Return a node of this session."""
        kind, path = key.kind, key.path
        if kind == "op":
            return self.view.op(path)
        return self.view.turn(path) if kind == "turn" else self.view.session(path)

    def scope(self, path: str) -> SpanScope | None:
        """Return the scope of the session at *path*."""
        result = self._scopes.get(path)
        if result is None:
            session = self.view.session(path)
            if session is None:
                return None
            result = self._scopes[path] = self._made(session)
        return result

    def scope_of(self, key: Key) -> SpanScope | None:
        """Return the scope of the session that a node belongs to."""
        kind, path = key.kind, key.path
        if kind != "session":
            path = parent_path(path)
        return self.scope(parent_path(path) if kind == "op" else path)

    def ids(self, path: str) -> tuple[bytes, bytes] | None:
        """Return trace and span id of the node at *path*; of a child session those of its op. Quick: the program's threads ask it."""
        root = self.scope("")
        if root is None:
            return None
        if not path:
            return root.trace_id, root.session_span_id
        return self._turn_trace(path) if self._per_turn else root.trace_id, root.span_id(f"{self.txn}:{path}")

    def group(self, scope: SpanScope) -> tuple[str, Owner]:
        """Return what tells the resource of a session's spans."""
        return scope.service, self.owner

    def encoded(self, key: Key) -> tuple[SpanScope, bytes] | None:
        """Return a node's span, and where it belongs; None if there is no such node, or the trace is full."""
        node = self.node(key)
        scope = self.scope_of(key)
        if node is None or scope is None or not self.sampled:
            return None
        if isinstance(node, OperationNode):
            data = encode_op(node, self._of_turn(scope, parent_path(node.path)) if self._per_turn else scope)
        else:
            data = encode(self.span(node, scope), self._profile)
        self.bytes += len(data)
        limit = self._profile.trace_bytes
        if limit is not None and not self._per_turn and key.kind == "op" and self.bytes > limit:
            self.over_budget += 1
            return None
        return scope, data

    def span(self, node: SessionNode | TurnNode | OperationNode, scope: SpanScope) -> Span:
        """Return a node's span."""
        if isinstance(node, OperationNode):
            return mapping.op_span(node, self._of_turn(scope, parent_path(node.path)))
        if isinstance(node, TurnNode):
            return mapping.turn_span(node, self._of_turn(scope, node.path), links=self._to_session(scope, node))
        links = [self.origin.link()] if self.origin is not None and self.origin.linked and not node.path else []
        links += [self.live.link] if self.live is not None and not node.path else []
        if scope.round:
            links.append(Link(scope.trace_id, scope.span_id(node.id)))
        return mapping.session_span(node, scope, links=links)

    def sent(self, keys: Iterable[Key]) -> None:
        """Note that the collector has these; the last of an ended session closes it, if no other process sends some of it."""
        known = [self.key(key) for key in keys]
        self.acknowledged += len(known)
        self.file.add(known)
        self.finish()

    def finish(self) -> None:
        """Note that the session is delivered whole, if nothing of it is on its way or was left out."""
        if self._before is not None and self._before.settled and not self._before.left:
            self._before = None
        if self.finished and not self.left and self._before is None and (self.live is None or not self.live.left):
            self.close()

    @property
    def finished(self) -> bool:
        """True if the session has ended and nothing of it is on its way any more."""
        return self.ended and self.settled

    @property
    def settled(self) -> bool:
        """True if nothing is on its way, of this trace or of the live one."""
        return self.acknowledged + self.left >= self.asked and (self.live is None or self.live.settled)

    @property
    def joined(self) -> bool:
        """True in a process that works in another's session."""
        return self.writer.isdecimal() and self.writer != _OWNING

    @property
    def idle(self) -> bool:
        """True if this process's part of another's session is over, as far as one can tell."""
        return self.joined and self.open <= 0 and self.settled and not self.left

    @property
    def has_others(self) -> bool:
        """True if another process notes what it sends of the session."""
        return any(path != self.file.path for path in writers(self._sessions, self.txn))

    def begin_again(self) -> None:
        """Go on with a session that was let go of; another process may have noted meanwhile that it is delivered."""
        if self.saved:
            self.file = reopen(self._sessions, self.txn, self.writer, self._whole())

    def withdraw(self) -> None:
        """Leave no notes of another process's session in which this one has done nothing."""
        if self.joined and not self.touched:
            self.file.withdraw()

    def close(self) -> None:
        """Note that the session is delivered whole, if this process alone sent it; else the next run looks what is missing."""
        if self.writer == _OWNING and self.saved and not self.is_followed:
            self.shared = self.has_others or self.late
            if not self.shared:
                self.mark_done()

    def mark_done(self) -> None:
        """Note that the session is delivered whole, with what must be known if it goes on."""
        rounds = [f"{_ROUND}{self.round}"] if self.round else []
        origin = [f"{_ORIGIN}{self.origin}"] if self.origin is not None else []
        mark_done(self._sessions, self.txn, [*rounds, *origin, f"{_OWNER}{self.owner}", str(self._addressee)])

    def _whole(self) -> list[str]:
        """Return the notes of a session that was marked done: all its nodes that have ended, for nothing was added since."""
        root = self.view.session("")
        if root is None or not is_done(self._sessions, self.txn):
            return []
        notes = kept(self._sessions, self.txn)
        self.round = last_round(notes)
        ended = [self.key(key) for key, node in nodes(root) if node.ended_at is not None]
        return [*notes, self.key(ROOT), *ended]

    def _made(self, session: SessionNode) -> SpanScope:
        scope = SpanScope(
            self.txn,
            bytes.fromhex(session.trace_id),
            session,
            self._profile,
            self._content,
            self._openinference,
            self._resources.service(session.agent_id, owner=self.owner),
            self.view.pool,
            round=0 if session.path else self.round,
            seen_at=None if (root := self.view.session("")) is None else root.seen_at,
        )
        if self.origin is not None and not self.origin.linked:
            scope.trace_id = self.origin.trace_id
            if not session.path:
                scope.parent_id, scope.parent_flags = self.origin.span_id, self.origin.flags
        if session.path:
            scope.parent_id = scope.span_id(f"{self.txn}:{session.path}")
            if self._per_turn:
                scope.trace_id = self._turn_trace(session.path)
        return scope

    # A trace a turn: the root's turns, and all inside each of them.

    def _of_turn(self, scope: SpanScope, turn: str) -> SpanScope:
        if not self._per_turn or scope.session.path:
            return scope
        return replace(scope, trace_id=self._turn_trace(turn), turn_parent_id=b"")

    def _turn_trace(self, path: str) -> bytes:
        return trace_id(f"{self.txn}/turn/{path.partition('.')[0]}")

    def _to_session(self, scope: SpanScope, turn: TurnNode) -> list[Link]:
        if not self._per_turn or scope.session.path:
            return []
        links = [Link(scope.trace_id, scope.session_span_id)]
        earlier = [one for one in scope.session.turns if one.index < turn.index]
        if earlier:
            last = max(earlier, key=lambda one: one.index)
            links.append(Link(self._turn_trace(last.path), scope.turn_span_id(last)))
        return links


def last_round(notes: Iterable[str]) -> int:
    """Return the last round that is noted."""
    return max((int(note[1:]) for note in notes if note.startswith(_ROUND) and note[1:].isdecimal()), default=0)


def lasting(notes: Iterable[str]) -> list[str]:
    """Return those of the notes that hold however often the session is sent: where the trace hangs, and whose it is."""
    return [note for note in notes if note.startswith((_ORIGIN, _OWNER))]


class Key(Struct, frozen=True, gc=False):
    """A node: its kind (``op``, ``turn``, ``session``) and its path. A child session has its op's path."""

    kind: str
    path: str

    def __str__(self) -> str:
        """Return it as it stands in the file of what is delivered."""
        return f"{self.path}/session" if self.kind == "session" else self.path


ROOT = Key("session", "")


class View(Protocol):
    """What the spans of a session are made from."""

    txn: str

    @property
    def pool(self) -> Pool:
        """What requests refer to."""
        ...

    def settle(self) -> None:
        """Bring to the nodes what is on its way."""
        ...

    def session(self, path: str) -> SessionNode | None:
        """Return a session by its path."""
        ...

    def turn(self, path: str) -> TurnNode | None:
        """Return a turn by its path."""
        ...

    def op(self, path: str) -> OperationNode | None:
        """Return an op by its path."""
        ...


class SavedView:
    """The nodes of a loaded tree."""

    def __init__(self, tree: Tree) -> None:
        self.txn = tree.session.origin_txn_id
        self.pool = tree.pool
        self._sessions: dict[str, SessionNode] = {}
        self._turns: dict[str, TurnNode] = {}
        self._ops: dict[str, OperationNode] = {}
        for key, node in nodes(tree.session):
            if isinstance(node, SessionNode):
                self._sessions[key.path] = node
            elif isinstance(node, TurnNode):
                self._turns[key.path] = node
            else:
                self._ops[key.path] = node

    def settle(self) -> None:
        """Do nothing: it is all there."""

    def session(self, path: str) -> SessionNode | None:
        """Return a session by its path."""
        return self._sessions.get(path)

    def turn(self, path: str) -> TurnNode | None:
        """Return a turn by its path."""
        return self._turns.get(path)

    def op(self, path: str) -> OperationNode | None:
        """Return an op by its path."""
        return self._ops.get(path)


class Resumed:
    """A session that was loaded and goes on: its nodes of before, then those of this process."""

    def __init__(self, live: View, root: SessionNode) -> None:
        self.txn = live.txn
        self._live = live
        self._before = SavedView(Tree(root, live.pool))

    @property
    def pool(self) -> Pool:
        """What requests refer to."""
        return self._live.pool

    def settle(self) -> None:
        """Bring to the nodes what is on its way."""
        self._live.settle()

    def session(self, path: str) -> SessionNode | None:
        """Return a session by its path."""
        return self._before.session(path) or self._live.session(path)

    def turn(self, path: str) -> TurnNode | None:
        """Return a turn by its path."""
        return self._before.turn(path) or self._live.turn(path)

    def op(self, path: str) -> OperationNode | None:
        """Return an op by its path."""
        return self._before.op(path) or self._live.op(path)


def nodes(root: SessionNode) -> Iterator[tuple[Key, SessionNode | TurnNode | OperationNode]]:
    """Yield all nodes of a tree, those inside before those around them."""
    ordered: list[tuple[Key, SessionNode | TurnNode | OperationNode]] = []
    pending = [root]
    while pending:
        session = pending.pop()
        ordered.append((Key("session", session.path), session))
        for turn in session.turns:
            ordered.append((Key("turn", turn.path), turn))
            for op in turn.ops:
                ordered.append((Key("op", op.path), op))
                if op.child_session is not None:
                    pending.append(op.child_session)
    yield from reversed(ordered)
