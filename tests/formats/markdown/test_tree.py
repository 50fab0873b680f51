from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from msgspec import UNSET

from optree._builder import SessionTreeBuilder
from optree._store import Directory
from optree._store.importing import save
from optree._store.reading.snapshot import MAX_NESTED
from optree._tree import walk_ops, walk_sessions
from optree.errors import FormatError, SetupError
from optree.testing import Ticking, shape
from optree_formats.markdown import FORMAT, EventLog, LogEvent, extract_events, read_log, state_at, verify
from optree_formats.markdown.events import iso, moment
from optree_formats.markdown.to_tree import node_path
from tests.formats.held import held
from tests.formats.markdown.logs import SEED, session, shell
from tests.formats.samples import sample
from tests.strategies import play, programs


def there_and_back(tree, directory):
    """Write a tree, read it, and write what was read; returns it with both logs' bytes."""
    directory.mkdir(parents=True, exist_ok=True)
    first, second = directory / "1.session-log.md", directory / "2.session-log.md"
    FORMAT.write(tree, first)
    (back,) = FORMAT.read(first, strict=True).trees
    FORMAT.write(back, second)
    return back, first.read_bytes(), second.read_bytes()


@settings(max_examples=25, suppress_health_check=list(HealthCheck))
@given(programs)
@example([("begin_op", 0, "tool", "x", None), ("end_op", 0, "failed", "", {})])
def test_trees_come_back(tmp_path_factory, program):
    """Any tree is written, read back but for what the format lists, and written again byte for byte (S3-02, S3-03)."""
    tree = play(program).folded()
    back, first, second = there_and_back(tree, tmp_path_factory.mktemp("tree"))
    assert held(FORMAT, tree) == held(FORMAT, back)
    assert first == second


def test_a_session_as_people_read_it(tmp_path):
    """A tree's log has the seed's events, in the order of time, with paths (S3-01, S3-12, S3-18, S3-19, S3-22, S3-24, S3-33)."""
    FORMAT.write(sample(), tmp_path / "t.session-log.md")
    entries = read_log(tmp_path / "t.session-log.md").entries
    assert [entry.at for entry in entries] == sorted(entry.at for entry in entries)
    kinds = [entry.kind for entry in entries]
    assert ("session_start", "session_end") == (kinds[0], kinds[-1])
    told = {entry.kind: entry for entry in entries}
    assert ("1.2.1.1", "fetch:get", "reader") == tuple(told["tool_call"].fields[name] for name in ("path", "tool", "agent"))
    assert ("not stated", "nobody") == (told["tool_call"].fields["args"]["why"], told["tool_call"].fields["why_from"])
    assert "Nobody said why" in told["tool_call"].comment("args.why").before
    assert told["tool_call"].fields["call_id"] == told["tool_error"].fields["call_id"]
    assert {"code": "FAILED", "message": "404"} == told["tool_error"].fields["error"]
    assert (819, 64) == (told["model_input"].fields["tokens"], told["model_output"].fields["tokens"])
    assert "1 message goes" in told["model_input"].narrative
    assert {"turns": 3, "tools": 1, "repairs": 0} == told["session_end"].fields["stats"]
    assert [] == verify(tmp_path / "t.session-log.md")
    assert "1 type: tool_error" in shell("grep '^type:' t.session-log.md | sort | uniq -c", tmp_path)


def test_a_model_call_has_the_seeds_fields(tmp_path):
    """What a model is sent and what it gives are told with the seed's figures: tokens, calls, the text's length (S3-24)."""
    root = SessionTreeBuilder("lead", txn="t", now=Ticking())
    op = root.begin_op("llm", "m", turn=root.begin_turn())
    op.account(input_tokens=812, output_tokens=40)
    op.account(input_tokens=1, output_tokens=24)
    calls = [{"id": f"c{number}", "type": "function", "function": {"name": "read", "arguments": "{}"}} for number in (1, 2)]
    root.set_response(op, {"role": "assistant", "content": "let me look", "tool_calls": calls})
    op.end()
    FORMAT.write(root.tree, tmp_path / "t.session-log.md")
    sent, given = (entry.fields for entry in read_log(tmp_path / "t.session-log.md").entries if entry.kind.startswith("model_"))
    assert ("model_input", 813) == (sent["type"], sent["tokens"])
    expected = {"type": "model_output", "timestamp": "2023-11-14T22:13:20.006Z", "tokens": 64, "tool_calls": 2, "text_length": 11}
    assert expected == {key: given[key] for key in expected}


def everything():
    """Return a session with each kind of node, ended in each way that it can."""
    root = SessionTreeBuilder("lead", txn="t", now=Ticking(), attributes={"own": 1})
    root.set_title("Rain", status="asking")
    turn = root.begin_turn(user="why?", system="be brief", attributes={"own": 2})
    root.append_message({"role": "user", "content": "why?"}, message_id="m1")
    call = root.begin_op("llm", "m", turn=turn, attributes={"own": 3})
    root.set_request(call, {"temperature": 0}, [{"role": "user", "content": "why?"}])
    root.set_response(call, "because")
    call.account(input_tokens=3, output_tokens=2, cost_usd=0.25)
    call.end()
    for status in ("ok", "failed", "cancelled", None):
        op = root.begin_op("tool", "search", turn=turn, parent=call)
        if status != "cancelled":
            root.set_request(op, {"q": "x"})
        root.set_response(op, {"n": 1})
        op.end(status or "ok", "gone" if status == "failed" else None)
        op.node.status = status
    sub = root.begin_op("session", "reader", turn=turn)
    child = root.attach_child_session(sub, "reader")
    child.begin_turn().end("cancelled")
    child.end_session("failed", "stopped", final_report=[1])
    sub.end()
    root.begin_op("system", "repair", turn=turn, attributes={"demon": "d", "path": "hot.yml"}).end()
    root.begin_op("system", "tidy", turn=turn).end()
    turn.assistant("so")
    turn.end("failed", "late")
    root.end_session(final_report={"answer": 42})
    child.node.attributes_json = UNSET
    for op in root.node.turns[0].ops:
        op.latency, op.accounting = 5.0, op.accounting if op is call.node else ()
    call.node.accounting[0].latency = 7.0
    return root.tree


def test_each_member_is_written(tmp_path):
    """Every event of every kind of node, member by member, with its heading (S3-12, S3-18 to S3-33)."""
    FORMAT.write(everything(), tmp_path / "t.session-log.md")
    entries = read_log(tmp_path / "t.session-log.md").entries
    assert [f"2023-11-14T22:13:20.{round(entry.at) % 1000:03d}".rstrip("0").rstrip(".") + "Z" for entry in entries] == [
        entry.fields["timestamp"] for entry in entries
    ]
    found = [(entry.title, {name: value for name, value in entry.fields.items() if name != "timestamp"}) for entry in entries]
    tool = {"tool": "search", "args": {"q": "x", "why": "because"}, "why_from": "assistant", "parent": "1.1"}
    entry = {
        "id": "t:1.1#1", "timestamp": 1700000000007.0, "type": "llm", "latency": 7.0,
        "tokens": {"inputTokens": 3, "outputTokens": 2, "totalTokens": 5}, "costUsd": 0.25,
    }  # fmt: skip
    ended = {"duration_ms": 5, "result": {"n": 1}}
    assert [
        ("Session Start", {
            "type": "session_start", "session_id": "t", "protocol": "EVENT-LOG/0.2", "tree": "optree/1", "agent": "lead", "title": "Rain",
            "latest_status": "asking", "attributes": {"own": 1},
        }),
        ("User Message", {
            "type": "user_message", "path": "1", "length": 4, "content": "why?", "prompts": {"system": "be brief"},
            "attributes": {"own": 2},
        }),
        ("Message: user", {"type": "message", "role": "user", "id": "m1", "body": {"role": "user", "content": "why?"}}),
        ("Model Input: m", {
            "type": "model_input", "path": "1.1", "tokens": 3, "model": "m", "request": {"temperature": 0},
            "messages": [{"role": "user", "content": "why?"}], "attributes": {"own": 3},
        }),
        ("Model Output: m", {
            "type": "model_output", "path": "1.1", "duration_ms": 5, "tokens": 2, "text_length": 7, "response": "because",
            "accounting": [entry],
        }),
        ("Tool Call: search", {"type": "tool_call", "call_id": "1.2", "path": "1.2", **tool}),
        ("Tool Result: search", {"type": "tool_result", "call_id": "1.2", "success": True, "path": "1.2", **ended}),
        ("Tool Call: search", {"type": "tool_call", "call_id": "1.3", "path": "1.3", **tool}),
        ("Tool Error: search", {
            "type": "tool_error", "call_id": "1.3", "path": "1.3", "status": "failed", **ended,
            "error": {"code": "FAILED", "message": "gone"},
        }),
        ("Tool Call: search", {
            "type": "tool_call", "call_id": "1.4", "path": "1.4", **tool, "args": {"why": "because"}, "args_given": False,
        }),
        ("Tool Error: search", {
            "type": "tool_error", "call_id": "1.4", "path": "1.4", "status": "cancelled", **ended,
            "error": {"code": "CANCELLED", "message": "cancelled", "stated": False},
        }),
        ("Tool Call: search", {"type": "tool_call", "call_id": "1.5", "path": "1.5", **tool}),
        ("Tool Result: search", {"type": "tool_result", "call_id": "1.5", "path": "1.5", "status": "ended", **ended}),
        ("Agent Call: reader", {"type": "agent_call", "path": "1.6", "name": "reader"}),
        ("Agent Start: reader", {"type": "agent_start", "path": "1.6", "agent": "reader"}),
        ("Turn Start", {"type": "turn_start", "path": "1.6.1", "agent": "reader"}),
        ("Turn End", {"type": "turn_end", "path": "1.6.1", "agent": "reader", "status": "cancelled"}),
        ("Agent End: reader", {
            "type": "agent_end", "path": "1.6", "agent": "reader", "reason": "error", "status": "failed", "error": "stopped",
            "final_report": [1],
        }),
        ("Agent Result: reader", {"type": "agent_result", "path": "1.6", "duration_ms": 5}),
        ("Repair: hot.yml", {
            "type": "repair", "node": "1.7", "demon": "d", "action": "unknown", "path": "hot.yml",
            "attributes": {"demon": "d", "path": "hot.yml"},
        }),
        ("System End: repair", {"type": "system_end", "path": "1.7", "duration_ms": 5}),
        ("System Step: tidy", {"type": "system_step", "path": "1.8", "name": "tidy"}),
        ("System End: tidy", {"type": "system_end", "path": "1.8", "duration_ms": 5}),
        ("Turn End", {"type": "turn_end", "path": "1", "status": "failed", "error": "late", "assistant": {"content": "so"}}),
        ("Session End", {
            "type": "session_end", "session_id": "t", "reason": "completed", "stats": {"turns": 2, "tools": 4, "repairs": 1},
            "status": "ok", "final_report": {"answer": 42},
        }),
    ] == found  # fmt: skip


def test_each_member_comes_back(tmp_path):
    """The same session is read as it was, to the last member, and a call path of its own, and that it was resumed, with it (S3-02)."""
    tree = everything()
    tree.session.resumed_at = [tree.session.started_at + 1.5, tree.session.started_at + 2.5]
    tree.session.turns[0].ops[5].child_session.call_path = "elsewhere->reader"
    back, first, second = there_and_back(tree, tmp_path)
    assert held(FORMAT, tree) == held(FORMAT, back)
    assert (first, tree.session.resumed_at) == (second, back.session.resumed_at)
    children = [next(walk_sessions_below(one)) for one in (tree, back)]
    assert ["elsewhere->reader"] * 2 == [child.call_path for child in children]


def walk_sessions_below(tree):
    """Yield all sessions but the root."""
    return (session for session in walk_sessions(tree.session) if session.path)


def test_events_stand_in_the_order_of_time(tmp_path):
    """What goes on beside a later turn stands behind its begin; a session's end is the last, also where something ended after it."""
    for ends in (False, True):
        root = SessionTreeBuilder("lead", txn="t", now=Ticking())
        op = root.begin_op("tool", "slow", turn=root.begin_turn())
        second = root.begin_turn()
        op.end()
        if ends:
            root.end_session()
            second.node.ended_at += 1000.0
        FORMAT.write(root.tree, path := tmp_path / f"{ends}.session-log.md")
        kinds = [entry.kind for entry in read_log(path).entries]
        begun = ["session_start", "turn_start", "tool_call", "turn_start", "tool_result"]
        assert (begun + (["turn_end", "turn_end", "session_end"] if ends else [])) == kinds


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"type": "repair", "node": "1.1", "path": "hot.yml"}, "1.1"),
        ({"type": "repair", "path": "hot.yml"}, "hot.yml"),
        ({"type": "gc_run", "node": "x", "path": "1.2"}, "1.2"),
        ({"type": "gc_run", "path": 1.2}, "1.2"),
        ({"type": "session_end"}, ""),
    ],
)
def test_which_node_an_event_is_of(fields, expected):
    """Its path; of a repair, whose path is the repaired file, the node beside it (S3-27)."""
    assert expected == node_path(fields)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("gc_run", {"trigger": "budget", "freed_tokens": 5000, "files_affected": 3, "action": "summarize_then_evict"}),
        ("context_assembly", {"budget": 28000, "used": 23456, "included": ["a.md"], "excluded": [], "warning": "84%"}),
        ("repair", {"demon": "checklist_repairer", "action": "created", "path": "hot.yml", "stub_contents": "keep: []"}),
        ("bootstrap", {"files_created": ["output.md"]}),
        ("recovery", {"from": "corruption", "backup": "x.corrupted"}),
        ("user_approval", {"action": "tool_call", "approved": True, "tool": "terminal.run", "command_preview": "npm test"}),
    ],
)
def test_steps_of_the_system_have_the_seeds_fields(tmp_path, name, said):
    """A system op of a name that the seed has is that event, with all the fields of it that the op has (S3-25 to S3-31)."""
    root = SessionTreeBuilder("lead", txn="t", now=Ticking())
    root.begin_op("system", name, turn=root.begin_turn(), attributes={**said, "own": 1}).end()
    back, first, second = there_and_back(root.tree, tmp_path)
    [told] = [fields for fields in extract_events(tmp_path / "1.session-log.md") if fields["type"] == name]
    assert said == {key: told[key] for key in said}
    assert ({**said, "own": 1}, first) == (back.session.turns[0].ops[0].attributes, second)


@pytest.mark.parametrize(("title", "status"), [("Rain", None), (None, "asking"), ("Rain", "asking"), (None, None)])
def test_titles_and_links_come_back(tmp_path, title, status):
    """A title without a status and a status without a title; a message with what it stands for and what caused it (S3-02)."""
    root = SessionTreeBuilder("lead", txn="t", now=Ticking())
    root.set_title(title, status=status)
    root.append_message({"role": "user", "content": "a"}, message_id="m1")
    root.append_message({"role": "user", "content": "b"}, message_id="m2", substance="m1", cause=["m1"])
    root.begin_op("system", "gc_run").end()
    root.begin_op("system", "tidy").end()
    back, _, _ = there_and_back(root.tree, tmp_path)
    assert (title, status) == (back.session.session_title, back.session.latest_status)
    assert [("m1", None, ()), ("m2", "m1", ("m1",))] == [(one.id, one.substance, one.cause) for one in back.session.messages]
    titles = [entry.title for entry in read_log(tmp_path / "1.session-log.md").entries if entry.kind in ("gc_run", "system_step")]
    assert ["Gc Run", "System Step: tidy"] == titles


@pytest.mark.parametrize(("levels", "read"), [(MAX_NESTED, True), (MAX_NESTED + 1, False)])
def test_sessions_are_read_as_deep_as_a_snapshot_holds_them(tmp_path, levels, read):
    """The deepest session that a snapshot holds comes back with its ops; what lies deeper is said."""
    root = builder = SessionTreeBuilder("a0", txn="t", now=Ticking())
    for number in range(levels):
        builder = builder.attach_child_session(builder.begin_op("session", "x", turn=builder.begin_turn()), f"a{number + 1}")
    builder.begin_op("tool", "deepest", turn=builder.begin_turn()).end()
    FORMAT.write(root.tree, tmp_path / "t.session-log.md")
    found = FORMAT.read(tmp_path / "t.session-log.md")
    ops = [op.name for tree in found.trees for _, _, op in walk_ops(tree.session)]
    assert (read, read) == ("deepest" in ops, not found.faults)
    assert [f"a{MAX_NESTED}"] == [[*walk_sessions(tree.session)][-1].agent_id for tree in found.trees]


def test_a_model_without_a_name(tmp_path):
    """Its heading is that of its kind."""
    root = SessionTreeBuilder("lead", txn="t", now=Ticking())
    root.begin_op("llm", "", turn=root.begin_turn())
    FORMAT.write(root.tree, tmp_path / "t.session-log.md")
    assert "Model Input" == read_log(tmp_path / "t.session-log.md").entries[-1].title


def test_why_comes_from_where_it_was_said(tmp_path):
    """A call's reason is taken from its arguments, its attributes, or what the assistant said before it (S3-19, S3-74)."""
    root = SessionTreeBuilder("lead", txn="t", now=Ticking())
    turn = root.begin_turn()
    model = root.begin_op("llm", "m", turn=turn)
    root.set_response(model, {"role": "assistant", "content": [{"type": "text", "text": "I read the parser.\nThen…"}]})
    model.end()
    for arguments, attributes in (({"why": "asked"}, None), ({"why": 3}, {"why": "noted"}), ({}, None)):
        op = root.begin_op("tool", "fs.read", turn=turn, attributes=attributes)
        root.set_request(op, arguments)
        op.end()
    back, first, second = there_and_back(root.tree, tmp_path)
    calls = [fields for fields in extract_events(tmp_path / "1.session-log.md") if fields["type"] == "tool_call"]
    assert ["asked", "noted", "I read the parser."] == [fields["args"]["why"] for fields in calls]
    assert [None, "attributes", "assistant"] == [fields.get("why_from") for fields in calls]
    assert [None, 3, None] == [fields.get("given_why") for fields in calls]
    assert [b'{"why":"asked"}', b'{"why":3}', b"{}"] == [
        bytes(op.request.payload) for _, _, op in walk_ops(back.session) if op.kind == "tool"
    ]
    assert first == second


def test_histories_are_written_once(tmp_path):
    """A history that grows by one message a call, and tools that stay the same, make a log that grows with what is new (S3-23)."""
    sizes = []
    for calls in (20, 40):
        root = SessionTreeBuilder("lead", txn="t", now=Ticking())
        turn = root.begin_turn()
        messages = []
        for number in range(calls):
            messages.append({"role": "user", "content": f"{number} " + "x" * 200})
            op = root.begin_op("llm", "m", turn=turn)
            root.set_request(op, {"tools": ["y" * 600]}, list(messages))
            op.end()
        back, first, second = there_and_back(root.tree, tmp_path / str(calls))
        assert first == second
        assert messages == back.pool.resolve({"m": {"$history": next(reversed(back.pool.links))}})["m"]
        sizes.append(len(first))
    assert sizes[1] < 2.1 * sizes[0]


def test_the_seeds_log_is_a_tree(tmp_path):
    """A log that knows nothing of trees becomes one: calls are ops with their results, comments and narratives are kept (S3-03, S3-71)."""
    path = tmp_path / "session-log.md"
    path.write_text(
        SEED.replace(
            "---\n\n## 12:00:05 — Tool Call",
            "---\n\n## 12:00:04 — U\n\nFind it.\n\n```yaml\ntype: user_message\n```\n\n## 12:00:05 — Tool Call",
            1,
        )
    )
    (tree,), faults = (read := FORMAT.read(path)).trees, read.faults
    assert ([], ("agent", None, ("turn 1", None, ("tool fs.read", "ok")))) == (faults, shape(tree))
    turn = tree.session.turns[0]
    op = turn.ops[0]
    assert ("sess-001", {"user": "Find it."}) == (tree.session.origin_txn_id, turn.prompts)
    assert "src/parser.ts" in bytes(op.request.payload).decode()
    assert (12.0, b'{"lines":50}') == (op.latency, bytes(op.response.payload))
    assert "Check if the recursive descent" in op.attributes["comments"]["args.why"]
    assert "Reading parser" in op.logs[0].message
    assert 1 == tree.session.totals.tools_run
    saved = save(tree, Directory(tmp_path / "store", tmp_path / "bill.jsonl"))
    assert saved.exists()


def test_any_log_is_a_tree(tmp_path):
    """Live logs of the seed's events, errors, repairs and an end with them, become trees with statuses and tokens (S3-03)."""
    path = session(tmp_path, calls=2)
    (tree,) = FORMAT.read(path.parent).trees
    ops = [(op.kind, op.name, op.status) for _, _, op in walk_ops(tree.session)]
    assert [*[("tool", "fs.read", "ok")] * 2, ("tool", "fs.read", "failed"), ("system", "repair", "ok")] == ops
    assert ("ok", 1, 1) == (tree.session.status, tree.session.totals.tools_failed, len(tree.session.turns))
    made = EventLog(tmp_path / "models", now=Ticking())
    made.append(LogEvent("model_input", tokens=2500))
    made.append(LogEvent("model_output", tokens=500))
    made.end("error")
    (tree,) = FORMAT.read(made.path).trees
    assert ("failed", 500, 1) == (tree.session.status, tree.session.totals.output_tokens, tree.session.totals.llm_requests)


@pytest.mark.parametrize("name", ["", "a/b c", "x" * 100, "sess-001"])
def test_any_name_gives_a_session(tmp_path, name):
    """A session's name that cannot name a session on disk gets one made of it, always the same."""
    path = tmp_path / "session-log.md"
    path.write_text(SEED.replace("sess-001", name))
    (first,), (second,) = FORMAT.read(path).trees, FORMAT.read(path).trees
    assert first.session.origin_txn_id == second.session.origin_txn_id
    assert (first.session.origin_txn_id == name) == (name == "sess-001")


def test_faults_have_lines(tmp_path):
    """What cannot be taken is said by line and left out; with `strict` it is an error (S3-54)."""
    FORMAT.write(sample(), path := tmp_path / "t.session-log.md")
    text = path.read_text().replace('path: "1.1"\n', 'path: "1.x"\n', 1).replace("severity: ERR", "severity: [1]", 1)
    path.write_text(text)
    read = FORMAT.read(path)
    assert 2 == len(read.faults)
    assert all(text.split("\n")[fault.line - 1].startswith("type: ") for fault in read.faults)
    with pytest.raises(FormatError, match="line"):
        FORMAT.read(path, strict=True)


def test_nothing_is_overwritten(tmp_path):
    """Neither a log nor a summary that is there is written over (S3-07)."""
    target = tmp_path / "t.session-log.md"
    assert [target, tmp_path / "t.session-summary.yml"] == FORMAT.write(sample(), target)
    with pytest.raises(SetupError, match="is there already"):
        FORMAT.write(sample(), target)
    target.unlink()
    with pytest.raises(SetupError, match="is there already"):
        FORMAT.write(sample(), target)
    assert not target.exists()


@pytest.mark.parametrize(
    ("head", "expected"),
    [
        (SEED.encode(), True),
        (b"\xef\xbb\xbf# Session Log\n", True),
        (b"# Notes\n\nProtocol: EVENT-LOG/0.2\n", True),
        (b"# Readme\n", False),
        (b'{"type":"session_start"}\n', False),
        (b"", False),
    ],
)
def test_detection(tmp_path, head, expected):
    """Logs are known by their first lines, a session's directory by the log in it."""
    assert expected == FORMAT.detect(tmp_path / "x", head)
    assert FORMAT.detect(session(tmp_path).parent, b"")


def test_markdown_sees_the_same(tmp_path):
    """To a Markdown reader a log is headings, paragraphs, YAML blocks and rules, one of each an event (S3-06, S3-08)."""
    FORMAT.write(sample(), path := tmp_path / "t.session-log.md")
    tokens = MarkdownIt().parse(path.read_text())
    events = len(extract_events(path))
    counted = [sum(token.type == kind for token in tokens) for kind in ("fence", "hr", "heading_open")]
    assert [events, events + 1, events + 1] == counted
    assert {"yaml"} == {token.info for token in tokens if token.type == "fence"}


def test_replay_of_a_tree(tmp_path):
    """The state within a tree's session, with a call that was open then, comes out of its log (S3-03)."""
    FORMAT.write(sample(), path := tmp_path / "t.session-log.md")
    number = next(entry.number for entry in read_log(path).entries if entry.kind == "tool_call")
    assert ["1.2.1.1"] == list(state_at(path, number).open_calls)
    assert {} == state_at(path).open_calls


@given(st.floats(0, 253402300799999, allow_nan=False) | st.integers(0, 2**53).map(float) | st.floats(-1e15, 1e15))
def test_times_come_back(ms):
    """A time is written so that reading it gives the same float (S3-17)."""
    assert ms == moment(iso(ms))


def test_unfinished_sessions_are_held(tmp_path):
    """What was still open when the log was written is open when it is read, with all it had; there is no end and no summary."""
    root = SessionTreeBuilder("lead", txn="t", now=Ticking())
    turn = root.begin_turn(user="why?")
    turn.assistant("so far")
    op = root.begin_op("llm", "m", turn=turn)
    op.think("hm")
    op.log("still at it")
    root.set_response(op, "half")
    back, first, second = there_and_back(root.tree, tmp_path)
    assert first == second
    assert ["1.session-log.md", "2.session-log.md"] == sorted(one.name for one in Path(tmp_path).iterdir())
    assert (None, None, None) == (back.session.status, back.session.turns[0].status, back.session.turns[0].ops[0].status)
    assert "so far" == back.session.turns[0].assistant["content"]
    assert "session_end" not in first.decode()


def test_repair_names_the_file(tmp_path):
    """A repair's path is the repaired file, as in the seed; its node is named beside it, and the tree comes back (S3-27)."""
    root = SessionTreeBuilder("lead", txn="t", now=Ticking())
    root.begin_op("system", "repair", attributes={"demon": "d", "action": "created", "path": "hot.yml"}).end()
    back, first, second = there_and_back(root.tree, tmp_path)
    (repair,) = (fields for fields in extract_events(tmp_path / "1.session-log.md") if fields["type"] == "repair")
    assert ("hot.yml", "1.1") == (repair["path"], repair["node"])
    assert (shape(root.tree), first) == (shape(back), second)


def test_paths_that_no_snapshot_holds(tmp_path):
    """A path that lies too deep is refused with its event, not followed down (S3-54)."""
    path = tmp_path / "x.session-log.md"
    FORMAT.write(sample(), path)
    label = ".".join(["1"] * 4000)
    path.write_text(path.read_text() + f'\n## 12:00:00 — T\n\n```yaml\ntype: system_step\npath: "{label}"\n```\n')
    read = FORMAT.read(path)
    assert shape(sample()) == shape(read.trees[0])
    assert "no snapshot holds" in read.faults[-1].said
