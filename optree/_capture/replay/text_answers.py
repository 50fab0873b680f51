"""Answers of which the text is known and little else, in the form of the interface that they are to go through.

Of a stream that broke off no more was recorded; of an answer that the program recorded itself, by `op.response(text)`, no more than its
tokens beside.
"""

from __future__ import annotations

from typing import Any, Final

from optree._nodes import OperationNode, Tokens

_INTERFACES: Final = (
    (":streamgeneratecontent", "gemini"),
    (":generatecontent", "gemini"),
    ("/api/chat", "ollama"),
    ("/api/generate", "generate"),
    ("/chat/completions", "chat"),
    ("/completions", "completions"),
    ("/responses", "responses"),
    ("/messages", "anthropic"),
    ("/v2/chat", "cohere"),
    ("converse", "bedrock"),
    ("conversestream", "bedrock"),
)
"""By the end of a path, or the operation of Bedrock's client."""
_HEAD: Final = {"id": "recorded", "created": 0, "created_at": 0}


def interface_of(path: str) -> str | None:
    """Return which interface requests to a path go through; None for one that is not known."""
    low = path.lower().rstrip("/")
    return next((name for end, name in _INTERFACES if low.endswith(end)), None)


def answer_by_text(interface: str | None, said: str, thought: str, model: Any) -> dict[str, Any] | None:
    """Return an answer that has not ended, by its text and reasoning; None where the interface is not known."""
    head = _HEAD | {"model": model}
    text = [said] if said else []
    thoughts = [thought] if thought else []
    match interface:
        case "gemini":
            parts = [*({"text": one, "thought": True} for one in thoughts), *({"text": one} for one in text)]
            answer: dict[str, Any] = {"candidates": [{"content": {"role": "model", "parts": parts}, "index": 0}], "modelVersion": model}
        case "ollama":
            message = {"role": "assistant", "content": said} | ({"thinking": thought} if thought else {})
            answer = {"model": model, "message": message, "done": False}
        case "generate":
            answer = {"model": model, "response": said, "done": False} | ({"thinking": thought} if thought else {})
        case "chat":
            message = {"role": "assistant", "content": said} | ({"reasoning_content": thought} if thought else {})
            answer = head | {"object": "chat.completion", "choices": [{"index": 0, "message": message}]}
        case "completions":
            answer = head | {"object": "text_completion", "choices": [{"index": 0, "text": said, "finish_reason": None}]}
        case "responses":
            output: list[Any] = [{"type": "reasoning", "id": "rs", "summary": [{"type": "summary_text", "text": one}]} for one in thoughts]
            content: list[Any] = [{"type": "output_text", "text": said, "annotations": []}]
            output += [{"type": "message", "id": "msg", "role": "assistant", "content": content}] if said else []
            answer = head | {"object": "response", "output": output, "parallel_tool_calls": True, "tool_choice": "auto", "tools": []}
        case "anthropic":
            blocks = [
                *({"type": "thinking", "thinking": one, "signature": ""} for one in thoughts),
                *({"type": "text", "text": one} for one in text),
            ]
            answer = head | {"type": "message", "role": "assistant", "content": blocks}
        case "cohere":
            kinds = [*({"type": "thinking", "thinking": one} for one in thoughts), {"type": "text", "text": said}]
            answer = {"id": _HEAD["id"], "message": {"role": "assistant", "content": kinds}}
        case "bedrock":
            answer = {"output": {"message": {"role": "assistant", "content": [{"text": one} for one in text]}}}
        case _:
            return None
    return answer


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
