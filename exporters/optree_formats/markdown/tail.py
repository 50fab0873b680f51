"""What a writer knows of its log: how far it has read, in which state that leaves the file, and what the next event needs to know."""

from __future__ import annotations

import re
from collections import Counter

from optree_formats.markdown.seals import LINES, Chain

_FIELD = re.compile(rb"(type|tool|call_id|broken_seals|event): +\"?([^\s\"]+)")
_FENCE = re.compile(rb"(`{3,}|~{3,})([^`]*)$")
_DIGITS = 9
TITLE = b"# Session Log"
_BOM = b"\xef\xbb\xbf"


class Tail:
    """Follows a log's lines, those of other writers too."""

    def __init__(self) -> None:
        self.size = 0
        """Bytes that are known."""
        self.torn = False
        """The last line has no end."""
        self.corrupt = ""
        """What is wrong with the file as a whole; empty if it is a log."""
        self.chain = Chain()
        self.broken: list[int] = []
        """Lines of seals that do not fit."""
        self.reported = 0
        """How many broken seals the log itself tells of."""
        self.counts: Counter[str] = Counter()
        """Events by type."""
        self.tools: dict[str, str] = {}
        """Tools of calls that are open, by call id."""
        self.ended = False
        """The session has ended, and was not taken up again."""
        self._fence = b""
        self._block: dict[bytes, str] = {}
        self._lines = 0

    @property
    def events(self) -> int:
        """How many events there are."""
        return self.counts.total()

    @property
    def in_block(self) -> bool:
        """True if the file ends within a block."""
        return bool(self._fence)

    def add(self, written: bytes) -> None:
        """Take what was appended."""
        self.size += len(written)
        self._lines -= self.torn  # its rest comes now
        for line in LINES.findall(written):
            self._line(line)

    def _line(self, line: bytes) -> None:
        self._lines += 1
        if not self.chain.add(line):
            self.broken.append(self._lines)
        self.torn = not line.endswith(b"\n")
        self._inspect(line)
        said = line.rstrip()
        found = _FENCE.match(said)
        if self._fence:
            if found and found[1].startswith(self._fence) and not found[2].strip():
                self._fence = b""
                self._end_block()
            elif (field := _FIELD.match(said)) is not None:
                self._block.setdefault(field[1], field[2].decode(errors="replace"))
        elif found:
            self._fence, self._block = found[1], {}

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
        elif kind == "violation" and (told := block.get(b"broken_seals", "")).isdecimal():
            self.reported = max(self.reported, int(told[:_DIGITS]))

    def _inspect(self, line: bytes) -> None:
        if self.corrupt:
            return
        if self._lines == 1 and not line.removeprefix(_BOM).startswith(TITLE):
            self.corrupt = "it does not begin as a log does"
        elif b"\0" in line:
            self.corrupt = f"line {self._lines} has zero bytes"
        else:
            try:
                line.decode()
            except UnicodeDecodeError:
                self.corrupt = f"line {self._lines} is no UTF-8"
