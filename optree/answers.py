"""What providers' clients return: whole answers, and streams of chunks that add up to one. Told by their shape; no client is imported.

Known are OpenAI's chat, completions and responses, Anthropic's messages, Gemini, Bedrock's Converse, Ollama, Cohere's and Mistral's chats,
and LangChain's messages, as objects or dicts. An answer comes out as its provider has it, without members that say nothing, so that
`optree.messages` and `optree.usage` read it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from msgspec import DecodeError

from optree.interrupts import pass_on, suppress
from optree.values import MAX_ITEMS, MAX_TEXT, decode, is_list, is_object, plain, truncated

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
_OF_CHUNK: Final = frozenset({"choices", "object"})
"""Members that an answer of OpenAI's chat has not from its chunks."""
_CONTAINERS: Final = frozenset({dict, list})
_MOST_CALLS: Final = 64
_MOST_PIECES: Final = 1000
"""Of a streamed text, before they are joined: a text of its own each takes more than what it says."""


class Piece(NamedTuple):
    """What is new in a chunk."""

    text: str = ""
    thought: str = ""


def whole(value: object, *, decoded: bool = False) -> dict[str, Any] | None:
    """Return a provider's answer as plain values; None for what is none. Never raises. *decoded*: it is JSON, decoded."""
    value = _body(value)
    found = _bare(value if decoded else plain(value, MAX_ITEMS)) if _may_be(value) else None
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
        """What came so far, in its provider's form, but for texts; see `whole`."""
        self.provider: str | None = None
        self._take: Callable[[dict[str, Any]], Piece | None] | None = None

    def take(self, chunk: object, *, decoded: bool = False) -> Piece | None:
        """Take a chunk; None for what is none of a known form. Never raises. *decoded*: it is JSON, decoded."""
        found = _bare(chunk if decoded else plain(_unwrapped(chunk), MAX_ITEMS)) if _may_be(chunk) else None
        if not is_object(found):
            return None
        kind = found.get("type")
        if kind is not None and str(kind).startswith(_AGAIN):
            return Piece()
        if self._take is None:
            self.provider = provider_of(chunk, found)
            self._take = next((getattr(self, name) for is_one, name in _STREAMS if is_one(found)), None)
        try:
            return self._take(found) if self._take is not None else None
        except (TypeError, ValueError, KeyError, AttributeError, IndexError) as error:  # it only looked like one
            pass_on(error)
            return None

    def whole(self) -> dict[str, Any]:
        """Return what came so far, in its provider's form."""
        self.answer = _joined(self.answer)
        return self.answer

    def _chat(self, chunk: dict[str, Any]) -> Piece | None:
        """Take a chunk of OpenAI's chat."""
        if not is_list(chunk.get("choices")):
            return None
        for key, value in chunk.items():
            if key not in _OF_CHUNK:
                self.answer[key] = value
        choices: list[dict[str, Any]] = self.answer.setdefault("choices", [])
        found = Piece()
        for told in _objects(chunk["choices"]):
            place = told.get("index", 0)
            known = type(place) is int and 0 <= place < len(choices)
            choice = choices[place] if known else _at(choices, place, {"message": {"role": "assistant", "content": None}})
            piece = _merge_message(choice["message"], _object(told.get("delta")))
            if told.get("finish_reason"):
                choice["finish_reason"] = told["finish_reason"]
            if choice is choices[0]:
                found = Piece(found.text + piece.text, found.thought + piece.thought)
        return found

    def _completion(self, chunk: dict[str, Any]) -> Piece | None:
        """Take a chunk of OpenAI's completions, which has no message."""
        if not is_list(chunk.get("choices")):
            return None
        self.answer |= {key: value for key, value in chunk.items() if key != "choices"}
        choices = self.answer.setdefault("choices", [])
        text = ""
        for told in _objects(chunk["choices"]):
            choice = _at(choices, told.get("index", 0), {"index": told.get("index", 0), "text": ""})
            _append(choice, "text", said := told.get("text") or "")
            if told.get("finish_reason"):
                choice["finish_reason"] = told["finish_reason"]
            if choice is choices[0]:
                text += said
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
        message, told = self.answer.setdefault("message", {"role": "assistant"}), _object(delta.get("message"))
        if kind == "message-start":
            self.answer |= {key: value for key, value in event.items() if key == "id"}
        elif kind == "message-end":
            self.answer |= delta
        elif kind == "tool-plan-delta":
            _append(message, "tool_plan", plan := told.get("tool_plan") or "")
            return Piece(thought=plan)
        elif kind in ("tool-call-start", "tool-call-delta"):
            _merge_calls(message.setdefault("tool_calls", []), [{"index": event.get("index", 0), **_object(told.get("tool_calls"))}])
        elif kind == "content-start":
            _at(message.setdefault("content", []), event.get("index", 0), {}).update(_object(told.get("content")))
        elif kind == "content-delta":
            return _delta(_at(message.setdefault("content", []), event.get("index", 0), {"type": "text"}), _object(told.get("content")))
        elif kind == "citation-start":
            message.setdefault("citations", []).append(told.get("citations"))
        return Piece()

    def _converse(self, event: dict[str, Any]) -> Piece | None:
        """Take an event of Bedrock's Converse."""
        kind, told = next(((name, one) for name, one in event.items() if is_object(one)), ("", dict[str, Any]()))
        content = self.answer.setdefault("output", {"message": {"role": "assistant", "content": []}})["message"]["content"]
        if kind in ("messageStop", "metadata"):
            self.answer |= told
        block = _at(content, told["contentBlockIndex"], {}) if "contentBlockIndex" in told else {}
        if kind == "contentBlockStop":
            _close(_object(block.get("toolUse")))
        return _merge_converse(block, _object(told.get("start") or told.get("delta")))

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
        if told := chunk.get("tool_call_chunks"):
            calls = [
                {"index": one.get("index") or 0, "id": one.get("id"), "function": {**one, "arguments": one.get("args")}}
                for one in _objects(told)
            ]
            _merge_calls(self.answer.setdefault("tool_calls", []), calls)
        return Piece(text, thought)


class _Text:
    """A text that is still being streamed. Of one that is too long to be kept the rest is counted."""

    __slots__ = ("_pieces", "_size")

    def __init__(self, said: str) -> None:
        self._pieces = [said]
        self._size = len(said)

    def append(self, said: str) -> None:
        """Add what came."""
        if self._size <= MAX_TEXT:
            self._pieces.append(said)
            if len(self._pieces) > _MOST_PIECES:
                self._pieces = ["".join(self._pieces)]
        self._size += len(said)

    def __str__(self) -> str:
        said = "".join(self._pieces)
        return said if self._size <= MAX_TEXT else truncated(said, MAX_TEXT, self._size)


def _append(holder: dict[str, Any], name: str, said: str) -> None:
    if type(said) is not str:
        raise TypeError(name)
    held = holder.get(name)
    if type(held) is not _Text:
        held = holder[name] = _Text(held if isinstance(held, str) else "")
    held.append(said)


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


def _objects(value: Any) -> list[dict[str, Any]]:
    return [one for one in value if is_object(one)] if is_list(value) else []


def _bare(value: Any) -> Any:
    """Return plain values without the members that are null: clients name all that there could be."""
    if is_object(value):
        return {key: _bare(item) if type(item) in _CONTAINERS else item for key, item in value.items() if item is not None}
    return [_bare(item) if type(item) in _CONTAINERS else item for item in value] if is_list(value) else value


def _is_whole(found: dict[str, Any]) -> bool:
    choices, candidates, message = found.get("choices"), found.get("candidates"), _object(found.get("output", found)).get("message")
    if is_list(choices) and choices:
        return all(is_object(one) and ("message" in one or ("text" in one and "index" in one)) for one in choices)
    if is_list(candidates):
        return all(is_object(one) and ("content" in one or "finish_reason" in one or "finishReason" in one) for one in candidates)
    if found.get("object") == "response" or (found.get("type") == "message" and found.get("role") == "assistant"):
        return is_list(found.get("output", found.get("content")))
    if (
        is_object(message) and message.get("role") == "assistant" and not found.keys().isdisjoint(("finish_reason", "stopReason"))
    ):  # Cohere's, Bedrock's
        return "content" in message or "tool_calls" in message
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
    (lambda chunk: chunk.get("object") == "text_completion", "_completion"),
    (lambda chunk: str(chunk.get("type", "")).startswith("response."), "_responses"),
    (lambda chunk: chunk.get("type") in ("message_start", "ping"), "_anthropic"),
    (lambda chunk: is_list(chunk.get("candidates")), "_gemini"),
    (lambda chunk: isinstance(chunk.get("done"), bool) and ("message" in chunk or "response" in chunk), "_ollama"),
    (lambda chunk: chunk.get("type") == "message-start", "_cohere"),
    (lambda chunk: is_object(chunk.get("messageStart")), "_converse"),
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
        if isinstance(said := told.get("arguments") or "", str):
            _append(call["function"], "arguments", said)
        else:  # whole, as Mistral may have it
            call["function"]["arguments"] = said


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


def _merge_blocks(message: dict[str, Any], said: Any) -> Piece:
    """Add to a message what a chunk of Mistral's says: blocks, or, behind some, text."""
    held = message.get("content")
    if not is_list(held):
        message["content"] = [{"type": "text", "text": held}] if held else []
    blocks: list[Any] = message["content"]
    text = thought = ""
    for block in _objects(said) if is_list(said) else [{"type": "text", "text": said}]:
        kind, inner = block.get("type"), block.get("thinking")
        if kind == "thinking":
            told = "".join(one.get("text") or "" for one in _objects(inner)) if is_list(inner) else inner or ""
            thought += told
        elif kind == "text":
            told = block.get("text") or ""
            text += told
        else:
            blocks.append(block)
            continue
        if not blocks or blocks[-1].get("type") != kind:
            blocks.append({"type": kind})
        _append(blocks[-1], kind, told)
    return Piece(text, thought)


def _delta(block: dict[str, Any], delta: dict[str, Any]) -> Piece:
    """Add to a block of Anthropic's, or of Cohere's."""
    said = {name: value for name in ("text", "thinking", "signature") if isinstance(value := delta.get(name), str)}
    for name, value in said.items():
        _append(block, name, value)
    if "partial_json" in delta:
        _append(block, "input", delta["partial_json"])
    return Piece(said.get("text", ""), said.get("thinking", ""))


def _close(block: dict[str, Any]) -> None:
    """Make a value of a tool's input, which came as text."""
    if type(said := block.get("input")) is _Text:
        block["input"] = str(said)
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
    """Add a part of Gemini's, a text to the text before it."""
    last = parts[-1] if parts else None
    if last is not None and "text" in part and "text" in last and last.get("thought") == part.get("thought"):
        _append(last, "text", part["text"])
    else:
        parts.append(dict(part))
