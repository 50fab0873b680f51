"""Programs on the Claude Agent SDK become whole trees: what it and its child process tell each other is taken, by its real transport."""

import asyncio
import json

import pytest

sdk = pytest.importorskip("claude_agent_sdk", reason="the Claude Agent SDK is not there: make .venv/has-claude")

from claude_agent_sdk import ClaudeSDKClient, HookMatcher, PermissionResultAllow, PermissionResultDeny, create_sdk_mcp_server, query, tool  # noqa: E402

import optree  # noqa: E402
from optree._tree import walk_ops, walk_sessions  # noqa: E402
from optree._values import decode  # noqa: E402
from tests.capture.frameworks.claude import (  # noqa: E402
    ABOUT,
    ASKED,
    HANDSHAKE,
    INIT,
    MODEL,
    SIMPLE,
    USAGE,
    Child,
    answer,
    ask,
    call_of,
    called,
    calls,
    costs,
    event,
    op_of,
    reading,
    returned,
    said,
    sent,
    shape,
    system,
    talk,
    to_server,
    told,
)


@pytest.mark.captured("claude-agent-sdk", "query", "plain", "thinking", added="one line", checks=("agents", "answers"))
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


@pytest.mark.captured("claude-agent-sdk", "query", "tools", added="one line", checks=("tools", "calls"))
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


@pytest.mark.captured("claude-agent-sdk", "ClaudeSDKClient", "plain", added="one line", checks="agents")
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


@pytest.mark.captured("claude-agent-sdk", "query", "at once", added="one line", checks=("agents", "calls"))
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


@pytest.mark.captured("claude-agent-sdk", "query", "streamed", added="one line", checks=("calls", "answers", "tokens", "price"))
def test_a_stream_of_events(recording, child):
    """With partial messages the text and the tokens come as a stream: the call has them from there, and is not doubled by its messages."""
    optree.configure(prices=False)
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


def test_a_sub_agent_in_a_session_without_content(saved, child):
    """What a sub-agent is for is recorded where its session has content, whatever was configured since that began."""
    steps = [
        ASKED, INIT, answer("m-1", calls("Task", "task-1", prompt="look", description="looks about", subagent_type="scout")),
        returned([said("found")], "task-1"), answer("m-2", said("It rains")), told(2),
    ]  # fmt: skip
    optree.configure(content=False)
    with optree.session("lead"):
        optree.configure(content=True)
        ask(child, *steps)
    written = saved()
    assert "scout" in written
    for text in ("looks", "found", "rains"):
        assert text not in written


@pytest.mark.captured("claude-agent-sdk", "query", "sub-agents", "tools", added="one line", checks=("agents", "calls", "price"))
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


def test_a_tool_that_runs_an_agent(recording, child):
    """An agent that another tool runs is a session within the tool's op, which has its arguments and its result."""
    steps = [
        ASKED, INIT, answer("m-1", calls("Skill", "skill-1", skill="dig")), answer("m-2", calls("Read"), within="skill-1"),
        returned("here", within="skill-1"), returned("dug", "skill-1"), answer("m-3", said("It rains")), told(3),
    ]  # fmt: skip
    ask(child, *steps)
    skill, read = op_of(recording, "Skill"), next(op for _, _, op in walk_ops(recording.tree) if op.name == "Read")
    assert ({"skill": "dig"}, "dug", "ok") == (decode(skill.request.payload), decode(skill.response.payload), skill.status)
    [_, inner] = walk_sessions(recording.tree)
    assert ("Skill", "1.3", "ok", "1.3.1.2") == (inner.agent_id, inner.path, inner.status, read.path)
    assert (3, 0) == (recording.tree.session.totals.llm_requests, costs(recording)[1][2])


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
