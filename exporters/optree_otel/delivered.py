"""Which nodes of a session the collector has acknowledged, on disk, so that after a crash only what is missing is sent.

<sessions>/.otel/notes/<txn>/<writer>.jsonl   lines {"sent":["1.1","1.2"]}, appended by one process each, which has it locked while it sends
                                              ">3f0c… http://localhost:4318/v1/traces" among the paths: who is to have it
<sessions>/.otel/open/<txn>                   it broke off, and what had ended by then is delivered
<sessions>/.otel/done/<txn>                   the session has ended and is delivered whole; what must be known if it goes on
<sessions>/.otel/.unsampled/<txn>             the session is not to be sent: it was not sampled

Only `notes` and `open` are ever listed: they hold sessions that are not delivered whole. Of a session that is, there is one mark, found by
its name, so a thousand of them cost what one does. A mark is written before notes go, and notes are before the mark goes.

Nothing is forced to the disk: what is lost here is sent again, and what is sent again is the same span.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, cast

from msgspec import DecodeError
from msgspec.json import decode

from optree import SetupError
from optree.exporting import REAL, dumps, is_list, is_object, is_txn, lock_file, lock_shared, text, unlock

FOLDER = ".otel"
BACKGROUND_BYTES = 16 << 20
"""The size on disk up to which a session is loaded in the background, to send what is missing of it."""
NOTES, DONE, OPEN, UNSAMPLED = "notes", "done", "open", ".unsampled"
_LINES = ".jsonl"
_FOR = ">"
"""Beginning of a note that says who is to have the session."""


class Addressee(NamedTuple):
    """Who is to have a session, and in which form: as the settings of the process that recorded it said."""

    digest: str
    """Of all that decides where it goes, and with what content: who has another is not to send it unasked."""
    shown: str
    """The endpoint without credentials, and what goes there that does not by default."""

    @property
    def endpoint(self) -> str:
        """The endpoint alone."""
        return self.shown.partition(" ")[0]

    def __str__(self) -> str:
        """Return it as it is noted on disk."""
        return f"{_FOR}{self.digest} {self.shown}"


class DeliveredFile:
    """What one process notes about one session. A failure to write is counted: the spans concerned may be sent twice."""

    def __init__(self, sessions: Path, txn: str, writer: str) -> None:
        """Name the file; raises `SetupError` if *txn* or *writer* cannot be part of a file's name."""
        self.path = _notes(sessions, txn) / f"{_checked(writer)}{_LINES}"
        self.failures = 0
        self.last_failure = ""
        self._torn = True
        self._held: list[int] = []

    def begin(self) -> None:
        """Make the file and lock it: from now on the session counts as pending until it is done, and is left to this process."""
        self._write(b"")
        with suppress(OSError):
            if not self._held and (fd := lock_file(self.path)) >= 0:
                self._held = [fd]

    @property
    def held(self) -> bool:
        """True while this process has it locked."""
        return bool(self._held)

    def release(self) -> None:
        """Leave the session to other processes; in a forked child, which only lets go of its copy, to the parent."""
        held, self._held = self._held, []
        unlock(held)

    def withdraw(self) -> None:
        """Release it, and leave no trace of it if nothing is noted in it."""
        with suppress(OSError):
            if self._held and not self.path.stat().st_size:
                REAL.unlink(self.path)
                self.path.parent.rmdir()
        self.release()

    def add(self, paths: Iterable[str]) -> None:
        """Append one line with the paths of nodes that the collector acknowledged."""
        sent = list(paths)
        if sent:
            self._write(dumps({"sent": sent}) + b"\n")

    def fail(self, error: OSError) -> None:
        """Count a failure."""
        self.failures += 1
        self.last_failure = f"{type(error).__name__}: {text(error)}"

    def _opened(self) -> int:
        try:
            REAL.make_directory(self.path.parent)
            return REAL.append(self.path)
        except FileNotFoundError:  # just now another process took the empty folder for one that nobody needs
            REAL.make_directory(self.path.parent)
            return REAL.append(self.path)

    def _write(self, line: bytes) -> None:
        try:
            file = self._opened()
            try:
                if line and self._torn and _is_torn(file):
                    line = b"\n" + line
                self._torn = bool(line) and os.write(file, line) != len(line)
            finally:
                REAL.close(file)
        except OSError as error:
            self._torn = True
            self.fail(error)


class NotNoted(DeliveredFile):
    """Of a session that is in memory only nothing is noted: no later process can go on with it."""

    def begin(self) -> None:
        """Do nothing."""

    def add(self, paths: Iterable[str]) -> None:
        """Do nothing."""


def delivered(sessions: Path, txn: str) -> set[str]:
    """Return the paths that any process noted for a session. Lines that cannot be read are passed over."""
    return {path for file in writers(sessions, txn) for path in _read(file)}


def kept(sessions: Path, txn: str) -> set[str]:
    """Return what `mark_done` kept."""
    return _read(_mark(sessions, DONE, txn))


def addressed(sessions: Path, txn: str) -> Addressee | None:
    """Return the addressee of a session, as its owner noted it last, or else another process; None if none noted one."""
    for file in [*writers(sessions, txn), _mark(sessions, DONE, txn)]:  # the owner's is the first
        notes = [note for note in _noted(file, having=b'">') if note.startswith(_FOR)]
        if notes:
            digest, _, shown = notes[-1].removeprefix(_FOR).partition(" ")
            return Addressee(digest, shown)
    return None


def writers(sessions: Path, txn: str) -> list[Path]:
    """Return the files in which processes note what they have delivered of a session."""
    folder = _notes(sessions, txn)
    return [folder / name for name in sorted(_names(folder)) if name.endswith(_LINES)]


def is_sending(sessions: Path, txn: str, but: DeliveredFile | None = None) -> bool:
    """Tell whether a living process sends spans of a session, beside the one that has the file *but*."""
    try:
        held = lock_shared(path for path in writers(sessions, txn) if but is None or path != but.path)
    except OSError:
        return False
    unlock(held or [])
    return held is None


def mark_done(sessions: Path, txn: str, keep: Iterable[str] = ()) -> bool:
    """Note that an ended session is delivered whole; what was noted node by node is removed, but for *keep*.

    False if that cannot be written.
    """
    mark = _mark(sessions, DONE, txn)
    fresh = mark.with_name(f".{txn}.{os.getpid()}")
    try:
        REAL.make_directory(mark.parent)
        fresh.write_bytes(dumps({"sent": sorted(keep)}) + b"\n")
        fresh.chmod(0o600)
        fresh.replace(mark)
        _remove_notes(sessions, txn)
    except OSError:
        return False
    return True


def mark_open(sessions: Path, txn: str) -> None:
    """Note that of a session that broke off all is delivered that had ended."""
    _note(_mark(sessions, OPEN, txn))


def mark_unsampled(sessions: Path, txn: str) -> None:
    """Note that a session is not to be sent."""
    _note(_mark(sessions, UNSAMPLED, txn))


def _note(mark: Path) -> None:
    with suppress(OSError):
        REAL.make_directory(mark.parent)
        mark.touch(0o600)


def is_unsampled(sessions: Path, txn: str) -> bool:
    """Tell whether a session is not to be sent, and was not sent after all."""
    return _is_marked(sessions, UNSAMPLED, txn)


def is_done(sessions: Path, txn: str) -> bool:
    """Tell whether a session is delivered whole."""
    _adopt(sessions)
    return _is_marked(sessions, DONE, txn)


def reopen(sessions: Path, txn: str, writer: str, paths: Iterable[str]) -> DeliveredFile:
    """Return the file of a session that goes on; if it was done, with *paths*: all nodes that it had ended then."""
    file = DeliveredFile(sessions, txn, writer)
    file.begin()
    try:
        _remove(_mark(sessions, OPEN, txn))
        _remove(_mark(sessions, UNSAMPLED, txn))
        if is_done(sessions, txn):
            file.add(paths)
            if not file.failures:
                _remove(_mark(sessions, DONE, txn))
    except OSError as error:
        file.fail(error)
    return file


def pending(sessions: Path, *, also_open: bool = False) -> list[str]:
    """Return the txns of sessions of which something is to be sent still: begun to be sent, and not done. In their names' order.

    Those that broke off count if some of what had ended is missing, or *also_open*.
    """
    _adopt(sessions)
    begun = _names(sessions / FOLDER / NOTES)
    if not also_open:
        begun -= _names(sessions / FOLDER / OPEN)
    return sorted(txn for txn in begun if is_txn(txn) and not _is_marked(sessions, DONE, txn) and writers(sessions, txn))


def forget(sessions: Path, txn: str) -> None:
    """Remove all that is noted about a session."""
    with suppress(OSError):
        _remove_notes(sessions, txn)
    for kind in (DONE, UNSAMPLED):
        with suppress(OSError):
            _remove(_mark(sessions, kind, txn))


def _notes(sessions: Path, txn: str) -> Path:
    return sessions / FOLDER / NOTES / _checked(txn)


def _mark(sessions: Path, kind: str, txn: str) -> Path:
    return sessions / FOLDER / kind / _checked(txn)


def _is_marked(sessions: Path, kind: str, txn: str) -> bool:
    try:
        return _mark(sessions, kind, txn).exists()
    except OSError:  # a folder that may not be looked into
        return False


def _names(folder: Path) -> set[str]:
    try:
        return {path.name for path in folder.iterdir()}
    except OSError:  # not there, or not ours to read
        return set()


def _remove(path: Path) -> None:
    """Remove a file, if it is there. Raises `OSError`."""
    with suppress(FileNotFoundError):
        REAL.unlink(path)


def _remove_notes(sessions: Path, txn: str) -> None:
    """Remove what was noted node by node. Raises `OSError`."""
    for path in writers(sessions, txn):
        _remove(path)
    _remove(_mark(sessions, OPEN, txn))
    with suppress(OSError):  # not there, or a process begins to note just now
        _notes(sessions, txn).rmdir()


def _adopt(sessions: Path) -> None:
    """Bring to their places the marks and notes of the first layout, in which all lay in one folder."""
    folder = sessions / FOLDER
    for name in _names(folder) - {NOTES, DONE, OPEN}:
        txn, _, kind = name.partition(".")
        if not is_txn(txn):
            continue
        new = _mark(sessions, kind, txn) if kind in (DONE, OPEN) else _notes(sessions, txn) / kind
        with suppress(OSError):
            REAL.make_directory(new.parent)
            (folder / name).replace(new)


def _checked(name: str) -> str:
    if not is_txn(name):
        raise SetupError(f"{name[:80]!r} cannot be part of a file's name: use letters, digits, - and _, at most 64")
    return name


def _read(path: Path) -> set[str]:
    return set(_noted(path))


def _noted(path: Path, having: bytes = b"") -> list[str]:
    """Return what a file notes, in its order; of those lines only that have these bytes."""
    try:
        data = REAL.read(path)
    except OSError:  # done meanwhile, or not ours to read
        return []
    return [note for line in data.splitlines() if having in line for note in _paths(line)]


def _is_torn(file: int) -> bool:
    """Tell whether the file's last line has no end: a process was killed while it wrote."""
    size = os.fstat(file).st_size
    return size > 0 and REAL.pread(file, 1, size - 1) != b"\n"


def _paths(line: bytes) -> list[str]:
    try:
        entry = decode(line)
    except DecodeError:
        return []
    sent = entry.get("sent") if is_object(entry) else None
    return [path for path in cast("list[object]", sent) if isinstance(path, str)] if is_list(sent) else []
