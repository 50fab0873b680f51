import json
import os
import pty
import re
import select
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

REMOVED = ["--save", "--save-all", "--save-session", "--accounting"]


def test_streams_belong_to_the_program(optree):
    """Stdout and stdin are the program's alone; one line on stderr says where the session is, with its totals (S4-118)."""
    run = optree("run", "--", sys.executable, optree.agent, "why", "wait", input="go on\n")
    [txn] = optree.txns()
    assert "found why\nready\n" == run.stdout
    warning, last = run.stderr.splitlines()
    assert f"[txn:{txn}] [path:1.1] researcher [WRN] → llm openai:gpt-4o: retrying after 429" == warning
    assert f"optree: session {txn} is saved in {optree.sessions}/{txn}.json.zst · 1 llm · 1 tool · 800→60 tok · $0.003100" == last


def test_dashes_may_be_left_out(optree):
    """The first word that is no option begins the program, whose own options stay its own."""
    assert "--save\n" == optree("run", sys.executable, "-c", "import sys; print(*sys.argv[1:])", "--save").stdout


def test_verbose_and_traces(optree):
    """--verbose shows a line for each request and response, the traces their payloads, redacted (S4-111, S4-119, S4-120)."""
    run = optree("run", "-v", "--trace-llm", "--trace-tools", "--", sys.executable, optree.agent, "why")
    assert "[path:1.1] researcher [VRB] → llm openai:gpt-4o: request, 1 message" in run.stderr
    [sent] = [line for line in run.stderr.splitlines() if "[TRC] → llm" in line]
    assert '"messages":[{"role":"user","content":"why"}]' in sent
    assert '[path:1.1] researcher [TRC] ← llm openai:gpt-4o: "searching"' in run.stderr
    assert '[path:1.2.1.1] helper [TRC] ← tool search: "found why"' in run.stderr
    assert "sk-abcdefghijklmnopqrstuvwxyz" not in run.stderr


def test_flags_win_over_environment(optree, tmp_path):
    """--sessions-dir and --billing-file win over the environment, written or read (S4-87, S4-93, S4-105, S4-110)."""
    places = ["--sessions-dir", tmp_path / "here" / "sessions", "--billing-file", tmp_path / "bill.jsonl"]
    elsewhere = {"OPTREE_SESSIONS_DIR": str(tmp_path / "there"), "OPTREE_BILLING_FILE": str(tmp_path / "there.jsonl")}
    optree("run", *places, "--", sys.executable, optree.agent, "why", env=elsewhere)
    [row] = optree.json("ls", "--sessions-dir", tmp_path / "here" / "sessions", env=elsewhere)
    assert f"{row['txn']}.json.zst" == next((tmp_path / "here" / "sessions").iterdir()).name
    assert 2 == optree.json("cost", "--all", *places, env=elsewhere)["total"]["calls"]
    assert not (tmp_path / "there").exists()
    assert not (tmp_path / "there.jsonl").exists()


def test_exit_code_is_the_programs(optree):
    """The exit code is the program's, however much was logged (S4-112)."""
    assert "found why\n" == optree("run", "--", "sh", "-c", f"{shlex.join([sys.executable, str(optree.agent)])} why; exit 7", code=7).stdout


def test_failed_program(optree):
    """A program that raises gives its exit code, and the command that goes on with its session, which works as printed."""
    run = optree("run", "--", sys.executable, optree.agent, "why", "fail", code=1)
    [txn] = optree.txns()
    said, _, command = run.stderr.splitlines()[-1].partition("; go on with: ")
    assert f"optree: session {txn} failed, and is saved in {optree.sessions}/{txn}.json.zst · 1 llm · 1 tool" in said
    words = shlex.split(command)
    assert ["optree", "load", txn, "--", sys.executable, str(optree.agent), "why", "fail"] == words
    optree(*words[1:-1])
    assert ["ended"] == [row["state"] for row in optree.json("ls")]


def test_killed_program(optree):
    """A killed program gives 128 + 9, and the command that goes on with its session, flags included."""
    run = optree("run", "--sessions-dir", "here", "--", sys.executable, optree.agent, "why", "kill", code=137)
    last = run.stderr.splitlines()[-1]
    assert "was interrupted (exit code 137), and is saved in " in last
    assert last.endswith(f" --sessions-dir here -- {shlex.join([sys.executable, str(optree.agent)])} why kill")


def test_nothing_recorded(optree):
    """A program that records nothing is told so, and what to do about it."""
    run = optree("run", "--", "true")
    assert run.stderr.startswith("optree: the program recorded nothing as session ")
    assert run.stderr.endswith("@optree.llm and @optree.tool, or record its calls of models by --auto\n")
    assert 1 == len(run.stderr.splitlines())


def test_switched_off(optree):
    """A program that is switched off runs as it does alone, and the line at the end says that it was."""
    run = optree("run", "--", sys.executable, optree.agent, "why", env={"OPTREE_DISABLED": "1"})
    assert ("found why\n", "optree: the program recorded nothing: OPTREE_DISABLED='1' switches optree off\n") == (run.stdout, run.stderr)
    assert set() == optree.txns()


def test_nothing_could_be_saved(optree, tmp_path):
    """Where the sessions directory is a file, that is said, and not that the program had to be decorated."""
    place = tmp_path / "file"
    place.write_text("")
    run = optree("run", "--sessions-dir", place, "--", sys.executable, optree.agent, "why")
    assert f"optree: no session could be saved: {place} is no directory; " in run.stderr
    assert "decorate" not in run.stderr


def test_what_was_begun_is_unknown(optree, tmp_path):
    """Where no session can be saved that is said, too, of a program that tells of none, as where no file can be made for that."""
    place = tmp_path / "file"
    place.write_text("")
    said = f"optree: no session could be saved: {place} is no directory; name another place with --sessions-dir\n"
    assert said == optree("run", "--sessions-dir", place, "--", "true").stderr


def test_nothing_could_be_saved_without_a_home():
    """Who has no home directory is told so, and no path that was made up."""
    source = """
import pathlib, sys
from optree._cli import main
def homeless(path): raise RuntimeError
pathlib.Path.expanduser, sys.argv = homeless, ["optree", "run", "--", "true"]
main()
"""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OPTREE_")}
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=False, env=environment)
    assert "optree: no session could be saved: you have no home directory; name another place with --sessions-dir\n" == done.stderr


def test_nothing_could_be_saved_where_nothing_can_be_made(optree):
    """A program that recorded is not told to be decorated, wherever its sessions could not be kept, as below /proc, root's too."""
    run = optree("run", "--sessions-dir", "/proc/x", "--", sys.executable, optree.agent, "why")
    assert "optree: no session could be saved in /proc/x; name another place with --sessions-dir" == run.stderr.splitlines()[-1]
    assert "decorate" not in run.stderr


LIMIT = "resource.setrlimit(resource.RLIMIT_FSIZE, (ROOM, resource.RLIM_INFINITY))"
FULL = """
import resource, optree
AT_FIRST
with optree.session("agent"), optree.turn():
    LATER
    for _ in range(200):
        with optree.tool("search"):
            pass
"""


@pytest.mark.parametrize("room", [80, 4096], ids=["of no record", "of some"])
def test_records_that_found_no_room(optree, room):
    """How many records are lost is said with where the others are; a session of which nothing is on disk is not called damaged."""
    source = FULL.replace("LATER" if room > 80 else "AT_FIRST", LIMIT.replace("ROOM", str(room)))
    run = optree("run", "--", sys.executable, "-c", source.replace("AT_FIRST", "").replace("LATER", ""))
    last = run.stderr.splitlines()[-1]
    [lost] = re.findall(r"(?m)^optree: (\d+) records are lost, in", run.stderr)
    assert (f".live but for {int(lost):,} records, which are lost · " in last) == (room > 80)
    assert last.startswith("optree: no session could be saved in ") == (room == 80)
    assert "damaged" not in run.stderr
    told = optree("run", "--json", "--", sys.executable, "-c", source.replace("AT_FIRST", "").replace("LATER", "")).stderr.splitlines()
    [lost] = [int(found[1]) for line in told if (found := re.match(r"optree: (\d+) records are lost, in", line))]
    assert (lost, "nothing" if room == 80 else "interrupted") == tuple(json.loads(told[-1])[name] for name in ("lost", "state"))


@pytest.mark.parametrize(("program", "code"), [("no-such-program", 127), (__file__, 126)])
def test_cannot_start(optree, program, code):
    """A program that is not there or cannot be executed gives a shell's exit codes for it."""
    assert f"optree: cannot run {program}: " in optree("run", "--", program, code=code).stderr


def test_no_program(optree):
    """Without a program the use is wrong, and the line says how it is right."""
    assert "optree: optree run needs a program: " in optree.read("run", code=2).stderr


@pytest.mark.parametrize("value", [["x", "--", "true"], ["--", "true"], []])
@pytest.mark.parametrize("flag", REMOVED)
def test_removed_flags(optree, flag, value):
    """The flags that the original had are refused with the name of what replaces them (S4-108, S4-109)."""
    replacement = "--billing-file" if flag == "--accounting" else "--sessions-dir"
    said = optree.read("run", flag, *value, code=2).stderr
    assert said.startswith(f"optree: {flag} was removed: ")
    assert replacement in said


def test_json(optree):
    """--json reports the end as one JSON object on stderr, for stdout is the program's."""
    run = optree("run", "--json", "--", sys.executable, optree.agent, "why")
    found = json.loads(run.stderr.splitlines()[-1])
    [txn] = optree.txns()
    assert {"txn", "state", "lost", "exit", "saved", "totals", "resume", "others", "more"} == found.keys()
    assert (txn, "ended", 0, 0, None) == (found["txn"], found["state"], found["lost"], found["exit"], found["resume"])
    assert (800, 60, 0.0031) == tuple(found["totals"][name] for name in ("inputTokens", "outputTokens", "costUsd"))


def test_two_programs_of_one_shell(optree):
    """Only the first session of what a command starts has the announced name; later ones do not overwrite it."""
    agent = shlex.join([sys.executable, str(optree.agent)])
    optree("run", "--", "sh", "-c", f"{agent} first && {agent} second")
    assert 2 == len(optree.txns())
    assert 4 == optree.json("cost", "--all")["total"]["calls"]


SEVERAL = """
import contextvars, os, sys, optree
ended, interrupted = map(int, sys.argv[1:])
for number in range(ended):
    with optree.session(f"ended-{number}"), optree.tool("search"):
        pass
opened = [optree.session(f"open-{number}") for number in range(interrupted)]
for session in opened:
    contextvars.copy_context().run(session.__enter__)
optree.flush()
if opened:
    os._exit(3)
"""


def several(optree, ended, interrupted, *options):
    """Run a program that records sessions, some of which it leaves open; returns the lines on stderr at its end."""
    command = ["run", *options, "--", sys.executable, "-c", SEVERAL, ended, interrupted]
    return optree(*command, code=3 if interrupted else 0).stderr.splitlines()


def test_each_session_is_named(optree):
    """Each session that the program recorded is named, one that broke off with the command that goes on with it."""
    lines = several(optree, 2, 1)
    agents = {row["txn"]: row["agentId"] for row in optree.json("ls")}
    assert ["ended-0", "open-0", "ended-1"] == [agents[line.split()[2]] for line in lines]
    said, _, command = lines[1].partition("; go on with: ")
    assert " was interrupted (exit code 3), and is saved in " in said
    assert ["optree", "load", lines[1].split()[2], "--", sys.executable] == shlex.split(command)[:5]


def test_of_many_sessions_ten_are_named(optree):
    """Of many sessions ten are named, those that broke off among them, and the others are counted."""
    *lines, last = several(optree, 12, 2)
    assert (10, 2) == (len(lines), sum(" was interrupted " in line for line in lines))
    assert "optree: and 4 more sessions (optree ls)" == last


def test_sessions_of_other_programs_are_not_named(optree):
    """What a program that was not started by `optree run` records meanwhile, in the same directory, is not said to be of this one."""
    agent = shlex.join([sys.executable, str(optree.agent)])
    apart = "env -u OPTREE_TXN -u OPTREE_RUN_FILE"
    run = optree("run", "--", "sh", "-c", f"{apart} {agent} other 2>&1 && {agent} own")
    assert 2 == len(optree.txns())
    assert 1 == sum(line.startswith("optree: ") for line in run.stderr.splitlines())


def test_json_has_each_session(optree):
    """--json has the other sessions that the program recorded, and how many more there are than are listed."""
    found = json.loads(several(optree, 12, 0, "--json")[-1])
    assert (9, 2, {"ended"}) == (len(found["others"]), found["more"], {one["state"] for one in found["others"]})
    assert {"txn", "state", "lost", "saved", "totals", "resume"} == found["others"][0].keys()


def test_only_what_comes_without_a_session(optree):
    """A program that records steps outside of any session is told where these are, and not that it recorded nothing."""
    run = optree("run", "--", sys.executable, "-c", "import optree\nwith optree.tool('search'): pass")
    [txn] = optree.txns()
    assert [f"optree: session {txn} is saved in {optree.sessions}/{txn}.json.zst · 0 llm · 1 tool"] == run.stderr.splitlines()


def test_inside_a_traced_program(optree):
    """Under another session the program's records are part of that one, and the last line says so."""
    inner = optree.command("run", "--", sys.executable, optree.agent, "why")
    outer = f"""
import optree, subprocess
with optree.session("outer"):
    subprocess.run({inner!r}, env=optree.child_env())
"""
    run = optree("run", "--", sys.executable, "-c", outer)
    [txn] = optree.txns()
    assert f"optree: the program was started from session {txn}, and what it recorded is there" in run.stderr
    assert 1 == optree.json("cost")["byModel"][0]["calls"]


SIGNALLED = """
import os, select, signal, sys
seen = []
told, tells = os.pipe()
os.set_blocking(tells, False)
signal.set_wakeup_fd(tells)  # a handler also runs at once where the signal comes just ahead of the wait
for name in sys.argv[1:]:
    signal.signal(getattr(signal, name), lambda number, _: (seen.append(signal.Signals(number).name), os.write(1, b"got it\\n")))
os.write(1, b"ready\\n")  # not `print`, which a handler cannot enter again
while 0 not in select.select([0, told], [], [])[0]:
    os.read(told, 100)
print(seen, flush=True)
"""


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2"])
def test_signals_are_forwarded(optree, name):
    """A signal to `optree run` reaches the program, once, and `optree run` waits for it."""
    process = optree.start(*optree.command("run", "--", sys.executable, "-c", SIGNALLED, name))
    assert "ready\n" == process.stdout.readline()
    process.send_signal(getattr(signal, name))
    assert select.select([process.stdout], [], [], 30.0)[0], "the program was told nothing"
    assert "got it\n" == process.stdout.readline(), process.communicate(timeout=20)[1]
    out, _ = process.communicate()
    assert (f"['{name}']\n", 0) == (out, process.returncode)


def test_signal_that_ends_the_program(optree):
    """A program that a forwarded signal ends gives 128 + its number, and the session can be resumed."""
    process = optree.start(*optree.command("run", "--", sys.executable, optree.agent, "why", "wait"))
    assert ["found why\n", "ready\n"] == [process.stdout.readline(), process.stdout.readline()]
    process.send_signal(signal.SIGTERM)
    process.wait()
    _, said = process.communicate()
    assert 128 + signal.SIGTERM == process.returncode
    assert "was interrupted (exit code 143)" in said
    assert "; go on with: optree load " in said


def test_interrupt_from_the_terminal(optree):
    """Ctrl-C reaches the program once: from the terminal, and not again from `optree run`."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(optree.folder)
        os.execve(sys.executable, optree.command("run", "--", sys.executable, "-c", SIGNALLED, "SIGINT"), optree.env)
    shown = until(terminal, b"ready")
    os.write(terminal, b"\x03")  # Ctrl-C
    until(terminal, b"got it")
    os.write(terminal, b"\x04")  # end of input
    shown = until(terminal, b"]")
    assert b"['SIGINT']" in shown
    os.close(terminal)
    os.waitpid(pid, 0)


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_signals_to_the_process_group(optree, name):
    """What another process sends to the whole group reaches the program once, what it sends to `optree run` alone does too."""
    program = optree.command("run", "--", sys.executable, "-c", SIGNALLED, name, "SIGUSR1")
    process = optree.start(*program, start_new_session=True)
    assert "ready\n" == process.stdout.readline()
    for _ in range(20):
        os.killpg(process.pid, getattr(signal, name))
        assert "got it\n" == process.stdout.readline()
        process.send_signal(signal.SIGUSR1)  # `optree run` takes one signal after another: it is done with the first
        assert "got it\n" == process.stdout.readline()
    out, _ = process.communicate(timeout=60)
    assert f"{[name, 'SIGUSR1'] * 20}\n" == out


def taken(pid, number):
    """Wait until a process has taken a signal that was sent to it."""
    while int(re.findall(r"(?m)^ShdPnd:\t(\w+)", Path(f"/proc/{pid}/status").read_text())[0], 16) >> (number - 1) & 1:
        time.sleep(0.001)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="there is no /proc to see in what has been taken")
def test_two_signals_to_the_process_group_reach_the_program_twice(optree):
    """A second one that comes while `optree run` finds out whom the first was sent to is not forwarded either."""
    process = optree.start(*optree.command("run", "--", sys.executable, "-c", SIGNALLED, "SIGTERM", "SIGUSR1"), start_new_session=True)
    assert "ready\n" == process.stdout.readline()
    children = [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]
    (witness,) = (pid for pid in children if b"run" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"))
    os.kill(witness, signal.SIGSTOP)
    os.killpg(process.pid, signal.SIGTERM)
    assert "got it\n" == process.stdout.readline()
    taken(process.pid, signal.SIGTERM)
    os.killpg(process.pid, signal.SIGTERM)
    assert "got it\n" == process.stdout.readline()
    os.kill(witness, signal.SIGCONT)
    taken(process.pid, signal.SIGTERM)
    process.send_signal(signal.SIGUSR1)  # `optree run` takes one signal after another: it is done with the others then
    assert "got it\n" == process.stdout.readline()
    out, _ = process.communicate(timeout=60)
    assert "['SIGTERM', 'SIGTERM', 'SIGUSR1']\n" == out


def until(terminal, mark):
    """Read a terminal until a mark is seen; returns what was read."""
    seen = b""
    while mark not in seen:
        seen += os.read(terminal, 4096)
    return seen
