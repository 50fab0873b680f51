"""Which diagram each view is: who said what to whom as a sequence, what came from what as a graph.

Mermaid refuses diagrams of more than 50,000 characters or 500 edges, so what is beyond is left out and counted in a last label.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence

import msgspec
from msgspec import Struct

from optree.conversation.content import calls_of, is_thought
from optree.conversation.events import AgentCreated, AnyEvent, TranscriptEntry
from optree.conversation.viewer import SessionViewer
from optree.conversation.views.perspectives import Intervention
from optree.conversation.views.sections import Ask, chosen, events, head, spreads
from optree.conversation.views.stream import Eyes, is_seen

USER = "\0user"
"""Whoever speaks to agents from outside; no agent has this id."""
NOBODY = "\0nobody"
"""The author of a content that is not known."""
MOST_LINES = 400
MOST_PARTICIPANTS = 100
MOST_CHARACTERS = 45_000
LABEL_CHARACTERS = 80
_UNSAFE = re.compile(r"[^A-Za-z0-9 ,?'!.:()_-]|(?<=\d)[.)]|(?<![A-Za-z0-9])[_-]|[_-](?![A-Za-z0-9])|:(?! )")
"""What Mermaid may take for its own or for Markdown; dots, colons, dashes and the like only where they could begin something."""
_KEYWORDS = re.compile(r"direction|\b(?:end|style|classDef|click|linkStyle|default|graph|subgraph|wrap|nowrap)", re.IGNORECASE)
_ASCII = 128


def diagram(view: str, viewer: SessionViewer, ask: Ask) -> str:
    """Return a view as a diagram of Mermaid."""
    return _DIAGRAMS[view](viewer, ask)


def _sequence(viewer: SessionViewer, arrows: Iterable[Arrow]) -> str:
    known = {USER: "user", NOBODY: "unknown", **viewer.list_agents()}
    drawn = [arrow if arrow.source in known else msgspec.structs.replace(arrow, source=USER) for arrow in arrows]
    taking_part = {agent for arrow in drawn for agent in (arrow.source, arrow.target) if agent is not None}
    return sequence({agent: viewer.stream.shown(name) for agent, name in known.items() if agent in taking_part}, drawn)


def _of_events(viewer: SessionViewer, drawn: Sequence[AnyEvent], agents: Eyes) -> str:
    """Return events as a sequence; a message is drawn where it is heard in it, and not where it was written."""
    drawn = [event for event in drawn if not (isinstance(event, TranscriptEntry) and is_thought(event))]
    entries = [event for event in drawn if isinstance(event, TranscriptEntry)]
    heard = {id(source) for entry in entries if (source := viewer.stream.source(entry)) is not entry}
    return _sequence(viewer, [_arrow(viewer, event, agents) for event in drawn if id(event) not in heard or not _is_text(event)])


def _is_text(event: AnyEvent) -> bool:
    """Tell whether an event is only a text, or is made for others to hear."""
    if isinstance(event, TranscriptEntry):
        return event.role == "assistant" and not calls_of(event)
    return not isinstance(event, AgentCreated)


def _arrow(viewer: SessionViewer, event: AnyEvent, agents: Eyes) -> Arrow:
    """Return what an event is in a sequence: who hears it, or a note over whom it is of."""
    stream, agent = viewer.stream, event.agent_id or NOBODY
    if isinstance(event, AgentCreated):
        parent = stream.parents.get(event.agent_id)
        return Arrow(parent, agent, "creates", dotted=True) if parent else Arrow(agent, None, "is created")
    content = stream.text(event, agents)
    if isinstance(event, TranscriptEntry) and (not _is_text(event) or stream.origin(event) != event.message_id):
        return _entry(viewer, event, agent, content)
    return Arrow(agent, None, content)


def _entry(viewer: SessionViewer, entry: TranscriptEntry, agent: str, content: str) -> Arrow:
    stream = viewer.stream
    if (origin := stream.origin(entry)) != entry.message_id:
        return Arrow(stream.author(origin) or NOBODY, agent, content)
    if entry.role == "user":
        return Arrow(USER, agent, content)
    if calls := stream.calls(entry):
        return Arrow(agent, agent, "\n".join([head(content)] * bool(content) + [f"calls {call.name}" for call in calls]))
    return Arrow(agent, agent, content, dotted=True) if entry.role == "tool" else Arrow(agent, None, f"is told: {content}")


def _timeline(view: str) -> Callable[[SessionViewer, Ask], str]:
    def made(viewer: SessionViewer, ask: Ask) -> str:
        wanted = set(map(id, events(view, viewer, ask)))
        return _of_events(viewer, [event for event in viewer.stream.events if id(event) in wanted], ask.eyes)

    return made


def _perspective(viewer: SessionViewer, ask: Ask) -> str:
    agents = set(chosen(viewer, ask))
    entries = [event for event in viewer.stream.events if isinstance(event, TranscriptEntry) and event.agent_id in agents]
    return _of_events(viewer, entries, ask.eyes)


def _dialog(viewer: SessionViewer, ask: Ask) -> str:
    arrows: list[Arrow] = []
    for line in viewer.dialog(ask.eyes):
        author = line.author or NOBODY
        if line.heard:
            received = dict.fromkeys(
                (delivery.agent_id, delivery.content if ask.heard or delivery in line.apart else line.content) for delivery in line.heard
            )
            arrows += [Arrow(author, agent, content) for agent, content in received]
        else:
            arrows.append(Arrow(USER, author, line.content) if line.role == "user" else Arrow(author, None, line.content))
    return _sequence(viewer, arrows)


def _hooks(viewer: SessionViewer, ask: Ask) -> str:
    return _sequence(viewer, [arrow for intervention in viewer.hooks(agents=ask.eyes) for arrow in _both(intervention)])


def _both(intervention: Intervention) -> list[Arrow]:
    author = intervention.author or NOBODY
    arrows = [] if intervention.original is None else [Arrow(author, None, f"said: {intervention.original}")]
    return [*arrows, Arrow(author, intervention.agent_id, intervention.received)]


def _causality(viewer: SessionViewer, ask: Ask) -> str:
    wanted = {one.message_id for one in events("timeline", viewer, ask)}
    links = [link for link in viewer.links() if link.message_id in wanted]
    return graph(
        _labels(viewer, [one for link in links for one in (link.parent, link.message_id)], ask.eyes),
        [Edge(link.parent, link.message_id, link.kind.replace("_", " "), dotted=link.kind != "substance") for link in links],
    )


def _agents(viewer: SessionViewer, ask: Ask) -> str:
    nodes = [node for node in viewer.agent_tree() if not ask.agents or node.agent_id in ask.agents]
    names = {node.agent_id: viewer.stream.shown(viewer.stream.name(node.agent_id)) for node in nodes}
    return graph(names, [Edge(node.parent, node.agent_id) for node in nodes if node.parent in names])


def _propagation(viewer: SessionViewer, ask: Ask) -> str:
    ids: list[str] = []
    edges: list[Edge] = []
    for spread in spreads(viewer, ask):
        ids += [spread.message_id, *(hop.message_id for hop in spread.hops)]
        edges += [
            Edge(hop.via[-1] if hop.via else spread.message_id, hop.message_id, "changed" if hop.changed else "") for hop in spread.hops
        ]
    return graph(_labels(viewer, ids, ask.eyes), edges, "LR")


def _labels(viewer: SessionViewer, ids: Iterable[str], agents: Eyes) -> dict[str, str]:
    """Return what stands in the nodes of messages: id, agent, and how the text begins, as far as *agents* may be shown it."""
    result: dict[str, str] = {}
    for message_id in ids:
        event = viewer.stream.by_id.get(message_id)
        agent = "not in the stream" if event is None else viewer.stream.name(event.agent_id)
        content = "" if event is None else head(_event_text(viewer, event, agents), 40)
        result.setdefault(message_id, f"{viewer.stream.shown(f'{message_id} · {agent}')}\n{content}".strip())
    return result


def _event_text(viewer: SessionViewer, event: AnyEvent, agents: Eyes) -> str:
    stream = viewer.stream
    if isinstance(event, AgentCreated):
        return "is created"
    if not is_seen(event.agent_id, agents):
        return stream.content_for(event.message_id, agents) or "" if stream.root(event.message_id) == event.message_id else ""
    calls = stream.calls(event) if isinstance(event, TranscriptEntry) else []
    return stream.text(event, agents) or (f"calls {', '.join(call.name for call in calls)}" if calls else "")


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


class Arrow(Struct):
    """A text from one agent to another; a note over *source* where *target* is None."""

    source: str
    target: str | None
    text: str
    dotted: bool = False


class Edge(Struct):
    """A line of a graph."""

    source: str
    target: str
    text: str = ""
    dotted: bool = False


def sequence(names: dict[str, str], arrows: Sequence[Arrow]) -> str:
    """Return a sequence diagram: *names* are the participants in their order, by id."""
    ids = {agent: f"p{number}" for number, agent in enumerate(names, 1) if number <= MOST_PARTICIPANTS}
    lines = ["sequenceDiagram", *(f"    participant {participant} as {label(names[agent], 40)}" for agent, participant in ids.items())]
    drawn = [arrow for arrow in arrows if arrow.source in ids and (arrow.target is None or arrow.target in ids)]
    left = len(arrows) - _within(lines, (_mermaid_arrow(arrow, ids) for arrow in drawn))
    if left and ids:
        lines.append(f"    Note over {next(iter(ids.values()))}: and {left} more")
    return "\n".join(lines)


def graph(names: dict[str, str], edges: Sequence[Edge], direction: str = "TD") -> str:
    """Return a graph: *names* are the nodes' labels by id; nodes without a name have their ids."""
    ids: dict[str, str] = {}
    lines = [f"flowchart {direction}"]
    left = len(edges) - _within(lines, (_line(edge, names, ids) for edge in edges))
    alone = [name for name in names if name not in ids] if not left else []
    left += len(alone) - _within(lines, (f"    {_node(name, names, ids)}" for name in alone))
    if left:
        lines.append(f'    more["and {left} more"]')
    return "\n".join(lines)


def label(text: str, length: int = LABEL_CHARACTERS) -> str:
    """Return a text as a label, shortened: what Mermaid might understand goes as codes of characters; lines stay lines."""
    lines = [" ".join("".join(map(_visible, line)).split()) for line in text[: length * 4].splitlines()]
    shown = "\n".join(filter(None, lines))
    if len(shown) > length or len(text) > length * 4:
        shown = shown[: length - 1] + "…"
    return "<br/>".join(_escaped(line) for line in shown.split("\n")) or " "


def _escaped(line: str) -> str:
    return _KEYWORDS.sub(lambda match: f"{_code(match[0][0])}{match[0][1:]}", _UNSAFE.sub(lambda match: _safe(match[0]), line))


def _safe(char: str) -> str:
    return char if ord(char) >= _ASCII and char not in "ﬂ¶°ß" else _code(char)


def _code(char: str) -> str:
    return f"#{ord(char)};"


def _visible(char: str) -> str:
    return " " if unicodedata.category(char) in ("Cc", "Zl", "Zp", "Cs", "Co", "Cn") else char


def _within(lines: list[str], more: Iterable[str]) -> int:
    """Add lines as far as there is room for them; returns how many were added."""
    room = MOST_CHARACTERS - sum(len(line) + 1 for line in lines)
    before = len(lines)
    for line in more:
        room -= len(line) + 1
        if room < 0 or len(lines) >= MOST_LINES:
            break
        lines.append(line)
    return len(lines) - before


def _mermaid_arrow(arrow: Arrow, ids: dict[str, str]) -> str:
    if arrow.target is None:
        return f"    Note over {ids[arrow.source]}: {label(arrow.text)}"
    return f"    {ids[arrow.source]}{'-->>' if arrow.dotted else '->>'}{ids[arrow.target]}: {label(arrow.text)}"


def _line(edge: Edge, names: dict[str, str], ids: dict[str, str]) -> str:
    line = "-.->" if edge.dotted else "-->"
    message = f'|"{label(edge.text, 40)}"|' if edge.text else ""
    return f"    {_node(edge.source, names, ids)} {line}{message} {_node(edge.target, names, ids)}"


def _node(name: str, names: dict[str, str], ids: dict[str, str]) -> str:
    """Return a node's id, with its label where it is named first."""
    if name in ids:
        return ids[name]
    ids[name] = f"n{len(ids) + 1}"
    return f'{ids[name]}["{label(names.get(name, name))}"]'
