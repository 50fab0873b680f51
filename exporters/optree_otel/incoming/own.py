"""optree's own spans back into the tree that they came from: same paths, kinds, names, statuses, times, logs and sums.

Each span says by `optree.kind` and `optree.path` which node it was. They become records again, and the fold makes the tree: what is
missing among them, since its span was never sent, stands there as a placeholder, as after any other loss.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, get_args

import msgspec
from msgspec import UNSET, Raw, UnsetType

from optree import AccountingEntry, LogEntry, Op, Path, PathError, SessionNode, Tree, Turn, walk_sessions
from optree.exporting import (
    UNKNOWN,
    Accounted,
    Entries,
    OpBegin,
    OpEnd,
    OpKind,
    ReasoningChunk,
    Record,
    RecordedTree,
    Responded,
    SessionBegin,
    SessionEnd,
    SessionResume,
    SessionSet,
    Severity,
    Status,
    TurnBegin,
    TurnEnd,
    TurnSet,
    encode,
    is_object,
    last_index,
    node_id,
    text,
    txn_of,
)
from optree_otel.incoming import content
from optree_otel.incoming.conventions import count, parsed, usage
from optree_otel.incoming.recorder import SpanPlace
from optree_otel.incoming.spans import ERROR, InEvent, InSpan, Key
from optree_otel.signals import names

_OPS: Final[dict[str, OpKind]] = {"llm": "llm", "tool": "tool", "session_op": "session", "system": "system"}
_KINDS: Final = frozenset({"session", "turn", *_OPS})
_STATUSES: Final[dict[str, Status]] = {status: status for status in get_args(Status)}
_SEVERITIES: Final = get_args(Severity)
_OPEN: Final = "open"
_CLOSE: Final = "close"
_HEARTBEAT: Final = "heartbeat"
_CONVENTIONS: Final = ("optree.", "openinference.", "gen_ai.usage.", "gen_ai.agent.", "llm.", "otel.")
_CONSUMED: Final = frozenset(
    {names.OPERATION, names.PROVIDER, names.CONVERSATION, names.REQUEST_MODEL, names.TOOL_NAME, names.TOOL_TYPE, names.ERROR_TYPE,
     *names.OPENINFERENCE.values()}
)  # fmt: skip


def is_own(span: InSpan) -> bool:
    """Tell whether a span is one of optree's own."""
    kind = span.attributes.get(names.KIND)
    placed = names.PATH in span.attributes or kind == "session"  # some backends keep no empty text, which the root's path is
    return (isinstance(kind, str) and kind in _KINDS and names.TXN in span.attributes and placed) or _is_heartbeat(span)


def _is_heartbeat(span: InSpan) -> bool:
    return span.attributes.get(names.PHASE) == _HEARTBEAT


def own_sessions(spans: list[InSpan], notes: list[str]) -> tuple[list[Tree], dict[Key, SpanPlace]]:
    """Return the trees of optree's own spans, and where spans of others that happened inside them go."""
    trees: list[Tree] = []
    places: dict[Key, SpanPlace] = {}
    by_txn: dict[str, list[InSpan]] = {}
    for span in _once([span for span in spans if not _is_heartbeat(span)], notes):
        by_txn.setdefault(text(span.attributes[names.TXN]), []).append(span)
    for name, members in by_txn.items():
        txn = txn_of(name, "otel")
        if txn != name:
            notes.append(f"{name[:80]!r} cannot name a session: it is called {txn} here")
        fold = _folded(txn, members)
        tree = fold.finish()
        if fold.misplaced:
            notes.append(f"session {txn}: {fold.misplaced} spans have a path that does not fit their kind, and are passed over")
        _name_chains(tree.session)
        trees.append(tree)
        places |= _places(fold, members)
    return trees, places


def _once(spans: list[InSpan], notes: list[str]) -> list[InSpan]:
    """Return the spans with a txn and a path, each once; those that a live trace repeats come first, so that the canonical ones win."""
    by_id: dict[tuple[Any, ...], InSpan] = {}
    for span in sorted(spans, key=_order):
        if flaw := _flaw(_path(span)):
            notes.append(f"span {span.number} ({span.name!r}) is passed over: {flaw}")
            continue
        key = (span.trace_id, span.span_id)
        first = by_id.setdefault(key, span)
        if first is not span and msgspec.structs.replace(span, number=first.number) != first:
            notes.append(f"span {span.number} ({span.name!r}) is passed over: span {first.number} has the same id and says something else")
    return list(by_id.values())


def _path(span: InSpan) -> str:
    return text(span.attributes.get(names.PATH, ""))


def _flaw(path: str) -> str:
    """Return why a node cannot be placed; empty if it can."""
    try:
        Path.parse(path)
    except PathError as error:
        return str(error)
    return ""


def _order(span: InSpan) -> tuple[bool, int, int]:
    return span.attributes.get(names.PHASE) is None, count(span.attributes.get(names.ROUND)) or 0, span.number


def _folded(txn: str, spans: list[InSpan]) -> RecordedTree:
    fold = RecordedTree(txn)
    known = {(span.trace_id, span.span_id): span for span in spans}
    spans = [_in_place(span, known) for span in spans]
    ops = {(span.trace_id, span.span_id): _path(span) for span in spans if span.attributes[names.KIND] in _OPS}
    for span in spans:
        for record in _records(span, ops, fold):
            fold.apply(record)
    return fold


def _in_place(span: InSpan, known: dict[Key, InSpan]) -> InSpan:
    """Return a span with its node's parent: what closes an anchor stands below it."""
    anchor = known.get((span.trace_id, span.parent_id)) if span.attributes.get(names.PHASE) == _CLOSE else None
    return span if anchor is None else msgspec.structs.replace(span, parent_id=anchor.parent_id)


def _records(span: InSpan, ops: dict[Key, str], tree: RecordedTree) -> list[Record]:
    kind, path = span.attributes[names.KIND], _path(span)
    if kind == "session":
        return _session(span, path)
    if kind == "turn":
        return _turn(span, path)
    above = ops.get((span.trace_id, span.parent_id))
    same_turn = above is not None and above.rpartition(".")[0] == path.rpartition(".")[0]
    return _op(span, path, above if same_turn else None, tree)


def _session(span: InSpan, path: str) -> list[Record]:
    block = span.attributes
    agent = text(block.get(names.AGENT_NAME, UNKNOWN))
    kept = _own_attributes(span)
    if source := block.get(names.INGRESS):
        kept["ingress"] = {"source": source}
    if block.get(names.CYCLE):
        kept["cycle"] = True
    records: list[Record] = []
    if count(block.get(names.ROUND)):
        records.append(SessionResume(path, span.started_at))
    else:
        records.append(SessionBegin(path, span.started_at, agent, text(block.get(names.CALL_PATH, agent)), _raw(kept)))
    records += [SessionResume(path, event.time_ns / 1_000_000) for event in span.events if event.name == names.RESUMED]
    title, latest = block.get(names.TITLE), block.get(names.LATEST_STATUS)
    if title or latest:
        records.append(SessionSet(path, span.started_at, title, latest))
    report = block.get(names.FINAL_REPORT)
    final = UNSET if report is None else Raw(encode(parsed(report)))
    return records + _ended(span, lambda status, error: SessionEnd(path, span.ended_at, status, error, final))


def _turn(span: InSpan, path: str) -> list[Record]:
    call = content.of_llm(span)
    prompts = {
        message["role"]: message["content"]
        for message in call.messages or []
        if is_object(message) and message.get("role") in ("system", "user") and isinstance(message.get("content"), str)
    }
    records: list[Record] = [TurnBegin(path, span.started_at, prompts or None, _raw(_own_attributes(span)))]
    answer = call.answer.get("content") if is_object(call.answer) else None
    if isinstance(answer, str):
        records.append(TurnSet(path, {"content": answer}))
    return records + _ended(span, lambda status, error: TurnEnd(path, span.ended_at, status, error))


def _op(span: InSpan, path: str, above: str | None, tree: RecordedTree) -> list[Record]:
    kind = _OPS[span.attributes[names.KIND]]
    kept = _own_attributes(span)
    if kind == "llm":
        named = {"provider": span.attributes.get(names.PROVIDER), "model": span.attributes.get(names.REQUEST_MODEL)}
        kept = {**{key: value for key, value in named.items() if value and value != "unknown"}, **kept}
    if kind == "tool" and (provider := span.attributes.get(names.TOOL_PROVIDER)):
        kept["provider"] = provider
    records: list[Record] = [OpBegin(path, span.started_at, kind, _name(span, kind), above, _raw(kept))]
    logs = [_line(event, tree) for event in span.events if event.name == names.LOG]
    chunks = [
        ReasoningChunk(text(_attribute(event, names.REASONING_TEXT)), event.time_ns / 1_000_000)
        for event in span.events
        if event.name == names.REASONING
    ]
    if logs or chunks:
        records.append(Entries(path, 0, tuple(logs), 0, tuple(chunks)))
    records += _exchange(span, path, kind, tree)
    if (entry := _entry(span, path, kind, tree.txn)) is not None:
        records.append(Accounted(path, entry))
    latency = span.ended_at - span.started_at
    return records + _ended(span, lambda status, error: OpEnd(path, span.ended_at, status, latency, error))


def _exchange(span: InSpan, path: str, kind: OpKind, tree: RecordedTree) -> list[Record]:
    records: list[Record] = []
    if kind == "llm":
        call = content.of_llm(span)
        answer = call.answer
        if call.messages is not None or call.members:
            model = span.attributes.get(names.REQUEST_MODEL)
            members = {**({"model": model} if model else {}), **call.members}
            records.append(tree.request(path, span.started_at, members, call.messages, kind="llm"))
    else:
        arguments, answer = content.of_tool(span.attributes)
        if arguments is not None:
            request = arguments if is_object(arguments) else {"arguments": arguments}
            records.append(tree.request(path, span.started_at, request))
    if answer is not None:
        records.append(Responded(path, span.ended_at, tree.response(answer)))
    return records


def _entry(span: InSpan, path: str, kind: OpKind, txn: str) -> AccountingEntry | None:
    """Return all that an op's attempts took as one entry; None if its span says nothing of it."""
    block = span.attributes
    took = usage(block)
    status, _ = _status(span)
    failed = status in ("failed", "interrupted")
    if kind == "llm" and not (took.has_figures or names.INPUT_TOKENS in block):
        return None
    if kind != "llm" and not (took.has_figures or names.CHARACTERS_IN in block):
        return None
    entry = AccountingEntry(f"{node_id(txn, path)}#1", span.ended_at, "llm" if kind == "llm" else "tool", "failed" if failed else "ok")
    entry.latency = span.ended_at - span.started_at
    entry.cost_usd, entry.upstream_inference_cost_usd = took.cost_usd, took.upstream_cost_usd
    if kind == "llm":
        entry.tokens = took.tokens
        entry.provider, _, entry.model = _name(span, kind).partition(":")
        answered = block.get(names.RESPONSE_MODEL)
        entry.actual_model = text(answered) if answered and answered != entry.model else None
        return entry
    entry.tokens = took.tokens if took.tokens.total_tokens else None
    entry.command = _name(span, kind)
    entry.characters_in, entry.characters_out = count(block.get(names.CHARACTERS_IN)) or 0, count(block.get(names.CHARACTERS_OUT)) or 0
    server = block.get(names.MCP_SERVER)
    entry.mcp_server = text(server) if server else None
    return entry


def _name(span: InSpan, kind: OpKind) -> str:
    """Return an op's name: as its span has it, else as the conventions spread it over attributes."""
    block = span.attributes
    for key in (names.NAME, names.INVALID + "name"):
        if key in block:
            return text(block[key])
    if kind == "llm":
        provider, model = block.get(names.PROVIDER), block.get(names.REQUEST_MODEL)
        return ":".join(text(part) for part in (provider if provider != "unknown" else None, model) if part) or span.name.partition(" ")[2]
    if kind == "tool":
        name = text(block.get(names.TOOL_NAME, ""))
        return f"{block[names.TOOL_PROVIDER]}:{name}" if block.get(names.TOOL_PROVIDER) else name
    return text(block.get(names.AGENT_NAME, "")) if kind == "session" else span.name


def _status(span: InSpan) -> tuple[Status | None, str | None]:
    """Return how a node ended; None where the span does not say. An error text that only repeats the status is left out."""
    name, error = span.attributes.get(names.STATUS), span.attributes.get(names.ERROR)
    status = _STATUSES.get(name) if isinstance(name, str) else None
    status = status or ("failed" if span.status == ERROR else None)
    if error is None and status == "failed" and span.message not in ("", "failed"):
        error = span.message
    return status, None if error is None else text(error)


def _ended(span: InSpan, record: Callable[[Status | None, str | None], Record]) -> list[Record]:
    """Return the record of an end; none for what a live trace shows as open."""
    if not span.end_ns or span.attributes.get(names.PHASE) == _OPEN:
        return []
    return [record(*_status(span))]


def _line(event: InEvent, tree: RecordedTree) -> LogEntry:
    severity, direction = _attribute(event, names.LOG_SEVERITY), _attribute(event, names.LOG_DIRECTION)
    details = parsed(_attribute(event, names.LOG_DETAILS))
    return LogEntry(
        event.time_ns / 1_000_000,
        severity if severity in _SEVERITIES else "VRB",
        text(_attribute(event, names.LOG_MESSAGE)),
        direction if direction in ("request", "response") else None,
        tree.attributes(details) if details else UNSET,
    )


def _attribute(event: InEvent, name: str) -> Any:
    return event.attributes.get(name, "")


def _own_attributes(span: InSpan) -> dict[str, Any]:
    """Return what the program itself had set on a node."""
    kept = {key: value for key, value in content.remaining(span).items() if key not in _CONSUMED and not key.startswith(_CONVENTIONS)}
    own = {key.removeprefix(names.ATTRIBUTE): value for key, value in span.attributes.items() if key.startswith(names.ATTRIBUTE)}
    return {**own, **kept}


def _raw(block: dict[str, Any]) -> Raw | UnsetType:
    return Raw(encode(block)) if block else UNSET


def _name_chains(root: SessionNode) -> None:
    """Give sessions whose own span is missing what those around them tell."""
    for session in walk_sessions(root):
        for turn in session.turns:
            for op in turn.ops:
                child = op.child_session
                if child is not None and child.agent_id == UNKNOWN and op.name != UNKNOWN:
                    child.agent_id = op.name
                    child.call_path = f"{session.call_path}->{op.name}"


def _places(fold: RecordedTree, spans: list[InSpan]) -> dict[Key, SpanPlace]:
    """Return where spans inside optree's own go: into new ops behind those that there are."""
    builders = fold.builders()
    turns = {
        path: Turn(builders[path.rpartition(".")[0]], turn, max((last_index(op.path) for op in turn.ops), default=0) + 1)
        for path, turn in fold.turns.items()
    }
    result: dict[Key, SpanPlace] = {}
    for span in spans:
        kind, path = span.attributes[names.KIND], _path(span)
        if kind == "turn" and path in turns:
            result[span.trace_id, span.span_id] = SpanPlace(turns[path].builder, turns[path])
        elif kind in _OPS and path in fold.ops:
            turn = turns[path.rpartition(".")[0]]
            op = Op.of_ended(turn.builder, turn, fold.ops[path])
            result[span.trace_id, span.span_id] = SpanPlace(turn.builder, turn, op)
    return result
