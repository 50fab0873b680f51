"""`optree ledger`: what all sessions took, and whether that is what their trees say."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import typer

from optree._cli import sums
from optree._cli.options import BillingFile, Json, SessionsDir, directory
from optree._cli.screen import show, show_json, table, working
from optree._cli.sessions import settled
from optree._cli.sums import Sum, SumLine
from optree._nodes import Totals
from optree._store.ledger import Bare, is_bare
from optree._store.reading.directory import Directory, Saved
from optree._store.reading.formats import read_snapshot
from optree._store.reading.recovery import load
from optree._tree.totals import dollars_of, pico
from optree._tree.walk import flatten
from optree.errors import OptreeError
from optree.redaction import redact

DIFFERS = 1
_SHOWN = 10
_COMPARED = {
    "inputTokens": "all_input_tokens", "cacheReadInputTokens": "cache_read_input_tokens",
    "cacheWriteInputTokens": "cache_write_input_tokens", "outputTokens": "output_tokens",
    "charactersIn": "characters_in", "charactersOut": "characters_out",
}  # fmt: skip
_NAMED = ("txnId", "agentId", "type", "status", "provider", "model", "actualProvider", "actualModel", "mcpServer", "command", "costUsd")
"""What a line and its entry are to say alike, beside the sums."""


@dataclass(slots=True)
class _Verdict:
    """What is wrong with one session's bill."""

    txn: str
    differences: list[str] = field(default_factory=list[str])


def ledger(
    *,
    check: Annotated[bool, typer.Option("--check", help="Compare the ledger with the sessions: leaves, totals and lines.")] = False,
    since: Annotated[str | None, typer.Option("--since", metavar="WHEN", help=sums.SINCE_HELP)] = None,
    sessions_dir: SessionsDir = None,
    billing_file: BillingFile = None,
    as_json: Json = False,
) -> None:
    """Show what all sessions that have ended took, by day, by agent, by provider:model and by session.

    With --check: for each session the sum over its ops is that of its totals and that of its lines in the ledger, or what differs is
    listed, and the exit code is 1.

    Example: [bold]optree ledger --check[/bold]
    """
    where = directory(sessions_dir, billing_file)
    first = sums.moment(since)
    settled(where)
    book = sums.read_ledger(where)
    lines, poor = sums.readable(book.entries, first)
    verdict = _checked(where, lines, first, book.conflicting) if check else {}
    if as_json:
        head = {"of": str(where.billing), "since": first or None}
        tail = {"repeated": book.repeated, "unreadable": len(book.unreadable) + poor, "damagedLines": book.unreadable}
        body = verdict if check else _sums(where, lines)
        show_json({**head, **body, **tail})
    else:
        whole = sums.total(lines)
        table_of = table(("", *sums.HEAD), sums.rows(_groups(lines), whole), " rrrrrrr")
        show("\n".join(_verdict_lines(verdict) if check else [*table_of, *sums.notes(lines, whole)]), fold=True)
        if not check:
            sums.say_pending(sums.pending(where))
    sums.say_repeated(book, where, checked=check)
    damage = sums.say_unreadable(book, poor, f"line of {where.billing}", f"lines of {where.billing}")
    if verdict.get("differing"):
        raise typer.Exit(DIFFERS)
    if damage:
        raise typer.Exit(damage)


def _sums(where: Directory, lines: Sequence[SumLine]) -> dict[str, Any]:
    groups = sums.plain(_groups(lines))
    return {"total": sums.total(lines).plain(), **groups, "credits": sums.credits_plain(lines), "notEnded": sums.pending(where)}


def _groups(lines: Sequence[SumLine]) -> dict[str, dict[str, Sum]]:
    days = sums.by(lines, sums.day)
    return {
        "day": {name: days[name] for name in sorted(days)},
        "agent": sums.by(lines, sums.agent),
        "model": sums.by(sums.of_type(lines, llm=True), sums.model),
        "session": sums.by(lines, sums.session),
    }


def _checked(where: Directory, lines: Sequence[SumLine], since: float, conflicting: Sequence[tuple[Any, Any]]) -> dict[str, Any]:
    """Return the result of comparing the ledger with all saved sessions."""
    billed: defaultdict[str, list[SumLine]] = defaultdict(list)
    for line in lines:
        billed[sums.session(line)].append(line)
    saved = where.saved()
    verdicts: list[_Verdict] = []
    not_ended = checked = 0
    with working("checking sessions", len(saved)) as step:
        for session in saved:
            of_it = billed.pop(session.txn, [])
            if session.live is not None:
                not_ended += 1
            else:
                checked += 1
                verdicts.append(_verdict(session, where, of_it, since))
            step()
    by_txn = {verdict.txn: verdict for verdict in verdicts}
    for pair in conflicting:
        (first, second), _ = sums.readable(pair)
        if max(first.entry.timestamp, second.entry.timestamp) >= since:
            txn = sums.session(first)
            by_txn.setdefault(txn, _Verdict(txn)).differences.append(f"{first.entry.id} is in the ledger twice: {_otherwise(*pair)}")
    agreed = sum(not verdict.differences for verdict in verdicts)
    verdicts = list(by_txn.values())
    differing = [{"txn": verdict.txn, "differences": verdict.differences} for verdict in verdicts if verdict.differences]
    return {"checked": checked, "agreed": agreed, "notEnded": not_ended, "withoutSession": sorted(billed), "differing": differing}


def _verdict(saved: Saved, where: Directory, lines: Sequence[SumLine], since: float) -> _Verdict:
    result = _Verdict(saved.txn)
    try:
        session = load(saved.txn, where).session
        stored = read_snapshot(saved.snapshot).tree.session.totals if saved.snapshot is not None else session.totals
    except (OptreeError, OSError, RecursionError) as error:
        result.differences.append(f"it cannot be read: {error}")
        return result
    every, poor = sums.readable(flatten(session).accounting)
    if poor:
        result.differences.append(f"{poor:,} of its entries have figures that are none")
    whole = sums.total(every)
    result.differences += _difference("leaves", whole, "totals", _of_totals(session.totals), unknown=True)
    result.differences += _difference(
        "leaves", whole, "stored totals", _of_totals(stored), unknown=stored.known_costs + stored.unknown_costs > 0
    )
    leaves = [leaf for leaf in every if leaf.entry.timestamp >= since]
    result.differences += _difference("leaves", sums.total(leaves), "ledger", sums.total(lines), unknown=True)
    result.differences += _missing(leaves, lines)
    result.differences += _altered(leaves, lines)
    return result


def _of_totals(totals: Totals) -> Sum:
    return Sum(pico_dollars=pico(totals.cost_usd), totals=totals)


def _difference(name_a: str, a: Sum, name_b: str, b: Sum, *, unknown: bool) -> list[str]:
    """Return in what two sums differ; money by more than what rounding each cost may have moved."""
    compared = {**_COMPARED, **({"unknownCosts": "unknown_costs"} if unknown else {})}
    pairs = {shown: (getattr(a.totals, name), getattr(b.totals, name)) for shown, name in compared.items()}
    differing = [f"{shown}: {name_a} {x:,}, {name_b} {y:,}" for shown, (x, y) in pairs.items() if x != y]
    if abs(a.pico_dollars - b.pico_dollars) > a.totals.known_costs + 1:
        differing.append(f"costUsd: {name_a} {dollars_of(a.pico_dollars)}, {name_b} {dollars_of(b.pico_dollars)}")
    return differing


def _otherwise(a: dict[str, Any], b: dict[str, Any]) -> str:
    """Return in what two lines of one entry differ."""
    from optree.compare.details import as_line, excerpt

    names = [name for name in {**a, **b} if a.get(name) != b.get(name)]
    phrases = (f"{name} {excerpt(as_line(a.get(name), name))}, {excerpt(as_line(b.get(name), name))}" for name in names)
    return "; ".join(phrases) or "members that say nothing"


def _altered(leaves: Sequence[SumLine], lines: Sequence[SumLine]) -> list[str]:
    """Return the entries whose lines in the ledger name something else: another model, say."""
    billed = {line.record["id"]: line.record for line in lines if not is_bare(line.record)}
    altered: list[str] = []
    for leaf in leaves:
        line = billed.get(leaf.entry.id)
        if line is None:
            continue
        of_leaf, of_line = ({name: redact(known.get(name)) for name in _NAMED} for known in (leaf.record, line))
        if of_leaf != of_line:
            altered.append(f"{leaf.entry.id}: leaf, ledger: {_otherwise(of_leaf, of_line)}")
    return (
        altered if len(altered) <= _SHOWN else [*altered[:_SHOWN], f"… and {len(altered) - _SHOWN:,} more lines that name something else"]
    )


def _missing(leaves: Sequence[SumLine], lines: Sequence[SumLine]) -> list[str]:
    """Return which entries stand on one side only: by id, or by their content where a line has no id."""
    ids = {line.record["id"] for line in lines if not is_bare(line.record)}
    bare = Bare(line.record for line in lines if is_bare(line.record))
    unbilled = [leaf.entry.id for leaf in leaves if leaf.entry.id not in ids and not bare.claim(leaf.record)]
    known, left = {leaf.entry.id for leaf in leaves}, {id(entry) for entry in bare.left()}
    strays = [line for line in lines if (id(line.record) in left if is_bare(line.record) else line.record["id"] not in known)]
    stray = [line.entry.id or f"a line of {sums.day(line)}" for line in strays]
    missing = [f"not in the ledger: {_listed(unbilled)}"] if unbilled else []
    return [*missing, f"only in the ledger: {_listed(stray)}"] if stray else missing


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN:,} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def _verdict_lines(verdict: dict[str, Any]) -> list[str]:
    lines = [f"{session['txn']}: {difference}" for session in verdict["differing"] for difference in session["differences"]]
    count = f"{verdict['agreed']:,} of {verdict['checked']:,} sessions agree: leaves = totals = ledger"
    more = [f"{verdict['notEnded']:,} not ended"] if verdict["notEnded"] else []
    more += [f"{len(verdict['withoutSession']):,} in the ledger only, whose files are not here"] if verdict["withoutSession"] else []
    return [*lines, " · ".join([count, *more])]
