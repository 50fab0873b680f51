"""Switched off, optree records nothing and costs next to nothing, and the program runs as it does with it."""

import asyncio
import json
import os
import subprocess
import sys
import threading

import pytest

import optree
from optree._tracing.runtime import RUNTIME
from optree.exporting import begin_session, forget_session
from optree.testing import capture, shape
from tests.tracing.conftest import LONG

PROGRAM = """
    import asyncio, contextlib, json

    @optree.session(agent="lead")
    def lead(question):
        optree.current_session().title("a question")
        with optree.turn(user=question), optree.llm(provider="openai", model="gpt-4o") as op:
            op.request(messages=[{"role": "user", "content": question}])
            op.think("hm")
            op.account(input_tokens=12, output_tokens=3, cost_usd=0.1)
            op.response("because")
        with contextlib.ExitStack() as stack:
            stack.enter_context(optree.tool("page")).log("read")
        return [plain(1), asyncio.run(awaited(2)), list(pieces(3)), asyncio.run(collected(4)), optree.wrap(plain)(5), Page().fetch(6)]

    @optree.tool
    def plain(number):
        optree.current().log("called", severity="WRN")
        return number

    @optree.llm(provider="openai", model="gpt-4o")
    async def awaited(number):
        async with optree.tool("inner", provider="mcp") as op:
            op.log("inside")
        optree.current().chunk("text")
        return number

    @optree.tool("pieces")
    def pieces(number):
        got = yield number
        yield got
        return "done"

    @optree.tool()
    async def numbers(number):
        yield number
        yield number + 1

    async def collected(number):
        return [one async for one in numbers(number)]

    class Page:
        @optree.tool
        @classmethod
        def fetch(cls, number):
            return number

    @optree.turn
    def failing():
        raise KeyError("mine")

    said = lead("why?")
    try:
        failing()
    except KeyError as error:
        said.append(repr(error))
    try:
        with optree.session("child"), optree.tool("broken"):
            raise ValueError("theirs")
    except ValueError as error:
        said.append(repr(error))
    said += [optree.instrument(), optree.flush(), optree.flush("sync"), optree.flush("snapshot"), optree.flush("export", 0.1)]
    said += [optree.health()["ok"], optree.health()["problems"], type(optree.child_env()).__name__]
    optree.uninstrument()
    print(json.dumps(said))
"""
WATCHED = """
import atexit, os, sys
seen = []
sys.addaudithook(lambda event, given: seen.append(event) if event in ("_thread.start_new_thread", "os.mkdir", "os.fork") else None)
atexit.register(lambda: print(seen, "optree_otel" in sys.modules))
import optree
"""
RUN = '''
def run(coroutine):
    """Run what waits for nothing, without the threads and files of a loop."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return stop.value
'''
AS_IF_ON = [1, 2, [3, None], [4, 5], 5, 6, "KeyError('mine')", "ValueError('theirs')", [], True, True, True]


def test_program_runs_as_with_it(finished):
    """All that a program uses gives what it gives while optree is on, and goes on without an error."""
    on = finished(PROGRAM, env={"OPTREE_CONSOLE": "0"})
    off = finished(PROGRAM, env={"OPTREE_CONSOLE": "0", "OPTREE_DISABLED": "1"})
    assert (0, "") == (on[0], on[2])
    assert on == off
    assert [*AS_IF_ON, True, True, [], "dict"] == json.loads(on[1])


@pytest.mark.parametrize("value", ["1", "true", "YES", "on"])
def test_nothing_is_left_behind(finished, tmp_path, value):
    """Switched off by the environment, a program has no thread, directory, line or exporter of optree's."""
    env = {"OPTREE_DISABLED": value, "OPTREE_VERBOSE": "1", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9", "OPTREE_AUTO": "1"}
    code, out, err = finished(PROGRAM.replace("asyncio.run(", "run("), env=env, head=WATCHED + RUN)
    assert (0, "[] False", "") == (code, out.splitlines()[-1], err)
    assert not (tmp_path / "base").exists()


@pytest.mark.parametrize("value", ["", "0", "no", "false"])
def test_other_values_leave_it_on(monkeypatch, value):
    """A variable that does not say so switches nothing off."""
    monkeypatch.setenv("OPTREE_DISABLED", value)
    RUNTIME.__init__()
    assert (True, True) == (optree.configure().enabled, optree.health()["enabled"])


def test_what_is_open_goes_on_to_its_end(directory):
    """Switched off during a run, what is open is recorded to its end, with what its handles are told; what begins later is not."""

    @optree.tool
    def later():
        return 1

    with optree.session("lead"), optree.turn(user="why?"), optree.tool("open") as op:
        optree.configure(enabled=False)
        op.log("still here")
        with optree.llm("unseen") as unseen, optree.session("child") as child:
            unseen.account(input_tokens=5)
            assert optree.current() is op
        assert (1, [], "unrecorded") == (later(), child.history(), child.txn)
    with optree.session("another"):
        later()
    assert optree.flush("snapshot", LONG)
    [saved] = directory.saved()
    tree = optree.load(saved.txn, directory)
    assert ("lead", "ok", ("turn 1", "ok", ("tool open", "ok"))) == shape(tree)
    assert [["still here"]] == [[entry.message for entry in op.logs] for _, _, op in optree.walk_ops(tree)]
    assert 0 == tree.session.totals.input_tokens


def test_generator_that_is_open_goes_on(recording):
    """A generator that was begun while optree was on is recorded to its last item."""

    @optree.tool
    def pages():
        yield 1
        yield 2

    with optree.session("lead"):
        running = pages()
        first = next(running)
        optree.configure(enabled=False)
        assert [1, 2] == [first, *running]
    assert ("lead", "ok", ("turn 1", "ok", ("tool pages", "ok"))) == shape(recording)
    [(_, _, op)] = optree.walk_ops(recording)
    assert b"[1,2]" == bytes(op.response.payload)


def test_switched_on_again():
    """What was decorated while optree was off is recorded once it is on."""
    optree.configure(enabled=False)

    @optree.session("lead")
    def lead():
        return [plain(), asyncio.run(named()), turned()]

    @optree.tool
    def plain():
        return 1

    @optree.llm(provider="openai", model="gpt-4o")
    async def named():
        return 2

    @optree.turn(user="why?")
    def turned():
        with optree.tool("inner", provider="mcp"):
            return 3

    assert [1, 2, 3] == lead()
    with capture() as recording:
        lead()
    assert not optree.configure().enabled
    inside = ("turn 1", "ok", ("tool plain", "ok"), ("llm openai:gpt-4o", "ok")), ("turn 2", "ok", ("tool mcp:inner", "ok"))
    assert ("lead", "ok", *inside) == shape(recording)


def test_scope_made_before_is_not_recorded(recording):
    """A context manager that was made while optree was on records nothing when it is entered later, and something when on again."""
    step = optree.tool("step")
    with optree.session("lead"):
        optree.configure(enabled=False)
        with step as unseen:
            unseen.log("nobody reads this")
        optree.configure(enabled=True)
        with step:
            pass
    assert ("lead", "ok", ("turn 1", "ok", ("tool step", "ok"))) == shape(recording)


def test_current_takes_everything_outside_of_all_sessions(recording):
    """Switched off, the current op and session are there, and take what a decorated function tells them; switched on, there are none."""
    optree.configure(enabled=False)
    op, session = optree.current(), optree.current_session()
    op.log("nowhere")
    op.account(input_tokens=1)
    session.message("nowhere")
    assert ([], [], False) == (session.history(), recording.sessions, session.resumed)
    optree.configure(enabled=True)
    assert (None, None) == (optree.current(), optree.current_session())


def test_other_tracers_sessions(directory):
    """What another tracer begins by `begin_session` is not recorded either."""
    optree.configure(enabled=False)
    session = begin_session("theirs", {})
    turn = session.builder.begin_turn(user="why?")
    session.builder.begin_op("llm", "chat", turn=turn).end()
    session.builder.end_session()
    forget_session(session.txn)
    assert (0, []) == (optree.health()["records"], directory.saved())


def test_misuse_is_said_all_the_same():
    """What is refused while a program is set up is refused while optree is off, too."""
    optree.configure(enabled=False)
    with pytest.raises(optree.SetupError, match="give True or False"):
        optree.configure(enabled="no")
    with pytest.raises(optree.SetupError, match="use @turn on a function"):
        optree.turn("why?")
    with pytest.raises(optree.SetupError, match="decorate its method"):
        optree.tool("x")(dict)


@pytest.mark.parametrize(("variable", "enabled", "expected"), [(None, False, "1"), ("1", True, "0"), ("1", False, "1"), (None, True, None)])
def test_children_are_told(monkeypatch, variable, enabled, expected):
    """Child processes are switched off, or on, as this one is, whatever the environment said."""
    with monkeypatch.context() as environment:
        if variable is not None:
            environment.setenv("OPTREE_DISABLED", variable)
        RUNTIME.__init__()
        optree.configure(enabled=enabled)
        assert expected == optree.child_env().get("OPTREE_DISABLED")


def test_child_of_an_open_session_records_nothing(directory):
    """A child that is started after the switch adds nothing to the session that is open, and runs."""
    with optree.session("lead"):
        optree.configure(enabled=False)
        source = "import optree\nwith optree.session('child'), optree.tool('x'): print(1)"
        command = [sys.executable, "-c", source]
        done = subprocess.run(command, env=optree.child_env(), capture_output=True, text=True, timeout=LONG, check=False)
    assert (0, "1\n", "") == (done.returncode, done.stdout, done.stderr)
    optree.flush("snapshot", LONG)
    assert ("lead", "ok", ("turn 1", "ok")) == shape(optree.load("last", directory))


def test_resume_waits_for_a_session_that_is_recorded(finished, directory):
    """A program that is to resume a session and is switched off leaves it as it is."""
    code, out, _ = finished("with optree.session('lead') as session:\n    print(session.txn, flush=True)\n    os._exit(1)")
    assert 1 == code
    code, out, err = finished(
        "with optree.session('lead') as s: print(s.resumed)", env={"OPTREE_RESUME": out.strip(), "OPTREE_DISABLED": "1"}
    )
    assert (0, "False\n", "") == (code, out, err)
    assert ("lead", None) == shape(optree.load("last", directory))


def test_switched_by_another_thread(recording):
    """Threads that are inside their ops while another switches off and on end each op exactly once."""
    inside, go_on = threading.Barrier(9), threading.Event()

    def work():
        with optree.tool("work"):
            inside.wait(LONG)
            assert go_on.wait(LONG)
            with optree.tool("unseen"):
                pass

    with optree.session("lead"):
        threads = [threading.Thread(target=optree.wrap(work)) for _ in range(8)]
        for thread in threads:
            thread.start()
        inside.wait(LONG)
        optree.configure(enabled=False)
        go_on.set()
        for thread in threads:
            thread.join()
    assert 8 * [("tool work", "ok")] == list(shape(recording)[2][2:])


def test_forked_child():
    """A fork of a program that is switched off is switched off."""
    optree.configure(enabled=False)
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        with optree.session("child"):
            os.write(write, json.dumps([optree.health()["records"], optree.health()["enabled"]]).encode())
        os._exit(0)
    os.close(write)
    assert 0 == os.waitpid(pid, 0)[1]
    assert [0, False] == json.loads(os.read(read, 1000))
    os.close(read)
