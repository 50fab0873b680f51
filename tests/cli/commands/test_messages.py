import json
import re
import sys
from pathlib import Path

import pytest

DATA = Path(__file__).resolve().parents[2] / "conversation" / "data_views"
CAFE, HOOK, REDACTION = (DATA / f"{name}.v2.jsonl" for name in ("jack_and_jill", "hook", "redaction"))
SGR = re.compile(r"\x1b\[[0-9;]*m")
VIEWS = ["transcripts", "dialog", "perspective", "timeline", "agents", "heard", "propagation", "hooks", "causality"]
OF_A_MESSAGE = ["flow", "references", "during"]


def test_transcripts(optree):
    """Without options each agent's transcript is shown, with who said what, and where a content came from (S0-72, S1-45)."""
    shown = optree.read("messages", CAFE).stdout
    assert ["agent_root", "Jack (agent_jack)", "Jill (agent_jill)"] == re.findall(r"^(\S.*?) · ", shown, re.MULTILINE)
    assert "  msg_017  heard    [Jack]: Hi, I'm Jack. *extends hand*  ← msg_015 of Jack\n" in shown


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_dialog(optree, version):
    """A dialog of agents chosen by id or name has each content once, and says who heard it (S0-73, S0-102, S1-46)."""
    found = optree.json("messages", DATA / f"jack_and_jill.{version}.jsonl", "--view", "dialog", "--agent", "Jack", "--agent", "agent_jill")
    assert ["view", "agents", "result", "faults"] == list(found)
    assert ["msg_012", "msg_015", "msg_018"] == [line["message_id"] for line in found["result"]]
    shown = optree.read("messages", CAFE, "--view", "dialog", "--agent", "Jack", "--agent", "Jill").stdout
    assert "  msg_015  Jack        Hi, I'm Jack. *extends hand*  (heard by Jill)\n" in shown


def test_heard(optree):
    """--heard adds in which words each agent heard a content; alone, a hearer's words are not the author's (S0-33, S0-107)."""
    both = optree.json("messages", REDACTION, "--view", "dialog", "--heard")["result"]
    assert ["password: 1234", "password: [REDACTED]"] == [both[0]["content"], both[0]["heard"][0]["content"]]
    alone = optree.read("messages", REDACTION, "--view", "dialog", "--agent", "agent_jill").stdout
    assert "1234" not in alone


@pytest.mark.parametrize("view", [*VIEWS, *OF_A_MESSAGE])
def test_every_form(optree, view):
    """Each view comes as text, JSON, Markdown and a diagram of Mermaid (S0-02)."""
    asked = ["messages", CAFE, "--view", view, *(["--message", "msg_013"] if view in OF_A_MESSAGE else [])]
    assert optree.read(*asked, "--format", "text") == optree.read(*asked)
    assert json.loads(optree.read(*asked, "--format", "json").stdout) == optree.json(*asked)
    assert optree.read(*asked, "--format", "md").stdout.startswith("### ")
    assert optree.read(*asked, "--format", "mermaid").stdout.startswith(("sequenceDiagram\n", "flowchart "))


def test_hooks(optree):
    """A change on the way is shown as a diff (S0-107, S1-17)."""
    shown = optree.read("messages", REDACTION, "--view", "hooks").stdout
    assert "password: [-1234-]{+[REDACTED]+}" in shown
    assert "Nothing: all was heard as it was said." in optree.read("messages", CAFE, "--view", "hooks").stdout


def test_hook_denial(optree):
    """What happened during a call shows whom a hook asked, and what came of it (S0-88)."""
    lines = optree.read("messages", HOOK, "--view", "during", "--message", "msg_105").stdout.splitlines()
    assert ["msg_102", "msg_103", "msg_104", "msg_105"] == [line.split()[0] for line in lines[1:]]


def test_width(optree):
    """Text fits the terminal's width (S0-02)."""
    for width in (60, 80, 140):
        lines = optree.read("messages", CAFE, "--view", "timeline", env={"COLUMNS": str(width)}).stdout.splitlines()
        assert width >= max(map(len, lines))
    assert 20 < len(lines)


def test_colours(optree):
    """Colours come where they are asked for, and change no text."""
    plain = optree.read("messages", REDACTION, "--view", "hooks").stdout
    painted = optree.read("messages", REDACTION, "--view", "hooks", env={"FORCE_COLOR": "1"}).stdout
    assert "\x1b[31m[-1234-]\x1b[0m" in painted
    assert plain == SGR.sub("", painted)
    assert "\x1b" not in optree.read("messages", REDACTION, "--format", "md", env={"FORCE_COLOR": "1"}).stdout


TEAM = """
import optree
with optree.session("lead") as session, optree.turn(user="go"):
    session.message("go, password=hunter2secret")
    with optree.session("reader"), optree.turn(), optree.llm(provider="openai", model="gpt-4o") as op:
        op.request(messages=[{"role": "user", "content": "read"}])
        op.response("done\\x1b[2J")
"""


def test_any_session(optree):
    """A session that was captured as calls is shown too: its agents, what they sent and got; credentials are replaced (S0-101)."""
    optree("run", "--", sys.executable, "-c", TEAM)
    shown = optree.read("messages").stdout
    assert "reader · openai:gpt-4o · created by lead" in shown
    assert re.search(r"said +done\\x1b\[2J", shown)
    assert "hunter2" not in shown + optree.read("messages", "--json").stdout
    assert ["lead", "reader"] == [one["agent_id"] for one in optree.json("messages", "last", "--view", "agents")["result"]]


def test_faults(optree, tmp_path):
    """Bad lines of a file are said by number, the rest is shown, and the exit code tells."""
    path = tmp_path / "torn.jsonl"
    path.write_bytes(CAFE.read_bytes() + b'{"message_id": "msg_0')
    ran = optree.read("messages", path, "--view", "timeline", code=3)
    assert "line 21" in ran.stderr
    assert "msg_020" in ran.stdout


def test_credentials_in_faults(optree, tmp_path):
    """A bad line's credentials are in no complaint, also where the line is cut within them."""
    key = "sk-proj-abcdefghijklmnopqrstuvwxyz0123456789ABCD"
    path = tmp_path / "torn.jsonl"
    torn = b'{"message_id": "m1", "event_type": "agent_created", "content": "%s", "ag\n' % key.encode()
    name = json.dumps({"message_id": "m2", "event_type": "transcript_entry", "agent_id": "a", "role": "user", "name": {"k": key}})
    path.write_bytes(CAFE.read_bytes() + torn + name.encode() + b"\n")
    ran = optree.read("messages", path, "--view", "timeline", code=3)
    assert "line 21" in ran.stderr
    assert "line 22" in ran.stderr
    assert "sk-proj" not in ran.stderr + ran.stdout


def test_ids_given_twice(optree, tmp_path):
    """An id that two messages have is complained about, without a line that it would not be on."""
    path = tmp_path / "twice.jsonl"
    path.write_bytes(CAFE.read_bytes() + CAFE.read_bytes().splitlines()[-1] + b"\n")
    ran = optree.read("messages", path, code=3)
    assert "twice.jsonl: msg_020 is the id of several events" in ran.stderr


@pytest.mark.parametrize(
    ("code", "said", "options"),
    [
        (1, "there are agent_root, agent_jack, agent_jill", ["--agent", "Joe"]),
        (1, "no message msg_999: there are 20, the first msg_001, msg_002, msg_003", ["--view", "heard", "--message", "msg_999"]),
        (2, "add --message ID", ["--view", "flow"]),
        (2, "", ["--view", "nothing"]),
    ],
)
def test_wrong_questions(optree, code, said, options):
    """A question that has no answer says what there is to ask for."""
    assert said in optree.read("messages", CAFE, *options, code=code).stderr


def test_empty_file(optree, tmp_path):
    """A file without events is a conversation in which nothing was said."""
    (tmp_path / "new.jsonl").touch()
    assert {"view": "timeline", "agents": {}, "result": [], "faults": []} == optree.json(
        "messages", tmp_path / "new.jsonl", "--view", "timeline"
    )
