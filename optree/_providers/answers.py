"""What providers' clients return: whole answers, and streams of chunks that add up to one, known by their shape. No client is imported.

Known are OpenAI's chat, completions and responses, Anthropic's messages, Gemini, Bedrock's Converse, Ollama, Cohere's and Mistral's chats,
and LangChain's messages, as objects or dicts. An answer comes out as its provider has it, without members that say nothing, so that
`optree._providers.messages` and `optree._providers.usage` read it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Final, NamedTuple, cast

from msgspec import DecodeError

from optree import _speed as speed
from optree._interrupts import pass_on, suppress
from optree._values import MAX_ITEMS, MAX_TEXT, decode, is_list, is_object, objects_of, plain, truncated

_PROVIDERS: Final = {"openai": "openai", "anthropic": "anthropic", "google": "google", "ollama": "ollama"}
"""Providers by the package that a client's objects are from."""
_MODELS: Final = ("model", "model_version", "modelVersion", "model_name")
_LANGCHAIN: Final = frozenset({"ai", "AIMessageChunk"})
_EVENTS: Final = frozenset(  # Anthropic's
    {"message_start", "message_delta", "message_stop", "content_block_start", "content_block_delta", "content_block_stop", "ping"}
)
_TEXT_DELTAS: Final = ("text.delta", "refusal.delta", "audio_transcript.delta")  # what events of OpenAI's responses end with
_REPEATED: Final = frozenset({"text", "thinking", "input_json", "signature", "citation"})
"""Events by which Anthropic's client repeats the content of others."""
_AGAIN: Final = ("content.delta", "content.done", "refusal.", "tool_calls.function.arguments.", "logprobs.")
"""Events by which OpenAI's client repeats the chunks of a chat."""
_SENT: Final = ("input_tokens", "prompt_tokens", "prompt_token_count", "promptTokenCount")
_RECEIVED: Final = ("output_tokens", "completion_tokens", "candidates_token_count", "candidatesTokenCount")
_OF_CHUNK: Final = frozenset({"choices", "object"})
"""Members that an answer of OpenAI's chat has not from its chunks."""
_CONTAINERS: Final = frozenset({dict, list})
_MOST_CALLS: Final = 64
_MOST_PIECES: Final = 1000
"""Of a streamed text, before they are joined: each text object takes more memory than its characters."""


class Piece(NamedTuple):
    """The text and the reasoning that are new in a chunk."""

    text: str = ""
    thought: str = ""


def whole(value: object, *, decoded: bool = False) -> dict[str, Any] | None:
    """Return a provider's answer as plain values; None if *value* is not an answer. Never raises. *decoded*: it is decoded JSON."""
    value = value if decoded else plain(value, MAX_ITEMS) if _may_be(value := _body(value)) else None
    return answer if is_object(value) and _is_whole(answer := _bare(value)) else None


def told_in(value: object) -> list[tuple[dict[str, Any], str | None]]:
    """Return the answers and usages that a function's result has: itself, in a list or tuple, or under `usage`; each with its provider.

    Each of them is of a call of its own. Nothing else is looked through: it may mean something else by the same names. Never raises.
    """
    several: list[object] = list(value)[:_MOST_CALLS] if type(value) in (list, tuple) else [value]  # type: ignore[call-overload]
    results: list[tuple[dict[str, Any], str | None]] = []
    for item in several:
        answer = whole(item)
        block = answer if answer is not None else _bare(plain(item, MAX_ITEMS)) if _may_be(item) else None
        usage = block.get("usage") if is_object(block) and answer is None else None
        if block is not None and (answer is not None or _is_usage(block) or _is_usage(usage)):
            results.append((block, provider_of(item, block)))
    return results


def _is_usage(value: object) -> bool:
    """Tell whether a value is a usage, by figures of both what was sent and what came back."""
    return is_object(value) and any(name in value for name in _SENT) and any(name in value for name in _RECEIVED)


def _body(value: Any) -> Any:
    """Return what a client's raw response has, where all of it is there (the program parses it itself); other values as they are."""
    if not type(value).__name__.endswith("APIResponse"):
        return value
    try:
        return value.http_response.json() if value.http_response.is_closed else value
    except Exception as error:  # noqa: BLE001 - other people's code
        pass_on(error)
        return value


def model_of(answer: dict[str, Any]) -> str | None:
    """Return the model that an answer says it is from."""
    for name in _MODELS:
        if isinstance(model := answer.get(name), str):
            return model
    held = answer.get("response_metadata")
    return model_of(held) if is_object(held) else None


def provider_of(value: object, answer: dict[str, Any]) -> str | None:
    """Return the provider, by what the answer says itself, or by the client whose object it is."""
    return provider_in(answer) or _PROVIDERS.get(type(value).__module__.partition(".")[0])


def provider_in(answer: dict[str, Any]) -> str | None:
    """Return the provider, if the answer names one."""
    held = answer.get("response_metadata")
    name = held.get("model_provider") if is_object(held) else answer.get("provider")
    return name if isinstance(name, str) else None


class Assembly:
    """The answer that a stream of chunks adds up to."""

    def __init__(self) -> None:
        self.answer: dict[str, Any] = {}
        """The answer so far, in its provider's form, but for texts; see `whole`."""
        self.provider: str | None = None
        self._take: Callable[[dict[str, Any]], Piece | None] | None = None

    def take(self, chunk: object, *, decoded: bool = False) -> Piece | None:
        """Take a chunk; None if its form is not known. Never raises. *decoded*: it is decoded JSON."""
        plain_chunk = _bare(chunk if decoded else plain(_unwrapped(chunk), MAX_ITEMS)) if _may_be(chunk) else None
        if not is_object(plain_chunk):
            return None
        kind = plain_chunk.get("type")
        if kind is not None and str(kind).startswith(_AGAIN):
            return Piece()
        if self._take is None:
            self.provider = provider_of(chunk, plain_chunk)
            self._take = next((getattr(self, name) for is_one, name in _STREAMS if is_one(plain_chunk)), None)
        try:
            return self._take(plain_chunk) if self._take is not None else None
        except (TypeError, ValueError, KeyError, AttributeError, IndexError) as error:  # it only looked like a chunk of that form
            pass_on(error)
            return None

    def whole(self) -> dict[str, Any]:
        """Return the answer so far, in its provider's form."""
        found: dict[str, Any] = _joined(self.answer)
        return found

    def _chat(self, chunk: dict[str, Any]) -> Piece | None:
        """Take a chunk of OpenAI's chat."""
        if not is_list(chunk.get("choices")):
            return None
        for key, value in chunk.items():
            if key not in _OF_CHUNK:
                self.answer[key] = value
        choices: list[dict[str, Any]] = self.answer.setdefault("choices", [])
        first = Piece()
        for update in objects_of(chunk["choices"]):
            place = update.get("index", 0)
            known = type(place) is int and 0 <= place < len(choices)
            choice = choices[place] if known else _at(choices, place, {"message": {"role": "assistant", "content": None}})
            piece = _merge_message(choice["message"], _object(update.get("delta")))
            if update.get("finish_reason"):
                choice["finish_reason"] = update["finish_reason"]
            if choice is choices[0]:
                first = Piece(first.text + piece.text, first.thought + piece.thought)
        return first

    def _completion(self, chunk: dict[str, Any]) -> Piece | None:
        """Take a chunk of OpenAI's completions, which has no message."""
        if not is_list(chunk.get("choices")):
            return None
        self.answer |= {key: value for key, value in chunk.items() if key != "choices"}
        choices = self.answer.setdefault("choices", [])
        text = ""
        for update in objects_of(chunk["choices"]):
            choice = _at(choices, update.get("index", 0), {"index": update.get("index", 0), "text": ""})
            _append(choice, "text", added := update.get("text") or "")
            if update.get("finish_reason"):
                choice["finish_reason"] = update["finish_reason"]
            if choice is choices[0]:
                text += added
        return Piece(text)

    def _responses(self, event: dict[str, Any]) -> Piece | None:
        """Take an event of OpenAI's responses."""
        kind = event.get("type")
        if not isinstance(kind, str) or not kind.startswith(("response.", "error")):
            return None
        items = self.answer.setdefault("output", [])
        if is_object(response := event.get("response")):
            self.answer |= response
            self.answer["output"] = response.get("output") or items
        elif kind == "response.output_item.done":
            _at(items, event.get("output_index", len(items)), {})
            items[event.get("output_index", -1)] = event["item"]
        delta = event.get("delta")
        if not isinstance(delta, str):
            return Piece()
        if kind.startswith("response.reasoning"):
            return Piece(thought=delta)
        return Piece(text=delta) if kind.endswith(_TEXT_DELTAS) else Piece()

    def _anthropic(self, event: dict[str, Any]) -> Piece | None:
        """Take an event of Anthropic's messages."""
        kind = event.get("type")
        if kind not in _EVENTS:
            return Piece() if kind in _REPEATED else None
        if kind == "message_start":
            self.answer |= event["message"]
        elif kind == "message_delta":
            self.answer |= _object(event.get("delta"))
            self.answer["usage"] = {**_object(self.answer.get("usage")), **_object(event.get("usage"))}
        blocks = self.answer.setdefault("content", [])
        if kind == "content_block_stop":
            _close(_at(blocks, event.get("index", 0), {}))
        if kind == "content_block_start":
            _at(blocks, event.get("index", 0), {}).update(event["content_block"])
        if kind != "content_block_delta":
            return Piece()
        return _delta(_at(blocks, event.get("index", 0), {}), event["delta"])

    def _gemini(self, chunk: dict[str, Any]) -> Piece | None:
        """Take a chunk of Gemini's, each of which has the form of a whole answer."""
        if not is_list(updates := chunk.get("candidates", [])):
            return None
        self.answer |= {key: value for key, value in chunk.items() if key != "candidates"}
        candidates = self.answer.setdefault("candidates", [])
        text = thought = ""
        for place, update in enumerate(objects_of(updates)):
            held = _at(candidates, update.get("index", place), {"content": {"role": "model", "parts": []}})
            parts = objects_of(_object(update.get("content")).get("parts"))
            held |= {key: value for key, value in update.items() if key != "content"}
            for part in parts:
                _merge_part(held["content"]["parts"], part)
            if held is candidates[0]:
                text += "".join(part.get("text", "") for part in parts if not part.get("thought"))
                thought += "".join(part.get("text", "") for part in parts if part.get("thought"))
        return Piece(text, thought)

    def _ollama(self, chunk: dict[str, Any]) -> Piece | None:
        """Take a chunk of Ollama's, of its chat or of its completion."""
        if "done" not in chunk and "message" not in chunk:
            return None
        new = chunk.get("message")
        delta: dict[str, Any] = new if is_object(new) else {"content": chunk.get("response"), "thinking": chunk.get("thinking")}
        self.answer |= {key: value for key, value in chunk.items() if key not in ("message", "response", "thinking")}
        message = self.answer.setdefault("message", {"role": "assistant", "content": ""})
        text, thought = delta.get("content") or "", delta.get("thinking") or ""
        _append(message, "content", text)
        if thought:
            _append(message, "thinking", thought)
        if delta.get("tool_calls"):
            message["tool_calls"] = [*message.get("tool_calls", []), *delta["tool_calls"]]
        return Piece(text, thought)

    def _cohere(self, event: dict[str, Any]) -> Piece | None:
        """Take an event of Cohere's chat."""
        kind, delta = event.get("type"), _object(event.get("delta"))
        if not isinstance(kind, str) or "-" not in kind:
            return None
        message, update = self.answer.setdefault("message", {"role": "assistant"}), _object(delta.get("message"))
        if kind == "message-start":
            self.answer |= {key: value for key, value in event.items() if key == "id"}
        elif kind == "message-end":
            self.answer |= delta
        elif kind == "tool-plan-delta":
            _append(message, "tool_plan", plan := update.get("tool_plan") or "")
            return Piece(thought=plan)
        elif kind in ("tool-call-start", "tool-call-delta"):
            _merge_calls(message.setdefault("tool_calls", []), [{"index": event.get("index", 0), **_object(update.get("tool_calls"))}])
        elif kind == "content-start":
            _at(message.setdefault("content", []), event.get("index", 0), {}).update(_object(update.get("content")))
        elif kind == "content-delta":
            return _delta(_at(message.setdefault("content", []), event.get("index", 0), {"type": "text"}), _object(update.get("content")))
        elif kind == "citation-start":
            message.setdefault("citations", []).append(update.get("citations"))
        return Piece()

    def _converse(self, event: dict[str, Any]) -> Piece | None:
        """Take an event of Bedrock's Converse."""
        kind, members = next(((name, value) for name, value in event.items() if is_object(value)), ("", dict[str, Any]()))
        content = self.answer.setdefault("output", {"message": {"role": "assistant", "content": []}})["message"]["content"]
        if kind in ("messageStop", "metadata"):
            self.answer |= members
        block = _at(content, members["contentBlockIndex"], {}) if "contentBlockIndex" in members else {}
        if kind == "contentBlockStop":
            _close(_object(block.get("toolUse")))
        return _merge_converse(block, _object(members.get("start") or members.get("delta")))

    def _langchain(self, chunk: dict[str, Any]) -> Piece | None:
        """Take a chunk of LangChain's."""
        if chunk.get("type") not in _LANGCHAIN:
            return None
        self.answer |= {key: value for key, value in chunk.items() if key in ("id", "name", "usage_metadata")}
        self.answer["type"] = "ai"
        self.answer["response_metadata"] = {**self.answer.get("response_metadata", {}), **chunk.get("response_metadata", {})}
        content = chunk.get("content")
        blocks: list[Any] = content if is_list(content) else [{"type": "text", "text": content}] if content else []
        text = "".join(block.get("text") or "" for block in blocks if is_object(block) and block.get("type") == "text")
        thought = "".join(str(block.get("thinking") or block.get("reasoning") or "") for block in blocks if is_object(block))
        _append(self.answer, "content", text)
        if deltas := chunk.get("tool_call_chunks"):
            calls = [
                {"index": delta.get("index") or 0, "id": delta.get("id"), "function": {**delta, "arguments": delta.get("args")}}
                for delta in objects_of(deltas)
            ]
            _merge_calls(self.answer.setdefault("tool_calls", []), calls)
        return Piece(text, thought)


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


def _append(holder: dict[str, Any], name: str, piece: str) -> None:
    if type(piece) is not str:
        raise TypeError(name)
    held = holder.get(name)
    if type(held) is not _Text:
        held = holder[name] = _Text(held if isinstance(held, str) else "")
    held.append(piece)


def _joined(value: Any) -> Any:
    """Return a value with its streamed texts as texts."""
    if type(value) is _Text:
        return str(value)
    if is_object(value):
        return {key: _joined(item) for key, item in value.items()}
    return [_joined(item) for item in value] if is_list(value) else value


def _unwrapped(chunk: Any) -> Any:
    """Return the chunk that an event of OpenAI's `chat.completions.stream` brings, without all that came before it."""
    if is_object(chunk):
        return chunk["chunk"] if chunk.get("type") == "chunk" and is_object(chunk.get("chunk")) else chunk
    held: dict[str, Any] = getattr(chunk, "__dict__", {})
    return held["chunk"] if held.get("type") == "chunk" and "chunk" in held else chunk


def _may_be(value: object) -> bool:
    """Tell whether a value may be a provider's: a dict, or an object that can be dumped."""
    return is_object(value) or callable(getattr(type(value), "model_dump", None))


def _object(value: Any) -> dict[str, Any]:
    return value if is_object(value) else {}


def _bare(value: Any) -> Any:
    """Return plain values without the members that are null: clients name all that there could be."""
    if is_object(value):
        return {key: _bare(item) if type(item) in _CONTAINERS else item for key, item in value.items() if item is not None}
    return [_bare(item) if type(item) in _CONTAINERS else item for item in value] if is_list(value) else value


def _is_whole(answer: dict[str, Any]) -> bool:
    choices, candidates, message = answer.get("choices"), answer.get("candidates"), _object(answer.get("output", answer)).get("message")
    if is_list(choices) and choices:
        return all(is_object(choice) and ("message" in choice or ("text" in choice and "index" in choice)) for choice in choices)
    if is_list(candidates):
        return all(is_object(item) and ("content" in item or "finish_reason" in item or "finishReason" in item) for item in candidates)
    if answer.get("object") == "response" or (answer.get("type") == "message" and answer.get("role") == "assistant"):
        return is_list(answer.get("output", answer.get("content")))
    if is_object(message) and message.get("role") == "assistant" and ("finish_reason" in answer or "stopReason" in answer):
        return "content" in message or "tool_calls" in message  # Cohere's, Bedrock's
    if answer.get("done") is True:
        return is_object(message) or "response" in answer
    return answer.get("type") in _LANGCHAIN and "content" in answer and ("response_metadata" in answer or "usage_metadata" in answer)


def _of_chat(chunk: dict[str, Any]) -> bool:
    choices = chunk.get("choices")
    is_named = chunk.get("object") == "chat.completion.chunk"
    return is_list(choices) and (is_named or any(is_object(choice) and "delta" in choice for choice in choices))


_STREAMS: Final[list[tuple[Callable[[dict[str, Any]], bool], str]]] = [
    (_of_chat, "_chat"),
    (lambda chunk: chunk.get("object") == "text_completion", "_completion"),
    (lambda chunk: str(chunk.get("type", "")).startswith("response."), "_responses"),
    (lambda chunk: chunk.get("type") in ("message_start", "ping"), "_anthropic"),
    (lambda chunk: is_list(chunk.get("candidates")), "_gemini"),
    (lambda chunk: isinstance(chunk.get("done"), bool) and ("message" in chunk or "response" in chunk), "_ollama"),
    (lambda chunk: chunk.get("type") == "message-start", "_cohere"),
    (lambda chunk: is_object(chunk.get("messageStart")), "_converse"),
    (lambda chunk: chunk.get("type") == "AIMessageChunk", "_langchain"),
]
"""How the first chunk of each stream is recognised, and the method that takes the chunks of that stream."""


def _at(items: list[Any], index: int, new: dict[str, Any]) -> dict[str, Any]:
    """Return the item of that index, made if it is not there."""
    if not 0 <= index <= len(items):
        index = len(items) - 1 if items else 0
    if index == len(items):
        items.append(new)
    return cast("dict[str, Any]", items[index])


def _merge_calls(calls: list[Any], deltas: list[dict[str, Any]]) -> None:
    for delta in deltas:
        call = _at(calls, delta.get("index", len(calls)), {"type": "function", "function": {"name": "", "arguments": ""}})
        call["id"] = delta.get("id") or call.get("id")
        function = _object(delta.get("function"))
        call["function"]["name"] = function.get("name") or call["function"]["name"]
        if isinstance(arguments := function.get("arguments") or "", str):
            _append(call["function"], "arguments", arguments)
        else:  # whole, as Mistral may have it
            call["function"]["arguments"] = arguments


def _merge_message(message: dict[str, Any], delta: dict[str, Any]) -> Piece:
    """Add to a message of OpenAI's chat."""
    text = delta.get("content") or delta.get("refusal") or ""
    thought = delta.get("reasoning_content") or delta.get("reasoning") or ""
    for name, value in delta.items():
        if name == "tool_calls":
            _merge_calls(message.setdefault("tool_calls", []), value)
        elif name == "content" and (is_list(value) or is_list(message.get(name))):
            text, thought = _merge_blocks(message, value)
        elif isinstance(value, str) and name != "role":
            _append(message, name, value)
    return Piece(text, thought)


def _merge_blocks(message: dict[str, Any], content: Any) -> Piece:
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
            blocks.append({"type": kind})
        _append(blocks[-1], kind, added)
    return Piece(text, thought)


def _delta(block: dict[str, Any], delta: dict[str, Any]) -> Piece:
    """Add to a block of Anthropic's, or of Cohere's."""
    texts = {name: value for name in ("text", "thinking", "signature") if isinstance(value := delta.get(name), str)}
    for name, value in texts.items():
        _append(block, name, value)
    if "partial_json" in delta:
        _append(block, "input", delta["partial_json"])
    return Piece(texts.get("text", ""), texts.get("thinking", ""))


def _close(block: dict[str, Any]) -> None:
    """Make a value of a tool's input, which came as text."""
    if type(value := block.get("input")) is _Text:
        block["input"] = str(value)
    if isinstance(block.get("input"), str):
        with suppress(DecodeError):
            block["input"] = decode(block["input"].encode())


def _merge_converse(block: dict[str, Any], delta: dict[str, Any]) -> Piece:
    """Add to a block of Bedrock's."""
    call, thought = _object(delta.get("toolUse")), _object(delta.get("reasoningContent"))
    held: dict[str, Any] = block.setdefault("toolUse", {}) if call else {}
    held |= {name: value for name, value in call.items() if name != "input"}
    if "input" in call:
        _append(held, "input", call["input"])
    thinking: dict[str, Any] = block.setdefault("reasoningContent", {}).setdefault("reasoningText", {}) if thought else {}
    return Piece(_delta(block, delta).text, _delta(thinking, thought).text)


def _merge_part(parts: list[Any], part: dict[str, Any]) -> None:
    """Add a part of Gemini's, a text to the text before it; one that is signed is a part of its own, which is sent back."""
    unsigned = all(not one.get("thoughtSignature") and not one.get("thought_signature") for one in (*parts[-1:], part))
    if unsigned and parts and "text" in part and "text" in (last := parts[-1]) and last.get("thought") == part.get("thought"):
        _append(last, "text", part["text"])
    else:
        parts.append(dict(part))


if speed.compiled():
    speed.quicken(sys.modules[__name__], "_bare")
