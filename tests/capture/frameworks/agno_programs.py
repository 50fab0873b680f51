"""Agents of Agno's, and a model of the program's own."""

import asyncio
from dataclasses import dataclass, field

import pytest
from agno.agent import Agent
from agno.metrics import MessageMetrics
from agno.models.base import Model
from agno.models.openai import OpenAIChat
from agno.models.response import ModelResponse
from agno.team import Team

import optree

MARKS = [pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")]  # Agno's asynchronous clients are never closed


def asks_for(name, arguments='{"city": "Athens"}', call="call-1"):
    """Return what a model says that asks for a tool."""
    return {"id": call, "type": "function", "function": {"name": name, "arguments": arguments}}


ASKS = [asks_for("weather")]


@dataclass
class Scripted(Model):
    """A model that calls nobody, as Agno's documentation has one of the program's own."""

    id: str = "scripted"
    says: list = field(default_factory=list)
    spends: dict = field(default_factory=dict)
    thinks: str | None = None
    temperature: float | None = None

    def invoke(self, messages, *_args, **_more):
        """Say what is next, the last thing again and again."""
        said = self.says.pop(0) if len(self.says) > 1 else self.says[0]
        said = said(messages) if callable(said) else said
        if isinstance(said, BaseException):
            raise said
        spent = MessageMetrics(**{"input_tokens": 3, "output_tokens": 2, "total_tokens": 5, **self.spends})
        told = {"tool_calls": said} if isinstance(said, list) else {"content": said}
        return ModelResponse(role="assistant", response_usage=spent, reasoning_content=self.thinks, **told)

    async def ainvoke(self, *args, **more):
        """Say it where that is awaited."""
        await asyncio.sleep(0)
        return self.invoke(*args, **more)

    def invoke_stream(self, *args, **more):
        """Say it word by word."""
        said = self.invoke(*args, **more)
        thoughts, words = said.reasoning_content or "", said.content or ""
        said.reasoning_content = said.content = None
        for word in thoughts.split():
            yield ModelResponse(role="assistant", reasoning_content=f"{word} ")
        for word in words.split():
            yield ModelResponse(role="assistant", content=f"{word} ")
        yield said

    async def ainvoke_stream(self, *args, **more):
        """Do that where it is awaited."""
        for piece in self.invoke_stream(*args, **more):
            await asyncio.sleep(0)
            yield piece

    def _parse_provider_response(self, response, **_more):
        return response

    def _parse_provider_response_delta(self, response):
        return response


def scripted(*says):
    """Return a model that says this."""
    return Scripted(says=list(says))


def served_by(provider):
    """Return a model that the provider answers for."""
    return OpenAIChat(id="gpt-5", base_url=f"{provider.url}/v1", api_key="none", max_retries=0)


def forecaster(model, *tools, name="forecaster", **more):
    """Return an agent."""
    return Agent(name=name, model=model, tools=list(tools), telemetry=False, **more)


def desk_of(*members):
    """Return a team whose leader has its first member do it."""
    task = f'{{"member_id": "{members[0].id}", "task": "Look at Athens"}}'
    model = scripted([asks_for("delegate_task_to_member", task)], "All rain")
    return Team(name="desk", members=list(members), model=model, telemetry=False)


async def read(stream):
    """Return all events of a stream."""
    return [event async for event in stream]


WAYS = {
    "run": lambda runner, asked: runner.run(asked).content,
    "arun": lambda runner, asked: asyncio.run(_awaited(runner, asked)),
    "stream": lambda runner, asked: list(runner.run(asked, stream=True, yield_run_output=True))[-1].content,
    "astream": lambda runner, asked: asyncio.run(read(runner.arun(asked, stream=True, yield_run_output=True)))[-1].content,
}
"""The ways to run an agent or a team."""
EVENTS = {
    "events": lambda runner, asked: list(runner.run(asked, stream=True)),
    "awaited events": lambda runner, asked: asyncio.run(read(runner.arun(asked, stream=True))),
}
"""Those by which the program gets events alone, and no result of the run."""


async def _awaited(runner, asked):
    found = await runner.arun(asked)
    assert optree.current_session() is None
    return found.content


async def _continued(runner, waiting):
    return (await runner.acontinue_run(waiting)).content


CONTINUED = {
    "run": lambda runner, waiting: runner.continue_run(waiting).content,
    "arun": lambda runner, waiting: asyncio.run(_continued(runner, waiting)),
    "stream": lambda runner, waiting: list(runner.continue_run(waiting, stream=True, yield_run_output=True))[-1].content,
    "astream": lambda runner, waiting: asyncio.run(read(runner.acontinue_run(waiting, stream=True, yield_run_output=True)))[-1].content,
}
"""The ways to go on with a run that waits for somebody."""


def roots_of(recording):
    """Return the sessions that are part of no other."""
    return [session.tree.session for session in recording.sessions]
