"""What each view shows to people, as sections of rows, before it is text or Markdown."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime

from msgspec import Struct

from optree.conversation.events import AnyEvent
from optree.conversation.viewer import SessionViewer
from optree.conversation.views import perspectives
from optree.conversation.views.perspectives import Hop, Moment, Part, Propagation, all_heard, moment, perspective
from optree.conversation.views.stream import Eyes

_DONE = {
    "system": "is told",
    "heard": "heard",
    "thought": "thought",
    "said": "said",
    "called": "calls",
    "received": "got back",
    "made": "made",
    "created": "created",
}
_HEAD = 60
_OF_LINKS = ("causality", "heard", "propagation", "references")
_NONE = "Nothing: no message says what it represents or came from (give substance= or cause= to session.message)."


class SectionRow(Struct):
    """One line of a view, and what is below it."""

    text: str | list[Part] = ""
    """The row's text; or a diff."""
    key: str = ""
    """A message's id."""
    who: str = ""
    what: str = ""
    note: str = ""
    when: str = ""
    """A time of day, where it is known."""
    depth: int = 0
    """How far below the row above it stands, in a tree."""


class Section(Struct):
    """Rows with a title."""

    title: str
    rows: list[SectionRow]


class Ask(Struct, frozen=True):
    """What of a view is asked for."""

    agents: tuple[str, ...] = ()
    """Ids of the agents that are to be seen; empty for all."""
    message: str | None = None
    heard: bool = False

    @property
    def eyes(self) -> Eyes:
        """The agents; None for all."""
        return self.agents or None


def sections(view: str, viewer: SessionViewer, ask: Ask) -> list[Section]:
    """Return what a view shows."""
    shown = viewer.stream.shown
    result = [section for section in _SECTIONS[view](viewer, ask) if section.rows or section.title]
    if not any(section.rows for section in result):
        result = [
            Section(result[0].title if result else view.capitalize(), [SectionRow(_NONE if view in _OF_LINKS else "Nothing was said.")])
        ]
    for section in result:
        section.title = shown(section.title)
        for row in section.rows:  # names and ids may hold what is to be hidden too
            row.key, row.who, row.what, row.note = shown(row.key), shown(row.who), shown(row.what), shown(row.note)
    return result


def chosen(viewer: SessionViewer, ask: Ask) -> list[str]:
    """Return the ids of the agents that are to be seen."""
    return list(ask.agents or viewer.stream.agents)


def events(view: str, viewer: SessionViewer, ask: Ask) -> list[AnyEvent]:
    """Return the events that the views show which are parts of the timeline."""
    message = ask.message or ""
    parts: dict[str, Callable[[], Sequence[AnyEvent]]] = {
        "flow": lambda: viewer.flow(message),
        "references": lambda: viewer.references(message, copies=True),
        "during": lambda: perspectives.during(viewer.stream, message),
    }
    return [one for one in parts.get(view, lambda: viewer.stream.events)() if not ask.agents or one.agent_id in ask.agents]


def moments(view: str, viewer: SessionViewer, ask: Ask) -> list[Moment]:
    """Return the same as they show."""
    return [moment(viewer.stream, event, ask.eyes) for event in events(view, viewer, ask)]


def spreads(viewer: SessionViewer, ask: Ask) -> list[Propagation]:
    """Return how one content spread, or each that an agent heard, as far as the chosen agents wrote or heard it."""
    asked = [ask.message] if ask.message is not None else all_heard(viewer.stream)
    propagations = [viewer.propagation(message_id, ask.eyes) for message_id in asked]
    return [spread for spread in propagations if not ask.agents or spread.hops or spread.author in ask.agents]


def head(text: str, length: int = _HEAD) -> str:
    """Return the beginning of a text on one line."""
    line = " ".join(text[: length * 4].split())
    return line if len(line) <= length else line[: length - 1] + "…"


def label(viewer: SessionViewer, agent: str) -> str:
    """Return what people call an agent, with its id where that is something else."""
    name = viewer.stream.name(agent)
    return name if name == agent or not agent else f"{name} ({agent})"


def _transcripts(viewer: SessionViewer, ask: Ask) -> Iterable[Section]:
    for agent in chosen(viewer, ask):
        rows = [_row(viewer, moment(viewer.stream, entry, ask.eyes), who=False) for entry in viewer.stream.entries(agent)]
        yield Section(_described(viewer, agent), rows)


def _dialog(viewer: SessionViewer, ask: Ask) -> Iterable[Section]:
    agents = chosen(viewer, ask)
    rows: list[SectionRow] = []
    for line in viewer.dialog(ask.eyes):
        deliveries = line.heard if ask.heard else line.apart
        to = _names(viewer, [delivery.agent_id for delivery in line.heard])
        outside = line.role == "user" and not line.heard
        who = "user" if outside else viewer.stream.name(line.author) if line.author else "unknown"
        rows.append(SectionRow(line.content, line.message_id, who, "", f"heard by {to}" if to else ""))
        rows += [
            SectionRow(
                delivery.content,
                delivery.message_id,
                viewer.stream.name(delivery.agent_id),
                "heard",
                "changed" if delivery.changed else "",
                depth=1,
            )
            for delivery in deliveries
        ]
    yield Section(f"Dialog of {_names(viewer, agents)}", rows)


def _perspective(viewer: SessionViewer, ask: Ask) -> Iterable[Section]:
    for agent in chosen(viewer, ask):
        rows = [SectionRow("\n".join(filter(None, [one.text, one.calls])), what=one.label) for one in perspective(viewer.stream, agent)]
        yield Section(label(viewer, agent), rows)


def _timeline(view: str, title: str) -> Callable[[SessionViewer, Ask], Iterable[Section]]:
    def made(viewer: SessionViewer, ask: Ask) -> Iterable[Section]:
        yield Section(title.format(ask.message or ""), [_row(viewer, one) for one in moments(view, viewer, ask)])

    return made


def _causality(viewer: SessionViewer, ask: Ask) -> Iterable[Section]:
    above: dict[str, list[str]] = {}
    for link in viewer.links():
        above.setdefault(link.message_id, []).append(f"{link.parent} ({link.kind.replace('_', ' ')})")
    rows = [
        SectionRow(
            head(one.content) or _calls(one),
            one.message_id,
            viewer.stream.name(one.agent_id),
            _DONE[one.what],
            "← " + ", ".join(above[key]),
        )
        for one in moments("timeline", viewer, ask)
        if (key := one.message_id) in above
    ]
    yield Section("What each message came from", rows)


def _hooks(viewer: SessionViewer, ask: Ask) -> Iterable[Section]:
    rows = [
        SectionRow(
            intervention.diff,
            intervention.message_id,
            viewer.stream.name(intervention.agent_id),
            "heard",
            f"← {intervention.substance} of {label(viewer, intervention.author)}",
        )
        for intervention in viewer.hooks(agents=ask.eyes)
    ]
    yield Section("What was heard in other words than it was said", rows or [SectionRow("Nothing: all was heard as it was said.")])


def _agents(viewer: SessionViewer, ask: Ask) -> Iterable[Section]:
    rows: list[SectionRow] = []
    for node in viewer.agent_tree():
        if ask.agents and node.agent_id not in ask.agents:
            continue
        about = [node.language_model or "", f"{node.entries} {'entry' if node.entries == 1 else 'entries'}"]
        about += [f"by {', '.join(node.cause)}"] if node.cause else []
        rows.append(
            SectionRow(
                " ".join(viewer.stream.shown(" · ".join(filter(None, about))).split()),
                node.message_id or "",
                label(viewer, node.agent_id),
                depth=node.depth,
            )
        )
    yield Section("Agents", rows)


def _propagation(viewer: SessionViewer, ask: Ask) -> Iterable[Section]:
    for spread in spreads(viewer, ask):
        rows = [_hop(viewer, hop) for hop in spread.hops]
        if spread.content is not None:
            message = "original" if not ask.agents or spread.author in ask.agents else "as heard"
            rows.insert(0, SectionRow(spread.content, spread.message_id, viewer.stream.name(spread.author), message))
        yield Section(f"How {spread.message_id} spread", rows)


def _heard(viewer: SessionViewer, ask: Ask) -> Iterable[Section]:
    rows = [
        SectionRow(
            spread.content or "",
            spread.message_id,
            viewer.stream.name(spread.author),
            note=f"heard by {_names(viewer, [hop.agent_id for hop in spread.hops]) or ('none of the chosen' if ask.agents else 'nobody')}",
        )
        for spread in spreads(viewer, ask)
    ]
    yield Section("Who heard what", rows)


def _hop(viewer: SessionViewer, hop: Hop) -> SectionRow:
    notes = ["changed"] if hop.changed else []
    notes += [f"over {' → '.join(hop.via[1:])}"] if len(hop.via) > 1 else []
    return SectionRow(
        hop.content,
        hop.message_id,
        viewer.stream.name(hop.agent_id),
        "heard",
        " · ".join(notes),
        clock(hop.timestamp),
        len(hop.via),
    )


def _row(viewer: SessionViewer, event: Moment, *, who: bool = True) -> SectionRow:
    texts = [event.content] if event.content and event.what != "created" else []
    texts += [f"{call.name}({call.arguments})" for call in event.calls]
    author = viewer.stream.author(event.substance) if event.substance else ""
    note = f"← {event.substance}" + (f" of {viewer.stream.name(author)}" if author else "") if event.substance else ""
    if event.what == "created" and event.parent:
        note = f"by {viewer.stream.name(event.parent)}"
    return SectionRow(
        "\n".join(texts),
        event.message_id,
        viewer.stream.name(event.agent_id) if who else "",
        _DONE[event.what],
        note,
        clock(event.timestamp),
    )


def _calls(event: Moment) -> str:
    return head(", ".join(f"{call.name}({call.arguments})" for call in event.calls))


def _described(viewer: SessionViewer, agent: str) -> str:
    created, parent = viewer.stream.agents.get(agent), viewer.stream.parents.get(agent)
    model = created.language_model if created is not None else None
    by = f"created by {viewer.stream.name(parent)}" if parent else ""
    return " · ".join(filter(None, [label(viewer, agent), model, by]))


def _names(viewer: SessionViewer, agents: Sequence[str]) -> str:
    return ", ".join(viewer.stream.name(agent) for agent in dict.fromkeys(agents))


def clock(milliseconds: float | None) -> str:
    """Return a time of day; empty where none is known."""
    try:
        return "" if milliseconds is None else datetime.fromtimestamp(milliseconds / 1e3).astimezone().strftime("%H:%M:%S")
    except (ValueError, OverflowError, OSError):
        return ""


_SECTIONS: dict[str, Callable[[SessionViewer, Ask], Iterable[Section]]] = {
    "transcripts": _transcripts,
    "dialog": _dialog,
    "perspective": _perspective,
    "timeline": _timeline("timeline", "Timeline"),
    "flow": _timeline("flow", "What led to {}"),
    "references": _timeline("references", "Who has the content of {}"),
    "during": _timeline("during", "What happened during the call {}"),
    "causality": _causality,
    "hooks": _hooks,
    "agents": _agents,
    "heard": _heard,
    "propagation": _propagation,
}
