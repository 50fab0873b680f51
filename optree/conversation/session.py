"""`ConversationSession`: the registry of a conversation's agents, and the only writer of its events."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self, cast

from optree._builder import Op, SessionTreeBuilder
from optree._nodes import OpKind
from optree._providers.messages import answered
from optree._store.files.lines import AnyPath, Fault
from optree._store.files.unusable import usable
from optree._values import plain, text
from optree.conversation.events import AgentCreated, AnyEvent, PieceOfText, TranscriptEntry, entry_of, message_of, plain_message
from optree.conversation.file_home import FileHome
from optree.conversation.model import AnyAgent
from optree.conversation.registry import AgentRecord, Home, MakeEvent
from optree.conversation.strings import PieceId, id_of
from optree.conversation.tree_home import TreeHome
from optree.conversation.wire import SEED_000
from optree.errors import NotFoundError, SetupError


class TracedSession(Protocol):
    """An open traced session, as `optree.session` gives it."""

    builder: SessionTreeBuilder


class MakeAgent(Protocol):
    """What makes the agents that `load_session` loads; `restored` is one.

    *record* is None for the root of a new session; the messages of *transcript* are logged already.
    """

    def __call__(self, session: ConversationSession, record: AgentRecord | None, transcript: list[dict[str, Any]], /) -> Any:
        """Return the agent, with the record's id and language model."""
        ...


class ConversationSession:
    """A conversation: the registry of its agents, and the writer of its events.

    Logging raises for a call that cannot be right (`SetupError`) and else never, and waits for another writer for 0.25 seconds at most. An
    event that the file does not take is written with a later one, and that is reported once.
    """

    restored: ClassVar[MakeAgent]
    """What makes agents anew by default: `optree.conversation.restored`, as its module says."""

    def __init__(self, session_file: AnyPath, *, version: int | None = None) -> None:
        """Begin a conversation in a new file.

        Args:
            session_file: The path of the file; it may be there, and empty.
            version: The form of the events: 2 (seed 001, the default) or 1 (seed 000).

        Raises:
            SetupError: There is something in the file, or it cannot be written.
            OSError: The file cannot be opened.
        """
        path = Path(session_file)
        with usable(path):
            if path.is_file() and path.stat().st_size:
                raise SetupError(f"{path} has a session already: Session.load({str(path)!r}) goes on with it, under new ids")
        self._start(FileHome(path, version))

    @classmethod
    def over(cls, home: Home) -> Self:
        """Return a session whose events are kept in *home*."""
        session = cls.__new__(cls)
        session._start(home)  # noqa: SLF001 - a second constructor
        return session

    @classmethod
    def load(cls, session_file: AnyPath, *, version: int | None = None) -> Self:
        """Go on with the conversation in a file. What is wrong in it is in `faults`; agents are made by `revive`, or by `load_session`.

        Args:
            session_file: The path of the file.
            version: The form of new events; by default the file's own.

        Raises:
            NotFoundError: There is no such file.
            SetupError: It cannot be written.
            FormatError: It is compressed.
            OSError: It cannot be opened.
        """
        path = Path(session_file)
        with usable(path):
            if not path.exists():  # opening it to append would make it
                raise NotFoundError(f"{path} is not there: Session({str(path)!r}) begins a session in it")
        return cls.over(FileHome(path, version))

    @classmethod
    def traced(cls, session: TracedSession | SessionTreeBuilder) -> Self:
        """Return the conversation of a session of `optree.session`, new or resumed: its agents are that session and those below it."""
        return cls.over(TreeHome(session if isinstance(session, SessionTreeBuilder) else session.builder))

    def _start(self, home: Home) -> None:
        self.home = home
        self.agents: dict[str, AnyAgent] = {}
        """The agents that are in memory, by id."""
        self.notes: list[str] = []
        """What had to be made up in loading, for people."""

    @property
    def faults(self) -> list[Fault]:
        """What was left out or mended in reading the file, by line."""
        return self.home.faults if isinstance(self.home, FileHome) else []

    # Logging

    def allocate_agent_id(self) -> str:
        """Return a new agent id. Processes that make agents in one file at the same time use `create_agent` instead."""
        return self.home.new_agent_id()

    def log_agent_created(
        self, agent_id: str, cause: str | Sequence[str] | None = None, name: str | None = None, language_model: str | None = None
    ) -> str:
        """Log that an agent was created, before anything else of it is logged.

        Args:
            agent_id: The agent's id, as `allocate_agent_id` gives it.
            cause: The id of the message with the call that created it; None for the root agent.
            name: What its parent calls it.
            language_model: The name of its model.

        Returns:
            The event's id.
        """
        return self.home.add(_creation(lambda: text(agent_id), cause, name, language_model))

    def create_agent(self, cause: str | Sequence[str] | None = None, name: str | None = None, language_model: str | None = None) -> str:
        """Allocate an agent's id and log its creation in one step, which several processes may do at once.

        Args:
            cause: The id of the message with the call that created it; None for the root agent.
            name: What its parent calls it.
            language_model: The name of its model.

        Returns:
            The agent's id.
        """
        ids: list[str] = []

        def new_id() -> str:
            ids[:] = [self.home.registry.new_agent_id()]
            return ids[0]

        self.home.add(_creation(new_id, cause, name, language_model))
        return ids[0]

    def log_transcript_entry(
        self, agent_id: str, message: Mapping[str, Any] | Any, substance: str | None = None, *, cause: str | Sequence[str] | None = None
    ) -> str:
        """Log a message that entered an agent's transcript.

        Args:
            agent_id: Whose transcript.
            message: The message, as a provider takes it.
            substance: The id of the message whose content it repeats; None if it is new.
            cause: The ids of the messages that it was made from.

        Returns:
            The event's id.

        Raises:
            SetupError: Both *substance* and *cause* are given.
        """
        same, causes = id_of(substance), _ids(cause)
        if same and causes:
            raise SetupError(
                f"an entry of {agent_id} has the substance {same} and the cause {', '.join(causes)}: give the substance alone if it is the "
                "same content as another message, or the cause alone if it is new"
            )
        values = plain_message(message)
        return self.home.add(lambda message_id: entry_of(values, message_id, text(agent_id), same, causes))

    def log_piece_of_text(self, agent_id: str, content: str, cause: str | Sequence[str] | None) -> str:
        """Log a text that a tool made for others to hear, which enters no transcript; *cause* is the call. Returns the event's id."""
        value = plain(content)
        return self.home.add(
            lambda message_id: PieceOfText(message_id=message_id, agent_id=text(agent_id), cause=_ids(cause), content=value)
        )

    # What is known

    def list_agents(self) -> dict[str, AgentRecord]:
        """Return all agents that were ever created, by id, oldest first; no transcript is read for it."""
        self.home.refresh()
        return dict(self.home.registry.agents)

    def children(self, agent_id: str) -> list[AgentRecord]:
        """Return the agents that an agent created, oldest first."""
        return self.home.registry.children(agent_id)

    def transcript(self, agent_id: str) -> list[dict[str, Any]]:
        """Return an agent's transcript as it was logged; of a traced session, what was recorded with content.

        Raises `NotFoundError`, `OSError`.
        """
        self._record(agent_id)
        entries = [event for event in self.home.events() if isinstance(event, TranscriptEntry) and event.agent_id == agent_id]
        return self.home.recorded([message_of(event) for event in entries])

    def messages(self, agent_id: str) -> list[dict[str, Any]]:
        """Return an agent's transcript ready for a provider: one result for each tool call. Raises `NotFoundError`, `OSError`."""
        return answered(self.transcript(agent_id))

    def events(self) -> Sequence[AnyEvent]:
        """Return all events, in their order. Raises `OSError`."""
        return self.home.events()

    # Agents in memory

    def revive(self, agent_id: str, make_agent: MakeAgent | None = None) -> AnyAgent:
        """Return an agent: the one in memory, or one that is made anew with its whole transcript.

        Args:
            agent_id: Its id.
            make_agent: Makes it, such as `restored`, which is the default.

        Raises:
            NotFoundError: There was never such an agent.
            OSError: The file cannot be read.
        """
        if agent_id not in self.agents:
            self.agents[agent_id] = (make_agent or self.restored)(self, self._record(agent_id), self.transcript(agent_id))
        return self.agents[agent_id]

    def evict(self, agent_id: str) -> None:
        """Remove an agent from memory, also as its parent's sub-agent; `revive` makes it anew. One that is not in memory stays so."""
        gone = self.agents.pop(agent_id, None)
        for agent in self.agents.values():
            for name in [name for name, subagent in agent.subagents.items() if subagent is gone or subagent.agent_id == agent_id]:
                del agent.subagents[name]
        if gone is not None:
            self.home.leave(agent_id)

    def turn(self, agent_id: str) -> AbstractContextManager[None]:
        """Return a context manager: what the agent does in it is one turn of the traced session, if there is one."""
        return self.home.turn(agent_id)

    def op(self, agent_id: str, kind: OpKind, name: str) -> AbstractContextManager[Op | None]:
        """Return a context manager that records one call of an agent as an operation; it gives None if no session is traced."""
        return self.home.op(agent_id, kind, name)

    def close(self) -> None:
        """Close the file, or end the sub-agents' sessions of a traced one."""
        self.home.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def _record(self, agent_id: str) -> AgentRecord:
        self.home.refresh()
        known = self.home.registry.agents
        if agent_id not in known:
            raise NotFoundError(f"no agent {agent_id!r} in this session; there are: {', '.join(known) or 'none'}")
        return known[agent_id]


def _creation(agent_id: Callable[[], str], cause: object, name: object, language_model: object) -> MakeEvent:
    return lambda message_id: AgentCreated(
        message_id=message_id, agent_id=agent_id(), cause=_ids(cause), name=_text(name), language_model=_text(language_model)
    )


def _ids(cause: object) -> tuple[str, ...]:
    several = cast("Sequence[str]", cause if isinstance(cause, list | tuple | set | frozenset) else (cause,))
    return tuple(identity for item in several if (identity := id_of(item)))


def _text(value: object) -> str | None:
    return None if value is None else text(value)


class SessionLogger:
    """Appends events to a file, new or not, under ids that follow those in it."""

    def __init__(self, session_file: AnyPath) -> None:
        """Open or make the file. Raises `SetupError` for a path that cannot be a file's, `FormatError` for a compressed one, `OSError`."""
        path = Path(session_file)
        with usable(path):
            exists = path.exists() and path.stat().st_size > 0
        self.session_file = path
        self.session = ConversationSession.load(path, version=SEED_000) if exists else ConversationSession(path, version=SEED_000)

    @classmethod
    def over(cls, session: ConversationSession, session_file: AnyPath) -> Self:
        """Return the logger of a session that is open."""
        logger = cls.__new__(cls)
        logger.session_file = Path(session_file)
        logger.session = session
        return logger

    @property
    def message_counter(self) -> int:
        """The number of the next message."""
        return self._get_last_message_id() + 1

    def log_transcript_entry(self, agent_id: str, message: Mapping[str, Any] | Any, content_id: str | None = None) -> str:
        """Log what entered an agent's transcript; *content_id* names the content that it represents. Returns its id."""
        return self.session.log_transcript_entry(agent_id, message, content_id)

    def log_piece_of_text(self, content: str, caused_by: str | None = None) -> PieceId:
        """Log a text that a tool made; *caused_by* is the message with the call. Returns its id, which can be delivered as the text."""
        caused = id_of(caused_by)
        string = str(content)
        piece_id = self.session.home.add(
            lambda message_id: PieceOfText(message_id=message_id, cause=(caused,) if caused else (), content=string)
        )
        return PieceId(piece_id, string, caused)

    def log_agent_created(self, agent_id: str, name: str | None = None, language_model: str | None = None) -> str:
        """Log that an agent came into being; its parent is told by the call that waits for it. Returns the event's id."""
        return self.session.log_agent_created(agent_id, None, name, language_model)

    def _get_last_message_id(self) -> int:
        self.session.home.refresh()
        return self.session.home.registry.counters.message
