"""Recorded answers as providers send them: as one document, or as the events of a stream that add up to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final, NamedTuple

from optree._capture.calls.aws_events import AWS_EVENTS, error_frame, frames_of
from optree._capture.calls.bodies import JSON
from optree._capture.calls.observed import CHUNKS
from optree._capture.calls.refusals import STATUS_CODE, charset_of
from optree._capture.replay.recorded import RecordedCall
from optree._capture.replay.text_answers import (
    PartialToolCall,
    answer_by_text,
    interface_of,
    partial_tool_calls,
    usage_as,
    whole_answer_by_text,
)
from optree._nodes import BROKEN_OFF_CALLS, ERROR_BODY, PARTIAL, USAGE_AT_START, OperationNode, Tokens, is_placeholder
from optree._tracing.failures import BODY_TYPE, ERROR_TYPE
from optree._values import decode, encode, is_list, is_object, object_of, objects_of

WEBSOCKET: Final = "websocket:"
"""In place of a path: an answer whose events go through a websocket (`socket_events`)."""
_EVENTS: Final = "text/event-stream"
_LINES: Final = "application/x-ndjson"
_FRAMED: Final = ("/invoke-with-response-stream", "/converse-stream")
"""Ends of paths whose streams are AWS's."""
NO_ANSWER: Final = 0
"""In place of a status: the connection breaks."""
NOT_AGAIN: Final = {"x-should-retry": "false"}
"""Which OpenAI's and Anthropic's clients heed."""
REALTIME: Final = "realtime.response"
"""The kind of object that an answer of the Realtime API is."""
_SPOKEN: Final = {
    "refusal": ("refusal", "refusal"), "output_text": ("output_text", "text"), "output_audio": ("output_audio_transcript", "transcript"),
    "reasoning_text": ("reasoning_text", "text"),
}  # fmt: skip
"""By the type of a part of an item, what its events are named by, and the member that has its text."""
_CALLED: Final = {
    "function_call": ("function_call_arguments", "arguments"), "mcp_call": ("mcp_call_arguments", "arguments"),
    "custom_tool_call": ("custom_tool_call_input", "input"),
}  # fmt: skip
"""By the type of an item, what the events of its arguments are named by, and the member that has these."""
_EMPTY: Final[dict[str, Any]] = {"content": [], "summary": [], "arguments": "", "input": ""}
"""What an item begins with in place of what comes in events of its own."""
_OF_CHUNK: Final = ("id", "object", "created", "model", "service_tier", "system_fingerprint")


class StoredReply(NamedTuple):
    """An answer as it goes over the wire."""

    status: int
    """`NO_ANSWER` for none."""
    headers: dict[str, str]
    body: bytes
    """Of none it is why."""
    timed_out: bool = False
    breaks: str | None = None
    """Why no more comes behind the body, as the exception that it was says it; empty where the program wanted no more, and so gets no
    exception; None where the body is whole."""


def reply_of(call: RecordedCall, path: str, query: str, sent: Any = None) -> StoredReply | None:
    """Return a recorded answer as it goes over the wire, to a request as it is *sent*; None for one that cannot be given."""
    node = call.node
    if sent is not None and is_object(call.request):  # a request that the program records need not say how its answer is to come
        call = RecordedCall(call.txn, node, call.request | sent)
    if node.status == "failed" and node.response is None:
        return _failed_as_recorded(call, path, query)
    if node.status == "cancelled" and node.response is None and partial_tool_calls(node.attributes):
        return _broken_off(call, path, query)
    if node.response is None or node.response.truncated:
        return None
    answer = decode(node.response.payload)
    if node.response.partial or (node.status == "cancelled" and isinstance(answer, str)):  # else it came whole, behind its turn's end
        return _broken_off(call, path, query)
    if isinstance(answer, str) and not path.endswith(WEBSOCKET):  # as the program recorded it
        answer = whole_answer_by_text(interface_of(path), answer, node)
        if answer is None:
            return None
    kind, body = body_of(answer, path, query, call.request, node.attributes.get(CHUNKS))
    return StoredReply(int(HTTPStatus.OK), {"content-type": kind, **_request_id(node)}, body)


def _failed_as_recorded(call: RecordedCall, path: str, query: str) -> StoredReply:
    node, known = call.node, call.node.attributes
    if (refusal := known.get(ERROR_BODY)) is not None:
        status = known.get(STATUS_CODE, int(HTTPStatus.OK))
        is_within = status < HTTPStatus.MULTIPLE_CHOICES  # an answer that had begun
        if isinstance(refusal, str):
            kind, body = text_body_of(refusal, str(known.get(BODY_TYPE) or ""))
        else:
            kind, body = error_body_of(refusal, path, query, call.request) if is_within else (JSON, encode(refusal))
        headers = {"content-type": kind} if kind else {}
        return StoredReply(status, {**headers, **NOT_AGAIN, **_request_id(node)}, body)
    why = known.get(ERROR_TYPE)
    if STATUS_CODE not in known and (why in ("network", "timeout") or _failed_with_turn(node)):
        come = (node.reasoning, _usage_at_start(known), _tokens_of(node), known.get(BROKEN_OFF_CALLS))  # what came had no text
        begun = _broken_off(call, path, query) if any(one is not None for one in come) else None
        if begun is not None or why is not None:
            return begun or StoredReply(NO_ANSWER, {}, (node.error or "").encode(), why == "timeout")
    status = known.get(STATUS_CODE, int(HTTPStatus.SERVICE_UNAVAILABLE))
    error = node.error or "the call failed when it was recorded"
    head, _, said = error.partition(": ")  # with the status ahead of it, as `Exchange` records it
    said = said if head.startswith(f"{status} ") else error
    body = encode({"error": {"message": said}} if said else {})
    return StoredReply(status, {"content-type": JSON, **NOT_AGAIN, **_request_id(node)}, body)


def _broken_off(call: RecordedCall, path: str, query: str) -> StoredReply | None:
    """Return the beginning of a stream, as far as it was recorded, and what it broke off by: an error that it told, or its connection."""
    node, known = call.node, call.node.attributes
    said = decode(node.response.payload) if node.response is not None else ""
    thought = "" if node.reasoning is None else "".join(chunk.text for chunk in node.reasoning.chunks)
    model = call.request.get("model") if is_object(call.request) else None
    if not isinstance(said, str):
        return None
    calls = partial_tool_calls(known)
    begun = broken_body_of(said, thought, model, _usage_at_start(known), path, call.request, tokens=_tokens_of(node), calls=calls)
    if begun is None:
        return None
    kind, body = begun
    headers = {"content-type": kind, **NOT_AGAIN, **_request_id(node)}
    refusal = known.get(ERROR_BODY)
    if refusal is not None:
        told = text_body_of(refusal, "") if isinstance(refusal, str) else error_body_of(refusal, path, query, call.request)
        return StoredReply(int(HTTPStatus.OK), headers, body + told[1])
    is_left = node.status == "cancelled" or _failed_with_turn(node)
    why = "" if is_left else node.error or "the connection broke"
    return StoredReply(int(HTTPStatus.OK), headers, body, known.get(ERROR_TYPE) == "timeout", why)


def _failed_with_turn(node: OperationNode) -> bool:
    """Tell whether an op was ended with the turn that failed around it, not by itself."""
    return ERROR_TYPE not in node.attributes and any(is_placeholder(entry.id) for entry in node.accounting)


def _tokens_of(node: OperationNode) -> Tokens | None:
    """Return the tokens that a call told before it broke off, if it did."""
    last = node.accounting[-1].tokens if node.accounting else None
    return last if last is not None and last.total_tokens else None


def _usage_at_start(known: Mapping[str, Any]) -> Any:
    """Return what a provider said of usage as a stream began, without the mark that this is not all."""
    told = known.get(USAGE_AT_START)
    return {name: value for name, value in told.items() if name != PARTIAL} if is_object(told) else told


def _request_id(node: OperationNode) -> dict[str, str]:
    found = node.attributes.get("request_id")
    return {"x-request-id": found, "request-id": found} if isinstance(found, str) else {}


def body_of(answer: Any, path: str, query: str, request: Any, chunks: Any = None) -> tuple[str, bytes]:
    """Return an answer's content type and body, as *request* asks for them at *path* with *query*; *chunks*: of Gemini's, what each had."""
    low = path.lower().rstrip("/")
    if low.endswith("/api/generate") and (said := _member(answer, "message")):  # as the lines of a stream add up
        answer = answer | {"response": said.get("content"), **{name: said[name] for name in ("thinking",) if name in said}}
        del answer["message"]
    if not _is_stream(low, query, request):
        if low.endswith(_FRAMED):
            kind, data = AWS_EVENTS, frames_of(bedrock_events(answer), is_converse=low.endswith("/converse-stream"))
        else:
            kind, data = JSON, encode([answer] if ":streamgeneratecontent" in low else answer)
        return kind, data
    if ":streamgeneratecontent" in low:
        return _EVENTS, b"".join(map(_event, _gemini(answer, chunks)))
    if low.endswith("/responses"):
        return _EVENTS, b"".join(_event(one, name=True) for one in _numbered(_responses(answer)))
    if low.endswith("/v2/chat"):
        return _EVENTS, b"".join(_event(one, name=True) for one in _cohere(answer))
    if not objects_of(answer.get("choices")):
        return _EVENTS, b"".join(_event(one, name=True) for one in _anthropic(answer))
    chunks = list(_completion(answer) if low.endswith("/completions") and not low.endswith("/chat/completions") else _chat(answer))
    told = {name: value for name, value in answer.items() if name not in _OF_CHUNK and name != "choices"}
    if _member(request, "stream_options").get("include_usage") is True:
        chunks.append({**_head(answer, str(chunks[-1]["object"])), "choices": [], **told})
    else:
        chunks[-1] |= told
    return _EVENTS, b"".join(map(_event, chunks)) + b"data: [DONE]\n\n"


def _is_stream(path: str, query: str, request: Any) -> bool:
    """Tell whether an answer is server-sent events. Ollama's stream is lines of JSON, of which one may be all; Bedrock's are frames."""
    if ":streamgeneratecontent" in path:
        return "alt=sse" in query
    return is_object(request) and request.get("stream") is True and not path.endswith((WEBSOCKET, "/api/chat", "/api/generate"))


def error_body_of(error: Any, path: str, query: str, request: Any) -> tuple[str, bytes]:
    """Return the same of an answer that was begun, and is nothing but an error: a document, or the last event of a stream."""
    if path.lower().rstrip("/").endswith(_FRAMED):
        return AWS_EVENTS, error_frame(error)
    if not _is_stream(path.lower().rstrip("/"), query, request):
        return JSON, encode(error)
    return _EVENTS, b"".join(_event(one, name="type" in one) for one in error_events(error))


def broken_body_of(
    said: str,
    thought: str,
    model: Any,
    usage: Any,
    path: str,
    request: Any,
    *,
    tokens: Tokens | None = None,
    calls: Sequence[PartialToolCall] = (),
) -> tuple[str, bytes] | None:
    """Return the content type and body of a stream that broke off, by what had come of it; None where that is not known.

    *tokens*: what was accounted for by then, of an interface whose every event may tell it.
    """
    interface = interface_of(path)
    answer = answer_by_text(interface, said, thought, model, calls)
    if answer is not None and interface == "gemini" and ":streamgeneratecontent" in path.lower():
        return _EVENTS, _event(answer if tokens is None else answer | usage_as("gemini", tokens))
    if interface in ("ollama", "generate"):
        return _LINES, encode(answer) + b"\n"
    if answer is None or not (is_object(request) and request.get("stream") is True) or interface not in _EVENTS_OF:
        return None
    events = list(_EVENTS_OF[interface](answer | ({"usage": usage} if interface == "anthropic" else {})))
    if interface in ("chat", "completions"):
        return _EVENTS, b"".join(map(_event, events[: max(1, len(events) - 1)]))  # but for the end of a choice
    last = max((at for at, one in enumerate(events) if _has_come(one)), default=0)
    last += interface == "anthropic" and bool(calls) and calls[-1].is_closed  # the end of its block
    return _EVENTS, b"".join(_event(one, name=True) for one in events[: last + 1])


def _has_come(event: dict[str, Any]) -> bool:
    """Tell whether an event of a stream has some of the text, of the reasoning or of a function call, or ends that."""
    kind = str(event["type"])
    is_called = _member(event, "item").get("type") == "function_call" and kind == "response.output_item.done"
    return is_called or ("delta" in kind and kind != "message_delta") or kind == "tool-call-start"


def text_body_of(said: str, kind: str) -> tuple[str, bytes]:
    """Return the same of an answer that is no JSON, by its text and content type; of a stream these are an event's lines."""
    return kind, said.encode(charset_of(kind), "replace")


def error_events(error: Any) -> list[Any]:
    """Return an event that is an error, behind the one by which the response begins that it is of, if it is of one."""
    response = _member(error, "response")
    begun: dict[str, Any] = response | {"status": "in_progress", "status_details": None, "error": None, "output": [], "usage": None}
    return [{"type": "response.created", "response": begun}, error] if response else [error]


def socket_events(answer: Any, request: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the events of an answer of OpenAI's Realtime API, or of its Responses API in WebSocket mode; *request* asks for it."""
    if not is_object(answer):  # a text that was streamed
        answer = {"output": [{"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": answer}]}]}
    if answer.get("object") == REALTIME:
        return [one | {"event_id": f"event_{answer.get('id')}_{number}"} for number, one in enumerate(_realtime(answer))]
    lane = {} if request.get("stream_id") is None else {"stream_id": request["stream_id"]}
    return [one | lane for one in _numbered(_responses(answer))]


def bedrock_events(answer: Any) -> Iterator[dict[str, Any]]:
    """Yield the events of an answer of a model of Bedrock's: those of its own interface, or of Converse."""
    if objects_of(answer.get("content")):
        yield from _anthropic(answer)
    elif _member(answer, "output"):
        yield from _converse(answer)
    else:  # a model whose answer is not known: an event of all of it
        yield answer


def _event(value: Any, *, name: bool = False) -> bytes:
    head = b"event: " + str(value["type"]).encode() + b"\n" if name else b""
    return head + b"data: " + encode(value) + b"\n\n"


def _member(value: Any, name: str) -> dict[str, Any]:
    return object_of(object_of(value).get(name))


def _head(answer: dict[str, Any], kind: str) -> dict[str, Any]:
    return {name: value for name, value in answer.items() if name in _OF_CHUNK} | {"object": kind}


def _chat(answer: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the chunks of an answer of OpenAI's chat: what each choice says, then how it ended."""
    head = _head(answer, "chat.completion.chunk")
    choices = objects_of(answer.get("choices"))
    for place, choice in enumerate(choices):
        at = choice.get("index", place)
        delta = {"content": None} | _member(choice, "message")
        calls = objects_of(delta.pop("tool_calls", None))
        deltas = [delta, *(one for number, call in enumerate(calls) for one in _deltas_of_call(number, call))]
        for one in deltas:
            yield head | {"choices": [{"index": at, "delta": one, "finish_reason": None}]}
    for place, choice in enumerate(choices):
        rest = {name: value for name, value in choice.items() if name != "message"}
        yield head | {"choices": [{"index": place, "finish_reason": None} | rest | {"delta": {}}]}


def _gemini(answer: dict[str, Any], chunks: Any) -> Iterator[dict[str, Any]]:
    """Yield the chunks of an answer of Gemini's, with the parts that each had: its client sends each back as a content of its own."""
    candidates = objects_of(answer.get("candidates"))
    left = objects_of(_member(candidates[0], "content").get("parts")) if len(candidates) == 1 else []
    told = [[_taken_off(left, size) for size in sizes] if is_list(sizes) else None for sizes in (chunks if is_list(chunks) else ())]
    if len(candidates) != 1 or not any(told) or left:  # not as it was recorded
        yield answer
        return
    rest = {name: value for name, value in candidates[0].items() if name != "content"}
    for at, parts in enumerate(told, 1):
        content = {} if parts is None else {"content": {"role": "model"} | ({"parts": parts} if parts else {})}
        if at == len(told):
            yield answer | {"candidates": [rest | content]}
        else:
            head = {name: value for name, value in answer.items() if name != "usageMetadata"}
            yield head | {"candidates": [{name: value for name, value in rest.items() if name != "finishReason"} | content]}


def _taken_off(parts: list[dict[str, Any]], size: Any) -> dict[str, Any]:
    """Take so many characters of text off the first of some parts, or that part, if it is no text or has no more."""
    said = parts[0].get("text") if parts else None
    if size == 0 and said != "":
        return {"text": ""}
    if not parts or not isinstance(size, int) or not isinstance(said, str) or not 0 < size < len(said):
        return parts.pop(0) if parts else {}
    taken = parts[0] | {"text": said[:size]}
    parts[0] = parts[0] | {"text": said[size:]}
    return taken


def _deltas_of_call(number: int, call: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a tool call as it is streamed: first what is called, then with what; Mistral's, which has no type, comes whole."""
    function = _member(call, "function")
    if "type" not in call:
        return [{"tool_calls": [{"index": number} | call]}]
    begun = {"index": number} | call | ({"function": function | {"arguments": ""}} if "arguments" in function else {})
    rest = {"index": number, "function": {"arguments": function.get("arguments")}}
    return [{"tool_calls": [one]} for one in ([begun, rest] if "arguments" in function else [begun])]


def _completion(answer: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the chunks of an answer of OpenAI's completions."""
    for choice in objects_of(answer.get("choices")):
        yield _head(answer, "text_completion") | {"choices": [{"logprobs": None} | choice]}


def _responses(answer: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the events of an answer of OpenAI's responses."""
    answer = {"object": "response"} | answer
    begun: dict[str, Any] = {name: value for name, value in answer.items() if name != "usage"} | {"output": [], "status": "in_progress"}
    yield {"type": "response.created", "response": begun}
    for place, item in enumerate(objects_of(answer.get("output"))):
        of_item = {"output_index": place, "item_id": item.get("id", "")}
        shown = {name: _EMPTY.get(name, value) for name, value in item.items()}
        yield {"type": "response.output_item.added", "output_index": place, "item": shown | {"status": "in_progress"}}
        yield from _parts_of_item(item, of_item)
        yield {"type": "response.output_item.done", "output_index": place, "item": item}
    status = answer.get("status", "completed")
    yield {"type": f"response.{status if status in ('failed', 'incomplete') else 'completed'}", "response": answer}


def _parts_of_item(item: dict[str, Any], of_item: dict[str, Any]) -> Iterator[dict[str, Any]]:
    kind, member = _CALLED.get(str(item.get("type")), ("", ""))
    if isinstance(sent := item.get(member), str):
        yield {"type": f"response.{kind}.delta", "delta": sent} | of_item
        yield {"type": f"response.{kind}.done", member: sent, "name": item.get("name", "")} | of_item
    for place, part in enumerate(objects_of(item.get("summary"))):
        where = of_item | {"summary_index": place}
        yield {"type": "response.reasoning_summary_part.added", "part": part | {"text": ""}} | where
        yield {"type": "response.reasoning_summary_text.delta", "delta": part.get("text", "")} | where
        yield {"type": "response.reasoning_summary_text.done", "text": part.get("text", "")} | where
        yield {"type": "response.reasoning_summary_part.done", "part": part} | where
    for place, part in enumerate(objects_of(item.get("content"))):
        where = of_item | {"content_index": place}
        if (spoken := _SPOKEN.get(str(part.get("type")))) is None:
            continue
        name, member = spoken
        kind, said = f"response.{name}", part.get(member)
        yield {"type": "response.content_part.added", "part": part | {member: ""}} | where
        yield {"type": f"{kind}.delta", "delta": said or "", "logprobs": []} | where
        yield {"type": f"{kind}.done", member: said or "", "logprobs": []} | where
        yield {"type": "response.content_part.done", "part": part} | where


def _realtime(answer: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the events of an answer of OpenAI's Realtime API, without audio, which is not recorded."""
    of_answer = {"response_id": answer.get("id", "")}
    items = [item | ({"content": [_without_audio(part) for part in objects_of(item["content"])]} if "content" in item else {})
             for item in objects_of(answer.get("output"))]  # fmt: skip
    answer = answer | {"output": items}
    yield {"type": "response.created", "response": answer | {"output": [], "status": "in_progress", "usage": None}}
    for place, item in enumerate(items):
        of_item = of_answer | {"output_index": place, "item_id": item.get("id", "")}
        shown = {name: _EMPTY.get(name, value) for name, value in item.items()}
        yield {"type": "response.output_item.added", "output_index": place, "item": shown | {"status": "in_progress"}} | of_answer
        yield from _parts_of_item(item, of_item)
        yield {"type": "response.output_item.done", "output_index": place, "item": item} | of_answer
        if answer.get("conversation_id") is not None:
            yield {"type": "conversation.item.added", "previous_item_id": None, "item": item}
            yield {"type": "conversation.item.done", "previous_item_id": None, "item": item}
    yield {"type": "response.done", "response": answer}
    yield {"type": "rate_limits.updated", "rate_limits": []}


def _without_audio(part: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in part.items() if name != "audio"}


def _numbered(events: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for number, event in enumerate(events):
        yield event | {"sequence_number": number}


_STREAMED: Final = {"text": ("text_delta", "text"), "thinking": ("thinking_delta", "thinking")}


def _anthropic(answer: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the events of an answer of Anthropic's messages."""
    ended = {"stop_reason": answer.get("stop_reason"), "stop_sequence": answer.get("stop_sequence")}
    usage = _member(answer, "usage")
    begun: dict[str, Any] = {"type": "message", "role": "assistant"} | answer | {"content": [], "stop_reason": None, "stop_sequence": None}
    at_start = usage if ended["stop_reason"] is None else usage | {"output_tokens": 0}  # of one that broke off it is all that is known
    yield {"type": "message_start", "message": begun | {"usage": at_start}}
    for place, block in enumerate(objects_of(answer.get("content"))):
        kind = str(block.get("type"))
        shown, deltas = dict(block), list[dict[str, Any]]()
        if kind in _STREAMED:
            delta, member = _STREAMED[kind]
            deltas.append({"type": delta, member: block.get(member, "")})
            shown[member] = ""
            if "signature" in shown:
                deltas.append({"type": "signature_delta", "signature": shown["signature"]})
                shown["signature"] = ""
            if cited := objects_of(block.get("citations")):
                deltas += [{"type": "citations_delta", "citation": one} for one in cited]
                shown["citations"] = []
        elif "input" in block:
            sent = block["input"]  # a text where it broke off
            deltas.append({"type": "input_json_delta", "partial_json": sent if isinstance(sent, str) else encode(sent).decode()})
            shown["input"] = {}
        yield {"type": "content_block_start", "index": place, "content_block": shown}
        for one in deltas:
            yield {"type": "content_block_delta", "index": place, "delta": one}
        yield {"type": "content_block_stop", "index": place}
    yield {"type": "message_delta", "delta": ended, "usage": usage}
    yield {"type": "message_stop"}


def _converse(answer: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the events of an answer of Bedrock's Converse."""
    message = _member(_member(answer, "output"), "message")
    yield {"messageStart": {"role": message.get("role", "assistant")}}
    for place, block in enumerate(objects_of(message.get("content"))):
        at = {"contentBlockIndex": place}
        deltas = [block]
        if call := _member(block, "toolUse"):
            yield {"contentBlockStart": {"start": {"toolUse": {name: value for name, value in call.items() if name != "input"}}} | at}
            deltas = [{"toolUse": {"input": encode(call.get("input", {})).decode()}}]
        elif thought := _member(_member(block, "reasoningContent"), "reasoningText"):
            deltas = [{"reasoningContent": {name: value}} for name, value in thought.items()]
        for delta in deltas:
            yield {"contentBlockDelta": {"delta": delta} | at}
        yield {"contentBlockStop": at}
    yield {"messageStop": {"stopReason": answer.get("stopReason")}}
    yield {"metadata": {name: value for name, value in answer.items() if name not in ("output", "stopReason")}}


def _cohere(answer: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the events of an answer of Cohere's chat."""
    message = _member(answer, "message")
    yield {"type": "message-start", "id": answer.get("id"), "delta": {"message": {"role": "assistant"}}}
    if "tool_plan" in message:
        yield {"type": "tool-plan-delta", "delta": {"message": {"tool_plan": message["tool_plan"]}}}
    for place, block in enumerate(objects_of(message.get("content"))):
        member = "thinking" if block.get("type") == "thinking" else "text"
        yield {"type": "content-start", "index": place, "delta": {"message": {"content": block | {member: ""}}}}
        yield {"type": "content-delta", "index": place, "delta": {"message": {"content": {member: block.get(member, "")}}}}
        yield {"type": "content-end", "index": place}
    for place, call in enumerate(objects_of(message.get("tool_calls"))):
        yield {"type": "tool-call-start", "index": place, "delta": {"message": {"tool_calls": call}}}
        yield {"type": "tool-call-end", "index": place}
    for place, cited in enumerate(objects_of(message.get("citations"))):
        yield {"type": "citation-start", "index": place, "delta": {"message": {"citations": cited}}}
        yield {"type": "citation-end", "index": place}
    yield {"type": "message-end", "delta": {name: value for name, value in answer.items() if name not in ("id", "message")}}


_EVENTS_OF: Final[dict[str, Callable[[dict[str, Any]], Iterator[dict[str, Any]]]]] = {
    "chat": _chat,
    "completions": _completion,
    "responses": lambda answer: _numbered(_responses(answer)),
    "anthropic": _anthropic,
    "cohere": _cohere,
}
"""The events of a streamed answer, by its interface."""
