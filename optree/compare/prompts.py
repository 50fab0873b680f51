"""What an LLM call sent, in the order in which a provider's prompt cache reads it: tools, output format, system, parameters, messages.

The names are those of OpenAI (Chat Completions and Responses), Anthropic and Gemini; what has none of these names is no part of a cache's
key.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct

from optree.compare.histories import ROOT, Histories, bare
from optree.ids import content_id
from optree.nodes import OperationNode, Pool
from optree.values import decode, is_list, is_object

PARTS = {
    "tools": ("tools", "functions"),
    "output format": ("response_format", "text", "output_config", "responseSchema", "response_schema"),
    "system": ("system", "instructions", "system_instruction", "systemInstruction"),
    "tool choice": ("tool_choice", "toolConfig", "tool_config"),
    "thinking": ("thinking", "reasoning", "reasoning_effort", "chat_template_kwargs"),
    "cache key": ("prompt_cache_key", "cachedContent", "cached_content"),
}
"""Parts of a request that a cache's key depends on, in the order of their effect, with the members that hold them."""
HISTORIES = ("messages", "input", "contents")
_ELSEWHERE = ("previous_response_id", "conversation")
"""Members that stand for messages which the provider keeps."""


class Part(Struct):
    """A part of a request: its content id, the bytes of its JSON, and the member it came from."""

    id: str
    size: int
    member: Any


class Prompt(Struct):
    """What a call sent. *head* is its history's node, None where its messages are not known; *note* says why."""

    model: str
    parts: dict[str, Part]
    head: int | None = None
    lost: int = 0
    """Messages that the request names and that are not there any more."""
    note: str | None = None

    def size(self, histories: Histories) -> int:
        """Return the bytes of all parts and messages."""
        return sum(part.size for part in self.parts.values()) + (0 if self.head is None else histories.size[self.head])


def prompt_of(op: OperationNode, histories: Histories, pool: Pool) -> Prompt:
    """Return what an LLM op sent."""
    found = Prompt(next((entry.model for entry in op.accounting if entry.model), None) or op.name.rpartition(":")[2] or op.name, {})
    if op.request is None:
        found.note = "no request is recorded"
        return found
    payload = decode(op.request.payload)
    if not is_object(payload):
        found.note = "the request was cut" if op.request.truncated else "the request is no object: its messages are not known"
        return found
    config = _held(payload.get("config"), pool)  # google-genai's name for all but the contents
    members: dict[str, Any] = {**(config if is_object(config) else {}), **payload}
    if isinstance(payload.get("model"), str):
        found.model = payload["model"]
    found.parts = _parts(members, pool)
    _add_history(found, payload, histories, pool)
    if op.request.truncated and found.note is None:
        found.note = "the request was cut: what is said of it is about what is left"
    return found


def _parts(members: Mapping[str, Any], pool: Pool) -> dict[str, Part]:
    parts: dict[str, Part] = {}
    for name, keys in PARTS.items():
        held = {key: _held(members[key], pool) for key in keys if _is_part(key, members.get(key))}
        if held:
            data = bare(msgspec.json.encode(held))
            value = msgspec.json.decode(data)
            parts[name] = Part(content_id(data), len(data), next(iter(value.values())) if len(value) == 1 else value)
    return parts


def _is_part(key: str, value: Any) -> bool:
    """Tell whether a member is part of the key; a `text` that is plain is what somebody says, not a format."""
    return is_object(value) if key == "text" else value is not None


def _add_history(found: Prompt, payload: Mapping[str, Any], histories: Histories, pool: Pool) -> None:
    elsewhere = next((name for name in _ELSEWHERE if payload.get(name)), None)
    name = next((name for name in HISTORIES if payload.get(name) is not None), None)
    if elsewhere:
        found.note = f"earlier messages are with the provider ({elsewhere})"
        return
    if name is None:
        found.note = "the request has no messages"
        return
    value = payload[name]
    if is_object(value) and isinstance(value.get("$history"), str):
        found.head = histories.linked(value["$history"], pool)
        count = value.get("count")
        found.lost = max(0, count - histories.depth[found.head]) if isinstance(count, int) else 0
        if found.lost:
            found.note = f"{found.lost:,} of its first messages are lost"
        return
    value = _held(value, pool)
    found.head = histories.listed(value if is_list(value) else [value]) if value is not None else ROOT


def _held(value: Any, pool: Pool) -> Any:
    """Return a member's value, from the pool where it is there."""
    if is_object(value) and isinstance(value.get("$blob"), str):
        return decode(pool.blobs.get(value["$blob"]))
    return value
