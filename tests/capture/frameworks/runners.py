"""Programs whose SDK runs a function when the model asks for it, each in the ways that the SDK has: all ask for the weather."""

import asyncio
import functools
import inspect
import json

import anthropic
import openai
from anthropic import beta_async_tool, beta_tool
from google import genai
from google.genai import types
from openai.lib.responses_tool_runner import AsyncRegisteredFunction, AsyncResponsesToolRunner, RegisteredFunction, ResponsesToolRunner

from tests.capture.frameworks.test_documented_others import GEMINI, GEMINI_EVENTS, GEMINI_TOOL
from tests.capture.provider import EVENTS, Reply, events
from tests.capture.sdk_calls import MESSAGE, MESSAGE_EVENTS, QUESTION, RESPONSE
from tests.capture.test_documented import RESPONSE_TOOL, USES, USES_EVENTS

GEMINI_TOOL_EVENTS = Reply(b"data: " + GEMINI_TOOL.pieces[0] + b"\r\n\r\n", kind=EVENTS)


def _streamed(reply):
    """Return a response of OpenAI's as a stream of whole items, sent at once: an eager runner calls functions before the end."""
    answer = json.loads(reply.pieces[0])
    told = [{"type": "response.created", "response": {**answer, "output": [], "usage": None, "status": "in_progress"}}]
    for item in answer["output"]:
        begun = {name: "" if name == "arguments" else [] if name == "content" else value for name, value in item.items()}
        told.append({"type": "response.output_item.added", "output_index": 0, "item": {**begun, "status": "in_progress"}})
        told.append({"type": "response.output_item.done", "output_index": 0, "item": item})
    told.append({"type": "response.completed", "response": answer})
    sent = events(*({"sequence_number": at, **one} for at, one in enumerate(told)), done=False, names=True)
    return Reply(b"".join(sent.pieces), kind=sent.kind)


_SENT = {"model": "claude-5", "max_tokens": 64, "messages": QUESTION}
_TOOL = {
    "type": "function", "name": "weather", "strict": False,
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}  # fmt: skip


def _awaited(function):
    """Return a coroutine function that does the same, or the function, if it is one."""
    if inspect.iscoroutinefunction(function):
        return function

    @functools.wraps(function)
    async def call(*args, **kwargs):
        return function(*args, **kwargs)

    return call


def messages(url, function, *, streamed=False):
    """Ask by Anthropic's tool runner; *function* may be a tool already."""
    with anthropic.Anthropic(base_url=url, api_key="none", max_retries=0) as client:
        tool = beta_tool(function) if inspect.isroutine(function) else function
        runner = client.beta.messages.tool_runner(**_SENT, tools=[tool], stream=streamed)
        for answer in runner:
            found = answer.get_final_message() if streamed else answer
        return found.content[0].text


async def messages_async(url, function, *, streamed=False):
    """Ask by the asynchronous one."""
    async with anthropic.AsyncAnthropic(base_url=url, api_key="none", max_retries=0) as client:
        tool = beta_async_tool(_awaited(function)) if inspect.isroutine(function) else function
        runner = client.beta.messages.tool_runner(**_SENT, tools=[tool], stream=streamed)
        async for answer in runner:
            found = await answer.get_final_message() if streamed else answer
        return found.content[0].text


def _gemini(url):
    return genai.Client(api_key="none", http_options=types.HttpOptions(base_url=url))


def generate(url, function, *, streamed=False):
    """Ask Gemini with a function."""
    with _gemini(url) as client:
        sent = {"model": "gemini-2.5-flash", "contents": "Weather?", "config": types.GenerateContentConfig(tools=[function])}
        if streamed:
            return "".join(chunk.text or "" for chunk in client.models.generate_content_stream(**sent))
        return client.models.generate_content(**sent).text


def talk(url, function, *, streamed=False):
    """Ask in a chat."""
    with _gemini(url) as client:
        chat = client.chats.create(model="gemini-2.5-flash", config=types.GenerateContentConfig(tools=[function]))
        if streamed:
            return "".join(chunk.text or "" for chunk in chat.send_message_stream("Weather?"))
        return chat.send_message("Weather?").text


async def generate_async(url, function, *, streamed=False):
    """Ask by the asynchronous client."""
    async with _gemini(url).aio as client:
        sent = {"model": "gemini-2.5-flash", "contents": "Weather?", "config": types.GenerateContentConfig(tools=[function])}
        if streamed:
            return "".join([chunk.text or "" async for chunk in await client.models.generate_content_stream(**sent)])
        return (await client.models.generate_content(**sent)).text


async def talk_async(url, function, *, streamed=False):
    """Ask in a chat by it."""
    async with _gemini(url).aio as client:
        chat = client.chats.create(model="gemini-2.5-flash", config=types.GenerateContentConfig(tools=[function]))
        if streamed:
            return "".join([chunk.text or "" async for chunk in await chat.send_message_stream("Weather?")])
        return (await chat.send_message("Weather?")).text


def responses(url, function, *, streamed=False):
    """Ask by OpenAI's runner."""
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        runner = ResponsesToolRunner(functions=[RegisteredFunction(_TOOL, _called(function))])
        return runner.run(client, {"model": "gpt-5", "input": QUESTION}, max_steps=3, stream=streamed, eager=streamed).output_text


async def responses_async(url, function, *, streamed=False):
    """Ask by the asynchronous one."""
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        runner = AsyncResponsesToolRunner(functions=[AsyncRegisteredFunction(_TOOL, _called(_awaited(function)))])
        found = await runner.run(client, {"model": "gpt-5", "input": QUESTION}, max_steps=3, stream=streamed, eager=streamed)
        return found.output_text


def _called(function):
    """Return what takes the arguments as OpenAI's runner gives them."""

    @functools.wraps(function)
    def call(arguments):
        return function(**arguments)

    del call.__wrapped__  # whose signature is another
    return call


ANTHROPIC = {"plain": (USES, MESSAGE), "streamed": (USES_EVENTS, MESSAGE_EVENTS)}
GOOGLE = {"plain": (GEMINI_TOOL, GEMINI), "streamed": (GEMINI_TOOL_EVENTS, GEMINI_EVENTS)}
OPENAI = {"plain": (RESPONSE_TOOL, RESPONSE), "streamed": (_streamed(RESPONSE_TOOL), _streamed(RESPONSE))}
_PLAIN = ((messages, ANTHROPIC), (generate, GOOGLE), (talk, GOOGLE), (responses, OPENAI))
_ASYNC = ((messages_async, ANTHROPIC), (generate_async, GOOGLE), (talk_async, GOOGLE), (responses_async, OPENAI))


class Way:
    """One way to ask."""

    def __init__(self, ask, how, replies):
        self.ask, self.streamed, self.replies = ask, how == "streamed", replies
        self.name = f"{ask.__name__}-{how}"

    def __call__(self, url, function):
        """Ask with a function that tells the weather; return what the model says at last."""
        found = self.ask(url, function, streamed=self.streamed)
        return asyncio.run(found) if inspect.iscoroutine(found) else found


WAYS = {way.name: way for ask, replies in (*_PLAIN, *_ASYNC) for how in replies for way in [Way(ask, how, replies[how])]}
