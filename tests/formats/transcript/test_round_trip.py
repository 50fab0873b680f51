import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from msgspec import json

from optree._builder import SessionTreeBuilder
from optree._formats.installed import installed_formats
from optree._tree import flatten
from optree.errors import SetupError
from optree.testing import Ticking, shape
from optree_formats.transcript import FORMAT, Event, StepPayload, read, run_id_of
from optree_formats.transcript.recorder import check
from optree_formats.transcript.wire import milliseconds
from tests.formats.transcript.held import held
from tests.formats.transcript.lines import CHILD
from tests.formats.transcript.trees import review, unfinished
from tests.strategies import play, programs


def there_and_back(tree, folder):
    """Write a tree, read it, write what was read; returns both writings by name, and the tree that was read."""
    (folder / "1").mkdir()
    (folder / "2").mkdir()
    first = FORMAT.write(tree, folder / "1")
    found = FORMAT.read(first[0], strict=True)
    [back] = found.trees
    second = FORMAT.write(back, folder / "2")
    assert [] == found.faults
    return *({path.name: path.read_bytes() for path in paths} for paths in (first, second)), back


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(programs)
def test_any_session(program):
    """What a transcript holds of any session comes back, the files are written again byte for byte, and all events are allowed (S2-67)."""
    tree = play(program).folded()
    with tempfile.TemporaryDirectory() as folder:
        first, second, back = there_and_back(tree, Path(folder))
        for name in first:
            for event in read(Path(folder) / "1" / name, strict=True):
                check(event)
    assert first == second
    assert held(tree) == held(back)


@pytest.mark.parametrize("tree", [review(), review(levels=3), unfinished()], ids=["review", "deep", "unfinished"])
def test_sessions_with_everything(tree, tmp_path):
    """A session with thoughts, parallel tools, sub-agents and reports comes back, and one that a crash cut off stays open (S2-64)."""
    first, second, back = there_and_back(tree, tmp_path)
    assert first == second
    assert (shape(tree), held(tree)) == (shape(back), held(back))


def test_calls_count_though_no_transcript_tells_what_they_took(tmp_path):
    """Model and tool calls that come back are in the totals, as calls whose cost is unknown and of which some failed (S2-64)."""
    builder = SessionTreeBuilder("agent", txn="t")
    for name, error in (("openai:gpt-4o", None), ("openai:gpt-4o", "429")):
        builder.begin_op("llm", name).end("failed" if error else "ok", error)
    builder.begin_op("tool", "search").end()
    builder.begin_op("llm", "openai:gpt-4o")
    _, _, back = there_and_back(builder.tree, tmp_path)
    totals = back.session.totals
    assert (2, 1, 1, 0, 0, 2) == (
        totals.llm_requests,
        totals.llm_failed,
        totals.tools_run,
        totals.tools_failed,
        totals.known_costs,
        totals.unknown_costs,
    )
    found = flatten(back).accounting
    told = [(one["type"], one["status"], one.get("model"), one.get("command"), one.get("error")) for one in found]
    assert [("llm", "ok", "gpt-4o", None, None), ("llm", "failed", "gpt-4o", None, "429"), ("tool", "ok", None, "search", None)] == told
    assert len(told) == len({one["id"] for one in found})


def test_files(tmp_path):
    """The root's run has the name that was asked for, others are beside it; none replaces a file, all are 0600 (S2-01, S2-02, S2-63)."""
    paths = FORMAT.write(review(levels=2), tmp_path / "new" / "r.transcript.jsonl")
    names = ["r.transcript.jsonl", *(f"{run_id_of(f't:{path}')}.jsonl" for path in ("1.4", "1.4.1.2"))]
    assert names == [path.name for path in paths]
    assert {0o600} == {path.stat().st_mode & 0o777 for path in paths}
    assert {1} == {next(read(path)).seq for path in paths}
    paths[0].unlink()
    with pytest.raises(SetupError, match=r"has .*jsonl, .*jsonl already"):
        FORMAT.write(review(levels=2), paths[0])
    assert not paths[0].exists()


def test_run_ids():
    """A session's run id is a UUID v4 that follows from its id, or its id itself where that is one (S2-11)."""
    assert (CHILD, True) == (run_id_of(CHILD), run_id_of("t") == run_id_of("t") != run_id_of("t:1.1"))
    with tempfile.TemporaryDirectory() as folder:
        path, *_ = FORMAT.write(review(CHILD), Path(folder))
        assert (f"{CHILD}.jsonl", CHILD) == (path.name, FORMAT.read(path).trees[0].session.id)
    check(Event(seq=1, run_id=run_id_of("t"), child_run_id=run_id_of("x"), type="step.call_workflow.started", path="", iteration=0,
                timestamp="2026-06-08T08:14:42Z", payload=StepPayload(name="a", kind="b")))  # fmt: skip


def test_order_of_time(tmp_path):
    """Events stand in the order of their times, those of parallel ops among each other (S2-06, S2-17)."""
    events = [*read(FORMAT.write(review(), tmp_path)[0])]
    times = [milliseconds(event.timestamp) for event in events]
    tools = [(event.type, event.payload.name) for event in events if event.path in ("turn_1.op_2", "turn_1.op_3")]
    assert sorted(times) == times
    assert [("tool.call", "read"), ("tool.call", "grep"), ("tool.result", "read"), ("tool.result", "grep")] == tools


def test_a_directory(tmp_path):
    """Of a directory all trees are read, each once, from the runs that no other has called (S2-64)."""
    for txn in ("a", "b"):
        FORMAT.write(review(txn), tmp_path)
    assert ["a", "b"] == sorted(tree.session.id for tree in FORMAT.read(tmp_path).trees)


def test_detected(tmp_path):
    """A transcript is known by its first line, also behind a byte order mark, and a directory by its files; other files are not."""
    path, *_ = FORMAT.write(review(), tmp_path)
    head = path.read_bytes()
    assert [True] * 4 == [FORMAT.detect(path, one) for one in (head, b"\xef\xbb\xbf" + head, head[:150], b"\n" + head)]
    assert (True, False) == (FORMAT.detect(tmp_path, b""), FORMAT.detect(path.parent.parent, b""))
    others = [b"", b"{}\n", b"[1]\n", b"# A title\n", b'{"event_type":"agent_created","seq":1}\n', b"\x00\x01", b"{" * 2000]
    assert [False] * 7 == [FORMAT.detect(path, one) for one in others]


def test_installed():
    """It is found by its name, with what it cannot hold."""
    formats, problems = installed_formats()
    [found] = [form for form in formats if form.name == "transcript"]
    assert ([], FORMAT, ".transcript.jsonl", True) == (problems, found, found.suffix, "logs" in found.cannot_hold)


def test_resumed(tmp_path):
    """A session that was resumed has begun twice in its file, and comes back so."""
    tree = unfinished()
    tree.session.resumed_at = [tree.session.started_at + 500.0]
    first, second, back = there_and_back(tree, tmp_path)
    kinds = [json.decode(line)["type"] for line in first[f"{run_id_of('t')}.jsonl"].splitlines()]
    assert (2, first, tree.session.resumed_at) == (kinds.count("run.started"), second, back.session.resumed_at)


def test_run_ids_of_ones_own(tmp_path):
    """Sub-agents that were given the same run id as an attribute are runs of their own all the same (S2-60)."""
    root = SessionTreeBuilder("lead", txn="t", now=Ticking(), attributes={"runId": CHILD})
    for name in ("a", "b"):
        op = root.begin_op("session", name)
        root.attach_child_session(op, name, attributes={"runId": CHILD})
    first, second, back = there_and_back(root.tree, tmp_path)
    assert ([f"{run_id_of('t')}.jsonl", f"{CHILD}.jsonl", f"{run_id_of('t:1.2')}.jsonl"], first) == ([*first], second)
    assert held(root.tree) == held(back)
