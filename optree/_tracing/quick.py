"""The compiled path of blocks and of decorated calls: what it works on, and where it stands. See `optree._speed`."""

from __future__ import annotations

from optree import _speed as speed
from optree._tracing import context, holding, scopes, wrapping
from optree._tracing.faults import fault
from optree._tracing.handles import Session
from optree._tracing.runtime import RUNTIME


def install() -> None:
    """Tell the twins what they work on, and put them in place."""
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
