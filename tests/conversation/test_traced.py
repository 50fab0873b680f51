import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import optree
from optree.conversation import PieceOfText, Session, TranscriptEntry, load_session, load_traced, restored
from optree.errors import SetupError
from tests.conversation.conftest import Scripted

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
import asyncio, functools, json, os, signal, sys
import optree
from optree.conversation import load_traced, restored
from tests.conversation.conftest import Scripted, shape

async def main():
    with optree.session("root") as traced:
        root, conversation = load_traced(traced, functools.partial(restored, model=Scripted()))
        print(json.dumps(shape(root)))
        with optree.turn(user="talk"):
            if not root.subagents:
                root.harken("Create them")
                await root.act(("task", {"name": "Jack", "system_prompt": "You are Jack."}), ("task", {"name": "Jill"}))
            await root.discuss("Meet", ["Jack", "Jill"])
            root.subagents["Jack"].harken("One more")
            print(json.dumps(shape(root)), flush=True)
            if sys.argv[1] == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
        conversation.close()

asyncio.run(main())
"""


@pytest.fixture
def root():
    """Return the root agent of a conversation in a tree in memory."""
    found, _ = load_traced(Handle(), lambda *given: restored(*given, model=Scripted()))
    return found


class Handle:
    """What `optree.session` gives: something with a builder."""

    def __init__(self, builder=None):
        self.builder = builder or optree.SessionTreeBuilder("root")


def talk(root):
    """Let a root agent make two others, and have them talk."""
    root.harken("Create them")
    asyncio.run(root.act(("task", {"name": "Jack", "system_prompt": "You are Jack."}), ("task", {"name": "Jill"})))
    asyncio.run(root.discuss("Meet", ["Jack", "Jill"]))
    return root


def sessions(root):
    """Return the child sessions of a conversation's tree, by their paths."""
    builder = root.session.home._root
    return {session.path: session for session in optree.walk_sessions(builder.tree.session)}


def test_agents_go_on_without_what_was_not_recorded(tmp_path):
    """Agents of a session without content have their transcripts while they live; resumed, none is sent what stands for a text."""
    optree.configure(base_dir=tmp_path, console=False, content=False)
    with optree.session("root") as traced:
        root, conversation = load_traced(traced)
        jill = root.create("Jill", "You are an author")
        root.inform(jill, "Hello")
        jill.say("Hi")
        assert ["You are an author", "Hello", "Hi"] == [message["content"] for message in jill.transcript]
        assert [] == conversation.messages(jill.agent_id)
    optree.flush("snapshot", 60)
    with optree.session("root", resume=traced.txn) as again:
        jill = load_traced(again)[0].subagent("Jill")
        assert [] == jill.transcript
        jill.say("Hi again")
        assert [{"role": "assistant", "content": "Hi again"}] == jill.transcript


def test_agents_are_sessions(root):
    """Each agent is a session of the tree, inside an op of its parent's turn; its transcript is the session's messages (S0-03, S1-03)."""
    found = sessions(talk(root))
    assert ["root", "Jack", "Jill"] == [session.agent_id for session in found.values()][:3]
    for session in list(found.values())[:3]:
        block = session.attributes.get("conversation", {"agentId": "root"})
        messages = [message for message in session.messages if message.role != "piece_of_text"]
        assert root.session.agents[block["agentId"]].transcript[: len(messages)] == [
            json.loads(bytes(message.body)) for message in messages
        ]
    block = found["1.2"].attributes["conversation"]
    assert ("agent_001", "msg_004", "Jack") == (block["agentId"], block["messageId"], block["name"])
    assert ("scripted:model", ["msg_003.root_c1"]) == (block["languageModel"], block["cause"])


def test_same_as_in_a_file(root, file):
    """The same conversation gives the same events in a tree as in a file, but for times and the root's name (S1-02, S1-31)."""
    alone, session = load_session(file, lambda *given: restored(*given, model=Scripted()))
    talk(alone)
    session.close()
    told, written = talk(root).session.events(), session.events()
    names = {"agent_001": "root", "agent_002": "agent_001", "agent_003": "agent_002"}
    for event in told:
        event.timestamp = None
    for event in written:
        event.agent_id = names[event.agent_id]
        event.cause = tuple(cause.replace("agent_001_c", "root_c") for cause in event.cause)
        if isinstance(event, TranscriptEntry):
            event.tool_call_id = event.tool_call_id and event.tool_call_id.replace("agent_001_c", "root_c")
            for call in event.tool_calls or ():
                call["id"] = call["id"].replace("agent_001_c", "root_c")
    assert list(written[1:]) == list(told[1:])
    assert 1 == sum(isinstance(event, PieceOfText) for event in told)


def test_calls_are_ops(root):
    """Model calls and tool calls stand in the tree as ops of the agent that made them, with tokens, in turns of its own."""
    talk(root)
    asyncio.run(root.response())
    found = [(session.agent_id, op.kind, op.name, op.status) for session, _, op in optree.walk_ops(root.session.home._root.tree.session)]
    assert [("Jack", "llm", "scripted:model", "ok")] == [one for one in found if one[0] == "Jack"]
    assert ["task", "task", "discuss"] == [name for agent, kind, name, _ in found if (agent, kind) == ("root", "tool")]
    totals = root.session.home._root.node.totals
    assert (3, 15, 6) == (totals.llm_requests, totals.input_tokens, totals.output_tokens)


def test_failing_model(root):
    """A model that fails ends its op and its turn as failed, and the error is the program's."""

    async def fail(*_):
        raise ConnectionError("no server")

    fail.name = "m"
    root.model = fail
    with pytest.raises(ConnectionError):
        asyncio.run(root.response())
    [(_, turn, op)] = optree.walk_ops(root.session.home._root.tree.session)
    assert ("failed", "failed") == (turn.status, op.status)


def test_agents_outlive_turns(root):
    """An agent that waits when its parent's turn ends was not cancelled; when it speaks again, another session goes on with it."""
    builder = root.session.home._root
    turn = builder.begin_turn(user="one")
    talk(root)
    turn.end()
    assert {"ok"} == {session.status for path, session in sessions(root).items() if path}
    with_next = builder.begin_turn(user="two")
    asyncio.run(root.discuss("Again", ["Jack"]))
    again = sessions(root)["2.2"]
    assert ("1.2", {"agentId": "agent_001"}) == (again.attributes["continues"], again.attributes["conversation"])
    jack = root.subagents["Jack"]
    assert jack.transcript == root.session.transcript("agent_001")
    with_next.end()


def test_evict_and_revive(root):
    """An agent that is evicted has its session ended, and comes back with its transcript (S1-32, S1-33)."""
    jack = talk(root).subagents["Jack"]
    root.session.evict("agent_001")
    assert "ok" == sessions(root)["1.2"].status
    again = root.session.revive("agent_001")
    assert (True, jack.transcript, ["Jill"]) == (again is not jack, again.transcript, list(root.subagents))
    again.harken("back")
    assert "back" == root.session.transcript("agent_001")[-1]["content"]


def test_refuses_both_links(root):
    """In a tree as in a file, substance and cause together are refused (S1-12)."""
    with pytest.raises(SetupError):
        root.session.log_transcript_entry("root", {"role": "user", "content": "x"}, "msg_001", cause="msg_002")


def test_unknown_agent(root):
    """An entry of an agent whose creation was not logged gets a session all the same, below the root."""
    session = root.session
    session.log_transcript_entry("stranger", {"role": "user", "content": "Hi"})
    assert [{"role": "user", "content": "Hi"}] == session.transcript("stranger")
    assert "stranger" in {one.agent_id for one in sessions(root).values()}


def test_goes_on_with_plain_messages():
    """A conversation in a session that has messages already goes on with them: they are the root's transcript."""
    builder = optree.SessionTreeBuilder("root")
    builder.append_message({"role": "system", "content": "Be brief."})
    root, session = load_traced(Handle(builder))
    assert [{"role": "system", "content": "Be brief."}] == root.transcript
    root.harken("Hi")
    assert ["Be brief.", "Hi"] == [message["content"] for message in session.transcript("root")]
    assert "msg_001" == [message.id for message in builder.node.messages][-1]


def test_two_conversations_in_one_tree():
    """Conversations in two sub-agents of one run, at once, give no message and no agent id twice, and each lists its own agents."""
    top = optree.SessionTreeBuilder("top")
    turn = top.begin_turn()
    both = []
    for name in ("left", "right"):
        builder = top.attach_child_session(top.begin_op("session", name, turn=turn), name)
        both.append(load_traced(Handle(builder), lambda *given: restored(*given, model=Scripted())))
    for _ in range(2):
        for root, _ in both:
            talk(root)
    assert [["left", "Jack", "Jill"], ["right", "Jack", "Jill"]] == [
        [record.label for record in session.list_agents().values()][:3] for _, session in both
    ]
    ids = [message.id for session in optree.walk_sessions(top.tree.session) for message in session.messages]
    agents = [
        one.attributes["conversation"].get("messageId")
        for one in optree.walk_sessions(top.tree.session)
        if "conversation" in one.attributes
    ]
    ids += [one for one in agents if one is not None]
    assert len(ids) == len(set(ids))
    third = Session.traced(top)
    assert third.log_transcript_entry("top", {"role": "user", "content": "x"}) not in ids


def test_root_id_is_the_roots_alone():
    """In a session whose turn is open the root begins empty and is logged, and the first sub-agent has an id of its own."""
    builder = optree.SessionTreeBuilder("boss")
    builder.begin_turn(user="go")
    assert "agent_001" == Session.traced(builder).allocate_agent_id()
    root, session = load_traced(Handle(builder))
    assert ("boss", []) == (root.agent_id, root.transcript)
    root.create("Jack", "You are Jack.")
    assert ["boss", "agent_002"] == [record.agent_id for record in session.list_agents().values() if record.message_id]
    assert ([], ["You are Jack."]) == (session.transcript("boss"), [one["content"] for one in session.transcript("agent_002")])


def test_order_where_the_clock_stands():
    """Where the clock stands still, messages keep the order in which they came, whether they have ids or not."""
    builder = optree.SessionTreeBuilder("root", now=lambda: 5.0)
    builder.append_message({"role": "system", "content": "first"})
    root, session = load_traced(Handle(builder))
    root.harken("second")
    builder.append_message({"role": "user", "content": "third"})
    root.create("Jack", "to Jack")
    root.harken("fourth")
    assert ["first", "second", "third", "fourth"] == [message["content"] for message in session.transcript("root")]
    told = [getattr(event, "content", event.agent_id) for event in session.events()]
    assert ["first", "second", "third", "agent_001", "to Jack", "fourth"] == told[1:]


class UnprintableError(Exception):
    """An error whose own code raises."""

    def __repr__(self):
        raise RuntimeError("repr broke")

    __str__ = __repr__


def test_error_without_text_is_the_programs(root):
    """An error whose text raises reaches the program as it is, and ends the turn and the op as failed."""
    session = root.session
    with pytest.raises(UnprintableError), session.turn("root"), session.op("root", "tool", "x"):
        raise UnprintableError
    [(_, turn, op)] = optree.walk_ops(session.home._root.tree.session)
    assert ("failed", "failed") == (turn.status, op.status)
    assert "UnprintableError" in op.error


def test_cancelled_call_is_cancelled(root):
    """A cancelled call is recorded as cancelled, and neither it nor the sub-agent that it broke off as well done."""
    root.harken("go")
    asyncio.run(root.act(("task", {"name": "Jack"}), ("task", {"name": "Jill"})))
    builder = root.session.home._root
    turn = builder.begin_turn(user="x")

    async def cancelled(*_):
        raise asyncio.CancelledError

    root.subagents["Jack"].model = cancelled
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(root.discuss("Hi", ["Jack"], ["Jill"]))
    turn.end("cancelled")
    assert {("root", None), ("Jack", "cancelled"), ("Jill", "ok")} == {
        (session.agent_id, session.status if session.path else None) for path, session in sessions(root).items() if path[:1] != "1"
    }
    found = {(op.name, op.status) for _, turn, op in optree.walk_ops(builder.tree.session) if turn.path[:1] == "2"}
    assert {("discuss", "cancelled"), ("scripted:model", "cancelled"), ("Jack", "cancelled"), ("Jill", "ok")} == found


def test_open_work_is_not_well_done(root):
    """A sub-agent whose call is open when its parent's turn is cancelled was cancelled."""
    builder = root.session.home._root
    turn = builder.begin_turn(user="x")
    root.create("Jack", "You are Jack.")
    jack = root.session.home._builder("agent_001")
    jack.begin_turn()
    jack.begin_op("llm", "m")
    turn.end("cancelled")
    assert "cancelled" == sessions(root)["1.1"].status


def run(tmp_path, *command):
    """Run a command with sessions of its own; returns its exit code and the shapes that it printed."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OPTREE_BASE_DIR": str(tmp_path / "base")}
    done = subprocess.run(
        [sys.executable, *map(str, command)], env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def test_kill_and_load(tmp_path):
    """A traced session that is killed and loaded gives back its agents, transcripts and counters, and goes on (S0-01, S0-67, S1-20)."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    code, [empty, killed] = run(tmp_path, program, "kill")
    assert (-9, [], {}) == (code, empty["transcript"], empty["subagents"])
    directory = optree.Directory.of(tmp_path / "base")
    before = Session.traced(optree.SessionTreeBuilder.over(optree.SessionTreeBuilder("x").core, optree.load("last", directory).session))
    assert "msg_019" == before.log_transcript_entry("root", {"role": "user", "content": "only here"})
    assert "agent_003" == before.allocate_agent_id()

    code, [loaded, after] = run(tmp_path, "-m", "optree", "load", "last", "--", sys.executable, program, "go")
    assert (0, killed) == (code, loaded)
    assert len(killed["subagents"]["Jack"]["transcript"]) < len(after["subagents"]["Jack"]["transcript"])
    saved = optree.load("last", directory)
    ids = [message.id for session in optree.walk_sessions(saved.session) for message in session.messages]
    assert len(ids) == len(set(ids))
    assert ("clean", "ok") == (saved.damage.state, saved.session.status)
    assert {"root", "Jack", "Jill"} == {session.agent_id for session in optree.walk_sessions(saved.session)}
