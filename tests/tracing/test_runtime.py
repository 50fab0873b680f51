import contextvars
import functools
import os
import re
import signal
import threading
from pathlib import Path
from time import monotonic, sleep

import pytest

import optree
from optree._background import Job
from optree._store import Directory, SessionStore
from optree._store.upkeep import SAVING
from optree._syscalls import calls
from optree._tracing import runtime as runtime_module
from optree._tracing.runtime import ENDED_SESSIONS, EXIT_SECONDS, ROOM_SECONDS

LONG = 60.0
SLACK = 10.0  # seconds; a machine may be busy, and what hangs here hangs for ever (benchmarks/exits.py measures the promise itself)

AGENT = """
    import signal
    @optree.session(agent="root")
    def agent():
        with optree.turn(user="go"):
            with optree.llm(provider="p", model="m") as op:
                op.request(messages=[{"role": "user", "content": "go"}])
                op.account(input_tokens=3, output_tokens=4, cost_usd=0.25)
                op.response("fine")
            optree.current_session().message("transcript")
            with optree.tool("last") as op:
                op.log("acknowledged")
                op.think("too")
                assert optree.flush()
                print("result", flush=True)
                WAY
    agent()
"""
ENDS = {
    "return": ("pass", 0, "ok", "ok"),
    "sys.exit": ("sys.exit()", 0, "ok", "ok"),
    "sys.exit(3)": ("sys.exit(3)", 3, "failed", "failed"),
    "exception": ("raise ValueError('bad')", 1, "failed", "failed"),
    "SIGINT": ("os.kill(os.getpid(), signal.SIGINT)", -signal.SIGINT, "cancelled", "cancelled"),
    "SIGTERM": ("os.kill(os.getpid(), signal.SIGTERM)", -signal.SIGTERM, None, None),
    "os._exit": ("os._exit(7)", 7, None, None),
    "SIGKILL": ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL, None, None),
    "os.abort": ("os.abort()", -signal.SIGABRT, None, None),
}


@pytest.mark.parametrize("way", ENDS)
def test_exit_matrix(way, finished, saved):
    """However the process ends, it ends as it would untraced; the session loads with all that was acknowledged (S4-30, S4-31, S4-133)."""
    source, expected, session_status, op_status = ENDS[way]
    code, out, _ = finished(AGENT.replace("WAY", source))
    assert (expected, "result\n") == (code, out)
    loaded = saved()
    root = loaded.session
    ask, last = root.turns[0].ops
    assert (session_status, session_status, op_status, "ok") == (root.status, root.turns[0].status, last.status, ask.status)
    assert ("ended" if session_status else "interrupted", "clean") == (loaded.state, loaded.damage.state)
    assert (["acknowledged"], ["too"]) == ([entry.message for entry in last.logs], [chunk.text for chunk in last.reasoning.chunks])
    assert (3, 4, 0.25) == (root.totals.input_tokens, root.totals.output_tokens, root.totals.cost_usd)
    assert [{"role": "user", "content": "transcript"}] == [optree._values.decode(entry.body) for entry in root.messages]
    request = loaded.tree.pool.resolve(optree._values.decode(ask.request.payload))
    assert ([{"role": "user", "content": "go"}], b'"fine"') == (request["messages"], bytes(ask.response.payload))
    assert [] == loaded.open_nodes() if session_status else 3 == len(loaded.open_nodes())


@pytest.mark.parametrize("way", ["return", "sys.exit(3)"])
def test_stdout_and_exit_code_are_the_programs(way, finished):
    """Traced or not, at any verbosity, stdout is the program's alone and the exit code its own (S4-118)."""
    source, expected, *_ = ENDS[way]
    environ = {"OPTREE_VERBOSE": "1", "OPTREE_TRACE_LLM": "1", "OPTREE_TRACE_TOOLS": "1"}
    code, out, err = finished(AGENT.replace("WAY", source), env=environ)
    assert (expected, "result\n") == (code, out)
    assert 8 < len(err.splitlines())
    assert [] == [line for line in err.splitlines() if not re.match(r"\[txn:[^]]+\] \[path:[0-9.]*\] root \[[A-Z]{3}\] [→←] ", line)]


def test_stderr_has_warnings_and_errors_only(finished):
    """By default stderr has the lines of warnings and errors, and nothing of a run that went well (S4-118)."""
    assert (0, "result\n", "") == finished(AGENT.replace("WAY", "op.log('x'); op.log('y', 'TRC')"))
    _, _, err = finished(AGENT.replace("WAY", "op.log('w', 'WRN'); op.log('e', 'ERR'); op.log('v')"))
    assert ["[WRN]", "[ERR]"] == re.findall(r"\[(?:WRN|ERR|VRB)\]", err)


@pytest.mark.parametrize("console", [True, False], ids=["console", "no console"])
@pytest.mark.parametrize("more", ["", "\n    with optree.session('next'): pass"], ids=["at exit", "before"])
def test_what_is_wrong_with_a_figure_is_said_once(finished, console, more):
    """What `account` could not take stands on stderr once: as a log line, or without a console at the end; `health` has it as well."""
    source = AGENT.replace("WAY", "op.account(1200, 64); op.account(input_tokens='x')") + more
    code, _, err = finished(source, env={"OPTREE_CONSOLE": str(int(console))})
    assert (0, 1, 1) == (code, err.count("account() takes figures by name"), err.count("input_tokens='x' is no count"))
    assert console == ("[WRN]" in err)


TIMED = """
import atexit, os, sys, threading, time
seconds = []
atexit.register(lambda: print(time.perf_counter() - seconds[0]))
import optree
atexit.register(lambda: seconds.append(time.perf_counter()))
"""
BUSY = {
    "nothing": "",
    "one session": "with optree.session('a'), optree.turn(), optree.tool('b'): pass",
    "many sessions": "for n in range(8):\n    with optree.session('a'), optree.turn(), optree.tool('b') as op: op.log('c')",
    "large session": """
with optree.session('a'), optree.turn():
    for n in range(3_000):
        with optree.tool('b') as op:
            op.request(text=str(n) * 500)
            op.log('c')
""",
    "open session": "optree.session('a').__enter__()\noptree.turn().__enter__()\noptree.tool('b').__enter__().log('c')",
    "running thread": """
def work():
    while True:
        with optree.tool('b') as op:
            op.log('c')
with optree.session('a'), optree.turn():
    threading.Thread(target=optree.wrap(work), daemon=True).start()
    time.sleep(0.05)
""",
    "disk that hangs": """
from optree._store.files.system import OS
OS.unlink = lambda *given: time.sleep(60)
for n in range(32):
    with optree.session('a'), optree.turn(), optree.tool('b') as op: op.log('c')
""",
    "stderr that nobody reads": """
reader, writer = os.pipe()
os.dup2(writer, 2)
with optree.session('a'), optree.turn(), optree.tool('b') as op:
    for n in range(2_000):
        op.log('c' * 100, 'WRN')
""",
}


@pytest.mark.parametrize("what", BUSY)
def test_exit_is_not_delayed(what, finished):
    """Whatever is pending, the end of the process waits for optree 0.25 seconds at most."""
    code, out, _ = finished(BUSY[what], head=TIMED)
    assert 0 == code
    assert EXIT_SECONDS + SLACK > float(out)


@pytest.mark.parametrize("what", ["large session", "open session"])
def test_what_is_not_saved_at_exit_is_in_the_journal(what, finished, saved):
    """A snapshot that does not come to its end before the process does costs nothing: the journal has it all."""
    finished(BUSY[what], head=TIMED)
    loaded = saved()
    ops = [op for _, _, op in optree.walk_ops(loaded.session)]
    assert (3_000 if what == "large session" else 1, "clean") == (len(ops), loaded.damage.state)
    assert {("c",)} == {tuple(entry.message for entry in op.logs) for op in ops}


@pytest.fixture
def blocked(tmp_path):
    """Return a directory that cannot be made, for root neither."""
    (tmp_path / "file").touch()
    return str(tmp_path / "file" / "sessions")


@pytest.mark.parametrize("way", ["return", "sys.exit(3)", "exception"])
def test_sessions_directory_that_cannot_be_written(way, finished, blocked):
    """An agent whose sessions cannot be saved runs on to its own result and exit code, and says so at its start and end (S4-131)."""
    source, expected, *_ = ENDS[way]
    code, out, err = finished(
        AGENT.replace("assert optree.flush()", "assert not optree.flush()").replace("WAY", source), env={"OPTREE_SESSIONS_DIR": blocked}
    )
    assert (expected, "result\n") == (code, out)
    warnings = [line for line in err.splitlines() if line.startswith("optree: ")]
    assert 2 == len(warnings)
    assert re.fullmatch(rf"optree: \d+ records are lost, in {blocked}: .+", warnings[1])
    assert f"optree: nothing is saved in {blocked}: " in warnings[0]
    assert "the agent runs on (set OPTREE_SESSIONS_DIR to one that can be written)" in warnings[0]
    assert expected or warnings == err.splitlines()


def test_many_sessions_that_cannot_be_saved(blocked, capfd):
    """A process with many such sessions says it once, and health() says so too, also when they have ended (S4-130, S4-131)."""
    optree.configure(sessions_dir=blocked)
    for _ in range(5):
        with optree.session("agent") as session, optree.turn(), optree.tool("work") as op:
            op.log("x")
            assert not optree.flush()
        assert "ok" == session.tree.session.status
    found = optree.health()
    assert (False, 1, [], 5 * 8) == (found["ok"], len(found["problems"]), found["sessions"], found["lost"])
    out, err = capfd.readouterr()
    assert ("", [f"optree: {found['problems'][0]}"]) == (out, err.splitlines())


def test_a_directory_that_can_be_written_later_has_the_sessions(tmp_path, monkeypatch):
    """Sessions that began when nothing could be written are saved, with all that they had, once it can be: the open and the ended ones."""
    monkeypatch.setattr("optree._store.upkeep.SYNC_SECONDS", 0.02)
    (tmp_path / "disk").touch()
    directory = Directory.of(tmp_path, tmp_path / "disk" / "sessions")
    optree.configure(sessions_dir=directory.sessions)
    with optree.session("ended") as ended, optree.turn(), optree.tool("before") as op:
        op.log("x")
    with optree.session("open") as session, optree.turn():
        with optree.tool("before"):
            pass
        assert (False, False) == (optree.flush(), optree.health()["lost"] == 0)
        (tmp_path / "disk").unlink()
        with optree.tool("after"):
            pass
        until = monotonic() + 30
        while optree.health()["lost"] and monotonic() < until:  # nothing is asked of it: it looks by itself
            sleep(0.01)
        assert (0, True) == (optree.health()["lost"], optree.flush("sync"))
        running = optree.load(session.txn, directory)
        assert ["before", "after"] == [op.name for _, _, op in optree.walk_ops(running.session)]
    assert optree.flush("snapshot", 30)
    for one, names in ((ended, ["before"]), (session, ["before", "after"])):
        saved = optree.load(one.txn, directory)
        found = [op.name for _, _, op in optree.walk_ops(saved.session)]
        assert (names, "ended", "clean") == (found, saved.state, saved.damage.state)


LOCKED = """
from time import monotonic, sleep
base, below, way = sys.argv[1:]
os.mkdir(f'{base}/locked', 0)
sessions = f'{base}/locked{below}'
optree.configure(sessions_dir=sessions, billing_file=f'{base}/accounting.jsonl', console=False)
with optree.session('ended'), optree.turn(), optree.tool('before'):
    pass
with optree.session('open') as session, optree.turn(), optree.tool('before') as op:
    during = optree.flush(), optree.flush('sync'), optree.health()['lost']
print(during, [optree.flush(level) for level in ('write', 'sync', 'snapshot')], optree.health()['lost'])
if way == 'heal':
    os.chmod(f'{base}/locked', 0o700)
    until = monotonic() + 30
    while optree.health()['lost'] and monotonic() < until:
        sleep(0.01)
    directory = optree.Directory.of(base, sessions)
    whole, found = optree.flush('snapshot', 30), optree.health()
    print(whole, found['lost'], found['ok'], found['problems'])
    with optree.session('next'):
        found = optree.health()
    optree.flush('snapshot', 30)
    print(found['ok'], found['problems'])
    print(sorted(optree.load(saved.txn, directory).session.agent_id for saved in directory.saved()))
"""


@pytest.mark.skipif(os.name == "nt", reason="no directory is closed to its owner there by its mode")
@pytest.mark.parametrize("below", ["", "/sessions"])
@pytest.mark.parametrize("way", ["heal", "leave"])
def test_a_directory_that_may_not_be_entered_is_one_that_cannot_be_written(finished, tmp_path, bound_by_modes, below, way):
    """Sessions are kept, counted as lost and said to be, until it or the one above it may be entered; then all is well (S4-131)."""
    code, out, err = finished(f"{bound_by_modes}\nsys.argv[1:] = [{str(tmp_path)!r}, {below!r}, {way!r}]\n{LOCKED}")
    (tmp_path / "locked").chmod(0o700)
    assert 0 == code, err
    first, *others = out.splitlines()
    assert "(False, False, 10) [False, False, False] 14" == first
    assert ([] if way == "leave" else ["True 0 True []", "True []", "['ended', 'next', 'open']"]) == others
    assert 1 == len(re.findall(r"(?m)^optree: nothing is saved in \S+/locked\S*: Permission denied; ", err))
    assert (["14"] if way == "leave" else []) == re.findall(r"(?m)^optree: (\d+) records are lost, in \S+/locked\S*: ", err)


FULL = """
import resource
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
with optree.session('agent'), optree.turn():
    for n in range(200):
        with optree.tool('work') as op:
            op.request(text=str(n) * 100)
optree.flush('snapshot')
print(optree.health()['lost'])
"""


@pytest.mark.skipif(os.name == "nt", reason="no limit of a file's size there")
def test_what_a_full_disk_has_not_taken_is_said_at_exit(finished):
    """The exit says how many records are lost also where files could be made, and took no more (S4-131)."""
    code, out, err = finished(FULL)
    assert (0, True) == (code, int(out) > 100)
    (said,) = re.findall(r"(?m)^optree: (\d+) records are lost, in \S+: \S+: File too large$", err)
    assert out.strip() == said


SEVERAL_FULL = """
import resource
resource.setrlimit(resource.RLIMIT_FSIZE, (4_000, 4_000))
for n in range(6):
    with optree.session('agent'), optree.turn():
        for _ in range(60):
            with optree.tool('work') as op:
                op.request(text=str(os.urandom(200)))
    optree.flush('snapshot')
"""


@pytest.mark.skipif(os.name == "nt", reason="no limit of a file's size there")
def test_a_full_disk_costs_a_line_and_not_one_for_each_session(finished):
    """What several sessions have in common is said of the first one (S4-131)."""
    code, _, err = finished(SEVERAL_FULL)
    assert (0, 1) == (code, len(re.findall("(?m)^optree: snapshot of session .*File too large", err))), err


HUNG = """
import threading
from time import monotonic
import optree._syscalls
hangs = threading.Event()
for name in ('datasync', 'full_sync', 'fsync', 'fdatasync'):
    if hasattr(os, name):
        setattr(os, name, lambda fd: hangs.wait())
    if hasattr(optree._syscalls.calls, name):
        setattr(optree._syscalls.calls, name, lambda fd: hangs.wait())
sessions = [contextvars.Context().run(optree.session(f'agent {n}').__enter__) for n in range(8)]
begun = monotonic()
flushed = optree.flush('sync', 1.0)
print(flushed, monotonic() - begun < 4)
hangs.set()
"""


def test_a_flush_waits_once_for_all_sessions(finished):
    """Its time limit is that of the call, however many sessions wait for a disk that hangs (S4-131)."""
    code, out, err = finished(f"import contextvars\n{HUNG}")
    assert (0, "False True\n") == (code, out), err


MANY = """
import contextlib, contextvars, resource
resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200))
contexts = [contextvars.Context() for _ in range(150)]
sessions = [optree.session(f'agent {n}') for n in range(150)]
for context, session in zip(contexts, sessions):
    context.run(session.__enter__)
    context.run(lambda: optree.tool(len)('abc'))
with contextlib.suppress(OSError):
    while True:
        os.dup(1)  # and the program has all others
for context, session in zip(contexts, sessions):
    context.run(session.__exit__, None, None, None)
whole = any(optree.flush('snapshot', 60) for _ in range(30))  # one in which a session met no descriptor is False
print(whole, optree.health()['lost'])
"""


@pytest.mark.skipif(os.name == "nt", reason="no limit of descriptors there")
def test_sessions_that_took_all_descriptors_are_saved(finished, directory):
    """Where open sessions and the program have all descriptors, each session is saved once it has ended, and nothing is lost (S4-131)."""
    code, out, err = finished(MANY)
    assert (0, "True 0\n") == (code, out), err
    saved = directory.saved()
    assert 150 == len([one for one in saved if one.snapshot and not one.live])


def test_the_place_that_is_at_fault_is_named(tmp_path, monkeypatch, runtime):
    """A file where a directory should be is named by its path; who has no home directory is told that, and no made-up path (S4-131)."""
    (tmp_path / "file").touch()
    optree.configure(base_dir=tmp_path / "file")
    with optree.session("agent"):
        said = f"nothing is saved in {tmp_path / 'file' / 'sessions'}: {tmp_path / 'file'}: a file is there; the agent runs on"
        assert [True] == [problem.startswith(said) for problem in optree.health()["problems"]]
        assert {f"{tmp_path / 'file'}: File exists"} == {store.journal.problem for store in runtime.stores.values()}
    optree.configure(base_dir=tmp_path, sessions_dir=tmp_path / "file")
    with optree.session("agent"):
        said = f"nothing is saved in {tmp_path / 'file'}: a file is there; the agent runs on"
        assert [False, True] == [problem.startswith(said) for problem in optree.health()["problems"]]
    monkeypatch.setattr(Path, "expanduser", _homeless)
    optree.configure(base_dir="~/.optree", sessions_dir=None)
    with optree.session("agent"):
        said = "nothing is saved: you have no home directory; the agent runs on (set OPTREE_SESSIONS_DIR to one that can be written)"
        assert said in optree.health()["problems"]


def _homeless(path):
    if path.parts[0] == "~":
        raise RuntimeError("Could not determine home directory.")
    return path


LINKED = """
os.mkdir('sessions')
os.symlink('elsewhere', 'sessions/t-1.live')
os.environ['OPTREE_TXN'] = 't-1'
optree.configure(sessions_dir='sessions', console=False)
with optree.session('agent'), optree.turn(), optree.tool('work'):
    during = optree.flush(), optree.health()['lost']
print(during, [optree.flush(level) for level in ('write', 'sync', 'snapshot')], optree.health()['lost'], flush=True)
with optree.session('other'):
    pass
if not os.fork():
    print(optree.health()['lost'], flush=True)
    os._exit(0)
os.wait()
print(optree.flush('snapshot', 30), optree.health()['lost'])
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no links for every user, and no forks")
def test_a_session_without_any_files_is_counted_as_lost(finished, tmp_path):
    """What no store was made for is lost: flush() is False also when it has ended, health() counts it, and the exit says it (S4-131)."""
    code, out, err = finished(LINKED)
    assert (0, ["(False, 3) [False, False, False] 7", "0", "False 7"]) == (code, out.splitlines()), err
    assert 1 == len(re.findall(r"(?m)^optree: nothing is saved in .*/sessions: .*/sessions/t-1.live is a link", err))
    assert ["7"] == re.findall(rf"(?m)^optree: (\d+) records are lost, in {tmp_path}/sessions", err)


def test_sessions_that_can_never_be_saved_are_let_go(blocked, runtime):
    """Of ended sessions that no file could be made for the last 64 are kept; what the others had is counted."""
    optree.configure(sessions_dir=blocked)
    for _ in range(70):
        with optree.session("agent"):
            pass
    found = optree.health()
    assert (True, 70 * 2) == (len(runtime.stores) <= 65, found["lost"])


def test_ledger_that_cannot_be_written(finished, saved, blocked):
    """What fails behind the program's back is said on stderr by its end, and changes nothing for it (S4-130, S4-131)."""
    code, out, err = finished(AGENT.replace("WAY", "pass"), env={"OPTREE_BILLING_FILE": blocked})
    assert (0, "result\n", 1) == (code, out, len(err.splitlines()))
    assert re.match(r"optree: ledger of session \S+: .+", err)
    assert ("ended", "clean") == (saved().state, saved().damage.state)


def test_stderr_that_is_closed(tmp_path, finished, saved):
    """A program without stderr is traced all the same, and nothing is written to the file that got its descriptor."""
    (tmp_path / "closed.py").write_text(
        "file = open('mine.txt', 'w')\nassert 2 == file.fileno()\n"
        "import optree\nwith optree.session('root'), optree.turn(), optree.tool('x') as op:\n    op.log('careful', 'WRN')\n"
    )
    source = "import subprocess; sys.exit(subprocess.call([sys.executable, 'closed.py'], preexec_fn=lambda: os.close(2)))"
    assert 0 == finished(source)[0]
    assert "" == (tmp_path / "mine.txt").read_text()
    loaded = saved()
    assert ("ended", "clean", 1) == (loaded.state, loaded.damage.state, len(loaded.session.turns[0].ops[0].logs))


def test_health():
    """Health is good while all is recorded, and counts records and sessions."""
    empty = optree.health()
    assert (True, [], 0, []) == (empty["ok"], empty["problems"], empty["records"], empty["sessions"])
    with optree.session("root") as session, optree.turn(), optree.tool("x"):
        assert [session.txn] == optree.health()["sessions"]
    found = optree.health()
    assert {"ok", "enabled", "problems", "records", "lost", "late", "failures", "console_dropped", "sessions", "otel"} == set(found)
    assert (True, [], 0, 0, 0, []) == tuple(found[name] for name in ("ok", "problems", "lost", "failures", "late", "sessions"))
    assert 7 == found["records"]  # begin and end of session, turn and op, and the tool's accounting


def test_flush_levels(directory):
    """Each level of flush does what it says, and a level that does not exist is refused."""
    assert [True, True, True] == [optree.flush(level) for level in ("write", "sync", "snapshot")]
    with optree.session("root") as session, optree.turn(), optree.tool("x") as op:
        op.log("here")
        assert optree.flush()
        (flushed,) = optree.load(session.txn, directory).session.turns[0].ops[0].logs
        assert "here" == flushed.message
        assert optree.flush("sync", 60)
        assert directory.find(session.txn).snapshot is None
    assert optree.flush("snapshot", 60)
    assert (None, True) == (directory.find(session.txn).live, directory.find(session.txn).snapshot is not None)
    with pytest.raises(optree.SetupError, match="choose one of write, sync, snapshot"):
        optree.flush("all")


MISUSES = [
    ({"colour": True}, "configure() has no option 'colour'; the options are base_dir, "),
    ({"sync": "always"}, "sync='always' is not possible; choose one of write, interval, turn, op"),
    ({"compression": "zip"}, "compression='zip' is not possible; choose one of zstd, gzip, none"),
    ({"cycles": None}, "cycles=None is not possible; choose one of mark, block"),
    ({"base_dir": 3}, "base_dir=3 is not possible; give a path"),
    ({"verbose": "no"}, "verbose='no' is not possible; give True or False"),
]


@pytest.mark.parametrize(("options", "said"), MISUSES)
def test_configure_refuses(options, said):
    """An option that does not exist, or cannot have that value, is refused with what is possible; nothing is changed."""
    before = optree.configure()
    with pytest.raises(optree.SetupError) as caught:
        optree.configure(console=False, **options)
    assert said in str(caught.value)
    assert before == optree.configure()


def test_configure_places(tmp_path, directory):
    """Arguments of configure win over the environment, each place by itself."""
    optree.configure(base_dir=tmp_path / "other", billing_file=str(tmp_path / "bills" / "here.jsonl"))
    with optree.session("root"), optree.turn(), optree.tool("x"):
        pass
    assert optree.flush("snapshot", 60)
    assert ([], 1) == (directory.saved(), len(list((tmp_path / "other" / "sessions").glob("*.json.zst"))))
    assert 1 == len((tmp_path / "bills" / "here.jsonl").read_text().splitlines())
    assert "x" == optree.load("last").session.turns[0].ops[0].name
    optree.configure(base_dir=None, billing_file=None)
    with optree.session("root"):
        pass
    assert optree.flush("snapshot", 60)
    assert 1 == len(directory.saved())
    assert [] == optree.load("last").session.turns


@pytest.mark.parametrize(("compression", "suffix"), [("zstd", ".json.zst"), ("gzip", ".json.gz"), ("none", ".json")])
def test_environment(compression, suffix, finished, tmp_path, saved):
    """Options are read from the environment."""
    code, _, err = finished(
        "print(optree.configure())\nwith optree.session('root'): pass",
        env={
            "OPTREE_COMPRESSION": compression,
            "OPTREE_SYNC": "op",
            "OPTREE_CYCLES": "block",
            "OPTREE_CONSOLE": "0",
            "OPTREE_VERBOSE": "on",
        },
    )
    assert (0, "") == (code, err)
    (file,) = (tmp_path / "base" / "sessions").iterdir()
    assert file.name.removeprefix(saved().txn) == suffix


def test_environment_that_makes_no_sense(finished, saved):
    """A value in the environment that is not possible is said once and passed over: it must not stop the program (S4-130, S4-131)."""
    code, out, err = finished("with optree.session('root'): print(optree.configure().sync)", env={"OPTREE_SYNC": "always"})
    assert (0, "interval\n") == (code, out)
    assert "optree: OPTREE_SYNC='always' is not possible and passed over; choose one of write, interval, turn, op\n" == err
    assert "ended" == saved().state


def test_console_off(finished):
    """Without the console nothing is printed, warnings of the agent neither."""
    assert (0, "result\n", "") == finished(AGENT.replace("WAY", "op.log('w', 'WRN')"), env={"OPTREE_CONSOLE": "false"})


def threads():
    """Return the names of optree's threads in this process, a name each."""
    return sorted(thread.name for thread in threading.enumerate() if thread.name.startswith("optree-"))


def begun(number):
    """Begin as many root sessions, each in a context of its own, and return their ends."""
    ends = []
    for _ in range(number):
        context, session = contextvars.copy_context(), optree.session("root")
        context.run(session.__enter__)
        ends.append(functools.partial(context.run, session.__exit__, None, None, None))
    return ends


THREADS = ["optree-console", "optree-snapshot", "optree-store", "optree-stream"]


def test_all_sessions_share_four_threads():
    """200 sessions that are open at once, and 200 that have ended, have the threads that one has, once their journals are on disk."""
    others = [name for name in threads() if name not in THREADS]
    ends = begun(200)
    with optree.session("root"), optree.turn(), optree.tool("x") as op:
        op.log("y", "WRN")
    assert optree.flush("sync", LONG)
    helping = [thread for thread in threading.enumerate() if thread.name == "optree-sync"]
    for thread in helping:
        thread.join(LONG)
    assert 7 >= len(helping)
    assert sorted([*others, *THREADS]) == threads()
    for end in ends:
        end()
    assert optree.flush("snapshot", LONG)
    assert sorted([*others, *THREADS]) == threads()


def test_no_session_waits_for_the_disk(monkeypatch):
    """From begin to end, and for its snapshot, nothing is forced to the disk on the program's thread; optree's own do that."""
    threads = []
    for name in ("fsync", "fdatasync", "fsync_directory"):
        real = getattr(calls, name)
        monkeypatch.setattr(calls, name, lambda what, real=real: (threads.append(threading.get_ident()), real(what))[1])
    for _ in range(3):
        with optree.session("root"), optree.turn(), optree.llm("m") as op:
            op.account(input_tokens=1)
    assert optree.flush("snapshot", LONG)
    assert (False, True) == (threading.get_ident() in threads, len(threads) >= 3)


def test_one_wait_where_sessions_end_and_no_disk_takes_them(monkeypatch, runtime):
    """The first begin behind many sessions that are not saved yet waits for one of them, in vain, and the next ones do not for a while."""
    monkeypatch.setattr(runtime_module, "STUCK_SECONDS", LONG)  # however long the machine takes for these sessions
    waits, wait, begun, hangs = [], SessionStore.wait, threading.Event(), threading.Event()
    monkeypatch.setattr(SessionStore, "wait", lambda store, timeout: (timeout and waits.append(timeout)) or wait(store, timeout))

    def hang():
        begun.set()
        hangs.wait(LONG)

    assert Job(SAVING, hang, str).ask()
    assert begun.wait(LONG)
    try:
        for _ in range(ENDED_SESSIONS):
            with optree.session("ends"):
                pass
        assert [] == waits
        for _ in range(10):
            with optree.session("ends"):
                pass
        assert ([ROOM_SECONDS], ENDED_SESSIONS + 10) == (waits, len(runtime.stores))
    finally:
        hangs.set()
    assert optree.flush("snapshot", LONG)


def test_ended_sessions_are_let_go():
    """A long-running process with many root sessions keeps no files of those that have ended; its counts stay."""
    files = Path("/proc/self/fd")
    before, seen = len(list(files.iterdir())), []
    for _ in range(30):
        with optree.session("root"), optree.turn(), optree.tool("x") as op:
            op.log("y")
        assert optree.flush("snapshot", 60)
        seen.append(len(list(files.iterdir())) - before)
    assert 15 > max(seen)
    assert (30 * 8, True) == (optree.health()["records"], optree.health()["ok"])


def test_no_problem_holds_a_credential():
    """What `health` tells is redacted, wherever it was noted (S4-48)."""
    secret = "ghp_" + "0aB3" * 9
    with optree.session("a"), optree.turn(), optree.llm("m") as op:
        op.account(input_tokens="x" * 18 + " " + secret)
        op.builder.core.stream.fault(f"no {secret}")
        problems = optree.health()["problems"]
    assert 2 == len(problems)
    assert "ghp_" not in "".join(problems)


@pytest.mark.parametrize("indent", [16, 20])
def test_a_flush_while_other_threads_flush_and_end_sessions(finished, indent):
    """Behind its session or within, it is true of all that is saved: others may ask for more meanwhile, and close what has ended."""
    code, out, err = finished(
        f"""
        import threading
        told = []

        def run():
            for _ in range(15):
                with optree.session("a"):
                    with optree.turn(), optree.tool("t"):
                        pass
{" " * indent}told.append(optree.flush("snapshot", 30))

        threads = [threading.Thread(target=run) for _ in range(4)]
        [one.start() for one in threads]
        [one.join() for one in threads]
        print(told.count(True))
        """
    )
    assert (0, "60", "") == (code, out.strip(), err)


class Written:
    """What programs put in the place of stderr: a tee, a logger."""

    def write(self, text):
        """Take a text."""
        return len(text)


@pytest.mark.parametrize("kind", ["write alone", "closed"])
def test_stderr_of_the_programs_own(saved, tmp_path, monkeypatch, kind):
    """What a program has put in the place of stderr need not tell whether it is a terminal."""
    with (tmp_path / "err").open("w") as closed:
        pass
    monkeypatch.setattr("sys.stderr", Written() if kind == "write alone" else closed)
    with optree.session("a"), optree.tool("t"):
        pass
    assert optree.flush("snapshot")
    assert "ok" == saved().session.status
