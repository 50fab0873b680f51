import threading
from itertools import count

import pytest

import optree
from optree._builder import handles
from optree._console import ConsoleWriter, LineOptions
from optree._store import Directory, load, open_session, resume_session
from optree._store.reading import numbering
from optree._store.saving import StoreOptions
from optree._tracing import Session
from optree.errors import SetupError
from optree.testing import Ticking, capture
from optree_formats.transcript import FORMAT, follow, read, run_id_of
from tests.formats.transcript.held import held
from tests.formats.transcript.trees import CALLS, QUESTION, SYSTEM, ask, descend

ROOT = run_id_of("t")


def program(root):
    """Record something of everything; logs and thoughts too."""
    with_thoughts = root.begin_turn(user="Review main.go", system="Be brief")
    op = root.begin_op("llm", "openai:gpt-4o", turn=with_thoughts)
    root.set_request(op, {"temperature": 0}, [SYSTEM, QUESTION])
    for word in ("First ", "I ", "should"):
        op.think(word)
        op.log("thinking")
    root.set_response(op, {"role": "assistant", "content": "I look at it", "tool_calls": CALLS})
    op.account(input_tokens=10, output_tokens=2, cost_usd=0.01)
    op.end()
    tool = root.begin_op("tool", "read")
    root.set_request(tool, {"path": "main.go"})
    tool.log("opened", "WRN")
    root.set_response(tool, "package main")
    tool.end("failed", "half of it")
    descend(root, 2)
    ask(
        root,
        [SYSTEM, QUESTION, {"role": "assistant", "tool_calls": CALLS}, {"role": "tool", "tool_call_id": "c2", "content": "x"}],
        "Found 2",
    )
    with_thoughts.end()


def recorded(folder, monkeypatch, *, followed):
    """Run the program on disk with clocks that tick; returns the journal, the ledger, the console's lines and the saved tree."""
    monkeypatch.setattr(handles, "monotonic", Ticking())
    monkeypatch.setattr(numbering, "time", Ticking())
    folder.mkdir()
    directory = Directory.of(folder / "base")
    with (folder / "console").open("wb") as lines:
        console = ConsoleWriter("t", LineOptions(), lines.fileno())
        options = StoreOptions(directory, write="all", now=Ticking())
        root, store = open_session("reviewer", options, txn="t", takers=[console])
        console.look_in(root.core)
        transcript = follow(Session(root), folder) if followed else None
        program(root)
        assert store.flush()
        [path] = directory.live("t").glob("j-*")
        journaled = path.read_bytes()
        root.end_session()
        assert transcript is None or (transcript.close(), transcript.problems) == (True, [])
        assert store.close(10.0)
        assert console.flush(10.0)
        console.close()
    saved = optree.load("t", directory).tree
    return journaled, directory.billing.read_bytes(), (folder / "console").read_bytes(), optree.format_tree(saved.session), saved


def test_nothing_else_changes(tmp_path, monkeypatch):
    """The journal, the ledger and the console's lines are the same to the byte with a transcript and without (S2-73, S2-74, S2-75)."""
    plain = recorded(tmp_path / "plain", monkeypatch, followed=False)
    followed = recorded(tmp_path / "followed", monkeypatch, followed=True)
    assert plain[:4] == followed[:4]
    assert min(map(len, plain[:3])) > 100
    assert 4 == len([*(tmp_path / "followed").glob("*.jsonl")]) + 1


def test_what_is_written_live_is_the_session(tmp_path, monkeypatch):
    """What was written while the session ran makes its tree, with thoughts, parallel calls and sub-agents (S2-64, S2-76)."""
    saved = recorded(tmp_path / "a", monkeypatch, followed=True)[-1]
    found = FORMAT.read(tmp_path / "a" / f"{ROOT}.jsonl", strict=True)
    assert ([], held(saved)) == (found.faults, held(found.trees[0]))


def test_live_and_saved_are_alike(tmp_path, monkeypatch):
    """A transcript that is written live has the events of one that is written of the saved tree (S2-76)."""
    saved = recorded(tmp_path / "a", monkeypatch, followed=True)[-1]
    for path in FORMAT.write(saved, tmp_path):
        live = [told(event) for event in read(tmp_path / "a" / path.name, strict=True)]
        assert live == [told(event) for event in read(path, strict=True)]


def told(event):
    """Return what an event says, times apart: of a request's, a saved tree does not know its own."""
    return event.seq, event.type, event.path, event.child_run_id, event.payload if event.type != "message.user" else event.payload.blocks


def test_subscribers_see_it_grow(tmp_path):
    """Who subscribes gets each event while the session runs, once it is on disk (S2-76, S2-79)."""
    with capture(), optree.session(agent="reviewer") as session:
        transcript = follow(session, tmp_path)
        subscription = transcript.subscribe()
        with optree.turn(user="why?"):
            event = subscription.get(10.0)
            while event.type != "message.user":
                event = subscription.get(10.0)
            seen = [(one.seq, one.type) for one in read(tmp_path / f"{run_id_of(session.txn)}.jsonl")]
        transcript.close()
    assert "why?" == event.payload.blocks[0].text
    assert (event.seq, "message.user") in seen


def test_followed_late(tmp_path):
    """A session that is followed in its middle is written from its beginning (S2-64)."""
    with capture() as recording, optree.session(agent="reviewer") as session:
        with optree.turn(user="first"), optree.llm(provider="openai", model="gpt-4o") as op:
            op.request(messages=[QUESTION])
            op.think("hm")
            transcript = follow(session, tmp_path)
            op.think(" so")
            op.response("yes")
        with optree.turn(user="second"):
            pass
    assert transcript.close()
    [tree] = FORMAT.read(tmp_path / f"{run_id_of(session.txn)}.jsonl", strict=True).trees
    assert held(recording.tree) == held(tree)
    assert 1 == sum(event.type == "message.assistant" for event in read(tmp_path / f"{run_id_of(session.txn)}.jsonl"))


def test_resumed(tmp_path):
    """A resumed session goes on in its file: the numbers go on, nothing is there twice, and it has begun once more (S2-06)."""
    options = StoreOptions(Directory.of(tmp_path / "base"))
    (tmp_path / "t").mkdir()
    root, store = open_session("reviewer", options, txn="t")
    first = follow(Session(root), tmp_path / "t")
    root.begin_turn(user="one")
    first.close()
    store.close()
    root, store, _ = resume_session("t", options)
    second = follow(Session(root, resumed=True), tmp_path / "t")
    root.begin_turn(user="two").end()
    root.end_session()
    second.close()
    store.close(10.0)
    path = tmp_path / "t" / f"{ROOT}.jsonl"
    events = [*read(path, strict=True)]
    assert ["run.started", "run.started", "run.completed"] == [event.type for event in events if event.type.startswith("run.")]
    [tree] = FORMAT.read(path, strict=True).trees
    assert held(load("t", options.directory).tree) == held(tree)


def test_many_threads(tmp_path):
    """Tools in many threads are all there, each with its call and its result, and the numbers stand in order (S2-07, S2-76)."""
    with capture(), optree.session(agent="reviewer") as session:
        transcript = follow(session, tmp_path)
        builder = session.builder
        turn = builder.begin_turn()

        def work():
            for _ in range(40):
                op = builder.begin_op("tool", "read", turn=turn)
                builder.set_request(op, {"path": "a"})
                op.response("x")
                op.end()

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        turn.end()
    assert transcript.close(30.0)
    events = [*read(tmp_path / f"{run_id_of(session.txn)}.jsonl", strict=True)]
    calls = [event.payload.call_id for event in events if event.type == "tool.call"]
    assert (160, set(calls)) == (len(set(calls)), {event.payload.call_id for event in events if event.type == "tool.result"})


def test_a_disk_that_takes_nothing(tmp_path, caplog):
    """A transcript that cannot be written is a warning: the session is recorded as ever (S2-75, S2-93)."""
    (tmp_path / "t").mkdir()
    with capture() as recording, optree.session(agent="reviewer") as session:
        transcript = follow(session, tmp_path / "t")
        (tmp_path / "t").rename(tmp_path / "gone")
        with optree.turn(user="why?"):
            pass
    assert transcript.close()
    said = [one.getMessage() for one in caplog.records]  # which of the two depends on whether the file was made before the folder went
    assert (True, True) == (transcript.dropped > 0, any("is left out" in one or "not recorded" in one for one in said))
    assert ["ok"] == [turn.status for turn in recording.tree.session.turns]


def test_masked(tmp_path):
    """The mask of a followed session treats all of its runs (S2-83)."""

    def mask(event):
        event.payload = {"name": "***", "kind": event.payload.kind} if event.type == "run.started" else event.payload
        return event

    with capture(), optree.session(agent="secret") as session:
        transcript = follow(session, tmp_path, mask=mask)
        with optree.turn(), optree.session(agent="secret too"):
            pass
    transcript.close()
    assert ["***", "***"] == [next(read(path)).payload.name for path in tmp_path.iterdir()]


def test_closed_twice(tmp_path):
    """Closing twice does no harm, and a directory that is not there is refused at once (S2-82, S2-94)."""
    with capture(), optree.session(agent="reviewer") as session:
        transcript = follow(session, tmp_path)
        assert (True, True) == (transcript.close(), transcript.close())
        with pytest.raises(SetupError, match="make it before"):
            follow(session, tmp_path / "none")
    assert (True, None) == (transcript.subscribe().closed, transcript.subscribe().get())


def test_open_ops_at_the_close(tmp_path):
    """A tool's call that waits for its input is written when the transcript is closed (S2-28)."""
    numbers = count(1)
    with capture(), optree.session(agent="reviewer") as session:
        transcript = follow(session, tmp_path)
        op = session.builder.begin_op("tool", f"wait {next(numbers)}")
        transcript.close()
        op.end()
    events = [*read(tmp_path / f"{run_id_of(session.txn)}.jsonl")]
    assert ("tool.call", "wait 1") == (events[-1].type, events[-1].payload.name)
