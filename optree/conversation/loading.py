"""A whole session brought back: the tree of its agents, each with its transcript, and the session with its counters."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

from optree._store.files.lines import AnyPath
from optree.conversation.agent import Agent, restored
from optree.conversation.events import AnyEvent, TranscriptEntry, message_of
from optree.conversation.file_home import FileHome
from optree.conversation.registry import AgentRecord
from optree.conversation.session import ConversationSession, MakeAgent, SessionLogger, TracedSession
from optree.conversation.tree_home import TreeHome
from optree.conversation.wire import SEED_000

Transcripts = defaultdict[str, list[dict[str, Any]]]


def load_session(session_file: AnyPath, make_agent: MakeAgent = restored, *, version: int | None = None) -> tuple[Any, ConversationSession]:
    """Load a conversation from its file, with all its agents, to go on with it; a file that is missing or empty begins a new one.

    What had to be made up, such as a root that the file does not name, is in ``session.notes``; what was wrong in the file in
    ``session.faults``.

    Args:
        session_file: The path of the file of events.
        make_agent: Makes each agent, such as ``functools.partial(restored, model=model)``.
        version: The form of new events, 1 or 2; by default the file's own, of a new file 2.

    Returns:
        The root agent, with its sub-agents, and the session.

    Raises:
        SetupError: The path cannot be a file's.
        FormatError: The file is compressed.
        OSError: It cannot be read.
    """
    transcripts: Transcripts = defaultdict(list)

    def seen(event: AnyEvent) -> None:
        if isinstance(event, TranscriptEntry):
            transcripts[event.agent_id].append(message_of(event))

    session = ConversationSession.over(FileHome(Path(session_file), version, seen=seen))
    return _root(session, transcripts, make_agent), session


def load_traced(session: TracedSession, make_agent: MakeAgent = restored) -> tuple[Any, ConversationSession]:
    """Return the root agent and the conversation of a session of `optree.session`, new or resumed.

    Args:
        session: The open session, or its builder.
        make_agent: Makes each agent.
    """
    conversation = ConversationSession.traced(session)
    if isinstance(conversation.home, TreeHome) and conversation.home.is_new():
        with conversation.home.making_root():
            return _new(conversation, make_agent, name=conversation.home.registry.agents[conversation.home.root_id].name), conversation
    transcripts: Transcripts = defaultdict(list)
    for event in conversation.events():
        if isinstance(event, TranscriptEntry):
            transcripts[event.agent_id].append(message_of(event))
    for agent_id, messages in transcripts.items():
        transcripts[agent_id] = conversation.home.recorded(messages)
    return _root(conversation, transcripts, make_agent), conversation


def load_root(session_file: AnyPath, make_agent: MakeAgent = restored) -> Any:
    """Load a conversation as seed 000 does: returns the root agent alone, and each agent has a `SessionLogger` as its ``logger``.

    Args:
        session_file: The path of the file of events.
        make_agent: Makes each agent.
    """
    root, session = load_session(session_file, make_agent, version=SEED_000)
    logger = SessionLogger.over(session, session_file)
    for agent in session.agents.values():
        agent.logger = logger  # type: ignore[attr-defined]
    Agent.count_from(session.home.registry.counters.agent + 1)
    return root


def _new(session: ConversationSession, make_agent: MakeAgent, *, name: str | None = None) -> Any:
    root = make_agent(session, None, [])
    session.log_agent_created(root.agent_id, name=name, language_model=root.language_model)
    session.agents[root.agent_id] = root
    return root


def _root(session: ConversationSession, transcripts: Transcripts, make_agent: MakeAgent) -> Any:
    """Make all agents, and put each where it belongs."""
    records = list(session.home.registry.agents.values())
    if not records:
        if session.faults:
            session.notes.append("no agent could be read from the file: a new root was made")
        return _new(session, make_agent)
    top = _top(session, records)
    for record in records:
        session.agents[record.agent_id] = make_agent(session, record, transcripts[record.agent_id])
    for record in records:
        if record.parent is not None:
            _place(session, record)
    return session.agents[top.agent_id]


def _top(session: ConversationSession, records: list[AgentRecord]) -> AgentRecord:
    """Return the root's record: the first that was created without a parent, else the first without one. Others go below it."""
    known = session.home.registry.agents
    for record in records:
        if record.parent is not None and record.parent not in known:
            session.notes.append(f"{record.agent_id} was created by {record.parent}, of whom the file says nothing: it goes below the root")
            record.parent = None
    alone = [record for record in records if record.parent is None]
    top = next((record for record in alone if record.message_id is not None and not record.cause), alone[0])
    if top.message_id is None:
        session.notes.append(f"the file does not say that {top.agent_id} was created: it stands in for the root")
    for record in alone:
        if record is not top:
            session.notes.append(f"the file does not say who created {record.agent_id}: it goes below the root, {top.agent_id}")
            record.parent = top.agent_id
    return top


def _place(session: ConversationSession, record: AgentRecord) -> None:
    """Put an agent among its parent's; of two with one name the newer has it, and the older its id."""
    below = session.agents[record.parent or ""].subagents
    agent = session.agents[record.agent_id]
    older = below.get(record.label)
    if older is not None:
        below[older.agent_id] = older
    below[record.label] = agent
