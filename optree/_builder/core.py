"""What all builders of one root session share: its stream, clock, pool and options."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast
from weakref import WeakMethod

from msgspec import UNSET, Raw, Struct, UnsetType

from optree import _clock as clock
from optree import _records as records
from optree._builder.histories import PooledHistory, SentHistories, SentMessage, copied
from optree._builder.stream import Stream
from optree._ids import content_id
from optree._interrupts import pass_on
from optree._nodes import ATTRIBUTES_WITH_CONTENT, NOT_RECORDED, AccountingEntry, Message, OperationNode, Payload, Pool, SessionNode
from optree._providers.prices import PRICES, Price, billed
from optree._tree import apply
from optree._values import MAX_ITEMS, MAX_TEXT, cut, decode, encode, is_object, is_plain, plain, text
from optree.redaction import StreamRedactor, redact

if TYPE_CHECKING:
    from optree._builder.content import Withheld
    from optree._builder.handles import Op
    from optree._builder.session_tree import SessionTreeBuilder

Cycles = Literal["mark", "block"]
_PAUSE_SECONDS = 0.02
_MOST_REPORTED = 1000
POOL_BYTES = 512
"""A member of a request at least this long is stored once and referred to."""


class Encoded(Struct, frozen=True):
    """An attribute block that is JSON already; it holds no credential that this session is to be saved without."""

    data: Raw


class Request(NamedTuple):
    """A request as JSON bytes: its members, and of its history what was sent before, and the messages that are new."""

    kind: str
    parts: list[tuple[bytes, bytes]]
    sent: list[SentMessage]
    history: list[tuple[Any, bytes]] | None
    """Each message with a copy of its source; a history is remembered up to the first message without a copy."""
    pooled: PooledHistory | None = None
    """A history that is in the pool already."""
    size: int | None = None
    """The bytes of what was sent, where that is not what is recorded."""


class Core:
    """One root session's shared state; *base* is added to indices given in sessions that this process does not own.

    Times are never before *latest*, in epoch ms: a resumed session goes on after what it has.
    """

    __slots__ = (
        *("txn", "stream", "recorded", "now", "cycles", "redacted", "content", "pool", "base", "epoch", "ops", "late", "ended"),
        *("touched", "builders", "numbers", "histories", "listeners", "streamed", "priced", "unread"),
        *("_latest", "_reported", "__weakref__"),
    )

    def __init__(
        self,
        txn: str,
        stream: Stream | None,
        *,
        now: clock.Clock,
        cycles: Cycles = "mark",
        redacted: bool = False,
        content: bool = True,
        pool: Pool | None = None,
        base: int = 0,
        latest: float = 0.0,
    ) -> None:
        self.txn = txn
        self.stream = stream or Stream([])
        self.recorded = stream is not None
        self.now = now
        self.cycles: Cycles = cycles
        self.redacted = redacted or not content
        self.content = content
        """False where nothing of what is said is recorded; such a session is redacted too."""
        self.streamed: dict[str, dict[bool, StreamRedactor | Withheld]] = {}
        """Of ops in a session that is saved redacted: the reasoning (True) and the answer (False) that are being streamed."""
        self.pool = pool or Pool()
        self.base = base
        self._latest = latest
        self.epoch = 0
        """Rises at a fork: counters of an older epoch are the parent process's."""
        self.ops: dict[str, Op] = {}
        """Handles of open ops by path. Those of ended ops are let go: a handle for each would keep the collector busy."""
        self.late: dict[str, Op] = {}
        """Handles of some ended ops by path: of those to which something was given by their ids since."""
        self.ended: dict[str, OperationNode] = {}
        """Nodes of this process's ended ops by path, for those who hold only the id."""
        self.touched: set[str] = set()
        """What has changed after its end, for the next snapshot: paths of ops and of sessions, and ``<turn>.1`` for a turn."""
        self.builders: dict[str, SessionTreeBuilder] = {}
        """Builders of this process's sessions, by path."""
        self.histories = SentHistories()
        """What was sent, so that it is not encoded again."""
        self.numbers = count(1)
        """Numbers of accounting entries."""
        self.listeners: list[Callable[[str], None]] = []
        """Called with the session's path when a session has ended."""
        self.priced: set[str] = set()
        """Names of the prices that the root session's attributes have."""
        self.unread: dict[str, WeakMethod[Callable[[float], object]]] = {}
        """By an op's path, what has the pieces of an answer read that have come, waiting until a monotonic time at most: called ahead of
        the end of a turn or session around it."""
        self._reported: set[str] = set()

    def settle(self, patience: float = 0.0) -> bool:
        """Bring the entries that were given so far to their nodes; False if other threads hold the lock for *patience* seconds more."""
        held = self.stream.enter()
        until = monotonic() + patience
        while held is None and monotonic() < until:
            sleep(_PAUSE_SECONDS)
            held = self.stream.enter()
        try:
            if held is not None:
                self.stream.flush()
                for op in [*self.ops.values(), *self.late.values()]:
                    op.settle()
            return held is not None
        finally:
            self.stream.leave(held)

    def new_stream_redactor(self) -> StreamRedactor | Withheld:
        """Return what a streamed text passes through."""
        if self.content:
            return StreamRedactor()
        from optree._builder.content import Withheld  # as all of it, not before it is needed: this module is imported with optree

        return Withheld()

    def leave_out_content(self) -> None:
        """Record no content from here on."""
        self.content, self.redacted = False, True

    def first_time(self, what: str) -> bool:
        """Tell whether a problem is reported for the first time: what thousands of calls do wrong is reported once."""
        if what in self._reported or len(self._reported) >= _MOST_REPORTED:
            return False
        self._reported.add(what)
        return True

    def time(self, at: float | None) -> float:
        """Return *at*, in epoch milliseconds, where that is a time; else now."""
        return float(at) if isinstance(at, (int, float)) else self.now_ms()

    def now_ms(self) -> float:
        """Return the wall time in epoch milliseconds; it stands still rather than go back when the clock is set back."""
        now = self.now() * 1e3
        if now < self._latest:
            return self._latest
        self._latest = now
        return now

    def report(self, value: object) -> Raw:
        """Return a session's result as JSON."""
        return Raw(self._data(value if self.content else NOT_RECORDED))

    def said(self, content: str) -> str:
        """Return a text of a user or a model."""
        return self.text(content) if self.content else NOT_RECORDED

    def text(self, content: str) -> str:
        """Return a text of the program, without credentials if the session is saved redacted."""
        return redact(content) if self.redacted else content

    def after_fork(self, base: int) -> None:
        """Take up counters of one's own in a forked child."""
        self.count_from(base)
        for op in [*self.ops.values(), *self.late.values()]:
            op.after_fork()
        self.streamed.clear()  # texts of the parent that are held back are the parent's to write

    def count_from(self, base: int) -> None:
        """Take up counters of a writer's own."""
        self.base = base
        self.epoch += 1
        self.numbers = count(base + 1)

    def is_own(self, path: str) -> bool:
        """Tell whether this process has given a node its path; one that was forked may go on in what its parent has begun."""
        return not self.base or any(int(number) > self.base for number in path.split("."))

    def numbers_in(self, path: str) -> Iterator[int]:
        """Return the counter for turns of a session, or ops of a turn, that another process owns: one for all that begin there."""
        return self.stream.numbers.setdefault(path, count(self.base + 1))

    def price(self, entry: AccountingEntry, chain: list[SessionNode]) -> None:
        """Give an entry without a cost the one that its tokens have, if that is known; before it is added, or when its tokens become known.

        *chain* are the sessions that it is in, from the lowest up. The root session gets the price, also if another process has that.
        """
        tokens = entry.tokens
        if not PRICES.on or entry.cost_usd is not None or tokens is None or not tokens.total_tokens:
            return
        try:
            price, hour = PRICES.find(entry)
            if price is None or (cost := price.cost(billed(entry, tokens), hour)) is None:
                return
            details = price.details if entry.details is UNSET else apply.merged(entry.details, price.details)
            if price.name not in self.priced:
                self.stream.step(partial(self._keep, price, chain[-1]))
            entry.details, entry.cost_usd = details, cost
        except Exception as error:  # noqa: BLE001 - a price that cannot be had must not take the entry along
            pass_on(error)
            self.stream.fault(error)

    def _keep(self, price: Price, highest: SessionNode, put: Callable[[records.Record], None]) -> None:
        record = records.SessionSet("", self.now_ms(), prices=price.snapshot)
        if not highest.path:
            apply.set_session(highest, record)
        put(record)
        self.priced.add(price.name)

    def attributes(self, block: object) -> Raw | UnsetType:
        """Return an attribute block as JSON; a value that is not a mapping becomes the block's member ``value``."""
        if block is None:
            return UNSET
        if type(block) is Encoded:
            return block.data
        if not self.content and is_object(block):
            block = {name: value for name, value in block.items() if name not in ATTRIBUTES_WITH_CONTENT}
        data = self._data(block)
        if not data.startswith(b"{"):
            data = b'{"value":%b}' % data
        return UNSET if data == b"{}" else Raw(data)

    def response(self, kind: str, value: object) -> Payload:
        """Return the response payload of an op of some kind, cut where it is too long."""
        if not self.content:
            from optree._builder.content import response_outline

            size = len(value) if type(value) is str else len(encode(value, MAX_ITEMS))
            return Payload(Raw(self._data(response_outline(kind, value))), None, size)
        data = self._data(value)
        size, whole = len(value) if type(value) is str else len(data), True
        if len(data) > MAX_TEXT:
            if type(value) is not str:
                data = encode(cut(data.decode(), MAX_TEXT // 2))
            whole = b"[TRUNCATED] Original size" not in data
        return Payload(Raw(data), None, size, None if whole else True)

    def short_request(self, kind: str, payload: Any) -> Payload | None:
        """Return a request of which nothing is long enough for the pool; None for others."""
        if self.redacted or type(payload) is not dict:
            return None
        data = encode(cast("object", payload), MAX_ITEMS)
        return Payload(Raw(data), kind, len(data)) if len(data) < POOL_BYTES else None

    def request(self, kind: str, messages: object, payload: object) -> Request:
        """Return a request encoded, not yet pooled: this may take long and run other people's code."""
        members: dict[Any, Any]
        if not self.content:
            return self._without_content(kind, messages, payload)
        if is_object(payload) and not self.redacted:
            members = payload
        else:
            known = plain(payload, MAX_ITEMS)
            members = known if is_object(known) else {"value": known}
        parts = [self._member(key, value) for key, value in members.items()]
        history: list[tuple[Any, bytes]] | None = None
        sent: list[SentMessage] = []
        if type(messages) is list or type(messages) is tuple:
            several = list(cast("list[object]", messages))
            sent = [] if self.redacted else self.histories.find(several)
            history = [self._message(message) for message in several[len(sent) :]]
        elif type(messages) is PooledHistory:
            return Request(kind, parts, sent, None, messages)
        elif messages is not None:  # plain text is one value, and an iterator is the program's to use
            parts.append((b'"messages"', self._data(messages)))
        return Request(kind, parts, sent, history)

    def _without_content(self, kind: str, messages: Any, payload: Any) -> Request:
        from optree._builder.content import request_outline

        parts = [self._member(key, value) for key, value in request_outline(kind, payload).items()]
        history: list[tuple[Any, bytes]] | None = None
        if isinstance(messages, PooledHistory):  # of outlines, by `appended`
            return Request(kind, parts, [], None, messages)
        if isinstance(messages, (list, tuple)):
            history = [(None, self._entry(message)) for message in cast("list[object]", messages)]
        elif messages is not None:
            parts.append((b'"messages"', encode(NOT_RECORDED)))
        whole: dict[Any, Any] = payload if is_object(payload) else {"value": payload}
        whole = whole if messages is None else {**whole, "messages": cast("object", messages)}
        return Request(kind, parts, [], history, size=len(encode(whole, MAX_ITEMS)))

    def pooled(self, request: Request, new: records.Pooled | None = None) -> tuple[records.Pooled, Payload]:
        """Return a request's payload, its history and long members in the pool, and what is new there, in *new* first."""
        new = records.Pooled() if new is None else new
        held = [b"%b:%b" % (key, self._held(data, new)) for key, data in request.parts]
        size = sum(len(key) + len(data) + 2 for key, data in request.parts)
        history = request.pooled
        if request.history is not None:
            sent = request.sent[:]
            number = len(sent)
            _, head, length = sent[-1] if sent else SentMessage(None, "", 0)
            for copy, data in request.history:
                head, length = self._link(head, self._blob(data, new), new), length + len(data)
                if copy is not None and len(sent) == number:
                    sent.append(SentMessage(copy, head, length))
                number += 1
            if sent:
                self.histories.keep(sent)
            history = PooledHistory(head, number, length)
        if history is not None:
            reference = encode({"$history": history.link, "count": history.length, "bytes": history.size})
            held.append(b'"messages":%b' % reference)
            size += history.size + max(1, history.length) + 1 + len('"messages":,')
        return new, Payload(Raw(b"{%b}" % b",".join(held)), request.kind, request.size or size + (1 if held else 2))

    def appended(self, history: PooledHistory, message: object) -> PooledHistory:
        """Return a history with one message more, which is in the pool by then: it costs what the message does, however long it is."""
        data, new = self._entry(message), records.Pooled()
        link = self._link(history.link, self._blob(data, new), new)
        self.stream.step(lambda put: put(new))
        return PooledHistory(link, history.length + 1, history.size + len(data))

    def message(self, body: Any, identity: object = None, substance: object = None, cause: object = ()) -> Message:
        """Return a transcript entry; *body* is a message as the provider takes it, or plain text of the user."""
        if isinstance(body, str):
            body = {"role": "user", "content": body}
        data = Raw(self._entry(body))
        role = cast("dict[str, Any]", body).get("role") if type(body) is dict and self.content else None
        if type(role) is not str:
            decoded = decode(data)  # which ends the process where memory runs out in it (msgspec 0.22): not where it is not needed
            role = decoded.get("role") if is_object(decoded) else None
        known = role if isinstance(role, str) else "unknown"
        return Message(self.now_ms(), known, data, _name(identity), _name(substance), _names(cause))

    def _data(self, value: object) -> bytes:
        return encode(redact(plain(value, MAX_ITEMS)) if self.redacted else value, MAX_ITEMS)

    def _entry(self, message: object) -> bytes:
        """Return a message as JSON, as far as it is recorded."""
        if not self.content:
            from optree._builder.content import message_outline

            message = message_outline(message)
        return self._data(message)

    def _message(self, message: Any) -> tuple[Any, bytes]:
        """Return a message as JSON, behind a copy of it; None for one that is not plain data."""
        if self.redacted or not isinstance(message, dict) or not is_plain(cast("object", message)):
            return None, self._data(cast("object", message))
        copy = copied(cast("object", message))
        return copy, self._data(copy)

    def _member(self, key: object, value: object) -> tuple[bytes, bytes]:
        """Return a name and its value as JSON, read together: the name may say that the value is a secret, or be one."""
        member: dict[Any, Any] = {key: value}
        if self.redacted:
            member = redact(plain(member, MAX_ITEMS))
        [name] = member
        quoted = encode(text(name))
        return quoted, encode(member, MAX_ITEMS)[len(quoted) + 2 : -1]

    def _held(self, data: bytes, new: records.Pooled) -> bytes:
        return b'{"$blob":"%b"}' % self._blob(data, new).encode() if len(data) >= POOL_BYTES else data

    def _blob(self, data: bytes, new: records.Pooled) -> str:
        blob = content_id(data)
        if blob not in self.pool.blobs:
            new.blobs[blob] = self.pool.blobs[blob] = Raw(bytes(memoryview(data)))  # a copy without the encoder's spare room
        return blob

    def _link(self, previous: str, blob: str, new: records.Pooled) -> str:
        link = content_id(previous.encode(), blob.encode())
        if link not in self.pool.links:
            new.links.append((link, previous, blob))
            self.pool.links[link] = (previous, blob)
        return link


def _name(identity: object) -> str | None:
    return None if identity is None else text(identity)


def _names(cause: object) -> tuple[str, ...]:
    if cause is None:
        return ()
    several = cast("list[object]", cause) if isinstance(cause, (list, tuple)) else [cause]
    return tuple(text(item) for item in several)
