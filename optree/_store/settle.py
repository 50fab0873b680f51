"""Settling a session that has ended: its last snapshot, its lines in the ledger, and nothing else left of it.

The owner settles from memory as its root ends. What remains (after a kill, an exit that could not wait, a process that wrote on) is
settled from disk, by the first process that looks: any step may be done twice, and does nothing the second time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from time import monotonic, sleep, time
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from optree import _records as r
from optree._background import Job
from optree._ids import is_txn
from optree._interrupts import new_rlock, pass_on, suppress
from optree._store.files import lock
from optree._store.files.system import OS
from optree._store.ledger import Ledger
from optree._store.ownership import remove_unused
from optree._store.reading.directory import OWNERS, SUFFIXES, Directory, exists, is_directory, journals, may_be_directory, size_of
from optree._store.reading.formats import read_meta
from optree._store.reading.interrupted import close_begun
from optree._store.reading.reader import LIVE, is_blank
from optree._store.reading.recovery import Damage, Loaded, fold_journals, load
from optree._store.reading.snapshot import SnapshotWriter
from optree._store.saving import StoreOptions, save, sweep
from optree._store.upkeep import SAVING, late_closed
from optree._syscalls import calls
from optree._tree import Fold, Tree

SMALL_BYTES = 4 << 20
"""Largest session, on disk, that a process settles as it ends."""
BACKGROUND_BYTES = 16 << 20
"""Largest session, on disk, that is settled while an agent runs: its memory and its time are the agent's."""
LEDGER_BYTES = 64 << 20
"""Largest ledger that a process searches as it ends."""
LOOK_SECONDS = 60.0
LEFT_SECONDS = 3600.0
"""A temporary file to which nothing was written for so long was left by a process that was killed."""
BEGIN_SECONDS = 60.0
"""No process takes that long to begin a session: a live directory without any record was left by a process that was killed as it began."""
AGAIN_SECONDS = 5.0
"""After a session could not be settled that was let go here, it is tried again."""
_TRIES, _PAUSE_SECONDS = 3, 0.02  # where a flush waits for it
_LONGEST_PAUSE_SECONDS = 0.1  # where a begin waits for another process
_MOST_TRIES = 12
"""After which a session is left to the next process; each time it waits for twice as long."""


class _Unsettled(Struct):
    """A session that is closed here, and is to be settled."""

    txn: str
    options: StoreOptions
    due: float
    """When it is tried next; 0.0 if a thread waits for it."""
    tries: int = 0
    asked: int = 1
    """How often that was asked for: after each file of late records that was closed."""
    settled: int = 0
    """What *asked* was when that was done last."""
    own: bool = True
    """False if all that is to be saved is of others: processes that have gone, or another store of this one."""

    @property
    def live(self) -> Path:
        """Return its live directory."""
        return self.options.directory.live(self.txn)


_left: dict[Path, _Unsettled] = {}
"""By live directory, those that ended here and were let go before they were saved and billed, or have got records since."""
_guard: Final = new_rlock()
_looked: dict[Path, float] = {}
"""Per directory, when this process looks there again."""
_END, _RESUME = b'{"t":"session.end","path":""', b'{"t":"session.resume","path":""'


def is_due(options: StoreOptions) -> bool:
    """Tell whether this process should look for sessions to settle: not each time one begins, since it looks through the directory."""
    directory, now = options.directory.sessions, monotonic()
    if now < _looked.get(directory, now):
        return False
    _looked[directory] = now + LOOK_SECONDS
    return True


def settle_beside(options: StoreOptions) -> None:
    """Settle in the background what others have left, if it is time to look; errors there belong to no session."""
    if is_due(options):
        steps = settling(options, most=BACKGROUND_BYTES)
        Job(SAVING, lambda: None if next(steps, None) is None else 0.0, str).ask()  # in between others have their turn


def settle_later(txn: str, options: StoreOptions, *, own: bool = True) -> None:
    """Settle a session that this process has closed, as soon as that is possible: it is not saved and billed, or has late records.

    What is to be saved is this caller's *own*, or all of others: processes that have gone, or another store of this one.
    """
    live, due = options.directory.live(txn), monotonic() + AGAIN_SECONDS
    with _guard:
        if (left := _left.get(live)) is None:
            _left[live] = _Unsettled(txn, options, due, own=own)
        else:  # no later than it is due: records may come again and again
            left.asked, left.tries, left.due, left.own = left.asked + 1, 0, min(left.due, due), left.own or own
    _SETTLING.ask(AGAIN_SECONDS)


def settle_left(seconds: float) -> bool:
    """Settle these now; False if that takes longer, or is not possible yet for one of them.

    Where only other processes have records to be saved, it is enough that one of them goes on: it may have begun its file just now.
    """
    until = monotonic() + seconds
    if not late_closed(seconds):
        return False
    waiting = [(left, left.asked) for left in list(_left.values())]
    for _ in range(_TRIES):  # another process may look at a session just then
        for left, _asked in waiting:
            left.due = 0.0
        while any(not left.due and left.settled < asked and _left.get(left.live) is left for left, asked in waiting):
            if not _SETTLING.wait(until - monotonic(), first=True):
                return False
        if not (waiting := [(left, asked) for left, asked in waiting if left.settled < asked]):
            return True
        sleep(_PAUSE_SECONDS)
    return not any(left.own or was_left(left.live, left.options.system) for left, _asked in waiting)


def _settle_left() -> float | None:
    """Settle the first of them that is due; returns after how many seconds the next one is."""
    if not _left:
        return None
    left = min(list(_left.values()), key=lambda one: one.due)
    if (wait := left.due - monotonic()) > 0:
        return wait
    most = BACKGROUND_BYTES if left.due else None  # a thread waits for it, which is none of the tries
    left.tries += left.due > 0.0
    left.due = monotonic() + AGAIN_SECONDS * 2.0 ** max(0, left.tries - 1)
    late_closed(_PAUSE_SECONDS, left.txn)  # else it would never be settled while records come
    asked, over = left.asked, False
    try:
        settled = settle(left.txn, left.options, seconds=0.0, most=most)
        if settled or not may_be_directory(left.live):
            left.settled, over = asked, True
    except OSError as error:
        pass_on(error)
        left.tries = 0
    except Exception as error:  # noqa: BLE001 - it is damaged: who settles it later says so
        pass_on(error)
        over = True
    with _guard:
        if (over and left.asked == asked) or left.tries >= _MOST_TRIES:
            _left.pop(left.live, None)
    return 0.0


_SETTLING = Job(SAVING, _settle_left, str)
calls.register_at_fork(after_in_child=_left.clear)


def unsettled(options: StoreOptions) -> list[str]:
    """Return the txns of all sessions with a live directory."""
    try:
        paths = [path for path in options.directory.sessions.iterdir() if path.name.endswith(LIVE)]
        txns = [path.name.removesuffix(LIVE) for path in paths if may_be_directory(path)]
    except OSError as error:
        pass_on(error)
        return []
    return [txn for txn in txns if is_txn(txn)]


def settle_all(options: StoreOptions, txns: list[str] | None = None) -> list[str]:
    """Settle these sessions, or all there are, and sweep what killed processes left half written beside them.

    Returns what went wrong. Never raises.
    """
    return [problem for problem in settling(options, txns) if problem]


def settling(options: StoreOptions, txns: list[str] | None = None, *, most: int | None = None) -> Iterator[str]:
    """Do as `settle_all` does, of sessions of at most *most* bytes, in steps; yields a problem after each, or an empty text."""
    if txns is None:
        txns = unsettled(options)
        for folder in (options.directory.sessions, *(options.directory.live(txn) for txn in txns)):
            sweep(folder, options.system, older=LEFT_SECONDS)
        remove_unused(options.directory.sessions, options.system, [options.directory.live(txn) for txn in txns])
    for txn in txns:
        try:
            settle(txn, options, seconds=0.0, most=most)
        except Exception as error:  # noqa: BLE001 - the next session may be sound
            pass_on(error)
            yield f"session {txn} cannot be settled: {error}"
        else:
            yield ""


def settle(txn: str, options: StoreOptions, *, seconds: float = lock.TRY_SECONDS, leaving: bool = False, most: int | None = None) -> bool:
    """Settle a session from disk; False if it goes on, is interrupted or damaged, has over *most* bytes, or a process still writes to it.

    One that was never begun is removed. A process that is *leaving* does only what is quick. Raises what reading, writing and locking
    raise.
    """
    for tries in reversed(range(_TRIES)):
        try:
            return _settled(txn, options, seconds, most=most, leaving=leaving)
        except FileNotFoundError as error:
            pass_on(error)
            if not is_directory(options.directory.live(txn)):
                break  # another process has settled it meanwhile
            if not tries:  # else it may be that a process which had recorded nothing has removed its file
                raise
    return False


def _settled(txn: str, options: StoreOptions, seconds: float, *, most: int | None, leaving: bool) -> bool:
    """Do as `settle` does; raises `FileNotFoundError` also where another process does so at the same time."""
    live, system = options.directory.live(txn), options.system
    most = SMALL_BYTES if leaving else most
    if not is_directory(live) or (most is not None and _bytes(txn, options) > most):
        return False
    if leaving and size_of(options.directory.billing) > LEDGER_BYTES:
        return False
    if not _seems_ended(txn, options):
        return _is_unbegun(txn, options) and _remove_unbegun(live, system)
    owned = lock.own(live / "LOCK", system, seconds)
    if owned < 0:
        return False
    held: list[int] | None = None
    try:
        sweep(live, system)
        paths = journals(live)
        held = lock.hold(paths, system)
        loaded = load(txn, options.directory, system) if held is not None else None
        if loaded is None or not _settle(loaded, live, paths, options, leaving=leaving):
            return False
        remove(live, [path for path in paths if path.name in loaded.sources], system)
        return True
    finally:
        leave(live, [*(held or []), owned], system)


def was_left(live: Path, system: OS) -> bool:
    """Tell whether a session's live directory has journals, and all of processes that have gone; an idle session has its owner."""
    held: list[int] | None = None
    try:
        paths = journals(live) if is_directory(live) else []
        held = lock.hold(paths, system) if paths else None
    except OSError as error:
        pass_on(error)
    lock.release(held or [], system)
    return held is not None and not lock.is_running(live)


def wait_until_saved(txn: str, options: StoreOptions, seconds: float, is_ours: Callable[[], bool]) -> bool:
    """Wait, at most so many seconds, until a process that ended a session has saved it; not for one that goes on there, nor this one."""
    until, pause = monotonic() + seconds, _PAUSE_SECONDS / 4
    live = options.directory.live(txn) if is_txn(txn) and calls.may_name_a_file(txn) else None
    with suppress(OSError):
        while live is not None and monotonic() < until:
            if not (is_directory(live) and lock.is_running(live) and _seems_ended(txn, options)) or is_ours():
                break
            sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
    return monotonic() < until


def has_ended(txn: str, directory: Directory) -> bool:
    """Tell whether a session's snapshot has its end: a process that has its lock then settles it, or has resumed it."""
    return any(read_meta(directory.snapshot(txn, name)).get("endedAt") for name in SUFFIXES)


def join(tree: Tree, live: Path, paths: list[Path], vector: dict[str, int], system: OS) -> tuple[set[str], Damage]:
    """Fold what processes wrote in *live* that have gone into a tree, end what they left open, and move *vector* on.

    Returns the paths of the ops that it changed, and what could not be read.
    """
    fold, damage, there = _Noting(tree), Damage(), list[Path]()
    noted = [note for note in lock.refused(live) if note.writer != "0000"]
    try:
        for path in paths:
            with suppress(FileNotFoundError):  # a process that has recorded nothing removes its file as it ends
                fold_journals([path], fold, vector, damage, system)
                there.append(path)
    finally:
        fold.finish()  # whatever was raised: the vector has moved over what was read so far
    damage.dropped += lock.never_written(noted, vector)
    close_begun(tree.session, there, system)
    return fold.touched, damage


def remove(live: Path, paths: list[Path], system: OS, held: Sequence[int] = (), *, fresh: bool = False) -> None:
    """Remove the journals that were read, let go of locks, and remove the directory, unless it has other journals.

    Beside those LOCK stays too: it may note what the disk has refused.
    In a *fresh* directory, which this process has made, no other has left a snapshot half written.
    """
    if not fresh:
        sweep(live, system)
    for path in paths:
        with suppress(FileNotFoundError):
            system.unlink(path)
    for path in () if journals(live) else (*lock.notes_of_refused(live), live / "LOCK"):
        with suppress(FileNotFoundError):
            system.unlink(path)
    leave(live, held, system)


def leave(live: Path, held: Sequence[int], system: OS) -> None:
    """Let go of locks; the live directory goes too if nothing is in it: a file may keep its name until it is closed (Windows)."""
    lock.release(held, system)
    with suppress(OSError):
        system.remove_directory(live)


class _Noting(Fold):
    """A fold that notes the ops that it changes."""

    def __init__(self, tree: Tree) -> None:
        super().__init__(tree.session.origin_txn_id, tree)
        self.touched: set[str] = set()

    def apply(self, record: r.Record) -> None:
        super().apply(record)
        if isinstance(record, r.OpBegin | r.OpSet | r.OpEnd | r.Entries | r.Accounted):
            self.touched.add(record.path)
        elif isinstance(record, r.TurnSet):
            self.touched.add(f"{record.path}.1")


def _settle(loaded: Loaded, live: Path, paths: list[Path], options: StoreOptions, *, leaving: bool) -> bool:
    """End what joined processes left open, save and bill what was loaded from *live*; False if its journals must stay."""
    if loaded.session.ended_at is None or loaded.txn != live.name.removesuffix(LIVE):  # else another session's files would be written
        return False
    unsaid = bool(loaded.damage.unsaid())
    whole = not replace(loaded.damage, dropped=0, kept="").unsaid()  # of records that were never written no file shows more
    others = [path for path in paths if not path.name.startswith(OWNERS)]
    if whole and loaded.damage.snapshot:
        loaded.damage.keep(loaded.txn, options.directory, options.system)
    closed = close_begun(loaded.session, others, options.system)
    if whole and (unsaid or closed or loaded.vector != loaded.meta.get("journal") or not loaded.meta.get("endedAt")):
        writer = SnapshotWriter(_compression(loaded.txn, options))
        save(loaded.tree, loaded.vector, options, writer, lost=loaded.damage.lost())
    elif whole:  # who wrote the snapshot may have died before its name was on the disk
        options.system.sync_name(options.directory.snapshot(loaded.txn, _compression(loaded.txn, options)))
    Ledger(options.directory.billing, options.system).append(loaded.session, again=True, seconds=lock.TRY_SECONDS if leaving else None)
    return whole


def _is_unbegun(txn: str, options: StoreOptions) -> bool:
    """Tell whether a session has only files that never had a record, and that were not made just now."""
    directory = options.directory
    live = directory.live(txn)
    if lock.has_recorded(live):
        return False
    paths = journals(live)
    if {*live.iterdir()} - {*paths, *lock.notes_of_refused(live), live / "LOCK"} or any(
        exists(directory.snapshot(txn, name)) for name in SUFFIXES
    ):
        return False
    latest = max(path.stat().st_mtime for path in [live, *paths])
    return latest < time() - BEGIN_SECONDS and all(is_blank(path, options.system) for path in paths)


def _remove_unbegun(live: Path, system: OS) -> bool:
    """Remove a live directory without a record; False if a process has it."""
    owned, held = lock.own(live / "LOCK", system, 0.0), None
    try:
        paths = journals(live)
        held = lock.hold(paths, system) if owned >= 0 else None
        if held is None or not all(is_blank(path, system) for path in paths):
            return False
        remove(live, paths, system)
        return True
    finally:
        leave(live, [*(held or []), *([owned] if owned >= 0 else [])], system)


def _compression(txn: str, options: StoreOptions) -> str:
    existing = (name for name in SUFFIXES if exists(options.directory.snapshot(txn, name)))
    return next(existing, options.compression)


def _seems_ended(txn: str, options: StoreOptions) -> bool:
    """Tell whether a session's root may have ended, without parsing its journals."""
    ended = has_ended(txn, options.directory)
    for path in journals(options.directory.live(txn)):
        tail = b""
        for piece in options.system.pieces(path) if path.name.startswith(OWNERS) else ():
            data = tail + piece
            end, resume = data.rfind(_END), data.rfind(_RESUME)
            ended = ended if end == resume else end > resume
            tail = data[-len(_RESUME) :]
    return ended


def _bytes(txn: str, options: StoreOptions) -> int:
    """Return what a session takes on disk."""
    directory = options.directory
    return sum(map(size_of, [*directory.live(txn).iterdir(), *(directory.snapshot(txn, name) for name in SUFFIXES)]))
