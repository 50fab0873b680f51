"""What other processes of a session leave, and what this one holds of sessions of others."""

import subprocess
import sys
from collections import Counter
from contextlib import ExitStack
from subprocess import PIPE

import optree
from optree._nodes import OperationNode
from optree._tracing import runtime
from optree._tracing.propagate import _Placed
from optree_otel import live
from optree_otel.delivered import mark_open, writers
from optree_otel.session_exporter import nodes
from tests.otel.backends.waiting import wait_for
from tests.otel.mirroring import delivered_whole, environ, expected, loaded, mirrored, sessions, unsent
from tests.otel.receiver import receiver

IDLE = """
import multiprocessing, os, sys, warnings
warnings.simplefilter("ignore")
import optree

def idle(): pass

with optree.session("lead") as session, optree.turn():
    if sys.argv[1] == "fork":
        child = os.fork()
        if not child:
            sys.exit(0)
        os.waitpid(child, 0)
    else:
        process = multiprocessing.get_context("fork").Process(target=idle)
        process.start()
        process.join()
print(session.txn, optree.flush("export", 20))
"""


def test_an_idle_worker_leaves_nothing(tmp_path):
    """A forked process that records nothing leaves no notes, so the session counts as delivered at its own end."""
    with receiver("http/protobuf") as collector:
        for way in ("fork", "multiprocessing"):
            where = environ(tmp_path / way, collector.endpoint)
            done = subprocess.run([sys.executable, "-c", IDLE, way], env=where, capture_output=True, text=True, timeout=60, check=True)
            txn, whole = done.stdout.split()
            assert "True" == whole
            assert delivered_whole(tmp_path / way, txn)
            assert [] == writers(sessions(tmp_path / way), txn)


LEAVING = """
import os, signal, sys, warnings
warnings.simplefilter("ignore")
import optree

with optree.session("lead") as session, optree.turn():
    for number in range(3):
        child = os.fork()
        if not child:
            with optree.session(f"worker-{number}"), optree.turn(), optree.tool("search") as op:
                op.log("found")
            os._exit(0)
        os.waitpid(child, 0)
print(session.txn, optree.flush("export", 20), optree.flush("export", 20))
"""


def test_a_flush_sends_what_workers_left_that_have_gone(tmp_path):
    """They left at once, with what they had ended on disk: it goes out with their parent's flush, once, and the session is done."""
    with receiver("http/protobuf") as collector:
        where = environ(tmp_path, collector.endpoint)
        done = subprocess.run([sys.executable, "-c", LEAVING], env=where, capture_output=True, text=True, timeout=60, check=True)
        txn, *whole = done.stdout.split()
        assert ["True", "True"] == whole
        tree = loaded(tmp_path, txn).session
        wanted = sorted(node.span_id for node in expected(tree))
        assert (14, wanted) == (len(wanted), sorted(span.span_id.hex() for span in collector.spans()))
        assert delivered_whole(tmp_path, txn)


OWNER = """
import os, sys, optree
with optree.session(sys.argv[1]) as session, optree.turn(), optree.tool("ask"):
    print(optree.child_env({})["OPTREE_PARENT"], flush=True)
    sys.stdin.read()
"""


def answer(parent):
    """Call a tool inside another process's op."""
    with _Placed(None, parent, None), optree.tool("answer"):
        pass


def test_joined_sessions_are_let_go_of(tmp_path, monkeypatch):
    """A worker of many sessions holds none of them whose nodes are delivered and closed; one that goes on is taken up again."""
    with receiver("http/protobuf") as collector, mirrored(tmp_path, collector.endpoint) as mirroring:
        owners = [
            subprocess.Popen([sys.executable, "-c", OWNER, f"owner-{number}"], env=environ(tmp_path), stdin=PIPE, stdout=PIPE, text=True)
            for number in range(3)
        ]
        try:
            parents = [owner.stdout.readline().strip() for owner in owners]
            for parent in parents:
                answer(parent)
            assert optree.flush("export", 20)
            monkeypatch.setenv("OPTREE_PARENT", parents[-1])
            mirror = mirroring._mirror
            assert wait_for(lambda: not mirror.exporters)
            for parent in parents:
                assert mirror.traceparent(*parent.partition(" ")[0].split(":", 1))
            mark_open(sessions(tmp_path), parents[-1].partition(":")[0])  # as a process does that finds nobody at work in it
            with optree.tool("open"):
                assert parents[-1].partition(":")[0] in unsent(tmp_path)
                with optree.tool("inner"):
                    pass
                assert optree.flush("export", 20)
                assert [parents[-1].partition(":")[0]] == list(mirror.exporters)
            assert optree.flush("export", 20)
            assert wait_for(lambda: not mirror.exporters)
            assert ["answer", "answer", "answer", "inner", "open"] == sorted(span.name.split()[-1] for span in collector.spans())
        finally:
            for owner in owners:
                owner.communicate("")


def test_live_traces_of_joined_sessions_are_let_go_of(tmp_path, monkeypatch):
    """A worker watches no session in which nothing of its own is open, and watches it again when it goes on."""
    monkeypatch.setattr(live, "LATE_SECONDS", 0.0)
    with receiver("http/protobuf") as collector, mirrored(tmp_path, collector.endpoint, live=True) as mirroring:
        owner = subprocess.Popen([sys.executable, "-c", OWNER, "owner"], env=environ(tmp_path), stdin=PIPE, stdout=PIPE, text=True)
        try:
            parent = owner.stdout.readline().strip()
            for number in (1, 2):
                with _Placed(None, parent, None), optree.tool("long"):
                    assert wait_for(lambda: mirroring._mirror.live._watched)
                assert optree.flush("export", 20)
                assert wait_for(lambda: not mirroring._mirror.live._watched)
                assert 2 * number == sum(span.name.endswith("long") for span in collector.spans())
        finally:
            owner.communicate("")


def test_a_worker_of_many_sessions_holds_the_last_of_them(tmp_path, monkeypatch):
    """Journals of sessions that nothing is open in are closed after a while; what is open stays, and what was closed is joined again."""
    monkeypatch.setattr(runtime, "IDLE_SESSIONS", 2)
    with receiver("http/protobuf") as collector, mirrored(tmp_path, collector.endpoint) as mirroring:
        command = [sys.executable, "-c", OWNER, "owner"]
        with ExitStack() as open_still:
            owners = [subprocess.Popen(command, env=environ(tmp_path), stdin=PIPE, stdout=PIPE, text=True) for _ in range(5)]
            for owner in owners:
                open_still.callback(owner.communicate, "")
            parents = [owner.stdout.readline().strip() for owner in owners]
            txns = [parent.partition(":")[0] for parent in parents]
            monkeypatch.setenv("OPTREE_PARENT", parents[0])
            with optree.tool("open"):
                for parent in [*parents[1:], parents[1]]:
                    answer(parent)
                held = {txn for txn in runtime.RUNTIME.stores if txn in txns}
                assert {txns[0], txns[1], txns[3], txns[4]} == held
                assert held == set(mirroring._traced)
            assert optree.flush("export", 20)
        assert [("answer", 5), ("open", 1)] == sorted(Counter(span.name.split()[-1] for span in collector.spans()).items())
    for txn, count in zip(txns, [1, 2, 1, 1, 1], strict=True):
        assert count + 1 == sum(1 for _, node in nodes(loaded(tmp_path, txn).session) if isinstance(node, OperationNode))
