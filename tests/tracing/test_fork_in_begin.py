"""A signal's handler that forks while a session begins or ends: parent and child both go on, and nothing of either is lost or doubled."""

import json
import os
import subprocess
import sys
from collections import Counter

import pytest

import optree
from optree._store.saving import StoreOptions
from optree._store.settle import settle_all
from tests.tracing.conftest import ROOT

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")

PROGRAM = """
import json, os, signal, sys
import optree

every, first = int(sys.argv[1]), int(sys.argv[2])
me, child, acknowledged, wrong = os.getpid(), 0, [], []


def fork_at(number, child_first):
    # Fork where that call of optree's begins.
    global child
    child, calls, (gate, open_gate) = 0, 0, os.pipe()

    def handler(*_):
        global child, acknowledged, wrong
        child = os.fork()
        if not child:
            acknowledged, wrong = [], []
            os.close(open_gate)
            if not child_first:
                os.read(gate, 1)
        elif child_first:
            os.waitpid(child, 0)

    def trace(frame, event, _):
        nonlocal calls
        if event == "call" and "/optree/" in frame.f_code.co_filename:
            calls += 1
            if calls == number:
                sys.settrace(None)
                signal.raise_signal(signal.SIGUSR1)

    signal.signal(signal.SIGUSR1, handler)
    name = f"{number} {'child' if child_first else 'parent'} first"
    def record(txn):
        mine = name + (" (parent)" if os.getpid() == me else " (child)")
        with optree.llm(provider="p", model="m") as op:
            op.account(input_tokens=1, output_tokens=1, cost_usd=0.25)
            op.response(mine)
        if optree.flush():
            acknowledged.append((txn, op.path, mine))

    SCENARIO
    mine = name + (" (parent)" if os.getpid() == me else " (child)")
    is_saved = optree.flush("snapshot", 30)
    if not (is_saved and optree.health()["ok"]):
        wrong.append((mine, is_saved, optree.health()["problems"]))
    if os.getpid() != me:
        with open(sys.argv[3], "a") as told:
            told.write(json.dumps([acknowledged, wrong]) + "\\n")
        os._exit(0)
    os.close(gate)
    os.close(open_gate)
    if child and not child_first:
        os.waitpid(child, 0)
    return calls >= number


with optree.session("before"):
    pass
number = first
while fork_at(number, number % 2 == 0):
    number += every
with open(sys.argv[3], "a") as told:
    told.write(json.dumps([acknowledged, wrong]) + "\\n")
"""


ROOT_BEGINS = """
    beginning = optree.session(name)
    sys.settrace(trace)
    with beginning as session, optree.turn():
        sys.settrace(None)
        record(session.txn)
"""
AGENT_BEGINS = """
    with optree.session(name) as session, optree.turn():
        beginning = optree.session("agent")
        sys.settrace(trace)
        with beginning, optree.turn():
            sys.settrace(None)
            record(session.txn)
"""
ROOT_GOES_ON = """
    with optree.session(name) as session, optree.turn():
        record(session.txn)
    beginning = optree.session(name, resume=session.txn)
    sys.settrace(trace)
    with beginning as session, optree.turn():
        sys.settrace(None)
        record(session.txn)
"""
ROOT_ENDS = """
    with optree.session(name) as session, optree.turn():
        record(session.txn)
        sys.settrace(trace)
    sys.settrace(None)
"""


def check(tmp_path, scenario, every, first):
    """Run it, and hold what is on disk to what was acknowledged; returns how many sessions were begun."""
    told = tmp_path / "told"
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.replace("    SCENARIO", scenario), str(every), str(first), told],
        env={**os.environ, "OPTREE_BASE_DIR": str(tmp_path), "OPTREE_CONSOLE": "off", "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"},
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert (0, "") == (done.returncode, done.stderr)
    lines = [json.loads(line) for line in told.read_text().splitlines()]
    acknowledged = [tuple(one) for recorded, _ in lines for one in recorded]
    assert [] == [one for _, wrong in lines for one in wrong]
    directory = optree.Directory.of(tmp_path)
    assert [] == settle_all(StoreOptions(directory))  # a child that was forked in a session's first turn may be the last in it
    loaded = {saved.txn: optree.load(saved.txn, directory) for saved in directory.saved()}
    assert [] == [saved for saved in directory.saved() if saved.live]
    found = [
        (txn, op.path, json.loads(bytes(op.response.payload)))
        for txn, one in loaded.items()
        for *_, op in optree.walk_ops(one.session)
        if op.kind == "llm"
    ]
    assert Counter(acknowledged) == Counter(found)
    bill = [json.loads(line)["id"] for line in (tmp_path / "accounting.jsonl").read_text().splitlines()]
    assert sorted(f"{txn}:{path}" for txn, path, _ in found) == sorted(one.partition("#")[0] for one in bill)
    return len(found)


@pytest.mark.parametrize(
    ("scenario", "every", "fewest"), [(ROOT_BEGINS, 19, 20), (AGENT_BEGINS, 9, 8), (ROOT_ENDS, 7, 8), (ROOT_GOES_ON, 23, 20)]
)
def test_a_fork_where_a_session_begins_or_ends(tmp_path, scenario, every, fewest):
    """At some of the calls there: both record, each its own, and the bill has each call once."""
    assert fewest < check(tmp_path, scenario, every, 3)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scenario", "every", "fewest"), [(ROOT_BEGINS, 1, 400), (AGENT_BEGINS, 1, 100), (ROOT_ENDS, 1, 60), (ROOT_GOES_ON, 4, 200)]
)
def test_a_fork_anywhere_where_a_session_begins_or_ends(tmp_path, scenario, every, fewest):
    """The same at each of them, or at one in so many."""
    assert fewest < check(tmp_path, scenario, every, 1)
