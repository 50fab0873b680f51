"""Files of the original ai-agent on their way in and out again: each member is there, or named."""

import gzip
import json
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings

from optree._builder import SessionTreeBuilder
from optree._cli.format_loss import lacking
from optree._formats.ai_agent import AI_AGENT, AI_AGENT_V1, AI_AGENT_V3
from optree._store.importing import save
from optree._store.reading.directory import Directory
from optree._store.reading.recovery import load
from optree._tree import flatten, format_tree, walk_ops, walk_sessions
from tests.formats.originals import BEGUN, CHILD_TXN, TXN, document, documents

some = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.differing_executors])


def put(folder, told, name=f"{TXN}.json.gz"):
    """Write a document as the original does."""
    path = folder / name
    path.write_bytes(gzip.compress(json.dumps(told).encode()))
    return path


def written(tree, folder):
    """Return the document that a tree is written as."""
    [path] = AI_AGENT.write(tree, folder / "out.json.gz")
    return json.loads(gzip.decompress(path.read_bytes()))


def there_and_back(told, folder):
    """Read a document, save the session, load it and write it; returns the written document, and what was said on reading."""
    read = AI_AGENT.read(put(folder, told))
    [tree] = read.trees
    directory = Directory(folder / "sessions", folder / "bill.jsonl")
    return written(load(save(tree, directory), directory).tree, folder), read.faults


@pytest.mark.parametrize("version", [1, 2])
def test_a_file_comes_back_as_it_was(tmp_path, version):
    """A file of the original, imported, saved, loaded and exported, is the same JSON, in its own version (S4-86)."""
    told = document(version)
    assert (told, []) == there_and_back(told, tmp_path)


@some
@given(documents)
def test_any_file_comes_back_as_it_was(told):
    """Any file of the original's shape is the same JSON after its way in and out; what could not be read is named instead.

    Tokens that contradict each other are named, and kept.
    """
    with tempfile.TemporaryDirectory() as folder:
        read = AI_AGENT.read(put(Path(folder), told))
        found = written(read.trees[0], Path(folder))
    if all("cannot be so, and are kept" in fault.said for fault in read.faults):
        assert json.dumps(told, sort_keys=True) == json.dumps(found, sort_keys=True)


def test_tokens_that_contradict_each_other_are_named(tmp_path):
    """Counts below 0, and a total that its parts do not add up to, are notes of the import, with their op."""
    told = json.loads(json.dumps(document(2)).replace('"outputTokens": 32', '"outputTokens": -32'))
    *_, first = [fault.said for fault in AI_AGENT.read(put(tmp_path, told)).faults if "below 0" in fault.said]
    assert first.endswith("cannot be so, and are kept: outputTokens -32 is below 0")
    said = [fault.said for fault in AI_AGENT.read(put(tmp_path, told)).faults]
    assert any(one.endswith("totalTokens 441, and its parts add up to 377") for one in said)


@pytest.mark.parametrize("version", [1, 2])
def test_a_session_has_the_transactions_of_the_original(tmp_path, version):
    """Sessions have the ids of their transactions, that of their parent's and that of the whole run (S4-64)."""
    [tree] = AI_AGENT.read(put(tmp_path, document(version))).trees
    root, child = walk_sessions(tree.session)
    assert (TXN, TXN, None) == (root.id, root.origin_txn_id, root.parent_txn_id)
    assert (CHILD_TXN, TXN, TXN) == (child.id, child.origin_txn_id, child.parent_txn_id)
    fetched = next(log for log in flatten(tree.session).logs if log["message"] == "fetched")
    assert (CHILD_TXN, TXN, TXN) == (fetched["txnId"], fetched["parentTxnId"], fetched["originTxnId"])


def test_a_file_of_a_sub_agent_names_the_whole_run(tmp_path):
    """A file that holds a sub-agent's session alone has the txn of the run that its log lines name, and the parent's."""
    told = document(2)
    child = told["opTree"]["turns"][1]["ops"][2]["childSession"]
    alone = {"version": 1, "reason": "final", "opTree": child}
    [tree] = AI_AGENT_V1.read(put(tmp_path, alone)).trees
    assert (TXN, CHILD_TXN) == (tree.session.origin_txn_id, tree.session.id)
    [tree] = AI_AGENT.read(put(tmp_path, {**alone, "version": 2, "originTxnId": TXN, "parentTxnId": "up"})).trees
    assert (TXN, "up") == (tree.session.origin_txn_id, tree.session.parent_txn_id)


def test_log_lines_keep_what_they_say(tmp_path):
    """A log line's remote, stack, end of the run, kind of tool, headend, turn path, number of turns and own agent are there."""
    [tree] = AI_AGENT.read(put(tmp_path, document(1))).trees
    logs = {log["message"]: log for log in flatten(tree.session).logs}
    assert "trace:openrouter:gpt-4o" == logs["429"]["remoteIdentifier"]
    assert ("Error: 429\n    at f (x.js:1)", "slack") == (logs["429"]["stack"], logs["429"]["headendId"])
    assert [True] * 2 == [log["fatal"] for log in flatten(tree.session).logs if log["message"] == "gave up"]
    assert ("2.0", "asker") == (logs["gave up"]["turnPath"], logs["gave up"]["agentPath"])
    assert ("mcp", True) == (logs["search(q:x)"]["toolKind"], logs["search(q:x)"]["bold"])
    assert (10, 5) == (logs["messages 2, 812 chars"]["max_turns"], logs["messages 2, 812 chars"]["max_subturns"])
    assert ("helper", "asker->helper") == (logs["of a helper"]["agentId"], logs["of a helper"]["callPath"])
    assert {"stop_reason": "end", "attempt": 2} == logs["details"]["details"]
    [entry, *_] = [one for one in flatten(tree.session).accounting if one["type"] == "llm"]
    assert "tool_calls" == entry["stopReason"]


def test_system_ops_and_steps_have_their_names(tmp_path):
    """Ops of the system are named by their labels; steps say which they were, and a tree shows them so."""
    [tree] = AI_AGENT.read(put(tmp_path, document(2))).trees
    assert ["init", "fin", "internal", "advisors"] == [op.name for _, _, op in walk_ops(tree.session) if op.kind == "system"]
    shown = format_tree(tree.session)
    assert "system system" not in shown
    assert "step advisors" in shown


def test_a_session_that_ended_well_is_shown_so(tmp_path):
    """The original never ends its last turn: in a session that has ended it ends with its last op, and says no more of how."""
    [tree] = AI_AGENT.read(put(tmp_path, document(1))).trees
    last = tree.session.turns[-1]
    assert (BEGUN + 1_000, None) == (last.ended_at, last.status)
    assert "interrupted" not in format_tree(tree.session)


@pytest.mark.parametrize("form", [AI_AGENT_V1, AI_AGENT, AI_AGENT_V3], ids=["1", "2", "3"])
def test_what_says_no_outcome_gets_none(tmp_path, form):
    """Turns, ops and sessions that ended without a word on how come back without one, from each version."""
    told = document(1)
    for name in ("success",):
        del told["opTree"][name]
    del told["opTree"]["turns"][1]["ops"][1]["status"]
    [tree] = AI_AGENT.read(put(tmp_path, told)).trees
    form.write(tree, tmp_path / f"x{form.suffix}")
    [back] = form.read(tmp_path / f"x{form.suffix}").trees
    for one in (tree, back):
        op = one.session.turns[1 if form is not AI_AGENT_V3 or one is tree else 0].ops[1]
        assert (None, None, None) == (one.session.status, one.session.success, op.status)
        assert one.session.ended_at is not None
        assert op.ended_at is not None
        assert [None] * len(one.session.turns) == [turn.status for turn in one.session.turns]


def test_version_3_keeps_the_txn(tmp_path):
    """A session of version 1 that is written as version 3 and read again has its txn, and so have its sub-agents."""
    [tree] = AI_AGENT.read(put(tmp_path, document(1))).trees
    AI_AGENT_V3.write(tree, tmp_path / "x")
    [back] = AI_AGENT_V3.read(tmp_path / "x").trees
    assert [(TXN, TXN, None), (CHILD_TXN, TXN, TXN)] == [
        (one.id, one.origin_txn_id, one.parent_txn_id) for one in walk_sessions(back.session)
    ]


def test_a_session_that_went_on_is_written_as_it_is_now(tmp_path):
    """What a file said of the end does not hold of a session that was resumed since: its totals and its end are the tree's."""
    told = document(1)
    told["opTree"]["totals"]["tokensIn"] = 5
    [tree] = AI_AGENT.read(put(tmp_path, told)).trees
    tree.session.resumed_at.append(float(BEGUN + 20_000))
    tree.session.ended_at = tree.session.success = tree.session.status = None
    found = written(tree, tmp_path)
    assert (2, "subagent_finish", 812) == (found["version"], found["reason"], found["opTree"]["totals"]["tokensIn"])
    assert "endedAt" not in found["opTree"]


def test_an_attribute_of_that_name_of_ones_own_is_said_to_be_left_out(tmp_path):
    """An attribute of one's own that is named as what is kept of files is named among what an export leaves out; what is kept is not."""
    builder = SessionTreeBuilder("a", txn="t", attributes={"ai-agent": "mine"})
    assert ["attributes of names that it uses itself (1)"] == [one for one in lacking(builder.tree, AI_AGENT) if "names" in one]
    [tree] = AI_AGENT.read(put(tmp_path, document(2))).trees
    assert [] == lacking(tree, AI_AGENT)
