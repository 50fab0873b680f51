"""Answers that Claude Code tells of, and what they cost: its results tell sums, of all calls since the child process began.

Output tokens of an answer are preliminary, unless it is streamed, and some calls are not told at all. So what a result tells more than the
answers do stands at the result, and the costs of the calls in it are 0 from then on: until then they are unknown.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from msgspec.structs import replace

from optree.builder import Op
from optree.builder.handles import account_again
from optree.errors import BudgetExceeded
from optree.nodes import USAGE_AT_START, AccountingEntry, Status
from optree.tracing.context import Scope
from optree.tracing.results import ModelResult
from optree.tree.totals import has_unknown_cost
from optree.usage import parts_of
from optree.values import is_object, text

_PARTS = ("inputTokens", "outputTokens", "cacheReadInputTokens", "cacheCreationInputTokens")
_Parts = tuple[int, ...]
_NOTHING: _Parts = (0, 0, 0, 0)


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
        """Take blocks; with each comes the usage, which may grow. Those behind a call of a tool may come when the op has ended."""
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
        return {**self.about, "content": self.blocks, "stop_reason": self.stop, "usage": self._usage}


class ConversationBill:
    """What is accounted for of one conversation."""

    def __init__(self) -> None:
        self._cost = 0.0
        self._tokens = _NOTHING
        """Accounted for up to the last result, as is the cost."""
        self._told = 0.0
        """What that told."""
        self._since: list[tuple[Op, AccountingEntry]] = []

    def restart(self) -> None:
        """Take that the sums begin anew."""
        self._cost, self._tokens, self._told = 0.0, _NOTHING, 0.0

    def begin(self, op: Op, scope: Scope) -> None:
        """Take a call that is made already: a budget that it would pass counts it no more, and refuses the next prompt."""
        if scope.budget is not None:
            with suppress(BudgetExceeded):
                op.spending = scope.budget.reserve(scope)

    def add(self, op: Op) -> None:
        """Take a call that has ended."""
        self._since += [(op, entry) for entry in op.bare.accounting]
        if op.spending is not None:
            op.spending.commit(op)

    def settle(self, op: Op, result: dict[str, Any]) -> None:
        """Account at the *op* of a result for what it tells and no call does; budgets count that with a call."""
        since, self._since = self._since, []
        self._settle(op, since, _dollars(result.get("total_cost_usd")), result)
        counted = {one.path: one for one, _ in since if one.spending is not None}
        for number, one in enumerate(reversed(counted.values())):
            more = op.bare.accounting if number == 0 else ()
            one.spending.commit(Op.of(one.builder, one.turn, replace(one.bare, accounting=(*one.bare.accounting, *more))))

    def _settle(self, op: Op, since: list[tuple[Op, AccountingEntry]], total: float | None, result: dict[str, Any]) -> None:
        models = result.get("modelUsage")
        took = _sum(_parts(entry) for _, entry in since)
        if total == 0.0 and result.get("is_error") is True and any(took):  # sums of a run that crashed may be zeroed
            total, models = None, None
        if total is not None and total < self._told:
            self.restart()
        self._tokens = _sum((self._tokens, took))
        self._cost += sum(entry.cost_usd or 0.0 for _, entry in since)
        missing = _NOTHING
        if is_object(models) and models:
            told = _sum(_of_model(one) for one in models.values())
            missing = tuple(max(0, one - known) for one, known in zip(told, self._tokens, strict=True))
            self._tokens = _sum((self._tokens, missing))
        if total is None:
            if any(missing):
                _account(op, missing, None)
            return
        cost = total - self._cost
        self._told = self._cost = total
        open_entries = [(one, entry) for one, entry in since if has_unknown_cost(entry)]
        if len(open_entries) == len(since) == 1 and not any((missing[0], *missing[2:])):  # all is of one call
            account_again(*open_entries[0], cost, output_tokens=missing[1])
            return
        for one, entry in open_entries:
            account_again(one, entry, 0.0, cost_in=op.path)
        if any(missing) or abs(cost) > 1e-12:  # noqa: PLR2004 - less than files can hold
            _account(op, missing, cost)


def _account(op: Op, missing: _Parts, cost: float | None) -> None:
    sent, received, cached, written = missing
    op.account(
        input_tokens=sent,
        output_tokens=received,
        cache_read_tokens=cached,
        cache_write_tokens=written,
        input_includes_cached=False,
        cost_usd=cost,
    )


def _sum(parts: Any) -> _Parts:
    return tuple(map(sum, zip(_NOTHING, *parts, strict=True)))


def _parts(entry: AccountingEntry) -> _Parts:
    found = entry.tokens or parts_of(0, 0)
    return found.input_tokens, found.output_tokens, found.cache_read_input_tokens, found.cache_write_input_tokens


def _of_model(told: Any) -> _Parts:
    found = [told.get(name) if is_object(told) else 0 for name in _PARTS]
    return tuple(one if type(one) is int and one > 0 else 0 for one in found)


def _dollars(told: Any) -> float | None:
    return float(told) if type(told) in (int, float) else None


def _output(usage: dict[str, Any]) -> int:
    found = usage.get("output_tokens")
    return found if type(found) is int else 0
