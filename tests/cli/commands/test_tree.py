import os
import pty
import re
import subprocess
import sys

import pytest

SGR = re.compile(r"\x1b\[[0-9;]*m")


def test_tree(ended):
    """The tree has one line a node (S4-113)."""
    lines = ended.read("tree", ended.txn).stdout.splitlines()
    assert ["researcher ✓", "└─ 1 turn ✓", "   ├─ 1.1 llm openai:gpt-4o ✓", "   └─ 1.2 helper ✓"] == [head(line) for line in lines[:4]]
    assert ["      └─ 1.2.1 turn ✓", "         └─ 1.2.1.1 tool search ✓"] == [head(line) for line in lines[4:]]


@pytest.mark.parametrize(("depth", "paths"), [(0, []), (1, ["1"]), (2, ["1", "1.1", "1.2"]), (3, ["1", "1.1", "1.2", "1.2.1"])])
def test_depth(ended, depth, paths):
    """--depth cuts what lies deeper; a path has one part a level (S4-122)."""
    assert paths == re.findall(r"─ ([0-9.]+) ", ended.read("tree", "--depth", depth).stdout)


def test_json(ended):
    """--json gives the tree as a saved file has it."""
    found = ended.json("tree", "--depth", "2")
    assert ["txn", "state", "lost", "session", "pool"] == list(found)
    assert ["1.1", "1.2"] == [op["path"] for op in found["session"]["turns"][0]["ops"]]
    assert [] == found["session"]["turns"][0]["ops"][1]["childSession"]["turns"]


@pytest.mark.parametrize(
    ("env", "coloured"),
    [({}, False), ({"FORCE_COLOR": "1"}, True), ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, False), ({"NO_COLOR": ""}, False)],
)
def test_colours(ended, env, coloured):
    """No colours into a pipe unless FORCE_COLOR is set; NO_COLOR wins; the text is the same."""
    plain, found = ended.read("tree").stdout, ended.read("tree", env=env).stdout
    assert coloured == ("\x1b[" in found)
    assert plain == SGR.sub("", found)


def test_colours_on_a_terminal(ended):
    """A terminal gets colours without being asked for."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.execve(sys.executable, ended.command("tree"), ended.env)
    shown = b""
    while b"search" not in shown:
        shown += os.read(terminal, 4096)
    os.close(terminal)
    os.waitpid(pid, 0)
    assert b"\x1b[1mresearcher\x1b[0m" in shown


def test_a_dumb_terminal(ended):
    """A terminal that understands no escape sequences gets none."""
    shown = ended.terminal("tree", env={"TERM": "dumb"})
    assert "researcher" in shown
    assert "\x1b[" not in shown


def test_control_characters(optree):
    """What a traced program puts into names cannot drive the terminal."""
    optree.record("\x1b]0;owned\x07tool\x1b[2J")
    for env in ({}, {"FORCE_COLOR": "1"}):
        shown = optree.read("tree", env=env).stdout
        assert "\\x1b]0;owned\\x07tool\\x1b[2J" in shown
        assert "\x1b" not in SGR.sub("", shown)


QUIET = """
import optree
with optree.session("a"), optree.turn():
    with optree.llm("m") as op:
        op.log("only one")
        op.account(cost_usd=0.5)
    with optree.tool("na\\nme"):
        pass
"""


def test_no_empty_figures(optree):
    """One log is one log, no tokens are not shown as 0→0, a name cannot begin a line, and nothing leaves double spaces."""
    optree("run", "--", sys.executable, "-c", QUIET)
    lines = optree.read("tree").stdout.splitlines()
    assert 4 == len(lines)
    assert lines[2].endswith(" $0.500000 1 log")
    assert "na\\nme" in lines[3]
    assert not any("0→0" in line or "  " in line.lstrip() or line != line.rstrip() for line in lines)


def test_running(optree):
    """What has no end yet reads as running while its process lives."""
    process = optree.start(sys.executable, optree.agent, "why", "wait")
    assert ["found why\n", "ready\n"] == [process.stdout.readline(), process.stdout.readline()]
    shown = optree.read("tree").stdout
    process.communicate()
    assert shown.startswith("researcher … running")


def head(line):
    """Return a line up to its mark."""
    return line[: line.index("✓") + 1]


def test_marks_stay_apart_in_ascii(optree):
    """Where the terminal shows ASCII only, good and failed are told apart all the same."""
    txn = optree.record("fail", code=1)
    run = optree("tree", txn, env={"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"})
    assert run.stdout.isascii()
    assert " ok " in run.stdout
    assert " x failed " in run.stdout


def test_credits_are_said(optree):
    """A negative cost lowers the totals of a tree, which says so below it, as `cost` and `ledger` do."""
    head = "import optree\nwith optree.session('a'), optree.turn(), optree.tool('t') as op:\n"
    source = head + "    op.account(cost_usd=1.0)\n    op.account(cost_usd=%s)"
    for cost, expected in ((-0.25, True), (0.25, False)):
        subprocess.run([sys.executable, "-c", source % cost], env=optree.env, check=True)
        note = "includes 1 credit of -$0.250000: entries with a negative cost, which lower these sums"
        assert expected == (note == optree.read("tree").stdout.splitlines()[-1])
