"""Handles: what traced code holds while a turn or an op is open. `Op.log` and `Op.think` are the hot path."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from itertools import count
from typing import TYPE_CHECKING, Any, Literal, get_args

from msgspec import UNSET, Struct

from optree import records
from optree.builder.figures import error_text, fill, known_status, number, tokens
from optree.clock import Clock, monotonic
from optree.nodes import AccountingEntry, LogEntry, OperationNode, ReasoningChunk, Severity, Status, TurnNode
from optree.tree import apply
from optree.tree.totals import add_entry, add_failure
from optree.values import text

if TYPE_CHECKING:
    from optree.builder.session_tree import SessionTreeBuilder

_VRB: Severity = "VRB"
_OK: Status = "ok"
_SEVERITIES: dict[str, Severity] = {
    **{name: name for name in get_args(Severity)},
    "DEBUG": "VRB",
    "INFO": "VRB",
    "WARNING": "WRN",
    "WARN": "WRN",
    "ERROR": "ERR",
    "CRITICAL": "ERR",
    "TRACE": "TRC",
}
"""Severities by their names, and by those of the standard library."""


class Turn:
    """An open turn. Its ops get their numbers here."""

    __slots__ = ("_counter", "_epoch", "builder", "implicit", "node", "path")

    def __init__(self, builder: SessionTreeBuilder, node: TurnNode, first_op: int, *, implicit: bool = False) -> None:
        self.builder = builder
        self.node = node
        self.path = node.path
        self.implicit = implicit
        """True for a turn that was opened for an op, since none was open."""
        self._counter = count(first_op)
        self._epoch = builder.core.epoch

    def next_op(self) -> int:
        """Return the number of the next op; in a forked child numbers come from a range of its own."""
        core = self.builder.core
        if self._epoch != core.epoch:
            self._epoch = core.epoch
            self._counter = count(core.base + 1)
        return next(self._counter)

    def assistant(self, content: object) -> None:
        """Set what the assistant said in this turn, before its tool calls or at the end."""
        self.builder.set_assistant(self, content)

    def end(self, status: Status = "ok", error: str | None = None) -> None:
        """End the turn; the second call does nothing."""
        self.builder.end_turn(self, status, error)


class Op(Struct, eq=False):
    """An open op: `log`, `think`, `account`, `request`, `response`, `end`. None of them raises, on any thread.

    Entries are kept raw until they are delivered, three items each: the time in seconds, the text, and None for a line with nothing but a
    text, True for a chunk of reasoning, else ``(severity, direction, details)``.
    """

    builder: SessionTreeBuilder
    turn: Turn
    bare: OperationNode
    """The node, perhaps without its newest entries."""
    path: str
    _now: Clock
    _clean: bool
    """False once the stream knows that there are entries to deliver; always in memory only."""
    _t0: float
    _taking: bool = False
    _raw: list[Any] = []
    _logs: list[LogEntry] | None = None
    _chunks: list[ReasoningChunk] | None = None

    def __repr__(self) -> str:
        return f"<Op {self.bare.op_id} {self.bare.kind} {self.bare.name!r}>"

    @classmethod
    def of(cls, builder: SessionTreeBuilder, turn: Turn, node: OperationNode) -> Op:
        """Return a handle for an op that begins now."""
        core = builder.core
        return cls(builder, turn, node, node.path, core.now, core.recorded, monotonic())

    @classmethod
    def of_ended(cls, builder: SessionTreeBuilder, turn: Turn, node: OperationNode) -> Op:
        """Return a handle for an op that began before."""
        op = cls.of(builder, turn, node)
        op._t0 -= max(0.0, builder.core.now() - node.started_at / 1e3)  # noqa: SLF001 - of the same class
        return op

    @property
    def node(self) -> OperationNode:
        """The op's node, as of now. It goes on growing; entries come to it within about 10 ms, at the op's end, or when this is asked."""
        if self._raw or self._logs is not None:
            self.settle()
        return self.bare

    @property
    def id(self) -> str:
        """The op's id, ``<txn>:<path>``."""
        return self.bare.op_id

    def log(
        self,
        message: str,
        severity: Severity = _VRB,
        direction: Literal["request", "response"] | None = None,
        details: Mapping[str, Any] | None = None,
    ) -> None:
        """Append a log line; on disk within about 10 ms. *details* is taken as it is now."""
        if severity is not _VRB or direction is not None or details is not None:
            self._log_more(message, severity, direction, details)
        elif type(message) is str:
            self._raw.extend((self._now(), message, None))
        else:
            self._raw.extend((self._now(), text(message), None))
        if self._clean:
            self._mark()

    def _log_more(self, message: Any, severity: Any, direction: Any, details: Any) -> None:
        known = _SEVERITIES.get(severity, "VRB") if type(severity) is str else "VRB"
        side: Any = direction if type(direction) is str and direction in ("request", "response") else None
        self._raw.extend((self._now(), text(message), (known, side, self.builder.core.attributes(details))))

    def think(self, chunk: str) -> None:
        """Append a chunk of streamed reasoning; on disk within about 10 ms."""
        self._raw.extend((self._now(), chunk if type(chunk) is str else text(chunk), True))
        if self._clean:
            self._mark()

    def account(
        self,
        *,
        input_tokens: int = 0,
        output_tokens: int = 0,
        cache_read_tokens: int = 0,
        cache_write_tokens: int = 0,
        cost_usd: float | None = None,
        status: Literal["ok", "failed"] = "ok",
        latency: float | None = None,
        **more: Any,
    ) -> None:
        """Append what an attempt or a call cost: tokens, US dollars, latency in ms (default: since the op began). On disk on return.

        *more* takes the other fields of `AccountingEntry` (`provider`, `model`, `actual_model`, `upstream_inference_cost_usd`,
        `characters_in`, `characters_out`, `mcp_server`, `command`, `error`…). Figures that are no numbers count as 0.
        """
        entry = self._entry(status, (monotonic() - self._t0) * 1e3 if latency is None else number(latency))
        if entry.type == "llm":
            entry.tokens = tokens(input_tokens, output_tokens, cache_read_tokens, cache_write_tokens)
        if cost_usd is not None:
            entry.cost_usd = number(cost_usd)
        if more:
            fill(entry, more)
            if entry.error is not None:
                entry.error = self.builder.core.text(entry.error)
        stream = self.builder.core.stream
        held = stream.enter()
        try:
            self._add(entry)
        finally:
            stream.leave(held)

    def _entry(self, status: object, latency: float) -> AccountingEntry:
        core, node = self.builder.core, self.bare
        ended: Literal["ok", "failed"] = "failed" if type(status) is str and status == "failed" else "ok"
        identity = f"{node.op_id}#{next(core.numbers)}"
        if node.kind != "llm":
            return AccountingEntry(identity, core.now_ms(), "tool", ended, latency, command=node.name)
        provider, model = provider_and_model(node.name)
        if model is None:
            own = node.attributes
            provider, model = (text(own[key]) if key in own else None for key in ("provider", "model"))
        return AccountingEntry(identity, core.now_ms(), "llm", ended, latency, provider, model)

    def _add(self, entry: AccountingEntry) -> None:
        """Add an entry to the op and to the totals; within a step."""
        node, builder = self.bare, self.builder
        apply.account(node, entry)
        for session in builder.chain:
            add_entry(session.totals, entry)
        if node.ended_at is not None:
            builder.core.touched.add(self.path)
        builder.core.stream.put(records.Accounted(self.path, entry))

    def request(self, messages: list[Any] | None = None, /, **payload: Any) -> None:
        """Set what the op sends. A list of *messages* is pooled: what was sent before is stored once."""
        self.builder.set_request(self, payload, payload.pop("messages", messages))

    def response(self, payload: object) -> None:
        """Set what the op got back."""
        self.builder.set_response(self, payload)

    def end(self, status: Status = _OK, error: str | None = None, *, reasoning: str | None = None, **attributes: Any) -> None:
        """End the op, with its latency; the second call does nothing. An attempt or call without accounting gets its entry here.

        *reasoning* is the final reasoning text; *attributes* are merged into those that the op began with.
        """
        node = self.bare
        core = self.builder.core
        known: Status = "ok"
        said: str | None = None
        if status is not _OK or error is not None:
            known, strange = known_status(status)
            said = None if error is None and strange is None else core.text(error_text(strange if error is None else error))
        final = None if reasoning is None else core.text(text(reasoning))
        block = core.attributes(attributes) if attributes else UNSET
        stream = core.stream
        held = stream.enter()
        try:
            if node.ended_at is not None:
                return
            latency = (monotonic() - self._t0) * 1e3
            if known != "ok" or not node.accounting:
                self._account_end(known, said, latency)
            if (stream.watched or not core.recorded) and (entries := self.pending()) is not None:
                stream.put(entries)  # whoever watches sees an op's lines before its end
            record = records.OpEnd(self.path, core.now_ms(), known, latency, said, final, block)
            apply.end_op(node, record)
            if self._logs is not None:
                self._place()
            core.ended[self.path] = node
            core.ops.pop(self.path, None)
            stream.put(record)
        finally:
            stream.leave(held)

    def _account_end(self, status: Status, error: str | None, latency: float) -> None:
        """Make sure that each attempt and each call is accounted for once, and as failed if it failed."""
        node = self.bare
        failed = status not in ("ok", "cancelled")
        if node.accounting:
            last = node.accounting[-1]
            if failed and last.status == "ok":
                last.status = "failed"
                last.error = last.error or error
                for session in self.builder.chain:
                    add_failure(session.totals, last)
                self.builder.core.stream.put(records.Accounted(self.path, last))
        elif node.kind in ("llm", "tool"):
            entry = self._entry("failed" if status != "ok" else "ok", latency)
            entry.error = error
            if node.kind == "tool":
                entry.characters_in = node.request.size if node.request else 0
                entry.characters_out = node.response.size if node.response else 0
            self._add(entry)

    def pending(self) -> records.Entries | None:
        """Return the entries that are not delivered yet, once. Within a step, or called by the stream.

        They go to the node when it is asked for, or has ended: going there each time would copy those of a long op again and again.
        """
        core, node, raw = self.builder.core, self.bare, self._raw
        if self._taking:  # a finalizer or a signal's handler came back to here: what it brought marks the op again
            return None
        self._clean = core.recorded  # before the list is read: an entry appended now marks the op again
        if not raw:
            return None
        self._taking = True
        try:
            batch = raw[:]
            if core.redacted:
                batch[1::3] = map(core.text, batch[1::3])
            logs, chunks = read_entries(batch)
            record = records.Entries(
                self.path,
                len(node.logs) + len(self._logs or ()),
                tuple(logs),
                len(self._chunks or ()) + (len(node.reasoning.chunks) if node.reasoning is not None else 0),
                tuple(chunks),
            )
            if self._logs is None or self._chunks is None:
                self._logs, self._chunks = logs, chunks
            else:
                self._logs += logs
                self._chunks += chunks
            del raw[: len(batch)]
        finally:
            self._taking = False
        if node.ended_at is not None:
            self._place()
            core.touched.add(self.path)
        return record

    def after_fork(self) -> None:
        """In a forked child: leave to the parent what it has not delivered yet."""
        self._taking = False  # the parent's thread may have been at it
        self.pending()

    def _place(self) -> None:
        """Add to the node what was delivered since the last time."""
        logs, chunks = self._logs, self._chunks
        self._logs = self._chunks = None
        apply.add_entries(self.bare, logs or (), chunks or ())

    def settle(self) -> bool:
        """Deliver the entries that are pending, and bring them to the node; False if another thread held the lock too long."""
        stream = self.builder.core.stream
        held = stream.enter()
        try:
            if held is not None:
                if (entries := self.pending()) is not None:
                    stream.put(entries)
                self._place()
            return held is not None
        finally:
            stream.leave(held)

    def _mark(self) -> None:
        self._clean = False
        self.builder.core.stream.defer(self)


def read_entries(batch: list[Any]) -> tuple[list[LogEntry], list[ReasoningChunk]]:
    """Return the log lines and the chunks of reasoning that raw entries are."""
    logs: list[LogEntry] = []
    chunks: list[ReasoningChunk] = []
    items = iter(batch)
    for time, said, more in zip(items, items, items, strict=True):
        if more is None:
            logs.append(LogEntry(time * 1e3, _VRB, said))
        elif more is True:
            chunks.append(ReasoningChunk(said, time * 1e3))
        else:
            severity, direction, details = more
            logs.append(LogEntry(time * 1e3, severity, said, direction, details))
    return logs, chunks


@lru_cache(256)
def provider_and_model(name: str) -> tuple[str | None, str | None]:
    """Return the two parts of an llm op's name; None for one that names neither."""
    provider, colon, model = name.partition(":")
    return (provider, model) if colon else (None, None)
