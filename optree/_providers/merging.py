"""What the pieces of a streamed answer add up to: texts, items by their indexes, messages, blocks and tool calls."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from msgspec import DecodeError

from optree._interrupts import suppress
from optree._values import MAX_ITEMS, MAX_TEXT, decode, is_list, is_object, object_of, objects_of, truncated

_MOST_PIECES: Final = 1000
"""Of a streamed text, before they are joined: each text object takes more memory than its characters."""
_IN_PIECES: Final = frozenset({"arguments", "transcript", "text", "summary", "data"})
"""Members whose texts come in pieces, of the objects that a message has."""


class Piece(NamedTuple):
    """The text and the reasoning that are new in a chunk."""

    text: str = ""
    thought: str = ""


class Numbered(list[Any]):
    """Items in the order of the indexes that a stream gives them, which need not begin with 0, nor come in that order."""

    __slots__ = ("_numbers",)

    def __init__(self, items: Iterable[Any] = ()) -> None:
        super().__init__(items)
        self._numbers = list(range(len(self)))

    def at(self, number: int | None, new: dict[str, Any]) -> Any:
        """Return the item of that index, made of *new* if it is not there; without an index a new one behind the last."""
        numbers = self._numbers
        if number is None:
            number = numbers[-1] + 1 if numbers else 0
        place = bisect_left(numbers, number)
        if place == len(numbers) or numbers[place] != number:
            if len(numbers) >= MAX_ITEMS:
                return self[-1]
            numbers.insert(place, number)
            self.insert(place, new)
        return self[place]


def numbered(holder: dict[str, Any], name: str) -> Numbered:
    """Return the list that is a member of *holder*, whose items are found by their indexes."""
    held = holder.get(name)
    if type(held) is not Numbered:
        made = holder[name] = Numbered(held if is_list(held) else ())
        return made
    return held


class _Text:
    """A text that is still being streamed. Of one that is too long to be kept the rest is counted."""

    __slots__ = ("_pieces", "_size")

    def __init__(self, piece: str) -> None:
        self._pieces = [piece]
        self._size = len(piece)

    def append(self, piece: str) -> None:
        """Add a piece of the text."""
        if self._size <= MAX_TEXT:
            self._pieces.append(piece)
            if len(self._pieces) > _MOST_PIECES:
                self._pieces = ["".join(self._pieces)]
        self._size += len(piece)

    def __str__(self) -> str:
        joined = "".join(self._pieces)
        return joined if self._size <= MAX_TEXT else truncated(joined, MAX_TEXT, self._size)


def append(holder: dict[str, Any], name: str, piece: str) -> None:
    """Add to a text that is a member of *holder*. Raises TypeError for a piece that is no text."""
    if type(piece) is not str:
        raise TypeError(name)
    held = holder.get(name)
    if type(held) is not _Text:
        held = holder[name] = _Text(held if isinstance(held, str) else "")
    held.append(piece)


def extend(holder: dict[str, Any], name: str, items: list[Any]) -> None:
    """Add to a list that is a member of *holder*; an item of the last one's index and type is more of that, as OpenRouter has it.

    Of more than `MAX_ITEMS` the first are kept.
    """
    held: list[Any] = holder.setdefault(name, [])
    for item in items:
        last: Any = held[-1] if held else None
        if is_object(item) and is_object(last) and "index" in item and all(item.get(key) == last.get(key) for key in ("index", "type")):
            merge(last, item)
        elif len(held) < MAX_ITEMS:
            held.append(dict(item) if is_object(item) else item)


def merge(held: dict[str, Any], more: dict[str, Any]) -> None:
    """Add the pieces of texts, and the items of lists, that an object has; its other members come whole."""
    for name, value in more.items():
        if isinstance(value, str) and name in _IN_PIECES:
            append(held, name, value)
        elif is_list(value):
            extend(held, name, value)
        else:
            held[name] = value


def joined(value: Any) -> Any:
    """Return a value with its streamed texts as texts."""
    if type(value) is _Text:
        return str(value)
    if is_object(value):
        return {key: joined(item) for key, item in value.items()}
    return [joined(item) for item in value] if is_list(value) else value


def merge_calls(holder: dict[str, Any], deltas: list[dict[str, Any]]) -> None:
    """Add to the tool calls of a message."""
    calls = numbered(holder, "tool_calls")
    for delta in deltas:
        call = calls.at(delta.get("index"), {"function": {"name": "", "arguments": ""}})
        if "type" in delta:  # not in Mistral's
            call["type"] = delta["type"]
        call["id"] = delta.get("id") or call.get("id")
        function = object_of(delta.get("function"))
        call["function"]["name"] = function.get("name") or call["function"]["name"]
        if isinstance(arguments := function.get("arguments") or "", str):
            append(call["function"], "arguments", arguments)
        else:  # whole, as Mistral may have it
            call["function"]["arguments"] = arguments


def merge_message(message: dict[str, Any], delta: dict[str, Any]) -> Piece:
    """Add to a message of OpenAI's chat."""
    text = delta.get("content") or delta.get("refusal") or ""
    thought = delta.get("reasoning_content") or delta.get("reasoning") or ""
    for name, value in delta.items():
        if name == "tool_calls":
            merge_calls(message, value)
        elif name == "content" and (is_list(value) or is_list(message.get(name))):
            text, thought = merge_blocks(message, value)
        elif isinstance(value, str) and name != "role":
            append(message, name, value)
        elif is_list(value):
            extend(message, name, value)
        elif is_object(value):
            merge(message.setdefault(name, {}), value if name != "audio" else {key: one for key, one in value.items() if key != "data"})
    return Piece(text, thought)


def merge_blocks(message: dict[str, Any], content: Any) -> Piece:
    """Add to a message the *content* of a chunk of Mistral's: blocks, or, after some, text."""
    held = message.get("content")
    if not is_list(held):
        message["content"] = [{"type": "text", "text": held}] if held else []
    blocks: list[Any] = message["content"]
    text = thought = ""
    for block in objects_of(content) if is_list(content) else [{"type": "text", "text": content}]:
        kind, inner = block.get("type"), block.get("thinking")
        if kind == "thinking":
            added = "".join(item.get("text") or "" for item in objects_of(inner)) if is_list(inner) else inner or ""
            thought += added
        elif kind == "text":
            added = block.get("text") or ""
            text += added
        else:
            blocks.append(block)
            continue
        if not blocks or blocks[-1].get("type") != kind:
            blocks.append({"type": kind, "thinking": [{"type": "text"}]} if is_list(inner) else {"type": kind})
        if is_list(held := blocks[-1].get("thinking")):
            append(held[0], "text", added)
        else:
            append(blocks[-1], kind, added)
    return Piece(text, thought)


def add_delta(block: dict[str, Any], delta: dict[str, Any]) -> Piece:
    """Add to a block of Anthropic's, or of Cohere's."""
    texts = {name: value for name in ("text", "thinking", "signature") if isinstance(value := delta.get(name), str)}
    for name, value in texts.items():
        append(block, name, value)
    if "partial_json" in delta:
        append(block, "input", delta["partial_json"])
    if "citation" in delta:
        extend(block, "citations", [delta["citation"]])
    return Piece(texts.get("text", ""), texts.get("thinking", ""))


def close(block: dict[str, Any]) -> None:
    """Make a value of a tool's input, which came as text."""
    if type(value := block.get("input")) is _Text:
        block["input"] = str(value)
    if isinstance(block.get("input"), str):
        with suppress(DecodeError):
            block["input"] = decode(block["input"].encode())


def merge_converse(block: dict[str, Any], delta: dict[str, Any]) -> Piece:
    """Add to a block of Bedrock's."""
    call, thought = object_of(delta.get("toolUse")), object_of(delta.get("reasoningContent"))
    held: dict[str, Any] = block.setdefault("toolUse", {}) if call else {}
    held |= {name: value for name, value in call.items() if name != "input"}
    if "input" in call:
        append(held, "input", call["input"])
    thinking: dict[str, Any] = block.setdefault("reasoningContent", {}).setdefault("reasoningText", {}) if thought else {}
    return Piece(add_delta(block, delta).text, add_delta(thinking, thought).text)


def merge_part(parts: list[Any], part: dict[str, Any]) -> None:
    """Add a part of Gemini's, a text to the text before it; one that is signed is a part of its own, which is sent back."""
    unsigned = all(not one.get("thoughtSignature") and not one.get("thought_signature") for one in (*parts[-1:], part))
    if unsigned and parts and "text" in part and "text" in (last := parts[-1]) and last.get("thought") == part.get("thought"):
        append(last, "text", part["text"])
    else:
        parts.append(dict(part))
