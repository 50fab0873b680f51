"""Agents as smolagents' documentation writes them, and a model of the program's own."""

import json
from functools import cache

import openai
import pytest
from smolagents import ChatMessage, CodeAgent, LogLevel, Model, OpenAIModel, ToolCallingAgent, tool
from smolagents.models import ChatMessageStreamDelta, ChatMessageToolCall, ChatMessageToolCallFunction
from smolagents.monitoring import TokenUsage

from tests.capture import tools
from tests.capture.provider import Reply
from tests.capture.sdk_calls import USAGE

REFUSED = Reply({"error": {"message": "no such model"}}, status=404)
CODE = "Thought: look\n<code>\nfound = weather('Athens')\nprint(found)\nfinal_answer('It rains')\n</code>"


def says(content, *calls):
    """Return an answer of OpenAI's chat that asks for tools, or says something."""
    asked = [{"id": f"call-{at}", "type": "function", "function": function} for at, function in enumerate(calls, 1)]
    message = {"role": "assistant", "content": content} | ({"tool_calls": asked} if asked else {})
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if asked else "stop"}
    return Reply({"id": "chat-2", "object": "chat.completion", "created": 1, "model": "gpt-5-2026", "choices": [choice], "usage": USAGE})


def asks(name, **arguments):
    """Return an answer that asks for a tool."""
    return says(None, {"name": name, "arguments": json.dumps(arguments)})


WEATHER = asks("weather", city="Athens")
DONE = asks("final_answer", answer="It rains")
ANSWER = says(CODE)
weather, broken = tool(tools.weather), tool(tools.broken)


class Scripted(Model):
    """A model that calls nobody, as smolagents' documentation has one of the program's own."""

    def __init__(self, *says):
        super().__init__(model_id="scripted")
        self.says = list(says)

    def generate(self, messages, **_more):
        """Say what is next, the last thing again and again."""
        said = self.says.pop(0) if len(self.says) > 1 else self.says[0]
        if isinstance(said, BaseException):
            raise said
        said = said(messages) if callable(said) else said
        calls = [said] if isinstance(said, ChatMessageToolCall) else None
        return ChatMessage("assistant", None if calls else said, calls, token_usage=TokenUsage(3, 2))

    def generate_stream(self, messages, **more):
        """Say it piece by piece."""
        for piece in self.generate(messages, **more).content.split(" "):
            yield ChatMessageStreamDelta(content=f"{piece} ")
        yield ChatMessageStreamDelta(token_usage=TokenUsage(3, 2))


def calls(name, **arguments):
    """Return what a scripted model says that asks for a tool."""
    return ChatMessageToolCall(ChatMessageToolCallFunction(arguments, name), "call-1", "function")


@cache
def _client(url):
    return openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)


def served_by(provider):
    """Return a model that the provider answers for."""
    return OpenAIModel("gpt-5", client=_client(provider.url), retry=False)


@pytest.fixture(name="model")
def model_of_smolagents(provider):
    """Return the same."""
    return served_by(provider)


def calling(model, *tools, name="forecaster", **more):
    """Return an agent that calls tools."""
    return ToolCallingAgent(list(tools), model, name=name, description="Tells the weather", verbosity_level=LogLevel.OFF, **more)


def coding(model, *tools, name="coder", **more):
    """Return an agent that writes code."""
    return CodeAgent(list(tools), model, name=name, description="Writes code", verbosity_level=LogLevel.OFF, **more)
