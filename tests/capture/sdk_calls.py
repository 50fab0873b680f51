"""Calls as the SDKs' documentation writes them, with the answers that a provider gives to each."""

import asyncio
from functools import cache

import openai
import pydantic

from tests.capture.provider import Reply, events

QUESTION = [{"role": "user", "content": "Weather?"}]
USAGE = {"prompt_tokens": 12, "completion_tokens": 5, "total_tokens": 17, "prompt_tokens_details": {"cached_tokens": 4},
         "completion_tokens_details": {"reasoning_tokens": 3}}  # fmt: skip
_CHUNK = {"id": "chat-1", "object": "chat.completion.chunk", "created": 1, "model": "gpt-5-2026"}
_CALL = {"id": "call-1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Athens"}'}}

CHAT = Reply(
    {
        "id": "chat-1", "object": "chat.completion", "created": 1, "model": "gpt-5-2026", "usage": USAGE,
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "It rains"}, "finish_reason": "stop"}],
    },
    headers={"x-request-id": "req-1"},
)  # fmt: skip
CHAT_TOOL = Reply(
    {
        "id": "chat-1", "object": "chat.completion", "created": 1, "model": "gpt-5-2026", "usage": USAGE,
        "choices": [{"index": 0, "message": {"role": "assistant", "content": None, "tool_calls": [_CALL]}, "finish_reason": "tool_calls"}],
    }
)  # fmt: skip
CHAT_EVENTS = events(
    {**_CHUNK, "choices": [{"index": 0, "delta": {"role": "assistant", "content": "It "}}]},
    {**_CHUNK, "choices": [{"index": 0, "delta": {"content": "rains"}}]},
    {**_CHUNK, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
    {**_CHUNK, "choices": [], "usage": USAGE},
)
CHAT_PARSED = Reply(
    {
        "id": "chat-1", "object": "chat.completion", "created": 1, "model": "gpt-5-2026", "usage": USAGE,
        "choices": [{"index": 0, "message": {"role": "assistant", "content": '{"said": "It rains"}'}, "finish_reason": "stop"}],
    }
)  # fmt: skip
_COMPLETION = {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": "gpt-5-2026"}
COMPLETION = Reply(
    {**_COMPLETION, "choices": [{"index": 0, "text": "It rains", "finish_reason": "stop", "logprobs": None}], "usage": USAGE}
)
COMPLETION_EVENTS = events(
    {**_COMPLETION, "choices": [{"index": 0, "text": "It ", "finish_reason": None, "logprobs": None}]},
    {**_COMPLETION, "choices": [{"index": 0, "text": "rains", "finish_reason": "stop", "logprobs": None}]},
    {**_COMPLETION, "choices": [], "usage": USAGE},
)
_RESPONSE = {
    "id": "resp-1", "object": "response", "created_at": 1, "model": "gpt-5-2026", "parallel_tool_calls": True, "tool_choice": "auto",
    "tools": [], "status": "completed",
    "output": [
        {"type": "message", "id": "m", "role": "assistant", "status": "completed",
         "content": [{"type": "output_text", "text": "It rains", "annotations": []}]},
    ],
    "usage": {"input_tokens": 12, "output_tokens": 5, "total_tokens": 17, "input_tokens_details": {"cached_tokens": 4},
              "output_tokens_details": {"reasoning_tokens": 3}},
}  # fmt: skip
RESPONSE = Reply(_RESPONSE)
RESPONSE_PARSED = Reply({**_RESPONSE, "output": [{**_RESPONSE["output"][0], "content": [
    {"type": "output_text", "text": '{"said": "It rains"}', "annotations": []},
]}]})  # fmt: skip
RESPONSE_EVENTS = events(
    {"type": "response.created", "sequence_number": 0, "response": {**_RESPONSE, "output": [], "usage": None, "status": "in_progress"}},
    {"type": "response.output_text.delta", "sequence_number": 1, "item_id": "m", "output_index": 0, "content_index": 0, "delta": "It ",
     "logprobs": []},
    {"type": "response.output_text.delta", "sequence_number": 2, "item_id": "m", "output_index": 0, "content_index": 0, "delta": "rains",
     "logprobs": []},
    {"type": "response.completed", "sequence_number": 3, "response": _RESPONSE},
    done=False,
    names=True,
)  # fmt: skip
_ANTHROPIC_USAGE = {"input_tokens": 8, "cache_read_input_tokens": 4, "cache_creation_input_tokens": 0, "output_tokens": 5}
_MESSAGE = {"id": "msg-1", "type": "message", "role": "assistant", "model": "claude-5", "stop_sequence": None}
MESSAGE = Reply(
    {**_MESSAGE, "content": [{"type": "text", "text": "It rains"}], "stop_reason": "end_turn", "usage": _ANTHROPIC_USAGE},
    headers={"request-id": "req-1"},
)


def message_events(message, usage):
    """Return the events by which a message of Anthropic's is streamed that says that it rains."""
    return [
        {"type": "message_start", "message": {**message, "content": [], "stop_reason": None, "usage": {**usage, "output_tokens": 1}}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "It "}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "rains"}},
        {"type": "content_block_stop", "index": 0},
        {
            "type": "message_delta",
            "delta": {"stop_reason": "end_turn", "stop_sequence": None},
            "usage": {"output_tokens": usage["output_tokens"]},
        },
        {"type": "message_stop"},
    ]


MESSAGE_EVENTS = events(*message_events(_MESSAGE, _ANTHROPIC_USAGE), done=False, names=True)


@cache
def _openai(url):
    return openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)


@cache
def _anthropic(url, client="Anthropic"):
    import anthropic  # some environments have none

    return getattr(anthropic, client)(base_url=url, api_key="none", max_retries=0)


class Weather(pydantic.BaseModel):
    """What is asked for in answers that are parsed."""

    said: str


def chat(url):
    """Ask OpenAI's chat."""
    found = _openai(url).chat.completions.create(model="gpt-5", messages=QUESTION, temperature=0)
    return found.choices[0].message.content


def chat_stream(url):
    """Ask it, and read its stream."""
    usage = {"include_usage": True}
    stream = _openai(url).chat.completions.create(model="gpt-5", messages=QUESTION, stream=True, stream_options=usage)
    return "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)


def chat_raw(url):
    """Ask it by a raw response."""
    return _openai(url).chat.completions.with_raw_response.create(model="gpt-5", messages=QUESTION).parse().choices[0].message.content


def chat_parsed(url):
    """Ask it for an answer of a type."""
    found = _openai(url).chat.completions.parse(model="gpt-5", messages=QUESTION, response_format=Weather)
    return found.choices[0].message.parsed.said


def completion(url):
    """Ask OpenAI's completions, which were before the chat."""
    return _openai(url).completions.create(model="gpt-5", prompt="Weather?").choices[0].text


def completion_stream(url):
    """Ask them, and read the stream."""
    stream = _openai(url).completions.create(model="gpt-5", prompt="Weather?", stream=True)
    return "".join(chunk.choices[0].text for chunk in stream if chunk.choices)


def chat_managed(url):
    """Ask it by its stream's context manager."""
    with _openai(url).chat.completions.stream(model="gpt-5", messages=QUESTION) as stream:
        for _ in stream:
            pass
        return stream.get_final_completion().choices[0].message.content


def chat_async(url):
    """Ask it by the asynchronous client."""

    async def asking():
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
            return (await client.chat.completions.create(model="gpt-5", messages=QUESTION)).choices[0].message.content

    return asyncio.run(asking())


def chat_async_stream(url):
    """Ask it so, and read its stream."""

    async def asking():
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
            stream = await client.chat.completions.create(model="gpt-5", messages=QUESTION, stream=True)
            return "".join([chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices])

    return asyncio.run(asking())


def response(url):
    """Ask OpenAI's responses."""
    return _openai(url).responses.create(model="gpt-5", input="Weather?", instructions="Be brief.").output_text


def response_stream(url):
    """Ask them, and read the stream."""
    stream = _openai(url).responses.create(model="gpt-5", input=QUESTION, stream=True)
    return "".join(event.delta for event in stream if event.type == "response.output_text.delta")


def response_parsed(url):
    """Ask them for an answer of a type."""
    return _openai(url).responses.parse(model="gpt-5", input="Weather?", text_format=Weather).output_parsed.said


def message(url):
    """Ask Anthropic's messages."""
    return _anthropic(url).messages.create(model="claude-5", max_tokens=64, messages=QUESTION, system="Be brief.").content[0].text


def message_stream(url):
    """Ask them, and read the stream."""
    with _anthropic(url).messages.stream(model="claude-5", max_tokens=64, messages=QUESTION) as stream:
        return "".join(stream.text_stream)


def message_async(url):
    """Ask them by the asynchronous client."""

    async def asking():
        async with _anthropic(url, "AsyncAnthropic") as client:
            found = await client.messages.create(model="claude-5", max_tokens=64, messages=QUESTION)
            return found.content[0].text

    return asyncio.run(asking())


CALLS = [
    (chat, CHAT), (chat_raw, CHAT), (chat_async, CHAT), (chat_stream, CHAT_EVENTS), (chat_async_stream, CHAT_EVENTS),
    (chat_managed, CHAT_EVENTS), (chat_parsed, CHAT_PARSED), (completion, COMPLETION), (completion_stream, COMPLETION_EVENTS),
    (response, RESPONSE), (response_parsed, RESPONSE_PARSED), (response_stream, RESPONSE_EVENTS), (message, MESSAGE),
    (message_stream, MESSAGE_EVENTS), (message_async, MESSAGE),
]  # fmt: skip
"""Functions that ask, and what the provider says to each."""
