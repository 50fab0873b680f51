"""From disk to a tree: the snapshot, then each journal's tail, folded; and what could not be read of them.

Recovery never changes a byte that is there. While a large tree is built Python's garbage collector is off.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Generator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from msgspec import Struct

from optree._interrupts import new_rlock, pass_on, suppress
from optree._nodes import OperationNode, SessionNode, TurnNode
from optree._store.files.lock import has_recorded, is_running, last_beat, last_forced, never_written, refused
from optree._store.files.system import OS, REAL
from optree._store.reading.directory import (
    KEPT,
    OWNERS,
    SUFFIXES,
    Directory,
    Saved,
    exists,
    is_directory,
    journals,
    no_files,
    readable,
    size_of,
)
from optree._store.reading.formats import Snapshot, read_snapshot
from optree._store.reading.interrupted import account_open, open_nodes
from optree._store.reading.numbering import vector_of
from optree._store.reading.reader import Flaw, read_journal
from optree._syscalls import calls
from optree._tree.fold import Fold, Tree
from optree._values import is_list
from optree.errors import DamagedError, FormatError, NotFoundError, SetupError

LARGE_BYTES = 16 << 20
"""A session that takes this much on disk is loaded without the garbage collector, which would walk the growing tree again and again."""
TORN = "torn tail"
_NOTHING_LOST = (TORN, "repeated")
_COUNTS = {
    "dropped": "{} records were never written, since the disk would not take them",
    "missing": "{} entries are missing",
    "unknown": "{} records are of types that only a newer optree knows",
    "misplaced": "{} records belong to nodes that cannot be: their paths are none",
}


class Damage(Struct):
    """What could not be read of a saved session, to the byte."""

    flaws: list[Flaw] = []
    """Each place where a file is not as it was written; `str` gives a line for people."""
    snapshot: str = ""
    """Empty, or what is missing from the snapshot."""
    replaced: bool = False
    """True if the journals have all that is missing from the snapshot."""
    dropped: int = 0
    """Records that writers say the disk did not take."""
    missing: int = 0
    """Entries that are known to be missing from the middle of lists."""
    unknown: int = 0
    """Records of types that only a newer optree knows."""
    misplaced: int = 0
    """Records whose paths are not valid."""
    renamed: list[str] = []
    """Values in the snapshot that cannot be ids, with the ids that replace them: nothing is lost by that."""
    kept: str = ""
    """Empty, or where the damaged files are kept, after the session has gone on."""
    earlier: list[str] = []
    """What was lost before the session went on, as its snapshot says it: the files that showed it may be gone."""

    @property
    def state(self) -> str:
        """``clean``, ``torn tail`` (the last write of a process that was killed: nothing acknowledged is lost) or ``damaged``."""
        if self.snapshot or self.lost() or any(flaw.kind != TORN for flaw in self.flaws):
            return "damaged"
        return TORN if self.flaws else "clean"

    def unsaid(self) -> list[str]:
        """Return what was lost and the snapshot does not say, one line each."""
        lines = [str(flaw) for flaw in self.flaws if flaw.kind not in _NOTHING_LOST]
        lines += [self.snapshot] if self.snapshot and not self.replaced else []
        lines += [line.format(getattr(self, name)) for name, line in _COUNTS.items() if getattr(self, name)]
        lines += [self.kept] if self.kept and lines else []
        return [line for line in lines if line not in self.earlier]

    def lost(self) -> list[str]:
        """Return what was lost for good, one line each: what the next snapshot says."""
        return [*self.earlier, *self.unsaid()]

    def keep(self, txn: str, directory: Directory, system: OS) -> None:
        """Keep the damaged files, beside the session, before anything replaces or removes them. Raises `OSError`."""
        names = {flaw.file for flaw in self.flaws if flaw.kind not in _NOTHING_LOST}
        paths = [path for path in journals(directory.live(txn)) if path.name in names]
        if self.snapshot:
            paths += [path for path in (directory.snapshot(txn, name) for name in SUFFIXES) if exists(path) and path.is_file()]
        folder = directory.sessions / f"{txn}{KEPT}"
        for path in paths:
            system.make_directory(folder)
            places = (folder / f"{path.name}{more}" for more in ("", *(f".{number}" for number in range(2, 1000))))
            target = next(place for place in places if not exists(place) or place.samefile(path))
            if not exists(target):
                system.keep(path, target)
            self.kept = f"what was damaged is kept as it was: {folder}"

    def lines(self) -> list[str]:
        """Return the damage for people, one line each."""
        normal = [str(flaw) for flaw in self.flaws if flaw.kind in _NOTHING_LOST]
        normal += [self.snapshot] if self.replaced else []
        normal += [self.kept] if self.kept and self.kept not in self.lost() else []
        return [*(f"lost before: {line}" for line in self.earlier), *normal, *self.renamed, *self.unsaid()]


def earlier(meta: dict[str, Any]) -> list[str]:
    """Return what a snapshot's meta says was lost before it was written."""
    lines: object = meta.get("damage")
    return [str(line) for line in lines] if is_list(lines) else []


class _Collector:
    """Counts who needs it off; the last one out puts it back as the first one found it. A forked child has it back at once.

    A signal handler, or an object's end, may come in between any two steps and need it off too: on the same thread, so the lock lets it
    in, and the steps are in an order in which it leaves everything as it was.
    """

    def __init__(self) -> None:
        self._lock = new_rlock()
        self._holders = 0
        self._was_on = False
        calls.register_at_fork(after_in_child=self._after_fork)

    def hold(self) -> None:
        with self._lock:
            self._holders += 1
            if self._holders == 1:
                self._was_on = gc.isenabled()
                gc.disable()

    def release(self) -> None:
        with self._lock:
            if self._holders == 1 and self._was_on:
                gc.enable()
            self._holders = max(0, self._holders - 1)

    def _after_fork(self) -> None:
        """The threads that held it are not in the child."""
        if self._holders and self._was_on:
            gc.enable()
        self._holders = 0


_COLLECTOR = _Collector()


@contextmanager
def without_collector() -> Generator[None]:
    """Keep the garbage collector off; any number of threads may be inside, and at the end it is as it was."""
    _COLLECTOR.hold()
    try:
        yield
    finally:
        _COLLECTOR.release()


class Loaded(Struct):
    """A session as it was saved, as `load` returns it."""

    txn: str
    """The root session's txn."""
    tree: Tree
    """The whole tree."""
    damage: Damage
    """What could not be read."""
    sources: list[str]
    """The names of the files that it was read from."""
    vector: dict[str, int]
    """Per writer, the number of its last record that was read."""
    meta: dict[str, Any]
    """What the snapshot says of itself and of the session, as the reference of files describes it."""
    seconds: float = 0.0
    """How long loading took."""

    @property
    def session(self) -> SessionNode:
        """The root session."""
        return self.tree.session

    @property
    def state(self) -> str:
        """``ended``, or ``interrupted``: it did not come to its end, or is still running."""
        return "interrupted" if self.session.ended_at is None else "ended"

    def last_seen_alive(self, live: Path) -> None:
        """Take from the live directory of a session that broke off when its process was last known to live."""
        if self.session.ended_at is None and (beat := last_beat(live, self.session.started_at)):
            self.session.seen_at = beat

    def open_nodes(self) -> list[SessionNode | TurnNode | OperationNode]:
        """Return the nodes that were open when it broke off, deepest first."""
        return open_nodes(self.session)


def load(what: str | Path, directory: Directory | None = None, system: OS = REAL) -> Loaded:
    """Load a session from disk, as `optree.load` says, which see for what it raises.

    Args:
        what: A txn, the beginning of one, ``last`` for the one that began last, or the path of a snapshot file or live directory.
        directory: Where to look for txns; by default where the environment says, or ``~/.optree/sessions``.
        system: For tests of optree itself: the operating system's calls.
    """
    where = directory or Directory.of()
    with readable(where.sessions):
        return _loaded(what, where, system)


def _loaded(what: str | Path, directory: Directory, system: OS) -> Loaded:
    saved = _located(what, directory)
    if saved.live is not None:
        with suppress(FileNotFoundError):  # the session ended meanwhile
            next(saved.live.iterdir(), None)  # which raises where it may not be read: Windows says so of what is being removed too
    begun = time.perf_counter()
    with without_collector() if _size(saved) >= LARGE_BYTES else nullcontext():
        loaded = _load_settled(saved, system)
    if saved.live is not None and not is_running(saved.live):
        loaded.last_seen_alive(saved.live)
        if loaded.session.ended_at is None:
            account_open(loaded.session, loaded.open_nodes(), loaded.session.seen_at or 0.0)
    loaded.seconds = time.perf_counter() - begun
    return loaded


def load_to_resume(txn: str, directory: Directory, system: OS = REAL) -> Loaded:
    """Load a session to go on with it; files that are damaged are kept aside.

    Raises `SetupError` if what has its name is a link or another session's, `OSError`, and as `load` does.
    """
    directory.live_to_write(txn)
    loaded = _loaded(txn, directory, system)
    loaded.last_seen_alive(directory.live(txn))  # its lock is held here, and no process is at it
    if loaded.txn != txn:
        raise SetupError(
            f"the file of {txn} holds session {loaded.txn}, whose files would be written: give it the name of that, and go on then"
        )
    loaded.damage.keep(txn, directory, system)
    if forced := last_forced(directory.live(txn)):
        loaded.vector["0000"] = max(loaded.vector.get("0000", 0), forced)  # what is gone has had its numbers
    return loaded


def names_file(what: str | Path) -> bool:
    """Tell whether this is the path of a file or directory, not a txn."""
    return "/" in str(what) or Path(what).suffix in (".zst", ".gz", ".json")


def _located(what: str | Path, directory: Directory) -> Saved:
    path = Path(what)
    if names_file(what):
        if path.is_dir() and path.name.endswith(".live"):
            directory = Directory(path.parent, directory.billing)
            return directory.find(path.name.removesuffix(".live"))
        if not exists(path) or not path.is_file():
            raise NotFoundError(f"{path} is no file: give a txn (optree ls lists them) or the path of a snapshot")
        return Saved("", path, None, 0.0)  # whatever session it says it is
    return directory.find(str(what))


def _load_settled(saved: Saved, system: OS) -> Loaded:
    """Load, and again if the session ended meanwhile: its journals go away once its last snapshot has all of them."""
    while True:
        before = set(journals(saved.live))
        loaded = failure = None
        try:
            loaded = _load(saved, system)
        except (FileNotFoundError, DamagedError) as error:
            pass_on(error)
            failure = error
        if before <= set(journals(saved.live)) and (saved.live is None or is_directory(saved.live)):
            if loaded is None:
                raise failure or DamagedError(saved.txn)
            return loaded
        sessions = (saved.live or saved.snapshot or Path()).parent
        saved = Directory(sessions, sessions).find(saved.txn)


def _load(saved: Saved, system: OS) -> Loaded:
    damage = Damage()
    sources: list[str] = []
    base = _snapshot(saved, damage, sources, system)
    vector = vector_of(base.meta) if base else {}
    txn = base.tree.session.origin_txn_id if base else saved.txn
    fold = Fold(txn, base.tree if base else None)
    paths = journals(saved.live)
    noted, forced = refused(saved.live), last_forced(saved.live)  # before the journals are read: they may have all by then
    reach = fold_journals(paths, fold, vector, damage, system, holes=base is None or bool(vector))
    damage.dropped += never_written(noted, vector)
    sources.extend(path.name for path in paths)
    damage.flaws += _gone(saved.live, base, vector, forced, reach, damage)
    damage.flaws += [Flaw(path.name, 0, 0, "foreign", "is no file, but a directory, a link or a pipe") for path in no_files(saved.live)]
    if base is None and "" not in fold.sessions:
        without = f"no record in {', '.join(sources)}" if sources else "no files"
        raise DamagedError(f"session {txn}: nothing was recorded that can be read ({'; '.join(damage.lines()) or without})")
    return Loaded(txn, fold.finish(), damage, sources, vector, base.meta if base else {})


def _snapshot(saved: Saved, damage: Damage, sources: list[str], system: OS) -> Snapshot | None:
    """Read the snapshot; one that is damaged does not stop a load that has journals. Raises `OSError` if it cannot be read."""
    if saved.snapshot is None:
        return None
    sources.append(saved.snapshot.name)
    try:
        base = read_snapshot(saved.snapshot, system)
    except (FormatError, DamagedError) as error:
        pass_on(error)
        if not journals(saved.live) or isinstance(error, FormatError):
            raise
        damage.snapshot, damage.replaced = str(error), _complete(journals(saved.live), system)
        return None
    holds = base.tree.session.origin_txn_id
    mismatch = "" if saved.txn in ("", holds) else f"{saved.snapshot.name} holds session {holds}, not {saved.txn}: give it the name of that"
    if mismatch and journals(saved.live):
        damage.snapshot, damage.replaced = mismatch, _complete(journals(saved.live), system)
        return None
    damage.snapshot, damage.renamed, damage.earlier = mismatch or base.damage, base.renamed, earlier(base.meta)
    damage.replaced = bool(base.damage) and _complete(journals(saved.live), system)
    return None if damage.replaced else base


def _gone(live: Path | None, base: Snapshot | None, vector: dict[str, int], forced: int, reach: int, damage: Damage) -> list[Flaw]:
    """Return a flaw if records of the owner are gone: its journals *reach* less far than the record that it noted as *forced* to the disk.

    Or no record is left, though the owner had one: its sign of life shows that, or records of other processes, which joined later. Beside a
    snapshot there need be no journal, and it may be empty if the session had ended and was begun anew.
    """
    own = [path for path in journals(live) if path.name.startswith(OWNERS)]
    name = own[-1].name if own else f"{OWNERS}000001.jsonl"
    left = "0000" in vector if base is None else not own or any(map(size_of, own))
    reported = any(flaw.file.startswith(OWNERS) and flaw.kind != TORN for flaw in damage.flaws)
    if forced > (last := vector.get("0000", 0)):
        loss = f"records {last + 1} to {forced} are missing, which were on the disk"
    elif live is None or reported or (base is not None and base.meta.get("endedAt")):
        return []
    elif base is not None and forced > reach:
        loss = f"records {reach + 1} to {forced} are gone from it, which the snapshot has; what came behind them may be missing"
    elif left or not (has_recorded(live) or (base is None and vector and not damage.dropped)):
        return []
    else:
        loss = "what the owner recorded is gone: no record is left in it"
    return [Flaw(name, size_of(own[-1]) if own else 0, 0, "lost records", loss)]


def _complete(paths: list[Path], system: OS) -> bool:
    """Tell whether the owner's journal reaches back to the beginning, so that a broken snapshot can be done without."""
    if not paths or not paths[0].name.startswith(OWNERS):
        return False
    return read_journal(paths[0], 0, system).first == 1


def fold_journals(paths: list[Path], fold: Fold, vector: dict[str, int], damage: Damage, system: OS, *, holes: bool = True) -> int:
    """Fold what the vector does not cover, move the vector on, and add what could not be read to the damage.

    With *holes* records that are missing before a file are reported, unless a gap in it does. Returns the number up to which the owner's
    files reach.
    """
    reach = 0
    for path in paths:
        writer = path.stem.split("-")[1]
        file = read_journal(path, last := vector.get(writer, 0), system)
        begun = file.header is not None or file.begins > 0 or writer == "0000"  # a forked process makes its file before it records anything
        damage.flaws += [flaw for flaw in file.flaws if begun or flaw.size]
        damage.unknown += file.unknown
        first = file.header.first if file.header is not None else file.begins
        omitted = any(low <= last + 1 and first - 1 <= high for low, high in file.omitted)
        if holes and first > last + 1 and not omitted:
            damage.flaws.append(Flaw(path.name, 0, 0, "lost records", f"records {last + 1} to {first - 1} are missing"))
        for record in file.records:
            fold.apply(record)
        if file.last:
            vector[writer] = max(last, file.last)
            reach = max(reach, file.last) if writer == "0000" else reach
    damage.dropped, damage.missing, damage.misplaced = fold.dropped, fold.missing, fold.misplaced
    return reach


def _size(saved: Saved) -> int:
    """Return how many bytes there are to read."""
    try:
        return sum(path.stat().st_size for path in (*journals(saved.live), saved.snapshot) if path is not None)
    except FileNotFoundError:  # the session has ended meanwhile
        return 0
