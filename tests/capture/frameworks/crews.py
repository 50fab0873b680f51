"""Crews as CrewAI's documentation writes them, and a model of the program's own."""

import asyncio
import atexit
import os
import shutil
import tempfile

import pytest
from crewai import LLM, Agent, BaseLLM, Crew, Task
from crewai.tools import tool
from pydantic import Field

import optree
from tests.capture.provider import Reply

MARKS = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # what CrewAI says of fields of its own
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),  # its clients are never closed
]
_KEPT = tempfile.mkdtemp()  # what CrewAI notes of its runs
os.environ |= {"XDG_DATA_HOME": _KEPT, "XDG_CONFIG_HOME": _KEPT}
atexit.register(shutil.rmtree, _KEPT, ignore_errors=True)
REFUSED = Reply({"error": {"message": "no such model"}}, status=404)
ASKS = [{"id": "call-1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Athens"}'}}]
SPENT = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}


@tool("weather")
def weather(city: str) -> str:
    """Tell the weather."""
    if (op := optree.current()) is not None:
        op.log(f"looking at {city}")
    with optree.tool("thermometer"):
        return f"rain in {city}"


@tool("weather")
def broken(city: str) -> str:
    """Do nothing good."""
    raise ConnectionError(f"no thermometer in {city}")


class Scripted(BaseLLM):
    """A model that calls nobody, as CrewAI's documentation has one of the program's own."""

    says: list = Field(default_factory=list)

    def call(self, messages, *_args, **_more):
        """Say what is next, the last thing again and again."""
        self._track_token_usage_internal(SPENT)
        said = self.says.pop(0) if len(self.says) > 1 else self.says[0]
        if isinstance(said, BaseException):
            raise said
        return said(messages) if callable(said) else said

    async def acall(self, *args, **more):
        """Say it where that is awaited."""
        await asyncio.sleep(0)
        return self.call(*args, **more)

    def supports_function_calling(self):
        """Take tools."""
        return True


def scripted(*says):
    """Return a model that says this."""
    model = Scripted(model="scripted")
    model.says = list(says)
    return model


def served_by(provider):
    """Return a model that the provider answers for."""
    return LLM(model="openai/gpt-5", base_url=f"{provider.url}/v1", api_key="none", max_retries=0)


@pytest.fixture(name="model")
def model_of_crewai(provider):
    """Return the same."""
    return served_by(provider)


def forecaster(model, *tools, **more):
    """Return an agent."""
    return Agent(role="forecaster", goal="Tell the weather", backstory="You look out", llm=model, tools=list(tools), **more)


def task_of(agent, **more):
    """Return a task of an agent's."""
    return Task(description="Weather in {city}?", expected_output="a sentence", agent=agent, **more)


def crew_of(model, *tools, name="meteo", **more):
    """Return a crew of one agent and one task."""
    agent = forecaster(model, *tools)
    return Crew(name=name, agents=[agent], tasks=[task_of(agent, **more)])


def ask(crew, city="Athens"):
    """Run a crew."""
    return crew.kickoff({"city": city}).raw
