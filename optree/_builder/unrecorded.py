"""What a program gets in place of a session, a turn or an op that could not be begun: it takes everything and records nothing.

There is one of each. They are made with optree, since there may be no memory or stack to make them when they are needed, and keep nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from optree import _clock as clock
from optree import _ids as ids
from optree._builder.addressed import ByAddress
from optree._builder.core import Core
from optree._builder.guard import UNRECORDED, Node
from optree._builder.handles import Op
from optree._builder.session_tree import SessionTreeBuilder
from optree._builder.turns import Turn
from optree._records import OpBegin, TurnBegin
from optree._tree import apply

NAME = "unrecorded"


class UnrecordedOp(Op, eq=False):
    """An op that is not recorded."""


class UnrecordedTurn(Turn):
    """A turn that is not recorded."""

    __slots__ = ()


class UnrecordedBuilder(SessionTreeBuilder):
    """A builder whose turns and ops are not recorded."""


def install() -> None:
    """Make the stand-ins."""
    _silence(UnrecordedOp, Op)
    _silence(UnrecordedTurn, Turn)
    _silence(UnrecordedBuilder, ByAddress, SessionTreeBuilder)
    core = Core(NAME, None, now=clock.wall)
    now = core.now_ms()
    session = apply.new_session(NAME, "", ids.trace_id(NAME), NAME, NAME, now)
    builder = UNRECORDED["builder"] = UnrecordedBuilder.over(core, session)
    turn = UNRECORDED["turn"] = UnrecordedTurn(builder, apply.begin_turn(session, TurnBegin("1", now)), 1)
    UNRECORDED["op"] = UnrecordedOp.of(builder, turn, apply.begin_op(NAME, turn.node, OpBegin("1.1", now, "system", NAME)))


def _silence(kind: type, *bases: type) -> None:
    """Let the methods of *bases* do nothing in *kind*, but for those that begin something or only tell."""
    begins: dict[str, Node] = {"begin_op": "op", "begin_turn": "turn", "attach_child_session": "builder"}
    for base in bases:
        for name, method in vars(base).items():
            if callable(method) and not name.startswith("_") and name not in ("ancestry", "snapshot", "next_op"):
                setattr(kind, name, _returning(begins.get(name)))


def _returning(what: Node | None) -> Callable[..., Any]:
    def take(_self: Any, /, *_args: Any, **_kwargs: Any) -> Any:
        return UNRECORDED[what]

    return take
