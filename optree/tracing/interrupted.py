"""A program that Ctrl-C ends shall end by that signal: what ran it, a shell's loop say, then stops as well."""

from __future__ import annotations

import sys
from contextlib import suppress


def keep_interrupt() -> None:
    """At exit: let the process end by SIGINT if a `KeyboardInterrupt` that nobody caught ends it.

    Python does so by itself, but before 3.14 forgets it when any thread executes a text meanwhile, as some imports do:
    `run_eval_code_obj` in CPython's Python/pythonrun.c notes it, and clears the note each time. So it is noted once more.
    """
    trace = getattr(sys, "last_traceback", None)
    if getattr(sys, "last_type", None) is not KeyboardInterrupt or trace is None or trace.tb_frame.f_back is not None:
        return  # it went on after that, as interactive shells do
    if not (sys.flags.interactive or hasattr(sys, "ps1")):
        with suppress(KeyboardInterrupt):
            exec("raise KeyboardInterrupt")  # noqa: S102 - a constant
