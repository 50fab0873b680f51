"""What an LLM call sent: tools, system and messages, which a provider's prompt cache reads in this order, and what else may be in its key.

The names are those of OpenAI (Chat Completions and Responses), Anthropic and Gemini; what has none of these names is no part of a cache's
key.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct

from optree.compare.histories import ROOT, Histories, asked_in, bare, decoded, text_bytes
from optree.conversation.content import HISTORY_KEYS, SYSTEM_KEYS, body_of, history_in
from optree.ids import content_id
from optree.nodes import OperationNode, Pool, parts_of_name
from optree.redaction import redact
from optree.values import is_list, is_object

PARTS = {
    "tools": ("tools", "functions"),
    "system": SYSTEM_KEYS,
    "output format": ("response_format", "text", "output_config", "responseSchema", "response_schema"),
    "tool choice": ("tool_choice", "toolConfig", "tool_config"),
    "thinking": ("thinking", "reasoning", "reasoning_effort", "chat_template_kwargs"),
    "cache key": ("prompt_cache_key", "cachedContent", "cached_content"),
}
"""Parts of a request that a cache's key depends on, with the members that hold them. Of the `CERTAIN` ones it does with every provider."""
CERTAIN = ("model", "tools", "system")
_ELSEWHERE = ("previous_response_id", "conversation")
"""Members that stand for messages which the provider keeps."""


class PromptPart(Struct):
    """A part of a request: its content id, the bytes of its JSON without data in base64, and the member it came from."""

    id: str
    size: int
    member: Any


class Prompt(Struct):
    """What a call sent. *head* is its history's node, None where its messages are not known; *note* says why."""

    model: str
    parts: dict[str, PromptPart]
    head: int | None = None
    lost: int = 0
    """Messages that the request names and that are not there any more."""
    note: str | None = None
    lifetime: float = 0.0
    """Seconds that the request, its messages aside, asks for its cache entry to live; 0 if it asks for none."""

    def asked(self, histories: Histories) -> float:
        """Return the longest lifetime of a cache entry that the call asks for, in seconds."""
        return self.lifetime if self.head is None else max(self.lifetime, histories.asked[self.head])

    def size(self, histories: Histories) -> int:
        """Return the bytes of all parts and messages, without data in base64."""
        return sum(part.size for part in self.parts.values()) + (0 if self.head is None else histories.text[self.head])


def prompt_of(op: OperationNode, histories: Histories, pool: Pool) -> Prompt:
    """Return what an LLM op sent."""
    found = Prompt(next((entry.model for entry in op.accounting if entry.model), None) or parts_of_name(redact(op.name))[1] or op.name, {})
    if op.request is None:
        found.note = "no request is recorded"
        return found
    given = decoded(op.request.payload)
    if not is_object(given):
        if is_list(given) and not op.request.truncated:
            found.head = histories.listed(given)
        else:
            found.note = "the request was cut" if op.request.truncated else "the request is no object: its messages are not known"
        return found
    body = body_of({key: _held(value, pool) if key == "messages" else value for key, value in given.items()})
    config = _held(body.get("config"), pool)  # google-genai's name for all but the contents
    outer = {key: value for key, value in given.items() if key not in HISTORY_KEYS}
    members: dict[str, Any] = {**(config if is_object(config) else {}), **outer, **body}
    if isinstance(members.get("model"), str):
        found.model = members["model"]
    found.lifetime = asked_in(bytes(op.request.payload))
    _add_parts(found, members, pool)
    _add_history(found, body, histories, pool)
    if op.request.truncated and found.note is None:
        found.note = "the request was cut: what is said of it is about what is left"
    return found


def _add_parts(found: Prompt, members: Mapping[str, Any], pool: Pool) -> None:
    for name, keys in PARTS.items():
        held = {key: _held(members[key], pool) for key in keys if _is_part(key, members.get(key))}
        if held:
            written = msgspec.json.encode(held)
            data = bare(written)
            value = msgspec.json.decode(data)
            found.lifetime = max(found.lifetime, asked_in(written))
            found.parts[name] = PromptPart(content_id(data), text_bytes(data), next(iter(value.values())) if len(value) == 1 else value)


def _is_part(key: str, value: Any) -> bool:
    """Tell whether a member is part of the key; a `text` that is plain is what somebody says, not a format."""
    return is_object(value) if key == "text" else value is not None


def _add_history(found: Prompt, body: Mapping[str, Any], histories: Histories, pool: Pool) -> None:
    elsewhere = next((name for name in _ELSEWHERE if body.get(name)), None)
    value = history_in(body)
    if elsewhere:
        found.note = f"earlier messages are with the provider ({elsewhere})"
        return
    if value is None:
        found.note = "the request has no messages"
        return
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
        return decoded(pool.blobs.get(value["$blob"]))
    return value
