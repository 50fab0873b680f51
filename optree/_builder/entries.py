"""Log lines, reasoning and the streamed answer of an op, from where they are given to the record and the node that they go into."""

from __future__ import annotations

from collections.abc import Callable
from threading import get_ident
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from optree import _records as records
from optree._builder.turns import Turn
from optree._clock import Clock
from optree._interrupts import is_in
from optree._nodes import LogEntry, OperationNode, Payload, ReasoningChunk, Severity
from optree._tree import apply
from optree.redaction import redact

if TYPE_CHECKING:
    from optree._builder.session_tree import SessionTreeBuilder

Put = Callable[[records.Record], None]
_VRB: Severity = "VRB"


class EntryState(Struct, eq=False):
    """What the handle of an op holds.

    Entries are kept raw until they are delivered, three items each: the time in seconds, the text, and None for a line with nothing but a
    text, True for a chunk of reasoning, False for one of the answer, else ``(severity, direction, details)``.
    """

    builder: SessionTreeBuilder
    """What builds the operation's session."""
    turn: Turn
    """The turn that the operation belongs to."""
    bare: OperationNode
    """The node, perhaps without its newest entries."""
    path: str
    """The operation's path in the whole tree, such as ``1.2`` or ``1.2.3.1``."""
    _now: Clock
    _clean: bool
    """False once the stream knows that there are entries to deliver; in memory only until the op's end."""
    _t0: float
    _taking: int = 0
    _raw: list[Any] = []
    _logs: list[LogEntry] | None = None
    _chunks: list[ReasoningChunk] | None = None
    _streamed: list[str] | None = None
    """The text that was streamed as the answer, as far as it is delivered; None before the first piece."""
    _awaited: bool = False
    """True if there is a line that a subscriber wants before the end."""
    _returned: Payload | None = None
    """The response, where it is to be recorded with the end."""
    _delivered: int = 0
    """The characters of that text; -1 if another process began the op: it closes the answer, and what is streamed here stands behind it."""
    _withheld: int = 0
    """The characters of it that are not recorded, in a session without content: they count in the answer's size."""
    call: Any = None
    """What `optree._capture` knows of the call that the program makes within it; here it lives no longer than the handle."""
    spending: Any = None
    """What budgets hold for it; as above."""
    replayed: str | None = None
    """The op whose recorded answer it got: what is accounted for here cost nothing."""

    def pending(self, put: Put, *, last: bool = False) -> bool:
        """Put the entries that are not delivered yet, once. Within a step, or called by the stream.

        Of texts that are streamed into a session that is saved redacted, the line that is being written waits until it is whole, or they
        are the *last*: a credential may lie over several. Entries go to the node when it is asked for, or has ended: going there each
        time would copy those of a long op again and again.
        """
        core, node, raw = self.builder.core, self.bare, self._raw
        if self._taking and self._is_taking():  # called within itself by a finalizer or a handler: its entries mark the op again
            return False
        self._clean = core.recorded or node.ended_at is not None  # before the list is read: an entry appended now marks the op again
        last = last or node.ended_at is not None
        if not raw and not (last and self.path in core.streamed):
            return False
        try:
            self._taking = get_ident()
            batch = taken = raw[:]
            if core.redacted:
                batch = self._redacted(batch, last=last)
            logs, chunks, answer = read_entries(batch)
            record = records.Entries(
                self.path,
                len(node.logs) + len(self._logs or ()),
                tuple(logs),
                len(self._chunks or ()) + (len(node.reasoning.chunks) if node.reasoning is not None else 0),
                tuple(chunks),
            )
            at = len(self._logs or ()), len(self._chunks or ()), len(self._streamed or ()), self._delivered
            if answer and self._streamed is not None:
                record.text_at, record.text = self._delivered, "".join(answer)
            try:
                self._take(record, taken, at, put)
            except BaseException:  # an interrupt: what is begun is done whole
                self._take(record, taken, at, put)
                raise
        finally:
            self._taking = 0
        if node.ended_at is not None:
            self._place()
            core.touched.add(self.path)
        return True

    def _take(self, record: records.Entries, taken: list[Any], at: tuple[int, int, int, int], put: Put) -> None:
        """Put a record of raw entries, and keep them behind those that stood there before; twice does no harm."""
        put(record)
        logs, chunks, streamed, delivered = at
        if self._logs is None or self._chunks is None:
            self._logs, self._chunks = [], []
        self._logs[logs:] = record.logs
        self._chunks[chunks:] = record.chunks
        if record.text and self._streamed is not None:
            self._streamed[streamed:] = [record.text]
            self._delivered = delivered + (len(record.text) if delivered >= 0 else 0)
        if taken and self._raw and self._raw[0] is taken[0]:
            del self._raw[: len(taken)]

    def _is_taking(self) -> bool:
        """Tell whether a thread takes entries now: an interrupt may have left the mark behind."""
        return is_in(self._taking, _TAKING)

    def _redacted(self, batch: list[Any], *, last: bool) -> list[Any]:
        """Return raw entries without credentials, also such as lie over several chunks of reasoning, or of the answer."""
        core = self.builder.core
        entries: list[Any] = []
        items = iter(batch)
        for time, content, kind in zip(items, items, items, strict=True):
            if not isinstance(kind, bool):
                entries += [time, redact(content), kind]
            else:
                shown = core.streamed.setdefault(self.path, {}).setdefault(kind, core.new_stream_redactor()).feed(content)
                entries += [time, shown, kind] if shown else []
                self._withheld += 0 if kind or core.content else len(content) - len(shown)
        for kind, stream in core.streamed.pop(self.path, {}).items() if last else ():
            if rest := stream.close():
                entries += [core.now_ms() / 1e3, rest, kind]
        return entries

    def after_fork(self) -> None:
        """In a forked child: leave to the parent what it has not delivered yet."""
        self._taking = 0  # the parent's thread may have been at it
        self.pending(_nowhere)
        self.share()

    def share(self) -> None:
        """Note that another process began the op."""
        self._delivered = -1

    def _place(self) -> None:
        """Add to the node what was delivered since the last time."""
        node, logs, chunks = self.bare, self._logs, self._chunks
        known = node.reasoning.chunks if node.reasoning is not None else ()
        apply.add_entries(  # what an interrupt left is not added again
            node,
            () if not logs or (node.logs and node.logs[-1] is logs[-1]) else logs,
            () if not chunks or (known and known[-1] is chunks[-1]) else chunks,
        )
        self._logs = self._chunks = None
        if self._delivered and self._streamed:
            self._streamed = ["".join(self._streamed)]
            apply.set_partial_response(self.bare, self._streamed[0])

    def settle(self) -> bool:
        """Deliver the entries that are pending, and bring them to the node; False if another thread held the lock too long."""
        stream = self.builder.core.stream
        held = stream.enter()
        try:
            if held is not None:
                self.pending(stream.put)
                self._place()
            return held is not None
        finally:
            stream.leave(held)


_TAKING = frozenset({EntryState.pending.__code__})


def has_text(op: EntryState) -> bool:
    """Tell whether text of its answer was streamed to an op."""
    return op._streamed is not None  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - of this module


def _nowhere(_record: records.Record) -> None:
    """Take a record that another process delivers."""


def read_entries(batch: list[Any]) -> tuple[list[LogEntry], list[ReasoningChunk], list[str]]:
    """Return the log lines, the chunks of reasoning and those of the answer that raw entries are."""
    logs: list[LogEntry] = []
    chunks: list[ReasoningChunk] = []
    answer: list[str] = []
    items = iter(batch)
    for time, content, more in zip(items, items, items, strict=True):
        if more is None:
            logs.append(LogEntry(time * 1e3, _VRB, content))
        elif more is True:
            chunks.append(ReasoningChunk(content, time * 1e3))
        elif more is False:
            answer.append(content)
        else:
            severity, direction, details = more
            logs.append(LogEntry(time * 1e3, severity, content, direction, details))
    return logs, chunks, answer
