"""What a conversation asks of an agent, whoever wrote it, and of the model behind one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from optree.conversation.events import NOTHING
from optree.conversation.strings import LoggedString, MessageString


class AnyAgent(Protocol):
    """What an agent of your own has to offer; `Agent` is one. Ids travel with the texts, so no method has a parameter for logging."""

    agent_id: str
    """Its id in the session."""
    language_model: str
    """The name of its model."""
    transcript: list[dict[str, Any]]
    """Its messages, as a provider takes them: its state."""
    subagents: dict[str, Any]
    """Its sub-agents, by name."""

    def harken(self, input: str, /) -> None:  # noqa: A002 - the seeds name it so
        """Hear something: it enters the transcript as the user's, and is logged with what it represents."""
        ...

    async def response(self) -> LoggedString | MessageString:
        """Say something, which is logged; the text carries its id."""
        ...

    def inform(self, dst: Any, txt: str, /) -> None:
        """Send a text to another agent."""
        ...


class Reply(NamedTuple):
    """A model's answer."""

    message: dict[str, Any]
    """The assistant's message, as the provider gives it."""
    usage: Mapping[str, Any] = NOTHING
    """What it took, as `optree.Op.account` takes it."""


class Model(Protocol):
    """What asks a language model, for `Agent`; `ChatModel` is one."""

    name: str
    """The model's name."""

    async def __call__(self, messages: list[dict[str, Any]], tools: Sequence[dict[str, Any]], /) -> Reply:
        """Return the answer to a transcript; *tools* are descriptions of functions in OpenAI's form."""
        ...
