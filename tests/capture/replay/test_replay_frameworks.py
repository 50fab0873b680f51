"""Tools of frameworks and behind MCP get what was recorded, and do not run: a framework goes on as it did, with its tools gone."""

import asyncio
import dataclasses

import pytest

pytest.importorskip("langgraph", reason="the frameworks are not there for this Python")

import agents
import langchain_core.tools
from agents.run_internal import tool_execution
from langchain_core.documents import Document
from langchain_core.messages import ToolMessage
from langchain_core.retrievers import BaseRetriever
from mcp import Client, MCPError
from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from msgspec.structs import replace
from pydantic_ai import Agent, ModelRetry, ToolReturn
from pydantic_ai.tool_manager import ToolManager

import optree
from optree._capture import uninstrument
from optree._capture.replay import RAN_FOR, WHY
from optree._nodes import REPLAY_OF
from optree._tree import walk_ops
from optree._values import decode
from optree.errors import OptreeError
from optree.testing import capture, replay, shape
from tests.capture.conftest import outcome, record, twice
from tests.capture.frameworks import test_langchain as langchain
from tests.capture.frameworks import test_openai_agents as openai_agents
from tests.capture.frameworks import test_pydantic_ai as pydantic_ai
from tests.capture.frameworks.test_langchain import model as langchain_model  # noqa: F401 - a fixture
from tests.capture.frameworks.test_openai_agents import traced  # noqa: F401 - a fixture
from tests.capture.frameworks.test_pydantic_ai import model as pydantic_model  # noqa: F401 - a fixture
from tests.capture.sdk_calls import CHAT, CHAT_TOOL

pytestmark = pytest.mark.usefixtures("hooked")


@dataclasses.dataclass
class Weather:
    """What JSON does not hold as it is."""

    rain: int


class Told(Exception):  # noqa: N818 - as programs have it
    """A tool's own failure."""


def tools(recording):
    """Return the calls of tools that were recorded."""
    return [op for _, _, op in walk_ops(recording.tree) if op.kind == "tool"]


def told(recording):
    """Return what is the same each time of a recording."""
    free = {"cost_usd": 0.0, "known_costs": 0, "unknown_costs": 0}
    ops = [(op.name, op.status, op.error, op.attributes.get("error.type")) for op in tools(recording)]
    answers = [op.response and decode(op.response.payload) for op in tools(recording)]
    return shape(recording.tree), replace(recording.tree.session.totals, **free), ops, answers


def given(recording):
    """Return for each call of a tool whether it got what was recorded, or ran."""
    return [(op.name, "given" if REPLAY_OF in op.attributes else "ran" if RAN_FOR in op.attributes else None) for op in tools(recording)]


RESULTS = {
    "text": lambda: "rain",
    "data": lambda: {"rain": 3},
    "items": lambda: ["a", 1],
    "nothing": lambda: None,
    "blocks": lambda: [{"type": "text", "text": "rain"}],
}


def raising(error):
    """Return what raises."""

    def run():
        raise error

    return run


FAILED = {"failure": raising(ValueError("no thermometer")), "own failure": raising(Told("no"))}


def made(do, ran, *, is_async=False, **more):
    """Return a tool of LangChain's that notes that it ran."""

    def run(city: str):
        """Tell the weather."""
        ran.append(city)
        return do()

    async def arun(city: str):
        """Do the same."""
        return run(city)

    return langchain_core.tools.StructuredTool.from_function(run, arun if is_async else None, name="weather", **more)


@pytest.mark.parametrize("case", [*RESULTS, *FAILED, "told", "message"])
@pytest.mark.parametrize("is_async", [False, True], ids=["run", "arun"])
def test_langchain(provider, langchain_model, case, is_async):  # noqa: F811
    """A graph with a tool goes on as it did, be the tool's result data or a failure, raised or told to the model."""
    ran = []
    do = (RESULTS | FAILED).get(case) or raising(langchain_core.tools.ToolException("no such city"))
    if case == "message":
        do = lambda: ToolMessage("rain", tool_call_id="call-1")  # noqa: E731
    tool = made(do, ran, is_async=is_async, handle_tool_error=case == "told")
    graph = langchain.forecaster(langchain_model, tool)

    def run():
        asked = {"messages": [("user", "Weather?")]}
        found = graph.invoke(asked) if not is_async else asyncio.run(graph.ainvoke(asked))
        return [(one.type, one.content, getattr(one, "status", None)) for one in found["messages"]]

    expected, found, recorded, again = twice(provider, [CHAT_TOOL, CHAT], run)
    assert expected == found
    assert 1 == len(ran)
    assert told(recorded) == told(again)
    assert [("weather", "given")] == given(again)


@pytest.mark.parametrize("case", ["object", "artifact"])
def test_langchain_of_what_cannot_be_given(provider, langchain_model, case):  # noqa: F811
    """A tool of LangChain's whose result is an object, or which has an artifact, runs again."""
    ran = []
    if case == "artifact":
        tool = made(lambda: ("rain", Weather(3)), ran, response_format="content_and_artifact")
        expected, found, _, again = twice(provider, [CHAT_TOOL, CHAT], lambda: langchain.ask(langchain.forecaster(langchain_model, tool)))
    else:
        tool = made(lambda: Weather(3), ran)

        def run():
            with optree.session("agent"):
                return tool.invoke({"city": "Athens"})

        expected, found, _, again = twice(provider, [CHAT], run)
    assert expected == found
    assert ([("weather", "ran")], 2) == (given(again), len(ran))


def invoked(tool):
    """Call a tool with other arguments, in a session."""
    with optree.session("agent"):
        return tool.invoke({"city": "Berlin"})


def test_langchain_with_other_arguments():
    """A call with other arguments does not run, and ends the graph."""
    ran = []
    tool = made(lambda: "rain", ran)
    with capture() as recorded, optree.session("agent"):
        tool.invoke({"city": "Athens"})
    with pytest.raises(AssertionError, match=r'arguments\.city is "Berlin", not "Athens"'), replay(recorded.tree), capture():
        assert OptreeError == outcome(lambda: invoked(tool))[0]
    assert ["Athens"] == ran


@pytest.mark.parametrize("case", [*RESULTS, *FAILED, "retry"])
def test_pydantic_ai(provider, pydantic_model, case):  # noqa: F811
    """An agent with a tool goes on as it did, with its own count of retries."""
    ran = []
    do = (RESULTS | FAILED).get(case) or raising(ModelRetry("another city"))

    def run():
        agent = Agent(pydantic_model, name="forecaster", retries=1)

        @agent.tool_plain
        def weather(city: str):
            """Tell the weather."""
            ran.append(city)
            return do()

        return pydantic_ai.ask(pydantic_model, agent)

    replies = [pydantic_ai.ASKS, pydantic_ai.ASKS, CHAT] if case == "retry" else [pydantic_ai.ASKS, CHAT]
    expected, found, recorded, again = twice(provider, replies, run)
    assert expected == found
    assert told(recorded) == told(again)
    assert [("weather", "given")] * len(ran) == given(again)


@pytest.mark.parametrize("result", [Weather(3), ToolReturn("rain", metadata={"rain": 3})], ids=["object", "with metadata"])
def test_pydantic_ai_of_what_cannot_be_given(provider, pydantic_model, result):  # noqa: F811
    """A tool whose result is an object, or has more to it than its value, runs again."""
    ran = []

    def run():
        agent = Agent(pydantic_model, name="forecaster")

        @agent.tool_plain
        def weather(city: str):
            """Tell the weather."""
            ran.append(city)
            return result

        return pydantic_ai.ask(pydantic_model, agent)

    expected, found, _, again = twice(provider, [pydantic_ai.ASKS, CHAT], run)
    assert expected == found
    assert ([("weather", "ran")], 2) == (given(again), len(ran))
    assert "cannot be made again" in tools(again)[0].attributes[WHY]


@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize("case", [*(name for name in RESULTS if name != "nothing"), *FAILED, "raised"])
def test_openai_agents(provider, case):
    """An agent with a function tool goes on as it did, be its failure told to the model, as the SDK does, or raised."""
    ran = []
    do = (RESULTS | FAILED).get(case) or raising(Told("no"))

    def weather(city: str):
        """Tell the weather."""
        ran.append(city)
        return do()

    more = {"failure_error_function": None} if case == "raised" else {}
    tool = agents.function_tool(weather, **more)

    def run():
        return openai_agents.run(openai_agents.ask(agents.Agent(name="Forecaster", model="gpt-5", tools=[tool])))

    expected, found, recorded, again = twice(provider, [openai_agents.ASKS, openai_agents.RAINS], run)
    assert expected == found
    assert 1 == len(ran)
    assert told(recorded) == told(again)
    assert [("weather", "given")] == given(again)


@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize("is_told", [True, False], ids=["object", "not told"])
def test_openai_agents_of_what_cannot_be_given(provider, is_told):
    """A function tool whose result is an object runs again, and so does one whose arguments the SDK was told not to tell."""
    ran = []

    def weather(city: str):
        """Tell the weather."""
        ran.append(city)
        return Weather(3) if is_told else "rain"

    agent = agents.Agent(name="Forecaster", model="gpt-5", tools=[agents.function_tool(weather)])
    more = {"run_config": agents.RunConfig(trace_include_sensitive_data=is_told)}
    expected, found, _, again = twice(
        provider, [openai_agents.ASKS, openai_agents.RAINS], lambda: openai_agents.run(openai_agents.ask(agent, **more))
    )
    assert (expected, 2) == (found, len(ran))
    why = "cannot be made again" if is_told else "the arguments of weather were not recorded"
    assert why in tools(again)[0].attributes[WHY]


server = MCPServer("library", log_level="CRITICAL")
looked = []


@optree.tool
def shelf(word):
    """Be a tool of the program's own."""
    return word.upper()


@server.tool(structured_output=False)
def lend(word: str) -> str:
    """Return what that returns."""
    return shelf(word)


@server.tool()
def look(word: str) -> str:
    """Return a word in capitals."""
    looked.append(word)
    with optree.tool("shelf") as op:
        op.request(word=word)
        return word.upper()


@server.tool(structured_output=False)
def say(word: str) -> str:
    """Return it as text alone."""
    looked.append(word)
    return word


@server.tool()
def refuse(word: str) -> str:
    """Raise what the client is to be told."""
    looked.append(word)
    raise ToolError(word)


@server.tool()
def break_off(word: str) -> str:
    """Answer by an error of the protocol."""
    looked.append(word)
    raise MCPError(code=-32042, message=word)


@pytest.mark.parametrize("tool", ["look", "say", "refuse", "break_off", "nosuch"])
def test_mcp(provider, tool):
    """A call through MCP is not sent: the client gets the server's result, or the error of the protocol."""

    async def asking():
        async with Client(server) as client:
            with optree.session("lead"), optree.turn(user="tides"):
                try:
                    return (await client.call_tool(tool, {"word": "401 Unauthorized"})).model_dump(exclude={"meta"})
                except MCPError as error:
                    return error.code, error.message

    looked.clear()
    expected, found, recorded, again = twice(provider, [CHAT], lambda: asyncio.run(asking()))
    assert expected == found
    assert ([] if tool == "nosuch" else ["401 Unauthorized"]) == looked
    assert told(recorded)[2][0] == told(again)[2][0]
    assert [(f"library:{tool}", "given")] == given(again)


def test_mcp_within_a_framework(provider, pydantic_model):  # noqa: F811
    """A framework's tool that calls another through MCP gets what was recorded, and calls nobody."""
    looked.clear()

    def run():
        agent = Agent(pydantic_model, name="forecaster")

        @agent.tool_plain
        async def weather(city: str):
            """Tell the weather."""
            async with Client(server) as client:
                return (await client.call_tool("say", {"word": city})).content[0].text

        return pydantic_ai.ask(pydantic_model, agent)

    expected, found, _, again = twice(provider, [pydantic_ai.ASKS, CHAT], run)
    assert (expected, ["Athens"]) == (found, looked)
    assert [("weather", "ran"), ("library:say", "given")] == given(again)


def call_tool(name, arguments):
    """Call a tool through MCP, and return its text."""

    async def asking():
        async with Client(server) as client:
            return (await client.call_tool(name, arguments)).content[0].text

    return asyncio.run(asking())


def test_what_a_server_called_is_given_with_its_result():
    """What was called behind MCP is not there for a call of the program's own: it was called once."""
    _, recorded = record(lambda: call_tool("lend", {"word": "tides"}))
    assert ["library:lend", "shelf"] == [op.name for op in tools(recorded)]
    with pytest.raises(AssertionError, match=r"^1\.2: session test-1 has no more calls of the tool shelf$"), replay(recorded.tree):
        found, again = record(lambda: (call_tool("lend", {"word": "tides"}), outcome(lambda: shelf("tides"))[0]))
    assert ("TIDES", OptreeError) == found
    assert [("library:lend", "given"), ("shelf", None)] == given(again)


def test_a_fork_within_what_a_server_did():
    """Where a run is forked at a call behind MCP, the server's tool runs, and that call is made anew."""
    _, recorded = record(lambda: call_tool("lend", {"word": "tides"}))
    with replay(recorded.tree, at="1.2"):
        found, again = record(lambda: call_tool("lend", {"word": "tides"}))
    assert ("TIDES", [("library:lend", "ran"), ("shelf", None)]) == (found, given(again))


def test_hooks_are_taken_out():
    """What stands in the place of frameworks' functions for a replay is gone with the other hooks."""
    owners = [
        (langchain_core.tools.BaseTool, "run"),
        (langchain_core.tools.BaseTool, "arun"),
        (ToolManager, "_raw_execute"),
        (tool_execution, "_invoke_function_tool_with_metadata"),
    ]
    hooked = [vars(owner)[name] for owner, name in owners]
    uninstrument()
    assert [one.__wrapped__ for one in hooked] == [vars(owner)[name] for owner, name in owners]


def test_a_retriever_of_langchain_runs():
    """A retriever runs again in a replay, which is noted."""

    class Shelf(BaseRetriever):
        def _get_relevant_documents(self, query, *, run_manager):  # noqa: ARG002 - as it is called
            return [Document(f"about {query}")]

    def ask():
        with capture() as recording, optree.session("lead"):
            Shelf().invoke("rain")
        return recording

    recorded = ask()
    with replay(recorded.tree):
        [op] = tools(ask())
    assert ("test-1:1.1", "retrievers of LangChain are not replayed") == (op.attributes[RAN_FOR], op.attributes[WHY])
