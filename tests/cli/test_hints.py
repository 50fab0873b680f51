"""Commands that are proposed do what is meant as they stand: in the directory that was named, and with `--auto` if it was recorded so."""

import os
import shlex
import sys

import pytest

from tests.cli.commands.test_replay_tools import AGENT
from tests.cli.commands.test_runs import SEVERAL
from tests.cli.conftest import ROOT, CommandLine
from tests.otel.receiver import receiver, unavailable

AUTO = {"OPTREE_AUTO": "1"}


def run_of_three(folder, env=()):
    """Return a command line whose sessions are in a directory that only its options name, one ended and two broken off."""
    line = CommandLine(folder)
    line.agent.write_text(SEVERAL)
    named = {"OPTREE_SESSIONS_DIR": str(folder / "my runs"), "OPTREE_BILLING_FILE": str(folder / "bill")}
    line.start(sys.executable, line.agent, "a", "b,c", env=line.env | named | dict(env)).communicate()
    line.options = ("--sessions-dir", named["OPTREE_SESSIONS_DIR"], "--billing-file", named["OPTREE_BILLING_FILE"])
    line.of = {row["agentId"]: row["txn"] for row in line.json("ls", *line.options[:2])}
    return line


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """Return such a run, of a program that names optree."""
    return run_of_three(tmp_path_factory.mktemp("plain"))


@pytest.fixture(scope="module")
def auto(tmp_path_factory):
    """Return such a run, with the hooks in."""
    return run_of_three(tmp_path_factory.mktemp("auto"), AUTO)


@pytest.mark.parametrize(("command", "options"), [("tree", 2), ("cost", 4)])
def test_the_whole_run(plain, command, options):
    """`tree` and `cost` propose what shows all sessions of the run, which it does."""
    said = plain.read(command, plain.of["c"], *plain.options[:options]).stderr
    proposed = shlex.split(said.rpartition(": ")[2])
    assert ["optree", command, plain.of["c"], "--run", *plain.options[:options]] == proposed
    assert "" == plain.read(*proposed[1:]).stderr


@pytest.mark.parametrize("recorded", ["plain", "auto"])
def test_what_goes_on_with_a_session(recorded, request):
    """`load` and `status` propose to go on in the directory that was named, and with the hooks where they were in."""
    line = request.getfixturevalue(recorded)
    resume = {
        agent: shlex.join(["optree", "load", line.of[agent], *line.options, *(["--auto"] if recorded == "auto" else []), "--", "CMD"])
        for agent in "bc"
    }
    shown = line.read("load", line.of["c"], *line.options).stdout
    assert f"go on with: {resume['c']}\n" in shown
    assert shown.endswith(f": {resume['b']}\n")
    told = line.json("load", line.of["c"], *line.options)
    assert [resume["c"], resume["b"]] == [told["resume"], *(one["resume"] for one in told["others"])]
    assert line.read("status", *line.options).stdout.endswith((f"go on with   {resume['b']}\n", f"go on with   {resume['c']}\n"))
    assert [recorded == "auto"] == [told["session"]["attributes"]["ingress"].get("auto", False)]


def test_following_a_session_that_is_killed(optree):
    """`logs -f` proposes it too."""
    program = "import sys, optree\nwith optree.session('agent') as it, optree.turn():\n print(it.txn, flush=True)\n sys.stdin.readline()"
    sessions = str(optree.folder / "mine")
    process = optree.start(sys.executable, "-c", program, env=optree.env | AUTO | {"OPTREE_SESSIONS_DIR": sessions})
    txn = process.stdout.readline().strip()
    follower = optree.start(*optree.command("logs", "-f", txn, "--sessions-dir", sessions))
    follower.stdout.readline()
    process.kill()
    process.communicate()
    assert follower.communicate()[1].endswith(f"go on with: optree load {txn} --sessions-dir {sessions} --auto -- CMD\n")


def test_what_a_replay_proposes(optree):
    """`replay` proposes a comparison, and another replay, in the directory that was named: both find the sessions."""
    optree.agent.write_text(AGENT)
    (optree.folder / "ran").write_text("")
    options = ("--sessions-dir", str(optree.folder / "mine"), "--billing-file", str(optree.folder / "bill"))
    optree("run", *options, "--", sys.executable, "agent.py", "tides")
    said = optree("replay", "last", *options, "--", sys.executable, "agent.py", "moon", code=1).stderr
    shown, again = (shlex.split(said.partition(before)[2].partition("\n")[0]) for before in ("what changed: ", "with tools that run: "))
    assert ("diff", options[:2]) == (shown[1], tuple(shown[4:]))
    assert (*options, "--", sys.executable, "agent.py", "moon") == tuple(again[5:])
    assert "moon" in optree(*shown[1:]).stdout
    assert "MOON" in optree(*again[1:]).stdout


def test_what_sends_what_a_collector_missed(tmp_path):
    """`export` and `status` propose what sends the sessions of that directory to that collector, `import` what shows the one that came."""
    line = CommandLine(tmp_path)
    line.env["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "exporters")])
    txn = line.record()
    elsewhere = ("--sessions-dir", str(tmp_path / "my copies"))
    line("export", txn, "--to", "json", "-o", tmp_path / "one.json")
    shown = proposed(line("import", tmp_path / "one.json", *elsewhere).stdout)
    assert ["optree", "tree", txn, *elsewhere] == shown
    assert line("tree", txn).stdout == line(*shown[1:]).stdout
    with receiver("http/protobuf") as collector:
        collector.always = unavailable()
        address = ("--endpoint", collector.endpoint)
        again = proposed(line("export", txn, *address, *elsewhere, "--timeout", "0.5", code=1).stderr)
        assert ["optree", "export", "--pending", *address, *elsewhere] == again
        send, them, *command = shlex.split(line("status", *elsewhere).stdout.splitlines()[-1])
        assert ("send", "them", ["optree", "export", "--pending", *elsewhere]) == (send, them, command)
        collector.always = None
        line(*again[1:])
        assert collector.spans()


def proposed(said):
    """Return the command at the end of what was said."""
    return shlex.split(said.strip().rpartition(": ")[2])
