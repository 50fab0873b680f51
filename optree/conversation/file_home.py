"""A session's events in a file of its own, one line each. Several processes may add to it: each line whole, in the order of its id."""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from secrets import token_hex
from typing import Any

from optree._builder import Op
from optree._interrupts import pass_on, suppress
from optree._nodes import OpKind
from optree._store.files.compression import is_packed
from optree._store.files.descriptors import open_regular
from optree._store.files.line_log import LineLog
from optree._store.files.lines import Fault
from optree._store.files.system import OS, REAL
from optree._store.files.unusable import usable
from optree._visible import one_line
from optree.conversation.events import AnyEvent
from optree.conversation.registry import Counters, MakeEvent, Registry
from optree.conversation.wire import SEED_001, line, read_events, read_one, version_of
from optree.errors import BusyError, FormatError, StoreError
from optree.redaction import redact

_BOM = b"\xef\xbb\xbf"
_HEAD, _MEMBER = 4096, b'{"message_id"'
TEXT, NUMBER = "text", "number"
MOST_LATE = 10_000
"""Events that are kept for a file that does not take them."""


class FileHome:
    """Keeps events in a JSONL file."""

    def __init__(
        self, path: Path, version: int | None = None, *, seen: Callable[[AnyEvent], object] | None = None, system: OS = REAL
    ) -> None:
        """Open or make the file, and learn what is in it, in one pass; *seen* is given each event of it.

        Without a *version* the file's own is gone on with. Raises `SetupError` for what cannot be written, `FormatError` for a file that
        is compressed, or holds something else, and `OSError`.
        """
        self.path = path
        self.version = version or SEED_001
        self.registry = Registry()
        self.faults: list[Fault] = []
        """What was left out or mended in reading, by line."""
        self.reports: list[str] = []
        """What went wrong in writing."""
        self._reported: set[tuple[object, ...]] = set()
        self._follows = version is None
        self._ids = ""
        """How the file's last message id is written: a text with a number in it, `TEXT` or `NUMBER`; empty for one as ours are."""
        self._seen = seen
        self._line = 0
        self._pid = os.getpid()
        self._queued: deque[AnyEvent] = deque()
        """What was logged while this home was busy: by a signal handler, or by a thread that did not wait longer."""
        self._late: deque[AnyEvent] = deque()
        """What the file did not take yet, in its order."""
        with usable(path):
            self._log = LineLog(path, self._learn, system, anew=self._begin_anew)
        if is_packed(path):
            self._log.close()
            raise FormatError(f"{path} is compressed, so nothing can be added to it: unpack it first, or read it with SessionViewer")
        with self._log.alone():
            self._log.catch_up()
        if self.faults and not self.registry.agents and not _begins_as_events(path):
            self._log.close()
            raise FormatError(f"{path} is no file of events ({self.faults[0].said}), and nothing is added to it: name another")
        if self.faults:
            self._report(None, f"{len(self.faults)} lines of {path} could not be read as they are, the first is {self.faults[0].line}")
        self._seen = None
        self._follows = False

    def add(self, make: MakeEvent) -> str:
        """Keep an event; returns its id. What the file does not take is reported once, and written with what is added later."""
        self._after_fork()
        try:
            with self._log.alone():
                event = self._add(make)
        except BusyError:
            event = make(self._own_id())
            self._queued.append(event)
            self._remember()
        else:
            self._settle()
        return event.message_id

    def recorded(self, messages: list[Any]) -> list[Any]:
        """Return all: a file has what is said in it."""
        return messages

    def refresh(self) -> None:
        """Take up what other processes added."""
        self._after_fork()
        with contextlib.suppress(BusyError), self._log.alone():
            self._learn_queued()
            try:
                self._log.catch_up()
                if self._late:
                    with self._log.held():
                        self._write_late()
            except (OSError, StoreError) as error:
                pass_on(error)
                self._report(error, f"{self.path} cannot be read on ({error}): what other processes log is not seen here")
        self._settle()

    def events(self) -> Sequence[AnyEvent]:
        """Return all events in the file. Raises `OSError`."""
        return read_events(self.path)[0]

    def new_agent_id(self) -> str:
        """Return an id that no agent has."""
        self.refresh()
        try:
            with self._log.alone():
                return self.registry.new_agent_id()
        except BusyError:
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
        if self._queued or self._late:
            self.refresh()
        self._log.close()

    def _add(self, make: MakeEvent) -> AnyEvent:
        self._learn_queued()
        events: list[AnyEvent] = []
        try:
            with self._log.held():
                self._write_late()
                events.append(make(self._next_id()))
                self._write(events[0])
        except (OSError, StoreError) as error:
            pass_on(error)
            message = (
                f"{self.path} does not take what is logged ({error}): the conversation goes on, and it is written later if that is possible"
            )
            self._report(error, message)
            events = events or [make("")]
            events[0].message_id = self._own_id()
            self._put_off(events[0])
        self.registry.learn(events[0])
        return events[0]

    def _own_id(self) -> str:
        """Return an id that no other process gives, for an event that is not in the file yet."""
        return f"{self._next_id()}_{token_hex(4)}"

    def _next_id(self) -> str:
        """Return the id that follows on all that are known, in the form that the file has."""
        number = self.registry.counters.message + 1
        return str(number) if self._ids else f"msg_{number:03d}"

    def _put_off(self, event: AnyEvent) -> None:
        """Keep an event to be written later."""
        if len(self._late) < MOST_LATE:
            self._late.append(event)
            self._remember()
        else:
            self._report(None, f"{self.path} has taken nothing for {MOST_LATE} events: further ones are lost until it does")

    def _remember(self) -> None:
        """Have what waits written at the end of the program, if nothing is added before."""
        if len(self._late) + len(self._queued) == 1:
            atexit.register(self.refresh)

    def _write(self, event: AnyEvent) -> None:
        self._log.put(line(event, self.version, numbers=self._ids == NUMBER))
        self._line += 1

    def _write_late(self) -> None:
        if self._late:
            while self._late:
                self._write(self._late[0])
                self._late.popleft()
            atexit.unregister(self.refresh)

    def _learn_queued(self) -> None:
        while self._queued:
            event = self._queued.popleft()
            self.registry.learn(event)
            self._put_off(event)

    def _settle(self) -> None:
        """Write what a signal handler logged meanwhile."""
        while self._queued:
            try:
                with self._log.alone():
                    self._learn_queued()
                    with self._log.held():
                        self._write_late()
            except (OSError, StoreError) as error:  # the next call tries again
                pass_on(error)
                return

    def _learn(self, data: bytes) -> Iterator[int]:
        """Take up a line that this process did not write; yields the highest message number so far."""
        self._line += 1
        if self._line == 1:
            data = data.removeprefix(_BOM)
        event, flaws = read_one(data, self._line)
        self.faults += [Fault(self._line, flaw) for flaw in flaws]
        if self._follows and (version := version_of(data)) is not None:
            self.version = version
            self._follows = False
        if event is not None:
            self.registry.learn(event)
            self._ids = _form_of(event.message_id, data)
            if self._seen is not None:
                self._seen(event)
        yield self.registry.counters.message

    def _begin_anew(self, replaced: bool) -> None:
        """Forget what was in the file, since all of it is to be learnt again; the numbers that were given stay so."""
        counters = Counters()
        counters.message, counters.agent = self.registry.counters.message, self.registry.counters.agent
        self.registry = Registry(counters)
        self.faults = []
        self._line = 0
        for event in self._late:
            self.registry.learn(event)
        if replaced:
            self._report(None, f"{self.path} was replaced or removed by somebody else: what is logged from now on goes into the new file")

    def _after_fork(self) -> None:
        """In a forked process: what waits to be written is the parent's to write."""
        if os.getpid() != self._pid:
            self._pid = os.getpid()
            self._queued.clear()
            self._late.clear()

    def _report(self, error: Exception | None, problem: str) -> None:
        """Note a problem, and say it once on stderr, whatever its numbers are: never raised into the program that logs."""
        kind = (type(error), getattr(error, "errno", None)) if error is not None else (problem,)
        if kind in self._reported:
            return
        self._reported.add(kind)
        problem = redact(problem)
        self.reports.append(problem)
        if sys.__stderr__ is not None:  # else the descriptor was closed at start, and may be any file's by now
            with suppress(OSError):
                os.write(2, f"optree: {one_line(problem)}\n".encode("utf-8", "replace"))


def _begins_as_events(path: Path) -> bool:
    """Tell whether a file of which no event can be read may be one of events all the same: its first line is torn, or damaged."""
    with open_regular(path) as file:
        head = file.read(_HEAD).removeprefix(_BOM).lstrip()
    return _MEMBER.startswith(head) or any(name in head for name in (_MEMBER[1:], b'"event_type"'))


def _form_of(message_id: str, data: bytes) -> str:
    """Return how a line writes its id: as a number, as a text that is one, or (empty) otherwise."""
    if not message_id.isdecimal():
        return ""
    return NUMBER if re.search(rb'"message_id"\s*:\s*[0-9]', data) else TEXT
