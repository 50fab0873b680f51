"""A session of another process, as this one works in it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, MutableMapping
from functools import partial
from typing import NamedTuple

from optree._background import Job
from optree._builder import Op, SessionTreeBuilder, Turn
from optree._builder.core import Core
from optree._clock import now_ms
from optree._ids import trace_id
from optree._interrupts import WeakMembers
from optree._records import OpBegin, TurnBegin
from optree._store import SessionStore
from optree._store.saving import StoreOptions
from optree._store.settle import settle_later, wait_until_saved, was_left
from optree._store.upkeep import SAVING
from optree._tracing.handles import Session
from optree._tree import apply
from optree._tree.path import parent_label
from optree.errors import BusyError

IDLE_SESSIONS = 64
"""Sessions of other processes that stay open here though nothing is open in them: each holds a journal, and its owner waits for that.
As many have ended here, and wait until the disk takes what it has refused, and four times as many where it hangs."""
_SAVING_SECONDS = 1.0
"""The longest that a begin waits for late records of the session that is to go on, which are just being saved."""


class Joined(NamedTuple):
    """Stand-ins for a session, turn and op of another process."""

    session: Session
    turn: Turn
    op: Op | None

    @property
    def busy(self) -> bool:
        """True while something is open that this process began there; in a forked child, also what was open in its parent."""
        core = self.session.builder.core
        own = [builder for builder in core.builders.values() if builder is not self.session.builder]
        return bool(core.ops) or self.session.builder.current_turn is not None or any(builder.node.ended_at is None for builder in own)


def stand_in(store: SessionStore, path: str, ancestry: str) -> Joined:
    """Return a stand-in for the node of another process at *path*, in that one's session, which *store* writes to."""
    txn, parts = store.txn, path.count(".") + 1
    turn_path = path if path and parts % 2 else parent_label(path) or "0"
    node = apply.new_session(txn, parent_label(turn_path), trace_id(txn), ancestry.rpartition("->")[2], ancestry, now_ms())
    options = store.options
    core = Core(txn, store.stream, now=options.now, cycles=options.cycles, redacted=options.redacted, content=options.content)
    builder = SessionTreeBuilder.over(core, node)
    turn = Turn(builder, apply.begin_turn(node, TurnBegin(turn_path, now_ms())), 1)
    core.after_fork(store.journal.base)  # as in a forked child: numbers from a range of this writer's own
    op = None
    if path and path != turn_path:
        op = Op.of(builder, turn, apply.begin_op(txn, turn.node, OpBegin(path, now_ms(), "system", "")))
        op.share()
    return Joined(Session(builder), turn, op)


def idle_sessions(joined: Mapping[str, Joined], stores: Mapping[str, SessionStore]) -> list[tuple[str, list[str]]]:
    """Return the sessions of other processes in which nothing is open here, each with its nodes that were joined (``<txn>:<path>``)."""
    nodes: dict[str, list[str]] = {}
    for node in joined:
        nodes.setdefault(node.partition(":")[0], []).append(node)
    return [(txn, known) for txn, known in nodes.items() if txn in stores and not any(joined[node].busy for node in known)]


class Leaving:
    """Stores of other processes' sessions that this one lets go of: they are closed aside, and counted as they are until then.

    Also, as long as anything refers to them, the stores that are closed: a forked child may record into their sessions late.
    """

    def __init__(self) -> None:
        self._closed: dict[SessionStore, bool] = {}
        self._ended: WeakMembers[SessionStore] = WeakMembers()

    def remember(self, store: SessionStore) -> None:
        """Take up one that is closed."""
        self._ended.add(store)
        store.counted = store.unwritten

    def settle_ended(self, stores: Iterable[SessionStore]) -> None:
        """Have sessions settled that are closed, or finished among *stores*, and have records of processes that have gone since."""
        for store in [*(store for store in stores if store.finished), *self._ended]:
            if was_left(store.live, store.options.system):
                settle_later(store.txn, store.options, own=False)

    def saved_by_others(self, txn: str, known: SessionStore | None, options: StoreOptions, seconds: float) -> bool:
        """Wait until another process that ended a session has saved it; False if it has not within so many seconds.

        Not where one of this process has it: the one that is *known*, or that late records have opened again.
        """
        stores = [store for store in (*self._ended, known) if store is not None and store.txn == txn]
        return wait_until_saved(txn, options, seconds, lambda: any(store.has_lock for store in stores))

    def go_on(self, txn: str) -> None:
        """Let what is recorded late into a session that has ended here be a writer's of its own: it goes on, by another store.

        Raises `BusyError` if it is being saved, and is not soon.
        """
        for store in self._ended:
            if store.txn == txn and not store.go_late(_SAVING_SECONDS):
                settle_later(txn, store.options)
                raise BusyError(f"session {txn} is being saved by this process: wait (optree.flush('snapshot')), then go on with it")

    def stores(self, *, closed: bool = True) -> list[SessionStore]:
        """Return them, or without those that are *closed*."""
        return [store for store, done in list(self._closed.items()) if closed or not done]

    def add(self, store: SessionStore) -> None:
        """Take one up, at first; then it may be forgotten elsewhere."""
        self._closed[store] = False

    def close(self, store: SessionStore, closing: Callable[[SessionStore], object]) -> None:
        """Let one be closed aside: the process that leaves a session last finishes it."""
        Job(SAVING, partial(self._close, store, closing), str).ask()

    def _close(self, store: SessionStore, closing: Callable[[SessionStore], object]) -> None:
        try:
            closing(store)
        finally:
            self._closed[store] = True

    def take(self) -> list[SessionStore]:
        """Return those that are closed, and forget them."""
        closed = [store for store, done in list(self._closed.items()) if done]
        for store in closed:
            del self._closed[store]
            self.remember(store)
        return closed

    def after_fork(self, flushed: MutableMapping[str, SessionStore]) -> None:
        """In a forked child: they are the parent's; those that the child records into stand in *flushed* then."""
        stores = [*self.stores(), *self._ended]
        self._closed, self._ended = {}, WeakMembers()
        for store in stores:
            self.fork(store, flushed)

    def fork(self, store: SessionStore, flushed: MutableMapping[str, SessionStore]) -> None:
        """In a forked child: let what is recorded into a session that has ended be its own, and a child's of its own."""
        store.after_fork(flushed)
        self.remember(store)
