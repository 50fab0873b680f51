"""Models of one framework that ask a model of another one: each question is one call, whichever of them is on the wire."""

import os
import tempfile
from importlib.util import find_spec

import pytest

if not all(find_spec(name) for name in ("agno", "dspy", "llama_index", "smolagents", "strands")):
    pytest.skip("five frameworks are tried in an environment of their own: make test-frameworks", allow_module_level=True)
os.environ |= {"DSPY_CACHEDIR": os.environ.get("DSPY_CACHEDIR") or tempfile.mkdtemp(), "LITELLM_LOCAL_MODEL_COST_MAP": "True"}

import dspy
from agno.models.message import Message
from agno.models.response import ModelResponse
from llama_index.core.llms import CompletionResponse
from llama_index.core.llms.callbacks import llm_completion_callback
from smolagents import ChatMessage
from smolagents.models import ChatMessageStreamDelta

import optree
from tests.capture.frameworks import agno_programs, dspy_programs, llamas, smols, strands_programs
from tests.capture.recordings import calls_of
from tests.capture.sdk_calls import CHAT

pytestmark = dspy_programs.MARKS


class AgnoRouter(agno_programs.Scripted):
    """A model of Agno's; *says* has what it asks."""

    def invoke(self, *_args, **_more):
        """Ask another model."""
        return ModelResponse(role="assistant", content=self.says[0]())

    def invoke_stream(self, *_args, **_more):
        """Ask it once the answer is read."""
        yield ModelResponse(role="assistant", content=self.says[0]())


class DspyRouter(dspy.BaseLM):
    """A model of DSPy's."""

    asks = None

    def forward(self, *_args, **_more):
        """Ask another model."""
        choice = dspy.dsp.utils.dotdict({"message": dspy.dsp.utils.dotdict({"content": self.asks()}), "finish_reason": "stop"})
        return dspy.dsp.utils.dotdict({"choices": [choice], "usage": {"prompt_tokens": 3, "completion_tokens": 2}, "model": "router"})


class LlamaRouter(llamas.Own):
    """A model of LlamaIndex's."""

    asks: object = None

    @llm_completion_callback()
    def complete(self, *_args, **_more):
        """Ask another model."""
        return CompletionResponse(text=self.asks(), raw={"usage": {"prompt_tokens": 3, "completion_tokens": 2}})

    @llm_completion_callback()
    def stream_complete(self, *_args, **_more):
        """Ask it once the answer is read."""

        def said():
            text = self.asks()
            yield CompletionResponse(text=text, delta=text)

        return said()


class SmolRouter(smols.Scripted):
    """A model of smolagents'."""

    asks = None

    def generate(self, *_args, **_more):
        """Ask another model."""
        return ChatMessage("assistant", self.asks())

    def generate_stream(self, *_args, **_more):
        """Ask it once the answer is read."""
        yield ChatMessageStreamDelta(self.asks())


class StrandsRouter(strands_programs.Scripted):
    """A model of Strands'."""

    def stream(self, *args, **more):
        """Ask another model, and say what that says."""

        async def asking(_messages):
            return self.asks()

        self.answers = [asking]
        return super().stream(*args, **more)


def asked_of_dspy(asks):
    """Ask a router of DSPy's."""
    router = DspyRouter("router", cache=False)
    router.asks = asks
    return router("Weather?")[0]


def router_of_smolagents(asks):
    """Return a router of smolagents'."""
    router = SmolRouter()
    router.asks = asks
    return router


def asked_of_strands(asks):
    """Ask a router of Strands'."""
    router = StrandsRouter("")
    router.asks = asks
    return strands_programs.ask(strands_programs.agent(router))


ASKED = [ChatMessage("user", "Weather?")]
ROUTERS = {
    "agno": lambda asks: AgnoRouter(says=[asks]).response([Message(role="user", content="Weather?")]).content,
    "dspy": asked_of_dspy,
    "llama_index": lambda asks: LlamaRouter(asks=asks).complete("Weather?").text,
    "smolagents": lambda asks: router_of_smolagents(asks).generate(ASKED).content,
    "strands": asked_of_strands,
}
STREAMS = {
    "agno": lambda asks: (
        one.content for one in AgnoRouter(says=[asks]).response_stream([Message(role="user", content="Weather?")]) if one.content
    ),
    "llama_index": lambda asks: (one.delta for one in LlamaRouter(asks=asks).stream_complete("Weather?")),
    "smolagents": lambda asks: (one.content for one in router_of_smolagents(asks).generate_stream(ASKED)),
}
OTHERS = {
    "agno": lambda _provider: agno_programs.scripted("It rains").response([Message(role="user", content="Weather?")]).content.strip(),
    "agno on the wire": lambda provider: agno_programs.served_by(provider).response([Message(role="user", content="Weather?")]).content,
    "dspy": lambda _provider: dspy_programs.scripted({"answer": "It rains"})("Weather?")[0] and "It rains",
    "dspy on the wire": lambda provider: dspy_programs.served_by(provider)("Weather?")[0],
    "llama_index": lambda _provider: llamas.Own().complete("Weather?").text,
    "llama_index on the wire": lambda provider: llamas.served_by(provider).complete("Weather?").text,
    "smolagents": lambda _provider: smols.Scripted("It rains").generate(ASKED).content,
    "smolagents on the wire": lambda provider: smols.served_by(provider).generate(ASKED).content,
}
NAMES = {"agno": "scripted", "dspy": "dummy", "llama_index": "own", "smolagents": "scripted"}


@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize("router", ROUTERS)
def test_a_model_of_another_framework(recording, provider, router, other):
    """A model that asks one of another framework, on the wire or not, is no second call; what is asked after it is one."""
    provider.says(CHAT)
    with optree.session("lead") as session, optree.turn(user="Weather?"):
        assert "It rains" == ROUTERS[router](lambda: OTHERS[other](provider))
        assert "It rains" == OTHERS[other](provider)
    name = NAMES.get(other, "openai-compatible:gpt-5")
    assert [name, name] == [op.name for op in calls_of(recording)]
    assert 2 == session.totals.llm_requests


@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize("router", STREAMS)
def test_a_stream_that_asks_another_framework(recording, provider, router, other):
    """The same of a model that answers by a stream, while a second such stream is open and what is between them is asked by the program."""
    provider.says(CHAT)
    with optree.session("lead") as session, optree.turn(user="Weather?"):
        for said in STREAMS[router](lambda: OTHERS[other](provider)):
            for again in STREAMS[router](lambda: OTHERS[other](provider)):
                assert ("It rains", "It rains", "It rains") == (said, again, OTHERS[other](provider))
    name = NAMES.get(other, "openai-compatible:gpt-5")
    assert [name] * 3 == [op.name for op in calls_of(recording)]
    assert 3 == session.totals.llm_requests


def test_a_tool_that_a_model_calls(recording):
    """What a tool asks that a model calls by itself is a call of its own, beside that of the model."""

    def asks():
        with optree.tool("weather"):
            return OTHERS["dspy"](None)

    with optree.session("lead") as session, optree.turn(user="Weather?"):
        assert "It rains" == ROUTERS["llama_index"](asks)
    assert {"own", "dummy"} == {op.name for op in calls_of(recording)}
    assert (2, 3) == (session.totals.llm_requests, session.totals.input_tokens)
