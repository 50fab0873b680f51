"""What a conversation asks of an agent, whoever wrote it, and of the model behind one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from optree.conversation.events import NOTHING
from optree.conversation.registry import AgentRecord
from optree.conversation.strings import LoggedString, MessageString

if TYPE_CHECKING:
    from optree.conversation.session import Session


class AnyAgent(Protocol):
    """An agent: its transcript is its state. None of its methods has a parameter for logging; identities travel with the texts."""

    agent_id: str
    language_model: str
    transcript: list[dict[str, Any]]
    subagents: dict[str, Any]
    """By name."""

    def harken(self, input: str, /) -> None:  # noqa: A002 - the seeds name it so
        """Hear something: it enters the transcript as the user's, and is logged with what it represents."""
        ...

    async def response(self) -> LoggedString | MessageString:
        """Say something, which is logged; the text carries its id."""
        ...

    def inform(self, dst: Any, txt: str, /) -> None:
        """Send a text to another agent."""
        ...


class MakeAgent(Protocol):
    """Makes the agents that are loaded: *record* is None for the root of a new session, and *transcript* is not to be logged again."""

    def __call__(self, session: Session, record: AgentRecord | None, transcript: list[dict[str, Any]], /) -> Any:
        """Return the agent, with the record's id and language model."""
        ...


class Reply(NamedTuple):
    """What a model answered."""

    message: dict[str, Any]
    """The assistant's message as the provider gives it."""
    usage: Mapping[str, Any] = NOTHING
    """Tokens, under OpenAI's names."""


class Model(Protocol):
    """A language model that chats."""

    name: str

    async def __call__(self, messages: list[dict[str, Any]], tools: Sequence[dict[str, Any]], /) -> Reply:
        """Answer a transcript; *tools* are function descriptions as OpenAI's interface takes them."""
        ...
