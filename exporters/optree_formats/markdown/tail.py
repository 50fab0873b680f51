"""What a writer knows of its log: how far it has read, in which state that leaves the file, and what the next event needs to know."""

from __future__ import annotations

import re
from collections import Counter

from optree_formats.markdown import scalars
from optree_formats.markdown.seals import LINES, MARK, Chain

_FIELD = re.compile(rb"(type|tool|call_id|broken_seals|event): +(?:\"((?:[^\"\\]|\\.)*)\"|([^\s\"]+))")
_FENCE = re.compile(rb"(`{3,}|~{3,})(.*)", re.DOTALL)
_DIGITS = 9
TITLE = b"# Session Log"
_BOM = b"\xef\xbb\xbf"
_OURS = re.compile(rb"# Session[ -]Log\b|.{0,20}Protocol.{0,20}(?:EVENT|SESSION)-LOG/")
_CUT = "unexpected end of data"
"""What Python says of a line that ends within a character: it was torn there, and nothing else is wrong with it."""


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
        """How many broken seals the log itself tells of."""
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
        said = line.rstrip()
        if self._lines == 1:
            self.session_id = said.removeprefix(_BOM).removeprefix(TITLE).strip(b": ").decode(errors="replace")
        found = _FENCE.match(said)
        if self.fence:
            if found and found[1].startswith(self.fence) and not found[2].strip():
                self.fence = b""
                self._end_block()
            elif (field := _FIELD.match(said)) is not None:
                self._block.setdefault(field[1], _value(field))
        elif found and b"`" not in found[2]:
            self.fence, self._block = found[1], {}

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
    said = field[2].decode(errors="replace")
    try:
        return scalars.unquoted(said)
    except scalars.NotOurs:
        return said
