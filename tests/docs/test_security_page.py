import re
import sys
from pathlib import Path

from optree.redaction._forms import FORMS, NAMES
from optree_otel.signals.resource import _NOWHERE
from tests.cli.conftest import CommandLine
from tests.otel.receiver import receiver

ROOT = Path(__file__).resolve().parents[2]
HEARING = """
import sys

def hear(event, args):
    if event in ("socket.connect", "socket.sendto", "socket.getaddrinfo"):
        with open({log!r}, "a") as file:
            print(event, args[1:] if event == "socket.connect" else args, file=file)

sys.addaudithook(hear)
"""
COMMANDS = ["tree", "logs", "cost", "ls", "status", "ledger --check", "messages", "formats", "instrument", "export last --to json -o -"]


def test_count_of_detectors():
    """The page on security, and the changelog, say of as many forms and kinds of names as redaction has."""
    page, changes = (" ".join((ROOT / name).read_text().split()) for name in ("docs/security.md", "CHANGELOG.md"))
    assert [(str(len(FORMS)), str(len(NAMES)))] == re.findall(r"two tables: (\d+) forms .*? and (\d+) kinds of names", page)
    assert [str(len(FORMS))] == re.findall(r"Redaction finds (\d+) forms of credentials", changes)


def test_what_leaves_the_machine(tmp_path):
    """A program that is recorded with prices, and the commands, connect to nobody; with a collector that is named, to that alone."""
    line, log = CommandLine(tmp_path), tmp_path / "heard"
    (tmp_path / "sitecustomize.py").write_text(HEARING.format(log=str(log)))
    line.env |= {"PYTHONPATH": f"{tmp_path}:{ROOT}:{ROOT / 'exporters'}", "OPTREE_PRICES": "on"}
    line("run", "--auto", "--", sys.executable, line.agent, "why")
    for command in COMMANDS:
        line(*command.split())
    assert not log.exists()
    with receiver("http/protobuf") as collector:
        line("run", "--otel", collector.endpoint, "--", sys.executable, line.agent, "why", env={"OPTREE_OTEL_DELIVER_AT_EXIT": "false"})
        line("export", "last", "--endpoint", collector.endpoint)
        known = collector.endpoint.rpartition(":")[2], f"socket.connect ({_NOWHERE},)"  # the latter by UDP, which sends nothing
        assert [] == [heard for heard in log.read_text().splitlines() if not any(place in heard for place in known)]
