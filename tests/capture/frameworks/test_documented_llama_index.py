"""Programs on LlamaIndex, as its documentation writes them, are recorded to the token and the cent: agents, tools, calls."""

from importlib.util import find_spec

import pytest

if find_spec("llama_index") is None:
    pytest.skip("llama-index-core is tried in an environment of its own: make test-frameworks", allow_module_level=True)

from optree._nodes import Tokens
from tests.capture.documented import BILL, EITHER, RESUMED, TREE, Billed
from tests.capture.frameworks.llamas import TOOL_EVENTS, asks_for
from tests.capture.sdk_calls import CHAT, CHAT_EVENTS

pytestmark = pytest.mark.slow
OPENAI = Billed("openai-compatible:gpt-5", Tokens(8, 5, 4, 0, 17, 3), 60.5)
WEATHER = ("weather", {"city": "Athens"}, "rain in Athens")
AGENT = '''
import asyncio
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.llms.openai import OpenAI

def weather(city: str) -> str:
    """Tell the weather."""
    return f"rain in {city}"

agent = FunctionAgent(
    tools=[weather],
    llm=OpenAI(model="gpt-5"),
    system_prompt="You are a helpful assistant that can tell the weather.",
)

async def main():
    response = await agent.run("Weather?")
    print(str(response))

if __name__ == "__main__":
    asyncio.run(main())
'''
TEAM = '''
import asyncio
from llama_index.core.agent.workflow import AgentStream, AgentWorkflow, FunctionAgent
from llama_index.llms.openai import OpenAI

llm = OpenAI(model="gpt-5")

async def weather(city: str) -> str:
    """Tell the weather."""
    return f"rain in {city}"

triage = FunctionAgent(
    name="TriageAgent",
    description="Finds out who knows.",
    system_prompt="You hand over to the ForecastAgent.",
    llm=llm,
    can_handoff_to=["ForecastAgent"],
)
forecaster = FunctionAgent(
    name="ForecastAgent",
    description="Tells the weather.",
    system_prompt="You tell the weather.",
    llm=llm,
    tools=[weather],
)

async def main():
    workflow = AgentWorkflow(agents=[triage, forecaster], root_agent=triage.name)
    handler = workflow.run(user_msg="Weather?")
    async for event in handler.stream_events():
        if isinstance(event, AgentStream):
            print(event.delta, end="", flush=True)
    print()
    await handler

asyncio.run(main())
'''
HAND_OFF = ("handoff", {"to_agent": "ForecastAgent", "reason": "It knows"})
TEAM_REPLIES = [asks_for(("handoff", '{"to_agent": "ForecastAgent", "reason": "It knows"}')), TOOL_EVENTS, CHAT_EVENTS]
QUERY = """
from llama_index.core import Document, MockEmbedding, Settings, VectorStoreIndex
from llama_index.llms.openai import OpenAI

Settings.llm = OpenAI(model="gpt-5")
Settings.embed_model = MockEmbedding(embed_dim=8)

index = VectorStoreIndex.from_documents([Document(text="Athens is rainy")])
query_engine = index.as_query_engine()
response = query_engine.query("Weather?")
print(response)
"""


@pytest.mark.captured("llama-index-core", "FunctionAgent", "tools", "streamed", added=EITHER, checks=TREE)
def test_an_agent(documented):
    """An agent with a tool: two calls, in a session of the script's."""
    assert "It rains\n" == documented.run(AGENT, TOOL_EVENTS, CHAT_EVENTS)
    assert (["agent"], [WEATHER], [("Weather?", 3)]) == (documented.agents(), documented.tools(), documented.turns())
    assert 2 == len(documented.requests())
    assert [OPENAI] * 2 == documented.bill()


@pytest.mark.captured("llama-index-core", "AgentWorkflow", "tools", "sub-agents", "streamed", added=EITHER, checks=TREE)
def test_a_team(documented):
    """A hand-off and a tool: two agents, three calls."""
    assert "It rains\n" == documented.run(TEAM, *TEAM_REPLIES)
    assert ["TriageAgent", "TriageAgent->ForecastAgent"] == documented.agents()
    [handed, told] = documented.tools()
    assert (HAND_OFF, WEATHER) == (handed[:2], told)
    assert 3 == len(documented.requests())
    assert [OPENAI] * 3 == documented.bill()


@pytest.mark.captured("llama-index-core", "AgentWorkflow", "killed", "resumed", added=EITHER, checks=RESUMED)
def test_a_team_that_is_killed_and_goes_on(documented):
    """Such a program that is killed in its last call, and goes on."""
    documented.kill(TEAM, *TEAM_REPLIES[:2])
    assert [OPENAI] * 2 == documented.bill(unknown=1)
    assert "It rains\n" == documented.resume(*TEAM_REPLIES)
    assert [OPENAI] * 5 == documented.bill(unknown=1)
    assert [HAND_OFF, WEATHER[:2]] * 2 == [tool[:2] for tool in documented.tools()]
    assert 6 == len(documented.requests())


@pytest.mark.captured("llama-index-core", "query engines", "plain", added=EITHER, checks=BILL)
def test_a_query(documented):
    """A question to an index: what was retrieved, and one call."""
    assert "It rains\n" == documented.run(QUERY, CHAT)
    assert [("Weather?", 2)] == documented.turns()
    assert ["VectorIndexRetriever"] == [name for name, _, _ in documented.tools()]
    assert "Athens is rainy" in documented.requests()[0]["messages"][1]["content"]
    assert ([OPENAI], "It rains") == (documented.bill(), documented.said())
