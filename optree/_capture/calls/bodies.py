"""The bytes of an HTTP answer, as they pass, as the JSON values that they carry: one document, events, frames, or a value a line."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterator
from typing import Any, Final, Protocol

from msgspec import DecodeError

from optree._capture.calls.aws_events import AWS_EVENTS, HEAD_BYTES, event_in, size_of
from optree._interrupts import pass_on, suppress
from optree._values import MAX_ITEMS, decode, is_object, plain

JSON: Final = "application/json"
MOST_BYTES: Final = 64 << 20
"""Of a document, or of one event of a stream."""
_MOST_UNPACKED: Final = 100
"""A stream that unpacks to more than `MOST_BYTES` may be so many times as large as what came."""
MOST_KEPT: Final = (16 << 10) + 1024
"""Bytes of an answer that is no JSON which are kept: a little more than are recorded, which must not end within a credential."""
_MOST_RAW: Final = 1000
"""Lines of JSON between events."""
_MOST_NAME: Final = 100
_MOST_UNREAD: Final = 1000
"""Pieces of one answer that are not JSON; each takes as long as it takes to find out."""
_PIECE_BYTES: Final = 1024
_DONE: Final = b"[DONE]"
"""The data of the event behind a stream's last."""
_GAP: Final = b"\0"
"""Stands for the beginning of a line that was not seen; JSON has none."""


class _Unpacker(Protocol):
    def decompress(self, data: bytes, /) -> bytes: ...


class Body:
    """One answer's body. `feed` takes its bytes in pieces of any size."""

    def __init__(self, content_type: str, encoding: str) -> None:
        kind = content_type.partition(";")[0].strip().lower()
        known = {"text/event-stream": Body._events, AWS_EVENTS: Body._frames}
        self._read = Body._lines if kind.endswith("ndjson") else known.get(kind, Body._document)
        self.is_stream = self._read is not Body._document
        self.flaw: str | None = None
        """What was not read, of which there may be more."""
        self.is_unread = self.is_end_unread = False
        """True if a piece that was whole, or one that the end of the bytes cut off, is not JSON."""
        self._unread = 0
        self.text = b""
        """The beginning of the document, or of the last piece that is not JSON: of an event its lines."""
        self.is_over = False
        """True once the provider has said that there is no more, be the connection open or not."""
        self.waiting: Iterator[Any] | None = None
        """The values of what was fed last, if not all of them were taken: an exception broke in."""
        self._stopped = False
        self._encoding = encoding.strip().lower()
        self._unpackers: list[_Unpacker] | None = None
        self._came = self._unpacked = 0
        self._has_said = False
        self._held: list[bytes] = []
        """Pieces of a line, or of a document, that is not whole yet."""
        self._held_bytes = 0
        self._frame_bytes = HEAD_BYTES
        """Of the frame that is not whole yet, as far as that is known."""
        self._event: list[bytes] = []
        """Lines of an event's data."""
        self._name = b""
        """The line of its name."""
        self._raw: list[bytes] = []
        """Lines of JSON that is no event's."""
        self._ends_in_return = False
        self._skipped = 0
        """Bytes that are not seen."""
        self._is_behind_gap = False
        """True until an event ends whose beginning may be among these."""

    @property
    def is_empty(self) -> bool:
        """True if all that came is blank."""
        return not (self._has_said or self._skipped or self._stopped)

    def skip(self, size: int) -> None:
        """Take that so many bytes passed unseen: the events, or lines, that lie in them are left out."""
        self._skipped += size
        flaw = f"the answer came faster than it can be read: {self._skipped:,} bytes of it are not recorded"
        if self._encoding or not self.is_stream or self._read is Body._frames:
            self.stop(f"{flaw}, nor what is behind them")
            return
        self.flaw, self._is_behind_gap, self._ends_in_return = flaw, True, False
        self._taken()
        self._hold(_GAP)
        self._event.clear()
        self._raw.clear()

    def feed(self, data: bytes, *, last: bool = False) -> Iterator[Any]:
        """Yield the values that are whole by now; *last*: no more bytes come. What is held behind the stream's end is not looked at."""
        if self._stopped:
            return
        last = last and not self.is_over
        self._came += len(data)
        for piece in self._pieces(data) if self._encoding else [data]:
            self._unpacked += len(piece)
            if self._held_bytes + len(piece) > MOST_BYTES or self._unpacked > max(MOST_BYTES, self._came * _MOST_UNPACKED):
                self.stop(f"of an answer with more than {MOST_BYTES >> 20} MiB in one piece the rest is not recorded")
            if self._stopped:
                return
            self._has_said = self._has_said or bool(piece and not piece.isspace())
            yield from self._read(self, piece, last=last and not self._encoding)
        if last and self._encoding and not self._stopped:
            yield from self._read(self, b"", last=True)

    def stop(self, flaw: str) -> None:
        """Read no more, because of a flaw."""
        self.flaw, self._stopped = flaw, True
        self._held, self._event, self._raw = [], [], []

    def _pieces(self, data: bytes) -> Iterator[bytes]:
        """Unpack bytes, a few at a time: few can unpack to very many."""
        try:
            if self._unpackers is None:
                names = [name.strip() for name in self._encoding.split(",")]
                self._unpackers = [_UNPACKERS[name]() for name in reversed(names) if name and name != "identity"]
            for at in range(0, len(data), _PIECE_BYTES):
                piece = data[at : at + _PIECE_BYTES]
                for unpacker in self._unpackers:
                    piece = unpacker.decompress(piece)
                yield piece
        except Exception as error:  # noqa: BLE001 - each kind of packing has its own
            pass_on(error)
            self.stop(f"the answer is not {self._encoding} as it says: {type(error).__name__}")

    def _document(self, data: bytes, *, last: bool) -> list[Any]:
        if self._held or not last:
            self._hold(data)
            data = self._taken() if last else b""
        if not last or not data:
            return []
        if data.lstrip().startswith((b"data:", b"event:")):  # whatever it is called
            self._read, self.is_stream = Body._events, True
            return self._events(data, last=True)
        self.text = data[:MOST_KEPT]
        if data.isspace():
            return []
        return self._value(data, is_end=True)

    def _frames(self, data: bytes, *, last: bool) -> list[Any]:
        """Read AWS's frames."""
        values: list[Any] = []
        self._hold(data)
        if self._held_bytes < self._frame_bytes and not last:
            return values
        data, at = self._taken(), 0
        try:
            while len(head := data[at : at + HEAD_BYTES]) == HEAD_BYTES and len(frame := data[at : at + (size := size_of(head))]) == size:
                values.append(event_in(frame, loads))
                at += size
            self._frame_bytes = size_of(head) if len(head) == HEAD_BYTES else HEAD_BYTES
        except (ValueError, RecursionError) as error:
            pass_on(error)
            self.stop("a frame of the answer cannot be read: it and the rest are not recorded")
            self.is_unread, self.text = True, data[at : at + MOST_KEPT]
            return values
        data = data[at:]
        self._hold(data)
        if last and data:
            self.flaw, self.is_end_unread, self.text = "the answer ends within a frame", True, data[:MOST_KEPT]
        return values

    def _lines(self, data: bytes, *, last: bool) -> list[Any]:
        lines = self._whole_lines(data, last=last)
        told = [(line, last and at == len(lines) - 1) for at, line in enumerate(lines) if line.strip() and not line.startswith(_GAP)]
        return [value for line, is_end in told for value in self._value(line, is_end=is_end)]

    def _events(self, data: bytes, *, last: bool) -> list[Any]:
        """Read server-sent events, of which only the data counts here (https://html.spec.whatwg.org/multipage/server-sent-events.html)."""
        values: list[Any] = []
        event = self._event
        for line in self._whole_lines(data, last=last):
            if self._is_behind_gap:
                self._is_behind_gap = bool(line)
            elif line.startswith(b"data:"):
                event.append(line[5:].removeprefix(b" "))
            elif not line:
                values += self._said()
            elif line.startswith(b"event:"):
                self._name = line[:_MOST_NAME] + b"\n"
            elif (line[:1] == b"{" or self._raw) and len(self._raw) < _MOST_RAW:
                self._raw.append(line)
        return values + self._said(is_end=True) if last else values

    def _said(self, *, is_end: bool = False) -> list[Any]:
        """Return the value of the event that is over, and the error that Gemini says between events, as plain JSON."""
        values: list[Any] = []
        if self._event:
            said, name = b"\n".join(self._event), self._name
            self._event.clear()
            is_begun = is_end and _DONE.startswith(said.strip())  # the stream ends within it
            if said.strip().startswith(_DONE) or (is_begun and said.strip()):
                self.is_over = True
            elif not is_begun:
                values += (found := self._value(said, is_end=is_end))
                if not found:
                    self.text = (name + b"data: " + said.replace(b"\n", b"\ndata: ") + b"\n\n" * (not is_end))[:MOST_KEPT]
        self._name = b""
        if self._raw:
            said = b"\n".join(self._raw)
            self._raw.clear()
            with suppress(ValueError, RecursionError):
                values += [one for one in [loads(said)] if is_object(one) and "error" in one]
        return values

    def _whole_lines(self, data: bytes, *, last: bool) -> list[bytes]:
        """Return the lines that are whole by now, whatever ends them: a line feed, a carriage return, or both."""
        if self._ends_in_return and data.startswith(b"\n"):
            data = data[1:]
        if data:
            self._ends_in_return = data.endswith(b"\r")
        if b"\r" in data:
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        first, feed, rest = data.partition(b"\n")
        self._hold(first)
        if not feed:
            return [self._taken()] if last else []
        *whole, rest = rest.split(b"\n")
        whole.insert(0, self._taken())
        self._hold(rest)
        return [*whole, self._taken()] if last else whole

    def _hold(self, data: bytes) -> None:
        """Keep the beginning of what is not whole yet."""
        self._held.append(data)
        self._held_bytes += len(data)

    def _taken(self) -> bytes:
        """Return what was kept, and keep it no longer."""
        found, self._held, self._held_bytes = b"".join(self._held), [], 0
        return found

    def _value(self, data: bytes, *, is_end: bool) -> list[Any]:
        """Return what a piece of JSON says, as the only item; nothing of what is none, of which the end may be missing if it *is_end*."""
        if self._stopped:
            return []
        try:
            return [loads(data)]
        except (ValueError, RecursionError) as error:
            pass_on(error)
            self._unread += 1
            if self._unread > _MOST_UNREAD:
                self.stop(f"more than {_MOST_UNREAD:,} parts of the answer are not JSON: they and the rest are not recorded")
                return []
            self.flaw = f"a part of the answer is not JSON, and is not recorded: {len(data):,} bytes"
            self.text = data[:MOST_KEPT]
            self.is_end_unread = self.is_end_unread or is_end
            self.is_unread = self.is_unread or not is_end
            return []


def object_in(data: bytes) -> dict[str, Any] | None:
    """Return the object that JSON is; None of other JSON, and of what is none."""
    try:
        value = loads(data)
    except (ValueError, RecursionError) as error:
        pass_on(error)
        return None
    return value if is_object(value) else None


def loads(data: bytes) -> Any:
    """Return the value of JSON, or of what Python's own reader takes for it: NaN, halves of surrogate pairs. Raises `ValueError`."""
    try:
        return decode(data)
    except (DecodeError, UnicodeDecodeError) as error:
        pass_on(error)
        return plain(json.loads(data), MAX_ITEMS)


class _Brotli:
    def __init__(self) -> None:
        try:
            import brotli  # type: ignore[import-not-found, unused-ignore] # pyright: ignore[reportMissingImports]
        except ImportError:
            import brotlicffi as brotli  # type: ignore[import-not-found, unused-ignore] # pyright: ignore[reportMissingImports]
        module: Any = brotli
        self._decompressor = module.Decompressor()

    def decompress(self, data: bytes, /) -> bytes:
        return bytes(self._decompressor.process(data))


class _Deflate:
    """With a head or, as some servers send it, without."""

    def __init__(self) -> None:
        self._decompressor = zlib.decompressobj()
        self._is_begun = False

    def decompress(self, data: bytes, /) -> bytes:
        is_begun, self._is_begun = self._is_begun, self._is_begun or bool(data)
        try:
            return self._decompressor.decompress(data)
        except zlib.error:
            if is_begun:
                raise
            self._decompressor = zlib.decompressobj(-zlib.MAX_WBITS)
            return self._decompressor.decompress(data)


def _zstd() -> _Unpacker:
    from zstandard import ZstdDecompressor

    return ZstdDecompressor().decompressobj()


_UNPACKERS: Final[dict[str, Callable[[], _Unpacker]]] = {
    "gzip": lambda: zlib.decompressobj(zlib.MAX_WBITS | 16),
    "deflate": _Deflate,
    "br": _Brotli,
    "zstd": _zstd,
}
