"""Signals at random times, with a handler that raises."""

from __future__ import annotations

import signal
import sys
from random import Random
from typing import Any

import optree
from tests.interrupts.injecting import Stop, TimeLimitError
from tests.interrupts.scenarios import CALLS_WITHIN, ROOTS, budget_flaws, left_flaws, probe_flaws, totals_flaws

LEFT_OUT = ("flush", "health", "configure", "snapshot", "end_session")
"""Calls that take most of the time, or change the options."""
USUAL = [call for name, call in CALLS_WITHIN.items() if not name.startswith(LEFT_OUT)]

IMPORTING = ("<frozen importlib._bootstrap>", "<frozen importlib._bootstrap_external>")
"""Where Python looks for a module's file, it takes any OSError, which a time limit is, for a folder that is not there."""


class Storm:
    """Runs what programs do while signals come, and looks now and then at what became of it."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._armed = False
        self._sessions: list[Any] = []
        self._where = ""
        self.raised = 0
        self.caught = 0
        self.lost = 0
        """Raised where Python drops what is raised: in a finalizer."""

    def run(self, until: int) -> list[str]:
        """Go on until so many exceptions were raised; return what is wrong then."""
        before = signal.signal(signal.SIGALRM, self._handle), sys.unraisablehook
        sys.unraisablehook = self._dropped
        found = []
        try:
            while self.raised < until:
                found += self._once()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before[0])
            sys.unraisablehook = before[1]
        found += [flaw for session in self._sessions for flaw in totals_flaws(session.builder.node)]
        self._sessions.clear()
        return [*found, *budget_flaws(), *probe_flaws(), *left_flaws()]

    def _once(self) -> list[str]:
        flaws = []
        calls = self._random.choices(USUAL, k=3)
        root = self._random.choice(list(ROOTS.values()))
        self._armed = True
        before = self.raised, self.caught + self.lost
        try:
            try:
                signal.setitimer(signal.ITIMER_REAL, self._random.uniform(0.00005, 0.004))
                if self._random.random() < 0.3:
                    root()
                else:
                    with optree.session("stormy") as session:
                        self._sessions.append(session)
                        with optree.turn(), optree.llm(provider="openai", model="gpt-4o") as op:
                            for call in calls:
                                call(op)
            finally:
                self._armed = False
                signal.setitimer(signal.ITIMER_REAL, 0)
        except (Stop, TimeLimitError):
            self.caught += 1
            if optree.current_session() is not None:
                flaws.append(f"context while it is handled: {optree.current()}")
        if optree.current_session() is not None:
            flaws.append(f"context: {optree.current()}")
        if (self.raised - before[0], self.caught + self.lost - before[1]) not in ((0, 0), (1, 1)):
            flaws.append(f"swallowed: {self._where}")
            self.caught += 1
        return flaws

    def _handle(self, _number: int, frame: Any) -> None:
        if self._armed:
            self._armed = False
            self.raised += 1
            self._where = " < ".join(f"{one.f_code.co_qualname}:{one.f_lineno}" for one in _stack(frame)[:6])
            raise (Stop if self.raised % 2 or frame.f_code.co_filename in IMPORTING else TimeLimitError)("at a random time")

    def _dropped(self, told: Any) -> None:
        self.lost += isinstance(told.exc_value, (Stop, TimeLimitError))


def _stack(frame: Any) -> list[Any]:
    found = []
    while frame is not None:
        found.append(frame)
        frame = frame.f_back
    return found
