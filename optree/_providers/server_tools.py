"""Tool calls of an answer that the provider ran itself, and bills beside the tokens: web searches, code interpreters and the like."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from optree._values import is_list, is_object, text

_ITEMS: Final = frozenset({"output", "content", "additional_kwargs"})
_GROUNDED: Final = frozenset({"candidates", "response_metadata"})
"""Members of an answer in which it has such calls, or says that it searched."""
_SEARCHED: Final = frozenset({"annotations", "executed_tools"})
"""Members of a message that tell of a search."""
_BILLED_CALLS: Final = frozenset(
    {"web_search_call", "file_search_call", "code_interpreter_call", "image_generation_call", "shell_call", "x_search_call"}
)
"""Types of items of OpenAI's responses. Its other calls, as those of MCP, cost their tokens."""
_FREE_TOOLS: Final = ("web_search", "web_fetch", "tool_search")
"""How names of Anthropic's server tools begin that cost their tokens, or are counted in the usage."""


def server_tools(answer: Mapping[str, Any]) -> dict[str, int]:
    """Return how many tool calls of each type a whole answer has that its provider ran and bills beside the tokens."""
    calls: dict[str, int] = {}
    items: list[Any] = []
    if not _ITEMS.isdisjoint(answer):
        items = [*_items(answer, "output"), *_items(answer, "content"), *_items(answer.get("additional_kwargs"), "tool_outputs")]
    for item in items:
        kind = text(_member(item, "type"))
        runs_here = kind == "shell_call" and _member(_member(item, "environment"), "type") == "local"
        if kind in _BILLED_CALLS and not runs_here:
            calls[kind] = calls.get(kind, 0) + 1
        elif kind == "server_tool_use" and not (name := text(_member(item, "name"))).startswith(_FREE_TOOLS):
            calls[name] = calls.get(name, 0) + 1
    for choice in _items(answer, "choices"):
        message = _member(choice, "message")
        if is_object(message) and _SEARCHED.isdisjoint(message):
            continue
        cited = [note for note in _items(message, "annotations") if _member(note, "type") == "url_citation"]
        if searched := [*cited, *_items(message, "executed_tools")]:  # the latter are Groq's
            calls["web_search"] = calls.get("web_search", 0) + len(searched)
    for holder in [] if _GROUNDED.isdisjoint(answer) else [*_items(answer, "candidates"), answer.get("response_metadata")]:
        if any(_member(holder, name) for name in ("grounding_metadata", "groundingMetadata")):
            calls["grounding"] = calls.get("grounding", 0) + 1
    return calls


def _member(holder: Any, name: str) -> Any:
    """Return a member of a dict or of an object, without running code of its own."""
    held = holder if is_object(holder) else getattr(holder, "__dict__", None)
    return held.get(name) if is_object(held) else None


def _items(holder: Any, name: str) -> list[Any]:
    items = _member(holder, name)
    return items if is_list(items) else []
