"""Puts a fault into optree and prints what the checks say to it, a line each: `python -m tests.interrupts.broken threads`.

The faults are such as an exception out of a handler could leave: something is not given back, not ended, not delivered, not told.
"""

from __future__ import annotations

import os
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

from optree import _background as background
from optree._builder import handles
from optree._builder.guard import FAULTS
from optree._builder.stream import Stream
from optree._store import session_store
from optree._store.files.system import OS
from optree._store.ledger import Ledger
from optree._tracing import context, faults, runtime, scopes
from optree._tracing.runtime import RUNTIME
from tests.interrupts import resting, scenarios
from tests.interrupts.injecting import NOWHERE, Injection
from tests.interrupts.rounds import Round, places

close_root, append_all, saving = runtime.Runtime.close_root, Ledger.append_all, session_store.saving
workers: list[background.Worker] = []


def besides(work: Callable[[], object]) -> Callable[..., None]:
    """Return what closes a root session, and does something besides."""

    def close(self: Any, txn: str) -> None:
        close_root(self, txn)
        work()

    return close


def one_more_thread() -> None:
    """Start a second thread of a kind."""
    workers.append(background.Worker("store"))
    workers[-1].start()


def save_without_turns(tree: Any, *given: Any, **options: Any) -> Any:
    """Save a tree that lacks its last turn."""
    turns, tree.session.turns = tree.session.turns, tree.session.turns[:-1]
    yield from saving(tree, *given, **options)
    tree.session.turns = turns


def bill_again(self: Any, bills: Any) -> None:
    """Bill sessions twice."""
    append_all(self, bills)
    append_all(self, bills)


def at_close(work: Callable[[], object]) -> tuple[Any, str, Any]:
    """Return a fault of the end of sessions."""
    return runtime.Runtime, "close_root", besides(work)


REST: dict[str, tuple[Any, str, Any]] = {
    "threads": at_close(one_more_thread),
    "descriptors": (OS, "close", lambda *_: None),
    "locks": at_close(RUNTIME._lock.acquire),
    "files": (session_store, "remove", lambda *_: None),
    "sessions": (runtime.Runtime, "close_root", lambda *_: None),
    "_detached": at_close(lambda: RUNTIME._detached.update(left="")),
    "consoles": (runtime.Runtime, "_close_ended", lambda _: None),
    "health": at_close(lambda: setattr(FAULTS, "calls", FAULTS.calls + 1)),
    "saved": (session_store, "saving", save_without_turns),
    "billed": (Ledger, "append_all", bill_again),
    "not billed": (Ledger, "append_all", lambda *_, **__: None),
    "stderr": at_close(lambda: os.write(2, b"Traceback\n")),
}
"""What is said when nothing is open."""
AT_ONCE: dict[str, tuple[str, tuple[Any, str, Any]]] = {
    "context": ("with tool", (context.Scope, "abandoned", False)),
    "next session: its log is not delivered": ("Op.log", (Stream, "_rouse", lambda _: None)),
    "root: Totals": ("Op.account", (handles, "add_entry", lambda *_: None)),
    "swallowed": ("health", (faults, "passed", lambda _: None)),
    "still open": ("with tool", (scopes.OpScope, "_end", lambda *_: None)),
    "stores of sessions that have not ended": ("with session", (runtime.Runtime, "_end_abandoned", lambda _: None)),
}
"""What is said after each exception: in which call."""


def flaws(name: str, base: Path) -> list[str]:
    """Return what is said to a fault, or to none."""
    rest = resting.Rest(base, base / "stderr")
    if name in AT_ONCE:
        call, fault = AT_ONCE[name]
        with patch.object(*fault):
            return [
                flaw.rpartition("): ")[2]
                for place in places(call, 151 if "session" in call else 9)[0]
                for flaw in Round(call, place, "LateError").run(rest)
            ]
    with patch.object(*REST.get(name, (sys, "flags", sys.flags))):
        one = Round("Op.account", NOWHERE)
        one.injection.possible = True
        one.run(rest, probing=False)
        return rest.flaws()


if __name__ == "__main__":
    resting.PATIENCE = scenarios.LONG = 0.3
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        said = Path(folder) / "stderr"
        with said.open("ab") as file:
            os.dup2(file.fileno(), 2)
        Injection.compile(Path(folder))
        try:
            print(*flaws(sys.argv[1], Path(folder)), sep="\n", flush=True)
        except Exception:  # noqa: BLE001 - descriptor 2 is a file that nobody reads
            traceback.print_exc(file=sys.stdout)
        sys.stdout.flush()
        os._exit(0)
