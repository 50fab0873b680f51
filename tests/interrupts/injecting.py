"""Raises out of a signal's handler at a chosen bytecode of optree's own code."""

from __future__ import annotations

import dis
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
OURS = tuple(f"{ROOT / name}/" for name in ("optree", "exporters"))
NOWHERE = sys.maxsize


class Stop(BaseException):
    """What handlers raise that end a program, as `KeyboardInterrupt` does."""


class LateError(TimeoutError, ValueError, LookupError, RuntimeError, TypeError, ArithmeticError):
    """What handlers raise that set a time limit; of every kind that code is likely to catch."""


class TimeLimitError(TimeoutError):
    """The same, where code that is not optree's is hit as well, which may catch more."""


class Injection:
    """Runs a function, and raises *error* at the *place*-th bytecode, call or return of optree's code in it."""

    def __init__(self, place: int, error: BaseException | None) -> None:
        self.place = place
        self.error = error
        self.seen = 0
        self.where = ""
        self.returning = False
        """True if it hit the return of a function: the frame that the handler is given then keeps what is returned, unlike a real one."""
        self.functions: list[str] = []
        """Those of the places that were passed, if it is raised nowhere."""
        self.stacks: list[int] = []
        """Where optree's functions were then, each the hash of all that are open: the same again is another turn of a loop."""
        self.possible = False
        """True if it hit where CPython runs handlers."""
        self.handlers: list[bool] = []
        """The same of the places that were passed."""
        self._before = 0, 0
        self.dropped = False
        """True if Python itself dropped it: it hit a finalizer."""

    def run(self, function: Callable[[], object]) -> None:
        """Call the function; what was raised comes out of it, unless something swallows it."""
        before, sys.unraisablehook = sys.unraisablehook, self._dropped
        sys.settrace(self._called)
        try:
            function()
        finally:
            sys.settrace(None)
            sys.unraisablehook = before

    def _dropped(self, told: Any) -> None:
        self.dropped = self.dropped or told.exc_value is self.error

    @property
    def raised(self) -> bool:
        """True once the place was reached."""
        return self.seen >= self.place

    def _called(self, frame: FrameType, event: str, arg: Any) -> Any:
        if not frame.f_code.co_filename.startswith(OURS):
            return None
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        self._at(frame, event, arg)
        return self._at

    def _at(self, frame: FrameType, event: str, arg: Any) -> Any:
        del arg  # what is returned: a frame that held it would keep it, as no handler does
        if event == "exception":
            return self._at
        self.seen += 1
        if self.place == NOWHERE:
            self.functions.append(frame.f_code.co_qualname)
            self.stacks.append(hash((event, *_positions(frame))))
            self.handlers.append(self._may_run(frame, event))
        if self.seen == self.place and self.error is not None:
            code, self.returning = frame.f_code, event == "return"
            self.possible = self._may_run(frame, event)
            self.where = f"{Path(code.co_filename).name}:{frame.f_lineno} {code.co_qualname} {event} {frame.f_lasti}"
            self.handler(signal.SIGALRM, frame)
        self._before = id(frame), frame.f_lasti  # not the frame, which would live on
        return self._at

    def _may_run(self, frame: FrameType, event: str) -> bool:
        """Tell whether CPython runs handlers here: where a function begins, and behind calls and jumps back."""
        before, at = self._before
        return event == "call" or (event == "opcode" and before == id(frame) and _runs_handlers(frame.f_code.co_code[at]))

    def handler(self, _number: int, _frame: FrameType | None) -> None:
        """Raise, as a signal's handler does."""
        assert self.error is not None
        raise self.error


def _positions(frame: FrameType | None) -> Iterator[tuple[CodeType, int]]:
    while frame is not None:
        if frame.f_code.co_filename.startswith(OURS):
            yield frame.f_code, frame.f_lasti
        frame = frame.f_back


def _runs_handlers(opcode: int) -> bool:
    name = dis.opname[opcode]
    return name.startswith(("CALL", "RESUME")) or ("JUMP_BACKWARD" in name and "NO_INTERRUPT" not in name)
