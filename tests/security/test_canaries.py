"""Credentials of every kind in every field of a session, looked for in everything that optree puts out.

A few kinds by default, by a seed; all of them with OPTREE_CANARIES=all (`make canaries`).
"""

import json
import os
import random
import re
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import CommandLine
from tests.otel.receiver import receiver, until
from tests.security.canaries import FORMS, KINDS, Finder, canary, load

ALL = os.environ.get("OPTREE_CANARIES") == "all"
SEED = os.environ.get("OPTREE_CANARIES_SEED", "1")
GROUPS = [KINDS[at::8] for at in range(8)] if ALL else [random.Random(SEED).sample(KINDS, 8)]
COLOUR = {"FORCE_COLOR": "1", "COLUMNS": "90"}
FORMATS = ("json", "ai-agent", "ai-agent-v1", "ai-agent-v3", "events", "events-v1", "markdown", "transcript")
VIEWS = ("transcripts", "dialog", "perspective", "timeline", "agents", "heard", "hooks", "causality")
COMMANDS = [
    "tree", "tree --depth 2", "tree --json", "load last", "load last --json", "ls", "ls --json", "cost", "cost --json", "cost --all",
    "ledger", "ledger --json", "ledger --check", "logs", "logs --severity VRB,WRN,ERR,TRC,THK,FIN", "status", "status --json",
    "logs --severity VRB,WRN,ERR,TRC,THK,FIN --json", "diff A last", "diff A last --all --exact", "diff A last --all --json",
    "diff-context", "diff-context --all", "diff-context --all --json",
    *(f"messages --view {view} --format {form}" for view in VIEWS for form in ("text", "json", "md", "mermaid")),
]  # fmt: skip
IN_PIECES = {"reasoning", "chunks"}
"""Fields that a backup has in chunks, each shorter than what is looked for."""
CASES = {"kinds": 0, "canaries": 0, "outputs": 0, "cases": 0}


class Session(CommandLine):
    """A command line with two sessions that have a credential in each field; knows what was planted."""

    def __init__(self, folder, kinds):
        super().__init__(folder)
        self.planted = []
        self.sent = []
        self.first = ""
        with receiver("http/protobuf") as collector:
            self.env |= {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.endpoint, "OTEL_METRICS_EXPORTER": "otlp", "OTEL_LOGS_EXPORTER": "otlp"}
            for seed in (SEED, f"{SEED} again"):
                file = folder / f"{seed}.json"
                args = [sys.executable, "-m", "tests.security.canaries", seed, ",".join(kinds), file]
                run = self("run", "-v", "--trace-llm", "--trace-tools", "--", *args, code=0)
                self.planted += load(file)
                self.console = run.stderr
                self.health = run.stdout
                self.first = self.first or next(iter(self.txns()))
            assert until(lambda: "nothing is pending" in self.read("export", "--pending", code=None).stdout, 120.0)
            self.sent = [(one.signal, one.body) for one in collector.received]
        self.env.pop("OTEL_EXPORTER_OTLP_ENDPOINT")
        self.finder = Finder(self.planted)

    def clean(self, output):
        """Tell that an output has no piece of what was planted, and count it."""
        CASES["outputs"] += 1
        CASES["cases"] += len(self.planted)
        assert output.strip()
        assert {} == self.finder.leaks(output)
        return output

    def command_line(self, command):
        """Return the arguments of a command in the table above."""
        return [self.first if word == "A" else word for word in command.split()]

    def paths(self):
        """Return the paths of all nodes."""
        shown = self.read("tree", "--json").stdout
        return ["", *dict.fromkeys(re.findall(r'"path":"([0-9.]+)"', shown))]


@pytest.fixture(scope="module", params=GROUPS, ids=range(len(GROUPS)))
def session(request, tmp_path_factory):
    """Return two recorded sessions, and say at the end what was looked for."""
    found = Session(tmp_path_factory.mktemp("canaries"), request.param)
    CASES["kinds"] += len(request.param)
    CASES["canaries"] += len(found.planted)
    yield found
    print(f"\n{', '.join(f'{number:,} {what}' for what, number in CASES.items())}")  # noqa: T201


def test_all_was_planted(session, tmp_path):
    """What was planted is in the session, as a backup has it: looking for it can find it."""
    texts = [
        session.read("export", txn, "--to", "json", "--verbatim", "-o", str(tmp_path / f"{at}.json"), code=0)
        and (tmp_path / f"{at}.json").read_text()
        for at, txn in enumerate((session.first, "last"))
    ]
    found = session.finder.leaks("".join(texts))
    missing = {(one.kind, one.field) for one in session.planted} - set(found)
    assert set() == {field for _, field in missing} - {"header name", "header value", "header pair"} - IN_PIECES


def test_console(session):
    """The lines of a running agent, payloads and all."""
    assert "[THK]" in session.clean(session.console)
    assert "[TRC]" in session.console


def test_health(session):
    """What `optree.health()` says, also of an exporter whose address holds a credential."""
    assert '"problems"' in session.clean(session.health)


@pytest.mark.parametrize("command", COMMANDS)
def test_commands(session, command):
    """Each command, plain and in colours, as text and as JSON."""
    for env in ({}, COLOUR):
        shown = session.read(*session.command_line(command), env=env)
        session.clean(shown.stdout + shown.stderr)


def test_each_node(session):
    """`optree show` of each node: what was sent, said, logged and paid."""
    for path in session.paths():
        for env in ({}, COLOUR):
            session.clean(session.read("show", "last", path, env=env).stdout)
        session.clean(session.read("show", "last", path, "--json").stdout)


@pytest.mark.parametrize("command", ["tree", "load last", "ls", "cost", "show last 1.1", "logs", "messages", "diff A last"])
def test_on_a_terminal(session, command):
    """The same on a real terminal, folded."""
    session.clean(session.terminal(*session.command_line(command), columns=60))


def test_events_in_a_file(session, tmp_path):
    """A file of events is looked at without being imported."""
    session.read("export", "last", "--to", "events", "--verbatim", "-o", tmp_path / "log.jsonl")
    for view in VIEWS:
        session.clean(session.read("messages", tmp_path / "log.jsonl", "--view", view, code=None).stdout)


@pytest.mark.parametrize("form", FORMATS)
def test_formats(session, tmp_path, form):
    """Each file of each format, and what is said of it."""
    said = session.read("export", "last", "--to", form, "-o", f"{tmp_path}/")
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert files
    for path in files:
        session.clean(path.read_text(errors="replace"))
    session.clean(said.stdout + said.stderr)
    back = session.read("import", *files[:1], "--sessions-dir", tmp_path / "in", code=None)
    session.clean(back.stdout + back.stderr)


def test_page(session, tmp_path):
    """A comparison as HTML."""
    session.read("diff", session.first, "last", "--all", "--html", tmp_path / "page.html")
    session.clean((tmp_path / "page.html").read_text())


def test_opentelemetry(session):
    """Everything that a collector gets: spans, logs, metrics."""
    assert {"traces"} <= {signal for signal, _ in session.sent}
    for _, body in session.sent:
        session.clean(body.decode("latin-1"))


ECHOED = [
    ["tree", "{}"], ["show", "last", "{}"], ["load", "missing/{}.json"], ["ls", "--{}"], ["{}"], ["logs", "--grep", "({}"],
    ["logs", "--severity", "{}"], ["messages", "--agent", "{}"], ["diff-context", "--agent", "{}"], ["export", "last", "--to", "{}"],
    ["cost", "--since", "{}"],
    ["export", "last", "--endpoint", "http://app:{}@127.0.0.1:1/x?access_token={}", "--timeout", "0.1", "--again"],
    ["ls", "--sessions-dir", "missing/{}"], ["messages", "--view", "{}"], ["tree", "--depth", "{}"],
]  # fmt: skip


@pytest.mark.parametrize("command", ECHOED, ids=" ".join)
def test_complaints(session, command):
    """What is said on stderr of arguments, files and addresses that hold a credential."""
    kinds = [kind for kind in FORMS if not re.search(r"[\s/]", FORMS[kind])]
    if "--{}" in command:  # a JWT behind a hyphen may be the middle of another text
        kinds.remove("jwt")
    planted = [canary(SEED, kind, " ".join(command)) for kind in (kinds if ALL else kinds[:3])]
    finder = Finder(planted)
    for one in planted:
        said = session.both(*(word.format(*[one.text] * 2) for word in command))
        assert said.strip()
        assert {} == finder.leaks(said)


def test_programs_that_are_not_there(session):
    """A program whose name is a credential cannot be run, and is not named."""
    one = canary(SEED, "github", "program")
    said = session("run", "--", one.text, code=127).stderr
    assert "cannot run [REDACTED]" in said
    assert {} == Finder([one]).leaks(said)


def test_files_of_a_redacted_session(tmp_path):
    """With `redacted_save` nothing of it is on disk either: journal, snapshot, ledger."""
    line = CommandLine(tmp_path)
    line.env["OPTREE_REDACTED_SAVE"] = "1"
    file = tmp_path / "planted.json"
    args = [sys.executable, "-m", "tests.security.canaries", SEED, ",".join(GROUPS[0]), file]
    line("run", "--", *args, "kill", code=137)
    finder = Finder(load(file))
    journals = "".join(path.read_text(errors="replace") for path in Path(line.sessions).rglob("*-*.jsonl"))
    assert "op.begin" in journals
    assert {} == finder.leaks(journals)
    line("run", "--", *args)
    shown = line.read("export", "last", "--to", "json", "--verbatim", "-o", str(tmp_path / "out.json"))
    assert {} == finder.leaks((tmp_path / "out.json").read_text() + shown.stderr)
    assert {} == finder.leaks("".join(path.read_text(errors="replace") for path in Path(line.base).rglob("*.jsonl")))
    assert json.loads((tmp_path / "out.json").read_text())["session"]["turns"]
