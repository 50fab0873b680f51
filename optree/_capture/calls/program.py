"""The session of a program that begins none itself: its turns are found by what its calls of models say."""

from __future__ import annotations

import atexit
import os
import sys
from collections import deque
from collections.abc import Callable, Collection, Generator
from contextlib import contextmanager
from pathlib import PurePath
from typing import Any, Final
from weakref import ref

from optree._background import AT_END
from optree._builder import Op, Turn
from optree._builder.outcome import outcome
from optree._capture.calls.requests import Asked
from optree._interrupts import if_free, is_held_here, new_rlock, suppress
from optree._providers.messages import TextPart, ToolCallPart, ToolResultPart, answers, message
from optree._tracing.budgets import common, outside
from optree._tracing.context import ABANDONED, Scope, ingress
from optree._tracing.faults import guarded
from optree._tracing.handles import Session
from optree._tracing.holding import abandon_turn, clear_frames
from optree._tracing.propagate import remote
from optree._tracing.runtime import RUNTIME
from optree._tracing.scopes import OpScope
from optree._values import decode

_MOST_SECONDS: Final = 2.0
_MOST_WAITING: Final = 10_000
_MOST_OPEN: Final = 256
"""Turns whose last answer asked for tools."""


class _Opened:
    """Lives as long as the session is known that was opened with it: one whose begin was interrupted is ended."""


class Program:
    """One session for all calls that are made outside of one, until the program ends.

    A turn is what the user asked and all calls to answer it: one that sends results of tools belongs to the turn whose answer asked for
    them; any other begins a turn, which ends with the first answer that asks for no tool.
    """

    def __init__(self) -> None:
        self._lock = new_rlock()
        self._session: Session | None = None
        self._turns: dict[str, Turn] = {}
        """Those that are open, by path."""
        self._waiting: dict[tuple[str, str | None], Turn] = {}
        """By the id of a tool call that an answer asked for, which some providers give to several, and the question of its turn."""
        self._opened: _Opened | None = None
        self._process = 0
        """That of the session."""
        self._answered: deque[tuple[Op, Turn, list[str]]] = deque()
        """Ops that have ended and whose turns are still to be looked at."""
        self.before_exit: list[Callable[[], None]] = []
        """Called before the session ends with the program."""

    @property
    def is_held_here(self) -> bool:
        """True if this thread is beginning a call, or ending a turn."""
        return is_held_here(self._lock)

    def here(self) -> Scope | None:
        """Return the session that was begun last for calls outside of one."""
        session = self._session
        return None if session is None else Scope(session)

    def begin(self, scope: OpScope, asked: Asked) -> Scope:
        """Begin the op of a call that is made outside of all sessions.

        It stands where another process had this one begin, else in the only session that is open, else in this one.
        """
        with self._lock:
            self._take_answered()
            return scope.begin(remote() or self._place_within_budget(asked))

    def place_of_tool(self) -> Scope:
        """Return where a tool's call belongs that is made outside of all sessions: in the last turn whose answer asked for tools."""
        with self._lock:
            if (elsewhere := remote()) is not None:
                return elsewhere
            session = RUNTIME.only_session() or self._open()
            turn = next(reversed(self._turns.values()), None) if session is self._session else None
            return Scope(session, turn, budget=outside() or common())

    def _place_within_budget(self, asked: Asked) -> Scope:
        """Return where a call belongs; raises `BudgetExceeded` before a turn is begun for one that cannot be made."""
        budget = outside() or common()
        if budget is not None:
            budget.check(None)
        where = self._place(asked)
        where.budget = budget
        return where

    def end_unused(self) -> None:
        """End the turns that an interrupt has left without a call."""
        with self._lock:
            for path, turn in list(self._turns.items()):
                if not turn.node.ops or turn.node.ops[-1].status == "cancelled":
                    turn.end(*ABANDONED)
                    self._turns.pop(path, None)

    def _place(self, asked: Asked) -> Scope:
        """Return where a call belongs, with a turn for what the user asked."""
        with self._lock:
            session = RUNTIME.only_session()
            if session is None:
                session = self._open()
            if session is not self._session:
                return Scope(session)
            results, question = asked_last(asked.messages or [])
            asks = next((key for name in results if (key := (name, question)) in self._waiting), None)
            if asks is None and results:
                asks = next((key for key in reversed(self._waiting) if key[0] in results), None)
            turn = None if asks is None else self._waiting.pop(asks)
            if turn is None and results and self._turns:  # tool calls without ids
                latest = [*reversed(self._turns.values())]
                turn = next((one for one in latest if (one.node.prompts or {}).get("user") == question), latest[0])
            if turn is None or turn.node.ended_at is not None:
                turn = None
                try:
                    turn = session.builder.begin_turn(user=question)
                    self._turns[turn.path] = turn
                except BaseException:  # an interrupt
                    if turn is None:
                        clear_frames()
                        abandon_turn(session.builder)
                    else:
                        turn.end(*ABANDONED)
                    raise
                while len(self._turns) > _MOST_OPEN:  # whose tools' results never came
                    self._turns.pop(next(iter(self._turns))).end()
            return Scope(session, turn)

    def answered(self, op: Op) -> None:
        """Take that an op has ended: with it ends its turn, unless the answer asks for tools.

        A finalizer may say so on any thread, whatever lock that holds: it waits for a bounded time, and then whoever comes next takes it.
        """
        turn = self._turns.get(op.turn.path)
        if turn is None or turn is not op.turn:
            return
        response = op.bare.response
        self._answered.append((op, turn, [] if response is None else _asked_for(decode(response.payload))))
        if_free(self._lock, self._take_answered, _MOST_SECONDS)

    def _take_answered(self) -> None:
        """Take the answers that have come; with the lock held."""
        while self._answered:
            op, turn, asks = self._answered[0]
            is_known = self._turns.get(turn.path) is turn  # else its session has ended
            for name in filter(None, asks if is_known else ()):
                self._waiting[name, (turn.node.prompts or {}).get("user")] = turn
            while len(self._waiting) > _MOST_WAITING:
                del self._waiting[next(iter(self._waiting))]
            if not asks:
                turn.end(op.bare.status or "ok", op.bare.error)
                if is_known:
                    self._turns.pop(turn.path, None)
            with suppress(IndexError, ValueError):  # called within itself, it took that too
                self._answered.remove((op, turn, asks))

    def _open(self) -> Session:
        session = self._session
        if session is None or self._opened is None or session.txn not in RUNTIME.sessions:
            atexit.unregister(self._end_at_exit)
            atexit.register(self._end_at_exit)
            if self._end_at_exit not in AT_END:
                AT_END.insert(0, self._end_at_exit)
            self._process = os.getpid()
            self._opened, opened = None, _Opened()
            session = RUNTIME.open_root(program_name(), {"ingress": ingress()}, ref(opened))
            self._session, self._turns, self._waiting = session, {}, {}
            RUNTIME.of_program = session
            self._opened = opened  # last: without it the next begin ends the session
        return session

    def _end_at_exit(self) -> None:
        """End the session with the program; in a child that was forked from it, nothing."""
        if os.getpid() == self._process:
            for done in self.before_exit:
                done()
            is_interactive = hasattr(sys, "ps1")  # then it is an exception of one input, as of a notebook's cell
            self.end(None if is_interactive else getattr(sys, "last_exc", None) or getattr(sys, "last_value", None))

    @contextmanager
    def apart(self) -> Generator[None, None, None]:
        """Have calls in the block in a session of their own, which ends with it; what was begun before goes on behind it."""
        before = self._session, self._turns, self._waiting, self._opened
        self._session, self._turns, self._waiting, self._opened = None, {}, {}, None
        raised: BaseException | None = None
        try:
            yield
        except BaseException as error:
            raised = error
            raise
        finally:
            self.end(raised)
            self._session, self._turns, self._waiting, self._opened = before

    @guarded
    def end(self, raised: BaseException | None, of: Collection[Session] | None = None) -> None:
        """End the session, if there is one, and it is one *of* these."""
        session = self._session
        if session is None or session.txn not in RUNTIME.sessions or (of is not None and session not in of):
            return
        if_free(self._lock, self._take_answered, _MOST_SECONDS)
        status, error = outcome(raised)
        for turn in list(self._turns.values()):
            turn.end(status, error)
        session.builder.end_session(status, error)
        RUNTIME.close_root(session.txn)


def asked_last(messages: list[Any]) -> tuple[list[str], str | None]:
    """Return the ids of the tool results that are behind the last answer, and what the user said last."""
    results: list[str] = []
    said: list[str] = []
    is_behind = True
    for sent in reversed(messages):
        found = message(sent)
        is_behind = is_behind and found.role != "assistant"
        if is_behind:
            results += [part.id or "" for part in found.parts if isinstance(part, ToolResultPart)]
        if found.role == "user":
            said = [part.text for part in found.parts if isinstance(part, TextPart)]
            if said:
                break
    return results, "\n".join(said) or None


def _asked_for(response: Any) -> list[str]:
    """Return the ids of the tool calls in a response."""
    return [
        part.id or ""
        for answer in answers(response)
        for said in answer.messages
        for part in message(said, "assistant").parts
        if isinstance(part, ToolCallPart)
    ]


def program_name() -> str:
    """Return what the program is called: its script, or the package that is run by `-m`."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    if spec is not None and spec.name not in (None, "", "__main__"):  # the last is a folder's, or a zip file's
        return str(spec.name).removesuffix(".__main__")
    path = PurePath(sys.argv[0] if sys.argv else "")
    name = path.parent.name if path.stem == "__main__" else path.stem  # a package's in a process that multiprocessing spawned
    return name if name not in ("", "-c", "-") else "python"


PROGRAM: Final = Program()
