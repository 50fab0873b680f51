"""Rollouts of Codex: those in `data` its version 0.169.0 wrote, against a scripted provider; its own instructions are taken out."""

import json
import shutil
from pathlib import Path

import pytest

from optree import walk_ops
from optree._formats.installed import format_named
from optree._tree import walk_sessions
from optree.errors import FormatError

CODEX = format_named("codex")
FOLDER = Path(__file__).with_name("data") / "codex"
MAIN = FOLDER / "rollout-2026-11-23T15-52-04-01a2091b-7850-7d81-ac35-2d30a6d1606e.jsonl"
CHILD = FOLDER / "rollout-2026-11-23T15-52-05-01a2091b-7a3c-78e2-9b61-7d70cdbedd9a.jsonl"
ID = "01a2091b-0000-7000-8000-000000000001"
META = {"id": ID, "cwd": "/home/me/project", "cli_version": "0.42.0", "originator": "codex_cli_rs", "model_provider": "openai"}


def line(second, kind, **payload):
    """Return a line of a rollout, at a second of one minute."""
    return {"timestamp": f"2026-11-23T15:00:{second:06.3f}Z", "type": kind, "payload": payload}


def item(second, kind, **members):
    """Return a line with an item of the model, or for it."""
    return line(second, "response_item", type=kind, **members)


def event(second, kind, **members):
    """Return a line with an event."""
    return line(second, "event_msg", type=kind, **members)


def says(second, words, role="assistant"):
    """Return a line with a message."""
    return item(second, "message", role=role, content=[{"type": "output_text" if role == "assistant" else "input_text", "text": words}])


def calls(second, identity, name="shell", **arguments):
    """Return a line with a call of a tool."""
    return item(second, "function_call", name=name, arguments=json.dumps(arguments), call_id=identity)


def tokens(sent, cached, output, thought=0):
    """Return a usage as Codex has it."""
    return {"input_tokens": sent, "cached_input_tokens": cached, "output_tokens": output, "reasoning_output_tokens": thought} | {
        "total_tokens": sent + output
    }


def counted(second, total, last):
    """Return a line with the running sum of tokens."""
    return event(second, "token_count", info={"total_token_usage": total, "last_token_usage": last, "model_context_window": 9})


def read(path, *lines, strict=True):
    """Return the tree and the faults of a file with these lines."""
    path.write_text("".join((one if isinstance(one, str) else json.dumps(one)) + "\n" for one in lines))
    found = CODEX.read(path, strict=strict)
    [tree] = found.trees
    return tree, found.faults


def shape(session):
    """Return what ran in a session: kinds, names and outcomes, by turn."""
    return [[(op.kind, op.name, op.status) for op in turn.ops] for turn in session.turns]


def sums(tree):
    """Return the tokens of each call."""
    return [
        (one.tokens.all_input_tokens, one.tokens.cache_read_input_tokens, one.tokens.output_tokens, one.tokens.reasoning_output_tokens)
        for _, _, op in walk_ops(tree.session)
        for one in op.accounting
        if one.type == "llm"
    ]


def kept(tree, payload):
    """Return a request or response in full."""
    return tree.pool.resolve(json.loads(bytes(payload.payload)))


def test_a_session_of_the_program_itself():
    """Prompts are turns, items of one answer one op, tools and the sub-agent have outcomes, and a session that went on has it all."""
    found = CODEX.read(MAIN, strict=True)
    [tree] = found.trees
    root, model = tree.session, ("llm", "local:gpt-5.1-codex", "ok")
    assert [
        [
            model,
            ("tool", "exec_command", "ok"),
            model,
            ("tool", "exec_command", "failed"),
            model,
            ("session", "agent", "ok"),
            model,
            ("tool", "wait_agent", "ok"),
            model,
        ],
        [model],
    ] == shape(root)
    child = root.turns[0].ops[5].child_session
    assert [[model, ("tool", "exec_command", "ok"), model]] == shape(child)
    assert ["MAIN-WORK: Please say hello", "And again"] == [turn.prompts["user"] for turn in root.turns]
    assert ["All done."] * 2 == [turn.assistant["content"] for turn in root.turns]
    assert ("ok", "ok", None) == (child.status, root.turns[0].status, root.status)
    assert ("01a2091b-7850-7d81-ac35-2d30a6d1606e", "0.169.0") == (root.origin_txn_id, root.attributes["cli_version"])
    assert [CHILD] == found.beside


def test_its_tokens_are_those_that_it_counted_itself():
    """Totals equal the last running sums in the files of the session and of its sub-agent; no cost is said, so it is unknown."""
    [tree] = CODEX.read(MAIN).trees
    told = [[json.loads(one)["payload"] for one in path.read_text().splitlines()] for path in (MAIN, CHILD)]
    own = [[one for one in payloads if one.get("type") == "token_count"][-1]["info"]["total_token_usage"] for payloads in told]
    totals = tree.session.totals
    names = ("input_tokens", "cached_input_tokens", "output_tokens", "reasoning_output_tokens")
    assert [sum(one[name] for one in own) for name in names] == [
        totals.all_input_tokens,
        totals.cache_read_input_tokens,
        totals.output_tokens,
        totals.reasoning_output_tokens,
    ]
    assert (0, 8) == (totals.known_costs, totals.llm_requests)


def test_a_call_says_what_was_asked_and_answered():
    """A request is the conversation so far, an answer its items, reasoning their summary; a failed command says how."""
    [tree] = CODEX.read(MAIN).trees
    first, tool, _, failed = tree.session.turns[0].ops[:4]
    assert ["developer", "user", "user"] == [message["role"] for message in kept(tree, first.request)["messages"]]
    assert ["reasoning", "message", "function_call"] == [one["type"] for one in kept(tree, first.response)["output"]]
    assert "**Looking first**" == first.reasoning.text
    assert {"cmd": "echo hello"} == kept(tree, tool.request)
    assert "Process exited with code 3" in failed.error
    assert all(op.started_at <= op.ended_at for _, _, op in walk_ops(tree.session))
    assert all(session.messages for session in walk_sessions(tree.session))


def test_a_day_is_read_whole(tmp_path):
    """A directory is all its sessions; a sub-agent's file is part of its caller's, also from another day, alone a session of its own."""
    found = CODEX.read(FOLDER, strict=True)
    assert [MAIN.name[-41:-6]] == [tree.session.origin_txn_id[-35:] for tree in found.trees]
    for path, day in ((MAIN, "23"), (CHILD, "24")):
        (tmp_path / "2026" / "11" / day).mkdir(parents=True)
        shutil.copy(path, tmp_path / "2026" / "11" / day)
    [tree] = CODEX.read(tmp_path / "2026" / "11" / "23" / MAIN.name, strict=True).trees
    assert 8 == tree.session.totals.llm_requests
    [alone] = CODEX.read(tmp_path / "2026" / "11" / "24", strict=True).trees
    assert 2 == alone.session.totals.llm_requests


@pytest.mark.parametrize("form", ["item", "event"])
def test_sub_agents_that_have_paths(tmp_path, form):
    """Where a call's result tells a path alone, an item or an event tells the sub-agent; its file may begin as a fork."""
    child, started = ID[:-1] + "2", {"agent_thread_id": ID[:-1] + "2", "agent_path": "/root/sub", "kind": "started"}
    usage = {"thread_id": ID, "response_id": "r1", "usage": tokens(5, 0, 5)}
    told = (
        event(2, "item_completed", item={"type": "SubAgentActivity", "id": "call-1", **started})
        if form == "item"
        else line(2, "event_msg") | {"payload": {"type": "sub_agent_activity", "event_id": "call-1", **started}}
    )
    asked = [event(1, "task_started", turn_id="t"), says(1, "go", "user"), calls(2, "call-1", "spawn_agent", task_name="sub", message="do")]
    begun = [line(3, "inter_agent_communication_metadata", trigger_turn=True), item(3, "agent_message", author="/root", content=[])]
    (tmp_path / f"rollout-{child}.jsonl").write_text(
        "\n".join(
            map(
                json.dumps,
                [
                    line(2, "session_meta", **META | {"id": child}, parent_thread_id=ID, forked_from_id=ID),
                    line(2, "session_meta", **META),
                    *asked,
                    event(2, "turn_aborted", reason="interrupted"),
                    event(3, "task_started", turn_id="u"),
                    *begun,
                    says(4, "done"),
                    line(4, "token_usage_record", **usage | {"thread_id": child, "response_id": "r2"}),
                    event(5, "task_complete", last_agent_message="done"),
                ],
            )
        )
        + "\n"
    )
    tree, faults = read(
        tmp_path / "rollout.jsonl",
        line(0, "session_meta", **META),
        *asked,
        line(2, "token_usage_record", **usage),
        told,
        item(3, "function_call_output", call_id="call-1", output='{"task_name":"/root/sub"}'),
        *begun,
        event(6, "task_complete", last_agent_message=None),
    )
    assert [[("llm", "openai:unknown", "ok"), ("session", "sub", "ok")]] == shape(tree.session)
    assert "done" == tree.session.turns[0].ops[1].child_session.turns[-1].assistant["content"]
    assert ([(5, 0, 5, 0)] * 2, []) == (sums(tree), faults)


def test_running_sums_count_once(tmp_path):
    """Older files have only sums: said twice they count once, a count that was missed is in the next, and sums that begin anew go on."""
    tree, _ = read(
        tmp_path / "s.jsonl",
        line(0, "session_meta", **META),
        event(1, "user_message", message="go"),
        line(1, "turn_context", model="gpt-5-codex"),
        item(2, "reasoning", summary=[{"type": "summary_text", "text": "hm"}], encrypted_content="x"),
        calls(2, "c1", command=["ls"]),
        counted(2.5, tokens(100, 60, 10, 4), tokens(100, 60, 10, 4)),
        item(3, "function_call_output", call_id="c1", output=json.dumps({"output": "no", "metadata": {"exit_code": 2}})),
        counted(3, tokens(100, 60, 10, 4), tokens(100, 60, 10, 4)),
        says(4, "a"),
        counted(4, tokens(350, 200, 30, 9), tokens(150, 80, 10, 1)),
        event(5, "user_message", message="more"),
        says(5, "more", "user"),
        says(6, "b"),
        counted(6, tokens(20, 0, 2), tokens(20, 0, 2)),
    )
    assert [(100, 60, 10, 4), (250, 140, 20, 5), (20, 0, 2, 0)] == sums(tree)
    model = ("llm", "openai:gpt-5-codex", "ok")
    assert [[model, ("tool", "shell", "failed"), model], [model]] == shape(tree.session)
    assert ["go", "more"] == [turn.prompts["user"] for turn in tree.session.turns]


def test_outcomes_of_tools(tmp_path):
    """A tool failed where an event says it, or its exit code; one that the provider ran ends at once; one without an output stays open."""
    tree, _ = read(
        tmp_path / "s.jsonl",
        line(0, "session_meta", **META),
        event(1, "task_started", turn_id="t"),
        says(1, "go", "user"),
        calls(2, "c1", "mcp__files__read", path="x"),
        item(2, "custom_tool_call", name="apply_patch", input="*** Begin", call_id="c2"),
        item(2, "web_search_call", status="completed", action={"type": "search", "query": "q"}),
        item(2, "local_shell_call", call_id="c3", status="completed", action={"type": "exec", "command": ["ls"]}),
        calls(2, "c4", "never", x=1),
        event(3, "mcp_tool_call_end", call_id="c1", result={"Err": "no such file"}),
        item(3, "function_call_output", call_id="c1", output="no such file"),
        item(3, "custom_tool_call_output", call_id="c2", output="Exit code: 0\nOutput:\nok"),
        item(3, "function_call_output", call_id="c3", output={"content": "broken", "success": False}),
        event(4, "turn_aborted", reason="interrupted"),
    )
    [turn] = tree.session.turns
    assert [
        ("mcp__files__read", "failed", "no such file"),
        ("apply_patch", "ok", None),
        ("web_search", "ok", None),
        ("local_shell", "failed", "broken"),
        ("never", None, None),
    ] == [(op.name, op.status, op.error) for op in turn.ops[1:]]
    assert ("cancelled", "files") == (turn.status, turn.ops[1].accounting[0].mcp_server)


def test_what_a_fork_brings_is_counted_where_it_was(tmp_path):
    """Answers that a fork has from another session are there, and counted by that one."""
    other = {"thread_id": "another", "response_id": "r1", "usage": tokens(5, 0, 5)}
    tree, _ = read(
        tmp_path / "s.jsonl",
        line(0, "session_meta", **META, forked_from_id="another"),
        line(0, "session_meta", **{**META, "id": "another"}),
        event(1, "task_started", turn_id="t"),
        says(1, "go", "user"),
        says(2, "a"),
        line(2, "token_usage_record", **other),
        event(3, "task_complete", last_agent_message="a"),
        event(4, "task_started", turn_id="u"),
        says(4, "more", "user"),
        says(5, "b"),
        line(5, "token_usage_record", **{**other, "thread_id": ID, "response_id": "r2"}),
        line(5, "token_usage_record", **{**other, "thread_id": ID, "response_id": "r2"}),
    )
    assert [(5, 0, 5, 0)] == sums(tree)
    assert (ID, None) == (tree.session.origin_txn_id, tree.session.ended_at)


def test_what_is_odd_is_said_by_line(tmp_path):
    """What cannot be read, or is of no known kind, is said by line and passed over; with --strict it is refused."""
    lines = [
        line(0, "session_meta", **META),
        '{"torn": ',
        {"type": "event_msg", "payload": {}},
        {**line(1, "event_msg"), "payload": 7},
        line(1, "of_tomorrow"),
        event(1, "of_tomorrow"),
        says(1, "go", "user"),
        item(2, "function_call", name=7, arguments="{", call_id=["x"]),
        counted(2, {"input_tokens": "many", "output_tokens": -3}, None),
        item(3, "function_call_output", call_id="never", output=None),
        line(3, "compacted", message="in short", replacement_history=7),
        says(4, "end"),
    ]
    tree, faults = read(tmp_path / "s.jsonl", *lines, strict=False)
    assert [2, 3, 4, 5] == [fault.line for fault in faults]
    assert [("llm", "openai:unknown"), ("tool", "7"), ("system", "compact"), ("llm", "openai:unknown")] == [
        (op.kind, op.name) for _, _, op in walk_ops(tree.session)
    ]
    assert [{"role": "user", "content": "in short"}] == kept(tree, tree.session.turns[0].ops[3].request)["messages"]
    with pytest.raises(FormatError, match="line 2: is not JSON"):
        read(tmp_path / "s.jsonl", *lines)
