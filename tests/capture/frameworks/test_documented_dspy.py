"""Programs on DSPy, as its documentation writes them, are recorded to the token and the cent: agents, tools, calls."""

from importlib.util import find_spec

import pytest

from optree._nodes import Tokens
from tests.capture.documented import BILL, EITHER, RESUMED, TREE, Billed
from tests.capture.frameworks.documented_dspy import ANSWER, FINISHES, LOOKS, PREDICT, REACT

if find_spec("dspy") is None:
    pytest.skip("dspy is tried in an environment of its own: make test-frameworks", allow_module_level=True)
pytestmark = pytest.mark.slow
OPENAI = Billed("openai-compatible:gpt-5", Tokens(8, 5, 4, 0, 17, 3), 60.5)
WEATHER = ("weather", {"city": "Athens"}, "rain in Athens")
REPLIES = [LOOKS, FINISHES, ANSWER]
AGENTS = ["Outlook", "Outlook->forecaster"]


@pytest.fixture(autouse=True)
def _cached_here(documented, tmp_path):
    """Have DSPy's cache in the test's folder."""
    documented.line.env |= {"DSPY_CACHEDIR": str(tmp_path / "cache")}


@pytest.mark.captured("dspy", "ChainOfThought, by LiteLLM", "plain", added=EITHER, checks=BILL)
def test_dspy(documented):
    """A program of one module: one call."""
    assert "It rains" == documented.run(PREDICT, ANSWER).partition("\n")[0]  # of a model that it has no price for LiteLLM says more
    assert (["ChainOfThought"], [("Weather?", 1)]) == (documented.agents(), documented.turns())
    assert 1 == len(documented.requests())
    assert [OPENAI] == documented.bill()


@pytest.mark.captured("dspy", "ReAct", "tools", "sub-agents", added=EITHER, checks=TREE)
def test_dspy_react(documented):
    """An agent with a tool in a program: two agents, three calls."""
    assert "It rains\n" == documented.run(REACT, *REPLIES)
    assert (AGENTS, [WEATHER]) == (documented.agents(), documented.tools())
    assert 3 == len(documented.requests())
    assert [OPENAI] * 3 == documented.bill()


@pytest.mark.captured("dspy", "ReAct", "killed", "resumed", added=EITHER, checks=RESUMED)
def test_dspy_killed_and_resumed(documented):
    """Such a program that is killed in its last call, and goes on."""
    documented.kill(REACT, *REPLIES[:2])
    assert [OPENAI] * 2 == documented.bill(unknown=1)
    assert "It rains\n" == documented.resume(*REPLIES)
    assert [OPENAI] * 5 == documented.bill(unknown=1)
    assert [WEATHER] * 2 == documented.tools()
    assert 6 == len(documented.requests())


@pytest.mark.captured("dspy", "ReAct, with DSPy's cache", "killed", "resumed", added=EITHER, checks=("calls", "tokens", "price"))
def test_what_is_cached_is_not_paid_again(documented):
    """Such a program with DSPy's cache gets what was answered before from that: for nothing, and each as an op that says so."""
    source = REACT.replace(", cache=False", "")
    documented.kill(source, *REPLIES[:2])
    assert "It rains\n" == documented.resume(ANSWER)
    assert 4 == len(documented.provider.requests)
    paid = [bill for bill in documented.bill(unknown=1) if bill.cost]
    assert [OPENAI] * 3 == paid
    cached = [op for op in documented.calls() if op.name == "openai:gpt-5"]
    assert [["from the cache"]] * 2 == [[log.message for log in op.logs] for op in cached]
