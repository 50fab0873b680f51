"""A command line, an agent to run under it, and directories of their own."""

import contextlib
import io
import json
import os
import pty
import struct
import subprocess
import sys
import termios
from fcntl import ioctl
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

import pytest

from optree._cli import main
from optree._store import Directory
from optree._store.saving import StoreOptions
from optree._store.settle import settle_all

ROOT = Path(__file__).resolve().parents[2]
PREFIXES = ("OPTREE_", "NO_COLOR", "FORCE_COLOR", "TRACEPARENT")
AGENT = '''
"""An agent that does, step by step, what its arguments say."""
import os, signal, subprocess, sys
import optree

@optree.tool
def search(query):
    return "found " + query

@optree.session
def helper(question):
    with optree.turn(user=question):
        return search(question)

def do(step):
    if step == "wait":
        print("ready", flush=True)
        sys.stdin.readline()
    elif step == "kill":
        optree.flush()
        os.kill(os.getpid(), signal.SIGKILL)
    elif step == "fail":
        raise ValueError("no luck")
    elif step == "join":
        subprocess.run([sys.executable, __file__, "from another process"], env=optree.child_env(), check=True)
    else:
        with optree.tool(step) as op:
            op.log("doing " + step)

@optree.session(agent="researcher")
def research(question, steps):
    with optree.turn(user=question):
        with optree.llm(provider="openai", model="gpt-4o") as op:
            op.request(messages=[{"role": "user", "content": question}], api_key="sk-abcdefghijklmnopqrstuvwxyz")
            op.think("let me see")
            op.log("retrying after 429", severity="WRN")
            op.account(input_tokens=800, output_tokens=60, cost_usd=0.0031)
            op.response("searching")
        print(helper(question), flush=True)
        for step in steps:
            do(step)
    return "done"

research(sys.argv[1], sys.argv[2:])
'''


class Printed(NamedTuple):
    """What a command printed."""

    stdout: str
    stderr: str


class CommandLine:
    """Runs `optree` in a process of its own, with its own directories."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.base = folder / "base"
        self.sessions = self.base / "sessions"
        self.agent = folder / "agent.py"
        self.agent.write_text(AGENT)
        kept = {name: value for name, value in os.environ.items() if not name.startswith(PREFIXES)}
        self.env = kept | {"OPTREE_BASE_DIR": str(self.base), "PYTHONPATH": str(ROOT), "COLUMNS": "200", "TERM": "xterm"}

    def command(self, *args):
        """Return the command line of `optree` with arguments."""
        return [sys.executable, "-m", "optree", *map(str, args)]

    def __call__(self, *args, code=0, env=(), **options):
        """Run `optree`, and expect an exit code."""
        run = subprocess.run(
            self.command(*args), check=False, env=self.env | dict(env), cwd=self.folder, capture_output=True, text=True, **options
        )
        assert code == run.returncode, run.stderr
        return run

    def both(self, *args, env=()):
        """Run a command that only reads, in this process, whatever it exits with; returns all that it printed."""
        return "".join(self.read(*args, code=None, env=env))

    def read(self, *args, code=0, env=()):
        """Run a command that only reads, in this process, which is quicker; returns what it printed, stdout and stderr."""
        out, err = io.StringIO(), io.StringIO()
        argv = ["optree", *map(str, args)]
        with (
            patch.dict(os.environ, self.env | dict(env), clear=True),
            patch.object(sys, "argv", argv),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
            pytest.raises(SystemExit) as ended,
        ):
            main()
        assert code in (None, ended.value.code or 0)
        return Printed(out.getvalue(), err.getvalue())

    def terminal(self, *args, columns=100, env=()):
        """Run `optree` on a terminal of its own, in colours; returns all that reached it."""
        ours, theirs = pty.openpty()
        ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
        known = {name: value for name, value in self.env.items() if name != "COLUMNS"} | dict(env)
        program = subprocess.Popen(self.command(*args), env=known, cwd=self.folder, stdin=theirs, stdout=theirs, stderr=theirs)
        os.close(theirs)
        shown = b""
        with contextlib.suppress(OSError):  # the last one has closed it
            while piece := os.read(ours, 1 << 16):
                shown += piece
        os.close(ours)
        program.wait()
        return shown.decode().replace("\r\n", "\n")

    def json(self, *args, **options):
        """Run `optree … --json`, a command that only reads, and return what it printed."""
        return json.loads(self.read(*args, "--json", **options).stdout)

    def start(self, *command, **options):
        """Start a program with pipes to its stdin, stdout and stderr."""
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen([*map(str, command)], cwd=self.folder, text=True, **{"env": self.env} | pipes | options)

    def record(self, *steps, code=0):
        """Let the agent record a session, under a plain interpreter; returns its txn.

        What its exit did not come to, for a slow disk, is done then, as whoever comes next does it: tests may read the files themselves.
        """
        before = self.txns()
        command = [sys.executable, self.agent, "why", *steps]
        run = subprocess.run(command, check=False, env=self.env, cwd=self.folder, capture_output=True, text=True)
        assert code == run.returncode
        settle_all(StoreOptions(Directory.of(self.base)))
        [txn] = self.txns() - before
        return txn

    def txns(self):
        """Return the txns that are there."""
        return {path.name.partition(".")[0] for path in self.sessions.glob("[!.]*.*")} if self.sessions.is_dir() else set()


@pytest.fixture
def optree(tmp_path):
    """Return the command line."""
    return CommandLine(tmp_path)


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """Return a command line whose only session has ended, for tests that only read."""
    line = CommandLine(tmp_path_factory.mktemp("ended"))
    line.txn = line.record()
    return line


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """Return a command line whose only session was killed, for tests that only read."""
    line = CommandLine(tmp_path_factory.mktemp("killed"))
    line.txn = line.record("kill", code=-9)
    return line
