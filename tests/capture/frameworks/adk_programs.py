"""Programs on Google's ADK, with models that are scripted: what its tests run. Imported only where it is installed."""

import asyncio
import contextlib
import json

import httpx
import pytest
from google import genai
from google.adk.agents import Agent
from google.adk.agents.base_agent import BaseAgent
from google.adk.models import BaseLlm, Gemini, LlmResponse
from google.adk.models.base_llm_connection import BaseLlmConnection
from google.adk.runners import InMemoryRunner
from google.genai import types

import optree
from optree._tree import walk_ops, walk_sessions
from tests.capture.provider import EVENTS, Reply

WARNINGS = [
    pytest.mark.filterwarnings("ignore:Inheritance class:DeprecationWarning"),  # what aiohttp says of google-genai
    pytest.mark.filterwarnings("ignore:.*is deprecated:DeprecationWarning"),  # sequences, loops and the like, in favour of workflows
]
USAGE = {"promptTokenCount": 12, "candidatesTokenCount": 2, "totalTokenCount": 17, "thoughtsTokenCount": 3}


def gives(*parts):
    """Return a reply of Gemini's with these parts."""
    return Reply(answer(*parts))


def answer(*parts):
    """Return an answer of Gemini's."""
    candidate = {"content": {"role": "model", "parts": list(parts)}, "finishReason": "STOP", "index": 0}
    return {"candidates": [candidate], "usageMetadata": USAGE, "modelVersion": "gemini-3-2026"}


def streamed(*answers):
    """Return the same as a stream."""
    return Reply(*(b"data: " + json.dumps(one).encode() + b"\r\n\r\n" for one in answers), kind=EVENTS)


def calls(name, **arguments):
    """Return the part of an answer that calls a tool."""
    return {"functionCall": {"name": name, "args": arguments}}


RAINS = gives({"text": "It rains"})
ASKS = gives(calls("weather", city="Athens"))
HANDS_OFF = gives(calls("transfer_to_agent", agent_name="Billing"))


class Asking:
    """A program with agents on the scripted provider."""

    def __init__(self, provider, sent_by="aiohttp", retries=None):
        self.provider, self.sent_by, self.retries, self.client = provider, sent_by, retries, None

    def model(self):
        """Return Gemini, as the provider plays it."""
        return Gemini(model="gemini-3", client=self.client)

    def agent(self, name="Forecaster", **more):
        """Return an agent on it."""
        return Agent(name=name, model=self.model(), **more)

    def run(self, program):
        """Run an asynchronous program to its end."""

        async def running():
            options = {"base_url": self.provider.url, "retry_options": self.retries}
            if self.sent_by == "httpx":
                options["httpx_async_client"] = httpx.AsyncClient()
            self.client = genai.Client(api_key="none", http_options=options)
            try:
                return await program()
            finally:
                await self.client.aio.aclose()
                if self.sent_by == "httpx":
                    await options["httpx_async_client"].aclose()

        return asyncio.run(running())

    def ask(self, make, question="Weather?", **more):
        """Ask the agent that is made, and return the texts that come."""
        return self.run(lambda: texts(make(), question, **more))


class Scripted(BaseLlm):
    """A model that calls nobody."""

    answers: list

    async def generate_content_async(self, llm_request, stream=False):  # noqa: ARG002, FBT002 - as ADK calls it
        """Give the next answers that are written down for it."""
        for one in self.answers.pop(0):
            if isinstance(one, Exception):
                raise one
            yield one


def scripted(*answers):
    """Return a model that gives these answers, each a list of responses."""
    return Scripted(model="parrot-1", answers=list(answers))


def response(*parts, **more):
    """Return a model's response."""
    made = [part if isinstance(part, types.Part) else types.Part(text=part) for part in parts]
    return LlmResponse(content=types.Content(role="model", parts=made), **more)


def used(**more):
    """Return a response's usage."""
    return types.GenerateContentResponseUsageMetadata(prompt_token_count=12, candidates_token_count=2, total_token_count=14, **more)


def tool_call(name, **arguments):
    """Return the part of a response that calls a tool."""
    return types.Part(function_call=types.FunctionCall(name=name, args=arguments))


async def events(root, question="Weather?", *, plugins=(), **more):
    """Yield the events of a run."""
    kind = "agent" if isinstance(root, BaseAgent) else "node"
    runner = InMemoryRunner(app_name="weather", plugins=list(plugins), **{kind: root})
    session = await runner.session_service.create_session(app_name="weather", user_id="somebody")
    async for event in runner.run_async(user_id="somebody", session_id=session.id, new_message=types.UserContent(question), **more):
        yield event


async def texts(root, question="Weather?", **more):
    """Run an agent, and return what its events say."""
    found = [event async for event in events(root, question, **more)]
    return [part.text for event in found if event.content for part in event.content.parts or [] if part.text]


def weather(city: str) -> str:
    """Tell the weather."""
    optree.current().log(f"looking at {city}")
    with optree.tool("thermometer"):
        return f"rain in {city}"


def sky(city: str) -> str:
    """Tell the weather."""
    return f"rain in {city}"


def broken() -> str:
    """Do nothing good."""
    raise ValueError("no such thermometer")


def shape(recording):
    """Return the paths of what was recorded, with kind, name and status."""
    return [(op.path, op.kind, op.name.rpartition(":")[2], op.status) for _, _, op in walk_ops(recording.tree)]


def op_of(recording, name):
    """Return the first op of a name."""
    return next(op for _, _, op in walk_ops(recording.tree) if op.name == name)


def names(recording):
    """Return each session's path of agents."""
    return [session.call_path for session in walk_sessions(recording.tree)]


class Line(BaseLlmConnection):
    """A live model's line: it answers what it is sent."""

    def __init__(self):
        self.answers = asyncio.Queue()

    async def send_history(self, history):
        """Take what was said before."""

    async def send_realtime(self, blob):
        """Take sound."""

    async def send_content(self, content):
        """Answer it: by a call of a tool, and by a text once that has answered."""
        has_result = any(part.function_response for part in content.parts)
        await self.answers.put(response("It rains") if has_result else response(tool_call("weather", city="Athens")))
        if has_result:
            await self.answers.put(LlmResponse(turn_complete=True))

    async def receive(self):
        """Give the answers."""
        while True:
            yield await self.answers.get()

    async def close(self):
        """End it."""


class Live(Scripted):
    """A live model that calls nobody."""

    @contextlib.asynccontextmanager
    async def connect(self, llm_request):  # noqa: ARG002 - as ADK calls it
        """Give the line."""
        yield Line()
