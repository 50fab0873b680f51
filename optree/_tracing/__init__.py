"""Decorators and context managers that put the tree into code that exists.

In come the program's calls, with arguments, results and exceptions, and the environment; out go calls of builders, and what the program
would have got without optree. What the process holds stands in `runtime.py`, but for open budgets (`budgets.py`, `spending.py`), and
what is open where, in the context variable of `context.py`.
"""

from optree._tracing import quick
from optree._tracing.budgets import Budget, budget
from optree._tracing.config import Config
from optree._tracing.controls import configure, current, current_session, flush, health, load
from optree._tracing.handles import Session
from optree._tracing.propagate import child_env, wrap
from optree._tracing.scopes import llm, session, tool, turn

quick.install()

__all__ = [
    "Budget",
    "Config",
    "Session",
    "budget",
    "child_env",
    "configure",
    "current",
    "current_session",
    "flush",
    "health",
    "llm",
    "load",
    "session",
    "tool",
    "turn",
    "wrap",
]
