"""Exceptions out of signals' handlers: a share of what `make interrupts` does."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from optree._interrupts import of_handler
from tests.interrupts.capturing import CAPTURED, HOOKING, OUTSIDE

ROOT = Path(__file__).resolve().parents[2]


def told(*options, pure):
    """Run them in a process of their own, and return its exit code and last line."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("OPTREE_")} | ({"OPTREE_PURE": "1"} if pure else {})
    done = subprocess.run(
        [sys.executable, "-m", "tests.interrupts", *options], env=environ, cwd=ROOT, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(("pure", "share"), [(True, 211), (False, 401)])
def test_an_exception_at_any_bytecode(pure, share):
    """It reaches the program; no dead op stays current, logs are delivered, totals are sums of their entries, what comes next is right."""
    code, said = told("--share", str(share), pure=pure)
    assert 0 == code, said


@pytest.mark.slow
@pytest.mark.parametrize("pure", [True, False])
def test_signals_at_random_times(pure):
    """The same holds for real signals."""
    code, said = told("--signals", "1000", pure=pure)
    assert 0 == code, said


def test_hooks_that_are_put_in_and_taken_out():
    """Wherever a handler raises in `instrument`, in `uninstrument` and in an import, the hooks can be taken out, and put in again."""
    code, said = told("--handlers", "--workers", "1", "--", *HOOKING, pure=True)
    assert 0 == code, said


@pytest.mark.parametrize("call", ["streamed", "awaited and streamed"])
def test_a_response_that_the_program_never_sees(call):
    """The op of a call ends where a handler raises between the response's head and the program, though httpx has that in a cycle."""
    code, said = told(
        "--within", "run_within.<locals>.run", "await_within.<locals>.run", "--workers", "1", "--", f"captured call, {call}", pure=True
    )
    assert 0 == code, said


@pytest.mark.slow
@pytest.mark.parametrize("pure", [True, False])
def test_calls_that_are_captured(pure):
    """Wherever a handler raises in a call that is captured, its op ends, and the next call is recorded as one of its own."""
    code, said = told("--handlers", "--share", "23", "--", *CAPTURED, *OUTSIDE, pure=pure)
    assert 0 == code, said


BEGIN = {
    "open_session",
    "SessionStore.attach",
    "Upkeep.start",
    "Job.ask",
    "Worker.put",
    "Worker.start",
    "Runtime._opened",
    "Runtime.open_root",
}
"""Functions in which a root session's threads begin, and in which they become known."""


@pytest.mark.slow
def test_a_session_that_is_never_begun_leaves_no_thread():
    """An exception anywhere in the begin of a session leaves no store behind that nothing will close."""
    code, said = told("--within", *BEGIN, "--", "with session", pure=True)
    assert 0 == code, said


LIMITS = """
import os, random, signal, sys, threading, time
import optree
from optree._tracing.runtime import RUNTIME

def left():
    threads = sorted(thread.name for thread in threading.enumerate())
    return len(os.listdir("/proc/self/fd")), threads, len(RUNTIME.consoles), len(RUNTIME._detached)

def settled(expected):
    until = time.monotonic() + 60
    while (found := left()) != expected and time.monotonic() < until:
        with optree.session("next"):
            pass
        optree.flush("snapshot")
    return found

class Limit(Exception): pass

def stop(*_):
    raise Limit

signal.signal(signal.SIGALRM, stop)
try:
    with optree.session("first"), optree.tool("line") as op:
        op.log("line")
        raise Limit
except Limit:
    pass  # a failure is told by the console's thread, and a line delivered by the stream's: they are among those of before
optree.flush("snapshot")
while "optree-stream" not in left()[1]:
    time.sleep(0.01)
before, hit, random = left(), 0, random.Random(1)
while hit < 150:
    try:
        try:
            signal.setitimer(signal.ITIMER_REAL, random.uniform(0.0001, 0.003))
            with optree.session("limited") if hit % 2 else optree.llm("limited"):
                pass
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    except Limit:
        hit += 1
print(settled(before) == before, before, left())
"""


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="descriptors are counted there")
def test_limits_that_hit_the_begin_leave_nothing_behind(tmp_path):
    """After 150 sessions that a signal's handler broke off there are the threads, descriptors and consoles of before, none is damaged."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("OPTREE_")} | {"OPTREE_BASE_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", LIMITS], env=environ, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("True"), done.stdout
    assert "Exception ignored in thread" not in done.stderr
    told = subprocess.run(
        [sys.executable, "-m", "optree", "status", "--json"], env=environ, cwd=ROOT, capture_output=True, text=True, check=True
    )
    status = json.loads(told.stdout)
    assert ([], [], []) == (status["running"], status["interrupted"], status["damaged"])
    assert [] == [path.name for path in (tmp_path / "sessions").glob("*.live")]


class LimitError(Exception):
    """A time limit."""


@pytest.fixture
def limit():
    """Return what a signal hits whose handler raises."""

    def handle(*_):
        raise LimitError

    before = signal.signal(signal.SIGTERM, handle)
    yield lambda: signal.raise_signal(signal.SIGTERM)
    signal.signal(signal.SIGTERM, before)


def caught(work):
    """Return the kind of the exception out of a handler that led to what some work raises."""
    try:
        work()
    except Exception as error:  # noqa: BLE001 - whatever it is
        return type(of_handler(error))


def test_an_error_in_the_handling_of_an_exception_out_of_a_handler(limit):
    """What a library raises in its place, as it cleans up or says it in another way, is known to come from it, however often."""

    def clean_up():
        try:
            limit()
        finally:
            raise OSError("cannot be closed")

    def says_otherwise():
        try:
            clean_up()
        except OSError as error:
            raise ValueError("failed") from error

    assert [LimitError] * 3 == [caught(work) for work in (limit, clean_up, says_otherwise)]


def test_an_error_while_the_program_handles_an_exception_out_of_a_handler(limit):
    """What fails then, below, is a fault of its own, as any other: the program has that exception by then."""

    def fails():
        raise OSError("refused")

    try:
        limit()
    except LimitError:
        during = caught(fails)
    assert [type(None)] * 2 == [during, caught(fails)]
