import pytest

AGENT = """
import optree

def ask(messages, sent, read, written, system):
    with optree.llm(provider="anthropic", model="claude") as op:
        op.request(messages=messages, system=system, tools=[{"name": "search"}])
        op.account(input_tokens=sent, output_tokens=10, cache_read_tokens=read, cache_write_tokens=written)
        op.response("fine")

with optree.session(agent="lead"), optree.turn(user="go"):
    history = [{"role": "user", "content": "why " + "x" * 4000}]
    ask(history, 10, 0, 4000, "It is 09:31.")
    history.append({"role": "user", "content": "more"})
    ask(history, 10, 4000, 20, "It is 09:31.")
    history.append({"role": "user", "content": "api_key=sk-abcdefghijklmnopqrstuvwxyz"})
    ask(history, 10, 0, 4040, "It is 09:32.")
    with optree.session(agent="helper"), optree.turn(user="help"):
        ask(history[:1], 4010, 0, 0, "It is 09:32.")
"""


@pytest.fixture(scope="module")
def broken(tmp_path_factory):
    """Return a command line whose session has a call that broke the prompt cache."""
    from tests.cli.conftest import CommandLine

    line = CommandLine(tmp_path_factory.mktemp("broken"))
    line.agent.write_text(AGENT)
    line.txn = line.record()
    return line


def test_text(broken):
    """Calls that changed something have a row, and below it what broke the cache, how much was lost, and that its price is unknown."""
    lines = broken.read("diff-context").stdout.splitlines()
    assert ["PATH", "AGENT", "MODEL", "KEPT", "APPENDED", "CHANGED", "INPUT", "CACHED", "LOST", "COST"] == lines[0].split()
    assert ["1.3", "lead", "claude"] == lines[1].split()[:3]
    assert "system" in lines[1]
    assert "1.3 lead broke the cache of 1.2: about 4,005 of 4,005 tokens" in lines[3]
    assert "at a cost that is unknown" in lines[3]
    assert "  first: system: It is 09:31. → It is 09:32." == lines[4]
    assert "4 calls · 3 that only began or appended (--all shows them) · 1 broke the cache, 0 missed it" in lines[-1]


def test_all_and_agent(broken):
    """--all shows every call, --agent those of one agent; one that has none is an error that names those that have."""
    rows = [line.split()[:2] for line in broken.read("diff-context", "--all").stdout.split("\n\n")[0].splitlines()[1:]]
    assert [["1.1", "lead"], ["1.2", "lead"], ["1.3", "lead"], ["1.4.1.1", "helper"]] == rows
    assert "1.1" not in broken.read("diff-context", "--agent", "helper").stdout.splitlines()[0]
    assert ["1.4.1.1"] == [call["path"] for call in broken.json("diff-context", "--agent", "helper", "--all")["calls"]]
    assert "there are calls of helper, lead" in broken.read("diff-context", "--agent", "nobody", code=1).stderr


def test_json(broken):
    """--json gives totals and, of each call, what was kept and appended, what changed, and what was lost."""
    found = broken.json("diff-context")
    assert ["txn", "agent", "totals", "calls"] == list(found)
    [call] = found["calls"]
    counts = {"calls": 4, "broken": 1, "missed": 0, "expired": 0, "unknown": 0}
    assert {**counts, "lostTokens": call["lostTokens"], "lostUsd": None, "unpriced": 1} == found["totals"]
    assert ("1.3", "1.2", "broken", True, None) == tuple(call[name] for name in ("path", "previous", "cache", "estimated", "lostUsd"))
    assert [{"what": "system", "before": "It is 09:31.", "after": "It is 09:32."}] == call["parts"]
    assert (2, 1) == (call["messages"]["kept"], call["messages"]["appended"])
    assert call["lostTokens"] == call["reusableTokens"] > 3000


def test_credentials_are_not_printed(broken):
    """What is printed holds no credential."""
    for options in ([], ["--all"], ["--json", "--all"]):
        assert "abcdefghij" not in broken.read("diff-context", *options).stdout


def test_without_calls(optree):
    """A session without LLM calls is no error."""
    optree.agent.write_text("import optree\nwith optree.session(agent='a'): pass\n")
    optree.record()
    assert "0 calls · none lost tokens of the cache\n" == optree.read("diff-context").stdout
