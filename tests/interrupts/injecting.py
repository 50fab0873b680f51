"""Raises out of a signal's handler at a chosen bytecode of optree's own code."""

from __future__ import annotations

import ctypes
import dis
import shutil
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, ClassVar

ROOT = Path(__file__).resolve().parents[2]
OURS = tuple(f"{ROOT / name}/" for name in ("optree", "exporters"))
NOWHERE = sys.maxsize
_PREFIXES = (ctypes.c_char_p * (len(OURS) + 1))(*(name.encode() for name in OURS), None)


class Stop(BaseException):
    """What handlers raise that end a program, as `KeyboardInterrupt` does."""


class LateError(TimeoutError, ValueError, LookupError, RuntimeError, TypeError, ArithmeticError):
    """What handlers raise that set a time limit; of every kind that code is likely to catch."""


class TimeLimitError(TimeoutError):
    """The same, where code that is not optree's is hit as well, which may catch more."""


class Injection:
    """Runs a function, and raises *error* at the *place*-th bytecode, call or return of optree's code in it.

    Of those *in_handlers* it raises at the first from there on at which CPython runs handlers: what comes before a place may be more or
    less than it was when the places were counted, as where a lock is waited for or a connection is closed.
    """

    quick: ClassVar[Any] = None
    """The same trace function in C, which counts up to a place: see `compile`."""

    @classmethod
    def compile(cls, folder: Path) -> None:
        """Count in C from now on, if there is a compiler; from Python 3.13 on a trace function in C is not told of all bytecodes."""
        if shutil.which("gcc") is not None and sys.version_info < (3, 13):
            made, source = folder / "trace.so", Path(__file__).with_name("trace.c")
            headers = f"-I{sysconfig.get_path('include')}"
            subprocess.run(["gcc", "-shared", "-fPIC", "-O2", headers, "-o", str(made), str(source)], check=True)
            cls.quick = ctypes.PyDLL(str(made))
            cls.quick.begin.argtypes = ctypes.py_object, ctypes.c_longlong, ctypes.POINTER(ctypes.c_char_p)
            cls.quick.begin.restype = None
            cls.quick.end.restype = ctypes.c_longlong

    def __init__(self, place: int, error: BaseException | None, *, in_handlers: bool = False) -> None:
        self.place = place
        self.error = error
        self.seen = 0
        self.raised = False
        """True once it was raised."""
        self._in_handlers = in_handlers
        self.where = ""
        self.returning = False
        """True if it hit the return of a function, or the bytecode of it: the frame that it is given then keeps what is returned."""
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
        quick = self.quick if self.place != NOWHERE and self.error is not None else None
        hit = self._hit  # is kept here meanwhile
        if quick is None:
            sys.settrace(self._called)
        else:
            quick.begin(hit, self.place, _PREFIXES)
        try:
            function()
        finally:
            if quick is None:
                sys.settrace(None)
            else:
                self.seen = quick.end()
            sys.unraisablehook = before

    def _dropped(self, told: Any) -> None:
        self.dropped = self.dropped or told.exc_value is self.error

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
        if self.seen >= self.place and self.error is not None and not self.raised:
            self._hit(frame, event, self._before[0] == id(frame), self._before[1])
        self._before = id(frame), frame.f_lasti  # not the frame, which would live on
        return self._at

    def _hit(self, frame: FrameType, event: str, same: bool, before: int) -> None:
        """Raise at an event of a function, if that is possible there; the one before it was in the *same*, at *before*."""
        code = frame.f_code
        self.returning = event == "return" or dis.opname[code.co_code[frame.f_lasti]] == "RETURN_VALUE"
        self._before = id(frame) if same else 0, before
        self.possible = self._may_run(frame, event)
        if self._in_handlers and not self.possible:
            return
        self.raised = True
        self.where = f"{Path(code.co_filename).name}:{frame.f_lineno} {code.co_qualname} {event} {frame.f_lasti}"
        self.handler(signal.SIGALRM, frame)

    def _may_run(self, frame: FrameType, event: str) -> bool:
        """Tell whether CPython runs handlers here: where a function begins, and behind calls and jumps back."""
        before, at = self._before
        if event != "opcode" or before != id(frame):
            return event == "call"
        code = frame.f_code.co_code
        return _runs_handlers(code[at]) and dis.opname[code[frame.f_lasti]] != "PUSH_EXC_INFO"  # which follows a call that raised

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
