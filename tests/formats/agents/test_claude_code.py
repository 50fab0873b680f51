"""Session files of Claude Code: those in `data` its version 2.1.330 wrote, against a scripted provider; its own prompts are taken out."""

import json
import shutil
from pathlib import Path

import pytest

from optree import walk_ops, walk_sessions
from optree._formats.installed import format_named
from optree.errors import FormatError
from tests.growth import SQUARE, growth
from tests.security.test_bombs import within

CLAUDE_CODE = format_named("claude-code")
FOLDER = Path(__file__).with_name("data") / "claude-code"
MAIN = FOLDER / "81c21c3f-7545-4734-9c49-5010cf0d5d6d.jsonl"
FORK = FOLDER / "6e00ef8c-d031-4cb1-b696-e0c876f956a5.jsonl"
SESSION = "5e55104e-0000-4000-8000-000000000001"
USAGE = {
    "input_tokens": 10,
    "cache_creation_input_tokens": 50,
    "cache_read_input_tokens": 1000,
    "cache_creation": {"ephemeral_5m_input_tokens": 20, "ephemeral_1h_input_tokens": 30},
    "output_tokens": 40,
    "output_tokens_details": {"thinking_tokens": 7},
}


def entry(kind, second, message=None, *, uuid=None, above=None, **more):
    """Return an entry as a session file has it, at a second of one minute."""
    made = {"parentUuid": above, "isSidechain": False, "type": kind, "uuid": uuid or f"u{second}-{kind}", "sessionId": SESSION}
    made["timestamp"] = f"2026-11-23T15:00:{second:06.3f}Z"
    return {**made, **({} if message is None else {"message": message}), **more}


def user(second, content, **more):
    """Return what a user or a tool says."""
    return entry("user", second, {"role": "user", "content": content}, **more)


def said(second, identity, *blocks, usage=None, stop=None, model="claude-opus-5-5", **more):
    """Return a line of an answer."""
    message = {"id": identity, "role": "assistant", "model": model, "content": list(blocks), "stop_reason": stop, "usage": usage or USAGE}
    return entry("assistant", second, message, **more)


def text(words):
    """Return a block of text."""
    return {"type": "text", "text": words}


def call(identity, name="Bash", **arguments):
    """Return a block that calls a tool."""
    return {"type": "tool_use", "id": identity, "name": name, "input": arguments}


def result(identity, content, **more):
    """Return the blocks of a tool's result."""
    return [{"type": "tool_result", "tool_use_id": identity, "content": content, **more}]


def read(path, *entries, strict=True):
    """Return the tree and the faults of a file with these entries."""
    path.write_text("".join((one if isinstance(one, str) else json.dumps(one)) + "\n" for one in entries))
    found = CLAUDE_CODE.read(path, strict=strict)
    [tree] = found.trees
    return tree, found.faults


def shape(session):
    """Return what ran in a session: kinds, names and outcomes, by turn."""
    return [[(op.path, op.kind, op.name, op.status) for op in turn.ops] for turn in session.turns]


def kept(tree, payload):
    """Return a request or response in full."""
    return tree.pool.resolve(json.loads(bytes(payload.payload)))


def test_a_session_of_the_program_itself():
    """Prompts are turns, an answer over several lines is one op, tools and the sub-agent have outcomes, and each token counts once."""
    found = CLAUDE_CODE.read(MAIN, strict=True)
    [tree] = found.trees
    root = tree.session
    opus = "anthropic:claude-opus-5-5"
    assert [
        [
            ("1.1", "llm", opus, "ok"),
            ("1.2", "tool", "Bash", "ok"),
            ("1.3", "tool", "Bash", "ok"),
            ("1.4", "llm", opus, "ok"),
            ("1.5", "tool", "Bash", "failed"),
            ("1.6", "llm", opus, "ok"),
            ("1.7", "session", "general-purpose", "ok"),
            ("1.8", "llm", opus, "ok"),
        ],
        [("2.1", "llm", opus, "ok")],
        [("3.1", "llm", opus, "failed")],
    ] == shape(root)
    child = root.turns[0].ops[6].child_session
    assert [[("1.7.1.1", "llm", opus, "ok"), ("1.7.1.2", "tool", "Bash", "ok"), ("1.7.1.3", "llm", opus, "ok")]] == shape(child)
    assert ["Please say hello", "PROMPT-BUSY and again", "PROMPT-FAIL now"] == [turn.prompts["user"] for turn in root.turns]
    assert ["ok", "ok", "failed"] == [turn.status for turn in root.turns]
    assert (MAIN.stem, "claude-code", "2.1.330", "/home/me/project") == (
        root.origin_txn_id,
        root.agent_id,
        root.attributes["version"],
        root.attributes["cwd"],
    )
    assert ("ok", '"The sub-agent is done."') == (child.status, bytes(child.final_report).decode())
    assert [MAIN.with_suffix("") / "subagents" / "agent-a5ec2051f2cfa4b05.jsonl"] == found.beside


def test_its_tokens_are_those_that_it_counted_itself():
    """Totals equal what Claude Code has written of its own count, by tier; nobody gave a cost of a call, so it is unknown."""
    [tree] = CLAUDE_CODE.read(MAIN).trees
    [own] = json.loads(MAIN.read_text().splitlines()[-1])["modelUsage"].values()
    totals = tree.session.totals
    assert (own["inputTokens"], own["outputTokens"], own["cacheReadInputTokens"], own["cacheCreationInputTokens"]) == (
        totals.input_tokens,
        totals.output_tokens,
        totals.cache_read_input_tokens,
        totals.cache_write_input_tokens,
    )
    entries = [one for _, _, op in walk_ops(tree.session) for one in op.accounting if one.tokens]
    hour = sum(json.loads(bytes(one.details))["cache_write_1h_tokens"] for one in entries)
    assert own["cacheCreationEphemeral1hInputTokens"] == hour
    assert (0, 8, 1) == (totals.known_costs, totals.llm_requests, totals.llm_failed)


def test_a_call_says_what_was_asked_and_answered():
    """A request is the conversation so far, an answer all its blocks, reasoning the thinking; times are the file's."""
    [tree] = CLAUDE_CODE.read(MAIN).trees
    first, _, failed, last = (tree.session.turns[0].ops[number] for number in (0, 1, 4, 7))
    assert {"model": "claude-opus-5-5", "messages": [{"role": "user", "content": "Please say hello"}]} == kept(tree, first.request)
    assert ["thinking", "text", "tool_use", "tool_use"] == [block["type"] for block in kept(tree, first.response)["content"]]
    assert "I should look first." == first.reasoning.text
    roles = [message["role"] for message in kept(tree, last.request)["messages"]]
    assert ["user", "assistant", "user", "user", "assistant", "user", "assistant", "user"] == roles
    assert {"command": "echo broken >&2; exit 3", "description": "fail"} == kept(tree, failed.request)
    assert ("Exit code 3\nbroken", "Exit code 3\nbroken") == (failed.error, kept(tree, failed.response))
    assert all(op.started_at <= op.ended_at for _, _, op in walk_ops(tree.session))
    assert [len(session.messages) for session in walk_sessions(tree.session)] == [13, 4]


def test_refused_requests_are_told_of():
    """Attempts that were repeated are warnings at the call that they led to; a request that was refused is a failed call."""
    [tree] = CLAUDE_CODE.read(MAIN).trees
    busy, refused = tree.session.turns[1].ops[0], tree.session.turns[2].ops[0]
    assert [("WRN", True)] * 2 == [(line.severity, "529" in line.message or "verloaded" in line.message) for line in busy.logs]
    assert "API Error: 400 the made-up request is invalid" == refused.error
    assert ["failed"] == [one.status for one in refused.accounting]


def test_a_fork_counts_nothing_twice():
    """A forked session begins with copies of another's lines: they are there, and what they took is the other's to count."""
    [fork] = CLAUDE_CODE.read(FORK).trees
    calls = [op for _, _, op in walk_ops(fork.session) if op.kind == "llm" and op.status == "ok"]
    assert [(True, ())] * 5 == [(op.attributes.get("copied"), op.accounting) for op in calls]
    assert 0 == fork.session.totals.all_input_tokens


def test_a_project_is_read_whole(tmp_path):
    """A directory is all its sessions; files of sub-agents are read with their sessions, alone only where these are not there."""
    folder = tmp_path / "project"
    shutil.copytree(FOLDER, folder)
    assert CLAUDE_CODE.detect(folder, b"")
    found = CLAUDE_CODE.read(folder)
    assert {FORK.stem, MAIN.stem} == {tree.session.origin_txn_id for tree in found.trees}
    alone = tmp_path / "alone"
    alone.mkdir()
    agent = next((folder / MAIN.stem).rglob("*.jsonl"))
    shutil.copy(agent, alone)
    [tree] = CLAUDE_CODE.read(alone, strict=True).trees
    assert (f"{MAIN.stem}-a5ec2051f2cfa4b05", 2) == (tree.session.origin_txn_id, tree.session.totals.llm_requests)


def test_lines_of_one_answer_count_once(tmp_path):
    """An answer's usage stands on each of its lines, with fewer tokens on the first ones of older versions: the last figure counts."""
    early = {**USAGE, "output_tokens": 3}
    tree, _ = read(
        tmp_path / "s.jsonl",
        user(1, "go"),
        said(2, "m1", text("a"), usage=early),
        said(3, "m1", call("t1", command="x"), uuid="b", stop="tool_use"),
        user(4, result("t1", "done")),
        said(5, "m1", text("b"), uuid="c"),
        said(6, "m2", text("end"), stop="end_turn"),
    )
    [first, tool, second] = tree.session.turns[0].ops
    [one] = first.accounting
    assert (10, 40, 1000, 50, 1100, 7) == (
        one.tokens.input_tokens,
        one.tokens.output_tokens,
        one.tokens.cache_read_input_tokens,
        one.tokens.cache_write_input_tokens,
        one.tokens.total_tokens,
        one.tokens.reasoning_output_tokens,
    )
    assert {"cache_write_1h_tokens": 30} == json.loads(bytes(one.details))
    assert (2, "ok", 2000.0) == (tree.session.totals.llm_requests, tool.status, round(tool.latency + 1000))
    assert [text("a"), call("t1", command="x"), text("b")] == kept(tree, second.request)["messages"][1]["content"]


def test_sub_agents_between_the_lines_of_their_caller(tmp_path):
    """Older files have sub-agents' lines among those of the session itself, told by `isSidechain`: the call with their prompt has them."""
    side = {"isSidechain": True}
    tree, faults = read(
        tmp_path / "s.jsonl",
        user(1, "go"),
        said(2, "m1", call("t1", "Task", prompt="look", subagent_type="scout"), call("t2", "Task", prompt="dig"), stop="tool_use"),
        user(3, "dig", uuid="d1", **side),
        user(3.1, "look", uuid="l1", **side),
        said(4, "d2", text("dug"), above="d1", uuid="d2", stop="end_turn", **side),
        said(5, "l2", text("looked"), above="l1", uuid="l2", stop="end_turn", **side),
        user(6, result("t1", "looked")),
        user(6.1, result("t2", "no hole", is_error=True)),
        user(7, "lost", uuid="x1", **side),
        said(8, "m2", text("end"), stop="end_turn"),
    )
    [_, scout, digger, stray, _] = tree.session.turns[0].ops
    assert [("scout", "ok", "ok", "look"), ("agent", "failed", "failed", "dig"), ("agent", None, None, "lost")] == [
        (op.name, op.status, op.child_session.status, op.child_session.turns[0].prompts["user"]) for op in (scout, digger, stray)
    ]
    assert (4, []) == (tree.session.totals.llm_requests, faults)


def test_what_breaks_off_stays_open(tmp_path):
    """A file that stops within a tool's call leaves the call, its turn and its session open; one that stops behind an answer does not."""
    lines = [user(1, "go"), said(2, "m1", call("t1", command="x"), stop="tool_use")]
    tree, _ = read(tmp_path / "s.jsonl", *lines)
    [turn] = tree.session.turns
    assert (None, None, None) == (tree.session.ended_at, turn.ended_at, turn.ops[1].ended_at)
    tree, _ = read(tmp_path / "s.jsonl", *lines, user(3, result("t1", "x")), said(4, "m2", text("end"), stop="end_turn"))
    assert (None, "ok") == (tree.session.status, tree.session.turns[0].status)
    assert tree.session.ended_at == tree.session.turns[0].ended_at
    tree, _ = read(tmp_path / "s.jsonl", *lines, user(3, "[Request interrupted by user]"))
    assert "cancelled" == tree.session.turns[0].status


def test_histories_follow_what_the_user_did(tmp_path):
    """A compaction begins the history anew, a prompt at an earlier line sets it back, and both are seen in the requests."""
    tree, _ = read(
        tmp_path / "s.jsonl",
        user(1, "one", uuid="p1", above="start"),
        said(2, "m1", text("1"), stop="end_turn"),
        user(3, "two", uuid="p2", above="after-1"),
        said(4, "m2", text("2"), stop="end_turn"),
        user(5, "two again", uuid="p3", above="after-1"),
        said(6, "m3", text("2b"), stop="end_turn"),
        entry("system", 7, subtype="compact_boundary", compactMetadata={"trigger": "manual", "preTokens": 9}),
        user(8, "in short: one, two", isCompactSummary=True),
        user(9, "three", uuid="p4", above="after-3"),
        said(10, "m4", text("3"), stop="end_turn"),
    )
    asked = [
        [message["content"] for message in kept(tree, op.request)["messages"] if message["role"] == "user"]
        for _, _, op in walk_ops(tree.session)
        if op.kind == "llm"
    ]
    assert [["one"], ["one", "two"], ["one", "two again"], ["in short: one, two", "three"]] == asked
    [compact] = [op for _, _, op in walk_ops(tree.session) if op.kind == "system"]
    assert ("compact", 9) == (compact.name, compact.attributes["preTokens"])


def test_titles_and_commands(tmp_path):
    """A summary of this session is its title, one of another session is not; commands for the program alone make no turn."""
    tree, _ = read(
        tmp_path / "s.jsonl",
        {"type": "summary", "summary": "another one", "leafUuid": "elsewhere"},
        {"type": "summary", "summary": "a walk", "leafUuid": "u2-assistant"},
        user(0, "<command-name>/clear</command-name>", uuid="c1"),
        user(1, "go"),
        said(2, "m1", text("1"), stop="end_turn"),
        user(3, "<local-command-stdout>x</local-command-stdout>"),
    )
    assert ("a walk", ["go"]) == (tree.session.session_title, [turn.prompts["user"] for turn in tree.session.turns])


def test_what_is_odd_is_said_by_line(tmp_path):
    """What cannot be read, or is of no known kind, is said by line and passed over; with --strict it is refused."""
    lines = [
        user(1, "go"),
        '{"torn": ',
        "[1]",
        {**user(1, "no time"), "uuid": "n", "timestamp": "yesterday"},
        {**entry("user", 1), "uuid": "m", "message": 7},
        {"type": "of_tomorrow"},
        {"type": "of_tomorrow"},
        said(2, "m1", call("t1", command=["a", None]), {"type": "of_tomorrow"}, 7, usage={"input_tokens": -3, "output_tokens": "many"}),
        user(3, [*result("t1", None), *result("never", "x"), 8]),
        said(4, "m2", text("1"), stop="end_turn", model=None, usage=[]),
    ]
    tree, faults = read(tmp_path / "s.jsonl", *lines, strict=False)
    assert [2, 3, 4, 5, 6] == [fault.line for fault in faults]
    assert "is of a type that is not known, 'of_tomorrow', as are 1 more: passed over" == faults[-1].said
    assert [[("1.1", "llm"), ("1.2", "tool"), ("1.3", "llm")]] == [[(op.path, op.kind) for op in turn.ops] for turn in tree.session.turns]
    with pytest.raises(FormatError, match="line 2: is not JSON"):
        read(tmp_path / "s.jsonl", *lines)


@pytest.mark.slow
def test_a_long_session_takes_little(tmp_path):
    """A file of 40 MB is read in less than four times its size, and time grows with it, not with its square."""
    word = "x" * 2000

    def prepare(turns):
        path = tmp_path / f"{turns}.jsonl"
        with path.open("w") as file:
            for number in range(turns):
                for one in (
                    user(1, f"go {number} {word}", uuid=f"p{number}"),
                    said(2, f"m{number}", call(f"t{number}", command=f"{word} {number}"), uuid=f"a{number}"),
                    user(3, result(f"t{number}", f"{number} {word}"), uuid=f"r{number}"),
                    said(4, f"n{number}", text(f"{number} {word}"), uuid=f"b{number}", stop="end_turn"),
                ):
                    file.write(json.dumps(one) + "\n")
        return lambda: CLAUDE_CODE.read(path)

    work = prepare(4000)
    size = (tmp_path / "4000.jsonl").stat().st_size
    assert size > 35 << 20
    with within(4 * size):
        [tree] = work().trees
        assert 8000 == tree.session.totals.llm_requests
    assert growth(prepare, 500) < SQUARE
