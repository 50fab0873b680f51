import gc
import os
import subprocess
import sys
from pathlib import Path
from weakref import ref

import pytest

import optree
from optree._background import Wake
from optree._interrupts import pass_on
from optree._tracing import holding

ROOT = Path(__file__).resolve().parents[2]


def status(code, folder):
    """Return the exit status of a program."""
    environ = os.environ | {"OPTREE_BASE_DIR": str(folder), "PYTHONPATH": str(ROOT)}
    return subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, check=False).returncode


TRACED = """
import atexit, optree
with optree.session("a"), optree.turn():
    pass
atexit.register(lambda: exec('pass'))  # runs before optree's own end: Python forgets that Ctrl-C ended the program
"""


def test_ctrl_c_ends_a_program_by_its_signal(tmp_path):
    """A program that Ctrl-C ends dies of SIGINT, traced or not, whatever is executed while it ends."""
    assert -2 == status("raise KeyboardInterrupt", tmp_path)
    forgotten = 1 if sys.version_info < (3, 14) else -2  # as Python does by itself
    assert forgotten == status("import atexit; atexit.register(lambda: exec('pass')); raise KeyboardInterrupt", tmp_path)
    assert -2 == status(TRACED + "raise KeyboardInterrupt", tmp_path)


def test_what_was_survived_does_not_end_it(tmp_path):
    """An interrupt that a shell inside the program has shown, or that was caught, leaves the exit status alone."""
    shown = "import code; code.InteractiveInterpreter().runcode(compile('raise KeyboardInterrupt', 'x', 'exec'))"
    caught = "try:\n    raise KeyboardInterrupt\nexcept KeyboardInterrupt:\n    pass"
    assert [0, 0, 3] == [status(TRACED + then, tmp_path) for then in (shown, caught, shown + "\nraise SystemExit(3)")]


def test_what_waits_to_be_delivered_is_ended():
    """An op whose begin was interrupted is ended, though its first log line waits to be delivered, as that of a cycle."""
    with optree.session("a") as session, optree.turn():
        session.builder.begin_op("session", "sub").log("agent a calls itself", severity="WRN")
        holding.abandon_last(session.builder, "session")
        assert ["cancelled"] == [op.status for _, _, op in optree.walk_ops(session.tree)]


def test_what_the_program_has_is_left_alone():
    """An op that somebody goes on referring to is not taken for one whose begin was interrupted."""
    with optree.session("a") as session, optree.turn():
        seen = session.builder.begin_op("session", "sub")
        holding.abandon_last(session.builder, "session")
        assert ["running"] == [op.status or "running" for _, _, op in optree.walk_ops(session.tree)]
        seen.end()


def refuse():
    """Raise, as code does below who catches."""
    raise OSError


@pytest.mark.parametrize("fails", [lambda: os.close(-1), refuse])
def test_what_is_caught_keeps_nothing_alive(fails):
    """An exception that was caught and looked at keeps no variable of any function alive that was being called."""

    class Value:
        pass

    def caught():
        try:
            fails()
        except OSError as error:
            pass_on(error)

    def call(value):
        wake = Wake()
        wake.set()
        wake.set()  # which is given already
        caught()
        return ref(value)

    gc.disable()
    try:
        seen = call(Value())  # an assertion would keep it
        assert seen() is None
    finally:
        gc.enable()
