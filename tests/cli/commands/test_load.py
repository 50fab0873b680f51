import gzip
import json
import os
import re
import shlex
import shutil
import subprocess
import sys

import pytest
import zstandard

from optree._store import Directory
from optree._store.saving import StoreOptions
from optree._store.settle import settle_all

THEIRS = {
    "version": 2,
    "reason": "final",
    "opTree": {
        "id": "abc",
        "traceId": "origin1",
        "agentId": "theirs",
        "callPath": "theirs",
        "startedAt": 1_700_000_000_000,
        "endedAt": 1_700_000_001_000,
        "success": True,
        "attributes": {},
        "turns": [
            {
                "id": "t1",
                "index": 1,
                "startedAt": 1_700_000_000_000,
                "endedAt": 1_700_000_001_000,
                "ops": [
                    {
                        "opId": "o1",
                        "kind": "tool",
                        "startedAt": 1_700_000_000_000,
                        "endedAt": 1_700_000_000_500,
                        "status": "ok",
                        "attributes": {"name": "grep", "provider": "mcp"},
                        "logs": [],
                        "accounting": [],
                    }
                ],
            }
        ],
    },
}


def test_killed_session(killed):
    """A killed session shows its tree, what was going on, its totals, and how to go on; nothing is changed on disk (S4-97)."""
    before = contents(killed.sessions)
    said = killed.read("load", killed.txn).stdout
    assert f"session {killed.txn} of researcher: interrupted\n" in said
    assert "   └─ 1.2 helper ✓" in said
    assert "going on when it broke off:\n  1 turn 1, since " in said
    assert "  (root) session researcher, since " in said
    assert "totals: 1 llm · 1 tool · 800→60 tok · $0.003100\n" in said
    assert said.endswith(f"go on with: optree load {killed.txn} -- CMD\n")
    assert before == contents(killed.sessions)


def test_json(killed):
    """--json has an exact shape, and the whole tree in it."""
    found = killed.json("load", "last")
    assert ["txn", "agentId", "state", "damage", "sources", "open", "totals", "resume", "fork", "others", "session"] == list(found)
    assert (killed.txn, "researcher", "interrupted") == (found["txn"], found["agentId"], found["state"])
    assert {"state": "clean", "said": [], "flaws": []} == found["damage"]
    assert [("1", "turn", "1"), ("", "session", "researcher")] == [(one["path"], one["kind"], one["name"]) for one in found["open"]]
    assert ["1.1", "1.2"] == [op["path"] for op in found["session"]["turns"][0]["ops"]]


def test_credentials_are_not_shown(ended):
    """What is shown is redacted; what is on disk is not (S4-81)."""
    secret = "sk-abcdefghijklmnopqrstuvwxyz"
    saved = (ended.sessions / f"{ended.txn}.json.zst").read_bytes()
    assert secret in zstandard.ZstdDecompressor().stream_reader(saved, read_across_frames=True).read().decode()
    for command in (["load"], ["load", "--json"], ["tree", "--json"], ["logs", "--severity", "TRC"]):
        shown = ended.read(*command, ended.txn).stdout
        assert ("researcher" in shown, secret in shown) == (True, False)


def test_credentials_in_what_the_user_said_are_not_shown(optree):
    """A credential in a turn's prompt or in an error is in no text that a command shows (S4-81)."""
    prompt, error = "sk-proj-abcdefghijklmnopqrstuvwxyz0123456789", "ghp_abcdefghijklmnopqrstuvwxyz0123456789"
    failing = f"import optree\nwith optree.session('a'), optree.turn(user={prompt!r}), optree.tool('t'): raise ValueError({error!r})"
    optree("run", "--", sys.executable, "-c", failing, code=1)
    for command in (["load"], ["tree"]):
        shown = optree.read(*command, "last").stdout
        assert (True, []) == ("tool t" in shown, [secret for secret in (prompt, error) if secret[:20] in shown])


@pytest.mark.parametrize("name", ["whole", "prefix", "last", "file", "copy"])
def test_names(ended, tmp_path, name):
    """A session is named by its txn, the beginning of it, `last`, or a file's path, wherever the file is."""
    file = ended.sessions / f"{ended.txn}.json.zst"
    copy = shutil.copy(file, tmp_path / file.name)
    what = {"whole": ended.txn, "prefix": ended.txn[:9], "last": "last", "file": file, "copy": copy}[name]
    found = ended.json("load", what)
    assert (ended.txn, "ended") == (found["txn"], found["state"])


def test_files_of_the_original(optree, tmp_path):
    """A session file of the original ai-agent is shown as well (S4-86)."""
    path = tmp_path / "origin1.json.gz"
    path.write_bytes(gzip.compress(json.dumps(THEIRS).encode()))
    assert "└─ 1.1 tool mcp:grep ✓ 500.0 ms" in optree.read("tree", path).stdout
    assert ("theirs", "ended", "clean") == tuple(
        optree.json("load", path)[key] if key != "damage" else optree.json("load", path)[key]["state"]
        for key in ("agentId", "state", "damage")
    )


@pytest.mark.parametrize("what", ["nosuch", "here/nosuch.json.zst"])
def test_not_found(ended, what):
    """What is not there gives exit code 1 and one line, without a traceback."""
    said = ended.read("load", what, code=1)
    assert ("", 1) == (said.stdout, len(said.stderr.splitlines()))
    assert said.stderr.startswith("optree: ")
    assert "(optree ls lists them)" in said.stderr


def test_ambiguous(optree):
    """The beginning of several names is refused with the names."""
    first, second = optree.record(), optree.record()
    said = optree.read("load", first[:4], code=1).stderr
    assert first in said
    assert second in said


def test_damaged_journal(optree):
    """Changed bytes in a journal give exit code 3; each flaw is shown with file and offset, and the rest of the tree."""
    txn = optree.record("kill", code=-9)
    [journal] = (optree.sessions / f"{txn}.live").glob("j-*.jsonl")
    data = journal.read_bytes()
    offset = data.index(b'{"t":"accounting"')
    journal.write_bytes(data[: offset + 20] + b"#" + data[offset + 21 :])
    said = optree.read("load", txn, code=3).stdout
    assert f"damaged: {journal.name}: a line does not match its checksum (at byte {offset}, " in said
    assert "└─ 1.2 helper ✓" in said
    damage = optree.json("load", txn, code=3)["damage"]
    assert ("damaged", "corrupt", offset) == (damage["state"], damage["flaws"][0]["kind"], damage["flaws"][0]["offset"])


def test_torn_tail_is_normal(optree):
    """The torn last write of a killed process is shown, and is no damage."""
    txn = optree.record("kill", code=-9)
    [journal] = (optree.sessions / f"{txn}.live").glob("j-*.jsonl")
    journal.write_bytes(journal.read_bytes()[:-5])
    assert "torn tail: j-0000-000001.jsonl: the last write was cut off" in optree.read("load", txn).stdout


@pytest.mark.parametrize("data", [b"", b"not a session", b'{"version":99,"session":{}}'])
def test_unreadable_file(optree, tmp_path, data):
    """A file that is none of ours, or empty, or newer, gives exit code 3 and one line that names it."""
    path = tmp_path / "broken.json"
    path.write_bytes(data)
    said = optree.read("load", path, code=3).stderr
    assert said.startswith("optree: broken.json ")
    assert 1 == len(said.splitlines())


def test_resume(optree):
    """A killed session goes on in a new process: same session, ids go on, the bill adds up, each entry once (S4-99, S4-104)."""
    txn = optree.record("kill", code=-9)
    run = optree("load", "last", "--", sys.executable, optree.agent, "again")
    assert "found again\n" == run.stdout
    assert f"optree: session {txn} is saved in {optree.sessions}/{txn}.json.zst · 2 llm · 2 tool" in run.stderr
    assert {txn} == optree.txns()
    turns = optree.json("load", txn)["session"]["turns"]
    assert [("1", "interrupted", "why"), ("2", "ok", "again")] == [
        (turn["path"], turn["status"], turn["prompts"]["user"]) for turn in turns
    ]
    whole, ledger = optree.json("cost"), optree.json("cost", "--all")
    assert (4, 0.0062) == (whole["total"]["calls"], whole["total"]["costUsd"])
    assert whole["total"] == ledger["total"]


def test_resume_of_a_file(optree, tmp_path):
    """A session named by its file's path goes on beside that file, and `run --resume` is the same as `load … --`."""
    txn = optree.record()
    path = shutil.move(optree.sessions / f"{txn}.json.zst", tmp_path)
    run = optree("run", "--resume", path, "--", sys.executable, optree.agent, "again")
    assert f"optree: session {txn} is saved in {path} · 2 llm" in run.stderr


@pytest.mark.parametrize(
    ("name", "data", "code"),
    [
        ("bad.json.zst", b"not a session", 3),
        ("bad.txt", b"not a session", 3),
        ("future.json", b'{"version":99,"session":{}}', 3),
        ("list.json", b"[1,2]", 3),
        ("empty.json", b"", 3),
        ("missing.json.zst", None, 1),
        ("good.txt", json.dumps(THEIRS).encode(), 2),
    ],
)
def test_resume_of_what_cannot_be_resumed(optree, tmp_path, name, data, code):
    """What cannot be loaded is not gone on with: one line, the exit code of `load`, and no program is started."""
    path = tmp_path / name
    if data is not None:
        path.write_bytes(data)
    for command in (["load", path], ["run", "--resume", path]):
        run = optree(*command, "--", sys.executable, "-c", "print('started')", code=code)
        assert ("", 1) == (run.stdout, len(run.stderr.splitlines()))
        assert name in run.stderr


@pytest.mark.parametrize("data", [b"[1,2]", b" 17\n", b'"text"'])
def test_json_that_is_no_session(optree, tmp_path, data):
    """JSON that is no object is said to be JSON, but no session."""
    path = tmp_path / "list.json"
    path.write_bytes(data)
    assert "optree: list.json is JSON, but no session" in optree.read("load", path, code=3).stderr


def test_ended_session(ended):
    """An ended session is said to be ended, and going on with it is offered as continuing."""
    said = ended.read("load", "last").stdout
    assert f"session {ended.txn} of researcher: ended\n" in said
    assert said.endswith(f"\ncontinue it with: optree load {ended.txn} -- CMD\n")
    assert "go on with" not in said


KILLED = """
import optree, os, signal
with optree.session("outer"), optree.turn(), optree.session("inner"), optree.turn(), optree.tool("x"):
    optree.flush()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_interrupted_sub_agents_are_listed_once(optree):
    """What was going on when it broke off is listed deepest first, a sub-agent once."""
    optree("run", "--", sys.executable, "-c", KILLED, code=137)
    said = optree.read("load", "last").stdout
    open_lines = said.partition("when it broke off:\n")[2].partition("\n\n")[0].splitlines()
    expected = ["1.1.1.1 tool x,", "1.1.1 turn 1,", "1.1 session inner,", "1 turn 1,", "(root) session outer,"]
    assert expected == [line.strip().partition(" since")[0] for line in open_lines]
    assert ["1.1.1.1", "1.1.1", "1.1", "1", ""] == [node["path"] for node in optree.json("load", "last")["open"]]


def test_durations_of_what_was_interrupted(optree):
    """What ended as interrupted at its own start shows no duration."""
    optree("run", "--", sys.executable, "-c", KILLED, code=137)
    optree("load", "last", "--", sys.executable, optree.agent, "again")
    line = next(line for line in optree.read("tree").stdout.splitlines() if " tool x " in line)
    assert line.endswith(" 1.1.1.1 tool x ⚡ interrupted the process ended before this did")


def test_resume_of_a_running_session(optree):
    """A session that is running is not resumed: exit code 1, and nothing is started."""
    process = optree.start(sys.executable, optree.agent, "why", "wait")
    assert ["found why\n", "ready\n"] == [process.stdout.readline(), process.stdout.readline()]
    said = optree("load", "last", "--", sys.executable, "-c", "print('started')", code=1)
    assert ("", True) == (said.stdout, " is running; wait for it to end, or watch it with: optree logs -f " in said.stderr)
    process.communicate()
    assert 0 == process.returncode


def test_resume_without_recording(optree):
    """A program that goes on with a session but records nothing leaves it as it was, and is told so."""
    txn = optree.record("kill", code=-9)
    before = contents(optree.sessions)
    assert f"optree: the program recorded nothing as session {txn} " in optree("load", txn, "--", "true").stderr
    assert before == contents(optree.sessions)


DEEP = """
import sys, optree
sys.setrecursionlimit(10_000)

def nest(levels):
    with optree.session(f"agent{levels}"), optree.turn():
        if levels:
            nest(levels - 1)

nest(int(sys.argv[1]))
"""


def test_too_deep_for_json(optree):
    """A tree that is nested too deeply for JSON gives one line and exit code 3, and is still shown as text."""
    optree("run", "--", sys.executable, "-c", DEEP, "100")
    assert 1 == len(optree("load", "last", "--json", code=3).stderr.splitlines())
    assert 202 == len(optree("tree").stdout.splitlines())


def test_deep_session(optree):
    """A session of 200 sub-agents nested in each other is kept as a journal, since no decoder reads JSON that deep, and loads."""
    optree("run", "--", sys.executable, "-c", DEEP, "200")
    [kept] = optree.sessions.iterdir()
    shown = optree("load", "last").stdout
    assert [f"agent{level}" for level in range(200, -1, -1)] == re.findall(r"(agent\d+) ✓", shown)
    assert (".live", f"optree load {kept.stem} -- CMD") == (kept.suffix, shown.split(": ")[-1].strip())


def contents(folder):
    """Return the bytes of all files in a directory."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.skipif(os.name == "nt", reason="no limit of a file's size there")
def test_a_full_disk_ends_a_resume_before_the_program(killed):
    """Where nothing can be written the program is not started; one line says it, and the session is as it was (S4-131)."""
    before = contents(killed.sessions)
    limited = f"ulimit -f 0; exec {shlex.join(killed.command('load', killed.txn, '--', 'echo', 'started'))}"
    run = subprocess.run(["sh", "-c", limited], check=False, env=killed.env, cwd=killed.folder, capture_output=True, text=True)
    assert ("", 1) == (run.stdout, len(run.stderr.splitlines())), run.stderr
    assert f"{killed.sessions} cannot be written: there is no room" in run.stderr
    assert before == contents(killed.sessions)


@pytest.mark.skipif(os.name == "nt", reason="no limit of a file's size there")
def test_a_full_disk_ends_no_session(killed):
    """Where nothing can be written `--end` says so of the directory, not of stdout, with exit code 1; the session is as it was."""
    before = contents(killed.sessions)
    limited = f"ulimit -f 0; exec {shlex.join(killed.command('load', killed.txn, '--end'))}"
    run = subprocess.run(["sh", "-c", limited], check=False, env=killed.env, cwd=killed.folder, capture_output=True, text=True)
    said = f"optree: {killed.sessions} cannot be written: there is no room; make some, or name another place\n"
    assert (1, "", said) == (run.returncode, run.stdout, run.stderr)
    assert before == contents(killed.sessions)


def test_a_session_that_nothing_goes_on_with_is_ended(optree):
    """`--end` closes what was going on as interrupted and the session as cancelled; its bill is in the ledger, once."""
    txn = optree.record("kill", code=-9)
    bill = optree.json("cost", txn)["total"]
    shown = optree.read("load", txn, "--end").stdout
    assert shown.startswith(f"session {txn} of researcher: cancelled\n")
    [row] = optree.json("ls")
    assert ("cancelled", bill) == (row["state"], optree.json("cost", txn)["total"])
    assert (bill["calls"], bill["costUsd"]) == tuple(optree.json("cost", "--all")["total"][name] for name in ("calls", "costUsd"))
    assert [f"{txn}.json.zst"] == [path.name for path in optree.sessions.iterdir()]
    assert "has ended: there is nothing to end" in optree.read("load", txn, "--end", code=1).stderr


def test_an_end_that_is_not_saved(optree):
    """While the ledger takes no line, the command fails, and says where to look; once it does, the session's bill comes to it."""
    txn = optree.record("kill", code=-9)
    bill, ledger = optree.json("cost", txn)["total"], optree.base / "accounting.jsonl"
    ledger.mkdir()
    impatient = "from optree._cli import main\nfrom optree._cli.commands import load\nload._END_SECONDS = 0.1\nmain()"
    command = [sys.executable, "-c", impatient, "load", txn, "--end"]
    run = subprocess.run(command, check=False, env=optree.env, cwd=optree.folder, capture_output=True, text=True)
    said = f"optree: session {txn} is not saved yet: optree status says what is left\n"
    assert (1, "", said) == (run.returncode, run.stdout, run.stderr)
    ledger.rmdir()
    settle_all(StoreOptions(Directory.of(optree.base)))
    assert bill["calls"] == optree.json("cost", "--all")["total"]["calls"]


def test_what_is_not_ended(optree):
    """A session that is running, a file, and one that CMD goes on with are refused, and stay as they are."""
    process = optree.start(sys.executable, optree.agent, "why", "wait")
    assert ["found why\n", "ready\n"] == [process.stdout.readline(), process.stdout.readline()]
    assert "is being written by another process" in optree.read("load", "last", "--end", code=1).stderr
    process.communicate()
    [file] = optree.sessions.glob("*.json.zst")
    assert "name its txn" in optree.read("load", file, "--end", code=2).stderr
    assert "leave one out" in optree.read("load", "last", "--end", "--", "true", code=2).stderr
