"""A session of another process, as this one works in it."""

from __future__ import annotations

from typing import NamedTuple

from optree.builder import Op, Turn
from optree.instrument.handles import Session


class Joined(NamedTuple):
    """Stand-ins for a session, turn and op of another process."""

    session: Session
    turn: Turn
    op: Op | None

    @property
    def busy(self) -> bool:
        """True while something is open that this process began there; in a forked child, also what was open in its parent."""
        core = self.session.builder.core
        own = [builder for builder in core.builders.values() if builder is not self.session.builder]
        return bool(core.ops) or self.session.builder.current_turn is not None or any(one.node.ended_at is None for one in own)
