"""The tree as text (`opTreeAscii` of seed 004): one line a node, pure, without colour codes unless a painter is given."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from optree.nodes import OperationNode, SessionNode, Totals, TurnNode
from optree.tree.summary import state

T = TypeVar("T")
Paint = Callable[[str, str], str]
"""Given a style (`agent`, `path`, `failed`, `dim`…) and a text, returns the text as it shall be shown."""
_MARKS = {"ok": "✓", "failed": "✗", "cancelled": "⊘", "interrupted": "⚡", "running": "…", "ended": ""}


def format_tree(root: SessionNode, *, live: bool = False, paint: Paint = lambda _style, text: text) -> str:
    """Return the tree, a line for each session, turn and op. Nodes without an end read as `interrupted`, or `running` if *live*."""
    lines = [_session(root, live, paint)]
    lines += (paint("dim", branch) + _describe(node, live, paint) for node, branch, _ in branches(_below(root), _below))
    return "\n".join(line.replace("\n", "\\n") for line in lines)  # a name may have any character


def branches(top: Iterable[T], below: Callable[[T], Iterable[T]]) -> Iterator[tuple[T, str, str]]:
    """Yield each node of a tree, with what is drawn before it, and what is drawn before all that is below it."""
    pending: list[tuple[str, list[T]]] = [("", [*top][::-1])]
    while pending:
        indent, nodes = pending[-1]
        if not nodes:
            pending.pop()
            continue
        node = nodes.pop()
        inner = indent + ("│  " if nodes else "   ")
        yield node, indent + ("├─ " if nodes else "└─ "), inner
        pending.append((inner, [*below(node)][::-1]))


def format_totals(totals: Totals) -> str:
    """Return totals as one short phrase."""
    parts = [f"{totals.llm_requests} llm", f"{totals.tools_run} tool"] if totals.llm_requests or totals.tools_run else []
    if totals.input_tokens or totals.cache_read_input_tokens or totals.output_tokens:
        parts.append(f"{totals.input_tokens + totals.cache_read_input_tokens:,}→{totals.output_tokens:,} tok")
    if totals.cost_usd:
        parts.append(f"${totals.cost_usd:.6f}")
    return " · ".join(parts)


def _below(node: SessionNode | TurnNode | OperationNode) -> Sequence[TurnNode | OperationNode]:
    if isinstance(node, SessionNode):
        return node.turns
    if isinstance(node, TurnNode):
        return node.ops
    return node.child_session.turns if node.child_session else []


def _describe(node: TurnNode | OperationNode, live: bool, paint: Paint) -> str:
    if isinstance(node, TurnNode):
        said = (node.prompts or {}).get("user") or node.attributes.get("label") or ""
        return _phrase(paint("path", node.path), "turn", format_end(node, live=live, paint=paint), _painted(paint, "dim", said))
    if node.child_session is not None:
        return f"{paint('path', node.path)} {_session(node.child_session, live, paint)}"
    logs = f"{len(node.logs)} log{'s' if len(node.logs) > 1 else ''}" if node.logs else ""
    title = _phrase(paint("path", node.path), paint(node.kind, node.kind), node.name)
    return _phrase(title, format_end(node, live=live, paint=paint), _tokens(node), logs, _painted(paint, "failed", node.error))


def _session(session: SessionNode, live: bool, paint: Paint) -> str:
    return _phrase(
        paint("agent", session.agent_id),
        f"“{session.session_title}”" if session.session_title else "",
        format_end(session, live=live, paint=paint),
        f"resumed ×{len(session.resumed_at)}" if session.resumed_at else "",
        _painted(paint, "dim", format_totals(session.totals)),
        _painted(paint, "failed", session.error),
    )


def format_end(node: SessionNode | TurnNode | OperationNode, *, live: bool = False, paint: Paint = lambda _style, text: text) -> str:
    """Return how a node ended, and how long it took where that is known."""
    status = state(node, live=live)
    took = _took(node)
    return _phrase(
        paint(status, _phrase(_MARKS[status], "" if status in ("ok", "ended") else status)), "" if took is None else _duration(took)
    )


def _took(node: SessionNode | TurnNode | OperationNode) -> float | None:
    """Return a duration in milliseconds, never negative; None for what has no end, or was not seen again after its begin."""
    if node.ended_at is None:
        return None
    latency = node.latency if isinstance(node, OperationNode) else None
    took = max(0.0, node.ended_at - node.started_at if latency is None else latency)
    return None if node.status == "interrupted" and not took else took


def _phrase(*parts: str) -> str:
    return " ".join(filter(None, parts))


def _painted(paint: Paint, style: str, text: str | None) -> str:
    short = _short(text)
    return paint(style, short) if short else ""


def _tokens(op: OperationNode) -> str:
    tokens = [entry.tokens for entry in op.accounting if entry.tokens]
    cost = sum(entry.cost_usd or 0.0 for entry in op.accounting)
    sent = sum(one.input_tokens + one.cache_read_input_tokens for one in tokens)
    cached = sum(one.cache_read_input_tokens for one in tokens)
    output = sum(one.output_tokens for one in tokens)
    shown = f"{sent:,}→{output:,} tok" if sent or output else ""
    return _phrase(shown, f"({cached:,} cached)" if cached else "", f"${cost:.6f}" if cost else "")


def _duration(milliseconds: float) -> str:
    seconds, _ = divmod(milliseconds, 1e3)
    return f"{milliseconds / 1e3:.2f} s" if seconds else f"{milliseconds:.1f} ms"


def _short(text: str | None, limit: int = 72) -> str:
    line = " ".join((text or "").split())
    return line if len(line) <= limit else line[: limit - 1] + "…"
