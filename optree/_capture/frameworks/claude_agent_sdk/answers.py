"""Answers that Claude Code tells of, and what they cost: its results tell sums, of all calls since the child process began.

Output tokens of an answer are preliminary, unless it is streamed, and some calls are not told at all. So what a result tells more than the
answers do stands at the result, by model, and the costs of the calls in it are 0 from then on: until then they are unknown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from msgspec.structs import replace

from optree._builder import Op
from optree._builder.handles import account_again
from optree._nodes import PARTIAL, USAGE_AT_START, AccountingEntry, Status, Tokens
from optree._providers.usage import parts_of
from optree._records import Accounted
from optree._tracing.context import Scope
from optree._tracing.results import ModelResult
from optree._tree.totals import has_unknown_cost
from optree._values import is_object, object_of, text
from optree.errors import BudgetExceeded

_PARTS = ("inputTokens", "outputTokens", "cacheReadInputTokens", "cacheCreationInputTokens")
_Parts = tuple[int, ...]
_NOTHING: _Parts = (0, 0, 0, 0)
_MILLIONTH = 1e-6


class _Sum(NamedTuple):
    """Tokens, and what they cost if that is known."""

    tokens: _Parts
    cost: float | None


_NO_SUM = _Sum(_NOTHING, None)


class _Result(ModelResult):
    __slots__ = ()
    decoded = True


class ToldAnswer:
    """An answer of a model, which comes a block at a time, and if the program asks for it also as a stream."""

    def __init__(self, op: Op, about: dict[str, Any], *, streamed: bool) -> None:
        self.op, self.about, self.streamed = op, about, streamed
        self.blocks: list[Any] = []
        self.stop: str | None = None
        self._usage: dict[str, Any] = {}
        self._result = _Result(op)

    def take(self, body: dict[str, Any], blocks: list[Any]) -> None:
        """Add content blocks. Each has the usage so far; blocks after a tool call may arrive once the op has ended."""
        self.blocks += blocks
        self.stop = body.get("stop_reason") or self.stop
        usage = body.get("usage")
        if self.streamed:
            return
        if is_object(usage):
            if not self._usage and self.op.bare.ended_at is None:
                self.op.builder.set_op(self.op, **{USAGE_AT_START: usage})  # what is left of it if the process is killed
            self._usage = usage if _output(usage) >= _output(self._usage) else self._usage
        for block in blocks:
            if block.get("type") == "thinking":
                self.op.think(text(block.get("thinking")))
        if self.op.bare.ended_at is not None:
            self.op.response(self._whole())

    def event(self, event: dict[str, Any]) -> None:
        """Take an event of its stream."""
        self._result.take(event)
        if event.get("type") == "message_delta":
            self.stop = event["delta"].get("stop_reason") or self.stop

    def end(self, status: Status = "ok", error: str | None = None, *, is_whole: bool = False) -> None:
        """End its op; if that is a failure, only where it is not known to be whole."""
        if is_whole or self.stop is not None:
            status, error = "ok", None
        elif self.streamed and status == "ok":
            status, error = "failed", "the answer broke off"
        if self.streamed:
            self._result.ended(status)
        else:
            self._result.returned(self._whole())
        self.op.end(status, error)

    def _whole(self) -> dict[str, Any]:
        so_far = self._usage and self._usage | {PARTIAL: True}  # the result tells the rest, and what it cost
        return {**self.about, "content": self.blocks, "stop_reason": self.stop, "usage": so_far}


class ConversationBill:
    """What is accounted for of one conversation."""

    def __init__(self) -> None:
        self._known: dict[str, _Sum] = {}
        """What is accounted for up to the last result, by model; what is of none under an empty name."""
        self._told = 0.0
        """The cost in the last result."""
        self._since: list[tuple[Op, AccountingEntry]] = []

    def restart(self) -> None:
        """Take that the sums begin anew."""
        self._known, self._told = {}, 0.0

    def begin(self, op: Op, scope: Scope) -> None:
        """Reserve budget for a call already made; one over the limit is not reserved, and the next prompt is refused."""
        if scope.budget is not None:
            with suppress(BudgetExceeded):
                op.spending = scope.budget.reserve(scope)

    def add(self, op: Op) -> None:
        """Take a call that has ended."""
        self._since += [(op, entry) for entry in op.bare.accounting]
        if op.spending is not None:
            op.spending.commit(op)

    def settle(self, op: Op, result: dict[str, Any]) -> None:
        """Account on the result's *op* for what no call reported; budgets add it to the last call."""
        since, self._since = self._since, []
        self._settle(op, since, result)
        counted = {one.path: one for one, _ in since if one.spending is not None}
        for number, one in enumerate(reversed(counted.values())):
            more = op.bare.accounting if number == 0 else ()
            one.spending.commit(Op.of(one.builder, one.turn, replace(one.bare, accounting=(*one.bare.accounting, *more))))

    def _settle(self, op: Op, since: list[tuple[Op, AccountingEntry]], result: dict[str, Any]) -> None:
        total, told = _dollars(result.get("total_cost_usd")), _told(result.get("modelUsage"))
        if (
            total == 0.0 and result.get("is_error") is True and any(any(_parts(entry)) for _, entry in since)
        ):  # sums of a crash may be zeroed
            total, told = None, {}
        if total is not None and total < self._told:
            self.restart()
        if not self._is_by_model(since, total, told) and (told or total is not None):
            told = {"": _Sum(_sum(one.tokens for one in told.values()), total)}
            before = self._known.values()
            self._known = {"": _Sum(_sum(one.tokens for one in before), sum(one.cost or 0.0 for one in before))}
        calls: dict[str, list[tuple[Op, AccountingEntry]]] = {}
        for one, entry in since:
            calls.setdefault(_model_of(entry, told), []).append((one, entry))
        for model in dict.fromkeys((*told, *calls)):
            known, of_model, sums = self._known.get(model, _NO_SUM), calls.get(model, []), told.get(model, _NO_SUM)
            took = _sum((known.tokens, *(_parts(entry) for _, entry in of_model)))
            spent = (known.cost or 0.0) + sum(entry.cost_usd or 0.0 for _, entry in of_model)
            missing = tuple(max(0, one - other) for one, other in zip(sums.tokens, took, strict=True))
            cost = None if total is None else sums.cost or 0.0
            self._known[model] = _Sum(_sum((took, missing)), spent if cost is None else cost)
            _account(op, model, of_model, missing, None if cost is None else cost - spent)
        self._told = self._told if total is None else total

    def _is_by_model(self, since: list[tuple[Op, AccountingEntry]], total: float | None, told: Mapping[str, _Sum]) -> bool:
        """Tell whether what a result has by model is all, under the names that the calls have."""
        costs = [one.cost for one in told.values() if one.cost is not None]
        used = {model for model, one in self._known.items() if any(one.tokens) or not model}
        used |= {_model_of(entry, told) for _, entry in since if any(_parts(entry))}
        is_whole = total is None or (len(costs) == len(told) and abs(sum(costs) - total) < _MILLIONTH)
        return bool(told) and is_whole and used <= told.keys()


def _account(op: Op, model: str, calls: list[tuple[Op, AccountingEntry]], missing: _Parts, cost: float | None) -> None:
    """Account for what a model took beyond its *calls*: its entry is a model's, and no call more."""
    if cost is not None:
        unknown = [(one, entry) for one, entry in calls if has_unknown_cost(entry)]
        if len(unknown) == len(calls) == 1 and not any((missing[0], *missing[2:])):  # all is of one call
            account_again(*unknown[0], cost, output_tokens=missing[1])
            return
        for one, entry in unknown:
            account_again(one, entry, 0.0, cost_in=op.path)
    if not any(missing) and abs(cost or 0.0) <= 1e-12:  # noqa: PLR2004 - less than files can hold
        return
    core = op.builder.core
    entry = AccountingEntry(f"{op.id}#{next(core.numbers)}", core.now_ms(), "llm" if model else "tool", cost_usd=cost)
    sent, received, cached, written = missing
    entry.tokens = Tokens(sent, received, cached, written, sum(missing))
    if model:
        names = {one.model for _, one in calls}
        entry.provider, entry.model, entry.retried = "anthropic", names.pop() if len(names) == 1 else model, True
    else:
        entry.command = op.bare.name
    op.builder.record(Accounted(op.path, entry))


def _told(models: Any) -> dict[str, _Sum]:
    """Return the sums of a result by model; its names say too how long a context is, as in `claude-opus-4-8[1m]`."""
    found: dict[str, list[Any]] = {}
    for name, told in models.items() if is_object(models) else ():
        found.setdefault(name.partition("[")[0], []).append(object_of(told))
    costs = {name: [_dollars(one.get("costUSD")) for one in told] for name, told in found.items()}
    return {
        name: _Sum(_sum(map(_of_model, told)), None if None in costs[name] else sum(cost or 0.0 for cost in costs[name]))
        for name, told in found.items()
    }


def _model_of(entry: AccountingEntry, told: Mapping[str, _Sum]) -> str:
    """Return which of the models in a result an entry is of; the only one may have another name there."""
    return next(iter(told)) if len(told) == 1 else entry.model or ""


def _sum(parts: Iterable[_Parts]) -> _Parts:
    return tuple(map(sum, zip(_NOTHING, *parts, strict=True)))


def _parts(entry: AccountingEntry) -> _Parts:
    found = entry.tokens or parts_of(0, 0)
    return found.input_tokens, found.output_tokens, found.cache_read_input_tokens, found.cache_write_input_tokens


def _of_model(told: Mapping[str, Any]) -> _Parts:
    found = [told.get(name) for name in _PARTS]
    return tuple(one if type(one) is int and one > 0 else 0 for one in found)


def _dollars(told: Any) -> float | None:
    return float(told) if type(told) in (int, float) else None


def _output(usage: dict[str, Any]) -> int:
    found = usage.get("output_tokens")
    return found if type(found) is int else 0
