"""One exception at one bytecode of one call, and what is wrong afterwards."""

from __future__ import annotations

from collections.abc import Callable, Collection

import optree
from tests.interrupts.capturing import CAPTURED, HOOKING, OUTSIDE, captured_flaws, end_program, hook_flaws, hooks
from tests.interrupts.injecting import NOWHERE, Injection, LateError, Stop
from tests.interrupts.joining import JOINS, started
from tests.interrupts.resting import Rest
from tests.interrupts.scenarios import (
    BUDGETS,
    CALLS,
    CALLS_WITHIN,
    ROOTS,
    budget_flaws,
    left_flaws,
    prices_flaws,
    probe_flaws,
    run_flaws,
    totals_flaws,
)

NAMES = [*ROOTS, *JOINS, *CALLS_WITHIN, *CAPTURED, *OUTSIDE, *HOOKING]
ENTERED = [*CAPTURED] + [name for name in CALLS_WITHIN if name.startswith(("with", "@", "async")) and "generator" not in name]
"""Calls that open nodes and close them; a generator that is hit closes its own blocks when Python closes it."""
KINDS: dict[str, type[BaseException]] = {"Stop": Stop, "LateError": LateError}


class Round:
    """Runs the call *name* with an exception at *place*."""

    def __init__(self, name: str, place: int, kind: str = "Stop", *, in_handlers: bool = False) -> None:
        self.name = name
        self.injection = Injection(place, KINDS[kind]("out of a handler"), in_handlers=in_handlers or name in JOINS)
        self.flaws: list[str] = []

    def run(self, rest: Rest | None = None, *, probing: bool = True) -> list[str]:
        """Return what is wrong, also with the next session when *probing*; what is to be looked at with nothing open is told to *rest*."""
        calls = len(CALLS)
        BUDGETS.clear()  # of other tests in this process, whose scenarios meet a broken recorder
        self._rest = rest
        if self.name in ROOTS:
            self._injected(ROOTS[self.name])
        elif self.name in JOINS:
            with started():
                self._injected(JOINS[self.name])
        elif self.name in CAPTURED:
            with hooks(are_in=True):
                self._within(CAPTURED[self.name])
                self.flaws += captured_flaws()
        elif self.name in OUTSIDE:
            with hooks(are_in=True):
                self._injected(OUTSIDE[self.name])
                self.flaws += end_program()
        elif self.name in HOOKING:
            with hooks(are_in=not self.name.startswith("instrument")):
                self._injected(HOOKING[self.name])
                self.flaws += hook_flaws()
        else:
            self._within(CALLS_WITHIN[self.name])
        self.flaws += run_flaws(calls) + budget_flaws()
        if optree.current_session() is not None:
            self.flaws.append(f"context afterwards: {optree.current_session()} {optree.current()}")
        if probing:
            self.flaws += [f"next session: {flaw}" for flaw in probe_flaws()]
            self.flaws += left_flaws()
        return [f"{self}: {flaw}" for flaw in self.flaws]

    def __str__(self) -> str:
        return f"{self.name} at {self.injection.place} ({self.injection.where})"

    def _within(self, call: Callable[[object], object]) -> None:
        with optree.session("program") as session:
            with optree.turn(), optree.llm(provider="openai", model="gpt-4o") as op:
                op.account(input_tokens=1, cost_usd=0.125)
                before, opened = optree.current(), open_in(session)
                self._injected(lambda: call(op))
                if optree.current() is not before:
                    self.flaws.append(f"context: {optree.current()}")
                if self.name in ENTERED and not self.injection.returning and open_in(session) != opened:
                    self.flaws.append(f"still open: {open_in(session)}")
            self.flaws += totals_flaws(session.builder.node) + prices_flaws(session.builder.node)
        if self._rest is not None:
            self._rest.sessions.append(session.builder)
        left = [turn.path for turn in session.builder.node.turns if turn.ended_at is None]
        if left or session.running:
            self.flaws.append(f"not ended: {left}")

    def _injected(self, function: Callable[[], object]) -> None:
        before = optree.current_session(), optree.current()
        try:
            self.injection.run(function)
        except BaseException as error:  # noqa: BLE001 - it is looked at
            if error is not self.injection.error:
                self.flaws.append(f"raised {error!r}")
            if (optree.current_session(), optree.current()) != before:  # also while it is handled
                self.flaws.append(f"context while it is handled: {optree.current_session()} {optree.current()}")
            error.__traceback__ = error.__context__ = None  # the program lets go of it
        else:
            if self.injection.raised and not self.injection.dropped:
                self.flaws.append("swallowed")
        if self._rest is not None:
            self._rest.note(str(self), possible=self.injection.possible)


def open_in(session: optree.Session) -> list[str]:
    """Return the paths of the turns and ops that are open in a session."""
    turns = session.builder.node.turns
    return [node.path for turn in turns for node in (turn, *turn.ops) if node.ended_at is None]


def places(name: str, share: int = 1, first: int = 0, within: Collection[str] = (), *, every: bool = True) -> tuple[list[int], int]:
    """Return places of a call, and how many it has: one in *share* from the *first* on, *within* some functions.

    Not *every* one are those where CPython runs handlers.

    Of the turns of a loop those are left out that are neither its first nor its last.
    """
    Round(name, NOWHERE).run()  # what is done once per process is done by then
    one = Round(name, NOWHERE)
    one.run()
    stacks, functions, handlers = one.injection.stacks, one.injection.functions, one.injection.handlers
    last = {stack: place for place, stack in enumerate(stacks)}
    seen: set[int] = set()
    found = []
    for place, stack in enumerate(stacks):
        if (stack not in seen or last[stack] == place) and (not within or functions[place] in within) and (every or handlers[place]):
            found.append(place + 1)
        seen.add(stack)
    return found[first % share :: share], len(stacks)
