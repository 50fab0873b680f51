"""Records of ai-agent's version 3, member by member: what each of them becomes in a tree, and what is wrong with those that are none."""

import json
from datetime import UTC, datetime

import pytest

from optree.tree.walk import to_plain
from optree_formats.ai_agent import AI_AGENT_V3

USUAL = {"version": 3, "sessionId": "s1"}
START = {
    **USUAL, "recordType": "session_start", "seq": 1, "ts": 1000, "originId": "s1", "agentId": "lead", "callPath": "lead",
    "headendId": "slack", "attributes": {"sessionTitle": "Rain", "latestStatus": "asking", "ledgerPath": "/x", "own": 1},
}  # fmt: skip
TURN = {
    **USUAL, "recordType": "turn_start", "seq": 2, "ts": 2000, "turn": 1,
    "attributes": {"prompts": {"user": "why?", "system": "be brief"}, "own": 2},
}  # fmt: skip
LLM = {
    "opId": "o1", "kind": "llm", "provider": "openai", "model": "gpt-4o", "status": "ok", "startedAt": 2100, "endedAt": 2200,
    "attributes": {"latency": 99.5, "own": 3},
    "accounting": {"tokensIn": 7, "tokensOut": 5, "tokensCacheRead": 3, "tokensCacheWrite": 2, "costUsd": 0.25},
}  # fmt: skip
TOOL = {
    "opId": "o2", "kind": "tool", "provider": "mcp", "status": "failed", "startedAt": 2300, "endedAt": 2400, "durationMs": 80,
    "error": "gone", "attributes": {"name": "search"},
}  # fmt: skip
OPEN = {"opId": "o3", "kind": "tool", "provider": "mcp", "startedAt": 2500, "status": "running", "attributes": {"name": "read"}}
TURN_END = {
    **USUAL, "recordType": "turn_end", "seq": 3, "ts": 3000, "turn": 1, "status": "ok", "ops": [LLM, TOOL, OPEN],
    "attributes": {"assistant": {"content": "because"}, "error": "late"}, "warnings": ["w"], "errors": [],
}  # fmt: skip
SUMMARY = {
    **USUAL, "recordType": "session_summary", "seq": 4, "ts": 4000, "status": "ok", "attributes": {"finalReport": {"answer": 42}},
}  # fmt: skip


def put(folder, *records):
    """Write records into a file of a folder; returns the folder. Times are given in ms, and written as the original does."""
    folder.mkdir(exist_ok=True)
    (folder / "s1.jsonl").write_text("".join(json.dumps(timed(record)) + "\n" for record in records))
    return folder


def timed(record):
    """Return a record, or an op of it, with its times as text."""
    times = {name: iso(record[name]) for name in ("ts", "startedAt", "endedAt") if isinstance(record.get(name), int)}
    return record | times | ({"ops": [timed(op) for op in record["ops"]]} if "ops" in record else {})


def iso(ms):
    """Return a time as text."""
    return datetime.fromtimestamp(ms / 1e3, UTC).isoformat()


def only(read):
    """Return the only session that was read, as plain values, and what was wrong."""
    [tree] = read.trees
    return to_plain(tree)["session"], [fault.said for fault in read.faults]


def test_each_member_has_its_place(tmp_path):
    """A session, a turn, a call with its bill, a tool that failed, and one that is open (S4-86)."""
    session, faults = only(AI_AGENT_V3.read(put(tmp_path / "x", START, TURN, TURN_END, SUMMARY)))
    assert [] == faults
    expected = {
        "originTxnId": "s1", "agentId": "lead", "callPath": "lead", "startedAt": 1000.0, "endedAt": 4000.0, "status": "ok", "success": True,
        "sessionTitle": "Rain", "latestStatus": "asking", "finalReport": {"answer": 42},
    }  # fmt: skip
    assert expected == {name: session.get(name) for name in expected}
    assert ({"source": "slack"}, 1, False) == (
        session["attributes"]["ingress"],
        session["attributes"]["own"],
        "ledgerPath" in session["attributes"],
    )
    [turn] = session["turns"]
    expected = {
        "path": "1", "index": 1, "startedAt": 2000.0, "endedAt": 3000.0, "status": "ok", "error": "late",
        "prompts": {"user": "why?", "system": "be brief"}, "assistant": {"content": "because"},
    }  # fmt: skip
    assert expected == {name: turn.get(name) for name in expected}
    assert (2, ["w"], False) == (turn["attributes"]["own"], turn["attributes"]["warnings"], "errors" in turn["attributes"])
    names = ("opId", "path", "kind", "name", "startedAt", "endedAt", "status", "latency", "error")
    assert [
        ("o1", "1.1", "llm", "openai:gpt-4o", 2100.0, 2200.0, "ok", 99.5, None),
        ("o2", "1.2", "tool", "mcp:search", 2300.0, 2400.0, "failed", 80.0, "gone"),
        ("o3", "1.3", "tool", "mcp:read", 2500.0, None, None, None, None),
    ] == [tuple(op.get(name) for name in names) for op in turn["ops"]]
    [entry] = turn["ops"][0]["accounting"]
    assert ("o1#1", 2200.0, "llm", "openai", "gpt-4o", 0.25) == tuple(
        entry.get(name) for name in ("id", "timestamp", "type", "provider", "model", "costUsd")
    )
    assert {"inputTokens": 7, "outputTokens": 5, "cacheReadInputTokens": 3, "cacheWriteInputTokens": 2, "totalTokens": 17} == entry[
        "tokens"
    ]
    assert [[], []] == [op["accounting"] for op in turn["ops"][1:]]
    assert 3 == turn["ops"][0]["attributes"]["own"]


def test_a_turn_that_runs_is_open(tmp_path):
    """A turn whose last record says that it runs has no end; the one that ends it counts, and a second end does not."""
    runs, again = {**TURN_END, "seq": 5, "status": "running", "ops": []}, {**TURN_END, "seq": 6, "ts": 9000, "status": "failed"}
    session, faults = only(AI_AGENT_V3.read(put(tmp_path / "x", START, TURN, runs)))
    assert (None, None, []) == (session["turns"][0].get("endedAt"), session["turns"][0].get("status"), faults)
    session, faults = only(AI_AGENT_V3.read(put(tmp_path / "x", START, TURN, runs, TURN_END, again)))
    assert (3000.0, "ok", 3) == (session["turns"][0]["endedAt"], session["turns"][0]["status"], len(session["turns"][0]["ops"]))
    assert ["s1.jsonl: turn 1 ends a second time: its first end counts"] == faults


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"version": 2}, "has version 2"),
        ({"recordType": "x"}, "is of a type that is not known, 'x'"),
        ({"sessionId": ""}, "names no session"),
        ({"sessionId": 3}, "names no session"),
        ({"sessionId": "s2"}, "is a record of another session, s2"),
        ({"turn": 0}, "is of a turn 0"),
        ({"turn": 10**9}, "is of a turn 1000000000"),
        ({"turn": "1"}, "is of a turn '1'"),
        ({"turn": None}, "is of a turn None"),
    ],
)
def test_a_record_that_is_none_is_passed_over(tmp_path, changes, said):
    """It is said by line, and the others count."""
    read = AI_AGENT_V3.read(put(tmp_path / "x", START, {**TURN, **changes, "seq": 9}, TURN, TURN_END, SUMMARY))
    session, faults = only(read)
    assert ([2], True, "ok") == ([fault.line for fault in read.faults], said in faults[0], session["status"])
    assert [1] == [turn["index"] for turn in session["turns"]]


def test_a_record_that_is_there_twice(tmp_path):
    """The same record once more is passed over and said; another one with its number counts."""
    session, faults = only(AI_AGENT_V3.read(put(tmp_path / "x", START, START, TURN, {**TURN_END, "seq": 2}, SUMMARY)))
    assert (["s1.jsonl: record 1 is there twice: once is enough"], 3000.0) == (faults, session["turns"][0]["endedAt"])


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        ({**SUMMARY, "status": "failed", "error": "x"}, ("failed", False, "x", 4000.0)),
        ({**SUMMARY, "status": None}, (None, None, None, 4000.0)),
        ({**SUMMARY, "recordType": "session_end"}, None),
        ({**SUMMARY, "ts": None}, ("ok", True, None, 1000.0)),
    ],
)
def test_how_a_session_ended(tmp_path, record, expected):
    """As its last record says, and no better; without a time, when it began."""
    session, faults = only(AI_AGENT_V3.read(put(tmp_path / "x", START, TURN, TURN_END, record)))
    if expected is None:
        assert (None, 1) == (session.get("endedAt"), len(faults))
    else:
        assert expected == tuple(session.get(name) for name in ("status", "success", "error", "endedAt"))


def test_a_session_has_one_file(tmp_path):
    """Of two files of one session the first counts, and the other is said."""
    folder = put(tmp_path / "x", START, TURN, TURN_END, SUMMARY)
    (folder / "s2.jsonl").write_text(json.dumps(timed({**START, "agentId": "other"})) + "\n")
    session, faults = only(AI_AGENT_V3.read(folder))
    assert ("lead", ["s2.jsonl: session s1 has another file already: this one is passed over"]) == (session["agentId"], faults)
