"""Programs on OpenAI's and Anthropic's clients, as the documentation writes them, are recorded to the token and the cent."""

import json

import pytest

from optree._nodes import Tokens
from tests.capture.documented import BILL, EITHER, RAN, Billed
from tests.capture.provider import Reply, events
from tests.capture.sdk_calls import (
    CHAT,
    CHAT_EVENTS,
    CHAT_PARSED,
    CHAT_TOOL,
    MESSAGE,
    MESSAGE_EVENTS,
    RESPONSE,
    RESPONSE_EVENTS,
    RESPONSE_PARSED,
)

OPENAI = Billed("openai-compatible:gpt-5", Tokens(8, 5, 4, 0, 17, 3), 60.5)
ANTHROPIC = Billed("anthropic-compatible:claude-sonnet-4-5", Tokens(8, 5, 4, 0, 17), 100.2)


CHAT_PROGRAM = """
from openai import OpenAI

client = OpenAI()
completion = client.chat.completions.create(
    model="gpt-5",
    messages=[{"role": "developer", "content": "Talk like a sailor."}, {"role": "user", "content": "Weather?"}],
)
print(completion.choices[0].message.content)
"""
CHAT_STREAMED = """
from openai import OpenAI

client = OpenAI()
stream = client.chat.completions.create(
    model="gpt-5",
    messages=[{"role": "user", "content": "Weather?"}],
    stream=True,
    stream_options={"include_usage": True},
)
for chunk in stream:
    if chunk.choices and chunk.choices[0].delta.content is not None:
        print(chunk.choices[0].delta.content, end="")
print()
"""
CHAT_TOOLS = """
import json
from openai import OpenAI

client = OpenAI()
tools = [{"type": "function", "function": {"name": "weather", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}]

def weather(city):
    return f"rain in {city}"

messages = [{"role": "user", "content": "Weather?"}]
completion = client.chat.completions.create(model="gpt-5", messages=messages, tools=tools)
messages.append(completion.choices[0].message)
for call in completion.choices[0].message.tool_calls:
    result = weather(**json.loads(call.function.arguments))
    messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
completion = client.chat.completions.create(model="gpt-5", messages=messages, tools=tools)
print(completion.choices[0].message.content)
"""
CHAT_PARSES = """
from openai import OpenAI
from pydantic import BaseModel

class Weather(BaseModel):
    said: str

client = OpenAI()
completion = client.chat.completions.parse(
    model="gpt-5", messages=[{"role": "user", "content": "Weather?"}], response_format=Weather
)
print(completion.choices[0].message.parsed.said)
"""


@pytest.mark.captured("openai", "chat", "plain", added=EITHER, checks=BILL)
def test_openai_chat(documented):
    """A call of OpenAI's chat has its request, its answer and its price (S4-134)."""
    assert "It rains\n" == documented.run(CHAT_PROGRAM, CHAT)
    assert ["developer", "user"] == [one["role"] for one in documented.requests()[0]["messages"]]
    assert [OPENAI] == documented.bill()
    assert [json.loads(CHAT.pieces[0])] == documented.answers()


@pytest.mark.captured("openai", "chat", "streamed", added=EITHER, checks=BILL)
def test_openai_chat_streamed(documented):
    """A stream of OpenAI's chat has its text and its price."""
    assert "It rains\n" == documented.run(CHAT_STREAMED, CHAT_EVENTS)
    assert 1 == len(documented.requests())
    assert [OPENAI] == documented.bill()
    assert "It rains" == documented.answers()[0]["choices"][0]["message"]["content"]


@pytest.mark.captured("openai", "chat", "tools", added=EITHER, checks=BILL)
def test_openai_chat_with_tools(documented):
    """A call that asks for a tool, and the one that has the result, are two ops of one turn."""
    assert "It rains\n" == documented.run(CHAT_TOOLS, CHAT_TOOL, CHAT)
    assert ["user", "assistant", "tool"] == [one["role"] for one in documented.requests()[1]["messages"]]
    assert [OPENAI] * 2 == documented.bill()
    assert [("weather", {"city": "Athens"})] == documented.asked_for()
    assert [("Weather?", 2)] == documented.turns()


@pytest.mark.captured("openai", "chat", "killed", "resumed", added=EITHER, checks=("requests", "tokens", "price"))
def test_openai_chat_killed_and_resumed(documented):
    """A program that is killed in its second call keeps the first; when it goes on, the bill is that of all calls that were answered."""
    documented.kill(CHAT_TOOLS, CHAT_TOOL)
    assert ([OPENAI], ["ok", None]) == (documented.bill(unknown=1), [op.status for op in documented.calls()])
    assert "It rains\n" == documented.resume(CHAT_TOOL, CHAT)
    assert [OPENAI] * 3 == documented.bill(unknown=1)
    assert ["ok", "interrupted", "ok", "ok"] == [op.status for op in documented.calls()]
    assert 4 == len(documented.requests())


@pytest.mark.captured("openai", "chat", "parsed", added=EITHER, checks=BILL)
def test_openai_chat_parsed(documented):
    """A call for an answer of a type has the schema in its request."""
    assert "It rains\n" == documented.run(CHAT_PARSES, CHAT_PARSED)
    assert "json_schema" == documented.requests()[0]["response_format"]["type"]
    assert [OPENAI] == documented.bill()
    assert '{"said": "It rains"}' == documented.said()


RESPONSES = """
from openai import OpenAI

client = OpenAI()
response = client.responses.create(model="gpt-5", instructions="Talk like a sailor.", input="Weather?")
print(response.output_text)
"""
RESPONSES_STREAMED = """
from openai import OpenAI

client = OpenAI()
stream = client.responses.create(model="gpt-5", input=[{"role": "user", "content": "Weather?"}], stream=True)
for event in stream:
    if event.type == "response.output_text.delta":
        print(event.delta, end="")
print()
"""
RESPONSES_TOOLS = """
import json
from openai import OpenAI

client = OpenAI()
tools = [{"type": "function", "name": "weather", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}]

def weather(city):
    return f"rain in {city}"

messages = [{"role": "user", "content": "Weather?"}]
response = client.responses.create(model="gpt-5", tools=tools, input=messages)
messages += response.output
for item in response.output:
    if item.type == "function_call":
        result = weather(**json.loads(item.arguments))
        messages.append({"type": "function_call_output", "call_id": item.call_id, "output": result})
response = client.responses.create(model="gpt-5", tools=tools, input=messages)
print(response.output_text)
"""
RESPONSES_PARSES = """
from openai import OpenAI
from pydantic import BaseModel

class Weather(BaseModel):
    said: str

client = OpenAI()
response = client.responses.parse(model="gpt-5", input=[{"role": "user", "content": "Weather?"}], text_format=Weather)
print(response.output_parsed.said)
"""
_CALL = {
    "type": "function_call",
    "id": "f",
    "call_id": "call-1",
    "name": "weather",
    "arguments": '{"city": "Athens"}',
    "status": "completed",
}
RESPONSE_TOOL = Reply(json.loads(RESPONSE.pieces[0]) | {"output": [_CALL]})


@pytest.mark.captured("openai", "responses", "plain", added=EITHER, checks=BILL)
def test_openai_responses(documented):
    """A call of OpenAI's responses has its request, its answer and its price."""
    assert "It rains\n" == documented.run(RESPONSES, RESPONSE)
    assert "Talk like a sailor." == documented.requests()[0]["instructions"]
    assert [OPENAI] == documented.bill()
    assert [json.loads(RESPONSE.pieces[0])] == documented.answers()


@pytest.mark.captured("openai", "responses", "streamed", added=EITHER, checks=BILL)
def test_openai_responses_streamed(documented):
    """A stream of OpenAI's responses has its answer and its price."""
    assert "It rains\n" == documented.run(RESPONSES_STREAMED, RESPONSE_EVENTS)
    assert 1 == len(documented.requests())
    assert [OPENAI] == documented.bill()
    assert "It rains" == documented.answers()[0]["output"][0]["content"][0]["text"]


@pytest.mark.captured("openai", "responses", "tools", added=EITHER, checks=BILL)
def test_openai_responses_with_tools(documented):
    """A call that asks for a tool, and the one that has the result, are two ops of one turn."""
    assert "It rains\n" == documented.run(RESPONSES_TOOLS, RESPONSE_TOOL, RESPONSE)
    assert [None, "function_call", "function_call_output"] == [one.get("type") for one in documented.requests()[1]["messages"]]
    assert [OPENAI] * 2 == documented.bill()
    assert [("weather", {"city": "Athens"})] == documented.asked_for()
    assert [("Weather?", 2)] == documented.turns()


@pytest.mark.captured("openai", "responses", "parsed", added=EITHER, checks=BILL)
def test_openai_responses_parsed(documented):
    """A call for an answer of a type has the schema in its request."""
    assert "It rains\n" == documented.run(RESPONSES_PARSES, RESPONSE_PARSED)
    assert "json_schema" == documented.requests()[0]["text"]["format"]["type"]
    assert [OPENAI] == documented.bill()
    assert '{"said": "It rains"}' == documented.said()


RUNNER = """
from openai import OpenAI
from openai.lib.responses_tool_runner import RegisteredFunction, ResponsesToolRunner

tool = {"type": "function", "name": "weather", "strict": True, "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"], "additionalProperties": False}}

runner = ResponsesToolRunner(functions=[RegisteredFunction(tool, lambda arguments: f"rain in {arguments['city']}")])
response = runner.run(OpenAI(), {"model": "gpt-5", "input": [{"role": "user", "content": "Weather?"}]}, max_steps=4)
print(response.output_text)
"""


@pytest.mark.captured("openai", "ResponsesToolRunner", "tools", added=EITHER, checks=RAN)
def test_openai_tool_runner(documented):
    """A function that the runner calls is an op, between the calls around it, in one turn."""
    assert "It rains\n" == documented.run(RUNNER, RESPONSE_TOOL, RESPONSE)
    assert [None, "function_call", "function_call_output"] == [one.get("type") for one in documented.requests()[1]["messages"]]
    assert [OPENAI] * 2 == documented.bill()
    assert [("weather", {"city": "Athens"})] == documented.asked_for()
    assert [("weather", {"city": "Athens"}, "rain in Athens")] == documented.tools()
    assert [("Weather?", 3)] == documented.turns()


MESSAGES = """
import anthropic

client = anthropic.Anthropic()
message = client.messages.create(model="claude-sonnet-4-5", max_tokens=1000, messages=[{"role": "user", "content": "Weather?"}])
print(message.content[0].text)
"""
MESSAGES_STREAMED = """
import anthropic

client = anthropic.Anthropic()
with client.messages.stream(
    model="claude-sonnet-4-5", max_tokens=1000, messages=[{"role": "user", "content": "Weather?"}]
) as stream:
    for text in stream.text_stream:
        print(text, end="", flush=True)
print()
"""
MESSAGES_THINKING = """
import anthropic

client = anthropic.Anthropic()
response = client.messages.create(
    model="claude-sonnet-4-5",
    max_tokens=16000,
    thinking={"type": "enabled", "budget_tokens": 10000},
    messages=[{"role": "user", "content": "Weather?"}],
)
for block in response.content:
    if block.type == "thinking":
        print("Thinking:", block.thinking)
    elif block.type == "text":
        print(block.text)
"""
MESSAGES_THINKING_STREAMED = """
import anthropic

client = anthropic.Anthropic()
with client.messages.stream(
    model="claude-sonnet-4-5",
    max_tokens=16000,
    thinking={"type": "enabled", "budget_tokens": 10000},
    messages=[{"role": "user", "content": "Weather?"}],
) as stream:
    for event in stream:
        if event.type == "content_block_delta" and event.delta.type == "thinking_delta":
            print("Thinking:", event.delta.thinking)
        elif event.type == "content_block_delta" and event.delta.type == "text_delta":
            print(event.delta.text)
"""
MESSAGES_CACHED = """
import anthropic

client = anthropic.Anthropic()
for question in ("Weather?", "And tomorrow?"):
    response = client.messages.create(
        model="claude-sonnet-4-5",
        max_tokens=1024,
        system=[
            {"type": "text", "text": "You tell the weather."},
            {"type": "text", "text": "All the weather there was.", "cache_control": {"type": "ephemeral", "ttl": "1h"}},
        ],
        messages=[{"role": "user", "content": question}],
    )
    print(response.usage.cache_creation_input_tokens, response.usage.cache_read_input_tokens)
"""
MESSAGES_TOOLS = """
import anthropic

client = anthropic.Anthropic()
tools = [{"name": "weather", "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}]

def weather(city):
    return f"rain in {city}"

messages = [{"role": "user", "content": "Weather?"}]
while True:
    response = client.messages.create(model="claude-sonnet-4-5", max_tokens=1024, tools=tools, messages=messages)
    if response.stop_reason != "tool_use":
        break
    messages.append({"role": "assistant", "content": response.content})
    results = [
        {"type": "tool_result", "tool_use_id": block.id, "content": weather(**block.input)}
        for block in response.content
        if block.type == "tool_use"
    ]
    messages.append({"role": "user", "content": results})
print(response.content[0].text)
"""
MESSAGES_RUNNER = """
import anthropic
from anthropic import beta_tool

client = anthropic.Anthropic()

@beta_tool
def weather(city: str) -> str:
    "Tell the weather."
    return f"rain in {city}"

runner = client.beta.messages.tool_runner(
    model="claude-sonnet-4-5", max_tokens=1024, tools=[weather], messages=[{"role": "user", "content": "Weather?"}]
)
for message in runner:
    pass
print(message.content[0].text)
"""
MESSAGES_RUNNER_STREAMED = """
import asyncio

from anthropic import AsyncAnthropic, beta_async_tool

@beta_async_tool
async def weather(city: str) -> str:
    "Tell the weather."
    return f"rain in {city}"

async def main():
    async with AsyncAnthropic() as client:
        runner = client.beta.messages.tool_runner(
            model="claude-sonnet-4-5", max_tokens=1024, tools=[weather], messages=[{"role": "user", "content": "Weather?"}], stream=True
        )
        async for stream in runner:
            async for event in stream:
                if event.type == "text":
                    print(event.text, end="")
    print()

asyncio.run(main())
"""
_SAID = json.loads(MESSAGE.pieces[0])
_THOUGHT = {"type": "thinking", "thinking": "Look outside.", "signature": "s"}
THINKS = Reply({**_SAID, "content": [_THOUGHT, *_SAID["content"]]})
USES = Reply(
    {**_SAID, "content": [{"type": "tool_use", "id": "call-1", "name": "weather", "input": {"city": "Athens"}}], "stop_reason": "tool_use"}
)
_USES = json.loads(USES.pieces[0])
USES_EVENTS = events(
    {"type": "message_start", "message": {**_USES, "content": [], "stop_reason": None}},
    {"type": "content_block_start", "index": 0, "content_block": {**_USES["content"][0], "input": {}}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "input_json_delta", "partial_json": '{"city": "Athens"}'}},
    {"type": "content_block_stop", "index": 0},
    {"type": "message_delta", "delta": {"stop_reason": "tool_use", "stop_sequence": None}, "usage": {"output_tokens": 5}},
    {"type": "message_stop"},
    done=False,
    names=True,
)
_WRITES = {"input_tokens": 8, "output_tokens": 5, "cache_read_input_tokens": 0, "cache_creation_input_tokens": 50,
           "cache_creation": {"ephemeral_5m_input_tokens": 20, "ephemeral_1h_input_tokens": 30}}  # fmt: skip
WRITES = Reply({**_SAID, "usage": _WRITES})
READS = Reply({**_SAID, "usage": {**_SAID["usage"], "cache_read_input_tokens": 50}})
THINKS_EVENTS = events(
    {"type": "message_start", "message": {**_SAID, "content": [], "stop_reason": None}},
    {"type": "content_block_start", "index": 0, "content_block": {"type": "thinking", "thinking": "", "signature": ""}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": "Look outside."}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "signature_delta", "signature": "s"}},
    {"type": "content_block_stop", "index": 0},
    {"type": "content_block_start", "index": 1, "content_block": {"type": "text", "text": ""}},
    {"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta", "text": "It rains"}},
    {"type": "content_block_stop", "index": 1},
    {"type": "message_delta", "delta": {"stop_reason": "end_turn", "stop_sequence": None}, "usage": {"output_tokens": 5}},
    {"type": "message_stop"},
    done=False,
    names=True,
)


@pytest.mark.captured("anthropic", "messages", "plain", added=EITHER, checks=BILL)
def test_anthropic_messages(documented):
    """A call of Anthropic's messages has its request, its answer and its price."""
    assert "It rains\n" == documented.run(MESSAGES, MESSAGE)
    assert 1000 == documented.requests()[0]["max_tokens"]
    assert [ANTHROPIC] == documented.bill()
    assert _SAID["content"] == documented.answers()[0]["content"]


@pytest.mark.captured("anthropic", "messages", "streamed", added=EITHER, checks=BILL)
def test_anthropic_messages_streamed(documented):
    """A stream of Anthropic's messages has its answer and its price."""
    assert "It rains\n" == documented.run(MESSAGES_STREAMED, MESSAGE_EVENTS)
    assert 1 == len(documented.requests())
    assert [ANTHROPIC] == documented.bill()
    assert _SAID["content"] == documented.answers()[0]["content"]


@pytest.mark.captured("anthropic", "messages", "plain", "streamed", "thinking", added=EITHER, checks=BILL)
@pytest.mark.parametrize(
    ("source", "reply"), [(MESSAGES_THINKING, THINKS), (MESSAGES_THINKING_STREAMED, THINKS_EVENTS)], ids=["plain", "streamed"]
)
def test_anthropic_messages_that_think(documented, source, reply):
    """What a model thinks is in its answer, and recorded as reasoning where it is streamed."""
    assert "Thinking: Look outside.\nIt rains\n" == documented.run(source, reply)
    assert {"type": "enabled", "budget_tokens": 10000} == documented.requests()[0]["thinking"]
    assert [ANTHROPIC] == documented.bill()
    assert [_THOUGHT, *_SAID["content"]] == documented.answers()[0]["content"]
    if reply is THINKS_EVENTS:
        assert "Look outside." == "".join(chunk.text for op in documented.calls() for chunk in op.reasoning.chunks)


@pytest.mark.captured("anthropic", "messages", "cached", added=EITHER, checks=BILL)
def test_anthropic_messages_from_the_cache(documented):
    """What is written to the cache, for five minutes and for an hour, and what is read from it, has its own price each."""
    assert "50 0\n0 50\n" == documented.run(MESSAGES_CACHED, WRITES, READS)
    assert 2 == len(documented.requests())
    assert [_SAID["content"]] * 2 == [answer["content"] for answer in documented.answers()]
    written, read = documented.bill()
    assert (Tokens(8, 5, 0, 50, 63), 8 * 3 + 20 * 3.75 + 30 * 6 + 5 * 15) == (written.tokens, written.cost)
    assert (Tokens(8, 5, 50, 0, 63), 8 * 3 + 50 * 0.3 + 5 * 15) == (read.tokens, read.cost)


@pytest.mark.captured("anthropic", "messages", "tools", added=EITHER, checks=BILL)
def test_anthropic_messages_with_tools(documented):
    """A call that asks for a tool, and the one that has the result, are two ops of one turn."""
    assert "It rains\n" == documented.run(MESSAGES_TOOLS, USES, MESSAGE)
    assert ["user", "assistant", "user"] == [one["role"] for one in documented.requests()[1]["messages"]]
    assert [ANTHROPIC] * 2 == documented.bill()
    assert [("weather", {"city": "Athens"})] == documented.asked_for()
    assert [("Weather?", 2)] == documented.turns()


@pytest.mark.captured("anthropic", "beta.messages.tool_runner", "plain", "streamed", "tools", added=EITHER, checks=RAN)
@pytest.mark.parametrize(
    ("source", "replies"),
    [(MESSAGES_RUNNER, (USES, MESSAGE)), (MESSAGES_RUNNER_STREAMED, (USES_EVENTS, MESSAGE_EVENTS))],
    ids=["plain", "streamed"],
)
def test_anthropic_tool_runner(documented, source, replies):
    """A function that the runner calls is an op, between the calls around it, in one turn."""
    assert "It rains\n" == documented.run(source, *replies)
    assert 2 == len(documented.requests())
    assert [ANTHROPIC] * 2 == documented.bill()
    assert [("weather", {"city": "Athens"})] == documented.asked_for()
    assert [("weather", {"city": "Athens"}, "rain in Athens")] == documented.tools()
    assert [("Weather?", 3)] == documented.turns()


@pytest.mark.captured("anthropic", "messages", "killed", "resumed", added=EITHER, checks=("requests", "tokens", "price"))
def test_anthropic_messages_killed_and_resumed(documented):
    """A program that is killed in its second call keeps the first; when it goes on, the bill is that of all calls that were answered."""
    documented.kill(MESSAGES_TOOLS, USES)
    assert ([ANTHROPIC], ["ok", None]) == (documented.bill(unknown=1), [op.status for op in documented.calls()])
    assert "It rains\n" == documented.resume(USES, MESSAGE)
    assert [ANTHROPIC] * 3 == documented.bill(unknown=1)
    assert ["ok", "interrupted", "ok", "ok"] == [op.status for op in documented.calls()]
    assert 4 == len(documented.requests())
