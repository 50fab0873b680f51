"""Answers of which the text is known and little else, in the form of the interface that they are to go through.

Of a stream that broke off no more was recorded than that, its reasoning and its function calls; of an answer that the program recorded
itself, by `op.response(text)`, no more than its tokens beside.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from msgspec import DecodeError, json

from optree._interrupts import suppress
from optree._nodes import BROKEN_OFF_CALLS, OperationNode, Tokens
from optree._values import encode, is_list, is_object, text_of

_INTERFACES: Final = (
    (":streamgeneratecontent", "gemini"),
    (":generatecontent", "gemini"),
    ("/api/chat", "ollama"),
    ("/api/generate", "generate"),
    ("/chat/completions", "chat"),
    ("/completions", "completions"),
    ("/responses", "responses"),
    ("/messages", "anthropic"),
    (":rawpredict", "anthropic"),
    (":streamrawpredict", "anthropic"),
    ("/v2/chat", "cohere"),
    ("converse", "bedrock"),
    ("conversestream", "bedrock"),
)
"""By the end of a path, or the operation of Bedrock's client."""
_HEAD: Final = {"id": "recorded", "created": 0, "created_at": 0}


class PartialToolCall(NamedTuple):
    """A function call in a stream that broke off, as far as it had come."""

    id: str | None
    name: str
    arguments: str
    """As JSON, whose end may be missing."""
    is_closed: bool
    """True if it is known that all of them had come: Anthropic ends the block of a call."""

    @property
    def decoded(self) -> Any:
        """The arguments as a value; none where they are not whole."""
        with suppress(DecodeError):
            return json.decode(self.arguments)
        return {}

    @property
    def named(self) -> dict[str, Any]:
        """The name and the arguments, as OpenAI has them."""
        return {"name": self.name, "arguments": self.arguments}


def partial_tool_calls(attributes: Mapping[str, Any]) -> list[PartialToolCall]:
    """Return the function calls that had come when the stream of an op broke off."""
    told = attributes.get(BROKEN_OFF_CALLS)
    found: list[PartialToolCall] = []
    for one in filter(is_object, told if is_list(told) else ()):
        identity, sent = one.get("id"), one.get("arguments")
        arguments = sent if isinstance(sent, str) else encode(sent).decode() if sent else ""
        is_closed = is_object(sent) and bool(sent)  # an empty one is what a call begins with
        found.append(PartialToolCall(text_of(identity), str(one.get("name")), arguments, is_closed))
    return found


def interface_of(path: str) -> str | None:
    """Return which interface requests to a path go through; None for one that is not known."""
    low = path.lower().rstrip("/")
    return next((name for end, name in _INTERFACES if low.endswith(end)), None)


class _PartialAnswer(NamedTuple):
    """What had come of an answer when it broke off."""

    said: str
    thought: str
    model: Any
    calls: Sequence[PartialToolCall]

    @property
    def head(self) -> dict[str, Any]:
        return _HEAD | {"model": self.model}

    @property
    def texts(self) -> list[str]:
        return [self.said] if self.said else []

    @property
    def thoughts(self) -> list[str]:
        return [self.thought] if self.thought else []

    @property
    def functions(self) -> list[dict[str, Any]]:
        """The calls as OpenAI's chat has them."""
        return [{"id": one.id, "type": "function", "function": one.named} for one in self.calls]


def answer_by_text(
    interface: str | None, said: str, thought: str, model: Any, calls: Sequence[PartialToolCall] = ()
) -> dict[str, Any] | None:
    """Return an answer that has not ended, by its text, reasoning and function calls; None where the interface is not known."""
    made = _ANSWERS.get(interface or "")
    return None if made is None else made(_PartialAnswer(said, thought, model, calls))


def _gemini(come: _PartialAnswer) -> dict[str, Any]:
    parts: list[Any] = [*({"text": one, "thought": True} for one in come.thoughts), *({"text": one} for one in come.texts)]
    parts += [{"functionCall": {"name": one.name, "args": one.decoded} | ({"id": one.id} if one.id else {})} for one in come.calls]
    return {"candidates": [{"content": {"role": "model", "parts": parts}, "index": 0}], "modelVersion": come.model}


def _ollama(come: _PartialAnswer) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": come.said} | ({"thinking": come.thought} if come.thought else {})
    if come.calls:
        message["tool_calls"] = [{"function": {"name": one.name, "arguments": one.decoded}} for one in come.calls]
    return {"model": come.model, "message": message, "done": False}


def _generate(come: _PartialAnswer) -> dict[str, Any]:
    return {"model": come.model, "response": come.said, "done": False} | ({"thinking": come.thought} if come.thought else {})


def _chat(come: _PartialAnswer) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": come.said}
    message |= {"reasoning_content": come.thought} if come.thought else {}
    message |= {"tool_calls": come.functions} if come.calls else {}
    return come.head | {"object": "chat.completion", "choices": [{"index": 0, "message": message}]}


def _completions(come: _PartialAnswer) -> dict[str, Any]:
    return come.head | {"object": "text_completion", "choices": [{"index": 0, "text": come.said, "finish_reason": None}]}


def _responses(come: _PartialAnswer) -> dict[str, Any]:
    output: list[Any] = [{"type": "reasoning", "id": "rs", "summary": [{"type": "summary_text", "text": one}]} for one in come.thoughts]
    content: list[Any] = [{"type": "output_text", "text": come.said, "annotations": []}]
    output += [{"type": "message", "id": "msg", "role": "assistant", "content": content}] if come.said else []
    output += [{"type": "function_call", "id": f"fc_{at}", "call_id": one.id, **one.named} for at, one in enumerate(come.calls)]
    return come.head | {"object": "response", "output": output, "parallel_tool_calls": True, "tool_choice": "auto", "tools": []}


def _anthropic(come: _PartialAnswer) -> dict[str, Any]:
    blocks: list[Any] = [
        *({"type": "thinking", "thinking": one, "signature": ""} for one in come.thoughts),
        *({"type": "text", "text": one} for one in come.texts),
        *({"type": "tool_use", "id": one.id, "name": one.name, "input": one.arguments} for one in come.calls),
    ]
    return come.head | {"type": "message", "role": "assistant", "content": blocks}


def _cohere(come: _PartialAnswer) -> dict[str, Any]:
    kinds: list[Any] = [{"type": "thinking", "thinking": one} for one in come.thoughts]
    kinds += [{"type": "text", "text": come.said}] if come.said or not come.calls else []
    return {"id": _HEAD["id"], "message": {"role": "assistant", "content": kinds, "tool_calls": come.functions}}


def _bedrock(come: _PartialAnswer) -> dict[str, Any]:
    return {"output": {"message": {"role": "assistant", "content": [{"text": one} for one in come.texts]}}}


_ANSWERS: Final[Mapping[str, Callable[[_PartialAnswer], dict[str, Any]]]] = {
    "gemini": _gemini,
    "ollama": _ollama,
    "generate": _generate,
    "chat": _chat,
    "completions": _completions,
    "responses": _responses,
    "anthropic": _anthropic,
    "cohere": _cohere,
    "bedrock": _bedrock,
}
"""What makes an answer that has not ended, by its interface."""


def whole_answer_by_text(interface: str | None, said: str, node: OperationNode) -> dict[str, Any] | None:
    """Return the answer of a call, by the text and the tokens that the program recorded; None where the interface is not known."""
    answer = answer_by_text(interface, said, "", node.attributes.get("model"))
    tokens = next((entry.tokens for entry in reversed(node.accounting) if entry.tokens is not None and entry.status == "ok"), None)
    if interface is None or answer is None:
        return None
    match interface:
        case "gemini":
            answer["candidates"][0]["finishReason"] = "STOP"
        case "ollama" | "generate":
            answer |= {"done": True, "done_reason": "stop"}
        case "chat" | "completions":
            answer["choices"][0]["finish_reason"] = "stop"
        case "responses":
            answer |= {"status": "completed", "error": None, "incomplete_details": None}
        case "anthropic":
            answer |= {"stop_reason": "end_turn", "stop_sequence": None}
        case "cohere":
            answer["finish_reason"] = "COMPLETE"
        case _:
            answer["stopReason"] = "end_turn"
    return answer if tokens is None else answer | usage_as(interface, tokens)


def usage_as(interface: str, tokens: Tokens) -> dict[str, Any]:
    """Return what a call took, as the answers of an interface tell it."""
    fresh, read, written = tokens.input_tokens, tokens.cache_read_input_tokens, tokens.cache_write_input_tokens
    sent, output, reasoning = tokens.all_input_tokens, tokens.output_tokens, tokens.reasoning_output_tokens
    match interface:
        case "gemini":
            told = {
                "promptTokenCount": sent, "cachedContentTokenCount": read, "candidatesTokenCount": output - reasoning,
                "thoughtsTokenCount": reasoning, "totalTokenCount": sent + output,
            }  # fmt: skip
            usage: dict[str, Any] = {"usageMetadata": {name: count for name, count in told.items() if count}}
        case "ollama" | "generate":
            usage = {"prompt_eval_count": sent, "eval_count": output}
        case "chat" | "completions":
            details = {"prompt_tokens_details": {"cached_tokens": read}, "completion_tokens_details": {"reasoning_tokens": reasoning}}
            usage = {"usage": {"prompt_tokens": sent, "completion_tokens": output, "total_tokens": sent + output, **details}}
        case "responses":
            details = {"input_tokens_details": {"cached_tokens": read}, "output_tokens_details": {"reasoning_tokens": reasoning}}
            usage = {"usage": {"input_tokens": sent, "output_tokens": output, "total_tokens": sent + output, **details}}
        case "anthropic":
            cached = {"cache_read_input_tokens": read, "cache_creation_input_tokens": written}
            usage = {"usage": {"input_tokens": fresh, "output_tokens": output, **cached}}
        case "cohere":
            usage = {"usage": {"tokens": {"input_tokens": sent, "output_tokens": output}}}
        case _:
            counts = {"inputTokens": fresh, "outputTokens": output, "totalTokens": sent + output}
            usage = {"usage": counts | {"cacheReadInputTokens": read, "cacheWriteInputTokens": written}}
    return usage
