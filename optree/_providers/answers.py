"""What providers' clients return: whole answers, and streams of chunks that add up to one, known by their shape. No client is imported.

Known are OpenAI's chat, completions and responses, Anthropic's messages, Gemini, Bedrock's Converse, Ollama, Cohere's and Mistral's chats,
and LangChain's messages, as objects or dicts. An answer comes out as its provider has it, without members that say nothing, so that
`optree._providers.messages` and `optree._providers.usage` read it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Final

from optree import _speed as speed
from optree._interrupts import pass_on
from optree._providers.merging import (
    Piece,
    add_delta,
    append,
    close,
    joined,
    merge,
    merge_calls,
    merge_converse,
    merge_message,
    merge_part,
    numbered,
)
from optree._values import MAX_ITEMS, is_list, is_object, object_of, objects_of, plain

_PROVIDERS: Final = {"openai": "openai", "anthropic": "anthropic", "google": "google", "ollama": "ollama"}
"""Providers by the package that a client's objects are from."""
_MODELS: Final = ("model", "model_version", "modelVersion", "model_name")
_RESPONSES: Final = ("response", "response.compaction")
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
_OF_CHOICE: Final = frozenset({"index", "delta", "text", "logprobs"})
"""Members of a choice in a chunk that are read in ways of their own."""
_CONTAINERS: Final = frozenset({dict, list})
_MOST_CALLS: Final = 64


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
        self.is_told = False
        """True once a chunk of OpenAI's chat or completions has the usage of the whole stream: it comes behind all choices."""
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
        found: dict[str, Any] = joined(self.answer)
        return found

    def _chat(self, chunk: dict[str, Any]) -> Piece | None:
        """Take a chunk of OpenAI's chat."""
        if not is_list(chunk.get("choices")):
            return None
        for key, value in chunk.items():
            if key not in _OF_CHUNK:
                self.answer[key] = value
        self._choices_told(chunk)
        choices = numbered(self.answer, "choices")
        first = Piece()
        for update in objects_of(chunk["choices"]):
            choice = choices.at(update.get("index", 0), {"message": {"role": "assistant", "content": None}})
            piece = merge_message(choice["message"], object_of(update.get("delta")))
            _merge_choice(choice, update)
            if choice is choices[0]:
                first = Piece(first.text + piece.text, first.thought + piece.thought)
        return first

    def _choices_told(self, chunk: dict[str, Any]) -> None:
        self.is_told = self.is_told or (not chunk["choices"] and is_object(chunk.get("usage")))

    def _completion(self, chunk: dict[str, Any]) -> Piece | None:
        """Take a chunk of OpenAI's completions, which has no message."""
        if not is_list(chunk.get("choices")):
            return None
        self.answer |= {key: value for key, value in chunk.items() if key != "choices"}
        self._choices_told(chunk)
        choices = numbered(self.answer, "choices")
        text = ""
        for update in objects_of(chunk["choices"]):
            choice = choices.at(update.get("index", 0), {"index": update.get("index", 0), "text": ""})
            append(choice, "text", added := update.get("text") or "")
            _merge_choice(choice, update)
            if choice is choices[0]:
                text += added
        return Piece(text)

    def _responses(self, event: dict[str, Any]) -> Piece | None:
        """Take an event of OpenAI's responses."""
        kind = event.get("type")
        if not isinstance(kind, str) or not kind.startswith(("response.", "error")):
            return None
        items = numbered(self.answer, "output")
        if is_object(response := event.get("response")):
            self.answer |= response
            self.answer["output"] = response.get("output") or items
        elif kind == "response.output_item.done":
            item: dict[str, Any] = items.at(event.get("output_index"), {})
            item.clear()
            item.update(event["item"])
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
            self.answer |= object_of(event.get("delta"))
            self.answer["usage"] = {**object_of(self.answer.get("usage")), **object_of(event.get("usage"))}
        blocks = numbered(self.answer, "content")
        if kind == "content_block_stop":
            close(blocks.at(event.get("index", 0), {}))
        if kind == "content_block_start":
            blocks.at(event.get("index", 0), {}).update(event["content_block"])
        if kind != "content_block_delta":
            return Piece()
        return add_delta(blocks.at(event.get("index", 0), {}), event["delta"])

    def _gemini(self, chunk: dict[str, Any]) -> Piece | None:
        """Take a chunk of Gemini's, each of which has the form of a whole answer."""
        if not is_list(updates := chunk.get("candidates", [])):
            return None
        self.answer |= {key: value for key, value in chunk.items() if key != "candidates"}
        if not updates:
            return Piece()
        candidates = numbered(self.answer, "candidates")
        text = thought = ""
        for place, update in enumerate(objects_of(updates)):
            held = candidates.at(update.get("index", place), {"content": {"role": "model", "parts": []}})
            parts = objects_of(object_of(update.get("content")).get("parts"))
            held |= {key: value for key, value in update.items() if key != "content"}
            for part in parts:
                merge_part(held["content"]["parts"], part)
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
        append(message, "content", text)
        if thought:
            append(message, "thinking", thought)
        if delta.get("tool_calls"):
            message["tool_calls"] = [*message.get("tool_calls", []), *delta["tool_calls"]]
        return Piece(text, thought)

    def _cohere(self, event: dict[str, Any]) -> Piece | None:
        """Take an event of Cohere's chat."""
        kind, delta = event.get("type"), object_of(event.get("delta"))
        if not isinstance(kind, str) or "-" not in kind:
            return None
        message, update = self.answer.setdefault("message", {"role": "assistant"}), object_of(delta.get("message"))
        if kind == "message-start":
            self.answer |= {key: value for key, value in event.items() if key == "id"}
        elif kind == "message-end":
            self.answer |= delta
        elif kind == "tool-plan-delta":
            append(message, "tool_plan", plan := update.get("tool_plan") or "")
            return Piece(thought=plan)
        elif kind in ("tool-call-start", "tool-call-delta"):
            merge_calls(message, [{"index": event.get("index", 0), **object_of(update.get("tool_calls"))}])
        elif kind == "content-start":
            numbered(message, "content").at(event.get("index", 0), {}).update(object_of(update.get("content")))
        elif kind == "content-delta":
            return add_delta(numbered(message, "content").at(event.get("index", 0), {"type": "text"}), object_of(update.get("content")))
        elif kind == "citation-start":
            message.setdefault("citations", []).append(update.get("citations"))
        return Piece()

    def _converse(self, event: dict[str, Any]) -> Piece | None:
        """Take an event of Bedrock's Converse."""
        kind, members = next(((name, value) for name, value in event.items() if is_object(value)), ("", dict[str, Any]()))
        content = numbered(self.answer.setdefault("output", {"message": {"role": "assistant", "content": []}})["message"], "content")
        if kind in ("messageStop", "metadata"):
            self.answer |= members
        block: dict[str, Any] = content.at(members["contentBlockIndex"], {}) if "contentBlockIndex" in members else {}
        if kind == "contentBlockStop":
            close(object_of(block.get("toolUse")))
        return merge_converse(block, object_of(members.get("start") or members.get("delta")))

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
        append(self.answer, "content", text)
        if deltas := chunk.get("tool_call_chunks"):
            calls = [
                {
                    "index": delta.get("index") or 0,
                    "id": delta.get("id"),
                    "type": "function",
                    "function": {**delta, "arguments": delta.get("args")},
                }
                for delta in objects_of(deltas)
            ]
            merge_calls(self.answer, calls)
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


def _bare(value: Any) -> Any:
    """Return plain values without the members that are null: clients name all that there could be."""
    if is_object(value):
        return {key: _bare(item) if type(item) in _CONTAINERS else item for key, item in value.items() if item is not None}
    return [_bare(item) if type(item) in _CONTAINERS else item for item in value] if is_list(value) else value


def _merge_choice(choice: dict[str, Any], update: dict[str, Any]) -> None:
    """Add what a chunk of OpenAI's says of a choice beside its text: why it ended, and how probable the tokens were."""
    for name, value in update.items():
        if name == "logprobs" and is_object(value):
            merge(choice.setdefault(name, {}), value)
        elif name not in _OF_CHOICE:
            choice[name] = value


def _is_whole(answer: dict[str, Any]) -> bool:
    choices, candidates, message = answer.get("choices"), answer.get("candidates"), object_of(answer.get("output", answer)).get("message")
    if is_list(choices) and choices:
        return all(is_object(choice) and ("message" in choice or ("text" in choice and "index" in choice)) for choice in choices)
    if is_list(candidates) or _is_blocked(answer):
        ends = {"content", "finish_reason", "finishReason"}
        return all(is_object(item) and not ends.isdisjoint(item) for item in candidates or ())
    if answer.get("object") in _RESPONSES or (answer.get("type") == "message" and answer.get("role") == "assistant"):
        return is_list(answer.get("output", answer.get("content")))
    if is_object(message) and message.get("role") == "assistant" and ("finish_reason" in answer or "stopReason" in answer):
        return "content" in message or "tool_calls" in message  # Cohere's, Bedrock's
    if answer.get("done") is True:
        return is_object(message) or "response" in answer
    return answer.get("type") in _LANGCHAIN and "content" in answer and ("response_metadata" in answer or "usage_metadata" in answer)


def _is_blocked(answer: dict[str, Any]) -> bool:
    """Tell whether an answer of Gemini's says why it has no candidates."""
    return not answer.get("candidates") and any(is_object(answer.get(name)) for name in ("promptFeedback", "prompt_feedback"))


def _of_chat(chunk: dict[str, Any]) -> bool:
    choices = chunk.get("choices")
    is_named = chunk.get("object") == "chat.completion.chunk"
    return is_list(choices) and (is_named or any(is_object(choice) and "delta" in choice for choice in choices))


_STREAMS: Final[list[tuple[Callable[[dict[str, Any]], bool], str]]] = [
    (_of_chat, "_chat"),
    (lambda chunk: chunk.get("object") == "text_completion", "_completion"),
    (lambda chunk: str(chunk.get("type", "")).startswith("response."), "_responses"),
    (lambda chunk: chunk.get("type") in ("message_start", "ping"), "_anthropic"),
    (lambda chunk: is_list(chunk.get("candidates")) or _is_blocked(chunk), "_gemini"),
    (lambda chunk: isinstance(chunk.get("done"), bool) and ("message" in chunk or "response" in chunk), "_ollama"),
    (lambda chunk: chunk.get("type") == "message-start", "_cohere"),
    (lambda chunk: is_object(chunk.get("messageStart")), "_converse"),
    (lambda chunk: chunk.get("type") == "AIMessageChunk", "_langchain"),
]
"""How the first chunk of each stream is recognised, and the method that takes the chunks of that stream."""


if speed.compiled():
    speed.quicken(sys.modules[__name__], "_bare")
