"""Which nodes of a session the collector has acknowledged, on disk, so that after a crash only what is missing is sent.

<sessions>/.otel/<txn>.<writer>.jsonl   lines {"sent":["1.1","1.2"]}, appended by one process each, which has it locked while it sends
<sessions>/.otel/<txn>.open             it broke off, and what had ended by then is delivered
<sessions>/.otel/<txn>.done             the session has ended and is delivered whole; what must be known if it goes on

Nothing is forced to the disk: what is lost here is sent again, and what is sent again is the same span.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import cast

from msgspec import DecodeError
from msgspec.json import decode, encode

from optree.errors import SetupError
from optree.ids import is_txn
from optree.store import lock
from optree.values import is_list, is_object, text

FOLDER = ".otel"
_LINES = ".jsonl"
_DONE = ".done"
_OPEN = ".open"


class DeliveredFile:
    """What one process notes about one session. A failure to write is counted: the spans concerned may be sent twice."""

    def __init__(self, sessions: Path, txn: str, writer: str) -> None:
        """Name the file; raises `SetupError` if *txn* or *writer* cannot be part of a file's name."""
        self.path = _folder(sessions) / f"{_checked(txn)}.{_checked(writer)}{_LINES}"
        self.failures = 0
        self.last_failure = ""
        self._torn = True
        self._held: list[int] = []

    def begin(self) -> None:
        """Make the file and lock it: from now on the session counts as pending until it is done, and is left to this process."""
        self._write(b"")
        with suppress(OSError):
            if not self._held and (fd := lock.take(self.path, seconds=0.0)) >= 0:
                self._held = [fd]

    @property
    def held(self) -> bool:
        """True while this process has it locked."""
        return bool(self._held)

    def release(self) -> None:
        """Leave the session to other processes; in a forked child, which only lets go of its copy, to the parent."""
        held, self._held = self._held, []
        lock.release(held)

    def add(self, paths: Iterable[str]) -> None:
        """Append one line with the paths of nodes that the collector acknowledged."""
        sent = list(paths)
        if sent:
            self._write(encode({"sent": sent}) + b"\n")

    def fail(self, error: OSError) -> None:
        """Count a failure."""
        self.failures += 1
        self.last_failure = f"{type(error).__name__}: {text(error)}"

    def _write(self, line: bytes) -> None:
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            file = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                if line and self._torn and _is_torn(file):
                    line = b"\n" + line
                self._torn = bool(line) and os.write(file, line) != len(line)
            finally:
                os.close(file)
        except OSError as error:
            self._torn = True
            self.fail(error)


def delivered(sessions: Path, txn: str) -> set[str]:
    """Return the paths that any process noted for a session. Lines that cannot be read are passed over."""
    return {path for file in _files(sessions, txn) for path in _read(file)}


def kept(sessions: Path, txn: str) -> set[str]:
    """Return what `mark_done` kept."""
    return _read(_folder(sessions) / f"{_checked(txn)}{_DONE}")


def is_sending(sessions: Path, txn: str, but: DeliveredFile | None = None) -> bool:
    """Tell whether a living process sends spans of a session, beside the one that has the file *but*."""
    try:
        held = lock.hold(path for path in _files(sessions, txn) if but is None or path != but.path)
    except OSError:
        return False
    lock.release(held or [])
    return held is None


def mark_done(sessions: Path, txn: str, keep: Iterable[str] = ()) -> bool:
    """Note that an ended session is delivered whole; what was noted node by node is removed, but for *keep*.

    False if that cannot be written.
    """
    mark = _folder(sessions) / f"{_checked(txn)}{_DONE}"
    fresh = mark.with_suffix(f"{_DONE}.{os.getpid()}")
    try:
        mark.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        fresh.write_bytes(encode({"sent": sorted(keep)}) + b"\n")
        fresh.chmod(0o600)
        fresh.replace(mark)
        for path in [*_files(sessions, txn), mark.with_suffix(_OPEN)]:
            path.unlink(missing_ok=True)
    except OSError:
        return False
    return True


def mark_open(sessions: Path, txn: str) -> None:
    """Note that of a session that broke off all is delivered that had ended."""
    with suppress(OSError):
        (_folder(sessions) / f"{_checked(txn)}{_OPEN}").touch(0o600)


def is_done(sessions: Path, txn: str) -> bool:
    """Tell whether a session is delivered whole."""
    mark = _folder(sessions) / f"{_checked(txn)}{_DONE}"
    try:
        return mark.exists()
    except OSError:  # a folder that may not be looked into
        return False


def reopen(sessions: Path, txn: str, writer: str, paths: Iterable[str]) -> DeliveredFile:
    """Return the file of a session that goes on; if it was done, with *paths*: all nodes that it had ended then."""
    file = DeliveredFile(sessions, txn, writer)
    file.begin()
    try:
        (_folder(sessions) / f"{txn}{_OPEN}").unlink(missing_ok=True)
        if is_done(sessions, txn):
            file.add(paths)
            if not file.failures:
                (_folder(sessions) / f"{txn}{_DONE}").unlink(missing_ok=True)
    except OSError as error:
        file.fail(error)
    return file


def pending(sessions: Path, *, also_open: bool = False) -> list[str]:
    """Return the txns of sessions of which something is to be sent still: begun to be sent, and not done. In their names' order.

    Those that broke off count if some of what had ended is missing, or *also_open*.
    """
    try:
        names = [path.name for path in _folder(sessions).iterdir()]
    except OSError:
        return []
    marks = (_DONE,) if also_open else (_DONE, _OPEN)
    done = {name.partition(".")[0] for name in names if name.endswith(marks)}
    begun = {name.partition(".")[0] for name in names if name.endswith(_LINES)}
    return sorted(txn for txn in begun - done if is_txn(txn))


def forget(sessions: Path, txn: str) -> None:
    """Remove all that is noted about a session."""
    for path in [*_files(sessions, txn), *(_folder(sessions) / f"{_checked(txn)}{mark}" for mark in (_DONE, _OPEN))]:
        with suppress(OSError):
            path.unlink(missing_ok=True)


def _folder(sessions: Path) -> Path:
    return sessions / FOLDER


def _files(sessions: Path, txn: str) -> list[Path]:
    return sorted(_folder(sessions).glob(f"{_checked(txn)}.*{_LINES}"))


def _checked(name: str) -> str:
    if not is_txn(name):
        raise SetupError(f"{name[:80]!r} cannot be part of a file's name: use letters, digits, - and _, at most 64")
    return name


def _read(path: Path) -> set[str]:
    try:
        data = path.read_bytes()
    except OSError:  # done meanwhile, or not ours to read
        return set()
    return {found for line in data.splitlines() for found in _paths(line)}


def _is_torn(file: int) -> bool:
    """Tell whether the file's last line has no end: a process was killed while it wrote."""
    size = os.fstat(file).st_size
    return size > 0 and os.pread(file, 1, size - 1) != b"\n"


def _paths(line: bytes) -> list[str]:
    try:
        entry = decode(line)
    except DecodeError:
        return []
    sent = entry.get("sent") if is_object(entry) else None
    return [path for path in cast("list[object]", sent) if isinstance(path, str)] if is_list(sent) else []
