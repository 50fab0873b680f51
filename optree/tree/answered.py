"""A transcript as a provider takes it: each tool call with one result."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from optree.messages import ToolCallPart

NO_RESULT = "[interrupted: the process ended before this call's result was recorded]"


def answered(messages: list[Any]) -> list[Any]:
    """Return messages with a result for every tool call that has none, and without second results for one call.

    Calls are known by their ids; those without one, as Gemini's may be, are left as they are.
    """
    from optree.messages import ToolCallPart, ToolResultPart, message  # not before it is needed: this module is imported with optree

    told = [message(one).parts for one in messages]
    results = [[one.id for one in parts if isinstance(one, ToolResultPart) and one.id] for parts in told]
    known = {call for here in results for call in here}
    given: set[str] = set()
    found: list[Any] = []
    for one, parts, here in zip(messages, told, results, strict=True):
        if here and given.issuperset(here):
            continue
        given.update(here)
        found.append(one)
        found += [lost for call in parts if isinstance(call, ToolCallPart) and call.id not in known for lost in _lost(call)]
    return found


def _lost(call: ToolCallPart) -> list[dict[str, Any]]:
    """Return the answer that says that a call's result was lost, in the form of the call; none to calls that the provider makes itself."""
    kind = call.block.get("type")
    if call.id is None or kind == "server_tool_use":
        return []
    if kind == "tool_use":
        return [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": NO_RESULT, "is_error": True}]}]
    if kind == "function_call":
        return [{"type": "function_call_output", "call_id": call.id, "output": NO_RESULT}]
    if "functionCall" in call.block:
        reply = {"id": call.id, "name": call.name, "response": {"error": NO_RESULT}}
        return [{"role": "user", "parts": [{"functionResponse": reply}]}]
    return [{"role": "tool", "tool_call_id": call.id, "content": NO_RESULT}]
