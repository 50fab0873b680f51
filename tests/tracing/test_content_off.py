"""A process with ``content=False``: the tree has what its run took and cost, and nothing of what was said in it."""

import asyncio
import json
import os
import subprocess
import sys
from contextlib import contextmanager, suppress

import pytest

import optree
from optree._nodes import CONTENT_RECORDED, NOT_RECORDED
from optree._values import decode, encode
from tests.tracing.conftest import LONG

SAID = "Jane Doe is ill"
QUESTION = [{"role": "user", "content": SAID}]


@optree.tool
def look(name):
    """Return what is content."""
    return {"found": name, "status": "ill"}


def say_all():
    """Say something in each place that has content, with all ways to give it."""
    with optree.session("lead") as session:
        session.message(QUESTION[0], message_id="q")
        with optree.turn(user=SAID, system=SAID) as turn:
            with optree.llm("openai:gpt-5") as op:
                op.request(QUESTION, temperature=0, tools=[{"name": "look", "description": SAID}])
                op.think(SAID)
                op.chunk("Jane ")
                op.chunk("Doe is ill")
                op.account(input_tokens=812, output_tokens=64, cost_usd=0.25)
            with optree.llm("openai:gpt-5") as op:
                op.request([*QUESTION, {"role": "assistant", "content": SAID}], temperature=0)
                op.response({"choices": [{"message": {"role": "assistant", "content": SAID}, "finish_reason": "stop"}]})
                op.end(reasoning=SAID)
            look(SAID)
            turn.assistant(SAID)
            with optree.session("scout"), optree.turn(user=SAID):
                look(name=SAID)
        session.builder.set_final_report({"of": SAID}, with_end=True)
    return session


@contextmanager
def gone_on(first, then):
    """Record a message with some options, save it, and go on with that session with others."""
    optree.configure(console=False, **first)
    with optree.session("lead") as session:
        session.message(QUESTION[0])
    optree.flush("snapshot", LONG)
    optree.configure(**then)
    with optree.session("lead", resume=session.txn) as again:
        yield again


def on_disk(folder):
    """Return all that is in files below a directory; snapshots are not compressed."""
    return b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("write", ["structure", "all"])
def test_nothing_said_is_recorded(tmp_path, saved, capfd, write):
    """Prompts, messages, answers, reasoning, arguments, results and reports are in no file and on no line; figures and sizes are."""
    optree.configure(content=False, compression="none", write=write, verbose=True, trace_llm=True, trace_tools=True)
    session = say_all()
    assert optree.flush("snapshot", LONG)
    told = on_disk(tmp_path) + capfd.readouterr().err.encode()
    assert b"lead" in told
    for word in (b"Jane", b"Doe", b"ill"):
        assert word not in told
    tree = saved().session
    assert (False, [], 2, 812, 64, 0.25) == (
        tree.attributes[CONTENT_RECORDED], session.history(), tree.totals.llm_requests, tree.totals.input_tokens, tree.totals.output_tokens,
        tree.totals.cost_usd,
    )  # fmt: skip
    first, second, tool, _ = tree.turns[0].ops
    assert {"system": NOT_RECORDED, "user": NOT_RECORDED} == tree.turns[0].prompts
    assert (0, NOT_RECORDED, NOT_RECORDED) == (
        decode(first.request.payload)["temperature"],
        first.reasoning.text,
        decode(first.response.payload),
    )
    assert len(SAID) == first.response.size
    assert "stop" == decode(second.response.payload)["choices"][0]["finish_reason"]
    assert ({}, len(json.dumps({"name": SAID}, separators=(",", ":")))) == (decode(tool.request.payload), tool.request.size)


def test_sizes_of_answers_in_pieces(saved):
    """The size of an answer that came in pieces is that of all of them, also where it broke off."""
    optree.configure(content=False, console=False)
    with optree.session("lead"), optree.turn(), suppress(ValueError), optree.llm("openai:gpt-5") as op:
        for piece in (SAID, "!", SAID):
            op.chunk(piece)
            optree.flush()
        raise ValueError
    optree.flush("snapshot", LONG)
    [op] = saved().session.turns[0].ops
    assert (NOT_RECORDED, 2 * len(SAID) + 1, True) == (decode(op.response.payload), op.response.size, op.response.partial)


def test_log_lines_and_errors_are_the_programs_own(saved):
    """What the program says of itself stays: names, titles, attributes, log lines and errors, without credentials."""
    optree.configure(content=False, console=False)
    with optree.session("lead", tenant="acme") as session, optree.turn():
        session.title("Weather")
        with suppress(ValueError), optree.tool("weather") as op:
            op.log("asked with sk-proj-Zq8LmN4xT7vBc9Kq8LmN4xT7vB")
            raise ValueError("no such city")
    optree.flush("snapshot", LONG)
    tree = saved().session
    assert ("acme", "Weather") == (tree.attributes["tenant"], tree.session_title)
    [op] = tree.turns[0].ops
    assert ("ValueError: no such city", ["asked with [REDACTED]"]) == (op.error, [line.message for line in op.logs])


@pytest.mark.parametrize("since", [False, True])
def test_children_record_no_content_either(tmp_path, directory, since):
    """A child process that joins the session records none, told by the environment, whatever was configured *since* that began."""
    optree.configure(content=False, console=False, compression="none")
    child = f"import optree\nwith optree.tool('far') as op:\n    op.request(of={SAID!r})\n    op.response({SAID!r})\n"
    with optree.session("lead"), optree.turn():
        optree.configure(content=since)
        subprocess.run([sys.executable, "-c", child], env={**os.environ, **optree.child_env()}, check=True, timeout=LONG)
    optree.flush("snapshot", LONG)
    tree = optree.load("last", directory).session
    assert [("far", {})] == [(op.name, decode(op.request.payload)) for op in tree.turns[0].ops]
    assert b"Jane" not in on_disk(tmp_path)


def test_no_credentials_are_saved_without_content():
    """`redacted_save` is on without content, however that was said, and goes back with it."""
    program = "import optree\nprint(optree.configure().redacted_save, optree.configure(content=True).redacted_save)"
    env = {**os.environ, "OPTREE_CONTENT": "off"}
    said = subprocess.run([sys.executable, "-c", program], env=env, check=True, timeout=LONG, capture_output=True, text=True).stdout
    assert "True False\n" == said
    assert (True, False) == (optree.configure(content=False).redacted_save, optree.configure(content=True).redacted_save)


def test_a_worker_is_told_what_the_session_records():
    """A function that is wrapped in a session without content takes that along, whatever was configured since."""
    optree.configure(content=False, console=False)
    with optree.session("lead"), optree.turn():
        optree.configure(content=True, redacted_save=False)
        *_, settings = optree.wrap(look).__reduce__()[1]
        assert ("0", "1") == (settings.values["OPTREE_CONTENT"], settings.values["OPTREE_REDACTED_SAVE"])
    *_, settings = optree.wrap(look).__reduce__()[1]
    assert "OPTREE_CONTENT" not in settings.values


def test_a_resumed_session_tells_its_messages_from_outlines():
    """Where a session without content is resumed with content on, `history` has what was recorded since."""
    with gone_on({"content": False}, {"content": True}) as again:
        again.message({"role": "user", "content": "And now?"})
        assert [{"role": "user", "content": "And now?"}] == again.history()


def test_a_session_that_goes_on_without_content_says_so(directory):
    """A session with content that is resumed with content off is marked, and what it had stays."""
    with gone_on({}, {"content": False}) as again:
        again.message({"role": "user", "content": "ill"})
    optree.flush("snapshot", LONG)
    tree = optree.load("last", directory).session
    assert (False, [QUESTION[0], {"role": "user", "content": NOT_RECORDED}]) == (
        tree.attributes[CONTENT_RECORDED],
        [decode(entry.body) for entry in tree.messages],
    )


def test_a_journal_that_cannot_be_made_changes_nothing(tmp_path, capfd):
    """Where nothing can be saved, what is in memory and on lines has no content either."""
    (tmp_path / "base").write_text("a file")
    optree.configure(content=False, verbose=True, trace_tools=True)
    session = say_all()
    assert "Jane" not in capfd.readouterr().err
    assert {"system": NOT_RECORDED, "user": NOT_RECORDED} == session.builder.node.turns[0].prompts


def test_a_session_without_content_is_not_replayed():
    """A replay of it says why there is nothing to answer with."""
    optree.configure(content=False, console=False)
    session = say_all()
    optree.flush("snapshot", LONG)
    optree.configure(content=True)
    with pytest.raises(optree.OptreeError, match=f"session {session.txn} was recorded without content"), optree.testing.replay(session.txn):
        pass


def test_a_capture_records_no_content_either():
    """What a test records in memory has none, and is marked, as a run has."""
    optree.configure(content=False)
    with optree.testing.capture() as recording:
        say_all()
    tree = recording.tree.session
    assert (False, {"system": NOT_RECORDED, "user": NOT_RECORDED}) == (tree.attributes[CONTENT_RECORDED], tree.turns[0].prompts)
    assert b"Jane" not in encode(recording.records)


def test_async_tools_and_threads(tmp_path):
    """Decorated coroutines, generators and what is given by ids have no content either."""
    optree.configure(content=False, console=False, compression="none")

    @optree.tool
    async def ask(of):
        return of

    @optree.llm("openai:gpt-5")
    def stream(_question):
        yield "Jane "
        yield "Doe is ill"

    with optree.session("lead") as session, optree.turn() as turn:
        assert SAID == asyncio.run(ask(SAID))
        assert SAID == "".join(stream(SAID))
        op = session.builder.begin_op("tool", "late", turn=turn, request={"of": SAID})
        session.builder.set_response(op.node.op_id, SAID)
        session.builder.end_op(op.node.path)
    optree.flush("snapshot", LONG)
    assert b"Jane" not in on_disk(tmp_path)
