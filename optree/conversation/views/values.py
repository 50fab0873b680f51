"""What each view is as plain values, for JSON."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from optree.conversation.viewer import SessionViewer
from optree.conversation.views.sections import Ask, chosen, moments, spreads


def value(view: str, viewer: SessionViewer, ask: Ask) -> Any:
    """Return a view as plain values."""
    return msgspec.to_builtins(_VALUES[view](viewer, ask))


def _hooks(viewer: SessionViewer, ask: Ask) -> Any:
    return [one for one in viewer.hooks() if not ask.agents or {one.agent_id, one.author} & set(ask.agents)]


def _causality(viewer: SessionViewer, ask: Ask) -> Any:
    wanted = {one.message_id for one in moments("timeline", viewer, ask)}
    parents = {one: above for one, above in viewer.causality().items() if one in wanted}
    index = {one: parent for one, parent in viewer.build_causality_index().items() if one in wanted}
    return {"parents": parents, "index": index, "links": [link for link in viewer.links() if link.message_id in wanted]}


def _events(view: str) -> Callable[[SessionViewer, Ask], Any]:
    """Return the view's events in full."""

    def made(viewer: SessionViewer, ask: Ask) -> Any:
        found = viewer.flow(ask.message or "") if view == "flow" else viewer.references(ask.message or "", copies=True)
        return viewer.stream.all_plain([event for event in found if not ask.agents or event.agent_id in ask.agents])

    return made


_VALUES: dict[str, Callable[[SessionViewer, Ask], Any]] = {
    "transcripts": lambda viewer, ask: {agent: viewer.get_transcript(agent) for agent in chosen(viewer, ask)},
    "dialog": lambda viewer, ask: viewer.extract_dialog(chosen(viewer, ask), heard=ask.heard, spoken=True),
    "perspective": lambda viewer, ask: {agent: viewer.extract_agent_perspective(agent) for agent in chosen(viewer, ask)},
    "timeline": lambda viewer, ask: moments("timeline", viewer, ask),
    "flow": _events("flow"),
    "references": _events("references"),
    "during": lambda viewer, ask: moments("during", viewer, ask),
    "causality": _causality,
    "hooks": _hooks,
    "agents": lambda viewer, ask: [one for one in viewer.agent_tree() if not ask.agents or one.agent_id in ask.agents],
    "heard": lambda viewer, ask: {one.message_id: [hop.agent_id for hop in one.hops] for one in spreads(viewer, ask)},
    "propagation": spreads,
}
