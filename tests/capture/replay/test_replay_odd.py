"""Recordings that are not as optree writes them: a program gets their answers, or is refused, and never waits or asks a model."""

import json
import sys

import pytest

from tests.capture.sdk_calls import CHAT
from tests.cli.conftest import CommandLine

AGENT = """
import sys
import httpx
import optree

@optree.tool
def ask(question):
    asked = {"model": "gpt-5", "messages": [{"role": "user", "content": question}]}
    return httpx.post(sys.argv[1] + "/v1/chat/completions", json=asked)

print((ask.__wrapped__ if sys.argv[2:] == ["bare"] else ask)("Weather?").status_code)
"""


def nested(value, depth):
    """Return a value in so many lists."""
    for _ in range(depth):
        value = [value]
    return value


@pytest.fixture
def line(tmp_path, provider):
    """Return a command line with a recording of a tool's call that asks a model."""
    line = CommandLine(tmp_path)
    line.agent.write_text(AGENT)
    provider.says(CHAT)
    line("run", "--auto", "--", sys.executable, "agent.py", provider.url)
    return line


def exported(line, **odd):
    """Export the recording, with other members of its ops, by their kinds; returns the file's name."""
    file = line.folder / "odd.json"
    line.read("export", "last", "--to", "json", "--verbatim", "-o", file)
    document = json.loads(file.read_text())
    for op in (op for turn in document["session"]["turns"] for op in turn["ops"]):
        op.update(odd.get(op["kind"], {}))
    file.write_text(json.dumps(document))
    return file.name


@pytest.mark.parametrize(("tool", "llm"), [("1.1", "1.1"), ("1.2", "1.1"), ("1.2", "1.2")])
def test_ops_that_are_within_themselves(line, provider, tool, llm):
    """Ops that a file says to be within themselves, or each other, are replayed as others."""
    file = exported(line, tool={"parentOp": tool}, llm={"parentOp": llm})
    run = line("replay", file, "--", sys.executable, "agent.py", provider.url, timeout=60)
    assert ("200\n", 1) == (run.stdout, len(provider.requests))
    assert "optree: 1 of 1 calls of models were answered" in run.stderr


@pytest.mark.parametrize(("how", "code", "said"), [("bare", 0, "400\n"), ("tool", 1, "")])
def test_a_recording_that_the_program_cannot_read(line, provider, how, code, said):
    """Where the environment names a file of which the answers cannot be found, requests and tools are refused by what that fails with."""
    file = exported(line, llm={"attributes": {"model": nested("gpt-5", 600)}})
    env = {"OPTREE_REPLAY": file}
    run = line("run", "--auto", "--", sys.executable, "agent.py", provider.url, how, env=env, code=code)
    assert (said, 1) == (run.stdout, len(provider.requests))
    refused = "optree replay: what is recorded cannot be read: RecursionError"
    assert refused in line.read("logs", "last", "--severity", "ERR").stdout
