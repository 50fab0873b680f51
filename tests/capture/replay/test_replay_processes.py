"""Replays of programs with several processes: together they are given each recorded answer once, and what is said counts for all."""

import sys
import threading

import pytest

from optree._cli.program import command_line
from tests.capture.provider import Reply
from tests.capture.sdk_calls import CHAT
from tests.cli.conftest import CommandLine

POOL = """
import multiprocessing, sys
import httpx

def sample(_):
    asked = {"model": "gpt-5", "messages": [{"role": "user", "content": "A name"}]}
    return httpx.post(sys.argv[1] + "/v1/chat/completions", json=asked).json()["choices"][0]["message"]["content"]

if __name__ == "__main__":
    import optree
    with optree.session("lead"), optree.turn(), multiprocessing.get_context(sys.argv[2]).Pool(3) as pool:
        print(sorted(pool.map(sample, range(3), chunksize=1)))
"""
CHILD = """
import subprocess, sys
import httpx
import optree

def ask(question):
    asked = {"model": "gpt-5", "messages": [{"role": "user", "content": question}]}
    httpx.post(sys.argv[1] + "/v1/chat/completions", json=asked)

if len(sys.argv) > 2:
    ask(sys.argv[2])
else:
    with optree.session("lead"), optree.turn():
        subprocess.run([sys.executable, __file__, sys.argv[1], "a child's"], env=optree.child_env(), check=True)
        ask("the parent's")
"""
CANCELLED = """
import asyncio, sys
import httpx

async def main():
    async with httpx.AsyncClient() as client:
        async def ask(question):
            asked = {"model": "gpt-5", "messages": [{"role": "user", "content": question}]}
            (await client.post(sys.argv[1] + "/v1/chat/completions", json=asked)).raise_for_status()

        await ask("one")
        try:
            await asyncio.wait_for(ask("two"), float(sys.argv[2]))
        except TimeoutError:
            pass
        await ask("three")

asyncio.run(main())
"""


def named(name):
    """Return a chat's answer that says a name."""
    choice = {"index": 0, "message": {"role": "assistant", "content": name}, "finish_reason": "stop"}
    usage = {"prompt_tokens": 12, "completion_tokens": 1, "total_tokens": 13}
    return Reply({"id": "c", "object": "chat.completion", "created": 1, "model": "gpt-5", "choices": [choice], "usage": usage})


@pytest.fixture
def line(tmp_path):
    """Return a command line."""
    return CommandLine(tmp_path)


def test_a_process_that_asks_what_another_was_given(line, provider):
    """Where all answers to a question were given to other processes, one that asks it as well gets one of these again."""
    line.agent.write_text(TWICE)
    provider.says(named("Ada"))
    command = [sys.executable, "agent.py", provider.url]
    assert "Ada\n" == line("run", "--auto", "--", *command, "1").stdout
    count = len(provider.requests)
    assert ("Ada\nAda\n", count) == (line("replay", "last", "--", *command, "2").stdout, len(provider.requests))


TWICE = """
import subprocess, sys
import httpx

if len(sys.argv) == 3:
    for _ in range(int(sys.argv[2])):
        subprocess.run([sys.executable, __file__, sys.argv[1]], check=True)
else:
    asked = {"model": "gpt-5", "messages": [{"role": "user", "content": "A name"}]}
    print(httpx.post(sys.argv[1] + "/v1/chat/completions", json=asked).json()["choices"][0]["message"]["content"])
"""


BEHIND_MCP = """
import asyncio, subprocess, sys
import httpx
from mcp import Client
from mcp.server import MCPServer

server = MCPServer("library", log_level="CRITICAL")

def ask():
    asked = {"model": "gpt-5", "messages": [{"role": "user", "content": "A name"}]}
    return httpx.post(sys.argv[1] + "/v1/chat/completions", json=asked).json()["choices"][0]["message"]["content"]

@server.tool(structured_output=False)
def name() -> str:
    return ask()

async def call():
    async with Client(server) as client:
        return (await client.call_tool("name", {})).content[0].text

if len(sys.argv) > 2:
    print(ask())
else:
    print(asyncio.run(call()), flush=True)
    subprocess.run([sys.executable, __file__, sys.argv[1], "alone"], check=True)
"""


def test_what_a_server_asked_is_given_to_no_other_process(line, provider):
    """A model's answer that came with a server's result is no other process's: that one is given its own."""
    line.agent.write_text(BEHIND_MCP)
    provider.says(*map(named, ("Ada", "Bob")))
    command = [sys.executable, "agent.py", provider.url]
    assert "Ada\nBob\n" == line("run", "--auto", "--", *command).stdout
    assert ("Ada\nBob\n", 2) == (line("replay", "last", "--", *command).stdout, len(provider.requests))


GIVEN_UP = """
import asyncio, sys
import httpx
from mcp import Client
from mcp.server import MCPServer

server = MCPServer("library", log_level="CRITICAL")

async def ask(question):
    asked = {"model": "gpt-5", "messages": [{"role": "user", "content": question}]}
    async with httpx.AsyncClient() as client:
        (await client.post(sys.argv[1] + "/v1/chat/completions", json=asked)).raise_for_status()

@server.tool(structured_output=False)
async def name() -> str:
    try:
        await asyncio.wait_for(ask("A name"), 0.5)
    except TimeoutError:
        return "none"

async def main():
    async with Client(server) as client:
        print((await client.call_tool("name", {})).content[0].text)
    await ask(sys.argv[2])

asyncio.run(main())
"""


def test_the_fork_that_is_proposed_is_behind_what_was_given(line, provider):
    """A call that was broken off within a tool whose result is given is not where a fork is proposed: the first that differs is."""
    line.agent.write_text(GIVEN_UP)
    provider.says(Reply(b"{", b"}", hold=threading.Event()), CHAT)
    line("run", "--auto", "--", sys.executable, "agent.py", provider.url, "one")
    [txn] = line.txns()
    command = [sys.executable, "agent.py", provider.url, "two"]
    run = line("replay", txn, "--", *command, code=1)
    differing = run.stderr.partition("1 differ, the first at ")[2].partition(":")[0]
    assert run.stderr.endswith(f"optree fork {txn} --at {differing} -- {command_line(command)}\n"), run.stderr
    assert ("none\n", 2) == (run.stdout, len(provider.requests))


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_processes_that_ask_the_same(line, provider, start):
    """Three processes that ask one question get its three answers, one each, and all are counted."""
    line.agent.write_text(POOL)
    provider.says(*map(named, ("Ada", "Bob", "Cleo")))
    command = [sys.executable, "agent.py", provider.url, start]
    assert "['Ada', 'Bob', 'Cleo']\n" == line("run", "--auto", "--", *command).stdout
    count = len(provider.requests)
    run = line("replay", "last", "--", *command)
    assert ("['Ada', 'Bob', 'Cleo']\n", count) == (run.stdout, len(provider.requests))
    assert "optree: 3 of 3 calls of models were answered as in " in run.stderr
    assert "not asked for" not in run.stderr


def test_a_fork_behind_what_another_process_asked(line, provider):
    """A call that another process has made is not said to be missing ahead of the fork."""
    line.agent.write_text(CHILD)
    provider.says(CHAT)
    command = [sys.executable, "agent.py", provider.url]
    line("run", "--auto", "--", *command)
    [txn] = line.txns()
    run = line("fork", txn, "--at", "1.1", "--", *command)
    assert "1 of 1 calls of models were answered" in run.stderr
    assert "1 were asked" in run.stderr
    assert "was not asked for yet" not in run.stderr


@pytest.mark.parametrize("last", ["three", "two"])
def test_the_fork_that_is_proposed_is_not_in_vain(line, provider, last):
    """Behind a call that was broken off, be it the last, and has no answer, the fork that is proposed begins at that, and goes on."""
    line.agent.write_text(CANCELLED if last == "three" else CANCELLED.replace('await ask("three")', "pass"))
    held = Reply(b"{", b"}", hold=threading.Event())
    provider.says(CHAT, held, CHAT)
    line("run", "--auto", "--", sys.executable, "agent.py", provider.url, "0.5")
    [txn] = line.txns()
    provider.says(CHAT)
    command = [sys.executable, "agent.py", provider.url, "9"]
    run = line("replay", txn, "--", *command, code=1)
    assert "1 differ, the first at 2.1" in run.stderr
    expected = f"optree fork {txn} --at 2.1 -- {command_line(command)}\n"
    assert run.stderr.endswith(f"optree: with new answers from there on, if it is to change: {expected}"), run.stderr
    assert "1 of 1 calls of models were answered" in line("fork", txn, "--at", "2.1", "--", *command).stderr


def test_what_differs_is_told_by_what_is_left(line, provider):
    """A request is not compared with one that another process was given the answer to."""
    line.agent.write_text(CHILD)
    provider.says(named("Ada"))
    command = [sys.executable, "agent.py", provider.url]
    line("run", "--auto", "--", *command)
    line.agent.write_text(CHILD.replace('ask("the parent\'s")', 'ask("another")'))
    assert 'messages[0].content is "another", not "the parent\'s"' in line("replay", "last", "--", *command, code=1).stderr
