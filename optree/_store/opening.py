"""Opening a session on disk: a new one, or one to go on with."""

from __future__ import annotations

import os
from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any, Final

from optree import _records as r
from optree._builder import SessionTreeBuilder, Taker
from optree._builder.core import Core
from optree._ids import is_txn, new_txn
from optree._interrupts import suppress
from optree._nodes import CONTENT_RECORDED
from optree._store.files.descriptors import OPENING_SESSIONS
from optree._store.reading.interrupted import account_open, interrupt, open_nodes
from optree._store.reading.recovery import Loaded
from optree._store.saving import StoreOptions
from optree._store.session_store import SessionStore
from optree._syscalls import calls
from optree._tree import apply

RUN: Final = "OPTREE_RUN"
"""The environment variable with the id of the run that a process belongs to."""
RUN_FILE: Final = "OPTREE_RUN_FILE"
"""The environment variable with the file where a program that `optree run` started notes its root sessions, a txn a line.

Behind a txn stands, in a line of its own, how many of its records are lost.
"""

_LATER = 0.001
"""Milliseconds: a resume is later than all ends and resumes before it."""
_OWN_RUN: Final = new_txn()


def current_run() -> str:
    """Return the id of the run that this process belongs to.

    A run is a process and all that it forks: these have its memory, and with it the id. What it starts anew (`subprocess`, spawn) is a run
    of its own, unless its environment has the id. `optree run` puts it there, since it reports what all processes of the program
    recorded, and `optree replay` answers all of them; and `optree.child_env`. Nothing puts it into this process's own environment:
    that is the program's, and a service which it starts would belong to the run for as long as it lives.
    """
    named = os.environ.get(RUN, "")
    return named if is_txn(named) else _OWN_RUN


def note_begun(txn: str) -> None:
    """Note a root session where `optree run` will look for what its program recorded; never raises."""
    _note(txn)


def note_lost(txn: str, records: int) -> None:
    """Note there how many records of a session are lost, if any are; never raises."""
    if records:
        _note(f"{txn} {records}")


def _note(line: str) -> None:
    if path := os.environ.get(RUN_FILE):
        with suppress(OSError, ValueError):  # `optree run` has ended, and its file is gone
            fd = calls.open_file(path, os.O_WRONLY | os.O_APPEND)
            try:
                os.write(fd, b"%b\n" % line.encode())
            finally:
                os.close(fd)


def open_session(
    agent: str,
    options: StoreOptions,
    *,
    txn: str | None = None,
    attributes: Mapping[str, Any] | None = None,
    takers: Sequence[Taker] = (),
    later: bool = False,
    unused: bool = False,
    stores: MutableMapping[str, SessionStore] | None = None,
) -> tuple[SessionTreeBuilder, SessionStore]:
    """Begin a new root session on disk; *takers* receive its records beside the journal. A *txn* is *unused* if it was drawn for it.

    The store is put into *stores* as soon as it has files: if this raises then, as by an interrupt, the caller discards it.
    Raises `OSError` if its journal cannot be made (with *later* it is made once it can be), `BusyError` if the txn is in use, or was.
    """
    unused = unused or not txn
    store = SessionStore(txn or new_txn(), options, takers=takers, later=later, unused=unused, first=not unused, stores=stores)
    try:
        builder = SessionTreeBuilder(
            agent,
            txn=store.txn,
            attributes=attributes,
            stream=store.stream,
            now=options.now,
            cycles=options.cycles,
            redacted=options.redacted,
            content=options.content,
        )
        store.attach(builder)
    except BaseException:  # an interrupt
        if stores is None:  # no other code knows of its files and threads
            store.discard()
        raise
    return builder, store


def resume_session(
    txn: str, options: StoreOptions, *, only_open: bool = False, stores: MutableMapping[str, SessionStore] | None = None
) -> tuple[SessionTreeBuilder, SessionStore, Loaded]:
    """Load a session and go on with it: what a crash left open is closed as `interrupted`, ids go on, the journal is a new one.

    *stores* as of `open_session`. Raises `NotFoundError`, with *only_open* also if it has ended, `BusyError` and what `load` raises.
    """
    store = SessionStore(options.directory.find(txn).txn, options, resume=True, only_open=only_open, stores=stores)
    if (loaded := store.take_loaded()) is None:
        raise RuntimeError("a store that resumes has loaded its session")
    root = loaded.session
    try:
        core = Core(
            store.txn,
            store.stream,
            now=options.now,
            cycles=options.cycles,
            redacted=options.redacted,
            content=options.content,
            pool=loaded.tree.pool,
            latest=max(root.ended_at or 0.0, *root.resumed_at, root.started_at),
        )
        builder = SessionTreeBuilder.over(core, loaded.session)
        _close_interrupted(builder, core)
        if not options.content:
            builder.set_title(attributes={CONTENT_RECORDED: False})
        store.attach(builder)
        if store.lost:
            store.snapshot()  # at once: what says of its files that they are damaged also lets them be settled
        else:
            store.save_soon()
    except BaseException:  # an interrupt
        if stores is None:  # no other code knows of its files and threads
            store.discard()
        raise
    return builder, store, loaded


def _close_interrupted(builder: SessionTreeBuilder, core: Core) -> None:
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


OPENING_SESSIONS.extend((SessionStore.__init__.__code__, open_session.__code__, resume_session.__code__))
