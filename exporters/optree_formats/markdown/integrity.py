"""What a log is known by, and whether it is whole: its seals, what a writer knows of its end, recovery, and who may touch it.

A seal is the digest of the seal before it and of every byte between the two. Changing, removing or inserting anything breaks the next
seal; what was added behind the last one is not sealed yet. There is no key in it: who rewrites a log and also makes all the seals behind
anew is found out only by the last seal, which the session's summary repeats, and which you may keep elsewhere.

A log counts as corrupted if it does not begin with its title, if it has a zero byte, or if a line is no UTF-8: it is set aside under a free
name, and a new one begins, which says so. A torn event is no corruption, even if the tear went through a character: it is ended, and
stays. A history that was rewritten is a violation. A file that never was a log is left alone.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from hashlib import blake2b
from itertools import count
from os import fspath
from pathlib import Path
from typing import BinaryIO

from optree.exporting import REAL, line_blocks, open_file
from optree_formats import AnyPath
from optree_formats.markdown.events import LogEvent
from optree_formats.markdown.own_yaml import NotOurs, unquoted

MARK = re.compile(rb"^<!-- seal ([0-9a-f]{16}) -->[ \t]*\r?$", re.MULTILINE)
LINES = re.compile(rb"[^\n]*\n|[^\n]+")


def mark(seal: str) -> str:
    """Return a seal as it stands in a log."""
    return f"<!-- seal {seal} -->\n\n"


class Chain:
    """The seals of a log, followed line by line."""

    def __init__(self) -> None:
        self.last = ""
        """The last seal; empty where there is none."""
        self._hash = _hash("")

    def add(self, line: bytes) -> bool:
        """Take the next line, with its line break; False if it is a seal that does not fit."""
        match = MARK.match(line) if line.startswith(b"<!-- seal ") else None
        if match is None:
            self._hash.update(line)
            return True
        fits = self._hash.hexdigest() == match[1].decode()
        self.last = match[1].decode()
        self._hash = _hash(self.last)
        self._hash.update(line[match.end(1) :])
        return fits

    def seal(self, written: bytes) -> str:
        """Return the seal of what has been added, with *written* behind it; nothing is taken by that."""
        after = self._hash.copy()
        after.update(written)
        return after.hexdigest()


def broken(source: BinaryIO) -> list[int]:
    """Return the lines of the seals that do not fit: between each and the seal before it something was changed."""
    chain = Chain()
    lines = (line for _, block in line_blocks(source) for line in LINES.findall(block))
    return [number for number, line in enumerate(lines, 1) if not chain.add(line)]


def verify(path: AnyPath) -> list[int]:
    """Return the lines of a log's broken seals, see `broken`; none if its history is as it was written. Raises `OSError`."""
    with open_file(path) as source:
        return broken(source)


def _hash(key: str) -> blake2b:
    return blake2b(digest_size=8, key=key.encode(), person=b"optree.seal")


_FIELD = re.compile(rb"(type|tool|call_id|broken_seals|event): +(?:\"((?:[^\"\\]|\\.)*)\"|([^\s\"]+))")
_FENCE = re.compile(rb"(`{3,}|~{3,})(.*)", re.DOTALL)
_DIGITS = 9
TITLE = b"# Session Log"
_BOM = b"\xef\xbb\xbf"
_OURS = re.compile(rb"# Session[ -]Log\b|.{0,20}Protocol.{0,20}(?:EVENT|SESSION)-LOG/")
_CUT = "unexpected end of data"
"""Python's reason for a line that ends within a character: it was torn there, and nothing else is wrong with it."""


class Tail:
    """Follows a log's lines, those of other writers too."""

    def __init__(self) -> None:
        self.size = 0
        """Bytes that are known."""
        self.ours = False
        """The file was a log once, however it looks now: it has an older title, a protocol or a seal."""
        self.session_id = ""
        """The session that the title names; empty if it names none."""
        self.chain = Chain()
        self.broken: list[int] = []
        """Lines of seals that do not fit."""
        self.reported = 0
        """How many broken seals the log itself reports."""
        self.counts: Counter[str] = Counter()
        """Events by type."""
        self.tools: dict[str, str] = {}
        """Tools of calls that are open, by call id."""
        self.ended = False
        """The session has ended, and was not taken up again."""
        self.fence = b""
        """The fence of the block that the file ends in; empty if it ends in none."""
        self._block: dict[bytes, str] = {}
        self._lines = 0
        self._corrupt = ""
        self._rest: list[bytes] = []
        """The last line, as far as it is there, while it has no end."""

    @property
    def events(self) -> int:
        """How many events there are."""
        return self.counts.total()

    @property
    def torn(self) -> bool:
        """True if the last line has no end."""
        return bool(self._rest)

    @property
    def corrupt(self) -> str:
        """What is wrong with the file as a whole; empty if it is a log."""
        return self._corrupt or (self._wrong(b"".join(self._rest), self._lines + 1) if self._rest else "")

    def add(self, written: bytes) -> None:
        """Take what was appended, or a piece of it that ends anywhere."""
        self.size += len(written)
        whole, newline, rest = written.rpartition(b"\n")
        if newline:
            for line in LINES.findall(b"".join([*self._rest, whole, newline])):
                self._line(line)
            self._rest = []
        if rest:
            self._rest.append(rest)

    def _line(self, line: bytes) -> None:
        self._lines += 1
        if not self.chain.add(line):
            self.broken.append(self._lines)
        self._corrupt = self._corrupt or self._wrong(line, self._lines)
        self.ours = self.ours or bool(_OURS.match(line) or MARK.match(line))
        stripped = line.rstrip()
        if self._lines == 1:
            self.session_id = stripped.removeprefix(_BOM).removeprefix(TITLE).strip(b": ").decode(errors="replace")
        fence = _FENCE.match(stripped)
        if self.fence:
            if fence and fence[1].startswith(self.fence) and not fence[2].strip():
                self.fence = b""
                self._end_block()
            elif (field := _FIELD.match(stripped)) is not None:
                self._block.setdefault(field[1], _value(field))
        elif fence and b"`" not in fence[2]:
            self.fence, self._block = fence[1], {}

    def _end_block(self) -> None:
        block = self._block
        kind = block.get(b"type") or block.get(b"event")
        if kind is None:
            return
        self.counts[kind] += 1
        self.ended = kind == "session_end" or (self.ended and kind != "session_resume")
        call = block.get(b"call_id", "")
        if kind == "tool_call":
            self.tools[call] = block.get(b"tool", "")
        elif kind in ("tool_result", "tool_error"):
            self.tools.pop(call, None)
        elif kind == "violation" and (seals := block.get(b"broken_seals", "")).isdecimal():
            self.reported = max(self.reported, int(seals[:_DIGITS]))

    def _wrong(self, line: bytes, number: int) -> str:
        """Return what a line says against its file; an end within a character is a tear, and no more."""
        start = line.removeprefix(_BOM)
        if number == 1 and not (start.startswith(TITLE) or (TITLE.startswith(start) and not line.endswith(b"\n"))):
            return "it does not begin as a log does"
        if b"\0" in line:
            return f"line {number} has zero bytes"
        try:
            line.rstrip(b"\r\n").decode()
        except UnicodeDecodeError as error:
            return "" if error.reason == _CUT else f"line {number} is no UTF-8"
        return ""


def _value(field: re.Match[bytes]) -> str:
    if field[2] is None:
        return field[3].decode(errors="replace")
    value = field[2].decode(errors="replace")
    try:
        return unquoted(value)
    except NotOurs:
        return value


SUFFIX = ".corrupted"
FILE = "session-log.md"


def was_log(path: Path, tail: Tail) -> bool:
    """Tell whether a file that is no log was one: by an older title, a protocol or a seal in it, or by a log's name."""
    return tail.ours or path.name.endswith(FILE)


def set_aside(path: Path) -> Path:
    """Rename a log to ``….corrupted``, or ``….corrupted.1`` and so on if there are such already; returns the new path. Raises `OSError`."""
    for number in count():
        backup = path.with_name(f"{path.name}{SUFFIX}{f'.{number}' if number else ''}")
        try:
            os.link(path, backup, follow_symlinks=False)  # fails if the name is taken, which a rename would not
        except FileExistsError:
            continue
        REAL.unlink(path)
        return backup
    raise AssertionError


def recovery(backup: Path, reason: str) -> LogEvent:
    """Return the event of a recovery."""
    event = LogEvent("recovery", {"from": "corruption", "backup": backup.name, "reason": reason})
    return event.comment("", "Human should review corrupted file")


_TOLD = 20
"""How many lines an event names."""
HARMLESS = frozenset(["append", "read"])


def touches(path: Path, log: Path) -> bool:
    """Tell whether a path names the log, by whichever name, or a directory that it lies in."""
    try:
        if path.samefile(log):
            return True
    except (OSError, ValueError):  # one of them is not there, or is no path
        pass
    try:
        mine, other = log.resolve(), path.resolve()
    except (OSError, RuntimeError, ValueError):  # a link that leads to itself
        return False
    return mine == other or other in mine.parents


def attempted_violation(path: AnyPath, tool: str, action: str) -> LogEvent:
    """Return the event for a tool that would have changed the log."""
    event = LogEvent("violation", {"action": action, "path": fspath(path), **({"tool": tool} if tool else {}), "refused": True})
    return event.comment("", "Session logs are append-only: the call was not made.")


def found_violation(log: Path, action: str, seals: list[int] | None = None) -> LogEvent:
    """Return the event for a log that another program has changed; *seals* are the lines of all seals that do not fit."""
    seal_fields = {"broken_seals": len(seals), "lines": seals[-_TOLD:]} if seals else {}
    event = LogEvent("violation", {"action": action, "path": log.name, **seal_fields, "refused": False})
    if not seals:
        return event.comment("", "Something else than a writer of this log changed what it had written.")
    return event.comment("lines", "The seals on these lines do not fit: between each and the seal before it something was changed.")
