"""Answers that are streamed reach the disk as they come: a kill takes nothing that was acknowledged; what is left is marked."""

import asyncio
import json
import signal
import sys

import pytest

import optree
from optree._formats.installed import installed_formats
from optree._store import Directory
from optree._store.reading.recovery import load
from optree._tree import format_tree, walk_ops
from optree._values import decode
from optree.testing import capture
from optree_otel.signals import content
from tests.cli.conftest import CommandLine

KILLED = """
import sys, optree

@optree.llm
def model(messages):
    yield "It "
    yield "rains"
    with open("done", "w") as file:
        file.write(str(optree.flush()))
    print("ready", flush=True)
    sys.stdin.readline()
    yield " no more"

with optree.session("agent"), optree.turn(user="Weather?"):
    for _ in model([{"role": "user", "content": "Weather?"}]):
        pass
"""


HOLED = """
import sys, optree
with optree.session("agent"), optree.turn(), optree.llm("m") as op:
    for said in ("You must ", "NOT ", "take both pills."):
        op.chunk(said)
        assert optree.flush()
    print("ready", flush=True)
    sys.stdin.readline()
"""
RESUMED = """
import optree
with optree.session("agent"), optree.turn():
    pass
"""


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """Return a command line whose only session was killed while a model answered."""
    line = CommandLine(tmp_path_factory.mktemp("streamed"))
    process = line.start(sys.executable, "-c", KILLED)
    assert "ready\n" == process.stdout.readline()
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert "True" == (line.folder / "done").read_text()
    [line.txn] = line.txns()
    return line


def op_of(line):
    """Return the only op of a command line's session."""
    loaded = load(line.txn, Directory.of(line.base))
    [(_, _, op)] = walk_ops(loaded.session)
    return loaded, op


def test_a_partial_answer_survives_a_kill(killed):
    """What was yielded before the kill is the response, marked as partial, and the call is interrupted."""
    loaded, op = op_of(killed)
    assert ("It rains", 8, True, None) == (decode(op.response.payload), op.response.size, op.response.partial, op.ended_at)
    assert "interrupted at least" in (text := format_tree(loaded.session))
    assert "partial answer, 8 characters" in text


def test_commands_show_a_partial_answer(killed):
    """`tree`, `show`, `load` and `messages` show what came, and that it is a part."""
    assert "partial answer, 8 characters" in killed.read("tree", killed.txn).stdout
    assert "response (partial)\n  It rains\n" in killed.read("show", killed.txn, "1.1").stdout
    assert "said so far “It rains”" in killed.read("load", killed.txn).stdout
    assert "It rains [partial]" in killed.read("messages", killed.txn).stdout


@pytest.mark.parametrize("name", ["markdown", "transcript", "json"])
def test_formats_keep_a_partial_answer(killed, tmp_path, name):
    """A format that is read again has the answer with its mark."""
    loaded, op = op_of(killed)
    form = next(form for form in installed_formats()[0] if form.name == name)
    form.write(loaded.tree, tmp_path / f"t{form.suffix}")
    [again] = form.read(tmp_path / f"t{form.suffix}", strict=True).trees
    [(_, _, found)] = walk_ops(again.session)
    assert (op.response, op.ended_at) == (found.response, found.ended_at)


def test_ai_agents_files_say_that_an_answer_was_cut(killed, tmp_path):
    """The original has `truncated` for it."""
    loaded, _ = op_of(killed)
    form = next(form for form in installed_formats()[0] if form.name == "ai-agent")
    form.write(loaded.tree, tmp_path / "t.json.gz")
    [(_, _, found)] = walk_ops(form.read(tmp_path / "t.json.gz", strict=True).trees[0].session)
    assert ("It rains", True) == (decode(found.response.payload), found.response.truncated)


def test_spans_do_not_say_that_it_stopped():
    """The output message of a broken answer has a finish reason of its own."""
    [found] = content.output_messages("It rains", partial=True)
    assert ("incomplete", "It rains") == (found["finish_reason"], found["parts"][0]["content"])


def test_a_resumed_run_has_what_was_said(killed):
    """`history()` of the run that goes on ends with the words that came; the call is closed as interrupted, its answer stays partial."""
    program = "import json, optree\nwith optree.session('agent') as s: print(json.dumps(s.history()))"
    run = killed("load", killed.txn, "--", sys.executable, "-c", program)
    assert [{"role": "user", "content": "Weather?"}, {"role": "assistant", "content": "It rains"}] == json.loads(run.stdout.splitlines()[0])
    _, op = op_of(killed)
    assert ("interrupted", True, "It rains") == (op.status, op.response.partial, decode(op.response.payload))


def traced(run):
    """Return the only op of what a function records."""
    with capture() as recording, optree.session("a"), optree.turn():
        run()
    [(_, _, op)] = walk_ops(recording.tree.session)
    return op


def test_a_generator_that_comes_to_its_end():
    """The answer is whole then, once."""

    @optree.llm
    def model():
        yield "It "
        yield "rains"

    op = traced(lambda: list(model()))
    assert ("It rains", None, "ok") == (decode(op.response.payload), op.response.partial, op.status)


def test_an_async_generator_that_fails():
    """What came stands before the error, as a part."""

    @optree.llm
    async def model():
        yield "It "
        raise TimeoutError("no more")

    async def use():
        async for _ in model():
            pass

    def run():
        with pytest.raises(TimeoutError):
            asyncio.run(use())

    op = traced(run)
    assert ("It ", True, "failed") == (decode(op.response.payload), op.response.partial, op.status)


def test_a_response_takes_the_place_of_what_was_streamed():
    """Who streams and then gives the whole has it once, as given."""

    def run():
        with optree.llm("m") as op:
            op.chunk("It ")
            op.chunk("rains")
            op.response({"role": "assistant", "content": "It rains"})

    op = traced(run)
    assert ({"role": "assistant", "content": "It rains"}, None) == (decode(op.response.payload), op.response.partial)


def test_a_tool_that_yields_texts_streams_its_result():
    """Pieces of a tool's result are joined as before, and are on disk as they come."""

    @optree.tool
    def tail():
        yield "a"
        yield "b"

    op = traced(lambda: list(tail()))
    assert ("ab", None) == (decode(op.response.payload), op.response.partial)


def test_texts_are_given_by_name():
    """`chunk` and `think` take their text by its name, as `log` takes its message."""

    def run():
        with optree.llm("m") as op:
            op.chunk("It ")
            op.chunk(text="rains")
            op.think(text="hm")
            op.builder.append_chunk(op, text="!")
            op.builder.append_reasoning(op, text="so")

    op = traced(run)
    assert ("It rains!", ["hm", "so"]) == (decode(op.response.payload), [chunk.text for chunk in op.reasoning.chunks])


def test_a_hole_in_an_answer_is_seen(tmp_path):
    """A record that is damaged between two pieces of an answer leaves a mark at its place, in the loaded session and the resumed one."""
    line = CommandLine(tmp_path)
    process = line.start(sys.executable, "-c", HOLED)
    assert "ready\n" == process.stdout.readline()
    process.send_signal(signal.SIGKILL)
    process.communicate()
    [line.txn] = line.txns()
    [journal] = (line.base / "sessions" / f"{line.txn}.live").glob("j-*.jsonl")
    journal.write_bytes(journal.read_bytes().replace(b"NOT ", b"not ", 1))
    expected = "You must [… 4 characters lost]take both pills."
    loaded, op = op_of(line)
    assert (expected, True, "damaged") == (decode(op.response.payload), op.response.partial, loaded.damage.state)
    shown = line.read("show", line.txn, "1.1", code=None)
    assert expected in shown.stdout
    assert "does not match its checksum" in shown.stderr
    line("load", line.txn, "--", sys.executable, "-c", RESUMED)
    loaded, op = op_of(line)
    assert (expected, True, "damaged") == (decode(op.response.payload), op.response.partial, loaded.damage.state)
