import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from optree._cli import main

ROW = ["txn", "agentId", "state", "incomplete", "startedAt", "durationSeconds", "bytes"]
ROW += ["inputTokens", "outputTokens", "cacheReadInputTokens"]


def test_states(optree):
    """Sessions are listed newest first, each with its state: running, interrupted, failed, ended."""
    ended, failed, killed = optree.record(), optree.record("fail", code=1), optree.record("kill", code=-9)
    process = optree.start(sys.executable, optree.agent, "why", "wait")
    assert ["found why\n", "ready\n"] == [process.stdout.readline(), process.stdout.readline()]
    rows = optree.json("ls")
    process.communicate()
    assert [(killed, "interrupted"), (failed, "failed"), (ended, "ended")] == [(row["txn"], row["state"]) for row in rows[1:]]
    assert "running" == rows[0]["state"]
    assert ROW == list(rows[0])[: len(ROW)]
    assert {("researcher", 800, 60, 0.0031)} == {(row["agentId"], row["inputTokens"], row["outputTokens"], row["costUsd"]) for row in rows}


def test_table(ended):
    """The table has one line a session under a head."""
    head, line = ended.read("ls").stdout.splitlines()
    assert ["TXN", "AGENT", "STATE", "STARTED", "DURATION", "TOKENS", "COST", "SIZE"] == head.split()
    assert [ended.txn, "researcher", "ended"] == line.split()[:3]
    assert "  800→60  $0.003100  " in line


def test_limit(optree):
    """-n shows the newest only."""
    optree.record()
    newest = optree.record()
    assert [newest] == [row["txn"] for row in optree.json("ls", "-n", "1")]


def test_empty(optree):
    """Where nothing is, the way to record something is said, and JSON is an empty list."""
    optree.base.mkdir()
    assert "record one with: optree run -- python your_agent.py" in optree.read("ls").stdout
    assert [] == optree.json("ls")


@pytest.mark.parametrize("command", ["ls", "status"])
def test_no_directory(optree, command):
    """A directory that was named and is not there, and a path that is none, are errors, not directories without sessions."""
    missing = optree.folder / "missing"
    for args, env in [
        (["--sessions-dir", missing], {}),
        ([], {"OPTREE_SESSIONS_DIR": str(missing)}),
        ([], {"OPTREE_BASE_DIR": str(missing)}),
    ]:
        said = optree.read(command, *args, code=1, env=env)
        assert ("", True) == (said.stdout, said.stderr.startswith(f"optree: {missing} does not exist"))
    assert f"optree: {optree.agent} is no directory" in optree.read(command, "--json", "--sessions-dir", optree.agent, code=1).stderr


INTERRUPTED = """
import optree
with optree.session("a"), optree.turn(), optree.tool("x") as op:
    raise KeyboardInterrupt
"""


def test_cancelled(optree):
    """A session that Ctrl-C ended is cancelled everywhere: in the list, in the tree, and when its program has run."""
    run = optree("run", "--", sys.executable, "-c", INTERRUPTED, code=130)
    assert " was cancelled, and is saved in " in run.stderr.splitlines()[-1]
    assert "; go on with: optree load " in run.stderr.splitlines()[-1]
    assert ["cancelled"] == [row["state"] for row in optree.json("ls")]
    assert "cancelled" == optree.json("tree")["state"] == optree.json("load", "last")["state"]
    assert optree.read("tree").stdout.startswith("a ⊘ cancelled ")


MANY = """
import optree
with optree.session("a"), optree.turn(), optree.llm("m") as op:
    for _ in range(3000):
        op.account(input_tokens=1, cost_usd=0.1)
"""


def test_money_has_no_dust(optree):
    """3000 times 0.1 dollars are 300 dollars, wherever the sum is shown."""
    run = optree("run", "--json", "--", sys.executable, "-c", MANY)
    [row] = optree.json("ls")
    tree, loaded = optree.json("tree"), optree.json("load", "last")
    sums = [
        json.loads(run.stderr.splitlines()[-1])["totals"],
        row,
        tree["session"]["totals"],
        loaded["totals"],
        loaded["session"]["totals"],
    ]
    assert [300.0] * 5 == [found["costUsd"] for found in sums]


def test_reads_the_first_frame_only(ended, tmp_path):
    """A listing needs no more of a file than its beginning: one that breaks off later is listed with all its figures."""
    whole = (ended.sessions / f"{ended.txn}.json.zst").read_bytes()
    frame = whole.index(b"\x28\xb5\x2f\xfd", 4)  # the second frame begins
    (tmp_path / f"{ended.txn}.json.zst").write_bytes(whole[:frame])
    [expected], [found] = ended.json("ls"), ended.json("ls", "--sessions-dir", tmp_path)
    assert expected | {"bytes": frame} == found


def test_many(ended, tmp_path):
    """Many sessions are all listed."""
    for number in range(200):
        shutil.copy(ended.sessions / f"{ended.txn}.json.zst", tmp_path / f"copy-{number}.json.zst")
    assert {f"copy-{number}" for number in range(200)} == {row["txn"] for row in ended.json("ls", "--sessions-dir", tmp_path)}


def test_damaged_file(optree):
    """A file that cannot be read is listed as damaged, and does not hide the others."""
    txn = optree.record()
    (optree.sessions / "broken.json.zst").write_bytes(b"\x28\xb5\x2f\xfd broken")
    rows = {row["txn"]: row for row in optree.json("ls")}
    assert {txn: "ended", "broken": "damaged"} == {name: row["state"] for name, row in rows.items()}
    assert rows["broken"]["durationSeconds"] is None


def test_what_was_lost_is_shown(optree):
    """A session that was resumed although a line of its journal was damaged is incomplete for ever: load, tree and status say so."""
    txn = optree.record("kill", code=-9)
    [journal] = (optree.sessions / f"{txn}.live").glob("j-*.jsonl")
    data = journal.read_bytes()
    offset = data.index(b'{"t":"accounting"')
    journal.write_bytes(data[: offset + 20] + b"#" + data[offset + 21 :])
    assert [txn] == optree.json("status")["incomplete"]
    optree.read("load", txn, "--", sys.executable, optree.agent, "why")
    assert {f"{txn}.json.zst", f"{txn}.damaged"} == {path.name for path in optree.sessions.iterdir()}
    said = f"{journal.name}: a line does not match its checksum (at byte {offset}, "
    assert f"lost before: {said}" in optree.read("load", txn, code=3).stdout
    assert said in optree.read("tree", txn).stderr
    assert f"incomplete   1: {txn} (optree load TXN says what was lost)" in optree.read("status").stdout.splitlines()
    assert ([txn], []) == tuple(optree.json("status")[name] for name in ("incomplete", "damaged"))


FULL = """
import resource, optree
with optree.session("agent"), optree.turn():
    assert optree.flush()
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
    for _ in range(200):
        with optree.tool("search"):
            pass
"""


@pytest.mark.skipif(os.name == "nt", reason="there is no limit of files' sizes there")
def test_records_that_found_no_room_are_said(optree):
    """Records that the disk refused until the program ended make a session incomplete: status, ls, tree and load say so, JSON too."""
    run = optree("run", "--", sys.executable, "-c", FULL)
    [lost] = re.findall(r"(?m)^optree: (\d+) records are lost, in", run.stderr)
    [txn] = optree.txns()
    said = f"{lost} records were never written, since the disk would not take them"
    assert [txn] == optree.json("status")["incomplete"]
    assert [("interrupted", True)] == [(row["state"], row["incomplete"]) for row in optree.json("ls")]
    assert " interrupted, incomplete " in optree.read("ls").stdout
    assert f"optree: session {txn} is not whole: {said}\n" == optree.read("tree", txn).stderr
    assert [said] == optree.json("tree", txn)["lost"]
    assert said in optree.read("load", txn, code=3).stdout
    optree.read("load", txn, "--", sys.executable, optree.agent, "why")
    assert [("ended", True)] == [(row["state"], row["incomplete"]) for row in optree.json("ls")]
    assert [said] == optree.json("tree", txn)["lost"]


FILLS = """
import os, resource, subprocess, sys, optree

def fill():
    optree.flush()
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
    for _ in range(200):
        with optree.tool("search"):
            pass
"""
BESIDE = {
    "forked": """
with optree.session("agent"), optree.turn(), optree.tool("outer"):
    if not (pid := os.fork()):
        fill()
        sys.exit()
    os.waitpid(pid, 0)
    END
""",
    "joined": """
if "OPTREE_PARENT" in os.environ:
    fill()
else:
    with optree.session("agent"), optree.turn(), optree.tool("outer"):
        subprocess.run([sys.executable, "-c", sys.argv[1]], env=optree.child_env(), check=True)
        END
""",
}
KILLED = "os.kill(os.getpid(), 9)"


@pytest.mark.skipif(os.name == "nt", reason="there is no limit of files' sizes there")
@pytest.mark.parametrize("end", ["", KILLED], ids=["its owner ends", "its owner is killed"])
@pytest.mark.parametrize("who", BESIDE)
def test_records_of_another_process_that_found_no_room_are_said(optree, who, end):
    """What the disk refused to a forked or a joined process until its end is said of the session, as what it refused to the owner."""
    script = FILLS + BESIDE[who].replace("END", end or "pass")
    run = optree("run", "--", sys.executable, "-c", script, script, code=137 if end else 0)
    [lost] = re.findall(r"(?m)^optree: (\d+) records are lost, in", run.stderr)
    [txn] = optree.txns()
    said = f"{lost} records were never written, since the disk would not take them"
    assert [txn] == optree.json("status")["incomplete"]
    assert [("interrupted" if end else "ended", True)] == [(row["state"], row["incomplete"]) for row in optree.json("ls")]
    assert [said] == optree.json("tree", txn)["lost"]
    assert said in optree.read("load", txn, code=3).stdout
    if end:
        optree.read("load", txn, "--", sys.executable, optree.agent, "why")
    assert [("ended", True)] == [(row["state"], row["incomplete"]) for row in optree.json("ls")]
    assert [said] == optree.json("tree", txn)["lost"]
    assert [f"{txn}.json.zst"] == [path.name for path in optree.sessions.iterdir()]


def test_loads_little(ended):
    """Listing loads neither rich nor anything of the network."""
    heavy = {"rich", "asyncio", "httpx", "opentelemetry"}
    code = f"""
import atexit, sys
from optree._cli import main
atexit.register(lambda: print(sorted({heavy} & set(sys.modules))))
sys.argv[1:] = ["ls"]
main()
"""
    process = ended.start(sys.executable, "-c", code)
    out, _ = process.communicate()
    assert "[]" == out.splitlines()[-1]


@pytest.mark.parametrize("state", ["running", "interrupted"])
def test_status(optree, state):
    """Status tells the sizes, what is running, what was interrupted, and where the ledger is."""
    txn = optree.record()
    other = optree.start(sys.executable, optree.agent, "why", "wait" if state == "running" else "kill")
    assert "found why\n" == other.stdout.readline()
    other.stdout.readline()  # ready, or the end
    if state == "interrupted":
        other.wait()
    found = optree.json("status")
    text = optree.read("status").stdout
    other.communicate()
    [name] = optree.txns() - {txn}
    assert [name] == found.pop(state)
    assert 0 < found.pop("bytes")
    assert (optree.base / "accounting.jsonl").stat().st_size >= found.pop("billingBytes") > 0
    rest = {"running": [], "interrupted": [], "damaged": [], "incomplete": [], "pending": [], "collector": None}
    del rest[state]
    places = {"sessionsDir": str(optree.sessions), "billingFile": str(optree.base / "accounting.jsonl"), "writable": True, "sessions": 2}
    assert rest | places == found
    assert f"{state:11}  1: {name}{' (at least ' if state == 'interrupted' else chr(10)}" in text


def test_status_of_nothing(optree):
    """A directory that nobody named and is not there yet is empty, and its place can be written."""
    del optree.env["OPTREE_BASE_DIR"]
    found = optree.json("status", env={"HOME": str(optree.folder), "USERPROFILE": str(optree.folder)})
    assert (0, 0, True) == (found["sessions"], found["bytes"], found["writable"])
    assert [] == list(optree.folder.glob(".optree"))


LOCKED = """
import os, sys
from optree._cli import main
os.mkdir(sys.argv[-1] + "/locked", 0)
sys.argv[-1] += "/locked" + os.environ["BELOW"]
main()
"""


@pytest.mark.skipif(os.name == "nt", reason="no directory is closed to its owner there by its mode")
@pytest.mark.parametrize("below", ["", "/sessions"])
def test_a_directory_that_may_not_be_read(tmp_path, bound_by_modes, below):
    """A directory without permission is named, with what to do, and no number of an error."""
    command = [sys.executable, "-c", bound_by_modes + LOCKED, "ls", "--sessions-dir", str(tmp_path)]
    done = subprocess.run(command, env=os.environ | {"BELOW": below}, capture_output=True, text=True, check=False)
    (tmp_path / "locked").chmod(0o700)
    said = f"optree: {tmp_path}/locked{below} cannot be opened: you have no permission; change that, or name another place\n"
    assert (3, "", said) == (done.returncode, done.stdout, done.stderr)


@pytest.mark.skipif(os.name == "nt", reason="no directory is closed to its owner there by its mode")
@pytest.mark.parametrize("command", [["tree"], ["load"], ["import"]], ids=lambda command: command[0])
@pytest.mark.parametrize("name", ["a.json.zst", "a.live", "a.jsonl"])
def test_what_is_in_a_directory_that_may_not_be_read(tmp_path, bound_by_modes, command, name):
    """What a directory without permission may hold is not said to be missing."""
    program = bound_by_modes + LOCKED.replace('environ["BELOW"]', f'sep + "{name}"')
    done = subprocess.run([sys.executable, "-c", program, *command, str(tmp_path)], capture_output=True, text=True, check=False)
    (tmp_path / "locked").chmod(0o700)
    said = f"optree: {tmp_path}/locked/{name} cannot be opened: you have no permission; change that, or name another place\n"
    assert (3, "", said) == (done.returncode, done.stdout, done.stderr)


def test_no_home_directory(monkeypatch, capsys):
    """Who has no home directory is told so, and no path that was made up."""
    monkeypatch.setattr(Path, "expanduser", _homeless)
    monkeypatch.delenv("OPTREE_BASE_DIR", raising=False)
    monkeypatch.delenv("OPTREE_SESSIONS_DIR", raising=False)
    monkeypatch.setattr(sys, "argv", ["optree", "ls"])
    with pytest.raises(SystemExit) as ended:
        main()
    said = "optree: you have no home directory, where sessions would be; name theirs with --sessions-dir or OPTREE_SESSIONS_DIR\n"
    assert (1, ("", said)) == (ended.value.code, tuple(capsys.readouterr()))


def _homeless(path):
    if path.parts[0] == "~":
        raise RuntimeError("Could not determine home directory.")
    return path
