"""Programs on agents' frameworks, as the documentation writes them, are recorded to the token and the cent: agents, tools, calls."""

import signal

import pytest

from optree._nodes import Tokens
from optree._values import decode
from tests.capture.documented import BILL, EITHER, RESUMED, TREE, Billed
from tests.capture.frameworks import claude
from tests.capture.provider import Reply
from tests.capture.sdk_calls import CHAT, CHAT_TOOL, RESPONSE, USAGE

pytestmark = pytest.mark.slow
OPENAI = Billed("openai-compatible:gpt-5", Tokens(8, 5, 4, 0, 17, 3), 60.5)
SKIPPED = "crewai is tried in an environment of its own: make test-frameworks"


def asks(name, arguments, call="call-1"):
    """Return an answer of OpenAI's chat that asks for a tool."""
    called = {"id": call, "type": "function", "function": {"name": name, "arguments": arguments}}
    choice = {"index": 0, "message": {"role": "assistant", "content": None, "tool_calls": [called]}, "finish_reason": "tool_calls"}
    return Reply({"id": "chat-2", "object": "chat.completion", "created": 1, "model": "gpt-5-2026", "choices": [choice], "usage": USAGE})


def responds(name, arguments="{}", call="call-1"):
    """Return an answer of OpenAI's responses that asks for a tool."""
    called = {"type": "function_call", "id": "f", "call_id": call, "name": name, "arguments": arguments, "status": "completed"}
    return Reply(decode(RESPONSE.pieces[0]) | {"output": [called]})


WEATHER = ("weather", {"city": "Athens"}, "rain in Athens")
AGENTS_SDK = '''
import agents

agents.set_tracing_disabled(True)

@agents.function_tool
def weather(city: str) -> str:
    """Tell the weather."""
    return f"rain in {city}"

forecaster = agents.Agent(name="Forecaster", model="gpt-5", instructions="You tell the weather.", tools=[weather])
triage = agents.Agent(name="Triage", model="gpt-5", instructions="Hand off.", handoffs=[forecaster])
print(agents.Runner.run_sync(triage, "Weather?").final_output)
'''
AGENTS_SDK_REPLIES = [responds("transfer_to_forecaster"), responds("weather", '{"city": "Athens"}', "call-2"), RESPONSE]


@pytest.mark.captured("openai-agents", "Runner", "tools", "sub-agents", added=EITHER, checks=TREE)
def test_openai_agents(documented):
    """A hand-off and a tool of OpenAI's Agents SDK: two agents, three calls."""
    pytest.importorskip("agents")
    assert "It rains\n" == documented.run(AGENTS_SDK, *AGENTS_SDK_REPLIES)
    assert (["Triage", "Triage->Forecaster"], [WEATHER]) == (documented.agents(), documented.tools())
    assert 3 == len(documented.requests())
    assert [OPENAI] * 3 == documented.bill()


@pytest.mark.captured("openai-agents", "Runner", "killed", "resumed", added=EITHER, checks=RESUMED)
def test_openai_agents_killed_and_resumed(documented):
    """Such a program that is killed in its last call, and goes on."""
    pytest.importorskip("agents")
    documented.kill(AGENTS_SDK, *AGENTS_SDK_REPLIES[:2])
    assert [OPENAI] * 2 == documented.bill(unknown=1)
    assert "It rains\n" == documented.resume(*AGENTS_SDK_REPLIES)
    assert [OPENAI] * 5 == documented.bill(unknown=1)
    assert [WEATHER] * 2 == documented.tools()
    assert 6 == len(documented.requests())


LANGGRAPH = '''
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition

@tool
def weather(city: str) -> str:
    """Tell the weather."""
    return f"rain in {city}"

model = ChatOpenAI(model="gpt-5").bind_tools([weather])

def agent(state: MessagesState):
    return {"messages": [model.invoke(state["messages"])]}

builder = StateGraph(MessagesState)
builder.add_node("agent", agent)
builder.add_node("tools", ToolNode([weather]))
builder.add_edge(START, "agent")
builder.add_conditional_edges("agent", tools_condition)
builder.add_edge("tools", "agent")
forecaster = builder.compile(name="forecaster")

def ask(state: MessagesState):
    return {"messages": forecaster.invoke(state)["messages"][-1:]}

lead = StateGraph(MessagesState)
lead.add_node("ask", ask)
lead.add_edge(START, "ask")
print(lead.compile(name="lead").invoke({"messages": [("user", "Weather?")]})["messages"][-1].content)
'''
LANGCHAIN = """
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_openai import ChatOpenAI

chain = ChatPromptTemplate.from_template("Weather in {city}?") | ChatOpenAI(model="gpt-5") | StrOutputParser()
print(chain.invoke({"city": "Athens"}))
"""


@pytest.mark.captured("langchain-core", "chains", "plain", added=EITHER, checks=BILL)
def test_langchain(documented):
    """A chain of LangChain's: one call."""
    pytest.importorskip("langchain_openai")
    assert "It rains\n" == documented.run(LANGCHAIN, CHAT)
    assert "Weather in Athens?" == documented.requests()[0]["messages"][0]["content"]
    assert ([OPENAI], "It rains") == (documented.bill(), documented.said())


@pytest.mark.captured("langgraph", "graphs", "tools", "sub-agents", added=EITHER, checks=TREE)
def test_langgraph(documented):
    """A graph of LangGraph's with a tool, within another one: two agents, two calls."""
    pytest.importorskip("langgraph")
    assert "It rains\n" == documented.run(LANGGRAPH, CHAT_TOOL, CHAT)
    assert (["lead", "lead->forecaster"], [WEATHER]) == (documented.agents(), documented.tools())
    assert 2 == len(documented.requests())
    assert [OPENAI] * 2 == documented.bill()


@pytest.mark.captured("langgraph", "graphs", "killed", "resumed", added=EITHER, checks=RESUMED)
def test_langgraph_killed_and_resumed(documented):
    """Such a program that is killed in its last call, and goes on."""
    pytest.importorskip("langgraph")
    documented.kill(LANGGRAPH, CHAT_TOOL)
    assert [OPENAI] == documented.bill(unknown=1)
    assert "It rains\n" == documented.resume(CHAT_TOOL, CHAT)
    assert [OPENAI] * 3 == documented.bill(unknown=1)
    assert [WEATHER] * 2 == documented.tools()
    assert 4 == len(documented.requests())


PYDANTIC_AI = '''
from pydantic_ai import Agent, RunContext

forecaster = Agent("openai-chat:gpt-5")

@forecaster.tool_plain
def weather(city: str) -> str:
    """Tell the weather."""
    return f"rain in {city}"

lead = Agent("openai-chat:gpt-5", instructions="Ask the forecaster.")

@lead.tool
async def forecast(context: RunContext, question: str) -> str:
    """Ask the forecaster."""
    return (await forecaster.run(question, usage=context.usage)).output

print(lead.run_sync("Weather?").output)
'''
PYDANTIC_AI_REPLIES = [asks("forecast", '{"question": "Rain?"}'), asks("weather", '{"city": "Athens"}', "call-2"), CHAT, CHAT]


@pytest.mark.captured("pydantic-ai-slim", "agents", "tools", "sub-agents", added=EITHER, checks=TREE)
def test_pydantic_ai(documented):
    """An agent of Pydantic AI's that another one asks by a tool: two agents, four calls."""
    pytest.importorskip("pydantic_ai")
    assert "It rains\n" == documented.run(PYDANTIC_AI, *PYDANTIC_AI_REPLIES)
    assert ["lead", "lead->forecaster"] == documented.agents()
    assert [("forecast", {"question": "Rain?"}, "It rains"), WEATHER] == documented.tools()
    assert 4 == len(documented.requests())
    assert [OPENAI] * 4 == documented.bill()


@pytest.mark.captured("pydantic-ai-slim", "agents", "killed", "resumed", added=EITHER, checks=RESUMED)
def test_pydantic_ai_killed_and_resumed(documented):
    """Such a program that is killed in its last call, and goes on."""
    pytest.importorskip("pydantic_ai")
    documented.kill(PYDANTIC_AI, *PYDANTIC_AI_REPLIES[:3])
    assert [OPENAI] * 3 == documented.bill(unknown=1)
    assert "It rains\n" == documented.resume(*PYDANTIC_AI_REPLIES)
    assert [OPENAI] * 7 == documented.bill(unknown=1)
    assert [("forecast", {"question": "Rain?"}, "It rains"), WEATHER] * 2 == documented.tools()
    assert 8 == len(documented.requests())


CREWAI = '''
from crewai import LLM, Agent, Crew, Task
from crewai.tools import tool

@tool("weather")
def weather(city: str) -> str:
    """Tell the weather."""
    return f"rain in {city}"

llm = LLM(model="openai/gpt-5")
forecaster = Agent(role="forecaster", goal="Tell the weather", backstory="You look out", llm=llm, tools=[weather])
task = Task(description="Weather?", expected_output="a sentence", agent=forecaster)
print(Crew(name="meteo", agents=[forecaster], tasks=[task]).kickoff().raw)
'''


@pytest.mark.captured("crewai", "crews", "tools", "sub-agents", added=EITHER, checks=TREE)
def test_crewai(documented):
    """A crew of CrewAI's with a task and a tool: the crew, its agent, two calls."""
    pytest.importorskip("crewai", reason=SKIPPED)
    assert "It rains\n" == documented.run(CREWAI, CHAT_TOOL, CHAT)
    assert (["meteo", "meteo->forecaster"], [WEATHER]) == (documented.agents(), documented.tools())
    assert 2 == len(documented.requests())
    assert [OPENAI] * 2 == documented.bill()


@pytest.mark.captured("crewai", "crews", "killed", "resumed", added=EITHER, checks=RESUMED)
def test_crewai_killed_and_resumed(documented):
    """Such a program that is killed in its last call, and goes on."""
    pytest.importorskip("crewai", reason=SKIPPED)
    documented.kill(CREWAI, CHAT_TOOL)
    assert [OPENAI] == documented.bill(unknown=1)
    assert "It rains\n" == documented.resume(CHAT_TOOL, CHAT)
    assert [OPENAI] * 3 == documented.bill(unknown=1)
    assert [WEATHER] * 2 == documented.tools()
    assert 4 == len(documented.requests())


CLAUDE = """
import asyncio
import sys
from claude_agent_sdk import ClaudeAgentOptions, query

async def main():
    async for message in query(prompt="Weather?", options=ClaudeAgentOptions(cli_path=sys.argv[1])):
        print(type(message).__name__, getattr(message, "result", ""))

asyncio.run(main())
"""


@pytest.mark.captured("claude-agent-sdk", "query", "tools", "sub-agents", added=EITHER, checks=("agents", "tools", "tokens", "price"))
def test_claude_agent_sdk(documented, child):
    """A query with a sub-agent and its tool, by a child in place of Claude Code: two agents, three calls, the cost that it tells."""
    pytest.importorskip("claude_agent_sdk")
    child.does(
        claude.ASKED, claude.INIT, claude.answer("m-1", claude.calls("Task", "task-1", prompt="look", subagent_type="scout")),
        claude.answer("m-2", claude.calls("weather", "call-2", city="Athens"), within="task-1"),
        claude.returned("rain in Athens", "call-2", within="task-1"), claude.returned([claude.said("rain")], "task-1"),
        claude.answer("m-3", claude.said("It rains")), claude.told(3, 0.02, 90),
    )  # fmt: skip
    documented.program.append(str(child.path))
    assert "ResultMessage It rains" == documented.run(CLAUDE).splitlines()[-1]
    assert (["claude-code", "claude-code->scout"], [WEATHER]) == (documented.agents(), documented.tools())
    assert [claude.call_of(1)] * 3 == [op.accounting[0].tokens for op in documented.calls()]
    totals = documented.saved.session.totals
    assert (3, 90, 0.02, 0) == (totals.llm_requests, totals.output_tokens, round(totals.cost_usd, 9), totals.unknown_costs)


@pytest.mark.captured("claude-agent-sdk", "query", "killed", "resumed", added=EITHER, checks=("agents", "tools", "tokens", "price"))
def test_claude_agent_sdk_killed_and_resumed(documented, child):
    """Such a program that is killed in a tool, and goes on: what its call cost is unknown, as its result would have told all tokens."""
    pytest.importorskip("claude_agent_sdk")
    documented.program.append(str(child.path))
    asked = [claude.ASKED, claude.INIT, claude.answer("m-1", claude.calls("weather", city="Athens"))]
    child.does(*asked, {"work": 1})
    process = documented.start(CLAUDE)
    assert ["SystemMessage", "AssistantMessage"] == [process.stdout.readline().strip() for _ in range(2)]
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert [claude.call_of(1)] == [op.accounting[0].tokens for op in documented.calls()]
    child.does(*asked, claude.returned("rain in Athens"), claude.answer("m-2", claude.said("It rains")), claude.told(2, 0.02, 90))
    assert "ResultMessage It rains" == documented.resume().splitlines()[-1]
    assert [claude.call_of(1)] * 3 == [op.accounting[0].tokens for op in documented.calls()]
    assert (["claude-code"], [(*WEATHER[:2], None), WEATHER]) == (documented.agents(), documented.tools())
    totals = documented.saved.session.totals
    assert (3, 0.02, 1) == (totals.llm_requests, round(totals.cost_usd, 9), totals.unknown_costs)
