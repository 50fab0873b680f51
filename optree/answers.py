"""What providers' clients return: whole answers, and streams of chunks that add up to one. Told by their shape; no client is imported.

Known are OpenAI's chat and responses interfaces, Anthropic's messages, Gemini, Ollama, and LangChain's messages, as objects or dicts. An
answer comes out as its provider has it, without members that say nothing, so that `optree.messages` and `optree.usage` read it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from msgspec import DecodeError

from optree.interrupts import pass_on, suppress
from optree.values import MAX_ITEMS, decode, is_list, is_object, plain

_PROVIDERS: Final = {"openai": "openai", "anthropic": "anthropic", "google": "google", "ollama": "ollama"}
"""Providers by the package that a client's objects are from."""
_MODELS: Final = ("model", "model_version", "modelVersion", "model_name")
_LANGCHAIN: Final = frozenset({"ai", "AIMessageChunk"})
_EVENTS: Final = frozenset(
    {"message_start", "message_delta", "message_stop", "content_block_start", "content_block_delta", "content_block_stop", "ping"}
)
"""Anthropic's."""
_REPEATED: Final = frozenset({"text", "thinking", "input_json", "signature", "citation"})
"""What Anthropic's client tells again beside the events that it comes from."""


_AGAIN: Final = ("content.delta", "content.done", "refusal.", "tool_calls.function.arguments.", "logprobs.")
"""What OpenAI's client tells again beside the chunks of a chat."""
_SENT: Final = ("input_tokens", "prompt_tokens", "prompt_token_count", "promptTokenCount")
_RECEIVED: Final = ("output_tokens", "completion_tokens", "candidates_token_count", "candidatesTokenCount")
_MOST_CALLS: Final = 64


class Piece(NamedTuple):
    """What is new in a chunk."""

    text: str = ""
    thought: str = ""


def whole(value: object) -> dict[str, Any] | None:
    """Return a provider's answer as plain values; None for what is none. Never raises."""
    value = _body(value)
    found = _bare(plain(value, MAX_ITEMS)) if _may_be(value) else None
    return found if is_object(found) and _is_whole(found) else None


def told_in(value: object) -> list[tuple[dict[str, Any], str | None]]:
    """Return the answers and usages that a function's result has: itself, in a list or tuple, or under `usage`; each with its provider.

    Each of them is of a call of its own. Nothing else is looked through: it may mean something else by the same names. Never raises.
    """
    several: list[object] = list(value)[:_MOST_CALLS] if type(value) in (list, tuple) else [value]  # type: ignore[call-overload]
    found: list[tuple[dict[str, Any], str | None]] = []
    for one in several:
        answer = whole(one)
        told = answer if answer is not None else _bare(plain(one, MAX_ITEMS)) if _may_be(one) else None
        held = told.get("usage") if is_object(told) and answer is None else None
        if told is not None and (answer is not None or _is_usage(told) or _is_usage(held)):
            found.append((told, provider_of(one, told)))
    return found


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
    held = answer.get("response_metadata")
    for block in (answer, held if is_object(held) else {}):
        if (found := next((block[name] for name in _MODELS if isinstance(block.get(name), str)), None)) is not None:
            return str(found)
    return None


def provider_of(value: object, answer: dict[str, Any]) -> str | None:
    """Return the provider, by the client whose object it is, or by what the answer says itself."""
    held = answer.get("response_metadata")
    said = held.get("model_provider") if is_object(held) else answer.get("provider")
    return said if isinstance(said, str) else _PROVIDERS.get(type(value).__module__.partition(".")[0])


class Assembly:
    """The answer that a stream of chunks adds up to."""

    def __init__(self) -> None:
        self.answer: dict[str, Any] = {}
        """What came so far, in its provider's form."""
        self.provider: str | None = None
        self._take: Callable[[dict[str, Any]], Piece | None] | None = None

    def take(self, chunk: object) -> Piece | None:
        """Take a chunk; None for what is none of a known form. Never raises."""
        found = _bare(plain(_unwrapped(chunk), MAX_ITEMS)) if _may_be(chunk) else None
        if not is_object(found):
            return None
        if str(found.get("type", "")).startswith(_AGAIN):
            return Piece()
        if self._take is None:
            self.provider = provider_of(chunk, found)
            self._take = next((getattr(self, name) for is_one, name in _STREAMS if is_one(found)), None)
        try:
            return self._take(found) if self._take is not None else None
        except (TypeError, ValueError, KeyError, AttributeError, IndexError) as error:  # it only looked like one
            pass_on(error)
            return None

    def _chat(self, chunk: dict[str, Any]) -> Piece | None:
        """Take a chunk of OpenAI's chat."""
        if not is_list(chunk.get("choices")):
            return None
        self.answer |= {key: value for key, value in chunk.items() if key not in ("choices", "object")}
        choices = self.answer.setdefault("choices", [])
        text = thought = ""
        for told in _objects(chunk["choices"]):
            choice = _at(choices, told.get("index", 0), {"message": {"role": "assistant", "content": None}})
            message, delta = choice["message"], _object(told.get("delta"))
            for name, value in delta.items():
                if name == "tool_calls":
                    _merge_calls(message.setdefault("tool_calls", []), value)
                elif isinstance(value, str) and name != "role":
                    message[name] = (message.get(name) or "") + value
            if told.get("finish_reason"):
                choice["finish_reason"] = told["finish_reason"]
            if choice is choices[0]:
                text += delta.get("content") or delta.get("refusal") or ""
                thought += delta.get("reasoning_content") or delta.get("reasoning") or ""
        return Piece(text, thought)

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
        if kind in ("response.output_text.delta", "response.refusal.delta"):
            return Piece(text=delta)
        return Piece(thought=delta) if kind.startswith("response.reasoning") else Piece()

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
        if not is_list(told := chunk.get("candidates", [])):
            return None
        self.answer |= {key: value for key, value in chunk.items() if key != "candidates"}
        candidates = self.answer.setdefault("candidates", [])
        text = thought = ""
        for place, one in enumerate(_objects(told)):
            held = _at(candidates, one.get("index", place), {"content": {"role": "model", "parts": []}})
            parts = _objects(_object(one.get("content")).get("parts"))
            held |= {key: value for key, value in one.items() if key != "content"}
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
        said = chunk.get("message")
        delta: dict[str, Any] = said if is_object(said) else {"content": chunk.get("response"), "thinking": chunk.get("thinking")}
        self.answer |= {key: value for key, value in chunk.items() if key not in ("message", "response", "thinking")}
        message = self.answer.setdefault("message", {"role": "assistant", "content": ""})
        text, thought = delta.get("content") or "", delta.get("thinking") or ""
        message["content"] += text
        if thought:
            message["thinking"] = message.get("thinking", "") + thought
        if delta.get("tool_calls"):
            message["tool_calls"] = [*message.get("tool_calls", []), *delta["tool_calls"]]
        return Piece(text, thought)

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
        self.answer["content"] = self.answer.get("content", "") + text
        if told := chunk.get("tool_call_chunks"):
            calls = [
                {"index": one.get("index") or 0, "id": one.get("id"), "function": {**one, "arguments": one.get("args")}}
                for one in _objects(told)
            ]
            _merge_calls(self.answer.setdefault("tool_calls", []), calls)
        return Piece(text, thought)


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


def _objects(value: Any) -> list[dict[str, Any]]:
    return [one for one in value if is_object(one)] if is_list(value) else []


def _bare(value: Any) -> Any:
    """Return plain values without the members that are null: clients name all that there could be."""
    if is_object(value):
        return {key: _bare(item) for key, item in value.items() if item is not None}
    return [_bare(item) for item in value] if is_list(value) else value


def _is_whole(found: dict[str, Any]) -> bool:
    choices, candidates, message = found.get("choices"), found.get("candidates"), found.get("message")
    if is_list(choices) and choices:
        return all(is_object(one) and ("message" in one or ("text" in one and "index" in one)) for one in choices)
    if is_list(candidates):
        return all(is_object(one) and ("content" in one or "finish_reason" in one or "finishReason" in one) for one in candidates)
    if found.get("object") == "response" or (found.get("type") == "message" and found.get("role") == "assistant"):
        return is_list(found.get("output", found.get("content")))
    if found.get("done") is True:
        return is_object(message) or "response" in found
    return found.get("type") in _LANGCHAIN and "content" in found and ("response_metadata" in found or "usage_metadata" in found)


def _of_chat(chunk: dict[str, Any]) -> bool:
    choices = chunk.get("choices")
    return is_list(choices) and (
        chunk.get("object") == "chat.completion.chunk" or any(is_object(one) and "delta" in one for one in choices)
    )


_STREAMS: Final[list[tuple[Callable[[dict[str, Any]], bool], str]]] = [
    (_of_chat, "_chat"),
    (lambda chunk: str(chunk.get("type", "")).startswith("response."), "_responses"),
    (lambda chunk: chunk.get("type") in ("message_start", "ping"), "_anthropic"),
    (lambda chunk: is_list(chunk.get("candidates")), "_gemini"),
    (lambda chunk: isinstance(chunk.get("done"), bool) and ("message" in chunk or "response" in chunk), "_ollama"),
    (lambda chunk: chunk.get("type") == "AIMessageChunk", "_langchain"),
]
"""How the first chunk of each stream is told, and who takes it and those that follow."""


def _at(items: list[Any], index: int, new: dict[str, Any]) -> dict[str, Any]:
    """Return the item of that index, made if it is not there."""
    if not 0 <= index <= len(items):
        index = len(items) - 1 if items else 0
    if index == len(items):
        items.append(new)
    found: dict[str, Any] = items[index]
    return found


def _merge_calls(calls: list[Any], deltas: list[dict[str, Any]]) -> None:
    for delta in deltas:
        call = _at(calls, delta.get("index", len(calls)), {"type": "function", "function": {"name": "", "arguments": ""}})
        call["id"] = delta.get("id") or call.get("id")
        told = _object(delta.get("function"))
        call["function"]["name"] = told.get("name") or call["function"]["name"]
        call["function"]["arguments"] += told.get("arguments") or ""


def _delta(block: dict[str, Any], delta: dict[str, Any]) -> Piece:
    """Add to a block of Anthropic's."""
    for name in ("text", "thinking", "signature"):
        if isinstance(delta.get(name), str):
            block[name] = block.get(name, "") + delta[name]
    if "partial_json" in delta:
        before = block.get("input")
        block["input"] = (before if isinstance(before, str) else "") + delta["partial_json"]
    return Piece(delta.get("text") or "", delta.get("thinking") or "")


def _close(block: dict[str, Any]) -> None:
    """Make a value of a tool's input, which came as text."""
    if isinstance(block.get("input"), str):
        with suppress(DecodeError):
            block["input"] = decode(block["input"].encode())


def _merge_part(parts: list[Any], part: dict[str, Any]) -> None:
    """Add a part of Gemini's, a text to the text before it."""
    last = parts[-1] if parts else None
    if last is not None and "text" in part and "text" in last and last.get("thought") == part.get("thought"):
        last["text"] += part["text"]
    else:
        parts.append(dict(part))
