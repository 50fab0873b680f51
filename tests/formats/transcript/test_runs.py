import os

import pytest

from optree.errors import FormatError
from optree_formats.transcript import FORMAT, family
from tests.formats.transcript.lines import CHILD, RUN, line, step, tool, write

THIRD = "7d444840-9dc0-41d1-b245-5ffdce74fad2"
CALL = "step.call_workflow.started"


def run(folder, run_id, *children, parent=None):
    """Write a run that calls others; returns its path."""
    own = {"run_id": run_id, **({"parent_run_id": parent} if parent else {})}
    called = [
        line(seq, f"step.call_workflow.{what}", step(child[:4], "call_workflow"), path=f"call{place}", child_run_id=child, **own)
        for place, child in enumerate(children)
        for seq, what in ((2 * place + 2, "started"), (2 * place + 3, "completed"))
    ]
    last = 2 * len(children) + 2
    return write(
        folder / f"{run_id}.jsonl",
        line(1, payload=step(run_id[:4], "workflow"), **own),
        *called,
        line(last, "run.completed", step(run_id[:4], "workflow"), **own),
    )


def said(found):
    """Return the texts of faults."""
    return [fault.said for fault in found.faults]


def test_a_connected_tree(tmp_path):
    """From the parent's file the links lead to every run below it, at each depth (S2-60, S2-64, S2-65)."""
    path = run(tmp_path, RUN, CHILD)
    run(tmp_path, CHILD, THIRD, parent=RUN)
    run(tmp_path, THIRD, parent=CHILD)
    found = family(path, strict=True)
    [child] = found.root.children.values()
    assert ([RUN], [CHILD], [THIRD]) == ([found.root.run_id], [*found.root.children], [*child.children])
    root = FORMAT.read(path, strict=True).trees[0].session
    ops = [turn.ops[0] for session in (root, root.turns[0].ops[0].child_session) for turn in session.turns]
    assert [("session", "6ba7", "1.1"), ("session", "7d44", "1.1.1.1")] == [(op.kind, op.child_session.agent_id, op.path) for op in ops]
    assert (RUN, CHILD) == (root.id, ops[0].child_session.attributes["runId"])
    assert "550e->6ba7->7d44" == ops[1].child_session.call_path


@pytest.mark.parametrize(
    ("child", "expected"),
    [
        (CHILD, f"run {CHILD} is not followed: there is no file {CHILD}.jsonl beside this one"),
        ("../../etc/passwd", "run ../../etc/passwd is not followed: its id is no file's name"),
        (RUN, f"run {RUN} is not followed: it was met before, so the links go in a circle or meet"),
    ],
)
def test_links_that_lead_nowhere(tmp_path, child, expected):
    """A link to a file that is missing, to none that can be, or back to its own run is reported once, and the run is read (S2-66)."""
    path = run(tmp_path, RUN, child)
    assert [f"{RUN}.jsonl: seq 2: {expected}"] == [one for one in said(family(path)) if "seq 2" in one]
    [tree] = FORMAT.read(path).trees
    assert ["session"] == [op.kind for turn in tree.session.turns for op in turn.ops]
    with pytest.raises(FormatError, match="is not followed"):
        family(path, strict=True)


def test_unreadable_child(tmp_path):
    """A child's file that cannot be read, or holds no event, is reported, and the others are read (S2-66)."""
    path = run(tmp_path, RUN, CHILD, THIRD)
    (tmp_path / f"{CHILD}.jsonl").mkdir()
    (tmp_path / f"{THIRD}.jsonl").write_bytes(b"")
    first, second = said(family(path))
    assert f"run {CHILD} is not followed: its file cannot be read: " in first
    assert f"run {THIRD} is not followed: its file cannot be read: {THIRD}.jsonl holds no event of a transcript" in second


def test_forbidden_child(tmp_path):
    """So is one that somebody else may read."""
    path = run(tmp_path, RUN, CHILD)
    run(tmp_path, CHILD, parent=RUN).chmod(0)
    if os.geteuid():
        assert "Permission denied" in said(family(path))[0]
    else:
        assert [CHILD] == [*family(path).root.children]


def test_cycle(tmp_path):
    """Runs that call each other in a circle are read once each, and the link that closes it is reported (S2-66)."""
    path = run(tmp_path, RUN, CHILD)
    run(tmp_path, CHILD, RUN, parent=RUN)
    found = family(path)
    assert [f"{CHILD}.jsonl: seq 2: run {RUN} is not followed: it was met before, so the links go in a circle or meet"] == said(found)
    assert ["550e", "6ba7"] == [session.agent_id for session in sessions(FORMAT.read(path).trees[0].session)]


def sessions(session):
    """Return a session and all below it."""
    below = [op.child_session for turn in session.turns for op in turn.ops if op.child_session]
    return [session, *(inner for one in below for inner in sessions(one))]


def test_two_parents(tmp_path):
    """A run that two others have called is read below the first, and the second link is reported (S2-66)."""
    path = run(tmp_path, RUN, CHILD, THIRD)
    run(tmp_path, CHILD, THIRD, parent=RUN)
    run(tmp_path, THIRD, parent=RUN)
    found = family(path)
    assert ([CHILD, THIRD], 1) == ([*found.root.children], len(found.faults))


def test_child_of_another_parent(tmp_path):
    """A child that names another parent is kept, and that is reported (S2-66)."""
    path = run(tmp_path, RUN, CHILD)
    run(tmp_path, CHILD, parent=THIRD)
    found = family(path)
    assert ([CHILD], [f"{CHILD}.jsonl: names another parent than {RUN}; kept"]) == ([*found.root.children], said(found))


def test_faults_of_children_name_their_file(tmp_path):
    """A bad line in a child's file is reported with that file's name (S2-66, S2-96)."""
    path = run(tmp_path, RUN, CHILD)
    child = run(tmp_path, CHILD, parent=RUN)
    child.write_bytes(child.read_bytes() + b"{\n")
    [fault] = family(path).faults
    assert (3, f"{CHILD}.jsonl: left out: Input data was truncated") == tuple(fault)


def test_events_of_other_runs(tmp_path):
    """Events of another run in a file are reported and left out; numbers that are out of order are put in order."""
    path = write(tmp_path / "t", line(1), line(3, "run.completed"), line(2, "step.started", step()), line(9, run_id=CHILD))
    found = family(path)
    assert ([1, 2, 3], True) == ([event.seq for event in found.root.events], f"other runs are left out: {CHILD}" in said(found)[-1])


def test_two_recorders_that_knew_nothing_of_each_other(tmp_path):
    """Where numbers are there twice, the file's order holds."""
    path = write(tmp_path / "t", line(1), line(2, "step.started", step()), line(1), line(2, "run.completed"))
    assert [1, 2, 1, 2] == [event.seq for event in family(path).root.events]


def test_empty_file(tmp_path):
    """A file without any event is none of this format."""
    with pytest.raises(FormatError, match="t holds no event of a transcript"):
        family(write(tmp_path / "t", b""))


def test_a_deep_family(tmp_path):
    """Hundreds of levels are walked without recursion (S2-65)."""
    ids = [f"00000000-0000-4000-8000-{number:012d}" for number in range(400)]
    for place, run_id in enumerate(ids):
        run(tmp_path, run_id, *ids[place + 1 : place + 2], parent=ids[place - 1] if place else None)
    found = FORMAT.read(tmp_path / f"{ids[0]}.jsonl", strict=True)
    depth, session = 0, found.trees[0].session
    while session.turns:
        depth, session = depth + 1, session.turns[0].ops[0].child_session
    assert 399 == depth


@pytest.mark.parametrize("member", ["input", "output"])
def test_values_that_cannot_be_decoded(tmp_path, member):
    """An event with a number that no float holds is reported and left out of the tree, and all others are read (S2-96)."""
    huge = line(2, "tool.call", tool("c1")).replace(b'"%b":null' % member.encode(), b'"%b":1e999' % member.encode())
    path = write(tmp_path / "t", line(1), huge, line(3, "tool.call", tool("c2")))
    found = FORMAT.read(path)
    assert ["seq 2: left out: holds a number that is too large, or is nested too deeply"] == said(found)
    assert ["c2"] == [op.attributes["step"]["callId"] for op in found.trees[0].session.turns[0].ops]
    with pytest.raises(FormatError, match="a number that is too large"):
        FORMAT.read(path, strict=True)


def test_a_directory_whose_main_file_has_another_name(tmp_path):
    """A run that another one in the directory has called is not read twice, whatever that one's file is called."""
    run(tmp_path, RUN, CHILD).rename(tmp_path / "mine.transcript.jsonl")
    run(tmp_path, CHILD, parent=RUN)
    assert 1 == len(FORMAT.read(tmp_path).trees)
