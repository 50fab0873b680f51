"""Formats that stay readable: our golden files, and those of the original ai-agent."""

import gzip
import json
import os
import re
import shutil
from pathlib import Path

import pytest
import zstandard

from optree import SessionTreeBuilder
from optree._store import load
from optree._store.files.compression import ZSTD
from optree._store.reading import formats
from optree._store.reading.formats import read_meta
from optree._tree import flatten, walk_ops
from optree._tree.walk import to_plain
from optree.errors import FormatError
from optree.testing import Ticking, shape
from tests.growth import peak

GOLDEN = Path(__file__).parents[1] / "golden"
READER = (
    "session reader", "failed",
    ("reader", "failed", ("turn 1", "ok", ("tool mcp:fetch", "failed"))),
)  # fmt: skip
SHAPE = (
    "asker", "ok",
    ("turn 1", "ok", ("llm openai:gpt-4o", "ok"), READER),
    ("turn 2", "ok", ("tool wait", "cancelled")),
)  # fmt: skip
OPEN_SHAPE = (
    "asker", None,
    ("turn 1", "ok", ("llm openai:gpt-4o", "ok"), READER),
    ("turn 2", None, ("tool wait", None)),
)  # fmt: skip


def known(loaded):
    """Return what a golden file holds besides its shape."""
    session = loaded.session
    model = session.turns[0].ops[0]
    return {
        "damage": loaded.damage.state,
        "prompts": session.turns[0].prompts,
        "assistant": session.turns[0].assistant,
        "title": (session.session_title, session.latest_status),
        "messages": [bytes(message.body) for message in session.messages],
        "reasoning": ([chunk.text for chunk in model.reasoning.chunks], model.reasoning.final),
        "request": loaded.tree.pool.resolve(json.loads(bytes(model.request.payload))),
        "response": bytes(model.response.payload),
        "logs": [(entry["path"], entry["severity"], entry["message"]) for entry in flatten(session).logs],
        "details": [entry["details"] for entry in flatten(session).logs if "details" in entry],
        "accounting": sorted(entry["id"] for entry in flatten(session).accounting if entry["path"] != "2.1"),
        "cost": session.totals.cost_usd,
        "tokens": (session.totals.input_tokens, session.totals.output_tokens),
    }


KNOWN = {
    "damage": "clean",
    "prompts": {"system": "be brief", "user": "why?"},
    "assistant": {"content": "because"},
    "title": ("Why", "asking"),
    "messages": [b'{"role":"user","content":"why?"}'],
    "reasoning": (["because ", "of that"], "because of that"),
    "request": {"temperature": 0, "messages": [{"role": "user", "content": "why?"}]},
    "response": b'"because"',
    "logs": [("1.1", "WRN", "retrying after 429"), ("1.2.1.1", "VRB", "fetching"), ("2.1", "VRB", "waiting")],
    "details": [{"size": 3}],
    "accounting": ["golden-1:1.1#1", "golden-1:1.2.1.1#2"],
    "cost": 0.0031,
    "tokens": (812, 64),
}


@pytest.mark.parametrize("name", ["snapshot-1.json.zst", "snapshot-1.json.gz", "snapshot-1.json"])
def test_snapshots_of_version_1_load_for_ever(name):
    """A snapshot that version 1 wrote loads to the tree that it held, in each compression (S4-83, S4-96, S4-97)."""
    loaded = load(GOLDEN / name)
    assert (SHAPE, "ended") == (shape(loaded.tree), loaded.state)
    assert known(loaded) == KNOWN
    assert ("golden-1", "golden-1") == (loaded.txn, read_meta(GOLDEN / name)["txn"])


def test_journals_of_format_1_load_for_ever(directory):
    """A journal that format 1 wrote loads to the tree that it held, with what a crash left open (S4-97)."""
    live = directory.live("golden-1")
    live.mkdir(parents=True)
    shutil.copyfile(GOLDEN / "journal-1.jsonl", live / "j-0000-000001.jsonl")
    loaded = load("golden-1", directory)
    assert (OPEN_SHAPE, "interrupted") == (shape(loaded.tree), loaded.state)
    assert known(loaded) == KNOWN
    assert ["2.1", "2", ""] == [node.path for node in loaded.open_nodes()]


def test_a_golden_session_can_be_resumed(directory, again):
    """A session of an old format goes on: what was open is interrupted, and numbers continue (S4-99)."""
    live = directory.live("golden-1")
    live.mkdir(parents=True)
    shutil.copyfile(GOLDEN / "journal-1.jsonl", live / "j-0000-000001.jsonl")
    builder, store = again("golden-1", directory)
    assert "3" == builder.begin_turn().path
    builder.end_session()
    assert store.flush("snapshot")
    assert ["ok", "interrupted", "ok"] == [turn.status for turn in load("golden-1", directory).session.turns]


def agent_file(version):
    """Return a file of the original ai-agent as its code writes it: relative paths, prompts in the attributes."""
    child = {
        "id": "mg5-child1", "traceId": "t-child", "agentId": "reader", "callPath": "asker->reader", "sessionTitle": "",
        "startedAt": 1750000002000, "endedAt": 1750000003000, "success": False, "error": "nothing to read",
        "turns": [{
            "id": "mg5-turn3", "index": 3, "startedAt": 1750000002100, "endedAt": 1750000002900,
            "attributes": {"prompts": {"system": "read", "user": "fetch it"}},
            "ops": [{
                "opId": "mg5-op3", "kind": "tool", "startedAt": 1750000002200, "endedAt": 1750000002300, "status": "failed",
                "attributes": {"name": "fetch__get", "provider": "mcp:fetch", "kind": "mcp", "latency": 100, "error": "404"},
                "logs": [{
                    "timestamp": 1750000002250, "severity": "WRN", "turn": 3, "subturn": 1, "path": "3.1", "direction": "response",
                    "type": "tool", "toolKind": "mcp", "remoteIdentifier": "fetch:get", "fatal": False, "message": "404",
                }],
                "accounting": [{
                    "type": "tool", "timestamp": 1750000002300, "status": "failed", "latency": 100, "mcpServer": "fetch", "command": "get",
                    "charactersIn": 12, "charactersOut": 0, "error": "404",
                }],
            }],
        }],
    }  # fmt: skip
    root = {
        "id": "mg5-root01", "traceId": "t-root", "agentId": "asker", "callPath": "asker", "sessionTitle": "Why",
        "latestStatus": "asking", "startedAt": 1750000000000, "endedAt": 1750000004000, "success": True,
        "totals": {"tokensIn": 10, "tokensOut": 2, "tokensCacheRead": 0, "tokensCacheWrite": 0, "costUsd": 0.01, "toolsRun": 1},
        "attributes": {"ingress": {"source": "cli"}, "originTxnId": "mg5-origin"},
        "turns": [
            {
                "id": "mg5-turn0", "index": 0, "startedAt": 1750000000100, "endedAt": 1750000000200,
                "attributes": {"system": True, "label": "init"},
                "ops": [{"opId": "mg5-op0", "kind": "system", "startedAt": 1750000000100, "endedAt": 1750000000200, "status": "ok",
                         "attributes": {"label": "init"}, "logs": [], "accounting": []}],
            },
            {
                "id": "mg5-turn1", "index": 1, "startedAt": 1750000001000, "endedAt": 1750000003900,
                "attributes": {"prompts": {"system": "be brief", "user": "why?"}, "assistant": {"content": "because"}},
                "ops": [
                    {
                        "opId": "mg5-op1", "kind": "llm", "startedAt": 1750000001000, "endedAt": 1750000001500, "status": "ok",
                        "attributes": {"provider": "openai", "model": "gpt-4o", "isFinalTurn": False, "latency": 500},
                        "request": {"kind": "llm", "payload": {"messages": 2, "bytes": 80}, "size": 80},
                        "response": {"payload": {"textPreview": "because"}, "size": 7, "truncated": False},
                        "reasoning": {"chunks": [{"text": "hm", "ts": 1750000001100}], "final": "hm."},
                        "logs": [],
                        "accounting": [{
                            "type": "llm", "timestamp": 1750000001500, "status": "ok", "latency": 500, "provider": "openai",
                            "model": "gpt-4o", "costUsd": 0.01, "tokens": {"inputTokens": 10, "outputTokens": 2, "totalTokens": 12},
                        }],
                    },
                    {
                        "opId": "mg5-op2", "kind": "session", "startedAt": 1750000002000, "endedAt": 1750000003000, "status": "failed",
                        "attributes": {"name": "reader", "provider": "subagent", "kind": "agent"},
                        "logs": [], "accounting": [], "childSession": child,
                    },
                ],
            },
        ],
    }  # fmt: skip
    found = {"version": version, "reason": "final", "opTree": root}
    if version == 2:
        root["totals"]["agentsRun"] = 2
        found |= {"sessionId": "mg5-root01", "originId": "mg5-origin", "timestamp": 1750000004000}
    return found


@pytest.mark.parametrize("version", [1, 2])
def test_files_of_ai_agent_load(tmp_path, version):
    """An ai-agent file loads: absolute paths, prompts and assistant, child sessions, costs once, totals recomputed (S4-86, S4-97)."""
    path = tmp_path / "mg5-origin.json.gz"
    path.write_bytes(gzip.compress(json.dumps(agent_file(version)).encode()))
    loaded = load(path)
    session = loaded.session
    assert ("ended", "clean", "asker", "Why") == (loaded.state, loaded.damage.state, session.agent_id, session.session_title)
    assert ["0.1", "1.1", "1.2", "1.2.3.1"] == [op.path for _, _, op in walk_ops(session)]
    assert ["init", "openai:gpt-4o", "subagent:reader", "mcp:fetch:fetch__get"] == [op.name for _, _, op in walk_ops(session)]
    assert ({"system": "be brief", "user": "why?"}, {"content": "because"}) == (session.turns[1].prompts, session.turns[1].assistant)
    child = session.turns[1].ops[1].child_session
    assert ("reader", False, "nothing to read", "t-child") == (child.agent_id, child.success, child.error, child.id)
    assert {"user": "fetch it", "system": "read"} == child.turns[0].prompts
    assert (0.01, 1, 1, 10) == tuple(getattr(session.totals, name) for name in ("cost_usd", "llm_requests", "tools_failed", "input_tokens"))
    flat = flatten(session)
    assert [("1.2.3.1", "404", "response")] == [(entry["path"], entry["message"], entry["direction"]) for entry in flat.logs]
    assert ["mg5-op1#1", "mg5-op3#1"] == [entry["id"] for entry in flat.accounting]
    assert {"textPreview": "because"} == json.loads(bytes(session.turns[1].ops[0].response.payload))
    assert {"ingress": {"source": "cli"}, "originTxnId": "mg5-origin"}.items() <= session.attributes.items()
    assert {"source": f"ai-agent {version}", "reason": "final", "txn": "mg5-origin"} == loaded.meta


def test_a_thin_file_of_ai_agent_loads(tmp_path):
    """An ai-agent file with only what it always has loads, in plain JSON too: a run that was stopped in its first turn."""
    path = tmp_path / "thin.json"
    turn = {"id": "t", "index": 1, "startedAt": 2}
    path.write_text(json.dumps({"version": 1, "opTree": {"id": "r", "startedAt": 1, "turns": [turn]}}))
    assert ("(unknown)", None, ("turn 1", None)) == shape(load(path).tree)


@pytest.mark.parametrize("node", ["session", "turn", "op"])
@pytest.mark.parametrize("path", ["0x1", "1.x", "../1"])
def test_a_file_whose_nodes_have_no_paths_is_refused(tmp_path, node, path):
    """Each node's path is looked at, in a sub-agent's session too: what reads trees counts on them."""
    root = SessionTreeBuilder("lead", txn="t", now=Ticking())
    child = root.attach_child_session(root.begin_op("session", "x"), "reader")
    child.begin_op("tool", "t").end()
    plain = to_plain(root.tree)
    inner = plain["session"]["turns"][0]["ops"][0]["childSession"]
    {"session": inner, "turn": inner["turns"][0], "op": inner["turns"][0]["ops"][0]}[node]["path"] = path
    file = tmp_path / "t.json"
    file.write_text(json.dumps({"version": 1, "meta": {}, **plain}))
    with pytest.raises(FormatError, match=f"a node has the path '{path}'"):
        load(file)


def test_version_3_of_ai_agent_is_refused_by_name(tmp_path):
    """A file of ai-agent's version 3 gives an error that says which versions are read."""
    path = tmp_path / "three.json"
    path.write_text(json.dumps({"version": 3, "opTree": {}}))
    with pytest.raises(FormatError, match="ai-agent file of version 3; this optree reads versions 1 and 2"):
        load(path)


def test_what_a_torn_file_is_closed_with_takes_the_memory_of_one_copy():
    """A snapshot that breaks off late is tried to be closed at many places, one after the other."""
    text = b'{"version":1,"session":{"x":[' + b",".join(b'{"a":"%s"}' % (b"y" * 1000) for _ in range(1000))
    found = []
    taken = peak(lambda: found.extend(len(closed) for closed in formats._closings(text)))
    assert (256, True) == (len(found), taken < 16 * len(text))


@pytest.fixture
def session_of_47_turns(begin, directory):
    """Return the file of a session with 47 turns."""
    builder, store = begin(attributes={"ingress": {"noise": os.urandom(300).hex()}})
    for number in range(47):
        turn = builder.begin_turn(user=f"question {number}")
        builder.begin_op("tool", f"tool{number}").end()
        turn.end()
    builder.end_session()
    assert store.flush("snapshot")
    return directory.snapshot("txn-1")


def changed(data, at):
    """Return a compressed file with a byte changed, the first from *at* on that its content depends on: a match may stand elsewhere too."""
    for place in range(at, len(data)):
        flipped = data[:place] + bytes([data[place] ^ 8]) + data[place + 1 :]
        try:
            same = unpacked(flipped) == unpacked(data)
        except zstandard.ZstdError:
            same = False
        if not same:
            return flipped
    raise AssertionError("no byte matters")


def unpacked(data):
    """Return what the frames of a file hold."""
    return zstandard.ZstdDecompressor().stream_reader(data, read_across_frames=True).read()


def test_a_changed_byte_leaves_what_is_before_it(session_of_47_turns):
    """One changed byte costs what is behind it: the turns before are loaded, and the damage says how many (S4-97)."""
    path = session_of_47_turns
    data = path.read_bytes()
    kept = []
    for share in (50, 70, 90):
        path.write_bytes(changed(data, len(data) * share // 100))
        loaded = load(path)
        kept.append(len(loaded.session.turns))
        said = f"txn-1.json.zst is damaged: what is valid of its {len(data)} bytes unpack to "
        assert ("damaged", True) == (loaded.damage.state, loaded.damage.lines()[0].startswith(said))
        assert loaded.damage.lines()[0].endswith(f"; kept is the session's beginning, with {kept[-1]} turns of the root session")
        assert [f"question {number}" for number in range(kept[-1] - 1)] == [turn.prompts["user"] for turn in loaded.session.turns[:-1]]
    assert 0 < kept[0] < kept[1] < kept[2] < 47


def test_a_file_that_ends_before_its_first_turn_gives_the_session(session_of_47_turns):
    """A file that breaks off before any turn is whole loads as a session without turns, with the damage said (S4-97)."""
    path = session_of_47_turns
    data = path.read_bytes()
    third = [found.start() for found in re.finditer(re.escape(ZSTD), data)][2]
    path.write_bytes(data[: third + 5])
    loaded = load(path)
    assert ("agent", [], "damaged") == (loaded.session.agent_id, loaded.session.turns, loaded.damage.state)
    assert "txn-1.json.zst breaks off: " in loaded.damage.lines()[0]
    assert loaded.damage.lines()[0].endswith("kept is the session's beginning, with 0 turns of the root session")
