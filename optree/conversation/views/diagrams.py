"""Which diagram each view is: who said what to whom as a sequence, what came from what as a graph."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from optree.conversation.content import calls_of
from optree.conversation.events import AgentCreated, AnyEvent, TranscriptEntry
from optree.conversation.viewer import SessionViewer
from optree.conversation.views.hooks import Intervention
from optree.conversation.views.mermaid import Arrow, Edge, graph, sequence
from optree.conversation.views.sections import Ask, chosen, head, moments, spreads

USER = "\0user"
"""Whoever speaks to agents from outside; no agent has this id."""
NOBODY = "\0nobody"
"""Who said a content is not known."""


def diagram(view: str, viewer: SessionViewer, ask: Ask) -> str:
    """Return a view as a diagram of Mermaid."""
    return _DIAGRAMS[view](viewer, ask)


def _sequence(viewer: SessionViewer, arrows: Iterable[Arrow]) -> str:
    drawn = list(arrows)
    there = {one for arrow in drawn for one in (arrow.source, arrow.target) if one is not None}
    names = {one: name for one, name in {USER: "user", NOBODY: "unknown", **viewer.list_agents()}.items() if one in there}
    return sequence(names, drawn)


def _of_events(viewer: SessionViewer, events: Iterable[AnyEvent]) -> str:
    return _sequence(viewer, [arrow for event in events if (arrow := _arrow(viewer, event)) is not None])


def _arrow(viewer: SessionViewer, event: AnyEvent) -> Arrow | None:
    """Return what an event is in a sequence: who hears it, or a note over whom it is of; None where those that hear it are drawn."""
    stream, agent = viewer.stream, event.agent_id or NOBODY
    if isinstance(event, AgentCreated):
        parent = stream.parents.get(event.agent_id)
        return Arrow(parent, agent, "creates", dotted=True) if parent else Arrow(agent, None, "is created")
    if isinstance(event, TranscriptEntry) and (
        event.role != "assistant" or calls_of(event) or stream.root(event.message_id) != event.message_id
    ):
        return _entry(viewer, event, agent)
    return None if event.message_id in stream.copies else Arrow(agent, None, stream.original(event.message_id) or "")


def _entry(viewer: SessionViewer, entry: TranscriptEntry, agent: str) -> Arrow:
    said = viewer.stream.said(entry)
    if viewer.stream.root(entry.message_id) != entry.message_id:
        return Arrow(viewer.stream.author(entry.message_id) or NOBODY, agent, said)
    if entry.role == "user":
        return Arrow(USER, agent, said)
    if calls := calls_of(entry):
        return Arrow(agent, agent, "\n".join([head(said)] * bool(said) + [f"calls {call.name}" for call in calls]))
    return Arrow(agent, agent, said, dotted=True) if entry.role == "tool" else Arrow(agent, None, f"is told: {said}")


def _timeline(view: str) -> Callable[[SessionViewer, Ask], str]:
    def made(viewer: SessionViewer, ask: Ask) -> str:
        wanted = {one.message_id for one in moments(view, viewer, ask)}
        return _of_events(viewer, [event for event in viewer.stream.events if event.message_id in wanted])

    return made


def _perspective(viewer: SessionViewer, ask: Ask) -> str:
    agents = set(chosen(viewer, ask))
    return _of_events(viewer, [one for one in viewer.stream.events if isinstance(one, TranscriptEntry) and one.agent_id in agents])


def _dialog(viewer: SessionViewer, ask: Ask) -> str:
    arrows: list[Arrow] = []
    for line in viewer.dialog(chosen(viewer, ask)):
        author = line.author or NOBODY
        if line.heard:
            told = {one.agent_id: one.content if ask.heard or one.changed else line.content for one in line.heard}
            arrows += [Arrow(author, agent, content) for agent, content in told.items()]
        else:
            arrows.append(Arrow(USER, author, line.content) if line.role == "user" else Arrow(author, None, line.content))
    return _sequence(viewer, arrows)


def _hooks(viewer: SessionViewer, ask: Ask) -> str:
    arrows: list[Arrow] = []
    for one in viewer.hooks():
        if not ask.agents or {one.agent_id, one.author} & set(ask.agents):
            arrows += _both(one)
    return _sequence(viewer, arrows)


def _both(one: Intervention) -> list[Arrow]:
    author = one.author or NOBODY
    return [Arrow(author, None, f"said: {one.original}"), Arrow(author, one.agent_id, one.received)]


def _causality(viewer: SessionViewer, ask: Ask) -> str:
    wanted = {one.message_id for one in moments("timeline", viewer, ask)}
    links = [link for link in viewer.links() if link.message_id in wanted]
    return graph(
        _labels(viewer, [one for link in links for one in (link.parent, link.message_id)]),
        [Edge(link.parent, link.message_id, link.kind.replace("_", " "), dotted=link.kind != "substance") for link in links],
    )


def _agents(viewer: SessionViewer, ask: Ask) -> str:
    nodes = [one for one in viewer.agent_tree() if not ask.agents or one.agent_id in ask.agents]
    names = {one.agent_id: viewer.stream.name(one.agent_id) for one in nodes}
    return graph(names, [Edge(one.parent, one.agent_id) for one in nodes if one.parent in names])


def _propagation(viewer: SessionViewer, ask: Ask) -> str:
    ids: list[str] = []
    edges: list[Edge] = []
    for one in spreads(viewer, ask):
        ids += [one.message_id, *(hop.message_id for hop in one.hops)]
        edges += [Edge(hop.via[-1] if hop.via else one.message_id, hop.message_id, "changed" if hop.changed else "") for hop in one.hops]
    return graph(_labels(viewer, ids), edges, "LR")


def _labels(viewer: SessionViewer, ids: Iterable[str]) -> dict[str, str]:
    """Return what stands in the nodes of messages: id, agent, and how the text begins."""
    found: dict[str, str] = {}
    for one in ids:
        event = viewer.stream.by_id.get(one)
        said = "" if event is None else viewer.stream.original(one) or ("is created" if isinstance(event, AgentCreated) else _called(event))
        agent = "not in the stream" if event is None else viewer.stream.name(event.agent_id)
        found.setdefault(one, f"{one} · {agent}\n{head(said, 40)}".strip())
    return found


def _called(event: AnyEvent) -> str:
    return f"calls {', '.join(call.name for call in calls_of(event))}" if isinstance(event, TranscriptEntry) else ""


_DIAGRAMS: dict[str, Callable[[SessionViewer, Ask], str]] = {
    "transcripts": _perspective,
    "dialog": _dialog,
    "perspective": _perspective,
    "timeline": _timeline("timeline"),
    "flow": _timeline("flow"),
    "references": _timeline("references"),
    "during": _timeline("during"),
    "causality": _causality,
    "hooks": _hooks,
    "agents": _agents,
    "heard": _propagation,
    "propagation": _propagation,
}
