"""Programs on Google's ADK, as its documentation writes them, are recorded to the token and the cent: agents, tools, calls."""

import pytest

pytest.importorskip("google.adk", reason="google-adk is tried in an environment of its own: make test-frameworks")

from optree._nodes import Tokens
from tests.capture.documented import EITHER, RESUMED, TREE, Billed
from tests.capture.provider import Reply

pytestmark = pytest.mark.slow
GOOGLE = Billed("google-compatible:gemini-2.5-flash", Tokens(8, 5, 4, 0, 17, 3), 15.02)
WEATHER = ("weather", {"city": "Athens"}, "rain in Athens")
ADK = '''
import asyncio
from google.adk.agents import Agent
from google.adk.runners import InMemoryRunner

def weather(city: str) -> str:
    """Tell the weather."""
    return f"rain in {city}"

forecaster = Agent(name="Forecaster", model="gemini-2.5-flash", description="Tells the weather.", tools=[weather])
root_agent = Agent(name="Triage", model="gemini-2.5-flash", instruction="Hand over.", sub_agents=[forecaster])
events = asyncio.run(InMemoryRunner(root_agent).run_debug("Weather?", quiet=True))
print(events[-1].content.parts[0].text)
'''
_SPENT = {"promptTokenCount": 12, "candidatesTokenCount": 2, "thoughtsTokenCount": 3, "totalTokenCount": 17, "cachedContentTokenCount": 4}


def gemini(part):
    """Return an answer of Gemini's."""
    candidate = {"content": {"role": "model", "parts": [part]}, "finishReason": "STOP", "index": 0}
    return Reply({"candidates": [candidate], "usageMetadata": _SPENT, "modelVersion": "gemini-2.5-flash-001"})


ADK_REPLIES = [
    gemini({"functionCall": {"name": "transfer_to_agent", "args": {"agent_name": "Forecaster"}}}),
    gemini({"functionCall": {"name": "weather", "args": {"city": "Athens"}}}),
    gemini({"text": "It rains"}),
]


@pytest.mark.captured("google-adk", "Runner", "tools", "sub-agents", added=EITHER, checks=TREE)
def test_google_adk(documented):
    """A hand-off and a tool of ADK's: two agents, three calls."""
    assert "It rains\n" == documented.run(ADK, *ADK_REPLIES)
    assert (["Triage", "Triage->Forecaster"], [WEATHER]) == (documented.agents(), documented.tools())
    assert 3 == len(documented.requests())
    assert [GOOGLE] * 3 == documented.bill()


@pytest.mark.captured("google-adk", "Runner", "killed", "resumed", added=EITHER, checks=RESUMED)
def test_google_adk_killed_and_resumed(documented):
    """Such a program that is killed in its last call, and goes on."""
    documented.kill(ADK, *ADK_REPLIES[:2])
    assert [GOOGLE] * 2 == documented.bill(unknown=1)
    assert "It rains\n" == documented.resume(*ADK_REPLIES)
    assert [GOOGLE] * 5 == documented.bill(unknown=1)
    assert [WEATHER] * 2 == documented.tools()
    assert 6 == len(documented.requests())
