"""A session's events in a file of its own, one line each. Several processes may add to it: each line whole, in the order of its id."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from optree.builder import Op
from optree.conversation.events import AnyEvent
from optree.conversation.home import MakeEvent
from optree.conversation.registry import Registry
from optree.conversation.wire import SEED_000, SEED_001, line, read_events, read_one
from optree.errors import FormatError, StoreError
from optree.nodes import OpKind
from optree.store.compression import GZIP, ZSTD
from optree.store.line_log import LineLog
from optree.store.lines import Fault
from optree.store.system import OS, REAL

_BOM = b"\xef\xbb\xbf"


class FileHome:
    """Keeps events in a JSONL file."""

    def __init__(
        self, path: Path, version: int | None = None, *, seen: Callable[[AnyEvent], object] | None = None, system: OS = REAL
    ) -> None:
        """Open or make the file, and learn what is in it, in one pass; *seen* is given each event of it.

        Without a *version* the file's own is gone on with. Raises `OSError`, and `FormatError` for a compressed file.
        """
        self.path = path
        self.version = version or SEED_001
        self.registry = Registry()
        self.faults: list[Fault] = []
        """What was left out or mended in reading, by line."""
        self.reports: list[str] = []
        """What went wrong in writing."""
        self._follows = version is None
        self._seen = seen
        self._system = system
        self._open()
        if _is_compressed(path):
            self._log.close()
            raise FormatError(f"{path} is compressed, so nothing can be added to it: unpack it first, or read it with SessionViewer")
        self._log.catch_up()
        self._seen = None

    def _open(self) -> None:
        """Open the file, to learn all of it from its start."""
        self._line = 0
        self._pid = os.getpid()
        self._lock = threading.RLock()
        self._log = LineLog(self.path, self._learn, self._system)

    def add(self, make: MakeEvent) -> str:
        """Keep an event; returns its id, also where the file does not take it, which is reported once."""
        self._after_fork()
        with self._lock:
            made: list[AnyEvent] = []

            def written(number: int) -> bytes:
                event = make(_message_id(max(number, self.registry.counters.message + 1)))
                made[:] = [event]
                return line(event, self.version)

            try:
                self._log.append(written)
                self._line += 1
            except (OSError, StoreError) as error:
                self._report(f"{self.path} does not take what is logged ({error}): the conversation goes on without")
            event = made[0] if made else make(_message_id(self.registry.counters.message + 1))
            self.registry.learn(event)
            return event.message_id

    def refresh(self) -> None:
        """Take up what other processes added."""
        self._after_fork()
        with self._lock:
            try:
                self._log.catch_up()
            except (OSError, StoreError) as error:
                self._report(f"{self.path} cannot be read on ({error}): what other processes log is not seen here")

    def events(self) -> Sequence[AnyEvent]:
        """Return all events in the file. Raises `OSError`."""
        return read_events(self.path)[0]

    def new_agent_id(self) -> str:
        """Return an id that no agent has."""
        self.refresh()
        with self._lock:
            return self.registry.new_agent_id()

    def turn(self, agent_id: str) -> AbstractContextManager[None]:  # noqa: ARG002 - a file has no turns
        """Return a block that does nothing: a file of events has no turns."""
        return contextlib.nullcontext()

    def op(self, agent_id: str, kind: OpKind, name: str) -> AbstractContextManager[Op | None]:  # noqa: ARG002 - nor ops
        """Return a block that does nothing: a file of events has no ops."""
        return contextlib.nullcontext()

    def leave(self, agent_id: str) -> None:
        """Nothing is to be done: the file has all that there is of the agent."""

    def close(self) -> None:
        """Close the file."""
        self._log.close()

    def _learn(self, data: bytes) -> Iterator[int]:
        """Take up a line that this process did not write; yields the highest message number so far."""
        self._line += 1
        if self._line == 1:
            data = data.removeprefix(_BOM)
        event, said = read_one(data, self._line)
        self.faults += [Fault(self._line, one) for one in said]
        if self._follows and (b'"content_id"' in data or b'"caused_by"' in data):
            self.version = SEED_000
        if event is not None:
            self.registry.learn(event)
            if self._seen is not None:
                self._seen(event)
        yield self.registry.counters.message

    def _after_fork(self) -> None:
        """In a forked process: open the file anew, since a lock on the parent's descriptor would be the parent's as well."""
        if os.getpid() != self._pid:
            self.registry = Registry()
            self.faults = []
            try:
                self._open()
            except OSError as error:
                self._pid = os.getpid()
                self._report(f"{self.path} cannot be opened in a forked process ({error}): what it logs is lost")

    def _report(self, problem: str) -> None:
        """Note a problem, and say it once on stderr: never raised into the program that logs."""
        if problem in self.reports:
            return
        self.reports.append(problem)
        if sys.__stderr__ is not None:  # else the descriptor was closed at start, and may be any file's by now
            with contextlib.suppress(OSError):
                os.write(2, f"optree: {problem}\n".encode("utf-8", "replace"))


def _message_id(number: int) -> str:
    return f"msg_{number:03d}"


def _is_compressed(path: Path) -> bool:
    with path.open("rb") as file:
        head = file.read(4)
    return head == ZSTD or head[:2] == GZIP
