"""`optree diff`: two sessions, aligned and compared; `optree diff-context`: what changed in the context of each LLM call, and its cost."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from optree._cli.options import Json, SessionsDir, TxnOrLast, complete_txn, directory
from optree._cli.screen import line_of, painting, rounded, show, show_json, size, table
from optree._cli.sessions import open_session, say_lost, say_without_content
from optree._store.files.unusable import usable
from optree._syscalls import calls
from optree._tree import Tree
from optree._tree.totals import dollars
from optree.errors import NotFoundError

if TYPE_CHECKING:
    from optree.compare import CallContext

DIFFERENT = 1


def diff(
    *,
    a: Annotated[
        str, typer.Argument(metavar="A", help="The session before: as TXN everywhere.", autocompletion=complete_txn, show_default=False)
    ],
    b: Annotated[
        str, typer.Argument(metavar="B", help="The session after: as TXN everywhere.", autocompletion=complete_txn, show_default=False)
    ],
    everything: Annotated[bool, typer.Option("--all", help="Show also what is the same.")] = False,
    exact: Annotated[bool, typer.Option("--exact", help="Compare also what a provider makes anew each time: ids, times.")] = False,
    html: Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Write a page for any browser, and print nothing.")] = None,
    exit_code: Annotated[bool, typer.Option("--exit-code", help="Exit with 1 if the sessions differ.")] = False,
    sessions_dir: SessionsDir = None,
    as_json: Json = False,
) -> None:
    """Compare two sessions: ops, turns and sub-agents that were added, removed, changed or moved, and what that cost.

    Times alone change nothing; they are shown as differences.

    Example: [bold]optree diff mwr0ix0c last --html diff.html[/bold]
    """
    from optree.compare import compare, format_comparison, format_page

    comparison = compare(_tree(a, sessions_dir), _tree(b, sessions_dir), everything=everything, exact=exact)
    if html is not None:
        with usable(html):
            _write(html, format_page(comparison, everything=everything))
    if as_json:
        show_json(comparison)
    elif html is None:
        style = painting()
        show(format_comparison(comparison, everything=everything, paint=style), fold=True)
    if exit_code and not comparison.same:
        raise typer.Exit(DIFFERENT)


def _write(path: Path, page: str) -> None:
    """Write a page; a new file is its owner's only, since the page has what the sessions have. Raises `OSError`."""
    with os.fdopen(calls.open_file(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(page.encode("utf-8", "replace"))


def _tree(txn: str, sessions_dir: Path | None) -> Tree:
    loaded, _ = open_session(txn, directory(sessions_dir), verbatim=True)
    say_lost(loaded)
    say_without_content(loaded)
    return loaded.tree


_HEAD = ("PATH", "AGENT", "MODEL", "KEPT", "APPENDED", "CHANGED", "INPUT", "CACHED", "LOST", "COST")
_LOSSES = ("broken", "missed")


def diff_context(
    *,
    txn: TxnOrLast = "last",
    agent: Annotated[str | None, typer.Option("--agent", metavar="NAME", help="Only the calls of this agent.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Show also calls that only appended to what they had.")] = False,
    sessions_dir: SessionsDir = None,
    as_json: Json = False,
) -> None:
    """Show for each LLM call what changed in its context since the agent's previous call, and which change broke the prompt cache.

    KEPT are messages at the beginning that are as they were. LOST are tokens that the provider's cache had and that were not read; with ~
    they are estimated.

    Example: [bold]optree diff-context last --agent researcher[/bold]
    """
    from optree.compare import context_changes

    loaded, _ = open_session(txn, directory(sessions_dir), verbatim=True)
    say_lost(loaded)
    say_without_content(loaded)
    calls = context_changes(loaded.tree)
    if agent is not None:
        calls = _of_agent(calls, agent)
    shown = calls if everything else [call for call in calls if _is_notable(call)]
    if as_json:
        show_json({"txn": loaded.txn, "agent": agent, "totals": _totals(calls), "calls": shown})
        return
    style = painting()
    lines = table(_HEAD, [_row(call) for call in shown], "   rrlrrrr") if shown else []
    for call in shown:
        if explained := _explained(call):
            lines += ["", f"{style('path', call.path)} {style('agent', line_of(call.agent))} {_verdict(call)}".rstrip(), *explained]
    show("\n".join([*lines, *([""] if lines else []), _summary(calls, len(calls) - len(shown))]), fold=True)


def _of_agent(calls: list[CallContext], agent: str) -> list[CallContext]:
    result = [call for call in calls if call.agent == agent]
    if not result:
        agents = ", ".join(sorted({call.agent for call in calls}))
        raise NotFoundError(f"no LLM call of agent {agent!r}: there are calls of {agents}" if agents else "the session has no LLM calls")
    return result


def _is_notable(call: CallContext) -> bool:
    """Tell whether a call did more than begin, or append to its history."""
    messages = call.messages
    edited = messages is not None and not messages.new and messages.edited + messages.removed + messages.inserted > 0
    return bool(call.parts or call.cache in _LOSSES or call.note or edited)


def _changed(call: CallContext) -> list[str]:
    """Return what changed in a call, messages behind it not counted."""
    result = [change.what for change in call.parts]
    if call.messages is not None and call.messages.new:
        result.append("new conversation")
    elif call.messages is not None:
        counts = (("edited", call.messages.edited), ("removed", call.messages.removed), ("inserted", call.messages.inserted))
        result += [f"{count:,} {name}" for name, count in counts if count]
    return result


def _row(call: CallContext) -> tuple[str, ...]:
    messages = call.messages
    kept = f"{messages.kept:,} ({size(messages.kept_bytes)})" if messages else "first" if call.cache == "first" else "?"
    appended = f"{messages.appended:,} ({size(messages.appended_bytes)})" if messages else ""
    if messages is None and call.count is not None:
        appended = f"{call.count:,} ({size(call.bytes or 0)})"
    cost = "unknown" if call.cost_usd is None else dollars(call.cost_usd)
    figures = (_count(call.input_tokens), _count(call.cache_read_input_tokens), _lost(call) if call.cache in _LOSSES else "")
    return (call.path, call.agent, call.model, kept, appended, ", ".join(_changed(call)), *figures, cost)


def _count(count: int | None) -> str:
    return "" if count is None else f"{count:,}"


def _lost(call: CallContext) -> str:
    return f"{'~' if call.estimated else ''}{call.lost_tokens:,}"


def _verdict(call: CallContext) -> str:
    if call.cache not in _LOSSES:
        return f"since {call.previous}" if call.previous else "first call" if call.cache == "first" else ""
    about = "about " if call.estimated else ""
    cost = "at a cost that is unknown" if call.lost_usd is None else f"at a cost of {about}{dollars(call.lost_usd)}"
    what = "broke" if call.cache == "broken" else "missed"
    doubt = ", or had expired" if call.expired else ""
    lost = f"{about}{call.lost_tokens:,} of {call.reusable_tokens:,} tokens were not read from it"
    return f"{what} the cache of {call.previous}{doubt}: {lost}, {cost}"


def _explained(call: CallContext) -> list[str]:
    from optree.compare import change_phrase, edit_phrase

    lines = [f"first: {call.cause}"] if call.cache in _LOSSES else []
    cause = call.cause if call.cache == "broken" else None
    lines += [line for line in map(change_phrase, call.parts) if line != cause]
    if call.messages is not None and not call.messages.new:
        edits = [edit_phrase(edit) for edit in call.messages.edits]
        lines += [line for line in edits if line != cause]
        more = call.messages.edited + call.messages.removed + call.messages.inserted - len(edits)
        lines += [f"… and {more:,} more messages"] if more > 0 else []
    lines += [f"note: {call.note}"] if call.note else []
    return [f"  {line_of(line)}" for line in lines]


def _totals(calls: Sequence[CallContext]) -> dict[str, Any]:
    losses = [call for call in calls if call.cache in _LOSSES and not call.expired]
    known = [call.lost_usd for call in losses if call.lost_usd is not None]
    return {
        "calls": len(calls),
        "broken": sum(call.cache == "broken" for call in losses),
        "missed": sum(call.cache == "missed" for call in losses),
        "expired": sum(call.expired for call in calls),
        "unknown": sum(call.cache == "unknown" for call in calls),
        "lostTokens": sum(call.lost_tokens for call in losses),
        "lostUsd": rounded(sum(known)) if known or not losses else None,
        "unpriced": len(losses) - len(known),
    }


def _summary(calls: Sequence[CallContext], hidden: int) -> str:
    totals = _totals(calls)
    parts = [f"{totals['calls']:,} call{'' if totals['calls'] == 1 else 's'}"]
    parts += [f"{hidden:,} that only began or appended (--all shows them)"] if hidden else []
    if totals["broken"] or totals["missed"] or totals["expired"]:
        parts += [f"{totals['broken']:,} broke the cache, {totals['missed']:,} missed it", f"{totals['lostTokens']:,} tokens lost"]
        parts.append("at a cost that is unknown" if totals["lostUsd"] is None else f"at a cost of {dollars(totals['lostUsd'])}")
        parts += (
            [f"{totals['unpriced']:,} of them at a price that is unknown"] if totals["unpriced"] and totals["lostUsd"] is not None else []
        )
        parts += [f"{totals['expired']:,} after a wait that the entry may not have outlived, not counted"] if totals["expired"] else []
    elif totals["unknown"] == 0:
        parts.append("none lost tokens of the cache")
    elif totals["unknown"] < totals["calls"]:
        parts.append("none is known to have lost tokens of the cache")
    parts += [f"of {totals['unknown']:,} it is not known"] if totals["unknown"] else []
    return " · ".join(parts)
