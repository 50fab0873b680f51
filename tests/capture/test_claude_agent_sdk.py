"""Programs on the Claude Agent SDK become whole trees: what it and its child process tell each other is taken, by its real transport."""

import asyncio
import json
import os
import sys
from pathlib import Path

import pytest

sdk = pytest.importorskip("claude_agent_sdk", reason="it is not there: make .venv/has-claude")

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
INIT = {"say": {"type": "system", "subtype": "init", "session_id": "s-1", "model": MODEL, "cwd": "/project", "claude_code_version": "2.1.300",
                "tools": ["Read"]}}  # fmt: skip


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
             "session_id": "s-1", "result": "It rains", "total_cost_usd": cost, "usage": USAGE, "modelUsage": {MODEL: of_model}}  # fmt: skip
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
    about = {"session_id": "s-1", "model": MODEL, "cwd": "/project", "claude_code_version": "2.1.300"}
    assert about == {name: session.attributes[name] for name in about}
    [turn] = session.turns
    assert ({"system": "Be brief.", "user": "Weather?"}, "ok") == (turn.prompts, turn.status)
    assert [("1.1", "llm", MODEL, "ok"), ("1.2", "system", "result", "ok")] == shape(recording)
    call = op_of(recording, MODEL)
    assert "what is the sky like" == "".join(chunk.text for chunk in call.reasoning.chunks)
    assert [thinks, said("It rains")] == decode(call.response.payload)["content"]
    assert [{"role": "user", "content": "Weather?"}] == recording.tree.pool.messages(decode(call.request.payload)["messages"])


def test_tools(recording, child):
    """A call of a tool is an op with arguments, result and error; calls of models around it are not doubled."""
    steps = [
        ASKED, INIT, answer("m-1", said("I look")), answer("m-1", calls("Read", path="/a")), answer("m-1", calls("Bash", "call-2", command="b")),
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
    """What the result tells beyond the calls stands at the result; the calls cost 0 then, which their entries say, and nothing is unknown."""
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
    assert ([("1.1", 90)], 90) == ([("1.1", 90)], recording.tree.session.totals.output_tokens)
