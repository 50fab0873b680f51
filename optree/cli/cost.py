"""`optree cost`: tokens and money, by agent, by model, by tool."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Annotated, Any

import typer

from optree.cli.options import BillingFile, Json, SessionsDir, TxnOrLast, directory
from optree.cli.progress import working
from optree.cli.screen import complain, show, show_json, table
from optree.cli.sessions import open_session, settled
from optree.clock import now_ms
from optree.errors import NotFoundError, SetupError
from optree.store.directory import Directory
from optree.store.ledger import Ledger
from optree.tree.walk import flatten
from optree.values import is_object

DAMAGED = 3
PICO = 10**12
"""Money is summed in whole trillionths of a dollar: the parts add up to the whole exactly."""
_SPANS = {"m": 60e3, "h": 3600e3, "d": 86400e3, "w": 7 * 86400e3}
_CENTS = 6
_MOST = 1e15
"""Larger figures are none: neither tokens nor dollars come to that."""
_FIGURES = ("timestamp", "charactersIn", "charactersOut", "costUsd")
Entry = dict[str, Any]


@dataclass(slots=True)
class Sum:
    """What some accounting entries come to."""

    calls: int = 0
    failed: int = 0
    input_tokens: int = 0
    cache_read_input_tokens: int = 0
    cache_write_input_tokens: int = 0
    output_tokens: int = 0
    characters_in: int = 0
    characters_out: int = 0
    pico_dollars: int = 0

    def add(self, entry: Entry) -> None:
        """Add one entry."""
        tokens: dict[str, int] = entry.get("tokens") or {}
        self.calls += 1
        self.failed += entry.get("status") == "failed"
        self.input_tokens += tokens.get("inputTokens", 0)
        self.cache_read_input_tokens += tokens.get("cacheReadInputTokens", 0)
        self.cache_write_input_tokens += tokens.get("cacheWriteInputTokens", 0)
        self.output_tokens += tokens.get("outputTokens", 0)
        self.characters_in += entry.get("charactersIn") or 0
        self.characters_out += entry.get("charactersOut") or 0
        self.pico_dollars += round((entry.get("costUsd") or 0.0) * PICO)

    def plain(self) -> dict[str, int | float]:
        """Return the sum under the names that JSON output has."""
        found: dict[str, int | float] = {_camel(field.name): getattr(self, field.name) for field in fields(self)[:-1]}
        return {**found, "costUsd": self.pico_dollars / PICO}

    def cells(self) -> tuple[str, ...]:
        """Return the sum as cells of a table."""
        counts = (self.calls, self.failed, self.input_tokens, self.cache_read_input_tokens, self.output_tokens)
        return (*(f"{count:,}" for count in counts), _dollars(self.pico_dollars))


def cost(
    *,
    txn: TxnOrLast = "last",
    all_sessions: Annotated[bool, typer.Option("--all", help="All sessions that have ended, from the ledger.")] = False,
    since: Annotated[
        str | None,
        typer.Option("--since", metavar="WHEN", help="Only what came since: a date (2025-11-30), a time, or a span (30m, 24h, 7d)."),
    ] = None,
    sessions_dir: SessionsDir = None,
    billing_file: BillingFile = None,
    as_json: Json = False,
) -> None:
    """Show what a session cost, or with --all what all of them cost.

    Calls, tokens and money by agent, by provider:model and by tool. By agent is the whole; so are models and tools together.

    Example: [bold]optree cost --all --since 7d[/bold]
    """
    where = directory(sessions_dir, billing_file)
    first = _moment(since) if since else 0.0
    if all_sessions:
        settled(where)
        entries, torn = _ledger(where)
        scope = str(where.billing)
    else:
        loaded, _ = open_session(txn, where)
        entries, torn, scope = flatten(loaded.session).accounting, 0, loaded.txn
    torn += sum(not _is_clean(entry) for entry in entries)
    entries = [_cleaned(entry) for entry in entries]
    entries = [entry for entry in entries if entry.get("timestamp", 0.0) >= first]
    pending = sum(1 for saved in where.saved() if saved.live is not None) if all_sessions else 0
    if as_json:
        show_json({"of": scope, "since": first or None, **_plain(entries), "notEnded": pending, "unreadable": torn})
    else:
        show("\n".join(_lines(entries)))
    if pending and not as_json:
        complain(f"{pending} session{' is' if pending == 1 else 's are'} not in the ledger yet (optree ls)")
    if torn:
        where_from = "lines of" if all_sessions else "accounting entries of session"
        complain(f"{torn} {where_from} {scope} cannot be read, or not in full; what cannot be read is not in these sums")
        raise typer.Exit(DAMAGED)


def _ledger(where: Directory) -> tuple[list[Entry], int]:
    """Return the ledger's entries, and how many of its lines are none."""
    if not where.billing.is_file():
        raise NotFoundError(f"no ledger at {where.billing}: it is written when a session ends; `optree cost TXN` works without")
    with working(f"reading {where.billing.name}"):
        found = Ledger(where.billing).read()
        lines = sum(1 for line in where.billing.read_bytes().splitlines() if line.strip())
    return found, max(0, lines - len(found))


def _is_clean(entry: Entry) -> bool:
    """Tell whether all figures of an entry are numbers that can be summed."""
    tokens: Any = entry.get("tokens")
    figures = [entry.get(name) for name in _FIGURES] + (list(tokens.values()) if is_object(tokens) else [])
    return all(figure is None or _is_figure(figure) for figure in figures) and (tokens is None or is_object(tokens))


def _cleaned(entry: Entry) -> Entry:
    """Return an entry with 0 for each figure that is none."""
    tokens: Any = entry.get("tokens")
    counts = {name: int(count) for name, count in tokens.items() if _is_figure(count)} if is_object(tokens) else {}
    return {**entry, "tokens": counts, **{name: entry[name] if _is_figure(entry.get(name)) else 0 for name in _FIGURES}}


def _is_figure(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= _MOST


def _groups(entries: Sequence[Entry]) -> dict[str, dict[str, Sum]]:
    models = [entry for entry in entries if entry.get("type") == "llm"]
    tools = [entry for entry in entries if entry.get("type") != "llm"]
    return {"agent": _by(entries, _agent), "model": _by(models, _model), "tool": _by(tools, _tool)}


def _plain(entries: Sequence[Entry]) -> dict[str, Any]:
    groups = {
        f"by{name.capitalize()}": [{"name": key, **found.plain()} for key, found in group.items()]
        for name, group in _groups(entries).items()
    }
    return {"total": _total(entries).plain(), **groups, "credits": _total(_credits(entries)).plain()}


def _lines(entries: Sequence[Entry]) -> list[str]:
    rows: list[tuple[str, ...]] = []
    for name, group in _groups(entries).items():
        rows += [(f"by {name}", "", "", "", "", "", "")] if group else []
        rows += [(f"  {key}", *found.cells()) for key, found in group.items()]
    rows.append(("total", *_total(entries).cells()))
    lines = table(("", "CALLS", "FAILED", "INPUT", "CACHED", "OUTPUT", "COST"), rows, " rrrrrr")
    credited = _total(_credits(entries))
    if credited.calls:
        said = "1 credit of" if credited.calls == 1 else f"{credited.calls} credits, together"
        lines.append(f"includes {said} {_dollars(credited.pico_dollars)}: entries with a negative cost, which lower these sums")
    return lines


def _credits(entries: Iterable[Entry]) -> list[Entry]:
    """Return the entries that take from the bill."""
    return [entry for entry in entries if (entry.get("costUsd") or 0.0) < 0]


def _total(entries: Iterable[Entry]) -> Sum:
    total = Sum()
    for entry in entries:
        total.add(entry)
    return total


def _by(entries: Iterable[Entry], key: Callable[[Entry], str]) -> dict[str, Sum]:
    """Return sums by key, the most expensive first, then by calls, then by name."""
    found: dict[str, Sum] = {}
    for entry in entries:
        found.setdefault(key(entry), Sum()).add(entry)
    return dict(sorted(found.items(), key=lambda item: (-item[1].pico_dollars, -item[1].calls, item[0])))


def _agent(entry: Entry) -> str:
    return str(entry.get("agentId") or "(unknown)")


def _model(entry: Entry) -> str:
    return ":".join(str(entry[name]) for name in ("provider", "model") if entry.get(name)) or "(unknown)"


def _tool(entry: Entry) -> str:
    return ":".join(str(entry[name]) for name in ("mcpServer", "command") if entry.get(name)) or "(unknown)"


def _dollars(pico: int) -> str:
    """Return money with all digits that it has, at least six."""
    whole, part = divmod(abs(pico), PICO)
    digits = f"{part:012d}"
    return f"{'-' if pico < 0 else ''}${whole:,}.{digits[:_CENTS]}{digits[_CENTS:].rstrip('0')}"


def _moment(text: str) -> float:
    """Return a time in epoch milliseconds; dates and times without zone are local."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([mhdw])", text)
    if found:
        return now_ms() - float(found[1]) * _SPANS[found[2]]
    try:
        return datetime.fromisoformat(text).timestamp() * 1e3
    except (ValueError, OverflowError) as error:
        raise SetupError(
            f"--since {text!r} is no time: write a date (2025-11-30), a time (2025-11-30T12:00) or a span (30m, 24h, 7d)"
        ) from error


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)
