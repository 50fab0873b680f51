"""LlamaIndex's objects as plain values. A stream is left alone: to record it here would read it in place of the program."""

from __future__ import annotations

from typing import Any

from optree._providers.messages import json_text
from optree._values import is_list, member, own_members, text


def is_event(value: Any) -> bool:
    """Tell whether a value is an event of a workflow."""
    return any(one.__module__ == "workflows.events" for one in type(value).__mro__)


def members(event: Any) -> dict[str, Any]:
    """Return the members of an event, also those that its class does not declare."""
    declared: Any = own_members(type(event)).get("__pydantic_fields__", {})
    return {name: getattr(event, name, None) for name in (*declared, *event.keys())}


def output_of(result: Any) -> Any:
    """Return a result as a plain value; None for a stream."""
    if "Streaming" in type(result).__name__:
        return None
    if is_event(result):
        return output_of(result.result) if type(result).__name__ == "StopEvent" else _event_output(result)
    if is_list(result):
        return [_node(one) if member(one, "node") is not None else one for one in result]
    response = member(result, "response")
    return response if isinstance(response, str) or member(response, "model_dump") is not None else result


def _event_output(event: Any) -> Any:
    if (said := getattr(event, "response", None)) is not None and hasattr(event, "structured_response"):
        return event.structured_response or text(said.content or "")
    return {type(event).__name__: members(event)}


def _node(found: Any) -> dict[str, Any]:
    """Return a node that a retriever found: its text, score and metadata."""
    return {"text": found.node.get_content(), "score": found.score, **({"metadata": more} if (more := found.node.metadata) else {})}


def query_of(asked: Any) -> str | None:
    """Return what is asked: a text, a query with one, or a message."""
    said = getattr(asked, "query_str", None) or getattr(asked, "content", None) or asked
    return None if said is None else text(said)


def question_of(event: Any) -> str | None:
    """Return what the user says: to an agent a message, or the last one of a history; else what a workflow is given."""
    if event is None:
        return None
    told = members(event)
    if "user_msg" in told:
        said: list[Any] = told.get("chat_history") or []
        history = [one for one in said if getattr(one.role, "value", one.role) == "user"]
        return query_of(told["user_msg"] or (history[-1] if history else None))
    name, only = next(iter(told.items())) if len(told) == 1 else ("", None)
    return f"{name}: {only}" if isinstance(only, str) else json_text(told) if told else None
