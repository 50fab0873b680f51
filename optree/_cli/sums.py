"""The ledger read, and accounting entries summed: what `optree cost` and `optree ledger` share."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import msgspec
from msgspec import Struct

from optree._cli.screen import DAMAGED, complain, figures, when, working
from optree._clock import now_ms
from optree._nodes import AccountingEntry, Tokens, Totals
from optree._providers.amounts import MAX_COUNT, MAX_DOLLARS
from optree._providers.prices import PRICE
from optree._store.ledger import Book, Ledger
from optree._store.reading.directory import Directory
from optree._tree.totals import PICO, add_entry, cost_cell, dollars_of, pico, stored_parts
from optree._values import is_object
from optree.errors import NotFoundError, SetupError
from optree.redaction import redact

MOST_LINES = 10
"""This many damaged lines are listed by their numbers."""
SINCE_HELP = "Only what came since: a date (2025-11-30), a time, or a span (30m, 24h, 7d)."
HEAD = ("CALLS", "FAILED", "INPUT", "CACHED", "WRITTEN", "OUTPUT", "COST")
_NO_TOKENS = Tokens()
_SPANS = {"m": 60e3, "h": 3600e3, "d": 86400e3, "w": 7 * 86400e3}
_FIGURES = {"timestamp": 1e15, "charactersIn": MAX_COUNT, "charactersOut": MAX_COUNT, "costUsd": MAX_DOLLARS}
"""Figures of an entry, each with its largest possible value: a larger one is not counted."""
_SHOWN = (
    "inputTokens", "cacheReadInputTokens", "cacheWriteInputTokens", "outputTokens", "reasoningOutputTokens",
    "charactersIn", "charactersOut", "costUsd", "unknownCosts",
)  # fmt: skip


class SumLine(Struct):
    """An accounting entry of a ledger's line, of any writer: the line's *record*, without figures that are not numbers, and the *entry*."""

    record: dict[str, Any]
    entry: AccountingEntry


Key = Callable[[SumLine], str]


@dataclass(slots=True)
class Sum:
    """What some entries come to: *totals*, and the money exactly."""

    calls: int = 0
    pico_dollars: int = 0
    totals: Totals = field(default_factory=Totals)
    _untold: set[str] = field(default_factory=set[str])
    _told: str = ""

    def add(self, entry: AccountingEntry) -> None:
        """Add one entry."""
        self.calls += not entry.retried
        self._note_tokens(entry)
        self.pico_dollars += pico(entry.cost_usd or 0.0)
        add_entry(self.totals, entry)

    def _note_tokens(self, entry: AccountingEntry) -> None:
        """Note the op of a model's answer whose tokens nobody told: no failure, replay or credit, and no second entry for it has them."""
        op = entry.id.partition("#")[0] or f"#{self.calls}"
        if entry.tokens != _NO_TOKENS:
            self._told = op
            self._untold.discard(op)
        elif entry.type == "llm" and entry.status == "ok" and entry.replay_of is None and (entry.cost_usd or 0.0) >= 0 and op != self._told:
            self._untold.add(op)

    @property
    def unknown_tokens(self) -> int:
        """How many calls of models were answered whose tokens nobody told, or told as none."""
        return len(self._untold)

    @property
    def failed(self) -> int:
        """How many failed."""
        return self.totals.llm_failed + self.totals.tools_failed

    def plain(self) -> dict[str, int | float | None]:
        """Return the sum under the names that JSON output has; a cost that was not given is None."""
        values = figures(self.totals)
        if values["costUsd"] is not None:
            values["costUsd"] = self.pico_dollars / PICO
        return {"calls": self.calls, "failed": self.failed, **{name: values[name] for name in _SHOWN}, "unknownTokens": self.unknown_tokens}

    def cells(self) -> tuple[str, ...]:
        """Return the sum as cells of a table."""
        totals = self.totals
        tokens = (totals.all_input_tokens, totals.cache_read_input_tokens, totals.cache_write_input_tokens, totals.output_tokens)
        cost = cost_cell(self.pico_dollars, totals.known_costs, totals.unknown_costs)
        return (*(f"{count:,}" for count in (self.calls, self.failed, *tokens)), cost)


def read_ledger(where: Directory) -> Book:
    """Return the ledger's lines. Raises `NotFoundError` without a ledger."""
    if not where.billing.is_file():
        raise NotFoundError(f"no ledger at {where.billing}: it is written when a session ends; `optree cost TXN` works without")
    with working(f"reading {where.billing.name}"):
        return Ledger(where.billing).book()


def pending(where: Directory) -> int:
    """Return how many sessions have not ended, and are in no ledger."""
    return sum(saved.live is not None for saved in where.saved())


def say_pending(count: int) -> None:
    """Say how many sessions are in no ledger yet, if any are."""
    if count:
        they = f"{count:,} session{' is' if count == 1 else 's are'}"
        complain(f"{they} not in the ledger yet (optree ls; optree load TXN --end ends what broke off)")


def say_repeated(book: Book, where: Directory, *, checked: bool = False) -> None:
    """Say that lines of the ledger are there again, if they are; how to look at that where it is not *checked* already."""
    advice = "" if checked else " (optree ledger --check)"
    if book.repeated:
        what = "line of {} repeats another and is" if book.repeated == 1 else "lines of {} repeat others and are"
        complain(f"{book.repeated:,} {what.format(where.billing)} counted once{advice}")
    if book.conflicting:
        count = len(book.conflicting)
        what = "line of {} has the id of another and says" if count == 1 else "lines of {} have the ids of others and say"
        complain(f"{count:,} {what.format(where.billing)} something else; the first counts{advice}")


def say_unreadable(book: Book, poor: int, one: str, more: str) -> int:
    """Report which lines are damaged, and how many have figures that are not numbers; returns the exit code. *one* and *more* name them."""
    if not (torn := len(book.unreadable) + poor):
        return 0
    numbers = [f"{number:,}" for number in book.unreadable[:MOST_LINES]]
    left = len(book.unreadable) - len(numbers)
    which = f" (damaged: line {', '.join(numbers)}{f' and {left:,} more' if left else ''})" if numbers else ""
    complain(f"{torn:,} {one if torn == 1 else more} cannot be read, or not in full{which}; what cannot be read is not in these sums")
    return DAMAGED


def total(lines: Iterable[SumLine]) -> Sum:
    """Return the sum of lines."""
    result = Sum()
    for line in lines:
        result.add(line.entry)
    return result


def by(lines: Iterable[SumLine], key: Key) -> dict[str, Sum]:
    """Return sums by key, the most expensive first, then by calls, then by name."""
    groups: dict[str, Sum] = {}
    for line in lines:
        groups.setdefault(key(line), Sum()).add(line.entry)
    return dict(sorted(groups.items(), key=lambda item: (-item[1].pico_dollars, -item[1].calls, item[0])))


def credits_of(lines: Sequence[SumLine]) -> list[SumLine]:
    """Return the lines that take from the bill."""
    return [line for line in lines if (line.entry.cost_usd or 0.0) < 0]


def credits_plain(lines: Sequence[SumLine]) -> dict[str, Any]:
    """Return the sum of the credits in lines, as members of JSON."""
    return total(credits_of(lines)).plain()


def credit_lines(lines: Sequence[SumLine]) -> list[str]:
    """Return a line about the credits in sums, if there are any."""
    credited = total(credits_of(lines))
    if not credited.calls:
        return []
    message = "1 credit of" if credited.calls == 1 else f"{credited.calls} credits, together"
    return [f"includes {message} {dollars_of(credited.pico_dollars)}: entries with a negative cost, which lower these sums"]


def notes(lines: Sequence[SumLine], whole: Sum) -> list[str]:
    """Return the lines below a table of sums: about prices, credits, unknown tokens and recorded answers, if there are any."""
    return [*_price_lines(lines), *credit_lines(lines), *_unknown_lines(whole.unknown_tokens), *_replay_lines(lines)]


def _price_lines(lines: Sequence[SumLine]) -> list[str]:
    count = sum(is_object(details := line.record.get("details")) and PRICE in details for line in lines)
    return [f"the cost of {_calls(count)} is worked out by prices (the session's pricingSnapshot), since nobody gave it"] if count else []


def _unknown_lines(count: int) -> list[str]:
    one, more = "1 call of a model has no tokens: what it took", f"{count:,} calls of models have no tokens: what they took"
    return [f"{one if count == 1 else more} was not told, and is not in these sums"] if count else []


def _calls(count: int) -> str:
    return "1 call" if count == 1 else f"{count:,} calls"


def _replay_lines(lines: Sequence[SumLine]) -> list[str]:
    count = sum(line.entry.replay_of is not None and not line.entry.retried for line in lines)
    return [f"{_calls(count)} got a recorded answer (optree replay, optree fork), and cost nothing"] if count else []


def rows(groups: dict[str, dict[str, Sum]], whole: Sum) -> list[tuple[str, ...]]:
    """Return the rows of a table: a heading for each group, its sums below, and the total."""
    result: list[tuple[str, ...]] = []
    for name, group in groups.items():
        result += [(f"by {name}", *[""] * len(HEAD))] if group else []
        result += [(f"  {key}", *sums.cells()) for key, sums in group.items()]
    return [*result, ("total", *whole.cells())]


def plain(groups: dict[str, dict[str, Sum]]) -> dict[str, Any]:
    """Return groups under the names that JSON output has."""
    return {f"by{name.capitalize()}": [{"name": key, **sums.plain()} for key, sums in group.items()] for name, group in groups.items()}


def agent(line: SumLine) -> str:
    """Return whose entry it is."""
    return str(redact(line.record.get("agentId")) or "(unknown)")


def model(line: SumLine) -> str:
    """Return the model that was called."""
    return _named(line, "provider", "model")


def tool(line: SumLine) -> str:
    """Return the tool that was called."""
    return _named(line, "mcpServer", "command")


def _named(line: SumLine, *names: str) -> str:
    return ":".join(str(redact(line.record[name])) for name in names if line.record.get(name)) or "(unknown)"


def session(line: SumLine) -> str:
    """Return the txn of the root session."""
    return str(line.record.get("originTxnId") or line.record.get("txnId") or "(unknown)")


def day(line: SumLine) -> str:
    """Return the local day."""
    return when(line.entry.timestamp).partition(" ")[0]


def of_type(lines: Iterable[SumLine], *, llm: bool) -> list[SumLine]:
    """Return the lines of model calls, or the others."""
    return [line for line in lines if (line.entry.type == "llm") is llm]


def readable(entries: Sequence[dict[str, Any]], since: float = 0.0) -> tuple[list[SumLine], int]:
    """Return entries whose figures can be summed, from a time on; and how many were not so in full."""
    poor = sum(not _is_clean(entry) for entry in entries)
    lines = map(_line, entries)
    return [line for line in lines if line.entry.timestamp >= since], poor


def moment(text: str | None) -> float:
    """Return a time in epoch milliseconds, 0 for none; dates and times without zone are local."""
    if not text:
        return 0.0
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([mhdw])", text)
    if match:
        return now_ms() - float(match[1]) * _SPANS[match[2]]
    try:
        return datetime.fromisoformat(text).timestamp() * 1e3
    except (ValueError, OverflowError) as error:
        raise SetupError(
            f"--since {text!r} is no time: write a date (2025-11-30), a time (2025-11-30T12:00) or a span (30m, 24h, 7d)"
        ) from error


def _is_clean(entry: dict[str, Any]) -> bool:
    """Tell whether all figures of an entry are numbers that can be summed."""
    tokens: Any = entry.get("tokens")
    values = [(entry.get(name), most) for name, most in _FIGURES.items()]
    values += [(count, MAX_COUNT) for count in tokens.values()] if is_object(tokens) else []
    return all(figure is None or _is_figure(figure, most) for figure, most in values) and (tokens is None or is_object(tokens))


def _line(entry: dict[str, Any]) -> SumLine:
    """Return an entry without figures that are not numbers."""
    tokens: Any = entry.get("tokens")
    counts = {name: int(count) for name, count in tokens.items() if _is_figure(count, MAX_COUNT)} if is_object(tokens) else {}
    known = {name: entry[name] if _is_figure(entry.get(name), most) else None for name, most in _FIGURES.items()}
    record: dict[str, Any] = {**entry, "tokens": counts, **known}
    accounting = AccountingEntry(str(entry.get("id") or ""), record["timestamp"] or 0.0, "llm" if entry.get("type") == "llm" else "tool")
    accounting.status = "failed" if entry.get("status") == "failed" else "ok"
    accounting.retried = entry.get("retried") is True
    accounting.replay_of = of if isinstance(of := entry.get("replayOf"), str) else None
    accounting.tokens = msgspec.convert(stored_parts(counts), Tokens)
    accounting.cost_usd, accounting.characters_in, accounting.characters_out = (
        record["costUsd"],
        record["charactersIn"],
        record["charactersOut"],
    )
    return SumLine(record, accounting)


def _is_figure(value: object, most: float) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= most
