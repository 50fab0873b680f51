"""What is recorded of requests, answers and messages where content is off: how a model was asked, and nothing of what was said."""

from __future__ import annotations

import re
from typing import Any, Final

from optree._nodes import NOT_RECORDED
from optree._values import is_list, is_object, plain

_NUMBERS: Final = frozenset(
    {"stream", "n", "seed", "temperature", "top_p", "topP", "top_k", "topK", "max_tokens", "maxTokens", "max_completion_tokens",
     "max_output_tokens", "maxOutputTokens", "frequency_penalty", "frequencyPenalty", "presence_penalty", "presencePenalty",
     "budget_tokens", "thinkingBudget", "parallel_tool_calls", "store", "num_ctx", "num_predict"}
)  # fmt: skip
_WORDS: Final = frozenset({"model", "reasoning_effort", "effort", "thinkingLevel", "previous_response_id", "service_tier"})
"""Members of a request that say how a model is asked: by numbers and yes or no, and by words."""
_SETTINGS: Final = frozenset(
    {"reasoning", "thinking", "generationConfig", "generation_config", "thinkingConfig", "inferenceConfig", "options"}
)
"""Members of a request that hold some of them."""
_SENT: Final = frozenset({"messages", "contents", "input"})
"""Members of a request that are its messages, where they are lists."""
_ENDS: Final = frozenset({"finish_reason", "finishReason", "stop_reason", "stopReason", "done_reason", "done"})
_OF_ANSWERS: Final = _ENDS | {
    *("id", "responseId", "response_id", "model", "modelVersion", "model_version", "role", "type", "object", "status", "index")
}
_OF_PARTS: Final = frozenset({"type"})
_OF_CALLS: Final = frozenset({"name", "id", "call_id", "toolUseId", "tool_call_id", "tool_use_id", "type", "index", "role", "status"})
_AROUND_CALLS: Final = frozenset({"tool_calls", "function", "functionCall", "function_call", "toolUse", "functionResponse", "toolResult"})
_PARTED: Final = frozenset({"content", "parts"})
_HOLDING: Final = _PARTED | {"messages", "message", "choices", "candidates", "contents", "delta", "reasoning", "thinking"}
"""Members that are looked into: in a call or a result of a tool none is, since they are as its program names them."""
_LISTS: Final = frozenset({"input", "output"})
"""Those that are looked into where they are lists, or hold a message."""
_OF_TOOLS: Final = ("tool_use", "tool_result", "_call", "_call_output", "tool-call")
"""What the type of a part ends with that is a tool's call or result."""
_RESULTS: Final = frozenset({"tool", "TOOL", "function"})
"""Roles of messages that are a tool's result."""
_ROLES: Final = frozenset({"assistant", "model", "ai"})
"""Roles of messages that are an answer; LangChain has them as the type."""
_OBJECTS: Final = ("response", "chat.completion", "message")
"""What the type of an answer ends with."""
_STATUSES: Final = frozenset({"completed", "incomplete", "in_progress", "queued", "failed", "cancelled", "searching", "success", "error"})
"""What providers say in a member that programs have words of their own for."""
_WORD: Final = re.compile(r"[\w.:/@+-]{1,128}", re.ASCII)
_MOST_DEPTH: Final = 12


def request_outline(kind: str, payload: Any) -> dict[str, Any]:
    """Return a request without content: of a model's its parameters and its messages' outlines, of a tool's nothing."""
    return _parameters(payload, 0) if kind == "llm" and is_object(payload) else {}


def response_outline(kind: str, value: Any) -> Any:
    """Return an answer without content: of a model's which kinds of parts it has, which tools it asks for, and why it ended.

    What is in no provider's form is the program's own, and nothing of it stays.
    """
    read = _read(value) if kind == "llm" else None
    if is_list(read):
        return [_outline(one, _OF_ANSWERS, 1) for one in read if _is_answer(one)] or NOT_RECORDED
    return (_is_answer(read) and _outline(read, _OF_ANSWERS, 0)) or NOT_RECORDED


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


def _is_answer(value: Any, depth: int = 0) -> bool:
    """Tell whether something is a provider's answer or message, or has one in it, rather than what a program has made of it."""
    if not is_object(value) or depth > _MOST_DEPTH:
        return False
    if not _ENDS.isdisjoint(value) or _is_one_of(value.get("role"), _ROLES) or _is_one_of(value.get("type"), _ROLES):
        return True
    if any(isinstance(kind, str) and kind.endswith(_OBJECTS) for kind in (value.get("object"), value.get("type"))):
        return True
    held = [member for name, member in value.items() if name in _HOLDING or name in _LISTS]
    return any(_is_part(one) or _is_answer(one, depth + 1) for member in held for one in (member if is_list(member) else [member]))


def _is_part(value: Any) -> bool:
    return is_object(value) and ("text" in value or "type" in value or not _AROUND_CALLS.isdisjoint(value))


def _is_one_of(value: Any, words: frozenset[str]) -> bool:
    return isinstance(value, str) and value in words


def _parameters(value: dict[Any, Any], depth: int) -> dict[str, Any]:
    outlined: dict[str, Any] = {}
    for name, member in value.items():
        if name in _SENT and is_list(member):
            outlined[name] = [message_outline(one) for one in member] if any(map(is_object, member)) else NOT_RECORDED
        elif name in _SETTINGS and is_object(member) and depth < _MOST_DEPTH:
            outlined[name] = _parameters(member, depth + 1)
        elif (name in _NUMBERS and not isinstance(member, str) and _is_label(member)) or (name in _WORDS and _is_label(member)):
            outlined[name] = member
    return outlined


def _outline(value: Any, known: frozenset[str], depth: int) -> Any:
    if is_object(value) and depth < _MOST_DEPTH:
        return _members(value, known, depth)
    if is_list(value) and depth < _MOST_DEPTH:
        return [_outline(item, known, depth + 1) for item in value]
    return NOT_RECORDED


def _members(value: dict[Any, Any], known: frozenset[str], depth: int) -> dict[str, Any]:
    kind = value.get("type")
    if (isinstance(kind, str) and kind.endswith(_OF_TOOLS)) or _is_one_of(value.get("role"), _RESULTS):
        known = _OF_CALLS
    outlined: dict[str, Any] = {}
    for name, member in value.items():
        if name in _AROUND_CALLS:
            outlined[name] = _outline(member, _OF_CALLS, depth + 1)
        elif name in _HOLDING and (member is None or member == ""):
            outlined[name] = member  # nothing was said
        elif name in _HOLDING and known is _OF_CALLS:
            outlined[name] = NOT_RECORDED
        elif name in _HOLDING or (known is not _OF_CALLS and name in _LISTS and _holds_messages(member)):
            outlined[name] = _outline(member, _OF_PARTS if name in _PARTED and is_list(member) else known, depth + 1)
        elif name in known and _is_label(member) and (name != "status" or not isinstance(member, str) or member in _STATUSES):
            outlined[name] = member
    return outlined


def _holds_messages(value: Any) -> bool:
    return is_list(value) or (is_object(value) and "message" in value)


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
