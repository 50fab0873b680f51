"""Runs and their files: ids that follow from a session's, and the walk from a parent's file to its children's."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from uuid import UUID

from msgspec import Struct

from optree import FormatError
from optree.exporting import Fault, OpBegin, Payload
from optree_formats import AnyPath
from optree_formats.transcript.building import Kept
from optree_formats.transcript.reader import raised, read
from optree_formats.transcript.wire import ContentBlock, Event, Place, is_sound

_UUID4 = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
_NAME = re.compile(r"[A-Za-z0-9][\w-]{0,127}", re.ASCII)
SUFFIX = ".jsonl"


def run_id_of(session_id: str) -> str:
    """Return a session's run id: its own id where that is a UUID v4, else one that follows from it."""
    if _UUID4.fullmatch(session_id):
        return session_id
    from hashlib import blake2b

    digest = blake2b(session_id.encode(), digest_size=16, person=b"optree.run").digest()
    return str(UUID(bytes=digest, version=4))


class Run(Struct):
    """One file: its events in the order of their numbers, and the runs that its steps began."""

    run_id: str
    path: Path
    events: list[Event]
    children: dict[str, Run] = {}
    """By run id: those whose files were found."""


class Family(Struct):
    """A run with all below it."""

    runs: list[Run]
    """The one that was asked for first, children behind their parents."""
    faults: list[Fault]
    """Also those of the children's files, which name them, and of links that lead nowhere."""

    @property
    def root(self) -> Run:
        """The run that was asked for."""
        return self.runs[0]


def family(path: AnyPath, *, strict: bool = False) -> Family:
    """Read a run's file, and those of all runs below it, which lie beside it as ``<run id>.jsonl``.

    Links to files that are missing or cannot be read, that were followed already, or that lead back, are reported and not followed; with
    *strict* the first fault is raised as `FormatError`. Raises `OSError` for the first file.
    """
    faults: list[Fault] = []
    root = _run(Path(path), "", faults, strict=strict)
    known = {root.run_id}
    runs = [root]
    for run in runs:
        for event in run.events:
            child = event.child_run_id
            if child and child not in run.children and _follow(run, event, known, faults, strict=strict):
                runs.append(run.children[child])
    return Family(runs, faults)


def _follow(run: Run, event: Event, known: set[str], faults: list[Fault], *, strict: bool) -> bool:
    """Read a child's file; False if it is reported, or the same link stood before."""
    child = event.child_run_id
    message = ""
    if not _NAME.fullmatch(child):
        message = "its id is no file's name"
    elif child in known:
        message = "it was met before, so the links go in a circle or meet" if event.type.endswith("started") else "-"
    else:
        known.add(child)
        try:
            child_run = _run(run.path.with_name(child + SUFFIX), f"{child}{SUFFIX}: ", faults, strict=strict)
        except FileNotFoundError:
            message = f"there is no file {child}{SUFFIX} beside this one"
        except (OSError, FormatError) as error:
            if strict:
                raise
            message = f"its file cannot be read: {error}"
        else:
            run.children[child] = child_run
            if any(first.parent_run_id != run.run_id for first in child_run.events[:1]):
                faults.append(Fault(0, f"{child}{SUFFIX}: names another parent than {run.run_id}; kept"))
            return True
    if message.strip("-"):
        fault = Fault(0, f"{run.path.name}: seq {event.seq}: run {child} is not followed: {message}")
        _report(fault, faults, strict=strict)
    return False


def _report(fault: Fault, faults: list[Fault], *, strict: bool) -> None:
    if strict:
        raise raised(fault)
    faults.append(fault)


def _run(path: Path, label: str, faults: list[Fault], *, strict: bool) -> Run:
    """Read one file; events of other runs are left out. Where no number is there twice, they are put in order."""
    events: list[Event] = []
    for item in read(path, strict=strict):
        if not isinstance(item, Event):
            faults.append(type(item)(item.line, label + item.said))
        elif is_sound(item):
            events.append(item)
        else:
            message = f"{label}seq {item.seq}: left out: holds a number that is too large, or is nested too deeply"
            _report(Fault(0, message), faults, strict=strict)
    if not events:
        raise FormatError(f"{path.name} holds no event of a transcript")
    run_id = events[0].run_id
    others = {event.run_id for event in events} - {run_id}
    if others:
        faults.append(Fault(0, f"{label}events of other runs are left out: {', '.join(sorted(others)[:5])}"))
        events = [event for event in events if event.run_id == run_id]
    numbers = [event.seq for event in events]
    if len(set(numbers)) == len(numbers):
        events.sort(key=_number)
    return Run(run_id, path, events)


def _number(event: Event) -> int:
    return event.seq


class OpState(Struct):
    """An op of which not all is written yet."""

    begin: OpBegin
    place: Place
    started: bool = False
    """True if its start is written."""
    linked: bool = False
    """True if it called a run."""
    request: Payload | None = None
    response: Payload | None = None
    chunks: list[str] = []
    seen: float = 0.0
    """When it last thought."""


class RunState(Struct):
    """A run that is being written."""

    path: str
    run_id: str
    parent_run_id: str
    name: str = ""
    kept: Kept = Kept()
    """What others wrote at its start and end."""
    updates: dict[str, Any] = {}
    """What is set on it while it runs."""
    held: OpState | None = None
    """The tool's op whose call is not written yet."""
    calls: dict[str, ContentBlock] = {}
    """What the agent asked for, by id, while it is not known that it was run here."""
