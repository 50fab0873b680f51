"""A transcript's lines of JSON, each an object, what is wrong with them, and values and members of JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import msgspec

from optree import FormatError, Tree
from optree.exporting import BadLine, Fault, Format, LineBlock, Read, decode, decoded_lines, is_list, is_object, open_file

BOM = b"\xef\xbb\xbf"
SUFFIX = ".jsonl"
_HEAD_BYTES = 1 << 16
_decode = msgspec.json.Decoder().decode_lines
_LOOKED_AT = 20
_LARGEST_ABOUT = 1 << 20


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


class FileReader(Protocol):
    """Reads one session's file, with those of its sub-agents."""

    faults: list[Fault]
    beside: list[Path]

    def read(self) -> Tree | None:
        """Return the tree; None where the file has none."""


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
            return self._read(path, strict=strict)
        read = Read([], [])
        for one in sorted(filter(self._is_one, _files(path)), key=self.is_sub_agent):
            if one not in read.beside:
                read.add(one, self._read(one, strict=strict))
        return read

    def begins(self, head: bytes) -> bool:
        """Tell by the beginning of a file whether it is one."""
        raise NotImplementedError

    def is_sub_agent(self, path: Path) -> bool:
        """Tell whether a file is of a sub-agent, which the session that called it reads."""
        raise NotImplementedError

    def reader(self, path: Path, *, strict: bool) -> FileReader:
        """Return what reads a session's file."""
        raise NotImplementedError

    def _read(self, path: Path, *, strict: bool) -> Read:
        reader = self.reader(path, strict=strict)
        tree = reader.read()
        return Read([] if tree is None else [tree], reader.faults, reader.beside)

    def _is_one(self, path: Path) -> bool:
        with open_file(path) as file:
            return self.begins(file.read(_HEAD_BYTES))


def _files(folder: Path) -> list[Path]:
    return sorted(filter(Path.is_file, folder.glob(f"*{SUFFIX}")))


def first_objects(head: bytes) -> Iterator[dict[str, Any]]:
    """Yield the objects among the first lines of a file that are whole."""
    for part in head.removeprefix(BOM).splitlines()[:_LOOKED_AT]:
        if is_object(value := decoded(part)):
            yield value


def first_object(path: Path, is_one: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """Return the first object among the first lines of a file that is one of these; an empty one where there is none."""
    with open_file(path) as file:
        return next(filter(is_one, first_objects(file.read(_LARGEST_ABOUT))), dict[str, Any]())


def decoded(data: bytes | msgspec.Raw | str, otherwise: Any = None) -> Any:
    """Return the value of JSON; *otherwise* for what is none."""
    try:
        return decode(data.encode("utf-8", "replace") if isinstance(data, str) else data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return otherwise


def parsed(value: Any) -> Any:
    """Return arguments that are JSON in a text as a value; others as they are."""
    return decoded(value, value) if isinstance(value, str) else value


def member(value: Any, *names: str) -> Any:
    """Return the member of an object that a path of *names* leads to; None where there is none."""
    for name in names:
        value = value.get(name) if is_object(value) else None
    return value
