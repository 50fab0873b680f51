"""A language model behind an OpenAI-compatible address, asked with httpx."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from optree.conversation.protocol import Reply
from optree.errors import SetupError

SECONDS = 300.0


class ChatModel:
    """Asks ``<base_url>/chat/completions``. *settings* go with each request: ``temperature=0, seed=1, max_tokens=40``."""

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
        """Take the address and key from `OPENAI_BASE_URL` and `OPENAI_API_KEY` where they are not given, and an httpx client if it is.

        *with_tools* false: the model is not told of tools. Raises `SetupError` without httpx, or without an address.
        """
        try:
            import httpx
        except ImportError as error:
            raise SetupError("ChatModel needs httpx: pip install 'optree-tracing[httpx]'") from error
        self.name = name
        self.settings = settings
        self._address = (base_url or os.environ.get("OPENAI_BASE_URL") or "").rstrip("/")
        if not self._address:
            raise SetupError("ChatModel has no address: give base_url, or set OPENAI_BASE_URL")
        self._key = api_key or os.environ.get("OPENAI_API_KEY")
        self._with_tools = with_tools
        # Reused connections to llama.cpp's server were seen to close without an answer.
        self._client = client or httpx.AsyncClient(timeout=SECONDS, limits=httpx.Limits(max_keepalive_connections=0))

    async def __call__(self, messages: list[dict[str, Any]], tools: Sequence[dict[str, Any]], /) -> Reply:
        """Answer a transcript. Raises what httpx raises."""
        body: dict[str, Any] = {"model": self.name, "messages": messages, **self.settings}
        if tools and self._with_tools:
            body["tools"] = [*tools]
        headers = {"Authorization": f"Bearer {self._key}"} if self._key else {}
        response = await self._client.post(f"{self._address}/chat/completions", json=body, headers=headers)
        response.raise_for_status()
        found: dict[str, Any] = response.json()
        said: dict[str, Any] = found["choices"][0]["message"]
        message = {"role": "assistant", "content": said.get("content"), **{key: value for key, value in said.items() if value is not None}}
        return Reply(message, found.get("usage") or {})

    async def aclose(self) -> None:
        """Close the client."""
        await self._client.aclose()
