import json
import os
import pickle
import subprocess
import sys
import textwrap
import time
import types
from collections import Counter

import pytest

import optree
from optree._ids import node_id, span_id, trace_id
from optree._store.opening import current_run
from optree._store.saving import StoreOptions
from optree._store.settle import settle_all
from optree._tree import walk_sessions

POOL = """
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor

    @optree.tool
    def work(number):
        op = optree.current()
        op.log(f"number {number}")
        op.account(characters_in=number)
        return os.getpid()

    @optree.session(agent="worker")
    def agent(number):
        with optree.turn(user=str(number)):
            with optree.llm(provider="p", model="m") as op:
                op.account(input_tokens=number, cost_usd=0.5)
            return work(number)

    @optree.session(agent="boss")
    def boss(method, function):
        with optree.turn(user="go"), optree.tool("batch"):
            context = multiprocessing.get_context(method)
            with ProcessPoolExecutor(2, context) as pool:
                return len(set(pool.map(optree.wrap(function), range(10))) - {os.getpid()})

    if __name__ == "__main__":
        assert boss(sys.argv[0] and "METHOD", FUNCTION) in (1, 2)
"""


def check_whole(loaded):
    """Check that nothing was lost, left open or given twice."""
    assert ("ended", "clean", []) == (loaded.state, loaded.damage.state, loaded.open_nodes())
    ids = [entry["id"] for entry in optree.flatten(loaded.session).accounting]
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize("method", ["spawn", "fork", "forkserver"])
def test_pool_of_tools(method, finished, saved):
    """Calls in a process pool's workers are ops of the turn they were submitted in, below the op that submitted them (S4-34)."""
    code, out, err = finished(POOL.replace("METHOD", method).replace("FUNCTION", "work"))
    assert (0, "", "") == (code, out, err)
    loaded = saved()
    check_whole(loaded)
    (turn,) = loaded.session.turns
    batch, *ops = turn.ops
    assert ("batch", "1.1") == (batch.name, batch.path)
    assert [("work", "ok", "1.1")] * 10 == [(op.name, op.status, op.parent_op) for op in ops]
    assert {f"number {n}" for n in range(10)} == {entry.message for op in ops for entry in op.logs}
    assert {} == Counter(op.attributes.get("detached") for op in ops if op.attributes)
    assert (11, sum(range(10))) == (
        loaded.session.totals.tools_run,
        loaded.session.totals.characters_in - batch.accounting[0].characters_in,
    )


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_pool_of_sub_agents(method, finished, saved, directory):
    """Sub-agents in workers are child sessions with their totals in their parents', each entry counted and billed once (S4-37, S4-57)."""
    code, out, err = finished(POOL.replace("METHOD", method).replace("FUNCTION", "agent"))
    assert (0, "", "") == (code, out, err)
    loaded = saved()
    check_whole(loaded)
    children = [op.child_session for op in loaded.session.turns[0].ops[1:]]
    assert [("worker", "boss->worker", "ok", loaded.txn)] * 10 == [
        (child.agent_id, child.call_path, child.status, child.parent_txn_id) for child in children
    ]
    assert {str(n): n for n in range(10)} == {child.turns[0].prompts["user"]: child.totals.input_tokens for child in children}
    totals = loaded.session.totals
    assert (10, 45, 5.0, 11) == (totals.llm_requests, totals.input_tokens, totals.cost_usd, totals.tools_run)
    settled(directory)
    billed = [json.loads(line)["id"] for line in directory.billing.read_text().splitlines()]
    assert Counter(billed) == Counter(entry["id"] for entry in optree.flatten(loaded.session).accounting)
    assert 21 == len(set(billed))


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_multiprocessing_process(method, finished, saved):
    """A `multiprocessing.Process` with a wrapped target joins, and what it logged last is there too."""
    code, _, err = finished(f"""
        import multiprocessing

        @optree.tool
        def work(number):
            optree.current().log("last words")

        if __name__ == "__main__":
            with optree.session("root"), optree.turn():
                context = multiprocessing.get_context("{method}")
                children = [context.Process(target=optree.wrap(work), args=[n]) for n in range(3)]
                [child.start() for child in children]
                [child.join() for child in children]
                assert [0, 0, 0] == [child.exitcode for child in children]
    """)
    assert (0, "") == (code, err)
    loaded = saved()
    check_whole(loaded)
    assert [("work", "ok", ["last words"])] * 3 == [
        (op.name, op.status, [entry.message for entry in op.logs]) for op in loaded.session.turns[0].ops
    ]


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_a_worker_is_elsewhere_for_one_call_only(method, finished, directory):
    """What a pool's worker does after a wrapped call, by a function that is not wrapped, is a session of its own."""
    code, out, err = finished(f"""
        import multiprocessing
        from concurrent.futures import ProcessPoolExecutor

        @optree.tool
        def work():
            return os.getpid()

        def own():
            with optree.session("own"), optree.turn():
                return work()

        if __name__ == "__main__":
            with ProcessPoolExecutor(1, multiprocessing.get_context("{method}")) as pool:
                pool.submit(os.getpid).result()  # the worker is there before the session is
                with optree.session("lead"), optree.turn():
                    assert pool.submit(optree.wrap(work)).result() == pool.submit(own).result()
    """)
    assert (0, "", "") == (code, out, err)
    loaded = [optree.load(saved.txn, directory).session for saved in directory.saved()]
    assert {"lead": ["work"], "own": ["work"]} == {session.agent_id: [op.name for op in session.turns[0].ops] for session in loaded}


CHILDREN = """
    import subprocess
    from textwrap import dedent
    CHILD = dedent('''
        import sys, optree
        @optree.tool
        def look(name):
            optree.current().log(name)
        @optree.session(agent="child")
        def child(name):
            with optree.turn(user=name):
                look(name)
        look(sys.argv[1])
        child(sys.argv[1])
        look(sys.argv[1])
    ''')
    def start(name):
        return subprocess.Popen([sys.executable, "-c", CHILD, name], env=optree.child_env())
"""


def test_subprocesses_at_once(finished, saved):
    """Several child processes at once join by the environment: each with a journal of its own, one tree, no id twice (S4-37, S4-42)."""
    code, _, err = finished(
        CHILDREN
        + """
    with optree.session("root"), optree.turn(), optree.tool("shell"):
        children = [start(str(n)) for n in range(4)]
        assert [0] * 4 == [child.wait() for child in children]
        from optree._store.reading.directory import journals
        assert 5 == len(journals(optree.Directory.of().live(optree.current_session().txn)))
    """
    )
    assert (0, "") == (code, err)
    loaded = saved()
    check_whole(loaded)
    (turn,) = loaded.session.turns
    assert {"shell": 1, "look": 8, "child": 4} == Counter(op.name for op in turn.ops)
    assert ["1.1"] * 12 == [op.parent_op for op in turn.ops[1:]]
    children = list(walk_sessions(loaded.session))[1:]
    assert {"0", "1", "2", "3"} == {child.turns[0].prompts["user"] for child in children}
    assert [("child", "root->child", "1", 1)] * 4 == [
        (child.agent_id, child.call_path, child.turns[0].path.removeprefix(child.path + "."), len(child.turns[0].ops)) for child in children
    ]
    assert {"sub-agent"} == {child.attributes["ingress"]["source"] for child in children}


def test_child_env(monkeypatch, recording):
    """The environment for a child names its parent, its ancestors and its place in a trace, and nothing that is to be used once."""
    monkeypatch.setenv("OPTREE_RESUME", "x")
    given = {"PATH": "/bin", "OPTREE_RESUME": "x", "OPTREE_TXN": "y"}
    monkeypatch.delenv("OPTREE_BASE_DIR")
    assert given | {"OPTREE_RUN": current_run()} == optree.child_env(given)
    with optree.session("a") as root, optree.turn(), optree.session("b"), optree.turn():
        with optree.tool("c") as op:
            found = optree.child_env(given)
        parent = node_id(root.txn, op.path)
        assert {
            "PATH": "/bin",
            "OPTREE_RUN": current_run(),
            "OPTREE_PARENT": parent,
            "OPTREE_ANCESTRY": "a->b",
            "TRACEPARENT": f"00-{trace_id(root.txn)}-{span_id(parent)}-01",
        } == found
        assert os.environ["PATH"] == optree.child_env()["PATH"]
    assert "1.1.1.1" == op.path
    assert 1 == len(recording.sessions)


def test_child_env_keeps_the_directory(monkeypatch):
    """A child whose variables name no directory has the one that this process's environment names."""
    monkeypatch.setenv("OPTREE_BASE_DIR", "/here")
    run = {"OPTREE_RUN": current_run()}
    assert {"OPTREE_BASE_DIR": "/here"} | run == optree.child_env({})
    assert {"OPTREE_SESSIONS_DIR": "/there"} | run == optree.child_env({"OPTREE_SESSIONS_DIR": "/there"})


def test_traceparent_is_kept(finished, saved):
    """A root session that is started within another system's trace keeps that trace's name (S4-77)."""
    traceparent = f"00-{'1' * 32}-{'2' * 16}-01"
    code, *_ = finished("optree.session('root').__enter__().builder.end_session()", env={"TRACEPARENT": traceparent})
    assert 0 == code
    assert traceparent == saved().session.attributes["ingress"]["traceparent"]


def test_child_of_a_session_without_a_turn(finished, saved):
    """Where the parent has no turn open, its child's ops go into one that is opened for them, in the right session."""
    code, _, err = finished(
        CHILDREN
        + """
    with optree.session("root"):
        with optree.session("sub"):
            assert 0 == start("a").wait()
        assert 0 == start("b").wait()
    """
    )
    assert (0, "") == (code, err)
    loaded = saved()
    check_whole(loaded)
    logged = {(entry["message"], entry["callPath"]) for entry in optree.flatten(loaded.session).logs}
    assert {("a", "root->sub"), ("a", "root->sub->child"), ("b", "root"), ("b", "root->child")} == logged
    sub = loaded.session.turns[0].ops[0].child_session
    assert {"look": 2, "child": 1} == Counter(op.name for op in sub.turns[0].ops)


def test_turns_of_a_child_process(finished, saved):
    """A turn that a child process begins is one of its parent's session, with a number that nobody else gives."""
    code, _, err = finished("""
        import subprocess
        CHILD = "import optree\\nfor _ in range(2):\\n with optree.turn(user='c'), optree.tool('x'): pass"
        with optree.session("root"):
            for _ in range(2):
                with optree.turn(user="p"):
                    subprocess.run([sys.executable, "-c", CHILD], env=optree.child_env(), check=True)
    """)
    assert (0, "") == (code, err)
    loaded = saved()
    check_whole(loaded)
    assert ["p", "p", "c", "c", "c", "c"] == [turn.prompts["user"] for turn in loaded.session.turns]
    assert ["x"] * 4 == [op.name for _, _, op in optree.walk_ops(loaded.session)]
    assert [1, 2, 1_000_001, 1_000_002, 2_000_001, 2_000_002] == [turn.index for turn in loaded.session.turns]


def test_several_parents_of_one_turn(finished, saved):
    """Ops and turns that one process begins for several ops and turns of another's session each have a number that nobody else gives."""
    code, _, err = finished("""
        import multiprocessing
        from concurrent.futures import ProcessPoolExecutor

        @optree.tool
        def leaf():
            pass

        @optree.turn(user="c")
        def begun():
            leaf()

        if __name__ == "__main__":
            carried = []
            with optree.session("root"):
                for _ in range(2):
                    with optree.turn(user="p"):
                        carried.append(optree.wrap(begun))
                        for _ in range(2):
                            with optree.tool("call"):
                                carried.append(optree.wrap(leaf))
                with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
                    [future.result() for future in [pool.submit(one) for one in carried]]
    """)
    assert (0, "") == (code, err)
    loaded = saved()
    check_whole(loaded)
    assert {"call": 4, "leaf": 6} == Counter(op.name for _, _, op in optree.walk_ops(loaded.session))
    assert {"p": 2, "c": 2} == Counter(turn.prompts["user"] for turn in loaded.session.turns)
    assert {f"{turn}.{op}" for turn in (1, 2) for op in (1, 2)} == {
        op.parent_op for _, _, op in optree.walk_ops(loaded.session) if op.name == "leaf" and op.parent_op
    }


def test_grandchildren(finished, saved):
    """A child process may have child processes and pools of its own."""
    code, _, err = finished("""
        import subprocess, multiprocessing
        from concurrent.futures import ProcessPoolExecutor

        @optree.tool
        def leaf(number):
            optree.current().log(str(number))

        @optree.session(agent="level")
        def level(depth):
            with optree.turn(user=str(depth)):
                leaf(depth)
                with ProcessPoolExecutor(2, multiprocessing.get_context("fork")) as pool:
                    list(pool.map(optree.wrap(leaf), [depth, depth]))
                leaf(depth)
                if depth:
                    subprocess.run([sys.executable, __file__, str(depth - 1)], env=optree.child_env(), check=True)

        if __name__ == "__main__":
            level(int(sys.argv[1]) if len(sys.argv) > 1 else 2)
    """)
    assert 0 == code, err
    loaded = saved()
    check_whole(loaded)
    assert ["level", "level->level", "level->level->level"] == [session.call_path for session in walk_sessions(loaded.session)]
    assert {"0": 4, "1": 4, "2": 4} == Counter(
        entry["message"] for entry in optree.flatten(loaded.session).logs if entry["severity"] == "VRB"
    )


def test_child_that_outlives_its_parent(finished, saved, tmp_path):
    """What a child records after its parent's end is in the session too (S4-94)."""
    (tmp_path / "child.py").write_text(
        "import os, sys, time, optree\n"
        "with optree.tool('long') as op:\n"
        "    print(flush=True)\n"
        "    while os.getppid() == int(sys.argv[1]): time.sleep(0.005)\n"
        "    op.log('alone')\n"
        "open('over', 'w').close()\n"
    )
    code, *_ = finished("""
        import subprocess
        with optree.session("root"), optree.turn():
            child = subprocess.Popen(
                [sys.executable, "child.py", str(os.getpid())], env=optree.child_env(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            )
            child.stdout.readline()
        assert optree.flush("snapshot", 60)
        os._exit(0)
    """)
    assert 0 == code
    wait_for((tmp_path / "over").exists)
    wait_for(lambda: [] == saved().open_nodes())
    loaded = saved()
    assert ("ended", "clean", []) == (loaded.state, loaded.damage.state, loaded.open_nodes())
    assert [("long", "ok", ["alone"])] == [(op.name, op.status, [entry.message for entry in op.logs]) for op in loaded.session.turns[0].ops]


def settled(directory):
    """Do what processes had no time for as they ended, for a slow disk, as whoever comes next does."""
    assert [] == settle_all(StoreOptions(directory))


def wait_for(done):
    """Wait until something that another process does is done."""
    end = time.monotonic() + 30
    while not done():
        assert time.monotonic() < end
        time.sleep(0.005)


def test_killed_child(finished, saved, directory):
    """A child that is killed leaves its op interrupted, and all that it had written; the rest of the session is whole (S4-30)."""
    code, *_ = finished("""
        import subprocess, signal
        CHILD = "import os, optree\\nwith optree.tool('cut') as op:\\n op.account(characters_in=7)\\n os.kill(os.getpid(), 9)"
        with optree.session("root"), optree.turn(), optree.tool("shell"):
            assert -signal.SIGKILL == subprocess.run([sys.executable, "-c", CHILD], env=optree.child_env()).returncode
    """)
    assert 0 == code
    settled(directory)
    session = saved().session
    shell, cut = session.turns[0].ops
    assert ("ok", "interrupted", 7) == (shell.status, cut.status, cut.accounting[0].characters_in)
    assert (2, True) == (session.totals.tools_run, session.success)


@pytest.mark.parametrize(
    ("parent", "said"),
    [
        ("no/such:1", "names no session"),
        ("gone-12345678:1.1", "cannot join session gone-12345678: it is not in "),
    ],
)
def test_parent_that_is_not_there(parent, said, finished):
    """A parent that cannot be joined is said once; the process records a session of its own (S4-130, S4-131)."""
    code, out, err = finished(
        """
        @optree.tool
        def work():
            return 1
        with optree.session("own"):
            work()
        with optree.session("own"):
            pass
        print("result")
        """,
        env={"OPTREE_PARENT": parent, "OPTREE_ANCESTRY": "a"},
    )
    assert (0, "result\n", 1) == (code, out, len(err.splitlines()))
    assert said in err


def test_a_parent_that_has_ended(finished, directory):
    """A process that begins to record after its parent's session has ended is told so, and where that is saved."""
    code, out, err = finished("""
        import subprocess, time
        with optree.session("root") as session, optree.turn(), optree.tool("shell"):
            environment = optree.child_env()
        while [name for name in os.listdir(os.environ["OPTREE_BASE_DIR"] + "/sessions") if name.endswith(".live")]:
            time.sleep(0.005)
        CHILD = "import optree\\nwith optree.session('late'): pass"
        subprocess.run([sys.executable, "-c", CHILD], env=environment, check=True)
        print(session.txn)
    """)
    txn = out.strip()
    said = f"cannot join session {txn}: it has ended ({directory.snapshot(txn)}); this process records a session of its own"
    assert (0, 1) == (code, err.count(said)), err


def test_child_lines_on_stderr(finished, saved):
    """Warnings of children stand on stderr in the same form, under the name of the one session (S4-118, S4-123)."""
    code, out, err = finished("""
        import subprocess, multiprocessing
        CHILD = "import optree\\nwith optree.tool('sub') as op: op.log('careful', 'WRN')"

        @optree.tool
        def work():
            optree.current().log("careful", "WRN")

        with optree.session("root"), optree.turn():
            subprocess.run([sys.executable, "-c", CHILD], env=optree.child_env(), check=True)
            child = multiprocessing.get_context("fork").Process(target=optree.wrap(work))
            child.start()
            child.join()
    """)
    txn = saved().txn
    assert (0, "") == (code, out)
    assert [
        f"[txn:{txn}] [path:1.1000001] root [WRN] → tool sub: careful",
        f"[txn:{txn}] [path:1.2000001] root [WRN] → tool work: careful",
    ] == err.splitlines()


def test_two_agents_under_one_given_txn(finished, directory):
    """A txn that was given for one run is not used for a second: nothing is written over."""
    source = "with optree.session('root'), optree.turn(user='u'): pass\nassert optree.flush('snapshot')"
    for _ in range(2):
        assert 0 == finished(source, env={"OPTREE_TXN": "given"})[0]
    assert 2 == len(directory.saved())
    assert "ended" == optree.load("given", directory).state


def test_given_txn_is_for_one_process(finished, directory):
    """A txn that was given goes to the first root session; children that join nothing get their own."""
    code, _, err = finished(
        """
        import subprocess
        with optree.session("root") as root:
            assert "given" == root.txn
            if len(sys.argv) == 1:
                subprocess.run([sys.executable, "-c", "import optree\\nwith optree.session('other'): pass"], check=True)
        with optree.session("second") as second:
            assert "given" != second.txn
        """,
        env={"OPTREE_TXN": "given"},
    )
    assert (0, "") == (code, err)
    assert {"root", "other", "second"} == {optree.load(saved.txn, directory).session.agent_id for saved in directory.saved()}


def test_given_txn_that_another_process_is_quicker_to_take(finished, directory):
    """Of two processes that are given one txn at once, the second begins a session of its own; each keeps its records."""
    code, out, err = finished(
        """
        import os, subprocess
        from optree._store.reading.directory import Directory

        def is_free(self, txn):
            free = honest(self, txn)
            subprocess.run([sys.executable, "-c", "import optree\\nwith optree.session('first'): pass"], check=True, env=given)
            return free

        given, honest, Directory.is_free = {**os.environ}, Directory.is_free, is_free
        with optree.session("second") as second, optree.turn(user="u"):
            print("given" != second.txn)
        """,
        env={"OPTREE_TXN": "given"},
    )
    assert (0, "True\n", "") == (code, out, err)
    assert {"first", "second"} == {optree.load(saved.txn, directory).session.agent_id for saved in directory.saved()}
    assert "first" == optree.load("given", directory).session.agent_id


def test_journals_are_removed(finished, saved, directory):
    """When parent and children have ended in order, one file is all that remains (S4-94)."""
    assert 0 == finished(POOL.replace("METHOD", "spawn").replace("FUNCTION", "work"))[0]
    settled(directory)
    (found,) = directory.saved()
    assert (None, []) == (found.live, list(directory.sessions.glob("*.live")))
    assert "clean" == saved().damage.state


@pytest.mark.parametrize("method", ["spawn", "fork", "forkserver"])
def test_process_that_imports_optree_itself(method, finished, saved):
    """A process that `multiprocessing` made and that imports optree late writes its last words too: it ends without `atexit`."""
    code, _, err = finished(
        f"""
        def work():
            import optree
            with optree.session("own"), optree.turn(), optree.tool("x") as op:
                op.log("last words")

        if __name__ == "__main__":
            child = multiprocessing.get_context("{method}").Process(target=work)
            child.start()
            child.join()
            assert 0 == child.exitcode
        """,
        head="import multiprocessing\n",
    )
    assert (0, "") == (code, err)
    assert ["last words"] == [entry["message"] for entry in optree.flatten(saved().session).logs]


CHILD = """
    with optree.session("kid"), optree.turn(user="x"), optree.llm(provider="p", model="m") as op:
        op.account(input_tokens=5, cost_usd=0.5)
        print("ready", flush=True)
        sys.stdin.read()
"""
PARENT = """
    import subprocess
    child = sys.argv[0].replace("agent0", "child")
    with optree.session("boss"), optree.turn(user="a"):
        held = subprocess.PIPE if HELD else None
        process = subprocess.Popen([sys.executable, child], env=optree.child_env(), stdin=held, stdout=subprocess.PIPE)
        process.stdout.readline()
    if HELD:
        optree.flush("snapshot")
        process.communicate()
"""


@pytest.mark.parametrize("held", [True, False], ids=["ends before the parent's process", "outlives the parent's process"])
def test_child_that_outlives_the_session_is_billed(held, script, saved, directory, tmp_path):
    """What a child process records after its parent's session has ended is in the saved tree and in the ledger, once (S4-94, S4-104)."""
    (tmp_path / "child.py").write_text("import sys\nimport optree\n" + textwrap.dedent(CHILD))
    parent = script(PARENT.replace("HELD", str(held)), stdin=subprocess.PIPE)
    assert 0 == parent.wait()
    parent.communicate()  # closes the child's stdin, and waits until it has closed stderr too
    loaded = saved()
    assert (True, 0.5) == (loaded.session.success, loaded.session.totals.cost_usd)
    assert ("ended", "clean", []) == (loaded.state, loaded.damage.state, loaded.open_nodes())
    settled(directory)
    assert [0.5] == [json.loads(line)["costUsd"] for line in directory.billing.read_text().splitlines()]


def test_what_was_configured_goes_to_a_child(tmp_path):
    """A child that is started with `child_env` keeps its sessions where its parent does, and as it does, wherever it is started."""
    script = (
        "import optree, os, subprocess, sys\noptree.configure(base_dir='here', console=False, write='all', redacted_save=True)\n"
        "child = \"import optree\\nwith optree.tool('far'):\\n    pass\\nprint(optree.flush(), optree.configure().write)\"\n"
        "with optree.session('a'), optree.turn(), optree.tool('near'):\n"
        "    print(subprocess.run([sys.executable, '-c', child], env=optree.child_env(), cwd='/', capture_output=True, text=True))\n"
    )
    env = {name: value for name, value in os.environ.items() if not name.startswith("OPTREE_")}
    env |= {"PYTHONPATH": ":".join(sys.path), "HOME": str(tmp_path / "home")}
    ran = subprocess.run([sys.executable, "-c", script], env=env, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "stdout='True all\\n', stderr=''" in ran.stdout
    loaded = optree.load("last", optree.Directory.of(tmp_path / "here"))
    assert ["near", "far"] == [op.name for *_, op in optree.walk_ops(loaded.session)]
    assert not (tmp_path / "home").exists()


def test_a_joined_process_says_what_it_lost_and_why(finished, directory):
    """Its journal is removed while it works: health() and the last line on stderr say how many records went, and why (S4-131)."""
    code, out, err = finished(
        """
        import subprocess
        CHILD = '''if True:
            import optree
            from optree._tracing.runtime import RUNTIME
            with optree.tool("look"):
                assert optree.flush("sync", 60)
                [store] = RUNTIME.stores.values()
                store.journal.path.unlink()
                assert not optree.flush("sync")
                assert not optree.flush("sync")
                health = optree.health()
                print(health["ok"], health["lost"], health["problems"])
        '''
        with optree.session("root"), optree.turn():
            assert 0 == subprocess.run([sys.executable, "-c", CHILD], env=optree.child_env()).returncode
        """
    )
    [saved] = directory.saved()
    removed = f"files of session {saved.txn}: they were removed from {directory.live(saved.txn)} while it runs; they are written anew"
    assert (0, f"False 1 [{removed!r}]\n") == (code, out)
    assert f"optree: 1 records are lost, in {directory.sessions}: {removed}" in err.splitlines()


ELSEWHERE = """
import os, subprocess, sys
import optree
optree.configure({options})
with optree.session("agent") as session, optree.turn(user="x"):
    os.mkdir("work")
    os.chdir("work")
    with optree.tool("here"):
        pass
    if hasattr(os, "fork"):
        pid = os.fork()
        if not pid:
            with optree.tool("forked"):
                pass
            os._exit(not optree.flush())
        assert os.waitpid(pid, 0)[1] == 0
    joined = "import optree; optree.tool('joined')(print)()"
    subprocess.run([sys.executable, "-c", joined], env=optree.child_env(), cwd="/", check=True, stdout=subprocess.DEVNULL)
assert optree.flush("snapshot")
print(sorted(op.name for *_, op in optree.walk_ops(optree.load(session.txn))), optree.health()["problems"])
"""


@pytest.mark.parametrize(
    ("options", "environment"),
    [("base_dir='traces'", {}), ("", {"OPTREE_BASE_DIR": "traces"}), ("sessions_dir='traces/sessions', billing_file='traces/bill'", {})],
    ids=["configure", "environment", "both paths"],
)
def test_a_program_that_goes_into_another_directory(options, environment, tmp_path):
    """A relative path means where the program was, for what it records later, and for processes that it forks or that join."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("OPTREE_")}
    env |= {"PYTHONPATH": os.pathsep.join(sys.path), **environment}
    source = ELSEWHERE.replace("{options}", options)
    run = subprocess.run([sys.executable, "-c", source], cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    names = ["forked", "here", "joined"] if hasattr(os, "fork") else ["here", "joined"]
    assert (f"{names} []\n", "") == (run.stdout, run.stderr)
    assert ["traces", "work"] == sorted(path.name for path in tmp_path.iterdir())
    assert [] == list((tmp_path / "work").iterdir())


def _function(x):
    return x


async def _coroutine(x):
    return x


def _generator(x):
    yield x


async def _async_generator(x):
    yield x


@pytest.mark.parametrize("function", [_function, _coroutine, _generator, _async_generator])
@pytest.mark.parametrize("decorate", [optree.tool, optree.turn, optree.session(agent="a"), optree.llm(provider="p", model="m")])
def test_sent_by_value(decorate, function):
    """What a decorated function refers to can be sent by name, as cloudpickle does for functions of a script: the worker has its own."""
    decorated = decorate(function)
    values = [decorated.__globals__[name] for name in decorated.__code__.co_names if name in decorated.__globals__]
    values = [value for value in values if not isinstance(value, types.ModuleType)]  # which cloudpickle sends by name itself
    assert values == [pickle.loads(pickle.dumps(value)) for value in values]
    assert optree.__name__ == type(pickle.loads(pickle.dumps(decorated.optree_instrument))).__module__.partition(".")[0]
