"""The original ai-agent's files: written member for member as it does, and read in all three versions."""

import gzip
import json
import os
import pathlib
from hashlib import sha256

import pytest

from optree._builder import SessionTreeBuilder
from optree._formats.ai_agent import AI_AGENT, AI_AGENT_V1, AI_AGENT_V3, assembly
from optree._formats.installed import detected, installed_formats
from optree._formats.plain_json import JSON
from optree._store.reading.recovery import load
from optree._tree import flatten, walk_ops, walk_sessions
from optree.errors import FormatError, OptreeError, StoreError
from optree.testing import Ticking
from tests.formats.samples import sample
from tests.growth import SQUARE, growth

SESSION = [
    "id",
    "traceId",
    "agentId",
    "callPath",
    "sessionTitle",
    "latestStatus",
    "startedAt",
    "endedAt",
    "success",
    "attributes",
    "totals",
    "turns",
]
ORIGIN = "33333333-3333-4333-8333-333333333331"
CHILD = "33333333-3333-4333-8333-333333333332"


@pytest.fixture(params=[AI_AGENT_V1, AI_AGENT], ids=["1", "2"])
def snapshot(request, tmp_path):
    """Return a written snapshot's version, path and document."""
    [path] = request.param.write(sample(), tmp_path / "t.json.gz")
    return request.param, path, json.loads(gzip.decompress(path.read_bytes()))


def test_a_snapshot_has_the_members_of_the_original(snapshot):
    """Members have the original's names and order, times are whole milliseconds, money has four decimals (S4-86)."""
    form, _, document = snapshot
    root = document["opTree"]
    if form is AI_AGENT_V1:
        assert (["version", "reason", "opTree"], 1, SESSION) == (list(document), document["version"], list(root))
    else:
        assert ["version", "reason", "sessionId", "originId", "originTxnId", "timestamp", "opTree"] == list(document)
        assert ([*SESSION, "steps", "finalReport"], 2) == (list(root), root["totals"]["agentsRun"])
    assert ("final", True, "lead") == (document["reason"], root["success"], root["agentId"])
    assert {
        "tokensIn": 812,
        "tokensOut": 64,
        "tokensCacheRead": 7,
        "tokensCacheWrite": 0,
        "costUsd": 0.0031,
        "toolsRun": 1,
    }.items() <= root["totals"].items()
    [call, sub] = root["turns"][0]["ops"]
    assert {"opId": "t:1.1", "kind": "llm", "status": "ok"}.items() <= call.items()
    assert {"provider": "openai", "model": "gpt-4o"}.items() <= call["attributes"].items()
    assert {"system": "be brief", "user": "why?"} == root["turns"][0]["attributes"]["prompts"]
    assert [{"role": "user", "content": "why?"}] == call["request"]["payload"]["messages"]
    assert all(isinstance(node["startedAt"], int) for node in (root, call, sub, sub["childSession"]))


def test_paths_count_within_each_child(snapshot):
    """A log of a child session has the path within that session: with a dot in version 1, with a hyphen in version 2."""
    form, _, document = snapshot
    child = document["opTree"]["turns"][0]["ops"][1]["childSession"]
    [log] = child["turns"][0]["ops"][0]["logs"]
    assert ("1.1" if form is AI_AGENT_V1 else "1-1", 1, 1) == (log["path"], log["turn"], log["subturn"])
    assert ("ERR", "404", "fetch:get", "t:1.2", "t", "t") == tuple(
        log[name] for name in ("severity", "message", "remoteIdentifier", "txnId", "parentTxnId", "originTxnId")
    )


def test_optree_load_reads_what_was_written(snapshot):
    """`optree load FILE` takes what an export wrote: ids, paths, bill and thoughts are there (S4-97)."""
    _, path, _ = snapshot
    loaded = load(path)
    tree = sample()
    assert [op.op_id for _, _, op in walk_ops(tree.session)] == [op.op_id for _, _, op in walk_ops(loaded.session)]
    assert ("t", "t", tree.session.trace_id) == (loaded.txn, loaded.session.id, loaded.session.trace_id)
    assert pytest.approx(0.00311) == loaded.session.totals.cost_usd
    assert "the user wants to know" == loaded.session.turns[0].ops[0].reasoning.final


def test_a_report_and_details_of_logs_are_read(tmp_path):
    """Version 2's final report and a log's details are kept; steps become turns behind the others; tokens from a cache count."""
    op = {"opId": "o", "kind": "llm", "startedAt": 5, "logs": [{"timestamp": 6, "severity": "WRN", "message": "x", "details": {"a": 1}}]}
    op["accounting"] = [
        {
            "type": "llm",
            "timestamp": 7,
            "status": "ok",
            "stopReason": "end",
            "tokens": {"inputTokens": 1, "outputTokens": 2, "cachedTokens": 3},
        }
    ]
    step = {"id": "s", "index": 1, "kind": "internal", "startedAt": 4, "endedAt": 9, "ops": [op]}
    root = {"id": "r", "traceId": "u-1", "agentId": "a", "startedAt": 1, "turns": [], "steps": [step], "finalReport": {"format": "json"}}
    path = tmp_path / "u-1.json.gz"
    path.write_bytes(gzip.compress(json.dumps({"version": 2, "reason": "final", "opTree": root}).encode()))
    [tree] = AI_AGENT.read(path).trees
    [turn] = tree.session.turns
    assert (b'{"format":"json"}', {"step": {"index": 1, "kind": "internal"}}) == (bytes(tree.session.final_report), turn.attributes)
    assert {"a": 1} == flatten(tree.session).logs[0]["details"]
    assert (3, 6) == (tree.session.totals.cache_read_input_tokens, turn.ops[0].accounting[0].tokens.total_tokens)
    assert b'{"format":"json"}' == bytes(load(path).session.final_report)


@pytest.mark.parametrize("form", [AI_AGENT, JSON], ids=lambda form: form.name)
def test_damage_names_its_file_once(tmp_path, form):
    """What is said of a file that breaks off begins with its name, once."""
    [path] = form.write(sample(), tmp_path / "x.json")
    data = path.read_bytes()
    path.write_bytes((gzip.decompress(data) if form is AI_AGENT else data)[:-60])
    assert ["x.json"] == [word.strip(":") for word in form.read(path).faults[0].of(path.name).split() if "x.json" in word]


@pytest.mark.parametrize("txn", ["a[1]", "\x1b[8m", "{x", 'q"}"opTree":', "b\\"])
def test_told_by_its_beginning_whatever_a_name_has(txn):
    """A file is recognised also if a txn in front of the tree has brackets, quotes or escapes."""
    head = json.dumps({"version": 2, "originTxnId": txn, "opTree": {"id": "r"}}).encode()
    assert AI_AGENT.detect(pathlib.Path("f.json.gz"), head)
    assert not AI_AGENT.detect(pathlib.Path("f.json.gz"), json.dumps({"version": 2, "a": txn, "b": {"opTree": 1}}).encode())


def test_cached_tokens_within_the_input_count_once(tmp_path):
    """Where an entry's total proves that its input includes the cached tokens, sums count them once; the file comes back as it was."""
    tokens = {"inputTokens": 1200, "outputTokens": 5, "cachedTokens": 1000, "totalTokens": 1205}
    entry = {"type": "llm", "timestamp": 7, "status": "ok", "provider": "openai", "model": "m", "tokens": tokens}
    op = {"opId": "o", "kind": "llm", "startedAt": 5, "endedAt": 8, "status": "ok", "logs": [], "accounting": [entry]}
    turn = {"id": "t", "index": 1, "startedAt": 4, "endedAt": 9, "ops": [op]}
    root = {"id": "r", "traceId": "u-1", "agentId": "a", "startedAt": 1, "endedAt": 10, "success": True, "turns": [turn]}
    document = {"version": 1, "reason": "final", "opTree": root}
    path = tmp_path / "u-1.json.gz"
    path.write_bytes(gzip.compress(json.dumps(document).encode()))
    read = AI_AGENT.read(path)
    totals = read.trees[0].session.totals
    assert (1200, 1000, 200, []) == (totals.all_input_tokens, totals.cache_read_input_tokens, totals.input_tokens, read.faults)
    [written] = AI_AGENT.write(read.trees[0], tmp_path / "again.json.gz")
    assert document == json.loads(gzip.decompress(written.read_bytes()))


def test_what_cannot_be_read_of_a_snapshot_is_named(tmp_path):
    """A node of the wrong shape is passed over and named, and all others are read; strict reading refuses the file."""
    bad = {"opId": "o", "kind": "juggling", "startedAt": 5, "accounting": [{"type": "llm"}, "x"], "logs": [{"message": 5}]}
    root = {"id": "r", "traceId": "u-1", "startedAt": 1, "turns": [{"index": 1, "ops": [bad, 7]}, {"index": 1}, 3, {"index": "x"}]}
    path = tmp_path / "u-1.json"
    path.write_text(json.dumps({"version": 1, "opTree": root}))
    read = AI_AGENT.read(path)
    assert [1, 2, 3] == [turn.index for turn in read.trees[0].session.turns]
    assert {0} == {fault.line for fault in read.faults}
    said = " / ".join(fault.said for fault in read.faults)
    for what in (
        "'juggling'",
        "an accounting entry of 1.1",
        "a log line of 1.1",
        "op of turn 1",
        "turn of the root",
        "turn 'x' of the root",
    ):
        assert what in said
    with pytest.raises(FormatError, match=r"u-1\.json"):
        AI_AGENT.read(path, strict=True)


def test_a_txn_that_names_no_session_is_replaced(tmp_path):
    """An origin that cannot name a session on disk gives a txn that can, the same each time."""
    path = tmp_path / "x.json"
    path.write_text(json.dumps({"version": 1, "opTree": {"id": "r", "traceId": "a/b c", "startedAt": 1, "turns": []}}))
    names = {AI_AGENT.read(path).trees[0].session.origin_txn_id for _ in range(2)}
    assert 1 == len(names)
    assert names.pop().startswith("ai-agent-")


# Version 3


@pytest.fixture
def folder(tmp_path):
    """Return a folder of records and payloads, as an export writes it."""
    AI_AGENT_V3.write(sample(), tmp_path / "sessions")
    return tmp_path / "sessions"


def records(path):
    """Return a file's records."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_records_are_those_of_the_original(folder):
    """Records have the original's head, count from 1 in each session, and link each child by session and op."""
    root, child = records(folder / "session" / "t.jsonl"), records(folder / "session" / "t-1-2.jsonl")
    assert ["session_start", "turn_start", "turn_end", "turn_start", "turn_end", "session_summary"] == [one["recordType"] for one in root]
    assert [1, 2, 3, 4, 5, 6] == [one["seq"] for one in root]
    for one in root + child:
        assert ["version", "recordType", "seq", "ts", "originId", "sessionId"] == list(one)[:6]
        assert (3, "t", "2023-11-14T22:13:20.") == (one["version"], one["originId"], one["ts"][:20])
    assert ("t", "t:1.2", "sub-agent", "lead:reader") == tuple(
        child[0][name] for name in ("parentSessionId", "parentOpId", "headendId", "callPath")
    )
    [ref] = root[2]["ops"][1]["childSessions"]
    assert {
        "agentId": "reader", "callPath": "lead:reader", "sessionId": "t-1-2", "originId": "t", "parentSessionId": "t",
        "parentOpId": "t:1.2",
        "ledgerPath": "session/t-1-2.jsonl", "status": "failed",
    } == ref  # fmt: skip
    assert [ref] == root[-1]["childSessions"]
    assert (["retrying after 429"], []) == (root[2]["warnings"], root[2]["errors"])
    assert {"tokensIn": 812, "tokensOut": 64, "tokensCacheRead": 7, "tokensCacheWrite": 0, "costUsd": 0.00311} == root[-1]["accounting"]
    assert ("failed", "nothing to read") == (child[-1]["status"], child[-1]["error"])


def test_payloads_are_files_by_size_and_hash(folder):
    """Each payload is a gzip file of its own, named by its op, with its sizes and sha256 in the record."""
    refs = records(folder / "session" / "t.jsonl")[2]["ops"][0]["payloadRefs"]
    place = "payloads/t/turn-0001/llm-0001"
    assert [f"{place}-sdk-request.json.gz", f"{place}-sdk-response.json.gz", f"{place}-reasoning.txt.gz"] == [ref["path"] for ref in refs]
    for ref in refs:
        packed = (folder / ref["path"]).read_bytes()
        data = gzip.decompress(packed)
        assert (len(data), len(packed), sha256(data).hexdigest()) == (ref["originalBytes"], ref["compressedBytes"], ref["sha256"])


@pytest.mark.parametrize("place", ["", "session", "session/t.jsonl"])
def test_a_folder_its_records_or_one_file_can_be_named(folder, place):
    """The folder, the one with the records in it, or a root's file give the same tree with its payloads."""
    read = AI_AGENT_V3.read(folder / place)
    [tree] = read.trees
    assert [] == read.faults
    assert [op.op_id for _, _, op in walk_ops(sample().session)] == [op.op_id for _, _, op in walk_ops(tree.session)]
    assert b'"temperature":0.2' in bytes(tree.session.turns[0].ops[0].request.payload)


def test_a_payload_that_is_not_what_was_recorded_is_left_out(folder, tmp_path):
    """A changed, missing or broken payload file, or one elsewhere, is reported and left out; the rest is read."""
    (tmp_path / "secret").write_text("secret")
    place = folder / "payloads" / "t" / "turn-0001"
    (place / "llm-0001-sdk-request.json.gz").write_bytes(gzip.compress(b'"other"'))
    (place / "llm-0001-sdk-response.json.gz").write_bytes(b"\x1f\x8bnothing")
    (place / "llm-0001-reasoning.txt.gz").unlink()
    child = folder / "session" / "t-1-2.jsonl"
    child.write_text(child.read_text().replace("payloads/t-1-2/turn-0001/tool-0001-request.jsonrpc.gz", "payloads/../../secret"))
    read = AI_AGENT_V3.read(folder)
    op = read.trees[0].session.turns[0].ops[0]
    assert (None, None, None) == (op.request, op.response, op.reasoning)
    said = sorted(fault.said.partition(": ")[2] for fault in read.faults)
    assert 4 == len(said)
    assert "its payload 'payloads/../../secret' lies elsewhere than payloads do, and is not read" in said
    assert 1 == sum("sha256 differs" in one for one in said)


def put(folder, *sessions):
    """Write files of records as the original does; each session is its id and its records' bodies."""
    (folder / "session").mkdir(parents=True)
    for name, *bodies in sessions:
        head = {"version": 3, "originId": ORIGIN, "sessionId": name}
        lines = [{**head, "seq": seq, "ts": f"2026-05-26T12:00:{seq:02d}.500Z", **body} for seq, body in enumerate(bodies, 1)]
        (folder / "session" / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


START = {"recordType": "session_start", "agentId": "research", "callPath": "cli:research", "headendId": "cli", "capturePayloads": True}
ORPHAN = {**START, "agentId": "fetch", "parentSessionId": ORIGIN, "headendId": "sub-agent"}
TURN = {"recordType": "turn_start", "turn": 1}


@pytest.mark.parametrize("packed", [True, False])
def test_a_payload_that_is_no_file_or_too_large_is_left_out(tmp_path, monkeypatch, packed):
    """A pipe among the payloads does not hold reading up, and what is larger than the limit is not read: both are reported."""
    paths = AI_AGENT_V3.write(sample(), tmp_path)
    payloads = [path for path in paths if path.suffix == ".gz"]
    payloads[0].unlink()
    os.mkfifo(payloads[0])
    monkeypatch.setattr(assembly, "MAX_PAYLOAD_BYTES", 5)
    if not packed:
        for path in paths:
            if path.suffix == ".jsonl":
                path.write_text(path.read_text().replace('"compression":"gzip"', '"compression":"none"'))
    found = AI_AGENT_V3.read(tmp_path)
    said = [fault.said for fault in found.faults]
    assert 1 == len(found.trees)
    assert 1 == sum("it is a pipe, and no file" in one for one in said)
    assert len(payloads) - 1 == sum("cannot be read: it is larger than 5 bytes" in one for one in said)


def test_a_child_of_an_unfinished_turn_is_placed(tmp_path):
    """A child that its parent's records do not name, since the turn never ended, stands in that turn; what is open stays open."""
    folder = put(tmp_path / "x", (ORIGIN, START, TURN), (CHILD, ORPHAN, {"recordType": "session_error", "error": "TypeError"}))
    [tree] = AI_AGENT_V3.read(folder).trees
    assert [("research", None), ("fetch", "failed")] == [(one.agent_id, one.status) for one in walk_sessions(tree.session)]
    assert (ORIGIN, {"ingress": {"source": "cli"}}) == (tree.session.origin_txn_id, tree.session.attributes)
    assert "TypeError" == tree.session.turns[0].ops[0].child_session.error
    assert (None, None) == (tree.session.ended_at, tree.session.turns[0].ended_at)


def test_a_child_without_its_parent_is_a_session_of_its_own(tmp_path):
    """A session whose parent has no records here is read all the same, and it is said."""
    read = AI_AGENT_V3.read(put(tmp_path / "x", (CHILD, ORPHAN)))
    assert [CHILD] == [tree.session.origin_txn_id for tree in read.trees]
    assert f"{CHILD}: its parent {ORIGIN} has no records here: it becomes a session of its own" == read.faults[0].said


def test_sessions_that_are_each_others_parents_are_read(tmp_path):
    """Parents in a circle end the reading well: each session is in a tree, once."""
    other = {**START, "parentSessionId": CHILD}
    read = AI_AGENT_V3.read(put(tmp_path / "x", (ORIGIN, other, TURN), (CHILD, ORPHAN, TURN)))
    names = [session.id for tree in read.trees for session in walk_sessions(tree.session)]
    assert [ORIGIN, CHILD] == sorted(names)
    assert read.faults


def test_records_that_cannot_be_are_reported_by_line(tmp_path):
    """Another version, type or session, turns that are none and an end that comes twice are reported by line, and the rest is read."""
    ends = {"recordType": "turn_end", "turn": 1, "status": "ok", "ops": []}
    strange = [{**START, "version": 4}, {"recordType": "of_tomorrow"}, {**TURN, "turn": 0}, {**TURN, "sessionId": "x"}]
    folder = put(tmp_path / "x", (ORIGIN, START, *strange, TURN, ends, {**ends, "status": "failed"}))
    read = AI_AGENT_V3.read(folder)
    assert [2, 3, 4, 5, 8] == [fault.line for fault in read.faults]
    assert "ok" == read.trees[0].session.turns[0].status
    with pytest.raises(FormatError, match="line 2"):
        AI_AGENT_V3.read(folder, strict=True)


def test_names_of_the_formats():
    """Each version has its name on the command line, and its file's ending."""
    assert [("ai-agent", ".json.gz"), ("ai-agent-v1", ".v1.json.gz"), ("ai-agent-v3", ".ai-agent")] == [
        (form.name, form.suffix) for form in (AI_AGENT, AI_AGENT_V1, AI_AGENT_V3)
    ]


def test_each_version_is_detected_by_one_format(tmp_path, folder):
    """Each version's files are taken by its own format, and every one of the three reads them all."""
    paths = {AI_AGENT_V3: folder}
    for form in (AI_AGENT_V1, AI_AGENT):
        paths[form] = form.write(sample(), tmp_path / f"t{form.suffix}")[0]
    for form, path in paths.items():
        assert [form] == detected(path, installed_formats()[0])
        for reader in paths:
            assert "lead" == reader.read(path).trees[0].session.agent_id
    assert [AI_AGENT_V3] == detected(folder / "session" / "t.jsonl", installed_formats()[0])


def test_a_folder_without_records_is_refused(tmp_path):
    """A folder with no records in it gives an error that says what to name."""
    with pytest.raises(OptreeError, match="name the folder that 'session' and 'payloads' are in"):
        AI_AGENT_V3.read(tmp_path)


def test_what_is_nested_too_deeply_for_json_is_refused_and_kept_in_records(tmp_path):
    """Sessions in each other that no JSON reader goes down to are refused with a remedy; records hold them."""
    builder = root = SessionTreeBuilder("a0", txn="t", now=Ticking())
    for number in range(1, 70):
        builder = builder.attach_child_session(builder.begin_op("session", "x", turn=builder.begin_turn()), f"a{number}")
    root.end_session()
    for form in (AI_AGENT, AI_AGENT_V1, JSON):
        with pytest.raises(StoreError, match="deep"):
            form.write(root.tree, tmp_path / f"x{form.suffix}")
    AI_AGENT_V3.write(root.tree, tmp_path / "x")
    names = [[session.agent_id for session in walk_sessions(tree.session)] for tree in AI_AGENT_V3.read(tmp_path / "x").trees]
    agents = [f"a{number}" for number in range(70)]
    assert [agents[: assembly.MAX_NESTED], agents[assembly.MAX_NESTED :]] == [names[0], sorted(one for found in names[1:] for one in found)]


@pytest.mark.slow
def test_a_hostile_head_is_told_apart_quickly(tmp_path):
    """A file that repeats what formats look for takes time as its size deserves, at most."""

    def looking(count):
        path = tmp_path / "x"
        path.write_bytes(b"{" + b'"version": 1, "recordType": "x", "event_type": ' * count)
        assert [] == detected(path, installed_formats()[0])
        return lambda: detected(path, installed_formats()[0])

    assert SQUARE > growth(looking, 2500)
