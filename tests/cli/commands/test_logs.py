import json
import re
import subprocess
import sys
from collections import Counter

import pytest

LINE = re.compile(r"\[txn:[\w-]+\] \[path:[\d.]*\] \S+ \[(VRB|WRN|ERR|TRC|THK|FIN)\] [→←] (session|turn|llm|tool|system) .+: .*")


def test_saved_lines_are_the_printed_lines(optree):
    """What a saved session shows are the lines that the running agent printed, each of one node (S4-115, S4-121)."""
    run = optree("run", "--verbose", "--", sys.executable, optree.agent, "why", "step")
    printed = [line for line in run.stderr.splitlines() if not line.startswith("optree: ")]
    shown = optree.read("logs").stdout.splitlines()
    assert Counter(printed) == Counter(shown)
    assert [] == [line for line in shown if not LINE.fullmatch(line)]


def test_order(ended):
    """Lines come in the order of time: what begins a node comes first, what ends it last."""
    shown = lines_of(ended, "logs")
    assert sorted(line["timestamp"] for line in shown) == [line["timestamp"] for line in shown]
    assert ["", "1", "1.1"] == [line["path"] for line in shown[:3]]
    assert [("1.2", "FIN"), ("", "FIN")] == [(line["path"], line["severity"]) for line in shown if line["severity"] == "FIN"]


def test_json(ended):
    """--json gives an object a line, with the console line in it."""
    found = lines_of(ended, "logs", "--severity", "WRN")
    [line] = found
    assert ["txn", "timestamp", "path", "severity", "line"] == list(line)
    assert f"[txn:{ended.txn}] [path:1.1] researcher [WRN] → llm openai:gpt-4o: retrying after 429" == line["line"]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--severity", "wrn,fin"], {("1.1", "WRN"), ("1.2", "FIN"), ("", "FIN")}),
        (["--severity", "WRN", "--severity", "THK"], {("1.1", "WRN"), ("1.1", "THK")}),
        (["--path", "1.2", "--severity", "FIN"], {("1.2", "FIN")}),
        (["--path", "1.2.1.1"], {("1.2.1.1", "VRB")}),
        (["--path", "1", "--grep", "nowhere to be found"], set()),
        (["--grep", r"after \d+"], {("1.1", "WRN")}),
        (["--severity", "TRC", "--grep", "found"], {("1.2.1.1", "TRC")}),
    ],
)
def test_filters(ended, options, expected):
    """--severity, --path and --grep leave out what they do not name; payloads are shown only when asked for."""
    assert expected == {(line["path"], line["severity"]) for line in lines_of(ended, "logs", *options)}


def test_payloads_have_their_messages(ended):
    """A traced payload shows the messages that were sent, not a reference to them, redacted (S4-120)."""
    [line] = [one["line"] for one in lines_of(ended, "logs", "--severity", "TRC", "--path", "1.1") if " → " in one["line"]]
    assert '"messages":[{"role":"user","content":"why"}]' in line
    assert '"api_key":"[REDACTED]"' in line


def test_payloads_only_on_request(ended):
    """Without --severity TRC no payload is shown."""
    assert "TRC" not in {line["severity"] for line in lines_of(ended, "logs")}


@pytest.mark.parametrize("options", [["--severity", "LOUD"], ["--grep", "("], ["--path", "a.b"]])
def test_wrong_filters(ended, options):
    """Filters that cannot be are wrong usage."""
    assert "" == ended.read("logs", *options, code=2).stdout


def test_follow_a_running_session(optree):
    """-f shows what was and what comes, each line once, until the session ends; the lines are those that the agent prints."""
    agent = optree.start(*optree.command("run", "-v", "--", sys.executable, optree.agent, "why", "wait", "later", "join"))
    assert ["found why\n", "ready\n"] == [agent.stdout.readline(), agent.stdout.readline()]
    follower = optree.start(*optree.command("logs", "-f", "last"))
    seen = [follower.stdout.readline()]
    while "[FIN] ← session helper" not in seen[-1]:
        seen.append(follower.stdout.readline())
    assert not any("later" in line for line in seen)
    _, printed = agent.communicate()
    rest, said = follower.communicate()
    assert (0, "") == (follower.returncode, said)
    shown = [*seen, *rest.splitlines(keepends=True)]
    assert any("tool later: doing later" in line for line in shown)
    assert 2 == sum("retrying after 429" in line for line in shown)  # the second is the joined process's
    txn = next(iter(optree.txns()))
    assert Counter(line for line in printed.splitlines() if line.startswith(f"[txn:{txn}]")) == Counter(line.rstrip("\n") for line in shown)


def test_follow_a_journal_whose_first_line_is_damaged(tmp_path):
    """The records of a journal whose first line is damaged are followed, too."""
    from optree._cli.commands.logs import JournalTail
    from tests.store.reading.test_reader import DATA, WHOLE

    path = tmp_path / "j-0000-000001.jsonl"
    path.write_bytes(b"garbage" + DATA[7:])
    tail = JournalTail(path, 3)
    assert WHOLE[3:] == list(tail.read())
    tail.close()


def test_follow_a_killed_session(optree):
    """-f ends when the session's process is gone, and says how to go on."""
    agent = optree.start(sys.executable, optree.agent, "why", "wait", "kill")
    assert ["found why\n", "ready\n"] == [agent.stdout.readline(), agent.stdout.readline()]
    follower = optree.start(*optree.command("logs", "--follow", "last"))
    assert "session researcher: begins" in follower.stdout.readline()
    agent.communicate()
    _, said = follower.communicate()
    txn = next(iter(optree.txns()))
    assert f"optree: session {txn} was interrupted; go on with: optree load {txn} -- CMD\n" == said
    assert 0 == follower.returncode


def test_follow_an_ended_session(ended):
    """-f of a session that has ended shows it and ends."""
    assert ended.read("logs").stdout == ended.read("logs", "-f").stdout


def test_reader_goes_away(optree):
    """A reader that has seen enough ends the command quietly."""
    optree.record(*(f"step{number}" for number in range(300)))
    follower = optree.start(*optree.command("logs"), stdout=subprocess.PIPE)
    assert "session researcher: begins" in follower.stdout.readline()
    follower.stdout.close()
    assert ("", 0) == (follower.stderr.read(), follower.wait())
    follower.stderr.close()
    follower.stdin.close()


def lines_of(optree, *args):
    """Return the lines that `optree … --json` printed, decoded."""
    return [json.loads(line) for line in optree.read(*args, "--json").stdout.splitlines()]


def test_a_path_that_is_not_there_is_said(ended):
    """A path of no node is an error that names some that are there, as `optree show` has it."""
    for path in ("99", "1.99"):
        said = ended.read("logs", "--path", path, code=1).stderr
        assert said == ended.read("show", "last", path, code=1).stderr
        assert f"no node {path} in session {ended.txn}: there are " in said
