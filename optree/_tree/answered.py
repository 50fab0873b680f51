"""A transcript as a provider takes it: each tool call with one result."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from optree._values import is_object

if TYPE_CHECKING:
    from optree._providers.messages import Part, ToolCallPart

NO_RESULT = "[interrupted: the process ended before this call's result was recorded]"


def answered(messages: list[Any]) -> list[Any]:
    """Return messages with a result for every tool call that has none, and without second results for one call.

    Calls are known by their ids; those without one, as Gemini's are, by their names: their results stand right behind.
    """
    from optree._providers.messages import (  # not before it is needed: this module is imported with optree
        ToolCallPart,
        ToolResultPart,
        message,
    )

    parts_of_each = [message(item).parts for item in messages]
    results = [[part.id for part in parts if isinstance(part, ToolResultPart) and part.id] for parts in parts_of_each]
    known = {call for here in results for call in here}
    unnamed = _unnamed(parts_of_each)
    seen: set[str] = set()
    completed: list[Any] = []
    for item, parts, here in zip(messages, parts_of_each, results, strict=True):
        if here and seen.issuperset(here):
            continue
        seen.update(here)
        completed.append(item)
        completed += [
            lost
            for call in parts
            if isinstance(call, ToolCallPart) and (call.id not in known if call.id else id(call) in unnamed)
            for lost in _lost(call)
        ]
    return completed


def _unnamed(messages: list[list[Part]]) -> set[int]:
    """Return which calls without an id have no result, each by the identity of its part; *messages* are their parts."""
    from optree._providers.messages import ToolCallPart, ToolResultPart

    lost: set[int] = set()
    waiting: list[ToolCallPart] = []
    behind_calls = False
    for parts in [*messages, []]:
        calls = [part for part in parts if isinstance(part, ToolCallPart) and not part.id]
        names = [part.name for part in parts if isinstance(part, ToolResultPart) and not part.id]
        if not names and not (calls and behind_calls):
            lost.update(map(id, waiting))
            waiting = []
        behind_calls = bool(calls)
        waiting += calls
        for name in names:
            answers = next((call for call in waiting if call.name == name), None)
            if answers is not None:
                waiting.remove(answers)
    return lost


def _lost(call: ToolCallPart) -> list[dict[str, Any]]:
    """Return the answer that says that a call's result was lost, in the form of the call; none to calls that the provider makes itself."""
    kind = call.block.get("type")
    if "functionCall" in call.block or is_object(call.block.get("function_call")):
        result = {**({"id": call.id} if call.id else {}), "name": call.name, "response": {"error": NO_RESULT}}
        return [{"role": "user", "parts": [{"functionResponse" if "functionCall" in call.block else "function_response": result}]}]
    if call.id is None or kind == "server_tool_use":
        return []
    if kind == "tool_use":
        return [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": NO_RESULT, "is_error": True}]}]
    if kind == "function_call":
        return [{"type": "function_call_output", "call_id": call.id, "output": NO_RESULT}]
    return [{"role": "tool", "tool_call_id": call.id, "content": NO_RESULT}]
