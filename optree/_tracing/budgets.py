"""Budgets: what the calls of models in a block may take together, with those of all sub-agents, threads and processes that it starts."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextvars import ContextVar
from itertools import count
from math import isfinite
from pathlib import Path
from time import time
from typing import TYPE_CHECKING, Any, Final, Self, cast

from optree._builder import Op, SessionTreeBuilder
from optree._builder.guard import FAULTS
from optree._ids import is_txn
from optree._interrupts import pass_on, suppress
from optree._syscalls import calls as system
from optree._tracing import context
from optree._tracing.context import CURRENT, Holder, Scope
from optree._tracing.faults import fault, unless_faulty
from optree._tracing.holding import ContextManager, HeldScope, take_held
from optree._tracing.runtime import RUNTIME, report_problem
from optree._values import text
from optree.errors import BudgetExceeded, SetupError
from optree.redaction import redact

if TYPE_CHECKING:
    from optree._tracing.spending import Account, BudgetState, CountedCall

VARIABLE: Final = "OPTREE_BUDGET"
_PREFIX: Final = "optree.budget"
_MOST_INT: Final = 1 << 53
_MOST_JOINED: Final = 64
_LONGEST_NAMES: Final = 1024


class Limiter:
    """A budget, and those that it is within, as they meet calls of models: an `Allowance`."""

    def __init__(self, account: Account, *, outer: Limiter | None = None, joined: bool = False) -> None:
        self.account = account
        self.outer = outer
        """The budget that this one is in."""
        self._owner = 0 if joined else os.getpid()
        """The process that closes it; 0 if that is another one."""
        self._spots: dict[str, tuple[SessionTreeBuilder, Op | None]] = {}
        """By txn, the node that has the figures in the tree."""
        self._holder: Holder | None = None
        self._is_entered = self._is_outside = self._is_over = False

    def figures(self) -> dict[str, float]:
        """Return what is used now, by the limits' names."""
        self.refresh()
        return self.account.used()

    def refresh(self) -> BudgetState:
        """Return what all processes know."""
        try:
            self.account.refresh()
        except RecursionError:
            FAULTS.stack += 1
        except Exception as error:  # noqa: BLE001 - the last state that is known is returned
            fault(error)
        return self.account.state

    def _finish(self, *_outcome: object) -> None:
        """End the budget: it limits nothing any more. A forked child leaves the blocks that its parent is in."""
        if self._is_entered and not self._is_over and self._owner == os.getpid():
            self._tell()
            self.account.close()
        self._is_over = True
        self._spots.clear()
        with suppress(ValueError):
            _OPEN.remove(self)

    @property
    def alive(self) -> Limiter | None:
        """This budget, or the next around it that still holds."""
        limiter: Limiter | None = self
        while limiter is not None and limiter.is_over:
            limiter = limiter.outer
        return limiter

    @property
    def is_over(self) -> bool:
        """True once its block is left, in order or by an exception out of a signal's handler."""
        if not self._is_over and self._holder is not None and self._holder() is None:
            self._finish()
        return self._is_over or self.account.is_over

    def chain(self) -> list[Limiter]:
        """Return the budgets that hold within this one, the outermost first."""
        limiters: list[Limiter] = []
        limiter: Limiter | None = self
        while limiter is not None:
            if not limiter.is_over:
                limiters.append(limiter)
            limiter = limiter.outer
        return limiters[::-1]

    def check(self, where: Scope | None) -> None:
        """Raise `BudgetExceeded` if no call can be made."""
        self._attempt(where, lambda account, _: account.check())

    def reserve(self, where: Scope) -> Spending:
        """Reserve what the call may take that is about to be made here; raises `BudgetExceeded`."""
        return self._attempt(where, lambda account, spending: account.reserve(spending.number, spending.call))

    def _attempt(self, where: Scope | None, attempt: Callable[[Account, Spending], None]) -> Spending:
        spending = Spending()
        try:
            for budget in self.chain():
                spending.budgets.append(budget)
                if where is not None:
                    budget.stand_outside(where.session.builder)
                attempt(budget.account, spending)
        except BaseException as error:
            spending.give_back()
            if isinstance(error, BudgetExceeded) and where is not None and where.op is not None:
                where.op.log(str(error), "ERR")
            if not isinstance(error, Exception):
                raise
            fault(error)  # it is raised again, unless it is a fault of ours: then the call is made
        return spending

    def stand_outside(self, builder: SessionTreeBuilder) -> None:
        """Let the figures of a budget that was opened outside of all sessions stand at the root session of a call."""
        if self._is_outside and self._owner and builder.txn not in self._spots:
            self._stand(builder.core.builders.get("", builder), None)

    def _stand(self, builder: SessionTreeBuilder, op: Op | None) -> None:
        self._spots[builder.txn] = builder, op
        self._tell(builder.txn)

    def _tell(self, *txns: str) -> None:
        """Put the figures into the tree, as they are now."""
        used, unknown = self.figures(), self.account.state.used().unknown
        block: dict[str, Any] = {}
        for name, limit in self.account.state.limits.items():
            block |= {f"{_PREFIX}.{name}.limit": limit, f"{_PREFIX}.{name}.used": used[name]}
        if unknown:
            block[f"{_PREFIX}.unknown_cost"] = unknown
        for builder, op in [self._spots[txn] for txn in txns or list(self._spots) if txn in self._spots]:
            if op is not None:
                builder.set_op(op, **block)
            elif builder.node.ended_at is None:
                builder.set_title(attributes=block)

    def leaves(self, builder: SessionTreeBuilder) -> None:
        """Record the figures of now in a session that ends."""
        if self._spots.get(builder.txn, (None,))[0] is builder:
            self._tell(builder.txn)
            del self._spots[builder.txn]

    def commit(self, number: int, op: Op) -> None:
        """Count what a call took so far, and warn on its op if that passes a soft limit."""
        passed = self.account.commit(number, op.bare)
        for name in passed:
            limit, used = self.account.state.limits[name], self.account.used()[name]
            op.log(f"budget of {limit:g} {name}: {used:g} used, past its soft limit of {self.account.state.soft:.0%}", "WRN")
        if passed:
            self._tell()


class Spending:
    """What one call takes from the budgets that it is within."""

    __slots__ = ("budgets", "call", "number")

    def __init__(self) -> None:
        from optree._tracing.spending import CountedCall  # there is a budget

        self.budgets: list[Limiter] = []
        self.number = next(_numbers)
        self.call: CountedCall = CountedCall()

    def commit(self, op: Op) -> None:
        """Count what the op has accounted for so far; what was reserved for it is given back."""
        try:
            self.call.node = op.bare
            if op.bare.accounting or op.bare.ended_at is not None:
                for budget in self.budgets:
                    budget.commit(self.number, op)
        except RecursionError:
            FAULTS.stack += 1
        except Exception as error:  # noqa: BLE001 - the op ends, counted or not
            fault(error)

    def give_back(self) -> None:
        """Give back what is reserved: the call is not made."""
        for budget in self.budgets:
            budget.account.give_back(self.number)


class CarriedRefusal(BaseException):
    """Carries a refusal through a client that would try again, or hide it in an exception of its own."""


class Budget(ContextManager, Limiter):
    """What `with optree.budget(…) as budget` gives: the limits, and what is used of them, by all processes.

    Figures come by the limits' names, ``usd``, ``tokens``, ``calls`` and ``seconds``.
    """

    _held: HeldScope | None = None
    _scope: Scope | None = None

    @property
    def limits(self) -> dict[str, float]:
        """The limits that were given."""
        return dict(self.account.state.limits)

    @property
    def used(self) -> dict[str, float]:
        """What the calls that are over took, and the seconds since the block began."""
        return unless_faulty(self.figures, dict.fromkeys(self.account.state.limits, 0.0))

    @property
    def reserved(self) -> dict[str, float]:
        """What is held for calls that are under way."""
        return unless_faulty(lambda: self.refresh().reserved().named(), dict.fromkeys(self.account.state.limits, 0.0))

    @property
    def unknown_cost(self) -> int:
        """How many of the calls that are over have an unknown cost: each counts as 0 usd."""
        return unless_faulty(lambda: self.refresh().used().unknown, 0)

    def __enter__(self) -> Self:
        if self._is_entered:
            raise SetupError("a budget is entered once: write another optree.budget(…) for each block")
        if not RUNTIME.config.enabled:
            return self
        try:
            self._enter(take_held(self))
        except RecursionError:
            FAULTS.stack += 1
        except Exception as error:  # noqa: BLE001 - the block runs
            fault(error)
        return self

    async def __aenter__(self) -> Self:
        return type(self).__enter__(self)

    def _enter(self, held: HeldScope) -> None:
        before = context.here()
        self._is_entered, self._holder = True, held.holder
        self.account.start()
        try:
            _OPEN.append(self)
            if before is None:
                self.outer = OUTSIDE.get() or outside()
                self._is_outside = True
                OUTSIDE.set(self)
            else:
                self.outer = before.budget if isinstance(before.budget, Limiter) else None
                scope = Scope(before.session, before.turn, before.op, before, held.holder, self._finish, before.piece, self)
                self._scope = held.scope = scope
                context.enter(scope)
                self._stand(before.session.builder, before.op)
        except BaseException:
            self.leave(None, None)
            raise

    def leave(self, _scope: Scope | None, _error: BaseException | None) -> None:
        """End the budget, and put back what was before."""
        try:
            self._finish()
            self._put_back()
        except BaseException:  # an interrupt: what is begun is done whole
            self._finish()
            self._put_back()
            raise

    def _put_back(self) -> None:
        if self._scope is not None:
            if CURRENT.get() is self._scope:
                context.leave(self._scope)
        elif OUTSIDE.get() is self:
            OUTSIDE.set(self.outer)


def budget(
    *,
    usd: float | None = None,
    tokens: int | None = None,
    calls: int | None = None,
    seconds: float | None = None,
    soft: float | None = None,
    reserve_usd: float | None = None,
    reserve_tokens: int | None = None,
) -> Budget:
    """Limit what the calls of models in a block may take, with those of all sub-agents, threads and processes that it starts.

    A context manager, for `with` and `async with`. Calls are ops of `optree.llm`, and those that `optree.instrument` sees. Before one is
    made, what it may take is reserved; one that would pass a limit is not made: `optree.BudgetExceeded` is raised in its place. Once it is
    over, what it took is counted by its accounting, and the rest given back. Of nested budgets each holds. A limit that is reached ends no
    call that is under way. While optree is switched off, so are its budgets.

    ```python
    import optree

    with optree.session("lead"), optree.budget(usd=0.01, soft=0.8) as budget:
        try:
            for question in ["Why is the sky blue?"] * 10:
                with optree.llm(provider="openai", model="gpt-4o") as op:
                    op.account(input_tokens=812, output_tokens=64, cost_usd=0.0031)
        except optree.BudgetExceeded as error:
            print(error.which, error.limit, error.used)
    print(budget.used["calls"])
    ```

    Args:
        usd: US dollars. A call whose cost nobody knows counts as 0: `Budget.unknown_cost` tells how many there were.
        tokens: Tokens sent, with those from the cache, and received.
        calls: Calls of models, failed ones too; what a client sends again within a call is the same one.
        seconds: Time since the block began.
        soft: The part of each limit, above 0 and 1 at most, at which a warning is logged, once, on the op that passes it.
        reserve_usd: What a call may cost; by default as much as the largest one so far. Until there is one, calls that run at once are held
            to their number alone: give it where the first ones do.
        reserve_tokens: How many tokens a call may take; by default as above.

    Raises:
        ValueError: A figure is no finite number from 0 on, *soft* no part, or there is no limit.
    """
    limits = {"usd": usd, "tokens": tokens, "calls": calls, "seconds": seconds}
    reserve = {"usd": ("reserve_usd", reserve_usd), "tokens": ("reserve_tokens", reserve_tokens)}
    known = {name: _number(name, value) for name, value in limits.items() if value is not None}
    held = {name: _number(argument, value) for name, (argument, value) in reserve.items() if value is not None}
    part = None if soft is None else _number("soft", soft)
    if part is not None and not 0 < part <= 1:
        raise ValueError(f"budget(soft={part!r}) is no part of a limit: give a number above 0, and 1 at most")
    if not known:
        raise ValueError("budget() limits nothing: give usd, tokens, calls or seconds")
    from optree._tracing.spending import Account, BudgetState  # few programs have a budget

    return Budget(Account(BudgetState(known, held, part, time())))


def outside() -> Limiter | None:
    """Return the budget that holds where no session is open: that of the block, or of the process that started this one."""
    limiter = OUTSIDE.get()
    if limiter is None and (paths := os.environ.get(VARIABLE)):
        limiter = joined(paths)
    return None if limiter is None else limiter.alive


def common() -> Limiter | None:
    """Return the budget that holds for code without context: the innermost that is open, or is around each of several that are."""
    chains = [limiter.chain() for limiter in _OPEN.copy()]
    same = [limiter for limiter in chains[0] if all(limiter in chain for chain in chains)] if chains else []
    return same[-1] if same else None


def session_ends(builder: SessionTreeBuilder) -> None:
    """Record, as a session ends, the figures of the budgets around it."""
    limiter = OUTSIDE.get()
    while limiter is not None:
        limiter.leaves(builder)
        limiter = limiter.outer


def reference(budget: context.Allowance | None) -> str:
    """Return what another process joins a budget by, and all around it; empty if there is none."""
    chain = budget.chain() if isinstance(budget, Limiter) else []
    return os.pathsep.join(str(path) for limiter in chain if (path := limiter.account.share()) is not None)


def joined(paths: str) -> Limiter | None:
    """Return the budget of another process, as `reference` names it by *paths*, or of this one."""
    from optree._tracing.spending import Account, read

    innermost: Limiter | None = None
    for name in filter(None, paths.split(os.pathsep)):
        path = Path(name)
        known = next((limiter for limiter in [*_OPEN, *_JOINED] if limiter.account.path == path), None)
        if known is None:
            try:
                known = Limiter(Account(read(path), path), outer=innermost, joined=True)
            except FileNotFoundError as error:  # it is over
                pass_on(error)
                continue
            except (OSError, ValueError) as error:
                pass_on(error)
                report_problem(f"cannot join a budget ({error}): the calls of this process do not count against it")
                continue
            _JOINED[:] = [*[limiter for limiter in _JOINED if not limiter.is_over][-_MOST_JOINED:], known]
        innermost = known
    return innermost


def names_of(budget: context.Allowance | None) -> str:
    """Return what a process that is not trusted joins a budget by, and all around it, in its own directory; empty if there is none."""
    return " ".join(Path(path).name for path in filter(None, reference(budget).split(os.pathsep)))


def named(names: object) -> Limiter | None:
    """Return the budget that another process has told by `names_of`, or else this one's, which no name puts out of force."""
    own = outside()
    told = names.split() if isinstance(names, str) and len(names) <= _LONGEST_NAMES else []
    if not told or not all(is_txn(name) and system.may_name_a_file(name) for name in told):
        return own
    from optree._tracing.spending import BUDGETS  # there is a budget

    folder = RUNTIME.directory().sessions / BUDGETS
    theirs = joined(os.pathsep.join(str(folder / name) for name in told))
    return theirs if theirs is not None and (own is None or own in theirs.chain()) else own


def _number(name: str, value: object) -> float:
    """Return a figure of `budget`. Raises `ValueError` for a value that is not a finite number, 0 or above."""
    number = -1.0
    if not isinstance(value, (bool, str, bytes)):
        with suppress(TypeError, ValueError, OverflowError):
            number = float(cast("Any", value))
    if not (isfinite(number) and number >= 0):
        raw = redact(text(value))[:80]
        raise ValueError(f"budget({name}={repr(raw) if isinstance(value, str) else raw}) is no amount: give a finite number, 0 or above")
    return value if type(value) is int and value < _MOST_INT else number


OUTSIDE: Final[ContextVar[Limiter | None]] = ContextVar("optree_budget", default=None)
"""The innermost budget that was opened where no session is open; elsewhere it stands in the scope."""
_OPEN: Final[list[Limiter]] = []
_JOINED: Final[list[Limiter]] = []
"""Those of other processes."""
_numbers: Final = count(1)


def _before_fork() -> None:
    for limiter in _OPEN.copy():
        limiter.account.share()


system.register_at_fork(before=_before_fork)
