"""Programs on the Claude Agent SDK become whole trees: what it and its child process tell each other is taken, by its real transport."""

import asyncio
import json
import sys
from pathlib import Path

import pytest
from msgspec import UNSET

sdk = pytest.importorskip("claude_agent_sdk", reason="the Claude Agent SDK is not there: make .venv/has-claude")

from claude_agent_sdk import (  # noqa: E402
    ClaudeAgentOptions,
    ClaudeSDKClient,
    HookMatcher,
    PermissionResultAllow,
    PermissionResultDeny,
    create_sdk_mcp_server,
    query,
    tool,
)

import optree  # noqa: E402
from optree.capture import instrument, uninstrument  # noqa: E402
from optree.nodes import Tokens  # noqa: E402
from optree.store import Directory  # noqa: E402
from optree.store.recovery import load  # noqa: E402
from optree.testing import capture  # noqa: E402
from optree.tree import walk_ops, walk_sessions  # noqa: E402
from optree.values import decode  # noqa: E402
from tests.capture.conftest import outcome, with_hooks  # noqa: E402
from tests.cli.conftest import CommandLine  # noqa: E402

MODEL = "claude-opus-4-8"
USAGE = {
    "input_tokens": 10, "cache_read_input_tokens": 100, "cache_creation_input_tokens": 50, "output_tokens": 1,
    "cache_creation": {"ephemeral_5m_input_tokens": 20, "ephemeral_1h_input_tokens": 30},
}  # fmt: skip
ASKED = {"user": 1}
ABOUT = {"session_id": "s-1", "model": MODEL, "cwd": "/project", "claude_code_version": "2.1.300"}
INIT = {"say": {"type": "system", "subtype": "init", "tools": ["Read"], **ABOUT}}


def said(text):
    """Return a block of text."""
    return {"type": "text", "text": text}


def calls(name, call="call-1", **arguments):
    """Return a block that calls a tool."""
    return {"type": "tool_use", "id": call, "name": name, "input": arguments}


def answer(identity, *blocks, within=None, usage=USAGE, model=MODEL, **more):
    """Return the step that says one message of an answer."""
    message = {"id": identity, "type": "message", "role": "assistant", "model": model, "content": list(blocks), "stop_reason": None}
    return {"say": {"type": "assistant", "parent_tool_use_id": within, "session_id": "s-1", "message": {**message, "usage": usage}, **more}}


def returned(content, call="call-1", *, within=None, is_error=False, **more):
    """Return the step that says a tool's result."""
    block = {"type": "tool_result", "tool_use_id": call, "content": content, "is_error": is_error}
    message = {"role": "user", "content": [block]}
    return {"say": {"type": "user", "parent_tool_use_id": within, "session_id": "s-1", "message": message, **more}}


def told(calls=1, cost=0.02, output=90, **more):
    """Return the step that says a result, with the sums of so many calls."""
    of_model = {"inputTokens": 10 * calls, "outputTokens": output, "cacheReadInputTokens": 100 * calls,
                "cacheCreationInputTokens": 50 * calls, "costUSD": cost}  # fmt: skip
    known = {"type": "result", "subtype": "success", "duration_ms": 5, "duration_api_ms": 4, "is_error": False, "num_turns": calls,
             "session_id": "s-1", "result": "It rains", "total_cost_usd": cost, "usage": USAGE,
             "modelUsage": {MODEL: of_model}}  # fmt: skip
    return {"say": known | more}


def event(value, within=None):
    """Return the step that says an event of a stream."""
    return {"say": {"type": "stream_event", "uuid": "u", "session_id": "s-1", "parent_tool_use_id": within, "event": value}}


def system(kind, **more):
    """Return the step that says something of the child itself."""
    return {"say": {"type": "system", "subtype": kind, "session_id": "s-1", "uuid": "u", **more}}


def called(request):
    """Return the step that calls the SDK back."""
    return {"call": request}


def to_server(method, number=None, **params):
    """Return the step that sends a message to a server in the process."""
    message = {"jsonrpc": "2.0", "method": method, "params": params} | ({} if number is None else {"id": number})
    return called({"subtype": "mcp_message", "server_name": "sky", "message": message})


HANDSHAKE = [
    to_server("initialize", 0, protocolVersion="2025-06-18", capabilities={}, clientInfo={"name": "c", "version": "1"}),
    to_server("notifications/initialized"),
]
SIMPLE = [ASKED, INIT, answer("m-1", said("It rains")), told()]


class Child:
    """The child process, to which the SDK is pointed."""

    def __init__(self, folder):
        folder.mkdir(exist_ok=True)
        self.path, self._script = folder / "claude", folder / "script"
        program = Path(__file__).with_name("claude_cli.py")
        self.path.write_text(f"#!/bin/sh\nexec '{sys.executable}' '{program}' '{self._script}'\n")
        self.path.chmod(0o755)

    def does(self, *steps):
        """Set what it does."""
        self._script.write_text("".join(json.dumps(step) + "\n" for step in steps))

    def options(self, **more):
        """Return options of the SDK that have it started."""
        return ClaudeAgentOptions(cli_path=self.path, **more)

    def answers(self):
        """Return what the SDK answered when it was called back."""
        lines = map(json.loads, Path(f"{self._script}.sent").read_text().splitlines())
        return [line["response"] for line in lines if line["type"] == "control_response"]


@pytest.fixture
def child(tmp_path):
    """Return a child process that does as it is told."""
    return Child(tmp_path)


async def reading(child, prompt="Weather?", **options):
    """Ask, and return the messages."""
    return [message async for message in query(prompt=prompt, options=child.options(**options))]


def ask(child, *steps, **options):
    """Ask a child that does these steps, and return the messages."""
    child.does(*steps)
    return asyncio.run(reading(child, **options))


def shape(recording):
    """Return the paths of what was recorded, with kind, name and status."""
    return [(op.path, op.kind, op.name.removeprefix("anthropic:"), op.status) for _, _, op in walk_ops(recording.tree)]


def op_of(recording, name):
    """Return the first op of a name."""
    return next(op for _, _, op in walk_ops(recording.tree) if op.name.removeprefix("anthropic:") == name)


def costs(recording):
    """Return what each op is accounted for with that has a cost or tokens, and what is known in all."""
    found = {op.path: [(one.tokens, one.cost_usd) for one in op.accounting if one.tokens] for _, _, op in walk_ops(recording.tree)}
    totals = recording.tree.session.totals
    return {path: one for path, one in found.items() if one}, (round(totals.cost_usd, 9), totals.known_costs, totals.unknown_costs)


def sent(recording, op):
    """Return the messages that a call had sent."""
    return recording.tree.pool.resolve(decode(op.request.payload))["messages"]


def call_of(output):
    """Return the tokens of one call."""
    return Tokens(10, output, 100, 50, 160 + output)


def test_a_query_is_a_session(recording, child):
    """A query is a session with a turn of the prompt; an answer that comes in several messages is one call, whose tokens count once."""
    thinks = {"type": "thinking", "thinking": "what is the sky like", "signature": "x"}
    messages = ask(child, ASKED, INIT, answer("m-1", thinks), answer("m-1", said("It rains")), told(), system_prompt="Be brief.")
    assert ["SystemMessage", "AssistantMessage", "AssistantMessage", "ResultMessage"] == [type(one).__name__ for one in messages]
    session = recording.tree.session
    assert ("claude-code", "ok", "It rains") == (session.agent_id, session.status, decode(session.final_report))
    assert ABOUT == {name: session.attributes[name] for name in ABOUT}
    [turn] = session.turns
    assert ({"system": "Be brief.", "user": "Weather?"}, "ok") == (turn.prompts, turn.status)
    assert [("1.1", "llm", MODEL, "ok"), ("1.2", "system", "result", "ok")] == shape(recording)
    call = op_of(recording, MODEL)
    assert "what is the sky like" == "".join(chunk.text for chunk in call.reasoning.chunks)
    assert [thinks, said("It rains")] == decode(call.response.payload)["content"]
    assert [{"role": "user", "content": "Weather?"}] == sent(recording, call)


def test_tools(recording, child):
    """A call of a tool is an op with arguments, result and error; calls of models around it are not doubled."""
    steps = [
        ASKED, INIT, answer("m-1", said("I look")), answer("m-1", calls("Read", path="/a")),
        answer("m-1", calls("Bash", "call-2", command="b")),
        returned("here", "call-1"), returned([said("no such command")], "call-2", is_error=True), answer("m-2", said("It rains")), told(2),
    ]  # fmt: skip
    ask(child, *steps)
    expected = [("1.1", "llm", MODEL, "ok"), ("1.2", "tool", "Read", "ok"), ("1.3", "tool", "Bash", "failed"), ("1.4", "llm", MODEL, "ok")]
    assert [*expected, ("1.5", "system", "result", "ok")] == shape(recording)
    read, bash = op_of(recording, "Read"), op_of(recording, "Bash")
    assert ({"path": "/a"}, "here") == (decode(read.request.payload), decode(read.response.payload))
    assert "tool_error: no such command" == bash.error
    first = decode(op_of(recording, MODEL).response.payload)
    assert ["text", "tool_use", "tool_use"] == [block["type"] for block in first["content"]]


def test_the_bill_adds_up(recording, child):
    """What the result tells beyond the calls stands at the result; the calls cost 0 then, as their entries say; nothing is unknown."""
    ask(child, ASKED, INIT, answer("m-1", calls("Read")), returned("here"), answer("m-2", said("It rains")), told(2, 0.02, 90))
    expected = {"1.1": [(call_of(1), 0.0)], "1.3": [(call_of(1), 0.0)], "1.4": [(Tokens(0, 88, 0, 0, 88), 0.02)]}
    assert (expected, (0.02, 3, 0)) == costs(recording)
    assert {"cache_write_1h_tokens": 30, "cost_in": "1.4"} == decode(op_of(recording, MODEL).accounting[0].details)
    result = op_of(recording, "result").attributes
    assert (0.02, 5, 2) == (result["total_cost_usd"], result["duration_ms"], result["num_turns"])


def test_the_cost_of_a_turn_of_one_call(recording, child):
    """Where a turn is one call, that has its cost and its output tokens."""
    ask(child, *SIMPLE)
    assert ({"1.1": [(call_of(90), 0.02)]}, (0.02, 1, 0)) == costs(recording)
    assert 90 == recording.tree.session.totals.output_tokens


def test_a_cost_that_is_not_told(recording, child):
    """Without a result, or with one that crashed and has lost its sums, costs are unknown and said to be."""
    crashed = told(1, 0.0, 0, subtype="error_during_execution", is_error=True)
    ask(child, ASKED, INIT, answer("m-1", said("It rains")), crashed)
    assert ({"1.1": [(call_of(1), None)]}, (0.0, 0, 1)) == costs(recording)


def test_sums_of_several_turns(recording, child):
    """Results tell sums since the child began, or since the conversation was reset: each turn costs what is new."""
    reset = {"say": {"type": "conversation_reset", "new_conversation_id": "n", "uuid": "u", "session_id": "s-1"}}
    steps = [
        ASKED, answer("m-1", said("one")), told(1, 0.02, 90), ASKED, answer("m-2", said("two")), told(2, 0.05, 150),
        ASKED, reset, answer("m-3", said("three")), told(1, 0.01, 7), ASKED, answer("m-4", said("four")), told(2, 0.02, 9),
    ]  # fmt: skip
    talk(child, "one", "two", "three", "four", steps=steps)
    found = {"1.1": (90, 0.02), "2.1": (60, 0.03), "3.1": (7, 0.01), "4.1": (2, 0.01)}
    assert {path: [(call_of(output), cost)] for path, (output, cost) in found.items()} == {
        path: [(tokens, round(cost, 9)) for tokens, cost in one] for path, one in costs(recording)[0].items()
    }
    assert (0.07, 4, 0) == costs(recording)[1]


def test_calls_that_have_a_price(recording, child, tmp_path):
    """With prices of the program's own, calls have their costs, and the result what it tells beyond them."""
    prices = tmp_path / "prices.json"
    prices.write_text(json.dumps({"anthropic": {MODEL: {"input": 10, "output": 50, "request": 0.005}}}))
    optree.configure(prices=prices)
    try:
        ask(child, ASKED, answer("m-1", calls("Read")), returned("here"), answer("m-2", said("It rains")), told(2, 0.02, 90))
    finally:
        optree.configure(prices=False)
    found, sums = costs(recording)
    each = found["1.1"][0][1]
    assert (True, round(0.02 - 2 * each, 9), 0.02) == (each > 0.005, round(found["1.4"][0][1], 9), sums[0])


def test_a_budget(recording, child):
    """A budget counts what calls cost once that is told, each call once; a prompt that would pass it is refused before it is sent."""
    child.does(ASKED, answer("m-1", calls("Read")), returned("here"), answer("m-2", said("It rains")), told(2, 0.02, 90))

    async def program():
        with optree.session("desk"), optree.budget(usd=0.03, tokens=10_000, calls=9) as budget:
            await reading(child)
            with pytest.raises(optree.BudgetExceeded):
                await reading(child)
        return *(round(budget.used[name], 9) for name in ("usd", "tokens", "calls")), budget.unknown_cost

    assert (0.02, 2 * 160 + 90, 2, 0) == asyncio.run(program())
    assert (["desk", "claude-code"], 2) == (
        [session.agent_id for session in walk_sessions(recording.tree)],
        recording.tree.session.totals.llm_requests,
    )


def talk(child, *prompts, steps, until=None):
    """Talk with a client, a prompt after the other's result."""
    child.does(*steps)

    async def talking():
        async with ClaudeSDKClient(child.options()) as client:
            for prompt in prompts:
                await client.query(prompt)
                async for _ in client.receive_response():
                    if until is not None:
                        await until(client)

    asyncio.run(talking())


def test_a_client_is_one_session(recording, child):
    """A client that talks on is one session, with a turn of each prompt; what is sent grows."""
    talk(child, "one", "two", steps=[ASKED, INIT, answer("m-1", said("1")), told(), ASKED, INIT, answer("m-2", said("2")), told(2, 0.05)])
    [session] = walk_sessions(recording.tree)
    assert [("one", "ok"), ("two", "ok")] == [(turn.prompts["user"], turn.status) for turn in session.turns]
    last = [op for _, _, op in walk_ops(recording.tree) if op.kind == "llm"][-1]
    assert ["one", [said("1")], "two"] == [message["content"] for message in sent(recording, last)]


def test_a_client_within_the_programs_sessions(recording, child):
    """What a client is asked belongs into the session that is open there: one client that is asked in two is an agent in both."""
    child.does(ASKED, answer("m-1", said("1")), told(), ASKED, answer("m-2", said("2")), told(2, 0.05))

    async def talking():
        async with ClaudeSDKClient(child.options()) as client:
            with optree.session("desk"):
                for prompt in ("one", "two"):
                    with optree.turn(user=prompt):
                        await client.query(prompt)
                        async for _ in client.receive_response():
                            pass
                        with optree.tool("save"):
                            pass

    asyncio.run(talking())
    kinds = [(path, kind, name) for path, kind, name, _ in shape(recording)]
    assert [("1.1", "session", "claude-code"), ("1.2", "tool", "save"), ("2.1", "session", "claude-code"), ("2.2", "tool", "save")] == [
        one for one in kinds if one[0].count(".") == 1
    ]
    assert {"ok"} == {session.status for session in walk_sessions(recording.tree)}
    assert (2, 0.05) == (recording.tree.session.totals.llm_requests, round(recording.tree.session.totals.cost_usd, 9))


def test_a_session_that_ends_before_the_answer(recording, child):
    """Where the program's session ends before a client has answered, the agent's is cancelled with it; the next prompt begins another."""
    child.does(ASKED, answer("m-1", calls("Read")), {"interrupt": 1}, ASKED, answer("m-2", said("2")), told(2))

    async def program():
        async with ClaudeSDKClient(child.options()) as client:
            with optree.session("desk"):
                await client.query("one")
                async for _ in client.receive_messages():
                    break
            await client.interrupt()
            await client.query("two")
            async for _ in client.receive_response():
                pass

    asyncio.run(program())
    desk, alone = recording.sessions
    assert [("desk", "ok"), ("claude-code", "cancelled")] == [(one.agent_id, one.status) for one in walk_sessions(desk.tree)]
    assert ("ok", ["two"]) == (alone.tree.session.status, [turn.prompts["user"] for turn in alone.tree.session.turns])


def test_queries_at_once(recording, child):
    """Queries that run at once are agents beside each other, each with what is its own."""
    (other := Child(child.path.parent / "other")).does(
        ASKED, INIT, answer("m-1", calls("Read")), returned("x"), answer("m-2", said("B")), told(2)
    )
    child.does(*SIMPLE)

    async def program():
        with optree.session("desk"), optree.turn():
            await asyncio.gather(reading(child, "one"), reading(other, "two"))

    asyncio.run(program())
    agents = {one.turns[0].prompts["user"]: one for one in walk_sessions(recording.tree) if one.agent_id == "claude-code"}
    assert {"one": ["llm", "system"], "two": ["llm", "tool", "llm", "system"]} == {
        user: [op.kind for op in agent.turns[0].ops] for user, agent in agents.items()
    }


class Transport(sdk.Transport):
    """A transport of the program's own, which has its answers by itself."""

    def __init__(self):
        self.said, self.written = asyncio.Queue(), []

    async def connect(self):
        """Connect to nothing."""

    async def write(self, data):
        """Answer what is written."""
        told_here = json.loads(data)
        self.written.append(told_here["type"])
        if told_here["type"] == "control_request":
            known = {"subtype": "success", "request_id": told_here["request_id"], "response": {}}
            self.said.put_nowait({"type": "control_response", "response": known})
            return
        for step in (answer("m-1", said("It rains")), told()):
            self.said.put_nowait(step["say"])
        self.said.put_nowait(None)

    async def read_messages(self):
        """Give what there is to say."""
        while (message := await self.said.get()) is not None:
            yield message

    async def close(self):
        """Close nothing."""

    def is_ready(self):
        """Be ready."""
        return True

    async def end_input(self):
        """End nothing."""


def test_a_transport_of_the_programs(recording):
    """Another transport than the SDK's own is seen the same way, and is as it was afterwards."""

    async def program():
        transport = Transport()
        messages = [type(message).__name__ async for message in query(prompt="Weather?", transport=transport)]
        return messages, transport.written, "write" in vars(transport)

    assert (["AssistantMessage", "ResultMessage"], ["control_request", "user"], False) == asyncio.run(program())
    session = recording.tree.session
    assert ("ok", "Weather?", 1) == (session.status, session.turns[0].prompts["user"], session.totals.llm_requests)


def test_prompts_that_are_streamed(recording, child):
    """Prompts that a generator of the program's gives are turns, in the order in which they are answered."""

    async def prompts():
        for text in ("one", "two"):
            yield {"type": "user", "message": {"role": "user", "content": [said(text)]}, "parent_tool_use_id": None, "session_id": "s"}

    child.does(ASKED, INIT, answer("m-1", said("1")), told(), ASKED, INIT, answer("m-2", said("2")), told(2, 0.05))
    asyncio.run(reading(child, prompts()))
    turns = recording.tree.session.turns
    assert [("one", "ok", 2), ("two", "ok", 2)] == [(turn.prompts["user"], turn.status, len(turn.ops)) for turn in turns]


def test_a_stream_of_events(recording, child):
    """With partial messages the text and the tokens come as a stream: the call has them from there, and is not doubled by its messages."""
    begun = {"id": "m-1", "type": "message", "role": "assistant", "model": MODEL, "content": [], "usage": USAGE}
    steps = [
        ASKED, INIT, event({"type": "message_start", "message": begun}),
        event({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}),
        event({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "It "}}),
        event({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "rains"}}),
        answer("m-1", said("It rains")), event({"type": "content_block_stop", "index": 0}),
        event({"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": USAGE | {"output_tokens": 70}}),
        event({"type": "message_stop"}), told(1, 0.02, 70),
    ]  # fmt: skip
    ask(child, *steps, include_partial_messages=True)
    assert [("1.1", "llm", MODEL, "ok"), ("1.2", "system", "result", "ok")] == shape(recording)
    assert ({"1.1": [(call_of(70), 0.02)]}, (0.02, 1, 0)) == costs(recording)
    assert [said("It rains")] == decode(op_of(recording, MODEL).response.payload)["content"]


def test_sub_agents(recording, child):
    """A sub-agent is a child session with calls and tools of its own and its last words as its report; one that fails has its error."""
    steps = [
        ASKED, INIT, answer("m-1", calls("Task", "task-1", prompt="look", description="looks", subagent_type="scout")),
        answer("m-1", calls("Agent", "task-2", prompt="dig", description="digs")),
        answer("m-2", calls("Read", "call-2"), within="task-1"), returned("here", "call-2", within="task-1"),
        answer("m-3", calls("Task", "task-3", prompt="deeper", subagent_type="mole"), within="task-2"),
        answer("m-4", said("deep"), within="task-3"), returned([said("deep")], "task-3", within="task-2"),
        returned([said("found")], "task-1"), returned("lost", "task-2", is_error=True), answer("m-5", said("It rains")), told(5),
    ]  # fmt: skip
    ask(child, *steps)
    sessions = {session.agent_id: session for session in walk_sessions(recording.tree)}
    assert [("claude-code", ""), ("scout", "1.2"), ("agent", "1.3"), ("mole", "1.3.1.2")] == [
        (name, one.path) for name, one in sessions.items()
    ]
    assert ("ok", "found") == (sessions["scout"].status, decode(sessions["scout"].final_report))
    assert ("failed", "lost") == (sessions["agent"].status, sessions["agent"].error)
    assert ("looks", "task-1", "look") == (
        *(sessions["scout"].attributes[name] for name in ("description", "toolCallId")), sessions["scout"].turns[0].prompts["user"],
    )  # fmt: skip
    assert ["m-1", "m-2", "m-3", "m-4", "m-5"] == sorted(
        decode(op.response.payload)["id"] for _, _, op in walk_ops(recording.tree) if op.kind == "llm"
    )
    assert ("1.2.1.2", "ok") == (op_of(recording, "Read").path, op_of(recording, "Read").status)
    assert ((0.02, 6, 0), 5) == (costs(recording)[1], recording.tree.session.totals.llm_requests)


@pytest.mark.parametrize(
    ("end", "expected"),
    [
        (system("task_notification", task_id="b", tool_use_id="task-1", status="completed", output_file="", summary="done"), ("ok", None)),
        (system("task_notification", task_id="b", status="failed", output_file="", summary="it broke"), ("failed", "it broke")),
        (system("task_updated", task_id="b", patch={"status": "killed"}), ("cancelled", None)),
        (None, ("cancelled", "the program left before the end")),
    ],
)
def test_a_sub_agent_in_the_background(recording, child, end, expected):
    """A sub-agent in the background goes on when its turn ends, until its end is told; what follows then is a turn without a prompt."""
    launched = returned([said("launched")], "task-1", tool_use_result={"status": "async_launched", "agentId": "b"})
    begun = system("task_started", task_id="b", tool_use_id="task-1", description="d", task_type="local_agent")
    steps = [
        ASKED, INIT, answer("m-1", calls("Agent", "task-1", prompt="look", subagent_type="scout")), begun, launched,
        answer("m-2", said("wait")), told(2),
        answer("m-3", calls("Read", "call-2"), within="task-1"), returned("here", "call-2", within="task-1"),
        *([end] if end else []), INIT, answer("m-4", said("It rains")), told(4, 0.05),
    ]  # fmt: skip
    ask(child, *steps)
    root, scout = walk_sessions(recording.tree)
    assert [("Weather?", "ok"), (None, "ok")] == [((turn.prompts or {}).get("user"), turn.status) for turn in root.turns]
    assert (expected, ["m-3"]) == (
        (scout.status, scout.error),
        [decode(op.response.payload)["id"] for op in scout.turns[0].ops if op.kind == "llm"],
    )
    assert (0.05, 0) == (costs(recording)[1][0], costs(recording)[1][2])


@tool("weather", "Tells the weather", {"city": str})
async def weather(arguments):
    """Tell the weather."""
    optree.current().log(f"looking at {arguments['city']}")
    with optree.tool("thermometer"):
        return {"content": [said("rain")]}


@pytest.mark.parametrize("meta", [{}, {"_meta": {"claudecode/toolUseId": "call-1"}}])
def test_a_tool_in_the_process(recording, child, meta):
    """What a tool in the program's process records is within the op of its call, which stands once."""
    steps = [
        ASKED, *HANDSHAKE, answer("m-1", calls("mcp__sky__weather", "call-0", city="Rome")),
        answer("m-1", calls("mcp__sky__weather", city="Athens")),
        to_server("tools/call", 1, name="weather", arguments={"city": "Athens"}, **meta),
        returned([said("rain")]), returned([said("sun")], "call-0"),
        answer("m-2", said("It rains")), told(2),
    ]  # fmt: skip
    ask(child, *steps, mcp_servers={"sky": create_sdk_mcp_server("sky", tools=[weather])})
    tools = [(op.path, op.name, op.status, op.parent_op) for _, _, op in walk_ops(recording.tree) if op.kind == "tool"]
    assert [
        ("1.2", "mcp__sky__weather", "ok", None), ("1.3", "mcp__sky__weather", "ok", None), ("1.4", "thermometer", "ok", "1.3"),
    ] == tools  # fmt: skip
    assert ["looking at Athens"] == [entry.message for _, _, op in walk_ops(recording.tree) for entry in op.logs]
    assert [said("rain")] == child.answers()[2]["response"]["mcp_response"]["result"]["content"]


def asks_for(**more):
    """Return the step that asks whether a tool may be called."""
    return called({"subtype": "can_use_tool", "tool_name": "Bash", "input": {"command": "rm"}, "tool_use_id": "call-1", **more})


async def refuses(_name, _arguments, _context):
    """Refuse a call of a tool."""
    with optree.tool("lawyer"):
        return PermissionResultDeny(message="not here")


async def denies(_input, _call, _context):
    """Refuse one as a hook."""
    answer = {"hookEventName": "PreToolUse", "permissionDecision": "deny", "permissionDecisionReason": "no shell"}
    return {"hookSpecificOutput": answer}


async def breaks(_input, _call, _context):
    """Break as a hook."""
    raise ValueError("broken hook")


HOOK = called({"subtype": "hook_callback", "callback_id": "hook_0", "input": {"hook_event_name": "PreToolUse"}, "tool_use_id": "call-1"})


@pytest.mark.parametrize(
    ("step", "options", "expected"),
    [
        (asks_for(), {"can_use_tool": refuses}, "can_use_tool refused it: not here"),
        (HOOK, {"hooks": {"PreToolUse": [HookMatcher(hooks=[denies])]}}, "PreToolUse refused it: no shell"),
        (HOOK, {"hooks": {"PreToolUse": [HookMatcher(hooks=[breaks])]}}, "PreToolUse refused it: broken hook"),
    ],
)
def test_a_call_that_is_refused(recording, child, step, options, expected):
    """A call that a permission or a hook refuses is a tool op that failed, and who refused it is said; what they do is within it."""
    refused = returned("it was refused", is_error=True)
    ask(child, ASKED, answer("m-1", calls("Bash", command="rm")), step, refused, answer("m-2", said("It rains")), told(2), **options)
    bash = op_of(recording, "Bash")
    assert ("failed", "tool_error: it was refused", [expected]) == (bash.status, bash.error, [entry.message for entry in bash.logs])
    assert [bash.path for _, _, op in walk_ops(recording.tree) if op.name == "lawyer"] == [
        op.parent_op for _, _, op in walk_ops(recording.tree) if op.name == "lawyer"
    ]


def test_a_call_that_is_allowed(recording, child):
    """A permission that allows a call leaves nothing to say."""

    async def allows(_name, _arguments, _context):
        return PermissionResultAllow()

    ask(
        child,
        ASKED,
        answer("m-1", calls("Bash")),
        asks_for(),
        returned("done"),
        answer("m-2", said("It rains")),
        told(2),
        can_use_tool=allows,
    )
    assert ("ok", ()) == (op_of(recording, "Bash").status, tuple(op_of(recording, "Bash").logs))
    assert [{"behavior": "allow", "updatedInput": {"command": "rm"}}] == [one["response"] for one in child.answers()]


def test_what_the_program_does_meanwhile(recording, child):
    """What the program does between two messages stands where the program is, and not in the agent's session."""

    async def program():
        with optree.session("desk"), optree.turn():
            async for message in query(prompt="Weather?", options=child.options()):
                with optree.tool(type(message).__name__):
                    pass

    child.does(*SIMPLE)
    asyncio.run(program())
    assert [("1.1", "claude-code"), ("1.1.1.1", MODEL), ("1.1.1.2", "result"), ("1.2", "SystemMessage"), ("1.3", "AssistantMessage"),
            ("1.4", "ResultMessage")] == sorted((path, name) for path, _, name, _ in shape(recording))  # fmt: skip


def test_a_query_within_a_tool(recording, child):
    """A query that a tool in the process makes is an agent within the tool's op."""
    (inner := Child(child.path.parent / "inner")).does(*SIMPLE)

    @tool("ask", "Asks another", {})
    async def ask_other(_arguments):
        return {"content": [said(str(len(await reading(inner))))]}

    steps = [ASKED, *HANDSHAKE, answer("m-1", calls("mcp__sky__ask")), to_server("tools/call", 1, name="ask", arguments={}), returned("3"),
             answer("m-2", said("It rains")), told(2)]  # fmt: skip
    ask(child, *steps, mcp_servers={"sky": create_sdk_mcp_server("sky", tools=[ask_other])})
    assert ["", "1.3"] == [session.path for session in walk_sessions(recording.tree)]
    assert "1.2" == next(op for _, _, op in walk_ops(recording.tree) if op.path == "1.3").parent_op


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (
            {"subtype": "error_max_turns", "is_error": True, "result": None, "errors": ["Reached 3"]},
            ("failed", "error_max_turns: Reached 3", None),
        ),
        ({"subtype": "error_max_budget_usd", "is_error": True, "result": None}, ("failed", "error_max_budget_usd", None)),
        ({"is_error": True, "result": "API Error: Overloaded", "api_error_status": 529}, ("failed", "API Error: Overloaded", "model")),
        ({"is_error": True, "result": "API Error: slow down", "api_error_status": 429}, ("failed", "API Error: slow down", "rate_limit")),
        ({"terminal_reason": "aborted_tools", "subtype": "error_during_execution", "is_error": True}, ("cancelled", "interrupted", None)),
    ],
)
def test_results_that_are_errors(recording, child, result, expected):
    """A result that is an error ends turn and session as that, also where the child exits by it; what was answered before stays."""
    child.does(ASKED, INIT, answer("m-1", said("so far")), told(**result), {"exit": 1})
    with pytest.raises(sdk.ResultError):
        asyncio.run(reading(child))
    session, op = recording.tree.session, op_of(recording, "result")
    assert expected == (op.status, op.error, (op.attributes or {}).get("error.type"))
    assert ("cancelled" if expected[0] == "cancelled" else "ok") == op_of(recording, MODEL).status
    assert [expected[:2]] == [(turn.status, turn.error) for turn in session.turns]
    assert (expected[0], UNSET) == (session.status, session.final_report)
    assert 0.02 == session.totals.cost_usd


def test_a_call_that_the_provider_refused(recording, child):
    """A call that brought no answer is an op that failed, with its class; attempts before it are said. A refused one cost nothing."""
    retry = system("api_retry", attempt=1, max_retries=10, retry_delay_ms=1, error_status=429, error="rate_limit")
    message = answer("e-1", said("API Error: Rate limit reached"), model="<synthetic>", error="rate_limit")
    failed = told(0, 0.0, 0, is_error=True, result="API Error: Rate limit reached", api_error_status=429)
    ask(child, ASKED, INIT, retry, message, failed)
    call = op_of(recording, MODEL)
    assert ("failed", "API Error: Rate limit reached", "rate_limit") == (call.status, call.error, call.attributes["error.type"])
    assert ["attempt 1 failed: rate_limit"] == [entry.message for entry in call.logs]
    totals = recording.tree.session.totals
    assert (1, 1, 0.0, 0) == (totals.llm_requests, totals.llm_failed, totals.cost_usd, totals.unknown_costs)


@pytest.mark.parametrize("end", [{"kill": 1}, {"exit": 3}])
def test_a_child_that_is_killed(recording, child, end):
    """A child that dies ends what is open as failed, with what came until then; costs are unknown. The program gets its exception."""
    child.does(ASKED, INIT, answer("m-1", calls("Read")), end)
    with pytest.raises(sdk.ProcessError) as error:
        asyncio.run(reading(child))
    session = recording.tree.session
    assert [("1.1", "llm", MODEL, "ok"), ("1.2", "tool", "Read", "failed")] == shape(recording)
    assert ("failed", "failed", f"ProcessError: {error.value}") == (session.turns[0].status, session.status, session.error)
    assert ({"1.1": [(call_of(1), None)]}, (0.0, 0, 1)) == costs(recording)


def test_a_child_that_just_ends(recording, child):
    """A child that ends in order without a result has failed all the same."""
    ask(child, ASKED, INIT, answer("m-1", said("It")), {"exit": 0})
    session = recording.tree.session
    assert ("failed", "Claude Code ended without a result") == (session.status, session.error)
    assert [("1.1", "llm", MODEL, "failed")] == shape(recording)


def test_a_program_that_stops_reading(recording, child):
    """Where the program leaves before the end, all that is open is cancelled; it gets no exception."""

    async def program():
        messages = query(prompt="Weather?", options=child.options())
        async for message in messages:
            if type(message).__name__ == "AssistantMessage":
                break
        await messages.aclose()
        await asyncio.sleep(0)  # the SDK closes what is within it in a task
        await asyncio.gather(*asyncio.all_tasks() - {asyncio.current_task()}, return_exceptions=True)

    child.does(ASKED, INIT, answer("m-1", calls("Read")), {"wait": 1})
    asyncio.run(program())
    session = recording.tree.session
    assert [("1.1", "llm", MODEL, "ok"), ("1.2", "tool", "Read", "cancelled")] == shape(recording)
    assert ("cancelled", "the program left before the end") == (session.status, session.error)


def test_a_program_that_never_reads(recording, child):
    """What the child says is recorded also where the program does not read it."""

    async def program():
        ended = asyncio.Event()

        async def ends(_input, _call, _context):
            ended.set()
            return {}

        async with ClaudeSDKClient(child.options(hooks={"Stop": [HookMatcher(hooks=[ends])]})) as client:
            await client.query("Weather?")
            await ended.wait()

    child.does(*SIMPLE, called({"subtype": "hook_callback", "callback_id": "hook_0", "input": {"hook_event_name": "Stop"}}))
    asyncio.run(program())
    assert ("ok", [("1.1", "llm", MODEL, "ok"), ("1.2", "system", "result", "ok")]) == (recording.tree.session.status, shape(recording))


def test_an_interrupt(recording, child):
    """A turn that the program interrupts is cancelled, and so is what was open in it; the next is none of that."""
    steps = [
        ASKED, INIT, answer("m-1", calls("Bash")), {"interrupt": 1},
        {"say": {"type": "user", "session_id": "s-1", "message": {"role": "user", "content": [said("[Request interrupted by user]")]}}},
        told(1, subtype="error_during_execution", is_error=True), ASKED, answer("m-2", said("2")), told(2, 0.05),
    ]  # fmt: skip
    asked = []

    async def interrupts(client):
        if not asked:
            asked.append(True)
            await client.interrupt()

    async def talking():
        async with ClaudeSDKClient(child.options()) as client:
            await client.query("one")
            async for message in client.receive_response():
                if type(message).__name__ == "AssistantMessage":
                    await interrupts(client)
            await client.query("two")
            async for _ in client.receive_response():
                pass

    child.does(*steps)
    asyncio.run(talking())
    session = recording.tree.session
    assert [("one", "cancelled"), ("two", "ok")] == [(turn.prompts["user"], turn.status) for turn in session.turns]
    assert ("cancelled", "ok") == (op_of(recording, "Bash").status, session.status)


def test_a_compaction(recording, child):
    """A conversation that is compacted is an op; what is sent then begins anew."""
    summary = {"say": {"type": "user", "session_id": "s-1", "message": {"role": "user", "content": "a summary"}}}
    compact = system("compact_boundary", compact_metadata={"trigger": "auto", "pre_tokens": 9})
    ask(child, ASKED, INIT, answer("m-1", calls("Read")), returned("x"), compact, summary, answer("m-2", said("It rains")), told(2))
    assert {"trigger": "auto", "pre_tokens": 9} == op_of(recording, "compact").attributes
    last = [op for _, _, op in walk_ops(recording.tree) if op.kind == "llm"][-1]
    assert ["a summary"] == [message["content"] for message in sent(recording, last)]


STRANGE = [
    {"type": "assistant", "message": {"model": MODEL, "content": [{"type": "thinking", "thinking": None, "signature": ""}], "usage": 7}},
    {"type": "assistant", "message": {"model": MODEL, "content": [{"type": "tool_use", "id": None, "name": None, "input": None}]}},
    {"type": "assistant", "parent_tool_use_id": "unknown", "message": {"id": "x", "model": MODEL, "content": []}},
    {"type": "assistant", "message": {"content": "no list"}},
    {"type": "user", "message": {"content": [{"type": "tool_result", "tool_use_id": "unknown"}]}},
    {"type": "user", "message": "no object"},
    {"type": "stream_event", "uuid": "u", "session_id": "s", "event": {"type": "message_delta"}},
    {"type": "stream_event", "uuid": "u", "session_id": "s", "event": {}},
    {"type": "system", "subtype": "task_updated", "patch": []},
    {"type": "system", "subtype": "something_new"},
    {"type": "rate_limit_event", "rate_limit_info": {"status": "rejected"}, "uuid": "u", "session_id": "s"},
    {"type": "something_new"},
    told(modelUsage={MODEL: 7}, total_cost_usd="much", permission_denials=7)["say"],
    told(modelUsage=[], usage=[], num_turns=None, errors=7)["say"],
]


@pytest.mark.parametrize("message", STRANGE, ids=range(len(STRANGE)))
def test_messages_that_are_strange(child, message, capfd):
    """The program gets of a message that none of ours expects what it would get without hooks, and the rest is recorded."""
    child.does(ASKED, INIT, {"say": message}, answer("m-9", said("It rains")), told(2))
    asking = lambda: list(map(repr, asyncio.run(reading(child))))  # noqa: E731
    plain, hooked = outcome(asking), with_hooks(lambda: outcome(asking))
    assert plain == hooked
    assert "Traceback" not in capfd.readouterr().err


def test_hooks_are_taken_out(child):
    """Without hooks nothing is recorded, a transport that was watched writes as before, and what began with them is recorded to its end."""
    child.does(ASKED, INIT, answer("m-1", said("It rains")), told())
    instrument()

    async def program():
        async with ClaudeSDKClient(child.options()) as client:
            await client.query("Weather?")
            uninstrument()
            transport = client._transport
            async for _ in client.receive_response():
                pass
        return "write" in vars(transport)

    with capture() as recording:
        assert not asyncio.run(program())
    assert "ok" == recording.tree.session.status
    with capture() as other:
        asyncio.run(reading(child))
    assert [] == other.sessions


def test_optree_that_is_switched_off(child):
    """Nothing is recorded where optree is switched off, and the program has what it would have."""
    child.does(*SIMPLE)
    instrument()
    try:
        with capture() as recording:
            optree.configure(enabled=False)
            assert 3 == len(asyncio.run(reading(child)))
        assert [] == recording.sessions
    finally:
        optree.configure(enabled=True)
        uninstrument()


def test_a_program_that_is_not_changed(child, tmp_path):
    """`optree run --auto` records a program that does not name optree; one that is killed meanwhile has what came, with its tokens."""
    line = CommandLine(tmp_path)
    program = """
import asyncio, os, signal, sys
from claude_agent_sdk import ClaudeAgentOptions, query
async def main():
    async for message in query(prompt="Weather?", options=ClaudeAgentOptions(cli_path=sys.argv[1])):
        if type(message).__name__ == "AssistantMessage":
            os.kill(os.getpid(), signal.SIGKILL)
asyncio.run(main())
"""
    (tmp_path / "agent.py").write_text(program)
    child.does(ASKED, INIT, answer("m-1", calls("Read", path="/a")), {"wait": 1})
    line("run", "--auto", "--", sys.executable, "agent.py", child.path, code=137)
    [txn] = line.txns()
    tree = load(txn, Directory.of(line.base))
    ops = [op for _, _, op in walk_ops(tree)]
    assert [("llm", "ok"), ("tool", None)] == [(op.kind, op.status) for op in ops]
    assert (call_of(1), "Weather?") == (ops[0].accounting[0].tokens, tree.session.turns[0].prompts["user"])
