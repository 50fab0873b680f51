"""What is recorded of requests, answers and messages where content is off: how a model was asked, and nothing of what was said."""

from __future__ import annotations

import re
from typing import Any, Final

from optree._nodes import NOT_RECORDED
from optree._values import is_list, is_object, plain

_PARAMETERS: Final = frozenset(
    {"model", "stream", "n", "seed", "temperature", "top_p", "topP", "top_k", "topK", "max_tokens", "maxTokens", "max_completion_tokens",
     "max_output_tokens", "maxOutputTokens", "frequency_penalty", "frequencyPenalty", "presence_penalty", "presencePenalty",
     "reasoning_effort", "effort", "budget_tokens", "thinkingBudget", "thinkingLevel", "previous_response_id", "parallel_tool_calls",
     "service_tier", "store", "num_ctx", "num_predict"}
)  # fmt: skip
"""Members of a request that say how a model is asked."""
_OF_ANSWERS: Final = frozenset(
    {"id", "responseId", "response_id", "model", "modelVersion", "model_version", "role", "type", "object", "status", "index", "done",
     "finish_reason", "finishReason", "stop_reason", "stopReason", "done_reason"}
)  # fmt: skip
_OF_CALLS: Final = frozenset({"name", "id", "call_id", "toolUseId", "tool_call_id", "tool_use_id", "type", "index"})
_AROUND_CALLS: Final = frozenset({"tool_calls", "function", "functionCall", "function_call", "toolUse", "functionResponse", "toolResult"})
_HOLDING: Final = frozenset(
    {"messages", "message", "choices", "candidates", "content", "contents", "parts", "delta", "reasoning", "thinking", "generationConfig",
     "generation_config", "thinkingConfig", "inferenceConfig", "options"}
)  # fmt: skip
"""Members that are looked into."""
_LISTS: Final = frozenset({"input", "output"})
"""Those that are looked into where they are lists, or hold a message: else they are a tool's."""
_OF_TOOLS: Final = ("tool_use", "tool_result", "_call", "_call_output", "tool-call")
"""What the type of a part ends with that is a tool's call or result."""
_WORD: Final = re.compile(r"[\w.:/@+-]{1,128}", re.ASCII)
_MOST_DEPTH: Final = 12


def request_outline(kind: str, payload: Any) -> dict[str, Any]:
    """Return a request without content: of a model's its parameters and its messages' outlines, of a tool's nothing."""
    return _members(payload, _PARAMETERS, 0) if kind == "llm" and is_object(payload) else {}


def response_outline(kind: str, value: Any) -> Any:
    """Return an answer without content: of a model's which kinds of parts it has, which tools it asks for, and why it ended."""
    outlined = _outline(_read(value), _OF_ANSWERS, 0) if kind == "llm" else None
    return outlined or NOT_RECORDED


def message_outline(message: Any) -> dict[str, Any]:
    """Return a message without content: its role, the kinds of its parts, and the tools that it asks for."""
    outlined = _outline(_read(message), _OF_ANSWERS, 0)
    return outlined if is_object(outlined) else {"role": "user", "content": NOT_RECORDED}


def with_content(messages: list[Any]) -> list[Any]:
    """Return those of recorded messages that are no outlines."""
    return [message for message in messages if message_outline(message) != message]


def _read(value: Any) -> Any:
    """Return a value as plain data, as far as that is needed: objects of SDKs are no content by themselves."""
    return value if is_object(value) else plain(value)


def _outline(value: Any, known: frozenset[str], depth: int) -> Any:
    if is_object(value) and depth < _MOST_DEPTH:
        return _members(value, known, depth)
    if is_list(value) and depth < _MOST_DEPTH:
        return [_outline(item, known, depth + 1) for item in value]
    return NOT_RECORDED


def _members(value: dict[Any, Any], known: frozenset[str], depth: int) -> dict[str, Any]:
    kind = value.get("type")
    if isinstance(kind, str) and kind.endswith(_OF_TOOLS):
        known = known | _OF_CALLS
    outlined: dict[str, Any] = {}
    for name, member in value.items():
        if name in _AROUND_CALLS:
            outlined[name] = _outline(member, _OF_CALLS, depth + 1)
        elif name in _HOLDING or (name in _LISTS and (is_list(member) or (is_object(member) and "message" in member))):
            outlined[name] = _outline(member, known, depth + 1)
        elif name in known and _is_label(member):
            outlined[name] = member
    return outlined


def _is_label(value: Any) -> bool:
    return _WORD.fullmatch(value) is not None if isinstance(value, str) else value is None or isinstance(value, (bool, int, float))


class Withheld:
    """Stands in for a `StreamRedactor` where content is off: of a text that comes in pieces it tells once that there is one."""

    _told = False

    def feed(self, _text: str) -> str:
        """Return what stands for the text, once."""
        said, self._told = "" if self._told else NOT_RECORDED, True
        return said

    def close(self) -> str:
        """Return nothing."""
        return ""
