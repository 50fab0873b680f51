"""Programs that begin no session themselves get one, with turns by what they ask."""

import asyncio
import multiprocessing
import signal
import subprocess
import sys
from importlib.machinery import ModuleSpec

import httpx
import pytest

import optree
from optree._capture.calls.program import program_name
from optree._console import resolved
from optree._store import Directory
from optree._store.reading.recovery import load
from optree._tree import format_tree, walk_ops
from optree._values import decode
from optree.testing import capture
from tests.capture.provider import Reply
from tests.capture.sdk_calls import CHAT, CHAT_EVENTS, CHAT_TOOL
from tests.cli.conftest import CommandLine

AGENT = """
import sys
import openai, optree
optree.instrument()
client = openai.OpenAI(base_url=sys.argv[1] + "/v1", api_key="none", max_retries=0)
for question in ("Weather?", "And tomorrow?"):
    messages = [{"role": "user", "content": question}]
    while True:
        said = client.chat.completions.create(model="gpt-5", messages=messages).choices[0].message
        if not said.tool_calls:
            break
        messages.append(said.model_dump(exclude_none=True))
        messages += [{"role": "tool", "tool_call_id": call.id, "content": "rain"} for call in said.tool_calls]
print(said.content)
if len(sys.argv) > 2:
    raise RuntimeError("broken")
"""
STREAMING = """
import sys
import openai, optree
optree.instrument()
client = openai.OpenAI(base_url=sys.argv[1] + "/v1", api_key="none", max_retries=0)
for chunk in client.chat.completions.create(model="gpt-5", messages=[{"role": "user", "content": "Weather?"}], stream=True):
    print(chunk.choices[0].delta.content, optree.flush(), flush=True)
    if chunk.choices[0].delta.content == "rains":
        sys.stdin.readline()
"""


@pytest.fixture
def line(tmp_path):
    """Return a command line in a folder of its own, with both programs."""
    line = CommandLine(tmp_path)
    (line.folder / "weather.py").write_text(AGENT)
    (line.folder / "streaming.py").write_text(STREAMING)
    return line


def session_of(line):
    """Return the only session that was saved."""
    [txn] = line.txns()
    return load(txn, Directory.of(line.base)).session


def run(line, *arguments):
    """Run a program to its end; return its exit code and what it printed."""
    process = line.start(sys.executable, *arguments)
    said, _ = process.communicate()
    return process.returncode, said


@pytest.mark.captured("openai", "chat", "tools", added="one line", checks="calls")
def test_a_program_without_sessions_has_one(line, provider):
    """All calls of a script are in one session with its name, a turn for each question and the calls to answer it."""
    provider.says(CHAT_TOOL, CHAT, CHAT)
    assert (0, "It rains\n") == run(line, "weather.py", provider.url)
    session = session_of(line)
    assert ("weather", "ok", ["ok", "ok"]) == (session.agent_id, session.status, [turn.status for turn in session.turns])
    assert [("Weather?", 2), ("And tomorrow?", 1)] == [(turn.prompts["user"], len(turn.ops)) for turn in session.turns]
    assert 3 == session.totals.llm_requests


TWICE = """
import sys
import openai, optree
optree.instrument()
client = openai.OpenAI(base_url=sys.argv[1] + "/v1", api_key="none", max_retries=0)

def ask(messages):
    return client.chat.completions.create(model="gpt-5", messages=messages).choices[0].message

conversations = [[{"role": "user", "content": "Weather?"}] for _ in range(2)]
for messages in conversations:
    said = ask(messages)
    messages.append(said.model_dump(exclude_none=True))
    messages += [{"role": "tool", "tool_call_id": call.id, "content": "rain"} for call in said.tool_calls]
for messages in conversations:
    print(ask(messages).content)
"""


def test_two_conversations_that_ask_the_same(line, provider):
    """Results of tools are in the turn whose answer has asked for them, by the ids of the calls, whatever another has asked since."""
    line.agent.write_text(TWICE)
    asking = [CHAT_TOOL.pieces[0].replace(b"call-1", name) for name in (b"call-1", b"call-2")]
    provider.says(*map(Reply, asking), CHAT, CHAT)
    assert (0, "It rains\nIt rains\n") == run(line, "agent.py", provider.url)
    turns = session_of(line).turns
    sent = [resolved(op.request.payload, load(*line.txns(), Directory.of(line.base)).tree.pool) for turn in turns for op in turn.ops]
    assert [None, "call-1", None, "call-2"] == [asked["messages"][-1].get("tool_call_id") for asked in sent]
    assert [2, 2] == [len(turn.ops) for turn in turns]


def test_two_conversations_whose_tool_calls_have_one_id(line, provider):
    """Where a provider numbers tool calls by conversation, results are in the turn of their own one, by what the user asked."""
    line.agent.write_text(TWICE.replace('"Weather?"}] for _ in range(2)', 'text}] for text in ("Weather?", "And there?")'))
    provider.says(CHAT_TOOL, CHAT_TOOL, CHAT, CHAT)
    assert (0, "It rains\nIt rains\n") == run(line, "agent.py", provider.url)
    turns = session_of(line).turns
    sent = [resolved(op.request.payload, load(*line.txns(), Directory.of(line.base)).tree.pool) for turn in turns for op in turn.ops]
    assert ["Weather?", "Weather?", "And there?", "And there?"] == [asked["messages"][0]["content"] for asked in sent]


def test_a_program_that_raises_failed(line, provider):
    """The session of a script that ends by an exception is failed, with the exception."""
    provider.says(CHAT)
    assert 1 == run(line, "weather.py", provider.url, "raise")[0]
    session = session_of(line)
    assert ("failed", "RuntimeError: broken") == (session.status, session.error)


def test_an_input_that_raises_at_a_prompt(line, provider):
    """Where each input stands for itself, one that raises is no end of the session."""
    provider.says(CHAT)
    begin = AGENT.partition("for question")[0].replace("sys.argv[1]", repr(provider.url))
    asks = "_ = client.chat.completions.create(model='gpt-5', messages=[{'role': 'user', 'content': 'Weather?'}])\n"
    subprocess.run([sys.executable, "-i", "-q"], input=begin + asks + "None.raises\n", env=line.env, cwd=line.folder, text=True, check=True)
    assert ("ok", None) == (session_of(line).status, session_of(line).error)


@pytest.mark.captured("openai", "chat", "streamed", "killed", added="one line", checks=("calls", "answers"))
def test_a_kill_keeps_what_was_streamed(line, provider):
    """What a stream has brought before a kill is in the journal, as a partial answer (S2-85)."""
    provider.says(Reply(*CHAT_EVENTS.pieces[:2], b"", kind=CHAT_EVENTS.kind, short=1))
    process = line.start(sys.executable, "streaming.py", provider.url)
    assert ["It  True\n", "rains True\n"] == [process.stdout.readline() for _ in range(2)]
    process.send_signal(signal.SIGKILL)
    process.communicate()
    session = session_of(line)
    [(_, _, op)] = walk_ops(session)
    assert ("It rains", True, None) == (decode(op.response.payload), op.response.partial, op.ended_at)
    assert "partial answer, 8 characters" in format_tree(session)


@pytest.mark.parametrize(
    ("argv", "spec", "name"),
    [
        (["/bin/agent.py"], None, "agent"),
        (["-c"], None, "python"),
        (["-"], None, "python"),
        (["/bin/agent.pyz"], ModuleSpec("__main__", None), "agent"),
        ([], None, "python"),
        (["/lib/uvicorn/__main__.py"], ModuleSpec("uvicorn.__main__", None), "uvicorn"),
        (["/lib/uvicorn/__main__.py"], None, "uvicorn"),  # in a process that multiprocessing spawned
    ],
)
def test_the_name_of_a_program(argv, spec, name, monkeypatch):
    """It is that of the script, or of the package that is run."""
    monkeypatch.setattr(sys, "argv", argv)
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", spec)
    assert name == program_name()


APART = """
import asyncio
import httpx
import optree

SAID = {"object": "chat.completion", "model": "gpt-5", "choices": [{"index": 0, "message": {"role": "assistant", "content": "x"}}]}
optree.instrument()


@optree.tool
def look():
    pass


async def ask(user, client):
    sent = {"model": "gpt-5", "messages": [{"role": "user", "content": user}]}
    await client.post("https://api.openai.com/v1/chat/completions", json=sent)
    look()


async def with_a_session(client, begun, done):
    with optree.session("a"), optree.turn(user="a"):
        await ask("a", client)
        begun.set()
        await done.wait()


async def main():
    begun, done = asyncio.Event(), asyncio.Event()
    async with httpx.AsyncClient(transport=httpx.MockTransport(lambda _: httpx.Response(200, json=SAID))) as client:
        other = asyncio.create_task(with_a_session(client, begun, done))
        await begun.wait()
        await asyncio.create_task(ask("b", client))
        done.set()
        await other


asyncio.run(main())
"""


def test_a_task_outside_of_all_sessions(line):
    """What a task does that is in none, as another request's, is in the program's session, though just one other is open."""
    line.agent.write_text(APART)
    assert (0, "") == run(line, "agent.py")
    sessions = [load(txn, Directory.of(line.base)).session for txn in line.txns()]
    found = {one.agent_id: [(op.kind, op.name) for turn in one.turns for op in turn.ops] for one in sessions}
    each = [("llm", "openai:gpt-5"), ("tool", "look")]
    assert {"a": each, "agent": each} == found


SPAWNED = """
import multiprocessing
import sys
import httpx
import optree

SAID = {"object": "chat.completion", "model": "gpt-5", "choices": [{"index": 0, "message": {"role": "assistant", "content": "x"}}]}
optree.instrument()


def ask(user):
    sent = {"model": "gpt-5", "messages": [{"role": "user", "content": user}]}
    with httpx.Client(transport=httpx.MockTransport(lambda _: httpx.Response(200, json=SAID))) as client:
        client.post("https://api.openai.com/v1/chat/completions", json=sent)


if __name__ == "__main__":
    process = multiprocessing.get_context(sys.argv[1]).Process(target=ask, args=("a",))
    process.start()
    process.join()
"""


@pytest.mark.parametrize("way", multiprocessing.get_all_start_methods())
def test_the_session_of_a_process_that_multiprocessing_makes(line, way):
    """It ends in order with the process, however that was made, and is billed."""
    line.agent.write_text(SPAWNED)
    assert (0, "") == run(line, "agent.py", way)
    assert "ok" == session_of(line).status
    assert 1 == line.json("cost", "--all")["total"]["calls"]


@pytest.mark.usefixtures("hooked")
def test_the_session_of_another_recording():
    """A program's own session is that of the recording in which it was begun: in the next one no other session is taken for it."""
    said = {"object": "chat.completion", "model": "m", "choices": [{"index": 0, "message": {"role": "assistant", "content": "x"}}]}
    transport = httpx.MockTransport(lambda _: httpx.Response(200, json=said))

    async def ask():
        async with httpx.AsyncClient(transport=transport) as client:
            await client.post(
                "https://api.openai.com/v1/chat/completions", json={"model": "m", "messages": [{"role": "user", "content": "?"}]}
            )

    async def beside(outside):
        with optree.session("a"):
            await outside

    async def program():
        await beside(asyncio.create_task(ask()))

    with capture():
        asyncio.run(ask())
    with capture() as recording:
        asyncio.run(program())
    assert [0] == [one.tree.session.totals.llm_requests for one in recording.sessions if one.agent == "a"]
