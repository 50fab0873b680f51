"""What the calls of models took and may take that count against one budget, of all processes that have a part in it.

Each process has a row of its own, which says all that its calls took so far and what is held for those that are under way: to write it
twice does no harm. As long as one process has the budget, the rows are in its memory; else in a file that all share.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from time import monotonic, time
from typing import Final, NamedTuple
from weakref import ref

import msgspec
from msgspec import Struct

from optree._ids import new_txn
from optree._interrupts import WeakMembers, is_held_here, new_rlock, pass_on, suppress
from optree._nodes import OperationNode
from optree._store.files.shared import SharedBytes
from optree._syscalls import calls
from optree._tracing.runtime import RUNTIME, report_problem
from optree._tree.totals import has_unknown_cost
from optree.errors import BudgetExceeded

BUDGETS: Final = "budgets"
"""The folder with the files of budgets that several processes share, among the sessions."""
_MOST_ROWS: Final = 200
_MOST_OPEN: Final = 1000
"""Calls that are over and whose cost may still become known."""
_PAUSE_SECONDS: Final = 1.0
"""How long a file is left alone that was refused."""
_OLD_SECONDS: Final = 3600.0


class Amount(NamedTuple):
    """What calls take: money, tokens and how many they are."""

    usd: float = 0.0
    tokens: int = 0
    calls: int = 0
    unknown: int = 0
    """How many of the calls have an unknown cost."""

    def named(self) -> dict[str, float]:
        """Return what has a limit, by the limit's name."""
        return {"usd": self.usd, "tokens": self.tokens, "calls": self.calls}

    def plus(self, other: Amount) -> Amount:
        """Return the sum, without what binary fractions leave behind the twelfth decimal."""
        usd = round(self.usd + other.usd, 12)
        return Amount(usd, self.tokens + other.tokens, self.calls + other.calls, self.unknown + other.unknown)

    def minus(self, other: Amount) -> Amount:
        """Return what is more than in the other."""
        usd = max(0.0, round(self.usd - other.usd, 12))
        return Amount(usd, max(0, self.tokens - other.tokens), max(0, self.calls - other.calls), max(0, self.unknown - other.unknown))

    def larger(self, other: Amount) -> Amount:
        """Return the larger money and tokens of the two."""
        return Amount(max(self.usd, other.usd), max(self.tokens, other.tokens))


class CountedCall:
    """One call of a model; lives as long as the handle of its op."""

    __slots__ = ("__weakref__", "is_to_come", "node")

    def __init__(self) -> None:
        self.is_to_come = False
        """True while what it took is still to be told, as of a response in the background: what was reserved is held so long."""
        self.node: OperationNode | None = None
        """Its op, once any of its tokens or costs is known."""


class _Row(Struct, array_like=True):
    """What one process has taken, what it holds for calls that are under way, and the most that one call took."""

    used: Amount = Amount()
    reserved: Amount = Amount()
    largest: Amount = Amount()


class BudgetState(Struct):
    """What all processes know of a budget."""

    limits: dict[str, float]
    reserve: dict[str, float]
    """What a call may take, as far as the program says."""
    soft: float | None
    began: float
    """Epoch seconds."""
    warned: list[str] = []
    """The limits whose soft limit was passed."""
    rows: dict[str, _Row] = {}
    """By process; those of processes that have gone are added up in that of the empty name."""

    def used(self) -> Amount:
        """Return what the calls that are over took."""
        return _sum(row.used for row in self.rows.values())

    def reserved(self) -> Amount:
        """Return what is held for those that are under way."""
        return _sum(row.reserved for row in self.rows.values())

    def wanted(self) -> Amount:
        """Return what the next call may take."""
        usd = max((row.largest.usd for row in self.rows.values()), default=0.0)
        tokens = max((row.largest.tokens for row in self.rows.values()), default=0)
        return Amount(self.reserve.get("usd", usd), int(self.reserve.get("tokens", tokens)), 1)

    def compare(self, elapsed: float) -> None:
        """Raise `BudgetExceeded` if the next call would pass a limit."""
        used, reserved, next_call = self.used().named() | {"seconds": elapsed}, self.reserved().named(), self.wanted().named()
        for name, limit in self.limits.items():
            held, wanted = reserved.get(name, 0), next_call.get(name, 0)
            taken = round(used[name] + held, 12)
            if round(taken + wanted, 12) > limit or taken >= limit:
                raise BudgetExceeded(name, limit, used[name], held, wanted)

    def drop_dead(self) -> bool:
        """Give back what processes hold that were killed; False if there is none."""
        dead = [key for key in self.rows if key and not _is_alive(key)]
        for key in dead:
            row, rest = self.rows.pop(key), self.rows.get("", _Row())
            self.rows[""] = _Row(rest.used.plus(row.used), Amount(), rest.largest.larger(row.largest))
        return bool(dead)


class Account:
    """The calls of this process that count against a budget, and what is known of the others'."""

    def __init__(self, state: BudgetState, path: Path | None = None) -> None:
        self.state = state
        self.is_over = False
        """True once the process that opened the budget has closed it."""
        self._file = None if path is None else SharedBytes(path)
        self._is_own = path is None
        self._lock = new_rlock()
        self._since = monotonic() - max(0.0, time() - state.began)
        self._refused_until = 0.0
        self._problem = ""
        self._open: dict[int, tuple[ref[CountedCall], Amount]] = {}
        """By number, the calls that are under way, or whose figures may still change, and what was reserved for each."""
        self._counted: dict[int, Amount] = {0: Amount()}
        """What those took as far as they say; under 0 all others."""
        self._largest = Amount()
        self._inherited: dict[int, Amount] = {}
        """What calls had taken by the time at which this process was forked in the middle of them."""
        _ALL.add(self)

    def start(self) -> None:
        """Let the time begin now."""
        self.state.began, self._since = time(), monotonic()

    def used(self) -> dict[str, float]:
        """Return what is used, by the limits' names."""
        return self.state.used().named() | {"seconds": round(monotonic() - self._since, 3)}

    def check(self) -> None:
        """Raise `BudgetExceeded` if no call can be made."""
        self._change(self._compare)

    def reserve(self, number: int, call: CountedCall) -> None:
        """Reserve what a call may take; raises `BudgetExceeded`."""

        def change(state: BudgetState) -> None:
            self._open.pop(number, None)
            self._compare(state)
            self._open[number] = ref(call), state.wanted()
            self._put_row(state)

        self._change(change)

    def give_back(self, number: int) -> None:
        """Give back what is reserved for a call that is not made."""
        if self._open.pop(number, None) is not None:
            self._change(self._put_row)

    def commit(self, number: int, node: OperationNode) -> list[str]:
        """Count what a call took as far as its op says; returns the names of the limits whose soft limit that passes."""
        passed: list[str] = []
        if number not in self._open:  # one that is counted
            return passed
        amount, is_known = self._own_part(number, node)

        def change(state: BudgetState) -> None:
            if number in self._open and self._counted.get(number) is not _ADDED:
                self._counted[number] = amount
            self._largest = self._largest.larger(amount)
            self._put_row(state)
            used = self.used() | state.used().named()
            over = [name for name, limit in state.limits.items() if state.soft and used[name] >= state.soft * limit]
            passed[:] = [name for name in over if name not in state.warned]
            state.warned = state.warned + passed

        if self._counted.get(number) != amount:
            self._change(change)
        if node.ended_at is not None and (is_known or len(self._open) > _MOST_OPEN):
            with self._lock:
                self._add_up(number)
        return passed

    def refresh(self) -> BudgetState:
        """Return what is known now."""
        self._change(self._put_row)
        return self.state

    def share(self) -> Path | None:
        """Let other processes have a part in it; returns the file, None where the disk takes none."""
        with self._lock:
            if self._file is None and monotonic() >= self._refused_until:
                file, process = SharedBytes(RUNTIME.directory().sessions / BUDGETS / new_txn()), os.getpid()
                self._file = file
                try:
                    _remove_old(file.path.parent)
                    self._put_row(self.state)
                    file.create(msgspec.json.encode(self.state))
                except BaseException as error:
                    if os.getpid() == process:  # else a handler has forked, and it is the parent's, which goes on with it
                        file.remove()
                    self._file = None
                    if not isinstance(error, OSError):
                        raise
                    pass_on(error)
                    self._refused(error)
                else:
                    self._shared()
            return self.path

    @property
    def path(self) -> Path | None:
        """The file that is shared."""
        return None if self._file is None else self._file.path

    def close(self) -> None:
        """Remove the file: by that other processes know that the budget is over."""
        with self._lock:
            if self._file is not None:
                self._change(self._put_row)
                self.is_over = True  # from here on there may be no file
                self._file.remove()
            self._shared()

    def after_fork(self) -> None:
        """In a forked child: what the parent took and reserved is counted by the parent, which also ends the budget."""
        self._is_own = False
        self._inherited = {number: _taken(call.node)[0] for number, (life, _) in self._open.items() if (call := life()) and call.node}
        self._open = {number: (life, Amount()) for number, (life, _) in self._open.items()}
        self._counted, self._largest = {0: Amount()}, Amount()

    def _own_part(self, number: int, node: OperationNode) -> tuple[Amount, bool]:
        """Return what a call took beside what the parent process says, and whether its entries say all."""
        amount, is_known = _taken(node)
        parents = self._inherited.get(number)
        return (amount if parents is None else amount.minus(parents)), is_known

    def _compare(self, state: BudgetState) -> None:
        self._put_row(state)
        elapsed = self.used()["seconds"]
        try:
            state.compare(elapsed)
        except BudgetExceeded:
            if not state.drop_dead():
                raise
            state.compare(elapsed)

    def _put_row(self, state: BudgetState) -> None:
        """Put what this process has taken and holds among the others'."""
        held: list[Amount] = []
        for number, (life, wanted) in list(self._open.items()):
            call, amount = life(), self._counted.get(number)
            if call is None or amount is _ADDED:  # a handle that is forgotten accounts for nothing more
                self._add_up(number)
            elif amount is None:
                held.append(wanted)
            elif call.node is not None:
                self._counted[number] = self._own_part(number, call.node)[0]
                if call.is_to_come:
                    held.append(wanted._replace(calls=0))
        state.rows[_key()] = _Row(_sum(self._counted.values()), _sum(held), self._largest)

    def _add_up(self, number: int) -> None:
        """Add a call whose figures are known to the sum of those; twice does no harm."""
        amount = self._counted.get(number)
        if amount is not None and amount is not _ADDED:
            self._counted.update({0: self._counted[0].plus(amount), number: _ADDED})  # in one call of C, which no handler interrupts
        self._open.pop(number, None)
        self._counted.pop(number, None)

    def _change(self, change: Callable[[BudgetState], None]) -> None:
        """Change what is known, in the file if there is one: where that cannot be, in this process alone, until it can."""
        with self._lock:
            if self._file is None or self.is_over or monotonic() < self._refused_until:
                change(self.state)
                return

            def changed(data: bytes) -> bytes:
                state = _decoded(data)
                if len(state.rows) > _MOST_ROWS:
                    state.drop_dead()
                change(state)
                self.state = state
                return msgspec.json.encode(state)

            try:
                self._file.change(changed)
            except FileNotFoundError as error:
                pass_on(error)
                if not self._is_own:
                    self.is_over = True
                    return
                self._refused(error)
                change(self.state)
            except (OSError, msgspec.MsgspecError) as error:
                pass_on(error)
                self._refused(error)
                change(self.state)
            else:
                self._shared()

    def _shared(self) -> None:
        """Note that no process counts alone any more."""
        if self._problem:
            RUNTIME.problems.resolve(self._problem)
            self._problem = ""

    def _refused(self, error: Exception) -> None:
        self._refused_until = monotonic() + _PAUSE_SECONDS
        why = getattr(error, "strerror", None) or error
        self._problem = f"a budget is not shared ({why}): each process counts its own calls alone until it is"
        report_problem(self._problem)
        RUNTIME.problems.resolve(self._problem, over=False)


def is_changing() -> bool:
    """Tell whether this thread is changing what some budget knows."""
    return any(is_held_here(account._lock) for account in list(_ALL))  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - of this module


_ALL: Final = WeakMembers[Account]()
_ADDED: Final = Amount()
"""Stands for the figures of a call that are in the sum."""
_names: Final[dict[int, str]] = {}
_decoded: Final = msgspec.json.Decoder(BudgetState).decode


def read(path: Path) -> BudgetState:
    """Return what stands in a file. Raises `OSError`, and `ValueError` for one that is not of a budget."""
    return _decoded(SharedBytes(path).read())


def _key() -> str:
    """Return the name of this process, which no other has."""
    pid = os.getpid()
    if pid not in _names:
        _names[pid] = f"{pid}-{calls.process_start(pid)}"
    return _names[pid]


def _is_alive(key: str) -> bool:
    pid, _, began = key.partition("-")
    start = calls.process_start(int(pid))
    return start is not None and (start == began or not start or not began)


def _remove_old(folder: Path) -> None:
    """Remove the files of budgets none of whose processes lives: they were killed."""
    for path in [*folder.iterdir()] if folder.is_dir() else ():
        with suppress(OSError, msgspec.MsgspecError, ValueError):
            is_old = path.stat().st_mtime < time() - _OLD_SECONDS
            if is_old and not any(_is_alive(key) for key in read(path).rows if key):
                SharedBytes(path).remove()


def _taken(node: OperationNode) -> tuple[Amount, bool]:
    """Return what a call took as far as its entries say, and whether they say all."""
    entries = node.accounting
    usd = sum(entry.cost_usd or 0.0 for entry in entries)
    tokens = [0 if entry.tokens is None else entry.tokens.total_tokens for entry in entries]
    is_unknown = not entries or any(map(has_unknown_cost, entries))
    return Amount(round(usd, 12), sum(tokens), 1, int(is_unknown)), not is_unknown


def _sum(amounts: Iterable[Amount]) -> Amount:
    total = Amount()
    for amount in amounts:
        total = total.plus(amount)
    return total


def _after_fork() -> None:
    for account in list(_ALL):
        account.after_fork()


calls.register_at_fork(after_in_child=_after_fork)
