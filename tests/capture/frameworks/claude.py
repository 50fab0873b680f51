"""What a child process in place of Claude Code does, by steps, and what is recorded of it."""

import asyncio
import json
import sys
from pathlib import Path

from optree._nodes import Tokens
from optree._tree import walk_ops
from optree._values import decode

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
        from claude_agent_sdk import ClaudeAgentOptions

        return ClaudeAgentOptions(cli_path=self.path, **more)

    def answers(self):
        """Return what the SDK answered when it was called back."""
        lines = map(json.loads, Path(f"{self._script}.sent").read_text().splitlines())
        return [line["response"] for line in lines if line["type"] == "control_response"]


async def reading(child, prompt="Weather?", **options):
    """Ask, and return the messages."""
    from claude_agent_sdk import query

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


def talk(child, *prompts, steps, until=None):
    """Talk with a client, a prompt after the other's result."""
    from claude_agent_sdk import ClaudeSDKClient

    child.does(*steps)

    async def talking():
        async with ClaudeSDKClient(child.options()) as client:
            for prompt in prompts:
                await client.query(prompt)
                async for _ in client.receive_response():
                    if until is not None:
                        await until(client)

    asyncio.run(talking())
