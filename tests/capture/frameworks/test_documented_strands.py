"""Programs on Strands Agents, as its documentation writes them, are recorded to the token and the cent: agents, tools, calls."""

import pytest

pytest.importorskip("strands", reason="strands-agents is tried in an environment of its own: make test-frameworks")

from optree._nodes import Tokens
from tests.capture.documented import EITHER, RESUMED, TREE, Billed
from tests.capture.frameworks.documented_strands import AGENTS, GRAPH
from tests.capture.frameworks.strands_programs import ASKS, RAINS, asks

pytestmark = pytest.mark.slow
OPENAI = Billed("openai-compatible:gpt-5", Tokens(8, 5, 4, 0, 17, 3), 60.5)
WEATHER = ("weather", {"city": "Athens"}, "rain in Athens")
FORECASTER = ("forecaster", {"input": "Weather in Athens?"}, "It rains\n")
REPLIES = [asks(("forecaster", {"input": "Weather in Athens?"})), ASKS, RAINS, RAINS]


@pytest.mark.captured("strands-agents", "Agent", "tools", "sub-agents", "streamed", added=EITHER, checks=TREE)
def test_strands(documented):
    """An agent of Strands' that another calls as a tool, with a tool of its own: two agents, four calls."""
    assert "It rains" == documented.run(AGENTS, *REPLIES).strip()
    assert (["triage", "triage->forecaster"], [FORECASTER, WEATHER]) == (documented.agents(), documented.tools())
    assert 4 == len(documented.requests())
    assert [OPENAI] * 4 == documented.bill()
    assert [("Weather?", 4)] == documented.turns()


@pytest.mark.captured("strands-agents", "Agent", "killed", "resumed", added=EITHER, checks=RESUMED)
def test_strands_killed_and_resumed(documented):
    """Such a program that is killed in its last call, and goes on."""
    documented.kill(AGENTS, *REPLIES[:3])
    assert [OPENAI] * 3 == documented.bill(unknown=1)
    assert "It rains" == documented.resume(*REPLIES).strip()
    assert [OPENAI] * 7 == documented.bill(unknown=1)
    assert [FORECASTER, WEATHER] * 2 == documented.tools()
    assert 8 == len(documented.requests())


@pytest.mark.captured("strands-agents", "Graph", "sub-agents", "streamed", added=EITHER, checks=("agents", "requests", "tokens", "price"))
def test_a_graph_of_strands(documented):
    """A graph whose events the program reads: three agents, two calls."""
    assert "research It rains\nreport It rains\n" == documented.run(GRAPH, RAINS)
    assert ["meteo", "meteo->researcher", "meteo->writer"] == documented.agents()
    assert 2 == len(documented.requests())
    assert [OPENAI] * 2 == documented.bill()
