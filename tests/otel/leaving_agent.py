"""A program of several processes, all of which record into one directory and end in the way that its first argument names.

What the first process has recorded is delivered when it ends; what another has ("execute_tool left") the collector does not take yet.
"""

import multiprocessing
import os
import sys
import time
import warnings
from pathlib import Path

import optree
from optree.exporting import lock_file

warnings.simplefilter("ignore")


def say(txn: str) -> None:
    """Tell the test which session it is."""
    sys.stdout.write(f"{txn}\n")
    sys.stdout.flush()


@optree.tool
def left() -> None:
    """Be what is left."""


def leaving() -> None:
    """Record, and leave at once."""
    left()
    os._exit(0)


def by_fork(*, at_once: bool) -> None:
    """Fork a child that records, and wait for it."""
    child = os.fork()
    if not child:
        left()
        os._exit(0) if at_once else sys.exit()
    os.waitpid(child, 0)


def by_multiprocessing(method: str) -> None:
    """Start a child by `multiprocessing`, and wait for it."""
    process = multiprocessing.get_context(method).Process(target=optree.wrap(left))
    process.start()
    process.join()


def by_killed_worker() -> None:
    """Start a child that `multiprocessing` ends when this process does."""
    told, tell = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(target=optree.wrap(waiting), args=(tell,), daemon=True)
    process.start()
    told.recv()


def waiting(tell: object) -> None:
    """Record, and wait for ever."""
    left()
    tell.send("left")  # type: ignore[attr-defined]
    time.sleep(600)


def outliving(*, at_once: bool = False) -> None:
    """Fork a child that records once its parent has gone."""
    parent = os.getpid()
    if not os.fork():
        while os.getppid() == parent:
            time.sleep(0.01)
        left()
        os._exit(0) if at_once else sys.exit()


def while_it_is_settled() -> None:
    """Do as `outliving`, when nobody delivers any more; while the child ends, somebody settles the session and has its lock for that."""
    parent, sessions = os.getpid(), Path(os.environ["OPTREE_BASE_DIR"], "sessions")
    session = optree.current_session()
    assert session is not None
    live = sessions / f"{session.txn}.live"
    if not os.fork():
        while os.getppid() == parent or [word for word in sessions.glob(".otel/.delivery/*/*") if word.name != "lock"]:
            time.sleep(0.01)
        left()
        optree.flush()
        assert lock_file(live / "LOCK") >= 0
        sys.exit()


def settle() -> None:
    """Wait until what this process has recorded is delivered."""
    while optree.health()["otel"]["traces"]["waiting"]:
        time.sleep(0.01)


def daemon() -> None:
    """Become a daemon, as programs do, and record a session of its own."""
    if os.fork():
        os._exit(0)
    os.setsid()
    if os.fork():
        os._exit(0)
    with optree.session("daemon") as session, optree.turn():
        left()
    say(session.txn)


def daemon_within() -> None:
    """Become a daemon inside a session."""
    with optree.session("lead") as session, optree.turn():
        say(session.txn)
        left()
        if os.fork():
            os._exit(0)
        os.setsid()
        if os.fork():
            os._exit(0)
        left()


def pool() -> None:
    """Fork a worker that records a session of its own, and leave it."""
    child = os.fork()
    if not child:
        with optree.session("worker") as session, optree.turn():
            left()
        say(session.txn)
        sys.exit()
    os.waitpid(child, 0)


WITHIN = {
    "fork": lambda: by_fork(at_once=False),
    "fork, _exit": lambda: by_fork(at_once=True),
    "mp fork": lambda: by_multiprocessing("fork"),
    "mp spawn": lambda: by_multiprocessing("spawn"),
    "mp daemon": by_killed_worker,
    "outliving": outliving,
    "outliving, _exit": lambda: outliving(at_once=True),
    "outliving, settled": while_it_is_settled,
}
WHOLE = {"daemon": daemon, "daemon within": daemon_within, "own session": pool}


def main() -> None:
    """Work, and end."""
    way = sys.argv[1]
    if way in WHOLE:
        WHOLE[way]()
        return
    parent = os.getpid()
    with optree.session("lead") as session, optree.turn():
        WITHIN[way]()
    if os.getpid() == parent:
        say(session.txn)
        settle()


if __name__ == "__main__":
    main()
