"""Calls of models that Agno makes: an op for each that is not seen on the wire, since the model does not ask by HTTP."""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType
from typing import Any, Final

from optree._capture.frameworks.nesting import FrameworkCall, Request, chat_answer
from optree._capture.hooks import Hook, IsOn, await_within, read_within, run_within, watched, watched_async
from optree._providers.messages import json_text
from optree._tracing.faults import guarded
from optree._values import dumped, text

_OF_MESSAGE: Final = ("role", "content", "name", "tool_calls", "tool_call_id")
"""Attributes of a message that are sent to a provider."""
_PARAMETERS: Final = ("temperature", "top_p", "max_tokens", "seed", "stop")
_ASKED_WITH: Final = ("tools", "tool_choice", "response_format")
_COUNTS: Final = ("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens", "reasoning_tokens", "cost")
"""Attributes of Agno's metrics: what a call used."""


def models(module: ModuleType, is_on: IsOn) -> list[Hook]:
    """Hook the functions that every call of a model passes, whatever the model's class; Agno calls them again after some failures."""
    kind = module.Model

    @guarded
    def asked(model: Any, **told: Any) -> _AgnoModelCall | None:
        return _AgnoModelCall(model, told) if is_on() else None

    @guarded
    def read(pieces: Any, model: Any = None, **told: Any) -> Any:
        return watched(pieces, _AgnoModelCall(model, told))

    @guarded
    def read_async(pieces: Any, model: Any = None, **told: Any) -> Any:
        return watched_async(pieces, _AgnoModelCall(model, told))

    return [
        (kind, "_invoke_with_retry", run_within(kind._invoke_with_retry, asked)),  # noqa: SLF001 - the program's classes have the others
        (kind, "_ainvoke_with_retry", await_within(kind._ainvoke_with_retry, asked)),  # noqa: SLF001 - as above
        *read_within(kind, ("_invoke_stream_with_retry",), read, is_on),
        *read_within(kind, ("_ainvoke_stream_with_retry",), read_async, is_on),
    ]


class _AgnoModelCall(FrameworkCall):
    """One call of a model."""

    def __init__(self, model: Any, told: Mapping[str, Any]) -> None:
        self._model, self._told = model, told
        self._said = self._thought = ""
        self._tool_calls: list[Any] = []
        self._usage: dict[str, Any] = {}

    @guarded
    def take(self, piece: Any) -> None:
        """Record a piece of a stream. What the program does until it asks for the next piece is not part of the call."""
        self.pauses()
        self._add(piece)
        op = self.op()
        if op is not None and isinstance(piece.content, str) and piece.content:
            op.chunk(piece.content)
        if op is not None and piece.reasoning_content:
            op.think(text(piece.reasoning_content))

    def _add(self, answer: Any) -> None:
        content = answer.content
        if content is not None:
            self._said += json_text(plain(content))
        self._thought += text(answer.reasoning_content or "")
        self._tool_calls += answer.tool_calls or []
        if (usage := answer.response_usage) is not None:
            for name in _COUNTS:
                if taken := getattr(usage, name, None):
                    self._usage[name] = self._usage.get(name, 0) + taken

    def request(self) -> Request:
        """Return what is sent, without a provider that is but the default of a class that names none."""
        model = self._model
        sent = {name: one for name in _PARAMETERS if (one := getattr(model, name, None)) is not None}
        more = {name: plain(self._told[name]) for name in _ASKED_WITH if self._told.get(name) is not None}
        asked: list[Any] = self._told.get("messages") or []
        is_named = model.provider and model.provider != f"{model.name} ({model.id})"
        return model.provider if is_named else None, model.id, [_message(one) for one in asked], {**sent, **more}

    def answer(self, value: Any) -> Any:
        """Return the answer, or the one that the pieces add up to."""
        if value is not None:
            self._add(value)
        message: dict[str, Any] = {"role": "assistant", "content": self._said or None}
        if self._thought:
            message["reasoning_content"] = self._thought
        if self._tool_calls:
            message["tool_calls"] = self._tool_calls
        return chat_answer(self._model.id, [message], self._usage)


def _message(sent: Any) -> dict[str, Any]:
    known = ((name, getattr(sent, name, None)) for name in _OF_MESSAGE)
    return {name: value for name, value in known if value is not None}


def plain(value: Any) -> Any:
    """Return the fields of a pydantic object, the JSON schema of a pydantic class, and any other value as it is."""
    found: Any = value
    if isinstance(value, type):
        return found.model_json_schema() if hasattr(value, "model_json_schema") else text(value)
    return dumped(found.model_dump) if hasattr(value, "model_dump") else found
