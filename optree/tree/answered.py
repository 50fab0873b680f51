"""A transcript as a provider takes it: each tool call with one result."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from optree.values import is_list, is_object

NO_RESULT = "[interrupted: the process ended before this call's result was recorded]"


def answered(messages: list[Any]) -> list[Any]:
    """Return messages with a result for every tool call that has none, and without second results for one call."""
    results = {call for message in messages for call in _results(message)}
    given: set[str] = set()
    found: list[Any] = []
    for message in messages:
        here = _results(message)
        if here and given.issuperset(here):
            continue
        given.update(here)
        found.append(message)
        found.extend(reply for call, reply in _calls(message) if call not in results)
    return found


def _results(message: Any) -> list[str]:
    """Return the ids of the calls that a message answers: a `tool` message, or `tool_result` blocks."""
    if not is_object(message):
        return []
    found = [message.get("tool_call_id"), *(block.get("tool_use_id") for block in _blocks(message, "tool_result"))]
    return [call for call in found if isinstance(call, str)]


def _calls(message: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the id of each tool call in a message, with the answer that says that its result was lost."""
    if not is_object(message):
        return
    calls: Any = message.get("tool_calls")
    for call in calls if is_list(calls) else ():
        if is_object(call) and isinstance(call.get("id"), str):
            yield call["id"], {"role": "tool", "tool_call_id": call["id"], "content": NO_RESULT}
    for block in _blocks(message, "tool_use"):
        if isinstance(block.get("id"), str):
            lost = {"type": "tool_result", "tool_use_id": block["id"], "content": NO_RESULT, "is_error": True}
            yield block["id"], {"role": "user", "content": [lost]}


def _blocks(message: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    content: Any = message.get("content")
    blocks: Any = content if content.__class__ is list else ()
    return [block for block in blocks if is_object(block) and block.get("type") == kind]
