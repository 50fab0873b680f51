"""Records of ai-agent's version 3, member by member: what each of them becomes in a tree, and what is wrong with those that are none."""

import gzip
import json
from datetime import UTC, datetime
from hashlib import sha256

import pytest

from optree._builder import SessionTreeBuilder
from optree._formats.ai_agent import AI_AGENT_V3, assembly
from optree._formats.ai_agent.records import derived_id
from optree._tree import walk_sessions
from optree._tree.walk import to_plain
from optree.testing import Ticking

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


def test_a_line_or_a_file_without_a_record_is_said(tmp_path):
    """What is no JSON, and a file in which nothing names a session, are said; all others count."""
    folder = put(tmp_path / "x", START, TURN, TURN_END, SUMMARY)
    path = folder / "s1.jsonl"
    first, *others = path.read_text().splitlines(keepends=True)
    path.write_text("".join([first, "{broken\n", "[1]\n", *others]))
    (folder / "a.jsonl").write_text("\n")
    read = AI_AGENT_V3.read(folder)
    session, faults = only(read)
    assert ("ok", [0, 2, 3]) == (session["status"], [fault.line for fault in read.faults])
    assert "a.jsonl: has no record of a session" == faults[0]
    assert [True, True] == [said.startswith("s1.jsonl: is no record: ") for said in faults[1:]]


def test_children_that_an_ended_turn_names_are_found_beside_one_file(tmp_path):
    """Of a session that never ended, one file is named: the child's stands beside it."""
    op = {"opId": "o9", "kind": "session", "startedAt": 2100, "childSessions": [{"sessionId": "s2"}]}
    folder = put(tmp_path / "x", START, TURN, {**TURN_END, "ops": [op]})
    (folder / "s2.jsonl").write_text(json.dumps(timed({**START, "sessionId": "s2", "agentId": "reader"})) + "\n")
    [tree] = AI_AGENT_V3.read(folder / "s1.jsonl").trees
    assert ["lead", "reader"] == [session.agent_id for session in walk_sessions(tree.session)]
    assert "1.1" == tree.session.turns[0].ops[0].child_session.path


def test_children_that_are_named_by_no_text_are_passed_over(tmp_path):
    """A number or nothing in the place of a session's id names no session."""
    children = [{"sessionId": name} for name in (7, "", None, "../s1", "s9")]
    folder = put(tmp_path / "x", START, TURN, {**TURN_END, "ops": [{"kind": "session", "childSessions": children}]}, SUMMARY)
    session, faults = only(AI_AGENT_V3.read(folder / "s1.jsonl"))
    assert ("ok", []) == (session["status"], faults)


@pytest.mark.parametrize(("room", "faults"), [(0, 0), (-1, 1)])
def test_a_payload_may_be_as_large_as_the_limit(tmp_path, monkeypatch, room, faults):
    """One byte more than the limit is not read."""
    builder = SessionTreeBuilder("lead", txn="t", now=Ticking())
    builder.begin_op("tool", "x").response("x" * 100)
    AI_AGENT_V3.write(builder.tree, tmp_path)
    monkeypatch.setattr(assembly, "MAX_PAYLOAD_BYTES", 102 + room)
    read = AI_AGENT_V3.read(tmp_path)
    assert (faults, not faults) == (len(read.faults), read.trees[0].session.turns[0].ops[0].response is not None)


@pytest.mark.parametrize(
    ("path", "is_path"), [("", True), ("1.2", True), (".".join("1" * 30), True), (f"{'1.' * 29}10", True), (f"{'1.' * 30}1", False)]
)
def test_a_session_is_named_by_its_path_or_by_its_hash(path, is_path):
    """A path of at most 60 characters stands in the name; of a longer one its hash does: names of files have an end."""
    expected = f"t-{path.replace('.', '-')}" if path else "t"
    assert is_path == (expected == derived_id("t", path))
    assert len(derived_id("t", path)) <= 62


def test_what_records_leave_out(tmp_path):
    """An agent without a name is unknown, a path of calls is the agent's, times are those of what is around, ids and kinds are made."""
    start = {**USUAL, "recordType": "session_start", "seq": 1, "ts": "yesterday", "callPath": None, "headendId": "api"}
    bare = {**TURN, "ts": None, "attributes": None}
    ended = {**TURN_END, "status": None, "ops": [{}, {"kind": "juggling", "status": "ok", "error": 3, "accounting": 7}], "attributes": None}
    session, faults = only(AI_AGENT_V3.read(put(tmp_path / "x", start, bare, ended)))
    [turn] = session["turns"]
    assert ("(unknown)", "(unknown)", 0.0, {}) == tuple(
        session.get(name, {}) for name in ("agentId", "callPath", "startedAt", "attributes")
    )
    assert (0.0, 3000.0, None, None, None) == tuple(turn.get(name) for name in ("startedAt", "endedAt", "status", "prompts", "assistant"))
    names = ("opId", "kind", "name", "startedAt", "endedAt", "status", "error", "accounting", "latency")
    txn = session["originTxnId"]
    assert [
        (f"{txn}:1.1", "system", "system", 0.0, None, None, None, [], None),
        (f"{txn}:1.2", "system", "system", 0.0, 3000.0, "ok", None, [], None),
    ] == [tuple(op.get(name) for name in names) for op in turn["ops"]]
    assert [] == faults


@pytest.mark.parametrize(
    ("source", "own", "expected"),
    [
        ("slack", {}, {"source": "slack"}),
        ("api", {}, None),
        ("sub-agent", {}, None),
        (7, {}, None),
        ("slack", {"ingress": {"source": "cli"}}, {"source": "cli"}),
    ],
)
def test_where_a_session_came_from(tmp_path, source, own, expected):
    """The head end is its source, unless its attributes say one, or it was a program or another agent."""
    session, _ = only(AI_AGENT_V3.read(put(tmp_path / "x", {**START, "headendId": source, "attributes": {"own": 1, **own}})))
    assert expected == session["attributes"].get("ingress")


def payload(folder, name, data):
    """Write a payload's file; returns what a record says of it."""
    path = folder / "payloads" / name
    path.parent.mkdir(exist_ok=True, parents=True)
    path.write_bytes(data)
    return {"kind": name, "captured": True, "path": f"payloads/{name}"}


@pytest.mark.parametrize(
    ("kind", "order", "expected"),
    [
        ("llm", ["sdk_request", "llm_request"], ("sdk_request", None, "llm")),
        ("llm", ["llm_request", "sdk_request"], ("sdk_request", None, "llm")),
        ("llm", ["llm_request"], ("llm_request", None, "llm")),
        ("llm", ["sdk_response", "llm_response"], (None, "sdk_response", None)),
        ("llm", ["llm_response", "sdk_response"], (None, "sdk_response", None)),
        ("llm", ["llm_response"], (None, "llm_response", None)),
        ("tool", ["tool_request", "tool_response", "of_tomorrow"], ("tool_request", "tool_response", "tool")),
    ],
)
def test_which_payload_counts(tmp_path, kind, order, expected):
    """What the provider's library was given and gave counts more than the bytes on the wire, in whichever order they are named."""
    refs = [payload(tmp_path, name, json.dumps({"from": name}).encode()) for name in order]
    op = {"opId": "o", "kind": kind, "startedAt": 2100, "payloadRefs": refs}
    session, faults = only(AI_AGENT_V3.read(put(tmp_path / "session", START, TURN, {**TURN_END, "ops": [op]})))
    [found] = session["turns"][0]["ops"]
    request, response = found.get("request"), found.get("response")
    assert ([], expected) == (
        faults,
        (request and request["payload"]["from"], response and response["payload"]["from"], request and request["kind"]),
    )


@pytest.mark.parametrize(
    ("data", "more", "expected"),
    [
        (b'{"a":1}', {}, ({"a": 1}, 7, None)),
        ('"wörter"'.encode(), {}, ("wörter", 6, None)),
        (b"no json \xff", {"truncated": True}, ("no json \ufffd", 9, True)),
        (b'{"a":1}', {"truncated": "yes"}, ({"a": 1}, 7, None)),
        (b'{"a":1}', {"sha256": sha256(b'{"a":1}').hexdigest()}, ({"a": 1}, 7, None)),
        (b'{"a":1}', {"sha256": "0"}, None),
        (b'{"a":1}', {"captured": False}, None),
        (b'{"a":1}', {"path": 7}, None),
        (b'{"a":1}', {"path": "session/s1.jsonl"}, None),
    ],
)
def test_what_a_payload_is(tmp_path, data, more, expected):
    """JSON as it is, else a text; with its size, and whether it was cut. One that was not captured is none, without a fault."""
    ref = {**payload(tmp_path, "tool_response", data), **more}
    op = {"opId": "o", "kind": "tool", "startedAt": 2100, "payloadRefs": [ref]}
    session, faults = only(AI_AGENT_V3.read(put(tmp_path / "session", START, TURN, {**TURN_END, "ops": [op]})))
    found = session["turns"][0]["ops"][0].get("response")
    assert expected == (found and (found["payload"], found["size"], found.get("truncated")))
    assert bool(faults) == (expected is None and ref["captured"] and ref["path"] != 7)


def test_a_thought_that_is_no_utf_8_is_read(tmp_path):
    """With a mark in the place of what is none."""
    op = {"opId": "o", "kind": "llm", "startedAt": 2100, "payloadRefs": [payload(tmp_path, "reasoning_stream", b"hm \xff")]}
    session, faults = only(AI_AGENT_V3.read(put(tmp_path / "session", START, TURN, {**TURN_END, "ops": [op]})))
    assert ("hm \ufffd", []) == (session["turns"][0]["ops"][0]["reasoning"]["final"], faults)


@pytest.mark.parametrize(
    ("turns", "begun", "expected"),
    [
        ([], 2500, "1.1"),
        ([2000], 2500, "1.2"),
        ([2000], 1500, "1.2"),
        ([2000, 3000], 2500, "1.2"),
        ([2000, 3000], 3000, "2.2"),
        ([2000, 3000], None, "1.2"),
    ],
)
def test_where_a_child_stands_that_its_parent_does_not_name(tmp_path, turns, begun, expected):
    """In the turn that went on when it began, behind its ops; in the first for one that began before it, or without a time."""
    records = []
    for number, ts in enumerate(turns, 1):
        op = {"opId": f"o{number}", "kind": "tool", "startedAt": ts}
        records += [{**TURN, "turn": number, "ts": ts}, {**TURN_END, "turn": number, "ts": ts + 500, "ops": [op]}]
    folder = put(tmp_path / "x", START, *({**record, "seq": seq} for seq, record in enumerate(records, 2)))
    child = timed({**START, "sessionId": "s2", "agentId": "reader", "callPath": "lead:reader", "parentSessionId": "s1", "ts": begun})
    (folder / "s2.jsonl").write_text(json.dumps(child) + "\n")
    session, faults = only(AI_AGENT_V3.read(folder))
    [op] = [op for turn in session["turns"] for op in turn["ops"] if "childSession" in op]
    assert (expected, "session", "reader", begun or 1000.0, []) == (op["path"], op["kind"], op["name"], op["startedAt"], faults)
    assert ("s1", "lead->reader", "s1") == tuple(op["childSession"][name] for name in ("originTxnId", "callPath", "parentTxnId"))


# Written


def written():
    """Return a session with something in each member that a record can have."""
    root = SessionTreeBuilder("lead", txn="t", now=Ticking(), attributes={"ingress": {"source": "slack"}, "own": 1})
    root.set_title("Rain", status="asking")
    system = root.begin_turn(0)
    root.attach_child_session(root.begin_op("session", "hidden", turn=system), "hidden").end_session()
    system.end()
    turn = root.begin_turn(user="why?", attributes={"own": 2, "warnings": ["before"], "errors": ["x", 3]})
    call = root.begin_op("llm", "openai:gpt-4o", turn=turn, attributes={"own": 3})
    call.think("so ")
    call.think("what")
    for message, severity in (("slow", "WRN"), ("gone", "ERR"), ("fine", "VRB")):
        call.log(message, severity)
    call.account(input_tokens=3, output_tokens=2, cost_usd=0.25)
    call.account(input_tokens=10, cache_read_tokens=4, cache_write_tokens=5)
    call.request([{"role": "user", "content": "why?"}], temperature=0)
    call.response("because")
    call.end("failed", "late")
    tool = root.begin_op("tool", "mcp:search", turn=turn)
    tool.request(q="é")
    tool.chunk("half")
    tool.end("cancelled")
    sub = root.begin_op("session", "reader", turn=turn)
    root.attach_child_session(sub, "reader").end_session(final_report="read")
    sub.end()
    turn.assistant("so")
    turn.end("failed", "too late")
    root.end_session("failed", "gone", final_report={"answer": 42})
    for op in root.node.turns[1].ops:
        op.latency = 1234.5
    return root.tree


def head(kind, seq, ms, identity="t"):
    """Return what each record begins with; *ms* since the session began."""
    return {"version": 3, "recordType": kind, "seq": seq, "ts": at(ms), "originId": "t", "sessionId": identity}


def at(ms):
    """Return the time so many milliseconds after a session with a ticking clock began."""
    return f"2023-11-14T22:13:20.{ms:03d}Z"


def ref(kind, op, number, path, data, *, truncated=False):
    """Return what an op's record says of a payload of turn 1; of the packed file all but its size, which is the library's."""
    form = "text" if kind == "reasoning_stream" else "json" if kind.startswith("sdk") else "jsonrpc"
    return {
        "kind": kind, "opId": op, "turn": 1, "opIndex": number, "format": form, "compression": "gzip",
        "path": f"payloads/t/turn-0001/{path}", "originalBytes": len(data), "sha256": sha256(data).hexdigest(), "captured": True,
        "truncated": truncated, "redacted": False,
    }  # fmt: skip


def records_of(path):
    """Return a file's records, without the sizes of packed payloads."""
    found = [json.loads(line) for line in path.read_text().splitlines()]
    for one in found:
        for op in one.get("ops", ()):
            for payload in op.get("payloadRefs", ()):
                assert payload.pop("compressedBytes") == (path.parents[1] / payload["path"]).stat().st_size
    return found


def test_each_member_is_written(tmp_path):
    """Of a session, its turns, ops and sub-agents: every record is as expected, member by member, and no other file is there (S4-86)."""
    paths = AI_AGENT_V3.write(written(), tmp_path)
    root, child, *payloads = [path.relative_to(tmp_path).as_posix() for path in paths]
    sums = {"tokensIn": 4, "tokensOut": 2, "tokensCacheRead": 4, "tokensCacheWrite": 5, "costUsd": 0.25}
    data = {
        "llm-0001-sdk-request.json.gz": b'{"temperature":0,"messages":[{"role":"user","content":"why?"}]}',
        "llm-0001-sdk-response.json.gz": b'"because"',
        "llm-0001-reasoning.txt.gz": b"so what",
        "tool-0002-request.jsonrpc.gz": '{"q":"é"}'.encode(),
        "tool-0002-response.jsonrpc.gz": b'"half"',
    }
    assert data == {name.removeprefix("payloads/t/turn-0001/"): gzip.decompress((tmp_path / name).read_bytes()) for name in payloads}
    request, response, thought, asked, got = data
    llm = {
        "opId": "t:1.1", "opIndex": 1, "kind": "llm", "status": "failed", "startedAt": at(9), "endedAt": at(19), "durationMs": 1234,
        "provider": "openai", "model": "gpt-4o", "error": "late", "accounting": sums,
        "attributes": {"provider": "openai", "model": "gpt-4o", "own": 3, "latency": 1234, "error": "late"},
        "payloadRefs": [
            ref("sdk_request", "t:1.1", 1, request, data[request]), ref("sdk_response", "t:1.1", 1, response, data[response]),
            ref("reasoning_stream", "t:1.1", 1, thought, data[thought]),
        ],
    }  # fmt: skip
    tool = {
        "opId": "t:1.2", "opIndex": 2, "kind": "tool", "status": "failed", "startedAt": at(20), "endedAt": at(25), "durationMs": 1234,
        "provider": "mcp", "name": "search", "attributes": {"provider": "mcp", "name": "search", "latency": 1234},
        "payloadRefs": [
            ref("tool_request", "t:1.2", 2, asked, data[asked]), ref("tool_response", "t:1.2", 2, got, data[got], truncated=True),
        ],
    }  # fmt: skip
    linked = {
        "agentId": "reader", "callPath": "lead:reader", "sessionId": "t-1-3", "originId": "t", "parentSessionId": "t",
        "parentOpId": "t:1.3", "ledgerPath": "session/t-1-3.jsonl", "status": "ok",
    }  # fmt: skip
    sub = {
        "opId": "t:1.3", "opIndex": 3, "kind": "session", "status": "ok", "startedAt": at(26), "endedAt": at(29), "durationMs": 1234,
        "name": "reader", "childSessions": [linked], "attributes": {"name": "reader", "latency": 1234},
    }  # fmt: skip
    assert ("session/t.jsonl", "session/t-1-3.jsonl") == (root, child)
    assert [
        head("session_start", 1, 0) | {
            "agentId": "lead", "callPath": "lead", "headendId": "slack", "capturePayloads": True,
            "attributes": {
                "ledgerPath": "session/t.jsonl", "ingress": {"source": "slack"}, "own": 1, "sessionTitle": "Rain", "latestStatus": "asking",
            },
        },
        head("turn_start", 2, 8) | {"turn": 1, "attributes": {"own": 2, "errors": ["x", 3], "prompts": {"user": "why?"}}},
        head("turn_end", 3, 30) | {
            "turn": 1, "status": "failed", "ops": [llm, tool, sub], "accounting": sums, "warnings": ["before", "slow"], "errors": ["gone"],
            "attributes": {"assistant": {"content": "so"}, "error": "too late"},
        },
        head("session_summary", 4, 31) | {
            "status": "failed", "accounting": sums, "childSessions": [linked], "finalReport": {"format": "json", "captured": True},
            "error": "gone", "attributes": {"finalReport": {"answer": 42}},
        },
    ] == records_of(paths[0])  # fmt: skip
    [begun, ended] = records_of(paths[1])
    assert {"source": "sub-agent", "toolName": "reader"}.items() <= {
        **begun["attributes"]["ingress"],
        **begun["attributes"]["ingress"]["subAgent"],
    }.items()
    del begun["attributes"]["ingress"]
    assert head("session_start", 1, 27, "t-1-3") | {
        "agentId": "reader", "callPath": "lead:reader", "parentSessionId": "t", "parentOpId": "t:1.3", "headendId": "sub-agent",
        "capturePayloads": True, "attributes": {"ledgerPath": "session/t-1-3.jsonl"},
    } == begun  # fmt: skip
    assert head("session_summary", 2, 28, "t-1-3") | {
        "status": "ok", "finalReport": {"format": "text", "captured": True}, "attributes": {"finalReport": "read"},
    } == ended  # fmt: skip


def test_what_is_open_is_written_as_running(tmp_path):
    """Of a session that goes on: no summary; a turn with ops has a record that says it runs, at the time of its last; one without none."""
    root = SessionTreeBuilder("lead", txn="t", now=Ticking())
    turn = root.begin_turn()
    root.begin_op("tool", "read", turn=turn).think("hm")
    root.begin_op("tool", "write", turn=turn)
    root.begin_turn(user="and?")
    [path, _] = AI_AGENT_V3.write(root.tree, tmp_path)
    _, _, ran, waits = records_of(path)
    assert ("turn_end", "running", at(4)) == (ran["recordType"], ran["status"], ran["ts"])
    assert [("running", None, None), ("running", None, None)] == [
        tuple(op.get(name) for name in ("status", "endedAt", "durationMs")) for op in ran["ops"]
    ]
    assert head("turn_start", 4, 5) | {"turn": 2, "attributes": {"prompts": {"user": "and?"}}} == waits


@pytest.mark.parametrize(("set_", "records"), [("assistant", 4), ("error", 4), (None, 3)])
def test_an_open_turn_with_something_to_say_has_a_second_record(tmp_path, set_, records):
    """What the assistant said, or an error, is not lost though the turn has no ops and no end."""
    root = SessionTreeBuilder("lead", txn="t", now=Ticking())
    root.begin_turn()
    node = root.begin_turn().node
    if set_ is not None:
        setattr(node, set_, {"content": "so"} if set_ == "assistant" else "gone")
    [path] = AI_AGENT_V3.write(root.tree, tmp_path)
    found = records_of(path)
    assert records == len(found)
    assert set_ is None or {set_: getattr(node, set_)} == found[-1]["attributes"]


def test_an_op_id_that_is_there_twice(tmp_path):
    """Ops to which records give one id have ids of their own, and so have their bills; a child stands in the first of them."""
    child = {**USUAL, "recordType": "session_start", "seq": 1, "ts": 2150, "originId": "s1", "sessionId": "s2", "agentId": "helper"}
    caller = {**TOOL, "opId": "o1", "kind": "session", "childSessions": [{"sessionId": "s2"}]}
    folder = put(tmp_path / "x", START, TURN, {**TURN_END, "ops": [caller, LLM, LLM]}, SUMMARY)
    (folder / "s2.jsonl").write_text(json.dumps(timed(child)) + "\n")
    session, _ = only(AI_AGENT_V3.read(folder))
    [turn] = session["turns"]
    assert [("o1", "helper"), ("s1:1.2", None), ("s1:1.3", None)] == [
        (op["opId"], op.get("childSession", {}).get("agentId")) for op in turn["ops"]
    ]
    assert ["s1:1.2#1", "s1:1.3#1"] == [entry["id"] for op in turn["ops"] for entry in op.get("accounting", ())]
