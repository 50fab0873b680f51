"""Runs tests against modules that have a fault. Python and the tests are loaded once; each fault has a forked process of its own.

Where the fault is in a function, that function's code is exchanged in the fork. Where it is at a module's top, or in what is executed
while modules are imported, the fork imports everything anew, with the fault in it. Programs that the tests start have it too (`children`).
"""

from __future__ import annotations

import ast
import gc
import os
import pickle
import signal
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FunctionType
from typing import NamedTuple

import pytest

from tests.mutants import children, lines
from tests.mutants.faults import Mutant

MOST_SECONDS = 30.0
"""How long the tests of one mutant may take, as they take without it; the quickest are chosen."""
ARGUMENTS = ["-q", "-x", "-p", "no:cacheprovider", "-p", "no:faulthandler", "--hypothesis-profile=mutants"]


class Outcome(NamedTuple):
    """What became of a mutant."""

    mutant: Mutant
    killed: bool
    how: str
    """``test``, ``time`` or ``import`` for a mutant that was killed; what survived it else: how many tests."""


class Said:
    """Says what became of each mutant as soon as it is known, and when the time for them is over."""

    def __init__(self, seconds: float) -> None:
        self.fd = os.dup(2)  # forks are silent
        self.end = time.monotonic() + seconds

    def __call__(self, outcome: Outcome) -> Outcome:
        """Say it."""
        mutant = outcome.mutant
        line = "." if outcome.killed else f"\n{mutant.path}:{mutant.line}: {mutant.said}   ({outcome.how})\n"
        os.write(self.fd, line.encode())
        return outcome

    @property
    def over(self) -> bool:
        """True when no further mutant is to be tried."""
        return time.monotonic() > self.end


class Known(NamedTuple):
    """What the tests execute, learnt from a run without any fault."""

    ids: list[str]
    seconds: list[float]
    covering: dict[tuple[str, int], set[int]]
    """The tests that execute a line."""

    def of(self, mutant: Mutant) -> list[int]:
        """Return the tests that execute a mutant's line, as many as there is time for."""
        there = self.covering.get((mutant.path, mutant.line), set()) | self.covering.get((mutant.path, mutant.statement), set())
        return self._quickest(there)

    def of_module(self, path: str) -> list[int]:
        """Return the tests that execute anything of a module; all tests for one that is names and tables alone."""
        there = set().union(*(tests for (where, _), tests in self.covering.items() if where == path))
        return self._quickest(there or {test for test, seconds in enumerate(self.seconds) if seconds < MOST_SECONDS})

    def _quickest(self, tests: set[int]) -> list[int]:
        chosen, left = [], MOST_SECONDS
        for test in sorted(tests, key=lambda one: self.seconds[one]):
            left -= self.seconds[test]
            if left < 0 and chosen:
                break
            chosen.append(test)
        return chosen


class Serving:
    """A plugin of pytest: learns what the tests execute, and then runs those that concern each mutant."""

    def __init__(self, root: Path, mutants: list[tuple[Mutant, ast.Module]], results: Path, said: Said) -> None:
        self.root, self.mutants, self.results, self.said = root, mutants, results, said
        self.paths = {str(root / mutant.path): mutant.path for mutant, _ in mutants}
        self.failed = False
        self.shared: dict[int, tuple[str, str]] = {}
        """Fixtures that several tests share, by the negative number that stands for them: by name and by the file of the tests."""
        self.test = 0
        """The number of the test that runs, or of the fixture that is made for it and for others."""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Notice what fails."""
        self.failed |= report.failed

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef, request: pytest.FixtureRequest) -> object:
        """Notice what is executed for a fixture that other tests have too."""
        before = self.test
        if fixturedef.scope != "function":
            self.test = -1 - len(self.shared)
            self.shared[self.test] = fixturedef.argname, str(request.node.path)
        try:
            return (yield)
        finally:
            self.test = before

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Run the tests for each mutant, in place of one run of all."""
        _, _ = in_fork(lambda: self._learn(session), 3600.0)
        known: Known = pickle.loads(self.results.read_bytes())
        functions = self._functions()
        outcomes: list[Outcome] = []
        left: list[Mutant] = []
        for mutant, tree in self.mutants:
            if self.said.over:
                break
            tests, own = known.of(mutant), functions.get((str(self.root / mutant.path), mutant.function.partition(".<locals>")[0]), [])
            code = compile(tree, str(self.root / mutant.path), "exec")
            new = _codes(code)
            if not tests or not own or not all(_fits(one, new) for one in own):
                left.append(mutant)
                continue
            limit = 10.0 + 5 * sum(known.seconds[test] for test in tests)
            with children.put(str(self.root / mutant.path), code):
                failed, over = in_fork(lambda own=own, new=new, tests=tests: self._attack(session, own, new, tests), limit)
            outcomes.append(self.said(Outcome(mutant, bool(failed), "time" if over else "test" if failed else f"{len(tests)} tests")))
        self.results.write_bytes(pickle.dumps((known, outcomes, left)))
        return True

    def _learn(self, session: pytest.Session) -> int:
        """Run all tests, and write down which lines each executes, and how long it takes; those that fail or take long are left out."""
        known = Known([item.nodeid for item in session.items], [], defaultdict(set))
        elsewhere = self.results.with_name("lines")
        with children.followed(self.root, list(self.paths), elsewhere):
            for number, item in enumerate(session.items):
                self.test = number
                self.failed, begun = False, time.monotonic()
                tracing = lines.following(self.paths, lambda path, line: known.covering[self.paths[path], line].add(self.test))
                threading.settrace(tracing)
                sys.settrace(tracing)
                following = session.items[number + 1] if number + 1 < len(session.items) else None
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
                sys.settrace(None)
                known.seconds.append(1e9 if self.failed else time.monotonic() - begun)
                for path, line in _written(elsewhere):
                    known.covering[self.paths[path], line].add(number)
        for number, (name, path) in self.shared.items():
            users = {at for at, item in enumerate(session.items) if name in item.fixturenames and str(item.path).startswith(path)}
            for tests in known.covering.values():
                if number in tests:
                    tests.remove(number)
                    tests.update(users)
        self.results.write_bytes(pickle.dumps(known._replace(covering=dict(known.covering))))
        return 0

    def _functions(self) -> dict[tuple[str, str], list[FunctionType]]:
        found: dict[tuple[str, str], list[FunctionType]] = defaultdict(list)
        for one in gc.get_objects():
            if isinstance(one, FunctionType) and one.__code__.co_filename in self.paths:
                found[one.__code__.co_filename, one.__code__.co_qualname].append(one)
        return found

    def _attack(self, session: pytest.Session, own: list[FunctionType], new: dict[tuple[str, int], CodeType], tests: list[int]) -> int:
        for one in own:
            one.__code__ = new[_name(one.__code__)]
        self.failed = False
        items = [session.items[test] for test in tests]
        for item, following in zip(items, [*items[1:], None], strict=True):
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if self.failed:
                return 1
        return 0


def anew(mutant: Mutant, tree: ast.Module, root: Path, known: Known) -> Outcome:
    """Run the tests that concern a mutant in a process that imports all modules, one of them with the fault."""
    covering = known.of(mutant)
    tests = covering or known.of_module(mutant.path)
    seconds = 30.0 + 5 * sum(known.seconds[test] for test in tests)
    path = str(root / mutant.path)
    with children.put(path, compile(tree, path, "exec")):
        code, over = in_fork(lambda: int(pytest.main([*ARGUMENTS, *(known.ids[test] for test in tests)])), seconds)
    how = f"{len(tests)} tests" if covering else f"{len(tests)} tests of the module, in none of which the line is executed"
    return Outcome(mutant, bool(code), "time" if over else "import" if code else how)


def in_fork(work: Callable[[], int], seconds: float) -> tuple[int, bool]:
    """Return the exit code of a process that does the work, silently, and whether it was stopped for taking too long."""
    if not (pid := os.fork()):
        code = 70
        try:
            os.setsid()
            nothing = os.open(os.devnull, os.O_RDWR)
            for fd in (0, 1, 2):
                os.dup2(nothing, fd)
            code = work()
        except SystemExit as ended:
            code = int(bool(ended.code))
        finally:
            os._exit(code)
    until, over = time.monotonic() + seconds, False
    while not (found := os.waitpid(pid, os.WNOHANG))[0]:
        if time.monotonic() > until and not over:
            over = True
            os.killpg(pid, signal.SIGKILL)
        time.sleep(0.005)
    return os.waitstatus_to_exitcode(found[1]), over


def _written(path: Path) -> Iterator[tuple[str, int]]:
    """Yield the lines that processes of a test have executed, and forget them."""
    if path.exists():
        for said in path.read_text().splitlines():
            name, _, number = said.rpartition(":")
            yield name, int(number)
        path.unlink()


def _name(code: CodeType) -> tuple[str, int]:
    return code.co_qualname, code.co_firstlineno


def _codes(code: CodeType) -> dict[tuple[str, int], CodeType]:
    """Return all functions' code in a module's, by name and line."""
    found, waiting = {}, [code]
    while waiting:
        one = waiting.pop()
        found[_name(one)] = one
        waiting += [constant for constant in one.co_consts if isinstance(constant, CodeType)]
    return found


def _fits(function: FunctionType, new: dict[tuple[str, int], CodeType]) -> bool:
    found = new.get(_name(function.__code__))
    return found is not None and found.co_freevars == function.__code__.co_freevars
