"""Calls of tools through MCP are ops, and what a server's tools do is part of the session that called them."""

import asyncio
import contextlib
import sys

import httpx
import pytest
from mcp import Client, MCPError
from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError

import optree
from optree._capture import instrument, uninstrument
from optree._capture.calls.program import PROGRAM
from optree._capture.frameworks.mcp import ANCESTRY, CONTENT, PARENT
from optree._ids import span_id, trace_id
from optree._store import Directory
from optree._store.reading.recovery import load
from optree._tracing.propagate import placed_at
from optree._tree import walk_ops
from optree._values import decode, encode
from optree.testing import capture
from tests.capture.sdk_calls import CHAT
from tests.cli.conftest import CommandLine

SERVER = """
import socket
import sys

import optree
import uvicorn
from mcp.server import MCPServer

optree.instrument(exclude=sys.argv[2:])
server = MCPServer("library", log_level="CRITICAL")


@optree.tool
def shelf(word: str) -> str:
    return word.upper()


@optree.session(agent="reader")
def read(word: str) -> str:
    with optree.turn(user=word):
        return shelf(word)


@server.tool()
def look(word: str) -> str:
    return read(word)


@server.tool()
async def find(word: str) -> str:
    return shelf(word)


@server.tool()
def answer(word: str) -> str:
    with optree.llm(provider="openai", model="gpt-5") as op:
        op.account(input_tokens=1, output_tokens=1)
    return word


if sys.argv[1] == "stdio":
    server.run("stdio")
else:
    app = server.sse_app() if sys.argv[1] == "sse" else server.streamable_http_app()
    waiting = socket.socket()
    waiting.bind(("127.0.0.1", 0))
    waiting.listen()
    print(waiting.getsockname()[1], flush=True)
    uvicorn.Server(uvicorn.Config(app, log_level="critical")).run(sockets=[waiting])
"""
AGENT = """
import asyncio
import subprocess
import sys
from contextlib import asynccontextmanager

import optree
from mcp import Client, StdioServerParameters
from mcp.client.sse import sse_client

optree.instrument()


@asynccontextmanager
async def connected(transport):
    command = [sys.executable, "server.py", *sys.argv[1:]]
    if transport == "stdio":
        async with Client(StdioServerParameters(command=command[0], args=command[1:], env=optree.child_env())) as client:
            yield client
        return
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            url = f"http://127.0.0.1:{process.stdout.readline().strip()}"
            async with Client(sse_client(f"{url}/sse") if transport == "sse" else f"{url}/mcp") as client:
                yield client
        finally:
            process.terminate()


async def main():
    async with connected(sys.argv[1]) as client:
        with optree.session("lead"), optree.turn(user="tides"):
            print((await client.call_tool("look", {"word": "tides"})).content[0].text)
            await asyncio.gather(*[client.call_tool("find", {"word": str(number)}) for number in range(3)])


asyncio.run(main())
"""
LIMITED = """
async def main():
    async with connected(sys.argv[1]) as client:
        with optree.session("lead"), optree.turn(user="tides"), optree.budget(calls=2) as budget:
            print([(await client.call_tool("answer", {"word": "tides"})).is_error for _ in range(3)], budget.used["calls"])


asyncio.run(main())
"""
server = MCPServer("library", log_level="CRITICAL")
seen = []


@server.tool()
def look(word: str, ctx: Context) -> str:
    """Return a word in capitals."""
    meta = ctx.request_context.meta
    seen.append(({} if meta is None else dict(meta), ctx.request_context.params))
    with optree.tool("shelf"):
        return word.upper()


@server.tool(structured_output=False)
def messages(messages: list[str]) -> str:
    """Return as many."""
    return str(len(messages))


@server.tool()
def fail() -> str:
    """Raise."""
    raise ValueError


@server.tool()
def refuse(why: str) -> str:
    """Raise what the client is to be told."""
    raise ToolError(why)


@server.tool()
def break_off(why: str) -> str:
    """Answer by an error of the protocol."""
    raise MCPError(code=-32603, message=why)


@server.tool()
async def wait() -> str:
    """Never return."""
    return await asyncio.Event().wait()


@pytest.fixture(autouse=True)
def nothing_seen():
    """Have nothing seen before a test."""
    seen.clear()


def ask(tool, arguments=None, **options):
    """Return what a server in this process says to a call, or what the call raises."""

    async def asking():
        async with Client(server) as client:
            try:
                return await client.call_tool(tool, arguments, **options)
            except Exception as error:  # noqa: BLE001 - here: behind it the client puts it into a group
                return error

    return asyncio.run(asking())


def only_op(recording):
    """Return the only op that was recorded."""
    [op] = [op for _, _, op in walk_ops(recording.tree)]
    return op


@pytest.fixture
def line(tmp_path):
    """Return a command line in a folder of its own, with an agent and a server."""
    line = CommandLine(tmp_path)
    line.agent.write_text(AGENT)
    (line.folder / "server.py").write_text(SERVER)
    return line


def sessions_of(line):
    """Return the sessions that were saved, oldest first."""
    return [load(txn, Directory.of(line.base)).session for txn in sorted(line.txns())]


@pytest.mark.captured("mcp", "ClientSession, by stdio, SSE and HTTP", "tools", "sub-agents", "at once", added="one line", checks="agents")
@pytest.mark.parametrize("transport", ["stdio", "sse", "http"])
def test_what_a_server_does_joins_the_session(line, transport):
    """Sub-agents and tools behind a server are in the op that called it, by each transport, also calls at once (S2-84, S4-49, S4-141)."""
    assert "TIDES\n" == line("run", "--", sys.executable, "agent.py", transport).stdout
    [session] = sessions_of(line)
    ops = [(op.kind, op.name, op.status) for op in session.turns[0].ops]
    assert [("tool", "library:look", "ok")] + [("tool", "library:find", "ok")] * 3 == sorted(
        (op for op in ops if ":" in op[1]), key=lambda op: op[1] != "library:look"
    )
    inner = {op.parent_op: op for op in session.turns[0].ops if op.parent_op}
    assert {"1.1": "reader", "1.2": "shelf", "1.3": "shelf", "1.4": "shelf"} == {parent: op.name for parent, op in inner.items()}
    assert ("lead->reader", "tides") == (inner["1.1"].child_session.call_path, inner["1.1"].child_session.turns[0].prompts["user"])


@pytest.mark.parametrize("transport", ["stdio", "http"])
def test_a_server_records_no_content_where_its_caller_does_not(line, transport):
    """What a server does in a session without content is recorded without, also where the server's own settings have it."""
    without = 'optree.configure(content=False)\n        with optree.session("lead")'
    line.agent.write_text(AGENT.replace('with optree.session("lead")', without))
    assert "TIDES\n" == line("run", "--", sys.executable, "agent.py", transport).stdout
    [session] = sessions_of(line)
    assert ["reader", "shelf", "shelf", "shelf"] == sorted(op.name for op in session.turns[0].ops if op.parent_op)
    assert b"tides" not in encode(session).lower()


@pytest.mark.parametrize("transport", ["stdio", "http"])
def test_a_budget_holds_behind_a_server_too(line, transport):
    """Calls of models that a server makes for a call within a budget count, and the one that would pass it is not made."""
    line.agent.write_text(AGENT.partition("async def main")[0] + LIMITED)
    assert "[False, False, True] 2\n" == line("run", "--", sys.executable, "agent.py", transport).stdout
    assert [2] == [session.totals.llm_requests for session in sessions_of(line)]


def test_a_server_that_takes_no_part(line):
    """A server that leaves MCP out records sessions of its own; the caller's has its calls alone."""
    line("run", "--", sys.executable, "agent.py", "http", "mcp")
    lead, *others = sessions_of(line)
    assert {"library:look", "library:find"} == {op.name for _, _, op in walk_ops(lead)}
    assert {"reader", "shelf"} == {session.agent_id for session in others}


@pytest.mark.captured("mcp", "ClientSession", "tools", added="one line", checks="tools")
def test_a_call_is_an_op(recording):
    """A call has its arguments, its result, sizes, server and tool, and the program gets what it would get (S4-49)."""
    with optree.session("lead"), optree.turn():
        hooked = ask("look", {"word": "tides"})
    op, shelf = [op for _, _, op in walk_ops(recording.tree)]
    uninstrument()
    assert ask("look", {"word": "tides"}) == hooked
    assert ("tool", "library:look", "ok") == (op.kind, op.name, op.status)
    assert {"word": "tides"} == decode(op.request.payload)
    result = {"content": [{"type": "text", "text": "TIDES"}], "structuredContent": {"result": "TIDES"}}
    assert result == decode(op.response.payload)
    [entry] = op.accounting
    assert ("library", "look", "ok") == (entry.mcp_server, entry.command, entry.status)
    assert (len(b'{"word":"tides"}'), op.response.size) == (entry.characters_in, entry.characters_out)
    assert ("shelf", op.path) == (shelf.name, shelf.parent_op)


def test_a_text_alone_is_the_result(recording):
    """A result that is one text is recorded as that; arguments of any name are the request."""
    with optree.session("lead"), optree.turn():
        ask("messages", {"messages": ["a", "b"]})
    op = only_op(recording)
    assert ("2", {"arguments": {"messages": ["a", "b"]}}) == (decode(op.response.payload), decode(op.request.payload))


@pytest.mark.captured("mcp", "ClientSession", "failed", added="one line", checks="tools")
def test_an_error_of_the_tool(recording):
    """A result that says it is an error is a failed op; the program gets that result (S4-49)."""
    with optree.session("lead"), optree.turn():
        assert ask("fail").is_error
    op = only_op(recording)
    assert ("failed", "tool_error: Error executing tool fail") == (op.status, op.error)
    assert [("failed", "library", op.error)] == [(entry.status, entry.mcp_server, entry.error) for entry in op.accounting]


def test_an_error_of_the_tool_without_content(recording):
    """With ``content=False`` what the tool says of its error is not recorded: it is its result."""
    optree.configure(content=False)
    with optree.session("lead"), optree.turn():
        assert ask("fail").is_error
    op = only_op(recording)
    assert ("failed", "tool_error: [not recorded]") == (op.status, op.error)
    assert [op.error] == [entry.error for entry in op.accounting]


@pytest.mark.parametrize(
    ("tool", "arguments", "expected"),
    [
        ("refuse", {"why": "401 Unauthorized"}, "auth"),
        ("refuse", {"why": "API rate limit exceeded"}, "rate_limit"),
        ("refuse", {"why": "no such city"}, None),
        ("refuse", {}, "invalid"),
        ("break_off", {"why": "quotaExceeded"}, "quota"),
        ("break_off", {"why": "the request timed out"}, "timeout"),
        ("nosuchtool", {}, "invalid"),
    ],
)
def test_the_class_of_an_error_of_the_tool(recording, tool, arguments, expected):
    """A tool that failed has the class of what its server says, as a result or as an error of the protocol (S4-45, S4-49)."""
    with optree.session("lead"), optree.turn():
        ask(tool, arguments)
    op = only_op(recording)
    assert ("failed", expected) == (op.status, (op.attributes or {}).get("error.type"))


@pytest.mark.parametrize("is_handled", [False, True])
def test_the_class_of_an_error_within_the_programs_own_op(recording, is_handled):
    """The program's own op for a tool has the class of what the server says, if the program lets it fail."""

    @optree.tool
    def refuse():
        if ask("refuse", {"why": "401 Unauthorized"}).is_error and not is_handled:
            raise RuntimeError("refused")

    with optree.session("lead"), optree.turn(), contextlib.suppress(RuntimeError):
        refuse()
    op = only_op(recording)
    assert (("ok", None) if is_handled else ("failed", "auth")) == (op.status, (op.attributes or {}).get("error.type"))


def test_a_call_that_is_refused(recording):
    """An answer that is an error of the protocol is a failed op, and raises what it would raise."""
    with optree.session("lead"), optree.turn():
        hooked = ask("wait", read_timeout_seconds=0.05)
    uninstrument()
    bare = ask("wait", read_timeout_seconds=0.05)
    assert (MCPError, bare.code, str(bare)) == (type(hooked), hooked.code, str(hooked))
    op = only_op(recording)
    assert ("failed", f"MCPError: {bare}", "timeout") == (op.status, op.error, op.attributes["error.type"])
    assert [("failed", "wait")] == [(entry.status, entry.command) for entry in op.accounting]


def test_a_call_that_is_cancelled(recording):
    """A call whose task is cancelled is a cancelled op."""

    async def asking():
        async with Client(server) as client:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(client.call_tool("wait"), 0.05)

    with optree.session("lead"), optree.turn():
        asyncio.run(asking())
    assert "cancelled" == only_op(recording).status


def test_what_the_server_is_told(recording):  # noqa: ARG001 - for the hooks
    """A request's `_meta` names the op and its trace; what the program has there stays, and the tool's arguments are its own."""
    with optree.session("lead") as session, optree.turn():
        ask("look", {"word": "a"}, meta={"ours": 1, "traceparent": "00-" + "1" * 32 + "-" + "2" * 16 + "-01"})
        ask("look", {"word": "b"})
    optree.configure(content=False)
    with optree.session("without"), optree.turn():
        ask("look", {"word": "c"})
    (first, params), (second, _), (third, _) = seen
    assert (None, False) == (first.get(CONTENT), third[CONTENT])
    assert {"word": "a"} == params["arguments"]
    assert (1, f"{session.txn}:1.1", "lead") == (first["ours"], first[PARENT], first[ANCESTRY])
    assert "00-" + "1" * 32 + "-" + "2" * 16 + "-01" == first["traceparent"]
    assert f"00-{trace_id(session.txn)}-{span_id(second[PARENT])}-01" == second["traceparent"]


def test_a_meta_that_is_none_is_refused_as_ever(recording):
    """What the program gives as `meta` and is no mapping raises what it would raise."""
    with optree.session("lead"), optree.turn():
        hooked = ask("look", {"word": "a"}, meta=5)
    uninstrument()
    bare = ask("look", {"word": "a"}, meta=5)
    assert isinstance(bare, Exception)
    assert (type(bare), str(bare)) == (type(hooked), str(hooked))
    assert "failed" == only_op(recording).status


def test_without_recording_nothing_is_told(recording):  # noqa: ARG001 - for the hooks
    """Switched off, and with the hooks out, a request has nothing of optree's."""
    optree.configure(enabled=False)
    ask("look", {"word": "a"})
    optree.configure(enabled=True)
    uninstrument()
    with optree.session("lead"), optree.turn():
        ask("look", {"word": "a"})
    assert [] == [name for meta, _ in seen for name in meta if name.startswith("optree") or name == "traceparent"]


def test_a_tool_of_the_programs_own(recording):
    """A call within the program's own op for that tool is that op; a second one is another."""

    @optree.tool
    def look(word):
        ask("look", {"word": word})
        return ask("look", {"word": word}).content[0].text

    with optree.session("lead"), optree.turn():
        look("tides")
    calls = [op for _, _, op in walk_ops(recording.tree) if op.name != "shelf"]
    assert [("look", None), ("library:look", "1.1")] == [(op.name, op.parent_op) for op in calls]
    assert "TIDES" == decode(calls[0].response.payload)


@pytest.mark.parametrize(
    "parent",
    [None, 7, "", ":1", "../../x:1", "a/b:1", "nosuchthing:1", "nosuchthing:1.1", "CON:1", "x" * 70 + ":1", "nosuchthing:1" + ".1" * 900],
)
def test_a_place_that_is_not_here(tmp_path, monkeypatch, parent):
    """A session that is not in the server's own directory is none to join, whatever a client says, and nothing is written for it."""
    monkeypatch.setenv("OPTREE_BASE_DIR", str(tmp_path))
    assert placed_at(parent, "lead") is None
    assert [] == list(tmp_path.iterdir())


def test_a_place_that_is_no_node():
    """Of a session that is here no more than numbers is taken for a place."""
    with capture(), optree.session("lead") as session:
        found = [placed_at(f"{session.txn}:{path}", "lead") for path in ("1.1", "../1", "1.", "1\n", "", "1.1 x")]
    assert [True, False, False, False, False, False] == [one is not None for one in found]


def test_outside_of_all_sessions(line):
    """A program that names no session gets one, with its calls of tools."""
    line.agent.write_text(AGENT.replace('with optree.session("lead"), optree.turn(user="tides"):', "if True:"))
    line("run", "--", sys.executable, "agent.py", "stdio")
    [session] = sessions_of(line)
    assert ("agent", 4, "ok") == (session.agent_id, session.totals.tools_run - 4, session.status)


def test_what_comes_behind_a_call_outside_of_all_sessions(hooked):  # noqa: ARG001
    """A call of a model that a program without sessions makes behind one of a tool is in a turn of its own, by what the user asks."""
    transport = httpx.MockTransport(lambda _: httpx.Response(200, content=CHAT.pieces[0], headers={"content-type": "application/json"}))

    async def run():
        async with Client(server) as client, httpx.AsyncClient(transport=transport) as models:
            await client.call_tool("look", {"word": "tides"})
            assert optree.current_session() is None
            asked = {"model": "gpt-5", "messages": [{"role": "user", "content": "Weather?"}]}
            await models.post("https://api.openai.com/v1/chat/completions", json=asked)

    with capture() as recording, PROGRAM.apart():
        asyncio.run(run())
    asked = [(op.name, (turn.prompts or {}).get("user")) for _, turn, op in walk_ops(recording.tree)]
    assert [("library:look", None), ("shelf", None), ("openai:gpt-5", "Weather?")] == asked


def test_calls_of_models_behind_a_server(line, provider):
    """A call of a model that a server's tool makes is in the op that called the tool, though the tool names no session."""
    provider.says(CHAT)
    model = f"""
@server.tool()
def think() -> str:
    import openai
    client = openai.OpenAI(base_url="{provider.url}/v1", api_key="none")
    return client.chat.completions.create(model="gpt-5", messages=[{{"role": "user", "content": "Weather?"}}]).choices[0].message.content


if sys"""
    (line.folder / "server.py").write_text(SERVER.replace("if sys", model.lstrip(), 1))
    line.agent.write_text(AGENT.replace('"look", {"word": "tides"}', '"think"'))
    assert "It rains\n" == line("run", "--", sys.executable, "agent.py", "http").stdout
    [session] = sessions_of(line)
    [op] = [op for op in session.turns[0].ops if op.kind == "llm"]
    assert ("openai-compatible:gpt-5", "1.1") == (op.name, op.parent_op)
    assert 12 == session.totals.all_input_tokens
    run = line("replay", "last", "--", sys.executable, "agent.py", "http")
    assert ("It rains\n", 1) == (run.stdout, len(provider.requests))
    told = (
        "0 of 0 calls of models were answered as in {}; 4 of 4 calls of tools got their results, within which 1 of models had been made\n"
    )
    assert run.stderr.endswith(f"optree: {told.format(session.id)}")


def test_servers_and_clients_are_listed(line):
    """`optree instrument` lists MCP's package, and a second call hooks nothing twice."""
    assert "mcp" in line("instrument").stdout.split()
    instrument()
    assert ["mcp.client.session", "mcp.server.runner"] == [name for name in instrument() if name.startswith("mcp.")]
    uninstrument()
