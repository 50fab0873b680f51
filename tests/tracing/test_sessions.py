import os
import sys
import time
from collections import Counter
from contextlib import ExitStack

import pytest

import optree
from optree._providers.messages import NO_RESULT, answered
from optree._store.ledger import Ledger
from optree._tree import walk_sessions
from optree.testing import shape

ASKED = {"role": "assistant", "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "search", "arguments": "{}"}}]}
LOST = {"role": "tool", "tool_call_id": "c1", "content": NO_RESULT}


def test_root(saved):
    """A root session has names, ids, times and what started it, from the first moment and in the file (S4-69, S4-71, S4-76, S4-77)."""
    before = time.time() * 1e3
    with optree.session(agent="researcher") as session:
        assert session is optree.current_session()
        live = session.tree.session
        ingress = live.attributes["ingress"]
        loaded = saved().session
    assert optree.flush("snapshot", 60)
    for node in (live, loaded, saved().session):
        assert ("researcher", "researcher", session.txn, session.txn, None, "") == (
            node.agent_id, node.call_path, node.id, node.origin_txn_id, node.parent_txn_id, node.path,
        )  # fmt: skip
        assert before <= node.started_at <= time.time() * 1e3
        assert ingress == node.attributes["ingress"]
        assert live.trace_id == node.trace_id
    assert ({"argv0": sys.argv[0], "cwd": os.getcwd(), "pid": os.getpid()}, "cli") == (ingress["cli"], ingress["source"])  # noqa: PTH109
    assert (session.txn, "", "researcher", False) == (session.txn, session.path, session.agent, session.resumed)
    assert optree.current_session() is None


def test_begin_is_on_disk_at_once(directory):
    """What began is in the files before the call returns, without an end (S4-28, S4-29, S4-30)."""
    scopes = [optree.turn(user="why"), optree.llm("ask"), optree.tool("look"), optree.session("sub"), optree.turn(), optree.llm("deep")]
    with optree.session("root") as session, ExitStack() as stack:
        for scope in scopes:
            handle = stack.enter_context(scope)
            opened = optree.load(session.txn, directory).open_nodes()
            assert handle.path in [node.path for node in opened]
            assert {None} == {node.ended_at for node in opened}
            assert 0 < min(node.started_at for node in opened)


def test_sub_agent(recording):
    """A session inside another is a `session` op with the child's node in it, alive from its begin (S4-37, S4-38, S4-74)."""
    with optree.session("root") as root, optree.turn(), optree.session("sub") as sub:
        (op,) = root.tree.session.turns[0].ops
        assert op.child_session is sub.tree.session
        with optree.turn(user="deep"), optree.llm("ask") as ask:
            ask.account(input_tokens=5, cost_usd=0.25)
            assert (5, 5) == (sub.totals.input_tokens, root.totals.input_tokens)
            assert "ask" == root.tree.session.turns[0].ops[0].child_session.turns[0].ops[0].name
    assert ("session", "sub", "1.1", "ok") == (op.kind, op.name, op.path, op.status)
    child = op.child_session
    assert ("root->sub", "1.1", root.txn, root.txn) == (child.call_path, child.path, child.parent_txn_id, child.origin_txn_id)
    ingress = child.attributes["ingress"]
    assert ("sub-agent", {"parentTraceId": root.tree.session.trace_id, "parentCallPath": "root", "toolName": "sub"}) == (
        ingress["source"], ingress["subAgent"],
    )  # fmt: skip
    assert 1 == len(recording.sessions)


def test_nested_sub_agents(recording):
    """Sub-agents nest at any depth: paths, call paths and totals go up the whole chain (S4-38, S4-42, S4-57)."""
    depth = 12

    def go(level):
        with optree.session(f"a{level}") as session, optree.turn(), optree.llm("ask") as op:
            op.account(input_tokens=1)
            if level < depth:
                go(level + 1)
            assert depth - level + 1 == session.totals.input_tokens

    go(1)
    sessions = list(walk_sessions(recording.tree.session))
    assert ["->".join(f"a{n}" for n in range(1, level + 1)) for level in range(1, depth + 1)] == [one.call_path for one in sessions]
    assert [".".join(["1.2"] * level) for level in range(depth)] == [one.path for one in sessions]
    assert [sessions[level].id for level in range(depth - 1)] == [one.parent_txn_id for one in sessions[1:]]
    entries = optree.flatten(recording.tree.session).accounting
    assert depth == len({entry["id"] for entry in entries}) == len(entries)


def test_decorated_agents(recording):
    """Decorated agents that call each other make the tree, with their results as final reports."""

    @optree.tool
    def search(query):
        return query

    @optree.session
    def reader(query):
        with optree.turn(user=query):
            return search(query)

    @optree.session(agent="researcher")
    def research(question):
        with optree.turn(user=question):
            return [reader(question), reader(question)]

    assert ["why", "why"] == research("why")
    child = ("session reader", "ok", ("reader", "ok", ("turn 1", "ok", ("tool search", "ok"))))
    assert ("researcher", "ok", ("turn 1", "ok", child, child)) == shape(recording.tree)
    assert ["why", "why"] == optree._values.decode(recording.tree.session.final_report)


def test_title_status_and_transcript(recording):
    """A session takes a title and a status for people, and messages for its transcript."""
    with optree.session("root") as session:
        session.title("Why?")
        session.status("reading")
        session.message("why")
        session.message({"role": "assistant", "content": "because"})
    node = recording.tree.session
    assert ("Why?", "reading", ["user", "assistant"]) == (node.session_title, node.latest_status, [entry.role for entry in node.messages])
    assert [{"role": "user", "content": "why"}, {"role": "assistant", "content": "because"}] == session.history()


def test_end_closes_what_is_open(recording, ends):
    """The end of a session ends what is still open in it, once."""
    with optree.session("root") as session, optree.turn(), optree.tool("open"):
        session.builder.end_session("failed", "given up")
    assert ("root", "failed", ("turn 1", "failed", ("tool open", "failed"))) == shape(recording.tree)
    assert {("1.1", "failed"): 1} == ends()
    assert ("given up", False) == (recording.tree.session.error, recording.tree.session.success)


def test_history_from_calls(recording):
    """Without a transcript the history is that of the last LLM call, with its answer."""
    with optree.session("root") as session:
        assert [] == session.history()
        with optree.turn(), optree.llm("ask") as op:
            op.request(messages=[{"role": "user", "content": "why"}])
            assert [{"role": "user", "content": "why"}] == session.history()
            op.response("because")
        assert [{"role": "user", "content": "why"}, {"role": "assistant", "content": "because"}] == session.history()
        with optree.turn(), optree.llm("ask") as op:
            op.request(messages=[*session.history(), {"role": "user", "content": "and?"}])
            op.response(ASKED)
    assert [
        {"role": "user", "content": "why"},
        {"role": "assistant", "content": "because"},
        {"role": "user", "content": "and?"},
        ASKED,
        LOST,
    ] == session.history()
    assert recording.tree.session.messages == []


MINE = {"role": "user", "content": "Why?"}
SENT = {
    "text": lambda op: op.request("Why?"),
    "text by name": lambda op: op.request(messages="Why?"),
    "prompt": lambda op: op.request(prompt="Why?"),
    "input": lambda op: op.request(input="Why?", temperature=0),
    "list of input": lambda op: op.request(input=[MINE]),
    "texts": lambda op: op.request(messages=["Why?"]),
    "one message": lambda op: op.request(messages=MINE),
    "parameter": lambda _: None,
}


@pytest.mark.parametrize("how", SENT)
def test_history_of_calls_in_other_forms(how, recording):
    """What a call sent as text, or under another name than messages, is the question in the history, as one message."""

    @optree.llm
    def ask(prompt):
        return f"because of {prompt}"

    with optree.session("root") as session, optree.turn():
        if how == "parameter":
            ask("Why?")
        else:
            with optree.llm("ask") as op:
                SENT[how](op)
                op.response("because of Why?")
        assert [MINE, {"role": "assistant", "content": "because of Why?"}] == session.history()
    assert 1 == len(recording.tree.session.turns)


def test_history_of_geminis_contents(recording):
    """It has the contents as Gemini takes them."""
    contents = [{"role": "user", "parts": [{"text": "Why?"}]}]
    with optree.session("root") as session, optree.turn(), optree.llm("ask") as op:
        op.request(contents=contents)
        assert contents == session.history()
    assert "ok" == recording.tree.session.status


def result(call, content="found"):
    """Return a tool call's result."""
    return {"role": "tool", "tool_call_id": call, "content": content}


def use(*calls):
    """Return tool calls as blocks."""
    return {"role": "assistant", "content": [{"type": "tool_use", "id": call, "name": "search", "input": {}} for call in calls]}


def used(*calls, **more):
    """Return results as blocks."""
    return {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call, "content": "found"} | more for call in calls]}


ODD = ["text", None, {"tool_calls": None}, {"tool_calls": ["x"], "content": "y"}]
TWO = {"role": "assistant", "tool_calls": [{"id": "c1"}, {"id": "c2"}]}
HISTORIES = {
    "nothing": ([], []),
    "answered": ([ASKED, result("c1")], [ASKED, result("c1")]),
    "not answered": ([ASKED], [ASKED, LOST]),
    "not answered, gone on": ([ASKED, {"role": "user", "content": "go on"}], [ASKED, LOST, {"role": "user", "content": "go on"}]),
    "one of two": ([TWO, result("c2")], [TWO, LOST, result("c2")]),
    "answered twice": ([ASKED, result("c1"), result("c1", "again")], [ASKED, result("c1")]),
    "blocks, answered": ([use("c1"), used("c1")], [use("c1"), used("c1")]),
    "blocks, not answered": ([use("c1")], [use("c1"), used("c1", content=NO_RESULT, is_error=True)]),
    "blocks, one of two": ([use("a", "b"), used("b")], [use("a", "b"), used("a", content=NO_RESULT, is_error=True), used("b")]),
    "blocks, answered twice": ([use("c1"), used("c1"), used("c1")], [use("c1"), used("c1")]),
    "odd": (ODD, ODD),
}  # fmt: skip


@pytest.mark.parametrize("name", HISTORIES)
def test_history_is_ready_for_a_provider(name, recording):
    """Each tool call in a history has one result: a lost one says so, a second one is left out."""
    messages, expected = HISTORIES[name]
    assert expected == answered(messages)
    assert expected == answered(answered(messages))
    if name != "odd":
        with optree.session("root") as session:
            for message in messages:
                session.message(message)
        assert expected == session.history()
        assert len(messages) == len(recording.tree.session.messages)


AGENT = """
import json, signal

@optree.session(agent="sub")
def sub(name):
    session = optree.current_session()
    print(json.dumps(["sub", name, session.resumed, session.history()]))
    with optree.turn(user=name):
        session.message({"role": "user", "content": f"{name} of run {RUN}"})
        if name in DIES:
            os.kill(os.getpid(), signal.SIGKILL)
        inner(name)

@optree.session(agent="inner")
def inner(name):
    session = optree.current_session()
    print(json.dumps(["inner", name, session.resumed, session.history()]))
    session.message(f"inner {name} of run {RUN}")
    if f"inner {name}" in DIES:
        os.kill(os.getpid(), signal.SIGKILL)

@optree.session(agent="root")
def root():
    session = optree.current_session()
    print(json.dumps(["root", session.txn, session.resumed, session.history()]), flush=True)
    with optree.turn(user=f"run {RUN}"):
        session.message(f"root of run {RUN}")
        with optree.llm("ask") as op:
            op.account(input_tokens=1)
        for name in CALLS:
            sub(name)
    sys.stdout.flush()

root()
"""


@pytest.fixture
def run(finished):
    """Return a function that runs the agent once more, and gives what it printed and whether it was killed."""
    runs = []

    def again(calls, dies=(), txn=None):
        runs.append(0)
        head = f"import functools\nprint = functools.partial(print, flush=True)\nRUN, CALLS, DIES = {len(runs)}, {calls!r}, {dies!r}\n"
        code, out, err = finished(head + AGENT, env={"OPTREE_RESUME": txn} if txn else None)
        assert ("", -9 if dies else 0) == (err, code)
        return [optree._values.decode(line.encode()) for line in out.splitlines()]

    return again


def user(content):
    """Return what a user says."""
    return {"role": "user", "content": content}


def test_resume(run, saved):
    """A killed session resumes under its txn: paths go on, what was open is interrupted, the history is the old one (S4-30, S4-99)."""
    ((_, txn, resumed, history), _) = run(["a"], dies=["a"])
    assert (False, []) == (resumed, history)
    before = saved().session
    assert before.ended_at is None
    first, *_ = run([], txn=txn)
    assert ["root", txn, True, [user("root of run 1")]] == first
    loaded = saved()
    assert (txn, "ended", "clean", []) == (loaded.txn, loaded.state, loaded.damage.state, loaded.open_nodes())
    after = loaded.session
    assert (before.id, before.trace_id, before.started_at) == (after.id, after.trace_id, after.started_at)
    assert ["root of run 1", "root of run 2"] == [optree._values.decode(entry.body)["content"] for entry in after.messages]
    assert [("1", "interrupted", "run 1"), ("2", "ok", "run 2")] == [(turn.path, turn.status, turn.prompts["user"]) for turn in after.turns]
    interrupted = {op.path: op.status for _, _, op in optree.walk_ops(after)}
    assert {"1.1": "ok", "1.2": "interrupted", "2.1": "ok"} == interrupted
    assert ("ok", True, 2, 1) == (after.status, after.success, after.totals.input_tokens, len(after.resumed_at))


def test_resume_again_and_again(run, saved, directory):
    """A session may be resumed any number of times; each entry is billed once."""
    txn = run(["a"], dies=["a"])[0][1]
    for _ in range(3):
        run(["a"], dies=["a"], txn=txn)
    run([], txn=txn)
    run([], txn=txn)
    session = saved().session
    assert ["1", "2", "3", "4", "5", "6"] == [turn.path for turn in session.turns]
    assert (6, 5) == (session.totals.llm_requests, len(session.resumed_at))
    lines = directory.billing.read_text().splitlines()
    assert 6 == len(lines) == len({optree._values.decode(line.encode())["id"] for line in lines})


def test_interrupted_sub_agents_history_goes_to_its_successor(run, saved):
    """A sub-agent that was cut off hands its history to the next of its name, and only to that one (S4-99)."""
    txn = run(["a"], dies=["a"])[0][1]
    _, *subs = run(["a", "b"], txn=txn)
    assert [
        ["sub", "a", True, [user("a of run 1")]],
        ["inner", "a", False, []],
        ["sub", "b", False, []],
        ["inner", "b", False, []],
    ] == subs
    first, second, third = (op.child_session for _, _, op in optree.walk_ops(saved().session) if op.name == "sub")
    assert (None, first.path, None) == tuple(one.attributes.get("continues") for one in (first, second, third))
    assert ("interrupted", "ok", "ok") == (first.status, second.status, third.status)


def test_interrupted_deep_down(run):
    """A sub-agent of a sub-agent that was cut off hands its history on too."""
    txn = run(["a"], dies=["inner a"])[0][1]
    _, *subs = run(["a"], txn=txn)
    assert [["sub", "a", True, [user("a of run 1")]], ["inner", "a", True, [user("inner a of run 1")]]] == subs


def test_interrupted_twice(run):
    """A sub-agent that is cut off in two runs has the history of both in the third."""
    txn = run(["a"], dies=["a"])[0][1]
    run(["a"], dies=["a"], txn=txn)
    _, sub, *_ = run(["a"], txn=txn)
    assert ["sub", "a", True, [user("a of run 1"), user("a of run 2")]] == sub


def test_interrupted_at_once(finished):
    """Of sub-agents that ran at once and were all cut off, each successor gets another's history, in order."""
    agent = """
        import asyncio, json
        @optree.session(agent="sub")
        async def sub(name):
            session = optree.current_session()
            print(json.dumps([name, session.history()]), flush=True)
            session.message(name)
            await asyncio.sleep(0)
            if "OPTREE_FIRST" in os.environ and name == "c":
                os._exit(9)
            await asyncio.sleep(0.01)
        async def main():
            with optree.session("root") as session, optree.turn():
                print(session.txn)
                await asyncio.gather(*map(sub, "abc"))
        asyncio.run(main())
    """
    code, out, _ = finished(agent, env={"OPTREE_FIRST": "1"})
    txn, *_ = out.split()
    assert 9 == code
    code, out, err = finished(agent, env={"OPTREE_RESUME": txn})
    assert (0, "") == (code, err)
    assert [[name, [user(name)]] for name in "abc"] == [optree._values.decode(line.encode()) for line in out.splitlines()[1:]]


def test_resumed_call_without_its_result(finished):
    """A resumed agent whose tool call was cut off gets a history that a provider takes (S4-99)."""
    agent = """
        import json
        with optree.session("root") as session:
            print(json.dumps(session.history()))
            print(session.txn)
            if not session.resumed:
                session.message("why")
                session.message({"role": "assistant", "tool_calls": [{"id": "c1"}]})
                sys.stdout.flush()
                os.abort()
    """
    _, out, _ = finished(agent)
    history, txn = out.splitlines()
    assert "[]" == history
    code, out, _ = finished(agent, env={"OPTREE_RESUME": txn})
    asked = {"role": "assistant", "tool_calls": [{"id": "c1"}]}
    assert (0, [user("why"), asked, LOST], txn) == (code, optree._values.decode(out.splitlines()[0].encode()), out.splitlines()[1])


def test_resume_is_for_the_first_session_that_is_meant(finished, directory):
    """A call without a session does not use up what was to be resumed; the first root session does, and no child process (S4-99)."""
    code, out, _ = finished("with optree.session('root') as session:\n    print(session.txn)")
    txn = out.strip()
    code, out, err = finished(
        """
        import subprocess
        with optree.tool("set up"):
            pass
        with optree.session("root") as session:
            print(session.txn, session.resumed)
            subprocess.run([sys.executable, "-c", "import optree\\nwith optree.session('other'): pass"], check=True)
        with optree.session("root") as session:
            print(session.resumed)
        """,
        env={"OPTREE_RESUME": txn},
    )
    assert (0, "", [f"{txn} True", "False"]) == (code, err, out.splitlines())
    assert 4 == len(directory.saved())


def test_resume_by_another_agent_is_said(finished):
    """A session that goes on under another agent's name says so, once."""
    _, out, _ = finished("with optree.session('one') as session:\n    print(session.txn)")
    code, _, err = finished("with optree.session('two'): pass", env={"OPTREE_RESUME": out.strip()})
    assert (0, f"optree: session {out.strip()} was begun by agent one, and goes on with two\n") == (code, err)


def test_resume_of_what_is_not_there(finished):
    """A session that cannot be resumed is misuse: the error names those that there are."""
    _, out, _ = finished("with optree.session('root') as session:\n    print(session.txn)")
    code, _, err = finished("with optree.session('root'): pass", env={"OPTREE_RESUME": "nothing"})
    assert 1 == code
    assert "optree.errors.SetupError: cannot resume: no session 'nothing' in" in err
    assert out.strip() in err


@pytest.mark.skipif(sys.platform == "win32", reason="no limit of a file's size there")
def test_resume_on_a_full_disk(finished):
    """A disk without room is said with the file, and what to do, in one traceback."""
    _, out, _ = finished("with optree.session('root') as session:\n    print(session.txn)")
    full = "import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))\nwith optree.session('root'): pass"
    code, _, err = finished(full, env={"OPTREE_RESUME": out.strip(), "OPTREE_CONSOLE": "0"})
    assert (1, 1) == (code, err.count("Traceback"))
    *_, last = err.splitlines()
    assert last.startswith("optree.errors.SetupError: cannot resume: ")
    assert last.endswith(": File too large; mend that and start again, or begin a new session without OPTREE_RESUME")


def test_resume_of_what_is_being_written(script, finished):
    """A session that another process writes is not resumed: the error says to wait (S4-99)."""
    process = script("with optree.session('root') as session:\n    print(session.txn, flush=True)\n    sys.stdin.read()", stdin=-1)
    txn = process.stdout.readline().strip()
    code, _, err = finished("with optree.session('root'): pass", env={"OPTREE_RESUME": txn})
    assert (1, True) == (code, f"cannot resume: session {txn} is being written by another process" in err)
    process.communicate("", timeout=30)


def test_what_comes_after_a_sessions_end_is_saved_and_billed(directory):
    """A generator is read on after its session's end, and the process goes on: a flush saves and bills that too, and removes its files."""

    @optree.tool
    def reads_on():
        while True:
            with optree.llm(provider="openai", model="m") as op:
                op.account(cost_usd=1.0)
            yield

    reading = []
    for _ in range(20):
        with optree.session("lead") as session:
            reading.append(reads_on())
            next(reading[-1])
    assert optree.flush("snapshot", 60)
    for generator in reading:
        next(generator)
        generator.close()
    assert optree.flush("snapshot", 60)
    assert [] == [saved.live for saved in directory.saved() if saved.live]
    billed = Counter(entry["originTxnId"] for entry in Ledger(directory.billing).read() if entry["type"] == "llm")
    assert {2} == set(billed.values())
    assert 2.0 == optree.load(session.txn, directory).session.totals.cost_usd
