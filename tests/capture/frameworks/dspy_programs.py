"""Programs as DSPy's documentation writes them, with what the provider answers for them."""

import atexit
import os
import shutil

import dspy
import pytest
from dspy.utils import DummyLM

import optree
from tests.capture.frameworks.documented_dspy import ANSWER, FINISHES, LOOKS
from tests.capture.tools import weather

MARKS = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # what DSPy and LiteLLM say of their own
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),  # their connections are never closed
]
atexit.register(shutil.rmtree, os.environ["DSPY_CACHEDIR"], ignore_errors=True)
LOOK_AND_TELL = [LOOKS, FINISHES, ANSWER]
ASKS = [
    {"next_thought": "look", "next_tool_name": "weather", "next_tool_args": '{"city": "Athens"}'},
    {"next_thought": "done", "next_tool_name": "finish", "next_tool_args": "{}"},
    {"reasoning": "wet", "answer": "It rains"},
]
"""What a scripted model says for the same."""


def served_by(provider, name="openai/gpt-5", **more):
    """Return a model that the provider answers for."""
    return dspy.LM(name, api_base=f"{provider.url}/v1", api_key="none", **{"cache": False, "num_retries": 0, **more})


@pytest.fixture(name="model")
def model_of_dspy(provider):
    """Have DSPy use such a model."""
    with dspy.context(lm=served_by(provider)):
        yield


def scripted(*says):
    """Return a model that calls nobody and says this, one after the other."""
    return DummyLM(list(says))


def forecaster(tool=weather, name="weather"):
    """Return an agent with one tool."""
    return dspy.ReAct("question -> answer", tools=[dspy.Tool(tool, name=name)])


class Outlook(dspy.Module):
    """A program of two modules."""

    def __init__(self):
        super().__init__()
        self.topic = dspy.ChainOfThought("question -> topic")
        self.teller = forecaster()

    def forward(self, question):
        """Tell the weather."""
        with optree.tool("window"):
            topic = self.topic(question=question).topic
        return dspy.Prediction(answer=self.teller(question=topic).answer)

    async def aforward(self, question):
        """Tell it where that is awaited."""
        with optree.tool("window"):
            topic = (await self.topic.acall(question=question)).topic
        return dspy.Prediction(answer=(await self.teller.acall(question=topic)).answer)
