"""`SessionLogger`: the logger of seed 000, with its names, over a `ConversationSession`; it writes events in that seed's form."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from optree.conversation.events import PieceOfText
from optree.conversation.session import ConversationSession
from optree.conversation.strings import PieceId, id_of
from optree.conversation.wire import SEED_000
from optree.store.lines import AnyPath
from optree.store.unusable import usable


class SessionLogger:
    """Appends events to a file, new or not, under ids that follow those in it."""

    def __init__(self, session_file: AnyPath) -> None:
        """Open or make the file. Raises `SetupError` for a path that cannot be a file's, `FormatError` for a compressed one, `OSError`."""
        path = Path(session_file)
        with usable(path):
            there = path.exists() and path.stat().st_size > 0
        self.session_file = path
        self.session = ConversationSession.load(path, version=SEED_000) if there else ConversationSession(path, version=SEED_000)

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
        said = str(content)
        made = self.session.home.add(lambda message_id: PieceOfText(message_id=message_id, cause=(caused,) if caused else (), content=said))
        return PieceId(made, said, caused)

    def log_agent_created(self, agent_id: str, name: str | None = None, language_model: str | None = None) -> str:
        """Log that an agent came into being; its parent is told by the call that waits for it. Returns the event's id."""
        return self.session.log_agent_created(agent_id, None, name, language_model)

    def _get_last_message_id(self) -> int:
        self.session.home.refresh()
        return self.session.home.registry.counters.message
