"""Decorators and context managers that put the tree into code that exists.

In come the program's calls, with arguments, results and exceptions, and the environment; out go calls of builders, and what the program
would have got without optree. What the process holds stands in `runtime.py`, but for open budgets (`budgets.py`, `spending.py`), and
what is open where, in the context variable of `context.py`.
"""

from optree import _speed as speed
from optree._tracing import context, holding, scopes, wrapping
from optree._tracing.budgets import Budget, budget
from optree._tracing.config import Config
from optree._tracing.controls import configure, current, current_session, flush, health, load
from optree._tracing.faults import fault
from optree._tracing.handles import Session
from optree._tracing.propagate import child_env, wrap
from optree._tracing.runtime import RUNTIME
from optree._tracing.scopes import llm, session, tool, turn

# The compiled path of blocks and of decorated calls (see `optree._speed`): what it works on, and where it stands.
if speed.prepare_calls(
    op_scope_type=scopes.OpScope,
    scope_type=context.Scope,
    handle_type=Session,
    names_type=wrapping.Names,
    current=context.CURRENT,
    runtime=RUNTIME,
    context=vars(context),
    bound_arguments=wrapping.bound_arguments,
    not_entered=wrapping.not_entered,
    take_result=wrapping.take_result,
    left_call=wrapping.left_call,
    held_type=holding.HeldScope,
    block_not_entered=holding.block_not_entered,
    left_block=holding.left_block,
    left_method=holding.left,
    count_fault=fault,
):
    speed.quicken(wrapping, "_begun")
    speed.quicken(holding.Exit, "__get__")
    speed.quicken(scopes.OpScope, "__enter__", "begin", "finish")

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
