"""Saved sessions as a listing shows them, and loading one of them."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec

from optree._cli.options import flags, going_on
from optree._cli.program import command_line
from optree._cli.screen import complain, figures, rounded, working
from optree._formats.installed import detected, installed_formats
from optree._nodes import OperationNode, SessionNode, Totals, TurnNode, lacks_content
from optree._store.files.lines import check_size
from optree._store.files.lock import is_running
from optree._store.reading.directory import Directory, Saved, exists, is_directory, size_of
from optree._store.reading.formats import read_meta
from optree._store.reading.recovery import Damage, Loaded, load, names_file
from optree._store.reading.runs import MOST_LOOKED_AT, ProgramRun, find_run, run_in, run_of
from optree._store.saving import StoreOptions
from optree._store.settle import settle_all
from optree._tree import Tree
from optree._tree.redacted import outline
from optree._tree.text import duration, lasted, seen_of, took
from optree._tree.walk import name_safely, walk_sessions
from optree._values import number_of, object_of
from optree._visible import one_line
from optree.errors import DamagedError, FormatError, NotFoundError, OptreeError

_OWN = frozenset({"json", "ai-agent", "ai-agent-v1"})
"""Formats that `optree.load` reads itself."""
_NOTHING = {"cost_usd": Totals().cost_usd, "upstream_inference_cost_usd": Totals().upstream_inference_cost_usd}
Node = SessionNode | TurnNode | OperationNode
State = Literal["running", "interrupted", "ended", "failed", "cancelled", "damaged"]
_CANCELLED = ("KeyboardInterrupt", "CancelledError", "GeneratorExit")
"""Errors of sessions that were cancelled, for files whose first frame does not say the status."""


@dataclass(frozen=True, slots=True)
class Row:
    """One session in a listing; times in epoch milliseconds, *duration* in seconds, None if it is not known."""

    txn: str
    agent: str
    state: State
    started_at: float
    duration: float | None
    totals: Totals
    size: int
    """Bytes on disk."""
    lossy: bool = False
    """True if something of it could not be read, or was lost before it was resumed."""
    run: str = ""
    """The id of the run that recorded it."""

    def lasted(self, least: str = "at least ") -> str:
        """Return the duration for people, behind *least* if it was longer; empty if it is not known."""
        if self.duration is None:
            return ""
        return f"{least if self.state == 'interrupted' else ''}{duration(self.duration)}"

    def plain(self) -> dict[str, Any]:
        """Return the row under the names that JSON output has."""
        return {
            "txn": self.txn,
            "agentId": self.agent,
            "state": self.state,
            "incomplete": self.lossy,
            "startedAt": self.started_at,
            "durationSeconds": None if self.duration is None else round(self.duration, 3),
            "bytes": self.size,
            **figures(self.totals),
            "run": self.run,
        }


def check_directory(where: Directory, sessions_dir: Path | None) -> None:
    """Raise `NotFoundError` for a path that is not a directory, and for a named one (the base, or that of the sessions) that is missing."""
    path = where.sessions
    if where.homeless:
        raise NotFoundError("you have no home directory, where sessions would be; name theirs with --sessions-dir or OPTREE_SESSIONS_DIR")
    if exists(path) and not path.is_dir():
        raise NotFoundError(f"{path} is no directory; name the directory of the sessions with --sessions-dir")
    named = path if sessions_dir or os.environ.get("OPTREE_SESSIONS_DIR") else path.parent if os.environ.get("OPTREE_BASE_DIR") else None
    if named and not exists(named):
        raise NotFoundError(f"{named} does not exist; it is made when a session is recorded: optree run -- python your_agent.py")


def describe(saved: Saved, directory: Directory) -> Row:
    """Return the row of a session: from the first frame of its snapshot if that is enough, else from the whole session."""
    meta = read_meta(saved.snapshot) if saved.snapshot is not None and saved.live is None else {}
    created, ended = number_of(meta.get("createdAt")), number_of(meta.get("endedAt"))
    result, known = object_of(meta.get("result")), _summed(object_of(meta.get("summary")))
    until = ended or number_of(meta.get("lastSeenAt"))
    if not created or "agentId" not in meta or known is None or until is None:
        return _from_tree(saved, directory)
    status = result.get("status") or ("cancelled" if result.get("error") in _CANCELLED else None)
    state: State = "interrupted" if ended is None else _ended(status, result.get("success"))
    known_for = lasted(created, until, number_of(meta.get("untimedUntil")), broke_off=state == "interrupted")
    lossy = bool(meta.get("damage")) or meta.get("txn", saved.txn) != saved.txn
    run = run_in(meta.get("ingress"), saved.txn)
    return Row(saved.txn, str(meta["agentId"]), state, created, _seconds(known_for), known, bytes_of(saved), lossy, run)


def _seconds(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1e3


def _summed(summary: dict[str, Any]) -> Totals | None:
    """Return the totals in a snapshot's first frame; None where it does not count unknown costs, as in version 0.1.0."""
    try:
        return msgspec.convert(summary, Totals) if "unknownCosts" in summary else None
    except msgspec.ValidationError:
        return None


def _from_tree(saved: Saved, directory: Directory) -> Row:
    try:
        loaded = load(saved.snapshot if saved.live is None and saved.snapshot else saved.txn, directory)
    except (OptreeError, OSError, RecursionError):
        return Row(saved.txn, "", "damaged", saved.modified * 1e3, None, Totals(), bytes_of(saved), run=run_of(saved))
    return row_of(loaded, saved)


def row_of(loaded: Loaded, saved: Saved) -> Row:
    """Return the row of a session that is loaded already."""
    session = loaded.session
    state = state_of(session, saved.live)
    known_for = took(session, seen_of(session, live=state == "running"))
    lossy = loaded.damage.state == "damaged"
    run, lasted_for = run_in(session.attributes.get("ingress"), saved.txn), _seconds(known_for)
    return Row(saved.txn, session.agent_id, state, session.started_at, lasted_for, session.totals, bytes_of(saved), lossy, run)


def state_of(session: SessionNode, live: Path | None) -> State:
    """Return how a session stands: running while a living process holds its lock."""
    if session.ended_at is not None:
        return _ended(session.status, session.success)
    return "running" if live is not None and is_running(live) else "interrupted"


def _ended(status: str | None, success: bool | None) -> State:
    """Return the state of a session that ended; without a status it is ``ended``."""
    return "ended" if success or (status is None and success is None) else "cancelled" if status == "cancelled" else "failed"


def settled(directory: Directory, txns: list[str] | None = None) -> None:
    """Settle these sessions if they have ended, or all of them: what their own processes did not come to. Says what went wrong."""
    options = StoreOptions(directory)
    with working("settling sessions"):
        for problem in settle_all(options, txns):
            complain(problem)


def bytes_of(saved: Saved) -> int:
    """Return how many bytes a session takes on disk."""
    paths = [saved.snapshot] if saved.snapshot is not None else []
    if saved.live is not None:
        paths += list(saved.live.glob("*"))
    return sum(size_of(path) for path in paths)


def say_lost(loaded: Loaded) -> None:
    """Say on stderr what of a session could not be read."""
    if lost := loaded.damage.lost():
        complain(f"session {loaded.txn} is not whole: {'; '.join(lost)}")


def say_without_content(loaded: Loaded) -> None:
    """Say on stderr that the texts of a session are not known, to those who ask where it differs."""
    if lacks_content(loaded.session):
        complain(f"session {loaded.txn} was recorded without content (content=False): whether texts differ is not known")


def open_session(txn: str, directory: Directory, *, verbatim: bool = False) -> tuple[Loaded, Path | None]:
    """Load what a TXN argument means, with a progress bar where that takes long; returns its live directory too, if it has one.

    A file may be of any installed format. Credentials are replaced in names, texts and reasoning, before anything is cut or joined; with
    *verbatim* they are not: for what compares, or redacts itself.
    """
    with working(f"loading {one_line(txn)}"):
        loaded = _loaded(txn, directory)
        if not verbatim:
            loaded.tree = Tree(outline(loaded.session), loaded.tree.pool)
    for session in walk_sessions(loaded.session):
        for name in ("cost_usd", "upstream_inference_cost_usd"):
            money = getattr(session.totals, name)
            setattr(session.totals, name, rounded(money) if money else _NOTHING[name])  # the default: in JSON it is left out
    path = Path(txn)
    if path.is_file() or (path.is_dir() and not loaded.vector):
        return loaded, None
    live = path if path.is_dir() else directory.live(loaded.txn)
    return loaded, live if is_directory(live) else None


class OpenedRun(NamedTuple):
    """The root sessions of a run, loaded."""

    id: str
    sessions: list[tuple[Loaded, Path | None]]
    """As `open_session` returns each, in the order in which they began."""
    is_whole: bool
    """False if one of them could not be read, which was said."""


def open_run(txn: str, directory: Directory, *, verbatim: bool = False) -> OpenedRun:
    """Load all sessions of the run that a TXN argument means, as `open_session` does; of a file the session in it alone."""
    run = run_with(txn, directory)
    sessions: list[tuple[Loaded, Path | None]] = []
    for name in [saved.txn for saved in run.sessions] or [txn]:
        try:
            sessions.append(open_session(name, directory, verbatim=verbatim))
        except (FormatError, DamagedError) as error:
            if len(run.sessions) <= 1:
                raise
            complain(str(error))
    return OpenedRun(run.id or sessions[0][0].txn, sessions, _is_known(run) and len(sessions) >= len(run.sessions))


def run_with(txn: str, directory: Directory, *, most: int | None = None) -> ProgramRun:
    """Return the run that a TXN argument means; for a file, looked at alone, one without id and sessions. *most* as of `find_run`."""
    if names_file(txn):
        return ProgramRun("", [])
    try:
        with working("looking for the sessions of the run"):
            return find_run(txn, directory, most=most)
    except NotFoundError:
        if not exists(Path(txn)):
            raise
        return ProgramRun("", [])


def of_runs(txns: Iterable[str], directory: Directory) -> tuple[list[str], bool]:
    """Return the txns of all sessions of the runs that TXN arguments mean, each once, and if these are all; a file stands for itself."""
    runs = {txn: run_with(txn, directory) for txn in txns}
    found = [name for txn, run in runs.items() for name in [saved.txn for saved in run.sessions] or [txn]]
    known = [_is_known(run) for run in runs.values()]
    return list(dict.fromkeys(found)), all(known)


def _is_known(run: ProgramRun) -> bool:
    """Tell whether all sessions of a run are known; says which may be of it, as their files do not tell."""
    for name in run.unread:
        complain(f"session {name} may be of this run too: its files do not tell, they are damaged (optree load {name})")
    return not run.unread


def unfinished(run: ProgramRun, directory: Directory, *, but: str) -> list[Row]:
    """Return the sessions of a run that broke off, *but* one."""
    rows = [describe(saved, directory) for saved in run.sessions if saved.txn != but]
    return [row for row in rows if row.state == "interrupted"]


def say_run(told: str, txn: str, directory: Directory, command: str) -> None:
    """Say that the run of the session *txn* has more of them, if it has, and the *command* that shows all; *told*: the TXN argument."""
    if (count := len(run_with(told, directory, most=MOST_LOOKED_AT).sessions)) > 1:
        shown = command_line(["optree", command, txn, "--run", *flags(directory)])
        complain(f"session {txn} is one of {count:,} of its run; all of them: {shown}")


def is_auto(loaded: Loaded) -> bool:
    """Tell whether the program of a session was recorded without a change of it."""
    return object_of(loaded.session.attributes.get("ingress")).get("auto") is True


def resume_of(loaded: Loaded, directory: Directory) -> str:
    """Return the command that goes on with a session."""
    return going_on(loaded.txn, directory, auto=is_auto(loaded))


def _loaded(txn: str, directory: Directory) -> Loaded:
    try:
        return load(txn, directory)
    except (NotFoundError, FormatError, DamagedError):
        path = Path(txn)
        if not exists(path):
            raise
        result = _read_foreign(path)
        if result is not None:
            return result
        if path.is_file() and "/" not in txn:
            return load(f"./{txn}", directory)  # which says what is wrong with the file
        raise


def _read_foreign(path: Path) -> Loaded | None:
    """Return the session in a file or folder of an installed format; None if it is of none.

    What was wrong in it is in the damage. Raises `FormatError` if it holds no session, or several; `OSError`.
    """
    form = next(iter(detected(path, [form for form in installed_formats()[0] if form.name not in _OWN])), None)
    if form is None:
        return None
    check_size(path)
    contents = form.read(path)
    if len(contents.trees) != 1:
        count = f"{len(contents.trees)} sessions" if contents.trees else "no session"
        raise FormatError(f"{path} is {form.name} and holds {count}: optree import {path}, and look at what is listed then")
    [tree] = contents.trees
    flaws = [f"line {fault.line}: {fault.said}" if fault.line else fault.said for fault in contents.faults]
    return Loaded(
        tree.session.origin_txn_id, tree, Damage(renamed=name_safely(tree), earlier=flaws), [str(path)], {}, {"source": form.name}
    )


def find_node(root: SessionNode, label: str) -> tuple[SessionNode, Node]:
    """Return the node at a path, with the session that it is in. Raises `NotFoundError`, which names some that are there."""
    if not label:
        return root, root
    paths: list[str] = []
    for session in walk_sessions(root):
        for turn in session.turns:
            nodes: list[TurnNode | OperationNode] = [turn, *turn.ops]
            for node in nodes:
                if node.path == label:
                    return session, node
                paths.append(node.path)
    known = f"there are {len(paths)}, among them {', '.join(paths[:5])}" if paths else "it has none"
    raise NotFoundError(f"no node {label} in session {root.origin_txn_id}: {known} (optree tree shows them)")
