"""Functions that the SDKs of Anthropic, Google and OpenAI run when a model asks for them are tools' ops, between the calls of the model."""

import asyncio
import functools
import json
from dataclasses import dataclass

import pytest
from anthropic import beta_tool
from anthropic.lib.tools import ToolError
from anthropic.lib.tools._beta_builtin_memory_tool import BetaLocalFilesystemMemoryTool
from anthropic.lib.tools.mcp import async_mcp_tool
from mcp import Client
from mcp.server import MCPServer
from openai.lib.responses_tool_runner import ToolRunnerError

import optree
from optree._capture import instrument, uninstrument
from optree._capture.replay import RAN_FOR
from optree._nodes import REPLAY_OF
from optree._tree import walk_ops
from optree._values import decode
from optree.testing import capture
from tests.capture.conftest import outcome, record, twice
from tests.capture.frameworks.runners import WAYS, messages, messages_async
from tests.capture.provider import Reply
from tests.capture.test_documented import USES

pytestmark = pytest.mark.filterwarnings("ignore:Inheritance class:DeprecationWarning")  # what aiohttp says of google-genai
each_way = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
ASYNC = [way for name, way in WAYS.items() if "_async" in name]


def weather(city: str) -> str:
    """Tell the weather."""
    return f"rain in {city}"


def ops(recording, kind="tool"):
    """Return the ops of a kind that were recorded."""
    return [op for _, _, op in walk_ops(recording.tree) if op.kind == kind]


def told(op):
    """Return the name, arguments, result, status and error of a tool's op."""
    return op.name, *(None if one is None else decode(one.payload) for one in (op.request, op.response)), op.status, op.error


def kinds(recording):
    """Return what was recorded: path, kind, status, and what it is part of."""
    return [(op.path, op.kind, op.status, op.parent_op) for _, _, op in walk_ops(recording.tree)]


def in_a_turn(run):
    """Return what a program returns that is run in a turn."""
    with optree.session("agent"), optree.turn(user="Weather?"):
        return run()


def bare(provider, way, function):
    """Return what a program comes to without hooks, and what it sends."""
    provider.says(*way.replies)
    with capture():  # what the function records itself
        found = outcome(lambda: way(provider.url, function))
    sent, provider.requests[:] = [body for _, body in provider.requests], []
    return found, sent


@pytest.mark.captured("anthropic", "tool runner", "plain", "streamed", "tools", added="one line", checks=("calls", "tools"))
@pytest.mark.captured("google-genai", "models, chats and aio", "plain", "streamed", "tools", added="one line", checks=("calls", "tools"))
@pytest.mark.captured("openai", "ResponsesToolRunner", "plain", "streamed", "tools", added="one line", checks=("calls", "tools"))
@each_way
def test_a_function_is_an_op(provider, way):
    """A function's op stands between the calls of the model, with what it does in it; the program gets and sends what it does without."""

    def weather(city: str) -> str:
        """Tell the weather."""
        if (op := optree.current()) is not None:
            op.log("looking out")
        with optree.tool("thermometer"):
            return f"rain in {city}"

    expected = bare(provider, way, weather)
    instrument()
    try:
        provider.says(*way.replies)
        found, recording = record(lambda: way(provider.url, weather))
    finally:
        uninstrument()
    assert expected == (found, [body for _, body in provider.requests])
    assert [("1.1", "llm", "ok", None), ("1.2", "tool", "ok", None), ("1.3", "tool", "ok", "1.2"), ("1.4", "llm", "ok", None)] == (
        kinds(recording)
    )
    op = ops(recording)[0]
    assert ("weather", {"city": "Athens"}, "rain in Athens", "ok", None) == told(op)
    assert ["looking out"] == [line.message for line in op.logs]


@pytest.mark.captured("anthropic", "tool runner", "plain", "streamed", "failed", added="one line", checks=("calls", "tools"))
@pytest.mark.captured("google-genai", "models, chats and aio", "plain", "streamed", "failed", added="one line", checks=("calls", "tools"))
@pytest.mark.captured("openai", "ResponsesToolRunner", "plain", "streamed", "failed", added="one line", checks=("calls", "tools"))
@each_way
def test_a_function_that_fails(provider, way):
    """Its op failed by the function's own exception, with the class of that, whatever the SDK makes of it."""

    def weather(city: str) -> str:
        """Tell the weather."""
        raise TimeoutError(f"no thermometer in {city}")

    expected = bare(provider, way, weather)
    instrument()
    try:
        provider.says(*way.replies)
        found, recording = record(lambda: outcome(lambda: way(provider.url, weather)))
    finally:
        uninstrument()
    assert expected == (found, [body for _, body in provider.requests])
    [op] = ops(recording)
    assert ("weather", {"city": "Athens"}, None, "failed", "TimeoutError: no thermometer in Athens") == told(op)
    assert ("timeout", "timeout") == (op.attributes["error.type"], op.attributes["error.class"])


@each_way
@pytest.mark.usefixtures("hooked")
def test_arguments_that_do_not_fit(provider, way):
    """What a model asks for with arguments that the function does not take is a failed op too."""

    def weather(city: str, *, day: int) -> str:
        """Tell the weather."""
        return f"rain in {city} on {day}"

    provider.says(*way.replies)
    _, recording = record(lambda: outcome(lambda: way(provider.url, weather)))
    [op] = ops(recording)
    assert ({"city": "Athens"}, "failed") == (decode(op.request.payload), op.status)


@each_way
@pytest.mark.usefixtures("hooked")
def test_a_function_that_is_decorated(provider, way):
    """A function that `@optree.tool` decorates has one op, as the program says it, also within a decorator of the program's."""
    decorated = optree.tool("forecast")(weather)

    @functools.wraps(decorated)
    def around(*args, **kwargs):
        return decorated(*args, **kwargs)

    provider.says(*way.replies)
    _, recording = record(lambda: way(provider.url, around if way.streamed else decorated))
    assert [("forecast", {"city": "Athens"}, "rain in Athens", "ok", None)] == [told(op) for op in ops(recording)]


@pytest.mark.usefixtures("hooked")
def test_a_program_with_a_loop_of_its_own(provider):
    """A call of a tool within the program's block of that name is that op; one within it is another; elsewhere it is one of its own."""
    tool = beta_tool(weather)

    @beta_tool
    def again(city: str) -> str:
        """Call itself once."""
        return weather(city) if city == "Sparta" else again.call({"city": "Sparta"})

    def ask():
        with optree.tool("weather") as op:
            op.request(block="the program's")
            said = tool.call({"city": "Athens"})
        with optree.tool("ruler"):
            tool.call(input={"city": "Delphi"})
        return said, again.call({"city": "Athens"})

    found, recording = record(ask)
    assert ("rain in Athens", "rain in Sparta") == found
    assert [
        ("weather", {"block": "the program's"}), ("ruler", None), ("weather", {"city": "Delphi"}),
        ("again", {"city": "Athens"}), ("again", {"city": "Sparta"}),
    ] == [(op.name, op.request and decode(op.request.payload)) for op in ops(recording)]  # fmt: skip
    assert [None, None, "1.2", None, "1.4"] == [op.parent_op for op in ops(recording)]
    assert [] == provider.requests


@pytest.mark.usefixtures("hooked")
def test_a_block_of_the_programs_around_calls():
    """The first call in a block has its arguments and its result there, unless the program says others; a second is an op of its own."""
    tool = beta_tool(weather)

    def ask():
        with optree.tool("weather"):
            tool.call({"city": "Athens"})
            tool.call({"city": "Delphi"})
        with optree.tool("weather") as op:
            tool.call({"city": "Sparta"})
            op.response("the program's")

    _, recording = record(ask)
    told = [(op.parent_op, decode(op.request.payload), decode(op.response.payload)) for op in ops(recording)]
    assert [
        (None, {"city": "Athens"}, "rain in Athens"), ("1.1", {"city": "Delphi"}, "rain in Delphi"),
        (None, {"city": "Sparta"}, "the program's"),
    ] == told  # fmt: skip


@dataclass(frozen=True)
class NotFound(Exception):  # noqa: N818 - as a program may call it
    """An exception of which nothing can be set."""

    city: str


@pytest.mark.usefixtures("hooked")
def test_an_exception_that_lets_nothing_be_set():
    """It passes as it is, and the op has it."""

    @beta_tool
    def weather(city: str) -> str:
        """Know no city."""
        raise NotFound(city)

    with capture() as recording, optree.session("agent"), optree.turn(), pytest.raises(NotFound):
        weather.call({"city": "Athens"})
    assert [("failed", "NotFound: Athens")] == [(op.status, op.error) for op in ops(recording)]


@pytest.mark.usefixtures("hooked")
def test_a_memory(tmp_path):
    """A memory tool of Anthropic's is a tool's op, as it is called."""

    def ask(memory):
        said = outcome(lambda: memory.call({"command": "view", "path": "/memories/none.txt"}))
        return said, memory.call({"command": "create", "path": "/memories/day.txt", "file_text": "rain"})

    _, recording = record(lambda: ask(BetaLocalFilesystemMemoryTool(str(tmp_path))))
    failed, made = ops(recording)
    assert ("memory", "failed") == (failed.name, failed.status)
    assert ({"command": "create", "path": "/memories/day.txt", "file_text": "rain"}, "ok") == (decode(made.request.payload), made.status)


called = []
server = MCPServer("library", log_level="CRITICAL")


@server.tool(name="weather", structured_output=False)
def served(city: str) -> str:
    """Tell the weather, behind MCP."""
    called.append(city)
    if city != "Athens":
        raise ValueError("no such city")
    return f"rain in {city}"


@pytest.mark.parametrize("city", ["Athens", "Sparta"])
@pytest.mark.usefixtures("hooked")
def test_a_tool_behind_mcp_by_anthropics_runner(provider, city):
    """A tool that is called through MCP is one op, which is the function's. A replay calls it again: its result has objects of the SDK."""
    called.clear()

    async def ask():
        async with Client(server) as client:
            [tool] = (await client.list_tools()).tools
            return await messages_async(provider.url, async_mcp_tool(tool, client.session))

    replies = asking(city), WAYS["messages-plain"].replies[1]
    expected, found, recorded, again = twice(provider, replies, lambda: in_a_turn(lambda: asyncio.run(ask())))
    assert ("It rains", "It rains", [city, city]) == (expected, found, called)
    assert ("weather", {"city": city}, "ok" if city == "Athens" else "failed") == (*told(ops(recorded)[0])[:2], ops(recorded)[0].status)
    assert [told(op) for op in ops(recorded)] == [told(op) for op in ops(again)]
    assert [True] == [RAN_FOR in op.attributes for op in ops(again)]


def asking(city):
    """Return the answer of a model that asks for the weather of a city."""
    return Reply(json.loads(USES.pieces[0].replace(b"Athens", city.encode())))


@each_way
@pytest.mark.usefixtures("hooked")
def test_a_replay(provider, way):
    """A program goes on as it did, and its function does not run again: it gets what it returned."""
    ran = []

    def weather(city: str) -> str:
        """Tell the weather."""
        ran.append(city)
        return f"rain in {city}"

    def run():
        return in_a_turn(lambda: way(provider.url, weather))

    expected, found, recorded, again = twice(provider, way.replies, run)
    assert ("It rains", "It rains", ["Athens"]) == (expected, found, ran)
    assert [told(op) for op in ops(recorded)] == [told(op) for op in ops(again)]
    assert all(REPLAY_OF in op.attributes for op in ops(again))


@each_way
@pytest.mark.usefixtures("hooked")
def test_a_replay_of_a_failure(provider, way):
    """A function that failed fails again as it did, and does not run."""
    ran = []

    def weather(city: str) -> str:
        """Tell the weather."""
        ran.append(city)
        raise KeyError(city)

    def run():
        return in_a_turn(lambda: way(provider.url, weather))

    expected, found, recorded, again = twice(provider, way.replies, run)
    assert (expected, ["Athens"]) == (found, ran)
    assert (
        [told(op) for op in ops(recorded)]
        == [told(op) for op in ops(again)]
        == [("weather", {"city": "Athens"}, None, "failed", "KeyError: 'Athens'")]
    )


@pytest.mark.usefixtures("hooked")
def test_a_replay_of_an_error_with_blocks(provider):
    """What a tool of Anthropic's tells the model by a `ToolError` is the op's result, and is told again."""
    blocks = [{"type": "text", "text": "closed"}, {"type": "text", "text": "today"}]

    def weather(city: str) -> str:
        """Tell the weather."""
        raise ToolError(blocks if city == "Athens" else "no such city")

    _, found, recorded, again = twice(provider, WAYS["messages-plain"].replies, lambda: in_a_turn(lambda: messages(provider.url, weather)))
    assert "It rains" == found
    expected = [("weather", {"city": "Athens"}, blocks, "failed", "ToolError: closed today")]
    assert expected == [told(op) for op in ops(recorded)] == [told(op) for op in ops(again)]


@each_way
@pytest.mark.usefixtures("recording")
def test_a_budget_that_refuses_a_call_within(provider, way):
    """A budget refuses the call behind the function's: the run ends there, the function's op stands, and nothing more is sent."""
    provider.says(*way.replies)
    raised = ToolRunnerError if "responses" in way.name else optree.BudgetExceeded  # whose runner hides what a call raises
    with optree.session("agent") as session, optree.turn(), optree.budget(calls=1), pytest.raises(raised):
        way(provider.url, weather)
    assert [("llm", "ok"), ("tool", "ok")] == [(op.kind, op.status) for _, _, op in walk_ops(session.tree)]
    assert 1 == len(provider.requests)


@pytest.mark.captured("anthropic", "tool runner", "plain", "streamed", "cancelled", added="one line", checks=("calls", "tools"))
@pytest.mark.captured("google-genai", "aio", "plain", "streamed", "cancelled", added="one line", checks=("calls", "tools"))
@pytest.mark.captured("openai", "AsyncResponsesToolRunner", "plain", "streamed", "cancelled", added="one line", checks=("calls", "tools"))
@pytest.mark.parametrize("way", ASYNC, ids=[way.name for way in ASYNC])
@pytest.mark.usefixtures("hooked")
def test_a_run_that_is_cancelled(provider, way):
    """The op of a function that is cancelled in the middle is cancelled, as the program is."""

    async def ask():
        begun = asyncio.Event()

        async def weather(city: str) -> str:
            """Tell the weather."""
            begun.set()
            return await asyncio.Event().wait() and city

        task = asyncio.create_task(way.ask(provider.url, weather, streamed=way.streamed))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    provider.says(*way.replies)
    _, recording = record(lambda: asyncio.run(ask()))
    [op] = ops(recording)
    assert ("weather", {"city": "Athens"}, None, "cancelled") == told(op)[:4]
    assert "ok" == recording.tree.session.status
    assert 1 == len(provider.requests)


def test_switched_off(provider):
    """Where optree is switched off, and with the hooks out, functions run and nothing is recorded."""
    way = WAYS["talk-plain"]
    instrument()
    optree.configure(enabled=False)
    provider.says(*way.replies)
    assert "It rains" == way(provider.url, weather)
    optree.configure(enabled=True)
    uninstrument()
    provider.says(*way.replies)
    found, recording = record(lambda: way(provider.url, weather))
    assert ("It rains", []) == (found, kinds(recording))
