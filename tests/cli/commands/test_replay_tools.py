"""`optree replay` and `optree fork` of programs with tools: what they gave comes again, and what ran is said."""

import re
import sys

import pytest

from optree._cli.program import command_line
from tests.cli.conftest import CommandLine

AGENT = """
import sys
from pathlib import Path

import optree


class Page:
    pass


@optree.tool
def search(query):
    Path("ran").write_text(Path("ran").read_text() + query + "\\n")
    return query.upper()


@optree.tool
def opened(query):
    return Page()


with optree.session("agent"):
    for query in sys.argv[1:]:
        print(search(query))
    opened("page")
"""


@pytest.fixture
def line(tmp_path):
    """Return a command line with a program that was recorded, and what ran of it."""
    line = CommandLine(tmp_path)
    line.agent.write_text(AGENT)
    (tmp_path / "ran").write_text("")
    line("run", "--", sys.executable, "agent.py", "tides", "moon")
    return line


def test_replay_of_a_program(line):
    """`optree replay` gives a program what its tools gave, and says which of them ran."""
    [txn] = line.txns()
    run = line("replay", txn, "--", sys.executable, "agent.py", "tides", "moon")
    assert ("TIDES\nMOON\n", "tides\nmoon\n") == (run.stdout, (line.folder / "ran").read_text())
    why = f"1 ran, the first at 1.3: the result at 1.3 of {txn} cannot be made again of what was recorded: it is, or has, a __main__.Page"
    said = f"optree: 0 of 0 calls of models were answered as in {txn}; 2 of 3 calls of tools got their results; {why}\n"
    assert run.stderr.endswith(said)


def test_replay_of_a_program_that_was_changed(line):
    """A tool with other arguments does not run; what to do is said, and then it does."""
    [txn] = line.txns()
    command = [sys.executable, "agent.py", "tides", "sun"]
    run = line("replay", txn, "--", *command, code=1)
    where = f'not as recorded at 1.2 of {txn}: arguments.query is "sun", not "moon"'
    assert f"optree.errors.OptreeError: optree replay: {where}; with --tools live, in a test tools='live', tools run" in run.stderr
    assert f"; not asked for: 1.2, 1.3; 1 differ, the first at 1.2: {where}\n" in run.stderr
    assert f"optree: with tools that run: optree replay {txn} --tools live -- {command_line(command)}\n" in run.stderr
    assert "tides\nmoon\n" == (line.folder / "ran").read_text()
    run = line("replay", txn, "--tools", "live", "--", *command)
    assert ("TIDES\nSUN\n", "tides\nmoon\ntides\nsun\n") == (run.stdout, (line.folder / "ran").read_text())


def test_fork_of_a_program(line):
    """`optree fork` runs tools from an op on, `--tools live` all."""
    [txn] = line.txns()
    run = line("fork", txn, "--at", "1.2", "--", sys.executable, "agent.py", "tides", "sun")
    assert ("TIDES\nSUN\n", "tides\nmoon\nsun\n") == (run.stdout, (line.folder / "ran").read_text())
    assert "; 1 of 1 calls of tools got their results; 0 were asked\n" in run.stderr
    line("fork", txn, "--at", "1.2", "--tools", "live", "--", sys.executable, "agent.py", "tides", "sun")
    assert "tides\nmoon\nsun\ntides\nsun\n" == (line.folder / "ran").read_text()


def test_a_session_that_cannot_be_read(line):
    """Where the session cannot be read that a program is to get its results from, no tool runs."""
    line.env["OPTREE_REPLAY"] = "nosuch"
    run = line("run", "--", sys.executable, "agent.py", "tides", code=1)
    assert re.search(r"OptreeError: optree replay: .*nosuch", run.stderr), run.stderr
    assert "tides\nmoon\n" == (line.folder / "ran").read_text()


def test_last_is_no_replay(line):
    """`last` passes over replays and forks: what is replayed is what they replay."""
    [txn] = line.txns()
    command = ("--", sys.executable, "agent.py", "tides", "moon")
    for words in (("replay", "last"), ("fork", "last", "--at", "1.2"), ("replay", "last")):
        assert f"calls of models were answered as in {txn};" in line(*words, *command).stderr


def test_all_that_is_there_is_a_replay(line):
    """Where there are replays only, one is to be named."""
    [txn] = line.txns()
    line("replay", txn, "--", sys.executable, "agent.py", "tides", "moon")
    next((line.base / "sessions").glob(f"{txn}.*")).unlink()
    assert "are replays: name the one" in line("replay", "last", "--", "true", code=1).stderr


LIVE = """
import sys

import optree


@optree.llm(provider="example", model="small-1")
def ask(question):
    return question.upper()


with optree.session("agent"), optree.turn(user="go"):
    print(*map(ask, sys.argv[1:]))
    with optree.tool("block"):
        pass
"""


def test_models_that_are_called_live(tmp_path):
    """Models that are asked in another way than over HTTP are called, which is said; a fork, which would do the same, is not proposed."""
    line = CommandLine(tmp_path)
    line.agent.write_text(LIVE)
    line("run", "--", sys.executable, "agent.py", "tides", "moon")
    [txn] = line.txns()
    run = line("replay", txn, "--", sys.executable, "agent.py", "tides", "moon")
    live = "2 calls of models were made live: they are not sent by httpx, aiohttp, botocore or websockets"
    told = f"1 call of tools was not replayed, the first at 1.3; {live}"
    assert ("TIDES MOON\n", True) == (
        run.stdout,
        run.stderr.endswith(f"optree: 0 of 2 calls of models were answered as in {txn}; {told}\n"),
    )
    run = line("replay", txn, "--", sys.executable, "agent.py", "tides", "sun", code=1)
    assert f"; {live}; not asked for: 1.2\n" in run.stderr
    assert "optree fork" not in run.stderr
