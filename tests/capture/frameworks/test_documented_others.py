"""Programs on the clients of Gemini, Ollama and LiteLLM, as the documentation writes them, are recorded to the token and the cent."""

import json

import pytest

from optree._nodes import Tokens
from tests.capture.documented import BILL, EITHER, RAN, Billed
from tests.capture.provider import EVENTS, Reply
from tests.capture.sdk_calls import CHAT, CHAT_EVENTS, CHAT_TOOL

GOOGLE = Billed("google-compatible:gemini-2.5-flash", Tokens(8, 5, 4, 0, 17, 3), 15.02)
OLLAMA = Billed("ollama:gemma3", Tokens(12, 2, 0, 0, 14), 0.32)
LITELLM = Billed("openai-compatible:gpt-5", Tokens(8, 5, 4, 0, 17, 3), 60.5)
GENERATE = """
from google import genai

client = genai.Client()
response = client.models.generate_content(model="gemini-2.5-flash", contents="Weather?")
print(response.text)
"""
GENERATE_STREAMED = """
from google import genai

client = genai.Client()
for chunk in client.models.generate_content_stream(model="gemini-2.5-flash", contents=["Weather?"]):
    print(chunk.text, end="")
print()
"""
GENERATE_TOOLS = """
from google import genai
from google.genai import types

def weather(city: str) -> str:
    "Tell the weather."
    return f"rain in {city}"

client = genai.Client()
chat = client.chats.create(model="gemini-2.5-flash", config=types.GenerateContentConfig(tools=[weather]))
print(chat.send_message("Weather?").text)
"""
GENERATE_TOOLS_ASYNC = """
import asyncio

from google import genai
from google.genai import types

async def weather(city: str) -> str:
    "Tell the weather."
    return f"rain in {city}"

async def main():
    async with genai.Client().aio as client:
        response = await client.models.generate_content(
            model="gemini-2.5-flash", contents="Weather?", config=types.GenerateContentConfig(tools=[weather])
        )
    print(response.text)

asyncio.run(main())
"""
GENERATE_PARSED = """
from google import genai
from pydantic import BaseModel

class Weather(BaseModel):
    said: str

client = genai.Client()
response = client.models.generate_content(
    model="gemini-2.5-flash",
    contents="Weather?",
    config={"response_mime_type": "application/json", "response_schema": Weather},
)
print(response.parsed.said)
"""
GEMINI_USAGE = {
    "promptTokenCount": 12, "candidatesTokenCount": 2, "thoughtsTokenCount": 3, "totalTokenCount": 17, "cachedContentTokenCount": 4,
}  # fmt: skip


def gemini(part, **more):
    """Return an answer of Gemini's."""
    candidate = {"content": {"role": "model", "parts": [part]}, "finishReason": "STOP", "index": 0}
    return {"candidates": [candidate], "modelVersion": "gemini-2.5-flash-001"} | more


GEMINI = Reply(gemini({"text": "It rains"}, usageMetadata=GEMINI_USAGE))
GEMINI_TOOL = Reply(gemini({"functionCall": {"name": "weather", "args": {"city": "Athens"}}}, usageMetadata=GEMINI_USAGE))
GEMINI_PARSED = Reply(gemini({"text": '{"said": "It rains"}'}, usageMetadata=GEMINI_USAGE))
GEMINI_EVENTS = Reply(
    *(
        b"data: " + json.dumps(one).encode() + b"\r\n\r\n"
        for one in (gemini({"text": "It "}), gemini({"text": "rains"}, usageMetadata=GEMINI_USAGE))
    ),
    kind=EVENTS,
)


@pytest.mark.captured("google-genai", "models", "plain", added=EITHER, checks=BILL)
def test_google_genai(documented):
    """A call of Gemini has its request, its answer and its price."""
    assert "It rains\n" == documented.run(GENERATE, GEMINI)
    assert [{"role": "user", "parts": [{"text": "Weather?"}]}] == documented.requests()[0]["messages"]
    assert [GOOGLE] == documented.bill()
    assert [json.loads(GEMINI.pieces[0])] == documented.answers()


@pytest.mark.captured("google-genai", "models", "streamed", added=EITHER, checks=BILL)
def test_google_genai_streamed(documented):
    """A stream of Gemini's has its answer and its price."""
    assert "It rains\n" == documented.run(GENERATE_STREAMED, GEMINI_EVENTS)
    assert 1 == len(documented.requests())
    assert [GOOGLE] == documented.bill()
    assert "It rains" in documented.said()


@pytest.mark.captured("google-genai", "chats, aio.models", "tools", added=EITHER, checks=RAN)
@pytest.mark.parametrize("source", [GENERATE_TOOLS, GENERATE_TOOLS_ASYNC], ids=["chats", "aio"])
def test_google_genai_with_tools(documented, source):
    """A function that the client calls by itself is an op, between the calls around it, in one turn."""
    assert "It rains\n" == documented.run(source, GEMINI_TOOL, GEMINI)
    assert ["user", "model", "user"] == [one["role"] for one in documented.requests()[1]["messages"]]
    assert [GOOGLE] * 2 == documented.bill()
    assert [("weather", {"city": "Athens"})] == documented.asked_for()
    assert [("weather", {"city": "Athens"}, "rain in Athens")] == documented.tools()
    assert [("Weather?", 3)] == documented.turns()


@pytest.mark.captured("google-genai", "models", "parsed", added=EITHER, checks=BILL)
def test_google_genai_parsed(documented):
    """A call for an answer of a type has the schema in its request."""
    assert "It rains\n" == documented.run(GENERATE_PARSED, GEMINI_PARSED)
    assert "application/json" == documented.requests()[0]["generationConfig"]["responseMimeType"]
    assert [GOOGLE] == documented.bill()
    assert '{"said": "It rains"}' == documented.said()


OLLAMA_CHAT = """
from ollama import chat

response = chat(model="gemma3", messages=[{"role": "user", "content": "Weather?"}])
print(response.message.content)
"""
OLLAMA_STREAMED = """
from ollama import chat

for chunk in chat(model="gemma3", messages=[{"role": "user", "content": "Weather?"}], stream=True):
    print(chunk["message"]["content"], end="", flush=True)
print()
"""
OLLAMA_TOOLS = """
from ollama import chat

def weather(city: str) -> str:
    "Tell the weather."
    return f"rain in {city}"

messages = [{"role": "user", "content": "Weather?"}]
response = chat(model="gemma3", messages=messages, tools=[weather])
messages.append(response.message)
for call in response.message.tool_calls:
    messages.append({"role": "tool", "tool_name": call.function.name, "content": weather(**call.function.arguments)})
print(chat(model="gemma3", messages=messages, tools=[weather]).message.content)
"""
OLLAMA_PARSED = """
from ollama import chat
from pydantic import BaseModel

class Weather(BaseModel):
    said: str

response = chat(model="gemma3", messages=[{"role": "user", "content": "Weather?"}], format=Weather.model_json_schema())
print(Weather.model_validate_json(response.message.content).said)
"""


def gemma(*, done=True, **message):
    """Return what Ollama gives."""
    spent = {"done_reason": "stop", "prompt_eval_count": 12, "eval_count": 2} if done else {}
    return {"model": "gemma3", "created_at": "2026-01-01T00:00:00Z", "done": done, "message": {"role": "assistant"} | message} | spent


GEMMA = Reply(gemma(content="It rains"))
GEMMA_TOOL = Reply(gemma(content="", tool_calls=[{"function": {"name": "weather", "arguments": {"city": "Athens"}}}]))
GEMMA_PARSED = Reply(gemma(content='{"said": "It rains"}'))
GEMMA_LINES = Reply(
    *(json.dumps(one).encode() + b"\n" for one in (gemma(done=False, content="It "), gemma(content="rains"))), kind="application/x-ndjson"
)


@pytest.mark.captured("ollama", "chat", "plain", "streamed", "parsed", added=EITHER, checks=BILL)
@pytest.mark.parametrize(
    ("source", "reply"),
    [(OLLAMA_CHAT, GEMMA), (OLLAMA_STREAMED, GEMMA_LINES), (OLLAMA_PARSED, GEMMA_PARSED)],
    ids=["plain", "streamed", "parsed"],
)
def test_ollama(documented, source, reply):
    """A call of Ollama's chat, plain, streamed and by a schema, has its request, its answer and its price."""
    pytest.importorskip("ollama", reason="Ollama's client is not there")
    assert "It rains\n" == documented.run(source, reply)
    assert [("Weather?", 1)] == documented.turns()
    assert 1 == len(documented.requests())
    assert [OLLAMA] == documented.bill()
    assert "It rains" in documented.said()


@pytest.mark.captured("ollama", "chat", "tools", added=EITHER, checks=BILL)
def test_ollama_with_tools(documented):
    """A call that asks for a tool, and the one that has the result, are two ops."""
    pytest.importorskip("ollama", reason="Ollama's client is not there")
    assert "It rains\n" == documented.run(OLLAMA_TOOLS, GEMMA_TOOL, GEMMA)
    assert ["user", "assistant", "tool"] == [one["role"] for one in documented.requests()[1]["messages"]]
    assert [OLLAMA] * 2 == documented.bill()
    assert [("weather", {"city": "Athens"})] == documented.asked_for()


LITELLM_PLAIN = """
from litellm import completion

response = completion(model="openai/gpt-5", messages=[{"role": "user", "content": "Weather?"}])
print(response.choices[0].message.content)
"""
LITELLM_STREAMED = """
from litellm import completion

messages = [{"role": "user", "content": "Weather?"}]
for chunk in completion(model="openai/gpt-5", messages=messages, stream=True, stream_options={"include_usage": True}):
    if chunk.choices:
        print(chunk.choices[0].delta.content or "", end="")
print()
"""
LITELLM_TOOLS = """
import json
from litellm import completion

tools = [{"type": "function", "function": {"name": "weather", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}]

def weather(city):
    return f"rain in {city}"

messages = [{"role": "user", "content": "Weather?"}]
response = completion(model="openai/gpt-5", messages=messages, tools=tools)
messages.append(response.choices[0].message)
for call in response.choices[0].message.tool_calls:
    result = weather(**json.loads(call.function.arguments))
    messages.append({"role": "tool", "tool_call_id": call.id, "name": "weather", "content": result})
print(completion(model="openai/gpt-5", messages=messages, tools=tools).choices[0].message.content)
"""


@pytest.mark.captured("litellm", "completion", "plain", "streamed", "tools", added=EITHER, checks=BILL)
@pytest.mark.parametrize(
    ("source", "replies"),
    [(LITELLM_PLAIN, [CHAT]), (LITELLM_STREAMED, [CHAT_EVENTS]), (LITELLM_TOOLS, [CHAT_TOOL, CHAT])],
    ids=["plain", "streamed", "tools"],
)
def test_litellm(documented, source, replies):
    """A call by LiteLLM, plain, streamed and with tools, is that of the client that it sends by, once."""
    pytest.importorskip("litellm", reason="LiteLLM is tried in the environment of CrewAI: make test-frameworks")
    assert "It rains" == documented.run(source, *replies).partition("\n")[0]  # of a model that it has no price for it says more
    assert [("Weather?", len(replies))] == documented.turns()
    assert len(replies) == len(documented.requests())
    assert [LITELLM] * len(replies) == documented.bill()
    assert "It rains" == documented.said()
    assert [("weather", {"city": "Athens"})] * (len(replies) - 1) == documented.asked_for()
