"""A transcript's lines of JSON, each an object, and what is wrong with them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from optree import FormatError
from optree.exporting import BadLine, Fault, Format, LineBlock, Read, decoded_lines, is_list, is_object, open_file

BOM = b"\xef\xbb\xbf"
SUFFIX = ".jsonl"
_HEAD_BYTES = 1 << 16
_decode = msgspec.json.Decoder().decode_lines
_LOOKED_AT = 20


class ObjectLines:
    """Iterates over a file's objects; faults are noted by line, or with *strict* raised as `FormatError`.

    With *lists* a line may be a list as well, which is the member ``data`` of an object then.
    """

    def __init__(self, path: Path, faults: list[Fault], *, strict: bool, beside: bool = False, lists: bool = False) -> None:
        self.path = path
        self.damaged = False
        """True once a line could not be read."""
        self._faults = faults
        self._strict = strict
        self._lists = lists
        self._prefix = f"{path.name}: " if beside else ""
        self._block: LineBlock[Any] | None = None
        self._index = 0
        self._unknown: dict[str, tuple[int, int]] = {}

    def __iter__(self) -> Iterator[dict[str, Any]]:
        with open_file(self.path) as source:
            for block in decoded_lines(source, _decode):
                if isinstance(block, BadLine):
                    self.damaged = True
                    self._note(block.line, f"is not JSON ({block.said})")
                    continue
                self._block = block
                for self._index, value in enumerate(block.values):
                    if is_object(value):
                        yield value
                    elif self._lists and is_list(value):
                        yield {"data": value}
                    else:
                        self.fault("is no object")
        for kind, (line, number) in self._unknown.items():
            more = f", as are {number - 1} more" if number > 1 else ""
            self._note(line, f"is of a type that is not known, {kind[:80]!r}{more}: passed over")

    def fault(self, message: str) -> None:
        """Note what is wrong with the line that was read last."""
        self._note(self._line(), message)

    def unknown(self, kind: object) -> None:
        """Note that the line that was read last is of a type that is not known; each type is noted once."""
        name = str(kind)
        line, number = self._unknown.get(name) or (self._line(), 0)
        if len(self._unknown) < _LOOKED_AT or name in self._unknown:
            self._unknown[name] = (line, number + 1)

    def _line(self) -> int:
        return 0 if self._block is None else self._block.line_of(self._index)

    def _note(self, line: int, message: str) -> None:
        fault = Fault(0 if self._prefix else line, f"{self._prefix}{f'line {line}: ' if self._prefix and line else ''}{message}")
        if self._strict:
            raise FormatError(fault.of(self.path.name))
        self._faults.append(fault)


class FilesOfLines(Format):
    """A format whose sessions are files of lines, of which a directory may have several; read, not written."""

    suffix = ""
    cannot_hold: tuple[str, ...] = ()

    def detect(self, path: Path, head: bytes) -> bool:
        """Tell by the first lines; a directory by its first file of lines."""
        if path.is_dir():
            return any(map(self._is_one, _files(path)[:1]))
        return self.begins(head)

    def read(self, path: Path, *, strict: bool = False) -> Read:
        """Read a session with those of its sub-agents; of a directory, all sessions in it."""
        if not path.is_dir():
            return self.read_file(path, strict=strict)
        read = Read([], [])
        for one in sorted(filter(self._is_one, _files(path)), key=self.is_sub_agent):
            if one not in read.beside:
                read.add(one, self.read_file(one, strict=strict))
        return read

    def begins(self, head: bytes) -> bool:
        """Tell by the beginning of a file whether it is one."""
        raise NotImplementedError

    def is_sub_agent(self, path: Path) -> bool:
        """Tell whether a file is of a sub-agent, which the session that called it reads."""
        raise NotImplementedError

    def read_file(self, path: Path, *, strict: bool) -> Read:
        """Read a session's file, with those of its sub-agents."""
        raise NotImplementedError

    def _is_one(self, path: Path) -> bool:
        with open_file(path) as file:
            return self.begins(file.read(_HEAD_BYTES))


def _files(folder: Path) -> list[Path]:
    return sorted(filter(Path.is_file, folder.glob(f"*{SUFFIX}")))


def first_objects(head: bytes) -> Iterator[dict[str, Any]]:
    """Yield the objects among the first lines of a file that are whole."""
    for part in head.removeprefix(BOM).splitlines()[:_LOOKED_AT]:
        try:
            value = msgspec.json.decode(part)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue
        if is_object(value):
            yield value
