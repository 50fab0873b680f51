"""What each view is as plain values, for JSON."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from optree.conversation.viewer import SessionViewer
from optree.conversation.views.sections import Ask, chosen, events, moments, spreads
from optree.conversation.views.stream import StreamView
from optree.values import is_list, is_object


def value(view: str, viewer: SessionViewer, ask: Ask) -> Any:
    """Return a view as plain values."""
    return hidden(viewer.stream, msgspec.to_builtins(_VALUES[view](viewer, ask)))


def hidden(stream: StreamView, value: Any) -> Any:
    """Return plain values without what is to be hidden, which names and ids may hold too; keys stay apart."""
    if is_object(value):
        found: dict[str, Any] = {}
        for key, item in value.items():
            shown = stream.shown(key)
            free = shown if shown not in found else f"{shown} {len(found) + 1}"
            found[free] = hidden(stream, item)
        return found
    if is_list(value):
        return [hidden(stream, item) for item in value]
    return stream.shown(value) if isinstance(value, str) else value


def _causality(viewer: SessionViewer, ask: Ask) -> Any:
    wanted = {one.message_id for one in events("timeline", viewer, ask)}
    parents = {one: above for one, above in viewer.causality().items() if one in wanted}
    index = {one: parent for one, parent in viewer.build_causality_index().items() if one in wanted}
    return {"parents": parents, "index": index, "links": [link for link in viewer.links() if link.message_id in wanted]}


def _events(view: str) -> Callable[[SessionViewer, Ask], Any]:
    """Return the view's events in full."""

    def made(viewer: SessionViewer, ask: Ask) -> Any:
        return viewer.stream.all_plain(events(view, viewer, ask))

    return made


_VALUES: dict[str, Callable[[SessionViewer, Ask], Any]] = {
    "transcripts": lambda viewer, ask: {agent: viewer.get_transcript(agent) for agent in chosen(viewer, ask)},
    "dialog": lambda viewer, ask: viewer.extract_dialog(ask.eyes, heard=ask.heard, spoken=True),
    "perspective": lambda viewer, ask: {agent: viewer.extract_agent_perspective(agent) for agent in chosen(viewer, ask)},
    "timeline": lambda viewer, ask: moments("timeline", viewer, ask),
    "flow": _events("flow"),
    "references": _events("references"),
    "during": lambda viewer, ask: moments("during", viewer, ask),
    "causality": _causality,
    "hooks": lambda viewer, ask: viewer.hooks(agents=ask.eyes),
    "agents": lambda viewer, ask: [one for one in viewer.agent_tree() if not ask.agents or one.agent_id in ask.agents],
    "heard": lambda viewer, ask: {one.message_id: [hop.agent_id for hop in one.hops] for one in spreads(viewer, ask)},
    "propagation": spreads,
}
