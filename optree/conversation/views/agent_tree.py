"""The agents view: who created whom."""

from __future__ import annotations

from collections import defaultdict

from msgspec import Struct

from optree.conversation.views.stream import StreamView


class AgentNode(Struct):
    """An agent, and where it stands among the others."""

    agent_id: str
    name: str | None
    parent: str | None
    """Agent id of who created it; None for a root, and where it is not known."""
    depth: int
    language_model: str | None
    message_id: str | None
    """Id of its creation; None for an agent whose creation is not in the stream."""
    cause: list[str]
    """Messages with the call that created it."""
    entries: int
    """Length of its transcript."""


def agent_tree(stream: StreamView) -> list[AgentNode]:
    """Return all agents, each behind its parent and one level deeper, else in the order in which they came.

    Agents that are said to have created each other in a circle count as roots.
    """
    below: defaultdict[str | None, list[str]] = defaultdict(list)
    for agent in stream.agents:
        below[stream.parents.get(agent)].append(agent)
    found: dict[str, AgentNode] = {}
    for root in [*below[None], *stream.agents]:
        pending: list[tuple[str, str | None, int]] = [] if root in found else [(root, None, 0)]
        while pending:
            agent, parent, depth = pending.pop()
            if agent not in found:
                found[agent] = _node(stream, agent, parent, depth)
                pending += [(child, agent, depth + 1) for child in reversed(below[agent])]
    return list(found.values())


def _node(stream: StreamView, agent: str, parent: str | None, depth: int) -> AgentNode:
    created = stream.agents[agent]
    identity = created.message_id or None
    entries = len(stream.entries(agent))
    return AgentNode(agent, created.name, parent, depth, created.language_model, identity, stream.causes(created), entries)
