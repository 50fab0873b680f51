"""Tools of Strands are ops with arguments and results, each in its place: at once, one by one, in the background, behind MCP."""

import asyncio
import sys
import threading
from importlib.util import find_spec

import pytest

if find_spec("strands") is None:
    pytest.skip("strands-agents is tried in an environment of its own: make test-frameworks", allow_module_level=True)

from mcp import StdioServerParameters, stdio_client
from msgspec import UNSET
from strands import ToolContext, tool
from strands.hooks import (
    AfterToolCallEvent,
    BeforeToolCallEvent,
)
from strands.middleware import ExecuteToolStage
from strands.tools.executors import ConcurrentToolExecutor, SequentialToolExecutor
from strands.tools.mcp import MCPClient

import optree
from optree._capture.calls.program import program_name
from optree._values import decode
from tests.capture.conftest import CREDENTIALS, KEY, credentials_in
from tests.capture.frameworks.strands_programs import ASKS, CALL, RAINS, Scripted, agent, ask, asks, broken, outcome_of, served_by, weather
from tests.capture.recordings import calls_of, ops_of


def test_tools_have_arguments_and_results(recording, provider):
    """A tool is an op of the agent's, with arguments and result; what the program records in it is within it."""
    provider.says(ASKS, RAINS)
    ask(agent(served_by(provider), weather))
    [op], [inner] = ops_of(recording, "weather"), ops_of(recording, "thermometer")
    assert ({"city": "Athens"}, "rain in Athens", "ok") == (decode(op.request.payload), decode(op.response.payload), op.status)
    assert (["looking at Athens"], op.path) == ([log.message for log in op.logs], inner.parent_op)


@pytest.mark.captured("strands-agents", "Agent", "tools", "failed", added="one line", checks="tools")
def test_a_tool_that_raises_failed(recording, provider):
    """A tool that raises is failed with its exception and class; the model is told, and the agent goes on."""
    provider.says(ASKS, RAINS)
    assert "It rains" == ask(agent(served_by(provider), broken))
    [op] = ops_of(recording, "weather")
    assert ("failed", "ConnectionError: no thermometer in Athens", "network") == (op.status, op.error, op.attributes["error.type"])
    assert ("Error: ConnectionError - no thermometer in Athens", "ok") == (decode(op.response.payload), recording.tree.session.status)


def test_tools_that_say_that_they_failed(recording):
    """A result that is an error, and a tool that is not there, are failed by what is said of them; other results are recorded whole."""

    @tool
    def limited() -> dict:
        """Refuse."""
        return {"status": "error", "content": [{"text": "rate limit exceeded"}]}

    @tool
    def table() -> dict:
        """Give a table."""
        return {"status": "success", "content": [{"text": "two"}, {"json": {"rain": 2}}]}

    ask(agent(Scripted([("limited", {}), ("table", {}), ("nowhere", {})], "It rains"), limited, table))
    [refused], [whole], [unknown] = ops_of(recording, "limited"), ops_of(recording, "table"), ops_of(recording, "nowhere")
    assert ("failed", "tool_error: rate limit exceeded", "rate_limit") == (refused.status, refused.error, refused.attributes["error.type"])
    assert ("ok", [{"text": "two"}, {"json": {"rain": 2}}]) == (whole.status, decode(whole.response.payload))
    assert ("failed", "Exception: Unknown tool: nowhere") == (unknown.status, unknown.error)


def test_a_tool_with_messages(recording):
    """A tool's argument that is named as the messages of a call are is an argument."""

    @tool
    def post(messages: list) -> str:
        """Post them."""
        return f"posted {len(messages)}"

    ask(agent(Scripted([("post", {"messages": ["rain"]})], "It rains"), post))
    [op] = ops_of(recording, "post")
    assert ({"arguments": {"messages": ["rain"]}}, "posted 1") == (decode(op.request.payload), decode(op.response.payload))


@pytest.mark.captured("strands-agents", "Agent", "tools", "at once", added="one line", checks="tools")
def test_tools_at_once(recording, provider):
    """Tools that run at once, in threads, are siblings, each with what is recorded in it."""
    barrier = threading.Barrier(3, timeout=30)

    @tool(name="weather")
    def together(city: str) -> str:
        """Tell the weather."""
        barrier.wait()
        with optree.tool(f"thermometer {city}"):
            barrier.wait()
        return f"rain in {city}"

    cities = ["Athens", "Oslo", "Rome"]
    provider.says(asks(*(("weather", {"city": city}) for city in cities)), RAINS)
    ask(agent(served_by(provider), together))
    found = {decode(op.request.payload)["city"]: op for op in ops_of(recording, "weather")}
    assert {city: f"rain in {city}" for city in cities} == {city: decode(op.response.payload) for city, op in found.items()}
    assert [found[city].path for city in cities] == [ops_of(recording, f"thermometer {city}")[0].parent_op for city in cities]
    assert [None] * 3 == [op.parent_op for op in found.values()]


@pytest.mark.parametrize("error", [None, ConnectionError(f"refused {KEY}")])
def test_credentials_are_not_kept(saved, error):
    """No credential of a question, a prompt, a tool's arguments, result or error, or an answer is saved; the program gets its own."""
    given = []

    @tool
    def login(api_key: str, headers: dict) -> str:
        """Log in."""
        given.append({"api_key": api_key, "headers": headers})
        if error is not None:
            raise error
        return f"welcome {KEY}"

    asking = agent(Scripted([("login", CREDENTIALS)], f"Keep {KEY}"), login, system_prompt=f"Use {KEY}")
    answer = ask(asking, f"Log in with {KEY}")
    assert ([CREDENTIALS], f"Keep {KEY}") == (given, answer)
    assert ([], True) == credentials_in(saved())


def test_tools_one_by_one(recording):
    """Tools that run one after another, in the agent's own task, are siblings, and the next call of the model is beside them."""
    ask(agent(Scripted([CALL, CALL], "It rains"), weather, tool_executor=SequentialToolExecutor()))
    assert ["parrot-1", "weather", "thermometer", "weather", "thermometer", "parrot-1"] == [op.name for op in ops_of(recording)]
    first, second = ops_of(recording, "weather")
    assert [None, None, first.path, None, second.path, None] == [op.parent_op for op in ops_of(recording)]


def test_a_tool_that_is_called_directly(recording):
    """A tool that the program calls itself through the agent is a tool op, in the program's session if there is no other."""
    asking = agent(Scripted("It rains"), weather)
    with optree.session("lead"):
        asking.tool.weather(city="Athens")
    [op] = ops_of(recording, "weather")
    asking.tool.weather(city="Rome")
    assert ({"city": "Athens"}, "rain in Athens") == (decode(op.request.payload), decode(op.response.payload))
    other = recording.sessions[1].tree.session
    assert (program_name(), ["weather", "thermometer"]) == (other.agent_id, [op.name for op in other.turns[0].ops])


SERVER = """
from mcp.server import MCPServer

server = MCPServer("sky", log_level="CRITICAL")

@server.tool()
def weather(city: str) -> str:
    return f"rain in {city}"

server.run("stdio")
"""


def test_a_tool_behind_mcp(recording, tmp_path):
    """A tool of an MCP server is one op, though Strands and MCP tell of it, from a thread that Strands has for the server."""
    (tmp_path / "server.py").write_text(SERVER)
    command = StdioServerParameters(command=sys.executable, args=[str(tmp_path / "server.py")])
    with MCPClient(lambda: stdio_client(command)) as client:
        ask(agent(Scripted([CALL], "It rains"), *client.list_tools_sync()))
    [op] = ops_of(recording, "weather")
    assert ({"city": "Athens"}, "ok", 1) == (decode(op.request.payload), op.status, recording.tree.session.totals.tools_run)
    assert b"rain in Athens" in bytes(op.response.payload)


def test_what_callbacks_do_with_tools(recording):
    """Arguments that a callback changes are those of the op, what it forbids is failed, and one it has called again is one op."""
    again = iter([True, False, False])

    def before(event):
        if event.tool_use["input"]["city"] == "Oslo":
            event.cancel_tool = "not there"
        else:
            event.tool_use["input"]["city"] = "Rome"

    asking = agent(Scripted([CALL], [("weather", {"city": "Oslo"})], "It rains"), weather)
    asking.add_hook(before, BeforeToolCallEvent)
    asking.add_hook(lambda event: setattr(event, "retry", next(again)), AfterToolCallEvent)
    ask(asking)
    [first, second] = ops_of(recording, "weather")
    assert ({"city": "Rome"}, "rain in Rome", "ok") == (decode(first.request.payload), decode(first.response.payload), first.status)
    assert ["looking at Rome", "called again", "looking at Rome"] == [log.message for log in first.logs]
    assert ("failed", "tool_error: not there") == (second.status, second.error)


def test_a_block_around_a_tool(recording):
    """A block of the program's around a tool, in middleware, keeps what the program says of it, and the tool's op its own."""

    async def around(call, run):
        with optree.tool("cache") as op:
            op.request(key="Athens")
            async for event in run(call):
                yield event

    asking = agent(Scripted([CALL], "It rains"), weather)
    asking.add_middleware(ExecuteToolStage, around)
    ask(asking)
    [tool], [block] = ops_of(recording, "weather"), ops_of(recording, "cache")
    assert ({"city": "Athens"}, {"key": "Athens"}, tool.path) == (
        decode(tool.request.payload), decode(block.request.payload), block.parent_op,
    )  # fmt: skip


def test_what_a_tool_asks_without_content(recording):
    """With content off it is recorded that a tool waits for somebody, and not what it asks."""

    @tool(context=True)
    def pay(tool_context: ToolContext) -> str:
        """Pay."""
        return f"paid: {tool_context.interrupt('approval', reason='much')}"

    optree.configure(content=False)
    assert "interrupt" == agent(Scripted([("pay", {})], "Done"), pay)("Pay!").stop_reason
    [op] = ops_of(recording, "pay")
    assert [("waits for an answer: approval", UNSET)] == [(log.message, log.details) for log in op.logs]


def test_an_agent_that_waits_for_an_answer(recording):
    """A run that a tool interrupts to ask somebody is in order and says why it stopped; what it is told is the next run's question."""

    @tool(context=True)
    def pay(tool_context: ToolContext) -> str:
        """Pay."""
        return f"paid: {tool_context.interrupt('approval', reason='much')}"

    asking = agent(Scripted([("pay", {})], "Done"), pay)
    result = asking("Pay!")
    assert "interrupt" == result.stop_reason
    session, [op] = recording.tree.session, ops_of(recording, "pay")
    assert ("ok", "interrupt", "ok", None) == (session.status, session.attributes["stop_reason"], op.status, op.response)
    assert [("waits for an answer: approval", {"reason": "much"})] == [(log.message, decode(log.details)) for log in op.logs]
    assert not session.final_report
    asking([{"interruptResponse": {"interruptId": result.interrupts[0].id, "response": "yes"}}])
    later = recording.sessions[1].tree.session
    assert ({"user": "yes"}, ["pay", "parrot-1"], "paid: yes") == (
        later.turns[0].prompts, [op.name for op in later.turns[0].ops], decode(later.turns[0].ops[0].response.payload),
    )  # fmt: skip


@pytest.mark.parametrize("how", ["closed", "dropped"])
def test_a_tool_whose_pieces_are_left(recording, how):
    """A tool that yields pieces is cancelled with the run, if the program reads no further."""

    @tool
    async def pieces():
        """Tell piece by piece."""
        for piece in ("it ", "rains"):
            yield piece

    async def leaving():
        stream = agent(Scripted([("pieces", {})]), pieces).stream_async("Weather?")
        async for event in stream:
            if "tool_stream_event" in event:
                break
        if how == "closed":
            await stream.aclose()
        del stream
        assert optree.current_session() is None

    asyncio.run(leaving())
    assert ([("forecaster", "cancelled")], [("llm", "parrot-1", "ok"), ("tool", "pieces", "cancelled")]) == outcome_of(recording)


@pytest.mark.parametrize("executor", [ConcurrentToolExecutor, SequentialToolExecutor])
@pytest.mark.parametrize("at_most", [1, 4])
def test_tools_in_the_background(recording, at_most, executor):
    """A tool that goes on beside its agent is one op until it has its result, with what it records; those that wait for others too."""
    config = {"background_tasks": {"always": ["weather"], "max_concurrency": at_most}, "tool_executor": executor()}
    ask(agent(Scripted([CALL, ("weather", {"city": "Rome"})], "It rains", "All rain"), weather, **config))
    found = {decode(op.request.payload)["city"]: op for op in ops_of(recording, "weather")}
    assert {"Athens": "rain in Athens", "Rome": "rain in Rome"} == {city: decode(op.response.payload) for city, op in found.items()}
    assert sorted(op.path for op in found.values()) == sorted(op.parent_op for op in ops_of(recording, "thermometer"))
    assert {(None, "ok")} == {(op.parent_op, op.status) for op in (*calls_of(recording), *found.values())}
    assert [{}] * 2 == [op.attributes for op in found.values()]


def test_a_tool_in_the_background_that_waits_for_an_answer(recording):
    """A tool in the background that interrupts its run to ask somebody is in order, and says so."""

    @tool(context=True)
    def pay(tool_context: ToolContext) -> str:
        """Pay."""
        return f"paid: {tool_context.interrupt('approval', reason='much')}"

    asking = agent(Scripted([("pay", {})], "Done", "All done"), pay, background_tasks={"always": ["pay"]})
    assert "interrupt" == asking("Pay!").stop_reason
    [op] = ops_of(recording, "pay")
    assert ("ok", None, ["waits for an answer: approval"]) == (op.status, op.response, [log.message for log in op.logs])


@pytest.mark.parametrize("error", [ConnectionError("no line"), None])
def test_a_tool_in_the_background_that_fails(recording, error):
    """A tool in the background that raises, or that does not end before its run does, is no success."""

    async def go():
        begun, release = asyncio.Event(), asyncio.Event()

        @tool
        async def later() -> str:
            """Wait."""
            begun.set()
            await release.wait()
            raise error

        async def last(_messages):
            await begun.wait()
            if error is not None:
                release.set()
            return "It rains"

        config = {"always": ["later"], "wait_for_completion": error is not None}
        await agent(Scripted([("later", {})], last, "It rained"), later, background_tasks=config).invoke_async("Weather?")

    asyncio.run(go())
    [op] = ops_of(recording, "later")
    assert ("cancelled" if error is None else "failed", "ok") == (op.status, recording.tree.session.status)
