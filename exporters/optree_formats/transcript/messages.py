"""Content blocks from what providers send and answer, and back. How each provider says it, `optree.conversation` knows."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from itertools import groupby
from typing import Any

import msgspec
from msgspec import UNSET, Raw

from optree.conversation import TranscriptEntry, answers_of, calls_of, new_entries, text_of, thought_of
from optree.exporting import clean, raw
from optree_formats.transcript.wire import ContentBlock, Fidelity

SentBlock = tuple[str, ContentBlock]
"""A block with the role of the message that it is from."""


def sent(request: Any) -> list[SentBlock]:
    """Return what is new in a request: what follows its last answer, and then its system prompts."""
    return [block for entry in new_entries(request) for block in _block(entry)]


def answer(response: Any, thought: str) -> list[ContentBlock]:
    """Return an answer's blocks: its reasoning (*thought*, or what stands in it), its text, and the calls that it makes.

    An answer that holds results of tools has text and calls before each of them, and behind.
    """
    entries = [entry for entry in answers_of(response) if entry.role != "system"]
    thinking = thought or "\n".join(filter(None, map(thought_of, entries)))
    blocks = [ContentBlock(type="thinking", fidelity="agent_emitted", thinking=clean(thinking))] if thinking else []
    for is_result, group in groupby(entries, lambda entry: entry.role == "tool"):
        run = list(group)
        blocks += [_result(entry, "agent_emitted") for entry in run] if is_result else _text_and_calls(run)
    return blocks


def _text_and_calls(entries: Sequence[TranscriptEntry]) -> list[ContentBlock]:
    """Return the text of an assistant's entries as one block, and their calls."""
    text = "\n".join(filter(None, (text_of(entry.content) for entry in entries)))
    blocks: list[ContentBlock] = []
    if text:
        blocks.append(ContentBlock(type="text", fidelity="agent_emitted", text=clean(text)))
    for call in (call for entry in entries for call in calls_of(entry)):
        tool_input = raw(_arguments(call.arguments))
        blocks.append(
            ContentBlock(
                type="tool_use", fidelity="agent_emitted", tool_name=clean(call.name), tool_id=clean(call.id), tool_input=tool_input
            )
        )
    return blocks


def roles(blocks: Sequence[ContentBlock]) -> list[str]:
    """Return the roles of a user message's blocks by default: a text is the user's, the second of two is the system prompt."""
    texts = [block for block in blocks if block.type != "tool_result"]
    two = len(texts) == 2  # noqa: PLR2004 - the prompt and the system prompt
    return ["tool" if block.type == "tool_result" else "system" if two and block is texts[1] else "user" for block in blocks]


def request_of(blocks: Sequence[SentBlock]) -> dict[str, Any]:
    """Return a request in which `sent` finds these blocks."""
    return {"messages": [_message(role, block) for role, block in blocks]}


def answer_of(blocks: Sequence[ContentBlock]) -> Any:
    """Return an answer in which `answer` finds these blocks, thoughts apart; None without blocks."""
    answers: list[Any] = []
    for is_result, group in groupby(blocks, lambda block: block.type == "tool_result"):
        run = list(group)
        if is_result:
            answers += [_message("tool", block) for block in run]
        elif (message := _answered(run)) is not None:
            answers.append({"role": "assistant", "content": message} if isinstance(message, str) else message)
    return answers if any(block.type == "tool_result" for block in blocks) else _answered(blocks)


def _answered(blocks: Sequence[ContentBlock]) -> Any:
    """Return the answer that blocks without results of tools are: a text, or a message with calls."""
    text = "\n".join(filter(None, (plain_text(block) for block in blocks if block.type not in ("thinking", "tool_use"))))
    calls = [
        {"id": block.tool_id, "type": "function", "function": {"name": block.tool_name, "arguments": _json(block.tool_input)}}
        for block in blocks
        if block.type == "tool_use"
    ]
    return {"role": "assistant", "content": text or None, "tool_calls": calls} if calls else text or None


def thoughts(blocks: Sequence[ContentBlock]) -> str:
    """Return the thoughts in an answer's blocks."""
    return "\n".join(block.thinking for block in blocks if block.type == "thinking" and block.thinking)


def plain_text(block: ContentBlock) -> str:
    """Return a block's text, whatever its type; a stream's chunk may stand in either of two members."""
    return block.text or block.chunk or block.command or block.thinking


def _block(entry: TranscriptEntry) -> list[SentBlock]:
    if entry.role == "tool":
        return [("tool", _result(entry, "router"))]
    text = text_of(entry.content)
    return [_text(entry.role, text)] if text else []


def _result(entry: TranscriptEntry, fidelity: Fidelity) -> ContentBlock:
    return ContentBlock(type="tool_result", fidelity=fidelity, tool_id=clean(entry.tool_call_id or ""), tool_content=raw(entry.content))


def _text(role: str, text: str) -> SentBlock:
    return role, ContentBlock(type="text", fidelity="router", text=clean(text))


def _message(role: str, block: ContentBlock) -> dict[str, Any]:
    if block.type == "tool_result":
        content = None if block.tool_content is UNSET else msgspec.json.decode(block.tool_content)
        return {"role": "tool", "tool_call_id": block.tool_id, "content": content}
    return {"role": role, "content": plain_text(block)}


def _arguments(text: str) -> Any:
    """Return a call's arguments, which are JSON in a text."""
    with suppress(msgspec.DecodeError):  # not whole, as a stream that was cut leaves them: kept as text
        return msgspec.json.decode(text) if text else None
    return text


def _json(value: Raw | Any) -> str:
    return "" if value is UNSET else bytes(value).decode()
