"""What all builders of one root session share: its stream, clock, pool and options."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal

from msgspec import Raw

from optree import clock, records
from optree.builder.stream import Stream
from optree.ids import content_id
from optree.nodes import Message, Payload, Pool
from optree.values import decode, drop_credentials, encode, is_object, plain, redact

if TYPE_CHECKING:
    from optree.builder.handles import Op

Cycles = Literal["mark", "block"]
POOL_BYTES = 512
"""A member of a request at least this long is stored once and referred to."""


class Core:
    """One root session's shared state; *base* is added to indices given in sessions that this process does not own."""

    def __init__(
        self,
        txn: str,
        stream: Stream | None,
        *,
        now: clock.Clock,
        cycles: Cycles = "mark",
        redacted: bool = False,
        pool: Pool | None = None,
        base: int = 0,
    ) -> None:
        self.txn = txn
        self.stream = stream or Stream([])
        self.recorded = stream is not None
        self.now = now
        self.cycles: Cycles = cycles
        self.redacted = redacted
        self.pool = pool or Pool()
        self.base = base
        self.epoch = 0
        """Rises at a fork: counters of an older epoch are the parent process's."""
        self.ops: dict[str, Op] = {}
        """Open and ended ops by id and by path, for those who hold only the id."""
        self.touched: set[str] = set()
        """Paths of ops that were changed after their end."""
        self.listeners: list[Callable[[str], None]] = []
        """Called with the session's path when a session has ended."""

    def now_ms(self) -> float:
        """Return the wall time in epoch milliseconds."""
        return self.now() * 1e3

    def json(self, value: object) -> Raw:
        """Return a value as JSON, without credentials if the session is saved redacted."""
        return Raw(self._data(value))

    def text(self, found: str) -> str:
        """Return a text, without credentials if the session is saved redacted."""
        return redact(found) if self.redacted else found

    def after_fork(self, base: int) -> None:
        """Take up counters of one's own in a forked child."""
        self.base = base
        self.epoch += 1

    def request(self, kind: str, messages: list[Any] | None, members: Mapping[str, Any]) -> tuple[records.Pooled, Payload]:
        """Return a request payload whose history and long members stand in the pool, and what is new in the pool."""
        new = records.Pooled()
        members = dict(members)
        if isinstance(members.get("headers"), Mapping):
            members["headers"] = drop_credentials(members["headers"])
        payload = {key: self._data(value) for key, value in members.items()}
        size = 2 + sum(len(key) + len(data) + 4 for key, data in payload.items())
        for key, data in payload.items():
            if len(data) >= POOL_BYTES:
                payload[key] = b'{"$blob":"%b"}' % self._blob(data, new).encode()
        if messages is not None:
            head, length = "", 0
            for message in messages:
                data = self._data(message)
                length += len(data)
                head = self._link(head, self._blob(data, new), new)
            size += length
            payload["messages"] = encode({"$history": head, "count": len(messages), "bytes": length})
        joined = b",".join(b"%b:%b" % (encode(str(key)), data) for key, data in payload.items())
        return new, Payload(Raw(b"{%b}" % joined), kind, size)

    def message(self, body: Any) -> Message:
        """Return a transcript entry; *body* is a message as the provider takes it, or plain text of the user."""
        if isinstance(body, str):
            body = {"role": "user", "content": body}
        data = self.json(body)
        found = decode(data)
        role = found.get("role") if is_object(found) else None
        return Message(self.now_ms(), role if isinstance(role, str) else "unknown", data)

    def _data(self, value: object) -> bytes:
        return encode(redact(plain(value)) if self.redacted else value)

    def _blob(self, data: bytes, new: records.Pooled) -> str:
        blob = content_id(data)
        if blob not in self.pool.blobs:
            self.pool.blobs[blob] = new.blobs[blob] = Raw(data)
        return blob

    def _link(self, previous: str, blob: str, new: records.Pooled) -> str:
        link = content_id(previous.encode(), blob.encode())
        if link not in self.pool.links:
            self.pool.links[link] = (previous, blob)
            new.links.append((link, previous, blob))
        return link
