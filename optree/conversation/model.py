"""The protocols of agents, of any library, and of the models behind them; and a model that is asked with httpx."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from optree.conversation.events import NOTHING
from optree.conversation.strings import LoggedString, MessageString
from optree.errors import SetupError

SECONDS = 300.0


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


class ChatModel:
    """A model behind an address that is compatible with OpenAI's, ``<base_url>/chat/completions``, asked with httpx.

    ```python
    from optree.conversation import ChatModel

    model = ChatModel("gpt-4o-mini", "http://localhost:8080/v1", temperature=0, max_tokens=40)
    ```
    """

    def __init__(
        self,
        name: str,
        base_url: str | None = None,
        *,
        api_key: str | None = None,
        with_tools: bool = True,
        client: Any = None,
        **settings: Any,
    ) -> None:
        """Make the client; nothing is sent yet.

        Args:
            name: The model's name.
            base_url: The address up to ``/v1``; by default ``OPENAI_BASE_URL``.
            api_key: The key; by default ``OPENAI_API_KEY``.
            with_tools: Whether the model is told of the agent's tools.
            client: An `httpx.AsyncClient` to use; by default a new one, with a time limit of 300 seconds.
            **settings: What goes with each request, such as ``temperature``.

        Raises:
            SetupError: httpx is not installed, or there is no address.
        """
        try:
            import httpx
        except ImportError as error:
            raise SetupError("ChatModel needs httpx: pip install 'optree-tracing[httpx]'") from error
        self.name: str = name
        """The model's name."""
        self.settings: dict[str, Any] = settings
        """What goes with each request."""
        self._address = (base_url or os.environ.get("OPENAI_BASE_URL") or "").rstrip("/")
        if not self._address:
            raise SetupError("ChatModel has no address: give base_url, or set OPENAI_BASE_URL")
        self._key = api_key or os.environ.get("OPENAI_API_KEY")
        self._with_tools = with_tools
        # Reused connections to llama.cpp's server were seen to close without an answer.
        self._client = client or httpx.AsyncClient(timeout=SECONDS, limits=httpx.Limits(max_keepalive_connections=0))

    async def __call__(self, messages: list[dict[str, Any]], tools: Sequence[dict[str, Any]], /) -> Reply:
        """Send messages and tools' descriptions, and return the answer; raises what httpx raises."""
        body: dict[str, Any] = {"model": self.name, "messages": messages, **self.settings}
        if tools and self._with_tools:
            body["tools"] = [*tools]
        headers = {"Authorization": f"Bearer {self._key}"} if self._key else {}
        response = await self._client.post(f"{self._address}/chat/completions", json=body, headers=headers)
        response.raise_for_status()
        data: dict[str, Any] = response.json()
        reply: dict[str, Any] = data["choices"][0]["message"]
        message = {
            "role": "assistant",
            "content": reply.get("content"),
            **{key: value for key, value in reply.items() if value is not None},
        }
        return Reply(message, data.get("usage") or {})

    async def aclose(self) -> None:
        """Close the client."""
        await self._client.aclose()
