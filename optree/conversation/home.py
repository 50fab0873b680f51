"""Where a session's events are kept: alone in a file (`file_home`), or in the tree of a traced session (`tree_home`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from optree.builder import Op
from optree.conversation.events import AnyEvent
from optree.conversation.registry import Registry
from optree.nodes import OpKind

MakeEvent = Callable[[str], AnyEvent]
"""Makes an event, given its message id."""


class Home(Protocol):
    """Keeps events and gives them their ids. Only what cannot work from the start raises; later a fault is reported once."""

    registry: Registry
    """What is known of all agents and ids."""

    def add(self, make: MakeEvent) -> str:
        """Keep the event that *make* returns for the next message id; returns that id."""
        ...

    def refresh(self) -> None:
        """Take up what other processes added."""
        ...

    def events(self) -> Sequence[AnyEvent]:
        """Return all that was kept, in its order."""
        ...

    def new_agent_id(self) -> str:
        """Return an id that no agent has."""
        ...

    def turn(self, agent_id: str) -> AbstractContextManager[None]:
        """Put what happens within into a turn of the agent, where this home has turns."""
        ...

    def op(self, agent_id: str, kind: OpKind, name: str) -> AbstractContextManager[Op | None]:
        """Put what happens within into an op of the agent, where this home has ops."""
        ...

    def leave(self, agent_id: str) -> None:
        """The agent is not held in memory any more."""
        ...

    def close(self) -> None:
        """End what is open; the second call does nothing."""
        ...
