"""The live log: events are appended by many threads and processes, each whole, and nothing that was written is ever changed.

The first event is always the session's start, the last its end. After the end only violations are taken, unless the log is opened to be
taken up again (`reopen`): then a ``session_resume`` follows, and in time another end.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from copy import copy
from pathlib import Path
from threading import Lock
from time import time
from typing import Any
from weakref import WeakSet

from optree import SetupError, StoreError
from optree.exporting import OS, REAL, redact, register_at_fork
from optree_formats import AnyPath
from optree_formats.markdown.events import PROTOCOL, RULE, TIMED, LogEvent, Refused, Verbosity, header, iso, one_line, section
from optree_formats.markdown.integrity import (
    FILE,
    HARMLESS,
    Tail,
    attempted_violation,
    found_violation,
    mark,
    recovery,
    set_aside,
    touches,
    was_log,
)

ROOT = Path(".agent/sessions")
_SESSION_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")
_PIECE = 1 << 20
_TRIES = 20
_END = 64
_logs: WeakSet[EventLog] = WeakSet()
"""The logs of this process, for a fork."""


def log_path(session_id: str, root: AnyPath = ROOT) -> Path:
    """Return where a session's log is; raises `SetupError` for an id that is no name of a directory."""
    if not (_SESSION_ID.fullmatch(session_id) and REAL.may_name_a_file(session_id)):
        raise SetupError(
            f"{session_id[:80]!r} cannot name a session: use letters, digits, '_', '-' and '.', beginning with a letter or digit"
        )
    return Path(root) / session_id / FILE


class EventLog:
    """Appends to one session's log, made with its start if it is missing. Safe for threads and processes.

    *path* is a session's directory or a file whose name ends with ``.md``; *resume* the event that takes up again what has ended, with
    *reopen*. Raises `SetupError` for another session's log, or a file that is none, `StoreError`, `OSError`; its methods `Refused` too,
    for what cannot stand in a log.
    """

    def __init__(
        self,
        path: AnyPath,
        session_id: str | None = None,
        *,
        verbosity: Verbosity = "standard",
        purpose: str | None = None,
        start: LogEvent | None = None,
        reopen: bool = False,
        resume: LogEvent | None = None,
        redacted: bool = False,
        now: Callable[[], float] = time,
        system: OS = REAL,
    ) -> None:
        path = Path(path)
        self.path = path if path.suffix == ".md" else path / FILE
        self._asked = session_id or ""
        self.session_id = session_id or (
            path.name if path.suffix != ".md" else self.path.parent.name if self.path.name == FILE else path.stem
        )
        self.verbosity: Verbosity = verbosity
        fields = {"session_id": self.session_id, "protocol": PROTOCOL, **({} if purpose is None else {"purpose": purpose})}
        self._start = start or LogEvent("session_start", fields)
        self._reopen = reopen
        self._resume = resume or LogEvent("session_resume", session_id=self.session_id)
        self._redacted = redacted
        self._now = now
        self._system = system
        self._lock = Lock()
        self._tail = Tail()
        self._end = b""
        """The last bytes that are known."""
        self._changed_at = 0
        self._known_as_log = False
        """What is at the path is the log, whatever happens to it."""
        self._fd = -1
        self._process = os.getpid()
        _logs.add(self)
        try:
            with self._entered():
                pass
        except BaseException:
            self.close()
            raise

    @property
    def events(self) -> int:
        """How many events the log has, as far as this writer knows."""
        return self._tail.events

    @property
    def counts(self) -> dict[str, int]:
        """How many events of each type."""
        return dict(self._tail.counts)

    @property
    def seal(self) -> str:
        """The last seal: keep it elsewhere, and a rewritten log cannot pass for this one."""
        return self._tail.chain.last

    def append(self, event: LogEvent) -> int:
        """Append an event; returns its number, counted from 1. Raises `Refused`, `StoreError` after `close`, `OSError`."""
        event.check()
        with self._entered():
            self._may_follow(event)
            self._write(event)
            return self._tail.events

    def guard(self, path: AnyPath, *, tool: str = "", action: str = "write") -> None:
        """Ask before a tool of the model touches *path*: what would change the log is logged as a violation, and refused with `Refused`.

        *action* is what the tool would do; ``append`` and ``read`` are let through.
        """
        if action in HARMLESS or not touches(Path(path), self.path):
            return
        self.append(attempted_violation(path, tool, action))
        raise Refused(
            "PERMISSION_DENIED",
            f"{tool or 'a tool'} would {action} {path}: the log of the session, or where it lies",
            "the log is only appended to: send it an event",
            recoverable=False,
        )

    def end(
        self, reason: str = "user_exit", *, stats: Mapping[str, Any] | None = None, retrospective: str = "", narrative: str = ""
    ) -> Path:
        """Append the session's end, write its summary beside the log, and close; returns the summary's path.

        *stats* are added to those that are counted: turns, tools, repairs. Raises what `append` raises.
        """
        from optree_formats.markdown.summary import write_summary

        counts = self._tail.counts
        counted = {"turns": counts["user_message"], "tools": counts["tool_call"], "repairs": counts["repair"]}
        fields = {"session_id": self.session_id, "reason": reason, "stats": {**counted, **(stats or {})}}
        self.append(LogEvent("session_end", fields, narrative=narrative))
        self.close()
        return write_summary(self.path, retrospective=retrospective)

    def close(self) -> None:
        """Close the file; the second call does nothing. The session stays open in the log unless `end` was called."""
        with self._lock:
            fd, self._fd = self._fd, -2
            if fd >= 0:
                self._system.close(fd)

    @contextmanager
    def _entered(self) -> Generator[None, None, None]:
        """Hold the log, known to its end, against other threads and processes."""
        with self._lock:
            try:
                self._enter()
                yield
            finally:
                self._leave()

    def after_fork(self) -> None:
        """Begin anew in a forked child, where another thread of the parent had the log: that thread is not here to give it back."""
        if self._lock.locked():
            self._lock = Lock()
            self._tail, self._end, self._changed_at = Tail(), b"", 0

    # Within the lock: the file, locked and known to its end.

    def _enter(self) -> None:
        """Lock the file, and learn what others have appended; what happened to it meanwhile is logged."""
        if self._fd == -2:  # noqa: PLR2004 - closed
            raise StoreError(f"{self.path.name} is closed: open it anew to append to it")
        self._leave_parent()
        lost: LogEvent | None = None
        for _ in range(_TRIES):
            if self._fd < 0:
                self._open()
            self._system.lock_waiting(self._fd)
            if self._system.is_at(self._fd, self.path):
                if (changed := self._learn()) is not None:
                    lost = lost or changed
                if not self._tail.corrupt:
                    self._must_be_ours()
                    self._settle(lost)
                    self._known_as_log = True
                    return
                if not (self._known_as_log or was_log(self.path, self._tail)):
                    raise SetupError(f"{self.path} is no log ({self._tail.corrupt}), and stays as it is: name another file for the log")
                backup = set_aside(self.path)
                lost = recovery(backup, self._tail.corrupt)
            elif self._tail.size:
                lost = lost or found_violation(self.path, "removed or replaced")
            self._forget()
        raise StoreError(f"{self.path} is moved away again and again: nothing is appended to it")

    def _leave_parent(self) -> None:
        """Close what a forked child has of its parent: a lock is shared by all who have the same open file, so it opens its own."""
        if self._process != os.getpid():
            self._process = os.getpid()
            if self._fd >= 0:
                self._system.close(self._fd)
            self._fd = -1

    def _must_be_ours(self) -> None:
        """Raise `SetupError` for the log of another session than was asked for; take its name where none was."""
        named = self._tail.session_id
        if self._asked and named and named != one_line(self._asked):
            raise SetupError(f"{self.path} is the log of session {named}, not of {self._asked}: name another file, or remove that one")
        if named and not self._asked:
            self.session_id = named

    def _leave(self) -> None:
        if self._fd >= 0:
            self._changed_at = os.fstat(self._fd).st_mtime_ns
            self._system.unlock(self._fd)

    def _open(self) -> None:
        self._system.make_directory(self.path.parent)
        self._fd = self._system.append(self.path)

    def _forget(self) -> None:
        self._system.close(self._fd)
        self._fd, self._tail, self._end, self._changed_at = -1, Tail(), b"", 0

    def _learn(self) -> LogEvent | None:
        """Read what was appended; the whole log, if the part read before is gone. Returns the violation, if it is one."""
        info = os.fstat(self._fd)
        cut = info.st_size < self._tail.size
        end = self._system.pread(self._fd, len(self._end), self._tail.size - len(self._end))
        touched = end != self._end or (info.st_size == self._tail.size and self._changed_at not in (0, info.st_mtime_ns))
        if cut or touched:
            before, self._tail, self._end = self._tail, Tail(), b""
        else:
            before = None
        while piece := self._system.pread(self._fd, _PIECE, self._tail.size):
            self._known(piece)
        if before is not None and (cut or self._tail.chain.last != before.chain.last):
            return found_violation(self.path, f"cut from {before.size} to {info.st_size} bytes" if cut else "rewritten")
        return None

    def _settle(self, lost: LogEvent | None) -> None:
        """Make the log whole: write its start if it is new, end a torn block, and record what happened to it."""
        if self._tail.size == 0:
            self._start.at = self._now() * 1e3 if self._start.at is None else self._start.at
            self._put(header(self.session_id, str(iso(self._start.at // 1000 * 1000))))
            self._write(self._start)
        if self._tail.torn or self._tail.fence:
            if self._tail.torn:
                self._put("\n")  # then its last line is read
            self._put(f"{self._tail.fence.decode()}\n\n{RULE}" if self._tail.fence else f"\n{RULE}")
            self._write(
                LogEvent("warning", narrative="The event before this one is torn: its writer was stopped.", action="ended_torn_event")
            )
        if lost is not None and not (lost.kind == "violation" and self._tail.counts["recovery"]):  # another process has set it aside
            self._write(lost)
        if len(self._tail.broken) > self._tail.reported:
            self._write(found_violation(self.path, "rewritten", self._tail.broken))
        if self._tail.ended and self._reopen:
            self._write(self._resume)
        self._reopen = False

    def _may_follow(self, event: LogEvent) -> None:
        if event.kind == "violation" and "broken_seals" in event.fields:
            raise Refused("INVALID_ARGS", "broken seals are counted by the log itself", "leave the field out, or name it otherwise")
        if event.kind == "session_start" and self._tail.events:
            raise Refused("INVALID_ARGS", "the session has begun", "give the first event as start= when the log is made")
        if self._tail.ended and event.kind != "violation":
            raise Refused("SESSION_ENDED", f"session {self.session_id} has ended", "open its log with reopen=True to take it up again")

    def _write(self, event: LogEvent) -> None:
        """Append an event, with its seal."""
        at = self._now() * 1e3 if event.at is None else event.at
        if event.kind in TIMED and "timestamp" not in event.fields:
            event = copy(event)
            event.fields = {"type": event.kind, "timestamp": iso(at), **event.fields}
        if self._redacted:
            event = _without_credentials(event)
        tool = self._tail.tools.get(str(event.fields.get("call_id")), "")
        self._put(section(event, at, self.verbosity, tool=tool), sealed=True)

    def _put(self, written: str, *, sealed: bool = False) -> None:
        """Append text; where that fails in its middle, take back what is there of it, so that no reader sees half an event."""
        data = written.encode(errors="replace")
        if sealed:
            data += f"{mark(self._tail.chain.seal(data))}{RULE}".encode()
        begun = os.fstat(self._fd).st_size
        try:
            self._system.write_all(self._fd, data)
        except OSError:
            if os.fstat(self._fd).st_size > begun:
                self._system.truncate(self._fd, begun)
            raise
        self._known(data)

    def _known(self, data: bytes) -> None:
        self._tail.add(data)
        self._end = (self._end + data)[-_END:]


def _without_credentials(event: LogEvent) -> LogEvent:
    redacted = copy(event)
    redacted.fields, redacted.narrative, redacted.title = redact(event.fields), redact(event.narrative), redact(event.title)
    redacted.comments = {
        place: type(comment)(*(None if text is None else redact(text) for text in (comment.before, comment.beside, comment.end)))
        for place, comment in event.comments.items()
    }
    return redacted


def _after_fork() -> None:
    for log in list(_logs):
        log.after_fork()


register_at_fork(after_in_child=_after_fork)
