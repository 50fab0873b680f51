"""Console lines: records in, lines on stderr out, one write a line. Stdout belongs to the agent.

Each line belongs to exactly one node. What options change is which lines there are, never their form. Credentials are replaced in each
value before it becomes part of a line; streamed reasoning is held back until a line of it is whole, or its op ends.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from msgspec import UNSET, Struct

from optree import _records as r
from optree._builder.core import Core
from optree._builder.stream import Wants
from optree._builder.subscriber import Subscriber
from optree._interrupts import suppress
from optree._nodes import AS_TOLD, AccountingEntry, OperationNode, Pool, SessionNode, Severity
from optree._records import Record
from optree._syscalls import calls
from optree._tree import walk_sessions
from optree._tree.path import parent_label
from optree._tree.text import ENDED
from optree._tree.totals import dollars, has_unknown_cost
from optree._values import cut, decode, encode, is_list, is_object
from optree._visible import ASCII_MARKS, one_line
from optree.redaction import StreamRedactor, redact

TRACE_CHARACTERS = 4096
LINE_BYTES = 8192
"""Most that one line has, with the notice that it was cut."""
KEPT_OPS = 1024
_COLOURS = {"ERR": "31", "WRN": "33", "FIN": "36", "TRC": "90", "VRB": "90", "THK": "2;37"}
_QUIET = Wants(
    frozenset({r.SessionBegin, r.SessionResume, r.SessionEnd, r.OpEnd, r.Entries}), severities=frozenset({"WRN", "ERR"}), failures=True
)


class LineOptions(Struct, frozen=True):
    """Which lines are shown: warnings and errors always, summaries if *verbose*, payloads of LLM or tool ops if traced."""

    verbose: bool = False
    trace_llm: bool = False
    trace_tools: bool = False
    colour: bool = False

    @property
    def wants(self) -> Wants | None:
        """What of a session's records its lines are made of; None for all."""
        return None if self.verbose or self.trace_llm or self.trace_tools else _QUIET


class Line(NamedTuple):
    """One line, and what it is about: names in it may look like anything."""

    path: str
    severity: str
    text: str
    bare: str
    """Without colour."""


class _Op(Struct):
    kind: str
    name: str
    entry: AccountingEntry | None = None
    size: int | None = None


class LineRenderer:
    """Renders one root session; remembers what is open, and what ended a moment ago."""

    def __init__(self, txn: str, options: LineOptions, pool: Pool | None = None) -> None:
        """Render for *txn*; *pool* has what requests refer to so far, and gets what is pooled from now on if payloads are traced."""
        self._txn = txn
        self._options = options
        self._pool = pool or Pool()
        self._agents: dict[str, str] = {}
        self._ops: dict[str, _Op] = {}
        self._ended: deque[str] = deque()
        self._thoughts: dict[str, StreamRedactor] = {}
        """The reasoning that is held back, by the path of its op."""
        self.node: Callable[[str], OperationNode | None] = _unknown
        """Returns the node of an op whose begin was not among the records."""

    def know(self, path: str, agent: str) -> None:
        """Learn whose session is at *path*."""
        self._agents[path] = agent

    def refer(self, pool: Pool) -> None:
        """Learn what requests of a session that began before refer to."""
        self._pool = pool

    def render(self, record: r.Record) -> Iterator[str]:
        """Yield the lines of one record, without newlines."""
        return (line.text for line in self.lines(record))

    def lines(self, record: r.Record) -> Iterator[Line]:
        """Yield the lines for a record, each with the path and severity that it is about."""
        match record:
            case r.SessionBegin():
                self.know(record.path, record.agent)
                yield from self._line(record.path, "VRB", "→", "session", self._agent(record.path), "begins")
            case r.SessionResume():
                yield from self._line(record.path, "VRB", "→", "session", self._agent(record.path), "goes on")
            case r.SessionEnd():
                severity = "FIN" if record.status in ("ok", None) else _severity(record.status)
                outcome = _outcome(record.status, record.error)
                yield from self.rest(record.path)
                yield from self._line(record.path, severity, "←", "session", self._agent(record.path), outcome)
            case r.TurnBegin():
                prompt = redact(record.prompts or {}).get("user", "")
                yield from self._line(record.path, "VRB", "→", "turn", record.path.rpartition(".")[2], prompt[:200])
            case r.TurnEnd():
                yield from self._turn_end(record)
            case _:
                yield from self._of_op(record)

    def _of_op(self, record: r.Record) -> Iterator[Line]:
        match record:
            case r.OpBegin():
                self._ops[record.path] = _Op(record.kind, redact(record.name))
            case r.Requested():
                yield from self._payload(record.path, "→", record.request.payload, _request(record))
            case r.Responded():
                self._op(record.path).size = record.response.size
                yield from self._payload(record.path, "←", record.response.payload, "")
            case r.Accounted():
                self._op(record.path).entry = record.entry
            case r.Entries():
                yield from self._entries(record)
            case r.Pooled():
                self._collect(record)
            case r.OpEnd():
                yield from self._rest(record.path)
                op = self._op(record.path)
                self._forget(record.path)
                if op.kind == "session":  # the sub-agent's own end says it
                    return
                severity = "VRB" if record.status in ("ok", None) else _severity(record.status)
                yield from self._op_line(record.path, severity, "←", _response(op, record))
            case _:
                return

    def _collect(self, record: r.Pooled) -> None:
        """Keep what requests refer to, where they are shown."""
        if self._options.trace_llm or self._options.trace_tools:
            self._pool.blobs.update(record.blobs)
            self._pool.links.update({link: (previous, blob) for link, previous, blob in record.links})

    def _turn_end(self, record: r.TurnEnd) -> Iterator[Line]:
        number = record.path.rpartition(".")[2]
        if record.status != "ok":
            yield from self._line(record.path, "VRB", "←", "turn", number, _outcome(record.status, record.error))

    def _entries(self, record: r.Entries) -> Iterator[Line]:
        if record.chunks and self._options.verbose:
            held = self._thoughts.get(record.path) or self._thoughts.setdefault(record.path, StreamRedactor())
            thought = "".join(held.feed(chunk.text) for chunk in record.chunks)
            yield from self._op_line(record.path, "THK", "←", thought) if thought else ()
        for entry in record.logs:
            side = "←" if entry.direction == "response" else "→"
            details, agent = ("", "") if entry.details is UNSET else _details(decode(entry.details))
            yield from self._op_line(record.path, entry.severity, side, redact(entry.message) + details, agent)

    def rest(self, below: str = "") -> Iterator[Line]:
        """Yield what is held back of the reasoning of ops at a path and below it: nothing more comes."""
        for path in [path for path in self._thoughts if not below or path == below or path.startswith(f"{below}.")]:
            yield from self._rest(path)

    def _rest(self, path: str) -> Iterator[Line]:
        held = self._thoughts.pop(path, None)
        thought = held.close() if held is not None else ""
        yield from self._op_line(path, "THK", "←", thought) if thought else ()

    def _payload(self, path: str, side: str, payload: Any, summary: str) -> Iterator[Line]:
        if summary:
            yield from self._op_line(path, "VRB", side, summary)
        if self._traced(path):
            yield from self._op_line(path, "TRC", side, cut(_json(_opened(resolved(payload, self._pool))), TRACE_CHARACTERS))

    def _op_line(self, path: str, severity: str, side: str, message: str, agent: str = "") -> Iterator[Line]:
        op = self._op(path)
        if severity == "TRC" and not self._traced(path):
            return
        yield from self._line(path, severity, side, op.kind, op.name, message, agent)

    def _line(self, path: str, severity: str, side: str, kind: str, name: str, message: str, agent: str = "") -> Iterator[Line]:
        if severity not in ("WRN", "ERR", "TRC") and not self._options.verbose:
            return
        line = f"[txn:{self._txn}] [path:{path}] {redact(agent) or self._agent(path)} [{severity}] {side} {kind} {name}: {message}"
        line = _capped(one_line(line))
        shown = f"\x1b[{_COLOURS.get(severity, '0')}m{line}\x1b[0m" if self._options.colour else line
        yield Line(path, severity, shown, line)

    def _traced(self, path: str) -> bool:
        return self._options.trace_llm if self._op(path).kind == "llm" else self._options.trace_tools

    def _op(self, path: str) -> _Op:
        if (known := self._ops.get(path)) is not None:
            return known
        if (node := self.node(path)) is not None:
            entry, response = node.accounting[-1] if node.accounting else None, node.response
            return _Op(node.kind, redact(node.name), entry, None if response is None else response.size)
        return self._ops.setdefault(path, _Op("system", "unknown"))

    def _forget(self, path: str) -> None:
        """Forget an op some time after its end: entries come up to 10 ms behind structure."""
        self._ended.append(path)
        if len(self._ended) > KEPT_OPS:
            self._ops.pop(self._ended.popleft(), None)

    def _agent(self, path: str) -> str:
        """Return the agent whose session a node belongs to; a child session's own path is that of its op."""
        while path and path not in self._agents:
            path = parent_label(path)
        agent: str = redact(self._agents.get(path, "-"))
        return agent


def _unknown(_path: str) -> None:
    return None


def _is_bad_end(record: Record) -> bool:
    return isinstance(record, r.SessionEnd) and record.status not in ("ok", None)


def _details(details: Any) -> tuple[str, str]:
    """Return a log line's details as it ends with them, and the agent that it names as its own, if a file that it came from does."""
    original = details.pop(AS_TOLD, None) if is_object(details) else None
    members = original.get("members") if is_object(original) else None
    agent = members.get("agentId") if is_object(members) else None
    return f" {_json(details)}" if details or original is None else "", agent if isinstance(agent, str) else ""


def _severity(status: str | None) -> Severity:
    return "ERR" if status == "failed" else "WRN"


def _outcome(status: str | None, error: str | None) -> str:
    word = ENDED if status is None else status
    return f"{word}: {redact(error)}" if error else word


def resolved(payload: Any, pool: Pool) -> Any:
    """Return a payload decoded, with what it refers to in its place; a history that is not all there says so in front."""
    result = decode(payload)
    whole = pool.resolve(result)
    if is_object(result) and is_object(whole):
        for name, value in result.items():
            count = value.get("count") if is_object(value) and is_list(whole[name]) and "$history" in value else None
            lost = count - len(whole[name]) if isinstance(count, int) else 0
            if lost > 0:
                whole[name].insert(0, {"$lost": f"{lost} earlier messages"})
    return whole


def _opened(payload: Any) -> Any:
    from optree._providers.messages import opened  # not before it is needed: this module is imported with optree

    return opened(payload)


def _capped(line: str) -> str:
    data = line.encode("utf-8", "replace")
    if len(data) <= LINE_BYTES:
        return line
    notice = f" [TRUNCATED] Original size {len(data)} bytes; truncated to {LINE_BYTES} bytes."
    return data[: LINE_BYTES - len(notice)].decode("utf-8", "ignore") + notice


def _json(value: Any) -> str:
    return encode(redact(value)).decode()


def _request(record: r.Requested) -> str:
    payload = decode(record.request.payload)
    history = payload.get("messages") if is_object(payload) else None
    if is_object(history) and "count" in history:
        count = history["count"]
        return f"request, {count} message{'' if count == 1 else 's'}, {record.request.size} bytes"
    return f"request, {record.request.size} bytes"


def _response(op: _Op, record: r.OpEnd) -> str:
    parts = [_outcome(record.status, record.error), f"latency {max(0.0, record.latency or 0.0):.0f} ms"]
    parts += [f"size {op.size}"] if op.size is not None else []
    if op.entry is not None and op.entry.tokens is not None:
        tokens = op.entry.tokens
        is_known = tokens.all_input_tokens or tokens.output_tokens  # no call takes none: that is unknown
        parts += [f"tokens {tokens.all_input_tokens:,}→{tokens.output_tokens:,}"] if is_known else []
        parts += [f"cached {tokens.cache_read_input_tokens:,}"] if tokens.cache_read_input_tokens else []
        parts += [f"written {tokens.cache_write_input_tokens:,}"] if tokens.cache_write_input_tokens else []
    if op.entry is not None and op.entry.cost_usd is not None:
        parts.append(f"cost {dollars(op.entry.cost_usd)}")
    elif op.entry is not None and has_unknown_cost(op.entry):
        parts.append("cost unknown")
    return ", ".join(parts)


class ConsoleWriter(Subscriber):
    """Prints the lines of one root session to *fd* (2, stderr), on a background thread."""

    def __init__(self, txn: str, options: LineOptions, fd: int = 2) -> None:
        super().__init__(self._print, "console")
        self.wants = options.wants
        self._renderer = LineRenderer(txn, options)
        self._renderer.node = self._node
        self._cores: list[Core] = []
        """Where ops are looked up that there is something to say of."""
        self._fd = fd
        self._encoding = calls.terminal_encoding(fd)

    def take(self, batch: list[Record]) -> None:
        """Queue records; where only problems are shown, the begin and the good end of a session wake no thread."""
        super().take(batch) if self.wants is None else self._take_problems(batch)

    def _take_problems(self, batch: list[Record]) -> None:
        for record in batch:
            if isinstance(record, r.SessionBegin):
                self._renderer.know(record.path, record.agent)
        if problems := [
            item for item in batch if not isinstance(item, r.SessionBegin | r.SessionResume | r.SessionEnd) or _is_bad_end(item)
        ]:
            super().take(problems)

    def introduce(self, root: SessionNode, pool: Pool | None = None) -> None:
        """Learn the agents of a session that began before, and what its requests refer to."""
        if pool is not None:
            self._renderer.refer(Pool(dict(pool.blobs), dict(pool.links)))
        for session in walk_sessions(root):
            self._renderer.know(session.path, session.agent_id)

    def look_in(self, core: Core) -> None:
        """Learn who knows the ops of the session, or of this process's part of it."""
        self._cores.append(core)

    def _node(self, path: str) -> OperationNode | None:
        for core in self._cores:
            op = core.ops.get(path)
            if (node := core.ended.get(path) if op is None else op.bare) is not None:
                return node
        return None

    def _print(self, record: Record) -> None:
        for line in self._renderer.render(record):
            with suppress(OSError):
                os.write(self._fd, line.encode(self._encoding, ASCII_MARKS) + b"\n")
