"""Conversations with Claude Code that fail, are interrupted, killed, left or strange are recorded as that; programs notice nothing."""

import asyncio
import sys

import pytest
from msgspec import UNSET

sdk = pytest.importorskip("claude_agent_sdk", reason="the Claude Agent SDK is not there: make .venv/has-claude")

from claude_agent_sdk import ClaudeSDKClient, HookMatcher, query  # noqa: E402

import optree  # noqa: E402
from optree._capture import instrument, uninstrument  # noqa: E402
from optree._capture.replay import RAN_FOR, WHY  # noqa: E402
from optree._nodes import REPLAY_OF  # noqa: E402
from optree._store import Directory  # noqa: E402
from optree._store.reading.recovery import load  # noqa: E402
from optree._tree import walk_ops  # noqa: E402
from optree.testing import capture, replay  # noqa: E402
from tests.capture.conftest import outcome, with_hooks  # noqa: E402
from tests.capture.frameworks.claude import (  # noqa: E402
    ASKED,
    INIT,
    MODEL,
    SIMPLE,
    answer,
    ask,
    call_of,
    called,
    calls,
    costs,
    op_of,
    reading,
    returned,
    said,
    sent,
    shape,
    system,
    told,
)
from tests.cli.conftest import CommandLine  # noqa: E402


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


@pytest.mark.captured("claude-agent-sdk", "query", "failed", added="one line", checks=("calls", "price"))
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


@pytest.mark.captured("claude-agent-sdk", "query", "cancelled", added="one line", checks="calls")
def test_a_program_that_stops_reading(recording, child):
    """Where the program leaves before the end, all that is open is cancelled; it gets no exception."""

    async def program():
        async def allow(*_told):
            return {}

        options = child.options(hooks={"PreToolUse": [HookMatcher(hooks=[allow])]})  # the child may be answered until it is left
        messages = query(prompt="Weather?", options=options)
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


@pytest.mark.captured("claude-agent-sdk", "query", "tools", "killed", added="--auto", checks=("calls", "tokens"))
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
    child.does(ASKED, INIT, answer("m-1", calls("Read", path="/a")), {"work": 1})
    line("run", "--auto", "--", sys.executable, "agent.py", child.path, code=137)
    [txn] = line.txns()
    tree = load(txn, Directory.of(line.base))
    ops = [op for _, _, op in walk_ops(tree)]
    assert [("llm", "ok"), ("tool", None)] == [(op.kind, op.status) for op in ops]
    assert (call_of(1), "Weather?") == (ops[0].accounting[0].tokens, tree.session.turns[0].prompts["user"])


def test_a_replay_does_not_answer_for_it(hooked, child):  # noqa: ARG001 - the hooks are there
    """In a replay Claude Code is asked again, and its tools run, which is noted of each."""
    steps = [ASKED, INIT, answer("m-1", calls("Read", path="/a")), returned("here"), answer("m-2", said("It rains")), told(2)]
    with capture() as recorded:
        expected = ask(child, *steps)
    with replay(recorded.tree), capture() as again:
        assert expected == ask(child, *steps)
    known = op_of(again, "Read").attributes
    assert ("test-1:1.2", "tools of Claude Code are not replayed") == (known[RAN_FOR], known[WHY])
    assert [None, None] == [op.attributes.get(REPLAY_OF) for _, _, op in walk_ops(again.tree) if op.kind == "llm"]
