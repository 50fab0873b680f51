"""`SessionViewer`: all perspectives on a conversation between agents, whichever way it was recorded."""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, cast, runtime_checkable

import msgspec

from optree._store.files.lines import AnyPath, Fault, blocks, opened
from optree._store.reading.recovery import load
from optree._tree import Tree
from optree.conversation import wire
from optree.conversation.events import AnyEvent, ConversationEvent, TranscriptEntry
from optree.conversation.of_tree import events_of
from optree.conversation.views import perspectives
from optree.conversation.views.perspectives import AgentNode, DialogLine, Heard, Moment, agent_tree, dialog, moment, perspective
from optree.conversation.views.stream import Eyes, Hide, StreamView, kind
from optree.errors import FormatError, SetupError

HEAD_BYTES = 1 << 16
"""So much of a file, and the rest of the line that it ends in, tells whether it is one of events."""


@runtime_checkable
class Viewable(Protocol):
    """What has a tree: a `Loaded` session, or a live one."""

    @property
    def tree(self) -> Tree:
        """The tree."""
        ...


@runtime_checkable
class HasEvents(Protocol):
    """What has events: a `conversation.Session`."""

    @property
    def faults(self) -> Sequence[Fault]:
        """What was wrong in reading them."""
        ...

    def events(self) -> Sequence[AnyEvent]:
        """Return them."""
        ...


Source = AnyPath | Tree | Viewable | HasEvents | Iterable[AnyEvent] | Iterable[dict[str, Any]]


class SessionViewer:
    """The views of a conversation: dialogs, what each agent saw, causes and effects, how a message spread, what hooks changed.

    They follow the links between messages. Asked for an agent or a message that is not there, they return nothing.

    ```python
    import optree
    from optree.conversation import SessionViewer

    with optree.session("assistant") as session, optree.turn(user="Hello"):
        session.message({"role": "user", "content": "Hello"})
        session.message({"role": "assistant", "content": "Hi"})

    viewer = SessionViewer(session)
    for line in viewer.dialog(None):
        print(line.author, line.content)
    ```
    """

    def __init__(self, source: Source, *, version: int = wire.SEED_001, hide: Hide | None = None) -> None:
        """Take the conversation as it is now.

        Args:
            source: The path of a file of events, the txn or file of a saved session, a `Loaded`, a `Tree`, an open session, or events.
            version: The names in events returned as dicts: 2 for ``substance`` and ``cause``, 1 for ``content_id`` and ``caused_by``.
            hide: Applied to all that is shown, such as `optree.redaction.redact`.

        Raises:
            NotFoundError: There is no such session.
            StoreError: Its file cannot be read.
            OSError: The file cannot be opened.
            SetupError: *source* is nothing that holds a conversation.
        """
        self.faults: list[Fault] = []
        """What was wrong in a file, by line; with line 0 what was lost of a session, or wrong in the stream: an id that two events have."""
        self.stream = StreamView(self._read(source), version, hide)
        message = "is the id of several events: each is shown, and links to it lead to the first"
        self.faults += [Fault(0, f"{message_id} {message}") for message_id in self.stream.twice()]

    def _read(self, source: Source) -> Iterable[AnyEvent]:
        if isinstance(source, Tree):
            return events_of(source)
        if isinstance(source, (str, os.PathLike)):
            events, self.faults = read(source)
            return events
        if isinstance(source, Viewable):
            return events_of(source.tree)
        if isinstance(source, HasEvents):
            events, self.faults = list(source.events()), list(source.faults)
            return events
        if not isinstance(source, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance] - what users hand in
            raise SetupError(f"a {type(source).__name__} holds no conversation: give a path, a txn, a tree, a session or events")
        events, self.faults = taken(source)
        return events

    # The views of the seeds

    @cached_property
    def events(self) -> list[dict[str, Any]]:
        """All events as dicts, in their order."""
        return self.stream.all_plain(self.stream.events)

    def select(self, *, event_type: str | None = None, agent_id: str | None = None, role: str | None = None) -> list[dict[str, Any]]:
        """Return events, those of one type, agent or role where these are given."""
        return self.stream.all_plain(
            [
                event
                for event in self.stream.events
                if (event_type is None or kind(event) == event_type)
                and (agent_id is None or event.agent_id == agent_id)
                and (role is None or (isinstance(event, TranscriptEntry) and event.role == role))
            ]
        )

    def list_agents(self) -> dict[str, str]:
        """Return the name of each agent, or its id where it has none, by its id."""
        return {agent: self.stream.name(agent) for agent in self.stream.agents}

    def get_transcript(self, agent_id: str) -> list[dict[str, Any]]:
        """Return an agent's ``transcript_entry`` events."""
        return self.stream.all_plain(self.stream.entries(agent_id))

    def extract_dialog(self, agent_ids: Eyes, *, heard: bool = False, original: bool = False, spoken: bool = False) -> list[dict[str, Any]]:
        """Return what was said between agents, each content once, in order.

        The words are the author's if the author is among the agents, else what the first of them heard: a hook may have changed it.

        Args:
            agent_ids: Whose transcripts; None is all.
            heard: Whether each content has a list ``heard`` of ``{agent_id, message_id, content, changed}``.
            original: Whether the words are always the author's.
            spoken: Whether instructions, tool calls and results are left out.

        Returns:
            ``{message_id, content}`` for each, with the id of the original.
        """
        lines = self.dialog(agent_ids, original=original, spoken=spoken)
        more = {id(line): {"heard": msgspec.to_builtins(line.heard)} for line in lines} if heard else {}
        return [{"message_id": line.message_id, "content": line.content, **more.get(id(line), {})} for line in lines]

    def dialog(self, agent_ids: Eyes, *, original: bool = False, spoken: bool = True) -> list[DialogLine]:
        """Return the same as `extract_dialog`, with author, role, and who heard it in which words."""
        chosen = None if agent_ids is None else {agent_ids} if isinstance(agent_ids, str) else set(agent_ids)
        return list(dialog(self.stream, chosen, original=original, spoken=spoken))

    def extract_agent_perspective(self, agent_id: str) -> str:
        """Return what an agent heard, thought, did and said: lines that begin with ``[Heard]: `` and the like."""
        return "\n".join(f"[{one.label}]: {one.text}" for one in perspective(self.stream, agent_id))

    def build_causality_index(self) -> dict[str, str]:
        """Return one parent of each message that has any: the content that it represents, else its first cause, else its call."""
        return dict(self._index)

    def causality(self) -> dict[str, list[str]]:
        """Return all parents of each message that has any."""
        return perspectives.graph(self._links)

    def links(self) -> list[perspectives.CausalLink]:
        """Return each link between messages, with its kind."""
        return list(self._links)

    def trace_message_flow(self, message_id: str) -> list[dict[str, Any]]:
        """Return the events that lead to a message, oldest first, by one parent each; they end where a link leads nowhere or back."""
        return self.stream.all_plain(self.flow(message_id))

    def flow(self, message_id: str) -> list[AnyEvent]:
        """Return the same as `trace_message_flow`, as events."""
        return perspectives.flow(self.stream, self._index, message_id)

    def trace_content_references(self, content_msg_id: str, *, copies: bool = False) -> list[dict[str, Any]]:
        """Return the entries whose substance is a message; with *copies* also copies of copies of it."""
        return self.stream.all_plain(self.references(content_msg_id, copies=copies))

    def references(self, message_id: str, *, copies: bool = False) -> list[TranscriptEntry]:
        """Return the same as `trace_content_references`, as entries."""
        entries = self.stream.copies.get(self.stream.root(message_id), [])
        return [entry for entry in entries if copies or entry.substance == message_id]

    # Further views

    def heard_by(self, message_id: str, agents: Eyes = None) -> list[Heard]:
        """Return who of *agents*, or at all, heard the content of a message, in which words, each delivery once."""
        return perspectives.heard_by(self.stream, message_id, agents)

    def propagation(self, message_id: str, agents: Eyes = None) -> perspectives.Propagation:
        """Return how the content of a message spread: to whom of *agents*, when, over which copies; its own words as in a dialog."""
        return perspectives.propagation(self.stream, message_id, agents)

    def hooks(self, *, framed: bool = False, agents: Eyes = None) -> list[perspectives.Intervention]:
        """Return where what was heard differs from what was said; with *framed* also where something was only put around it.

        Of *agents*, it is what they heard, with the original where its author is one of them.
        """
        return list(perspectives.interventions(self.stream, agents, framed=framed))

    def during(self, message_id: str) -> list[Moment]:
        """Return what happened between a tool call and its last result, both included; a result stands for its call."""
        return [moment(self.stream, event) for event in perspectives.during(self.stream, message_id)]

    def timeline(self) -> list[Moment]:
        """Return every event once, in the order of time."""
        return [moment(self.stream, event) for event in self.stream.events]

    def agent_tree(self) -> list[AgentNode]:
        """Return all agents, each behind the one that created it and one level deeper."""
        return agent_tree(self.stream)

    @cached_property
    def _links(self) -> list[perspectives.CausalLink]:
        return perspectives.links(self.stream)

    @cached_property
    def _index(self) -> dict[str, str]:
        return perspectives.one_parent(self._links)


def read(source: AnyPath) -> tuple[list[AnyEvent], list[Fault]]:
    """Return the events of a file of events, or of a saved session, with what was wrong in its files.

    What is no file is a txn. Raises `NotFoundError`, `StoreError`, `OSError`.
    """
    path = Path(source)
    if path.is_file() and holds_events(path):
        return wire.read_events(path)
    loaded = load(os.fspath(source))
    return events_of(loaded.tree), [Fault(0, loss) for loss in loaded.damage.lost()]


def holds_events(path: Path) -> bool:
    """Tell by a file's first lines whether it is one of events; an empty one is. Raises `OSError`."""
    try:
        with opened(path) as file:
            _, block = next(blocks(file), (1, b""))
        head = block[: block.find(b"\n", HEAD_BYTES) + 1 or None]
        return any(isinstance(events, list) and events for events in wire.stream_events(io.BytesIO(head))) or not head.strip()
    except FormatError:
        return False


def taken(source: Iterable[Any]) -> tuple[list[AnyEvent], list[Fault]]:
    """Return events, given as such or as dicts of either seed; a dict that is none is reported by its place, from 1."""
    events: list[AnyEvent] = []
    faults: list[Fault] = []
    for place, item in enumerate(source, 1):
        if isinstance(item, ConversationEvent):
            events.append(cast("AnyEvent", item))
            continue
        for batch in wire.stream_events(io.BytesIO(msgspec.json.encode(item))):
            if isinstance(batch, Fault):
                faults.append(Fault(place, batch.said))
            else:
                events += batch
    return events, faults
