"""The sessions directory: what lies where, and what is there.

sessions/<txn>.json.zst      the snapshot: the whole hierarchy in one file
sessions/<txn>.live/         while the session lives, or after a crash: lock and journals
    LOCK                     held by the process that owns the root session
    j-0000-000001.jsonl      journal: writer 0 (the owner), segment 1
    j-0001-000001.jsonl      the journal of another process that joined
sessions/<txn>.damaged/      files that were damaged when the session went on, as they were
accounting.jsonl             the ledger
"""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Callable, Generator
from contextlib import contextmanager
from errno import EDQUOT, EINVAL, ELOOP, ENOSPC
from functools import lru_cache
from pathlib import Path
from stat import S_IFDIR, S_IFLNK, S_IFMT, S_IFREG
from typing import Any, Final

from msgspec import Struct

from optree._ids import is_txn, txn_time
from optree._interrupts import WeakMembers, pass_on, suppress
from optree._store.files.lock import has_recorded, is_running
from optree._store.reading.reader import LIVE, is_blank
from optree._syscalls import calls
from optree.errors import FormatError, NotFoundError, SetupError, StoreError

SUFFIXES = {"zstd": ".json.zst", "gzip": ".json.gz", "none": ".json"}
KEPT = ".damaged"
"""The ending of a directory with files of a session as they were when damage was found in them, before it went on."""
TEMPORARY = ".tmp-"
"""What the names of files begin with that are being written."""
OWNERS = "j-0000-"
"""What the names of the owner's journals begin with."""
LATE = "what came after its end"
"""The step that writes what is recorded into a session that was closed."""
LATE_UNWRITTEN: Final[WeakMembers[Any]] = WeakMembers()
"""The closed stores (`SessionStore`) of which such records are in no file."""
_NO_HOME = Path(os.devnull, "no-home-directory")
_JOURNAL = re.compile(r"j-[0-9]{4,9}-[0-9]{6,9}\.jsonl")


class Saved(Struct, frozen=True):
    """Where one session is: its snapshot, its live directory, or both."""

    txn: str
    snapshot: Path | None
    live: Path | None
    modified: float
    """Epoch seconds of the newest change."""


class Directory(Struct, frozen=True):
    """Where sessions are kept, and the ledger that goes with them.

    ```python
    import optree

    for saved in optree.Directory.of().saved():
        print(saved.txn, saved.snapshot or saved.live)
    ```
    """

    sessions: Path
    """The directory of the sessions."""
    billing: Path
    """The ledger, ``accounting.jsonl``."""

    @classmethod
    def of(cls, base: str | Path | None = None, sessions: str | Path | None = None, billing: str | Path | None = None) -> Directory:
        """Return the directory that the arguments name, else the environment, else ``~/.optree``.

        Args:
            base: The folder of both; else ``OPTREE_BASE_DIR``.
            sessions: The directory of the sessions; else ``OPTREE_SESSIONS_DIR``, else ``sessions`` in *base*.
            billing: The ledger; else ``OPTREE_BILLING_FILE``, else ``accounting.jsonl`` in *base*.
        """
        get = os.environ.get
        base, home = base or get("OPTREE_BASE_DIR"), tuple(map(get, calls.HOME_VARIABLES))
        return _directory(base, sessions or get("OPTREE_SESSIONS_DIR"), billing or get("OPTREE_BILLING_FILE"), home)

    @property
    def homeless(self) -> bool:
        """True if sessions would be kept in the home directory of a user who has none."""
        return _NO_HOME in self.sessions.parents

    def why(self, error: OSError) -> str:
        """Return why nothing can be made here: what is wrong, and with which of the directories above, if it is one of them."""
        if self.homeless:
            return "you have no home directory"
        what = "a file is there" if isinstance(error, FileExistsError) else error.strerror or str(error)
        return f"{error.filename}: {what}" if error.filename and Path(error.filename) in self.sessions.parents else what

    def live(self, txn: str) -> Path:
        """Return the live directory of a session, there or not."""
        return self.sessions / f"{checked(txn)}{LIVE}"

    def live_to_write(self, txn: str) -> Path:
        """Return the live directory of a session, there or not; raises `SetupError` for a link, which may lead anywhere, and `OSError`."""
        live = self.live(txn)
        if _kind(live) == S_IFLNK:
            raise SetupError(f"{live} is a link: nothing is written through it; put the directory itself there")
        return live

    def snapshot(self, txn: str, compression: str = "zstd") -> Path:
        """Return the path of a session's snapshot file, whether it exists or not."""
        return self.sessions / f"{checked(txn)}{SUFFIXES[compression]}"

    def is_running(self, txn: str) -> bool:
        """Tell whether a living process owns a session."""
        return is_running(self.live(txn))

    def size(self, txn: str) -> int:
        """Return how many bytes a session takes on disk; 0 for one that is not there."""
        live = self.live(txn)
        paths = [*live.iterdir()] if _kind(live) == S_IFDIR else []
        paths += [self.snapshot(txn, compression) for compression in SUFFIXES]
        return sum(map(size_of, paths))

    def saved(self) -> list[Saved]:
        """Return the sessions that are there, those first that began last. Other files, links, pipes and devices are passed over.

        So are live directories in which nothing is written yet, or was when their process was killed.

        Raises:
            StoreError: The directory cannot be read; the message says why, and what to do.
        """
        by_txn: dict[str, list[Path]] = {}
        with readable(self.sessions), suppress(FileNotFoundError, NotADirectoryError):
            for path in self.sessions.iterdir():
                for suffix in (LIVE, *SUFFIXES.values()):
                    txn = path.name.removesuffix(suffix)
                    if txn != path.name and is_txn(txn):
                        if _may_be(path, S_IFDIR if suffix == LIVE else S_IFREG):
                            by_txn.setdefault(txn, []).append(path)
                        break
        listed = [_saved(txn, paths) for txn, paths in by_txn.items() if len(paths) > 1 or not _is_unwritten(paths[0])]
        return sorted(listed, key=_begun, reverse=True)

    def exact(self, txn: str) -> Saved | None:
        """Return the session of just this txn, if it is there; what else lies there is not looked through. Raises `OSError`."""
        paths = [self.sessions / f"{txn}{suffix}" for suffix in (LIVE, *SUFFIXES.values())] if is_txn(txn) else []
        existing = [path for path in paths if _kind(path) == (S_IFDIR if path.suffix == LIVE else S_IFREG)]
        return _saved(txn, existing) if existing else None

    def is_free(self, txn: str) -> bool:
        """Tell whether a session may be begun under this name: none has it, for certain."""
        try:
            return is_txn(txn) and self.exact(txn) is None
        except OSError as error:
            pass_on(error)
            return False

    def find(self, txn: str) -> Saved:
        """Return one session by its txn, or the beginning of it; ``last`` is the one that began last.

        Raises:
            NotFoundError: There is none, or several begin so; the message names some that are there.
            StoreError: The directory cannot be read.
        """
        with readable(self.sessions):
            if txn != "last" and (exact := self.exact(txn)):
                return exact
        listed = self.saved()
        matches = listed[:1] if txn == "last" else [saved for saved in listed if txn and saved.txn.startswith(txn)]
        if len(matches) == 1:
            return matches[0]
        raise NotFoundError(self._missing(txn, [saved.txn for saved in listed], [saved.txn for saved in matches]))

    def _missing(self, txn: str, txns: list[str], matches: list[str]) -> str:
        if matches:
            return f"{txn!r} is the beginning of {len(matches)} sessions: {', '.join(matches[:5])}; write more of it"
        if self.homeless:
            return f"no session {txn!r}: you have no home directory; name the sessions' with --sessions-dir or OPTREE_SESSIONS_DIR"
        for suffix in (LIVE, *SUFFIXES.values()) if is_txn(txn) else ():
            if _kind(self.sessions / f"{txn}{suffix}"):
                what = "directory" if suffix == LIVE else "file"
                return f"no session {txn!r}: {txn}{suffix} in {self.sessions} is no {what}, or a link, and links are not followed there"
        if not txns:
            return f"no session {txn!r}: there are none in {self.sessions}; record one with: optree run -- python your_agent.py"
        from difflib import get_close_matches

        close = get_close_matches(txn, txns, 3, 0.5) or txns[:3]
        return f"no session {txn!r} in {self.sessions}; there are {len(txns)}, among them {', '.join(close)} (optree ls lists them)"


@lru_cache(maxsize=16)
def _directory(base: str | Path | None, sessions: str | Path | None, billing: str | Path | None, home: tuple[object, ...]) -> Directory:  # noqa: ARG001
    """Return the directory of these names; *home* is what the environment says of ``~``."""
    root = _expanded(base or "~/.optree")
    return Directory(_expanded(sessions or root / "sessions"), _expanded(billing or root / "accounting.jsonl"))


def recorded(directory: Directory, txn: str) -> Saved | None:
    """Return the session of just this txn, if a file has anything of it that can be looked at."""
    try:
        saved = directory.exact(txn)
    except OSError as error:
        pass_on(error)
        return None
    return None if saved and saved.live and not saved.snapshot and _is_unwritten(saved.live) else saved


def why_not_live(directory: Directory, txn: str) -> str:
    """Return why nothing can be recorded into a session that has no live directory."""
    saved = directory.exact(txn)
    return f"it has ended ({saved.snapshot})" if saved and saved.snapshot else f"it is not in {directory.sessions}"


def nothing_saved(directory: Directory, why: object) -> str:
    """Return the text that the directory takes no sessions, and what to do."""
    where = "" if directory.homeless else f" in {directory.sessions}"
    return f"nothing is saved{where}: {why}; the agent runs on (set OPTREE_SESSIONS_DIR to one that can be written)"


def refused(error: BaseException, place: Path) -> object:
    """Return why something could not be written, and what to do if there is no room at *place*."""
    if isinstance(error, OSError) and error.errno in (ENOSPC, EDQUOT):
        return f"{error.strerror} in {place}; the agent runs on (make room there: what is not saved yet is saved then)"
    return error if str(error) else type(error).__name__


def refusal_of(path: Path, error: Exception) -> str:
    """Return what the system said of a file, with its name."""
    mine = path.name if path.suffix != ".jsonl" else os.path.join(*path.parts[-2:])
    name = error.filename if isinstance(error, FileExistsError | NotADirectoryError) and error.filename else mine
    return f"{name}: {(error.strerror if isinstance(error, OSError) else None) or error}"


@contextmanager
def readable(path: Path) -> Generator[None]:
    """Turn an `OSError` within into a `StoreError` that names the file, or *path* if it names none, and says what to do."""
    try:
        yield
    except OSError as error:
        pass_on(error)
        why = "you have no permission; change that" if isinstance(error, PermissionError) else f"{error.strerror or error}; mend that"
        raise StoreError(f"{error.filename or path} cannot be opened: {why}, or name another place") from error


def _expanded(path: str | Path) -> Path:
    """Return a path with its ``~`` expanded; below a file, where there can be none, if this user has no home."""
    try:
        return Path(path).expanduser()
    except RecursionError:  # one of those too: what follows is no answer for all later sessions
        raise
    except RuntimeError as error:
        pass_on(error)
        return _NO_HOME.joinpath(*Path(path).parts[1:])


def checked(txn: str) -> str:
    """Return *txn* if it may be part of a file's name; raises `SetupError` otherwise."""
    if not is_txn(txn):
        raise SetupError(f"{txn[:80]!r} cannot name a session: use letters, digits, - and _, at most 64")
    if not calls.may_name_a_file(txn):
        raise SetupError(f"{txn!r} cannot name a session on this system, where it is a device: use another name")
    return txn


def _saved(txn: str, paths: list[Path]) -> Saved:
    live = next((path for path in paths if path.name.endswith(LIVE)), None)
    snapshots = [path for path in paths if path is not live]
    snapshot = max(snapshots, key=_modified) if snapshots else None
    newest = max(map(_modified, paths))
    with suppress(OSError):  # another user's may not be looked into
        newest = max([newest, *map(_modified, journals(live))])
    return Saved(txn, snapshot, live, newest)


def _is_unwritten(path: Path) -> bool:
    """Tell whether a live directory has nothing but its lock, and files without a byte or journals without a record, and never had."""
    if path.suffix != LIVE or has_recorded(path):
        return False
    try:
        return all(
            entry.name == "LOCK"
            or entry.name.startswith(TEMPORARY)
            or (_kind(entry) == S_IFREG and (entry.stat().st_size == 0 or is_blank(entry)))
            for entry in path.iterdir()
        )
    except (OSError, FormatError) as error:
        pass_on(error)
        return False


def exists(path: Path) -> bool:
    """Tell whether a link's target or anything else has that name; raises `OSError` if that cannot be told.

    `Path.exists` says that it is not there, from Python 3.14 on, where its directory may not be read.
    """
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return False
    except OSError as error:
        if error.errno in (ELOOP, EINVAL):  # a circle of links; not a possible name on Windows
            return False
        raise
    return True


def is_directory(path: Path) -> bool:
    """Tell whether there is a directory of that name, and no link to one. Raises `OSError` if that cannot be told."""
    return _kind(path) == S_IFDIR


def may_be_directory(path: Path) -> bool:
    """Tell whether there is a directory of that name, or that cannot be told."""
    return _may_be(path, S_IFDIR)


def journals(live: Path | None) -> list[Path]:
    """Return the journal files of a live directory: by writer, then by segment. Raises `OSError`, for one too that cannot be looked at."""
    return [path for path in _named_as_journals(live) if _kind(path) == S_IFREG]


def owners_journals(live: Path) -> list[Path]:
    """Return the owner's journal files of a live directory."""
    return [path for path in journals(live) if path.name.startswith(OWNERS)]


def no_files(live: Path | None) -> list[Path]:
    """Return what has the name of a journal and is no file: a directory, a link, a pipe. None of it is read."""
    return [path for path in _named_as_journals(live) if _kind(path) not in (0, S_IFREG)]


def _named_as_journals(live: Path | None) -> list[Path]:
    if live is None or not is_directory(live):
        return []
    try:
        names = os.listdir(live)  # Path.glob keeps errors for itself from Python 3.13 on
    except calls.GONE as error:  # the session has ended meanwhile
        pass_on(error)
        return []
    return [Path(live, name) for name in sorted(names) if _JOURNAL.fullmatch(name)]


def _kind(path: Path) -> int:
    """Return what kind of file has this name, a link as such; 0 if there is none. Raises `OSError` if that cannot be told."""
    try:
        return S_IFMT(path.lstat().st_mode)
    except calls.GONE as error:
        pass_on(error)
        return 0
    except PermissionError as error:
        error.filename = str(path.parent)  # it is the directory that may not be looked into
        raise


def _may_be(path: Path, kind: int) -> bool:
    """Tell whether this kind of file has the name, or that cannot be told: the reader of the file reports what is wrong with it."""
    try:
        return _kind(path) == kind
    except OSError as error:
        pass_on(error)
        return True


def size_of(path: Path) -> int:
    """Return a file's bytes; 0 if it is not there, or cannot be looked at."""
    try:
        return path.stat().st_size
    except OSError as error:
        pass_on(error)
        return 0


def _begun(saved: Saved) -> tuple[float, float]:
    """Return what sorts sessions by their begin: one whose txn does not tell it counts as begun when its files were changed last."""
    return txn_time(saved.txn) or saved.modified * 1e3, saved.modified


def _modified(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError as error:
        pass_on(error)
        return 0.0


class NotedProblems:
    """Keeps the problems of one session."""

    report: Callable[[str], object] = staticmethod(str)
    """Called with each problem as it occurs."""

    def __init__(self, txn: str, directory: Directory) -> None:
        self.txn, self._directory = txn, directory
        self.problems: deque[str] = deque(maxlen=32)
        """The last of them, each once."""
        self.current_problems: dict[str, str] = {}
        """Those that last, by the step that failed."""
        self.failed: dict[str, tuple[int, Path]] = {}
        """Of each step that failed, the last error's number and the place."""

    def _problem(self, what: str, error: BaseException) -> bool:
        """Note a problem, and go on; an exception out of a signal's handler is raised again."""
        pass_on(error)
        place = self._directory.billing if what == "ledger" else self._directory.sessions
        self.failed[what] = (getattr(error, "errno", None) or 0, place)
        message = f"{what} of session {self.txn}: {refused(error, place)}"
        self.current_problems[what] = message
        if message not in self.problems:
            self.problems.append(message)
            self.report(message)
        return False

    def _tried(self, what: str, work: Callable[[], object]) -> bool:
        """Do some work; False where it raises, which is noted."""
        try:
            work()
        except Exception as error:  # noqa: BLE001 - who comes next may have more luck
            return self._problem(what, error)
        return True

    def _forget_problems(self) -> None:
        """In a forked child: they are the parent's."""
        for kept in (self.problems, self.current_problems, self.failed):
            kept.clear()
