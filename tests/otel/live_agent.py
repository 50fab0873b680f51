"""An agent that goes from moment to moment as the test tells it, and says when all that has happened is delivered."""

import os
import signal
import sys
import time
from collections.abc import Iterator

import optree

LONG = 1.5
"""Seconds after which an op is anchored for certain."""


def say(*words: object) -> None:
    """Tell the test."""
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


@optree.tool
def search(query: str) -> str:
    """Return a result, by way of another tool."""
    return fetch(query) + "!"


@optree.tool(provider="web")
def fetch(query: str) -> str:
    """Return a result."""
    return query.upper()


def call(model: str) -> None:
    """Call a model."""
    with optree.llm(provider="openai", model=model) as op:
        op.log("asked")
        op.account(input_tokens=10, output_tokens=5, cost_usd=0.25)


def helper() -> Iterator[str]:
    """Be a sub-agent, with another inside."""
    with optree.session("helper"):
        yield "sub-agent began"
        with optree.turn(user="help"):
            yield "its turn began"
            call("small")
            yield "it called a model"
            with optree.session("inner"), optree.turn():
                yield "its own sub-agent began"
                search("deep")
                yield "that searched"
            yield "its own sub-agent ended"
    yield "sub-agent ended"


def steps() -> Iterator[str]:
    """Do all that makes a node, and stop in between."""
    yield "session began"
    with optree.turn(user="go"):
        yield "turn began"
        call("large")
        yield "model called"
        search("x")
        yield "searched"
        with optree.tool("slow"):
            yield "slow op began"
            time.sleep(LONG)  # as a slow model does
            yield "slow op is long"
            search("inside")
            yield "searched inside it"
        yield "slow op ended"
        yield from helper()
    yield "turn ended"
    with optree.turn(user="fail"):
        yield "second turn began"
        try:
            with optree.tool("broken"):
                yield "broken op began"
                int("no number")
        except ValueError:
            yield "broken op failed"
        with optree.tool("host"):
            search("within")
            yield "searched within a short op"
    yield "second turn ended"


def moments() -> None:
    """Stop at each moment until the test has looked."""
    with optree.session("lead") as session:
        say(session.txn)
        for moment in steps():
            say(optree.flush("export", 0.1 if "hasty" in sys.argv else 30), moment)
            sys.stdin.readline()
    say(optree.flush("export", 30), "session ended")


def killed() -> None:
    """Be killed in the middle of a sub-agent; resumed, work on."""
    with optree.session("lead") as session:
        say(session.txn)
        with optree.turn():
            call("large")
            if not session.resumed:
                with optree.tool("outer"), optree.session("helper"), optree.turn(), optree.tool("open"):
                    search("before the end")
                    if "lost" not in sys.argv:
                        optree.flush("export", 30)
                    os.kill(os.getpid(), signal.SIGKILL)
    say(optree.flush("export", 30))


def beating() -> None:
    """Be silent until the test has seen a heartbeat."""
    from optree_otel import live

    live.HEARTBEAT_SECONDS = 0.3
    with optree.session("lead") as session, optree.turn(), optree.tool("quiet"):
        say(session.txn)
        sys.stdin.readline()
    say(optree.flush("export", 30))


def visible() -> None:
    """Begin one node after the other without a flush; the test tells when it has seen each."""
    with optree.session("lead") as session:
        say(session.txn)
        sys.stdin.readline()
        with optree.turn():
            say("1")
            sys.stdin.readline()
            with optree.tool("slow"):
                say("1.1")
                sys.stdin.readline()
            with optree.session("helper"):
                say("1.2/session")
                sys.stdin.readline()


if __name__ == "__main__":
    {"moments": moments, "killed": killed, "beating": beating, "visible": visible}[sys.argv[1]]()
