"""Several processes, and signal handlers, in the conversation of one traced session."""

import os
import signal
import subprocess
import sys
import threading
import warnings
from collections import Counter
from pathlib import Path

import optree
from optree.conversation import SessionViewer, load_traced

ROOT = Path(__file__).resolve().parents[2]
SPAWNING = """
import asyncio, subprocess, sys
import optree
from optree.conversation import load_traced

with optree.session(sys.argv[1]) as traced:
    root, conversation = load_traced(traced)
    asyncio.run(root.act(("task", {"name": sys.argv[2], "system_prompt": "Be brief."})))
    root.subagents[sys.argv[2]].harken("only for " + sys.argv[2])
    if sys.argv[1] == "boss":
        with optree.tool("spawn"):
            subprocess.run([sys.executable, __file__, "worker", "Jill"], env=optree.child_env(), check=True)
    conversation.close()
"""
FORKING = """
import asyncio, os, warnings
import optree
from optree.conversation import load_traced

warnings.simplefilter("ignore", DeprecationWarning)
with optree.session("boss") as traced:
    root, conversation = load_traced(traced)
    root.harken("one")
    pid = os.fork()
    if pid == 0:
        root.harken("child")
        asyncio.run(root.act(("task", {"name": "Jill"})))
        conversation.close()
        optree.flush()
        os._exit(0)
    os.waitpid(pid, 0)
    root.harken("parent")
    asyncio.run(root.act(("task", {"name": "Jack"})))
    conversation.close()
"""


class Handle:
    """What `optree.session` gives: something with a builder."""

    def __init__(self):
        self.builder = optree.SessionTreeBuilder("root")


def saved(tmp_path, program, *arguments):
    """Run a program with sessions of its own; returns the tree that it left."""
    (tmp_path / "program.py").write_text(program)
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OPTREE_BASE_DIR": str(tmp_path / "base")}
    subprocess.run([sys.executable, str(tmp_path / "program.py"), *arguments], env=environment, timeout=120, check=True)
    return optree.load("last", optree.Directory.of(tmp_path / "base"))


def twice(tree):
    """Return the ids that several messages have."""
    ids = Counter(message.id for session in optree.walk_sessions(tree.session) for message in session.messages)
    return [one for one, times in ids.items() if times > 1]


def test_spawned_process_numbers_from_a_range_of_its_own(tmp_path):
    """A spawned process gives no message and no agent an id that its parent gives, so no agent hears another's words."""
    tree = saved(tmp_path, SPAWNING, "boss", "Jack")
    assert [] == twice(tree)
    viewer = SessionViewer(tree)
    assert {"boss": "boss", "agent_001": "Jack", "worker": "worker", "agent_1000001": "Jill"} == viewer.list_agents()
    assert ["Be brief.", "only for Jack"] == [one["content"] for one in viewer.get_transcript("agent_001")]


def test_forked_process_numbers_from_a_range_of_its_own(tmp_path):
    """A forked process goes on with the conversation under ids of its own."""
    tree = saved(tmp_path, FORKING)
    assert [] == twice(tree)
    assert {"boss": "boss", "agent_001": "Jack", "agent_1000001": "Jill"} == SessionViewer(tree).list_agents()
    own = [message.id for message in tree.session.messages]
    assert {"msg_002", "msg_003", "msg_1000001"} <= set(own)


def test_numbers_of_other_processes_raise_none():
    """A resumed conversation goes on after its own numbers, not after those of other writers."""
    handle = Handle()
    handle.builder.append_message({"role": "user", "content": "x"}, message_id="msg_007")
    handle.builder.append_message({"role": "user", "content": "x"}, message_id="msg_1000003")
    root, _ = load_traced(handle)
    root.harken("on")
    assert "msg_008" == handle.builder.node.messages[-1].id


def test_forked_while_another_thread_logs():
    """A process forked while another thread logs can log: no lock is held there for ever."""
    root, conversation = load_traced(Handle())
    done = threading.Event()
    held = threading.Event()

    def hold():
        with conversation.home.registry.counters.lock:
            held.set()
            done.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(60)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        signal.alarm(20)
        root.harken("child")
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    done.set()
    thread.join()
    assert 0 == status


def test_signal_handler_that_logs():
    """A signal handler that logs while an event is made gives no id twice."""
    handle = Handle()
    root, conversation = load_traced(handle)
    before = signal.signal(signal.SIGUSR1, lambda *_: root.harken("from the handler"))

    class Interrupted:
        """A program's own value, during whose conversion the signal comes."""

        def __str__(self):
            signal.raise_signal(signal.SIGUSR1)
            return "root"

    try:
        for _ in range(3):
            conversation.log_transcript_entry(Interrupted(), {"role": "user", "content": "x"})
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert 6 == len(handle.builder.node.messages)
    assert [] == twice(handle.builder.tree)
